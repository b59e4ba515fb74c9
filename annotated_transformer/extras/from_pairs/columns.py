"""A file of sentence pairs as people have it: columns by tabs, from Tatoeba or a spreadsheet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain

from annotated_transformer.data.parallel_text import Pair, PathLike, is_blank, stream_lines
from annotated_transformer.errors import require, say, shown

MIN_PAIRS = 100
QUOTED_CELL = re.compile('"(?:[^"]|"")*"')
HEADER = """
source target src tgt trg text translation sentence id lang language code licence license comment
attribution english german french spanish italian portuguese dutch swedish danish norwegian finnish
polish czech russian ukrainian turkish greek arabic hebrew hindi chinese japanese korean vietnamese
en de fr es it pt nl sv da no fi pl cs ru uk tr el ar he hi zh ja ko vi eng deu fra spa ita por
"""
"""Words of which a table's header consists."""
SEPARATORS = ("|||", ";", "\\t", "|", "  ", ",")


def read_pairs(path: PathLike, least: int = MIN_PAIRS) -> list[Pair]:
    """The pairs of a UTF-8 file, plain or gzip, of lines with a source, a tab and its translation.

    A header, text after a second tab (a licence, say), blank lines and repeated pairs are left out.
    Pairs that differ only in spaces around their sentences are the same. Columns of ids or language
    codes, as Tatoeba writes them before each sentence, are passed over, and the marks are removed
    in which a spreadsheet puts its cells. A line on standard error says each. Raises ConfigError,
    with the number of the line, for a line without a tab or with a blank side, and for fewer than
    `least` pairs.
    """
    rows = {n: line.split("\t") for n, line in enumerate(stream_lines(path), 1) if line.strip()}
    require(bool(rows), f"{path} is empty")
    for number, row in rows.items():
        rule = f"{path}, line {number} has no tab: a line is a source, a tab, a target"
        require(len(row) > 1, rule + _other_form(list(rows.values())))
    number, first = next(iter(rows.items()))
    if set(HEADER.split()).issuperset(re.findall(r"\w+", " ".join(first).casefold()) or "-"):
        say(f"{path}: line {number} is a header and left out: {shown(', '.join(first))}")
        del rows[number]
    source, target = _sentence_columns(path, list(rows.values()))
    n_longer = sum(len(row) > 2 for row in rows.values())
    if n_longer and (source, target) == (0, 1):
        say(f"{path}: what {n_longer:,} of {len(rows):,} lines have after a second tab is left out")
    pairs = {number: (row[source].strip(), row[target].strip()) for number, row in rows.items()}
    if _are_quoted(chain.from_iterable(pairs.values())):
        say(f"{path}: the quotation marks of a spreadsheet's cells are removed")
        pairs = {n: (_unquoted(x), _unquoted(y)) for n, (x, y) in pairs.items()}
    for number, pair in pairs.items():
        require(not any(map(is_blank, pair)), f"{path}, line {number} has a blank side")
    distinct = list(dict.fromkeys(pairs.values()))
    n = len(distinct)
    require(n >= least, f"{path} has {n} different pairs, a model needs at least {least}")
    return distinct


def _other_form(rows: list[list[str]]) -> str:
    """The end of the message on a line without a tab: what separates the columns of this file."""
    if any(len(row) > 1 for row in rows):
        is_open = any(cell.startswith('"') and cell.count('"') % 2 for row in rows for cell in row)
        return "; a cell with a line break? replace these by spaces in the sheet" if is_open else ""
    if rows[0][0].lstrip()[0] in "<{[":
        return "; this looks like XML or JSON: write its pairs as such lines"
    mark = next((mark for mark in SEPARATORS if all(mark in row[0] for row in rows)), "")
    if mark:
        return f"; {mark!r} seems to separate them: save the table with tabs (TSV)"
    return "; if the targets are in a file of their own: train --train SOURCE TARGET"


def _sentence_columns(path: PathLike, rows: list[list[str]]) -> tuple[int, int]:
    """The columns of source and target: the first two, or those of sentences beside labels.

    Labels are ids (digits alone in every line) and a language's code (the same in every line).
    """
    columns = list(zip(*rows, strict=False))  # as many as the shortest line has
    if len(columns) == 2 or not _are_labels(columns[0]):
        return 0, 1
    sentences = [i for i, column in enumerate(columns) if not _are_labels(column)]
    rule = "the first column has ids or language codes: keep the two columns of sentences"
    require(len(sentences) == 2, f"{path}: {rule}, as with cut -f2,4")
    source, target = sentences
    say(f"{path}: the sentences are taken from columns {source + 1} and {target + 1}")
    return source, target


def _are_labels(column: Sequence[str]) -> bool:
    is_code = len(set(column)) == 1 and column[0].isalpha() and len(column[0]) <= 4
    return is_code or all(cell.strip().isdecimal() for cell in column)


def _are_quoted(cells: Iterable[str]) -> bool:
    """Whether a spreadsheet has put cells into quotation marks, doubling those within them.

    It does so where a cell has such a mark or, in some programs, a comma. Speech has its marks
    undoubled, and stands beside sentences with a comma and without marks.
    """
    marked: list[str] = []
    plain: list[str] = []
    for cell in cells:
        (marked if '"' in cell else plain).append(cell)
    has_doubled = any('""' in cell for cell in marked)
    follows_commas = any("," in cell for cell in marked) and not any("," in cell for cell in plain)
    return all(map(QUOTED_CELL.fullmatch, marked)) and (has_doubled or follows_commas)


def _unquoted(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if cell.startswith('"') else cell
