# %% [markdown]
# # 6.2 Model variations: Table 3
#
# *Section 6.2 of the paper {cite}`vaswani2017attention`: twenty versions of the model, each with something changed, and
# what the change did to perplexity and BLEU.*
#
# Why eight heads? Why 2,048? The paper answers by experiment: take the base model, change one thing, train again, and
# measure. **Table 3** is the result. In this chapter we read it line by line, recompute its column of parameters, and
# ask how far its differences can be trusted. Then we train ten of its rows in miniature, for two epochs and for ten, and
# find out what so small an experiment can tell.
#
# When you have read it you can
#
# - turn each row of Table 3 into a configuration, and count its parameters;
# - say what each of the groups A to E asks, and what came out;
# - tell a difference from noise, correct for making many comparisons at once, and ask whether the runs were long enough.

# %% tags=["hide-cell"]
import math

import torch

from annotated_transformer import ModelConfig, MultiHeadAttention, Transformer
from lab.display import Table, show, use_style
from lab.pictures import variations as variations_pictures
from annotated_transformer.config import count_parameters
from lab.tables.table_3 import TABLE_3, VOCAB_SIZE, VOCAB_SIZE_BIG, changes, vocabulary_interval

use_style()
rows = {row.name: row for row in TABLE_3}

# %% [markdown]
# (section-variations-table)=
# ## Twenty models
#
# The first row is the **base** model. Each lettered row changes what is named and leaves the rest as in base. In the
# last row, the **big** model, several things change at once. All were trained on English-German and measured on
# newstest2013, the development set, with a beam and without averaging checkpoints. (Table 2 uses newstest2014, with
# averaging, so we compare rows only within one table.)
#
# **PPL** is perplexity per word piece, $e$ to the mean loss per token: lower is better. **BLEU**: higher is better.
# A blank in the paper's column of parameters, which are in millions, means "as in base". The last column has the parameters
# as we count them ourselves. What a row sets is what we would give to the package to train it.

# %%
Table(("", "row sets", "PPL", "BLEU", "10⁶ parameters", "counted"),
      [(row.id, changes(row).replace(" ", ", ") or row.name, f"{row.ppl:.2f}",
        f"{row.bleu:.1f}", row.parameters or "", f"{row.count():,}")
       for row in TABLE_3])

# %% [markdown]
# The folded cells check that every lettered row differs from base exactly in what it names.

# %% tags=["row-T3", "row-H1", "row-H2", "hide-cell"]
assert len(TABLE_3) == 20 and sum(row.parameters is not None for row in TABLE_3) == 11
assert [row.letter for row in TABLE_3] == ["", *"AAAABBCCCCCCCDDDDE", ""]
base, big = rows["base"].model_config(), rows["big"].model_config(VOCAB_SIZE_BIG)
assert base == ModelConfig.base(VOCAB_SIZE) and big == ModelConfig.big(VOCAB_SIZE_BIG)
def sizes(config):
    return [getattr(config, name) for name in ("N", "d_model", "d_ff", "h", "d_k", "d_v", "p_drop")]

assert sizes(base) == [6, 512, 2048, 8, 64, 64, 0.1] and sizes(big) == [6, 1024, 4096, 16, 64, 64, 0.3]
schedules = [row.train_config() for row in (rows["base"], rows["big"])]
assert [(s.train_steps, s.eps_ls) for s in schedules] == [(100_000, 0.1), (300_000, 0.1)]

# %% tags=["row-T3", "hide-cell"]
for row in TABLE_3[1:-1]:
    settings = row.model_config().to_dict().items()
    changed = {name for name, value in settings if value != base.to_dict()[name]}
    assert changed == set(row.model) and (changed or row.train)

# %% [markdown]
# (section-variations-parameters)=
# ## Which vocabulary do the parameters imply?
#
# Base has 65 million parameters, says the table. Let us find them. We write $D$ for $d_{\mathrm{model}}$ and $V$ for the
# rows of the embedding matrix, which serves three places at once. The projections of attention are without bias, the
# feed-forward network has two biases, and a layer norm has a gain and a bias:
#
# $$
# \begin{aligned}
# a &= 2\,h\,D\,(d_k + d_v), \qquad f = 2\,D\,d_{ff} + d_{ff} + D, \qquad \ell = 2D \\
# \text{parameters} &= V D + N \big[\, \underbrace{(a + f + 2\ell)}_{\text{encoder layer}}
#                    + \underbrace{(2a + f + 3\ell)}_{\text{decoder layer}} \,\big]
# \end{aligned}
# $$ (var-parameters)

# %%
show(count_parameters)

# %% [markdown]
# We work it out by hand for base with the vocabulary that section 5.1 states, about 37,000 tokens, and compare with the
# weights of the model itself, built on the device `meta`, where tensors have shapes and take no memory.

# %% tags=["row-H1"]
V, D, d_ff, h, d_k, N = 37_000, 512, 2048, 8, 64, 6
a, f, norm = 2 * h * D * (d_k + d_k), 2 * D * d_ff + d_ff + D, 2 * D
by_hand = V * D + N * ((a + f + 2 * norm) + (2 * a + f + 3 * norm))
with torch.device("meta"):
    model = Transformer(ModelConfig.base(V))
assert by_hand == sum(p.numel() for p in model.parameters())
assert by_hand == count_parameters(ModelConfig.base(V))
print(f"base with {V:,} rows: {by_hand:,} parameters")
print(f"  embedding {V * D:,}, attention {3 * N * a:,}, "
      f"feed-forward {2 * N * f:,}, norms {5 * N * norm:,}")

# %% mystnb={"image": {"alt": "Eleven horizontal stacked bars, one for each row with a printed number of parameters. Each is split into embedding, attention, and feed-forward with norms, in millions, and a black diamond marks the printed number. The diamonds lie a little beyond the end of every bar but that of big. In base the feed-forward networks are the longest part, 25 million."}, "figure": {"caption": "Where the parameters are, with 37,000 rows in the embedding. Diamonds: the printed numbers.", "name": "fig-var-parameters"}} tags=["hide-input"]
printed = [row for row in TABLE_3 if row.parameters]
variations_pictures.var_parameters(printed)

# %% [markdown]
# That is 63 million, and the table has **65**. The gap is 3 percent, far more than rounding, and all eleven rows show
# one:

# %%
assert all(round(row.count(37_000) / 1e6) != row.parameters for row in printed)
Table(("row", "counted with 37,000 rows, 10⁶", "in the paper"),
      [(row.name, f"{row.count(37_000) / 1e6:.2f}", row.parameters)
       for row in printed])

# %% [markdown]
# Is our formula wrong? If we had forgotten a matrix inside the layers, the gap would grow with the number of layers. But
# the rows with $N = 2$, 4, 6 and 8 all lack about two million. The gap grows with $d_{\mathrm{model}}$: 1.2 million at
# 256, 1.95 at 512, 4.2 at 1,024. So what is missing are **rows of width $d_{\mathrm{model}}$**, outside the layers. (Big
# is off in the other direction; we look at it separately.)
#
# Let us turn the question around: how many rows give the printed numbers? Parameters are linear in $V$, and a printed $p$
# means anything from $p - \frac12$ to $p + \frac12$ million. So each line of the table allows an interval of $V$, and a
# single number of rows must lie in all of them.

# %%
low, high = vocabulary_interval(printed[:-1])
low_big, high_big = vocabulary_interval(printed[-1:])
print(f"the ten lines from base to C: {low:,} to {high:,} rows of "
      "width d_model")
print(f"big:                          {low_big:,} to {high_big:,} rows")

# %% tags=["row-T3", "hide-cell"]
for vocab_size in (low, VOCAB_SIZE, high):
    assert all(round(row.count(vocab_size) / 1e6) == row.parameters for row in printed[:-1])
for vocab_size in (low - 1, high + 1):
    assert not all(round(row.count(vocab_size) / 1e6) == row.parameters for row in printed[:-1])
assert low > 37_000 and high_big < 37_000 and high - low < 250 and low < 37_000 + 4_096 < high

# %% mystnb={"image": {"alt": "Eleven horizontal bars over the number of rows of width d_model from 33,000 to 44,000. The bars of the ten lines base to C have different widths and all contain a narrow stripe near 41,100. They all lie to the right of the dashed line at the stated 37,000. The bar of big lies to the left of that line, between 35,400 and 36,300."}, "figure": {"caption": "The numbers of rows that each printed number of parameters allows. Stripe: what all lines from base to C have in common. Dashed: the vocabulary stated in section 5.1.", "name": "fig-var-vocabulary"}} tags=["hide-input"]
variations_pictures.var_vocabulary(high, low, printed, vocabulary_interval)

# %% [markdown]
# Ten intervals share a narrow stretch of some 200 rows, which ten roundings would hardly do by chance. So the models from
# base to C were counted with about **41,100 rows of width $d_{\mathrm{model}}$**, and big with about 36,000. What those
# rows hold, the numbers leave open. The vocabulary itself may have been larger than stated; or 37,000 tokens stood beside
# a table of 4,096 positions, which makes 41,096. The paper says neither.
#
# Could another way of counting rescue the 37,000? We try biases in the projections of attention, and an output matrix of its
# own in place of the shared one.

# %%
with_bias = count_parameters(ModelConfig.base(37_000, bias=True)) / 1e6
untied = (count_parameters(ModelConfig.base(37_000)) + 37_000 * 512) / 1e6
print(f"in the paper 65; biases in attention: {with_bias:.2f}; "
      f"an output matrix of its own: {untied:.2f}")
assert with_bias < 63.2 and untied > 81

# %% [markdown]
# The biases add far too little, and a second matrix far too much.
#
# (section-variations-groups)=
# ## What the groups ask
#
# Let us look at the paper's results before we go through the groups: the BLEU of each row as a difference to base.

# %% mystnb={"image": {"alt": "Nineteen horizontal bars: the BLEU of each row of Table 3 minus that of base, grouped by letter. Gains: big +0.6, d_ff=4096 +0.4, d_model=1024 +0.2; h=16 is 0. All others lose: least learned positions and eps_ls=0.2 with 0.1; most N=2 with 2.1, d_model=256 with 1.3, p_drop=0.0 with 1.2 and h=1 with 0.9."}, "figure": {"caption": "BLEU of each row of Table 3 minus that of base (25.8). One colour for each group. Numbers of the paper.", "name": "fig-var-bleu"}} tags=["hide-input"]
variations_pictures.var_bleu(TABLE_3, rows)

# %% [markdown]
# ### A: how many heads?
#
# $h$ varies while $d_k = d_v = d_{\mathrm{model}} / h$, so that parameters and operations stay the same. One head is
# 0.9 BLEU worse than the best setting; 32 heads, each 16 wide, are worse than 8 as well.

# %% tags=["row-T3"]
heads = {row.model.get("h", 8): row for row in TABLE_3
         if row.letter == "A" or row.name == "base"}
for h, row in sorted(heads.items()):
    config = row.model_config()
    assert (config.h * config.d_k == config.d_model
            and row.count() == rows["base"].count())
    print(f"h {h:2}  d_k {config.d_k:3}  in the paper: "
          f"PPL {row.ppl:.2f}  BLEU {row.bleu:.1f}")

# %% [markdown]
# ### B: how wide must queries and keys be?
#
# Here $d_k$ shrinks alone, to 32 and to 16, with eight heads and $d_v = 64$ as before. A layer must therefore accept a
# $d_k$ other than $d_{\mathrm{model}} / h$, and ours does:

# %%
with torch.device("meta"):
    layer = MultiHeadAttention(d_model=512, h=8, d_k=16, d_v=64)
    y = layer(torch.empty(1, 7, 512), torch.empty(1, 9, 512))
print({name: tuple(p.shape) for name, p in layer.named_parameters()}, "->",
      tuple(y.shape))
for name in ("d_k=16", "d_k=32", "base"):
    print(f"{name:7} in the paper: "
          f"PPL {rows[name].ppl:.2f}  BLEU {rows[name].bleu:.1f}")

# %% tags=["row-S17", "row-T3", "remove-cell"]
assert layer.W_Q.out_features == layer.W_K.out_features == 8 * 16 and layer.W_V.out_features == 8 * 64
assert rows["d_k=16"].bleu < rows["d_k=32"].bleu < rows["base"].bleu
assert round(max(row.bleu for row in heads.values()) - heads[1].bleu, 1) == 0.9

# %% [markdown]
# Narrower keys hurt. The paper takes it as a sign that compatibility is hard to determine, and that something more
# sophisticated than a dot product "may be beneficial". Compare with A: at $h = 32$, $d_k$ is 16 as well, and the result
# is 25.4, better than the 25.1 of `d_k=16`. Those two models differ in size too, 65 million against 58, so we must be
# careful when we call the width of the keys the cause.
#
# ### C: bigger is better
#
# The third group varies layers, width and feed-forward width. In each of the three series, perplexity falls with every
# step up. (Each entry: the paper's parameters, PPL, BLEU.)

# %% tags=["row-T3"]
series = {"N": [2, 4, None, 8], "d_model": [256, None, 1024],
          "d_ff": [1024, None, 4096]}
for name, values in series.items():
    steps = [rows["base" if value is None else f"{name}={value}"]
             for value in values]
    assert all(one.ppl > other.ppl for one, other in zip(steps, steps[1:]))
    texts = [f"{one.parameters}M {one.ppl:.2f} / {one.bleu:.1f}"
             for one in steps]
    print(f"{name:8}" + " -> ".join(texts))

# %% [markdown]
# In BLEU there is an exception: eight layers have the lower perplexity, 4.88 against 4.92, and the *lower* BLEU, 25.5
# against 25.8. Either depth beyond six brings little, or 0.3 BLEU is within the noise.
#
# ### D: dropout and label smoothing
#
# Without dropout BLEU falls by 1.2: "dropout is very helpful in avoiding over-fitting". Without label smoothing
# perplexity is *better*, 4.67, and BLEU is worse, 25.3. A smoothed model is *taught* to keep some probability for wrong
# tokens, so it is less sure than perplexity would like. This makes perplexity a poor judge between rows that differ in
# $\epsilon_{ls}$. Leave these two rows out, and the two columns rank the models nearly alike ({ref}`ex-var-rank`).

# %% mystnb={"image": {"alt": "Scatter chart of the twenty rows of Table 3: perplexity across from 4.2 to 6.2, BLEU up from 23.5 to 26.5. Eighteen dots fall along a line from upper left, big, to lower right, N=2. Two orange dots leave it: eps_ls=0.0 lies below the line and eps_ls=0.2 above it."}, "figure": {"caption": "Perplexity and BLEU of the twenty rows, numbers of the paper. The two rows that change label smoothing leave the common line.", "name": "fig-var-columns"}} tags=["hide-input"]
variations_pictures.var_columns(TABLE_3)

# %% tags=["row-T3", "hide-cell"]
assert round(rows["base"].bleu - rows["p_drop=0.0"].bleu, 1) == 1.2
unsmoothed, base_row, twice = (rows[name] for name in ("eps_ls=0.0", "base", "eps_ls=0.2"))
assert unsmoothed.ppl < base_row.ppl < twice.ppl and unsmoothed.bleu < twice.bleu < base_row.bleu
print([(row.ppl, row.bleu) for row in (unsmoothed, base_row, twice)])

# %% [markdown]
# ### E: learned positions
#
# A trained vector for each position in place of sines and cosines gives 4.92 and 25.7, "nearly identical". The paper
# keeps the sinusoids, because they "may allow" longer sentences than those of training;
# [the chapter on positions](3_5_positional_encoding.ipynb) tries that. Two models are missing from Table 3: one without
# any positions, and one without the division by $\sqrt{d_k}$. A summary that cites Table 3 for either is mistaken.

# %% tags=["row-T3", "hide-cell"]
settings = {name for row in TABLE_3 for name in {**row.model, **row.train}}
print("varied in Table 3:", *sorted(settings))
assert rows["learned positions"].ppl == rows["base"].ppl and rows["learned positions"].bleu == 25.7
assert not any(row.model.get("positions") == "none" for row in TABLE_3)

# %% [markdown]
# Each row is, as far as the paper says, *one* training run, measured on the 3,000 sentences of newstest2013, and printed
# without error bars. Another random seed would have given another model, and other sentences another score. How much
# does that matter? We can measure it at a small size.
#
# (section-variations-miniature)=
# ## Table 3 in miniature
#
# We scale a row down by **one rule**: every width ($d_{\mathrm{model}}$, $d_{ff}$, $d_k$, $d_v$) is divided by 4 and
# every number of layers by 2; heads, dropout and smoothing stay as they are. So our base has $d_{\mathrm{model}} = 128$
# and three layers, and its eight heads are 16 numbers wide. 100,000 steps become 2,000, each with some 500 tokens per
# side in place of 25,000. Big takes as many as the others, where the paper gives it three times as many: our big is only
# larger. We train with **six seeds** on the captions of Multi30k {cite}`elliott2016multi30k` and score on their
# development split, as the paper does on its own, with beam 4 and $\alpha = 0.6$.
#
# Which rows? For each kind of change we take the one whose perplexity moves most in the paper, and sixteen heads, where the
# paper finds no loss; of the two rows on smoothing, the one without it. The measure is **perplexity**. Rows and measure
# were named before any run began.
#
# Warm-up takes the first 400 steps, the vocabulary is 2,000, the initial values are Glorot's, and the rate of equation 3
# has a factor of 0.3. The factor was chosen on base alone, which favours base.
#
# Captions are much alike, so a model of this size learns to translate them in four minutes. We chose the corpus, too, on base
# alone, with a seed that the table does not use. The table is scored on the captions that these choices were made on.

# %% tags=["row-T3", "hide-cell"]
from lab.experiments.table_3.miniature import TEN, VARIATIONS

full, (scaled, training) = ModelConfig.base(2000), VARIATIONS["base"].configs(seed=1)
print(f"base:    {sizes(full)}\nscaled:  {sizes(scaled)}")
assert [4 * n for n in sizes(scaled)[1:3]] == sizes(full)[1:3] and 2 * scaled.N == full.N
assert scaled.h == full.h and scaled.d_k == full.d_k // 4 and training.train_steps == 2000
assert VARIATIONS["big"].configs(seed=1)[1].train_steps == 2000
for key, one in series.items():  # of each series of group C, the row whose perplexity is farthest from base's
    farthest = max((rows[f"{key}={v}"] for v in one if v), key=lambda row: abs(row.ppl - rows["base"].ppl))
    assert farthest.id in TEN

# %% [markdown]
# The runs take hours, so the chapter reads their result file. The first command makes it; the second runs single rows:
#
# ```
# python -m lab.experiments.table_3
# python -m lab.experiments.table_3 --rows base A1 --seeds 6
# ```
#
# What every finished run was scored with is kept, so that either table is computed again in a minute.

# %%
from lab.experiments.claims import corrected, load_results

results = load_results("results")
table_3 = results["table_3"]
two_epochs = {"table_3": table_3}
measured = {row["id"]: row for row in table_3["summary"]}
changed = sum("with changes" in record["commit"]
              for record in table_3["records"])
print(f"{len(table_3['records'])} runs, {changed} of them from a checkout "
      "with uncommitted changes")
of_base = [record["bleu"] for record in table_3["records"]
           if record["row"] == "base"]
print(f"base: perplexity {measured['base']['ppl']['mean']:.1f}, "
      f"BLEU {measured['base']['bleu']['mean']:.1f} "
      f"({min(of_base):.1f} to {max(of_base):.1f} by seed)")

# %% [markdown]
# ### Is attention at work in these models?
#
# Before we read a row we must know what the miniature can show at all, so we take parts out of base's trained weights:
# we set the output of one kind of attention to zero in every layer, or add no positions. We fixed the thresholds
# beforehand: perplexity must rise by 15 % without the encoder's self-attention, by 10 % without positions, and by 50 %
# without the cross-attention, with intervals above 0.
#
# A first size, 64 wide, failed: perplexity rose by 7% without the encoder's self-attention.

# %%
parts = {"without-encoder": "without the encoder's self-attention",
         "without-decoder": "without the decoder's self-attention",
         "without-cross": "without the cross-attention",
         "without-positions": "positions switched off"}

def percent(difference):
    """Mean and ends of a difference of logarithms, in percent of perplexity."""
    return [100 * math.expm1(difference[key])
            for key in ("mean", "low", "high")]

for control, label in parts.items():
    mean, low, high = percent(measured[control]["log_ppl_difference"])
    print(f"{label:38}{mean:+7.1f} % ({low:+.1f} to {high:+.1f})")

# %% mystnb={"image": {"alt": "Intervals on a line of percent, with strokes for what was asked. Without the encoder's self-attention 28, from 22 to 34, asked 15. Without the decoder's 79. Without the cross-attention 103, from 81 to 127, asked 50. Positions switched off 68, from 54 to 83, asked 10. The last line, trained without positions, lies at minus 8, from minus 11 to minus 5."}, "figure": {"caption": "What base loses: perplexity in percent more than whole, mean of six seeds with 95 % intervals. The first four are parts taken out of trained models, the last is a model trained without positions. Strokes: what we asked for beforehand.", "name": "fig-var-controls"}} tags=["hide-input"]
asked = {"without-encoder": 15, "without-cross": 50, "without-positions": 10}
variations_pictures.var_controls(asked, measured, parts, percent)

# %% [markdown]
# All three controls pass. They show that base's weights *use* these
# parts. They do not show that a model which learns without a part would miss it: the last line of the figure is such a
# model, and so early in training it is even a little better than base.
#
# (section-variations-noise)=
# ### How sure is a difference?
#
# The result could have been different with other sentences, or with another seed. For the sentences we use the paired
# **bootstrap** of [chapter 6.1](6_1_translation.ipynb), seed by seed, on the logarithm of the ratio of two perplexities,
# because the noise of a seed is roughly a percentage.
#
# Resampling a few seeds never leaves their range. So their noise comes from the standard deviation of the differences and from
# **Student's t**, which is 2.6 for six numbers and 4.3 for three, instead of the normal distribution's 1.96. A seed gives
# every row the same batches in the same order, so we compare with base seed by seed.
#
# A standard deviation of three numbers is itself uncertain. A row whose seeds happen to agree would look too sure, and one
# value for all rows would be wrong for the noisier ones. A **moderated variance** {cite}`smyth2004linear` averages the row's
# own variance $s^2$, with its $d$ degrees of freedom, and the variance $s_0^2$ that the rows share, which counts for $d_0$:
#
# $$
# \tilde s^2 = \frac{d_0\, s_0^2 + d\, s^2}{d_0 + d}
# $$ (var-moderated)
#
# Student's t then has $d_0 + d$ degrees of freedom. Both $s_0$ and $d_0$ come from all rows: the more their variances
# differ, the smaller is $d_0$.

# %%
for name, label, d in (("table_3", "two epochs", 5),
                       ("table_3_to_the_end", "ten epochs", 2)):
    prior = results[name]["priors"]["trained"]["ppl"]
    print(f"{label}: s0 = {100 * prior['variance'] ** 0.5:.1f}%, "
          f"d0 = {prior['degrees']:.1f}, and {d} from a row's own seeds")

# %% [markdown]
# ```{admonition} How to read our intervals
# :class: note
# :name: how-to-read-our-intervals
#
# Each interval belongs to the difference next to it: in 95 of 100 such experiments, with other sentences and other seeds, it
# would contain the true difference. It is paired, since both models translate the same sentences and seed 1 is compared with
# seed 1, and its noise is that of sentences and seeds together. Intervals are not corrected for the number of comparisons;
# the word *counts* is. Where two intervals overlap, the models may still differ.
# ```
#
# One more correction is needed. At a level of 5 %, one comparison in twenty comes out even where there is no difference, and
# we make dozens. So we compute a **p-value** for each, the probability of a difference at least as large if the true one
# were 0. **Holm's correction** then multiplies the smallest of $m$ p-values by $m$, the next by $m - 1$, and so on. Here
# $m$ is 24: the perplexity of every row that we trained, and the few other comparisons that
# [the page of claims](claims.ipynb) reads. A difference *counts* when the corrected p is below 0.05 and all six seeds
# point the same way. All rows share base's six runs, so an unlucky base moves every row at once.
#
# (section-variations-two-epochs)=
# ### After two epochs
#
# Each line compares a row's perplexity with base's: the paper's, then ours with its interval. The last column says whether the
# difference counts, or which difference the test would have found in four of five such experiments.

# %%
from lab.experiments.comparisons import compare, could_have_seen, counts
p_of = corrected(two_epochs)
def seen(one):  # in percent: the difference that four of five tests would find
    return one.scaled(could_have_seen(one, p_of))
compared = {one.row: one for one in compare(two_epochs, TEN, "ppl")}
lines = []
for row in (row for row in TABLE_3 if row.id in TEN):
    one = compared[row.id]
    mean, low, high = map(one.scaled, one.found[:3])
    paper = 100 * (row.ppl / rows["base"].ppl - 1)
    missed = f"would have found {seen(one):.0f} %"
    lines.append((row.id, row.name, f"{paper:+.1f} %", f"{mean:+.1f} %",
                  f"{low:+.1f} to {high:+.1f}",
                  "counts" if counts(one, p_of) else missed))
Table(("", "row", "paper", "here", "95 %", "corrected"), lines)

# %% [markdown]
# Nine of the ten differences count, and they fall into two groups.
#
# - **Narrow is worse, as in the paper**: keys of 4 numbers, a model of width 64, a feed-forward network of 256. Sixteen
#   heads have keys of 8, and cost 14 %, where the paper finds no loss with its keys of 32.
# - **What learns sooner wins, against the paper**: one layer beats three, no dropout beats 0.1, learned positions beat
#   sinusoids, a single head beats eight, and big loses. In 2,000 batches each caption is seen fewer than twice, where the
#   paper's base saw its pairs some 19 times ({ref}`an exercise <data-ex-epochs>`). Nothing is learned by heart so soon,
#   so dropout has little to prevent, and a deep or wide model is still on its way.

# %% tags=["row-X5", "hide-cell"]
assert all(measured[row]["n_seeds"] == 6 for row in ("base", *TEN)) and len(table_3["records"]) >= 66
said = {"A1": -8, "A3": 14, "B1": 23, "C1": -18, "C4": 37, "C6": 12, "D1": -29, "D3": -4, "E1": -15, "big": 62}
assert {row: round(one.scaled(one.found.mean)) for row, one in compared.items()} == said
untold = {row: round(seen(one)) for row, one in compared.items() if not counts(one, p_of)}
assert len(p_of) == 24 and untold == {"D3": 7}
assert all(seed < 0 for seed in compared["D3"].found.seeds)

# %% [markdown]
# (section-variations-to-the-end)=
# ### After ten epochs
#
# Which of these differences last? We train the same rows, and five that change a part which Table 3 never removes, for
# 12,500 steps, ten epochs, with three seeds. The number of steps was to come from base alone: as many as it takes until its
# perplexity falls by less than 1% in the last fifth of a run. That never happened: after 16 epochs it still falls by 7%. So
# ten epochs are what our budget allows, and a rule on length says which comparisons are finished.
#
# **The rule** follows the difference $d$ between the two validation curves. Let $\Delta$ be its change over the last fifth of
# the run. If $\Delta$ points towards zero and is at least half as large as the final $d$, the comparison is *not tested at this
# length*; if it points away and is as large, the difference is *still growing*. ({ref}`section-claims-rules` says which rule
# this replaced, and when.)

# %%
from lab.experiments.comparisons import change, is_growing, is_shrinking
from lab.experiments.table_3.miniature import END

to_the_end = results["table_3_to_the_end"]
at_the_end = {row["id"]: row for row in to_the_end["summary"]}
late = {one.row: one for one in compare(
    {"table_3_to_the_end": to_the_end}, END, "ppl")}
early = {one.row: one for one in compare(two_epochs, END, "ppl")}
longest = to_the_end["records"][0]
print(f"{len(to_the_end['records'])} runs of {longest['epochs']:.0f} epochs; "
      f"base: perplexity {at_the_end['base']['ppl']['mean']:.1f}, "
      f"BLEU {at_the_end['base']['bleu']['mean']:.1f}")

# %% [markdown]
# We do not know what these runs cost: many were stopped and resumed, and only the time of the last part is stored.

# %%
for control, label in parts.items():
    mean, low, high = percent(at_the_end[control]["log_ppl_difference"])
    print(f"{label:38}{mean:+7.1f} % ({low:+.1f} to {high:+.1f})")

# %% tags=["remove-cell"]
for rows_of in (measured, at_the_end):
    found = {control: percent(rows_of[control]["log_ppl_difference"]) for control in asked}
    assert all(found[control][0] >= least and found[control][1] > 0 for control, least in asked.items())

# %%
def percents(one):  # mean and 95 % interval
    mean, low, high = map(one.scaled, one.found[:3])
    return f"{mean:+.0f} % ({low:+.0f} to {high:+.0f})"

lines = []
for name, one in late.items():
    ends = [100 * math.expm1(nats) for nats in one.drift[1:]]
    moved = "{:+.1f} to {:+.1f}".format(*ends)
    state = "growing" if is_growing(one) else ""
    became = change(early[name].found, one.found)
    paper = at_the_end[name].get("paper", {"name": ""})["name"]
    lines.append((name, paper, percents(early[name]),
                  percents(one), became, moved, state))
Table(("", "row", "two epochs, 6 seeds", "ten epochs, 3 seeds", "became",
       "last fifth, %", ""), lines)

# %% [markdown]
# What a difference *became* is read from its two intervals. It *turns* if they lie on two sides of 0, and is on the *same
# side* if they overlap on one. It *grows* or *shrinks* if they lie apart on one side, *fades* if they lie apart and only the
# earlier one excludes 0, and otherwise it is *unclear*. `unscaled-A1` is compared with A1, all others with base.

# %% mystnb={"image": {"alt": "Ten points with intervals: the difference to base in the paper across, here upwards; a thin line leads to each from a small grey point, its value after two epochs. C1 and D1, 24 and 17 in the paper, rise from minus 18 and minus 29 to 17 and 13. C4 is at 46, B1 at 16, C6 at 10, A3 at 8; A1, E1 and D3 lie between minus 5 and 0, hollow. Big, minus 12 in the paper, is at 70."}, "figure": {"caption": "Perplexity against base's, in percent: the paper's across, ours upwards. Each line leads from two epochs (small, grey) to ten, with the 95% interval there before the correction and a black dot for each seed; filled where the difference counts after the correction. Dashed: equal.", "name": "fig-var-miniature"}} tags=["hide-input"]
p_late = corrected(results)
variations_pictures.var_miniature(TABLE_3, TEN, early, late, counts, p_late, rows)

# %% mystnb={"image": {"alt": "Two panels of curves over 12,500 steps, each a row's perplexity in percent more than base's. Left: one layer, no dropout, no positions and pre-norm begin 10 to 30 percent below zero; no positions crosses it at 3,500 steps, one layer at 4,500, no dropout at 9,500, and pre-norm comes near it from below. Right: one head and learned positions come near zero from below; half the width stays at about 45, and big climbs from 25 to 70."}, "figure": {"caption": "Perplexity against base's after the same number of steps, in percent, from the validation curves (means over each row's seeds). Dotted: 2,000 steps.", "name": "fig-var-over-time"}} tags=["hide-input"]
variations_pictures.var_over_time(at_the_end)

# %% [markdown]
# Time decides most of what contradicted the paper.
#
# - **Three turn**: one layer, 18 % ahead of three after two epochs, is 17 % behind after ten (the paper: 24 %). Without
#   dropout the model goes from 29 % ahead to 13 % behind (17 %), and without positions from 8 % ahead to 19 % behind.
# - **Three leads melt**: pre-norm's from 30% to 5%, that of learned positions from 15% to 2%, a single head's from 8% to 4%.
#   Pre-norm's remaining lead counts. Those of learned positions and of the single head do not, and the former is still
#   shrinking fast.
# - **Narrow stays worse**: keys of 4 numbers by 16 %, a width of 64 by 46 %, a feed-forward network of 256 by 10 %. So do
#   the model without the scale, by 47 %, and the one without warm-up, by 82 %.
# - **Big stays behind**, by 70 %. It learns at a rate that was chosen for base, with three times base's dropout, and for as
#   many steps. With three times as many, as in the paper, it was 51% better than base in the earlier runs below.
#
# The paper's models were trained for about twice as many epochs, on 155 times as many pairs.

# %% tags=["hide-cell"]
became = {name: change(early[name].found, one.found) for name, one in late.items()}
assert [name for name, one in became.items() if one == "turns"] == ["C1", "D1", "no-positions"]
now = {"C1": 17, "D1": 13, "no-positions": 19, "pre-norm": -5, "E1": -2, "A1": -4, "big": 70}
assert {name: round(late[name].scaled(late[name].found.mean)) for name in now} == now
assert [name for name, one in late.items() if is_growing(one)] == ["D1"] and not any(map(is_shrinking, late.values()))
assert 0.45 < late["E1"].movement < 0.5 and counts(late["pre-norm"], corrected(results))
assert not any(counts(late[name], corrected(results)) for name in ("A1", "E1"))
worse = ("B1", "C4", "C6", "unscaled", "unscaled-A1", "no-warm-up", "big")
assert all(some[name].found.low > 0 for some in (early, late) for name in worse)

# %% [markdown]
# ### Earlier runs: all rows, two corpora
#
# An earlier edition trained all twenty rows at another scale, on the everyday sentences and on the captions: every
# width divided by 8, other initial values, 1,000 steps of 1,000 tokens with 200 of warm-up. We list those runs, since
# nine rows have no others. Big took three times as many steps there, as in the paper. Without the encoder's
# self-attention the perplexity of that base rises by 1.6 %, so they say little about attention. The intervals are
# without a correction, and the claims do not read them.

# %%
corpora = {"everyday": "table_3_1000", "captions": "table_3_multi30k_1000"}
early = {name: {row["id"]: row for row in results[file]["summary"]}
         for name, file in corpora.items()}
lines = []
for row in TABLE_3[1:]:
    line = [row.id, row.name,
            f"{100 * (row.ppl / rows['base'].ppl - 1):+.1f} %"]
    for name in corpora:
        of_base = early[name]["base"]["ppl"]["mean"]
        difference = early[name][row.id]["ppl_difference"]
        mean, low_end, high_end = (100 * difference[key] / of_base
                                   for key in ("mean", "low", "high"))
        line.append(f"{mean:+.1f} % ({low_end:+.1f} to {high_end:+.1f})")
    lines.append(line)
Table(("", "row", "paper", "everyday sentences", "captions"), lines)

# %% [markdown]
# ```{dropdown} Where this is
# Code: `TABLE_3` and `vocabulary_interval` in `book/lab/tables/table_3.py`, `count_parameters` beside
# them, `estimate`, `p_value` and `holm` in `book/lab/experiments/significance.py`, the miniature in
# `book/lab/experiments/table_3`; `annotated-transformer variations` prints the listings. Tests:
# `tests/lab/tables/test_table_3.py`, `tests/lab/tables/test_table_1.py`, `tests/lab/experiments/test_significance.py`,
# `tests/lab/experiments/test_miniature.py`.
# ```

# %% [markdown]
# ## Exercises

# %% [markdown] tags=["exercise"]
# ```{exercise} One head
# :label: ex-var-shape
#
# For the row `h=1` of group A: what are the shapes of $W_1^Q$ and $W^O$, and how many attention weights does a
# layer compute for a sentence of 30 tokens? The same for `h=32`.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# $h\,d_k$ stays 512. The weights are $h\,n^2$.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-var-shape
# :class: dropdown
#
# $h = 1$: $512 \times 512$ and $512 \times 512$; 900 weights. $h = 32$: $512 \times 16$ and again
# $512 \times 512$; 28,800 weights.
# ```

# %% tags=["hide-cell", "solution"]
for name, shape, n_weights in (("h=1", (512, 512), 900), ("h=32", (512, 16), 28_800)):
    config = rows[name].model_config()
    assert (config.d_model, config.d_k) == shape and config.h * config.d_v == 512
    assert config.h * 30**2 == n_weights

# %% [markdown] tags=["exercise"]
# ```{exercise} Do the two columns agree?
# :label: ex-var-rank
#
# For how many pairs of rows does the better perplexity go with the worse BLEU? Which rows are in most of these pairs?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# `itertools.combinations`. Skip ties.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-var-rank
# :class: dropdown
#
# In 26 of the 190 pairs. The two rows that change $\epsilon_{ls}$ are in 20 of them; among the other 18 rows only 6
# pairs of 153 remain.
# ```

# %% tags=["hide-cell", "solution"]
from itertools import combinations

def discordant(some):
    return [(a, b) for a, b in combinations(some, 2) if (a.ppl - b.ppl) * (a.bleu - b.bleu) > 0]

all_pairs = discordant(TABLE_3)
smoothing = [row for row in TABLE_3 if "eps_ls" in row.train]
rest = discordant([row for row in TABLE_3 if row not in smoothing])
print(f"{len(all_pairs)} of {math.comb(20, 2)} pairs disagree; without the rows on smoothing "
      f"{len(rest)} of {math.comb(18, 2)}")
assert len(rest) < len(all_pairs) / 2

# %% [markdown]
# ## What to remember
#
# - Table 3 changes one thing (or a few that belong together) in the base model: heads (A), key width (B), size (C),
#   regularization (D), positions (E) ({ref}`section-variations-table`).
# - Its parameters follow from equation {eq}`var-parameters` to the last digit printed, with about 41,100 rows of width
#   $d_{\mathrm{model}}$ (big: 36,000) in place of the stated 37,000 tokens.
# - In the paper, one head and narrow keys hurt; bigger is better; dropout helps; smoothing hurts perplexity and helps
#   BLEU; learned positions do as well as sinusoids. Each rests on one run.
# - Name the measure beforehand, give an interval with sentences and seeds in it, and correct for all comparisons.
# - Ask what a model can show before you read its results: take parts out, and see whether it misses them.
# - Ask whether it has learned long enough: after two epochs our miniature prefers one layer and no dropout, after ten
#   neither ({ref}`section-variations-to-the-end`).
