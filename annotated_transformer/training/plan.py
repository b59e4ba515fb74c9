"""What to train on a file of pairs: its splits, and sizes that follow from the number of pairs.

Nothing here looks at a clock, so that the same file gives the same model on any machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from string import printable

from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.data.parallel_text import Pair, PathLike, is_blank, sample, stream_lines
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import ConfigError, require, say
from annotated_transformer.settings import Settings

MIN_PAIRS = 100
QUOTED_CELL = re.compile('"(?:[^"]|"")*"')
MAX_HELD_OUT = 500


@dataclass(frozen=True)
class Plan(Settings):
    """Sizes of a model and of its training, by the letters of Table 3.

    `n_merges` counts the tokens besides the special ids, the bytes and the characters of the text;
    `augment` is `TrainConfig`'s;
    `average` is the number of checkpoints that are averaged at the end.
    """

    n_merges: int
    N: int
    d_model: int
    d_ff: int
    h: int
    train_steps: int
    p_drop: float = 0.3
    max_tokens: int = 1024
    warmup_steps: int = 600
    lr_factor: float = 0.9
    average: int = 5
    augment: bool = False

    def model_config(self, vocab_size: int) -> ModelConfig:
        sizes = {name: getattr(self, name) for name in ("N", "d_model", "d_ff", "h", "p_drop")}
        # As in the presets for small corpora: it learns sooner (`Transformer.initialize`).
        return ModelConfig(vocab_size, **sizes, initialization="scaled")

    def train_config(self) -> TrainConfig:
        names = ("train_steps", "max_tokens", "warmup_steps", "lr_factor")
        every = max(1, self.train_steps // 40)
        return TrainConfig(
            **{name: getattr(self, name) for name in names},
            log_every=min(50, every),
            checkpoint_every=every,
            validate_every=5 * every,
            augment=self.augment,
            keep_checkpoints=self.average,
        )


def plan_for(n_pairs: int) -> Plan:
    """The plan for so many training pairs: more of them need, and feed, a larger model."""
    n_merges = min(max(n_pairs // 8, 100), 4000)
    if n_pairs < 3_000:
        return Plan(n_merges, N=2, d_model=64, d_ff=256, h=4, train_steps=2_000, warmup_steps=300)
    if n_pairs < 60_000:
        return Plan(n_merges, N=3, d_model=128, d_ff=512, h=4, train_steps=6_000)
    # With 2,800 pairs such pairs as people type cost half of the BLEU (LOG.md).
    return Plan(
        n_merges, N=3, d_model=192, d_ff=768, h=6, train_steps=24_000, p_drop=0.1, augment=True
    )


def read_pairs(path: PathLike) -> list[Pair]:
    """The pairs of a UTF-8 file, plain or gzip, of lines with a source, a tab and its translation.

    Text after a second tab (a licence, say), blank lines and repeated pairs are left out. Pairs
    that differ only in spaces around their sentences are the same. Columns of ids or language
    codes, as Tatoeba writes them before each sentence, are passed over, and the marks are removed
    in which a spreadsheet puts its cells; a line on standard error says either. Raises ConfigError,
    with the number of the line, for a line without a tab or with a blank side, and for fewer than
    100 pairs.
    """
    rows = {n: line.split("\t") for n, line in enumerate(stream_lines(path), 1) if line.strip()}
    for number, row in rows.items():
        rule = f"{path}, line {number} has no tab: a line is a source, a tab, a target"
        require(len(row) > 1, rule)
    source, target = _sentence_columns(path, list(rows.values()))
    pairs = {number: (row[source].strip(), row[target].strip()) for number, row in rows.items()}
    if _are_quoted(chain.from_iterable(pairs.values())):
        say(f"{path}: the quotation marks of a spreadsheet's cells are removed")
        pairs = {n: (_unquoted(x), _unquoted(y)) for n, (x, y) in pairs.items()}
    for number, pair in pairs.items():
        require(not any(map(is_blank, pair)), f"{path}, line {number} has a blank side")
    distinct = list(dict.fromkeys(pairs.values()))
    n = len(distinct)
    require(n >= MIN_PAIRS, f"{path} has {n} different pairs, a model needs at least {MIN_PAIRS}")
    return distinct


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


def n_held_out(n_pairs: int) -> int:
    """The number of pairs for validation, and the same for the test: 2 %, from 10 to 500."""
    return min(max(n_pairs // 50, 10), MAX_HELD_OUT)


def learn_vocabulary(pairs: list[Pair], n_merges: int) -> Tokenizer:
    """One vocabulary for both sides: special ids, bytes, characters and `n_merges` more.

    It is for what people type (`Tokenizer.train(as_typed=True)`).

    Where the text is too small for `n_merges`, half as many are tried, and so on. Raises
    ConfigError when fewer than 10 are too many.
    """
    sentences = list(chain.from_iterable(sample(pairs)))
    n_characters = len(set(chain(printable, chain.from_iterable(sentences))))
    while True:
        try:
            return Tokenizer.train(sentences, 261 + n_characters + n_merges, as_typed=True)
        except ConfigError:
            if n_merges < 10:
                raise
            n_merges //= 2
