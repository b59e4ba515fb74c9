"""A page in which a model learns: a folder of files that any web server, or none, can show.

    index.html      the page
    page.css        the look of all our pages; training.css adds to it
    training.js     when to train, and what is shown
    views.js        the loss as a curve, the weights of a head as a map
    parts.js        what scripts of pages share
    engine.js       words from a seed, the model forward and backward, Adam, as one function
    reference.js    the settings, and the losses of PyTorch

As in `page`, the engine runs in a worker that is made from its own text, and the page asks nobody
for anything but these files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from annotated_transformer.checkpoint.directory import require_room_for_result
from annotated_transformer.errors import require
from annotated_transformer.extras.page.writing import is_page
from annotated_transformer.files import write_text

ENGINE = ("words.js", "products.js", "operations.js", "model.js", "trainer.js", "session.js")
"""The sources of engine.js, in this order."""
SHARED = ("page.css", "parts.js")
COPIED = ("index.html", "training.css", "views.js", "training.js")
WRITTEN_BY = "// Written by `python -m lab.training_page`"
"""The beginning of engine.js, by which an earlier page is known."""


def write_training_page(
    out: str | Path,
    settings: dict[str, Any],
    seed: int,
    losses: Sequence[float],
    book: str = "",
) -> Path:
    """Write the page into the directory `out`.

    It trains with `settings`, those of `reversal.page_settings`, and shows beside its
    own curve the `losses` of PyTorch with this seed. With `book`, the address of the folder of this
    book's chapters, it links to its chapter. Raises ConfigError when `out` holds a training
    run or a checkpoint, or files in the way that are not those of an earlier page.
    """
    out = Path(out)
    names = ("engine.js", "reference.js", *SHARED, *COPIED)
    require_room_for_result(out, names, replaces=is_page(out, WRITTEN_BY))
    require(
        not (out / "config.json").exists(),
        f"the page needs a directory of its own, got {out}, which holds a checkpoint",
    )
    reference = {
        "settings": settings,
        "seed": seed,
        "losses": [round(loss, 7) for loss in losses],
        "book": book,
    }
    written = {
        "engine.js": training_engine(),
        "reference.js": f"var trainingReference = {json.dumps(reference)};\n",
        **{name: _read("annotated_transformer.extras.page", name) for name in SHARED},
        **{name: _read(__package__, name) for name in COPIED},
    }
    for name, text in written.items():
        write_text(out / name, text)
    return out


def training_engine() -> str:
    """engine.js: one function whose text makes the engine, in a page or in a worker."""
    sources = "".join(_read(__package__, name) for name in ENGINE)
    offered = "Generator, Trainer, drawWords, reversalBatch, serve, N_HELD_OUT, HELD_OUT_SEED"
    offered += ", CHECK_EVERY"
    return (
        f"{WRITTEN_BY}, from its files.\n"
        f'function makeEngine() {{\n"use strict";\n{sources}\n'
        f"return {{ {offered} }};\n}}\n"
    )


def _read(package: str, name: str) -> str:
    return resources.files(package).joinpath(f"files/{name}").read_text(encoding="utf-8")
