"""Count the book's words and habits of style, chapter by chapter.

    python -m tools.prose                        a table of all chapters, and the whole
    python -m tools.prose book/2_background.py   some chapters

Words are what white space parts in the text cells, exercises and tables and formulas included, as a
reader scrolls past them. The habits of style (we, negations, sentences of six words or fewer) are
counted in the sentences alone, per 1,000 of their words: without headings, tables, formulas, code
and links' addresses. Figures are pictures that a cell draws and drawings that the text includes,
per 1,000 words. A code cell is visible if no tag folds it, and silent if it is visible and has no
stored output. Folded are the lines of code of all cells that are not visible. The pages that are
looked up (the package, the map, the settings, the notation, the reading guide, the works cited) are
not counted. Libraries such as textstat count plain text: they know no cells, formulas or tags.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import nbformat

from tools import colab
from tools.arguments import parser_of

BOOK = Path(__file__).resolve().parents[1] / "book"
_LOOKED_UP = "api hyperparameters notation paper_map reading_guide references subject_index"
LOOKED_UP = frozenset(_LOOKED_UP.split())
HIDDEN = {"hide-cell", "remove-cell", "hide-input", "remove-input"}
WE = re.compile(r"\b(we|us|our|ours|let's)\b", re.I)
NEGATION = re.compile(r"\b(not|no|never|none|nothing|nor|neither|cannot|\w+n't)\b", re.I)
DRAWING = re.compile(r"^`{3,}\{(?:figure|image)\}|^:{3,}\{figure\}|<svg|^!\[", re.M)
SHORT = 6


@dataclass
class Counts:
    """What is counted of a chapter; two can be added."""

    words: int = 0
    reading: int = 0
    prose: int = 0
    figures: int = 0
    we: int = 0
    negations: int = 0
    sentences: int = 0
    short: int = 0
    silent: int = 0
    asserts: int = 0
    folded: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def row(self) -> dict[str, str]:
        """The columns of the table, by their heads."""
        per_thousand = 1000 / max(self.prose, 1)
        return {
            "words": f"{self.words:,}",
            "without exercises": f"{self.reading:,}",
            "figures": str(self.figures),
            "figures/1000": f"{1000 * self.figures / max(self.words, 1):.1f}",
            "we/1000": f"{self.we * per_thousand:.1f}",
            "negations/1000": f"{self.negations * per_thousand:.1f}",
            "short": f"{100 * self.short / max(self.sentences, 1):.0f} %",
            "silent": str(self.silent),
            "asserts": str(self.asserts),
            "folded": f"{self.folded:,}",
        }


def prose(text: str) -> str:
    """The sentences of a text cell: without headings, tables, formulas, code and addresses."""
    text = re.sub(r"<svg.*?</svg>", " ", text, flags=re.S)
    code = r"^(`{3,}|~{3,})\s*(?:\{code|python|bash|text|mermaid|sh\b|\n).*?^\1\s*$"
    text = re.sub(code, " ", text, flags=re.S | re.M)
    text = re.sub(r"^\$\$.*?\$\$(?: *\([\w-]+\))?", " ", text, flags=re.S | re.M)
    text = re.sub(r"\$[^$\n]*(?:\n[^$\n]+)?\$", "x", text)
    lines = [
        line
        for line in text.splitlines()
        if not re.match(r"\s*(#|\||:\w+:|`{3,}|:{3,}|\(\w[\w-]*\)=|!\[|    \S|<|%)", line)
    ]
    text = "\n".join(lines)
    text = re.sub(r"\{cite:?\w*\}`[^`]*`", " ", text)
    text = re.sub(r"\{(?:ref|eq|numref|doc)\}`([^`]*)`", "x", text)
    text = re.sub(r"`[^`\n]+`", "x", text)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"<[^>]+>|[*_>]", " ", text)


def words(text: str) -> list[str]:
    return re.findall(r"[A-Za-zÀ-ÿ0-9][\w'’-]*", text)


def sentences(text: str) -> list[str]:
    """Sentences, split at a full stop, a question or an exclamation mark before a new one."""
    found = []
    for paragraph in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.)\s", text, flags=re.M):
        found += re.split(
            r"(?<=[.!?:])[\"”)]?\s+(?=[\"“(]?[A-ZÀ-Ý0-9x])", " ".join(paragraph.split())
        )
    return [sentence for sentence in found if len(words(sentence)) > 1]


def count(chapter: Path) -> Counts:
    """The counts of a page, a chapter's text or a Markdown file."""
    if chapter.suffix == ".md":
        cells = [nbformat.v4.new_markdown_cell(chapter.read_text(encoding="utf-8"))]
    else:
        stored = nbformat.read(chapter.with_suffix(".ipynb"), as_version=4)
        cells = [cell for cell in stored.cells if not colab.is_made_here(cell)]
    total, in_exercises = Counts(), False
    for cell in cells:
        source, tags = cell.source, set(cell.metadata.get("tags", []))
        if cell.cell_type == "markdown":
            in_exercises |= bool(re.search(r"^## Exercises", source, flags=re.M))
            text = prose(source)
            found = sentences(text)
            total += Counts(
                words=len(source.split()),
                reading=0 if in_exercises else len(source.split()),
                prose=len(words(text)),
                figures=len(DRAWING.findall(source)),
                we=len(WE.findall(text)),
                negations=len(NEGATION.findall(text)),
                sentences=len(found),
                short=sum(len(words(sentence)) <= SHORT for sentence in found),
            )  # fmt: skip
            continue
        visible = not tags & HIDDEN
        total += Counts(
            figures=int("image" in cell.metadata.get("mystnb", {})),
            silent=int(visible and not cell.outputs),
            asserts=len(re.findall(r"^\s*assert\b", source, flags=re.M)) if visible else 0,
            folded=0 if visible else sum(bool(line.strip()) for line in source.splitlines()),
        )
    return total


def named_but_folded(chapter: Path) -> set[str]:
    """What the text before the exercises names, and only folded cells define."""
    cells = nbformat.read(chapter.with_suffix(".ipynb"), as_version=4).cells
    named, shown, folded = set[str](), set[str](), set[str]()
    for cell in cells:
        if cell.cell_type == "markdown":
            before, heading, _ = cell.source.partition("## Exercise")
            named |= set(re.findall(r"`(\w+)(?:\(.*?\))?`", before))
            if heading:
                break
        elif not colab.is_made_here(cell):
            tags = set(cell.metadata.get("tags", []))
            code = re.sub(r"^\s*[%!].*$", "", cell.source, flags=re.M)
            kinds = (ast.FunctionDef, ast.ClassDef)
            names = {node.name for node in ast.walk(ast.parse(code)) if isinstance(node, kinds)}
            if tags & HIDDEN:
                folded |= names
            else:
                shown |= names
    return named & folded - shown


def table(rows: dict[str, Counts]) -> str:
    lines = [["", *Counts().row()]]
    lines += [[name, *counts.row().values()] for name, counts in rows.items()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    aligned = (
        [word.rjust(w) if i else word.ljust(w) for i, (word, w) in enumerate(zip(line, widths))]
        for line in lines
    )
    return "\n".join(map("  ".join, aligned))


def pages() -> list[Path]:
    """The pages that are read from top to bottom."""
    return sorted(
        path for path in (*BOOK.glob("*.py"), *BOOK.glob("*.md")) if path.stem not in LOOKED_UP
    )


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("chapters", nargs="*", type=Path)
    args = parser.parse_args()
    rows = {path.stem: count(path) for path in args.chapters or pages()}
    rows["the whole"] = sum(rows.values(), Counts())
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
