# %% [markdown]
# # 3 and 3.1 The stacks and the model
#
# *Sections 3 and 3.1 of the paper {cite}`vaswani2017attention`: how attention, feed-forward networks and embeddings are
# put together into the encoder and the decoder of its Figure 1.*
#
# The other chapters of this part take the Transformer's pieces one by one. This one assembles them. What is new here is
# the frame that holds every piece: a sum that carries the input past the sub-layer, and a normalisation of that sum.
#
# When you have read this chapter you can
#
# - name every box of Figure 1, its code, and the shape of what flows through it;
# - compute the layer norm and a whole layer by hand, and find the two popular ways to get them slightly wrong;
# - say what each of the decoder's three sub-layers reads, and prove what each output can and cannot depend on;
# - explain why training computes all positions at once and translation one after the other, with the same result;
# - tell post-norm from pre-norm by a test, and say what both do to gradients, warm-up and initial values;
# - count the parameters of any configuration, to the last one.
#
# You need [attention](3_2_attention.ipynb); the [feed-forward network](3_3_feed_forward.ipynb),
# [the embedding](3_4_embeddings_and_softmax.ipynb) and [positions](3_5_positional_encoding.ipynb) can be taken as boxes
# for now.

# %%
import math

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer import ModelConfig, Transformer
from annotated_transformer.exercises import check
from annotated_transformer.looking.visualization import HEAT_MAP, show, use_style

use_style()
torch.set_printoptions(precision=4, sci_mode=False)

# %% [markdown]
# ## The whole, once from bottom to top
#
# **Question.** What happens between the token ids of a sentence and the scores of the next word?
#
# **Picture.** Our drawing of the paper's Figure 1.
#
# ![The architecture. On the left the encoder: source embedding plus positions, then N layers of self-attention and feed-forward network, each with add and norm. On the right the decoder: target embedding plus positions, then N layers of causal self-attention, attention over the encoder's output, and feed-forward network, each with add and norm; above it the linear projection and the softmax.](figures/architecture.svg)
#
# On the left stands the **encoder**. It reads the source sentence and gives one vector for each of its tokens, the
# **memory**. On the right stands the **decoder**. It reads the target sentence as far as it is written and the memory,
# and gives one vector for each target position, from which the next token is predicted. Each is a **stack**: $N$ layers
# of the same form, one after the other, with $N = 6$ in the base model.
#
# | box | what it does | code |
# |---|---|---|
# | embedding | a row of $E$ for each token, times $\sqrt{d_{\mathrm{model}}}$ | `SharedEmbedding` |
# | positional encoding | adds a vector for each position | `SinusoidalPositions` |
# | multi-head attention | fetches from other positions | `MultiHeadAttention` |
# | feed forward | works on each position alone | `PositionwiseFeedForward` |
# | add & norm | the frame of every sub-layer | `AddNorm` |
# | linear, softmax | scores for every token, and their distribution | `SharedEmbedding.logits`, then a softmax |
#
# **Equation.** In one line each, with $x$ the source, $y$ the target so far, $Y$ the vectors that the decoder gives,
# and $E$ the embedding matrix, which serves three times:
#
# $$
# \begin{aligned}
# M &= \mathrm{Encoder}(\mathrm{embed}(x)) \\
# Y &= \mathrm{Decoder}(\mathrm{embed}(y), M) \\
# P(y_{t+1} \mid y_{\le t}, x) &= \mathrm{softmax}(Y_t\, E^\top)
# \end{aligned}
# $$ (st-model)
#
# **Code.** The same lines.

# %%
show(Transformer.forward)

# %%
show(Transformer.embed)

# %% [markdown]
# **Check.** We follow a batch of $B = 2$ sentences through a model of two layers and write down the shape after every
# step. Every sub-layer and both embeddings give vectors of $d_{\mathrm{model}}$ entries, as the paper demands, so that
# they can be added. The axes in this cell all have different sizes, so that none can stand for another.

# %% tags=["row-S14", "row-S5", "row-F1", "row-F13"]
torch.manual_seed(0)
config = ModelConfig(vocab_size=23, N=2, d_model=12, d_ff=20, h=3)
model = Transformer(config).eval()
source = torch.tensor([[4, 5, 6, 7, 8, 9, 2], [10, 11, 12, 2, 0, 0, 0]])  # 0 is padding
target_in = torch.tensor([[1, 13, 14, 15, 16], [1, 17, 18, 19, 20]])

memory = model.encode(source)
decoded = model.decode(target_in, memory, model.source_mask(source))
logits = decoded @ model.embedding.weight.T
assert memory.shape == (2, 7, 12) and decoded.shape == (2, 5, 12)
assert logits.shape == (2, 5, 23)
assert_close(logits, model(source, target_in))
assert_close(logits.softmax(dim=-1).sum(dim=-1), torch.ones(2, 5))

# %% [markdown]
# A **hook** is a function that PyTorch calls when a module has run. With one on every sub-layer and on every frame we
# can watch the order in which Figure 1 is executed.

# %%
steps = []
def note(name):
    return lambda module, inputs, output: steps.append((name, tuple(output.shape)))

kinds = ("self_attention", "cross_attention", "feed_forward", "add_norm")
hooks = [module.register_forward_hook(note(name)) for name, module in model.named_modules()
         if any(name.rsplit(".", 1)[-1].startswith(kind) for kind in kinds)]
model(source, target_in)
for hook in hooks:
    hook.remove()

for name, shape in steps:
    if ".layers.0." in name:
        print(f"{name:34} {shape}")
assert len(steps) == 2 * (2 * 2) + 2 * (2 * 3)  # N layers of 2 and of 3 sub-layers, each with its frame

# %% [markdown]
# A sub-layer runs *inside* its frame, and so ends before it.
#
# **Where.**
#
# - Code: `annotated_transformer/model/transformer.py`, `annotated_transformer/model/stacks.py`.
# - Tests: `test_the_whole_model_equals_pytorchs_transformer` in `tests/model/test_oracles.py`.
# - Exercises: {ref}`ex-st-shapes`.

# %% [markdown]
# ## Layer norm
#
# **Question.** Vectors are added to vectors, layer after layer. What keeps them from growing or shrinking?
#
# **Equation.** The **layer norm** {cite}`ba2016layer` of one vector $x$ with $d$ entries: subtract the mean of its
# entries, divide by their standard deviation, then scale and shift each entry by learned numbers, the **gain** $g$ and
# the **bias** $b$.
#
# $$
# \mathrm{LayerNorm}(x) = g \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + b,
# \qquad \mu = \frac{1}{d} \sum_{c=1}^{d} x_c,
# \qquad \sigma^2 = \frac{1}{d} \sum_{c=1}^{d} (x_c - \mu)^2
# $$ (st-layer-norm)
#
# ($\odot$ multiplies entry by entry.) Two details are easy to miss. The variance divides by $d$, not by $d - 1$: it
# is the variance *of these numbers*, not an estimate from a sample. And $\epsilon$, a small number such as $10^{-5}$,
# is added to the variance, under the root. It is there so that a vector of equal entries gives 0 and not $0/0$.
#
# Each position is normalised by itself. No other token, no other sentence and no running average takes part, so
# the layer norm does the same in training and in translation.
#
# **Code.** PyTorch's `nn.LayerNorm`, which `AddNorm` (below) calls.
#
# **Check.** By hand, with Python's numbers, on the vector $(1, 2, 3, 6)$: mean 3, variance
# $(4 + 1 + 0 + 9)/4 = 3.5$.

# %% tags=["row-E8"]
x = [1.0, 2.0, 3.0, 6.0]
mean = sum(x) / len(x)
variance = sum((entry - mean) ** 2 for entry in x) / len(x)
by_hand = [(entry - mean) / math.sqrt(variance + 1e-5) for entry in x]
print(mean, variance, [round(entry, 4) for entry in by_hand])

assert (mean, variance) == (3, 3.5)
assert_close(torch.tensor(by_hand), F.layer_norm(torch.tensor(x), [4]))
assert_close(torch.tensor(by_hand), nn.LayerNorm(4)(torch.tensor(x)))

# %% [markdown]
# **Break it.** A popular walkthrough writes its own layer norm with `x.std()`, which divides by $d - 1$ (**Bessel's
# correction**), and adds $\epsilon$ to the standard deviation instead of the variance. How much does it matter?

# %%
def with_bessel(x, eps=1e-6):
    return (x - x.mean(dim=-1, keepdim=True)) / (x.std(dim=-1, keepdim=True) + eps)

torch.manual_seed(0)
for d in (4, 64, 512):
    x = torch.randn(1000, d, dtype=torch.float64)
    ratio = (with_bessel(x) / F.layer_norm(x, [d], eps=0)).mean()
    print(f"d {d:3d}: its output is {ratio:.4f} times ours")
    assert_close(ratio.item(), math.sqrt((d - 1) / d), rtol=1e-4, atol=0)

# %% [markdown]
# A constant factor $\sqrt{(d-1)/d}$: 13 percent for $d = 4$, one in a thousand for $d = 512$. A larger gain makes up
# for it, so the same models can be learned. But weights do not carry over, and a comparison with another implementation
# fails in the third decimal, for a reason that takes long to find. The place of $\epsilon$ shows where entries hardly
# differ:

# %%
nearly_constant = 1e-3 * torch.tensor([[1.0, 2.0, 3.0, 6.0]]).double()
print("ours:  ", F.layer_norm(nearly_constant, [4]))
print("theirs:", with_bessel(nearly_constant))

# %% [markdown]
# Here the variance is $3.5 \cdot 10^{-6}$, less than our $\epsilon$ of $10^{-5}$, and ours comes out at half the size
# that it has for $(1, 2, 3, 6)$. Theirs adds $10^{-6}$ to a standard deviation of about 0.002, which changes next to
# nothing.
#
# **Where.**
#
# - Code: `nn.LayerNorm`, inside `AddNorm` in `annotated_transformer/model/stacks.py`.
# - Tests: `test_post_norm_is_layer_norm_of_the_sum` in `tests/model/test_stacks.py`.
# - Exercises: {ref}`ex-st-layer-norm`, {ref}`ex-st-invariant`.

# %% [markdown]
# ## The frame: add & norm
#
# **Question.** How do you stack sub-layers so that the last one still knows the input?
#
# **Equation.** Each sub-layer's output is *added* to its input (a **residual connection**, {cite:t}`he2016deep`), and
# the sum is normalised. Section 5.4 puts dropout on the sub-layer's output, before the sum.
#
# $$
# \mathrm{AddNorm}(x) = \mathrm{LayerNorm}\big(x + \mathrm{Dropout}(\mathrm{Sublayer}(x))\big)
# $$ (st-post-norm)
#
# The normalisation comes *after* the sum, which is why this is called **post-norm**.
#
# **Code.** The sub-layer is passed in as a function, so that one class frames all five: the two of an encoder layer and
# the three of a decoder layer.

# %%
from annotated_transformer.model.stacks import AddNorm

show(AddNorm.forward)

# %% [markdown]
# **Check.** Without dropout first, with random gain and bias, against PyTorch's function and against a hand-made one.
# The sub-layer here is the sine, because anything will do.

# %% tags=["row-E8"]
torch.manual_seed(0)
add_norm = AddNorm(d_model=6, p_drop=0.5, norm="post").double().eval()
nn.init.normal_(add_norm.norm.weight)
nn.init.normal_(add_norm.norm.bias)
gain, bias = add_norm.norm.weight, add_norm.norm.bias

x = torch.randn(2, 5, 6, dtype=torch.float64)
total = x + x.sin()
centred = total - total.mean(dim=-1, keepdim=True)
by_hand = gain * centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() + bias
assert_close(add_norm(x, torch.sin), by_hand)
assert_close(add_norm(x, torch.sin), F.layer_norm(total, [6], gain, bias))

# %% [markdown]
# With dropout on, and $P_{drop} = 0.5$: the sub-layer below returns nothing but ones, so we can see what was kept.
# What survives is doubled, so that the mean stays. Dropout falls on the sub-layer's output and never on $x$ itself.

# %% tags=["row-E8", "row-L0"]
add_norm.train().norm = nn.Identity()
x = torch.randn(100, 10, 6, dtype=torch.float64)
added = (add_norm(x, torch.ones_like) - x).round()
assert set(added.unique().tolist()) == {0.0, 2.0}
print(f"kept: {(added == 2).double().mean():.2f}")
assert 0.47 < (added == 2).double().mean() < 0.53

def drops_too(y):  # a popular walkthrough drops inside the sub-layer as well
    return F.dropout(torch.ones_like(y), p=0.5)

twice = (add_norm(x, drops_too) - x).round()
print(f"kept when dropped twice: {(twice != 0).double().mean():.2f}")
assert 0.22 < (twice != 0).double().mean() < 0.28

# %% [markdown]
# Dropped twice, an entry survives with probability $(1 - P_{drop})^2$, and the rate that you set is not the rate that
# you get.
#
# **Break it.** Leave out the residual connection, normalising the sub-layer's output alone. We send a sentence of
# random vectors through six untrained layers and watch how *different* the tokens still are from each other: the mean
# cosine between two tokens' vectors, 0 for unrelated ones and 1 for copies.

# %%
def similarity(x):
    """Mean cosine between the vectors of two different tokens."""
    unit = F.normalize(x, dim=-1)
    cosine = unit @ unit.transpose(-2, -1)
    n = x.size(-2)
    return ((cosine.sum(dim=(-2, -1)) - n) / (n * (n - 1))).mean().item()

def without_residual(layer, x):
    x = F.layer_norm(layer.self_attention(x, x), x.shape[-1:])
    return F.layer_norm(layer.feed_forward(x), x.shape[-1:])

# %%
torch.manual_seed(0)
deep = Transformer(ModelConfig(vocab_size=23, N=6, d_model=64, d_ff=256, h=4)).eval()
x = y = F.layer_norm(torch.randn(20, 12, 64), [64])
with torch.no_grad():
    for number, layer in enumerate(deep.encoder.layers, start=1):
        x, y = layer(x, None), without_residual(layer, y)
        print(f"layer {number}: with {similarity(x):.2f}  without {similarity(y):.2f}")
assert similarity(x) < 0.6 and similarity(y) > 0.95

# %% [markdown]
# Attention takes means, and means of means are all alike. Without the path around it, all tokens of a sentence soon
# have the same vector, and which token stood where is forgotten. {cite:t}`dong2021attention` prove that for stacks of
# attention alone.
#
# **Where.**
#
# - Code: `AddNorm` in `annotated_transformer/model/stacks.py`.
# - Tests: `test_dropout_is_where_section_5_4_puts_it_and_nowhere_else`,
#   `test_dropout_falls_on_the_sublayers_output_before_the_sum` in `tests/model/test_stacks.py`.
# - Exercises: {ref}`ex-st-add-norm`, {ref}`ex-st-which`.

# %% [markdown]
# ## The encoder layer
#
# **Question.** What is one layer of the encoder?
#
# **Equation.** Two sub-layers, each in its frame (dropout is left out here). $x$ is the sentence, a row for each token:
#
# $$
# \begin{aligned}
# u &= \mathrm{LayerNorm}\big(x + \mathrm{MultiHead}(x, x, x)\big) \\
# \mathrm{EncoderLayer}(x) &= \mathrm{LayerNorm}\big(u + \mathrm{FFN}(u)\big)
# \end{aligned}
# $$ (st-encoder-layer)
#
# The first mixes positions, the second works on each position alone. Padding is hidden from the attention by a mask.
#
# **Code.**

# %%
from annotated_transformer.model.stacks import EncoderLayer

show(EncoderLayer)

# %% [markdown]
# **Check.** The equation again, from the sub-layers' weights alone: attention head by head, the feed-forward network as
# two products, two layer norms. The model is in double precision from here on.

# %%
def attention_by_hand(layer, queries, keys, mask):
    """Concat(head_1, ..., head_h) W_O, one head after the other."""
    W_Q, W_K, W_V = (W.weight.chunk(layer.h) for W in (layer.W_Q, layer.W_K, layer.W_V))
    heads = []
    for Q_i, K_i, V_i in zip(W_Q, W_K, W_V):
        scores = (queries @ Q_i.T) @ (keys @ K_i.T).transpose(1, 2) / math.sqrt(len(K_i))
        heads.append(scores.masked_fill(~mask, -math.inf).softmax(dim=-1) @ (keys @ V_i.T))
    return torch.cat(heads, dim=-1) @ layer.W_O.weight.T

def ffn_by_hand(ffn, x):
    hidden = (x @ ffn.W_1.weight.T + ffn.W_1.bias).clamp(min=0)
    return hidden @ ffn.W_2.weight.T + ffn.W_2.bias

def norm_by_hand(frame, x):
    return F.layer_norm(x, x.shape[-1:], frame.norm.weight, frame.norm.bias)

# %% tags=["row-S1", "row-S7"]
model = model.double()
for frame in model.modules():  # no gain of 1 and no bias of 0 that could hide a mistake
    if isinstance(frame, nn.LayerNorm):
        nn.init.normal_(frame.weight, mean=1, std=0.3)
        nn.init.normal_(frame.bias, std=0.3)

layer, mask = model.encoder.layers[0], model.source_mask(source)
x = model.embed(source)
u = norm_by_hand(layer.add_norm_1, x + attention_by_hand(layer.self_attention, x, x, mask[:, 0]))
out = norm_by_hand(layer.add_norm_2, u + ffn_by_hand(layer.feed_forward, u))
assert_close(layer(x, mask), out)

# %% [markdown]
# The encoder is these layers in a row, with different weights and nothing between them. And the padding mask does its
# work: the second sentence, which ends in three tokens of padding, has the memory that it would have alone.

# %% tags=["row-S7", "row-S11"]
with torch.no_grad():
    memory = model.encode(source)
    one_by_one = model.embed(source)
    for layer in model.encoder.layers:
        one_by_one = layer(one_by_one, mask)
    assert_close(memory, one_by_one)
    assert_close(model.encode(source[1:, :4]), memory[1:, :4])

# %% [markdown]
# **Where.**
#
# - Code: `EncoderLayer`, `Encoder` in `annotated_transformer/model/stacks.py`.
# - Tests: `test_padding_added_to_a_batch_changes_nothing` in `tests/model/test_transformer.py`.
# - Exercises: {ref}`ex-st-invariant`.

# %% [markdown]
# ## The decoder layer
#
# **Question.** What does the decoder's layer have that the encoder's has not?
#
# **Equation.** A third sub-layer, between the two: attention over the memory $M$. $y$ is the target, a row for each
# position:
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
# In the second line the queries come from the target, the keys and values from the source. It is the only place where
# the two sentences meet. Every decoder layer reads the *same* memory, the output of the encoder's last layer.
#
# **Code.**

# %%
from annotated_transformer.model.stacks import DecoderLayer

show(DecoderLayer.__init__)

# %%
show(DecoderLayer.forward)

# %% [markdown]
# `past` is for a translation that is written word by word, further down; in training it is None.
#
# **Check.** By hand again. The causal mask is a lower triangle; the cross-attention gets the source's padding mask.

# %% tags=["row-S2", "row-S8", "row-S10", "row-L0"]
layer = model.decoder.layers[0]
y = model.embed(target_in)
causal = torch.ones(5, 5, dtype=torch.bool).tril()
u = norm_by_hand(layer.add_norm_1, y + attention_by_hand(layer.self_attention, y, y, causal))
v = norm_by_hand(layer.add_norm_2,
                 u + attention_by_hand(layer.cross_attention, u, memory, mask[:, 0]))
out = norm_by_hand(layer.add_norm_3, v + ffn_by_hand(layer.feed_forward, v))
assert_close(layer(y, memory, mask), out)
assert u.shape == v.shape == y.shape == (2, 5, 12) and memory.shape == (2, 7, 12)

# %% [markdown]
# ### Against PyTorch's Transformer
#
# Our by-hand formulas could share a misunderstanding with our package. `torch.nn.Transformer` was written by others.
# Copy our weights into it, and the two must agree. PyTorch stacks $W^Q$, $W^K$ and $W^V$ in one matrix, and its
# attention has biases, which the paper's has not: we set them to zero.

# %%
def copy_attention(theirs, ours):
    theirs.in_proj_weight.copy_(torch.cat([ours.W_Q.weight, ours.W_K.weight, ours.W_V.weight]))
    theirs.out_proj.weight.copy_(ours.W_O.weight)
    theirs.in_proj_bias.zero_()
    theirs.out_proj.bias.zero_()

def copy_layer(theirs, ours):
    copy_attention(theirs.self_attn, ours.self_attention)
    if hasattr(theirs, "multihead_attn"):
        copy_attention(theirs.multihead_attn, ours.cross_attention)
    theirs.linear1.load_state_dict(ours.feed_forward.W_1.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.W_2.state_dict())
    for i in range(1, 4 if hasattr(theirs, "multihead_attn") else 3):
        getattr(theirs, f"norm{i}").load_state_dict(getattr(ours, f"add_norm_{i}").norm.state_dict())

# %% [markdown]
# Another difference: `nn.Transformer` by default puts one more layer norm on top of each stack, which neither the paper
# nor the picture has. We build its stacks without.

# %%
settings = {"dropout": 0.0, "activation": "relu", "batch_first": True}
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 3, 20, **settings), 2,
                                enable_nested_tensor=False)
decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(12, 3, 20, **settings), 2)
theirs = nn.Transformer(12, 3, batch_first=True, custom_encoder=encoder, custom_decoder=decoder)
theirs = theirs.double().eval()
with torch.no_grad():
    for their_stack, our_stack in ((encoder, model.encoder), (decoder, model.decoder)):
        for their_layer, our_layer in zip(their_stack.layers, our_stack.layers):
            copy_layer(their_layer, our_layer)

# %% [markdown]
# Its masks have the opposite polarity: True *hides*.

# %% tags=["row-S1", "row-S2", "row-S3", "row-S9", "row-L0"]
padding, future = source == 0, ~causal
with torch.no_grad():
    decoded = theirs(model.embed(source), model.embed(target_in), tgt_mask=future,
                     src_key_padding_mask=padding, memory_key_padding_mask=padding)
    logits = model(source, target_in)
assert_close(decoded @ model.embedding.weight.T, logits)
print(f"largest difference below 1e-12: {(decoded @ model.embedding.weight.T - logits).abs().max() < 1e-12}")

# %% [markdown]
# ### What can reach what
#
# **Question.** Which inputs can the logits at target position $t$ depend on?
#
# All the masks together decide that. We ask the gradient. Where the derivative of the logits at position $t$ with
# respect to an input vector is not zero, they depend on it. Where it is exactly 0 although all weights are random, no
# path leads from one to the other. The input is the second sentence of the batch, with four real source tokens and
# three of padding.

# %%
def logits_of_vectors(x, y):
    """The logits as a function of the embedded source and target."""
    memory = model.encoder(x, mask[1:])
    return model.logits(model.decoder(y, memory, mask[1:]))

x, y = model.embed(source[1:]).detach(), model.embed(target_in[1:]).detach()
by_source, by_target = torch.autograd.functional.jacobian(logits_of_vectors, (x, y))
reach_source = by_source.abs().sum(dim=(0, 2, 3, 5)) > 0  # (T, S)
reach_target = by_target.abs().sum(dim=(0, 2, 3, 5)) > 0  # (T, T)
print(reach_source.int(), reach_target.int(), sep="\n")

# %% tags=["row-S7", "row-S8", "row-S9", "row-S10", "row-S11"]
assert torch.equal(reach_target, torch.ones(5, 5, dtype=torch.bool).tril())
assert reach_source[:, :4].all() and not reach_source[:, 4:].any()

# %% [markdown]
# **Picture.**

# %% mystnb={"image": {"alt": "Two grids with a row for each of five target positions. Left, columns are the seven source positions: the first four are bright in every row, the three of padding are dark. Right, columns are the target positions: the lower triangle with its diagonal is bright."}, "figure": {"caption": "What the logits at a target position (row) depend on: all real source tokens, and the target up to there.", "name": "fig-st-reach"}}
figure, axes = plt.subplots(1, 2, figsize=(5.6, 2.5), layout="constrained")
panels = (reach_source, "source position"), (reach_target, "position in target_in")
for ax, (reached, label) in zip(axes, panels):
    ax.imshow(reached, cmap=HEAT_MAP)
    ax.set(xlabel=label, ylabel="logits at", xticks=range(reached.size(1)), yticks=range(5))
plt.show()

# %% [markdown]
# The diagonal is bright: the logits at position $t$ see the token that *stands* at $t$ in `target_in`. Since
# `target_in` is the target shifted right by one, that is the token *before* the one to be predicted. The paper counts
# by what is predicted: the prediction for position $i$ can depend only on the known outputs "at positions less than
# $i$".
#
# **Where.**
#
# - Code: `DecoderLayer`, `Decoder` in `annotated_transformer/model/stacks.py`.
# - Tests: `test_gradients_equal_pytorchs` in `tests/model/test_oracles.py`; `test_the_future_is_invisible`,
#   `test_every_position_sees_itself_its_past_and_the_whole_source` in `tests/model/test_transformer.py`.
# - Exercises: {ref}`ex-st-swap`, {ref}`ex-st-memory`.

# %% [markdown]
# ## All at once, or one by one
#
# **Question.** A translation is written word by word. Why can training compute all positions at once?
#
# **Equation.** The model is **autoregressive**: the probability of a target is a product, each token given those
# before it.
#
# $$
# \log P(y \mid x) = \sum_{t=1}^{T} \log P(y_t \mid y_1, \ldots, y_{t-1}, x)
# $$ (st-factorisation)
#
# In training the whole target is known. So all conditions $y_1, \ldots, y_{t-1}$ are known as well, and the causal mask
# makes one pass through the decoder compute all $T$ terms, each blind to what follows. Feeding the true tokens instead
# of the model's own is called **teacher forcing**. In translation the target is *not* known: the first token must be
# chosen before the second term can be computed.
#
# **Code.** `step` computes one more position. It keeps the keys and values of the earlier ones in a **cache**, instead
# of computing them again. The layers are the same as in training. What differs is how a query reaches its keys: instead
# of a mask, the self-attention is handed the cache, which first takes in the new keys and values. (W is the number of
# beginnings that are continued side by side; here it is 1.)

# %%
show(Transformer.step)

# %%
from annotated_transformer.model.decoding_state import CachedPast

show(CachedPast.__call__)

# %% [markdown]
# **Check.** The law: one pass over the whole target, and one step after the other, give the same logits.

# %% tags=["row-E17"]
with torch.no_grad():
    at_once = model(source, target_in)
    state, columns = model.start(source), []
    for t in range(target_in.size(1)):
        columns.append(model.step(target_in[:, t : t + 1], state))
    one_by_one = torch.cat(columns, dim=1)
assert_close(one_by_one, at_once)
assert state.position == 5

# %% [markdown]
# So they also give the same probability of a sentence, the sum {eq}`st-factorisation`. `target_out` is the target
# shifted the other way: at each position the token that comes next.

# %% tags=["row-E17"]
target_out = torch.cat([target_in[:, 1:], torch.tensor([[2], [2]])], dim=1)

def log_p(logits):
    return logits.log_softmax(dim=-1).gather(2, target_out[..., None]).sum(dim=(1, 2))

print("at once:   ", log_p(at_once))
print("one by one:", log_p(one_by_one))
loss = F.cross_entropy(at_once.flatten(0, 1), target_out.flatten(), reduction="sum")
assert_close(log_p(one_by_one).sum(), -loss)

# %% [markdown]
# **Break it.** The step is where positions are forgotten most easily: a new token is always a sentence of length 1,
# and a careless program gives it position 0 each time.

# %%
with torch.no_grad():
    state, columns = model.start(source), []
    for t in range(target_in.size(1)):
        state.position = 0  # the mistake
        columns.append(model.step(target_in[:, t : t + 1], state))
error = (torch.cat(columns, dim=1) - at_once).abs().amax(dim=(0, 2))
print("largest error at each position:", error)
assert error[0] < 1e-9 and (error[1:] > 0.01).all()

# %% [markdown]
# The first position is right and all others are wrong, yet everything runs. "Steps equal one forward pass" is a test
# that every decoder needs.
#
# **Where.**
#
# - Code: `Transformer.start`, `Transformer.step`; `LayerCache` in `annotated_transformer/model/decoding_state.py`.
# - Tests: `test_cached_steps_equal_one_forward` in `tests/model/test_transformer.py`.
# - Exercises: {ref}`ex-st-cost`. How tokens are chosen step by step is the subject of
#   [chapter 6.1](6_1_translation.ipynb).

# %% [markdown]
# ## Six layers, six sets of weights
#
# **Question.** What does "a stack of $N = 6$ identical layers" mean?
#
# Identical in *form*. Each layer has weights of its own. And it is one encoder of six layers, not six encoders, as some
# texts have it: the layers stand in a row, and only the last one's output leaves the stack.
#
# **Equation.** With $f_\theta$ a layer with weights $\theta$:
#
# $$
# \mathrm{Encoder}(x) = f_{\theta_6}(f_{\theta_5}(\cdots f_{\theta_1}(x) \cdots))
# $$ (st-stack)
#
# **Code.**

# %%
from annotated_transformer.model.stacks import Encoder

show(Encoder)

# %% [markdown]
# **Check.** The base model has six layers on each side, and no tensor occurs twice. (On the device `meta`, PyTorch
# keeps shapes without numbers, so that a large model costs nothing.)

# %% tags=["row-S3", "row-H1"]
with torch.device("meta"):
    base = Transformer(ModelConfig.base(vocab_size=37_000))
for stack, n_tensors in ((base.encoder, 4 + 4 + 2 * 2), (base.decoder, 2 * 4 + 4 + 3 * 2)):
    tensors = [weight for layer in stack.layers for weight in layer.parameters()]
    assert len(stack.layers) == 6
    assert len({id(weight) for weight in tensors}) == len(tensors) == 6 * n_tensors
    print(f"{type(stack).__name__}: 6 layers, {n_tensors} tensors in each")

# %% [markdown]
# **Break it.** `[layer] * 6` is a list with the same layer six times. It runs, gives the right shapes, and has a sixth
# of the parameters; what the six uses should learn is added up in one gradient.

# %%
torch.manual_seed(0)
small = ModelConfig(vocab_size=23, N=6, d_model=12, d_ff=20, h=3)
right, shared = Encoder(small), Encoder(small)
shared.layers = nn.ModuleList([EncoderLayer(small)] * 6)

for name, stack in (("right", right), ("shared", shared)):
    n_parameters = sum(weight.numel() for weight in stack.parameters())
    print(f"{name:7} {len(stack.layers)} layers, {n_parameters:,} parameters")
assert sum(weight.numel() for weight in right.parameters()) == 6 * n_parameters

# %% [markdown]
# (Sharing on purpose is an idea of later models; see [After the paper](after_the_paper.ipynb).) A cousin of this
# mistake is to *copy* one layer six times. The copies are independent, but they start with equal weights. PyTorch's
# `nn.TransformerEncoder(layer, N)` does so: if you use it alone, draw the weights anew.

# %%
theirs = nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 3, 20, batch_first=True), 3,
                               enable_nested_tensor=False)
first, second = theirs.layers[0].linear1.weight, theirs.layers[1].linear1.weight
ours = Transformer(small).encoder.layers
print("PyTorch's first two layers start equal:", torch.equal(first, second))
assert first is not second and torch.equal(first, second)
assert not torch.equal(ours[0].feed_forward.W_1.weight, ours[1].feed_forward.W_1.weight)

# %% [markdown]
# **Where.**
#
# - Code: `Encoder` and `Decoder` in `annotated_transformer/model/stacks.py`.
# - Tests: `test_layers_share_nothing` in `tests/model/test_stacks.py`.
# - Exercises: {ref}`ex-st-parameters`, {ref}`ex-st-swap`.

# %% [markdown]
# ## Post-norm and pre-norm
#
# **Question.** The layer norm stands after the sum. Does it have to?
#
# **Equation.** The alternative normalises what *enters* the sub-layer, and leaves the sum alone. It is called
# **pre-norm**:
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
# In pre-norm the path from the input to the output of the stack is a plain sum, with nothing in its way. The sum is not
# normalised, so one more layer norm follows at the end of each stack. Many later models are built that way (see
# [After the paper](after_the_paper.ipynb)), and so is the later default of the authors' own code, tensor2tensor
# {cite}`vaswani2018tensor2tensor`. A popular walkthrough describes post-norm in its text and has pre-norm in its code,
# so it pays to be able to tell.
#
# **Code.** `norm="pre"` in the configuration; both lines stand in `AddNorm.forward` above.
#
# **Check.** The two lines, and the extra norm.

# %% tags=["row-S15"]
torch.manual_seed(0)
x = torch.randn(2, 5, 6, dtype=torch.float64)
pre, post = (AddNorm(6, p_drop=0.0, norm=norm).double() for norm in ("pre", "post"))
assert_close(pre(x, torch.sin), x + F.layer_norm(x, [6]).sin())
assert_close(post(x, torch.sin), F.layer_norm(x + x.sin(), [6]))

for norm, last in (("pre", nn.LayerNorm), ("post", nn.Identity)):
    built = Transformer(small.replace(norm=norm))
    assert isinstance(built.encoder.norm, last) and isinstance(built.decoder.norm, last)

# %% [markdown]
# **A test that tells them apart**, for code that you did not write. As initialised (gains 1, biases 0), the output of a
# post-norm layer has mean 0 and variance 1 at every position. A pre-norm layer's has not.

# %% tags=["row-S15"]
def looks_post_norm(layer_output):
    mean, variance = layer_output.mean(dim=-1), layer_output.var(dim=-1, correction=0)
    return bool((mean.abs() < 1e-3).all() and ((variance - 1).abs() < 1e-3).all())

x = 3 * torch.randn(2, 7, 12)
for norm in ("post", "pre"):
    layer = EncoderLayer(small.replace(norm=norm)).eval()
    print(f"{norm:5} looks post-norm: {looks_post_norm(layer(x, None))}")
    assert looks_post_norm(layer(x, None)) == (norm == "post")

# %% [markdown]
# ### What it does to gradients
#
# **Question.** Is there a difference that matters?
#
# {cite:t}`xiong2020layer` say: in the gradients at the start. With post-norm, they show, the parameters near the output
# get large gradients at initialisation, and so a large learning rate in the first steps does damage. That is what the
# **warm-up** of section 5.3, which begins with tiny rates, protects from. With pre-norm the gradients are even, and one
# can do without. {cite:t}`wang2019learning` find that deep encoders, of 20 layers and more, train with pre-norm and not
# with post-norm.
#
# **Check.** We measure it. A model of the paper's depth, the loss of a batch of a toy task (to copy ten random
# symbols), one backward pass, and for each layer of the decoder the length of the gradient of all its weights together.

# %%
from annotated_transformer import label_smoothed_cross_entropy

def copy_batch(n, length, generator):
    """(source, target_in, target_out): the target is the source, random symbols 3 to 12."""
    symbols = torch.randint(3, 13, (n, length), generator=generator)
    bos, eos = torch.full((n, 1), 1), torch.full((n, 1), 2)
    with_eos = torch.cat([symbols, eos], dim=1)
    return with_eos, torch.cat([bos, symbols], dim=1), with_eos

def gradient_norms(stack):
    """The length of the gradient of each layer's weights."""
    return [math.sqrt(sum(weight.grad.square().sum().item() for weight in layer.parameters()))
            for layer in stack.layers]

# %%
def gradients_at_start(norm, initialization, N=6):
    """Gradient norms of the decoder's layers, the mean of four random models."""
    norms = torch.zeros(N)
    source, target_in, target_out = copy_batch(32, 10, torch.Generator().manual_seed(0))
    for seed in range(4):
        torch.manual_seed(seed)
        model = Transformer(ModelConfig(vocab_size=13, N=N, d_model=64, d_ff=256, h=4, p_drop=0.0,
                                        norm=norm, initialization=initialization))
        loss, _ = label_smoothed_cross_entropy(model(source, target_in), target_out)
        (loss / target_out.numel()).backward()
        norms += torch.tensor(gradient_norms(model.decoder)) / 4
    return norms

# %% [markdown]
# `initialization="glorot"` draws all matrices by the usual rule {cite}`glorot2010understanding`; `"scaled"` is the
# package's default, and the next section's subject.

# %% tags=["row-X10", "row-S15", "nbval-rtol-0.02"]
kinds = {"post-norm, glorot": ("post", "glorot"), "pre-norm, glorot": ("pre", "glorot"),
         "post-norm, scaled": ("post", "scaled")}
at_start = {name: gradients_at_start(*kind) for name, kind in kinds.items()}
for name, norms in at_start.items():
    print(f"{name:18}", norms, f" last / first: {norms[-1] / norms[0]:.1f}")

ratio = {name: norms[-1] / norms[0] for name, norms in at_start.items()}
assert ratio["post-norm, glorot"] > 4
assert ratio["pre-norm, glorot"] < 1 and 0.7 < ratio["post-norm, scaled"] < 1.3

# %% [markdown]
# **Picture.**

# %% mystnb={"image": {"alt": "Line chart of the gradient norm of decoder layers 1 to 6 at the start. Post-norm with Glorot's values rises steeply from 0.7 at layer 1 to 4.1 at layer 6. Pre-norm with the same values falls gently from 1.4 to 1.0. Post-norm with scaled values is level at about 1.8."}, "figure": {"caption": "Gradients of the decoder's layers before the first update. Measured here; the mean of four random models.", "name": "fig-st-gradients"}}
figure, ax = plt.subplots(figsize=(5, 2.8), layout="constrained")
for (name, norms), style in zip(at_start.items(), ("o-", "s--", "^:")):
    ax.plot(range(1, 7), norms, style, label=name)
ax.set(xlabel="decoder layer", ylabel="norm of the gradient", ylim=(0, None))
ax.legend()
plt.show()

# %% [markdown]
# The first line is Xiong and others' observation: with post-norm and the usual initial values, the top layer's gradient
# is several times the bottom layer's. With pre-norm it is not. The third line shows that this is not the order of the
# operations alone: other initial values make post-norm's gradients as even as pre-norm's.
#
# ### What it does to training
#
# Gradients at the start are not yet a result. So we train: six layers, the copy task with eight symbols, a *high* rate
# of 0.004, 200 steps.
# Four ways: post-norm with Glorot's values, without warm-up and with one over 100 steps; pre-norm with the same values,
# without warm-up; and post-norm with the package's values, without warm-up.

# %%
from annotated_transformer import TrainConfig, make_adam

def copier(norm, initialization):
    torch.manual_seed(0)
    return Transformer(ModelConfig(vocab_size=13, N=6, d_model=32, d_ff=64, h=2, p_drop=0.0,
                                   norm=norm, initialization=initialization))

# %%
def train(model, warmup_steps, n_steps=200, peak_rate=0.004):
    """The loss at each step, in nats per token."""
    generator, optimizer = torch.Generator().manual_seed(0), make_adam(model, TrainConfig())
    losses = []
    for step in range(1, n_steps + 1):
        source, target_in, target_out = copy_batch(32, 8, generator)
        loss, _ = label_smoothed_cross_entropy(model(source, target_in), target_out, eps_ls=0)
        losses.append(loss.item() / target_out.numel())
        optimizer.zero_grad()
        (loss / target_out.numel()).backward()
        optimizer.param_groups[0]["lr"] = peak_rate * min(1, step / warmup_steps)
        optimizer.step()
    return torch.tensor(losses)

# %% tags=["nbval-ignore-output", "row-X10"]
runs = {"post-norm, glorot, no warm-up": train(copier("post", "glorot"), 1),
        "post-norm, glorot, warm-up": train(copier("post", "glorot"), 100),
        "pre-norm, glorot, no warm-up": train(copier("pre", "glorot"), 1),
        "post-norm, scaled, no warm-up": train(copier("post", "scaled"), 1)}
for name, losses in runs.items():
    print(f"{name:30} mean of the last 20 losses: {losses[-20:].mean():.2f} nats a token")

last = [losses[-20:].mean() for losses in runs.values()]
assert last[0] > 1.2 and last[1] > 0.8  # post-norm, glorot
assert last[2] < 0.7 and last[3] < 0.3

# %% [markdown]
# **Picture.**

# %% mystnb={"image": {"alt": "Line chart of the training loss over 200 steps, with a grey line for guessing at 2.05 nats. Post-norm with Glorot's values and no warm-up falls slowly from 2.7 to just below the grey line. The same with warm-up ends at about 1.6. Pre-norm without warm-up falls to about 0.15, post-norm with scaled values to nearly 0."}, "figure": {"caption": "Loss of four models of six layers on the copy task, smoothed over ten steps. Measured here, one run each.", "name": "fig-st-training"}}
figure, ax = plt.subplots(figsize=(5.4, 3), layout="constrained")
for (name, losses), style in zip(runs.items(), ("-", "--", "-.", ":")):
    smooth = losses.unfold(0, 10, 1).mean(dim=1)
    ax.plot(range(10, 201), smooth, style, label=name)
guessing = 8 / 9 * math.log(10)  # eight random symbols of ten, and an end mark that is no surprise
ax.axhline(guessing, color="0.6", linewidth=1)
ax.text(162, guessing - 0.05, "guessing", ha="right", va="top", color="0.4")
ax.set(xlabel="step", ylabel="nats a token", ylim=(0, 3.4))
ax.legend(fontsize=7)
plt.show()

# %% [markdown]
# Post-norm with Glorot's values and no warm-up learns hardly more than to guess. The warm-up helps it, though it is
# still far from the solution when the steps are over. Pre-norm learns the task without a warm-up. And so does post-norm
# from smaller initial values. So the place of the norm is not the whole story: what counts at the start is how much of
# each sum is the old $x$, and there is more than one way to see to that.
#
# This is one run of each on a toy task, at one rate, chosen high. The paper's own models are post-norm, and they
# trained well, with a peak rate of 0.0007 that is reached after 4,000 steps. Which order is *better in the end* this
# figure does not say: {cite:t}`liu2020understanding` report that pre-norm is the more robust and post-norm, where it
# trains, typically the better. The default of the package is the paper's post-norm.
#
# **Where.**
#
# - Code: `AddNorm` in `annotated_transformer/model/stacks.py`; `norm` in `ModelConfig`.
# - Tests: `test_pre_norm_leaves_the_sum_as_it_is`, `test_every_stack_ends_in_one_normalisation` in
#   `tests/model/test_stacks.py`.
# - Exercises: {ref}`ex-st-which`, {ref}`ex-st-depth`.

# %% [markdown]
# ## How the weights begin
#
# **Question.** Which random numbers stand in the matrices before training?
#
# The paper does not say. The usual rule is Glorot's {cite}`glorot2010understanding`: a variance with which
# neither the numbers on the way forward nor the gradients on the way back grow or shrink, as far as one variance can
# serve both.
#
# **Equation.** For a matrix with $n_{in}$ inputs and $n_{out}$ outputs, drawn uniformly from $[-a, a]$. The package
# multiplies $a$ by a factor $\beta$ for four kinds of matrices:
#
# $$
# a = \beta \sqrt{\frac{6}{n_{in} + n_{out}}}, \qquad \mathrm{Var} = \frac{a^2}{3}, \qquad
# \beta = \begin{cases} (8N)^{-1/4} & \text{for } W^V, W^O, W_1, W_2 \\ 1 & \text{for } W^Q, W^K \end{cases}
# $$ (st-glorot)
#
# Those four are the way *through* a sub-layer: what they shrink is the sub-layer's output, so that in
# $x + \mathrm{Sublayer}(x)$ the $x$ prevails at first. $W^Q$ and $W^K$ only decide where to look. The factor is the one
# that {cite:t}`wang2022deepnet` derive for models of one stack, an encoder or a decoder of $N$ layers, to keep the
# updates of deep post-norm models bounded. Their method, DeepNet, also multiplies $x$ in the sum by a constant; the
# package does not.
#
# **Code.**

# %%
show(Transformer.initialize)

# %% [markdown]
# **Check.** Largest entry and variance of each kind of matrix, against {eq}`st-glorot`. Biases are 0, gains are 1.

# %% tags=["row-S19"]
torch.manual_seed(0)
for initialization in ("scaled", "glorot"):
    config = ModelConfig(vocab_size=23, N=6, d_model=128, d_ff=512, h=4, initialization=initialization)
    model = Transformer(config)
    for name, weight in model.named_parameters():
        if weight.dim() == 2 and name != "embedding.weight":
            through = name.split(".")[-2] in ("W_V", "W_O", "W_1", "W_2")
            beta = 48**-0.25 if through and initialization == "scaled" else 1.0
            a = beta * math.sqrt(6 / sum(weight.shape))
            assert 0.99 * a < weight.abs().max() <= a
            assert_close(weight.var().item(), a**2 / 3, rtol=0.05, atol=0)
        elif weight.dim() == 1:
            assert (weight == (1.0 if name.endswith("norm.weight") else 0.0)).all()
print(f"beta for N = 6: {48**-0.25:.3f}")

# %% [markdown]
# How large is a sub-layer's output beside its input? With $\beta$ on both matrices of the way, $W_1$ and $W_2$ or
# $W^V$ and $W^O$, it is $\beta^2 = 0.14$ times what it would be:

# %% tags=["nbval-rtol-0.02"]
for initialization in ("glorot", "scaled"):
    torch.manual_seed(0)
    model = Transformer(ModelConfig(vocab_size=23, N=6, d_model=128, d_ff=512, h=4,
                                    initialization=initialization)).eval()
    layer, x = model.encoder.layers[0], F.layer_norm(torch.randn(8, 20, 128), [128])
    outputs = layer.self_attention(x, x), layer.feed_forward(x)
    shares = [(output.norm() / x.norm()).item() for output in outputs]
    print(f"{initialization:7} attention {shares[0]:.3f}  feed-forward {shares[1]:.3f} of the input's length")
    assert (max(shares) < 0.15) == (initialization == "scaled")

# %% [markdown]
# So a post-norm layer with small weights is nearly the identity (a layer norm of what is already normalised), and a
# stack of such layers passes gradients on evenly, as the figure above shows. {cite:t}`liu2020understanding` argue in
# the same direction: what makes post-norm hard to train is not vanishing gradients but that each layer leans too
# heavily on its sub-layers' outputs at the start.
#
# **Break it.** Forget to initialise. `nn.Linear` on its own draws entries with another, smaller variance and random
# biases. It runs, and training begins from somewhere else.

# %%
torch.manual_seed(0)
W = nn.Linear(512, 512)
glorot = 6 / (512 + 512) / 3
print(f"variance, Glorot: {glorot:.6f}  nn.Linear: {W.weight.var():.6f}  biases are 0: {bool((W.bias == 0).all())}")
assert_close(W.weight.var().item(), glorot / 3, rtol=0.02, atol=0)

# %% [markdown]
# **Where.**
#
# - Code: `Transformer.initialize` in `annotated_transformer/model/transformer.py`; `initialization` in `ModelConfig`.
# - Tests: `test_initial_values` in `tests/model/test_transformer.py`.
# - Exercises: {ref}`ex-st-depth`.

# %% [markdown]
# ## Where the parameters are
#
# **Question.** The paper's Table 3 gives the base model 65 million parameters. Where are they?
#
# **Equation.** With $D = d_{\mathrm{model}}$:
#
# | part | parameters | base model |
# |---|---|---|
# | embedding, shared three ways | $V D$ | $37{,}000 \cdot 512 = 18{,}944{,}000$ |
# | one attention | $h D\,(2 d_k + 2 d_v)$ | $4 \cdot 512^2 = 1{,}048{,}576$ |
# | one feed-forward network | $2 D\, d_{\mathrm{ff}} + d_{\mathrm{ff}} + D$ | $2{,}099{,}712$ |
# | one layer norm | $2 D$ | $1{,}024$ |
#
# An encoder layer has 1, 1 and 2 of the last three, a decoder layer 2, 1 and 3:
#
# $$
# V D + N \left( 3 A + 2 F + 5 L \right), \qquad A, F, L \text{ for one attention, one network, one norm}
# $$ (st-parameters)
#
# **Code.**

# %%
from annotated_transformer.tables.cost import count_parameters

show(count_parameters)

# %% [markdown]
# **Check.** The sum by hand, the closed form, and the tensors of a real model.

# %% tags=["row-H1"]
V, N, D, d_ff, h, d_k = 37_000, 6, 512, 2048, 8, 64
A, FF, LN = h * D * (2 * d_k + 2 * d_k), 2 * D * d_ff + d_ff + D, 2 * D
by_hand = V * D + N * (3 * A + 2 * FF + 5 * LN)
print(f"{by_hand:,}")
assert by_hand == 63_045_632
assert by_hand == count_parameters(ModelConfig.base(vocab_size=37_000))
assert by_hand == sum(weight.numel() for weight in base.parameters())
config = base.config
assert (config.N, config.d_model, config.d_ff, config.h) == (6, 512, 2048, 8)
assert (config.d_k, config.d_v, config.p_drop) == (64, 64, 0.1)
assert (TrainConfig().eps_ls, TrainConfig().train_steps) == (0.1, 100_000)

# %% [markdown]
# That is 63.05 million. The paper prints 65, and says "about 37000 tokens". With some 41,100 tokens it fits, and so do
# all of Table 3's rows from base to (C); the big model implies yet another vocabulary. The package solves for it:

# %% tags=["row-H2"]
from annotated_transformer.tables.variations import TABLE_3, vocabulary_interval

small_rows = [row for row in TABLE_3 if row.name != "big"]
low, high = vocabulary_interval(small_rows)
print(f"base to (C): {low:,} to {high:,} tokens")
print("big: {:,} to {:,} tokens".format(*vocabulary_interval([TABLE_3[-1]])))
assert (low, high) == (41_004, 41_208)
assert vocabulary_interval([TABLE_3[-1]]) == (35_368, 36_344)
assert round(count_parameters(ModelConfig.base(41_100)) / 1e6) == 65
big = ModelConfig.big(vocab_size=37_000)
assert (big.N, big.d_model, big.d_ff, big.h, big.d_k, big.p_drop) == (6, 1024, 4096, 16, 64, 0.3)
assert TABLE_3[-1].train_config().train_steps == 300_000
assert round(count_parameters(big) / 1e6, 2) == 214.17

# %% [markdown]
# Which vocabulary the authors counted with, the paper does not say. [Chapter 6.2](6_2_variations.ipynb) goes through
# the whole column.
#
# **Picture.** The 63 million of the base model.

# %% mystnb={"image": {"alt": "Horizontal bar chart in millions of parameters: shared embedding 18.9, encoder self-attention 6.3, encoder feed-forward 12.6, decoder self-attention 6.3, decoder cross-attention 6.3, decoder feed-forward 12.6, all layer norms 0.03."}, "figure": {"caption": "Where the base model's 63.05 million parameters are ($V = 37{,}000$).", "name": "fig-st-parameters"}}
parts = {"embedding (shared)": V * D, "encoder self-attention": N * A, "encoder feed-forward": N * FF,
         "decoder self-attention": N * A, "decoder cross-attention": N * A, "decoder feed-forward": N * FF,
         "layer norms": 5 * N * LN}
assert sum(parts.values()) == by_hand
figure, ax = plt.subplots(figsize=(5.4, 2.6), layout="constrained")
bars = ax.barh(list(parts), [n / 1e6 for n in parts.values()])
ax.bar_label(bars, fmt="%.2f", padding=3)
ax.invert_yaxis()
ax.set(xlabel="millions of parameters", xlim=(0, 22))
plt.show()

# %% [markdown]
# The largest single matrix is the embedding; of the layers, two thirds is feed-forward network for the encoder and half
# for the decoder. Positions cost nothing.
#
# **Break it.** A popular listing has separate matrices for source, target and output, and biases everywhere. For the
# same sizes and vocabulary it has 101,007,496 parameters. Count it from ours: two more matrices, one bias for each
# token, four biases in each of 18 attentions.

# %% tags=["row-L0", "row-S20"]
extra_matrices, output_bias, attention_biases = 2 * V * D, V, 18 * 4 * D
assert by_hand + extra_matrices + output_bias + attention_biases == 101_007_496
biased = count_parameters(ModelConfig.base(37_000, bias=True))
assert biased - by_hand == attention_biases == 36_864
print(f"of which the two matrices are {extra_matrices / 1e6:.1f} million")

# %% [markdown]
# ### Switches
#
# A few sizes and habits are free, and the configuration has a switch for each. $d_k$ and $d_v$ need not be
# $d_{\mathrm{model}}/h$ (Table 3, row (B)), and attention may have biases, which most later code has and the paper's
# equations have not. Both are checked against the same law as ever: steps equal one pass.

# %% tags=["row-S17", "row-S20"]
for changes in ({"d_k": 5, "d_v": 2}, {"bias": True}):
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=23, N=2, d_model=12, d_ff=20, h=3, **changes)
    model = Transformer(config).double().eval()
    attention = model.encoder.layers[0].self_attention
    print(changes, "W_Q:", tuple(attention.W_Q.weight.T.shape), "W_O:", tuple(attention.W_O.weight.T.shape),
          "bias:", attention.W_Q.bias is not None)
    with torch.no_grad():
        state = model.start(source)
        steps = [model.step(target_in[:, t : t + 1], state) for t in range(5)]
        assert_close(torch.cat(steps, dim=1), model(source, target_in))
    assert count_parameters(config) == sum(weight.numel() for weight in model.parameters())

# %% [markdown]
# **Where.**
#
# - Code: `count_parameters` in `annotated_transformer/tables/cost.py`; `vocabulary_interval` in
#   `annotated_transformer/tables/variations.py`; `ModelConfig` in `annotated_transformer/config.py`.
# - Tests: `test_the_closed_form_counts_the_model` in `tests/tables/test_cost.py`; `test_parameters_are_the_printed_number` in
#   `tests/tables/test_variations.py`.
# - Exercises: {ref}`ex-st-parameters`, {ref}`ex-st-double`.

# %% [markdown]
# ## Exercises
#
# Each has a hint and a solution, and both stay closed until you open them. Where the answer can be computed, a folded
# cell below the exercise computes it.
#
# ```{exercise} Shapes
# :label: ex-st-shapes
#
# The base model with $V = 37{,}000$ gets a batch of 3 sentences with 7 source and 5 target tokens. Give the shape of:
# the embedded source; the memory; the attention weights of one encoder self-attention, of one decoder self-attention
# and of one cross-attention, all heads together; the hidden layer of a decoder's feed-forward network; the logits.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Attention weights are (sentences, heads, queries, keys).
# ```
#
# ```{solution} ex-st-shapes
# :class: dropdown
#
# $3 \times 7 \times 512$, twice; $3 \times 8 \times 7 \times 7$, $3 \times 8 \times 5 \times 5$,
# $3 \times 8 \times 5 \times 7$; $3 \times 5 \times 2048$; $3 \times 5 \times 37{,}000$.
# ```

# %% tags=["hide-cell"]
x, y = torch.zeros(3, 7, dtype=torch.long, device="meta"), torch.zeros(3, 5, dtype=torch.long, device="meta")
assert base.embed(x).shape == base.encode(x).shape == (3, 7, 512)
assert base(x, y).shape == (3, 5, 37_000)
from annotated_transformer import record_attention

with record_attention(base) as weights:
    base(x, y)
assert weights["encoder.layers.0.self_attention"].shape == (3, 8, 7, 7)
assert weights["decoder.layers.0.self_attention"].shape == (3, 8, 5, 5)
assert weights["decoder.layers.0.cross_attention"].shape == (3, 8, 5, 7)
assert base.decoder.layers[0].feed_forward.W_1(base.embed(y)).shape == (3, 5, 2048)

# %% [markdown]
# ```{exercise} Layer norm
# :label: ex-st-layer-norm
#
# Write `layer_norm(x, gain, bias, eps=1e-5)` over the last axis, equation {eq}`st-layer-norm`. Check it with
# `check("3.1", your_function)`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `keepdim=True` keeps the axis, so that the mean can be subtracted from each row.
# ```
#
# ```{solution} ex-st-layer-norm
# :class: dropdown
#
# Below. The mean of the squares of the centred entries is the variance with division by $d$.
# ```

# %% tags=["hide-cell"]
def my_layer_norm(x, gain, bias, eps=1e-5):
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return gain * centred / (variance + eps).sqrt() + bias

check("3.1", my_layer_norm)

# %% [markdown]
# ```{exercise} Add & norm
# :label: ex-st-add-norm
#
# Write `add_norm(x, sublayer, norm)`, the paper's frame without dropout, where `sublayer` and `norm` are functions.
# Check it with `check("3.1-add-norm", your_function)`. Then give the checker pre-norm, and read what it says.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Equation {eq}`st-post-norm`, read from the inside out.
# ```
#
# ```{solution} ex-st-add-norm
# :class: dropdown
#
# One line, below.
# ```

# %% tags=["hide-cell"]
check("3.1-add-norm", lambda x, sublayer, norm: norm(x + sublayer(x)))
check("3.1-add-norm", lambda x, sublayer, norm: x + sublayer(norm(x)))

# %% [markdown]
# ```{exercise} What the norm forgets
# :label: ex-st-invariant
#
# What does the layer norm (gain 1, bias 0) give for $x + c$, with a number $c$ added to all entries? For $a x$ with
# $a > 0$? For $-x$? How many degrees of freedom of $x$ are lost? Does a post-norm stack notice if its *input* is
# multiplied by 10?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Take $\epsilon = 0$. For the last question, look at equation {eq}`st-encoder-layer`: is the sub-layer linear?
# ```
#
# ```{solution} ex-st-invariant
# :class: dropdown
#
# The same, the same, and the negative. Two degrees are lost: the mean and the length. The stack does notice: the layer
# norm acts on $x + \mathrm{Sublayer}(x)$, and the attention's scores grow with the square of the input, so the
# sub-layer's output does not grow in proportion.
# ```

# %% tags=["hide-cell"]
torch.manual_seed(0)
x = torch.randn(4, 7, 12)
normed = F.layer_norm(x, [12], eps=0)
assert_close(F.layer_norm(x + 5, [12], eps=0), normed, rtol=1e-3, atol=1e-4)
assert_close(F.layer_norm(3 * x, [12], eps=0), normed)
assert_close(F.layer_norm(-x, [12], eps=0), -normed)
layer = EncoderLayer(small).eval()
assert not torch.allclose(layer(10 * x, None), layer(x, None), atol=0.1)

# %% [markdown]
# ```{exercise} Which is it?
# :label: ex-st-which
#
# `nn.TransformerEncoderLayer` has an option `norm_first`. Without reading its documentation, find out with
# `looks_post_norm` what its default is.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# It needs `batch_first=True` and `.eval()`.
# ```
#
# ```{solution} ex-st-which
# :class: dropdown
#
# Post-norm, as in the paper.
# ```

# %% tags=["hide-cell"]
torch.manual_seed(0)
for norm_first in (None, False, True):
    option = {} if norm_first is None else {"norm_first": norm_first}
    theirs = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, **option).eval()
    assert looks_post_norm(theirs(x)) == (norm_first is not True)

# %% [markdown]
# ```{exercise} Exchange two layers
# :label: ex-st-swap
#
# Exchange the first and the second layer of a decoder. Do the shapes change? Do the logits? Now exchange, within a
# layer, the order of self-attention and cross-attention. Does the *reach* of each position change?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `decoder.layers` is a list. For the last question, think of which sub-layer carries information between positions.
# ```
#
# ```{solution} ex-st-swap
# :class: dropdown
#
# The shapes stay, the logits change: layers are alike in form and differ in weights. The reach stays the same in both
# cases: self-attention is causal and cross-attention sees the whole source, whatever their order.
# ```

# %% tags=["hide-cell"]
torch.manual_seed(0)
model = Transformer(ModelConfig(vocab_size=23, N=2, d_model=12, d_ff=20, h=3)).eval()
with torch.no_grad():
    before = model(source, target_in)
    model.decoder.layers = model.decoder.layers[::-1]
    after = model(source, target_in)
assert before.shape == after.shape and not torch.allclose(before, after, atol=0.01)

# %% tags=["hide-cell"]
class CrossFirst(DecoderLayer):
    def forward(self, x, memory, memory_mask, past=None):
        x = self.add_norm_1(x, lambda y: self.cross_attention(y, memory, memory_mask))
        x = self.add_norm_2(x, lambda y: self.self_attention(y, y, past, causal=True))
        return self.add_norm_3(x, self.feed_forward)

model = model.double()
model.decoder.layers = nn.ModuleList(CrossFirst(model.config).double() for _ in range(2))
x, y = model.embed(source[1:]).detach(), model.embed(target_in[1:]).detach()
by_source, by_target = torch.autograd.functional.jacobian(logits_of_vectors, (x, y))
assert torch.equal(by_source.abs().sum(dim=(0, 2, 3, 5)) > 0, reach_source)
assert torch.equal(by_target.abs().sum(dim=(0, 2, 3, 5)) > 0, reach_target)

# %% [markdown]
# ```{exercise} Whose memory?
# :label: ex-st-memory
#
# A text says: "the output of encoder layer 3 goes to decoder layer 3." What does the paper do, and how would you see it
# in the model?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Hook the inputs of the cross-attentions.
# ```
#
# ```{solution} ex-st-memory
# :class: dropdown
#
# All decoder layers read the output of the *last* encoder layer. In the model it is one and the same tensor, the
# memory, that every cross-attention gets.
# ```

# %% tags=["hide-cell"]
seen = []
for layer in model.decoder.layers:
    layer.cross_attention.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[1]))
with torch.no_grad():
    model(source, target_in)
    assert_close(seen[0], model.encode(source))
assert len(seen) == 2 and seen[0] is seen[1]

# %% [markdown]
# ```{exercise} One layer's parameters
# :label: ex-st-parameters
#
# How many parameters has one encoder layer of the base model, and how many one decoder layer? Which part of each is
# feed-forward network?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $A = 1{,}048{,}576$, $F = 2{,}099{,}712$, $L = 1{,}024$.
# ```
#
# ```{solution} ex-st-parameters
# :class: dropdown
#
# $A + F + 2L = 3{,}150{,}336$ and $2A + F + 3L = 4{,}199{,}936$; two thirds and one half.
# ```

# %% tags=["hide-cell"]
for layer, expected in ((base.encoder.layers[0], 3_150_336), (base.decoder.layers[0], 4_199_936)):
    n_parameters = sum(weight.numel() for weight in layer.parameters())
    assert n_parameters == expected
    print(f"{n_parameters:,}, feed-forward {FF / n_parameters:.2f}")

# %% [markdown]
# ```{exercise} Twice as wide, twice as deep
# :label: ex-st-double
#
# Which adds more parameters to the base model: doubling $N$, doubling $d_{\mathrm{ff}}$, or doubling
# $d_{\mathrm{model}}$ (with $h = 8$)? Estimate first.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Which of them enters equation {eq}`st-parameters` squared?
# ```
#
# ```{solution} ex-st-double
# :class: dropdown
#
# $d_{\mathrm{model}}$: the attentions grow fourfold, the rest twofold. In millions: 63.0 becomes 107.1 with twice
# $N$, 88.2 with twice $d_{\mathrm{ff}}$, 163.8 with twice $d_{\mathrm{model}}$.
# ```

# %% tags=["hide-cell"]
config = ModelConfig.base(37_000)
for changes, millions in (({"N": 12}, 107.1), ({"d_ff": 4096}, 88.2), ({"d_model": 1024}, 163.8)):
    assert round(count_parameters(config.replace(**changes)) / 1e6, 1) == millions

# %% [markdown]
# ```{exercise} What the cache saves
# :label: ex-st-cost
#
# Write 20 tokens, one after the other: once by calling the whole decoder again for each longer prefix, once with
# `step`. Count the operations of both with `FlopCounterMode`. (The memory is computed once in both.)
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Prefixes of 1, 2, ..., 20 tokens are 210 positions instead of 20.
# ```
#
# ```{solution} ex-st-cost
# :class: dropdown
#
# About twelve times fewer with the cache: 20 positions instead of 210, which is a factor of 10.5, and the memory's keys
# and values are not projected again for each prefix.
# ```

# %% tags=["hide-cell"]
from torch.utils.flop_counter import FlopCounterMode

sentence = torch.randint(3, 23, (1, 20), generator=torch.Generator().manual_seed(0))
with torch.no_grad():
    memory, state = model.encode(source[:1]), model.start(source[:1])
    with FlopCounterMode(display=False) as again:
        for t in range(1, 21):
            model.logits(model.decode(sentence[:, :t], memory, None))
    with FlopCounterMode(display=False) as cached:
        for t in range(20):
            model.step(sentence[:, t : t + 1], state)
print(f"{again.get_total_flops() / cached.get_total_flops():.1f} times as many operations without the cache")
assert again.get_total_flops() > 9 * cached.get_total_flops()

# %% [markdown]
# ```{exercise} Deeper
# :label: ex-st-depth
#
# Measure the gradients at the start for $N = 12$ with `gradients_at_start`. What happens to the ratio of the last
# decoder layer's gradient to the first one's, for post-norm with Glorot's values and with the scaled ones?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The scaled values know $N$.
# ```
#
# ```{solution} ex-st-depth
# :class: dropdown
#
# With Glorot's values it grows with depth; with the scaled ones it stays near 1, because $\beta$ shrinks as $N$ grows.
# ```

# %% tags=["hide-cell", "nbval-ignore-output"]
for initialization in ("glorot", "scaled"):
    norms = gradients_at_start("post", initialization, N=12)
    deeper = (norms[-1] / norms[0]).item()
    print(f"N 12, {initialization}: last / first = {deeper:.1f}")
    if initialization == "glorot":
        assert deeper > ratio["post-norm, glorot"]
    else:
        assert 0.6 < deeper < 1.5

# %% [markdown]
# ## What to remember
#
# - Every sub-layer stands in a frame, $\mathrm{LayerNorm}(x + \mathrm{Dropout}(\mathrm{Sublayer}(x)))$: post-norm. The
#   layer norm divides by $d$, not $d - 1$, and treats each position alone.
# - An encoder layer has two sub-layers, a decoder layer three; the cross-attention reads the memory, the output of the
#   *last* encoder layer, and is the only bridge between the sentences.
# - A stack is $N$ layers of one form with $N$ sets of weights.
# - One pass with teacher forcing equals step-by-step decoding (equation {eq}`st-factorisation`). Test it.
# - Post-norm with the usual initial values has uneven gradients at the start. Against them help a warm-up,
#   pre-norm, or smaller initial weights, each in its way.
# - The base model has 63.05 million parameters with a vocabulary of 37,000; Table 3's counts imply some
#   41,100.
