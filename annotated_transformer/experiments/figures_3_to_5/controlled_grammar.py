"""The grammar of the controlled corpus: it writes each phrase in English and in German at the same time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from annotated_transformer.experiments.figures_3_to_5.controlled_words import (
    ADJECTIVES,
    CONJUNCTIONS,
    ENDINGS,
    FIT,
    INTRANSITIVE,
    IT,
    ITS,
    PARTICLE_VERBS,
    PARTS_OF_THINGS,
    PERSONS,
    PREPOSITIONS,
    SIZES,
    SUBJECT_PRONOUNS,
    THINGS,
    TRANSITIVE,
)


class Word(NamedTuple):
    """A word, its part of speech (DET ADJ NOUN PRON POSS VERB PART PREP CONJ ADV PUNCT), and its role, often ""."""

    text: str
    tag: str
    role: str = ""


@dataclass(frozen=True)
class Sentence:
    """A pair of sentences; `template` names the kind, `gender` is the antecedent's ("" where there is no pronoun).

    Roles: pronoun (it, its and what translates them); antecedent and distractor, both nouns, and "antecedent article"
    and so on for the words before them; verb and particle of the first clause, "second verb" and "second particle" of
    the second; cue, the adjective that decides what does not fit.
    """

    english: tuple[Word, ...]
    german: tuple[Word, ...]
    template: str
    gender: str = ""

    @property
    def texts(self) -> tuple[str, str]:
        """Both sides as text, words and punctuation apart by one space."""
        return " ".join(word.text for word in self.english), " ".join(
            word.text for word in self.german
        )


def position(words: Sequence[Word], role: str) -> int:
    """Where the word with this role stands, or -1."""
    return next((i for i, word in enumerate(words) if word.role == role), -1)


FRAMES = (
    "thing",
    "thing by thing",
    "person and thing",
    "person and thing by thing",
    "particle",
    "particle by thing",
    "fronted",
)
"""First clauses: what stands in them, in this order."""
CLAUSES = ("it was", "it fell", "person and it", "its")
"""Second clauses, with the pronoun."""


@dataclass(frozen=True)
class _Phrase:
    """An English and a German noun phrase in the making: what its words are depends on the case."""

    noun: tuple[str, str]
    gender: str
    definite: bool = True
    adjective: str = ""
    plural: bool = False
    role: str = ""
    behind: tuple[str, _Phrase] | None = None  # a preposition and what follows it

    def english(self) -> list[Word]:
        noun = Word(self.noun[0], "NOUN", self.role)
        first = self.adjective or noun.text
        article = "the" if self.definite else "an" if first[0] in "aeiou" else "a"
        found = [Word(article, "DET", self._role("article"))]
        found += [Word(self.adjective, "ADJ", self._role("adjective"))] if self.adjective else []
        after = [Word(self.behind[0], "PREP"), *self.behind[1].english()] if self.behind else []
        return [*found, noun, *after]

    def german(self, case: str) -> list[Word]:
        the, a, after_the, after_a = (
            ("die", "", "en", "en") if self.plural else ENDINGS[self.gender, case]
        )
        found = [Word(the if self.definite else "ein" + a, "DET", self._role("article"))]
        if self.adjective:
            ending = after_the if self.definite else after_a
            found.append(Word(ADJECTIVES[self.adjective] + ending, "ADJ", self._role("adjective")))
        found.append(Word(self.noun[1], "NOUN", self.role))
        after = (
            [Word(PREPOSITIONS[self.behind[0]], "PREP"), *self.behind[1].german("dat")]
            if self.behind
            else []
        )
        return [*found, *after]

    def _role(self, part: str) -> str:
        return f"{self.role} {part}" if self.role else ""


_Both = tuple[list[Word], list[Word]]  # the same phrase in English and in German


class _Clause(NamedTuple):
    """A clause in both languages; the German one still in pieces, since its order depends on where it stands."""

    english: list[Word]
    subject: list[Word]
    verb: str
    middle: list[Word]
    particle: str = ""
    front: _Both | None = None

    def german(self, role: str, verb_last: bool) -> list[Word]:
        verb = Word(self.verb, "VERB", role)
        if verb_last:
            return [*self.subject, *self.middle, verb._replace(text=self.particle + self.verb)]
        end = (
            [Word(self.particle, "PART", "particle" if role == "verb" else "")]
            if self.particle
            else []
        )
        before = [*self.front[1], verb, *self.subject] if self.front else [*self.subject, verb]
        return [*before, *self.middle, *end]


class Writer:
    """Draws sentences; `random.Random.random` is the one method whose numbers Python promises not to change."""

    def __init__(self, seed: int | str) -> None:
        self.chance = random.Random(seed).random

    def pick(self, options: Sequence[str]) -> str:
        return options[int(self.chance() * len(options))]

    def thing(self, nouns: Sequence[str], role: str = "") -> _Phrase:
        noun, gender = THINGS[english := self.pick(nouns)]
        adjective = self.pick(list(ADJECTIVES)) if self.chance() < 0.4 else ""
        return _Phrase((english, noun), gender, self.chance() < 0.7, adjective, role=role)

    def person(self) -> tuple[list[Word], list[Word], bool]:
        """The subject in English and in German, and whether it is a plural."""
        if self.chance() < 0.25:
            german, plural = SUBJECT_PRONOUNS[english := self.pick(list(SUBJECT_PRONOUNS))]
            return [Word(english, "PRON")], [Word(german, "PRON")], plural
        english, plural = self.pick(list(PERSONS)), self.chance() < 0.35
        many, one_german, many_german, gender = PERSONS[english]
        noun = (many, many_german) if plural else (english, one_german)
        phrase = _Phrase(noun, gender, plural or self.chance() < 0.8, plural=plural)
        return phrase.english(), phrase.german("nom"), plural

    def was(self, subject: _Both) -> _Clause:
        adjective = self.pick(list(ADJECTIVES))
        return _Clause(
            [*subject[0], Word("was", "VERB", "verb"), Word(adjective, "ADJ")],
            subject[1],
            "war",
            [Word(ADJECTIVES[adjective], "ADJ")],
        )

    def fell(self, subject: _Both) -> _Clause:
        verb, *particle = (english := self.pick(list(INTRANSITIVE))).split()
        german, german_particle = INTRANSITIVE[english]
        words = [Word(verb, "VERB", "verb"), *(Word(word, "PART", "particle") for word in particle)]
        return _Clause([*subject[0], *words], subject[1], german, [], german_particle)

    def did(self, thing: _Both, front: _Both | None = None) -> _Clause:
        english, german, plural = self.person()
        verb = self.pick(list(TRANSITIVE))
        words = [*(front[0] if front else []), *english, Word(verb, "VERB", "verb"), *thing[0]]
        return _Clause(words, german, TRANSITIVE[verb][plural], thing[1], front=front)

    def did_particle(self, thing: _Both) -> _Clause:
        english, german, plural = self.person()
        verb, particle = list(PARTICLE_VERBS)[int(self.chance() * len(PARTICLE_VERBS))]
        *finite, german_particle = PARTICLE_VERBS[verb, particle]
        words = [
            *english,
            Word(verb, "VERB", "verb"),
            *thing[0],
            Word(particle, "PART", "particle"),
        ]
        return _Clause(words, german, finite[plural], thing[1], german_particle)

    def fit(self, preposition: str, one: _Phrase, other: _Phrase) -> _Clause:
        words = [
            Word("did", "VERB"),
            Word("not", "ADV"),
            Word("fit", "VERB", "verb"),
            Word(preposition, "PREP"),
        ]
        german = [Word("nicht", "ADV"), Word(FIT[preposition], "PREP"), *other.german("acc")]
        return _Clause(
            [*one.english(), *words, *other.english()], one.german("nom"), "passte", german
        )

    def frame(self, name: str, thing: _Phrase, other: _Phrase) -> _Clause:
        """A clause about `thing`; `other` is in it where the name says so."""
        if name == "fronted":
            preposition = self.pick(list(PREPOSITIONS))
            front = (
                [Word(preposition, "PREP"), *other.english()],
                [Word(PREPOSITIONS[preposition], "PREP"), *other.german("dat")],
            )
            return self.did((thing.english(), thing.german("acc")), front)
        if name.endswith("by thing"):
            thing = replace(thing, behind=(self.pick(list(PREPOSITIONS)), other))
        case = "nom" if name.startswith("thing") else "acc"
        both = thing.english(), thing.german(case)
        if case == "nom":
            return self.was(both) if self.chance() < 0.6 else self.fell(both)
        return self.did_particle(both) if name.startswith("particle") else self.did(both)

    def pronoun_clause(self, name: str, gender: str) -> _Clause:
        case = "acc" if name == "person and it" else "nom"
        it = [Word("it", "PRON", "pronoun")], [Word(IT[case][gender], "PRON", "pronoun")]
        if name == "its":
            part, part_gender = PARTS_OF_THINGS[english := self.pick(list(PARTS_OF_THINGS))]
            possessive = ITS[gender] + ENDINGS[part_gender, "nom"][1]
            return self.was(
                (
                    [Word("its", "POSS", "pronoun"), Word(english, "NOUN")],
                    [Word(possessive, "POSS", "pronoun"), Word(part, "NOUN")],
                )
            )
        return (
            self.did(it) if case == "acc" else self.was(it) if name == "it was" else self.fell(it)
        )

    def pronoun_sentence(self, template: str, nouns: Sequence[str], same_gender: bool) -> Sentence:
        """A sentence of this template; unless `same_gender`, the distractor would take another pronoun."""
        first, second = template.split(" + ")
        forms = ITS if second == "its" else IT["nom"]
        thing, other = self.thing(nouns, "antecedent"), self.thing(nouns, "distractor")
        while other.noun == thing.noun or not (
            same_gender or forms[other.gender] != forms[thing.gender]
        ):
            other = self.thing(nouns, "distractor")
        if first not in FRAMES:
            size = self.pick(second.split())
            german, sign = SIZES[size]
            clause = self.fit(first.split()[1], *((thing, other) if sign > 0 else (other, thing)))
            why = _Clause(
                [
                    Word("it", "PRON", "pronoun"),
                    Word("was", "VERB", "verb"),
                    Word("too", "ADV"),
                    Word(size, "ADJ", "cue"),
                ],
                [Word(IT["nom"][thing.gender], "PRON", "pronoun")],
                "war",
                [Word("zu", "ADV"), Word(german, "ADJ", "cue")],
            )
            return _join(clause, "because", why, template, thing.gender)
        clause = self.frame(first, thing, other)
        return _join(
            clause,
            self.pick(list(CONJUNCTIONS)),
            self.pronoun_clause(second, thing.gender),
            template,
            thing.gender,
        )

    def plain_clause(self, nouns: Sequence[str], main: bool = True) -> _Clause:
        """A clause without roles; only a main clause may begin with something else than its subject."""
        one, other = self.thing(nouns), self.thing(nouns)
        name = self.pick((*FIT, *(frame for frame in FRAMES if main or frame != "fronted")))
        return self.fit(name, one, other) if name in FIT else self.frame(name, one, other)

    def plain_sentence(self, nouns: Sequence[str]) -> Sentence:
        """A sentence without it and its: one clause, two, or one that somebody said."""
        chance = self.chance()
        if chance < 0.4:
            clause = self.plain_clause(nouns)
            return _finish(clause.english, clause.german("verb", False), "one clause", "")
        if chance < 0.7:
            clause, conjunction = self.plain_clause(nouns), self.pick(list(CONJUNCTIONS))
            return _join(
                clause, conjunction, self.plain_clause(nouns, main=False), "two clauses", ""
            )
        english, german, plural = self.person()
        said = _Clause(
            [*english, Word("said", "VERB", "verb")], german, "sagten" if plural else "sagte", []
        )
        return _join(said, "that", self.plain_clause(nouns, main=False), "that clause", "")


def _join(one: _Clause, conjunction: str, two: _Clause, template: str, gender: str) -> Sentence:
    german, verb_last = ("dass", True) if conjunction == "that" else CONJUNCTIONS[conjunction]
    later = {"verb": "second verb", "particle": "second particle"}
    comma = [] if conjunction == "and" else [Word(",", "PUNCT")]
    second = [word._replace(role=later.get(word.role, word.role)) for word in two.english]
    return _finish(
        [*one.english, Word(conjunction, "CONJ"), *second],
        [
            *one.german("verb", False),
            *comma,
            Word(german, "CONJ"),
            *two.german("second verb", verb_last),
        ],
        template,
        gender,
    )


def _finish(english: list[Word], german: list[Word], template: str, gender: str) -> Sentence:
    sides = (
        [
            words[0]._replace(text=words[0].text[0].upper() + words[0].text[1:]),
            *words[1:],
            Word(".", "PUNCT"),
        ]
        for words in (english, german)
    )
    english_side, german_side = map(tuple, sides)
    return Sentence(english_side, german_side, template, gender)
