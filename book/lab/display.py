"""How the book shows things: the source of a symbol, and the style of its figures."""

from __future__ import annotations

import inspect
import io
import re
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.attention_views.record import HEAT_MAP

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Line colours that colour-blind readers can tell apart (Okabe and Ito 2008).

`use_style` makes them the default.
"""
SOURCES = "https://github.com/annotated-transformer/annotated-transformer/blob/main/"
"""Where the files of the package and of the lab can be read."""
COLUMN = 80
"""The characters of a line that a page shows without a scroll bar."""


def use_style() -> None:
    """Set matplotlib's defaults to the book's: palette, small light figures, no needless frame."""
    import matplotlib
    from cycler import cycler

    matplotlib.rcParams.update(
        {
            "axes.prop_cycle": cycler(color=list(PALETTE)),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.figsize": (5.5, 3.2),
            "figure.dpi": 100,
            "savefig.dpi": 100,
            "font.size": 9,
            "image.cmap": HEAT_MAP,
        }
    )


def refusal(kind: type[Exception], call: Callable[[], object]) -> str:
    """What the error of this kind says that `call` ends in; AssertionError where it does not."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


class Table:
    """A table that a notebook shows as one, and a terminal as aligned text.

    Columns of numbers, or of text that begins with a digit or a sign, are set on the right.
    """

    def __init__(self, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
        self.lines = [[str(cell) for cell in line] for line in (header, *rows)]

    def _is_right(self, column: int) -> bool:
        cells = [line[column] for line in self.lines[1:] if line[column]]
        return all(cell[0].isdigit() or cell[0] in "+-−" for cell in cells)

    def _repr_markdown_(self) -> str:
        rule = ["---:" if self._is_right(i) else "---" for i in range(len(self.lines[0]))]
        lines = [self.lines[0], rule, *self.lines[1:]]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.lines)]
        aligned = (
            [
                cell.rjust(width) if self._is_right(i) else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line, widths))
            ]
            for line in self.lines
        )
        return "\n".join("  ".join(line).rstrip() for line in aligned)


def show(*symbols: Any) -> None:
    """Show the source of functions, classes, methods or modules of the package or the lab.

    A notebook shows one highlighted listing under a link to the file, or to each file, with its
    lines broken to fit the column; a terminal prints the source. Raises ConfigError for what has
    no source of its own, such as a number.
    """
    listings = [_listing(symbol) for symbol in symbols]
    plain = "\n\n\n".join(source for _, source in listings)
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()):
        plain = in_column(plain)
        files = dict.fromkeys(f"[`{file}`]({SOURCES}{file})" for file, _ in listings if file)
        markdown = "\n\n".join((*files, f"```python\n{plain}\n```"))
        shell.display_pub.publish({"text/markdown": markdown, "text/plain": plain})
    else:
        print(plain)


def in_column(source: str) -> str:
    """The same program in lines of 80: docstrings filled anew, brackets broken after a comma."""
    filled = re.sub(r'^( *)"""(.*?)"""', _filled, source, flags=re.M | re.S)
    return "\n".join(map(_broken, filled.splitlines()))


def _filled(docstring: re.Match[str]) -> str:
    indent, text = docstring.groups()
    paragraphs = re.split(r"\n *\n", f'{indent}"""{text}')
    for i, paragraph in enumerate(paragraphs):
        if ">>>" not in paragraph and max(map(len, paragraph.splitlines())) > COLUMN:
            words, end = " ".join(paragraph.split()), re.search(r"\n *$|$", paragraph)
            fill = textwrap.fill(words, COLUMN, initial_indent=indent, subsequent_indent=indent)
            paragraphs[i] = fill + (end[0] if end else "")
    return "\n\n".join(paragraphs) + '"""'


def _broken(line: str) -> str:
    opened, commas = list[int](), list[tuple[int, int, int]]()
    with suppress(tokenize.TokenError, IndentationError):
        for token in tokenize.generate_tokens(io.StringIO(line).readline):
            if token.string in ("(", "[", "{"):
                opened.append(token.end[1])
            elif token.string in (")", "]", "}") and opened:
                opened.pop()
            elif token.string == "," and opened and token.end[1] <= COLUMN:
                commas.append((-len(opened), token.end[1], opened[-1]))
    if len(line) <= COLUMN or not commas or ">>>" in line:
        return line
    _, where, column = max(commas)
    return f"{line[:where]}\n{_broken(' ' * column + line[where:].lstrip())}"


def _listing(symbol: Any) -> tuple[str, str]:
    """The file of a symbol in the repository ("" for another's), and its source."""
    try:
        source = textwrap.dedent(inspect.getsource(symbol)).rstrip()
        module = inspect.getmodule(symbol)
    except (TypeError, OSError):
        needed = "a function, class, method or module with source"
        raise ConfigError(f"show needs {needed}, got {symbol!r}") from None
    file = module.__name__.replace(".", "/") + ".py" if module else ""
    places = {"annotated_transformer": "", "lab": "book/"}
    folder = file.partition("/")[0]
    return (places[folder] + file if folder in places else "", source)
