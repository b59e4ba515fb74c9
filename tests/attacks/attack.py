"""What the scripts of this folder share: each makes a hostile file and gives it to two readers.

One trusts the file, as much software does; the other is this package, which must refuse it in one
line, with little memory. A script has two or three functions: `make(folder)` writes the file into a
folder that holds a small good checkpoint, `trusting(folder)` reads it as software that trusts it,
and `ours(folder)` as this package does, where that is not `load_model(folder)`. Where a known
digest refuses the file before anything else can, `behind(folder)` reads it with a digest that fits.
All readers are processes of their own, with a limit on memory and on time of the processor, so that
nothing here can do harm. A clock on the wall stops only what waits: `PATIENCE` of a script says how
many seconds its trusting reader may.

    python tests/attacks/attack.py pickled_weights
"""

import dataclasses
import hashlib
import importlib
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "text")]

import torch  # noqa: E402

from annotated_transformer.checkpoint import directory as checkpoint  # noqa: E402
from annotated_transformer.checkpoint.weights import save_weights  # noqa: E402
from annotated_transformer.decoding.translator import Translator  # noqa: E402
from annotated_transformer.errors import ConfigError  # noqa: E402
from annotated_transformer.text import corpus  # noqa: E402
from annotated_transformer.training import loop  # noqa: E402
from toys import small_model, text_pairs, toy_run_config, toy_tokenizer  # noqa: E402

MODEL, TRAINING = toy_run_config(train_steps=1)
MOST_MEMORY = 200 * 2**20
HARM, LIMIT, PATIENCE = 5, 60, 600  # seconds: of the processor, for either reader; on the wall
MARK = "the stranger was here"
Reader = Callable[[Path], object]


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


def train(folder: Path, resume: bool = False) -> None:
    pairs = text_pairs(1, 60)
    loop.train(MODEL, TRAINING, toy_tokenizer(), pairs, [], folder, resume=resume, progress=False)


def resume(folder: Path) -> None:
    """Go on with the run in a folder."""
    train(folder, resume=True)


def from_archive(folder: Path, name: str) -> None:
    """Read a corpus from the archive of that name, which has the digest that it should have."""
    entry = corpus.get("tatoeba-en-de")
    digest = hashlib.sha256((folder / "tatoeba" / name).read_bytes()).hexdigest()
    fitting = dataclasses.replace(entry, sha256={**entry.sha256, name: digest})
    list(fitting.read(fitting, "train", [folder]))


def status(name: str) -> int:
    """A number of bytes in what Linux says about this process."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def read(reader: Reader, folder: Path, seconds: int = LIMIT, patience: int = PATIENCE) -> Outcome:
    """Let a process of its own read; it may take 1 GiB and so many seconds of the processor."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        for number in (signal.SIGALRM, signal.SIGXCPU):
            signal.signal(number, signal.SIG_DFL)
        limit = status("VmSize") + 2**30
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 60))
        signal.alarm(patience)
        before, refused = status("VmRSS"), False
        os.chdir(folder)
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        try:
            words = str(reader(folder) or "")
        except ConfigError as error:
            words, refused = str(error), len(str(error).splitlines()) == 1
        except MemoryError:
            words = "takes all memory that it may"
        except BaseException as error:
            words = f"ends in a traceback: {type(error).__name__}"
            if "allocate memory" in str(error):
                words = "takes all memory that it may"
        peak = status("VmHWM") - before
        os.write(send, f"{int(refused)} {peak} {words[:2000]}".encode())
        os._exit(0)
    os.close(send)
    with open(receive, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    ended = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(ended):
        name = signal.Signals(os.WTERMSIG(ended)).name
        stopped = {"SIGALRM": f"{patience} s", "SIGXCPU": f"{seconds} s of the processor"}
        hung = f"never ends (stopped after {stopped.get(name)})"
        return Outcome(hung if name in stopped else f"dies of {name}", False, 0)
    refused_, peak_, words = said.split(" ", 2)
    if (folder / MARK).exists():
        words = "runs the stranger's code"
        (folder / MARK).unlink()
    elif not int(refused_) and int(peak_) > MOST_MEMORY and not words:
        words = f"takes {int(peak_) // 2**20} MiB"
    return Outcome(words, bool(int(refused_)), int(peak_))


def outcomes(script: ModuleType, folder: Path) -> tuple[Outcome, Outcome]:
    """What becomes of software that trusts the file, and of ours."""
    translated(good_checkpoint(folder))  # in this process, so that what is loaded late is loaded
    script.make(folder)
    trusting = read(script.trusting, folder, HARM, getattr(script, "PATIENCE", PATIENCE))
    return trusting, read(getattr(script, "ours", checkpoint.load_model), folder)


def main() -> None:
    """Run the script that the argument names."""
    script = importlib.import_module(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ANNOTATED_TRANSFORMER_CACHE"] = folder  # or a corpus in the user's own would do
        trusting, ours = outcomes(script, Path(folder).resolve() / "stranger")
    print((script.__doc__ or "").splitlines()[0])
    print(f"  software that trusts it: {trusting.words}")
    verdict = "refuses" if ours.refused else "DOES NOT REFUSE"
    print(f"  this package {verdict}, with {ours.peak / 2**20:.0f} MiB: {ours.words}")
    sys.exit(not ours.refused or ours.peak > MOST_MEMORY)


if __name__ == "__main__":
    main()
