# %% [markdown]
# # 6.2 Model variations: Table 3
#
# *Section 6.2 of the paper {cite}`vaswani2017attention`: twenty versions of the model, each with something changed, and
# what the change did to perplexity and BLEU.*
#
# Why eight heads? Why 2,048? The paper answers by experiment: take the base model, change one thing, train again, and
# measure. **Table 3** is the result. This chapter reads it line by line, recomputes its column of parameters (which
# tells a secret about the vocabulary), and asks how far its differences can be trusted. Then it looks at all twenty rows
# in miniature, trained with three seeds each, with error bars.
#
# When you have read it you can
#
# - turn each row of Table 3 into a configuration, and count its parameters;
# - say what each of the groups A to E asks, and what came out;
# - tell a difference from noise, and say what one run for each row can show.

# %%
import math
from statistics import correlation

import matplotlib.pyplot as plt
import torch

# %%
from annotated_transformer import ModelConfig, MultiHeadAttention, Transformer
from annotated_transformer.looking.visualization import PALETTE, show, use_style
from annotated_transformer.tables.cost import count_parameters
from annotated_transformer.tables.variations import (
    TABLE_3, VOCAB_SIZE, VOCAB_SIZE_BIG, table, vocabulary_interval)

use_style()
rows = {row.name: row for row in TABLE_3}

# %% [markdown]
# (section-variations-table)=
# ## The table
#
# **Question.** Which twenty models did the paper train?
#
# The first row is the **base** model. Each lettered row changes what is named and leaves the rest as in base. The last
# row is the **big** model, in which several things change at once. All were trained on English-German and measured on
# newstest2013, the development set, with a beam but *without* averaging checkpoints. (Table 2 is newstest2014, with
# averaging: the two tables do not compare.)
#
# **PPL** is perplexity per word piece, $e$ to the mean loss of a token: lower is better. **BLEU**: higher is better.
# In the listing, `parameters` left of the bar are counted by us; what stands between the bars is printed in the paper,
# parameters in millions. A blank there means "as in base".

# %%
print(table())

# %% [markdown]
# The column on the right is what you would give to the package to train that row: each row is a configuration.
#
# **Check.** Twenty rows; eleven with a printed number of parameters; base and big are the package's presets; every
# lettered row differs from base in what it names and in nothing else.

# %% tags=["row-T3", "row-H1", "row-H2"]
assert len(TABLE_3) == 20 and sum(row.parameters is not None for row in TABLE_3) == 11
assert [row.letter for row in TABLE_3] == ["", *"AAAABBCCCCCCCDDDDE", ""]
base, big = rows["base"].model_config(), rows["big"].model_config(VOCAB_SIZE_BIG)
assert base == ModelConfig.base(VOCAB_SIZE) and big == ModelConfig.big(VOCAB_SIZE_BIG)
def sizes(config):
    return [getattr(config, name) for name in ("N", "d_model", "d_ff", "h", "d_k", "d_v", "p_drop")]

assert sizes(base) == [6, 512, 2048, 8, 64, 64, 0.1]
assert sizes(big) == [6, 1024, 4096, 16, 64, 64, 0.3]
schedules = [row.train_config() for row in (rows["base"], rows["big"])]
assert [(s.train_steps, s.eps_ls) for s in schedules] == [(100_000, 0.1), (300_000, 0.1)]

# %% tags=["row-T3"]
for row in TABLE_3[1:-1]:
    settings = row.model_config().to_dict().items()
    changed = {name for name, value in settings if value != base.to_dict()[name]}
    assert changed == set(row.model) and (changed or row.train)

# %% [markdown]
# **Where.**
#
# - Code: `TABLE_3` in `annotated_transformer/tables/variations.py`; `annotated-transformer variations` prints the listing.
# - Tests: `test_there_are_twenty_rows_and_eleven_with_parameters`, `test_the_presets_are_the_rows_base_and_big` in
#   `tests/tables/test_variations.py`.
# - Exercises: {ref}`ex-var-shape`, {ref}`ex-var-nats`.

# %% [markdown]
# (section-variations-parameters)=
# ## The parameters, and a secret
#
# **Question.** Base has 65 million parameters, says the table. Where are they?
#
# **Equation.** Write $D$ for $d_{\mathrm{model}}$, $V$ for the vocabulary. One embedding matrix serves three places;
# the projections of attention have no bias, the feed-forward network has two, a layer norm has a gain and a bias:
#
# $$
# \begin{aligned}
# a &= 2\,h\,D\,(d_k + d_v), \qquad f = 2\,D\,d_{ff} + d_{ff} + D, \qquad \ell = 2D \\
# \text{parameters} &= V D + N \big[\, \underbrace{(a + f + 2\ell)}_{\text{encoder layer}}
#                    + \underbrace{(2a + f + 3\ell)}_{\text{decoder layer}} \,\big]
# \end{aligned}
# $$ (var-parameters)
#
# **Code.**

# %%
show(count_parameters)

# %% [markdown]
# **Check.** By hand for base with the vocabulary that the paper states, about 37,000 tokens (section 5.1); and against
# the weights of the model itself, built on the device `meta`, where tensors have shapes and take no memory.

# %% tags=["row-H1"]
V, D, d_ff, h, d_k, N = 37_000, 512, 2048, 8, 64, 6
a, f, norm = 2 * h * D * (d_k + d_k), 2 * D * d_ff + d_ff + D, 2 * D
by_hand = V * D + N * ((a + f + 2 * norm) + (2 * a + f + 3 * norm))
with torch.device("meta"):
    model = Transformer(ModelConfig.base(V))
assert by_hand == count_parameters(ModelConfig.base(V)) == sum(p.numel() for p in model.parameters())
print(f"base with {V:,} tokens: {by_hand:,} parameters")
print(f"  embedding {V * D:,}, attention {3 * N * a:,}, "
      f"feed-forward {2 * N * f:,}, norms {5 * N * norm:,}")

# %% [markdown]
# That is 63 million, and the table has **65**. Two million are missing: a difference of 3 percent, far more than
# rounding. And it is not only base:

# %%
print("parameters in millions      counted, 37,000 tokens    in the paper")
for row in TABLE_3:
    if row.parameters:
        print(f"{row.name:28}{row.count(37_000) / 1e6:14.2f}{row.parameters:20}")
        assert round(row.count(37_000) / 1e6) != row.parameters

# %% [markdown]
# Not one of the eleven comes out. Is our formula wrong? Suppose we had forgotten some matrix inside the layers. Then
# the gap would grow with the number of layers. It does not: the rows with $N = 2$, 4, 6 and 8 layers all lack about two
# million, as nearly as numbers printed to a million can tell. It grows with $d_{\mathrm{model}}$: 1.2 million at
# 256, 1.95 at 512, 4.2 at 1,024. (Only big is off the other way, and is looked at by itself below.) What has
# $d_{\mathrm{model}}$ parameters for each of *something*, and does not depend on the layers? The **vocabulary**.
#
# **The question turned round.** Which vocabulary gives the printed numbers? Parameters are linear in $V$, and a printed
# $p$ means anything from $p - \frac12$ to $p + \frac12$ million. So each row allows an interval of $V$, and a single
# vocabulary must lie in all of them.

# %% tags=["row-T3"]
printed = [row for row in TABLE_3 if row.parameters]
low, high = vocabulary_interval(printed[:-1])
low_big, high_big = vocabulary_interval(printed[-1:])
print(f"the ten rows from base to C: {low:,} to {high:,} tokens")
print(f"big:                         {low_big:,} to {high_big:,} tokens")
for vocab_size in (low, VOCAB_SIZE, high):
    assert all(round(row.count(vocab_size) / 1e6) == row.parameters for row in printed[:-1])
for vocab_size in (low - 1, high + 1):
    assert not all(round(row.count(vocab_size) / 1e6) == row.parameters for row in printed[:-1])
assert low > 37_000 and high_big < 37_000 and high - low < 250

# %% [markdown]
# Ten intervals have a stretch in common, and a narrow one, some 200 tokens. Ten roundings would hardly agree like that
# by chance. So the formula is right, and the models of rows base to C were counted with a vocabulary of
# about **41,100** tokens. For big it was another, of about 36,000. Why, the paper does not say. What we know is what
# the numbers imply.
#
# **Picture.** Each bar is the range of vocabularies that gives the printed number of that row.

# %% mystnb={"image": {"alt": "Eleven horizontal bars over the size of the vocabulary from 33,000 to 44,000. The bars of the ten rows base to C have different widths and all contain a narrow stripe near 41,100. None of them reaches the dashed line at the stated 37,000. The bar of big lies to the left of that line, between 35,400 and 36,300."}, "figure": {"caption": "The vocabularies that each printed number of parameters allows. Stripe: what all rows from base to C have in common. Dashed: the vocabulary stated in section 5.1.", "name": "fig-var-vocabulary"}}
figure, ax = plt.subplots(figsize=(5.8, 3.2), layout="constrained")
for y, row in enumerate(printed):
    first, last = vocabulary_interval([row])
    ax.barh(y, last - first, left=first, height=0.6, color=PALETTE[1 if row.name == "big" else 0])
ax.axvspan(low, high, color=PALETTE[4], alpha=0.6, linewidth=0)
ax.axvline(37_000, color="black", linestyle="--", linewidth=1)
ax.annotate("stated: about 37,000", (36_900, 0.3), ha="right", fontsize=8)
ax.set_yticks(range(len(printed)), labels=[f"{row.name} ({row.parameters}M)" for row in printed])
ax.invert_yaxis()
ax.set(xlabel="vocabulary (tokens)", xlim=(33_000, 44_000))
plt.show()

# %% [markdown]
# **Break it.** Could another bookkeeping save the 37,000? Two candidates: biases in the projections of attention, and
# an output matrix of its own instead of the shared one.

# %%
with_bias = count_parameters(ModelConfig.base(37_000, bias=True)) / 1e6
untied = (count_parameters(ModelConfig.base(37_000)) + 37_000 * 512) / 1e6
print(f"in the paper 65; biases in attention: {with_bias:.2f}; an output matrix of its own: {untied:.2f}")
assert with_bias < 63.2 and untied > 81

# %% [markdown]
# Too little, and far too much.
#
# **Where.**
#
# - Code: `count_parameters` in `annotated_transformer/tables/cost.py`, `vocabulary_interval` in
#   `annotated_transformer/tables/variations.py`.
# - Tests: `test_the_closed_form_counts_the_model` in `tests/tables/test_cost.py`;
#   `test_the_implied_vocabulary_is_exactly_this_interval` in `tests/tables/test_variations.py`.
# - Exercises: {ref}`ex-var-by-hand`, {ref}`ex-var-tight`.

# %% [markdown]
# (section-variations-groups)=
# ## What the groups ask
#
# **Question.** What did the authors want to know, and what did they find?
#
# **Picture** first, for once: each row's BLEU, as a difference to base. The numbers are the paper's.

# %% mystnb={"image": {"alt": "Nineteen horizontal bars: the BLEU of each row of Table 3 minus that of base, grouped by letter. Gains: big +0.6, d_ff=4096 +0.4, d_model=1024 +0.2; h=16 is 0. All others lose: least learned positions and eps_ls=0.2 with 0.1; most N=2 with 2.1, d_model=256 with 1.3, p_drop=0.0 with 1.2 and h=1 with 0.9."}, "figure": {"caption": "BLEU of each row of Table 3 minus that of base (25.8). One colour for each group. Numbers of the paper.", "name": "fig-var-bleu"}}
figure, ax = plt.subplots(figsize=(5.6, 4.2), layout="constrained")
others = TABLE_3[1:]
for y, row in enumerate(others):
    difference = row.bleu - rows["base"].bleu
    ax.barh(y, difference, color=PALETTE[" ABCDE".index(row.letter or " ")])
    side = {"ha": "left"} if difference >= 0 else {"ha": "right"}
    ax.annotate(f"{difference:+.1f}", (difference, y), (3 if difference >= 0 else -3, 0),
                textcoords="offset points", va="center", fontsize=7, **side)
ax.set_yticks(range(len(others)), labels=[f"{row.letter}  {row.name}" for row in others], fontsize=8)
ax.axvline(0, color="black", linewidth=0.8)
ax.invert_yaxis()
ax.set(xlabel="BLEU minus base (25.8)", xlim=(-2.5, 1))
plt.show()

# %% [markdown]
# ### A: how many heads?
#
# $h$ varies while $d_k = d_v = d_{\mathrm{model}} / h$, so that parameters and operations stay the same. One head is
# 0.9 BLEU worse than the best setting; 32 heads, each 16 wide, are worse than 8 as well.

# %% tags=["row-T3"]
heads = {row.model.get("h", 8): row for row in TABLE_3 if row.letter == "A" or row.name == "base"}
for h, row in sorted(heads.items()):
    config = row.model_config()
    assert config.h * config.d_k == config.d_model and row.count() == rows["base"].count()
    print(f"h {h:2}  d_k {config.d_k:3}  in the paper: PPL {row.ppl:.2f}  BLEU {row.bleu:.1f}")
assert round(max(row.bleu for row in heads.values()) - heads[1].bleu, 1) == 0.9

# %% [markdown]
# ### B: how wide must a comparison be?
#
# Here $d_k$ shrinks alone, to 32 and to 16, with eight heads and $d_v = 64$ as before. Queries and keys are then
# narrower than $d_{\mathrm{model}} / h$, so that a layer must accept a free $d_k$. Ours does:

# %% tags=["row-S17", "row-T3"]
with torch.device("meta"):
    layer = MultiHeadAttention(d_model=512, h=8, d_k=16, d_v=64)
    y = layer(torch.empty(1, 7, 512), torch.empty(1, 9, 512))
print({name: tuple(p.shape) for name, p in layer.named_parameters()}, "->", tuple(y.shape))
assert layer.W_Q.out_features == layer.W_K.out_features == 8 * 16 and layer.W_V.out_features == 8 * 64
for name in ("d_k=16", "d_k=32", "base"):
    print(f"{name:7} in the paper: PPL {rows[name].ppl:.2f}  BLEU {rows[name].bleu:.1f}")
assert rows["d_k=16"].bleu < rows["d_k=32"].bleu < rows["base"].bleu

# %% [markdown]
# A narrower comparison hurts. The paper takes it as a sign that compatibility is not easy to determine, and that
# something more sophisticated than a dot product "may be beneficial". Compare with A: at $h = 32$, $d_k$ is 16 as well,
# and the result is 25.4, better than the 25.1 of `d_k=16`. Those models differ in size too: 65 million against 58. One
# row rarely changes only one thing.
#
# ### C: bigger is better
#
# Layers, width, feed-forward width. In each of the three series, perplexity falls with every step up.

# %% tags=["row-T3"]
series = {"N": [2, 4, None, 8], "d_model": [256, None, 1024], "d_ff": [1024, None, 4096]}
for name, values in series.items():
    steps = [rows["base" if value is None else f"{name}={value}"] for value in values]
    assert all(one.ppl > other.ppl for one, other in zip(steps, steps[1:]))
    print(f"{name:8}" + " -> ".join(f"{row.parameters}M {row.ppl:.2f} / {row.bleu:.1f}" for row in steps))

# %% [markdown]
# (Each entry: the paper's parameters, PPL, BLEU.) In BLEU there is an exception: eight layers have the lower
# perplexity, 4.88 against 4.92, and the *lower* BLEU, 25.5 against 25.8. Either depth beyond six does not help, or 0.3
# BLEU is within the noise. The table cannot tell.
#
# ### D: dropout and label smoothing
#
# Without dropout BLEU falls by 1.2: "dropout is very helpful in avoiding over-fitting". Without label smoothing
# perplexity is *better*, 4.67, and BLEU is worse, 25.3.

# %% tags=["row-T3"]
assert round(rows["base"].bleu - rows["p_drop=0.0"].bleu, 1) == 1.2
unsmoothed, base_row, twice = (rows[name] for name in ("eps_ls=0.0", "base", "eps_ls=0.2"))
assert unsmoothed.ppl < base_row.ppl < twice.ppl
assert unsmoothed.bleu < twice.bleu < base_row.bleu
for row in (unsmoothed, base_row, twice):
    print(f"{row.name:11} in the paper: PPL {row.ppl:.2f}  BLEU {row.bleu:.1f}")

# %% [markdown]
# That is no contradiction. A smoothed model is *taught* to keep some probability for wrong tokens, so it cannot be as
# sure as perplexity would like. It makes perplexity a poor judge between rows that differ in $\epsilon_{ls}$: leave
# these two rows out, and the two columns rank the models nearly alike ({ref}`ex-var-rank`).
#
# ### E: learned positions
#
# A trained vector for each position instead of sines and cosines: 4.92 and 25.7, "nearly identical". The paper keeps
# the sinusoids, because they "may allow" longer sentences than those of training;
# [the chapter on positions](3_5_positional_encoding.ipynb) tries that. Note what group E does *not* contain: a model
# without positions. And no row removes the division by $\sqrt{d_k}$. Summaries that say the ablations show either of
# them necessary cite something that is not there.

# %% tags=["row-T3"]
settings = {name for row in TABLE_3 for name in {**row.model, **row.train}}
print("varied in Table 3:", *sorted(settings))
assert rows["learned positions"].ppl == rows["base"].ppl and rows["learned positions"].bleu == 25.7
assert not any(row.model.get("positions") == "none" for row in TABLE_3)

# %% [markdown]
# ### How sure is it?
#
# Each row is, as far as the paper says, *one* training run, measured on the 3,000 sentences of newstest2013. There are
# no error bars. Two things blur a single number: another random seed would have given another model, and other
# sentences another score. The second can be estimated by **bootstrap**, drawing those sentences again and again with
# replacement {cite}`koehn2004statistical`; the first takes more runs. A difference of 1 BLEU in Table 3 is likely to
# mean something. A difference of 0.1 is not evidence of anything. In between, one does not know, and the next section
# shows how large the noise of seeds can be.
#
# **Where.**
#
# - Code: `ModelConfig` in `annotated_transformer/config.py` has a field for each column of Table 3.
# - Tests: `test_heads_vary_at_constant_size`, `test_every_lettered_row_changes_something` in
#   `tests/tables/test_variations.py`.
# - Exercises: {ref}`ex-var-rank`, {ref}`ex-var-keys`.

# %% [markdown]
# (section-variations-miniature)=
# ## Table 3 in miniature
#
# **Question.** Which of the paper's findings show on a small scale, with error bars?
#
# All twenty rows, scaled down by **one rule**, on the real sentences of the default corpus: every width
# ($d_{\mathrm{model}}$, $d_{ff}$, $d_k$, $d_v$) is divided by 8 and every number of layers by 2; heads, dropout and
# smoothing stay as they are. So base has $d_{\mathrm{model}} = 64$ and three layers, and its eight heads are 8 numbers
# wide. 100,000 steps become 1,000, each with some 1,000 tokens a side in place of 25,000. Each row is trained with
# **three seeds** and scored as the paper scores Table 3: on the development split, with beam 4 and $\alpha = 0.6$, without
# averaging.
#
# Four things do not follow the rule. Warm-up takes the first 200 steps, the rate of equation 3 has a factor of 0.3, the
# vocabulary is 2,000, and sentences are short. In all, base sees a 2,500th of the paper's tokens. The factor has a history
# that you should know: a first run of this whole table, at the rate of equation 3 itself, was thrown away, because three
# seeds of base ended 4 BLEU apart. 0.3 was then chosen on base's seeds alone. That is kind to base, since other rows may
# want another rate.

# %%
from annotated_transformer.experiments.table_3.miniature import VARIATIONS

show(type(VARIATIONS["base"]).configs)

# %% tags=["row-T3"]
full, (scaled, training) = ModelConfig.base(2000), VARIATIONS["base"].configs(seed=1)
print(f"base:    {sizes(full)}\nscaled:  {sizes(scaled)}")
assert [8 * n for n in sizes(scaled)[1:3]] == sizes(full)[1:3] and 2 * scaled.N == full.N
assert scaled.h == full.h and scaled.d_k == full.d_k // 8 and training.train_steps == 1000

# %% [markdown]
# You can run any row, or all of them, yourself. A run that is stopped goes on where it was, and `--jobs` runs several at
# a time:
#
# ```
# annotated-transformer variations run A1 base --seeds 3
# annotated-transformer variations run all --jobs 2
# annotated-transformer variations table --result book/results/table_3.json
# ```
#
# The whole table takes hours on one core of a processor, so this chapter does not train it again. It reads the file that
# the last of these commands has written.

# %%
import json
from pathlib import Path

table_3 = json.loads(Path("results/table_3.json").read_text())
measured = {row["id"]: row for row in table_3["summary"]}
hours = sum(record["seconds"] for record in table_3["records"]) / 3600
print(table_3["hardware"], "|", len(table_3["records"]), f"runs, {hours:.1f} hours |", table_3["date"])

# %% [markdown]
# **How sure is each number?** Two things could have been different: the sentences and the seed. Of sentences there are
# many, so the **bootstrap** plays them again: it draws a thousand sentences with replacement, computes the score, and
# repeats that a thousand times. For a *difference* to base, both models score the same drawn sentences, seed by seed, so
# that what makes a sentence hard for both cancels: a **paired** test. Of seeds there are three. To draw from three numbers
# tells little: no draw can ever reach beyond the outermost. So their part is computed from their standard deviation with
# **Student's t**, which is 4.3 for three numbers where the normal distribution has 1.96: the price of knowing the spread
# from three numbers only. The two parts are independent, so their squares add.

# %%
from annotated_transformer.experiments.significance import estimate

show(estimate)

# %% [markdown]
# **Check.** First the sentences. The mean of a thousand numbers with standard deviation 1 has a standard error of
# $1/\sqrt{1000}$, and its interval reaches 1.96 of them to either side. The bootstrap knows nothing of that formula.

# %%
values = torch.randn(1000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
rows_of_sums = torch.cat([values, torch.ones_like(values)], dim=1)
def mean_of(sums):
    return (sums[0] / sums[1]).item()

found = estimate(mean_of, [rows_of_sums])
by_formula = 1.96 * values.std().item() / math.sqrt(1000)
print(f"bootstrap: {found.mean - found.low:.3f} below, {found.high - found.mean:.3f} above;"
      f" formula: {by_formula:.3f}")
assert abs(found.high - found.mean - by_formula) < 0.01 and abs(found.mean - found.low - by_formula) < 0.01

# %% [markdown]
# Then the seeds. Three draws around a true value of 0, a thousand times: how often does the interval hold the 0? And how
# often would the range of the three hold it?

# %%
draws = torch.randn(1000, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
held = within_range = 0
for three in draws.tolist():
    interval = estimate(mean_of, [torch.tensor([[x, 1.0]] * 2, dtype=torch.float64) for x in three], n_samples=2)
    held += interval.low <= 0 <= interval.high
    within_range += min(three) <= 0 <= max(three)
print(f"the interval holds the true value in {held / 10:.1f} % of cases, the range of three seeds in "
      f"{within_range / 10:.1f} %")
assert 930 < held < 970 and within_range < 800

# %% [markdown]
# Now the table. Left of the bar: measured by us on 1,000 sentences, mean of the seeds and 95 % interval. Right of it:
# the paper's numbers, on other sentences, with another vocabulary, from models a hundred times as large. **Compare
# within a column, never across the bar.**

# %% tags=["row-T3", "row-X5"]
from annotated_transformer.experiments.table_3.miniature_table import as_text

ours = [measured[row.id] for row in TABLE_3]
print(as_text(ours))
assert all(row["n_seeds"] >= 3 for row in ours) and len(ours) == 20
assert len(table_3["records"]) >= 60

# %% [markdown]
# `above` and `below` mean: the whole interval lies on that side of 0, and every seed agrees. A question mark means that
# this experiment cannot tell.
#
# **Picture.** Each row's difference to base, ours and the paper's in panels of their own.

# %% mystnb={"image": {"alt": "Two panels with the same nineteen rows. Left: the measured difference of BLEU to base in miniature, a dot for the mean of the seeds with a horizontal line for its interval. Right: bars with the differences that the paper prints. The printed output above lists every number."}, "figure": {"caption": "BLEU of each row minus that of base. Left: measured in miniature, with 95 % intervals. Right: the paper's, which has none. The scales of the two panels differ.", "name": "fig-var-miniature"}}
figure, (left, right) = plt.subplots(1, 2, figsize=(6.6, 4.4), sharey=True, layout="constrained")
for y, row in enumerate(TABLE_3[1:]):
    color = PALETTE[" ABCDE".index(row.letter or " ")]
    d = measured[row.id]["bleu_difference"]
    left.plot([d["low"], d["high"]], [y, y], color=color)
    left.plot(d["mean"], y, "o", color=color, markersize=5)
    right.barh(y, row.bleu - rows["base"].bleu, color=color)
for ax, title in ((left, "measured, in miniature"), (right, "in the paper")):
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set(title=title, xlabel="BLEU minus base")
left.set_yticks(range(19), labels=[f"{row.letter}  {row.name}" for row in TABLE_3[1:]], fontsize=8)
left.invert_yaxis()
plt.show()

# %% [markdown]
# **Read the noise first.** Before any row is compared with base, look at base itself, and at two others: the same
# model, data and settings, three seeds.

# %%
for name in ("base", "E1", "C2"):
    row = measured[name]
    print(f"{name:5} BLEU of each seed:", "  ".join(f"{bleu:4.1f}" for bleu in row["bleu"]["seeds"]),
          "   perplexity:", "  ".join(f"{ppl:4.1f}" for ppl in row["ppl"]["seeds"]))
seeds = measured["base"]["bleu"]["seeds"]
smallest = min(abs(row.bleu - rows["base"].bleu) for row in TABLE_3[1:] if row.bleu != rows["base"].bleu)
print(f"base's seeds span {max(seeds) - min(seeds):.1f} BLEU; the paper's smallest difference to base is {smallest:.1f}")
assert max(seeds) - min(seeds) > smallest

# %% [markdown]
# Nothing but the random numbers differs between these seeds, and BLEU moves by more than the paper's smaller differences.
# Had we run one seed for each row, as the paper's table does, we would have read a finding into every line. An interval
# from three seeds has to be wide, so BLEU can tell the large changes only. Perplexity, an average over every single token,
# is steadier and tells more. (The factor 0.3 was chosen so that base's seeds agree, and on these very seeds; that flatters
# them.)
#
# **What can be told?** A row *agrees* when it moves a score, beyond the noise, the way that the paper's moved; it
# *disagrees* when it moves the other way. Some rows the paper hardly moves, by no more than 0.1 BLEU or 0.05 in perplexity,
# from one run each. There "no difference" is the finding, and no interval can show that by leaving out 0. They stand apart.

# %%
MARGINS = {"ppl": 0.051, "bleu": 0.11}
paper = {metric: {row.id: getattr(row, metric) - getattr(rows["base"], metric) for row in TABLE_3[1:]}
         for metric in MARGINS}
still = {metric: [name for name in paper[metric] if abs(paper[metric][name]) <= MARGINS[metric]] for metric in MARGINS}
assert still == {"ppl": ["A3", "C3", "D2", "E1"], "bleu": ["A3", "D4", "E1"]}

# %%
def told_by(measured, metric):
    """Rows that differ from base beyond the noise, as the paper's do; and those that differ the other way."""
    signs = {name: measured[name][f"{metric}_difference"]["sign"] for name in paper[metric] if name not in still[metric]}
    agree = [name for name in signs if signs[name] * paper[metric][name] > 0]
    return agree, [name for name in signs if signs[name] and name not in agree]

for metric, title in (("ppl", "perplexity"), ("bleu", "BLEU")):
    agree, disagree = told_by(measured, metric)
    difference = {name: measured[name][f"{metric}_difference"]["mean"] for name in paper[metric]}
    print(title)
    print("  agree:                     ", *agree)
    print("  disagree:                  ", *disagree)
    print("  cannot tell:               ", *[n for n in paper[metric] if n not in agree + disagree + still[metric]])
    print("  hardly moved in the paper: ", *[f"{name} {difference[name]:+.1f}" for name in still[metric]])

# %% [markdown]
# A row that disagrees here does not refute the paper. It saw a 2,500th of the tokens, at a rate that suits some rows
# better than others.
#
# [The page of claims](claims.ipynb) goes through them one by one, with a rule for each, and adds what the paper claims
# without a row in this table.
#
# ### The same on other sentences
#
# One corpus may have whims of its own. **Multi30k** {cite}`elliott2016multi30k` describes photographs: 29,000 pairs for
# training, longer ones than ours, in a narrow language of people, dogs and streets. The same twenty rows by the same
# rule, three seeds each, without any change for it, scored on its 1,014 validation sentences:
#
# ```
# annotated-transformer variations run table --corpus multi30k-en-de --out runs/multi30k --jobs 2
# annotated-transformer variations table --corpus multi30k-en-de --out runs/multi30k --result book/results/table_3_multi30k.json
# ```

# %% tags=["row-T3", "row-X5"]
multi30k = json.loads(Path("results/table_3_multi30k.json").read_text())
captions = {row["id"]: row for row in multi30k["summary"]}
print(as_text([captions[row.id] for row in TABLE_3]))
assert all(captions[row.id]["n_seeds"] >= 3 for row in TABLE_3)

# %% [markdown]
# **Do the two corpora tell the same story?** For each score: the rows that both can tell from base, and the same way;
# those that only one of them can tell; and those in which they contradict each other.

# %%
for metric, title in (("ppl", "perplexity"), ("bleu", "BLEU")):
    signs = {name: (measured[name][f"{metric}_difference"]["sign"], captions[name][f"{metric}_difference"]["sign"])
             for name in paper[metric]}
    both = [name for name, (one, other) in signs.items() if one and one == other]
    contradict = [name for name, (one, other) in signs.items() if one * other < 0]
    agree, disagree = told_by(captions, metric)
    print(title)
    print("  both, the same way:        ", *both)
    print("  only the everyday ones:    ", *[name for name, (one, other) in signs.items() if one and not other])
    print("  only the captions:         ", *[name for name, (one, other) in signs.items() if other and not one])
    print("  they contradict each other:", *contradict)
    print("  the captions and the paper agree:", *agree, "| disagree:", *disagree)
    ours = [[found[name][f"{metric}_difference"]["mean"] for name in signs] for found in (measured, captions)]
    print(f"  correlation of the nineteen differences: {correlation(*ours):.2f}")
    assert not contradict and len(both) >= {"ppl": 14, "bleu": 4}[metric] and correlation(*ours) > 0.85

# %% mystnb={"image": {"alt": "Two scatter charts of nineteen dots with crossing lines for their intervals. Across: the difference to base on the everyday sentences; up: on the captions. Left perplexity, right BLEU. The printed output above lists what can be told."}, "figure": {"caption": "Each row minus base on the two corpora, with 95 % intervals. A dot in the lower left or the upper right corner moved both the same way. Measured in miniature.", "name": "fig-var-two-corpora"}}
figure, axes = plt.subplots(1, 2, figsize=(6.6, 3.4), layout="constrained")
for ax, metric, title in zip(axes, ("ppl", "bleu"), ("perplexity", "BLEU")):
    for row in TABLE_3[1:]:
        across, up = (found[row.id][f"{metric}_difference"] for found in (measured, captions))
        color = PALETTE[" ABCDE".index(row.letter or " ")]
        ax.plot([across["low"], across["high"]], [up["mean"]] * 2, color=color, linewidth=0.7)
        ax.plot([across["mean"]] * 2, [up["low"], up["high"]], color=color, linewidth=0.7)
        ax.plot(across["mean"], up["mean"], "o", color=color, markersize=3)
        if abs(across["mean"]) > {"ppl": 3, "bleu": 1.1}[metric]:
            ax.annotate(row.id, (across["mean"], up["mean"]), (3, 3), textcoords="offset points", fontsize=7)
    ax.axhline(0, color="grey", linewidth=0.6)
    ax.axvline(0, color="grey", linewidth=0.6)
    ax.set(title=f"{title} minus base", xlabel="everyday sentences")
axes[0].set_ylabel("captions")
plt.show()

# %% [markdown]
# They do. In perplexity the rows lie on a line: nearly every row that one corpus can tell from base, the other can too,
# and never the other way round. What was found is a property of these small models at these few steps, not of the
# sentences. That includes the row that disagrees with the paper: without dropout (D1) perplexity is better on both. There
# was nothing to overfit: the miniature goes through its sentences two or three times, far too few to learn any by heart,
# and dropout is for the case where the same sentences come again and again. The paper's settings point the same way: big
# has $P_{drop} = 0.3$ for the 4.5 million pairs of English-German, and 0.1 for the 36 million of English-French.
# [The chapter on regularization](5_4_regularization.ipynb) shows a model that overfits, and dropout against it.
#
# In BLEU each corpus can tell a few rows, and not always the same ones. The captions can tell
# that narrower keys hurt (B1, B2), as the paper found, and that more dropout does (D2). That the everyday sentences could
# not was a lack of evidence, and no evidence of a lack.

# %%
assert measured["D1"]["ppl_difference"]["sign"] == captions["D1"]["ppl_difference"]["sign"] == -1
for name in ("B1", "B2", "D2"):
    everyday, caption = (found[name]["bleu_difference"] for found in (measured, captions))
    print(f"{name}: BLEU {everyday['mean']:+.1f} ({everyday['low']:+.1f} to {everyday['high']:+.1f}) on the everyday "
          f"sentences, {caption['mean']:+.1f} ({caption['low']:+.1f} to {caption['high']:+.1f}) on the captions")
    assert caption["sign"] == -1 and everyday["sign"] == 0

# %% [markdown]
# ## Exercises
#
# ```{exercise} One head
# :label: ex-var-shape
#
# For the row `h=1` of group A: what are the shapes of $W_1^Q$ and $W^O$, and how many attention weights does a
# layer compute for a sentence of 30 tokens? The same for `h=32`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $h\,d_k$ stays 512. The weights are $h\,n^2$.
# ```
#
# ```{solution} ex-var-shape
# :class: dropdown
#
# $h = 1$: $512 \times 512$ and $512 \times 512$; 900 weights. $h = 32$: $512 \times 16$ and, as ever,
# $512 \times 512$; 28,800 weights.
# ```

# %% tags=["hide-cell"]
for name, shape, n_weights in (("h=1", (512, 512), 900), ("h=32", (512, 16), 28_800)):
    config = rows[name].model_config()
    assert (config.d_model, config.d_k) == shape and config.h * config.d_v == 512
    assert config.h * 30**2 == n_weights

# %% [markdown]
# ```{exercise} Perplexity in nats
# :label: ex-var-nats
#
# What loss a token, in nats and in bits, do the perplexities 4.92 (base), 4.33 (big) and 6.11 ($N = 2$) mean? How
# much probability does base give to the right token, in the geometric mean?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Perplexity is $e^{\text{nats}} = 2^{\text{bits}}$.
# ```
#
# ```{solution} ex-var-nats
# :class: dropdown
#
# 1.593, 1.466 and 1.810 nats; 2.30, 2.11 and 2.61 bits. The geometric mean of the probabilities is $1 / 4.92 = 0.203$.
# ```

# %% tags=["hide-cell"]
for name, nats, bits in (("base", 1.593, 2.30), ("big", 1.466, 2.11), ("N=2", 1.810, 2.61)):
    assert round(math.log(rows[name].ppl), 3) == nats and round(math.log2(rows[name].ppl), 2) == bits
assert round(1 / rows["base"].ppl, 3) == 0.203

# %% [markdown]
# ```{exercise} Count a row by hand
# :label: ex-var-by-hand
#
# With 41,100 tokens, how many parameters has base, and how many fewer has the row `d_ff=1024`? Do both round to what
# the paper prints?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Twelve feed-forward networks lose half of their hidden entries, each with $2D + 1$ parameters.
# ```
#
# ```{solution} ex-var-by-hand
# :class: dropdown
#
# Base: 65,144,832. Each of the 12 networks loses $1024 \cdot (2 \cdot 512 + 1) = 1{,}049{,}600$, in all 12,595,200,
# which leaves 52,549,632. Rounded: 65 and 53.
# ```

# %% tags=["hide-cell"]
assert rows["base"].count() == 65_144_832
assert rows["base"].count() - rows["d_ff=1024"].count() == 12 * 1024 * (2 * 512 + 1) == 12_595_200
assert rows["d_ff=1024"].count() == 52_549_632

# %% [markdown]
# ```{exercise} Who draws the borders?
# :label: ex-var-tight
#
# The common interval of the ten rows is narrow. Which row sets its lower end, and which its upper? Why do rows with a
# large $d_{\mathrm{model}}$ tell more about the vocabulary than those with a small one?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `vocabulary_interval([row])` for each row. How wide is an interval of one million parameters, in tokens?
# ```
#
# ```{solution} ex-var-tight
# :class: dropdown
#
# The printed number leaves a million parameters of room, which are $10^6 / d_{\mathrm{model}}$ tokens: 977 at a width
# of 1,024, 3,906 at 256. So a wide model leaves less room. The lower end, 41,004, comes from `d_ff=1024`, the upper,
# 41,208, from `N=4`: two rows of width 512 whose wide intervals happen to overlap only a little.
# ```

# %% tags=["hide-cell"]
ends = {row.name: vocabulary_interval([row]) for row in printed[:-1]}
lowest = max(ends, key=lambda name: ends[name][0])
highest = min(ends, key=lambda name: ends[name][1])
print(f"lower end: {lowest} {ends[lowest]}   upper end: {highest} {ends[highest]}")
assert (ends[lowest][0], ends[highest][1]) == (low, high)
assert {name: last - first + 1 for name, (first, last) in ends.items()}["d_model=1024"] in (976, 977)

# %% [markdown]
# ```{exercise} Do the two columns agree?
# :label: ex-var-rank
#
# For how many pairs of rows does the better perplexity go with the worse BLEU? Which rows are in most of these pairs?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `itertools.combinations`. Skip ties.
# ```
#
# ```{solution} ex-var-rank
# :class: dropdown
#
# In 26 of the 190 pairs. The two rows that change $\epsilon_{ls}$ are in 20 of them; among the other 18 rows only 6
# pairs of 153 remain.
# ```

# %% tags=["hide-cell"]
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
# ```{exercise} What row B saves
# :label: ex-var-keys
#
# How many parameters does `d_k=16` save, in all layers? What share is that of base, and is it plausible that the loss
# of 0.7 BLEU comes from the size alone? Compare with the row of group C that is nearest in size.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Two projections, 18 attentions.
# ```
#
# ```{solution} ex-var-keys
# :class: dropdown
#
# $18 \cdot 2 \cdot 512 \cdot 8 \cdot (64 - 16) = 7{,}077{,}888$, 11 percent. The row `d_ff=1024` is smaller still, 53
# million, and has 25.4. So 58 million need not mean 25.1, and the narrow comparison itself seems to hurt; as far as
# one run each can tell.
# ```

# %% tags=["hide-cell"]
saved = rows["base"].count() - rows["d_k=16"].count()
assert saved == 18 * 2 * 512 * 8 * 48 == 7_077_888 and round(saved / rows["base"].count(), 2) == 0.11
assert rows["d_ff=1024"].count() < rows["d_k=16"].count() and rows["d_ff=1024"].bleu > rows["d_k=16"].bleu

# %% [markdown]
# ## What to remember
#
# - Table 3 changes one thing (or a few that hang together) in the base model: heads (A), key width (B), size (C),
#   regularization (D), positions (E) ({ref}`section-variations-table`).
# - Its parameters follow from equation {eq}`var-parameters` to the last digit printed, with a vocabulary of about
#   41,100 tokens (big: 36,000), not with the stated 37,000.
# - In the paper, one head and narrow keys hurt; bigger is better; dropout helps; smoothing hurts perplexity and helps
#   BLEU; learned positions do as well as sinusoids.
# - It has one run for each row and no error bars. In our miniature, seeds alone move a result more than some
#   changes of configuration do.
# - Three seeds are few. An interval must reach 4.3 standard errors to either side to hold the truth in 95 % of cases.
# - Dropout helps where there is something to overfit. Judge by data that the model has not seen.
