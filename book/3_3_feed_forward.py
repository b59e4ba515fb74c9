# %% [markdown]
# # 3.3 Position-wise feed-forward networks
#
# *Section 3.3 of the paper {cite}`vaswani2017attention`: the small network that every layer applies to each position
# after attention.*
#
# Attention mixes the vectors of many positions into a weighted mean. This chapter is about what each position then does
# with that mean: a second sub-layer multiplies it by two matrices, with a threshold between them, at every position
# alone. It is the plainest part of the Transformer, and the heaviest. In the program of [chapter 0](0_one_hour.ipynb) it
# is the class below ([notation](notation.md) lists the letters). We compute it with a pencil, count what it costs, and
# measure what its width and its threshold are good for. At the end we read it as a memory of keys and values, and test
# that reading against fair controls.

# %% tags=["remove-cell"]
import math
from collections import Counter

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer import ModelConfig, PositionwiseFeedForward, Transformer, scaled_dot_product_attention
from lab.display import PALETTE, show, use_style
from lab.exercises import check
from lab.same import equal, with_weights

# %% tags=["remove-cell"]
use_style()
torch.set_printoptions(precision=4, sci_mode=False)

# %%
from lab.listing import FeedForward

show(FeedForward)

# %% [markdown]
# ## Equation 2 widens, thresholds and narrows
#
# Once its weights are fixed, attention is *linear* in the values: its output is a weighted mean of them. Weighted means
# cannot express "both $a$ and $b$", or "$a$ without $b$". For that, a vector has to pass through a **non-linearity**, a
# function whose graph is more than a straight line. The paper puts the simplest one between two matrix products, its
# equation 2:
#
# $$
# \mathrm{FFN}(x) = \max(0,\; x W_1 + b_1)\, W_2 + b_2
# $$ (ffn-equation)
#
# Here $x$ is the vector of one position, written as a row, and we take the maximum entry by entry. The function
# $\max(0, \cdot)$ is the **ReLU**, short for *rectified linear unit* {cite}`nair2010rectified`: it keeps what is
# positive and replaces the rest by 0. The $d_{\mathrm{ff}}$ numbers that come out of it are the **hidden units**, and
# we call a unit **on** while its value is above 0.
#
# "The dimensionality of input and output is $d_{\text{model}} = 512$, and the inner-layer has dimensionality
# $d_{ff} = 2048$", says the paper. So each position's vector becomes four times wider, passes the threshold and is
# narrowed again ([chapter 0](0_one_hour.ipynb) has a drawing). Both products add a **bias**, a vector that the
# projections of attention do without. In `forward` we read the equation from the inside out: `W_1(x)` is $x W_1 + b_1$,
# `relu()` the maximum, `W_2` the second product with its bias. The package's
# [`PositionwiseFeedForward`](https://github.com/annotated-transformer/annotated-transformer/blob/main/annotated_transformer/model/feed_forward.py) offers other activations and dropout among the hidden units, both off unless we ask:

# %%
theirs = PositionwiseFeedForward(d_model=8, d_ff=32)
ours = with_weights(FeedForward(d_model=8, d_ff=32), theirs)
x = torch.randn(2, 5, 8)
print(equal(ours(x), theirs(x)))

# %% [markdown]
# Let us compute a small case with a pencil: three positions, with $d_{\mathrm{model}} = d_{\mathrm{ff}} = 2$.
#
# $$
# x = \begin{pmatrix} 1&0\\0&1\\1&1 \end{pmatrix} \quad
# W_1 = \begin{pmatrix} 1&1\\0&1 \end{pmatrix} \quad b_1 = (0, 1) \quad
# W_2 = \begin{pmatrix} 1&0\\2&1 \end{pmatrix} \quad b_2 = (1, -1)
# $$
#
# The bias is added to every row:
#
# $$
# xW_1 = \begin{pmatrix} 1&1\\0&1\\1&2 \end{pmatrix}
# \;\to\; xW_1 + b_1 = \begin{pmatrix} 1&2\\0&2\\1&3 \end{pmatrix}
# \;\to\; \max(0, \cdot)\, W_2 = \begin{pmatrix} 5&2\\4&2\\7&3 \end{pmatrix}
# \;\to\; \mathrm{FFN}(x) = \begin{pmatrix} 6&1\\5&1\\8&2 \end{pmatrix}
# $$
#
# In this example everything is positive after the first product, so the ReLU changes nothing. A fourth position,
# $(-1, 1)$, shows what it does: $xW_1 + b_1 = (-1, 1)$, the first unit becomes 0, and the output is
# $(0, 1)\,W_2 + b_2 = (3, 0)$. Without the ReLU it would be $(2, 0)$.

# %%
x = torch.tensor([[1.0, 0], [0, 1], [1, 1], [-1, 1]])
W_1, b_1 = torch.tensor([[1.0, 1], [0, 1]]), torch.tensor([0.0, 1])
W_2, b_2 = torch.tensor([[1.0, 0], [2, 1]]), torch.tensor([1.0, -1])

before = x @ W_1 + b_1
hidden = before.clamp(min=0)
output = hidden @ W_2 + b_2
print("before the ReLU:", before.tolist())
print("hidden units:   ", hidden.tolist())
print("output:         ", output.tolist())

# %% tags=["hide-cell", "row-W7"]
w7 = FeedForward(d_model=2, d_ff=2)
w7.W_1.weight.data, w7.W_1.bias.data = W_1.T, b_1  # nn.Linear stores its matrix transposed
w7.W_2.weight.data, w7.W_2.bias.data = W_2.T, b_2
assert before.tolist() == [[1, 2], [0, 2], [1, 3], [-1, 1]]
assert torch.equal(hidden[:3], before[:3])  # nothing was negative
assert (hidden @ W_2)[:3].tolist() == [[5, 2], [4, 2], [7, 3]]
assert output.tolist() == [[6, 1], [5, 1], [8, 2], [3, 0]]
assert torch.equal(w7(x), output)
assert (before[3] @ W_2 + b_2).tolist() == [2, 0]  # without the ReLU

# %% tags=["hide-cell"]
def ffn_by_hand(X, W_1, b_1, W_2, b_2):
    """Equation 2 in Python floats, position by position and unit by unit."""
    output = []
    for x in X:
        hidden = [max(0.0, sum(a * w for a, w in zip(x, column)) + b)
                  for column, b in zip(zip(*W_1), b_1)]
        output.append([sum(h * w for h, w in zip(hidden, column)) + b
                       for column, b in zip(zip(*W_2), b_2)])
    return torch.tensor(output, dtype=torch.float64)

# %% tags=["hide-cell", "row-L0", "row-L4"]
torch.manual_seed(0)
L, d_model, d_ff = 5, 4, 7
ffn = FeedForward(d_model, d_ff).double()
X = torch.randn(L, d_model, dtype=torch.float64)
weights = [ffn.W_1.weight.T, ffn.W_1.bias, ffn.W_2.weight.T, ffn.W_2.bias]
loops = ffn_by_hand(X.tolist(), *[w.tolist() for w in weights])
assert_close(ffn(X), loops)
n_off = (ffn.W_1(X).relu() == 0).sum().item()
print(f"Loops over positions and units agree; {n_off} of {L * d_ff} hidden units are off")

# %% [markdown]
# To see what such a function looks like, we walk along a line through the inputs, $x = (t, 1)$. The two hidden units
# are then $\max(0, t)$ and $\max(0, t + 2)$, ramps that start at $t = 0$ and $t = -2$. The outputs are weighted sums of
# the ramps, so they are straight except for **kinks** where a unit switches on. More units allow more kinks.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two line charts over t from minus 4 to 2. Left: the two hidden units, ramps that are zero and then rise from t = 0 and from t = minus 2. Right: the two outputs, one solid, one dashed, which are flat on the left and bend upwards at minus 2 and, the first one, again at 0. Dotted straight lines show the outputs without the ReLU; they agree with the outputs on the right only: with the first from 0, with the second from minus 2."}, "figure": {"caption": "Our example along the line $x = (t, 1)$. Left: its hidden units. Right: its outputs, with the ReLU (solid, dashed) and without it (dotted).", "name": "fig-ffn-kinks"}}
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
# One kink already decides what can be computed. The smallest task that a linear function fails is *exclusive or*: 1 if
# exactly one of two inputs $a, b$ is 1. Two hidden units solve it, $\max(0, a + b) - 2\max(0, a + b - 1)$, while the
# best linear fit by least squares answers one half everywhere. The picture shows why: the units move the two points
# with answer 1 onto each other, and then a straight line separates the answers.

# %%
inputs = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]])
exclusive_or = torch.tensor([[0.0], [1], [1], [0]])
units = (inputs @ torch.ones(2, 2) + torch.tensor([0.0, -1])).relu()
with_units = units @ torch.tensor([[1.0], [-2]])

with_bias = torch.cat([inputs, torch.ones(4, 1)], dim=1)
best = with_bias @ torch.linalg.lstsq(with_bias, exclusive_or).solution
print("with two units: ", with_units.flatten())
print("best linear fit:", best.flatten())
assert torch.equal(with_units, exclusive_or)
assert_close(best, torch.full((4, 1), 0.5))

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two scatter plots. Left, the inputs a and b: circles for answer 0 at (0, 0) and (1, 1), squares for answer 1 at (0, 1) and (1, 0), which no straight line separates. Right, the hidden units: circles at (0, 0) and (2, 1), and both squares at (1, 0). A dashed line runs between the square and the circles."}, "figure": {"caption": "Exclusive or before and after the hidden layer. Circles have the answer 0, squares the answer 1; on the right the two squares coincide, and on the dashed line the output is one half.", "name": "fig-ffn-xor"}}
figure, (left, right) = plt.subplots(1, 2, figsize=(5.6, 2.5), layout="constrained")
for ax, points in ((left, inputs), (right, units)):
    for answer, mark in ((0, "o"), (1, "s")):
        chosen = points[exclusive_or[:, 0] == answer]
        ax.plot(*chosen.T, mark, markersize=11, color=PALETTE[answer], label=f"answer {answer}")
right.fill_between([-0.3, 2.5], [-0.4, 1], -0.4, color=PALETTE[1], alpha=0.15)
right.plot([-0.3, 2.5], [-0.4, 1.0], "--", color="black", linewidth=1)
left.set(title="inputs", xlabel="$a$", ylabel="$b$", xlim=(-0.4, 1.4), ylim=(-0.4, 1.4), xticks=[0, 1], yticks=[0, 1])
right.set(title="hidden units", xlabel="$\\max(0, a + b)$", ylabel="$\\max(0, a + b - 1)$",
          xlim=(-0.4, 2.5), ylim=(-0.4, 1.4), xticks=[0, 1, 2], yticks=[0, 1])
left.legend(loc="center")
plt.show()

# %% [markdown]
# ## Each position is treated alone
#
# The network "is applied to each position separately and identically". *Separately* means that output $t$ depends on
# input $t$ only, and *identically* that all positions share $W_1, b_1, W_2, b_2$, while every layer has its own. For a
# sentence $X$ with rows $x_1, \ldots, x_L$ and any permutation $P$ of its rows,
#
# $$
# \mathrm{FFN}(X)_t = \mathrm{FFN}(x_t)
# \qquad\text{and therefore}\qquad
# \mathrm{FFN}(PX) = P\,\mathrm{FFN}(X)
# $$ (ffn-position-wise)
#
# We can ask the derivatives which inputs reach which outputs. For comparison we take self-attention
# and a convolution of width 3, which sees its neighbours.

# %%
def reach(function, length=6, width=8):
    """Entry (i, j) is 1 if output i depends on input j."""
    torch.manual_seed(1)
    x = torch.randn(length, width, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(function, x)  # L D L D
    return (jacobian.abs().sum(dim=(1, 3)) > 0).double()

ffn = FeedForward(d_model=8, d_ff=32).double()
wide = nn.Conv1d(8, 8, kernel_size=3, padding=1).double()
layers = {"self-attention": lambda x: scaled_dot_product_attention(x, x, x),
          "convolution of width 3": lambda x: wide(x.T).T, "feed-forward": ffn}
reached = {name: reach(layer) for name, layer in layers.items()}
for name, matrix in reached.items():
    print(f"{name:23} {int(matrix.sum()):2d} of 36 pairs")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three 6 by 6 grids, output positions down, input positions across. Self-attention: all cells dark. Convolution of width 3: the diagonal and its two neighbours dark. Feed-forward: only the diagonal dark."}, "figure": {"caption": "Blue cells: input position (column) reaches output position (row).", "name": "fig-ffn-reach"}}
from matplotlib.colors import ListedColormap

figure, axes = plt.subplots(1, 3, figsize=(6, 2.3), layout="constrained")
for ax, (name, matrix) in zip(axes, reached.items()):
    ax.pcolormesh(matrix, cmap=ListedColormap(["white", PALETTE[0]]), vmin=0, vmax=1, edgecolors="lightgray")
    ax.set(title=name, xlabel="input position", aspect="equal")
    ax.set_xticks(torch.arange(6) + 0.5, range(1, 7))
    ax.set_yticks(torch.arange(6) + 0.5, range(1, 7))
    ax.invert_yaxis()
axes[0].set_ylabel("output position")
plt.show()

# %% tags=["hide-cell"]
assert torch.equal(reached["feed-forward"], torch.eye(6, dtype=torch.float64))
torch.manual_seed(0)
X = torch.randn(2, 6, 8, dtype=torch.float64)  # 2 sentences of 6 positions
one_by_one = torch.stack([ffn(X[:, t]) for t in range(6)], dim=1)
assert_close(one_by_one, ffn(X))
order = torch.tensor([3, 0, 5, 2, 1, 4])
assert_close(ffn(X[:, order]), ffn(X)[:, order])
changed = X.clone()
changed[:, 2] += 1
moved = (ffn(changed) != ffn(X)).any(dim=-1)
assert moved.tolist() == [[t == 2 for t in range(6)]] * 2
print("One position at a time, permuted, or with one position changed: equation holds")

# %% [markdown]
# So only attention moves information between positions. The feed-forward network needs no mask, and all positions of
# all sentences are computed as the rows of one large matrix.
#
# ```{admonition} The paper's other description: two convolutions
# :class: note
#
# "Another way of describing this is as two convolutions with kernel size 1." A **convolution** computes the output at
# position $t$ from the $k$ inputs around $t$, with the same weights everywhere, and $k$ is its kernel size. For $k = 1$
# this is a linear map of one position. A folded cell copies our weights into two `nn.Conv1d` and finds the same
# gradients. In the decoder, a centred kernel of size 3 would let position $t$ see $t + 1$, the token it has to predict.
# ```

# %% tags=["hide-cell", "row-E7"]
class TwoConvolutions(nn.Module):
    """The paper's other description; weights copied from `ffn`."""

    def __init__(self, ffn):
        super().__init__()
        d_ff, d_model = ffn.W_1.weight.shape
        self.conv_1 = nn.Conv1d(d_model, d_ff, kernel_size=1)
        self.conv_2 = nn.Conv1d(d_ff, d_model, kernel_size=1)
        for conv, linear in ((self.conv_1, ffn.W_1), (self.conv_2, ffn.W_2)):
            conv.weight.data, conv.bias.data = linear.weight.data[:, :, None], linear.bias.data

    def forward(self, x):  # a convolution wants its channels before the positions
        return self.conv_2(self.conv_1(x.transpose(1, 2)).relu()).transpose(1, 2)

assert_close(TwoConvolutions(ffn)(X), ffn(X))

# %% tags=["hide-cell", "row-E7"]
convolutions = TwoConvolutions(ffn)
hidden = (X @ ffn.W_1.weight.T + ffn.W_1.bias).clamp(min=0)
assert_close(ffn(X), hidden @ ffn.W_2.weight.T + ffn.W_2.bias)
ffn.zero_grad()
for network in (ffn, convolutions):
    network(X).square().sum().backward()
assert_close(convolutions.conv_1.weight.grad[:, :, 0], ffn.W_1.weight.grad)
assert_close(convolutions.conv_2.weight.grad[:, :, 0], ffn.W_2.weight.grad)
assert reached["convolution of width 3"].triu(diagonal=1).sum() == 5  # sees the future
assert reached["feed-forward"].triu(diagonal=1).sum() == 0
print("Two convolutions of width 1: same outputs, same gradients")

# %% tags=["hide-cell"]
torch.manual_seed(0)
first, second = nn.Conv1d(8, 32, 3).double(), nn.Conv1d(32, 8, 1).double()

def causal_convolution(x):  # padded on the left only: some sense of order, and no future
    return second(first(F.pad(x.T, (2, 0))).relu()).T

band = torch.ones(6, 6, dtype=torch.float64).tril()
assert torch.equal(reach(causal_convolution), band.triu(diagonal=-2))
assert torch.equal(reach(lambda x: causal_convolution(causal_convolution(x))), band.triu(diagonal=-4))
print("A causal convolution of width 3 sees back to t - 2, two of them to t - 4")

# %% [markdown]
# ## Two thirds of an encoder layer's weights are here
#
# A feed-forward network has two matrices and two biases, an attention four matrices (section 3.2.2). For a sentence of
# $n$ positions, with two operations for each multiplication and its addition, we count
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
# Here is the base model with a vocabulary of 37,000 tokens. The device `meta` gives tensors a shape and no memory.

# %%
config = ModelConfig.base(vocab_size=37_000)
with torch.device("meta"):
    base = Transformer(config)

def count(module, part=""):
    named = module.named_parameters()
    return sum(weight.numel() for name, weight in named if part in name)

parts = {"encoder layer": base.encoder.layers[0],
         "decoder layer": base.decoder.layers[0], "model": base}
shares = {}
for name, part in parts.items():
    here, total = count(part, "feed_forward"), count(part)
    shares[name] = here / total
    print(f"{name:14} {here:>10,} of {total:>10,} weights: {shares[name]:.1%}")

# %% tags=["remove-cell"]
for share, told in zip(shares.values(), (2 / 3, 1 / 2, 2 / 5)):
    assert abs(share - told) < 0.002
assert count(parts["encoder layer"], "feed_forward") == 2 * 512 * 2048 + 2048 + 512 == 2_099_712
assert count(parts["encoder layer"], "attention") == 4 * 512**2 == 1_048_576

# %% tags=["hide-cell"]
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
assert attention_counter.get_total_flops() == 8 * n * d_model**2 + 4 * n**2 * d_model
print("PyTorch's own counter finds the operations of the equation")

# %% [markdown]
# The network holds two thirds of an encoder layer, half of a decoder layer, which has two attentions, and two fifths of
# the whole model. Its work per token is constant, while attention's grows with the sentence. With
# $d_{\mathrm{ff}} = 4\, d_{\mathrm{model}}$ the two meet at $n = 2\, d_{\mathrm{model}}$, which is 1,024 tokens for the
# base model ({ref}`ffn-ex-crossing`). Sentences are shorter, so most of an encoder layer's work is done here.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Line chart of millions of operations per token over sentence length from 1 to 2048 for the base model. The feed-forward network is a level line at 4.2. Attention starts at 2.1, rises in a straight line, crosses the level line at 1024 tokens and ends near 6.3."}, "figure": {"caption": "Operations per token of one encoder layer of the base model, by equation {eq}`ffn-cost`. The dotted line marks 1,024 tokens.", "name": "fig-ffn-operations"}}
lengths = torch.arange(1, 2049)
per_token_ffn = torch.full((2048,), 4.0 * 512 * 2048)
per_token_attention = 8 * 512**2 + 4 * lengths * 512
equal = lengths[per_token_ffn == per_token_attention]
assert equal.tolist() == [1024]
figure, ax = plt.subplots(figsize=(5, 2.7), layout="constrained")
ax.plot(lengths, per_token_ffn / 1e6, label="feed-forward")
ax.plot(lengths, per_token_attention / 1e6, "--", label="attention")
ax.axvline(1024, color=PALETTE[-1], linewidth=0.8, linestyle=":")
ax.set(xlabel="tokens in the sentence", ylabel="million operations per token")
ax.set_ylim(0, 7)
ax.legend(loc="upper left")
plt.show()

# %% [markdown]
# ## What a wider network buys
#
# The paper does not say how it chose $d_{\mathrm{ff}} = 2048$, four times $d_{\mathrm{model}}$, and in its Table 3 twice
# as wide is better still. We quote three lines (English to German, newstest2013):
#
# | $d_{\mathrm{ff}}$ | perplexity | BLEU | parameters (million) |
# |---|---|---|---|
# | 1024 | 5.12 | 25.4 | 53 |
# | 2048, base | 4.92 | 25.8 | 65 |
# | 4096 | 4.75 | 26.2 | 90 |
#
# Each doubling is worth 0.4 BLEU. Our formula gives the printed parameters with 41,100 rows of width
# $d_{\mathrm{model}}$ outside the layers, which [section 6.2](6_2_variations.ipynb) explains.

# %% tags=["hide-cell"]
from annotated_transformer.config import count_parameters
from lab.tables.table_3 import TABLE_3

rows = {row.name: row for row in TABLE_3}
quoted = {1024: ("d_ff=1024", 5.12, 25.4, 53), 2048: ("base", 4.92, 25.8, 65),
          4096: ("d_ff=4096", 4.75, 26.2, 90)}
for d_ff, (name, ppl, bleu, millions) in quoted.items():
    row = rows[name]
    assert (row.ppl, row.bleu, row.parameters) == (ppl, bleu, millions)
    n_ours = count_parameters(ModelConfig.base(vocab_size=41_100, d_ff=d_ff))
    print(f"d_ff {d_ff}  {n_ours:>10,} parameters, in the paper {millions} million")
    assert round(n_ours / 1e6) == millions
    assert n_ours - count_parameters(ModelConfig.base(41_100, d_ff=d_ff - 1)) == 12 * (512 + 1 + 512)

# %% [markdown]
# What does width do to the network by itself? We give it facts to learn by heart, 512 random vectors with 16 entries and
# a random label out of 16 for each, and count the labels that it gets right after 300 steps of Adam. We do the same
# without the ReLU. There, if we multiply out equation {eq}`ffn-equation`,
#
# $$
# (x W_1 + b_1)\, W_2 + b_2 = x\, \underbrace{W_1 W_2}_{W} + \underbrace{b_1 W_2 + b_2}_{b},
# $$ (ffn-collapse)
#
# the two matrices become one, of size $d_{\mathrm{model}} \times d_{\mathrm{model}}$, however large $d_{\mathrm{ff}}$
# is. In the base model, 2.1 million weights would do the work of 262,656.

# %% tags=["hide-cell"]
class WithoutReLU(FeedForward):
    def forward(self, x):
        return self.W_2(self.W_1(x))

torch.manual_seed(0)
linear = WithoutReLU(d_model=8, d_ff=32).double()
W = linear.W_1.weight.T @ linear.W_2.weight.T
b = linear.W_1.bias @ linear.W_2.weight.T + linear.W_2.bias
X = torch.randn(2, 6, 8, dtype=torch.float64)
assert W.shape == (8, 8)
assert_close(linear(X), X @ W + b)
print("Without the ReLU, one matrix of 8 x 8 does the same as 32 hidden units")

# %% tags=["nbval-ignore-output"]
def facts_learned(kind, d_ff, n_facts=512, steps=300):
    torch.manual_seed(0)
    x = F.layer_norm(torch.randn(n_facts, 16), [16])
    label, network = torch.randint(16, (n_facts,)), kind(16, d_ff)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(network(x), label).backward()
        optimizer.step()
    return (network(x).argmax(dim=-1) == label).float().mean().item()

share = facts_learned(FeedForward, d_ff=64)
print(f"64 hidden units learn {share:.0%} of the facts")

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"image": {"alt": "Line chart: share of 512 facts learned against d_ff from 4 to 64 on a logarithmic axis. With the ReLU the curve rises from about 0.2 at 4 units to about 0.4 at 16 and to 1 at 64. Without it the line stays below 0.25 at all widths. A dotted line marks guessing at one sixteenth."}, "figure": {"caption": "Share of random facts learned by a feed-forward network of width $d_{\\mathrm{ff}}$, measured here.", "name": "fig-ffn-width"}}
widths = (4, 8, 16, 32, 64)
kinds = {"with the ReLU": FeedForward, "without": WithoutReLU}
learned = {name: [facts_learned(kind, d_ff) for d_ff in widths] for name, kind in kinds.items()}
figure, ax = plt.subplots(figsize=(4.8, 2.6), layout="constrained")
for (name, shares), style in zip(learned.items(), ("o-", "s--")):
    ax.plot(widths, shares, style, label=name)
ax.axhline(1 / 16, color=PALETTE[-1], linestyle=":", linewidth=0.8, label="guessing")
ax.set_xscale("log", base=2)
ax.set_xticks(widths, widths)
ax.set(xlabel="$d_{\\mathrm{ff}}$", ylabel="share of facts learned", ylim=(0, 1.05))
ax.legend(loc="upper left")
plt.show()
assert learned["with the ReLU"][-1] > 0.99

# %% tags=["remove-cell"]
with_relu = dict(zip(widths, learned["with the ReLU"]))
assert with_relu[4] < 0.3 < with_relu[16] < 0.7 and with_relu[64] > 0.99
assert max(learned["without"]) < 0.3 and max(learned["without"]) < with_relu[16] * 0.7
assert 512 * 512 + 512 == 262_656

# %% [markdown]
# With the ReLU, width is storage: 4 units keep about a fifth of the facts and 64 units keep all of them. Without it, the
# share rises up to $d_{\mathrm{ff}} = 16$, where the single matrix has its full rank, and stays at about a sixth. A
# whole model in which the ReLU was forgotten can still learn, since attention's softmax and the layer norm are
# non-linear, so the mistake is easy to miss.
#
# ### Other activations
#
# Later models took smoother functions, which let small negative values through: the **GELU**
# {cite}`hendrycks2016gaussian`, in which $\Phi(x)$ is the probability that a standard normal number is below $x$, and
# the **SiLU** {cite}`elfwing2018sigmoid`. Both are options of `ModelConfig`, for instance `activation="gelu"`. In
# models of the size of the paper's, pre-trained on much text, {cite:t}`shazeer2020glu` finds the best results with
# networks that have a third matrix.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Line chart of three activations from minus 4 to 3. The ReLU is 0 and then the diagonal, with a corner at 0. GELU and SiLU are smooth, dip a little below 0 on the negative side, the SiLU down to about minus 0.28, and approach the diagonal on the right."}, "figure": {"caption": "Three activations that the package offers.", "name": "fig-ffn-activations"}}
from annotated_transformer.model.feed_forward import ACTIVATIONS

x = torch.linspace(-4, 4, 81, dtype=torch.float64)
formulas = {"relu": x.clamp(min=0), "gelu": x * (1 + torch.erf(x / math.sqrt(2))) / 2,
            "silu": x / (1 + (-x).exp())}
labels = {"relu": "ReLU: $\\max(0, x)$", "gelu": "GELU: $x\\,\\Phi(x)$", "silu": "SiLU: $x/(1 + e^{-x})$"}
figure, ax = plt.subplots(figsize=(4.4, 2.4), layout="constrained")
for (name, y), style in zip(formulas.items(), ("-", "--", ":")):
    assert_close(ACTIVATIONS[name]()(x), y)
    ax.plot(x, y, style, label=labels[name])
ax.set(xlabel="$x$", xlim=(-4, 3), ylim=(-0.5, 3))
ax.legend()
plt.show()

# %% tags=["hide-cell"]
assert abs(formulas["silu"].min() + 0.28) < 0.01
assert ModelConfig.base(vocab_size=37_000).activation == "relu"
for name in ACTIVATIONS:
    options = ModelConfig.tiny(vocab_size=100, activation=name)
    print(f"{name}: {Transformer(options).encoder.layers[0].feed_forward.activation}")
try:
    ModelConfig.tiny(vocab_size=100, activation="swish")
except ValueError as error:
    print(error)
else:
    raise AssertionError("an unknown activation was accepted")

# %% [markdown]
# ## A memory with keys and values
#
# What do the hidden units do in a trained model? Let us write $k_i$ for column $i$ of $W_1$, $v_i$ for row $i$ of
# $W_2$, and $b_{1,i}$ for entry $i$ of $b_1$. Then equation {eq}`ffn-equation` is a sum over the units:
#
# $$
# \mathrm{FFN}(x) = \sum_{i=1}^{d_{\mathrm{ff}}} \max(0,\; x \cdot k_i + b_{1,i})\, v_i + b_2
# $$ (ffn-memory)
#
# This has the shape of attention. A query $x$ is compared with keys $k_i$ by a dot product, and values $v_i$ are added
# up in proportion. But the keys and values are *weights*, the same for every sentence, and with a ReLU instead of a
# softmax the keys do not compete. {cite:t}`geva2021transformer` read a language model's network in this way, as a
# **key-value memory**: each key fits patterns in the text, each value moves the prediction towards what tends to follow.

# %% tags=["hide-cell"]
torch.manual_seed(0)
ffn = FeedForward(d_model=6, d_ff=20).double()
x = torch.randn(200, 6, dtype=torch.float64)
keys, values = ffn.W_1.weight, ffn.W_2.weight.T  # one row a unit, both
unit = (x @ keys.T + ffn.W_1.bias).relu()
assert_close(sum(unit[:, [i]] * values[i] for i in range(20)) + ffn.W_2.bias, ffn(x))
before, value = ffn(x), values[0].clone()
ffn.W_2.weight.data[:, 0] = 0  # one entry of the memory is erased
assert_close(before - ffn(x), unit[:, [0]] * value)
assert torch.equal(before[unit[:, 0] == 0], ffn(x)[unit[:, 0] == 0])
print("A sum over units; erasing a value changes the output only where its unit is on")

# %% [markdown]
# Let us look at the book's trained model ([section 6.1](6_1_translation.ipynb)), and at an untrained one of the same
# shape, while they read 200 sentence pairs of the validation split. Folded cells collect the hidden units.

# %% tags=["hide-cell"]
from annotated_transformer import corpus, load_model, make_batch

def entering(model, batch):
    """For each feed-forward network: (the real tokens, the vectors that enter it there)."""
    sides, found, hooks = {"encoder": batch.source, "decoder": batch.target_in}, {}, []
    for name, module in model.named_modules():
        if isinstance(module, PositionwiseFeedForward):
            def hook(module, inputs, output, name=name, tokens=sides[name[:7]]):
                found[name] = tokens[tokens != 0], inputs[0][tokens != 0]
            hooks.append(module.register_forward_hook(hook))
    with torch.no_grad():
        model(batch.source, batch.target_in)
    for hook in hooks:
        hook.remove()
    return found

# %% tags=["hide-cell"]
trained, tokenizer = load_model("model")
pairs = corpus.load("tatoeba-en-de", "valid")[:200]
batch = make_batch([tuple(map(tokenizer.encode, pair)) for pair in pairs])

def untrained(seed):
    torch.manual_seed(seed)
    return Transformer(trained.config)

def hidden_units(model):
    """For each feed-forward network: (the real tokens, the hidden units there)."""
    units = {}
    for name, (tokens, x) in entering(model.eval(), batch).items():
        network = model.get_submodule(name)
        units[name] = tokens, network.activation(network.W_1(x)).detach()
    return units

# %% tags=["nbval-ignore-output"]
seen = {"untrained": hidden_units(untrained(0)),
        "trained": hidden_units(trained)}
off = {which: {name: (units == 0).float().mean().item()
               for name, (_, units) in layers.items()}
       for which, layers in seen.items()}
for which, shares in off.items():
    low, high = min(shares.values()), max(shares.values())
    print(f"{which:9} share of units off: {low:.0%} to {high:.0%}, by layer")

# %% tags=["hide-cell"]
assert all(abs(share - 0.5) < 0.03 for share in off["untrained"].values())
assert all(0.9 < share < 1 for share in off["trained"].values())
torch.manual_seed(0)
ffn = FeedForward(d_model=8, d_ff=32)
ffn.W_1.bias.data[3] = -100.0  # a unit that is off for every input
ffn(torch.randn(50, 8)).square().sum().backward()
into_unit = ffn.W_1.weight.grad.norm(dim=1)
assert into_unit[3] == 0 and ffn.W_1.bias.grad[3] == 0
assert ffn.W_2.weight.grad[:, 3].norm() == 0
print(f"units without a gradient: {(into_unit == 0).nonzero().flatten().tolist()}")

# %% [markdown]
# In an untrained network half of the units are off, because its weights are drawn symmetrically around 0. Training
# switches most of the others off too, so that more than nine in ten are; {cite:t}`li2023lazy` find the same in large
# Transformers. (A unit that is off for *every* token is **dead**: the ReLU's derivative is 0 there, so the unit gets no gradient.) Which few are on depends
# on the token. For some units of the encoder's last layer, we print the five tokens at which each is on most strongly. We
# call a unit **selective** if at least four of the five are the same piece of text.

# %% tags=["hide-cell"]
def strongest(tokens, units, n=5):
    """{unit: its n strongest tokens}, for the units that are on at least ten times."""
    busy = ((units > 0).sum(dim=0) >= 10).nonzero().flatten().tolist()
    return {i: tokens[units[:, i].topk(n).indices].tolist() for i in busy}

def is_selective(ids):
    return Counter(ids).most_common(1)[0][1] >= 4

# %% tags=["nbval-ignore-output"]
last = f"encoder.layers.{trained.config.N - 1}.feed_forward"
triggers = strongest(*seen["trained"][last])
for wanted, name in ((True, "selective"), (False, "other")):
    chosen = [i for i, ids in triggers.items() if is_selective(ids) == wanted]
    print(f"{len(chosen)} {name} units, such as")
    for i in chosen[:6]:
        print(f"   unit {i:3d} ", *tokenizer.pieces(triggers[i]))
assert len(triggers) > 50

# %% [markdown]
# Many of the other units answer to words of one kind, such as pronouns or prepositions, which our measure does not
# count. Is even the share of selective units the work of training? That depends on what we compare it with:
#
# - *shuffled*: the same units, with the tokens in random order. This tempting control gives almost 0, and it is too
#   easy: equal tokens have nearly equal vectors in any model, so they excite the same units;
# - *untrained*: three untrained models, which have that resemblance and have learned nothing;
# - *random keys*: the vectors of the trained model, met by keys that we draw at random, ten times, with a threshold that
#   leaves as few units on.

# %% tags=["hide-cell"]
def share_selective(tokens, units):
    lists = strongest(tokens, units).values()
    return sum(map(is_selective, lists)) / len(lists)

def with_random_keys(tokens, x, share_off):
    """The share of selective units among d_ff random keys, of which as many are off."""
    scores = x @ torch.randn(trained.config.d_model, trained.config.d_ff)
    threshold = scores.flatten().sort().values[int(share_off * scores.numel())]
    return share_selective(tokens, (scores - threshold).relu())

# %% tags=["hide-cell"]
new = [hidden_units(untrained(seed)) for seed in range(3)]
torch.manual_seed(0)
selective, draws = {"trained": [], "untrained": [], "random keys": [], "shuffled": []}, []
for name, (tokens, x) in entering(trained, batch).items():
    units = seen["trained"][name][1]
    selective["trained"].append(share_selective(tokens, units))
    selective["untrained"].append(sum(share_selective(*found[name]) for found in new) / 3)
    draws.append([with_random_keys(tokens, x, (units == 0).float().mean().item()) for _ in range(10)])
    selective["random keys"].append(sum(draws[-1]) / 10)
    selective["shuffled"].append(share_selective(tokens[torch.randperm(len(tokens))], units))

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"image": {"alt": "Grouped bars for each encoder and decoder layer: share of selective units in the trained model, in untrained models, with random keys, and shuffled. In the encoder the trained bars are well above the untrained ones. The bars of random keys differ from layer to layer. The shuffled bars are close to zero."}, "figure": {"caption": "Share of units that answer to one piece of text, by layer, against three controls.", "name": "fig-ffn-selective"}}
names = [name.replace(".layers.", " ")[:9] for name in seen["trained"]]
figure, ax = plt.subplots(figsize=(6.4, 2.7), layout="constrained")
for shift, (which, shares) in zip((-0.3, -0.1, 0.1, 0.3), selective.items()):
    ax.bar(torch.arange(len(names)) + shift, shares, width=0.19, label=which)
ax.set_xticks(range(len(names)), names)
ax.set(ylabel="share of selective units")
ax.legend(loc="upper right")
plt.show()
for side, half in (("encoder", slice(0, trained.config.N)), ("decoder", slice(trained.config.N, None))):
    for control in ("untrained", "random keys"):
        ratios = [a / b for a, b in zip(selective["trained"][half], selective[control][half])]
        print(f"{side}, trained / {control:11}", *(f"{ratio:.1f}" for ratio in ratios))
print("draws of random keys, of ten, with fewer than trained:",
      *(sum(share < ours for share in ten) for ours, ten in zip(selective["trained"], draws)))

# %% tags=["remove-cell"]
encoder = {which: sum(shares[: trained.config.N]) for which, shares in selective.items()}
assert encoder["trained"] > 1.2 * encoder["untrained"]
assert max(selective["shuffled"]) < 0.02

# %% [markdown]
# Shuffled tokens would have made every layer look like a discovery. Untrained models are the fair control for the first
# question: the printed ratios, one for each layer, say how many times as frequent training makes selective units. In
# every layer it makes them more frequent, though they stay a minority (the bars). Random keys are the stricter control:
# where they do equally well, the *vectors* themselves have clustered by piece, and the learned keys add little. The last
# line counts how many of ten draws a layer beats. Only a layer ahead of all ten has keys that have become
# detectors of a piece of text.
#
# :::{dropdown} Where this is
# `PositionwiseFeedForward` is in `annotated_transformer/model/feed_forward.py`, tested by
# `tests/model/test_feed_forward.py` and `tests/test_paper.py`. The layers of [section 3.1](3_1_stacks.ipynb) wrap it in
# a residual connection and a layer norm, and [section 5.4](5_4_regularization.ipynb) has dropout inside it.
# :::

# %% [markdown]
# ## Exercises
#
# Each has a hint and a solution, both folded. A folded cell below computes the answer.

# %% [markdown] tags=["exercise"]
# ```{exercise} Equation 2 in one line (check 3.3)
# :label: ffn-ex-code
#
# Write `feed_forward(x, W_1, b_1, W_2, b_2)`, with the matrices as the paper has them: `W_1` of shape
# ($d_{\mathrm{model}}$, $d_{\mathrm{ff}}$), and `x` with any number of axes before the last. Check it with
# `check("3.3", feed_forward)`.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# The paper multiplies from the left: `x @ W_1`. `clamp(min=0)` is the maximum with 0.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ffn-ex-code
# :class: dropdown
#
# `return (x @ W_1 + b_1).clamp(min=0) @ W_2 + b_2`. Broadcasting adds the biases to every position.
# ```

# %% tags=["hide-cell", "solution"]
def feed_forward(x, W_1, b_1, W_2, b_2):
    return (x @ W_1 + b_1).clamp(min=0) @ W_2 + b_2

check("3.3", feed_forward)
assert feed_forward(torch.tensor([-1.0, 1]), W_1, b_1, W_2, b_2).tolist() == [3, 0]
x, sides = torch.linspace(-3, 3, 13)[:, None], torch.tensor([[1.0, -1]])  # two units make |x|, or x
assert torch.equal(feed_forward(x, sides, 0, torch.tensor([[1.0], [1]]), 0), x.abs())
assert torch.equal(feed_forward(x, sides, 0, torch.tensor([[1.0], [-1]]), 0), x)

# %% [markdown] tags=["exercise"]
# ```{exercise} The sentence length at which attention costs more
# :label: ffn-ex-crossing
#
# From equation {eq}`ffn-cost`, find the length at which attention and feed-forward network do the same number of
# operations, for any $d_{\mathrm{model}}$ and $d_{\mathrm{ff}}$. What is it for the base model, for the big one, and
# for $d_{\mathrm{ff}} = 2\, d_{\mathrm{model}}$?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Divide both sides by $4\, n\, d_{\mathrm{model}}$.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ffn-ex-crossing
# :class: dropdown
#
# $d_{\mathrm{ff}} = 2\, d_{\mathrm{model}} + n$, so $n = d_{\mathrm{ff}} - 2\, d_{\mathrm{model}}$: 1,024 for base
# and 2,048 for big. For $d_{\mathrm{ff}} = 2\, d_{\mathrm{model}}$ it is 0, and attention costs more at every length.
# ```

# %% tags=["hide-cell", "solution"]
for d_model, d_ff, n in ((512, 2048, 1024), (1024, 4096, 2048), (512, 1024, 0)):
    assert n == d_ff - 2 * d_model
    assert 4 * n * d_model * d_ff == 8 * n * d_model**2 + 4 * n**2 * d_model

# %% [markdown] tags=["exercise"]
# ```{exercise} Networks that look different and are not
# :label: ffn-ex-symmetry
#
# Permute the hidden units: the columns of $W_1$, the entries of $b_1$ and the rows of $W_2$, all in the same order.
# Multiply column $i$ of $W_1$ and entry $i$ of $b_1$ by a number $c$ and divide row $i$ of $W_2$ by it. For which $c$
# is the function unchanged? Can the 2,048 units of one network be ordered in more than $10^{5000}$ ways? What does that
# mean for averaging two models that were trained from different starts?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# A sum as in equation {eq}`ffn-memory` has no order. When is $\max(0, cz) = c \max(0, z)$?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ffn-ex-symmetry
# :class: dropdown
#
# For every $c > 0$, in any order. There are $2048!$ orders, more than $10^{5894}$. Two models trained from different
# starts can therefore compute the same with units in different places, and the mean of their weights mixes units that
# are unrelated. Averaging works for checkpoints of *one* run ([section 6.1](6_1_translation.ipynb)).
# ```

# %% tags=["hide-cell", "solution"]
torch.manual_seed(0)
one, two = FeedForward(6, 20).double(), FeedForward(6, 20).double()
order, c = torch.randperm(20), torch.rand(20, dtype=torch.float64) + 0.5
two.W_1.weight.data = c[:, None] * one.W_1.weight.data[order]
two.W_1.bias.data = c * one.W_1.bias.data[order]
two.W_2.weight.data, two.W_2.bias.data = one.W_2.weight.data[:, order] / c, one.W_2.bias.data
x = torch.randn(10, 6, dtype=torch.float64)
assert_close(two(x), one(x))
assert math.lgamma(2049) / math.log(10) > 5894

# %% [markdown]
# ## What to remember
#
# - Equation {eq}`ffn-equation` is two matrix products with a threshold between them, applied to each position alone.
# - It has two thirds of an encoder layer's weights, and does most of its work up to
#   $n = d_{\mathrm{ff}} - 2\,d_{\mathrm{model}}$ tokens.
# - Each doubling of $d_{\mathrm{ff}}$ is worth 0.4 BLEU in Table 3. Without the ReLU, $W_1$ and $W_2$ are one matrix.
# - We can read it as a memory with learned keys and values, and an untrained model is the control for that reading.
#
# Embedding and softmax, at the two ends of the model, are the subject of
# [section 3.4](3_4_embeddings_and_softmax.ipynb).
