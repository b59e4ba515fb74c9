# %% [markdown]
# # 3.5 Positional encoding
#
# *Section 3.5 of the paper {cite}`vaswani2017attention`: how a model without recurrence and without convolution learns
# the order of its words.*
#
# Attention compares vectors, and a vector does not say where it stands. So the Transformer adds to each token's vector
# a second one that depends on the position alone: the **positional encoding**. The paper takes it from sines and
# cosines. This chapter computes it by hand, draws it, proves what it can do, and measures what it cannot.
#
# When you have read this chapter you can
#
# - show that the model is blind to order without positions, and say which part of it is not;
# - compute the encoding of any position with a pocket calculator, and give its wavelengths;
# - prove that a shift by $k$ positions is a rotation, and use that to test an implementation;
# - tell which of the wrong formulas in circulation do harm to which property;
# - say what learned positions do differently, and what happens beyond the lengths seen in training.
#
# You need [attention](3_2_attention.ipynb) and the sine. The vectors that positions are added to come from
# [the embedding](3_4_embeddings_and_softmax.ipynb).

# %%
import math

import matplotlib.pyplot as plt
import torch
from torch.testing import assert_close

from annotated_transformer import ModelConfig, Transformer, positional_encoding
from annotated_transformer.config import ConfigError
from annotated_transformer.exercises import check
from annotated_transformer.looking.visualization import HEAT_MAP, PALETTE, plot_attention, show, use_style

use_style()
torch.set_printoptions(precision=4, sci_mode=False)

# %% [markdown]
# ## Blind to order
#
# **Question.** What does a Transformer know of the order of its words if nobody tells it?
#
# **Equation.** Let $P$ be a matrix that reorders rows (a *permutation*), and $X$ the vectors of a sentence, one in each
# row. Self-attention on the reordered sentence gives the old output, reordered (an exercise of
# [chapter 3.2](3_2_attention.ipynb)). The feed-forward network and the layer norm treat each row by itself, so the same
# holds for them, for a layer, and for the whole encoder:
#
# $$
# \mathrm{Encoder}(P X) = P\, \mathrm{Encoder}(X)
# $$ (pe-equivariance)
#
# A function with this property is called **permutation equivariant**. "The cat sees the bird" and "the bird sees the
# cat" then get the same set of vectors. The decoder reads them as keys and values, and the output of attention
# is a sum over keys and values, which does not depend on the order of its terms. So the logits are the same too.
#
# **Code.** The package can leave positions out, for experiments: `positions="none"`.

# %%
from annotated_transformer.model.embedding import NoPositions

show(NoPositions)

# %% [markdown]
# **Check.** One model with positions and one without, both untrained and otherwise equal. We reorder a source of seven
# tokens and look at the memory (the encoder's output) and at the logits.

# %% tags=["row-X13"]
source = torch.tensor([[4, 5, 6, 7, 8, 9, 2]])
target_in = torch.tensor([[1, 10, 11, 12]])
order = torch.tensor([3, 0, 6, 1, 5, 2, 4])

for positions in ("none", "sinusoidal"):
    torch.manual_seed(0)
    model = Transformer(ModelConfig.tiny(vocab_size=20, positions=positions)).double().eval()
    with torch.no_grad():
        memory, moved = model.encode(source), model.encode(source[:, order])
        change = (model(source, target_in) - model(source[:, order], target_in)).abs().max()
    blind = (moved - memory[:, order]).abs().max()
    print(f"{positions:10}  memory off by {blind:.4f}  logits by {change:.4f}")
    assert (blind < 1e-9 and change < 1e-9) == (positions == "none")

# %% [markdown]
# Without positions, equation {eq}`pe-equivariance` holds to rounding, and the logits do not change. No training can
# repair that, since it holds for all weights.
#
# **Break it: the target.** Is the *decoder* blind as well? Reorder the target's first three tokens and look at the
# logits at the fourth position, which sees all of them.

# %%
torch.manual_seed(0)
model = Transformer(ModelConfig.tiny(vocab_size=20, positions="none")).double().eval()
reordered = target_in[:, [2, 0, 1, 3]]
with torch.no_grad():
    change = (model(source, target_in) - model(source, reordered))[0, 3].abs().max()
print(f"logits after the fourth token change by {change:.4f}")
assert change > 1e-3

# %% [markdown]
# It is not. The causal mask gives each position a different view: the first token sees itself only, the second sees
# two, and from such differences a stack of layers can tell early from late. A model with causal masks therefore learns
# something of the order even without positions, and language models without any have been trained
# {cite}`haviv2022transformer`. The encoder has no such mask, and without positions it stays blind.
#
# **Where.**
#
# - Code: `NoPositions` in `annotated_transformer/model/embedding.py`; `positions` in `ModelConfig`.
# - Tests: `test_positions_can_be_learned_or_left_out` in `tests/model/test_transformer.py`.
# - Exercises: {ref}`ex-pe-one-layer`.

# %% [markdown]
# ## The formula
#
# **Question.** How do you write a position into a vector of $d_{\mathrm{model}}$ numbers?
#
# The plain number 0, 1, 2, ... grows without bound and would soon drown the word. Its binary digits stay small, but
# they jump. The paper takes the idea behind digits, that some change fast and others slowly, and makes it smooth:
# pairs of columns that swing, the first pair fast, each later one more slowly.
#
# **Equation.** For the position $pos = 0, 1, 2, \ldots$ and the pair $i = 0, 1, \ldots, d_{\mathrm{model}}/2 - 1$:
#
# $$
# \begin{aligned}
# PE_{(pos,\, 2i)} &= \sin\left(\omega_i\, pos\right) \\
# PE_{(pos,\, 2i+1)} &= \cos\left(\omega_i\, pos\right)
# \end{aligned}
# \qquad \text{with} \quad \omega_i = \frac{1}{10000^{2i/d_{\mathrm{model}}}}
# $$ (pe-formula)
#
# (The paper writes $pos/10000^{2i/d_{\mathrm{model}}}$ in place; $\omega_i$ is our name for the factor.) Read the
# indices with care: $i$ counts *pairs*, and $2i$ and $2i+1$ are the two columns of pair $i$. Sine and cosine of a pair
# have the *same* angle.
#
# **Code.**

# %%
show(positional_encoding)

# %% [markdown]
# **Check.** Four columns are two pairs. $\omega_0 = 1$ and $\omega_1 = 1/10000^{2/4} = 1/100$. So the rows are
# $(\sin pos, \cos pos, \sin \frac{pos}{100}, \cos \frac{pos}{100})$, and a calculator does the rest.

# %% tags=["row-E9"]
def by_hand(pos, d_model):
    row = []
    for i in range(d_model // 2):
        angle = pos / 10000 ** (2 * i / d_model)
        row += [math.sin(angle), math.cos(angle)]
    return row

table = torch.tensor([by_hand(pos, d_model=4) for pos in range(4)])
print(table)
assert_close(table[1].tolist(), [0.8415, 0.5403, 0.0100, 1.0000], atol=1e-4, rtol=0)
assert_close(positional_encoding(4, d_model=4), table)
assert_close(positional_encoding(50, 512), torch.tensor([by_hand(p, 512) for p in range(50)]))

# %% [markdown]
# Position 0 has sines 0 and cosines 1. In the first pair, one position further turns the angle by a whole radian; in
# the second, by a hundredth of it.
#
# The encoding is *added* to the embedding, which is why both have $d_{\mathrm{model}}$ entries, and dropout is applied
# to the sum (section 5.4). The same table serves the encoder and the decoder.

# %% tags=["row-S4"]
show(Transformer.embed)
torch.manual_seed(0)
model = Transformer(ModelConfig(vocab_size=20, N=1, d_model=16, d_ff=32, h=2, p_drop=0.5))
tokens = torch.tensor([[4, 9, 4, 2]])
summed = model.embedding.weight[tokens] * math.sqrt(16) + positional_encoding(4, 16)
assert_close(model.eval().embed(tokens), summed)

dropped = model.train().embed(tokens)
kept = dropped != 0
assert_close(dropped[kept], 2 * summed[kept])  # what survives is divided by 1 - p_drop
assert 0 < kept.sum() < kept.numel()

# %% [markdown]
# **Picture.** The table for $d_{\mathrm{model}} = 128$. A row is what one position adds. On the left the columns swing
# fast; on the right they hardly move within a sentence, and even columns stay near 0, odd ones near 1.

# %% tags=["row-F8"] mystnb={"image": {"alt": "Heat map of the positional encoding, 60 positions down by 128 columns across. At the left, bright and dark alternate every few rows. The stripes grow longer to the right, and from about column 80 on the columns are nearly constant from top to bottom: grey for the sines, bright for the cosines."}, "figure": {"caption": "The positional encoding of the first 60 positions. Even columns are sines, odd ones cosines.", "name": "fig-pe-heat-map"}}
table = positional_encoding(60, 128)
assert table[:, 127].min() > 0.999 and table[:, 126].max() < 0.01
figure, ax = plt.subplots(figsize=(5.6, 3), layout="constrained")
image = ax.imshow(table, cmap=HEAT_MAP, vmin=-1, vmax=1, aspect="auto")
ax.set(xlabel="column", ylabel="position")
figure.colorbar(image, ax=ax, label="value")
plt.show()

# %% [markdown]
# **Break it.** An odd $d_{\mathrm{model}}$ leaves a sine without its cosine, and a popular walkthrough's listing then
# stops at an assignment (for a width of 7, with a complaint about sizes 3 and 4). The package checks at the door. The
# same listing computes a table of 100 rows once, and has nothing for position 100. Ours grows, to twice the length
# that was asked for.

# %% tags=["row-L0"]
from annotated_transformer.model.embedding import SinusoidalPositions

odd = torch.empty(10, 7)
try:
    odd[:, 1::2] = torch.cos(torch.zeros(10, 4))  # four angles, three columns
except RuntimeError as error:
    print("their table:", type(error).__name__)
else:
    raise AssertionError("four angles went into three columns")
try:
    positional_encoding(10, d_model=7)
except ConfigError as error:
    print("ours:", error)
else:
    raise AssertionError("an odd width was accepted")

# %% tags=["row-L0"]
positions = SinusoidalPositions(d_model=8, length=100)
assert_close(positions(101), positional_encoding(101, 8))
print("rows now:", positions.table.size(0))

# %% [markdown]
# **Where.**
#
# - Code: `positional_encoding` and `SinusoidalPositions` in `annotated_transformer/model/embedding.py`; the sum in
#   `Transformer.embed`.
# - Tests: `test_positional_encoding_is_the_printed_formula`, `test_odd_widths_have_no_pairs`,
#   `test_positions_grow_when_they_must_and_start_anywhere` in `tests/model/test_embedding.py`;
#   `test_the_input_is_the_scaled_embedding_plus_its_position` in `tests/model/test_transformer.py`.
# - Exercises: {ref}`ex-pe-rows`, {ref}`ex-pe-write`, {ref}`ex-pe-length`, {ref}`ex-pe-repeat`.

# %% [markdown]
# ## Wavelengths
#
# **Question.** How slow is the slowest column?
#
# **Equation.** Pair $i$ is back where it began when $\omega_i\, pos$ has grown by $2\pi$. The number of positions that
# takes is its **wavelength**:
#
# $$
# \lambda_i = \frac{2\pi}{\omega_i} = 2\pi \cdot 10000^{2i/d_{\mathrm{model}}}
# $$ (pe-wavelength)
#
# Each is a fixed multiple of the one before, $10000^{2/d_{\mathrm{model}}}$, so they form a geometric progression. The
# paper says that it runs "from $2\pi$ to $10000 \cdot 2\pi$".
#
# **Check.** We do not trust the formula in the code, and measure: the angle between positions 0 and 1 is the arcsine of
# the sine column at position 1. In the base model:

# %% tags=["row-E9"]
def wavelengths(sines_at_1):
    return 2 * math.pi / torch.asin(sines_at_1.double())

printed = wavelengths(positional_encoding(2, 512)[1, 0::2])
print(f"first {printed[0]:.4f}  last {printed[-1]:,.0f}")
print(f"ratio {printed[1] / printed[0]:.4f}  10000 * 2 pi = {10000 * 2 * math.pi:,.0f}")
assert math.isclose(printed[0], 2 * math.pi, rel_tol=1e-6)
assert round(printed[-1].item()) == 60_611
assert_close(printed[1:] / printed[:-1], torch.full((255,), 10000 ** (2 / 512)).double(), rtol=1e-5, atol=0)

# %% [markdown]
# The longest is 60,611 and not 62,832. With the printed formula the last exponent is $510/512$, a little less than 1.
# The text's endpoint belongs to the authors' own code, tensor2tensor {cite}`vaswani2018tensor2tensor`, which divides
# by the number of pairs *minus one*, so that the last exponent is exactly 1. The package has this version too.

# %% tags=["row-E9"]
from annotated_transformer.model.embedding import concatenated_positional_encoding

authors = wavelengths(concatenated_positional_encoding(2, 512)[1, :256])
print(f"first {authors[0]:.4f}  last {authors[-1]:,.0f}")
assert round(authors[-1].item()) == 62_832 == round(10000 * 2 * math.pi)

# %% [markdown]
# Nobody needs to choose between them for quality: no sentence comes near either length. But a copy of a table made with
# one formula does not fit a model trained with the other.
#
# **Picture.** How much of a wave does a sentence of 50 tokens see? In the base model, the pairs below the line go
# through at least one period.

# %% mystnb={"image": {"alt": "Line chart on a logarithmic axis: the wavelength against the pair number 0 to 255. A straight line from 6.3 to about 60,000. It crosses a dashed horizontal line at 50 positions near pair 57."}, "figure": {"caption": "Wavelengths of the 256 pairs of the base model: a geometric progression.", "name": "fig-pe-wavelengths"}}
n_full = int((printed <= 50).sum())
print(n_full, "of 256 pairs turn at least once in 50 positions")
assert n_full == 58
figure, ax = plt.subplots(figsize=(5, 2.6), layout="constrained")
ax.plot(printed, label="wavelength")
ax.axhline(50, linestyle="--", color=PALETTE[1], label="a sentence of 50 tokens")
ax.set(xlabel="pair $i$", ylabel="positions", yscale="log")
ax.legend()
plt.show()

# %% [markdown]
# The others move only a part of their way: they are for coarse position, and for long texts.
#
# **Where.**
#
# - Code: `positional_encoding`, `concatenated_positional_encoding` in `annotated_transformer/model/embedding.py`.
# - Tests: `test_wavelengths_run_from_2_pi_to_60_611` in `tests/test_paper.py`.
# - Exercises: {ref}`ex-pe-repeat`.

# %% [markdown]
# ## A shift is a rotation
#
# **Question.** Why sines and cosines, and why both?
#
# The paper gives a reason: "for any fixed offset $k$", $PE_{pos+k}$ is a *linear function* of $PE_{pos}$. A linear
# function is what a projection matrix computes, so a head could learn "three to the left", with the same matrix
# everywhere in the sentence.
#
# **Equation.** The addition theorems of sine and cosine, for one pair, with $\theta = \omega_i k$:
#
# $$
# \begin{pmatrix} \sin \omega_i (pos + k) \\ \cos \omega_i (pos + k) \end{pmatrix}
# = \begin{pmatrix} \cos\theta & \sin\theta \\ -\sin\theta & \cos\theta \end{pmatrix}
# \begin{pmatrix} \sin \omega_i\, pos \\ \cos \omega_i\, pos \end{pmatrix}
# $$ (pe-rotation)
#
# The matrix contains $k$ and not $pos$. It is a **rotation** by $\theta$: it keeps lengths. Put these 2 by 2 blocks on
# the diagonal, one for each pair, and you have one matrix $M_k$ with $PE_{pos+k} = M_k\, PE_{pos}$ for *all* positions.
#
# **Check.** Build $M_k$ block by block and hold it against the table. (Rows are positions, so the product is
# `PE @ M.T`.)

# %%
def rotation(k, d_model):
    M = torch.zeros(d_model, d_model, dtype=torch.float64)
    for i in range(d_model // 2):
        theta = torch.tensor(k / 10000 ** (2 * i / d_model), dtype=torch.float64)
        sine, cosine = theta.sin(), theta.cos()
        M[2 * i, 2 * i], M[2 * i, 2 * i + 1] = cosine, sine
        M[2 * i + 1, 2 * i], M[2 * i + 1, 2 * i + 1] = -sine, cosine
    return M

# %% tags=["row-E9"]
PE = positional_encoding(400, 512).double()
for k in (1, 17, 250):
    M = rotation(k, 512)
    error = (PE[:-k] @ M.T - PE[k:]).abs().max()
    assert error < 1e-6
    assert_close(M @ M.T, torch.eye(512).double())  # a rotation keeps lengths
    assert_close(rotation(-k, 512), M.T)  # and the way back is its transpose
    print(f"k {k:3d}: {len(PE) - k} positions shifted, largest error below 1e-6")

# %% [markdown]
# The error is that of the table, which is stored in single precision.
#
# **Picture.** So a head that looks $k$ positions back is at least *possible*. Its query at position $pos$ should be the
# encoding of $pos - k$, which is $M_k^\top PE_{pos}$, and its key the encoding itself. Here the vectors are positions
# and nothing else. We set $W^Q$ and $W^K$ by hand (times a factor, to make the softmax sharp) and draw the weights.

# %% mystnb={"image": {"alt": "Two heat maps of attention weights, 12 queries down by 12 keys across. Left, three back: the weight lies on the third diagonal below the main one; the first three rows, which have nobody three places back, look at key 0. Right, two ahead: the weight lies on the second diagonal above the main one, and the last two rows look at key 11."}, "figure": {"caption": "Two heads made by hand from rotation matrices: each query finds the key at a fixed distance, wherever it stands.", "name": "fig-pe-heads"}}
from annotated_transformer import attention_weights

positions = positional_encoding(12, 64).double()
figure, axes = plt.subplots(1, 2, figsize=(5.6, 2.8), layout="constrained")
for ax, (k, title) in zip(axes, ((3, "three back"), (-2, "two ahead"))):
    W_Q, W_K = 4 * rotation(-k, 64).T, 4 * torch.eye(64).double()
    alpha = attention_weights(positions @ W_Q, positions @ W_K)
    inside = range(3, 12) if k > 0 else range(10)
    assert all(alpha[pos].argmax() == pos - k for pos in inside)
    plot_attention(alpha, range(12), range(12), ax=ax, title=title)
plt.show()

# %% [markdown]
# Whether a trained model uses this, equation {eq}`pe-rotation` does not say; the paper itself writes that the authors
# "hypothesized" it. In a real model the token's embedding is added to the position, which disturbs the picture, and
# training must find the matrices.
#
# ### The dot products of positions
#
# **Question.** How similar are two positions to each other?
#
# **Equation.** Multiply two rows, pair by pair, with
# $\sin a \sin b + \cos a \cos b = \cos(a - b)$:
#
# $$
# PE_{pos} \cdot PE_{pos+k} = \sum_{i=0}^{d_{\mathrm{model}}/2 - 1} \cos(\omega_i k)
# $$ (pe-dot)
#
# Only the *distance* $k$ is left, and because $\cos(-x) = \cos x$, not even its sign. At $k = 0$ each term is 1, so
# every row has the squared length $d_{\mathrm{model}}/2$.
#
# **Check.**

# %% tags=["row-F9"]
omega = 10000.0 ** (-torch.arange(0, 128, 2).double() / 128)
table = positional_encoding(60, 128).double()
products = table @ table.T
for k in (0, 1, 7, 40):
    by_hand = torch.cos(omega * k).sum()
    diagonal = products.diagonal(k)
    assert_close(diagonal, by_hand.expand_as(diagonal), rtol=0, atol=1e-4)
    assert_close(products.diagonal(-k), diagonal)
    print(f"distance {k:2d}: {by_hand:.3f}")

# %% [markdown]
# **Picture.** All dot products of 60 positions at once. Every diagonal has one colour. On the right, one row of the
# map.

# %% mystnb={"image": {"alt": "Left: heat map of the dot products of 60 positions with 60 positions, bright on the main diagonal and darker away from it, with the same value along every diagonal. Right: one row of it, for position 30: a peak of 64 at position 30, falling on both sides alike to about 36, with small ripples."}, "figure": {"caption": "Dot products of positions ($d_{\\mathrm{model}} = 128$): the map, and its row for position 30.", "name": "fig-pe-dot"}}
figure, axes = plt.subplots(1, 2, figsize=(5.8, 2.6), layout="constrained")
image = axes[0].imshow(products, cmap=HEAT_MAP)
axes[0].set(xlabel="position", ylabel="position")
figure.colorbar(image, ax=axes[0], label="dot product")
axes[1].plot(products[30])
axes[1].set(xlabel="position", ylabel="dot product with position 30", ylim=(0, 70))
plt.show()
assert products[30].argmax() == 30 and products[30, 30].round() == 64

# %% [markdown]
# Neighbours are similar, distant positions less so, but the fall is not quite even: each pair brings its own ripple.
# The map is symmetric, so the bare dot product cannot tell left from right. With a rotation in $W^Q$, as above, it can.
#
# **Where.**
#
# - Code: `positional_encoding` in `annotated_transformer/model/embedding.py`.
# - Tests: `test_positions_shifted_by_k_are_positions_rotated` in `tests/test_paper.py`.
# - Exercises: {ref}`ex-pe-rotation`, {ref}`ex-pe-length`.

# %% [markdown]
# ## A famous mistake: $2i$ against $i$
#
# **Question.** Would you notice a wrong formula?
#
# Of the questions about Transformer code that we found in public threads, those about this formula are among the most
# frequent. A program likes to loop over the even *columns* $c = 0, 2, 4, \ldots$, and then the paper's $2i$ is $c$
# itself. Three departures are in circulation:
#
# | name | sine column $c$ | cosine column $c + 1$ | what happened |
# |---|---|---|---|
# | right | $c / d$ | $c / d$ | |
# | doubled | $2c / d$ | $2c / d$ | the loop variable taken for the pair's number |
# | doubled, unpaired | $2c / d$ | $2(c + 1) / d$ | and each column with its own |
# | unpaired | $c / d$ | $(c + 1) / d$ | no doubling, but each column with its own |
#
# (The entries are the exponents of 10000.)
#
# **Code.** One function that makes all four.

# %%
exponents = {  # of 10000, times d_model, for the even column c
    "right": (lambda c: c, lambda c: c),
    "doubled": (lambda c: 2 * c, lambda c: 2 * c),
    "doubled, unpaired": (lambda c: 2 * c, lambda c: 2 * (c + 1)),
    "unpaired": (lambda c: c, lambda c: c + 1),
}

# %%
def encoding(name, length, d_model):
    of_sine, of_cosine = exponents[name]
    pos = torch.arange(length).double()[:, None]
    c = torch.arange(0, d_model, 2).double()
    sine = torch.sin(pos / 10000 ** (of_sine(c) / d_model))
    cosine = torch.cos(pos / 10000 ** (of_cosine(c) / d_model))
    return torch.stack([sine, cosine], dim=-1).flatten(1)

assert_close(encoding("right", 50, 64).float(), positional_encoding(50, 64))

# %% [markdown]
# **Check.** Nothing crashes, and all values lie between -1 and 1. Training does not complain either
# ({ref}`ex-pe-train`). So we ask for the *properties* of the chapter, one by one.
#
# 1. *Equal to the printed table?*
# 2. *Is a shift the rotation $M_k$ of the printed formula?*
# 3. *Is a shift linear at all?* For that we look for the best possible matrix, by least squares, and see what
#    it leaves over.
# 4. *Does the dot product depend on the distance only?*
# 5. *How many columns move* by more than 0.01 over 200 positions?

# %%
def properties(PE, k=5):
    d_model = PE.size(1)
    before, after = PE[:-k], PE[k:]
    best = torch.linalg.lstsq(before, after, driver="gelsd").solution
    products = PE @ PE.T
    spread = [products.diagonal(j).max() - products.diagonal(j).min() for j in range(100)]
    return {
        "printed table": (PE - encoding("right", *PE.shape)).abs().max(),
        "rotation M_k": (before @ rotation(k, d_model).T - after).abs().max(),
        "any matrix": (before @ best - after).abs().max(),
        "distance only": max(spread),
    }

# %% tags=["row-E9"]
for name in exponents:
    PE = encoding(name, 200, 16)
    holds = {test: bool(error < 1e-6) for test, error in properties(PE).items()}
    n_moving = int((PE.amax(dim=0) - PE.amin(dim=0) > 0.01).sum())
    print(f"{name}: {n_moving} of 16 columns move")
    for test, yes in holds.items():
        print(f"    {test:14} {'holds' if yes else 'FAILS'}")
    assert all(holds.values()) == (name == "right")
    assert holds["any matrix"] == holds["distance only"] == (name in ("right", "doubled"))

# %% [markdown]
# So the mistakes are of two kinds.
#
# **Doubling** is harmless to the algebra. Sine and cosine of a pair still have one angle, so a shift is still a
# rotation, with other angles, and dot products still depend on the distance only. What suffers is the range: the
# wavelengths run up to nearly $10000^2 \cdot 2\pi$, and half of the pairs have wavelengths of $10000 \cdot 2\pi$ or
# more. Of the 16 columns here, 7 hardly move over 200 positions, against 1 with the right formula. They are wasted, not
# wrong. The test with the *printed* $M_k$ finds it.
#
# **Unpairing** breaks the property itself. Sine and cosine have different angles, and no matrix whatsoever turns the
# row of $pos$ into the row of $pos + k$ for all positions: the best one is off by about 1, as much as the
# values themselves.
#
# What neither mistake breaks is what a model needs most. All rows are still different from each other, so that
# positions can be told apart:

# %%
for name in exponents:
    PE = encoding(name, 200, 16)
    distance = torch.cdist(PE, PE).fill_diagonal_(math.inf).min()
    assert distance > 0.05
    print(f"{name:18} closest two of 200 positions: {distance:.2f} apart")

# %% [markdown]
# So such models can train, and the mistake lives on. Equation {eq}`pe-rotation`, with the printed
# $\omega_i$, is a test that catches all three, in a few lines. (With angles read off the table itself it would let the
# doubling pass.) The test that one writes first, for range and shape, catches none.
#
# **Where.**
#
# - Tests: `test_positional_encoding_is_the_printed_formula` in `tests/model/test_embedding.py`,
#   `test_positions_shifted_by_k_are_positions_rotated` in `tests/test_paper.py`.
# - Exercises: {ref}`ex-pe-train`; more mistakes in [Common mistakes](common_mistakes.ipynb).

# %% [markdown]
# ## Interleaved or concatenated
#
# **Question.** The paper's formula alternates sine, cosine, sine, cosine. The authors' code puts all sines first and
# all cosines after them. Which is right?
#
# **Equation.** Let $\Pi$ be the permutation of columns that takes one order to the other. If $x$ is the sum of
# embedding and position in the first order, then $x\, \Pi$ is the sum in the second, provided that the embedding's
# columns are permuted as well. Whatever matrix $W$ comes next, the matrix $\Pi^\top W$ undoes the change:
#
# $$
# (x\, \Pi)(\Pi^\top W) = x\, W \qquad \text{because } \Pi\, \Pi^\top = I
# $$ (pe-permutation)
#
# Embeddings and matrices are *learned*, from random values in which no column is special. So both orders give the same
# models with the same probability.
#
# **Check.** On a whole model. Every matrix that reads or writes a vector of $d_{\mathrm{model}}$ entries gets its rows
# or columns permuted (remember that `nn.Linear` stores $W^\top$); the tables of positions differ; the logits agree.

# %%
def permute_columns(model, order):
    """The same model with the d_model entries of every vector in another order."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if {"W_O", "W_2", "norm"} & set(name.split(".")):  # they write d_model entries
                weight.copy_(weight[order])
            elif not name.endswith("W_1.bias"):  # they read them; the hidden layer stays
                weight.copy_(weight[:, order])

def concatenated(length, d_model):
    table = positional_encoding(length, d_model)
    return torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)

# %%
torch.manual_seed(0)
model = Transformer(ModelConfig(vocab_size=20, N=2, d_model=16, d_ff=24, h=2)).eval()
with torch.no_grad():
    expected = model(source, target_in)
    model.positions = SinusoidalPositions(16, encoding=concatenated)
    other = model(source, target_in)
    permute_columns(model, order=torch.cat([torch.arange(0, 16, 2), torch.arange(1, 16, 2)]))
    again = model(source, target_in)
print(f"other positions, old weights: logits differ by {(other - expected).abs().max():.4f}")
assert_close(again, expected, rtol=0, atol=1e-5)
assert (other - expected).abs().max() > 0.1

# %% [markdown]
# The printed difference is the fine print: two *trained* models cannot exchange their tables. If you load somebody's
# weights, you must know which order they were trained with.
#
# The function in the package, `concatenated_positional_encoding`, is the authors' own: it differs from the printed
# formula in the order *and* in the exponent of the wavelengths. The first is a permutation of columns; the second is
# not. Its rows keep the rotation property, with their own angles:

# %% tags=["row-E9"]
theirs = concatenated_positional_encoding(200, 16).double()
interleaved = torch.stack([theirs[:, :8], theirs[:, 8:]], dim=-1).flatten(1)
errors = properties(interleaved)
for test, error in errors.items():
    print(f"{test:14} {'holds' if error < 1e-4 else 'FAILS'}")
assert errors["any matrix"] < 1e-4 < errors["rotation M_k"]

# %% [markdown]
# **Where.**
#
# - Code: `concatenated_positional_encoding` in `annotated_transformer/model/embedding.py`; `positions="concatenated"` in
#   `ModelConfig`.
# - Exercises: {ref}`ex-pe-columns`.

# %% [markdown]
# ## Learned positions
#
# **Question.** Why compute the positions at all? The model learns everything else.
#
# The paper tried that: one learned vector for each position, as in {cite:t}`gehring2017convolutional`. Row (E) of its
# Table 3 has "nearly identical results", 25.7 BLEU against 25.8 (numbers quoted from there).
#
# **Code.** A second embedding, looked up by position instead of by word.

# %%
from annotated_transformer.model.embedding import LearnedPositions

show(LearnedPositions)

# %% [markdown]
# **Check.** It costs $\mathit{max\_len} \cdot d_{\mathrm{model}}$ parameters, where the sinusoids cost none, and it is
# trained like any weight: only the positions that occur get a gradient.

# %% tags=["row-S16"]
torch.manual_seed(0)
config = ModelConfig(vocab_size=20, N=1, d_model=16, d_ff=32, h=2, positions="learned", max_len=12)
model = Transformer(config)
assert model.positions.weight.shape == (12, 16)
assert not list(SinusoidalPositions(16).parameters())

model(source, target_in).square().sum().backward()  # 7 source and 4 target positions
touched = model.positions.weight.grad.abs().sum(dim=1) > 0
print(touched.int())
assert touched.tolist() == [True] * 7 + [False] * 5

# %% [markdown]
# **Break it.** Go past the end. There is no vector for position 12, and the package says so. Between the longest
# sentence seen in training and `max_len` the case is worse, since nothing complains: those vectors exist, and still
# have the random values they were born with.

# %% tags=["row-S16"]
assert torch.equal(positional_encoding(13, 16)[:12], positional_encoding(12, 16))
try:
    model(torch.full((1, 13), 4), target_in)
except ConfigError as error:
    print(error)
    assert str(error) == "learned positions end at max_len 12, got length 13"
else:
    raise AssertionError("a position past the end was found")

# %% [markdown]
# The sinusoids have no end. Whether a model can *use* the row of a position that it never saw in training is another
# question, and the next section measures it.
#
# **Where.**
#
# - Code: `LearnedPositions` in `annotated_transformer/model/embedding.py`; `positions="learned"` and `max_len` in
#   `ModelConfig`.
# - Tests: `test_learned_positions_end` in `tests/model/test_embedding.py`.
# - Exercises: {ref}`ex-pe-cost`; row (E) of Table 3 is run in [chapter 6.2](6_2_variations.ipynb).

# %% [markdown]
# ## Longer than anything seen
#
# **Question.** Train on short sentences, test on long ones. Do the sinusoids help?
#
# The paper chose them "because it may allow the model to extrapolate to sequence lengths longer than the ones
# encountered during training". It says *may*, and reports no experiment. Here is a small one.
#
# **The task** is to copy: the target is the source. Copying is all about position: to write symbol $t$, look at place
# $t$. The sentences have 3 to 10 symbols, each drawn at random from an alphabet of ten. We train three models with one
# layer in each stack, which differ in their positions only, and then ask for sentences of 20.

# %%
from annotated_transformer import TrainConfig, label_smoothed_cross_entropy, make_adam

def copy_batch(n, length, generator):
    """(source, target_in, target_out) with random symbols 3 to 12."""
    symbols = torch.randint(3, 13, (n, length), generator=generator)
    bos, eos = torch.full((n, 1), 1), torch.full((n, 1), 2)
    with_eos = torch.cat([symbols, eos], dim=1)
    return with_eos, torch.cat([bos, symbols], dim=1), with_eos

# %%
def train_copier(model, steps=800, peak_rate=0.01):
    generator, optimizer = torch.Generator().manual_seed(0), make_adam(model, TrainConfig())
    for step in range(steps):
        length = int(torch.randint(3, 11, (), generator=generator))
        source, target_in, target_out = copy_batch(32, length, generator)
        logits = model.train()(source, target_in)
        loss, _ = label_smoothed_cross_entropy(logits, target_out, eps_ls=0.0)
        (loss / target_out.numel()).backward()
        warm, cool = min(1, (step + 1) / 50), 1 - step / steps
        optimizer.param_groups[0]["lr"] = peak_rate * warm * cool
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()

# %% [markdown]
# The measure is the share of right symbols, for each position of the sentence. It is a kind one: at every position the
# model is handed the right beginning (teacher forcing), so that one mistake does not spoil the rest. Guessing gives
# one in ten.

# %%
def accuracy(model, length):
    """Share of right symbols at each position, over 300 sentences."""
    source, target_in, target_out = copy_batch(300, length, torch.Generator().manual_seed(1))
    with torch.no_grad():
        right = model(source, target_in).argmax(dim=-1) == target_out
    return right[:, :length].float().mean(dim=0)

# %% tags=["nbval-ignore-output", "row-X11", "row-X13"]
copiers = {}
for positions in ("sinusoidal", "learned", "none"):
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=13, N=1, d_model=32, d_ff=64, h=2, p_drop=0.0,
                         positions=positions, max_len=40)
    copiers[positions] = train_copier(Transformer(config))
    by_length = {n: accuracy(copiers[positions], n).mean() for n in (5, 10, 12, 15, 20)}
    print(f"{positions:10}", "  ".join(f"{n}: {share:.2f}" for n, share in by_length.items()))
    if positions == "none":
        assert by_length[10] < 0.6
    else:
        assert by_length[5] > 0.95 and by_length[10] > 0.9
        assert by_length[20] < 0.75

# %% [markdown]
# The numbers in this section vary a little from one processor to another; the assertions hold the large differences.
#
# **Picture.** Where in a sentence of 20 do things go wrong?

# %% tags=["row-X11"] mystnb={"image": {"alt": "Line chart: share of right symbols against the position in sentences of 20 symbols. Learned positions are at 1 up to position 9, sinusoidal ones too but for a dip to 0.7. From position 10 on, which is shaded as beyond the training sentences, the learned ones are at or below the dotted line of guessing at 0.1, and the sinusoidal ones go up and down between 0.1 and 0.6. Without positions the line lies between 0.2 and 0.5 all along."}, "figure": {"caption": "Copying sentences of 20 symbols after training on 3 to 10. Measured here, one run of each model.", "name": "fig-pe-longer"}}
figure, ax = plt.subplots(figsize=(5.6, 2.8), layout="constrained")
for (positions, model), style in zip(copiers.items(), ("o-", "s--", "^:")):
    shares = accuracy(model, 20)
    ax.plot(shares, style, markersize=4, label=positions)
    if positions != "none":
        assert shares[:10].mean() > 0.65 > 0.45 > shares[10:].mean()
ax.axvspan(9.5, 19.5, color="0.9", label="beyond the training sentences")
ax.axhline(0.1, color="0.5", linestyle=":", label="guessing")
ax.set(xlabel="position", ylabel="share right", ylim=(0, 1.05), xticks=range(0, 20, 2))
figure.legend(fontsize=7, loc="outside upper center", ncols=3)
plt.show()

# %% [markdown]
# Three things can be read off.
#
# - **Without positions the task cannot be learned.** The model knows which symbols occur, and can do better than
#   guessing with that, but not where they stand.
# - **Learned positions break off** after the last position seen. Those vectors were never trained.
# - **So do the sinusoids**, on this task. All their columns have values at position 15, but the *combination* is new,
#   and the layers that read it were fitted to positions 0 to 10 (at 10 stands the end mark of
#   the longest sentences).
#
# This is one small model on one task and does not settle the question. Larger studies point the same way: language
# models with sinusoidal positions get worse soon after the length they were trained on {cite}`press2022train`, and in
# a comparison on reasoning and arithmetic tasks the decoders that generalised best to longer sequences were those
# *without* positional encoding {cite}`kazemnejad2023impact`. What came later, rotations applied to queries and keys
# {cite}`su2021roformer` and penalties for distance {cite}`press2022train`, is told in
# [After the paper](after_the_paper.ipynb). "Allows extrapolation", as many summaries have it, is more than the paper
# says and more than we find.
#
# **Where.**
#
# - Exercises: {ref}`ex-pe-offset`, {ref}`ex-pe-train`.

# %% [markdown]
# ## Exercises
#
# Each has a hint and a solution, and both stay closed until you open them. Where the answer can be computed, a folded
# cell below the exercise computes it.
#
# ```{exercise} Three rows
# :label: ex-pe-rows
#
# For $d_{\mathrm{model}} = 6$, give $\omega_0, \omega_1, \omega_2$, the shape of the table of ten positions, and its
# rows 0 and 2 to three places.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $10000^{2/6} = 10^{4/3} = 21.54$.
# ```
#
# ```{solution} ex-pe-rows
# :class: dropdown
#
# $\omega = 1,\ 1/21.54 = 0.0464,\ 1/464.2 = 0.00215$. The shape is $10 \times 6$. Row 0 is $(0, 1, 0, 1, 0, 1)$. Row
# 2 is $(\sin 2, \cos 2, \sin 0.0928, \cos 0.0928, \sin 0.0043, \cos 0.0043)$, which is
# $(0.909, -0.416, 0.093, 0.996, 0.004, 1.000)$.
# ```

# %% tags=["hide-cell"]
table = positional_encoding(10, 6)
assert table.shape == (10, 6)
assert table[0].tolist() == [0, 1, 0, 1, 0, 1]
answer = torch.tensor([0.909, -0.416, 0.093, 0.996, 0.004, 1.000])
assert_close(table[2], answer, rtol=0, atol=5e-4)

# %% [markdown]
# ```{exercise} Write it
# :label: ex-pe-write
#
# Write `positional_encoding(length, d_model)` with tensors, without a loop over positions. Check it with
# `check("3.5", your_function)`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The angles are an outer product: positions as a column, $\omega$ as a row. Sines go to the columns `0::2`.
# ```
#
# ```{solution} ex-pe-write
# :class: dropdown
#
# Below. The slices `0::2` and `1::2` do the interleaving; the exponent is the even column number over
# $d_{\mathrm{model}}$, the paper's $2i$.
# ```

# %% tags=["hide-cell"]
def my_positional_encoding(length, d_model):
    column = torch.arange(0, d_model, 2)
    angle = torch.arange(length)[:, None] / 10000 ** (column / d_model)
    table = torch.empty(length, d_model)
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
    return table

check("3.5", my_positional_encoding)

# %% [markdown]
# ```{exercise} The rotation
# :label: ex-pe-rotation
#
# Write `rotation(k, d_model)`, the matrix $M$ with $M\, PE_{pos} = PE_{pos+k}$, without a loop over pairs. Check it
# with `check("3.5-rotation", your_function)`. What are $M_0$, $M_j M_k$ and $M_k^{-1}$?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `torch.block_diag(*blocks)` puts matrices on a diagonal. Or: assign `M[even, even]`, `M[even, odd]`, ... by index.
# ```
#
# ```{solution} ex-pe-rotation
# :class: dropdown
#
# $M_0 = I$, $M_j M_k = M_{j+k}$, $M_k^{-1} = M_{-k} = M_k^\top$: turning by $\theta_j$ and then by $\theta_k$ is
# turning by their sum. This is more than the table needs. It means that shifts can be composed: a head two layers up
# can use "three back" of "two back".
# ```

# %% tags=["hide-cell"]
def my_rotation(k, d_model):
    even = torch.arange(0, d_model, 2)
    theta = k / 10000 ** (even.double() / d_model)
    M = torch.zeros(d_model, d_model, dtype=torch.float64)
    M[even, even] = M[even + 1, even + 1] = theta.cos()
    M[even, even + 1], M[even + 1, even] = theta.sin(), -theta.sin()
    return M

check("3.5-rotation", my_rotation)
assert_close(my_rotation(0, 16), torch.eye(16).double())
assert_close(my_rotation(3, 16) @ my_rotation(4, 16), my_rotation(7, 16))
assert_close(my_rotation(5, 16).inverse(), my_rotation(-5, 16))

# %% [markdown]
# ```{exercise} How long is a position?
# :label: ex-pe-length
#
# What is the length (the norm) of $PE_{pos}$? With rows of the embedding drawn with variance $1/d_{\mathrm{model}}$ and
# multiplied by $\sqrt{d_{\mathrm{model}}}$, as in the package, how long is a token's vector? And without the factor?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $\sin^2 + \cos^2 = 1$ in every pair. The squared length of a random vector is the sum of its variances.
# ```
#
# ```{solution} ex-pe-length
# :class: dropdown
#
# $\sqrt{d_{\mathrm{model}}/2}$, 16 in the base model, for every position. The token's vector has a length of about
# $\sqrt{d_{\mathrm{model}}} = 22.6$, so word and position are of the same order. Without the factor it would be about
# 1, and the position sixteen times as long as the word.
# ```

# %% tags=["hide-cell"]
from annotated_transformer import SharedEmbedding

torch.manual_seed(0)
lengths = positional_encoding(1000, 512).norm(dim=1)
assert_close(lengths, torch.full((1000,), 16.0))
words = SharedEmbedding(1000, 512)(torch.arange(1000)).norm(dim=1)
assert abs(words.mean() / math.sqrt(512) - 1) < 0.01
print(f"position {lengths[0]:.1f}  word {words.mean():.1f}")

# %% [markdown]
# ```{exercise} Nearly the same
# :label: ex-pe-repeat
#
# Which position $p > 0$ below 50 is hardest to tell from position 0 by the *first pair* alone? By how much do all
# columns of the base model tell the two apart?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Find a whole number close to a multiple of $2\pi = 6.2832$.
# ```
#
# ```{solution} ex-pe-repeat
# :class: dropdown
#
# $7 \cdot 2\pi = 43.98$, so position 44, at a distance of 0.018 in the first pair. Over all 512 columns the distance is
# 15.6, since the other pairs have other wavelengths and are elsewhere in their circles. (Two vectors of this length
# in random directions would be about $\sqrt{2} \cdot 16 = 22.6$ apart.)
# ```

# %% tags=["hide-cell"]
table = positional_encoding(50, 512)
first_pair = (table[1:, :2] - table[0, :2]).norm(dim=1)
closest = int(first_pair.argmin()) + 1
everything = (table[closest] - table[0]).norm()
print(f"position {closest}: first pair {first_pair.min():.4f}, all columns {everything:.1f}")
assert closest == 44 and first_pair.min() < 0.02 and 15 < everything < 16

# %% [markdown]
# ```{exercise} One layer
# :label: ex-pe-one-layer
#
# Show equation {eq}`pe-equivariance` for one `EncoderLayer` and random vectors. Then give the layer's self-attention
# the causal mask. Does it still hold?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `layer(x, mask)` takes a mask of shape (B, 1, 1, S); for a causal one, call
# `layer.self_attention(x, x, causal=True)`.
# ```
#
# ```{solution} ex-pe-one-layer
# :class: dropdown
#
# It holds for the layer and fails for causal attention, because the mask is tied to positions: the token that is moved
# to the front loses sight of the others.
# ```

# %% tags=["hide-cell"]
from annotated_transformer.model.stacks import EncoderLayer

torch.manual_seed(0)
layer = EncoderLayer(ModelConfig.tiny(vocab_size=20)).eval()
x = torch.randn(1, 7, 128)
assert_close(layer(x[:, order], None), layer(x, None)[:, order], rtol=0, atol=1e-5)
causal = layer.self_attention(x, x, causal=True)
causal_moved = layer.self_attention(x[:, order], x[:, order], causal=True)
assert not torch.allclose(causal_moved, causal[:, order], atol=1e-2)

# %% [markdown]
# ```{exercise} Columns do not matter
# :label: ex-pe-columns
#
# Take random embeddings $e$, the table $PE$, a matrix $W$ and a random permutation of the columns. Verify equation
# {eq}`pe-permutation` for $(e + PE)\,W$. Then permute only $PE$. Is the result still the same? Why do models with
# interleaved and with concatenated positions nevertheless learn equally well?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Permuting the columns of `x` by an index `p` goes with permuting the *rows* of $W$ by `p`.
# ```
#
# ```{solution} ex-pe-columns
# :class: dropdown
#
# If only $PE$ is permuted, the result differs for these weights. But there are other weights (those with $e$ and
# $W$ permuted) that give the old result, and training starts from random values which are as likely in one order as
# in the other.
# ```

# %% tags=["hide-cell"]
torch.manual_seed(0)
e, PE, W, p = torch.randn(5, 16), positional_encoding(5, 16), torch.randn(16, 3), torch.randperm(16)
assert_close((e + PE)[:, p] @ W[p], (e + PE) @ W)
assert not torch.allclose((e + PE[:, p]) @ W, (e + PE) @ W, atol=0.1)

# %% [markdown]
# ```{exercise} The price of row (E)
# :label: ex-pe-cost
#
# How many parameters do learned positions add to the base model, with `max_len` 1,024? What share of the whole is
# that, with a vocabulary of 37,000? Use `count_parameters` of the package.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `ModelConfig.base(37_000, positions="learned")`.
# ```
#
# ```{solution} ex-pe-cost
# :class: dropdown
#
# $1024 \cdot 512 = 524{,}288$, or 0.8 percent. The encoder and the decoder share one table in the package.
# ```

# %% tags=["hide-cell"]
from annotated_transformer.tables.cost import count_parameters

sinusoidal = count_parameters(ModelConfig.base(37_000))
learned = count_parameters(ModelConfig.base(37_000, positions="learned"))
assert learned - sinusoidal == 1024 * 512 == 524_288
print(f"{(learned - sinusoidal) / sinusoidal:.1%}")

# %% [markdown]
# ```{exercise} Train with the mistake
# :label: ex-pe-train
#
# Give the copier the table of the mistake "doubled, unpaired" and train it. Would its accuracy on sentences of 10 have
# told you that something is wrong?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `model.positions = SinusoidalPositions(32, encoding=...)` with a function of `(length, d_model)` that returns
# single precision.
# ```
#
# ```{solution} ex-pe-train
# :class: dropdown
#
# It would not: the wrong table passes, like the right one. The rotation test finds at once what training does not
# show.
# ```

# %% tags=["hide-cell", "nbval-ignore-output"]
def mistaken(length, d_model):
    return encoding("doubled, unpaired", length, d_model).float()

torch.manual_seed(0)
config = ModelConfig(vocab_size=13, N=1, d_model=32, d_ff=64, h=2, p_drop=0.0)
model = Transformer(config)
model.positions = SinusoidalPositions(32, encoding=mistaken)
share = accuracy(train_copier(model), length=10).mean()
print(f"share right with the mistaken positions, length 10: {share:.2f}")
assert share > 0.9

# %% [markdown]
# ```{exercise} Which part is new?
# :label: ex-pe-offset
#
# The trained sinusoidal copier fails at length 20. Is it the *positions* beyond 10 that it cannot use, or the *length*?
# Shift a sentence of length 8: let source and target both begin at position 10 instead of 0
# (`model.embed(tokens, start=10)`), and measure.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `model.encoder(model.embed(source, start=10), None)` is the memory; then `model.decoder(...)` and `model.logits`.
# ```
#
# ```{solution} ex-pe-offset
# :class: dropdown
#
# It fails on short sentences as well when they stand at positions 10 to 17. By the rotation property, a model that had
# learned only *relative* positions would not care about a common shift of both sides. So this one did not learn that,
# although the encoding would have allowed it.
# ```

# %% tags=["hide-cell", "nbval-ignore-output"]
model = copiers["sinusoidal"]
source, target_in, target_out = copy_batch(300, 8, torch.Generator().manual_seed(2))
for start in (0, 10):
    with torch.no_grad():
        memory = model.encoder(model.embed(source, start=start), None)
        logits = model.logits(model.decoder(model.embed(target_in, start=start), memory, None))
    share = (logits.argmax(dim=-1) == target_out)[:, :8].float().mean()
    print(f"sentences of 8 at positions {start} to {start + 7}: {share:.2f} right")
    assert (share > 0.9) == (start == 0)

# %% [markdown]
# ## What to remember
#
# - Attention sees a set. Without positions the encoder is permutation equivariant, whatever it learns; only the causal
#   mask of the decoder knows about order.
# - $PE$ has a sine and a cosine of the *same* angle in each pair of columns, with wavelengths from $2\pi$ to 60,611 in
#   the base model as printed, to 62,832 in the authors' code.
# - A shift by $k$ is one rotation matrix for all positions (equation {eq}`pe-rotation`). This property, held
#   against the printed $\omega_i$, is the test that finds a wrong formula; a training run does not.
# - Dot products of positions depend on the distance only (equation {eq}`pe-dot`).
# - Interleaved or concatenated is a matter of column order, which learned weights absorb.
# - Learned positions did as well in the paper, and end at `max_len`. Neither kind copied reliably beyond the lengths
#   that it was trained on, in our small measurement.
