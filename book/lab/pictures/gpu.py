"""The figures of the chapter On a GPU."""

# mypy: ignore-errors
import matplotlib.pyplot as plt
import torch

from lab.display import PALETTE


def gpu_queue():
    """The queue of a GPU, with and without a wait after every step."""
    figure, axes = plt.subplots(2, 1, figsize=(6.4, 2.9), layout="constrained", sharex=True)
    for ax, title, step in (
        (axes[0], "no synchronization", 2),
        (axes[1], ".item() after every step", 2.8),
    ):
        for i in range(4 if step == 2 else 3):
            launched = (0.8 if step == 2 else 2.8) * i
            begins = max(0.4 + step * i, launched + 0.4)
            ax.broken_barh([(launched, 0.7)], (0.6, 0.7), color=PALETTE[5])
            ax.broken_barh([(begins, 1.95)], (-0.4, 0.7), color=PALETTE[1])
            ax.text(launched + 0.35, 0.95, str(i + 1), ha="center", va="center")
            ax.text(begins + 1, -0.05, f"step {i + 1}", ha="center", va="center", color="white")
            if step > 2:
                ax.annotate(
                    "",
                    (launched + 2.75, 0.95),
                    (launched + 0.75, 0.95),
                    arrowprops={"arrowstyle": "<->"},
                )
                ax.text(launched + 1.75, 1.05, "waits", ha="center")
        ax.set(title=title, yticks=[0, 0.95], xticks=[], ylim=(-0.6, 1.5), xlim=(-0.1, 8.6))
        ax.set_yticklabels(["GPU", "host"])
    plt.show()


def gpu_roofline(GPUS, h100, intensity):
    """Rooflines from vendors' figures, and operations of the base model on the H100's."""
    figure, ax = plt.subplots(figsize=(6.6, 3.6), layout="constrained")
    axis = torch.logspace(-1.0, 3.3, 200, dtype=torch.float64)
    for name, style in (("H100 SXM", "-"), ("A100 80GB", "--"), ("T4", ":")):
        roof = (axis * GPUS[name].bandwidth).clamp(max=GPUS[name].rate) / 1e12
        ax.plot(axis, roof, style, zorder=1)
        ax.text(2400, roof[-1], name, va="center")
    shifts = {"Adam": (7, -11), "add + LayerNorm": (-6, 11), "logits": (-8, 6)}
    for name in (
        "ReLU",
        "Adam",
        "softmax",
        "add + LayerNorm",
        "fused attention",
        "$W_Q$",
        "logits",
    ):
        height = min(h100.rate, intensity[name] * h100.bandwidth) / 1e12
        ax.scatter(intensity[name], height, s=22, color="black", zorder=2)
        where = {
            "textcoords": "offset points",
            "ha": "left" if name in ("Adam", "logits") else "right",
        }
        ax.annotate(name, (intensity[name], height), shifts.get(name, (-6, 3)), **where)
    label = "at most (TFLOP/s)"
    ax.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel=label)
    ax.set(xlim=(0.08, 3e4), ylim=(0.1, 3000))
    plt.show()


def gpu_tiles():
    """Plain attention writes all scores to memory."""
    figure, axes = plt.subplots(1, 2, figsize=(6.8, 2.9), layout="constrained")
    for ax, title in zip(axes, ("equation 1 in three kernels", "in tiles, one kernel")):
        for i in range(6):
            for j in range(6):
                filled = ax is axes[0] or (i in (2, 3) and j in (2, 3))
                ax.add_patch(
                    plt.Rectangle((j, 5 - i), 0.92, 0.92, color=PALETTE[1] if filled else "#dddddd")
                )
        ax.set(title=title, xlim=(-1.3, 9.6), ylim=(-1.2, 6.4), aspect="equal")
        ax.text(3, -0.9, "keys", ha="center")
        ax.text(-0.9, 3, "queries", rotation=90, va="center")
        ax.axis("off")
    axes[0].text(6.2, 3, "$n^2$ scores\nwritten, read,\nwritten, read", va="center")
    axes[1].annotate("", (6, 3), (0, 3), arrowprops={"arrowstyle": "->", "linewidth": 1.5})
    axes[1].text(
        6.3,
        3,
        "$m, z, o$\nper query",
        va="center",
        bbox={"boxstyle": "round", "facecolor": "white"},
    )
    plt.show()


def gpu_kept(flash_kept, lengths, math_kept):
    """What autograd keeps for one head of width 64, counted on a CPU in float32."""
    figure, ax = plt.subplots(figsize=(4.8, 2.8), layout="constrained")
    for kept, style, label in (
        (math_kept, "o-", "math"),
        (flash_kept, "s-", "flash"),
        ([4 * L * L for L in lengths], "k--", "$4 n^2$ bytes"),
    ):
        ax.plot(lengths, [x / 1e6 for x in kept], style, label=label)
    ax.set(xscale="log", yscale="log", xlabel="length $n$", ylabel="kept (MB)")
    ax.set_xticks(lengths, labels=map(str, lengths), minor=False)
    ax.minorticks_off()
    ax.legend(frameon=False)
    plt.show()


def gpu_packed():
    """The same three sentences, padded to 24 positions and packed into 16."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(7, 1.7), layout="constrained", width_ratios=(1, 2)
    )
    sizes, starts = (3, 8, 5), (0, 3, 11, 16)
    for row, (size, start) in enumerate(zip(sizes, starts)):
        for i in range(8):
            left.add_patch(
                plt.Rectangle((i, -row), 0.9, 0.85, color=PALETTE[row] if i < size else "#dddddd")
            )
        for i in range(size):
            right.add_patch(plt.Rectangle((start + i, -1), 0.9, 0.85, color=PALETTE[row]))
    for start in starts:
        right.text(start, -1.55, str(start), ha="center")
    left.set(title="padded", xlim=(-0.2, 8.2), ylim=(-2.2, 1))
    right.set(title="packed", xlim=(-0.5, 16.5), ylim=(-2.2, 1))
    left.axis("off"), right.axis("off")
    plt.show()


def gpu_memory(base, big, parts, per_token):
    """Memory that a float32 step needs, counted."""
    figure, ax = plt.subplots(figsize=(6.6, 3.1), layout="constrained")
    runs = [
        (name, config, n_tokens)
        for name, config in (("base", base), ("big", big))
        for n_tokens in (25_000, 12_500, 6250)
    ]
    for x, (name, config, n_tokens) in enumerate(runs):
        bottom = 0
        for i, part in enumerate(parts(config, n_tokens, per_token[name])):
            ax.bar(
                x + x // 3 * 0.5,
                part / 1e9,
                bottom=bottom,
                color=PALETTE[(0, 5, 2, 1, 4)[i]],
                width=0.7,
            )
            bottom += part / 1e9
        ax.text(x + x // 3 * 0.5, bottom + 0.5, f"{bottom:.1f}", ha="center")
    for label, colour in zip(
        ("weights", "gradients", "Adam", "activations", "gradient of logits"), (0, 5, 2, 1, 4)
    ):
        ax.bar(0, 0, color=PALETTE[colour], label=label)
    ax.axhline(16, color="black", linestyle="--", linewidth=1)
    ax.set_xticks(
        [x + x // 3 * 0.5 for x in range(6)],
        [f"{name}\n{n_tokens:,}" for name, _, n_tokens in runs],
    )
    (
        ax.set(ylabel="GB"),
        ax.legend(frameon=False, loc="upper left", ncols=3, bbox_to_anchor=(0, 1.22)),
    )
    plt.show()


def gpu_ring(rounds):
    """Of how many GPUs each chunk holds the sum, round by round."""
    figure, axes = plt.subplots(1, 7, figsize=(7.2, 1.7), layout="constrained")
    for t, (ax, counts_) in enumerate(zip(axes, [[[1] * 4] * 4, *rounds])):
        ax.imshow(counts_, vmin=0, vmax=4, cmap="Blues")
        for i in range(4):
            for c in range(4):
                ax.text(
                    c,
                    i,
                    counts_[i][c],
                    ha="center",
                    va="center",
                    color="white" if counts_[i][c] > 2 else "black",
                )
        ax.set(title=f"round {t}" if t else "start", xticks=[], yticks=[])
    axes[0].set(ylabel="GPU", xlabel="chunk")
    plt.show()
