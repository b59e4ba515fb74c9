"""The figures of chapter Common mistakes and Errata."""

# mypy: ignore-errors
import math

import matplotlib.pyplot as plt
import torch

from annotated_transformer import noam_learning_rate
from lab.display import PALETTE
from lab.pictures.parts import finish, write_cells


def clinic_symptoms(patients):
    """Training loss and held-out score of a right model and of six mistakes."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 3.4), layout="constrained")
    styles = ("-", "--", ":", "-.", ":", "-", "--")
    for (mistake, (losses, shares)), style, marker in zip(patients.items(), styles, "os^v*Dx"):
        left.plot(range(10, 401), losses.unfold(0, 10, 1).mean(dim=1), style, label=mistake)
        right.plot(range(50, 401, 50), shares, style, marker=marker, markersize=4)
    left.set(xlabel="step", ylabel="training loss, nats per token", ylim=(0, None))
    right.set(xlabel="step", ylabel="held-out sentences right", ylim=(-0.03, 1.03))
    right.text(290, 0.04, "the other five: near 0", ha="center", fontsize=8)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    plt.show()


def clinic_masks(causal, padding):
    """Two masks and their mistakes."""
    panels = {
        "causal": causal,
        "upside down": ~causal,
        "padding": padding,
        "rows for columns": padding.T,
    }
    figure, axes = plt.subplots(1, 4, figsize=(6.4, 1.9), layout="constrained")
    for ax, (title, mask) in zip(axes, panels.items()):
        for query in range(5):
            for key in range(5):
                colour = PALETTE[0] if mask[query, key] else "0.93"
                ax.add_patch(plt.Rectangle((key - 0.46, query - 0.46), 0.92, 0.92, fc=colour))
        ax.set(xlabel="key", xticks=range(5), xlim=(-0.6, 4.6))
        ax.set(yticks=range(5), ylim=(4.6, -0.6), aspect="equal")
        ax.set_title(title, fontsize=9)
    axes[0].set_ylabel("query")
    plt.show()


def clinic_rates(schedules):
    """The first 300 updates of the paper's schedule and of three mistakes."""
    figure, ax = plt.subplots(figsize=(5.4, 2.8), layout="constrained")
    for (name, rates), style in zip(schedules.items(), ("-", ":", "--", "-.")):
        ax.plot(range(1, 301), rates, style, label=name)
    ax.set(xscale="log", yscale="log", xlabel="update", ylabel="learning rate", ylim=(1e-11, 1e-3))
    ax.legend(fontsize=8, ncols=2)
    plt.show()


def clinic_heads(right_split, wrong_split):
    """From which position each entry of a head comes."""
    origin = torch.arange(5)[:, None].expand(5, 12).contiguous()
    figure, axes = plt.subplots(2, 3, figsize=(5.6, 3.4), layout="constrained")
    for row, split, name in zip(axes, (right_split, wrong_split), ("right", "wrong")):
        for head, ax in enumerate(row):
            ax.imshow(split(origin)[head], vmin=0, vmax=4, aspect="auto")
            cells = split(origin)[head].tolist()
            write_cells(ax, cells, is_dark=lambda value: value < 3, fontsize=8)
            ax.set(xticks=[], yticks=range(5), title=f"{name}, head {head + 1}")
        row[0].set_ylabel("position in the head")
    plt.show()


def clinic_scale(attention_weights):
    """The largest of 20 attention weights, the mean over 500 random queries."""
    widths, generator, largest = (4, 16, 64, 256, 1024), torch.Generator().manual_seed(0), {}
    for name, power in (("with the scale", 0.0), ("without", 0.5)):
        vectors = [torch.randn(520, d_k, generator=generator) for d_k in widths]
        largest[name] = [
            attention_weights(v[:500] * v.size(1) ** power, v[500:]).amax(-1).mean().item()
            for v in vectors
        ]
    figure, ax = plt.subplots(figsize=(5, 2.6), layout="constrained")
    for (name, values), style in zip(largest.items(), ("o-", "s--")):
        ax.plot(widths, values, style, label=name)
    ax.set(xscale="log", xticks=widths, xticklabels=widths, xlabel="$d_k$")
    ax.set(ylabel="largest weight", ylim=(0, 1))
    ax.minorticks_off()
    ax.legend()
    plt.show()

    return largest


def errata_rows(big_high, big_low, high, low):
    """A number line of rows of width d_model from 34,000 to 43,000."""
    figure, ax = plt.subplots(figsize=(6, 1.6), layout="constrained")
    ax.barh([0, 1], [high - low, big_high - big_low], 0.5, [low, big_low], color=PALETTE[:2])
    ax.axvline(37_000, color="0.4", linestyle="--")
    ax.text(37_080, 1.3, "stated: 37,000 tokens", color="0.4")
    ax.set_yticks([0, 1], ["ten rows of Table 3", "big"])
    marks = range(34_000, 43_001, 3000)
    ax.set_xticks(marks, [f"{n:,}" for n in marks])
    finish(ax, xlim=(34_000, 43_000), ylim=(-0.5, 1.7))


def errata_rate():
    """The rate of equation 3 for base, and of the last default."""
    steps = range(1, 20_001, 50)
    paper_rate = [noam_learning_rate(s, 512, 4000) for s in steps]
    today_rate = [noam_learning_rate(s, 512, 8000, factor=2.0) for s in steps]
    figure, ax = plt.subplots(figsize=(5.5, 2.7), layout="constrained")
    ax.plot(steps, paper_rate, label="paper: 4,000 steps, factor 1")
    ax.plot(steps, today_rate, "--", label="last default: 8,000 steps, factor 2")
    finish(ax, legend="best", xlabel="step", ylabel="learning rate", ylim=(0, None))

    return paper_rate, today_rate


def errata_smoothing(smoothed, smoothed_by_the_code):
    """Both versions of a smoothed target, for five tokens."""
    figure, ax = plt.subplots(figsize=(5, 2.3), layout="constrained")
    targets = {
        "formula: over all tokens": smoothed(0.3, 5),
        "code: over the others": smoothed_by_the_code(0.3, 5),
    }
    for shift, (label, q) in zip((-0.18, 0.18), targets.items()):
        bars = ax.bar([i + shift for i in range(5)], q.tolist(), 0.36, label=label)
        ax.bar_label(bars, fmt="%.3g", fontsize=8)
    ax.set_xticks(range(5), ["right token", *(f"other {i}" for i in range(1, 5))])
    finish(ax, legend="best", ylabel="target", ylim=(0, 0.9))


def errata_exponent(column):
    """Wavelength of each column."""
    figure, ax = plt.subplots(figsize=(5.5, 2.6), layout="constrained")
    ax.plot(2 * math.pi * 10000.0 ** (column // 2 * 2 / 512), label="the paper")
    wrong = 2 * math.pi * 10000.0 ** (2 * column / 512)
    ax.plot(wrong, "--", label="every column its own exponent")
    ax.axhline(600, color="0.4", linestyle=":")
    finish(ax, legend="best", yscale="log", xlabel="column", ylabel="wavelength (tokens)")
