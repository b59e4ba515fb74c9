# %% [markdown]
# # 3.4 Embeddings and softmax
#
# *Section 3.4 of the paper {cite}`vaswani2017attention`: how tokens become vectors, and how vectors become
# probabilities of tokens.*
#
# A Transformer computes with vectors, and a text is made of tokens. At both ends of the model we therefore need a
# matrix with one row per token of the vocabulary: at the entrance it turns an id into a vector, and at the exit a
# vector into a score for every id. The paper gives this section five lines. In them it uses *one* matrix for all of
# this, and a factor $\sqrt{d_{\mathrm{model}}}$ that it leaves unexplained.
#
# In this chapter we find the three places of that matrix, look at what its rows have learned, add up its three
# gradients, measure when sharing it pays, and work out what the factor does. Then we turn logits into probabilities,
# losses and perplexities, and see which perplexities may be compared. [Notation](notation.md) has the letters for shapes.

# %% tags=["remove-cell"]
import math
from itertools import count, islice

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close

# %% tags=["hide-cell"]
from annotated_transformer import (ModelConfig, Tokenizer, TrainConfig, Transformer, corpus, label_smoothed_cross_entropy,
                                   make_adam, noam_learning_rate, positional_encoding, token_batches)
from lab import listing
from lab.display import PALETTE, show, use_style
from lab.exercises import check
from lab.same import equal, listing_of
from annotated_transformer.model.embedding import LearnedPositions
from annotated_transformer.decoding.evaluation import mean_nll

use_style()
torch.set_printoptions(precision=4, sci_mode=False)

def parameters(module):
    return sum(weight.numel() for weight in module.parameters())

# %% [markdown]
# ## One matrix in three places
#
# An id is a name rather than a quantity: token 12 is in no sense twice token 6. So the model keeps a table with one
# learned vector per token, its **embedding**. The table is a matrix $E$ with $V$ rows and $d_{\mathrm{model}}$ columns.
# We need such a table for the source and another one for the target. At the exit, we compare the decoder's output $x$
# with every token of the vocabulary, and that takes $V$ vectors of the same size once more. The paper's solution is to
# "share the same weight matrix between the two embedding layers and the pre-softmax linear transformation". It
# multiplies the embeddings by $\sqrt{d_{\mathrm{model}}}$, and leaves the exit as it is:
#
# $$
# \mathrm{embed}(t) = \sqrt{d_{\mathrm{model}}}\; E_t
# \qquad
# \mathrm{logits}(x) = x\, E^\top
# \qquad
# E \in \mathbb{R}^{V \times d_{\mathrm{model}}}
# $$ (emb-shared)
#
# $E_t$ is row $t$. The **logits** are the dot products of $x$ with every row, so a token's logit says how well its
# vector agrees with $x$. Using one matrix in several places is called **tying** the weights.

# %% tags=["hide-cell"]
def box(ax, x, y, label, color="#f0f0f0", width=2.5, height=0.5):
    ax.add_patch(plt.Rectangle((x - width / 2, y - height / 2), width, height,
                               facecolor=color, edgecolor="black", linewidth=0.8))
    ax.text(x, y, label, ha="center", va="center", fontsize=10)

def arrow(ax, start, end, bend="arc3", **style):
    ax.annotate("", end, start, arrowprops={
        "arrowstyle": "-|>", "linewidth": 1.4, "connectionstyle": bend, "shrinkA": 0, "shrinkB": 0, **style})

# %% tags=["hide-cell"]
def columns(ax, tied="#cfe5f3"):
    """The boxes and the solid arrows of the drawing."""
    for x, side, stack in ((1.3, "source", "encoder"), (6.3, "target", "decoder")):
        for y, label in ((0, f"{side} ids"), (1, f"{side} embedding"), (2.1, f"+ positions, {stack}")):
            box(ax, x, y, label, tied if y == 1 else "#f0f0f0")
        arrow(ax, (x, 0.25), (x, 0.75), color="black")
        arrow(ax, (x, 1.25), (x, 1.85), color="black")
    box(ax, 6.3, 3.1, "linear, $x\\,E^\\top$", tied)
    box(ax, 6.3, 4, "softmax")
    for start, end in (((6.3, 2.35), (6.3, 2.85)), ((6.3, 3.35), (6.3, 3.75)), ((2.55, 2.1), (5.05, 2.1))):
        arrow(ax, start, end, color="black")
    ax.text(2.65, 2.15, "memory", fontsize=9, va="bottom")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Drawing of the model with one matrix E at the bottom centre. An arrow leads from E to the source embedding below the encoder, one to the target embedding below the decoder, both labelled times the square root of d_model, and one to the linear layer above the decoder, labelled E transposed, no factor. Encoder and decoder are boxes; positions are added above both embeddings, and a softmax follows the linear layer."}, "figure": {"caption": "The matrix $E$ in its three places. Dashed arrows carry its values, solid arrows the data.", "name": "fig-emb-places"}}
figure, ax = plt.subplots(figsize=(6.8, 4), layout="constrained")
columns(ax)
box(ax, 3.8, 1, "$E$", "#cbeade", width=0.7, height=0.9)
dashed = {"color": PALETTE[2], "linestyle": "--"}
for x, end, place in ((3.45, 2.55, 3.0), (4.15, 5.05, 4.6)):
    arrow(ax, (x, 1), (end, 1), **dashed)
    ax.text(place, 1.08, "$\\times\\sqrt{d_{\\mathrm{model}}}$", ha="center", fontsize=9, va="bottom")
arrow(ax, (3.8, 1.45), (5.05, 3.1), "angle,angleA=90,angleB=0,rad=6", **dashed)
ax.text(3.7, 3.1, "no factor", ha="right", va="center", fontsize=9)
ax.set(xlim=(-0.1, 7.7), ylim=(-0.35, 4.35))
ax.axis("off")
plt.show()

# %% [markdown]
# In the program of [chapter 0](0_one_hour.ipynb) $E$ is one parameter, read in `embed` and in the last line of `forward`:

# %%
show(listing.Transformer.embed)

# %% [markdown]
# `self.E[tokens]` picks the rows, and `* d ** 0.5` is the factor; the three lines above are the positions
# ([3.5](3_5_positional_encoding.ipynb)), which are added before dropout ([5.4](5_4_regularization.ipynb)). At the exit
# stands `x @ self.E.T`. The paper speaks of a "linear transformation" and leaves open whether it has a bias; ours has none,
# since a bias would serve only one of the three places. The package has $E$ in a module of its own,
# [`SharedEmbedding`](https://github.com/annotated-transformer/annotated-transformer/blob/main/annotated_transformer/model/embedding.py):

# %%
from annotated_transformer import SharedEmbedding

torch.manual_seed(0)
tokens = torch.tensor([[3, 5, 3, 9]])
tiny = ModelConfig(vocab_size=11, N=1, d_model=6, d_ff=8, h=1)
theirs = Transformer(tiny).eval()
print(equal(listing_of(theirs).embed(tokens), theirs.embed(tokens)))

# %% [markdown]
# (emb-learned)=
# ### What the rows have learned
#
# What does the $E$ of a trained model know? We take the book's model, and for some words print the pieces whose rows point
# most nearly in the same direction. Since all rows share a common direction, we take the mean row off first. (The nearest
# of as many random rows is farther than any word's first neighbour here: folded.)

# %%
from annotated_transformer import load_model

trained, tokenizer = load_model("model")
rows = trained.embedding.weight.detach()
directions = F.normalize(rows - rows.mean(dim=0), dim=1)
pieces = tokenizer.pieces(range(trained.config.vocab_size))

def nearest(word, n=5):
    row = pieces.index("▁" + word)
    found = (directions @ directions[row]).topk(n + 1)
    return [f"{pieces[i].strip('▁')} {c:.2f}"
            for c, i in zip(found.values, found.indices)][1:]

for word in ("house", "good", "sister", "three", "Haus", "ist", "Auto", "car"):
    print(f"{word:8}", ", ".join(nearest(word)))

# %% tags=["hide-cell"]
torch.manual_seed(0)
drawn = F.normalize(torch.randn(rows.shape), dim=1)
by_chance = [(drawn @ drawn[i]).topk(2).values[1].item() for i in range(0, len(rows), 50)]
print(f"nearest of {len(rows):,} random directions: {sum(by_chance) / len(by_chance):.2f}, at most {max(by_chance):.2f}")
assert max(by_chance) < 0.35
asked = ("house", "good", "sister", "three", "Haus", "ist", "Auto", "car")
closest = [(directions @ directions[pieces.index("▁" + word)]).topk(2).values[1] for word in asked]
assert min(closest) > max(by_chance)

# %% [markdown]
# Words that can stand in the same place have come close: rooms and buildings, relatives, numbers, forms of a verb. Nobody
# gave the model these classes. (Rare pieces have noisy neighbours.) *Haus* is near *house*, and *drei* near *three*. Is
# that the rule? We compare 40 words with their translations, and with the translations of the other 39:

# %% tags=["hide-cell"]
dictionary = """house Haus, dog Hund, water Wasser, red rot, good gut, book Buch, car Auto, mother Mutter, father Vater,
sister Schwester, brother Bruder, friend Freund, school Schule, money Geld, night Nacht, two zwei, three drei,
Monday Montag, years Jahre, man Mann, woman Frau, world Welt, time Zeit, city Stadt, work Arbeit, bread Brot, train Zug,
tea Tee, and und, not nicht, always immer, never nie, today heute, tomorrow morgen, because weil, here hier, very sehr,
my mein, old alt, new neu"""
known = [words for words in (pair.split() for pair in dictionary.split(",")) if {"▁" + word for word in words} <= {*pieces}]
english, german = (directions[[pieces.index("▁" + word) for word in side]] for side in zip(*known))

# %%
cosines = english @ german.T
itself = cosines.diagonal()
others = cosines[~torch.eye(len(cosines), dtype=torch.bool)]
ranks = (directions @ english.T > itself).sum(dim=0) - 1
print(f"{len(known)} pairs: cosine {itself.mean():.2f} with the translation, "
      f"{others.mean():.2f} with the others")
print("pieces that are nearer than the translation: "
      f"{ranks.median():,} of {len(rows):,}, in the median")

# %% tags=["remove-cell"]
assert len(known) > 25 and others.mean() < 0.1 < 0.2 < itself.mean() and ranks.median() < 20

# %% [markdown]
# It is: of nearly 5,000 rows the translation's is among the nearest. This model translates both ways, so each row is
# read and written, beside words of both languages, in sentences that mean the same. The book's model before it, English
# to German only, had a cosine of 0.07 and 942 pieces in between: there a row had to fit the places of *its own* language
# alone.

# %% tags=["hide-cell"]
torch.manual_seed(0)
V, d_model = 11, 6
embedding = SharedEmbedding(V, d_model)
E = embedding.weight
tokens = torch.tensor([[3, 5, 3], [1, 0, 10]])
one_hot = torch.eye(V)[tokens]  # B L V: a one-hot row times E picks a row of E
assert_close(embedding(tokens), one_hot @ E * math.sqrt(d_model))
x = torch.randn(2, 3, d_model)
dot_products = torch.stack([(x * row).sum(dim=-1) for row in E], dim=-1)
assert_close(embedding.logits(x), dot_products)
print("Looking a row up is a linear layer on one-hot vectors; a logit is a dot product with a row")

# %% tags=["hide-cell"]
class WatchVocabulary(TorchFunctionMode):
    """Notes each use of a weight with `vocab_size` rows, and where its numbers are stored."""

    def __init__(self, vocab_size):
        super().__init__()
        self.vocab_size, self.uses = vocab_size, []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (F.embedding, F.linear) and args[1].size(0) == self.vocab_size:
            self.uses.append((function.__name__, args[1].data_ptr()))
        return function(*args, **(kwargs or {}))

# %% tags=["hide-cell", "row-E10", "row-S5"]
torch.manual_seed(0)
config = ModelConfig(vocab_size=23, N=1, d_model=16, d_ff=32, h=2, p_drop=0.0)
model = Transformer(config).double()
source, target_in = torch.tensor([[4, 5, 6, 7, 2]]), torch.tensor([[1, 8, 9, 5]])
with WatchVocabulary(23) as watch:
    logits = model(source, target_in)
functions, addresses = zip(*watch.uses)
assert functions == ("embedding", "embedding", "linear")
assert set(addresses) == {model.embedding.weight.data_ptr()}
with_23_rows = [name for name, w in model.named_parameters() if w.size(0) == 23]
assert with_23_rows == ["embedding.weight"]
assert_close(logits.softmax(dim=-1).sum(dim=-1), torch.ones(1, 4).double())
print("three uses, one address, one parameter:", *functions)

# %% tags=["hide-cell", "row-S4"]
torch.manual_seed(0)
dropping = Transformer(config.replace(p_drop=0.5)).double()
plain = dropping.embedding(source) + positional_encoding(5, 16)
embedded = dropping.embed(source)
kept = embedded != 0
assert_close(embedded[kept], 2 * plain[kept])  # dropped, or doubled
assert 0.3 < kept.double().mean() < 0.7
assert_close(dropping.eval().embed(source), plain)
print("embedding plus position, then dropout on the sum")

# %% [markdown]
# ### The gradient is the sum of three
#
# One matrix gets gradients from three places. How do they combine? We write the loss as a function of three matrices,
# which happen to be equal, and the chain rule adds them up:
#
# $$
# \frac{\mathrm{d}}{\mathrm{d}E} \mathcal{L}(E, E, E)
# = \frac{\partial \mathcal{L}}{\partial E_{\text{source}}}
# + \frac{\partial \mathcal{L}}{\partial E_{\text{target}}}
# + \frac{\partial \mathcal{L}}{\partial E_{\text{softmax}}}
# $$ (emb-gradient)
#
# To see the three apart, we untie them: the same model with a matrix for each place.

# %%
class ThreeMatrices(Transformer):  # for source, target and softmax
    def __init__(self, config, source_vocab_size=None):
        super().__init__(config)
        V, d_model = config.vocab_size, config.d_model
        self.source_embedding = SharedEmbedding(source_vocab_size or V, d_model)
        self.output = SharedEmbedding(V, d_model)

    def encode(self, source, mask=None):
        x = self.source_embedding(source) + self.positions(source.size(1))
        mask = self.source_mask(source) if mask is None else mask
        return self.encoder(self.dropout(x), mask)

    def logits(self, x):
        return self.output.logits(x)
print([n for n, w in ThreeMatrices(config).named_parameters() if len(w) == 23])

# %% [markdown]
# Both models get the same weights and one sentence pair, *die Katze schläft* to *the cat sleeps*, from a
# vocabulary of 16 tokens. The folded cell checks equation {eq}`emb-gradient`, and the picture shows each token's share
# in it.

# %% tags=["hide-cell", "row-E10"]
words = ["<pad>", "<s>", "</s>", "the", "cat", "dog", "sleeps", "now", "eats", "die", "der", "Katze", "Hund",
         "schläft", "jetzt", "frisst"]
torch.manual_seed(0)
tied = Transformer(config.replace(vocab_size=16)).double()
untied = ThreeMatrices(tied.config).double()
untied.load_state_dict(tied.state_dict(), strict=False)
untied.source_embedding.weight.data.copy_(tied.embedding.weight.data)
untied.output.weight.data.copy_(tied.embedding.weight.data)
pair = [torch.tensor([[words.index(word) for word in text.split()]]) for text in (
    "die Katze schläft </s>", "<s> the cat sleeps", "the cat sleeps </s>")]
for network in (tied, untied):
    label_smoothed_cross_entropy(network(*pair[:2]), pair[2], eps_ls=0.0)[0].backward()
apart = {"source": untied.source_embedding.weight.grad,
         "target": untied.embedding.weight.grad, "softmax": untied.output.weight.grad}
assert_close(sum(apart.values()), tied.embedding.weight.grad)

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three rows of bars over the 16 tokens of the vocabulary, with a common scale. Source: bars at die, Katze, schläft and the end mark only. Target: bars at the start mark, the, cat and sleeps only. Softmax: a bar at every token, the tallest at the four right answers the, cat, sleeps and the end mark, and smaller ones at the other tokens, the smallest at dog and Katze."}, "figure": {"caption": "Length of the gradient that each token's row of $E$ gets from each of its places, for one sentence pair.", "name": "fig-emb-gradients"}}
figure, axes = plt.subplots(3, 1, figsize=(6.4, 3.6), sharex=True, sharey=True, layout="constrained")
for ax, (place, gradient), color in zip(axes, apart.items(), PALETTE):
    lengths = gradient.norm(dim=1)
    ax.bar(range(16), lengths, color=color)
    ax.set_title(place, loc="left", fontsize=10)
figure.supylabel("length of the gradient", fontsize=9)
axes[2].set_xticks(range(16), words, rotation=60, ha="right", rotation_mode="anchor")
plt.show()
used = [{words[i] for i in gradient.norm(dim=1).nonzero().flatten()} for gradient in apart.values()]
assert used == [{"die", "Katze", "schläft", "</s>"}, {"<s>", "the", "cat", "sleeps"}, set(words)]

# %% [markdown]
# An embedding gets a gradient only in the rows of the tokens that occur. The softmax reaches *every* row: it moves the
# right token's towards $x$ and all others away from it. So with tying, a rare token's vector moves in every step, most
# often because it was the wrong answer. Code that ties by copying the numbers is tied until the first update only; the
# parameter itself has to be shared.

# %% tags=["hide-cell"]
torch.manual_seed(0)
copied = ThreeMatrices(tied.config)
copied.output.weight.data.copy_(copied.embedding.weight.data)  # equal, for now
loss, _ = label_smoothed_cross_entropy(copied(*pair[:2]), pair[2])
loss.backward()
torch.optim.Adam(copied.parameters(), lr=0.01).step()
apart_by = (copied.output.weight - copied.embedding.weight).abs().max().item()
print(f"after one step of rate 0.01 the copies differ by up to {apart_by:.3f}")
assert apart_by > 0.009

# %% [markdown]
# ## When sharing the matrix pays
#
# Each matrix has $V d_{\mathrm{model}}$ weights. With one vocabulary, and with two of sizes $V_s$ and $V_t$, we have
#
# $$
# \underbrace{V d}_{\text{tied three ways}}
# \qquad
# \underbrace{3 V d}_{\text{untied}}
# \qquad
# \underbrace{(V_s + V_t)\, d}_{\text{two vocabularies, target tied}}
# \qquad d = d_{\mathrm{model}}
# $$ (emb-saved)

# %%
base = ModelConfig.base(vocab_size=37_000)
with torch.device("meta"):  # shapes without numbers
    sizes = {"one matrix": 37_000 * 512,
             "tied model": parameters(Transformer(base)),
             "untied model": parameters(ThreeMatrices(base))}
for name, size in sizes.items():
    print(f"{name:12} {size:>11,}")

# %% tags=["remove-cell"]
assert sizes["untied model"] - sizes["tied model"] == 2 * sizes["one matrix"] == 37_888_000
assert round(sizes["one matrix"] / sizes["tied model"], 2) == 0.30
assert (round(sizes["tied model"] / 1e6), round(sizes["untied model"] / 1e6)) == (63, 101)
assert round(2 * 37_000 * 1024 / 1e6, 1) == 75.8  # what tying saves in the big model
assert round(25_000 * 37_000 * 4 / 1e9, 1) == 3.7  # GB of float32 logits for 25,000 target tokens

# %% [markdown]
# One matrix is 30 percent of the base model. Without tying there would be 101 million weights instead of 63.
#
# Fewer weights should help where data are few. Let us test that on real sentences: 500 pairs of the default corpus to
# train on, 200 others to judge by, 1,000 pieces of vocabulary, and a small model, tied and untied, with three seeds
# each. Our measure is the loss per token on the held-out pairs, at its lowest and at the end.

# %% tags=["hide-cell"]
texts = corpus.load("tatoeba-en-de", "train")[:500]
small_pieces = Tokenizer.train([sentence for pair in texts for sentence in pair], vocab_size=1000)
few = [tuple(map(small_pieces.encode, pair)) for pair in texts]
held_out = [tuple(map(small_pieces.encode, pair)) for pair in corpus.load("tatoeba-en-de", "valid")[:200]]
small = ModelConfig(vocab_size=1000, N=1, d_model=64, d_ff=128, h=4, initialization="glorot")

# %% tags=["hide-cell"]
def held_out_losses(kind, seed, n_steps=240):
    """Held-out nats per token, every 30 steps."""
    torch.manual_seed(seed)
    model, losses = kind(small).train(), []
    adam = make_adam(model, TrainConfig())
    batches = (batch for epoch in count() for batch in token_batches(few, 512, seed=seed, epoch=epoch))
    for step, batch in enumerate(islice(batches, n_steps), 1):
        loss, _ = label_smoothed_cross_entropy(model(batch.source, batch.target_in), batch.target_out)
        (loss / batch.n_tokens).backward()
        adam.param_groups[0]["lr"] = noam_learning_rate(step, 64, 100, factor=1.5)
        adam.step()
        adam.zero_grad()
        if step % 30 == 0:
            losses.append(mean_nll(model, held_out))
    return losses

# %% tags=["nbval-ignore-output"]
curves = {name: [held_out_losses(kind, seed) for seed in range(3)]
          for name, kind in (("tied", Transformer), ("untied", ThreeMatrices))}
for name, runs in curves.items():
    print(f"{name:6}  lowest", *(f"{min(losses):.2f}" for losses in runs),
          "  at the end", *(f"{losses[-1]:.2f}" for losses in runs))

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"image": {"alt": "Line chart of held-out loss in nats per token against training steps, 30 to 240, three solid lines for the tied model and three dashed ones for the untied model. The untied lines fall faster at first, turn about half way and rise. The tied lines fall more slowly and longer, and end lower."}, "figure": {"caption": "Held-out loss of a small model trained on 500 sentence pairs, tied and untied, three seeds each.", "name": "fig-emb-tying"}}
figure, ax = plt.subplots(figsize=(5.2, 2.8), layout="constrained")
for (name, runs), style, color in zip(curves.items(), ("-", "--"), PALETTE):
    for i, losses in enumerate(runs):
        ax.plot(range(30, 241, 30), losses, style, color=color, label=name if i == 0 else None)
ax.set(xlabel="step", ylabel="held-out loss (nats per token)")
ax.legend()
plt.show()
assert max(losses[-1] for losses in curves["tied"]) < max(losses[-1] for losses in curves["untied"])

# %% tags=["remove-cell"]
for tied_losses, untied_losses in zip(curves["tied"], curves["untied"]):
    assert min(tied_losses) < min(untied_losses) + 0.06  # level or ahead
    assert tied_losses[-1] < untied_losses[-1] - 0.03  # and ahead at the end, with every seed
    assert untied_losses[-1] > min(untied_losses) + 0.03  # which overfits
assert sum(map(min, curves["tied"])) < sum(map(min, curves["untied"]))
assert sum(losses[1] for losses in curves["tied"]) > sum(losses[1] for losses in curves["untied"])
assert round(parameters(ThreeMatrices(small)) / parameters(Transformer(small)), 1) == 1.9

# %% [markdown]
# Tying pays here, with every seed at the end, because the untied model has begun to overfit; and the tied one has little
# more than half the weights. The untied model learns faster at first. A likely reason is that an untrained tied model
# repeats what it reads: the residual connections carry each embedding through the decoder, so $x$ still resembles the
# row of the token just *read*. We look at the extreme case, with the smaller initial values of [section
# 3.1](3_1_stacks.ipynb). ({cite:t}`press2017using` and {cite:t}`inan2017tying` proposed tying at about the same time and
# found it to help language models.)

# %%
torch.manual_seed(0)
source, target_in = torch.randint(4, 2000, (2, 4, 12))
sizes = ModelConfig(vocab_size=2000, N=2, d_model=256, d_ff=1024, h=4,
                    initialization="scaled")
for name, kind in {"tied": Transformer, "untied": ThreeMatrices}.items():
    with torch.no_grad():
        logits = kind(sizes).eval()(source, target_in)
    repeats = (logits.argmax(dim=-1) == target_in).float().mean()
    loss = F.cross_entropy(logits[:, :-1].transpose(1, 2), target_in[:, 1:])
    print(f"untrained, {name:6} repeats {repeats:4.0%} of its tokens, "
          f"loss {loss:5.2f} nats")
    assert (repeats > 0.9, loss > math.log(2000) + 2) == 2 * (name == "tied",)

# %% [markdown]
# Tying three ways requires that ids mean the same on both sides, so it requires **one vocabulary** for both languages.
# For languages without common text, such as English and Chinese, the source keeps a matrix of its own, while the
# target's embedding and the softmax share theirs. The package has shared vocabularies only; the folded cell builds the
# other kind from `ThreeMatrices`.

# %% tags=["hide-cell", "row-S6"]
class TwoVocabularies(ThreeMatrices):
    def __init__(self, config, source_vocab_size):
        super().__init__(config, source_vocab_size)
        self.output = self.embedding  # one module for two places

two, target_in = TwoVocabularies(config, 40), torch.tensor([[1, 8, 9, 5]])
assert (len(two.source_embedding.weight), len(two.embedding.weight)) == (40, 23)
assert two.output.weight.data_ptr() == two.embedding.weight.data_ptr()
assert two(torch.tensor([[39, 30, 2]]), target_in).shape == (1, 4, 23)
try:
    two(torch.tensor([[39, 30, 2]]), torch.tensor([[1, 30]]))  # 30 is a source token only
except IndexError as error:
    print(type(error).__name__, "for a target id of 30 in a vocabulary of 23")
else:
    raise AssertionError("id 30 was found among 23 rows")

# %% [markdown]
# ## What the factor of the embedding does
#
# "In the embedding layers, we multiply those weights by $\sqrt{d_{\text{model}}}$." To see what this does, we look at
# what enters the stacks, a sum of *what* the token is and *where* it is:
#
# $$
# x_{pos} = \sqrt{d_{\mathrm{model}}}\, E_{t} + PE_{pos}
# $$ (emb-sum)
#
# The length of the second vector is fixed. Its entries come in pairs $\sin a, \cos a$ with $\sin^2 a + \cos^2 a = 1$,
# and there are $d_{\mathrm{model}} / 2$ pairs. The length of the first depends on how $E$ is drawn. If its entries have
# mean 0 and variance $\sigma^2$, then
#
# $$
# \|PE_{pos}\|^2 = \frac{d_{\mathrm{model}}}{2}
# \qquad
# \mathrm{E}\,\bigl\|\sqrt{d_{\mathrm{model}}}\, E_t\bigr\|^2 = d_{\mathrm{model}} \cdot d_{\mathrm{model}}\, \sigma^2
# $$ (emb-norms)
#
# The package draws $E$ with $\sigma^2 = 1 / d_{\mathrm{model}}$, as the authors' own code
# {cite}`vaswani2018tensor2tensor` does; the paper leaves it open. PyTorch's `nn.Embedding` draws with $\sigma^2 = 1$.
# For each, we compute the embedding's **share** of the two squared lengths, at $d_{\mathrm{model}} = 512$.

# %%
def share(embedding, positions):
    """The embedding's part of the summed squares."""
    what = embedding.square().sum(dim=1).mean()
    where = positions.square().sum(dim=1).mean()
    return (what / (what + where)).item()

torch.manual_seed(0)
PE, found = positional_encoding(100, 512), {}
tables = {"N(0, 1/d)": SharedEmbedding(2000, 512).weight.detach(),
          "N(0, 1)": nn.Embedding(2000, 512).weight.detach()}
for name, table in tables.items():
    for factor in (1, math.sqrt(512)):
        found[name, factor > 1] = share(factor * table, PE)
        print(f"{name:10} factor {factor:5.2f}: "
              f"the embedding's share is {found[name, factor > 1]:.1%}")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Line chart of the embedding's share against d_model from 8 to 1024. Two curves coincide at two thirds, marked paper's factor with N(0, 1/d), and N(0, 1) without factor. The curve for N(0, 1) with the factor rises from 0.94 to 1. The curve for N(0, 1/d) without the factor falls from 0.2 to nearly 0."}, "figure": {"caption": "The embedding's share of the sum {eq}`emb-sum` before training, by equation {eq}`emb-norms`. The two curves at two thirds coincide.", "name": "fig-emb-share"}}
widths = 2 ** torch.arange(3, 11).double()
cases = {("N(0, 1)", True): (widths**2, "s-"), ("N(0, 1/d)", True): (widths, "o-"),
         ("N(0, 1)", False): (widths, "x--"), ("N(0, 1/d)", False): (widths**0, "v--")}
figure, ax = plt.subplots(figsize=(5.8, 2.7), layout="constrained")
for (name, factor), (squared_length, style) in cases.items():
    part = squared_length / (squared_length + widths / 2)
    assert abs(part[6] - found[name, factor]) < 0.01  # measured above, at 512
    ax.plot(widths, part, style, label=f"{name}, {'factor' if factor else 'no factor'}")
ax.set_xscale("log", base=2)
ax.set(xlabel="$d_{\\mathrm{model}}$", ylabel="share of the embedding", ylim=(-0.03, 1.05))
figure.legend(loc="outside right upper")
plt.show()

# %% tags=["remove-cell"]
assert_close(PE.norm(dim=1), torch.full((100,), math.sqrt(512 / 2)))
assert abs(tables["N(0, 1/d)"].norm(dim=1).mean() - 1) < 0.01
assert abs(found["N(0, 1/d)", True] - 2 / 3) < 0.01
assert abs(found["N(0, 1/d)", False] - 1 / (1 + 512 / 2)) < 0.001
assert abs(found["N(0, 1)", False] - 2 / 3) < 0.01
assert found["N(0, 1)", True] > 0.998
torch.manual_seed(0)
learned = LearnedPositions(512, max_len=100).weight.detach()  # row (E): length about 1 at first
assert abs(share(math.sqrt(512) * tables["N(0, 1/d)"], learned) - 512 / 513) < 1e-3

# %% [markdown]
# With the package's start, the factor makes the embedding two thirds of what enters, at every width. Without it the
# share is $1 / (1 + d_{\mathrm{model}}/2)$, less than half a percent at 512, and the layers would at first see almost
# nothing but positions. With $\mathcal{N}(0, 1)$ the factor does the opposite: it drowns the positions.
#
# So why not draw from $\mathcal{N}(0, 1)$ and leave the factor out? Because the same matrix is used at the exit. There
# $x$ comes out of a layer norm with $d_{\mathrm{model}}$ entries of variance 1, and if $x$ and $E_t$ are independent,
#
# $$
# \mathrm{Var}(x \cdot E_t) = d_{\mathrm{model}} \cdot 1 \cdot \sigma^2
# = \begin{cases} 1 & \text{for } \sigma^2 = 1/d_{\mathrm{model}} \\ d_{\mathrm{model}} & \text{for } \sigma^2 = 1\end{cases}
# $$ (emb-logit-variance)
#
# The entrance wants rows of length $\sqrt{d_{\mathrm{model}}}$ and the exit wants rows of length 1. The factor at the
# entrance makes up the difference. (This is our reading; the paper gives none.) Large logits are expensive: for
# independent normal logits of moderate variance $s^2$, the expected loss of a guess is $\ln V + s^2/2$. At $s^2 = 1$
# that is half a nat above uniform guessing. (Independence is the weak point: in a tied model $x$ resembles the row of
# the token just read, which can cost far more, as we have seen.) At $s^2 = 512$ the softmax is
# saturated, as in [section 3.2](3_2_attention.ipynb), and the first losses are enormous.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Loss of a guess among 8000 tokens against the variance of the logits from 0.1 to 512, on a logarithmic axis. Measured dots follow the dashed curve ln V plus half the variance up to a variance of about 8, and then rise more slowly, to about 90 nats at 512. A dotted line marks ln V = 9. Arrows mark N(0, 1/d) at variance 1 and N(0, 1) at 512."}, "figure": {"caption": "What a guess costs by the variance of its logits, $V = 8000$. A factor at the exit, or $\\sigma^2 = 1$, moves the first loss from the left end to the right.", "name": "fig-emb-logits"}}
torch.manual_seed(0)
V, x, target = 8000, F.layer_norm(torch.randn(500, 512), [512]), torch.randint(8000, (500,))
z = x @ torch.randn(V, 512).T / math.sqrt(512)  # variance 1
variances = 2.0 ** torch.arange(-3, 10)
losses = [F.cross_entropy(math.sqrt(s2) * z, target).item() for s2 in variances]
figure, ax = plt.subplots(figsize=(5.2, 2.7), layout="constrained")
ax.plot(variances, losses, "o", label="measured")
ax.plot(variances[:8], math.log(V) + variances[:8] / 2, "--", label="$\\ln V + s^2/2$")
ax.axhline(math.log(V), color="black", linestyle=":", linewidth=0.8, label="$\\ln V$")
for s2, name, height in ((1, "N(0, 1/d)", 30), (512, "N(0, 1)", 55)):
    ax.annotate(name, (s2, losses[variances.tolist().index(s2)]), (s2, height), ha="center", arrowprops={"arrowstyle": "->"})
ax.set(xlabel="variance $s^2$ of the logits", ylabel="loss (nats)", xscale="log", xlim=(0.1, 1500))
ax.legend()
plt.show()

# %% tags=["remove-cell"]
assert abs(losses[3] - (math.log(V) + 0.5)) < 0.15 and losses[-1] > 5 * math.log(V)

# %% [markdown]
# ## Softmax, cross-entropy, perplexity
#
# The model gives logits. How good are they? The softmax turns them into a distribution. The **cross-entropy** of one
# token is minus the natural logarithm of the probability that the model gave to the token $y$ that really came, and its
# unit is the **nat**. The **perplexity** of a text of $n$ tokens is $e$ to the mean:
#
# $$
# p_v = \frac{e^{z_v}}{\sum_{u=1}^{V} e^{z_u}}
# \qquad
# \mathrm{nll} = -\ln p_y
# \qquad
# \mathrm{PPL} = \exp\Bigl(\frac{1}{n} \sum_{i=1}^{n} \mathrm{nll}_i\Bigr)
# $$ (emb-perplexity)
#
# A model that hesitates between $m$ equally likely tokens has perplexity $m$. Guessing has perplexity $V$, certainty
# has 1. We compute it token by token for three sentence pairs, end marks counted, and compare with the package's
# `perplexity`, which works in padded batches.

# %%
from annotated_transformer import perplexity

torch.manual_seed(0)
model = Transformer(config).eval()
pairs = [([4, 5, 6], [7, 8]), ([9, 10], [11, 12, 13, 14]), ([15], [16])]  # ids
nll = []
with torch.no_grad():
    for source_ids, target_ids in pairs:  # </s> is 2, <s> is 1
        source = torch.tensor([[*source_ids, 2]])
        target_in = torch.tensor([[1, *target_ids]])
        log_p = model(source, target_in)[0].log_softmax(dim=-1)
        nll += [-row[id].item() for row, id in zip(log_p, [*target_ids, 2])]
ours, theirs = math.exp(sum(nll) / len(nll)), perplexity(model, pairs)
print(f"{len(nll)} tokens, perplexity {ours:.2f}, the package's {theirs:.2f}")

# %% tags=["hide-cell", "row-E14"]
assert len(nll) == 10 and math.isclose(theirs, ours, rel_tol=1e-5)
uniform, sure = torch.zeros(1, 1, 100), torch.zeros(1, 1, 100)
sure[..., 7] = 100.0
for logits, answer in ((uniform, 100), (sure, 1)):
    _, one_nll = label_smoothed_cross_entropy(logits, torch.tensor([[7]]))
    assert math.isclose(one_nll.exp().item(), answer, rel_tol=1e-5)
nats = math.log(4.92)
print(f"{nats:.2f} nats, {nats / math.log(2):.2f} bits")
assert (round(nats, 2), round(nats / math.log(2), 2)) == (1.59, 2.30)
assert math.isclose(2 ** (nats / math.log(2)), 4.92)

# %% [markdown]
# The mean is taken over tokens and before the exponential ({ref}`emb-ex-mean`). A nat is $1/\ln 2 = 1.44$ **bits**, so
# the paper's base model, with a perplexity of 4.92 on its development set (Table 3), needs 1.59 nats or 2.30 bits per
# token.
#
# ### Which perplexities may be compared
#
# Model A has perplexity 5.0 and model B 4.0. Which is better? We have to ask for their vocabularies first. The
# caption of Table 3 warns: "Listed perplexities are per-wordpiece, according to our byte-pair encoding, and should not be
# compared to per-word perplexities." Two models can be compared by the nats that they need for the whole *text*. A
# vocabulary of longer pieces has fewer tokens to spread the same nats over:
#
# $$
# \mathrm{PPL}_{\text{word}} = \exp\Bigl(\frac{\text{nats of the text}}{n_{\text{words}}}\Bigr)
# = \mathrm{PPL}_{\text{piece}}^{\;n_{\text{pieces}} / n_{\text{words}}}
# $$ (emb-per-word)
#
# The purest case is a text whose letters are drawn at random from an alphabet of four, so that a probability of 1/4 per
# letter is the best that any model can do. We cut it into single letters, pairs or triples, and give each model its
# best:

# %% tags=["row-E14"]
n_letters, per_piece = 12, {}
for piece_length in (1, 2, 3):
    V, n_pieces = 4**piece_length, n_letters // piece_length
    logits = torch.zeros(1, n_pieces, V)
    text = torch.ones(1, n_pieces, dtype=torch.long)
    _, nll = label_smoothed_cross_entropy(logits, text)
    per_piece[piece_length] = math.exp(nll / n_pieces)
    assert math.isclose(per_piece[piece_length], V, rel_tol=1e-5)
    print(f"pieces of {piece_length}: {nll:.2f} nats for the text, "
          f"perplexity {per_piece[piece_length]:4.1f} per piece, "
          f"{math.exp(nll / n_letters):.1f} per letter")

# %% tags=["hide-input"] mystnb={"image": {"alt": "The same text of twelve letters in three rows, cut into twelve single letters, six pairs and four triples. Each piece is a box labelled with its nats: 1.39, 2.77 and 4.16. At the right of each row stand the sum, 16.64 nats in all three, and the perplexity per piece, 4, 16 and 64."}, "figure": {"caption": "One text, cut in three ways. The nats of the pieces differ, and with them the perplexity; the nats of the text are the same.", "name": "fig-emb-pieces"}}
figure, ax = plt.subplots(figsize=(6.8, 1.9), layout="constrained")
text = "bcadacbdabca"
for row, length in enumerate(per_piece):
    for start in range(0, 12, length):
        ax.add_patch(plt.Rectangle((start + 0.04, -row), length - 0.08, 0.75, facecolor="#cfe5f3", edgecolor="black", linewidth=0.6))
        piece, nats = text[start : start + length], math.log(per_piece[length])
        ax.text(start + length / 2, 0.54 - row, piece, ha="center", va="center", fontsize=10, family="monospace")
        ax.text(start + length / 2, 0.2 - row, f"{nats:.2f}", ha="center", va="center", fontsize=8)
    ax.text(12.2, 0.37 - row, f"{12 / length * nats:.2f} nats,  perplexity {per_piece[length]:.0f}", va="center", fontsize=10)
ax.set(xlim=(0, 17), ylim=(-2.1, 0.85))
ax.axis("off")
plt.show()

# %% tags=["remove-cell"]
assert (round(5.0**1.2, 1), round(4.0**1.5, 1)) == (6.9, 8.0)
assert (round(4.92**1.3, 1), round(2.1**6.5)) == (7.9, 124)

# %% [markdown]
# These are perplexities of 4, 16 and 64 for the same knowledge of the same text. And for our question: if A cuts a word
# into 1.2 pieces and B into 1.5, A has $5.0^{1.2} = 6.9$ per word and B has $4.0^{1.5} = 8.0$, so A is better.
#
# ### A softmax that does not overflow
#
# The largest number in float32 is about $3.4 \cdot 10^{38}$, and $e^{89}$ is larger, so for large logits the plain
# formula gives infinity divided by infinity. We therefore subtract the largest logit $m$, a factor
# that cancels, and every exponent is at most 0. For the loss we go straight to the logarithm, with the
# **log-sum-exp** of the logits:
#
# $$
# -\ln p_y = \mathrm{lse}(z) - z_y,
# \qquad
# \mathrm{lse}(z) = \ln \sum_v e^{z_v} = m + \ln \sum_v e^{z_v - m}
# $$ (emb-log-sum-exp)
#
# Taking the logarithm *after* a softmax fails even if the softmax is safe: a probability of $e^{-200}$ is rounded to 0,
# and its loss is infinite.

# %%
z = torch.tensor([200.0, 0.0], requires_grad=True)
losses = {"plain softmax, then log": -(z.exp() / z.exp().sum()).log()[1],
          "safe softmax, then log ": -z.softmax(dim=-1).log()[1],
          "log_softmax            ": -z.log_softmax(dim=-1)[1]}
for name, loss in losses.items():
    (gradient,) = torch.autograd.grad(loss, z)
    print(f"{name}  loss {loss.item():5}  gradient {gradient.tolist()}")

# %% tags=["remove-cell"]
def log_sum_exp(z):
    m = z.max(dim=-1, keepdim=True).values
    return (m + (z - m).exp().sum(dim=-1, keepdim=True).log())[..., 0]

assert gradient.tolist() == [1, -1] and losses["safe softmax, then log "].isinf()
torch.manual_seed(0)
z, target = 100 * torch.randn(50, 20), torch.randint(4, 20, (50,))
by_hand = (log_sum_exp(z) - z[torch.arange(50), target]).sum()
assert_close(label_smoothed_cross_entropy(z[None], target[None])[1], by_hand)
assert_close(by_hand, F.cross_entropy(z, target, reduction="sum"))
naive = z.exp() / z.exp().sum(dim=-1, keepdim=True)
assert naive.isnan().any() and not z.softmax(dim=-1).isnan().any()
for dtype, last in ((torch.float16, 11), (torch.float32, 88), (torch.float64, 709)):
    assert torch.tensor([last, last + 1], dtype=dtype).exp().isinf().tolist() == [False, True]

# %% [markdown]
# This is why the model returns logits. PyTorch's `nn.CrossEntropyLoss` takes logits too ({ref}`emb-ex-twice`).
#
# ### Temperature
#
# Dividing the logits by a **temperature** $\tau$ makes the distribution flatter ($\tau > 1$) or sharper ($\tau < 1$)
# and keeps the order of the tokens. The paper has none, which is $\tau = 1$. A factor of $\sqrt{512}$ at the exit,
# where some misread the paper to put it, would be a temperature of 0.04.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Grouped bar chart of the probabilities of five tokens with logits 3, 2, 1, 0 and minus 1, at temperatures 0.5, 1 and 3. At 0.5 the first token has nearly 0.9. At 1 it has about 0.64. At 3 the five bars fall gently from about 0.35 to 0.09."}, "figure": {"caption": "The same five logits at three temperatures.", "name": "fig-emb-temperature"}}
z = torch.tensor([3.0, 2.0, 1.0, 0.0, -1.0])

def at_temperature(tau):
    return (z / tau).softmax(dim=-1)

figure, ax = plt.subplots(figsize=(5, 2.4), layout="constrained")
for shift, tau in zip((-0.27, 0, 0.27), (0.5, 1, 3)):
    ax.bar(torch.arange(5) + shift, at_temperature(tau), width=0.25, label=f"temperature {tau}")
ax.set_xticks(range(5), [f"{logit:g}" for logit in z.tolist()])
ax.set(xlabel="logit", ylabel="probability")
ax.legend()
plt.show()

# %% tags=["remove-cell"]
first = [at_temperature(tau)[0] for tau in (0.5, 1, 3)]
assert first[0] > 0.85 > 0.65 > first[1] > 0.6 > 0.4 > first[2]
for tau in (0.01, 0.5, 1, 2, 100):
    assert at_temperature(tau).argmax() == 0 and (at_temperature(tau).diff() <= 0).all()
assert_close(at_temperature(0.01), torch.eye(5)[0])
assert_close(at_temperature(1e6), torch.full((5,), 0.2), atol=1e-5, rtol=0)

# %% [markdown]
# :::{dropdown} Where this is
# `SharedEmbedding` is in `annotated_transformer/model/embedding.py`, `perplexity` in `decoding/evaluation.py`, the
# loss in `training/loss.py`, each with a test file of the same name. [Section 5.1](5_1_data_and_batching.ipynb) makes
# vocabularies, and [section 5.4](5_4_regularization.ipynb) smooths the loss.
# :::
#
# ## Exercises
#
# Each has a hint and a solution, both folded, and a folded cell computes the answer.

# %% [markdown] tags=["exercise"]
# ```{exercise} The embedding (check 3.4)
# :label: emb-ex-code
#
# Write `embed(tokens, E)`: the vectors of `tokens`, with the paper's factor, for a matrix `E` of any size. Check it
# with `check("3.4", embed)`.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# A tensor of ids can index a tensor. Which axis of `E` is $d_{\mathrm{model}}$?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} emb-ex-code
# :class: dropdown
#
# `return E[tokens] * math.sqrt(E.size(1))`.
# ```

# %% tags=["hide-cell", "solution"]
def embed(tokens, E):
    return E[tokens] * math.sqrt(E.size(1))

check("3.4", embed)

# %% [markdown] tags=["exercise"]
# ```{exercise} A token that never comes
# :label: emb-ex-unseen
#
# A token occurs in neither sentence of the batch. Which of the three uses gives its row a gradient? In which direction
# does one step of plain gradient descent move the row, for one position with output $x$?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# The derivative of $\mathrm{lse}(z) - z_y$ with respect to $z_v$ is $p_v - [v = y]$, and $z_v = x \cdot E_v$.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} emb-ex-unseen
# :class: dropdown
#
# Only the softmax: the gradient of row $v$ is $p_v\, x$, so the row moves away from $x$, by little if $p_v$ is small.
# The row of padding, which is never a target, is pushed away at every position. With separate matrices an unseen source
# token would keep its initial random vector.
# ```

# %% tags=["hide-cell", "solution"]
unseen = words.index("Hund")
assert apart["source"][unseen].norm() == 0 and apart["target"][unseen].norm() == 0 and apart["softmax"][unseen].norm() > 0
torch.manual_seed(0)
E = torch.randn(23, 16, dtype=torch.float64, requires_grad=True)
x = torch.randn(16, dtype=torch.float64)
p = (E @ x).softmax(dim=-1).detach()
F.cross_entropy((E @ x)[None], torch.tensor([5])).backward()
assert_close(E.grad[20], p[20] * x)
assert_close(E.grad[5], (p[5] - 1) * x)

# %% [markdown] tags=["exercise"]
# ```{exercise} The factor, moved into the matrix
# :label: emb-ex-reparametrise
#
# Draw $E' = \sqrt{d_{\mathrm{model}}}\, E$ from $\mathcal{N}(0, 1)$, use it without a factor at the entrance, and
# divide the logits by $\sqrt{d_{\mathrm{model}}}$. This model computes the same at the start. Does it stay the same
# under Adam?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# In its first step, Adam changes every weight by about the learning rate. Compare that with the size of the weights.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} emb-ex-reparametrise
# :class: dropdown
#
# An Adam step of rate $r$ moves an entry of $E$ by about $r$, which is $r \sqrt d$ at the entrance, and an entry of
# $E'$ by $r$. So the factor also acts as a learning rate for the embedding that is $\sqrt{d_{\mathrm{model}}}$ times
# larger.
# ```

# %% tags=["hide-cell", "solution"]
torch.manual_seed(0)
tokens, x, moved = torch.arange(100), torch.randn(10, 64), {}
E = torch.randn(100, 64) / 8
for name, start, factor in (("factor", E, 8.0), ("no factor", 8 * E, 1.0)):
    weight = start.clone().requires_grad_()
    entrance, exit_ = weight[tokens] * factor, x @ weight.T * factor / 8
    (F.cross_entropy(exit_, tokens[:10]) + entrance.square().mean()).backward()
    torch.optim.Adam([weight], lr=0.001).step()
    moved[name] = (weight[tokens] * factor - entrance).abs().mean().item()
print({name: round(change, 4) for name, change in moved.items()})
assert math.isclose(moved["factor"] / moved["no factor"], 8, rel_tol=0.01)

# %% [markdown] tags=["exercise"]
# ```{exercise} Three ways to take a mean
# :label: emb-ex-mean
#
# Two sentences: the first has 2 tokens with 1 nat each, the second 8 tokens with 3 nats each. Compute the perplexity
# of the text, the mean of the two perplexities, and $e$ to the mean of the two mean losses. Which one may we report?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# The text has 10 tokens and 26 nats.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} emb-ex-mean
# :class: dropdown
#
# $e^{2.6} = 13.5$; $(e^1 + e^3)/2 = 11.4$; $e^2 = 7.4$. Only the first belongs to the probability of the text, which is
# a product over tokens.
# ```

# %% tags=["hide-cell", "solution"]
sentences = [[1.0] * 2, [3.0] * 8]
means = [sum(sentence) / len(sentence) for sentence in sentences]
assert round(math.exp(sum(map(sum, sentences)) / 10), 1) == 13.5
assert round(sum(map(math.exp, means)) / 2, 1) == 11.4
assert round(math.exp(sum(means) / 2), 1) == 7.4

# %% [markdown] tags=["exercise"]
# ```{exercise} Softmax twice
# :label: emb-ex-twice
#
# Somebody ends the model with a softmax and trains with `nn.CrossEntropyLoss`, which expects logits. What is the
# smallest loss this can reach for $V = 37{,}000$? What would we see in the log?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# The "logits" are now probabilities: at best 1 for the right token and 0 for the others.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} emb-ex-twice
# :class: dropdown
#
# With the best output, the loss is $\ln(e + V - 1) - 1 = 9.52$ nats, where guessing costs $\ln V = 10.52$. The loss
# starts near 10.5 and stays above 9.5 however long we train: it looks like a model that cannot learn.
# ```

# %% tags=["hide-cell", "solution"]
V = 37_000
perfect = torch.zeros(1, V)
perfect[0, 5] = 1.0  # a distribution that is right and sure
twice = nn.CrossEntropyLoss()(perfect, torch.tensor([5])).item()
assert math.isclose(twice, math.log(math.e + V - 1) - 1, rel_tol=1e-5)
assert (round(twice, 2), round(math.log(V), 2)) == (9.52, 10.52)
z = 5 * torch.randn(1000, 20, dtype=torch.float64)  # max <= lse <= max + ln V
largest = z.max(dim=-1).values
assert (largest <= log_sum_exp(z)).all() and (log_sum_exp(z) <= largest + math.log(20)).all()

# %% [markdown]
# ## What to remember
#
# - One matrix $E$ serves in three places, and its gradient is the sum of three. Tying needs one vocabulary and saves 38
#   million weights in the base model; in our small test with few data it also overfitted less.
# - Its rows learn which words can stand in the same place, in both languages.
# - The factor $\sqrt{d_{\mathrm{model}}}$ belongs to the entrance only. With rows drawn from
#   $\mathcal{N}(0, 1/d_{\mathrm{model}})$ it makes the embedding two thirds of what enters the stacks, while the logits
#   begin with variance 1.
# - Loss is in nats, and perplexity is $e$ to the mean loss per token. Before we compare perplexities we convert them to
#   the same unit of text.
# - We compute losses from logits, with log-sum-exp. Dividing the logits by a constant changes the temperature.
#
# What the sum {eq}`emb-sum` adds to the embedding is the subject of [section 3.5](3_5_positional_encoding.ipynb).
