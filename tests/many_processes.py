"""Runs of one, two and four processes, made side by side: test_distributed.py compares them.

    python many_processes.py DIRECTORY

Each process is forked from this one, so that PyTorch is imported once; gloo joins them, as it does
under torchrun. `train` writes a run to DIRECTORY/NAME; notes of a process go to NAME.RANK.json.
"""

import importlib
import json
import math
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from annotated_transformer.config import ModelConfig
from annotated_transformer.data.batching import make_batch
from annotated_transformer.errors import ConfigError
from annotated_transformer.training import state
from annotated_transformer.training.loop import train
from annotated_transformer.training.processes import Processes, joined
from annotated_transformer.training.run import TrainingLoss, TrainingRun
from toys import text_pairs, toy_run_config, toy_tokenizer

DIRECTORY = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
PAIRS, VALID = text_pairs(1, 60), text_pairs(2, 11)
STEPS: dict[str, Any] = {"train_steps": 8, "accumulate": 4, "clip_norm": 0.5, "log_every": 1}
STEPS["lr_factor"] = 0.1  # rates as large as those of real runs
HEAVY = ("sacrebleu", "tqdm")
Do = Callable[[Processes], object]


def started(n: int, do: Do) -> list[int]:
    """Let n processes that find what torchrun tells them do this; the exit status of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    numbers = []
    for rank in range(n):
        number = os.fork()
        if number == 0:
            os.environ.update(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(n), LOCAL_WORLD_SIZE=str(n),
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="test",
                TORCHELASTIC_RESTART_COUNT="0",
            )  # fmt: skip
            os._exit(one_of_them(do))
        numbers.append(number)
    return [os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in numbers]


def one_of_them(do: Do) -> int:
    try:
        with joined("cpu") as processes:
            do(processes)
    except KeyboardInterrupt:
        return 130
    except ConfigError as error:
        os.write(2, f"error: {error}\n".encode())  # at once: others write there, too
        return 2
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def run(name: str, p_drop: float = 0.0, resume: bool = False, **changes: Any) -> Do:
    """A training run, or what is left of it."""

    def do(processes: Processes) -> None:
        model_config, train_config = toy_run_config(**{**STEPS, **changes})
        train(
            model_config.replace(p_drop=p_drop), train_config, toy_tokenizer(), PAIRS, VALID,
            DIRECTORY / name, resume=resume, progress=False, processes=processes,
        )  # fmt: skip

    return do


def stopped_by_a_signal(name: str, at_step: int, number: int) -> Do:
    """The same, in which the last process alone gets a signal, twice, in the middle of a step."""

    def do(processes: Processes) -> None:
        step = TrainingRun.step

        def interrupted(self: TrainingRun, *args: Any) -> Any:
            if self.steps + 1 == at_step and processes.rank == processes.n - 1:
                os.kill(os.getpid(), number)
                os.kill(os.getpid(), number)
            return step(self, *args)

        TrainingRun.step = interrupted  # type: ignore[method-assign]
        run(name, p_drop=0.1)(processes)

    return do


def poisoned(name: str) -> Do:
    """A run whose third step has, in the last process alone, a loss that is NaN.

    Notes the number of skipped steps after each.
    """

    def do(processes: Processes) -> None:
        step, forward, skipped = TrainingRun.step, TrainingLoss.forward, [0]

        def is_due() -> bool:
            return len(skipped) == 3 and processes.rank == processes.n - 1

        def counted(self: TrainingRun, *args: Any) -> Any:
            found = step(self, *args)
            skipped.append(self.steps - int(self.adam_steps()))
            return found

        def spoilt_loss(self: TrainingLoss, *args: Any) -> Any:
            loss, nll = forward(self, *args)
            return (loss * math.nan if is_due() else loss), nll

        TrainingRun.step = counted  # type: ignore[method-assign]
        TrainingLoss.forward = spoilt_loss  # type: ignore[assignment,method-assign]
        run(name)(processes)
        note(name, processes, {"skipped": skipped})

    return do


def exchanges(name: str) -> Do:
    """How often gradients are exchanged in a step of two batches for each process."""

    def do(processes: Processes) -> None:
        model_config, train_config = toy_run_config(**STEPS)
        run = TrainingRun(model_config, train_config, processes=processes)
        times: list[int] = []

        def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            times.append(bucket.index())
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        run.loss.register_comm_hook(None, hook)  # type: ignore[operator]
        pairs = [([5, 6], [7, 8]), ([9], [10])]
        run.step([make_batch(pairs) for _ in range(2 * processes.n)])
        note(name, processes, {"times": times})

    return do


def told_by_the_first(name: str) -> Do:
    """What is said where the first process is refused; and the state that it alone has chosen."""

    def do(processes: Processes) -> None:
        def refused() -> bytes:
            raise ConfigError(f"refused in {processes.rank}")

        def newest_state(config: ModelConfig, out: Path) -> Path:
            return out / f"state of {processes.rank}"

        said = []
        for ask in (processes.from_first, processes.once_per_machine):
            try:
                ask(refused)
            except ConfigError as error:
                said.append(str(error))
        state.newest_state = newest_state
        chosen = state.agreed_state(toy_run_config()[0], DIRECTORY, processes)
        alone = processes.once_per_machine(lambda: "done")
        note(name, processes, {"said": said, "chosen": chosen.name, "alone": alone})

    return do


def lose_the_last(processes: Processes) -> None:
    """One of them dies without a word."""
    if processes.rank == processes.n - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    processes.wait()


def note(name: str, processes: Processes, found: dict[str, Any]) -> None:
    path = DIRECTORY / f"{name}.{processes.rank}.json"
    path.write_text(json.dumps(found), encoding="utf-8")


def main() -> None:
    toy_tokenizer()
    for name in HEAVY:  # once for all that are forked from here on
        importlib.import_module(name)
    ended = {
        "one": started(1, run("one")),
        "two": started(2, run("two")),
        "four": started(4, run("four")),
        "2": started(2, run("2-4-1", train_steps=3)),
        "4": started(4, run("2-4-1", resume=True, train_steps=6)),
        "1": started(1, run("2-4-1", resume=True)),
        "dropout": started(2, run("dropout", p_drop=0.1)),
        "stopped": started(2, stopped_by_a_signal("stopped", 5, signal.SIGTERM)),
        "resumed": started(2, run("stopped", p_drop=0.1, resume=True)),
        "poisoned": started(1, poisoned("poisoned")),
        "poisoned two": started(2, poisoned("poisoned two")),
        "three": started(3, run("three")),
        "exchanges": started(2, exchanges("exchanges")),
        "lost": started(2, lose_the_last),
        "told": started(2, told_by_the_first("told")),
    }
    print(json.dumps(ended))


if __name__ == "__main__":
    main()
