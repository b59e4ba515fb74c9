"""What to doubt in a translation: that it is improbable, and what of the source it has lost.

`extras/page/files/doubt.js` says the same of what it shows.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

from annotated_transformer.checkpoint.directory import corpus_languages
from annotated_transformer.errors import require

SPELT_OUT = {
    "en": "zero one two three four five six seven eight nine ten eleven twelve",
    "de": "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf",
}
"""The numbers that people write as words, by target language."""
MULTIPLE = "(?:mal)?"
"""Three times is dreimal."""
INFLECTED = {
    "ein": "ein(?:s|e|en|em|er|es|mal)?",
    "one": "one|once",
    "two": "two|twice",
}
"""The forms of numbers that have several."""
MINUS = "-\u2212"
MIN_IN_COMPOUND = 5  # letters of a name
TYPED_WORD = re.compile(rf"(?:(?<!\w)[{MINUS}](?=[0-9]))?\w+(?:[.:,@/+-]+\w+)*")
ADDRESS = re.compile(
    r"[^\W0-9]\.(?:com|org|net|info|edu|gov|eu|io|uk|us|de|at|ch|fr|es|pdf|txt|html|jpg|png)\b"
)
"""The end of an address or of a file's name, in small letters; not every full stop is one."""
NEGATIVE = re.compile(rf"(?:[{MINUS}]|minus )\s?([0-9]+)\b")
THOUSANDS = re.compile(r"(?<=[0-9])[.,](?=[0-9]{3}(?![0-9]))")
LETTERS = re.compile(r"[^\W\d_]{3,}")
TITLES = "Mr", "Mrs", "Ms", "Miss", "Dr", "Herr", "Herrn", "Frau", "Fräulein", "Familie"
"""A word with a capital after one of these is a name, whatever else it may be: Herr Bäcker."""
GERMAN_ENDINGS = "innen", "en", "er", "es", "em", "in", "e", "n", "s"
MIN_STEM = 5
"""Letters of a word before its ending: Müller is not Müll with an ending."""
MIN_END = 4
"""Letters of the last word of a compound."""
UNIT_WORDS = {
    "$": "dollar",
    "£": "pound|pfund",
    "€": "euro",
    "%": "per ?cent|prozent",
}
"""What follows or precedes a number, and the words for it in both languages."""
PRICE = re.compile(rf"([{''.join(UNIT_WORDS)}])\s?[0-9]|[0-9]\s?([{''.join(UNIT_WORDS)}])")
EMOJI = re.compile("[\u2600-\u27bf\U0001f1e6-\U0001f1ff\U0001f300-\U0001faff]")


class TranslatedWords:
    """Words that training translates, each with a capital: what else has a capital is a name.

    German makes new words of old ones: the end of a word, from the fourth letter on, and a word
    without its ending count as well.

    >>> words = TranslatedWords(["Station", "Müll"], "de")
    >>> [word in words for word in ("Bahnstation", "Stationen", "Müller", "Station")]
    [True, True, False, True]
    """

    def __init__(self, words: Iterable[str] = (), language: str = "") -> None:
        self.words = set(words)
        self.language = language

    def __bool__(self) -> bool:
        return bool(self.words)

    def __contains__(self, word: object) -> bool:
        if not isinstance(word, str) or word in self.words or self.language != "de":
            return word in self.words
        ends = (word[start:].capitalize() for start in range(3, len(word) - MIN_END + 1))
        return any(
            stem in self.words and (stem == part or len(stem) >= MIN_STEM)
            for part in (word, *ends)
            for stem in (part, *(part.removesuffix(ending) for ending in GERMAN_ENDINGS))
        )


class Doubt(NamedTuple):
    """What a checkpoint's config.json says of it: when it is unsure, and its two languages.

    A translation is unsure below a mean probability of `unsure_below`, or never where nobody has
    calibrated it; `benchmarks/unsure.py` does. A word with a capital letter is a name unless it is
    one of the words that training translates from its language, `translated`; without these there
    are no names.
    """

    unsure_below: float = 0.0
    languages: tuple[str, str] = "", ""
    translated: tuple[TranslatedWords, TranslatedWords] = TranslatedWords(), TranslatedWords()

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Doubt:
        """Raises ConfigError for an `unsure_below` that is no probability, and for other kinds.

        `longest` and `words` are for the page alone.
        """
        doubt = config.get("doubt", {})
        require(isinstance(doubt, dict), f"doubt must be a dictionary, got {doubt!r:.60}")
        unsure_below = doubt.get("unsure_below", 0.0)
        is_probability = isinstance(unsure_below, int | float) and 0 <= unsure_below <= 1
        require(is_probability, f"unsure_below must be between 0 and 1, got {unsure_below!r:.60}")
        longest = doubt.get("longest", 1)
        is_number = type(longest) in (int, float) and longest > 0
        require(is_number, f"longest must be a number of words, got {longest!r:.60}")
        words = doubt.get("words", ["", ""])
        is_pair = isinstance(words, list) and [*map(type, words)] == [str, str]
        require(is_pair, f"words must be two texts, got {words!r:.60}")
        translated = doubt.get("translated", "")
        if isinstance(translated, str):  # of the first language alone, as in 0.2
            translated = [translated, ""]
        is_pair = isinstance(translated, list) and [*map(type, translated)] == [str, str]
        require(is_pair, f"translated must be two texts, got {translated!r:.60}")
        languages = corpus_languages(config)
        source, target = map(TranslatedWords, map(str.split, translated), languages)
        return cls(unsure_below, languages, (source, target))


def mean_probability(log_p: float, n_tokens: int) -> float:
    """exp(log P / n): the geometric mean of the probabilities of n tokens, the end counted."""
    return math.exp(log_p / n_tokens)


def translated_words(
    pairs: Iterable[tuple[str, str]], least: int = 5, language: str = ""
) -> list[str]:
    """The words of three letters or more that are no names, each with a capital letter.

    A pair has them with a capital and does not leave them as they are; or `least` pairs have them
    in small letters and do not. A word that follows from shorter ones (`TranslatedWords`) is left
    out.

    >>> translated_words([("I met Priya in Turkey.", "Ich traf Priya in der Türkei.")], least=1)
    ['Met', 'Turkey']
    """
    found: Counter[str] = Counter()
    for source, target in pairs:
        said = target.lower()
        for word in set(LETTERS.findall(source)):
            if word.lower() not in said:
                found[word[0].upper() + word[1:]] += least if word[0].isupper() else 1
    words = TranslatedWords(language=language)
    for word in sorted(found, key=len):
        if found[word] >= least and word not in words:
            words.words.add(word)
    return sorted(words.words)


def lost_words(
    source: str, translation: str, to: str = "", translated: Container[str] = ()
) -> tuple[str, ...]:
    """Numbers, addresses and names of the source that are not in the translation, in their order.

    After them stand signs: a unit beside a number (`UNIT_WORDS`), and emoji.

    A number is lost when one of its groups of digits is; one up to 12, which may be written as a
    word, counts as kept where the words of the target language `to` are unknown. A name has three
    letters or more, the first a capital, and stands after a title (`TITLES`) or is none of
    `translated`, without which there are no names.

    >>> lost_words("I met Priya in Turkey at 7:45.", "Ich traf Pyriya um 75.", "de", ["Turkey"])
    ('Priya', '7:45')
    >>> lost_words("It costs 5 € 🙂", "Es kostet 5. 🙁", "de")
    ('€', '🙂')
    """
    source, target = (THOUSANDS.sub("", text) for text in (source, translation.lower()))
    digits = Counter(re.findall(r"[0-9]+", target))
    negative = set(NEGATIVE.findall(target))
    in_words = SPELT_OUT.get(to, "").split()

    def keeps(number: str) -> bool:
        digits[number] -= 1
        if digits[number] >= 0:
            return True
        is_small = number in map(str, range(13))
        return is_small and (not in_words or has_number_word(target, to, int(number)))

    def is_kept(word: str, before: str) -> bool:
        if "@" in word or ADDRESS.search(word.lower()):
            return word.lower() in target
        if numbers := re.findall(r"[0-9]+", word):
            if word[0] in MINUS and numbers[0] not in negative:
                return False
            return False not in [keeps(number) for number in numbers]
        capitalised = [part for part in LETTERS.findall(word) if part[0].isupper() and translated]
        return all(
            has_name(target, part.lower()) or (before not in TITLES and part in translated)
            for part in capitalised
        )

    words = TYPED_WORD.findall(source)
    # Small letters alone, as most words are, lose nothing; to look closer takes ten times as long.
    lost = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if not (word.isalpha() and word.islower()) and not is_kept(word, before)
    ]
    units = dict.fromkeys("".join(match) for match in PRICE.findall(source))
    lost += [
        unit for unit in units if unit not in target and not re.search(UNIT_WORDS[unit], target)
    ]
    lost += (Counter(EMOJI.findall(source)) - Counter(EMOJI.findall(target))).elements()
    return tuple(lost)


def has_number_word(text: str, language: str, number: int) -> bool:
    """Whether a text in small letters has a number up to 12 as a word of its own."""
    word = SPELT_OUT[language].split()[number]
    return re.search(rf"\b(?:{INFLECTED.get(word, word + MULTIPLE)})\b", text) is not None


def has_name(text: str, name: str) -> bool:
    """Whether a text in small letters has a name: as a word, with an s, or in a compound.

    In a compound, Südkorea, only a name of five letters or more: "ann" is in "kann" too.
    """
    if name not in text:  # as most names of a line that is cut: no pattern for each of a million
        return False
    name = re.escape(name)
    if re.search(rf"\b{name}(?:['’]?s|es)?\b", text):
        return True
    return len(name) >= MIN_IN_COMPOUND and re.search(rf"\b{name}|{name}\b", text) is not None
