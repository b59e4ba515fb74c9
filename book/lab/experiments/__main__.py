"""All experiments, one after the other: `python -m lab.experiments`.

With --small they run at toy size.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from lab.experiments.figures_3_to_5 import findings as figures_3_to_5
from lab.experiments.result_file import folder_of
from lab.experiments.table_1 import measurement as table_1
from lab.experiments.table_3 import miniature_run as table_3
from lab.experiments.table_4 import parser as parsing

PARTS: dict[str, Callable[[list[str]], None]] = {
    "table_1": table_1.main,
    "table_3": table_3.main,
    "table_3_to_the_end": lambda words: table_3.main(["--to-the-end", *words]),
    "parsing": parsing.main,
    "figures_3_to_5": figures_3_to_5.main,
}
"""Each writes the result file of its name.

What is finished is not run again, except the timings of Table 1.
"""


def main(arguments: list[str] | None = None) -> None:
    """Run the parts, one after the other, and say where each result file lies."""
    command = "python -m lab.experiments"
    parser = argparse.ArgumentParser(prog=command, description=__doc__)
    add = parser.add_argument
    add("--small", action="store_true", help="toy size, in minutes, into a temporary folder")
    add("--out", type=Path, help="folder of the result files (default: book/results)")
    add("--jobs", type=int, default=1, help="runs of Table 3 at a time")
    add("--only", choices=PARTS, action="append", help="this one; may be repeated")
    args = parser.parse_args(arguments)
    out = folder_of(args.out, args.small)
    for name in args.only or PARTS:
        began = time.perf_counter()
        jobs = ["--jobs", str(args.jobs)] if name.startswith("table_3") else []
        PARTS[name]([*(["--small"] if args.small else []), "--out", str(out), *jobs])
        print(f"{name}: {out / name}.json after {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
