"""Argos Translate and LibreTranslate: a model of CTranslate2 with its tokenizer, in one file."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from shutil import copyfile, make_archive
from tempfile import TemporaryDirectory

from annotated_transformer.checkpoint.directory import read_config
from annotated_transformer.errors import require
from annotated_transformer.extras.formats import ctranslate2
from annotated_transformer.extras.formats.model_card import languages
from annotated_transformer.files import require_room, write_atomically

NAMES = {"de": "German", "en": "English", "es": "Spanish", "fr": "French"}
"""What Argos' menu calls a language; one that is not here is called by its code."""


def export_checkpoint(directory: str | Path, out: str | Path, dtype: str = "float32") -> Path:
    """Write the package `out`, whose name says its languages: translate-en_de-1_0.argosmodel.

    Raises ConfigError for another name, for languages that are not those of the checkpoint's
    corpus, for a file in the way, and where `ctranslate2.export_checkpoint` does.
    """
    out = Path(out)
    match = re.fullmatch(r"translate-([a-z]+)_([a-z]+)-(\d+)_(\d+)\.argosmodel", out.name)
    rule = "an Argos package is named for its languages, as translate-en_de-1_0.argosmodel"
    require(match is not None, f"{rule}, got {out.name}")
    require_room(out.parent, [out.name])
    source, target, *version = match.groups()  # type: ignore[union-attr]
    known = languages(read_config(directory)) or (source, target)
    rule = f"this model translates from {known[0]} to {known[1]}, which the name must say"
    # The way back needs a token before the text, for which Argos has no place.
    require(known == (source, target), f"{rule}, got {out.name}")
    about = {"package_version": ".".join(version), "argos_version": "1.9"}
    for side, code in (("from", source), ("to", target)):
        about |= {f"{side}_code": code, f"{side}_name": NAMES.get(code, code)}
    with TemporaryDirectory() as folder:
        package = Path(folder) / out.stem
        model = ctranslate2.export_checkpoint(directory, package / "model", dtype)
        is_one = (model / "tokenizer.model").exists()
        require(is_one, "Argos reads one vocabulary for both languages, and this model has two")
        (model / "tokenizer.model").rename(package / "sentencepiece.model")
        (package / "metadata.json").write_text(json.dumps(about, indent=2), encoding="utf-8")
        archive = make_archive(str(package), "zip", folder, out.stem)
        write_atomically(out, partial(copyfile, archive))
    return out
