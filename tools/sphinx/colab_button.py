"""A Sphinx extension: the Colab button of a chapter opens its plain form in notebooks/."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

from tools import colab


def open_plain_form(app: Sphinx, page: str, template: str, context: Any, doctree: Any) -> None:
    for group in context.get("header_buttons", []):
        for button in group.get("buttons", []):
            if "colab" in str(button.get("url")):
                button["url"] = colab.address(page.rpartition("/")[2])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("html-page-context", open_plain_form, priority=900)  # after the theme's buttons
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
