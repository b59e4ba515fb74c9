# %% [markdown]
# # 4 Why self-attention
#
# *Section 4 of the paper {cite}`vaswani2017attention`: self-attention compared with recurrence and convolution.*
#
# The Transformer replaces recurrence and convolution by attention. Section 4 of the paper gives the reasons, most of them in
# one table of formulas. In this chapter we rebuild that **Table 1**: we write each kind of layer in a few lines of code, count
# its operations and measure how far a signal has to travel.

# %% tags=["remove-cell"]
import math

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

# %% tags=["remove-cell"]
from annotated_transformer import ModelConfig, scaled_dot_product_attention
from lab.exercises import check
from lab.experiments.result_file import read_result
from lab.experiments.table_1 import layer_types
from lab.experiments.table_1.instruments import longest_chain
from lab.experiments.table_1.layer_types import layers_to_connect
from lab.display import PALETTE, use_style
from annotated_transformer.model.stacks import EncoderLayer
from lab.tables.table_1 import LAYERS, layer_operations

use_style()

# %% [markdown]
# (section-why-desiderata)=
# ## Table 1 and its three criteria
#
# A layer of an encoder receives $n$ vectors, one for each token, and returns $n$ new vectors. Each has $d$ entries, where $d$
# is short for $d_{\text{model}}$:
#
# $$
# (x_1, \ldots, x_n) \;\mapsto\; (z_1, \ldots, z_n), \qquad x_i, z_i \in \mathbb{R}^d
# $$ (why-layer)
#
# Many kinds of layer can do this. The paper compares them by three **desiderata**, properties that we would like a layer to
# have:
#
# 1. Low **complexity per layer**: the layer should take few operations.
# 2. Few **sequential operations**: few operations should have to run one after another, even with unlimited processors.
# 3. A short **maximum path length**: a signal should take few steps between the two positions that are farthest apart. The
#    shorter the path, the easier it is to learn a dependence between distant words {cite}`hochreiter2001gradient`.
#
# In Table 1, $k$ is the width of a convolution's kernel, and $r$ is the size of the neighbourhood that a position sees in
# restricted self-attention. The last row comes from the paper's text. The notation $O(\cdot)$ says how a quantity *grows* and
# leaves out constant factors: with $O(n^2 d)$, twice as many tokens cost four times as much.
#
# | layer | complexity per layer | sequential operations | maximum path length |
# |---|---|---|---|
# | self-attention | $O(n^2 \cdot d)$ | $O(1)$ | $O(1)$ |
# | recurrent | $O(n \cdot d^2)$ | $O(n)$ | $O(n)$ |
# | convolutional | $O(k \cdot n \cdot d^2)$ | $O(1)$ | $O(\log_k(n))$ |
# | self-attention (restricted) | $O(r \cdot n \cdot d)$ | $O(1)$ | $O(n/r)$ |
# | separable convolutional (text) | $O(k \cdot n \cdot d + n \cdot d^2)$ | | |
#
# The cost of self-attention grows with the square of the sentence length. Self-attention is nevertheless cheaper than a
# recurrence while $n < d$, which is true of nearly all sentences. A recurrence has to work through the tokens one by one, and
# self-attention does not. It also connects any two positions in a single step. Restricted self-attention avoids the quadratic
# cost, but its paths are longer.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Four drawings, each with seven inputs below and seven outputs above. Self-attention: the middle output has lines of different widths to all seven inputs. Recurrent: each output has a line to its own input, and arrows run along the outputs from left to right. Convolution of width 3: the middle output has lines in three colours to its own input and the two before it, and faint lines in the same three colours lead to the other outputs. Restricted self-attention of size 3: the middle output has lines of different widths to its own input and one neighbour on each side."}, "figure": {"caption": "The inputs (below) from which one layer computes its fourth output (above, orange), with $k = r = 3$. The three colours of the convolution stand for its fixed matrices, one for each distance. The widths of the lines in attention stand for weights, which it computes from the vectors.", "name": "fig-why-layers"}}
figure, axes = plt.subplots(1, 4, figsize=(7, 1.9), layout="constrained")
sources = {"self-attention": range(7), "recurrent": [3], "convolution": [1, 2, 3], "restricted": [2, 3, 4]}
weights = [0.7, 2.6, 1, 3.4, 0.7, 1.8, 1]
for ax, name in zip(axes, sources):
    for t in range(7):
        inputs = range(7) if name == "self-attention" else [s + t - 3 for s in sources[name]]
        for s in set(inputs) & set(range(7)):
            color = PALETTE[2 + t - s] if name == "convolution" else PALETTE[1] if t == 3 else "grey"
            width = 0.8 if t != 3 else weights[s] if name in ("self-attention", "restricted") else 2
            ax.plot([s, t], [0, 1], color=color, linewidth=width, alpha=1 if t == 3 else 0.3, zorder=int(t == 3))
        if name == "recurrent" and t < 6:
            ax.annotate("", (t + 0.85, 1), (t + 0.15, 1), arrowprops={"arrowstyle": "->", "color": PALETTE[1 if t < 3 else 6]})
    ax.scatter([*range(7)] * 2, [0] * 7 + [1] * 7, 42, [PALETTE[0]] * 7 + ["grey"] * 3 + [PALETTE[1]] + ["grey"] * 3, zorder=2)
    ax.set(title=name, xlim=(-1, 7), ylim=(-0.25, 1.25)), ax.axis("off")
plt.show()

# %% [markdown]
# ## The layers, each in a few lines
#
# **Self-attention** is the paper's equation 1 with queries, keys and values all equal to $x$
# ([chapter 3.2](3_2_attention.ipynb)). Table 1 leaves out the learned projections, and for now so do we. A **recurrent** layer
# walks along the sentence and carries a state from token to token, as the translation systems of the time did
# {cite}`sutskever2014sequence,cho2014learning`:
#
# $$
# h_t = \tanh(x_t W + h_{t-1} U), \qquad z_t = h_t
# $$ (why-recurrence)

# %%
def self_attention(x):
    weights = (x @ x.T / math.sqrt(x.size(1))).softmax(dim=-1)
    return weights @ x

def recurrence(x, W, U):
    h, outputs = torch.zeros_like(x[0]), []
    for x_t in x:
        h = torch.tanh(x_t @ W + h @ U)
        outputs.append(h)
    return torch.stack(outputs)
torch.manual_seed(0)
n, d, k, r = 12, 6, 3, 5
x, W, U = torch.randn(n, d), torch.randn(d, d), torch.randn(d, d)
print(tuple(x.shape), "->", tuple(self_attention(x).shape),
      tuple(recurrence(x, W, U).shape))

# %% [markdown]
# A **convolutional** layer multiplies each of $k$ neighbouring inputs by a matrix and adds the results. The $k$ matrices are
# the same at every position. Our convolution looks back, with zeros before the first position. With a **dilation** of $\delta$,
# it takes every $\delta$-th position and so covers a wider span.
#
# A **separable** convolution {cite}`chollet2017xception` first convolves each of the $d$ entries separately, with $k$ numbers
# for each entry. Then it mixes the entries at each position by one matrix. In the equation, the convolution is on the left and
# the separable convolution on the right:
#
# $$
# z_t = \sum_{j=0}^{k-1} x_{t - \delta j}\, W_j
# \qquad\qquad
# z_t = \Big(\sum_{j=0}^{k-1} x_{t - j} \odot w_j\Big) W
# $$ (why-convolution)

# %%
def earlier(x, steps):
    """Row t of the result is row t - steps of x, or zeros before the first."""
    return F.pad(x, (0, 0, steps, 0))[: len(x)]

def convolution(x, kernels, dilation=1):  # k matrices of (d, d)
    return sum(earlier(x, dilation * j) @ W for j, W in enumerate(kernels))

def separable_convolution(x, kernel, W):  # k vectors of d numbers, one matrix
    return sum(earlier(x, j) * kernel[j] for j in range(len(kernel))) @ W

kernels, kernel = torch.randn(k, d, d), torch.randn(k, d)
print("numbers to learn: convolution", kernels.numel(),
      " separable", kernel.numel() + W.numel())
print(tuple(convolution(x, kernels).shape),
      tuple(separable_convolution(x, kernel, W).shape))

# %% [markdown]
# **Restricted self-attention** lets each query attend only to the $r$ positions centred on its own, where $r$ is odd. To save
# work, the other scores must not be computed at all. The folded code therefore cuts the sentence into $n$ overlapping windows
# of $r$ vectors, and each query attends to its own window.

# %% tags=["hide-input"]
def windows(x, r):  # (n, d, r)
    return F.pad(x, (0, 0, r // 2, r // 2)).unfold(0, r, 1)

def restricted_self_attention(x, r):
    near = windows(x, r)
    real = windows(torch.ones_like(x[:, :1]), r)[:, 0] > 0
    scores = torch.einsum("nd,ndr->nr", x, near) / math.sqrt(x.size(1))
    weights = scores.masked_fill(~real, -torch.inf).softmax(dim=-1)
    return torch.einsum("nr,ndr->nd", weights, near)

band = (torch.arange(n)[:, None] - torch.arange(n)).abs() <= r // 2
masked = scaled_dot_product_attention(x, x, x, band)
print("the same as full attention under a band mask:",
      torch.allclose(restricted_self_attention(x, r), masked, atol=1e-5))

# %% [markdown]
# Full attention gives the same result under a **band mask**, which hides all scores outside a band along the diagonal.

# %% tags=["hide-cell", "row-S21", "row-S22"]
x, W, U, kernels = x.double(), W.double(), U.double(), kernels.double()
assert_close(self_attention(x), scaled_dot_product_attention(x, x, x))
theirs = torch.nn.RNN(d, d, bias=False, dtype=torch.float64)
theirs.weight_ih_l0.data, theirs.weight_hh_l0.data = W.T, U.T
assert_close(recurrence(x, W, U), theirs(x)[0])
for dilation in (1, 3):
    in_their_order = kernels.flip(0).permute(2, 1, 0)  # outputs first, the latest last
    assert_close(convolution(x, kernels, dilation), layer_types.convolution(x, in_their_order, dilation))
for size in (1, 3, 5, 2 * n - 1):
    band = (torch.arange(n)[:, None] - torch.arange(n)).abs() <= size // 2
    assert_close(restricted_self_attention(x, size), scaled_dot_product_attention(x, x, x, band))
    assert_close(restricted_self_attention(x, size), layer_types.restricted_self_attention(x, size))
assert_close(restricted_self_attention(x, 2 * n - 1), self_attention(x))  # every window holds all

# %% tags=["remove-cell", "row-S22", "row-S23"]
by_hand = torch.zeros(n, d, dtype=torch.float64)
for t in range(n):
    for j in range(min(k, t + 1)):
        by_hand[t] += x[t - j] @ kernels[j]
assert_close(convolution(x, kernels), by_hand)

# A separable convolution is a convolution whose k matrices have a special form.
kernel = kernel.double()
assert_close(separable_convolution(x, kernel, W), convolution(x, kernel[:, :, None] * W))
theirs = layer_types.separable_convolution(x, kernel.flip(0).T[:, None], W)
assert_close(separable_convolution(x, kernel, W), theirs)

# %% [markdown]
# (section-why-complexity)=
# ## Complexity: how many operations
#
# We count a multiplication and an addition as two operations. Self-attention computes $n^2$ dot products of $d$ terms for the
# scores. The weighted means take as much work again, so the total is $4 n^2 d$. At each position, the recurrence multiplies two
# vectors by a $d \times d$ matrix, and a convolution multiplies $k$ vectors.
#
# PyTorch's `FlopCounterMode` counts the operations of every matrix product in its block. On the device `meta`, tensors have a
# shape but no numbers, so it counts what *would* be computed. It leaves out exponentials, tanh and sums outside of matrix
# products, which are of lower order in $d$.

# %%
layers = {
    "self-attention": lambda x, W, U, k, r: self_attention(x),
    "recurrent": lambda x, W, U, k, r: recurrence(x, W, U),
    "convolutional":
        lambda x, W, U, k, r: convolution(x, W.expand(k, *W.shape)),
    "restricted self-attention":
        lambda x, W, U, k, r: restricted_self_attention(x, r)}
def n_operations(layer, n, d, k=3, r=3):
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        layers[layer](torch.randn(n, d), *torch.randn(2, d, d), k, r)
    return counter.get_total_flops()
for kind in layers:
    assert n_operations(kind, 64, 8, r=5) == layer_operations(kind, 64, 8, r=5)
    factor = n_operations(kind, 128, 32) / n_operations(kind, 64, 32)
    print(f"{kind:26} twice the tokens: {factor:.0f} times the operations")

# %% [markdown]
# Only full self-attention takes *four* times as many operations for twice as many tokens. The counts agree with exact formulas:
#
# | layer | operations |
# |---|---|
# | self-attention | $4 n^2 d$ |
# | recurrent | $4 n d^2$ |
# | convolutional | $2 k n d^2$ |
# | restricted self-attention | $4 r n d$ |
# | separable convolutional | $2 k n d + 2 n d^2$ |
#
# On logarithmic axes, these counts are straight lines, and their **slopes** are the exponents of Table 1.

# %% tags=["hide-cell", "row-E16", "row-T1"]
sizes = [2**e for e in range(4, 9)]  # 16 to 256
exponents = {"self-attention": (2, 1), "recurrent": (1, 2), "convolutional": (1, 2), "restricted self-attention": (1, 1)}

def slope(counts):
    return np.polyfit(np.log(sizes), np.log(counts), deg=1)[0]

for layer, (in_n, in_d) in exponents.items():
    assert math.isclose(slope([n_operations(layer, n, 64) for n in sizes]), in_n, abs_tol=1e-9)
    assert math.isclose(slope([n_operations(layer, 64, d) for d in sizes]), in_d, abs_tol=1e-9)
for times in (3, 9):
    for layer in ("convolutional", "restricted self-attention"):
        wide = n_operations(layer, 64, 32, k=3 * times, r=3 * times)
        assert wide == times * n_operations(layer, 64, 32, k=3, r=3)
assert 1 < slope([layer_operations("separable convolutional", 64, d) for d in sizes]) < 2

# %% tags=["remove-cell", "row-E16"]
for n, d, k in ((64, 32, 3), (16, 8, 5)):  # the two steps of the separable convolution, counted
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        layer_types.separable_convolution(torch.randn(n, d), torch.randn(d, 1, k), torch.randn(d, d))
    assert counter.get_total_flops() == layer_operations("separable convolutional", n, d, k)

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two charts of operations with logarithmic axes. Left, over the number of tokens n from 16 to 256 at d = 64: self-attention is a steep line that starts among the lowest and crosses the recurrent line at n = 64; the other four lines are parallel and less steep, restricted self-attention lowest, convolution highest. Right, over the width d at n = 64: self-attention and restricted self-attention rise gently, the recurrent and convolutional lines steeply; self-attention and recurrence cross at d = 64."}, "figure": {"caption": "Operations of one layer, $k = r = 3$. Left: $d = 64$. Right: $n = 64$. The steeper the line, the worse it scales. Dotted: $n = d$.", "name": "fig-why-growth"}}
figure, axes = plt.subplots(1, 2, figsize=(6.4, 3.5), layout="constrained", sharey=True)
for ax, letter in zip(axes, "nd"):
    for layer, marker in zip(LAYERS, "os^vD"):
        fixed = "d" if letter == "n" else "n"
        counts = [layer_operations(layer, **{letter: size, fixed: 64}) for size in sizes]
        ax.plot(sizes, counts, f"{marker}-", markersize=4, label=layer)
    ax.axvline(64, color="grey", linestyle=":", linewidth=1)
    ax.set(xscale="log", yscale="log", xlabel=f"${letter}$", xticks=sizes, xticklabels=sizes)
    ax.minorticks_off()
axes[0].set_ylabel("operations of one layer")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# Attention is therefore cheaper than a recurrence exactly while $n < d$. The paper notes that this is the usual case: a
# sentence has a few dozen tokens, whereas a vector of the base model has 512 entries. At 28 tokens, slightly more than the
# average of our slice of WMT 2014 ([5.1](5_1_data_and_batching.ipynb)), attention takes 5.5% of the operations of a recurrence.
#
# With its four projections, however, attention takes *more* operations than our plain recurrence at every length, and fewer
# than an LSTM as long as $n < 2d$ ({ref}`ex-why-projections`). For sentences, the argument for attention lies in the next two
# columns.

# %% tags=["remove-cell", "row-T1"]
d = 512
for n in (28, 256, 511, 512, 513, 4096):
    ratio = layer_operations("self-attention", n, d) / layer_operations("recurrent", n, d)
    assert (ratio < 1) == (n < d) and math.isclose(ratio, n / d)
assert f"{28 / 512:.1%}" == "5.5%"

# %% [markdown]
# A convolution with $k > 2$ is more expensive than a recurrence. The paper says "by a factor of $k$". In our count the factor
# is $k / 2$, because the recurrence has two matrices.
#
# A separable convolution is much cheaper. With a kernel as wide as the sentence, $k = n$, its complexity is
# $O(n^2 d + n d^2)$. The paper points out that a self-attention layer and a feed-forward layer together have the same
# complexity, and calls them "the approach we take in our model".

# %% [markdown]
# Restricted attention is often written as full attention with a band mask. The result is the same, but the work is not:

# %%
n, d, r = 512, 64, 9
band = (torch.arange(n)[:, None] - torch.arange(n)).abs() <= r // 2
x = torch.randn(n, d)
with FlopCounterMode(display=False) as counter:
    scaled_dot_product_attention(x, x, x, band)
windowed = n_operations("restricted self-attention", n, d, r=r)
print(f"band mask {counter.get_total_flops():>12,}  windows {windowed:>12,}")
assert windowed * n == counter.get_total_flops() * r

# %% [markdown]
# The mask saves no work, because a score has to be computed before it can be hidden. It helps only if the program skips whole
# blocks of hidden scores.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two grids of twelve queries by twelve keys. Left, band mask: the band of five cells along the diagonal is orange, and all other cells are grey, computed and hidden. Right, windows: the same orange band, and all other cells are white."}, "figure": {"caption": "Scores of restricted attention, $n = 12$, $r = 5$. Orange: computed and used. Grey: computed, then hidden. Of the 60 scores on the right, six lie beyond the ends of the sentence and are not drawn.", "name": "fig-why-band"}}
from matplotlib.colors import ListedColormap

figure, axes = plt.subplots(1, 2, figsize=(5, 2.6), layout="constrained", sharey=True)
used = (np.abs(np.arange(12)[:, None] - np.arange(12)) <= 2).astype(int)
for ax, hidden, title in zip(axes, ("#c8c8c8", "white"), ("band mask: 144 scores", "windows: 60 scores")):
    ax.pcolormesh(used, cmap=ListedColormap([hidden, PALETTE[1]]), edgecolors="#eeeeee", linewidth=0.6)
    ax.set(title=title, xlabel="key", aspect="equal", xticks=[], yticks=[])
axes[0].set_ylabel("query")
axes[0].invert_yaxis()
plt.show()

# %% [markdown]
# (section-why-sequential)=
# ## Sequential operations: what waits for what
#
# An operation has to wait for the results that it uses. PyTorch records these dependencies for the backward pass, as a graph.
# In this graph,
# [`longest_chain`](https://github.com/annotated-transformer/annotated-transformer/blob/main/book/lab/experiments/table_1/instruments.py)
# finds the longest chain of matrix products in which each needs the result of the one before.

# %% tags=["row-T1"]
torch.manual_seed(0)
d, chains = 8, {layer: [] for layer in layers}
for n in (16, 32, 64):
    x, W, U = (torch.randn(size, d, requires_grad=True) for size in (n, d, d))
    for layer in layers:
        chains[layer].append(longest_chain(layers[layer](x, W, U, 3, 3)))
for layer, counts in chains.items():
    print(f"{layer:26} n 16, 32, 64: {counts}")
assert (chains.pop("recurrent") == [16, 32, 64]
        and all(len(set(counts)) == 1 for counts in chains.values()))

# %% [markdown]
# The recurrence needs a chain of $n$ products. Every other layer needs one or two, however long the sentence is. This holds
# when a layer *reads* tokens that are already known, as in the encoder and in training. When a Transformer *writes* a
# translation, it too produces one token after another.

# %% [markdown]
# (section-why-path)=
# ## Path length: how far a signal travels
#
# For layers that compute all positions at once, the path length is the number of layers that we have to stack before the last
# position depends on the first. A convolution of width $k$ covers $k$ positions in its first layer. Each further layer adds
# $k - 1$ positions if its kernel is contiguous. If its dilation is $k$ times that of the layer before, it multiplies the number
# of positions by $k$. To cover all $n$ positions, we need
#
# $$
# L_{\text{contiguous}} = \left\lceil \frac{n - 1}{k - 1} \right\rceil
# \qquad \text{or} \qquad
# L_{\text{dilated}} = \lceil \log_k n \rceil
# $$ (why-path)
#
# layers. We confirm this with **gradients**. The function `layers_to_connect` stacks layers until the derivative of the last
# output with respect to the first input differs from zero. All weights are positive, so that contributions cannot cancel.

# %% tags=["row-T1"]
positive = torch.full((3, 2, 2), 1 / 6, dtype=torch.float64)
stacks = {  # k = r = 3
    "self-attention": lambda x, depth: self_attention(x),
    "contiguous convolution": lambda x, depth: convolution(x, positive),
    "dilated convolution":
        lambda x, depth: convolution(x, positive, dilation=3**depth),
    "restricted self-attention":
        lambda x, depth: restricted_self_attention(x, 3)}
expected = {"self-attention": [1, 1, 1], "contiguous convolution": [4, 13, 40],
            "dilated convolution": [2, 3, 4],
            "restricted self-attention": [8, 26, 80]}
for name, layer in stacks.items():
    counts = [layers_to_connect(layer, n) for n in (9, 27, 81)]
    assert counts == expected[name]
    print(f"{name:26} n 9, 27, 81: {counts} layers")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Four grids of 27 positions across and six layers down. Self-attention: every position is coloured from layer 1 on. Contiguous convolution of width 3: a staircase that grows by two positions a layer and ends at position 13. Dilated convolution of width 3: 3 positions in layer 1, 9 in layer 2, all 27 from layer 3. Restricted self-attention of size 3: a staircase that grows by one position a layer and ends at position 7."}, "figure": {"caption": "The influence of the first token after 1 to 6 layers. Blue: positions whose output depends on it. Here $k = r = 3$ and $n = 27$.", "name": "fig-why-reach"}}
figure, axes = plt.subplots(4, figsize=(5.4, 5.6), layout="constrained", sharex=True)
for ax, (name, layer) in zip(axes, stacks.items()):
    x = y = torch.rand(27, 2, dtype=torch.float64).requires_grad_()
    reached = []
    for depth in range(6):
        y = layer(y, depth)
        reached.append([bool(torch.autograd.grad(z.sum(), x, retain_graph=True)[0][0].any()) for z in y])
    ax.pcolormesh(np.array(reached, float), cmap="Blues", vmin=-0.1, vmax=1.4, edgecolors="white", linewidth=0.6)
    ax.set(title=name, ylabel="layer", yticks=np.arange(6) + 0.5, yticklabels=range(1, 7))
    ax.invert_yaxis()
axes[-1].set(xlabel="position", xticks=np.arange(0, 27, 2) + 0.5, xticklabels=range(1, 28, 2))
plt.show()

# %% [markdown]
# Self-attention needs a single layer at every length. Among convolutions, only **dilated** ones need $O(\log_k(n))$ layers, as
# Table 1 says. ByteNet {cite}`kalchbrenner2016neural` uses them. The paper makes this clear a few lines below the table, where
# it gives $O(n/k)$ layers for contiguous kernels. In a plain stack such as ConvS2S {cite}`gehring2017convolutional`, the paths
# grow in proportion to $n$.
#
# Restricted attention takes twice as many layers as the contiguous convolution, because its centred window reaches only
# one position to each side, whereas our convolution looks back over two.
#
# In a recurrence, a single layer connects the two ends, but within this layer the signal takes $n - 1$ steps. On its way back,
# the gradient is multiplied at every step by $U^\top$ and by a derivative of the tanh, which is at most 1. If the factors are
# below 1, their product vanishes over a long path {cite}`hochreiter2001gradient`. The gates of the LSTM
# {cite}`hochreiter1997long` were invented to prevent this.

# %% tags=["remove-cell", "row-T1"]
ones = torch.ones(2, 2)
for length in (9, 27):
    x = torch.rand(length, 2, requires_grad=True)
    h = first = torch.tanh(x[0] @ ones)  # the state after the first token
    for x_t in x[1:]:
        h = torch.tanh(x_t.detach() @ ones / 4 + h @ ones / 4)
    assert torch.autograd.grad(h.sum(), x, retain_graph=True)[0][0].any()
    assert longest_chain(h) - longest_chain(first) == length - 1

# %% [markdown]
# (section-why-whole)=
# ## Where the work of a real layer lies
#
# The quadratic cost of self-attention comes from the scores and the weighted means alone. An encoder layer also has four
# projections of $d \times d$ and a feed-forward network of width $4d$. In total, one layer takes
#
# $$
# \underbrace{4 n^2 d}_{\text{scores and means}} \;+\; \underbrace{8 n d^2}_{\text{projections}}
# \;+\; \underbrace{16 n d^2}_{\text{feed-forward}}
# $$ (why-whole-layer)
#
# operations. We count them in the package's encoder layer of the base model, where $d = 512$.

# %%
base = ModelConfig.base(vocab_size=37_000)
d = base.d_model
for n in (28, 512, 3072, 6144):
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        EncoderLayer(base)(torch.randn(1, n, d), None)
    whole = counter.get_total_flops()
    assert whole == 4 * n**2 * d + 24 * n * d**2
    print(f"{n:5,} tokens: scores and means are {4 * n**2 * d / whole:5.1%} of "
          "the operations")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Stacked areas from 0 to 100 percent over the number of tokens, 8 to 65,536 on a logarithmic axis. Below 100 tokens two thirds are feed-forward network and one third projections. The area of scores and means is invisible at 28 tokens, reaches one half at 3,072 and nearly fills the chart at 65,536."}, "figure": {"caption": "Where the operations of one encoder layer of the base model go. Dotted: a sentence of 28 tokens, and $n = 6d$.", "name": "fig-why-shares"}}
figure, ax = plt.subplots(figsize=(6.4, 2.9), layout="constrained")
lengths = np.logspace(3, 16, 100, base=2)
parts = np.stack([16 * d + 0 * lengths, 8 * d + 0 * lengths, 4 * lengths])
ax.stackplot(lengths, 100 * parts / parts.sum(axis=0), colors=["#cfcfcf", "#9ecae1", PALETTE[1]])
ax.text(34, 30, "feed-forward network")
ax.text(34, 80, "projections")
ax.text(6500, 45, "scores and means\n($n^2$)", color="white", weight="bold")
for n in (28, 6 * d):
    ax.axvline(n, color="black", linestyle=":", linewidth=1)
ax.set(xscale="log", xlabel="tokens $n$", ylabel="percent of the operations", xlim=(8, 2**16), ylim=(0, 100))
ax.set_xticks([8, 28, 128, 512, 3072, 16384, 65536], ["8", "28", "128", "512", "3,072", "16,384", "65,536"])
ax.minorticks_off()
plt.show()

# %% [markdown]
# For 28 tokens, the quadratic term is about 1% of the layer's operations. It reaches one half at $n = 6d$, which is 3,072
# tokens or the length of a long article. For the sentences of the paper, the quadratic term therefore hardly mattered.
# But for texts much longer than $6d$ tokens it is *the* problem ([After the paper](after_the_paper.ipynb)).

# %% [markdown]
# ## A fourth reason: interpretability
#
# Section 4 ends with a possible side benefit: attention might yield models that are easier to interpret. We look at the weights
# in [chapter 7](7_attention_visualizations.ipynb). Researchers disagree about how much they explain
# {cite}`jain2019attention,wiegreffe2019attention`.

# %% [markdown]
# ## Optional: two experiments of our own
#
# You can skip this part; the exercises do not need it.
#
# (section-why-gradient)=
# ### How gradients shrink with distance
#
# We take the gradient of the last output with respect to the first input, in random layers with $d = 32$. A *saturated* tanh or
# softmax has almost no gradient in any architecture, so a fair comparison needs two settings for each layer. The matrix $U$ of
# the recurrence is **orthogonal**, so that only the tanh can shrink the gradient.
#
# | layer | gentle setting | harsh setting |
# |---|---|---|
# | attention | small queries | queries four times as large (sharp) |
# | recurrence | small inputs, a tenth of full size | inputs of full size, which saturate the tanh |
# | LSTM | 2 added to the bias of its forget gate, so that it remembers | PyTorch's default |

# %% tags=["hide-cell"]
torch.manual_seed(1)
U = torch.linalg.qr(torch.randn(32, 32)).Q
W = torch.randn(32, 32) / math.sqrt(32)
queries = torch.nn.Linear(32, 32, bias=False)
forgetful, remembering = torch.nn.LSTM(32, 32), torch.nn.LSTM(32, 32)
remembering.bias_ih_l0.data[32:64] += 2  # the forget gate: rows 32 to 63

def far_gradient(layer, n):
    """The mean over 50 random sentences of n tokens."""
    torch.manual_seed(0)
    sentences = [torch.randn(n, 32, requires_grad=True) for _ in range(50)]
    return sum(torch.autograd.grad(layer(x)[-1].sum(), x)[0][0].norm().item() for x in sentences) / 50

# %%
far_layers = {
    "attention, gentle":
        lambda x: scaled_dot_product_attention(queries(x), x, x),
    "attention, sharp":
        lambda x: scaled_dot_product_attention(4 * queries(x), x, x),
    "recurrence, gentle": lambda x: recurrence(x, 0.1 * W, U),
    "recurrence, saturated": lambda x: recurrence(x, W, U),
    "LSTM, set to remember": lambda x: remembering(x)[0],
    "LSTM, default": lambda x: forgetful(x)[0]}
far = {name: {n: far_gradient(layer, n) for n in range(8, 65, 8)}
       for name, layer in far_layers.items()}
for name, found in far.items():
    print(f"{name:22} from 8 to 64 tokens the gradient shrinks by a factor of "
          f"{found[8] / found[64]:.2g}")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Line chart with a logarithmic vertical axis over 8 to 64 tokens, six lines. The gentle attention, the gentle recurrence and the LSTM set to remember fall slowly, by factors between about nine and forty, and so does the sharp attention. The saturated recurrence and the default LSTM fall steadily by some eleven orders of magnitude."}, "figure": {"caption": "Norm of the gradient of the last output, its entries summed, with respect to the first input; mean over 50 random sentences. Solid: gentle setting. Dashed: harsh setting.", "name": "fig-why-gradient"}}
figure, ax = plt.subplots(figsize=(5.6, 3.2), layout="constrained")
for number, (name, found) in enumerate(far.items()):
    ax.plot(found.keys(), found.values(), "os^"[number // 2] + ("--" if number % 2 else "-"), markersize=4,
            color=PALETTE[number // 2], label=name)
ax.set(yscale="log", xlabel="tokens $n$", ylabel="norm of the gradient")
figure.legend(loc="outside lower center", ncols=3, fontsize=8)
plt.show()

# %% [markdown]
# With gentle settings, the gradient shrinks by a factor of about 9 for attention, 27 for the LSTM and 36 for the recurrence
# between 8 and 64 tokens. In attention, each of $n$ tokens has a weight of $1/n$ on average. The gradient falls almost in
# proportion to this weight, even with sharp queries. In a recurrence and an LSTM, it falls roughly like $c^n$. With gentle
# settings $c$ is about 0.94, and training has to find such settings and keep them. With harsh settings $c$ is about 0.62, and
# almost nothing is left of the gradient after 64 tokens. Short paths therefore make it *easier* to learn from distant words,
# but Table 1 does not say that a recurrence cannot.

# %% tags=["remove-cell"]
shrinks = {name: found[8] / found[64] for name, found in far.items()}
gentle = {name: round(shrinks[name]) for name in ("attention, gentle", "LSTM, set to remember", "recurrence, gentle")}
assert list(gentle.values()) == [9, 27, 36]
for name in ("attention, gentle", "attention, sharp"):
    assert 8 < shrinks[name] < 10  # 1/n shrinks by a factor of 8
assert min(shrinks["recurrence, saturated"], shrinks["LSTM, default"]) > 1e9
for c, names in {0.94: ("recurrence, gentle", "LSTM, set to remember"), 0.62: ("recurrence, saturated", "LSTM, default")}.items():
    for name in names:
        assert abs(shrinks[name] ** (-1 / 56) - c) < 0.01, (name, shrinks[name] ** (-1 / 56))
        for near, distant in ((16, 40), (40, 64)):  # the same c over both parts of the distance
            assert abs((far[name][distant] / far[name][near]) ** (1 / 24) - c) < 0.03

# %% [markdown]
# (section-why-measured)=
# ### Measured times against the table
#
# The program `python -m lab.experiments.table_1` timed the layers on one CPU core and fitted the exponents with which the time
# grows in $n$ and $d$. We dropped 6 of 20 series, in which a cache, the memory or a slow small operation dominated the time.
# The other 14 exponents are within 0.15 of Table 1. For 5 of the 14, the 95% interval misses the value in the table, by less
# than 0.06. We chose the sizes after a look at the curves, so the agreement describes only these sizes. The
# [log](https://github.com/annotated-transformer/annotated-transformer/blob/main/LOG.md) has the details.
#
# At $n = d$, attention ran in about a quarter to a half of the plain recurrence's time, with the same number of operations. For
# parallel hardware, see [On a GPU](on_a_gpu.ipynb).

# %% tags=["hide-cell"]
table_1 = read_result("results/table_1.json")

def records(measure, **wanted):
    found = [record for record in table_1["records"] if record["measure"] == measure]
    return [r for r in found if all(r[key] == value for key, value in wanted.items())]

[lstm] = records("time", layer="recurrent (LSTM)", over="n", reason="")  # one exponent by hand
first = lstm["sizes"].index(lstm["fitted_from"])
(a, _), covariance = np.polyfit(np.log(lstm["sizes"][first:]), np.log(lstm["seconds"][first:]), deg=1, cov=True)
half = 2.571 * math.sqrt(covariance[0, 0])  # Student's factor for seven points and two numbers
assert len(lstm["sizes"][first:]) == 7 and math.isclose(a, lstm["time"]["exponent"])
assert math.isclose(a - half, lstm["time"]["low"]) and math.isclose(a + half, lstm["time"]["high"])

# %% tags=["remove-cell", "row-E16", "row-X9", "row-T1"]
timed = records("time", reason="")
for series in timed:
    assert abs(series["counted"]["exponent"] - series["theory"]) <= 0.15
    assert abs(series["time"]["exponent"] - series["theory"]) <= 0.15
    assert series["rounds"] == 7 and max(series["sizes"]) == 8 * series["fitted_from"]
missed = [r for r in timed if not r["time"]["low"] <= r["theory"] <= r["time"]["high"]]
assert len(timed) == 14 and len(missed) == 5
assert all(max(r["time"]["low"] - r["theory"], r["theory"] - r["time"]["high"]) < 0.06 for r in missed)
for series in records("crossover", layer="recurrent"):
    same = series["n"].index(series["d"])
    assert 0.25 < series["seconds_self_attention"][same] / series["seconds"][same] < 0.52
for measure, counted in (("sequential", "chains"), ("path", "steps")):
    for series in records(measure):
        assert series[counted] == series["theory"]

# %% tags=["remove-cell", "row-T1"]
for series in records("crossover"):  # cheaper up to n, by count and by the clock
    assert math.isclose(series["n_operations"], series["d"] * (1 if series["layer"] == "recurrent" else 4))
    assert series["n_time"] > series["n_operations"]
for of_d in records("memory", over="d"):
    [of_n] = records("memory", layer=of_d["layer"], over="n")
    assert abs(of_n["memory"]["exponent"] - of_n["theory"]) <= 0.15
    assert abs(of_d["memory"]["exponent"] - of_d["theory"]) <= 0.15
    assert (of_n["theory"] == 2) == (of_d["layer"] == "self-attention, weights stored")
broken = [abs(r["time"]["exponent"] - r["theory"]) for r in records("time") if r["reason"]]
assert len(broken) == 6 and sum(distance > 0.15 for distance in broken) == 3

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two panels of points with horizontal error bars, one row for each of six layers. Left, exponents of n: self-attention lies at 2, the other five near 1. Right, exponents of d: self-attention and restricted self-attention lie near 1, the other four near 2. The intervals are about 0.1 to each side."}, "figure": {"caption": "Measured exponents of time with their 95% intervals. Blue: Table 1 gives the exponent 1. Orange: it gives 2. The dilated convolution is left out.", "name": "fig-why-time"}}
figure, axes = plt.subplots(1, 2, figsize=(7, 2.6), layout="constrained", sharey=True)
names = ["self-attention", "restricted self-attention", "recurrent", "recurrent (LSTM)", "convolutional", "separable convolutional"]
for ax, letter in zip(axes, "nd"):
    for row, layer in enumerate(names):
        [record] = records("time", layer=layer, over=letter, reason="")
        time = record["time"]
        ax.plot([time["low"], time["high"]], [row, row], color="grey")
        ax.plot(time["exponent"], row, "o", color=PALETTE[record["theory"] - 1])
    for exponent in (1, 2):
        ax.axvline(exponent, color=PALETTE[exponent - 1], linestyle=":", linewidth=1)
    ax.set(xlim=(0.7, 2.4), xlabel=f"time grows as ${letter}$ to this power", yticks=range(6), yticklabels=names)
axes[0].invert_yaxis()
plt.show()

# %% [markdown]
# :::{dropdown} Where this is
# The layers as they were timed: `book/lab/experiments/table_1/layer_types.py`. Their costs: `book/lab/tables/table_1.py`.
# Tests: `tests/lab/experiments/test_layer_types.py`, `tests/lab/tables/test_table_1.py`.
# :::

# %% [markdown]
# ## Exercises

# %% [markdown] tags=["exercise"]
# ```{exercise} Path lengths (check 4)
# :label: ex-why-path
#
# Write `path_length(n, k, dilated)`. It returns the number of layers of convolutions of width $k$ that connect the first and
# the last of $n$ positions. The dilation is 1 throughout or, if `dilated` is true, $1, k, k^2, \ldots$ Use whole numbers only.
# Check your function with `check("4", path_length)`.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Equation {eq}`why-path`. `math.log(243, 3)` is 4.999999999999999 in floating point; count powers instead.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-why-path
# :class: dropdown
#
# Without dilation, each layer adds $k - 1$ positions to the one that you start with. The expression `-(-a // b)` rounds a
# quotient up. With dilations, $m$ layers cover $k^m$ positions, so we multiply by $k$ until the product is at least $n$.
# ```

# %% tags=["hide-cell", "solution"]
def path_length(n, k, dilated):
    if not dilated:
        return -(-(n - 1) // (k - 1))
    layers, span = 0, 1
    while span < n:
        layers, span = layers + 1, span * k
    return layers

check("4", path_length)

# %% [markdown] tags=["exercise"]
# ```{exercise} With projections
# :label: ex-why-projections
#
# Table 1 counts self-attention without its four projections. Include them. For which $n$ is the layer still cheaper than the
# recurrence of equation {eq}`why-recurrence`? Was the comparison in the paper fair?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Compare $4n^2d + 8nd^2$ with $4nd^2$.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-why-projections
# :class: dropdown
#
# There is no such $n$, because the projections alone cost twice as much as the recurrence. But the systems of the time used
# LSTMs {cite}`hochreiter1997long`. An LSTM has four times as many matrices as a plain recurrence and takes $16 n d^2$
# operations. Attention with projections is cheaper than an LSTM while $4 n^2 d < 8 n d^2$, that is, while $n < 2d$. The table
# compares how the costs of layers *grow*. To compare systems, we have to count whole systems.
# ```

# %% tags=["hide-cell", "solution"]
d = 512
for n in (1, 100, 1023, 1024, 1025):
    with_projections = layer_operations("self-attention", n, d) + 4 * 2 * n * d * d
    plain = layer_operations("recurrent", n, d)
    assert with_projections > plain
    assert (with_projections < 4 * plain) == (n < 2 * d)

# %% [markdown] tags=["exercise"]
# ```{exercise} A whole document
# :label: ex-why-document
#
# A document of 32,768 tokens goes through one layer with $d = 512$. How many operations does full self-attention take, and how
# many does restricted self-attention with $r = 257$? How many layers does restricted self-attention need to connect the two ends?
# How much memory would the weights of full attention take, stored in float32 for 8 heads?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# The windows are centred: a layer reaches $(r - 1)/2$ positions to each side.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-why-document
# :class: dropdown
#
# Full self-attention takes $4 n^2 d = 2.2 \cdot 10^{12}$ operations. Restricted self-attention takes
# $4 r n d = 1.7 \cdot 10^{10}$, which is 127.5 times fewer. The price is a longer path: connecting the two ends takes
# $\lceil 32767 / 128 \rceil = 256$ layers, and the base model has six. The weights of full attention are $8 n^2$ numbers, or
# 34 GB. A fused kernel {cite}`dao2022flashattention` avoids storing them.
# ```

# %% tags=["hide-cell", "solution"]
n, r = 32_768, 257
full = layer_operations("self-attention", n, 512)
windowed = layer_operations("restricted self-attention", n, 512, r=r)
assert f"{full:.1e} {windowed:.1e} {full / windowed:.1f}" == "2.2e+12 1.7e+10 127.5"
assert math.ceil((n - 1) / (r // 2)) == 256
assert f"{4 * base.h * n**2 / 1e9:.0f}" == "34"

# %% [markdown] tags=["exercise"]
# ```{exercise} A kernel as wide as the sentence
# :label: ex-why-kernel-n
#
# One separable convolution that looks back with $k = n$ connects every position to all positions before it in a single layer,
# as causal self-attention does. What can attention do that this convolution cannot?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# What do the weights of each layer depend on? What happens in a sentence longer than $n$?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-why-kernel-n
# :class: dropdown
#
# The convolution weighs a neighbour by its *distance* alone, in the same way for every sentence. Attention weighs a neighbour
# by its content. If we exchange two earlier tokens, the last output of attention (without positional encodings) stays the same,
# and the last output of the convolution changes. The kernel also ends after $n$ numbers, so in a longer sentence the convolution
# cannot see farther back.
# ```

# %% tags=["hide-cell", "solution"]
torch.manual_seed(0)
x, kernel, W = torch.randn(6, 4), torch.randn(6, 4), torch.randn(4, 4)
swapped = x[[1, 0, 2, 3, 4, 5]]
assert_close(self_attention(swapped)[-1], self_attention(x)[-1])
one, other = (separable_convolution(sentence, kernel, W)[-1] for sentence in (x, swapped))
assert not torch.allclose(one, other)

# %% [markdown]
# ## What to remember
#
# - Self-attention takes $4n^2d$ operations and a recurrence $4nd^2$. Attention is cheaper exactly while $n < d$.
# - Restricted attention saves work only if the hidden scores are never computed.
# - The path length $\log_k n$ holds only for dilated convolutions.
# - The term $n^2 d$ is about 1% of a Transformer layer's operations for 28 tokens, and one half at $n = 6d$.
