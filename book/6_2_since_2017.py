# %% [markdown]
# # 6.2 Table 3, continued: since 2017
#
# *Table 3 asks what each part of the paper's model is worth {cite}`vaswani2017attention`. We ask the same of six changes
# that came later: one at a time (Muon with its schedule), in the same small model, beside what the paper of each reports.*
#
# A large model of today differs from the one of 2017 in a handful of places ({ref}`section-ap-positions` and the sections
# around it). Each was published with a table, a size and data of its own. Here they stand in one
# table, trained in miniature as in [chapter 6.2](6_2_variations.ipynb) and judged by its rules.
#
# When you have read it you can
#
# - switch each change on, and say what it costs in parameters, time and memory;
# - say which of them help a small translator within 12,500 steps, and which we cannot tell;
# - name what such a comparison leaves open: the rate, the schedule, the size.

# %% tags=["hide-cell"]
import math

import torch

from lab.tables.table_3 import count_parameters
from lab.cost import bytes_kept, step_of, times_in_turns
from lab.display import Table, use_style
from lab.experiments.claims import load_results
from lab.experiments.comparisons import AT_THE_END, compare, correct, could_have_seen, counts, lead_over_time
from lab.experiments.table_3.miniature import OF_GPU, SINCE, VARIATIONS
from lab.experiments.table_3.miniature_summary import percents
from lab.pictures import variations as variations_pictures

use_style()

# %% tags=["hide-cell"]
since = load_results("results")["table_3_since"]
measured = {row["id"]: row for row in since["summary"]}
rows = SINCE[:7]

# %% [markdown]
# (section-since-changes)=
# ## Six changes
#
# | change | in place of | explained in | its paper reports |
# |---|---|---|---|
# | RMSNorm {cite}`zhang2019root` | LayerNorm | {eq}`ap-rms` | as good, in 7 to 64 % less time |
# | rotary positions {cite}`su2021roformer` | sinusoids | {eq}`ap-rotary` | 27.5 BLEU on WMT 2014, where sinusoids have 27.3 |
# | SwiGLU {cite}`shazeer2020glu` | ReLU | {eq}`ap-swiglu` | 1.944 nats where ReLU has 1.997 (T5, 65,536 steps) |
# | QK norm {cite}`henry2020query` | queries and keys as they are | {eq}`ap-rms` | 0.93 BLEU more, a mean of five pairs of languages, in another form |
# | warm-up, stable, decay (WSD) {cite}`hu2024minicpm` | equation 3 | [5.3](5_3_optimizer.ipynb) | as good as a cosine made for the length |
# | Muon {cite}`jordan2024muon` | Adam | [5.3](5_3_optimizer.ipynb) | half of AdamW's operations for its loss {cite}`liu2025muon` |
#
# Each is a setting of the package, off by default. SwiGLU has three matrices in place of two, so its $d_{ff}$ is two
# thirds of base's. The row `adamw` has WSD; its weight decay is 0, so AdamW is Adam here, and the schedule is what it tests. `muon` has WSD as well.
# Search translates with all of them, by the fast decoder or the model itself; an export whose format has no place for one
# is refused in a line.

# %%
lines = []
for one in (VARIATIONS["base"], *rows):
    model, _ = one.configs(seed=1, to_the_end=True)
    settings = ", ".join(f"{name}={value}" for name, value in
                         {**one.model, **one.train}.items())
    lines.append((one.id, settings, f"{count_parameters(model):,}"))
Table(("row", "settings", "parameters"), lines)

# %% tags=["hide-cell"]
assert all(abs(count_parameters(one.configs(1)[0]) / 1_639_936 - 1) < 0.005 for one in (VARIATIONS["base"], *rows))

# %% [markdown]
# (section-since-cost)=
# ## What they cost
#
# A step on one batch of the miniature's size, on this machine: its time, and the bytes that the forward pass keeps for
# the backward pass, both as multiples of base's.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
steps = {one.id: step_of(one) for one in (VARIATIONS["base"], *rows)}
memory = {name: bytes_kept(step) for name, step in steps.items()}
times = times_in_turns(steps, against="base")
Table(("row", "time", "memory"),
      [(name, f"{ratio:.2f}", f"{memory[name] / memory['base']:.2f}")
       for name, ratio in times.items()])

# %% tags=["hide-cell"]
kept = {name: round(bytes_ / memory["base"], 2) for name, bytes_ in memory.items()}
assert kept["adamw"] == 1 < kept["rotary"] < kept["rms-norm"] < 1.2 < kept["swiglu"] < kept["qk-norm"] < 1.5
assert all(0.5 < ratio < 4 for ratio in times.values())

# %% [markdown]
# In parameters they cost nothing. In memory SwiGLU keeps four rows of 341 hidden numbers where ReLU keeps one of 512, and
# our RMSNorm and QK
# norm are made of several operations, each of which keeps its input, where LayerNorm is a single one. Of the 7 to 64 %
# that RMSNorm's paper saves nothing is left here.
#
# (section-since-results)=
# ## What they bring
#
# Model, rate, initial values and 12,500 steps are those of [chapter 6.2](6_2_variations.ipynb)'s base, on the same captions.
# Base, the sum and a seed of rotary ran on CPUs, the other 17 runs on a GPU, where lengths are rounded up to multiples of
# 8: a batch of 512 tokens then holds less text, and 12,500 steps are 8.7 epochs in place of 10.0. That alone costs 6 % of
# perplexity, so the rows are compared with a base that had such batches too. The measure was named before: perplexity of
# the last checkpoint. A difference *counts* if its p-value, corrected for the table's seven comparisons, is below 0.05; else
# the cell has what we would have found in four of five such experiments. A row that *falls* still gained more in its last
# fifth than its difference, and by 6.2's rule gets no verdict. The averages are those of the last five checkpoints.

# %%
found = {one.row: one for one in compare(
    {AT_THE_END: since}, [one.id for one in rows], "ppl")}
p_of = correct(found.values())
lines = []
for name, one in found.items():
    row = measured[name]
    seen = 100 * math.expm1(could_have_seen(one, p_of))
    missed = f"would have found {seen:.0f} %"
    lines.append((name, row["n_seeds"], percents(row["log_ppl_difference"]),
                  "counts" if counts(one, p_of) else missed,
                  "falls" if one.still_falling else "",
                  percents(row["averaged"]["log_ppl_difference"]),
                  f"{row['bleu_difference']['mean']:+.1f}"))
Table(("row", "seeds", "perplexity", "corrected", "curve",
       "averages", "BLEU"), lines)

# %% mystnb={"image": {"alt": "Seven curves over 12,500 steps, each a row's perplexity in percent more than base's. Rotary and SwiGLU fall to minus 30 and minus 34 within 2,000 steps and rise slowly to minus 20 and minus 15. QK norm lies between minus 6 and minus 9. RMSNorm lies a little above zero. WSD stays near zero until step 10,000 and then falls steeply to minus 17. Muon falls to minus 41 at once, rises to minus 22 and falls with WSD to minus 32. The sum of four falls to minus 47 at once, rises to minus 33 and falls with WSD to minus 40."}, "figure": {"caption": "Perplexity against that of base after the same number of steps, in percent, from the validation curves (means over seeds). The rate of `adamw`, `muon` and `sum` falls to 0 in the last fifth.", "name": "fig-since-over-time"}} tags=["hide-input"]
variations_pictures.since_over_time(measured, OF_GPU.id)

# %% mystnb={"image": {"alt": "Learning rate over 12,500 steps, in thousandths. Both rise for 400 steps to 1.3. Equation 3 falls fast, to 0.5 at 3,000 and 0.24 at the end. WSD stays at 1.3 until step 10,000 and falls in a line to 0."}, "figure": {"caption": "The rates of base and of the row `adamw`.", "name": "fig-since-rates"}} tags=["hide-input"]
noam, stable = (VARIATIONS[name].configs(1, 12_500, to_the_end=True)[1] for name in ("base", "adamw"))
variations_pictures.since_rates(128, noam, stable)

# %% [markdown]
# **Three help**: Muon and its schedule bring 32 % of perplexity and 5.9 BLEU, rotary positions 20 %, SwiGLU 15 %. **Two are
# ahead**, WSD by 17 % and QK norm by 6 %, but still fall by more. Of RMSNorm we cannot tell. Beside chapter 6.2 this is much:
# none of its rows ends more than 5 % ahead of base, and the paper's *big* is 12 % ahead.
#
# - **Muon** has 18 % (15 to 21) less perplexity than `adamw`, whose schedule it shares and whose rate was not searched. It
#   passes base's final perplexity after 7,000 steps. On our CPU that saves no time, as the table above says; on the GPU, side
#   by side, its runs took 1.2 times as long as base's.
# - **Rotary and SwiGLU lead from the first steps**, by 30 and 33 % at 2,000, and keep two thirds and less than half of it.
# - **WSD waits.** For 10,000 steps its rate stays at the peak, several times that of equation 3, and it neither wins nor
#   loses. Then the rate falls to 0 and perplexity with it: equation 3 may end too high. Averaging lowers base's
#   perplexity by 3 %, WSD's not at all. Its seeds gain 12, 18 and 20 %. The interval has the noise of Table 3's rows; from
#   these seeds alone it would be 5 to 27 %, and not count.
# - **QK norm** leads by a little throughout. Today it is used against runs that diverge; none of ours did.
#
# Two of the papers report less: 0.2 BLEU for rotary positions, 5 % of perplexity for SwiGLU. A lead that
# shrinks along the whole curve, as SwiGLU's does, may shrink on.

# %% tags=["hide-cell"]
of_seeds = torch.tensor(found["adamw"].found.seeds)  # Student's t for three: 4.3
own = (of_seeds.mean() + sign * 4.303 * of_seeds.std() / 3**0.5 for sign in (-1, 1))
apart = (found["muon"].found.mean - found["adamw"].found.mean + sign * (found["muon"].found.high - found["muon"].found.low) / 2 for sign in (-1, 0, 1))
assert [[round(100 * math.expm1(x)) for x in some] for some in (own, apart)] == [[-27, -5], [-21, -18, -15]]

# %% [markdown]
# (section-since-sum)=
# ### Four together
#
# The row `sum` has rotary positions, SwiGLU, QK norm and WSD, as many parameters, and base's peak rate and batches. Were their effects independent,
# the ratios would multiply. The logarithm of sum over product is that of the sum, less those of four rows, plus three times
# base's: 14 times a run's variance, where a comparison has 2.

# %%
four = [found[name].found.mean
        for name in ("rotary", "swiglu", "qk-norm", "adamw")]
together = found["sum"].found
gap = together.mean - sum(four)
half = math.sqrt(14 / 2) * (together.high - together.low) / 2
print(f"together {100 * math.expm1(together.mean):.0f} %, the product "
      f"{100 * math.expm1(sum(four)):.0f} %")
print(f"their ratio {math.exp(gap):.2f} ({math.exp(gap - half):.2f} to "
      f"{math.exp(gap + half):.2f})")

# %% [markdown]
# **Together they take 40 % of perplexity, from 7.0 to 4.2, and bring 8 BLEU.** By step 5,000 the sum has
# passed base's final perplexity, so its steps could take 2.5 times as long. The tenth by which the product is ahead lies just
# within the noise.
#
# (section-since-rate)=
# ### The rate
#
# Every row has base's rate, so a test of a change is also a test of the rate. For base and for Muon we tried three factors
# in front of equation 3's, on one seed that stands in no table, in batches not rounded to 8 (ten epochs):

# %%
rates = load_results("results")["table_3_rates"]["summary"]
ppl_at = {row["id"]: row["ppl"]["mean"] for row in rates}
factors = (0.15, 0.3, 0.6)
found_at = {name: [ppl_at[f"{name}-at-{factor}"] for factor in factors]
            for name in ("base", "muon")}
Table(("factor", "base", "Muon"),
      [(factor, f"{of_base:.2f}", f"{of_muon:.2f}") for factor, of_base, of_muon
       in zip(factors, found_at["base"], found_at["muon"])])

# %% tags=["hide-cell"]
dearer = {name: [round(100 * (one / ppl[1] - 1)) for one in ppl] for name, ppl in found_at.items()}
assert dearer == {"base": [29, 0, 16], "muon": [10, 0, 13]}
seconds = [one["seconds"] for one in load_results("results")["table_3_rates"]["records"]]
assert round(sum(seconds[3:]) / sum(seconds[:3]), 1) == 1.2

# %% [markdown]
# Both are best at 0.3, which had been chosen for base; half or twice that costs base 29 and 16 % of perplexity, Muon 10 and 13 %.
#
# ### What this leaves open
#
# - **The rate** of every other row, which may like another.
# - **The schedule.** Rows without WSD follow equation 3, whose last rate may be too high for some.
# - **The size.** These models have 1.6 million parameters and 29,000 sentences.
# - **Muon in the sum**: those runs are not finished.

# %% tags=["row-X17", "hide-cell"]
told = {"rms-norm": 2, "rotary": -20, "swiglu": -15, "qk-norm": -6, "adamw": -17, "muon": -32, "sum": -40}
assert {name: round(one.scaled(one.found.mean)) for name, one in found.items()} == told
assert [name for name, one in found.items() if not counts(one, p_of)] == ["rms-norm"] and len(p_of) == 7
base, total = measured[OF_GPU.id], measured["sum"]
lead = {name: lead_over_time(measured[name], base) for name in told}
assert all(lead[name][2000] < -29 for name in ("rotary", "swiglu")) and all(-10 < x < -5 for x in lead["qk-norm"].values())
assert abs(lead["adamw"][10_000]) < 5 and lead["adamw"][12_500] < -15 and [name for name, one in found.items() if one.still_falling] == ["rms-norm", "qk-norm", "adamw"] and gap - half < 0 < gap
to_its_end, of_muon = ({step: math.expm1(nll - base["curve"][-1][2]) for step, _, nll in row["curve"]} for row in (total, measured["muon"]))
assert to_its_end[4500] > 0 > to_its_end[5000] and of_muon[6500] > 0 > of_muon[7000]
seeds = {name: sorted(round(one.scaled(x)) for x in one.found.seeds) for name, one in found.items()}
assert seeds["adamw"] == [-20, -18, -12] and max(seeds, key=lambda name: seeds[name][-1] - seeds[name][0]) == "adamw"
assert round(100 * math.expm1(base["log_ppl_difference"]["mean"])) == 6 and round(total["bleu_difference"]["mean"]) == 8
assert {one["steps"] for one in since["records"]} == {12_500} and sum("H200" in one["hardware"] for one in since["records"]) == 17
ten_epochs = (row for row in load_results("results")["table_3_to_the_end"]["summary"] if row["group"] in ("table", "claims"))
assert all(row["log_ppl_difference"]["mean"] > math.log(0.95) for row in ten_epochs if "log_ppl_difference" in row)

# %% [markdown]
# ```{dropdown} Where this is
# The rows are `SINCE` in `book/lab/experiments/table_3/miniature.py`; `python -m lab.experiments.table_3 --to-the-end
# --rows since` trains what is missing and writes the table from the stored scores. The options are in
# `annotated_transformer/model` and `training/optimizer.py`, their oracles in `tests/model/test_since_2017.py`.
# ```

# %% [markdown]
# ## Exercises
#
# ```{exercise} As many parameters
# :label: ex-since-swiglu
#
# With biases in both, which $d_{ff}$ gives SwiGLU's feed-forward network as many parameters as ReLU's, for
# $d_{\mathrm{model}} = 128$ and a $d_{ff}$ of 512?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $3\,D\,d'_{ff} + 2\,d'_{ff} + D = 2\,D\,d_{ff} + d_{ff} + D$.
# ```
#
# ```{solution} ex-since-swiglu
# :class: dropdown
#
# $131{,}584 / 386 = 340.9$. The row has 341, two thirds of 512, and so 42 parameters more in each network.
# ```

# %% tags=["hide-cell"]
assert 2 * 128 * 512 + 512 == 131_584 and round(131_584 / 386, 1) == 340.9 and 386 * 341 - 131_584 == 42

# %% [markdown]
# ## What to remember
#
# - At equal parameters and steps, Muon with WSD takes 32 % of perplexity, rotary positions 20 % and SwiGLU 15 %; QK norm and
#   WSD are ahead, and of RMSNorm we cannot tell ({ref}`section-since-results`). Four together take 40 %
#   ({ref}`section-since-sum`).
# - A schedule is judged at its end: WSD gains everything in its last fifth.
# - Compare runs on the same batches: rounding lengths for a GPU took 13 % of the text, and cost 6 % of perplexity.
