# %% [markdown]
# # 5.2 Training
#
# *Section 5.2 of the paper {cite}`vaswani2017attention`, hardware and schedule, and the training step that the paper
# takes as known.*
#
# Training repeats one small act a hundred thousand times: look at some sentence pairs, measure how wrong the model
# is, and move each weight a little. We take one step by hand and check every number. Then we write the loop that this
# book trains with, thirty lines of plain PyTorch. Finally we ask what changes at scale: several micro-batches, eight
# GPUs, 16-bit numbers, an interruption.
#
# When you have read it you can
#
# - say why the decoder may read the true words in training, and what that costs when it writes;
# - compute loss, gradient, rate and Adam's update of a real model by hand;
# - write a training loop that validates and keeps the best weights;
# - divide the loss by the right number, on one GPU and on eight;
# - say what bfloat16 keeps and what it rounds away.

# %% tags=["remove-cell"]
import copy
import itertools
import math
import random
import tempfile

import matplotlib.pyplot as plt
import torch
from torch.testing import assert_close

from lab.display import show, use_style
from lab.pictures import training as training_pictures

# %% tags=["remove-cell"]
from annotated_transformer import (
    ModelConfig, Tokenizer, TrainConfig, TrainingRun, Transformer, greedy_search, label_smoothed_cross_entropy,
    make_batch, train)
from annotated_transformer.data.batching import pad_source
from lab.same import listing_of
from lab.training_loop import batches_of, fit, summed_loss

# %% [markdown]
# Our task is to copy: the model reads three to eight letters and writes the same letters. It is the smallest task that
# needs the whole model: the encoder has to represent the letters and their order, and the decoder has to find the next
# one and to know when to stop. We train on 6,000 sequences and keep 500 others for validation and 500 for the test. The
# tokenizer learns 281 pieces, the fewest with one token per letter: 256 single bytes, 4 special ids, the space, and ten
# letters with and without it.

# %%
use_style()
rng = random.Random(1)
drawn = dict.fromkeys(" ".join(rng.choices("abcdefghij", k=rng.randint(3, 8)))
                      for _ in range(8000))
texts = list(drawn)[:7000]
pairs = [(text, text) for text in texts[:6000]]
valid, fresh = texts[6000:6500], texts[6500:]
tokenizer = Tokenizer.train(texts[:6000], vocab_size=281)
V = tokenizer.vocab_size
ids = [(tokenizer.encode(x), tokenizer.encode(y)) for x, y in pairs]
print(*tokenizer.pieces(tokenizer.encode(fresh[0])), "  V", V)

# %% [markdown]
# Each letter is one token.
#
# (section-teacher)=
# ## Teacher forcing: the decoder reads the true words
#
# When our model translates, the decoder reads its own output. In training it reads the true target instead, whatever it
# would have written. This is called **teacher forcing** {cite}`williams1989learning`.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two drawings of a decoder that is to copy a b c. Left, teacher forcing: it reads start, a, b, c and predicts a, d, c, end; the second prediction is wrong, but the next input is the true b. Right, free running: each prediction is the next input; after the wrong d it reads d and writes b, then c, one place too late."}, "figure": {"caption": "Copying *a b c* with one mistake (green is right, orange wrong). Left: the teacher corrects the prefix, so the mistake stays alone. Right: the model reads its mistake, and writes *b c* one place late.", "name": "fig-teacher"}}
training_pictures.teacher()

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
# `target_in`, with the causal mask. We check this against the decoder run one token at a time on the same true tokens,
# as the search of [chapter 6.1](6_1_translation.ipynb) runs it.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
config = ModelConfig.tiny(V, N=1, d_model=64, d_ff=128, h=4, p_drop=0.0)
model = Transformer(config).eval()
batch = make_batch(ids[:3])
with torch.no_grad():
    parallel = model(batch.source, batch.target_in)
    state = model.start(batch.source)
    steps = [model.step(batch.target_in[:, t : t + 1], state)
             for t in range(batch.target_in.size(1))]
print(f"one pass {tuple(parallel.shape)}, "
      f"{len(steps)} steps; they differ by at most "
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
# word ([chapter 1](1_introduction.ipynb)). The price: in training the model sees only perfect prefixes, and when it
# writes it has to go on from its own mistakes. This is called **exposure bias** {cite}`ranzato2016sequence`; one remedy
# mixes the model's own tokens in {cite}`bengio2015scheduled`. We measure it [below](section-copy).
#
# (section-slow-motion)=
# ## One training step in slow motion
#
# We follow one batch through one step. $n$ is the number of real target tokens in it, $r(s)$ the learning rate of
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

# %% tags=["hide-input"] mystnb={"image": {"alt": "Flow of one training step with shapes. Source 3 by 8 and target_in 3 by 8 enter the Transformer; it gives logits 3 by 8 by 281; the loss, with target_out 3 by 8, is one number, divided by the number of real tokens; backward gives a gradient of the shape of each weight, such as 128 by 64 for W_1; Adam with the rate of the step changes the weights, which the next step's Transformer uses."}, "figure": {"caption": "One step with the shapes of our batch: blue is data, white is computed, orange is what the step changes.", "name": "fig-step"}}
training_pictures.step(batch, parallel, model)

# %% [markdown]
# Now we compute every number, beginning with the forward pass and the loss. With label smoothing
# ([chapter 5.4](5_4_regularization.ipynb)), 0.9 of the loss is the negative log-probability of the true token, and 0.1
# is its mean over the vocabulary, summed over the real tokens.

# %%
torch.manual_seed(1)
model = Transformer(config)
start = copy.deepcopy(model.state_dict())
logits = model(batch.source, batch.target_in)
minus_log_p = -logits.log_softmax(dim=-1)
true = minus_log_p.gather(-1, batch.target_out[..., None])[..., 0]
real = batch.target_out != 0
smoothed = 0.9 * true + 0.1 * minus_log_p.mean(dim=-1)
loss = smoothed[real].sum() / batch.n_tokens
print(f"{batch.n_tokens} real tokens of {real.numel()}")
print(f"{loss:.3f} nats per token; "
      f"a guess among {V} pieces costs {math.log(V):.3f}")

# %% [markdown]
# A new model should pay about as much as a guess. Ours pays more because its tied embedding makes it expect the token
# that it has just read ({ref}`train-ex-guess`).
#
# Backpropagation gives the gradients of all weights at once. We check one weight of $W_1$ the slow way: we move it a
# little in both directions and watch the loss, in float64 to keep enough digits.

# %%
W_1 = model.encoder.layers[0].feed_forward.W_1.weight
model.zero_grad()
loss.backward(retain_graph=True)  # so that this cell can be run again
g = W_1.grad[5, 7].item()

@torch.no_grad()
def loss_with(change):
    twin = copy.deepcopy(model).double()
    twin.encoder.layers[0].feed_forward.W_1.weight[5, 7] += change
    loss, n = summed_loss(twin, batch)  # the same loss; its lines come below
    return loss.item() / n

slope = (loss_with(1e-5) - loss_with(-1e-5)) / 2e-5
print(f"backward {g:.3e}, difference quotient {slope:.3e}")

# %% [markdown]
# The rate is set **before** the step, and the first step is step 1. Adam keeps a running mean $m$ of the gradient and a
# running mean $v$ of its square, both starting at zero and corrected for that start. At step 1 the correction gives
# back $g$ and $g^2$, so the update is the rate times the sign of the gradient. We predict the new weight, and then let
# PyTorch's Adam take the step.

# %%
def rate(step):  # equation 3, with a factor of 0.2 and a warm-up of 60 steps
    return 0.2 * 64**-0.5 * min(step**-0.5, step * 60**-1.5)

model.load_state_dict(start)
m, v = (1 - 0.9) * g, (1 - 0.98) * g**2
m_hat, v_hat = m / (1 - 0.9**1), v / (1 - 0.98**1)
before = W_1[5, 7].item()
predicted = before - rate(1) * m_hat / (math.sqrt(v_hat) + 1e-9)
adam = torch.optim.Adam(model.parameters(), lr=rate(1), betas=(0.9, 0.98),
                        eps=1e-9)
adam.step()
print(f"w before {before:.6f}, predicted {predicted:.6f}, "
      f"after the step {W_1[5, 7]:.6f}")

# %% tags=["remove-cell"]
assert_close(loss * batch.n_tokens, label_smoothed_cross_entropy(logits, batch.target_out, eps_ls=0.1)[0])
assert int(real.sum()) == batch.n_tokens < real.numel() and math.isclose(g, slope, rel_tol=1e-3)
assert math.isclose(W_1[5, 7], predicted, rel_tol=1e-6)
assert math.isclose(abs(predicted - before), rate(1), rel_tol=1e-3)

# %% [markdown]
# Two mistakes here raise no error. If we set the rate *after* the step, every update has the rate of the step before,
# and the first one whatever rate the optimizer began with. And if we forget `zero_grad`, then `backward` *adds* to the
# gradient, and step 100 uses the sum of a hundred gradients:

# %%
torch.manual_seed(1)
careless, lengths = Transformer(config), []
for _ in range(3):
    loss, n = summed_loss(careless, batch)
    (loss / n).backward()
    lengths.append(careless.embedding.weight.grad.norm().item())
print("length of the gradient:", *(f"{length:.3f}" for length in lengths))
assert math.isclose(lengths[2], 3 * lengths[0], rel_tol=1e-3)

# %% [markdown]
# (section-loop)=
# ## The whole loop
#
# Around the step we need batches without end and a way to choose which weights to keep. Here is all of it, in three
# functions that train the models of this book from here on ([5.3](5_3_optimizer.ipynb),
# [5.4](5_4_regularization.ipynb), [6.1](6_1_translation.ipynb), [6.3](6_3_parsing.ipynb), [After the
# paper](after_the_paper.ipynb)).

# %%
show(batches_of, summed_loss, fit)

# %% [markdown]
# - **Batches.** In every epoch `batches_of` shuffles the pairs, sorts them by length, and fills one group after another
#   up to `max_tokens` a side, padding counted ([5.1](5_1_data_and_batching.ipynb)). Then it shuffles the *groups*, so
#   that short sentences do not all come first.
# - **Loss over $n$.** `loss_of` returns a *sum* and the number of tokens in it, and the loop divides once. For a
#   translator it is `summed_loss`; another task brings another function.
# - **Backward, rate, step, clear**, as in equation {eq}`train-step`. To clip long gradients, as many do and the paper
#   does not, put `torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)` before `adam.step()`.
# - **Validate.** Every so many steps `validate(model)` says how good the model is, on pairs that are not trained on,
#   with dropout off (`model.eval()`). Lower is better; the next step switches dropout on again (`model.train()`).
# - **Keep.** The weights with the lowest value are copied and restored at the end; `torch.save(model.state_dict(),
#   path)` writes them to a file. The paper does not choose by validation: it averages its last checkpoints, as
#   [6.1](6_1_translation.ipynb) does.
# - **On a GPU** call `model.to("cuda")` first, and begin the body of the loop with `batch = batch.to("cuda")`.
#
# A longer run should log the loss and the rate of each step, the validation loss, the length of the gradient (a sudden
# rise announces trouble), tokens per second, and now and then an output to read. The package's
# [`TrainingRun`](https://github.com/annotated-transformer/annotated-transformer/blob/main/annotated_transformer/training/run.py)
# takes the same step, and adds what days on GPUs need: files, resuming, several processes, 16-bit numbers. Do the two
# agree? We give [chapter 0's model](0_one_hour.ipynb) the weights of a `TrainingRun`, and train both on the same
# batches.

# %%
run = TrainingRun(config, TrainConfig(warmup_steps=60, lr_factor=0.2),
                  packing="off")
pupil = listing_of(run.model)  # chapter 0's Transformer with the same weights
some = list(itertools.islice(batches_of(ids, max_tokens=800), 20))
ours = fit(pupil, some, 20, rate, summed_loss)
theirs = [run.step([batch])[0].item() / batch.n_tokens for batch in some]
largest = max(abs(a - b) for a, b in zip(ours, theirs))
print(f"20 steps, {theirs[0]:.2f} to {theirs[-1]:.2f} nats; "
      f"largest difference below 5e-6: {largest < 5e-6}")
assert largest < 5e-6

# %% [markdown]
# The smallest test of a training loop takes one batch of random ids and some steps. A correct loop memorizes even
# random targets:

# %% tags=["row-X2", "row-L0", "nbval-ignore-output"]
torch.manual_seed(0)
noise = make_batch([(torch.randint(4, 50, (9,)).tolist(),
                     torch.randint(4, 50, (6,)).tolist()) for _ in range(4)])
toy = Transformer(ModelConfig.tiny(50, N=2, d_model=32, d_ff=64, p_drop=0.0))
nats = fit(toy, [noise] * 80, 80,
           lambda step: 0.2 * 32**-0.5 * min(step**-0.5, step * 40**-1.5),
           summed_loss)
print(f"step 1: {nats[0]:.2f} nats per token; step 80: {nats[-1]:.2f}, "
      "where the smallest is 0.70")
assert math.isfinite(nats[0]) and nats[-1] < 0.4 * nats[0]

# %% [markdown]
# (section-accumulate)=
# ## Gradient accumulation: divide once
#
# Suppose that a batch of 25,000 tokens is too large for our GPU. We can still take the same step, because the gradient
# of a sum is the sum of the gradients. We cut the batch into **micro-batches**, run `backward` on one after the other,
# let the gradients add up, and step once. The divisor is the part to get right. With summed losses $\mathcal{L}_j$ and
# $n_j$ real target tokens in micro-batches $1 \ldots k$:
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
    """The gradient of all weights as one vector: summed loss over a divisor."""
    loss, _ = summed_loss(model, batch)
    grads = torch.autograd.grad(loss / divisor, list(model.parameters()))
    return torch.cat([grad.flatten() for grad in grads])

by_length = sorted(ids[:12], key=lambda pair: len(pair[1]))
whole, *parts = (make_batch(by_length[a:b])
                 for a, b in ((0, 12), (0, 1), (1, 3), (3, 12)))
exact = gradient(model, whole, whole.n_tokens)
once = sum(gradient(model, part, whole.n_tokens) for part in parts)
of_means = sum(gradient(model, part, part.n_tokens) for part in parts) / 3
for name, result in (("divide once", once), ("mean of means", of_means)):
    error = (result - exact).norm() / exact.norm()
    print(f"{name:14} off by {error:.2f} of the gradient's length")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Bar chart of the weight of one token in the gradient, for micro-batches of 4, 9 and 73 tokens. Divided once, each token weighs 1/86, about 0.012. In the mean of means a token weighs 0.083 in the smallest micro-batch, 0.037 in the second and 0.005 in the largest."}, "figure": {"caption": "How much one token counts. The mean of means gives a token of the smallest micro-batch 18 times the weight of a token of the largest.", "name": "fig-divisor"}}
means = training_pictures.divisor(parts, whole)

# %% tags=["remove-cell"]
assert_close(once, exact, atol=1e-5, rtol=1e-3)
assert (of_means - exact).norm() > 0.1 * exact.norm()
assert [part.n_tokens for part in parts] == [4, 9, 73] and round(means[0] / means[2]) == 18

# %% [markdown]
# So a loop that accumulates sums everywhere and divides by the tokens of *all* its micro-batches. In the package
# `max_tokens=6250, accumulate=4` is about the paper's batch.
#
# A second mistake is in the condition for the step. `run_epoch` of [The Annotated
# Transformer](https://github.com/harvardnlp/annotated-transformer/blob/0a91a254735c07532e23733dce8a693e504f3a08/the_annotated_transformer.py)
# {cite}`rush2018annotated` (commit 0a91a25) steps if `i % accum_iter == 0`. We try ten batches and $k = 4$:

# %%
for name, due in (("i % 4 == 0", lambda i: i % 4 == 0),
                  ("(i + 1) % 4 == 0", lambda i: (i + 1) % 4 == 0)):
    steps, waiting = [], []
    for i in range(10):
        waiting.append(i)
        if due(i):
            steps, waiting = [*steps, waiting], []
    print(f"{name:17} steps {steps}, left over {waiting}")

# %% [markdown]
# In the first epoch the first form makes a step of a single batch. Both end an epoch with gradients that no step has
# used; they stay in `.grad` and are added to the first step of the next epoch. In `run_epoch` the learning rate also
# advances with every batch, $k$ times too fast. Our package draws `accumulate` batches for each step, across the end of
# an epoch if need be.
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
print(f"base {base_hours:.1f} h (the paper: 12 h), "
      f"big {big_days:.2f} days (the paper: 3.5 days)")
print(f"base: {25_000 / 0.4:,.0f} target tokens per second, "
      f"{25_000 / 0.4 / 8:,.0f} per GPU")

# %% tags=["row-H8", "remove-cell"]
assert round(base_hours, 1) == 11.1 and round(big_days, 1) == 3.5

# %% [markdown]
# The products agree for big; base's 12 hours would need 0.43 s per step. [Chapter 6.1](6_1_results.ipynb) shows how
# Table 2 turns these times into costs.
#
# How do eight GPUs take one step together? The usual answer is **data parallelism**. Every GPU holds a copy of the
# whole model and gets its own part of the batch. Each computes the gradient of its part, and then an **all-reduce**
# adds up the eight gradients and hands every GPU the sum. All copies take the same Adam step, so they stay equal
# without ever exchanging a weight.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three GPUs drawn as columns. Each gets its own part of the batch and has a full copy of the model; forward and backward give a gradient of its own. A bar across all columns, the all-reduce, adds them up and divides by all tokens; below it each GPU has the same sum and takes the same Adam step."}, "figure": {"caption": "Data parallelism on three GPUs. Above the bar each works alone; the all-reduce is the only exchange; below it all do the same.", "name": "fig-all-reduce"}}
training_pictures.all_reduce()

# %% [markdown]
# This is accumulation in space instead of time, and equation {eq}`train-accumulate` holds again. If each GPU divides by
# its own token count, the average is right only if each gradient is weighted by its GPU's share of the tokens. We cut
# our batch into two halves of six sequences and compare:

# %%
halves = [make_batch(by_length[:6]), make_batch(by_length[6:])]
twins = [copy.deepcopy(model) for _ in halves]  # a copy for each GPU
own = [gradient(twin, half, half.n_tokens) for twin, half in zip(twins, halves)]
shares = [half.n_tokens / whole.n_tokens for half in halves]
weighted = sum(share * g for share, g in zip(shares, own))
plain = sum(own) / 2
print(f"{[half.n_tokens for half in halves]} tokens")
for name, result in (("weighted by tokens", weighted), ("plain mean", plain)):
    print(f"{name:19} off by {(result - exact).norm() / exact.norm():.3f}")
assert_close(weighted, exact, atol=1e-5, rtol=1e-3)

# %% [markdown]
# PyTorch's `DistributedDataParallel` takes the plain mean {cite}`li2020pytorch`, so with unequal parts we
# multiply each summed loss by the number of processes and divide by the tokens of all. It starts
# the all-reduce of the last layers while `backward` still works on the first, which hides much of the transfer. In a
# **ring** of eight, where each GPU passes pieces to its neighbour, each sends $2 \cdot 7/8$ of the gradient
# {cite}`patarasuk2009bandwidth`: 441 MB per step for base's 63 million weights in float32.

# %% tags=["remove-cell"]
with torch.device("meta"):
    n_weights = sum(w.numel() for w in Transformer(ModelConfig.base(37_000)).parameters())
assert round(2 * 7 / 8 * 4 * n_weights / 1e6) == 441

# %% [markdown]
# (section-precision)=
# ## Mixed precision: 16 bits where they suffice
#
# A GPU multiplies 16-bit numbers several times as fast as 32-bit ones: two to eight times on a V100
# {cite}`micikevicius2018mixed`, some 15 times by the data sheets of an A100 and an H100. Which parts of training can
# use them? A floating-point number is $\pm 1.f \cdot 2^e$. Bits for the exponent $e$ give **range**: how large and how
# small a number may be. Bits for the fraction $f$ give **precision**: how close two neighbouring numbers are. bfloat16
# {cite}`kalamkar2019study` keeps float32's range; float16 has more digits and a small range.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three rows of small squares, one per bit. float32: 1 sign bit, 8 exponent bits, 23 fraction bits; bfloat16: 1, 8 and 7; float16: 1, 5 and 10. At the right of each row, its largest number and its spacing at 1: 3.4e+38 and 2^-23; 3.4e+38 and 2^-7; 6.6e+04 and 2^-10."}, "figure": {"caption": "bfloat16 has the range of float32, float16 more digits: bits for sign, exponent (range) and fraction (precision).", "name": "fig-bits"}}
training_pictures.bits()

# %% [markdown]
# In the backward pass **range** counts, which speaks for bf16. With label smoothing, the gradient for the
# logit of an unlikely token is about $0.1 / V$, divided by the tokens of the batch. For the paper's base model that is
# $10^{-10}$, and float16 has no such number:

# %%
small = torch.tensor(0.1 / 37_000 / 25_000)
print(f"gradient of a logit  {small:.1e}")
print(f"in float16           {small.half():.1e}")
print(f"in bfloat16          {small.bfloat16():.1e}")
print(f"float16, times 2^16  {(small * 2**16).half():.1e}")

# %% tags=["remove-cell"]
assert small.half() == 0 and (small * 2**16).half() > 0
assert math.isclose(small.bfloat16(), small, rel_tol=2**-8)
assert [math.log2(torch.finfo(t).eps) for t in (torch.float32, torch.bfloat16, torch.float16)] == [-23, -7, -10]
assert torch.finfo(torch.bfloat16).tiny == torch.finfo(torch.float32).tiny

# %% [markdown]
# The last line is **loss scaling**: with float16 we multiply the loss by a large factor before `backward` and divide
# the gradients by it afterwards. PyTorch's scaler halves the factor and skips the step where a gradient overflows, and
# doubles it after 2,000 steps without overflow. bf16 needs none of this. The paper does not state its precision; its
# GPUs had no bf16.
#
# Weights need **precision**, so they stay in float32: an update is tiny compared with its weight. In bf16 the next
# number after 1 is $1 + 2^{-7} = 1.0078$, so an update of 0.001 is rounded away, and so is every one after it.

# %% mystnb={"image": {"alt": "Line chart of a weight over 60 updates of 0.001. In float32 it rises in a straight line from 1 to 1.06. Kept in bfloat16 it stays at 1. A third curve, the float32 master rounded to bfloat16, follows the line in stairs of eight updates each."}, "figure": {"caption": "A weight that is to grow by 0.001 at each of 60 updates. A float32 master keeps what its rounded copy cannot show.", "name": "fig-master-weights"}}
master, alone = torch.ones(61), torch.ones(61, dtype=torch.bfloat16)
for i in range(60):
    master[i + 1], alone[i + 1] = master[i] + 0.001, alone[i] + 0.001
figure, ax = plt.subplots(figsize=(5, 2.6), layout="constrained")
ax.plot(master, label="float32 master")
ax.step(range(61), master.bfloat16().float(), where="mid",
        label="the master, rounded to bfloat16")
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
# forward and the backward pass use copies in bf16. In `fit` one line around `loss_of` does it: `with
# torch.autocast("cuda", dtype=torch.bfloat16):`. The package's `TrainConfig.precision` is "auto": bf16 on a GPU that
# has it, float16 on an older one such as Colab's T4, and on a CPU mostly float32. [On a GPU](on_a_gpu.ipynb) has what
# it buys.
#
# (section-copy)=
# ## A task learned to the last letter
#
# How do we know that model, batches, loss, rate and search all work? We train on a task that a correct program
# must master *completely*. A score of 97 percent on translation may hide a bug; 97 percent on copying gives it away. We
# take one encoder and one decoder layer with $d_{\text{model}} = 64$, train for 800 steps, and validate every 20. We
# also keep each of these 40 sets of weights, and average the last five, as in section 6.1 of the paper.

# %% tags=["nbval-ignore-output", "row-X1"]
exam = make_batch([(tokenizer.encode(x),) * 2 for x in valid])
checkpoints, curve = [], []
@torch.no_grad()
def validate(model):
    checkpoints.append(copy.deepcopy(model.state_dict()))
    loss, n = summed_loss(model, exam, eps_ls=0.0)
    curve.append(loss.item() / n)
    return curve[-1]

torch.manual_seed(1)
copier = Transformer(config)
losses = fit(copier, batches_of(ids, max_tokens=800), 800, rate, summed_loss,
             validate, every=20)
print(f"training loss {losses[-1]:.3f}, lowest in validation {min(curve):.4f}")
assert losses[-1] < 0.95 and min(curve) < 0.15

# %% [markdown]
# Now we try the 500 test sequences, which have played no part so far. The cell demands at least 497 exact copies, from
# the kept weights and from the average.

# %% tags=["row-X1", "nbval-ignore-output"]
def count_right(model, texts):
    """Sequences that greedy search copies to the last letter."""
    truths = [tokenizer.encode(text) for text in texts]
    written = greedy_search(model, pad_source(truths))
    return sum(copied == truth for copied, truth in zip(written, truths))

averaged, last = Transformer(config).eval(), checkpoints[-5:]
averaged.load_state_dict({name: torch.stack([one[name] for one in last]).mean(0)
                          for name in last[0]})
accuracy = {"lowest validation loss": count_right(copier, fresh),
            "average of the last five": count_right(averaged, fresh)}
print(accuracy)
assert min(accuracy.values()) >= 497

# %% [markdown]
# How did it get there? At every second checkpoint we measure the share of *tokens* that are right under
# teacher forcing, and the share of whole *sequences* that greedy search gets right.

# %% tags=["hide-cell"]
answers = [tokenizer.encode(text) for text in fresh]
test = make_batch([(x, x) for x in answers])
asked = test.target_out != 0

def judge(weights):
    """What the decoder predicts given the truth, (B, T), and what greedy search writes."""
    averaged.load_state_dict(weights)
    with torch.no_grad():
        forced = averaged(test.source, test.target_in).argmax(dim=-1)
    return forced, greedy_search(averaged, test.source, max_extra=5)

judged = [judge(weights) for weights in checkpoints[1::2]]
hits = [forced == test.target_out for forced, _ in judged]
token_share = [hit[asked].float().mean().item() for hit in hits]
exact_share = [sum(a == b for a, b in zip(written, answers)) / 500 for _, written in judged]

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two charts over 800 steps of training. Above, the training loss per token falls from more than 6 nats and meets, after about 300 steps, a dashed line at 0.89, the smallest that label smoothing allows; now and then it jumps up for some steps. The unsmoothed loss on the validation sequences falls to about 0.1. Below, the share of right tokens under teacher forcing rises first, the share of sequences copied exactly rises later; both come near 1, with some dips."}, "figure": {"caption": "The copy task: single tokens are right long before whole sequences are. Above: loss of each training batch, and of the validation sequences without smoothing. Below: shares on the test sequences.", "name": "fig-copy"}}
training_pictures.copy(V, curve, exact_share, losses, token_share)

# %% [markdown]
# Both shares come near 1, and now and then they dip while the loss jumps: for a stretch of some twenty steps the
# weights are thrown off, and return. That is what a real loss curve looks like, and why one does not take whichever
# weights come last. The training loss settles at 0.89 nats rather than zero because label smoothing asks for a
# probability of 0.9, and a model that outputs exactly this distribution has the loss of the dashed line ([chapter
# 5.4](5_4_regularization.ipynb)). Without smoothing it pays $-\ln 0.9 = 0.105$, the end of the green curve.
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
# percent of the sequences, and count the mistakes in each text that has one. Free-running text may be shifted, as in
# our first drawing, and then a comparison position by position counts every later letter as wrong. The fair count is
# the **edit distance**, the fewest insertions, deletions and substitutions that turn one text into another. As a
# control we score the text written for *another* sequence.

# %%
def edit_distance(written, truth):
    row = list(range(len(truth) + 1))
    for i, token in enumerate(written, start=1):
        diagonal, row[0] = row[0], i
        for j, wanted in enumerate(truth, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1,
                                           diagonal + (token != wanted))
    return row[-1]

def by_position(written, truth):
    different = sum(a != b for a, b in zip(written, truth))
    return different + abs(len(written) - len(truth))

print("adbc for abc: by position", by_position("adbc", "abc"),
      "edit distance", edit_distance("adbc", "abc"))

# %% tags=["nbval-ignore-output"]
half_trained = [texts for texts, share in zip(judged, exact_share)
                if 0.05 < share < 0.95]
truths, forced, free = zip(*[  # with the end mark, 2
    ([*truth, 2], forced[i, :len(truth) + 1].tolist(), [*written[i], 2])
    for forced, written in half_trained
    for i, truth in enumerate(answers) if written[i] != truth])
others = free[7:] + free[:7]
counts = {"teacher forcing": map(by_position, forced, truths),
          "free, edit distance": map(edit_distance, free, truths),
          "free, by position": map(by_position, free, truths),
          "control: another's text": map(edit_distance, others, truths)}
mean = {name: sum(values) / len(truths) for name, values in counts.items()}
for name in mean:
    print(f"{name:24} {mean[name]:.1f} mistakes per text, "
          f"{len(truths):,} texts")

# %% tags=["remove-cell"]
forced, free, shifted, control = mean.values()
assert len(truths) > 200 and 1.3 < forced < 2 and 0.2 < free - forced < 1.3
assert shifted - forced > 1.4 * (free - forced) and control > 6
right, wrong = 0.9 + 0.1 / V, 0.1 / V  # the smallest smoothed loss
assert round(-right * math.log(right) - (V - 1) * wrong * math.log(wrong), 2) == 0.89

# %% [markdown]
# So reading its own output costs our model between 0.2 and 1.3 extra mistakes per faulty text, by seed and processor,
# on top of the 1.3 to 2 that it makes under teacher forcing. Counted by position it would seem to cost far more: that
# is the shift. Even the smaller number is probably an upper bound, since the teacher also hands over the right letter.
# A translator always makes some mistakes, which is one reason for beam search ([chapter 6.1](6_1_translation.ipynb)).
#
# (section-resume)=
# ## Resuming a run exactly
#
# A run may stop after three days. To go on as if nothing had happened, we need everything that the next step depends
# on:
#
# | what | without it |
# |---|---|
# | the weights | all is lost |
# | Adam's two means and its step count | the first steps are signs of single gradients again |
# | the number of the step | the warm-up begins again |
# | the place in the epoch | the first batches come once more, the last ones never |
# | the state of the random generator | dropout drops other entries |
#
# `fit` stores none of these. The package's `train` stores them at every checkpoint. We let it train 24 steps with
# dropout in one run, and then 12, and 12 more after `resume`:

# %%
short = TrainConfig(train_steps=24, max_tokens=200, max_length=50,
                    warmup_steps=5, lr_factor=0.2, checkpoint_every=6)

def short_run(name, resume=False, **changes):
    return train(config.replace(p_drop=0.1), short.replace(**changes),
                 tokenizer, pairs[:300], [], f"{folder.name}/{name}",
                 progress=False, resume=resume)

folder = tempfile.TemporaryDirectory()
straight, _ = short_run("straight"), short_run("stopped", train_steps=12)
resumed = short_run("stopped", resume=True)
equal = [*map(torch.equal, straight.parameters(), resumed.parameters())]
print(f"{sum(equal)} of {len(equal)} weight tensors of the resumed run equal "
      "the straight run's, bit for bit")
assert all(equal)

# %% [markdown]
# A resumed run must also have the same settings, tokenizer and pairs, and for equal bits the same machine, library and
# number of threads; on a GPU some kernels add in an order that varies.
#
# The commands for the paper's own corpus, with what they need in hours and memory, are on
# [the page on WMT 2014](wmt14.md).
#
# :::{dropdown} Where this is
# `batches_of`, `summed_loss` and `fit` in `book/lab/training_loop.py`; `TrainingRun` and `train` in
# `annotated_transformer/training/` (`run.py`, `loop.py`, `state.py`). Tests: `test_it_takes_the_steps_of_training_run`,
# `test_adam_by_hand`, `test_two_half_batches_equal_one_whole_batch`.
# :::
#
# ## Exercises

# %% [markdown] tags=["exercise"]
# ```{exercise} A guess
# :label: train-ex-guess
#
# A model gives every token of a vocabulary of 37,000 the same probability. What are its nll, its smoothed loss
# ($\epsilon_{ls} = 0.1$) and its perplexity $e^{\text{nll}}$ per token? What does it tell us if a fresh model starts
# at 14 nats?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# The smoothed loss is a mean of negative log-probabilities, which are all equal here.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} train-ex-guess
# :class: dropdown
#
# $\ln 37000 = 10.52$ nats for both, and a perplexity of 37,000. A model that starts well above is confidently wrong:
# some of its logits are too large, for instance because an untrained tied model predicts the token that it has just
# read.
# ```

# %% tags=["hide-cell", "solution"]
logits, target = torch.zeros(1, 37_000), torch.tensor([5])
loss, nll = label_smoothed_cross_entropy(logits, target)
assert_close(loss, nll)
assert round(nll.item(), 2) == 10.52 and round(nll.exp().item(), -2) == 37_000

# %% [markdown] tags=["exercise"]
# ```{exercise} The mean of means by hand
# :label: train-ex-means
#
# Two micro-batches: one token with a loss of 4 nats, and nine tokens with 1 nat each. What is the loss per token, and
# what is the mean of means? How much more does the lone token weigh in the second?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Write both as weighted sums of ten losses.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} train-ex-means
# :class: dropdown
#
# $(4 + 9)/10 = 1.3$ against $(4 + 1)/2 = 2.5$. The lone token's weight is $1/2$ instead of $1/10$: five times too
# much. Each of the nine has $1/18$ instead of $1/10$.
# ```

# %% tags=["hide-cell", "solution"]
losses = [[4.0], [1.0] * 9]
assert sum(map(sum, losses)) / 10 == 1.3
assert sum(sum(part) / len(part) for part in losses) / 2 == 2.5

# %% [markdown] tags=["exercise"]
# ```{exercise} Counting in sixteen bits
# :label: train-ex-counting
#
# Start at 0 and add 1 again and again in bfloat16. Where does the sum stop growing? And in float16 and float32? What
# does that mean for a loss that is summed over 25,000 tokens?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# With $f$ bits of fraction, the spacing of numbers reaches 2 at $2^{f+1}$. A tie rounds to the even neighbour.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} train-ex-counting
# :class: dropdown
#
# At 256, 2048, and $2^{24} = 16{,}777{,}216$. Above 256, bf16 has only even numbers; $256 + 1$ is a tie that goes to
# 256. A sum of 25,000 losses of about one nat would be stuck there. Therefore we compute the loss in float32, whatever
# the type of the logits.
# ```

# %% tags=["hide-cell", "solution"]
def count(dtype, start):
    total = torch.tensor(start, dtype=dtype)
    while total + 1 != total:
        total += 1
    return total.item()

assert count(torch.bfloat16, 0.0) == 256 == 2 ** (7 + 1)
assert count(torch.float16, 0.0) == 2048 == 2 ** (10 + 1)
assert count(torch.float32, 2.0**24 - 10) == 2 ** (23 + 1)

# %% [markdown] tags=["exercise"]
# ```{exercise} When search and teacher agree
# :label: train-ex-law
#
# Prove: greedy search writes $y$ if and only if, under teacher forcing with $y$, the most probable token is right at
# every position, eos included. Is there a version for beam search?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Induction on the position. What does each of the two read at position $t$?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} train-ex-law
# :class: dropdown
#
# At position 1 both read bos. If all tokens before $t$ are right, both read the same prefix, have the same
# distribution, and take the same token. If that is $y_t$ for every $t$, the search writes $y$; at the first $t$ where
# it is another, the search writes something else. For beam search the law fails: $y$ may win although one of its tokens
# was second best.
# ```

# %% [markdown]
# ## What to remember
#
# - In training the decoder reads the true prefix, so one pass computes all positions (equation {eq}`train-factors`).
#   At inference it reads its own output.
# - A step: forward, sum the loss, divide once by the real target tokens, backward, set the rate, Adam, clear the
#   gradients (equation {eq}`train-step`). Around it: batches without end, validation, and the weights to keep
#   ({ref}`section-loop`).
# - Micro-batches and GPUs add up gradients. The sum equals one large batch if we divide by *all* tokens.
# - bf16 has float32's range and few digits: products may use it, weights stay in float32.
# - A correct program copies fresh sequences with hardly a mistake. Run that test before a long training.
