# %% [markdown]
# # On a GPU
#
# *The paper's models were trained on "one machine with 8 NVIDIA P100 GPUs" (section 5.2 of
# {cite:t}`vaswani2017attention`). What such a machine does with the model, which parts of a step it does well, and how
# you run this book's code on one.*
#
# **What this chapter can show, and what it cannot.** It was written on a machine without a GPU. So far **no figure in
# this book was measured on a GPU**, and none here pretends to be. What is *counted* (operations, bytes) is the same on
# every machine, and is counted here. What is *equal* (a fast kernel and the taught equation) is checked here. What a
# maker says of a GPU is marked as the *vendor's figure*. What only a stop-watch on a GPU can tell is left open, and a
# script waits to measure it ({ref}`section-gpu-measured`).
#
# When you have read it you can
#
# - count the operations and the bytes of a training step, and say which of the two sets its shortest time;
# - draw a roofline, and place each operation of a layer on it;
# - explain how attention is computed without ever holding its $n^2$ weights;
# - choose a number type, a kernel and a batch size, and say when compiling may pay, each for a reason;
# - plan the memory of a training run, and start one on Colab or on a GPU of your own.

# %%
import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer import (
    ModelConfig, TrainConfig, Transformer, label_smoothed_cross_entropy, scaled_dot_product_attention)
from annotated_transformer.looking.visualization import PALETTE, show, use_style

# %% [markdown]
# Is there a GPU where you run this? The cell says so. All cells of this chapter run without one, too.

# %% tags=["nbval-ignore-output"]
use_style()
has_gpu = torch.cuda.is_available()
if has_gpu:
    gpu = torch.cuda.get_device_properties(0)
    print(f"{gpu.name}: {gpu.total_memory / 1e9:.0f} GB, {gpu.multi_processor_count} multiprocessors,"
          f" compute capability {gpu.major}.{gpu.minor}")
else:
    print("PyTorch sees no GPU here.")
assert has_gpu == (torch.cuda.device_count() > 0)

# %% [markdown]
# (section-gpu-operations)=
# ## What a step costs: operations
#
# **Question.** How fast can a training step of the base model be, at best?
#
# **Equation.** A step has a number of floating-point operations, and a processor has a rate, operations a second, that
# it cannot exceed. So
#
# $$
# \text{seconds} \;\ge\; \frac{\text{operations}}{\text{rate}}
# $$ (gpu-compute-floor)
#
# This is a floor, not a forecast. [Chapter 6.1](6_1_results.ipynb) counts the operations with care; here PyTorch's
# counter does it once more, on the device `meta`, where tensors have shapes and no numbers. The batch is the paper's:
# about 25,000 source and 25,000 target tokens, say 1,000 pairs of 25 each. In the same pass we note which tensors the
# backward pass needs, for the section on memory.

# %%
def forward_on_meta(config, n_sentences, length):
    """(loss, bytes kept for the backward pass without weights), no numbers computed."""
    kept = {}

    def keep(x):
        if not isinstance(x, torch.nn.Parameter):
            kept[x.untyped_storage()._cdata] = x
        return x

    with torch.device("meta"), torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        model = Transformer(config)
        tokens = torch.zeros(n_sentences, length, dtype=torch.long)
        loss, _ = label_smoothed_cross_entropy(model(tokens, tokens), tokens)
    weights = {w.untyped_storage()._cdata for w in model.parameters()}
    return loss, sum(x.untyped_storage().nbytes() for i, x in kept.items() if i not in weights)

# %%
base, n = ModelConfig.base(vocab_size=37_000), 25_000
n_weights = sum(w.numel() for w in Transformer(base.replace(vocab_size=3)).parameters())
n_weights += (base.vocab_size - 3) * base.d_model  # no need to fill the large matrix
with FlopCounterMode(display=False) as counter:
    loss, activations = forward_on_meta(base, n_sentences=1000, length=25)
    loss.backward()
step_operations = counter.get_total_flops()
print(f"{n_weights:,} weights, {step_operations:.2e} operations a step")
assert math.isclose(step_operations, 6 * n_weights * n, rel_tol=0.02)

# %% [markdown]
# The assertion is the rule of thumb: six operations for each weight and token, two forward and four backward.
#
# Now the rates. These are **vendors' figures**, from NVIDIA's data sheets, for matrix products (dense ones; a figure
# twice as high, "with sparsity", is often quoted, and does not apply). The P100's rate is the exception: 9.5 TFLOP/s is
# what the paper assumes for its own costs (footnote 5). `bandwidth` is how many bytes a second the GPU's memory gives
# or takes; the next section needs it.

# %%
from typing import NamedTuple

class GPU(NamedTuple):
    """Vendor's figures: operations a second, their number type, bytes a second, bytes of memory."""

    rate: float
    type: str
    bandwidth: float
    memory: float

GPUS = {"P100": GPU(9.5e12, "fp32", 0.732e12, 16e9),
        "T4": GPU(65e12, "fp16", 0.320e12, 16e9),
        "A100 80GB": GPU(312e12, "bf16", 2.039e12, 80e9),
        "H100 SXM": GPU(989e12, "bf16", 3.35e12, 80e9),
        "H200 SXM": GPU(989e12, "bf16", 4.8e12, 141e9)}

# %%
print("one GPU      vendor's figure     floor of a base step")
for name, gpu in GPUS.items():
    print(f"{name:10} {gpu.rate / 1e12:6.1f} TFLOP/s {gpu.type}"
          f"  {1e3 * step_operations / gpu.rate:10.1f} ms")

# %% [markdown]
# **Check.** The paper's eight P100 took 0.4 s a step (section 5.2). Eight times the rate gives a floor of an eighth:

# %%
floor = step_operations / (8 * GPUS["P100"].rate)
print(f"floor {floor:.3f} s, the paper's step 0.4 s: {floor / 0.4:.0%} of the assumed rate")
assert f"{floor / 0.4:.0%}" == "31%"

# %% [markdown]
# The share of the possible rate that a run reaches is its **utilisation**. ([Chapter 6.1](6_1_results.ipynb) also
# finds 29 percent, from the paper's twelve hours: 100,000 steps of 0.4 s are 11.1.) Why is it 31 percent and not 100?
# This is not known for the paper's run. The rest of this chapter is about the usual reasons: operations that wait for
# memory, number types, many small kernels, a GPU that waits for Python, padding.
#
# **Where.** `annotated_transformer/tables/cost.py`; exercise: {ref}`gpu-ex-days`.

# %% [markdown]
# (section-gpu-roofline)=
# ## What a step moves: the roofline
#
# **Question.** Which operations of a layer are limited by arithmetic, and which by memory?
#
# A GPU's numbers lie in its memory. To compute with them it has to fetch them, and to put the results back. So every
# operation has two floors, and the larger holds.
#
# **Equation.** The **arithmetic intensity** $I$ is the number of operations for each byte moved. With rate $R$ and
# bandwidth $B$
#
# $$
# \begin{aligned}
# \text{seconds} &\ge \max\left(\frac{\text{operations}}{R}, \frac{\text{bytes}}{B}\right) \\
# \text{operations a second} &\le \min(R, \; I \cdot B)
# \end{aligned}
# $$ (gpu-roofline)
#
# The second line is the first, turned into a speed. Drawn over $I$ on logarithmic axes, it is a slope that ends in a
# flat roof: the **roofline** model {cite}`williams2009roofline`. They meet at the **ridge**, $I = R / B$. Left of it an
# operation is **memory-bound**, right of it **compute-bound**.

# %%
for name, gpu in GPUS.items():
    print(f"{name:10} ridge at {gpu.rate / gpu.bandwidth:4.0f} operations a byte")
assert round(GPUS["H100 SXM"].rate / GPUS["H100 SXM"].bandwidth) == 295

# %% [markdown]
# **By hand.** Take $n$ rows of $D$ numbers times a matrix of $D$ by $E$. That is $2nDE$ operations. If every number is
# moved once, it is $nD + DE + nE$ numbers, of 2 bytes each in a 16-bit type:
#
# $$
# I = \frac{2 n D E}{2 (n D + D E + n E)} = \frac{1}{1/E + 1/n + 1/D}
# $$ (gpu-intensity)
#
# The smallest of the three sizes bounds it. Many tokens help, until the width $D$ is the smallest.

# %%
def product_intensity(n, D, E):
    return 1 / (1 / E + 1 / n + 1 / D)

for tokens in (1, 32, 25_000):
    projection, wide = (product_intensity(tokens, 512, E) for E in (512, 2048))
    print(f"{tokens:6,} tokens: W_Q {projection:5.1f}   W_1 {wide:5.1f} operations a byte")
    assert projection < min(tokens, 512 / 2) and wide < min(tokens, 512)

# %% [markdown]
# Two things follow from three lines of numbers.
#
# - **One token at a time is memory-bound on any GPU**: an operation a byte. This is decoding without batches: all
#   weights are read to compute one token. It is a reason to translate many sentences at once.
# - **The base model is narrow.** $W_Q$ has $I < 512/2 = 256$ however many tokens there are, and that is left of an
#   H100's ridge at 295. The big model, with twice the width, reaches nearly twice the intensity.
#
# **The kinds of operations in an encoder layer**, the logits, the loss and the update. ($W_K$, $W_V$ and $W_O$ are
# like $W_Q$.) $L$ is the length of a sentence; the constants for operations other than products (5 for each number of a
# softmax, 8 for a LayerNorm, ...) are rough, and it will not matter.

# %%
class Work(NamedTuple):
    operations: float
    bytes: float

def product(n, D, E):
    return Work(2 * n * D * E, 2 * (n * D + D * E + n * E))

def per_number(count, operations, moved_bytes):
    return Work(count * operations, count * moved_bytes)

# %% [markdown]
# Attention once as equation 1 is written, with $nLh$ weights written to memory and read again, and once with all of it
# in one kernel ({ref}`section-gpu-attention` shows how), which reads three tensors and writes one:

# %%
def attention_work(n, D, h, L):
    """The products of attention with n L h weights in memory, the softmax alone, and all fused into one kernel."""
    weights = n * L * h
    scores = Work(2 * n * L * D, 2 * (2 * n * D + weights))
    fused = Work(4 * n * L * D + 5 * weights, 2 * 4 * n * D)
    return scores, per_number(weights, 5, 2 + 2), fused

# %% [markdown]
# A number that is read and written in 16 bits costs $2 + 2$ bytes. Adam's state is in float32: it reads $w, g, m, v$
# and writes $w, m, v$, which is $7 \cdot 4 = 28$ bytes a parameter. The loss reads the logits in float32 at least once.

# %%
def layer_work(config, n, L):
    D, F, V, h = config.d_model, config.d_ff, config.vocab_size, config.h
    scores, softmax, fused = attention_work(n, D, h, L)
    return {"W_Q": product(n, D, D), "W_1": product(n, D, F), "W_2": product(n, F, D),
            "logits (x Eᵀ)": product(n, D, V), f"QKᵀ, length {L}": scores,
            "softmax": softmax, "fused attention": fused,
            "ReLU": per_number(n * F, 1, 2 + 2), "add + LayerNorm": per_number(n * D, 9, 2 + 2 + 2),
            "loss": per_number(n * V, 4, 4), "Adam": per_number(n_weights, 15, 28)}

# %%
works, h100 = layer_work(base, n, L=25), GPUS["H100 SXM"]
ridge = h100.rate / h100.bandwidth
for name, work in works.items():
    intensity = work.operations / work.bytes
    bound = "compute" if intensity > ridge else "memory"
    print(f"{name:16} {work.operations / 1e9:6.1f} GFLOP"
          f" {work.bytes / 1e6:7.1f} MB  I {intensity:5.1f}  {bound}-bound")

# %% [markdown]
# **Check** one product's operations against PyTorch's counter, and its intensity against equation {eq}`gpu-intensity`.

# %%
with torch.device("meta"), FlopCounterMode(display=False) as counter:
    torch.zeros(n, 512) @ torch.zeros(512, 2048)
assert counter.get_total_flops() == works["W_1"].operations
assert math.isclose(works["W_1"].operations / works["W_1"].bytes, product_intensity(n, 512, 2048))
assert 28 == 4 * (4 + 3) and works["Adam"].bytes == 28 * n_weights
compute_bound = {name for name, work in works.items() if work.operations > ridge * work.bytes}
assert compute_bound == {"W_1", "W_2", "logits (x Eᵀ)"}

# %% [markdown]
# **Picture.**

# %% mystnb={"image": {"alt": "Roofline on logarithmic axes for H100, A100 and T4: each a rising line that turns flat. Nine operations of the base model stand as numbered points on the H100's line. ReLU, loss, Adam, softmax, add and LayerNorm, and fused attention lie on the slope; W_Q lies just left of the ridge at 295; W_1 and the logits lie right of it."}, "figure": {"caption": "Roofline from the vendors' figures, with the operations of the base model (25,000 tokens in sentences of 25, 16-bit numbers). The points are bounds, not measurements.", "name": "fig-gpu-roofline"}}
figure, ax = plt.subplots(figsize=(6.6, 3.6), layout="constrained")
axis = torch.logspace(-1.3, 3.3, 200, dtype=torch.float64)
for (name, style) in (("H100 SXM", "-"), ("A100 80GB", "--"), ("T4", ":")):
    roof = (axis * GPUS[name].bandwidth).clamp(max=GPUS[name].rate) / 1e12
    ax.plot(axis, roof, style, label=f"{name} (vendor's figures)", zorder=1)
shown = [name for name in works if name not in ("W_2", "QKᵀ, length 25")]
for number, name in enumerate(sorted(shown, key=lambda k: works[k].operations / works[k].bytes), 1):
    I = works[name].operations / works[name].bytes
    height = min(h100.rate, I * h100.bandwidth) / 1e12
    ax.scatter(I, height, s=20, color="black", zorder=2, label=f"{number}  {name}")
    shift = (-4, 4) if number % 2 else (6, -10)  # odd numbers above the line, even ones below
    ax.annotate(str(number), (I, height), shift, textcoords="offset points", ha="center")
ax.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="at most (TFLOP/s)")
ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# Only wide products are compute-bound. Everything that touches each number once, with few operations, is limited by
# memory alone: a GPU with twice the arithmetic rate and the same bandwidth would do it no faster. What helps there is
# to move fewer bytes: smaller number types ({ref}`section-gpu-types`), and several operations in one go, while the
# numbers are on the chip (**fusing**: {ref}`section-gpu-attention` and {ref}`section-gpu-compile`).
#
# **Break it.** How much of a layer's forward pass would the rest take, the *small* operations, if all ran at their
# bounds? Per encoder layer: four projections and two products of the feed-forward network; and as small operations
# attention in separate kernels (two products, a softmax), two add-and-norm, a ReLU.

# %%
def seconds(work, gpu):
    return max(work.operations / gpu.rate, work.bytes / gpu.bandwidth)

counts = {"W_Q": 4, "W_1": 1, "W_2": 1, "QKᵀ, length 25": 2, "softmax": 1, "ReLU": 1, "add + LayerNorm": 2}
for name in ("P100", "A100 80GB", "H100 SXM"):
    time = {op: count * seconds(works[op], GPUS[name]) for op, count in counts.items()}
    share = 1 - (time["W_Q"] + time["W_1"] + time["W_2"]) / sum(time.values())
    operations = sum(count * works[op].operations for op, count in counts.items() if op[0] != "W")
    total = sum(count * works[op].operations for op, count in counts.items())
    print(f"{name:10} small operations: {operations / total:.1%} of the arithmetic, {share:.0%} of the time")
    assert operations / total < 0.02 < share

# %% [markdown]
# (The P100's line is with 16-bit traffic like the others; the point is the trend.) The faster the arithmetic grows
# against the bandwidth, the more of the time goes to what is hardly arithmetic at all.
#
# **Where.** Exercises: {ref}`gpu-ex-decode`, {ref}`gpu-ex-adam`.

# %% [markdown]
# (section-gpu-attention)=
# ## Attention without the weights
#
# **Question.** Equation 1 of the paper has an $n \times n$ matrix of weights in the middle. Must it ever be in memory?
#
# Written as in the paper, yes: scores are written, read by the softmax, written again, read by the product with $V$.
# And training keeps the weights for the backward pass. But the output of one query is a weighted mean, and a mean can
# be computed as its terms arrive. The softmax seems to forbid it, since it divides by a sum over all keys. The sum can
# be mended later.
#
# **Equation.** Cut the keys into blocks. After each block keep, for each query, the largest score so far $m$, the
# sum $z$ of $e^{s - m}$, and the sum $o$ of $e^{s - m} v$. With a new block's scores $s_j$:
#
# $$
# \begin{aligned}
# m' &= \max(m, \max_j s_j) \\
# z' &= e^{m - m'} z + \textstyle\sum_j e^{s_j - m'} \\
# o' &= e^{m - m'} o + \textstyle\sum_j e^{s_j - m'} v_j
# \end{aligned}
# $$ (gpu-online)
#
# and at the end $o / z$ is the attention. The running softmax is from {cite:t}`milakov2018online`; **FlashAttention**
# {cite}`dao2022flashattention` does the whole of attention so, in blocks that fit the fast memory on the chip, and
# computes the weights again in the backward pass rather than storing them. It is exact, not an approximation.

# %%
def attention_in_blocks(q, k, v, block=16):
    """Equation 1, never holding more than `block` columns of the weights."""
    m = torch.full((*q.shape[:-1], 1), -math.inf, dtype=q.dtype)
    z, o = torch.zeros_like(m), torch.zeros(*q.shape[:-1], v.size(-1), dtype=q.dtype)
    for keys, values in zip(k.split(block, dim=-2), v.split(block, dim=-2)):
        s = q @ keys.transpose(-2, -1) / math.sqrt(q.size(-1))
        larger = torch.maximum(m, s.amax(dim=-1, keepdim=True))
        shrink, p = (m - larger).exp(), (s - larger).exp()
        m, z = larger, shrink * z + p.sum(dim=-1, keepdim=True)
        o = shrink * o + p @ values
    return o / z

# %% [markdown]
# **Check.** Three ways, one result: the taught equation, the blocks, and PyTorch's fused kernel, which the package
# calls. Scores of a hundred and more show that nothing overflows.

# %%
torch.manual_seed(0)
q, k, v = (torch.randn(2, 4, 50, 8, dtype=torch.float64) for _ in range(3))
for scale in (1, 100):
    taught = scaled_dot_product_attention(scale * q, k, v)
    assert_close(attention_in_blocks(scale * q, k, v), taught)
    assert_close(F.scaled_dot_product_attention(scale * q, k, v), taught)
print("largest score", f"{(100 * q @ k.transpose(-2, -1)).max() / math.sqrt(8):.0f}", ": all equal")

# %% [markdown]
# **The kernels of PyTorch.** `F.scaled_dot_product_attention` is a door with several kernels behind it, and it chooses.
#
# | kernel | keeps for the backward pass | on NVIDIA GPUs takes |
# |---|---|---|
# | math: equation 1, step by step | weights, $O(n^2)$ | everything |
# | flash {cite}`dao2022flashattention` | output and one number a query, $O(n)$ | fp16 and bf16, Ampere (A100) and newer, no mask but the causal flag |
# | memory-efficient | the same, $O(n)$ | also fp32, also older GPUs, also masks |
# | cuDNN | the same, $O(n)$ | fp16 and bf16, newer GPUs |
#
# On a CPU there are two, math and a flash kernel. With `sdpa_kernel` you force one, and get an error if it cannot do
# the call, instead of a silent other choice. We force both and ask autograd what each keeps.

# %%
def bytes_kept(kernel, length):
    """What one head of width 64 keeps for the backward pass."""
    kept = {}
    def keep(x):
        kept[x.data_ptr()] = x
        return x
    q, k, v = (torch.randn(1, 1, length, 64, requires_grad=True) for _ in range(3))
    with sdpa_kernel(kernel), torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        F.scaled_dot_product_attention(q, k, v)
    return sum(x.untyped_storage().nbytes() for x in kept.values())

# %%
lengths = (64, 128, 256, 512, 1024)
math_kept = [bytes_kept(SDPBackend.MATH, L) for L in lengths]
flash_kept = [bytes_kept(SDPBackend.FLASH_ATTENTION, L) for L in lengths]
for L, a, b in zip(lengths, math_kept, flash_kept):
    print(f"{L:5} tokens: math {a / 1e6:5.2f} MB, flash {b / 1e6:5.2f} MB")
    assert b == 4 * L * (4 * 64 + 1)
    assert a >= 4 * L * L
assert flash_kept[-1] == 16 * flash_kept[0]

# %% [markdown]
# $4L(4 \cdot 64 + 1)$ bytes: $q$, $k$, $v$, the output, and one number a query, the logarithm of its sum.

# %% mystnb={"image": {"alt": "Log-log chart of bytes kept by one head for lengths 64 to 1024. The flash kernel's line rises with slope one. The math kernel's line starts near it and bends upward towards slope two, as a dashed line of four bytes for each of n squared weights does."}, "figure": {"caption": "What autograd keeps for one head, counted on a CPU (float32).", "name": "fig-gpu-kept"}}
figure, ax = plt.subplots(figsize=(4.8, 2.8), layout="constrained")
ax.plot(lengths, [x / 1e6 for x in math_kept], "o-", label="math")
ax.plot(lengths, [x / 1e6 for x in flash_kept], "s-", label="flash")
ax.plot(lengths, [4 * L * L / 1e6 for L in lengths], "--", color="black", label="4 n² bytes")
ax.set(xscale="log", yscale="log", xlabel="length n", ylabel="kept (MB)")
ax.set_xticks(lengths, labels=map(str, lengths), minor=False)
ax.minorticks_off()
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# At the lengths of sentences the matter is small. At 25 tokens, the weights of a head are $25$ numbers a query,
# fewer than the query's own 64. It is for long sequences that the kernels were made. The *arithmetic* stays $O(n^2)$
# ([chapter 4](4_why_self_attention.ipynb)).
#
# **Which one does the package get?** Its decoder's self-attention passes `is_causal` and no mask, so that flash may be
# chosen (in bf16; float32 it does not take). The encoder's, and the attention over the source, pass the padding mask,
# which flash does not take; on a GPU that leaves the memory-efficient kernel, math and, where it takes the call,
# cuDNN's. In training and in search the package switches cuDNN's off: PyTorch would prefer it on an H100 or a B200, where it makes a
# plan for each new shape in about a second ([measured on a B200](https://github.com/modelscope/FunASR/issues/3704)),
# and nearly every batch of sentences has a shape of its own. To see what your GPU takes, force one kernel after
# another, or look at the kernels' names in `torch.profiler`.
#
# **Where.** `MultiHeadAttention.attend`; test: `test_the_taught_function_equals_pytorchs_kernel`. Exercises:
# {ref}`gpu-ex-merge`, {ref}`gpu-ex-scores`.

# %% [markdown]
# (section-gpu-causal)=
# ## Masks that need not be built
#
# **Question.** What is a mask good for that says only "not the future"?
#
# A mask of $n \times n$ is itself $O(n^2)$ memory, and a kernel that reads it cannot know that half of it is
# false. The flag `is_causal=True` says the same without a tensor; a kernel may skip the blocks above the diagonal,
# about half of the work. **Check** that it says the same:

# %%
from annotated_transformer import causal_mask

by_mask = F.scaled_dot_product_attention(q, k, v, attn_mask=causal_mask(50))
assert_close(F.scaled_dot_product_attention(q, k, v, is_causal=True), by_mask)
assert_close(scaled_dot_product_attention(q, k, v, causal_mask(50)), by_mask)
blocks = [(i, j) for i in range(8) for j in range(8)]
print(f"of 8 x 8 blocks {sum(j <= i for i, j in blocks)} are computed, {sum(j > i for i, j in blocks)} skipped")

# %% [markdown]
# **Break it.** The flag's triangle begins at the *top left*. That is right where queries and keys are the same
# positions. In step-by-step decoding there is one query, the newest, and many keys; the flag then lets it see
# the *first* key only. No error.

# %%
newest = q[:, :, -1:]
right = F.scaled_dot_product_attention(newest, k, v)  # sees all: nothing is in its future
wrong = F.scaled_dot_product_attention(newest, k, v, is_causal=True)
assert_close(right, by_mask[:, :, -1:])
assert_close(wrong, v[:, :, :1])  # the value of the first key, and no other
print("with the flag, the 50th query returns the first value:", torch.equal(wrong, v[:, :, :1]))

# %% [markdown]
# Therefore `DecoderLayer.step` passes no flag: what the cache does not hold cannot be seen. (Hypotheses of one sentence
# share a cache, and a mask says which of its positions are whose.) And the target's padding needs no mask either, since
# it comes after every real position. **Where.** Test:
# `test_the_causal_flag_stands_for_the_causal_mask`.

# %% [markdown]
# (section-gpu-types)=
# ## Number types, and who has tensor cores
#
# **Question.** Why do the vendors' figures name a number type?
#
# Fewer bits are fewer bytes to move. And NVIDIA's GPUs since 2017 (Volta) have **tensor cores**, units that multiply
# small matrices of *short* numbers and add up in float32; a plain float32 product does not use them. A popular
# walkthrough writes "tensor-core hardware (TPUs)". These are two things. Tensor cores are parts of NVIDIA's GPUs.
# A **TPU** is a chip of another maker, Google, whose first generation is described by {cite:t}`jouppi2017datacenter`;
# it multiplies matrices too, on units of its own.
#
# | type | exponent | fraction | tensor cores | remark |
# |---|---|---|---|---|
# | float32 | 8 | 23 | none | exact enough for everything here |
# | TF32 | 8 | 10 | from Ampere (A100) | float32 in memory, rounded for the product only |
# | bf16 | 8 | 7 | from Ampere (A100) | float32's range {cite}`kalamkar2019study` |
# | fp16 | 5 | 10 | from Volta (V100, T4) | small range: needs loss scaling {cite}`micikevicius2018mixed` |
#
# [Chapter 5.2](5_2_training.ipynb) shows what range and precision do to training. Here is one product with sums of
# 512 terms, as $x W_1$ has them, its inputs rounded to each type, multiplied and added up in float64, so that only the
# rounding shows.

# %%
def rounded(x, fraction_bits):
    """x with so many bits of fraction (round to nearest)."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 2 ** (fraction_bits + 1)).round() / 2 ** (fraction_bits + 1), exponent)

a, b = torch.randn(64, 512, dtype=torch.float64), torch.randn(512, 64, dtype=torch.float64)
errors = {}
for name, bits in (("float32", 23), ("TF32, fp16", 10), ("bf16", 7)):
    error = rounded(a, bits) @ rounded(b, bits) - a @ b
    errors[name] = (error.norm() / (a @ b).norm()).item()
    print(f"{name:10} relative error of the product {errors[name]:.0e}")
assert_close(rounded(a, 7), a.bfloat16().double())
assert errors["bf16"] / errors["TF32, fp16"] > 6 and errors["bf16"] < 5e-3

# %% [markdown]
# The error of a product is about that of one number: the rounding errors of 512 terms partly cancel.
#
# In this package `precision` is `bf16`, `fp16` or `fp32`, and "auto", the default, takes the best that the GPU has in
# hardware: bf16 from Ampere on, fp16 with loss scaling on older ones. **On a T4, which has no bf16 units, that is
# fp16.** `bf16` is refused there: PyTorch would emulate it, and `torch.cuda.is_bf16_supported()` counts emulation
# unless you ask it not to (`including_emulation=False`). With fp32, call
# `torch.set_float32_matmul_precision("high")` first, and products may use TF32.
#
# That fp16 loses nothing can be tried without a GPU, since `autocast` and the scaler compute the same on a CPU, only
# slowly: `python benchmarks/half_precision.py` trains a tiny model for 300 steps in both types, lets it overflow, and
# kills and resumes it.
#
# Tensor cores like sizes that are multiples of 8 (in 16-bit types). The presets' are, and on a GPU `train` pads the
# lengths of its batches to multiples of 8; choose $V$ so as well:

# %%
for preset in (ModelConfig.tiny, ModelConfig.small, ModelConfig.base, ModelConfig.big):
    config = preset(vocab_size=37_000)
    sizes = (config.d_model, config.d_ff, config.d_k, config.vocab_size)
    assert all(size % 8 == 0 for size in sizes)
    print(f"{preset.__name__:6}", sizes)

# %% [markdown]
# **Where.** `training/precision.py`, `TrainingRun.step` (`autocast`, the scaler); tests:
# `test_half_precision_trains_float32_weights_to_nearly_the_same_place`,
# `test_a_step_that_overflows_changes_nothing_but_the_scale`.

# %% [markdown]
# (section-gpu-compile)=
# ## torch.compile
#
# **Question.** Every operation of PyTorch starts a kernel, a program on the GPU, which reads its inputs from memory and
# writes its result back. Must it?
#
# Take `x + dropout(y)`, then LayerNorm. As three kernels, in numbers moved for each of $nD$: dropout reads 1 and writes
# 1, the sum reads 2 and writes 1, the norm reads 1 and writes 1. In one kernel: read 2, write 1.
#
# $$
# \frac{\text{bytes of separate kernels}}{\text{bytes of one}} = \frac{(1 + 1) + (2 + 1) + (1 + 1)}{2 + 1} = \frac{7}{3}
# $$ (gpu-fusion)
#
# (Masks and statistics for the backward pass left out.) `torch.compile` writes such kernels: it records the operations
# of a Python function as a **graph**, fuses neighbours that work number by number, and compiles the result. The matrix
# products stay what they are. For memory-bound operations, time is bytes, so this is where it can win.
#
# **The price** is compilation, once for each graph, and a graph is recorded *for given shapes*. Batches of sentences
# have ever-changing shapes. Count the graphs, with a compiler that does nothing but count:

# %%
class Counting:
    """A backend for torch.compile that compiles nothing: runs the graph as it is, and counts."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, example_inputs):
        self.graphs += 1
        return graph.forward

# %%
def graphs_for(lengths, dynamic):
    torch.compiler.reset()
    counting = Counting()
    layer = torch.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.LayerNorm(8)),
                          backend=counting, dynamic=dynamic)
    for length in lengths:
        layer(torch.randn(2, length, 8))
    return counting.graphs

# %%
six = (11, 12, 13, 14, 15, 16)
fixed, dynamic = graphs_for(six, dynamic=False), graphs_for(six, dynamic=True)
print(f"six lengths: {fixed} graphs with fixed shapes, {dynamic} with symbols for them")
assert (fixed, dynamic) == (6, 1)

# %% [markdown]
# With `dynamic=True` the graph has symbols instead of numbers for the sizes, and one is enough. The package compiles
# so, the whole forward pass with its loss: `TrainConfig(compile=True)`, or `--set compile=true`. The alternative is
# a *bounded number of shapes*: round lengths up to multiples of 8 or 16, pay some padding, and compile each shape once.
# The package does round up to multiples of 8 on a GPU, for the sake of the kernels, and compiles with symbols.
# After a number of recompilations (8 by default) PyTorch gives up on a function and runs it uncompiled.
#
# Whether it pays depends on the GPU, and on whether the run is long enough to win back the time of compiling. We have
# not measured it.
#
# **Where.** `TrainingRun.__init__`. Exercise: {ref}`gpu-ex-fuse`.

# %% [markdown]
# (section-gpu-wait)=
# ## Do not wait in the step
#
# **Question.** Python is slow, a GPU fast. Why does Python not hold it up all the time?
#
# Because a call like `a @ b` does not compute. It puts a kernel launch into the GPU's queue and returns; the **host** (CPU and
# Python) runs ahead. Whoever asks for a *number*, by `loss.item()`, `print(loss)`, `if loss > 3`, has to wait until
# the queue is empty, and then the GPU has to wait, with an empty queue, for the next launches.
#
# **Equation.** For a step let the host need $p$ seconds to prepare (draw and pad a batch, write a log) and then $c$
# seconds to launch, one kernel after another, what the GPU does in $g$ seconds. Over $k$ steps
#
# $$
# \begin{aligned}
# \text{never asking:} \quad & k \max(p + c, g) \\
# \text{asking at each step:} \quad & k\,(p + \max(c, g))
# \end{aligned}
# $$ (gpu-queue)
#
# While the host prepares, a GPU with an empty queue has nothing to do. **Check** by playing it through, with 100 launches
# a step:

# %%
def timeline(p, c, g, n_steps, ask_every=0, n_launches=100):
    """(start, end) of the GPU's work on each step; the host waits after every `ask_every` steps."""
    host = device = 0.0
    work = []
    for step in range(1, n_steps + 1):
        host += p
        began = max(host + c / n_launches, device)
        for _ in range(n_launches):
            host += c / n_launches
            device = max(host, device) + g / n_launches
        work.append((began, device))
        if ask_every and step % ask_every == 0:
            host = max(host, device)
    return work

# %%
p, c, g, steps = 0.5, 0.3, 1.0, 50
for name, every, bound in (("never asking", 0, max(p + c, g)), ("asking", 1, p + max(c, g))):
    end = timeline(p, c, g, steps, every)[-1][1]
    print(f"{name:13} {end:5.1f}")
    assert math.isclose(end, steps * bound, rel_tol=0.02)
few = [timeline(p, c, g, 4, every) for every in (0, 1)]

# %% mystnb={"image": {"alt": "Two rows of bars along a time axis. In the upper row, never asking, the GPU's four steps follow each other without gaps. In the lower row, asking after each step, there is a gap before each step, and the fourth ends much later."}, "figure": {"caption": "A model, not a measurement: what the GPU does when a step takes the host 0.5 to prepare and 0.3 to order, and the GPU 1.", "name": "fig-gpu-queue"}}
figure, ax = plt.subplots(figsize=(5.5, 1.7), layout="constrained")
for row, (work, colour) in enumerate(zip(few, PALETTE)):
    ax.broken_barh([(began, end - began) for began, end in work], (row - 0.3, 0.6),
                   color=colour, edgecolor="white")
ax.set(yticks=(0, 1), xlabel="time (steps of the GPU)", xlim=(0, 6.5))
ax.set_yticklabels(["never asking", ".item() a step"])
ax.invert_yaxis()
plt.show()

# %% [markdown]
# **Check the package.** A dispatch mode sees each operation. `item()` arrives as `_local_scalar_dense`, and `nonzero`,
# whose result has a size that only the GPU knows, waits too. One step of training has neither; the log adds up on the
# device and asks once every `log_every` steps.

# %%
from torch.utils._python_dispatch import TorchDispatchMode

class Watch(TorchDispatchMode):
    """The names of all operations inside the `with` block."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names = getattr(self, "names", [])
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))

def waits(names):
    return [name for name in names if "_local_scalar_dense" in name or "nonzero" in name]

# %%
from annotated_transformer import TrainingRun, make_batch

tiny = ModelConfig.tiny(50, N=1, d_model=32, d_ff=64)
run = TrainingRun(tiny, TrainConfig(precision="fp32"), packing="off")  # "auto" is off on a GPU: see chapter 5.1
batch = make_batch([([5, 6, 7], [8, 9]), ([5, 6], [10, 11, 12])])
with Watch() as watch:
    loss, _, _ = run.step([batch])
assert not waits(watch.names)
print(len(watch.names), "operations in a step of one layer, of which wait:", len(waits(watch.names)))
with Watch() as watch:
    loss.item()
assert len(waits(watch.names)) == 1

# %% [markdown]
# (The step of a GPU, run on a CPU. Its loss has no `item` and no index by a boolean mask: padding is masked by
# `masked_fill`, never by `loss[real]`, whose size would have to be asked for. The tests
# `test_a_step_on_a_gpu_waits_for_no_value` and `test_a_step_on_a_gpu_mixes_no_devices_and_waits_for_the_log_alone` run
# it on tensors that have no values to ask for. Not even float16 asks: whether a gradient overflowed stays on the GPU,
# where the fused Adam reads it, and the log learns of it with the next line.)
#
# **The way in.** A batch has to get to the GPU. From ordinary memory the copy makes the host wait, since the system
# may move that memory. From **pinned** memory, which it may not move, the copy waits in the queue like any launch:

# %%
from annotated_transformer import Batch

show(Batch.to)
moved = batch.to("cpu")
assert all(torch.equal(a, b) for a, b in zip(batch[:3], moved[:3])) and moved.n_tokens == batch.n_tokens

# %% [markdown]
# `n_tokens` stays a Python number, counted before the copy, so that dividing by it asks nobody. **Where.**
# `TrainingRun.step`, `TrainingLog`; test: `test_moving_a_batch_moves_its_tensors`. Exercise:
# {ref}`gpu-ex-queue`.

# %% [markdown]
# (section-gpu-graphs)=
# ## A step in one call
#
# **Question.** In training the host runs ahead. Can it in decoding?
#
# No. Each step needs the token that the last one chose, and whether a sentence has ended; so it waits once a step, and
# then its launches are in the way: $p + \max(c, g)$ in equation {eq}`gpu-queue`. And $g$ is small, since few rows are
# few operations. Count the launches of one step: all operations but views, which only describe memory in another way.

# %%
from annotated_transformer.fast.decoder import FastDecoder

class KernelLaunches(TorchDispatchMode):
    """How many operations inside the `with` block compute something."""

    n = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = [result.alias_info for result in function._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in results)
        self.n += not is_view
        return function(*args, **(kwargs or {}))

# %%
narrow = Transformer(ModelConfig.base(50, d_model=32, d_ff=64, h=4)).eval()  # as many layers as base, so as many launches
n_launches = {}
for name, model in (("the model's own step", narrow), ("FastDecoder", FastDecoder(narrow))):
    state = model.start(torch.tensor([[5, 6, 7]]))
    with torch.no_grad(), KernelLaunches() as launches:
        model.step(torch.tensor([[1]]), state)
    n_launches[name] = launches.n
    print(f"{name:22}{launches.n:4} launches a step")
assert n_launches["FastDecoder"] < n_launches["the model's own step"]

# %% [markdown]
# Against that, $g$: a step with one row reads every weight of the decoder once and the embedding once more, as the
# projection. Let a launch take the host 5 microseconds, a guess of the right size for PyTorch:

# %%
with torch.device("meta"):
    decoder = Transformer(ModelConfig.base(37_000)).decoder
read = 4 * (sum(p.numel() for p in decoder.parameters()) + 37_000 * 512)
c, g = 5e-6 * n_launches["FastDecoder"], read / h100.bandwidth
print(f"launches {1e3 * c:.2f} ms, the weights' way through the memory {1e3 * g:.2f} ms")
assert c > 5 * g

# %% [markdown]
# So nearly all of the time the GPU would wait for launches. A **CUDA graph** is a list of launches that was recorded once,
# with all that belongs to each: which kernel, what sizes, what addresses. The host then starts the whole list with one
# call. What Python did in between, the recording does not know: a number that Python had is in the list as it was.
#
# PyTorch can record operations on a CPU, too, as a *trace*. That shows the trap. A cache with a place for each token,
# the place once as a number of Python's, once as a tensor:

# %%
from torch.fx.experimental.proxy_tensor import make_fx

def record(step):
    """What `step` does now, to do again: the operations on the same memory, without Python."""
    trace = make_fx(lambda _: step())(torch.zeros(1))
    return lambda: trace(torch.zeros(1))

# %%
def fill(kind):
    """Three steps, each of which is to write its number to a place of its own."""
    cache, value, place, slot = torch.zeros(4), torch.zeros(1), 0, torch.zeros(1, dtype=torch.long)
    steps = {"number": lambda: cache[place : place + 1].copy_(value),
             "tensor": lambda: cache.index_copy_(0, slot, value)}
    replay = record(steps[kind])
    for place in range(3):
        slot.fill_(place)
        value.fill_(place + 1.0)
        replay()
    return cache.tolist()

# %%
for kind in ("number", "tensor"):
    print(f"the place as a {kind}: {fill(kind)}")
assert fill("number") == [3, 0, 0, 0] and fill("tensor") == [1, 2, 3, 0]

# %% [markdown]
# The number was 0 when the step was recorded, and so each step writes to place 0. Sizes are such numbers too: how many
# tokens there are so far, how many sentences are left. A step that is to be recorded must have *one* shape and one
# place in memory. So `fast.cuda_graphs.GraphedModel` keeps the caches in buffers that never move; attention sees all of a buffer,
# and a mask hides what is not filled; token, place and mask are copied in before each call.
#
# To record a graph takes as long as several steps, so there must be few shapes. Sizes go up by factors of four, and a
# beam keeps the places of hypotheses that have ended: 300 sentences in batches of 1,024 tokens, beam 4, take 778 steps
# and make 7 graphs. With powers of two, and a graph for each width of the beam, they made 36.
#
# Our tests have no GPU either: they record with a `torch.cuda` that pretends, which notes operations and does them
# again, and search must find what it finds without graphs. What it brings is **not measured**:
# `benchmarks/decoding.py --device cuda` compares, and until it has, graphs are an option:
# `Translator.from_checkpoint(directory, device="cuda", graphs=True)`. What halves $g$ is a narrower type: on a GPU a
# `Translator` searches in float16, and `dtype="float32"` asks for the other.

# %%
from annotated_transformer import greedy_search
from annotated_transformer.fast.cuda_graphs import GraphedModel

sources = torch.tensor([[5, 6, 7, 8], [9, 10, 2, 0]])
with_buffers = greedy_search(GraphedModel(FastDecoder(narrow)), sources)
assert with_buffers == greedy_search(narrow, sources) and any(with_buffers)

# %% [markdown]
# **Where.** `fast.cuda_graphs.GraphedModel`; tests: `test_recorded_steps_are_the_models_own`,
# `test_search_finds_the_same_in_batches_one_after_the_other`.

# %% [markdown]
# (section-gpu-batches)=
# ## Batches and their shapes
#
# **Question.** How many sentences at once?
#
# As many as the memory holds, counted in *tokens*: products want many rows (equation {eq}`gpu-intensity`), and Adam's
# 28 bytes a parameter are paid once a step, whatever its size. But rows of padding are computed as well. [Chapter
# 5.1](5_1_data_and_batching.ipynb) groups sentences by length for that. Here is what it means for the arithmetic, on
# lengths drawn at random (log-normal, median 22), grouped or taken a hundred at a time as they come, and how many
# different shapes an epoch has, which is what a compiler sees.

# %%
import random

from annotated_transformer.text.batching import group_by_length

rng = random.Random(1)
lengths = [min(150, max(2, round(rng.lognormvariate(3.1, 0.55)))) for _ in range(10_000)]

def padded(groups):
    return sum(len(group) * max(lengths[i] for i in group) for group in groups)

# %%
grouped = group_by_length([(L, L) for L in lengths], 4096, random.Random(1))
at_random = [range(i, i + 100) for i in range(0, 10_000, 100)]
shapes = {(len(group), max(lengths[i] for i in group)) for group in grouped}
for name, groups in (("grouped", grouped), ("at random", at_random)):
    print(f"{name:10} padding {1 - sum(lengths) / padded(groups):5.1%}")
print(len(grouped), "batches of", len(shapes), "shapes")
assert padded(grouped) < 1.1 * sum(lengths) < 2 * sum(lengths) < padded(at_random)

# %% [markdown]
# Taken as they come, more than half of the arithmetic, and of the GPU's time, would go to padding. And grouped, nearly
# every batch has a shape of its own.
#
# The rest of the padding can go, too. Everything but attention works on single tokens, so that the real tokens of all
# sentences may stand in one column, **packed**. Attention then needs to know where each sentence starts, and some
# kernels for GPUs take just that (`torch.nn.attention.varlen`): no padding and no mask. The host counts before the
# copy, since only it can without waiting:

# %%
from annotated_transformer.fast.packing import Packing

batch = make_batch([([5, 6, 7], [8, 9]), ([5, 6], [10, 11, 12])])
packing = Packing(batch.target_in != 0)
print("rows:", batch.target_in.numel(), "padded,", len(packing.positions), "packed, starting at", packing.starts.tolist())
assert packing.starts.tolist() == [0, 3, 7] and packing.longest == 4

# %% [markdown]
# On a CPU training packs by default, and puts the rows back for attention alone. On a GPU it can (`gpu.py` measures
# both), and does not until it is known to win.
#
# **Where.** `token_batches`, `packing.packed_decode`; tests: `test_a_batch_holds_similar_lengths`,
# `test_a_kernel_for_different_lengths_gets_what_it_needs`.

# %% [markdown]
# (section-gpu-memory)=
# ## What has to fit
#
# **Question.** How much memory does training take?
#
# **Equation.** Float32 weights, gradients and Adam's two moments take $4 + 4 + 8 = 16$ bytes a parameter. The forward
# pass leaves behind what the backward pass needs, the **activations**, and they grow with the tokens of a batch:
#
# $$
# \text{bytes} \approx 16 \cdot N_{\text{weights}} + a \cdot N_{\text{tokens}}
# $$ (gpu-memory)
#
# **Count** $a$ by autograd's own list of saved tensors, which the first section took on the way: float32, all 25,000
# tokens a side.

# %%
print(f"base: 16 bytes x weights {16 * n_weights / 1e9:.1f} GB, activations {activations / 1e9:.1f} GB,"
      f" of which logits {4 * n * base.vocab_size / 1e9:.1f} GB")
big = ModelConfig.big(vocab_size=37_000)
_, of_100 = forward_on_meta(big, n_sentences=100, length=25)
per_token = {"base": activations / n, "big": of_100 / 2500}
print({name: f"{a / 1e6:.2f} MB a token" for name, a in per_token.items()})
assert 0.1 < 4 * n * base.vocab_size / activations < 0.4

# %% [markdown]
# The largest single tensor of base is the logits: 37,000 numbers for each token, of which one is the answer. The loss
# keeps them once. (Written with `log_softmax` and a smoothed target distribution it would keep several; on a CPU the
# package never holds them all, `linear_cross_entropy`.) And the backward pass makes their gradient, as large again, at
# the moment when all else is still there. So the plan:

# %%
from annotated_transformer.tables.cost import count_parameters

def plan(config, n_tokens, a):
    """Bytes: 16 a weight, activations, and the gradient of the logits."""
    return 16 * count_parameters(config) + n_tokens * (a + 4 * config.vocab_size)

assert count_parameters(base) == n_weights
print("max_tokens" + "".join(f"{name:>12}" for name in per_token))
for n_tokens in (25_000, 12_500, 6250, 3125):
    sizes = [plan(c, n_tokens, per_token[c_name]) for c, c_name in ((base, "base"), (big, "big"))]
    print(f"{n_tokens:10,}" + "".join(f"{size / 1e9:9.1f} GB" for size in sizes))
assert 16e9 < plan(base, 25_000, per_token["base"]) < 40e9

# %% [markdown]
# It is a plan and not a promise: on top come what CUDA needs for itself, work space of kernels, and gaps between
# blocks of the allocator. bf16 halves many of the activations. `torch.cuda.max_memory_allocated()` tells the truth
# afterwards.
#
# **If it does not fit, accumulate.** Four batches of 6,250 tokens and one step are the same step as one batch of 25,000
# ([chapter 5.2](5_2_training.ipynb) proves it): `max_tokens=6250, accumulate=4`. The gradients are a sum, and need no
# more memory for more batches. **Where.** Test: `test_two_half_batches_equal_one_whole_batch`. Exercise:
# {ref}`gpu-ex-fit`.

# %% [markdown]
# (section-gpu-run)=
# ## How to run it
#
# **On Colab.** The rocket at the top of each chapter opens it there; this chapter and
# [chapter 6.1](6_1_translation.ipynb) ask for a T4. If Colab gave you none: *Runtime, Change runtime type*. The first
# cell of each chapter fetches the book and keeps Colab's own PyTorch, which is built for the GPU.
#
# **On a GPU of your own.** Install the package and a PyTorch with CUDA (on Linux the plain `pip install torch` is one).
# The commands `train`, `translate` and `evaluate` take `--device`; "auto", the default, means a GPU where there is one,
# and `--device cuda` is an error where there is none, never a silent run on the CPU.
#
# The commands below are checked by the command line's own parser, so that no option is misspelt. They are not run here.

# %%
import shlex

from annotated_transformer.cli import parser

commands = {
    "a small corpus": "train --corpus multi30k-en-de --preset small --vocab-size 6000 --device cuda"
    " --out runs/small --set max_tokens=4096 --set warmup_steps=1500 --set train_steps=9000",
    "a T4: no bf16, 16 GB": "train --corpus multi30k-en-de --preset base --device cuda --out runs/t4"
    " --set precision=fp32 --set max_tokens=6250 --set accumulate=4",
    "the paper's base": "train --corpus wmt14-en-de --preset base --vocab-size 37000 --device cuda --out runs/base"
    " --set train_steps=100000 --set compile=true",
    "and use it": "translate runs/base --device cuda"}

# %%
for what, command in commands.items():
    assert parser().parse_args(shlex.split(command)).device == "cuda"
    lines = f"annotated-transformer {command}".replace(" --set", " \\\n    --set")
    print(f"# {what}\n{lines}")

# %% [markdown]
# What follows `--set` the parser takes as it is; `ModelConfig` and `TrainConfig` read it, and refuse a name or a value
# that cannot be. The T4's settings in Python:

# %%
on_a_t4 = TrainConfig(precision="fp32", max_tokens=6250, accumulate=4)
assert on_a_t4.max_tokens * on_a_t4.accumulate == TrainConfig().max_tokens == 25_000
assert plan(base, on_a_t4.max_tokens, per_token["base"]) < GPUS["T4"].memory
print(f"base on a T4, planned: {plan(base, 6250, per_token['base']) / 1e9:.1f} GB of 16")

# %% [markdown]
# Look first at three things in `log.jsonl` or on the progress bar: is the loss finite and falling; does `tokens_per_s`
# stay the same; and how far is it from what equation {eq}`gpu-compute-floor` allows? The paper's run was a factor of
# three away. Far more than that says that something waits. On a GPU these lines time a piece of code; they do nothing
# without one. Without `synchronize` you would time the launches, not the work.

# %% tags=["nbval-ignore-output"]
if torch.cuda.is_available():
    x = torch.randn(4096, 4096, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    x @ x  # the first call also sets things up
    start.record()
    x @ x
    end.record()
    torch.cuda.synchronize()
    print(f"{2 * 4096**3 / (start.elapsed_time(end) * 1e-3) / 1e12:.1f} TFLOP/s, float32")
assert 2 * 4096**3 == 137_438_953_472

# %% [markdown]
# (section-gpu-measured)=
# ## What has been measured
#
# `python benchmarks/gpu.py` measures, on a GPU: training steps of base (fp32, TF32 and bf16, compiled and not, padded
# and packed) and big, with the rate of a plain matrix product beside; the graphs that a compiled step makes for many
# shapes, and how often it waits; an epoch in which every shape is new, and the same again; each attention kernel, forward and backward, at several lengths; grouped and random batches, and the price of
# `.item()`. Medians over repetitions, all variants in turns. It writes `book/results/gpu.json` and refuses to do so from
# a CPU. The cell shows that file if there is one.

# %% tags=["nbval-ignore-output"]
file = Path("results/gpu.json")
result = json.loads(file.read_text()) if file.exists() else {"hardware": "", "records": []}
for measure in dict.fromkeys(record["measure"] for record in result["records"]):
    rows = [r for r in result["records"] if r["measure"] == measure and r.get("available", True)]
    columns = [key for key in rows[0] if key not in ("measure", "available") and "seconds_" not in key]
    print(f"\n{measure}\n" + "".join(f"{key[:18]:>20}" for key in columns))
    for row in rows:
        values = (row[key] for key in columns)
        print("".join(f"{x:20.3g}" if isinstance(x, float) else f"{x!s:>20}" for x in values))
if not result["records"]:
    print("There is no results/gpu.json: nothing in this book has been measured on a GPU yet.")
assert "CPU" not in result["hardware"] and file.exists() == bool(result["records"])

# %% tags=["nbval-ignore-output"]
for key in ("command", "commit", "date", "hardware", "versions"):
    if result.get(key):
        print(key, result[key])
for r in result["records"]:
    if "why" in r:
        print(r["measure"], r["length"], r["kernel"], r["why"])
rates = [r["tokens_per_s"] for r in result["records"] if "tokens_per_s" in r]
assert all(rate > 0 for rate in rates)

# %% [markdown]
# (section-gpu-cpu)=
# ## What has been measured on a CPU
#
# **Question.** Is the package fast, where it can be measured today?
#
# "Fast" needs two yardsticks. One is the others: the same model, the same batches, in turns within one run, as a ratio.
# The other is the machine: the operations that the real tokens need (padding counts for none), over the rate of one
# plain product of two large matrices. Nobody can be faster than that rate, so a share of 0.7 leaves at most a factor
# of 1.4 to anyone, ourselves included.
#
# **Training.** Sentences of realistic lengths as random ids, and those of the default corpus; batches of 2,048 padded
# tokens a side; base with a vocabulary of 8,000, and tiny ($N = 3$, $d_{\text{model}} = 128$). The peers' models have
# our weights where their function is ours, and then the same logits.

# %%
def result_of(name):
    found = json.loads(Path(f"results/{name}.json").read_text())
    print(f"{found['command']}\n{found['hardware']}, torch {found['versions']['torch']}, {found['date']}\n")
    return found["records"]

training = result_of("training_cpu")
steps = [r for r in training if r["measure"] == "training step"]
print(f"{'model':6}{'data':15}{'implementation':24}{'tokens/s':>9}{'share':>7}{'products':>10}{'ours is':>9}")
for r in steps:
    print(f"{r['model']:6}{r['data']:15}{r['implementation']:24}{r['target_tokens_per_s']:9,.0f}"
          f"{r['share_of_product']:7.2f}{r['share_in_products']:10.0%}{r['ours_is_faster']:8.2f}x")
    assert r["logits_differ_by"] is None or r["logits_differ_by"] < 1e-3
    assert r["model"] == "tiny" or r["share_in_products"] > 0.8
ours = "annotated_transformer"
assert all(r["ours_is_faster"] > (1.05 if r["model"] == "tiny" else 0.95) for r in steps if r["implementation"] != ours)

# %% [markdown]
# What makes the difference is what this chapter is about, with other numbers: less memory traffic. The loss goes in
# blocks that fit the cache, and its gradient is made on the way (`linear_cross_entropy`); dropout draws 16 bits an entry
# (`model/dropout.py`); positions of padding are left out (`fast/packing.py`, [chapter 5.1](5_1_data_and_batching.ipynb)). At base
# "products", the share of its time that an implementation spends in matrix products (those inside fused attention not
# counted), is over four fifths for all of them: the best peer is near the machine's rate as well, and little is left
# to win.
#
# That was a CPU with vectors of 256 bits (AVX2). One with 512 bits makes twice the products in a second, and the rest of
# a step does not gain as much. So the shares are smaller there, and at tiny size, where the rest is most, our lead is
# larger:

# %%
other = [r for r in result_of("training_cpu_intel") if r["measure"] == "training step"]
print("CPU of 256 and of 512 bits: GFLOP/s, our share, ours over the fastest peer")
for run in dict.fromkeys((r["model"], r["data"]) for r in steps):
    here, there = ([r for r in found if (r["model"], r["data"]) == run] for found in (steps, other))
    rates, shares = ([group[0][key] for group in (here, there)] for key in ("product_gflops", "share_of_product"))
    leads = [min(r["ours_is_faster"] for r in group[1:]) for group in (here, there)]
    print(f"{run[0]:6}{run[1]:15}{rates[0]:6.0f}{rates[1]:6.0f}  {shares[0]:6.2f}{shares[1]:6.2f}"
          f"  {leads[0]:6.2f}x{leads[1]:6.2f}x")
    assert rates[1] > 1.5 * rates[0] and shares[1] < shares[0] and min(leads) > 0.95
    assert run[0] == "base" or leads[1] > leads[0]

# %% [markdown]
# The same loss saves memory. A step of base on 4,096 tokens a side with the paper's 37,000 tokens of vocabulary holds, at
# its highest:

# %%
for r in training:
    if r["measure"] == "peak memory":
        print(f"{r['implementation']:24}{r['peak_megabytes']:7,.0f} MB   ours is {r['ours_over_it']:.2f} of it")
assert all(r["ours_over_it"] < 1 for r in training if r["measure"] == "peak memory" and r["implementation"] != ours)

# %% [markdown]
# **Decoding.** A step with few hypotheses reads all weights to use each of them a few times: it is memory-bound, on a CPU
# as on a GPU. Weights that lie in the order in which they are read help (`fast.linear.store_column_major`). Where float16 holds the
# numbers of a matrix exactly, as it does those of a checkpoint of that type, steps of few rows read a copy of it in 16
# bits: half the bytes, and the same products, summed in float32 (the lines "no copy" do without). Weights of 8 bits are
# four times as few bytes, but other numbers (`fast.int8.quantize`, `translate --int8`). What is left of a small model's
# step is the calls between its products, so that `fast.decoder.FastDecoder` has few of them. Where many sentences take
# a step together, two batched products are faster than the fused kernel, which is made for long ones. The hypotheses of
# a sentence share the keys and values of what they have in common, so that none are copied when they branch: they are a
# tree, which [chapter 6.1](6_1_translation.ipynb) shows.
#
# CTranslate2 is a program in C++ for this one purpose; `torch.nn.Transformer` and JoeyNMT keep no keys and values, and
# read the whole prefix again at each step. Base writes exactly 24 tokens for each source of 24; `book/model` translates
# and stops where it likes, with no length penalty. Ours is in float32, int8 is ours in 8 bits; the last two columns say
# how many times as fast as each line they are.

# %%
records = result_of("decoding_cpu")
decoding = [r for r in records if r["measure"] == "decoding"]
print(f"{'model':10}{'beam':>5}{'batch':>6}  {'implementation':22}{'tokens/s':>9}{'ours':>8}{'int8':>8}")
for r in decoding:
    name = r["implementation"].replace("annotated_transformer int8", "int8").replace(ours, "ours")
    print(f"{r['model']:10}{r['beam_size']:5}{r['batch_size']:6}  {name:22}{r['tokens_per_s']:9,.0f}"
          f"{r['ours_is_faster']:7.2f}x{r['our_int8_is_faster']:7.2f}x")
in_float32 = [r for r in decoding if "int8" not in r["implementation"]]
assert all(r["same_outputs"] >= 0.95 for r in in_float32 if r["implementation"].startswith("CTranslate2"))
assert all(r["ours_is_faster"] > 1 for r in in_float32
           if r["implementation"].startswith(("Hugging Face", "torch.nn", "JoeyNMT")))
in_float32, in_int8 = (r["bleu"] for r in records if r["measure"] == "BLEU")
print(f"book/model on the test split: BLEU {in_float32:.2f}, in 8 bits {in_int8:.2f}")
assert abs(in_float32 - in_int8) < 0.5

# %% [markdown]
# **Growth.** A program that is fast on a thousand sentences may be slow on a million. The time a token in training, and
# the memory of a translation that streams:

# %%
growth = result_of("growth")
for r in growth:
    if r["measure"] == "training":
        print(f"{r['pairs']:9,} pairs: {r['us_a_token']:6.1f} microseconds a token, "
              f"{r['over_smallest']:.2f} of what the fewest pairs take")
        assert 0.85 < r["over_smallest"] < 1.15
    else:
        print(f"{r['lines']:9,} lines: {r['peak_megabytes']:6.1f} MB at the highest, {r['megabytes_before']:.1f} before")
        assert r["peak_megabytes"] < 1.05 * r["megabytes_before"]

# %% [markdown]
# **Where.** `benchmarks/` (its README has the table of what was tried, with what was expected and what came out);
# `annotated_transformer/fast/` (`packing.py`, `blockwise_loss.py`, `decoder.py`, `int8.py`), `model/dropout.py`; tests:
# `test_a_packed_batch_has_the_loss_and_the_gradients_of_a_padded_one`, `test_the_fast_path_is_as_exact_as_the_plain_one`,
# `test_the_8_bit_product_is_the_product_of_the_rounded_factors`.

# %% [markdown]
# ## Exercises
#
# ```{exercise} When is decoding compute-bound?
# :label: gpu-ex-decode
#
# A translator decodes $W \cdot B$ hypotheses at once, one token each. At which number of hypotheses would $W_1$ of
# the *big* model be compute-bound on an A100, by equation {eq}`gpu-intensity`? Is there such a number for $W_Q$ of
# the *base* model on an H100?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Solve $1/n = 1/I - 1/D - 1/E$ for $I$ at the ridge.
# ```
#
# ```{solution} gpu-ex-decode
# :class: dropdown
#
# The ridge is at 153. For $D = 1024$, $E = 4096$: $n \ge 189$. For base's $W_Q$ on an H100 there is none:
# $1/295 - 2/512$ is negative. It stays memory-bound with infinitely many tokens.
# ```

# %% tags=["hide-cell"]
def tokens_needed(gpu, D, E):
    rest = gpu.bandwidth / gpu.rate - 1 / D - 1 / E
    return math.ceil(1 / rest) if rest > 0 else math.inf

needed = tokens_needed(GPUS["A100 80GB"], 1024, 4096)
assert needed == 189
assert product_intensity(needed, 1024, 4096) > 312 / 2.039 > product_intensity(needed - 1, 1024, 4096)
assert tokens_needed(h100, 512, 512) == math.inf

# %% [markdown]
# ```{exercise} How small may a step be?
# :label: gpu-ex-adam
#
# Adam moves 28 bytes a parameter; the products of a step take 6 operations for each parameter and token. At how many
# tokens a step (on each side) do the two take equally long on an H100, each at its bound? On a P100? What does it say
# about training with tiny batches?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $28 N / B = 6 N n / R$. The number of parameters cancels.
# ```
#
# ```{solution} gpu-ex-adam
# :class: dropdown
#
# $n = 28 R / (6 B)$: 1,378 tokens on an H100, 61 on a P100. With fewer tokens, the optimizer takes
# longer than the products. Faster arithmetic wants larger batches.
# ```

# %% tags=["hide-cell"]
equal = {name: 28 * gpu.rate / (6 * gpu.bandwidth) for name, gpu in GPUS.items()}
assert round(equal["H100 SXM"]) == 1378 and round(equal["P100"]) == 61
n_equal = equal["H100 SXM"]
assert math.isclose(28 * n_weights / h100.bandwidth, 6 * n_weights * n_equal / h100.rate)

# %% [markdown]
# ```{exercise} The size of the scores
# :label: gpu-ex-scores
#
# Eight heads, one sequence of 4,096 tokens, bf16. How many bytes are the weights of one layer? Of the base model's
# encoder? And what do flash's numbers take instead, one float32 a query and head?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $h \cdot n \cdot n$ numbers of 2 bytes; 6 layers.
# ```
#
# ```{solution} gpu-ex-scores
# :class: dropdown
#
# 268 MB a layer, 1.6 GB for six. Flash: $8 \cdot 4096 \cdot 4$ bytes, 131 kB a layer.
# ```

# %% tags=["hide-cell"]
layer = 8 * 4096**2 * 2
assert round(layer / 1e6) == 268 and round(6 * layer / 1e9, 1) == 1.6
assert round(8 * 4096 * 4 / 1e3) == 131

# %% [markdown]
# ```{exercise} Merge two halves
# :label: gpu-ex-merge
#
# Two machines each attend to half of the keys and return $(m, z, o)$ of equation {eq}`gpu-online`. Write
# `merge(a, b)`, which gives the triple of all keys. Does the order matter?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Bring both to the larger $m$.
# ```
#
# ```{solution} gpu-ex-merge
# :class: dropdown
#
# With $m' = \max(m_a, m_b)$, scale each $z$ and $o$ by $e^{m - m'}$ and add. Addition commutes, so the order does not
# matter (but for rounding), and any tree of merges will do: this is how very long sequences are spread over several
# GPUs.
# ```

# %% tags=["hide-cell"]
def partial(q, k, v):
    s = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    m = s.amax(dim=-1, keepdim=True)
    p = (s - m).exp()
    return m, p.sum(dim=-1, keepdim=True), p @ v

def merge(a, b):
    m = torch.maximum(a[0], b[0])
    left, right = (a[0] - m).exp(), (b[0] - m).exp()
    return m, left * a[1] + right * b[1], left * a[2] + right * b[2]

halves = [partial(q, k[:, :, half], v[:, :, half]) for half in (slice(0, 20), slice(20, 50))]
for pair in (halves, halves[::-1]):
    _, z, o = merge(*pair)
    assert_close(o / z, scaled_dot_product_attention(q, k, v))

# %% [markdown]
# ```{exercise} Fuse the feed-forward network
# :label: gpu-ex-fuse
#
# Between $W_1$ and $W_2$ stand a bias and a ReLU. In bytes a number: what do they move as two kernels, and as one? Some
# libraries attach them to the end of the product $x W_1$ itself. What do they move then?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Each separate kernel reads and writes every number once, at 2 bytes. At the product's end the number is on the chip
# already.
# ```
#
# ```{solution} gpu-ex-fuse
# :class: dropdown
#
# Two kernels: 8 bytes a number. One: 4. At the end of the product: 0, since the product has to write its result anyway.
# For base and 25,000 tokens a kernel of 4 bytes is 205 MB a layer.
# ```

# %% tags=["hide-cell"]
numbers = n * base.d_ff
separate, fused = 2 * (2 + 2) * numbers, (2 + 2) * numbers
assert separate == 2 * fused and round(fused / 1e6) == 205
assert fused == works["ReLU"].bytes

# %% [markdown]
# ```{exercise} Ask less often
# :label: gpu-ex-queue
#
# With $p = 0.5$, $c = 0.3$, $g = 1$: how long do 50 steps take if you ask at every step, at every tenth, never? And
# with $g = 0.2$, a small model on a fast GPU? Predict, then call `timeline`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# After an answer the queue is empty, and stays so for $p$ seconds. How often does that happen?
# ```
#
# ```{solution} gpu-ex-queue
# :class: dropdown
#
# About 75, 52.5 and 50.5. With $g = 0.2$ it is 40 in all three cases: the GPU waits for the host anyway, and asking
# costs next to nothing. What helps then is larger batches, or fewer, larger kernels (`torch.compile`).
# ```

# %% tags=["hide-cell"]
times = [timeline(0.5, 0.3, 1.0, 50, every)[-1][1] for every in (1, 10, 0)]
print([f"{seconds:.1f}" for seconds in times])
assert all(abs(seconds - guess) < 0.2 for seconds, guess in zip(times, (75, 52.5, 50.5)))
small = [timeline(0.5, 0.3, 0.2, 50, every)[-1][1] for every in (1, 10, 0)]
assert all(abs(seconds - 40) < 0.2 for seconds in small)

# %% [markdown]
# ```{exercise} Make it fit
# :label: gpu-ex-fit
#
# Choose `max_tokens` and `accumulate` for the *big* model on a GPU of 16 GB, with a fifth of the memory left over for
# what the plan does not count, so that a step still has at least 25,000 tokens.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Solve equation {eq}`gpu-memory` for the tokens. The 16 bytes a weight come off first.
# ```
#
# ```{solution} gpu-ex-fit
# :class: dropdown
#
# The weights, their gradients and Adam's moments take 3.4 GB. The folded cell tries `accumulate` = 1, 2, 3, ... and
# stops at the first that fits: 4, with `max_tokens=6250`. The run takes the same arithmetic as before, in more, smaller
# pieces.
# ```

# %% tags=["hide-cell"]
accumulate = 1
while plan(big, math.ceil(25_000 / accumulate), per_token["big"]) > 0.8 * 16e9:
    accumulate += 1
settings = TrainConfig(max_tokens=math.ceil(25_000 / accumulate), accumulate=accumulate)
print(f"max_tokens={settings.max_tokens}, accumulate={accumulate}")
assert round(16 * count_parameters(big) / 1e9, 1) == 3.4
assert settings.max_tokens * accumulate >= 25_000 and accumulate > 1

# %% [markdown]
# ```{exercise} Days
# :label: gpu-ex-days
#
# At 30 percent of the vendor's rate, how long do the paper's 100,000 steps of base take on one T4, A100, H100? (The
# utilisation is an assumption; measure yours.) And at which utilisation does one H100 need the paper's twelve hours?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `step_operations` times 100,000, divided by 0.3 times the rate.
# ```
#
# ```{solution} gpu-ex-days
# :class: dropdown
#
# 13.6 hours on a T4 (in fp16, as the package trains there), 2.8 on an A100, 0.9 on an H100.
# One H100 needs 2.2 percent of its rate for what eight P100 did.
# ```

# %% tags=["hide-cell"]
hours = {name: step_operations * 1e5 / (0.3 * gpu.rate) / 3600 for name, gpu in GPUS.items()}
print({name: round(h, 1) for name, h in hours.items()})
assert [round(hours[name], 1) for name in ("T4", "A100 80GB", "H100 SXM")] == [13.6, 2.8, 0.9]
assert f"{step_operations * 1e5 / (12 * 3600 * h100.rate):.1%}" == "2.2%"

# %% [markdown]
# ## What to remember
#
# - Two floors: operations over rate, bytes over bandwidth. The larger holds (equation {eq}`gpu-roofline`).
# - Wide matrix products are compute-bound; softmax, LayerNorm, ReLU, the loss and Adam are memory-bound, and take time
#   out of proportion to their arithmetic.
# - Fused attention gives the same numbers as equation 1 and keeps $O(n)$ instead of $O(n^2)$ (equation
#   {eq}`gpu-online`).
# - `is_causal` saves the mask and half of the work; with a cache it means something else.
# - bf16 on a GPU that has it, float32 on a T4. Tensor cores are NVIDIA's, TPUs are Google's.
# - Do not ask the GPU for numbers inside the step.
# - 16 bytes a parameter, and activations by the token: what does not fit is accumulated.
# - Nothing here was timed on a GPU. The script for it is there.
