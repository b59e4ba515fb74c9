# %% [markdown]
# # 3.4 Embeddings and softmax
#
# *Section 3.4 of the paper {cite}`vaswani2017attention`: how tokens become vectors, and how vectors become
# probabilities of tokens.*
#
# A Transformer computes with vectors, and a text is made of tokens. At both ends of the model stands a matrix with one
# row for each token of the vocabulary: at the entrance it turns an id into a vector, at the exit a vector into a score
# for every id. The paper gives this section five lines, and in them uses *one* matrix for all of it, and a factor
# $\sqrt{d_{\mathrm{model}}}$ that it does not explain.
#
# When you have read this chapter you can
#
# - name the three places of the shared matrix, and show that its gradient is the sum of three;
# - say what the factor does to the sum of embedding and position, and on what the answer depends;
# - count what sharing saves, and build the model with separate vocabularies;
# - compute cross-entropy and perplexity in the right units, and say which perplexities may be compared;
# - compute a softmax that neither overflows nor takes the logarithm of 0, and say what a temperature does.
#
# Letters for shapes (B sentences, L positions, D $d_{\mathrm{model}}$, V vocabulary, ...) are listed in
# [Notation](notation.md).

# %%
import math

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer import ModelConfig, Transformer, positional_encoding
from annotated_transformer.exercises import check
from annotated_transformer.looking.visualization import PALETTE, show, use_style

use_style()
torch.set_printoptions(precision=4, sci_mode=False)

# %% [markdown]
# ## One matrix, three places
#
# **Question.** How does an id become a vector, and a vector an id again?
#
# An id is a name, not a quantity: token 12 is not twice token 6. So the model keeps a table with one learned vector
# for each token, its **embedding**. The table is a matrix $E$ with $V$ rows and $d_{\mathrm{model}}$ columns. Two
# embeddings are needed, for the source and for the target. At the exit, the decoder's output $x$ must be compared with
# every token of the vocabulary, and that takes $V$ vectors of the same size once more.
#
# **Equation.** The paper shares "the same weight matrix between the two embedding layers and the pre-softmax linear
# transformation", and multiplies the embeddings, not the exit, by $\sqrt{d_{\mathrm{model}}}$:
#
# $$
# \mathrm{embed}(t) = \sqrt{d_{\mathrm{model}}}\; E_t
# \qquad
# \mathrm{logits}(x) = x\, E^\top
# \qquad
# E \in \mathbb{R}^{V \times d_{\mathrm{model}}}
# $$ (emb-shared)
#
# $E_t$ is row $t$. The **logits** are $V$ numbers, the dot products of $x$ with every row: the score of a token says
# how well its vector agrees with $x$. Sharing one matrix is called **tying** the weights.
#
# **Code.** The paper speaks of a "linear transformation"; the package gives it no bias. (The paper does not say. With
# one matrix in three places, a bias would belong to one of them only.)

# %%
from annotated_transformer import SharedEmbedding

show(SharedEmbedding)

# %% [markdown]
# **Check.** Equation {eq}`emb-shared` with **one-hot** vectors, which are 0 except for a 1 at the token's place. A
# one-hot row times $E$ picks a row of $E$. So an embedding is a linear layer whose input is one-hot; looking the row up
# gives the same without multiplying by all the zeros.

# %%
torch.manual_seed(0)
V, d_model = 11, 6
embedding = SharedEmbedding(V, d_model)
E = embedding.weight
tokens = torch.tensor([[3, 5, 3], [1, 0, 10]])
one_hot = torch.eye(V)[tokens]  # B L V
assert_close(embedding(tokens), one_hot @ E * math.sqrt(d_model))

x = torch.randn(2, 3, d_model)
dot_products = torch.stack([(x * row).sum(dim=-1) for row in E], dim=-1)
assert_close(embedding.logits(x), dot_products)
for tensor in (tokens, embedding(tokens), embedding.logits(x)):
    print(tuple(tensor.shape))

# %% [markdown]
# Is it really *one* matrix, in the model as it runs? Texts often say so and build two or three. We watch PyTorch: a
# `TorchFunctionMode` sees every call of a function of PyTorch. Ours notes each use of a weight with $V$ rows, and the
# address at which its numbers are stored.

# %%
from torch.overrides import TorchFunctionMode

class WatchVocabulary(TorchFunctionMode):
    def __init__(self, vocab_size):
        super().__init__()
        self.vocab_size, self.uses = vocab_size, []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (F.embedding, F.linear):
            x, weight = args[:2]
            if weight.size(0) == self.vocab_size:
                self.uses.append((function.__name__, tuple(x.shape), weight.data_ptr()))
        return function(*args, **(kwargs or {}))

# %% tags=["row-E10", "row-S5"]
torch.manual_seed(0)
config = ModelConfig(vocab_size=23, N=1, d_model=16, d_ff=32, h=2, p_drop=0.0)
model = Transformer(config).double()
source, target_in = torch.tensor([[4, 5, 6, 7, 2]]), torch.tensor([[1, 8, 9, 5]])
with WatchVocabulary(23) as watch:
    logits = model(source, target_in)
functions, shapes, addresses = zip(*watch.uses)
for function, shape in zip(functions, shapes):
    print(f"{function:10} of an input of shape {shape}")
assert functions == ("embedding", "embedding", "linear")
assert set(addresses) == {model.embedding.weight.data_ptr()}
with_23_rows = [name for name, w in model.named_parameters() if w.size(0) == 23]
assert with_23_rows == ["embedding.weight"]
assert_close(logits.softmax(dim=-1).sum(dim=-1), torch.ones(1, 4).double())

# %% [markdown]
# Three uses, one address, one parameter. What goes in between the embedding and the stacks is the positional encoding,
# added to it, and dropout on the sum ([3.5](3_5_positional_encoding.ipynb),
# [5.4](5_4_regularization.ipynb)); what comes after the logits is the softmax.

# %% tags=["row-S4"]
show(Transformer.embed)
torch.manual_seed(0)
dropping = Transformer(config.replace(p_drop=0.5)).double()
plain = dropping.embedding(source) + positional_encoding(5, 16)
embedded = dropping.embed(source)
kept = embedded != 0
assert_close(embedded[kept], 2 * plain[kept])  # dropped, or doubled
assert 0.3 < kept.double().mean() < 0.7
assert_close(dropping.eval().embed(source), plain)

# %% [markdown]
# ### The gradient is the sum of three
#
# **Question.** A matrix in three places is pulled at from three sides. Which pull wins?
#
# **Equation.** None; they add up. That is the chain rule for a variable that occurs three times. Write the loss as a
# function of three matrices, which happen to be equal:
#
# $$
# \frac{\mathrm{d}}{\mathrm{d}E} \mathcal{L}(E, E, E)
# = \frac{\partial \mathcal{L}}{\partial E_{\text{source}}}
# + \frac{\partial \mathcal{L}}{\partial E_{\text{target}}}
# + \frac{\partial \mathcal{L}}{\partial E_{\text{softmax}}}
# $$ (emb-gradient)
#
# with the three derivatives taken where all three matrices equal $E$.
#
# **Code.** To see the three apart, we untie them: the same model with a matrix for each place. (`ThreeMatrices` is
# ours, not the package's; it comes back when we break things.)

# %%
class ThreeMatrices(Transformer):
    """A matrix each for source, target and softmax; the vocabularies may differ."""

    def __init__(self, config, source_vocab_size=None):
        super().__init__(config)
        V, d_model = config.vocab_size, config.d_model
        self.source_embedding = SharedEmbedding(source_vocab_size or V, d_model)
        self.output = SharedEmbedding(V, d_model)

    def encode(self, source, mask):
        x = self.source_embedding(source) + self.positions(source.size(1))
        return self.encoder(self.dropout(x), mask)

    def logits(self, x):
        return self.output.logits(x)

# %% [markdown]
# **Check.** All weights are copied, the embedding three times. Then both models compute the same loss, and the three
# gradients of the one add up to the gradient of the other.

# %% tags=["row-E10"]
from annotated_transformer import label_smoothed_cross_entropy

untied = ThreeMatrices(config).double()
untied.load_state_dict(model.state_dict(), strict=False)
untied.source_embedding.weight.data.copy_(model.embedding.weight.data)
untied.output.weight.data.copy_(model.embedding.weight.data)

target_out = torch.tensor([[8, 9, 5, 2]])
for network in (model, untied):
    logits = network(source, target_in)
    loss, _ = label_smoothed_cross_entropy(logits, target_out, eps_ls=0.0)
    loss.backward()
apart = {"source": untied.source_embedding.weight.grad,
         "target": untied.embedding.weight.grad, "softmax": untied.output.weight.grad}
assert_close(sum(apart.values()), model.embedding.weight.grad)

# %% [markdown]
# **Picture.** The size of each token's gradient, by the place it comes from.

# %% mystnb={"image": {"alt": "Stacked heat map with four rows, source, target, softmax and all three, over 23 token ids. The source row is bright only at ids 2 and 4 to 7, the target row only at 1, 5, 8 and 9. The softmax row has something at every id. The last row has something at every id too."}, "figure": {"caption": "Norm of the gradient of each row of $E$, from one sentence pair: source tokens 4 5 6 7 2, target input 1 8 9 5. The scale is logarithmic; empty cells are exactly zero.", "name": "fig-emb-gradients"}}
rows = {**apart, "all three": model.embedding.weight.grad}
norms = torch.stack([gradient.norm(dim=1) for gradient in rows.values()])
figure, ax = plt.subplots(figsize=(6.2, 1.9), layout="constrained")
shown = norms.masked_fill(norms == 0, math.nan).log10()
image = ax.imshow(shown, aspect="auto", vmin=-2.5)
ax.set_yticks(range(4), rows)
ax.set(xlabel="token id", xticks=range(0, 23, 2))
figure.colorbar(image, ax=ax, label="log10 of the norm")
plt.show()
used = [set(norm.nonzero().flatten().tolist()) for norm in norms]
assert used == [{2, 4, 5, 6, 7}, {1, 5, 8, 9}, set(range(23)), set(range(23))]

# %% [markdown]
# An embedding gets a gradient only in the rows of the tokens that occur. The softmax pulls at *every* row: the right
# token's towards $x$, all others away from it. So with tying, a rare token's vector moves in every step of the
# training, most often because it was not the answer. {cite:t}`press2017using` find in language models that a
# tied matrix becomes more like the untied *output* matrix than like the untied input one.
#
# **What does tying assume?** That one vector can serve as the description of a token (at the entrance) and as the
# pattern of its context (at the exit). {cite:t}`press2017using` and {cite:t}`inan2017tying` proposed it at about the
# same time and found language models improved by it; the first also call the version with three places *three-way
# weight tying* and use it for translation. The condition is that ids mean the same on both sides: **one vocabulary**
# for both languages.
#
# **Break it.** Code that ties by copying numbers instead of sharing the parameter is tied until the first update only.
# After it, the two copies are different matrices.

# %%
copied = ThreeMatrices(config)
copied.output.weight.data.copy_(copied.embedding.weight.data)  # equal, for now
shared = Transformer(config)
for network in (copied, shared):
    loss, _ = label_smoothed_cross_entropy(network(source, target_in), target_out)
    loss.backward()
    torch.optim.Adam(network.parameters(), lr=0.01).step()
apart_by = (copied.output.weight - copied.embedding.weight).abs().max().item()
print(f"after one step of rate 0.01 the copies differ by up to {apart_by:.3f}")
assert apart_by > 0.009

# %% [markdown]
# **Where.**
#
# - Code: `SharedEmbedding` in `annotated_transformer/model/embedding.py`; `Transformer.embed` and `Transformer.logits` in
#   `annotated_transformer/model/transformer.py`.
# - Tests: `test_one_matrix_gets_the_gradient_of_every_use` in `tests/model/test_embedding.py`;
#   `test_one_matrix_serves_three_times_and_gathers_every_gradient` in `tests/model/test_transformer.py`.
# - Exercises: {ref}`emb-ex-shapes`, {ref}`emb-ex-code`, {ref}`emb-ex-unseen`.

# %% [markdown]
# ## What sharing saves
#
# **Question.** Is it worth the trouble?
#
# **Equation.** Each matrix has $V d_{\mathrm{model}}$ weights. With one vocabulary, and with two of sizes
# $V_s$ and $V_t$:
#
# $$
# \underbrace{V d}_{\text{tied three ways}}
# \qquad
# \underbrace{3 V d}_{\text{untied}}
# \qquad
# \underbrace{(V_s + V_t)\, d}_{\text{two vocabularies, target tied}}
# \qquad d = d_{\mathrm{model}}
# $$ (emb-saved)
#
# **Check.** The base model with 37,000 tokens. The device `meta` has shapes and no numbers, so nothing is allocated.

# %%
def count(module):
    return sum(weight.numel() for weight in module.parameters())

base = ModelConfig.base(vocab_size=37_000)
with torch.device("meta"):
    tied, separate = Transformer(base), ThreeMatrices(base)
one_matrix = 37_000 * 512
print(f"one matrix   {one_matrix:>11,}")
print(f"tied         {count(tied):>11,}")
print(f"untied       {count(separate):>11,}")
assert count(separate) - count(tied) == 2 * one_matrix == 37_888_000
assert round(one_matrix / count(tied), 2) == 0.30

# %% [markdown]
# One matrix is 30 percent of the tied model. Without tying there would be 101 million weights instead of 63, and the
# paper's Table 3 prints 65: one more sign that its authors tied them. (65 million follow from a vocabulary a little
# larger than 37,000; the [errata](errata.ipynb) have the arithmetic.)

# %%
assert (round(count(tied) / 1e6), round(count(separate) / 1e6)) == (63, 101)

# %% [markdown]
# ### Two vocabularies
#
# **Question.** What if source and target have nothing in common, such as English and Chinese, or text and trees?
#
# Then ids no longer mean the same on both sides, and the source embedding needs a matrix of its own. The target
# embedding and the softmax may still share theirs, since both speak of target tokens. What changes:
#
# | | one vocabulary | two |
# |---|---|---|
# | matrices | $E$ | $E_s$ and $E_t$ |
# | `source` has ids below | $V$ | $V_s$ |
# | `target_in`, `target_out` have ids below | $V$ | $V_t$ |
# | logits | (B, T, $V$) | (B, T, $V_t$) |
# | a word that is the same in both languages | one row, learned from both sides | two rows |
#
# The paper shares one vocabulary of about 37,000 tokens for English and German. The package has shared vocabularies
# only. Two take a dozen lines on top of it: the class above, with its softmax tied to the target's matrix.

# %% tags=["row-S6"]
class TwoVocabularies(ThreeMatrices):
    def __init__(self, config, source_vocab_size):
        super().__init__(config, source_vocab_size)
        self.output = self.embedding  # one module for two places

two = TwoVocabularies(config, source_vocab_size=40)
assert two.source_embedding.weight.shape == (40, 16)
assert two.embedding.weight.shape == (23, 16)
assert two.output.weight.data_ptr() == two.embedding.weight.data_ptr()
assert two(torch.tensor([[39, 30, 2]]), target_in).shape == (1, 4, 23)
assert count(two) - count(Transformer(config)) == 40 * 16

# %%
try:
    two(source, torch.tensor([[1, 30]]))  # 30 is a source token only
except IndexError as error:
    print(type(error).__name__, "for a target id of 30 in a vocabulary of 23")
else:
    raise AssertionError("id 30 was found among 23 rows")

# %% [markdown]
# The other way round, a source id in the target's range, nothing can fail: 8 is a valid id in both, and stands for two
# different things. So nothing warns you if you encode the source with the target's tokenizer.
#
# **Where.**
#
# - Code: `count_parameters` in `annotated_transformer/tables/cost.py`; [section 5.1](5_1_data_and_batching.ipynb) makes
#   vocabularies.
# - Tests: `test_table_3_parameters_with_one_vocabulary` in `tests/test_paper.py`.
# - Exercises: {ref}`emb-ex-count`.

# %% [markdown]
# ## Why multiply by the square root?
#
# **Question.** "In the embedding layers, we multiply those weights by $\sqrt{d_{\mathrm{model}}}$", says the paper, and
# gives no reason. What does the factor do?
#
# **Equation.** What enters the stacks is a sum of two vectors, one that says *what* the token is and one that says
# *where* it stands:
#
# $$
# x_{pos} = \sqrt{d_{\mathrm{model}}}\, E_{t} + PE_{pos}
# $$ (emb-sum)
#
# The second one has a fixed length. Its entries come in pairs $\sin a, \cos a$ with $\sin^2 a + \cos^2 a = 1$, and
# there are $d_{\mathrm{model}} / 2$ pairs. The first one's length depends on how $E$ is drawn: if its entries have
# mean 0 and variance $\sigma^2$, the expected square of a row's length is $d_{\mathrm{model}}\, \sigma^2$, to be
# multiplied by the square of the factor.
#
# $$
# \|PE_{pos}\|^2 = \frac{d_{\mathrm{model}}}{2}
# \qquad
# \mathrm{E}\,\bigl\|\sqrt{d_{\mathrm{model}}}\, E_t\bigr\|^2 = d_{\mathrm{model}} \cdot d_{\mathrm{model}}\, \sigma^2
# $$ (emb-norms)
#
# Call the embedding's part of the two, $\|\text{embedding}\|^2 / (\|\text{embedding}\|^2 + \|PE\|^2)$, its **share**.
#
# **Check.** The package draws $E$ with $\sigma^2 = 1 / d_{\mathrm{model}}$, as the authors' own code
# {cite}`vaswani2018tensor2tensor` does; the paper is silent. Then the embedding has length about
# $\sqrt{d_{\mathrm{model}}}$ with the factor, and about 1 without it.

# %%
torch.manual_seed(0)
d_model = 512
E = SharedEmbedding(2000, d_model).weight.detach()
PE = positional_encoding(100, d_model)
assert_close(PE.norm(dim=1), torch.full((100,), math.sqrt(d_model / 2)))
scaled = math.sqrt(d_model) * E
for name, vectors in (("position", PE), ("embedding", E), ("with the factor", scaled)):
    print(f"{name:15} mean length {vectors.norm(dim=1).mean():6.2f}")
assert abs(E.norm(dim=1).mean() - 1) < 0.01

# %%
def share(embedding, positions):
    """The embedding's part of the summed squares."""
    what = embedding.square().sum(dim=1).mean()
    where = positions.square().sum(dim=1).mean()
    return (what / (what + where)).item()

with_factor, without = share(scaled, PE), share(E, PE)
print(f"with the factor {with_factor:.1%}, without {without:.1%}")
assert abs(with_factor - 2 / 3) < 0.01
assert abs(without - 1 / (1 + d_model / 2)) < 0.001

# %% [markdown]
# Two thirds with the factor, at every $d_{\mathrm{model}}$. Without it $1 / (1 + d_{\mathrm{model}}/2)$: less than half
# a percent, and less in a wider model. The layers would first see almost nothing but positions.
#
# **The answer depends on the initialisation.** PyTorch's `nn.Embedding` draws from $\mathcal{N}(0, 1)$. With that
# start, it is the *factor* that spoils the balance, this time in the other direction:

# %%
torch.manual_seed(0)
from_pytorch = nn.Embedding(2000, d_model).weight.detach()
tables, found = {"N(0, 1/d)": E, "N(0, 1)": from_pytorch}, {}
for name, table in tables.items():
    for factor in (1, math.sqrt(d_model)):
        part = found[name, factor > 1] = share(factor * table, PE)
        print(f"{name:10} factor {factor:5.2f}: embedding {part:.1%}")
assert abs(found["N(0, 1)", False] - 2 / 3) < 0.01
assert found["N(0, 1)", True] > 0.998

# %% mystnb={"image": {"alt": "Line chart of the embedding's share against d_model from 8 to 1024. Two curves coincide at two thirds, for N(0, 1/d) with the factor and N(0, 1) without. The curve for N(0, 1) with the factor rises from 0.94 to 1. The curve for N(0, 1/d) without the factor falls from 0.2 to nearly 0."}, "figure": {"caption": "The embedding's share of the sum {eq}`emb-sum` at the start of training, by equation {eq}`emb-norms`, for two ways of drawing $E$, with and without the factor. The package draws from N(0, 1/d) and has the factor.", "name": "fig-emb-share"}}
widths = 2 ** torch.arange(3, 11).double()
cases = {("N(0, 1)", True): (widths**2, "s-"), ("N(0, 1/d)", True): (widths, "o-"),
         ("N(0, 1)", False): (widths, "x--"), ("N(0, 1/d)", False): (widths**0, "v--")}
figure, ax = plt.subplots(figsize=(5.6, 2.8), layout="constrained")
for (name, factor), (squared_length, style) in cases.items():
    part = squared_length / (squared_length + widths / 2)
    assert abs(part[6] - found[name, factor]) < 0.01  # measured above, at 512
    label = f"{name}, {'factor' if factor else 'no factor'}"
    ax.plot(widths, part, style, label=label)
ax.set_xscale("log", base=2)
ax.set(xlabel="$d_{\\mathrm{model}}$", ylabel="share of the embedding")
ax.set_ylim(-0.03, 1.05)
figure.legend(loc="outside right upper")
plt.show()

# %% [markdown]
# ### Why not draw it larger, and leave out the factor?
#
# **Question.** $\mathcal{N}(0, 1)$ without a factor gives the same sum. So why a factor?
#
# Because the same matrix stands at the exit. There $x$ comes out of a layer norm, with $d_{\mathrm{model}}$ entries
# of variance 1, and a logit is its dot product with a row of $E$:
#
# $$
# \mathrm{Var}(x \cdot E_t) = d_{\mathrm{model}} \cdot 1 \cdot \sigma^2
# = \begin{cases} 1 & \text{for } \sigma^2 = 1/d_{\mathrm{model}} \\ d_{\mathrm{model}} & \text{for } \sigma^2 = 1\end{cases}
# $$ (emb-logit-variance)
#
# if $x$ and $E_t$ are independent. The entrance wants rows of length $\sqrt{d_{\mathrm{model}}}$, the exit wants rows
# of length 1. One matrix cannot have both, and the factor at the entrance makes up the difference. (This is our
# reading; the paper does not say so.)
#
# What do large logits cost? For logits that are independent normal numbers of variance $s^2$ with $s$ not too large,
# the expected loss of a guess is $\ln V + s^2/2$: the logarithm of a sum of $V$ terms $e^{z}$, each with the mean
# $e^{s^2/2}$.
#
# **Check.** At $s^2 = 1$: half a nat above uniform guessing. At $s^2 = 512$ the softmax is saturated, as in
# [section 3.2](3_2_attention.ipynb), and the first losses are enormous.

# %%
torch.manual_seed(0)
V, x = 8000, F.layer_norm(torch.randn(500, 512), [512])
target = torch.randint(V, (500,))
for name, scale in (("N(0, 1/d)", 512**-0.5), ("N(0, 1)", 1.0)):
    z = x @ (torch.randn(V, 512) * scale).T
    loss = F.cross_entropy(z, target).item()
    print(f"{name:10} variance of logits {z.var():6.1f}, loss {loss:5.1f} nats")
    if scale < 1:
        assert abs(loss - (math.log(V) + 0.5)) < 0.15
    else:
        assert loss > 5 * math.log(V)

# %% [markdown]
# ### A surprise: the untrained model repeats itself
#
# **Question.** Is $x$ independent of $E_t$ in the tied model?
#
# Not quite. The residual connections carry each input embedding through the decoder, so $x$ still contains a part of
# $E_t$ of the token that was *read*, and the exit compares it with that very row. So an untrained tied model finds the
# token it has just read the likeliest next one. How strongly depends on how much the sub-layers add at first; the
# package draws their weights small, so that much of the embedding survives.

# %%
torch.manual_seed(0)
untrained = {"tied": Transformer, "untied": ThreeMatrices}
source, target_in = torch.randint(4, 2000, (2, 4, 12))
for name, kind in untrained.items():
    size = ModelConfig(vocab_size=2000, N=2, d_model=256, d_ff=1024, h=4)
    with torch.no_grad():
        logits = kind(size).eval()(source, target_in)
    own = logits.gather(-1, target_in[..., None]).mean()
    repeats = (logits.argmax(dim=-1) == target_in).float().mean()
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), target_in[:, 1:].flatten())
    print(f"{name:6} repeats {repeats:4.0%}, own logit {own:5.2f}, loss {loss:5.2f} nats")
    assert repeats > 0.9 if name == "tied" else repeats < 0.1
    assert (loss > math.log(2000) + 2) == (name == "tied")

# %% [markdown]
# That is wrong nearly always, so the first losses of the tied model lie far above $\ln V + 1/2 = 8.1$, and its first
# training steps go into unlearning it.
#
# **Where.**
#
# - Code: one factor in `SharedEmbedding.forward`, none in `SharedEmbedding.logits`.
# - Tests: `test_embedding_is_scaled_by_sqrt_d_model_and_the_projection_is_not`,
#   `test_initial_embeddings_and_logits_have_variance_near_one` in `tests/model/test_embedding.py`.
# - Exercises: {ref}`emb-ex-code`, {ref}`emb-ex-position`, {ref}`emb-ex-reparametrise`.

# %% [markdown]
# ## Break it: unscaled, untied, scaled at the exit
#
# **Question.** Do these choices matter when the model is trained?
#
# Four models, alike but for one thing each. *Paper* is the package. *Untied* is `ThreeMatrices`. *Unscaled* leaves out
# the factor. *Scaled exit* multiplies the logits by $\sqrt{d_{\mathrm{model}}}$ as well, a misreading that a summary
# invites if it says only that embedding and output share their weights, with a scaling factor.

# %%
class Unscaled(Transformer):
    def embed(self, tokens, start=0):
        x = self.embedding(tokens) / math.sqrt(self.config.d_model)
        return self.dropout(x + self.positions(tokens.size(1), start))

class ScaledExit(Transformer):
    def logits(self, x):
        return super().logits(x) * math.sqrt(self.config.d_model)

kinds = {"paper": Transformer, "untied": ThreeMatrices,
         "unscaled": Unscaled, "scaled exit": ScaledExit}
size = ModelConfig(vocab_size=100, N=1, d_model=64, d_ff=128, h=4, p_drop=0.0)

# %% [markdown]
# And two tasks of opposite kind, with 96 symbols. In **reversal** the answer is the source, backwards: which symbol is
# the next to copy depends only on *where* it stands. In **substitution** each target symbol is to be replaced by its
# partner in a fixed random table: all that counts is *what* it is.

# %%
torch.manual_seed(5)
partner = torch.randperm(96) + 4  # the 96 symbols have ids 4 to 99

def random_symbols(generator):
    return torch.randint(4, 100, (32, 6), generator=generator)

def reversal(generator):
    source = random_symbols(generator)
    target_out = source.flip(1)
    return source, F.pad(target_out[:, :-1], (1, 0), value=1), target_out

def substitution(generator):
    source, target_in = random_symbols(generator), random_symbols(generator)
    return source, target_in, partner[target_in - 4]

# %%
def train(kind, task, steps, rate=3e-3):
    torch.manual_seed(0)
    network = kind(size)
    optimizer = torch.optim.Adam(network.parameters(), betas=(0.9, 0.98))
    generator, losses = torch.Generator().manual_seed(1), []
    for step in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = rate * min(1, step / 50)
        source, target_in, target_out = task(generator)
        logits = network(source, target_in)
        loss = F.cross_entropy(logits.flatten(0, 1), target_out.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)  # nats a token

# %% tags=["nbval-ignore-output"]
curves = {"substitution": {}, "reversal": {}}
for name, kind in kinds.items():
    curves["substitution"][name] = train(kind, substitution, steps=80)
    curves["reversal"][name] = train(kind, reversal, steps=150)
early = {name: loss[40:50].mean() for name, loss in curves["substitution"].items()}
late = {name: loss[140:].mean() for name, loss in curves["reversal"].items()}
for name in kinds:
    print(f"{name:12} substitution, step 50 {early[name]:.2f}, "
          f"reversal, step 150 {late[name]:.2f}")

# %%
assert early["untied"] < early["paper"] < early["unscaled"] - 0.3
assert late["unscaled"] < late["paper"] / 3 and late["untied"] < late["paper"] < 3.5
assert min(early["scaled exit"], late["scaled exit"]) > 4
assert curves["reversal"]["scaled exit"][0] > 20

# %% mystnb={"image": {"alt": "Two line charts of training loss in nats per token over training steps. Left, substitution: untied falls first, then paper, then unscaled, all to below 1. Right, reversal: unscaled ends lowest, then untied, then paper. On both tasks scaled exit starts far above the plot and ends near the dotted line of guessing."}, "figure": {"caption": "Training losses on two tasks, one seed, measured here. A dotted line marks guessing among 96 symbols.", "name": "fig-emb-break"}} tags=["nbval-ignore-output"]
figure, axes = plt.subplots(1, 2, figsize=(6.4, 2.8), layout="constrained")
for ax, (task, runs) in zip(axes, curves.items()):
    for (name, losses), style in zip(runs.items(), ("-", "--", "-.", ":")):
        smooth = losses.unfold(0, 10, 1).mean(dim=1)
        ax.plot(torch.arange(10, len(losses) + 1), smooth, style, label=name)
    ax.axhline(math.log(96), color=PALETTE[-1], linewidth=0.8, linestyle=":")
    ax.set(title=task, xlabel="step", ylim=(0, 8))
axes[0].set_ylabel("loss (nats a token)")
axes[1].legend()
plt.show()
assert len(curves) == 2

# %% [markdown]
# Read it with care; it is one small model, two artificial tasks and one seed. And Adam moves all weights at the same
# rate, so that a factor changes how fast the embedding learns, too ({ref}`emb-ex-reparametrise`).
#
# - **The factor is not good or bad by itself.** It moves the balance from *where* to *what*. Where *what* counts,
#   the model without it falls behind; where *where* counts, the model with it does.
# - **Scaling the exit is bad.** The logits start with a variance of $d_{\mathrm{model}}$ or more, the first loss is
#   several times that of a guess ($\ln 96 = 4.6$), and the model is still hardly better than a guess when the others
#   have learned much or all.
# - **Untying is not punished here**: with as much random data as you like, and a task in which a symbol's vector at the
#   entrance has nothing to do with its vector at the exit, sharing has nothing to give. What it saves are weights, and
#   what it brings is for real languages and finite data {cite}`press2017using,inan2017tying`.

# %% [markdown]
# ## Softmax, cross-entropy, perplexity
#
# **Question.** The model gives logits. How good are they?
#
# **Equation.** The softmax makes a distribution of them. The **cross-entropy** of one token is minus the natural
# logarithm of the probability that the model gave to the token $y$ that really came; its unit is the **nat**. The
# **perplexity** of a text of $n$ tokens is $e$ to the mean:
#
# $$
# p_v = \frac{e^{z_v}}{\sum_{u=1}^{V} e^{z_u}}
# \qquad
# \mathrm{nll} = -\ln p_y
# \qquad
# \mathrm{PPL} = \exp\Bigl(\frac{1}{n} \sum_{i=1}^{n} \mathrm{nll}_i\Bigr)
# $$ (emb-perplexity)
#
# A model that hesitates between $m$ tokens and finds them equally likely has perplexity $m$. Guessing has perplexity
# $V$, certainty has 1.
#
# **Code.** The package sums over the real target tokens of all sentences, end marks counted, and divides once;
# `perplexity` is $e$ to what comes out.

# %%
from annotated_transformer import perplexity
from annotated_transformer.translation.evaluation import mean_nll

show(mean_nll)

# %% [markdown]
# **Check.** Token by token, one sentence pair at a time, without batches or padding. Then the two ends of the scale.

# %% tags=["row-E14"]
torch.manual_seed(0)
model = Transformer(config).eval()
pairs = [([4, 5, 6], [7, 8]), ([9, 10], [11, 12, 13, 14]), ([15], [16])]  # ids
nll = []
with torch.no_grad():
    for source_ids, target_ids in pairs:  # </s> is 2, <s> is 1
        source, target_in = torch.tensor([*source_ids, 2]), torch.tensor([1, *target_ids])
        log_p = model(source[None], target_in[None])[0].log_softmax(dim=-1)
        nll += [-row[token].item() for row, token in zip(log_p, [*target_ids, 2])]
assert len(nll) == 10
assert math.isclose(perplexity(model, pairs), math.exp(sum(nll) / 10), rel_tol=1e-5)

# %% tags=["row-E14"]
uniform, sure = torch.zeros(1, 1, 100), torch.zeros(1, 1, 100)
sure[..., 7] = 100.0
for logits, answer in ((uniform, 100), (sure, 1)):
    _, nll = label_smoothed_cross_entropy(logits, torch.tensor([[7]]))
    assert math.isclose(nll.exp().item(), answer, rel_tol=1e-5)

# %% [markdown]
# **The mean must be taken over tokens, and before the exponential.** The mean of the sentences' perplexities is another
# number, and so is $e$ to a mean in which a short sentence weighs as much as a long one ({ref}`emb-ex-mean`).
#
# **Units.** A nat is $1/\ln 2 = 1.44$ **bits**. The paper's base model has a perplexity of 4.92 on its development set
# (Table 3, quoted): 1.59 nats or 2.30 bits a token.

# %%
nats = math.log(4.92)
print(f"{nats:.2f} nats, {nats / math.log(2):.2f} bits")
assert (round(nats, 2), round(nats / math.log(2), 2)) == (1.59, 2.30)
assert math.isclose(2 ** (nats / math.log(2)), 4.92)

# %% [markdown]
# ### Perplexity per what?
#
# **Question.** Model A has perplexity 5.0, model B 4.0. Which is better?
#
# You cannot say before you know their vocabularies. The paper's Table 3 warns: "Listed perplexities are per-wordpiece,
# according to our byte-pair encoding, and should not be compared to per-word perplexities." What two models can be
# compared by is the probability they give to the whole *text*, in nats. A vocabulary of longer pieces cuts the same
# text into fewer tokens, and spreads the same nats over them:
#
# $$
# \mathrm{PPL}_{\text{word}} = \exp\Bigl(\frac{\text{nats of the text}}{n_{\text{words}}}\Bigr)
# = \mathrm{PPL}_{\text{piece}}^{\;n_{\text{pieces}} / n_{\text{words}}}
# $$ (emb-per-word)
#
# **Check.** The purest case. A text whose letters are drawn at random from an alphabet of four: no model can expect to
# do better than a probability of 1/4 a letter. Cut it into single letters, pairs or triples, and give each model the
# best it can have:

# %% tags=["row-E14"]
n_letters = 12
for piece_length in (1, 2, 3):
    V, n_pieces = 4**piece_length, n_letters // piece_length
    logits, text = torch.zeros(1, n_pieces, V), torch.ones(1, n_pieces, dtype=torch.long)
    _, nll = label_smoothed_cross_entropy(logits, text)
    per_piece, per_letter = math.exp(nll / n_pieces), math.exp(nll / n_letters)
    print(f"pieces of {piece_length}: {nll:.2f} nats the text, "
          f"perplexity {per_piece:4.1f} a piece, {per_letter:.1f} a letter")
    assert math.isclose(per_piece, V, rel_tol=1e-5)
    assert math.isclose(per_piece ** (n_pieces / n_letters), 4, rel_tol=1e-5)

# %% [markdown]
# Perplexities of 4, 16 and 64, for the same knowledge of the same text. And for the question above: if A cuts a word
# into 1.2 pieces and B into 1.5, A has $5.0^{1.2} = 6.9$ a word and B $4.0^{1.5} = 8.0$. A is better.

# %%
assert (round(5.0**1.2, 1), round(4.0**1.5, 1)) == (6.9, 8.0)

# %% [markdown]
# How many pieces has a word? For the vocabulary of the model that this book trains in
# [section 6.1](6_1_translation.ipynb), on one sentence:

# %% tags=["nbval-ignore-output"]
from annotated_transformer import Tokenizer

tokenizer = Tokenizer.load("model/tokenizer.model")
sentence = "My neighbour's umbrella is extraordinarily colourful."
pieces = tokenizer.pieces(tokenizer.encode(sentence))
n_words = len(sentence.split())
print(*pieces)
print(f"{len(pieces)} pieces, {n_words} words")
assert len(pieces) > n_words

# %% [markdown]
# **Where.**
#
# - Code: `perplexity` in `annotated_transformer/translation/evaluation.py`; `label_smoothed_cross_entropy` in
#   `annotated_transformer/training/loss.py` gives the smoothed loss that is trained on and, beside it, the nll that perplexity
#   is made of ([section 5.4](5_4_regularization.ipynb) says how they differ).
# - Tests: `test_value_and_gradient_equal_pytorchs_cross_entropy` in `tests/training/test_loss.py`.
# - Exercises: {ref}`emb-ex-mean`, {ref}`emb-ex-compare`.

# %% [markdown]
# ## A softmax that does not overflow
#
# **Question.** Equation {eq}`emb-perplexity` has $e^{z}$ in it. What if $z$ is 100?
#
# The largest number in float32 is about $3.4 \cdot 10^{38}$, and $e^{89}$ is larger. In float16 $e^{12}$ is too large.
# Then the softmax is infinity by infinity, which is NaN ("not a number").
#
# **Equation.** Subtract the largest logit $m$. Numerator and denominator both lose the factor $e^m$, so nothing
# changes, and now every exponent is at most 0. For the loss one never forms $p$ at all: its logarithm has a form of its
# own, with the **log-sum-exp** of the logits.
#
# $$
# -\ln p_y = \mathrm{lse}(z) - z_y,
# \qquad
# \mathrm{lse}(z) = \ln \sum_v e^{z_v} = m + \ln \sum_v e^{z_v - m}
# $$ (emb-log-sum-exp)
#
# **Code.** The package's loss computes exactly this, `log_z_N` being the log-sum-exp.

# %%
from annotated_transformer.training.loss import SmoothedCrossEntropy

show(SmoothedCrossEntropy.forward)

# %% [markdown]
# **Check.** By hand, with logits that the naive form cannot stand; then where the limits are.

# %%
def log_sum_exp(z):
    m = z.max(dim=-1, keepdim=True).values
    return (m + (z - m).exp().sum(dim=-1, keepdim=True).log())[..., 0]

torch.manual_seed(0)
z = 100 * torch.randn(50, 20)
target = torch.randint(4, 20, (50,))
by_hand = (log_sum_exp(z) - z[torch.arange(50), target]).sum()
_, nll = label_smoothed_cross_entropy(z[None], target[None])
assert_close(by_hand, nll)
assert_close(nll, F.cross_entropy(z, target, reduction="sum"))

# %%
naive = (z.exp() / z.exp().sum(dim=-1, keepdim=True))
n_rows = naive.isnan().any(dim=-1).sum().item()
print(f"naive softmax: {n_rows} of 50 rows have NaN")
assert naive.isnan().any() and not z.softmax(dim=-1).isnan().any()
for dtype, last in ((torch.float16, 11), (torch.float32, 88), (torch.float64, 709)):
    exponents = torch.tensor([last, last + 1], dtype=dtype).exp()
    assert exponents.isinf().tolist() == [False, True]
    print(f"{str(dtype):13} exp({last}) is finite, exp({last + 1}) is not")

# %% [markdown]
# **Break it.** A softmax that does not overflow is not enough. Take its logarithm afterwards, and a token with
# probability $e^{-200}$, which float32 rounds to 0, has an infinite loss, and a gradient of NaN.

# %%
z = torch.tensor([200.0, 0.0], requires_grad=True)
late = -z.softmax(dim=-1).log()[1]
(gradient,) = torch.autograd.grad(late, z)
print("logarithm of the softmax:", late.item(), gradient.tolist())
right = -z.log_softmax(dim=-1)[1]
(gradient,) = torch.autograd.grad(right, z)
print("log_softmax:             ", right.item(), gradient.tolist())
assert late.isinf() and right == 200 and gradient.tolist() == [1, -1]

# %% [markdown]
# This is why the model returns logits and not probabilities: the loss needs the logits, and greedy and beam search
# need only their log-softmax. PyTorch's `nn.CrossEntropyLoss` takes logits too. Give it probabilities and it applies a
# second softmax without a word ({ref}`emb-ex-twice`).
#
# **Where.**
#
# - Exercises: {ref}`emb-ex-lse`, {ref}`emb-ex-twice`.

# %% [markdown]
# ## Temperature
#
# **Question.** What if all logits are multiplied by the same number?
#
# **Equation.** Dividing by a **temperature** $\tau$ before the softmax makes the distribution flatter ($\tau > 1$)
# or sharper ($\tau < 1$), and keeps the order of the tokens:
#
# $$
# p_v(\tau) = \frac{e^{z_v / \tau}}{\sum_u e^{z_u / \tau}},
# \qquad
# \tau \to 0: \text{ all on the largest}, \quad
# \tau \to \infty: \text{ all equal}
# $$ (emb-temperature)
#
# The paper has no temperature, which is $\tau = 1$. Beam search with one would rank differently; greedy search takes
# the largest and does not notice. The *scaled exit* model above has a temperature of $1 / \sqrt{d_{\mathrm{model}}}$,
# so cold that it had hardly begun to learn when the runs ended.
#
# **Check.** The ends, the order, and the perplexity of the distribution, $e$ to its **entropy**
# $-\sum_v p_v \ln p_v$: the number of tokens it hesitates between.

# %%
z = torch.tensor([3.0, 2.0, 1.0, 0.0, -1.0])

def at_temperature(tau):
    return (z / tau).softmax(dim=-1)

def hesitates_between(p):
    return (-(p * p.log()).nansum()).exp().item()

for tau in (0.01, 0.5, 1, 2, 100):
    p = at_temperature(tau)
    print(f"temperature {tau:6}: {p[0]:.3f} on the first, {hesitates_between(p):.2f} tokens")
    assert p.argmax() == 0 and (p.diff() <= 0).all()
assert_close(at_temperature(0.01), torch.eye(5)[0])
assert_close(at_temperature(1e6), torch.full((5,), 0.2), atol=1e-5, rtol=0)

# %% mystnb={"image": {"alt": "Grouped bar chart of the probabilities of five tokens with logits 3, 2, 1, 0 and minus 1, at temperatures 0.5, 1 and 3. At 0.5 the first token has nearly 0.9. At 1 it has about 0.64. At 3 the five bars fall gently from about 0.35 to 0.09."}, "figure": {"caption": "The same five logits at three temperatures.", "name": "fig-emb-temperature"}}
figure, ax = plt.subplots(figsize=(5, 2.5), layout="constrained")
for shift, tau in zip((-0.27, 0, 0.27), (0.5, 1, 3)):
    ax.bar(torch.arange(5) + shift, at_temperature(tau), width=0.25, label=f"temperature {tau}")
ax.set_xticks(range(5), [f"{logit:g}" for logit in z.tolist()])
ax.set(xlabel="logit", ylabel="probability")
ax.legend()
plt.show()
first = [at_temperature(tau)[0] for tau in (0.5, 1, 3)]
assert first[0] > 0.85 > 0.65 > first[1] > 0.6 > 0.4 > first[2]

# %% [markdown]
# **Where.**
#
# - The package has no temperature. The length penalty of the beam search is another thing:
#   [section 6.1](6_1_translation.ipynb).
# - Exercises: {ref}`emb-ex-temperature`.
#
# ## Exercises
#
# Each has a hint and a solution, and both stay closed until you open them. Where the answer can be computed, a folded
# cell below the exercise computes it.
#
# ```{exercise} Predict the shapes
# :label: emb-ex-shapes
#
# $V = 37{,}000$, $d_{\mathrm{model}} = 512$, and a batch of 3 sentences with 7 target positions. What are the shapes
# of `target_in`, of its embedding, of the decoder's output and of the logits? How many bytes do the logits take in
# float32? For a batch of 25,000 target tokens?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# A float32 has four bytes. There is one logit for every token of the vocabulary at every position.
# ```
#
# ```{solution} emb-ex-shapes
# :class: dropdown
#
# (3, 7); (3, 7, 512); (3, 7, 512); (3, 7, 37000). That is $21 \cdot 37{,}000 \cdot 4 = 3.1$ million bytes; for 25,000
# tokens 3.7 thousand million. It is the largest tensor of the whole training step, and the reason why
# `linear_cross_entropy` in `annotated_transformer/fast/blockwise_loss.py` never holds all of it.
# ```

# %% tags=["hide-cell"]
with torch.device("meta"):
    big_embedding = SharedEmbedding(37_000, 512)
    embedded = big_embedding(torch.zeros(3, 7, dtype=torch.long))
    logits = big_embedding.logits(embedded)
assert (tuple(embedded.shape), tuple(logits.shape)) == ((3, 7, 512), (3, 7, 37_000))
assert round(logits.numel() * 4 / 1e6, 1) == 3.1 and round(25_000 * 37_000 * 4 / 1e9, 1) == 3.7

# %% [markdown]
# ```{exercise} The embedding
# :label: emb-ex-code
#
# Write `embed(tokens, E)`: the vectors of `tokens`, with the paper's factor, for a matrix `E` of any size. Check it
# with `check("3.4", embed)`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# A tensor of ids can index a tensor. Which axis of `E` is $d_{\mathrm{model}}$?
# ```
#
# ```{solution} emb-ex-code
# :class: dropdown
#
# `return E[tokens] * math.sqrt(E.size(1))`.
# ```

# %% tags=["hide-cell"]
def embed(tokens, E):
    return E[tokens] * math.sqrt(E.size(1))

check("3.4", embed)

# %% [markdown]
# ```{exercise} The length of a position
# :label: emb-ex-position
#
# Show that $\|PE_{pos}\| = \sqrt{d_{\mathrm{model}}/2}$ for every $pos$. The learned positions of Table 3's row (E)
# are drawn from $\mathcal{N}(0, 1/d_{\mathrm{model}})$ in this package. What is the embedding's share then?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Add up the squares pair by pair. For the second part, the expected squared length of a row is
# $d_{\mathrm{model}} \cdot 1 / d_{\mathrm{model}}$.
# ```
#
# ```{solution} emb-ex-position
# :class: dropdown
#
# There are $d_{\mathrm{model}}/2$ pairs with $\sin^2 + \cos^2 = 1$. A learned position starts with length about 1, so
# the embedding's share is $d_{\mathrm{model}} / (d_{\mathrm{model}} + 1)$: the model is nearly blind to order at
# first, and has to learn the positions' size too.
# ```

# %% tags=["hide-cell"]
from annotated_transformer.model.embedding import LearnedPositions

torch.manual_seed(0)
learned = LearnedPositions(512, max_len=100).weight.detach()
scaled = SharedEmbedding(2000, 512)(torch.arange(2000)).detach()
assert abs(share(scaled, learned) - 512 / 513) < 1e-3

# %% [markdown]
# ```{exercise} Count
# :label: emb-ex-count
#
# The paper's big model: $d_{\mathrm{model}} = 1024$. How many weights does three-way tying save with 37,000 tokens?
# What share of the tied big model is its embedding? A model from English ($V_s = 32{,}000$) to Chinese
# ($V_t = 45{,}000$) with $d_{\mathrm{model}} = 512$, target embedding and softmax tied: how many weights have its
# embeddings?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Equation {eq}`emb-saved`. `count_parameters` in `annotated_transformer/tables/cost.py` gives the whole model.
# ```
#
# ```{solution} emb-ex-count
# :class: dropdown
#
# $2 \cdot 37{,}000 \cdot 1024 = 75.8$ million saved. The embedding is 18 percent of the tied model's 214 million. The
# two vocabularies take $(32{,}000 + 45{,}000) \cdot 512 = 39.4$ million.
# ```

# %% tags=["hide-cell"]
from annotated_transformer.tables.cost import count_parameters

big = count_parameters(ModelConfig.big(vocab_size=37_000))
assert round(2 * 37_000 * 1024 / 1e6, 1) == 75.8
assert round(big / 1e6) == 214 and round(37_000 * 1024 / big, 2) == 0.18
assert round((32_000 + 45_000) * 512 / 1e6, 1) == 39.4

# %% [markdown]
# ```{exercise} A token that never comes
# :label: emb-ex-unseen
#
# Token 20 is in neither sentence of the batch. Which of the three uses gives its row a gradient? In which direction
# does one step of plain gradient descent move it, for a batch of one position with output $x$? What happens to the
# row of the *padding* token?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The derivative of $\mathrm{lse}(z) - z_y$ with respect to $z_v$ is $p_v - [v = y]$, and $z_v = x \cdot E_v$.
# ```
#
# ```{solution} emb-ex-unseen
# :class: dropdown
#
# Only the softmax: the gradient of row $v$ is $p_v\, x$, so the row moves away from $x$, by little if $p_v$ is small.
# The padding token is never a target, so its row is pushed away at every real position too. With separate matrices a
# source token that never comes would keep its first random vector for ever.
# ```

# %% tags=["hide-cell"]
assert apart["source"][20].norm() == 0 and apart["target"][20].norm() == 0 and apart["softmax"][20].norm() > 0
torch.manual_seed(0)
E = torch.randn(23, 16, dtype=torch.float64, requires_grad=True)
x = torch.randn(16, dtype=torch.float64)
p = (E @ x).softmax(dim=-1).detach()
F.cross_entropy((E @ x)[None], torch.tensor([5])).backward()
assert_close(E.grad[20], p[20] * x)
assert_close(E.grad[5], (p[5] - 1) * x)

# %% [markdown]
# ```{exercise} The factor, moved into the matrix
# :label: emb-ex-reparametrise
#
# Draw $E' = \sqrt{d_{\mathrm{model}}}\, E$ from $\mathcal{N}(0, 1)$, use it without a factor at the entrance, and
# divide the logits by $\sqrt{d_{\mathrm{model}}}$. Show that this model computes the same at the start. Does it stay
# the same under Adam?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# In its first step, Adam changes every weight by about the learning rate, whatever the size of the gradient is.
# Compare the change with the size of the weights.
# ```
#
# ```{solution} emb-ex-reparametrise
# :class: dropdown
#
# $E' = \sqrt{d}\,E$ at the entrance and $x E'^\top / \sqrt d = x E^\top$ at the exit: the same. But an Adam step of
# rate $r$ moves an entry of $E$ by about $r$, which is $r \sqrt d$ at the entrance; an entry of $E'$ it moves by $r$.
# So the factor also acts as a learning rate for the embedding that is $\sqrt{d_{\mathrm{model}}}$ times larger.
# ```

# %% tags=["hide-cell"]
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

# %% [markdown]
# ```{exercise} Three ways to take a mean
# :label: emb-ex-mean
#
# Two sentences: the first has 2 tokens with 1 nat each, the second 8 tokens with 3 nats each. Compute the perplexity
# of the text, the mean of the two sentences' perplexities, and $e$ to the mean of the two sentences' mean losses.
# Which one may you report?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The text has 10 tokens and 26 nats.
# ```
#
# ```{solution} emb-ex-mean
# :class: dropdown
#
# $e^{2.6} = 13.5$; $(e^1 + e^3)/2 = 11.4$; $e^2 = 7.4$. Only the first belongs to the probability of the text, since
# that is a product over tokens.
# ```

# %% tags=["hide-cell"]
sentences = [[1.0] * 2, [3.0] * 8]
means = [sum(sentence) / len(sentence) for sentence in sentences]
assert round(math.exp(sum(map(sum, sentences)) / 10), 1) == 13.5
assert round(sum(map(math.exp, means)) / 2, 1) == 11.4
assert round(math.exp(sum(means) / 2), 1) == 7.4

# %% [markdown]
# ```{exercise} Compare
# :label: emb-ex-compare
#
# Suppose that the paper's vocabulary cuts a German word into 1.3 pieces (an assumption; the paper does not say). What
# would the base model's 4.92 a piece be per word? A second model has perplexity 2.1 per *character*, and a word has
# 6.5 characters, the space included. Which one is better?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Equation {eq}`emb-per-word`, twice.
# ```
#
# ```{solution} emb-ex-compare
# :class: dropdown
#
# $4.92^{1.3} = 7.9$ per word, against $2.1^{6.5} = 124$. The small perplexity belongs to the much worse model.
# ```

# %% tags=["hide-cell"]
assert round(4.92**1.3, 1) == 7.9 and round(2.1**6.5) == 124

# %% [markdown]
# ```{exercise} Log-sum-exp by hand
# :label: emb-ex-lse
#
# Compute $\mathrm{lse}(1000, 1000)$ and $\mathrm{lse}(1000, 0)$ without a computer. Show that
# $\max_v z_v \le \mathrm{lse}(z) \le \max_v z_v + \ln V$. When is each side an equality?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Equation {eq}`emb-log-sum-exp`. The sum has $V$ terms, each at most 1, and one of them is 1.
# ```
#
# ```{solution} emb-ex-lse
# :class: dropdown
#
# $1000 + \ln 2 = 1000.69$, and $1000 + \ln(1 + e^{-1000})$, which no floating-point number can tell from 1000. The sum
# of $e^{z_v - m}$ lies between 1 and $V$. It is $V$ if all logits are equal (uniform guessing, loss $\ln V$), and
# approaches 1 if one is far above the rest.
# ```

# %% tags=["hide-cell"]
z = torch.tensor([[1000.0, 1000.0], [1000.0, 0.0]], dtype=torch.float64)
assert_close(log_sum_exp(z), torch.tensor([1000 + math.log(2), 1000], dtype=torch.float64))
torch.manual_seed(0)
z = 5 * torch.randn(1000, 20, dtype=torch.float64)
largest = z.max(dim=-1).values
assert (largest <= log_sum_exp(z)).all() and (log_sum_exp(z) <= largest + math.log(20)).all()

# %% [markdown]
# ```{exercise} Softmax twice
# :label: emb-ex-twice
#
# Somebody ends the model with a softmax and trains with `nn.CrossEntropyLoss`, which expects logits. What is the
# smallest loss this can reach for $V = 37{,}000$, and with which output? What would you see in the log?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The "logits" are now probabilities: at best 1 for the right token and 0 for the others.
# ```
#
# ```{solution} emb-ex-twice
# :class: dropdown
#
# With the best output, the loss is $\ln(e + V - 1) - 1 = 9.52$ nats, where guessing costs $\ln V = 10.52$. The loss
# starts near 10.5 and never falls below 9.5, however long you train: it looks like a model that cannot learn.
# ```

# %% tags=["hide-cell"]
V = 37_000
perfect = torch.zeros(1, V)
perfect[0, 5] = 1.0  # a distribution that is right and sure
twice = nn.CrossEntropyLoss()(perfect, torch.tensor([5])).item()
assert math.isclose(twice, math.log(math.e + V - 1) - 1, rel_tol=1e-5)
assert (round(twice, 2), round(math.log(V), 2)) == (9.52, 10.52)

# %% [markdown]
# ```{exercise} Change the model and measure
# :label: emb-ex-temperature
#
# The *scaled exit* model suffers because its logits begin too large. Give it an exit with a learned temperature, a
# parameter that starts at $\sqrt{d_{\mathrm{model}}}$ and divides its logits. Train it on `substitution` for 50 steps.
# Does it do as well as the paper's? And without the learned temperature, but with a matrix drawn
# $\sqrt{d_{\mathrm{model}}}$ times smaller? Guess first.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `self.temperature = nn.Parameter(...)` in `__init__`, after `super().__init__(config)`. For the second part divide
# `self.embedding.weight.data`. What does that do to the entrance?
# ```
#
# ```{solution} emb-ex-temperature
# :class: dropdown
#
# With the temperature the logits begin as the paper's do, and the losses follow the paper's. With the smaller matrix
# the logits begin right as well, and the entrance has the small share of the unscaled model, so you may expect it to
# learn as slowly. It learns *faster* than the paper's. A step of Adam is as long for a small weight as for a large one,
# and the factor at the exit makes it $\sqrt{d_{\mathrm{model}}}$ times longer there: you have changed a learning rate
# together with an initial value. Before you believe that a choice of scale is better, try other learning rates for
# both.
# ```

# %% tags=["hide-cell", "nbval-ignore-output"]
class LearnedTemperature(ScaledExit):
    def __init__(self, config):
        super().__init__(config)
        self.temperature = nn.Parameter(torch.tensor(math.sqrt(config.d_model)))

    def logits(self, x):
        return super().logits(x) / self.temperature

class SmallerMatrix(ScaledExit):
    def __init__(self, config):
        super().__init__(config)
        self.embedding.weight.data /= math.sqrt(config.d_model)

# %% tags=["hide-cell", "nbval-ignore-output"]
changed = {kind.__name__: train(kind, substitution, steps=50) for kind in (LearnedTemperature, SmallerMatrix)}
for name, losses in changed.items():
    print(f"{name:20} first loss {losses[0]:.1f}, steps 41 to 50: {losses[40:].mean():.2f}")
print(f"paper                first loss {curves['substitution']['paper'][0]:.1f}, steps 41 to 50: {early['paper']:.2f}")
assert changed["LearnedTemperature"][0] < 8 < curves["substitution"]["scaled exit"][0]
assert changed["LearnedTemperature"][40:].mean() < early["scaled exit"] - 0.5
assert changed["SmallerMatrix"][40:].mean() < early["paper"] - 0.5

# %% [markdown]
# ## What to remember
#
# - One matrix $E$ serves as source embedding, target embedding and projection before the softmax (equation
#   {eq}`emb-shared`); its gradient is the sum of the three. It needs one vocabulary for both languages, and saves 38
#   million weights in the base model.
# - The factor $\sqrt{d_{\mathrm{model}}}$ belongs to the entrance only. With rows drawn from
#   $\mathcal{N}(0, 1/d_{\mathrm{model}})$ it makes the embedding two thirds of what enters the stacks, while the logits
#   begin with variance 1. With another initialisation it does something else.
# - Loss is in nats; perplexity is $e$ to the mean loss per token. Perplexities compare only for the same tokens; else
#   convert them to the same unit of text.
# - Compute losses from logits, with log-sum-exp. A logarithm of a softmax can be minus infinity.
# - Multiplying logits by a number is a temperature.
#
# What the sum {eq}`emb-sum` adds to the embedding is the subject of [section 3.5](3_5_positional_encoding.ipynb).
