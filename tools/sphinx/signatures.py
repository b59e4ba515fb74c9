"""A Sphinx extension: a signature of several lines is no list of definitions.

Sphinx writes its parameters as a `<dl>` without a `<dt>`, which a screen reader announces wrongly.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

SIGNATURE = re.compile(r'<dt class="sig .*?</dt>', re.DOTALL)


def as_lines(app: Sphinx, name: str, template: str, context: dict[str, Any], tree: object) -> None:
    def of_spans(signature: re.Match[str]) -> str:
        lines = re.sub(r"<dl>|<dd>", '<span class="sig-line">', signature[0])
        return re.sub(r"</dl>|</dd>", "</span>", lines)

    if "body" in context:
        context["body"] = SIGNATURE.sub(of_spans, context["body"])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("html-page-context", as_lines)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
