"""The figures of chapter 6.3."""

# mypy: ignore-errors
import itertools

import matplotlib.pyplot as plt

from lab.display import PALETTE
from lab.parsing.trees import is_tag
from lab.pictures.parts import finish, write


def draw_tree(tree, ax):
    """A tree above its words, which stand side by side."""
    columns = itertools.count()

    def place(node, depth):
        if is_tag(node):
            x = next(columns)
            text = f"{node.label}\n{node.children[0]}" if node.label.isalpha() else "."
        else:
            ends = [place(child, depth + 1) for child in node.children]
            x, text = (ends[0] + ends[-1]) / 2, node.label
            for end in ends:
                line = {"color": "0.6", "linewidth": 1, "clip_on": False}
                ax.plot([x, end], [-depth - 0.2, -depth - 0.8], **line)
        ax.text(x, -depth, text, ha="center", va="top" if "\n" in text else "center", fontsize=8)
        return x

    place(tree, 0)
    ax.axis("off")


def parsing_readings(in_the_noun, in_the_verb):
    """Two readings of one sentence."""
    figure, axes = plt.subplots(1, 2, figsize=(7.4, 3.0), layout="constrained")
    for ax, tree, title in zip(axes, (in_the_noun, in_the_verb), ("the man has it", "Bob has it")):
        draw_tree(tree, ax)
        ax.set(xlim=(-0.7, 8), ylim=(-5.9, 0.4))
        ax.set_title(title)
    plt.show()


def parsing_walk(in_the_verb, linearize):
    """The walk around a tree: how many brackets are open after each token."""
    tokens = linearize(in_the_verb, "tags")
    steps = [1 if token[0] == "(" else -1 if token[0] == ")" else 0 for token in tokens]
    depth = list(itertools.accumulate(steps))
    figure, ax = plt.subplots(figsize=(7, 2.3), layout="constrained")
    ax.step(range(len(tokens)), depth, where="mid", color="0.6")
    colours = {1: PALETTE[0], -1: PALETTE[1], 0: PALETTE[2]}
    for x, (token, y, up) in enumerate(zip(tokens, depth, steps)):
        ax.text(x, y + 0.25, token, ha="center", fontsize=8.5, color=colours[up])
    finish(ax, ylim=(-0.2, 5), yticks=range(5), xticks=[], ylabel="open brackets")

    return tokens


def parsing_spans(gold, in_the_noun, predicted, tree_words):
    """The brackets of the gold tree as intervals."""
    figure, ax = plt.subplots(figsize=(6.4, 2.4), layout="constrained")
    order = sorted(gold, key=lambda bracket: (bracket[2] - bracket[1], -bracket[1]))
    for row, (label, start, end) in enumerate(order):
        color = PALETTE[0 if (label, start, end) in predicted else 1]
        ax.barh(row, end - start - 0.1, left=start + 0.05, color=color, alpha=0.45)
        write(ax, (start + end) / 2, row, label, fontsize=9)
    ax.set_xticks([i + 0.5 for i in range(7)], tree_words(in_the_noun)[:7])
    ax.spines["left"].set_visible(False)
    finish(ax, yticks=[], xlim=(0, 7))


def parsing_real(runs):
    """Our F1 on our held-out files, with 95 percent intervals."""
    figure, ax = plt.subplots(figsize=(5.8, 2.4), layout="constrained")
    for y, name in enumerate(sorted(runs, key=lambda name: runs[name]["test"][0]["f1"])):
        test = runs[name]["test"][0]
        ax.plot(test["F1 interval"], [y, y], color=PALETTE[0])
        ax.plot(test["f1"], y, "o", color=PALETTE[0])
        baseline = runs[name]["baselines"]["right-branching"]["f1"]
        ax.plot(baseline, y, "|", color="grey", markersize=12)
        ax.text(test["F1 interval"][1] + 0.8, y, name, va="center", fontsize=9)
    label = "our F1 (not on WSJ section 23)"
    finish(ax, xlim=(0, 60), ylim=(-0.7, 5.7), yticks=[], xlabel=label)


def parsing_length(runs):
    """F1 by length of the sentence on our held-out files (our measurement, beam 4)."""
    figure, ax = plt.subplots(figsize=(5.5, 2.7), layout="constrained")
    for name, marker in (("craft-long", "o"), ("craft-1", "s"), ("ptb", "^")):
        scores = {f"from {row['words'][0]}": row["f1"] for row in runs[name]["by_length"]}
        ax.plot(scores.keys(), scores.values(), f"{marker}-", label=name)
    finish(ax, legend="best", xlabel="words in the sentence", ylabel="F1", ylim=(0, 100))
