"""A controlled corpus (for the appendix's Figures 3 to 5): English and German from one grammar.

Every sentence comes with what an experiment needs to know: the part of speech of each word, and
which word plays which role. What is to be predicted is decided by rules that we know, since we
wrote them:

- *it* is er, sie or es, and *its* is sein or ihr, by the gender of the noun that it refers to, its
  **antecedent**. That is the subject of the clause before if this is a thing, otherwise its object;
  a noun that only says where something is (beside the lamp) is never it, however near it stands: it
  is a **distractor**. In "The spoon did not fit into the cup because it was too big" the adjective
  decides: what does not fit is too big, or what it should fit into is too small. The other one is
  the distractor.
- A verb with a particle has one translation with it: put ... away, räumte ... weg; put ... back,
  stellte ... zurück.
- The German verb stands second in a main clause and last after weil, obwohl, als and dass, where it
  takes its particle back: weil er die Tasse wegräumte.
- Articles and adjectives agree with their noun in gender and case, verbs with their subject in
  number.

**The split.** Some things (`HELD_OUT_NOUNS`) occur in no sentence with *it* or *its* in the
training data; others teach their gender by articles and adjectives only. Some pairs of clauses
(`HELD_OUT_TEMPLATES`) occur in none either. The test has four parts (`PARTS`), with and without
each.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from annotated_transformer.errors import require
from lab.experiments.figures_3_to_5.controlled_grammar import (
    CLAUSES,
    FRAMES,
    Sentence,
    Word,
    Writer,
    position,
)
from lab.experiments.figures_3_to_5.controlled_words import FIT, HELD_OUT_NOUNS, THINGS

TEMPLATES = tuple(f"{frame} + {clause}" for frame in FRAMES for clause in CLAUSES) + tuple(
    f"fit {preposition} + {sizes}"
    for preposition in FIT
    for sizes in ("big small", "thick thin", "wide narrow", "long short")
)
HELD_OUT_TEMPLATES = frozenset(
    {
        "thing by thing + person and it",
        "person and thing by thing + its",
        "particle + it was",
        "fronted + it fell",
        "fit into + wide narrow",
        "fit under + thick thin",
    }
)
"""Pairs of clauses, in no training sentence: each half occurs, with other partners."""
PARTS = {
    "seen": (False, False),
    "nouns": (True, False),
    "templates": (False, True),
    "both": (True, True),
}
"""The parts of the test: whether the antecedent is a held-out noun, and the template held out."""
SIZE = {"train": 24_000, "valid": 1000, "test": 4000}


def is_held_out(sentence: Sentence) -> tuple[bool, bool]:
    """Whether the antecedent is a held-out noun, and whether the template is held out."""
    words = sentence.english
    noun = words[position(words, "antecedent")].text if sentence.gender else ""
    return noun in HELD_OUT_NOUNS, sentence.template in HELD_OUT_TEMPLATES


def antecedent_is_first(sentence: Sentence) -> bool:
    """Whether the pronoun refers to the first thing of the sentence.

    It does not in the frame "fronted", nor where what it refers to is too small for something else.
    False without a pronoun.
    """
    nouns = [word for word in sentence.english if word.text in THINGS and word.tag == "NOUN"]
    return bool(sentence.gender) and nouns[0].role == "antecedent"


@lru_cache(maxsize=4)
def sentences(split: str) -> tuple[Sentence, ...]:
    """The sentences of a split, the same on every machine.

    No two of the whole corpus have the same English side. Three in five of "train" and of "valid"
    are pronoun sentences. All of "test" are, a quarter for each of `PARTS` in their order, and
    there the distractor, if any, would take another pronoun than the antecedent.
    """
    require(split in SIZE, f"split must be one of {', '.join(SIZE)}, got {split}")
    return _all_sentences()[split]


@lru_cache(maxsize=1)
def _all_sentences() -> dict[str, tuple[Sentence, ...]]:
    seen: set[tuple[Word, ...]] = set()

    def distinct(drawn: Iterator[Sentence], n: int) -> Iterator[Sentence]:
        while n:
            sentence = next(drawn)
            if sentence.english not in seen:
                seen.add(sentence.english)
                n -= 1
                yield sentence

    writer, things = Writer(1), list(THINGS)

    def draw(part: str, same_gender: bool, plain: float) -> Iterator[Sentence]:
        new_nouns, new_templates = PARTS[part]
        nouns = [noun for noun in things if (noun in HELD_OUT_NOUNS) == new_nouns]
        templates = [name for name in TEMPLATES if (name in HELD_OUT_TEMPLATES) == new_templates]
        while True:
            if writer.chance() < plain:
                yield writer.plain_sentence(things)
            else:
                yield writer.pronoun_sentence(writer.pick(templates), nouns, same_gender)

    found: dict[str, list[Sentence]] = {"test": []}
    for part in PARTS:
        found["test"] += distinct(draw(part, False, 0.0), SIZE["test"] // len(PARTS))
    for split in ("valid", "train"):
        found[split] = list(distinct(draw("seen", True, 0.4), SIZE[split]))
    return {split: tuple(drawn) for split, drawn in found.items()}


def text_pairs(split: str) -> list[tuple[str, str]]:
    """The (English, German) texts of `sentences(split)`."""
    return [sentence.texts for sentence in sentences(split)]
