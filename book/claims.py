# %% [markdown]
# # What holds: the paper's claims, tested
#
# *All sections of the paper {cite}`vaswani2017attention`: what it claims, the rule by which this book judges each claim,
# and what came out.*
#
# A paper says many things. Some are arithmetic and can be checked to the last digit; some are experiments, which anyone
# with a computer can repeat at a smaller size; some can only be seen at a size that this book does not have. This page
# lists them, one by one, each with a **verdict**: *holds*, *does not hold*, or *cannot tell*.
#
# When you have read it you can
#
# - say of each claim what would count for it and what against it;
# - tell a claim that failed from a test that was too weak to see it;
# - repeat any of these tests by one command.

# %%
import textwrap
from collections import Counter

import matplotlib.pyplot as plt

# %%
from annotated_transformer.experiments.claims import judge_claims, load_results
from annotated_transformer.experiments.significance import Estimate
from annotated_transformer.experiments.verdicts import nearly_the_same, worse
from annotated_transformer.looking.visualization import PALETTE, show, use_style

use_style()
results = load_results("results")
claims = judge_claims(results)

# %% [markdown]
# (section-claims-rules)=
# ## The rules
#
# **Question.** When does a difference between two trained models count?
#
# Scores have two kinds of noise, that of the test sentences and that of the seed, and the 95 % interval has both in it
# ([chapter 6.2](6_2_variations.ipynb) says how). The rule asks for two things: the interval of the difference leaves 0
# out, **and** every seed points the same way.

# %%
show(Estimate.sign.fget)

# %% [markdown]
# A claim that something is *worse* holds when the difference counts and points down. It does **not** hold when the
# difference counts and points up. All else is *cannot tell*: not a failure of the claim, but of the test.

# %%
show(worse)

# %% [markdown]
# "Nearly the same" needs another rule. That no difference was *found* shows nothing, since a weak test finds none. It
# must be shown that the difference is *small*: its whole interval lies within a margin, here 1 BLEU or 5 % of the
# perplexity.

# %%
show(nearly_the_same)

# %% [markdown]
# **Check** the rules on numbers that are made up, where you know what to expect.

# %%
def made_up(low, high):
    sign = 1 if low > 0 else -1 if high < 0 else 0
    difference = {"low": low, "mean": (low + high) / 2, "high": high, "seeds": [low, high], "sign": sign}
    return {"table_3": {"summary": [{"id": "A1", "bleu_difference": difference}]}}

for low, high, expected in ((-2, -1, "holds"), (-2, 1, "cannot tell"), (1, 2, "does not hold")):
    assert worse("A1")(made_up(low, high))[0] == expected
for low, high, expected in ((-0.5, 0.5, "holds"), (-2, 1, "cannot tell"), (1.5, 2, "does not hold")):
    assert nearly_the_same("A1", "bleu")(made_up(low, high))[0] == expected
print("the rules do what they say")

# %% [markdown]
# The rules stand in `annotated_transformer/experiments/verdicts.py`, and what they are applied to in `claims.py` beside
# it. No verdict and no number below is typed in: change a number in a result file, and its verdict changes. How free of the
# results the rules are is another question. Those on Table 3 were written before its runs; but a first run of the whole
# table, at another learning rate, was seen and thrown away in between ([chapter 6.2](6_2_variations.ipynb)), and the
# intervals were made wider after it. Those on Table 1 and on heads were written with results at hand, and some were made
# stricter after a second look, so they bind less. Each file says how its numbers were made:

# %%
for name, content in results.items():
    print(f"{name:18} {content['date']}  {len(content['records']):3} records  {content['hardware']}")
assert {"table_1", "table_3", "parsing", "figures_3_to_5"} <= set(results)

# %% [markdown]
# (section-claims-list)=
# ## The claims
#
# For each: where the paper makes it, the claim in our words, the rule, the verdict, and the numbers behind it, all of
# them measured or computed by this book. "Here" is the size in the miniature. A few lines are marked as a **choice**: the
# paper uses the thing and reports no comparison of it, so a verdict on it says nothing of the paper.

# %%
def tell(claim):
    mark = {"holds": "+", "does not hold": "-", "cannot tell": "?"}[claim.verdict]
    choice = "(choice) " if claim.kind == "choice" else ""
    print(textwrap.fill(f"{mark} [{claim.section}] {choice}{claim.statement}", 76, subsequent_indent="  "))
    for label, text in (("rule", claim.rule), (claim.verdict, claim.evidence)):
        print(textwrap.indent(textwrap.fill(f"{label}: {text}", 70), "      "))

for claim in claims:
    tell(claim)

# %%
counts = Counter(claim.verdict for claim in claims)
kinds = Counter(claim.kind for claim in claims)
print(f"{kinds['claim']} claims and {kinds['choice']} choices:",
      ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common()))
assert kinds["claim"] >= 20
assert set(counts) <= {"holds", "does not hold", "cannot tell"}

# %% [markdown]
# Read the three kinds apart. What *holds* here was shown on small models and short sentences; it need not hold on large
# ones. What *does not hold* is of two sorts: a number in the paper that its own table contradicts, or a finding that goes
# the other way at this size. And *cannot tell* is about this book's test, not about the paper. The models of the
# miniature were trained for a thousand steps with three seeds each, and three seeds make wide intervals. Differences as
# small as the paper's drown in them.
#
# **Where.** Every evidence line can be traced: Table 1 in [chapter 4](4_why_self_attention.ipynb), Table 3 in
# [chapter 6.2](6_2_variations.ipynb), parsing in [chapter 6.3](6_3_parsing.ipynb), Figures 3 to 5 in
# [chapter 7](7_attention_visualizations.ipynb).

# %% [markdown]
# (section-claims-without-a-row)=
# ## What has no row in Table 3
#
# **Question.** The paper's model has parts that its ablations never remove: the division by $\sqrt{d_k}$, the positions,
# the warm-up, the place of the norm. What happens without them?
#
# Each of these is one more variation of the miniature base, with the same steps, seeds and scores as the rows of Table 3
# in [chapter 6.2](6_2_variations.ipynb), and the same data; `short` and `short-learned` learn from short sentences only.
# `unscaled-A1` is the row with a single head, in which $d_k$ is 64 and not 8; it is compared with that row, not with base.
# How to search has no influence on perplexity, so those rows leave it blank.

# %%
summary = {row["id"]: row for row in results["table_3"]["summary"]}
without_a_row = [row for row in summary.values() if row["group"] in ("claims", "search")]
print(f"{'':21}compared with        BLEU minus its            perplexity minus its")
for row in without_a_row:
    bleu, ppl = row["bleu_difference"], row["ppl_difference"]
    same_weights = row["group"] == "search" and row["id"] != "averaged"
    print(f"{row['id']:21}{row['against']:14}{bleu['mean']:+6.2f} ({bleu['low']:+.2f} to {bleu['high']:+.2f})"
          + ("" if same_weights else f"{ppl['mean']:+11.2f} ({ppl['low']:+.2f} to {ppl['high']:+.2f})"))
assert len(without_a_row) == 15 and all(row["n_seeds"] >= 3 for row in without_a_row)

# %% mystnb={"image": {"alt": "Fifteen horizontal intervals of a difference in BLEU around a vertical line at zero: eight variations of the model or its training on top, seven ways to search below. The printed table above has every number."}, "figure": {"caption": "Differences in BLEU to what each is compared with, mean and 95 % interval. Variations of the model on top, ways to search with base's weights below; strokes are seeds. Measured in miniature.", "name": "fig-claims-differences"}}
figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for y, row in enumerate(without_a_row):
    d = row["bleu_difference"]
    color = PALETTE[0 if row["group"] == "claims" else 2]
    ax.plot([d["low"], d["high"]], [y, y], color=color)
    ax.plot(d["seeds"], [y] * len(d["seeds"]), "|", color=color, markersize=8)
    ax.plot(d["mean"], y, "o", color=color, markersize=5)
ax.axvline(0, color="black", linewidth=0.8)
ax.set_yticks(range(len(without_a_row)), labels=[row["id"] for row in without_a_row], fontsize=8)
ax.invert_yaxis()
ax.set(xlabel="BLEU minus that of what it is compared with (strokes: seeds)")
plt.show()

# %% [markdown]
# Two lines need a word. `short` gains BLEU and loses perplexity: most of the sentences are short, and it has practised
# nothing else; what it lost is in the long ones, below. And without the warm-up the seeds disagree, so that its interval
# is the widest of all: one seed is better than base, others are worse.

# %%
seeds = summary["no-warm-up"]["bleu_difference"]["seeds"]
print("no-warm-up, each seed's BLEU minus base's:", *(f"{difference:+.1f}" for difference in seeds))
width = {row["id"]: row["bleu_difference"]["high"] - row["bleu_difference"]["low"] for row in without_a_row}
assert max(width, key=width.get) == "no-warm-up" and min(seeds) < 0 < max(seeds)
assert summary["short"]["bleu_difference"]["sign"] == 1

# %% [markdown]
# **The scale, as heads grow.** `unscaled` has eight heads of width 8, where scores without the scale are
# $\sqrt 8 \approx 2.8$ times as large; `unscaled-A1` has one head of width 64, where they are 8 times as large. The
# paper suspects that the harm grows with $d_k$. (More than the width differs: one head is not eight.)

# %% tags=["row-X12"]
for d_k, name in ((8, "unscaled"), (64, "unscaled-A1")):
    ppl = summary[name]["ppl_difference"]
    print(f"d_k {d_k:2}  perplexity without the scale, minus with it: {ppl['mean']:+.1f} "
          f"({ppl['low']:+.1f} to {ppl['high']:+.1f})")
narrow, wide = (summary[name]["ppl_difference"] for name in ("unscaled", "unscaled-A1"))
assert narrow["low"] > 0 and narrow["high"] < wide["low"]  # worse, and worse still: the intervals are apart

# %% [markdown]
# **Beyond the training length.** The variations `short` and `short-learned` saw sentences of at most 12 tokens only. Both
# are then asked for longer ones, beside base, which has seen them. A learned position that was never trained is noise; a
# sinusoid is at least a number that fits the pattern.

# %%
short, learned = summary["short"], summary["short-learned"]
print("perplexity                     up to 12 tokens    beyond     ratio")
for label, row in (("base, all lengths", summary["base"]), ("sinusoids", short), ("learned positions", learned)):
    within, beyond = row["ppl_within"]["mean"], row["ppl_beyond"]["mean"]
    print(f"{label:25}{within:20.1f}{beyond:10.1f}{beyond / within:10.1f}")
gap = learned["ppl_beyond_difference"]
print(f"beyond, learned minus sinusoids: {gap['mean']:+.1f} ({gap['low']:+.1f} to {gap['high']:+.1f})")
assert short["ppl_beyond"]["mean"] > short["ppl_within"]["mean"]

# %% [markdown]
# Long sentences are harder for base too. What counts is how much more than base the other two lose on them.
# {ref}`A question at the end <ex-claims-extrapolation>` asks what "extrapolate" should mean.

# %% [markdown]
# (section-claims-untestable)=
# ## What this book cannot test
#
# Some claims need the paper's own data and hardware, and are in no list above: 28.4 and 41.8 BLEU on WMT 2014, 12 hours
# and 3.5 days of eight P100s, 92.7 F1 on the Wall Street Journal. We have re-computed what follows from printed numbers
# ([Table 2](6_1_results.ipynb)), and nothing more. A number that has not been measured is not replaced by one that has.

# %% [markdown]
# ## Exercises
#
# ```{exercise} Too weak or not there?
# :label: ex-claims-power
#
# A test reports a difference of $-0.3$ BLEU with an interval from $-1.1$ to $+0.5$. A second one, of another claim,
# reports $-0.05$ with an interval from $-0.2$ to $+0.1$. Both leave 0 inside. Is the verdict on "is worse" the same? And on
# "is nearly the same, within 1 BLEU"?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Apply both rules to both intervals.
# ```
#
# ```{solution} ex-claims-power
# :class: dropdown
#
# "Is worse": *cannot tell* for both. "Nearly the same": the second interval lies within the margin, so it *holds*; the
# first does not, so one cannot tell. Only the second experiment has shown something.
# ```

# %% tags=["hide-cell"]
wide, narrow = made_up(-1.1, 0.5), made_up(-0.2, 0.1)
print([worse("A1")(numbers)[0] for numbers in (wide, narrow)],
      [nearly_the_same("A1", "bleu")(numbers)[0] for numbers in (wide, narrow)])
assert nearly_the_same("A1", "bleu")(narrow)[0] == "holds" != nearly_the_same("A1", "bleu")(wide)[0]

# %% [markdown]
# ```{exercise} Many claims, some by chance
# :label: ex-claims-many
#
# Forty claims are tested, each with a 95 % interval. Suppose that none of them were true, all differences were 0. How
# many intervals would leave 0 out all the same? And how many, if for an interval one had taken the range of three seeds?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Five percent of forty. With three seeds and pure chance, how often do all three have the same sign?
# ```
#
# ```{solution} ex-claims-many
# :class: dropdown
#
# Two, on average. With the range of three seeds, ten: three independent seeds agree in sign in a quarter of the cases.
# "All three seeds say so" is weak evidence. So expect a chance verdict or two in a list of this length, and do not hang
# anything on a single one of small size.
# ```

# %% tags=["hide-cell"]
import random

generator = random.Random(1)
agree = [len({generator.random() < 0.5 for _ in range(3)}) == 1 for _ in range(100_000)]
share = sum(agree) / len(agree)
print(f"expected by chance: {0.05 * 40:.0f} of 40; three seeds agree in {share:.2f} of the cases, {40 * share:.0f} of 40")
assert abs(share - 0.25) < 0.01

# %% [markdown]
# ```{exercise} Change a number, change a verdict
# :label: ex-claims-edit
#
# Take the results as they are, set the BLEU difference of `A1` (one head) to its negative, and judge the claims again.
# Which verdicts change?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `copy.deepcopy(results)`, then `judge_claims`. Mind `sign`, `low` and `high`.
# ```
#
# ```{solution} ex-claims-edit
# :class: dropdown
#
# At most that of "A single head is worse than eight", and only if it could be told before. No other rule reads that
# number.
# ```

# %% tags=["hide-cell"]
import copy

turned = copy.deepcopy(results)
d = next(row for row in turned["table_3"]["summary"] if row["id"] == "A1")["bleu_difference"]
d["low"], d["mean"], d["high"], d["sign"] = -d["high"], -d["mean"], -d["low"], -d["sign"]
changed = [claim.statement for claim, other in zip(claims, judge_claims(turned)) if claim.verdict != other.verdict]
print(changed)
assert set(changed) <= {"A single head is worse than eight."}

# %% [markdown]
# ```{exercise} What is extrapolation?
# :label: ex-claims-extrapolation
#
# "Sinusoids extrapolate to longer sentences." Write down a rule that would make this claim *false* in the numbers above,
# and one that would make it *true*. Which of the two did the paper claim?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Compare with learned positions; or compare with the perplexity of short sentences; or with a model that has seen long
# sentences.
# ```
#
# ```{solution} ex-claims-extrapolation
# :class: dropdown
#
# "No worse beyond the training length than a model that has seen such sentences" is false: the ratio in the table is
# larger than base's. "Better there than learned positions" is what the list above tests, in the paper's own comparison of
# the two. The paper writes that sinusoids "may allow" it, and reports no measurement, so that neither rule is its own.
# ```

# %% tags=["hide-cell"]
ratio, of_base = (row["ppl_beyond"]["mean"] / row["ppl_within"]["mean"] for row in (short, summary["base"]))
print(f"perplexity beyond 12 tokens over that within: sinusoids {ratio:.1f}, base, which has seen both, {of_base:.1f}")
assert ratio > of_base > 1

# %% [markdown]
# ```{exercise} A claim of your own
# :label: ex-claims-own
#
# The paper puts $P_{drop} = 0.1$ into base. Is 0.3 better on a corpus as small as ours? Write the rule first, then run it:
# what would the command be, and how long would it take?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# A variation is an entry of `VARIATIONS` in `annotated_transformer/experiments/table_3/miniature.py`. The result file says how many
# seconds a run took.
# ```
#
# ```{solution} ex-claims-own
# :class: dropdown
#
# Rule: the variation with `p_drop=0.3` has higher BLEU than base, interval and seeds agreeing. Add
# `Variation("p_drop-0.3", "more dropout", model={"p_drop": 0.3})` to `CLAIMS` and run
# `annotated-transformer variations run p_drop-0.3 base --seeds 3`. The folded cell reads off what three runs of base took.
# ```

# %% tags=["hide-cell"]
seconds = [record["seconds"] for record in results["table_3"]["records"] if record["row"] == "base"]
print(f"{len(seconds)} runs, each between {min(seconds):.0f} and {max(seconds):.0f} s on that machine")
assert len(seconds) >= 3

# %% [markdown]
# ## What to remember
#
# - A claim needs a rule, written before the numbers are known, that says what would count against it.
# - A difference counts when its interval leaves 0 out and every seed agrees. "Nearly the same" must be *shown*, by an
#   interval within a margin.
# - *Cannot tell* is a verdict on the test. It is the honest one for small effects at small scale.
# - What the paper never ablated can be ablated: the scale, the positions, the warm-up, the place of the norm.
