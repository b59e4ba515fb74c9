"""Weights to give away: a checkpoint without its training state, perhaps smaller, with a card."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from annotated_transformer.checkpoint.directory import (
    CHECKPOINT_FILES,
    load_model,
    read_config,
    require_room,
    write_directory,
)
from annotated_transformer.checkpoint.weights import belongs_to, save_weights
from annotated_transformer.errors import PROGRAM, require
from annotated_transformer.files import write_text
from annotated_transformer.text import corpus


def export_checkpoint(
    directory: str | Path, out: str | Path, dtype: str = "float32", notes: str = ""
) -> Path:
    """Write the model in `directory` to the new checkpoint directory `out`.

    Its weights are in `dtype`, "float32" or "float16". README.md is the card: `notes`, the corpus
    and the settings. Raises ConfigError when a weight is too large for `dtype`, when `out` is the
    checkpoint itself, and when it holds files that are not those of an earlier export.
    """
    out = Path(out)
    require_room(out, directory, (*CHECKPOINT_FILES, "README.md"), made_by="dtype")
    config = read_config(directory)
    model, tokenizer = load_model(directory)
    largest = max(float(weight.abs().max()) for weight in model.state_dict().values())
    require(
        largest <= torch.finfo(getattr(torch, dtype)).max,
        f"{directory} has a weight of size {largest:g}, which {dtype} cannot hold: use float32",
    )
    extra = {name: value for name, value in config.items() if name != "model"}
    write_directory(out, model.config, tokenizer, {**extra, "dtype": dtype})
    about = belongs_to(model.config, tokenizer.sha256)
    save_weights(out / "model.safetensors", model, getattr(torch, dtype), about)
    trained_on = config.get("corpus", "")
    if trained_on in corpus.names():
        trained_on = _block(corpus.card(trained_on))
    n_parameters = sum(p.numel() for p in model.parameters())
    name = os.fsencode(out.name).decode(errors="replace")  # a name may have bytes that are no UTF-8
    parts = [
        f"# {name}",
        notes,
        f"{n_parameters:,} parameters in {dtype}. To translate: "
        f"`{PROGRAM} translate {name} < input > output`.",
        "## Trained on",
        trained_on or "Not recorded.",
        "## Settings",
        _block(json.dumps(config, indent=2)),
    ]
    write_text(out / "README.md", "\n\n".join(filter(None, parts)) + "\n")
    return out


def _block(text: str) -> str:
    return f"```\n{text}\n```"
