# %% [markdown]
# # 5.3 Optimizer
#
# *Section 5.3 of the paper {cite}`vaswani2017attention` has Adam, and a learning rate that rises before it falls.*
#
# The section is six lines long: Adam {cite}`kingma2015adam` with $\beta_1 = 0.9$, $\beta_2 = 0.98$ and $\epsilon =
# 10^{-9}$, and a learning rate given by equation 3. The paper gives a reason for none of these, and they are the lines
# that go wrong most quietly: a schedule that is off by a factor raises no error, and the model merely learns slowly. We
# compute an Adam step by hand, see how far back $\beta_2$ looks, find the peak of equation 3, drive it from PyTorch's
# `LambdaLR`, measure what the warm-up is good for, and end with what is in use today: AdamW, Muon, and newer schedules.

# %% tags=["remove-cell"]
import json
import math
import warnings
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.testing import assert_close

# %% tags=["remove-cell"]
from annotated_transformer import ModelConfig, TrainConfig, Transformer, make_adam, make_batch, noam_learning_rate
from annotated_transformer.training.optimizer import orthogonalised
from lab.display import refusal, show, use_style
from lab.pictures import training as training_pictures
from lab.training_loop import fit, summed_loss

use_style()

# %% [markdown]
# ## Adam
#
# The gradient says for each weight which way the loss falls. How far should the weight go? Plain gradient descent goes
# by the gradient times a **learning rate**, the same for every weight. But gradients differ in size, from one matrix to
# another and from the start of training to its end, and one rate cannot suit them all. **Adam** keeps two running means
# for each weight: $m$, of its gradient $g$, and $v$, of the gradient's square. It goes in the direction of $m$, and
# divides by $\sqrt v$, the gradient's usual size. For step $t = 1, 2, \ldots$, with learning rate $\eta_t$ and
# $m_0 = v_0 = 0$:
#
# $$
# \begin{aligned}
# m_t &= \beta_1\, m_{t-1} + (1 - \beta_1)\, g_t, & \hat m_t &= \frac{m_t}{1 - \beta_1^t} \\
# v_t &= \beta_2\, v_{t-1} + (1 - \beta_2)\, g_t^2, & \hat v_t &= \frac{v_t}{1 - \beta_2^t} \\
# w_t &= w_{t-1} - \eta_t\, \frac{\hat m_t}{\sqrt{\hat v_t} + \epsilon}
# \end{aligned}
# $$ (opt-adam)
#
# The two hats are the **bias correction**. Both means start at 0, so after one step $m_1$ is only a tenth of the
# gradient. The weights of all gradients in $m_t$ add up to $1 - \beta_1^t$, and the division makes that sum 1.
#
# Let us follow one weight through five gradients, in plain Python, and hand the same gradients to PyTorch's Adam.

# %% tags=["hide-cell"]
def adam_by_torch(w, gradients, rate):
    weight = torch.nn.Parameter(torch.tensor(w, dtype=torch.float64))
    optimizer = torch.optim.Adam([weight], lr=rate, betas=(0.9, 0.98), eps=1e-9)
    weights = []
    for g in gradients:
        weight.grad = torch.tensor(g, dtype=torch.float64)
        optimizer.step()
        weights.append(weight.item())
    return weights

# %%
def adam_by_hand(w, gradients, rate, beta1=0.9, beta2=0.98, eps=1e-9):
    """The weight after each of the steps."""
    m, v, weights = 0.0, 0.0, []
    for t, g in enumerate(gradients, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        w -= rate * m_hat / (math.sqrt(v_hat) + eps)
        weights.append(w)
    return weights

gradients = [0.3, 0.1, -0.2, 0.4, 0.05]
for adam in (adam_by_hand, adam_by_torch):
    print(f"{adam.__name__:14}",
          *(f"{w:.6f}" for w in adam(1.0, gradients, rate=0.01)))

# %% tags=["remove-cell"]
by_hand = adam_by_hand(1.0, gradients, rate=0.01)
by_torch = adam_by_torch(1.0, gradients, rate=0.01)
larger = adam_by_hand(1.0, [1000 * g for g in gradients], rate=0.01)
assert all(math.isclose(a, b, rel_tol=1e-12) for a, b in zip(by_hand, by_torch))
assert all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(by_hand, larger))
assert math.isclose(by_hand[0], 1 - 0.01, rel_tol=1e-8)

# %% [markdown]
# We see that the first step is the rate, 0.01, although the gradient is 0.3: with $t = 1$ the hats leave $\hat m_1 =
# g_1$ and $\hat v_1 = g_1^2$, and their quotient is the gradient's *sign*. If we multiply all gradients by a thousand,
# Adam takes the same steps, as long as $\epsilon$ is small next to them. So a loss that is a sum over tokens trains like
# one that is a mean, if every batch has the same number of tokens. In the figure, plain descent has the rate that suits
# the largest of three gradients, and Adam moves all three weights alike.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two line charts over 100 steps. With plain gradient descent, one of three weights falls in a straight line from 0 to minus 1 while the other two hardly move. With Adam all three fall along parallel lines, drawn slightly apart."}, "figure": {"caption": "Distance gone by three weights whose gradients are 1, 0.1 and 0.01 at every step. The lines on the right coincide; they are drawn 0.04 apart.", "name": "fig-opt-sizes"}}
training_pictures.opt_sizes(adam_by_hand)

# %% [markdown]
# If we leave out the bias correction, the first step is $(1 - \beta_1) / \sqrt{1 - \beta_2}$ times the rate. For a
# steady gradient the steps then grow before they shrink, to one and a half times the rate with 0.98, and with Adam's
# usual $\beta_2 = 0.999$ to more than six times the rate. A warm-up would have to compensate for that.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Size of the step in units of the rate, against the step on a logarithmic axis from 1 to 5000. A flat line at 1 with bias correction. Without it, the curve for beta2 0.98 rises from 0.7 to about 1.55 at step 14 and falls to 1 by step 200; the one for 0.999 rises from 3 to above 6 and comes down only after some thousands of steps."}, "figure": {"caption": "Adam's step for a steady gradient, with and without the bias correction.", "name": "fig-opt-bias"}}
largest = training_pictures.opt_bias()
assert 1.5 < largest[0.98] < 1.6 and 6 < largest[0.999] < 7

# %% [markdown]
# We take Adam from PyTorch, with the paper's three constants. Its rate starts at 0, because training sets a new one
# before every step.

# %% tags=["row-H4"]
show(make_adam)

defaults = TrainConfig()
[group] = make_adam(torch.nn.Linear(2, 3), defaults).param_groups
print("betas", group["betas"], "eps", group["eps"], "warm-up",
      defaults.warmup_steps)
assert group["betas"] == (0.9, 0.98) and group["eps"] == 1e-9
assert group["weight_decay"] == 0 and defaults.warmup_steps == 4000

# %% [markdown]
# ## What 0.98 and $10^{-9}$ do
#
# Adam's authors suggest $\beta_2 = 0.999$ and $\epsilon = 10^{-8}$, which are PyTorch's defaults. If we write the
# recursion {eq}`opt-adam` out, $v_t$ is a sum in which a squared gradient of $k$ steps ago has the weight
#
# $$
# (1 - \beta_2)\, \beta_2^k, \qquad k = 0, 1, 2, \ldots
# $$ (opt-window)
#
# These weights add up to 1, and fall by a factor of $e$ about every $1 / (1 - \beta_2)$ steps, because
# $\ln \beta_2 \approx -(1 - \beta_2)$. That number is called the averaging **window**, and it is 50 steps for
# 0.98 and 1,000 steps for 0.999. For the figure we draw random gradients with a typical size of 1, and after step 300 of
# 0.1: training has left a steep place for a flat one.

# %% tags=["hide-cell"]
torch.manual_seed(0)
size = torch.where(torch.arange(1000) < 300, 1.0, 0.1).double()
g = size * torch.randn(1000, dtype=torch.float64)
divisors = {}
for beta2 in (0.98, 0.999):
    v, divisors[beta2] = 0.0, []
    for t in range(1, 1001):
        v = beta2 * v + (1 - beta2) * g[t - 1].item() ** 2
        divisors[beta2].append(math.sqrt(v / (1 - beta2**t)))

# %% tags=["hide-input"] mystnb={"image": {"alt": "The divisor, the root of v-hat, over 1000 steps. A dashed line shows the gradient's true size, 1 until step 300 and 0.1 after. The curve for beta2 0.98 follows it within some 250 steps, and is noisy. The curve for beta2 0.999 is smooth and is still 0.45 at step 1000."}, "figure": {"caption": "How fast Adam notices that gradients have become ten times smaller.", "name": "fig-opt-window"}}
training_pictures.opt_window(divisors, size)

# %% tags=["hide-cell"]
for beta2, window in ((0.98, 50), (0.999, 1000)):
    weights = [(1 - beta2) * beta2**k for k in range(40 * window)]
    assert math.isclose(sum(weights), 1) and round(1 / (1 - beta2)) == window
    assert 0.63 < sum(weights[:window]) < 0.64
assert divisors[0.98][499] < 0.2 < 0.4 < divisors[0.999][999]

# %% [markdown]
# With 0.98 the divisor follows within some 250 steps, at the price of noise. With 0.999 it is still 0.45 after 700,
# so that the steps are 4.5 times too small. The paper leaves open which matters more; the last default of its
# authors' own code, tensor2tensor {cite}`vaswani2018tensor2tensor`, archived in July 2023, is $\beta_2 = 0.997$.
#
# The constant $\epsilon$ keeps the division finite where all gradients have been 0, and shortens the step where
# $\sqrt{\hat v}$ is as small as itself. How small do gradients get? Here is the first one of a small model, with the
# mean loss of a batch:

# %%
torch.manual_seed(0)
model = Transformer(ModelConfig.tiny(vocab_size=1000, p_drop=0.0))
tokens = torch.randint(3, 1000, (16, 12))
logits = model(tokens, F.pad(tokens[:, :-1], (1, 0), value=1))
F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
sizes = torch.cat([w.grad.flatten().abs() for w in model.parameters()])
print(f"median |g| {sizes.median():.1e}")
for eps in (1e-9, 1e-8):
    print(f"share of gradients below {eps:.0e}: "
          f"{(sizes < eps).float().mean():.4f};",
          f"in float16 {eps:.0e} is {torch.tensor(eps).half().item():.1e}")

# %% tags=["remove-cell"]
assert sizes.median() > 1e-6 and (sizes < 1e-8).float().mean() < 0.05
assert torch.tensor(1e-8).half() == 0 < torch.tensor(1e-7).half()
zero = torch.tensor(0.0).half()
assert (zero / (zero.sqrt() + torch.tensor(1e-9).half())).isnan()

# %% [markdown]
# At this size fewer than one gradient in 10,000 is below either value. In half precision (float16) both round to
# zero, because the smallest positive number there is $6\cdot10^{-8}$. So the optimizer's state belongs in float32: in
# float16, a weight whose gradients have all been 0 would take a step of 0 divided by 0.
#
# ## Equation 3: a rate that rises and falls
#
# Adam moves a weight by at most about the learning rate. Which rate should we take? From here on $s$ is the step, and $w$ no
# longer a weight but the number of steps of **warm-up**, the paper's *warmup_steps*. The paper's equation 3 is
#
# $$
# \eta(s) = d_{\mathrm{model}}^{-0.5} \cdot \min\left(s^{-0.5},\; s \cdot w^{-1.5}\right)
# $$ (opt-rate)
#
# The second term is a straight line through 0, and the first falls with the inverse square root of the step. They meet
# where $s^{-0.5} = s\, w^{-1.5}$, that is at $s = w$, and the minimum takes the line before and the root after. So the
# rate has its **peak** at step $w$, and there it is
#
# $$
# \eta(w) = \frac{1}{\sqrt{d_{\mathrm{model}}\, w}}.
# $$ (opt-peak)
#
# The paper has $w = 4000$. The schedule is often called the *Noam* schedule, after Noam Shazeer, one of the authors.

# %% tags=["row-W8"]
show(noam_learning_rate)

answers = {1: 1.7469e-7, 100: 1.7469e-5, 1000: 1.7469e-4,
           4000: 6.9877e-4, 10_000: 4.4194e-4, 100_000: 1.3975e-4}
for step, answer in answers.items():
    rate = noam_learning_rate(step, d_model=512, warmup_steps=4000)
    print(f"step {step:7,}  rate {rate:.4e}")
    assert math.isclose(rate, answer, rel_tol=5e-5)
    rising, falling = step * 4000**-1.5, step**-0.5
    assert math.isclose(rate, 512**-0.5 * min(rising, falling))

# %% tags=["row-E11", "hide-cell"]
for d_model, peak in ((512, 6.9877e-4), (1024, 4.9411e-4)):
    rates = [noam_learning_rate(s, d_model, 4000) for s in range(1, 20_001)]
    assert max(rates) == rates[3999] and math.isclose(rates[3999], 1 / math.sqrt(d_model * 4000))
    assert math.isclose(rates[3999], peak, rel_tol=5e-5)
    print(f"d_model {d_model:4d}  peak {rates[3999]:.4e} at step 4,000")

# %% [markdown]
# Before the peak we get a hundred times the rate at a hundred times the step; after it, ten times the step is a rate
# smaller by $\sqrt{10}$. The big model, with $d_{\mathrm{model}} = 1024$, peaks at $4.94 \cdot 10^{-4}$. With twice the
# warm-up the peak comes twice as late and is lower by $\sqrt 2$, and after step 8,000 the two schedules are one curve:

# %% tags=["row-F10", "hide-input"] mystnb={"image": {"alt": "Learning rate against step from 0 to 20,000 for three schedules. Width 512 with warm-up 4000 rises in a line to 0.0007 at step 4000 and falls. Width 512 with warm-up 8000 rises to 0.0005 at step 8000 and from there on coincides with the first. Width 256 with warm-up 4000 has the shape of the first, and is higher everywhere, with its peak near 0.001."}, "figure": {"caption": "Equation {eq}`opt-rate` for three settings of $d_{\\mathrm{model}}$ and warm-up.", "name": "fig-opt-rate"}}
curves = training_pictures.opt_rate()
assert_close(torch.tensor(curves[256, 4000]), 2**0.5 * torch.tensor(curves[512, 4000]))
assert curves[512, 4000][7999:] == curves[512, 8000][7999:]

# %% [markdown]
# The factor $d_{\mathrm{model}}^{-0.5}$ makes a model four times as wide move its weights half as far. That the rate
# falls with width makes sense: under Adam each of the $d_{\mathrm{model}}$ weights that make one output moves by about
# the rate, so the change of the output grows with the width. Later work derives $1 / d_{\mathrm{model}}$ for most
# matrices under Adam {cite}`yang2021tuning`, a faster fall than the paper's.
#
# ## Equation 3 through PyTorch's `LambdaLR`
#
# If you train with a loop of your own, `LambdaLR` sets the rate from a function of the step. Three facts matter. The
# function gives a *factor*, by which the optimizer's own `lr` is multiplied. It counts from 0, so the function must add
# 1. And it moves on when we call `step()`, whatever a step or an epoch may be in our loop.

# %%
def rates_used(n_updates, lr=1.0,
               factor=lambda n: noam_learning_rate(n + 1, 512, 4000), every=1):
    """The rate of each update; the scheduler steps after every so many."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    adam = torch.optim.Adam([weight], lr=lr, betas=(0.9, 0.98), eps=1e-9)
    scheduler, rates = LambdaLR(adam, factor), []
    for update in range(1, n_updates + 1):
        rates.append(adam.param_groups[0]["lr"])
        adam.step()
        if update % every == 0:
            scheduler.step()
    return rates
right = rates_used(4000)
print(f"first update {right[0]:.4e}, update 4,000 {right[-1]:.4e}")

# %% [markdown]
# So we have equation {eq}`opt-rate`. Each of five common mistakes overlooks one of the three facts:
#
# | mistake | effect | first update | update 4,000 |
# |---|---|---|---|
# | `lr=1e-4` | multiplied: ten thousand times too low | 1.7469e-11 | 6.9877e-08 |
# | `lr=0.0`, which `make_adam` has | all rates are 0 | 0 | 0 |
# | `max(n, 1)` for `n + 1` | one step late from the second update on | 1.7469e-07 | 6.9860e-04 |
# | `scheduler.step()` per epoch of 1,000 updates | at the rate of step 4 | 1.7469e-07 | 6.9877e-07 |
# | `scheduler.step()` before `adam.step()` | the first rate is skipped; PyTorch warns | 3.4939e-07 | 6.9868e-04 |

# %% tags=["row-L0", "hide-cell"]
assert_close(torch.tensor(right), torch.tensor([noam_learning_rate(s, 512, 4000) for s in range(1, 4001)]))
late = rates_used(4000, factor=lambda n: noam_learning_rate(max(n, 1), 512, 4000))
assert late[0] == late[1] == right[0] and late[1:] == right[:-1]
table = [rates_used(4000, lr=1e-4), rates_used(4000, lr=0.0), late, rates_used(4000, every=1000)]
assert [(f"{rates[0]:.4e}", f"{rates[-1]:.4e}") for rates in table] == [
    ("1.7469e-11", "6.9877e-08"), ("0.0000e+00", "0.0000e+00"),
    ("1.7469e-07", "6.9860e-04"), ("1.7469e-07", "6.9877e-07")]
without = refusal(ZeroDivisionError, lambda: rates_used(1, factor=lambda n: 512**-0.5 * min(n**-0.5, n * 4000**-1.5)))
print("without + 1, and without max:", without)

# %% tags=["hide-cell"]
weight = torch.nn.Parameter(torch.zeros(1))
weight.grad = torch.ones(1)
adam = torch.optim.Adam([weight], lr=1.0)
scheduler = LambdaLR(adam, lambda n: noam_learning_rate(n + 1, 512, 4000))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    scheduler.step()
    adam.step()
assert any("lr_scheduler.step()" in str(each.message) for each in caught)
assert f"{adam.param_groups[0]['lr']:.4e}" == "3.4939e-07"
assert f"{noam_learning_rate(4001, 512, 4000):.4e}" == "6.9868e-04"

# %% tags=["hide-input"] mystnb={"image": {"alt": "Learning rate against update on logarithmic axes. The correct schedule rises to its peak near 0.0007 at update 4000. With a base rate of 0.0001 the same shape lies four decades lower. Stepped once in a thousand updates, the rate is a staircase that starts flat at 1.7e-7 and reaches only 1.7e-6 at update 10,000."}, "figure": {"caption": "Equation {eq}`opt-rate` through `LambdaLR`, used correctly and in two wrong ways. On logarithmic axes a wrong factor is a shift, and a wrong unit a bend.", "name": "fig-opt-mistakes"}}
training_pictures.opt_mistakes(rates_used)

# %% [markdown]
# One test finds all five: we read the rate of the first update and of update $w$ from the optimizer, and compare them
# with equation {eq}`opt-rate` ([common mistakes](common_mistakes.ipynb)). (At step 0, $0^{-0.5}$ is a division
# by zero. Python and the package raise an error; a tensor gives a rate of 0.)

# %% tags=["remove-cell"]
assert torch.minimum(torch.tensor(0.0) ** -0.5, torch.tensor(0.0) * 4000**-1.5) == 0

# %% [markdown]
# ## What the warm-up is good for
#
# What happens if training starts at the peak rate right away? Table 3 has no such row, so we measure it, on a task in
# which a small model makes clear progress within 60 updates: to write six symbols in reverse. "Cold" training has the
# peak rate for the first $w = 30$ updates, and {eq}`opt-rate` from there on. The answer may depend on the rate, so we
# try four, from a tenth of equation {eq}`opt-rate` to the whole, each with three seeds, with the loop of
# [chapter 5.2](5_2_training.ipynb).
#
# We also vary two properties of the model that later work found to matter. One is the place of the layer norm: after
# the residual sum as in the paper (**post-norm**), or at the entrance of each sub-layer (**pre-norm**;
# [3.1](3_1_stacks.ipynb)). The other is the initial values, which the paper leaves open: those of
# {cite:t}`glorot2010understanding`, which its authors' code has, or **scaled** ones, those of our presets `tiny` and
# `small`, with which the residual path dominates at first.

# %%
def reversal(seed, n_steps=60):
    """Batches of 32 rows of six symbols, and the same in reverse."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(n_steps):
        rows = torch.randint(3, 16, (32, 6), generator=draw).tolist()
        yield make_batch([(row, row[::-1]) for row in rows])
def last_loss(config, lr_factor, warm_up, seed):
    def rate(step):
        step = step if warm_up else max(step, 30)
        return noam_learning_rate(step, config.d_model, 30, lr_factor)
    torch.manual_seed(seed)
    losses = fit(Transformer(config), reversal(seed), 60, rate,
                 lambda model, batch: summed_loss(model, batch, eps_ls=0.0))
    return sum(losses[-10:]) / 10
print(f"a guess among 14 tokens costs {math.log(14):.2f} nats per token")

# %% tags=["nbval-ignore-output"]
small = ModelConfig(16, N=2, d_model=32, d_ff=64, h=4, p_drop=0.0,
                    initialization="glorot")
models = {"post-norm, Glorot": small,
          "post-norm, scaled": small.replace(initialization="scaled"),
          "pre-norm, Glorot": small.replace(norm="pre")}
factors, result = (0.1, 0.2, 0.4, 1.0), {}
settings = [(factor, on) for factor in factors for on in (True, False)]
print("loss after 60 updates, with / without warm-up, 3 seeds, by factor")
print(" " * 18, *(f"{factor:<13}" for factor in factors))
for name, config in models.items():
    for one in settings:
        result[name, *one] = [last_loss(config, *one, i) for i in (1, 2, 3)]
    means = [sum(result[name, *one]) / 3 for one in settings]
    print(f"{name:18}", *(f"{warm:.2f} / {cold:.2f}  "
                          for warm, cold in zip(means[::2], means[1::2])))

# %% tags=["hide-cell", "row-X14"]
mean = {key: sum(losses) / 3 for key, losses in result.items()}
for name in models:
    assert mean[name, 0.1, False] < mean[name, 0.1, True] - 0.1
assert mean["post-norm, Glorot", 1.0, False] > 2.5 and mean["post-norm, Glorot", 1.0, True] < 2.3
assert mean["pre-norm, Glorot", 1.0, True] + 0.2 < mean["pre-norm, Glorot", 1.0, False] < 2.4
for factor in (0.1, 0.2, 0.4):
    assert mean["post-norm, scaled", factor, False] < mean["post-norm, scaled", factor, True] - 0.3
assert min(mean["post-norm, scaled", 1.0, warm_up] for warm_up in (True, False)) > 2.4

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three panels of final loss against the rate's factor, 0.1 to 1, one for each model, with a curve for warm and one for cold training and bands for three seeds. At the smallest rate cold training is lower in every panel; as the rate grows the cold curve rises, and in the two Glorot panels it is far above the warm one at factor 1. In the scaled panel both end at the dotted line of a guess at factor 1."}, "figure": {"caption": "With and without warm-up, by rate. Lines are means and bands the range of three seeds; dotted: a guess.", "name": "fig-opt-warmup"}}
training_pictures.opt_warmup(factors, models, result)

# %% [markdown]
# We read the panels from the left. At a tenth of the rate cold training is ahead in all three models, because the
# warm-up, half of all updates here, is spent below that rate. As the rate grows, the order turns with Glorot's values. At
# the full rate, post-norm stays at a guess without the warm-up and learns with it; pre-norm learns either way, and
# more with it. With the scaled values the warm-up costs time up to a factor of 0.4, and at the full rate both starts
# fail. So the warm-up lets post-norm train at a rate at which a cold start fails. It does not give the best loss here:
# with the best of the four rates for each, the cold start is level in post-norm with Glorot's values and ahead in the
# other two. Sixty updates of a tiny model cannot tell
# which warm-up is best for translation. Longer runs can: among the miniature models of [6.2](6_2_variations.ipynb),
# trained on captions for two epochs and for ten, one starts at the peak rate. The output compares its perplexity with that
# of the same model with warm-up, and the brackets contain {ref}`95% intervals <how-to-read-our-intervals>`.

# %%
from lab.experiments.claims import load_results
from lab.experiments.comparisons import at_each_length

cold = at_each_length(load_results("results"), "no-warm-up")
print(*cold, sep="\n")

# %% tags=["remove-cell"]
assert len(cold) == 2 and all("perplexity +" in line and "(+" in line for line in cold)

# %% [markdown]
# At this rate, which was chosen for a model with warm-up, and with this place of the norm, the warm-up is worth its steps:
# what a cold start loses in the first epochs is not made up later. Runs of the cold start at rates of its own are planned
# (`lab/experiments/table_3/own_rates.py`).
#
# {cite:t}`liu2020variance` explain the danger of large first steps by Adam's divisor. At step 1,
# $\sqrt{\hat v}$ is the size of a *single* gradient, and a weight that happened to get a tiny one divides by a tiny
# number. We draw gradients of typical size 1 for 20,000 weights, so that the right factor $1 / \sqrt{\hat v_t}$ is 1:

# %% tags=["hide-cell"]
torch.manual_seed(0)
v, spread = torch.zeros(20_000, dtype=torch.float64), []
for t in range(1, 101):
    v = 0.98 * v + 0.02 * torch.randn_like(v) ** 2
    factor = 1 / (v / (1 - 0.98**t)).sqrt()
    spread.append([factor.quantile(q).item() for q in (0.01, 0.5, 0.99)])
assert spread[0][2] / spread[0][0] > 100 and spread[9][2] / spread[9][0] < 4 and spread[99][2] < 1.4

# %% tags=["hide-input"] mystnb={"image": {"alt": "Factor one over the root of v-hat against the step from 1 to 100, both axes logarithmic. A band between the 1st and 99th percentile reaches from 0.4 to about 80 at step 1, from 0.7 to below 3 at step 10, and closes around 1 by step 100; the median stays near 1."}, "figure": {"caption": "The factor $1 / \\sqrt{\\hat v_t}$ of 20,000 weights with $\\beta_2 = 0.98$: median, and the range from 1 % to 99 % of them.", "name": "fig-opt-spread"}}
training_pictures.opt_spread(spread)

# %% [markdown]
# The factors spread over more than two powers of ten at step 1, and over a factor of less than four at step 10. The
# *rectified* Adam of Liu et al. shortens the early steps the more, the larger this variance is.
# {cite:t}`ma2021adequacy`, who see the cause in the size of the early updates instead, come to a warm-up of $2 / (1 -
# \beta_2) = 100$ steps. That leaves the paper's other 3,900 warm-up steps unexplained. {cite:t}`xiong2020layer` point at
# the model: in post-norm the gradients near the output are large at the start, and pre-norm can go without a warm-up.
#
# ## Since the paper
#
# ### AdamW: weight decay outside of the gradient
#
# The paper has no **weight decay**, a pull of every weight towards 0. The usual way was to add $\lambda w$ to the
# gradient. Adam then divides that pull by $\sqrt{\hat v}$ too, so weights with large gradients are pulled less.
# **AdamW** {cite}`loshchilov2019decoupled` pulls outside of the division:
#
# $$
# w_t = (1 - \eta_t \lambda)\, w_{t-1} - \eta_t\, \frac{\hat m_t}{\sqrt{\hat v_t} + \epsilon}
# $$ (opt-adamw)
#
# It is what nearly every large model since GPT-3 is trained with, mostly with $\lambda = 0.1$, $\beta_2 = 0.95$ and
# gradients clipped to a norm of 1 {cite}`brown2020language,touvron2023llama`. Two weights show the difference. Their
# gradients are pure noise, 1 and 0.01 in size, and all that should happen is decay:

# %% tags=["nbval-rtol-0.05"]
def after_decay(kind, **decay):
    weight = torch.nn.Parameter(torch.ones(2, 1000, dtype=torch.float64))
    optimizer = kind([weight], lr=1e-3, **decay)
    generator = torch.Generator().manual_seed(0)
    for _ in range(500):
        noise = torch.randn(2, 1000, generator=generator, dtype=torch.float64)
        weight.grad = noise * torch.tensor([[1.0], [0.01]])
        optimizer.step()
    return weight.mean(dim=1).tolist()

for kind in (torch.optim.Adam, torch.optim.AdamW):
    large, tiny = after_decay(kind, weight_decay=0.5)
    print(f"{kind.__name__:6} gradients of size 1: {large:.2f}, "
          f"of size 0.01: {tiny:.2f}")
print(f"decay alone: {(1 - 1e-3 * 0.5)**500:.2f}")

# %% tags=["remove-cell"]
adam, adamw = (after_decay(kind, weight_decay=0.5) for kind in (torch.optim.Adam, torch.optim.AdamW))
assert all(abs(w - (1 - 5e-4) ** 500) < 0.02 for w in adamw) and adam[0] > adam[1] + 0.1

# %% [markdown]
# ### Muon: a step for the matrix
#
# Adam treats a matrix as a heap of single numbers. **Muon** {cite}`jordan2024muon` keeps a decaying sum of gradients,
# $M \leftarrow 0.95\,M + G$, and steps by the matrix nearest to $G + 0.95\,M$ whose singular values are all 1: no direction
# is left behind because the gradient in it happens to be small. A factor of $0.2\,\sqrt{\max(D, E)}$ gives the step Adam's
# size {cite}`liu2025muon`, so that one rate serves both. A singular value decomposition would be slow on a GPU, so five iterations do it
# roughly:

# %%
show(orthogonalised)

torch.manual_seed(0)
# three large directions, 29 small ones
M = torch.randn(64, 3) @ torch.randn(3, 32) + 0.05 * torch.randn(64, 32)
for name, matrix in (("before", M), ("after", orthogonalised(M))):
    values = torch.linalg.svdvals(matrix)
    print(f"{name:7} largest singular value {values[0]:.2f}, "
          f"median {values.median():.2f}, smallest {values[-1]:.2f}")

# %% [markdown]
# Embeddings, norms and biases stay with AdamW. {cite:t}`liu2025muon` report about half of AdamW's training operations for
# the same loss, and trained a model of 16 billion parameters with it; Kimi K2 {cite}`kimi2025k2`, of a thousand billion,
# adds a bound on the queries and keys. The package has `optimizer=adamw` and `muon`; [Table 3,
# continued](6_2_since_2017.ipynb) trains a translator with Muon.
#
# ### Schedules
#
# Nearly every large Transformer since has kept the linear warm-up, while the inverse square root became one choice of
# several. It needs no planned end, but at the end of training the rate is still high ({ref}`opt-ex-tenth`), and the
# loss usually falls further when it is lowered. BERT {cite}`devlin2019bert` falls in a straight line to 0; GPT-3
# {cite}`brown2020language` along a cosine, an idea of {cite:t}`loshchilov2017sgdr`, to a tenth of the peak. T5
# {cite}`raffel2020exploring` kept the inverse square root, with a constant rate at first in place of a warm-up. Lines and
# cosines need the number of steps in advance. **Warm-up, stable, decay** (WSD) {cite}`hu2024minicpm` does not: the rate
# stays at its peak for as long as one likes, and a short fall to 0 ends the run; from the same plateau one can later go
# on. In the package it is `schedule=wsd`; [Table 3, continued](6_2_since_2017.ipynb) compares it with equation 3.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Four schedules over 100,000 steps, as shares of their peak, all of which rise for 4,000 steps. Equation 3 falls to 0.2. A straight line falls from its peak to 0, a cosine in a wave to 0.1. Warm-up, stable, decay stays at 1 until step 80,000 and falls to 0."}, "figure": {"caption": "Shapes of schedules, as shares of the peak, over 100,000 steps with a warm-up of 4,000.", "name": "fig-opt-schedules"}}
training_pictures.opt_schedules()

# %% [markdown]
# (section-opt-asleep)=
# ## What rate and initial values do to attention
#
# A loss that falls does not say which parts of the model make it fall. Let us watch the encoder's self-attention
# *during* training: one small model ($N = 3$, $d_{\mathrm{model}} = 128$) learns our corpus for 3,000 steps in eight
# ways. The *low* rate has its peak at $0.9 \cdot 10^{-3}$ and the *high* one at $2.7 \cdot 10^{-3}$, after 600 steps of
# warm-up, or 2,000 where it is long. Three of the runs change one thing more: the gradients are *clipped* to a norm of 1, a
# tenth of the attention weights is *dropped*, or every pair comes once more *joined* to another, two sentences in a row
# ([6.1](6_1_translation.ipynb)). We measure how sharp the heads are (their **entropy** in bits; 0 means that one key has
# everything, [chapter 7](7_attention_visualizations.ipynb)), and by how many nats per token the loss rises when all of
# them are **knocked out**, so that they add nothing. *Spread* is the widest head's standard deviation of scores before
# the softmax. Loss, BLEU and nats are of the validation sentences at the end. The figure follows twelve points of four
# runs on 200 of these; the table's bits and spread are from the last.

# %%
found = json.loads(Path("results/attention_at_work.json").read_text())
ways = {record["name"]: record for record in found["records"]}
print(f"{'':30} loss  BLEU  layer 1: bits  spread  without: nats  BLEU")
for name, way in ways.items():
    last, whole, without = way["points"][-1], way["whole"], way["without"]
    print(f"{name:30} {whole['nll']:.2f} {whole['bleu']:5.1f} "
          f"{last['entropy_1']:14.2f} {last['spread_1']:7.1f} "
          f"{without['nats']:+14.2f} {-without['bleu']:+5.1f}")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two line charts over 3,000 steps with four curves each: scaled and Glorot values, low and high rate. Left, the entropy of layer 1: both low-rate curves stay above 2 bits, the scaled one with the high rate falls to 1.3 and Glorot with the high rate to half a bit. Right, the nats lost: both scaled curves stay near 0; Glorot with the low rate rises to 0.17, with the high rate to 0.3."}, "figure": {"caption": "Four of the eight runs. Left: entropy of the encoder's layer 1, median over its heads. Right: what the model loses without the encoder's self-attention.", "name": "fig-opt-asleep"}}
training_pictures.opt_asleep(ways)

# %% [markdown]
# The panels show two separate effects. The **rate** decides how sharp attention becomes. At the high rate the
# entropy of layer 1 falls, with Glorot's values to half a bit, and the scores spread so widely that the softmax
# saturates: a query gives nearly all its weight to one key, and its gradient vanishes. A longer warm-up slows this
# down; clipping and dropout on the weights hardly touch it. The **initial values** make the largest difference to what
# attention is *worth*; within Glorot's, rate and warm-up change it by a factor of three. With the scaled ones a
# sub-layer's output is at first about a ninth of its input, with Glorot's values more than half. Within these 3,000
# steps the models with scaled values hardly come to need the encoder's self-attention: without it the loss rises by 0.05
# nats at the low rate, where layer 1 has 2.2 bits, and by 0.02 at the high rate, where it has 1.3. With Glorot's values it
# rises by 0.11 to 0.37. So neither a lively nor a frozen map tells us whether attention matters, and neither does a lower
# loss: here the scaled values are ahead after 3,000 steps.
#
# The presets `tiny` and `small`, made for short runs, have the scaled values, ahead in these eight runs. The
# book's model ([6.1](6_1_translation.ipynb)) has Glorot's and the low peak, and loses 0.62 nats, more than half of its
# BLEU; but it is larger and saw more sentences, so the eight runs do not explain this number. (Each has one seed, and
# we read only large differences.) Which sentences need the attention of the book's model is measured in
# [chapter 7](7_attention_visualizations.ipynb).

# %% tags=["remove-cell"]
nats = {name: way["without"]["nats"] for name, way in ways.items()}
bits = {name: way["points"][-1]["entropy_1"] for name, way in ways.items()}
assert max(nats["scaled, low"], nats["scaled, high"]) < 0.06 < 0.18 < min(nats["glorot, low"], nats["glorot, high"])
assert bits["glorot, high"] < 0.6 < 1 < bits["scaled, high"] < 1.5 < 2.2 < min(bits["scaled, low"], bits["glorot, low"])
assert bits["glorot, high"] < bits["glorot, high, long warm-up"] and max(
    abs(bits[f"glorot, high, {name}"] - bits["glorot, high"]) for name in ("clipped", "dropped weights")) < 0.1
assert ways["scaled, low"]["whole"]["nll"] < ways["glorot, low"]["whole"]["nll"]

# %% [markdown]
# ## What to remember
#
# - Adam divides a running mean of the gradient by a running estimate of its size, so the step is independent of the
#   gradient's scale, and the first one is the rate times a sign (equation {eq}`opt-adam`).
# - The rate rises in a line to $1 / \sqrt{d_{\mathrm{model}}\, w}$ at step $w$, and falls with the inverse square root
#   (equation {eq}`opt-rate`). Steps count from 1, and a step is an update.
# - With `LambdaLR`, the optimizer's own rate is 1.0, the function gets `n + 1`, and `step()` comes after each update.
# - The warm-up lets post-norm train at a rate at which a cold start fails. A small translator is clearly worse without.
# - Today: AdamW (equation {eq}`opt-adamw`) or Muon, clipping, and a rate that ends at or near 0.
# - In our eight runs the rate changed how sharp attention gets, and the initial values changed most whether the model
#   comes to need it ({ref}`section-opt-asleep`). Measure both; the loss shows neither.
#
# ```{admonition} Where this is
# :class: dropdown
#
# `make_adam`, `noam_learning_rate`, `Muon` and the schedule WSD are in `annotated_transformer/training/optimizer.py`, with
# tests in `tests/training/test_optimizer.py` and `tests/model/test_since_2017.py`.
# ```

# %% [markdown]
# ## Exercises

# %% [markdown] tags=["exercise"]
# ```{exercise} Equation 3 (check 5.3)
# :label: opt-ex-noam
#
# Write `noam(step, d_model, warmup_steps)`, and check it with `check("5.3", noam)`. Then give, without a computer, the
# peak rate of a model with $d_{\mathrm{model}} = 256$ and $w = 400$.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} opt-ex-noam
# :class: dropdown
#
# The function is one line. The peak is $1 / \sqrt{256 \cdot 400} = 1/320 = 0.003125$.
# ```

# %% tags=["hide-cell", "solution"]
from lab.exercises import check

def noam(step, d_model, warmup_steps):
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)

check("5.3", noam)
assert math.isclose(noam(400, 256, 400), 1 / 320)

# %% [markdown] tags=["exercise"]
# ```{exercise} One step of Adam (check 5.3-adam)
# :label: opt-ex-adam
#
# Write `adam_step(w, g, m, v, step, rate, beta1, beta2, eps)`, which takes and returns tensors `(w, m, v)`; `step` is 1
# at the first call. Check it with `check("5.3-adam", adam_step)`.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} opt-ex-adam
# :class: dropdown
#
# The folded cell has equation {eq}`opt-adam`, line by line. The two usual slips are to store the corrected means and to
# add $\epsilon$ under the root instead of next to it.
# ```

# %% tags=["hide-cell", "solution"]
def adam_step(w, g, m, v, step, rate, beta1, beta2, eps):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    m_hat, v_hat = m / (1 - beta1**step), v / (1 - beta2**step)
    return w - rate * m_hat / (v_hat.sqrt() + eps), m, v

check("5.3-adam", adam_step)

# %% [markdown] tags=["exercise"]
# ```{exercise} The first step
# :label: opt-ex-first
#
# Four weights have first gradients $10^{-3}$, $-5$, $0$ and $10^{-9}$. Predict their first steps at a rate of 0.01.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} opt-ex-first
# :class: dropdown
#
# The step is $-0.01\, g / (|g| + \epsilon)$: $-0.01$, $+0.01$ and $0$. The fourth has $|g| = \epsilon$, so it goes half
# as far, $-0.005$.
# ```

# %% tags=["hide-cell", "solution"]
first = [adam_by_torch(0.0, [g], rate=0.01)[0] for g in (1e-3, -5.0, 0.0, 1e-9)]
assert_close(torch.tensor(first), torch.tensor([-0.01, 0.01, 0.0, -0.005]), rtol=1e-4, atol=1e-9)

# %% [markdown] tags=["exercise"]
# ```{exercise} A tenth of the peak
# :label: opt-ex-tenth
#
# At which two steps does the rate of {eq}`opt-rate` equal a tenth of its peak? The base model was trained for 100,000
# steps with $w = 4000$; which share of the peak rate is left at the end?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} opt-ex-tenth
# :class: dropdown
#
# Before the peak the rate is $s/w$ of it, after it $\sqrt{w/s}$: at $w / 10 = 400$ and at $100\,w = 400{,}000$. At
# 100,000 steps $\sqrt{4000 / 100000} = 0.2$, a fifth of the peak, is left.
# ```

# %% [markdown] tags=["exercise"]
# ```{exercise} The authors' later default
# :label: opt-ex-double
#
# The last default of the authors' own code has 8,000 steps of warm-up and multiplies the formula by 2. What is its
# peak? Where does its curve lie above the paper's, where below?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} opt-ex-double
# :class: dropdown
#
# The peak is $2 / \sqrt{512 \cdot 8000} = 9.88 \cdot 10^{-4}$, $\sqrt 2$ times the paper's. At first it is below: its
# slope is $2 / 2^{1.5} = 0.71$ of the paper's. The curves cross where $2 s \cdot 8000^{-1.5} = s^{-0.5}$, at
# $s = 8000 / 2^{2/3} = 5{,}040$, and after step 8,000 it is twice the paper's rate.
# ```

# %% tags=["hide-cell", "solution"]
peak = noam_learning_rate(4000, 512, 4000)
for step, share in ((400, 0.1), (400_000, 0.1), (100_000, 0.2)):
    assert math.isclose(noam_learning_rate(step, 512, 4000) / peak, share)
later = [noam_learning_rate(s, 512, 8000, factor=2.0) for s in range(1, 20_001)]
paper = [noam_learning_rate(s, 512, 4000) for s in range(1, 20_001)]
assert math.isclose(max(later), math.sqrt(2) * max(paper)) and round(max(later) * 1e4, 2) == 9.88
assert [s for s in range(1, 20_001) if later[s - 1] > paper[s - 1]] == list(range(5040, 20_001))

# %% [markdown] tags=["exercise"]
# ```{exercise} The longest way
# :label: opt-ex-way
#
# With a steady gradient Adam moves a weight by the rate at each step. How far can a weight of the base model get during
# the warm-up, and how far in 100,000 steps? Compare with the initial size of its embedding entries, about
# $512^{-0.5} = 0.044$.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} opt-ex-way
# :class: dropdown
#
# We add up the area under the curve. The triangle is $\tfrac12 \cdot 4000 \cdot 6.99 \cdot 10^{-4} = 1.40$. After it,
# as $\int s^{-0.5}\, ds = 2 s^{0.5}$, comes $2 \cdot 512^{-0.5} (\sqrt{100000} - \sqrt{4000}) = 22.4$, in all 23.8. In
# the warm-up alone a weight can move thirty times its initial size, so warm-up steps are small but add up.
# ```

# %% [markdown] tags=["exercise"]
# ```{exercise} Find the mistake in a log
# :label: opt-ex-lambda
#
# A log shows these rates for $d_{\mathrm{model}} = 512$, $w = 4000$: at the first update 1.7469e-7, at the second
# 1.7469e-7, at the hundredth 1.7295e-5. What is wrong?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} opt-ex-lambda
# :class: dropdown
#
# $1.7295 \cdot 10^{-5} / 1.7469 \cdot 10^{-7} = 99$: the hundredth update has the rate of step 99, and the first two
# that of step 1. It is `max(n, 1)` in place of `n + 1`.
# ```

# %% tags=["hide-cell", "solution"]
way = [noam_learning_rate(s, 512, 4000) for s in range(1, 100_001)]
assert round(sum(way[:4000]), 2) == 1.40 and round(sum(way), 1) == 23.8
assert [f"{late[i]:.4e}" for i in (0, 1, 99)] == ["1.7469e-07", "1.7469e-07", "1.7295e-05"]
