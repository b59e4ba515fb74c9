"""The figures of both chapters 6.1."""

# mypy: ignore-errors
import math

import matplotlib.pyplot as plt
import torch
from matplotlib.patches import FancyBboxPatch

from annotated_transformer.decoding.search import length_penalty
from lab.attention_map import plot_attention
from lab.display import PALETTE
from lab.gpu_rates import BF16, measured_share
from lab.pictures.parts import finish, note, write
from lab.tables.table_2 import training_time


def training(curve, losses, rate):
    """Losses and the learning rate over the training."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 2.8), layout="constrained")
    left.plot(range(1, 1501), losses, linewidth=0.6, label="training, smoothed")
    left.plot(range(50, 1501, 50), curve, "o-", markersize=3, label="validation")
    left.axhline(math.log(2000), color="0.6", linestyle=":")
    left.set(xlabel="step", ylabel="nats per token", ylim=(0, None))
    left.legend()
    right.plot(range(1, 1501), [rate(step) for step in range(1, 1501)])
    right.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    plt.show()


def averaging(ppl):
    """Validation perplexity of the mean of the last checkpoints."""
    figure, ax = plt.subplots(figsize=(4.6, 2.5), layout="constrained")
    ax.plot(list(ppl), list(ppl.values()), "o-")
    finish(ax, xlabel="checkpoints averaged", ylabel="validation perplexity")


def beam(book, score, rounds):
    """The beam as a tree: a column for each round, those that lead to the best ending on top."""
    winner, order = max(score, key=score.get), sorted(score, key=score.get, reverse=True)
    figure, ax = plt.subplots(figsize=(8.4, 2.9), layout="constrained")
    place = {(): (-1, 0.0)}

    def leads_to(key):  # the best finished hypothesis that begins so; after all others if none does
        return next((i for i, whole in enumerate(order) if whole[: len(key)] == key), len(order))

    for step, found in enumerate(rounds):
        for rank, key in enumerate(sorted((tuple(tokens) for tokens, _ in found), key=leads_to)):
            place[key], on_path = (step, -float(rank)), winner[: step + 1] == key
            line = {"color": PALETTE[5 * (not on_path)], "lw": 0.8 + 1.7 * on_path}
            ax.plot(*zip(place[key[:-1]], place[key]), **line, zorder=1)
            label = book.tokenizer.pieces([key[-1]])[0].strip("▁")
            if key in score:
                label = f"end {score[key]:.2f}"
            box = dict(boxstyle="round,pad=0.2", fc="white", ec="0.2" if key in score else "none")
            write(ax, *place[key], label, fontsize=8, bbox=box, parse_math=False)
    ax.axis("off")
    finish(ax, xlim=(-1.2, len(rounds) - 0.4), ylim=(-3.6, 0.6))


def penalty():
    """The length penalty."""
    figure, ax = plt.subplots(figsize=(4.4, 2.5), layout="constrained")
    for alpha, style in ((0.0, ":"), (0.6, "-"), (1.0, "--")):
        penalties = [length_penalty(n, alpha) for n in range(1, 41)]
        ax.plot(range(1, 41), penalties, style, label=f"$\\alpha = {alpha}$")
    ax.set(xlabel="length $n$ in tokens", ylabel="$lp(n)$", ylim=(0, None))
    ax.legend()
    plt.show()


def cache(continues):
    """Left: the cached tokens as a tree."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.6, 2.1), layout="constrained")
    at = {"bos": (0, 0), "10": (1, 1), "11": (1, 0), "12": (1, -1)}
    at |= {"20": (2, 1.4), "21": (2, 0.6), "22": (2, -1)}
    for pair in ("bos 10", "bos 11", "bos 12", "10 20", "10 21", "12 22"):
        left.plot(*zip(*(at[token] for token in pair.split())), color="0.6", zorder=1)
    for token, (x, y) in at.items():
        box = dict(boxstyle="round", fc="white", ec="0.6")
        write(left, x, y, token, color="0.6" if token == "11" else "black", bbox=box)
    left.set(xlim=(-0.4, 2.4), ylim=(-1.5, 1.9))
    left.axis("off")
    right.imshow(continues, cmap="Blues", vmin=0, vmax=1.4)
    right.set_xticks(range(7), labels=list(at))
    right.set_yticks(range(3), labels=["10 20", "10 21", "12 22"])
    finish(right, xlabel="cached token", ylabel="hypothesis")


def translation_attention(cross, model, output, source, target_in, tokenizer):
    """Encoder-decoder attention of the book's model, last layer, mean of its heads."""
    ids = source[0].tolist()
    read = tokenizer.pieces(target_in[0].tolist())
    axes = plot_attention(cross.mean(0), read, tokenizer.pieces(ids))
    predicted = axes.secondary_yaxis("right")
    next_tokens = tokenizer.pieces([*output, model.config.eos_id])
    predicted.set_yticks(range(len(next_tokens)), labels=next_tokens)
    predicted.set_ylabel("predicts")
    plt.show()


def results_cost(TABLE_2):
    """Table 2 as a picture, with the paper's numbers."""
    groups = {"single model": (0, "o"), "ensemble": (2, "s"), "Transformer": (1, "*")}
    shifts = {
        "MoE single model": (-32, 3),
        "ConvS2S single model": (5, -13),
        "ConvS2S ensemble": (-22, 8),
        "GNMT ensemble": (7, -10),
    }  # of labels that have no room at the right
    figure, axes = plt.subplots(1, 2, figsize=(7, 3.4), layout="constrained")
    titles = {"en_de": "English-German", "en_fr": "English-French"}
    for ax, (pair, title) in zip(axes, titles.items()):
        for row in TABLE_2:
            cost, score = getattr(row, f"cost_{pair}"), getattr(row, f"bleu_{pair}")
            if cost and score:
                kind = next((group for group in groups if group in row.name), "single model")
                colour, marker = groups[kind]
                style = {"color": PALETTE[colour], "label": kind, "markersize": 8}
                ax.plot(cost, score, marker, **style)
                name = row.name.split(" ensemble")[0].split(" +")[0].split("(")[-1].strip(")")
                note(ax, name, (cost, score), shifts.get(f"{name} {kind}", (7, -3)))
        ax.set(xscale="log", xlim=(1e18, 1e22), xlabel="training cost (operations)")
        ax.set(title=title, ylabel="BLEU", ylim=(23.9, 29) if pair == "en_de" else (37.6, 42.3))
    handles, labels = axes[0].get_legend_handles_labels()
    once = {label: (handle, label) for handle, label in zip(handles, labels)}
    figure.legend(*zip(*once.values()), loc="outside lower center", ncols=3)
    plt.show()


def results_recomputed(RUNS, printed, recomputed):
    """Fourteen printed costs against time × GPUs × rate: all lie on the diagonal."""
    figure, ax = plt.subplots(figsize=(4.6, 3.1), layout="constrained")
    ax.plot([2e18, 2e21], [2e18, 2e21], color="0.7", zorder=0)
    for name, marker in (("GNMT", "s"), ("ConvS2S", "o"), ("MoE", "D"), ("Transformer", "*")):
        chosen = [k for k, run in enumerate(RUNS) if run.system.startswith(name)]
        costs = [recomputed[k] for k in chosen], [printed[k] for k in chosen]
        ax.plot(*costs, marker, label=name, markersize=8)
    ax.set(xscale="log", xlabel="recomputed (operations)")
    finish(ax, legend="best", yscale="log", ylabel="printed (operations)")


def results_six():
    """Where the six operations come from: a matrix takes part in three products per token."""
    figure, ax = plt.subplots(figsize=(7, 1.5), layout="constrained")
    products = (
        ("forward", r"$y = x\,W$", "#dce9f5"),
        ("backward, to the input", r"$\nabla x = \nabla y\,W^\top$", "#fbe3cf"),
        ("backward, to the weight", r"$\nabla W = x^\top \nabla y$", "#fbe3cf"),
    )
    for i, (title, product, colour) in enumerate(products):
        look = {"boxstyle": "round,pad=0.05", "facecolor": colour, "edgecolor": "0.35"}
        ax.add_patch(FancyBboxPatch((2.4 * i, 0), 2, 0.8, **look))
        write(ax, 2.4 * i + 1, 0.4, product, fontsize=12)
        ax.text(2.4 * i + 1, 1.05, title, ha="center", color="0.35")
        ax.text(2.4 * i + 1, -0.4, "2 operations per weight", ha="center")
        if i < 2:
            write(ax, 2.4 * i + 2.2, 0.4, "+", fontsize=12)
    write(ax, 7.15, 0.4, "= 6", fontsize=12)
    ax.axis("off")
    finish(ax, xlim=(-0.1, 7.5), ylim=(-0.5, 1.3))


def results_length(lengths, ratios):
    """Counted operations over the rule of thumb, in batches of 25,000 tokens."""
    figure, ax = plt.subplots(figsize=(5, 2.3), layout="constrained")
    ax.plot(lengths, ratios, "o-")
    ax.axhline(1, color="0.7")
    finish(ax, xlabel="tokens per sentence", ylabel="counted / rule", ylim=(0.98, 1.16))


def results_operations(share, stated):
    """The share of the stated cost that was computed (our count)."""
    figure, ax = plt.subplots(figsize=(6, 1.6), layout="constrained")
    names = [f"{name}, {row.cost_en_de:.1e}" for name, (_, row) in stated.items()]
    ax.barh(names, [1, 1], color="0.88", label="stated cost")
    ax.barh(names, list(share.values()), color=PALETTE[0], label="computed")
    for y, part in enumerate(share.values()):
        ax.text(part + 0.01, y, f"{part:.0%}", va="center")
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    ax.set(xlim=(0, 1))
    ax.invert_yaxis()
    figure.legend(loc="outside upper center", ncols=2)
    plt.show()


def results_today(done, gpus):
    """Hours on one GPU, computed from the vendor's rate; dotted, the shares that we measured."""
    figure, ax = plt.subplots(figsize=(5.2, 2.9), layout="constrained")
    percent = range(10, 61, 2)
    for (name, operations), colour in zip(done.items(), PALETTE):
        for gpu, style in zip(gpus, ("-", "--", "-.")):
            hours = [training_time(operations, BF16[gpu], u / 100) / 3600 for u in percent]
            ax.plot(percent, hours, style, color=colour, label=f"{name}, {gpu}")
    for compiled in (False, True):
        ax.axvline(100 * measured_share(compiled), color="0.5", linestyle=":")
    ax.set(yscale="log", xlabel="utilization (%)", ylabel="hours on one GPU")
    marks = [0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]
    ax.set_yticks(marks, [f"{mark:g}" for mark in marks])
    ax.minorticks_off()
    figure.legend(loc="outside right upper")
    plt.show()


def results_ngrams(hypothesis, ngrams, reference):
    """The n-grams of a hypothesis, coloured by whether the reference has them."""
    figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
    for i, word in enumerate(hypothesis):
        write(ax, i + 0.5, 0, word, weight="bold")
    y = 0.7
    for n in range(1, 5):
        ax.text(-0.15, y + 0.16 * n, f"$p_{n}$", ha="right", va="center", fontsize=11)
        for i in range(len(hypothesis) - n + 1):
            found = tuple(hypothesis[i : i + n]) in ngrams(reference, n)
            ax.barh(y + 0.32 * (i % n), n - 0.12, 0.24, i + 0.06, color=PALETTE[0 if found else 1])
        y += 0.32 * n + 0.35
    ax.axis("off")
    finish(ax, xlim=(-0.5, 7.1), ylim=(y, -0.3))


def results_averaging(kept, path):
    """One of the 2,000 runs: five checkpoints (dots) and their mean (line)."""
    figure, ax = plt.subplots(figsize=(5.5, 2.3), layout="constrained")
    one = torch.stack(path)[:, 3]
    ax.plot(range(301, 401), one[300:], color="0.6", linewidth=1)
    ax.plot(range(320, 401, 20), kept[:, 3], "o", label="checkpoints")
    ax.axhline(kept[:, 3].mean(), color=PALETTE[1], label="their mean")
    ax.axhline(0, color="0.3", linestyle=":")
    ax.set(xlabel="step", ylabel="weight")
    ax.legend(frameon=False, loc="lower right", ncols=2)
    plt.show()
