"""Checks of options that several verbs share."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterable

from annotated_transformer.errors import require


def positive_int(text: str) -> int:
    """An option's value of at least 1, for argparse."""
    # argparse makes a usage error of int's ValueError too, with this function's name in it.
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def given(args: Namespace, names: Iterable[str]) -> str:
    """Those of the options that were given: "--sample and --jobs"."""
    # Not merely what is false: a value of 0 was given as well.
    options = [name for name in names if not any(vars(args)[name] is x for x in (None, False))]
    return " and ".join(f"--{name.replace('_', '-')}" for name in options)


def require_none(args: Namespace, names: Iterable[str], why: str) -> None:
    """Raise ConfigError for options that were given and would have no effect."""
    options = given(args, names)
    require(not options, f"{options} would have no effect: {why}")


def require_no_empty(args: Namespace) -> None:
    """Raise ConfigError for an argument that is "", as a shell's unset variable makes it."""
    empty = [name for name, value in vars(args).items() if value == ""]
    require(not empty, f"{', '.join(empty)} must not be empty")
