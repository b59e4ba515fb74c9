"""The translator as a page: a folder of files that any web server, or none, can show.

    index.html      the page
    page.css        its look
    page.js         what it does when one types
    parts.js        what its scripts share; links to the book's chapters
    in_book.js      what the address asks for and tells; one view alone, in a frame of a book
    tree.js         the beam as a tree that grows
    knock_out.js    what is said without a head, a layer or the positions
    explorer.js     the attention explorer of the book
    engine.js       tokenizer, model and search, as one function
    model.js        the model: settings, vocabulary, weights in 8 bits, products in WebAssembly

The page asks no server for anything but these files. They are scripts, data too (in base 64), since
a page that is opened from a disk may load scripts and may not read files; so a copy of the folder
works when it is sent to a friend. The engine runs in a worker, which is made from the text of its
function, for the same reason.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from html import escape
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from annotated_transformer.checkpoint.directory import load_model, read_config, require_no_run
from annotated_transformer.checkpoint.weights import save_tensors
from annotated_transformer.errors import require
from annotated_transformer.files import write_atomically
from annotated_transformer.page.int8_rows import rounded_tensors, with_int8_rows
from annotated_transformer.page.vocabulary import read_vocabulary
from annotated_transformer.translation.translator import Translator

ENGINE = ("tokenizer.js", "products.js", "transformer.js", "search.js", "translator.js")
"""The sources of engine.js, in this order."""
EXAMPLES = {"en": "I have bought a new umbrella."}
"""A first sentence, by the source language that a corpus is named for: tatoeba-en-de."""
COPIED = ("index.html", "page.css", "parts.js", "in_book.js", "tree.js", "knock_out.js", "page.js")


def write_page(directory: str | Path, out: str | Path, example: str = "", book: str = "") -> Path:
    """Write the page of the model in a checkpoint directory into the directory `out`.

    It opens with `example`, or with the sentence of `EXAMPLES` for the model's source language.
    With `book`, the address of the folder of this book's chapters, each view links to its chapter.
    Raises ConfigError when the checkpoint is damaged, when the page cannot compute it (see
    `rounded_tensors` and `read_vocabulary`), and when `out` holds a training run or the checkpoint
    itself.
    """
    directory, out = Path(directory), Path(out)
    require_no_run(out)
    require(
        not (out.exists() and out.samefile(directory)),
        f"the page needs a directory of its own, got {out}",
    )
    example = example or first_sentence(directory)
    written = {
        "engine.js": engine(),
        "explorer.js": explorer(),
        "model.js": model_script(directory, example, book),
    }
    for name in COPIED:
        written[name] = _read("page", f"files/{name}")
    translated = _translated(directory, example)
    written["index.html"] = written["index.html"].replace("{{example}}", translated)
    for name, text in written.items():
        _write(out / name, text.encode("utf-8"))
    return out


def engine() -> str:
    """engine.js: one function whose text makes the engine, in a page or in a worker."""
    sources = [_read("page", f"files/{name}") for name in ENGINE]
    offered = "ACTIVATIONS, Tokenizer, Transformer, Translator, greedySearch, beamSearch, serve"
    return (
        "// Written by `annotated-transformer export-page`, from its files.\n"
        f'function makeEngine() {{\n"use strict";\n{"".join(sources)}\n'
        f"return {{ {offered} }};\n}}\n"
    )


def explorer() -> str:
    """explorer.js: the HTML of the book's attention explorer, and its script as a function.

    A page that allows only scripts of its own address refuses one that stands in HTML.
    """
    html = _read("looking", "explorer.html")
    before, _, rest = html.rpartition("<script>\n")
    script, _, after = rest.partition("</script>\n")
    return (
        f"var explorerTemplate = {json.dumps(before + after)};\n"
        f"function startExplorers() {{\n{script}}}\n"
    )


def model_script(directory: str | Path, example: str = "", book: str = "") -> str:
    """model.js: all that the engine needs of a checkpoint, and a first sentence, as one object."""
    model, tokenizer = load_model(directory)
    vocabulary = read_vocabulary(tokenizer.model_bytes)
    corpus = read_config(directory).get("corpus", "")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        save_tensors(path, rounded_tensors(model))
        weights = path.read_bytes()
    files: dict[str, Any] = {
        "config": model.config.to_dict(),
        "corpus": corpus,
        "book": book,
        "example": example,
        "n_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tokenizer": {
            name: getattr(vocabulary, name) for name in ("kind", "pieces", "scores", "types")
        },
        "rule": _text(zlib.compress(vocabulary.rule, 9)),
        "weights": _text(zlib.compress(weights, 9)),
        "kernels": _text(kernels()),
    }
    return f"var pageModel = {json.dumps(files, separators=(',', ':'))};\n"


def first_sentence(directory: str | Path) -> str:
    """The sentence of `EXAMPLES` for the source language of a checkpoint's corpus, or none."""
    corpus = read_config(directory).get("corpus", "")
    return next((text for name, text in EXAMPLES.items() if f"-{name}-" in corpus), "")


def _translated(directory: Path, text: str) -> str:
    """A text and its translation as HTML, for those who see the page without JavaScript."""
    if not text:
        return ""
    model, tokenizer = load_model(directory)
    (translation,) = Translator(with_int8_rows(model), tokenizer).translate([text])
    return f'<p dir="auto">{escape(text)}</p><p dir="auto">{escape(translation)}</p>'


def kernels() -> bytes:
    """The products in WebAssembly, which `python -m tools.kernels` made."""
    return _resource("page", "files/kernels.wasm").read_bytes()


def _read(folder: str, name: str) -> str:
    return _resource(folder, name).read_text(encoding="utf-8")


def _resource(folder: str, name: str) -> Traversable:
    """A file that comes with the package."""
    return resources.files(f"annotated_transformer.{folder}").joinpath(name)


def _text(content: bytes) -> str:
    return b64encode(content).decode("ascii")


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
