# %% [markdown]
# # 5.3 Optimizer
#
# *Section 5.3 of the paper {cite}`vaswani2017attention`: Adam, and a learning rate that rises before it falls.*
#
# Section 5.3 is six lines long: Adam {cite}`kingma2015adam` with $\beta_1 = 0.9$, $\beta_2 = 0.98$ and
# $\epsilon = 10^{-9}$, and a learning rate given by equation 3. The paper gives a reason for none of these. They are
# also the lines that go wrong most quietly: a schedule that is off by a factor or a unit raises no error, and the
# model merely learns slowly, or not at all.
#
# When you have read this chapter you can
#
# - do an Adam step with a pencil, and say what it does not depend on;
# - say how far back $\beta_2 = 0.98$ looks, and $0.999$;
# - compute equation 3 at any step, and find its peak without a computer;
# - drive the rate from PyTorch's `LambdaLR` without one of its five usual mistakes;
# - say for which models the warm-up mattered in an experiment that you ran yourself.

# %%
import math

import matplotlib.pyplot as plt
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer.looking.visualization import show, use_style

use_style()
torch.set_printoptions(precision=4, sci_mode=False)

# %% [markdown]
# ## Adam
#
# **Question.** The gradient says for each weight which way the loss falls. How far should the weight go?
#
# Plain gradient descent answers: by the gradient times a **learning rate**, the same rate for every weight. But
# gradients differ in size, from one matrix to another and from the start of training to its end, and one rate cannot
# suit them all. **Adam** keeps two running averages for each weight: $m$, of its gradient $g$, and $v$, of the
# gradient's square. It goes in the direction of $m$, and divides by $\sqrt v$, the gradient's usual size.
#
# **Equation.** For step $t = 1, 2, \ldots$, with learning rate $\eta_t$ and $m_0 = v_0 = 0$:
#
# $$
# \begin{aligned}
# m_t &= \beta_1\, m_{t-1} + (1 - \beta_1)\, g_t, & \hat m_t &= \frac{m_t}{1 - \beta_1^t} \\
# v_t &= \beta_2\, v_{t-1} + (1 - \beta_2)\, g_t^2, & \hat v_t &= \frac{v_t}{1 - \beta_2^t} \\
# w_t &= w_{t-1} - \eta_t\, \frac{\hat m_t}{\sqrt{\hat v_t} + \epsilon}
# \end{aligned}
# $$ (opt-adam)
#
# The two hats are the **bias correction**. Both averages start at 0, which is not an average of anything: after one
# step, $m_1$ is only a tenth of the gradient. The weights of all gradients in $m_t$ add up to $1 - \beta_1^t$, and the
# division makes that sum 1.
#
# **Code.** PyTorch has Adam, and the package takes it from there with the paper's three constants. Its rate starts at
# 0, because training sets a new one before every step.

# %%
from annotated_transformer import TrainConfig, make_adam

show(make_adam)

# %% tags=["row-H4"]
defaults = TrainConfig()
adam = make_adam(torch.nn.Linear(2, 3), defaults)
[group] = adam.param_groups
assert group["betas"] == (0.9, 0.98) and group["eps"] == 1e-9
assert group["weight_decay"] == 0 and defaults.warmup_steps == 4000
print(type(adam).__name__, "betas", group["betas"], "eps", group["eps"])

# %% [markdown]
# **Check.** One weight, five gradients, plain Python floats; then the same from PyTorch.

# %%
def adam_by_hand(w, gradients, rate, beta1=0.9, beta2=0.98, eps=1e-9):
    """The weight after each of the steps."""
    m = v = 0.0
    weights = []
    for t, g in enumerate(gradients, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        w -= rate * m_hat / (math.sqrt(v_hat) + eps)
        weights.append(w)
    return weights

# %%
def adam_by_torch(w, gradients, rate, **settings):
    weight = torch.nn.Parameter(torch.tensor(w, dtype=torch.float64))
    chosen = {"betas": (0.9, 0.98), "eps": 1e-9, **settings}
    optimizer = torch.optim.Adam([weight], lr=rate, **chosen)
    weights = []
    for g in gradients:
        weight.grad = torch.tensor(g, dtype=torch.float64)
        optimizer.step()
        weights.append(weight.item())
    return weights

# %%
gradients = [0.3, 0.1, -0.2, 0.4, 0.05]
by_hand = adam_by_hand(1.0, gradients, rate=0.01)
by_torch = adam_by_torch(1.0, gradients, rate=0.01)
assert all(math.isclose(a, b, rel_tol=1e-12) for a, b in zip(by_hand, by_torch))
print(*(f"{w:.6f}" for w in by_hand))

# %% [markdown]
# The first step is the rate, 0.01, but for the tiny $\epsilon$, although the gradient is 0.3. With $t = 1$ the hats
# leave $\hat m_1 = g_1$ and $\hat v_1 = g_1^2$, and what remains of the quotient is the gradient's *sign*. It would
# have been the same step for a gradient of 0.003. Multiply *all* gradients by a thousand, and Adam takes the same
# steps, as long as $\epsilon$ does not count:

# %%
larger = adam_by_hand(1.0, [1000 * g for g in gradients], rate=0.01)
assert all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(by_hand, larger))
assert math.isclose(by_hand[0], 1 - 0.01, rel_tol=1e-8)
print(*(f"{w:.6f}" for w in larger))

# %% [markdown]
# So it makes no difference to Adam whether the loss is a sum or a mean over tokens, as long as it is always the same
# one. (Where it changes from step to step, as a sum does when batches differ in size, it makes a difference again.)
#
# **Picture.** Three weights with gradients of very different size: 100 steps of Adam, and of plain descent with the
# rate that suits the largest.

# %% mystnb={"image": {"alt": "Two line charts over 100 steps. With plain gradient descent, one of three weights falls in a straight line while the other two hardly move. With Adam all three fall together, on one line."}, "figure": {"caption": "Distance gone by three weights whose gradients are 1, 0.1 and 0.01 at every step.", "name": "fig-opt-sizes"}}
figure, axes = plt.subplots(1, 2, figsize=(5.8, 2.5), sharey=True, layout="constrained")
for g, dash in ((1.0, "-"), (0.1, "--"), (0.01, ":")):
    plain = [-0.01 * g * step for step in range(1, 101)]
    axes[0].plot(plain, dash, label=f"gradient {g:g}")
    axes[1].plot(adam_by_hand(0.0, [g] * 100, rate=0.01), dash)
axes[0].set(title="gradient descent", xlabel="step", ylabel="weight")
axes[1].set(title="Adam", xlabel="step")
axes[0].legend(loc="lower left", frameon=False)
plt.show()

# %% [markdown]
# **Break it.** Forget the bias correction. The first step is then no longer the rate but
# $(1 - \beta_1) / \sqrt{1 - \beta_2}$ times it, and the steps grow before they shrink, with Adam's usual
# $\beta_2 = 0.999$ to more than six times
# the rate. Where the correction is missing, the schedule has to make up for it.

# %%
def without_correction(g, n_steps, beta1=0.9, beta2=0.98):
    """Sizes of the steps, in units of the rate, for a constant gradient."""
    ratios = [(1 - beta1**t) / math.sqrt(1 - beta2**t) for t in range(1, n_steps + 1)]
    return [ratio * math.copysign(1, g) for ratio in ratios]

for beta2 in (0.98, 0.999):
    sizes = without_correction(0.3, 1000, beta2=beta2)
    assert math.isclose(sizes[0], 0.1 / math.sqrt(1 - beta2))
    assert (max(sizes) > 6) == (beta2 == 0.999)
    print(f"beta2 {beta2}: first step {sizes[0]:.2f}, largest {max(sizes):.2f},",
          f"last of 1,000 {sizes[-1]:.2f} times the rate")

# %% [markdown]
# **Where.**
#
# - Code: `make_adam` in `annotated_transformer/training/optimizer.py`.
# - Tests: `test_adam_by_hand`, `test_adam_has_every_parameter_once_and_waits_for_its_rate` in
#   `tests/training/test_optimizer.py`.
# - Exercises: {ref}`opt-ex-adam`, {ref}`opt-ex-first`, {ref}`opt-ex-signs`.

# %% [markdown]
# ## Why 0.98, and why a thousand-millionth?
#
# **Question.** Adam's authors suggest $\beta_2 = 0.999$ and $\epsilon = 10^{-8}$, and those are PyTorch's defaults.
# What changes with 0.98 and $10^{-9}$?
#
# **Equation.** Write the recursion of {eq}`opt-adam` out, and $v_t$ is a weighted sum in which a squared gradient of
# $k$ steps ago has the weight
#
# $$
# (1 - \beta_2)\, \beta_2^k, \qquad k = 0, 1, 2, \ldots
# $$ (opt-window)
#
# All these weights add up to 1. They fall by a factor of $e$ about every $1 / (1 - \beta_2)$ steps, because
# $\ln \beta_2 \approx -(1 - \beta_2)$. That number is called the averaging **window**: **50 steps** for 0.98, **1,000
# steps** for 0.999.
#
# **Check.** The weights, summed up: how much of the average is younger than one window?

# %%
for beta2 in (0.98, 0.999):
    window = round(1 / (1 - beta2))
    weights = [(1 - beta2) * beta2**k for k in range(40 * window)]
    assert math.isclose(sum(weights), 1)
    inside = sum(weights[:window])
    assert math.isclose(inside, 1 - beta2**window, rel_tol=1e-9)
    print(f"beta2 {beta2}: window {window:4d} steps, {inside:.3f} of the weight is younger")

# %% [markdown]
# **Picture.** What the window is for. In the figure, the gradients are random with a typical size of 1, and after
# step 300 of 0.1: training has left a steep place for a flat one. The right divisor is the dashed line.

# %% mystnb={"image": {"alt": "The divisor, the root of v-hat, over 1000 steps. A dashed line shows the gradient's true size, 1 until step 300 and 0.1 after. The curve for beta2 0.98 follows it within some 250 steps, and trembles. The curve for beta2 0.999 is smooth and is still near 0.5 at step 1000."}, "figure": {"caption": "How fast Adam notices that gradients have become ten times smaller.", "name": "fig-opt-window"}}
torch.manual_seed(0)
size = torch.where(torch.arange(1000) < 300, 1.0, 0.1).double()
g = size * torch.randn(1000, dtype=torch.float64)
figure, ax = plt.subplots(figsize=(5.2, 2.6), layout="constrained")
divisors = {}
for beta2, dash in ((0.98, "-"), (0.999, "-.")):
    v, divisors[beta2] = 0.0, []
    for t in range(1, 1001):
        v = beta2 * v + (1 - beta2) * g[t - 1].item() ** 2
        divisors[beta2].append(math.sqrt(v / (1 - beta2**t)))
    ax.plot(divisors[beta2], dash, label=rf"$\beta_2 = {beta2}$")
ax.plot(size, "k--", linewidth=1, label="typical size of the gradient")
ax.set(xlabel="step", ylabel=r"divisor $\sqrt{\hat v_t}$", ylim=(0, 1.4))
ax.legend(frameon=False)
plt.show()

# %%
for beta2, values in divisors.items():
    print(f"beta2 {beta2}: divisor at step 500 {values[499]:.2f}, at step 1,000 {values[999]:.2f}")
assert divisors[0.98][499] < 0.2 < 0.4 < divisors[0.999][999]

# %% [markdown]
# With 0.999 the steps stay several times too small for hundreds of steps after the change. With 0.98 the divisor
# follows, and trembles for it: an average over 50 squares is a noisy one. Which matters more in training, the paper
# does not say. Its authors' own code later went back to a longer window: the present default of tensor2tensor
# {cite}`vaswani2018tensor2tensor` has $\beta_2 = 0.997$.
#
# **And $\epsilon$?** It keeps the division finite for a weight whose gradients have all been 0. It acts when it is not
# small beside $\sqrt{\hat v}$: then the step is noticeably shorter than it would be without. How small do gradients
# get? Here is the first one of a small model, with the mean loss of a batch.

# %%
from annotated_transformer import ModelConfig, Transformer

torch.manual_seed(0)
model = Transformer(ModelConfig.tiny(vocab_size=1000, p_drop=0.0))
tokens = torch.randint(3, 1000, (16, 12))
logits = model(tokens, F.pad(tokens[:, :-1], (1, 0), value=1))
F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
sizes = torch.cat([w.grad.flatten().abs() for w in model.parameters()])

print(f"median |g| {sizes.median():.1e}")
for eps in (1e-9, 1e-8, 1e-6):
    print(f"share of gradients below {eps:.0e}: {(sizes < eps).float().mean():.4f}")

# %%
assert sizes.median() > 1e-6
assert (sizes < 1e-8).float().mean() < 0.05

# %% [markdown]
# At this size, neither $10^{-9}$ nor $10^{-8}$ is felt by more than a few weights. It may be otherwise for a model of
# hundreds of millions of weights and batches of 25,000 tokens, where each weight's share is smaller; the paper does
# not say why it chose its value.
#
# One trap is certain. In half precision (float16) both are rounded to zero, because the smallest positive number there
# is $6\cdot10^{-8}$. With the optimizer's state in float16, the step of a weight whose gradients have all been 0 is 0
# divided by 0.

# %%
for eps in (1e-9, 1e-8, 1e-7):
    print(f"{eps:.0e} in float16: {torch.tensor(eps).half().item():.1e}")
assert torch.tensor(1e-8).half() == 0 < torch.tensor(1e-7).half()
zero = torch.tensor(0.0).half()
assert (zero / (zero.sqrt() + torch.tensor(1e-9).half())).isnan()

# %% [markdown]
# **Where.**
#
# - Code: `beta1`, `beta2` and `adam_eps` of `TrainConfig` in `annotated_transformer/config.py`.
# - Exercises: {ref}`opt-ex-window`.

# %% [markdown]
# ## Equation 3: a rate that rises and falls
#
# **Question.** Adam makes all weights move by about the rate. Which rate?
#
# **Equation.** The paper's equation 3; the paper calls it $lrate$, we write $\eta$ as above. For step $s$, with a
# **warm-up** of $w$ steps:
#
# $$
# \eta(s) = d_{\mathrm{model}}^{-0.5} \cdot \min\left(s^{-0.5},\; s \cdot w^{-1.5}\right)
# $$ (opt-rate)
#
# The second term is a straight line through 0, the first falls with the inverse square root of the step. They meet
# where $s^{-0.5} = s\, w^{-1.5}$, that is at $s = w$, and the minimum takes the line before and the root after. So the
# rate has its **peak** at step $w$, and there it is
#
# $$
# \eta(w) = \frac{1}{\sqrt{d_{\mathrm{model}}\, w}}.
# $$ (opt-peak)
#
# The paper has $w = 4000$. The schedule is widely called after Noam Shazeer, one of the authors: the *Noam* schedule.
#
# **Code.**

# %%
from annotated_transformer import noam_learning_rate

show(noam_learning_rate)

# %% [markdown]
# **Check.** The rate of the base model at six steps. Before the peak, a hundred times the step is a hundred times the
# rate; after it, ten times the step is a rate smaller by $\sqrt{10}$.

# %% tags=["row-W8"]
answers = {1: 1.7469e-7, 100: 1.7469e-5, 1000: 1.7469e-4,
           4000: 6.9877e-4, 10_000: 4.4194e-4, 100_000: 1.3975e-4}
for step, answer in answers.items():
    rate = noam_learning_rate(step, d_model=512, warmup_steps=4000)
    by_hand = 512**-0.5 * (step * 4000**-1.5 if step < 4000 else step**-0.5)
    assert math.isclose(rate, by_hand, rel_tol=1e-12)
    assert math.isclose(rate, answer, rel_tol=5e-5)
    print(f"step {step:7,}  rate {rate:.4e}")

# %% [markdown]
# The peak is where {eq}`opt-peak` has it, for base and big, and the two pieces meet there without a jump.

# %% tags=["row-E11"]
for d_model, peak in ((512, 6.9877e-4), (1024, 4.9411e-4)):
    rates = [noam_learning_rate(s, d_model, 4000) for s in range(1, 20_001)]
    assert max(rates) == rates[3999]
    assert math.isclose(rates[3999], 1 / math.sqrt(d_model * 4000))
    assert math.isclose(rates[3999], peak, rel_tol=5e-5)
    line, root = 4000 * 4000**-1.5, 4000**-0.5
    assert math.isclose(line, root, rel_tol=1e-12)
    print(f"d_model {d_model:4d}  peak {rates[3999]:.4e} at step 4,000")

# %% [markdown]
# **Picture.** Three schedules. Twice the warm-up: the peak comes twice as late and is lower by $\sqrt 2$, and after
# step 8,000 the two are one curve. Half the width: the whole curve is higher by $\sqrt 2$.

# %% tags=["row-F10"] mystnb={"image": {"alt": "Learning rate against step from 0 to 20,000 for three schedules. Width 512 with warm-up 4000 rises in a line to 0.0007 at step 4000 and falls. Width 512 with warm-up 8000 rises to 0.0005 at step 8000 and from there on coincides with the first. Width 256 with warm-up 4000 has the shape of the first, and is higher everywhere, with its peak near 0.001."}, "figure": {"caption": "Equation {eq}`opt-rate` for three settings of $d_{\\mathrm{model}}$ and warm-up.", "name": "fig-opt-rate"}}
steps = range(1, 20_001)
figure, ax = plt.subplots(figsize=(5.2, 2.9), layout="constrained")
curves = {}
for (d_model, warmup), dash in zip(((512, 4000), (512, 8000), (256, 4000)), ("-", "--", "-.")):
    rates = curves[d_model, warmup] = [noam_learning_rate(s, d_model, warmup) for s in steps]
    ax.plot(steps, rates, dash, label=f"$d_{{model}}$ {d_model}, warm-up {warmup:,}")
    ax.plot(warmup, max(rates), "o", color=ax.lines[-1].get_color(), markersize=4)
ax.set(xlabel="step", ylabel="learning rate", ylim=(0, 1.1e-3))
ax.legend(frameon=False)
assert curves[512, 4000][7999:] == curves[512, 8000][7999:]
assert_close(torch.tensor(curves[256, 4000]), 2**0.5 * torch.tensor(curves[512, 4000]))
plt.show()

# %% [markdown]
# The factor $d_{\mathrm{model}}^{-0.5}$ says that a model four times as wide should move its weights half as far. The
# paper gives no derivation. That *some* decrease is right can be seen from Adam's step: every one of the
# $d_{\mathrm{model}}$ weights that make one output moves by about the rate, all in the direction of their gradients,
# so the output changes by something that grows with the width. Later work derives how fast the rate must fall so that
# a rate found on a narrow model serves a wide one, and arrives at $1 / d_{\mathrm{model}}$ for most matrices under Adam
# {cite}`yang2021tuning`, a faster fall than the paper's.
#
# **Where.**
#
# - Code: `noam_learning_rate` in `annotated_transformer/training/optimizer.py`; training sets it before each step in
#   `annotated_transformer/training/loop.py`.
# - Tests: `test_equation_3`, `test_rate_rises_linearly_to_its_peak_and_falls` in `tests/training/test_optimizer.py`,
#   `test_equation_3_values` in `tests/test_paper.py`.
# - Exercises: {ref}`opt-ex-noam`, {ref}`opt-ex-tenth`, {ref}`opt-ex-double`, {ref}`opt-ex-way`.

# %% [markdown]
# ## Break it: how to miss the rate
#
# ### There is no step 0
#
# **Question.** Programmers count from 0. What is the rate of step 0?
#
# Equation {eq}`opt-rate` has $s^{-0.5}$, and $0^{-0.5}$ is a division by zero. Python says so. A tensor does not: there
# it is infinity, the minimum picks the other term, and the "rate" is 0: the first update changes nothing, every later
# one comes a step late, and no message is printed. The package refuses.

# %%
try:
    min(0**-0.5, 0 * 4000**-1.5)
except ZeroDivisionError as error:
    print("Python: ", error)
else:
    raise AssertionError("Python has a value for 0 to the power of -0.5")

# %%
zero = torch.tensor(0.0)
print("PyTorch:", torch.minimum(zero**-0.5, zero * 4000**-1.5).item())

try:
    noam_learning_rate(0, d_model=512, warmup_steps=4000)
except ValueError as error:
    print("package:", error)
else:
    raise AssertionError("step 0 has a rate")

# %% [markdown]
# ### PyTorch's LambdaLR
#
# **Question.** You train with a loop of your own. How do you hand equation {eq}`opt-rate` to PyTorch?
#
# `LambdaLR` wraps a function of the step and sets the rate. Three facts about it matter, and each of the five mistakes
# below overlooks one.
#
# 1. The function gives a *factor*: the rate is the optimizer's own `lr` times what the function returns.
# 2. It counts from 0: the first update gets the value at 0, so the function must add 1.
# 3. It moves on when `step()` is called, once, after the update. It knows nothing of steps or epochs.

# %%
from torch.optim.lr_scheduler import LambdaLR

def rates_used(n_updates, base=1.0, factor=lambda n: noam_learning_rate(n + 1, 512, 4000),
               updates_per_epoch=1):
    """The rates of the updates, when the scheduler steps once in so many updates."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.Adam([weight], lr=base)
    scheduler, rates = LambdaLR(optimizer, factor), []
    for update in range(1, n_updates + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if update % updates_per_epoch == 0:
            scheduler.step()
    return rates

# %% [markdown]
# Used rightly, with a base rate of 1.0, it gives equation {eq}`opt-rate`.

# %% tags=["row-L0"]
right = rates_used(5000)
expected = [noam_learning_rate(step, 512, 4000) for step in range(1, 5001)]
assert_close(torch.tensor(right), torch.tensor(expected))
print(f"first {right[0]:.4e}  peak {max(right):.4e} at update {right.index(max(right)) + 1:,}")

# %% [markdown]
# Now the mistakes. **First**, a base rate that looks reasonable. Published code has `lr=1e-4` with a remark that a
# schedule should be added; add it, and the two are multiplied. The peak is then ten thousand times too low.

# %%
small = rates_used(5000, base=1e-4)
assert math.isclose(max(small), 1e-4 * max(right), rel_tol=1e-9)
print(f"peak {max(small):.4e} instead of {max(right):.4e}")

# %% [markdown]
# **Second**, the same with a base rate of 0. That is what `make_adam` has, because training *sets* the rate. Under
# `LambdaLR`, which multiplies, nothing would ever move.

# %%
assert set(rates_used(5000, base=0.0)) == {0.0}

# %% [markdown]
# **Third**, no `+ 1`. With a plain formula it crashes before the first update; "repaired" with `max(n, 1)`, the first
# two updates share the rate of step 1, and every later one is a step behind. That is harmless with 4,000 steps of
# warm-up, and a nuisance when you compare two programs digit by digit.

# %%
try:
    rates_used(1, factor=lambda n: 512**-0.5 * min(n**-0.5, n * 4000**-1.5))
except ZeroDivisionError:
    print("without + 1: ZeroDivisionError")
else:
    raise AssertionError("the first call was not with step 0")
late = rates_used(5000, factor=lambda n: noam_learning_rate(max(n, 1), 512, 4000))
assert late[0] == late[1] == right[0]
assert late[1:] == right[:-1]

# %% [markdown]
# **Fourth**, `scheduler.step()` once an epoch, as with schedules that are meant so. After ten epochs of 1,000 updates,
# training is at the rate of step 10.

# %%
by_epoch = rates_used(10_000, updates_per_epoch=1000)
assert by_epoch[-1] == noam_learning_rate(10, 512, 4000)
print(f"after 10,000 updates: {by_epoch[-1]:.4e}",
      f"instead of {noam_learning_rate(10_000, 512, 4000):.4e}")

# %% [markdown]
# **Fifth**, `scheduler.step()` *before* `optimizer.step()`. The first rate is skipped. PyTorch notices that one and
# warns.

# %%
import warnings

weight = torch.nn.Parameter(torch.zeros(1))
weight.grad = torch.ones(1)
optimizer = torch.optim.Adam([weight], lr=1.0)
scheduler = LambdaLR(optimizer, lambda n: noam_learning_rate(n + 1, 512, 4000))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    scheduler.step()
    optimizer.step()
assert any("lr_scheduler.step()" in str(each.message) for each in caught)
print(f"first update at {optimizer.param_groups[0]['lr']:.4e} instead of {right[0]:.4e}")

# %% [markdown]
# **Picture.** On logarithmic axes a wrong factor is a shift, and a wrong unit a bend.

# %% mystnb={"image": {"alt": "Learning rate against update on logarithmic axes. The right schedule rises to its peak near 0.0007 at update 4000. With a base rate of 0.0001 the same shape lies four decades lower. Stepped once in a thousand updates, the rate is a staircase that starts flat at 1.7e-7 and reaches only 1.7e-6 at update 10,000."}, "figure": {"caption": "Equation {eq}`opt-rate` through `LambdaLR`, used rightly and in two wrong ways.", "name": "fig-opt-mistakes"}}
figure, ax = plt.subplots(figsize=(5.2, 2.9), layout="constrained")
right, small = rates_used(10_000), rates_used(10_000, base=1e-4)
for rates, dash, label in ((right, "-", "right"), (small, "--", "base rate 1e-4"),
                           (by_epoch, "-.", "once an epoch of 1,000")):
    ax.plot(range(1, 10_001), rates, dash, label=label)
ax.set(xscale="log", yscale="log", xlabel="update", ylabel="learning rate")
ax.legend(frameon=False, loc="lower right")
plt.show()

# %% [markdown]
# There is one test for all five: write down the rate of the first update and of update $w$, from the optimizer, and
# hold them against equation {eq}`opt-rate`. The package's training writes the rate into its log.
#
# **Where.**
#
# - Tests: `test_the_first_update_has_the_rate_of_step_1` in `tests/training/test_loop.py`, `test_there_is_no_step_0` in
#   `tests/training/test_optimizer.py`.
# - Exercises: {ref}`opt-ex-lambda`.

# %% [markdown]
# ## Is the warm-up needed?
#
# **Question.** What happens if training starts at the peak rate at once?
#
# The paper does not say; Table 3 has no such row. So measure it, on a task in which a small model makes clear progress
# within a hundred updates: write six symbols in reverse. The comparison is at equal rates after the warm-up: "cold"
# training uses the peak rate during the first $w = 50$ updates, and {eq}`opt-rate` from there on. (The rate is 0.4
# times the formula's. The full formula's peak, 0.025 for a width of 32 and 50 steps, is too high here: in a trial that
# is not shown, each of the eight runs below ended at a higher loss with it.)

# %%
from annotated_transformer import label_smoothed_cross_entropy

WARMUP, WIDTH, N_SYMBOLS = 50, 32, 13  # ids 3 to 15

def reversal():
    """(source, target_in, target_out): 32 rows of six symbols, and the same in reverse."""
    source = torch.randint(3, 3 + N_SYMBOLS, (32, 6))
    target_out = source.flip(1)
    return source, F.pad(target_out[:, :-1], (1, 0), value=1), target_out

def warm_rate(step):
    return noam_learning_rate(step, WIDTH, WARMUP, factor=0.4)

def cold_rate(step):
    return warm_rate(max(step, WARMUP))

# %%
def small_model(norm, initialization):
    config = ModelConfig(vocab_size=3 + N_SYMBOLS, N=4, d_model=WIDTH, d_ff=64, h=4, p_drop=0.0)
    return Transformer(config.replace(norm=norm, initialization=initialization))

# %%
def losses(model, optimizer, rate, n_steps=100):
    """The loss of each step, in nats a token; rate(step) is the rate of a step."""
    history = []
    for step in range(1, n_steps + 1):
        source, target_in, target_out = reversal()
        loss, _ = label_smoothed_cross_entropy(model(source, target_in), target_out, eps_ls=0.0)
        optimizer.zero_grad()
        (loss / target_out.numel()).backward()
        optimizer.param_groups[0]["lr"] = rate(step)
        optimizer.step()
        history.append(loss.item() / target_out.numel())
    return history

# %% [markdown]
# Two properties of the model are varied with it, because later work found that they decide the matter. One is the
# place of the layer norm: after the residual sum as in the paper (**post-norm**), or at the entrance of each sub-layer
# (**pre-norm**; see [3.1](3_1_stacks.ipynb)). The other is the initial values of the matrices, which the paper leaves
# open: **glorot** draws them as {cite:t}`glorot2010understanding` propose, and **scaled**, this package's default,
# makes those on the way through a sub-layer smaller, so that at first the residual path dominates.
#
# A guess among 13 symbols costs $\ln 13 = 2.56$ nats. Each number is the mean loss of the last ten of 100 updates.

# %% tags=["nbval-ignore-output"]
history = {}
for norm in ("post", "pre"):
    for initialization in ("glorot", "scaled"):
        for warm in (True, False):
            torch.manual_seed(0)
            model = small_model(norm, initialization)
            adam = make_adam(model, TrainConfig())
            history[norm, initialization, warm] = losses(model, adam, warm_rate if warm else cold_rate)
        last = [sum(history[norm, initialization, warm][-10:]) / 10 for warm in (True, False)]
        print(f"{norm}-norm, {initialization}: {last[0]:.2f} with warm-up, {last[1]:.2f} without")

# %% tags=["row-X14"]
def final(norm, initialization, warm):
    return sum(history[norm, initialization, warm][-10:]) / 10

guess = math.log(N_SYMBOLS)
assert final("post", "glorot", warm=False) > 2.3  # learned next to nothing
assert final("post", "glorot", warm=True) < 2.05
assert abs(final("post", "scaled", True) - final("post", "scaled", False)) < 0.4
assert final("post", "scaled", False) < 2.05
for initialization in ("glorot", "scaled"):
    assert final("pre", initialization, warm=False) < 1.6

# %% mystnb={"image": {"alt": "Four line charts of loss over 100 updates, each with a curve for training with warm-up and one without, and a dotted line at 2.56, the loss of a guess. Post-norm with Glorot's initial values: with warm-up the loss falls to about 1.7, without it stays at the dotted line. Post-norm with scaled initial values: both curves fall. Pre-norm with either: both curves fall, without warm-up at least nearly as fast."}, "figure": {"caption": "Reversing six symbols, with and without warm-up. The dotted line is a guess.", "name": "fig-opt-warmup"}}
figure, axes = plt.subplots(2, 2, figsize=(5.8, 4), sharex=True, sharey=True, layout="constrained")
for ax, norm, initialization in zip(axes.flat, ("post", "post", "pre", "pre"), ("glorot", "scaled") * 2):
    for warm, dash in ((True, "-"), (False, "--")):
        label = "with warm-up" if warm else "without"
        ax.plot(history[norm, initialization, warm], dash, label=label)
    ax.axhline(guess, color="black", linestyle=":", linewidth=1)
    ax.set(title=f"{norm}-norm, {initialization}", ylim=(0, 4.5))
axes[0, 0].legend(frameon=False, loc="upper right")
figure.supxlabel("update", fontsize=9)
figure.supylabel("loss (nats a token)", fontsize=9)
plt.show()

# %% [markdown]
# So the answer is: **it depends on the model.** The paper's post-norm with ordinary initial values is stuck at
# guessing without the warm-up, and learns with it. With the scaled initial values it learns either way. Pre-norm
# learns either way too, and with the scaled values the warm-up only costs it time. That agrees with what others found
# on real translation: {cite:t}`xiong2020layer` show that at the start the gradients near the output of a post-norm
# model are large, that a warm-up is what makes it trainable, and that pre-norm can go without. What we saw is one
# small task, one rate and one seed (at the full formula's rate, in the trial, post-norm needed the warm-up with the
# scaled initial values as well). How much warm-up is *best* for translation, it does not say.
#
# ### The early variance of Adam
#
# **Question.** Why does it help to begin with small steps?
#
# {cite:t}`liu2020variance` point at the divisor. At step 1, $\sqrt{\hat v}$ is the size of a *single* gradient. A
# weight that happened to get a tiny one divides by a tiny number. Draw gradients of typical size 1, so that the right
# divisor is 1, and look at the factor $1 / \sqrt{\hat v_t}$ that 20,000 weights would get.

# %% tags=["nbval-rtol-0.05"]
torch.manual_seed(0)
v = torch.zeros(20_000, dtype=torch.float64)
spread = {}
for t in range(1, 101):
    v = 0.98 * v + 0.02 * torch.randn_like(v) ** 2
    factor = 1 / (v / (1 - 0.98**t)).sqrt()
    spread[t] = [factor.quantile(q).item() for q in (0.01, 0.5, 0.99)]
for t in (1, 2, 5, 10, 50, 100):
    print("step {:3d}: 1% below {:.1f}, half below {:.1f}, 1% above {:.1f}".format(t, *spread[t]))
assert spread[1][2] > 50 and spread[10][2] < 3 and spread[100][2] < 1.4

# %% [markdown]
# At step 1 the factors are spread over more than two powers of ten; at step 10 over a factor of about three. (The step
# itself is still bounded: at step 1 it is the rate times a sign. But a sign from a single noisy gradient is all that
# it is, for each of the millions of weights.) The theory of their paper gives the variance of the factor in closed
# form, and from it a correction $r_t$ by which to shorten step $t$, the *rectified* Adam (RAdam):
#
# $$
# \rho_\infty = \frac{2}{1 - \beta_2} - 1, \qquad
# \rho_t = \rho_\infty - \frac{2 t \beta_2^t}{1 - \beta_2^t}, \qquad
# r_t = \sqrt{\frac{(\rho_t - 4)(\rho_t - 2)\,\rho_\infty}{(\rho_\infty - 4)(\rho_\infty - 2)\,\rho_t}}
# $$ (opt-radam)
#
# It is a warm-up that follows from $\beta_2$ alone. (While $\rho_t$ is 5 or less, for the first few steps, PyTorch's
# version does not divide at all.)

# %%
def rectification(t, beta2):
    longest = 2 / (1 - beta2) - 1
    rho = longest - 2 * t * beta2**t / (1 - beta2**t)
    if rho <= 5:
        return 0.0
    ratio = (rho - 4) * (rho - 2) * longest / ((longest - 4) * (longest - 2) * rho)
    return math.sqrt(ratio)

reached = {}
for beta2 in (0.98, 0.999):
    reached[beta2] = next(t for t in range(1, 10_000) if rectification(t, beta2) > 0.9)
    print(f"beta2 {beta2}: r exceeds 0.9 at step {reached[beta2]:,}")
assert reached[0.98] < 200 and 2000 < reached[0.999] < 4000

# %% [markdown]
# **Check.** If the early variance is what stopped the post-norm model, RAdam should train it cold. It does:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
model = small_model("post", "glorot")
radam = torch.optim.RAdam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9)
rectified = losses(model, radam, cold_rate)
print(f"Adam, cold  {final('post', 'glorot', warm=False):.2f}")
print(f"Adam, warm  {final('post', 'glorot', warm=True):.2f}")
print(f"RAdam, cold {sum(rectified[-10:]) / 10:.2f}")
assert sum(rectified[-10:]) / 10 < 2.1

# %% [markdown]
# That is evidence, not proof: whatever makes the first steps shorter would do the same. And it leaves a riddle. With
# the paper's $\beta_2 = 0.98$ this argument asks for a warm-up of 100 to 200 steps, not 4,000. {cite:t}`ma2021adequacy`
# come to a rule of thumb of $2 / (1 - \beta_2)$ steps of linear warm-up, which is 100. They also dispute the
# explanation, and see the cause in the size of the early updates rather than in their variance. What the other 3,900
# steps are for, if for anything, the paper does not say.

# %% [markdown]
# ### Schedules after the paper
#
# The two halves of equation {eq}`opt-rate` fared differently. The linear warm-up stayed: nearly every large
# Transformer since has one. The inverse square root became one choice of several. It has a virtue: it never ends, so
# training can go on; and a fault: at the end the rate is still high ({ref}`opt-ex-tenth`), and the loss usually falls
# further when it is lowered. BERT {cite}`devlin2019bert` falls in a straight line to 0 after its warm-up; GPT-1
# {cite}`radford2018improving` and GPT-3 {cite}`brown2020language` along a cosine, an idea of
# {cite:t}`loshchilov2017sgdr`, GPT-3 down to a tenth of the peak; T5 {cite}`raffel2020exploring` kept the inverse
# square root for its pre-training. All of these but the last have to be told in advance when training ends. The paper
# averages its last checkpoints ([6.1](6_1_translation.ipynb)), which also quiets the jumps that a high rate leaves at
# the end.
#
# **Where.**
#
# - Code: `warmup_steps` and `lr_factor` of `TrainConfig`; `initialization` and `norm` of `ModelConfig`.
# - Exercises: {ref}`opt-ex-cosine`.

# %% [markdown]
# ## Exercises
#
# Each has a hint and a solution, both folded. Where the answer can be computed, a folded cell below computes it.
#
# ```{exercise} Equation 3
# :label: opt-ex-noam
#
# Write `noam(step, d_model, warmup_steps)`, and check it with `check("5.3", noam)`. Then give, without a computer, the
# peak rate of a model with $d_{\mathrm{model}} = 256$ and $w = 400$.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $256 \cdot 400 = (16 \cdot 20)^2$.
# ```
#
# ```{solution} opt-ex-noam
# :class: dropdown
#
# The function is one line. The peak is $1 / \sqrt{256 \cdot 400} = 1/320 = 0.003125$.
# ```

# %% tags=["hide-cell"]
from annotated_transformer.exercises import check

def noam(step, d_model, warmup_steps):
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)

check("5.3", noam)
assert math.isclose(noam(400, 256, 400), 1 / 320)

# %% [markdown]
# ```{exercise} One step of Adam
# :label: opt-ex-adam
#
# Write `adam_step(w, g, m, v, step, rate, beta1, beta2, eps)`, which returns the new `(w, m, v)`; `w`, `g`, `m` and `v`
# are tensors, and `step` is 1 at the first call. Check it with `check("5.3-adam", adam_step)`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# What you return as `m` and `v` are the averages themselves; the hats are for this step only.
# ```
#
# ```{solution} opt-ex-adam
# :class: dropdown
#
# Equation {eq}`opt-adam`, line by line; the folded cell has it. The two usual slips are to store the corrected averages
# and to add $\epsilon$ under the root instead of beside it.
# ```

# %% tags=["hide-cell"]
def adam_step(w, g, m, v, step, rate, beta1, beta2, eps):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    m_hat, v_hat = m / (1 - beta1**step), v / (1 - beta2**step)
    return w - rate * m_hat / (v_hat.sqrt() + eps), m, v

check("5.3-adam", adam_step)

# %% [markdown]
# ```{exercise} The first step
# :label: opt-ex-first
#
# Three weights have first gradients $10^{-3}$, $-5$ and $0$. The rate is 0.01. Predict the first step of each, and of a
# fourth weight whose gradient is $10^{-9}$.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $g / (|g| + \epsilon)$.
# ```
#
# ```{solution} opt-ex-first
# :class: dropdown
#
# $-0.01$, $+0.01$ and $0$. The fourth has $|g| = \epsilon$, so it goes half as far: $-0.005$.
# ```

# %% tags=["hide-cell"]
first = [adam_by_torch(0.0, [g], rate=0.01)[0] for g in (1e-3, -5.0, 0.0, 1e-9)]
assert_close(torch.tensor(first), torch.tensor([-0.01, 0.01, 0.0, -0.005]), rtol=1e-4, atol=1e-9)

# %% [markdown]
# ```{exercise} A gradient that cannot decide
# :label: opt-ex-signs
#
# The gradient of a weight is $+1, -1, +1, -1, \ldots$ How far does Adam move it in 100 steps, compared with a gradient
# that is always $+1$? Which of the two averages makes the difference?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $g^2$ is 1 in both cases. In the long run $m$ obeys $m_t = 0.9\, m_{t-1} \pm 0.1$.
# ```
#
# ```{solution} opt-ex-signs
# :class: dropdown
#
# $\hat v$ is 1 in both cases. $m$ tends to alternate between $\pm 0.1 / 1.9 = \pm 0.053$: each step is a twentieth of
# the rate, and the next one takes it back. After 100 steps the weight is less than two full steps from where it began,
# against a hundred. The average of the gradient makes the difference.
# ```

# %% tags=["hide-cell"]
steady = adam_by_hand(0.0, [1.0] * 100, rate=0.01)[-1]
torn = adam_by_hand(0.0, [1.0, -1.0] * 50, rate=0.01)
assert math.isclose(steady, -1.0, rel_tol=1e-6)
assert abs(torn[-1]) < 0.02
assert math.isclose(abs(torn[-1] - torn[-2]) / 0.01, 0.1 / 1.9, rel_tol=0.01)

# %% [markdown]
# ```{exercise} How far back?
# :label: opt-ex-window
#
# After how many steps has a squared gradient lost half of its weight in $v$, for $\beta_2 = 0.98$ and for $0.999$?
# Which $\beta_2$ has a window of 4,000 steps?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Solve $\beta_2^k = 1/2$.
# ```
#
# ```{solution} opt-ex-window
# :class: dropdown
#
# $k = \ln 2 / (-\ln \beta_2)$: 34.3 and 692.8 steps. For a window of 4,000, $1 - \beta_2 = 1/4000$, so
# $\beta_2 = 0.99975$.
# ```

# %% tags=["hide-cell"]
half_lives = [math.log(2) / -math.log(beta2) for beta2 in (0.98, 0.999)]
assert [round(k, 1) for k in half_lives] == [34.3, 692.8]
assert math.isclose(1 / (1 - 0.99975), 4000)

# %% [markdown]
# ```{exercise} A tenth of the peak
# :label: opt-ex-tenth
#
# At which two steps does the rate of {eq}`opt-rate` equal a tenth of its peak? The base model was trained for 100,000
# steps with $w = 4000$; which share of the peak rate is left at the end?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Before the peak the rate is $s/w$ of it, after it $\sqrt{w/s}$.
# ```
#
# ```{solution} opt-ex-tenth
# :class: dropdown
#
# At $w / 10 = 400$ and at $100\,w = 400{,}000$. At 100,000 steps, $\sqrt{4000 / 100000} = 0.2$: a fifth of the peak,
# which is far from 0.
# ```

# %% tags=["hide-cell"]
peak = noam_learning_rate(4000, 512, 4000)
for step, share in ((400, 0.1), (400_000, 0.1), (100_000, 0.2)):
    assert math.isclose(noam_learning_rate(step, 512, 4000) / peak, share)

# %% [markdown]
# ```{exercise} The authors' later default
# :label: opt-ex-double
#
# The present default of the authors' own code has 8,000 steps of warm-up and multiplies the formula by 2. What is its
# peak? Where does its curve lie above the paper's, where below?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Compare the lines' slopes, $2 \cdot 8000^{-1.5}$ and $4000^{-1.5}$.
# ```
#
# ```{solution} opt-ex-double
# :class: dropdown
#
# The peak is $2 / \sqrt{512 \cdot 8000} = 9.88 \cdot 10^{-4}$, $\sqrt 2$ times the paper's. After step 8,000 it is
# twice the paper's rate. At first it is below: its slope is $2 / 2^{1.5} = 0.71$ of the paper's. Between 4,000 and
# 8,000 they cross, where $2 s \cdot 8000^{-1.5} = s^{-0.5}$, at $s = 8000 / 2^{2/3} = 5{,}040$.
# ```

# %% tags=["hide-cell"]
later = [noam_learning_rate(s, 512, 8000, factor=2.0) for s in range(1, 20_001)]
paper = [noam_learning_rate(s, 512, 4000) for s in range(1, 20_001)]
assert math.isclose(max(later), math.sqrt(2) * max(paper)) and round(max(later) * 1e4, 2) == 9.88
above = [s for s in range(1, 20_001) if later[s - 1] > paper[s - 1]]
assert above == list(range(5040, 20_001))

# %% [markdown]
# ```{exercise} The longest way
# :label: opt-ex-way
#
# With a steady gradient Adam moves a weight by the rate at each step. How far can a weight of the base model get during
# the warm-up, and how far in 100,000 steps? Compare with the initial size of its embedding entries, about
# $512^{-0.5} = 0.044$.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The area of a triangle; and $\int s^{-0.5}\, ds = 2 s^{0.5}$.
# ```
#
# ```{solution} opt-ex-way
# :class: dropdown
#
# The triangle: $\tfrac12 \cdot 4000 \cdot 6.99 \cdot 10^{-4} = 1.40$. After it,
# $2 \cdot 512^{-0.5} (\sqrt{100000} - \sqrt{4000}) = 22.4$; in all 23.8. Even in the warm-up a weight can move thirty
# times its initial size: the start is small, but not timid.
# ```

# %% tags=["hide-cell"]
way = [noam_learning_rate(s, 512, 4000) for s in range(1, 100_001)]
assert round(sum(way[:4000]), 2) == 1.40
assert round(sum(way), 1) == 23.8
assert 30 < sum(way[:4000]) / 512**-0.5 < 33

# %% [markdown]
# ```{exercise} Find the mistake
# :label: opt-ex-lambda
#
# A log shows these rates for $d_{\mathrm{model}} = 512$, $w = 4000$: at the first update 1.7469e-7, at the second
# 1.7469e-7, at the hundredth 1.7295e-5. What is wrong?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Divide the third by the first.
# ```
#
# ```{solution} opt-ex-lambda
# :class: dropdown
#
# $1.7295 \cdot 10^{-5} / 1.7469 \cdot 10^{-7} = 99$: the hundredth update has the rate of step 99, and the first two
# that of step 1. It is the third mistake, the missing `+ 1` with `max(n, 1)`.
# ```

# %% tags=["hide-cell"]
assert [f"{late[i]:.4e}" for i in (0, 1, 99)] == ["1.7469e-07", "1.7469e-07", "1.7295e-05"]

# %% [markdown]
# ```{exercise} Another schedule
# :label: opt-ex-cosine
#
# Write `cosine(step, peak, warmup_steps, n_steps)`: linear warm-up to `peak`, then half a cosine wave down to 0 at
# `n_steps`. Train the post-norm model with scaled initial values for 100 steps with it and with equation
# {eq}`opt-rate`, at the same peak. Which ends lower?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Between $w$ and $n$ the factor is $\frac12 (1 + \cos(\pi \frac{s - w}{n - w}))$. `losses` takes any function of the
# step.
# ```
#
# ```{solution} opt-ex-cosine
# :class: dropdown
#
# The folded cell trains it, and prints both. A run of 100 steps and one seed cannot decide between them: the cosine is
# a bet on the last steps, and here they are few. Judge two schedules by several seeds, and never by runs of different
# planned length.
# ```

# %% tags=["hide-cell", "nbval-ignore-output"]
def cosine(step, peak, warmup_steps, n_steps):
    if step < warmup_steps:
        return peak * step / warmup_steps
    done = (step - warmup_steps) / (n_steps - warmup_steps)
    return peak * 0.5 * (1 + math.cos(math.pi * done))

def wave(step):
    return cosine(step, 0.4 / math.sqrt(WIDTH * WARMUP), WARMUP, n_steps=100)

assert math.isclose(wave(50), warm_rate(50)) and wave(100) == 0
torch.manual_seed(0)
model = small_model("post", "scaled")
waved = losses(model, make_adam(model, TrainConfig()), wave)
print(f"cosine {sum(waved[-10:]) / 10:.2f}, equation 3 {final('post', 'scaled', warm=True):.2f}")
assert sum(waved[-10:]) / 10 < 2.3

# %% [markdown]
# ## What to remember
#
# - Adam divides a running mean of the gradient by a running estimate of the gradient's size: the step does not depend
#   on the gradient's scale, and the first one is the rate times a sign (equation {eq}`opt-adam`).
# - $\beta_2 = 0.98$ averages over 50 steps, the usual 0.999 over 1,000. The paper gives no reason.
# - The rate rises in a line to $1 / \sqrt{d_{\mathrm{model}}\, w}$ at step $w$, and falls with the inverse square root
#   (equation {eq}`opt-rate`). Steps count from 1, and a step is an update, not an epoch.
# - With `LambdaLR`, the optimizer's own rate is 1.0, the function gets `n + 1`, and `step()` comes after each update.
# - Whether the warm-up is needed depends on the model: here post-norm with ordinary initial values failed without it,
#   and pre-norm or smaller initial values did without.
