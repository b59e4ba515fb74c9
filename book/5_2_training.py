# %% [markdown]
# # 5.2 Training
#
# *Section 5.2 of the paper {cite}`vaswani2017attention`, hardware and schedule, and all that one step of training
# consists of, which the paper takes as known.*
#
# Training is one small act, repeated a hundred thousand times: look at some sentence pairs, measure how wrong the
# model is, move each weight a little. This chapter does the act once with every number checked, then asks what may go
# wrong when it is repeated, cheapened, spread out, or interrupted, and at last lets it run until a model has learned
# its task without a mistake.
#
# When you have read it you can
#
# - say why the decoder may read the true words in training, and what it pays for that when it writes;
# - compute loss, gradient, rate and Adam's update of a real model by hand;
# - divide the loss by the right number, also when a batch is spread over several passes;
# - say what bfloat16 keeps and what it rounds away, and why the weights stay in float32;
# - resume a run so that nothing shows it was interrupted;
# - set up the paper's own runs, and estimate what they cost.

# %%
import json
import math
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch.testing import assert_close

from annotated_transformer import (
    ConfigError, ModelConfig, Tokenizer, TrainConfig, Transformer, label_smoothed_cross_entropy, make_adam,
    make_batch, noam_learning_rate, token_batches, train)
from annotated_transformer.looking.visualization import PALETTE, show, use_style

# %% [markdown]
# **The task of this chapter** is to copy: read some letters, write the same letters. It is as small as a task can
# be that still needs the whole model: the encoder has to represent the letters and their order, the decoder has to find
# the next one, and has to know when to stop. Ten letters, three to eight of them in a sequence. 500 sequences are kept
# apart for validation and 500 more for the test; no sequence occurs twice.

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
assert len(pairs) == 6000 and len(valid) == len(fresh) == 500
assert len(set(texts)) == 7000
print(*tokenizer.pieces(tokenizer.encode(fresh[0])), "  V", V)

# %% [markdown]
# A letter is one token. (260 of the 281 pieces are special ids and bytes, which every vocabulary of the package has,
# [chapter 5.1](5_1_data_and_batching.ipynb).)
#
# (section-teacher)=
# ## Teacher forcing
#
# **Question.** A decoder that writes reads its own words. What does it read while it learns?
#
# **Equation.** The model gives a distribution over whole target sentences, one factor for each token. Each factor
# is conditioned on the source and on *the true tokens before it*:
#
# $$
# p(y \mid x) = \prod_{t=1}^{n+1} p(y_t \mid y_1, \ldots, y_{t-1}, x)
# $$ (train-factors)
#
# with $y_{n+1} = \text{eos}$. This is no approximation; every distribution over sequences can be written so. A model
# that computes these factors is called **autoregressive**. In training the target is known, so all the conditions are
# known, and all $n + 1$ factors can be computed at once, by one forward pass over `target_in`, with the causal mask.
# To feed the true tokens rather than the model's own is called **teacher forcing**
# {cite}`williams1989learning`.
#
# **Check.** One pass over all positions gives the same logits as the decoder run step by step, fed with the same true
# tokens. `start` and `step` are what the search of [chapter 6.1](6_1_translation.ipynb) uses.

# %% tags=["row-E17"]
torch.manual_seed(0)
config = ModelConfig.tiny(V, N=1, d_model=64, d_ff=128, h=4, p_drop=0.0)
model = Transformer(config).eval()
ids = [(tokenizer.encode(x), tokenizer.encode(y)) for x, y in pairs]
batch = make_batch(ids[:3])
with torch.no_grad():
    parallel = model(batch.source, batch.target_in)
    state = model.start(batch.source)
    steps = [model.step(batch.target_in[:, t:t + 1], state)
             for t in range(batch.target_in.size(1))]
assert_close(torch.cat(steps, dim=1), parallel, atol=1e-5, rtol=1e-5)
print("1 pass and", len(steps), "steps: the same logits", tuple(parallel.shape))

# %% [markdown]
# And the product of the factors is what the loss adds up: the summed negative logarithm of equation
# {eq}`train-factors`, the **negative log-likelihood** (nll), in nats.

# %%
log_p = parallel.log_softmax(dim=-1)
by_hand = 0.0
for row, (_, target) in enumerate(ids[:3]):
    for t, token in enumerate([*target, 2]):  # 2 is eos
        by_hand -= log_p[row, t, token].item()
loss, nll = label_smoothed_cross_entropy(parallel, batch.target_out)
assert_close(nll.item(), by_hand, rtol=1e-5, atol=0)
print(f"nll of three sentences: {nll.item():.2f} nats")

# %% [markdown]
# **What it buys.** All positions of all sentences learn at the same time, which a recurrent network with teacher
# forcing cannot do: it knows all its inputs too, but its state walks from word to word
# ([chapter 1](1_introduction.ipynb)).
#
# **What it costs.** In training the model never sees a prefix with a mistake of its own. When it writes, it does, from
# its first mistake on. The difference is called **exposure bias** {cite}`ranzato2016sequence`; one remedy that was
# proposed is to mix one's own tokens in {cite}`bengio2015scheduled`. The paper does nothing about it. How large it is
# depends on the task; [below](section-copy) we measure it on ours.
#
# **Break it.** Without the shift the answer stands in the input, and the loss is splendid and worthless:
# [chapter 1](1_introduction.ipynb) runs that experiment.
#
# **Where.** `Transformer.forward` and `.step`; tests: `test_cached_steps_equal_one_forward`,
# `test_the_future_is_invisible`. Exercise: {ref}`train-ex-law`.

# %% [markdown]
# (section-slow-motion)=
# ## One step in slow motion
#
# **Question.** What happens to one weight in one step?
#
# **Equation.** Five lines, in this order. $n$ is the number of real target tokens in the batch, $r(s)$ the learning
# rate of step $s$ (equation 3 of the paper, [chapter 5.3](5_3_optimizer.ipynb)), $\operatorname{Adam}$ the rule of
# {cite:t}`kingma2015adam`.
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
#
# **Code.** The package's step, as `train` runs it:

# %%
from annotated_transformer import TrainingRun

show(TrainingRun.step)

# %% [markdown]
# `self.loss` is lines 1 and 2 of equation {eq}`train-step`. Besides the equation there are four things in the code:
# a loop over several batches ({ref}`section-accumulate`), `autocast` and the scaler that float16 needs
# ({ref}`section-precision`), an attention kernel that a GPU is not to take ([On a GPU](on_a_gpu.ipynb)), and clipping
# of long gradients, which is off by default and which the paper does not mention.
#
# **Check.** Now every number by hand. *Line 1*: the forward pass, on two sequences.

# %%
settings = TrainConfig(warmup_steps=60, lr_factor=0.2, eps_ls=0.1)
model = Transformer(config).train()
optimizer = make_adam(model, settings)
batch = make_batch(ids[:2])
logits = model(batch.source, batch.target_in)
real = batch.target_out != 0
print("logits", tuple(logits.shape), " real tokens", batch.n_tokens)
assert int(real.sum()) == batch.n_tokens < real.numel()

# %% [markdown]
# *Line 2*: the loss. With label smoothing ([chapter 5.4](5_4_regularization.ipynb)), $0.9$ of it is the negative
# log-probability of the true token, $0.1$ the mean of that over the whole vocabulary. Summed over real tokens only.

# %%
minus_log_p = -logits.log_softmax(dim=-1)
true = minus_log_p.gather(-1, batch.target_out[..., None])[..., 0]
by_hand = (0.9 * true + 0.1 * minus_log_p.mean(dim=-1))[real].sum()
loss, nll = label_smoothed_cross_entropy(logits, batch.target_out, eps_ls=0.1)
assert_close(loss, by_hand)
assert_close(nll, true[real].sum())
print(f"{loss / batch.n_tokens:.3f} nats a token;"
      f" a guess among {V} has {math.log(V):.3f}")

# %% [markdown]
# *Line 3*: the gradient of the loss a token. Backpropagation gives it for all weights at once. We check one weight, of
# $W_1$, the slow way: move it by a little in both directions and see how the loss changes. In float64, since a
# difference of two nearly equal numbers has few digits left.

# %%
(loss / batch.n_tokens).backward()
W_1 = model.encoder.layers[0].feed_forward.W_1.weight
g = W_1.grad[5, 7].item()

# %%
def loss_with(change):
    twin = Transformer(config).double()
    twin.load_state_dict(model.state_dict())
    with torch.no_grad():
        twin.encoder.layers[0].feed_forward.W_1.weight[5, 7] += change
        logits = twin(batch.source, batch.target_in)
    loss, _ = label_smoothed_cross_entropy(logits, batch.target_out)
    return loss / batch.n_tokens

slope = (loss_with(1e-5) - loss_with(-1e-5)).item() / 2e-5
print(f"backward {g:.3e}, difference quotient {slope:.3e}")
assert math.isclose(g, slope, rel_tol=1e-3)

# %% [markdown]
# *Line 4*: the rate. It is set **before** the step, and the first step is step 1.

# %%
rate = 0.2 * 64**-0.5 * min(1**-0.5, 1 * 60**-1.5)
assert rate == noam_learning_rate(1, d_model=64, warmup_steps=60, factor=0.2)
optimizer.param_groups[0]["lr"] = rate
print(f"rate of step 1: {rate:.3e}")

# %% [markdown]
# *Line 5*: Adam. It keeps a running mean $m$ of the gradient and a running mean $v$ of its square, both beginning at
# zero and corrected for that. At step 1 the correction gives back $g$ and $g^2$, so that the update is the rate times
# the sign of the gradient (where $|g|$ is large beside $\epsilon = 10^{-9}$).

# %%
w = W_1[5, 7].item()
m, v = (1 - 0.9) * g, (1 - 0.98) * g**2
m_hat, v_hat = m / (1 - 0.9**1), v / (1 - 0.98**1)
expected = w - rate * m_hat / (math.sqrt(v_hat) + 1e-9)
optimizer.step()
optimizer.zero_grad()
print(f"w before {w:.6f}, after {W_1[5, 7].item():.6f}, by hand {expected:.6f}")
assert math.isclose(W_1[5, 7].item(), expected, rel_tol=1e-6)
assert math.isclose(abs(expected - w), rate, rel_tol=1e-3)

# %% [markdown]
# That was a step. `train` does nothing else: from the same seed and the same batch it arrives at the same weights.

# %%
runs = tempfile.TemporaryDirectory()
once = settings.replace(train_steps=1, max_tokens=300, max_length=50, seed=7)
trained = train(config, once, tokenizer, pairs[:200], [],
                f"{runs.name}/one", progress=False)

torch.manual_seed(7)
model = Transformer(config)
optimizer = make_adam(model, once)
batch = next(iter(token_batches(ids[:200], max_tokens=300, seed=7)))
loss, _ = label_smoothed_cross_entropy(model(*batch[:2]), batch.target_out)
(loss / batch.n_tokens).backward()
optimizer.param_groups[0]["lr"] = rate
optimizer.step()
for w, same in zip(model.parameters(), trained.parameters()):
    assert_close(w, same, atol=1e-6, rtol=1e-4)

# %% [markdown]
# **Break it: the rate after the step.** An optimizer has to be made with some rate. The package makes it with 0, so
# whoever sets the rate too late does not move at step 1, and is one step behind for ever.

# %%
def loss_of(model, batch):
    """The summed loss of a batch."""
    logits = model(batch.source, batch.target_in)
    return label_smoothed_cross_entropy(logits, batch.target_out)[0]

late = Transformer(config)
optimizer = make_adam(late, settings)
before = late.embedding.weight.detach().clone()
loss_of(late, batch).backward()
optimizer.step()
optimizer.param_groups[0]["lr"] = rate
assert torch.equal(late.embedding.weight, before)
print("after step 1 with a late rate: nothing has changed")

# %% [markdown]
# **Break it: forget `zero_grad`.** `backward` *adds* to the gradient. Without a reset, step 2 uses the sum of two
# batches' gradients, step 100 that of a hundred. Nothing fails.

# %%
careless, norms = Transformer(config), []
for _ in range(3):
    (loss_of(careless, batch) / batch.n_tokens).backward()
    norms.append(careless.embedding.weight.grad.norm())
print("length of the gradient:", *(f"{norm:.3f}" for norm in norms))
three = careless.embedding.weight.grad.clone()
careless.zero_grad()
(loss_of(careless, batch) / batch.n_tokens).backward()
assert_close(three, 3 * careless.embedding.weight.grad, atol=1e-6, rtol=1e-4)

# %% [markdown]
# **The smallest test of a training loop.** Random ids, one batch, some steps. A popular walkthrough ends with such a
# toy and prints `Loss = nan`: its causal mask is inverted, so that the last row may look at nothing
# ([chapter 3.2](3_2_attention.ipynb) shows what a softmax makes of that), and its target is not shifted. Here is the
# toy as it should be: the loss is finite, and it falls, since even random targets can be learned by heart.

# %%
torch.manual_seed(0)
toy = Transformer(ModelConfig.tiny(50, N=2, d_model=32, d_ff=64, p_drop=0.0))
optimizer = make_adam(toy, settings)
source, target = torch.randint(4, 50, (4, 9)), torch.randint(4, 50, (4, 7))
target_in, target_out = target[:, :-1], target[:, 1:]  # shifted
n_tokens = target_out.numel()

# %% tags=["row-X2", "row-L0", "nbval-ignore-output"]
losses = []
for step in range(1, 81):
    logits = toy(source, target_in)
    loss, _ = label_smoothed_cross_entropy(logits, target_out, eps_ls=0.0)
    (loss / n_tokens).backward()
    rate = noam_learning_rate(step, 32, warmup_steps=40, factor=0.2)
    optimizer.param_groups[0]["lr"] = rate
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item() / n_tokens)
print(f"step 1 {losses[0]:.2f}, step 80 {losses[-1]:.2f} nats a token")
assert all(map(math.isfinite, losses))
assert losses[-1] < 0.2 * losses[0]

# %% [markdown]
# **Where.** `TrainingRun.step`; tests: `test_the_first_update_has_the_rate_of_step_1`, `test_adam_by_hand`.
# Exercises: {ref}`train-ex-guess`, {ref}`train-ex-padding`.

# %% [markdown]
# (section-accumulate)=
# ## Divide once: gradient accumulation
#
# **Question.** A batch of 25,000 tokens does not fit into your GPU. Can you have the same step all the same?
#
# Yes: the gradient of a sum is the sum of the gradients. Cut the batch into **micro-batches**, run `backward` on one
# after the other, let the gradients add up, and step once. What needs care is the divisor.
#
# **Equation.** With micro-batches $1 \ldots k$, summed losses $\mathcal{L}_j$ and $n_j$ real target tokens:
#
# $$
# g = \frac{\nabla \mathcal{L}_1 + \cdots + \nabla \mathcal{L}_k}{n_1 + \cdots + n_k}
# \qquad \text{and not} \qquad
# \frac{1}{k} \sum_j \frac{\nabla \mathcal{L}_j}{n_j}
# $$ (train-accumulate)
#
# The second is the **mean of means**, which one gets when each micro-batch returns its mean loss, as
# `nn.CrossEntropyLoss` does by default, and the sum is divided by $k$. It gives a token in a small micro-batch more
# weight than one in a large one.
#
# **Check.** Twelve sequences at once, and as micro-batches of 1, 2 and 9.

# %%
def gradient(model, batches, divisor):
    """All weights' gradient as one vector; losses divided by divisor(batch)."""
    model.zero_grad()
    for batch in batches:
        (loss_of(model, batch) / divisor(batch)).backward()
    return torch.cat([w.grad.flatten() for w in model.parameters()])

by_length = sorted(ids[:12], key=lambda pair: len(pair[1]))
whole = make_batch(by_length)
parts = [make_batch(by_length[a:b]) for a, b in ((0, 1), (1, 3), (3, 12))]
print([part.n_tokens for part in parts], "of", whole.n_tokens, "tokens")

# %%
torch.manual_seed(0)
model = Transformer(config)
at_once = gradient(model, [whole], lambda batch: whole.n_tokens)
accumulated = gradient(model, parts, lambda batch: whole.n_tokens)
assert_close(accumulated, at_once, atol=1e-5, rtol=1e-3)
of_means = gradient(model, parts, lambda batch: len(parts) * batch.n_tokens)
error = (of_means - at_once).norm() / at_once.norm()
print(f"mean of means: off by {error:.2f} of the gradient's length")
assert error > 0.1

# %% [markdown]
# The micro-batches here are more unequal than most. But every batch of sentences is unequal to the next, and the error
# has a direction: it favours the tokens of micro-batches with few real ones, in each step. With a fixed number of
# sentences in each, those are the short sentences. The same mistake hides in training on several GPUs, where each
# computes a mean over its own tokens.
#
# The package takes sums everywhere and divides once (`loss / n_tokens` in the code above, with `n_tokens` over all
# micro-batches). In `TrainConfig` it is two settings: `max_tokens=6250, accumulate=4` for about the paper's batch, with
# a quarter of it in memory at a time.
#
# **Break it: accumulated and never stepped.** A loop that is copied a lot steps "every $k$ batches" by
# `if i % k == 0`. Count what that does with ten batches and $k = 4$.

# %%
def which_batches_step(n_batches, k, due):
    """The batches whose gradients each step uses; the batches left over."""
    steps, waiting = [], []
    for i in range(n_batches):
        waiting.append(i)
        if due(i, k):
            steps.append(waiting)
            waiting = []
    return steps, waiting

for name, due in (("i % k == 0", lambda i, k: i % k == 0),
                  ("(i + 1) % k == 0", lambda i, k: (i + 1) % k == 0)):
    steps, waiting = which_batches_step(10, 4, due)
    print(f"{name:17} steps {steps}, left over {waiting}")
assert waiting == [8, 9]

# %% [markdown]
# The first form makes a step of a single batch at the start. Both leave the epoch's last gradients behind: they are
# accumulated, and never stepped, unless they leak into the next epoch's first step. If the learning rate is advanced
# per batch instead of per step, the schedule runs $k$ times too fast on top. The package counts steps, not batches: it
# draws `accumulate` batches for each step, across the end of an epoch if need be, so that nothing is left. A third way
# to be wrong is to clear the gradient at every micro-batch:

# %%
model.zero_grad()
for part in parts:
    model.zero_grad()  # the mistake: it belongs after the step
    (loss_of(model, part) / whole.n_tokens).backward()
last_only = torch.cat([w.grad.flatten() for w in model.parameters()])
last = gradient(model, parts[-1:], lambda batch: whole.n_tokens)
assert_close(last_only, last)
error = (last_only - at_once).norm() / at_once.norm()
print(f"only the last micro-batch: off by {error:.2f}")
assert error > 0.02

# %% [markdown]
# **Where.** `TrainingRun.step`; test: `test_two_half_batches_equal_one_whole_batch`. Exercise:
# {ref}`train-ex-means`.

# %% [markdown]
# (section-precision)=
# ## Mixed precision
#
# **Question.** A GPU multiplies 16-bit numbers two to eight times as fast as 32-bit ones (the figures of 2018,
# {cite:t}`micikevicius2018mixed`). Which parts of training can do with 16 bits?
#
# A floating-point number is $\pm 1.f \cdot 2^e$. Bits for the exponent $e$ give **range**: how large and how small a
# number may be. Bits for the fraction $f$ give **precision**: how close two neighbouring numbers are. There are
# two ways to cut 32 bits down to 16.
#
# | | exponent bits | fraction bits | |
# |---|---|---|---|
# | float32 | 8 | 23 | |
# | bfloat16 (bf16) | 8 | 7 | the range of float32, 2 to 3 digits {cite}`kalamkar2019study` |
# | float16 (fp16) | 5 | 10 | 3 to 4 digits, a small range |

# %%
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    info = torch.finfo(dtype)
    spacing = round(math.log2(info.eps))
    print(f"{str(dtype)[6:]:9} largest {info.max:.1e}"
          f"  smallest normal {info.tiny:.1e}  spacing at 1: 2^{spacing}")
assert torch.finfo(torch.bfloat16).tiny == torch.finfo(torch.float32).tiny
assert torch.finfo(torch.float16).max == 65504

# %% [markdown]
# **Why bf16 and not fp16: range.** Training has numbers of all sizes. A large batch's summed loss exceeds fp16's
# largest number; small gradients, and Adam's $\epsilon = 10^{-9}$, fall below its smallest. bf16 keeps all of them,
# roughly.

# %%
numbers = {"25,000 tokens at 10 nats": 2.5e5, "a small gradient": 1e-8,
           "Adam's eps": 1e-9, "a square of a gradient": 1e-12}
for name, number in numbers.items():
    fp16 = torch.tensor(number).half().item()
    bf16 = torch.tensor(number).bfloat16().item()
    print(f"{name:25} {number:.1e}  fp16 {fp16:7.1e}  bf16 {bf16:.1e}")
    assert fp16 in (0, math.inf)
    assert math.isclose(bf16, number, rel_tol=2**-8)

# %% [markdown]
# With fp16 one multiplies the loss by a large factor before `backward` and divides the gradients by it afterwards,
# and looks out for overflow (**loss scaling** {cite}`micikevicius2018mixed`). The package has PyTorch's scaler do it:
# where a gradient overflows, the step is skipped and the factor halved, and after 2,000 steps without overflow it is
# doubled. A skipped step leaves the weights and Adam's means as they were; it counts as a step for the rate, and the
# log says how many there were. With bf16 none of this is needed. The paper's GPUs had no bf16; which precision it used
# it does not say.
#
# **Why the weights stay in float32: precision.** An update is small beside its weight. In bf16 the neighbours of 1 are
# $2^{-7} = 0.0078$ above and half of that below; an update of 0.001 is rounded away, and so is the next one, and so are
# all.

# %%
updates = 1000
in_float32 = torch.tensor(1.0)
in_bfloat16 = torch.tensor(1.0, dtype=torch.bfloat16)
paths = []
for _ in range(updates):
    in_float32 += 0.001
    in_bfloat16 += 0.001
    paths.append((in_float32.item(), in_bfloat16.item()))
print(f"after {updates} updates: float32 {paths[-1][0]:.4f},"
      f" bfloat16 {paths[-1][1]:.4f}")
assert abs(paths[-1][0] - 2) < 1e-3 and paths[-1][1] == 1

# %% mystnb={"image": {"alt": "Line chart of a weight over the first 60 updates of 0.001. In float32 it rises in a straight line from 1 to 1.06. Kept in bfloat16 it stays at 1. A third curve, the float32 master rounded to bfloat16, follows the line in stairs of eight updates each."}, "figure": {"caption": "A weight that is to grow by 0.001 at each update, the first 60 of them. A float32 master keeps what its rounded copy cannot show.", "name": "fig-master-weights"}}
figure, ax = plt.subplots(figsize=(5, 2.8), layout="constrained")
master, alone = torch.tensor(paths[:60]).T
ax.plot(range(1, 61), master, label="float32 master")
rounded = master.bfloat16().float()
ax.step(range(1, 61), rounded, where="mid", label="the master, rounded to bfloat16")
ax.plot(range(1, 61), alone, "--", label="bfloat16 alone")
ax.set(xlabel="update", ylabel="weight")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# Hence *mixed* precision: weights, gradients and Adam's state in float32 (the **master** weights), and copies
# rounded to bf16 for the matrix products of the forward and the backward pass. In PyTorch `autocast` makes the copies.
#
# **Check** which tensor has which type, and what the rounding does to the loss.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
model = Transformer(config)
with torch.autocast("cpu", dtype=torch.bfloat16):
    logits = model(*whole[:2])
    loss, _ = label_smoothed_cross_entropy(logits, whole.target_out)
loss.backward()
exact, _ = label_smoothed_cross_entropy(model(*whole[:2]), whole.target_out)
print("logits", logits.dtype, " loss", loss.dtype)
print(f"relative error of the loss {abs(loss - exact) / exact:.0e}")
assert logits.dtype == torch.bfloat16 and loss.dtype == torch.float32
assert all(w.dtype == w.grad.dtype == torch.float32 for w in model.parameters())
assert abs(loss - exact) / exact < 0.01

# %% [markdown]
# The loss itself is computed in float32, from the bf16 logits: it adds up thousands of terms, and a sum in bf16 stops
# growing when its terms are smaller than its spacing ({ref}`train-ex-counting`).
#
# In `TrainConfig` this is `precision`: "auto" takes bf16 on a GPU that has it in hardware, fp16 on an older one such as
# Colab's T4, and float32 on a CPU. What it buys on a GPU, [On a GPU](on_a_gpu.ipynb) works out by count and, once one
# has been used, by measurement.
#
# **Where.** `TrainingRun`; exercise: {ref}`train-ex-counting`.

# %% [markdown]
# (section-copy)=
# ## A task learned to the last letter
#
# **Question.** How do you know that the whole of it works: model, batches, loss, rate, search?
#
# Train on a task that a correct program must master *completely*. A score of 97 percent on translation may hide a
# bug; 97 percent on copying gives it away. One encoder and one decoder layer, $d_{\text{model}} = 64$, the schedule of
# the paper with a short warm-up and a fifth of its rate (our choice; the rate is the subject of
# [chapter 5.3](5_3_optimizer.ipynb)).
#
# How many steps? 800, as a rule. The loss has bumps, as you will see, and the end of a run may fall on one. So the last
# five checkpoints are averaged, as in section 6.1 of the paper, and the *validation* sequences decide: while the
# average gets one of them wrong, the run is resumed for 200 steps more.

# %%
from time import process_time

from annotated_transformer import average_checkpoints, greedy_search, load_model
from annotated_transformer.text.batching import pad_source

def count_right(model, texts):
    """Sequences that greedy search copies to the last letter."""
    ids = [tokenizer.encode(text) for text in texts]
    copies = greedy_search(model, pad_source(ids))
    return sum(copy == truth for copy, truth in zip(copies, ids))

settings = TrainConfig(max_tokens=800, warmup_steps=60, lr_factor=0.2,
                       max_length=50, log_every=5, validate_every=10**6,
                       checkpoint_every=20, keep_checkpoints=80)

# %% tags=["nbval-ignore-output"]
began, out = process_time(), f"{runs.name}/copy"
for n_steps in range(800, 1601, 200):
    copier = train(config, settings.replace(train_steps=n_steps), tokenizer,
                   pairs, [], out, progress=False, resume=n_steps > 800)
    averaged, _ = load_model(average_checkpoints(out, last=5))
    if count_right(averaged, valid) == len(valid):
        break
seconds = process_time() - began
n_parameters = sum(w.numel() for w in copier.parameters())
print(f"{n_parameters:,} parameters, {n_steps} steps, {seconds:.0f} s")
assert round(n_parameters, -3) == 101_000

# %% [markdown]
# **Check.** Now the 500 sequences that have played no part in anything so far. All of them are copied to the last
# letter.

# %% tags=["row-X1"]
accuracy = count_right(averaged, fresh) / len(fresh)
print(f"{accuracy:.0%} of {len(fresh)} fresh sequences without a mistake")
assert accuracy == 1.0

# %% [markdown]
# **Picture.** Beside the loss, two measures at every second of the checkpoints, on the same fresh sequences: the
# share of *tokens* that are right when the true prefix is given (teacher forcing), and the share of *sequences* that
# greedy search gets right, where the model reads itself.

# %%
from annotated_transformer import checkpoint

fresh_ids = [tokenizer.encode(text) for text in fresh]
exam = make_batch([(x, x) for x in fresh_ids])
asked = exam.target_out != 0

def judge(path):
    """Hits given the true prefix, (B, T), and what greedy search writes."""
    checkpoint.load_weights(copier, checkpoint.load_tensors(path)[0], path)
    with torch.no_grad():
        hits = copier.eval()(*exam[:2]).argmax(dim=-1) == exam.target_out
    return hits, greedy_search(copier, exam.source, max_extra=5)

# %%
every_second = checkpoint.step_checkpoints(f"{runs.name}/copy")[::2]
judged = [judge(path) for path in every_second]
token_share = [hits[asked].float().mean().item() for hits, _ in judged]
exact_share = [sum(a == b for a, b in zip(copies, fresh_ids)) / len(fresh_ids)
               for _, copies in judged]

# %%
lines = Path(f"{runs.name}/copy/log.jsonl").read_text().splitlines()
log = [json.loads(line) for line in lines]
number = [int(path.stem.split("-")[1]) for path in every_second]
right, wrong = 0.9 + 0.1 / V, 0.1 / V
floor = -right * math.log(right) - (V - 1) * wrong * math.log(wrong)
assert round(floor, 2) == 0.89

# %% mystnb={"image": {"alt": "Two charts over the steps of training. Above, the loss per token falls from more than 6 nats and meets, after about 300 steps, a dashed line at 0.89, the smallest that label smoothing allows. Below, the share of right tokens under teacher forcing rises first, the share of sequences copied exactly rises later and more steeply; both reach 1, with some dips."}, "figure": {"caption": "The copy task. Above: loss on the training batches. Below: shares on fresh sequences.", "name": "fig-copy"}}
figure, axes = plt.subplots(2, figsize=(5, 4.4), sharex=True,
                            layout="constrained")
axes[0].plot([r["step"] for r in log], [r["loss"] for r in log])
axes[0].axhline(floor, color=PALETTE[1], linestyle="--",
                label="the smallest possible")
axes[0].set(ylabel="loss (nats a token)", ylim=(0, None))
axes[1].plot(number, token_share, "-", label="tokens, teacher forcing")
axes[1].plot(number, exact_share, "--", label="sequences, greedy search")
axes[1].set(xlabel="step", ylabel="share right", ylim=(0, 1.05))
for ax in axes:
    ax.legend(frameon=False)
plt.show()

# %% [markdown]
# Both shares reach 1, and leave it again now and then, together with the loss: single steps throw the model off, and it
# returns. We have not looked into the cause; it is the reason for the average, and for the validation above.
#
# The curve of the loss does not reach zero: label smoothing asks for 0.9, and whoever answers that has the loss of the
# dashed line. The nll of such an answer is $-\ln(0.9 + 0.1/V)$:

# %% tags=["nbval-ignore-output"]
typical = sorted(record["nll"] for record in log[-40:])[20]
print(f"nll at the floor {-math.log(right):.3f}, at the end {typical:.3f} (median)")
assert -0.02 < typical + math.log(right) < 0.1

# %% [markdown]
# **Exposure, measured.** First a law: greedy search gets a sequence right exactly when every token is right under
# teacher forcing. As long as all tokens so far are right, the two read the same prefix. So what the two write differs
# only *after a first mistake*. (The cell allows two exceptions in 10,000 or more, since two logits may be so close that
# rounding decides between them.)

# %% tags=["nbval-ignore-output"]
exceptions = 0
for hits, copies in judged:
    all_right = (hits | ~asked).all(dim=1).tolist()
    exact = [copy == truth for copy, truth in zip(copies, fresh_ids)]
    exceptions += sum(one != other for one, other in zip(all_right, exact))
print(len(judged), "checkpoints,", len(fresh_ids), "sequences each")
assert exceptions <= 2  # two logits may be so close that rounding decides

# %% [markdown]
# After the first mistake the teacher corrects the prefix, and the searching model has to live with it. Take the
# half-trained checkpoints, those that copy between 5 and 95 percent of the sequences, and look only at the positions
# after the first wrong token.

# %% tags=["nbval-ignore-output"]
forced = alone = places = 0
for (hits, out), share in zip(judged, exact_share):
    for row, truth in enumerate(fresh_ids if 0.05 < share < 0.95 else []):
        answer = [*truth, 2]
        written = [*out[row], 2]
        missed = [t for t in range(len(answer)) if not hits[row, t]]
        for t in range(missed[0] + 1 if missed else len(answer), len(answer)):
            places += 1
            forced += bool(hits[row, t])
            alone += t < len(written) and written[t] == answer[t]
print(f"{places} tokens after a first mistake, right: {forced / places:.2f}"
      f" by teacher forcing, {alone / places:.2f} reading itself")
assert places > 100 and forced > alone

# %% [markdown]
# That difference is the exposure. On this task training closes it, because in the end there are no first mistakes. In
# translation there always are, and what the model does after them is what beam search ([chapter
# 6.1](6_1_translation.ipynb)) has to deal with.
#
# **Break it.** `positions="none"`: the same model, the same steps, but no positional encoding. It can tell *which*
# letters the source has, but hardly where. Compare the loss at step 250.

# %% tags=["nbval-ignore-output"]
def mean_nll(records):
    return sum(record["nll"] for record in records) / len(records)

train(config.replace(positions="none"), settings.replace(train_steps=250),
      tokenizer, pairs, [], f"{runs.name}/lost", progress=False)
lines = Path(f"{runs.name}/lost/log.jsonl").read_text().splitlines()
without = mean_nll([json.loads(line) for line in lines][-5:])
with_positions = mean_nll(log[45:50])
print(f"nll a token: with positions {with_positions:.2f}, without {without:.2f}")
assert without > with_positions + 0.3

# %% [markdown]
# **Where.** `train`; the test `test_end_to_end.py::test_two_text_files_become_translated_sentences` goes the whole way
# from text to text. Exercises: {ref}`train-ex-law`, {ref}`train-ex-floor`.

# %% [markdown]
# (section-resume)=
# ## Reproducible and resumable
#
# **Question.** The run stops after three days: a power cut, a shared machine. What must have been stored so that it
# goes on as if nothing had happened?
#
# All that the next step depends on: the **weights**; Adam's two means for each weight, and its number of steps; the
# number of the **step**, for the rate; the **epoch** and the place in it, for the next batch; the state of the
# **random generator**, for dropout; and in float16 the **scale** of the loss. The package writes these at every
# checkpoint, with the sums that are waiting for the next line of the log.
#
# **Check.** Twelve steps at a stretch, twice; and six, then six more with everything read back from the files. With
# dropout on. Not nearly equal: equal, bit for bit. (The test below does it harder, and kills the program.)

# %%
noisy = config.replace(p_drop=0.1)
short = TrainConfig(train_steps=12, max_tokens=200, max_length=50,
                    warmup_steps=5, lr_factor=0.2, checkpoint_every=3)

def run(name, resume=False, init=None, **changes):
    return train(noisy, short.replace(**changes), tokenizer, pairs[:300], [],
                 f"{runs.name}/{name}", progress=False, resume=resume,
                 init=init)

straight, again = run("straight"), run("again")
run("stopped", train_steps=6)
resumed = run("stopped", resume=True)
for name, weight in straight.named_parameters():
    assert torch.equal(weight, again.get_parameter(name))
    assert torch.equal(weight, resumed.get_parameter(name))

# %% [markdown]
# The file of a checkpoint, in its parts:

# %%
path = Path(runs.name, "stopped", "training.safetensors")
tensors, metadata = checkpoint.load_tensors(path)
kinds = {name if name.startswith("random") else ".".join(name.split(".")[:2])
         for name in tensors}
print(*sorted(kinds), metadata["counters"], sep="\n")
assert json.loads(metadata["counters"])["step"] == 12
assert {"adam.exp_avg", "adam.exp_avg_sq", "adam.step", "random.cpu"} < kinds

# %% [markdown]
# **Break it.** Store the weights only and start anew from them. The program runs, but it is another training: Adam has
# forgotten its means, the rate begins its warm-up again, the first epoch's batches come once more.

# %% tags=["nbval-ignore-output"]
run("half", train_steps=6)
restarted = run("restarted", train_steps=6, init=f"{runs.name}/half")
difference = max((weight - restarted.get_parameter(name)).abs().max().item()
                 for name, weight in straight.named_parameters())
print(f"weights differ by up to {difference:.0e} after twelve steps")
assert difference > 1e-4

# %% [markdown]
# A resumed run is also held to its settings, its tokenizer and its sentence pairs (of which it keeps a digest).
# Another batch size would make it another run, so it is refused:

# %%
try:
    run("stopped", resume=True, max_tokens=400)
except ConfigError as error:
    print(str(error).replace(runs.name, "RUNS"))
else:
    raise AssertionError("another run under the same name")

# %% [markdown]
# **What is not promised.** The same bits need the same machine, library and number of threads: a sum in another order
# rounds otherwise. On a GPU some kernels add in an order that varies from run to run. And the draws of BPE-dropout
# differ from one process to the next.
#
# **Where.** `save` and `restore` in `annotated_transformer/training/state.py`; test:
# `test_a_run_killed_at_five_random_steps_ends_with_the_same_weights`.

# %% [markdown]
# (section-hardware)=
# ## The paper's hardware and schedule
#
# **Question.** What did the paper's training take?
#
# Section 5.2 in full, as numbers:
#
# | the paper says | base | big |
# |---|---|---|
# | hardware | one machine, 8 NVIDIA P100 GPUs | the same |
# | time of a step | about 0.4 s | 1.0 s |
# | steps | 100,000 | 300,000 |
# | time | 12 hours | 3.5 days |
# | a batch (5.1) | about 25,000 source and 25,000 target tokens | the same |
#
# **Check.** The products. 100,000 steps of 0.4 s are 11.1 hours, and not 12: "about" 0.4 would have to be 0.43. The
# big model's numbers agree.

# %% tags=["row-H8"]
base_hours = 100_000 * 0.4 / 3600
big_days = 300_000 * 1.0 / 86_400
print(f"base {base_hours:.1f} h (the paper: 12 h)")
print(f"big  {big_days:.2f} days (the paper: 3.5 days)")
assert round(base_hours, 1) == 11.1 and round(big_days, 1) == 3.5
assert round(12 * 3600 / 100_000, 2) == 0.43
speed = 25_000 / 0.4
print(f"{speed:,.0f} target tokens a second, {speed / 8:,.0f} a GPU")

# %% [markdown]
# The cost in operations that Table 2 derives from these times is the subject of
# [the chapter on the results](6_1_results.ipynb).
#
# For comparison, what the machine that ran this page did on the copy task, with a model of 101 thousand parameters
# instead of 63 million, and one core instead of eight GPUs. (Your number will be another.)

# %% tags=["nbval-ignore-output"]
speeds = sorted(record["tokens_per_s"] for record in log)
measured = speeds[len(speeds) // 2]
print(f"measured here: {measured:,.0f} target tokens a second (median)")
assert measured > 0

# %% [markdown]
# (section-wmt14)=
# ## The WMT14 recipe
#
# **Question.** Which commands would repeat the paper's training?
#
# These, for the base model on English-German. `checkpoint_every=1500` is ten minutes at 0.4 s a step, the paper's
# interval; its test score is for the mean of the last five.

# %%
recipe = """annotated-transformer prepare wmt14-en-de
annotated-transformer train --corpus wmt14-en-de --preset base
  --vocab-size 37000 --set train_steps=100000 --set max_tokens=25000
  --set warmup_steps=4000 --set checkpoint_every=1500 --out RUN
annotated-transformer average RUN --last 5
annotated-transformer evaluate RUN-averaged --corpus wmt14-en-de
  --split test --beam-size 4 --alpha 0.6 --max-extra 50"""
lines = recipe.replace("\n  ", " ").splitlines()
commands = [line.split()[1:] for line in lines]
print(recipe.replace("\n  ", " \\\n  "))
verbs = [command[0] for command in commands]
assert verbs == ["prepare", "train", "average", "evaluate"]

# %% [markdown]
# What changes for the others:
#
# | | base, En-De | big, En-De | big, En-Fr |
# |---|---|---|---|
# | `--corpus` | `wmt14-en-de` | `wmt14-en-de` | `wmt14-en-fr` |
# | `--vocab-size` | 37000 | 37000 | 32000 |
# | `--preset` | `base` | `big` | `big`, and `--set p_drop=0.1` |
# | `train_steps` | 100000 | 300000 | 300000 |
# | `checkpoint_every` (ten minutes of the paper's machine) | 1500 | 600 | 600 |
# | `average --last` | 5 | 20, with `--set keep_checkpoints=20` | 20, likewise |
#
# On a smaller GPU, `max_tokens=6250` with `accumulate=4` gives about the same step.
#
# **Honestly:** we have not run this recipe at full size. It differs from the paper in what the paper leaves open or
# did otherwise: one GPU instead of eight; French word-pieces are BPE here; 40.8 million French pairs instead of 36
# million ([chapter 5.1](5_1_data_and_batching.ipynb)); the initial weights, of which the paper says nothing; a limit of
# 25,000 tokens that counts padding, so that a batch has somewhat fewer real ones; pairs with more than 255 tokens on a
# side left out (`max_length`); half precision on a GPU. The package reads all pairs into memory and learns the
# vocabulary from all of them, and neither has been tried at this size.
#
# **Check.** What can be checked is. First, that the commands' settings are the paper's:

# %% tags=["row-X4", "row-H5"]
from annotated_transformer import cli
from annotated_transformer.train_arguments import run_settings

asked = cli.parser().parse_args(commands[1])
base, plan, _ = run_settings(asked, Path(asked.out))
assert (base.N, base.d_model, base.d_ff, base.h) == (6, 512, 2048, 8)
assert (base.d_k, base.d_v, base.p_drop, base.norm) == (64, 64, 0.1, "post")
assert (plan.beta1, plan.beta2, plan.adam_eps) == (0.9, 0.98, 1e-9)
assert (plan.train_steps, plan.warmup_steps) == (100_000, 4000)
assert (plan.max_tokens, plan.eps_ls, plan.lr_factor) == (25_000, 0.1, 1.0)
assert base.vocab_size == 37_000 and plan.clip_norm == 0
print("N", base.N, "batch", plan.max_tokens, "steps", plan.train_steps)

# %% [markdown]
# Second, that the commands run, in this order, on a text in the form in which the package reads WMT14 from a directory:
# one JSON object a line. We write a few sentences of our own, and shrink the model and the number of steps by `--set`;
# of two settings of one name the last one counts.

# %%
slice_directory = Path(runs.name, "slice", "wmt14-en-de")
slice_directory.mkdir(parents=True)
houses = [(f"House {i} has {j} windows.", f"Haus {i} hat {j} Fenster.")
          for i in range(2, 12) for j in range(2, 8)]
cut = {"train": houses[:-8], "valid": houses[-8:-4], "test": houses[-4:]}
for split, chosen in cut.items():
    rows = [json.dumps({"translation": {"en": en, "de": de}}) + "\n"
            for en, de in chosen]
    (slice_directory / f"{split}.jsonl").write_text("".join(rows))
changes = {"N": 1, "d_model": 32, "d_ff": 64, "h": 4, "warmup_steps": 20,
           "train_steps": 60, "checkpoint_every": 10, "max_tokens": 300}
small = ["--vocab-size", "300"]
for name, value in changes.items():
    small += ["--set", f"{name}={value}"]

# %% tags=["row-X4"]
import contextlib
import io

out, data = f"{runs.name}/wmt", ["--data-dir", str(slice_directory)]
for verb, *options in commands:
    options = [option.replace("RUN", out) for option in options]
    options += {"prepare": data, "train": [*small, *data, "--quiet"],
                "average": [], "evaluate": [*data, "--quiet"]}[verb]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert cli.main([verb, *options]) == 0, verb
    print("done:", verb)

# %% [markdown]
# Its results mean nothing, but they are there: a score with its signature, and a directory that names the corpus and
# every setting.

# %% tags=["row-X4"]
report = printed.getvalue()
assert report.startswith("BLEU") and "tok:13a" in report
stored = json.loads(Path(f"{out}-averaged", "config.json").read_text())
assert stored["corpus"] == "wmt14-en-de" and stored["train"]["eps_ls"] == 0.1
assert stored["model"]["d_model"] == 32 and stored["model"]["norm"] == "post"
print(sorted(path.name for path in Path(f"{out}-averaged").iterdir()))

# %% [markdown]
# **Where.** `annotated_transformer/cli.py` and `commands.py`; [chapter 6.1](6_1_translation.ipynb) trains a model that
# translates, at a size a laptop can do.

# %% [markdown]
# ## Exercises
#
# ```{exercise} A guess
# :label: train-ex-guess
#
# A model gives every token of a vocabulary of 37,000 the same probability. What are its nll, its smoothed loss
# ($\epsilon_{ls} = 0.1$), and its perplexity $e^{\text{nll}}$, a token? If a fresh model starts at 14 nats, what does
# that tell you?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The smoothed loss is a mean of negative log-probabilities under the smoothed target. All of them are equal.
# ```
#
# ```{solution} train-ex-guess
# :class: dropdown
#
# $\ln 37000 = 10.52$ nats for both; perplexity 37,000. A model that starts well above is not undecided but wrong with
# conviction: its logits are too large. Our models start above the guess too, because the shared embedding has logits of
# some size from the start; the first steps take that away.
# ```

# %% tags=["hide-cell"]
logits, target = torch.zeros(1, 37_000), torch.tensor([5])
loss, nll = label_smoothed_cross_entropy(logits, target)
assert_close(loss, nll)
assert round(nll.item(), 2) == 10.52
assert round(nll.exp().item(), -2) == 37_000

# %% [markdown]
# ```{exercise} Divided by everything
# :label: train-ex-padding
#
# Somebody divides the summed loss by `target_out.numel()`, padding included. On the batch `whole` of this chapter, by
# which factor is the gradient too small? Adam divides by the gradient's size, so does it matter?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# A *constant* factor would not matter to Adam.
# ```
#
# ```{solution} train-ex-padding
# :class: dropdown
#
# By the share of real tokens. It matters in two ways: the factor differs from batch to batch, so batches with much
# padding count less; and the loss that is logged depends on how sentences were grouped, so it cannot be compared
# between runs.
# ```

# %% tags=["hide-cell"]
share = whole.n_tokens / whole.target_out.numel()
wrong = gradient(model, [whole], lambda batch: batch.target_out.numel())
right_one = gradient(model, [whole], lambda batch: batch.n_tokens)
assert_close(wrong, share * right_one, atol=1e-6, rtol=1e-3)
shares = [part.n_tokens / part.target_out.numel() for part in parts]
print(f"{share:.2f} here; in the three parts", *(f"{s:.2f}" for s in shares))
assert share < 1 and shares[0] == 1

# %% [markdown]
# ```{exercise} The mean of means by hand
# :label: train-ex-means
#
# Two micro-batches: one token with a loss of 4 nats, and nine tokens with 1 nat each. What is the loss a token, and
# what is the mean of means? How much more does the lone token weigh in the second than in the first?
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
# much; each of the nine has $1/18$ instead of $1/10$.
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
# Start at 0 and add 1 again and again, in bfloat16. At which number does the sum stop growing? And in float16, and in
# float32? Predict from the bits of the fraction, then run it. What does it mean for a loss that is summed over
# 25,000 tokens?
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
# At 256, 2048, and $2^{24} = 16{,}777{,}216$. Above 256, bf16 has only even numbers; $256 + 1$ lies between 256 and
# 258, and the tie goes to 256. A sum of 25,000 losses of about one nat would be stuck at 256, if it were made term by
# term. Therefore the package computes the loss in float32, whatever the type of the logits.
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
# Prove the law of {ref}`section-copy`: greedy search writes $y$ if and only if under teacher forcing with $y$ the most
# probable token is right at every position, eos included. Is there a version for beam search?
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
# At position 1 both read bos. If all tokens before $t$ are right, greedy search has written $y_1 \ldots y_{t-1}$, so
# both read the same prefix, have the same distribution, and take the same token. If that is $y_t$ for every $t$, the
# search writes $y$; at the first $t$ where it is not, the search writes something else. For beam search there is
# no such law: $y$ may win although one of its tokens was second best. (The code in the chapter asserts the law on 500
# sequences at each of 20 checkpoints, save at most two exceptions for rounding.)
# ```
#
# ```{exercise} The floor
# :label: train-ex-floor
#
# With label smoothing $\epsilon$ and vocabulary $V$, the smallest loss a token is the entropy of the smoothed target.
# Compute it for $\epsilon = 0.1$ and the copy task's $V$, and for $V = 37{,}000$. Which perplexity does a model show
# that reaches the floor? And one that is right with probability 1?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Perplexity is made of the nll, $-\ln$ of the true token's probability, and not of the loss.
# ```
#
# ```{solution} train-ex-floor
# :class: dropdown
#
# 0.89 nats for $V = 281$, 1.38 for 37,000. At the floor the true token has $0.9 + 0.1/V$, a perplexity of
# $1/(0.9 + 0.1/V)$, about 1.11. With probability 1 the perplexity is 1, but the smoothed loss is infinite. "This hurts
# perplexity", says section 5.4; here is by how much at least.
# ```

# %% tags=["hide-cell"]
def floor_of(V, eps=0.1):
    p, q = 1 - eps + eps / V, eps / V
    return -p * math.log(p) - (V - 1) * q * math.log(q)

print(f"{floor_of(V):.2f} {floor_of(37_000):.2f} {1 / right:.2f}")
assert math.isclose(floor_of(V), floor) and round(floor, 2) == 0.89
assert round(floor_of(37_000), 2) == 1.38 and round(1 / right, 2) == 1.11

# %% [markdown]
# ```{exercise} How long would it take you?
# :label: train-ex-hours
#
# The paper's base run sees $100{,}000 \cdot 25{,}000$ target tokens. At a measured speed of $u$ target tokens a
# second, how many days is that? Which speed finishes in 12 hours? (Measure yours with the base model, not with the
# copier of this chapter: `tokens_per_s` in the log.)
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# A day has 86,400 seconds.
# ```
#
# ```{solution} train-ex-hours
# :class: dropdown
#
# $2.5 \cdot 10^9 / (86400\,u)$ days: 29 days at 1,000 tokens a second. Twelve hours need 57,870 a second.
# ```

# %% tags=["hide-cell"]
def days(u):
    return 100_000 * 25_000 / u / 86_400

assert round(days(1000)) == 29
assert round(2.5e9 / (12 * 3600)) == 57_870

# %% [markdown]
# ```{exercise} Accumulate, and compare the runs
# :label: train-ex-accumulate
#
# Train twice for ten steps from one seed: with `max_tokens=400`, and with `max_tokens=200, accumulate=2`. Do the
# weights agree? Why not, although equation {eq}`train-accumulate` is exact?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Print `n_tokens` of the first step's batches. Which *sentences* are in them?
# ```
#
# ```{solution} train-ex-accumulate
# :class: dropdown
#
# They do not. Two batches of 200 tokens are not the halves of one of 400: groups are cut from the sorted list and
# then shuffled, so the two that meet in a step have different lengths. The gradient is exact for the sentences it
# sees; those are others. (Mixing two lengths in a step is, if anything, an advantage.)
# ```

# %% tags=["hide-cell"]
first = next(iter(token_batches(ids[:300], 400, seed=1)))
two = [batch for batch, _ in zip(token_batches(ids[:300], 200, seed=1), range(2))]
assert first.source.numel() <= 400 and all(b.source.numel() <= 200 for b in two)
assert two[0].source.size(1) != two[1].source.size(1)
one = run("one-batch", train_steps=10, max_tokens=400)
other = run("two-batches", train_steps=10, max_tokens=200, accumulate=2)
assert not torch.equal(one.embedding.weight, other.embedding.weight)

# %%
runs.cleanup()

# %% [markdown]
# ## What to remember
#
# - In training the decoder reads the true prefix, so all positions are computed in one pass (equation
#   {eq}`train-factors`). When it writes it reads itself, and differs from the first mistake on.
# - A step: forward, sum the loss, divide once by the real target tokens, backward, set the rate, Adam, clear the
#   gradients (equation {eq}`train-step`).
# - Accumulated gradients equal one large batch if the division is by *all* tokens; a mean of means is another
#   gradient (equation {eq}`train-accumulate`).
# - bf16 has float32's range and few digits: products may use it, weights may not.
# - A correct program copies fresh sequences without one mistake. Run that test before you train for days.
# - The paper: 8 P100s, 0.4 s and 1.0 s a step, 100,000 and 300,000 steps, 25,000 tokens a side; and 100,000 times 0.4 s
#   is 11.1 hours.
