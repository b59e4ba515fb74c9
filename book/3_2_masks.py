# %% [markdown]
# # 3.2.3 Masks
#
# *Section 3.2.3 of the paper {cite}`vaswani2017attention`, and the padding that it leaves to the reader: who may look at
# whom, and how we find out when a mask is wrong.*
#
# A mask hides keys from queries, and we met the idea in [3.2](3_2_attention.ipynb): a score that must stay hidden becomes
# minus infinity before the softmax, so its weight is 0 and the other weights still add up to one
# (equation {eq}`masked-attention`). The paper says it in section 3.2.3, "masking out (setting to $-\infty$) all values in
# the input of the softmax which correspond to illegal connections", and its Figure 2 has a box for it, "Mask (opt.)".
#
# There are two reasons to hide a key. Short sentences of a batch are filled up with **padding**, which means nothing. And
# the decoder predicts the next token at every position at once, so a position may look only at itself and at what stands
# before it.
#
# A wrong mask seldom raises an error. The model runs, and if the causal mask has a hole it even trains *better*, because
# it reads the answer. So this chapter is a laboratory: we build both masks, test what leaks through a wrong one, and see which attention of the
# model gets which mask.
#
# When you have read this chapter you can
#
# - read, build and combine padding masks and causal masks;
# - find a leak by asking which outputs change when an input changes;
# - recognise a leak by its training loss, and a row without keys by its NaNs;
# - say which of the model's three attentions gets which mask, and why.
#
# You need the chapters on [attention](3_2_attention.ipynb) and on [the stacks](3_1_stacks.ipynb), since we test whole
# layers and a whole model.

# %% tags=["remove-cell"]
import math

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer import ModelConfig, MultiHeadAttention, Transformer
from annotated_transformer import attention_weights, positional_encoding, scaled_dot_product_attention
from lab import listing
from lab.display import PALETTE, show, use_style
from lab.exercises import check

# %% tags=["remove-cell"]
use_style()
torch.set_printoptions(precision=4, sci_mode=False)

# %% [markdown]
# ## Two masks, joined by "and"
#
# In the program of [chapter 0](0_one_hour.ipynb) the two masks are a line each of `forward`:

# %%
show(listing.Transformer.forward)

# %% [markdown]
# `source != pad` has a row per sentence and is True for real tokens. `[:, None, None, :]` adds two axes of size 1, "all
# heads" and "all queries", between them. `tril` keeps the lower triangle of a square of ones: query $i$, a row, may look
# at the keys up to $i$. The package has the same as functions, [`padding_mask` and `causal_mask`](https://github.com/annotated-transformer/annotated-transformer/blob/main/annotated_transformer/model/attention.py), which we use below.

# %% [markdown]
# ![Three grids of five queries, the rows, by five keys, the columns, for the tokens the, cat, sat, pad, pad. Padding: the columns of the three words are filled. Causal: each row is filled up to its diagonal. Both: filled where both are.](figures/masks.svg)
#
# We read such a grid by rows: to see what a token may look at, find its row. Three conventions make masks easy to read
# and to combine.
#
# 1. *Polarity*: in this package True means *may look*, as it does in PyTorch's `F.scaled_dot_product_attention`. PyTorch's
#    older `nn.MultiheadAttention` means the opposite, and there True *hides*. Check this whenever you move a mask from one
#    library to another.
# 2. *Rows and columns*: the last two axes are queries and keys, as in the scores. Padding is a property of keys, so it
#    hides columns. What the causal mask hides depends on both, so it is a triangle.
# 3. *Combination*: both conditions must hold, so we join masks by `&`, and broadcasting fills the axes of size 1.
#
# Our batch has two sentences, of five tokens and of three; 0 is padding. We print the joint mask of the second one.

# %% tags=["row-S7", "row-S8", "row-S9"]
from annotated_transformer import causal_mask, padding_mask

tokens = torch.tensor([[11, 12, 13, 14, 15], [21, 22, 23, 0, 0]])
padding, causal = padding_mask(tokens, pad_id=0), causal_mask(tokens.size(1))
both = padding & causal
print(tuple(padding.shape), "&", tuple(causal.shape), "->", tuple(both.shape))
print(both[1, 0].int())

for b, sentence in enumerate(tokens.tolist()):
    for i in range(5):  # by hand: j is a real token, and j <= i
        may_look = [sentence[j] != 0 and j <= i for j in range(5)]
        assert both[b, 0, i].tolist() == may_look

# %% tags=["remove-cell"]
torch.manual_seed(0)
q, k, v = torch.randn(3, 2, 1, 5, 4, dtype=torch.float64)  # 2 sentences, 1 head, 5 positions, d_k = 4
exponentials = both * torch.exp(q @ k.transpose(-2, -1) / math.sqrt(4))  # equation (masked-attention)
alpha = attention_weights(q, k, both)
assert_close(exponentials / exponentials.sum(dim=-1, keepdim=True), alpha)
assert (alpha.masked_select(~both) == 0).all()  # zero, not merely small
theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=both)
assert_close(scaled_dot_product_attention(q, k, v, both), theirs)

# %% [markdown]
# Let us see the other polarity at work. Query 1 may look at keys 0 and 1. If we hand our mask to
# `nn.MultiheadAttention` as it is, the module hides exactly these two; with the negation it agrees with us.

# %%
torch.manual_seed(0)
theirs = nn.MultiheadAttention(embed_dim=4, num_heads=1, batch_first=True)
x = torch.randn(1, 5, 4)
for name, mask in (("our mask", causal[0, 0]), ("negated", ~causal[0, 0])):
    _, weights = theirs(x, x, x, attn_mask=mask)
    assert (weights[0, 1][mask[1]] == 0).all()  # True hides
    print(f"{name:9} weights of query 1:", weights[0, 1].detach())

# %% [markdown]
# ## Test a mask by what reaches what
#
# To test a mask, check which outputs change when an input changes. The derivative of every output with respect to every
# input tells us. Here are the causal mask and three mistakes that people make: the mask inverted, rows and
# columns exchanged, and a triangle that reaches one column too far.

# %% tags=["row-F12", "row-S8"]
def reach(attention, length, d_model=8):
    """Entry (i, j) is True if output i depends on input j."""
    torch.manual_seed(0)
    x = torch.randn(1, length, d_model, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(attention, x)  # 1 L D 1 L D
    return jacobian[0, :, :, 0].abs().sum(dim=(1, 3)) > 0

def self_attention(mask):
    return lambda x: scaled_dot_product_attention(x, x, x, mask)

lower = torch.ones(5, 5, dtype=torch.bool).tril()
assert torch.equal(reach(self_attention(lower), 5), lower)
assert torch.equal(causal_mask(5)[0, 0], lower)
print(reach(self_attention(lower), 5).int())

# %% tags=["hide-input"]
def draw_grids(panels, labels, figsize):
    """Grids of what a query (row) sees of the keys (columns); what it should not see is orange."""
    figure, axes = plt.subplots(1, len(panels), figsize=figsize, layout="constrained")
    for ax, (title, seen) in zip(axes, panels.items()):
        n = len(seen)
        for i, j in ((i, j) for i in range(n) for j in range(n)):
            color = ("white" if not seen[i, j] else PALETTE[0] if j <= i else PALETTE[1])
            ax.add_patch(plt.Rectangle((j - 0.5, i - 0.5), 1, 1, fc=color, ec="grey", lw=0.8))
        ax.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), aspect="equal", title=title)
        ax.set_xticks(range(n), labels, rotation=90)
        ax.set_yticks(range(n), labels if ax is axes[0] else [""] * n)
        ax.tick_params(length=0)
    axes[0].set(ylabel="query", xlabel="key")
    plt.show()

# %% tags=["hide-input"] mystnb={"image": {"alt": "Four 5 by 5 grids, queries down, keys across, for the tokens start, Tom, hat, es, gesehen. Causal: the lower triangle with its diagonal is blue. Inverted: the part above the diagonal is orange, the rest white, and the last row is empty. Transposed: the diagonal is blue and all above it orange. One too far: the lower triangle is blue and the first diagonal above it orange."}, "figure": {"caption": "What each query (row) sees of the keys (columns). Blue: allowed. Orange: the future, which leaks.", "name": "fig-wrong-masks"}}
words = ["<s>", "Tom", "hat", "es", "gesehen"]
hole = torch.ones(5, 5, dtype=torch.bool).tril(diagonal=1)
assert torch.equal(reach(self_attention(lower.T), 5), lower.T)
draw_grids({"causal": lower, "inverted": ~lower, "transposed": lower.T, "one too far": hole}, words, (6.6, 2.4))

# %% [markdown]
# Does one small hole matter once we stack layers? With the causal mask, two or six layers see what one sees. With the
# hole, what leaks by one position in the first layer leaks by two in the second and by three in the third.

# %%
def stacked(mask, n_layers):
    """What reaches what after `n_layers` of self-attention with one mask."""
    def layers(x):
        for _ in range(n_layers):
            x = scaled_dot_product_attention(x, x, x, mask)
        return x
    return reach(layers, 5)

leaks = {f"hole, {n} layer{'s' * (n > 1)}": stacked(hole, n) for n in (1, 2, 3)}
for name, seen in leaks.items():
    print(f"{name}: {seen.triu(diagonal=1).sum()} hidden entries seen")
print("causal, 6 layers:", stacked(lower, 6).triu(diagonal=1).sum().item())

# %% tags=["hide-input"] mystnb={"image": {"alt": "Four 5 by 5 grids. Causal after six layers: the lower triangle, blue. With a hole after one, two and three layers: the lower triangle is blue, and one, two and three diagonals above it are orange."}, "figure": {"caption": "A causal mask stays causal in any number of layers. A hole of one column grows by one with every layer.", "name": "fig-hole-grows"}}
assert torch.equal(stacked(lower, 6), lower)
for n, seen in enumerate(leaks.values(), start=1):
    assert torch.equal(seen, torch.ones(5, 5, dtype=torch.bool).tril(diagonal=n))
draw_grids({"causal, 6 layers": stacked(lower, 6), **leaks}, words, (6.6, 2.4))

# %% [markdown]
# The test also finds leaks that have nothing to do with the mask. In [3.2](3_2_attention.ipynb) we saw a frequent slip: the heads
# are cut with a single `view`, which has the right shape. Its "positions" are halves of tokens, so that a correct causal
# mask hides the wrong things, and the first output depends on later inputs.

# %%
class WrongSplit(MultiHeadAttention):
    def split_heads(self, x):
        return x.view(x.size(0), self.h, x.size(1), -1)  # wrong axes

for kind in (MultiHeadAttention, WrongSplit):
    torch.manual_seed(0)
    layer = kind(d_model=8, h=2).double()
    reached = reach(lambda x, layer=layer: layer(x, x, causal=True), length=4)
    leaks = reached.triu(diagonal=1).sum()
    print(f"{kind.__name__}: {leaks} hidden entries seen")
    print(reached.int())
    assert torch.equal(reached, reached.tril()) == (kind is MultiHeadAttention)

# %% [markdown]
# (masks-leak)=
# ## A leak that trains
#
# Now we train a leaking model on a task that cannot be learned: predict the next of six random symbols, drawn from
# eight. Guessing one of eight costs $\ln 8 = 2.079$ **nats** (the unit of the natural logarithm), and in the long run
# every honest model pays that. The decoder's input is the answer shifted right by one, so the answer for position
# $i$ stands in the input at position $i + 1$, one column beyond the causal mask. Our model is one layer of attention
# between an embedding and a linear layer (folded), and we train it with each of the two masks.

# %% tags=["hide-input"]
class NextSymbol(nn.Module):
    def __init__(self, n_symbols=8, length=6, d_model=32):
        super().__init__()
        self.embedding = nn.Embedding(n_symbols + 1, d_model)  # and a start symbol
        self.positions = positional_encoding(length, d_model)
        self.attention = MultiHeadAttention(d_model, h=4)
        self.output = nn.Linear(d_model, n_symbols)

    def forward(self, target_in, mask):
        x = self.embedding(target_in) + self.positions
        return self.output(self.attention(x, x, mask))

# %% tags=["nbval-rtol-0.1"]
def train_on_noise(mask, steps=300):
    torch.manual_seed(0)
    toy, losses = NextSymbol(), []
    optimizer = torch.optim.Adam(toy.parameters(), lr=0.01)
    for _ in range(steps):
        target_out = torch.randint(8, (64, 6))
        target_in = F.pad(target_out[:, :-1], (1, 0), value=8)  # shifted right
        loss = F.cross_entropy(toy(target_in, mask).transpose(1, 2), target_out)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
honest = train_on_noise(causal_mask(6))
print(f"ln 8 = {math.log(8):.2f}, loss with the causal mask {honest[-1]:.2f}")

# %% tags=["nbval-rtol-0.1"]
one_too_far = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril(diagonal=1)
leaking = train_on_noise(one_too_far)
print(f"(ln 8) / 6 = {math.log(8) / 6:.2f}, "
      f"loss with one column too far {leaking[-1]:.2f}")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Loss over 300 training steps. With the causal mask the curve stays at the dotted line of ln 8, 2.08. With the hole it falls from there to 0.5 within 30 steps and ends at the dotted line of a sixth of ln 8, 0.35."}, "figure": {"caption": "Predicting random symbols. With the causal mask the loss stays at $\\ln 8$; with a hole of one column the model reads its answers.", "name": "fig-leak-trains"}}
figure, ax = plt.subplots(figsize=(5.4, 2.7), layout="constrained")
ax.plot(honest, color=PALETTE[0], label="causal mask")
ax.plot(leaking, "--", color=PALETTE[1], label="one column too far")
ax.axhline(math.log(8), color="grey", ls=":")
ax.text(300, math.log(8) - 0.06, "ln 8: guessing", ha="right", va="top")
ax.axhline(math.log(8) / 6, color="grey", ls=":")
ax.text(0, math.log(8) / 6 - 0.06, "(ln 8) / 6", va="top")
ax.set(xlabel="step", ylabel="loss (nats)", ylim=(0, 2.6))
ax.legend(loc="center right")
assert honest[-1] > 2.0 and leaking[-1] < 0.6
plt.show()

# %% [markdown]
# With the hole the loss falls to about $\frac{1}{6}\ln 8 = 0.35$: five positions of six read their answer, and the
# last one, whose answer stands nowhere in the input, guesses. On real text such a model reports an accuracy near 100
# percent in training and writes nonsense when it translates, because the answer is no longer there. If your loss
# looks too good, suspect the mask first.

# %% [markdown]
# ## A query that sees nothing
#
# What is the softmax of a row in which every score is $-\infty$? By equation {eq}`masked-attention` it is $0 / 0$, which is
# undefined. If we invert the causal mask, we make such a row, because the last position then sees nothing. Let us ask
# three implementations for it:

# %%
inverted = ~causal_mask(3)[0, 0]
q = k = torch.eye(3)
print("minus infinity:        ", attention_weights(q, k, inverted)[-1])
scores = (q @ k.T / math.sqrt(3)).masked_fill(~inverted, -1e9)
print("minus one billion:     ", scores.softmax(dim=-1)[-1])
kernel = F.scaled_dot_product_attention(
    q[None], k[None], q[None], attn_mask=inverted)
print("PyTorch's fused kernel:", kernel[0, -1])

# %% [markdown]
# Minus infinity gives **NaN** ("not a number"), which at least shows. A large negative number, found in much published
# code, spreads the weight evenly over all the keys that were *forbidden*. PyTorch's fused kernel, in recent versions,
# gives zeros.
#
# NaN is contagious, because the next layer uses the row as a key and a value. Since $0 \cdot \mathrm{NaN} = \mathrm{NaN}$,
# even a correct mask lets it through.

# %% mystnb={"image": {"alt": "A grid of three rows, the input and the outputs of two layers, by six positions. The input is blue. After a layer with the inverted mask the last position is orange, NaN. After a second layer, with the causal mask, all six positions are orange."}, "figure": {"caption": "One layer with an inverted mask makes one NaN (orange); the next layer, with a correct mask, makes all six positions NaN.", "name": "fig-nan"}}
torch.manual_seed(0)
x, right = torch.randn(1, 6, 4), causal_mask(6)[0]
is_nan = {"input": x.isnan().any(dim=-1)[0]}
for name, mask in (("inverted mask", ~right), ("causal mask", right)):
    x = scaled_dot_product_attention(x, x, x, mask)
    is_nan[name] = x.isnan().any(dim=-1)[0]
    print(f"after the {name}: {is_nan[name].sum()} of 6 positions are NaN")

figure, ax = plt.subplots(figsize=(4.6, 1.7), layout="constrained")
for i, row in enumerate(is_nan.values()):
    colors = [PALETTE[int(nan)] for nan in row]
    ax.scatter(range(6), [i] * 6, s=170, marker="s", c=colors)
ax.set(xlabel="position", xticks=range(6), ylim=(2.6, -0.6))
ax.set_yticks(range(3), is_nan)
plt.show()

# %% [markdown]
# The masks of the package leave every query a key. The causal mask keeps its diagonal, the padding mask hides only
# the *end* of a sentence, and every sentence has at least one real token, its end mark. So under `padding & causal` every
# row still sees position 0.

# %% tags=["remove-cell", "row-S9"]
for lengths in ([5, 1], [3, 2], [1, 1]):
    tokens = torch.tensor([[7] * n + [0] * (5 - n) for n in lengths])
    both = padding_mask(tokens, pad_id=0) & causal_mask(5)
    assert both.any(dim=-1).all() and both[..., 0].all()

# %% [markdown]
# ## Which attention gets which mask
#
# | attention | queries | keys | mask |
# |---|---|---|---|
# | encoder self-attention | source | source | the source's padding |
# | decoder self-attention | target | target | causal |
# | encoder-decoder attention | target | source | the source's padding |
#
# So the model has three masks: one triangle, and the padding of the source in two places. What does a prediction depend
# on when all of them are in place? We compute what reaches what in the whole decoder. The logits at a position are computed from
# its output alone, and the input is shifted right by one, so we can list the tokens that reach each predicted token.

# %%
torch.manual_seed(0)
config = ModelConfig(vocab_size=20, N=2, d_model=16, d_ff=32, h=2)
decoder = Transformer(config).double().eval().decoder
memory = torch.randn(1, 6, 16, dtype=torch.float64)
reached = reach(lambda y: decoder(y, memory, None), length=5, d_model=16)
assert torch.equal(reached, lower)
print("predicts   input that reaches it")
for i, word in enumerate([*words[1:], "</s>"]):
    print(f"{word:10}", *(w for w, seen in zip(words, reached[i]) if seen))

# %% [markdown]
# This is what the paper demands: "the predictions for position $i$ can depend only on the known outputs at positions less
# than $i$".
#
# When the decoder *writes*, one new query meets the keys of all tokens so far, which a cache has kept. It needs no causal
# mask: the future has not been written. Row $i$ of the triangle is all True up to there.
#
# Should the decoder's self-attention hide the target's padding as well? There is no need. Padding stands on the right, so
# a real token at position $i$ sees keys $0$ to $i$, all of them real. A padded query does look at padding, but its
# output goes unread: earlier positions cannot see it, and the loss leaves it out. We can check this on a model
# (untrained, since masks are not learned): with padding appended to the target, the **logits** of the real positions
# stay the same.
#
# The *source* needs its mask, because the encoder looks both ways and the decoder looks at the whole source. Without
# it, a sentence would be translated differently in a batch with a longer one. We append four padding tokens to a source
# of five and compare the memory of the five real positions with and without the mask.

# %%
torch.manual_seed(0)
model = Transformer(config).eval()
source, target_in = torch.tensor([[4, 5, 6, 7, 2]]), torch.tensor([[1, 8, 9]])
padded_target, padded_source = (F.pad(x, (0, 4)) for x in (target_in, source))
everything = torch.ones(1, 1, 1, 9, dtype=torch.bool)
with torch.no_grad():
    logits = model(source, target_in)
    of_padded = model(source, padded_target)[:, :3]
    memory, masked = model.encode(source), model.encode(padded_source)[:, :5]
    unmasked = model.encode(padded_source, everything)[:, :5]
for name, new, old in (("logits, target padded", of_padded, logits),
                       ("memory, source padded, mask", masked, memory),
                       ("memory, source padded, no mask", unmasked, memory)):
    n_changed = ((new - old).abs() > 1e-4).sum()
    print(f"{name:31} {n_changed:2d} of {old.numel()} entries changed")

# %% tags=["remove-cell", "row-S7"]
assert_close(of_padded, logits)
assert_close(masked, memory)
assert ((unmasked - memory).abs() > 1e-4).sum() > memory.numel() / 2

# %% tags=["hide-input"] mystnb={"image": {"alt": "Bars for the five real positions of a source: the largest change of an entry of the memory when four padding tokens are appended. Without the padding mask the bars are clearly above zero at every position; with the mask there are no bars."}, "figure": {"caption": "What four padding tokens do to the memory of a five-token source, with the padding mask and without it.", "name": "fig-padding-changes"}}
figure, ax = plt.subplots(figsize=(5, 2.4), layout="constrained")
for shift, name, other in ((-0.2, "with the mask", masked), (0.2, "without the mask", unmasked)):
    change = (other - memory).abs().amax(dim=-1)[0]
    bars = ax.bar(torch.arange(5) + shift, change, 0.4, label=name)
    ax.bar_label(bars, fmt="%.2f", fontsize=8)
ax.set(xlabel="position in the source", ylabel="largest change", xticks=range(5))
ax.margins(y=0.2)
ax.legend(ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))
plt.show()

# %% [markdown]
# ## What to remember
#
# - True means *may look*; rows are queries, columns are keys; masks are joined by `&`.
# - To test a mask, see what reaches what: a later token must change no earlier output, and appended padding must change
#   nothing.
# - A hole grows with every layer, and a leaking model trains too well. If the loss looks too good, suspect the mask.
# - Each query needs a key; the masks we build leave it one.
#
# :::{dropdown} Where this is
# Code: `padding_mask` and `causal_mask` in `annotated_transformer/model/attention.py`; `model/stacks.py` and
# `model/transformer.py` hand them on. Tests: `tests/model/test_attention.py` (`test_true_means_may_look`) and
# `tests/model/test_transformer.py` (`test_the_future_is_invisible`, `test_padding_added_to_a_batch_changes_nothing`).
# :::

# %% [markdown]
# ## Exercises

# %% [markdown] tags=["exercise"]
# ```{exercise} Padding on the left
# :label: ex-left-padding
#
# Pad the *target* on the left instead of the right. Which rows of `padding & causal` are left without a key? What would
# go wrong if you kept the causal mask alone?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Draw the mask for two padding tokens and three words.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-left-padding
# :class: dropdown
#
# The rows of the padding tokens: all that they may see by the causal mask is padding. With minus infinity they become
# NaN, and NaN spreads. With the causal mask alone every real token looks at the padding before it, so a sentence's
# translation depends on how much padding its batch needed.
# ```

# %% tags=["hide-cell", "solution"]
left = torch.tensor([[0, 0, 7, 8, 9]])
both = padding_mask(left, pad_id=0) & causal_mask(5)
assert both.any(dim=-1).flatten().tolist() == [False, False, True, True, True]

# %% [markdown] tags=["exercise"]
# ```{exercise} Minus one billion
# :label: ex-half
#
# What happens to `scores.masked_fill(mask == 0, -1e9)` in half precision (float16), whose largest number is 65,504? And
# why does nobody notice it in float32?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-half
# :class: dropdown
#
# $-10^9$ is too large for float16: PyTorch raises an error, other libraries turn it into minus infinity. In float32
# $e^{-10^9}$ rounds to 0, so with at least one visible key the two agree.
# ```

# %% tags=["hide-cell", "solution"]
s, mask = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([True, True, False])
large, infinite = s.masked_fill(~mask, -1e9), s.masked_fill(~mask, -math.inf)
assert torch.equal(large.softmax(-1), infinite.softmax(-1))
assert_close(torch.full((3,), -1e9).softmax(-1), torch.ones(3) / 3)
try:
    s.half().masked_fill(~mask, -1e9)
except RuntimeError as error:
    print(type(error).__name__)
else:
    raise AssertionError("a float16 took -1e9")

# %% [markdown] tags=["exercise"]
# ```{exercise} The heads' axis
# :label: ex-heads-axis
#
# Somebody hands `MultiHeadAttention` a mask of shape (B, L, L) instead of (B, 1, L, L). For which B and $h$ does this
# fail, for which does it run, and what does it compute then?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Scores are (B, h, L, L). Broadcasting lines shapes up from the right.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-heads-axis
# :class: dropdown
#
# The mask's B lands on the heads' axis. With B = 1 it runs and is right, with B = $h$ it runs and is wrong, since *head*
# $b$ of every sentence gets the mask of *sentence* $b$, and otherwise it fails.
# ```

# %% tags=["hide-cell", "solution"]
torch.manual_seed(0)
layer, x = MultiHeadAttention(d_model=8, h=2), torch.randn(2, 3, 8)
tokens = torch.tensor([[7, 7, 7], [7, 7, 0]])
mask = padding_mask(tokens, pad_id=0).expand(2, 1, 3, 3)
assert not torch.allclose(layer(x, x, mask[:, 0]), layer(x, x, mask))  # B = h = 2
try:
    layer(x[[0, 1, 1]], x[[0, 1, 1]], mask[[0, 1, 1], 0])
except RuntimeError as error:
    print("B 3, h 2:", type(error).__name__)
else:
    raise AssertionError("a mask of three sentences for two heads")

# %% [markdown] tags=["exercise"]
# ```{exercise} Which mask, where?
# :label: ex-which-mask
#
# All your tests use batches of one sentence without padding. Which of the model's masks could be missing without any
# test failing? Which test of this chapter would notice?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-which-mask
# :class: dropdown
#
# The source's padding mask, in the encoder and in the encoder-decoder attention: all of its entries are True there. A
# missing causal mask fails the reach test at once. "Append padding, and the real positions stay as they are" finds the
# other two, and that is why the package has it as a test.
# ```

# %% [markdown] tags=["exercise"]
# ```{exercise} The causal mask (check 3.2.3-causal)
# :label: ex-write-causal
#
# Write `causal_mask(length)`, a boolean matrix of `length` rows and columns, True where a query may look at a key, and
# check it with `check("3.2.3-causal", causal_mask)`.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Compare two vectors of positions, one as a column and one as a row, or look for a PyTorch function that keeps a triangle.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-write-causal
# :class: dropdown
#
# Query $i$ may look at key $j$ if $j \le i$. With the positions of the queries as a column and those of the keys as a
# row, broadcasting compares them all.
# ```

# %% tags=["hide-cell", "solution"]
def my_causal_mask(length):
    position = torch.arange(length)
    return position[None, :] <= position[:, None]

check("3.2.3-causal", my_causal_mask)
assert torch.equal(my_causal_mask(5), causal_mask(5)[0, 0])

# %% [markdown] tags=["exercise"]
# ```{exercise} The padding mask (check 3.2.3-padding)
# :label: ex-write-padding
#
# Write `padding_mask(tokens, pad_id)`. `tokens` has shape (B, L); the mask must broadcast against scores of shape
# (B, h, queries, L) and have one entry per key, so its shape is (B, 1, 1, L). Then try
# `check("3.2.3-padding", padding_mask)`.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-write-padding
# :class: dropdown
#
# The comparison has shape (B, L); indexing with `None` adds the two axes between, for all heads and all queries.
# ```

# %% tags=["hide-cell", "solution"]
def my_padding_mask(tokens, pad_id):
    return (tokens != pad_id)[:, None, None, :]

check("3.2.3-padding", my_padding_mask)
tokens = torch.tensor([[11, 12, 13], [21, 0, 0]])
assert torch.equal(my_padding_mask(tokens, 0), padding_mask(tokens, 0))
