"""Table 1, timed: seconds of each layer type as n and d grow, and where n = d crosses over.

**Time** is processor time of one thread, without gradients, the minimum over rounds; a round visits
every layer and size once, so that a busy minute of a shared machine falls on all of them. Memory
that a call has freed is kept for the next one (`steady`): otherwise large tensors, and only they,
are charged for fresh pages of the system.

**The sizes that are fitted** follow one rule. The swept size grows by a factor of 8. The shortest
call takes a millisecond or more, some fifty times what it costs to call a kernel. The vectors that
grow with n lie outside the level-2 cache (2 MB here) from the first size on, or nearly so, or are
read in blocks, because the rate changes where they no longer fit. Where d grows, a recurrent step
multiplies its matrix with 128 sentences, enough to be limited by arithmetic and not by memory, and
there are 32 steps to share what PyTorch does to the matrix once a call. And what the formula calls
small is small in seconds: d starts at 256 where a softmax is left out, and at 1024 for the
separable convolution, whose k n d operations are few and slow. Sweeps with a `reason` break the
rule and say how. Smaller sizes are for the figures and are not fitted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import product
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer.errors import require
from lab.experiments.table_1.layer_types import make_layer
from lab.experiments.table_1.memory import keep_freed_memory, return_freed_memory
from lab.experiments.table_1.sweep import K, R, fit, geometric, settings, shape
from lab.tables.table_1 import layer_operations

# Where a layer is a variant: its row of cost.LAYERS, and what else its formula needs.
FORMULA: dict[str, tuple[str, dict[str, int]]] = {
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
# layer, swept letter, its fitted sizes from and to, its smaller sizes, the other letter's size,
# sentences, and the reason why a sweep breaks the rule (LOG.md, "Table 1 in seconds and bytes",
# says how the sizes were chosen)
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
    """One thread, and on Linux what is freed stays with the process: no call pays for new pages."""
    threads = torch.get_num_threads()
    keep_freed_memory()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        return_freed_memory()


def measured_times(sweeps: list[Sweep], rounds: int) -> Iterator[dict[str, Any]]:
    """One record a sweep: sizes, seconds and operations of all points, and the fitted exponents."""
    best: dict[tuple[int, int], float] = {}
    made = cache(lambda layer, d: make_layer(layer, d, K, R))
    for turn in range(rounds + 1):  # the first round warms up and does not count
        for number, (layer, over, low, high, smaller, other, batch, _) in enumerate(sweeps):
            for size in [*smaller, *geometric(low, high)]:
                n, d = shape(over, size, other)
                call, x = made(layer, d), torch.randn(batch, n, d)
                before = best.get((number, size))
                if before is None or before < 0.1:  # short: the caches are full of other things
                    call(x)
                took = min(_seconds(partial(call, x)) for _ in range(3 if size in smaller else 1))
                best[number, size] = took if before is None or turn <= 1 else min(took, before)
        print(f"round {turn} of {rounds}", flush=True)
    for number, (layer, over, low, high, smaller, other, batch, reason) in enumerate(sweeps):
        fitted = geometric(low, high)
        sizes = [*smaller, *fitted]
        row = FORMULA.get(layer, (layer, {}))[0]
        operations = [counted(layer, *shape(over, size, other), batch) for size in sizes]
        expected = [_formula(layer, *shape(over, size, other), batch) for size in sizes]
        said = f"{layer}: {operations} operations counted, the formula gives {expected}"
        require(operations == expected, said)
        times = [best[number, size] for size in sizes]
        yield {
            "measure": "time",
            "layer": layer,
            **settings(over, other),
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


def meeting_point(lengths: list[int], difference: list[float]) -> float | None:
    """Where a difference of logarithms changes from negative to positive for good.

    That is between two of the lengths; None if nowhere.
    """
    for i in reversed(range(len(lengths) - 1)):
        if difference[i] < 0 <= difference[i + 1]:
            share = -difference[i] / (difference[i + 1] - difference[i])
            return float(lengths[i] * (lengths[i + 1] / lengths[i]) ** share)
    return None


def crossover(widths: tuple[int, ...], batch: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Up to which n self-attention is cheaper than a recurrence of the same d.

    It may be cheaper in operations, or in time: both are found.
    """
    for d in widths:
        lengths = geometric(d // 2, 16 * d, 8)
        layers = ("self-attention", "recurrent", "recurrent (LSTM)")
        calls = {layer: make_layer(layer, d) for layer in layers}
        times = {layer: [math.inf] * len(lengths) for layer in calls}
        for turn in range(rounds + 1):  # the first warms up
            for (i, n), layer in product(enumerate(lengths), calls):
                took = _seconds(partial(calls[layer], torch.randn(batch, n, d)))
                times[layer][i] = min(took, times[layer][i]) if turn else math.inf
        for layer in layers[1:]:
            every_n = range(1, 16 * d + 1)
            counts = ([_formula(each, n, d) for n in every_n] for each in (layers[0], layer))
            by_count = [math.log(a / b) for a, b in zip(*counts)]
            by_time = [math.log(a / b) for a, b in zip(times["self-attention"], times[layer])]
            yield {
                "measure": "crossover",
                "layer": layer,
                "d": d,
                "sentences": batch,
                "n": lengths,
                "seconds": times[layer],
                "seconds_self_attention": times["self-attention"],
                "n_operations": meeting_point(list(every_n), by_count),
                "n_time": meeting_point(lengths, by_time),
            }


def matrix_rate(size: int, rounds: int) -> dict[str, Any]:
    """Operations a second of one thread in a float32 product of two square matrices.

    The best of several products counts.
    """
    x = torch.randn(size, size)
    rate = 2 * size**3 / min(_seconds(lambda: x @ x) for _ in range(rounds + 1))
    settings = {"measure": "matrix rate", "size": size, "dtype": "float32", "threads": 1}
    return {**settings, "rate": rate}


def shrunk(sweep: Sweep) -> Sweep:
    """The same sweep at toy sizes."""
    layer, over, low, high, _, other, batch, reason = sweep
    return layer, over, low // 4, high // 16, (), max(other // 8, 16), min(batch, 2), reason
