# %% [markdown]
# # After the paper
#
# *What became of the Transformer {cite}`vaswani2017attention`, from 2017 to today: three families of models, the parts that
# were exchanged, and how a model that predicts words became one that answers.*
#
# Nearly every large model since 2017 is built from this paper's parts. In this chapter we build one small model of each
# family and train it in seconds. We fine-tune one, and write each part that changed in a few lines. What a cell
# computes is ours; the rest is cited.

# %% tags=["remove-cell"]
import copy
import itertools
import math
import random
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

# %% tags=["remove-cell"]
from annotated_transformer import (
    ModelConfig, PositionwiseFeedForward, SharedEmbedding, Transformer, causal_mask, greedy_search, make_batch,
    noam_learning_rate, scaled_dot_product_attention)
from annotated_transformer.config import BOS_ID, UNK_ID
from lab.display import use_style
from lab.pictures import later as later_pictures
from annotated_transformer.model.embedding import SinusoidalPositions, positional_encoding
from annotated_transformer.model.stacks import Encoder
from lab.tables.table_1 import layer_operations
from annotated_transformer.data.batching import pad_source
from lab.training_loop import fit, summed_loss

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
later_pictures.ap_families()

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
SMALL = ModelConfig(len(WORDS), N=2, d_model=32, d_ff=64, h=2, p_drop=0.0)
print(f"{sum(p.numel() for p in OneStack(SMALL).parameters()):,} parameters")

# %% [markdown]
# We train all models of this chapter with the loop of [chapter 5.2](5_2_training.ipynb), `fit`. It needs batches, here
# random rows, a rate, here a short warm-up and a line to 0, and a loss, which is what tells the families apart.

# %%
def draws(rows, n=64):
    while True:
        yield rows[torch.randint(len(rows), (n,))]

def descent(steps, peak=0.01):
    return lambda step: peak * min(1, step / 20) * (1 - (step - 1) / steps)

print("batch", tuple(next(draws(train)).shape), " rates of steps 1, 20, 150:",
      *(f"{descent(150)(s):.4f}" for s in (1, 20, 150)))

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

# %%
def hide(rows, places):
    """The rows with [mask] at one place each."""
    hidden = rows.clone()
    hidden[torch.arange(len(rows)), places] = ID["[mask]"]
    return hidden

def masked_loss(model, rows, mask=None):
    places, each = torch.randint(1, 9, (len(rows),)), torch.arange(len(rows))
    scores = model(hide(rows, places), mask)[each, places]
    loss = F.cross_entropy(scores, rows[each, places], reduction="sum")
    return loss, len(rows)
torch.manual_seed(0)
loss, n = masked_loss(OneStack(SMALL), test[:1])
print(words(hide(test[:1], [ANIMAL])[0]),
      f" loss before training: {loss:.2f} nats of {n} words")

# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def share_found(model, place, mask=None):
    hidden = hide(test, torch.full((len(test),), place))
    guess = model(hidden, mask)[:, place].argmax(dim=-1)
    return (guess == test[:, place]).float().mean().item()

print("share of animals found before training:",
      share_found(OneStack(SMALL), ANIMAL))
assert share_found(OneStack(SMALL), ANIMAL) < 0.5

# %% tags=["row-S12", "nbval-ignore-output"]
models, found = {}, {}
masks = {"sees both sides": None, "sees the left": causal_mask(10)}
places = dict(adjective=ADJECTIVE, animal=ANIMAL, food=FOOD, place=PLACE)
for name, mask in masks.items():
    torch.manual_seed(0)
    model = models[name] = OneStack(SMALL)
    loss_of = partial(masked_loss, mask=mask)
    fit(model, draws(train), 150, descent(150), loss_of)
    found[name] = {kind: round(share_found(model, place, mask), 2)
                   for kind, place in places.items()}
    print(f"{name:16}", found[name])
full, (both, left) = models["sees both sides"], found.values()
assert both["animal"] > 0.95 and both["food"] > 0.95
assert left["animal"] < 0.35 < 0.95 < left["food"]
assert both["adjective"] < 0.5 and both["place"] < 0.5

# %% tags=["hide-input"] mystnb={"image": {"alt": "Bars of the share of hidden words that are found, for adjective, animal, food and place, with chance levels as black marks. The model that sees both sides finds about a quarter of the adjectives and places, which is chance, and all animals and foods. The model that sees the left finds all foods, but of the animals about one in eight, which is chance."}, "figure": {"caption": "Share of 1,000 hidden words that each model finds. Black: chance.", "name": "fig-ap-found"}}
later_pictures.ap_found({name: [*row.values()] for name, row in found.items()}, places)

# %% [markdown]
# The **food** comes after the animal, and both models find it in more than 95 % of the sentences. The **animal** is
# told by a word to its right: the bidirectional encoder finds it as often, and the causal one is right one time in
# eight. Adjective and place are random. So an encoder is good at *judging* a text: classifying it, tagging its words,
# finding an answer in it, or giving it one vector by which it is found again (retrieval). What BERT's layers encode has
# been studied at length {cite}`rogers2020primer`.

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
# Here we know the lowest possible loss. Three of a sentence's nine predictions are free choices, among 4, 8 and 4 words,
# and six are certain, so no model that sees only the past gets below
#
# $$
# \frac{\ln 4 + \ln 8 + \ln 4}{9} = 0.539 \text{ nats per word}
# $$ (ap-floor)

# %%
def next_word_loss(model, rows, mask="causal"):
    """Logits against the word after each place: summed nats, and how many."""
    mask = causal_mask(rows.size(1) - 1) if mask == "causal" else mask
    scores, target = model(rows[:, :-1], mask).transpose(1, 2), rows[:, 1:]
    return F.cross_entropy(scores, target, reduction="sum"), target.numel()

def train_language_model(mask="causal", steps=300):
    torch.manual_seed(0)
    model = OneStack(SMALL)
    fit(model, draws(train), steps, descent(steps),
        partial(next_word_loss, mask=mask))
    return model
loss, n = next_word_loss(OneStack(SMALL), test[:1])
print(f"untrained: {loss:.0f} nats, {n} words")

# %%
gpt, floor = train_language_model(), (2 * math.log(4) + math.log(8)) / 9
with torch.no_grad():
    scores = gpt(test[:, :-1], causal_mask(9)).transpose(1, 2)
    by_word = F.cross_entropy(scores, test[:, 1:], reduction="none").mean(dim=0)
print(f"reached {by_word.mean():.2f} nats per word, the floor is {floor:.2f}")

# %% tags=["remove-cell", "row-S13"]
assert floor - 0.01 < by_word.mean() < 1.15 * floor and round(floor, 3) == 0.539
with torch.no_grad():
    here, there = gpt(test[:, :-1], causal_mask(9)), gpt(other[:, :-1], causal_mask(9))
assert_close(here[:, :PLACE], there[:, :PLACE])             # rows before the changed word: equal
assert not torch.allclose(here[:, PLACE], there[:, PLACE])  # from it on: not

# %% tags=["hide-input"] mystnb={"image": {"alt": "Bars of the language model's loss for each word of the old horse eats hay near the river end mark. The bars of old, horse and river reach about 1.4, 2.1 and 1.4 nats, each at a black mark, the floor. All other bars are near zero."}, "figure": {"caption": "Loss of the language model by word, mean over 1,000 sentences. Black: the best possible, the logarithm of the number of choices.", "name": "fig-ap-by-word"}}
later_pictures.ap_by_word(by_word)

# %% [markdown]
# A loss *below* the floor would prove that the model sees what it should predict ({ref}`ap-ex-leak`). To write, we
# begin with a **prompt**, draw a word from $p(\cdot \mid \text{so far})$, append it, and ask again. The **temperature**
# divides the logits: below 1 the likely words win more often.

# %%
@torch.no_grad()
def sample(model, prompt="", n=1, temperature=1.0, seed=0, length=9):
    """n continuations of a prompt, drawn word by word."""
    generator = torch.Generator().manual_seed(seed)
    ids = [ID.get(word, UNK_ID) for word in prompt.split()]
    rows = torch.tensor([[BOS_ID, *ids]] * n)
    while rows.size(1) < length:
        logits = model(rows, causal_mask(rows.size(1)))[:, -1] / temperature
        p = logits.softmax(dim=-1)
        drawn = torch.multinomial(p, 1, generator=generator)
        rows = torch.cat([rows, drawn], dim=1)
    return rows

print("the hungry bear ->", words(sample(gpt, "the hungry bear")[0, 4:7]))

# %% tags=["hide-cell", "row-S13"]
drawn = sample(gpt, n=200).tolist()
known = {tuple(row) for row in train[:, :9].tolist()}
assert sum(EATS.get(WORDS[row[ANIMAL]]) == WORDS[row[FOOD]] for row in drawn) / 200 > 0.8
assert sum(tuple(row) in known for row in drawn) / 200 > 0.8

# %% [markdown]
# Many tasks can be put as a text to continue, one reason why this family became the common one: dialogue, code, summaries.
# GPT-3 solved tasks from a description in its prompt (**zero-shot**) or from a few examples (**few-shot**), with no weight
# changed: **in-context learning** {cite}`brown2020language`. A chat is the same thing: the whole conversation so far is
# the prompt of the next answer. One mechanism
# found in trained models is **induction heads**, which look for an earlier occurrence of the present token and copy
# what came after it {cite}`olsson2022context`. A prompt that shows worked steps, a **chain of thought**
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
torch.manual_seed(2)
tiny = ModelConfig(len(vocabulary), N=1, d_model=32, d_ff=64, h=2, p_drop=0.0)
translator, draw = Transformer(tiny), random.Random(2)
batches = (make_batch(draw.sample(coded, 32)) for _ in itertools.count())
rate = partial(noam_learning_rate, d_model=32, warmup_steps=60, factor=0.5)
fit(translator, batches, 300, rate, partial(summed_loss, eps_ls=0.0))
written = [" ".join(vocabulary[i] for i in ids)
           for ids in greedy_search(translator, sources)]
right = sum(ours == french for ours, (_, french) in zip(written, testing))
print(f"{right} of {len(testing)} sentences entirely right, "
      "every phrase in them unseen")
print(testing[0][0], "->", written[0])
assert right > 80

# %% tags=["hide-input"] mystnb={"image": {"alt": "Heat map of cross-attention, mean of two heads and 100 sentences. Down: article, noun, colour, verb, article, noun, colour, end mark, the French words to be written. Across: the, colour, noun, verb, the, colour, noun, end mark, the English words. The bright squares: both articles and both nouns look at the English noun, the colours look at the colour before it, the verb at the verb. The end mark looks at several places."}, "figure": {"caption": "Cross-attention of our small translator, mean of its two heads over the 100 test sentences. Each row writes the word on its left.", "name": "fig-ap-cross"}}
looked = later_pictures.ap_cross(number, testing, translator)

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
# What does the first step buy? Our new text, without questions or labels, mentions 24 animals, twelve on land and
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
    return [f"where is the {animal} ? {'land' if animal in LAND else 'sea'}"
            for animal in animals]

def answer_loss(model, rows):
    """Nats of the answer and the end mark; the question itself is given."""
    logits = model(rows[:, :-1], causal_mask(rows.size(1) - 1))[:, -2:]
    scores, target = logits.transpose(1, 2), rows[:, -2:]
    return F.cross_entropy(scores, target, reduction="sum"), target.numel()
draw = random.Random(0)
sentences = [told(draw) for _ in range(2000)]
plain = encoded(sentences)
labelled = encoded(questions(LAND[:3] + SEA[:3]))
asked = encoded(questions(LAND[3:] + SEA[3:]))
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
        n_in, n_out = linear.in_features, linear.out_features
        self.A = nn.Parameter(torch.randn(n_in, rank) / math.sqrt(n_in))
        self.B = nn.Parameter(torch.zeros(rank, n_out))

    def forward(self, x):
        return self.linear(x) + x @ self.A @ self.B
d, r = 4096, 8
print(f"one matrix of {d} x {d}: {d * d:,} weights, LoRA of rank {r}: "
      f"{2 * d * r:,}, a {d * d // (2 * d * r)}th")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Drawing of LoRA. On the left x enters. Above, a large grey square W, frozen. Below, a tall thin orange rectangle A followed by a flat wide orange rectangle B, trained. Both paths meet in a plus sign and give y."}, "figure": {"caption": "LoRA: the frozen matrix, and beside it two thin ones that are trained.", "name": "fig-ap-lora"}}
later_pictures.ap_lora()

# %%
def with_lora(model, rank=2):
    model = copy.deepcopy(model).requires_grad_(False)
    for layer in model.encoder.layers:
        for block, matrices in (
                (layer.self_attention, ("W_Q", "W_K", "W_V", "W_O")),
                (layer.feed_forward, ("W_1", "W_2"))):
            for name in matrices:
                setattr(block, name, LoRA(getattr(block, name), rank))
    return model

adapted = with_lora(OneStack(SMALL))
attention = adapted.encoder.layers[0].self_attention
print("LoRA's names:", *list(dict(attention.named_parameters()))[:3])

# %%
torch.manual_seed(0)
config = SMALL.replace(vocab_size=len(LEXICON))
pretrained = OneStack(config)
fit(pretrained, draws(plain), 200, descent(200), next_word_loss)
tuned = {"from scratch": (OneStack(config), 0.003),
         "fine-tuned": (copy.deepcopy(pretrained), 0.003),
         "LoRA, rank 2": (with_lora(pretrained), 0.01)}
for name, (model, _) in tuned.items():
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"{name:13} trains {trained:6,} parameters")

# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def share_right(model, rows):
    mask = causal_mask(rows.size(1) - 1)
    guess = model(rows[:, :-1], mask)[:, -2].argmax(dim=-1)
    return (guess == rows[:, -2]).float().mean().item()

scores = {}
for name, (model, peak) in tuned.items():
    fit(model, itertools.repeat(labelled), 100, descent(100, peak), answer_loss)
    scores[name] = share_right(model, labelled), share_right(model, asked)
    print(f"{name:13} right about the 6 animals: {scores[name][0]:.2f}, "
          f"about the 18 others: {scores[name][1]:.2f}")
assert all(known == 1 for known, _ in scores.values())
assert (scores["from scratch"][1] <= 0.7 and scores["fine-tuned"][1] > 0.9
        and scores["LoRA, rank 2"][1] > 0.8)

# %% tags=["hide-input"] mystnb={"image": {"alt": "Bars for three models. From scratch: all six labelled animals right, half of the 18 others. Fine-tuned: all of both. LoRA of rank 2: all of both, too. A black line marks one half."}, "figure": {"caption": "Share of right answers after fine-tuning on six questions. Black: chance.", "name": "fig-ap-tuned"}}
later_pictures.ap_tuned(scores)

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
later_pictures.ap_rlhf()

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

# %% tags=["nbval-ignore-output"]
with torch.no_grad():
    begun = ["the", "old", "bear", "eats", "honey", "near", "the"]
    prompt = torch.tensor([[BOS_ID, *map(ID.get, begun)]])
    log_p = gpt(prompt, causal_mask(8))[0, -1].log_softmax(dim=-1)
at, reward = [ID[place] for place in PLACES], torch.zeros(len(WORDS))
reward[ID["lake"]], reward[ID["river"]] = 1.0, 0.5
tilted = {beta: (log_p + reward / beta).softmax(dim=-1)
          for beta in (1e9, 1, 0.2)}
print(f"{'beta':>6}", *(f"{place:>6}" for place in PLACES))
for beta, p in tilted.items():
    print(f"{beta:6.1g}", *(f"{p[i]:6.2f}" for i in at))
assert 0.35 < tilted[1][ID["lake"]] < 0.55 and tilted[0.2][ID["lake"]] > 0.85

# %% tags=["hide-input"] mystnb={"image": {"alt": "Grouped bars of the probability of river, road, house and lake after the old bear eats honey near the. For pi zero all four are about a quarter. With beta 1 lake rises to nearly one half. With beta 0.2 lake has about 0.9 and road and house nearly nothing."}, "figure": {"caption": "The best distribution for a reward, by the weight of the penalty. Small $\\beta$ follows the reward, large $\\beta$ the language model.", "name": "fig-ap-tilt"}}
later_pictures.ap_tilt(tilted, at, PLACES)

# %% tags=["remove-cell"]
def objective(p, beta):
    return ((p * reward).sum() - beta * (p * (p.log() - log_p)).sum()).item()

for beta in (1, 0.2):
    best = objective(tilted[beta], beta)
    assert all(objective((log_p + torch.randn(len(WORDS))).softmax(dim=-1), beta) < best for _ in range(100))
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
later_pictures.ap_layers()

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
# | Kimi K2 {cite}`kimi2025k2` | as DeepSeek-V3, trained with Muon: 32 B active | 1,000 B |
# | Qwen3-Next {cite}`qwen2025next` | three of four layers have linear attention; experts: 3 B active | 80 B |
# | Flamingo {cite}`alayrac2022flamingo` | cross-attention to images in a frozen language model | 80 B |
# | **encoder-decoder** | | |
# | the paper, big | | 213 M |
# | MarianMT {cite}`junczys2018marian,tiedemann2020opus` | Swish; the paper's otherwise | as base |
# | T5 {cite}`raffel2020exploring` | pre-norm, a learned number per distance in the scores | 11 B |

# %% [markdown]
# Do we read these models right? From the shapes in their papers we count their weight matrices:

# %%
def n_weights(N, d, d_ff, V, n_positions, matrices=2):
    """Matrices of one stack and its embedding, without norms and biases."""
    return N * (4 * d * d + matrices * d * d_ff) + (V + n_positions) * d

printed = {"BERT base": 110e6, "BERT large": 340e6, "GPT-2": 1542e6,
           "GPT-3": 175e9, "LLaMA-7B": 6.7e9}
counted = {"BERT base": n_weights(12, 768, 3072, 30522, 512),
           "BERT large": n_weights(24, 1024, 4096, 30522, 512),
           "GPT-2": n_weights(48, 1600, 6400, 50257, 1024),
           "GPT-3": n_weights(96, 12288, 49152, 50257, 2048),
           "LLaMA-7B": n_weights(32, 4096, 11008, 2 * 32000, 0, matrices=3)}
for name in printed:  # LLaMA has two embeddings
    print(f"{name:10} counted here {counted[name] / 1e6:>9,.0f} M    "
          f"printed in the paper {printed[name] / 1e6:>9,.0f} M")
    assert abs(counted[name] / printed[name] - 1) < 0.03

# %% tags=["hide-input"] mystnb={"image": {"alt": "Timeline from 2017 to 2025, time running down, in five columns. Encoder-only: BERT 2018 to ViT 2020. Decoder-only: GPT-1 2018, GPT-2 2019, GPT-3 2020, PaLM and Flamingo 2022, LLaMA 2023, Mixtral, Llama 3 and DeepSeek-V3 2024, Qwen3, Kimi K2 and Qwen3-Next 2025. Encoder-decoder: the paper 2017, Marian 2018, T5 2019. Parts: sparse experts 2017, relative positions and pre-norm 2018, RMSNorm and one key head 2019, SwiGLU and QK norm 2020, rotary and ALiBi 2021, FlashAttention 2022, grouped heads, RoPE scaling and Mamba 2023, latent attention 2024. Training: parallel decoding and AdamW 2017, scaling laws 2020, LoRA and instruction tuning 2021, InstructGPT, Chinchilla and speculative decoding 2022, DPO 2023, WSD and Muon 2024, DeepSeek-R1 2025."}, "figure": {"caption": "The paper among its neighbours, by month of first publication.", "name": "fig-ap-timeline"}}
later_pictures.ap_timeline()

# %% [markdown]
# What stayed is dot-product attention with several query heads, a feed-forward network, residual connections and a
# norm. The table ends where we could read the model's own report. For 2026 we have only second-hand accounts, of more
# models that mix a few layers of full attention into many of linear attention; we have not checked them.

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
    largest = scores_.softmax(dim=-1).amax(dim=-1).mean()
    print(f"{name:12}  largest score {scores_.max():8.1f}, "
          f"largest weight, mean over queries {largest:.2f}")

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

# %% tags=["remove-cell"]
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
    """Turn pair i of columns in row m by scale (start + m) / base^(2i / d)."""
    n, d = x.shape
    position = scale * (start + torch.arange(n, dtype=x.dtype)[:, None])
    angle = position / base ** (torch.arange(0, d, 2, dtype=x.dtype) / d)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    turned = pairs * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2)

q, k = torch.randn(2, 7, 8, dtype=torch.float64)
moved = rotate(q, 1000) @ rotate(k, 1000).T
same = torch.allclose(moved, rotate(q) @ rotate(k).T)
print("scores 1,000 places on are the same:", same)

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
angles = later_pictures.ap_positions()

# %% tags=["remove-cell"]
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
later_pictures.ap_cache()

# %% [markdown]
# The paper's own idea for long inputs was *restricted* attention. Longformer {cite}`beltagy2020longformer` looks at a
# window and lets a few **global** tokens see all; BigBird {cite}`zaheer2020big` adds a few random keys. The pairs then
# grow with $n$ in place of $n^2$.

# %% tags=["remove-cell"]
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

# %% tags=["hide-input"] mystnb={"image": {"alt": "Four 24 by 24 grids with their numbers of pairs. Full: all filled. Window: a band along the diagonal. Longformer: the band, and the first two rows and columns filled. BigBird: the same with a few scattered squares in each row."}, "figure": {"caption": "Which query (down) may look at which key (across), for 24 tokens; above, the number of pairs for 1,024 tokens.", "name": "fig-ap-restricted"}}
later_pictures.ap_restricted()

# %% [markdown]
# ## State-space models
#
# Another approach needs no cache: a **state-space model** {cite}`gu2022efficiently` carries a state $h$ of fixed
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
a, x = 0.6 + 0.39 * torch.rand(24), torch.randn(24)
b, c = torch.rand(2, 24, 4)
same = torch.allclose(scan(a, b, c, x), as_matrix(a, b, c) @ x, atol=1e-5)
print("token by token equals one matrix product:", same)

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two 24 by 24 heat maps with colour bars, both lower triangles. Left, a state-space layer: bright near the diagonal and fading to the left, faster after small values of a. Right, causal softmax attention of the same queries and keys: each row is spread almost evenly over the past."}, "figure": {"caption": "The same $c$ and $b$ as a state-space layer with decay, and as queries and keys of causal softmax attention.", "name": "fig-ap-ssm"}}
later_pictures.ap_ssm(a, as_matrix, b, c)

# %% [markdown]
# The state keeps its size, so the cost per token is constant, and what it has forgotten is gone. Hybrids such as Jamba
# {cite}`lieber2024jamba` put attention between several Mamba layers.

# %% [markdown]
# ## A mixture of experts
#
# Can a model have more parameters without more work per token? Put $E$ feed-forward networks in place of one, and
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
        self.experts = nn.ModuleList(PositionwiseFeedForward(d_model, d_ff)
                                     for _ in range(n_experts))
    def forward(self, x):
        p, choice = self.router(x).softmax(dim=-1).max(dim=-1)
        y = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            y[choice == e] = p[choice == e, None] * expert(x[choice == e])
        return y
few, many = (TopOneExperts(32, 128, E).parameters() for E in (1, 8))
print("parameters with 1 and 8 experts:",
      sum(p.numel() for p in few), sum(p.numel() for p in many))

# %% tags=["remove-cell"]
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
# (section-ap-translation)=
# ## Translation since 2017
#
# What became of the paper's own task?
#
# - **Back-translation** {cite}`sennrich2016improving`, a year older than the paper, became its companion: translate plain
#   text of the target language back into the source language, and train on these pairs too. With hundreds of millions
#   of sentences, {cite:t}`edunov2018understanding` reached 35.0 BLEU on newstest2014 with the same big Transformer, where
#   the paper has 28.4.
# - **One model for many languages.** A token at the start of the source, such as *to German*, names the target language
#   {cite}`johnson2017google`; pairs never seen together are translated as well, badly at first. NLLB
#   {cite}`nllb2022no` covers 200 languages with 54 billion parameters in experts.
# - **Deep encoders, shallow decoders.** The encoder runs once, the decoder once per token. {cite:t}`wang2019learning`
#   train 30 encoder layers with pre-norm; with 12 encoder layers and *one* decoder layer, {cite:t}`kasai2021deep` keep the
#   quality and decode about twice as fast.
# - **Distillation.** A small model learns from the translations of a large one {cite}`kim2016sequence`, which are easier
#   to learn than people's. [Chapter 6.1](6_1_results.ipynb) does so, and so do most translators that run on a phone.
# - **Documents.** A sentence alone often does not say what *it* or *you* means. {cite:t}`laubli2018has` found that people
#   who see whole documents prefer human translations where single sentences show no difference;
#   {cite:t}`voita2019when` made test sets for what a model of sentences gets wrong. The WMT campaign of 2025 hands out whole
#   documents {cite}`kocmi2025findings`.
# - **Language models as translators.** Prompted, or fine-tuned with plain text of the language and then a few good pairs
#   (ALMA {cite}`xu2024paradigm`, Tower {cite}`alves2024tower`), decoder-only models overtook encoder-decoders trained for
#   the task. WMT's report of 2024 is titled *The LLM Era Is Here but MT Is Not Solved Yet* {cite}`kocmi2024findings`, and by
#   automatic metrics they were best in all 55 languages of WMT24++ {cite}`deutsch2025wmt24pp`, which its authors want
#   people to confirm. The latest are trained with learned metrics as reward {cite}`finkelstein2025google`.
#
# The encoder-decoder stays where a translator must be small, fast and run at home, as on this book's first page. Tools
# follow the fashion: version 5 of Hugging Face's transformers has dropped its translation pipeline.

# %% [markdown]
# ## Scaling laws
#
# How large should a model be, and how long should we train it? With $N_p$ parameters and $D$ tokens a training takes
# about $6 N_p D$ operations ([chapter 6.1](6_1_results.ipynb)). {cite:t}`kaplan2020scaling` found that the loss falls
# as a power of size and of data, and advised putting most of a larger budget into size. {cite:t}`hoffmann2022training`
# fitted the learning-rate schedule to each length and found that both should grow in proportion, at about 20 tokens per
# parameter. Their Chinchilla beat the four times larger Gopher.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Log-log chart of training tokens over parameters. A grey line marks 20 tokens per parameter. GPT-3 and Gopher lie below it at one or two tokens per parameter, Chinchilla on it, LLaMA-7B above it with 149, Llama 3 8B far above with 1,875 and Llama 3 405B above with 39. The paper's base model lies at 38."}, "figure": {"caption": "Parameters and training tokens, as the cited papers give them. Grey: 20 tokens per parameter.", "name": "fig-ap-scaling"}}
later_pictures.ap_scaling()

# %% tags=["remove-cell"]
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
# and "making generation less sequential". **Other modalities** have all arrived: images pixel by pixel
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
# The **limits** are known too. Besides the quadratic cost, models are weak beyond the lengths of their training
# {cite}`kazemnejad2023impact`. A fixed vocabulary breaks rare words, numbers and other languages into many pieces;
# models on bytes pay with longer sequences instead {cite}`xue2022byt5`. And models write fluent text that is false or
# leaves its source, in summaries {cite}`maynez2020faithfulness` and in translation {cite}`raunak2021curious`: the loss
# of equation {eq}`ap-language-model` rewards what is likely to be written. [Chapter
# 7](7_attention_visualizations.ipynb) asks what attention weights tell about a model.

# %% tags=["remove-cell"]
generator = torch.Generator().manual_seed(0)
p, q = (torch.randn(20, generator=generator, dtype=torch.float64).softmax(dim=0) for _ in range(2))
accepted, missing = q * (p / q).clamp(max=1), (p - q).clamp(min=0)
assert_close(accepted + (1 - accepted.sum()) * missing / missing.sum(), p)  # speculative decoding draws from p

# %% [markdown]
# :::{dropdown} Where this is
# `Encoder`, `EncoderLayer` in `model/stacks.py`; `SharedEmbedding` in `model/embedding.py`; `TrainingRun` in
# `training/run.py`; `norm="pre"` and other later options in `config.py`. Tests: `tests/model/test_stacks.py`,
# `tests/model/test_oracles.py`.
# :::

# %% [markdown]
# ## Exercises

# %% [markdown] tags=["exercise"]
# ```{exercise} Two holes
# :label: ap-ex-two-holes
#
# Hide the animal *and* the food. What are the best probabilities that the encoder can give? If you *draw* both from
# them, how often do they fit together? How could you do better with the same model?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Equation {eq}`ap-masked` treats the hidden words as independent.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ap-ex-two-holes
# :class: dropdown
#
# With both hidden, each of the eight animals has probability 1/8. Drawn independently, animal and food fit in one of
# eight cases. Draw the animal, put it in, and ask again for the food: then it fits. This is the trouble of writing all
# words at once, and the refinement that helps it.
# ```

# %% tags=["hide-cell", "solution"]
holes = hide(hide(test[:200], torch.full((200,), ANIMAL)), torch.full((200,), FOOD))
animals = torch.tensor([ID[animal] for animal in EATS])
with torch.no_grad():
    holes[:, ANIMAL] = animals[torch.randint(8, (200,))]  # fill one hole ...
    food = full(holes)[:, FOOD].argmax(dim=-1)            # ... then ask for the other
fit_together = [EATS[WORDS[a]] == WORDS[f] for a, f in zip(holes[:, ANIMAL], food)]
assert sum(fit_together) / 200 > 0.9 and 8 * (1 / 8) ** 2 == 1 / 8

# %% [markdown] tags=["exercise"]
# ```{exercise} Forget the causal mask
# :label: ap-ex-leak
#
# Train the language model without the mask. Which loss do you expect? How would you notice on a text of unknown floor?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# `train_language_model(mask=None)`. Who may look at word $t + 1$ now?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ap-ex-leak
# :class: dropdown
#
# The loss falls below half of the floor of equation {eq}`ap-floor`: each position copies its target from its right
# neighbour. On any text, change a word and see whether earlier logits move.
# ```

# %% tags=["hide-cell", "solution"]
leaking = train_language_model(mask=None)
with torch.no_grad():
    too_good = (lambda total, n: total.item() / n)(*next_word_loss(leaking, test, mask=None))
    change = (leaking(other[:, :-1]) - leaking(test[:, :-1]))[:, :PLACE].abs().max().item()
assert too_good < 0.5 * floor and change > 0.1

# %% [markdown] tags=["exercise"]
# ```{exercise} Temperature
# :label: ap-ex-temperature
#
# For logits $(2, 1, 0)$, compute the distribution at temperature 1, 0.5 and 2. What are the limits at 0 and at
# infinity?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ap-ex-temperature
# :class: dropdown
#
# At 1: 0.665, 0.245, 0.090. At 0.5: 0.867, 0.117, 0.016. At 2: 0.506, 0.307, 0.186. Toward 0 all weight goes to the
# largest, as in greedy search; toward infinity the distribution becomes uniform.
# ```

# %% tags=["hide-cell", "solution"]
logits, entropies = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64), []
for temperature, first in ((0.01, 1.0), (0.5, 0.867), (1, 0.665), (2, 0.506), (1000, 0.334)):
    p = (logits / temperature).softmax(dim=0)
    entropies.append(-(p * p.clamp(min=1e-300).log()).sum().item())
    assert abs(p[0].item() - first) < 6e-4
assert entropies == sorted(entropies)
assert entropies[0] < 1e-6 and math.isclose(entropies[-1], math.log(3), abs_tol=1e-5)

# %% [markdown] tags=["exercise"]
# ```{exercise} LoRA costs nothing in use
# :label: ap-ex-lora
#
# After training, how can you put LoRA's $A$ and $B$ away, so that the model is as fast as before, and what do you lose?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ap-ex-lora
# :class: dropdown
#
# $xW + xAB = x(W + AB)$: add $AB$ to $W$ once. What we lose: kept apart, one $W$ in memory can serve many tasks, each
# with a small $A$ and $B$ of its own.
# ```

# %% tags=["hide-cell", "solution"]
lora = tuned["LoRA, rank 2"][0].encoder.layers[0].self_attention.W_V
merged, x = lora.linear.weight.T + lora.A @ lora.B, torch.randn(5, 32)
assert_close(lora(x), x @ merged)
assert lora.B.abs().max() > 0.01
assert torch.equal(lora.linear.weight, pretrained.encoder.layers[0].self_attention.W_V.weight)

# %% [markdown] tags=["exercise"]
# ```{exercise} Fewer key heads
# :label: ap-ex-cache
#
# A model of LLaMA-7B's shape at 32,768 tokens: how large is its cache with 32 key heads, with 8, with 1? Which work
# stays the same?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ap-ex-cache
# :class: dropdown
#
# 16 GiB, 4 GiB, 0.5 GiB by equation {eq}`ap-cache`. With 32 query heads the operations for the scores stay: we save
# memory, and reading it at every step.
# ```

# %% tags=["hide-cell", "solution"]
assert [cache_bytes(32768, 32, heads, 128) / 2**30 for heads in (32, 8, 1)] == [16, 4, 0.5]
q, k, v = torch.randn(1, 32, 5, 128), torch.randn(1, 1, 5, 128), torch.randn(1, 1, 5, 128)
shared_heads = scaled_dot_product_attention(q, k, v)  # one key head for all 32 query heads, by broadcasting
assert_close(shared_heads, F.scaled_dot_product_attention(q, k.expand_as(q), v.expand_as(q)))

# %% [markdown] tags=["exercise"]
# ```{exercise} ALiBi's reach
# :label: ap-ex-alibi
#
# With equal scores and a long text, which weight has the present token in ALiBi's steepest head of eight ($s = 1/2$),
# and in its flattest ($s = 1/256$)? How far back does the weight fall to a hundredth of that?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# A geometric series with the ratio $e^{-s}$.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ap-ex-alibi
# :class: dropdown
#
# $1 - e^{-s}$: 0.3935 and 0.0039. The weight falls to a hundredth after $\ln(100) / s$ places: 9.2 and 1,179.
# ```

# %% tags=["hide-cell", "solution"]
for head, here, reach in ((1, 0.3935, 9.2), (8, 0.0039, 1178.9)):
    slope = 2.0**-head
    last = (slope * torch.arange(-5000, 1, dtype=torch.float64)).softmax(dim=0)
    assert math.isclose(last[-1], 1 - math.exp(-slope), rel_tol=1e-6) and abs(last[-1] - here) < 5e-5
    assert abs(math.log(100) / slope - reach) < 0.05
    assert_close(alibi_bias(50, head, h=8).softmax(dim=-1)[-1].double(), last[-50:] / last[-50:].sum())

# %% [markdown] tags=["exercise"]
# ```{exercise} The paper's own budget
# :label: ap-ex-6nd
#
# The base model: 65 million parameters, 100,000 steps of about 25,000 source and 25,000 target tokens. What does $6
# N_p D$ give with $D$ the tokens of one side, and why has the paper's Table 2 $3.3 \cdot 10^{18}$?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# The paper's number is time × GPUs × sustained rate ([chapter 6.1](6_1_results.ipynb)).
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ap-ex-6nd
# :class: dropdown
#
# It gives $9.8 \cdot 10^{17}$, less than a third of the paper's number, which counts how long the machines were held,
# while ours counts useful products. Between them lie the share of the rate that the program used, and what the rule
# leaves out: scores, softmax, padding. It is about 38 tokens per parameter.
# ```

# %% tags=["hide-cell", "solution"]
operations = 6 * 65e6 * 25_000 * 100_000
assert 3 < 3.3e18 / operations < 4 and f"{operations:.2e}" == "9.75e+17" and round(25_000 * 100_000 / 65e6) == 38

# %% [markdown] tags=["exercise"]
# ```{exercise} How many guesses survive?
# :label: ap-ex-speculative
#
# A small model guesses $g$ words, each accepted with probability $a$; the first refusal ends the round, and the large
# model always adds one word. How many words does a round yield on average, for $a = 0.8$, $g = 4$?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ap-ex-speculative
# :class: dropdown
#
# Word number $i + 1$ is reached with probability $a^i$, for $i = 0, \dots, g$. The sum is $(1 - a^{g+1}) / (1 - a)$,
# here 3.36 words per pass of the large model.
# ```

# %% tags=["hide-cell", "solution"]
expected = (1 - 0.8**5) / (1 - 0.8)
accepted = torch.rand(100_000, 4, generator=torch.Generator().manual_seed(0)) < 0.8
simulated = 1 + accepted.int().cumprod(dim=1).sum(dim=1).double().mean().item()
assert round(expected, 2) == 3.36 and abs(simulated - expected) < 0.03
