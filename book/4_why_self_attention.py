# %% [markdown]
# # 4 Why self-attention
#
# *Section 4 of the paper {cite}`vaswani2017attention`: what a layer of self-attention costs, beside a recurrent and a
# convolutional one, and how far a signal has to travel in each.*
#
# The paper replaces recurrence and convolution by attention. Its fourth section gives the reason, in three measures
# and one table of formulas, **Table 1**. In this chapter nothing of that table is taken on trust: you build each of
# its layers in a few lines, count what it computes, follow gradients through it, and hold its exponents against
# measured seconds and bytes.
#
# When you have read it you can
#
# - say what each column of Table 1 measures, and recompute every entry;
# - tell when self-attention is the cheapest layer, and when it is the dearest;
# - build restricted self-attention so that it really saves work, and tell it from a mask that saves none;
# - fit an exponent to measured times, with its interval, and say which sizes may be fitted;
# - say which of two path lengths a stack of convolutions has, and why the table prints only one of them.

# %%
import math
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

# %%
from annotated_transformer import scaled_dot_product_attention
from annotated_transformer.exercises import check
from annotated_transformer.experiments.result_file import read_result
from annotated_transformer.experiments.table_1.layer_types import (
    convolution, layers_to_connect, restricted_self_attention, self_attention, separable_convolution)
from annotated_transformer.looking.visualization import PALETTE, show, use_style
from annotated_transformer.tables.cost import LAYERS, layer_operations, longest_chain

use_style()

# %% [markdown]
# (section-why-desiderata)=
# ## Three things to ask of a layer
#
# **Question.** The encoder hands $n$ vectors of $d$ numbers from layer to layer, one for each token:
#
# $$
# (x_1, \ldots, x_n) \;\mapsto\; (z_1, \ldots, z_n), \qquad x_i, z_i \in \mathbb{R}^d
# $$ (why-layer)
#
# Many kinds of layer can do that. By what do we choose?
#
# The paper asks three things, its three **desiderata** (things to be wished for):
#
# 1. **Complexity per layer**: how many operations one layer takes.
# 2. **Sequential operations**: how many of them must wait for one another, however many processors there are. A layer
#    with few can be spread over a GPU; a layer with many leaves it idle.
# 3. **Maximum path length**: how many steps a signal takes between the two positions that are farthest apart. A word
#    may depend on one that stands far away, and the shorter the path between them, the easier the dependence is to
#    learn {cite}`hochreiter2001gradient`.
#
# **Equation.** The paper's answer is Table 1. $k$ is the width of a convolution's kernel, $r$ the size of the
# neighbourhood of restricted self-attention. The last row stands in the paper's text, not in its table.
#
# | layer | complexity per layer | sequential operations | maximum path length |
# |---|---|---|---|
# | self-attention | $O(n^2 \cdot d)$ | $O(1)$ | $O(1)$ |
# | recurrent | $O(n \cdot d^2)$ | $O(n)$ | $O(n)$ |
# | convolutional | $O(k \cdot n \cdot d^2)$ | $O(1)$ | $O(\log_k(n))$ |
# | self-attention (restricted) | $O(r \cdot n \cdot d)$ | $O(1)$ | $O(n/r)$ |
# | separable convolutional (text) | $O(k \cdot n \cdot d + n \cdot d^2)$ | | |
#
# $O(\cdot)$ says how a quantity *grows*, constants left out: with $O(n^2 d)$, twice the tokens cost four times as much.
# A formula with an $O$ cannot be checked at one size. It can be checked by counting at several sizes.

# %% [markdown]
# ## The layers, each in a few lines
#
# **Question.** What do the five rows compute?
#
# **Self-attention** is equation 1 of the paper with queries, keys and values all equal to $x$; the chapter on
# [attention](3_2_attention.ipynb) builds it. Table 1 counts no projections, so neither do we, and the end of this
# chapter says what they add.

# %%
show(self_attention)

# %% [markdown]
# A **recurrent** layer walks along the sentence and carries a state $h$, as systems of the time did
# {cite}`sutskever2014sequence,cho2014learning`. (Here $h_t$ is the state after $t$ tokens; elsewhere in the book $h$
# is the number of heads.)
#
# $$
# h_t = \tanh(x_t W + h_{t-1} U), \qquad z_t = h_t
# $$ (why-recurrence)

# %%
def recurrence(x, W, U):
    h, outputs = torch.zeros_like(x[0]), []
    for x_t in x:
        h = torch.tanh(x_t @ W + h @ U)
        outputs.append(h)
    return torch.stack(outputs)

# %% [markdown]
# A **convolutional** layer computes each position from $k$ neighbouring ones, by the same $k$ matrices everywhere.
# Ours looks back: position $t$ sees $t$ and the $k - 1$ before it, and zeros stand before the first. With a
# **dilation** $\delta$ it skips: it sees $t, t - \delta, t - 2\delta, \ldots$, still $k$ positions in all.
#
# $$
# z_t = \sum_{j=0}^{k-1} x_{t - \delta j}\, W_j
# $$ (why-convolution)

# %%
show(convolution)

# %% [markdown]
# A **separable** convolution takes this in two steps {cite}`chollet2017xception`: first each of the $d$ entries is
# convolved by itself, with $k$ numbers instead of $k$ matrices; then one $d \times d$ matrix mixes the entries at each
# position.

# %%
show(separable_convolution)

# %% [markdown]
# **Restricted self-attention** lets each query look at a neighbourhood of $r$ positions centred on its own ($r$ is
# odd). To save work, the other scores must never be computed. So we cut the sentence into its $n$ windows of $r$
# vectors and let each query attend to its own window. `unfold` makes the windows without copying anything, and
# PyTorch's kernel takes each window as if it were a head with one query. At both ends a window hangs over the edge; a
# mask hides what is not there.

# %%
show(restricted_self_attention)

# %% [markdown]
# **Check.** Each layer against something that shares no code with it. Self-attention against the readable form of
# equation 1, the recurrence against PyTorch's own cell, the convolution against two loops:

# %% tags=["row-S22"]
torch.manual_seed(0)
n, d, k, r = 12, 6, 3, 5
x = torch.randn(n, d, dtype=torch.float64)
W, U = torch.randn(2, d, d, dtype=torch.float64)
assert_close(self_attention(x), scaled_dot_product_attention(x, x, x))
theirs = torch.nn.RNN(d, d, bias=False, dtype=torch.float64)
theirs.weight_ih_l0.data, theirs.weight_hh_l0.data = W.T, U.T
assert_close(recurrence(x, W, U), theirs(x)[0])

kernels = torch.randn(d, d, k, dtype=torch.float64)
by_hand = torch.zeros(n, d, dtype=torch.float64)
for t in range(n):
    for j in range(min(k, t + 1)):  # W_j stands last but j in PyTorch's order
        by_hand[t] += kernels[:, :, k - 1 - j] @ x[t - j]
assert_close(convolution(x, kernels), by_hand)

# %% [markdown]
# A separable convolution is a convolution whose $k$ matrices have a special form: entry $(i, o)$ of matrix $j$ is
# `kernel[i, j]` times `W[i, o]`. That is the sense in which it is separable.

# %% tags=["row-S23"]
kernel = torch.randn(d, 1, k, dtype=torch.float64)
full = torch.einsum("ij,io->oij", kernel[:, 0], W)
assert_close(separable_convolution(x, kernel, W), convolution(x, full))
print("numbers to learn: convolution", full.numel(), " separable", kernel.numel() + W.numel())

# %% [markdown]
# And restricted attention against full attention with a mask, a **band** along the diagonal. The two agree at every
# position, the ends included. They do not cost the same, as you will see.

# %% tags=["row-S21"]
distance = (torch.arange(n)[:, None] - torch.arange(n)).abs()
for r in (1, 3, 5, 2 * n - 1):
    masked = scaled_dot_product_attention(x, x, x, distance <= r // 2)
    assert_close(restricted_self_attention(x, r), masked)
assert_close(restricted_self_attention(x, 2 * n - 1), self_attention(x))  # every window holds all

# %% [markdown]
# **Where.**
#
# - Code: `annotated_transformer/experiments/table_1/layer_types.py`; the recurrence is this chapter's own, and PyTorch's
#   elsewhere. What they cost is `layer_operations` in `annotated_transformer/tables/cost.py`.
# - Tests: `test_a_window_sees_what_a_band_mask_lets_through`, `test_a_convolution_by_hand` and others in
#   `tests/experiments/test_layer_types.py`; `test_the_operations_of_table_1_are_those_that_pytorch_counts` in `tests/tables/test_cost.py`.
# - Exercises: {ref}`ex-why-edges`, {ref}`ex-why-kernel-n`.

# %% [markdown]
# (section-why-complexity)=
# ## Complexity: count it
#
# **Question.** How many operations does each layer take, and how does that number grow?
#
# PyTorch can count. Inside a `FlopCounterMode` block it notes every matrix product and convolution and adds up their
# multiplications and additions, two for each pair. Exponentials, tanh and additions outside the products are left
# out; they are of lower order in $d$. The layers run on tensors of the device `meta`, which have a shape and no
# numbers: what is counted is what *would* be done.

# %%
def n_operations(layer, n, d, k=3, r=3):
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        x, W, U = torch.randn(n, d), torch.randn(d, d), torch.randn(d, d)
        {"self-attention": lambda: self_attention(x),
         "recurrent": lambda: recurrence(x, W, U),
         "convolutional": lambda: convolution(x, torch.randn(d, d, k)),
         "restricted self-attention": lambda: restricted_self_attention(x, r),
         "separable convolutional": lambda: separable_convolution(x, torch.randn(d, 1, k), W),
         }[layer]()
    return counter.get_total_flops()

# %% [markdown]
# **Check.** The formulas behind the $O$, constants included. Self-attention takes $n^2$ dot products of $d$ terms for
# the scores, and as much again for the weighted means: $2 n^2 d$ multiplications, $4 n^2 d$ operations. The recurrence
# has two products of a vector and a $d \times d$ matrix at each position, a convolution has $k$ of them. The package's
# `layer_operations` holds the five formulas:

# %%
show(layer_operations)

# %%
print(f"{'n 64, d 32, k 3, r 5':26}{'counted':>10}{'formula':>10}")
for layer in LAYERS:
    counted, formula = n_operations(layer, 64, 32, 3, 5), layer_operations(layer, 64, 32, 3, 5)
    print(f"{layer:26}{counted:10,}{formula:10,}")
    assert counted == formula

# %% [markdown]
# **Growth.** If a count is $c\, n^a d^b$, its logarithm is $\log c + a \log n + b \log d$: over $n$ or over $d$, with
# both axes logarithmic, a straight line, whose **slope** is the exponent. We fit a line through counts at five lengths
# and at five widths. The counts are exact, so the slopes must come out as the whole numbers of Table 1.

# %%
sizes = [2**e for e in range(4, 9)]  # 16 to 256

def slope(counts):
    return np.polyfit(np.log(sizes), np.log(counts), deg=1)[0]

over_n = {layer: [n_operations(layer, n, 64) for n in sizes] for layer in LAYERS}
over_d = {layer: [n_operations(layer, 64, d) for d in sizes] for layer in LAYERS}

# %% tags=["row-E16", "row-T1"]
exponents = {"self-attention": (2, 1), "recurrent": (1, 2), "convolutional": (1, 2),
             "restricted self-attention": (1, 1)}
print(f"{'':26}{'n':>6}{'d':>6}")
for layer in LAYERS:
    in_n, in_d = slope(over_n[layer]), slope(over_d[layer])
    print(f"{layer:26}{in_n:6.3f}{in_d:6.3f}")
    if layer in exponents:
        assert math.isclose(in_n, exponents[layer][0], abs_tol=1e-9)
        assert math.isclose(in_d, exponents[layer][1], abs_tol=1e-9)

# %% [markdown]
# The separable convolution has no single exponent in $d$, because it is a sum of two terms, $k n d + n d^2$: its slope
# lies between 1 and 2, nearer to 1 the smaller $d$ is beside $k$, and almost 2 when $d$ is much larger. The other two
# letters of the table, $k$ and $r$:

# %% tags=["row-E16"]
for size in (3, 9, 27):
    one = n_operations("convolutional", 64, 32, k=1)
    assert n_operations("convolutional", 64, 32, k=size) == size * one
    one = n_operations("restricted self-attention", 64, 32, r=1)
    assert n_operations("restricted self-attention", 64, 32, r=size) == size * one
in_d = [n_operations("separable convolutional", 64, 2**e, k=3) for e in (0, 1, 12, 13)]
print(f"separable, d doubled: from 1 to 2 times {in_d[1] / in_d[0]:.2f}, "
      f"from 4,096 to 8,192 times {in_d[3] / in_d[2]:.2f}")
assert in_d[1] / in_d[0] < 2.6 and in_d[3] / in_d[2] > 3.99

# %% [markdown]
# **Picture.** The steeper the line, the worse it scales.

# %% mystnb={"image": {"alt": "Two charts of counted operations with logarithmic axes. Left, over the number of tokens n from 16 to 256 at d = 64: self-attention is a steep line that starts among the lowest and crosses the recurrent line at n = 64; the other four lines are parallel and less steep, restricted self-attention lowest, convolution highest. Right, over the width d at n = 64: self-attention and restricted self-attention rise gently, the recurrent and convolutional lines steeply; self-attention and recurrence cross at d = 64."}, "figure": {"caption": "Counted operations of one layer, $k = r = 3$. Left: $d = 64$. Right: $n = 64$. The dotted line marks $n = d$.", "name": "fig-why-growth"}}
figure, axes = plt.subplots(1, 2, figsize=(6.4, 3.5), layout="constrained", sharey=True)
for ax, counts, letter in zip(axes, (over_n, over_d), "nd"):
    for layer, marker in zip(LAYERS, "os^vD"):
        ax.plot(sizes, counts[layer], f"{marker}-", markersize=4, label=layer)
    ax.axvline(64, color="grey", linestyle=":", linewidth=1)
    ax.set(xscale="log", yscale="log", xlabel=f"${letter}$", xticks=sizes, xticklabels=sizes)
    ax.minorticks_off()
axes[0].set_ylabel("operations of one layer")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# ### Where n equals d
#
# Self-attention takes $4 n^2 d$ operations and the recurrence $4 n d^2$. The first is smaller exactly while $n < d$.
# That is the paper's claim, and its case: a sentence has some dozens of tokens, a vector of the base model 512 entries.

# %% tags=["row-T1"]
d = 512
for n in (28, 256, 511, 512, 513, 4096):
    attention = layer_operations("self-attention", n, d)
    ratio = attention / layer_operations("recurrent", n, d)
    print(f"n {n:5,}  self-attention takes {ratio:6.3f} times the operations of a recurrence")
    assert (ratio < 1) == (n < d) and math.isclose(ratio, n / d)

# %% [markdown]
# And a convolution with $k > 2$ is dearer than a recurrence, by a factor of $k / 2$ in our count: the recurrence has
# two matrices, the kernel $k$. The paper says "by a factor of $k$", in the manner of an $O$.
#
# ### Separable convolutions
#
# A separable convolution needs far less than a full one. The paper takes it to its extreme: let the kernel be as wide
# as the sentence, $k = n$, so that one layer connects everything. Its complexity is then $O(n^2 d + n d^2)$, and that,
# says the paper, is what a self-attention layer and a feed-forward layer take together, which is what the Transformer
# has. Counted, with a feed-forward layer of one $d \times d$ matrix (the paper's has two, of $d \times 4d$; the end of
# this chapter counts those):

# %%
for n, d in ((32, 512), (512, 512), (4096, 512)):
    separable = layer_operations("separable convolutional", n, d, k=n)
    feed_forward = 2 * n * d * d
    pair = layer_operations("self-attention", n, d) + feed_forward
    print(f"n {n:5,}  d {d}  self-attention + feed-forward / separable: {pair / separable:.2f}")
    assert 1 < pair / separable < 2

# %% [markdown]
# Always less than twice as much, whatever the sizes, because $4n^2d + 2nd^2$ is less than $2\,(2n^2d + 2nd^2)$:
# equal, as an $O$ counts. (The factor comes from the scores. Attention has to compute its weights before it can use
# them; a convolution has learned them.)
#
# ### Break it: a mask saves nothing
#
# Restricted attention as it is often written: full attention, and a mask that hides all but the band. The result is
# the same, as you saw. The work is not.

# %%
n, d, r = 512, 64, 9
near = (torch.arange(n)[:, None] - torch.arange(n)).abs() <= r // 2
x = torch.randn(n, d)
with FlopCounterMode(display=False) as counter:
    scaled_dot_product_attention(x, x, x, near)
windowed = n_operations("restricted self-attention", n, d, r=r)
print(f"band mask {counter.get_total_flops():>12,}  windows {windowed:>12,}")
assert counter.get_total_flops() == n_operations("self-attention", n, d)
assert windowed * n == counter.get_total_flops() * r

# %% [markdown]
# To hide a score you first have to compute it. A mask changes *what* is computed, and not *how much*, unless the kernel
# below knows which blocks are hidden and skips them.
#
# ### Break it: the table, copied with mistakes
#
# A popular walkthrough of the paper prints Table 1 with three rows instead of four, restricted self-attention missing,
# and gives self-attention the complexity $O(n \cdot d)$. It adds that self-attention "scales more gracefully" on long
# contexts than the other two. Ask the counter. With $O(n \cdot d)$, twice the tokens would cost twice as much:

# %%
twice = {layer: n_operations(layer, 256, 64) / n_operations(layer, 128, 64) for layer in LAYERS}
for layer, factor in twice.items():
    print(f"{layer:26} twice the tokens: {factor:.0f} times the operations")
assert twice.pop("self-attention") == 4 and set(twice.values()) == {2}

# %% [markdown]
# Four times. Among all rows self-attention is the one that scales *worst* with length, and Table 1 says so. The
# mistake is easy to make: $O(n d)$ is what one *query* takes, and there are $n$ of them. (Another form of it is the
# common "$O(n^2)$ time": there the $d$ is missing. [Errata](errata.ipynb) lists more such mistakes.) How later models
# deal with the square is told in [After the paper](after_the_paper.ipynb).
#
# **Where.**
#
# - Code: `layer_operations` in `annotated_transformer/tables/cost.py`.
# - Tests: `test_self_attention_is_cheaper_than_recurrence_exactly_while_n_is_smaller_than_d` in `tests/tables/test_cost.py`.
# - Exercises: {ref}`ex-why-cheapest`, {ref}`ex-why-projections`, {ref}`ex-why-document`, {ref}`ex-why-memory`.

# %% [markdown]
# (section-why-sequential)=
# ## Sequential operations: what waits for what
#
# **Question.** With as many processors as you like, how many steps does a layer take?
#
# An operation must wait for the results it uses. PyTorch keeps that order for its backward pass: every result
# remembers the operation it came from, and every operation those before it. The longest chain of matrix products in
# this graph is the number of products that no hardware can do at the same time. (The
# [introduction](1_introduction.ipynb) counts the same way; that chapter is about the idea, this one about the table.)

# %%
show(longest_chain)

# %% [markdown]
# **Check.** All outputs of a layer, at three lengths. The chain stays as long as it is in every layer but one.

# %% tags=["row-T1"]
torch.manual_seed(0)
d = 8
W, U = torch.randn(2, d, d)
rows = []
for n in (16, 32, 64):
    x = torch.randn(n, d, requires_grad=True)
    outputs = [self_attention(x), recurrence(x, W, U), convolution(x, torch.randn(d, d, 3)),
               restricted_self_attention(x, 3), separable_convolution(x, torch.randn(d, 1, 3), W)]
    rows.append([longest_chain(y) for y in outputs])
for layer, *chains in zip(LAYERS, *rows):
    print(f"{layer:26} n 16, 32, 64: {chains}")
assert [row[1] for row in rows] == [16, 32, 64]
assert all(len(set(chains)) == 1 for i, chains in enumerate(zip(*rows)) if i != 1)

# %% [markdown]
# The recurrence needs $n$ products in a row, the others one or two. One condition belongs to it: this is about
# *reading* $n$ known tokens, in training and in the encoder. A Transformer that *writes* goes token by token as well.
#
# ### Time
#
# **Question.** Do counted operations predict seconds?
#
# Only roughly, and one should look. The cell times the layers on whatever machine runs it: processor time, which leaves
# out what other programs take, the fastest of several tries. Its numbers depend on the machine, so the book compares
# them with nothing; what the cell after it asserts leaves much room.

# %%
def seconds(layer, *inputs, tries=5):
    def once():
        start = time.process_time()
        layer(*inputs)
        return time.process_time() - start
    return min(once() for _ in range(tries))

def random_inputs(n, d):
    torch.manual_seed(0)
    return torch.randn(n, d), torch.randn(d, d) / d, torch.randn(d, d) / d, torch.randn(d, d, 3)

# %% tags=["nbval-ignore-output"]
measured = {}
threads = torch.get_num_threads()
torch.set_num_threads(1)  # the clock adds up what all threads do
with torch.inference_mode():
    for n in (128, 512, 2048):
        x, W, U, kernels = random_inputs(n, 128)
        measured[n] = [seconds(self_attention, x), seconds(recurrence, x, W, U),
                       seconds(convolution, x, kernels), seconds(restricted_self_attention, x, 3)]
torch.set_num_threads(threads)
print("milliseconds, d 128      n 128   n 512  n 2048")
for layer, *times in zip(LAYERS, *measured.values()):
    print(f"{layer:25}" + "".join(f"{1000 * t:8.2f}" for t in times))

# %% tags=["row-X9"]
attention = [times[0] for times in measured.values()]
assert attention[2] > 4 * attention[1]  # four times the tokens: 16 times the operations
assert measured[128][1] > measured[128][0]  # n = d: as many operations, but one after the other
recurrent = [times[1] for times in measured.values()]
assert recurrent[2] < 4 * 4 * recurrent[1]  # four times the tokens: four times the operations
print("four times the tokens: attention takes more than 4 times as long, the recurrence less than 16 times")

# %% [markdown]
# At $n = d = 128$ attention and recurrence take the same number of operations. The recurrence takes longer even on one
# core, because it comes as $n$ small products instead of two large ones, and a processor is fast at large ones. On a
# GPU, with thousands of units to fill, one expects more of the same. This is the second desideratum at work: in its
# introduction the paper calls recurrence "inherently sequential". {ref}`section-why-measured` measures with more care.
#
# **Where.**
#
# - Code: `longest_chain` in `annotated_transformer/tables/cost.py`; test: `test_a_chain_is_as_long_as_what_waits` in
#   `tests/tables/test_cost.py`.
# - Exercises: {ref}`ex-why-sequential`.

# %% [markdown]
# (section-why-path)=
# ## Path length: how far a signal travels
#
# **Question.** How many layers, or steps, until the last position knows of the first?
#
# **Equation.** Let $L$ be the least number of layers after which output $n$ depends on input 1. The last output of the
# first layer sees $k$ positions. Each further layer with gaps of 1 adds $k - 1$ to that number; each further layer
# whose gap is $k$ times that of the layer before multiplies it by $k$:
#
# $$
# L_{\text{contiguous}} = \left\lceil \frac{n - 1}{k - 1} \right\rceil,
# \qquad
# L_{\text{dilated}} = \lceil \log_k n \rceil
# $$ (why-path)
#
# ($\lceil\cdot\rceil$: rounded up.)
#
# **Check.** Not by formula but by **gradient reach**: stack layers until the derivative of the last output with respect
# to the first input is no longer zero. In `layer(x, depth)`, `depth` counts from 0, so that a dilated convolution can
# widen its gap. All weights are positive, so that nothing cancels by chance. `reached` asks for all outputs, the
# package's `layers_to_connect` for the last.

# %%
def reached(layer, n, n_layers, d=2):
    """Which outputs depend on the first input, by gradient, after each layer: (n_layers, n)."""
    torch.manual_seed(0)
    x = y = torch.rand(n, d, dtype=torch.float64).requires_grad_()
    rows = []
    for depth in range(n_layers):
        y = layer(y, depth)
        gradients = [torch.autograd.grad(y[i].sum(), x, retain_graph=True)[0][0] for i in range(n)]
        rows.append([bool(gradient.any()) for gradient in gradients])
    return torch.tensor(rows)

# %%
ones = torch.ones(2, 2)

def kernels_of(k):
    return torch.ones(2, 2, k, dtype=torch.float64) / (2 * k)

stacks = {  # k = r = 3
    "self-attention": lambda x, depth: self_attention(x),
    "contiguous convolution": lambda x, depth: convolution(x, kernels_of(3)),
    "dilated convolution": lambda x, depth: convolution(x, kernels_of(3), dilation=3**depth),
    "restricted self-attention": lambda x, depth: restricted_self_attention(x, 3),
}

# %%
show(layers_to_connect)

# %% tags=["row-T1"]
print(f"{'layers until the last sees the first':38}n 9   n 27")
for name in stacks:
    counts = [layers_to_connect(stacks[name], n) for n in (9, 27)]
    expected = {"self-attention": [1, 1], "contiguous convolution": [4, 13],
                "dilated convolution": [2, 3], "restricted self-attention": [8, 26]}[name]
    assert counts == expected
    print(f"{name:38}{counts[0]:3} {counts[1]:6}")

# %% [markdown]
# A recurrence needs one layer, but the way *through* that layer has a step for each further position. Its path is the
# chain of products with $U$ from the first state to the last:

# %% tags=["row-T1"]
torch.manual_seed(0)
for n in (9, 27):
    x = torch.rand(n, 2, requires_grad=True)
    first = torch.tanh(x[0] @ ones)  # the state after the first token
    h = first
    for x_t in x[1:]:
        h = torch.tanh(x_t.detach() @ ones / 4 + h @ ones / 4)
    steps = longest_chain(h) - longest_chain(first)
    assert torch.autograd.grad(h.sum(), x)[0][0].any() and steps == n - 1
    print(f"recurrent, n {n:2}: {steps} steps in one layer")

# %% [markdown]
# **Picture.** How knowledge of the first token spreads. A row is a layer, a column a position; bright cells have heard
# of the first token.

# %% mystnb={"image": {"alt": "Four grids of 27 positions across and six layers down. Self-attention: every position is bright from layer 1 on. Contiguous convolution of width 3: a staircase that grows by two positions a layer and ends at position 13. Dilated convolution of width 3: 3 positions in layer 1, 9 in layer 2, all 27 from layer 3. Restricted self-attention of size 3: a staircase that grows by one position a layer and ends at position 7."}, "figure": {"caption": "Positions whose output depends on the first input, after 1 to 6 layers ($k = r = 3$, $n = 27$).", "name": "fig-why-reach"}}
figure, axes = plt.subplots(4, figsize=(5.4, 5.6), layout="constrained", sharex=True)
for ax, (name, layer) in zip(axes, stacks.items()):
    ax.pcolormesh(reached(layer, 27, 6).float(), vmin=0, vmax=1, edgecolors="white", linewidth=0.6)
    ax.set(title=name, ylabel="layer", yticks=np.arange(6) + 0.5, yticklabels=range(1, 7))
    ax.invert_yaxis()
axes[-1].set(xlabel="position", xticks=np.arange(0, 27, 2) + 0.5, xticklabels=range(1, 28, 2))
plt.show()

# %% [markdown]
# ### Which convolution has a path of log n?
#
# Table 1 gives the convolutional row one path length, $O(\log_k(n))$. The picture has two convolutions, and only the
# **dilated** one keeps that promise. The paper's text says as much, a few lines below the table: $O(n/k)$ layers in the
# case of contiguous kernels, $O(\log_k(n))$ in the case of dilated ones, citing ByteNet
# {cite}`kalchbrenner2016neural`. So the table shows the better of two cases without its condition. A plain stack of
# convolutions, as in ConvS2S {cite}`gehring2017convolutional`, has paths that grow in step with $n$:

# %% tags=["row-T1"]
lengths = (9, 27, 81)
contiguous = [math.ceil((n - 1) / 2) for n in lengths]
dilated = [layers_to_connect(stacks["dilated convolution"], n) for n in lengths]
assert contiguous[:2] == [layers_to_connect(stacks["contiguous convolution"], n) for n in lengths[:2]]
assert dilated == [2, 3, 4]
for n, plain, gaps in zip(lengths, contiguous, dilated):
    print(f"n {n:2}  log_3 n = {math.log(n, 3):.0f}  dilated {gaps}  contiguous {plain}  n / k = {n / 3:.0f}")

# %% [markdown]
# The constants depend on the geometry. Our kernels look back; a kernel *centred* on its position, like the window of
# restricted attention, reaches only half as far to each side. That is why restricted attention with $r = 3$ takes twice
# the layers of the convolution with $k = 3$. $O(n/r)$ does not see a factor of two; {ref}`ex-why-centred` does.
#
# ### Why a long path is bad
#
# A gradient that goes back along a path is multiplied at every step. In the recurrence each step multiplies by $U^\top$
# and by a derivative of the tanh, which is at most 1, and a product of many factors below 1 vanishes
# {cite}`hochreiter2001gradient`. Here is the norm of a gradient: that of the sum of the last output's entries with
# respect to the first input, in random layers, with $d = 32$. For the recurrence $U$ is random **orthogonal**: it keeps
# the length of every vector, so that only the tanh shrinks the gradient.

# %%
def far_gradient(layer, n, d=32):
    torch.manual_seed(0)
    x = torch.randn(n, d, requires_grad=True)
    output = layer(x)[-1]
    return torch.autograd.grad(output.sum(), x)[0][0].norm().item()

torch.manual_seed(1)
U = torch.linalg.qr(torch.randn(32, 32)).Q
W = torch.randn(32, 32) / math.sqrt(32)
mean = torch.nn.Linear(32, 32, bias=False)
def mild_attention(x):  # small queries, so that no softmax saturates
    return scaled_dot_product_attention(mean(x), x, x)

# %% tags=["nbval-rtol-0.05"]
layers = {"recurrence": lambda x: recurrence(x, W, U), "self-attention": mild_attention}
far = {name: [far_gradient(layer, n) for n in (8, 16, 32, 64)] for name, layer in layers.items()}
for name, sizes_of_gradient in far.items():
    print(f"{name:15}" + "".join(f"{size:10.1e}" for size in sizes_of_gradient))
assert far["recurrence"][3] < 1e-4 * far["recurrence"][0]
assert far["self-attention"][3] > 0.01 * far["self-attention"][0]

# %% [markdown]
# The attention's gradient shrinks about as the weight of one token among $n$ does, from 8 to 64 tokens by a factor of
# less than ten. The recurrence's shrinks roughly exponentially with $n$, over the same range by more than ten orders
# of magnitude: after 64 steps next to nothing is left to learn from. Gates, as in the LSTM
# {cite}`hochreiter1997long`, were invented against this, and help; they do not shorten the path.
#
# **Where.**
#
# - Code: `layers_to_connect` in `annotated_transformer/experiments/table_1/layer_types.py`; test:
#   `test_path_lengths_are_those_of_the_geometry`. `reached` is this chapter's own; [the chapter on
#   attention](3_2_attention.ipynb) uses the same idea to find leaking masks.
# - Exercises: {ref}`ex-why-path`, {ref}`ex-why-centred`, {ref}`ex-why-stack`.

# %% [markdown]
# (section-why-measured)=
# ## Table 1 in seconds and bytes
#
# **Question.** Do real seconds, on a real processor, grow with the exponents of the table? And the memory?
#
# **Equation.** If a call takes $T = c\, n^a d^b$ seconds, then over sizes $s_1, s_2, \ldots$ of one letter, with the
# other fixed,
#
# $$
# \log T_i = \log c' + a \log s_i + \varepsilon_i
# $$ (why-exponent)
#
# and least squares gives the exponent $a$. The deviations $\varepsilon_i$ are the clock's noise and any bend of the
# line; from them follows a **95 percent confidence interval**, the range of exponents that the points allow.
#
# `python -m annotated_transformer.experiments.table_1` has measured it, with the layers of `layer_types.py` and
# PyTorch's own recurrences: one thread, processor time, the fastest of seven rounds, each of which visits every layer
# and size once; memory that a call frees is kept for the next. Not every size may be fitted. Small ones measure what it
# costs to call a kernel, and a range across the edge of a cache measures the cache. So there is a rule for the
# **sizes**:
#
# - the size grows by a factor of 8, and the shortest call takes about a millisecond or more;
# - the vectors that grow with $n$ lie outside the level-2 cache, or nearly so, from the first size on, or are read in
#   blocks;
# - where $d$ grows, a recurrence gets 128 sentences, because with few of them arithmetic waits for memory, and 32
#   steps, to share what PyTorch does to the matrix once a call;
# - what the formula calls small is small in seconds, so $d$ starts at 256, for the separable convolution at 1,024.
#
# **Code.** The file that was written, and the records of one kind.

# %%
table_1 = read_result("results/table_1.json")
print(table_1["command"], "|", table_1["hardware"])

def records(measure, **wanted):
    found = [record for record in table_1["records"] if record["measure"] == measure]
    return [r for r in found if all(r[key] == value for key, value in wanted.items())]

def fitted(record, values="seconds"):
    first = record["sizes"].index(record["fitted_from"])
    return record["sizes"][first:], record[values][first:]

# %% [markdown]
# **Check.** One exponent by hand: the slope, its standard error from the residuals, and 2.571 times that to each side,
# which is Student's factor for seven points and two fitted numbers.

# %%
[lstm] = records("time", layer="recurrent (LSTM)", over="n", reason="")
sizes_n, times = fitted(lstm)
(a, _), covariance = np.polyfit(np.log(sizes_n), np.log(times), deg=1, cov=True)
half = 2.571 * math.sqrt(covariance[0, 0])
assert len(sizes_n) == 7 and math.isclose(a, lstm["time"]["exponent"])
assert math.isclose(a - half, lstm["time"]["low"]) and math.isclose(a + half, lstm["time"]["high"])
print(f"LSTM, n from {sizes_n[0]} to {sizes_n[-1]}: time grows as n to the {a:.3f}, {a - half:.3f} to {a + half:.3f}")

# %% [markdown]
# Now all of them. The formula's exponent is the paper's (an LSTM is a recurrent layer; the separable convolution stands in
# the text beside the table); the others are ours: counted operations, fitted over the same sizes, and time. The counts were compared with the formulas at every size when the file was written.

# %% tags=["row-E16", "row-X9", "row-T1"]
print(f"{'':28}{'':10}{'formula':>10}{'counted':>9}{'time, with its interval':>28}")
for record in records("time", reason=""):
    time_, count = record["time"], record["counted"]
    print(f"{record['layer']:28}{'over ' + record['over']:10}{record['theory']:10}{count['exponent']:9.3f}"
          f"{time_['exponent']:10.3f}  {time_['low']:.3f} to {time_['high']:.3f}")
    assert abs(count["exponent"] - record["theory"]) <= 0.15
    assert abs(time_["exponent"] - record["theory"]) <= 0.15
    assert record["rounds"] == 7 and max(record["sizes"]) == 8 * record["fitted_from"]
assert len(records("time", reason="")) == 14
outside = [record for record in records("time", reason="")
           if not record["time"]["low"] <= record["theory"] <= record["time"]["high"]]
print(len(outside), "of the 14 intervals leave the formula's number out")

# %% [markdown]
# Fourteen exponents, and each is within 0.15 of the formula's 1 or 2. The separable convolution's 2 is that of large
# $d$: its formula is a sum. But in some of the lines, counted above, not even the interval reaches the formula's number:
# those deviations are small and real. And the sizes were chosen after a first try had shown where the lines bend, so
# "within 0.15" describes these sizes; it is no test of the formula at any others.
#
# **Picture.** Filled points are fitted, hollow ones are the smaller sizes that are not: there the lines bend.

# %% mystnb={"image": {"alt": "Two charts of measured seconds with logarithmic axes, over n and over d, with points and fitted lines for six layers. Over n: self-attention is the only line of slope 2; recurrent, LSTM, convolutional, restricted self-attention and separable convolutional are straight with slope 1. Over d: self-attention and restricted self-attention have slope 1, the other four slope 2. Hollow points at small sizes lie on the lines or above them, most clearly over d below 128."}, "figure": {"caption": "Measured processor time of one call (one thread), and the fitted lines. Each layer has its own fixed sizes, so compare slopes and not heights.", "name": "fig-why-time"}}
figure, axes = plt.subplots(1, 2, figsize=(7, 3.6), layout="constrained", sharey=True)
shown = ["self-attention", "recurrent", "recurrent (LSTM)", "convolutional", "restricted self-attention",
         "separable convolutional"]
for ax, letter in zip(axes, "nd"):
    for layer, colour, marker in zip(shown, PALETTE, "os*^vD"):
        [record] = records("time", layer=layer, over=letter, reason="")
        sizes_, times = fitted(record)
        ax.plot(record["sizes"], record["seconds"], marker, color=colour, markersize=4, fillstyle="none")
        ax.plot(sizes_, times, marker, color=colour, markersize=4, label=layer)
        line = np.polyfit(np.log(sizes_), np.log(times), deg=1)
        ax.plot(sizes_, np.exp(np.polyval(line, np.log(sizes_))), color=colour, linewidth=1)
    ax.set(xscale="log", yscale="log", xlabel=f"${letter}$")
axes[0].set_ylabel("seconds")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# **Break it.** The same program has sweeps that break the rule, most of them our first choice of sizes. Here is what
# they gave, and why.

# %%
for record in records("time"):
    if record["reason"]:
        time_, letter = record["time"], record["over"]
        print(f"{record['layer']}, {letter} {record['fitted_from']} to {record['sizes'][-1]}: "
              f"{time_['exponent']:.2f} ({time_['low']:.2f} to {time_['high']:.2f}), the paper {record['theory']}\n"
              f"    {record['reason']}")

# %% [markdown]
# Three of the six are farther than 0.15 from the table, the others not much nearer. Farthest is the separable convolution
# at small $d$: its first step, the $k n d$ of the formula, is a small share of its operations and a large share of its
# time, because it does little arithmetic for each number that it reads. Attention that stores its weights grows faster
# than $n^2$. And an exponent does not tell how *fast* a layer is: with one sentence at a time the LSTM's time grows a
# little faster than $d^2$, which looks harmless, but every operation takes several times as long.

# %%
def rate(record):
    return record["operations"][-1] / record["seconds"][-1]

broken = [r for r in records("time") if r["reason"]]
off = {(r["layer"], r["over"], r["reason"]): abs(r["time"]["exponent"] - r["theory"]) for r in broken}
assert sum(distance > 0.15 for distance in off.values()) == 3 and min(off.values()) > 0.1 and len(off) == 6
assert max(off, key=off.get)[:2] == ("separable convolutional", "d")
by_sentences = {r["sentences"]: rate(r) for r in records("time", layer="recurrent (LSTM)", over="d", n=32)}
print({n: f"{by_sentences[n] / 1e9:.0f}e9 operations a second" for n in sorted(by_sentences)})
assert by_sentences[128] > 5 * by_sentences[1] and by_sentences[128] > by_sentences[32] > by_sentences[1]
[stored] = records("time", layer="self-attention, weights stored")
assert 2 < stored["time"]["low"] < stored["time"]["exponent"] < 2.5

# %% [markdown]
# ### Memory
#
# Table 1 has no column for memory, and it decides as often as time does. The program counts the bytes of all tensors
# that are alive at once in a forward pass that keeps what the backward pass needs; the count is exact. The expected
# exponents are those of the largest tensors.

# %%
columns = ("d", "MB", "over n", "expected", "over d", "expected")
print(f"{'peak of one layer':32}" + "".join(f"{column:>9}" for column in columns))
for of_d in records("memory", over="d"):
    [of_n] = records("memory", layer=of_d["layer"], over="n")
    n_, d_ = of_n["memory"]["exponent"], of_d["memory"]["exponent"]
    print(f"{of_d['layer']:32}{of_d['sizes'][-1]:9}{of_d['bytes'][-1] / 1e6:9.1f}"
          f"{n_:9.3f}{of_n['theory']:9}{round(d_, 3) + 0:9.3f}{of_d['theory']:9}")
    assert abs(n_ - of_n["theory"]) <= 0.15 and abs(d_ - of_d["theory"]) <= 0.15

# %% [markdown]
# The square is in *one* line only: attention that stores its weights. The fused kernel goes through the keys in blocks
# and keeps for each query a running sum, so it takes $O(n^2 d)$ operations and $O(n d)$ memory
# {cite}`dao2022flashattention`. And restricted attention, with windows that are views, needs no $r$ copies of its
# input.
#
# ### Where the lines cross
#
# By count, self-attention is cheaper than a plain recurrence while $n < d$, and cheaper than an LSTM, which has four
# times the matrices, while $n < 4d$. By the clock? The program has timed all three for eight sentences at three widths.

# %% tags=["row-T1"]
print(f"{'cheaper up to n =':24}{'by count':>10}{'by time':>9}{'n / d by time':>15}")
for record in records("crossover"):
    d, by_count, by_time = record["d"], record["n_operations"], record["n_time"]
    print(f"{record['layer']:17} d {d:4}{by_count:10.0f}{by_time:9.0f}{by_time / d:15.1f}")
    assert math.isclose(by_count, d if record["layer"] == "recurrent" else 4 * d)
    assert by_time > by_count

# %% mystnb={"image": {"alt": "Two charts of the time of self-attention divided by that of a recurrence, over n / d from one half to 16, with logarithmic axes and lines for d = 64, 128 and 256. Left, plain recurrence: the lines rise from about 0.3 to between 2 and 8 and cross 1 at n / d of about 5, 4 and 2, right of the dotted line at 1. Right, LSTM: the lines lie close together, rise from between 0.1 and 0.3 to about 3, and cross 1 at 5 to 6, right of the dotted line at 4."}, "figure": {"caption": "Measured time of self-attention divided by that of a recurrence, eight sentences, one thread. Below 1 self-attention is faster. Dotted: where the counts are equal.", "name": "fig-why-crossover"}}
figure, axes = plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained", sharey=True)
for ax, layer, equal in zip(axes, ("recurrent", "recurrent (LSTM)"), (1, 4)):
    for record, colour, marker in zip(records("crossover", layer=layer), PALETTE, "os^"):
        d, lengths = record["d"], np.array(record["n"])
        ratio = np.array(record["seconds_self_attention"]) / record["seconds"]
        ax.plot(lengths / d, ratio, f"{marker}-", color=colour, markersize=4, label=f"$d$ = {d}")
    ax.axhline(1, color="grey", linewidth=1)
    ax.axvline(equal, color="grey", linestyle=":", linewidth=1)
    ax.set(xscale="log", yscale="log", title=layer, xlabel="$n / d$", xticks=[0.5, 1, 2, 4, 8, 16])
    ax.set_xticklabels(["½", "1", "2", "4", "8", "16"])
    ax.minorticks_off()
axes[0].set(ylabel="time, self-attention / recurrence", yticks=[0.1, 0.3, 1, 3, 10], yticklabels=[0.1, 0.3, 1, 3, 10])
axes[0].legend()
plt.show()

# %% [markdown]
# By the clock the crossing lies beyond the count's in all six cases: a processor is faster at the two large products of
# attention than at the $n$ small ones of a recurrence. Wider vectors make those larger: for the plain recurrence the
# clock comes nearer to the count as $d$ grows. The LSTM's products are four times as large, and its crossing is at 5 to
# 6 $d$, against a counted 4. With $n = d$, self-attention takes a quarter to a half of the plain recurrence's time, for
# the same count. All this on one core, which has little to do side by side; on a GPU one expects a wider gap, and this
# book has not measured it.

# %% tags=["row-T1"]
for record in records("crossover", layer="recurrent"):
    i = record["n"].index(record["d"])
    share = record["seconds_self_attention"][i] / record["seconds"][i]
    print(f"n = d = {record['d']:3}: self-attention takes {share:.0%} of the recurrence's time")
    assert 0.25 < share < 0.52
plain, gated = ([record["n_time"] / record["d"] for record in records("crossover", layer=layer)]
                for layer in ("recurrent", "recurrent (LSTM)"))
assert plain == sorted(plain, reverse=True) and f"{min(gated):.0f} {max(gated):.0f}" == "5 6"

# %% [markdown]
# ### The other two columns
#
# Chains of products and paths by gradient were counted there as well, for all variants of the layers, and agree with
# the formulas exactly.

# %% tags=["row-T1"]
for measure, unit in (("sequential", "products in a row"), ("path", "steps, first to last")):
    for record in records(measure):
        counts = record["chains"] if measure == "sequential" else record["steps"]
        assert counts == record["theory"]
        print(f"{record['layer']:32}{unit:22}n {record['n']}: {counts}")

# %% [markdown]
# **Where.**
#
# - Code: `annotated_transformer/experiments/table_1/measurement.py`; `make_layer` in `annotated_transformer/experiments/table_1/layer_types.py`,
#   `peak_bytes` and `longest_chain` in `annotated_transformer/tables/cost.py`.
# - Tests: `test_the_layers_do_the_operations_of_the_formula`, `test_windows_are_neither_copied_nor_computed_twice`,
#   `test_only_a_recurrence_has_to_wait` in `tests/experiments/test_layer_types.py`; `test_bytes_alive_at_once_by_hand` in
#   `tests/tables/test_cost.py`.
# - Exercise: {ref}`ex-why-exponent`.

# %% [markdown]
# ## What the table leaves out
#
# **Question.** Is Table 1 the cost of a Transformer?
#
# No, and it does not claim to be. A layer of the base model has more than scores and means. Around them stand four
# projections of $d \times d$, and after them the feed-forward network with $d_{ff} = 4d$. For $n$ tokens, all counted
# as above:
#
# $$
# \underbrace{4 n^2 d}_{\text{Table 1}} \;+\; \underbrace{8 n d^2}_{\text{projections}}
# \;+\; \underbrace{16 n d^2}_{\text{feed-forward}}
# $$ (why-whole-layer)
#
# **Check.** The package's own encoder layer, counted:

# %%
from annotated_transformer import ModelConfig
from annotated_transformer.model.stacks import EncoderLayer

base = ModelConfig.base(vocab_size=37_000)
d = base.d_model
for n in (28, 512, 3072, 6144):
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        EncoderLayer(base)(torch.randn(1, n, d), None)
    whole = counter.get_total_flops()
    assert whole == 4 * n**2 * d + 24 * n * d**2
    share = layer_operations("self-attention", n, d) / whole
    print(f"n {n:5,}  share of the n-squared term {share:6.1%}")

# %% [markdown]
# In a sentence of 28 tokens the term that Table 1 prints is about 1 percent of the layer. It reaches one half at
# $n = 6d$, 3,072 tokens: longer than any sentence, but not longer than many a document. So two statements are both
# true: for the paper's task the square hardly mattered; for texts much longer than $6d$ it is *the* problem.
#
# There is memory, too. Stored, the attention weights of one layer are $h\,n^2$ numbers for each sentence ($h$ heads),
# which the table does not count either ({ref}`ex-why-memory`); a fused kernel does not store them.
#
# The section ends with a fourth, softer reason: attention might yield models that are easier to interpret, since one
# can look at the weights. The paper shows examples in its appendix and so does
# [our chapter on them](7_attention_visualizations.ipynb); what such pictures prove is disputed
# {cite}`jain2019attention,wiegreffe2019attention`.

# %% [markdown]
# ## Exercises
#
# ```{exercise} Path lengths
# :label: ex-why-path
#
# Write `path_length(n, k, dilated)`: the number of layers of convolutions of width $k$ after which the first and the
# last of $n$ positions meet, with gaps of 1 throughout, or with gaps of $1, k, k^2, \ldots$ Use whole numbers only.
# Check it with `check("4", path_length)`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Equation {eq}`why-path`. `math.log(243, 3)` is 4.999999999999999 in floating point; count powers instead.
# ```
#
# ```{solution} ex-why-path
# :class: dropdown
#
# Without gaps each layer adds $k - 1$ positions to the one you start with, and `-(-a // b)` rounds a quotient up. With
# gaps, $m$ layers span $k^m$ positions: multiply until that is at least $n$.
# ```

# %% tags=["hide-cell"]
def path_length(n, k, dilated):
    if not dilated:
        return -(-(n - 1) // (k - 1))
    layers, span = 0, 1
    while span < n:
        layers, span = layers + 1, span * k
    return layers

check("4", path_length)

# %% [markdown]
# ```{exercise} Which is cheapest?
# :label: ex-why-cheapest
#
# Predict first, then compute: which of the five layers takes the fewest operations for $n = 30$, $d = 512$,
# $k = 3$, $r = 9$? And for $n = 3000$? Which row is never cheaper than which other, whatever the sizes?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Divide every formula by $2nd$: what is left is $2n$, $2d$, $kd$, $2r$ and $k + d$.
# ```
#
# ```{solution} ex-why-cheapest
# :class: dropdown
#
# Divided by $2nd$, for $n = 30$: self-attention 60, recurrent 1,024, convolutional 1,536, restricted 18, separable
# 515. For $n = 3000$ self-attention becomes 6,000 and the others stay: it falls from second place to last. Restricted
# attention is never dearer than full attention while $r \le n$; a convolution with $k \ge 2$ is never cheaper than a
# recurrence, nor (with $d \ge 2$) than a separable convolution, because then $kd \ge k + d$.
# ```

# %% tags=["hide-cell"]
for n, order in ((30, [3, 0, 4, 1, 2]), (3000, [3, 4, 1, 2, 0])):
    costs = [layer_operations(layer, n, 512, k=3, r=9) for layer in LAYERS]
    assert sorted(range(5), key=costs.__getitem__) == order
    print(n, [cost // (2 * n * 512) for cost in costs])

# %% [markdown]
# ```{exercise} With projections
# :label: ex-why-projections
#
# Table 1 counts self-attention without the four projections. Include them: for which $n$ is the layer still cheaper
# than the recurrence of equation {eq}`why-recurrence`? Was the comparison of the paper fair?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Compare $4n^2d + 8nd^2$ with $4nd^2$.
# ```
#
# ```{solution} ex-why-projections
# :class: dropdown
#
# For none: the projections alone are twice the recurrence. But a bare recurrence is not what people used either. An
# LSTM {cite}`hochreiter1997long` has four times the matrices, $16 n d^2$, and against it attention with projections
# wins while $4 n^2 d < 8 n d^2$, that is $n < 2d$. The table compares how the layers *grow*; a comparison of systems
# needs whole systems.
# ```

# %% tags=["hide-cell"]
d = 512
def with_projections(n):
    return layer_operations("self-attention", n, d) + 4 * 2 * n * d * d

for n in (1, 100, 1023, 1024, 1025):
    plain = layer_operations("recurrent", n, d)
    assert with_projections(n) > plain
    assert (with_projections(n) < 4 * plain) == (n < 2 * d)

# %% [markdown]
# ```{exercise} A whole document
# :label: ex-why-document
#
# A document of 32,768 tokens goes through one layer with $d = 512$. How many operations does full self-attention take,
# and how many does restricted self-attention with $r = 257$? How many layers until the ends meet in the second?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The windows are centred: a layer reaches $(r - 1)/2$ positions to each side.
# ```
#
# ```{solution} ex-why-document
# :class: dropdown
#
# $4 n^2 d = 2.2 \cdot 10^{12}$ against $4 r n d = 1.7 \cdot 10^{10}$, 127.5 times fewer. The price is the path:
# $\lceil 32767 / 128 \rceil = 256$ layers from end to end, and the base model has six.
# ```

# %% tags=["hide-cell"]
n, r = 32_768, 257
full = layer_operations("self-attention", n, 512)
windowed = layer_operations("restricted self-attention", n, 512, r=r)
assert f"{full:.1e} {windowed:.1e} {full / windowed:.1f}" == "2.2e+12 1.7e+10 127.5"
assert math.ceil((n - 1) / (r // 2)) == 256

# %% [markdown]
# ```{exercise} An exponent that is not the formula's
# :label: ex-why-exponent
#
# A layer takes $T = \alpha d^2 + \beta d$ seconds, and at $d = 512$ the second term is 40 percent of the time. Which
# slope would you fit between $d = 512$ and $1024$, and from which $d$ on is the slope of a doubling at least 1.9?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# With $\alpha = 1$: what is $\beta$? The slope of a doubling is $\log_2 (T(2d) / T(d))$.
# ```
#
# ```{solution} ex-why-exponent
# :class: dropdown
#
# $\beta = \frac{2}{3} \cdot 512 = 341$. Then $T$ grows by a factor of 3.2 from 512 to 1,024, a slope of 1.68. A slope
# of 1.9 is reached at about $d = 2200$. The separable convolution of this chapter is such a case: the second term is
# 0.3 percent of its operations at $d$ = 1024 and far more of its time.
# ```

# %% tags=["hide-cell"]
beta = 2 / 3 * 512

def doubling(d):
    return math.log2(((2 * d) ** 2 + beta * 2 * d) / (d**2 + beta * d))

assert f"{doubling(512):.2f}" == "1.68"
first = next(d for d in range(512, 10_000) if doubling(d) >= 1.9)
print(first)

# %% [markdown]
# ```{exercise} The edges of the windows
# :label: ex-why-edges
#
# Leave the mask `real` out of `restricted_self_attention`. For $n = 12$ and $r = 5$, which outputs change? The padding
# is all zeros: why is that not harmless?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# What is the score of a key of zeros, and what is $e^0$?
# ```
#
# ```{solution} ex-why-edges
# :class: dropdown
#
# The first two and the last two. A key of zeros has score 0, not minus infinity, and so takes a share of the
# attention; its value of zeros then pulls the mean towards zero.
# ```

# %% tags=["hide-cell"]
torch.manual_seed(0)
n, r = 12, 5
x = torch.randn(n, 6)
windows = F.pad(x, (0, 0, r // 2, r // 2)).unfold(0, r, 1).transpose(1, 2)
unmasked = scaled_dot_product_attention(x[:, None], windows, windows)[:, 0]
changed = ((unmasked - restricted_self_attention(x, r)).abs() > 1e-4).any(dim=1)
assert changed.nonzero().flatten().tolist() == [0, 1, n - 2, n - 1]

# %% [markdown]
# ```{exercise} A kernel as wide as the sentence
# :label: ex-why-kernel-n
#
# One separable convolution that looks back with $k = n$ connects every position to all before it, in one layer, as
# causal self-attention does. What can attention do that it cannot?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# What do the weights of each depend on? What happens to a sentence longer than $n$?
# ```
#
# ```{solution} ex-why-kernel-n
# :class: dropdown
#
# The convolution weighs a neighbour by its *distance* alone, the same for every sentence; attention weighs by what
# stands there. Exchange two earlier tokens: at the last position attention (without positional encodings) gives the
# same output, the convolution does not. And its kernel has one number for each distance below $n$, so in a longer
# sentence it cannot see any farther back.
# ```

# %% tags=["hide-cell"]
torch.manual_seed(0)
x, kernel, W = torch.randn(6, 4), torch.randn(4, 1, 6), torch.randn(4, 4)
swapped = x[[1, 0, 2, 3, 4, 5]]
assert_close(self_attention(swapped)[-1], self_attention(x)[-1])
one, other = (separable_convolution(sentence, kernel, W)[-1] for sentence in (x, swapped))
assert not torch.allclose(one, other)

# %% [markdown]
# ```{exercise} Centred kernels
# :label: ex-why-centred
#
# A kernel of odd width $k$ may be centred: position $t$ sees $t - \frac{k-1}{2}$ to $t + \frac{k-1}{2}$. After how
# many layers does the last of $n = 27$ positions know of the first, with $k = 3$ and with $k = 5$? After how many do
# the two ends *meet*, so that some position knows of both?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The position that hears of both first is the one in the middle.
# ```
#
# ```{solution} ex-why-centred
# :class: dropdown
#
# From end to end $\lceil 2(n-1)/(k-1) \rceil$: 26 and 13 layers. In the middle half as many: 13 and 7, the number of
# equation {eq}`why-path`.
# ```

# %% tags=["hide-cell"]
def centred(k):
    return lambda x, depth: F.conv1d(x.T, kernels_of(k), padding=k // 2).T

for k, end, middle in ((3, 26, 13), (5, 13, 7)):
    spread = reached(centred(k), 27, n_layers=end)
    assert spread[end - 1, -1] and not spread[end - 2, -1]
    both = (spread & spread.flip(1)).any(dim=1)
    assert both[middle - 1] and not both[middle - 2]

# %% [markdown]
# ```{exercise} What six layers see
# :label: ex-why-stack
#
# The encoder has $N = 6$ layers. With restricted attention of $r = 9$ in each, how many positions can influence one
# output in the middle of a long sentence? What $r$ do you need so that six layers connect any two of 100 tokens?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Four positions to each side a layer.
# ```
#
# ```{solution} ex-why-stack
# :class: dropdown
#
# $1 + 2 \cdot 6 \cdot 4 = 49$. For 100 tokens six layers must bridge 99 positions, 17 a layer, so $r = 35$.
# ```

# %% tags=["hide-cell"]
spread = reached(lambda x, depth: restricted_self_attention(x, 9), 40, n_layers=6)
assert spread[5].sum() == 25  # the first input and 24 to its right; a middle one has as many to its left
for r, connected in ((33, False), (35, True)):
    assert (6 * (r // 2) >= 99) is connected

# %% [markdown]
# ```{exercise} Half of the sequence at a time
# :label: ex-why-sequential
#
# A sum of $n$ numbers, added from left to right, takes $n - 1$ additions in a row. In which order do you need fewer?
# Why can the recurrence not be rearranged like this?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Add neighbours in pairs. Which law of addition do you use?
# ```
#
# ```{solution} ex-why-sequential
# :class: dropdown
#
# In pairs, then pairs of pairs: $\lceil \log_2 n \rceil$ rounds, because addition is associative. The step
# $h \mapsto \tanh(x_tW + hU)$ is not of that kind: two steps do not combine into one step of the same form, because
# of the tanh between them. Without the tanh they would, and some later recurrent models are built so.
# ```

# %% tags=["hide-cell"]
def rounds(numbers):
    count = 0
    while len(numbers) > 1:
        numbers = [sum(numbers[i : i + 2]) for i in range(0, len(numbers), 2)]
        count += 1
    return count, numbers[0]

assert rounds(list(range(100))) == (math.ceil(math.log2(100)), sum(range(100)))

# %% [markdown]
# ```{exercise} Stored weights
# :label: ex-why-memory
#
# How much memory do the attention weights of one layer of the base model take, stored in float32, for one sentence of
# 100 tokens, and for a text of 10,000? How much does the layer's output take?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $h\,n^2$ and $n\,d$ numbers of four bytes.
# ```
#
# ```{solution} ex-why-memory
# :class: dropdown
#
# 0.32 MB and 3.2 GB; the output takes 0.2 MB and 20 MB. Kernels that never store the weights avoid the first number,
# though not the operations.
# ```

# %% tags=["hide-cell"]
for n, weights, output in ((100, 0.32, 0.2048), (10_000, 3200, 20.48)):
    assert math.isclose(4 * base.h * n**2 / 1e6, weights)
    assert math.isclose(4 * n * base.d_model / 1e6, output)

# %% [markdown]
# ## What to remember
#
# - The paper asks three things of a layer: few operations, few of them in a row, short paths between any two
#   positions ({ref}`section-why-desiderata`).
# - Self-attention takes $4n^2d$ operations, a recurrence $4nd^2$: attention is cheaper exactly while $n < d$, and it is
#   the one row that grows with the square of the length.
# - It needs a constant number of sequential operations, and any two positions are one step apart. That, more than the
#   count of operations, sets it apart from a recurrence.
# - Restricted attention saves work only if the hidden scores are never computed; a mask saves nothing.
# - Measured times have the table's exponents, within 0.15, where the sizes are large and one level of memory serves all
#   of them ({ref}`section-why-measured`). Memory is square only where the attention weights are stored.
# - The path of $\log_k n$ is that of dilated convolutions; contiguous ones have $n/k$.
# - In a sentence of 28 tokens the term $n^2 d$ is a percent of the layer. It is half of it at $n = 6d$, and most of it
#   in a long document.
