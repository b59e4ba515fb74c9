"""This tree against another commit of it: training and decoding, both in one run.

    OMP_NUM_THREADS=1 python benchmarks/against.py a3e37ea              one round takes two minutes
    OMP_NUM_THREADS=1 python benchmarks/against.py HEAD~1 --rounds 9 --only "train tiny"

The commit is checked out beside this tree. Two processes, one of each, stay alive and take turns at
the same work, in either order; what counts is the CPU time of each turn, and a ratio is the median
over rounds of neighbours. 1.10 says that this tree is 1.1 times as fast. Only what both know is
used: `train`, `Translator`, the presets with the initial values that both have. A process is some
percent fast or slow for as long as it lives, even with the same code (LOG.md, Speed); so there are
several launches of both, each tree starting first in turn, and the spread is over launches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORKER = "--work"


def works(tree: Path, small: bool) -> dict[str, Callable[[], object]]:
    """What is timed, by name. Imports of the package happen here: they find the tree's own."""
    import torch

    from annotated_transformer import (
        ModelConfig,
        Tokenizer,
        TrainConfig,
        Transformer,
        Translator,
        corpus,
        train,
    )

    pairs = list(corpus.load("reverse", "train"))[:4000]
    tokenizer = Tokenizer.train((text for pair in pairs for text in pair), vocab_size=300)
    sentences = [source for source, _ in corpus.load("tatoeba-en-de", "test")]
    del sentences[8 if small else 64 :]
    folder = Path(tempfile.mkdtemp())

    def training(preset: str, steps: int) -> Callable[[], object]:
        config = getattr(ModelConfig, preset)(vocab_size=300, initialization="scaled")
        settings = TrainConfig(
            train_steps=2 if small else steps,
            max_tokens=1000,
            warmup_steps=10,
            checkpoint_every=1000,
            keep_checkpoints=1,
            precision="fp32",
        )

        def run() -> None:
            with tempfile.TemporaryDirectory(dir=folder) as out:
                train(config, settings, tokenizer, pairs, [], f"{out}/run", progress=False)

        return run

    torch.manual_seed(0)
    base_config = ModelConfig.base(vocab_size=300, initialization="scaled")
    base = Translator(Transformer(base_config), tokenizer)  # untrained: all find the same
    translator = Translator.from_checkpoint(tree / "book" / "model", device="cpu")
    int8 = Translator.from_checkpoint(tree / "book" / "model", device="cpu", int8=True)
    return {
        "train tiny": training("tiny", 25),
        "train small": training("small", 8),
        "train base": training("base", 3),
        "greedy, 64 sentences": lambda: translator.translate(sentences, beam_size=1),
        "beam 4, 64 sentences": lambda: translator.translate(sentences, beam_size=4),
        "beam 4, one by one": lambda: [
            translator.translate([s], beam_size=4) for s in sentences[:8]
        ],
        "base, beam 4": lambda: base.translate(sentences[:8], beam_size=4, max_extra=5),
        "beam 4, int8": lambda: int8.translate(sentences, beam_size=4),
    }


def work(tree: Path, small: bool) -> None:
    """A worker: for each name on standard input, the CPU seconds of that work."""
    import time

    import torch

    torch.set_num_threads(1)
    known = works(tree, small)
    print(json.dumps(list(known)), flush=True)
    for line in sys.stdin:
        began = time.process_time()
        known[line.strip()]()
        print(time.process_time() - began, flush=True)


class Worker:
    """A process that imports the package of one tree."""

    def __init__(self, tree: Path, small: bool) -> None:
        command = [sys.executable, "-W", "ignore", __file__, str(tree), WORKER]
        self.process = subprocess.Popen(
            [*command, "--small"] if small else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
        )
        self.names: list[str] = json.loads(self._answer())

    def _answer(self) -> str:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"against.py: a worker ended with status {self.process.wait()}")
        return answer

    def seconds(self, name: str) -> float:
        assert self.process.stdin is not None
        print(name, file=self.process.stdin, flush=True)
        return float(self._answer())

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(
    here: Worker, there: Worker, rounds: int, only: Sequence[str] | None = None
) -> dict[str, float]:
    """For each work, or those named, the CPU seconds, the other's to ours: median over rounds."""
    ratios: dict[str, list[float]] = {name: [] for name in only or here.names}
    for worker in (here, there):
        for name in ratios:
            worker.seconds(name)  # once unmeasured
    for number in range(rounds):
        for name in ratios:
            order = (here, there) if number % 2 else (there, here)
            seconds = {worker: worker.seconds(name) for worker in order}
            ratios[name].append(seconds[there] / seconds[here])
            print(f"round {number + 1}, {name}: {ratios[name][-1]:.3f}", file=sys.stderr)
    return {name: statistics.median(found) for name, found in ratios.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Check the commit out, compare, and print a line for each work."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="a commit of this repository")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--launches", type=int, default=4)
    parser.add_argument("--only", action="append", metavar="WORK", help="may be repeated")
    parser.add_argument("--small", action="store_true", help="a rehearsal: a little work")
    parser.add_argument(WORKER, action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.work:
        work(Path(args.commit), args.small)
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(tree), args.commit], check=True)
        try:
            launches = []
            for number in range(args.launches):
                first, second = (ROOT, tree) if number % 2 else (tree, ROOT)
                workers = {first: Worker(first, args.small), second: Worker(second, args.small)}
                launches.append(compare(workers[ROOT], workers[tree], args.rounds, args.only))
                for worker in workers.values():
                    worker.end()
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    for name in launches[0]:
        found = [ratios[name] for ratios in launches]
        spread = f"{min(found):.3f} to {max(found):.3f}"
        print(f"{name:24} {statistics.median(found):.3f} times as fast ({spread})")


if __name__ == "__main__":
    main()
