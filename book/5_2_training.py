# %% [markdown]
# # 5.2 Training
#
# *Section 5.2 of the paper {cite}`vaswani2017attention`, hardware and schedule, and the training step that the paper
# takes as known.*
#
# Training repeats one small act a hundred thousand times: we look at some sentence pairs, measure how wrong the model
# is, and move each weight a little. We do the act once with every number checked. Then we ask what changes at scale:
# several micro-batches, eight GPUs, 16-bit numbers, an interruption. On the way we train a model until it solves its
# task without a single mistake.
#
# When you have read it you can
#
# - say why the decoder may read the true words in training, and what that costs when it writes;
# - compute loss, gradient, rate and Adam's update of a real model by hand;
# - divide the loss by the right number, on one GPU and on eight;
# - say what bfloat16 keeps and what it rounds away.

# %% tags=["hide-cell"]
import copy
import json
import math
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.patches import FancyBboxPatch
from torch.testing import assert_close

from lab.display import PALETTE, show, use_style

# %% tags=["hide-cell"]
from annotated_transformer import ConfigError, ModelConfig, Tokenizer, TrainConfig, TrainingRun, Transformer, average_checkpoints, greedy_search, label_smoothed_cross_entropy, load_model, make_batch, noam_learning_rate, train
from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.checkpoint import weights
from annotated_transformer.text.batching import pad_source

def box(ax, x, y, text, colour="white", width=0.8, height=0.5, **style):
    rounded = FancyBboxPatch((x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0.04",
                             facecolor=colour, edgecolor="0.35")
    ax.add_patch(rounded)
    ax.text(x, y, text, ha="center", va="center", **style)

def arrow(ax, start, end, **style):
    ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "0.35", **style})

# %% [markdown]
# Our task is to copy: the model reads three to eight letters and writes the same letters. It is as small as a task
# can be that still needs the whole model. The encoder has to represent the letters and their order, and the decoder has
# to find the next one and to know when to stop. We train on 6,000 sequences and keep 500 others for validation and 500
# for the test.

# %%
use_style()
rng = random.Random(1)
drawn = dict.fromkeys(" ".join(rng.choices("abcdefghij", k=rng.randint(3, 8))) for _ in range(8000))
texts = list(drawn)[:7000]
pairs = [(text, text) for text in texts[:6000]]
valid, fresh = texts[6000:6500], texts[6500:]
tokenizer = Tokenizer.train(texts[:6000], vocab_size=281)
V = tokenizer.vocab_size
ids = [(tokenizer.encode(x), tokenizer.encode(y)) for x, y in pairs]
print(*tokenizer.pieces(tokenizer.encode(fresh[0])), "  V", V)

# %% tags=["hide-cell"]
assert len(set(texts)) == 7000 and len(pairs) == 6000 and len(valid) == len(fresh) == 500

# %% [markdown]
# Each letter is one token.
#
# (section-teacher)=
# ## Teacher forcing: the decoder reads the true words
#
# When our model translates, the decoder reads its own output. In training it reads the true target instead, whatever it
# would have written. This is called **teacher forcing** {cite}`williams1989learning`.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two drawings of a decoder that is to copy a b c. Left, teacher forcing: it reads start, a, b, c and predicts a, d, c, end; the second prediction is wrong, but the next input is the true b. Right, free running: each prediction is the next input; after the wrong d it reads d and writes b, then c, one place too late."}, "figure": {"caption": "Copying *a b c* with one mistake. Left: the teacher corrects the prefix, so the mistake stays alone. Right: the model reads its mistake, and writes *b c* one place late.", "name": "fig-teacher"}}
figure, axes = plt.subplots(1, 2, figsize=(7, 2.2), layout="constrained")
runs_of = {"teacher forcing: reads the truth": (["<s>", "a", "b", "c"], ["a", "d", "c", "</s>"]),
           "free running: reads its own output": (["<s>", "a", "d", "b"], ["a", "d", "b", "c"])}
for ax, (title, (read, written)) in zip(axes, runs_of.items()):
    for t, (word, output, truth) in enumerate(zip(read, written, ["a", "b", "c", "</s>"])):
        box(ax, t, 0, word, "#dce9f5" if "truth" in title or t == 0 else "#fbe3cf", 0.5)
        box(ax, t, 2, output, "white", 0.5, color=PALETTE[2 if output == truth else 1], weight="bold")
        arrow(ax, (t, 0.3), (t, 1.7))
        if "own" in title and t < 3:
            arrow(ax, (t + 0.28, 1.9), (t + 0.8, 0.3), linestyle=":")
    ax.text(-0.45, 1, "decoder", rotation=90, va="center", ha="center", color="0.35")
    ax.set(title=title, xlim=(-0.65, 3.5), ylim=(-0.4, 2.4))
    ax.axis("off")
plt.show()

# %% [markdown]
# The model gives a distribution over whole target sentences, one factor for each token, and each factor is conditioned
# on the source and on *the true tokens before it*:
#
# $$
# p(y \mid x) = \prod_{t=1}^{n+1} p(y_t \mid y_1, \ldots, y_{t-1}, x)
# $$ (train-factors)
#
# with $y_{n+1} = \text{eos}$. Every distribution over sequences can be written in this way. A model that computes these
# factors is called **autoregressive**, and the negative logarithm of $p(y \mid x)$ is the **negative log-likelihood**
# (nll), in nats. In training all the conditions are known, so we compute all factors in one forward pass over
# `target_in`, with the causal mask. Let us check that against the decoder run step by step on the same true tokens, as the
# search of [chapter 6.1](6_1_translation.ipynb) runs it.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
config = ModelConfig.tiny(V, N=1, d_model=64, d_ff=128, h=4, p_drop=0.0)
model = Transformer(config).eval()
batch = make_batch(ids[:3])
with torch.no_grad():
    parallel = model(batch.source, batch.target_in)
    state = model.start(batch.source)
    steps = [model.step(batch.target_in[:, t : t + 1], state) for t in range(batch.target_in.size(1))]
print(f"one pass {tuple(parallel.shape)}, {len(steps)} steps; they differ by at most "
      f"{(torch.cat(steps, dim=1) - parallel).abs().max():.0e}")

# %% tags=["row-E17", "hide-cell"]
assert_close(torch.cat(steps, dim=1), parallel, atol=1e-5, rtol=1e-5)
log_p = parallel.log_softmax(dim=-1)
by_hand = -sum(log_p[row, t, token].item() for row, (_, target) in enumerate(ids[:3])
               for t, token in enumerate([*target, 2]))  # 2 is eos
_, nll = label_smoothed_cross_entropy(parallel, batch.target_out)
assert_close(nll.item(), by_hand, rtol=1e-5, atol=0)  # the loss adds up the factors' logarithms

# %% [markdown]
# So all positions of all sentences learn at the same time, where the state of a recurrent network walks from word to
# word ([chapter 1](1_introduction.ipynb)). The price is that the model sees only perfect prefixes in training, and has to
# go on from its own mistakes when it writes. This is called **exposure bias** {cite}`ranzato2016sequence`; one remedy
# mixes the model's own tokens in {cite}`bengio2015scheduled`. We measure it [below](section-copy).
#
# (section-slow-motion)=
# ## One training step in slow motion
#
# Let us follow one batch through one step. $n$ is the number of real target tokens in it, $r(s)$ the learning rate of
# step $s$ ([chapter 5.3](5_3_optimizer.ipynb)), and $\operatorname{Adam}$ the rule of {cite:t}`kingma2015adam`.
#
# $$
# \begin{aligned}
# \text{logits} &= \operatorname{Transformer}(\text{source}, \text{target\_in}) \\
# \mathcal{L} &= \textstyle\sum_{\text{real tokens}} \ell(\text{logits}, \text{target\_out}) \\
# g &= \nabla_w \, \mathcal{L} / n \\
# s &\leftarrow s + 1, \qquad \text{rate} = r(s) \\
# w &\leftarrow \operatorname{Adam}(w, g, \text{rate})
# \end{aligned}
# $$ (train-step)

# %% tags=["hide-cell"]
def size(tensor):
    return " × ".join(map(str, tensor.shape))

data, changed, made = "#dce9f5", "#fbe3cf", "white"
n_weights = sum(w.numel() for w in model.parameters())
boxes = [(0, 2.2, f"source\n{size(batch.source)}", data), (0, 1.2, f"target_in\n{size(batch.target_in)}", data),
         (2, 1.7, f"Transformer\n{n_weights:,} weights", changed), (4, 1.7, f"logits\n{size(parallel)}", made),
         (6, 1.7, f"loss / {batch.n_tokens}\none number", made), (6, 2.7, f"target_out\n{size(batch.target_out)}", data),
         (4.6, 0.2, "gradients, one per weight\n$W_1$: 128 × 64", made), (1.8, 0.2, "Adam\nrate $r(s)$", made)]
arrows = [((0.75, 2.2), (1.25, 1.9)), ((0.75, 1.2), (1.25, 1.5)), ((2.75, 1.7), (3.25, 1.7)),
          ((4.75, 1.7), (5.25, 1.7)), ((6, 2.35), (6, 2.05)), ((6, 1.35), (5.4, 0.55)),
          ((3.5, 0.2), (2.6, 0.2)), ((1.9, 0.55), (1.97, 1.35))]

# %% tags=["hide-input"] mystnb={"image": {"alt": "Flow of one training step with shapes. Source 3 by 8 and target_in 3 by 8 enter the Transformer; it gives logits 3 by 8 by 281; the loss, with target_out 3 by 8, is one number, divided by the number of real tokens; backward gives a gradient of the shape of each weight, such as 128 by 64 for W_1; Adam with the rate of the step changes the weights, which the next step's Transformer uses."}, "figure": {"caption": "One step with the shapes of our batch: blue is data, white is computed, orange is what the step changes.", "name": "fig-step"}}
figure, ax = plt.subplots(figsize=(7, 2.9), layout="constrained")
for x, y, text, colour in boxes:
    box(ax, x, y, text, colour, 2.0 if "grad" in text else 1.35, 0.55)
for start, end in arrows:
    arrow(ax, start, end)
ax.text(5.85, 0.85, "backward", ha="left", color="0.35")
ax.text(2.1, 0.85, "new weights", ha="left", color="0.35")
ax.set(xlim=(-0.8, 6.9), ylim=(-0.2, 3.1))
ax.axis("off")
plt.show()

# %% [markdown]
# `TrainingRun` holds a model, its optimizer and its counters. This is its step, as `train` runs it:

# %%
show(TrainingRun.step)

# %% [markdown]
# `self.loss` is the first two lines of equation {eq}`train-step`. Besides the equation we see a loop over several
# batches ({ref}`section-accumulate`), `autocast` and the scaler for 16-bit numbers ({ref}`section-precision`), a kernel
# that we avoid on a GPU ([On a GPU](on_a_gpu.ipynb)), and clipping of long gradients, an option that the paper lacks.
# `self.processes.n`, the number of processes, is 1 unless several GPUs share the step ({ref}`section-gpu-parallel`).
#
# Now we compute every number by hand. We begin with the forward pass and the loss. With label smoothing
# ([chapter 5.4](5_4_regularization.ipynb)), 0.9 of the loss is the negative log-probability of the true token, and 0.1
# is its mean over the vocabulary, summed over the real tokens.

# %%
settings = TrainConfig(warmup_steps=60, lr_factor=0.2, eps_ls=0.1)
run = TrainingRun(config, settings)
logits = run.model(batch.source, batch.target_in)
minus_log_p = -logits.log_softmax(dim=-1)
true = minus_log_p.gather(-1, batch.target_out[..., None])[..., 0]
real = batch.target_out != 0
loss = (0.9 * true + 0.1 * minus_log_p.mean(dim=-1))[real].sum() / batch.n_tokens
print(f"{batch.n_tokens} real tokens of {real.numel()}")
print(f"{loss:.3f} nats per token; a guess among {V} pieces costs {math.log(V):.3f}")

# %% [markdown]
# Backpropagation gives the gradients of all weights at once. We check one weight of $W_1$ the slow way: we move it a
# little in both directions and watch the loss, in float64 to keep enough digits.

# %%
W_1 = run.model.encoder.layers[0].feed_forward.W_1.weight
g = torch.autograd.grad(loss, W_1, retain_graph=True)[0][5, 7].item()  # kept for a second look

@torch.no_grad()
def loss_with(change):
    twin = copy.deepcopy(run.model).double()
    twin.encoder.layers[0].feed_forward.W_1.weight[5, 7] += change
    loss, _ = label_smoothed_cross_entropy(twin(batch.source, batch.target_in), batch.target_out)
    return loss.item() / batch.n_tokens

slope = (loss_with(1e-5) - loss_with(-1e-5)) / 2e-5
print(f"backward {g:.3e}, difference quotient {slope:.3e}")

# %% [markdown]
# The rate is set **before** the step, and the first step is step 1. Adam keeps a running mean $m$ of the gradient and a
# running mean $v$ of its square, both starting at zero and corrected for that start. At step 1 the correction gives back
# $g$ and $g^2$, so the update is the rate times the sign of the gradient. We predict the new weight, and then let
# `step` do all five lines, on a copy of the run.

# %%
rate = 0.2 * 64**-0.5 * min(1**-0.5, 1 * 60**-1.5)  # equation 3 at step 1
m, v = (1 - 0.9) * g, (1 - 0.98) * g**2
m_hat, v_hat = m / (1 - 0.9**1), v / (1 - 0.98**1)
before = W_1[5, 7].item()
predicted = before - rate * m_hat / (math.sqrt(v_hat) + 1e-9)
twin = copy.deepcopy(run)  # `run` itself stays at step 0
twin.step([batch])
after = twin.model.encoder.layers[0].feed_forward.W_1.weight[5, 7].item()
print(f"rate {rate:.3e}; the run's {twin.rate:.3e}")
print(f"w before {before:.6f}, predicted {predicted:.6f}, after the step {after:.6f}")

# %% tags=["hide-cell"]
assert_close(loss * batch.n_tokens, label_smoothed_cross_entropy(logits, batch.target_out, eps_ls=0.1)[0])
assert int(real.sum()) == batch.n_tokens < real.numel() and math.isclose(g, slope, rel_tol=1e-3)
assert math.isclose(rate, twin.rate) and math.isclose(after, predicted, rel_tol=1e-6)
assert math.isclose(abs(predicted - before), rate, rel_tol=1e-3)
late = TrainingRun(config, settings)  # set the rate after the step, and the first update does nothing
assert [group["lr"] for group in late.optimizer.param_groups] == [0]

# %% [markdown]
# Two mistakes here raise no error. If we set the rate after the step, the first update does nothing, because our
# optimizer starts with a rate of 0, and every later update is a step late. And if we forget `zero_grad`, then
# `backward` *adds* to the gradient, and step 100 uses the sum of a hundred gradients:

# %%
careless, lengths = copy.deepcopy(run.model), []
for _ in range(3):
    logits = careless(batch.source, batch.target_in)
    loss, _ = label_smoothed_cross_entropy(logits, batch.target_out)
    (loss / batch.n_tokens).backward()
    lengths.append(careless.embedding.weight.grad.norm().item())
print("length of the gradient:", *(f"{length:.3f}" for length in lengths))

# %% [markdown]
# The smallest test of a training loop takes random ids, one batch and some steps. A correct loop learns even random
# targets by heart:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
noise = make_batch([(torch.randint(4, 50, (9,)).tolist(), torch.randint(4, 50, (6,)).tolist())
                    for _ in range(4)])
toy = TrainingRun(ModelConfig.tiny(50, N=2, d_model=32, d_ff=64, p_drop=0.0),
                  TrainConfig(warmup_steps=40, lr_factor=0.2, eps_ls=0.0))
nats = [toy.step([noise])[1].item() / noise.n_tokens for _ in range(80)]
print(f"step 1: {nats[0]:.2f} nats per token; step 80: {nats[-1]:.2f}")

# %% tags=["row-X2", "row-L0", "hide-cell"]
assert all(map(math.isfinite, nats)) and nats[-1] < 0.2 * nats[0]
assert_close(lengths[2], 3 * lengths[0], atol=1e-3, rtol=1e-4)

# %% [markdown]
# (section-accumulate)=
# ## Gradient accumulation: divide once
#
# Suppose that a batch of 25,000 tokens is too large for our GPU. We can still take the same step, because the gradient
# of a sum is the sum of the gradients. We cut the batch into **micro-batches**, run `backward` on one after the other,
# let the gradients add up, and step once. What needs care is the divisor. With summed losses $\mathcal{L}_j$ and $n_j$
# real target tokens in micro-batches $1 \ldots k$:
#
# $$
# g = \frac{\nabla \mathcal{L}_1 + \cdots + \nabla \mathcal{L}_k}{n_1 + \cdots + n_k}
# \qquad \text{and not} \qquad
# \frac{1}{k} \sum_j \frac{\nabla \mathcal{L}_j}{n_j}
# $$ (train-accumulate)
#
# The second is the **mean of means**, which we get when each micro-batch returns its mean loss, as
# `nn.CrossEntropyLoss` does by default. Here are both, for twelve sequences cut into micro-batches of 1, 2 and 9.

# %%
def gradient(model, batch, divisor):
    """The gradient of all weights in one vector, from a summed loss over a divisor."""
    logits = model(batch.source, batch.target_in)
    loss, _ = label_smoothed_cross_entropy(logits, batch.target_out)
    grads = torch.autograd.grad(loss / divisor, list(model.parameters()))
    return torch.cat([grad.flatten() for grad in grads])

by_length = sorted(ids[:12], key=lambda pair: len(pair[1]))
whole, *parts = (make_batch(by_length[a:b]) for a, b in ((0, 12), (0, 1), (1, 3), (3, 12)))
exact = gradient(model, whole, whole.n_tokens)
tries = {"divide once": sum(gradient(model, part, whole.n_tokens) for part in parts),
         "mean of means": sum(gradient(model, part, part.n_tokens) for part in parts) / len(parts)}
for name, accumulated in tries.items():
    print(f"{name:14} off by {(accumulated - exact).norm() / exact.norm():.2f} of the gradient's length")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Bar chart of the weight of one token in the gradient, for micro-batches of 4, 9 and 73 tokens. Divided once, each token weighs 1/86, about 0.012. In the mean of means a token weighs 0.083 in the smallest micro-batch, 0.037 in the second and 0.005 in the largest."}, "figure": {"caption": "How much one token counts. The mean of means gives a token of the smallest micro-batch 18 times the weight of a token of the largest.", "name": "fig-divisor"}}
figure, ax = plt.subplots(figsize=(5, 2.5), layout="constrained")
means = [1 / (3 * part.n_tokens) for part in parts]
ax.bar([j - 0.18 for j in range(3)], [1 / whole.n_tokens] * 3, 0.36, label="divide once")
ax.bar([j + 0.18 for j in range(3)], means, 0.36, label="mean of means")
ax.set(xticks=range(3), xticklabels=[part.n_tokens for part in parts],
       xlabel="tokens in the micro-batch", ylabel="weight of one token")
ax.legend(frameon=False)
plt.show()

# %% tags=["hide-cell"]
assert_close(tries["divide once"], exact, atol=1e-5, rtol=1e-3)
assert (tries["mean of means"] - exact).norm() > 0.1 * exact.norm()
assert [part.n_tokens for part in parts] == [4, 9, 73] and round(means[0] / means[2]) == 18
padded = gradient(model, whole, whole.target_out.numel())  # divided by the padding as well: too small
assert_close(padded, whole.n_tokens / whole.target_out.numel() * exact, atol=1e-6, rtol=1e-3)

# %% [markdown]
# The package sums everywhere and divides once. In `TrainConfig` we write `max_tokens=6250, accumulate=4` for about the
# paper's batch.
#
# A second mistake is in the condition for the step. `run_epoch` of
# [The Annotated Transformer](https://github.com/harvardnlp/annotated-transformer/blob/0a91a254735c07532e23733dce8a693e504f3a08/the_annotated_transformer.py)
# {cite}`rush2018annotated` (commit 0a91a25) steps if `i % accum_iter == 0`. We try ten batches and $k = 4$:

# %%
for name, due in (("i % 4 == 0", lambda i: i % 4 == 0), ("(i + 1) % 4 == 0", lambda i: (i + 1) % 4 == 0)):
    steps, waiting = [], []
    for i in range(10):
        waiting.append(i)
        if due(i):
            steps, waiting = [*steps, waiting], []
    print(f"{name:17} steps {steps}, left over {waiting}")

# %% [markdown]
# In the first epoch the first form makes a step of a single batch. Both end an epoch with gradients that no step has
# used; they stay in `.grad` and are added to the first step of the next epoch. In `run_epoch` the learning rate also
# advances with every batch,
# $k$ times too fast. Our package draws `accumulate` batches for each step, across the end of an epoch if need be.
#
# (section-hardware)=
# ## The paper's hardware: eight GPUs, one step
#
# Section 5.2 of the paper, as numbers:
#
# | the paper says | base | big |
# |---|---|---|
# | hardware | one machine, 8 NVIDIA P100 GPUs | the same |
# | time per step | about 0.4 s | 1.0 s |
# | steps | 100,000 | 300,000 |
# | time | 12 hours | 3.5 days |
# | a batch (5.1) | about 25,000 source and 25,000 target tokens | the same |

# %%
base_hours, big_days = 100_000 * 0.4 / 3600, 300_000 * 1.0 / 86_400
print(f"base {base_hours:.1f} h (the paper: 12 h), big {big_days:.2f} days (the paper: 3.5 days)")
print(f"base: {25_000 / 0.4:,.0f} target tokens per second, {25_000 / 0.4 / 8:,.0f} per GPU")

# %% tags=["row-H8", "hide-cell"]
assert round(base_hours, 1) == 11.1 and round(big_days, 1) == 3.5
assert round(12 * 3600 / 100_000, 2) == 0.43

# %% [markdown]
# The products agree for big; for base 12 hours would need 0.43 s per step. [Chapter 6.1](6_1_results.ipynb) tells what
# Table 2 makes of these times.
#
# How do eight GPUs take one step together? The usual answer is **data parallelism**. Every GPU holds a copy of the whole
# model and gets its own part of the batch. Each computes the gradient of its part, and then an **all-reduce** adds up the
# eight gradients and hands every GPU the sum. All copies take the same Adam step, so they stay equal without ever
# exchanging a weight.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three GPUs drawn as columns. Each gets its own part of the batch and has a full copy of the model; forward and backward give a gradient of its own, g1, g2, g3. A bar across all columns, the all-reduce, adds them up; below it each GPU has the same sum and takes the same Adam step."}, "figure": {"caption": "Data parallelism on three GPUs. Above the bar each works alone; the all-reduce is the only exchange; below it all do the same.", "name": "fig-all-reduce"}}
figure, ax = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for j in range(3):
    x = 2.2 * j
    box(ax, x, 4, f"GPU {j + 1}: $n_{j + 1}$ tokens", "#dce9f5", 1.7)
    box(ax, x, 3, "copy of the model", "#fbe3cf", 1.7)
    box(ax, x, 2, rf"$\nabla\mathcal{{L}}_{j + 1}$", "white", 1.7)
    box(ax, x, 0, "the same Adam step", "#fbe3cf", 1.7)
    for y in (4, 3, 2, 1):
        arrow(ax, (x, y - 0.3), (x, y - 0.7))
box(ax, 2.2, 1, r"all-reduce: $(\nabla\mathcal{L}_1 + \nabla\mathcal{L}_2 + \nabla\mathcal{L}_3)"
    r"\;/\;(n_1 + n_2 + n_3)$", "#d9f0e6", 6.1)
ax.set(xlim=(-1, 5.4), ylim=(-0.4, 4.4))
ax.axis("off")
plt.show()

# %% [markdown]
# This is accumulation in space instead of time, and equation {eq}`train-accumulate` holds again. Suppose that each GPU
# divides by its own token count, and that we average. The result is right if we weight each gradient by its GPU's share
# of the tokens. We cut our batch into two halves of six sequences and compare:

# %%
halves = [make_batch(by_length[:6]), make_batch(by_length[6:])]
own = [gradient(copy.deepcopy(model), half, half.n_tokens) for half in halves]  # two GPUs, two copies
shares = [half.n_tokens / whole.n_tokens for half in halves]
weighted = sum(share * g for share, g in zip(shares, own))
plain = sum(own) / 2
print(f"{[half.n_tokens for half in halves]} tokens")
for name, result in (("weighted by tokens", weighted), ("plain mean", plain)):
    print(f"{name:19} off by {(result - exact).norm() / exact.norm():.3f}")

# %% tags=["hide-cell"]
assert_close(weighted, exact, atol=1e-5, rtol=1e-3)
assert (plain - exact).norm() > 0.05 * exact.norm()

# %% [markdown]
# PyTorch's `DistributedDataParallel` takes the plain mean {cite}`li2020pytorch`, so with unequal parts we have to scale
# each loss ourselves, as the step above does with the factor `self.processes.n / n_tokens`. It starts the all-reduce of
# the last layers while `backward` still works on the first, which hides much of the transfer. In a **ring** of eight,
# where each GPU passes pieces to its neighbour, each sends $2 \cdot 7/8$ of the gradient
# {cite}`patarasuk2009bandwidth`: 441 MB per step for base's 63 million weights in float32.

# %% tags=["hide-cell"]
with torch.device("meta"):
    n_weights = sum(w.numel() for w in Transformer(ModelConfig.base(37_000)).parameters())
assert round(2 * 7 / 8 * 4 * n_weights / 1e6) == 441

# %% [markdown]
# (section-precision)=
# ## Mixed precision: 16 bits where they suffice
#
# A GPU multiplies 16-bit numbers several times as fast as 32-bit ones: two to eight times on a V100 {cite}`micikevicius2018mixed`, some
# 15 times by the data sheets of an A100 and an H100. Which parts of training can use them? A floating-point number is
# $\pm 1.f \cdot 2^e$. Bits for the exponent $e$ give **range**: how large and how small a number may be. Bits for the
# fraction $f$ give **precision**: how close two neighbouring numbers are. bfloat16 {cite}`kalamkar2019study` keeps
# float32's range; float16 has more digits and a small range.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three rows of small squares, one per bit. float32: 1 sign bit, 8 exponent bits, 23 fraction bits; bfloat16: 1, 8 and 7; float16: 1, 5 and 10. At the right of each row, its largest number and its spacing at 1: 3.4e+38 and 2^-23; 3.4e+38 and 2^-7; 6.6e+04 and 2^-10."}, "figure": {"caption": "Where the bits go: sign, exponent (range), fraction (precision).", "name": "fig-bits"}}
figure, ax = plt.subplots(figsize=(7, 1.7), layout="constrained")
colours = [PALETTE[6], PALETTE[1], PALETTE[0]]
for y, (name, e, f) in enumerate((("float32", 8, 23), ("bfloat16", 8, 7), ("float16", 5, 10))):
    info = torch.finfo(getattr(torch, name))
    left = [0, 1, 1 + e]
    for start, n_bits, colour in zip(left, (1, e, f), colours):
        ax.bar([start + i + 0.5 for i in range(n_bits)], 0.7, 0.9, y - 0.35, color=colour, alpha=0.75)
    ax.text(33 if y == 0 else 17, y, f"largest {info.max:.1e}, spacing at 1: $2^{{{round(math.log2(info.eps))}}}$",
            va="center")
for x, name, colour in ((0.2, "sign", 0), (3, "exponent", 1), (18, "fraction", 2)):
    ax.text(x - 0.7 * (colour == 0), -0.6, name, color=colours[colour])
ax.set(yticks=range(3), yticklabels=["float32", "bfloat16", "float16"], xticks=[], xlim=(-1, 47), ylim=(2.5, -1))
ax.spines[["left", "bottom"]].set_visible(False)
plt.show()

# %% [markdown]
# **Range** decides for bf16 in the backward pass. With label smoothing, the gradient for the logit of an unlikely token
# is about $0.1 / V$, divided by the tokens of the batch. For the paper's base model that is $10^{-10}$, and float16 has
# no such number:

# %%
small = torch.tensor(0.1 / 37_000 / 25_000)
print(f"gradient of a logit  {small:.1e}")
print(f"in float16           {small.half():.1e}")
print(f"in bfloat16          {small.bfloat16():.1e}")
print(f"float16, times 2^16  {(small * 2**16).half():.1e}")

# %% tags=["hide-cell"]
assert small.half() == 0 and (small * 2**16).half() > 0
assert math.isclose(small.bfloat16(), small, rel_tol=2**-8)
assert [math.log2(torch.finfo(t).eps) for t in (torch.float32, torch.bfloat16, torch.float16)] == [-23, -7, -10]
assert torch.finfo(torch.bfloat16).tiny == torch.finfo(torch.float32).tiny

# %% [markdown]
# The last line is **loss scaling**: with float16 we multiply the loss by a large factor before `backward` and divide
# the gradients by it afterwards. PyTorch's scaler halves the factor and skips the step where a gradient overflows, and
# doubles it after 2,000 steps without overflow. bf16 needs none of this. The paper does not state its precision; its GPUs
# had no bf16.
#
# **Precision** decides for float32 in the weights, because an update is small beside its weight. In bf16 the next
# number after 1 is $1 + 2^{-7} = 1.0078$, so an update of 0.001 is rounded away, and so is every one after it.

# %% mystnb={"image": {"alt": "Line chart of a weight over 60 updates of 0.001. In float32 it rises in a straight line from 1 to 1.06. Kept in bfloat16 it stays at 1. A third curve, the float32 master rounded to bfloat16, follows the line in stairs of eight updates each."}, "figure": {"caption": "A weight that is to grow by 0.001 at each of 60 updates. A float32 master keeps what its rounded copy cannot show.", "name": "fig-master-weights"}}
master, alone = torch.ones(61), torch.ones(61, dtype=torch.bfloat16)
for i in range(60):
    master[i + 1], alone[i + 1] = master[i] + 0.001, alone[i] + 0.001
figure, ax = plt.subplots(figsize=(5, 2.6), layout="constrained")
ax.plot(master, label="float32 master")
ax.step(range(61), master.bfloat16().float(), where="mid", label="the master, rounded to bfloat16")
ax.plot(alone.float(), "--", label="bfloat16 alone")
ax.set(xlabel="update", ylabel="weight")
ax.legend(frameon=False)
plt.show()

# %% tags=["hide-cell"]
assert abs(master[-1] - 1.06) < 1e-5 and alone[-1] == 1
whole_logits = model(whole.source, whole.target_in)
true_loss, _ = label_smoothed_cross_entropy(whole_logits, whole.target_out)
with torch.autocast("cpu", dtype=torch.bfloat16):
    logits = model(whole.source, whole.target_in)
    loss, _ = label_smoothed_cross_entropy(logits, whole.target_out)
loss.backward()
assert logits.dtype == torch.bfloat16 and loss.dtype == torch.float32
assert all(w.dtype == w.grad.dtype == torch.float32 for w in model.parameters())
assert abs(loss - true_loss) / true_loss < 0.01

# %% [markdown]
# Hence *mixed* precision: weights, gradients, Adam's state and the loss stay in float32, and the matrix products of the
# forward and the backward pass use copies in bf16, which PyTorch's `autocast` makes. `TrainConfig.precision` is "auto":
# bf16 on a GPU that has it, float16 on an older one such as Colab's T4, float32 on a CPU.
# [On a GPU](on_a_gpu.ipynb) has what it buys.
#
# (section-copy)=
# ## A task learned to the last letter
#
# How do we know that model, batches, loss, rate and search all work? We train on a task that a correct program
# must master *completely*. A score of 97 percent on translation may hide a bug; 97 percent on copying gives it away. We
# take one encoder and one decoder layer with $d_{\text{model}} = 64$, train for 800 steps, and average the last five
# checkpoints, as in section 6.1 of the paper. While the average gets a validation sequence wrong, we resume the run for
# 200 steps more.

# %% tags=["nbval-ignore-output"]
def count_right(model, texts):
    """Sequences that greedy search copies to the last letter."""
    truths = [tokenizer.encode(text) for text in texts]
    return sum(copied == truth for copied, truth in zip(greedy_search(model, pad_source(truths)), truths))

folder = tempfile.TemporaryDirectory()
settings = TrainConfig(max_tokens=800, warmup_steps=60, lr_factor=0.2, max_length=50, log_every=5,
                       validate_every=10**6, checkpoint_every=20, keep_checkpoints=80)
for n_steps in range(800, 1601, 200):
    copier = train(config, settings.replace(train_steps=n_steps), tokenizer, pairs, [],
                   f"{folder.name}/copy", progress=False, resume=n_steps > 800)
    averaged, _ = load_model(average_checkpoints(f"{folder.name}/copy", last=5))
    if count_right(averaged, valid) == len(valid):
        break
print(f"{sum(w.numel() for w in copier.parameters()):,} weights, {n_steps} steps")

# %% [markdown]
# Now we try the 500 test sequences, which have played no part so far. Our model copies all of them to the last letter.

# %% tags=["row-X1"]
accuracy = count_right(averaged, fresh) / len(fresh)
print(f"{accuracy:.0%} of {len(fresh)} fresh sequences without a mistake")
assert accuracy == 1.0

# %% [markdown]
# How did it get there? At every second checkpoint we measure the share of *tokens* that are right under teacher forcing,
# and the share of whole *sequences* that greedy search gets right.

# %% tags=["hide-cell"]
answers = [tokenizer.encode(text) for text in fresh]
exam = make_batch([(x, x) for x in answers])
asked = exam.target_out != 0

def judge(path):
    """What the decoder predicts given the truth, (B, T), and what greedy search writes."""
    weights.load_weights(copier, weights.load_tensors(path)[0], path)
    with torch.no_grad():
        forced = copier.eval()(exam.source, exam.target_in).argmax(dim=-1)
    return forced, greedy_search(copier, exam.source, max_extra=5)

# %% tags=["hide-cell"]
every_second = checkpoint.step_checkpoints(f"{folder.name}/copy")[::2]
judged = [judge(path) for path in every_second]
hits = [forced == exam.target_out for forced, _ in judged]
token_share = [hit[asked].float().mean().item() for hit in hits]
exact_share = [sum(a == b for a, b in zip(written, answers)) / 500 for _, written in judged]
log = [json.loads(line) for line in Path(f"{folder.name}/copy/log.jsonl").read_text().splitlines()]
right, wrong = 0.9 + 0.1 / V, 0.1 / V
floor = -right * math.log(right) - (V - 1) * wrong * math.log(wrong)
typical = sorted(record["nll"] for record in log[-40:])[20]
assert round(floor, 2) == 0.89 and -0.02 < typical + math.log(right) < 0.1

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two charts over the steps of training. Above, the loss per token falls from more than 6 nats and meets, after about 300 steps, a dashed line at 0.89, the smallest that label smoothing allows. Below, the share of right tokens under teacher forcing rises first, the share of sequences copied exactly rises later and more steeply; both reach 1, with some dips."}, "figure": {"caption": "The copy task. Above: loss on the training batches. Below: shares on the test sequences.", "name": "fig-copy"}}
figure, axes = plt.subplots(2, figsize=(5, 4.2), sharex=True, layout="constrained")
number = [int(path.stem.split("-")[1]) for path in every_second]
axes[0].plot([r["step"] for r in log], [r["loss"] for r in log])
axes[0].axhline(floor, color=PALETTE[1], linestyle="--", label="the smallest possible: 0.89")
axes[0].set(ylabel="nats per token", ylim=(0, None))
axes[1].plot(number, token_share, "-", label="tokens, teacher forcing")
axes[1].plot(number, exact_share, "--", label="sequences, greedy search")
axes[1].set(xlabel="step", ylabel="share right", ylim=(0, 1.05))
for ax in axes:
    ax.legend(frameon=False)
plt.show()

# %% [markdown]
# Both shares reach 1, and now and then they dip while the loss jumps: a few steps throw the model off, and it returns.
# The last checkpoint in the picture copies only about half of the sequences, the average all 500; that is the reason
# for our average. The loss settles at 0.89 nats rather than zero because label smoothing asks for a probability of 0.9,
# and a model that outputs exactly this distribution has the loss of the dashed line ([chapter
# 5.4](5_4_regularization.ipynb); in perplexity it costs a factor of *at most* $1/(1 - \epsilon_{ls})$).
#
# On the web page of this chapter you can watch a smaller one learn to *reverse* words, in your browser; over 200 steps
# its losses agree with PyTorch's to $3 \cdot 10^{-7}$.
#
# ```{translator} training
# ```
#
# ### What exposure costs here
#
# As long as all tokens so far are right, teacher forcing and greedy search read the same prefix. They differ only
# *after a first mistake* ({ref}`train-ex-law`). So we take the half-trained checkpoints, which copy between 5 and 95
# percent of the sequences, and count the mistakes in each text that has one. Free-running text may be shifted, as in our
# first drawing, and then a comparison position by position counts every later letter as wrong. The fair count is the
# **edit distance**, the fewest insertions, deletions and substitutions that turn one text into another. As a control we
# score the text written for *another* sequence.

# %%
def edit_distance(written, truth):
    row = list(range(len(truth) + 1))
    for i, token in enumerate(written, start=1):
        diagonal, row[0] = row[0], i
        for j, wanted in enumerate(truth, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (token != wanted))
    return row[-1]

def by_position(written, truth):
    return sum(a != b for a, b in zip(written, truth)) + abs(len(written) - len(truth))

print("adbc for abc: by position", by_position("adbc", "abc"), "edit distance", edit_distance("adbc", "abc"))

# %% tags=["hide-cell"]
mistaken = [([*truth, 2], forced[i, : len(truth) + 1].tolist(), [*written[i], 2])
            for (forced, written), share in zip(judged, exact_share) if 0.05 < share < 0.95
            for i, truth in enumerate(answers) if written[i] != truth]
others = mistaken[7:] + mistaken[:7]
counts = {"teacher forcing": [by_position(forced, truth) for truth, forced, _ in mistaken],
          "free, edit distance": [edit_distance(free, truth) for truth, _, free in mistaken],
          "free, by position": [by_position(free, truth) for truth, _, free in mistaken],
          "control: another's text": [edit_distance(o[2], truth) for (truth, *_), o in zip(mistaken, others)]}
average = {name: sum(values) / len(values) for name, values in counts.items()}

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"image": {"alt": "Four horizontal bars, the average number of mistakes in a text with at least one: teacher forcing 1.6, free running by edit distance 2.4, free running by position 3.9, and the control, another sequence's text, 7.5."}, "figure": {"caption": "Mistakes per text, among the texts of about eight tokens that have one.", "name": "fig-exposure"}}
figure, ax = plt.subplots(figsize=(5.5, 2), layout="constrained")
ax.barh(list(average), list(average.values()), color=[PALETTE[i] for i in (0, 1, 1, 6)])
ax.bar_label(ax.containers[0], fmt="%.1f", padding=3)
ax.set(xlim=(0, 9), xlabel="mistakes per text")
ax.invert_yaxis()
plt.show()

# %% tags=["hide-cell"]
forced, free, shifted, control = average.values()
assert len(mistaken) > 200 and 1 <= forced < free < shifted < control
assert 1.3 < free / forced < 2 and (shifted - free) > 0.3 * (shifted - forced)

# %% tags=["hide-cell"]
exceptions = 0  # two logits may be so close that rounding decides
for (_, written), hit in zip(judged, hits):
    all_right = (hit | ~asked).all(dim=1).tolist()
    exceptions += sum(one != (a == b) for one, a, b in zip(all_right, written, answers))
assert exceptions <= 2

# %% [markdown]
# In our run a text with a mistake has 1.6 of them under teacher forcing and 2.4 when the model reads itself, against
# 7.5 for the control. So exposure costs our model a little less than one more mistake per text. Counted by position it
# would seem to cost 2.3: about two thirds of that is the shift. Even the smaller number is an upper bound, since the
# teacher also hands over the right letter. A translator always makes some mistakes, which is one reason for beam search
# ([chapter 6.1](6_1_translation.ipynb)).
#
# (section-resume)=
# ## Resuming a run exactly
#
# A run may stop after three days. To go on as if nothing had happened, we need everything that the next step depends
# on: the weights, Adam's two means and its step count, the number of the step for the rate, the place in the epoch for
# the next batch, and the state of the random generator for dropout. The package stores these at every checkpoint. We
# train 24 steps with dropout in one run; then 12, and 12 more after `resume`; and then 12 with the weights alone.

# %%
noisy = config.replace(p_drop=0.1)
short = TrainConfig(train_steps=24, max_tokens=200, max_length=50, warmup_steps=5, lr_factor=0.2,
                    checkpoint_every=6, log_every=1)

def short_run(name, resume=False, init=None, **changes):
    return train(noisy, short.replace(**changes), tokenizer, pairs[:300], [], f"{runs}/{name}",
                 progress=False, resume=resume, init=init)

runs = tempfile.mkdtemp(dir=folder.name)
straight, half = short_run("straight"), short_run("stopped", train_steps=12)
short_run("restarted", train_steps=12, init=f"{runs}/stopped")  # the weights alone
resumed = short_run("stopped", resume=True)
equal = [torch.equal(w, resumed.get_parameter(name)) for name, w in straight.named_parameters()]
print(f"{sum(equal)} of {len(equal)} weight tensors of the resumed run equal the straight run's, bit for bit")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Loss per token over the steps 8 to 24. The run resumed after step 12 lies exactly on the straight run. The run restarted with the weights alone leaves the line after step 12."}, "figure": {"caption": "The same run uninterrupted, resumed after step 12, and restarted from its weights alone.", "name": "fig-resume"}}
figure, ax = plt.subplots(figsize=(5, 2.5), layout="constrained")
for name, start, style in (("straight", 0, "-"), ("stopped", 0, "o"), ("restarted", 12, "s--")):
    lines = Path(f"{runs}/{name}/log.jsonl").read_text().splitlines()
    losses = {start + r["step"]: r["loss"] for r in map(json.loads, lines) if "loss" in r}
    label = {"straight": "one run", "stopped": "stopped, resumed", "restarted": "weights alone"}[name]
    ax.plot(list(losses), list(losses.values()), style, markersize=4, label=label, fillstyle="none")
ax.axvline(12.5, color="0.7", linestyle=":")
ax.set(xlabel="step", ylabel="nats per token", xlim=(7.5, 24.5), ylim=(2.9, 3.3))
figure.legend(loc="outside upper center", ncols=3, frameon=False)
plt.show()

# %% tags=["hide-cell"]
assert all(equal)
restarted, _ = load_model(f"{runs}/restarted")
assert max((w - restarted.get_parameter(name)).abs().max() for name, w in straight.named_parameters()) > 1e-4
tensors, metadata = weights.load_tensors(Path(runs, "stopped", "training.safetensors"))
kinds = {".".join(name.split(".")[:2]) for name in tensors}
assert {"adam.exp_avg", "adam.exp_avg_sq", "adam.step", "random.cpu"} < kinds
assert json.loads(metadata["counters"])["step"] == 24
try:
    short_run("stopped", resume=True, max_tokens=400)  # another batch size would be another run
except ConfigError as error:
    print(str(error).replace(runs, "RUNS"))
else:
    raise AssertionError("another run under the same name")

# %% [markdown]
# With the weights alone Adam has lost its means, the warm-up begins again, and the first batches come once more. A
# resumed run must also have the same settings, tokenizer and pairs. The bits repeat on the same machine, library and
# number of threads; on a GPU some kernels add in an order that varies.
#
# (section-wmt14)=
# ## The WMT14 recipe
#
# These commands repeat the paper's training of base on English-German; 1,500 steps of 0.4 s are its ten minutes between
# checkpoints.

# %%
recipe = """annotated-transformer prepare wmt14-en-de
annotated-transformer train --corpus wmt14-en-de --preset base
  --vocab-size 37000 --set train_steps=100000 --set max_tokens=25000
  --set warmup_steps=4000 --set checkpoint_every=1500 --out RUN
annotated-transformer average RUN --last 5
annotated-transformer evaluate RUN-averaged --corpus wmt14-en-de
  --split test --beam-size 4 --alpha 0.6 --max-extra 50"""
print(recipe.replace("\n  ", " \\\n  "))

# %% [markdown]
# For the paper's other models we change these:
#
# | | base, En-De | big, En-De | big, En-Fr |
# |---|---|---|---|
# | `--corpus` | `wmt14-en-de` | `wmt14-en-de` | `wmt14-en-fr` |
# | `--vocab-size` | 37000 | 37000 | 32000 |
# | `--preset` | `base` | `big` | `big`, and `--set p_drop=0.1` |
# | `train_steps` | 100000 | 300000 | 300000 |
# | `checkpoint_every` | 1500 | 600 | 600 |
# | `average --last` | 5 | 20, with `--set keep_checkpoints=20` | 20, likewise |
#
# We have not run this recipe at full size. It differs from the paper: one GPU instead of eight; BPE for French and 40.8
# million French pairs instead of 36 million ([chapter 5.1](5_1_data_and_batching.ipynb)); a limit of 25,000 tokens that
# counts padding; pairs of more than 255 tokens left out; half precision on a GPU. The folded cells check that the settings
# are the paper's, and that the four commands run on a small corpus of the same form.

# %% tags=["row-X4", "row-H5", "hide-cell"]
from annotated_transformer.command_line import entry_point as cli
from annotated_transformer.command_line.train_verb import run_settings

commands = [line.split()[1:] for line in recipe.replace("\n  ", " ").splitlines()]
options = cli.parser().parse_args(commands[1])
base, plan, _ = run_settings(options, Path(options.out))
assert (base.N, base.d_model, base.d_ff, base.h) == (6, 512, 2048, 8)
assert (base.d_k, base.d_v, base.p_drop, base.norm) == (64, 64, 0.1, "post")
assert (plan.beta1, plan.beta2, plan.adam_eps) == (0.9, 0.98, 1e-9)
assert (plan.train_steps, plan.warmup_steps) == (100_000, 4000)
assert (plan.max_tokens, plan.eps_ls, plan.lr_factor) == (25_000, 0.1, 1.0)
assert base.vocab_size == 37_000 and plan.clip_norm == 0
assert [command[0] for command in commands] == ["prepare", "train", "average", "evaluate"]

# %% tags=["hide-cell"]
slice_directory = Path(folder.name, "slice", "wmt14-en-de")
slice_directory.mkdir(parents=True, exist_ok=True)
houses = [(f"House {i} has {j} windows.", f"Haus {i} hat {j} Fenster.") for i in range(2, 12) for j in range(2, 8)]
cut = {"train": houses[:-8], "valid": houses[-8:-4], "test": houses[-4:]}
for split, chosen in cut.items():
    rows = [json.dumps({"translation": {"en": en, "de": de}}) + "\n" for en, de in chosen]
    (slice_directory / f"{split}.jsonl").write_text("".join(rows))
changes = {"N": 1, "d_model": 32, "d_ff": 64, "h": 4, "warmup_steps": 20,
           "train_steps": 60, "checkpoint_every": 10, "max_tokens": 300}
tiny = ["--vocab-size", "300", *(word for name, value in changes.items() for word in ("--set", f"{name}={value}"))]

# %% tags=["row-X4", "hide-cell"]
import contextlib
import io

out = tempfile.mkdtemp(dir=folder.name) + "/run"
data = ["--data-dir", str(slice_directory)]
for verb, *words in commands:
    words = [word.replace("RUN", out) for word in words]
    words += {"prepare": data, "train": [*tiny, *data, "--quiet"],
              "average": [], "evaluate": [*data, "--quiet"]}[verb]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert cli.main([verb, *words]) == 0, verb
    print("done:", verb)
assert printed.getvalue().startswith("BLEU") and "tok:13a" in printed.getvalue()

# %% tags=["row-X4", "hide-cell"]
stored = json.loads(Path(f"{out}-averaged", "config.json").read_text())
assert stored["corpus"] == "wmt14-en-de" and stored["train"]["eps_ls"] == 0.1
assert stored["model"]["d_model"] == 32 and stored["model"]["norm"] == "post"

# %% [markdown]
# ### The recipe on a slice of the real text
#
# What do these steps make of real news and parliament? `benchmarks/wmt_slice_training.py` takes them with smaller
# numbers on the slice of 9,999 pairs that [chapter 5.1](5_1_data_and_batching.ipynb) measured: encoded files (the
# *shards* of [the page on WMT](wmt14.md)), 1,200 steps, the average of five checkpoints, and both scores of that page.
# So few pairs cannot teach translation. But does the model read its source at all? As a control, each target gets
# *another* sentence's source.

# %% tags=["row-X4"]
sliced = json.loads(Path("results/wmt_slice_training.json").read_text())["records"][0]
scored, trained = sliced["test"], sliced["training"]
print(f"{sliced['pairs']['train']:,} pairs, {trained['steps']:,} steps, {trained['train_seconds'] / 60:.0f} minutes on one core")
print(f"BLEU {scored['sacreBLEU']['score']:.1f}, with compounds split {scored['compound-split BLEU']['score']:.1f}")
right, wrong = scored["perplexity"], scored["perplexity with other sources"]
print(f"perplexity {right:.0f}, with other sentences' sources {wrong:.0f}")
assert sliced["encoded"]["vocab_size"] > right and (round(right), round(wrong)) == (383, 456)
assert trained["training_log"][-1]["nll"] < trained["training_log"][0]["nll"] - 2

# %% [markdown]
# It does: with the wrong sources perplexity is a fifth higher, 456 against 383. A BLEU of 0.3 is that of a model that has
# hardly begun.
#
# :::{dropdown} Where this is
# `TrainingRun` and `train` in `annotated_transformer/training/` (`run.py`, `loop.py`, `state.py`), `Transformer.step`, the
# commands in `cli.py`. Tests: `test_adam_by_hand`, `test_two_half_batches_equal_one_whole_batch`,
# `test_a_run_killed_at_five_random_steps_ends_with_the_same_weights`.
# :::
#
# ## Exercises
#
# ```{exercise} A guess
# :label: train-ex-guess
#
# A model gives every token of a vocabulary of 37,000 the same probability. What are its nll, its smoothed loss
# ($\epsilon_{ls} = 0.1$) and its perplexity $e^{\text{nll}}$ per token? What does it tell us if a fresh model starts
# at 14 nats?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The smoothed loss is a mean of negative log-probabilities, which are all equal here.
# ```
#
# ```{solution} train-ex-guess
# :class: dropdown
#
# $\ln 37000 = 10.52$ nats for both, and a perplexity of 37,000. A model that starts well above is confidently wrong: some of its logits are too large, for instance because an untrained tied model predicts the token that it has just read.
# ```

# %% tags=["hide-cell"]
logits, target = torch.zeros(1, 37_000), torch.tensor([5])
loss, nll = label_smoothed_cross_entropy(logits, target)
assert_close(loss, nll)
assert round(nll.item(), 2) == 10.52 and round(nll.exp().item(), -2) == 37_000

# %% [markdown]
# ```{exercise} The mean of means by hand
# :label: train-ex-means
#
# Two micro-batches: one token with a loss of 4 nats, and nine tokens with 1 nat each. What is the loss per token, and
# what is the mean of means? How much more does the lone token weigh in the second?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Write both as weighted sums of ten losses.
# ```
#
# ```{solution} train-ex-means
# :class: dropdown
#
# $(4 + 9)/10 = 1.3$ against $(4 + 1)/2 = 2.5$. The lone token's weight is $1/2$ instead of $1/10$: five times too
# much. Each of the nine has $1/18$ instead of $1/10$.
# ```

# %% tags=["hide-cell"]
losses = [[4.0], [1.0] * 9]
assert sum(map(sum, losses)) / 10 == 1.3
assert sum(sum(part) / len(part) for part in losses) / 2 == 2.5
assert (1 / 2) / (1 / 10) == 5

# %% [markdown]
# ```{exercise} Counting in sixteen bits
# :label: train-ex-counting
#
# Start at 0 and add 1 again and again in bfloat16. Where does the sum stop growing? And in float16 and float32? What
# does that mean for a loss that is summed over 25,000 tokens?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# With $f$ bits of fraction, the spacing of numbers reaches 2 at $2^{f+1}$. A tie rounds to the even neighbour.
# ```
#
# ```{solution} train-ex-counting
# :class: dropdown
#
# At 256, 2048, and $2^{24} = 16{,}777{,}216$. Above 256, bf16 has only even numbers; $256 + 1$ is a tie that goes to
# 256. A sum of 25,000 losses of about one nat would be stuck there. Therefore we compute the loss in float32, whatever
# the type of the logits.
# ```

# %% tags=["hide-cell"]
def count(dtype, start):
    total = torch.tensor(start, dtype=dtype)
    while total + 1 != total:
        total += 1
    return total.item()

assert count(torch.bfloat16, 0.0) == 256 == 2 ** (7 + 1)
assert count(torch.float16, 0.0) == 2048 == 2 ** (10 + 1)
assert count(torch.float32, 2.0**24 - 10) == 2 ** (23 + 1)

# %% [markdown]
# ```{exercise} When search and teacher agree
# :label: train-ex-law
#
# Prove: greedy search writes $y$ if and only if, under teacher forcing with $y$, the most probable token is right at
# every position, eos included. Is there a version for beam search?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Induction on the position. What does each of the two read at position $t$?
# ```
#
# ```{solution} train-ex-law
# :class: dropdown
#
# At position 1 both read bos. If all tokens before $t$ are right, both read the same prefix, have the same
# distribution, and take the same token. If that is $y_t$ for every $t$, the search writes $y$; at the first $t$ where it
# is another, the search writes something else. For beam search the law fails: $y$ may win although one of its tokens
# was second best.
# ```
# %% tags=["hide-cell"]
# Two batches of 200 tokens are not the halves of one of 400, so these two runs differ.
runs = tempfile.mkdtemp(dir=folder.name)
one = short_run("one-batch", train_steps=5, max_tokens=400)
other = short_run("two-batches", train_steps=5, max_tokens=200, accumulate=2)
assert not torch.equal(one.embedding.weight, other.embedding.weight)
assert noam_learning_rate(1, 64, 60, 0.2) == rate

# %% [markdown]
# ## What to remember
#
# - In training the decoder reads the true prefix, so one pass computes all positions (equation {eq}`train-factors`).
#   When it writes it reads itself.
# - A step: forward, sum the loss, divide once by the real target tokens, backward, set the rate, Adam, clear the
#   gradients (equation {eq}`train-step`).
# - Micro-batches and GPUs add up gradients. The sum equals one large batch if we divide by *all* tokens.
# - bf16 has float32's range and few digits: products may use it, weights stay in float32.
# - A correct program copies fresh sequences without one mistake. Run that test before a long training.
