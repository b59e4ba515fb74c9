"""The work of `new`: plan, train, average, score, report, page. A step that is done is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from annotated_transformer.checkpoint.averaging import average_checkpoints
from annotated_transformer.checkpoint.directory import state_files
from annotated_transformer.data.parallel_text import Pair, pairs_sha256, split_by_group
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding import evaluation
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import ConfigError, require, say
from annotated_transformer.extras.from_pairs.columns import read_pairs
from annotated_transformer.extras.from_pairs.report import report_page
from annotated_transformer.files import read_json, write_text
from annotated_transformer.training.epochs import AugmentedPairs
from annotated_transformer.training.log import read_log
from annotated_transformer.training.loop import train
from annotated_transformer.training.plan import (
    Plan,
    learn_vocabulary,
    n_held_out,
    plan_for,
)

TYPED = (
    "numbers",
    "names",
    "capitals",
    "small_letters",
    "no_full_stop",
    "slips",
    "marks",
    "joined",
)


class Rules(AugmentedPairs, Protocol):
    """Rules that change pairs into such as people type."""

    def by(self, rule: str, pairs: Sequence[Pair]) -> list[Pair]:
        """The pairs, each changed by one rule."""


MAX_JSON_BYTES = 2**26  # of scores.json, which has the sentences of a test split


def make(
    pairs_file: str | Path,
    out: str | Path,
    write_page: Callable[[Path, Path, str], Path],
    augmentation: Callable[[Sequence[Pair]], Rules],
    plan: Plan | None = None,
    progress: bool = True,
    half: bool = False,
) -> list[Path]:
    """Make a translator of a file of pairs: the paths of its page, its report and its model.

    `out` gets plan.json, run/ (the training run), model/ (the average of its last checkpoints, with
    scores.json), report.html and page/. A second call continues where the first was stopped. `plan`
    is `plan_for` the number of training pairs by default. `write_page(model, page, example)` writes
    the page (`extras.page`), and `augmentation` changes pairs into such as people type
    (`extras.visitors`). With `half`, every other pair is trained on in half/ as well, by the same
    plan, so that the report can say what more pairs would bring. Raises ConfigError for what
    `read_pairs` refuses, and when `out` was begun with other pairs or holds something else.
    """
    out = Path(out)
    name = Path(pairs_file).name
    pairs = read_pairs(pairs_file)
    splits = split_by_group(pairs, n_held_out(len(pairs)))
    for split, pairs_of_split in splits.items():
        message = f"{pairs_file} has no pair left for {split}: its sentences are too alike"
        require(bool(pairs_of_split), message)
    plan = _stored_plan(out, pairs_sha256(pairs), plan or plan_for(len(splits["train"])))
    scored = out / "model" / "scores.json"  # where a model's card looks for them
    if not scored.exists():
        _train_and_average(out, plan, splits, name, progress, augmentation)
        rules = augmentation(splits["train"])
        _write_json(scored, _test_scores(out / "model", rules, splits["test"]))
    scores = read_json(scored, MAX_JSON_BYTES)
    seconds = scored.stat().st_mtime - (out / "plan.json").stat().st_mtime
    fewer = out / "half" / "score.json"
    if half and not fewer.exists():
        halved = splits | {"train": splits["train"][::2]}
        _train_and_average(fewer.parent, plan, halved, name, progress, augmentation)
        sources, references = map(list, zip(*splits["test"], strict=True))
        translations = Translator.from_checkpoint(fewer.parent / "model").translate(sources)
        _write_json(fewer, evaluation.bleu(translations, references)._asdict())
    if fewer.exists():
        scores["BLEU of half"] = read_json(fewer, MAX_JSON_BYTES)["score"]
    sizes = {split: len(pairs_of_split) for split, pairs_of_split in splits.items()}
    try:
        text = report_page(name, sizes, plan.to_dict(), read_log(out / "run"), scores, seconds / 60)
    except KeyError as error:
        raise ConfigError(f"{scored} lacks {error}: remove it") from None
    write_text(out / "report.html", text)
    write_page(out / "model", out / "page", splits["test"][0][0])
    return [out / "page" / "index.html", out / "report.html", out / "model"]


def _stored_plan(out: Path, digest: str, plan: Plan) -> Plan:
    """The plan that `out` was begun with; in a new directory `plan`, which is written there."""
    path = out / "plan.json"
    if not path.exists():
        is_free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
        require(is_free, f"{out} holds something else: name another directory")
        _write_json(path, {"pairs": digest, "plan": plan.to_dict()})
    stored = read_json(path, MAX_JSON_BYTES)
    is_same = stored.get("pairs") == digest
    require(is_same, f"{out} was begun with other pairs: name another directory")
    try:
        return Plan.from_dict(stored.get("plan"))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}: remove {out} and begin again") from None


def _train_and_average(
    out: Path,
    plan: Plan,
    splits: dict[str, list[Pair]],
    name: str,
    progress: bool,
    augmentation: Callable[[Sequence[Pair]], Rules],
) -> None:
    """Train the run of a plan to its last step, or resume it, and average its checkpoints."""
    run = out / "run"
    resumes = bool(state_files(run))
    if resumes:
        say(f"going on with {run}")
        tokenizer = Tokenizer.load(run / "tokenizer.model")
    else:
        tokenizer = learn_vocabulary(splits["train"], plan.n_merges)
        say(f"{len(splits['train']):,} training pairs, {tokenizer.vocab_size:,} tokens")
    train(
        plan.model_config(tokenizer.vocab_size),
        plan.train_config(),
        tokenizer,
        splits["train"],
        splits["valid"],
        run,
        device="cuda" if torch.cuda.is_available() else "cpu",
        resume=resumes,
        progress=progress,
        corpus=name,
        augmentation=augmentation,
    )
    average_checkpoints(run, plan.average, out / "model")


def _test_scores(model: Path, rules: Rules, pairs: list[Pair]) -> dict[str, Any]:
    """Scores with their signatures, and each pair of the test split with its translation.

    And what becomes of the test split where a rule of augmentation changes it.
    """
    translator = Translator.from_checkpoint(model)
    references = [target for _, target in pairs]
    translations = translator.translate([source for source, _ in pairs])
    scores = evaluation.scores(translations, references)
    return {
        "scores": {name: score._asdict() for name, score in scores.items()},
        "parameters": sum(parameter.numel() for parameter in translator.model.parameters()),
        "vocab_size": translator.tokenizer.vocab_size,
        "translations": [(*pair, text) for pair, text in zip(pairs, translations, strict=True)],
        "as_typed": [row for rule in TYPED if (row := _as_typed(translator, rules, rule, pairs))],
    }


def _as_typed(
    translator: Translator, rules: Rules, rule: str, pairs: list[Pair]
) -> dict[str, Any] | None:
    """BLEU of the pairs that a rule changes, before and after; the two that come out worst."""
    changed = [
        (old, new) for old, new in zip(pairs, rules.by(rule, pairs), strict=True) if old != new
    ]
    if not changed:
        return None
    before, after = ([pair[0] for pair in side] for side in zip(*changed, strict=True))
    old = translator.translate(before)
    new = translator.translate(after)
    references = [y for _, (_, y) in changed]
    alike = [evaluation.chrf([x], [y]).score for x, y in zip(new, references, strict=True)]
    worst = sorted(range(len(new)), key=lambda i: alike[i])
    return {
        "rule": rule,
        "pairs": len(changed),
        "before": evaluation.bleu(old, [y for (_, y), _ in changed]).score,
        "after": evaluation.bleu(new, references).score,
        "worst": [(after[i], references[i], new[i]) for i in worst[:2]],
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
