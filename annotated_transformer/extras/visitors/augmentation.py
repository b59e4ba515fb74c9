"""What people type, made of a corpus's pairs (section 5.1).

Careful sentences have few numbers, rare names, capitals, addresses or slips of the pen, and who
tries a translator types those first. Each rule makes of a pair another whose translation is known:
what is to be copied is replaced on both sides, what is carelessness is on the source side alone. No
rule knows a language: names, letters and words are those of the pairs.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from annotated_transformer.data.corpus import DIGITS, MIN_WORD, WORD, names_in, same_numbers
from annotated_transformer.data.parallel_text import Pair

BEFORE = re.compile(r"\b([^\W\d_]+)\.? (?=([^\W\d_]+))")  # a word, and the one after it
CHANCES = {
    "number_for_words": 0.3,
    "numbers": 0.8,
    "names": 0.4,
    "surnames": 0.5,
    "joined": 0.08,
    "marks": 0.05,
    "capitals": 0.05,
    "small_letters": 0.1,
    "initials": 0.05,
    "no_full_stop": 0.1,
    "slips": 0.06,
    "number_copies": 5.0,
}
"""How often each rule changes a pair to which it applies, by the name of its method. Of
`number_copies`, more pairs with numbers, it is how many are added for each pair with a number."""
ROUND_BOTH = (('"', '"'), ("'", "'"), ("(", ")"), ("[", "]"))
ENDS = ("com", "org", "net", "info")


def replace_word(text: str, word: str, new: str) -> str:
    r"""The text with `new` wherever `WORD` finds the word; `\b` finds no "two" in "two_dogs"."""
    return WORD.sub(lambda match: new if match[0] == word else match[0], text)


def titles_in(pairs: Iterable[Pair], names: Mapping[str, int], least: int = 3) -> list[Pair]:
    """What stands before a name in either language and is always written with a capital: Mr, Herr.

    Other words than each other, or they would be first names.
    """
    small: set[str] = set()
    counts: Counter[Pair] = Counter()
    for pair in pairs:
        small.update(word for side in pair for word in WORD.findall(side) if word[0].islower())
        before = [{name: word for word, name in BEFORE.findall(side)} for side in pair]
        counts.update(
            (word, before[1][name])
            for name, word in before[0].items()
            if name in names and name in before[1]
        )
    return sorted(
        (x, y)
        for (x, y), n in counts.items()
        if n >= least and x != y and small.isdisjoint((x.lower(), y.lower()))
    )


def word_pairs(pairs: Iterable[Pair], least: float = 0.4) -> list[Pair]:
    """Words that translate each other: each is the other's best by Dice's coefficient.

    That is 2 n(x, y) / (n(x) + n(y)), where n counts pairs with these words.
    """
    counts: Counter[tuple[int, str]] = Counter()
    both: Counter[Pair] = Counter()
    for pair in pairs:
        source, target = (set(WORD.findall(side)) for side in pair)
        counts.update((0, word) for word in source)
        counts.update((1, word) for word in target)
        both.update((x, y) for x in source for y in target)
    best: dict[tuple[int, str], tuple[float, str]] = {}
    for (x, y), n in both.items():
        if n >= 5 and (dice := 2 * n / (counts[0, x] + counts[1, y])) >= least:
            best[0, x] = max(best.get((0, x), (0.0, "")), (dice, y))
            best[1, y] = max(best.get((1, y), (0.0, "")), (dice, x))
    return sorted(
        (word, other)
        for (side, word), (_, other) in best.items()
        if side == 0 and best[1, other][1] == word and len(word) >= MIN_WORD
    )


def number_words(pairs: Iterable[Pair], words: Sequence[Pair]) -> dict[str, str]:
    """Those of `words` that are numbers: each mostly stands where the other side has one number."""
    counts: Counter[tuple[int, str]] = Counter()
    both: Counter[tuple[int, str, str]] = Counter()
    for pair in pairs:
        for side in (0, 1):
            found = DIGITS.findall(pair[side])
            if len(found) == 1 and not DIGITS.search(pair[1 - side]):
                counts[side, found[0]] += 1
                both.update((side, found[0], word) for word in set(WORD.findall(pair[1 - side])))
    best = {
        (side, word): number
        for n, (side, number, word) in sorted((n, what) for what, n in both.items())
        if n >= 3 and 2 * n > counts[side, number]
    }
    return {x: y for x, y in words if (1, x) in best and best[1, x] == best.get((0, y))}


class Augmentation:
    """The rules, with what they take from the pairs that they are for.

    `chances` are those of `CHANCES`, or others; a rule that is left out is off.
    """

    def __init__(self, pairs: Sequence[Pair], chances: Mapping[str, float] = CHANCES) -> None:
        self.pairs = pairs
        self.chances = chances
        self.known_names = names_in(pairs)
        self.list_of_names = sorted(self.known_names)
        self.number_words = number_words(pairs, word_pairs(pairs))
        self.titles = titles_in(pairs, self.known_names)
        self.capitalised = sorted(
            {word for pair in pairs for s in pair for word in WORD.findall(s)[1:] if word.istitle()}
        )
        marked = Counter(c for pair in pairs for side in pair for c in side if not c.isascii())
        self.marked: dict[str, list[str]] = defaultdict(list)
        """Letters with a mark that are frequent in the pairs, by the plain one: ä for a."""
        for letter, n in sorted(marked.items()):
            if letter.islower() and n * 1000 >= len(pairs):
                plain = unicodedata.normalize("NFD", letter).casefold()[0]
                self.marked[plain].append(letter)
        self.with_numbers = [pair for pair in pairs if same_numbers(pair)]
        self.letters: dict[str, list[str]] = defaultdict(list)
        """What follows two letters of a name; "" is its end."""
        for name in self.list_of_names:
            for i in range(len(name) + 1):
                self.letters[name[max(0, i - 2) : i]].append(name[i : i + 1])

    def epoch(self, seed: str) -> list[Pair]:
        """All pairs, some of them changed, and more; the same for the same seed."""
        self.random = random.Random(seed)
        chance = self.random.random
        chosen = list(self.pairs)
        chosen += self.with_numbers * round(self.chances.get("number_copies", 0))
        rules = [
            (rate, getattr(self, name))
            for name, rate in self.chances.items()
            if name != "number_copies"
        ]
        changed: list[Pair] = []
        for pair in chosen:
            for rate, rule in rules:
                if chance() < rate:
                    pair = rule(*pair)
            changed.append(pair)
        return changed

    def by(self, rule: str, pairs: Iterable[Pair]) -> list[Pair]:
        """The pairs that one rule changes all; the same ones every time."""
        self.random = random.Random(rule)
        return [getattr(self, rule)(*pair) for pair in pairs]

    def number_for_words(self, x: str, y: str) -> Pair:
        """A number in digits on both sides, where each has a number in words."""
        source, target = WORD.findall(x), WORD.findall(y)
        for word in sorted(self.number_words.keys() & source):
            other = self.number_words[word]
            if source.count(word) == target.count(other) == 1:
                number = self.number("", True)
                x, y = replace_word(x, word, number), replace_word(y, other, number)
        return x, y

    def numbers(self, x: str, y: str) -> Pair:
        """Other numbers on both sides; those of a time or with a comma keep their lengths."""
        if not same_numbers((x, y)):
            return x, y
        found = set(DIGITS.findall(x))
        other = {run: self.number(run, len(found) == 1) for run in sorted(found)}
        return DIGITS.sub(lambda run: other[run[0]], x), DIGITS.sub(lambda run: other[run[0]], y)

    def number(self, run: str, is_free: bool) -> str:
        """A year, any number, one of few digits, which is harder to copy, or a round one."""
        length = self.random.choice((1, 2, 2, 3, 4, 5, 6)) if is_free else len(run)
        if length == 4 and self.random.random() < 0.5:
            return str(self.random.randint(1000, 2099))
        if run.startswith("00") and self.random.random() < 0.3:
            return run  # of 5,000
        first = self.random.choice("0123456789" if run.startswith("0") else "123456789")
        two = first + self.random.choice("0123456789")
        digits = self.random.choice((*["0123456789"] * 3, two, two, "0"))
        return first + "".join(self.random.choices(digits, k=length - 1))

    def name(self) -> str:
        """A new name, of letters that follow each other in names."""
        name = ""
        while letter := self.random.choice(self.letters[name[-2:]]):
            name += letter
        name = name[:12]
        i = self.random.randrange(len(name))
        if self.random.random() < 0.25 and (marked := self.marked.get(name[i])):
            name = name[:i] + self.random.choice(marked) + name[i + 1 :]
        return name

    def rare(self) -> str:
        """What is to be copied: a name or two, an acronym, a code, an address."""
        kind = self.random.random()
        name = self.name()
        if kind < 0.52:
            return name
        if kind < 0.6:
            return f"{name} {self.name()}"
        if kind < 0.68:
            return self.random.choice(self.list_of_names)
        other = self.name().lower()
        end = self.random.choice(ENDS)
        if kind < 0.77:
            return "".join(self.random.choices(other.upper(), k=self.random.randint(2, 5)))
        if kind < 0.81:
            return f"{name[: self.random.randint(1, 4)]}{self.random.randint(1, 999)}"
        if kind < 0.92:
            joint = self.random.choice((".", "_", "-", str(self.random.randint(1, 99)), ""))
            return f"{name.lower()}{joint}{self.random.choice(other)}@{other}.{end}"
        start = self.random.choice(("www.", "https://", "http://www.", "", "https://www."))
        return f"{start}{other}.{end}{self.random.choice(('', '', '/' + name.lower()))}"

    def names(self, x: str, y: str) -> Pair:
        """Other names, or whatever else is copied, on both sides.

        Names are those that stand as often on one side as on the other.
        """
        source, target = WORD.findall(x), WORD.findall(y)
        for name in sorted(self.known_names.keys() & source):
            if source.count(name) == target.count(name):
                other = self.rare()
                x, y = (replace_word(side, name, other) for side in (x, y))
        return x, y

    def surnames(self, x: str, y: str) -> Pair:
        """After a title, any word with a capital: a name may be a word that has a translation."""
        names = [dict(BEFORE.findall(side)) for side in (x, y)]
        for title, other in self.titles:
            name = names[0].get(title, "")
            if name[:1].isupper() and name == names[1].get(other):
                new = self.random.choice(self.capitalised)
                x, y = (replace_word(side, name, new) for side in (x, y))
        return x, y

    def joined(self, x: str, y: str) -> Pair:
        """A second sentence after the first, or one of them as speech."""
        u, v = self.random.choice(self.pairs)
        form = self.random.random()
        mark = self.random.choice('""\'')
        if form < 0.2:
            return f"{mark}{x}{mark} {u}", f'"{y}" {v}'
        if form < 0.4 and u.endswith(".") and v.endswith("."):
            return f"{u[:-1]}: {mark}{x}{mark}", f'{v[:-1]}: "{y}"'
        return f"{x} {u}", f"{y} {v}"

    def marks(self, x: str, y: str) -> Pair:
        """Quotation marks or brackets round both sides, an emoji behind both, or more marks."""
        form = self.random.random()
        if form < 0.5:
            left, right = self.random.choice(ROUND_BOTH)
            round_target = f'"{y}"' if left == "'" else f"{left}{y}{right}"
            return f"{left}{x}{right}", round_target
        if form < 0.8:
            emoji = chr(self.random.randint(0x1F600, 0x1F64F)) * self.random.choice((1, 1, 3))
            return f"{x} {emoji}", f"{y} {emoji}"
        return x + self.random.choice(("!", "!!", "?!", "..", " ")), y

    def capitals(self, x: str, y: str) -> Pair:
        """A word or two of the source in capitals."""
        words = WORD.findall(x) or [""]
        chosen = {word for word in self.random.choices(words, k=2) if len(word) > 1}
        return WORD.sub(lambda word: word[0].upper() if word[0] in chosen else word[0], x), y

    def small_letters(self, x: str, y: str) -> Pair:
        """The first letter of the source small, or all letters, or all others."""
        start, rest = x[:1], x[1:]
        forms = start.lower() + rest, x.lower(), start.upper() + rest.lower()
        return self.random.choice(forms), y

    def initials(self, x: str, y: str) -> Pair:
        """A word of the source with a capital at its beginning, or all of them as in a title."""
        words = WORD.findall(x) or [""]
        chosen = set(words) if self.random.random() < 0.5 else {self.random.choice(words)}
        return WORD.sub(lambda w: w[0][0].upper() + w[0][1:] if w[0] in chosen else w[0], x), y

    def no_full_stop(self, x: str, y: str) -> Pair:
        """The source without the mark at its end, or with a space before it."""
        kept = x.rstrip(".!?")
        return f"{kept} {x[len(kept) :]}" if self.random.random() < 0.1 else kept or x, y

    def slips(self, x: str, y: str) -> Pair:
        """A word of the source with two letters swapped, one doubled, another, or one left out.

        Or the source without its apostrophes.
        """
        copied = set(WORD.findall(y))
        words = [
            word for word in WORD.finditer(x) if len(word[0]) >= MIN_WORD and word[0] not in copied
        ]
        if "'" in x and self.random.random() < 0.5 or not words:
            return x.replace("'", ""), y
        word = self.random.choice(words)
        letters = list(word[0])
        i = self.random.randrange(len(letters) - 1)
        form = self.random.randrange(4)
        if form == 0:
            letters[i : i + 2] = letters[i + 1], letters[i]
        elif form == 1:
            letters[i] *= 2
        elif form == 2:
            letters[i + 1] = ""
        else:
            letters[i] = self.random.choice(word[0].lower())
        return x[: word.start()] + "".join(letters) + x[word.end() :], y
