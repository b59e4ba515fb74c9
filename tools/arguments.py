"""The parser of every program of tools/ and benchmarks/: its help begins with its docstring."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from annotated_transformer.errors import ConfigError, say


def parser_of(about: str | None, small: bool = False, out: bool = False) -> argparse.ArgumentParser:
    """With `small` there is an option for a rehearsal, whose figures are worth nothing, and with
    `out` one for the result file."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=raw)
    if small:
        help_ = "toy sizes, to see that the script runs"
        parser.add_argument("--small", action="store_true", help=help_)
    if out:
        help_ = "default book/results/NAME.json, and nothing for a rehearsal or a part"
        parser.add_argument("--out", type=Path, help=help_)
    return parser


def run_main(main: Callable[[], int | None]) -> NoReturn:
    """Run a program and exit with its status: 2 and one line where its user has made a mistake."""
    try:
        sys.exit(main())
    except ConfigError as error:
        say(f"error: {error}")
        sys.exit(2)
