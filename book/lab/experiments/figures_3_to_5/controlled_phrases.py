"""The phrases and clauses of the controlled corpus, each in both languages at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lab.experiments.figures_3_to_5.controlled_words import ADJECTIVES, ENDINGS, PREPOSITIONS


class Word(NamedTuple):
    """A word, its part of speech, and its role, often "".

    Parts of speech: DET ADJ NOUN PRON POSS VERB PART PREP CONJ ADV PUNCT.
    """

    text: str
    tag: str
    role: str = ""


@dataclass(frozen=True)
class Phrase:
    """An English and a German noun phrase in the making: what its words are depends on the case."""

    noun: tuple[str, str]
    gender: str
    definite: bool = True
    adjective: str = ""
    plural: bool = False
    role: str = ""
    behind: tuple[str, Phrase] | None = None  # a preposition and what follows it

    def english(self) -> list[Word]:
        noun = Word(self.noun[0], "NOUN", self.role)
        first = self.adjective or noun.text
        article = "the" if self.definite else "an" if first[0] in "aeiou" else "a"
        found = [Word(article, "DET", self._role("article"))]
        if self.adjective:
            found.append(Word(self.adjective, "ADJ", self._role("adjective")))
        after = [Word(self.behind[0], "PREP"), *self.behind[1].english()] if self.behind else []
        return [*found, noun, *after]

    def german(self, case: str) -> list[Word]:
        endings = ("die", "", "en", "en") if self.plural else ENDINGS[self.gender, case]
        the, a, after_the, after_a = endings
        found = [Word(the if self.definite else "ein" + a, "DET", self._role("article"))]
        if self.adjective:
            ending = after_the if self.definite else after_a
            found.append(Word(ADJECTIVES[self.adjective] + ending, "ADJ", self._role("adjective")))
        found.append(Word(self.noun[1], "NOUN", self.role))
        if self.behind:
            preposition, phrase = self.behind
            found += [Word(PREPOSITIONS[preposition], "PREP"), *phrase.german("dat")]
        return found

    def _role(self, part: str) -> str:
        return f"{self.role} {part}" if self.role else ""


Both = tuple[list[Word], list[Word]]  # the same phrase in English and in German


class Clause(NamedTuple):
    """A clause in both languages; the German one still in pieces.

    Its order depends on where it stands.
    """

    english: list[Word]
    subject: list[Word]
    verb: str
    middle: list[Word]
    particle: str = ""
    front: Both | None = None

    def german(self, role: str, verb_last: bool) -> list[Word]:
        verb = Word(self.verb, "VERB", role)
        if verb_last:
            return [*self.subject, *self.middle, verb._replace(text=self.particle + self.verb)]
        before = [*self.front[1], verb, *self.subject] if self.front else [*self.subject, verb]
        particle = Word(self.particle, "PART", "particle" if role == "verb" else "")
        return [*before, *self.middle, *([particle] if self.particle else [])]
