"""Weights to give away: a checkpoint without its training state, perhaps smaller, with a card."""

from __future__ import annotations

from pathlib import Path

import torch

from annotated_transformer.checkpoint.directory import (
    CHECKPOINT_FILES,
    load_model,
    made_by,
    read_config,
    require_room_for_result,
    write_directory,
)
from annotated_transformer.checkpoint.weights import belongs_to, save_weights
from annotated_transformer.errors import PROGRAM, require
from annotated_transformer.extras.formats.model_card import card_of, readable
from annotated_transformer.files import write_text
from annotated_transformer.model.transformer import Transformer


def export_checkpoint(
    directory: str | Path, out: str | Path, dtype: str = "float32", notes: str = ""
) -> Path:
    """Write the model in `directory` to the new checkpoint directory `out`.

    Its weights are in `dtype`, "float32" or "float16". README.md is the card: `notes`, the corpus
    and the settings. Raises ConfigError when a weight is too large for `dtype`, when `out` is the
    checkpoint itself, and when it holds files that are not those of an earlier export.
    """
    out = Path(out)
    names = *CHECKPOINT_FILES, "README.md"
    require_room_for_result(out, names, directory, replaces=made_by(out) == "dtype")
    config = read_config(directory)
    model, tokenizer = load_model(directory)
    require_range(model, dtype, directory)
    extra = {name: value for name, value in config.items() if name != "model"}
    write_directory(out, model.config, tokenizer, {**extra, "dtype": dtype})
    about = belongs_to(model.config, tokenizer.sha256)
    save_weights(out / "model.safetensors", model, getattr(torch, dtype), about)
    usage = f"To translate: `{PROGRAM} translate {readable(out.name)} < input > output`."
    write_text(out / "README.md", card_of(directory, out, model, dtype, usage, notes))
    return out


def require_range(model: Transformer, dtype: str, directory: str | Path) -> None:
    """Raise ConfigError when a weight is too large for `dtype`."""
    largest = max(float(weight.abs().max()) for weight in model.state_dict().values())
    require(
        largest <= torch.finfo(getattr(torch, dtype)).max,
        f"{directory} has a weight of size {largest:g}, which {dtype} cannot hold: use float32",
    )
