# %% [markdown]
# # Errata: the paper's slips, and the paper against its authors' code
#
# Small slips of the paper have been copied into lectures and code. Here are those we know in one table, with the
# chapter that has the arithmetic; none of them touches the paper's findings. Then we compare the text with the code that
# its authors published, which matters more when you want to repeat a result. Last come places where well-known code of
# others differs from the paper.

# %% tags=["remove-cell"]
import math
import textwrap

import torch
from matplotlib import pyplot as plt
from torch import nn
from torch.testing import assert_close

from annotated_transformer import (
    ModelConfig, MultiHeadAttention, TrainConfig, make_batch, noam_learning_rate, scaled_dot_product_attention)

# %% tags=["remove-cell"]
from lab.training_loop import fit, summed_loss
from lab.display import refusal, use_style
from lab.pictures import mistakes as mistakes_pictures
from annotated_transformer.model.embedding import concatenated_positional_encoding, positional_encoding
from lab.tables.table_2 import TABLE_2, training_cost
from annotated_transformer.config import count_parameters
from lab.tables.table_3 import TABLE_3, vocabulary_interval

use_style()

# %% [markdown]
# ## The paper's slips
#
# | section | printed | what is true | shown in |
# |---|---|---|---|
# | 6.1 | big has 41.0 BLEU on English-French | the abstract and Table 2 say 41.8; both are above all earlier single models | [6.1](6_1_results.ipynb) |
# | 5.4 | "three types of regularization" | two headings; dropout in two places and label smoothing make three | [5.4](5_4_regularization.ipynb) |
# | 5.1 | byte-pair encoding is reference 3, {cite:t}`britz2017massive` | reference 31 is meant, {cite:t}`sennrich2016neural`, as in section 4 | [5.1](5_1_data_and_batching.ipynb) |
# | 3.5 | wavelengths from $2\pi$ to $10000 \cdot 2\pi$ | the printed formula stops at 60,611; 62,832 is one step further | [3.5](3_5_positional_encoding.ipynb) |
# | 5.1 | a vocabulary of about 37,000 tokens | Table 3's parameter counts need 41,004 to 41,208 rows of width $d_{\mathrm{model}}$; big needs 35,368 to 36,344 | [6.2](6_2_variations.ipynb) |
# | 5.2 | 100,000 steps of 0.4 s are 12 hours | they are 11.1; Table 2 charges the 12 | [5.2](5_2_training.ipynb) |
# | Table 2 | training cost in operations | machine time × assumed rate; base computed 29 % of it | [6.1](6_1_results.ipynb) |
# | Table 1 | path $O(\log_k n)$ for convolutions | that is the case of dilated kernels; contiguous ones need $O(n/k)$, as the text says | [4](4_why_self_attention.ipynb) |
# | 6.3 | better than all "with the exception of the Recurrent Neural Network Grammar" | Table 4 has one more above 92.7: Luong et al., multi-task, 93.0 | [6.3](6_3_parsing.ipynb) |
# | all | "another research goals", "combined with fact", "corpora from with", "el al." | slips of the pen | |
#
# We recompute the numbers of this table in one cell:

# %%
rows = [row for row in TABLE_3 if row.parameters and row.name != "big"]
low, high = vocabulary_interval(rows)
big_low, big_high = vocabulary_interval([TABLE_3[-1]])
longest = {"printed": 2 * math.pi * 10000 ** (510 / 512),
           "claimed": 2 * math.pi * 10000}
hours = 100_000 * 0.4 / 3600
done = 6 * count_parameters(ModelConfig.base(37_000)) * 25_000 * 100_000
print(f"rows of width d_model: {low:,} to {high:,}; big: "
      f"{big_low:,} to {big_high:,}")
print(f"longest wavelength: printed formula {longest['printed']:,.0f}, "
      f"claimed {longest['claimed']:,.0f}")
print(f"base: {hours:.1f} h; {done:.2e} of {training_cost(12, 8):.2e} "
      f"operations, {done / training_cost(12, 8):.0%}")

# %% tags=["remove-cell"]
assert (low, high, big_low, big_high) == (41_004, 41_208, 35_368, 36_344) and not low <= 37_000 <= high
assert round(longest["printed"]) == 60_611 and round(longest["claimed"]) == 62_832
assert round(hours, 1) == 11.1 and f"{done / 3.3e18:.0%}" == "29%"
assert f"{training_cost(12, 8):.1e}" == "3.3e+18" != f"{training_cost(hours, 8):.1e}"
big, before = TABLE_2[-1], TABLE_2[:8]
assert big.bleu_en_fr == 41.8 and max(row.bleu_en_fr for row in TABLE_2[:5] if row.bleu_en_fr) < 41.0
assert big.bleu_en_de - max(row.bleu_en_de for row in before if row.bleu_en_de) > 2.0
assert all(big.cost_en_fr < row.cost_en_fr / 4 for row in before if row.cost_en_fr)

# %% tags=["hide-input"] mystnb={"image": {"alt": "A number line of rows of width d_model from 34,000 to 43,000. A short bar from 35,368 to 36,344 is labelled big; a very short one at 41,004 to 41,208 the ten other rows; a dashed line at 37,000, the paper's vocabulary, meets neither."}, "figure": {"caption": "Rows of width $d_{\\mathrm{model}}$ that fit the printed parameter counts. The stated 37,000 tokens fit none; 37,000 + 4,096 positions would fit the ten.", "name": "fig-errata-rows"}}
mistakes_pictures.errata_rows(big_high, big_low, high, low)

# %% [markdown]
# ## The paper against its authors' code
#
# The code that the authors published, tensor2tensor {cite}`vaswani2018tensor2tensor`, grew after the paper. The settings
# that it calls `transformer_base` are their third version, so we get another model than the paper's if we run it. (It was
# archived, read-only, in July 2023.) The table gives the paper, the version closest to it (`transformer_base_v1`), the
# last default, and the switch in our package. The settings are in `models/transformer.py` and `layers/common_hparams.py`.
#
# | matter | paper | version 1 | last default | here |
# |---|---|---|---|---|
# | layer norm | after the sum | after the sum | before the sub-layer, and once at the end | `norm="pre"` |
# | dropout of attention weights, inside the feed-forward network | none in 5.4 | 0, 0 | 0.1, 0.1 | `attention_dropout`, `ffn_dropout` |
# | Adam's $\beta_2$ | 0.98 | 0.98 | 0.997 | `beta2` |
# | warm-up, factor of the rate | 4,000 steps, 1 | 4,000, 1 | 8,000, 2 | `warmup_steps`, `lr_factor` |
# | label smoothing | "$\epsilon_{ls} = 0.1$" | right token 0.9, the others share 0.1 | the same | `eps_ls` = 0.1 V / (V - 1) |
# | positions | interleaved, $2i/d_{\mathrm{model}}$ | sines, then cosines, to 10000 · 2π | the same | `positions="concatenated"` |
# | initial values | not stated | Glorot's, but for the embeddings | the same | `initialization="glorot"` |
# | longest output | input + 50 | input + 100 | the same | `max_extra` |
# | target-space embedding | not mentioned | a vector for the task, added to the encoder's input | the same | none |
# | BLEU | "BLEU" | of tokenized text with compounds split, `utils/get_ende_bleu.sh` | the same | [6.1](6_1_results.ipynb) |
# | parsing | 4 layers | | 6 layers, attention and residual dropout 0.2, 16,000 warm-up steps, no sharing of embedding and softmax | `N` |
# | Table 3 | variations of base | | `k128` is $d_k$ = 16 in 8 heads | `d_k` |

# %%
V = 37_000
paper = ModelConfig.base(V, initialization="glorot"), TrainConfig()
version_1 = (ModelConfig.base(V, positions="concatenated",
                              initialization="glorot"),
             TrainConfig(eps_ls=0.1 * V / (V - 1)))
rates = dict(attention_dropout=0.1, ffn_dropout=0.1)
today = (version_1[0].replace(norm="pre", **rates),
         version_1[1].replace(beta2=0.997, warmup_steps=8000, lr_factor=2.0))
for name, (model, train) in {"version 1": version_1,
                             "last default": today}.items():
    old = {**paper[0].to_dict(), **paper[1].to_dict()}
    new = {**model.to_dict(), **train.to_dict()}
    changed = [f"{key} = {new[key]}" for key in new if new[key] != old[key]]
    print(textwrap.fill(f"{name}: " + ", ".join(changed), 94))

# %% [markdown]
# In the *rate*, twice the factor and twice the warm-up make the peak $\sqrt{2}$ times as high and 4,000 steps later; the
# tail is twice the paper's.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two curves of the learning rate over 20,000 steps. The paper's peaks at step 4,000; the one of the last default rises 0.7 times as steeply, peaks at step 8,000 about 1.4 times higher and stays twice as high after."}, "figure": {"caption": "The rate of equation 3 for base, and of the last default.", "name": "fig-errata-rate"}}
paper_rate, today_rate = mistakes_pictures.errata_rate()

# %% tags=["remove-cell"]
assert_close(noam_learning_rate(8000, 512, 8000, 2.0) / noam_learning_rate(4000, 512, 4000), math.sqrt(2))
assert_close(today_rate[-1] / paper_rate[-1], 2.0)
assert count_parameters(today[0]) - count_parameters(paper[0]) == 2 * 2 * 512  # the two final norms

# %% [markdown]
# The two *label smoothings* are the same up to $\epsilon$. The code gives the right token $1 - \epsilon$ and each of
# the others $\epsilon / (V - 1)$. The formula of {cite:t}`szegedy2016rethinking`, which the paper cites, spreads
# $\epsilon$ over all $V$ tokens. The first is the second with a slightly larger $\epsilon' = \epsilon V / (V - 1)$:
#
# $$
# \frac{\epsilon'}{V} = \frac{\epsilon}{V - 1}, \qquad
# 1 - \epsilon' + \frac{\epsilon'}{V} = 1 - \epsilon
# $$ (errata-smoothing)

# %% tags=["hide-cell"]
def smoothed(eps, size, right=0):
    q = torch.full((size,), eps / size, dtype=torch.float64)
    q[right] += 1 - eps
    return q

def smoothed_by_the_code(eps, size):
    q = torch.full((size,), eps / (size - 1), dtype=torch.float64)
    q[0] = 1 - eps
    return q

for size in (5, 37_000):
    assert_close(smoothed(0.1 * size / (size - 1), size), smoothed_by_the_code(0.1, size))
assert f"{smoothed(0.1, 37_000)[0]:.7f}" == "0.9000027"

# %% tags=["hide-input"] mystnb={"image": {"alt": "Bars of the target distribution over a vocabulary of five tokens with epsilon 0.3. By the formula the right token has 0.76 and each other 0.06; by the code 0.70 and 0.075."}, "figure": {"caption": "Both targets for five tokens and $\\epsilon = 0.3$. With 37,000 tokens and $\\epsilon = 0.1$ the right token gets 0.9000027 and 0.9.", "name": "fig-errata-smoothing"}}
mistakes_pictures.errata_smoothing(smoothed, smoothed_by_the_code)

# %% [markdown]
# *Positions*: sines first and cosines after are the same table with its columns in another order, and every weight that
# meets these columns is learned and can absorb the permutation. "I think this does not matter", wrote one of the
# authors when [somebody asked](https://github.com/tensorflow/tensor2tensor/issues/391). The exponent is a true
# difference. Its effect grows with the position and is largest near the 25th pair of columns:

# %% mystnb={"image": {"alt": "Heat map with a colour bar of the absolute difference between the paper's and the code's table, for 100 positions and 256 sines. It is near 0 at the first positions and at the last columns, and largest, about 0.14, at late positions in the columns 10 to 60."}, "figure": {"caption": "How far the code's sines are from the paper's, with the columns in the same order.", "name": "fig-errata-positions"}}
printed = positional_encoding(100, 512)
code = concatenated_positional_encoding(100, 512)
reordered = torch.cat([printed[:, 0::2], printed[:, 1::2]], dim=1)
gap = (reordered - code).abs()
figure, ax = plt.subplots(figsize=(5.5, 2.6), layout="constrained")
image = ax.imshow(gap[::2, :256:2], aspect="auto", vmin=0,
                  extent=(0, 256, 100, 0))
figure.colorbar(image, ax=ax, label="difference")
ax.set(xlabel="pair of columns", ylabel="position")
plt.show()
print(f"{gap.max():.3f} at most among 100 positions, "
      f"{gap.mean():.4f} on average")

# %% tags=["remove-cell"]
assert 0.1 < gap.max() < 2 and gap.mean() < 0.1
rates = [10000 ** (-i / 256) for i in range(256)], [10000 ** (-i / 255) for i in range(256)]
assert round(2 * math.pi / rates[1][-1]) == 62_832 and round(2 * math.pi / rates[0][-1]) == 60_611

# %% [markdown]
# ## Where well-known code differs from the paper
#
# Most readers learn the Transformer from somebody's code. These differences are in code that has been copied a lot. We
# name the version that we read, or the thread in which its readers found the mistake; later versions may have mended it.
#
# | source | what it does | the paper, or what goes wrong | shown in |
# |---|---|---|---|
# | [The Annotated Transformer](https://github.com/harvardnlp/annotated-transformer/blob/0a91a254735c07532e23733dce8a693e504f3a08/the_annotated_transformer.py) {cite}`rush2018annotated`, commit 0a91a25 | says "followed by layer normalization", normalizes *before* the sub-layer and once more at the end | post-norm (a comment there says so too) | [3.1](3_1_stacks.ipynb) |
# | the same, `LayerNorm` | divides by `x.std() + eps` | the standard deviation without Bessel's correction, $\epsilon$ under the root | [3.1](3_1_stacks.ipynb) |
# | the same, `attention`, `PositionwiseFeedForward` | dropout of the weights and inside the network | neither is in section 5.4 | [5.4](5_4_regularization.ipynb) |
# | the same, `MultiHeadedAttention` | four projections with biases | equation and figure have none | [3.2](3_2_attention.ipynb) |
# | the same, "Shared Embeddings" | two lines under `if False`, with names that the model lacks | one matrix in three places | [3.4](3_4_embeddings_and_softmax.ipynb) |
# | the same, `LabelSmoothing` | $\epsilon$ over $V - 2$ tokens | {ref}`errata-v-minus-2` | [5.4](5_4_regularization.ipynb) |
# | the same, `average` | calls `params()`, which a module lacks | the last 5 or 20 checkpoints | [6.1](6_1_translation.ipynb) |
# | the same, `run_epoch` | steps at `i % accum_iter == 0`, a new rate per batch | the first step has one batch; the schedule runs too fast | [5.2](5_2_training.ipynb) |
# | [jadore801120, #19](https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/19), 2017 | a one-layer model reached 98 % accuracy and translated nonsense | the decoder saw its target | [mistakes](common_mistakes.ipynb) |
# | [jadore801120, #32](https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/32); [Kyubyong, #38](https://github.com/Kyubyong/transformer/issues/38); [SamLynnEvans, #7](https://github.com/SamLynnEvans/Transformer/issues/7) | exponent $2c/d$ for *every* column $c$ | the columns $c = 2i$ and $2i + 1$ share $2i/d$ | below |
# | [TensorFlow's tutorial, #1122](https://github.com/tensorflow/text/issues/1122) | sines first, then cosines | as the authors' code: harmless | above |
#
# How much do the small ones matter? We compute three of them. The sample's standard deviation changes an output by one part
# in a thousand. The exponent changes the most: its wavelengths grow twice
# as fast, so that three quarters of the columns have one above 600 tokens, against half in the paper.

# %%
x = torch.randn(1000, 512, dtype=torch.float64)
bessel = (x.std(dim=1) / x.std(dim=1, correction=0)).mean()
column = torch.arange(512)
angle = torch.arange(100)[:, None] / 10000 ** (2 * column / 512)  # one for each
wrong = torch.where(torch.arange(512) % 2 == 0, angle.sin(), angle.cos())
print(f"Bessel's correction, d_model 512: a factor of {bessel:.4f}")
print("exponent 2i/d for every column: "
      f"the tables differ by {(wrong - printed).abs().mean():.2f} on average")
print(f"does a module have params()? {hasattr(nn.Module, 'params')}")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Wavelengths of the 512 columns on a logarithmic axis. The paper's rise in a straight line from 6 to about 60,000. With the exponent 2c/d for every column they rise twice as steeply, to about 600 million; a dotted line marks 600 tokens."}, "figure": {"caption": "Wavelength of each column: the paper's, and with the exponent $2c/d$ for every column $c$. The dotted line is at 600 tokens.", "name": "fig-errata-exponent"}}
column = torch.arange(512)
mistakes_pictures.errata_exponent(column)

# %% tags=["remove-cell"]
paper_share = (2 * math.pi * 10000.0 ** (column // 2 * 2 / 512) > 600).float().mean().item()
wrong_share = (2 * math.pi * 10000.0 ** (2 * column / 512) > 600).float().mean().item()
assert abs(paper_share - 0.5) < 0.01 and abs(wrong_share - 0.75) < 0.01
assert_close(bessel.item(), math.sqrt(512 / 511), atol=1e-9, rtol=0)
assert (wrong - printed).abs().mean() > 0.1 and not hasattr(nn.Module, "params")

# %% [markdown]
# PyTorch's own layers hold one trap, because `nn.TransformerDecoder` masks nothing by itself. We change the last
# position only: without a mask the first one moves, with it stays where it was.

# %%
torch.manual_seed(0)
B, L, D, h = 2, 7, 32, 4
decoder_layer = nn.TransformerDecoderLayer(D, h, 2 * D, batch_first=True)
decoder = nn.TransformerDecoder(decoder_layer, 2).eval()
memory, y = torch.randn(B, 5, D), torch.randn(B, L, D)
changed = torch.cat([y[:, :-1], y[:, -1:] + 1], dim=1)
moved = {}
causal = nn.Transformer.generate_square_subsequent_mask(L)
for name, mask in (("no mask", None), ("causal mask", causal)):
    one, other = (decoder(inputs, memory, tgt_mask=mask)
                  for inputs in (y, changed))
    moved[name] = (one - other)[:, 0].abs().max().item()
    print(f"{name:12} position 0 moves by {moved[name]:.3f}")

# %% [markdown]
# With that mask, and with what the layers lack (embeddings, positions, a padding mask, the shared matrix), PyTorch's own
# `nn.Transformer` is the paper's model but for its biases. The loop of [chapter 5.2](5_2_training.ipynb) trains it as it is:

# %%
class FromPyTorch(nn.Module):
    def __init__(self, V, D, h, N):
        super().__init__()
        self.E = nn.Embedding(V, D)
        self.layers = nn.Transformer(D, h, N, N, 4 * D, 0.0, batch_first=True)
    def forward(self, source, target):
        x, y = (self.E(ids) * self.E.embedding_dim**0.5
                + positional_encoding(ids.size(1), self.E.embedding_dim)
                for ids in (source, target))
        future = nn.Transformer.generate_square_subsequent_mask(target.size(1))
        padding = source == 0
        return self.layers(x, y, tgt_mask=future, src_key_padding_mask=padding,
                           memory_key_padding_mask=padding) @ self.E.weight.T
theirs = FromPyTorch(V=20, D=32, h=4, N=2)
print(f"{sum(p.numel() for p in theirs.parameters()):,} parameters")

# %% tags=["row-L4", "nbval-ignore-output"]
torch.manual_seed(0)
batch = make_batch([([5, 6, 7, 8], [9, 10, 11]),
                    ([12, 13], [14, 15, 16, 17, 18])])
theirs = FromPyTorch(V=20, D=32, h=4, N=2)
nn.init.normal_(theirs.E.weight, std=32**-0.5)
losses = fit(theirs, [batch] * 60, 60, lambda step: 0.003 * min(1, step / 20),
             summed_loss)
print("one batch, 60 steps: "
      f"{losses[0]:.2f} -> {losses[-1]:.2f} nats per token")
one = theirs(batch.source, batch.target_in)
other = theirs(batch.source, batch.target_in.roll(-1, 1))
assert losses[-1] < 1.2 < losses[0] and one.shape == (2, 6, 20)

# %% [markdown]
# The folded cells run more mistakes from published listings: a return before the heads are joined, heads that are never
# joined, an attention that ignores its memory, modules made where they should be called, names that were never defined,
# and a "decoder layer" that is given another layer and only passes on. The first, the third and the last run without an
# error, and only a test of shapes, of dependence or of the number of weights finds them.

# %% tags=["row-L4", "hide-cell"]
class EarlyReturn(MultiHeadAttention):
    def forward(self, x, memory, mask=None, causal=False):
        return self.split_heads(self.W_Q(x))

shapes = {}
for kind in (MultiHeadAttention, EarlyReturn):
    shapes[kind.__name__] = tuple(kind(D, h)(y, y).shape)
    print(f"{kind.__name__:20} returns {shapes[kind.__name__]}")
assert shapes == {"MultiHeadAttention": (B, L, D), "EarlyReturn": (B, h, L, D // h)}

# %% tags=["row-L4", "hide-cell"]
assert moved["no mask"] > 0.01 > moved["causal mask"]
together = nn.Linear(D, 3 * D)(torch.randn(B, L, D)).view(B, L, h, -1).transpose(1, 2)
heads = scaled_dot_product_attention(*together.chunk(3, dim=-1))
last = nn.Linear(D, D)
print("not joined:", refusal(RuntimeError, lambda: last(heads)))
assert last(heads.transpose(1, 2).flatten(-2)).shape == (B, L, D)

# %% tags=["row-L4", "hide-cell"]
class DeafAttention(MultiHeadAttention):
    def forward(self, x, memory, mask=None, causal=False):
        return super().forward(x, x, mask, causal)

torch.manual_seed(0)
x, one, other = torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 8)
for kind in (MultiHeadAttention, DeafAttention):
    attention = kind(d_model=8, h=2)
    hears = not torch.allclose(attention(x, one), attention(x, other))
    print(f"{kind.__name__:20} hears the memory: {hears}")
    assert hears == (kind is MultiHeadAttention)

# %% tags=["row-L4", "remove-cell"]
class PassesOn(nn.Module):  # as one listing's TransformerDecoderLayer(layer)
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, y, memory):
        return self.layer(y, memory)

layer = nn.TransformerDecoderLayer(D, h, dropout=0.0, batch_first=True)
stack = nn.ModuleList(PassesOn(layer) for _ in range(6))
assert torch.equal(stack[0](y, memory), layer(y, memory))  # adds nothing
assert len(list(stack.parameters())) == len(list(layer.parameters()))  # six of them are one

# %% tags=["row-L4", "hide-cell"]
for mistake, kind, call in (
        ("Linear(x)", TypeError, lambda: nn.Linear(x)), ("Dropout(a Dropout)", TypeError, lambda: nn.Dropout(nn.Dropout(0.1))),
        ("MultiheadAttention(query=x, ...)", TypeError, lambda: nn.MultiheadAttention(query=x, key=x, value=x)),
        ("TransformerDecoderLayer(a layer)", TypeError, lambda: nn.TransformerDecoderLayer(decoder_layer, h)),
        ("a method that is not there", AttributeError, lambda: nn.Module().ff_block(x)),
        ("self outside a class", NameError, lambda: self.W_Q(x)),
        ("a width that is not set", NameError, lambda: nn.Linear(width_of_the_model, 1))):
    print(f"{mistake:34}{kind.__name__}: {refusal(kind, call)}"[:100])

# %% tags=["row-L4", "hide-cell"]
class ModuleOverNumber(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.dropout = dropout
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x.softmax(dim=-1)  # and the dropout is never called

silent, x = ModuleOverNumber().train(), torch.randn(4, 9)
assert isinstance(silent.dropout, nn.Dropout) and torch.equal(silent(x), silent.eval()(x))
print("a child module over a number       no error; what is never called never drops")

# %% [markdown]
# :::{dropdown} Where this is
# `TABLE_2` and `training_cost` in `book/lab/tables/table_2.py`, `TABLE_3` and `vocabulary_interval` in
# `book/lab/tables/table_3.py`; the switches are fields of `ModelConfig` and `TrainConfig`.
# :::
#
# ## Exercises

# %% [markdown] tags=["exercise"]
# ```{exercise} Which row fixes the vocabulary?
# :label: errata-row
#
# Each printed number of parameters is rounded to a million, so each row of Table 3 allows an interval of vocabularies.
# Which rows give the narrowest intervals, and why?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
# We ask how many parameters one more token adds.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} errata-row
# :class: dropdown
# A token adds $d_{\mathrm{model}}$ parameters, so a million is $10^6 / d_{\mathrm{model}}$ tokens: 1,953 with 512, and
# 977 with 1024. The widest model fixes the vocabulary best.
# ```

# %% tags=["hide-cell", "solution"]
widths = {row.name: vocabulary_interval([row]) for row in rows}
sizes = {name: high - low + 1 for name, (low, high) in widths.items()}
assert min(sizes, key=sizes.get) == "d_model=1024" and sizes["d_model=1024"] in (976, 977)
assert sizes["base"] in (1953, 1954)

# %% [markdown] tags=["exercise"]
# ```{exercise} The other smoothing
# :label: errata-v-minus-2
#
# The Annotated Transformer's smoothing also leaves out the padding token: the right token gets $1 - \epsilon$, the
# padding 0, and the $V - 2$ others share $\epsilon$. Is it our smoothing with another $\epsilon$ as well?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
# Look at what our target gives to the padding token.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} errata-v-minus-2
# :class: dropdown
# It is another function: with any $\epsilon' > 0$ every token, the padding included, gets $\epsilon'/V$. The difference is
# one token in $V$, too small to measure.
# ```

# %% tags=["hide-cell", "solution"]
assert all(smoothed(eps, 10)[3] > 0 for eps in (1e-6, 0.1, 0.5))

# %% [markdown] tags=["exercise"]
# ```{exercise} A constant for the task
# :label: errata-space
#
# The authors' code adds one learned vector $c$ to every token of the encoder's input, to say which task is meant. With
# a single task $c$ is a constant. Can the shared embedding absorb it?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
# Adding $c$ to every row of $E \sqrt{d_{\mathrm{model}}}$ does the same to the encoder's input. What else does it
# change?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} errata-space
# :class: dropdown
# Nearly: adding $c / \sqrt{d_{\mathrm{model}}}$ to all rows of $E$ moves the encoder's input as wanted. It also adds the
# same number to every logit of a position, which the softmax ignores, and it moves the decoder's input by $c$, for which
# the decoder's weights can learn to make up.
# ```

# %% tags=["hide-cell", "solution"]
torch.manual_seed(0)
E, c, x = torch.randn(11, 6), torch.randn(6), torch.randn(3, 6)
assert_close((x @ (E + c).T).softmax(-1), (x @ E.T).softmax(-1))
assert f"{noam_learning_rate(8000, 1024, 8000, 2.0):.3e}" == f"{noam_learning_rate(4000, 512, 4000):.3e}"

# %% [markdown]
# ## What to remember
#
# - The paper's slips are small: a score, a citation, a wavelength, a vocabulary, an hour.
# - "The authors' code" is several models. Its last default is pre-norm, with more dropout, another $\beta_2$ and another
#   rate. When a result does not repeat, we ask first which version it came from.
# - A number belongs to the way it was counted: BLEU to its tokens, parameters to their vocabulary, cost to its rate.
