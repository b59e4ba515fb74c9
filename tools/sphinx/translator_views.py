"""A Sphinx extension: the translator's page in the site, and its views in the chapters.

    ```{translator} beam
    :text: I have bought a new umbrella.
    ```

puts a view of the exported page (translate, beam, tokens, attention or knock-out) into a chapter.
The page itself is written to `translator/` in the site. Where there is no JavaScript, and on paper,
a stored example stands in the view's place; it is computed by the same model when the site is
built. `static/site.js` puts the frame in. `{translator} training` is a link to the page in which a
model learns, which is written to `training/`.
"""

from __future__ import annotations

from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import torch
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.extras.attention_views.knock_out import heads_of, knocked_out
from annotated_transformer.extras.attention_views.record import record_attention
from annotated_transformer.extras.page.writing import write_page
from lab.training_page.reversal import write_page_beside_pytorch

MODEL, PAGE, TRAINING, CHAPTERS = "book/model", "translator", "training", "book"
TITLES = {
    "translate": "The book's model: type a sentence",
    "beam": "Beam search on a sentence of yours",
    "tokens": "The next token, step by step",
    "attention": "Where every head looks",
    "knock-out": "The model without a part of it",
}


class TranslatorView(SphinxDirective):
    """The directive `translator`."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {
        "text": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        up = "../" * self.env.docname.count("/")
        view = directives.choice(self.arguments[0], [*TITLES, TRAINING])
        if view == TRAINING:
            link = f'<a href="{up}{TRAINING}/index.html">Watch a Transformer learn, in a page</a>'
            return [nodes.raw("", f'<p class="translator-view">{link}</p>', format="html")]
        text = self.options.get("text", "I have bought a new umbrella.")
        asked = {"view": view, "text": text}
        address = "&".join(f"{name}={quote(value)}" for name, value in asked.items() if value)
        html = (
            f'<div class="translator-view" data-title="{escape(TITLES[view])}" '
            f'data-src="{up}{PAGE}/index.html#{escape(address)}"><div class="stored">'
            f"{stored_example(Path(self.env.srcdir) / MODEL, view, text)}</div>"
            f'<p><a href="{up}{PAGE}/index.html">The translator on a page of its own</a></p></div>'
        )
        return [nodes.raw("", html, format="html")]


@lru_cache
def _translator(directory: Path) -> Translator:
    return Translator(*load_model(directory))


@lru_cache
def stored_example(directory: Path, view: str, text: str) -> str:
    """What the view shows of `text`, as plain HTML."""
    translator = _translator(directory)
    best = translator.n_best([text], n_best=4)[0]
    if view == "translate":
        return f"<p>{escape(text)}</p><p>{escape(best[0].text)}</p>"
    if view == "beam":
        items = (f"<li>{escape(one.text)} ({one.score:.3f})</li>" for one in best)
        return f"<p>{escape(text)}</p><ol>{''.join(items)}</ol>"
    if view == "knock-out":
        layers = heads_of(translator.model, "encoder")
        with knocked_out(*(head for layer in layers for head in layer)):
            [left] = translator.translate([text])
        return (
            f"<p>{escape(text)}</p><dl><dt>The whole model</dt><dd>{escape(best[0].text)}</dd>"
            f"<dt>Without the encoder's self-attention</dt><dd>{escape(left)}</dd></dl>"
        )
    model, tokenizer = translator.model, translator.tokenizer
    source = torch.tensor([[*tokenizer.encode(text), model.config.eos_id]])
    target = [*tokenizer.encode(best[0].text), model.config.eos_id]
    read = torch.tensor([[model.config.bos_id, *target[:-1]]])
    with torch.inference_mode(), record_attention(model) as weights:
        p = model(source, read)[0].softmax(-1)
    A = weights[f"decoder.layers.{model.config.N - 1}.cross_attention"][0].mean(0)
    keys, rows = tokenizer.pieces(source[0].tolist()), []
    for i, (token, piece) in enumerate(zip(target, tokenizer.pieces(target), strict=True)):
        said = (
            f"{p[i, token]:.3f}" if view == "tokens" else f"{keys[A[i].argmax()]} {A[i].max():.2f}"
        )
        rows.append(f"<tr><th>{escape(piece)}</th><td>{escape(said)}</td></tr>")
    return (
        f"<table><thead><tr><th>token</th><th>{'p' if view == 'tokens' else 'looks most at'}</th>"
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def write_translator(app: Sphinx, error: Exception | None) -> None:
    """The page itself, beside the chapters to which its views are linked."""
    if error is None and app.builder.format == "html":
        book = f"../{CHAPTERS}/"
        write_page(Path(app.srcdir) / MODEL, Path(app.outdir) / PAGE, book=book)
        write_page_beside_pytorch(Path(app.outdir) / TRAINING, book)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("translator", TranslatorView)
    app.connect("build-finished", write_translator)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
