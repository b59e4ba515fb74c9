"""What a training run survives, counted.

    python survival.py kills [N]      SIGKILL at N random moments, a fifth of them during saves
    python survival.py stops [N]      one run that gets SIGTERM N times and is resumed as often
    python survival.py damage [N]     files cut at N random lengths, and N random bytes changed

each with --seed and --precision. Every run is held against one that nobody disturbed: weights,
Adam's moments, random state, counters, checkpoints and log must be the same, bit for bit. Prints a
line for each disturbance and what came of all; the exit status is 1 if one was not survived.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from annotated_transformer.checkpoint.directory import state_files, step_checkpoints
from annotated_transformer.checkpoint.weights import load_tensors
from annotated_transformer.errors import ConfigError, DamagedFileError
from annotated_transformer.training.loop import train
from annotated_transformer.training.run import TrainingRun
from toys import text_pairs, toy_run_config, toy_tokenizer

Install = Callable[[], None]
STEPS = {"train_steps": 20, "log_every": 3, "checkpoint_every": 4, "accumulate": 2}
IN_A_SAVE = (  # what is called in a save, and how often in the five saves of a run
    (os, "fsync", 32),
    (os, "replace", 19),
    (os, "link", 4),
    (safetensors.torch, "save_file", 15),
)


def go_on(out: Path, precision: str) -> None:
    """Train to the end, from where the directory stands."""
    configs = toy_run_config(**STEPS, precision=precision)
    resume = bool(state_files(out))
    train(*configs, toy_tokenizer(), text_pairs(1, 60), [], out, resume=resume, progress=False)


def attempt(
    out: Path, precision: str, install: Install | None = None, kill_after: float | None = None
) -> int:
    """`go_on` in a process of its own, forked before anything was computed.

    Its end: 0, or the number of the signal; 1 after an exception, which is printed. `install`
    prepares a death from within; `kill_after` seconds after the run has its directory, this process
    sends SIGKILL, unless the run has ended before it had one.
    """
    process = os.fork()
    if process == 0:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        try:
            if install:
                install()
            go_on(out, precision)
        except KeyboardInterrupt:
            os._exit(signal.SIGTERM)
        except BaseException:  # or this process would go on as the one that it was forked from
            print(traceback.format_exc(), flush=True)
            os._exit(1)
        os._exit(0)
    ended = status = 0
    if kill_after is not None:
        while not (ended or out.exists()):
            time.sleep(0.001)
            ended, status = os.waitpid(process, os.WNOHANG)
        if not ended:
            time.sleep(kill_after)
            os.kill(process, signal.SIGKILL)
    if not ended:
        status = os.waitpid(process, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def at_call(n: int, owner: Any, name: str, number: int = signal.SIGKILL) -> Install:
    """Make the n-th call of `owner.name` send a signal; a file's writing stops half way."""

    def install() -> None:
        original, calls = getattr(owner, name), []

        def deadly(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if len(calls) == n:
                if name == "save_file":
                    original(*args, **kwargs)
                    os.truncate(args[1], os.path.getsize(args[1]) // 2)
                os.kill(os.getpid(), number)
            return original(*args, **kwargs)

        setattr(owner, name, deadly)

    return install


def differences(one: Path, two: Path) -> list[str]:
    """The files in which two runs are not the same."""
    found = [path.name for path in step_checkpoints(one)]
    if found != [path.name for path in step_checkpoints(two)]:
        return ["checkpoints"]
    names = ["model.safetensors", "training.safetensors", *(f"checkpoints/{n}" for n in found)]
    different = []
    for name in names:
        ours, about_ours = load_tensors(one / name)
        theirs, about_theirs = load_tensors(two / name)
        same = ours.keys() == theirs.keys() and about_ours == about_theirs
        if not same or not all(torch.equal(ours[key], theirs[key]) for key in ours):
            different.append(name)
    if untimed(one) != untimed(two):
        different.append("log.jsonl")
    halves = [path.name for path in one.rglob(".*")]
    return different + halves


def untimed(out: Path) -> list[dict[str, Any]]:
    lines = (out / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) | {"tokens_per_s": None} for line in lines]


def kills(folder: Path, n: int, generator: random.Random, precision: str) -> int:
    """The number of `n` killed runs that end as the undisturbed one."""
    began = time.perf_counter()
    assert attempt(folder / "whole", precision) == 0
    seconds, survived, n_in_saves = time.perf_counter() - began, 0, n // 5
    for i in range(n):
        out, ended = folder / "killed", -1
        if i < n_in_saves:
            owner, name, most = IN_A_SAVE[i % len(IN_A_SAVE)]
            at = generator.randint(1, most)
            moment = f"call {at} of {name}"
            ended = attempt(out, precision, at_call(at, owner, name))
        while ended != signal.SIGKILL:  # a run that was faster than the clock is run again
            shutil.rmtree(out, ignore_errors=True)
            after = generator.uniform(0, seconds)
            ended = attempt(out, precision, kill_after=after)
            if ended not in (0, signal.SIGKILL):
                raise SystemExit(f"a run that should be killed ended by itself with {ended}")
            moment = f"{after:.3f} s"
        left = sorted(path.name for path in out.rglob("*") if path.is_file())
        again = attempt(out, precision)
        wrong = differences(out, folder / "whole") if again == 0 else [f"status {again}"]
        survived += not wrong
        print(f"killed at {moment}, with {len(left)} files: {', '.join(wrong) or 'the same'}")
        shutil.rmtree(out)
    print(f"{survived} of {n} killed runs end bit-identical, {n_in_saves} of them killed in saves")
    return survived


def stops(folder: Path, n: int, generator: random.Random, precision: str) -> int:
    """`n` if a run that is stopped and resumed so often ends as the undisturbed one."""
    assert attempt(folder / "whole", precision) == 0
    for _ in range(n):
        stop = at_call(generator.randint(1, 18 // n), TrainingRun, "step", signal.SIGTERM)
        print(f"ended by signal {attempt(folder / 'stopped', precision, stop)}")
    assert attempt(folder / "stopped", precision) == 0
    wrong = differences(folder / "stopped", folder / "whole")
    print(f"a run resumed {n} times is {', '.join(wrong) or 'bit-identical'}")
    return 0 if wrong else n


def damage(folder: Path, n: int, generator: random.Random, precision: str) -> int:
    """The number of `2 n` damaged files that are recognised, the run going on from the one before.

    Half of `model.safetensors` and of a checkpoint are damaged as often; there nothing is to be
    gone on from, and they are named.
    """
    assert attempt(folder / "whole", precision) == 0
    whole, out = folder / "whole", folder / "damaged"
    survived, named = 0, 0
    names = "training.safetensors", "model.safetensors", "checkpoints/step-00000020.safetensors"
    for i in range(2 * n):
        for name in names:
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(whole, out)
            path = out / name
            content = bytearray(path.read_bytes())
            at = generator.randrange(len(content))
            if i < n:
                del content[at:]
            else:
                content[at] ^= generator.randrange(1, 256)
            path.unlink()
            path.write_bytes(content)
            try:
                load_tensors(path)
            except DamagedFileError:
                named += 1
            if name != names[0]:
                continue
            try:
                with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
                    go_on(out, precision)
                wrong = differences(out, whole)
            except ConfigError as error:
                wrong = [str(error)]
            survived += not wrong
            what = "cut at" if i < n else "changed at"
            print(f"{name} {what} byte {at}: {', '.join(wrong) or 'gone on from the one before'}")
    print(f"{named} of {6 * n} damaged files are recognised")
    print(f"{survived} of {2 * n} runs with a damaged state end bit-identical")
    return survived if named == 6 * n else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("what", choices=["kills", "stops", "damage"])
    parser.add_argument("n", type=int, nargs="?")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--precision", default="fp32")
    args = parser.parse_args(arguments)
    function, default, factor = {
        "kills": (kills, 50, 1), "stops": (stops, 5, 1), "damage": (damage, 100, 2),
    }[args.what]  # fmt: skip
    n = args.n or default
    toy_tokenizer()
    torch.optim.Adam([torch.zeros(1)])  # imports much, which each process would do anew
    with tempfile.TemporaryDirectory() as folder:
        survived = function(Path(folder), n, random.Random(args.seed), args.precision)
    return int(survived != factor * n)


if __name__ == "__main__":
    sys.exit(main())
