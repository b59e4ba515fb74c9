"""What a GPU does with the model: training steps, attention kernels, batches;
written to book/results/gpu.json.

    python benchmarks/gpu.py                     on a GPU, about a quarter of an hour
    python benchmarks/gpu.py --max-tokens 4096   on a GPU with little memory
    python benchmarks/gpu.py --measures training waiting big   what compiles, alone

and, as a rehearsal that measures nothing of worth,

    python benchmarks/gpu.py --small --device cpu --out /tmp/gpu.json

The first epoch comes first and is measured once: what a shape costs when it is new (a kernel's
plan, a compilation) is what a user pays, and everything later is warm. Every other figure is the
median over repetitions. The variants of a measure take turns, so that a clock that slows down slows
all of them, and the rate of a plain matrix product is measured in the same turns: it is what this
machine reaches, which may be far from its vendor's figure.

The file is written after each measure, and a measure for which the memory does not
suffice is recorded as such.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import product as product_of
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from annotated_transformer import ModelConfig, TrainConfig, scaled_dot_product_attention
from annotated_transformer.data.batching import Batch, TokenPair, token_batches
from annotated_transformer.training.run import TrainingLoss, TrainingRun
from benchmarks.timing import (
    FLOAT32_PRODUCTS,
    Bench,
    Work,
    as_text,
    or_out_of_memory,
    out_path,
    product,
    random_batches,
    real_lengths,
    sentences,
    step_operations,
    write,
)
from tools.arguments import parser_of, run_main

KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
}
PRECISIONS = ("bf16", "tf32", "fp32")
MEASURES = ("first-epoch", "batching", "attention", "training", "waiting", "big")
PAPERS_STEPS = {"base": 100_000, "big": 300_000}
Record = dict[str, Any]


def products(bench: Bench, precisions: Iterable[str]) -> dict[str, Work]:
    """A square matrix product for each precision."""
    return {
        f"product {precision}": product(bench.device, precision, product_size(bench))
        for precision in precisions
    }


def product_size(bench: Bench) -> int:
    return 64 if bench.small else 8192


MULTIPLE_OF = 8
"""Of the lengths of a batch on a GPU (see `TrainingRun`)."""


def batches_of_training(pairs: list[TokenPair], max_tokens: int) -> Iterator[Batch]:
    """What a run on a GPU learns from: lengths are multiples of 8, so that shapes are few."""
    return token_batches(pairs, max_tokens, multiple_of=MULTIPLE_OF)


def steps(
    run: TrainingRun, batches: Iterable[Batch], precision: str, read_loss: bool = False
) -> Work:
    def work() -> None:
        torch.set_float32_matmul_precision(FLOAT32_PRODUCTS[precision])
        for batch in batches:
            loss, _, _ = run.step([batch])
            if read_loss:
                loss.item()

    return work


def new_run(bench: Bench, config: ModelConfig, precision: str, compiled: bool) -> TrainingRun:
    settings = TrainConfig(precision="bf16" if precision == "bf16" else "fp32", compile=compiled)
    return TrainingRun(config, settings, bench.device, "off")


def measure_first_epoch(
    bench: Bench, config: ModelConfig, name: str, max_tokens: int
) -> Iterator[Record]:
    """An epoch in which nearly every batch has a shape of its own, then the same epoch again:
    wall time, once each."""
    pairs = sentences(300 if bench.small else 50_000, config.vocab_size)
    batches = list(batches_of_training(pairs, max_tokens))
    precision = "fp32" if bench.device == "cpu" else "bf16"
    epoch = steps(new_run(bench, config, precision, False), batches, precision)
    first, again = bench.seconds(epoch), bench.seconds(epoch)
    yield {
        "measure": "first epoch",
        "model": name,
        "precision": precision,
        "packed": False,
        "shapes": len({(batch.source.shape, batch.target_in.shape) for batch in batches}),
        "steps": len(batches),
        "first_s": first,
        "again_s": again,
        "first_over_again": first / again,
    }


def measure_training(
    bench: Bench,
    config: ModelConfig,
    name: str,
    max_tokens: int,
    precisions: tuple[str, ...],
) -> list[Record]:
    """Steps of the package's own training loop on eight batches of eight shapes;
    padding counts for nothing.

    `hours` are those that the paper's number of steps would take,
    of 25,000 real target tokens each.
    """
    pairs = sentences(400 if bench.small else 20_000, config.vocab_size)
    batches = list(batches_of_training(pairs, max_tokens))[: 2 if bench.small else 8]
    tokens = sum(batch.n_tokens for batch in batches)
    count = step_operations(config, real_lengths(batches))
    variants, names = products(bench, precisions), {}
    compilation = (False,) if bench.small else (False, True)
    for compiled, precision in product_of(compilation, precisions):
        label = f"{precision} {'compiled' if compiled else 'eager'} padded"
        names[label] = (precision, compiled)
        run = new_run(bench, config, precision, compiled)
        variants[label] = steps(run, batches, precision)
    times = bench.in_turns(variants)
    machine = {
        p: 10 * 2.0 * product_size(bench) ** 3 / times[f"product {p}"]["seconds"]
        for p in precisions
    }
    records = [
        {
            "measure": "matrix product",
            "precision": p,
            "tflops": rate / 1e12,
            **times[f"product {p}"],
        }
        for p, rate in machine.items()
    ]
    for label, (precision, compiled) in names.items():
        rate = count / times[label]["seconds"]
        hours = PAPERS_STEPS.get(name, 0) * 25_000 * times[label]["seconds"] / tokens / 3600
        records.append(
            {
                "measure": "training step",
                "model": name,
                "hours": hours,
                "precision": precision,
                "compiled": compiled,
                "packed": False,
                "tokens_per_s": tokens / times[label]["seconds"],
                "tflops": rate / 1e12,
                "share_of_product": rate / machine[precision],
                "max_tokens": max_tokens,
                **times[label],
            }
        )
    return records


def measure_waiting(bench: Bench, config: ModelConfig, name: str, max_tokens: int) -> list[Record]:
    """A compiled run on batches of many shapes: graphs made after the third,
    and how often the host waited in all.

    On a GPU PyTorch warns of each synchronisation (`set_sync_debug_mode`);
    on a CPU there is nothing to wait for.
    """
    pairs = sentences(300 if bench.small else 20_000, config.vocab_size)
    # Of lengths as they are. In multiples of 8 source and target are often equally long, and the
    # compiler makes graphs for that case after the warm-up too: how many is still to be counted.
    batches = list(token_batches(pairs, max_tokens))[:12]
    run = new_run(bench, config, "bf16", True)
    backend = "aot_eager" if bench.small else "inductor"
    run.loss = TrainingLoss(run.model, run.config.eps_ls)
    run.loss.compile(dynamic=True, backend=backend)
    torch.compiler.reset()
    counters = torch._dynamo.utils.counters  # noqa: SLF001  PyTorch counts graphs nowhere else
    counters.clear()
    graphs = counters["stats"]
    steps(run, batches[:3], "bf16")()
    before = graphs["unique_graphs"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if bench.device == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        steps(run, batches[3:], "bf16")()
        if bench.device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    waits = sum("synchroniz" in str(one.message) for one in caught)
    record = {
        "measure": "waiting",
        "model": name,
        "shapes": len({batch.source.shape for batch in batches}),
        "steps": len(batches) - 3,
        "graphs_before": before,
        "graphs_after_warm_up": graphs["unique_graphs"] - before,
        "synchronisations": waits if bench.device == "cuda" else None,
    }
    return [record]


def measure_batching(
    bench: Bench, config: ModelConfig, name: str, max_tokens: int
) -> Iterator[Record]:
    """The same sentences in batches of similar length and in random ones; with the loss read after
    every step; and with an epoch's groups and each batch made on the way, as `train` does, while
    the GPU computes the step before."""
    pairs = sentences(200 if bench.small else 4000, config.vocab_size)
    grouped = list(batches_of_training(pairs, max_tokens))
    mixed = random_batches(pairs, max_tokens, MULTIPLE_OF)
    run = new_run(bench, config, "bf16", False)
    kinds = {
        "grouped by length": (grouped, False),
        "random": (mixed, False),
        "grouped, .item()": (grouped, True),
    }
    works = {kind: steps(run, batches, "bf16", read) for kind, (batches, read) in kinds.items()}
    made = "grouped, made on the way"
    works[made] = lambda: steps(run, batches_of_training(pairs, max_tokens), "bf16")()
    kinds[made] = grouped, False
    times = bench.in_turns(works)
    for kind, (batches, _) in kinds.items():
        tokens = sum(batch.n_tokens for batch in batches)
        padded = sum(batch.target_out.numel() for batch in batches)
        yield {
            "measure": "batching",
            "model": name,
            "batches": kind,
            "n_batches": len(batches),
            "tokens_per_s": tokens / times[kind]["seconds"],
            "padding": 1 - tokens / padded,
            **times[kind],
        }


def measure_attention(bench: Bench) -> Iterator[Record]:
    """Forward and backward of each kernel, 8 heads of width 64,
    the same number of tokens at every length."""
    tokens, lengths = (256, (32, 64)) if bench.small else (16_384, (64, 256, 1024, 4096, 8192))
    for length in lengths:
        shape = (tokens // length, 8, length, 64)
        qkv = [
            torch.randn(shape, device=bench.device, dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        ]
        variants: dict[str, Work] = {}
        for name, kernel in {"equation 1": None, **KERNELS}.items():
            try:
                attend(qkv, kernel)
            except RuntimeError as error:
                is_full = isinstance(error, torch.OutOfMemoryError)
                yield {
                    "measure": "attention",
                    "length": length,
                    "kernel": name,
                    "available": False,
                    "why": "out of memory" if is_full else "no such kernel for these sizes",
                }
            else:
                variants[name] = partial(attend, qkv, kernel)
        peaks = {name: peak_bytes(bench, work) for name, work in variants.items()}
        for name, times in bench.in_turns(variants).items():
            yield {
                "measure": "attention",
                "length": length,
                "kernel": name,
                "available": True,
                "milliseconds": 1e3 * times["seconds"],
                "peak_megabytes": peaks[name] / 1e6,
                **times,
            }


def attend(qkv: list[torch.Tensor], kernel: SDPBackend | None) -> None:
    q, k, v = qkv
    if kernel is None:
        out = scaled_dot_product_attention(q, k, v)
    else:
        with sdpa_kernel(kernel):
            out = F.scaled_dot_product_attention(q, k, v)
    torch.autograd.grad(out.sum(), qkv)


def peak_bytes(bench: Bench, work: Work) -> float:
    """The most memory that `work` held beyond what was held before; 0 on a CPU,
    which does not tell."""
    if bench.device != "cuda":
        return 0.0
    bench.wait()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    bench.wait()
    return torch.cuda.max_memory_allocated() - before


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, small=True, out=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--max-tokens", type=int, help="tokens a batch and side (default 25000, the paper's)"
    )
    parser.add_argument("--measures", nargs="+", choices=MEASURES, help="default all")
    parser.add_argument("--repetitions", type=int, help="default 7; with --small 2")
    args = parser.parse_args(arguments)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU")
    bench = Bench(args.device, args.repetitions or (2 if args.small else 7), args.small)
    max_tokens = args.max_tokens or (256 if args.small else 25_000)
    name = "toy" if args.small else "base"
    config = (
        ModelConfig.tiny(500, N=1, d_model=32, d_ff=64) if args.small else ModelConfig.base(37_000)
    )
    big = config if args.small else ModelConfig.big(37_000)
    records: list[Record] = []

    def of_model(measure: Any, *more: Any) -> Any:
        return partial(measure, bench, config, name, max_tokens, *more)

    # What needs no compiler comes first: an hour that ends early has most of the figures.
    measures = {
        "first-epoch": [of_model(measure_first_epoch)],
        "batching": [of_model(measure_batching)],
        "attention": [partial(measure_attention, bench)],
        "training": [of_model(measure_training, (precision,)) for precision in PRECISIONS],
        "waiting": [of_model(measure_waiting)],
        "big": [partial(measure_training, bench, big, "big", max_tokens, ("bf16",))],
    }
    for measure in (one for name in args.measures or measures for one in measures[name]):
        found = or_out_of_memory(measure)
        print(*map(as_text, found), sep="\n", flush=True)
        records += found
        more = {"device": args.device, "cuda": torch.version.cuda or ""}
        write(out_path(args, "gpu", args.device == "cuda"), "gpu", arguments, records, **more)


if __name__ == "__main__":
    run_main(main)
