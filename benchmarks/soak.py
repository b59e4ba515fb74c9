"""Minutes of training and translating with a fault in each: python benchmarks/soak.py.

A small model is trained in a process of its own, again and again, while this process translates
with the newest weights. Every minute something goes wrong, in turn: SIGKILL, SIGTERM, a damaged
state, a state cut short, no room on the disk, a log cut in the middle of a line. Then, when the
minute is full, the run is resumed. In the end it must be, bit for bit, the run that nobody
disturbed, and the memory of both processes must be where it was.

    killed        SIGKILL, wherever the run is
    asked to stop SIGTERM, as a cluster does
    damaged       SIGKILL, and a byte of the newest state changed
    cut           SIGKILL, and the newest state cut in two
    full          no file may grow, until the run has ended by itself
    torn          SIGKILL, and half a line at the end of the log

Prints a line for each fault and one of JSON at the end; the exit status is 1 if anything was lost.
The default, 30 faults a minute apart, writes book/results/soak.json; `--minutes 1` is a rehearsal,
and writes nothing.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import json
import mmap
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from annotated_transformer.checkpoint.directory import load_model, state_files
from annotated_transformer.checkpoint.weights import load_tensors
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.data import corpus
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import ConfigError
from annotated_transformer.training.log import read_log
from annotated_transformer.training.loop import train
from benchmarks.timing import command_line
from lab.experiments.result_file import write_result
from tools.arguments import parser_of, run_main

RESULT = Path(__file__).parents[1] / "book" / "results" / "soak.json"
FAULTS = ("killed", "asked to stop", "damaged", "cut", "full", "torn")
STEPS_A_ROUND = 300
GROWTH = 32 * 2**20  # bytes, which either process may take in the end above its first minute


class Soak:
    """The run, its data, and what came of the faults."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        self.pairs = corpus.load("reverse", "train")[:2000]
        sentences = [side for pair in self.pairs for side in pair]
        self.tokenizer = Tokenizer.train(sentences, 300)
        self.model = ModelConfig.tiny(300, N=1, d_model=32, d_ff=64, h=2)
        torch.optim.Adam([torch.zeros(1)])  # imports much, which each process would do anew

    def settings(self, steps: int) -> TrainConfig:
        return TrainConfig(
            train_steps=steps, max_tokens=500, max_length=30, warmup_steps=100, log_every=7,
            checkpoint_every=25, keep_checkpoints=2, precision="fp32",
        )  # fmt: skip

    def begin(self, out: Path, steps: int, full: bool = False) -> int:
        """Start to train up to so many steps, in a process of its own; its number."""
        process = os.fork()
        if process:
            return process
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        if full:
            import resource

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        resume = bool(state_files(out))
        try:
            train(
                self.model, self.settings(steps), self.tokenizer, self.pairs, [], out,
                resume=resume, progress=False,
            )  # fmt: skip
        except (ConfigError, OSError):
            os._exit(2)
        except KeyboardInterrupt:
            os._exit(143)
        os._exit(0)

    def disturb(self, fault: str, out: Path, process: int) -> int:
        """Do it; the status of the process that trained."""
        stop = signal.SIGTERM if fault == "asked to stop" else signal.SIGKILL
        os.kill(process, stop)
        status = os.waitpid(process, 0)[1]
        newest = next(iter(state_files(out)), None)
        if newest and fault in ("damaged", "cut"):
            content = bytearray(newest.read_bytes())
            if fault == "damaged":
                content[self.chance.randrange(len(content))] ^= 1
            else:
                del content[len(content) // 2 :]
            newest.unlink()  # it may have the other state's name as well
            newest.write_bytes(content)
        elif fault == "full":
            status = os.waitpid(self.begin(out, 10**6, full=True), 0)[1]
        elif fault == "torn" and (out / "log.jsonl").exists():
            with (out / "log.jsonl").open("a", encoding="utf-8") as file:
                file.write('{"step": 3, "lo')
        return os.waitstatus_to_exitcode(status)

    def translate(self, out: Path, seconds: float, process: int) -> int:
        """Translate with the newest weights for so long; the number of lines.

        On a slow machine it is longer, until the process that trains has saved a state: a run of
        which both states are damaged, one after the other, cannot go on.
        """
        until, before, n_lines = time.monotonic() + seconds, reached(out), 0
        while time.monotonic() < until or (reached(out) <= before and runs(process)):
            n_lines += self.translate_some(out)
        return n_lines

    def translate_some(self, out: Path) -> int:
        """Translate fifty lines with the weights that lie there, if there are any; how many."""
        try:
            model, tokenizer = load_model(out)
        except ConfigError:  # there are none yet
            time.sleep(0.1)
            return 0
        lines = [source for source, _ in self.chance.sample(self.pairs, 50)]
        translated = Translator(model, tokenizer).translate(lines, beam_size=2)
        if len(translated) != len(lines):
            raise SystemExit(f"{len(lines)} lines in, {len(translated)} out")
        return len(lines)

    def differences(self, one: Path, two: Path) -> list[str]:
        """What two runs do not share."""
        found = []
        for name in ("model.safetensors", "training.safetensors"):
            (ours, about), (theirs, other) = load_tensors(one / name), load_tensors(two / name)
            same = ours.keys() == theirs.keys() and about == other
            if not same or not all(torch.equal(ours[key], theirs[key]) for key in ours):
                found.append(name)
        losses = [[(r["step"], r["loss"]) for r in read_log(path)] for path in (one, two)]
        return found + ["log.jsonl"] * (losses[0] != losses[1])


def memory(process: int | str = "self") -> int:
    """Bytes that a process has in memory now."""
    pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * mmap.PAGESIZE


def soak(minutes: int, seconds: float, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        it, out, n_lines = Soak(folder, seed), folder / "run", 0
        sizes: dict[str, list[int]] = {"translating": [], "training": []}
        began = time.monotonic()
        for minute in range(minutes):
            fault = FAULTS[minute % len(FAULTS)]
            process = it.begin(out, 10**6)
            n_lines += it.translate(out, seconds * it.chance.uniform(0.7, 1.0), process)
            sizes["training"].append(memory(process))
            status = it.disturb(fault, out, process)
            while time.monotonic() < began + (minute + 1) * seconds:
                n_lines += it.translate_some(out)
            sizes["translating"].append(memory())
            said = ", ".join(f"{who} {of[-1] / 2**20:.0f} MiB" for who, of in sizes.items())
            print(f"{fault}: ended with {status}, {said}", flush=True)
        elapsed, steps = time.monotonic() - began, reached(out) + STEPS_A_ROUND
        if steps < STEPS_A_ROUND:
            raise SystemExit(f"no state is left in {out}")
        statuses = [os.waitpid(it.begin(path, steps), 0)[1] for path in (out, folder / "whole")]
        wrong = it.differences(out, folder / "whole") + [f"status {s}" for s in statuses if s]
        shutil.rmtree(out)
        growth = {who: of[-1] - of[0] for who, of in sizes.items()}
        return {
            "faults": minutes, "seconds_apart": seconds, "minutes": round(elapsed / 60, 1),
            "steps": steps, "lines": n_lines,
            "MiB": {who: [round(size / 2**20, 1) for size in of] for who, of in sizes.items()},
            "growth_MiB": {who: round(size / 2**20, 1) for who, size in growth.items()},
            "flat": max(growth.values()) <= GROWTH, "differs_in": wrong,
        }  # fmt: skip


def reached(out: Path) -> int:
    """The step of the newest state that can be read, -1 where there is none."""
    for path in state_files(out):
        try:
            return int(json.loads(load_tensors(path)[1]["counters"])["step"])
        except ConfigError:
            continue
    return -1


def runs(process: int) -> bool:
    """Whether a process that this one has started has not ended."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=60.0, help="to a minute, for a trial")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    result = soak(args.minutes, args.seconds, args.seed)
    print(json.dumps(result))
    if args.minutes >= 30 and args.seconds >= 60:
        write_result(RESULT, command_line("soak", arguments), [result])
    return int(bool(result["differs_in"]) or not result["flat"])


if __name__ == "__main__":
    run_main(main)
