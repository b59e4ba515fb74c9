# %% [markdown]
# # 1 Introduction: forty-two sentences by heart
#
# *Section 1 of the paper {cite}`vaswani2017attention`: what it set out to change.* Then we train the program of
# [chapter 0](0_one_hour.ipynb) on 42 pairs of sentences, in a loop that you can retype, and watch what it learns, what it
# does not, and how a careless line deceives us.

# %% tags=["remove-cell"]
import math
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer import Tokenizer, bleu, label_smoothed_cross_entropy, make_batch, noam_learning_rate
from lab.display import use_style

use_style()

# %% [markdown]
# ## What the paper set out to change
#
# A translator reads one sequence and writes another. In 2017 the established systems for this were **recurrent**: one
# network goes from word to word and carries a state along {cite}`sutskever2014sequence,cho2014learning`,
#
# $$ h_t = f(h_{t-1}, x_t). $$
#
# The state at word $t$ has to wait for the state at word $t - 1$, so a sentence of $n$ words takes $n$ steps, however
# many arithmetic units the machine has. This is the complaint of the paper's introduction. **Convolutional** systems
# {cite}`gehring2017convolutional` compute all positions at once, but each layer sees only a few neighbours, and
# distant words meet only after several layers.
#
# **Attention** existed as an addition to a recurrent network {cite}`bahdanau2015neural`: for each output word, a
# weighted mean over all input words, with weights that depend on their content. The paper keeps this part and drops
# the network to which it was added. In the words of its abstract, the Transformer is
#
# > based solely on attention mechanisms, dispensing with recurrence and convolutions entirely.
#
# Now any two positions are one step apart, and a whole layer is computed at once. The price is that $n$ words need
# $n^2$ weights, and that a mean blurs what it averages; the paper answers the blur with several heads. The gain is in
# training, where all target positions are computed together. When it *writes*, a Transformer still goes word by word.
#
# ## Sentences become arrays
#
# We use 42 pairs that were written for this chapter, and keep five others apart, all of English words from the 42. A vocabulary
# of whole words cannot write a new word; one of letters makes long sequences. The paper goes between and learns frequent
# **pieces** from the text, by byte-pair encoding {cite}`sennrich2016neural` ([5.1](5_1_data_and_batching.ipynb)). With 1,000
# pieces many of our words stay whole. `make_batch` fills the shorter sentences up with **padding** and shifts the target:

# %%
lines = Path("first_pairs.tsv").read_text(encoding="utf-8").splitlines()
pairs = [tuple(line.split("\t")) for line in lines]
learned, unseen = pairs[:42], pairs[42:]
texts = [text for pair in learned for text in pair]
tokenizer = Tokenizer.train(texts, vocab_size=1000)
batch, held_out = (make_batch([tuple(map(tokenizer.encode, pair)) for pair in some])
                   for some in (learned, unseen))

for name in ("source", "target_in", "target_out"):
    tokens = getattr(batch, name)
    third = [i for i in tokens[2].tolist() if i]  # without padding
    print(f"{name:10} {tuple(tokens.shape)}  ", *tokenizer.pieces(third))

# %% tags=["hide-cell"]
def words_of(some):
    return {word.strip(".?") for source, _ in some for word in source.split()}

assert len(learned) == 42 and len(unseen) == 5 and not set(unseen) & set(learned)
assert words_of(unseen) <= words_of(learned)
assert tokenizer.decode(tokenizer.encode("Ein 🦔 grüßt: «привет»!")) == "Ein 🦔 grüßt: «привет»!"

# %% [markdown]
# `▁` is a space; `<s>` and `</s>` mark the beginning and the end. The decoder reads `target_in` and is to predict
# `target_out`, the same sentence one place further left: at each position it has read everything *before* the token that
# we ask for.
#
# ## The model learns
#
# A translation model gives, at each position, a distribution of the next token. The probability of a whole target $y$,
# given the source $x$, is a product over its tokens, of which the causal mask lets one pass compute all factors:
#
# $$ P(y \mid x) = \prod_{t=1}^{T} P(y_t \mid y_1, \dots, y_{t-1}, x) $$ (factorisation)
#
# The **loss** is the mean of $-\ln P$ per token, in **nats**, with label smoothing: the right token should get 0.9, and 0.1
# is spread over the vocabulary ([5.4](5_4_regularization.ipynb)). The **nll** (negative log-likelihood), which we report
# beside it, is without. A guess among 1,000 tokens would cost $\ln 1000 = 6.91$. Here is the whole training, with a warm-up
# of 40 steps instead of the paper's 4,000 and, since so short a warm-up would make the rate too high, a fifth of its
# formula ([5.3](5_3_optimizer.ipynb)).

# %% tags=["hide-cell"]
from lab.listing import Transformer

@torch.no_grad()
def nll(model, batch):
    scores = model.eval()(batch.source, batch.target_in).flatten(0, 1)
    model.train()
    return F.cross_entropy(scores, batch.target_out.flatten(), ignore_index=0).item()

# %%
def train(batch, steps):
    torch.manual_seed(1)
    model, log = Transformer(1000, N=2, d_model=128, d_ff=256, h=4), []
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    for step in range(1, steps + 1):
        adam.param_groups[0]["lr"] = 0.2 * noam_learning_rate(step, 128, 40)
        scores = model(batch.source, batch.target_in).flatten(0, 1)
        loss = F.cross_entropy(scores, batch.target_out.flatten(),
                               ignore_index=0, label_smoothing=0.1)
        adam.zero_grad()
        loss.backward()
        adam.step()
        log.append((loss.item(), nll(model, batch), nll(model, held_out)))
    return model, log
print(f"the loss of the first step: {train(batch, steps=1)[1][0][0]:.2f}")

# %% tags=["nbval-ignore-output"]
model, log = train(batch, steps=160)
print("after 160 steps: loss {:.2f}, nll {:.2f}, unseen {:.2f}".format(*log[-1]))
assert log[-1][1] < 0.15 and log[-1][2] > 1.5

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"image": {"alt": "Line chart of nats per token over 160 steps. The loss on the 42 sentences falls from above 8 to a dashed line near 1 by step 100, and their nll to near 0; the nll of the five unseen sentences falls to about 2.2 and stays above it."}, "figure": {"caption": "Training on 42 pairs: the loss on them comes close to its floor, while five unseen sentences stay improbable.", "name": "fig-intro-training"}}
right, wrong = 0.9 + 0.1 / 1000, 0.1 / 1000
floor = -right * math.log(right) - 999 * wrong * math.log(wrong)
figure, ax = plt.subplots(figsize=(5.2, 2.8), layout="constrained")
for values, label, style in zip(zip(*log), ("loss, the 42", "nll, the 42", "nll, five unseen"), ("-", "-.", "s-")):
    ax.plot(range(1, 161), values, style, markersize=4, markevery=20, label=label)
ax.axhline(floor, color="black", linestyle="--", linewidth=1, label=f"smallest loss, {floor:.2f}")
ax.set(xlabel="step", ylabel="nats per token", ylim=(0, None))
ax.legend(frameon=False)
plt.show()

# %% tags=["remove-cell"]
assert floor < log[-1][0] < floor + 0.2
model.eval()
scores = model(batch.source, batch.target_in)
loss, its_nll = label_smoothed_cross_entropy(scores, batch.target_out, eps_ls=0.1, pad_id=0)
by_torch = F.cross_entropy(scores.flatten(0, 1), batch.target_out.flatten(), ignore_index=0, label_smoothing=0.1)
assert_close(loss / batch.n_tokens, by_torch)
assert math.isclose(its_nll / batch.n_tokens, nll(model, batch), rel_tol=1e-3)

# %% [markdown]
# The loss has a floor above zero. It is smallest when the model predicts exactly the smoothed target, and the entropy of
# that target is 1.01 nats ({ref}`exercise-floor`). On the 42 sentences our model comes close to it. The nll of the five
# others stops falling at about 2.2 nats and rises a little. What does that mean for translations?
#
# ## The model translates
#
# We take the most probable token, append it to the target, and go on until `</s>` (**greedy search**). **BLEU**
# {cite}`papineni2002bleu` compares the result with a human translation, the **reference**: it counts shared words, pairs,
# triples and fours of words, with a penalty for brevity. The reference itself gets 100.

# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def translate(model, source, longest=25):
    target = torch.ones(len(source), 1, dtype=torch.long)  # <s>
    for _ in range(longest):
        best = model.eval()(source, target)[:, -1:].argmax(dim=-1)
        target = torch.cat([target, best], dim=1)
    rows = [[*row, 2] for row in target[:, 1:].tolist()]  # 2 is </s>
    return [tokenizer.decode(row[: row.index(2)]) for row in rows]

found = {name: bleu(translate(model, part.source), [target for _, target in some])
         for name, some, part in (("learned", learned, batch), ("unseen", unseen, held_out))}
print({name: round(score.score) for name, score in found.items()})
for (source, _), translation in zip(unseen, translate(model, held_out.source)):
    print(f"{source:36} {translation}")

# %% tags=["remove-cell"]
assert found["unseen"].score < 75 < 95 < found["learned"].score
assert found["learned"].signature.startswith("nrefs:1")

# %% [markdown]
# Our model has learned 42 sentences by heart, and answers a new sentence with the nearest one that it has memorised. The
# falling loss gave us no warning; the curve of the held-out sentences did. To learn to translate, a model needs more
# sentences than it can memorise: the book's own learned from some 190,000 pairs. (A score is comparable only with its
# *signature*, the settings of the count; [6.1](6_1_results.ipynb) says how.)
#
# The model is also surer than the 0.9 that label smoothing asks for. It learned with dropout on and writes with it off.
# Is that the reason?

# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def sureness(model):
    p = model(batch.source, batch.target_in).softmax(dim=-1)
    return p.gather(2, batch.target_out[..., None])[..., 0][batch.target_out != 0].mean().item()

sure = {mode: sureness(model.train(mode == "on")) for mode in ("on", "off")}
print(*(f"dropout {mode}: the right token gets {p:.3f}" for mode, p in sure.items()), sep="\n")
assert sure["on"] < 0.92 < sure["off"]

# %% [markdown]
# It is: with dropout on, as in training, the right token gets about the 0.9 that was asked for.
#
# ## Training without the shift
#
# Suppose we forget the shift, and let the decoder read at each position the very token that it is to predict.

# %% tags=["nbval-ignore-output"]
careless = batch._replace(target_in=batch.target_out)  # the mistake
copier, its_log = train(careless, steps=50)
written = translate(copier, batch.source)
n_right = sum(ours == target for ours, (_, target) in zip(written, learned))
print(f"nll after 50 steps: {its_log[-1][1]:.2f} (the right model: {log[49][1]:.2f})")
print(f"translations that are right: {n_right} of 42")
assert its_log[-1][1] < 0.5 * log[49][1] and n_right <= 2

# %% [markdown]
# The loss is splendid, but the model has learned to copy its input, and with no answer to copy it writes nonsense. When
# your own model does the same, look at the shift and at the causal mask first ([common
# mistakes](common_mistakes.ipynb)).
#
# ```{admonition} Where this is
# :class: dropdown
#
# The same in the package, with files, checkpoints and a log: `annotated_transformer.train`, `Translator`, `bleu`
# ([reference](api.md)). The [map of the paper](https://github.com/annotated-transformer/annotated-transformer/blob/main/book/paper_map.md) lists the tests of each.
# ```

# %% [markdown]
# ## Exercises

# %% [markdown] tags=["exercise"]
# ```{exercise} The floor
# :label: exercise-floor
#
# Derive the floor of the loss, 1.01 nats, and the nll that goes with it. What are they for the paper's vocabulary of
# 37,000 tokens? Can a model have a smaller nll, or a smaller loss?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
# Cross-entropy $-\sum_v q_v \ln p_v$ is smallest at $p = q$, where it is the entropy of $q$. Write down $q$.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} exercise-floor
# :class: dropdown
# $q$ is $0.9 + 0.1/V$ at the right token and $0.1/V$ at the other $V - 1$. With $V = 1000$ its entropy is $1.0148$ nats
# and the nll $-\ln 0.9001 = 0.1052$; with $V = 37{,}000$ they are $1.3769$ and $0.1054$. A smaller loss is impossible.
# A smaller nll is possible, at the price of a larger loss: a model that gives the right token 0.99 is *punished*. That
# is why the paper says that label smoothing hurts perplexity.
# ```

# %% [markdown] tags=["exercise"]
# ```{exercise} Leave out the mask
# :label: exercise-mask
#
# Give the listing a `pad` that no token has, `model(batch.source, batch.target_in, pad=-1)`. For which sentences do the
# scores change? Would the loss of a *training* run tell you about this mistake?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} exercise-mask
# :class: dropdown
# For all but the longest, because their words now look at padding. Training would still succeed, since the model learns
# to live with it; but a translation would depend on what it is batched with.
# ```

# %% tags=["hide-cell", "solution"]
for V, entropy, nats in ((1000, 1.0148, 0.1052), (37_000, 1.3769, 0.1054)):
    right, wrong = 0.9 + 0.1 / V, 0.1 / V
    assert round(-right * math.log(right) - (V - 1) * wrong * math.log(wrong), 4) == entropy
    assert round(-math.log(right), 4) == nats
with torch.no_grad():
    model.eval()
    masked, unmasked = (model(batch.source, batch.target_in, pad=pad) for pad in (0, -1))
changed = (masked - unmasked).abs().amax(dim=(1, 2)) > 1e-4
assert changed.tolist() == (batch.source[:, -1] == 0).tolist()
