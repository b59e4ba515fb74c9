"""All that waits for a GPU, in one command.

    python benchmarks/on_a_gpu.py                       every part, into runs/on_a_gpu
    python benchmarks/on_a_gpu.py --parts gpu multi30k  some of them
    python benchmarks/on_a_gpu.py --small               a rehearsal at toy size, on the CPU

Each part is a program of its own: `gpu` (steps, kernels, batches), `chapter_6_1` (its small model
in float16, as on a T4), `multi30k` (a model of 60 epochs, scored), `table_3` and `since` (the rows
to the end, eight runs side by side). What a part prints is in PART.log, what it measured in the
folder, and parts.json says how each ended and how long it took. A part that fails stops no other.
What is known of the time: on an H200 with 16 cores fifteen rows of `since` took 6 to 7 minutes side
by side, with CUDA's multi-process service, and `multi30k` 7 in that company; `gpu` takes 2 for
what compiles nothing and over 5 for the rest (LOG.md, "A quarter of an hour on a GPU").
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from annotated_transformer.errors import say
from benchmarks.recipes import SMALL
from benchmarks.timing import write
from tools.arguments import parser_of, run_main

ROOT = Path(__file__).resolve().parents[1]


def parts(out: Path, small: bool) -> dict[str, list[str]]:
    """The command of each part, without the Python that runs it."""
    toy = ["--small"] if small else []
    device = "cpu" if small else "cuda"
    table = ["lab.experiments.table_3", "--to-the-end", *toy, "--device", device, "--out", str(out)]
    table += ["--jobs", "1" if small else "8", "--runs", str(out / "runs"), "--scores", str(out)]
    chapter = "--preset tiny --vocab-size 2000 --set N=2 --set d_model=64 --set d_ff=256 "
    chapter += "--set p_drop=0.0 --set max_tokens=320 --set train_steps=1500 --device cuda "
    chapter += "--set warmup_steps=200 --set precision=fp16 --set validate_every=50"
    learned = ["--corpus", "reverse" if small else "tatoeba-en-de", "--out", str(out / "chapter")]
    precision = ["--set", "precision=fp32"] if small else []
    recipe = ["--runs", str(out / "runs"), "--out", str(out / "multi30k_small_gpu.json")]
    return {
        "gpu": ["benchmarks.gpu", *toy, "--device", device, "--out", str(out / "gpu.json")],
        "chapter_6_1": [
            *("annotated_transformer", "train", *learned, *chapter.split()),
            *(SMALL if small else ()),
            *precision,
        ],
        "multi30k": ["benchmarks.recipes", "multi30k_small_gpu", *toy, *recipe],
        "table_3": table,
        "since": [*table, "--rows", *(["base"] if small else ["base", "since"])],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts one after the other; 1 where one has failed."""
    parser = parser_of(__doc__, small=True)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "on_a_gpu")
    parser.add_argument("--parts", nargs="+", choices=parts(Path(), small=False))
    args = parser.parse_args(arguments)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(ROOT), str(ROOT / "book"), os.environ.get("PYTHONPATH", "")])
    records = []
    for name, command in parts(out, args.small).items():
        if name not in (args.parts or (name,)):
            continue
        say(f"{name}: {' '.join(command)}")
        began = time.perf_counter()
        with (out / f"{name}.log").open("w") as log:
            ended = subprocess.run(
                [sys.executable, "-m", *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": path},
                cwd=ROOT,
            )
        seconds = round(time.perf_counter() - began, 1)
        records.append({"part": name, "status": ended.returncode, "seconds": seconds})
        print(*records[-1].values(), flush=True)
        write(out / "parts.json", "on_a_gpu", arguments, records)
    return int(any(record["status"] for record in records))


if __name__ == "__main__":
    run_main(main)
