"""The card of a model that is given away, README.md, from what its checkpoint knows of itself."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from annotated_transformer.checkpoint.directory import read_config
from annotated_transformer.data import corpus
from annotated_transformer.errors import ConfigError, shown
from annotated_transformer.files import read_json
from annotated_transformer.model.transformer import Transformer

MAX_SCORES_BYTES = 2**26


def card_of(
    directory: str | Path,
    out: Path,
    model: Transformer,
    dtype: str,
    usage: str,
    notes: str = "",
    header: str = "",
) -> str:
    """The card's text: sizes and `usage`, scores, data with its licence, limits, settings.

    The scores are those in the directory's scores.json, which `evaluate --json` prints and `new`
    writes. What stands in those files may come from a stranger.
    """
    config = read_config(directory)
    trained_on = config.get("corpus", "")
    if trained_on in corpus.names():
        trained_on = corpus.card(trained_on)
    n_parameters = sum(p.numel() for p in model.parameters())
    scores = _scores(Path(directory))
    limits = _limits(config)
    parts = [
        header,
        f"# {readable(out.name)}",
        notes,
        f"{n_parameters:,} parameters in {dtype}. {usage}",
        scores and "## Scores",
        scores,
        "## Trained on",
        _block(trained_on) if trained_on else "Not recorded.",
        limits and "## Limits",
        limits,
        "## Settings",
        _block(json.dumps(_short(config), indent=2)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def readable(name: str) -> str:
    """A file's name as text; it may have bytes that are no UTF-8."""
    return os.fsencode(name).decode(errors="replace")


def languages(config: dict[str, Any]) -> tuple[str, ...]:
    """Source and target of the corpus that a checkpoint was trained on, if they are known."""
    name = config.get("corpus", "")
    return tuple(corpus.get(name).languages) if name in corpus.names() else ()


def _scores(directory: Path) -> str:
    """A table of the scores that were kept, with sacreBLEU's signatures."""
    try:
        found = read_json(directory / "scores.json", MAX_SCORES_BYTES)
        found = found.get("scores", found)
        rows = [
            f"| {name} | {found[name]['score']:.2f} | `{shown(found[name]['signature'], 200)}` |"
            for name in ("BLEU", "chrF2")
            if name in found
        ]
    except (OSError, ConfigError, AttributeError, KeyError, TypeError, ValueError):
        return ""  # no such file, or one of another program
    head = "| score | test split | signature |", "| --- | --- | --- |"
    return "\n".join([*head, *rows]) if rows else ""


def _short(config: dict[str, Any]) -> dict[str, Any]:
    """The settings without the list of words that training translates, which has thousands."""
    doubt = config.get("doubt")
    if not isinstance(doubt, dict):
        return config
    rest = {name: value for name, value in doubt.items() if name != "translated"}
    return {**config, "doubt": rest}


def _limits(config: dict[str, Any]) -> str:
    settings = config.get("train")
    longest = settings.get("max_length") if isinstance(settings, dict) else None
    if type(longest) is not int:
        return ""
    return (
        f"Trained on sentences of at most {longest:,} tokens, one at a time: it knows no context "
        "beyond the line, and longer lines are not what it has learned. It has seen no text but "
        "that of its corpus, and repeats what is wrong there."
    )


def _block(text: str) -> str:
    """The text as it is, whatever marks it has: the fence is longer than any row of them."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"
