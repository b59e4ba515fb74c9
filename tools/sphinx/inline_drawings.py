"""A Sphinx extension: a drawing with links is put into the page as it is.

A picture in a page is dead: a browser follows no link inside it. So in HTML a drawing whose file
ends with `_map.svg` becomes part of the page itself, where its links lead to other chapters. The
text has an ordinary picture, which Jupyter and GitHub show.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

SUFFIX = "_map.svg"


def put_in_place(app: Sphinx, doctree: nodes.document, name: str) -> None:
    """Replace each picture of a map in `doctree` by the file's own elements."""
    if app.builder.format != "html":
        return
    for image in list(doctree.findall(nodes.image)):
        if image["uri"].endswith(SUFFIX):
            drawing = (Path(app.srcdir) / image["uri"]).read_text(encoding="utf-8")
            # What is one picture has no parts; a group of links has.
            drawing = drawing.replace('role="img"', 'role="group"', 1)
            image.replace_self(nodes.raw("", drawing, format="html"))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-resolved", put_in_place)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
