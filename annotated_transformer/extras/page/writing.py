"""The translator as a page: a folder of files that any web server, or none, can show.

    index.html      the page
    page.css        its look
    page.js         what it does when one types
    parts.js        what its scripts share; links to the book's chapters
    in_book.js      what the address asks for and tells; one view alone, in a frame of a book
    tree.js         the beam as a tree that grows
    knock_out.js    what the model answers without a head, a layer or the positions
    honest.js       what the page says of its doubts
    tries.js        three things to try
    own_model.js    a checkpoint that is dropped on the page
    explorer.js     the attention explorer of the book
    engine.js       tokenizer, model, search and what reads a dropped checkpoint, as one function
    model.js        the model: settings, vocabulary, weights in 8 bits, products in WebAssembly

The page asks no server for anything but these files. All of them are scripts, the data too (in base
64): a page that is opened from a disk may load scripts, but not read files, so that a copy of the
folder works when it is sent to a friend. For the same reason the engine runs in a worker that is
made from the text of its function.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from html import escape
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

from annotated_transformer.checkpoint.directory import (
    corpus_languages,
    load_model,
    read_config,
    require_room_for_result,
)
from annotated_transformer.checkpoint.weights import save_tensors
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.data.vocabulary_file import read_vocabulary
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import VERSION
from annotated_transformer.extras.page.int8_rows import rounded_tensors, with_int8_rows
from annotated_transformer.files import write_text
from annotated_transformer.model.transformer import Transformer

ENGINE = (
    "tokenizer.js", "products.js", "transformer.js", "search.js", "doubt.js", "translator.js",
    "reading.js",
)  # fmt: skip
"""The sources of engine.js, in this order."""
EXAMPLES = {"en": "I have bought a new umbrella."}
"""A first sentence, by the source language that a corpus is named for: tatoeba-en-de."""
COPIED = (
    "index.html", "page.css", "parts.js", "in_book.js", "tree.js", "knock_out.js", "honest.js",
    "tries.js", "own_model.js", "page.js",
)  # fmt: skip
WRITTEN_BY = "// Written by `annotated-transformer export-page`"
"""The beginning of engine.js, which comes first: a folder with it is a page of ours."""


def write_page(directory: str | Path, out: str | Path, example: str = "", book: str = "") -> Path:
    """Write the page of the model in a checkpoint directory into the directory `out`.

    It opens with `example`, or with the sentence of `EXAMPLES` for the model's source language.
    With `book`, the address of the folder of this book's chapters, each view links to its chapter.
    Raises ConfigError when the checkpoint is damaged, when the page cannot compute it (see
    `rounded_tensors` and `read_vocabulary`), and when `out` is the checkpoint itself, holds a
    training run, or has files in the way that are not those of an earlier page.
    """
    out = Path(out)
    names = "engine.js", "explorer.js", "model.js", *COPIED
    require_room_for_result(out, names, directory, is_page(out, WRITTEN_BY))
    config = read_config(directory)
    corpus = config.get("corpus", "")
    model, tokenizer = load_model(directory)
    if not example:
        example = next((text for name, text in EXAMPLES.items() if f"-{name}-" in corpus), "")
    written = {
        "engine.js": engine(),
        "explorer.js": explorer(),
        "model.js": model_script(
            model,
            tokenizer,
            corpus=corpus,
            book=book,
            example=example,
            languages=corpus_languages(config),
            doubt=config.get("doubt", {}),
            version=VERSION,
        ),
        **{name: _read(f"files/{name}") for name in COPIED},
    }
    translated = _translated(model, tokenizer, example) if example else ""
    written["index.html"] = written["index.html"].replace("{{example}}", translated)
    for name, text in written.items():
        write_text(out / name, text)
    return out


def is_page(out: Path, written_by: str) -> bool:
    """Whether an earlier page is in `out`, whose engine.js begins with `written_by`."""
    engine = out / "engine.js"
    return engine.is_file() and engine.read_bytes().startswith(written_by.encode())


def engine() -> str:
    """engine.js: one function whose text makes the engine, in a page or in a worker."""
    sources = [_read(f"files/{name}") for name in ENGINE]
    offered = (
        "ACTIVATIONS, Tokenizer, Transformer, Translator, greedySearch, beamSearch, asRead, "
        "lostWords, TranslatedWords, strangeness, openFolder, serve"
    )
    return (
        f"{WRITTEN_BY}, from its files.\n"
        f'function makeEngine() {{\n"use strict";\n{"".join(sources)}\n'
        f"return {{ {offered} }};\n}}\n"
    )


def explorer() -> str:
    """explorer.js: the HTML of the book's attention explorer, and its script as a function.

    A page that allows only scripts of its own address refuses one that stands in HTML.
    """
    html = _read("files/explorer.html")
    before, _, rest = html.rpartition("<script>\n")
    script, _, after = rest.partition("</script>\n")
    return (
        f"var explorerTemplate = {json.dumps(before + after)};\n"
        f"function startExplorers() {{\n{script}}}\n"
    )


def model_script(model: Transformer, tokenizer: Tokenizer, **facts: object) -> str:
    """model.js: all that the engine needs of a model, and `facts` for the page, as one object."""
    vocabulary = read_vocabulary(tokenizer.model_bytes)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        save_tensors(path, rounded_tensors(model))
        weights = path.read_bytes()
    content = {
        **facts,
        "config": model.config.to_dict(),
        "n_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tokenizer": {
            name: getattr(vocabulary, name) for name in ("kind", "pieces", "scores", "types")
        },
        "rule": _base64(zlib.compress(vocabulary.rule, 9)),
        "weights": _base64(zlib.compress(weights, 9)),
        "kernels": _base64(kernels()),
    }
    return f"var pageModel = {json.dumps(content, separators=(',', ':'))};\n"


def _translated(model: Transformer, tokenizer: Tokenizer, text: str) -> str:
    """A text and its translation as HTML, for a browser without JavaScript."""
    (translation,) = Translator(with_int8_rows(model), tokenizer).translate([text])
    return f'<p dir="auto">{escape(text)}</p><p dir="auto">{escape(translation)}</p>'


def kernels() -> bytes:
    """The products in WebAssembly, which `python -m tools.kernels` made."""
    return _bytes("files/kernels.wasm")


def _read(name: str) -> str:
    return _bytes(name).decode("utf-8")


def _bytes(name: str) -> bytes:
    """A file that comes with the package."""
    return resources.files(__package__).joinpath(name).read_bytes()


def _base64(content: bytes) -> str:
    return b64encode(content).decode("ascii")
