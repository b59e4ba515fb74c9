# %% [markdown]
# # After the paper
#
# *What became of the Transformer {cite}`vaswani2017attention`, from 2017 to today: three families of models, the parts that
# were exchanged, and how a model that predicts words became one that answers.*
#
# Nearly every large model since 2017 is built from this paper's parts. In this chapter we build one small model of each
# family and train it in seconds. We fine-tune one, and write each part that changed in a few lines. What a cell
# computes is ours; the rest is cited.

# %% tags=["hide-cell"]
import copy
import itertools
import math
import random

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

# %% tags=["hide-cell"]
from annotated_transformer import (
    ModelConfig, PositionwiseFeedForward, SharedEmbedding, TrainConfig, TrainingRun, causal_mask, greedy_search,
    make_batch, record_attention, scaled_dot_product_attention)
from annotated_transformer.config import BOS_ID, UNK_ID
from annotated_transformer.looking.record import HEAT_MAP
from lab.display import PALETTE, use_style
from annotated_transformer.model.embedding import SinusoidalPositions, positional_encoding
from annotated_transformer.model.stacks import Encoder
from annotated_transformer.tables.table_1 import layer_operations
from annotated_transformer.text.batching import pad_source

use_style()

# %% [markdown]
# ## Three families from the same blocks
#
# Of the paper's encoder and decoder we can keep both, or only one:
#
# | family | who may look where | trained to | examples |
# |---|---|---|---|
# | encoder-only | every position at all | fill in hidden words | BERT {cite}`devlin2019bert` |
# | decoder-only | every position at itself and the past | predict the next word | GPT {cite}`radford2018improving` |
# | encoder-decoder | source: everywhere; target: the past and the source | write the target, given the source | the paper, T5 {cite}`raffel2020exploring` |
#
# Only the mask tells the first two apart: without an encoder a decoder needs no cross-attention, and what is left is
# the encoder's layer.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three grids, queries down and keys across. Encoder-only: a 5 by 5 grid, all filled. Decoder-only: a 5 by 5 grid, the lower triangle filled with the diagonal. Encoder-decoder, drawn over all 9 tokens: the 5 source rows see the 5 source columns; the 4 target rows see all 5 source columns, and of the 4 target columns the lower triangle."}, "figure": {"caption": "Who may look at whom (filled). In the third grid the first five tokens are the source, the last four the target; the lower left block is cross-attention.", "name": "fig-ap-families"}}
both = torch.zeros(9, 9, dtype=torch.bool)
both[:5, :5] = both[5:, :5] = True
both[5:, 5:] = causal_mask(4)[0, 0]
pictures = {"encoder-only": torch.ones(5, 5).bool(), "decoder-only": causal_mask(5)[0, 0], "encoder-decoder": both}
figure, axes = plt.subplots(1, 3, figsize=(6.6, 2.5), layout="constrained")
for ax, (name, mask) in zip(axes, pictures.items()):
    ax.pcolormesh(mask.int(), cmap="Blues", vmin=0, vmax=1.4, edgecolors="white", linewidth=0.8)
    ax.set(title=name, xlabel="key", ylabel="query", xticks=[], yticks=[], aspect="equal")
    ax.invert_yaxis()
plt.show()

# %% [markdown]
# To see what each can do, we make a text of which we know everything. We draw the adjective, the animal and the place
# of a sentence at random; what the animal eats is fixed.

# %% tags=["hide-cell"]
EATS = {"horse": "hay", "cat": "mice", "bee": "nectar", "bear": "honey", "panda": "bamboo", "monkey": "bananas",
        "squirrel": "nuts", "rabbit": "carrots"}
ADJECTIVES, PLACES = ["old", "young", "small", "hungry"], ["river", "road", "house", "lake"]
WORDS = ["[pad]", "[bos]", "[eos]", "[unk]", "[mask]", "the", "eats", "near", *ADJECTIVES, *EATS, *EATS.values(), *PLACES]
ID = {word: i for i, word in enumerate(WORDS)}

def text(n, seed):
    """n sentences as rows of ids, each with [bos] and [eos]."""
    draw, rows = random.Random(seed), []
    for _ in range(n):
        a, animal, p = draw.choice(ADJECTIVES), draw.choice(list(EATS)), draw.choice(PLACES)
        rows.append([ID[word] for word in f"[bos] the {a} {animal} eats {EATS[animal]} near the {p} [eos]".split()])
    return torch.tensor(rows)

# %%
def words(row):
    return " ".join(WORDS[i] for i in row)

train, test = text(2000, seed=0), text(1000, seed=1)
ADJECTIVE, ANIMAL, FOOD, PLACE = 2, 3, 5, 8  # the places in the row
print(*map(words, test[:3]), sep="\n")
print("different sentences:", len(train.unique(dim=0)))

# %% [markdown]
# One class serves the first two families, with the mask as an argument of the call.

# %%
class OneStack(nn.Module):
    """Encoder-only without a mask; decoder-only with the causal one."""

    def __init__(self, config):
        super().__init__()
        self.embedding = SharedEmbedding(config.vocab_size, config.d_model)
        self.positions = SinusoidalPositions(config.d_model)
        self.encoder = Encoder(config)

    def forward(self, tokens, mask=None):
        x = self.embedding(tokens) + self.positions(tokens.size(1))
        return self.embedding.logits(self.encoder(x, mask))

SMALL = ModelConfig(vocab_size=len(WORDS), N=2, d_model=32, d_ff=64, h=2, p_drop=0.0)
print(f"{sum(p.numel() for p in OneStack(SMALL).parameters()):,} parameters")

# %% tags=["hide-cell"]
def fit(model, loss_of, steps, peak_rate=0.01):
    """Adam with a short warm-up and a linear descent: `TrainingRun` is for encoder-decoders alone."""
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), betas=(0.9, 0.98))
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = peak_rate * min(1, (step + 1) / 20) * (1 - step / steps)
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    return model.eval()

# %% [markdown]
# ## Encoder-only: fill in the hidden word
#
# An encoder writes nothing, so what does it train on? BERT's answer is a cloze test: hide some words and predict them
# from both sides. With $M$ the hidden places and $\tilde x$ the sentence with `[mask]` there,
#
# $$
# \text{loss} = -\frac{1}{|M|} \sum_{i \in M} \log p(x_i \mid \tilde x)
# $$ (ap-masked)
#
# BERT hides 15% of its word pieces. We hide one word per sentence and train twice, with every position visible and with
# the causal mask.

# %% tags=["hide-cell"]
def hide(rows, places):
    """The rows with [mask] at one place each."""
    hidden = rows.clone()
    hidden[torch.arange(len(rows)), places] = ID["[mask]"]
    return hidden

def masked_loss(model, mask=None, n=64):
    rows = train[torch.randint(len(train), (n,))]
    places, each = torch.randint(1, 9, (n,)), torch.arange(n)
    return F.cross_entropy(model(hide(rows, places), mask)[each, places], rows[each, places])

@torch.no_grad()
def share_found(model, place, mask=None):
    guess = model(hide(test, torch.full((len(test),), place)), mask)[:, place].argmax(dim=-1)
    return (guess == test[:, place]).float().mean().item()

# %% tags=["hide-cell", "row-S12"]
models, masks = {}, {"sees both sides": None, "sees the left": causal_mask(10)}
for name, mask in masks.items():
    torch.manual_seed(0)
    models[name] = fit(OneStack(SMALL), lambda model, mask=mask: masked_loss(model, mask), steps=150)
places = {"adjective": ADJECTIVE, "animal": ANIMAL, "food": FOOD, "place": PLACE}
found = {name: [share_found(models[name], place, mask) for place in places.values()] for name, mask in masks.items()}
full, (both_sides, left) = models["sees both sides"], found.values()
assert both_sides[1] > 0.95 and both_sides[2] > 0.95 and left[1] < 0.35 < 0.95 < left[2]
assert both_sides[0] < 0.5 and both_sides[3] < 0.5

# %% tags=["hide-input"] mystnb={"image": {"alt": "Bars of the share of hidden words that are found, for adjective, animal, food and place, with chance levels as black marks. The model that sees both sides finds about a quarter of the adjectives and places, which is chance, and all animals and foods. The model that sees the left finds all foods, but of the animals about one in eight, which is chance."}, "figure": {"caption": "Share of 1,000 hidden words that each model finds. Black: chance.", "name": "fig-ap-found"}}
figure, ax = plt.subplots(figsize=(5.6, 2.5), layout="constrained")
for i, (name, shares) in enumerate(found.items()):
    ax.bar([x + 0.4 * i for x in range(4)], shares, width=0.36, label=name)
for x, chance in enumerate((1 / 4, 1 / 8, 1 / 8, 1 / 4)):
    ax.plot([x - 0.25, x + 0.65], [chance] * 2, color="black", linewidth=1.5)
ax.set_xticks([x + 0.2 for x in range(4)], places)
ax.set(ylabel="share found", ylim=(0, 1.05))
ax.legend(frameon=False, bbox_to_anchor=(1, 0.6), loc="center left")
plt.show()

# %% [markdown]
# The **food** comes after the animal, and both models find it in more than 95 % of the sentences. The **animal** is told by
# a word to its right: the bidirectional encoder finds it as often, and the causal one has one guess in eight. Adjective and place are random. So an
# encoder is good at *judging* a text: classifying it, tagging its words, finding an answer in it. What BERT's layers
# hold has a literature of its own {cite}`rogers2020primer`.

# %% tags=["hide-cell", "row-S12"]
torch.manual_seed(0)
untrained = OneStack(SMALL)
other = test.clone()
other[:, PLACE] = (test[:, PLACE] - ID["river"] + 1) % 4 + ID["river"]  # another place in every sentence
assert (other != test).sum() == len(test)
with torch.no_grad():
    moved, moved_causal = ((untrained(other, mask) - untrained(test, mask)).abs() for mask in (None, causal_mask(10)))
assert (moved.amax(dim=(0, 2)) > 1e-3).all()  # the last word reaches every vector, or none before it
assert_close(moved_causal[:, :PLACE], torch.zeros_like(moved_causal[:, :PLACE]))

# %% [markdown]
# ## Decoder-only: write the next word
#
# With the causal mask our stack is a **language model**: it gives every sentence a probability, and one pass computes
# all the factors:
#
# $$
# p(x_1, \dots, x_n) = \prod_{t=1}^{n} p(x_t \mid x_1, \dots, x_{t-1})
# $$ (ap-language-model)
#
# Here we know the best loss there is. Three of a sentence's nine predictions are free choices, among 4, 8 and 4 words,
# and six are certain, so no model that sees only the past gets below
#
# $$
# \frac{\ln 4 + \ln 8 + \ln 4}{9} = 0.539 \text{ nats per word}
# $$ (ap-floor)

# %%
def next_word_loss(model, rows, mask="causal", reduction="mean"):
    """Nats per word: the logits at each place against the word after it."""
    mask = causal_mask(rows.size(1) - 1) if mask == "causal" else mask
    return F.cross_entropy(model(rows[:, :-1], mask).flatten(0, 1), rows[:, 1:].flatten(), reduction=reduction)

def train_language_model(mask="causal", steps=300):
    torch.manual_seed(0)
    return fit(OneStack(SMALL), lambda model: next_word_loss(model, train[torch.randint(len(train), (64,))], mask), steps)

gpt, floor = train_language_model(), (2 * math.log(4) + math.log(8)) / 9
with torch.no_grad():
    by_word = next_word_loss(gpt, test, reduction="none").view(len(test), 9).mean(dim=0)
print(f"reached {by_word.mean():.2f} nats per word, the floor is {floor:.2f}")

# %% tags=["hide-cell", "row-S13"]
assert floor - 0.01 < by_word.mean() < 1.15 * floor and round(floor, 3) == 0.539
with torch.no_grad():
    here, there = gpt(test[:, :-1], causal_mask(9)), gpt(other[:, :-1], causal_mask(9))
assert_close(here[:, :PLACE], there[:, :PLACE])             # rows before the changed word: equal
assert not torch.allclose(here[:, PLACE], there[:, PLACE])  # from it on: not

# %% tags=["hide-input"] mystnb={"image": {"alt": "Bars of the language model's loss for each word of the old horse eats hay near the river end mark. The bars of old, horse and river reach about 1.4, 2.1 and 1.4 nats, each at a black mark, the floor. All other bars are near zero."}, "figure": {"caption": "Loss of the language model by word, mean over 1,000 sentences. Black: the best possible, the logarithm of the number of choices.", "name": "fig-ap-by-word"}}
figure, ax = plt.subplots(figsize=(5.6, 2.3), layout="constrained")
ax.bar(range(9), by_word)
for x, choices in enumerate((1, 4, 8, 1, 1, 1, 1, 4, 1)):
    ax.plot([x - 0.45, x + 0.45], [math.log(choices)] * 2, color="black", linewidth=1.5)
ax.set_xticks(range(9), ["the", "old", "horse", "eats", "hay", "near", "the", "river", "[eos]"])
ax.set(xlabel="word that is predicted (example)", ylabel="nats")
plt.show()

# %% [markdown]
# A loss *below* the floor would prove that the model sees what it should predict ({ref}`ap-ex-leak`). To write, we
# begin with a **prompt**, draw a word from $p(\cdot \mid \text{so far})$, append it, and ask again. The **temperature**
# divides the logits: below 1 the likely words win more often.

# %%
@torch.no_grad()
def sample(model, prompt="", n=1, temperature=1.0, seed=0, length=9):
    """n continuations of a prompt, drawn word by word."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.tensor([[BOS_ID, *(ID.get(word, UNK_ID) for word in prompt.split())]] * n)
    while rows.size(1) < length:
        logits = model(rows, causal_mask(rows.size(1)))[:, -1] / temperature
        rows = torch.cat([rows, torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)], dim=1)
    return rows

print("the hungry bear ->", words(sample(gpt, "the hungry bear")[0, 4:7]))

# %% tags=["hide-cell", "row-S13"]
drawn = sample(gpt, n=200).tolist()
known = {tuple(row) for row in train[:, :9].tolist()}
assert sum(EATS.get(WORDS[row[ANIMAL]]) == WORDS[row[FOOD]] for row in drawn) / 200 > 0.8
assert sum(tuple(row) in known for row in drawn) / 200 > 0.8

# %% [markdown]
# Many tasks can be put as a text to continue, one reason why this family became the common one. GPT-3 solved tasks from
# a few examples in its prompt, with no weight changed: **in-context learning** {cite}`brown2020language`. One mechanism
# found in trained models is **induction heads**, which look for an earlier occurrence of the present token and copy
# what came after it {cite}`olsson2022context`.  A prompt that shows worked steps, a **chain of thought**
# {cite}`wei2022chain`, helps a large model with problems of several steps. About 60 percent of what GPT-3 read came
# from a filtered Common Crawl, a copy of much of the web.

# %% [markdown]
# ## Encoder-decoder: rewrite what you read
#
# Where input and output are two texts, the encoder can read the input from both sides while the decoder writes. Let us
# translate in small: *the black cat sees the green house*, *le chat noir voit la maison verte*. In French the adjective
# follows the noun and takes its gender, so to write *le* the decoder has to look at the third word of the source. We
# train without six of the 48 pairs of colour and noun, and test with those.

# %% tags=["hide-cell"]
NOUNS = {"cat": "le chat", "dog": "le chien", "rabbit": "le lapin", "horse": "le cheval", "mouse": "la souris",
         "house": "la maison", "car": "la voiture", "flower": "la fleur"}
COLOURS = {"black": "noir noire", "white": "blanc blanche", "green": "vert verte", "grey": "gris grise",
           "blue": "bleu bleue", "red": "rouge rouge"}
VERBS = {"sees": "voit", "seeks": "cherche", "follows": "suit", "loves": "aime"}

def phrase(colour, noun):
    french = NOUNS[noun]
    return f"the {colour} {noun}", f"{french} {COLOURS[colour].split()[french.startswith('la')]}"

def sentence_pair(draw, pairs):
    (subject, sujet), (thing, objet) = (phrase(*draw.choice(pairs)) for _ in range(2))
    verb = draw.choice(list(VERBS))
    return f"{subject} {verb} {thing}", f"{sujet} {VERBS[verb]} {objet}"

# %% tags=["hide-cell"]
draw = random.Random(0)
unseen = list(zip(COLOURS, NOUNS))
seen = [pair for pair in itertools.product(COLOURS, NOUNS) if pair not in unseen]
training, testing = ([sentence_pair(draw, pairs) for _ in range(n)] for pairs, n in ((seen, 2000), (unseen, 100)))
vocabulary = ["[pad]", "[bos]", "[eos]", "[unk]",
              *sorted({word for pair in training + testing for side in pair for word in side.split()})]
number = {word: i for i, word in enumerate(vocabulary)}
coded = [[[number[word] for word in side.split()] for side in pair] for pair in training]
sources = pad_source([[number[word] for word in english.split()] for english, _ in testing])

# %% tags=["nbval-ignore-output", "row-S14"]
run = TrainingRun(ModelConfig(len(vocabulary), N=1, d_model=32, d_ff=64, h=2, p_drop=0.0),
                  TrainConfig(warmup_steps=60, lr_factor=0.5, eps_ls=0.0, seed=2))
draw = random.Random(2)
for _ in range(300):
    run.step([make_batch(draw.sample(coded, 32))])
translator = run.model.eval()
written = [" ".join(vocabulary[i] for i in ids) for ids in greedy_search(translator, sources)]
right = sum(ours == french for ours, (_, french) in zip(written, testing))
print(f"{right} of {len(testing)} sentences entirely right, every phrase in them unseen")
print(testing[0][0], "->", written[0])
assert right > 80

# %% tags=["hide-input"] mystnb={"image": {"alt": "Heat map of cross-attention, mean of two heads and 100 sentences. Down: article, noun, colour, verb, article, noun, colour, end mark, the French words to be written. Across: the, colour, noun, verb, the, colour, noun, end mark, the English words. The bright squares: both articles and both nouns look at the English noun, the colours look at the colour before it, the verb at the verb. The end mark looks at several places."}, "figure": {"caption": "Cross-attention of our small translator, mean of its two heads over the 100 test sentences. Each row writes the word on its left.", "name": "fig-ap-cross"}}
batch = make_batch([[[number[word] for word in side.split()] for side in pair] for pair in testing])
with record_attention(translator) as weights, torch.no_grad():
    translator(batch.source, batch.target_in)
looked = weights["decoder.layers.0.cross_attention"].mean(dim=(0, 1))
figure, ax = plt.subplots(figsize=(4.6, 3.2), layout="constrained")
image = ax.imshow(looked, vmin=0, vmax=1)
ax.set_xticks(range(8), labels=["the", "colour", "noun", "verb", "the", "colour", "noun", "[eos]"], rotation=45)
ax.set_yticks(range(8), labels=["article", "noun", "colour", "verb", "article", "noun", "colour", "[eos]"])
ax.set(xlabel="English word, seen", ylabel="French word, written next")
figure.colorbar(image, ax=ax, label="attention weight")
plt.show()

# %% [markdown]
# To write the article and the noun, our decoder looks ahead to the English noun, and only then goes back to the colour.
# The price of this family is a second stack, and pairs to train on. T5 turns every task into such pairs.

# %% tags=["hide-cell", "row-S14"]
with torch.no_grad():  # hand the decoder another sentence's encoding: its logits are that sentence's
    target = torch.tensor([[BOS_ID, number["le"]]] * len(sources))
    swapped, mask = sources.roll(1, dims=0), translator.source_mask(sources)
    logits = translator.logits(translator.decode(target, translator.encode(swapped), mask))
    assert_close(logits, translator(swapped, target))
    assert not torch.allclose(logits, translator(sources, target), atol=0.1)
assert looked[0].argmax() == looked[1].argmax() == 2 and looked[2].argmax() == 1 and looked[3].argmax() == 3

# %% [markdown]
# (section-ap-fine-tuning)=
# ## Pre-train, then fine-tune
#
# GPT-1 and BERT brought a second idea: first train on plentiful plain text, then **fine-tune** on a few labelled
# examples. Between the two, more pre-training on texts of the field helps too (**domain adaptation**
# {cite}`gururangan2020dont`).
#
# What does the first step buy? Our new text, without questions or labels, tells of 24 animals, twelve on land and
# twelve at sea, and only what each *does* and *where* tells which kind it is. A language model reads 2,000 of its
# sentences; then it gets six questions with their answers, and we ask about the other 18 animals. The control, with
# random weights, gets the same six.

# %% tags=["hide-cell"]
LAND, SEA = map(str.split, ("horse cow goat hen pig fox hare deer mole wolf bear cat",
                            "shark whale seal cod crab squid eel ray tuna orca clam otter"))
DOES = {"land": ["runs", "sleeps", "digs"], "sea": ["swims", "dives", "floats"]}
AT = {"land": ["barn", "road", "hill"], "sea": ["reef", "ship", "island"]}
LEXICON = ["[pad]", "[bos]", "[eos]", "[unk]", "the", "near", "where", "is", "?", "land", "sea", *ADJECTIVES, *LAND, *SEA,
           *itertools.chain(*DOES.values(), *AT.values())]

def encoded(sentences):
    return torch.tensor([[LEXICON.index(word) for word in f"[bos] {s} [eos]".split()] for s in sentences])

def told(draw):
    home = draw.choice(["land", "sea"])
    animal = draw.choice(LAND if home == "land" else SEA)
    return f"the {draw.choice(ADJECTIVES)} {animal} {draw.choice(DOES[home])} near the {draw.choice(AT[home])}"

# %%
def questions(animals):
    return [f"where is the {animal} ? {'land' if animal in LAND else 'sea'}" for animal in animals]

def answer_loss(model, rows):
    """Nats per token of the answer and the end mark; the question itself is given."""
    logits = model(rows[:, :-1], causal_mask(rows.size(1) - 1))[:, -2:]
    return F.cross_entropy(logits.flatten(0, 1), rows[:, -2:].flatten())

draw = random.Random(0)
sentences = [told(draw) for _ in range(2000)]
plain = encoded(sentences)
labelled, asked = encoded(questions(LAND[:3] + SEA[:3])), encoded(questions(LAND[3:] + SEA[3:]))
print(sentences[0], "|", questions(["horse"])[0])

# %% [markdown]
# With billions of weights even fine-tuning is expensive. **LoRA** {cite}`hu2022lora` freezes each matrix $W$ and learns
# a correction of low rank $r$ beside it, $xW + xAB$. $B$ starts at zero, so the model starts as it was.

# %%
class LoRA(nn.Module):
    """x W + x A B with W frozen; A has `rank` columns and B as many rows."""

    def __init__(self, linear, rank):
        super().__init__()
        self.linear = linear
        self.A = nn.Parameter(torch.randn(linear.in_features, rank) / math.sqrt(linear.in_features))
        self.B = nn.Parameter(torch.zeros(rank, linear.out_features))

    def forward(self, x):
        return self.linear(x) + x @ self.A @ self.B

d, r = 4096, 8
print(f"one matrix of {d} x {d}: {d * d:,} weights, LoRA of rank {r}: {2 * d * r:,}, a {d * d // (2 * d * r)}th")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Drawing of LoRA. On the left x enters. Above, a large grey square W, frozen. Below, a tall thin orange rectangle A followed by a flat wide orange rectangle B, trained. Both paths meet in a plus sign and give y."}, "figure": {"caption": "LoRA: the frozen matrix, and beside it two thin ones that are trained.", "name": "fig-ap-lora"}}
figure, ax = plt.subplots(figsize=(5.4, 2.3), layout="constrained")
for x, y, w, h, name, colour in ((2, 2.1, 2, 2, "$W$ (frozen)", "#dddddd"), (1.9, -0.4, 0.5, 2, "$A$", PALETTE[4]),
                                 (3.0, 0.4, 2, 0.5, "$B$", PALETTE[4])):
    ax.add_patch(plt.Rectangle((x, y), w, h, facecolor=colour, edgecolor="black", linewidth=0.8))
    ax.text(x + w / 2, y + h / 2, name, ha="center", va="center")
for start, end in (((0.4, 1.8), (1.95, 3.0)), ((0.4, 1.7), (1.85, 0.7)), ((2.4, 0.65), (2.98, 0.65)),
                   ((4.05, 3.0), (5.9, 1.95)), ((5.05, 0.65), (5.9, 1.6)), ((6.35, 1.75), (7.1, 1.75))):
    ax.annotate("", end, start, arrowprops={"arrowstyle": "->"})
for x, label in ((0.2, "$x$"), (6.12, "+"), (7.3, "$y$")):
    ax.text(x, 1.75, label, ha="center", va="center", fontsize=12)
ax.set(xlim=(0, 7.6), ylim=(-0.6, 4.3)), ax.axis("off")
plt.show()

# %%
def with_lora(model, rank=2):
    model = copy.deepcopy(model).requires_grad_(False)
    for layer in model.encoder.layers:
        for block, matrices in ((layer.self_attention, ("W_Q", "W_K", "W_V", "W_O")), (layer.feed_forward, ("W_1", "W_2"))):
            for name in matrices:
                setattr(block, name, LoRA(getattr(block, name), rank))
    return model

torch.manual_seed(0)
config = SMALL.replace(vocab_size=len(LEXICON))
pretrained = fit(OneStack(config), lambda model: next_word_loss(model, plain[torch.randint(len(plain), (64,))]), steps=200)
tuned = {"from scratch": (OneStack(config), 0.003), "fine-tuned": (copy.deepcopy(pretrained), 0.003),
         "LoRA, rank 2": (with_lora(pretrained), 0.01)}
for name, (model, _) in tuned.items():
    print(f"{name:13} trains {sum(p.numel() for p in model.parameters() if p.requires_grad):6,} parameters")

# %% tags=["hide-cell"]
@torch.no_grad()
def share_right(model, rows):
    guess = model(rows[:, :-1], causal_mask(rows.size(1) - 1))[:, -2].argmax(dim=-1)
    return (guess == rows[:, -2]).float().mean().item()

scores = {}
for name, (model, rate) in tuned.items():
    fit(model, lambda model: answer_loss(model, labelled), steps=100, peak_rate=rate)
    scores[name] = share_right(model, labelled), share_right(model, asked)
assert all(known == 1 for known, _ in scores.values())
assert scores["from scratch"][1] <= 0.7 and scores["fine-tuned"][1] > 0.9 and scores["LoRA, rank 2"][1] > 0.8

# %% tags=["hide-input"] mystnb={"image": {"alt": "Bars for three models. From scratch: all six labelled animals right, half of the 18 others. Fine-tuned: all of both. LoRA of rank 2: all of both, too. A black line marks one half."}, "figure": {"caption": "Share of right answers after fine-tuning on six questions. Black: chance.", "name": "fig-ap-tuned"}}
figure, ax = plt.subplots(figsize=(5.4, 2.4), layout="constrained")
for i, label in enumerate(("the 6 animals of the questions", "the 18 others")):
    ax.bar([x + 0.4 * i for x in range(3)], [both[i] for both in scores.values()], width=0.36, label=label)
ax.axhline(0.5, color="black", linewidth=1.5)
ax.set_xticks([x + 0.2 for x in range(3)], scores)
ax.set(ylabel="share right", ylim=(0, 1.05))
ax.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
plt.show()

# %% [markdown]
# All three learn the six answers, but about the other 18 animals the model from scratch can only guess. The pre-trained
# one answers them all: sharks and seals kept the same company in the plain text, so they have similar vectors, and six
# labels name the two groups. LoRA does as well with a tenth of the trained numbers, and without $A$ and $B$ the old
# model is back unchanged ({ref}`ap-ex-lora`).

# %% [markdown]
# ## From predicting to answering: instruction tuning and RLHF
#
# A language model continues a text, perhaps a question with another question. **Instruction tuning**
# {cite}`wei2022finetuned` is fine-tuning on many tasks put as requests, with good answers. InstructGPT
# {cite}`ouyang2022training` added two steps, called **reinforcement learning from human feedback** (RLHF):

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three columns with an arrow from each to the next. 1, demonstrations: people write answers to 13,000 prompts; the language model is fine-tuned on them. 2, comparisons: people rank several answers to each of 33,000 prompts; a reward model learns the order. 3, reinforcement: the model answers 31,000 prompts and is trained towards reward, with a penalty for leaving the model of step 1."}, "figure": {"caption": "The three steps of InstructGPT; numbers of prompts as its paper gives them.", "name": "fig-ap-rlhf"}}
figure, ax = plt.subplots(figsize=(7.2, 2.4), layout="constrained")
steps = (("1  demonstrations", "people write answers\n(13,000 prompts)", "fine-tune the\nlanguage model"),
         ("2  comparisons", "people rank answers\n(33,000 prompts)", "train a reward\nmodel $r(x, y)$"),
         ("3  reinforcement", "the model answers\n(31,000 prompts)", "train it towards $r$,\nnear the model of 1"))
for i, (title, data, result) in enumerate(steps):
    ax.text(3 * i + 1.2, 3.2, title, ha="center", weight="bold")
    for y, label, colour in ((1.75, data, "#fbe0cf"), (0, result, "#cfe6f5")):
        ax.add_patch(plt.Rectangle((3 * i, y), 2.4, 1.15, facecolor=colour, edgecolor="black", linewidth=0.8))
        ax.text(3 * i + 1.2, y + 0.57, label, ha="center", va="center")
    ax.annotate("", (3 * i + 1.2, 1.17), (3 * i + 1.2, 1.73), arrowprops={"arrowstyle": "->"})
    if i:
        ax.annotate("", (3 * i - 0.02, 0.57), (3 * i - 0.58, 0.57), arrowprops={"arrowstyle": "->"})
ax.set(xlim=(-0.1, 8.5), ylim=(-0.1, 3.6)), ax.axis("off")
plt.show()

# %% [markdown]
# The reward model learns from pairs: its loss is $-\log \sigma(r(x, y_{\text{better}}) - r(x, y_{\text{worse}}))$. The
# last step seeks high reward near the distribution $\pi_0$ of step 1; $\mathrm{KL}$ measures how far it has moved:
#
# $$
# \max_\pi \; \mathbb{E}_{y \sim \pi}\big[r(x, y)\big] - \beta\, \mathrm{KL}(\pi \,\|\, \pi_0)
# \quad\text{is reached by}\quad \pi(y) \propto \pi_0(y)\, e^{r(x, y) / \beta}
# $$ (ap-rlhf)
#
# The reward model is itself learned and wrong in places; without the penalty the language model would find those places
# and stay there. Let us give our little GPT a reader who likes water: *lake* has reward 1, *river* 0.5, other places 0.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Grouped bars of the probability of river, road, house and lake after the old bear eats honey near the. For pi zero all four are about a quarter. With beta 1 lake rises to nearly one half. With beta 0.2 lake has about 0.9 and road and house nearly nothing."}, "figure": {"caption": "The best distribution for a reward, by the weight of the penalty. Small $\\beta$ follows the reward, large $\\beta$ the language model.", "name": "fig-ap-tilt"}}
with torch.no_grad():
    prompt = torch.tensor([[BOS_ID, *map(ID.get, ("the", "old", "bear", "eats", "honey", "near", "the"))]])
    log_p = gpt(prompt, causal_mask(8))[0, -1].log_softmax(dim=-1)
at, reward = [ID[place] for place in PLACES], torch.zeros(len(WORDS))
reward[ID["lake"]], reward[ID["river"]] = 1.0, 0.5
tilted = {beta: (log_p + reward / beta).softmax(dim=-1) for beta in (1e9, 1, 0.2)}
figure, ax = plt.subplots(figsize=(5.4, 2.3), layout="constrained")
for i, (beta, p) in enumerate(tilted.items()):
    ax.bar([x + 0.27 * i for x in range(4)], p[at], width=0.25, label=r"$\pi_0$" if i == 0 else rf"$\beta$ = {beta}")
ax.set_xticks([x + 0.27 for x in range(4)], PLACES)
ax.set(ylabel="probability", ylim=(0, 1))
ax.legend(frameon=False, bbox_to_anchor=(1, 0.6), loc="center left")
plt.show()

# %% tags=["hide-cell"]
def objective(p, beta):
    return ((p * reward).sum() - beta * (p * (p.log() - log_p)).sum()).item()

for beta in (1, 0.2):
    best = objective(tilted[beta], beta)
    assert all(objective((log_p + torch.randn(len(WORDS))).softmax(dim=-1), beta) < best for _ in range(100))
assert 0.35 < tilted[1][ID["lake"]] < 0.55 and tilted[0.2][ID["lake"]] > 0.85

# %% [markdown]
# ChatGPT (November 2022) and GPT-4 (2023) are language models tuned in this way. People preferred the answers of
# InstructGPT with 1.3 billion parameters to those of GPT-3 with 175 billion {cite}`ouyang2022training`. DPO
# {cite}`rafailov2023direct` turns equation {eq}`ap-rlhf` round and learns from the comparisons without a reward model.
# Where a program can check the answer, as in mathematics, the checker is the reward; in this way DeepSeek-R1
# {cite}`deepseek2025r1` learned to write long chains of reasoning.

# %% [markdown]
# ## Who kept what
#
# How has the layer changed? We compare the paper's with that of Qwen3-8B {cite}`yang2025qwen3`.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two columns of boxes, read from below. Left, 2017, the paper: embedding plus sinusoids; attention with 8 query heads and 8 key heads; add, LayerNorm; feed-forward ReLU, 2 matrices; add, LayerNorm. Right, 2025, Qwen3-8B: embedding; RMSNorm; attention with 32 query heads and 8 key heads, rotary positions and QK norm; add; RMSNorm; SwiGLU, 3 matrices; add."}, "figure": {"caption": "A layer then and now, from below. Orange: changed or moved.", "name": "fig-ap-layers"}}
then = ("embedding + sinusoids", "attention: 8 query heads, 8 key heads", "add, then LayerNorm", "feed-forward: ReLU, 2 matrices", "add, then LayerNorm")
now = ("embedding", "RMSNorm", "attention: 32 query heads, 8 key heads,\nrotary positions, QK norm", "add", "RMSNorm", "feed-forward: SwiGLU, 3 matrices", "add")
figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
for x, title, boxes in ((0, "2017: the paper", then), (5.2, "2025: Qwen3-8B", now)):
    ax.text(x + 2.2, 7.15, title, ha="center", weight="bold")
    for i, label in enumerate(boxes):
        y = i * 7 / len(boxes)
        colour = "#fbe0cf" if x and label not in ("add", "embedding") else "#e8eef5"
        ax.add_patch(plt.Rectangle((x, y), 4.4, 0.74, facecolor=colour, edgecolor="black", linewidth=0.8))
        ax.text(x + 2.2, y + 0.37, label, ha="center", va="center", fontsize=8.5)
        if i:
            ax.annotate("", (x + 2.2, y), (x + 2.2, y - 7 / len(boxes) + 0.74), arrowprops={"arrowstyle": "->"})
ax.set(xlim=(-0.1, 9.7), ylim=(-0.1, 7.6)), ax.axis("off")
plt.show()

# %% [markdown]
# And here is who made which change. M and B are millions and billions of parameters of the largest model.
#
# | model | what is different | size |
# |---|---|---|
# | **encoder-only** | | |
# | BERT {cite}`devlin2019bert` | learned positions, GELU; fills in words | 340 M |
# | RoBERTa {cite}`liu2019roberta` | BERT with more data, masks drawn anew | 355 M |
# | ALBERT {cite}`lan2020albert` | all layers share one set of weights | 235 M |
# | DistilBERT {cite}`sanh2019distilbert` | half of BERT's layers, trained to imitate it | 66 M |
# | Longformer {cite}`beltagy2020longformer`, BigBird {cite}`zaheer2020big` | restricted attention | as RoBERTa |
# | ViT {cite}`dosovitskiy2021image` | tokens are patches of an image; pre-norm | 632 M |
# | **one stack, both directions by permutation** | | |
# | XLNet {cite}`yang2019xlnet` | predicts words in a random order; relative positions {cite}`dai2019transformer` | 340 M |
# | **decoder-only** | | |
# | GPT-1 {cite}`radford2018improving` | learned positions, GELU; pre-train, fine-tune | 117 M |
# | GPT-2 {cite}`radford2019language` | pre-norm, byte-level BPE | 1.5 B |
# | GPT-3 {cite}`brown2020language` | every second layer sparse {cite}`child2019generating` | 175 B |
# | PaLM {cite}`chowdhery2023palm` | rotary positions, SwiGLU, one key head | 540 B |
# | LLaMA {cite}`touvron2023llama` | RMSNorm, rotary positions, SwiGLU | 65 B |
# | Llama 3 {cite}`grattafiori2024llama` | grouped key heads, context of 128,000 tokens | 405 B |
# | DeepSeek-V3 {cite}`deepseek2024v3` | latent attention, experts: 37 B active | 671 B |
# | Flamingo {cite}`alayrac2022flamingo` | cross-attention to images in a frozen language model | 80 B |
# | **encoder-decoder** | | |
# | the paper, big | | 213 M |
# | MarianMT {cite}`junczys2018marian,tiedemann2020opus` | Swish; the paper's otherwise | as base |
# | T5 {cite}`raffel2020exploring` | pre-norm, a learned number per distance in the scores | 11 B |

# %% tags=["hide-cell"]
def n_weights(N, d, d_ff, V, n_positions, matrices=2):
    """Weight matrices of one stack and its embedding; norms and biases are left out."""
    return N * (4 * d * d + matrices * d * d_ff) + (V + n_positions) * d

printed = {"BERT base": 110e6, "BERT large": 340e6, "GPT-2": 1542e6, "GPT-3": 175e9, "LLaMA-7B": 6.7e9}
counted = {"BERT base": n_weights(12, 768, 3072, 30522, 512), "BERT large": n_weights(24, 1024, 4096, 30522, 512),
           "GPT-2": n_weights(48, 1600, 6400, 50257, 1024), "GPT-3": n_weights(96, 12288, 49152, 50257, 2048),
           "LLaMA-7B": n_weights(32, 4096, 11008, 2 * 32000, 0, matrices=3)}  # its two embeddings are separate
for name in printed:
    print(f"{name:10} counted here {counted[name] / 1e6:>9,.0f} M    printed in the paper {printed[name] / 1e6:>9,.0f} M")
    assert abs(counted[name] / printed[name] - 1) < 0.03

# %% tags=["hide-cell"]
one_layer = sum(p.numel() for p in Encoder(SMALL.replace(N=1)).parameters())
shared = Encoder(SMALL.replace(N=1))
shared.layers = nn.ModuleList([shared.layers[0]] * 12)  # ALBERT's sharing
assert sum(p.numel() for p in shared.parameters()) == one_layer
assert sum(p.numel() for p in Encoder(SMALL.replace(N=12)).parameters()) == 12 * one_layer

# %% tags=["hide-cell"]
TIMELINE = {
    "encoder-only": {"BERT": 2018.8, "RoBERTa": 2019.55, "ALBERT": 2019.74,
                     "Longformer": 2020.28, "ViT": 2020.8},
    "decoder-only": {"GPT-1": 2018.45, "GPT-2": 2019.13, "GPT-3": 2020.4, "PaLM": 2022.25, "Flamingo": 2022.3,
                     "LLaMA": 2023.13, "Mixtral": 2024.02, "Llama 3": 2024.55, "DeepSeek-V3": 2024.98, "Qwen3": 2025.37},
    "encoder-decoder": {"the paper": 2017.45, "Marian": 2018.25, "T5": 2019.8},
    "parts": {"sparse experts": 2017.05, "relative positions": 2018.2, "pre-norm": 2018.72, "RMSNorm": 2019.79,
              "one key head": 2019.85, "SwiGLU": 2020.12, "QK norm": 2020.78, "rotary": 2021.3, "ALiBi": 2021.65,
              "FlashAttention": 2022.4, "grouped heads": 2023.38, "RoPE scaling": 2023.48, "Mamba": 2023.92,
              "latent attention": 2024.35},
    "training": {"parallel decoding": 2017.87, "scaling laws": 2020.04, "LoRA": 2021.45, "instruction tuning": 2021.67,
                 "InstructGPT": 2022.17, "Chinchilla": 2022.24, "speculative decoding": 2022.91, "DPO": 2023.4,
                 "DeepSeek-R1": 2025.05},
}

# %% tags=["hide-input"] mystnb={"image": {"alt": "Timeline from 2017 to 2025, time running down, in five columns. Encoder-only: BERT 2018 to ViT 2020. Decoder-only: GPT-1 2018, GPT-2 2019, GPT-3 2020, PaLM and Flamingo 2022, LLaMA 2023, Mixtral, Llama 3 and DeepSeek-V3 2024, Qwen3 2025. Encoder-decoder: the paper 2017, Marian 2018, T5 2019. Parts: sparse experts 2017, relative positions and pre-norm 2018, RMSNorm and one key head 2019, SwiGLU and QK norm 2020, rotary and ALiBi 2021, FlashAttention 2022, grouped heads, RoPE scaling and Mamba 2023, latent attention 2024. Training: parallel decoding 2017, scaling laws 2020, LoRA and instruction tuning 2021, InstructGPT, Chinchilla and speculative decoding 2022, DPO 2023, DeepSeek-R1 2025."}, "figure": {"caption": "The paper among its neighbours, by month of first publication.", "name": "fig-ap-timeline"}}
figure, ax = plt.subplots(figsize=(6.9, 6.2), layout="constrained")
for column, events in enumerate(TIMELINE.values()):
    ax.axvline(column, color="0.85", zorder=0)
    last = 0.0
    for name, when in events.items():
        last = max(when, last + 0.2)
        ax.plot(column, when, "o", color=PALETTE[0], markersize=4)
        ax.text(column + 0.08, last, name, va="center", fontsize=8)
ax.set_xticks(range(5), labels=list(TIMELINE), ha="left")
ax.set(xlim=(-0.15, 5.2), ylim=(2025.8, 2016.8), yticks=range(2017, 2026))
ax.xaxis.tick_top()
ax.tick_params(axis="x", length=0)
ax.spines["bottom"].set_visible(False)
plt.show()

# %% [markdown]
# What stayed is dot-product attention with several query heads, a feed-forward network, residual connections and a
# norm.

# %% [markdown]
# ## Pre-norm, RMSNorm and QK norm
#
# With **pre-norm**, $x + \mathrm{Sublayer}(\mathrm{LayerNorm}(x))$, the path from bottom to top is a plain sum. It was
# the default of the authors' tensor2tensor in 2018, when {cite:t}`baevski2019adaptive` published with it, and GPT-2
# took it over in 2019. {cite:t}`xiong2020layer` then explained it: in post-norm stacks the gradients near the output
# are large at first, so they need the warm-up. [Chapter 3.1](3_1_stacks.ipynb) trains both.
#
# **RMSNorm** {cite}`zhang2019root` leaves out LayerNorm's mean and bias, and **QK norm** {cite}`henry2020query`
# normalises queries and keys before their product. This bounds the scores, so large queries and keys no longer saturate
# the softmax; a vision model of 22 billion parameters needed it to train stably {cite}`dehghani2023scaling`.
#
# $$
# \mathrm{RMSNorm}(x)_i = g_i\, \frac{x_i}{\sqrt{\frac{1}{d} \sum_j x_j^2 + \epsilon}}, \qquad
# \left|\frac{\mathrm{RMSNorm}(q) \cdot \mathrm{RMSNorm}(k)}{\sqrt{d_k}}\right| \le \sqrt{d_k} \quad \text{for } g = 1
# $$ (ap-rms)

# %%
def rms_norm(x, gain=1.0, eps=1e-6):
    return gain * x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()

torch.manual_seed(0)
q, k = 50 * torch.randn(2, 100, 64)
for name, norm in (("as they are", lambda x: x), ("with QK norm", rms_norm)):
    scores_ = norm(q) @ norm(k).T / math.sqrt(64)
    print(f"{name:12}  largest score {scores_.max():8.1f}, largest weight, mean over queries {scores_.softmax(dim=-1).amax(dim=-1).mean():.2f}")

# %% tags=["hide-cell"]
x, gain = torch.randn(2, 5, 32, dtype=torch.float64), torch.rand(32, dtype=torch.float64)
assert_close(rms_norm(x, gain), F.rms_norm(x, [32], gain, eps=1e-6))
centred = x - x.mean(dim=-1, keepdim=True)
assert_close(rms_norm(centred, gain), F.layer_norm(x, [32], gain, eps=1e-6))
assert (rms_norm(q) @ rms_norm(k).T).abs().max() / 8 < 8
for norm, expected in (("pre", 3 * x.float()), ("post", F.layer_norm(3 * x.float(), [32]))):
    y = 3 * x.float()  # with every sub-layer silenced, pre-norm passes its input on
    for layer in Encoder(SMALL.replace(norm=norm)).layers:
        for matrix in (*layer.self_attention.W_O.parameters(), *layer.feed_forward.W_2.parameters()):
            nn.init.zeros_(matrix)
        y = layer(y, None)
    assert_close(y, expected, atol=1e-4, rtol=1e-4)

# %% [markdown]
# ## Gated feed-forward networks
#
# A **gated linear unit** {cite}`dauphin2017language` multiplies two projections entry by entry: one carries the
# signal, the other gates it. With $\mathrm{SiLU}(z) = z / (1 + e^{-z})$ on the gate it is called SwiGLU
# {cite}`shazeer2020glu`:
#
# $$
# \mathrm{FFN}_{\mathrm{SwiGLU}}(x) = \left(\mathrm{SiLU}(x W) \odot x V\right) W_2
# $$ (ap-swiglu)
#
# It has three matrices where the paper has two, so we pay the same with two thirds of $d_{\mathrm{ff}}$. This explains
# the strange 11,008 of LLaMA-7B: two thirds of $4 \cdot 4096$, rounded up to a multiple of 256. Why gates help is an
# open question; Shazeer attributes their success "to divine benevolence".

# %% tags=["hide-cell"]
def swiglu(x, W, V, W_2):
    return (F.silu(x @ W) * (x @ V)) @ W_2

W, V, W_2, x = (torch.randn(shape, dtype=torch.float64) for shape in ((4, 6), (4, 6), (6, 4), (4,)))
hidden = []
for j in range(6):
    z = sum(x[i] * W[i, j] for i in range(4)).item()
    hidden.append(z / (1 + math.exp(-z)) * sum(x[i] * V[i, j] for i in range(4)).item())
by_hand = [sum(hidden[j] * W_2[j, i].item() for j in range(6)) for i in range(4)]
assert_close(swiglu(x, W, V, W_2), torch.tensor(by_hand, dtype=torch.float64))
assert math.ceil(2 / 3 * 4 * 4096 / 256) * 256 == 11008

# %% [markdown]
# (section-ap-positions)=
# ## From absolute to relative positions
#
# The sinusoids say *where* a token stands, while attention mostly needs to know *how far apart* two tokens are.
# {cite:t}`shaw2018self`, two of them authors of the paper, added a learned vector for each distance to the keys. T5
# adds a learned number to the score.
#
# **Rotary positions** (RoPE) {cite}`su2021roformer` turn the queries and keys. With $R_m$ the matrix that turns
# column pair $i$ by the angle $m / 10000^{2i/d_k}$, the score depends on $n - m$ alone:
#
# $$
# (R_m q) \cdot (R_n k) = q^\top R_m^\top R_n\, k = q^\top R_{n-m}\, k
# $$ (ap-rotary)

# %%
def rotate(x, start=0, base=10_000.0, scale=1.0):
    """Turn each pair of columns of row m by scale (start + m) / base^(2i / d)."""
    n, d = x.shape
    position = scale * (start + torch.arange(n, dtype=x.dtype)[:, None])
    angle = position / base ** (torch.arange(0, d, 2, dtype=x.dtype) / d)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)

q, k = torch.randn(2, 7, 8, dtype=torch.float64)
moved = rotate(q, 1000) @ rotate(k, 1000).T
print("scores 1,000 places on are the same:", torch.allclose(moved, rotate(q) @ rotate(k).T))

# %% [markdown]
# **ALiBi** {cite}`press2022train` adds nothing to the embeddings and lowers the score by the distance. Head $1,
# \dots, h$ has the slope $s = 2^{-8\,\mathrm{head}/h}$:
#
# $$
# \frac{q_i \cdot k_j}{\sqrt{d_k}} - s\,(i - j)
# $$ (ap-alibi)
#
# Beyond the longest distance $L$ of its training a rotary model meets new angles. **Position interpolation**
# {cite}`chen2023extending` multiplies all positions by $L / L'$, so that a text of $L'$ tokens fits into the known
# angles, and fine-tunes briefly. YaRN {cite}`peng2024yarn` shrinks the slow column pairs alone, and Llama 3 starts from
# a base of 500,000 in place of 10,000.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two charts. Left: the angle of one slow column pair over positions 0 to 2,048. A grey band marks the angles up to 1.6, seen in training up to position 512. The line for positions as they are leaves the band at 512 and rises to 6.5. The line for positions divided by 4 ends at the upper edge of the band. Right: ALiBi's weights relative to the present token over distance 0 to 60 for heads 1, 3 and 8 of 8: head 1 falls within a few tokens, head 3 within forty, head 8 stays above 0.75."}, "figure": {"caption": "Left: the angle by which RoPE turns a slow column pair ($i = 20$ of 32); grey: angles seen in a training up to position 512. Right: how ALiBi's heads weigh the past.", "name": "fig-ap-positions"}}
position, frequency = torch.arange(2049, dtype=torch.float64), 10_000.0 ** (-40 / 64)
angles = {"as they are": frequency * position, "divided by 4": frequency * position / 4}
figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.6), layout="constrained")
left.axhspan(0, frequency * 512, color="0.9", zorder=0)
for name, angle in angles.items():
    left.plot(angle, label=f"positions {name}")
left.set(xlabel="position", ylabel="angle (radians)", title="RoPE", xlim=(0, 2048), ylim=(0, 7))
left.legend(frameon=False)
for head in (1, 3, 8):
    right.plot([math.exp(-(2.0**-head) * distance) for distance in range(61)], label=f"head {head}")
right.set(xlabel="distance", ylabel="weight, present token = 1", title="ALiBi")
right.legend(frameon=False)
plt.show()

# %% tags=["hide-cell"]
assert_close(angles["divided by 4"][2048], angles["as they are"][512])
assert_close(rotate(torch.ones(2049, 64).double(), scale=1 / 4)[2048], rotate(torch.ones(513, 64).double())[512])
assert_close(rotate(q).norm(dim=1), q.norm(dim=1))
same = rotate(q[:1].expand(7, 8)) @ rotate(k[:1].expand(7, 8)).T
assert_close(same[1:, 1:], same[:-1, :-1])  # one down and one to the right: equal
pe = positional_encoding(1007, 8).double()  # the paper's own way has no such property
assert not torch.allclose((q + pe[:7]) @ (k + pe[:7]).T, (q + pe[1000:]) @ (k + pe[1000:]).T)

def alibi_bias(n, head, h):
    distance = torch.arange(n)[:, None] - torch.arange(n)
    return (-(2.0 ** (-8 * head / h)) * distance).masked_fill(distance < 0, -math.inf)

weights = alibi_bias(6, head=1, h=8).softmax(dim=-1)  # all q.k equal to 0
assert_close(weights[-1, :-1] / weights[-1, 1:], torch.full((5,), math.exp(-0.5)))

# %% [markdown]
# (section-ap-long)=
# ## Long texts and what they cost
#
# Contexts grew from 512 tokens to a hundred thousand and more. The quadratic part, $4 n^2 d$ operations, overtakes the
# rest of a layer at $n = 6d$ ([chapter 4](4_why_self_attention.ipynb)). FlashAttention keeps the $n^2$ weights out of
# memory ([On a GPU](on_a_gpu.ipynb)). What remains is the **KV cache**, the keys and values of all earlier tokens
# ([chapter 6.1](6_1_translation.ipynb)):
#
# $$
# \text{bytes} = 2 \cdot N \cdot n \cdot h_{\text{keys}} \cdot d_k \cdot \text{bytes per number}
# $$ (ap-cache)
#
# For LLaMA-7B ($N = h = 32$, $d_k = 128$) in 16 bits this is 1 GiB for a text of 2,048 tokens, and thirteen such texts
# outweigh the model. So later models have fewer key heads: **multi-query** attention {cite}`shazeer2019fast` lets all
# query heads share one, **grouped-query** {cite}`ainslie2023gqa` one among a few, and **latent** attention (MLA)
# {cite}`deepseek2024v2` caches one short vector, from which it computes the keys and values of all heads.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Left, four drawings of heads: multi-head, 8 queries over 8 keys, a line each; grouped, 8 queries over 2 keys; multi-query, 8 queries over 1 key; latent, 8 queries over 8 pale keys that come from one small box. Right, bars on a logarithmic axis of numbers cached per token and layer in DeepSeek-V2's shape: multi-head 32,768, 8 groups 2,048, latent 576, multi-query 256."}, "figure": {"caption": "Which queries (blue) share which keys (orange), and the numbers that a layer caches per token with 128 heads of width 128, the shape of DeepSeek-V2.", "name": "fig-ap-cache"}}
figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 2.9), layout="constrained", width_ratios=(1.3, 1))
for row, (name, n_keys) in enumerate((("multi-head", 8), ("grouped", 2), ("multi-query", 1), ("latent", 8))):
    y, keys = -1.5 * row, [(i + 0.5) * 8 / n_keys - 0.5 for i in range(n_keys)]
    for i in range(8):
        left.plot([i, keys[i * n_keys // 8]], [y + 0.7, y], color="0.7", linewidth=0.8, zorder=0)
    left.scatter(range(8), [y + 0.7] * 8, 26, color=PALETTE[0])
    left.scatter(keys, [y] * n_keys, 26, color=PALETTE[1] if name != "latent" else "#f3c9ab", marker="s")
    left.text(-0.8, y + 0.35, name, ha="right", va="center")
left.plot([3.5, 0, 3.5, 1, 3.5, 2, 3.5, 3, 3.5, 4, 3.5, 5, 3.5, 6, 3.5, 7], [-5.3, -4.5] * 8, color="0.7", linewidth=0.8, zorder=0)
left.scatter([3.5], [-5.3], 60, color=PALETTE[1], marker="s"), left.axis("off"), left.set(xlim=(-4, 7.5))
cached = {"multi-head": 2 * 128 * 128, "grouped (8)": 2 * 8 * 128, "multi-query": 2 * 128, "latent": 512 + 64}
for bar in right.barh(list(cached)[::-1], list(cached.values())[::-1], color=PALETTE[1]):
    right.text(bar.get_width() * 1.15, bar.get_y() + 0.4, f"{bar.get_width():,}", va="center")
right.set(xscale="log", xlim=(100, 300_000), xlabel="numbers per token and layer")
plt.show()

# %% [markdown]
# The paper's own idea for long inputs was *restricted* attention. Longformer {cite}`beltagy2020longformer` looks at a
# window and lets a few **global** tokens see all; BigBird {cite}`zaheer2020big` adds a few random keys. The pairs then
# grow with $n$ in place of $n^2$.

# %% tags=["hide-cell"]
def cache_bytes(n, N, h, d_k, size=2):
    return 2 * N * n * h * d_k * size

with torch.no_grad():
    state = translator.start(sources)
    for _ in range(5):
        translator.step(torch.full((len(sources), 1), BOS_ID), state)
kept = sum(t.numel() * t.element_size() for cache in state.caches for t in (cache.keys, cache.values))
assert kept == len(sources) * cache_bytes(5, N=1, h=2, d_k=16, size=4)
assert cache_bytes(2048, 32, 32, 128) == 2**30 and 12 < 2 * counted["LLaMA-7B"] / 2**30 < 13
assert (512 + 64) / (2 * 128) == 2.25  # DeepSeek-V2's paper: as much as 2.25 groups
for n in (512, 3072, 32768):
    assert math.isclose(layer_operations("self-attention", n, 512) / (24 * n * 512 * 512), n / (6 * 512))

# %% tags=["hide-cell"]
def window(n, r):
    """Keys at most r // 2 places away."""
    return (torch.arange(n)[:, None] - torch.arange(n)).abs() <= r // 2

def with_global(mask, n_global):
    return mask | (torch.arange(len(mask)) < n_global)[:, None] | (torch.arange(len(mask)) < n_global)

def with_random(mask, n_random):
    scores = torch.rand(mask.shape, generator=torch.Generator().manual_seed(0))
    return mask | (scores >= scores.topk(n_random, dim=1).values[:, -1:])

def patterns(n):
    band = window(n, 5)
    return {"full": torch.ones(n, n).bool(), "window": band, "Longformer": with_global(band, 2),
            "BigBird": with_random(with_global(band, 2), 2)}

# %% tags=["hide-input"] mystnb={"image": {"alt": "Four 24 by 24 grids with their numbers of pairs. Full: all filled. Window: a band along the diagonal. Longformer: the band, and the first two rows and columns filled. BigBird: the same with a few scattered squares in each row."}, "figure": {"caption": "Which query (down) may look at which key (across), for 24 tokens; above, the number of pairs for 1,024 tokens.", "name": "fig-ap-restricted"}}
figure, axes = plt.subplots(1, 4, figsize=(7, 2.1), layout="constrained")
large = patterns(1024)
for ax, (name, mask) in zip(axes, patterns(24).items()):
    ax.imshow(mask, vmin=0, vmax=1.4, cmap="Blues")
    ax.set(title=f"{name}\n{int(large[name].sum()):,}", xticks=[], yticks=[])
    assert 1.9 < large[name].sum() / patterns(512)[name].sum() < (4.1 if name == "full" else 2.1)
plt.show()

# %% [markdown]
# ## State-space models
#
# A different road drops the cache: a **state-space model** {cite}`gu2022efficiently` carries a state $h$ of fixed
# size from token to token, and **Mamba** {cite}`gu2024mamba` computes $a_t$, $b_t$ and $c_t$ from the token itself,
# so that the model chooses what to keep:
#
# $$
# h_t = a_t h_{t-1} + b_t x_t, \quad y_t = c_t \cdot h_t
# \qquad\Longleftrightarrow\qquad y_i = \sum_{j \le i} (c_i \cdot b_j) \Big(\prod_{k=j+1}^{i} a_k\Big)\, x_j
# $$ (ap-ssm)
#
# On the right we have unrolled it for a scalar $a_t$, as in Mamba-2, and meet an old friend: $c$ are queries, $b$ keys
# and $x$ values under a causal mask, with a decay in place of the softmax {cite}`dao2024transformers`. Such a layer
# trains in parallel like attention and runs like an RNN.

# %%
def scan(a, b, c, x):
    h, y = torch.zeros(b.size(1)), []
    for a_t, b_t, c_t, x_t in zip(a, b, c, x):
        h = a_t * h + b_t * x_t
        y.append(c_t @ h)
    return torch.stack(y)

def as_matrix(a, b, c):
    log_a = a.log().cumsum(dim=0)
    return (c @ b.T) * (log_a[:, None] - log_a).exp().tril()

torch.manual_seed(0)
a, b, c, x = 0.6 + 0.39 * torch.rand(24), torch.rand(24, 4), torch.rand(24, 4), torch.randn(24)
print("token by token equals one matrix product:", torch.allclose(scan(a, b, c, x), as_matrix(a, b, c) @ x, atol=1e-5))

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two 24 by 24 heat maps with colour bars, both lower triangles. Left, a state-space layer: bright near the diagonal and fading to the left, faster after small values of a. Right, causal softmax attention of the same queries and keys: each row is spread almost evenly over the past."}, "figure": {"caption": "The same $c$ and $b$ as a state-space layer with decay, and as queries and keys of causal softmax attention.", "name": "fig-ap-ssm"}}
softmax = (c @ b.T / 2).masked_fill(~causal_mask(24)[0, 0], -math.inf).softmax(dim=-1)
figure, axes = plt.subplots(1, 2, figsize=(6.6, 2.8), layout="constrained")
for ax, (name, matrix) in zip(axes, {"state space": as_matrix(a, b, c), "softmax attention": softmax}.items()):
    image = ax.imshow(matrix, cmap=HEAT_MAP, vmin=0, vmax=matrix[6:].max())
    ax.set(title=name, xlabel="input $j$", ylabel="output $i$")
    figure.colorbar(image, ax=ax, label="weight", extend="max")
plt.show()

# %% [markdown]
# The state keeps its size, so the cost per token is constant, and what it has forgotten is gone. Hybrids such as Jamba
# {cite}`lieber2024jamba` put attention between several Mamba layers.

# %% [markdown]
# ## A mixture of experts
#
# Can a model have more parameters without more work per token? Put $E$ feed-forward networks in the place of one, and
# a **router** $W_r$ that sends each token to the one with the largest probability (**top-1**, Switch
# {cite}`fedus2022switch`):
#
# $$
# p = \mathrm{softmax}(x W_r), \qquad e = \arg\max_j p_j, \qquad y = p_e \, \mathrm{FFN}_e(x)
# $$ (ap-experts)
#
# The idea is older: "MoE" in the paper's Table 2 is such a model, by one of its authors
# {cite}`shazeer2017outrageously`.

# %%
class TopOneExperts(nn.Module):
    def __init__(self, d_model, d_ff, n_experts):
        super().__init__()
        self.router = nn.Linear(d_model, n_experts, bias=False)
        self.experts = nn.ModuleList(PositionwiseFeedForward(d_model, d_ff) for _ in range(n_experts))

    def forward(self, x):
        p, choice = self.router(x).softmax(dim=-1).max(dim=-1)
        y = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            y[choice == e] = p[choice == e, None] * expert(x[choice == e])
        return y

print("parameters with 1 and 8 experts:", *(sum(p.numel() for p in TopOneExperts(32, 128, E).parameters()) for E in (1, 8)))

# %% tags=["hide-cell"]
torch.manual_seed(0)
x, dense, sparse = torch.randn(100, 32), TopOneExperts(32, 128, 1), TopOneExperts(32, 128, 8)
for token, output in zip(x, sparse(x)):
    p = (sparse.router.weight @ token).softmax(dim=0)
    assert_close(output, p.max() * sparse.experts[int(p.argmax())](token))
operations = []
for model in (dense, sparse):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    operations.append(counter.get_total_flops())
assert 1.02 < operations[1] / operations[0] < 1.04
assert sum(p.numel() for p in sparse.parameters()) > 7.9 * sum(p.numel() for p in dense.parameters())

# %% [markdown]
# Eight times the parameters cost 3 percent more operations, those of the router. What we pay for is memory for all
# experts, and sending each token to its expert's GPU. A second loss keeps the router from sending every token to the
# same one. Mixtral {cite}`jiang2024mixtral` takes two of eight experts per token, and in DeepSeek-V3
# {cite}`deepseek2024v3` 37 of 671 billion parameters work on each.

# %% [markdown]
# ## Scaling laws
#
# How large should a model be, and how long should we train it? With $N_p$ parameters and $D$ tokens a training takes
# about $6 N_p D$ operations ([chapter 6.1](6_1_results.ipynb)). {cite:t}`kaplan2020scaling` found that the loss falls
# as a power of size and of data, and advised putting most of a larger budget into size. {cite:t}`hoffmann2022training`
# fitted the learning-rate schedule to each length and found that both should grow in proportion, at about 20 tokens per
# parameter. Their Chinchilla beat the four times larger Gopher.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Log-log chart of training tokens over parameters. A grey line marks 20 tokens per parameter. GPT-3 and Gopher lie below it at one or two tokens per parameter, Chinchilla on it, LLaMA-7B above it with 149, Llama 3 8B far above with 1,875 and Llama 3 405B above with 39. The paper's base model lies at 38."}, "figure": {"caption": "Parameters and training tokens, as the cited papers give them. Grey: 20 tokens per parameter.", "name": "fig-ap-scaling"}}
quoted = {"the paper, base": (65e6, 2.5e9), "GPT-3": (175e9, 300e9), "Gopher": (280e9, 300e9), "Chinchilla": (70e9, 1.4e12),
          "LLaMA-7B": (6.7e9, 1.0e12), "Llama 3 8B": (8e9, 15e12), "Llama 3 405B": (405e9, 15.6e12)}
figure, ax = plt.subplots(figsize=(5.8, 3.0), layout="constrained")
ax.plot([3e7, 1e12], [6e8, 2e13], color="0.6")
for name, (n_parameters, tokens) in quoted.items():
    ax.plot(n_parameters, tokens, "o", color=PALETTE[0])
    below, ratio = name in ("the paper, base", "Gopher", "Chinchilla"), tokens / n_parameters
    ax.annotate(f"{name}: {ratio:,.0f}" if ratio > 2 else f"{name}: {ratio:.1f}", (n_parameters, tokens),
                (6, -10) if below else (-6, -10 if name == "GPT-3" else 4), textcoords="offset points", ha="left" if below else "right")
ax.set(xscale="log", yscale="log", xlabel="parameters", ylabel="tokens", xlim=(2e7, 2e13), ylim=(3e8, 1e14))
plt.show()

# %% tags=["hide-cell"]
assert math.isclose(6 * 175e9 * 300e9, 3.14e23, rel_tol=0.01)  # GPT-3's paper prints 3.14e23
assert math.isclose(1.4e12 / 70e9, 20) and 300e9 / 280e9 < 300e9 / 175e9 < 2

# %% [markdown]
# Since then models that will be *used* much are trained far beyond 20, because a smaller one, trained for longer, is
# cheaper to run {cite}`touvron2023llama`. A scaling law is a curve through losses and leaves open which abilities come
# with them. Some seem to appear at one size {cite}`wei2022emergent`; part of that jump comes from all-or-nothing scores
# {cite}`schaeffer2023emergent`.

# %% [markdown]
# ## What came of the paper's plans, and the limits
#
# Section 7 names three plans: "input and output modalities other than text", "local, restricted attention mechanisms",
# and "making generation less sequential". **Other modalities** came in full: images pixel by pixel
# {cite}`parmar2018image` or as 196 patches {cite}`dosovitskiy2021image`, speech {cite}`radford2023robust`, images with
# text {cite}`alayrac2022flamingo`. **Restricted attention** is one of several ways to long inputs.
#
# **Less sequential generation** took two roads. One writes all words at once {cite}`gu2018non`; as each is drawn
# without knowing the others, rounds of refinement follow {cite}`ghazvininejad2019mask`. The other guesses ahead and
# checks, begun by two of the authors {cite}`stern2018blockwise`. **Speculative decoding** {cite}`leviathan2023fast`
# lets a small model draw a word from its $q$, which the large model, with its $p$, accepts with probability $\min(1,
# p/q)$; after a refusal we draw in proportion to what is missing, $\max(0, p - q)$. Together this gives exactly $p$,
# and one of the large model's passes checks several guesses.
#
# The **limits** are known too. Beside the quadratic cost, models are weak beyond the lengths of their training
# {cite}`kazemnejad2023impact`. A fixed vocabulary breaks rare words, numbers and other languages into many pieces;
# models on bytes pay with longer sequences instead {cite}`xue2022byt5`. And models write fluent text that is false or
# leaves its source, in summaries {cite}`maynez2020faithfulness` and in translation {cite}`raunak2021curious`: the loss
# of equation {eq}`ap-language-model` rewards what is likely to be written. [Chapter
# 7](7_attention_visualizations.ipynb) asks what attention weights tell about a model.

# %% tags=["hide-cell"]
generator = torch.Generator().manual_seed(0)
p, q = (torch.randn(20, generator=generator, dtype=torch.float64).softmax(dim=0) for _ in range(2))
accepted, missing = q * (p / q).clamp(max=1), (p - q).clamp(min=0)
assert_close(accepted + (1 - accepted.sum()) * missing / missing.sum(), p)  # speculative decoding draws from p
image, W = torch.randn(1, 3, 224, 224, dtype=torch.float64), torch.randn(32, 3 * 16 * 16, dtype=torch.float64)
tokens = F.unfold(image, kernel_size=16, stride=16).transpose(1, 2) @ W.T  # ViT's patches: a convolution with stride 16
assert_close(tokens, F.conv2d(image, W.view(32, 3, 16, 16), stride=16).flatten(2).transpose(1, 2))
assert tokens.shape == (1, 196, 32)

# %% [markdown]
# :::{dropdown} Where this is
# `Encoder`, `EncoderLayer` in `model/stacks.py`; `SharedEmbedding` in `model/embedding.py`; `TrainingRun` in
# `training/run.py`; `norm="pre"` and other later options in `config.py`. Tests: `tests/model/test_stacks.py`,
# `tests/model/test_oracles.py`.
# :::

# %% [markdown]
# ## Exercises
#
# ```{exercise} Two holes
# :label: ap-ex-two-holes
#
# Hide the animal *and* the food. What are the best probabilities that the encoder can give? If you *draw* both from
# them, how often do they fit together? How could you do better with the same model?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Equation {eq}`ap-masked` treats the hidden words as independent.
# ```
#
# ```{solution} ap-ex-two-holes
# :class: dropdown
#
# With both hidden, each of the eight animals has probability 1/8. Drawn independently, animal and food fit in one of
# eight cases. Draw the animal, put it in, and ask again for the food: then it fits. This is the trouble of writing all
# words at once, and the refinement that helps it.
# ```

# %% tags=["hide-cell"]
holes = hide(hide(test[:200], torch.full((200,), ANIMAL)), torch.full((200,), FOOD))
animals = torch.tensor([ID[animal] for animal in EATS])
with torch.no_grad():
    holes[:, ANIMAL] = animals[torch.randint(8, (200,))]  # fill one hole ...
    food = full(holes)[:, FOOD].argmax(dim=-1)            # ... then ask for the other
fit_together = [EATS[WORDS[a]] == WORDS[f] for a, f in zip(holes[:, ANIMAL], food)]
assert sum(fit_together) / 200 > 0.9 and 8 * (1 / 8) ** 2 == 1 / 8

# %% [markdown]
# ```{exercise} Forget the causal mask
# :label: ap-ex-leak
#
# Train the language model without the mask. Which loss do you expect? How would you notice on a text of unknown floor?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `train_language_model(mask=None)`. Who may look at word $t + 1$ now?
# ```
#
# ```{solution} ap-ex-leak
# :class: dropdown
#
# The loss falls below half of the floor of equation {eq}`ap-floor`: each position copies its target from its right
# neighbour. On any text, change a word and see whether earlier logits move.
# ```

# %% tags=["hide-cell"]
leaking = train_language_model(mask=None)
with torch.no_grad():
    too_good = next_word_loss(leaking, test, mask=None).item()
    change = (leaking(other[:, :-1]) - leaking(test[:, :-1]))[:, :PLACE].abs().max().item()
assert too_good < 0.5 * floor and change > 0.1

# %% [markdown]
# ```{exercise} Temperature
# :label: ap-ex-temperature
#
# For logits $(2, 1, 0)$, compute the distribution at temperature 1, 0.5 and 2. What are the limits at 0 and at
# infinity?
# ```
#
# ```{solution} ap-ex-temperature
# :class: dropdown
#
# At 1: 0.665, 0.245, 0.090. At 0.5: 0.867, 0.117, 0.016. At 2: 0.506, 0.307, 0.186. Toward 0 all weight goes to the
# largest, as in greedy search; toward infinity the distribution becomes uniform.
# ```

# %% tags=["hide-cell"]
logits, entropies = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64), []
for temperature, first in ((0.01, 1.0), (0.5, 0.867), (1, 0.665), (2, 0.506), (1000, 0.334)):
    p = (logits / temperature).softmax(dim=0)
    entropies.append(-(p * p.clamp(min=1e-300).log()).sum().item())
    assert abs(p[0].item() - first) < 6e-4
assert entropies == sorted(entropies)
assert entropies[0] < 1e-6 and math.isclose(entropies[-1], math.log(3), abs_tol=1e-5)

# %% [markdown]
# ```{exercise} LoRA costs nothing in use
# :label: ap-ex-lora
#
# After training, how can you put LoRA's $A$ and $B$ away, so that the model is as fast as before, and what do you lose?
# ```
#
# ```{solution} ap-ex-lora
# :class: dropdown
#
# $xW + xAB = x(W + AB)$: add $AB$ to $W$ once. What we lose: kept apart, one $W$ in memory can serve many tasks, each
# with a small $A$ and $B$ of its own.
# ```

# %% tags=["hide-cell"]
lora = tuned["LoRA, rank 2"][0].encoder.layers[0].self_attention.W_V
merged, x = lora.linear.weight.T + lora.A @ lora.B, torch.randn(5, 32)
assert_close(lora(x), x @ merged)
assert lora.B.abs().max() > 0.01
assert torch.equal(lora.linear.weight, pretrained.encoder.layers[0].self_attention.W_V.weight)

# %% [markdown]
# ```{exercise} Fewer key heads
# :label: ap-ex-cache
#
# A model of LLaMA-7B's shape at 32,768 tokens: how large is its cache with 32 key heads, with 8, with 1? Which work
# stays the same?
# ```
#
# ```{solution} ap-ex-cache
# :class: dropdown
#
# 16 GiB, 4 GiB, 0.5 GiB by equation {eq}`ap-cache`. With 32 query heads the operations for the scores stay: we save
# memory, and reading it at every step.
# ```

# %% tags=["hide-cell"]
assert [cache_bytes(32768, 32, heads, 128) / 2**30 for heads in (32, 8, 1)] == [16, 4, 0.5]
q, k, v = torch.randn(1, 32, 5, 128), torch.randn(1, 1, 5, 128), torch.randn(1, 1, 5, 128)
shared_heads = scaled_dot_product_attention(q, k, v)  # one key head for all 32 query heads, by broadcasting
assert_close(shared_heads, F.scaled_dot_product_attention(q, k.expand_as(q), v.expand_as(q)))

# %% [markdown]
# ```{exercise} ALiBi's reach
# :label: ap-ex-alibi
#
# With equal scores and a long text, which weight has the present token in ALiBi's steepest head of eight ($s = 1/2$),
# and in its flattest ($s = 1/256$)? How far back does the weight fall to a hundredth of that?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# A geometric series with the ratio $e^{-s}$.
# ```
#
# ```{solution} ap-ex-alibi
# :class: dropdown
#
# $1 - e^{-s}$: 0.3935 and 0.0039. The weight falls to a hundredth after $\ln(100) / s$ places: 9.2 and 1,179.
# ```

# %% tags=["hide-cell"]
for head, here, reach in ((1, 0.3935, 9.2), (8, 0.0039, 1178.9)):
    slope = 2.0**-head
    last = (slope * torch.arange(-5000, 1, dtype=torch.float64)).softmax(dim=0)
    assert math.isclose(last[-1], 1 - math.exp(-slope), rel_tol=1e-6) and abs(last[-1] - here) < 5e-5
    assert abs(math.log(100) / slope - reach) < 0.05
    assert_close(alibi_bias(50, head, h=8).softmax(dim=-1)[-1].double(), last[-50:] / last[-50:].sum())

# %% [markdown]
# ```{exercise} The paper's own budget
# :label: ap-ex-6nd
#
# The base model: 65 million parameters, 100,000 steps of about 25,000 source and 25,000 target tokens. What does $6
# N_p D$ give with $D$ the tokens of one side, and why has the paper's Table 2 $3.3 \cdot 10^{18}$?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The paper's number is time × GPUs × sustained rate ([chapter 6.1](6_1_results.ipynb)).
# ```
#
# ```{solution} ap-ex-6nd
# :class: dropdown
#
# It gives $9.8 \cdot 10^{17}$, less than a third of the paper's number, which counts how long the machines were held,
# while ours counts useful products. Between them lie the share of the rate that the program used, and what the rule
# leaves out: scores, softmax, padding. It is about 38 tokens per parameter.
# ```

# %% tags=["hide-cell"]
operations = 6 * 65e6 * 25_000 * 100_000
assert 3 < 3.3e18 / operations < 4 and f"{operations:.2e}" == "9.75e+17" and round(25_000 * 100_000 / 65e6) == 38

# %% [markdown]
# ```{exercise} How many guesses survive?
# :label: ap-ex-speculative
#
# A small model guesses $g$ words, each accepted with probability $a$; the first refusal ends the round, and the large
# model always adds one word. How many words does a round yield on average, for $a = 0.8$, $g = 4$?
# ```
#
# ```{solution} ap-ex-speculative
# :class: dropdown
#
# Word number $i + 1$ is reached with probability $a^i$, for $i = 0, \dots, g$. The sum is $(1 - a^{g+1}) / (1 - a)$,
# here 3.36 words per pass of the large model.
# ```

# %% tags=["hide-cell"]
expected = (1 - 0.8**5) / (1 - 0.8)
accepted = torch.rand(100_000, 4, generator=torch.Generator().manual_seed(0)) < 0.8
simulated = 1 + accepted.int().cumprod(dim=1).sum(dim=1).double().mean().item()
assert round(expected, 2) == 3.36 and abs(simulated - expected) < 0.03
