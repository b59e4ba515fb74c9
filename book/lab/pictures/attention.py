"""The figures of both chapters 7."""

# mypy: ignore-errors
import io

import matplotlib.pyplot as plt
import PIL.Image
import torch
from IPython.display import Image, display
from matplotlib.colors import LinearSegmentedColormap

from lab.display import PALETTE

INK = LinearSegmentedColormap.from_list("ink", ["white", PALETTE[0], "#00263A"])


def draw_lines(ax, words, heads, queries=None, bold=(), least=0.1):
    """Queries above, keys below; a line's strength is the weight, its colour the head."""
    for k, ((name, A), color) in enumerate(zip(heads.items(), PALETTE)):
        shift = 0.12 * (k - (len(heads) - 1) / 2)  # lines of several heads end side by side
        for i in range(len(words)) if queries is None else queries:
            for j, weight in enumerate(A[i].tolist()):
                if weight > least:
                    style = {"alpha": min(1, 0.3 + weight), "linewidth": 0.8 + 2.2 * weight}
                    ax.plot((i, j + shift), (1, 0), color=color, **style)
        ax.plot([], [], color=color, label=name)
    for j, word in enumerate(words):
        weight = "bold" if word in bold else "normal"
        style = {"rotation": 90, "ha": "center", "fontsize": 8.5, "weight": weight}
        ax.text(j, 1.05, word, va="bottom", **style), ax.text(j, -0.05, word, va="top", **style)
    ax.set(xlim=(-0.7, len(words) - 0.3), ylim=(0, 1))
    ax.axis("off")


def display_light(figure):
    """Show a figure of many lines in 24 colours, at a quarter of the bytes."""
    drawn, light = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, dpi=100, bbox_inches="tight")
    plt.close(figure)
    image = PIL.Image.open(drawn).convert("RGB")
    image.quantize(24, dither=PIL.Image.Dither.NONE).save(light, "PNG", optimize=True)
    display(Image(light.getvalue()))


def heads_of_layer(words, W, layer, query, bold):
    """Where one word looks, in all heads of a layer."""
    figure, ax = plt.subplots(figsize=(6.6, 3.4), layout="constrained")
    heads = {f"{layer + 1}.{i + 1}": A for i, A in enumerate(W[layer])}
    draw_lines(ax, words, heads, [query], bold)
    style = {"frameon": False, "title": "layer.head", "title_fontsize": 8.5}
    figure.legend(loc="outside lower center", ncols=len(heads), **style)
    plt.show()


def viz_control(name_4, bars):
    """What a word gives to the thing and to its owner, a pair of bars for each sentence."""
    figure, ax = plt.subplots(figsize=(6.6, 3.4), layout="constrained")
    for shift, side, color in ((-0.2, 1, PALETTE[0]), (0.2, 0, PALETTE[1])):
        places, shares = (
            [y + shift for y in range(len(bars))],
            [share[side] for share in bars.values()],
        )
        ax.barh(places, shares, 0.36, color=color, label=("the owner", "the thing")[side])
    ax.set_yticks(range(len(bars)), labels=bars, fontsize=8)
    ax.set(xlabel=f"share, {name_4}", xlim=(0, 1))
    ax.invert_yaxis()
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    plt.show()


def viz_pair(pair, best, query, bold):
    """Where a word looks in each of two sentences, in some heads."""
    figure, axes = plt.subplots(1, 2, figsize=(6.6, 2.9), layout="constrained")
    for ax, (words, A) in zip(axes, pair.values()):
        draw_lines(ax, words, {name: A[at] for name, at in best.items()}, [query], bold)
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, frameon=False)
    plt.show()


def viz_two_heads(words, W, two):
    """All lines of two heads of a layer, one above the other."""
    figure, axes = plt.subplots(2, 1, figsize=(6.6, 5.4), layout="constrained")
    for ax, i in zip(axes, sorted(two)):
        draw_lines(ax, words, {f"{i + 1}": W[i]})
        ax.text(-1.6, 0.5, f"layer 2, head {i + 1}", rotation=90, va="center")
    display_light(figure)


def viz_all_heads(words, W):
    """A map for each head, a row for each layer."""
    N, h = W.shape[:2]
    figure, axes = plt.subplots(N, h, figsize=(6.6, 5.2), layout="constrained")
    for layer, row in enumerate(axes):
        for head, ax in enumerate(row):
            ax.imshow(W[layer, head], cmap=INK, vmin=0, vmax=1)
            below, left = (words if layer == N - 1 else []), (words if head == 0 else [])
            ax.set_title(f"{layer + 1}.{head + 1}")
            ax.set_xticks(
                range(len(words)), labels=below or [""] * len(words), rotation=90, fontsize=7
            )
            ax.set_yticks(range(len(words)), labels=left or [""] * len(words), fontsize=7)
            ax.tick_params(length=0)
    plt.show()


def viz_cross(german, english, A, links):
    """The mean of each layer's heads, with the alignment by hand as boxes."""
    figure, axes = plt.subplots(1, len(A), figsize=(6.8, 3.2), layout="constrained", sharey=True)
    for layer, ax in enumerate(axes):
        image = ax.imshow(A[layer].mean(0), cmap=INK, vmin=0, vmax=1)
        ax.set_xticks(range(len(english)), labels=english, rotation=90, fontsize=8)
        ax.set_yticks(range(len(german)), labels=german, fontsize=8)
        ax.set(title=f"layer {layer + 1}", ylabel="" if layer else "query, by what it predicts")
        for target, source in (link.split("-") for link in links.split()):
            corner = (english.index(source) - 0.5, german.index(target) - 0.5)
            style = {"fill": False, "edgecolor": PALETTE[1], "linewidth": 1.2}
            ax.add_patch(plt.Rectangle(corner, 1, 1, **style))
    figure.colorbar(image, ax=axes, label="weight", shrink=0.7)
    plt.show()


def viz_measures(profile, bits, even_bits):
    """Every encoder head on a hundred sentences."""
    N, h = bits.shape
    names = [f"{layer}.{head}" for layer in range(1, N + 1) for head in range(1, h + 1)]
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(6.4, 4), layout="constrained", sharey=True, width_ratios=(2.2, 1)
    )
    start = torch.zeros(N * h)
    for (name, part), color in zip(profile.items(), (*PALETTE[:4], "#BBBBBB")):
        left.barh(names, part.flatten(), left=start, color=color, label=name)
        start += part.flatten()
    right.plot(bits.flatten(), names, "o", markersize=4)
    right.axvline(even_bits, linestyle="--", color="grey")
    left.set(xlabel="share of the attention", ylabel="layer.head", xlim=(0, 1))
    left.invert_yaxis()
    right.set(xlabel="entropy (bits)", xlim=(-0.1, None))
    figure.legend(loc="outside upper left", ncols=5, frameon=False)
    plt.show()


def viz_knock_out(change, modules):
    """What the model loses without one head: change of the loss in nats per token."""
    h = change.size(1)
    figure, ax = plt.subplots(figsize=(5.8, 3.2), layout="constrained")
    image = ax.imshow(change, cmap=INK, aspect="auto", vmin=0)
    for row in range(len(modules)):
        for i in range(h):
            color = "white" if change[row, i] > 0.4 * change.max() else "black"
            ax.text(
                i, row, f"{change[row, i]:.3f}", ha="center", va="center", color=color, fontsize=8
            )
    ax.set_yticks(range(len(modules)), labels=modules)
    ax.set_xticks(range(h), labels=range(1, h + 1))
    ax.set_xlabel("head")
    figure.colorbar(image, ax=ax, label="nats per token")
    plt.show()


def viz_pruning(counts, curve):
    """The loss against the number of heads that are gone."""
    ax = plt.subplots(figsize=(5, 2.4), layout="constrained")[1]
    ax.plot(counts, curve, marker="o")
    label = "change of the loss\n(nats per token)"
    ax.set(xlabel="heads removed of 36, cheapest first", ylabel=label, xticks=counts)
    plt.show()


def viz_mixed(pieces, changed, recovered):
    """The share of the change that each exchanged position brings about."""
    ax = plt.subplots(figsize=(5, 2.2), layout="constrained")[1]
    ax.bar(range(len(pieces)), recovered, color=[PALETTE[1] if c else PALETTE[0] for c in changed])
    ax.set_xticks(range(len(pieces)), labels=pieces, rotation=45)
    ax.set_ylabel("share of the change")
    plt.show()


def controlled_sentence(test):
    """What we know of a sentence."""
    english, german = test[2002].texts
    figure, ax = plt.subplots(figsize=(7.8, 2.3), layout="constrained")
    places = {}
    for y, text in ((1, english), (0, german)):
        for x, word in enumerate(text.split()):
            special = {
                "it": PALETTE[2],
                "sie": PALETTE[2],
                "cup": PALETTE[0],
                "Tasse": PALETTE[0],
                "skirt": PALETTE[1],
                "Rock": PALETTE[1],
            }.get(word)
            ax.text(
                x,
                y,
                word,
                ha="center",
                va="center",
                color=special or "black",
                weight="bold" if special else "normal",
                fontsize=8.5,
            )
            places[word] = x
    for noun, color, style, height in (
        ("cup", PALETTE[0], "-", 0.28),
        ("skirt", PALETTE[1], "--", 0.3),
    ):
        ax.annotate(
            "",
            (places[noun], 1.15),
            (places["it"], 1.15),
            arrowprops={
                "arrowstyle": "->",
                "color": color,
                "linestyle": style,
                "connectionstyle": f"arc3,rad={height}",
            },
        )
        ax.text(
            (places[noun] + places["it"]) / 2,
            2.3 if noun == "cup" else 0.6,
            "antecedent" if noun == "cup" else "distractor",
            color=color,
            ha="center",
        )
    ax.annotate(
        "",
        (places["sie"], 0.18),
        (places["it"], 0.82),
        arrowprops={"arrowstyle": "->", "color": PALETTE[2]},
    )
    ax.set(xlim=(-0.6, 13), ylim=(-0.3, 2.6)), ax.axis("off")
    plt.show()


def controlled_book_model(looks):
    """The encoder heads of the book's model, mean over 160 sentences."""
    ax = plt.subplots(figsize=(3.6, 3), layout="constrained")[1]
    for layer, marker in enumerate("os^"):
        ax.plot(
            looks["distractor"][layer],
            looks["antecedent"][layer],
            marker,
            label=f"layer {layer + 1}",
        )
    top = 1.15 * max(found.max().item() for found in looks.values())
    ax.plot((0, top), (0, top), "--", color="grey", linewidth=1)
    ax.set(xlabel="weight on the distractor", ylabel="weight on the antecedent")
    ax.legend(frameon=False)
    plt.show()

    return top


def controlled_shares(together):
    """The share of the best head for ten links, in three models."""
    LINKS = [
        "pronoun to antecedent, encoder",
        "pronoun to antecedent, decoder",
        "pronoun to antecedent, cross",
        "pronoun to pronoun, cross",
        "verb to particle, encoder",
        "verb to particle, cross",
        "particle to verb, decoder",
        "last verb to verb, cross",
        "article to next noun, encoder",
        "article to noun, cross",
    ]
    figure, ax = plt.subplots(figsize=(6.4, 3.9), layout="constrained")
    shares = [together["shares"][name] for name in LINKS]
    for seed, (marker, color) in enumerate(zip("os^", PALETTE)):
        ax.plot(
            [found["seeds"][seed] for found in shares],
            LINKS,
            marker,
            color=color,
            label=f"seed {seed + 1}",
            alpha=0.85,
        )
    ax.plot(
        [found["even"] for found in shares],
        LINKS,
        "|",
        color="#666666",
        markersize=12,
        label="even weights",
    )
    ax.plot(
        [sum(found["untrained"]) / 3 for found in shares],
        LINKS,
        "x",
        color="#666666",
        label="untrained",
    )
    ax.set(xlabel="share of the best head", xlim=(0, 1.03))
    (
        ax.invert_yaxis(),
        ax.grid(axis="y", color="#EEEEEE"),
        figure.legend(loc="outside upper center", ncols=5, frameon=False),
    )
    plt.show()

    return LINKS, shares


def controlled_removed(removed):
    """Right answers with all heads, without the best one, and without another."""
    figure, ax = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    y, labels = 0, []
    for (link, rows), color in zip(removed.items(), PALETTE):
        for seed, row in enumerate(rows, 1):
            before, after, other = (
                100 * row[key] for key in ("before", "after", "other heads, mean")
            )
            ax.plot((after, before), (y, y), color=color, linewidth=1)
            ax.plot(before, y, "o", color=color, markerfacecolor="white")
            ax.plot(after, y, "o", color=color), ax.plot(other, y, "x", color="#666666")
            labels, y = [*labels, f"{link}, seed {seed}"], y + 1
    ax.set_yticks(range(y), labels=labels, fontsize=8)
    ax.set(xlabel="right answers (%)", xlim=(60, 101))
    ax.invert_yaxis()
    plt.show()


def controlled_wheel(runs):
    """Where it looks in two sentences that differ in one word, all heads."""
    figure, axes = plt.subplots(1, 2, figsize=(6.8, 3.1), layout="constrained", sharey=True)
    for ax, (text, found) in zip(axes, runs[0]["example"].items()):
        words = [*text.split(), "</s>"]
        image = ax.imshow(
            torch.tensor(found["it"]).flatten(0, 1), cmap=INK, vmin=0, vmax=1, aspect="auto"
        )
        ax.set_xticks(range(len(words)), labels=words, rotation=90, fontsize=8.5)
        ax.set_yticks(
            range(8), labels=[f"{layer}.{head}" for layer in (1, 2) for head in (1, 2, 3, 4)]
        )
        ax.set(title=f"it ... too {words[-3]}", ylabel="layer.head" if ax is axes[0] else "")
        for j in (words.index("wheel"), words.index("bucket")):
            ax.get_xticklabels()[j].set(weight="bold", color=PALETTE[1])
    figure.colorbar(image, ax=axes, label="weight of it", shrink=0.8)
    plt.show()


def viz_copying(left, written, following):
    """For each encoder-decoder head: names right without it, and where it looks within a name."""
    figure, axes = plt.subplots(1, 3, figsize=(6.6, 2), layout="constrained")
    maps = (
        ("names right without it", left, "{:.0f}"),
        ("on the piece just written", written, "{:.2f}"),
        ("on the piece that comes next", following, "{:.2f}"),
    )
    N, h = left.shape
    for ax, (title, values, form) in zip(axes, maps):
        ax.imshow(values, cmap=INK, vmin=0, vmax=max(1, values.max()), aspect="auto")
        for i in range(N):
            for j in range(h):
                ink = "white" if values[i, j] > values.max() / 2 else "black"
                ax.text(j, i, form.format(values[i, j]), ha="center", va="center", color=ink)
        ax.set(title=title, xlabel="head", xticks=range(h), xticklabels=range(1, h + 1))
        ax.set(yticks=range(N), yticklabels=range(1, N + 1))
    axes[0].set(ylabel="layer")
    plt.show()
