"""The figures of chapter 6.2 and of the page of claims."""

# mypy: ignore-errors
import matplotlib.pyplot as plt

from annotated_transformer.training.optimizer import noam_learning_rate, stable_learning_rate
from lab.display import PALETTE
from lab.experiments.comparisons import lead_over_time
from lab.pictures.parts import finish, note, write


def dot(ax, x, y, is_filled):
    """A point, white inside where it does not count."""
    inside = PALETTE[0] if is_filled else "white"
    ax.plot(x, y, "o", color=PALETTE[0], markersize=6, markerfacecolor=inside)


def var_parameters(printed):
    """Where the parameters are, with 37,000 rows in the embedding."""
    figure, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
    names = ("embedding", "attention", "feed-forward and norms")
    for y, row in enumerate(printed):
        c = row.model_config(37_000)
        parts = [37_000 * c.d_model, 6 * c.N * c.h * c.d_model * (c.d_k + c.d_v)]
        parts.append(row.count(37_000) - sum(parts))
        for i, size in enumerate(parts):
            style = {"color": PALETTE[(0, 5, 4)[i]], "label": None if y else names[i]}
            ax.barh(y, size / 1e6, left=sum(parts[:i]) / 1e6, **style)
        ax.plot(row.parameters, y, "D", color="black", markersize=4)
    ax.set_yticks(range(len(printed)), labels=[row.name for row in printed], fontsize=8)
    ax.invert_yaxis()
    ax.legend(fontsize=8)
    finish(ax, xlabel="parameters (millions)")


def var_vocabulary(high, low, printed, vocabulary_interval):
    """The numbers of rows that each printed number of parameters allows."""
    figure, ax = plt.subplots(figsize=(5.8, 3.2), layout="constrained")
    for y, row in enumerate(printed):
        first, last = vocabulary_interval([row])
        color = PALETTE[1 if row.name == "big" else 0]
        ax.barh(y, last - first, left=first, height=0.6, color=color)
    ax.axvspan(low, high, color=PALETTE[4], alpha=0.6, linewidth=0)
    ax.axvline(37_000, color="black", linestyle="--", linewidth=1)
    ax.annotate("stated: about 37,000", (36_900, 0.3), ha="right", fontsize=8)
    names = [f"{row.name} ({row.parameters}M)" for row in printed]
    ax.set_yticks(range(len(printed)), labels=names, fontsize=8)
    ax.invert_yaxis()
    finish(ax, xlabel="rows of width d_model", xlim=(33_000, 44_000))


def var_bleu(TABLE_3, rows):
    """BLEU of each row of Table 3 minus that of base (25.8)."""
    figure, ax = plt.subplots(figsize=(5.6, 4.2), layout="constrained")
    others = TABLE_3[1:]
    for y, row in enumerate(others):
        difference = row.bleu - rows["base"].bleu
        ax.barh(y, difference, color=PALETTE[" ABCDE".index(row.letter or " ")])
        side, shift = ("left", 3) if difference >= 0 else ("right", -3)
        style = {"ha": side, "va": "center", "fontsize": 8}
        note(ax, f"{difference:+.1f}", (difference, y), (shift, 0), **style)
    names = [f"{row.letter}  {row.name}" for row in others]
    ax.set_yticks(range(len(others)), labels=names, fontsize=8)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.invert_yaxis()
    finish(ax, xlabel="BLEU minus base (25.8)", xlim=(-2.5, 1))


def var_columns(TABLE_3):
    """Perplexity and BLEU of the twenty rows, numbers of the paper."""
    figure, ax = plt.subplots(figsize=(5.2, 3.2), layout="constrained")
    named = {
        "base": (6, 4),
        "big": (6, 2),
        "N=2": (-26, 4),
        "eps_ls=0.0": (-58, -4),
        "eps_ls=0.2": (6, 3),
        "p_drop=0.0": (6, 2),
    }
    for row in TABLE_3:
        color = PALETTE[1 if "eps_ls" in row.train else 0]
        ax.plot(row.ppl, row.bleu, "o", color=color, markersize=5)
        if row.name in named:
            note(ax, row.name, (row.ppl, row.bleu), named[row.name], fontsize=9)
    ax.set(xlabel="perplexity (in the paper)", ylabel="BLEU (in the paper)", xlim=(4.2, 6.3))
    plt.show()


def var_controls(asked, measured, parts, percent):
    """What base loses without each of its parts, beside what was asked for."""
    figure, ax = plt.subplots(figsize=(6.4, 2.4), layout="constrained")
    for y, control in enumerate([*parts, "no-positions"]):
        mean, low_end, high_end = percent(measured[control]["log_ppl_difference"])
        ax.plot([low_end, high_end], [y, y], color=PALETTE[0])
        ax.plot(mean, y, "o", color=PALETTE[0], markersize=5)
        if control in asked:
            ax.plot([asked[control]] * 2, [y - 0.3, y + 0.3], color="black")
    ax.set_yticks(range(5), labels=[*parts.values(), "trained without positions"], fontsize=9)
    ax.invert_yaxis()
    finish(ax, xlabel="perplexity, more than whole (%)")


def var_miniature(TABLE_3, TEN, early, late, counts, p_of, rows):
    """Perplexity against base's, in percent: after two epochs and after ten."""
    figure, ax = plt.subplots(figsize=(5.6, 4.4), layout="constrained")
    for row in (row for row in TABLE_3 if row.id in TEN):
        one = late[row.id]
        x, (y, *ends) = 100 * (row.ppl / rows["base"].ppl - 1), map(one.scaled, one.found[:3])
        before = one.scaled(early[row.id].found.mean)
        ax.plot([x, x], [before, y], color="grey", linewidth=0.8)
        ax.plot(x, before, "o", color="grey", markersize=3)
        ax.plot([x, x], ends, color=PALETTE[0])
        dot(ax, x, y, counts(one, p_of))
        seeds = [one.scaled(seed) for seed in one.found.seeds]
        ax.plot([x] * len(seeds), seeds, "o", color="black", markersize=1.5, zorder=3)
        side, shift = ("right", -6) if row.id in ("C6", "D3", "A3") else ("left", 6)
        note(ax, row.name, (x, y), (shift, 0), ha=side, va="center", fontsize=9)
    ax.axline((0, 0), slope=1, color="grey", linestyle="--", linewidth=0.8)
    ax.axhline(0, color="black", linewidth=0.6)
    ax.axvline(0, color="black", linewidth=0.6)
    finish(ax, xlim=(-14, 28), xlabel="in the paper (%)", ylabel="here (%)")


OVER_TIME = (
    {"C1": "one layer", "D1": "no dropout", "no-positions": "no positions", "pre-norm": "pre-norm"},
    {"A1": "one head", "E1": "learned positions", "C4": "half the width", "big": "big"},
)


def var_over_time(at_the_end):
    """Each row's perplexity against base's, by the step, in two panels."""
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.2), sharey=True, layout="constrained")
    for ax, names in zip(axes, OVER_TIME):
        over_time(ax, at_the_end, "base", names)
        ax.axvline(2000, color="grey", linestyle=":", linewidth=0.8)
    finish(axes[0], ylabel="perplexity, more than base (%)")


def since_over_time(rows, base):
    """Each change since 2017 against base, by the step."""
    figure, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
    over_time(ax, rows, base, {name: name for name in rows if name != base})
    ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))  # no end is covered
    finish(ax, ylabel="perplexity, more than base (%)")


def since_rates(d_model, noam, stable):
    """The learning rates of two runs that end at the same step."""
    figure, ax = plt.subplots(figsize=(6, 2.4), layout="constrained")
    steps, n = range(20, noam.train_steps + 1, 20), noam.warmup_steps
    peak = noam_learning_rate(n, d_model, n, noam.lr_factor)
    falling = [noam_learning_rate(step, d_model, n, noam.lr_factor) for step in steps]
    end = (stable.train_steps, peak, n, stable.decay_share)
    ax.plot(steps, [1e3 * rate for rate in falling], color="black", label="base: equation 3")
    flat = [1e3 * stable_learning_rate(step, *end) for step in steps]
    ax.plot(steps, flat, color=PALETTE[4], label="adamw: WSD")
    ax.legend(fontsize=8)
    finish(ax, xlabel="steps", ylabel="rate, thousandths", ylim=(0, None))


def over_time(ax, rows, against, names):
    """Perplexity by the step, in percent more than that of a row."""
    for color, (name, label) in zip(PALETTE, names.items()):
        lead = lead_over_time(rows[name], rows[against])
        ax.plot(*zip(*lead.items()), color=color, label=label)
    ax.axhline(0, color="black", linewidth=0.6)
    ax.legend(fontsize=8)
    ax.set(xlabel="steps")


def claims_tallies(counted):
    """The three tallies: claims and choices by what they rest on."""
    figure, ax = plt.subplots(figsize=(6, 2.3), layout="constrained")
    colors = {"holds": PALETTE[2], "does not hold": PALETTE[1]}
    colors |= {"cannot tell": "darkgrey", "not tested at this length": "gainsboro"}
    left = [0, 0, 0]
    for verdict, color in colors.items():
        sizes = [verdicts[verdict] for verdicts in counted.values()]
        ax.barh(range(3), sizes, left=left, color=color, edgecolor="white", label=verdict)
        for y, n in enumerate(sizes):
            if n:
                write(ax, left[y] + n / 2, y, str(n), fontsize=9)
            left[y] += n
    ax.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.45, 1), frameon=False, fontsize=8)
    ax.set_yticks(range(3), labels=list(counted))
    ax.invert_yaxis()
    finish(ax, xlabel="claims and choices")


def claims_rules(cases, judged):
    """Five made-up intervals and their verdicts."""
    figure, ax = plt.subplots(figsize=(6.4, 2.2), layout="constrained")
    ax.axvspan(-1, 1, color="lightgrey", linewidth=0)
    ax.axvline(0, color="black", linewidth=0.8)
    for y, (case, (is_worse, is_near)) in enumerate(zip(cases, judged)):
        ax.plot(case, [y, y], color=PALETTE[0], linewidth=2)
        said = f"worse: {is_worse}; nearly the same: {is_near}"
        ax.annotate(said, (2.3, y), va="center", fontsize=9)
    ax.set(xlabel="BLEU difference", xticks=[-2, -1, 0, 1, 2], yticks=[])
    finish(ax, xlim=(-2.3, 8.4), ylim=(4.6, -0.6))


def claims_differences(early, late, counts, p_of):
    """Perplexity against that of what each is compared with, in percent, at both lengths."""
    figure, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
    words = {"unscaled": "no scale", "unscaled-A1": "no scale, one head", "short": "short captions"}
    words["short-learned"] = "short, learned positions"
    names = list(early)
    for some, color, shift in ((early, "grey", -0.15), (late, PALETTE[0], 0.15)):
        for name, one in some.items():
            y, (mean, *ends) = names.index(name) + shift, map(one.scaled, one.found[:3])
            ax.plot(ends, [y, y], color=color)
            seeds = [one.scaled(seed) for seed in one.found.seeds]
            ax.plot(seeds, [y] * len(seeds), "o", color="black", markersize=2, zorder=3)
            inside = color if some is early or counts(one, p_of) else "white"
            ax.plot(mean, y, "o", color=color, markersize=6, markerfacecolor=inside)
    ax.axvline(0, color="black", linewidth=0.8)
    labels = [words.get(name, name.replace("no-", "no ")) for name in names]
    ax.set_yticks(range(len(names)), labels=labels, fontsize=9)
    ax.invert_yaxis()
    finish(ax, xlabel="perplexity, more (%)")
