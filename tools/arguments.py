"""The parser of every program of tools/ and benchmarks/: its help begins with its docstring."""

import argparse


def parser_of(about: str | None, small: bool = False) -> argparse.ArgumentParser:
    """With `small` there is an option for a rehearsal, whose figures are worth nothing."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=raw)
    if small:
        help_ = "toy sizes, to see that the script runs"
        parser.add_argument("--small", action="store_true", help=help_)
    return parser
