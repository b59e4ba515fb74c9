# %% [markdown]
# # Common mistakes: a clinic
#
# A Transformer with a mistake in it runs. Its shapes fit, its loss falls, and its translations are somewhat worse than
# they should be; or its loss is wonderful, and its translations are nonsense. This chapter runs the famous mistakes,
# one by one. Each entry has the mistake, the symptom, and **the one test that catches it**: a few lines that pass with
# the right version and fail with the wrong one. Take the tests home.

# %%
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer import (
    ModelConfig, MultiHeadAttention, Transformer, causal_mask, label_smoothed_cross_entropy, make_batch,
    scaled_dot_product_attention)

# %% [markdown]
# The tool of this chapter: `catches` runs a test on both versions and fails unless it accepts the right one *and*
# refuses the wrong one. A test that has never failed has not been seen to work.

# %%
def catches(test, wrong, right):
    """The first line of what `test` has against `wrong`; an error if it accepts it, or refuses `right`."""
    test(right)
    try:
        test(wrong)
    except AssertionError as error:
        reason = str(error).splitlines()[0]
        print("caught:", "values differ" if "not close" in reason else reason)
        return
    raise RuntimeError("the test let the mistake pass")

# %% [markdown]
# The patients: a small Transformer, ready to decode, and a batch of two pairs of ids.

# %%
def small(**changes):
    torch.manual_seed(0)
    sizes = dict(vocab_size=20, N=2, d_model=16, d_ff=32, h=4, p_drop=0.1)
    return Transformer(ModelConfig(**{**sizes, **changes})).eval()

batch = make_batch([([5, 7, 4, 9], [8, 6, 11]), ([10, 4], [12, 5])])
model = small()

# %% [markdown]
# ## Masks
#
# ### The mask upside down
#
# Half of the world's masks say True for *may look*, the other half for *hide*. `torch.nn.functional`'s attention is of
# the first kind, `torch.nn.MultiheadAttention` of the second. Swap them, and each position sees only the future.

# %% tags=["row-L0"]
def sees_no_future(attention):
    torch.manual_seed(0)
    x = torch.randn(5, 8)
    changed = x.clone()
    changed[3:] += 1
    out, out_changed = attention(x), attention(changed)
    assert not out.isnan().any(), "there is NaN in the output"
    assert torch.equal(out[:3], out_changed[:3]), "a later token has changed an earlier output"

mask = causal_mask(5)[0, 0]
catches(sees_no_future,
        wrong=lambda x: scaled_dot_product_attention(x, x, x, ~mask),
        right=lambda x: scaled_dot_product_attention(x, x, x, mask))

# %% [markdown]
# **Symptom.** The last position may look at nothing, its softmax is 0/0, and the NaN spreads to every weight with the
# first update: *loss = nan*. Where minus infinity is replaced by $-10^9$, there is no NaN and the loss is far too good
# instead, because every position sees what it is to predict. (`-1e9` turns the first symptom into the second. That is
# not a cure.)

# %% tags=["row-L0"]
x = torch.randn(4, 8)
upside_down = ~causal_mask(4)[0, 0]
with_infinity = scaled_dot_product_attention(x, x, x, upside_down)
scores = (x @ x.T / math.sqrt(8)).masked_fill(~upside_down, -1e9)
with_a_large_number = scores.softmax(-1)
assert with_infinity[-1].isnan().all()
assert_close(with_a_large_number[-1], torch.full((4,), 1 / 4))  # the row that sees nothing sees everything
print(with_infinity.isnan().any(-1).tolist())

# %% [markdown]
# ### Rows for columns
#
# Padding is hidden as *keys*, the columns of the score matrix. Hide the rows instead, and padding is still looked at,
# while the padded queries see nothing.

# %%
from annotated_transformer import padding_mask

def ignores_padding(attention):
    torch.manual_seed(0)
    tokens, x = torch.tensor([[5, 7, 0]]), torch.randn(1, 3, 8)
    changed = x.clone()
    changed[:, 2] += 1
    same = torch.equal(attention(x, tokens)[:, :2], attention(changed, tokens)[:, :2])
    assert same, "what stands at the padding changes a real position"

# %%
def columns(x, tokens):
    return scaled_dot_product_attention(x, x, x, padding_mask(tokens, 0)[:, 0])

def rows(x, tokens):
    return scaled_dot_product_attention(x, x, x, padding_mask(tokens, 0)[:, 0].mT)

catches(ignores_padding, wrong=rows, right=columns)

# %% [markdown]
# ### One mask too few
#
# The source's padding must be hidden twice: in the encoder, and again in the encoder-decoder attention. The second is
# often forgotten, and no test with a single sentence sees it. The law that finds both: **append padding, and nothing
# may change.**

# %%
def padding_changes_nothing(logits):
    alone = make_batch([([5, 7], [8, 6])])
    padded = F.pad(alone.source, (0, 3), value=0)
    assert_close(logits(alone.source, alone.target_in), logits(padded, alone.target_in))

def forgetful(source, target_in):
    memory = model.encode(source)
    return model.logits(model.decode(target_in, memory, None))  # no mask for the memory

catches(padding_changes_nothing, wrong=forgetful, right=model)

# %% [markdown]
# ### The missing causal mask
#
# **Symptom.** Training accuracy goes to 100 percent, and the translations are rubbish: the model copies the answer, and
# when it writes there is none.

# %%
def the_future_is_invisible(logits):
    changed = batch.target_in.clone()
    changed[:, 2:] = 13
    one, other = logits(batch.source, batch.target_in), logits(batch.source, changed)
    assert torch.equal(one[:, :2], other[:, :2]), "position 1 knows what stands at position 2"

class Attentive(MultiHeadAttention):
    def forward(self, x, memory, mask=None, causal=False):
        return super().forward(x, memory, mask, causal=False)  # looks everywhere

leaking = small()
for layer in leaking.decoder.layers:
    layer.self_attention.__class__ = Attentive
catches(the_future_is_invisible, wrong=leaking, right=model)

# %% [markdown]
# ## Targets and loss
#
# ### The shift that was forgotten
#
# The decoder reads `bos y_1 y_2` and is asked for `y_1 y_2 eos`. Give it the same tensor for both, and it needs only to
# copy ([chapter 1](1_introduction.ipynb) trains such a model).

# %% tags=["row-L0"]
def is_shifted_by_one(batch):
    assert (batch.target_in[:, 0] == 1).all(), "the first thing the decoder reads is not bos"
    words = batch.target_out[:, :-1] > 2  # neither eos nor padding
    read_next = batch.target_in[:, 1:]
    assert torch.equal(read_next[words], batch.target_out[:, :-1][words]), "not shifted by one"

catches(is_shifted_by_one, wrong=batch._replace(target_in=batch.target_out), right=batch)

# %% [markdown]
# ### Padding that counts
#
# A loss over all positions rewards the model for predicting padding, which is easy. The loss looks better than it is,
# and depends on how sentences were batched. Label smoothing makes it worse: it asks for a little probability *on every
# token* at positions that do not exist.

# %%
def padding_adds_no_loss(loss_of):
    torch.manual_seed(0)
    logits, target = torch.randn(1, 5, 20), torch.tensor([[5, 7, 2, 0, 0]])
    assert_close(loss_of(logits, target), loss_of(logits[:, :3], target[:, :3]))

def careless(logits, target):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing=0.1, reduction="sum")

catches(padding_adds_no_loss, wrong=careless,
        right=lambda logits, target: label_smoothed_cross_entropy(logits, target, 0.1, pad_id=0)[0])

# %% [markdown]
# ### A mean of means
#
# Two half batches are to give the gradient of the whole. If each divides by its own number of tokens, a short
# sentence's tokens weigh more than a long one's.

# %%
halves = [make_batch([([5, 7, 4, 9], [8, 6, 11, 7, 9, 13])]), make_batch([([10, 4], [12])])]
whole = make_batch([([5, 7, 4, 9], [8, 6, 11, 7, 9, 13]), ([10, 4], [12])])

def gradient(batches, n_tokens):
    model.zero_grad()
    for source, target_in, target_out, n in batches:
        loss, _ = label_smoothed_cross_entropy(model(source, target_in), target_out)
        (loss / n_tokens(n) / (1 if n_tokens(n) == 9 else len(batches))).backward()
    return model.embedding.weight.grad.clone()

def halves_equal_the_whole(n_tokens):
    assert_close(gradient(halves, n_tokens), gradient([whole], lambda n: whole.n_tokens))

assert whole.n_tokens == 9
catches(halves_equal_the_whole, wrong=lambda n: n, right=lambda n: whole.n_tokens)

# %% [markdown]
# ### Gradients that never arrive
#
# `if step % accumulate == 0: adam.step()`, with the epoch's end in between and a `zero_grad` at the wrong place, is a
# loop in which some or all gradients are thrown away. **Symptom:** the loss does not move, or moves as if the batch
# were smaller. The test counts.

# %%
def every_gradient_is_used(loop):
    weight = nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([weight], lr=1.0)
    loop(weight, sgd, losses=6, accumulate=3)
    assert_close(weight.item(), -6.0)  # each of the six losses has the gradient 1

# %%
def right_loop(weight, sgd, losses, accumulate):
    for n in range(1, losses + 1):
        weight.sum().backward()
        if n % accumulate == 0:
            sgd.step()
            sgd.zero_grad()

def wrong_loop(weight, sgd, losses, accumulate):
    for n in range(1, losses + 1):
        sgd.zero_grad()  # forgets what was accumulated
        weight.sum().backward()
        if n % accumulate == 0:
            sgd.step()

catches(every_gradient_is_used, wrong=wrong_loop, right=right_loop)

# %% [markdown]
# ## The rate
#
# ### One step late, or a division by zero
#
# Steps are counted from 1. A schedule called with 0 gives a rate of 0 (the first batch is wasted) or fails at
# $0^{-0.5}$; one called after the update is late for ever.

# %%
from annotated_transformer import noam_learning_rate

def rates_start_at_step_1(rates):
    assert_close(rates[:3], [noam_learning_rate(step, 512, 4000) for step in (1, 2, 3)])

# %%
def lambda_lr(base, steps_per_call=1):
    adam = torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=base)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        adam, lambda n: noam_learning_rate(n // steps_per_call + 1, 512, 4000))
    rates = []
    for _ in range(300):
        rates.append(adam.param_groups[0]["lr"])
        adam.step()
        schedule.step()
    return rates

catches(rates_start_at_step_1, wrong=[0.0, *lambda_lr(1.0)], right=lambda_lr(1.0))

# %% [markdown]
# ### The schedule that multiplies
#
# `LambdaLR` multiplies the optimizer's own rate. With `lr=1e-4` there, the rate is ten thousand times too small, and
# **nothing fails**: the model learns, at a snail's pace. The base rate must be 1.

# %%
catches(rates_start_at_step_1, wrong=lambda_lr(1e-4), right=lambda_lr(1.0))

# %% [markdown]
# ### By epoch
#
# Many tutorials call the schedule once an epoch. Then 4,000 *epochs* of warm-up lie ahead. Below, an epoch has 100
# updates.

# %%
catches(rates_start_at_step_1, wrong=lambda_lr(1.0, steps_per_call=100), right=lambda_lr(1.0))
print(f"after 300 updates: {lambda_lr(1.0, 100)[-1]:.2e} instead of {lambda_lr(1.0)[-1]:.2e}")

# %% [markdown]
# ## The layers
#
# ### Pre-norm sold as post-norm
#
# The most famous annotated implementation {cite}`rush2018annotated` says post-norm in its text, and computes
# $x + \mathrm{Sublayer}(\mathrm{LayerNorm}(x))$; a comment in the code admits it. The test asks what section 3.1
# promises: a layer's *output* has been through a layer norm, so each vector has variance 1 while the norm's gain and
# bias are as initialised.

# %%
def ends_normalised(layer):
    torch.manual_seed(0)
    y = layer(3 * torch.randn(2, 5, 16) + 1, None)
    assert_close(y.var(-1, unbiased=False), torch.ones(2, 5), rtol=0.01, atol=0.01)

catches(ends_normalised,
        wrong=small(norm="pre").encoder.layers[0],
        right=small(norm="post").encoder.layers[0])

# %% [markdown]
# ### One layer, six times
#
# `[layer] * 6`, or a function that calls the same layer in a loop, has one set of weights. It trains. The number of
# parameters is the symptom, and the test.

# %%
from annotated_transformer.model.stacks import EncoderLayer

def layers_are_different(layers):
    pointers = [weight.data_ptr() for weight in layers.parameters()]
    per_layer = len(list(layers[0].parameters()))
    assert len(pointers) == per_layer * len(layers), "layers share weights"

config = model.config
catches(layers_are_different,
        wrong=nn.ModuleList([EncoderLayer(config)] * 6),
        right=nn.ModuleList(EncoderLayer(config) for _ in range(6)))

# %% [markdown]
# ### Shared, but not the same
#
# "Weights are tied" is a claim about storage. A copy at initialisation is equal until the first update.

# %%
def softmax_uses_the_embedding(parts):
    embedding, softmax = parts
    with torch.no_grad():
        embedding.weight[3] += 1
    assert torch.equal(embedding.weight, softmax.weight), "they part with the first update"

def tied(copy):
    embedding, softmax = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
    softmax.weight = nn.Parameter(embedding.weight.detach().clone()) if copy else embedding.weight
    return embedding, softmax

catches(softmax_uses_the_embedding, wrong=tied(copy=True), right=tied(copy=False))

# %% [markdown]
# ### Heads from the wrong reshape
#
# `(L, h d_k)` becomes `(L, h, d_k)` and *then* heads and positions change places. A `view(h, L, d_k)` has the right
# shape too, and mixes the positions.

# %% tags=["row-L4"]
def positions_stay_apart(split):
    x = torch.zeros(5, 12)
    x[2] = 1  # only position 2 is marked
    heads = split(x)
    assert heads.shape == (3, 5, 4)
    marked = heads.abs().sum((0, 2)).nonzero().flatten().tolist()
    assert marked == [2], f"the mark is now at positions {marked}"

catches(positions_stay_apart,
        wrong=lambda x: x.view(3, 5, 4),
        right=lambda x: x.view(5, 3, 4).transpose(0, 1))

# %% [markdown]
# ### No $\sqrt{d_k}$
#
# **Symptom.** With wide heads the weights are nearly one-hot from the start, and their gradient is nearly zero. The
# test is the variance of the scores.

# %% tags=["row-X12"]
def scores_have_variance_1(score):
    torch.manual_seed(0)
    for d_k in (16, 64, 256):
        q, k = torch.randn(2000, d_k), torch.randn(2000, d_k)
        assert_close(score(q, k).var().item(), 1.0, rtol=0.15, atol=0.0)

catches(scores_have_variance_1,
        wrong=lambda q, k: (q * k).sum(-1),
        right=lambda q, k: (q * k).sum(-1) / math.sqrt(q.size(-1)))

# %% [markdown]
# ### A wrong positional formula
#
# The exponent is $2i / d_{\mathrm{model}}$ where $2i$ is the *column*. Code that loops over columns and doubles them
# again runs towards wavelengths of $10^8 \cdot 2\pi$ instead of $10^4 \cdot 2\pi$. What the law of rotations
# ([section 3.5](3_5_positional_encoding.ipynb)) says of it is worth knowing: a pair of columns with one
# wavelength turns by a fixed angle, whatever the wavelength is. So the rotation test accepts this mistake; it refuses
# sine and cosine of *different* wavelengths. The longest wavelength catches the doubled exponent.

# %%
from annotated_transformer import positional_encoding

def table(exponent, d=16, length=40):
    position = torch.arange(length, dtype=torch.float64)
    return torch.stack([(torch.sin, torch.cos)[j % 2](position / 10000 ** exponent(j, d)) for j in range(d)], 1)

def rotates(pe):
    a, b, step = pe[0:38:2, 0::2], pe[0:38:2, 1::2], pe[1]
    s, c = step[0::2], step[1::2]  # sine and cosine of one step's angle
    assert_close(pe[1:39:2, 0::2], a * c + b * s, rtol=0, atol=1e-5)

def slowest_is_the_papers(pe):
    assert_close(pe[1, -2].item(), math.sin(10000 ** -(14 / 16)), rtol=1e-3, atol=0.0)

# %%
right = positional_encoding(40, 16).double()
catches(rotates, wrong=table(lambda j, d: j / d), right=right)  # odd columns: another wavelength
catches(slowest_is_the_papers, wrong=table(lambda j, d: 2 * (j - j % 2) / d), right=right)
rotates(table(lambda j, d: 2 * (j - j % 2) / d))  # accepted

# %% [markdown]
# ### Dropout, twice
#
# The attention drops its output, and the layer drops it again. With $p = 0.1$ some 19 percent are gone.

# %%
def keeps_1_minus_p(dropout):
    torch.manual_seed(0)
    kept = (dropout(torch.ones(100_000)) != 0).double().mean().item()
    assert abs(kept - 0.9) < 0.01, f"kept {kept:.2f}"

drop = nn.Dropout(0.1)
catches(keeps_1_minus_p, wrong=lambda x: drop(drop(x)), right=drop)

# %% [markdown]
# ### A layer norm of one's own
#
# `x.std()` divides by $n - 1$ (Bessel), and $\epsilon$ belongs under the root. Neither keeps a model from learning;
# both keep it from agreeing with anybody else's weights.

# %%
def is_layer_norm(norm):
    torch.manual_seed(0)
    x = torch.randn(3, 8, dtype=torch.float64)
    assert_close(norm(x), F.layer_norm(x, (8,)))

def home_made(x, eps=1e-5):
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps)

catches(is_layer_norm, wrong=home_made, right=lambda x: F.layer_norm(x, (8,)))

# %% [markdown]
# ## Decoding
#
# ### Left in training mode
#
# Dropout stays on while translating. **Symptom:** the same sentence, two translations.

# %%
def answers_twice_alike(model):
    one, other = (model(batch.source, batch.target_in) for _ in range(2))
    assert torch.equal(one, other), "two runs differ"

catches(answers_twice_alike, wrong=small().train(), right=small())

# %% [markdown]
# ### The beam that drops the best
#
# A beam search must remember hypotheses that have ended. If it only keeps the live ones, or stops as soon as one has
# ended, the best may be lost. The cells below forget what has ended; the judge is exhaustive search, over a toy
# language of two words, `a` (1) and `b` (2).

# %%
log_p = torch.tensor([  # log P(next | last): rows and columns are eos, a, b
    [0.0, 0.0, 0.0],
    [0.1, 0.5, 0.4],
    [0.9, 0.05, 0.05],
]).clamp_min(1e-9).log()

def probability(words):
    steps = zip([1, *words], [*words, 0])
    return sum(log_p[last, following].item() for last, following in steps)

# %%
def everything(n):
    return [[]] if n == 0 else [[]] + [[w, *rest] for w in (1, 2) for rest in everything(n - 1)]

best = max(everything(5), key=probability)
print(best, f"{math.exp(probability(best)):.2f}")
assert best == [2]  # b, then the end: 0.4 times 0.9

# %%
def beam(width, length, forget):
    live, ended = [[]], []
    for _ in range(length):
        ended += [] if forget else [(probability(words), words) for words in live]
        longer = [[*words, w] for words in live for w in (1, 2)]
        prefix = [(probability(words) - log_p[words[-1], 0].item(), words) for words in longer]
        live = [words for _, words in sorted(prefix, reverse=True)[:width]]
    return max(ended + [(probability(words), words) for words in live])[1]

# %%
def finds_what_is_best(search):
    found = search(2, 5)
    assert found == best, f"found {found}"

catches(finds_what_is_best,
        wrong=lambda width, length: beam(width, length, forget=True),
        right=lambda width, length: beam(width, length, forget=False))

# %% [markdown]
# ### Averaging that destroys
#
# `state_dict()` hands out the model's own tensors, not copies. `total += weights` on the first of them changes that
# model. The test: the inputs stay as they were, and the mean of equal things is that thing.

# %%
def averages(mean):
    one, two = {"w": torch.tensor([1.0, 3.0])}, {"w": torch.tensor([3.0, 7.0])}
    assert_close(mean([one, two])["w"], torch.tensor([2.0, 5.0]))
    assert one["w"].tolist() == [1, 3], "the first model was changed"

def destructive(models):
    total = models[0]
    for other in models[1:]:
        total["w"] += other["w"]
    return {"w": total["w"] / len(models)}

catches(averages, wrong=destructive,
        right=lambda models: {"w": torch.stack([m["w"] for m in models]).mean(0)})

# %% [markdown]
# ## Data and pictures
#
# ### A vocabulary that has seen the test
#
# Train the tokenizer on all the text and words of the test set get tokens of their own. The score is then a little too
# good, and nobody can say by how much.

# %%
from annotated_transformer import Tokenizer

train_text = ["the cat sees the dog", "a dog sees a cat", "the cat is here"] * 40
test_text = ["the zyzzyva sees a cat"] * 40

def is_blind_to_the_test(tokenizer):
    pieces = tokenizer.pieces(tokenizer.encode("zyzzyva"))
    assert not any(piece.strip("▁") == "zyzzyva" for piece in pieces), "the test's word is a token"

catches(is_blind_to_the_test,
        wrong=Tokenizer.train(train_text + test_text, vocab_size=300),
        right=Tokenizer.train(train_text, vocab_size=300))

# %% [markdown]
# ### A plot with its axes exchanged
#
# Rows are queries and sum to 1; columns are keys. A picture of the transpose looks as plausible.

# %%
from annotated_transformer import record_attention

with record_attention(model) as weights, torch.inference_mode():
    model(batch.source, batch.target_in)
cross = weights["decoder.layers.0.cross_attention"][0, 0]

def rows_are_queries(image):
    assert image.shape == (batch.target_in.size(1), batch.source.size(1)), f"{tuple(image.shape)}"
    assert_close(image.sum(dim=1), torch.ones(len(image)))

catches(rows_are_queries, wrong=cross.T, right=cross)

# %% [markdown]
# ## Which test finds what
#
# | law | finds |
# |---|---|
# | a later token changes no earlier output | inverted and missing causal masks, targets that leak |
# | appended padding changes nothing | rows for columns, a forgotten mask, padding in the loss |
# | two halves equal the whole | means of means, gradients thrown away, forgotten `zero_grad` |
# | outputs of a sub-layer are normalised | pre-norm for post-norm, a home-made norm |
# | the count of parameters is Table 3's | shared layers, sharing that is none, missing or extra biases |
# | scores have variance 1 | a missing, doubled or misplaced scale |
# | one forward pass equals step after step | every mistake in a cache, in positions, in masks while decoding |
# | a wide beam finds what exhaustive search finds | lost hypotheses, a penalty upside down |
# | the same function in another library, with copied weights | nearly all of the above |
#
# They are tests of this package, with sizes small and unequal. And `tests/mutants.txt` is a list of one-line
# departures, from the paper or from the package's own rules: the tests must notice every one of them.
#
# ## Exercises
#
# ```{exercise} A mask for both
# :label: clinic-both
#
# The decoder's self-attention has no padding mask in this package. Why does no test above complain?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
# Where does padding stand, and what may a real position see?
# ```
#
# ```{solution} clinic-both
# :class: dropdown
# Padding stands on the right. A real position sees only itself and what is before it, so no padding, and what the
# padded positions compute is left out of the loss.
# ```

# %% tags=["hide-cell"]
padded = F.pad(batch.target_in, (0, 2), value=0)
assert_close(model(batch.source, padded)[:, :4], model(batch.source, batch.target_in))

# %% [markdown]
# ```{exercise} Upside down twice
# :label: clinic-twice
#
# Someone builds a mask in which True means *hide* and fills the scores with minus infinity where it is *False*. Do the
# two inversions cancel? Does `sees_no_future` notice?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
# Write down what is visible.
# ```
#
# ```{solution} clinic-twice
# :class: dropdown
# They do not. False means *visible* in this mask, so the scores of what should be seen are filled, as in the first
# entry, and `sees_no_future` notices. Had the scores been filled where the mask is True, everything would be right: a
# mask of the other convention, read by its own rule.
# ```
#
# ```{exercise} Your own test
# :label: clinic-own
#
# Embeddings are to be multiplied by $\sqrt{d_{\mathrm{model}}}$. Write a test that finds a model which forgets it, and
# run it with `catches`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
# `model.embed(tokens)` minus the positions, against rows of `model.embedding.weight`.
# ```
#
# ```{solution} clinic-own
# :class: dropdown
# In the cell below.
# ```

# %% tags=["hide-cell"]
def is_scaled(model):
    tokens = torch.tensor([[5, 7, 4]])
    embedded = model.embed(tokens) - positional_encoding(3, 16)
    assert_close(embedded, model.embedding.weight[tokens] * 4)  # the root of 16

unscaled = small()
unscaled.embedding.forward = lambda tokens: F.embedding(tokens, unscaled.embedding.weight)
catches(is_scaled, wrong=unscaled, right=small())

# %% [markdown]
# ```{exercise} The penalty upside down
# :label: clinic-penalty
#
# A search *multiplies* the log-probability of an output of $n$ tokens by $((5 + n)/6)^\alpha$ where it should divide.
# Does it prefer longer or shorter outputs than the right one? Write the test.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
# Log-probabilities are negative.
# ```
#
# ```{solution} clinic-penalty
# :class: dropdown
# Shorter: the factor makes the negative score of a long output more negative still, where dividing makes it less so.
# ```

# %% tags=["hide-cell"]
def long_ones_gain(score):
    assert score(-4.0, 20) > score(-4.0, 5), "a longer output of the same probability scores lower"

catches(long_ones_gain,
        wrong=lambda log_p, n: log_p * ((5 + n) / 6) ** 0.6,
        right=lambda log_p, n: log_p / ((5 + n) / 6) ** 0.6)

# %% [markdown]
# ```{exercise} A test that cannot fail
# :label: clinic-vacuous
#
# What is wrong with this test of the causal mask: run the model twice on the same input and compare the first two
# positions?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
# Which mistake would it refuse? Try `catches`.
# ```
#
# ```{solution} clinic-vacuous
# :class: dropdown
# It accepts every deterministic model. `catches` says so: it raises when the mistake passes. A test has to change what
# must not matter.
# ```

# %% tags=["hide-cell"]
def vacuous(logits):
    one, other = (logits(batch.source, batch.target_in) for _ in range(2))
    assert torch.equal(one[:, :2], other[:, :2])

try:
    catches(vacuous, wrong=leaking, right=model)
except RuntimeError as error:
    print(error)
    assert "let the mistake pass" in str(error)
else:
    raise AssertionError("a test that cannot fail was taken for one that can")

# %% [markdown]
# ```{exercise} Count to find
# :label: clinic-count
#
# A base model with 37,000 tokens should have 63.05 million weights (attention without biases, one shared matrix). What
# does a count of 101 million tell you? And 63.08 million?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
# 37,000 times 512 is 18.9 million. An attention's biases are 4 times 512 numbers.
# ```
#
# ```{solution} clinic-count
# :class: dropdown
# 101 = 63 + 2 × 18.9: three separate matrices (a softmax bias of 37,000 numbers would hardly show). 63.08: eighteen
# attentions with biases add 36,864, so the sharing is right and the projections have biases.
# ```

# %% tags=["hide-cell"]
from annotated_transformer.tables.cost import count_parameters

base = count_parameters(ModelConfig.base(37_000))
assert round(base / 1e6, 2) == 63.05 and round((base + 2 * 37_000 * 512) / 1e6) == 101
assert count_parameters(ModelConfig.base(37_000, bias=True)) - base == 18 * 4 * 512 == 36_864

# %% [markdown]
# ## What to remember
#
# - Mistakes in a Transformer are quiet. A loss that is too good is one of the loudest symptoms there is.
# - A good test changes what must not matter (the future, the padding, the batch) and looks whether anything moves.
# - See every test fail once. `catches` is ten lines.
