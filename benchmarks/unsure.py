"""When a translation is unsure, calibrated: config.json and book/results/unsure.json.

    python benchmarks/unsure.py                                 book/model
    python benchmarks/unsure.py --renew                         translate its typed lines anew
    python benchmarks/unsure.py --small --out /tmp/unsure.json  a few lines; config.json stays

It writes the entry `doubt` of the checkpoint's config.json, which `for_visitors` and the page read.
Beside the two thresholds it has what a page knows its languages by: the commonest words of each,
and the number of words that one sentence in 1,000 of the training split exceeds; and the words that
are no names, since training translates them.

benchmarks/typed.jsonl has lines as visitors type them, in both directions ("back": German), with
the translation of the model and whether a reader judged it right, who did not see its probability.
When a model was trained again, --renew puts its translations there, and null for the judgement
where a translation has changed: these are to be read. Every second line of each direction fits the
thresholds, and all figures are of the others: below `unsure_below` lie at most 3% of the right
translations, below `perhaps_below` 10%. No threshold catches an idiom that is translated word by
word, or a rare sense that is taken for the common one: there the model is sure.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from annotated_transformer.checkpoint.directory import corpus_languages, read_config
from annotated_transformer.data import corpus
from annotated_transformer.data.corpus import names_in
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import require, say
from annotated_transformer.extras.visitors.doubt import Doubt, translated_words
from annotated_transformer.extras.visitors.typed_lines import (
    TypedLines,
    TypedTranslation,
    for_visitors,
)
from annotated_transformer.files import write_text
from benchmarks import own_text
from benchmarks.timing import ROOT, as_text, out_path, write
from tools.arguments import parser_of, run_main

TYPED = ROOT / "benchmarks" / "typed.jsonl"
MARKED = {"unsure": 0.03, "perhaps": 0.10}
"""Of the right translations, how many may lie below each threshold."""
Pair = tuple[str, str]
Line = dict[str, Any]


def commonest(pairs: Sequence[Pair], n: int = 100, of: int = 1000) -> list[str]:
    """For each side its `n` commonest words that are not among the `of` commonest of the other.

    Words that both languages have (*in*, *was*) follow in both lists if they are among the `n`
    commonest of either; names do not.
    """
    sides = zip(*pairs, strict=True)
    words = [
        Counter(word for text in side for word in re.findall(r"[^\W\d_]+", text.lower()))
        for side in sides
    ]
    ranked = [[word for word, _ in count.most_common(of)] for count in words]
    names = {name.lower() for name in names_in(pairs)}
    shared = [
        word
        for word in dict.fromkeys((*ranked[0][:n], *ranked[1][:n]))
        if word in ranked[0] and word in ranked[1] and word not in names
    ]
    return [
        " ".join([word for word in own if word not in other][:n] + shared)
        for own, other in (ranked, ranked[::-1])
    ]


def area(wrong: Sequence[float], right: Sequence[float]) -> float | None:
    """How often, of one wrong and one right translation, the wrong one has the lower value.

    None where there are none of either.
    """
    ranks = [(low < high) + (low == high) / 2 for low in wrong for high in right]
    return round(sum(ranks) / len(ranks), 3) if ranks else None


def share(values: Sequence[float], threshold: float) -> float:
    return round(sum(value < threshold for value in values) / max(1, len(values)), 3)


def threshold_of(right: Sequence[float], marked: float) -> float:
    """The largest, in hundredths, below which lie at most a share `marked` of the right ones."""
    return max((t / 100 for t in range(100) if share(right, t / 100) <= marked), default=0.0)


def read_lines(path: Path = TYPED) -> list[Line]:
    lines: list[Line] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return lines


def translations(translator: TypedLines, lines: Sequence[Line]) -> list[TypedTranslation]:
    """The translation of each line, in the direction in which it was typed."""
    best: list[TypedTranslation | None] = [None] * len(lines)
    for back in (False, True):
        places = [i for i, line in enumerate(lines) if line.get("back", False) is back]
        found = translator.n_best([lines[i]["source"] for i in places], n_best=1, back=back)
        for i, ranked in zip(places, found, strict=True):
            best[i] = ranked[0]
    return [translation for translation in best if translation is not None]


def renew(translator: TypedLines, path: Path = TYPED) -> int:
    """Put the model's translations into the file; how many have changed, and are to be judged."""
    lines = read_lines(path)
    n_changed = 0
    for line, best in zip(lines, translations(translator, lines), strict=True):
        if best.text != line.get("translation"):
            line |= {"translation": best.text, "right": None}
            n_changed += 1
    write_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return n_changed


def figures(lines: Sequence[Line], best: Sequence[TypedTranslation]) -> list[dict[str, Any]]:
    """The thresholds from one half of the lines, and what they mark in the other half."""
    fitted: dict[bool, list[float]] = {True: [], False: []}
    held_out: list[tuple[Line, TypedTranslation]] = []
    seen: Counter[bool] = Counter()
    for line, translation in zip(lines, best, strict=True):
        back = line.get("back", False)
        if seen[back] % 2 == 0:
            fitted[line["right"]].append(translation.mean_p)
        else:
            held_out.append((line, translation))
        seen[back] += 1
    thresholds = {f"{name}_below": threshold_of(fitted[True], m) for name, m in MARKED.items()}

    def row(figure: str, chosen: Sequence[tuple[Line, TypedTranslation]]) -> dict[str, Any]:
        right, wrong = (
            [one.mean_p for line, one in chosen if line["right"] is judgement]
            for judgement in (True, False)
        )
        marks: dict[str, Any] = {}
        for name in MARKED:
            threshold = thresholds[f"{name}_below"]
            marks[f"of right ones, {name}"] = share(right, threshold)
            marks[f"of wrong ones, {name}"] = share(wrong, threshold)
        lost = {
            f"{name} ones with a lost word": sum(
                bool(one.lost) for line, one in chosen if line["right"] is judgement
            )
            for name, judgement in (("right", True), ("wrong", False))
        }
        counts = {"right": len(right), "wrong": len(wrong)}
        return (
            {"figure": figure, **counts, "area under the curve": area(wrong, right)} | marks | lost
        )

    directions = {"from English": False, "from German": True}
    rows = [row("unsure", held_out) | thresholds]
    for name, back in directions.items():
        rows.append(row(name, [pair for pair in held_out if pair[0].get("back", False) is back]))
    return rows


def known_from(name: str) -> dict[str, Any]:
    """`longest`, `words` and `translated` of the training split of a corpus and of `own_pairs`."""
    languages = corpus_languages({"corpus": name})
    learned = corpus.load(name, "train")
    pairs = [*learned, *own_text.pairs("train"), *own_text.pairs("names")]
    turned = [(target, source) for source, target in pairs]
    lengths = sorted(len(source.split()) for source, _ in learned)
    return {
        "longest": lengths[int(0.999 * len(lengths))],
        "words": commonest(learned),
        "translated": [
            " ".join(translated_words(direction, language=language))
            for direction, language in zip((pairs, turned), languages, strict=True)
        ],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Calibrate, print and write."""
    parser = parser_of(__doc__, small=True, out=True)
    parser.add_argument("directory", nargs="?", default=str(ROOT / "book" / "model"))
    parser.add_argument("--renew", action="store_true", help="only translate the lines anew")
    args = parser.parse_args(arguments)
    config = read_config(args.directory)
    is_known = bool(Doubt.of(config).languages[0])
    require(is_known, f"{args.directory} names no corpus of two languages")
    doubt = config.get("doubt", {}) if args.small else known_from(config["corpus"])
    rules = Doubt.of({**config, "doubt": doubt})
    translator = for_visitors(Translator.from_checkpoint(args.directory), rules)
    if args.renew:
        say(f"{renew(translator)} translations have changed: judge those whose right is null")
        return
    lines = read_lines()
    if args.small:
        lines = lines[:20]
    best = translations(translator, lines)
    others = sum(one.text != line["translation"] for one, line in zip(best, lines, strict=True))
    judged = all(isinstance(line["right"], bool) for line in lines)
    require(args.small or not others, f"{others} translations of {TYPED.name} are new: --renew")
    require(judged, f"{TYPED.name} has lines that nobody has judged: set right to true or false")
    records = figures(lines, best)
    print(*map(as_text, records), sep="\n")
    if not args.small:
        thresholds = {f"{name}_below": records[0][f"{name}_below"] for name in MARKED}
        settings = json.dumps({**config, "doubt": thresholds | doubt}, indent=2, ensure_ascii=False)
        write_text(Path(args.directory) / "config.json", settings + "\n")
    write(out_path(args, "unsure"), "unsure", arguments, records)


if __name__ == "__main__":
    run_main(main)
