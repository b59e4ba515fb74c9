"""The grammar of the controlled corpus: it writes each sentence in English and in German."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from lab.experiments.figures_3_to_5.controlled_words import (
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


@dataclass(frozen=True)
class Sentence:
    """A pair of sentences; `template` names the kind, `gender` is the antecedent's.

    The gender is "" where there is no pronoun. Roles: pronoun (it, its and what translates them);
    antecedent and distractor, both nouns, and "antecedent article" and so on for the words before
    them; verb and particle of the first clause, "second verb" and "second particle" of the second;
    cue, the adjective that decides what does not fit.
    """

    english: tuple[Word, ...]
    german: tuple[Word, ...]
    template: str
    gender: str = ""

    @property
    def texts(self) -> tuple[str, str]:
        """Both sides as text, words and punctuation apart by one space."""
        english, german = ([word.text for word in side] for side in (self.english, self.german))
        return " ".join(english), " ".join(german)


def position(words: Sequence[Word], role: str) -> int:
    """Where the word with this role stands, or -1."""
    return next((i for i, word in enumerate(words) if word.role == role), -1)


_FRAMES = ("thing", "person and thing", "particle")
FRAMES = (*(name + by for name in _FRAMES for by in ("", " by thing")), "fronted")
"""First clauses: what stands in them, in this order."""
CLAUSES = ("it was", "it fell", "person and it", "its")
"""Second clauses, with the pronoun."""


class Writer:
    """Draws sentences, the same on every machine.

    `random.Random.random` is the one method whose numbers Python promises not to change.
    """

    def __init__(self, seed: int | str) -> None:
        self.chance = random.Random(seed).random

    def pick(self, options: Sequence[str]) -> str:
        return options[int(self.chance() * len(options))]

    def thing(self, nouns: Sequence[str], role: str = "") -> Phrase:
        noun, gender = THINGS[english := self.pick(nouns)]
        adjective = self.pick(list(ADJECTIVES)) if self.chance() < 0.4 else ""
        return Phrase((english, noun), gender, self.chance() < 0.7, adjective, role=role)

    def person(self) -> tuple[list[Word], list[Word], bool]:
        """The subject in English and in German, and whether it is a plural."""
        if self.chance() < 0.25:
            german, plural = SUBJECT_PRONOUNS[english := self.pick(list(SUBJECT_PRONOUNS))]
            return [Word(english, "PRON")], [Word(german, "PRON")], plural
        english, plural = self.pick(list(PERSONS)), self.chance() < 0.35
        many, one_german, many_german, gender = PERSONS[english]
        noun = (many, many_german) if plural else (english, one_german)
        phrase = Phrase(noun, gender, plural or self.chance() < 0.8, plural=plural)
        return phrase.english(), phrase.german("nom"), plural

    def was(self, subject: Both) -> Clause:
        adjective = self.pick(list(ADJECTIVES))
        words = [*subject[0], Word("was", "VERB", "verb"), Word(adjective, "ADJ")]
        return Clause(words, subject[1], "war", [Word(ADJECTIVES[adjective], "ADJ")])

    def fell(self, subject: Both) -> Clause:
        verb, *particle = (english := self.pick(list(INTRANSITIVE))).split()
        german, german_particle = INTRANSITIVE[english]
        words = [Word(verb, "VERB", "verb"), *(Word(word, "PART", "particle") for word in particle)]
        return Clause([*subject[0], *words], subject[1], german, [], german_particle)

    def did(self, thing: Both, front: Both | None = None) -> Clause:
        english, german, plural = self.person()
        verb = self.pick(list(TRANSITIVE))
        words = [*(front[0] if front else []), *english, Word(verb, "VERB", "verb"), *thing[0]]
        return Clause(words, german, TRANSITIVE[verb][plural], thing[1], front=front)

    def did_particle(self, thing: Both) -> Clause:
        english, german, plural = self.person()
        verb, particle = list(PARTICLE_VERBS)[int(self.chance() * len(PARTICLE_VERBS))]
        *finite, german_particle = PARTICLE_VERBS[verb, particle]
        end = Word(particle, "PART", "particle")
        words = [*english, Word(verb, "VERB", "verb"), *thing[0], end]
        return Clause(words, german, finite[plural], thing[1], german_particle)

    def fit(self, preposition: str, one: Phrase, other: Phrase) -> Clause:
        words = [Word("did", "VERB"), Word("not", "ADV"), Word("fit", "VERB", "verb")]
        words = [*one.english(), *words, Word(preposition, "PREP"), *other.english()]
        german = [Word("nicht", "ADV"), Word(FIT[preposition], "PREP"), *other.german("acc")]
        return Clause(words, one.german("nom"), "passte", german)

    def frame(self, name: str, thing: Phrase, other: Phrase) -> Clause:
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

    def pronoun_clause(self, name: str, gender: str) -> Clause:
        case = "acc" if name == "person and it" else "nom"
        it = [Word("it", "PRON", "pronoun")], [Word(IT[case][gender], "PRON", "pronoun")]
        if name == "its":
            part, part_gender = PARTS_OF_THINGS[english := self.pick(list(PARTS_OF_THINGS))]
            possessive = ITS[gender] + ENDINGS[part_gender, "nom"][1]
            its = [Word("its", "POSS", "pronoun"), Word(english, "NOUN")]
            return self.was((its, [Word(possessive, "POSS", "pronoun"), Word(part, "NOUN")]))
        write = self.did if case == "acc" else self.was if name == "it was" else self.fell
        return write(it)

    def pronoun_sentence(self, template: str, nouns: Sequence[str], same_gender: bool) -> Sentence:
        """A sentence of this template.

        Unless `same_gender`, the distractor would take another pronoun.
        """
        first, second = template.split(" + ")
        forms = ITS if second == "its" else IT["nom"]
        thing, other = self.thing(nouns, "antecedent"), self.thing(nouns, "distractor")

        def is_refused() -> bool:
            same_pronoun = forms[other.gender] == forms[thing.gender]
            return other.noun == thing.noun or (same_pronoun and not same_gender)

        while is_refused():
            other = self.thing(nouns, "distractor")
        if first not in FRAMES:
            size = self.pick(second.split())
            german, sign = SIZES[size]
            clause = self.fit(first.split()[1], *((thing, other) if sign > 0 else (other, thing)))
            it = [Word("it", "PRON", "pronoun"), Word("was", "VERB", "verb"), Word("too", "ADV")]
            er = [Word(IT["nom"][thing.gender], "PRON", "pronoun")]
            too = [Word("zu", "ADV"), Word(german, "ADJ", "cue")]
            why = Clause([*it, Word(size, "ADJ", "cue")], er, "war", too)
            return _join(clause, "because", why, template, thing.gender)
        clause, conjunction = self.frame(first, thing, other), self.pick(list(CONJUNCTIONS))
        then = self.pronoun_clause(second, thing.gender)
        return _join(clause, conjunction, then, template, thing.gender)

    def plain_clause(self, nouns: Sequence[str], main: bool = True) -> Clause:
        """A clause without roles; only a main clause may begin with anything but its subject."""
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
            then = self.plain_clause(nouns, main=False)
            return _join(clause, conjunction, then, "two clauses", "")
        english, german, plural = self.person()
        words = [*english, Word("said", "VERB", "verb")]
        said = Clause(words, german, "sagten" if plural else "sagte", [])
        return _join(said, "that", self.plain_clause(nouns, main=False), "that clause", "")


def _join(one: Clause, conjunction: str, two: Clause, template: str, gender: str) -> Sentence:
    german, verb_last = ("dass", True) if conjunction == "that" else CONJUNCTIONS[conjunction]
    later = {"verb": "second verb", "particle": "second particle"}
    comma = [] if conjunction == "and" else [Word(",", "PUNCT")]
    second = [word._replace(role=later.get(word.role, word.role)) for word in two.english]
    words = [*one.english, Word(conjunction, "CONJ"), *second]
    german_second = two.german("second verb", verb_last)
    german_words = [*one.german("verb", False), *comma, Word(german, "CONJ"), *german_second]
    return _finish(words, german_words, template, gender)


def _finish(english: list[Word], german: list[Word], template: str, gender: str) -> Sentence:
    def side(words: list[Word]) -> tuple[Word, ...]:
        first, *rest = words
        capital = first._replace(text=first.text[0].upper() + first.text[1:])
        return capital, *rest, Word(".", "PUNCT")

    return Sentence(side(english), side(german), template, gender)
