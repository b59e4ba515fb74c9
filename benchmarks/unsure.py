"""When a translation is unsure, calibrated: config.json and book/results/unsure.json.

    python benchmarks/unsure.py                                 book/model, its validation split
    python benchmarks/unsure.py --small --out /tmp/unsure.json  a few sentences; config.json stays

It writes the entry `doubt` of the checkpoint's config.json, which `Translator` and the page read:
run it again when a model was trained again. Beside the threshold it has what a page knows its
languages by: the commonest words of each that the other does not have among its thousand, and the
number of words that one sentence in 1,000 of the training split exceeds; and the words
that are no names, since training translates them.

Sentences of the validation split are translated as they are and as visitors type them, by rules
with a seed: in capitals; in small letters without a full stop; with two letters swapped; with a
number in place of a number word, and with a made-up name in place of a name, on both sides. A
translation is wrong if it has lost a number or name that both sides have, if a word of it comes
more than four times, or if its chrF is below 30; it is right if none of this is so and its chrF is
60 or more; between the two it is not counted. The threshold is the largest (in hundredths) below
which lie at most 3 % of the right ones of every second sentence; all figures are of the others.
Last come 300 sentences written as visitors type them, benchmarks/typed.jsonl, whose translations
were read and judged: they are translated again, and must be those that were judged.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from annotated_transformer.checkpoint.directory import read_config
from annotated_transformer.data import corpus
from annotated_transformer.decoding.translator import Translation, Translator
from annotated_transformer.errors import require, say
from annotated_transformer.extras.visitors.doubt import (
    SPELT_OUT,
    Doubt,
    lost_words,
    translated_words,
)
from annotated_transformer.files import write_text
from benchmarks.timing import ROOT, as_text, out_path, write
from tools.arguments import parser_of, run_main

WRONG, RIGHT = 30, 60  # chrF: below the first wrong, from the second on right
JUDGED = ROOT / "benchmarks" / "typed.jsonl"
MARKED = 0.03  # of the right ones, at most, below the threshold
Pair = tuple[str, str]


def commonest(pairs: Sequence[Pair], n: int = 100, of: int = 1000) -> list[str]:
    """For each side its n commonest words that are not among the `of` commonest of the other."""
    sides = zip(*pairs, strict=True)
    words = [
        Counter(word for text in side for word in re.findall(r"[^\W\d_]+", text.lower()))
        for side in sides
    ]
    top = [[word for word, _ in one.most_common(of)] for one in words]
    return [
        " ".join([word for word in own if word not in other][:n]) for own, other in (top, top[::-1])
    ]


class Judged(NamedTuple):
    kind: str
    held_out: bool
    faults: list[str]
    right: bool | None
    found: Translation


def swapped(generator: random.Random, pair: Pair) -> Pair | None:
    """Two letters of a word of the source change places."""
    long = list(re.finditer(r"[^\W\d]{4,}", pair[0]))
    if not long:
        return None
    word = generator.choice(long)
    i = generator.randrange(word.start() + 1, word.end() - 2)
    text = pair[0]
    return text[:i] + text[i + 1] + text[i] + text[i + 2 :], pair[1]


def replaced(pair: Pair, one: str, other: str, new: str) -> Pair | None:
    """Both sides with `new` where each has its word once."""
    found = [
        re.subn(rf"\b{re.escape(word)}\b", new, side)
        for side, word in zip(pair, (one, other), strict=True)
    ]
    return (found[0][0], found[1][0]) if [n for _, n in found] == [1, 1] else None


def with_number(generator: random.Random, pair: Pair, languages: Pair) -> Pair | None:
    """A number of two to four digits in place of a number word from two to twelve."""
    words = zip(*(SPELT_OUT.get(language, "").split()[2:] for language in languages), strict=True)
    new = str(generator.randrange(13, 10 ** generator.randint(2, 4)))
    return next((done for one, other in words if (done := replaced(pair, one, other, new))), None)


def with_name(generator: random.Random, pair: Pair) -> Pair | None:
    """A name of syllables that make no word in place of one that both sides have."""
    sounds = [generator.choice("BDFGKLMNPRSTVW") + generator.choice("aeiou")]
    sounds += [generator.choice("bdfgklmnprstvwyz") + generator.choice("aeiou") for _ in range(2)]
    new = "".join(sounds)[: generator.randint(5, 6)]
    first = [re.findall(r"\b[A-Z][a-z]+\b", side) for side in pair]
    names = [name for name in first[0] if name in first[1]]
    return replaced(pair, names[0], names[0], new) if names else None


def as_visitors_type(pairs: Sequence[Pair], languages: Pair) -> list[tuple[str, int, Pair]]:
    """(kind, number of the pair, pair) for every rule that can be applied to it."""
    generator = random.Random(0)
    rules: dict[str, Callable[[Pair], Pair | None]] = {
        "as it is": lambda pair: pair,
        "capitals": lambda pair: (pair[0].upper(), pair[1]),
        "small letters": lambda pair: (pair[0].lower().rstrip("."), pair[1]),
        "swapped letters": lambda pair: swapped(generator, pair),
        "number": lambda pair: with_number(generator, pair, languages),
        "name": lambda pair: with_name(generator, pair),
    }
    return [
        (kind, i, done)
        for i, pair in enumerate(pairs)
        for kind, rule in rules.items()
        # one in three has each of the frequent kinds, so that those of numbers count
        if kind in ("number", "name") or generator.randrange(3) == 0
        if (done := rule(pair))
    ]


def faults_of(pair: Pair, translation: str) -> list[str]:
    """What is wrong in it without a doubt: numbers and names of both sides lost, a loop."""
    words = [set(re.findall(r"\w+", text)) for text in (*pair, translation.casefold())]
    shared = {word for word in words[0] & words[1] if word.casefold() not in words[2]}
    numbers = [word for word in shared if word.isdigit() and int(word) > 12]
    names = [word for word in shared if word[0].isupper() and not word.isupper()]
    repeated = Counter(translation.casefold().split()).most_common(1)
    loops = [word for word, n in repeated if n > 4]
    return ["number"] * bool(numbers) + ["name"] * bool(names) + ["loop"] * bool(loops)


def is_right(faults: list[str], pair: Pair, translation: str) -> bool | None:
    """None where one cannot say; small and capital letters count as the same."""
    from sacrebleu.metrics.chrf import CHRF

    chrf = CHRF().sentence_score(translation.casefold(), [pair[1].casefold()]).score
    return False if faults or chrf < WRONG else True if chrf >= RIGHT else None


def area(wrong: Sequence[float], right: Sequence[float]) -> float | None:
    """How often, of one wrong and one right translation, the wrong one has the lower value.

    None where there are none of either.
    """
    ranks = [(one < other) + (one == other) / 2 for one in wrong for other in right]
    return round(sum(ranks) / len(ranks), 3) if ranks else None


def share(values: Sequence[float], threshold: float) -> float:
    return sum(value < threshold for value in values) / max(1, len(values))


def threshold_of(right: Sequence[float]) -> float:
    """The largest, in hundredths, below which lie at most `MARKED` of the right ones."""
    return max((t / 100 for t in range(100) if share(right, t / 100) <= MARKED), default=0.0)


def figures(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """The threshold from one half, and what the other half says of it, by fault and by kind."""

    def values(right: bool, held_out: bool = True, kind: str = "") -> list[float]:
        chosen = [one for one in judged if one.right is right and one.held_out == held_out]
        return [one.found.mean_p for one in chosen if kind in ("", one.kind)]

    threshold = threshold_of(values(right=True, held_out=False))
    held = [one for one in judged if one.held_out]
    right, wrong = values(right=True), values(right=False)
    marked = [sum(p < threshold for p in one) for one in (right, wrong)]
    whole = {
        "figure": "unsure",
        "unsure_below": threshold,
        "right": len(right),
        "wrong": len(wrong),
        "not counted": len(held) - len(right) - len(wrong),
        "area under the curve": area(wrong, right),
        "of right ones, unsure": round(share(right, threshold), 3),
        "of wrong ones, unsure": round(share(wrong, threshold), 3),
        "precision of unsure": round(marked[1] / max(1, sum(marked)), 3),
    }
    records: list[dict[str, Any]] = [whole]
    for fault in ("number", "name", "loop"):
        with_it = [one.found for one in held if fault in one.faults]
        of_fault = [one.mean_p for one in with_it]
        records.append(
            {
                "figure": f"{fault} wrong",
                "translations": len(with_it),
                "area under the curve": area(of_fault, right),
                "unsure": round(share(of_fault, threshold), 3),
                "a word is named as lost": sum(bool(one.lost) for one in with_it),
            }
        )
    for kind in dict.fromkeys(one.kind for one in held):
        sides = values(right=False, kind=kind), values(right=True, kind=kind)
        records.append(
            {
                "figure": f"kind: {kind}",
                "right": len(sides[1]),
                "wrong": len(sides[0]),
                "area under the curve": area(*sides),
            }
        )
    return records


def of_judged(translator: Translator, threshold: float) -> dict[str, Any]:
    """What the probability alone says of the translations that were judged by reading them.

    Raises ConfigError where they are no longer those that were judged.
    """
    lines = [json.loads(line) for line in JUDGED.read_text(encoding="utf-8").splitlines()]
    best = [found[0] for found in translator.n_best([line["source"] for line in lines], n_best=1)]
    others = sum(one.text != line["translation"] for one, line in zip(best, lines, strict=True))
    require(not others, f"{others} translations of {JUDGED.name} are others than were judged")
    right, wrong = (
        [one.mean_p for one, line in zip(best, lines, strict=True) if line["right"] is said]
        for said in (True, False)
    )
    return {
        "figure": "judged by reading",
        "right": len(right),
        "wrong": len(wrong),
        "area under the curve": area(wrong, right),
        "of right ones, unsure": round(share(right, threshold), 3),
        "of wrong ones, unsure": round(share(wrong, threshold), 3),
    }


def known_from(name: str) -> dict[str, Any]:
    """What the training split of a corpus tells: `longest`, `words` and `translated`."""
    learned = corpus.load(name, "train")
    lengths = sorted(len(source.split()) for source, _ in learned)
    return {
        "longest": lengths[int(0.999 * len(lengths))],
        "words": commonest(learned),
        "translated": " ".join(translated_words(learned)),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Calibrate, print and write."""
    parser = parser_of(__doc__, small=True, out=True)
    parser.add_argument("directory", nargs="?", default=str(ROOT / "book" / "model"))
    args = parser.parse_args(arguments)
    config = read_config(args.directory)
    is_known = bool(Doubt.of(config).languages[0])
    require(is_known, f"{args.directory} names no corpus of two languages")
    pairs = corpus.load(config["corpus"], "valid")[: 40 if args.small else None]
    doubt = config.get("doubt", {}) if args.small else known_from(config["corpus"])
    translator = Translator.from_checkpoint(args.directory)
    _, languages, translated = translator.doubt = Doubt.of({**config, "doubt": doubt})
    cases = as_visitors_type(pairs, languages)
    say(f"{len(cases)} sentences are translated")
    found = translator.n_best([source for _, _, (source, _) in cases], n_best=1)
    judged = []
    for (kind, i, pair), (best, *_) in zip(cases, found, strict=True):
        faults = faults_of(pair, best.text)
        right = is_right(faults, pair, best.text)
        judged.append(Judged(kind, i % 2 == 1, faults, right, best))
    records = figures(judged)
    false_alarms = [bool(lost_words(*pair, languages[1], translated)) for pair in pairs]
    references = {"of": len(pairs), "with a word named as lost": sum(false_alarms)}
    records.append({"figure": "references", **references})
    if not args.small:
        records.append(of_judged(translator, records[0]["unsure_below"]))
    print(*map(as_text, records), sep="\n")
    if not args.small:
        doubt = {"unsure_below": records[0]["unsure_below"], **doubt}
        settings = json.dumps({**config, "doubt": doubt}, indent=2, ensure_ascii=False) + "\n"
        write_text(Path(args.directory) / "config.json", settings)
    write(out_path(args, "unsure"), "unsure", arguments, records)


if __name__ == "__main__":
    run_main(main)
