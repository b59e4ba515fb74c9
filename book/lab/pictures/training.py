"""The figures of chapters 5.2 to 5.4."""

# mypy: ignore-errors
import math

import matplotlib.pyplot as plt
import torch
from matplotlib.patches import FancyBboxPatch
from torch.nn import functional as F

from annotated_transformer import noam_learning_rate
from lab.display import PALETTE
from lab.pictures.parts import finish, write, write_cells


def box(ax, x, y, text, colour="white", width=0.8, height=0.5, **style):
    """A box with rounded corners and a text in it."""
    look = {"boxstyle": "round,pad=0.04", "facecolor": colour, "edgecolor": "0.35"}
    ax.add_patch(FancyBboxPatch((x - width / 2, y - height / 2), width, height, **look))
    write(ax, x, y, text, **style)


def arrow(ax, start, end, **style):
    """An arrow from `start` to `end`."""
    ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "0.35", **style})


def path(ax, *points):
    """A line through the points with an arrow at its end."""
    ax.plot(*zip(*points[:-1]), color="black", linewidth=1.3, solid_capstyle="butt")
    end = {"arrowstyle": "-|>", "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", points[-1], points[-2], arrowprops=end)


def teacher():
    """Two drawings of a decoder that is to copy a b c."""
    figure, axes = plt.subplots(1, 2, figsize=(7, 2.2), layout="constrained")
    runs_of = {
        "teacher forcing: reads the truth": (["<s>", "a", "b", "c"], ["a", "d", "c", "</s>"]),
        "free running: reads its own output": (["<s>", "a", "d", "b"], ["a", "d", "b", "c"]),
    }
    for ax, (title, (read, written)) in zip(axes, runs_of.items()):
        for t, (word, output, truth) in enumerate(zip(read, written, ["a", "b", "c", "</s>"])):
            box(ax, t, 0, word, "#dce9f5" if "truth" in title or t == 0 else "#fbe3cf", 0.5)
            ink = PALETTE[2 if output == truth else 1]
            box(ax, t, 2, output, "white", 0.5, color=ink, weight="bold")
            arrow(ax, (t, 0.3), (t, 1.7))
            if "own" in title and t < 3:
                arrow(ax, (t + 0.28, 1.9), (t + 0.8, 0.3), linestyle=":")
        ax.text(-0.45, 1, "decoder", rotation=90, va="center", ha="center", color="0.35")
        ax.set(title=title, xlim=(-0.65, 3.5), ylim=(-0.4, 2.4))
        ax.axis("off")
    plt.show()


def step(batch, logits, model):
    """One step with the shapes of our batch."""
    size = {name: " × ".join(map(str, getattr(batch, name).shape)) for name in batch._fields[:3]}
    n_weights = sum(w.numel() for w in model.parameters())
    data, changed, made = "#dce9f5", "#fbe3cf", "white"
    boxes = [
        (0, 2.2, f"source\n{size['source']}", data),
        (0, 1.2, f"target_in\n{size['target_in']}", data),
        (2, 1.7, f"Transformer\n{n_weights:,} weights", changed),
        (4, 1.7, f"logits\n{' × '.join(map(str, logits.shape))}", made),
        (6, 1.7, f"loss / {batch.n_tokens}\none number", made),
        (6, 2.7, f"target_out\n{size['target_out']}", data),
        (4.6, 0.2, "gradients, one per weight\n$W_1$: 128 × 64", made),
        (1.8, 0.2, "Adam\nrate $r(s)$", made),
    ]
    arrows = [((0.75, 2.2), (1.25, 1.9)), ((0.75, 1.2), (1.25, 1.5)), ((2.75, 1.7), (3.25, 1.7))]
    arrows += [((4.75, 1.7), (5.25, 1.7)), ((6, 2.35), (6, 2.05)), ((6, 1.35), (5.4, 0.55))]
    arrows += [((3.5, 0.2), (2.6, 0.2)), ((1.9, 0.55), (1.97, 1.35))]
    figure, ax = plt.subplots(figsize=(7, 2.9), layout="constrained")
    for x, y, text, colour in boxes:
        box(ax, x, y, text, colour, 2.0 if "grad" in text else 1.35, 0.55)
    for start, end in arrows:
        arrow(ax, start, end)
    ax.text(5.85, 0.85, "backward", ha="left", color="0.35")
    ax.text(2.1, 0.85, "new weights", ha="left", color="0.35")
    ax.axis("off")
    finish(ax, xlim=(-0.8, 6.9), ylim=(-0.2, 3.1))


def divisor(parts, whole):
    """How much one token counts."""
    figure, ax = plt.subplots(figsize=(5, 2.5), layout="constrained")
    means = [1 / (3 * part.n_tokens) for part in parts]
    ax.bar([j - 0.18 for j in range(3)], [1 / whole.n_tokens] * 3, 0.36, label="divide once")
    ax.bar([j + 0.18 for j in range(3)], means, 0.36, label="mean of means")
    ax.set_xticks(range(3), [part.n_tokens for part in parts])
    finish(ax, legend="best", xlabel="tokens in the micro-batch", ylabel="weight of one token")

    return means


def all_reduce():
    """Data parallelism on three GPUs."""
    figure, ax = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
    for j in range(3):
        x = 2.2 * j
        box(ax, x, 4, f"GPU {j + 1}: $n_{j + 1}$ tokens", "#dce9f5", 1.7)
        box(ax, x, 3, "copy of the model", "#fbe3cf", 1.7)
        box(ax, x, 2, rf"$\nabla\mathcal{{L}}_{j + 1}$", "white", 1.7)
        box(ax, x, 0, "the same Adam step", "#fbe3cf", 1.7)
        for y in (4, 3, 2, 1):
            arrow(ax, (x, y - 0.3), (x, y - 0.7))
    total = r"\nabla\mathcal{L}_1 + \nabla\mathcal{L}_2 + \nabla\mathcal{L}_3"
    box(ax, 2.2, 1, rf"all-reduce: $({total})\;/\;(n_1 + n_2 + n_3)$", "#d9f0e6", 6.1)
    ax.axis("off")
    finish(ax, xlim=(-1, 5.4), ylim=(-0.4, 4.4))


def bits():
    """Where the bits go: sign, exponent (range), fraction (precision)."""
    figure, ax = plt.subplots(figsize=(7, 1.7), layout="constrained")
    colours = [PALETTE[6], PALETTE[1], PALETTE[0]]
    for y, (name, e, f) in enumerate((("float32", 8, 23), ("bfloat16", 8, 7), ("float16", 5, 10))):
        info = torch.finfo(getattr(torch, name))
        left = [0, 1, 1 + e]
        for start, n_bits, colour in zip(left, (1, e, f), colours):
            places = [start + i + 0.5 for i in range(n_bits)]
            ax.bar(places, 0.7, 0.9, y - 0.35, color=colour, alpha=0.75)
        spacing = round(math.log2(info.eps))
        label = f"largest {info.max:.1e}, spacing at 1: $2^{{{spacing}}}$"
        ax.text(33 if y == 0 else 17, y, label, va="center")
    for x, name, colour in ((0.2, "sign", 0), (3, "exponent", 1), (18, "fraction", 2)):
        ax.text(x - 0.7 * (colour == 0), -0.6, name, color=colours[colour])
    ax.set_yticks(range(3), ["float32", "bfloat16", "float16"])
    ax.spines[["left", "bottom"]].set_visible(False)
    finish(ax, xticks=[], xlim=(-1, 47), ylim=(2.5, -1))


def copy(V, curve, exact_share, losses, token_share):
    """The copy task: losses above, shares of right answers below."""
    right, wrong = 0.9 + 0.1 / V, 0.1 / V
    floor = -right * math.log(right) - (V - 1) * wrong * math.log(wrong)
    figure, axes = plt.subplots(2, figsize=(5, 4.2), sharex=True, layout="constrained")
    axes[0].plot(range(1, 801), losses, linewidth=0.8, label="training, smoothed")
    axes[0].plot(range(20, 801, 20), curve, color=PALETTE[2], label="validation")
    axes[0].axhline(floor, color=PALETTE[1], linestyle="--", label="the smallest possible: 0.89")
    axes[0].set(ylabel="nats per token", ylim=(0, None))
    axes[1].plot(range(40, 801, 40), token_share, "-", label="tokens, teacher forcing")
    axes[1].plot(range(40, 801, 40), exact_share, "--", label="sequences, greedy search")
    axes[1].set(xlabel="step", ylabel="share right", ylim=(0, 1.05))
    for ax in axes:
        ax.legend(frameon=False)
    plt.show()


def opt_sizes(adam_by_hand):
    """Distance gone by three weights whose gradients are 1, 0.1 and 0.01 at every step."""
    figure, axes = plt.subplots(1, 2, figsize=(6.2, 2.5), sharey=True, layout="constrained")
    for k, (g, dash) in enumerate(((1.0, "-"), (0.1, "--"), (0.01, ":"))):
        axes[0].plot([-0.01 * g * step for step in range(1, 101)], dash, label=f"gradient {g:g}")
        axes[1].plot([w - 0.04 * k for w in adam_by_hand(0.0, [g] * 100, rate=0.01)], dash)
    axes[0].set(title="gradient descent", xlabel="step", ylabel="weight")
    axes[1].set(title="Adam", xlabel="step")
    axes[0].legend(loc="lower left", frameon=False)
    plt.show()


def opt_bias():
    """Adam's step for a steady gradient, with and without the bias correction."""
    figure, ax = plt.subplots(figsize=(5.4, 2.5), layout="constrained")
    counted, largest = range(1, 5001), {}
    for beta2, dash in ((0.98, "-"), (0.999, "-.")):
        ratios = [(1 - 0.9**t) / math.sqrt(1 - beta2**t) for t in counted]
        largest[beta2] = max(ratios)
        ax.plot(counted, ratios, dash, label=rf"without, $\beta_2 = {beta2}$")
    ax.plot(counted, [1] * 5000, "k--", linewidth=1, label="with")
    ax.set(xscale="log", xlabel="step")
    finish(ax, legend="best", ylabel="step size / rate", ylim=(0, None))

    return largest


def opt_window(divisors, size):
    """How fast Adam notices that gradients have become ten times smaller."""
    figure, ax = plt.subplots(figsize=(5.4, 2.6), layout="constrained")
    for (beta2, values), dash in zip(divisors.items(), ("-", "-.")):
        ax.plot(values, dash, label=rf"$\beta_2 = {beta2}$")
    ax.plot(size, "k--", linewidth=1, label="typical size of the gradient")
    label = r"divisor $\sqrt{\hat v_t}$"
    finish(ax, legend="best", xlabel="step", ylabel=label, ylim=(0, 1.4))


def opt_rate():
    """Learning rate against step from 0 to 20,000 for three schedules."""
    steps = range(1, 20_001)
    figure, ax = plt.subplots(figsize=(5.4, 2.8), layout="constrained")
    curves = {}
    for (d_model, warmup), dash in zip(((512, 4000), (512, 8000), (256, 4000)), ("-", "--", "-.")):
        rates = curves[d_model, warmup] = [noam_learning_rate(s, d_model, warmup) for s in steps]
        ax.plot(steps, rates, dash, label=f"$d_{{model}}$ {d_model}, warm-up {warmup:,}")
        ax.plot(warmup, max(rates), "o", color=ax.lines[-1].get_color(), markersize=4)
    finish(ax, legend="best", xlabel="step", ylabel="learning rate", ylim=(0, 1.1e-3))

    return curves


def opt_mistakes(rates_used):
    """Learning rate against update on logarithmic axes."""
    figure, ax = plt.subplots(figsize=(5.4, 2.7), layout="constrained")
    for rates, dash, label in (
        (rates_used(10_000), "-", "correct"),
        (rates_used(10_000, lr=1e-4), "--", "lr=1e-4"),
        (rates_used(10_000, every=1000), "-.", "once per epoch of 1,000"),
    ):
        ax.plot(range(1, 10_001), rates, dash, label=label)
    ax.set(xscale="log", yscale="log")
    finish(ax, legend="lower right", xlabel="update", ylabel="learning rate")


def opt_warmup(factors, models, result):
    """With and without warm-up, by rate."""
    figure, axes = plt.subplots(1, 3, figsize=(6.6, 2.8), sharey=True, layout="constrained")
    for ax, name in zip(axes, models):
        for warm_up, dash, colour in ((True, "o-", PALETTE[0]), (False, "s--", PALETTE[1])):
            runs = [result[name, factor, warm_up] for factor in factors]
            style = {"color": colour, "markersize": 4, "label": "warm" if warm_up else "cold"}
            ax.plot(factors, [sum(each) / 3 for each in runs], dash, **style)
            ends = list(map(min, runs)), list(map(max, runs))
            ax.fill_between(factors, *ends, color=colour, alpha=0.2)
        ax.axhline(math.log(14), color="black", linestyle=":", linewidth=1)
        ax.set(title=name, xscale="log", xlabel="factor of equation 3", ylim=(0, 3))
        ax.set_xticks(factors, labels=[f"{factor:g}" for factor in factors])
        ax.minorticks_off()
    finish(axes[0], legend="lower right", ylabel="loss (nats per token)")


def opt_spread(spread):
    """The factor 1 / sqrt(v) of many weights: median, and the range of 98 % of them."""
    low, middle, high = zip(*spread)
    figure, ax = plt.subplots(figsize=(5.4, 2.5), layout="constrained")
    ax.fill_between(range(1, 101), low, high, color=PALETTE[0], alpha=0.25, label="1 % to 99 %")
    ax.plot(range(1, 101), middle, label="median")
    ax.axhline(1, color="black", linestyle="--", linewidth=1)
    ax.set(xscale="log", yscale="log")
    finish(ax, legend="best", xlabel="step", ylabel=r"$1 / \sqrt{\hat v_t}$")


def opt_schedules():
    """Shapes of four schedules, as shares of their peak."""
    steps, angle = range(100, 100_001, 100), math.pi / 96_000
    shapes = {
        "equation 3": lambda s: min(s / 4000, (4000 / s) ** 0.5),
        "line (BERT)": lambda s: min(s / 4000, (100_000 - s) / 96_000),
        "cosine (GPT-3)": lambda s: min(s / 4000, 0.55 + 0.45 * math.cos(angle * (s - 4000))),
        "warm-up, stable, decay": lambda s: min(s / 4000, 1, (100_000 - s) / 20_000),
    }
    figure, ax = plt.subplots(figsize=(5.4, 2.7), layout="constrained")
    for (name, shape), dash in zip(shapes.items(), ("-", "--", "-.", ":")):
        ax.plot(steps, list(map(shape, steps)), dash, label=name)
    finish(ax, legend="best", xlabel="step", ylabel="share of the peak rate", ylim=(0, 1.05))


def opt_asleep(ways):
    """Entropy and use of the encoder's attention over four trainings."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.6, 2.8), layout="constrained")
    for initial, colour in (("scaled", PALETTE[0]), ("glorot", PALETTE[1])):
        for rate, dash in (("low", "-"), ("high", "--")):
            points = ways[f"{initial}, {rate}"]["points"]
            style = {"color": colour, "label": f"{initial}, {rate} rate"}
            for ax, measure in ((left, "entropy_1"), (right, "nats_without")):
                ax.plot([p["step"] for p in points], [p[measure] for p in points], dash, **style)
    left.set(xlabel="step", ylabel="entropy of layer 1 (bits)", ylim=(0, None))
    right.set(xlabel="step", ylabel="nats lost without attention", ylim=(0, None))
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    plt.show()


def reg_dropout():
    """A vector at inference, and in four training steps with dropout."""
    torch.manual_seed(3)
    x = torch.linspace(0.2, 2.4, 12)
    rows = torch.stack([x, *(F.dropout(x, 0.25) for _ in range(4))])
    figure, ax = plt.subplots(figsize=(6.4, 2.4), layout="constrained")
    style = {"cmap": "Blues", "vmin": 0, "vmax": 4.5, "edgecolors": "lightgray"}
    image = ax.pcolormesh(rows.masked_fill(rows == 0, math.nan), **style)
    for i, row in enumerate(rows.tolist()):
        for j, value in enumerate(row):
            write(ax, j + 0.5, i + 0.5, f"{value:.1f}" if value else "0", fontsize=9)
    ax.set_yticks(torch.arange(5) + 0.5, ["inference", *(f"step {i}" for i in range(1, 5))])
    ax.set(xticks=[], xlabel="entries of the vector")
    ax.invert_yaxis()
    figure.colorbar(image, ax=ax, label="value")
    plt.show()


def reg_places():
    """The two places of dropout."""
    figure, ax = plt.subplots(figsize=(6.8, 2.7), layout="constrained")
    orange = "#fbe6bf"
    for x, y, label, color in (
        (1, 2.2, "embedding × √d", "#f0f0f0"),
        (1, 1.5, "position", "#f0f0f0"),
        (4.8, 1.85, "dropout", orange),
        (2.2, 0, "sub-layer", "#f0f0f0"),
        (4.8, 0, "dropout", orange),
        (8.1, 0, "layer norm", "#f0f0f0"),
    ):
        box(ax, x, y, label, color, 1.9, 0.36, fontsize=10)
    circle = {"boxstyle": "circle,pad=0.1", "fc": "white"}
    for x, y in ((3, 1.85), (6.4, 0)):
        write(ax, x, y, "+", fontsize=13, bbox=circle, zorder=3)
    lines = [((2, 2.2), (2.6, 2.2), (2.87, 1.98)), ((2, 1.5), (2.6, 1.5), (2.87, 1.72))]
    lines += [((3.2, 1.85), (3.3, 1.85), (3.8, 1.85)), ((5.8, 1.85), (6, 1.85), (6.6, 1.85))]
    lines += [((0.1, 0), (0.3, 0), (1.2, 0)), ((3.2, 0), (3.3, 0), (3.8, 0))]
    lines += [((5.8, 0), (5.9, 0), (6.2, 0)), ((6.6, 0), (6.7, 0), (7.1, 0))]
    lines += [((0.6, 0), (0.6, -0.6), (6.4, -0.6), (6.4, -0.2))]
    for points in lines:
        path(ax, *points)
    ax.text(6.7, 1.85, "to the stack", va="center", fontsize=10)
    ax.text(0, 0, "$x$", ha="right", va="center", fontsize=11)
    ax.axis("off")
    finish(ax, xlim=(-0.3, 9.2), ylim=(-0.75, 2.5))


def reg_overfit(floor, runs):
    """A small model on 300 sentences, without regularization and with two kinds."""
    figure, axes = plt.subplots(1, 3, figsize=(7, 2.7), sharey=True, layout="constrained")
    for ax, (name, judgements) in zip(axes, runs.items()):
        nll, _, held_out_nll, _ = zip(*judgements)
        step = range(50, 401, 50)
        ax.plot(step, nll, "-", label="training")
        ax.plot(step, held_out_nll, "--", label="held-out")
        ax.axhline(floor, color="black", linestyle=":", linewidth=1)
        ax.set(title=name, xlabel="step", ylim=(0, 3.6))
    axes[0].set_ylabel("nll (nats per token)")
    axes[2].legend(frameon=False, loc="lower left")
    plt.show()


def reg_captions(at_the_end):
    """Loss on captions over ten epochs, with dropout and without."""
    figure, ax = plt.subplots(figsize=(5.6, 3), layout="constrained")
    for color, (row, label) in zip(PALETTE, {"base": "dropout 0.1", "D1": "none"}.items()):
        steps, nll, held_out_nll = zip(*at_the_end[row]["curve"])
        ax.plot(steps, nll, "-", color=color, label=f"{label}, training")
        ax.plot(steps, held_out_nll, "--", color=color, label=f"{label}, validation")
    finish(ax, "upper right", xlabel="step", ylabel="nll (nats per token)", ylim=(1, 4))


def reg_targets(V, eps, one_hot, pad_id, q, real, target_out):
    """Two of the three smoothed targets, a row for each position."""

    def short(share):
        return f"{share:.3f}".rstrip("0").rstrip(".")

    third = ((1 - eps) * one_hot + (1 - one_hot) * eps / (V - 2)) * real
    third[..., pad_id] = 0
    figure, axes = plt.subplots(1, 2, figsize=(6.6, 3), layout="constrained")
    matrices = {"whole vocabulary": q.view(8, V), "others but padding": third.view(8, V)}
    for ax, (title, matrix) in zip(axes, matrices.items()):
        image = ax.imshow(matrix, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        write_cells(ax, matrix.tolist(), lambda share: share > 0.5, short, fontsize=8)
        ax.set_yticks(range(8), [t or "pad" for t in target_out.flatten().tolist()])
        ax.set(title=title, xlabel="token")
    axes[0].set_ylabel("right token of the position")
    figure.colorbar(image, ax=axes, label="$q(v)$")
    plt.show()
    return third


def reg_push():
    """Target minus probability of five tokens."""
    z = torch.tensor([5.0, 0.5, 1.3, -1.0, 0.0]).double()
    push = F.one_hot(torch.tensor(0), 5) * 0.9 + 0.1 / 5 - z.softmax(dim=-1)
    figure, ax = plt.subplots(figsize=(5, 2.4), layout="constrained")
    colours = [PALETTE[int(q < 0)] for q in push]
    bars = ax.bar(["cat", "dog", "kitten", "the", "sat"], push, color=colours)
    ax.bar_label(bars, fmt="%+.3f", padding=2)
    ax.axhline(0, color="black", linewidth=0.8)
    finish(ax, ylabel="$q - p$", ylim=(-0.045, 0.025))


def reg_penalty(penalty, entropy_floor):
    """Loss of one token against the probability that the model gives it."""
    p = torch.cat([torch.linspace(0.5, 0.98, 200), 1 - torch.logspace(-1.9, -4, 100)]).double()
    figure, ax = plt.subplots(figsize=(5, 2.7), layout="constrained")
    for eps, dash in ((0.0, "-"), (0.1, "--")):
        ax.plot(p, penalty(p, eps), dash, label=rf"$\epsilon_{{ls}} = {eps:g}$")
    ax.plot(0.9 + 0.1 / 600, entropy_floor(600), "ko", markersize=5)
    ax.set(xlabel="probability $p$ of the right token")
    finish(ax, legend="center right", ylabel="loss (nats)", ylim=(0, 1.6))

    return p


def reg_bound(paper):
    """What smoothing costs in perplexity."""
    eps = torch.linspace(0, 0.3, 61)
    figure, ax = plt.subplots(figsize=(5, 2.6), layout="constrained")
    ax.plot(eps, 1 / (1 - eps), label="bound $1 / (1 - \\epsilon)$")
    ax.plot(paper.keys(), paper.values(), "s", color=PALETTE[1], label="the paper's Table 3")
    ax.fill_between(eps, 1 / (1 - eps), 1, alpha=0.1)
    ax.set(xlabel="$\\epsilon_{ls}$", ylabel="factor in perplexity", ylim=(0.98, 1.45))
    ax.legend(loc="upper left")
    plt.show()
