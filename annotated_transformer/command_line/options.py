"""Checks of options that several verbs share."""

from __future__ import annotations

import argparse
import re
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

from annotated_transformer.errors import PROGRAM, require


def positive_int(text: str) -> int:
    """An option's value of at least 1, for argparse."""
    if not re.fullmatch(r"-?\d+", text):
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text}")
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


def cure(message: str) -> str:
    """The end of a message on a path that was refused: what to do about it; "" for most."""
    refused = re.match(r"(.*?)(?: is not a checkpoint|.config\.json does not describe)", message)
    path = Path(refused[1]) if refused else Path()
    near = [path.parent] if path.is_file() else sorted(path.glob("*/"))
    near = [place for place in near if refused and (place / "tokenizer.model").exists()]
    is_hf = bool(refused) and (path / "config.json").exists()
    encoding = re.search("(?:UTF-16|Latin-1)$", message)
    cures = {
        f"iconv -f {encoding and encoding[0]} -t UTF-8 converts it": bool(encoding),
        "unpack it, or save the table with tabs (TSV)": message.endswith("a zip archive"),
        "download it, and name the file": bool(re.search("https?:/.*No such file", message)),
        "name a file in it": message.endswith("Is a directory"),
        f"of a model for transformers, {PROGRAM} import {path} makes one": is_hf,
        "it has shards, for train --shards": bool(refused) and (path / "shards.json").exists(),
        f"{', '.join(map(str, near))} is one": bool(near),
        "a directory comes first": path.is_file(),
    }
    return next((f"; {cure}" for cure, holds in cures.items() if holds), "")
