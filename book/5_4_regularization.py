# %% [markdown]
# # 5.4 Regularization
#
# *Section 5.4 of the paper {cite}`vaswani2017attention`: dropout and label smoothing.*
#
# A large model can learn its training sentences by heart, and then it does not generalise. **Regularization** is what
# we do to make that harder. The paper announces "three types of regularization" under two headings: *Residual Dropout*
# names two places where numbers are dropped, and *Label Smoothing* makes three.
#
# In this chapter we see a small model overfit and see dropout prevent it. We distinguish three versions of label
# smoothing and derive its target, the lower bound of its loss and its largest cost in perplexity. Finally we compare this
# with the paper's own table.

# %% tags=["remove-cell"]
import json
import math
from fractions import Fraction
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

# %% tags=["remove-cell"]
from annotated_transformer import (Batch, ModelConfig, Transformer, label_smoothed_cross_entropy,
                                   noam_learning_rate)
from lab.exercises import check
from lab.display import show, use_style
from lab.pictures import training as training_pictures
from lab.tables.table_3 import TABLE_3
from lab.training_loop import fit, summed_loss

use_style()
torch.set_printoptions(precision=4, sci_mode=False)

# %% [markdown]
# ## Dropout takes numbers away at random
#
# How can we keep a network from relying on any one of its numbers? **Dropout** {cite}`srivastava2014dropout` sets each
# entry of a vector to zero with probability $p$, again at every training step, so that whatever reads the vector must
# work with what is left. At inference every entry stays. With independent random bits $b_i$ that are 0 with
# probability $p$ and 1 otherwise,
#
# $$
# \mathrm{Dropout}(x)_i =
# \begin{cases}
# \dfrac{b_i}{1 - p}\, x_i & \text{in training} \\[1ex]
# x_i & \text{at inference}
# \end{cases}
# $$ (reg-dropout)
#
# The entries that stay are enlarged by $1 / (1 - p)$, so the *mean* of an entry is the same in training and at
# inference. The price is a variance of $x_i^2\, p / (1 - p)$.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Grid of five rows and twelve columns. The top row, at inference, has the entries 0.2 to 2.4 in growing shades. The four rows below are training steps: in each, one to three of the entries are empty and marked 0, at random places in each row, and the entries that stay are a third larger than in the top row."}, "figure": {"caption": "One vector at inference, and in four training steps with $p = 0.25$. What stays is multiplied by 4/3.", "name": "fig-reg-dropout"}}
training_pictures.reg_dropout()

# %% tags=["hide-cell"]
torch.manual_seed(0)
p, x = 0.1, torch.linspace(-2, 2, 10_000)
dropout = nn.Dropout(p)
y = dropout(x)
assert_close(y, torch.where(y != 0, x / (1 - p), torch.zeros(())))
assert abs((y != 0).float().mean() - 0.9) < 0.01 and torch.equal(dropout.eval()(x), x)

# %% [markdown]
# PyTorch has this as `nn.Dropout`, which `model.train()` and `model.eval()` switch on and off. Without `eval`, a model
# gives another answer each time.
#
# ### Where the paper puts it
#
# In the base model with $P_{drop} = 0.1$, the paper drops two things:
#
# 1. "the output of each sub-layer, before it is added to the sub-layer input and normalized";
# 2. "the sums of the embeddings and the positional encodings in both the encoder and decoder stacks".
#
# In the package each is one call:

# %%
from annotated_transformer.model.stacks import AddNorm

show(AddNorm.forward, Transformer.embed)

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two small diagrams, read from left to right. Top: embedding plus position go into a plus sign, then a coloured box dropout, then to the stack. Bottom: x goes into a box sub-layer, then a coloured box dropout, then a plus sign, to which a second line from x leads straight past both boxes, then layer norm."}, "figure": {"caption": "The two places of dropout. The residual line from $x$ to the sum passes below both boxes and stays whole.", "name": "fig-reg-places"}}
training_pictures.reg_places()

# %% [markdown]
# The paper gives no reason for dropping *before* the sum, but we can see one. On the residual path a token's vector
# travels through the whole stack. Dropped after each sum, only $0.9^{12} = 28\,\%$ of its entries would survive the
# encoder's twelve sub-layers, and $15\,\%$ the decoder's eighteen. With the drop before the sum, the path stays whole.
#
# Let us count the places in a model of the base model's depth: two sub-layers in each of 6 encoder layers, three in
# each of 6 decoder layers, and one place that both embeddings pass through. So 31 modules drop something, and one of
# them is called twice in a forward pass: 32 calls. The authors' own code, tensor2tensor
# {cite}`vaswani2018tensor2tensor`, later dropped attention weights and hidden units of the feed-forward network as
# well, and section 6.3 mentions dropout of "both attention and residual". The package has both as options,
# off by default. PyTorch's own `nn.TransformerEncoderLayer` always has both.

# %%
def dropouts(**options):
    """The rates above 0 in the model, with the number of their places."""
    model = Transformer(ModelConfig.tiny(vocab_size=50, N=6, p_drop=0.1,
                                         **options))
    rates = [m.p for m in model.modules() if isinstance(m, nn.Dropout)]
    rates += [m.dropout for m in model.modules()
              if isinstance(getattr(m, "dropout", None), float)]
    return {rate: rates.count(rate) for rate in sorted(set(rates)) if rate > 0}

print("the paper's:", dropouts())
print("with options:", dropouts(attention_dropout=0.2, ffn_dropout=0.3))

# %% tags=["hide-cell", "row-S18"]
assert dropouts() == {0.1: 2 * 6 + 3 * 6 + 1}
assert dropouts(attention_dropout=0.2, ffn_dropout=0.3) == {0.1: 31, 0.2: 6 + 2 * 6, 0.3: 12}
calls, model = [], Transformer(ModelConfig.tiny(vocab_size=50, N=6, p_drop=0.1))
for module in model.modules():
    if isinstance(module, nn.Dropout) and module.p:
        module.register_forward_hook(lambda *_: calls.append(1))
model(torch.tensor([[4, 5, 6, 2]]), torch.tensor([[1, 7, 8]]))
assert len(calls) == 32

# %% tags=["remove-cell"]
after = torch.ones(100_000)
for _ in range(18):  # dropped after each sum
    after = F.dropout(after, 0.1)
assert abs((after != 0).float().mean() - 0.9**18) < 0.01 and round(0.9**12, 2) == 0.28

# %% [markdown]
# ## Overfitting, and dropout against it
#
# What does a model learn when it sees the same few examples again and again? Our task is to write six symbols in
# reverse, with one target symbol in five replaced by a random one, in the training sentences and in the held-out ones
# alike. With a share $\nu = 0.2$ replaced and $n = 13$ symbols, the symbol that the *rule* gives has a probability
# $a = 1 - \nu + \nu / n = 0.82$ and every other symbol $\nu / n$. The smallest mean loss to be expected on held-out data
# is therefore the entropy
#
# $$
# H = -a \ln a - (n - 1)\, \frac{\nu}{n} \ln \frac{\nu}{n},
# $$ (reg-noise-floor)
#
# which is 0.94 **nats** (losses with natural logarithms are counted in nats). A model that gets more than 82 percent of
# its *training* symbols right has memorised noise.

# %%
NOISE, N_SYMBOLS = 0.2, 13  # ids 3 to 15
def noisy_reversal(n, generator, noise=NOISE):
    """n rows of six symbols, and the same in reverse with accidents."""
    source, random = torch.randint(3, 16, (2, n, 6), generator=generator)
    replaced = torch.rand(n, 6, generator=generator) < noise
    target_out = torch.where(replaced, random, source.flip(1))
    target_in = F.pad(target_out[:, :-1], (1, 0), value=1)
    return Batch(source, target_in, target_out, 6 * n)

best_accuracy, other = 1 - NOISE + NOISE / N_SYMBOLS, NOISE / N_SYMBOLS
floor = -best_accuracy * math.log(best_accuracy) - 12 * other * math.log(other)
example = noisy_reversal(1, torch.Generator().manual_seed(3))
print(*example.source[0].tolist(), "->", *example.target_out[0].tolist())
print(f"the rule is right in {best_accuracy:.2f} of the cases; "
      f"smallest mean loss {floor:.2f} nats")

# %% [markdown]
# Batches are 32 rows drawn at random. We judge a model by its loss and by the share of symbols that it finds, with dropout
# off.

# %%
def draws(rows, generator):
    while True:
        chosen = torch.randint(len(rows.source), (32,), generator=generator)
        yield Batch(*(tensor[chosen] for tensor in rows[:3]), 32 * 6)

@torch.no_grad()
def judge(model, rows):
    """(nats per token without smoothing, share of symbols that are right)."""
    logits = model(rows.source, rows.target_in)
    _, nll = label_smoothed_cross_entropy(logits, rows.target_out)
    return (nll.item() / rows.n_tokens,
            (logits.argmax(dim=-1) == rows.target_out).float().mean().item())
SMALL = ModelConfig(16, N=2, d_model=32, d_ff=64, h=4, norm="pre")
rate = partial(noam_learning_rate, d_model=32, warmup_steps=50, factor=0.4)
print("rows in a batch:", len(next(draws(example, torch.Generator())).source))

# %% [markdown]
# We train a small model with the loop of [chapter 5.2](5_2_training.ipynb) on 300 sentences for 400 steps, so that each
# sentence is seen about forty times. Every 50 steps we judge it on its training sentences and on 500 others. (It is a
# pre-norm model, see [3.1](3_1_stacks.ipynb).)

# %% tags=["nbval-ignore-output"]
def train_small(p_drop, eps_ls, n_rows=300, n_steps=400, seed=0, noise=NOISE):
    """Training nll and accuracy, held-out nll and accuracy, every 50 steps."""
    generator, judged = torch.Generator().manual_seed(seed), []
    rows, others = (noisy_reversal(n, generator, noise) for n in (n_rows, 500))
    torch.manual_seed(seed)
    model = Transformer(SMALL.replace(p_drop=p_drop))
    def validate(model):
        judged.append(judge(model, rows) + judge(model, others))
        return judged[-1][2]
    fit(model, draws(rows, generator), n_steps, rate,
        partial(summed_loss, eps_ls=eps_ls), validate, every=50)
    return judged
runs = {"no regularization": train_small(p_drop=0.0, eps_ls=0.0)}
print("after 400 steps: training nll {:.2f}, accuracy {:.2f}; held-out nll "
      "{:.2f}, accuracy {:.2f}".format(*runs["no regularization"][-1]))

# %% [markdown]
# The model gets more of the *training* symbols right than the rule allows: it has memorised noise. Now with label smoothing
# of 0.1 (the subject of the next section), and with the paper's dropout of 0.1:

# %% tags=["nbval-ignore-output", "row-X15"]
runs |= {"label smoothing 0.1": train_small(0.0, 0.1),
         "dropout 0.1": train_small(0.1, 0.0)}
print(f"{'after 400 steps':20}  training nll  accuracy  held-out nll  accuracy")
for name, judged in runs.items():
    print(f"{name:20}  {{:12.2f}}  {{:8.2f}}  {{:12.2f}}  {{:8.2f}}".format(
        *judged[-1]))
without, smoothed_run, dropped = (judged[-1] for judged in runs.values())
lowest = min(held_out for _, _, held_out, _ in runs["no regularization"])
assert without[1] > 0.88  # it has memorised noise, and got worse:
assert without[2] > lowest + 0.2
assert dropped[2] < without[2] - 0.4 and dropped[3] > without[3] + 0.05
assert (3.2 < without[2] < 3.6 and 2.2 < smoothed_run[2] < 2.5
        and smoothed_run[1] > 0.88 and smoothed_run[3] < dropped[3])

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three line charts of nats per token over 400 steps, each with a solid curve for training sentences, a dashed one for held-out sentences, and a dotted line for the entropy, 0.94. Without regularization the training curve falls far below the dotted line, and the held-out curve turns at step 150 and rises from 2.2 to 3.4. With label smoothing it rises to about 2.3. With dropout 0.1 the training curve falls more slowly, and the held-out curve falls to about 1.7 and stays there."}, "figure": {"caption": "A small model on 300 sentences, without regularization and with two kinds. The dotted line is the entropy {eq}`reg-noise-floor`; a training loss below it is memorised noise.", "name": "fig-reg-overfit"}}
training_pictures.reg_overfit(floor, runs)

# %% [markdown]
# Without regularization the model gets more than 90 % of the *training* symbols right. Its held-out
# loss turns and rises while its accuracy there barely moves: it is wrong about as often as before, with more
# confidence. With dropout the held-out loss falls and stays down, although the training loss ends below the dotted
# line: dropout slows memorisation and leaves it possible. On new sentences label smoothing makes the model less wrongly
# sure (3.2 to 3.6 nats, by the processor, become 2.2 to 2.5) and leaves its accuracy as it was; dropout raises the accuracy.
#
# In the paper's Table 3, row D, dropout helps even with 4.5 million sentence pairs: without it the model has 24.6 BLEU
# and a perplexity of 5.77, with 0.1 it has 25.8 and 4.92, with 0.2 25.5 and 4.95. Today translators are trained with 0.1
# to 0.3, the more the smaller the corpus. Large language models read most texts once and have little to memorise: PaLM
# {cite}`chowdhery2023palm` was trained without dropout.
#
# When does it begin to help? In the miniature of [6.2](6_2_variations.ipynb), 29,000 captions are read ten times over.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Nats per token over 12,500 steps, two solid curves for training and two dashed ones for validation. Without dropout the training curve falls to 1.3 and the validation curve to 2.0 at about 8,000 steps, where it stays. With dropout both fall more slowly and lie together, to below 2.0 at the end; the validation curves cross at about 9,500 steps."}, "figure": {"caption": "The miniature of Table 3 on captions, with dropout 0.1 (base) and without (D1): training (solid) and validation (dashed), means over seeds.", "name": "fig-reg-captions"}}
at_the_end = {row["id"]: row for row in json.loads(Path("results/table_3_to_the_end.json").read_text())["summary"]}
training_pictures.reg_captions(at_the_end)

# %% tags=["hide-cell"]
with_dropout, without_it = ([nll for _, _, nll in at_the_end[row]["curve"]] for row in ("base", "D1"))
ahead = [a < b for a, b in zip(without_it, with_dropout)]
crossing = at_the_end["D1"]["curve"][ahead.index(False)][0]
assert 7 < crossing / 1250 < 8 and not any(ahead[-4:])  # 1,250 steps are an epoch
assert max(without_it[14:]) - min(without_it[14:]) < 0.05  # from 6 epochs on

# %% [markdown]
# For most of the run the model without dropout is ahead. It learns its captions by heart and stands still on new ones from
# the sixth epoch on, while the other passes it in the eighth. Judged after two epochs, dropout would seem to hurt.

# %% [markdown]
# ## Label smoothing asks for less than certainty
#
# Cross-entropy asks the model to give the right token a probability of 1. A softmax would need infinite logits for
# that, so wherever the training data know one answer only, the logits keep growing, and the model becomes surer than it
# has reason to be. **Label smoothing** {cite}`szegedy2016rethinking` asks for a distribution that takes a share
# $\epsilon_{ls} = 0.1$ (0 and 0.2 in two rows of Table 3) from the right token and spreads it over the vocabulary. The
# paper says of it:
#
# > This hurts perplexity, as the model learns to be more unsure, but improves accuracy and BLEU score.
#
# We write $q(v)$ for the **target distribution** over the $V$ tokens, $y$ for the right token and $p$ for the model's
# distribution. The loss of one token is the cross-entropy
#
# $$
# \mathcal{L} = -\sum_v q(v) \ln p(v).
# $$ (reg-cross-entropy)
#
# Three versions of $q$ are in use. The paper leaves open which one it means, and cites the first.
#
# | | right token | every other token | who |
# |---|---|---|---|
# | whole vocabulary | $1 - \epsilon + \epsilon / V$ | $\epsilon / V$ | Szegedy et al., PyTorch, this package |
# | all others | $1 - \epsilon$ | $\epsilon / (V - 1)$ | the authors' own code |
# | others but padding | $1 - \epsilon$ | $\epsilon / (V - 2)$, padding 0 | *The Annotated Transformer* {cite}`rush2018annotated` |
#
# We compute all three with exact fractions, for a vocabulary of 5 and for the paper's.

# %%
def shares(V, eps=Fraction(1, 10)):
    """Right token, every other token, and how many others, by version."""
    return {"whole vocabulary": (1 - eps + eps / V, eps / V, V - 1),
            "all others": (1 - eps, eps / (V - 1), V - 1),
            "others but padding": (1 - eps, eps / (V - 2), V - 2)}

for V in (5, 37_000):
    for version, (right, other, _) in shares(V).items():
        print(f"V {V:6,}  {version:18}  right {float(right):.7f}  other "
              f"{float(other):.3e}")

# %% tags=["hide-cell", "row-E12", "row-Q3"]
assert f"{float(shares(37_000)['whole vocabulary'][0]):.7f}" == "0.9000027"
assert shares(37_000)["all others"][0] == Fraction(9, 10)
for V in (4, 5, 600, 37_000):
    assert all(right + n_others * other == 1 for right, other, n_others in shares(V).values())
    eps = Fraction(1, 10)
    converted = shares(V, eps * V / (V - 1))["whole vocabulary"]
    assert converted == shares(V, eps)["all others"]
    assert shares(V - 1, eps)["all others"] == shares(V, eps)["others but padding"]

# %% [markdown]
# In a large vocabulary the three differ too little to matter; in a small one, as in examples and tests, they do differ.
# The second version is the first one in disguise. If we put $\epsilon' = \epsilon \dfrac{V}{V - 1}$ into the first,
# every other token gets $\epsilon' / V = \epsilon / (V - 1)$, and the right one gets the rest:
#
# $$
# 1 - \epsilon' + \frac{\epsilon'}{V} = 1 - \epsilon'\, \frac{V - 1}{V} = 1 - \epsilon.
# $$ (reg-convert)
#
# The third is the second in a vocabulary without padding. So PyTorch's `label_smoothing` gives the first two, and for
# the third we hand `F.cross_entropy` the distribution $q$ itself.
#
# ### Padding asks for nothing
#
# The package's `label_smoothed_cross_entropy` returns two sums over the real tokens, in nats: `loss`, which training
# minimises, and `nll`, the same with $\epsilon = 0$. Perplexity is $e$ to the power of the mean `nll` per token. We build
# $q$ for two sentences, the second of which ends in two tokens of padding (id 0), and compute both by hand.

# %%
torch.manual_seed(0)
V, eps, pad_id = 6, 0.1, 0
target_out = torch.tensor([[4, 5, 3, 2], [3, 2, 0, 0]])
logits = torch.randn(2, 4, V, dtype=torch.float64, requires_grad=True)

one_hot = F.one_hot(target_out, V).double()
real = (target_out != pad_id).double()[..., None]
q = ((1 - eps) * one_hot + eps / V) * real
log_p = logits.log_softmax(dim=-1)
print(f"by hand: loss {-(q * log_p).sum():.4f}, "
      f"nll {-(one_hot * real * log_p).sum():.4f}")
loss, nll = label_smoothed_cross_entropy(logits, target_out, eps, pad_id)
print(f"package: loss {loss:.4f}, nll {nll:.4f}, "
      f"for {int(real.sum())} real tokens")

# %% tags=["remove-cell", "row-E12"]
assert_close(loss, -(q * log_p).sum())
flat = logits.flatten(0, 1), target_out.flatten()
assert_close(loss, F.cross_entropy(*flat, label_smoothing=eps, ignore_index=pad_id, reduction="sum"))
assert_close(nll, F.cross_entropy(*flat, ignore_index=pad_id, reduction="sum"))
second = one_hot * (1 - eps) + (1 - one_hot) * eps / (V - 1)
by_torch = F.cross_entropy(*flat, label_smoothing=eps * V / (V - 1), reduction="sum")
assert_close(by_torch, -(second * log_p).sum())
knows_padding = 20 * one_hot * (1 - real)  # a model that knows padding and nothing else
everywhere = F.cross_entropy(knows_padding.flatten(0, 1), target_out.flatten())
honest = label_smoothed_cross_entropy(knows_padding, target_out)[1] / 6
assert_close(everywhere, honest * 6 / 8)
assert math.isclose(honest, math.log(V))

# %% tags=["hide-input", "row-F11"] mystnb={"image": {"alt": "Two heat maps with a row for each of eight target positions and a column for each of six tokens, the first of which is padding. Each row of a real token has one dark cell, at the right token, and pale cells elsewhere. The rows of the two padding positions are 0. Left, whole vocabulary: dark cells 0.917, pale ones 0.017. Right, others but padding: dark cells 0.9, pale ones 0.025, and the padding column is 0."}, "figure": {"caption": "Two of the three target distributions for the same batch, $V = 6$. A position of padding has an empty row; in the third version padding's column is empty too.", "name": "fig-reg-targets"}}
third = training_pictures.reg_targets(V, eps, one_hot, pad_id, q, real, target_out)
assert torch.isfinite(third).all()

# %% [markdown]
# Home-made smoothing is often a sum of two terms, $1 - \epsilon$ times the usual loss and $\epsilon$ times the mean of
# $-\ln p$, and a common slip is to mask the first term only. Then padding still pulls all probabilities towards
# $1 / V$, and the loss depends on how much padding the batch happens to have:

# %%
def half_masked(logits, target_out, eps, pad_id):
    log_p = logits.log_softmax(dim=-1)
    nll = -log_p.gather(-1, target_out[..., None])[..., 0]
    nll = nll.masked_fill(target_out == pad_id, 0)  # the other term has no mask
    return ((1 - eps) * nll - eps * log_p.mean(dim=-1)).sum()

at_padding = {}
for name, compute in (("right", lambda *a: label_smoothed_cross_entropy(*a)[0]),
                      ("half masked", half_masked)):
    loss = compute(logits, target_out, eps, pad_id)
    [gradient] = torch.autograd.grad(loss, logits)
    at_padding[name] = gradient[target_out == pad_id].abs().max().item()
    print(f"{name:11}  loss {loss:.4f}  largest gradient at padding "
          f"{at_padding[name]:.4f}")
assert at_padding["right"] == 0 < at_padding["half masked"]

# %% [markdown]
# ## What a smoothed model is asked for
#
# Where does the loss {eq}`reg-cross-entropy` push the logits $z$, and where does it stop? With $p = \mathrm{softmax}(z)$
# and $\sum_v q(v) = 1$ we get
#
# $$
# \mathcal{L} = \ln \sum_v e^{z_v} - \sum_v q(v)\, z_v,
# \qquad
# \frac{\partial \mathcal{L}}{\partial z_v} = p(v) - q(v).
# $$ (reg-gradient)
#
# The gradient is **softmax minus target**, and descent goes against it. A logit is pushed up while its probability is
# below the target and down while it is above. At a position whose answer is always the same, the push ends where
# $p = q$.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Bar chart over five tokens of the target minus the model's probability. The right token, cat, has minus 0.037 and kitten minus 0.004: their logits are pushed down. Dog has 0.009, the 0.018 and sat 0.014: theirs are pushed up."}, "figure": {"caption": "Target minus probability, $q - p$, of a model that is surer than its smoothed target, $V = 5$: it gives the right token, *cat*, 0.96, and should give 0.92. Descent moves each logit by this much times the rate.", "name": "fig-reg-push"}}
training_pictures.reg_push()

# %% [markdown]
# Without smoothing that end is never reached. With it, the right token's logit settles above every other one by
#
# $$
# \ln \frac{q(y)}{q(v)} = \ln\left(1 + \frac{(1 - \epsilon)\, V}{\epsilon}\right),
# $$ (reg-gap)
#
# which is 12.7 for $V = 37{,}000$ and $\epsilon = 0.1$. And the loss ends above 0, at a floor that is the **entropy** of
# the target distribution,
#
# $$
# H(q) = -q(y) \ln q(y) - (V - 1)\, \frac{\epsilon}{V} \ln \frac{\epsilon}{V}.
# $$ (reg-floor)

# %%
def entropy_floor(V, eps=0.1):
    right, other = 1 - eps + eps / V, eps / V
    return -right * math.log(right) - (V - 1) * other * math.log(other)

V = 37_000
gap = math.log(1 + 0.9 * V / 0.1)
logits = torch.zeros(1, V, dtype=torch.float64)
logits[0, 7] = gap
loss, nll = label_smoothed_cross_entropy(logits, torch.tensor([7]))
print(f"logit gap {gap:.2f}; floor of the loss {entropy_floor(V):.4f} nats, "
      f"loss there {loss:.4f}; perplexity there {nll.exp():.4f}")

# %% tags=["hide-cell"]
assert math.isclose(loss, entropy_floor(V), rel_tol=1e-9)
torch.manual_seed(0)
logits = torch.randn(5, 9, dtype=torch.float64, requires_grad=True)
target = torch.tensor([3, 8, 1, 5, 4])
label_smoothed_cross_entropy(logits, target, eps_ls=0.1)[0].backward()
q = F.one_hot(target, 9) * 0.9 + 0.1 / 9
assert_close(logits.grad, logits.softmax(dim=-1) - q)
logits = torch.zeros(1, 37_000, dtype=torch.float64)  # a wrong token with the probability 1e-9
logits[0, 7], logits[0, 9] = 15.0, math.log(1e-9 * (math.exp(15) + 36_998))
for eps_ls, sign in ((0.1, -1), (0.0, 1)):  # smoothing pulls its logit up
    pull, _ = label_smoothed_cross_entropy(logits.requires_grad_(), torch.tensor([7]), eps_ls)
    assert torch.sign(torch.autograd.grad(pull, logits)[0][0, 9]) == sign

# %% [markdown]
# The smoothed loss of the base model cannot end below 1.38 nats, so we subtract the floor before we compare smoothed
# losses with different $V$ or $\epsilon$. (The authors' own code subtracts this constant; the gradient is the same.)
#
# What does a model pay as it becomes surer? Suppose that it gives the right token the probability $p$ and divides the
# rest evenly. Without smoothing it pays less and less. With smoothing the cost is lowest at $p = q(y)$, and beyond that
# certainty is *punished*.

# %%
def penalty(p, eps, V=600):
    """Loss of a token of probability p; the others share the rest evenly."""
    right, other = 1 - eps + eps / V, eps / V
    return (-right * torch.log(p)
            - (V - 1) * other * torch.log((1 - p) / (V - 1)))

for share in (0.8, 0.9, 0.99, 0.999):
    costs = [penalty(torch.tensor(share).double(), eps).item()
             for eps in (0.0, 0.1)]
    print(f"p = {share:5}: {costs[0]:.3f} nats without smoothing, "
          f"{costs[1]:.3f} with 0.1")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Loss against the probability that the model gives the right token, from 0.5 to 0.9999, for a vocabulary of 600. Without smoothing the curve falls steadily to 0. With smoothing 0.1 it falls to its lowest point, a dot at probability 0.9 and loss 0.96, and then rises steeply towards the right end."}, "figure": {"caption": "The cost of being sure, $V = 600$. The dot is at $p = q(y)$, and its height is the entropy {eq}`reg-floor`.", "name": "fig-reg-penalty"}}
p = training_pictures.reg_penalty(penalty, entropy_floor)

# %% tags=["hide-cell", "row-F11"]
plain, smoothed_cost = penalty(p, 0.0), penalty(p, 0.1)
assert (plain.diff() < 0).all()
best = p[smoothed_cost.argmin()].item()
assert abs(best - (0.9 + 0.1 / 600)) < 0.005
assert math.isclose(smoothed_cost.min(), entropy_floor(600), rel_tol=1e-3)
logits = torch.zeros(len(p), 600, dtype=torch.float64)
logits[:, 7] = torch.log(p / (1 - p) * 599)
each = [label_smoothed_cross_entropy(row[None], torch.tensor([7]))[0] for row in logits]
assert_close(torch.stack(each), smoothed_cost)
print(f"lowest at p = {best:.2f}: {smoothed_cost.min():.4f}; the package's loss draws the same curve")

# %% [markdown]
# ### How much perplexity smoothing can cost
#
# By how much can smoothing "hurt perplexity"? Suppose that an ideal model would give the distribution $p$. Trained with
# smoothing, it is asked for $p_\epsilon = (1 - \epsilon)\, p + \epsilon / V$ instead. Every probability is then at least
# $1 - \epsilon$ times what it was, so the nll of a token grows by at most $-\ln(1 - \epsilon)$:
#
# $$
# p_\epsilon(v) \ge (1 - \epsilon)\, p(v)
# \quad\Longrightarrow\quad
# \mathrm{PPL}_\epsilon \le \frac{\mathrm{PPL}}{1 - \epsilon}.
# $$ (reg-bound)
#
# A model that fits the smoothed target exactly loses at most a factor of 1.11 in perplexity for $\epsilon = 0.1$ and of
# 1.25 for 0.2. The most
# is paid where the answer is certain. Where the ideal model hesitates, a part of $\epsilon$ falls on tokens that deserve
# it, and the cost is smaller. We compare this with row D of Table 3:

# %%
ppl = {row.name: row.ppl for row in TABLE_3}
paper = {0.1: ppl["base"] / ppl["eps_ls=0.0"],
         0.2: ppl["eps_ls=0.2"] / ppl["eps_ls=0.0"]}
for eps, factor in paper.items():
    print(f"eps_ls {eps}: the paper's perplexity grows by a factor of "
          f"{factor:.3f}; the bound is {1 / (1 - eps):.3f}")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Line chart of the factor in perplexity against epsilon from 0 to 0.3. The solid line, the bound 1 / (1 - epsilon), rises from 1 to 1.43. The area below it is shaded. Two squares, the paper's 1.054 at 0.1 and 1.171 at 0.2, lie below the bound."}, "figure": {"caption": "What smoothing costs in perplexity. Line: the bound {eq}`reg-bound`. Squares: Table 3, 4.92 / 4.67 and 5.47 / 4.67.", "name": "fig-reg-bound"}}
training_pictures.reg_bound(paper)

# %% tags=["hide-cell"]
assert (ppl["base"], ppl["eps_ls=0.0"], ppl["eps_ls=0.2"]) == (4.92, 4.67, 5.47)
assert all(1 < factor < 1 / (1 - eps) for eps, factor in paper.items())
torch.manual_seed(0)
ideal = torch.randn(1000, 50, dtype=torch.float64).mul(4).softmax(dim=-1)
for eps_ls in (0.1, 0.2):
    smoothed_ideal = (1 - eps_ls) * ideal + eps_ls / 50
    divergence = (ideal * (ideal / smoothed_ideal).log()).sum(dim=-1)
    assert 0 < divergence.max() <= -math.log(1 - eps_ls)
print(f"1,000 random distributions pay {divergence.exp().mean():.3f} on average for 0.2, and at most 1.25")

# %% [markdown]
# The paper's models are trained rather than ideal, and their factors respect the bound: 1.054 is about half of the
# possible increase, and 1.171 two thirds.
#
# Can we see the paper's whole sentence, worse perplexity and better accuracy, in a small run? We train on the reversal
# again, this time without accidents and with plenty of sentences, so that every symbol can be known for certain.

# %% tags=["nbval-ignore-output"]
sizes = dict(n_rows=4000, n_steps=300, noise=0.0)
smoothing = {eps: [train_small(0.1, eps, seed=seed, **sizes)[-1]
                   for seed in (0, 1)] for eps in (0.0, 0.1)}
for eps, judgements in smoothing.items():
    for seed, (*_, nll, accuracy) in enumerate(judgements):
        print(f"eps_ls {eps}, seed {seed}: held-out perplexity "
              f"{math.exp(nll):.3f}, accuracy {accuracy:.3f}")

# %% tags=["remove-cell", "row-X16"]
for (*_, nll, accuracy), (*_, smoothed_nll, smoothed_accuracy) in zip(smoothing[0.0], smoothing[0.1]):
    assert smoothed_nll > nll + 0.02  # perplexity worse, with either seed
    assert 1.05 < math.exp(smoothed_nll) < 1.3
    assert abs(accuracy - smoothed_accuracy) < 0.08 and min(accuracy, smoothed_accuracy) > 0.85
assert at_the_end["D3"]["bleu_difference"]["sign"] == 0

# %% [markdown]
# Both seeds confirm the first half of the sentence: perplexity is worse, and comes near the $1/q(y) = 1.10$ that is asked
# for in this vocabulary of 16. The second half is beyond runs of this length: 98 to 99 % of the tokens are right without
# smoothing, 99 % or a little more with it, and two seeds on so easy a task cannot settle it. For
# BLEU there is the paper's Table 3: 25.3 at a perplexity of 4.67 without smoothing, 25.8 at 4.92 with 0.1, 25.7 at 5.47
# with 0.2. So perplexity cannot compare a smoothed with an unsmoothed model. Our miniature of Table 3
# ([6.2](6_2_variations.ipynb)) is too weak to confirm it: after ten epochs, as after two, the interval of its difference in
# BLEU has 0 in it ([What holds](claims.ipynb) has the numbers).
#
# :::{dropdown} Where this is
# `AddNorm` is in `annotated_transformer/model/stacks.py`, the model's dropout (with cheaper random numbers on a CPU) in
# `model/dropout.py`, and the loss in `training/loss.py`. Tests: `tests/model/test_stacks.py`, `tests/training/test_loss.py`.
# :::
#
# ## Exercises
#
# Each has a hint and a solution, both folded, and a folded cell computes the answer.

# %% [markdown] tags=["exercise"]
# ```{exercise} Dropped twice
# :label: reg-ex-twice
#
# A program drops every sub-layer's output twice, once in the attention module and once in the layer. With $p = 0.1$,
# how often does an entry survive? Which $p$ must we set so that it trains like the paper's model?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# $(1 - p)^2 = 0.9$; and what are the kept entries multiplied by?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} reg-ex-twice
# :class: dropdown
#
# It survives in $0.9^2 = 81$ percent of the draws, and we need $p = 1 - \sqrt{0.9} = 0.0513$. The product of two
# independent bits is a bit, and kept entries are multiplied by $1 / 0.9$ in all, so this is exactly dropout with 0.1.
# ```

# %% tags=["hide-cell", "solution"]
torch.manual_seed(0)
for p, kept in ((0.1, 0.81), (0.3, 0.49), (0.5, 0.25), (1 - math.sqrt(0.9), 0.9)):
    y = nn.Sequential(nn.Dropout(p), nn.Dropout(p))(torch.ones(1_000_000))
    assert abs((y != 0).float().mean() - kept) < 0.002
assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / 0.9))

# %% [markdown] tags=["exercise"]
# ```{exercise} The target distribution (check 5.4)
# :label: reg-ex-smoothed
#
# Write `smoothed(target, V, eps, pad_id)`: for target ids (B, T) the distributions (B, T, V) of the first version, with
# rows of zeros at padding. Check it with `check("5.4", smoothed)`.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# `F.one_hot`, then a multiplication, an addition and a mask.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} reg-ex-smoothed
# :class: dropdown
#
# The folded cell has it. Usual slips are to leave padding's rows in, and to forget that the right token gets its part
# of $\epsilon / V$ too.
# ```

# %% tags=["hide-cell", "solution"]
def smoothed(target, V, eps, pad_id):
    q = (1 - eps) * F.one_hot(target, V).double() + eps / V
    return q * (target != pad_id)[..., None]

check("5.4", smoothed)

# %% [markdown] tags=["exercise"]
# ```{exercise} The loss (check 5.4-loss)
# :label: reg-ex-loss
#
# Write `smoothed_loss(logits, target, eps, pad_id)`: the cross-entropy {eq}`reg-cross-entropy`, summed over the real
# tokens, in nats. Check it with `check("5.4-loss", smoothed_loss)`.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Use `smoothed` and `log_softmax`. The logarithm of `softmax` is $-\infty$ where a probability has become 0.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} reg-ex-loss
# :class: dropdown
#
# It takes one line, which the folded cell has.
# ```

# %% tags=["hide-cell", "solution"]
def smoothed_loss(logits, target, eps, pad_id):
    q = smoothed(target, logits.size(-1), eps, pad_id)
    return -(q * logits.log_softmax(dim=-1)).sum()

check("5.4-loss", smoothed_loss)
sure = torch.tensor([[0.0, 200.0, 0.0]])
assert sure.softmax(-1).log().isinf().any() and sure.log_softmax(-1).isfinite().all()

# %% [markdown] tags=["exercise"]
# ```{exercise} Three tokens by hand
# :label: reg-ex-by-hand
#
# $V = 4$, $\epsilon = 0.2$, and the model gives the four tokens the probabilities
# $\frac12, \frac14, \frac18, \frac18$. The right token is the first. Compute `nll` and the smoothed loss of all three
# versions, padding being the last token.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# All logarithms are multiples of $\ln 2$: $-\ln p$ is 1, 2, 3, 3 times 0.6931.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} reg-ex-by-hand
# :class: dropdown
#
# `nll` is $\ln 2 = 0.6931$. The first version has $q = (0.85, 0.05, 0.05, 0.05)$ and the loss
# $(0.85 + 0.1 + 0.15 + 0.15) \ln 2 = 1.25 \ln 2 = 0.8664$. The second has $q = (0.8, \frac{0.2}{3}, \ldots)$ and
# $(0.8 + \frac{0.2}{3} \cdot 8) \ln 2 = 1.3333 \ln 2 = 0.9242$. The third has $q = (0.8, 0.1, 0.1, 0)$ and
# $(0.8 + 0.2 + 0.3) \ln 2 = 1.3 \ln 2 = 0.9011$.
# ```

# %% tags=["hide-cell", "solution"]
logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=torch.float64).log()
loss, nll = label_smoothed_cross_entropy(logits, torch.tensor([0]), eps_ls=0.2, pad_id=3)
assert math.isclose(nll, math.log(2)) and math.isclose(loss, 1.25 * math.log(2))
loss, _ = label_smoothed_cross_entropy(logits, torch.tensor([0]), eps_ls=0.2 * 4 / 3, pad_id=3)
assert math.isclose(loss, 4 / 3 * math.log(2))
third = -(torch.tensor([0.8, 0.1, 0.1, 0.0]) * logits[0]).sum()
assert math.isclose(third, 1.3 * math.log(2), rel_tol=1e-6)

# %% [markdown] tags=["exercise"]
# ```{exercise} Is the run finished?
# :label: reg-ex-floor
#
# Two training logs end at a smoothed loss of 1.60 nats per token: one of a model with $V = 600$, one with
# $V = 37{,}000$. What remains of each above the floor? What would the floors be with $\epsilon_{ls} = 0.2$?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Equation {eq}`reg-floor`; `entropy_floor(V, eps)`.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} reg-ex-floor
# :class: dropdown
#
# The floors are 0.96 and 1.38, so 0.64 and 0.22 nats remain. With 0.2 they are 1.78 and 2.60, and a loss of 1.60 would
# be impossible.
# ```

# %% tags=["hide-cell", "solution"]
floors = [entropy_floor(V, eps) for eps in (0.1, 0.2) for V in (600, 37_000)]
assert [round(value, 2) for value in floors] == [0.96, 1.38, 1.78, 2.60]

# %% [markdown]
# ## What to remember
#
# - Dropout sets entries to zero in training and enlarges the rest. The paper drops each sub-layer's output *before* the
#   residual sum, and the sums of embeddings and positions: 31 modules and 32 calls in the base model.
# - A held-out loss that rises while the training loss falls is overfitting, and dropout held it off here.
# - Label smoothing asks for $1 - \epsilon + \epsilon / V$ instead of 1. Its gradient is softmax minus target, and its
#   loss cannot fall below an entropy (equation {eq}`reg-floor`).
# - A model that fits its smoothed target exactly pays at most a factor $1/(1 - \epsilon)$ in perplexity. That it helps
#   BLEU is a finding of the paper, which our small task leaves open.
