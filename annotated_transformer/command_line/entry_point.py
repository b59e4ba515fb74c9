"""The command line: a verb for each step, from a corpus to a page that translates.

Results go to standard output, progress and messages to standard error. A user's mistake is one line
on standard error and exit status 2; Ctrl-C gives 130, a reader that has gone 141, SIGTERM in
training 143. Which arguments a verb takes stands in `arguments`, what it does in `verbs`.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from annotated_transformer.command_line.arguments import parser
from annotated_transformer.command_line.options import cure, require_no_empty
from annotated_transformer.errors import ConfigError, LocalError, Terminated, say

__all__ = ["main", "parser"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    _prepare_streams()
    args = parser().parse_args(arguments)
    try:
        require_no_empty(args)
        args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone, as with `| head`: nothing to say, and nothing more to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt as stop:
        return 143 if isinstance(stop, Terminated) else 130
    except OSError as error:
        is_about_a_file = error.filename is not None
        line = f"{error.filename}: {error.strerror}" if is_about_a_file else f"{error}"
        say(f"error: {line}{cure(line)}")
        return 2
    except ModuleNotFoundError as error:
        name = error.name or ""
        if not name.startswith("annotated_transformer.extras"):
            raise
        say(f"error: this verb needs {name}, which was deleted")
        return 2
    except ConfigError as error:
        if isinstance(error, LocalError) or _speaks_for_its_machine():
            say(f"error: {error}{cure(str(error))}")
        return 2
    return 0


def _prepare_streams() -> None:
    """Give a closed stream the null device, and let standard output show any text as it can."""
    # In this order, each gets its own number back; otherwise the next file that is opened would get
    # it, and a library that writes to standard error in C would write into that file.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as Python does for standard error


def _speaks_for_its_machine() -> bool:
    """Of the processes that torchrun starts, one on each machine says what is wrong with all."""
    return "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("LOCAL_RANK") == "0"
