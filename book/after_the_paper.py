# %% [markdown]
# # After the paper
#
# *What became of the Transformer {cite}`vaswani2017attention`: three families of models, the parts that were exchanged,
# and what the paper's own plans came to.*
#
# Since 2017 thousands of models have been built from this paper's parts. Almost all of them are one of three
# arrangements of the same bricks, with a handful of bricks exchanged. When you have read this chapter you can
#
# - build an **encoder-only**, a **decoder-only** and an **encoder-decoder** model from the same layers, train each in
#   seconds, and say what each can and cannot do;
# - read the recipe of BERT, GPT, T5 or LLaMA as a list of differences from the paper;
# - write pre-norm, RMSNorm, gated units, rotary positions and ALiBi from their definitions;
# - compute what a long context costs, and say what restricted attention, FlashAttention and a mixture of experts save;
# - tell what is measured here from what is quoted.
#
# Three kinds of statement stand side by side here, and each is marked: what a cell **computes**, what is **quoted**
# from a cited work, and what is not known. The works were chosen because they show one change each; the list is not
# complete.

# %%
import itertools
import math
import random

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

# %%
from annotated_transformer import (
    ModelConfig, PositionwiseFeedForward, SharedEmbedding, Transformer, causal_mask, greedy_search,
    make_batch, positional_encoding, record_attention, scaled_dot_product_attention)
from annotated_transformer.config import BOS_ID, UNK_ID
from annotated_transformer.looking.visualization import HEAT_MAP, PALETTE, use_style
from annotated_transformer.model.embedding import NoPositions, SinusoidalPositions
from annotated_transformer.model.stacks import Encoder
from annotated_transformer.tables.cost import layer_operations
from annotated_transformer.text.batching import pad_source

use_style()
torch.set_printoptions(precision=4, sci_mode=False)

# %% [markdown]
# ## Three families from the same blocks
#
# **Question.** The paper has an encoder and a decoder. What is left if you keep only one of them?
#
# | family | layers | who may look where | trained to | known models |
# |---|---|---|---|---|
# | encoder-only | self-attention, feed-forward | every position at all positions | fill in hidden words | BERT {cite}`devlin2019bert` |
# | decoder-only | self-attention, feed-forward | every position at itself and what came before | predict the next word | GPT {cite}`radford2018improving` |
# | encoder-decoder | both stacks, and cross-attention between them | source: everywhere; target: before; target to source: everywhere | write the target, given the source | the paper, T5 {cite}`raffel2020exploring` |
#
# The first two have *the same layers*. A decoder without an encoder has no use for cross-attention, and what is left of
# the decoder layer is the encoder layer. Only the mask tells them apart.
#
# **Picture.** The three ways to look, for five tokens. A row is a query, a filled square is a key that it may see.

# %% mystnb={"image": {"alt": "Three grids, queries down and keys across. Encoder-only: a 5 by 5 grid, all filled. Decoder-only: a 5 by 5 grid, the lower triangle filled with the diagonal. Encoder-decoder, drawn over all 9 tokens: the 5 source rows see the 5 source columns; the 4 target rows see all 5 source columns, and of the 4 target columns the lower triangle."}, "figure": {"caption": "Who may look at whom. In the third grid the first five tokens are the source, the last four the target; the lower left block is cross-attention.", "name": "fig-ap-families"}}
both = torch.zeros(9, 9, dtype=torch.bool)
both[:5, :5] = both[5:, :5] = True
both[5:, 5:] = causal_mask(4)[0, 0]
pictures = {"encoder-only": torch.ones(5, 5).bool(), "decoder-only": causal_mask(5)[0, 0], "encoder-decoder": both}
figure, axes = plt.subplots(1, 3, figsize=(6.6, 2.5), layout="constrained")
for ax, (name, mask) in zip(axes, pictures.items()):
    ax.pcolormesh(mask.int(), cmap=HEAT_MAP, vmin=0, vmax=1, edgecolors="white", linewidth=0.8)
    ax.set(title=name, xlabel="key", ylabel="query", xticks=[], yticks=[], aspect="equal")
    ax.invert_yaxis()
plt.show()

# %% [markdown]
# **The text.** To see what the families can do we need a text of which we know everything. Ours has one kind of
# sentence, *the old horse eats hay near the river*. The adjective and the place are drawn at random. The animal is
# drawn too, but what it eats is fixed: who reads *hay* knows that there was a horse.

# %%
EATS = {"horse": "hay", "cat": "mice", "bee": "nectar", "bear": "honey", "panda": "bamboo", "monkey": "bananas",
        "squirrel": "nuts", "rabbit": "carrots"}
ADJECTIVES, PLACES = ["old", "young", "small", "hungry"], ["river", "road", "house", "lake"]
WORDS = ["[pad]", "[bos]", "[eos]", "[unk]", "[mask]", "the", "eats", "near",
         *ADJECTIVES, *EATS, *EATS.values(), *PLACES]
ID = {word: i for i, word in enumerate(WORDS)}

def text(n, seed):
    """n sentences as rows of ids, each with [bos] and [eos]."""
    draw, rows = random.Random(seed), []
    for _ in range(n):
        a, animal, p = draw.choice(ADJECTIVES), draw.choice(list(EATS)), draw.choice(PLACES)
        sentence = f"[bos] the {a} {animal} eats {EATS[animal]} near the {p} [eos]"
        rows.append([ID[word] for word in sentence.split()])
    return torch.tensor(rows)

# %%
def words(row):
    return " ".join(WORDS[i] for i in row)

train, test = text(2000, seed=0), text(1000, seed=1)
ADJECTIVE, ANIMAL, FOOD, PLACE = 2, 3, 5, 8  # the places in the row
print(words(test[0]))
print(len(WORDS), "words; rows of", train.size(1), "ids; different sentences:", len(train.unique(dim=0)))
assert all(EATS[WORDS[a]] == WORDS[f] for a, f in train[:, [ANIMAL, FOOD]].tolist())
assert len(train.unique(dim=0)) == 4 * 8 * 4

# %% [markdown]
# There are only 128 different sentences, and the training text has them all. So nothing about this text tests whether a
# model copes with new sentences. It tests what a model of each family can *see*.
#
# **The model.** One class for two families: an embedding, the sinusoids, the package's `Encoder`, and the shared
# embedding once more for the logits. `forward` takes the mask. (The annotation of `Encoder` speaks of padding masks;
# attention takes any mask that fits its scores, and all our rows are equally long.)

# %%
class OneStack(nn.Module):
    """Encoder-only without a mask; decoder-only with the causal one."""

    def __init__(self, config):
        super().__init__()
        self.embedding = SharedEmbedding(config.vocab_size, config.d_model)
        self.positions = SinusoidalPositions(config.d_model)
        self.encoder = Encoder(config)

    def vectors(self, tokens, mask=None):
        return self.encoder(self.embedding(tokens) + self.positions(tokens.size(1)), mask)

    def forward(self, tokens, mask=None):
        return self.embedding.logits(self.vectors(tokens, mask))

# %% [markdown]
# **The training** is the same for all three families too: Adam, a short warm-up, and a linear descent of the learning
# rate. `loss_of()` draws a batch and gives its loss; that is where the families differ.

# %%
def fit(model, loss_of, steps, peak_rate=0.01):
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = peak_rate * min(1, (step + 1) / 20) * (1 - step / steps)
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()
    return model.eval()

SMALL = ModelConfig(vocab_size=len(WORDS), N=2, d_model=32, d_ff=64, h=2, p_drop=0.0)

# %% [markdown]
# ## Encoder-only: fill in the hidden word
#
# **Question.** Without a decoder nothing is generated. What can one train an encoder on?
#
# BERT's answer {cite}`devlin2019bert` is a cloze test: hide some words, and predict them from the rest, on both sides.
# The loss counts at hidden places only. With $M$ the set of hidden places and $\tilde x$ the sentence with `[mask]`
# there,
#
# $$
# \text{loss} = -\frac{1}{|M|} \sum_{i \in M} \log p(x_i \mid \tilde x)
# $$ (ap-masked)
#
# BERT chooses 15% of the word pieces; of these it replaces 80% by `[MASK]`, 10% by a random piece, and leaves 10% as
# they are (quoted). We hide one word in each sentence.

# %%
def hide(rows, places):
    """The rows with [mask] at one place each."""
    hidden = rows.clone()
    hidden[torch.arange(len(rows)), places] = ID["[mask]"]
    return hidden

def masked_loss(model, mask=None, n=64):
    rows = train[torch.randint(len(train), (n,))]
    places, each = torch.randint(1, 9, (n,)), torch.arange(n)
    logits = model(hide(rows, places), mask)
    return F.cross_entropy(logits[each, places], rows[each, places])

# %% [markdown]
# We train it twice with the same loss, once with every position visible and once with the causal mask, and measure the
# share of hidden words that are found, in 1,000 fresh draws.

# %%
def share_found(model, place, mask=None):
    places = torch.full((len(test),), place)
    with torch.no_grad():
        guess = model(hide(test, places), mask)[:, place].argmax(dim=-1)
    return (guess == test[:, place]).float().mean().item()

def train_masked(mask, steps=150, config=SMALL):
    torch.manual_seed(0)
    model = OneStack(config)
    return fit(model, lambda: masked_loss(model, mask), steps)

# %% tags=["nbval-ignore-output", "row-S12"]
full, before = train_masked(None), train_masked(causal_mask(10))
places = {"adjective": ADJECTIVE, "animal": ANIMAL, "food": FOOD, "place": PLACE}
print("hidden word       " + "  ".join(f"{name:>9}" for name in places))
for name, model, mask in (("sees both sides", full, None), ("sees the left", before, causal_mask(10))):
    found = [share_found(model, place, mask) for place in places.values()]
    print(f"{name:16}  " + "  ".join(f"{share:9.2f}" for share in found))
assert share_found(full, ANIMAL) > 0.95 and share_found(full, FOOD) > 0.95
assert share_found(before, ANIMAL, causal_mask(10)) < 0.35 < 0.95 < share_found(before, FOOD, causal_mask(10))
assert share_found(full, ADJECTIVE) < 0.5 and share_found(full, PLACE) < 0.5

# %% [markdown]
# Read the columns. The **food** comes after the animal, and both models find it. The **animal** is decided by a word to
# its right: the bidirectional encoder finds it, the causal one is left with one guess in eight. The adjective and the
# place are drawn at random, nothing in the sentence tells them, and nobody does much better than one guess in four: a
# model cannot know what the text does not say.
#
# **Check.** The property itself, without training: in an encoder, the last word reaches the vector of the first; behind
# a causal mask it reaches none of those before it.

# %% tags=["row-S12"]
torch.manual_seed(0)
untrained = OneStack(SMALL)
other = test.clone()
other[:, PLACE] = (test[:, PLACE] - ID["river"] + 1) % 4 + ID["river"]  # another place in every sentence
assert (other != test).sum() == len(test)
with torch.no_grad():
    moved = (untrained.vectors(other) - untrained.vectors(test)).abs().amax(dim=(0, 2))
    moved_causal = (untrained.vectors(other, causal_mask(10)) - untrained.vectors(test, causal_mask(10))).abs()
assert (moved > 1e-3).all()
assert_close(moved_causal[:, :PLACE], torch.zeros_like(moved_causal[:, :PLACE]))

# %% [markdown]
# **What it can and cannot do.** Its vectors know both sides, so it is good at *judging* a text that is there:
# classifying it, tagging its words, finding an answer in it. It was not trained to write a next word. Equation
# {eq}`ap-masked` scores each hidden word by itself, and does not give the probability of a sentence as a product, as a
# language model does.
#
# **Where.** Code: `Encoder` in `annotated_transformer/model/stacks.py`, `SharedEmbedding` in
# `annotated_transformer/model/embedding.py`. Exercises: {ref}`ap-ex-shapes`, {ref}`ap-ex-two-holes`.

# %% [markdown]
# ## Decoder-only: write the next word
#
# **Question.** And if we keep the decoder?
#
# **Equation.** A **language model** gives every sentence a probability, one word after the other:
#
# $$
# p(x_1, \dots, x_n) = \prod_{t=1}^{n} p(x_t \mid x_1, \dots, x_{t-1})
# $$ (ap-language-model)
#
# The causal mask lets one pass through the stack compute all these factors at once, as in the paper's decoder. The loss
# is $-\log p$ for each word, shifted by one.

# %%
CAUSAL = causal_mask(train.size(1) - 1)

def next_word_loss(model, rows, mask=CAUSAL):
    """Nats a word."""
    return F.cross_entropy(model(rows[:, :-1], mask).flatten(0, 1), rows[:, 1:].flatten())

def train_language_model(mask=CAUSAL, steps=300, config=SMALL, seed=0):
    torch.manual_seed(seed)
    model = OneStack(config)
    return fit(model, lambda: next_word_loss(model, train[torch.randint(len(train), (64,))], mask), steps)

# %% [markdown]
# **Check.** We know the best loss there is. A sentence holds three free choices, of 4, 8 and 4 words; the other six of
# its nine predictions are certain. No model that sees only the past can be better on average than
#
# $$
# \frac{\ln 4 + \ln 8 + \ln 4}{9} = 0.539 \text{ nats a word}
# $$ (ap-floor)

# %% tags=["nbval-ignore-output", "row-S13"]
gpt = train_language_model()
floor = (math.log(4) + math.log(8) + math.log(4)) / 9
with torch.no_grad():
    reached = next_word_loss(gpt, test).item()
print(f"reached {reached:.3f} nats a word, the floor is {floor:.3f}")
assert floor - 0.01 < reached < 1.15 * floor

# %% [markdown]
# A loss *below* the floor would be a proof that the model sees what it should predict; {ref}`ap-ex-leak` makes one.
# Here is the property itself: what comes later does not change what was said.

# %% tags=["row-S13"]
with torch.no_grad():
    here, there = gpt(test[:, :-1], CAUSAL), gpt(other[:, :-1], CAUSAL)
assert_close(here[:, :PLACE], there[:, :PLACE])          # rows before the changed word: equal
assert not torch.allclose(here[:, PLACE], there[:, PLACE])  # from it on: not

# %% [markdown]
# **Sample from it.** Draw a word from $p(\cdot \mid \text{so far})$, append it, and ask again. A **prompt** is what you
# begin with. The **temperature** divides the logits before the softmax: below 1 the likely words win more often.

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

# %% tags=["nbval-ignore-output", "row-S13"]
for row in sample(gpt, n=4):
    print(words(row[1:]))
print("prompt 'the hungry bear' ->", words(sample(gpt, "the hungry bear")[0, 4:]))

drawn = sample(gpt, n=200)
known = {tuple(row) for row in train[:, :9].tolist()}
fits = [EATS.get(WORDS[row[ANIMAL]]) == WORDS[row[FOOD]] for row in drawn.tolist()]
print(f"{sum(fits) / 200:.0%} of 200 give the animal its food; "
      f"{sum(tuple(row) in known for row in drawn.tolist()) / 200:.0%} are among the 128 sentences")
assert sum(fits) / 200 > 0.8

# %% [markdown]
# **What it can and cannot do.** It generates, and many tasks can be written as a text to be continued, which is one
# reason why this family became the common one. The vector of a word knows only what stands to its left: the table above
# showed what that costs where the answer depends on the right. To use both sides one must put them both *before* the
# place of the answer: as a prompt.
#
# **Where.** Code: `Encoder` with `causal_mask`, both in the package. Exercises: {ref}`ap-ex-leak`,
# {ref}`ap-ex-temperature`, {ref}`ap-ex-positions`.

# %% [markdown]
# ## Encoder-decoder: rewrite what you read
#
# **Question.** If a decoder alone can do so much, why keep the encoder?
#
# When there is a clear *input* and *output*, the encoder may read the input from both sides, and the decoder writes.
# Here is a translation in small: *the black cat sees the green house*, *le chat noir voit la maison verte*. In French
# the adjective follows the noun, and the article and the adjective take the noun's gender. To write its first word, the
# decoder has to look at the third word of the source.

# %%
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

# %% [markdown]
# Six of the 48 pairs of colour and noun, one of each colour, are kept out of the training, so that the test asks for
# phrases which the model has never seen together.

# %%
draw = random.Random(0)
unseen = list(zip(COLOURS, NOUNS))
seen = [pair for pair in itertools.product(COLOURS, NOUNS) if pair not in unseen]
training = [sentence_pair(draw, seen) for _ in range(2000)]
testing = [sentence_pair(draw, unseen) for _ in range(100)]

vocabulary = ["[pad]", "[bos]", "[eos]", "[unk]",
              *sorted({word for pair in training + testing for side in pair for word in side.split()})]
number = {word: i for i, word in enumerate(vocabulary)}
coded = [[[number[word] for word in side.split()] for side in pair] for pair in training]
print(len(vocabulary), "words; for example:", *testing[0], sep="\n")

# %%
torch.manual_seed(0)
translator = Transformer(ModelConfig(vocab_size=len(vocabulary), N=1, d_model=32, d_ff=64, h=2, p_drop=0.0))

def translation_loss():
    batch = make_batch(draw.sample(coded, 32))
    logits = translator(batch.source, batch.target_in)
    return F.cross_entropy(logits.flatten(0, 1), batch.target_out.flatten())

translator = fit(translator, translation_loss, steps=400, peak_rate=0.005)

# %% tags=["nbval-ignore-output", "row-S14"]
sources = pad_source([[number[word] for word in english.split()] for english, _ in testing])
written = [" ".join(vocabulary[i] for i in ids) for ids in greedy_search(translator, sources)]
right = sum(ours == french for ours, (_, french) in zip(written, testing))
print(f"{right} of {len(testing)} sentences entirely right, every phrase in them unseen")
print(testing[0][0], "->", written[0])
assert right > 80

# %% [markdown]
# **Check.** The decoder knows the source through cross-attention alone: hand it another sentence's encoding, and its
# logits are those for the other sentence.

# %% tags=["row-S14"]
with torch.no_grad():
    target = torch.tensor([[BOS_ID, number["le"]]] * len(sources))
    swapped = sources.roll(1, dims=0)
    mask = translator.source_mask(sources)
    logits = translator.logits(translator.decode(target, translator.encode(swapped), mask))
    assert_close(logits, translator(swapped, target))
    assert not torch.allclose(logits, translator(sources, target), atol=0.1)

# %% [markdown]
# **Picture.** Where the decoder looked. Each row is the position that writes the word on the left.

# %% mystnb={"image": {"alt": "Heat map of cross-attention, mean of two heads: seven French words and the end mark down, seven English words and the end mark across. The bright squares do not lie on the diagonal: the articles look at the nouns two words on, and where noun and adjective change places, so do the squares."}, "figure": {"caption": "Cross-attention of the small translator, mean of its two heads, one unseen sentence. Measured here.", "name": "fig-ap-cross"}}
english, french = next(pair for pair in testing if len(set(pair[0].split())) == 6)  # "the" twice, no other
batch = make_batch([([number[w] for w in english.split()], [number[w] for w in french.split()])])
with record_attention(translator) as weights, torch.no_grad():
    translator(batch.source, batch.target_in)
looked = weights["decoder.layers.0.cross_attention"][0].mean(dim=0)
figure, ax = plt.subplots(figsize=(4.4, 3.2), layout="constrained")
image = ax.imshow(looked, vmin=0, vmax=1)
ax.set_xticks(range(8), labels=[*english.split(), "[eos]"], rotation=45)
ax.set_yticks(range(8), labels=[*french.split(), "[eos]"])
ax.set(xlabel="English word, seen", ylabel="French word, written next")
figure.colorbar(image, ax=ax, label="attention weight")
plt.show()

# %% [markdown]
# **What it can and cannot do.** It has both: a reading side that sees everything, and a writing side. It needs pairs,
# or a task that is turned into pairs, as T5 does with all of its tasks {cite}`raffel2020exploring`. And it has two
# stacks to feed where a decoder-only model has one: such a model translates too, with source and target in one row.
#
# **Where.** Code: `Transformer`, `greedy_search`. Exercises: {ref}`ap-ex-shapes`, {ref}`ap-ex-direction`.

# %% [markdown]
# ## Who kept what
#
# The three tables are **quoted**: they list what the cited papers (and, for MarianMT, the published models'
# configurations) say. "As the paper" means: as the Transformer of 2017. Sizes are the largest
# model reported, in parameters; GPT-1's is printed in the GPT-2 paper.
#
# **Encoder-only** (the activation is GELU in all of them)
#
# | model | norm | positions | trained to | changed besides | size |
# |---|---|---|---|---|---|
# | BERT {cite}`devlin2019bert` | post, as the paper | learned, 512 | fill in words; tell whether two sentences follow each other | segment embeddings | 340 M |
# | RoBERTa {cite}`liu2019roberta` | post | learned, 512 | fill in words only, masks drawn anew | more data, larger batches, byte-level BPE | 355 M |
# | ALBERT {cite}`lan2020albert` | post | learned, 512 | fill in words; tell the order of two sentences | **all layers share one set of weights**; a small embedding, then a projection | 235 M |
# | DistilBERT {cite}`sanh2019distilbert` | post | learned, 512 | imitate BERT's distributions (distillation) | half of BERT's layers | 66 M |
# | XLNet {cite}`yang2019xlnet` | post | **relative**, from Transformer-XL {cite}`dai2019transformer` | predict words in a random order of factorisation | two streams of attention | as BERT large |
# | Longformer {cite}`beltagy2020longformer` | post | learned, stretched to 4,096 | as RoBERTa, from its weights | **window and global attention** | as RoBERTa |
# | BigBird {cite}`zaheer2020big` | post | learned, 4,096 | as RoBERTa, from its weights | **window, global and random attention** | as RoBERTa |
# | ViT {cite}`dosovitskiy2021image` | **pre** | learned | name the picture | **tokens are patches of an image** | 632 M |
#
# **Decoder-only**
#
# | model | norm | positions | activation | changed besides | size |
# |---|---|---|---|---|---|
# | GPT-1 {cite}`radford2018improving` | post, as the paper | learned, 512 | GELU | no encoder, no cross-attention; pre-train, then fine-tune | 117 M |
# | GPT-2 {cite}`radford2019language` | **pre**, one more at the end | learned, 1,024 | GELU | byte-level BPE; tasks without fine-tuning | 1.5 B |
# | GPT-3 {cite}`brown2020language` | pre | learned, 2,048 | GELU | every second layer with banded sparse attention {cite}`child2019generating`; tasks from examples in the prompt | 175 B |
# | PaLM {cite}`chowdhery2023palm` | pre, without bias | **rotary** | SwiGLU | attention and feed-forward side by side; one key and value head | 540 B |
# | LLaMA {cite}`touvron2023llama` | pre, **RMSNorm** | rotary | SwiGLU | no biases in its published code | 65 B |
# | Flamingo {cite}`alayrac2022flamingo` | as its language model | as its language model | as its language model | a frozen language model; **cross-attention to images**, opened by a gate that starts at 0 | 80 B |
#
# **Encoder-decoder**
#
# | model | norm | positions | activation | trained to | changed besides | size |
# |---|---|---|---|---|---|---|
# | the paper, big | post | sinusoids | ReLU | translate | | 213 M |
# | MarianMT {cite}`junczys2018marian,tiedemann2020opus` | post | sinusoids | Swish | translate | a C++ program; published models of about the paper's base size | as the base model |
# | T5 {cite}`raffel2020exploring` | pre, only rescaled | **a learned number for each distance, added to the scores** | ReLU | restore spans of text that were cut out; every task is text to text | no biases | 11 B |
#
# What nobody on these lists changed: dot-product attention with several query heads, a feed-forward network at each
# position, residual connections, a norm. (Even the division by $\sqrt{d_k}$ has an exception: T5's published code puts
# it into the initial weights.) What most changed: where the norm stands, the positions, the activation, and the size.
#
# **Check.** Sizes like these follow from the shapes; here for five models, two of which (BERT base and LLaMA-7B) are
# smaller than the ones listed. In a stack without cross-attention, each layer has $4 d^2$
# weights in attention and $2\, d\, d_{\mathrm{ff}}$ in the feed-forward network ($3\, d\, d_{\mathrm{ff}}$ if it is
# gated).

# %%
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

# %% [markdown]
# ALBERT's sharing is one line of code: the same layer, applied $N$ times. [Chapter 3.1](3_1_stacks.ipynb) shows the
# same as a mistake, when it happens unseen; here it is meant.

# %%
one_layer = sum(p.numel() for p in Encoder(SMALL.replace(N=1)).parameters())
shared = Encoder(SMALL.replace(N=1))
shared.layers = nn.ModuleList([shared.layers[0]] * 12)
assert sum(p.numel() for p in shared.parameters()) == one_layer
assert sum(p.numel() for p in Encoder(SMALL.replace(N=12)).parameters()) == 12 * one_layer
print("12 layers:", 12 * one_layer, "parameters; 12 layers that share:", one_layer)

# %% [markdown]
# The work is not shared: twelve applications cost twelve layers' operations.
#
# **Picture.** When all this came, by the month of the first public version.

# %%
TIMELINE = {
    "encoder-only": {"BERT": 2018.8, "XLNet": 2019.45, "RoBERTa": 2019.55, "ALBERT, DistilBERT": 2019.75,
                     "Longformer": 2020.28, "BigBird": 2020.55},
    "decoder-only": {"GPT-1": 2018.45, "GPT-2": 2019.13, "GPT-3": 2020.4, "Chinchilla, PaLM": 2022.25,
                     "LLaMA": 2023.13},
    "encoder-decoder": {"the paper": 2017.45, "Marian": 2018.25, "T5": 2019.8},
    "images": {"Image Transformer": 2018.13, "ViT": 2020.8, "Flamingo": 2022.3},
    "parts": {"sparse experts": 2017.05, "relative positions": 2018.2, "RMSNorm": 2019.79, "pre-norm; SwiGLU": 2020.12,
              "rotary": 2021.3, "ALiBi": 2021.65},
    "speed and scale": {"parallel decoding": 2017.87, "one key head": 2019.87, "scaling laws": 2020.04,
                        "Switch": 2021.04, "FlashAttention": 2022.4, "speculative": 2022.9},
}

# %% mystnb={"image": {"alt": "Timeline from 2017 to 2023 with time running down, in six columns. Encoder-only: BERT 2018, XLNet, RoBERTa, ALBERT and DistilBERT 2019, Longformer and BigBird 2020. Decoder-only: GPT-1 2018, GPT-2 2019, GPT-3 2020, Chinchilla and PaLM 2022, LLaMA 2023. Encoder-decoder: the paper 2017, Marian 2018, T5 2019. Images: Image Transformer 2018, ViT 2020, Flamingo 2022. Parts: sparse experts 2017, relative positions 2018, RMSNorm 2019, pre-norm and SwiGLU 2020, rotary and ALiBi 2021. Speed and scale: parallel decoding 2017, one key head 2019, scaling laws 2020, Switch 2021, FlashAttention and speculative decoding 2022."}, "figure": {"caption": "Some of what followed, by month of first publication.", "name": "fig-ap-timeline"}}
figure, ax = plt.subplots(figsize=(7.2, 6.8), layout="constrained")
for column, events in enumerate(TIMELINE.values()):
    ax.axvline(column, color="0.85", zorder=0)
    for name, when in events.items():
        ax.plot(column, when, "o", color=PALETTE[column], markersize=3.5)
        ax.text(column + 0.06, when, name, va="center", fontsize=7)
ax.set_xticks(range(6), labels=list(TIMELINE), fontsize=8)
ax.set(xlim=(-0.2, 6.1), ylim=(2023.5, 2016.8), yticks=range(2017, 2024))
ax.xaxis.tick_top()
ax.tick_params(axis="x", length=0)
ax.spines["bottom"].set_visible(False)
plt.show()

# %% [markdown]
# ## The norm: in front, and lighter
#
# **Question.** Why did the norm move?
#
# [Chapter 3.1](3_1_stacks.ipynb) compares post-norm and pre-norm in full and trains both. The reason in brief: with
# pre-norm, $x + \mathrm{Sublayer}(\mathrm{LayerNorm}(x))$, the path from bottom to top is a plain sum.
# {cite:t}`xiong2020layer` show that at initialisation the gradients near the output of a post-norm stack are large,
# which is why it needs the warm-up, and that pre-norm trains without one. Post-norm has not lost everywhere:
# {cite:t}`liu2020understanding` find a six-layer translation model better with post-norm, and trouble with it in deeper
# ones.
#
# **Check.** Silence every sub-layer (set $W^O$ and $W_2$ to zero). A pre-norm stack passes its input on untouched; a
# post-norm stack still normalises it.

# %%
def silent_layers(norm):
    layers = Encoder(SMALL.replace(norm=norm)).layers
    for layer in layers:
        for matrix in (*layer.self_attention.W_O.parameters(), *layer.feed_forward.W_2.parameters()):
            nn.init.zeros_(matrix)
    return layers

x = 3 * torch.randn(1, 4, 32, generator=torch.Generator().manual_seed(0))
for norm, expected in (("pre", x), ("post", F.layer_norm(x, [32]))):
    y = x
    for layer in silent_layers(norm):
        y = layer(y, None)
    assert_close(y, expected, atol=1e-4, rtol=1e-4)

# %% [markdown]
# **RMSNorm** {cite}`zhang2019root` leaves out the subtraction of the mean and the bias. It divides by the root of the
# mean square and multiplies by a learned gain $g$:
#
# $$
# \mathrm{RMSNorm}(x)_i = g_i\, \frac{x_i}{\sqrt{\frac{1}{d} \sum_j x_j^2 + \epsilon}}
# $$ (ap-rms)
#
# **Code**, two lines; **check**, against PyTorch's, and against LayerNorm on a vector whose mean is zero, where the two
# must agree.

# %%
def rms_norm(x, gain, eps=1e-6):
    return gain * x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()

x, gain = torch.randn(2, 5, 32, dtype=torch.float64), torch.rand(32, dtype=torch.float64)
assert_close(rms_norm(x, gain), F.rms_norm(x, [32], gain, eps=1e-6))
centred = x - x.mean(dim=-1, keepdim=True)
assert_close(rms_norm(centred, gain), F.layer_norm(x, [32], gain, eps=1e-6))

# %% [markdown]
# ## Gated units
#
# **Question.** What do PaLM and LLaMA have in place of $\max(0, xW_1)W_2$?
#
# **Equation.** A **gated linear unit** {cite}`dauphin2017language` multiplies two projections entry by entry: one
# carries, the other opens and closes. With Swish (SiLU), $\mathrm{SiLU}(z) = z / (1 + e^{-z})$, on the gate it is
# called SwiGLU {cite}`shazeer2020glu`:
#
# $$
# \mathrm{FFN}_{\mathrm{SwiGLU}}(x) = \left(\mathrm{SiLU}(x W) \odot x V\right) W_2
# $$ (ap-swiglu)
#
# **Code**, two lines, and **check** by loops.

# %%
def swiglu(x, W, V, W_2):
    return (F.silu(x @ W) * (x @ V)) @ W_2

generator = torch.Generator().manual_seed(0)
W, V = (torch.randn(4, 6, generator=generator, dtype=torch.float64) for _ in range(2))
W_2, x = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((6, 4), (4,)))
hidden = []
for j in range(6):
    z = sum(x[i] * W[i, j] for i in range(4)).item()
    hidden.append(z / (1 + math.exp(-z)) * sum(x[i] * V[i, j] for i in range(4)).item())
by_hand = [sum(hidden[j] * W_2[j, i].item() for j in range(6)) for i in range(4)]
assert_close(swiglu(x, W, V, W_2), torch.tensor(by_hand, dtype=torch.float64))

# %% [markdown]
# There are three matrices where the paper has two. To pay the same, a gated network is made narrower:
# $3\, d\, d'_{\mathrm{ff}} = 2\, d\, d_{\mathrm{ff}}$ gives $d'_{\mathrm{ff}} = \tfrac{2}{3} d_{\mathrm{ff}}$. LLaMA-7B
# has $d = 4096$; two thirds of $4d$, rounded up to a multiple of 256, is the strange 11,008 in its configuration.

# %%
d = 4096
d_ff = math.ceil(2 / 3 * 4 * d / 256) * 256
print("d_ff of LLaMA-7B:", d_ff)
assert d_ff == 11008 and abs(3 * d * d_ff / (2 * d * 4 * d) - 1) < 0.01

# %% [markdown]
# Why gates help is not known. {cite:t}`shazeer2020glu` says so himself: he attributes their success "to divine
# benevolence".
#
# **Where.** Exercise: {ref}`ap-ex-pre-norm`. [Chapter 3.3](3_3_feed_forward.ipynb) has the other activations.

# %% [markdown]
# ## Positions: from where to how far
#
# **Question.** The sinusoids say *where* a token stands. What matters to attention is mostly *how far apart* two tokens
# are. Can the scores be told that directly?
#
# Three answers, in order of time.
#
# - **Relative positions** {cite}`shaw2018self`, by two authors of the paper and a colleague: a learned vector for each
#   distance $j - i$, added to the key, and another to the value. T5 keeps one learned *number* for each distance (far
#   ones grouped), added to the score {cite}`raffel2020exploring`.
# - **Rotary positions** (RoPE) {cite}`su2021roformer`: turn the queries and keys by an angle that grows with the
#   position.
# - **ALiBi** {cite}`press2022train`: subtract from the score an amount in proportion to the distance.
#
# **Rotary.** [Chapter 3.5](3_5_positional_encoding.ipynb) shows that a shift of the sinusoids is a rotation of each
# pair of columns. RoPE takes the rotation itself. With $R_m$ the matrix that turns column pair $i$ by the angle
# $m / 10000^{2i/d_k}$,
#
# $$
# (R_m q) \cdot (R_n k) = q^\top R_m^\top R_n\, k = q^\top R_{n-m}\, k
# $$ (ap-rotary)
#
# so the score depends on the difference $n - m$ only.

# %%
def rotate(x, start=0, base=10_000.0):
    """Turn each pair of columns of row m by (start + m) / base^(2i / d)."""
    n, d = x.shape
    position = start + torch.arange(n, dtype=x.dtype)[:, None]
    angle = position / base ** (torch.arange(0, d, 2, dtype=x.dtype) / d)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)

# %% [markdown]
# **Check.** Move the whole sentence a thousand places: the scores stay. Put the same query and key at every place: the
# score is the same along each diagonal. Lengths do not change. And the paper's own way, adding the sinusoids, does not
# have the first property.

# %%
generator = torch.Generator().manual_seed(0)
q, k = (torch.randn(7, 8, generator=generator, dtype=torch.float64) for _ in range(2))
assert_close(rotate(q, 1000) @ rotate(k, 1000).T, rotate(q) @ rotate(k).T)
assert_close(rotate(q).norm(dim=1), q.norm(dim=1))

same = rotate(q[:1].expand(7, 8)) @ rotate(k[:1].expand(7, 8)).T
assert_close(same[1:, 1:], same[:-1, :-1])  # one down and one to the right: equal

pe = positional_encoding(1007, 8).double()
assert not torch.allclose((q + pe[:7]) @ (k + pe[:7]).T, (q + pe[1000:]) @ (k + pe[1000:]).T)

# %% [markdown]
# **ALiBi** adds nothing to the embeddings. Head number $1, \dots, h$ (a power of two) has a fixed slope
# $s = 2^{-8\,\mathrm{head}/h}$, and a query at $i$ sees a key at $j \le i$ with the score
#
# $$
# \frac{q_i \cdot k_j}{\sqrt{d_k}} - s\,(i - j)
# $$ (ap-alibi)
#
# **Code and check.** With equal scores the weights fall by the factor $e^{-s}$ at each step back.

# %%
def alibi_bias(n, head, h):
    distance = torch.arange(n)[:, None] - torch.arange(n)
    return (-(2.0 ** (-8 * head / h)) * distance).masked_fill(distance < 0, -math.inf)

weights = alibi_bias(6, head=1, h=8).softmax(dim=-1)  # all q.k equal to 0
print(weights[-1])
assert_close(weights[-1, :-1] / weights[-1, 1:], torch.full((5,), math.exp(-0.5)))
assert [2.0 ** (-8 * head / 8) for head in (1, 2, 8)] == [1 / 2, 1 / 4, 1 / 256]

# %% [markdown]
# Both leave the *values* without any position, and both are applied in every layer. Whether a model then works on texts
# longer than it was trained on is a question for experiment: {cite:t}`press2022train` report that ALiBi does and that
# sinusoids do not; for rotary positions they find less than for ALiBi.
#
# **Where.** Exercise: {ref}`ap-ex-alibi`.

# %% [markdown]
# ## Long texts and what they cost
#
# **Question.** Contexts grew from 512 tokens to hundreds of thousands. What does that cost, and where?
#
# **The operations.** [Chapter 4](4_why_self_attention.ipynb) counts them: scores and weighted means take $4 n^2 d$, the
# projections $8 n d^2$, the feed-forward network with $d_{\mathrm{ff}} = 4d$ another $16 n d^2$. The two parts are
# equal at $4 n^2 d = 24 n d^2$, so at $n = 6d$. Up to there the quadratic term is the smaller one.

# %%
d = 512
print("       n   scores / rest   scores of one layer (h = 8, 2 bytes)")
for n in (512, 3072, 32768, 131072):
    scores, rest = layer_operations("self-attention", n, d), 24 * n * d * d
    print(f"{n:8,} {scores / rest:>13.2f} {8 * n * n * 2 // 2**20:>13,} MiB")
    assert math.isclose(scores / rest, n / (6 * d))

# %% [markdown]
# **The memory of a decoder.** Generation keeps the keys and values of all earlier tokens (the **KV cache**;
# [chapter 6.1](6_1_translation.ipynb) and `LayerCache` in the package). Each layer holds a key and a value of
# $h \cdot d_k$ numbers for each token:
#
# $$
# \text{bytes} = 2 \cdot N \cdot n \cdot h \cdot d_k \cdot \text{bytes a number}
# $$ (ap-cache)
#
# **Check.** Against the tensors that the package has filled after five steps.

# %%
def cache_bytes(n, N, h, d_k, size=2):
    return 2 * N * n * h * d_k * size

with torch.no_grad():
    state = translator.start(sources)
    for _ in range(5):
        translator.step(torch.full((len(sources), 1), BOS_ID), state)
kept = sum(t.numel() * t.element_size() for cache in state.caches for t in (cache.keys, cache.values))
assert kept == len(sources) * cache_bytes(5, N=1, h=2, d_k=16, size=4)

# %% [markdown]
# The paper's base model, and a model of LLaMA-7B's shape ($N = 32$, $h = 32$, $d_k = 128$), at two bytes a number:

# %%
for name, N, h, d_k in (("base", 6, 8, 64), ("LLaMA-7B", 32, 32, 128)):
    per_token = cache_bytes(1, N, h, d_k)
    print(f"{name:9} {per_token:>8,} bytes a token; GiB for",
          ", ".join(f"{n:,}: {cache_bytes(n, N, h, d_k) / 2**30:.3f}" for n in (2048, 32768)))
assert cache_bytes(2048, 32, 32, 128) == 2**30
assert 12 < 2 * counted["LLaMA-7B"] / cache_bytes(2048, 32, 32, 128) < 13

# %% [markdown]
# One gibibyte for each text of 2,048 tokens: thirteen such texts in a batch need more memory than the 6.7 billion
# weights in two bytes each. So the key and value heads were made fewer. **Multi-query** attention
# {cite}`shazeer2019fast`, by one of the paper's authors, lets all $h$ query heads share one key and value head;
# **grouped-query** attention {cite}`ainslie2023gqa` shares one among a few ({ref}`ap-ex-cache`).
#
# **Restricted attention.** Section 4 of the paper proposes to look at $r$ neighbours only. Longformer
# {cite}`beltagy2020longformer` does this with a window and a few **global** tokens that see, and are seen by, all.
# BigBird {cite}`zaheer2020big` adds a few random keys for each query. The number of pairs then grows in proportion to
# $n$, no longer to $n^2$.

# %%
def window(n, r):
    """Keys at most r // 2 places away."""
    return (torch.arange(n)[:, None] - torch.arange(n)).abs() <= r // 2

def with_global(mask, n_global):
    mask = mask.clone()
    mask[:n_global], mask[:, :n_global] = True, True
    return mask

def with_random(mask, n_random, seed=0):
    scores = torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed))
    return mask | (scores >= scores.topk(n_random, dim=1).values[:, -1:])

# %% mystnb={"image": {"alt": "Four 24 by 24 grids. Full: all filled. Window: a band along the diagonal. Longformer: the band, and the first two rows and columns filled. BigBird: the same with a few scattered squares in each row."}, "figure": {"caption": "Which query (down) may look at which key (across), for 24 tokens.", "name": "fig-ap-restricted"}}
def patterns(n):
    band = window(n, 5)
    return {"full": torch.ones(n, n).bool(), "window": band, "Longformer": with_global(band, 2),
            "BigBird": with_random(with_global(band, 2), 2)}

figure, axes = plt.subplots(1, 4, figsize=(7, 2), layout="constrained")
for ax, (name, mask) in zip(axes, patterns(24).items()):
    ax.imshow(mask, vmin=0, vmax=1)
    ax.set(title=name, xticks=[], yticks=[])
plt.show()

# %%
print("pairs        " + "".join(f"{name:>12}" for name in patterns(24)))
for n in (256, 512, 1024):
    print(f"n = {n:5,}    " + "".join(f"{int(mask.sum()):>12,}" for mask in patterns(n).values()))
small, large = patterns(512), patterns(1024)
assert large["full"].sum() == 4 * small["full"].sum()
assert all(1.9 < large[name].sum() / small[name].sum() < 2.1 for name in ("window", "Longformer", "BigBird"))

# %% [markdown]
# A mask alone saves nothing: the full matrix is still computed ([chapter 4](4_why_self_attention.ipynb) measures it).
# The saving needs code that computes the allowed pairs only.
#
# **FlashAttention** {cite}`dao2022flashattention` goes another way: all pairs, the exact result, but the $n \times n$
# matrix never stands in memory. The softmax seems to need a whole row at once, for its sum. It does not: go through the
# keys in blocks, keep for each query the largest score so far, the sum so far and the output so far, and when a larger
# score comes, shrink the old sum and output by the factor $e^{m_{\text{old}} - m_{\text{new}}}$
# {cite}`milakov2018online`.

# %%
def blockwise_attention(q, k, v, size):
    """Equation 1 with never more than `size` columns of scores."""
    top = torch.full((len(q), 1), -math.inf, dtype=q.dtype)
    total, output = torch.zeros_like(top), q.new_zeros(len(q), v.size(1))
    for keys, values in zip(k.split(size), v.split(size)):
        scores = q @ keys.T / math.sqrt(q.size(1))
        new_top = torch.maximum(top, scores.amax(dim=1, keepdim=True))
        shrink, weights = (top - new_top).exp(), (scores - new_top).exp()
        total = shrink * total + weights.sum(dim=1, keepdim=True)
        output, top = shrink * output + weights @ values, new_top
    return output / total

q, k, v = (torch.randn(50, 8, dtype=torch.float64) for _ in range(3))
for size in (1, 7, 50):
    assert_close(blockwise_attention(q, k, v, size), scaled_dot_product_attention(q, k, v))

# %% [markdown]
# The memory for scores falls from $n^2$ to $n \cdot \text{size}$ (in the real kernel, to small tiles in the GPU's fast
# memory); the operations stay. The gain in time comes from moving fewer numbers between slow and fast memory, so no
# count of operations shows it. `F.scaled_dot_product_attention`, which the package's `MultiHeadAttention` calls, picks
# such a kernel where it can.
#
# **Where.** Exercises: {ref}`ap-ex-cache`, {ref}`ap-ex-flash`.

# %% [markdown]
# ## A mixture of experts
#
# **Question.** Can a model have more parameters without more work for each token?
#
# **Equation.** Put $E$ feed-forward networks in the place of one, and a **router** $W_r$ that sends each token to the
# one with the largest probability (**top-1**, the Switch Transformer {cite}`fedus2022switch`):
#
# $$
# p = \mathrm{softmax}(x W_r), \qquad e = \arg\max_j p_j, \qquad y = p_e \, \mathrm{FFN}_e(x)
# $$ (ap-experts)
#
# The idea is older than the Transformer: the line "MoE" in the paper's Table 2 is such a model, with recurrent layers,
# and the first author of that work is one of the paper's own {cite}`shazeer2017outrageously`.

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

# %% [markdown]
# **Check.** Token by token, as the equation says; then parameters and operations, counted by PyTorch, for 1 and for 8
# experts.

# %%
torch.manual_seed(0)
x, dense, sparse = torch.randn(100, 32), TopOneExperts(32, 128, 1), TopOneExperts(32, 128, 8)
for token, output in zip(x, sparse(x)):
    p = (sparse.router.weight @ token).softmax(dim=0)
    assert_close(output, p.max() * sparse.experts[int(p.argmax())](token))

counts = {}
for name, model in (("1 expert", dense), ("8 experts", sparse)):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    counts[name] = sum(p.numel() for p in model.parameters()), counter.get_total_flops() // len(x)
    print(f"{name:9} {counts[name][0]:>7,} parameters {counts[name][1]:>7,} operations a token")
assert counts["8 experts"][0] > 7.9 * counts["1 expert"][0]
assert counts["8 experts"][1] < 1.05 * counts["1 expert"][1]

# %% [markdown]
# Eight times the parameters for nearly the same work: the router adds 3 percent. What the count does not show: all
# experts must be kept in memory, tokens must travel to the machine that holds their expert, and nothing yet keeps the
# router from sending all tokens to one expert; the cited works add a loss that asks for balance.
#
# **Where.** Exercise: {ref}`ap-ex-experts`.

# %% [markdown]
# ## Scaling laws
#
# **Question.** You have a budget of operations. How large should the model be, and how long should it train?
#
# **The arithmetic.** A weight takes part in one multiplication and one addition for each token on the way forward, and
# in twice as many on the way back. With $N_p$ parameters and $D$ tokens (and short contexts, so that attention's $n^2$
# term may be left out) training takes about
#
# $$
# C \approx 6\, N_p\, D \quad \text{operations}
# $$ (ap-6nd)
#
# **Quoted.** {cite:t}`kaplan2020scaling` trained many decoder-only models and found that the test loss falls as a
# power: $L(N_p) = (N_c / N_p)^{0.076}$ when data does not limit ($N_p$ without the embeddings),
# $L(D) = (D_c / D)^{0.095}$ when size does not. From this they advised to put most of a larger budget into a larger
# model.
# {cite:t}`hoffmann2022training` repeated the study, with a learning-rate schedule fitted to each length, and came to
# another result: size and data should grow in the same proportion. Their numbers amount to about 20 tokens for each
# parameter, and their model Chinchilla (70 billion parameters, 1.4 trillion tokens) did better than the four times
# larger Gopher (280 billion, 300 billion tokens).
#
# **Check.** What these quoted numbers imply.

# %%
quoted = {"GPT-3": (175e9, 300e9), "Gopher": (280e9, 300e9), "Chinchilla": (70e9, 1.4e12), "LLaMA-7B": (6.7e9, 1.0e12)}
print("            parameters      tokens   tokens/parameter   6 N D, computed")
for name, (n_parameters, tokens) in quoted.items():
    print(f"{name:10} {n_parameters:>11.2e} {tokens:>11.2e} {tokens / n_parameters:>14.1f} {6 * n_parameters * tokens:>22.2e}")
assert math.isclose(6 * 175e9 * 300e9, 3.14e23, rel_tol=0.01)  # GPT-3's paper prints 3.14e23
assert math.isclose(1.4e12 / 70e9, 20)
print(f"Kaplan's loss: x {2 ** -0.076:.3f} for twice the size, x {2 ** -0.095:.3f} for twice the data")

# %% [markdown]
# GPT-3 and Gopher had one or two tokens a parameter. LLaMA-7B was trained far beyond twenty: if a model will be *used*
# much, a smaller one that was trained for longer is the cheaper one {cite}`touvron2023llama`. These laws are curves
# fitted to losses. They do not say which abilities come with a loss, and the two studies disagree where their
# experiments differed.
#
# **In-context learning (quoted).** {cite:t}`brown2020language` put a few solved examples in front of a question, in the
# prompt, and let GPT-3 continue. No weight changes, and on many tasks the answers were better with examples than
# without, the more so the larger the model. *Why* this works is only partly known. One mechanism has been found in
# trained models: **induction heads**, pairs of heads which look for an earlier occurrence of the present token and copy
# what came after it {cite}`olsson2022context`.
#
# **Where.** Exercise: {ref}`ap-ex-6nd`.

# %% [markdown]
# ## What is known about reading attention
#
# The paper says (section 4) that heads "clearly learn to perform different tasks", and names as a side benefit that
# self-attention "could yield more interpretable models". Since then this has been studied;
# [the chapter on the attention pictures](7_attention_visualizations.ipynb) tells it with figures and experiments. In
# brief, quoted:
#
# - Some heads of trained models do follow syntax or position, or the next and the previous token
#   {cite}`clark2019what,voita2019analyzing`; and many heads can be removed after training with little loss
#   {cite}`michel2019sixteen`.
# - A large weight need not mean a large influence: {cite:t}`jain2019attention` find very different weights with the
#   same prediction; {cite:t}`wiegreffe2019attention` answer that this depends on what one asks of an explanation.
# - A weight multiplies a value vector, whose length counts too {cite}`kobayashi2020attention`, and after a few layers a
#   position no longer holds its own token alone {cite}`abnar2020quantifying,brunner2020identifiability`.

# %% [markdown]
# ## Limits
#
# - **The quadratic cost** of full attention, and a cache that grows with every token: computed above.
# - **Positions.** Models are weak beyond the lengths on which they were trained, more or less so with the encoding
#   ([chapter 3.5](3_5_positional_encoding.ipynb), {cite:t}`kazemnejad2023impact`).
# - **A fixed vocabulary.** The pieces are chosen once, before training. Rare words, numbers and other languages fall
#   into many pieces and so cost more; models on bytes avoid the vocabulary and pay with longer sequences
#   {cite}`xue2022byt5`.
# - **Hallucination.** Models write fluent text that is not true or does not follow from their source. This is described
#   for summaries {cite}`maynez2020faithfulness` and for translation {cite}`raunak2021curious`. The loss of equation
#   {eq}`ap-language-model` rewards what is likely to be written. Nothing in it asks whether it is so.
#
# **Check.** The last point in small. Our language model has never read of a dragon; the word is not in its vocabulary.
# Ask it what the dragon eats.

# %% tags=["nbval-ignore-output"]
with torch.no_grad():
    prompt = torch.tensor([[BOS_ID, ID["the"], ID["old"], UNK_ID, ID["eats"]]])
    p = gpt(prompt, causal_mask(5))[0, -1].softmax(dim=-1)
best = p.topk(3)
print("the old dragon eats ...", ", ".join(f"{WORDS[i]} {p_i:.2f}" for p_i, i in zip(best.values, best.indices)))
assert math.isclose(p.sum().item(), 1, rel_tol=1e-5) and (p > 0).all()

# %% [markdown]
# A softmax always answers. Its weights sum to 1 for every prompt, and there is no place in it for *I do not know*,
# unless the text has taught those words.

# %% [markdown]
# ## What came of the paper's own plans
#
# Section 7 names three: to extend the Transformer "to problems involving input and output modalities other than text",
# to study "local, restricted attention mechanisms" for large inputs, and "making generation less sequential".
#
# **Other modalities.** Images one pixel after the other, by several of the same authors {cite}`parmar2018image`. Images
# as a row of patches {cite}`dosovitskiy2021image`: a ViT cuts 224 by 224 pixels into squares of 16 by 16, multiplies
# each by a matrix, and has 196 tokens for the encoder. Speech, with the paper's encoder-decoder, pre-norm, and two
# convolutions in front {cite}`radford2023robust`. Images and text together {cite}`alayrac2022flamingo`. The patch
# embedding is a linear map, or, which is the same, a convolution whose stride is its width:

# %%
image = torch.randn(1, 3, 224, 224, dtype=torch.float64)
patches = F.unfold(image, kernel_size=16, stride=16).transpose(1, 2)
W = torch.randn(32, 3 * 16 * 16, dtype=torch.float64)
tokens = patches @ W.T
assert_close(tokens, F.conv2d(image, W.view(32, 3, 16, 16), stride=16).flatten(2).transpose(1, 2))
print("tokens:", tuple(tokens.shape))

# %% [markdown]
# **Restricted attention**: above. It is in use, often mixed with full layers, as in GPT-3. But a good part of the long
# contexts of today came from the other side: exact attention with less memory traffic, and fewer key heads.
#
# **Less sequential generation.** Two roads.
#
# - *Write all words at once.* **Non-autoregressive** translation {cite}`gu2018non` predicts the length and then all
#   target words in parallel. Each is drawn without knowing the others, and quality suffers: the words may belong to
#   different good translations. Repeated refinement of masked words wins back much of it {cite}`ghazvininejad2019mask`.
# - *Guess ahead and check.* A cheap guess of the next few words is checked by the large model in **one** parallel pass,
#   which the causal mask makes possible. Two of the paper's authors began it with
#   {cite:t}`stern2018blockwise`. **Speculative decoding** {cite}`leviathan2023fast` does it for sampling, without
#   changing the distribution at all.
#
# **Equation.** A small model draws a word $x$ from $q$; the large one has $p$. Accept $x$ with the probability
# $\min(1, p(x) / q(x))$. If it is refused, draw from what is missing:
#
# $$
# P(x) = \min(p(x), q(x)) + \left(1 - \sum_y \min(p(y), q(y))\right) \frac{\max(0,\, p(x) - q(x))}{\sum_y \max(0,\, p(y) - q(y))} = p(x)
# $$ (ap-speculative)
#
# **Check**, for a random pair of distributions.

# %%
generator = torch.Generator().manual_seed(0)
p, q = (torch.randn(20, generator=generator, dtype=torch.float64).softmax(dim=0) for _ in range(2))
accepted = q * (p / q).clamp(max=1)
missing = (p - q).clamp(min=0)
assert_close(accepted + (1 - accepted.sum()) * missing / missing.sum(), p)
print(f"accepted: {accepted.sum():.3f} of the guesses; the result is distributed as p exactly")

# %% [markdown]
# **Where.** Exercise: {ref}`ap-ex-speculative`.

# %% [markdown]
# ## Exercises
#
# Each has a hint and a solution, and both stay closed until you open them. Where the answer can be computed, a folded
# cell below the exercise computes it.
#
# ```{exercise} Predict the shape
# :label: ap-ex-shapes
#
# With $d_{\mathrm{model}} = 32$ and the vocabularies above: what is the shape of the logits (a) of `OneStack` for 200
# sentences of 10 words with one hidden word each; (b) of the language model in one training pass over them; (c) of
# `translator` for sources of 8 tokens and target inputs of 6? And the cross-attention weights in (c), two heads?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Every position of the stack that ends in the logits gives one row of them. In (b), what is left of 10 after the shift?
# ```
#
# ```{solution} ap-ex-shapes
# :class: dropdown
#
# (a) 200, 10, 32: one row for every place, hidden or not, and there happen to be 32 words. (b) 200, 9, 32. (c)
# sentences, 6, and the translator's own vocabulary; the source's length appears in the weights only: sentences,
# 2, 6, 8.
# ```

# %% tags=["hide-cell"]
with torch.no_grad(), record_attention(translator) as weights:
    assert full(hide(test[:200], torch.full((200,), 3))).shape == (200, 10, 32)
    assert gpt(test[:200, :-1], CAUSAL).shape == (200, 9, 32)
    target_in = torch.full((len(sources), 6), BOS_ID)
    assert translator(sources, target_in).shape == (len(sources), 6, len(vocabulary))
assert weights["decoder.layers.0.cross_attention"].shape == (len(sources), 2, 6, sources.size(1))
print("as predicted")

# %% [markdown]
# ```{exercise} Two holes
# :label: ap-ex-two-holes
#
# Hide the animal *and* the food. The encoder fills both at once. What are the best probabilities it can give to each?
# If you *draw* both from its two distributions, how often do they fit together? How could you do better with the same
# model?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Equation {eq}`ap-masked` treats the hidden words as independent. The last question: fill one hole first.
# ```
#
# ```{solution} ap-ex-two-holes
# :class: dropdown
#
# Nothing is left that tells the animal: 1/8 each, if the model is well calibrated. Drawn independently they fit in one
# of eight cases. Draw the animal, put it in, and ask again for the food: then it fits. This is the trouble of
# non-autoregressive translation, and the repeated refinement that helps it. (Our model was trained with one hole only,
# so with two its probabilities may be far from 1/8; the folded cell therefore draws the animal evenly from the eight to
# check the second way, and does the arithmetic of the first.)
# ```

# %% tags=["hide-cell", "nbval-ignore-output"]
holes = hide(hide(test[:200], torch.full((200,), ANIMAL)), torch.full((200,), FOOD))
animals = torch.tensor([ID[animal] for animal in EATS])
with torch.no_grad():
    holes[:, ANIMAL] = animals[torch.randint(8, (200,))]  # fill one hole ...
    food = full(holes)[:, FOOD].argmax(dim=-1)            # ... then ask for the other
fit_together = [EATS[WORDS[a]] == WORDS[f] for a, f in zip(holes[:, ANIMAL], food)]
print(f"one after the other: {sum(fit_together) / 200:.2f}; independently, at best: {8 * (1 / 8) ** 2:.3f}")
assert sum(fit_together) / 200 > 0.9

# %% [markdown]
# ```{exercise} Forget the causal mask
# :label: ap-ex-leak
#
# Train the language model without the mask, all else the same. What loss do you expect? Then sample from it. How would
# you have noticed on a text whose floor you do not know?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `train_language_model(mask=None)`. At position $t$ the target is word $t + 1$. Who may look at word $t + 1$ now?
# ```
#
# ```{solution} ap-ex-leak
# :class: dropdown
#
# The loss falls far below the floor of equation {eq}`ap-floor`: each position copies its target from its right
# neighbour. When you sample there is no right neighbour to copy from, so expect little of what it writes. On any text:
# change a later word and see whether earlier logits move, as the check above does. A loss that seems too good is a
# reason to do so.
# ```

# %% tags=["hide-cell", "nbval-ignore-output"]
leaking = train_language_model(mask=None)
with torch.no_grad():
    too_good = next_word_loss(leaking, test, mask=None).item()
    change = (leaking(other[:, :-1]) - leaking(test[:, :-1]))[:, :PLACE].abs().max().item()
print(f"loss {too_good:.3f}, floor {floor:.3f}; a later word moves earlier logits by up to {change:.1f}")
assert too_good < 0.5 * floor and change > 0.1

# %% [markdown]
# ```{exercise} Temperature
# :label: ap-ex-temperature
#
# For logits $(2, 1, 0)$, compute the distribution at temperature 1, 0.5 and 2, and its **entropy**
# $-\sum_i p_i \ln p_i$. What are the limits at 0 and at infinity?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `torch.softmax(logits / temperature, dim=0)`. At 0, look at ratios of probabilities.
# ```
#
# ```{solution} ap-ex-temperature
# :class: dropdown
#
# At 1: 0.665, 0.245, 0.090. At 0.5: 0.867, 0.117, 0.016. At 2: 0.506, 0.307, 0.186. The ratio of neighbours is
# $e^{1/\text{temperature}}$. Toward 0 all weight goes to the largest (greedy search, entropy 0), toward infinity the
# distribution becomes uniform (entropy $\ln 3$).
# ```

# %% tags=["hide-cell"]
logits, entropies = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64), []
for temperature in (0.01, 0.5, 1, 2, 1000):
    p = (logits / temperature).softmax(dim=0)
    entropies.append(-(p * p.clamp(min=1e-300).log()).sum().item())
    print(f"temperature {temperature:7.2f}:", *[f"{p_i:.3f}" for p_i in p], f" entropy {entropies[-1]:.3f}")
assert entropies == sorted(entropies)
assert entropies[0] < 1e-6 and math.isclose(entropies[-1], math.log(3), abs_tol=1e-5)

# %% [markdown]
# ```{exercise} Fewer key heads
# :label: ap-ex-cache
#
# A model of LLaMA-7B's shape at 32,768 tokens: how large is its cache with 32 key and value heads, with 8 (grouped),
# with 1 (multi-query)? By what factor does the number of weights in $W_K$ and $W_V$ shrink?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# In equation {eq}`ap-cache`, $h$ is the number of *key* heads.
# ```
#
# ```{solution} ap-ex-cache
# :class: dropdown
#
# 16 GiB, 4 GiB, 0.5 GiB. The two matrices shrink by the same factors, 4 and 32. The queries keep their 32 heads, so
# the number of operations for scores does not change: what is saved is memory, and reading it at every step.
# ```

# %% tags=["hide-cell"]
sizes = {heads: cache_bytes(32768, 32, heads, 128) / 2**30 for heads in (32, 8, 1)}
print(sizes)
assert sizes == {32: 16, 8: 4, 1: 0.5}
q, k, v = torch.randn(1, 32, 5, 128), torch.randn(1, 1, 5, 128), torch.randn(1, 1, 5, 128)
shared_heads = scaled_dot_product_attention(q, k, v)  # one key head for all 32 query heads, by broadcasting
assert_close(shared_heads, F.scaled_dot_product_attention(q, k.expand_as(q), v.expand_as(q)))

# %% [markdown]
# ```{exercise} Blocks that can be skipped
# :label: ap-ex-flash
#
# Give `blockwise_attention` a causal mask. Which blocks need not be computed at all? What goes wrong if the *first*
# block that a query meets is entirely hidden from it?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# If every score of a row is $-\infty$ so far, `new_top` is $-\infty$ too, and $-\infty - (-\infty)$ is not a number.
# ```
#
# ```{solution} ap-ex-flash
# :class: dropdown
#
# Blocks entirely above the diagonal, nearly half of them. With the keys taken from left to right, a causal query always
# sees key 0, so its first block is never empty and all is well. Going from right to left, most queries would meet
# hidden blocks first and get NaN.
# ```

# %% tags=["hide-cell"]
def causal_blockwise(q, k, v, size):
    output, place = torch.empty_like(v), torch.arange(len(k))
    for i, query in enumerate(q):
        visible = place[: i + 1]  # the blocks to the right are never touched
        output[i] = blockwise_attention(query[None], k[visible], v[visible], size)[0]
    return output

q, k, v = (torch.randn(20, 8, dtype=torch.float64) for _ in range(3))
assert_close(causal_blockwise(q, k, v, 6), scaled_dot_product_attention(q, k, v, causal_mask(20)[0, 0]))
hidden_first = torch.full((1, 1), -math.inf)
assert (hidden_first - hidden_first).isnan().all()
print("equal; and -inf - (-inf) is", (hidden_first - hidden_first).item())

# %% [markdown]
# ```{exercise} The paper's own budget
# :label: ap-ex-6nd
#
# The base model: 65 million parameters, 100,000 steps of about 25,000 source and 25,000 target tokens. What does
# equation {eq}`ap-6nd` give? (Each weight meets one of the two sides: take $D$ as the tokens of one side.) The paper's
# Table 2 has $3.3 \cdot 10^{18}$. Why do they differ? And how many tokens a parameter is it?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The paper's number is time, times GPUs, times the rate that a GPU can sustain ([chapter 6.1](6_1_results.ipynb)).
# ```
#
# ```{solution} ap-ex-6nd
# :class: dropdown
#
# About $9.8 \cdot 10^{17}$, less than a third of the paper's number. The paper's counts how long the machines were
# held, at a rate they could sustain; ours counts the useful products. What lies between is the share of the rate that
# the program used, and the work which equation {eq}`ap-6nd` leaves out: scores of attention, softmax, padding. (The
# embedding makes the count a little too large on the source side, where a look-up costs nothing.) It is about 38 tokens
# a parameter, the same sentences seen some 19 times ({ref}`data-ex-epochs`). The rule of 20 was found for language
# models and a single pass.
# ```

# %% tags=["hide-cell"]
operations = 6 * 65e6 * 25_000 * 100_000
print(f"{operations:.2e} operations; the paper prints 3.3e18; {25_000 * 100_000 / 65e6:.0f} tokens a parameter")
assert 3 < 3.3e18 / operations < 4

# %% [markdown]
# ```{exercise} ALiBi's reach
# :label: ap-ex-alibi
#
# With equal scores and a long text, what is the weight of the present token in ALiBi's steepest head of eight
# ($s = 1/2$) and in its flattest ($s = 1/256$)? How far back does the weight fall to one hundredth of that?
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
# $1 - e^{-s}$: 0.3935 and 0.0039. The weight falls to a hundredth after $\ln(100) / s$ places: 9.2 and 1,179. So the
# heads look at very different distances from the beginning, without having learned anything.
# ```

# %% tags=["hide-cell"]
for head, here in ((1, 0.3935), (8, 0.0039)):
    slope = 2.0 ** -head
    last = (slope * torch.arange(-5000, 1, dtype=torch.float64)).softmax(dim=0)
    print(f"slope 1/{2**head}: present token {last[-1]:.4f}, a hundredth after {math.log(100) / slope:,.1f} places")
    assert math.isclose(last[-1], 1 - math.exp(-slope), rel_tol=1e-6) and abs(last[-1] - here) < 5e-5
    assert_close(alibi_bias(50, head, h=8).softmax(dim=-1)[-1].double(), last[-50:] / last[-50:].sum())

# %% [markdown]
# ```{exercise} Two experts for each token
# :label: ap-ex-experts
#
# Send each token to its *two* best experts and add their outputs, weighted by the router's probabilities, made to sum
# to 1. Of 8 experts, how do the operations change against top-1? The parameters?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `p.topk(2)`; to test, compute *all* experts for every token and keep two.
# ```
#
# ```{solution} ap-ex-experts
# :class: dropdown
#
# Twice the operations (but for the router's), the same parameters.
# ```

# %% tags=["hide-cell"]
class TopTwoExperts(TopOneExperts):
    def forward(self, x):
        p, choice = self.router(x).softmax(dim=-1).topk(2)
        p, y = p / p.sum(dim=-1, keepdim=True), torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, rank = (choice == e).nonzero(as_tuple=True)
            y[token] += p[token, rank, None] * expert(x[token])
        return y

# %% tags=["hide-cell"]
torch.manual_seed(0)
x, two = torch.randn(100, 32), TopTwoExperts(32, 128, 8)
p = two.router(x).softmax(dim=-1)
p = p * (p >= p.topk(2).values[:, -1:])
everything = torch.stack([expert(x) for expert in two.experts], dim=1)
assert_close(two(x), ((p / p.sum(dim=-1, keepdim=True))[:, :, None] * everything).sum(dim=1))
with FlopCounterMode(display=False) as counter, torch.no_grad():
    two(x)
ratio = counter.get_total_flops() / 100 / counts["8 experts"][1]
print(f"{ratio:.2f} times the operations of top-1")
assert 1.9 < ratio <= 2

# %% [markdown]
# ```{exercise} How many guesses survive?
# :label: ap-ex-speculative
#
# Each guess of the small model is accepted with probability $a$, independently. It guesses $g$ words; the first refusal
# ends the round, and the large model adds one word of its own in any case. Show that a round yields
# $(1 - a^{g+1}) / (1 - a)$ words on average. What is that for $a = 0.8$, $g = 4$?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The word number $i + 1$ is reached if the first $i$ guesses were accepted.
# ```
#
# ```{solution} ap-ex-speculative
# :class: dropdown
#
# With probability $a^i$ there is a word number $i + 1$, for $i = 0, \dots, g$; the sum of these is the geometric
# series. For $a = 0.8$ and $g = 4$: 3.36 words for one pass of the large model.
# ```

# %% tags=["hide-cell"]
expected = (1 - 0.8**5) / (1 - 0.8)
accepted = torch.rand(100_000, 4, generator=torch.Generator().manual_seed(0)) < 0.8
simulated = 1 + accepted.int().cumprod(dim=1).sum(dim=1).double().mean().item()
print(f"by the formula {expected:.2f}, simulated {simulated:.2f}")
assert abs(simulated - expected) < 0.03

# %% [markdown]
# ```{exercise} The other direction
# :label: ap-ex-direction
#
# Translate from French to English with the same program. Is it easier or harder? Which words of the French are not
# needed? Predict, then train.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Exchange the two sides of `coded` and of `testing`. What do *le* and *la* become?
# ```
#
# ```{solution} ap-ex-direction
# :class: dropdown
#
# Both articles become *the*, and both forms of an adjective become one, so the gender need not be known: nothing has to
# agree. What remains is the exchange of noun and adjective. The folded cell trains it: like the first direction it gets
# most sentences right, so this test does not tell which is easier. Fewer steps might.
# ```

# %% tags=["hide-cell", "nbval-ignore-output"]
torch.manual_seed(0)
coded = [[french, english] for english, french in coded]  # translation_loss reads `coded` and `translator`
translator = Transformer(translator.config)
translator = fit(translator, translation_loss, steps=400, peak_rate=0.005)
sources = pad_source([[number[word] for word in french.split()] for _, french in testing])
written = [" ".join(vocabulary[i] for i in ids) for ids in greedy_search(translator, sources)]
right = sum(ours == english for ours, (english, _) in zip(written, testing))
print(f"{right} of {len(testing)} right\n{testing[0][1]} -> {written[0]}")
assert right > 80

# %% [markdown]
# ```{exercise} Change the model and measure: no positions
# :label: ap-ex-positions
#
# [Chapter 3.5](3_5_positional_encoding.ipynb) quotes that a causal language model can do without positions
# {cite}`haviv2022transformer`. Train ours without them. Does it still reach the floor? Would the encoder, on the masked
# words?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Replace `model.positions` by the package's `NoPositions()`. The causal mask lets a position count how much it sees.
# And in our text, how much must a model know about places at all?
# ```
#
# ```{solution} ap-ex-positions
# :class: dropdown
#
# The folded cell measures the causal model. It comes close to the floor in half the steps of the model with positions:
# the mask gives it an order, and in this text the last word mostly tells what must follow. The encoder takes some
# thought instead. To it a sentence without positions is a bag of words, and two hidden-word questions become one: with
# `[mask]` in the place of the first *the* or of the second, the bags are the same. Here the answer is the same as well,
# so this text cannot show the difference. A text with *the dog bites the man* could.
# ```

# %% tags=["hide-cell", "nbval-ignore-output"]
torch.manual_seed(0)
blind = OneStack(SMALL)
blind.positions = NoPositions()
fit(blind, lambda: next_word_loss(blind, train[torch.randint(len(train), (64,))]), steps=150)
with torch.no_grad():
    without = next_word_loss(blind, test).item()
print(f"without positions {without:.3f}, with {reached:.3f}, floor {floor:.3f}")
assert floor - 0.01 < without < 1.3 * floor

# %% [markdown]
# ```{exercise} Change the model and measure: the later recipe
# :label: ap-ex-pre-norm
#
# Train the language model with `norm="pre"` and `activation="gelu"`, as GPT-2 has it, and compare with post-norm and
# ReLU. Is the difference larger than between two seeds of the same model?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `SMALL.replace(...)`. Judge by the distance to the floor, and by few steps: at the floor all are equal.
# ```
#
# ```{solution} ap-ex-pre-norm
# :class: dropdown
#
# The folded cell prints the losses after 60 steps, with two seeds each. With two layers both recipes train, and a
# difference between them that is not well above the one between seeds is no finding; two seeds are few. What pre-norm
# buys shows in deep stacks ([chapter 3.1](3_1_stacks.ipynb)).
# ```

# %% tags=["hide-cell", "nbval-ignore-output"]
for name, config in (("post-norm, ReLU", SMALL), ("pre-norm, GELU", SMALL.replace(norm="pre", activation="gelu"))):
    losses = []
    for seed in (0, 1):
        model = train_language_model(steps=60, config=config, seed=seed)
        with torch.no_grad():
            losses.append(next_word_loss(model, test).item())
    print(f"{name:16}", *[f"{loss:.3f}" for loss in losses])
    assert floor - 0.01 < min(losses) and max(losses) < 3 * floor

# %% [markdown]
# ## What to remember
#
# - Three families, one set of blocks: all visible (encoder-only, fills in), the past visible (decoder-only, writes on),
#   both with cross-attention between them (encoder-decoder, rewrites). Encoder-only and decoder-only differ in the
#   mask.
# - The recipe moved in four places: the norm to the front and to RMSNorm; positions from the embedding into the scores;
#   ReLU to GELU and gated units; and the size. Attention stayed close to what equation 1 says.
# - A long context costs $n^2 d$ operations, which overtake the rest at $n = 6d$, and a cache of $2 N h d_k$ numbers a
#   token. Restricted attention saves pairs; FlashAttention saves memory and computes them all; fewer key heads save
#   cache.
# - A mixture of experts has more parameters for the same operations; $6 N_p D$ is what training costs; about 20 tokens
#   a parameter is what Hoffmann and others found best for a fixed budget.
# - A loss below the floor that the text sets is a leak, and a softmax always answers, whether the model knows or not.
# - Of the paper's three plans, other modalities came in full; restricted attention is one of several ways to long
#   inputs; and less sequential generation came best as guessing ahead and checking.
