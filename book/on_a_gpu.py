# %% [markdown]
# # On a GPU
#
# *The paper's models were trained on "one machine with 8 NVIDIA P100 GPUs" (section 5.2 of
# {cite:t}`vaswani2017attention`). How our model runs on one GPU and on eight, and how to run this book on one.*
#
# In this chapter we make a training step fast on one GPU, and then on eight. We count operations and bytes, and check
# that every fast way computes what the plain one does. Only {ref}`one section <section-gpu-measured>` has times that we
# measured on a GPU: what a maker says is cited as the *vendor's figure*, and all cells run without one.

# %% tags=["remove-cell"]
import json
import math
import random
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from IPython.display import Markdown, display
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# %% tags=["remove-cell"]
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer import (
    ModelConfig, TrainConfig, TrainingRun, Transformer, causal_mask, label_smoothed_cross_entropy, make_batch,
    scaled_dot_product_attention)
from annotated_transformer.command_line.entry_point import parser
from annotated_transformer.fast.packing import Packing
from lab.display import use_style
from lab.pictures import gpu as gpu_pictures
from annotated_transformer.config import count_parameters
from annotated_transformer.data.batching import group_by_length

use_style()

# %% [markdown]
# (section-gpu-wait)=
# ## One step on a device
#
# A model runs where its weights are, so we move weights and batches to one **device**. `TrainingRun` and the command
# line's `--device` do both; the default, "auto", means a GPU where there is one.

# %% tags=["nbval-ignore-output"]
device = "cuda" if torch.cuda.is_available() else "cpu"
tiny = ModelConfig.tiny(50, N=1, d_model=32, d_ff=64, p_drop=0.0)
run = TrainingRun(tiny, TrainConfig(precision="fp32"), device=device,
                  packing="off")
batch = make_batch([([5, 6, 7], [8, 9]), ([5, 6], [10, 11, 12])])
loss, nll, n_tokens = run.step([batch])
print(f"a step on {device}: {loss.item() / n_tokens:.3f} nats per token")
assert loss.isfinite()

# %% [markdown]
# On a GPU a line like `a @ b` only *launches* a kernel, a program of the GPU: it puts the kernel into a queue and
# returns. The **host**, the CPU with Python, runs ahead and fills the queue. As soon as we ask for a number
# (`loss.item()`, `print(loss)`, `if loss > 3`), the host must **synchronize**: it waits until the queue is empty, and
# the GPU then waits for the next launch.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two time lines, each with a row for the host and a row for the GPU. Above, the host launches steps 1 to 4 one right after the other, and the GPU computes them without a gap. Below, with a call of item after each step, the host waits for the GPU, the GPU waits for the next launch, and only three steps fit."}, "figure": {"caption": "A drawing of the queue. Above the host never asks for a number; below it calls `.item()` after every step, and the GPU has gaps.", "name": "fig-gpu-queue"}}
gpu_pictures.gpu_queue()

# %% [markdown]
# So the package's training step never reads a value back: the log adds up losses on the device and fetches them every
# `log_every` steps. A batch travels from **pinned** memory, which the system may not move, so even the copy is only a
# launch. We watch every operation of a step, and find no `.item()` and no `nonzero`:

# %%
class Watch(TorchDispatchMode):
    """The names of all operations inside the `with` block."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names = [*getattr(self, "names", []), function.name()]
        return function(*args, **(kwargs or {}))

def waits(names):
    return [name for name in names
            if "_local_scalar_dense" in name or "nonzero" in name]

with Watch() as watch:
    loss, _, _ = run.step([batch])
print(f"operations that make the host wait: {len(waits(watch.names))}")
assert len(watch.names) > 100 and not waits(watch.names)

# %% [markdown]
# (section-gpu-roofline)=
# ## What limits a step: arithmetic or memory
#
# A GPU has a rate $R$ of operations per second and a bandwidth $B$, its memory's bytes per second. An operation with
# $I$ operations per byte, its **arithmetic intensity**, runs at most at
#
# $$
# \text{operations per second} \;\le\; \min(R, \; I \cdot B)
# $$ (gpu-roofline)
#
# Over $I$ this is a slope that ends in a flat roof, the **roofline** {cite}`williams2009roofline`. Left of the ridge at
# $I = R / B$ an operation is **memory-bound**, right of it **compute-bound**. Here are vendors' figures for dense
# matrix products {cite}`nvidia2016p100,nvidia2019t4,nvidia2021a100,nvidia2023h100,nvidia2024h200,nvidia2024b200`; the
# P100's rate is that of the paper's footnote 5.

# %%
class GPU(NamedTuple):
    rate: float  # operations per second
    type: str
    bandwidth: float  # bytes per second
    memory: float  # bytes
GPUS = {"P100": GPU(9.5e12, "fp32", 0.732e12, 16e9),
        "T4": GPU(65e12, "fp16", 0.320e12, 16e9),
        "A100 80GB": GPU(312e12, "bf16", 2.039e12, 80e9),
        "H100 SXM": GPU(989e12, "bf16", 3.35e12, 80e9),
        "H200 SXM": GPU(989e12, "bf16", 4.8e12, 141e9),
        "B200": GPU(2250e12, "bf16", 8e12, 180e9)}
for name, gpu in GPUS.items():
    print(f"{name:9}  {gpu.rate / 1e12:5.1f} TFLOP/s {gpu.type}  "
          f"{gpu.bandwidth / 1e12:.2f} TB/s  "
          f"ridge at {gpu.rate / gpu.bandwidth:3.0f} operations per byte")

# %% [markdown]
# Where do our operations lie? If $n$ rows of width $D$ meet a matrix of $D \times E$, we have $2nDE$ operations, and
# $nD + DE + nE$ numbers move, of two bytes each:
#
# $$
# I = \frac{1}{1/D + 1/E + 1/n}
# $$ (gpu-intensity)
#
# One token alone, $n = 1$, has $I < 1$: decoding a single sentence is memory-bound on every GPU, so we translate many
# at once. A ReLU or a LayerNorm does a few operations per number moved and is memory-bound for every $n$.

# %%
base, n, h100 = ModelConfig.base(vocab_size=37_000), 25_000, GPUS["H100 SXM"]
def product(n, D, E):
    """Operations and bytes of a matrix product in 16 bits."""
    return 2 * n * D * E, 2 * (n * D + D * E + n * E)
D, F_, V, L = base.d_model, base.d_ff, base.vocab_size, 25
n_weights, weights = count_parameters(base), n * L * base.h  # of attention
WORKS = {"$W_Q$": product(n, D, D), "$W_1$": product(n, D, F_),
         "$W_2$": product(n, F_, D), "logits": product(n, D, V),
         "$QK^T$": (2 * n * L * D, 2 * (2 * n * D + weights)),
         "softmax": (5 * weights, 4 * weights), "ReLU": (n * F_, 4 * n * F_),
         "fused attention": (4 * n * L * D + 5 * weights, 8 * n * D),
         "add + LayerNorm": (9 * n * D, 6 * n * D),
         "loss": (4 * n * V,) * 2, "Adam": (15 * n_weights, 28 * n_weights)}
operations, moved = WORKS["$W_1$"]
print(f"a product with $W_1$: {operations:.2e} operations, {moved:.2e} bytes")

# %%
intensity = {name: operations / moved
             for name, (operations, moved) in WORKS.items()}
text = ", ".join(f"{name} {value:.1f}" for name, value in intensity.items())
print(textwrap.fill(f"operations per byte: {text}", 90))

# %% tags=["remove-cell"]
with torch.device("meta"), FlopCounterMode(display=False) as counter:
    torch.zeros(n, D) @ torch.zeros(D, F_)
assert counter.get_total_flops() == WORKS["$W_1$"][0]
assert math.isclose(intensity["$W_1$"], 1 / (1 / D + 1 / F_ + 1 / n))
ridge = h100.rate / h100.bandwidth
assert round(ridge) == 295 and {name for name in WORKS if intensity[name] > ridge} == {"$W_1$", "$W_2$", "logits"}
assert 1 / (1 / 512 + 1 / 512 + 1) < 1 and 245 < intensity["$W_Q$"] < 256

# %% tags=["hide-input"] mystnb={"image": {"alt": "Roofline on logarithmic axes for H100, A100 and T4, each a rising line that turns flat. Seven labelled points lie on the H100's line. ReLU, Adam, softmax, add and LayerNorm, and fused attention lie on the slope; W_Q lies just left of the ridge at 295 operations per byte; the logits lie right of it, on the roof."}, "figure": {"caption": "Rooflines from vendors' figures, and operations of the base model on the H100's (25,000 tokens in sentences of 25, 16-bit numbers). The points are upper bounds.", "name": "fig-gpu-roofline"}}
gpu_pictures.gpu_roofline(GPUS, h100, intensity)

# %% [markdown]
# Only the wide products are compute-bound. How much time can the small operations take, those without a weight matrix?
# We add up the bounds of one encoder layer's forward pass, with attention in separate kernels.

# %%
counts = {"$W_Q$": 4, "$W_1$": 1, "$W_2$": 1, "$QK^T$": 2, "softmax": 1,
          "ReLU": 1, "add + LayerNorm": 2}
small = [name for name in counts if "W" not in name]
for gpu in ("P100", "A100 80GB", "H100 SXM"):
    rate, bandwidth = GPUS[gpu].rate, GPUS[gpu].bandwidth
    operations = {name: k * WORKS[name][0] for name, k in counts.items()}
    time = {name: k * max(WORKS[name][0] / rate, WORKS[name][1] / bandwidth)
            for name, k in counts.items()}
    shares = [sum(map(part.get, small)) / sum(part.values())
              for part in (operations, time)]
    print(f"{gpu:9}  small operations: {shares[0]:.1%} of the arithmetic, "
          f"{shares[1]:.0%} of the time")
    assert shares[0] < 0.02 < shares[1]

# %% [markdown]
# At these limits an H100 spends 47 percent of the time on 1 percent of the arithmetic. To lower that share, we shorten
# the numbers and **fuse** several operations into one kernel. (At about six operations per weight and token, as in
# [chapter 6.1](6_1_results.ipynb), a whole step takes at least 0.125 s on the paper's machine, 31 percent of its 0.4
# s.)

# What the forward pass keeps for the backward pass can be counted too, on the device `meta`, where tensors have shapes and
# no numbers: autograd tells a hook of every tensor that it saves.

# %%
def forward_on_meta(config, n_sentences, length):
    """(loss, bytes kept for the backward pass without weights), by shapes."""
    kept = {}
    def keep(x):
        kept[x.untyped_storage()._cdata] = x.untyped_storage()
        return x
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x)
    with torch.device("meta"), hooks:
        model = Transformer(config)
        tokens = torch.zeros(n_sentences, length, dtype=torch.long)
        loss, _ = label_smoothed_cross_entropy(model(tokens, tokens), tokens)
    of_model = {w.untyped_storage()._cdata for w in model.parameters()}
    return loss, sum(x.nbytes() for i, x in kept.items() if i not in of_model)
megabytes = forward_on_meta(base, 1, 25)[1] / 1e6
print(f"base keeps {megabytes / 25:.2f} MB per token")

# %% tags=["hide-cell"]
with FlopCounterMode(display=False) as counter:
    loss, activations = forward_on_meta(base, n_sentences=1000, length=25)
    loss.backward()
step_operations = counter.get_total_flops()
assert math.isclose(step_operations, 6 * n_weights * n, rel_tol=0.02)
floor = step_operations / (8 * GPUS["P100"].rate)
assert f"{floor:.3f}" == "0.125" and f"{floor / 0.4:.0%}" == "31%"

# %% [markdown]
# (section-gpu-types)=
# ## Sixteen bits
#
# Since 2017 NVIDIA's GPUs have **tensor cores**, units that multiply small matrices of short numbers and add up in
# float32. (A **TPU** is Google's chip {cite}`jouppi2017datacenter`.) Two 16-bit types divide their bits differently, as
# [chapter 5.2](5_2_training.ipynb) draws them.

# %% [markdown]
# **bf16** {cite}`kalamkar2019study` keeps float32's range and has two to three digits. GPUs have it from the A100 on.
# **fp16**, which the T4 and V100 have, is eight times finer but has nothing below $6 \cdot 10^{-8}$, so that small
# gradients vanish. From the H100 on there is **fp8**, in two divisions of its eight bits {cite}`micikevicius2022fp8`, at
# twice the rate of bf16, with a scale kept for each matrix or block; DeepSeek-V3 {cite}`deepseek2024v3` was trained in it
# for the most part. Blackwell (B200, 2024) has 2.3 times the H100's rate in bf16 and also 4-bit products. This package
# has neither. In fp16 we first multiply the loss by a large **scale** and later divide the gradients by it
# {cite}`micikevicius2018mixed`:

# %%
gradient, scale = torch.tensor(2e-8), 2.0**16
scaled = (gradient * scale).half().float() / scale
print(f"in bf16 {gradient.bfloat16().item():.1e}, "
      f"in fp16 {gradient.half().item():.1e}, "
      f"in fp16 with a scale {scaled.item():.1e}")

# %% [markdown]
# In PyTorch, `autocast` rounds for the products while weights, sums and losses stay float32, and a `GradScaler` keeps
# the scale. When a gradient overflows, the scaler skips the step and halves the scale. We take one step in each type on
# the CPU; on a GPU we write `"cuda"` twice, and move the model and the batch there.

# %%
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    torch.manual_seed(0)
    model = Transformer(tiny)
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        logits = model(batch.source, batch.target_in)
        loss, _ = label_smoothed_cross_entropy(logits, batch.target_out)
    scaler.scale(loss / batch.n_tokens).backward()
    scaler.step(optimizer)
    scaler.update()
    logits = model(batch.source, batch.target_in)
    after, _ = label_smoothed_cross_entropy(logits, batch.target_out)
    print(f"{dtype!s:15} loss before the step {loss:.1f}, after it {after:.1f}")

# %% [markdown]
# `TrainingRun` does this for us: `precision` is `bf16`, `fp16` or `fp32`, and "auto" takes the best that the GPU has in
# hardware, so **fp16 on a T4**, where we refuse PyTorch's emulated bf16. In fp32,
# `torch.set_float32_matmul_precision("high")` lets products use TF32. Tensor cores like sizes that are multiples of 8:
# the presets have them, and on a GPU `train` rounds the lengths of its batches up to them. [Chapter
# 5.2](5_2_training.ipynb) shows what range and precision do to training.

# %% [markdown]
# (section-gpu-attention)=
# ## Attention without the $n^2$ weights
#
# The paper's equation 1 has an $n \times n$ matrix of weights, which training keeps for the backward pass.
# **FlashAttention** {cite}`dao2022flashattention` computes the same output and never holds that matrix. The output of a
# query is a weighted mean, which we can build up as its terms arrive. The softmax divides by a sum over all keys, which
# we correct as we go {cite}`milakov2018online`: after each block of keys we keep the largest score so far $m$, the sum
# $z$ of $e^{s-m}$, and the sum $o$ of $e^{s-m} v$. A new block with scores $s_j$ gives
#
# $$
# \begin{aligned}
# m' &= \max(m, \max_j s_j) \\
# z' &= e^{m - m'} z + \textstyle\sum_j e^{s_j - m'} \\
# o' &= e^{m - m'} o + \textstyle\sum_j e^{s_j - m'} v_j
# \end{aligned}
# $$ (gpu-online)
#
# and at the end $o / z$ is the attention.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Left, the full way: a 6 by 6 grid of scores, all filled, labelled n squared numbers in the GPU's memory. Right, the blocks: the same grid in outline with one tile of two rows and two columns filled, an arrow along the row of tiles, and beside the two rows a box with m, z and o that is updated tile by tile."}, "figure": {"caption": "Plain attention writes all scores to memory. FlashAttention visits them tile by tile on the chip; between tiles it carries $m$, $z$ and $o$ for each query.", "name": "fig-gpu-tiles"}}
gpu_pictures.gpu_tiles()

# %%
def attention_in_blocks(q, k, v, block=16):
    """Equation 1, never holding more than `block` columns of the weights."""
    m, z, o = torch.tensor(-math.inf), 0, 0
    for keys, values in zip(k.split(block, dim=-2), v.split(block, dim=-2)):
        s = q @ keys.transpose(-2, -1) / math.sqrt(q.size(-1))
        larger = torch.maximum(m, s.amax(dim=-1, keepdim=True))
        shrink, p, m = (m - larger).exp(), (s - larger).exp(), larger
        z = shrink * z + p.sum(dim=-1, keepdim=True)
        o = shrink * o + p @ values
    return o / z
q, k, v = (torch.randn(2, 4, 50, 8, dtype=torch.float64) for _ in range(3))
taught = scaled_dot_product_attention(q, k, v)
ways = attention_in_blocks, F.scaled_dot_product_attention
same = [torch.allclose(way(q, k, v), taught) for way in ways]
print("blocks, PyTorch's kernel:", same)

# %% [markdown]
# `F.scaled_dot_product_attention`, which our model calls, dispatches to one of several kernels. *Math* is equation 1
# step by step. *Flash* takes fp16 and bf16 from the A100 on, and no mask but the flag `is_causal`. *Memory-efficient*
# also takes float32, older GPUs and masks. So our decoder's self-attention, which passes the flag, can have flash;
# memory-efficient serves where we pass a padding mask. (We disable cuDNN's: by one report, [on a
# B200](https://github.com/modelscope/FunASR/issues/3704), it plans about a second for every new shape.) Let us force
# two of them on the CPU and see what autograd keeps:

# %% tags=["hide-cell"]
from lab.cost import bytes_kept

def kept_by(kernel, length):  # one head of width 64
    q, k, v = (torch.randn(1, 1, length, 64, requires_grad=True) for _ in range(3))
    with sdpa_kernel(kernel):
        return bytes_kept(lambda: F.scaled_dot_product_attention(q, k, v))

lengths = (64, 128, 256, 512, 1024)
math_kept, flash_kept = ([kept_by(kernel, L) for L in lengths] for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION))
assert all(b == 4 * L * (4 * 64 + 1) and a >= 4 * L * L for L, a, b in zip(lengths, math_kept, flash_kept))

# %% tags=["hide-input"] mystnb={"image": {"alt": "Log-log chart of bytes kept by one head for lengths 64 to 1024. The flash kernel's line rises with slope one to 1.1 MB. The math kernel's line starts near it and bends upward towards slope two, beside a dashed line of four bytes for each of n squared weights, and ends at 5.0 MB."}, "figure": {"caption": "What autograd keeps for one head of width 64, counted on a CPU in float32.", "name": "fig-gpu-kept"}}
gpu_pictures.gpu_kept(flash_kept, lengths, math_kept)

# %% [markdown]
# Flash keeps $q$, $k$, $v$, the output and one number per query, so its memory grows with $n$. The arithmetic is still
# $O(n^2)$, and with `is_causal=True` a kernel may skip the tiles above the diagonal, nearly half of the work. One trap:
# the flag's triangle begins at the *top left*. In decoding, with one query and many keys, it would show the query the
# first key alone, so `DecoderLayer` leaves it out there.

# %% tags=["remove-cell"]
by_mask = F.scaled_dot_product_attention(q, k, v, attn_mask=causal_mask(50))
assert_close(F.scaled_dot_product_attention(q, k, v, is_causal=True), by_mask)
newest = q[:, :, -1:]
assert_close(F.scaled_dot_product_attention(newest, k, v), by_mask[:, :, -1:])
assert_close(F.scaled_dot_product_attention(newest, k, v, is_causal=True), v[:, :, :1])  # the first value, no other
for scale in (1, 100):  # scores of a hundred and more: nothing overflows
    assert_close(attention_in_blocks(scale * q, k, v), scaled_dot_product_attention(scale * q, k, v))

# %% [markdown]
# (section-gpu-batches)=
# ## Batches: many tokens, little padding
#
# Products want many rows (equation {eq}`gpu-intensity`), and Adam moves 28 bytes per parameter for any number of
# tokens. So we take as many *tokens* as the memory holds. To avoid padding, which is computed as well, we group
# sentences of similar length ([chapter 5.1](5_1_data_and_batching.ipynb)) or **pack** the real tokens of all sentences
# into one row.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Left, a padded batch: three rows of 8 squares with 3, 8 and 5 coloured squares and the rest grey padding. Right, packed: one row of 16 coloured squares in three colours, with the starts 0, 3, 11 and 16 marked below."}, "figure": {"caption": "The same three sentences, padded to 24 positions and packed into 16. The numbers mark where each sentence starts.", "name": "fig-gpu-packed"}}
gpu_pictures.gpu_packed()

# %% tags=["hide-cell"]
packing = Packing(torch.arange(8) < torch.tensor([[3], [8], [5]]))
assert packing.rows.view(3, 8)[:, 0].tolist() == [0, 3, 11] and len(packing.positions) == 16
rng = random.Random(1)
lengths = [min(150, max(2, round(rng.lognormvariate(3.1, 0.55)))) for _ in range(10_000)]
grouped = group_by_length(np.array([lengths, lengths]).T, 4096)
at_random = [range(i, i + 100) for i in range(0, 10_000, 100)]
padded = {name: sum(len(group) * max(lengths[i] for i in group) for group in groups)
          for name, groups in (("grouped", grouped), ("at random", at_random))}

# %%
for name, positions in padded.items():
    waste = 1 - sum(lengths) / positions
    print(f"10,000 sentences {name:9}  {waste:4.0%} padding")
runs = [TrainingRun(tiny, TrainConfig(), packing=on) for on in ("off", "on")]
losses = [run.step([batch])[0].item() for run in runs]
print(f"loss of a step, padded {losses[0]:.4f}, packed {losses[1]:.4f}")

# %% [markdown]
# In random batches of 100 (lengths drawn by us), 72 percent of the positions are padding; grouped, 2 percent. Packing
# removes these too and gives the same loss. On a CPU our training packs by default. On a GPU it never does, because
# packed steps were no faster there (below).

# %% tags=["remove-cell"]
assert padded["grouped"] < 1.03 * sum(lengths) and round(1 - sum(lengths) / padded["at random"], 2) == 0.72
assert math.isclose(*losses, rel_tol=1e-5)

# %% [markdown]
# (section-gpu-memory)=
# ## What has to fit
#
# Float32 weights, gradients and Adam's two moments take $4 + 4 + 8 = 16$ bytes per parameter. The forward pass leaves
# what the backward pass needs, the **activations**, which grow with the tokens of a batch. Last comes the gradient of
# the logits, 37,000 numbers per token:
#
# $$
# \text{bytes} \approx 16 \cdot N_{\text{weights}} + (a + 4V) \cdot N_{\text{tokens}}
# $$ (gpu-memory)
#
# We count $a$ from the tensors that autograd saves, on the device `meta`, where tensors have shapes but no numbers.

# %% tags=["hide-cell"]
big = ModelConfig.big(vocab_size=37_000)
_, of_100 = forward_on_meta(big, n_sentences=100, length=25)
per_token = {"base": activations / n, "big": of_100 / 2500}

def parts(config, n_tokens, a):
    """Bytes of weights, gradients, Adam's moments, activations, and the gradient of the logits."""
    return [4 * count_parameters(config)] * 2 + [8 * count_parameters(config), n_tokens * a, n_tokens * 4 * config.vocab_size]

def plan(config, n_tokens, a):
    return sum(parts(config, n_tokens, a))

# %% tags=["hide-input"] mystnb={"image": {"alt": "Stacked bars of memory in GB for base with 25,000, 12,500 and 6,250 tokens and big with the same. Weights, gradients and Adam take 1 GB for base and 3.4 GB for big. Activations dominate. With 25,000 tokens base needs 19.7 GB and big 33.5; with 6,250 they need 5.7 and 10.9, below a dashed line at 16 GB."}, "figure": {"caption": "Memory that a float32 step needs, counted. Below: tokens per batch on each side. Dashed: 16 GB, a P100 or a T4.", "name": "fig-gpu-memory"}}
gpu_pictures.gpu_memory(base, big, parts, per_token)

# %% [markdown]
# The plan leaves out what CUDA itself needs and gaps in the allocator; `torch.cuda.max_memory_allocated()` reports the
# actual peak. If it does not fit, we **accumulate**: four batches of 6,250 tokens before one step of Adam equal one
# batch of 25,000 ([chapter 5.2](5_2_training.ipynb)). We write `max_tokens=6250, accumulate=4`.

# %% tags=["remove-cell"]
assert count_parameters(base) == n_weights
assert 16e9 < plan(base, 25_000, per_token["base"]) < 40e9
assert plan(base, 6250, per_token["base"]) < 8e9 < plan(big, 6250, per_token["big"]) < GPUS["T4"].memory
assert 0.1 < 4 * n * base.vocab_size / activations < 0.4

# %% [markdown]
# (section-gpu-compile)=
# ## torch.compile
#
# Take `x + dropout(y)` and then LayerNorm. As three kernels dropout and norm each read 1 number and write 1, and the
# sum reads 2 and writes 1: seven movements. One fused kernel reads 2 and writes 1, so this memory-bound operation can
# be $7/3$ times as fast. `torch.compile` writes such kernels: it records a function as a **graph**, fuses what works
# number by number, and leaves the matrix products as they are.
#
# The price is one compilation per graph, and a graph is for given shapes. Let us count graphs for six lengths:

# %%
def graphs_for(lengths, dynamic):
    graphs = []
    def count(graph, example_inputs):
        graphs.append(graph)
        return graph.forward
    torch.compiler.reset()
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(),
                                torch.nn.LayerNorm(8))
    compiled = torch.compile(layer, backend=count, dynamic=dynamic)
    for length in lengths:
        compiled(torch.randn(2, length, 8))
    return len(graphs)

print("fixed shapes:", graphs_for(range(11, 17), False),
      "graphs; symbols for them:", graphs_for(range(11, 17), True))

# %% [markdown]
# With `dynamic=True` sizes are symbols, and one graph serves all. The package compiles the forward pass and its loss
# so: `TrainConfig(compile=True)`. The alternative is a bounded number of shapes, with lengths rounded up to multiples
# of 8 or 16; after eight recompilations PyTorch gives up on a function and runs it uncompiled. What it brings
# depends on the GPU ({ref}`section-gpu-measured`).
#
# Decoding has another bottleneck: each step needs the token of the step before, so the host synchronizes at every step,
# and with few rows the launches take longer than the arithmetic. A **CUDA graph** replays a recorded list of launches
# with one call; `torch.compile(mode="reduce-overhead")` makes such graphs. The package does not use them. On a GPU a
# `Translator` computes in float16, which halves the bytes of the weights, unless `dtype="float32"`; 200 of 200 translations
# stay the same
# ([LOG.md](https://github.com/annotated-transformer/annotated-transformer/blob/main/LOG.md)).

# %% tags=["remove-cell"]
assert (graphs_for(range(11, 17), False), graphs_for(range(11, 17), True)) == (6, 1)
assert ((1 + 1) + (2 + 1) + (1 + 1)) / (2 + 1) == 7 / 3

# %% [markdown]
# (section-gpu-parallel)=
# ## Eight GPUs: data parallelism
#
# Eight GPUs shared the paper's batch of 25,000 tokens. The common way is **data parallelism**: each GPU has a copy of
# the weights and computes the gradient of an eighth of the sentences. Then an **all-reduce** hands the sum of all
# gradients to every GPU, so that all make the same step of Adam and their weights stay equal
# ([drawn in chapter 5.2](5_2_training.ipynb)).

# %% [markdown]
# If every GPU sent its gradient to every other, the traffic would grow with their number. In a **ring**
# {cite}`patarasuk2009bandwidth` each of $K$ GPUs cuts its gradient into $K$ chunks and talks to its right neighbour
# only. After $K - 1$ rounds each GPU owns the full sum of one chunk, and $K - 1$ more rounds pass the sums on:

# %% tags=["hide-cell"]
def ring_all_reduce(gradients):
    """gradients[i][c] is chunk c of GPU i. Returns how many GPUs' numbers each chunk holds, round by round."""
    K, rounds = len(gradients), []
    added = [[1] * K for _ in range(K)]
    for t in range(2 * (K - 1)):
        sent = [(i, (i - t) % K) for i in range(K)] if t < K - 1 else [(i, (i + 1 - (t - K + 1)) % K) for i in range(K)]
        messages = [(i, c, gradients[i][c], added[i][c]) for i, c in sent]
        for i, c, numbers, count in messages:
            right, keep = (i + 1) % K, t < K - 1  # first add up, then replace
            gradients[right][c] = numbers + gradients[right][c] * keep
            added[right][c] = count + added[right][c] * keep
        rounds.append([row[:] for row in added])
    return rounds

# %% tags=["hide-input"] mystnb={"image": {"alt": "Seven small 4 by 4 grids, one for the start and one after each of six rounds. Rows are GPUs, columns are chunks. Numbers in the squares count how many GPUs' gradients a chunk holds. At the start all are 1. After three rounds each row has one 4, on a diagonal. After six rounds all are 4."}, "figure": {"caption": "Ring all-reduce among four GPUs. A number says of how many GPUs the chunk holds the sum.", "name": "fig-gpu-ring"}}
gradients = [list(torch.randn(4, 5, dtype=torch.float64)) for _ in range(4)]
expected = [sum(g[c] for g in gradients) for c in range(4)]
rounds = ring_all_reduce(gradients)
gpu_pictures.gpu_ring(rounds)
assert_close(gradients, [expected] * 4)

# %% [markdown]
# So each GPU sends $2\,(K-1)/K$ times the gradient's size, less than twice, whatever $K$ is. For base on eight GPUs
# that is 0.44 GB per step. Over PCIe 3.0 at 16 GB/s it takes 28 ms, 7 percent of the paper's 0.4 s, and PyTorch starts
# it while the backward pass still runs {cite}`li2020pytorch`.
#
# In plain PyTorch, `torchrun --nproc-per-node 8 file.py` starts the same program eight times and tells each process its
# number (`RANK`, `LOCAL_RANK`) and how many there are (`WORLD_SIZE`). `DistributedDataParallel` wraps a module that
# goes from the batch to the loss, and does the all-reduce in `backward`.

# %% tags=["hide-input"]
script = Path("scripts/data_parallel.py")
display(Markdown(f"```python\n{script.read_text(encoding='utf-8').partition('if rank')[0].strip()}\n```"))

# %% [markdown]
# One detail is the division: DDP gives every process the *mean* of the gradients, and shares have different numbers of
# tokens. So we add up the tokens of all, divide each summed loss by that total, and multiply by the number of
# processes. We run two processes on the CPU; process 0 then compares with the whole batch.

# %% tags=["nbval-ignore-output"]
command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
           "--nproc-per-node", "2", str(script)]
done = subprocess.run(command, capture_output=True, text=True, check=True)
print(done.stdout.strip())
assert "the gradient of one batch is True" in done.stdout

# %% [markdown]
# `annotated-transformer train` does the same under `torchrun`. The setting `accumulate` counts the batches of a step
# over all processes. Eight batches of 3,125 tokens make the paper's step of 25,000:
#
# ```
# annotated-transformer train --corpus wmt14-en-de --preset base --out runs/base \
#     --set max_tokens=3125 --set accumulate=8
# torchrun --standalone --nproc-per-node 8 --max-restarts 3 -m annotated_transformer \
#     train --corpus wmt14-en-de --preset base --out runs/base --set max_tokens=3125 --set accumulate=8
# torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 --max-restarts 3 \
#     -m annotated_transformer train --corpus wmt14-en-de --preset base --out runs/base \
#     --set max_tokens=3125 --set accumulate=8
# ```
#
# One GPU, eight, and eight in two machines, on each of which we type the third command, make the same run, but for rounding
# and what dropout drops. Every process plans the whole step from the lengths of all sentences, so it knows the
# number of real tokens without asking. Gradients are exchanged once per step, after the last batch of each process
# (`no_sync` in PyTorch). A run can stop with eight GPUs and go on with one (`--resume`), at the same place in the data.
# When a process dies, `torchrun` restarts all from the last checkpoint. Both machines need the same data and must see
# the same
# `--out`.
#
# When one GPU has no room for a model with its gradients and Adam's moments, all of them are sharded: ZeRO
# {cite}`rajbhandari2020zero`, and in PyTorch FSDP {cite}`zhao2023pytorch`. Each of eight GPUs then keeps an eighth of
# every matrix, and a layer is put together at its turn. The package has no need of it: the paper's big model takes 16
# bytes per parameter, 3.4 GB. We have not run it on several GPUs; with two and four processes on a CPU, losses are the
# same to $10^{-5}$ in our tests.

# %% tags=["remove-cell"]
sent = 2 * 7 / 8 * 4 * n_weights
assert round(sent / 1e9, 2) == 0.44 and round(1e3 * sent / 16e9) == 28 and round(sent / 16e9 / 0.4, 2) == 0.07

# %% [markdown]
# (section-gpu-run)=
# ## On Colab
#
# 1. Click the rocket at the top of this page and choose Colab. Under *Runtime, Change runtime type*, take a T4.
# 2. Run the first cell, which fetches the book and keeps Colab's own PyTorch, built for the GPU.
# 3. Train with one of the commands below, after an exclamation mark. We have not timed it on a T4.
# 4. Watch the progress bar: the loss is finite and falls, `tokens_per_s` is steady, and memory suffices.
#
# On your own GPU, `pip install` the package and a PyTorch with CUDA; the commands are the same.

# %%
commands = {
    "a small corpus": "train --corpus multi30k-en-de --preset small "
    "--vocab-size 6000 --device cuda --out runs/small --set max_tokens=4096 "
    "--set warmup_steps=1500 --set train_steps=9000",
    "base on a T4's 16 GB": "train --corpus multi30k-en-de --preset base "
    "--device cuda --out runs/t4 --set max_tokens=6250 --set accumulate=4",
    "the paper's base": "train --corpus wmt14-en-de --preset base "
    "--vocab-size 37000 --device cuda --out runs/base "
    "--set train_steps=100000 --set compile=true",
    "and use it": "translate runs/base --device cuda"}
for what, command in commands.items():
    assert parser().parse_args(shlex.split(command)).device == "cuda"
    command = command.replace(" --set", " \\\n    --set")
    print(f"# {what}\nannotated-transformer {command}")

# %% [markdown]
# If you time code yourself, call `torch.cuda.synchronize()` before you stop the clock; otherwise you time the launches.
# `torch.profiler` shows where the time goes, kernel by kernel. `python benchmarks/gpu.py` times kernels, batches, steps
# and compilation in this way. What we measured on CPUs, beside other systems, is in
# [benchmarks/README.md](https://github.com/annotated-transformer/annotated-transformer/blob/main/benchmarks/README.md).
#
# (section-gpu-measured)=
# ## What one GPU measured
#
# We had an H200 twice for a quarter of an hour. Steps are base's on 25,000 tokens, in bfloat16; first what compiles nothing.

# %%
result = json.loads(Path("results/gpu.json").read_text())
of = {}
for record in result["records"]:
    of.setdefault(record["measure"], []).append(record)
speed = {one["batches"]: one["tokens_per_s"] for one in of["batching"]}
print(f"{result['hardware']}, PyTorch {result['versions']['torch']}")
for batches, tokens_per_s in speed.items():
    print(f"{batches:25} {tokens_per_s:9,.0f} target tokens/s")
for one in of["first epoch"]:
    print(f"{'packed' if one['packed'] else 'padded':6} first epoch "
          f"{one['first_s']:.1f} s, the same batches again "
          f"{one['again_s']:.1f} s")

# %% mystnb={"image": {"alt": "Two log-log charts over sentence lengths 64 to 8,192. Left, milliseconds: equation 1 rises from 1.2 to 13, the math kernel from 1.5 to 38, memory-efficient from 0.6 to 9, flash from 0.8 to 3.9, cuDNN from 0.7 to 2.6; up to 256 the fused kernels are level. Right, megabytes beyond the inputs: equation 1 and math rise in proportion to the length, to 8,600 and 17,300; the three fused kernels stay near 120 to 170."}, "figure": {"caption": "Attention on an H200, forward and backward: 16,384 tokens in sentences of the length below, 8 heads 64 wide, bfloat16. Median of seven.", "name": "fig-gpu-attention"}} tags=["hide-input"]
gpu_pictures.gpu_attention(of["attention"])

# %% [markdown]
# - **Similar lengths matter most**: random batches are three quarters padding, and train 2.6 times slower. Reading the loss
#   after every step costs a tenth, the arrows of the first figure.
# - **Short sentences hide the kernel.** Up to 256 tokens all fused kernels take about 0.7 ms, most likely the time of their
#   launches. At 8,192 tokens flash is 3.3 times as fast as equation 1 with 1/64 of its memory, and memory-efficient, which
#   serves our padding masks, is 1.4 times as fast with 1/73. The kernel of cuDNN, which we disable, is 4.9 times as fast.
#   At the lengths of translation a faster kernel would save little.
# - **Packing brings nothing here.** Grouping has left 20% of padding. {ref}`Above <section-gpu-batches>` it left 2%, where
#   both sides of a pair were equally long and lengths were not rounded up to multiples of 8.
# - **The first epoch takes 1.3 times as long** as the same batches again (packed, 1.2). It is the first thing that the
#   process does on the GPU, so this includes starting CUDA and its allocator, and is not evidence about shapes.
#
# And compiled, with tf32 beside bfloat16, on other batches with less padding:

# %%
from lab.gpu_rates import measured_share

result = json.loads(Path("results/gpu_compiled.json").read_text())
found = {(one["precision"], one["packed"], one["compiled"]): one
         for one in result["records"] if "compiled" in one}
for (precision, packed, compiled), one in found.items():
    print(f"{precision} {'packed' if packed else 'padded'} "
          f"{'compiled' if compiled else 'eager':8} "
          f"{one['tokens_per_s']:9,.0f} target tokens/s, "
          f"the paper's 100,000 steps in {one['hours']:.1f} hours")
print(f"of the vendor's rate in bf16, padded: "
      f"{measured_share(False):.0%} eager, "
      f"{measured_share(True):.0%} compiled")

# %% [markdown]
# **Compiled, a step is 1.55 times as fast in bfloat16**, and 1.2 times in tf32. In bfloat16 the eager step reaches 15% of
# the rate that we measured for matrix products, which is 12% of the vendor's rate. Packed, compiling made steps slower:
# they ran at 0.90 of eager's speed, and at 0.60 of the speed of the padded compiled step. We do not know why. We have not
# run the 1.4 hours, nor measured *big*.

# %% tags=["remove-cell"]
gain = {key[:2]: round(one["tokens_per_s"] / found[*key[:2], False]["tokens_per_s"], 2) for key, one in found.items() if key[2]}
assert gain == {("bf16", False): 1.55, ("bf16", True): 0.9, ("tf32", False): 1.2} and 1.3 < found["bf16", False, True]["hours"] < 1.5
assert f"{found['bf16', False, False]['share_of_product']:.0%} {measured_share(False):.0%}" == "15% 12%"
packed_speed, padded_speed = (found["bf16", packed, True]["tokens_per_s"] for packed in (True, False))
assert f"{packed_speed / padded_speed:.2f}" == "0.60"
longest = {one["kernel"]: one for one in of["attention"] if one["length"] == 8192}
first = longest["equation 1"]
faster = {name: f"{first['seconds'] / one['seconds']:.1f}" for name, one in longest.items()}
smaller = {name: round(first["peak_megabytes"] / one["peak_megabytes"]) for name, one in longest.items()}
assert [faster[name] for name in ("flash", "memory-efficient", "cuDNN")] == ["3.3", "1.4", "4.9"]
assert [smaller[name] for name in ("flash", "memory-efficient")] == [64, 73]
assert [f"{one['first_over_again']:.1f}" for one in of["first epoch"]] == ["1.3", "1.2"]
assert f"{of['batching'][0]['padding']:.0%}" == "20%"

# %% [markdown]
# :::{dropdown} Where this is
# `training/run.py` and `training/optimizer.py` (the step, autocast, the scaler), `fast/packing.py`,
# `training/processes.py` (several processes), `MultiHeadAttention.attend`,
# `book/lab/tables/table_1.py`, `book/scripts/data_parallel.py`. Tests: `test_many_processes_make_the_run_of_one`,
# `test_a_step_on_a_gpu_waits_for_no_value`, `test_a_step_that_overflows_changes_nothing_but_the_scale`,
# `test_the_taught_function_equals_pytorchs_kernel`, `test_two_half_batches_equal_one_whole_batch`.
# :::

# %% [markdown]
# ## Exercises

# %% [markdown] tags=["exercise"]
# ```{exercise} When is decoding compute-bound?
# :label: gpu-ex-decode
#
# A translator decodes $n$ hypotheses at once, one token each. From which $n$ on is $W_1$ of the *big* model
# compute-bound on an A100, by equation {eq}`gpu-intensity`? Is there such an $n$ for $W_Q$ of the *base* model on an
# H100?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Solve $1/n = 1/I - 1/D - 1/E$ for $I$ at the ridge.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} gpu-ex-decode
# :class: dropdown
#
# The ridge is at 153. For $D = 1024$, $E = 4096$ we need $n \ge 189$. For base's $W_Q$ on an H100 the right side,
# $1/295 - 2/512$, is negative: it stays memory-bound with any number of tokens.
# ```

# %% tags=["hide-cell", "solution"]
def tokens_needed(gpu, D, E):
    rest = gpu.bandwidth / gpu.rate - 1 / D - 1 / E
    return math.ceil(1 / rest) if rest > 0 else math.inf

assert tokens_needed(GPUS["A100 80GB"], 1024, 4096) == 189 and tokens_needed(h100, 512, 512) == math.inf

# %% [markdown] tags=["exercise"]
# ```{exercise} How small may a step be?
# :label: gpu-ex-adam
#
# Adam moves 28 bytes per parameter; the products of a step take 6 operations per parameter and token. With how many
# tokens on each side do the two take equally long on an H100, each at its bound? On a P100?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# $28 N / B = 6 N n / R$. The number of parameters cancels.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} gpu-ex-adam
# :class: dropdown
#
# $n = 28 R / (6 B)$: 1,378 tokens on an H100, 61 on a P100. With fewer tokens the optimizer takes longer than the
# products, so faster arithmetic wants larger batches.
# ```

# %% tags=["hide-cell", "solution"]
equal = {name: 28 * gpu.rate / (6 * gpu.bandwidth) for name, gpu in GPUS.items()}
assert round(equal["H100 SXM"]) == 1378 and round(equal["P100"]) == 61

# %% [markdown] tags=["exercise"]
# ```{exercise} Merge two halves
# :label: gpu-ex-merge
#
# Two GPUs each attend to half of the keys and return $(m, z, o)$ of equation {eq}`gpu-online`. Write `merge(a, b)`,
# which gives the triple of all keys. Does the order matter?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Bring both to the larger $m$.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} gpu-ex-merge
# :class: dropdown
#
# With $m' = \max(m_a, m_b)$, scale each $z$ and $o$ by $e^{m - m'}$ and add. Addition commutes, so any order and any
# tree of merges will do. This is how very long sequences are spread over several GPUs.
# ```

# %% tags=["hide-cell", "solution"]
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

# %% [markdown] tags=["exercise"]
# ```{exercise} The mean of means
# :label: gpu-ex-mean
#
# Two processes have shares of 10 and 30 tokens, with mean losses of 2 and 4 nats. Each divides its loss by its own
# tokens, and DDP averages. Which loss is descended, and which should be?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# How much does one token of each share weigh?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} gpu-ex-mean
# :class: dropdown
#
# It descends $(2 + 4) / 2 = 3$ nats; the mean over all tokens is $(20 + 120) / 40 = 3.5$. A token in the small share
# counts three times as much.
# ```

# %% tags=["hide-cell", "solution"]
shares = ((10, 2.0), (30, 4.0))
of_tokens = sum(tokens * mean for tokens, mean in shares) / sum(tokens for tokens, _ in shares)
ddp = sum(2 * tokens * mean / 40 for tokens, mean in shares) / 2  # with the factor of the script
assert sum(mean for _, mean in shares) / 2 == 3 and of_tokens == ddp == 3.5 and (1 / 10) / (1 / 30) == 3

# %% [markdown] tags=["exercise"]
# ```{exercise} Make it fit
# :label: gpu-ex-fit
#
# Choose `max_tokens` and `accumulate` for the *big* model on a GPU of 16 GB, with a fifth of the memory kept for what
# the plan leaves out, and at least 25,000 tokens in a step.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Solve equation {eq}`gpu-memory` for the tokens.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} gpu-ex-fit
# :class: dropdown
#
# Weights, gradients and moments take 3.4 GB. The first `accumulate` that fits is 4, with `max_tokens=6250`.
# ```

# %% tags=["hide-cell", "solution"]
accumulate = 1
while plan(big, math.ceil(25_000 / accumulate), per_token["big"]) > 0.8 * 16e9:
    accumulate += 1
settings = TrainConfig(max_tokens=math.ceil(25_000 / accumulate), accumulate=accumulate)
assert (settings.max_tokens, accumulate) == (6250, 4) and round(16 * count_parameters(big) / 1e9, 1) == 3.4

# %% [markdown] tags=["exercise"]
# ```{exercise} Days
# :label: gpu-ex-days
#
# At 12 percent of the vendor's rate, which we measured on an H200 with eager steps, how long do the paper's 100,000
# steps of base take on one T4, A100, H100? At which share of its rate does one H100 need the paper's twelve hours?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# A step has $6 \cdot 63{,}045{,}632 \cdot 25{,}000$ operations, within 2 percent.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} gpu-ex-days
# :class: dropdown
#
# 33.3 hours on a T4, 6.9 on an A100, 2.2 on an H100. One H100 needs 2.2 percent of its rate for what eight P100 did.
# ```

# %% tags=["hide-cell", "solution"]
hours = {name: step_operations * 1e5 / (measured_share(False) * gpu.rate) / 3600 for name, gpu in GPUS.items()}
assert [round(hours[name], 1) for name in ("T4", "A100 80GB", "H100 SXM")] == [33.3, 6.9, 2.2]
assert f"{step_operations * 1e5 / (12 * 3600 * h100.rate):.1%}" == "2.2%" and n_weights == 63_045_632
