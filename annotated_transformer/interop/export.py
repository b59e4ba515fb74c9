"""Weights to give away: a checkpoint without its training, in a smaller type, with a card."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from annotated_transformer.checkpoint.directory import (
    load_model,
    read_config,
    require_no_run,
    write_directory,
)
from annotated_transformer.checkpoint.weights import belongs_to, save_weights
from annotated_transformer.errors import PROGRAM, require
from annotated_transformer.files import shown
from annotated_transformer.text import corpus


def export_weights(
    directory: str | Path, out: str | Path, dtype: str = "float32", notes: str = ""
) -> Path:
    """Write the model in `directory` to the new checkpoint directory `out`.

    Its weights are in `dtype`, "float32" or "float16". README.md is the card: `notes`, the corpus
    and the settings. Raises ConfigError when `out` holds a training run or the checkpoint itself.
    """
    out = Path(out)
    require_no_run(out)
    require(
        not (out.exists() and out.samefile(directory)),
        f"the export needs a directory of its own, got {out}",
    )
    config = read_config(directory)
    model, tokenizer = load_model(directory)
    extra = {name: value for name, value in config.items() if name != "model"}
    write_directory(out, model.config, tokenizer, {**extra, "dtype": dtype})
    about = belongs_to(model.config, tokenizer.sha256)
    save_weights(out / "model.safetensors", model, getattr(torch, dtype), about)
    name = config.get("corpus", "")
    n_parameters = sum(p.numel() for p in model.parameters())
    parts = [
        f"# {shown(out.name)}",
        notes,
        f"{n_parameters:,} parameters in {dtype}. To translate: "
        f"`{PROGRAM} translate {shown(out.name)} < input > output`.",
        "## Trained on",
        _block(corpus.card(name)) if name in corpus.names() else name or "Not recorded.",
        "## Settings",
        _block(json.dumps(config, indent=2)),
    ]
    (out / "README.md").write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")
    return out


def _block(text: str) -> str:
    return f"```\n{text}\n```"
