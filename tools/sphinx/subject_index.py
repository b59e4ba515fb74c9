"""A Sphinx extension: the subject index.

Its terms are those of the glossary (book/notation.md), each of which names the chapter that says
most about it, and those of index_terms.txt beside this file. A term is marked where its page has it
first, in bold if it is ever bold there, and a glossary's term also where another page has it in
bold. The marks are Sphinx's own index entries; book/subject_index.md gets the index that Sphinx
makes of them: behind a term is the page that says most, and after it others by title.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment.adapters.indexentries import IndexEntries
from sphinx.transforms import SphinxTransform

PAGE = "book/subject_index"
BOOK = Path(__file__).parents[2] / "book"


def places() -> dict[str, list[str]]:
    """Each term with the pages that the glossary and the list give it, the main one first."""
    found: dict[str, list[str]] = {}
    notation = (BOOK / "notation.md").read_text(encoding="utf-8")
    for term, page in re.findall(r"^([^\n:|]+)\n: .*\[[^]]*\]\((\w+)\.\w+\)$", notation, re.M):
        found[term] = [page]
    listed = Path(__file__).with_name("index_terms.txt").read_text(encoding="utf-8")
    for line in listed.splitlines():
        if not line.startswith("#"):
            term, _, pages = line.partition(" | ")
            known = found.get(term, [])
            found[term] = known + [page for page in pages.split(", ") if page not in known]
    return found


def words(term: str) -> re.Pattern[str]:
    """What a text has where it tells of the term: the beginnings of its words, near each other."""
    main = re.split(r", | \(", term)[0]
    said = [word for word in re.findall(r"[\w'.-]+", main) if word not in ("of", "and", "the", "a")]
    beginnings = [re.escape(word if len(word) < 6 else word[:-3]) for word in said]
    orders = (r".{0,40}?(?<!\w)".join(order) for order in permutations(beginnings))
    last = "" if len(said[-1]) >= 6 or len(said) > 1 else r"(?:s|es)?(?!\w)"
    return re.compile(rf"(?<!\w)(?:{'|'.join(orders)}){last}", re.I | re.S)


def first_place(text_nodes: list[nodes.Element], pattern: re.Pattern[str]) -> nodes.Element | None:
    return next((node for node in text_nodes if pattern.search(node.astext())), None)


class MarkTerms(SphinxTransform):
    default_priority = 500  # before the domains collect index entries

    def apply(self, **kwargs: Any) -> None:
        page = self.env.docname.removeprefix("book/")
        bold = list(self.document.findall(nodes.strong))
        told = [*self.document.findall(nodes.paragraph), *self.document.findall(nodes.title)]
        title = next(iter(self.document.findall(nodes.title)), None)
        for term, pages in places().items():
            pattern = words(term)
            where = first_place(bold, pattern)
            if page in pages:
                where = where or first_place(told, pattern)
            if where is None or title is None or page in ("notation", "subject_index"):
                continue
            anchor = f"index-{self.env.new_serialno('index')}"
            entry = term if page == pages[0] else f"{term}; {title.astext()}"
            node = addnodes.index(entries=[("single", entry, anchor, "", None)])
            block = where if isinstance(where, nodes.paragraph) else where.parent
            while not isinstance(block.parent, nodes.section | nodes.document):
                block = block.parent
            place = block.parent.index(block)
            block.parent.insert(place, [node, nodes.target("", "", ids=[anchor])])


def fill_in(app: Sphinx, doctree: nodes.document, name: str) -> None:
    """Put the index into its page."""
    if name != PAGE:
        return
    [section] = doctree.findall(nodes.section)
    for letter, terms in IndexEntries(app.env).create_index(app.builder):
        section += nodes.rubric("", letter)
        items = nodes.bullet_list()
        for term, (links, pages, _) in terms:
            line = nodes.paragraph("", "", *linked(term, links))
            for number, (title, more) in enumerate(pages):
                line += [nodes.Text(" · " if number or links else ": "), *linked(title, more)]
            items += nodes.list_item("", line)
        section += items


def linked(text: str, links: Sequence[tuple[str | None, str | Literal[False]]]) -> list[nodes.Node]:
    if not links:
        return [nodes.Text(text)]
    return [nodes.reference("", text, internal=True, refuri=f"../{links[0][1]}")]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(MarkTerms)
    app.connect("doctree-resolved", fill_in)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
