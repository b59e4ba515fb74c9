"""What to doubt in a translation: that it is improbable, and what of the source it has lost.

`page/files/doubt.js` says the same of what it shows.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from annotated_transformer.errors import require

SPELT_OUT = {
    "en": "zero one two three four five six seven eight nine ten eleven twelve",
    "de": "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf",
}
"""The numbers that people write as words, by target language."""
CAPITAL_NOUNS = ("de",)
"""Source languages in which a capital letter within a sentence makes no name."""
WORD = re.compile(r"\w+(?:[.:,@/+-]+\w+)*")
THOUSANDS = re.compile(r"(?<=[0-9])[.,](?=[0-9]{3}(?![0-9]))")
SENTENCE_END = re.compile(r"(?:^|[.!?:…])[^\w,;-]*$")


class Doubt(NamedTuple):
    """What a checkpoint's config.json says of it: when it is unsure, and its two languages.

    A translation is unsure below a mean probability of `unsure_below`, or never where nobody has
    calibrated it; `benchmarks/unsure.py` does.
    """

    unsure_below: float = 0.0
    languages: tuple[str, str] = "", ""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Doubt:
        """Raises ConfigError for an `unsure_below` that is no probability."""
        doubt = config.get("doubt", {})
        unsure_below = doubt.get("unsure_below", 0.0) if isinstance(doubt, dict) else doubt
        is_probability = isinstance(unsure_below, int | float) and 0 <= unsure_below <= 1
        require(is_probability, f"unsure_below must be between 0 and 1, got {unsure_below!r}")
        found = re.search(r"-([a-z]{2})-([a-z]{2})(?![a-z])", str(config.get("corpus", "")))
        return cls(unsure_below, (found[1], found[2]) if found else ("", ""))


NO_DOUBT = Doubt()


def mean_probability(log_p: float, n_tokens: int) -> float:
    """exp(log P / n): the geometric mean of the probabilities of n tokens, the end counted."""
    return math.exp(log_p / n_tokens)


def written_alike(words: Iterable[str]) -> list[str]:
    """Those that every language writes alike: numbers, addresses, and what has a capital within.

    >>> written_alike(("Turkey", "7:45", "CPU"))
    ['7:45', 'CPU']
    """
    return [one for one in words if re.search("[0-9@.]", one) or one[1:] != one[1:].lower()]


def lost_words(
    source: str, translation: str, languages: tuple[str, str], n_pieces: Callable[[str], int]
) -> tuple[str, ...]:
    """Numbers, addresses and names of the source that are not in the translation, in their order.

    A number is lost when one of its groups of digits is; one up to 12, which may be written as a
    word, counts as kept where the target language's words are unknown. A name begins with a capital
    letter and has three letters and three pieces or more; at the beginning of a sentence, where
    every word has a capital, four pieces, in small letters too. Where a word of the translation
    begins with its first three letters, it is kept (Lisbon, Lissabon).

    >>> lost_words("I met Priya at 7:45.", "Ich traf Pyriya um 75.", ("en", "de"), len)
    ('Priya', '7:45')
    """
    source, said = (THOUSANDS.sub("", text) for text in (source, translation.lower()))
    digits = Counter(re.findall(r"[0-9]+", said))
    starts = {word[:3] for word in re.findall(r"\w+", said)}
    in_words = SPELT_OUT.get(languages[1], "").split()
    has_names = languages[0] not in ("", *CAPITAL_NOUNS) and source != source.upper()

    def keeps(number: str) -> bool:
        digits[number] -= 1
        if digits[number] >= 0:
            return True
        small = number in map(str, range(13))
        return small and (not in_words or in_words[int(number)] in said)

    def is_kept(word: str, start: int) -> bool:
        if "@" in word or re.search(r"[^\W0-9]\.\w{2,}", word):
            return word.lower() in said
        if numbers := re.findall(r"[0-9]+", word):
            return False not in [keeps(number) for number in numbers]
        is_name = has_names and len(word) > 2 and word[0].isupper()
        if not is_name or word[:3].lower() in starts:
            return True
        begins = bool(SENTENCE_END.search(source[:start]))
        spellings = (word.lower(), word) if begins else (word,)
        return any(n_pieces(one) < 3 + begins for one in spellings)

    # Small letters alone, as most words are, lose nothing; to look closer takes ten times as long.
    closer = (one for one in WORD.finditer(source) if not (one[0].isalpha() and one[0].islower()))
    return tuple(one[0] for one in closer if not is_kept(one[0], one.start()))
