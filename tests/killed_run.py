"""A training run that is killed five times and resumed, beside one that is not.

    python killed_run.py DIRECTORY SEED PRECISION

Each attempt is a process of its own, forked before anything was computed, and ends by SIGKILL: at a
random update, or in the middle of writing a file of a checkpoint. Prints how each attempt ended;
test_loop.py compares the runs.
"""

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from toys import text_pairs, toy_run_config, toy_tokenizer

from annotated_transformer.training.loop import train


def attempt(out: Path, install_kill: Callable[[], None] | None) -> int:
    """Train to the end, or to the kill, in a new process; the signal that ended it, or 0."""
    process = os.fork()
    if process == 0:
        if install_kill:
            install_kill()
        configs = toy_run_config(
            train_steps=20, log_every=3, checkpoint_every=4, accumulate=2, precision=sys.argv[3]
        )
        resume = (out / "training.safetensors").exists()
        train(*configs, toy_tokenizer(), text_pairs(1, 60), [], out, resume=resume, progress=False)
        os._exit(0)
    status = os.waitpid(process, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def kill_at_call(n: int, owner: object, name: str) -> Callable[[], None]:
    """Make the n-th call of `owner.name` fatal."""

    def install() -> None:
        original, calls = getattr(owner, name), []

        def deadly(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if len(calls) == n:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        setattr(owner, name, deadly)

    return install


if __name__ == "__main__":
    directory, generator = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
    toy_tokenizer()
    attempt(directory / "whole", None)
    for i in range(5):
        update = kill_at_call(generator.randint(1, 6), torch.optim.Adam, "step")
        in_a_file = kill_at_call(generator.randint(5, 16), os, "fsync")  # two a file
        print(attempt(directory / "killed", in_a_file if i in (1, 3) else update))
    print(attempt(directory / "killed", None))
