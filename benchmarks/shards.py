"""Data larger than memory: how fast pairs become shards, and what training from them takes;
book/results/shards.json.

    OMP_NUM_THREADS=1 python benchmarks/shards.py           1,000,000 generated pairs encoded by two
                                                            threads; training from 100,000,
                                                            1,000,000 and 10,000,000
    python benchmarks/shards.py --small --out /tmp/s.json   a rehearsal that measures nothing of
                                                            worth
    python benchmarks/shards.py --sizes 40000000            training from as many pairs as
                                                            English-French has

Encoding: two files of made-up words, in sentences as long as sentences are, go through `prepare
--encode` as it is typed, with a tokenizer that is given. The peak is that of its process.

Training: a shard is linked as often as a size needs, for nothing that is read here stays in memory.
Each size has a process of its own, in which a small model makes steps at an epoch's beginning, in
its middle and over its end. What that takes above the model is its peak less that of a process that
makes the same steps on the same batches, read from a file.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from annotated_transformer import TrainConfig
from annotated_transformer.checkpoint.directory import SHARDS_MANIFEST
from annotated_transformer.data.batching import Batch, plan
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.extras.shards.reading import TOKENIZER_FILE, Shards, file_names
from annotated_transformer.extras.shards.writing import encode
from annotated_transformer.training.epochs import TrainingPairs
from annotated_transformer.training.run import TrainingRun
from benchmarks.recipes import cpu_seconds
from benchmarks.timing import (
    ROOT,
    as_text,
    highest,
    in_own_process,
    out_path,
    peak_megabytes,
    toy,
    write,
)
from tools.arguments import parser_of, run_main

SIZES = (100_000, 1_000_000, 10_000_000)
STEPS = 4  # at each of three places
WORDS = [f"{a}{b}{c}" for a in "bdfgklmn" for b in "aeiou" for c in ("", "r", "st", "nk")]


def texts(n: int, seed: int) -> Iterator[str]:
    """n sentences of made-up words, as long as sentences are."""
    rng = random.Random(seed)
    for _ in range(n):
        length = max(1, min(60, round(10 * rng.lognormvariate(0, 0.5))))
        yield " ".join(rng.choices(WORDS, k=length))


def running(process: int) -> list[int]:
    """A process and all that it has started, by number."""
    found = [process]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, task.read_text().split())
            except OSError:
                continue  # it ended meanwhile
    return found


def measure_encoding(folder: Path, n_pairs: int, jobs: int, small: bool) -> dict[str, Any]:
    """`prepare --encode` from two files to `folder`/encoded."""
    tokenizer = Tokenizer.train(texts(500 if small else 20_000, 3), 300 if small else 480)
    tokenizer.save(folder / TOKENIZER_FILE)
    for name, seed in (("source", 1), ("target", 2)):
        with open(folder / name, "w", encoding="utf-8") as file:
            file.writelines(f"{text}\n" for text in texts(n_pairs, seed))
    command: list[str | Path] = [
        *(sys.executable, "-m", "annotated_transformer", "prepare", "--encode", "--quiet"),
        *("--train", folder / "source", folder / "target", "--tokenizer", folder / TOKENIZER_FILE),
        *("--out", folder / "encoded", "--jobs", str(jobs)),
    ]
    peaks: dict[int, float] = {}
    began, of_cpu = time.perf_counter(), cpu_seconds()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as encoder:
        while encoder.poll() is None:
            for process in running(encoder.pid):
                peaks[process] = max(peaks.get(process, 0.0), highest(process))
            time.sleep(0.05)
        assert encoder.stdout is not None
        summary = json.loads(encoder.stdout.read())
    seconds = time.perf_counter() - began
    return {
        "measure": "encoding",
        "pairs": summary["pairs"],
        "tokens": summary["source_tokens"] + summary["target_tokens"],
        "threads": jobs,
        "seconds": seconds,
        "pairs_per_s": n_pairs / seconds,
        "cpu_seconds": cpu_seconds() - of_cpu,
        "peak_megabytes": sum(peaks.values()),
        "megabytes_on_disk": sum(f.stat().st_size for f in (folder / "encoded").iterdir()) / 1e6,
    }


def shards_of(folder: Path, size: int) -> Path:
    """A directory of `size` pairs: the first encoded shard again and again, or pairs anew."""
    encoded, directory = folder / "encoded", folder / str(size)
    stored = json.loads((encoded / SHARDS_MANIFEST).read_text())
    entry = stored["shards"][0]
    if size % entry["pairs"]:
        tokenizer = Tokenizer.load(folder / TOKENIZER_FILE)
        encode(tokenizer, zip(texts(size, 1), texts(size, 2)), directory, progress=False)
        return directory
    directory.mkdir()
    times = size // entry["pairs"]
    (directory / SHARDS_MANIFEST).write_text(json.dumps({**stored, "shards": [entry] * times}))
    os.link(encoded / TOKENIZER_FILE, directory / TOKENIZER_FILE)
    for number in range(times):
        for first, name in zip(file_names(0), file_names(number), strict=True):
            os.link(encoded / first, directory / name)
    return directory


def new_run(vocab_size: int) -> TrainingRun:
    return TrainingRun(toy(vocab_size), TrainConfig(max_tokens=4096, precision="fp32"))


def train_from_shards(directory: Path) -> dict[str, Any]:
    """Run in a process of its own; the batches go to `directory`/batches.pt."""
    run = new_run(Shards(directory).manifest.vocab_size)
    began = time.perf_counter()
    shards = Shards(directory)
    pairs = TrainingPairs(run.config, shards.tokenizer(), shards)
    run.config = pairs.config
    seconds = {"opening": time.perf_counter() - began}
    seen = []
    config = run.config
    groups = plan(
        shards, config.max_tokens, max_length=config.max_length, window=config.window, epoch=0
    )
    n_batches = sum(1 for _ in groups)
    places = {"beginning": 0, "middle": n_batches // 2, "end": n_batches - STEPS // 2}
    for place, start in places.items():
        run.epoch, run.n_batches = 0, start
        began, batches = time.perf_counter(), run.batches(pairs)
        seen.append(next(batches))
        seconds[place] = time.perf_counter() - began
        seen += islice(batches, STEPS - 1)
        for batch in seen[-STEPS:]:
            run.step([batch])
    peak = peak_megabytes()
    torch.save([list(batch) for batch in seen], directory / "batches.pt")
    return {
        "measure": "training",
        "pairs": len(shards),
        "batches": n_batches,
        **{f"seconds_{name}": value for name, value in seconds.items()},
        "peak_megabytes": peak,
    }


def train_from_batches(directory: Path) -> dict[str, Any]:
    """The same steps without shards, in a process of its own."""
    batches = [Batch(*tensors) for tensors in torch.load(directory / "batches.pt")]
    run = new_run(Shards(directory).manifest.vocab_size)
    for batch in batches:
        run.step([batch])
    return {"megabytes_of_the_model": peak_megabytes()}


def measure_training(folder: Path, sizes: Sequence[int], small: bool) -> list[dict[str, Any]]:
    """One record a size; a rehearsal starts no process."""
    records = []
    for size in sizes:
        directory, found = shards_of(folder, size), dict[str, Any]()
        if small:
            found |= train_from_shards(directory) | train_from_batches(directory)
        for option in () if small else ("--from-shards", "--from-batches"):
            found |= in_own_process("shards", option, directory)
        found["megabytes_above"] = found["peak_megabytes"] - found["megabytes_of_the_model"]
        records.append(found)
    return records


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, small=True, out=True)
    parser.add_argument("--pairs", type=int, help="to encode (default 1,000,000)")
    parser.add_argument("--jobs", type=int, default=2, help="threads (default 2)")
    parser.add_argument("--sizes", type=int, nargs="*", help="to train from")
    parser.add_argument("--folder", type=Path, help="where to work (default a temporary one)")
    parser.add_argument("--from-shards", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--from-batches", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if args.from_shards or args.from_batches:
        work = train_from_shards if args.from_shards else train_from_batches
        print(json.dumps(work(args.from_shards or args.from_batches)))
        return
    n_pairs = args.pairs or (1_000 if args.small else 1_000_000)
    sizes = args.sizes or ((3_000,) if args.small else SIZES)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        records = [measure_encoding(Path(folder), n_pairs, args.jobs, args.small)]
        print(as_text(records[0]), flush=True)
        records += measure_training(Path(folder), sizes, args.small)
    print(*map(as_text, records[1:]), sep="\n", flush=True)
    write(out_path(args, "shards"), "shards", arguments, records, seed=1)


if __name__ == "__main__":
    run_main(main)
