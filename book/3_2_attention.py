# %% [markdown]
# # 3.2 Attention
#
# *Section 3.2 of the paper {cite}`vaswani2017attention`: scaled dot-product attention, multi-head attention, and the
# three places where the model uses them.*
#
# A sentence enters the model as one vector for each token. Take *Tom sold his car because it was old*. To translate
# *it*, the model needs something that stands at another place: that *it* is the car. **Attention** is how a vector at
# one position fetches what it needs from the vectors at other positions. In this model it is the only way: no
# recurrence carries information along the sentence, and no convolution collects it from the neighbours.
#
# When you have read this chapter you can
#
# - compute attention with a pencil, and say what every row and column of its matrices means;
# - explain why the paper divides by $\sqrt{d_k}$, and what happens without it;
# - read, build and test masks, and find the ones that leak;
# - say what $h$ heads do that one cannot, and what they cost;
# - name the three attentions of the model, and where their queries, keys and values come from.
#
# You need matrix products and some Python. Each section goes the same way: a **question**, the **equation**, the
# **code** that the package runs, a **check** by hand, a **picture**, something to **break**, and **where** to find it
# all. Letters for shapes (B sentences, L positions, S source, T target, ...) are listed in [Notation](notation.md).

# %%
import math

import matplotlib.pyplot as plt
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer.looking.visualization import PALETTE, plot_attention, show, use_style

use_style()
torch.set_printoptions(precision=4, sci_mode=False)

# %% [markdown]
# ## A dictionary with soft keys
#
# **Question.** How can one vector look something up among others, so that the answer changes smoothly with the
# question?
#
# A Python dictionary answers a query only if it *equals* a key, and then gives one value. Nothing about it can be
# learned by gradient descent: move the query a little, and either nothing changes or the key is not found.
# Attention keeps the three parts and softens the comparison.
#
# - The **query** $q$ says what is looked for.
# - Each item has a **key** $k_i$, the vector it is compared by.
# - Each item has a **value** $v_i$, the vector it hands over.
#
# A **score** $f(k_i, q)$, any number, says how well key $i$ fits the query. The **softmax** turns the scores into
# **attention weights** $\alpha_i$: positive numbers with sum one. The output is the mean of the values under these
# weights.
#
# **Equation.**
#
# $$
# \alpha_i = \frac{\exp f(k_i, q)}{\sum_j \exp f(k_j, q)},
# \qquad
# \text{output} = \sum_i \alpha_i v_i
# $$ (generic-attention)
#
# **Code.** The package has no function for this general form, since the model uses one score only. Here it is in two
# lines, to play with.

# %%
def attend(score, query, keys, values):
    """The weights and the output of generic attention, for one query."""
    alpha = torch.stack([score(key, query) for key in keys]).softmax(dim=0)
    return alpha, alpha @ values

# %% [markdown]
# Our items are four winds. A wind's key is the direction it comes from, a vector of length 1; its value is the
# temperature it brings. The score is the **dot product** $k \cdot q$, which is large when the two vectors point the
# same way. The query points 30 degrees east of north; let us ask with queries of growing length.

# %%
def dot(key, query):
    return key @ query

winds = ["north", "east", "south", "west"]
keys = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]])
values = torch.tensor([[2.0], [8.0], [20.0], [12.0]])  # degrees Celsius
direction = torch.tensor([math.sin(math.radians(30)), math.cos(math.radians(30))])

for length in (0, 1, 4, 32):
    alpha, output = attend(dot, length * direction, keys, values)
    weights = " ".join(f"{a:.4f}" for a in alpha)
    print(f"length {length:2d}  alpha {weights}  output {output.item():.3f}")

# %% [markdown]
# A query of length 0 fits all keys alike and gets the plain mean, 10.5 degrees. The longer the query, the more the
# best key takes, until at length 32 the softmax is a dictionary again: north, 2 degrees. In between lies what we
# want.
#
# **Check.** The weights are a distribution; the output never leaves the range of the values; and the output has a
# gradient with respect to the query, which a dictionary has not.

# %%
query = (4 * direction).requires_grad_()
alpha, output = attend(dot, query, keys, values)
assert (alpha > 0).all() and math.isclose(alpha.sum().item(), 1, rel_tol=1e-6)
assert values.min() <= output <= values.max()
output.backward()
print("gradient of the output with respect to the query:", query.grad)

# %% [markdown]
# The signs make sense. A larger first coordinate (more east) warms the answer; a larger second one (more north) cools
# it.
#
# **Picture.** Turn the query once round the compass. A short query blurs the four winds, a long one switches from one
# to the next. The length of the query is the sharpness of the lookup, and training can choose it.

# %% mystnb={"image": {"alt": "Two line charts of the attention weight of the four winds while the query turns from 0 to 360 degrees. With a query of length 1 the four curves are gentle waves between 0.1 and 0.5. With length 8 each wind in turn has a weight near 1, with steep crossings between them."}, "figure": {"caption": "Attention weights of four keys while the query turns round. Above: a query of length 1. Below: of length 8.", "name": "fig-winds"}}
degrees = torch.arange(0, 361, 3)
circle = torch.stack([degrees.deg2rad().sin(), degrees.deg2rad().cos()], dim=1)
figure, axes = plt.subplots(2, figsize=(5, 3.8), sharex=True, layout="constrained")
for ax, length in zip(axes, (1, 8)):
    alphas = [attend(dot, length * query, keys, values)[0] for query in circle]
    for alpha, wind, dash in zip(torch.stack(alphas).T, winds, ("-", "--", "-.", ":")):
        ax.plot(degrees, alpha, dash, label=wind)
    ax.set(title=f"query of length {length}", xticks=range(0, 361, 90))
    ax.set(ylabel="attention weight", ylim=(-0.05, 1.05))
axes[1].set_xlabel("direction of the query (degrees)")
axes[0].legend(loc="upper center", ncols=4)
plt.show()

# %% [markdown]
# **Break it.** Shuffle the items: pair 3 first, then 0, 2, 1. A list would give another element at each index.
# Attention gives the same output to the last digit shown.

# %%
order = torch.tensor([3, 0, 2, 1])
_, output = attend(dot, 4 * direction, keys, values)
_, shuffled = attend(dot, 4 * direction, keys[order], values[order])
assert_close(shuffled, output)
print(f"{output.item():.4f} {shuffled.item():.4f}")

# %% [markdown]
# To attention, a sentence is a *set* of key and value pairs. That is why the model must write each token's position
# into its vector; [the chapter on section 3.5](3_5_positional_encoding.ipynb) says how.
#
# **Where.**
#
# - Code: none in the package, which has one score only; the next two sections lead to it.
# - Exercises: {ref}`ex-shift`, {ref}`ex-order`.

# %% [markdown]
# ## Three ways to score
#
# **Question.** Which score $f(k, q)$ should it be?
#
# **Equation.** Section 3.2.1 compares three. Before the Transformer the usual one was *additive* attention
# {cite}`bahdanau2015neural`: a small network with one hidden layer, of width $d_a$, looks at the query and the key
# together. The second is the dot product, which has no parameters {cite}`luong2015effective`. The third is the
# paper's: the dot product divided by the square root of the number of its terms.
#
# $$
# \begin{aligned}
# f_{\text{additive}}(k, q) &= w^\top \tanh(W_q\, q + W_k\, k) \\
# f_{\text{dot}}(k, q) &= k \cdot q \\
# f_{\text{scaled}}(k, q) &= \frac{k \cdot q}{\sqrt{d_k}}
# \end{aligned}
# $$ (three-scores)
#
# In the first, $w$, $W_q$ and $W_k$ are learned; $w$ has $d_a$ entries. Because of them, the query and the key may
# even differ in their number of entries. A dot product needs as many in one as in the other: **$d_k$**.
#
# **Code.** One query and one key first, as the equation reads. The sizes are small and all different, so that a
# mistake in the axes cannot hide.

# %%
torch.manual_seed(0)
n_q, n_k, d_q, d_key, d_a = 3, 4, 5, 2, 6
Q, K = torch.randn(n_q, d_q), torch.randn(n_k, d_key)
W_q, W_k, w = torch.randn(d_q, d_a), torch.randn(d_key, d_a), torch.randn(d_a)

def additive(key, query):
    return torch.tanh(query @ W_q + key @ W_k) @ w

loop = torch.tensor([[additive(key, query) for key in K] for query in Q])
print(loop.shape)

# %% [markdown]
# **Check.** All queries and keys at once. The projected queries are $n_q \times d_a$, the projected keys
# $n_k \times d_a$, and every query must meet every key. So each gets an axis of size 1 where the other has its items,
# and PyTorch repeats it along that axis (**broadcasting**) to an $n_q \times n_k \times d_a$ array.

# %% tags=["row-E3"]
hidden = torch.tanh((Q @ W_q)[:, None, :] + (K @ W_k)[None, :, :])
print("hidden:", tuple(hidden.shape), " scores:", tuple((hidden @ w).shape))
assert_close(hidden @ w, loop)

# %% [markdown]
# The two dot products differ by a factor and nothing else, as section 3.2.1 says.

# %% tags=["row-E2"]
def scaled_dot(key, query):
    return key @ query / math.sqrt(len(query))

key, query = torch.randn(2, 64)
assert_close(dot(key, query), scaled_dot(key, query) * math.sqrt(64))

# %% [markdown]
# **What they cost.** The paper calls additive and dot-product attention similar in theoretical complexity, and the
# dot product much faster and smaller in practice, since it is one matrix product. The size can be counted: additive
# attention has to hold the array `hidden`, $d_a$ numbers for each pair of query and key, and takes a tanh of every
# one. The dot product holds one number for each pair. For 512 queries, 512 keys and a width of 64:

# %%
pairs = 512 * 512
print(f"additive attention holds {pairs * 64:>10,} numbers")
print(f"dot-product attention    {pairs:>10,}")

# %% [markdown]
# And quality? For small $d_k$ the two do about equally well; for large $d_k$, additive attention does better than
# the dot product *without* a scale. The paper takes this from {cite:t}`britz2017massive`. Its own answer is to keep
# the cheap score and repair it; the repair is the square root, two sections on.
#
# **Break it.** Leave out the two `None` axes. With 3 queries and 4 keys the addition fails, which is the good case.
# With as many keys as queries it runs, and is wrong without a word: query 0 meets key 0 only, query 1 meets key 1
# only.

# %%
try:
    torch.tanh(Q @ W_q + K @ W_k)
except RuntimeError as error:
    print("3 queries, 4 keys:", type(error).__name__)
else:
    raise AssertionError("3 queries and 4 keys were added up")
wrong = torch.tanh(Q @ W_q + K[:3] @ W_k) @ w
print("3 queries, 3 keys:", tuple(wrong.shape), "instead of", tuple(loop[:, :3].shape))
assert_close(wrong, loop[:, :3].diagonal())

# %% [markdown]
# This is why the tests of this package use unequal sizes everywhere.
#
# **Where.**
#
# - Code: additive attention is not part of the Transformer, so the package has none; the third score becomes
#   `scaled_dot_product_attention`.
# - Exercises: {ref}`ex-write-additive`.

# %% [markdown]
# ## Equation 1: scaled dot-product attention
#
# **Question.** A sentence asks one question from every position. How do we answer all of them at once?
#
# **Equation.** Stack the queries as the rows of a matrix $Q$, the keys as the rows of $K$, the values as the rows of
# $V$. The matrix $QK^\top$ then has every query's dot product with every key: row $i$, column $j$ is $q_i \cdot k_j$.
# Scale it, apply the softmax to each row, multiply by $V$. This is the paper's equation 1.
#
# $$
# \mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{QK^\top}{\sqrt{d_k}}\right) V
# $$ (attention)
#
# | matrix | shape | a row is | a column is |
# |---|---|---|---|
# | $Q$ | $L \times d_k$ | one query | |
# | $K$ | $S \times d_k$ | one key | |
# | $V$ | $S \times d_v$ | the value that belongs to that key | |
# | $QK^\top$, weights | $L \times S$ | one query's view of all keys | one key, seen by all queries |
# | output | $L \times d_v$ | the answer to one query | |
#
# Two sizes must agree: queries and keys in $d_k$, keys and values in their number $S$. The number of queries $L$ and
# the width $d_v$ of the values are free.
#
# ![Scaled dot-product attention, read from below: the product of Q and K transposed, the division by the root of d k, the mask where there is one, the softmax, and the product with V.](figures/scaled_dot_product.svg)
#
# **Code.** The package has the equation in two functions, the weights and the whole.

# %%
from annotated_transformer import attention_weights

show(attention_weights)

# %%
from annotated_transformer import scaled_dot_product_attention

show(scaled_dot_product_attention)

# %% [markdown]
# The `*B` in the shapes stands for leading axes, such as sentences and heads: the last two axes are the matrices, and
# everything before them is a batch. The `mask` has a section of its own below; without one, all keys are visible.
#
# **Check.** Loops, in Python floats, with nothing of PyTorch but the numbers: the equation as the letters say it.
# Then the same from the package, and from PyTorch's own kernel, which was written by other people.

# %%
def attention_by_hand(Q, K, V):
    output = []
    for q in Q:
        scores = [sum(a * b for a, b in zip(q, k)) / math.sqrt(len(k)) for k in K]
        total = sum(math.exp(s) for s in scores)
        alpha = [math.exp(s) / total for s in scores]
        output.append([sum(a * v for a, v in zip(alpha, column)) for column in zip(*V)])
    return torch.tensor(output, dtype=torch.float64)

# %% tags=["row-E1"]
torch.manual_seed(0)
L, S, d_k, d_v = 2, 3, 4, 5
Q = torch.randn(L, d_k, dtype=torch.float64)
K = torch.randn(S, d_k, dtype=torch.float64)
V = torch.randn(S, d_v, dtype=torch.float64)
by_hand = attention_by_hand(Q.tolist(), K.tolist(), V.tolist())
assert_close(by_hand, scaled_dot_product_attention(Q, K, V))
assert_close(by_hand, F.scaled_dot_product_attention(Q, K, V))

# %% [markdown]
# And equation {eq}`generic-attention`, one query after the other, with the scaled dot product as its score, is the
# same thing again.

# %% tags=["row-E4"]
one_by_one = torch.stack([attend(scaled_dot, query, K, V)[1] for query in Q])
assert_close(one_by_one, by_hand)

# %% [markdown]
# Now you. Three examples, small enough for a pencil; they are W1 to W3 of a list that runs through this chapter.
#
# ```{exercise} W1: three queries, three keys
# :label: ex-w1
#
# $$
# Q = \begin{pmatrix} 1 & 0 \\ 0 & 1 \\ 1 & 1 \end{pmatrix} \quad
# K = \begin{pmatrix} 1 & 1 \\ 0 & 1 \\ 1 & 0 \end{pmatrix} \quad
# V = \begin{pmatrix} 0 & 2 \\ 1 & 1 \\ 2 & 0 \end{pmatrix}
# $$
#
# Compute $QK^\top$, the weights and the output. What is $d_k$? Keep exact expressions such as $e^{1/\sqrt 2}$ until
# the last step, and round then, to four places.
# ```
#
# ```{solution} ex-w1
# :class: dropdown
#
# Here $d_k = 2$. With $t = e^{1/\sqrt 2} = 2.0281$:
#
# $$
# QK^\top = \begin{pmatrix} 1 & 0 & 1 \\ 1 & 1 & 0 \\ 2 & 1 & 1 \end{pmatrix}
# $$
#
# $$
# \alpha = \begin{pmatrix}
# \frac{t}{2t+1} & \frac{1}{2t+1} & \frac{t}{2t+1} \\
# \frac{t}{2t+1} & \frac{t}{2t+1} & \frac{1}{2t+1} \\
# \frac{t}{t+2} & \frac{1}{t+2} & \frac{1}{t+2}
# \end{pmatrix} = \begin{pmatrix}
# 0.4011 & 0.1978 & 0.4011 \\ 0.4011 & 0.4011 & 0.1978 \\ 0.5035 & 0.2483 & 0.2483 \end{pmatrix}
# $$
#
# The last row was $t^2 : t : t$, divided by $t$. The output is
#
# $$
# \alpha V = \begin{pmatrix} 1 & 1 \\ 0.7967 & 1.2033 \\ 0.7448 & 1.2552 \end{pmatrix}
# $$
#
# Each row of $V$ adds up to 2, so each row of the output does too.
# ```
#
# The folded cell holds the answer against the package.

# %% tags=["hide-cell", "row-W1", "row-E1"]
Q1 = torch.tensor([[1.0, 0], [0, 1], [1, 1]])
K1 = torch.tensor([[1.0, 1], [0, 1], [1, 0]])
V1 = torch.tensor([[0.0, 2], [1, 1], [2, 0]])
alpha = attention_weights(Q1, K1)
output = scaled_dot_product_attention(Q1, K1, V1)

t = math.exp(1 / math.sqrt(2))
assert_close(alpha[1], torch.tensor([t, t, 1]) / (2 * t + 1))
assert_close(alpha[2], torch.tensor([t, 1, 1]) / (t + 2))
answer = torch.tensor([[1, 1], [0.7967, 1.2033], [0.7448, 1.2552]])
assert_close(output, answer, atol=5e-5, rtol=0)
print(alpha, output, sep="\n")

# %% [markdown]
# **Round last.** A walkthrough from which this example comes rounds $1/\sqrt 2$ to 0.71 and $\sqrt 2$ to 1.41 before
# it takes the exponential. The softmax turns a difference in a score into a *factor* in a weight: the two roundings
# together are off by 0.007, so the ratio of two weights is off by 0.7 percent, and the third digit is wrong.

# %%
rounded = torch.tensor([1.41, 0.71, 0.71]).softmax(dim=0)
print("rounded too early:", rounded)
print("rounded last:     ", alpha[2])

# %% [markdown]
# **Picture.** The same example from beginning to end, in the order of the computation. Read each matrix along its
# rows: in $Q$, the weights and the output, a row belongs to one query; in $V$, to one key.

# %%
def plot_numbers(matrix, queries, keys, ax, title):
    """A heat map with its numbers written in."""
    plot_attention(matrix, queries, keys, ax=ax, title=title)
    for i, row in enumerate(matrix.tolist()):
        for j, number in enumerate(row):
            color = "black" if number >= 0.5 * matrix.max() else "white"
            text = f"{number:.2f}".removesuffix(".00")
            ax.text(j, i, text, ha="center", va="center", color=color)

# %%
def plot_product(axes, matrices, signs):
    """Matrices side by side as grids of numbers, each with its title, and a sign between two."""
    for ax, (title, matrix) in zip(axes, matrices.items()):
        n_rows, n_columns = matrix.shape
        plot_numbers(matrix, [""] * n_rows, [""] * n_columns, ax, title)
        middle = (n_columns - 1) / 2, (n_rows - 1) / 2
        ax.set(xlim=(middle[0] - 1.5, middle[0] + 1.5), ylim=(middle[1] + 1.5, middle[1] - 1.5))
        ax.set_aspect("equal")
        ax.axis("off")
    for ax, sign in zip(axes[1:], signs):
        ax.text(-0.12, 0.5, sign, transform=ax.transAxes, ha="center", va="center", fontsize=13)

# %% tags=["row-F6", "row-W1"] mystnb={"image": {"alt": "Worked example W1 as two rows of small matrices. First row: Q, 3 by 2, times K transposed, 2 by 3, equals the dot products 1 0 1, 1 1 0, 2 1 1. Second row: the weights, the softmax of each row of the dot products divided by the square root of two, 0.40 0.20 0.40, 0.40 0.40 0.20, 0.50 0.25 0.25, times V, 3 by 2, equals the output 1 1, 0.80 1.20, 0.74 1.26. Brighter cells hold larger numbers."}, "figure": {"caption": "Equation 1 on example W1. Above: every query's dot product with every key. Below: the softmax of each row, scaled, weights the values.", "name": "fig-equation-1"}}
above = {"$Q$": Q1, "$K^\\top$": K1.T, "$QK^\\top$, row = query": Q1 @ K1.T}
below = {"weights, row = query": alpha, "$V$, row = key": V1, "output, row = query": alpha @ V1}
assert_close(below["output, row = query"], answer, atol=5e-5, rtol=0)
scaled = above["$QK^\\top$, row = query"] / math.sqrt(2)
assert_close(below["weights, row = query"], scaled.softmax(dim=1))

figure, axes = plt.subplots(2, 3, figsize=(5.6, 4.1), layout="constrained")
plot_product(axes[0], above, ("×", "="))
plot_product(axes[1], below, ("×", "="))
plt.show()

# %% [markdown]
# ```{exercise} W2: one query, and a trap
# :label: ex-w2
#
# $$
# Q = \begin{pmatrix} 1 & 1 \end{pmatrix} \quad
# K = \begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix} \quad
# V = \begin{pmatrix} 2 & 3 \\ 4 & 1 \end{pmatrix}
# $$
#
# Compute the output. A text says: "Since $K$ is a square matrix, $K^\top = K$." Is that the reason?
# ```
#
# ```{solution} ex-w2
# :class: dropdown
#
# Both scores are $1/\sqrt 2$, so both weights are exactly one half, and the output is the mean of the two values:
# $(3, 2)$. The reason is not that $K$ is square but that it is *symmetric*;
# $\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}$ is square too. Forget the transpose with such a $K$ and you get wrong
# numbers without an error, because the shapes still fit.
# ```
#
# ```{exercise} W3: four keys, and values that are plain numbers
# :label: ex-w3
#
# $Q = (1, 1, 1, 1)$, $K$ the identity matrix of size 4, and the values 2, 4, 6, 8. What is the output? Which of $d_k$
# and $d_v$ plays no part in it?
# ```
#
# ```{solution} ex-w3
# :class: dropdown
#
# Every score is $1/\sqrt 4 = 1/2$. Equal scores make equal weights whatever the scale, so $d_k$ plays no part here.
# Each weight is $1/4$ and the output is the mean, **5**. ($d_v = 1$: the output has as many columns as $V$.)
# ```

# %% tags=["hide-cell", "row-W2", "row-W3", "row-Q1"]
Q2, K2, V2 = torch.ones(1, 2), torch.eye(2), torch.tensor([[2.0, 3], [4, 1]])
assert_close(scaled_dot_product_attention(Q2, K2, V2), torch.tensor([[3.0, 2]]))

Q3, K3, V3 = torch.ones(1, 4), torch.eye(4), torch.tensor([[2.0], [4], [6], [8]])
assert_close(scaled_dot_product_attention(Q3, K3, V3), torch.tensor([[5.0]]))

K_square = torch.tensor([[1.0, 2], [3, 4]])
print("with the transpose:", Q1 @ K_square.T, "without:", Q1 @ K_square, sep="\n")

# %% [markdown]
# **Break it.** Take the softmax over the wrong axis, the queries instead of the keys. No shape changes. But now each
# *column* adds up to one: a query no longer spreads one unit of attention over the keys; the queries compete for each
# key instead, and the output is no mean of values.

# %%
scores = Q1 @ K1.T / math.sqrt(2)
wrong = scores.softmax(dim=-2)
print("row sums, right:", alpha.sum(dim=-1), " wrong:", wrong.sum(dim=-1))
print("query 3 asks, right:", alpha[2] @ V1, " wrong:", wrong[2] @ V1)

# %% [markdown]
# **Where.**
#
# - Code: `attention_weights` and `scaled_dot_product_attention` in `annotated_transformer/model/attention.py`.
# - Tests: `test_equation_1_by_hand`, `test_the_taught_function_equals_pytorchs_kernel`,
#   `test_weights_are_distributions_over_visible_keys` in `tests/model/test_attention.py`.
# - Exercises: {ref}`ex-w1`, {ref}`ex-w2`, {ref}`ex-w3` above; {ref}`ex-narrow-head`, {ref}`ex-write-attention`.

# %% [markdown]
# ## Why the square root
#
# **Question.** Why divide the scores by $\sqrt{d_k}$, and why by a root?
#
# **Equation.** The argument is footnote 4 of the paper. Let the entries of $q$ and $k$ be independent random numbers
# with mean 0 and variance 1. Each product $q_c k_c$ then has mean $0 \cdot 0 = 0$ and variance
# $\mathrm{E}[q_c^2]\,\mathrm{E}[k_c^2] = 1 \cdot 1 = 1$. Variances of independent terms add up:
#
# $$
# \mathrm{E}[q \cdot k] = \sum_{c=1}^{d_k} \mathrm{E}[q_c]\,\mathrm{E}[k_c] = 0,
# \qquad
# \mathrm{Var}(q \cdot k) = \sum_{c=1}^{d_k} \mathrm{Var}(q_c k_c) = d_k
# $$ (dot-product-variance)
#
# So scores have a standard deviation of $\sqrt{d_k}$: about 8 for the paper's $d_k = 64$. Divided by $\sqrt{d_k}$
# they have standard deviation 1, however wide the vectors are. Dividing by $d_k$ would overshoot: the scores would
# shrink to nothing as $d_k$ grows, and all weights become equal ({ref}`ex-divide`).
#
# **Check.** 10,000 random pairs for each $d_k$. The estimate of a variance from 10,000 samples is off by a few
# percent, and so are these.

# %% tags=["row-E5"]
torch.manual_seed(0)
for d_k in (1, 4, 16, 64, 256):
    q, k = torch.randn(2, 10_000, d_k)
    scores = (q * k).sum(dim=-1)
    variance, scaled_variance = scores.var(), (scores / math.sqrt(d_k)).var()
    assert abs(scores.mean()) < 4 * math.sqrt(d_k / 10_000)
    assert abs(variance / d_k - 1) < 0.1
    print(f"d_k {d_k:3d}  variance {variance:6.1f}  after division {scaled_variance:.2f}")

# %% [markdown]
# Do queries in the model look like that? At the start of training, yes: from the second layer on, a layer norm
# hands on vectors whose entries have mean 0 and variance 1, and the package draws $W^Q$ and $W^K$ by Glorot's rule
# {cite}`glorot2010understanding`, which gives a square projection a variance of $1/d_{\mathrm{model}}$ for each weight.
# $d_{\mathrm{model}}$ products of variance $1/d_{\mathrm{model}}$ add up to 1. ($W^V$ and $W^O$, which have no part in
# the scores, begin smaller: [section 3.1](3_1_stacks.ipynb) says why.)

# %%
from annotated_transformer import ModelConfig, Transformer

torch.manual_seed(0)
d_model = 512
attention = Transformer(ModelConfig.base(vocab_size=10, d_ff=8)).encoder.layers[1].self_attention
x = F.layer_norm(torch.randn(1000, d_model), [d_model])
for name in ("W_Q", "W_K", "W_V"):
    project = getattr(attention, name)
    print(f"{name}: d_model times the variance of a weight {project.weight.var() * d_model:.2f}, "
          f"variance of what it makes {project(x).var():.2f}")
    assert (abs(project(x).var() - 1) < 0.05) == (name != "W_V")

# %% [markdown]
# After some training nobody promises that any more: the model moves queries and keys as it likes, and footnote 4 is
# an argument about the start.
#
# **Why large scores are bad.** Softmax weights depend on the *differences* of scores. With differences of 8 and more,
# the largest score takes nearly everything, and the softmax is a dictionary again, with a dictionary's fault: no
# gradient. The derivative of the weights is
#
# $$
# \frac{\partial \alpha_i}{\partial s_j} = \alpha_i \,(\delta_{ij} - \alpha_j)
# $$ (softmax-jacobian)
#
# with $\delta_{ij} = 1$ if $i = j$ and 0 otherwise. If one weight is 1 and the rest are 0, every entry of this matrix
# is 0. Autograd agrees with the formula:

# %%
def softmax_jacobian(alpha):
    return torch.diag_embed(alpha) - alpha[..., :, None] * alpha[..., None, :]

s = torch.tensor([2, -1, 0.5, 0], dtype=torch.float64)
by_autograd = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), s)
assert_close(softmax_jacobian(s.softmax(-1)), by_autograd)
for factor in (1, 4, 16):
    derivative = softmax_jacobian((factor * s).softmax(-1))
    print(f"scores times {factor:2d}: norm of the derivative {derivative.norm():.1e}")

# %% [markdown]
# **Picture.** One query and ten keys, drawn at random 1,000 times for each $d_k$: the largest of the ten weights, and
# the size of the derivative {eq}`softmax-jacobian`, the median over the draws.

# %% tags=["row-E5"]
def saturation(d_k, scaled):
    """(largest weight, norm of the derivative): medians of 1,000 random queries."""
    torch.manual_seed(d_k)
    q, k = torch.randn(1000, 1, d_k), torch.randn(1000, 10, d_k)
    s = (q @ k.transpose(1, 2))[:, 0].double()
    alpha = (s / math.sqrt(d_k) if scaled else s).softmax(dim=-1)
    derivative = softmax_jacobian(alpha).flatten(1)
    return alpha.amax(dim=-1).median().item(), derivative.norm(dim=1).median().item()

for d_k in (1, 64, 512):
    for name, scaled in (("dot", False), ("scaled", True)):
        weight, derivative = saturation(d_k, scaled)
        print(f"d_k {d_k:3d}  {name:6}  largest weight {weight:.3f}  derivative {derivative:.4f}")
assert saturation(512, False)[1] < 0.01 < 0.2 < saturation(512, True)[1]

# %% mystnb={"image": {"alt": "Two charts over d_k from 1 to 1024 on a logarithmic axis. Left: the largest of ten weights rises from about 0.2 to nearly 1 for the dot product, and stays near 0.3 for the scaled dot product. Right, on a logarithmic scale: the derivative of the softmax falls from 0.3 to below one hundred thousandth for the dot product and stays near 0.35 for the scaled one."}, "figure": {"caption": "What growing $d_k$ does to the softmax: without the scale (dot product) the weights saturate and the derivative vanishes; with it, nothing changes.", "name": "fig-scale"}}
widths = [2**e for e in range(11)]
figure, axes = plt.subplots(1, 2, figsize=(5.8, 2.6), layout="constrained")
for name, scaled, style in (("dot product", False, "o--"), ("scaled dot product", True, "s-")):
    measured = zip(*[saturation(d_k, scaled) for d_k in widths])
    for ax, values_of_d_k in zip(axes, measured):
        ax.plot(widths, values_of_d_k, style, color=PALETTE[not scaled], label=name)
        ax.set_xscale("log", base=2)
        ax.set(xlabel="$d_k$", ylabel="median of 1,000 draws")
axes[0].set(title="largest of ten weights", ylim=(0, 1.05))
axes[1].set(title="derivative (norm)", yscale="log")
axes[1].legend(loc="lower left")
plt.show()

# %% [markdown]
# How sure is the paper? It says "We suspect" {cite}`vaswani2017attention`, and reports no experiment: no row of its
# Table 3 removes the scale, although some summaries claim so. And the median hides something. The *mean* gradient
# that reaches the query does not vanish: without the scale most queries get nothing, and a few, whose two best keys
# happen to tie, get a large one. Here are both, for the derivative of the weights with respect to $q$.

# %%
for d_k in (16, 64, 256):
    torch.manual_seed(d_k)
    q, k = torch.randn(1000, 1, d_k), torch.randn(1000, 10, d_k)
    for name, scale in (("dot", 1), ("scaled", 1 / math.sqrt(d_k))):
        alpha = (q @ k.transpose(1, 2) * scale)[:, 0].softmax(dim=-1)
        gradient = (softmax_jacobian(alpha) @ k * scale).flatten(1).norm(dim=1)
        mean, median = gradient.mean(), gradient.median()
        print(f"d_k {d_k:3d}  {name:6}  mean {mean:.2f}  median {median:.3f}")

# %% [markdown]
# With the scale, mean and median agree: every query learns a little. Without it, at $d_k = 256$, a typical query gets
# about a fortieth of the mean. What that does to the training of a whole model is an experiment, and the page
# [What holds](claims.ipynb) has it: small models without the scale, trained beside others with it.
#
# **Break it.** The scale is one division. Take it away at the width of one head of the paper's base model, and look
# at the weights of a single random query over six keys.

# %%
torch.manual_seed(3)
q, k = torch.randn(1, 64), torch.randn(6, 64)
print("scaled:  ", attention_weights(q, k)[0])
print("unscaled:", (q @ k.T).softmax(dim=-1)[0])

# %% [markdown]
# **Where.**
#
# - Code: one division in `attention_weights`, shown above.
# - Tests: `test_dividing_by_sqrt_d_k_keeps_the_variance_of_scores_at_one` in `tests/model/test_attention.py`.
# - Exercises: {ref}`ex-divide`, {ref}`ex-self-score`.

# %% [markdown]
# ## Masks, a small laboratory
#
# **Question.** How do you forbid a query to look at some of the keys?
#
# There are two reasons to do so. Sentences in a batch have different lengths, and the short ones are filled up with
# **padding**, which means nothing and must not be looked at. And the decoder learns to predict the next token at
# every position at once, so no position may look at what comes **after** it: that is what it has to predict.
#
# Masks fail silently. A model with a wrong mask runs, and often trains *better*, because it reads the answer. Among
# the questions that readers of Transformer code ask in public, masks are one of the commonest, so this section is a
# laboratory: build each mask, prove what it does, and see what leaks when it is wrong.
#
# **Equation.** A **mask** $M$ says for each query $i$ and key $j$ whether $i$ may look at $j$. A forbidden score
# becomes minus infinity before the softmax (section 3.2.3), and $e^{-\infty} = 0$:
#
# $$
# \alpha_{ij} = \frac{M_{ij}\, e^{s_{ij}}}{\sum_{j'} M_{ij'}\, e^{s_{ij'}}},
# \qquad s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d_k}},
# \qquad M_{ij} \in \{0, 1\}
# $$ (masked-attention)
#
# The mask acts *before* the softmax, so the remaining weights still add up to one. Setting weights to zero afterwards
# would not give that.
#
# **Code.** The two masks, and nothing more.

# %%
from annotated_transformer import padding_mask

show(padding_mask)

# %%
from annotated_transformer import causal_mask

show(causal_mask)

# %% [markdown]
# Three conventions make these readable.
#
# 1. **Polarity.** True means *may look*. This is also what `F.scaled_dot_product_attention` means by True. PyTorch's
#    older `nn.MultiheadAttention` means the opposite: there, True hides. Check it every time you cross a border.
# 2. **Rows and columns.** The last two axes are queries and keys, as in the scores. Padding hides *columns*: it is a
#    property of keys. The causal mask is a triangle: what is hidden depends on both.
# 3. **Combination.** Both conditions must hold, so masks are joined by `&`. The axes of size 1 in the shapes
#    stand for "all heads" and "all queries", and broadcasting fills them.
#
# Our batch has two sentences, of five tokens and of three; 0 is padding. The cell prints the joint mask of the second
# one.

# %%
tokens = torch.tensor([[11, 12, 13, 14, 15], [21, 22, 23, 0, 0]])
padding, causal = padding_mask(tokens, pad_id=0), causal_mask(tokens.size(1))
both = padding & causal
print(tuple(padding.shape), "&", tuple(causal.shape), "->", tuple(both.shape))
print(both[1, 0].int())

# %% [markdown]
# **Check.** By hand: query $i$ may look at key $j$ if $j$ is a real token, and $j \le i$.

# %% tags=["row-S7", "row-S8", "row-S9"]
for b, sentence in enumerate(tokens.tolist()):
    for i in range(5):
        for j in range(5):
            assert both[b, 0, i, j].item() == (sentence[j] != 0 and j <= i)

# %% [markdown]
# Equation {eq}`masked-attention`, multiplied out with zeros and ones, equals the package with its minus infinities:

# %%
torch.manual_seed(0)
# 2 sentences, 1 head, 5 positions, d_k = 4
q, k, v = torch.randn(3, 2, 1, 5, 4, dtype=torch.float64)
exponentials = both * torch.exp(q @ k.transpose(-2, -1) / math.sqrt(4))
by_hand = exponentials / exponentials.sum(dim=-1, keepdim=True)
alpha = attention_weights(q, k, both)
assert_close(by_hand, alpha)
assert (alpha.masked_select(~both) == 0).all()  # zero, not merely small
theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=both)
assert_close(scaled_dot_product_attention(q, k, v, both), theirs)

# %% [markdown]
# And the opposite polarity of `nn.MultiheadAttention`, as a fact that runs. Query 1 may look at keys 0 and 1. Handed
# our mask as it is, PyTorch's module hides exactly these two; handed the negation, it agrees with us.

# %%
theirs = torch.nn.MultiheadAttention(embed_dim=4, num_heads=1, batch_first=True)
x = torch.randn(1, 5, 4)
for name, mask in (("our mask", causal[0, 0]), ("negated", ~causal[0, 0])):
    _, weights = theirs(x, x, x, attn_mask=mask)
    assert (weights[0, 1][mask[1]] == 0).all()  # True hides
    print(f"{name:9} weights of query 1:", weights[0, 1].detach())

# %% [markdown]
# **Picture.** Rows are queries, columns are keys: to see what a token may look at, find its row. The fourth mask is
# the causal one with rows and columns exchanged, one of the commonest mistakes: there, a token sees itself and
# everything that *follows*.

# %% tags=["row-F12"] mystnb={"image": {"alt": "Four 5 by 5 grids in two rows, queries down, keys across, for the tokens start, Tom, ran, pad, pad. Padding: the first three columns are bright. Causal: the lower triangle with its diagonal is bright. Both: the lower triangle, without the last two columns. Transposed, which is wrong: the upper triangle with its diagonal is bright."}, "figure": {"caption": "What each query (row) may look at: the bright keys. The last panel is a mistake.", "name": "fig-masks"}}
labels = ["<s>", "Tom", "ran", "<pad>", "<pad>"]
panels = {"padding": padding[1, 0].expand(5, 5), "causal": causal[0, 0],
          "padding & causal": both[1, 0], "transposed (wrong)": causal[0, 0].T}
assert panels["causal"].tolist() == [[key <= query for key in range(5)] for query in range(5)]
figure, axes = plt.subplots(2, 2, figsize=(5, 4.6), layout="constrained")
for ax, (title, mask) in zip(axes.flat, panels.items()):
    plot_attention(mask.float(), labels, labels, ax=ax, title=title)
plt.show()

# %% [markdown]
# **Break it: what leaks?** To judge a mask, do not look at the mask. Ask the model which outputs *change* when an
# input changes. The derivative of every output with respect to every input says so.

# %% tags=["row-S8"]
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
assert torch.equal(reach(self_attention(lower.T), 5), lower.T)
print("causal:", reach(self_attention(lower), 5).int(), sep="\n")

# %% [markdown]
# Does one small hole matter? Let the triangle reach one column too far: position $i$ sees up to $i + 1$. And one
# layer on another: what leaks by one in a layer leaks by two in two layers, and by six in six.

# %%
hole = torch.ones(5, 5, dtype=torch.bool).tril(diagonal=1)
leaky, causal_layer = self_attention(hole), self_attention(lower)
print("one layer:", reach(leaky, 5).int(), sep="\n")
print("two layers:", reach(lambda x: leaky(leaky(x)), 5).int(), sep="\n")
assert torch.equal(reach(lambda x: causal_layer(causal_layer(x)), 5), lower)

# %% [markdown]
# Causal layers stay causal, however many there are. A hole grows.
#
# Now watch a leak *train*. The task cannot be learned: predict the next of six random symbols, drawn from eight.
# Guessing one of eight costs $\ln 8 = 2.079$ **nats** (the unit of the natural logarithm), and whatever the model
# does, its loss cannot stay below that. The decoder's input is the answer shifted right by one, so at position $i$
# the answer stands in the input at position $i + 1$. (`MultiHeadAttention` is the subject of the next section; here
# it is a layer that takes a mask.)

# %%
from torch import nn
from annotated_transformer import MultiHeadAttention, positional_encoding

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

# %%
def train_on_noise(mask, steps=300):
    torch.manual_seed(0)
    toy = NextSymbol()
    optimizer = torch.optim.Adam(toy.parameters(), lr=0.01)
    for _ in range(steps):
        target_out = torch.randint(8, (64, 6))
        target_in = F.pad(target_out[:, :-1], (1, 0), value=8)  # shifted right by one
        loss = F.cross_entropy(toy(target_in, mask).flatten(0, 1), target_out.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()

# %% tags=["nbval-rtol-0.1"]
right = train_on_noise(causal_mask(6))
leaking = train_on_noise(torch.ones(1, 1, 6, 6, dtype=torch.bool).tril(diagonal=1))
assert right > 2.0 and leaking < 0.6
print(f"ln 8 = {math.log(8):.2f}  causal {right:.2f}  one column too far {leaking:.2f}")

# %% [markdown]
# With the hole the loss falls to about $\frac{1}{6}\ln 8 = 0.35$: five positions of six read their answer, and the
# last one, whose answer stands nowhere, guesses. On real text such a model reports an accuracy near 100 percent in
# training and writes nonsense, since at translation time the answer is not there to be read. **A loss that is too
# good is a mask until proven otherwise.**

# %% [markdown]
# ### A query that may see nothing
#
# **Question.** What is the softmax of a row in which every score is $-\infty$?
#
# Equation {eq}`masked-attention` says $0 / 0$: there is no such distribution. Invert the causal mask (`~`, the
# polarity mistake) and you make one, because the last position then sees nothing. What an implementation answers is a
# matter of taste:

# %%
inverted = ~causal_mask(3)[0, 0]
q = k = torch.eye(3)
print("minus infinity:          ", attention_weights(q, k, inverted)[-1])
scores = (q @ k.T / math.sqrt(3)).masked_fill(~inverted, -1e9)
print("minus a thousand million:", scores.softmax(dim=-1)[-1])
kernel = F.scaled_dot_product_attention(q[None], k[None], q[None], attn_mask=inverted)
print("PyTorch's fused kernel:  ", kernel[0, -1])

# %% [markdown]
# Three answers. Minus infinity gives **NaN** ("not a number"), which at least is honest. A large negative number,
# found in much published code, spreads the weight evenly over all the keys that were *forbidden*. PyTorch's fused
# kernel, in recent versions, gives zeros.
#
# NaN is contagious. One row of one sentence is enough: the next layer uses that row as a key and a value, and since
# $0 \cdot \mathrm{NaN} = \mathrm{NaN}$, not even a mask keeps it out.

# %%
torch.manual_seed(0)
x = torch.randn(1, 6, 4)
right = causal_mask(6)[0]
for name, mask in (("inverted", ~right), ("causal", right)):
    x = scaled_dot_product_attention(x, x, x, mask)
    n_nan = x.isnan().any(dim=-1).sum()
    print(f"after a layer with the {name} mask: {n_nan} of 6 positions are NaN")

# %% [markdown]
# The package has no patch for this case, because its masks cannot produce it. The causal mask keeps its diagonal, so
# every row has a key. The padding mask hides the *end* of a sentence only, and every sentence has at least one real
# token, its end mark: under `padding & causal`, every row still sees position 0.

# %%
for lengths in ([5, 1], [3, 2], [1, 1]):
    tokens = torch.tensor([[7] * n + [0] * (5 - n) for n in lengths])
    both = padding_mask(tokens, pad_id=0) & causal_mask(5)
    assert both.any(dim=-1).all() and both[..., 0].all()

# %% [markdown]
# ### Why the decoder needs no padding mask
#
# **Question.** `DecoderLayer` passes `causal=True` to its self-attention and no mask for the target's padding. Is
# that a bug?
#
# No. Padding stands on the right, so a real token at position $i$ sees keys $0$ to $i$, and all of them are real. A
# padded query does look at padding, but nobody reads its output: no earlier position can see it, and the loss leaves
# it out. Let us hold that against the model itself: append padding to the target, and the **logits** (the scores over
# the vocabulary, the model's output) at the real positions must not change. (The model is untrained; masks are not
# learned.)

# %%
from annotated_transformer import ModelConfig, Transformer

torch.manual_seed(0)
config = ModelConfig(vocab_size=20, N=2, d_model=16, d_ff=32, h=2)
model = Transformer(config).eval()
source, target_in = torch.tensor([[4, 5, 6, 7, 2]]), torch.tensor([[1, 8, 9]])
padded = F.pad(target_in, (0, 4), value=config.pad_id)
with torch.no_grad():
    assert_close(model(source, padded)[:, :3], model(source, target_in))

# %% [markdown]
# The *source* is another matter: the encoder is not causal, and the decoder looks at the whole source. Without the
# padding mask, the same sentence would be translated differently in a batch with a longer one.

# %%
padded_source = F.pad(source, (0, 4), value=config.pad_id)
everything = torch.ones(1, 1, 1, 9, dtype=torch.bool)
with torch.no_grad():
    memory = model.encode(source)
    masked = model.encode(padded_source)[:, :5]
    unmasked = model.encode(padded_source, everything)[:, :5]
assert_close(masked, memory)
for name, other in (("masked", masked), ("unmasked", unmasked)):
    n_changed = ((other - memory).abs() > 1e-4).sum()
    print(f"{name:8} {n_changed} of {memory.numel()} entries of the memory changed")

# %% [markdown]
# **Where.**
#
# - Code: `padding_mask` and `causal_mask` in `annotated_transformer/model/attention.py`; who gets which, in
#   `annotated_transformer/model/stacks.py`.
# - Tests: `test_true_means_may_look`, `test_the_masks_we_build_leave_every_query_a_key` in
#   `tests/model/test_attention.py`; `test_the_future_is_invisible`, `test_padding_added_to_a_batch_changes_nothing` in
#   `tests/model/test_transformer.py`.
# - Exercises: {ref}`ex-left-padding`, {ref}`ex-half`, {ref}`ex-heads-axis`, {ref}`ex-which-mask`,
#   {ref}`ex-write-causal`, {ref}`ex-write-padding`.

# %% [markdown]
# ## Multi-head attention
#
# **Question.** A query gets one mean of the values. What if it needs two things at once?
#
# Go back to the winds. The query is north-east, and we want to know the temperature of *both* winds. One attention
# gives one mean, 5 degrees, and from the mean nobody can tell the two apart. Two attentions with their own queries
# give both numbers.

# %%
northeast = torch.tensor([1.0, 1.0])
_, mixed = attend(dot, 20 * northeast, keys, values)
_, north = attend(dot, 20 * northeast * torch.tensor([0, 1]), keys, values)
_, east = attend(dot, 20 * northeast * torch.tensor([1, 0]), keys, values)
print(f"one head: {mixed.item():.2f}")
print(f"two heads: {north.item():.2f} and {east.item():.2f}")

# %% [markdown]
# The two queries were made from the one by two matrices, each of which keeps one coordinate. That is the idea of
# **multi-head attention**: $h$ attentions side by side, the **heads**, each with its own learned projections of
# queries, keys and values. The paper: with a single head, "averaging inhibits this".
#
# ![Multi-head attention, read from below: queries, keys and values each pass h projections side by side, h scaled dot-product attentions, one concatenation, and a last projection.](figures/multi_head.svg)
#
# **Equation.**
#
# $$
# \begin{aligned}
# \mathrm{MultiHead}(Q, K, V) &= \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h)\, W^O \\
# \mathrm{head}_i &= \mathrm{Attention}(Q W_i^Q,\; K W_i^K,\; V W_i^V)
# \end{aligned}
# $$ (multi-head)
#
# | matrix | shape | base model |
# |---|---|---|
# | $Q$, $K$, $V$ | $L \times d_{\mathrm{model}}$, $S \times d_{\mathrm{model}}$, $S \times d_{\mathrm{model}}$ | $d_{\mathrm{model}} = 512$ |
# | $W_i^Q$, $W_i^K$ | $d_{\mathrm{model}} \times d_k$ | $512 \times 64$ |
# | $W_i^V$ | $d_{\mathrm{model}} \times d_v$ | $512 \times 64$ |
# | $\mathrm{head}_i$ | $L \times d_v$ | |
# | $W^O$ | $h\,d_v \times d_{\mathrm{model}}$ | $512 \times 512$ |
#
# Here $Q$, $K$ and $V$ are what enters the layer, not yet queries, keys and values; the projections make them that.
# The base model has $h = 8$ heads with $d_k = d_v = d_{\mathrm{model}} / h = 64$.
#
# **Code.** The $h$ matrices $W_i^Q$ stand side by side in one matrix, `W_Q`, so that one product makes the queries of
# all heads; so do the others. The projections have no bias, as in the equation, and no attention weight is dropped:
# section 5.4 of the paper applies dropout elsewhere. `bias` and `dropout` are options for later variants.

# %%
show(MultiHeadAttention.__init__)

# %% [markdown]
# After the product the last axis is cut into $h$ pieces, and the heads' axis is moved forward, where it is one more
# batch axis to equation {eq}`attention`.

# %%
show(MultiHeadAttention.split_heads)

# %% [markdown]
# `forward` projects and attends. Its queries come from `x`, its keys and values from `memory`; in self-attention the two
# are the same tensor. In between runs PyTorch's own kernel, which computes equation {eq}`attention` without ever storing
# the weights. Skip the two lines on `Way` for now: they let the same layers take rows that are no rectangle, as in
# [chapter 5.1](5_1_data_and_batching.ipynb), and keys that a search has kept, as in [chapter 3.1](3_1_stacks.ipynb).

# %%
show(MultiHeadAttention.forward)

# %%
show(MultiHeadAttention.attend)

# %%
show(MultiHeadAttention.heads)

# %% [markdown]
# **Check.** Head by head. `nn.Linear` keeps its matrix transposed, rows being outputs, so head $i$ owns rows $i\,d_k$
# to $(i+1)\,d_k$ of `W_Q.weight`. The sizes are unequal on purpose: three heads, and a $d_k$ and a $d_v$ that are not
# $d_{\mathrm{model}} / h$, as in row (B) of the paper's Table 3.

# %%
def head_by_head(layer, x, memory, mask, h):
    W_Q, W_K, W_V = (W.weight.chunk(h) for W in (layer.W_Q, layer.W_K, layer.W_V))
    heads = []
    for i in range(h):
        q, k, v = x @ W_Q[i].T, memory @ W_K[i].T, memory @ W_V[i].T
        heads.append(scaled_dot_product_attention(q, k, v, mask))
    return torch.cat(heads, dim=-1) @ layer.W_O.weight.T

# %% tags=["row-E6", "row-S17", "row-F2", "row-F13"]
torch.manual_seed(0)
layer = MultiHeadAttention(d_model=10, h=3, d_k=4, d_v=2)
x, memory = torch.randn(2, 5, 10), torch.randn(2, 7, 10)
mask = torch.rand(2, 5, 7) < 0.7
mask[..., 0] = True  # no query without a key
fused = layer(x, memory, mask[:, None])
assert_close(head_by_head(layer, x, memory, mask, h=3), fused)
for name, weight in layer.named_parameters():
    print(name, tuple(weight.shape))

# %% [markdown]
# ```{exercise} W4: shapes
# :label: ex-w4
#
# Three tokens, $d_{\mathrm{model}} = 4$, two heads, $d_k = d_v = d_{\mathrm{model}} / h$. Give the shape of
# $W_1^Q$, of $QW_1^Q$, of the weights of one head, of one head's output, of their concatenation, of $W^O$ and of
# the result.
# ```
#
# ```{solution} ex-w4
# :class: dropdown
#
# $d_k = 2$. $W_1^Q$: $4 \times 2$; $QW_1^Q$: $3 \times 2$; weights: $3 \times 3$; a head: $3 \times 2$;
# concatenation: $3 \times 4$; $W^O$: $4 \times 4$; result: $3 \times 4$, the shape that came in.
# ```

# %% tags=["hide-cell", "row-W4"]
layer, x = MultiHeadAttention(d_model=4, h=2), torch.randn(1, 3, 4)
assert layer.W_Q.weight[:2].T.shape == (4, 2)  # the first head's columns
q, (k, v) = layer.split_heads(layer.W_Q(x)), layer.keys_and_values(x)
head = scaled_dot_product_attention(q, k, v)[0, 0]
assert q[0, 0].shape == head.shape == (3, 2)
assert attention_weights(q, k)[0, 0].shape == (3, 3)
assert torch.cat([head, head], dim=-1).shape == layer(x, x)[0].shape == (3, 4)
assert layer.W_O.weight.T.shape == (4, 4)

# %% [markdown]
# ```{exercise} W5: two heads with numbers
# :label: ex-w5
#
# The cell below has the inputs and all projections of a layer with $d_{\mathrm{model}} = 4$ and two heads. Compute by
# hand $Q_1 = QW_1^Q$, $K_1$, $V_1$ and $Q_2$, $K_2$, $V_2$; then both matrices of dot products. If you have patience,
# go on to the weights, the heads and the output. Unlike in the package, $K$ and $V$ are different matrices here.
# ```

# %%
def integers(text):
    """The matrix whose rows are the words of `text`, digit by digit."""
    rows = [[float(digit) for digit in row] for row in text.split()]
    return torch.tensor(rows, dtype=torch.float64)

Q = integers("1210 0111 1021")
K = integers("1102 2110 0111")
V = integers("1100 0211 1122")
W_Q = integers("10 01 10 01"), integers("01 10 11 00")  # head 1, head 2
W_K = integers("10 01 01 10"), integers("01 10 10 11")
W_V = integers("10 01 10 01"), integers("01 11 01 10")
W_O = integers("1001 0110 1010 0101")
print(Q, W_Q[0], sep="\n")

# %% [markdown]
# ```{solution} ex-w5
# :class: dropdown
#
# | | head 1 | head 2 |
# |---|---|---|
# | $Q_i$ | $\begin{pmatrix} 2&2\\1&2\\3&1 \end{pmatrix}$ | $\begin{pmatrix} 3&2\\2&1\\2&3 \end{pmatrix}$ |
# | $K_i$ | $\begin{pmatrix} 3&1\\2&2\\1&2 \end{pmatrix}$ | $\begin{pmatrix} 3&3\\2&2\\3&1 \end{pmatrix}$ |
# | $V_i$ | $\begin{pmatrix} 1&1\\1&3\\3&3 \end{pmatrix}$ | $\begin{pmatrix} 1&2\\3&3\\3&4 \end{pmatrix}$ |
# | $Q_iK_i^\top$ | $\begin{pmatrix} 8&8&6\\5&6&5\\10&8&5 \end{pmatrix}$ | $\begin{pmatrix} 15&10&11\\9&6&7\\15&10&9 \end{pmatrix}$ |
# | head | $\begin{pmatrix} 1.2168&2.1084\\1.4965&2.5035\\1.0458&1.4280 \end{pmatrix}$ | $\begin{pmatrix} 1.1622&2.1354\\1.5326&2.4447\\1.0834&2.0555 \end{pmatrix}$ |
#
# The output, $\mathrm{Concat}(\mathrm{head}_1, \mathrm{head}_2)\, W^O$:
#
# $$
# \begin{pmatrix}
# 2.3790 & 4.2438 & 3.2706 & 3.3522 \\
# 3.0291 & 4.9482 & 4.0361 & 3.9412 \\
# 2.1292 & 3.4835 & 2.5114 & 3.1013
# \end{pmatrix}
# $$
# ```
#
# Every step, asserted: first the integers, exactly.

# %% tags=["hide-cell"]
Q_1, K_1, V_1 = Q @ W_Q[0], K @ W_K[0], V @ W_V[0]
Q_2, K_2, V_2 = Q @ W_Q[1], K @ W_K[1], V @ W_V[1]
assert torch.equal(Q_1, integers("22 12 31"))
assert torch.equal(K_1, integers("31 22 12"))
assert torch.equal(V_1, integers("11 13 33"))
assert torch.equal(Q_2, integers("32 21 23"))
assert torch.equal(K_2, integers("33 22 31"))
assert torch.equal(V_2, integers("12 33 34"))
assert (Q_1 @ K_1.T).tolist() == [[8, 8, 6], [5, 6, 5], [10, 8, 5]]
assert (Q_2 @ K_2.T).tolist() == [[15, 10, 11], [9, 6, 7], [15, 10, 9]]

# %% tags=["hide-cell"]
head_1 = scaled_dot_product_attention(Q_1, K_1, V_1)
head_2 = scaled_dot_product_attention(Q_2, K_2, V_2)
concatenated = torch.cat([head_1, head_2], dim=-1)
answer = torch.tensor([[1.2168, 2.1084, 1.1622, 2.1354],
                       [1.4965, 2.5035, 1.5326, 2.4447],
                       [1.0458, 1.4280, 1.0834, 2.0555]], dtype=torch.float64)
assert_close(concatenated, answer, atol=5e-5, rtol=0)

# %% tags=["hide-cell", "row-W5"]
output = concatenated @ W_O
answer = torch.tensor([[2.3790, 4.2438, 3.2706, 3.3522],
                       [3.0291, 4.9482, 4.0361, 3.9412],
                       [2.1292, 3.4835, 2.5114, 3.1013]], dtype=torch.float64)
assert_close(output, answer, atol=5e-5, rtol=0)
print(output)

# %% [markdown]
# Now the package's layer, with these projections copied in. Its `forward` takes keys and values from one tensor, as
# the model always does; the example has two, so we call its parts ourselves.

# %%
layer = MultiHeadAttention(d_model=4, h=2).double()
layer.W_Q.weight.data = torch.cat(W_Q, dim=1).T
layer.W_K.weight.data = torch.cat(W_K, dim=1).T
layer.W_V.weight.data = torch.cat(W_V, dim=1).T
layer.W_O.weight.data = W_O.T
keys_of_heads, _ = layer.keys_and_values(K[None])
_, values_of_heads = layer.keys_and_values(V[None])
assert_close(layer.attend(Q[None], keys_of_heads, values_of_heads)[0], output)

# %% [markdown]
# **Round last, again.** The source of this example rounds the weights to two places, multiplies those, and prints the
# twelve entries below. How many are off by more than half a unit of their last digit, and is it the rounding?

# %%
printed = torch.tensor([[1.23, 2.13, 1.16, 2.13], [1.50, 2.50, 1.53, 2.45], [1.04, 1.42, 1.09, 2.06]],
                       dtype=torch.float64)
rounded = [attention_weights(*head).round(decimals=2) for head in ((Q_1, K_1), (Q_2, K_2))]
sums = [row.sum().item() for head in rounded for row in head]
of_rounded = torch.cat([rounded[0] @ V_1, rounded[1] @ V_2], dim=1)
error = (printed - concatenated).abs()
off, explained = error > 0.005, (printed - of_rounded).abs() < 1e-6
print("sums of the six rounded rows:", *(f"{total:.2f}" for total in sums))
print(f"off: {off.sum()} of 12, {(off & explained).sum()} as the rounded weights have it; largest {error.max():.4f}")
print(f"unexplained: {printed[off & ~explained].tolist()}, rounded weights give", of_rounded[off & ~explained].tolist())
assert off.sum() == 7 and [round(total, 2) for total in sums].count(1.01) == 1

# %% [markdown]
# Seven. Only the first row of head 1 sums to 1.01 (0.45 + 0.45 + 0.11), and the two largest errors are its. Four more
# are off although their rounded weights sum to 1: half a unit in a weight is multiplied by values of up to 4. The
# seventh, 1.09, follows from neither kind of weights.
#
# **Picture.** The weights of the two heads of W5. Same tokens, two opinions: the first token divides its attention in
# head 1 and not in head 2.

# %% mystnb={"image": {"alt": "Two annotated 3 by 3 heat maps, queries down, keys across. Head 1: rows 0.45 0.45 0.11, then 0.25 0.50 0.25, then 0.79 0.19 0.02. Head 2: rows 0.92 0.03 0.05, then 0.73 0.09 0.18, then 0.96 0.03 0.01."}, "figure": {"caption": "Example W5: the attention weights of its two heads.", "name": "fig-heads"}}
words = ["token 1", "token 2", "token 3"]
figure, axes = plt.subplots(1, 2, figsize=(5.2, 2.7), layout="constrained")
plot_numbers(attention_weights(Q_1, K_1), words, words, axes[0], "head 1")
plot_numbers(attention_weights(Q_2, K_2), words, words, axes[1], "head 2")
plt.show()

# %% [markdown]
# ### What heads cost
#
# **Question.** Are eight heads eight times as dear as one?
#
# No. With $d_k = d_v = d_{\mathrm{model}} / h$ the projections are $d_{\mathrm{model}} \times d_{\mathrm{model}}$
# whatever $h$ is, and $h$ score matrices, whose entries take $d_{\mathrm{model}} / h$ multiplications each, cost as much as
# one whose entries take $d_{\mathrm{model}}$. PyTorch's counter counts the operations that are really done (two for each multiplication with
# its addition), here for 10 tokens.

# %%
from torch.utils.flop_counter import FlopCounterMode

n, d_model = 10, 64
for h in (1, 2, 8):
    layer, x = MultiHeadAttention(d_model, h), torch.randn(1, n, d_model)
    with FlopCounterMode(display=False) as counter:
        q, (k, v) = layer.split_heads(layer.W_Q(x)), layer.keys_and_values(x)
        layer.W_O(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
    n_parameters = sum(weight.numel() for weight in layer.parameters())
    n_operations = counter.get_total_flops()
    assert n_parameters == 4 * d_model**2
    assert n_operations == 2 * (4 * n * d_model**2 + 2 * n**2 * d_model)
    print(f"h {h}  parameters {n_parameters:,}  operations {n_operations:,}  weights {h * n**2}")

# %% [markdown]
# The last column is the fine print: the number of *weights*, and of exponentials, does grow with $h$. A kernel that
# stores them needs $h$ times the memory.
#
# What do you lose with more heads? Each gets narrower: at $h = 32$ a head of the base model compares by 16 numbers.
# The paper measured it (Table 3, row A, numbers quoted from there): 24.9 BLEU with one head, 25.8 with 8 and with 16,
# 25.4 with 32.
#
# ```{exercise} W6: three heads for four dimensions
# :label: ex-w6
#
# A text proposes $h = 3$ heads for $d_{\mathrm{model}} = 4$, of "dimension 4/3". What does the package say, and what
# are your choices?
# ```
#
# ```{solution} ex-w6
# :class: dropdown
#
# A dimension is a whole number, so it refuses. Change $h$ (1, 2, 4) or $d_{\mathrm{model}}$ (3, 6, 9), or say which
# $d_k$ and $d_v$ you want: nothing in equation {eq}`multi-head` demands $h\,d_k = d_{\mathrm{model}}$, since $W^O$
# brings any $h\,d_v$ columns back to $d_{\mathrm{model}}$.
# ```

# %% tags=["row-W6", "row-S17"]
try:
    MultiHeadAttention(d_model=4, h=3)
except ValueError as error:
    print(error)
else:
    raise AssertionError("three heads for four dimensions")
free = MultiHeadAttention(d_model=4, h=3, d_k=2, d_v=5)
x = torch.randn(1, 3, 4)
assert free.W_O.weight.T.shape == (15, 4) and free(x, x).shape == x.shape
print("W_O:", tuple(free.W_O.weight.T.shape), " result:", tuple(free(x, x).shape))

# %% [markdown]
# **Break it.** Cutting the heads takes two steps: `unflatten` the last axis into (h, d_k), then move the heads' axis
# before the positions. A popular slip does it in one `view` that has the right shape, and so raises nothing. Watch
# what it does to the causal mask.

# %%
class WrongSplit(MultiHeadAttention):
    def split_heads(self, x):
        return x.view(x.size(0), self.h, x.size(1), -1)  # right shape, wrong axes

for kind in (MultiHeadAttention, WrongSplit):
    torch.manual_seed(0)
    layer = kind(d_model=8, h=2).double()
    reached = reach(lambda x, layer=layer: layer(x, x, causal=True), length=4)
    print(kind.__name__, reached.int(), sep="\n")

# %% [markdown]
# The causal mask is there and correct, and yet the first position depends on later ones. The wrong `view` reads the
# numbers in the order in which they are stored: with two heads, the first head gets the first half of the *positions*, each cut in two. So its
# "positions" are not tokens any more, and masking them means nothing. The reach test sees what a shape test cannot.
#
# **Where.**
#
# - Code: `MultiHeadAttention` in `annotated_transformer/model/attention.py`.
# - Tests: `test_multi_head_attention_is_a_loop_over_heads`, `test_equals_pytorchs_multi_head_attention` in
#   `tests/model/test_attention.py`.
# - Exercises: {ref}`ex-w4`, {ref}`ex-w5`, {ref}`ex-w6` above; {ref}`ex-base-parameters`, {ref}`ex-sum-of-heads`,
#   {ref}`ex-narrow-head`, {ref}`ex-write-multi-head`.

# %% [markdown]
# ## Three uses in the model
#
# **Question.** Equation {eq}`multi-head` has three inputs. What does the Transformer put there?
#
# **Equation.** Section 3.2.3 lists three uses. Write $X$ for the vectors of the source inside the encoder, $Y$ for
# those of the target inside the decoder, and $M$ for the encoder's output, its **memory**.
#
# $$
# \begin{aligned}
# \text{encoder self-attention:} \quad & \mathrm{MultiHead}(X, X, X) \\
# \text{decoder self-attention:} \quad & \mathrm{MultiHead}(Y, Y, Y) \text{, causal} \\
# \text{encoder-decoder attention:} \quad & \mathrm{MultiHead}(Y, M, M)
# \end{aligned}
# $$ (three-uses)
#
# | use | queries | keys, values | weights | a token may look at |
# |---|---|---|---|---|
# | encoder self-attention | source | source | $S \times S$ | real source tokens |
# | decoder self-attention | target | target | $T \times T$ | itself and what is before it |
# | encoder-decoder attention | target | memory | $T \times S$ | real source tokens |
#
# In **self-attention** one sentence asks itself. In encoder-decoder attention, also called **cross-attention**, the
# target asks the source; it is the only bridge between the two sentences. The keys and values come from the encoder,
# the queries from the decoder: what is asked depends on what has been written so far.
#
# **Code.** Each line below is one step of a layer. `add_norm_1` and its sisters wrap it in a residual connection and a
# layer norm; [the chapter on section 3.1](3_1_stacks.ipynb) has them.

# %%
from annotated_transformer.model.stacks import DecoderLayer, EncoderLayer

show(EncoderLayer.forward)

# %%
show(DecoderLayer.forward)

# %% [markdown]
# **Check.** `record_attention` notes every weight matrix while the model runs. Our model is small and untrained, so
# *which* token looks at which means nothing yet. But where it may *not* look is settled, and that we can check: each
# row is a distribution, the decoder's future is dark, and so is the source's padding, in the encoder and in the
# cross-attention.

# %%
from annotated_transformer import record_attention

source_words = ["Tom", "sold", "it", "</s>", "<pad>", "<pad>"]
target_words = ["<s>", "Tom", "hat", "es", "verkauft"]
source, target_in = torch.tensor([[4, 5, 6, 2, 0, 0]]), torch.tensor([[1, 4, 7, 8, 9]])
with record_attention(model) as weights, torch.no_grad():
    model(source, target_in)

for name, alpha in weights.items():
    assert_close(alpha.sum(dim=-1), torch.ones(alpha.shape[:-1]))
    causal = name.startswith("decoder") and name.endswith("self_attention")
    forbidden = alpha.triu(diagonal=1) if causal else alpha[..., 4:]
    assert forbidden.sum() == 0
    print(f"{name:33} {tuple(alpha.shape)}  forbidden: {forbidden.sum():.1f}")

# %% [markdown]
# **Picture.** The first head of the first layer, for each use. Rows ask, columns are looked at. Note the shapes: the
# third is $T \times S$, five target tokens down, six source tokens across.

# %% mystnb={"image": {"alt": "Three heat maps. Encoder self-attention: 6 by 6 source tokens, the last two columns, which are padding, are dark. Decoder self-attention: 5 by 5 target tokens, all above the diagonal is dark. Encoder-decoder attention: 5 target tokens down by 6 source tokens across, the last two columns are dark."}, "figure": {"caption": "The three attentions of an untrained model. The masks decide what stays dark, training will decide the rest.", "name": "fig-three-uses"}}
figure, axes = plt.subplots(1, 3, figsize=(6.6, 2.6), layout="constrained")
uses = {"encoder.layers.0.self_attention": (source_words, source_words),
        "decoder.layers.0.self_attention": (target_words, target_words),
        "decoder.layers.0.cross_attention": (target_words, source_words)}
for ax, (name, (rows, columns)) in zip(axes, uses.items()):
    title = name.replace(".layers.0.", "\n").replace("_", " ")
    plot_attention(weights[name][0, 0], rows, columns, ax=ax, title=title)
plt.show()

# %% [markdown]
# **Break it.** Exchange the two inputs of the cross-attention: let the source ask the target. Nothing complains. But
# an output has as many rows as there are queries, so we get a vector for each *source* token, where the decoder needs
# one for each target token.

# %% tags=["row-S10"]
cross_attention = model.decoder.layers[0].cross_attention
y, memory = torch.randn(1, 5, 16), torch.randn(1, 6, 16)
assert cross_attention(y, memory).shape == y.shape != cross_attention(memory, y).shape
print("right:", tuple(cross_attention(y, memory).shape))
print("wrong:", tuple(cross_attention(memory, y).shape))

# %% [markdown]
# Had source and target been of equal length, as they are in many a test, the slip would have passed unseen.
#
# What does one prediction depend on? The reach test again, now on the whole decoder; the logits of position $i$ are
# computed from its output $i$ alone. Output $i$ is reached by positions 0 to $i$ of the *input*. Since the input is
# shifted right, these are the tokens *before* the predicted one, as the paper says: the prediction for position $i$
# can depend only on the known outputs at positions less than $i$.

# %%
memory = torch.randn(1, 6, 16, dtype=torch.float64)
decoder = Transformer(config).double().eval().decoder
reached = reach(lambda y: decoder(y, memory, None), length=5, d_model=16)
assert torch.equal(reached, torch.ones(5, 5, dtype=torch.bool).tril())
print("predicts   input that reaches it")
for i, word in enumerate([*target_words[1:], "</s>"]):
    inputs = [w for w, seen in zip(target_words, reached[i]) if seen]
    print(f"{word:10}", *inputs)

# %% [markdown]
# ### Whom *it* means: two layers built by hand
#
# **Question.** *The animal didn't cross the street because it was too tired.* With *wide* for *tired*, *it* is no
# longer the animal but the street. How can attention know, when *it* is the same word in both sentences?
#
# The pair of sentences comes from an article that introduced the Transformer to a wide public
# {cite}`uszkoreit2017transformer`; it is not in the paper. One layer alone cannot tell them apart by looking from
# *it* to *animal* and *street*: these three vectors are the same in both sentences. (Positions do not help, they are
# the same, too.) Two layers can: in the first, *it* asks how it was; in the second, it asks for a noun that can be so.
#
# We write such vectors by hand. Each word has five entries: is it a pronoun, a noun, a state, and has it to do with
# being tired, or with being wide?

# %%
facts = {"animal": [0, 1, 0, 1, 0], "street": [0, 1, 0, 0, 1], "it": [1, 0, 0, 0, 0],
         "tired": [0, 0, 1, 1, 0], "wide": [0, 0, 1, 0, 1]}  # pronoun, noun, state, tired, wide
PRONOUN, NOUN, STATE, TIRED, WIDE = torch.eye(5)

def sentence_with(state):
    words = f"The animal didn't cross the street because it was too {state}".split()
    return words, torch.tensor([facts.get(word, [0] * 5) for word in words]).float()

# %% [markdown]
# The first head's query matrix turns *pronoun* into the question *state?*, and its values hand over what the state has
# to do with. The second head's query asks for a noun that has to do with the same. A factor of 10 makes the weights
# sharp. As in the model, what a layer finds is *added* to the word's vector.

# %%
def two_layers(x):
    """The weights of both layers."""
    copy = torch.outer(TIRED, TIRED) + torch.outer(WIDE, WIDE)
    W_Q = 10 * torch.outer(PRONOUN, STATE)  # "I am a pronoun" becomes "who is a state?"
    first = attention_weights(x @ W_Q, x)
    y = x + scaled_dot_product_attention(x @ W_Q, x, x @ copy)
    W_Q = 10 * (torch.outer(PRONOUN, NOUN) + copy)  # "who is a noun, and like this?"
    return first, attention_weights(y @ W_Q, y)

# %% tags=["row-F7"]
for state, noun in (("tired", "animal"), ("wide", "street")):
    words, x = sentence_with(state)
    first, second = (weights[words.index("it")] for weights in two_layers(x))
    assert words[first.argmax()] == state and words[second.argmax()] == noun
    found = [f"{words[row.argmax()]} {row.max():.2f}" for row in (first, second)]
    print(f"{state:5}  it looks at: {found[0]}, then {found[1]}")

# %% [markdown]
# **Picture.** The weights of *it* in the two layers, for both sentences.

# %% mystnb={"image": {"alt": "Heat map of the attention weights of the word it: four rows, one for each sentence and layer, and eleven columns, the words of the sentence. In the first layer all weight is on the last word, tired or wide. In the second it is on animal when the last word is tired, and on street when it is wide."}, "figure": {"caption": "Where *it* looks, in two layers built by hand. One word at the end of the sentence moves the second layer's weight.", "name": "fig-pronoun"}}
rows = {f"{state}, layer {number}": weights[7] for state in ("tired", "wide")
        for number, weights in enumerate(two_layers(sentence_with(state)[1]), start=1)}
columns = [*words[:-1], "tired / wide"]
figure, ax = plt.subplots(figsize=(5.8, 2.6), layout="constrained")
plot_attention(torch.stack([*rows.values()]), list(rows), columns, ax=ax)
ax.set_ylabel("sentence, layer of it")
plt.show()

# %% [markdown]
# **Break it.** Leave out the first layer: the vector of *it* then says *pronoun* and nothing else, and both nouns get
# the same weight.

# %%
words, x = sentence_with("tired")
alone = attention_weights(x @ (10 * torch.outer(PRONOUN, NOUN)), x)[words.index("it")]
nouns = [words.index("animal"), words.index("street")]
assert_close(alone[nouns[0]], alone[nouns[1]])
print("one layer:", {words[i]: round(alone[i].item(), 2) for i in nouns})

# %% [markdown]
# We chose these matrices; a trained model chooses its own, and need not solve the riddle this way, or at all.
# [The chapter on attention visualizations](7_attention_visualizations.ipynb) puts the two sentences to a trained one.
#
# **Where.**
#
# - Code: `annotated_transformer/model/stacks.py` wires the three, `annotated_transformer/model/transformer.py` makes the masks,
#   `record_attention` is in `annotated_transformer/looking/visualization.py`.
# - Tests: `test_the_future_is_invisible`, `test_every_position_sees_itself_its_past_and_the_whole_source` in
#   `tests/model/test_transformer.py`.
# - Exercises: {ref}`ex-which-mask`.
#
# A caution about pictures of attention. A weight says how much of a *value* was taken at one place in one layer; it
# does not say why the model gave its answer. How far such maps explain a model is disputed, and both sides have good
# arguments {cite}`jain2019attention,wiegreffe2019attention`.

# %% [markdown]
# ## Worked examples
#
# The eight examples of this book's list, with the place of each. The first six you have met; two point ahead, to the
# feed-forward network and the learning rate.
#
# - W1, W2, W3, equation 1: {ref}`ex-w1`, {ref}`ex-w2`, {ref}`ex-w3`.
# - W4, W5, W6, multi-head attention: {ref}`ex-w4`, {ref}`ex-w5`, {ref}`ex-w6`.
# - W7, the feed-forward network of [section 3.3](3_3_feed_forward.ipynb), which follows attention in every layer:
#   {ref}`ex-w7`.
# - W8, the learning rate of [section 5.3](5_3_optimizer.ipynb): {ref}`ex-w8`.
#
# ```{exercise} W7: a feed-forward network
# :label: ex-w7
#
# Equation 2 of the paper is $\mathrm{FFN}(x) = \max(0, xW_1 + b_1)\,W_2 + b_2$, applied to each row of $x$ alone.
# Compute it for
#
# $$
# x = \begin{pmatrix} 1&0\\0&1\\1&1 \end{pmatrix}
# $$
#
# $$
# W_1 = \begin{pmatrix} 1&1\\0&1 \end{pmatrix} \quad b_1 = (0, 1) \quad
# W_2 = \begin{pmatrix} 1&0\\2&1 \end{pmatrix} \quad b_2 = (1, -1)
# $$
# ```
#
# ```{solution} ex-w7
# :class: dropdown
#
# $xW_1 + b_1 = \begin{pmatrix} 1&2\\0&2\\1&3 \end{pmatrix}$; nothing is negative, so the maximum changes nothing;
# times $W_2$ plus $b_2$: $\begin{pmatrix} 6&1\\5&1\\8&2 \end{pmatrix}$.
# ```

# %% tags=["hide-cell", "row-W7"]
from annotated_transformer import PositionwiseFeedForward

ffn = PositionwiseFeedForward(d_model=2, d_ff=2)
ffn.W_1.weight.data = torch.tensor([[1.0, 1], [0, 1]]).T
ffn.W_1.bias.data = torch.tensor([0.0, 1])
ffn.W_2.weight.data = torch.tensor([[1.0, 0], [2, 1]]).T
ffn.W_2.bias.data = torch.tensor([1.0, -1])
x = torch.tensor([[1.0, 0], [0, 1], [1, 1]])
assert ffn(x).tolist() == [[6, 1], [5, 1], [8, 2]]

# %% [markdown]
# ```{exercise} W8: the learning rate
# :label: ex-w8
#
# Equation 3 of the paper gives the rate of step $s$, with $w$ warm-up steps, as
#
# $$
# d_{\mathrm{model}}^{-0.5} \min(s^{-0.5},\; s \cdot w^{-1.5})
# $$
#
# For the base model ($d_{\mathrm{model}} = 512$, $w = 4000$), compute it at steps 1, 100, 1,000, 4,000, 10,000 and
# 100,000. Where is it largest?
# ```
#
# ```{solution} ex-w8
# :class: dropdown
#
# | step | 1 | 100 | 1,000 | 4,000 | 10,000 | 100,000 |
# |---|---|---|---|---|---|---|
# | rate | 1.7469e-7 | 1.7469e-5 | 1.7469e-4 | 6.9877e-4 | 4.4194e-4 | 1.3975e-4 |
#
# Both terms of the minimum are equal at the last warm-up step, 4,000, and there is the peak. Before, the rate grows
# by the same amount each step; after, it falls with the root of the step.
# ```

# %% tags=["hide-cell", "row-W8"]
from annotated_transformer import noam_learning_rate

answers = {1: 1.7469e-7, 100: 1.7469e-5, 1000: 1.7469e-4,
           4000: 6.9877e-4, 10_000: 4.4194e-4, 100_000: 1.3975e-4}
for step, answer in answers.items():
    rate = noam_learning_rate(step, d_model=512, warmup_steps=4000)
    assert math.isclose(rate, answer, rel_tol=5e-5)
    print(f"step {step:7,}  rate {rate:.4e}")

# %% [markdown]
# Two questions from a course on the paper belong here as well.
#
# ```{exercise} The size of a query
# :label: ex-query-size
#
# "What is the dimensionality of the Transformer's query embeddings?" Give both answers, and say what each one counts.
# ```
#
# ```{solution} ex-query-size
# :class: dropdown
#
# A query of one head has $d_k = 64$ entries. All eight heads' queries of one token together have $h\,d_k = 512$,
# which is also $d_{\mathrm{model}}$, the size of the vector they are made from. The question does not say which it
# means.
# ```

# %% tags=["hide-cell", "row-Q2"]
layer, x = MultiHeadAttention(d_model=512, h=8), torch.randn(1, 1, 512)
assert layer.split_heads(layer.W_Q(x)).shape == (1, 8, 1, 64)  # sentences, heads, positions, d_k
assert layer.W_Q(x).shape == (1, 1, 512)

# %% [markdown]
# ```{exercise} The probability of the right token
# :label: ex-smoothing
#
# With label smoothing of $\epsilon_{ls} = 0.1$ (section 5.4), which probability does the target distribution give to
# the right token, in a vocabulary of $V = 37{,}000$?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Does the share that is spread out also reach the right token?
# ```
#
# ```{solution} ex-smoothing
# :class: dropdown
#
# It depends on the convention. Spread over the whole vocabulary, the right token included, as
# {cite:t}`szegedy2016rethinking`, PyTorch and this package do: $0.9 + 0.1 / 37000 = 0.9000027$. The authors' own code
# spreads it over the $V - 1$ *other* tokens: 0.9.
# ```

# %% tags=["hide-cell", "row-Q3"]
from annotated_transformer import label_smoothed_cross_entropy

V = 37_000
logits = torch.zeros(1, 1, V, dtype=torch.float64, requires_grad=True)
loss, _ = label_smoothed_cross_entropy(logits, torch.tensor([[5]]), eps_ls=0.1)
loss.backward()  # the gradient is softmax minus target distribution
share = 1 / V - logits.grad[0, 0, 5].item()
assert math.isclose(share, 0.9 + 0.1 / V, rel_tol=1e-9)
print(f"{share:.7f}")

# %% [markdown]
# ## Exercises
#
# Each has a hint and a solution, and both stay closed until you open them. Where the answer can be computed, a folded
# cell below the exercise computes it.
#
# ```{exercise} A constant more
# :label: ex-shift
#
# Add the same number $c$ to all scores of one query. What happens to the weights? Implementations of the softmax
# subtract the largest score first; why, and why may they?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Write $e^{s + c} = e^s e^c$. What is $e^{1000}$ in floating point?
# ```
#
# ```{solution} ex-shift
# :class: dropdown
#
# Nothing: $e^c$ is a factor of the numerator and of every term of the denominator. Only differences of scores count.
# With the largest score subtracted, every exponent is at most 0, so nothing overflows.
# ```

# %% tags=["hide-cell"]
s = torch.tensor([1000.0, 999, 990])
assert_close(s.softmax(-1), (s - 1000).softmax(-1))
assert (s.exp() / s.exp().sum()).isnan().all()  # infinity by infinity

# %% [markdown]
# ```{exercise} Order
# :label: ex-order
#
# Let $P$ permute the rows of $X$. How does self-attention $\mathrm{Attention}(PX, PX, PX)$ relate to
# $\mathrm{Attention}(X, X, X)$? Does the same hold with a causal mask?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $(PX)(PX)^\top = P\,XX^\top P^\top$, and the softmax of a row does not care about order.
# ```
#
# ```{solution} ex-order
# :class: dropdown
#
# $\mathrm{Attention}(PX, PX, PX) = P\,\mathrm{Attention}(X, X, X)$: the outputs are permuted with the inputs and not
# changed otherwise (self-attention is *equivariant*). A causal mask breaks it, since it is tied to positions, not to
# tokens. A causal model therefore knows something of the order even without positional encoding.
# ```

# %% tags=["hide-cell"]
torch.manual_seed(0)
X, order = torch.randn(5, 4), torch.tensor([3, 0, 4, 1, 2])
attention = scaled_dot_product_attention
assert_close(attention(X[order], X[order], X[order]), attention(X, X, X)[order])
mask = causal_mask(5)[0, 0]
masked = attention(X[order], X[order], X[order], mask)
assert not torch.allclose(masked, attention(X, X, X, mask)[order])

# %% [markdown]
# ```{exercise} Divide by $d_k$
# :label: ex-divide
#
# Replace $\sqrt{d_k}$ by $d_k$. What do the weights over ten keys look like for random $q$ and $k$ with $d_k = 1024$?
# Is that a disaster like the missing scale?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# What is the standard deviation of the scores now?
# ```
#
# ```{solution} ex-divide
# :class: dropdown
#
# The scores have standard deviation $\sqrt{d_k} / d_k = 1/32$, so all weights are near $1/10$: attention starts as a
# plain mean. The softmax is not saturated and has a healthy derivative, so the model can learn its way out. It is a
# worse start, not a dead one. {cite:t}`yang2021tuning` even argue for $1/d_k$, because in training queries and keys
# become correlated.
# ```

# %% tags=["hide-cell"]
torch.manual_seed(0)
q, k = torch.randn(1000, 1, 1024), torch.randn(1000, 10, 1024)
alpha = (q @ k.transpose(1, 2) / 1024).softmax(dim=-1)
assert ((alpha - 0.1).abs() < 0.02).all()

# %% [markdown]
# ```{exercise} A query that is its own key
# :label: ex-self-score
#
# Suppose $q = k$, with independent entries of mean 0 and variance 1. What is the mean of $q \cdot k$, and of
# $q \cdot k / \sqrt{d_k}$? Which condition of footnote 4 fails?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $q \cdot q$ is a sum of squares.
# ```
#
# ```{solution} ex-self-score
# :class: dropdown
#
# $\mathrm{E}[q \cdot q] = d_k$, and scaled $\sqrt{d_k}$, which grows. Query and key are not independent. In
# self-attention with $W^Q = W^K$ every token would look mostly at itself; two separate matrices avoid that.
# ```

# %% tags=["hide-cell"]
torch.manual_seed(0)
q = torch.randn(10_000, 64)
assert abs((q * q).sum(-1).mean() / 64 - 1) < 0.01

# %% [markdown]
# ```{exercise} Padding on the left
# :label: ex-left-padding
#
# Pad the *target* on the left instead of the right. Which rows of `padding & causal` are without a key? What would
# go wrong if you kept the causal mask alone?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Draw the mask for two padding tokens and three words.
# ```
#
# ```{solution} ex-left-padding
# :class: dropdown
#
# The rows of the padding tokens: what they may see by the causal mask (themselves and what is left of them) is all
# padding. With minus infinity they become NaN, and NaN spreads. With the causal mask alone there is no NaN, but every
# real token now looks at the padding before it, so a sentence's translation depends on how much padding its batch
# needed.
# ```

# %% tags=["hide-cell"]
left = torch.tensor([[0, 0, 7, 8, 9]])
both = padding_mask(left, pad_id=0) & causal_mask(5)
assert both.any(dim=-1).flatten().tolist() == [False, False, True, True, True]

# %% [markdown]
# ```{exercise} Minus one thousand million
# :label: ex-half
#
# Old code writes `scores.masked_fill(mask == 0, -1e9)`. Name two ways in which this differs from minus infinity. What
# happens in half precision (float16)?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The largest float16 is 65,504. What is $e^{-10^9}$ in float32?
# ```
#
# ```{solution} ex-half
# :class: dropdown
#
# With at least one visible key there is no difference in float32: $e^{-10^9}$ rounds to 0. A row without a visible
# key becomes uniform instead of NaN, so the mistake goes unnoticed. And $-10^9$ does not fit into float16: PyTorch
# raises an error, other libraries turn it into minus infinity.
# ```

# %% tags=["hide-cell"]
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

# %% [markdown]
# ```{exercise} The heads' axis
# :label: ex-heads-axis
#
# Somebody hands `MultiHeadAttention` a mask of shape (B, L, L) instead of (B, 1, L, L). For which B and $h$ does this
# fail, and for which does it run? What does it compute then?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Scores are (B, h, L, L). Broadcasting lines shapes up from the right.
# ```
#
# ```{solution} ex-heads-axis
# :class: dropdown
#
# The mask's B lands on the heads' axis. With B = 1 it runs and is right. With B = $h$ it runs and is wrong: *head*
# $b$ of every sentence gets the mask of *sentence* $b$. Otherwise it fails.
# ```

# %% tags=["hide-cell"]
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

# %% [markdown]
# ```{exercise} Which mask, where?
# :label: ex-which-mask
#
# For each of the model's three attentions: which of its masks would you lose first without noticing, if all your
# tests had batches of one sentence and no padding? Which test of this chapter would still catch it?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# With one sentence there is no padding to hide.
# ```
#
# ```{solution} ex-which-mask
# :class: dropdown
#
# The two source padding masks (in the encoder and in the encoder-decoder attention): with no padding, all of their
# entries are True. Without the causal mask the reach test fails at once. "Append padding, and nothing at the real positions may
# change" finds the other two, which is why that law is a test of this package.
# ```
#
# ```{exercise} The parameters of attention
# :label: ex-base-parameters
#
# How many parameters has one `MultiHeadAttention` of the base model? How many with $d_k = 16$, as in row (B) of Table
# 3? How many such layers has the model, and what share of its 65 million parameters are they?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Each encoder layer has one, each decoder layer two. In row (B), $d_v$ stays 64.
# ```
#
# ```{solution} ex-base-parameters
# :class: dropdown
#
# $4 \cdot 512^2 = 1{,}048{,}576$. With $d_k = 16$: $2 \cdot 512 \cdot 128 + 2 \cdot 512 \cdot 512 = 655{,}360$. There
# are 18, 18.9 million in all, or 29 percent.
# ```

# %% tags=["hide-cell"]
for d_k, expected in ((64, 1_048_576), (16, 655_360)):
    layer = MultiHeadAttention(d_model=512, h=8, d_k=d_k, d_v=64)
    assert sum(weight.numel() for weight in layer.parameters()) == expected
assert round(18 * 1_048_576 / 65e6, 2) == 0.29

# %% [markdown]
# ```{exercise} Concatenation is a sum
# :label: ex-sum-of-heads
#
# Show that $\mathrm{MultiHead} = \sum_i \mathrm{head}_i\, W_i^O$, where $W_i^O$ is the $i$-th block of $d_v$ rows of
# $W^O$. What would the model lose without $W^O$?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Multiply a row of blocks by a column of blocks.
# ```
#
# ```{solution} ex-sum-of-heads
# :class: dropdown
#
# $[\mathrm{head}_1, \ldots, \mathrm{head}_h]$ times the blocks stacked is the sum of the products. So each head
# *adds* its own contribution to the output, and no head need know of the others. Without $W^O$, head $i$ could write
# only to its own $d_v$ of the output's columns.
# ```

# %% tags=["hide-cell"]
blocks = W_O.split(2)
assert_close(head_1 @ blocks[0] + head_2 @ blocks[1], concatenated @ W_O)

# %% [markdown]
# ```{exercise} How rich is a narrow head?
# :label: ex-narrow-head
#
# The scores of a head are $X W^Q (X W^K)^\top = X\,A\,X^\top$ with $A = W^Q {W^K}^\top$. What is the largest possible
# rank of $A$? Could one head with $d_k = 1$ tell ten tokens apart as freely as one with $d_k = 64$?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The rank of a product is at most the rank of each factor.
# ```
#
# ```{solution} ex-narrow-head
# :class: dropdown
#
# At most $d_k$. With $d_k = 1$ the scores are $a_i b_j$, one number for each query times one for each key: every
# query with $a_i > 0$ ranks the keys alike. Narrow heads are limited in *what they compare*, and row (B) of Table 3
# finds that a smaller $d_k$ costs quality.
# ```

# %% tags=["hide-cell"]
torch.manual_seed(0)
layer = MultiHeadAttention(d_model=32, h=4)
A = layer.W_Q.weight[:8].T @ layer.W_K.weight[:8]
assert torch.linalg.matrix_rank(A) == 8

# %% [markdown]
# ### Write them yourself
#
# The last five exercises ask for functions. `check` calls yours with small tensors of unequal sizes and prints one
# line: that it is right, or what is wrong with it, without the answer. Here is attention by somebody who forgot
# something:

# %%
from annotated_transformer.exercises import check

def forgetful(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1) @ v

check("3.2.1", forgetful)

# %% [markdown]
# ```{exercise} Attention
# :label: ex-write-attention
#
# Write `attention(q, k, v, mask=None)`, equation {eq}`attention` with the mask of equation {eq}`masked-attention`:
# `q` is L by $d_k$, `k` is S by $d_k$, `v` is S by $d_v$, all three with any leading axes. Use no attention function
# of PyTorch or of the package. Check it with `check("3.2.1", attention)`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# To transpose the last two axes and leave the leading ones alone, name them: -2 and -1.
# ```
#
# ```{solution} ex-write-attention
# :class: dropdown
#
# Three lines are the equation, two the mask. The folded cell has them.
# ```

# %% tags=["hide-cell"]
def my_attention(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1) @ v

check("3.2.1", my_attention)
q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
assert_close(my_attention(q, k, v), scaled_dot_product_attention(q, k, v))

# %% [markdown]
# ```{exercise} The causal mask
# :label: ex-write-causal
#
# Write `causal_mask(length)`: a boolean matrix of `length` rows and columns, True where a query may look at a key.
# Check it with `check("3.2.3-causal", causal_mask)`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Compare two vectors of positions, one standing and one lying; or look for a PyTorch function that keeps a triangle.
# ```
#
# ```{solution} ex-write-causal
# :class: dropdown
#
# Query $i$ may look at key $j$ if $j \le i$. With the positions of the queries as a column and those of the keys as a
# row, broadcasting compares them all.
# ```

# %% tags=["hide-cell"]
def my_causal_mask(length):
    position = torch.arange(length)
    return position[None, :] <= position[:, None]

check("3.2.3-causal", my_causal_mask)
assert torch.equal(my_causal_mask(5), causal_mask(5)[0, 0])

# %% [markdown]
# ```{exercise} The padding mask
# :label: ex-write-padding
#
# Write `padding_mask(tokens, pad_id)`. `tokens` has shape (B, L); the mask must broadcast against scores of shape
# (B, h, queries, L) and have one entry for each key, so its shape is (B, 1, 1, L). Check it with
# `check("3.2.3-padding", padding_mask)`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Indexing with `None` inserts an axis of size 1.
# ```
#
# ```{solution} ex-write-padding
# :class: dropdown
#
# The comparison has shape (B, L); two axes come in between, for all heads and all queries.
# ```

# %% tags=["hide-cell"]
def my_padding_mask(tokens, pad_id):
    return (tokens != pad_id)[:, None, None, :]

check("3.2.3-padding", my_padding_mask)
tokens = torch.tensor([[11, 12, 13], [21, 0, 0]])
assert torch.equal(my_padding_mask(tokens, 0), padding_mask(tokens, 0))

# %% [markdown]
# ```{exercise} Additive scores
# :label: ex-write-additive
#
# Write `additive_scores(q, k, W_q, W_k, v)`, the first line of equation {eq}`three-scores`, for all queries and keys
# at once: `q` is $n_q \times d$, `k` is $n_k \times d$, `W_q` and `W_k` are $d \times d_a$, and `v`, the equation's
# $w$, has $d_a$ entries. The result is $n_q \times n_k$. Check it with `check("3.2-additive", additive_scores)`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Which axis does each of the two lack in order to be added to the other? Remember what happens with as many keys as
# queries.
# ```
#
# ```{solution} ex-write-additive
# :class: dropdown
#
# The projected queries get an axis for the keys, the projected keys one for the queries. Without the two axes the sum
# fails when $n_q \ne n_k$, and is wrong when they are equal.
# ```

# %% tags=["hide-cell", "row-E3"]
def my_additive_scores(q, k, W_q, W_k, v):
    return torch.tanh((q @ W_q)[:, None, :] + (k @ W_k)[None, :, :]) @ v

def without_axes(q, k, W_q, W_k, v):
    return torch.tanh(q @ W_q + k @ W_k) @ v

check("3.2-additive", my_additive_scores)
check("3.2-additive", without_axes)
q, k, W_q, W_k, v = (torch.randn(*size) for size in ((3, 5), (4, 5), (5, 2), (5, 2), (2,)))
by_loop = torch.tensor([[v @ torch.tanh(one @ W_q + other @ W_k) for other in k] for one in q])
assert_close(my_additive_scores(q, k, W_q, W_k, v), by_loop)

# %% [markdown]
# ```{exercise} Multi-head attention
# :label: ex-write-multi-head
#
# Write `multi_head(x, memory, W_Q, W_K, W_V, W_O, h)`, equation {eq}`multi-head` with queries from `x` (B, L, D) and
# keys and values from `memory` (B, S, D). The heads' matrices stand side by side: `W_Q` and `W_K` are D by
# $h\,d_k$, `W_V` is D by $h\,d_v$, `W_O` is $h\,d_v$ by D, and each is multiplied from the right, `x @ W_Q`. Check it
# with `check("3.2.2", multi_head)`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# A loop over the heads is a good answer: `chunk` cuts the last axis into $h$ pieces. Without a loop: cut the last axis
# first, then move the axis of the heads.
# ```
#
# ```{solution} ex-write-multi-head
# :class: dropdown
#
# Project, cut each product into $h$ pieces, attend piece by piece, put the pieces side by side again, and multiply by
# $W^O$.
# ```

# %% tags=["hide-cell", "row-E6"]
def my_multi_head(x, memory, W_Q, W_K, W_V, W_O, h):
    projected = (x @ W_Q).chunk(h, -1), (memory @ W_K).chunk(h, -1), (memory @ W_V).chunk(h, -1)
    heads = [my_attention(q, k, v) for q, k, v in zip(*projected)]
    return torch.cat(heads, dim=-1) @ W_O

check("3.2.2", my_multi_head)
layer, x, memory = MultiHeadAttention(6, h=2), torch.randn(2, 3, 6), torch.randn(2, 5, 6)
matrices = [W.weight.T for W in (layer.W_Q, layer.W_K, layer.W_V, layer.W_O)]
assert_close(my_multi_head(x, memory, *matrices, h=2), layer(x, memory))

# %% [markdown]
# ## What to remember
#
# - Attention is a lookup with soft keys: scores, softmax, mean of the values (equation {eq}`generic-attention`).
# - The scaled dot product is a matrix product and a division; the division keeps the scores' variance at 1 whatever
#   $d_k$ is, and the softmax out of the region where it has no gradient (equations {eq}`attention` and
#   {eq}`dot-product-variance`).
# - A mask is True where a query may look; rows are queries, columns are keys. Test masks by what *reaches* what. A loss
#   that is too good is a mask until proven otherwise.
# - $h$ heads are $h$ lookups for the price of one, joined by $W^O$ (equation {eq}`multi-head`).
# - The model uses attention in three places (equation {eq}`three-uses`), and only the encoder-decoder attention joins
#   source and target.
#
# In [the chapter on translation](6_1_translation.ipynb) these layers are trained, and their weights become worth
# looking at.
