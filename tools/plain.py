"""Write the chapters for Colab and Jupyter, where nothing reads the directives of the site.

    python -m tools.plain            write notebooks/*.ipynb, without outputs
    python -m tools.plain --check    exit with 1 if one of them is not what its chapter makes
    python -m tools.plain --student book/x.py
                                     write student/x.ipynb, without the solutions

The cells are those of `book/`, in their order. In their words, a citation is an author and a year,
a reference is a link to the page of the site, an admonition is a quotation, and a solution is
folded, as is the code that the site folds. Pictures are fetched from the repository.
"""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import nbformat
import yaml
from nbformat import NotebookNode
from pybtex.database import Person, parse_file

from tools import colab, notebooks
from tools.arguments import parser_of
from tools.numbering import PAPER_EQUATIONS, section_of

PLAIN = notebooks.ROOT / "notebooks"
DIRECTIVE = re.compile(r"(?P<fence>`{3,}|:{3,})\{(?P<name>[\w-]+)\} *(?P<title>.*)")
OPTION = re.compile(r":(?P<name>[\w-]+): *(?P<value>.*)")
LABEL = re.compile(r"^\((?P<label>[\w-]+)\)=\n", re.MULTILINE)
LABELLED = re.compile(r"^\((?P<label>[\w-]+)\)=\n+(?:\(.*\)=\n)*(?P<line>.*)", re.MULTILINE)
EQUATION = re.compile(r"\$\$ \((?P<label>[\w-]+)\)$", re.MULTILINE)
NAMED = re.compile(
    r"\{(?P<name>[\w-]+)\} *(?P<title>.*)\n(?::.*\n)*?:(?:label|name): *(?P<label>[\w-]+)"
)
ROLE = re.compile(r"\{(?P<name>[a-z:]+)\}`(?P<text>[^`]+)`")
IMAGE = re.compile(r"!\[(?P<words>[^\]]*)\]\((?P<path>figures/[^)]+)\)")
LINK = re.compile(r"(?<!!)\[(?P<words>[^\]]*)\]\((?P<target>[\w./-]+)(?P<anchor>#[\w-]+)?\)")
FOLDED = {"hide-cell", "hide-input", "remove-cell", "remove-input", "solution"}

FIRST_CELL_ELSEWHERE = """
else:  # The chapters run in the folder of the book, which has their lab.
    import os

    os.chdir("../book")
    sys.path.insert(0, os.getcwd())"""


class Place(NamedTuple):
    """Where a label points: the page, the words of a reference without words of its own."""

    page: str
    words: str


@cache
def places() -> dict[str, Place]:
    """The labels of all pages, in the order of the book: of headings, exercises and equations."""
    labels: dict[str, Place] = {}
    counts: Counter[str] = Counter()

    def number(kind: str, page: str) -> str:
        section = section_of(page)
        counts[f"{kind} {section}"] += 1
        return f"{section}.{counts[f'{kind} {section}']}".lstrip(".")

    for page in pages():
        text = words_of(page)
        for labelled in LABELLED.finditer(text):
            title = re.sub(r"^#+ |^[`:]{3,}\{[\w-]+\} *", "", labelled["line"])
            labels[labelled["label"]] = Place(page, title)
        for equation in EQUATION.finditer(text):
            of_paper = PAPER_EQUATIONS.get(equation["label"])
            labels[equation["label"]] = Place(page, f"({of_paper or number('equation', page)})")
        for directive in NAMED.finditer(text):
            words = directive["title"]
            if directive["name"] == "exercise":
                words = f"Exercise {number('exercise', page)}"
            labels[directive["label"]] = Place(page, words)
    return labels


def pages() -> list[str]:
    """The names of the book's pages, in the order in which they are read."""
    contents = yaml.safe_load((notebooks.ROOT / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [contents["root"]]
    chapters += [chapter["file"] for part in contents["parts"] for chapter in part["chapters"]]
    return [Path(chapter).name for chapter in chapters]


def words_of(page: str) -> str:
    path = notebooks.BOOK / f"{page}.py"
    if not path.exists():
        return path.with_suffix(".md").read_text(encoding="utf-8")
    cells = notebooks.read_source(path).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


@cache
def site() -> str:
    """The address of the published book."""
    return colab.settings()["html"]["baseurl"].rstrip("/")


def page_address(page: str, label: str = "") -> str:
    return f"{site()}/book/{page}.html" + (f"#{label}" if label else "")


@cache
def bibliography() -> dict[str, tuple[str, str]]:
    """For each key of references.bib the authors, "Vaswani et al.", and the year."""

    def last_name(person: Person) -> str:
        names = [*person.prelast_names, *person.last_names]
        return re.sub(r"[{}]", "", " ".join(names)).encode().decode()

    entries = parse_file(notebooks.BOOK / "references.bib").entries
    cited = {}
    for key, entry in entries.items():
        names = [last_name(person) for person in entry.persons["author"]]
        authors = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
        cited[key] = authors, entry.fields["year"]
    return cited


def plain_words(text: str, page: str) -> str:
    """A Markdown cell in the words of every Markdown renderer."""
    parts = []
    lines = iter(text.splitlines())
    for line in lines:
        opening = DIRECTIVE.fullmatch(line)
        if opening:
            body = list(iter(partial(next, lines, opening["fence"]), opening["fence"]))
            parts.append(plain_directive(opening["name"], opening["title"], body, page))
        else:
            parts.append(line)
    text = "\n".join(parts)
    text = EQUATION.sub(numbered, LABEL.sub("", text))
    text = IMAGE.sub(picture, text)
    text = ROLE.sub(partial(plain_role, page=page), text)
    return LINK.sub(plain_link, text)


def plain_directive(name: str, title: str, body: Sequence[str], page: str) -> str:
    options = {}
    while body and (option := OPTION.fullmatch(body[0])):
        options[option["name"]] = option["value"]
        body = body[1:]
    words = plain_words("\n".join(body), page).strip("\n")
    if name == "translator":
        return f"*Live on the site:* [{title} view, with your own sentence]({page_address(page)})"
    if name == "exercise":
        return f"**{places()[options['label']].words}. {title}**\n\n{words}"
    if name == "solution":
        return details("Solution", words)
    if name == "dropdown" or "dropdown" in options.get("class", ""):
        return details(title, words)
    return "\n".join(f"> {line}".rstrip() for line in (f"**{title}**", "", *words.splitlines()))


def details(summary: str, words: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{words}\n\n</details>"


def numbered(match: re.Match[str]) -> str:
    number = places()[match["label"]].words.strip("()")
    return f"\\tag{{{number}}} $$"


def picture(match: re.Match[str]) -> str:
    at_github = colab.repository()["url"].removeprefix("https://github.com/")
    raw = f"https://raw.githubusercontent.com/{at_github}/{colab.repository()['branch']}"
    return f"![{match['words']}]({raw}/book/{match['path']}?sanitize=true)"


def plain_role(match: re.Match[str], page: str) -> str:
    name, text = match["name"], " ".join(match["text"].split())
    if name.startswith("cite"):
        cited = [bibliography()[key.strip()] for key in text.split(",")]
        if name == "cite:t":
            return "; ".join(f"{authors} ({year})" for authors, year in cited)
        return f"({'; '.join(f'{authors}, {year}' for authors, year in cited)})"
    words, _, label = text.rpartition("<")
    label = label.removesuffix(">")
    place = places()[label]
    return f"[{words.strip() or place.words}]({page_address(place.page, label)})"


def plain_link(match: re.Match[str]) -> str:
    """A link to a file of the book or to a label, as one to the page of the site."""
    words, target, anchor = match["words"], match["target"], match["anchor"] or ""
    if target in places():
        return f"[{words}]({page_address(places()[target].page, target)})"
    page, dot, suffix = target.rpartition(".")
    if dot and suffix in ("ipynb", "md"):
        return f"[{words}]({page_address(page, anchor.removeprefix('#'))})"
    return match[0]


def plain_notebook(path: Path) -> NotebookNode:
    """The chapter `path` for Colab and Jupyter."""
    notebook = notebooks.read_source(path)
    for cell in notebook.cells:
        if cell.source == colab.first_cell().source:
            cell.source += FIRST_CELL_ELSEWHERE
        if cell.cell_type == "markdown":
            cell.source = plain_words(cell.source, path.stem)
        elif FOLDED.intersection(cell.metadata.get("tags", [])):
            cell.metadata["jupyter"] = {"source_hidden": True}
            cell.metadata["cellView"] = "form"
    return notebook


def without_solutions(notebook: NotebookNode) -> NotebookNode:
    """The notebook for students, which runs from top to bottom like the whole."""
    notebook.cells = [
        cell for cell in notebook.cells if "solution" not in cell.metadata.get("tags", [])
    ]
    return notebook


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--student", type=Path, metavar="CHAPTER", help="only this one")
    args = parser.parse_args()
    if args.student:
        target = notebooks.ROOT / "student" / f"{args.student.stem}.ipynb"
        target.parent.mkdir(exist_ok=True)
        notebook = without_solutions(plain_notebook(args.student.resolve()))
        target.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
        print(target)
        return 0
    PLAIN.mkdir(exist_ok=True)
    stale = []
    for path in notebooks.chapters():
        target = PLAIN / f"{path.stem}.ipynb"
        text = nbformat.writes(plain_notebook(path)) + "\n"
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            stale.append(target.name)
            if not args.check:
                target.write_text(text, encoding="utf-8")
    print(f"{len(stale)} of {len(notebooks.chapters())} were not up to date:", *stale)
    return int(args.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
