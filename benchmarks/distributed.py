"""Two processes of one core each against one: training steps of base, joined by gloo.

    OMP_NUM_THREADS=1 python benchmarks/distributed.py              two idle cores, ten minutes
    OMP_NUM_THREADS=1 python benchmarks/distributed.py --small      a rehearsal that measures
                                                                    nothing of worth

Both make the same steps of two batches each. One process takes both batches in turn, two take one
each. They take turns: in each round torchrun starts one process, then two, and what counts is the
median over the rounds of the ratio of neighbours, in real target tokens a second. Three rounds or
more write book/results/distributed.json.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from annotated_transformer import ModelConfig, TrainConfig
from annotated_transformer.data.batching import token_batches
from annotated_transformer.training.processes import joined
from annotated_transformer.training.run import TrainingRun
from benchmarks.timing import ROOT, command_line, sentences
from lab.experiments.result_file import RESULTS, write_result
from tools.arguments import parser_of, run_main

WORKER = "--work"


def work(small: bool, n_steps: int) -> None:
    """Take steps, and print the real target tokens a second, as one of the processes."""
    vocab_size = 300 if small else 8000
    changes = {"N": 1, "d_model": 32, "d_ff": 64, "h": 2} if small else {}
    config = TrainConfig(max_tokens=300 if small else 2000, accumulate=2, precision="fp32")
    with joined("cpu") as processes:
        model_config = ModelConfig.base(vocab_size, **changes)
        run = TrainingRun(model_config, config, processes=processes)
        pairs = sentences(400 if small else 4000, vocab_size)
        batches = list(token_batches(pairs, config.max_tokens))[: 2 * (n_steps + 1)]
        steps = [batches[i : i + 2] for i in range(0, len(batches), 2)]
        run.step(steps[0])
        began = time.perf_counter()
        n_tokens = sum(run.step(step)[2] for step in steps[1:])
        seconds = time.perf_counter() - began
        if processes.is_first:
            print(json.dumps(n_tokens / seconds))


def tokens_a_second(n: int, arguments: Sequence[str]) -> float:
    """What n processes make."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", str(n), "-m", "benchmarks.distributed", WORKER, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        torchrun, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    return float(json.loads(done.stdout))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, small=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of each process in a round (default 20)")
    parser.add_argument(WORKER, action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    n_steps = args.steps or (2 if args.small else 20)
    if args.work:
        work(args.small, n_steps)
        return
    passed_on = ["--steps", str(n_steps), *(["--small"] if args.small else [])]
    rounds = []
    for _ in range(1 if args.small else args.rounds):
        one, two = (tokens_a_second(n, passed_on) for n in (1, 2))
        rounds.append({"one": round(one, 1), "two": round(two, 1), "ratio": round(two / one, 3)})
        print(f"one process {one:,.0f} tokens/s, two {two:,.0f}: {two / one:.2f} times", flush=True)
    median = statistics.median(row["ratio"] for row in rounds)
    print(f"median {median:.2f}")
    if len(rounds) >= 3:
        record = {"preset": "base", "steps": n_steps, "rounds": rounds, "median": median}
        write_result(RESULTS / "distributed.json", command_line("distributed", arguments), [record])


if __name__ == "__main__":
    run_main(main)
