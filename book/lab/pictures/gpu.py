"""The figures of the chapter On a GPU."""

# mypy: ignore-errors
import matplotlib.pyplot as plt
import torch

from lab.display import PALETTE
from lab.pictures.parts import finish, note, point, rectangle, write, write_cells


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
            write(ax, launched + 0.35, 0.95, str(i + 1))
            write(ax, begins + 1, -0.05, f"step {i + 1}", color="white")
            if step > 2:
                point(ax, (launched + 0.75, 0.95), (launched + 2.75, 0.95), arrowstyle="<->")
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
    for name in ("ReLU", "softmax", "fused attention", "$W_Q$", *shifts):
        height = min(h100.rate, intensity[name] * h100.bandwidth) / 1e12
        ax.scatter(intensity[name], height, s=22, color="black", zorder=2)
        side = "left" if name in ("Adam", "logits") else "right"
        note(ax, name, (intensity[name], height), shifts.get(name, (-6, 3)), ha=side)
    ax.set(xscale="log", xlabel="operations per byte", xlim=(0.08, 3e4))
    finish(ax, yscale="log", ylabel="at most (TFLOP/s)", ylim=(0.1, 3000))


def gpu_tiles():
    """Plain attention writes all scores to memory."""
    figure, axes = plt.subplots(1, 2, figsize=(6.8, 2.9), layout="constrained")
    for ax, title in zip(axes, ("equation 1 in three kernels", "in tiles, one kernel")):
        for i in range(6):
            for j in range(6):
                filled = ax is axes[0] or (i in (2, 3) and j in (2, 3))
                rectangle(ax, j, 5 - i, 0.92, 0.92, color=PALETTE[1] if filled else "#dddddd")
        ax.set(title=title, xlim=(-1.3, 9.6), ylim=(-1.2, 6.4), aspect="equal")
        ax.text(3, -0.9, "keys", ha="center")
        ax.text(-0.9, 3, "queries", rotation=90, va="center")
        ax.axis("off")
    axes[0].text(6.2, 3, "$n^2$ scores\nwritten, read,\nwritten, read", va="center")
    point(axes[1], (0, 3), (6, 3), linewidth=1.5)
    box = {"boxstyle": "round", "facecolor": "white"}
    axes[1].text(6.3, 3, "$m, z, o$\nper query", va="center", bbox=box)
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
    finish(ax, legend="best")


def gpu_packed():
    """The same three sentences, padded to 24 positions and packed into 16."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(7, 1.7), layout="constrained", width_ratios=(1, 2)
    )
    sizes, starts = (3, 8, 5), (0, 3, 11, 16)
    for row, (size, start) in enumerate(zip(sizes, starts)):
        for i in range(8):
            rectangle(left, i, -row, 0.9, 0.85, color=PALETTE[row] if i < size else "#dddddd")
        for i in range(size):
            rectangle(right, start + i, -1, 0.9, 0.85, color=PALETTE[row])
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
    names = ("weights", "gradients", "Adam", "activations", "gradient of logits")
    colours = dict(zip(names, (PALETTE[i] for i in (0, 5, 2, 1, 4))))
    places = [x + x // 3 * 0.5 for x in range(6)]
    for x, (name, config, n_tokens) in zip(places, runs):
        bottom = 0
        for colour, part in zip(colours.values(), parts(config, n_tokens, per_token[name])):
            ax.bar(x, part / 1e9, bottom=bottom, color=colour, width=0.7)
            bottom += part / 1e9
        ax.text(x, bottom + 0.5, f"{bottom:.1f}", ha="center")
    for label, colour in colours.items():
        ax.bar(0, 0, color=colour, label=label)
    ax.axhline(16, color="black", linestyle="--", linewidth=1)
    ax.set_xticks(places, [f"{name}\n{n_tokens:,}" for name, _, n_tokens in runs])
    ax.legend(frameon=False, loc="upper left", ncols=3, bbox_to_anchor=(0, 1.22))
    finish(ax, ylabel="GB")


def gpu_ring(rounds):
    """Of how many GPUs each chunk holds the sum, round by round."""
    figure, axes = plt.subplots(1, 7, figsize=(7.2, 1.7), layout="constrained")
    for t, (ax, counts_) in enumerate(zip(axes, [[[1] * 4] * 4, *rounds])):
        ax.imshow(counts_, vmin=0, vmax=4, cmap="Blues")
        write_cells(ax, counts_, is_dark=lambda count: count > 2)
        ax.set(title=f"round {t}" if t else "start", xticks=[], yticks=[])
    finish(axes[0], ylabel="GPU", xlabel="chunk")


def gpu_attention(records):
    """Time and memory of attention's kernels, by length."""
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.2), layout="constrained", sharex=True)
    for color, kernel in zip(PALETTE, dict.fromkeys(one["kernel"] for one in records)):
        of_kernel = [one for one in records if one["kernel"] == kernel and one["available"]]
        lengths = [one["length"] for one in of_kernel]
        for ax, key in zip(axes, ("milliseconds", "peak_megabytes")):
            ax.plot(lengths, [one[key] for one in of_kernel], "o-", ms=4, color=color, label=kernel)
    axes[0].legend(fontsize=8)
    for ax, label in zip(axes, ("milliseconds", "megabytes beyond the inputs")):
        ax.set(xscale="log", yscale="log", xlabel="length", xticks=lengths)
        ax.set_xticklabels([f"{length:,}" for length in lengths], fontsize=8)
        ax.minorticks_off()
        ax.set_ylabel(label)
    plt.show()
