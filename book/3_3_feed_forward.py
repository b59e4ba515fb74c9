# %% [markdown]
# # 3.3 Position-wise feed-forward networks
#
# *Section 3.3 of the paper {cite}`vaswani2017attention`: the small network that every layer applies to each position
# after attention.*
#
# Attention carries vectors from one position to another and takes their mean. What a position then *does* with the
# mean is left to a second sub-layer: two matrix products with a threshold between them, applied to every position
# alone. It is the plainest part of the Transformer and the heaviest one: two thirds of an encoder layer's weights are
# in it.
#
# When you have read this chapter you can
#
# - compute equation 2 with a pencil and with the package, and say where its graph has its kinks;
# - show that it treats each position alone, and that it is a pair of convolutions of width 1;
# - count its weights and its operations, and say from which sentence length attention costs more;
# - say what a larger $d_{\mathrm{ff}}$ buys, in the paper's table and in an experiment of your own;
# - read it as a memory of keys and values, and look at what a trained one answers to;
# - prove that without the threshold the two matrices are one.
#
# Letters for shapes (B sentences, L positions, D $d_{\mathrm{model}}$, F $d_{\mathrm{ff}}$, ...) are listed in
# [Notation](notation.md). [The chapter on attention](3_2_attention.ipynb) comes before this one.

# %%
import math
from collections import Counter

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

# %%
from annotated_transformer import ModelConfig, Transformer, scaled_dot_product_attention
from annotated_transformer.exercises import check
from annotated_transformer.looking.visualization import HEAT_MAP, PALETTE, show, use_style

use_style()
torch.set_printoptions(precision=4, sci_mode=False)

# %% [markdown]
# ## Equation 2
#
# **Question.** Attention has brought a position what it needs from the others. How does the position make something
# new of it?
#
# Not by attention itself. Once its weights are fixed, attention is *linear* in the values: the output is a weighted
# mean of them, and all the means in the world do not make "both $a$ and $b$", or "$a$, but not $b$". For that, a
# vector has to pass a **non-linearity**, a function whose graph is not a straight line.
#
# **Equation.** The paper's equation 2. The $\max$ is taken entry by entry; $x$ is one position's vector, as a row.
#
# $$
# \mathrm{FFN}(x) = \max(0,\; x W_1 + b_1)\, W_2 + b_2
# $$ (ffn-equation)
#
# $\max(0, \cdot)$ is the **ReLU**, short for *rectified linear unit* {cite}`nair2010rectified`: it passes what is
# positive and replaces what is negative by 0. The $d_{\mathrm{ff}}$ numbers that come out of it are the **hidden
# units**. A unit with a value above 0 is **on**.
#
# | | shape | base model |
# |---|---|---|
# | $x$, $\mathrm{FFN}(x)$ | $1 \times d_{\mathrm{model}}$ | 512 |
# | $W_1$, $b_1$ | $d_{\mathrm{model}} \times d_{\mathrm{ff}}$, $d_{\mathrm{ff}}$ | $512 \times 2048$, 2048 |
# | hidden units | $1 \times d_{\mathrm{ff}}$ | 2048 |
# | $W_2$, $b_2$ | $d_{\mathrm{ff}} \times d_{\mathrm{model}}$, $d_{\mathrm{model}}$ | $2048 \times 512$, 512 |
#
# The network widens a vector to four times its size, thresholds it, and narrows it again. Unlike the projections of
# attention, both products have a **bias**, a vector that is added.
#
# **Code.** Read `forward` from the inside out. `activation` is the ReLU unless you ask for another, and `dropout` is
# off unless you ask for it; both options have a section of their own below.

# %%
from annotated_transformer import PositionwiseFeedForward

show(PositionwiseFeedForward)

# %% [markdown]
# **Check.** Three positions, $d_{\mathrm{model}} = d_{\mathrm{ff}} = 2$: this book's worked example W7, which is also
# an exercise of [section 3.2](3_2_attention.ipynb), in full. Take a pencil.
#
# $$
# x = \begin{pmatrix} 1&0\\0&1\\1&1 \end{pmatrix} \quad
# W_1 = \begin{pmatrix} 1&1\\0&1 \end{pmatrix} \quad b_1 = (0, 1) \quad
# W_2 = \begin{pmatrix} 1&0\\2&1 \end{pmatrix} \quad b_2 = (1, -1)
# $$
#
# Step by step. The bias is added to every row:
#
# $$
# xW_1 = \begin{pmatrix} 1&1\\0&1\\1&2 \end{pmatrix}
# \;\to\; xW_1 + b_1 = \begin{pmatrix} 1&2\\0&2\\1&3 \end{pmatrix}
# \;\to\; \max(0, \cdot) = \begin{pmatrix} 1&2\\0&2\\1&3 \end{pmatrix}
# $$
#
# $$
# \max(0, \cdot)\, W_2 = \begin{pmatrix} 5&2\\4&2\\7&3 \end{pmatrix}
# \;\to\; \mathrm{FFN}(x) = \begin{pmatrix} 6&1\\5&1\\8&2 \end{pmatrix}
# $$
#
# Each step as a line. `nn.Linear` stores its matrix transposed, rows being outputs, so the weights are copied in
# transposed.

# %%
x = torch.tensor([[1.0, 0], [0, 1], [1, 1]])
W_1, b_1 = torch.tensor([[1.0, 1], [0, 1]]), torch.tensor([0.0, 1])
W_2, b_2 = torch.tensor([[1.0, 0], [2, 1]]), torch.tensor([1.0, -1])

w7 = PositionwiseFeedForward(d_model=2, d_ff=2)
w7.W_1.weight.data, w7.W_1.bias.data = W_1.T, b_1
w7.W_2.weight.data, w7.W_2.bias.data = W_2.T, b_2

# %% tags=["row-W7"]
before = x @ W_1 + b_1
assert before.tolist() == [[1, 2], [0, 2], [1, 3]]
hidden = before.clamp(min=0)
assert torch.equal(hidden, before)  # nothing was negative
assert (hidden @ W_2).tolist() == [[5, 2], [4, 2], [7, 3]]
by_hand = hidden @ W_2 + b_2
assert by_hand.tolist() == [[6, 1], [5, 1], [8, 2]]
assert torch.equal(w7(x), by_hand)
print(w7(x).detach())

# %% [markdown]
# The example is kind: nothing was negative, so the maximum had nothing to do, and you could leave it out without
# noticing. A fourth position, $(-1, 1)$, makes a difference: $xW_1 + b_1 = (-1, 1)$, the first unit goes off, and the
# output is $(0, 1)\,W_2 + b_2 = (3, 0)$. Without the maximum it would be $(2, 0)$.

# %%
fourth = torch.tensor([-1.0, 1])
assert (fourth @ W_1 + b_1).tolist() == [-1, 1]
assert w7(fourth).tolist() == [3, 0]
assert ((fourth @ W_1 + b_1) @ W_2 + b_2).tolist() == [2, 0]

# %% [markdown]
# An example of size 2 in whole numbers hides much. So here is equation {eq}`ffn-equation` again in Python floats,
# position by position and unit by unit, at sizes that are all different, against the package.

# %%
def ffn_by_hand(X, W_1, b_1, W_2, b_2):
    output = []
    for x in X:
        hidden = [max(0.0, sum(a * w for a, w in zip(x, column)) + b)
                  for column, b in zip(zip(*W_1), b_1)]
        output.append([sum(h * w for h, w in zip(hidden, column)) + b
                       for column, b in zip(zip(*W_2), b_2)])
    return torch.tensor(output, dtype=torch.float64)

# %% tags=["row-L0", "row-L4"]
torch.manual_seed(0)
L, d_model, d_ff = 5, 4, 7
ffn = PositionwiseFeedForward(d_model, d_ff).double()
X = torch.randn(L, d_model, dtype=torch.float64)
weights = [ffn.W_1.weight.T, ffn.W_1.bias, ffn.W_2.weight.T, ffn.W_2.bias]
loops = ffn_by_hand(X.tolist(), *[w.tolist() for w in weights])
assert_close(ffn(X), loops)
n_off = (ffn.activation(ffn.W_1(X)) == 0).sum().item()
print(f"{n_off} of {L * d_ff} hidden units are off")

# %% [markdown]
# **Picture.** Walk along a line through the inputs of W7, $x = (t, 1)$. Its two hidden units are $\max(0, t)$ and
# $\max(0, t + 2)$: two ramps, which begin at $t = 0$ and $t = -2$. The outputs are weighted sums of these ramps and a
# constant, so they are straight except for **kinks** where a unit goes on. Every function that equation
# {eq}`ffn-equation` can make is of this kind, straight pieces joined at kinks, and a network with more units has more
# kinks to spend.

# %% mystnb={"image": {"alt": "Two line charts over t from minus 4 to 2. Left: the two hidden units, ramps that are zero and then rise from t = 0 and from t = minus 2. Right: the two outputs, one solid, one dashed, which are flat on the left and bend upwards at minus 2 and, the first one, again at 0. Dotted straight lines show the outputs without the maximum; they agree with the outputs on the right only: with the first from 0, with the second from minus 2."}, "figure": {"caption": "Example W7 along the line $x = (t, 1)$. Left: its hidden units. Right: its outputs, with the maximum (solid, dashed) and without it (dotted).", "name": "fig-ffn-kinks"}}
t = torch.linspace(-4, 2, 61)
line = torch.stack([t, torch.ones(61)], dim=1)
before = line @ W_1 + b_1
figure, (left, right) = plt.subplots(1, 2, figsize=(6, 2.6), layout="constrained")
with torch.no_grad():
    outputs = w7(line)
for i, style in enumerate(("-", "--")):
    left.plot(t, before[:, i].relu(), style, label=f"unit {i + 1}")
    right.plot(t, outputs[:, i], style, label=f"output {i + 1}")
    right.plot(t, (before @ W_2 + b_2)[:, i], ":", color=PALETTE[i])
left.set(xlabel="$t$", title="hidden units")
right.set(xlabel="$t$", title="outputs")
left.legend()
right.legend()
plt.show()

# %% [markdown]
# **Break it.** Does a kink matter? The smallest task that no straight line can do is *exclusive or*: 1 if exactly one
# of two inputs is 1. Two hidden units do it exactly: $\max(0, a + b) - 2\max(0, a + b - 1)$. Without the maximum, the
# best fit by least squares is one half everywhere, which is no answer at all.

# %%
inputs = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]])
exclusive_or = torch.tensor([[0.0], [1], [1], [0]])
units = (inputs @ torch.ones(2, 2) + torch.tensor([0.0, -1])).relu()
assert torch.equal(units @ torch.tensor([[1.0], [-2]]), exclusive_or)

with_bias = torch.cat([inputs, torch.ones(4, 1)], dim=1)
best = with_bias @ torch.linalg.lstsq(with_bias, exclusive_or).solution
print("with two units:", (units @ torch.tensor([1.0, -2])).tolist())
print("best linear fit:", best.flatten())
assert_close(best, torch.full((4, 1), 0.5))

# %% [markdown]
# **Where.**
#
# - Code: `PositionwiseFeedForward` in `annotated_transformer/model/feed_forward.py`; `EncoderLayer` and `DecoderLayer` in
#   `annotated_transformer/model/stacks.py` wrap it in a residual connection and a layer norm, as
#   [the chapter on the stacks](3_1_stacks.ipynb) shows.
# - Tests: `test_equation_2_by_hand` in `tests/model/test_feed_forward.py`, `test_feed_forward_sizes_of_the_base_model` in
#   `tests/test_paper.py`.
# - Exercises: {ref}`ffn-ex-shapes`, {ref}`ffn-ex-code`, {ref}`ffn-ex-absolute`.

# %% [markdown]
# ## Each position alone
#
# **Question.** Equation {eq}`ffn-equation` speaks of one vector $x$. What happens to a sentence?
#
# The paper's words: the network "is applied to each position separately and identically". *Separately*: output $t$
# depends on input $t$ and no other. *Identically*: the same $W_1, b_1, W_2, b_2$ at every position. (Each *layer* has
# its own.)
#
# **Equation.** For a sentence $X$ with rows $x_1, \ldots, x_L$, and any permutation $P$ of its rows,
#
# $$
# \mathrm{FFN}(X)_t = \mathrm{FFN}(x_t)
# \qquad\text{and therefore}\qquad
# \mathrm{FFN}(PX) = P\,\mathrm{FFN}(X)
# $$ (ffn-position-wise)
#
# **Check.** One position at a time gives what all at once give; permuted positions give permuted outputs; and a
# changed position changes its own output only.

# %%
torch.manual_seed(0)
ffn = PositionwiseFeedForward(d_model=8, d_ff=32).double()
X = torch.randn(2, 6, 8, dtype=torch.float64)  # 2 sentences of 6 positions
one_by_one = torch.stack([ffn(X[:, t]) for t in range(6)], dim=1)
assert_close(one_by_one, ffn(X))

order = torch.tensor([3, 0, 5, 2, 1, 4])
assert_close(ffn(X[:, order]), ffn(X)[:, order])

changed = X.clone()
changed[:, 2] += 1
moved = (ffn(changed) != ffn(X)).any(dim=-1)
assert moved.tolist() == [[t == 2 for t in range(6)]] * 2

# %% [markdown]
# So in the whole Transformer, only attention moves anything between positions. No mask is needed here, padding cannot
# leak, and all positions of all sentences can be computed as the rows of one large matrix.
#
# **Picture.** Which inputs reach which outputs? The derivative of every output position with respect to every input
# position says so, as in [the laboratory of masks](3_2_attention.ipynb). Beside the feed-forward network stand
# self-attention, where everything reaches everything, and a convolution of width 3, which sees its neighbours.

# %%
def reach(function, length=6, width=8):
    """Entry (i, j) is 1 if output i depends on input j."""
    torch.manual_seed(1)
    x = torch.randn(length, width, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(function, x)  # L D L D
    return (jacobian.abs().sum(dim=(1, 3)) > 0).double()

wide = nn.Conv1d(8, 8, kernel_size=3, padding=1).double()
layers = {"self-attention": lambda x: scaled_dot_product_attention(x, x, x),
          "convolution of width 3": lambda x: wide(x.T).T, "feed-forward": ffn}
reached = {name: reach(layer) for name, layer in layers.items()}
assert torch.equal(reached["feed-forward"], torch.eye(6, dtype=torch.float64))
for name, matrix in reached.items():
    print(f"{name:23} {int(matrix.sum()):2d} of 36 pairs")

# %% mystnb={"image": {"alt": "Three 6 by 6 grids, output positions down, input positions across. Self-attention: all cells bright. Convolution of width 3: the diagonal and its two neighbours bright. Feed-forward: only the diagonal bright."}, "figure": {"caption": "Which input position (column) reaches which output position (row).", "name": "fig-ffn-reach"}}
figure, axes = plt.subplots(1, 3, figsize=(6, 2.3), layout="constrained")
for ax, (name, matrix) in zip(axes, reached.items()):
    ax.imshow(matrix, cmap=HEAT_MAP, vmin=0, vmax=1)
    ax.set(title=name, xlabel="input position", xticks=range(6), yticks=range(6))
axes[0].set_ylabel("output position")
plt.show()

# %% [markdown]
# **Where.**
#
# - Tests: `test_each_position_stands_alone` in `tests/model/test_feed_forward.py`.
# - Exercises: {ref}`ffn-ex-width-3`.

# %% [markdown]
# ## Two convolutions of width 1
#
# **Question.** The paper adds: "Another way of describing this is as two convolutions with kernel size 1." Why is
# that the same?
#
# A **convolution** slides a small matrix product along a sequence: its output at position $t$ is computed from the
# $k$ inputs around $t$, by weights that do not depend on $t$. The number $k$ is its **kernel size**, or width. Its
# vectors' entries are called **channels**.
#
# **Equation.** With one matrix $W^{(j)}$ for each offset $j$ inside the kernel,
#
# $$
# y_t = b + \sum_{j=1}^{k} x_{t + j - \lceil k/2 \rceil}\, W^{(j)},
# \qquad\text{and for } k = 1: \quad
# y_t = b + x_t\, W^{(1)}
# $$ (ffn-convolution)
#
# With $k = 1$ there is no neighbour left, and the same product is applied at each position.
#
# **Code.** PyTorch's `nn.Conv1d` stores its weights as (outputs, inputs, $k$), and `nn.Linear` as (outputs, inputs).
# So a copy needs one more axis. The convolution wants its channels *before* the positions, (B, D, L), where the
# package has (B, L, D): hence the two transpositions.

# %%
class TwoConvolutions(nn.Module):
    """The paper's other description; weights copied from `ffn`."""

    def __init__(self, ffn):
        super().__init__()
        d_ff, d_model = ffn.W_1.weight.shape
        self.conv_1 = nn.Conv1d(d_model, d_ff, kernel_size=1)
        self.conv_2 = nn.Conv1d(d_ff, d_model, kernel_size=1)
        for conv, linear in ((self.conv_1, ffn.W_1), (self.conv_2, ffn.W_2)):
            conv.weight.data = linear.weight.data[:, :, None]
            conv.bias.data = linear.bias.data

    def forward(self, x):
        hidden = self.conv_1(x.transpose(1, 2)).relu()
        return self.conv_2(hidden).transpose(1, 2)

# %% [markdown]
# **Check.** The outputs agree, and so do the gradients.

# %% tags=["row-E7"]
torch.manual_seed(0)
ffn = PositionwiseFeedForward(d_model=8, d_ff=32).double()
convolutions = TwoConvolutions(ffn)
X = torch.randn(2, 6, 8, dtype=torch.float64)
assert_close(convolutions(X), ffn(X))
hidden = (X @ ffn.W_1.weight.T + ffn.W_1.bias).clamp(min=0)
assert_close(ffn(X), hidden @ ffn.W_2.weight.T + ffn.W_2.bias)

for network in (ffn, convolutions):
    network(X).square().sum().backward()
assert_close(convolutions.conv_1.weight.grad[:, :, 0], ffn.W_1.weight.grad)
assert_close(convolutions.conv_2.weight.grad[:, :, 0], ffn.W_2.weight.grad)

# %% [markdown]
# **Break it.** Two slips, one of each kind. Forget the transpositions, and PyTorch complains, unless the sentence
# happens to be as long as a vector is wide: then it takes positions for channels and says nothing.

# %%
forgetful = nn.Sequential(convolutions.conv_1, nn.ReLU(), convolutions.conv_2)
try:
    forgetful(X)
except RuntimeError as error:
    print("6 positions:", type(error).__name__)
else:
    raise AssertionError("6 positions were taken for 8 channels")
square = torch.randn(2, 8, 8, dtype=torch.float64)
assert forgetful(square).shape == ffn(square).shape
largest = (forgetful(square) - ffn(square)).abs().max()
print(f"8 positions: no error, largest difference {largest:.4f}")
assert largest > 0.1

# %% [markdown]
# The other slip is the width. A kernel of size 3, centred as `padding=1` does it, lets position $t$ see $t + 1$. In
# the decoder, input $t + 1$ is the token that output $t$ has to predict: the attention is masked, and the feed-forward
# network after it leaks the answer.

# %%
assert reached["convolution of width 3"].triu(diagonal=1).sum() == 5
assert reached["feed-forward"].triu(diagonal=1).sum() == 0

# %% [markdown]
# **Where.**
#
# - Tests: `test_equals_two_convolutions_with_kernel_size_1` in `tests/model/test_feed_forward.py`.
# - Exercises: {ref}`ffn-ex-width-3`.

# %% [markdown]
# ## What it costs
#
# **Question.** How many of the model's weights are here, and how much of its work?
#
# **Equation.** A feed-forward network has two matrices and two biases, an attention four matrices (section 3.2.2).
# Per sentence of $n$ positions, with two operations for each multiplication and its addition:
#
# $$
# \begin{aligned}
# \text{weights, feed-forward:} \quad
# & 2\, d_{\mathrm{model}}\, d_{\mathrm{ff}} + d_{\mathrm{ff}} + d_{\mathrm{model}} \\
# \text{weights, attention:} \quad & 4\, d_{\mathrm{model}}^2 \\
# \text{operations, feed-forward:} \quad & 4\, n\, d_{\mathrm{model}}\, d_{\mathrm{ff}} \\
# \text{operations, attention:} \quad & 8\, n\, d_{\mathrm{model}}^2 + 4\, n^2 d_{\mathrm{model}}
# \end{aligned}
# $$ (ffn-cost)
#
# **Check.** The base model, with the 37,000 tokens that section 5.1 speaks of, built without memory (the device
# `meta` has shapes and no numbers), and its weights counted by where they stand.

# %%
config = ModelConfig.base(vocab_size=37_000)
with torch.device("meta"):
    base = Transformer(config)

def count(module, part=""):
    named = module.named_parameters()
    return sum(weight.numel() for name, weight in named if part in name)

# %%
encoder_layer, decoder_layer = base.encoder.layers[0], base.decoder.layers[0]
n_ffn = count(encoder_layer, "feed_forward")
assert n_ffn == 2 * 512 * 2048 + 2048 + 512 == 2_099_712
assert count(encoder_layer, "attention") == 4 * 512**2 == 1_048_576
parts = {"encoder layer": encoder_layer, "decoder layer": decoder_layer, "model": base}
shares = {}
for name, part in parts.items():
    n_here, n_all = count(part, "feed_forward"), count(part)
    shares[name] = n_here / n_all
    print(f"{name:14} {n_here:>10,} of {n_all:>10,} weights: {shares[name]:.1%}")

# %% [markdown]
# Two thirds of an encoder layer, half of a decoder layer (which has two attentions), and two fifths of the whole
# model, where the embedding takes its share too. Texts that say "two thirds of a Transformer" mean models without a
# second attention, and do not count the embedding.

# %%
for share, told in zip(shares.values(), (2 / 3, 1 / 2, 2 / 5)):
    assert abs(share - told) < 0.002

# %% [markdown]
# The operations, counted by PyTorch as they are done, at small sizes:

# %%
from torch.utils.flop_counter import FlopCounterMode

n, d_model, d_ff = 10, 32, 128
x = torch.randn(1, n, d_model)
feed_forward = PositionwiseFeedForward(d_model, d_ff)
W_Q, W_K, W_V, W_O = (nn.Linear(32, 32, bias=False) for _ in range(4))
with FlopCounterMode(display=False) as ffn_counter:
    feed_forward(x)
with FlopCounterMode(display=False) as attention_counter:
    W_O(scaled_dot_product_attention(W_Q(x), W_K(x), W_V(x)))
assert ffn_counter.get_total_flops() == 4 * n * d_model * d_ff
n_attention = 8 * n * d_model**2 + 4 * n**2 * d_model
assert attention_counter.get_total_flops() == n_attention

# %% [markdown]
# **Picture.** The feed-forward network's work grows with the length of the sentence, attention's with its square.
# With $d_{\mathrm{ff}} = 4\, d_{\mathrm{model}}$ the two are equal at $n = 2\, d_{\mathrm{model}}$
# ({ref}`ffn-ex-crossing`): 1,024 tokens for the base model. Sentences are shorter than that, so in translation most of
# an encoder layer's work is done here.

# %% mystnb={"image": {"alt": "Line chart of millions of operations per token over sentence length from 1 to 2048 for the base model. The feed-forward network is a level line at 4.2. Attention starts at 2.1, rises in a straight line, crosses the level line at 1024 tokens and ends near 6.3."}, "figure": {"caption": "Operations for each token of one encoder layer of the base model, by equation {eq}`ffn-cost`.", "name": "fig-ffn-operations"}}
lengths = torch.arange(1, 2049)
per_token_ffn = torch.full((2048,), 4.0 * 512 * 2048)
per_token_attention = 8 * 512**2 + 4 * lengths * 512
equal = lengths[per_token_ffn == per_token_attention]
assert equal.tolist() == [1024]
figure, ax = plt.subplots(figsize=(5, 2.7), layout="constrained")
ax.plot(lengths, per_token_ffn / 1e6, label="feed-forward")
ax.plot(lengths, per_token_attention / 1e6, "--", label="attention")
ax.axvline(1024, color=PALETTE[-1], linewidth=0.8, linestyle=":")
ax.set(xlabel="tokens in the sentence", ylabel="million operations a token")
ax.set_ylim(0, 7)
ax.legend(loc="upper left")
plt.show()

# %% [markdown]
# **Where.**
#
# - Code: `count_parameters` in `annotated_transformer/tables/cost.py` counts by the same formula.
# - Tests: `test_the_closed_form_counts_the_model` in `tests/tables/test_cost.py`.
# - Exercises: {ref}`ffn-ex-row-c`, {ref}`ffn-ex-crossing`.

# %% [markdown]
# ## What width buys
#
# **Question.** Why $d_{\mathrm{ff}} = 2048$, and not less or more?
#
# The paper does not derive it, it tries. Three lines of its Table 3, on English to German, **numbers quoted from the
# paper** (perplexity and BLEU on newstest2013, parameters in millions):
#
# | $d_{\mathrm{ff}}$ | perplexity | BLEU | parameters | |
# |---|---|---|---|---|
# | 1024 | 5.12 | 25.4 | 53 | row (C) |
# | 2048 | 4.92 | 25.8 | 65 | base |
# | 4096 | 4.75 | 26.2 | 90 | row (C) |
#
# Each doubling helps, and costs more weights than the one before. The parameter column can be recomputed, with one
# catch: it fits a vocabulary of about 41,100 tokens, not the 37,000 of section 5.1 (the
# [errata](errata.ipynb) have the interval).

# %%
from annotated_transformer.tables.cost import count_parameters
from annotated_transformer.tables.variations import TABLE_3

rows = {row.name: row for row in TABLE_3}
quoted = {1024: ("d_ff=1024", 5.12, 25.4, 53), 2048: ("base", 4.92, 25.8, 65),
          4096: ("d_ff=4096", 4.75, 26.2, 90)}
for d_ff, (name, ppl, bleu, millions) in quoted.items():
    row = rows[name]
    assert (row.ppl, row.bleu, row.parameters) == (ppl, bleu, millions)
    n_ours = count_parameters(ModelConfig.base(vocab_size=41_100, d_ff=d_ff))
    print(f"d_ff {d_ff}  {n_ours:>10,} parameters, in the paper {millions} million")
    assert round(n_ours / 1e6) == millions

# %% [markdown]
# **A small experiment of our own.** What does width do to the network by itself? Give it facts to learn by heart:
# 512 random vectors with 16 entries, each with one of 16 random labels. There is nothing to understand, only to
# store. A feed-forward network with 16 outputs, one for each label, gets 300 steps of Adam; then we count the labels
# it gets right. The same is done without the ReLU.

# %%
class WithoutReLU(PositionwiseFeedForward):
    """Equation 2 with the maximum taken away, to break it."""

    def __init__(self, d_model, d_ff):
        super().__init__(d_model, d_ff)
        self.activation = nn.Identity()

# %%
def facts_learned(kind, d_ff, n_facts=512, steps=300):
    torch.manual_seed(0)
    x = F.layer_norm(torch.randn(n_facts, 16), [16])
    label = torch.randint(16, (n_facts,))
    network = kind(16, d_ff)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(network(x), label).backward()
        optimizer.step()
    return (network(x).argmax(dim=-1) == label).float().mean().item()

# %% tags=["nbval-ignore-output"]
widths = (4, 8, 16, 32, 64)
learned = {kind.__name__: [facts_learned(kind, d_ff) for d_ff in widths]
           for kind in (PositionwiseFeedForward, WithoutReLU)}
for name, shares in learned.items():
    print(name, *[f" {d_ff}: {share:.0%}" for d_ff, share in zip(widths, shares)])
with_relu = dict(zip(widths, learned["PositionwiseFeedForward"]))
assert with_relu[4] < 0.3 < with_relu[16] < 0.7 and with_relu[64] > 0.99
assert max(learned["WithoutReLU"]) < 0.3

# %% mystnb={"image": {"alt": "Line chart: share of 512 facts learned against d_ff from 4 to 64 on a logarithmic axis. With the ReLU the curve rises from about 0.2 at 4 units to about 0.4 at 16 and to 1 at 64. Without it the line stays below 0.2 at all widths. A dotted line marks guessing at one sixteenth."}, "figure": {"caption": "Random facts learned by a feed-forward network of width $d_{\\mathrm{ff}}$, with the ReLU and without. Measured here; it is not the paper's experiment.", "name": "fig-ffn-width"}} tags=["nbval-ignore-output"]
figure, ax = plt.subplots(figsize=(4.6, 2.6), layout="constrained")
for (name, shares), style in zip(learned.items(), ("o-", "s--")):
    ax.plot(widths, shares, style, label=name)
ax.axhline(1 / 16, color=PALETTE[-1], linestyle=":", linewidth=0.8, label="guessing")
ax.set_xscale("log", base=2)
ax.set(xlabel="$d_{\\mathrm{ff}}$", ylabel="share of facts learned", ylim=(0, 1.05))
ax.legend(loc="upper left")
plt.show()
assert len(shares) == len(widths)

# %% [markdown]
# With the ReLU, width is storage: 4 units keep less than a third of the facts, 16 units not yet all, 64 units (nearly)
# every one. Without it, the width buys next to nothing; the last section before the exercises says why. (What this does
# not show: that a *translation* model uses its width to store facts. It shows that it could.)
#
# **Where.**
#
# - Code: `d_ff` in `ModelConfig`; Table 3 is `annotated_transformer/tables/variations.py`, and
#   [the chapter on section 6.2](6_2_variations.ipynb) has all its rows.
# - Exercises: {ref}`ffn-ex-row-c`, {ref}`ffn-ex-measure`.

# %% [markdown]
# ## What the ReLU leaves out
#
# **Question.** How many of the hidden units are on?
#
# **Equation.** If the numbers that enter the ReLU are as often negative as positive, half of the units are off. Of an
# untrained network we can say that: its weights are drawn symmetrically around 0 and its biases are 0, so that $xW_1$
# and $-xW_1$ are equally likely.
#
# $$
# \mathrm{P}(\text{unit off}) = \mathrm{P}(x W_1 \le 0) = \tfrac{1}{2} \quad \text{at the start}
# $$ (ffn-half)
#
# **Check.** A new model, and the model that this book has trained to translate
# ([section 6.1](6_1_translation.ipynb)), reading 200 sentence pairs of its validation split. A **hook** is a function
# that PyTorch calls whenever a module has run; ours keeps the hidden units of the real tokens.

# %%
from annotated_transformer import corpus, load_model, make_batch

def keeper(found, name, tokens):
    def hook(module, args, output):  # called whenever the activation has run
        found[name] = (tokens[tokens != 0], output[tokens != 0])
    return hook

# %%
def hidden_units(model, batch):
    """For each feed-forward network: (the tokens read, their hidden units)."""
    sides = {"encoder": batch.source, "decoder": batch.target_in}
    found, hooks = {}, []
    for name, module in model.named_modules():
        if isinstance(module, PositionwiseFeedForward):
            keep = keeper(found, name, sides[name.split(".")[0]])
            hooks.append(module.activation.register_forward_hook(keep))
    with torch.inference_mode():
        memory = model.encode(batch.source)
        model.decode(batch.target_in, memory, model.source_mask(batch.source))
    for hook in hooks:
        hook.remove()
    return found

# %%
trained, tokenizer = load_model("model")
pairs = corpus.load("tatoeba-en-de", "valid")[:200]
batch = make_batch([tuple(map(tokenizer.encode, pair)) for pair in pairs])
torch.manual_seed(0)
new = Transformer(trained.config)
models = {"untrained": new.eval(), "trained": trained.eval()}
seen = {name: hidden_units(model, batch) for name, model in models.items()}

# %% tags=["nbval-ignore-output"]
off = {which: {name: (units == 0).float().mean().item()
               for name, (_, units) in layers.items()} for which, layers in seen.items()}
for name in off["trained"]:
    before, after = off["untrained"][name], off["trained"][name]
    print(f"{name:30} off: untrained {before:.1%}, trained {after:.1%}")
assert all(abs(share - 0.5) < 0.03 for share in off["untrained"].values())
assert all(share > 0.8 for share in off["trained"].values())

# %% [markdown]
# **Picture.** The same numbers, layer by layer.

# %% mystnb={"image": {"alt": "Grouped bar chart of the share of hidden units that are off in each feed-forward network of the book's model, encoder and decoder layers from first to last. The untrained bars stand at one half, marked by a dotted line. The trained bars all stand above 0.8, most of them close to 1."}, "figure": {"caption": "Share of hidden units that are off, by layer, before training and after.", "name": "fig-ffn-off"}} tags=["nbval-ignore-output"]
names = [name.replace(".layers.", " ")[:9] for name in off["trained"]]
figure, ax = plt.subplots(figsize=(5.6, 2.6), layout="constrained")
places = torch.arange(len(names))
for shift, (name, shares) in zip((-0.2, 0.2), off.items()):
    ax.bar(places + shift, shares.values(), width=0.38, label=name)
ax.axhline(0.5, color=PALETTE[-1], linestyle=":", linewidth=0.8)
ax.set_xticks(places, names, rotation=20)
ax.set(ylabel="share of units off", ylim=(0, 1.25), yticks=[0, 0.5, 1])
ax.legend(loc="upper left", ncols=2)
plt.show()
assert len(names) == 2 * trained.config.N

# %% [markdown]
# Training switches most units off. Nothing in the loss asks for that. {cite:t}`li2023lazy` find the same in large
# Transformers, in language and in vision, and more so the larger the model. At any one token a few units are on, and
# which ones depends on the token: a hint of what they are for, to which we come back.
#
# **Break it.** A unit that is off for *every* token is **dead**: the derivative of $\max(0, \cdot)$ is 0 on the
# negative side, so the weights that lead to it get no gradient, and on these inputs it will not come back. Push the
# bias of one unit far down and look.

# %%
torch.manual_seed(0)
ffn = PositionwiseFeedForward(d_model=8, d_ff=32)
ffn.W_1.bias.data[3] = -100.0
ffn(torch.randn(50, 8)).square().sum().backward()
into_unit = ffn.W_1.weight.grad.norm(dim=1)
assert into_unit[3] == 0 and ffn.W_1.bias.grad[3] == 0
assert ffn.W_2.weight.grad[:, 3].norm() == 0
print(f"units without a gradient: {(into_unit == 0).nonzero().flatten().tolist()}")

# %% [markdown]
# **Where.**
#
# - Exercises: {ref}`ffn-ex-symmetry`.

# %% [markdown]
# ## Other activations, and dropout inside
#
# **Question.** Must it be the ReLU?
#
# The paper uses it and tries no other. Later models took smoother functions, which let a little of the negative side
# through: the **GELU** {cite}`hendrycks2016gaussian` multiplies $x$ by the probability $\Phi(x)$ that a standard
# normal number is smaller, the **SiLU** {cite}`elfwing2018sigmoid` by the logistic function.
#
# **Equation.**
#
# $$
# \mathrm{ReLU}(x) = \max(0, x) \quad\;
# \mathrm{GELU}(x) = x\,\Phi(x) \quad\;
# \mathrm{SiLU}(x) = \frac{x}{1 + e^{-x}}
# $$ (ffn-activations)
#
# **Code.** Each has a name in `ModelConfig`, and the default is the paper's.

# %%
from annotated_transformer.model.feed_forward import ACTIVATIONS

assert ModelConfig.base(vocab_size=37_000).activation == "relu"
for name in ACTIVATIONS:
    options = ModelConfig.tiny(vocab_size=100, activation=name)
    layer = Transformer(options).encoder.layers[0].feed_forward
    print(f"{name}: {layer.activation}")

# %% [markdown]
# **Check.** The formulas, with $\Phi(x) = \frac{1}{2}(1 + \mathrm{erf}(x / \sqrt 2))$. A name that does not exist is
# refused.

# %%
x = torch.linspace(-4, 4, 81, dtype=torch.float64)
formulas = {"relu": x.clamp(min=0), "gelu": x * (1 + torch.erf(x / math.sqrt(2))) / 2,
            "silu": x / (1 + (-x).exp())}
for name, by_hand in formulas.items():
    assert_close(ACTIVATIONS[name]()(x), by_hand)
try:
    ModelConfig.tiny(vocab_size=100, activation="swish")
except ValueError as error:
    print(error)
else:
    raise AssertionError("an unknown activation was accepted")

# %% mystnb={"image": {"alt": "Line chart of three activations from minus 4 to 3. The ReLU is 0 and then the diagonal, with a corner at 0. GELU and SiLU are smooth, dip a little below 0 on the negative side, the SiLU down to about minus 0.28, and approach the diagonal on the right."}, "figure": {"caption": "The three activations that the package offers.", "name": "fig-ffn-activations"}}
figure, ax = plt.subplots(figsize=(4.4, 2.6), layout="constrained")
for (name, y), style in zip(formulas.items(), ("-", "--", ":")):
    ax.plot(x, y, style, label=name)
ax.set(xlabel="$x$", xlim=(-4, 3), ylim=(-0.5, 3))
ax.legend()
plt.show()
assert abs(formulas["silu"].min() + 0.28) < 0.01

# %% [markdown]
# Is one of them better? {cite:t}`shazeer2020glu` tries several in a larger model; what he finds ahead of ReLU and GELU
# are networks of another form, with a third matrix. At the size of this chapter's experiments nothing can be said
# ({ref}`ffn-ex-measure` lets you try).
#
# **Dropout.** Section 5.4 of the paper puts dropout on the output of each sub-layer, and nowhere inside. The authors'
# own code, tensor2tensor {cite}`vaswani2018tensor2tensor`, later dropped hidden units after the ReLU as well, and
# attention weights. Both are options of `ModelConfig`, `ffn_dropout` and `attention_dropout`, and both are off. That
# they act where they should, and in training only:

# %% tags=["row-S18"]
paper = ModelConfig.base(vocab_size=37_000)
assert (paper.ffn_dropout, paper.attention_dropout) == (0.0, 0.0)
sizes = dict(vocab_size=20, N=1, d_model=8, d_ff=32, h=2, p_drop=0.0)
source, target_in = torch.tensor([[4, 5, 6, 2]]), torch.tensor([[1, 7, 8]])
for option in ({}, {"ffn_dropout": 0.5}, {"attention_dropout": 0.5}):
    torch.manual_seed(0)
    model = Transformer(ModelConfig(**sizes, **option))
    twice = [model.train()(source, target_in) for _ in range(2)]
    assert torch.equal(*twice) == (option == {})  # random only if asked for
    assert torch.equal(*[model.eval()(source, target_in) for _ in range(2)])

# %% [markdown]
# And inside the network: of the units that are on, about half are dropped, and the others doubled, so that the sum
# keeps its mean.

# %%
torch.manual_seed(0)
plain = PositionwiseFeedForward(8, 5000)
dropping = PositionwiseFeedForward(8, 5000, dropout=0.5)
dropping.load_state_dict(plain.state_dict())
x = torch.randn(8)
on = plain.activation(plain.W_1(x))
dropped = dropping.dropout(dropping.activation(dropping.W_1(x)))
kept = dropped != 0
assert_close(dropped[kept], 2 * on[kept])
assert abs(kept.sum() / (on > 0).sum() - 0.5) < 0.05
assert_close(dropping.eval()(x), plain(x))

# %% [markdown]
# **Where.**
#
# - Code: `ACTIVATIONS` and `dropout` in `annotated_transformer/model/feed_forward.py`.
# - Tests: `test_activations_are_pytorchs`, `test_inner_dropout_is_an_option_for_training` in
#   `tests/model/test_feed_forward.py`; `test_dropout_is_where_section_5_4_puts_it_and_nowhere_else` in
#   `tests/model/test_stacks.py`.
# - [Section 5.4](5_4_regularization.ipynb) is about dropout where the paper has it.

# %% [markdown]
# ## A memory with keys and values
#
# **Question.** What do the hidden units *do*?
#
# **Equation.** Write $k_i$ for column $i$ of $W_1$, $v_i$ for row $i$ of $W_2$, and $b_{1,i}$ for entry $i$ of $b_1$.
# The product of a row of units and $W_2$ is a sum over the units, so equation {eq}`ffn-equation` is
#
# $$
# \mathrm{FFN}(x) = \sum_{i=1}^{d_{\mathrm{ff}}} \max(0,\; x \cdot k_i + b_{1,i})\, v_i + b_2
# $$ (ffn-memory)
#
# Compare this with attention. There is a query $x$; there are keys $k_i$, to which it is compared by a dot product;
# and there are values $v_i$, which are added up in proportion. But the keys and values are *weights*, the same for
# every sentence, where attention makes them from the sentence; and in place of the softmax stands a ReLU, which lets
# each key answer for itself. {cite:t}`geva2021transformer` read the feed-forward network of a language model in this
# way, as a **key-value memory**: each key fits patterns in the text, each value moves the prediction towards what
# tends to follow.
#
# **Check.** The sum over units, written out.

# %%
torch.manual_seed(0)
ffn = PositionwiseFeedForward(d_model=6, d_ff=20).double()
x = torch.randn(6, dtype=torch.float64)
keys, values = ffn.W_1.weight, ffn.W_2.weight.T  # one row a unit, both
memory = sum(max(0, x @ k + b) * v for k, b, v in zip(keys, ffn.W_1.bias, values))
assert_close(memory + ffn.W_2.bias, ffn(x))
print(keys.shape, values.shape)

# %% [markdown]
# **What do the keys of a trained model fit?** Take a unit, find the five tokens at which it is on most strongly, and
# print them: here for the last layer of the encoder, the first twelve units that are on at least ten times in our 200
# sentences. The sign ▁ stands for a space.

# %% tags=["nbval-ignore-output"]
def strongest(tokens, units, n=5):
    """{unit: its n strongest tokens}, for the units that are on at least ten times."""
    busy = ((units > 0).sum(dim=0) >= 10).nonzero().flatten().tolist()
    return {i: tokens[units[:, i].topk(n).indices].tolist() for i in busy}

last = f"encoder.layers.{trained.config.N - 1}.feed_forward"
triggers = strongest(*seen["trained"][last])
for i, ids in list(triggers.items())[:12]:
    print(f"unit {i:3d} ", *tokenizer.pieces(ids))
assert len(triggers) > 50

# %% [markdown]
# Many lines repeat one piece, or pieces that go together. Is that more than chance? Call a unit **selective** if at
# least four of its five strongest tokens are the same piece. For comparison, deal the tokens out to the same units
# in random order.

# %% tags=["nbval-ignore-output"]
def share_selective(tokens, units):
    lists = strongest(tokens, units).values()
    return sum(Counter(ids).most_common(1)[0][1] >= 4 for ids in lists) / len(lists)

torch.manual_seed(0)
for name, (tokens, units) in seen["trained"].items():
    share = share_selective(tokens, units)
    by_chance = share_selective(tokens[torch.randperm(len(tokens))], units)
    print(f"{name:30} selective {share:.0%}, by chance {by_chance:.1%}")
    assert share > 0.04 and by_chance < 0.02

# %% [markdown]
# Far more than chance, in every layer. So the reading has something in it: many keys are detectors of a piece of
# text. It also has limits. The other units answer to mixtures that we cannot name; the model is small; and that a unit
# *is on* at a token does not say that the translation depends on it.
#
# **Break it.** Take one unit away by setting its value $v_i$ to zero. The output changes by exactly
# $\max(0, x \cdot k_i + b_{1,i})\, v_i$ where the unit was on, and not at all elsewhere: a memory has entries, and
# entries can be erased one by one.

# %%
layer = trained.decoder.layers[0].feed_forward
x = torch.randn(200, trained.config.d_model)
with torch.no_grad():
    before, unit = layer(x), layer.activation(layer.W_1(x))[:, 0]
    value = layer.W_2.weight[:, 0].clone()
    layer.W_2.weight[:, 0] = 0
    after = layer(x)
    layer.W_2.weight[:, 0] = value
assert_close(before - after, unit[:, None] * value, atol=1e-4, rtol=1e-4)
assert torch.equal(before[unit == 0], after[unit == 0])
assert 0 < (unit == 0).sum() < 200

# %% [markdown]
# **Where.**
#
# - Exercises: {ref}`ffn-ex-symmetry`, {ref}`ffn-ex-softmax`.

# %% [markdown]
# ## Break it: two matrices without the ReLU
#
# **Question.** What is left of equation {eq}`ffn-equation` if the maximum is forgotten?
#
# **Equation.** Multiply out:
#
# $$
# (x W_1 + b_1)\, W_2 + b_2 = x\, \underbrace{W_1 W_2}_{W} + \underbrace{b_1 W_2 + b_2}_{b}
# $$ (ffn-collapse)
#
# One matrix $W$ of size $d_{\mathrm{model}} \times d_{\mathrm{model}}$, and one bias. However large
# $d_{\mathrm{ff}}$ is, and however many such networks stand one on the other, the product of matrices is a matrix.
#
# **Check.**

# %%
torch.manual_seed(0)
linear = WithoutReLU(d_model=8, d_ff=32).double()
W = linear.W_1.weight.T @ linear.W_2.weight.T
b = linear.W_1.bias @ linear.W_2.weight.T + linear.W_2.bias
X = torch.randn(2, 6, 8, dtype=torch.float64)
assert W.shape == (8, 8)
assert_close(linear(X), X @ W + b)

relu = PositionwiseFeedForward(d_model=8, d_ff=32).double()
relu.load_state_dict(linear.state_dict())
print(f"largest difference with the ReLU: {(relu(X) - (X @ W + b)).abs().max():.4f}")

# %% [markdown]
# In the base model, 2.1 million weights would do the work of 262,656, and the four-fold width would be paid for
# nothing. This is why the experiment above stayed low whatever the width: a network that is linear in 16 numbers has no
# place for more facts, and at 16 units it kept less than half of what the ReLU keeps there.

# %%
assert 512 * 512 + 512 == 262_656
assert max(learned["WithoutReLU"]) < learned["PositionwiseFeedForward"][2] / 2

# %% [markdown]
# Such a slip does not stop training: the whole model has other non-linearities, the softmax of attention and the layer
# norm, so the loss still falls, to a worse value. No shape is wrong, no error comes. A test has to ask, and the one
# that asks is `test_equation_2_by_hand`, which makes sure that a hidden unit of its example is off.
#
# ## Exercises
#
# Each has a hint and a solution, and both stay closed until you open them. Where the answer can be computed, a folded
# cell below the exercise computes it.
#
# ```{exercise} Predict the shapes
# :label: ffn-ex-shapes
#
# `ffn = PositionwiseFeedForward(d_model=512, d_ff=2048)` and `x` has shape (2, 5, 512). Before you run anything: what
# are the shapes of `ffn.W_1.weight`, `ffn.W_1.bias`, `ffn.W_1(x)`, `ffn.W_2.weight` and `ffn(x)`? How many hidden
# units does the call compute?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `nn.Linear(inputs, outputs)` stores its matrix as (outputs, inputs).
# ```
#
# ```{solution} ffn-ex-shapes
# :class: dropdown
#
# (2048, 512); (2048); (2, 5, 2048); (512, 2048); (2, 5, 512). It computes $2 \cdot 5 \cdot 2048 = 20{,}480$ hidden
# units.
# ```

# %% tags=["hide-cell"]
ffn, x = PositionwiseFeedForward(d_model=512, d_ff=2048), torch.randn(2, 5, 512)
tensors = (ffn.W_1.weight, ffn.W_1.bias, ffn.W_1(x), ffn.W_2.weight, ffn(x))
answer = [(2048, 512), (2048,), (2, 5, 2048), (512, 2048), (2, 5, 512)]
assert [tuple(tensor.shape) for tensor in tensors] == answer
assert ffn.W_1(x).numel() == 20_480

# %% [markdown]
# ```{exercise} Equation 2 in one line
# :label: ffn-ex-code
#
# Write `feed_forward(x, W_1, b_1, W_2, b_2)`, with the matrices as the paper has them: `W_1` of shape
# ($d_{\mathrm{model}}$, $d_{\mathrm{ff}}$), and `x` with any number of axes before the last. Check it with
# `check("3.3", feed_forward)`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The paper multiplies from the left: `x @ W_1`. `clamp(min=0)` is the maximum with 0.
# ```
#
# ```{solution} ffn-ex-code
# :class: dropdown
#
# `return (x @ W_1 + b_1).clamp(min=0) @ W_2 + b_2`. Broadcasting adds the biases to every position.
# ```

# %% tags=["hide-cell"]
def feed_forward(x, W_1, b_1, W_2, b_2):
    return (x @ W_1 + b_1).clamp(min=0) @ W_2 + b_2

check("3.3", feed_forward)
assert feed_forward(torch.tensor([-1.0, 1]), W_1, b_1, W_2, b_2).tolist() == [3, 0]

# %% [markdown]
# ```{exercise} An absolute value
# :label: ffn-ex-absolute
#
# Choose $W_1$, $b_1$, $W_2$, $b_2$ such that $\mathrm{FFN}(x) = |x|$ for $d_{\mathrm{model}} = 1$. How many hidden
# units do you need? Can the network be the identity, $\mathrm{FFN}(x) = x$, for all $x$, and with how many units?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# One ramp for each side.
# ```
#
# ```{solution} ffn-ex-absolute
# :class: dropdown
#
# Two: $|x| = \max(0, x) + \max(0, -x)$, so $W_1 = (1, -1)$, $W_2 = (1, 1)^\top$ and no biases. And
# $x = \max(0, x) - \max(0, -x)$: two as well. One unit cannot do either, since it is constant on one side of its kink.
# ```

# %% tags=["hide-cell"]
x = torch.linspace(-3, 3, 13)[:, None]
sides, none = torch.tensor([[1.0, -1]]), torch.zeros(2)
both, difference = torch.tensor([[1.0], [1]]), torch.tensor([[1.0], [-1]])
assert torch.equal(feed_forward(x, sides, none, both, 0), x.abs())
assert torch.equal(feed_forward(x, sides, none, difference, 0), x)

# %% [markdown]
# ```{exercise} A kernel of width 3
# :label: ffn-ex-width-3
#
# Replace the first convolution of width 1 by one of width 3. How many weights does it have in the base model? Pad the
# sentence so that the decoder cannot see the future. Which positions does an output see then, and how far does it see
# after two such networks?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Pad by two on the left and none on the right: `F.pad(x, (2, 0))` before a convolution without padding.
# ```
#
# ```{solution} ffn-ex-width-3
# :class: dropdown
#
# $3 \cdot 512 \cdot 2048 + 2048 = 3{,}147{,}776$. Padded on the left only, output $t$ sees $t - 2$, $t - 1$ and $t$;
# after two networks it sees back to $t - 4$. Such a model would have *some* sense of order even without positional
# encoding.
# ```

# %% tags=["hide-cell"]
assert count(nn.Conv1d(512, 2048, kernel_size=3)) == 3_147_776
torch.manual_seed(0)
first, second = nn.Conv1d(8, 32, 3).double(), nn.Conv1d(32, 8, 1).double()

def causal_convolution(x):
    return second(first(F.pad(x.T, (2, 0))).relu()).T

band = torch.ones(6, 6, dtype=torch.float64).tril()
assert torch.equal(reach(causal_convolution), band.triu(diagonal=-2))
assert torch.equal(reach(lambda x: causal_convolution(causal_convolution(x))), band.triu(diagonal=-4))

# %% [markdown]
# ```{exercise} Table 3 without training
# :label: ffn-ex-row-c
#
# Use the parameter column of Table 3 alone: 53, 65 and 90 million for $d_{\mathrm{ff}}$ of 1024, 2048 and 4096. How
# many parameters does one more hidden unit cost, in all 12 layers? Do the differences 12 and 25 fit?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# A unit has a key, a bias and a value.
# ```
#
# ```{solution} ffn-ex-row-c
# :class: dropdown
#
# $12 \cdot (512 + 1 + 512) = 12{,}300$. Another 1024 units cost 12.6 million, another 2048 cost 25.2 million. The
# printed differences are 12 and 25: of rounded numbers, so each may be off by one.
# ```

# %% tags=["hide-cell"]
assert 12 * (512 + 1 + 512) == 12_300
sizes = [count_parameters(ModelConfig.base(vocab_size=41_100, d_ff=d_ff)) for d_ff in (1024, 2048, 4096)]
assert sizes[1] - sizes[0] == 1024 * 12_300 and sizes[2] - sizes[1] == 2048 * 12_300
assert abs((sizes[1] - sizes[0]) / 1e6 - 12) < 1 and abs((sizes[2] - sizes[1]) / 1e6 - 25) < 1

# %% [markdown]
# ```{exercise} Where attention overtakes
# :label: ffn-ex-crossing
#
# From equation {eq}`ffn-cost`, find the sentence length at which attention and feed-forward network do the same
# number of operations, for any $d_{\mathrm{model}}$ and $d_{\mathrm{ff}}$. What comes out for the base model, for the
# big one, and for $d_{\mathrm{ff}} = 2\, d_{\mathrm{model}}$?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Divide both sides by $4\, n\, d_{\mathrm{model}}$.
# ```
#
# ```{solution} ffn-ex-crossing
# :class: dropdown
#
# $d_{\mathrm{ff}} = 2\, d_{\mathrm{model}} + n$, so $n = d_{\mathrm{ff}} - 2\, d_{\mathrm{model}}$: 1,024 for base,
# 2,048 for big, and 0 for $d_{\mathrm{ff}} = 2\, d_{\mathrm{model}}$: then attention costs more at every length.
# ```

# %% tags=["hide-cell"]
for d_model, d_ff, n in ((512, 2048, 1024), (1024, 4096, 2048), (512, 1024, 0)):
    assert n == d_ff - 2 * d_model
    assert 4 * n * d_model * d_ff == 8 * n * d_model**2 + 4 * n**2 * d_model

# %% [markdown]
# ```{exercise} Networks that look different and are not
# :label: ffn-ex-symmetry
#
# Permute the hidden units: the columns of $W_1$, the entries of $b_1$ and the rows of $W_2$, all in the same order.
# Multiply column $i$ of $W_1$ and entry $i$ of $b_1$ by a number $c$ and divide row $i$ of $W_2$ by it. For which $c$
# is the function unchanged? In how many ways can the 2,048 units of one network be ordered: more or fewer than
# $10^{5000}$? What does that mean for averaging two models that were trained from different starts?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Look at equation {eq}`ffn-memory`: a sum has no order. When is $\max(0, cz) = c \max(0, z)$?
# ```
#
# ```{solution} ffn-ex-symmetry
# :class: dropdown
#
# The order does not matter, and neither does any $c > 0$. There are $2048!$ orders, more than $10^{5894}$. Two models
# trained from different starts can therefore compute the same with units in different places, and the mean of their
# weights mixes units that have nothing to do with each other. Averaging works for checkpoints of *one* run
# ([section 6.1](6_1_translation.ipynb)).
# ```

# %% tags=["hide-cell"]
torch.manual_seed(0)
one, two = PositionwiseFeedForward(6, 20).double(), PositionwiseFeedForward(6, 20).double()
order, c = torch.randperm(20), torch.rand(20, dtype=torch.float64) + 0.5
two.W_1.weight.data = c[:, None] * one.W_1.weight.data[order]
two.W_1.bias.data = c * one.W_1.bias.data[order]
two.W_2.weight.data, two.W_2.bias.data = one.W_2.weight.data[:, order] / c, one.W_2.bias.data
x = torch.randn(10, 6, dtype=torch.float64)
assert_close(two(x), one(x))
assert math.lgamma(2049) / math.log(10) > 5894

# %% [markdown]
# ```{exercise} A softmax in place of the ReLU
# :label: ffn-ex-softmax
#
# Equation {eq}`ffn-memory` becomes attention over learned keys and values if you replace $\max(0, \cdot)$ by a softmax
# over the units. Build it from `scaled_dot_product_attention` (without its scale) and check it. What can the ReLU
# version do that this one cannot? Think of the size of the output.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Multiply the queries by $\sqrt{d_k}$ to undo the scale. What is a mean of values bounded by?
# ```
#
# ```{solution} ffn-ex-softmax
# :class: dropdown
#
# The softmax output is a mean of the values: it is never larger than the largest value, whatever $x$ is, and units
# compete for weights that sum to 1. The ReLU version adds: many units may be on at once, or none, and doubling $x$
# (with zero biases) doubles the output.
# ```

# %% tags=["hide-cell"]
torch.manual_seed(0)
x, keys, values = (torch.randn(n, 6, dtype=torch.float64) for n in (10, 20, 20))
soft = scaled_dot_product_attention(x * math.sqrt(6), keys, values)
assert_close(soft, (x @ keys.T).softmax(dim=-1) @ values)
longer = scaled_dot_product_attention(1000 * x * math.sqrt(6), keys, values)
assert longer.norm(dim=1).max() <= values.norm(dim=1).max() + 1e-9
relu = (x @ keys.T).relu() @ values
assert_close((2 * x @ keys.T).relu() @ values, 2 * relu)

# %% [markdown]
# ```{exercise} Change the model and measure
# :label: ffn-ex-measure
#
# Run `facts_learned` with 16 units and GELU in place of the ReLU, then with the square $\max(0, x)^2$. Does either
# store more? Then repeat with other seeds before you believe it: how far apart are two seeds of the *same*
# activation?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Subclass `PositionwiseFeedForward`, as `WithoutReLU` does, and set `self.activation`. `torch.manual_seed` is called
# inside the function: give it a `seed` argument.
# ```
#
# ```{solution} ffn-ex-measure
# :class: dropdown
#
# The folded cell prints what it measures. All non-linear ones store far more than the network without a ReLU. Whether
# the order among them means anything depends on the spread between seeds, which it prints as well: a difference
# smaller than that is no finding. And what holds for stored random facts need not hold for translation.
# ```

# %% tags=["hide-cell", "nbval-ignore-output"]
class SquaredReLU(nn.Module):
    def forward(self, x):
        return x.clamp(min=0) ** 2

def with_activation(activation, seed):
    def kind(d_model, d_ff):
        torch.manual_seed(seed)
        network = PositionwiseFeedForward(d_model, d_ff)
        network.activation = activation
        return network
    return kind

# %% tags=["hide-cell", "nbval-ignore-output"]
measured = {}
for name, activation in (("ReLU", nn.ReLU()), ("GELU", nn.GELU()), ("squared", SquaredReLU())):
    measured[name] = [facts_learned(with_activation(activation, seed), d_ff=16) for seed in (1, 2)]
    print(f"{name:8}", *[f"{share:.1%}" for share in measured[name]])
assert min(map(min, measured.values())) > max(learned["WithoutReLU"]) + 0.1

# %% [markdown]
# ## What to remember
#
# - Equation {eq}`ffn-equation` is two matrix products with a threshold between them, applied to each position alone:
#   the same as two convolutions of width 1. Only attention moves anything between positions.
# - It is where the weights are: two thirds of an encoder layer, half of a decoder layer. Up to
#   $n = d_{\mathrm{ff}} - 2\,d_{\mathrm{model}}$ tokens it also does most of an encoder layer's work.
# - A wider network stores more; the paper's Table 3 finds each doubling of $d_{\mathrm{ff}}$ worth 0.4 BLEU.
# - It can be read as a memory with learned keys and values, in which a trained model has few units on at a time, many
#   of them detectors of one piece of text.
# - Without the ReLU, $W_1$ and $W_2$ are one matrix, and nothing complains.
#
# The vectors that go in here came from an embedding, and the last of them leave through a softmax:
# [section 3.4](3_4_embeddings_and_softmax.ipynb).
