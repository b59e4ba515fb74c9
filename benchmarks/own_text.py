"""The text of the recipe visitors_own_text: Tatoeba, our own pairs, and names in both languages.

`own_pairs/` holds what was written for it. Tatoeba has few words of the field, few letters and
hardly a German name, so each of our pairs is there many times beside the whole corpus. In the
copies, persons and places of `names.tsv` take each other's places, a place under the name that each
language has for it. Some pairs of the corpus are there once more with such names, and some with
their sides exchanged: a visitor who types German where English is expected means the other
direction.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from annotated_transformer.data import corpus
from annotated_transformer.data.corpus import WORD
from annotated_transformer.data.parallel_text import Pair

OWN = Path(__file__).with_name("own_pairs")
RENAMED = 8_000  # pairs of the corpus that are added with other names
TURNED = 0.01  # of all pairs, added with their sides exchanged


def rows(name: str) -> list[tuple[str, str, str]]:
    """The rows (kind, English, German) of a file of `own_pairs`."""
    lines = (OWN / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    return [(kind, english, german) for kind, english, german in (s.split("\t") for s in lines[1:])]


def pairs(name: str) -> list[Pair]:
    return [(english, german) for _, english, german in rows(name)]


class Names:
    """Persons and places of `names.tsv`, each under its name in either language."""

    def __init__(self) -> None:
        self.kind_of = {(english, german): kind for kind, english, german in rows("names")}
        self.of_kind = {
            kind: [names for names, its_kind in self.kind_of.items() if its_kind == kind]
            for kind in dict.fromkeys(self.kind_of.values())
        }
        self.english = {names[0]: names for names in self.kind_of}

    def known(self, pair: Pair) -> list[Pair]:
        """The names that stand once on each side."""
        source, target = map(WORD.findall, pair)
        chosen = [self.english[word] for word in dict.fromkeys(source) if word in self.english]
        return [(x, y) for x, y in chosen if source.count(x) == target.count(y) == 1]

    def replaced(self, pair: Pair, generator: random.Random) -> Pair:
        """The pair with another name of the same kind for every name that it has."""
        names = self.known(pair)
        new = [generator.choice(self.of_kind[self.kind_of[name]]) for name in names]
        source, target = (
            {old[side]: other[side] for old, other in zip(names, new, strict=True)}
            for side in (0, 1)
        )
        x, y = pair
        return (
            WORD.sub(lambda word: source.get(word[0], word[0]), x),
            WORD.sub(lambda word: target.get(word[0], word[0]), y),
        )


def training_text(corpus_pairs: Sequence[Pair], copies: int, seed: int = 1) -> list[Pair]:
    """The corpus, `copies` of each of our pairs, and pairs with other names or turned.

    The same list for the same seed. Without copies, and so without our pairs, the rest is there.
    """
    generator = random.Random(seed)
    names = Names()
    own = pairs("train")
    text = [*corpus_pairs, *own * (copies > 0)]
    text += [names.replaced(pair, generator) for pair in own * (copies - 1)]
    with_names = [pair for pair in corpus_pairs if names.known(pair)]
    chosen = generator.sample(with_names, k=min(RENAMED, len(with_names)))
    text += [names.replaced(pair, generator) for pair in chosen]
    turned = generator.sample(text, k=round(TURNED * len(text)))
    return text + [(y, x) for x, y in turned]


def write_files(corpus_name: str, copies: int, directory: Path) -> tuple[str, ...]:
    """Write `training_text` and the corpus's validation split; the options of `train` for them."""
    directory.mkdir(parents=True, exist_ok=True)
    splits = {
        "train": training_text(corpus.load(corpus_name, "train"), copies),
        "valid": corpus.load(corpus_name, "valid"),
    }
    options: list[str] = []
    for split, text in splits.items():
        options.append(f"--{split}")
        for language, side in zip(("en", "de"), zip(*text, strict=True), strict=True):
            path = directory / f"{split}.{language}"
            path.write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
            options.append(str(path))
    return tuple(options)
