# %% [markdown]
# # 3.2 Attention
#
# *Section 3.2 of the paper {cite}`vaswani2017attention`: scaled dot-product attention, multi-head attention, and the
# three places where the model uses them.*
#
# A sentence enters the model as one vector per token. Take *Tom sold his car because it was old*. German has *er*, *sie*
# and *es* for *it*, and to choose, the model needs something that stands at another place: that *it* is the car.
# **Attention** is how a vector at one position fetches what it needs from the vectors at other positions. It is the only
# part of the Transformer that moves information along the sentence.
#
# When you have read this chapter you can
#
# - make queries, keys and values from a sentence, and compute attention with a pencil;
# - explain why the paper divides by $\sqrt{d_k}$;
# - say what $h$ heads do that a single head cannot, and what they cost;
# - name the three attentions of the model, and where their queries, keys and values come from.
#
# You need matrix products and some Python. [Notation](notation.md) lists the letters for shapes (B sentences, L
# positions, ...).

# %% tags=["remove-cell"]
import math

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import to_rgba
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer import attention_weights, scaled_dot_product_attention
from lab.attention_map import plot_attention
from lab.display import PALETTE, show, use_style
from lab.same import equal, with_weights

use_style()
torch.set_printoptions(precision=4, sci_mode=False)

# %% [markdown]
# This chapter is about one class of the program of [chapter 0](0_one_hour.ipynb), the **listing**:

# %%
from lab.listing import MultiHeadAttention

show(MultiHeadAttention)

# %% [markdown]
# It need not be clear yet; each line has a section:
#
# | line | what it does | section |
# |---|---|---|
# | `W_Q`, `W_K`, `W_V` | make a query, a key and a value of each vector | [From a token](at-projections) |
# | `unflatten`, `transpose` | cut them into $h$ heads | [Multi-head attention](at-heads) |
# | `scores` | dot products, divided by $\sqrt{d_k}$ | [Equation 1](at-equation), [Why the square root](at-scale) |
# | `masked_fill` | hides keys | [A mask hides keys](at-mask) |
# | `softmax`, `weights @ V` | weights, and means of the values | [A dictionary](at-dictionary) |
# | `transpose`, `flatten`, `W_O` | join the heads and mix them | [Multi-head attention](at-heads) |

# %% [markdown]
# (at-dictionary)=
# ## A dictionary with soft keys
#
# A Python dictionary answers a query only if the query *equals* a key. Gradient descent can learn little from such a
# lookup: if we move the query a little, either the answer stays the same or the key is missing. Attention keeps the
# three parts of a dictionary and softens the comparison.
#
# - The **query** $q$ says what is looked for.
# - Each item has a **key** $k_i$, the vector that we compare with the query.
# - Each item has a **value** $v_i$, the vector that it hands over.
#
# A **score** $f(k_i, q)$, any number, says how well key $i$ fits the query. The **softmax** turns the scores into
# **attention weights** $\alpha_i$: positive numbers with sum one. The output is the mean of the values under these
# weights.
#
# $$
# \alpha_i = \frac{\exp f(k_i, q)}{\sum_j \exp f(k_j, q)},
# \qquad
# \text{output} = \sum_i \alpha_i v_i
# $$ (generic-attention)
#
# Let us play with this formula, with four winds as items. A wind's key is the direction it comes from, a vector of
# length 1; its value is the temperature it brings. The score is the **dot product** $k \cdot q$, which is large when
# the two vectors point the same way. Our query points 30 degrees east of north, and we ask with queries of growing
# length.

# %%
def attend(score, query, keys, values):
    """The weights and the output of generic attention, for one query."""
    alpha = torch.stack([score(key, query) for key in keys]).softmax(dim=0)
    return alpha, alpha @ values

def dot(key, query):
    return key @ query

keys = torch.tensor([[0.0, 1], [1, 0], [0, -1], [-1, 0]])  # N, E, S, W
values = torch.tensor([[2.0], [8.0], [20.0], [12.0]])  # degrees Celsius
direction = torch.tensor([0.5, math.sqrt(0.75)])  # 30 degrees east of north
for length in (0, 1, 4, 32):
    alpha, output = attend(dot, length * direction, keys, values)
    weights = " ".join(f"{a:.4f}" for a in alpha)
    print(f"length {length:2d}  weights {weights}  output {output.item():.3f}")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Left: a compass with four arrows of length 1, the keys, labelled north 2 degrees, east 8 degrees, south 20 degrees and west 12 degrees, and a longer arrow, the query, 30 degrees east of north. Right: four bars, the attention weights of a query of length 4: north 0.81, east 0.19, south and west 0.00."}, "figure": {"caption": "Four keys with their values, one query of length 4 (drawn shorter), and the attention weights that it gives to the keys.", "name": "fig-compass"}}
winds = ["north", "east", "south", "west"]
figure, (left, right) = plt.subplots(1, 2, figsize=(6, 2.7), layout="constrained")
for wind, key, value in zip(winds, keys.tolist(), values.flatten().tolist()):
    left.annotate("", key, (0, 0), arrowprops={"arrowstyle": "->", "color": PALETTE[1], "lw": 1.8})
    left.text(1.55 * key[0], 1.22 * key[1], f"{wind}\n{value:.0f} °C", ha="center", va="center")
tip = (1.7 * direction).tolist()
left.annotate("", tip, (0, 0), arrowprops={"arrowstyle": "->", "color": PALETTE[0], "lw": 2.4})
left.text(tip[0] + 0.1, tip[1], "query", color=PALETTE[0], va="center")
left.set(xlim=(-2.1, 2.1), ylim=(-1.6, 1.75), aspect="equal", title="keys (orange) and values")
left.axis("off")
bars = right.bar(winds, attend(dot, 4 * direction, keys, values)[0], color=PALETTE[0])
right.bar_label(bars, fmt="%.2f")
right.set(ylim=(0, 1), ylabel="attention weight", title="the nearest key gets most")
plt.show()

# %% [markdown]
# A query of length 0 fits all keys alike and gets the plain mean, 10.5 degrees. The longer the query, the more the best
# key takes, until at length 32 the softmax is a dictionary again: north, 2 degrees. In between lies what we want: an
# answer between the values, and one that changes smoothly with the query.

# %%
query = (4 * direction).requires_grad_()
alpha, output = attend(dot, query, keys, values)
output.backward()
print("gradient of the output with respect to the query:", query.grad)

# %% tags=["remove-cell"]
assert (alpha > 0).all() and math.isclose(alpha.sum().item(), 1, rel_tol=1e-6)
assert values.min() <= output <= values.max()
assert query.grad[0] > 0 > query.grad[1]

# %% [markdown]
# The signs make sense: turning east warms the answer, and turning north cools it. Let us turn the query once round the
# compass. A short query blurs the four winds, a long one switches from one to the next. So the length of a query sets
# the sharpness of its lookup, and training can choose it.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two line charts of the attention weight of the four winds while the query turns from 0 to 360 degrees. With a query of length 1 the four curves are gentle waves between 0.1 and 0.5. With length 8 each wind in turn has a weight near 1, with steep crossings between them."}, "figure": {"caption": "Attention weights of four keys while the query turns round: the longer the query, the sharper its lookup.", "name": "fig-winds"}}
degrees = torch.arange(0, 361, 3)
circle = torch.stack([degrees.deg2rad().sin(), degrees.deg2rad().cos()], dim=1)
figure, axes = plt.subplots(2, figsize=(5, 3.8), sharex=True, layout="constrained")
for ax, length, message in zip(axes, (1, 8), ("a blur", "a switch")):
    alphas = [attend(dot, length * query, keys, values)[0] for query in circle]
    for alpha, wind, dash in zip(torch.stack(alphas).T, winds, ("-", "--", "-.", ":")):
        ax.plot(degrees, alpha, dash, label=wind)
    ax.set(title=f"query of length {length}: {message}", xticks=range(0, 361, 90))
    ax.set(ylabel="attention weight", ylim=(-0.05, 1.05))
axes[1].set_xlabel("direction of the query (degrees)")
axes[0].legend(loc="upper center", ncols=4)
plt.show()

# %% [markdown]
# The sum in equation {eq}`generic-attention` runs over the items in any order. If we shuffle the winds, the answer to
# our query is **invariant**: it stays what it was.

# %%
order = torch.tensor([3, 0, 2, 1])
_, output = attend(dot, 4 * direction, keys, values)
_, shuffled = attend(dot, 4 * direction, keys[order], values[order])
assert_close(shuffled, output)
print(f"in order {output.item():.4f}  shuffled {shuffled.item():.4f}")

# %% [markdown]
# To attention, a sentence is a *multiset* of key and value pairs. That is why the model writes each token's position
# into its vector ([section 3.5](3_5_positional_encoding.ipynb)). When every token of a sentence asks, the outputs move
# with the tokens: they are **equivariant** ({ref}`ex-order`).

# %% [markdown]
# (at-projections)=
# ## From a token to its query, key and value
#
# Our winds came with keys and values. In the model they are *made* from one vector. Each token is a row $x$ with
# $d_{\mathrm{model}}$ entries, and three learned matrices turn it into three vectors:
#
# $$
# q = x\,W^Q, \qquad k = x\,W^K, \qquad v = x\,W^V
# $$ (projections)
#
# So each token plays three roles. It asks with its query, it is found by its key, and it hands over its value. Training
# shapes the matrices; attention itself has nothing else to learn. We follow three tokens with made-up numbers, small
# enough for a pencil: vectors of $d_{\mathrm{model}} = 4$ entries, and queries, keys and values of two. Stacked as rows of
# matrices, they come from three products; a row of $Q$ is therefore a projection of one token's vector.

# %%
X = torch.tensor([[1.0, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1]])  # Tom, sold, it
W_Q = torch.tensor([[1.0, -1], [0, 0], [1, 0], [0, 1]])
W_K = torch.tensor([[0.0, 1], [-1, 1], [0, 0], [1, 0]])
W_V = torch.tensor([[-1.0, 1], [0, 0], [1, -1], [1, 1]])
Q, K, V = X @ W_Q, X @ W_K, X @ W_V
print("Q", Q, "K", K, "V", V, sep="\n")

# %% tags=["hide-input"]
def draw_matrix(ax, left, top, matrix, title, color, rows=()):
    """The matrix as a grid of numbers; `rows` are labels. Of weights, darker cells are larger."""
    n, m = matrix.shape
    for i, row in enumerate(matrix.tolist()):
        for j, number in enumerate(row):
            tint = 0.1 + 0.6 * number if "weights" in title else 0.2
            tinted = to_rgba(color, tint if number > -math.inf else 0)
            ax.add_patch(plt.Rectangle((left + j, top + i), 1, 1, fc=tinted, ec="grey", lw=0.6))
            text = "−∞" if number == -math.inf else f"{number:.2f}".removesuffix(".00").replace("-", "−")
            ax.text(left + j + 0.5, top + i + 0.52, text, ha="center", va="center", fontsize=8.5)
    for i, label in enumerate(rows):
        ax.text(left - 0.15, top + i + 0.5, label, ha="right", va="center", fontsize=8.5)
    ax.text(left + m / 2, top - 0.2, title, ha="center", va="bottom", fontsize=9)

# %% tags=["hide-input"]
def canvas(width, height, size, signs):
    """Axes on which one unit is a matrix cell, and signs such as = between the matrices."""
    figure, ax = plt.subplots(figsize=size, layout="constrained")
    ax.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    ax.axis("off")
    for x, y, sign in signs:
        ax.text(x, y, sign, ha="center", va="center", fontsize=10)
    return ax

# %% tags=["hide-input"] mystnb={"image": {"alt": "On the left the matrix X with a row of four numbers for each of the tokens Tom, sold and it. Three arrows lead from it to the 4 by 2 matrices W Q, W K and W V, one below the other; each product gives a 3 by 2 matrix: the queries Q in blue, the keys K in orange, the values V in green."}, "figure": {"caption": "One vector per token, three learned matrices: every token gets a query, a key and a value.", "name": "fig-projections"}}
signs = [(11, y, "=") for y in (3, 8.5, 14)] + [(8, y, "×") for y in (3, 8.5, 14)]
ax = canvas(14.2, 16.4, (4.4, 5.1), signs)
tokens = ["Tom", "sold", "it"]
draw_matrix(ax, 1.5, 7, X, "$X$", "grey", tokens)
names = (("Q", "queries", W_Q, Q), ("K", "keys", W_K, K), ("V", "values", W_V, V))
for number, (name, role, W, product) in enumerate(names):
    top, color = 1 + 5.5 * number, PALETTE[number]
    draw_matrix(ax, 8.5, top, W, f"$W^{name}$ (learned)", color)
    draw_matrix(ax, 11.9, top + 0.5, product, f"{role} ${name}$", color)
    arrow = {"arrowstyle": "->", "color": color, "lw": 1.6}
    ax.annotate("", (7.6, top + 2), (5.7, 8.5), arrowprops=arrow)
plt.show()

# %% [markdown]
# Three steps remain. The **scores** are the dot products of every query with every key, one row for each query, divided
# by $\sqrt{d_k}$; here $d_k = 2$ is the number of entries of a query and of a key. The softmax of each row gives the
# **weights**. The weights times $V$ give the **output**, one row per token.

# %%
scores = Q @ K.T / math.sqrt(2)
alpha = scores.softmax(dim=1)
output = alpha @ V
print("scores", scores, "weights", alpha, "output", output, sep="\n")

# %% [markdown]
# The larger a score, the larger its weight in the row: the second token looks most, and equally, at the first and at
# itself, the third at the first.

# %% tags=["remove-cell", "row-F6", "row-W1"]
t = math.exp(1 / math.sqrt(2))
assert Q.tolist() == [[1, 0], [0, 1], [1, 1]] and K.tolist() == [[1, 1], [0, 1], [1, 0]]
assert V.tolist() == [[0, 2], [1, 1], [2, 0]]
assert (Q @ K.T).tolist() == [[1, 0, 1], [1, 1, 0], [2, 1, 1]]
assert_close(alpha[0], torch.tensor([t, 1, t]) / (2 * t + 1))
assert_close(alpha[1], torch.tensor([t, t, 1]) / (2 * t + 1))
assert_close(alpha[2], torch.tensor([t, 1, 1]) / (t + 2))
answer = torch.tensor([[1, 1], [0.7967, 1.2033], [0.7448, 1.2552]])
assert_close(output, answer, atol=5e-5, rtol=0)
# Rounding belongs at the end: rounded before the exponential, the third output comes out as (0.75, 1.25) instead of (0.74, 1.26).
early = torch.tensor([1.41, 0.71, 0.71]).softmax(dim=0) @ V
assert [f"{number:.2f}" for number in early.tolist()] == ["0.75", "1.25"]
assert [f"{number:.2f}" for number in output[2].tolist()] == ["0.74", "1.26"]

# %% tags=["hide-input"] mystnb={"image": {"alt": "The example in two rows of matrices of numbers. First row: Q, 3 by 2, times K transposed, 2 by 3, equals the dot products 1 0 1, 1 1 0, 2 1 1; divided by root two they are the scores 0.71 0 0.71, 0.71 0.71 0, 1.41 0.71 0.71. Second row: the softmax of each row gives the weights 0.40 0.20 0.40, 0.40 0.40 0.20, 0.50 0.25 0.25; times V they give the output 1 1, 0.80 1.20, 0.74 1.26."}, "figure": {"caption": "From queries, keys and values to the output. A row of the scores, of the weights and of the output belongs to one query.", "name": "fig-equation-1"}}
signs = [(4.2, 2.5, "×"), (8.4, 2.5, "="), (12.9, 2.5, "÷ √2\n→"),
         (3.3, 7.5, "softmax\nof rows →"), (8.9, 7.5, "×"), (12.1, 7.5, "=")]
ax = canvas(17.2, 9.4, (6.6, 3.7), signs)
draw_matrix(ax, 1.6, 1, Q, "$Q$", PALETTE[0], tokens)
draw_matrix(ax, 4.9, 1.5, K.T, "$K^\\top$", PALETTE[1])
draw_matrix(ax, 9, 1, Q @ K.T, "$QK^\\top$", "grey")
draw_matrix(ax, 13.9, 1, scores, "scores", "grey")
draw_matrix(ax, 5.2, 6, alpha, "weights", PALETTE[0])
draw_matrix(ax, 9.6, 6, V, "$V$", PALETTE[2])
draw_matrix(ax, 12.8, 6, output, "output", PALETTE[2])
plt.show()

# %% [markdown]
# (at-equation)=
# ## Equation 1: scaled dot-product attention
#
# What we have just done is the paper's equation 1:
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
# the width $d_v$ of the values are free. This is our drawing of the left half of the paper's Figure 2:
#
# ![Figure 2, left half, read from below: the product of Q and K transposed, the division by root d k, an optional mask, the softmax, the product with V.](figures/scaled_dot_product.svg)
#
# In the listing it is three lines (without the mask). `Q`, `K` and `V` may have leading axes, sentences and heads; the
# last two are the matrices, and `transpose(-2, -1)` is $K^\top$:
#
# ```python
# scores = Q @ K.transpose(-2, -1) / Q.size(-1) ** 0.5
# weights = scores.softmax(dim=-1)
# weights @ V
# ```
#
# The package has the same in [`attention_weights` and `scaled_dot_product_attention`](https://github.com/annotated-transformer/annotated-transformer/blob/main/annotated_transformer/model/attention.py). We check it against loops
# over Python floats, which follow the equation letter by letter, and against PyTorch's own kernel.

# %% tags=["row-E1", "row-W1"]
def attention_by_hand(Q, K, V):
    output = []
    for q in Q:
        products = [sum(a * b for a, b in zip(q, k)) for k in K]
        scores = [product / math.sqrt(len(q)) for product in products]
        total = sum(math.exp(s) for s in scores)
        alpha = [math.exp(s) / total for s in scores]
        output.append([sum(a * v for a, v in zip(alpha, column))
                       for column in zip(*V)])
    return torch.tensor(output)

by_hand = attention_by_hand(Q.tolist(), K.tolist(), V.tolist())
assert_close(scaled_dot_product_attention(Q, K, V), by_hand)
assert_close(F.scaled_dot_product_attention(Q, K, V), by_hand)
print(by_hand)

# %% tags=["hide-cell", "row-E1", "row-E4"]
def scaled_dot(key, query):
    return key @ query / math.sqrt(len(query))

torch.manual_seed(0)
L, S, d_k, d_v = 2, 3, 4, 5
q, k, v = torch.randn(L, d_k), torch.randn(S, d_k), torch.randn(S, d_v)
by_hand = attention_by_hand(q.tolist(), k.tolist(), v.tolist())
assert_close(by_hand, scaled_dot_product_attention(q, k, v))
assert_close(by_hand, F.scaled_dot_product_attention(q, k, v))
one_by_one = torch.stack([attend(scaled_dot, query, k, v)[1] for query in q])
assert_close(one_by_one, by_hand)  # equation (generic-attention), one query after the other

# %% [markdown]
# One mistake leaves every shape as it is: a softmax over the wrong axis, the queries instead of the keys. Then each
# *column* adds up to one, the queries compete for each key, and the output is no longer a mean of values.

# %%
wrong = (Q @ K.T / math.sqrt(2)).softmax(dim=0)
print("row sums, right:", alpha.sum(dim=1), " wrong:", wrong.sum(dim=1))
print("third token, right:", alpha[2] @ V, " wrong:", wrong[2] @ V)

# %% [markdown]
# (at-why-three)=
# ### Why three matrices and not one?
#
# Could a query serve as key as well? With $W^Q = W^K$ the scores are symmetric: what I look at looks back at me as
# strongly. Moreover $(q_i \cdot q_j)^2 \le |q_i|^2\, |q_j|^2$, so of any two words at least one fits *itself* as well as
# it fits the other: a verb and its subject could never both look at each other first. And could a key serve as value? What a word
# is *found by* and what it *hands over* would have to share $d_k$ numbers. We measure both. Eight places form four
# pairs; each place knows its number and carries a random symbol of eight, and has to give the symbol of its partner.

# %% tags=["hide-cell"]
def exchange_task(n_rows=64):
    symbol, place = torch.randint(8, (n_rows, 8)), torch.eye(8).expand(n_rows, 8, 8)
    partner = torch.arange(8) ^ 1  # 0 and 1, 2 and 3, ...
    return torch.cat([torch.eye(8)[symbol], place], dim=-1), symbol[:, partner]

def matrices_of(d_k, seed):
    torch.manual_seed(seed)
    return (torch.randn(n, m) / n**0.5 for n, m in [(16, d_k)] * 3 + [(d_k, 8)])

def optimise(matrices):
    return torch.optim.Adam([W.requires_grad_() for W in dict.fromkeys(matrices)], lr=0.02)

# %% tags=["nbval-rtol-0.05"]
def exchange(shared, d_k, seed):
    W_Q, W_K, W_V, W_O = matrices_of(d_k, seed)
    W_K = W_Q if shared == "Q = K" else W_K
    W_V = W_K if shared == "K = V" else W_V
    adam = optimise([W_Q, W_K, W_V, W_O])
    for _ in range(300):
        x, wanted = exchange_task()
        scores = (x @ W_Q) @ (x @ W_K).mT / d_k**0.5
        output = scores.softmax(dim=-1) @ (x @ W_V) @ W_O
        adam.zero_grad()
        F.cross_entropy(output.flatten(0, 1), wanted.flatten()).backward()
        adam.step()
    return (output.argmax(dim=-1) == wanted).float().mean().item()
print(f"three matrices, d_k 2: {exchange('none', d_k=2, seed=0):.2f} right")

# %% tags=["nbval-ignore-output"]
right = {}
for shared in ("none", "Q = K", "K = V"):
    for d_k in (2, 8):
        right[shared, d_k] = [exchange(shared, d_k, seed) for seed in range(3)]
        shares = " ".join(f"{share:.2f}" for share in right[shared, d_k])
        print(f"shared: {shared:5}  d_k {d_k}  right {shares}")

# %% tags=["remove-cell"]
assert min(right["none", 2] + right["none", 8]) > 0.95 and max(right["Q = K", 2] + right["Q = K", 8]) < 0.75
assert max(right["K = V", 2]) < 0.6 and min(right["K = V", 8]) > 0.95

# %% [markdown]
# With $d_k = 2$ three matrices learn the exchange, with every seed. With one matrix for queries and keys neither width is
# enough, as the inequality says of any: the best is to look at both and to guess. With one for keys and values the task
# fails at $d_k = 2$ and is learned at 8, where place and symbol have room side by side. So $W^V$ saves width, and $W^K$
# makes it possible for two words to ask for each other.

# %% [markdown]
# ```{admonition} Two other scores
# :class: note
#
# Section 3.2.1 compares the scaled dot product with the two most commonly used scores of its time: *additive*
# attention {cite}`bahdanau2015neural`, a small network with one hidden layer of width $d_a$, and the plain dot product
# {cite}`luong2015effective`.
#
# $$
# f_{\text{additive}}(k, q) = w^\top \tanh(W_q\, q + W_k\, k)
# \qquad
# f_{\text{dot}}(k, q) = k \cdot q
# \qquad
# f_{\text{scaled}}(k, q) = \frac{k \cdot q}{\sqrt{d_k}}
# $$ (three-scores)
#
# The paper calls the first two similar in theoretical complexity, and the dot product much faster and smaller in
# practice. With 512 queries, 512 keys and $d_a = 64$, the dot product holds 262,144 numbers, the hidden layer of
# additive attention 16,777,216. In quality it calls the two alike for small $d_k$; for large $d_k$ additive attention
# beat the *unscaled* dot product {cite}`britz2017massive`. {ref}`ex-write-additive` asks for its code.
# ```

# %% tags=["remove-cell", "row-E2"]
key, query = torch.randn(2, 64)
assert_close(dot(key, query), scaled_dot(key, query) * math.sqrt(64))
assert (512 * 512, 512 * 512 * 64) == (262_144, 16_777_216)

# %% [markdown]
# (at-scale)=
# ## Why the square root
#
# Why does the paper divide by $\sqrt{d_k}$? We go in three steps: how large scores are, what large ones do to the softmax,
# and whether that is what hurts. The first is the paper's footnote 4. Let the entries of $q$ and $k$ be independent random
# numbers with mean 0 and variance 1. Each product $q_c k_c$ then has mean 0 and variance
# $\mathrm{E}[q_c^2]\,\mathrm{E}[k_c^2] = 1$, and variances of independent terms add up:
#
# $$
# \mathrm{E}[q \cdot k] = \sum_{c=1}^{d_k} \mathrm{E}[q_c]\,\mathrm{E}[k_c] = 0,
# \qquad
# \mathrm{Var}(q \cdot k) = \sum_{c=1}^{d_k} \mathrm{Var}(q_c k_c) = d_k
# $$ (dot-product-variance)
#
# So scores have a standard deviation of $\sqrt{d_k}$, which is 8 for the paper's $d_k = 64$. With the division it is 1,
# however wide the vectors are. Let us draw 10,000 random pairs for each $d_k$ and measure.

# %% tags=["row-E5"]
torch.manual_seed(0)
dot_products = {}
for d_k in (1, 4, 16, 64, 256):
    q, k = torch.randn(2, 10_000, d_k)
    dot_products[d_k] = (q * k).sum(dim=-1)
    variance = dot_products[d_k].var()
    scaled = (dot_products[d_k] / math.sqrt(d_k)).var()
    assert abs(variance / d_k - 1) < 0.1 and abs(scaled - 1) < 0.1
    print(f"d_k {d_k:3d} variance {variance:6.1f} after division {scaled:.2f}")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two line charts of densities over the score. Left, plain dot products: the curve for d k of 4 is high and narrow, for 16 wider, for 64 low and flat between minus 20 and 20. Right, after the division by root d k: the three curves lie on one another, between minus 3 and 3."}, "figure": {"caption": "How 10,000 random scores are spread. Left: the dot products of wider vectors spread further. Right: divided by the square root of $d_k$, all spread alike.", "name": "fig-spread"}}
figure, axes = plt.subplots(1, 2, figsize=(6.2, 2.5), layout="constrained")
for d_k, dash in zip((4, 16, 64), ("-", "--", "-.")):
    for ax, scale, limit in zip(axes, (1, math.sqrt(d_k)), (24, 4)):
        heights = torch.histc(dot_products[d_k] / scale, 24, -limit, limit) / 10_000 / (2 * limit / 24)
        centres = torch.linspace(-limit, limit, 25)[:-1] + limit / 24
        ax.plot(centres, heights, dash, label=f"$d_k$ = {d_k}")
axes[0].set(title="dot products spread with $d_k$", xlabel="score", ylabel="density")
axes[1].set(title="divided by √$d_k$: all alike", xlabel="score")
axes[0].legend()
plt.show()

# %% [markdown]
# Are the model's queries like that? At the start of training, yes: from the second layer on, a layer norm passes on
# entries with mean 0 and variance 1, and the package draws $W^Q$ and $W^K$ by Glorot's rule
# {cite}`glorot2010understanding`, with a variance of $1/d_{\mathrm{model}}$ per weight. Later this need no longer hold.

# %%
from annotated_transformer import ModelConfig, Transformer

torch.manual_seed(0)
untrained = Transformer(ModelConfig.base(vocab_size=10, d_ff=8))
at_start = untrained.encoder.layers[1].self_attention
x = F.layer_norm(torch.randn(1000, 512), [512])
print(f"variance of queries {at_start.W_Q(x).var():.2f}, "
      f"of keys {at_start.W_K(x).var():.2f}")

# %% tags=["remove-cell"]
for project in (at_start.W_Q, at_start.W_K):
    assert abs(project.weight.var() * 512 - 1) < 0.05 and abs(project(x).var() - 1) < 0.05

# %% [markdown]
# And why are large scores bad? Softmax weights depend on the *differences* of scores. With differences of 8 and more,
# the largest score takes nearly everything, and our soft dictionary is hard again: it has almost no gradient. The
# derivative of the weights is
#
# $$
# \frac{\partial \alpha_i}{\partial s_j} = \alpha_i \,(\delta_{ij} - \alpha_j)
# $$ (softmax-jacobian)
#
# with $\delta_{ij} = 1$ if $i = j$ and 0 otherwise. If one weight is 1 and the rest are 0, every entry of this matrix
# is 0. We take one query and ten keys at random, 1,000 times, and look at the medians of the largest weight and of the
# derivative's norm.

# %%
def softmax_jacobian(alpha):
    return torch.diag_embed(alpha) - alpha[..., :, None] * alpha[..., None, :]

def saturation(d_k, scaled):
    """(largest weight, norm of the derivative): medians of 1,000 draws."""
    torch.manual_seed(d_k)
    q, k = torch.randn(1000, 1, d_k), torch.randn(1000, 10, d_k)
    s = (q @ k.transpose(1, 2))[:, 0].double()
    alpha = (s / math.sqrt(d_k) if scaled else s).softmax(dim=-1)
    norms = softmax_jacobian(alpha).flatten(1).norm(dim=1)
    return alpha.amax(dim=-1).median().item(), norms.median().item()

for scaled in (False, True):
    weight, norm = saturation(512, scaled)
    print(f"scaled {scaled}: largest weight {weight:.3f} derivative {norm:.4f}")

# %% tags=["remove-cell", "row-E5"]
assert saturation(512, scaled=False)[1] < 0.01 < 0.2 < saturation(512, scaled=True)[1]
s = torch.tensor([2, -1, 0.5, 0], dtype=torch.float64)
by_autograd = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), s)
assert_close(softmax_jacobian(s.softmax(-1)), by_autograd)

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two charts over d_k from 1 to 1024 on a logarithmic axis. Left: the largest of ten weights rises from about 0.2 to nearly 1 for the dot product, and stays near 0.3 for the scaled dot product. Right, on a logarithmic scale: the derivative of the softmax falls from 0.3 to below one hundred thousandth for the dot product and stays near 0.35 for the scaled one."}, "figure": {"caption": "What growing $d_k$ does to the softmax: without the scale (dot product) the weights saturate and the derivative vanishes; with it, both stay as they are. Medians of 1,000 draws.", "name": "fig-scale"}}
widths = [2**e for e in range(11)]
figure, axes = plt.subplots(1, 2, figsize=(5.8, 2.6), layout="constrained")
for name, scaled, style in (("dot product", False, "o--"), ("scaled dot product", True, "s-")):
    measured = zip(*[saturation(d_k, scaled) for d_k in widths])
    for ax, values_of_d_k in zip(axes, measured):
        ax.plot(widths, values_of_d_k, style, color=PALETTE[not scaled], label=name)
        ax.set_xscale("log", base=2)
        ax.set(xlabel="$d_k$")
axes[0].set(title="unscaled, one weight takes all", ylabel="largest of ten weights", ylim=(0, 1.05))
axes[1].set(title="and the derivative vanishes", ylabel="norm of the derivative", yscale="log")
axes[1].legend(loc="lower left")
plt.show()

# %% [markdown]
# How sure is the paper? It writes "We suspect" {cite}`vaswani2017attention`, and its Table 3 has no row without the
# scale. The median also hides something: without the scale the gradients of different queries become ever more unequal.
# At a large $d_k$ most get almost none, and a few, whose two best keys happen to tie, get a large one. We compare mean
# and median for the derivative of the weights with respect to $q$.

# %%
for d_k in (16, 64, 256):
    torch.manual_seed(d_k)
    q, k = torch.randn(1000, 1, d_k), torch.randn(1000, 10, d_k)
    for name, scale in (("dot", 1), ("scaled", 1 / math.sqrt(d_k))):
        weights = (q @ k.transpose(1, 2) * scale)[:, 0].softmax(dim=-1)
        derivative = softmax_jacobian(weights) @ k * scale
        gradient = derivative.flatten(1).norm(dim=1)
        print(f"d_k {d_k:3d}  {name:6}  mean {gradient.mean():.2f}  "
              f"median {gradient.median():.3f}")

# %% [markdown]
# With the scale, a typical query gets about 0.34 at every $d_k$. Without it, it gets *more* than that at $d_k = 16$
# and still at the paper's 64; only at 256 is next to nothing left. So at the paper's own width this argument sees no
# harm. To see what happens in training, we left the scale out of the miniature of [6.2](6_2_variations.ipynb), a small
# model that translates captions. Its keys have 16 numbers (`unscaled`) or 128 (`unscaled-A1`, a single head), and all
# else is equal. The brackets contain {ref}`95% intervals <how-to-read-our-intervals>`.

# %%
from lab.experiments.claims import load_results
from lab.experiments.comparisons import at_each_length

results = load_results("results")
print(*at_each_length(results, "unscaled", "unscaled-A1"), sep="\n")

# %% tags=["hide-cell"]
early, late = ({row["id"]: row.get("log_ppl_difference") for row in results[file]["summary"]}
               for file in ("table_3", "table_3_to_the_end"))
for summary in (early, late):
    assert summary["unscaled"]["low"] > math.log(1.1)
    assert summary["unscaled-A1"]["low"] > summary["unscaled"]["high"]

# %% [markdown]
# The harm is large at both widths, larger at the wider, as the paper suspected, and no smaller after ten epochs than after
# two at $d_k = 128$. But it is large already at
# $d_k = 16$, where a typical query starts with three times the gradient that the scale leaves it. So small gradients are
# not the explanation. Another is at hand: without the scale each query starts with a sharp choice of one word, made at
# random. If that is what hurts, a $W^Q$ that starts smaller by $\sqrt{d_k}$ should help. Such a model starts as the same
# function as one with the scale, but nothing divides its scores. We train all three to copy short rows of symbols.

# %% tags=["hide-cell"]
from annotated_transformer import TrainConfig, TrainingRun, make_batch

def copy_batch(generator):
    lengths = torch.randint(3, 11, (32,), generator=generator).tolist()
    rows = [torch.randint(3, 13, (length,), generator=generator).tolist() for length in lengths]
    return make_batch([(row, row) for row in rows])

# %%
def loss_after(steps, scaled, small_start, seed):
    config = ModelConfig(vocab_size=13, N=2, d_model=64, d_ff=128, h=4,
                         p_drop=0.0, scaled_attention=scaled)
    run = TrainingRun(config, TrainConfig(
        warmup_steps=100, lr_factor=0.5, eps_ls=0, seed=seed))
    for name, weight in run.model.named_parameters():
        if small_start and name.endswith("W_Q.weight"):
            weight.data /= math.sqrt(config.d_k)
    generator = torch.Generator().manual_seed(seed)
    losses = [run.step([copy_batch(generator)]) for _ in range(steps)][-20:]
    nats = sum(loss.item() for loss, _, _ in losses)
    return nats / sum(n_tokens for _, _, n_tokens in losses)
print(f"after one step: {loss_after(1, True, False, seed=0):.2f} nats")

# %% tags=["nbval-ignore-output"]
kinds = {"scaled": (True, False), "unscaled": (False, False),
         "unscaled, small start": (False, True)}
ends = {}
for name, kind in kinds.items():
    ends[name] = [loss_after(300, *kind, seed) for seed in range(3)]
    print(f"{name:22} nats at the end", *(f"{loss:.2f}" for loss in ends[name]))

# %% tags=["remove-cell"]
assert max(ends["unscaled, small start"]) < min(ends["unscaled"]) and max(ends["scaled"]) < min(ends["unscaled"])

# %% [markdown]
# With the small start the unscaled model ends about where the scaled ones do, and below every unscaled one. So in this
# small task the division works as an *initial value*: it lets attention begin as a mean over many words and sharpen as
# it learns. (Whether that holds for large models these runs cannot say.)

# %% [markdown]
# (at-mask)=
# ## A mask hides keys
#
# Some keys must stay out of sight. Sentences in a batch have different lengths, and we fill up the short ones with
# **padding**, which means nothing. And the decoder learns to predict the next token at every position at once, so each
# position may look only at itself and what stands before it: its attention is **causal**.
#
# A **mask** $M$ says for each query $i$ and key $j$ whether $i$ may look at $j$. A forbidden score becomes minus
# infinity before the softmax (section 3.2.3), and $e^{-\infty} = 0$:
#
# $$
# \alpha_{ij} = \frac{M_{ij}\, e^{s_{ij}}}{\sum_{j'} M_{ij'}\, e^{s_{ij'}}},
# \qquad s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d_k}},
# \qquad M_{ij} \in \{0, 1\}
# $$ (masked-attention)
#
# Because the mask acts *before* the softmax, the remaining weights still add up to one. In the listing this is
# `scores.masked_fill(~mask, -torch.inf)`: a mask is boolean, and True means *may look*. Here is our example with a causal
# mask: *Tom* now sees himself alone, and *sold* sees *Tom* and itself.

# %%
from annotated_transformer import causal_mask

causal = causal_mask(3)[0, 0]
masked = attention_weights(Q, K, causal)
print(causal.int(), masked, sep="\n")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three 3 by 3 matrices with rows Tom, sold and it. The causal mask has ones in the lower triangle and zeros above. The scores have minus infinity where the mask is 0. The weights are 1 0 0, then 0.50 0.50 0, then 0.50 0.25 0.25."}, "figure": {"caption": "A causal mask on our example. Rows are queries, columns are keys. A hidden score becomes minus infinity, and its weight is 0.", "name": "fig-causal-example"}}
ax = canvas(16.4, 5, (6, 1.9), [(6.1, 2.7, "→"), (11.2, 2.7, "softmax\n→")])
draw_matrix(ax, 2, 1.2, causal.float(), "mask $M$", "grey", tokens)
draw_matrix(ax, 7.1, 1.2, scores.masked_fill(~causal, -math.inf), "masked scores", "grey")
draw_matrix(ax, 12.6, 1.2, masked, "weights", PALETTE[0])
assert masked[0].tolist() == [1, 0, 0] and masked[1, 2] == 0
plt.show()

# %% [markdown]
# A wrong mask seldom raises an error. [A chapter of their own](3_2_masks.ipynb) builds both masks and tests what leaks.

# %% [markdown]
# (at-heads)=
# ## Multi-head attention
#
# One query gets one mean of the values. What if it needs two things at once? Let us go back to the winds: the query is
# north-east, and we want the temperatures of *both* winds. One attention gives their mean, 5 degrees, from which
# we can recover neither. Two attentions with queries of their own give both numbers.

# %%
northeast = torch.tensor([1.0, 1.0])
_, mixed = attend(dot, 20 * northeast, keys, values)
_, north = attend(dot, 20 * northeast * torch.tensor([0, 1]), keys, values)
_, east = attend(dot, 20 * northeast * torch.tensor([1, 0]), keys, values)
print(f"one head: {mixed.item():.2f}   "
      f"two heads: {north.item():.2f} and {east.item():.2f}")

# %% [markdown]
# We made the two queries from one by two matrices, each of which keeps one coordinate. That is the idea of
# **multi-head attention**: $h$ attentions side by side, the **heads**, each with its own learned matrices for
# queries, keys and values. Of a single head the paper says that "averaging inhibits this".
#
# $$
# \begin{aligned}
# \mathrm{MultiHead}(Q, K, V) &= \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h)\, W^O \\
# \mathrm{head}_i &= \mathrm{Attention}(Q W_i^Q,\; K W_i^K,\; V W_i^V)
# \end{aligned}
# $$ (multi-head)
#
# In this formula $Q$, $K$ and $V$ are what enters the layer; the products with $W_i^Q$, $W_i^K$ and $W_i^V$ are the
# queries, keys and values of head $i$. The right half of the paper's Figure 2 draws it:
#
# ![Figure 2, right half, read from below: queries, keys and values pass h projections each, then h attentions side by side, one concatenation, a last projection.](figures/multi_head.svg)
#
# Here $W_i^Q$ and $W_i^K$ are $d_{\mathrm{model}} \times d_k$, $W_i^V$ is $d_{\mathrm{model}} \times d_v$, and $W^O$
# is $h\,d_v \times d_{\mathrm{model}}$. The base model has $d_{\mathrm{model}} = 512$ and $h = 8$ heads with
# $d_k = d_v = d_{\mathrm{model}} / h = 64$. The eight matrices $W_i^Q$ stand side by side in one matrix, so that one
# product makes the queries of all heads: 512 numbers per token, which we cut into $8 \times 64$.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Read from top to bottom. A bar of 512 entries, one token, is multiplied by W Q, 512 by 512, and gives a bar of the same length, cut into eight coloured pieces of 64, the queries of heads 1 to 8. Each piece passes its own attention, with the keys and values of its head, and gives a piece of 64. The eight pieces stand side by side again, 512 entries, and are multiplied by W O into the output, a bar of 512 entries."}, "figure": {"caption": "One token in the base model: 512 numbers are cut into eight queries of 64, eight attentions run side by side, and their outputs are joined and mixed by $W^O$.", "name": "fig-eight-heads"}}
signs = [(6.6, 1.1, "↓  times $W^Q$ (512 × 512)"), (6.6, 5.25, "↓  times $W^O$ (512 × 512)")]
ax = canvas(10.7, 6.6, (6.2, 3.9), signs)
bars = ((0.1, "$x$ of one token\n512", 8), (1.6, "queries\n8 × 64", 1),
        (4.1, "heads, joined\n8 × 64", 1), (5.9, "output\n512", 8))
for y, label, width in bars:
    ax.text(2.4, y + 0.2, label, ha="right", va="center", fontsize=9)
    for i in range(0, 8, width):
        color = "lightgrey" if width == 8 else to_rgba(PALETTE[i % 6], 0.5)
        ax.add_patch(plt.Rectangle((2.6 + i + 0.04, y), width - 0.08, 0.4, fc=color, ec="grey"))
for i in range(8):
    box = {"fc": "white", "ec": "grey"}
    ax.text(3.1 + i, 3.05, f"head {i + 1}", ha="center", va="center", fontsize=8, bbox=box)
    for start, end in ((2.05, 2.75), (3.3, 4.05)):
        ax.annotate("", (3.1 + i, end), (3.1 + i, start), arrowprops={"arrowstyle": "->"})
plt.show()

# %% [markdown]
# Is the class at the top of this chapter equation {eq}`multi-head`? We write the equation as it stands, head by head, and
# compare. `nn.Linear` keeps its matrix transposed, so head $i$ owns rows of `W_Q.weight`.

# %%
def head_by_head(layer, x, memory, mask, h):
    heads, projections = [], (layer.W_Q, layer.W_K, layer.W_V)
    for W_Q, W_K, W_V in zip(*(W.weight.chunk(h) for W in projections)):
        q, k, v = x @ W_Q.T, memory @ W_K.T, memory @ W_V.T
        heads.append(scaled_dot_product_attention(q, k, v, mask))
    return torch.cat(heads, dim=-1) @ layer.W_O.weight.T

torch.manual_seed(0)
layer = MultiHeadAttention(d_model=12, h=3)
x, memory = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
mask = torch.rand(2, 5, 7) < 0.7
mask[..., 0] = True  # every query has a key
by_head = head_by_head(layer, x, memory, mask, h=3)
difference = (layer(x, memory, mask[:, None]) - by_head).abs().max()
print(f"largest difference below one millionth: {difference < 1e-6}")

# %% [markdown]
# The class does without the loop:

# %%
show(MultiHeadAttention.forward)

# %% [markdown]
# Its first line makes all queries from `x`, and all keys and values from `memory`; in self-attention the two are the same
# tensor. The second cuts the last axis into $h$ pieces, which `transpose` makes one more batch axis, (B, h, L, $d_k$). Then
# come equation {eq}`attention` with its mask, for all heads at once, and last `transpose` and `flatten`, which put the
# heads side by side again, and $W^O$.
#
# The package's [`MultiHeadAttention`](https://github.com/annotated-transformer/annotated-transformer/blob/main/annotated_transformer/model/attention.py)
# computes the same. It adds what later chapters need: a $d_k$ and a $d_v$ of one's own (Table 3, row B), biases, keys that
# a search has kept, and PyTorch's fused kernel, which avoids storing the weights where it can.

# %%
from annotated_transformer import MultiHeadAttention as PackageAttention

theirs = PackageAttention(d_model=12, h=3)
ours = with_weights(MultiHeadAttention(d_model=12, h=3), theirs)
print(equal(ours(x, memory, mask[:, None]), theirs(x, memory, mask[:, None])))

# %% tags=["hide-cell", "row-E6", "row-S17", "row-F2", "row-F13"]
assert difference < 1e-6
free, wide, other = PackageAttention(d_model=10, h=3, d_k=4, d_v=2), torch.randn(2, 5, 10), torch.randn(2, 7, 10)
assert_close(free(wide, other, mask[:, None]), head_by_head(free, wide, other, mask, h=3))

# %% [markdown]
# Cutting the heads takes two steps: cut the last axis into (h, d_k), then exchange two axes. A frequent slip does it in a
# single `view` of the right shape. It reads the numbers in the order in which they are stored, so that head 1 gets the
# first *token* instead of the first *columns*:

# %%
two_tokens = torch.tensor([[[11, 12, 13, 14], [21, 22, 23, 24]]])  # (1, 2, 4)
split = two_tokens.unflatten(-1, (2, -1)).transpose(1, 2)
print("unflatten, transpose: head 1 is", split[0, 0].tolist())
slip = two_tokens.view(1, 2, 2, 2)
print("view:                 head 1 is", slip[0, 0].tolist())

# %% [markdown]
# ### What heads cost
#
# Do eight heads cost eight times as much as one? With $d_k = d_v = d_{\mathrm{model}} / h$ the projections are
# $d_{\mathrm{model}} \times d_{\mathrm{model}}$ whatever $h$ is, and $h$ score matrices whose entries take
# $d_{\mathrm{model}} / h$ multiplications each cost as much as one whose entries take $d_{\mathrm{model}}$. We let
# PyTorch count the operations (two per multiplication with its addition) for 10 tokens.

# %%
from torch.utils.flop_counter import FlopCounterMode

n, d_model, everything = 10, 64, torch.tensor(True)
for h in (1, 2, 8):
    layer, x = MultiHeadAttention(d_model, h), torch.randn(1, n, d_model)
    with FlopCounterMode(display=False) as counter:
        layer(x, x, everything)
    n_parameters = sum(weight.numel() for weight in layer.parameters())
    n_operations = counter.get_total_flops()
    assert n_parameters == 4 * d_model**2
    assert n_operations == 2 * (4 * n * d_model**2 + 2 * n**2 * d_model)
    print(f"h {h}  parameters {n_parameters:,}  operations {n_operations:,}  "
          f"weights {h * n**2}")

# %% [markdown]
# Parameters and operations stay the same. But the number of *weights*, and of exponentials, grows with $h$, and so does
# the memory of a kernel that stores them. And each head gets narrower: at $h = 32$ a head of the base model compares
# with 16 numbers. The paper measured the effect (Table 3, row A): 24.9 BLEU with one head, 25.8 with 8 and with 16, 25.4
# with 32. Does the miniature need its eight heads of 16 numbers? `A1` has one of 128:

# %%
print(*at_each_length(results, "A1"), sep="\n")

# %% tags=["hide-cell", "row-W6", "row-S17"]
assert early["A1"]["high"] < 0 and abs(late["A1"]["mean"]) < 0.1
try:
    PackageAttention(d_model=4, h=3)
except ValueError as error:
    print(error)  # we cannot have a dimension of 4/3
else:
    raise AssertionError("three heads for four dimensions")
free, x = PackageAttention(d_model=4, h=3, d_k=2, d_v=5), torch.randn(1, 3, 4)
assert free.W_O.weight.T.shape == (15, 4) and free(x, x).shape == x.shape

# %% [markdown]
# After two epochs one head is *ahead*. After ten epochs its lead is half as large, and it no longer counts once we correct
# for the number of comparisons ([6.2](6_2_variations.ipynb)). The paper's models trained for about nineteen epochs. The
# winds prove that several heads *can* do what one cannot. Whether a model gains by it has to be measured, and in ours we
# have found no gain.

# %% [markdown]
# ## Three uses in the model
#
# Equation {eq}`multi-head` has three inputs, and section 3.2.3 says what the Transformer puts there. Write $X$ for the
# vectors of the source inside the encoder, $Y$ for those of the target inside the decoder, and $M$ for the encoder's
# output, its **memory**.
#
# $$
# \begin{aligned}
# \text{encoder self-attention:} \quad & \mathrm{MultiHead}(X, X, X) \\
# \text{decoder self-attention:} \quad & \mathrm{MultiHead}(Y, Y, Y) \text{, causal} \\
# \text{encoder-decoder attention:} \quad & \mathrm{MultiHead}(Y, M, M)
# \end{aligned}
# $$ (three-uses)
#
# In **self-attention** one sentence asks itself. In encoder-decoder attention, also called **cross-attention**, the
# target asks the source; it is the only bridge between the two sentences. Its keys and values come from the encoder,
# its queries from the decoder: what the model asks depends on what it has written so far.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three boxes for the three attentions. Left column, the encoder: X sends queries, keys and values into the self-attention, S by S weights, whose result goes on to the memory M. Right column, the decoder: Y sends queries, keys and values into the causal self-attention, T by T weights; above it the cross-attention, T by S weights, gets its queries from below and its keys and values from the memory M."}, "figure": {"caption": "Where queries (blue), keys (orange) and values (green) come from in the three attentions. Only cross-attention joins source and target.", "name": "fig-three-uses"}}
figure, ax = plt.subplots(figsize=(6.2, 3.7), layout="constrained")
ax.set(xlim=(0, 12.4), ylim=(0, 7.6))
ax.axis("off")
boxes = ((3, 0.5, "$X$: source vectors"), (3, 3, "encoder self-attention\nweights $S × S$"), (3, 5.7, "memory $M$"),
         (9.4, 0.5, "$Y$: target vectors"), (9.4, 3, "decoder self-attention, causal\nweights $T × T$"),
         (9.4, 5.7, "cross-attention\nweights $T × S$"))
for x, y, text in boxes:
    ax.text(x, y, text, ha="center", va="center", fontsize=9, bbox={"fc": "white", "ec": "grey", "pad": 5})
arrows = [(c + d, 0.95, c + d, 2.4, i) for c in (3, 9.4) for i, d in enumerate((-1.2, 0, 1.2))]
arrows += [(3, 3.6, 3, 5.25, 6), (9.4, 3.6, 9.4, 5.1, 0), (4.3, 5.85, 7.8, 5.85, 1), (4.3, 5.5, 7.8, 5.5, 2), (9.4, 6.3, 9.4, 7.4, 6)]
for x0, y0, x1, y1, role in arrows:
    ax.annotate("", (x1, y1), (x0, y0), arrowprops={"arrowstyle": "->", "color": PALETTE[role], "lw": 1.6})
    at = (x0 + 0.15, (y0 + y1) / 2) if x0 == x1 else (6, y0 + (0.2 if role == 1 else -0.25))
    ax.text(*at, ("queries", "keys", "values", *4 * [""])[role], color=PALETTE[role], fontsize=8, va="center")
plt.show()

# %% [markdown]
# Let us watch the third. `book/model` is the book's own trained model; we let it translate a sentence and record its
# weights.

# %%
from annotated_transformer import Translator, load_model, record_attention

trained, tokenizer = load_model("model")
english = "Yesterday Tom bought a new car."
[german] = Translator(trained, tokenizer).translate([english])
source = torch.tensor([[*tokenizer.encode(english), trained.config.eos_id]])
target_in = torch.tensor([[trained.config.bos_id, *tokenizer.encode(german)]])
with record_attention(trained) as recorded, torch.no_grad():
    trained(source, target_in)
print(german)
for name, weights in recorded.items():
    if ".0." in name:
        print(f"{name:33} {tuple(weights.shape)}")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Four heat maps of the trained model's cross-attention, one for each head of its last layer: rows are the German tokens Gestern, hat, Tom, ein, neues, Auto, gekauft, full stop and end mark, columns the English tokens of Yesterday Tom bought a new car. Every head has bright cells of its own; Auto at car and gekauft at bought are bright in the mean of the four."}, "figure": {"caption": "Cross-attention of the book's trained model, the four heads of its last layer apart. The row of a German token shows where the head looked in the English sentence before that token was written.", "name": "fig-cross-attention"}}
of_heads = recorded[f"decoder.layers.{trained.config.N - 1}.cross_attention"][0]
cross = of_heads.mean(dim=0)
columns = [piece.replace("▁", "") for piece in tokenizer.pieces(source[0, :-1].tolist())] + ["end"]
rows = [piece.replace("▁", "") for piece in tokenizer.pieces(target_in[0, 1:].tolist())] + ["end"]
figure, axes = plt.subplots(2, 2, figsize=(6, 5), layout="constrained", sharex=True, sharey=True)
for head, (ax, weights) in enumerate(zip(axes.flat, of_heads), 1):
    plot_attention(weights, rows, columns, ax=ax, title=f"head {head}")
    ax.set(xlabel="", ylabel="")
figure.supxlabel("key: English token", fontsize=9)
figure.supylabel("query: German token to come", fontsize=9)
for german_word, english_word in {"hat": "bought", "Auto": "car", "gekauft": "bought"}.items():
    assert columns[cross[rows.index(german_word)].argmax()] == english_word
plt.show()

# %% tags=["remove-cell"]
for name, w in recorded.items():
    assert_close(w.sum(dim=-1), torch.ones(w.shape[:-1]))
    if name.startswith("decoder") and name.endswith("self_attention"):
        assert w.triu(diagonal=1).sum() == 0  # the future is dark

# %% [markdown]
# In the mean of the heads, the participle *gekauft* at the sentence's end looks back to *bought*, and so does the
# auxiliary *hat*. Cross-attention is how the decoder copes with another word order.
#
# ```{translator} attention
# :text: Yesterday Tom bought a new car.
# ```
#
# A caution: how far such maps explain a model's answer is disputed {cite}`jain2019attention,wiegreffe2019attention`.
# [Chapter 7](7_attention_visualizations.ipynb) takes the question up with controls.
#
# If we exchange the two inputs, so that the source asks the target, PyTorch accepts it. But an output has a row per
# query: we get one vector per *source* token where the decoder needs one per target token.

# %% tags=["row-S10"]
cross_attention = MultiHeadAttention(d_model=64, h=4)
y, memory = torch.randn(1, 5, 64), torch.randn(1, 6, 64)
right = cross_attention(y, memory, everything)
exchanged = cross_attention(memory, y, everything)
print("right:", tuple(right.shape), " exchanged:", tuple(exchanged.shape))
assert right.shape == y.shape != exchanged.shape

# %% [markdown]
# ## What *it* refers to: two layers built by hand
#
# *The animal didn't cross the street because it was too tired.* With *wide* for *tired*, *it* refers to the
# street instead of the animal {cite}`uszkoreit2017transformer`. How can attention know, when *it* is the same word in
# both sentences? In one layer *it* cannot: the vectors of *it*, *animal* and *street* are the same in both. Two layers
# can. In the first, *it* asks how it was; in the second, it asks for a noun that can be so.
#
# We write such vectors by hand, with an entry each for pronoun, noun, state, tired and wide: an animal can be tired, a
# street wide. The query matrix of the first layer turns *pronoun* into the question *state?*, and its values hand over
# which state it is. The second layer asks for a noun that can be so. As in the model, what a layer finds is *added* to
# the word's vector; a factor of 10 makes the weights sharp.

# %% tags=["hide-input"]
facts = {"animal": [0, 1, 0, 1, 0], "street": [0, 1, 0, 0, 1], "it": [1, 0, 0, 0, 0],
         "tired": [0, 0, 1, 1, 0], "wide": [0, 0, 1, 0, 1]}  # pronoun, noun, state, tired, wide
PRONOUN, NOUN, STATE, TIRED, WIDE = torch.eye(5)

def sentence_with(state):
    words = f"The animal didn't cross the street because it was too {state}".split()
    return words, torch.tensor([facts.get(word, [0] * 5) for word in words]).float()

# %% tags=["row-F7"]
def two_layers(x):
    """The weights of both layers."""
    copy = torch.outer(TIRED, TIRED) + torch.outer(WIDE, WIDE)
    W_Q = 10 * torch.outer(PRONOUN, STATE)  # "who is a state?"
    first = attention_weights(x @ W_Q, x)
    y = x + scaled_dot_product_attention(x @ W_Q, x, x @ copy)
    W_Q = 10 * (torch.outer(PRONOUN, NOUN) + copy)  # "which noun is so?"
    return first, attention_weights(y @ W_Q, y)

for state, noun in (("tired", "animal"), ("wide", "street")):
    words, x = sentence_with(state)
    first, second = (weights[words.index("it")] for weights in two_layers(x))
    assert words[first.argmax()] == state and words[second.argmax()] == noun
    print(f"{state:5}  it looks at {state} {first.max():.2f}, "
          f"then at {noun} {second.max():.2f}")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Heat map of the attention weights of the word it: four rows, one for each sentence and layer, and eleven columns, the words of the sentence. In the first layer nearly all weight is on the last word, tired or wide. In the second it is on animal when the last word is tired, and on street when it is wide."}, "figure": {"caption": "Where *it* looks, in two layers built by hand. One word at the end of the sentence moves the second layer's weight.", "name": "fig-pronoun"}}
rows = {f"{state}, layer {number}": weights[7] for state in ("tired", "wide")
        for number, weights in enumerate(two_layers(sentence_with(state)[1]), start=1)}
columns = [*words[:-1], "tired / wide"]
figure, ax = plt.subplots(figsize=(5.8, 2.6), layout="constrained")
plot_attention(torch.stack([*rows.values()]), list(rows), columns, ax=ax)
ax.set_ylabel("sentence, layer of it")
figure.colorbar(ax.images[0], ax=ax, label="attention weight")
plt.show()

# %% [markdown]
# If we leave out the first layer, the vector of *it* says *pronoun* and nothing else, and both nouns get the same
# weight. We chose these matrices; a trained model chooses its own, and may solve the riddle in another way.
# [Chapter 7](7_attention_visualizations.ipynb) puts the two sentences to a trained one.

# %% tags=["hide-cell", "row-F7"]
words, x = sentence_with("tired")
alone = attention_weights(x @ (10 * torch.outer(PRONOUN, NOUN)), x)[words.index("it")]
assert_close(alone[words.index("animal")], alone[words.index("street")])
print(f"one layer: animal {alone[words.index('animal')]:.2f}, street {alone[words.index('street')]:.2f}")

# %% [markdown]
# ## What to remember
#
# - Three learned matrices give each token a query, a key and a value (equation {eq}`projections`). Attention is a lookup
#   with soft keys: scores, softmax, mean of the values (equation {eq}`attention`).
# - The division by $\sqrt{d_k}$ makes the variance of the scores 1 at the start, whatever $d_k$. Without it our miniature
#   is far worse, even where gradients predict no harm; in a small task a smaller $W^Q$ at the start did as well.
# - Queries and keys need two matrices: with one, two words could never both look at each other first.
# - A mask is True where a query may look; rows are queries, columns are keys.
# - $h$ heads are $h$ lookups for about the operations of one, joined by $W^O$ (equation {eq}`multi-head`).
# - The model uses attention in three places; only cross-attention joins source and target.
#
# :::{dropdown} Where this is
# Code: `annotated_transformer/model/attention.py`, used in `model/stacks.py`; `extras/attention_views/record.py` records weights.
# Tests: `tests/model/test_attention.py`, against equation 1 by hand, PyTorch's layers, and a loop over heads.
# :::

# %% [markdown]
# ## Exercises
#
# Solutions are folded; a folded cell computes each answer.

# %% [markdown] tags=["exercise"]
# ```{exercise} One query, and a trap
# :label: ex-w2
#
# $$
# Q = \begin{pmatrix} 1 & 1 \end{pmatrix} \quad
# K = \begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix} \quad
# V = \begin{pmatrix} 2 & 3 \\ 4 & 1 \end{pmatrix}
# $$
#
# Compute the output. Why may we write $K$ for $K^\top$ here? Is it because $K$ is square?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-w2
# :class: dropdown
#
# Both weights are one half, and the output is $(3, 2)$, the mean of the values. $K$ is *symmetric*;
# $\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}$ is square too, and there a forgotten transpose gives wrong numbers of the
# right shape.
# ```

# %% [markdown] tags=["exercise"]
# ```{exercise} Four keys, and values that are plain numbers
# :label: ex-w3
#
# $Q = (1, 1, 1, 1)$, $K$ the identity matrix of size 4, and the values 2, 4, 6, 8. What is the output? Which of $d_k$
# and $d_v$ plays no part in it?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-w3
# :class: dropdown
#
# Equal scores make equal weights of $1/4$ whatever the scale, so $d_k$ plays no part, and the output is the mean, **5**.
# ```

# %% tags=["hide-cell", "row-W2", "row-W3", "row-Q1", "solution"]
Q2, K2, V2 = torch.ones(1, 2), torch.eye(2), torch.tensor([[2.0, 3], [4, 1]])
assert_close(scaled_dot_product_attention(Q2, K2, V2), torch.tensor([[3.0, 2]]))

Q3, K3, V3 = torch.ones(1, 4), torch.eye(4), torch.tensor([[2.0], [4], [6], [8]])
assert_close(scaled_dot_product_attention(Q3, K3, V3), torch.tensor([[5.0]]))

K_square = torch.tensor([[1.0, 2], [3, 4]])
print("with the transpose:", Q @ K_square.T, "without:", Q @ K_square, sep="\n")

# %% [markdown] tags=["exercise"]
# ```{exercise} Shapes
# :label: ex-w4
#
# Three tokens, $d_{\mathrm{model}} = 4$, two heads, $d_k = d_v = d_{\mathrm{model}} / h$. Give the shape of
# $W_1^Q$, of $QW_1^Q$, of the weights of one head, of one head's output, of their concatenation, of $W^O$ and of
# the result. And how large is one query of the base model?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-w4
# :class: dropdown
#
# In this order: $4 \times 2$; $3 \times 2$; $3 \times 3$; $3 \times 2$; $3 \times 4$; $4 \times 4$; $3 \times 4$,
# the shape that came in. In the base model one head's query has 64 entries, a token's eight queries together 512.
# ```

# %% tags=["hide-cell", "row-W4", "row-Q2", "solution"]
layer, x = PackageAttention(d_model=4, h=2), torch.randn(1, 3, 4)
assert layer.W_Q.weight[:2].T.shape == (4, 2)  # the first head's columns
q, (k, v) = layer.split_heads(layer.W_Q(x)), layer.keys_and_values(x)
head = scaled_dot_product_attention(q, k, v)[0, 0]
assert q[0, 0].shape == head.shape == (3, 2)
assert attention_weights(q, k)[0, 0].shape == (3, 3)
assert torch.cat([head, head], dim=-1).shape == layer(x, x)[0].shape == (3, 4)
assert layer.W_O.weight.T.shape == (4, 4)

base, x = PackageAttention(d_model=512, h=8), torch.randn(1, 1, 512)
assert base.split_heads(base.W_Q(x)).shape == (1, 8, 1, 64)  # sentences, heads, positions, d_k
assert base.W_Q(x).shape == (1, 1, 512)

# %% [markdown] tags=["exercise"]
# ```{exercise} Two heads with numbers
# :label: ex-w5
#
# The cell below has the inputs and all projections of a layer with $d_{\mathrm{model}} = 4$ and two heads. Compute by
# hand the queries, keys and values of both heads and both matrices of dot products. If you have patience, go on to the
# output.
# ```

# %%
def integers(text):
    """The matrix whose rows are the words of `text`, digit by digit."""
    rows = [[float(digit) for digit in row] for row in text.split()]
    return torch.tensor(rows, dtype=torch.float64)

rows = "1210 0111 1021", "1102 2110 0111", "1100 0211 1122"
Q, K, V = map(integers, rows)
W_Q = integers("10 01 10 01"), integers("01 10 11 00")  # head 1, head 2
W_K = integers("10 01 01 10"), integers("01 10 10 11")
W_V = integers("10 01 10 01"), integers("01 11 01 10")
W_O = integers("1001 0110 1010 0101")
print(Q, W_Q[0], sep="\n")

# %% [markdown] tags=["solution"]
# ```{solution} ex-w5
# :class: dropdown
#
# | | head 1 | head 2 |
# |---|---|---|
# | $Q_i$ | $\begin{pmatrix} 2&2\\1&2\\3&1 \end{pmatrix}$ | $\begin{pmatrix} 3&2\\2&1\\2&3 \end{pmatrix}$ |
# | $K_i$ | $\begin{pmatrix} 3&1\\2&2\\1&2 \end{pmatrix}$ | $\begin{pmatrix} 3&3\\2&2\\3&1 \end{pmatrix}$ |
# | $V_i$ | $\begin{pmatrix} 1&1\\1&3\\3&3 \end{pmatrix}$ | $\begin{pmatrix} 1&2\\3&3\\3&4 \end{pmatrix}$ |
# | $Q_iK_i^\top$ | $\begin{pmatrix} 8&8&6\\5&6&5\\10&8&5 \end{pmatrix}$ | $\begin{pmatrix} 15&10&11\\9&6&7\\15&10&9 \end{pmatrix}$ |
#
# The drawing has the weights, the folded cells the rest.
# ```

# %% tags=["hide-cell", "solution"]
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

# %% tags=["hide-cell", "solution"]
head_1 = scaled_dot_product_attention(Q_1, K_1, V_1)
head_2 = scaled_dot_product_attention(Q_2, K_2, V_2)
concatenated = torch.cat([head_1, head_2], dim=-1)
answer = torch.tensor([[1.2168, 2.1084, 1.1622, 2.1354],
                       [1.4965, 2.5035, 1.5326, 2.4447],
                       [1.0458, 1.4280, 1.0834, 2.0555]], dtype=torch.float64)
assert_close(concatenated, answer, atol=5e-5, rtol=0)

# %% tags=["hide-cell", "row-W5", "solution"]
output = concatenated @ W_O
answer = torch.tensor([[2.3790, 4.2438, 3.2706, 3.3522],
                       [3.0291, 4.9482, 4.0361, 3.9412],
                       [2.1292, 3.4835, 2.5114, 3.1013]], dtype=torch.float64)
assert_close(output, answer, atol=5e-5, rtol=0)
print(output)

# %% tags=["hide-cell", "solution"]
layer = PackageAttention(d_model=4, h=2).double()  # the package's layer, with these projections copied in
layer.W_Q.weight.data = torch.cat(W_Q, dim=1).T
layer.W_K.weight.data = torch.cat(W_K, dim=1).T
layer.W_V.weight.data = torch.cat(W_V, dim=1).T
layer.W_O.weight.data = W_O.T
keys_of_heads, _ = layer.keys_and_values(K[None])
_, values_of_heads = layer.keys_and_values(V[None])
assert_close(layer.attend(Q[None], keys_of_heads, values_of_heads)[0], output)

# %% tags=["hide-cell", "solution"]
# A source of W5 rounds the weights to two places before it multiplies. Seven of its twelve entries are off by more
# than half a unit of their last digit; six follow from the rounded weights, one from neither.
printed = torch.tensor([[1.23, 2.13, 1.16, 2.13], [1.50, 2.50, 1.53, 2.45], [1.04, 1.42, 1.09, 2.06]],
                       dtype=torch.float64)
rounded = [attention_weights(*head).round(decimals=2) for head in ((Q_1, K_1), (Q_2, K_2))]
of_rounded = torch.cat([rounded[0] @ V_1, rounded[1] @ V_2], dim=1)
off, explained = (printed - concatenated).abs() > 0.005, (printed - of_rounded).abs() < 1e-6
sums = [round(row.sum().item(), 2) for head in rounded for row in head]
assert off.sum() == 7 and (off & explained).sum() == 6 and sums.count(1.01) == 1

# %% tags=["hide-input", "solution"] mystnb={"image": {"alt": "Two annotated 3 by 3 matrices of weights, queries down, keys across. Head 1: rows 0.45 0.45 0.11, then 0.25 0.50 0.25, then 0.79 0.19 0.02. Head 2: rows 0.92 0.03 0.05, then 0.73 0.09 0.18, then 0.96 0.03 0.01."}, "figure": {"caption": "The weights of the two heads. The same tokens, two patterns: token 1 splits its attention in head 1 and concentrates it in head 2.", "name": "fig-heads"}}
ax = canvas(11, 4.6, (4.6, 2), [])
names = ["token 1", "token 2", "token 3"]
draw_matrix(ax, 2.2, 1.2, attention_weights(Q_1, K_1), "weights of head 1", PALETTE[0], names)
draw_matrix(ax, 7.2, 1.2, attention_weights(Q_2, K_2), "weights of head 2", PALETTE[0])
plt.show()

# %% [markdown] tags=["exercise"]
# ```{exercise} Order
# :label: ex-order
#
# Let $P$ permute the rows of $X$. How does self-attention $\mathrm{Attention}(PX, PX, PX)$ relate to
# $\mathrm{Attention}(X, X, X)$? Does the same hold with a causal mask?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-order
# :class: dropdown
#
# $\mathrm{Attention}(PX, PX, PX) = P\,\mathrm{Attention}(X, X, X)$: the outputs move with the inputs (*equivariance*). A
# causal mask breaks this, since it is tied to positions. A causal model therefore knows something of the order even
# without positional encoding.
# ```

# %% tags=["hide-cell", "solution"]
torch.manual_seed(0)
X, order = torch.randn(5, 4), torch.tensor([3, 0, 4, 1, 2])
attention = scaled_dot_product_attention
assert_close(attention(X[order], X[order], X[order]), attention(X, X, X)[order])
mask = causal_mask(5)[0, 0]
masked = attention(X[order], X[order], X[order], mask)
assert not torch.allclose(masked, attention(X, X, X, mask)[order])

# %% [markdown] tags=["exercise"]
# ```{exercise} Divide by $d_k$
# :label: ex-divide
#
# Replace $\sqrt{d_k}$ by $d_k$. What do the weights over ten keys look like for random $q$ and $k$ with $d_k = 1024$?
# Is that as bad as the missing scale?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-divide
# :class: dropdown
#
# The scores have standard deviation $\sqrt{d_k} / d_k = 1/32$, so all weights are near $1/10$, and attention starts as a
# plain mean: a flatter start, with a healthy derivative of the softmax. {cite:t}`yang2021tuning` argue for $1/d_k$, because in training queries and keys become correlated.
# ```

# %% tags=["hide-cell", "solution"]
torch.manual_seed(0)
q, k = torch.randn(1000, 1, 1024), torch.randn(1000, 10, 1024)
alpha = (q @ k.transpose(1, 2) / 1024).softmax(dim=-1)
assert ((alpha - 0.1).abs() < 0.02).all()

# %% [markdown] tags=["exercise"]
# ```{exercise} Concatenation is a sum
# :label: ex-sum-of-heads
#
# Show that $\mathrm{MultiHead} = \sum_i \mathrm{head}_i\, W_i^O$, where $W_i^O$ is the $i$-th block of $d_v$ rows of
# $W^O$. What would the model lose without $W^O$?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-sum-of-heads
# :class: dropdown
#
# A row of blocks times a column of blocks is the sum of the products. So each head *adds* its own contribution to the
# output. Without $W^O$, head $i$ could write only to its own $d_v$ of the output's columns.
# ```

# %% tags=["hide-cell", "solution"]
blocks = W_O.split(2)
assert_close(head_1 @ blocks[0] + head_2 @ blocks[1], concatenated @ W_O)

# %% [markdown]
# ### Write them yourself
#
# `check` tries your function on small tensors and prints that it is right, or what is wrong, without the answer. Here is
# attention by somebody who forgot something:

# %%
from lab.exercises import check

def forgetful(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1) @ v

check("3.2.1", forgetful)

# %% [markdown] tags=["exercise"]
# ```{exercise} Attention (check 3.2.1)
# :label: ex-write-attention
#
# Write `attention(q, k, v, mask=None)`, equation {eq}`attention` with the mask of equation {eq}`masked-attention`:
# `q` is L by $d_k$, `k` is S by $d_k$, `v` is S by $d_v$, all three with any leading axes. Use no attention function
# of PyTorch or of the package. Check it with `check("3.2.1", attention)`.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-write-attention
# :class: dropdown
#
# Three lines are the equation, two the mask.
# ```

# %% tags=["hide-cell", "solution"]
def my_attention(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1) @ v

check("3.2.1", my_attention)
q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
assert_close(my_attention(q, k, v), scaled_dot_product_attention(q, k, v))

# %% [markdown] tags=["exercise"]
# ```{exercise} Additive scores (check 3.2-additive)
# :label: ex-write-additive
#
# Write `additive_scores(q, k, W_q, W_k, v)`, the first score of equation {eq}`three-scores`, for all queries and keys
# at once: `q` is $n_q \times d$, `k` is $n_k \times d$, `W_q` and `W_k` are $d \times d_a$, and `v`, the equation's
# $w$, has $d_a$ entries. The result is $n_q \times n_k$; PyTorch repeats a tensor along an axis of size 1
# (**broadcasting**). Check it with `check("3.2-additive", additive_scores)`.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-write-additive
# :class: dropdown
#
# The projected queries get an axis for the keys, the projected keys one for the queries. Without the two axes the sum
# fails when $n_q \ne n_k$, and when they are equal it is silently wrong: query 0 meets key 0 only.
# ```

# %% tags=["hide-cell", "row-E3", "solution"]
def my_additive_scores(q, k, W_q, W_k, v):
    return torch.tanh((q @ W_q)[:, None, :] + (k @ W_k)[None, :, :]) @ v

def without_axes(q, k, W_q, W_k, v):
    return torch.tanh(q @ W_q + k @ W_k) @ v

check("3.2-additive", my_additive_scores)
check("3.2-additive", without_axes)
q, k, W_q, W_k, v = (torch.randn(*size) for size in ((3, 5), (4, 5), (5, 2), (5, 2), (2,)))
by_loop = torch.tensor([[v @ torch.tanh(one @ W_q + other @ W_k) for other in k] for one in q])
assert_close(my_additive_scores(q, k, W_q, W_k, v), by_loop)
assert_close(without_axes(q, k[:3], W_q, W_k, v), by_loop[:, :3].diagonal())

# %% tags=["hide-cell", "solution"]
try:
    without_axes(q, k, W_q, W_k, v)
except RuntimeError as error:
    print("3 queries, 4 keys:", type(error).__name__)
else:
    raise AssertionError("3 queries met 4 keys without an axis for either")

# %% [markdown] tags=["exercise"]
# ```{exercise} Multi-head attention (check 3.2.2)
# :label: ex-write-multi-head
#
# Write `multi_head(x, memory, W_Q, W_K, W_V, W_O, h)`, equation {eq}`multi-head` with queries from `x` (B, L, D) and
# keys and values from `memory` (B, S, D). The heads' matrices stand side by side: `W_Q` and `W_K` are D by
# $h\,d_k$, `W_V` is D by $h\,d_v$, `W_O` is $h\,d_v$ by D, and each is multiplied from the right, `x @ W_Q`. Check it
# with `check("3.2.2", multi_head)`.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-write-multi-head
# :class: dropdown
#
# Project, cut each product into $h$ pieces (`chunk`), attend piece by piece, put the pieces side by side again, and
# multiply by $W^O$.
# ```

# %% tags=["hide-cell", "row-E6", "solution"]
def my_multi_head(x, memory, W_Q, W_K, W_V, W_O, h):
    projected = (x @ W_Q).chunk(h, -1), (memory @ W_K).chunk(h, -1), (memory @ W_V).chunk(h, -1)
    heads = [my_attention(q, k, v) for q, k, v in zip(*projected)]
    return torch.cat(heads, dim=-1) @ W_O

check("3.2.2", my_multi_head)
layer, x, memory = PackageAttention(6, h=2), torch.randn(2, 3, 6), torch.randn(2, 5, 6)
matrices = [W.weight.T for W in (layer.W_Q, layer.W_K, layer.W_V, layer.W_O)]
assert_close(my_multi_head(x, memory, *matrices, h=2), layer(x, memory))
