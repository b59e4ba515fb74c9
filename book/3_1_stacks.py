# %% [markdown]
# # 3 and 3.1 The stacks and the model
#
# *Sections 3 and 3.1 of the paper {cite}`vaswani2017attention`: how attention, feed-forward networks and embeddings are
# put together into the encoder and the decoder of its Figure 1.*
#
# The other chapters of this part take the Transformer's pieces one by one. Here we assemble them. What is new is the
# frame that holds every piece: a sum that carries the input past the sub-layer, and a normalisation of that sum. When
# you have read this chapter you can
#
# - name every box of Figure 1, its code, and the shape of what flows through it;
# - compute the layer norm by hand, and say what the residual connection does;
# - explain why training computes all positions at once and translation one after the other, with the same result;
# - tell post-norm from pre-norm, and say what initial values have to do with both;
# - count the parameters of any configuration exactly.
#
# You need [attention](3_2_attention.ipynb), and can take the other pieces as boxes for now.

# %% tags=["remove-cell"]
import math

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer import ModelConfig, TrainConfig, TrainingRun, Transformer, make_batch
from annotated_transformer.model import stacks
from lab import listing
from lab.display import PALETTE, show, use_style
from lab.exercises import check
from lab.same import equal, listing_of, with_weights

# %% tags=["remove-cell"]
use_style()
torch.set_printoptions(precision=4, sci_mode=False)

# %% [markdown]
# ## Figure 1 from bottom to top
#
# What happens between the token ids of a sentence and the scores of the next word? This is our drawing of the paper's
# Figure 1.
#
# ![The architecture. On the left the encoder: source embedding plus positions, then N layers of self-attention and feed-forward network, each with add and norm. On the right the decoder: target embedding plus positions, then N layers of causal self-attention, attention over the encoder's output, and feed-forward network, each with add and norm; above it the linear projection and the softmax.](figures/architecture.svg)
#
# The **encoder**, on the left, reads the source sentence and gives one vector for each of its tokens, the **memory**. The
# **decoder**, on the right, reads the memory and the target sentence as far as it is written, and gives one vector for each
# target position, from which we predict the next token. Each is a **stack** of $N$ layers of the same form, with $N = 6$ in
# the base model. In a layer `MultiHeadAttention` fetches from other positions ([3.2](3_2_attention.ipynb)), `FeedForward`
# works on each position alone ([3.3](3_3_feed_forward.ipynb)), and `AddNorm` frames both.
#
# With $x$ the source, $y$ the target so far, $Y$ the vectors that the decoder gives, and $E$ the embedding matrix, which
# serves three times, the model is three equations:
#
# $$
# \begin{aligned}
# M &= \mathrm{Encoder}(\mathrm{embed}(x)) \\
# Y &= \mathrm{Decoder}(\mathrm{embed}(y), M) \\
# P(y_{t+1} \mid y_{\le t}, x) &= \mathrm{softmax}(Y_t\, E^\top)
# \end{aligned}
# $$ (st-model)
#
# In the program of [chapter 0](0_one_hour.ipynb) they are two masks, one loop for each stack, and the product with
# $E^\top$:

# %%
show(listing.Transformer.forward)

# %% [markdown]
# We follow a batch of two sentences through a model of two layers, with a different size for each axis. Every sub-layer
# and both embeddings give vectors of $d_{\mathrm{model}}$ entries, so that they can be added.

# %%
torch.manual_seed(0)
small = ModelConfig(vocab_size=23, N=2, d_model=12, d_ff=20, h=3)
model = Transformer(small).double().eval()
source = torch.tensor([[4, 5, 6, 7, 8, 9, 2],
                       [10, 11, 12, 2, 0, 0, 0]])  # 0 is padding
target_in = torch.tensor([[1, 13, 14, 15, 16], [1, 17, 18, 19, 20]])

mask = model.source_mask(source)
memory = model.encode(source)
decoded = model.decode(target_in, memory, mask)
logits = decoded @ model.embedding.weight.T
print(equal(listing_of(model).double()(source, target_in), logits))
for name, x in (("source", source), ("memory", memory), ("target", target_in),
                ("decoded", decoded), ("logits", logits)):
    print(f"{name:8} {tuple(x.shape)}")

# %% tags=["row-S14", "row-S5", "row-F1", "row-F13", "remove-cell"]
assert memory.shape == (2, 7, 12) and decoded.shape == (2, 5, 12) and logits.shape == (2, 5, 23)
assert_close(logits, model(source, target_in))

# %% [markdown]
# ## Layer norm
#
# Vectors are added to vectors, layer after layer. What keeps them from growing? The **layer norm** {cite}`ba2016layer` of
# one vector $x$ with $d$ entries subtracts the mean of its entries, divides by their standard deviation, and then scales
# and shifts each entry by learned numbers, the **gain** $g$ and the **bias** $b$ ($\odot$ multiplies entry by entry):
#
# $$
# \mathrm{LayerNorm}(x) = g \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + b,
# \qquad \mu = \frac{1}{d} \sum_{c=1}^{d} x_c,
# \qquad \sigma^2 = \frac{1}{d} \sum_{c=1}^{d} (x_c - \mu)^2
# $$ (st-layer-norm)
#
# In PyTorch it is `nn.LayerNorm`. Each position is normalised by itself. The vector $(1, 2, 3, 6)$ has the mean 3 and the
# variance $(4 + 1 + 0 + 9)/4 = 3.5$.

# %% tags=["row-E8"]
x = torch.tensor([1.0, 2.0, 3.0, 6.0])
mean, variance = x.mean(), ((x - x.mean()) ** 2).mean()
by_hand = (x - mean) / (variance + 1e-5).sqrt()
print(f"mean {mean:.0f}, variance {variance:.1f}, normalised {by_hand}")
assert (mean, variance) == (3, 3.5)
assert_close(by_hand, nn.LayerNorm(4)(x))

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three bar charts of four bars. Left, x: heights 1, 2, 3 and 6, with a dashed line at their mean, 3. Middle, x minus the mean: -2, -1, 0 and 3. Right, divided by the standard deviation: -1.07, -0.53, 0 and 1.60."}, "figure": {"caption": "The layer norm in two steps: first the mean (dashed) goes to 0, then the standard deviation to 1.", "name": "fig-st-layer-norm"}}
figure, axes = plt.subplots(1, 3, figsize=(6.2, 2.1), sharey=True, layout="constrained")
steps = {"$x$": x, "$x - \\mu$": x - mean, "$(x - \\mu) \\,/\\, \\sqrt{\\sigma^2 + \\epsilon}$": by_hand}
for ax, (title, values) in zip(axes, steps.items()):
    bars = ax.bar(range(1, 5), values, color=PALETTE[0])
    ax.bar_label(bars, fmt="{:.3g}", fontsize=8, padding=2, bbox={"fc": "white", "ec": "none", "pad": 0.5})
    ax.axhline(values.mean().item(), color=PALETTE[1], linestyle="--")
    ax.set(title=title, xlabel="entry", xticks=range(1, 5), ylim=(-3.2, 7.5))
plt.show()

# %% [markdown]
# :::{dropdown} d or d - 1, and three epsilons
# The variance divides by $d$. The original Annotated Transformer of
# [Harvard NLP](https://nlp.seas.harvard.edu/annotated-transformer/) (2022) takes `x.std()`, which divides by $d - 1$
# (**Bessel's correction**), and adds its $\epsilon$ to the standard deviation. That makes the output smaller by a factor
# of $\sqrt{(d-1)/d}$: 13 percent for $d = 4$, one in a thousand for $d = 512$. A larger gain makes up for it, but weights
# carry over only roughly. The $\epsilon$ also keeps a vector of equal entries at 0 instead of $0/0$. It is one of three
# numbers of that name in the Transformer:
#
# | | value | where it acts |
# |---|---|---|
# | $\epsilon$ of the layer norm | $10^{-5}$, PyTorch's default; the paper gives no value | added to the variance, under the root |
# | $\epsilon$ of Adam (section 5.3) | $10^{-9}$ | added to the root of the mean squared gradient |
# | $\epsilon_{ls}$ of label smoothing (section 5.4) | 0.1 | the share of probability that the right token gives away |
# :::

# %% tags=["hide-cell"]
def with_bessel(x, eps=1e-6):
    return (x - x.mean(dim=-1, keepdim=True)) / (x.std(dim=-1, keepdim=True) + eps)

for d in (4, 64, 512):
    wide = torch.randn(1000, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ratio = (with_bessel(wide) / F.layer_norm(wide, [d], eps=0)).mean()
    print(f"d {d:3d}: with Bessel's correction the output is {ratio:.4f} times ours")
    assert_close(ratio.item(), math.sqrt((d - 1) / d), rtol=1e-4, atol=0)
assert F.layer_norm(torch.ones(4), [4]).tolist() == [0, 0, 0, 0]
assert (nn.LayerNorm(4).eps, TrainConfig().adam_eps, TrainConfig().eps_ls) == (1e-5, 1e-9, 0.1)

# %% [markdown]
# (st-why-layer-norm)=
# ### Why not batch norm?
#
# Images were normalised over the *batch*: each entry by its mean and deviation over all positions of all sentences. For
# sentences that has a price. We change one entry of the last word of the second sentence, and see which of the ten
# words come out changed:

# %%
def batch_norm(x):
    mean, variance = x.mean(dim=(0, 1)), x.var(dim=(0, 1), correction=0)
    return (x - mean) / (variance + 1e-5).sqrt()

torch.manual_seed(0)
x = torch.randn(2, 5, 12)
changed = x.clone()
changed[1, 4, 0] += 1
norms = {"layer norm": nn.LayerNorm(12), "batch norm": batch_norm}
for name, norm in norms.items():
    moved = (norm(changed) - norm(x)).abs().amax(dim=-1) > 1e-6
    print(name, moved.int().tolist())

# %% [markdown]
# With batch norm a word depends on the sentences that happen to share its batch, padding included, and on the words
# *after* it, which no causal mask can hide. In use, where one sentence is written word by word, there is no batch, and
# averages kept from training take its place: a different function from the one that was trained. The layer norm is the
# same in both.
#
# ## Add & norm around every sub-layer
#
# How do we stack sub-layers so that the last one still knows the input? Each sub-layer's output is *added* to its input,
# which is called a **residual connection** {cite}`he2016deep`, and the sum is normalised. Section 5.4 puts dropout on the
# sub-layer's output, before the sum.
#
# $$
# \mathrm{AddNorm}(x) = \mathrm{LayerNorm}\big(x + \mathrm{Dropout}(\mathrm{Sublayer}(x))\big)
# $$ (st-post-norm)
#
# Since the normalisation comes *after* the sum, this is called **post-norm**. The sums form one path from the bottom of a
# stack to its top, today called the **residual stream**, to which each sub-layer adds. In the listing, `answer` is the
# sub-layer's output:

# %%
from lab.listing import AddNorm, DecoderLayer, EncoderLayer

show(AddNorm)

# %% [markdown]
# The package's [`AddNorm`](https://github.com/annotated-transformer/annotated-transformer/blob/main/annotated_transformer/model/stacks.py)
# gets the sub-layer itself, as a function, so that it can also normalise what goes in (pre-norm, below):

# %%
theirs = stacks.AddNorm(12, p_drop=0.0, norm="post")
x, answer = torch.randn(2, 2, 5, 12)
ours = with_weights(AddNorm(12, p_drop=0.0), theirs)
print(equal(ours(x, answer), theirs(x, lambda x: answer)))

# %% [markdown]
# Where does dropout fall? We let the sub-layer return ones, take the norm out, and look at what was added to $x$. With
# $P_{drop} = 0.5$ an entry is dropped or doubled, so that the mean stays. If the sub-layer drops as well, an entry survives
# with probability $(1 - P_{drop})^2$. The base model has one dropout for each of its 30 sub-layers and one for the
# embeddings, which is called for both sentences: 31 modules and 32 calls in a forward pass.

# %% tags=["row-E8", "row-L0"]
add_norm = AddNorm(d_model=6, p_drop=0.5)
add_norm.norm = nn.Identity()
torch.manual_seed(0)
x = torch.randn(100, 50, 6, dtype=torch.float64)
once = (add_norm(x, torch.ones_like(x)) - x).round()
twice = (add_norm(x, F.dropout(torch.ones_like(x), p=0.5)) - x).round()
kept, kept_twice = ((each > 0).double().mean() for each in (once, twice))
print(f"values added: {once.unique().tolist()}, kept {kept:.2f}")
print(f"dropped twice: kept {kept_twice:.2f}")
assert once.unique().tolist() == [0, 2] and 0.22 < kept_twice < 0.28

# %% tags=["row-E8", "row-L0", "hide-cell"]
add_norm = stacks.AddNorm(d_model=6, p_drop=0.5, norm="post").double().eval()
nn.init.normal_(add_norm.norm.weight)
nn.init.normal_(add_norm.norm.bias)
gain, bias = add_norm.norm.weight, add_norm.norm.bias
total = x + x.sin()  # the sine stands in for a sub-layer
centred = total - total.mean(dim=-1, keepdim=True)
by_hand = gain * centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() + bias
assert_close(add_norm(x, torch.sin), by_hand)
assert_close(add_norm(x, torch.sin), F.layer_norm(total, [6], gain, bias))
assert 0.47 < kept < 0.53

# %% tags=["hide-cell"]
six_layers, calls = Transformer(ModelConfig.base(vocab_size=23, d_model=16, d_ff=32)).train(), []
dropouts = [module for module in six_layers.modules() if isinstance(module, nn.Dropout) and module.p > 0]
for dropout in dropouts:
    dropout.register_forward_hook(lambda module, inputs, output: calls.append(module))
with torch.no_grad():
    six_layers(source, target_in)
print(f"{len(dropouts)} modules of dropout, {len(calls)} calls")
assert (len(dropouts), len(calls)) == (31, 32)

# %% [markdown]
# What is the residual connection good for? We send random vectors through six untrained layers, with it and without it,
# and watch how *alike* the tokens become: the mean cosine between two tokens' vectors is 0 for unrelated vectors and 1 for
# copies. With it we try two kinds of initial values: Glorot's, as in the authors' code, and smaller ones ({ref}`below
# <st-initial-values>`). As a control, each sub-layer also stands alone. Each row is the mean of five random models, with
# the smallest and the largest of them after six layers.

# %% tags=["hide-cell"]
def similarity(x):
    """Mean cosine between the vectors of two different tokens."""
    unit, n = F.normalize(x, dim=-1), x.size(-2)
    return (((unit @ unit.transpose(-2, -1)).sum(dim=(-2, -1)) - n) / (n * (n - 1))).mean().item()

def without_residual(layer, x, attention=True, feed_forward=True):
    if attention:
        x = F.layer_norm(layer.self_attention(x, x), x.shape[-1:])
    return F.layer_norm(layer.feed_forward(x), x.shape[-1:]) if feed_forward else x

# %% tags=["hide-cell"]
def untrained_layers(initialization, seed):
    torch.manual_seed(seed)
    config = ModelConfig(vocab_size=23, N=6, d_model=64, d_ff=256, h=4, initialization=initialization)
    return Transformer(config).eval().encoder.layers, F.layer_norm(torch.randn(20, 12, 64), [64])

WAYS = {
    "residual, Glorot's values": ("glorot", lambda layer, x: layer(x, None)),
    "residual, scaled values": ("scaled", lambda layer, x: layer(x, None)),
    "no residual": ("glorot", without_residual),
    "attention alone": ("glorot", lambda layer, x: without_residual(layer, x, feed_forward=False)),
    "feed-forward alone": ("glorot", lambda layer, x: without_residual(layer, x, attention=False)),
}

# %%
curves = {}
for name, (initialization, way) in WAYS.items():
    drawn = torch.zeros(5, 7)
    for seed in range(5):
        layers, x = untrained_layers(initialization, seed)
        drawn[seed, 0] = similarity(x)
        for number, layer in enumerate(layers, 1):
            x = way(layer, x)
            drawn[seed, number] = similarity(x)
    curves[name] = drawn
    print(f"{name:26}" + "  ".join(f"{mean:.2f}" for mean in drawn.mean(dim=0)),
          f"({drawn[:, -1].min():.2f} to {drawn[:, -1].max():.2f})")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Line chart of the mean cosine between tokens after 0 to 6 layers. Without the residual connection it jumps to 0.60 after one layer and to 1 after three; attention alone rises more slowly, the feed-forward network alone least. With the residual connection and Glorot's values it rises steadily from 0.13 after one layer to 0.89 after six. With it and the scaled values it stays below 0.03."}, "figure": {"caption": "How alike the tokens of a random sentence become in six untrained layers, the mean of five models. Measured here.", "name": "fig-st-residual"}}
figure, ax = plt.subplots(figsize=(5.2, 2.7), layout="constrained")
for (name, values), style in zip(curves.items(), ("o-", "s--", "^:", "v-", "x-")):
    ax.plot(values.mean(dim=0), style, label=name)
ax.set(xlabel="layers", ylabel="mean cosine", title="without a path around: all alike")
figure.legend(fontsize=8, loc="outside right upper")
plt.show()
ends = {name: (values[:, -1].min(), values[:, -1].max()) for name, values in curves.items()}
assert ends["residual, scaled values"][1] < 0.1 < 0.7 < ends["residual, Glorot's values"][0]
assert max(ends["residual, Glorot's values"][1], ends["feed-forward alone"][1]) < 0.99 < ends["no residual"][0]
assert ends["attention alone"][0] > 0.99 and curves["no residual"][:, 3].min() > 0.98

# %% [markdown]
# Attention takes means, and means of means are all alike: alone it makes tokens more alike than the feed-forward network
# does. Without the path around them, all tokens have practically the same vector after three layers;
# {cite:t}`dong2021attention` prove this for stacks of attention alone. The residual connection only slows this with
# Glorot's values. With the scaled ones, whose sub-layers add little at first, it prevents it.
#
# ## The encoder layer and its stack
#
# One encoder layer has two sub-layers, each in its frame (dropout left out here). With $x$ the sentence, a row for each
# token:
#
# $$
# \begin{aligned}
# u &= \mathrm{LayerNorm}\big(x + \mathrm{MultiHead}(x, x, x)\big) \\
# \mathrm{EncoderLayer}(x) &= \mathrm{LayerNorm}\big(u + \mathrm{FFN}(u)\big)
# \end{aligned}
# $$ (st-encoder-layer)
#
# The first mixes positions, the second works on each position alone. Here is what flows through a layer of the base model
# for a sentence of seven tokens:
#
# ![One encoder layer with shapes, read from below. The sentence x, 7 by 512, becomes queries, keys and values in 8 heads, 8 by 7 by 64; weights 8 by 7 by 7; weights times values 8 by 7 by 64; the heads side by side times W_O, 7 by 512. After dropout, x is added and a LayerNorm follows. The feed-forward network widens to 7 by 2048 and returns to 7 by 512; again dropout, sum and LayerNorm.](figures/encoder_layer.svg)
#
# The encoder is $N$ such layers in a row, $\mathrm{Encoder}(x) = f_{\theta_N}(\cdots f_{\theta_2}(f_{\theta_1}(x)) \cdots)$.
# The paper's "stack of $N = 6$ identical layers" means identical in *form*: each layer has weights $\theta_n$ of its own.
#
# In the listing the two equations are two lines, and the mask hides padding:

# %%
show(EncoderLayer)

# %% [markdown]
# The package's layer, in [`stacks.py`](https://github.com/annotated-transformer/annotated-transformer/blob/main/annotated_transformer/model/stacks.py),
# has caches, packed rows and options besides; with the same weights it gives the same numbers:

# %%
theirs = model.encoder.layers[0]
ours = with_weights(EncoderLayer(12, 20, 3, 0.0).double(), theirs)
x = model.embed(source)
print(equal(ours(x, mask), theirs(x, mask)))

# %% [markdown]
# In the folded cells we compute the layers again from the equation, head by head, and check that our second sentence,
# which ends in padding, has the memory that it would have alone.

# %% tags=["hide-cell"]
def attention_by_hand(layer, queries, keys, mask):
    """Concat(head_1, ..., head_h) W_O, one head after the other."""
    W_Q, W_K, W_V = (W.weight.chunk(layer.h) for W in (layer.W_Q, layer.W_K, layer.W_V))
    heads = []
    for Q_i, K_i, V_i in zip(W_Q, W_K, W_V):
        scores = (queries @ Q_i.T) @ (keys @ K_i.T).transpose(1, 2) / math.sqrt(len(K_i))
        heads.append(scores.masked_fill(~mask, -math.inf).softmax(dim=-1) @ (keys @ V_i.T))
    return torch.cat(heads, dim=-1) @ layer.W_O.weight.T

def ffn_by_hand(ffn, x):
    return (x @ ffn.W_1.weight.T + ffn.W_1.bias).clamp(min=0) @ ffn.W_2.weight.T + ffn.W_2.bias

def norm_by_hand(frame, x):
    return F.layer_norm(x, x.shape[-1:], frame.norm.weight, frame.norm.bias)

# %% tags=["row-S1", "row-S7", "row-S11", "hide-cell"]
for frame in model.modules():  # no gain of 1 and no bias of 0 that could hide a mistake
    if isinstance(frame, nn.LayerNorm):
        nn.init.normal_(frame.weight, mean=1, std=0.3)
        nn.init.normal_(frame.bias, std=0.3)
x = model.embed(source)
for layer in model.encoder.layers:
    u = norm_by_hand(layer.add_norm_1, x + attention_by_hand(layer.self_attention, x, x, mask[:, 0]))
    out = norm_by_hand(layer.add_norm_2, u + ffn_by_hand(layer.feed_forward, u))
    assert_close(layer(x, mask), out)
    x = out
memory = model.encode(source)
assert_close(memory, x)  # nothing stands between the layers
assert_close(model.encode(source[1:, :4]), memory[1:, :4])
assert memory.shape == (2, 7, 12)

# %% [markdown]
# It is easy to slip here: `[layer] * 6` is a list with *one* layer six times. It runs, gives the right shapes, and has a sixth
# of the parameters. (Some later models share on purpose; see [After the paper](after_the_paper.ipynb).) PyTorch's
# `nn.TransformerEncoder(layer, N)` *copies* one layer instead, so that all start with equal weights; you would have to
# initialise them again.

# %% tags=["row-S3", "row-H1"]
with torch.device("meta"):  # shapes without numbers
    base = Transformer(ModelConfig.base(vocab_size=37_000))
    slip = nn.ModuleList([EncoderLayer(512, 2048, 8, 0.1)] * 6)
for name, layers in (("encoder", base.encoder.layers),
                     ("decoder", base.decoder.layers), ("[layer] * 6", slip)):
    sizes = {id(weight): weight.numel() for weight in layers.parameters()}
    print(f"{name:11} {len(layers)} layers, {len(sizes):2d} tensors, "
          f"{sum(sizes.values()):10,} parameters")
n_tensors = len({id(weight) for weight in base.parameters()})
assert n_tensors == 1 + 6 * (4 + 4 + 2 * 2) + 6 * (2 * 4 + 4 + 3 * 2)

# %% tags=["row-S3", "remove-cell"]
torch.manual_seed(0)
theirs = nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 3, 20, batch_first=True), 3,
                               enable_nested_tensor=False)
first, second = theirs.layers[0].linear1.weight, theirs.layers[1].linear1.weight
ours = Transformer(small).encoder.layers
assert first is not second and torch.equal(first, second)
assert not torch.equal(ours[0].feed_forward.W_1.weight, ours[1].feed_forward.W_1.weight)

# %% [markdown]
# ## The decoder layer
#
# What does a decoder layer have that an encoder layer does not? A third sub-layer between the two, attention over the
# memory $M$. With $y$ the target, a row for each position:
#
# $$
# \begin{aligned}
# u &= \mathrm{LayerNorm}\big(y + \mathrm{MultiHead}(y, y, y)\big) \quad \text{(causal)} \\
# v &= \mathrm{LayerNorm}\big(u + \mathrm{MultiHead}(u, M, M)\big) \\
# \mathrm{DecoderLayer}(y, M) &= \mathrm{LayerNorm}\big(v + \mathrm{FFN}(v)\big)
# \end{aligned}
# $$ (st-decoder-layer)
#
# ![One decoder layer, read from below: the target passes masked self-attention, attention over the memory, and the feed-forward network. After each of the three, dropout, then the residual sum, then a layer norm. A causal mask enters the first, the memory and the source's padding mask enter the second.](figures/decoder_layer.svg)
#
# In the second line the queries come from the target, the keys and values from the source: the only place where the two
# sentences meet. All decoder layers read the *same* memory, the output of the *last* encoder layer.
#
# The listing has a line for each.

# %%
show(DecoderLayer)

# %%
theirs, y = model.decoder.layers[0], model.embed(target_in)
ours = with_weights(DecoderLayer(12, 20, 3, 0.0).double(), theirs)
causal = torch.ones(5, 5, dtype=torch.bool).tril()
print(equal(ours(y, memory, mask, causal), theirs(y, memory, mask)))

# %% tags=["row-S1", "row-S2", "row-S8", "row-S10", "row-L0", "hide-cell"]
layer, y = model.decoder.layers[0], model.embed(target_in)
causal = torch.ones(5, 5, dtype=torch.bool).tril()
u = norm_by_hand(layer.add_norm_1, y + attention_by_hand(layer.self_attention, y, y, causal))
v = norm_by_hand(layer.add_norm_2, u + attention_by_hand(layer.cross_attention, u, memory, mask[:, 0]))
out = norm_by_hand(layer.add_norm_3, v + ffn_by_hand(layer.feed_forward, v))
assert_close(layer(y, memory, mask), out)
assert u.shape == v.shape == y.shape == (2, 5, 12)

# %% tags=["row-S11", "hide-cell"]
seen, hooks = [], []  # what the cross-attentions read
for layer in model.decoder.layers:
    read = layer.cross_attention.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[1]))
    hooks.append(read)
with torch.no_grad():
    model(source, target_in)
    assert_close(seen[0], model.encode(source))
assert len(seen) == 2 and seen[0] is seen[1]
for hook in hooks:
    hook.remove()

# %% [markdown]
# PyTorch has such layers too. Its `nn.Transformer` differs in six ways: it takes positions first, shapes (L, B, D), unless
# told `batch_first=True`; in its masks True *hides*; it has biases in the attentions, one more layer norm on top of each
# stack, and dropout inside the sub-layers; and it has no embeddings. The folded cells allow for each, and get the
# listing's scores from it.

# %% tags=["hide-cell"]
def copy_layer(theirs, ours):
    """The weights of a layer of the listing, into one of PyTorch's."""
    attentions, norms = {"self_attn": "self_attention"}, {"norm1": "add_norm_1", "norm2": "add_norm_2"}
    if hasattr(ours, "cross_attention"):
        attentions["multihead_attn"], norms["norm3"] = "cross_attention", "add_norm_3"
    for name, mine in attentions.items():
        attention, mine = getattr(theirs, name), getattr(ours, mine)
        attention.in_proj_weight.data = torch.cat([W.weight.data for W in (mine.W_Q, mine.W_K, mine.W_V)])
        attention.out_proj.weight.data = mine.W_O.weight.data  # its biases are 0 at the start
    theirs.linear1.load_state_dict(ours.feed_forward.W_1.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.W_2.state_dict())
    for name, mine in norms.items():
        getattr(theirs, name).load_state_dict(getattr(ours, mine).norm.state_dict())

# %% tags=["hide-cell", "row-L4"]
program = listing_of(model).double()
theirs = nn.Transformer(12, 3, 2, 2, 20, dropout=0.0).double().eval()  # positions first
theirs.encoder.norm = theirs.decoder.norm = None
for ours, layer in zip((*program.encoder, *program.decoder), (*theirs.encoder.layers, *theirs.decoder.layers)):
    copy_layer(layer, ours)
x, y = (program.embed(tokens).transpose(0, 1) for tokens in (source, target_in))  # (L, B, D)
hidden = {"src_key_padding_mask": source == 0, "memory_key_padding_mask": source == 0}
with torch.no_grad():
    scores = theirs(x, y, tgt_mask=~causal, **hidden).transpose(0, 1) @ program.E.T
    assert_close(scores, program(source, target_in))
print("PyTorch's layers, sequence first:", tuple(x.shape), "to the listing's scores")

# %% [markdown]
# ### What the logits depend on
#
# Which inputs can the logits at target position $t$ depend on? All masks together decide this, and the gradient tells.
# Where the derivative with respect to an input vector is exactly 0 although all weights are random, there is no path. We
# take our second sentence, with four real source tokens and three of padding.

# %% tags=["hide-cell"]
def logits_of_vectors(x, y):
    """The logits as a function of the embedded source and target."""
    memory = model.encoder(x, mask[1:])
    return model.logits(model.decoder(y, memory, mask[1:]))

x, y = model.embed(source[1:]).detach(), model.embed(target_in[1:]).detach()
by_source, by_target = torch.autograd.functional.jacobian(logits_of_vectors, (x, y))
reach_source = by_source.abs().sum(dim=(0, 2, 3, 5)) > 0  # (T, S)
reach_target = by_target.abs().sum(dim=(0, 2, 3, 5)) > 0  # (T, T)

# %% tags=["row-S7", "row-S8", "row-S9", "row-S10", "row-S11", "hide-input"] mystnb={"image": {"alt": "Two grids with a row for each of five target positions. Left, columns are the seven source positions: the first four are bright in every row, the three of padding are dark. Right, columns are the target positions: the lower triangle with its diagonal is bright."}, "figure": {"caption": "What the logits at a target position (row) depend on: all real source tokens, and the target up to there. Bright: a gradient other than 0.", "name": "fig-st-reach"}}
assert torch.equal(reach_target, torch.ones(5, 5, dtype=torch.bool).tril())
assert reach_source[:, :4].all() and not reach_source[:, 4:].any()
figure, axes = plt.subplots(1, 2, figsize=(5.6, 2.4), layout="constrained")
panels = (reach_source, "source position"), (reach_target, "position in target_in")
axes[0].set_title("all real source tokens")
axes[1].set_title("the target up to there")
for ax, (reached, label) in zip(axes, panels):
    ax.imshow(reached)
    ax.set(xlabel=label, ylabel="logits at", xticks=range(reached.size(1)), yticks=range(5))
plt.show()

# %% [markdown]
# The diagonal is bright: the logits at position $t$ see the token that *stands* at $t$ in `target_in`. Since `target_in`
# is the target shifted right by one, that is the token *before* the one to be predicted. The paper counts by what is
# predicted: position $i$ can depend only on the known outputs "at positions less than $i$".
#
# ## Training all positions at once, writing one by one
#
# A translation is written word by word. Why can training compute all positions at once? The model is **autoregressive**:
# the probability of a target is a product, each token given those before it.
#
# $$
# \log P(y \mid x) = \sum_{t=1}^{T} \log P(y_t \mid y_1, \ldots, y_{t-1}, x)
# $$ (st-factorisation)
#
# In training we know the whole target, so we know every condition $y_1, \ldots, y_{t-1}$, and the causal mask lets one pass
# through the decoder compute all $T$ terms, each blind to what follows. Feeding the true tokens instead of the model's own
# is called **teacher forcing**. In translation we have to choose the first token before we can compute the second term.
# `Transformer.step` computes one more position and keeps the keys and values of the earlier ones in a cache;
# [chapter 6.1](6_1_translation.ipynb) shows how. Both ways must give the same $\log P$, token by token. We also try a
# typical mistake: a new token is a sentence of length 1, and a careless program gives it position 0 each time.

# %%
target_out = torch.cat([target_in[:, 1:], torch.tensor([[2], [2]])], dim=1)

def in_steps(forget_position=False):
    state, columns = model.start(source), []
    for t in range(target_in.size(1)):
        state.position = 0 if forget_position else t
        columns.append(model.step(target_in[:, t : t + 1], state))
    return torch.cat(columns, dim=1)

with torch.no_grad():
    ways = {"at once": model(source, target_in), "one by one": in_steps(),
            "position 0": in_steps(forget_position=True)}
for name, logits in ways.items():
    log_p = logits.log_softmax(-1).gather(2, target_out[..., None])[0, :, 0]
    print(f"{name:11}", log_p.numpy().round(3), f"sum {log_p.sum():.3f}")

# %% tags=["row-E17", "remove-cell"]
assert_close(ways["one by one"], ways["at once"])
error = (ways["position 0"] - ways["at once"]).abs().amax(dim=(0, 2))
assert error[0] < 1e-9 and (error[1:] > 0.01).all()
loss = F.cross_entropy(ways["at once"].flatten(0, 1), target_out.flatten(), reduction="sum")
log_p = ways["one by one"].log_softmax(dim=-1).gather(2, target_out[..., None]).sum()
assert_close(log_p, -loss)

# %% [markdown]
# The faulty version runs. It gets the first position right and all others wrong. "Steps equal one pass" is a test that
# every decoder needs.
#
# ## Post-norm and pre-norm
#
# Does the layer norm have to come after the sum? The alternative, **pre-norm**, normalises what *enters* the sub-layer and
# leaves the sum alone:
#
# $$
# \begin{aligned}
# \text{post-norm (the paper):} \quad & \mathrm{LayerNorm}(x + \mathrm{Sublayer}(x)) \\
# \text{pre-norm:} \quad & x + \mathrm{Sublayer}(\mathrm{LayerNorm}(x))
# \end{aligned}
# $$ (st-pre-norm)
#
# ![Two columns, read from below. Left, post-norm: the sub-layer and dropout branch off and are added to x, and a layer norm stands on the way upwards. Right, pre-norm: layer norm, sub-layer and dropout branch off and are added to x; on the way upwards there are only sums.](figures/post_and_pre_norm.svg)
#
# In pre-norm the path from bottom to top is a plain sum, and one more layer norm follows at the end of the stack. Many
# later models are built that way, and so is the later default of the authors' own code, tensor2tensor
# {cite}`vaswani2018tensor2tensor`. Harvard's Annotated Transformer describes post-norm and runs pre-norm, so here is a
# test that tells them apart. As initialised, the output of a post-norm layer has mean 0 and variance 1 at every position;
# the output of a pre-norm layer does not.

# %% tags=["row-S15"]
def looks_post_norm(layer_output):
    mean = layer_output.mean(dim=-1)
    variance = layer_output.var(dim=-1, correction=0)
    off = torch.stack([mean, variance - 1]).abs()
    return bool((off < 1e-3).all())

x = 3 * torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(0))
for norm in ("post", "pre"):
    layer = stacks.EncoderLayer(small.replace(norm=norm)).eval()
    print(f"{norm:5} looks post-norm: {looks_post_norm(layer(x, None))}")
    assert looks_post_norm(layer(x, None)) == (norm == "post")

# %% tags=["row-S15", "hide-cell"]
pre, post = (stacks.AddNorm(12, p_drop=0.0, norm=norm) for norm in ("pre", "post"))
assert_close(pre(x, torch.sin), x + F.layer_norm(x, [12]).sin())
assert_close(post(x, torch.sin), F.layer_norm(x + x.sin(), [12]))
for norm, last in (("pre", nn.LayerNorm), ("post", nn.Identity)):
    built = Transformer(small.replace(norm=norm))
    assert isinstance(built.encoder.norm, last) and isinstance(built.decoder.norm, last)

# %% [markdown]
# (st-initial-values)=
# ### Initial values
#
# The paper leaves open which random numbers fill the matrices before training. The authors' code follows Glorot's rule
# {cite}`glorot2010understanding`: entries uniform in $[-a, a]$, with a variance that keeps signals and gradients at about
# their size, and so do our `base` and `big`. The presets `tiny` and `small`, or `initialization="scaled"`, multiply $a$ by a
# factor $\beta$:
#
# $$
# a = \beta \sqrt{\frac{6}{n_{in} + n_{out}}}, \qquad \mathrm{Var} = \frac{a^2}{3}, \qquad
# \beta = \begin{cases} (8N)^{-1/4} & \text{for } W^V, W^O, W_1, W_2 \\ 1 & \text{for } W^Q, W^K \end{cases}
# $$ (st-glorot)
#
# A sub-layer's output passes *through* these four matrices, so that with smaller ones $x$ dominates the sum
# $x + \mathrm{Sublayer}(x)$ at first. {cite:t}`wang2022deepnet` derive it for single stacks of $N$ layers, together with a factor
# $(2N)^{1/4}$ on $x$ that we leave out. (The listing as it stands keeps the default of `nn.Linear`, which is neither.)

# %%
THROUGH = ("W_V.weight", "W_O.weight", "W_1.weight", "W_2.weight")

def initialise(model, beta=1.0):
    for name, weight in model.named_parameters():
        if name.endswith(THROUGH):
            nn.init.xavier_uniform_(weight, gain=beta)
        elif name.endswith(("W_Q.weight", "W_K.weight")):
            nn.init.xavier_uniform_(weight)

program = listing.Transformer(vocab_size=23, N=6, d_model=128, d_ff=512, h=4)
for name, beta in (("Glorot", 1.0), ("scaled", 48**-0.25)):
    initialise(program, beta)
    W_V = program.encoder[0].self_attention.W_V.weight
    print(f"{name}: standard deviation of W_V {W_V.std():.3f}")

# %% [markdown]
# {cite:t}`xiong2020layer` show what post-norm does with Glorot's values: parameters near the output get large gradients at
# the start, so that large first steps do damage. A **warm-up** (section 5.3) protects from that, and pre-norm can do
# without. On a copy task we measure the gradients of six decoder layers before the first update, and the loss of 200 steps
# at a high peak rate of 0.004, for the same small model and three seeds each. We also leave the norm out.

# %% tags=["row-S19", "hide-cell"]
for initialization in ("scaled", "glorot"):
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=23, N=6, d_model=128, d_ff=512, h=4, initialization=initialization)
    for name, weight in Transformer(config).named_parameters():
        if weight.dim() == 2 and name != "embedding.weight":
            through = name.split(".")[-2] in ("W_V", "W_O", "W_1", "W_2")
            beta = 48**-0.25 if through and initialization == "scaled" else 1.0
            a = beta * math.sqrt(6 / sum(weight.shape))
            assert 0.99 * a < weight.abs().max() <= a
            assert_close(weight.var().item(), a**2 / 3, rtol=0.05, atol=0)
        elif weight.dim() == 1:
            assert (weight == (1.0 if name.endswith("norm.weight") else 0.0)).all()

# %% tags=["hide-cell"]
def copy_batch(n, length, generator):
    """n sentences of random symbols 3 to 12, each with itself as its translation."""
    sentences = torch.randint(3, 13, (n, length), generator=generator).tolist()
    return make_batch([(sentence, sentence) for sentence in sentences])

def without_norm(model):
    for part in model.modules():
        if isinstance(part, stacks.AddNorm):
            part.norm = nn.Identity()

def small_config(norm, initialization):
    return ModelConfig(vocab_size=13, N=6, d_model=32, d_ff=64, h=2, p_drop=0.0,
                       norm="post" if norm == "no" else norm, initialization=initialization)

# %% tags=["hide-cell"]
def gradients_at_start(norm, initialization):
    """The length of the gradient of each decoder layer, the mean of four random models."""
    batch, norms = copy_batch(32, 8, torch.Generator().manual_seed(0)), torch.zeros(6)
    for seed in range(4):
        torch.manual_seed(seed)
        model = Transformer(small_config(norm, initialization))
        F.cross_entropy(model(batch.source, batch.target_in).flatten(0, 1), batch.target_out.flatten()).backward()
        squares = [sum(w.grad.square().sum() for w in layer.parameters()) for layer in model.decoder.layers]
        norms += torch.stack(squares).sqrt() / 4
    return norms

# %% tags=["hide-cell"]
def losses(norm, initialization, warm_up, seed):
    """The loss of each of 200 steps, in nats per token."""
    peak = 0.004 * math.sqrt(32 * 100)  # equation 3 is 1 / sqrt(d_model * warmup_steps) at its peak
    run = TrainingRun(small_config(norm, initialization), TrainConfig(
        warm_up=warm_up, warmup_steps=100, lr_factor=peak, eps_ls=0, seed=seed))
    if norm == "no":
        without_norm(run.model)
    generator, found = torch.Generator().manual_seed(seed), []
    for _ in range(200):
        loss, _, n_tokens = run.step([copy_batch(32, 8, generator)])
        found.append(loss.item() / n_tokens)
    return torch.tensor(found)

# %% tags=["nbval-ignore-output"]
runs, last = {}, {}
for norm, values, warm_up in (
        ("post", "glorot", False), ("pre", "glorot", False),
        ("post", "scaled", False), ("post", "glorot", True),
        ("post", "scaled", True), ("no", "glorot", True),
        ("no", "scaled", True)):
    name = f"{norm} norm, {values}" + (", warm-up" if warm_up else "")
    runs[name] = [losses(norm, values, warm_up, seed) for seed in range(3)]
    last[name] = [run[-20:].mean().item() for run in runs[name]]
    print(f"{name:26} loss at the end", *(f"{end:6.2f}" for end in last[name]))

# %% tags=["row-X10", "row-S15", "hide-cell"]
at_start = [gradients_at_start(*kind) for kind in (("post", "glorot"), ("pre", "glorot"), ("post", "scaled"))]
of_post, of_pre, of_scaled = (norms[-1] / norms[0] for norms in at_start)
assert of_post > 3 and of_pre < 1 and 0.7 < of_scaled < 1.3
cold, warm = last["post norm, glorot"], last["post norm, glorot, warm-up"]
assert min(cold) > 1.5 and min(warm) > 0.8 and max(warm) < min(cold)
assert max(last["pre norm, glorot"] + last["post norm, scaled"] + last["post norm, scaled, warm-up"]) < 0.7
assert min(last["no norm, glorot, warm-up"]) > 4
assert max(last["no norm, scaled, warm-up"]) < min(last["post norm, scaled, warm-up"])

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two line charts. Left, the gradient norm of decoder layers 1 to 6 at the start: post-norm with Glorot's values rises steeply, to several times its first value; pre-norm with the same values falls gently; post-norm with scaled values is level. Right, training loss over 200 steps, three thin lines for each kind, with a grey line for guessing at 2.05 nats: post-norm with Glorot's values and no warm-up ends near the grey line, with warm-up between 1.5 and 2, pre-norm and post-norm with scaled values near 0."}, "figure": {"caption": "Left: gradients before the first update, the mean of four random models. Right: loss on the copy task, smoothed over ten steps, three seeds each. Measured here.", "name": "fig-st-training"}}
figure, (left, right) = plt.subplots(1, 2, figsize=(6, 2.9), layout="constrained")
for norms, style in zip(at_start, ("o-", "s--", "^:")):
    left.plot(range(1, 7), norms, style)
left.set(title="uneven with post-norm and Glorot", xlabel="decoder layer", ylabel="norm of the gradient", ylim=(0, None))
for number, (name, style) in enumerate(zip(list(runs)[:4], ("-", "--", ":", "-."))):
    for seed, found in enumerate(runs[name]):
        right.plot(range(10, 201), found.unfold(0, 10, 1).mean(dim=1), style, linewidth=1,
                   color=PALETTE[number], label=None if seed else name)
guessing = 8 / 9 * math.log(10)  # eight random symbols of ten, and an end mark that is no surprise
right.axhline(guessing, color="0.6", linewidth=1)
right.text(200, guessing - 0.19, "guessing", ha="right", va="bottom", color="0.4", fontsize=8)
right.set(title="and there slow to learn", xlabel="step", ylabel="nats per token", ylim=(0, 3.4))
figure.legend(fontsize=8, loc="outside lower center", ncols=2)
plt.show()

# %% [markdown]
# With post-norm and Glorot's values the top layer's gradient is several times the bottom layer's, and without a warm-up
# the model hardly gets below guessing. The warm-up helps; [5.3](5_3_optimizer.ipynb) asks at which rates. Pre-norm learns
# the task without one, and so does post-norm from smaller initial values, with every seed. This fits the explanation
# that what counts at the start is how much of each sum is the old $x$; {cite:t}`liu2020understanding` argue in the same
# direction.
#
# And what does the norm do for the speed of learning? Without it (the last two lines), Glorot's sub-layers add up to
# numbers that explode: tens or hundreds of nats after 200 steps. From the smaller values, with warm-up, all seeds
# end lower *without* a norm. So here the norm's work is to keep the sums in bounds, and smaller initial values do it
# as well.
#
# The miniature of [6.2](6_2_variations.ipynb) trains on real sentences, with a warm-up and Glorot's values. There pre-norm
# compares with the paper's post-norm as follows. The brackets contain
# {ref}`95% intervals <how-to-read-our-intervals>`.

# %%
from lab.experiments.claims import load_results
from lab.experiments.comparisons import at_each_length

results = load_results("results")
print(*at_each_length(results, "pre-norm"), sep="\n")

# %% [markdown]
# After two epochs pre-norm is far ahead: it learns sooner. After ten epochs most of its lead is gone. The 5% that is left
# still counts, and in the last fifth of the run it shrank by a quarter. The paper's own models are post-norm and trained
# well, with a peak rate of 0.0007 after 4,000 steps ([chapter 5.3](5_3_optimizer.ipynb)).
#
# (st-layers-add)=
# ## What each layer adds
#
# What do several layers buy? The book's trained model can tell, in two ways. We stop in the decoder after each layer and
# multiply by $E^\top$, as if it were the last. And we hand the full decoder the vectors of an earlier encoder layer in
# place of the memory.

# %% tags=["hide-cell"]
early, late = (row["log_ppl_difference"] for file in ("table_3", "table_3_to_the_end")
               for row in results[file]["summary"] if row["id"] == "pre-norm")
assert early["high"] < 0 and early["mean"] < 3 * late["mean"] and late["mean"] < 0

# %% tags=["hide-cell"]
from annotated_transformer import corpus, load_model, record_attention

trained, tokenizer = load_model("model")
program = listing_of(trained)
pairs = corpus.load("tatoeba-en-de", "valid")[:100]
batch = make_batch([tuple(map(tokenizer.encode, pair)) for pair in pairs])
is_source, is_target = batch.source != 0, batch.target_out != 0
source_mask = is_source[:, None, None, :]
target_mask = torch.ones(2 * [batch.target_in.size(1)], dtype=torch.bool).tril()

def share(x, tokens):
    """The share of positions at which x E^T is largest at `tokens`."""
    return ((x @ program.E.T).argmax(dim=-1) == tokens)[is_target].float().mean().item()

# %%
with torch.no_grad():
    memories = [program.embed(batch.source)]
    for layer in program.encoder:
        memories.append(layer(memories[-1], source_mask))
    x = program.embed(batch.target_in)
    for number, layer in enumerate(program.decoder, 1):
        x = layer(x, memories[-1], source_mask, target_mask)
        right, read = share(x, batch.target_out), share(x, batch.target_in)
        print(f"decoder layer {number}: {right:.0%} of the tokens right, "
              f"{read:.0%} repeat the token read")

# %%
with torch.no_grad():
    for number, memory in enumerate(memories):
        x = program.embed(batch.target_in)
        for layer in program.decoder:
            x = layer(x, memory, source_mask, target_mask)
        right = share(x, batch.target_out)
        print(f"memory from encoder layer {number}: {right:.0%} right")

# %% tags=["remove-cell"]
first = program.decoder[0](program.embed(batch.target_in), memories[-1], source_mask, target_mask)
assert share(first, batch.target_in) > 0.5 > 0.1 > read and right > 0.4 > share(first, batch.target_out)

# %% [markdown]
# After the first decoder layer most vectors still say the token that was *read*; the residual stream carries it up. The
# layers after it turn it into the one to be written. On the other side every encoder layer adds something that this
# decoder needs. (It was never trained on earlier layers, so this is an upper bound on what they lack.)
#
# Do early layers look at neighbours, and late ones far away? We take the mean distance between a query and what it looks
# at, in the encoder, and compare with weights that are equal for all words and with three untrained models.

# %% tags=["hide-cell"]
def distances(model):
    """The mean distance of attention in each encoder layer."""
    with torch.no_grad(), record_attention(model) as recorded:
        model.encode(batch.source)
    place = torch.arange(batch.source.size(1))
    apart = (place[:, None] - place).abs().float()
    far = [(recorded[f"encoder.layers.{n}.self_attention"].mean(dim=1) * apart).sum(dim=-1)
           for n in range(model.config.N)]
    return [each[is_source].mean().item() for each in far]

# %%
found = {"trained": distances(trained)}
for seed in range(3):
    torch.manual_seed(seed)
    found[f"untrained {seed}"] = distances(Transformer(trained.config).eval())
for name, by_layer in found.items():
    print(f"{name:12}", "  ".join(f"{distance:.1f}" for distance in by_layer))

# %% tags=["hide-cell"]
place = torch.arange(batch.source.size(1))
equally = is_source[:, None, :].float() / is_source.sum(dim=1)[:, None, None]
uniform = (equally * (place[:, None] - place).abs()).sum(dim=-1)[is_source].mean()
assert found["trained"][0] < found["trained"][-1] and found["trained"][0] < 0.85 * uniform
print(f"equal weights: {uniform:.1f}")

# %% [markdown]
# In this trained model the first layer looks nearer than the last. In the untrained ones distances are larger, and alike
# in all layers: both are the work of training.
#
# ## Where the parameters are
#
# The paper's Table 3 gives the base model 65 million parameters. Let us count, with $D = d_{\mathrm{model}}$:
#
# | part | parameters | base model |
# |---|---|---|
# | embedding, shared three ways | $V D$ | $37{,}000 \cdot 512 = 18{,}944{,}000$ |
# | one attention, $A$ | $h D\,(2 d_k + 2 d_v)$ | $4 \cdot 512^2 = 1{,}048{,}576$ |
# | one feed-forward network, $F$ | $2 D\, d_{\mathrm{ff}} + d_{\mathrm{ff}} + D$ | $2{,}099{,}712$ |
# | one layer norm, $L$ | $2 D$ | $1{,}024$ |
#
# An encoder layer has 1, 1 and 2 of the last three, a decoder layer 2, 1 and 3:
#
# $$
# V D + N \left( 3 A + 2 F + 5 L \right)
# $$ (st-parameters)

# %% tags=["row-H1"]
from annotated_transformer.config import count_parameters

V, N, D, d_ff, h, d_k = 37_000, 6, 512, 2048, 8, 64
A, FF, LN = h * D * (2 * d_k + 2 * d_k), 2 * D * d_ff + d_ff + D, 2 * D
by_hand = V * D + N * (3 * A + 2 * FF + 5 * LN)
n_parameters = sum(weight.numel() for weight in base.parameters())
print(f"by hand {by_hand:,}, the model's tensors {n_parameters:,}")
assert by_hand == n_parameters == count_parameters(base.config) == 63_045_632

# %% tags=["row-H1", "hide-input"] mystnb={"image": {"alt": "Horizontal bar chart in millions of parameters: shared embedding 18.94, encoder self-attention 6.29, encoder feed-forward 12.60, decoder self-attention 6.29, decoder cross-attention 6.29, decoder feed-forward 12.60, all layer norms 0.03."}, "figure": {"caption": "Where the base model's 63.05 million parameters are ($V = 37{,}000$).", "name": "fig-st-parameters"}}
config, training = base.config, TrainConfig()
assert (config.N, config.d_model, config.d_ff, config.h, config.d_k, config.d_v) == (6, 512, 2048, 8, 64, 64)
assert (config.p_drop, training.eps_ls, training.train_steps) == (0.1, 0.1, 100_000)
parts = {"embedding (shared)": V * D, "encoder self-attention": N * A, "encoder feed-forward": N * FF,
         "decoder self-attention": N * A, "decoder cross-attention": N * A, "decoder feed-forward": N * FF,
         "layer norms": 5 * N * LN}
assert sum(parts.values()) == by_hand
figure, ax = plt.subplots(figsize=(5.6, 2.6), layout="constrained")
bars = ax.barh(list(parts), [n / 1e6 for n in parts.values()])
ax.bar_label(bars, fmt="%.2f", padding=3)
ax.invert_yaxis()
ax.set(title="two fifths are in feed-forward networks", xlabel="millions of parameters", xlim=(0, 22))
plt.show()

# %% [markdown]
# The feed-forward network is two thirds of an encoder layer and half of a decoder layer. Our sum is 63.05 million,
# where the paper prints 65 and says "about 37000 tokens". With 41,004 to 41,208 rows in the embedding it fits, and so
# do all of Table 3's rows from base to (C); [chapter 6.2](6_2_variations.ipynb) goes through the column. Harvard's
# listing has separate matrices for source, target and output, biases in the attentions and the output, and a layer norm
# after each stack: 101,009,544 parameters for the same sizes. We compute these numbers below, and check two switches of
# our configuration: $d_k$ and $d_v$ other than $d_{\mathrm{model}}/h$, and biases in the attention.

# %% tags=["row-H2", "hide-cell"]
from lab.tables.table_3 import TABLE_3, vocabulary_interval

assert vocabulary_interval([row for row in TABLE_3 if row.name != "big"]) == (41_004, 41_208)
assert vocabulary_interval([TABLE_3[-1]]) == (35_368, 36_344)
assert round(count_parameters(ModelConfig.base(41_100)) / 1e6) == 65
big = ModelConfig.big(vocab_size=37_000)
assert (big.N, big.d_model, big.d_ff, big.h, big.d_k, big.p_drop) == (6, 1024, 4096, 16, 64, 0.3)
assert TABLE_3[-1].train_config().train_steps == 300_000
print(f"big: {count_parameters(big) / 1e6:.2f} million, Table 3 prints 213")
assert round(count_parameters(big) / 1e6, 2) == 214.17

# %% tags=["row-L0", "row-S20", "hide-cell"]
extra_matrices, output_bias, attention_biases, final_norms = 2 * V * D, V, 18 * 4 * D, 2 * LN
assert by_hand + extra_matrices + output_bias + attention_biases + final_norms == 101_009_544
biased = count_parameters(ModelConfig.base(37_000, bias=True))
assert biased - by_hand == attention_biases == 36_864
print(f"of which the two matrices are {extra_matrices / 1e6:.1f} million")

# %% tags=["row-S17", "row-S20", "hide-cell"]
for changes in ({"d_k": 5, "d_v": 2}, {"bias": True}):
    config = small.replace(**changes)
    switched = Transformer(config).double().eval()
    attention = switched.encoder.layers[0].self_attention
    print(changes, "W_Q:", tuple(attention.W_Q.weight.T.shape), "W_O:", tuple(attention.W_O.weight.T.shape),
          "bias:", attention.W_Q.bias is not None)
    with torch.no_grad():
        state = switched.start(source)
        steps = [switched.step(target_in[:, t : t + 1], state) for t in range(5)]
        assert_close(torch.cat(steps, dim=1), switched(source, target_in))
    assert count_parameters(config) == sum(weight.numel() for weight in switched.parameters())

# %% [markdown]
# :::{dropdown} Where this is
# - Code: `AddNorm`, the layers and the stacks in `annotated_transformer/model/stacks.py`; the whole model in
#   `annotated_transformer/model/transformer.py`; `norm`, `initialization` and `bias` in `ModelConfig`.
# - Tests: `tests/model/test_stacks.py`, `tests/model/test_transformer.py`; against PyTorch's Transformer in
#   `tests/model/test_oracles.py`.
# :::

# %% [markdown]
# ## Exercises
#
# Each has a hint and a folded solution, and a folded cell below it computes the answer.

# %% [markdown] tags=["exercise"]
# ```{exercise} Layer norm (check 3.1)
# :label: ex-st-layer-norm
#
# Write `layer_norm(x, gain, bias, eps=1e-5)` over the last axis, equation {eq}`st-layer-norm`. Check it with
# `check("3.1", your_function)`.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# `keepdim=True` keeps the axis, so that the mean can be subtracted from each row.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-st-layer-norm
# :class: dropdown
#
# Below. The mean of the squares of the centred entries is the variance with division by $d$.
# ```

# %% tags=["hide-cell", "solution"]
def my_layer_norm(x, gain, bias, eps=1e-5):
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return gain * centred / (variance + eps).sqrt() + bias

check("3.1", my_layer_norm)

# %% [markdown] tags=["exercise"]
# ```{exercise} Add & norm (check 3.1-add-norm)
# :label: ex-st-add-norm
#
# Write `add_norm(x, sublayer, norm)`, the paper's frame without dropout, where `sublayer` and `norm` are functions.
# Check it with `check("3.1-add-norm", your_function)`. Then give the checker pre-norm, and read what it says.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Equation {eq}`st-post-norm`, read from the inside out.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-st-add-norm
# :class: dropdown
#
# The folded cell has both in one line each.
# ```

# %% tags=["hide-cell", "solution"]
check("3.1-add-norm", lambda x, sublayer, norm: norm(x + sublayer(x)))
check("3.1-add-norm", lambda x, sublayer, norm: x + sublayer(norm(x)))

# %% [markdown] tags=["exercise"]
# ```{exercise} Which is it?
# :label: ex-st-which
#
# Without reading its documentation, find out with `looks_post_norm` what the default of `norm_first` is, an option of
# `nn.TransformerEncoderLayer`.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# It needs `batch_first=True` and `.eval()`.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-st-which
# :class: dropdown
#
# It is post-norm, as in the paper.
# ```

# %% tags=["hide-cell", "solution"]
torch.manual_seed(0)
x = 3 * torch.randn(2, 7, 12)
for norm_first in (None, False, True):
    option = {} if norm_first is None else {"norm_first": norm_first}
    theirs = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, **option).eval()
    assert looks_post_norm(theirs(x)) == (norm_first is not True)

# %% [markdown] tags=["exercise"]
# ```{exercise} Twice as wide, twice as deep
# :label: ex-st-double
#
# Which adds more parameters to the base model: doubling $N$, doubling $d_{\mathrm{ff}}$, or doubling
# $d_{\mathrm{model}}$ (with $h = 8$)? Estimate first.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Which of them enters equation {eq}`st-parameters` squared?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-st-double
# :class: dropdown
#
# $d_{\mathrm{model}}$: the attentions grow fourfold, the rest twofold. The 63.0 million become 107.1 with twice $N$, 88.2
# with twice $d_{\mathrm{ff}}$, 163.8 with twice $d_{\mathrm{model}}$.
# ```

# %% tags=["hide-cell", "solution"]
config = ModelConfig.base(37_000)
for changes, millions in (({"N": 12}, 107.1), ({"d_ff": 4096}, 88.2), ({"d_model": 1024}, 163.8)):
    assert round(count_parameters(config.replace(**changes)) / 1e6, 1) == millions

# %% [markdown]
# ## What to remember
#
# - Every sub-layer has the frame $\mathrm{LayerNorm}(x + \mathrm{Dropout}(\mathrm{Sublayer}(x)))$, post-norm.
# - An encoder layer has two sub-layers, a decoder layer three. A stack is $N$ layers of one form with $N$ sets of weights.
# - One pass with teacher forcing equals step-by-step decoding (equation {eq}`st-factorisation`).
# - A layer norm depends on its own word alone; a batch norm on the batch, and on words to come.
# - Post-norm with Glorot's values has uneven gradients at the start. Pre-norm or smaller initial weights make them even; a
#   warm-up limits the damage of the first steps.
