"""The figures of chapter After the paper."""

# mypy: ignore-errors
import math

import matplotlib.pyplot as plt
import torch

from annotated_transformer import causal_mask, make_batch, record_attention
from annotated_transformer.extras.attention_views.record import HEAT_MAP
from lab.display import PALETTE
from lab.pictures.parts import finish, frame, note, point, write


def ap_families():
    """Who may look at whom (filled)."""
    both = torch.zeros(9, 9, dtype=torch.bool)
    both[:5, :5] = both[5:, :5] = True
    both[5:, 5:] = causal_mask(4)[0, 0]
    pictures = {
        "encoder-only": torch.ones(5, 5).bool(),
        "decoder-only": causal_mask(5)[0, 0],
        "encoder-decoder": both,
    }
    figure, axes = plt.subplots(1, 3, figsize=(6.6, 2.5), layout="constrained")
    for ax, (name, mask) in zip(axes, pictures.items()):
        ax.pcolormesh(mask.int(), cmap="Blues", vmin=0, vmax=1.4, edgecolors="white", linewidth=0.8)
        ax.set(title=name, xlabel="key", ylabel="query", xticks=[], yticks=[], aspect="equal")
        ax.invert_yaxis()
    plt.show()


def ap_found(found, places):
    """Share of 1,000 hidden words that each model finds."""
    figure, ax = plt.subplots(figsize=(5.6, 2.5), layout="constrained")
    for i, (name, shares) in enumerate(found.items()):
        ax.bar([x + 0.4 * i for x in range(4)], shares, width=0.36, label=name)
    for x, chance in enumerate((1 / 4, 1 / 8, 1 / 8, 1 / 4)):
        ax.plot([x - 0.25, x + 0.65], [chance] * 2, color="black", linewidth=1.5)
    ax.set_xticks([x + 0.2 for x in range(4)], places)
    ax.set(ylabel="share found", ylim=(0, 1.05))
    ax.legend(frameon=False, bbox_to_anchor=(1, 0.6), loc="center left")
    plt.show()


def ap_by_word(by_word):
    """Loss of the language model by word, mean over 1,000 sentences."""
    figure, ax = plt.subplots(figsize=(5.6, 2.3), layout="constrained")
    ax.bar(range(9), by_word)
    for x, choices in enumerate((1, 4, 8, 1, 1, 1, 1, 4, 1)):
        ax.plot([x - 0.45, x + 0.45], [math.log(choices)] * 2, color="black", linewidth=1.5)
    ax.set_xticks(range(9), ["the", "old", "horse", "eats", "hay", "near", "the", "river", "[eos]"])
    finish(ax, xlabel="word that is predicted (example)", ylabel="nats")


def ap_cross(number, testing, translator):
    """Heat map of cross-attention, mean of two heads and 100 sentences."""
    batch = make_batch(
        [[[number[word] for word in side.split()] for side in pair] for pair in testing]
    )
    with record_attention(translator) as weights, torch.no_grad():
        translator(batch.source, batch.target_in)
    looked = weights["decoder.layers.0.cross_attention"].mean(dim=(0, 1))
    figure, ax = plt.subplots(figsize=(4.6, 3.2), layout="constrained")
    image = ax.imshow(looked, vmin=0, vmax=1)
    english = ["the", "colour", "noun", "verb", "the", "colour", "noun", "[eos]"]
    french = ["article", "noun", "colour", "verb", "article", "noun", "colour", "[eos]"]
    ax.set_xticks(range(8), labels=english, rotation=45)
    ax.set_yticks(range(8), labels=french)
    ax.set(xlabel="English word, seen", ylabel="French word, written next")
    figure.colorbar(image, ax=ax, label="attention weight")
    plt.show()

    return looked


def ap_lora():
    """LoRA: the frozen matrix, and beside it two thin ones that are trained."""
    figure, ax = plt.subplots(figsize=(5.4, 2.3), layout="constrained")
    frame(ax, 2, 2.1, 2, 2, "$W$ (frozen)", "#dddddd")
    frame(ax, 1.9, -0.4, 0.5, 2, "$A$", PALETTE[4])
    frame(ax, 3.0, 0.4, 2, 0.5, "$B$", PALETTE[4])
    for start, end in (
        ((0.4, 1.8), (1.95, 3.0)),
        ((0.4, 1.7), (1.85, 0.7)),
        ((2.4, 0.65), (2.98, 0.65)),
        ((4.05, 3.0), (5.9, 1.95)),
        ((5.05, 0.65), (5.9, 1.6)),
        ((6.35, 1.75), (7.1, 1.75)),
    ):
        point(ax, start, end)
    for x, label in ((0.2, "$x$"), (6.12, "+"), (7.3, "$y$")):
        write(ax, x, 1.75, label, fontsize=12)
    ax.axis("off")
    finish(ax, xlim=(0, 7.6), ylim=(-0.6, 4.3))


def ap_tuned(scores):
    """Share of right answers after fine-tuning on six questions."""
    figure, ax = plt.subplots(figsize=(5.4, 2.4), layout="constrained")
    for i, label in enumerate(("the 6 animals of the questions", "the 18 others")):
        shares = [both[i] for both in scores.values()]
        ax.bar([x + 0.4 * i for x in range(3)], shares, width=0.36, label=label)
    ax.axhline(0.5, color="black", linewidth=1.5)
    ax.set_xticks([x + 0.2 for x in range(3)], scores)
    ax.set(ylabel="share right", ylim=(0, 1.05))
    ax.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    plt.show()


def ap_rlhf():
    """The three steps of InstructGPT; numbers of prompts as its paper gives them."""
    figure, ax = plt.subplots(figsize=(7.2, 2.4), layout="constrained")
    titles = ("1  demonstrations", "2  comparisons", "3  reinforcement")
    given = (
        "people write answers\n(13,000 prompts)",
        "people rank answers\n(33,000 prompts)",
        "the model answers\n(31,000 prompts)",
    )
    results = (
        "fine-tune the\nlanguage model",
        "train a reward\nmodel $r(x, y)$",
        "train it towards $r$,\nnear the model of 1",
    )
    for i, (title, data, result) in enumerate(zip(titles, given, results)):
        ax.text(3 * i + 1.2, 3.2, title, ha="center", weight="bold")
        for y, label, colour in ((1.75, data, "#fbe0cf"), (0, result, "#cfe6f5")):
            frame(ax, 3 * i, y, 2.4, 1.15, "", colour)
            write(ax, 3 * i + 1.2, y + 0.57, label)
        point(ax, (3 * i + 1.2, 1.73), (3 * i + 1.2, 1.17))
        if i:
            point(ax, (3 * i - 0.58, 0.57), (3 * i - 0.02, 0.57))
    ax.axis("off")
    finish(ax, xlim=(-0.1, 8.5), ylim=(-0.1, 3.6))


def ap_tilt(tilted, at, places):
    """The best distribution for a reward, by the weight of the penalty."""
    figure, ax = plt.subplots(figsize=(5.4, 2.3), layout="constrained")
    for i, (beta, p) in enumerate(tilted.items()):
        label = r"$\pi_0$" if i == 0 else rf"$\beta$ = {beta}"
        ax.bar([x + 0.27 * i for x in range(4)], p[at], width=0.25, label=label)
    ax.set_xticks([x + 0.27 for x in range(4)], places)
    ax.set(ylabel="probability", ylim=(0, 1))
    ax.legend(frameon=False, bbox_to_anchor=(1, 0.6), loc="center left")
    plt.show()


def ap_layers():
    """A layer then and now, from below."""
    then = (
        "embedding + sinusoids",
        "attention: 8 query heads, 8 key heads",
        "add, then LayerNorm",
        "feed-forward: ReLU, 2 matrices",
        "add, then LayerNorm",
    )
    now = (
        "embedding",
        "RMSNorm",
        "attention: 32 query heads, 8 key heads,\nrotary positions, QK norm",
        "add",
        "RMSNorm",
        "feed-forward: SwiGLU, 3 matrices",
        "add",
    )
    figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for x, title, boxes in ((0, "2017: the paper", then), (5.2, "2025: Qwen3-8B", now)):
        ax.text(x + 2.2, 7.15, title, ha="center", weight="bold")
        for i, label in enumerate(boxes):
            y = i * 7 / len(boxes)
            colour = "#fbe0cf" if x and label not in ("add", "embedding") else "#e8eef5"
            frame(ax, x, y, 4.4, 0.74, label, colour, fontsize=8.5)
            if i:
                point(ax, (x + 2.2, y - 7 / len(boxes) + 0.74), (x + 2.2, y))
    ax.axis("off")
    finish(ax, xlim=(-0.1, 9.7), ylim=(-0.1, 7.6))


TIMELINE = {
    "encoder-only": {
        "BERT": 2018.8,
        "RoBERTa": 2019.55,
        "ALBERT": 2019.74,
        "Longformer": 2020.28,
        "ViT": 2020.8,
    },
    "decoder-only": {
        "GPT-1": 2018.45,
        "GPT-2": 2019.13,
        "GPT-3": 2020.4,
        "PaLM": 2022.25,
        "Flamingo": 2022.3,
        "LLaMA": 2023.13,
        "Mixtral": 2024.02,
        "Llama 3": 2024.55,
        "DeepSeek-V3": 2024.98,
        "Qwen3": 2025.37,
        "Kimi K2": 2025.56,
        "Qwen3-Next": 2025.76,
    },
    "encoder-decoder": {"the paper": 2017.45, "Marian": 2018.25, "T5": 2019.8},
    "parts": {
        "sparse experts": 2017.05,
        "relative positions": 2018.2,
        "pre-norm": 2018.72,
        "RMSNorm": 2019.79,
        "one key head": 2019.85,
        "SwiGLU": 2020.12,
        "QK norm": 2020.78,
        "rotary": 2021.3,
        "ALiBi": 2021.65,
        "FlashAttention": 2022.4,
        "grouped heads": 2023.38,
        "RoPE scaling": 2023.48,
        "Mamba": 2023.92,
        "latent attention": 2024.35,
    },
    "training": {
        "parallel decoding": 2017.87,
        "AdamW": 2017.87,
        "scaling laws": 2020.04,
        "LoRA": 2021.45,
        "instruction tuning": 2021.67,
        "InstructGPT": 2022.17,
        "Chinchilla": 2022.24,
        "speculative decoding": 2022.91,
        "DPO": 2023.4,
        "WSD": 2024.27,
        "Muon": 2024.94,
        "DeepSeek-R1": 2025.05,
    },
}


def ap_timeline():
    """The paper among its neighbours, by month of first publication."""
    figure, ax = plt.subplots(figsize=(6.7, 6.0), layout="constrained")
    for column, events in enumerate(TIMELINE.values()):
        ax.axvline(column, color="0.85", zorder=0)
        last = 0.0
        for name, when in events.items():
            last = max(when, last + 0.2)
            ax.plot(column, when, "o", color=PALETTE[0], markersize=4)
            ax.text(column + 0.08, last, name, va="center", fontsize=7.5)
    ax.set_xticks(range(5), labels=list(TIMELINE), ha="left")
    ax.set(xlim=(-0.15, 5.2), ylim=(2026.1, 2016.8), yticks=range(2017, 2026))
    ax.xaxis.tick_top()
    ax.tick_params(axis="x", length=0)
    ax.spines["bottom"].set_visible(False)
    plt.show()


def ap_positions():
    """The angle of a rotary column pair by position, and ALiBi's weights by distance."""
    position, frequency = torch.arange(2049, dtype=torch.float64), 10_000.0 ** (-40 / 64)
    angles = {"as they are": frequency * position, "divided by 4": frequency * position / 4}
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.6), layout="constrained")
    left.axhspan(0, frequency * 512, color="0.9", zorder=0)
    for name, angle in angles.items():
        left.plot(angle, label=f"positions {name}")
    left.set(xlabel="position", ylabel="angle (radians)", title="RoPE", xlim=(0, 2048), ylim=(0, 7))
    left.legend(frameon=False)
    for head in (1, 3, 8):
        weights = [math.exp(-(2.0**-head) * distance) for distance in range(61)]
        right.plot(weights, label=f"head {head}")
    settings = {"xlabel": "distance", "ylabel": "weight, present token = 1", "title": "ALiBi"}
    finish(right, legend="best", **settings)

    return angles


def ap_cache():
    """Which queries share which keys, and what a layer caches per token."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(7.4, 2.9), layout="constrained", width_ratios=(1.3, 1)
    )
    line = {"color": "0.7", "linewidth": 0.8, "zorder": 0}
    kinds = {"multi-head": 8, "grouped": 2, "multi-query": 1, "latent": 8}
    for row, (name, n_keys) in enumerate(kinds.items()):
        y, keys = -1.5 * row, [(i + 0.5) * 8 / n_keys - 0.5 for i in range(n_keys)]
        for i in range(8):
            left.plot([i, keys[i * n_keys // 8]], [y + 0.7, y], **line)
        left.scatter(range(8), [y + 0.7] * 8, 26, color=PALETTE[0])
        colour = PALETTE[1] if name != "latent" else "#f3c9ab"
        left.scatter(keys, [y] * n_keys, 26, color=colour, marker="s")
        left.text(-0.8, y + 0.35, name, ha="right", va="center")
    left.plot([x for key in range(8) for x in (3.5, key)], [-5.3, -4.5] * 8, **line)
    left.scatter([3.5], [-5.3], 60, color=PALETTE[1], marker="s")
    left.axis("off")
    left.set(xlim=(-4, 7.5))
    cached = {
        "multi-head": 2 * 128 * 128,
        "grouped (8)": 2 * 8 * 128,
        "multi-query": 2 * 128,
        "latent": 512 + 64,
    }
    for bar in right.barh(list(cached)[::-1], list(cached.values())[::-1], color=PALETTE[1]):
        right.text(bar.get_width() * 1.15, bar.get_y() + 0.4, f"{bar.get_width():,}", va="center")
    finish(right, xscale="log", xlim=(100, 300_000), xlabel="numbers per token and layer")


def window(n, r):
    """Keys at most r // 2 places away."""
    return (torch.arange(n)[:, None] - torch.arange(n)).abs() <= r // 2


def with_global(mask, n_global):
    """The mask, with some tokens that see all and are seen by all."""
    is_global = torch.arange(len(mask)) < n_global
    return mask | is_global[:, None] | is_global


def with_random(mask, n_random):
    """The mask, with some random keys for each query."""
    scores = torch.rand(mask.shape, generator=torch.Generator().manual_seed(0))
    return mask | (scores >= scores.topk(n_random, dim=1).values[:, -1:])


def patterns(n):
    """Four masks for n tokens, by name."""
    band = window(n, 5)
    return {
        "full": torch.ones(n, n).bool(),
        "window": band,
        "Longformer": with_global(band, 2),
        "BigBird": with_random(with_global(band, 2), 2),
    }


def ap_restricted():
    """Which query may look at which key, in four kinds of attention."""
    figure, axes = plt.subplots(1, 4, figsize=(7, 2.1), layout="constrained")
    large = patterns(1024)
    for ax, (name, mask) in zip(axes, patterns(24).items()):
        ax.imshow(mask, vmin=0, vmax=1.4, cmap="Blues")
        ax.set(title=f"{name}\n{int(large[name].sum()):,}", xticks=[], yticks=[])
        growth = large[name].sum() / patterns(512)[name].sum()
        assert 1.9 < growth < (4.1 if name == "full" else 2.1)
    plt.show()


def ap_ssm(a, as_matrix, b, c):
    """A state-space layer as a matrix, beside causal softmax attention."""
    softmax = (c @ b.T / 2).masked_fill(~causal_mask(24)[0, 0], -math.inf).softmax(dim=-1)
    figure, axes = plt.subplots(1, 2, figsize=(6.6, 2.8), layout="constrained")
    matrices = {"state space": as_matrix(a, b, c), "softmax attention": softmax}
    for ax, (name, matrix) in zip(axes, matrices.items()):
        image = ax.imshow(matrix, cmap=HEAT_MAP, vmin=0, vmax=matrix[6:].max())
        ax.set(title=name, xlabel="input $j$", ylabel="output $i$")
        figure.colorbar(image, ax=ax, label="weight", extend="max")
    plt.show()


def ap_scaling():
    """Parameters and training tokens, as the cited papers give them."""
    quoted = {
        "the paper, base": (65e6, 2.5e9),
        "GPT-3": (175e9, 300e9),
        "Gopher": (280e9, 300e9),
        "Chinchilla": (70e9, 1.4e12),
        "LLaMA-7B": (6.7e9, 1.0e12),
        "Llama 3 8B": (8e9, 15e12),
        "Llama 3 405B": (405e9, 15.6e12),
    }
    figure, ax = plt.subplots(figsize=(5.8, 3.0), layout="constrained")
    ax.plot([3e7, 1e12], [6e8, 2e13], color="0.6")
    ax.text(9e8, 4.5e9, "20 tokens per parameter", color="0.4", rotation=31)
    for name, (n_parameters, tokens) in quoted.items():
        ax.plot(n_parameters, tokens, "o", color=PALETTE[0])
        below, ratio = name in ("the paper, base", "Gopher", "Chinchilla"), tokens / n_parameters
        label = f"{name}: {ratio:,.0f}" if ratio > 2 else f"{name}: {ratio:.1f}"
        shift = (6, -10) if below else (-6, -10 if name == "GPT-3" else 4)
        note(ax, label, (n_parameters, tokens), shift, ha="left" if below else "right")
    ax.set(xscale="log", xlabel="parameters", xlim=(2e7, 8e12))
    finish(ax, yscale="log", ylabel="tokens", ylim=(3e8, 1e14))
