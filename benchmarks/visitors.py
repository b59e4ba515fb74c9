"""What a model makes of the sentences that people type first: numbers, names, capitals.

    python benchmarks/visitors.py book/model
    python benchmarks/visitors.py book/model --sentences visitors.jsonl    a file of cases, too
    python benchmarks/visitors.py book/model --json                        one JSON object
    python benchmarks/visitors.py book/model --model-alone                 without the page's rules

A row each: BLEU and brevity penalty on the test split, in both directions where the model has
learned both; the same in capitals; numbers, and names from either language, of the pairs that
`corpus.set_aside` kept out of training. With --model-alone the search is the paper's; without it,
lines are read, and searched again where a number or a name is lost, as the page does. A number is
right where it stands in the translation, in digits or as a German word. A case is {"kind",
"source", "must", "must_not"}, with regular expressions that a right translation must hold, and must
not.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from sacrebleu.metrics.bleu import BLEU

from annotated_transformer.data import corpus
from annotated_transformer.data.corpus import DIGITS, WORD
from annotated_transformer.data.parallel_text import Pair
from annotated_transformer.data.tokenizer import BACK
from annotated_transformer.decoding import evaluation
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.extras.visitors.augmentation import Augmentation
from annotated_transformer.extras.visitors.typed_lines import for_visitors
from tools.arguments import parser_of, run_main

PARTS = "tatoeba-large-en-de", "tatoeba-en-de"
"""What tatoeba-all-en-de is made of."""
Translate = Callable[[list[str]], list[str]]
ONES = [
    "null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf",
    "zwölf", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn",
]  # fmt: skip
TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
GROUPED = re.compile(r"(?<=\d)[.,\s](?=\d{3}\b)")  # 3,500 and 3.500 are 3500


def in_german(n: int) -> str:
    """A number below a million as a German word, the "ein" at its end without its ending."""
    if n < 20:
        return ONES[n]
    if n < 100:
        ten = TENS[n // 10 - 2]
        return f"{ONES[n % 10]}und{ten}" if n % 10 else ten
    size, word = (100, "hundert") if n < 1000 else (1000, "tausend")
    many = "" if n // size == 1 else in_german(n // size)
    return many + word + (in_german(n % size) if n % size else "")


def has_numbers(source: str, translation: str) -> bool:
    """Whether every number of the source is in the translation, half an hour as "halb" included."""
    source, translation = (GROUPED.sub("", text) for text in (source, translation.lower()))
    left = Counter(DIGITS.findall(translation))
    for number in DIGITS.findall(source):
        words = [in_german(int(number))] if len(number) <= 6 else []
        words += ["halb"] if number == "30" else []
        words += [in_german(int(number) % 12 + 1)] if f"{number}:30" in source else []
        if left[number]:
            left[number] -= 1
        elif not any(word in translation for word in words):
            return False
    return True


def names_of(pair: Pair, known: set[str]) -> list[str]:
    """What both sides share, begins with a capital, and training does not know."""
    source, target = (set(WORD.findall(side)) for side in pair)
    return sorted(word for word in source & target if word[0].isupper() and word not in known)


def substituted(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs with other numbers on both sides, the same ones every time."""
    return Augmentation(pairs).by("numbers", pairs)


def bleu_rows(translate: Translate, pairs: Sequence[Pair], label: str) -> dict[str, Any]:
    sources, references = map(list, zip(*pairs, strict=True))
    outputs = translate(sources)
    shouted = translate([source.upper() for source in sources])
    small = BLEU(lowercase=True)
    mixed, capitals = (small.corpus_score(some, [references]).score for some in (outputs, shouted))
    return {
        f"{label}: BLEU": evaluation.bleu(outputs, references).score,
        f"{label}: brevity penalty": evaluation.brevity_penalty(outputs, references),
        f"{label}: BLEU in capitals, case ignored, as a share": capitals / mixed,
    }


def share(right: Sequence[bool]) -> str:
    return f"{sum(right)} of {len(right)} ({sum(right) / len(right):.1%})"


def copying_rows(
    translate: Translate, kept: dict[str, list[Pair]], back: Translate | None = None
) -> dict[str, Any]:
    """Numbers and names of the pairs that were set aside; names from German with `back`."""
    rows: dict[str, Any] = {}
    known = {word for pair in kept["train"] for side in pair for word in WORD.findall(side)}
    for label, pairs in (
        ("numbers, natural", kept["numbers"]),
        ("numbers, substituted", substituted(kept["to_substitute"])),
    ):
        sources = [source for source, _ in pairs]
        rows[label] = share(list(map(has_numbers, sources, translate(sources))))
    for label, search, side in (("English", translate, 0), ("German", back, 1)):
        if search:
            outputs = search([pair[side] for pair in kept["names"]])
            rows[f"names that training never saw, from {label}"] = share(
                [
                    all(name in output for name in names_of(pair, known))
                    for pair, output in zip(kept["names"], outputs, strict=True)
                ]
            )
    return rows


def case_rows(translate: Translate, path: Path) -> dict[str, Any]:
    """How many of a file's cases come out right, by kind; the wrong ones on standard error."""
    cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    right: dict[str, list[bool]] = {}
    for case, output in zip(cases, translate([case["source"] for case in cases]), strict=True):
        words = output.split()
        good = all(re.search(rule, output, re.I) for rule in case["must"])
        good &= not any(re.search(rule, output, re.I) for rule in case["must_not"])
        good &= not any(words.count(word) > 4 for word in words)
        right.setdefault(case["kind"], []).append(good)
        if not good:
            print(f"  {case['kind']}: {case['source']!r} -> {output!r}", file=sys.stderr)
    return {
        **{f"{path.name}, {kind}": share(some) for kind, some in right.items()},
        path.name: share(sum(right.values(), [])),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--sentences", type=Path, help="cases, one JSON object a line")
    parser.add_argument("--model-alone", action="store_true", help="without the page's rules")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    translator = Translator.from_checkpoint(args.model)
    rules = (lambda plain: plain) if args.model_alone else for_visitors
    translate: Translate = rules(translator).translate
    test = corpus.load("tatoeba-en-de", "test", args.data_dir)
    rows = bleu_rows(translate, test, "English to German")
    backwards = [(target, source) for source, target in test]
    turned: Translate | None = None
    if BACK in translator.tokenizer.pieces(range(translator.tokenizer.vocab_size)):
        turned = partial(rules(translator).translate, back=True)
        rows |= bleu_rows(turned, backwards, "German to English")
    parts = (corpus.load(name, "train", args.data_dir) for name in PARTS)
    kept_aside = corpus.set_aside(list(dict.fromkeys(chain.from_iterable(parts))))
    rows |= copying_rows(translate, kept_aside, turned)
    if args.sentences:
        rows |= case_rows(translate, args.sentences)
    if args.json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    for label, value in rows.items():
        print(f"{label:62} {value if isinstance(value, str) else format(value, '.3f')}")


if __name__ == "__main__":
    run_main(main)
