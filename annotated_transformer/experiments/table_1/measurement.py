"""Table 1, measured: operations, time, memory, waiting and path length of each layer type; where n = d crosses over.

`python -m annotated_transformer.experiments.table_1` takes some five minutes of one CPU core, too short to be resumed.
With --small: the same code at toy sizes, in seconds.

**Time** is processor time of one thread, without gradients, the minimum over rounds; a round visits every layer and
size once, so that a busy minute of a shared machine falls on all of them. Memory that a call has freed is kept for the
next one (`steady`): otherwise large tensors, and only they, are charged for fresh pages of the system.

**The sizes that are fitted** follow one rule. The swept size grows by a factor of 8. The shortest call takes a
millisecond or more, some fifty times what it costs to call a kernel. The vectors that grow with n lie outside the
level-2 cache (2 MB here) from the first size on, or nearly so, or are read in blocks, because the rate changes where
they no longer fit. Where d grows, a recurrent step multiplies its matrix with 128 sentences, enough to be limited by
arithmetic and not by memory, and there are 32 steps to share what PyTorch does to the matrix once a call. And what the
formula calls small is small in seconds: d starts at 256 where a softmax is left out, and at 1024 for the separable
convolution, whose k n d operations are few and slow.
Sweeps with a `reason` break the rule and say how. Smaller sizes are for the figures and are not fitted.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer.config import require
from annotated_transformer.experiments.result_file import write_result
from annotated_transformer.experiments.table_1 import layer_types as types
from annotated_transformer.experiments.table_1.layer_types import (
    LAYER_TYPES,
    layers_to_connect,
    make_layer,
)
from annotated_transformer.fast.memory import keep_freed_memory, return_freed_memory
from annotated_transformer.tables.cost import layer_operations, longest_chain, peak_bytes

COMMAND = "python -m annotated_transformer.experiments.table_1"
K, R = 3, 33  # kernel width and neighbourhood
FORMULA: dict[
    str, tuple[str, dict[str, int]]
] = {  # the row of cost.LAYERS and what else its formula needs
    "self-attention, weights stored": ("self-attention", {}),
    "recurrent (LSTM)": ("recurrent", {"gates": 4}),
    "convolutional, dilated": ("convolutional", {}),
}
THEORY = {  # the exponents of n and d in Table 1; of a separable convolution, for large d
    "self-attention": (2, 1),
    "recurrent": (1, 2),
    "convolutional": (1, 2),
    "restricted self-attention": (1, 1),
    "separable convolutional": (1, 2),
}
ONE_SENTENCE = "one sentence: each step is a matrix times a vector, limited by memory"
FEW_SENTENCES = "32 sentences: limited by memory where the matrix is too large for the caches"
CROSSES_CACHE = "the vectors outgrow the level-2 cache within the range"
SLOW_TERM = "the k n d operations of the first step are few, but slow: they are limited by memory"
FEW_STEPS = (
    "8 steps of 128 sentences: rearranging the matrix, once a call, is not shared by enough steps"
)
STORED = "the n^2 weights outgrow the caches within the range"
# layer, swept letter, its fitted sizes from and to, its smaller sizes, the other letter's size, sentences, reason
Sweep = tuple[str, str, int, int, tuple[int, ...], int, int, str]
TIMES: list[Sweep] = [
    ("self-attention", "n", 1024, 8192, (64, 128, 256, 512), 64, 1, ""),
    ("self-attention", "d", 256, 2048, (16, 32, 64, 128), 1024, 1, ""),
    ("recurrent", "n", 64, 512, (8, 16, 32), 256, 32, ""),
    ("recurrent", "d", 256, 2048, (32, 64, 128), 32, 128, ""),
    ("recurrent (LSTM)", "n", 64, 512, (8, 16, 32), 256, 32, ""),
    ("recurrent (LSTM)", "d", 256, 2048, (32, 64, 128), 32, 128, ""),
    ("convolutional", "n", 4096, 32768, (64, 256, 1024), 256, 1, ""),
    ("convolutional", "d", 256, 2048, (32, 64, 128), 2048, 1, ""),
    ("convolutional, dilated", "n", 4096, 32768, (64, 256, 1024), 256, 1, ""),
    ("convolutional, dilated", "d", 256, 2048, (32, 64, 128), 2048, 1, ""),
    ("restricted self-attention", "n", 2048, 16384, (64, 128, 256, 512, 1024), 256, 1, ""),
    ("restricted self-attention", "d", 256, 2048, (16, 32, 64, 128), 2048, 1, ""),
    ("separable convolutional", "n", 4096, 32768, (64, 256, 1024), 256, 1, ""),
    ("separable convolutional", "d", 1024, 8192, (64, 128, 256, 512), 512, 1, ""),
    ("recurrent (LSTM)", "d", 256, 2048, (), 32, 1, ONE_SENTENCE),
    ("recurrent (LSTM)", "d", 256, 2048, (), 32, 32, FEW_SENTENCES),
    ("recurrent (LSTM)", "d", 256, 2048, (), 8, 128, FEW_STEPS),
    ("separable convolutional", "n", 1024, 8192, (), 256, 1, CROSSES_CACHE),
    ("separable convolutional", "d", 128, 1024, (), 512, 1, SLOW_TERM),
    ("self-attention, weights stored", "n", 1024, 8192, (), 64, 1, STORED),
]
STORED_LAYER, RESTRICTED = "self-attention, weights stored", "restricted self-attention"
T_975 = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    7: 2.365,
    8: 2.306,
}  # Student's t, 95 percent


def geometric(low: int, high: int, multiple: int = 16) -> list[int]:
    """low, ..., high by steps of the square root of 2, each but the ends rounded to a multiple."""
    steps = round(2 * math.log2(high / low))
    return (
        [low] + [multiple * round(low * 2 ** (i / 2) / multiple) for i in range(1, steps)] + [high]
    )


def fit(sizes: list[int], values: list[float]) -> dict[str, float]:
    """The slope of log value over log size by least squares, with its 95 percent interval (Student's t)."""
    x, y = np.log(sizes), np.log(values)
    (slope, intercept), degrees = np.polyfit(x, y, deg=1), len(sizes) - 2
    error = math.sqrt(
        ((y - slope * x - intercept) ** 2).sum() / degrees / ((x - x.mean()) ** 2).sum()
    )
    half = T_975[degrees] * error
    return {"exponent": float(slope), "low": float(slope - half), "high": float(slope + half)}


def counted(layer: str, n: int, d: int, batch: int = 1) -> int:
    """Operations of one call by PyTorch's counter; on the device meta, so nothing is computed."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        make_layer(layer, d, K, R)(torch.randn(batch, n, d))
    return int(counter.get_total_flops())


def _formula(layer: str, n: int, d: int, batch: int = 1) -> int:
    row, more = FORMULA.get(layer, (layer, {}))
    return batch * layer_operations(row, n, d, K, R, **more)


def _seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


@contextmanager
def steady() -> Iterator[None]:
    """One thread, and on Linux what is freed stays with the process, so that no call pays for new pages."""
    threads = torch.get_num_threads()
    keep_freed_memory()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        return_freed_memory()


def shape(over: str, size: int, other: int) -> tuple[int, int]:
    """(n, d) of a sweep's point."""
    return (size, other) if over == "n" else (other, size)


def measured_times(sweeps: list[Sweep], rounds: int) -> list[dict[str, Any]]:
    """One record a sweep: the sizes, seconds and operations of all points, and the exponents over the fitted ones."""
    best: dict[tuple[int, int], float] = {}
    made = cache(lambda layer, d: make_layer(layer, d, K, R))
    for turn in range(rounds + 1):  # the first round warms up and does not count
        for number, (layer, over, low, high, smaller, other, batch, _) in enumerate(sweeps):
            for size in [*smaller, *geometric(low, high)]:
                n, d = shape(over, size, other)
                call, x = made(layer, d), torch.randn(batch, n, d)
                if (
                    best.get((number, size), 0) < 0.1
                ):  # a short call finds the caches full of other things
                    call(x)
                took = min(_seconds(partial(call, x)) for _ in range(3 if size in smaller else 1))
                best[number, size] = (
                    min(took, best.get((number, size), math.inf)) if turn > 1 else took
                )
        print(f"round {turn} of {rounds}", flush=True)
    records = []
    for number, (layer, over, low, high, smaller, other, batch, reason) in enumerate(sweeps):
        fitted = geometric(low, high)
        sizes = [*smaller, *fitted]
        row = FORMULA.get(layer, (layer, {}))[0]
        operations = [counted(layer, *shape(over, size, other), batch) for size in sizes]
        expected = [_formula(layer, *shape(over, size, other), batch) for size in sizes]
        require(
            operations == expected,
            f"{layer}: {operations} operations counted, the formula gives {expected}",
        )
        times = [best[number, size] for size in sizes]
        records.append(
            {
                "measure": "time",
                "layer": layer,
                "over": over,
                "d" if over == "n" else "n": other,
                "k": K,
                "r": R,
                "sentences": batch,
                "theory": THEORY[row]["nd".index(over)],
                "reason": reason,
                "rounds": rounds,
                "sizes": sizes,
                "fitted_from": low,
                "seconds": times,
                "operations": operations,
                "time": fit(fitted, times[len(smaller) :]),
                "counted": fit(fitted, [float(o) for o in operations[len(smaller) :]]),
            }
        )
    return records


def measured_memory(small: bool) -> list[dict[str, Any]]:
    """Peak bytes of one layer for one sentence with gradients on, and their exponents."""
    records = []
    for layer in LAYER_TYPES:
        for over, theory in zip(
            "nd", (2, 0) if layer == STORED_LAYER else (1, 1)
        ):  # by the largest tensors
            low, other = (
                (256, 64)
                if over == "n"
                else ({STORED_LAYER: 16, RESTRICTED: 512}.get(layer, 64), 1024)
            )
            if small:
                low, other = low // 8, other // 8
            sizes = [low * 2**i for i in range(4)]
            values = []
            for size in sizes:
                n, d = shape(over, size, other)
                values.append(
                    peak_bytes(make_layer(layer, d, K, R), torch.randn(1, n, d, requires_grad=True))
                )
            records.append(
                {
                    "measure": "memory",
                    "layer": layer,
                    "over": over,
                    "d" if over == "n" else "n": other,
                    "k": K,
                    "r": R,
                    "theory": theory,
                    "sizes": sizes,
                    "bytes": values,
                    "memory": fit(sizes, [float(v) for v in values]),
                }
            )
    return records


def chain(layer: str, n: int, d: int) -> int:
    """Products that wait for one another in a layer; on the device meta, where no recurrence is fused."""
    with torch.device("meta"):
        return longest_chain(make_layer(layer, d, K, 3)(torch.randn(1, n, d, requires_grad=True)))


def waiting(sizes: tuple[int, ...] = (16, 32, 64)) -> list[dict[str, Any]]:
    """The chains of all layers; theory: n for a recurrence, else constant."""
    records = []
    for layer in LAYER_TYPES:
        chains = [chain(layer, n, 8) for n in sizes]
        theory = sizes if layer.startswith("recurrent") else [chains[0]] * 3
        records.append(
            {
                "measure": "sequential",
                "layer": layer,
                "n": sizes,
                "chains": chains,
                "theory": theory,
            }
        )
    return records


def paths(lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    """Layers, or steps within one layer, from the first position to the last, by gradient; k = r = 3."""
    ones = torch.ones(2, 2, K, dtype=torch.float64) / (2 * K)
    stacks: dict[str, tuple[Callable[[Tensor, int], Tensor], Callable[[int], int]]] = {
        "self-attention": (lambda x, depth: types.self_attention(x), lambda n: 1),
        "convolutional": (
            lambda x, depth: types.convolution(x, ones),
            lambda n: -(-(n - 1) // (K - 1)),
        ),
        "convolutional, dilated": (
            lambda x, depth: types.convolution(x, ones, K**depth),
            lambda n: next(m for m in range(n) if K**m >= n),
        ),
        "restricted self-attention": (
            lambda x, depth: types.restricted_self_attention(x, 3),
            lambda n: n - 1,
        ),
        "separable convolutional": (
            lambda x, depth: types.separable_convolution(x, ones[:, :1], ones[..., 0]),
            lambda n: -(-(n - 1) // (K - 1)),
        ),
    }
    records = []
    for layer, (stack, theory) in stacks.items():
        needed = [layers_to_connect(stack, n) for n in lengths]
        expected = [theory(n) for n in lengths]
        records.append(
            {"measure": "path", "layer": layer, "n": lengths, "steps": needed, "theory": expected}
        )
    for layer in (
        "recurrent",
        "recurrent (LSTM)",
    ):  # one layer, and a step in it for each further position
        steps = [chain(layer, n, 2) - chain(layer, 1, 2) for n in lengths]
        x = torch.randn(1, lengths[0], 2, requires_grad=True)
        [gradient] = torch.autograd.grad(make_layer(layer, 2)(x)[0, -1].sum(), x)
        require(
            bool(gradient[0, 0].any()),
            f"the last output of {layer} does not depend on the first input",
        )
        records.append(
            {
                "measure": "path",
                "layer": layer,
                "n": lengths,
                "steps": steps,
                "theory": [n - 1 for n in lengths],
            }
        )
    return records


def meeting_point(lengths: list[int], difference: list[float]) -> float | None:
    """Where a difference of logarithms changes from negative to positive for good, between lengths; None if nowhere."""
    for i in reversed(range(len(lengths) - 1)):
        if difference[i] < 0 <= difference[i + 1]:
            share = -difference[i] / (difference[i + 1] - difference[i])
            return float(lengths[i] * (lengths[i + 1] / lengths[i]) ** share)
    return None


def crossover(widths: tuple[int, ...], batch: int, rounds: int) -> list[dict[str, Any]]:
    """Up to which n self-attention is cheaper than a recurrence of the same d: in operations and in time."""
    records = []
    for d in widths:
        lengths = geometric(d // 2, 16 * d, 8)
        calls = {
            layer: make_layer(layer, d)
            for layer in ("self-attention", "recurrent", "recurrent (LSTM)")
        }
        times = {layer: [math.inf] * len(lengths) for layer in calls}
        for turn in range(rounds + 1):  # the first warms up
            for (i, n), layer in product(enumerate(lengths), calls):
                took = _seconds(partial(calls[layer], torch.randn(batch, n, d)))
                times[layer][i] = min(took, times[layer][i]) if turn else math.inf
        for layer in ("recurrent", "recurrent (LSTM)"):
            by_count = [
                math.log(_formula("self-attention", n, d) / _formula(layer, n, d))
                for n in range(1, 16 * d + 1)
            ]
            by_time = [math.log(a / b) for a, b in zip(times["self-attention"], times[layer])]
            records.append(
                {
                    "measure": "crossover",
                    "layer": layer,
                    "d": d,
                    "sentences": batch,
                    "n": lengths,
                    "seconds": times[layer],
                    "seconds_self_attention": times["self-attention"],
                    "n_operations": meeting_point(list(range(1, 16 * d + 1)), by_count),
                    "n_time": meeting_point(lengths, by_time),
                }
            )
    return records


def matrix_rate(size: int, rounds: int) -> dict[str, Any]:
    """Operations a second of one thread in a float32 product of two square matrices: the best of several."""
    x = torch.randn(size, size)
    best = min(_seconds(lambda: x @ x) for _ in range(rounds + 1))
    return {
        "measure": "matrix rate",
        "size": size,
        "dtype": "float32",
        "threads": 1,
        "rate": 2 * size**3 / best,
    }


def shrunk(sweep: Sweep) -> Sweep:
    """The same sweep at toy sizes."""
    layer, over, low, high, _, other, batch, reason = sweep
    return layer, over, low // 4, high // 16, (), max(other // 8, 16), min(batch, 2), reason


def main(arguments: list[str] | None = None) -> None:
    """Measure everything and write table_1.json."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Table 1, measured.")
    parser.add_argument("--small", action="store_true", help="toy size, in seconds")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of table_1.json (default: book/results, or a temporary one)",
    )
    args = parser.parse_args(arguments)
    small, out = args.small, args.out or Path(tempfile.mkdtemp() if args.small else "book/results")
    torch.manual_seed(0)
    with steady():
        with torch.inference_mode():
            records = measured_times(
                [shrunk(sweep) for sweep in TIMES] if small else TIMES, rounds=2 if small else 7
            )
            records += crossover(
                (16,) if small else (64, 128, 256), batch=8, rounds=2 if small else 5
            )
            records.append(matrix_rate(256 if small else 2048, rounds=3 if small else 10))
        records += measured_memory(small) + waiting() + paths((9, 27) if small else (9, 27, 81))
        write_result(out / "table_1.json", COMMAND + " --small" * small, records, seed=0)
    print(out / "table_1.json")


if __name__ == "__main__":
    main()
