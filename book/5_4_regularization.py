# %% [markdown]
# # 5.4 Regularization
#
# *Section 5.4 of the paper {cite}`vaswani2017attention`: dropout and label smoothing.*
#
# A large model can learn its training sentences by heart, and then it is good at nothing else. **Regularization** is
# whatever makes that harder. Section 5.4 opens with "three types of regularization", and then has two headings:
# *Residual Dropout*, which names two places, and *Label Smoothing*. Perhaps the two places were meant to count as two.
# There is no third technique, although some summaries find one.
#
# When you have read this chapter you can
#
# - say where the paper drops, where it does not, and why it matters that nothing is dropped twice;
# - show over-fitting, and what dropout does about it, in a training run of seconds;
# - tell three versions of label smoothing apart, and turn one into another;
# - say what a smoothed model is asked for, what its loss cannot fall below, and what smoothing does to perplexity.

# %%
import math

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer.looking.visualization import HEAT_MAP, PALETTE, show, use_style

use_style()
torch.set_printoptions(precision=4, sci_mode=False)

# %% [markdown]
# ## Dropout
#
# **Question.** How do you keep a network from relying on any one of its numbers?
#
# **Dropout** {cite}`srivastava2014dropout` takes numbers away at random during training. Each entry of a vector is set
# to zero with probability $p$, anew at every step, so that whatever reads the vector must do with what is left. When
# the model is used, nothing is dropped.
#
# **Equation.** With independent random bits $b_i$ that are 0 with probability $p$ and 1 otherwise:
#
# $$
# \mathrm{Dropout}(x)_i =
# \begin{cases}
# \dfrac{b_i}{1 - p}\, x_i & \text{in training} \\[1ex]
# x_i & \text{in use}
# \end{cases}
# $$ (reg-dropout)
#
# What is kept is made larger by $1 / (1 - p)$. So the *mean* of an entry is the same with and without dropout,
# $\frac{1 - p}{1 - p}\, x_i = x_i$, and the layer that reads it meets the same average in training and in use. (The
# original paper scaled the weights down in use instead; this form, called *inverted*, does it all in training.)
#
# **Code.** PyTorch has it: `nn.Dropout`. Whether it drops is decided by `model.train()` and `model.eval()`. (The model
# has a subclass, `annotated_transformer/model/dropout.py`, that does the same with cheaper random numbers on a CPU: 16 bits
# an entry, where a number for each had taken a tenth of a training step.)
#
# **Check.** By hand, then in the mean of many draws.

# %%
p, x = 0.1, torch.linspace(-2, 2, 10_000)
dropout = nn.Dropout(p)
y = dropout(x)
kept = y != 0
assert_close(y, torch.where(kept, x / (1 - p), torch.zeros(())))
assert abs(kept.float().mean() - 0.9) < 0.01
assert torch.equal(dropout.eval()(x), x)

# %%
torch.manual_seed(0)
dropout.train()
draws = torch.stack([dropout(torch.full((1000,), 3.0)) for _ in range(1000)])
assert abs(draws.mean() - 3) < 0.01
assert abs(draws.var() - 3**2 * p / (1 - p)) < 0.05
print(f"mean {draws.mean():.2f}, variance {draws.var():.2f}")

# %% [markdown]
# The mean is kept; the price is a variance of $x_i^2\, p / (1 - p)$.
#
# ### Where the paper puts it
#
# **Question.** What is dropped?
#
# Two things, in the paper's base model with $p = P_{drop} = 0.1$:
#
# 1. "the output of each sub-layer, before it is added to the sub-layer input and normalized";
# 2. "the sums of the embeddings and the positional encodings in both the encoder and decoder stacks".
#
# Nothing else. In particular not the attention weights, and not the hidden layer of the feed-forward network. (Section
# 6.3, on parsing, mentions dropout, "both attention and residual", and refers to 5.4, which has no word on attention.)
#
# **Code.** The first place is one word in `AddNorm`, which wraps every sub-layer; the second is one in `embed`.

# %%
from annotated_transformer.model.stacks import AddNorm

show(AddNorm.forward)

# %%
from annotated_transformer import Transformer

show(Transformer.embed)

# %% [markdown]
# **Check.** Count them in a small model of the base model's depth: two sub-layers in each of 6 encoder layers, three
# in each of 6 decoder layers, and one that both embeddings pass through. The package can also drop attention weights
# and hidden units, as the authors' own later code does; these **options** are off by default.

# %% tags=["row-S18"]
from annotated_transformer import ModelConfig

def dropouts(**changes):
    """The rates of all the places in the model where something is dropped, with their number."""
    model = Transformer(ModelConfig.tiny(vocab_size=50, N=6, p_drop=0.1, **changes))
    rates = [m.p for m in model.modules() if isinstance(m, nn.Dropout)]
    rates += [m.dropout for m in model.modules() if isinstance(getattr(m, "dropout", None), float)]
    return {rate: rates.count(rate) for rate in sorted(set(rates)) if rate > 0}

print("the paper's:", dropouts())
print("with options:", dropouts(attention_dropout=0.2, ffn_dropout=0.3))
assert dropouts() == {0.1: 2 * 6 + 3 * 6 + 1}
assert dropouts(attention_dropout=0.2, ffn_dropout=0.3) == {0.1: 31, 0.2: 6 + 2 * 6, 0.3: 12}

# %% [markdown]
# **Picture.** Why *before* the sum? The paper does not say, but one reason is easy to see. The sum is the residual
# path, on which a token's vector travels through the whole stack. If it were dropped after each sum, the bits would
# pile up: of the input's entries, a share of $(1 - p)^m$ survives $m$ drops. Before the sum, a drop takes away what a
# sub-layer has added, and the path itself stays whole.

# %% mystnb={"image": {"alt": "Share of the input's entries that reach sub-layer m, for m from 0 to 18. Where dropout is before the sum, it is 1 throughout. Where it is after the sum it falls from 1 to about 0.15 at 18 sub-layers. Dots from a simulation lie on both curves."}, "figure": {"caption": "How much of a token's own vector is left after $m$ sub-layers with $P_{drop} = 0.1$. Dots: counted; lines: $1$ and $0.9^m$.", "name": "fig-reg-path"}}
torch.manual_seed(0)
before = after = torch.ones(100_000)
shares = [(1.0, 1.0)]
for _ in range(18):
    sublayer = torch.zeros(100_000)  # adds nothing, so that what is left is the input
    before = before + F.dropout(sublayer, 0.1)
    after = F.dropout(after + sublayer, 0.1)
    shares.append(((before != 0).float().mean(), (after != 0).float().mean()))
figure, ax = plt.subplots(figsize=(5, 2.6), layout="constrained")
for counted, line, label, mark in zip(zip(*shares), (1.0, 0.9), ("before the sum", "after the sum"), "os"):
    ax.plot([line**m for m in range(19)], color=PALETTE[mark == "s"])
    ax.plot(counted, mark, color=PALETTE[mark == "s"], markersize=4, label=label)
ax.set(xlabel="sub-layers passed", ylabel="share left", ylim=(0, 1.1), xticks=range(0, 19, 3))
ax.legend(frameon=False)
plt.show()

# %%
assert shares[18][0] == 1
assert abs(shares[18][1] - 0.9**18) < 0.01

# %% [markdown]
# **Break it: drop twice.** A popular walkthrough ends its attention module with a dropout, and drops the module's
# output once more in the layer. Nothing fails. But an entry now has to survive two draws: it is kept with probability
# $(1 - p)^2$, and whoever sets $p = 0.1$ trains with $0.19$.

# %%
torch.manual_seed(0)
for p in (0.1, 0.3, 0.5):
    once, twice = nn.Dropout(p), nn.Sequential(nn.Dropout(p), nn.Dropout(p))
    kept_once = (once(torch.ones(1_000_000)) != 0).float().mean().item()
    kept_twice = (twice(torch.ones(1_000_000)) != 0).float().mean().item()
    assert abs(kept_once - (1 - p)) < 0.002
    assert abs(kept_twice - (1 - p) ** 2) < 0.002
    print(f"p {p}: dropped once keeps {kept_once:.2f}, twice {kept_twice:.2f}")

# %% [markdown]
# **Break it: forget `eval`.** A model that still drops while it is used gives another answer each time it is asked.

# %%
torch.manual_seed(0)
model = Transformer(ModelConfig.tiny(vocab_size=50))
source, target_in = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[1, 8, 9]])
for mode in (model.train, model.eval):
    mode()
    with torch.no_grad():
        difference = (model(source, target_in) - model(source, target_in)).abs().max()
    print(f"{mode.__name__:5} two answers differ by up to {difference:.4f}")
assert difference == 0

# %% [markdown]
# **Where.**
#
# - Code: `AddNorm` in `annotated_transformer/model/stacks.py`, `Transformer.embed`; `p_drop`, `attention_dropout` and
#   `ffn_dropout` of `ModelConfig`.
# - Tests: `test_dropout_is_where_section_5_4_puts_it_and_nowhere_else`,
#   `test_dropout_falls_on_the_sublayers_output_before_the_sum`, `test_options_turn_on_the_inner_dropouts` in
#   `tests/model/test_stacks.py`.
# - Exercises: {ref}`reg-ex-twice`, {ref}`reg-ex-variance`, {ref}`reg-ex-inner`.

# %% [markdown]
# ## Over-fitting, seen
#
# **Question.** What does a model learn when it sees the same few examples again and again?
#
# The task: write six symbols in reverse. To make it interesting, one target symbol in five is replaced by a random
# one, in the training sentences and in the held-out ones alike. Nobody can predict those. A model that has learned the
# *rule* gets about 82 percent of the held-out symbols right (the fifth that is replaced is right by chance once in
# 13), at a loss of 0.94 nats a token (losses with natural logarithms are counted in **nats**). A model that gets more
# of its *training* symbols right has learned their accidents.
#
# **Equation.** With a share $\nu = 0.2$ replaced, and $n = 13$ symbols, the symbol that the rule gives has a
# probability $a = 1 - \nu + \nu / n$ and every other symbol $\nu / n$. The smallest mean loss to be expected on
# held-out data is the entropy
#
# $$
# H = -a \ln a - (n - 1)\, \frac{\nu}{n} \ln \frac{\nu}{n}.
# $$ (reg-noise-floor)

# %%
NOISE, N_SYMBOLS = 0.2, 13  # ids 3 to 15
best_accuracy, other = 1 - NOISE + NOISE / N_SYMBOLS, NOISE / N_SYMBOLS
floor = -best_accuracy * math.log(best_accuracy) - 12 * other * math.log(other)
print(f"best accuracy {best_accuracy:.3f}, smallest loss {floor:.3f} nats a token")
assert round(best_accuracy, 2) == 0.82 and round(floor, 2) == 0.94

# %%
def noisy_reversal(n, generator, noise=NOISE):
    """(source, target_in, target_out): n rows of six symbols, and the same in reverse with accidents."""
    source = torch.randint(3, 3 + N_SYMBOLS, (n, 6), generator=generator)
    random = torch.randint(3, 3 + N_SYMBOLS, (n, 6), generator=generator)
    replaced = torch.rand(n, 6, generator=generator) < noise
    target_out = torch.where(replaced, random, source.flip(1))
    return source, F.pad(target_out[:, :-1], (1, 0), value=1), target_out

# %% [markdown]
# **Code.** A small model, the paper's Adam, and a schedule of its form. (Unlike the paper's it is a pre-norm model;
# see [3.1](3_1_stacks.ipynb).) Every 50 steps it is judged, with dropout off, by its loss (`nll`, negative
# log-likelihood, in nats a token) and its accuracy, on the training sentences (500 of them, if there are more) and on
# 500 others.

# %%
from annotated_transformer import TrainConfig, label_smoothed_cross_entropy, make_adam, noam_learning_rate

def judge(model, rows):
    """(nll in nats a token, accuracy), with dropout off."""
    source, target_in, target_out = rows
    model.eval()
    with torch.no_grad():
        logits = model(source, target_in)
        _, nll = label_smoothed_cross_entropy(logits, target_out)
    model.train()
    right = (logits.argmax(dim=-1) == target_out).float().mean()
    return nll.item() / target_out.numel(), right.item()

# %%
def update(model, adam, step, rows, eps_ls):
    """One step, on 32 of the rows."""
    chosen = torch.randint(len(rows[0]), (32,))
    source, target_in, target_out = (tensor[chosen] for tensor in rows)
    loss, _ = label_smoothed_cross_entropy(model(source, target_in), target_out, eps_ls)
    adam.zero_grad()
    (loss / target_out.numel()).backward()
    adam.param_groups[0]["lr"] = noam_learning_rate(step, 32, 50, factor=0.4)
    adam.step()

# %%
def train_small(p_drop, eps_ls, n_rows, n_steps, seed, noise=NOISE):
    """Judgements (step, training nll, accuracy, held-out nll, accuracy), every 50 steps."""
    generator = torch.Generator().manual_seed(seed)
    rows, held_out = (noisy_reversal(n, generator, noise) for n in (n_rows, 500))
    torch.manual_seed(seed)
    model = Transformer(ModelConfig(16, N=2, d_model=32, d_ff=64, h=4, p_drop=p_drop, norm="pre"))
    adam, judgements = make_adam(model, TrainConfig()), []
    for step in range(1, n_steps + 1):
        update(model, adam, step, rows, eps_ls)
        if step % 50 == 0:
            seen = [tensor[:500] for tensor in rows]
            judgements.append((step, *judge(model, seen), *judge(model, held_out)))
    return judgements

# %% [markdown]
# 300 training sentences, 400 steps: each sentence comes by some forty times. Without dropout, and with the paper's 0.1.

# %% tags=["nbval-ignore-output"]
runs = {p: train_small(p, eps_ls=0.0, n_rows=300, n_steps=400, seed=0) for p in (0.0, 0.1)}
print("p_drop  step  training nll  accuracy  held-out nll  accuracy")
for p, judgements in runs.items():
    for step, nll, accuracy, held_out_nll, held_out_accuracy in judgements[3::2]:
        print(f"{p:6}  {step:4}  {nll:12.2f}  {accuracy:8.2f}"
              f"  {held_out_nll:12.2f}  {held_out_accuracy:8.2f}")

# %% tags=["row-X15"]
without, dropped = runs[0.0][-1], runs[0.1][-1]
assert without[2] > 0.88 > best_accuracy > dropped[4]  # learned accidents
lowest = min(held_out for _, _, _, held_out, _ in runs[0.0])
assert without[3] > lowest + 0.2  # and it got worse
assert dropped[3] < without[3] - 0.4
assert dropped[4] > without[4] + 0.05

# %% mystnb={"image": {"alt": "Two line charts of nats a token over 400 steps, each with a curve for training data, a curve for held-out data, and a dotted line for the entropy, 0.94. Without dropout the training curve falls far below the dotted line, and the held-out curve turns and rises above 2. With dropout 0.1 the training curve falls more slowly, and the held-out curve falls to about 1.3 and stays there."}, "figure": {"caption": "Over-fitting without dropout, and with it. The dotted line is the entropy {eq}`reg-noise-floor`: whoever is below it has learned accidents.", "name": "fig-reg-overfit"}}
figure, axes = plt.subplots(1, 2, figsize=(5.8, 2.7), sharey=True, layout="constrained")
for ax, (p, judgements) in zip(axes, runs.items()):
    step, nll, _, held_out_nll, _ = zip(*judgements)
    ax.plot(step, nll, "-", label="training sentences")
    ax.plot(step, held_out_nll, "--", label="held-out sentences")
    ax.axhline(floor, color="black", linestyle=":", linewidth=1)
    ax.set(title=f"$P_{{drop}}$ = {p:g}", xlabel="step", ylim=(0, 2.8))
axes[0].set_ylabel("nll (nats a token)")
axes[1].legend(frameon=False, loc="lower left")
plt.show()

# %% [markdown]
# Without dropout the model goes on to get nearly all *training* symbols right, which nobody can who knows only the
# rule. Its held-out loss turns round and rises, while its accuracy there stands still: it is hardly more often wrong
# than before, but it is wrong with more confidence. With dropout the loss on sentences it has not seen falls, and
# stays down. Its training loss ends below the dotted line too: dropout slows the learning of accidents, and does not
# forbid it.
#
# What the paper measured (Table 3, row D, development set; the paper's numbers, not ours): without dropout 24.6 BLEU
# and a perplexity of 5.77, with 0.1 25.8 and 4.92, with 0.2 25.5 and 4.95. So even with 4.5 million sentence pairs a
# dropout of 0.1 helps.
#
# **Where.**
#
# - Exercises: {ref}`reg-ex-more`.

# %% [markdown]
# ## Label smoothing
#
# **Question.** Should a model ever be certain?
#
# Cross-entropy asks the model to give the right token a probability of 1. A softmax cannot: its logits would have to
# be infinite. So wherever the training data know one answer only, the logits go on growing as long as training goes
# on, and the model becomes surer than it has reason to be. **Label smoothing** {cite}`szegedy2016rethinking` asks for
# less: for a distribution that takes a share $\epsilon_{ls} = 0.1$ from the right token and spreads it over the
# vocabulary. The paper says of it:
#
# > This hurts perplexity, as the model learns to be more unsure, but improves accuracy and BLEU score.
#
# **Equation.** Let $q(v)$ be the **target distribution** over the vocabulary of $V$ tokens, $y$ the right token and $p$
# the model's distribution. The loss of one token is the cross-entropy
#
# $$
# \mathcal{L} = -\sum_v q(v) \ln p(v).
# $$ (reg-cross-entropy)
#
# Three versions of $q$ are in use, and texts on the paper mix them up. The paper does not say which one it means; it
# cites the first.
#
# | | right token | every other token | who |
# |---|---|---|---|
# | whole vocabulary | $1 - \epsilon + \epsilon / V$ | $\epsilon / V$ | Szegedy et al., PyTorch, this package |
# | all others | $1 - \epsilon$ | $\epsilon / (V - 1)$ | the authors' own code |
# | others but padding | $1 - \epsilon$ | $\epsilon / (V - 2)$, padding 0 | *The Annotated Transformer* {cite}`rush2018annotated` |
#
# With $V = 37{,}000$ and $\epsilon = 0.1$ the right token gets 0.9000027 in the first, and 0.9 in the others. In a
# large vocabulary the three differ too little to matter; in a small one, as in examples and tests, they are not.
#
# **Check.** All three, with exact fractions.

# %% tags=["row-E12", "row-Q3"]
from fractions import Fraction

def shares(V, eps=Fraction(1, 10)):
    """Right token, every other token, and number of the others, in the three versions."""
    return {"whole vocabulary": (1 - eps + eps / V, eps / V, V - 1),
            "all others": (1 - eps, eps / (V - 1), V - 1),
            "others but padding": (1 - eps, eps / (V - 2), V - 2)}

for V in (5, 37_000):
    for version, (right, other, n_others) in shares(V).items():
        assert right + n_others * other == 1  # exactly
        print(f"V {V:6,}  {version:18}  right {float(right):.7f}  other {float(other):.3e}")
assert f"{float(shares(37_000)['whole vocabulary'][0]):.7f}" == "0.9000027"
assert shares(37_000)["all others"][0] == Fraction(9, 10)

# %% [markdown]
# ### The second is the first
#
# **Question.** Do the versions differ in kind, or in the size of $\epsilon$?
#
# In size. Put $\epsilon' = \epsilon \dfrac{V}{V - 1}$ into the first version. Every other token gets
# $\epsilon' / V = \epsilon / (V - 1)$, as in the second, and so the right one must get the rest, which is the same:
#
# $$
# 1 - \epsilon' + \frac{\epsilon'}{V} = 1 - \epsilon'\, \frac{V - 1}{V} = 1 - \epsilon.
# $$ (reg-convert)
#
# The third is the second in a vocabulary without padding. So PyTorch's `label_smoothing` gives you the first two. For
# the third, hand `F.cross_entropy` the distribution $q$ itself as its target: the model's softmax still covers
# padding, and `label_smoothing` cannot leave a token out.

# %%
for V in (4, 5, 600, 37_000):
    eps = Fraction(1, 10)
    converted = shares(V, eps * V / (V - 1))["whole vocabulary"]
    assert converted == shares(V, eps)["all others"]
    assert shares(V - 1, eps)["all others"] == shares(V, eps)["others but padding"]

# %%
torch.manual_seed(0)
V, eps = 5, 0.1
logits, target = torch.randn(7, V, dtype=torch.float64), torch.randint(V, (7,))
q = torch.full((7, V), eps / (V - 1), dtype=torch.float64)
q[range(7), target] = 1 - eps
by_hand = -(q * logits.log_softmax(dim=-1)).sum()
by_torch = F.cross_entropy(
    logits, target, label_smoothing=eps * V / (V - 1), reduction="sum")
assert_close(by_torch, by_hand)
print(f"{by_hand:.4f}")

# %% [markdown]
# ### The package's loss, and padding
#
# **Code.** It returns two sums over the real tokens, in nats: `loss`, which training minimises, and `nll`, the same
# with $\epsilon = 0$. Perplexity is made of the second: it is $e$ to the power of the mean `nll` of a token.

# %%
show(label_smoothed_cross_entropy)

# %% [markdown]
# **Check.** Against equation {eq}`reg-cross-entropy` by hand, and against PyTorch's own function. Two sentences of
# unequal length: the second ends in two tokens of padding, id 0, which must not count.

# %% tags=["row-E12"]
torch.manual_seed(0)
V, eps, pad_id = 6, 0.1, 0
target_out = torch.tensor([[4, 5, 3, 2], [3, 2, 0, 0]])
logits = torch.randn(2, 4, V, dtype=torch.float64, requires_grad=True)
q = torch.full((2, 4, V), eps / V, dtype=torch.float64)
q.scatter_add_(-1, target_out[..., None], torch.full((2, 4, 1), 1 - eps, dtype=torch.float64))
q[target_out == pad_id] = 0
loss, nll = label_smoothed_cross_entropy(logits, target_out, eps, pad_id)
assert_close(loss, -(q * logits.log_softmax(-1)).sum())
flat = logits.flatten(0, 1), target_out.flatten()
assert_close(loss, F.cross_entropy(*flat, label_smoothing=eps, ignore_index=pad_id, reduction="sum"))
assert_close(nll, F.cross_entropy(*flat, ignore_index=pad_id, reduction="sum"))
print(f"loss {loss:.4f}, nll {nll:.4f} nats, {(target_out != pad_id).sum()} real tokens")

# %% [markdown]
# **Picture.** The target distributions, a row for each position. A position of padding has an empty row: it asks for
# nothing. In the third version, padding's *column* is empty too, so that the model is never asked to expect padding.

# %% tags=["row-F11"] mystnb={"image": {"alt": "Two heat maps with a row for each of eight target positions and a column for each of six tokens, the first of which is padding. Each row of a real token has one bright cell, at the right token, and faint cells elsewhere. The rows of the two padding positions are empty. Left, whole vocabulary: bright cells 0.917, faint ones 0.017. Right, others but padding: bright cells 0.9, faint ones 0.025, and the padding column is empty."}, "figure": {"caption": "Two of the three target distributions for the same batch of two sentences, $V = 6$.", "name": "fig-reg-targets"}}
third = torch.full((8, V), eps / (V - 2), dtype=torch.float64)
third.scatter_(-1, target_out.view(8, 1), 1 - eps)
third[:, pad_id] = 0
third[target_out.flatten() == pad_id] = 0
figure, axes = plt.subplots(1, 2, figsize=(5.8, 3.1), layout="constrained")
for ax, matrix, title in zip(axes, (q.view(8, V), third), ("whole vocabulary", "others but padding")):
    ax.imshow(matrix, cmap=HEAT_MAP, vmin=0, vmax=1, aspect="auto")
    for i, row in enumerate(matrix.tolist()):
        for j, share in enumerate(row):
            color = "black" if share > 0.5 else "white"
            ax.text(j, i, f"{share:.3f}".rstrip("0").rstrip("."), ha="center", va="center", color=color, fontsize=8)
    ax.set(title=title, xlabel="token", yticks=range(8), yticklabels=["pad" if t == 0 else t for t in flat[1].tolist()])
axes[0].set_ylabel("right token of the position")
assert torch.isfinite(matrix).all()
plt.show()

# %% [markdown]
# **Break it: smooth the padding.** Home-made smoothing is often the sum of two terms, $1 - \epsilon$ times the usual
# loss and $\epsilon$ times the mean of $-\ln p$ over the vocabulary, and only the first is masked. Then every position
# of padding still pulls all probabilities towards $1 / V$. Its gradient is not zero, and the loss gets a part that
# depends on how much padding the batch happens to have.

# %%
def half_masked(logits, target_out, eps, pad_id):
    log_p = logits.log_softmax(dim=-1)
    nll = -log_p.gather(-1, target_out[..., None])[..., 0]
    nll = nll.masked_fill(target_out == pad_id, 0)
    return ((1 - eps) * nll - eps * log_p.mean(dim=-1)).sum()  # the second term has no mask

for name, compute in (("right", lambda *a: label_smoothed_cross_entropy(*a)[0]), ("half masked", half_masked)):
    loss = compute(logits, target_out, eps, pad_id)
    [gradient] = torch.autograd.grad(loss, logits)
    at_padding = gradient[target_out == pad_id].abs().max()
    print(f"{name:11}  loss {loss:.4f}  largest gradient at padding {at_padding:.4f}")
    assert (at_padding == 0) == (name == "right")

# %% [markdown]
# **Break it: forget the padding altogether.** Then the model is trained to write padding after the end of a sentence,
# which is easy, and the mean loss over all positions looks better the more padding there is. In the batch above, a
# model that knows nothing but padding would report:

# %%
knows_padding = torch.zeros(2, 4, V, dtype=torch.float64)
knows_padding[target_out == pad_id, pad_id] = 20.0
everywhere = F.cross_entropy(knows_padding.flatten(0, 1), target_out.flatten())
_, nll = label_smoothed_cross_entropy(knows_padding, target_out)
honest = nll / (target_out != pad_id).sum()
assert_close(everywhere, honest * 6 / 8)
assert math.isclose(honest, math.log(V))
print(f"{everywhere:.4f} nats over all 8 positions, {honest:.4f} over the 6 real ones (ln 6)")

# %% [markdown]
# ## What a smoothed model is asked for
#
# **Question.** Where does the loss {eq}`reg-cross-entropy` push the logits, and where does it stop pushing?
#
# **Equation.** Let $z$ be the logits, $p = \mathrm{softmax}(z)$. Since $\sum_v q(v) = 1$,
#
# $$
# \mathcal{L} = \ln \sum_v e^{z_v} - \sum_v q(v)\, z_v,
# \qquad
# \frac{\partial \mathcal{L}}{\partial z_v} = p(v) - q(v).
# $$ (reg-gradient)
#
# **Softmax minus target.** Take a position whose right answer is always the same. The push ends where $p = q$. Without
# smoothing that is never. With it, in the first version, the right token's logit then lies above every other one by a
# finite
#
# $$
# \ln \frac{q(y)}{q(v)} = \ln\left(1 + \frac{(1 - \epsilon)\, V}{\epsilon}\right),
# $$ (reg-gap)
#
# 12.7 for $V = 37{,}000$ and $\epsilon = 0.1$. And the loss does not end at 0. By {eq}`reg-cross-entropy` with $p = q$
# its floor is the **entropy** of the target distribution,
#
# $$
# H(q) = -q(y) \ln q(y) - (V - 1)\, \frac{\epsilon}{V} \ln \frac{\epsilon}{V}.
# $$ (reg-floor)
#
# **Check.** The gradient by autograd, then the two numbers.

# %%
torch.manual_seed(0)
logits = torch.randn(5, 9, dtype=torch.float64, requires_grad=True)
target = torch.tensor([3, 8, 1, 5, 4])
loss, _ = label_smoothed_cross_entropy(logits, target, eps_ls=0.1)
loss.backward()
q = F.one_hot(target, 9) * 0.9 + 0.1 / 9
assert_close(logits.grad, logits.softmax(dim=-1) - q)

# %%
def entropy_floor(V, eps=0.1):
    right, other = 1 - eps + eps / V, eps / V
    return -right * math.log(right) - (V - 1) * other * math.log(other)

V = 37_000
gap = math.log(1 + 0.9 * V / 0.1)
logits = torch.zeros(1, V, dtype=torch.float64)
logits[0, 7] = gap
loss, nll = label_smoothed_cross_entropy(logits, torch.tensor([7]))
assert math.isclose(loss, entropy_floor(V), rel_tol=1e-9)
print(f"logit gap {gap:.2f}; floor of the loss {loss:.4f} nats;"
      f" nll there {nll:.4f}, perplexity {nll.exp():.4f}")

# %% [markdown]
# So a smoothed model's training loss, 1.38 nats at its very best for the base model's vocabulary, must not be compared
# with an unsmoothed one's. (The authors' own code subtracts this constant, so that there the best loss is 0. What is
# left is the Kullback-Leibler divergence of $p$ from $q$, and has the same gradient.) And a model that does exactly as
# it is told has a perplexity of at least $1 / 0.9 = 1.11$ on every token, even on one that could not be otherwise.
# That is the "hurts perplexity".
#
# **Picture.** A model gives the right token the probability $p$, and divides the rest evenly over the others. What
# does it pay as it becomes surer? Without smoothing, less and less. With smoothing, the cost is lowest at $p = q(y)$,
# and beyond that certainty is *punished*. At $p = 1$ it would be infinite, as the others would have probability 0; no
# finite logits reach that point, and the curve stops short of it.

# %% tags=["row-F11"] mystnb={"image": {"alt": "Loss against the probability that the model gives the right token, from 0.5 to 0.9999, for a vocabulary of 600. Without smoothing the curve falls steadily to 0. With smoothing 0.1 it falls to its lowest point, a dot at probability 0.9 and loss 0.96, and then rises steeply towards the right end."}, "figure": {"caption": "The cost of being sure, $V = 600$. The dot is at $p = q(y)$, and its height is the entropy {eq}`reg-floor`.", "name": "fig-reg-penalty"}}
def penalty(p, eps, V=600):
    """Loss of one token when the right one has probability p and the rest is divided evenly."""
    right, other = 1 - eps + eps / V, eps / V
    return -right * torch.log(p) - (V - 1) * other * torch.log((1 - p) / (V - 1))

p = torch.cat([torch.linspace(0.5, 0.98, 200), 1 - torch.logspace(-1.9, -4, 100)]).double()
figure, ax = plt.subplots(figsize=(5, 2.9), layout="constrained")
for eps, dash in ((0.0, "-"), (0.1, "--")):
    ax.plot(p, penalty(p, eps), dash, label=rf"$\epsilon_{{ls}} = {eps:g}$")
    assert torch.isfinite(penalty(p, eps)).all()
ax.plot(0.9 + 0.1 / 600, entropy_floor(600), "ko", markersize=5)
ax.set(xlabel="probability $p$ of the right token", ylabel="loss (nats)", ylim=(0, 1.6))
ax.legend(frameon=False, loc="center right")
plt.show()

# %%
plain, smoothed_cost = penalty(p, 0.0), penalty(p, 0.1)
assert (plain.diff() < 0).all()
best = p[smoothed_cost.argmin()].item()
assert abs(best - (0.9 + 0.1 / 600)) < 0.005
assert math.isclose(smoothed_cost.min(), entropy_floor(600), rel_tol=1e-3)
print(f"lowest at p = {best:.2f}: {smoothed_cost.min():.4f}; at p = {p[-1]:.4f}: {smoothed_cost[-1]:.4f}")

# %% [markdown]
# The package's loss, fed with logits that give these probabilities, draws the same curve:

# %%
logits = torch.zeros(len(p), 600, dtype=torch.float64)
logits[:, 7] = torch.log(p / (1 - p) * 599)
each = [label_smoothed_cross_entropy(row[None], torch.tensor([7]))[0] for row in logits]
assert_close(torch.stack(each), smoothed_cost)

# %% [markdown]
# ### Perplexity worse, accuracy better?
#
# **Question.** Can both halves of the paper's sentence be seen in a small run?
#
# The task is the reversal again, without accidents this time and with sentences enough, so that every symbol can be
# known for certain. Dropout 0.1, 300 steps, with and without smoothing, and two seeds each.

# %% tags=["nbval-ignore-output"]
smoothing = {eps: [train_small(0.1, eps, n_rows=4000, n_steps=300, seed=seed, noise=0.0)[-1] for seed in (0, 1)]
             for eps in (0.0, 0.1)}
print("eps_ls  seed  held-out perplexity  accuracy")
for eps, judgements in smoothing.items():
    for seed, (_, _, _, nll, accuracy) in enumerate(judgements):
        print(f"{eps:6}  {seed:4}  {math.exp(nll):19.3f}  {accuracy:8.3f}")

# %% tags=["row-X16"]
for (*_, nll, accuracy), (*_, smoothed_nll, smoothed_accuracy) in zip(smoothing[0.0], smoothing[0.1]):
    assert smoothed_nll > nll + 0.02  # perplexity worse, with either seed
    assert 1.05 < math.exp(smoothed_nll) < 1.3
    assert abs(accuracy - smoothed_accuracy) < 0.08 and min(accuracy, smoothed_accuracy) > 0.85

# %% [markdown]
# The first half shows, with either seed: the smoothed model's perplexity is worse. It comes near what it is asked for,
# which in this vocabulary of 16 is $1/q(y) = 1/0.90625 = 1.10$. **The second half does not show.** Accuracy is about
# the same with and without, and on a task with one right answer there is little to improve. For the paper's claim we
# have the paper's word (Table 3, row D, its numbers): without smoothing 25.3 BLEU at a perplexity of 4.67, with 0.1
# 25.8 at 4.92, with 0.2 25.7 at 5.47. So do not ask the perplexities of a smoothed and an unsmoothed model which of
# the two translates better.
#
# **Where.**
#
# - Code: `label_smoothed_cross_entropy` in `annotated_transformer/training/loss.py`.
# - Tests: `test_value_and_gradient_equal_pytorchs_cross_entropy`, `test_padding_adds_nothing_and_has_no_gradient`,
#   `test_smoothing_is_best_served_by_the_smoothed_distribution` in `tests/training/test_loss.py`.
# - Exercises: {ref}`reg-ex-smoothed`, {ref}`reg-ex-loss`, {ref}`reg-ex-by-hand`, {ref}`reg-ex-rare`,
#   {ref}`reg-ex-floor`.

# %% [markdown]
# ## Exercises
#
# Each has a hint and a solution, both folded. Where the answer can be computed, a folded cell below computes it.
#
# ```{exercise} Dropped twice
# :label: reg-ex-twice
#
# A program drops every sub-layer's output twice. Which $p$ must you set in it so that it trains like the paper's model
# with $P_{drop} = 0.1$? Is it then *exactly* the same?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $(1 - p)^2 = 0.9$; and what are the kept entries multiplied by?
# ```
#
# ```{solution} reg-ex-twice
# :class: dropdown
#
# $p = 1 - \sqrt{0.9} = 0.0513$. Kept entries are multiplied by $1 / (1 - p)$ twice, that is by $1 / 0.9$: the product
# of two independent bits is a bit, so it is exactly dropout with 0.1.
# ```

# %% tags=["hide-cell"]
p = 1 - math.sqrt(0.9)
torch.manual_seed(0)
y = nn.Sequential(nn.Dropout(p), nn.Dropout(p))(torch.ones(1_000_000))
assert abs((y != 0).float().mean() - 0.9) < 0.002
assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / 0.9))

# %% [markdown]
# ```{exercise} The price of a drop
# :label: reg-ex-variance
#
# Show that $\mathrm{Dropout}(x)_i$ of {eq}`reg-dropout` has mean $x_i$ and variance $x_i^2\, p / (1 - p)$. For which
# $p$ is the standard deviation as large as the entry itself?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $b_i$ has mean $1 - p$ and variance $p (1 - p)$.
# ```
#
# ```{solution} reg-ex-variance
# :class: dropdown
#
# The mean is $x_i (1 - p) / (1 - p)$. The variance is $x_i^2\, p (1 - p) / (1 - p)^2 = x_i^2\, p / (1 - p)$. The
# standard deviation is $|x_i| \sqrt{p / (1 - p)}$, which is $|x_i|$ at $p = 1/2$.
# ```

# %% tags=["hide-cell"]
torch.manual_seed(0)
y = F.dropout(torch.full((1_000_000,), 3.0), p=0.5)
assert abs(y.std() / 3 - 1) < 0.01 and abs(y.mean() - 3) < 0.02

# %% [markdown]
# ```{exercise} Attention with holes
# :label: reg-ex-inner
#
# The option `attention_dropout` drops attention *weights*, after the softmax. Do the weights of a query still add up
# to 1? What is lost: a token, an entry, or a head?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Try `F.dropout` on a row of equal weights.
# ```
#
# ```{solution} reg-ex-inner
# :class: dropdown
#
# Only on average. A dropped weight hides one *token* from one query of one head, for one step; what is left is scaled
# up without regard to how much was lost. Residual dropout takes single *entries* of a finished vector instead.
# ```

# %% tags=["hide-cell"]
torch.manual_seed(0)
sums = F.dropout(torch.full((100_000, 10), 0.1), p=0.1).sum(dim=-1)
assert abs(sums.mean() - 1) < 0.01
assert sums.min() < 0.7 and sums.max() > 1.1

# %% [markdown]
# ```{exercise} Smoothing against over-fitting
# :label: reg-ex-more
#
# Train the model of the section on over-fitting with $\epsilon_{ls} = 0.1$ and *no* dropout, on the same 300 sentences
# for 400 steps. Does smoothing alone keep the held-out loss down? Does it stop the model from learning the accidents?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `train_small(0.0, 0.1, n_rows=300, n_steps=400, seed=0)`; compare with `runs`.
# ```
#
# ```{solution} reg-ex-more
# :class: dropdown
#
# It keeps the held-out loss lower than no regularization does, since the model must not be as sure of its mistakes.
# But it learns the accidents all the same: the training accuracy is far above what the rule allows, and the held-out
# accuracy is below that with dropout. Here smoothing makes the model modest; dropout makes it better on new sentences.
# Note also that in *this* run smoothing improves the perplexity: "hurts perplexity" is no law where a model is
# over-fitted.
# ```

# %% tags=["hide-cell", "nbval-ignore-output"]
modest = train_small(0.0, 0.1, n_rows=300, n_steps=400, seed=0)[-1]
print("training accuracy {:.2f}; held-out nll {:.2f}, accuracy {:.2f}".format(*modest[2:]))
assert modest[3] < without[3] - 0.2
assert modest[2] > 0.88 > best_accuracy
assert modest[4] < dropped[4]

# %% [markdown]
# ```{exercise} The target distribution
# :label: reg-ex-smoothed
#
# Write `smoothed(target, V, eps, pad_id)`: for target ids (B, T) the distributions (B, T, V) of the first version, with
# rows of zeros at padding. Check it with `check("5.4", smoothed)`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `F.one_hot`, then a multiplication, an addition and a mask.
# ```
#
# ```{solution} reg-ex-smoothed
# :class: dropdown
#
# The folded cell has it. The two usual slips are to leave padding's rows in, and to forget that the right token gets
# its part of $\epsilon / V$ as well.
# ```

# %% tags=["hide-cell"]
from annotated_transformer.exercises import check

def smoothed(target, V, eps, pad_id):
    q = (1 - eps) * F.one_hot(target, V).double() + eps / V
    return q * (target != pad_id)[..., None]

check("5.4", smoothed)

# %% [markdown]
# ```{exercise} The loss
# :label: reg-ex-loss
#
# Write `smoothed_loss(logits, target, eps, pad_id)`: the cross-entropy {eq}`reg-cross-entropy`, summed over the real
# tokens, in nats. Check it with `check("5.4-loss", smoothed_loss)`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# You have `smoothed`. Use `log_softmax`, not the logarithm of `softmax`: the latter is $-\infty$ where a probability
# has become 0.
# ```
#
# ```{solution} reg-ex-loss
# :class: dropdown
#
# One line; the folded cell has it, and shows the hint's trap.
# ```

# %% tags=["hide-cell"]
def smoothed_loss(logits, target, eps, pad_id):
    q = smoothed(target, logits.size(-1), eps, pad_id)
    return -(q * logits.log_softmax(dim=-1)).sum()

check("5.4-loss", smoothed_loss)
sure = torch.tensor([[0.0, 200.0, 0.0]])
assert sure.softmax(-1).log().isinf().any() and sure.log_softmax(-1).isfinite().all()

# %% [markdown]
# ```{exercise} Three tokens by hand
# :label: reg-ex-by-hand
#
# $V = 4$, $\epsilon = 0.2$, and the model gives the four tokens the probabilities
# $\frac12, \frac14, \frac18, \frac18$. The right token is the first. Compute `nll` and the smoothed loss of all three
# versions, padding being the last token.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# All logarithms are multiples of $\ln 2$: $-\ln p$ is 1, 2, 3, 3 times 0.6931.
# ```
#
# ```{solution} reg-ex-by-hand
# :class: dropdown
#
# `nll` is $\ln 2 = 0.6931$. Whole vocabulary: $q = (0.85, 0.05, 0.05, 0.05)$, loss
# $(0.85 + 0.1 + 0.15 + 0.15) \ln 2 = 1.25 \ln 2 = 0.8664$. All others: $q = (0.8, \frac{0.2}{3}, \ldots)$, loss
# $(0.8 + \frac{0.2}{3} \cdot 8) \ln 2 = 1.3333 \ln 2 = 0.9242$. Others but padding: $q = (0.8, 0.1, 0.1, 0)$, loss
# $(0.8 + 0.2 + 0.3) \ln 2 = 1.3 \ln 2 = 0.9011$.
# ```

# %% tags=["hide-cell"]
logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=torch.float64).log()
loss, nll = label_smoothed_cross_entropy(logits, torch.tensor([0]), eps_ls=0.2, pad_id=3)
assert math.isclose(nll, math.log(2)) and math.isclose(loss, 1.25 * math.log(2))
loss, _ = label_smoothed_cross_entropy(logits, torch.tensor([0]), eps_ls=0.2 * 4 / 3, pad_id=3)
assert math.isclose(loss, 4 / 3 * math.log(2))
third = -(torch.tensor([0.8, 0.1, 0.1, 0.0]) * logits[0]).sum()
assert math.isclose(third, 1.3 * math.log(2), rel_tol=1e-6)

# %% [markdown]
# ```{exercise} A rare token
# :label: reg-ex-rare
#
# A token that is never the right one still gets $\epsilon / V$ at every position. In which direction does smoothing
# pull its logit when the model gives it the probability $10^{-9}$, with $V = 37{,}000$? What would happen without
# smoothing?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Equation {eq}`reg-gradient`; $0.1 / 37000 = 2.7 \cdot 10^{-6}$.
# ```
#
# ```{solution} reg-ex-rare
# :class: dropdown
#
# The gradient is $10^{-9} - 2.7 \cdot 10^{-6} < 0$, and descent goes against it: the logit is pulled *up*, until the
# token has $2.7 \cdot 10^{-6}$. Without smoothing the gradient is $+10^{-9}$, and it is pushed down for ever, if ever
# more weakly.
# ```

# %% tags=["hide-cell"]
logits = torch.zeros(1, 37_000, dtype=torch.float64)
logits[0, 7], logits[0, 9] = 15.0, math.log(1e-9 * (math.exp(15) + 36_998))
logits.requires_grad_()
for eps, sign in ((0.1, -1), (0.0, 1)):
    loss, _ = label_smoothed_cross_entropy(logits, torch.tensor([7]), eps_ls=eps)
    [gradient] = torch.autograd.grad(loss, logits)
    assert torch.sign(gradient[0, 9]) == sign

# %% [markdown]
# ```{exercise} Is the run finished?
# :label: reg-ex-floor
#
# Two training logs end at a smoothed loss of 1.60 nats a token: one of a model with $V = 600$, one with $V = 37{,}000$.
# What remains of each above the floor? What would their floors be with $\epsilon_{ls} = 0.2$?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Equation {eq}`reg-floor`; `entropy_floor(V, eps)`.
# ```
#
# ```{solution} reg-ex-floor
# :class: dropdown
#
# The floors are 0.96 and 1.38, so 0.64 and 0.22 nats remain. With 0.2 the floors are 1.78 and 2.60: a loss of 1.60
# would be impossible. Subtract the floor before you compare two smoothed losses.
# ```

# %% tags=["hide-cell"]
floors = [entropy_floor(V, eps) for eps in (0.1, 0.2) for V in (600, 37_000)]
print(*(f"{floor:.2f}" for floor in floors))
assert [round(value, 2) for value in floors] == [0.96, 1.38, 1.78, 2.60]

# %% [markdown]
# ## What to remember
#
# - Dropout sets entries to zero in training and scales up the rest; in use it does nothing (equation
#   {eq}`reg-dropout`). The paper drops each sub-layer's output *before* the residual sum, and the sums of embeddings
#   and positions; nothing else, and nothing twice.
# - A held-out loss that rises while the training loss falls is over-fitting. Dropout held it off here.
# - Label smoothing asks for $1 - \epsilon + \epsilon / V$ instead of 1. The three versions differ only in the size of
#   $\epsilon$ and in padding (equation {eq}`reg-convert`).
# - Its gradient is softmax minus target; its loss cannot fall below an entropy (equation {eq}`reg-floor`).
# - It makes perplexity worse by design. That it helps BLEU is a finding of the paper, which a small task does not
#   repeat.
