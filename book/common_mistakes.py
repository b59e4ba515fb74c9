# %% [markdown]
# # Common mistakes: a clinic
#
# A Transformer with a mistake in it runs. Its shapes fit, its loss falls, and its translations are somewhat worse than
# they should be; or its loss is wonderful, and its translations are nonsense. In this chapter we make the famous
# mistakes, one by one. Each entry has the mistake and **the one test that catches it**, and often a symptom.

# %% tags=["remove-cell"]
import math

import torch
from torch import nn
from torch.nn import functional as F

from annotated_transformer import (
    ModelConfig, MultiHeadAttention, Tokenizer, Transformer, attention_weights, causal_mask, greedy_search,
    label_smoothed_cross_entropy, make_batch, noam_learning_rate, padding_mask, positional_encoding,
    record_attention, scaled_dot_product_attention)
# %% tags=["remove-cell"]
from lab.display import use_style
from lab.pictures import mistakes as mistakes_pictures
from annotated_transformer.model.stacks import EncoderLayer
from lab.training_loop import fit, summed_loss

use_style()

# %% [markdown]
# ## What a symptom looks like
#
# Let us first see how little the loss tells. We train a small model with the loop of [chapter 5.2](5_2_training.ipynb)
# to reverse sentences of 4 to 8 random symbols, once correctly and six times with a mistake. Every 50 steps we let it
# write 200 held-out sentences, and count how many come out wholly right.

# %% tags=["hide-cell"]
def look_everywhere(layer):
    """Take the causal mask out of a decoder layer."""
    attention = layer.self_attention
    attention.forward = lambda x, memory, mask=None, causal=False: MultiHeadAttention.forward(attention, x, memory, mask)

def share_weights(stack):
    stack.layers[1] = stack.layers[0]

def sentences(n, generator):
    """n sentences of 4 to 8 symbols, each with its reverse as translation."""
    lengths = torch.randint(4, 9, (n,), generator=generator).tolist()
    symbols = [torch.randint(3, 15, (length,), generator=generator).tolist() for length in lengths]
    return make_batch([(sentence, sentence[::-1]) for sentence in symbols])

# %% tags=["hide-cell"]
held_out = sentences(200, torch.Generator().manual_seed(1))
answers = [[token for token in row if token > 2] for row in held_out.target_out.tolist()]

def share_right(model):
    with torch.inference_mode():
        outputs = greedy_search(model, held_out.source)
    return sum(output == answer for output, answer in zip(outputs, answers)) / 200

def batches(mistake):
    generator = torch.Generator().manual_seed(0)
    while True:
        batch = sentences(32, generator)
        yield batch._replace(target_in=batch.target_out) if mistake == "no shift" else batch

# %% tags=["hide-cell"]
def symptoms(mistake):
    """The loss of each of 400 steps, and the share of sentences that are right after every 50."""
    torch.manual_seed(0)
    positions, shares = "none" if mistake == "no positions" else "sinusoidal", []
    model = Transformer(ModelConfig(15, N=2, d_model=32, d_ff=64, h=2, p_drop=0.0, positions=positions, initialization="scaled"))
    for layer in model.decoder.layers if mistake == "no causal mask" else ():
        look_everywhere(layer)
    for stack in (model.encoder, model.decoder) if mistake == "one layer, twice" else ():
        share_weights(stack)
    factor = {"rate 1,000 times too small": 1e-3, "rate 20 times too large": 20}.get(mistake, 1)
    losses = fit(model, batches(mistake), 400, lambda step: factor * 0.01 * min((100 / step) ** 0.5, step / 100),
                 lambda model, batch: summed_loss(model, batch, eps_ls=0.0), lambda model: shares.append(share_right(model)) or -len(shares), 50)
    return torch.tensor(losses), shares

# %% tags=["nbval-ignore-output"]
mistakes = ("none", "no causal mask", "no shift", "rate 1,000 times too small",
            "rate 20 times too large", "no positions", "one layer, twice")
patients = {mistake: symptoms(mistake) for mistake in mistakes}
print(f"{'mistake':28}loss at the end   held-out sentences right")
for mistake, (losses, shares) in patients.items():
    print(f"{mistake:28}{losses[-20:].mean():10.2f}   {shares[-1]:20.0%}")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two line charts over 400 steps for seven models. Left, training loss: without the shift it is near 0 from step 30 on; the right model, the one without causal mask and the one with one layer twice fall to nearly 0 by the end; without positions it stops near 1.2; with too large a rate it stays at 2.55, where guessing is, and with too small a rate it ends near 3.8. Right, held-out sentences right: only the right model and the one with one layer twice rise, to 70 to 100 percent; the others stay near 0."}, "figure": {"caption": "Training loss and held-out score of a right model and of six mistakes. Reversing 4 to 8 symbols, one run each.", "name": "fig-clinic-symptoms"}}
mistakes_pictures.clinic_symptoms(patients)
loss = {mistake: losses[-20:].mean() for mistake, (losses, _) in patients.items()}
assert loss["no shift"] < 0.05 and loss["no causal mask"] < 0.3 and loss["no positions"] > 0.8
assert all((max(shares[-3:]) > 0.5) == (name in ("none", "one layer, twice")) for name, (_, shares) in patients.items())

# %% [markdown]
# Without the shift the loss is *better* than the right model's, and without the causal mask it is as good; both write
# nonsense. A wrong rate or missing positions show in both curves. One layer used twice hardly shows in either: the two
# models lie between 70 and 100 percent, and which is ahead depends on the run. So we need tests. Each of ours measures
# a **deviation** that must be 0. `catches` runs it on both versions, and fails unless it accepts the right one *and*
# refuses the wrong one, since a test that has never failed has yet to be seen working.

# %%
def catches(deviation, wrong, right, within=1e-5):
    """Print what it finds; raise if it accepts `wrong` or refuses `right`."""
    healthy, ill = (float(deviation(version)) for version in (right, wrong))
    if not healthy <= within:
        raise RuntimeError(f"the test refuses the right version: {healthy}")
    if ill <= within:
        raise RuntimeError("the test let the mistake pass")
    print(f"caught: off by {ill:.4g} (the right version: at most {within:g})")

def small(**changes):
    torch.manual_seed(0)
    sizes = dict(vocab_size=20, N=2, d_model=16, d_ff=32, h=4, p_drop=0.1)
    return Transformer(ModelConfig(**{**sizes, **changes})).eval()

catches(lambda x: abs(x - 4), wrong=2 * 3, right=2 * 2)

# %% tags=["hide-cell"]
batch = make_batch([([5, 7, 4, 9], [8, 6, 11]), ([10, 4], [12, 5])])
model = small().requires_grad_(False)

# %% [markdown]
# ## Masks
#
# ### The mask upside down
#
# Half of all masks in use say True for *may look*, the other half for *hide*. `torch.nn.functional`'s attention is of
# the first kind, `torch.nn.MultiheadAttention` of the second. If we swap them, each position sees only the future.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Four grids of queries (rows) by keys (columns). Causal, right: the lower triangle with the diagonal is filled. Upside down: only the upper triangle without the diagonal is filled, and the last row is empty. Padding, right: the first three columns of five are filled. Rows for columns: the first three rows are filled."}, "figure": {"caption": "Two masks and their mistakes. Blue: the query (row) may look at the key (column). The padding mask is for three words and two tokens of padding.", "name": "fig-clinic-masks"}}
causal, padding = causal_mask(5)[0, 0], padding_mask(torch.tensor([[5, 7, 4, 0, 0]]), 0)[0, 0].expand(5, 5)
mistakes_pictures.clinic_masks(causal, padding)

# %% tags=["row-L0"]
def change_from_the_future(attention):
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[3:] += 1
    return (attention(x)[:3] - attention(changed)[:3]).abs().max()

catches(change_from_the_future,
        wrong=lambda x: scaled_dot_product_attention(x, x, x, ~causal),
        right=lambda x: scaled_dot_product_attention(x, x, x, causal))

# %% [markdown]
# **Symptom.** The last position may look nowhere, its softmax is 0/0, and the NaN spreads to every weight with the first
# update: *loss = nan*. Where minus infinity is replaced by $-10^9$, the row that sees nothing sees everything, and the loss
# is far too good, because every position sees what it is to predict.

# %% tags=["row-L0", "hide-cell"]
x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
upside_down = ~causal_mask(4)[0, 0]
assert scaled_dot_product_attention(x, x, x, upside_down).isnan().any(-1).tolist() == [False] * 3 + [True]
weights = (x @ x.T / math.sqrt(8)).masked_fill(~upside_down, -1e9).softmax(-1)
print("the last row's weights with -1e9:", weights[-1].tolist())
assert torch.equal(weights[-1], torch.full((4,), 1 / 4))

# %% [markdown]
# ### Rows for columns
#
# Padding is hidden as *keys*, the columns of the score matrix. If we hide the rows instead, real words still look at the
# padding.

# %%
def change_from_padding(attention):
    tokens = torch.tensor([[5, 7, 0]])
    x = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[:, 2] += 1
    one, other = (attention(inputs, tokens)[:, :2] for inputs in (x, changed))
    return (one - other).abs().max()

def columns(x, tokens):
    return scaled_dot_product_attention(x, x, x, padding_mask(tokens, 0)[:, 0])

def rows(x, tokens):
    mask = padding_mask(tokens, 0)[:, 0].mT
    return scaled_dot_product_attention(x, x, x, mask)
catches(change_from_padding, wrong=rows, right=columns)

# %% [markdown]
# ### One mask too few
#
# The source's padding must be hidden twice: in the encoder, and again in the encoder-decoder attention. Tests with a
# single sentence miss both. The law that finds them: **append padding, and everything stays as it was.**

# %%
def change_from_more_padding(logits):
    alone = make_batch([([5, 7], [8, 6])])
    padded = F.pad(alone.source, (0, 3), value=0)
    return (logits(alone.source, alone.target_in)
            - logits(padded, alone.target_in)).abs().max()

def forgetful(source, target_in):
    memory = model.encode(source)
    # no mask for the memory
    return model.logits(model.decode(target_in, memory, None))

catches(change_from_more_padding, wrong=forgetful, right=model)

# %% [markdown]
# ### The missing causal mask
#
# **Symptom.** As in the first figure: the model copies the answer, and when it writes there is none.

# %%
def change_from_later_words(logits):
    changed = batch.target_in.clone()
    changed[:, 2:] = 13
    return (logits(batch.source, batch.target_in)
            - logits(batch.source, changed))[:, :2].abs().max()

leaking = small()
for layer in leaking.decoder.layers:
    look_everywhere(layer)
catches(change_from_later_words, wrong=leaking, right=model)

# %% [markdown]
# ## Targets and loss
#
# ### The shift that was forgotten
#
# The decoder reads `bos y_1 y_2` and is asked for `y_1 y_2 eos`. If we give it the same tensor for both, it needs only to
# copy. We count the positions at which the decoder does not read next what it was asked for.

# %% tags=["row-L0"]
def positions_off(batch):
    is_word = batch.target_out[:, :-1] > 2  # neither eos nor padding
    return ((batch.target_in[:, 1:] != batch.target_out[:, :-1])[is_word].sum()
            + (batch.target_in[:, 0] != 1).sum())

catches(positions_off, wrong=batch._replace(target_in=batch.target_out),
        right=batch)

# %% [markdown]
# ### Padding that counts
#
# A loss over all positions rewards the model for predicting padding, which is easy, and depends on how we batch. Label
# smoothing makes it worse: it asks for a little probability *on every token* at positions that do not exist.

# %%
def loss_of_padding(loss_of):
    logits = torch.randn(1, 5, 20, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([[5, 7, 2, 0, 0]])
    shorter = loss_of(logits[:, :3], target[:, :3])
    return (loss_of(logits, target) - shorter).abs()

def careless(logits, target):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(),
                           label_smoothing=0.1, reduction="sum")

catches(loss_of_padding, wrong=careless,
        right=lambda *two: label_smoothed_cross_entropy(*two, 0.1, pad_id=0)[0])

# %% [markdown]
# ### A mean of means
#
# Two half batches are to give the gradient of the whole. If each divides by its own number of tokens, a short sentence's
# tokens weigh more than a long one's.

# %%
pairs = [([5, 7, 4, 9], [8, 6, 11, 7, 9, 13]), ([10, 4], [12])]
whole, halves = make_batch(pairs), [make_batch([pair]) for pair in pairs]

def gradient(batches, divisors):
    learner = small()
    for part, divisor in zip(batches, divisors):
        logits = learner(part.source, part.target_in)
        loss, _ = label_smoothed_cross_entropy(logits, part.target_out)
        (loss / divisor).backward()
    return learner.embedding.weight.grad
def off(divisors):
    of_whole = gradient([whole], [whole.n_tokens])
    return (gradient(halves, divisors) - of_whole).abs().max()
own = [2 * half.n_tokens for half in halves]
catches(off, wrong=own, right=[whole.n_tokens] * 2)

# %% [markdown]
# ### Gradients that never arrive
#
# With a `zero_grad` at the wrong place, gradients that we meant to accumulate are thrown away. **Symptom:** the loss
# moves as if the batch were smaller. The test counts: six losses with the gradient 1 must move a weight by 6.

# %%
def missing_gradients(zero_first):
    weight = nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([weight], lr=1.0)
    for n in range(1, 7):
        if zero_first:
            sgd.zero_grad()  # forgets what was accumulated
        weight.sum().backward()
        if n % 3 == 0:
            sgd.step()
            sgd.zero_grad()
    return weight.item() + 6

catches(missing_gradients, wrong=True, right=False)

# %% [markdown]
# ## The rate
#
# Steps are counted from 1: a schedule called with 0 wastes the first batch, or fails at $0^{-0.5}$. `LambdaLR`
# *multiplies* the optimizer's own rate, so with `lr=1e-4` there the rate is ten thousand times too small, and the model
# hardly learns; the base rate must be 1. And a schedule that is called once per epoch has 4,000 *epochs* of warm-up
# ahead
# (below, an epoch has 100 updates).

# %% tags=["hide-cell"]
def error_of_the_rate(rates):  # relative, the largest of three steps
    return max(abs(rate / noam_learning_rate(step, 512, 4000) - 1) for step, rate in enumerate(rates[:3], start=1))

# %% tags=["hide-cell"]
def lambda_lr(base=1.0, steps_per_call=1):
    adam = torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=base)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        adam, lambda n: noam_learning_rate(n // steps_per_call + 1, 512, 4000))
    rates = []
    for _ in range(300):
        rates.append(adam.param_groups[0]["lr"])
        adam.step()
        schedule.step()
    return rates

# %%
schedules = {"right": lambda_lr(), "one step late": [0.0, *lambda_lr()[:-1]],
             "base rate 1e-4": lambda_lr(base=1e-4),
             "once per epoch": lambda_lr(steps_per_call=100)}
for name in list(schedules)[1:]:
    print(f"{name:16}", end="")
    catches(error_of_the_rate, wrong=schedules[name], right=schedules["right"])

# %% tags=["hide-input"] mystnb={"image": {"alt": "Line chart with logarithmic axes of the learning rate over the first 300 updates. The right schedule rises as a straight line from 1.7e-7 to 5e-5. One step late is the same line one step later. Multiplied by 1e-4 it runs parallel, four decades lower. Once per epoch it stays at 1.7e-7 for 100 updates and has three steps of a staircase."}, "figure": {"caption": "The first 300 updates of the paper's schedule and of three mistakes.", "name": "fig-clinic-rates"}}
mistakes_pictures.clinic_rates(schedules)

# %% [markdown]
# ## The layers
#
# ### Pre-norm sold as post-norm
#
# The most famous annotated implementation {cite}`rush2018annotated` says post-norm in its text, and computes
# $x + \mathrm{Sublayer}(\mathrm{LayerNorm}(x))$; a comment in the code admits it. As initialised, the *output* of a
# post-norm layer has variance 1 at every position.

# %%
def variance_off(layer):
    torch.manual_seed(0)
    x = 3 * torch.randn(2, 5, 16) + 1
    return (layer(x, None).var(-1, unbiased=False) - 1).abs().max()

catches(variance_off, within=0.01,
        wrong=small(norm="pre").encoder.layers[0],
        right=small(norm="post").encoder.layers[0])

# %% [markdown]
# ### One layer six times, and a copy for a tie
#
# `[layer] * 6` has one set of weights, and trains. "Weights are tied", on the other hand, is a claim about storage: a copy
# at initialisation is equal until the first update. For both we count, or change, the weights.

# %%
def missing_weights(layers):
    one, together = (len(list(x.parameters())) for x in (layers[0], layers))
    return len(layers) * one - together
catches(missing_weights,
        wrong=nn.ModuleList([EncoderLayer(model.config)] * 6),
        right=nn.ModuleList(EncoderLayer(model.config) for _ in range(6)))
def apart_after_an_update(copied):
    embedding, softmax = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
    twin = nn.Parameter(embedding.weight.detach().clone())
    softmax.weight = twin if copied else embedding.weight
    with torch.no_grad():
        embedding.weight[3] += 1
    return (embedding.weight - softmax.weight).abs().max()
catches(apart_after_an_update, wrong=True, right=False)

# %% [markdown]
# ### Heads from the wrong reshape
#
# `(L, h d_k)` becomes `(L, h, d_k)` and *then* heads and positions change places. A `view(h, L, d_k)` has the right shape
# too, and mixes the positions: mark position 2, and the mark turns up elsewhere.

# %% tags=["row-L4"]
def right_split(x):
    return x.view(5, 3, 4).transpose(0, 1)

def wrong_split(x):
    return x.view(3, 5, 4)

def strayed(split):
    position = torch.arange(5.0)[:, None]  # each entry says its own
    heads = split(position.expand(5, 12).contiguous())
    return (heads - torch.arange(5.0)[:, None]).abs().max()

catches(strayed, wrong=wrong_split, right=right_split)

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two rows of three grids, one grid per head, each with five rows for positions and four columns. In the upper row, right, row p of every head holds the number p. In the lower row, wrong, head 1 holds the positions 0, 0, 0, 1, 1, head 2 holds 1, 2, 2, 2, 3 and head 3 holds 3, 3, 4, 4, 4."}, "figure": {"caption": "From which position each entry of a head comes: above `view(5, 3, 4).transpose(0, 1)`, below `view(3, 5, 4)`.", "name": "fig-clinic-heads"}}
mistakes_pictures.clinic_heads(right_split, wrong_split)

# %% [markdown]
# ### No $\sqrt{d_k}$
#
# The test is the variance of the scores, which should be 1. **Symptom.** With wide heads the weights are nearly one-hot
# from the start, and their gradient is nearly zero:

# %% tags=["row-X12"]
def variance_of_scores_off(score):
    generator = torch.Generator().manual_seed(0)
    pairs = (torch.randn(2, 2000, d_k, generator=generator)
             for d_k in (16, 64, 256))
    return max(abs(score(q, k).var().item() - 1) for q, k in pairs)

catches(variance_of_scores_off, within=0.15,
        wrong=lambda q, k: (q * k).sum(-1),
        right=lambda q, k: (q * k).sum(-1) / math.sqrt(q.size(-1)))

# %% tags=["hide-input"] mystnb={"image": {"alt": "Line chart with a logarithmic horizontal axis: the mean largest weight among 20 keys against d_k from 4 to 1024. With the scale it stays level at about 0.2. Without it, it climbs from about 0.4 to above 0.95."}, "figure": {"caption": "The largest of 20 attention weights, the mean over 500 random queries.", "name": "fig-clinic-scale"}}
largest = mistakes_pictures.clinic_scale(attention_weights)
assert max(largest["with the scale"]) < 0.4 and largest["without"][-1] > 0.9

# %% [markdown]
# ### A wrong positional formula
#
# The exponent is $2i / d_{\mathrm{model}}$ where $2i$ is the *column*. Code that doubles the column again still passes the
# test that a shift is some rotation; the printed wavelengths catch it ([section 3.5](3_5_positional_encoding.ipynb)). Here
# we compare the slowest sine.

# %%
def slowest_sine_off(exponent):
    ours = positional_encoding(2, 16)[1, 14].item()
    return abs(math.sin(10000 ** -exponent(14, 16)) / ours - 1)

catches(slowest_sine_off, wrong=lambda column, d: 2 * column / d,
        right=lambda column, d: column / d)

# %% [markdown]
# ### Dropout, twice
#
# The attention drops its output, and the layer drops it again. With $p = 0.1$ some 19 percent are gone. (A layer norm of
# one's own, with Bessel's correction, is in [section 3.1](3_1_stacks.ipynb).)

# %%
def share_kept_off(dropout):
    torch.manual_seed(0)
    return abs((dropout(torch.ones(100_000)) != 0).double().mean().item() - 0.9)

drop = nn.Dropout(0.1)
catches(share_kept_off, wrong=lambda x: drop(drop(x)), right=drop, within=0.01)

# %% [markdown]
# ## Decoding
#
# ### Left in training mode
#
# Dropout stays on while translating. **Symptom:** the same sentence, two translations.

# %%
def two_runs_differ(model):
    one, other = (model(batch.source, batch.target_in) for _ in range(2))
    return (one - other).abs().max()

catches(two_runs_differ, wrong=small().train(), right=small())

# %% [markdown]
# ### A beam that forgets to reorder
#
# When a beam drops one hypothesis and continues another twice, the cached keys and values must follow their hypothesis.
# If we forget, everything runs, and each hypothesis goes on with another's past. **Symptom:** a beam of 4 is worse than
# greedy search. The law: a step must give what one forward pass over the whole prefix gives.

# %%
def step_against_forward(reorder):
    source, state = batch.source[:1], model.start(batch.source[:1])
    model.step(torch.tensor([[1]]), state)
    state.reorder(torch.tensor([[0, 0]]))  # two hypotheses, both from bos
    model.step(torch.tensor([[8, 6]]), state)
    if reorder:
        state.reorder(torch.tensor([[1, 0]]))  # (1, 6) is the better one
    steps = model.step(torch.tensor([[11, 12]]), state)[0]
    prefixes = torch.tensor([[1, 6, 11], [1, 8, 12]])
    return (steps - model(source.expand(2, -1), prefixes)[:, -1]).abs().max()

catches(step_against_forward, wrong=False, right=True)

# %% [markdown]
# ### The beam that drops the best
#
# A beam search must remember hypotheses that have ended. If it only keeps the live ones, it may lose the best. Our judge is
# exhaustive search over a toy language of two words, `a` (1) and `b` (2).

# %% tags=["hide-cell"]
log_p = torch.tensor([  # log P(next | last): rows and columns are eos, a, b
    [0.0, 0.0, 0.0],
    [0.1, 0.5, 0.4],
    [0.9, 0.05, 0.05],
]).clamp_min(1e-9).log()

def probability(words):
    steps = zip([1, *words], [*words, 0])
    return sum(log_p[last, following].item() for last, following in steps)

def everything(n):
    return [[]] if n == 0 else [[]] + [[w, *rest] for w in (1, 2) for rest in everything(n - 1)]

# %%
best = max(everything(5), key=probability)
print("the best is", best, f"{math.exp(probability(best)):.2f}")  # 0.4 x 0.9

def prefix(words):  # log p without the end
    return probability(words) - log_p[words[-1], 0].item()

def lost(forget, width=2, length=5):
    live, ended = [[]], []
    for _ in range(length):
        ended += [] if forget else live
        longer = [[*words, w] for words in live for w in (1, 2)]
        live = sorted(longer, key=prefix, reverse=True)[:width]
    return probability(best) - max(map(probability, ended + live))

catches(lost, wrong=True, right=False)

# %% [markdown]
# ### Averaging that destroys
#
# `state_dict()` hands out the model's own tensors. `total += weights` on the first of them changes that model.

# %%
def inputs_changed(mean):
    one, two = {"w": torch.tensor([1.0, 3.0])}, {"w": torch.tensor([3.0, 7.0])}
    off = (mean([one, two])["w"] - torch.tensor([2.0, 5.0])).abs().max()
    return off + (one["w"] - torch.tensor([1.0, 3.0])).abs().max()

def destructive(models):
    total = models[0]
    for other in models[1:]:
        total["w"] += other["w"]
    return {"w": total["w"] / len(models)}

catches(inputs_changed, wrong=destructive,
        right=lambda models: {"w": sum(m["w"] for m in models) / len(models)})

# %% [markdown]
# ## Data and pictures
#
# ### A vocabulary that has seen the test
#
# If we train the tokenizer on the text of the test set too, its words get tokens of their own, and the score is a little
# too good. We count the tokens that are a word of the test set alone.

# %%
train_text = ["the cat sees the dog", "a dog sees a cat",
              "the cat is here"] * 40
test_text = ["the zyzzyva sees a cat"] * 40

def words_of_the_test(tokenizer):
    pieces = tokenizer.pieces(tokenizer.encode("zyzzyva"))
    return sum(piece.strip("▁") == "zyzzyva" for piece in pieces)

catches(words_of_the_test,
        wrong=Tokenizer.train(train_text + test_text, vocab_size=300),
        right=Tokenizer.train(train_text, vocab_size=300))

# %% [markdown]
# ### A plot with its axes exchanged
#
# Rows are queries and sum to 1; columns are keys. A picture of the transpose looks as plausible.

# %%
with record_attention(model) as recorded:
    model(batch.source, batch.target_in)
cross = recorded["decoder.layers.0.cross_attention"][0, 0]

def row_sums_off(image):
    return (image.sum(dim=1) - 1).abs().max()

catches(row_sums_off, wrong=cross.T, right=cross)

# %% [markdown]
# ## Five more, in a line each
#
# | mistake | symptom | the test |
# |---|---|---|
# | $-10^9$ as a mask in float16, whose largest number is 65,504 | an error, or NaN in rows that see nothing | one forward pass in the type that you train in |
# | a tokenizer at inference that is not the one of training | fluent nonsense | store it with the weights, compare its digest |
# | BLEU on tokenized text beside BLEU on plain text | a gain or loss of a point from nowhere | the two signatures are equal |
# | `ignore_index` with the default `reduction="mean"`, then a mean over batches | short sentences weigh too much | two halves equal the whole |
# | processes that read the same pairs, or shares of unequal tokens divided alike | slower learning than one process | the sum of gradients is that of the whole batch |
#
# ## Which test finds what
#
# | law | finds |
# |---|---|
# | a later token changes no earlier output | inverted and missing causal masks, targets that leak |
# | appended padding changes nothing | rows for columns, a forgotten mask, padding in the loss |
# | two halves equal the whole | means of means, gradients thrown away, forgotten `zero_grad` |
# | outputs of a sub-layer are normalised | pre-norm for post-norm, a home-made norm |
# | the count of parameters is Table 3's | shared layers, a tie that is not one, missing or extra biases |
# | scores have variance 1 | a missing, doubled or misplaced scale |
# | one forward pass equals step after step | every mistake in a cache, in positions, in masks while decoding |
# | a wide beam finds what exhaustive search finds | lost hypotheses, a penalty upside down |
# | the same function in another library, with copied weights | nearly all of the above |
#
# The package's own tests hold these laws, and `tests/mutants.txt` lists one-line departures, every one of which they must
# notice.
#
# ## Exercises

# %% [markdown] tags=["exercise"]
# ```{exercise} A mask for both
# :label: clinic-both
#
# The decoder's self-attention has no padding mask in this package. Why does every test above accept that?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
# Where does padding stand, and what may a real position see?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} clinic-both
# :class: dropdown
# Padding stands on the right. A real position sees only itself and what is before it, so no padding, and what the
# padded positions compute is left out of the loss.
# ```

# %% tags=["hide-cell", "solution"]
padded = F.pad(batch.target_in, (0, 2), value=0)
assert torch.allclose(model(batch.source, padded)[:, :4], model(batch.source, batch.target_in), atol=1e-6)

# %% [markdown] tags=["exercise"]
# ```{exercise} Your own test
# :label: clinic-own
#
# Embeddings are to be multiplied by $\sqrt{d_{\mathrm{model}}}$. Write a test that finds a model which forgets it, and
# run it with `catches`.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
# `model.embed(tokens)` minus the positions, against rows of `model.embedding.weight`.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} clinic-own
# :class: dropdown
# The folded cell has one way to do it.
# ```

# %% tags=["hide-cell", "solution"]
def scale_off(model):
    tokens = torch.tensor([[5, 7, 4]])
    embedded = model.embed(tokens) - positional_encoding(3, 16)
    return (embedded - model.embedding.weight[tokens] * 4).abs().max()  # the root of 16

unscaled = small()
unscaled.embedding.forward = lambda tokens: F.embedding(tokens, unscaled.embedding.weight)
catches(scale_off, wrong=unscaled, right=small())

# %% [markdown] tags=["exercise"]
# ```{exercise} The penalty upside down
# :label: clinic-penalty
#
# A search *multiplies* the log-probability of an output of $n$ tokens by $((5 + n)/6)^\alpha$ where it should divide.
# Does it prefer longer or shorter outputs than the right one? Write the test.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
# Log-probabilities are negative.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} clinic-penalty
# :class: dropdown
# Shorter: the factor makes the negative score of a long output more negative still, where dividing makes it less so.
# ```

# %% tags=["hide-cell", "solution"]
def loss_of_a_long_output(score):
    return max(0, score(-4.0, 5) - score(-4.0, 20))

catches(loss_of_a_long_output,
        wrong=lambda log_p, n: log_p * ((5 + n) / 6) ** 0.6,
        right=lambda log_p, n: log_p / ((5 + n) / 6) ** 0.6)

# %% [markdown] tags=["exercise"]
# ```{exercise} A test that cannot fail
# :label: clinic-vacuous
#
# What is wrong with this test of the causal mask: run the model twice on the same input and compare the first two
# positions?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
# Which mistake would it refuse? Try `catches`.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} clinic-vacuous
# :class: dropdown
# It accepts every deterministic model. `catches` says so: it raises when the mistake passes. A test has to change what
# must not matter.
# ```

# %% tags=["hide-cell", "solution"]
try:
    catches(two_runs_differ, wrong=leaking, right=model)
except RuntimeError as error:
    print(error)
    assert "let the mistake pass" in str(error)
else:
    raise AssertionError("a test that cannot fail was taken for one that can")

# %% [markdown]
# ## What to remember
#
# - Mistakes in a Transformer are quiet. A loss that is too good is one of the loudest symptoms there is.
# - A good test changes what must not matter (the future, the padding, the batch) and measures whether anything moves.
# - See every test fail once.
