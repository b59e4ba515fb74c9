"""The card of a model that is given away, README.md, from what its checkpoint knows of itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from annotated_transformer.checkpoint.directory import read_config
from annotated_transformer.data import corpus
from annotated_transformer.errors import ConfigError
from annotated_transformer.files import read_json
from annotated_transformer.model.transformer import Transformer

MAX_SCORES_BYTES = 2**26


def card(
    directory: str | Path,
    out: Path,
    model: Transformer,
    dtype: str,
    usage: str,
    notes: str = "",
    header: str = "",
) -> str:
    """The card's text: sizes and `usage`, scores, data with its licence, limits, settings.

    The scores are those in scores.json, which `evaluate --json` prints and `new` writes, in the
    checkpoint's directory or beside it.
    """
    config = read_config(directory)
    trained_on = config.get("corpus", "")
    if trained_on in corpus.names():
        trained_on = _block(corpus.card(trained_on))
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
        trained_on or "Not recorded.",
        limits and "## Limits",
        limits,
        "## Settings",
        _block(json.dumps(config, indent=2)),
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
    for path in (directory / "scores.json", directory.parent / "scores.json"):
        try:
            found = read_json(path, MAX_SCORES_BYTES)
            found = found.get("scores", found)
            rows = [
                f"| {name} | {found[name]['score']:.2f} | `{found[name]['signature']}` |"
                for name in ("BLEU", "chrF2")
                if name in found
            ]
        except (OSError, ConfigError, AttributeError, KeyError, TypeError, ValueError):
            continue  # no such file, or one of another program
        if rows:
            return "\n".join(["| score | test split | signature |", "| --- | --- | --- |", *rows])
    return ""


def _limits(config: dict[str, Any]) -> str:
    longest = (config.get("train") or {}).get("max_length")
    if not longest:
        return ""
    return (
        f"Trained on sentences of at most {longest:,} tokens, one at a time: it knows no context "
        "beyond the line, and longer lines are not what it has learned. It has seen no text but "
        "that of its corpus, and repeats what is wrong there."
    )


def _block(text: str) -> str:
    return f"```\n{text}\n```"
