"""Test sentences that are nearly in the training text, and what they do to the score.

    python benchmarks/near_copies.py                        book/model, its corpus, both directions
    python benchmarks/near_copies.py --small --out /tmp/near_copies.json

A near copy is a source sentence that differs from one of training by at most one word: replaced,
added or left out, case and punctuation aside. A model may know it by heart, so the BLEU of the
others is what it reaches on new sentences; they are longer too, and the mean lengths stand beside.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from annotated_transformer.checkpoint.directory import read_config
from annotated_transformer.data import corpus
from annotated_transformer.data.parallel_text import Pair, fold
from annotated_transformer.decoding.evaluation import bleu
from annotated_transformer.decoding.translator import Translator
from benchmarks.timing import ROOT, as_text, out_path, write
from tools.arguments import parser_of, run_main

Words = tuple[str, ...]
SCORED = "tatoeba-en-de"
"""The corpus whose test split is scored; `book/model` learns it and a larger one."""


def words_of(text: str) -> Words:
    return tuple(fold(word) for word in text.split() if any(map(str.isalnum, word)))


def without_one(words: Words) -> Iterator[tuple[int, Words]]:
    """The words without each of them in turn, and its place."""
    return ((place, words[:place] + words[place + 1 :]) for place in range(len(words)))


class NearCopies:
    """Which sentences differ from one of `known` by at most one word.

    >>> known = NearCopies(["She can't swim."])
    >>> [known.has(text) for text in ("He can't swim", "She can't swim well!", "He can swim.")]
    [True, True, False]
    """

    def __init__(self, known: Iterable[str]) -> None:
        self.whole: set[Words] = {words_of(text) for text in known}
        self.shortened = {gap for words in self.whole for gap in without_one(words)}
        self.texts_of_shortened = {words for _, words in self.shortened}

    def has(self, text: str) -> bool:
        words = words_of(text)
        if words in self.whole or words in self.texts_of_shortened:
            return True
        return any(gap in self.shortened or gap[1] in self.whole for gap in without_one(words))


def record(
    translator: Translator,
    direction: str,
    learned: Sequence[Pair],
    test: Sequence[Pair],
    back: bool,
) -> dict[str, Any]:
    """BLEU on near copies and on the others, by the paper's search."""
    sources, references = map(list, zip(*test, strict=True))
    known = NearCopies(source for source, _ in learned)
    near = [known.has(source) for source in sources]
    outputs = translator.translate(sources, back=back)
    row: dict[str, Any] = {"direction": direction, "sentences": len(test), "near": sum(near)}
    for name, is_near in (("near copies", True), ("the others", False)):
        places = [i for i, value in enumerate(near) if value is is_near]
        score = bleu([outputs[i] for i in places], [references[i] for i in places])
        row[f"BLEU on {name}"] = score.score
        row[f"words of {name}"] = sum(len(sources[i].split()) for i in places) / max(1, len(places))
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, small=True, out=True)
    parser.add_argument("directory", nargs="?", default=str(ROOT / "book" / "model"))
    args = parser.parse_args(arguments)
    learned = corpus.load(SCORED if args.small else read_config(args.directory)["corpus"], "train")
    test = corpus.load(SCORED, "test")[: 20 if args.small else None]
    translator = Translator.from_checkpoint(args.directory)
    records = []
    for direction, back in (("English to German", False), ("German to English", True)):
        turned = [[pair[::-1] if back else pair for pair in pairs] for pairs in (learned, test)]
        records.append(record(translator, direction, turned[0], turned[1], back))
        print(as_text(records[-1]))
    write(out_path(args, "near_copies"), "near_copies", arguments, records)


if __name__ == "__main__":
    run_main(main)
