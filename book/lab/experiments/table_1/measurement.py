"""Table 1, measured: operations, time, memory, waiting and path length of each layer type.

`python -m lab.experiments.table_1` takes some five minutes of one CPU core, too
short to be resumed. With --small: the same code at toy sizes, in seconds. What is timed, and where
n = d crosses over, stands in `timing`; what is counted stands in `counting`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from lab.experiments.result_file import folder_of, write_result
from lab.experiments.table_1 import timing
from lab.experiments.table_1.counting import measured_memory, paths, waiting

COMMAND = "python -m lab.experiments.table_1"


def main(arguments: list[str] | None = None) -> None:
    """Measure everything and write table_1.json."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Table 1, measured.")
    parser.add_argument("--small", action="store_true", help="toy size, in seconds")
    where = "folder of table_1.json (default: book/results, or a temporary one)"
    parser.add_argument("--out", type=Path, help=where)
    args = parser.parse_args(arguments)
    small, out = args.small, folder_of(args.out, args.small)
    sweeps = [timing.shrunk(sweep) for sweep in timing.TIMES] if small else timing.TIMES
    widths = (16,) if small else (64, 128, 256)
    torch.manual_seed(0)
    with timing.steady():
        with torch.inference_mode():
            records = list(timing.measured_times(sweeps, rounds=2 if small else 7))
            records += timing.crossover(widths, batch=8, rounds=2 if small else 5)
            records.append(timing.matrix_rate(256 if small else 2048, rounds=3 if small else 10))
        lengths = (9, 27) if small else (9, 27, 81)
        records += [*measured_memory(small), *waiting(), *paths(lengths)]
        write_result(out / "table_1.json", COMMAND + " --small" * small, records, seed=0)
    print(out / "table_1.json")


if __name__ == "__main__":
    main()
