"""What the benchmarks share: turns, sentences of realistic length, operations counted,
the machine's own rate."""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from annotated_transformer import ModelConfig
from annotated_transformer.data.batching import Batch, TokenPair, make_batch
from lab.experiments.result_file import RESULTS, write_result

ROOT = Path(__file__).resolve().parents[1]
PRODUCTS = {f"aten::{name}" for name in ("mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_")}
FLOAT32_PRODUCTS = {"fp32": "highest", "tf32": "high", "bf16": "highest"}
Work = Callable[[], object]


def command_line(program: str, arguments: Sequence[str] | None = None) -> str:
    """The command that runs, with these arguments or those that were typed."""
    threads = os.environ.get("OMP_NUM_THREADS")
    typed = sys.argv[1:] if arguments is None else arguments
    words = ["python", f"benchmarks/{program}.py", *typed]
    return (f"OMP_NUM_THREADS={threads} " if threads else "") + shlex.join(words)


def in_own_process(program: str, *words: object) -> Any:
    """What the program, started with these words, prints as JSON: memory that others had there
    does not count."""
    call = [sys.executable, "-m", f"benchmarks.{program}", *map(str, words)]
    done = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return json.loads(done.stdout)


def highest(process: int | str = "self") -> float:
    """Megabytes of a process at its highest, without what its parent held; 0 if it has ended, or
    where nothing tells."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024 if "VmHWM:" in status else 0.0


def peak_megabytes() -> float:
    """The most memory that this process has held since it began."""
    if found := highest():
        return found
    import resource  # not Linux: there a parent's peak may show through

    unit = 2**20 if sys.platform == "darwin" else 1024  # macOS counts bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def as_text(record: dict[str, Any]) -> str:
    """A record in one line, without the times that its figures are made of."""
    return "  ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in record.items()
        if not name.startswith(("seconds_m", "repetitions"))
    )


def out_path(args: argparse.Namespace, name: str, is_whole: bool = True) -> Path | None:
    """Where results go; those of a rehearsal or of a part go nowhere unless --out says so."""
    return args.out or (RESULTS / f"{name}.json" if is_whole and not args.small else None)


def write(
    out: Path | None,
    program: str,
    arguments: Sequence[str] | None,
    records: Sequence[dict[str, Any]],
    **more: Any,
) -> None:
    """The result file of a program that has ended now."""
    if out is None:
        return
    ended = time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime())
    write_result(out, command_line(program, arguments), records, ended=ended, **more)
    print(out, file=sys.stderr)


class Bench:
    """The device, how often to repeat, and a clock: it waits for a GPU, and of a CPU it counts
    what this process had."""

    def __init__(self, device: str, repetitions: int, small: bool) -> None:
        self.device, self.repetitions, self.small = device, repetitions, small

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds(self, work: Work) -> float:
        self.wait()
        clock = time.perf_counter if self.device == "cuda" else time.process_time
        began = clock()
        work()
        self.wait()
        return clock() - began

    def rounds(
        self, variants: Mapping[str, Work], rarely: Collection[str] = ()
    ) -> dict[str, list[float]]:
        """Each variant once unmeasured, then all in turn, `repetitions` times:
        the seconds of each round.

        Those named in `rarely` take part in the first two rounds, and need no warming up.
        """
        for name, work in variants.items():
            if name not in rarely:
                work()
        times: dict[str, list[float]] = {name: [] for name in variants}
        for turn in range(self.repetitions):
            for name, work in variants.items():
                if turn < 2 or name not in rarely:
                    times[name].append(self.seconds(work))
        return times

    def in_turns(self, variants: Mapping[str, Work]) -> dict[str, dict[str, Any]]:
        """`rounds`, summarized."""
        return {name: summary(times) for name, times in self.rounds(variants).items()}


def summary(times: Sequence[float]) -> dict[str, Any]:
    """Median, least and most seconds."""
    return {
        "seconds": statistics.median(times),
        "seconds_min": min(times),
        "seconds_max": max(times),
        "repetitions": len(times),
    }


def times_faster(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How many times as fast as theirs ours is: the median over the rounds in which both
    had a turn, the first ones."""
    return statistics.median(their / our for our, their in zip(ours, theirs, strict=False))


def or_out_of_memory(measure: Callable[[], Iterable[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What it measures, or a record that the memory did not suffice;
    what it held is free afterwards."""
    try:
        return list(measure())
    except torch.OutOfMemoryError as error:
        name = getattr(measure, "func", measure).__name__
        said = str(error).splitlines()[0]
        return [{"measure": "out of memory", "of": name, "message": said}]
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def product(device: str, precision: str, n: int, times: int = 10) -> Work:
    """`times` products of two n x n matrices: what the machine reaches when
    nothing else is asked of it."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))

    def work() -> None:
        torch.set_float32_matmul_precision(FLOAT32_PRODUCTS[precision])
        for _ in range(times):
            a @ b

    return work


def share_in_products(work: Work, times: int = 3) -> float:
    """The share of its seconds that `work` spends in matrix products on a CPU,
    by PyTorch's profiler: a median.

    What fused attention does inside does not count.
    """
    shares = []
    for _ in range(times):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            began = time.perf_counter()
            work()
            seconds = time.perf_counter() - began
        products = sum(
            op.self_cpu_time_total for op in profile.key_averages() if op.key in PRODUCTS
        )
        shares.append(products / 1e6 / seconds)
    return statistics.median(shares)


def sentences(n: int, vocab_size: int, median: float = 22.2, longest: int = 150) -> list[TokenPair]:
    """Pairs of random ids whose lengths are spread as those of sentences are (log-normal)."""
    rng = random.Random(1)
    pairs: list[TokenPair] = []
    for _ in range(n):
        length = min(longest, max(2, round(median * rng.lognormvariate(0, 0.55))))
        other = min(longest, max(2, round(length * rng.uniform(0.8, 1.25))))
        pairs.append(
            (
                array("i", [rng.randrange(4, vocab_size) for _ in range(length)]),
                array("i", [rng.randrange(4, vocab_size) for _ in range(other)]),
            )
        )
    return pairs


def random_batches(
    pairs: Iterable[TokenPair], max_tokens: int, multiple_of: int = 1
) -> list[Batch]:
    """The pairs in their order, cut wherever the next would not fit when padded."""
    groups: list[list[TokenPair]] = [[]]
    longest = 0
    for pair in pairs:
        padded = max(-(-(len(side) + 1) // multiple_of) * multiple_of for side in pair)
        longest = max(longest, padded)
        if groups[-1] and longest * (len(groups[-1]) + 1) > max_tokens:
            groups.append([])
            longest = padded
        groups[-1].append(pair)
    return [make_batch(group, multiple_of=multiple_of) for group in groups]


def toy(vocab_size: int) -> ModelConfig:
    """What a rehearsal measures."""
    return ModelConfig(vocab_size, N=1, d_model=32, d_ff=64, h=4)


def step_operations(config: ModelConfig, lengths: Iterable[tuple[int, int]]) -> int:
    """Operations of the matrix products of a training step on pairs of these lengths (eos
    included), none on padding.

    Two for each multiplication with its addition; the backward pass has two products for each
    of the forward pass. Attention is counted in full, also where it is causal.
    """
    D, d_ff, h = config.d_model, config.d_ff, config.h
    widths = h * ((config.d_k or D // h) + (config.d_v or D // h))
    forward = 0
    for S, T in lengths:
        encoder = S * (2 * D * widths + 2 * D * d_ff) + S * S * widths
        decoder = T * (3 * D * widths + 2 * D * d_ff) + S * D * widths + T * (T + S) * widths
        forward += 2 * (config.N * (encoder + decoder) + T * D * config.vocab_size)
    return 3 * forward


def real_lengths(batches: Iterable[Batch]) -> list[tuple[int, int]]:
    """Real tokens of every pair, eos included."""
    return [
        (int(s), int(t))
        for batch in batches
        for s, t in zip((batch.source != 0).sum(1), (batch.target_out != 0).sum(1), strict=True)
    ]
