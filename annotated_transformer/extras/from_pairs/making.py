"""The work of `new`: plan, train, average, score, report, page. A step that is done is kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import torch

from annotated_transformer.checkpoint.averaging import average_checkpoints
from annotated_transformer.checkpoint.directory import state_files
from annotated_transformer.config import count_parameters
from annotated_transformer.data.batching import TokenPair
from annotated_transformer.data.parallel_text import Pair, fold, pairs_sha256, split_by_group
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding import evaluation
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import ConfigError, require, say
from annotated_transformer.extras.from_pairs.columns import read_pairs
from annotated_transformer.extras.from_pairs.judgement import verdict
from annotated_transformer.extras.from_pairs.report import report_page
from annotated_transformer.files import read_json, require_writable, write_text
from annotated_transformer.training.epochs import AugmentedPairs
from annotated_transformer.training.log import read_log
from annotated_transformer.training.loop import train
from annotated_transformer.training.optimizer import rate_of_step
from annotated_transformer.training.plan import Plan, learn_vocabulary, n_held_out, plan_for
from annotated_transformer.training.run import TrainingRun

TYPED = (
    "numbers", "names", "capitals", "small_letters", "no_full_stop", "slips", "marks", "joined",
)  # fmt: skip


class Rules(AugmentedPairs, Protocol):
    """Rules that change pairs into such as people type."""

    def by(self, rule: str, pairs: Sequence[Pair]) -> list[Pair]:
        """The pairs, each changed by one rule."""


MAX_JSON_BYTES = 2**26  # of scores.json, which has the sentences of a test split
N_TIMED = 7  # steps, of which the first is slow: their median counts
SHARE_OF_STEPS = 0.9  # of the time: the rest is for validation, scores and the page
MAX_COUNTED = 50_000  # pairs whose tokens are counted for the plan's line


def make(
    pairs_file: str | Path,
    out: str | Path,
    write_page: Callable[[Path, Path, str], Path],
    augmentation: Callable[[Sequence[Pair]], Rules],
    plan: Plan | None = None,
    progress: bool = True,
    half: bool = False,
    test: str | Path | None = None,
    steps: int | None = None,
    time: int | None = None,
) -> tuple[list[Path], str]:
    """Make a translator of a file of pairs: the paths of all it made, and the score in words.

    `out` gets plan.json, test.source and test.reference (the test split), run/ (the training run),
    model/ (the average of its last checkpoints, with scores.json), report.html and page/. A second
    call continues where the first was stopped. `plan` is `plan_for` the number of training pairs by
    default; `steps` sets how long it trains, and `time` shortens that to so many minutes. `test` is
    a file with the pairs to score on. `write_page(model, page, example)` writes the page, and
    `augmentation` changes pairs into such as people type (`extras.visitors`). With `half`, every
    other pair is trained on in half/ as well, by the same plan, so that the report can say what
    more pairs would bring. Raises ConfigError for what `read_pairs` refuses, and when `out` was
    begun with other pairs or holds something else.
    """
    out = Path(out)
    name = Path(pairs_file).name
    pairs = read_pairs(pairs_file)
    splits = split_by_group(pairs, n_held_out(len(pairs)))
    if test:
        splits = _with_test(splits, read_pairs(test, least=1))
        pairs += splits["test"]
    for split, pairs_of_split in splits.items():
        message = f"{pairs_file} has no pair left for {split}: its sentences are too alike"
        require(bool(pairs_of_split), message)
    digest = pairs_sha256(pairs)
    stored = _stored_plan(out, digest)
    if stored is None:
        say(", ".join(f"{len(some):,} pairs for {split}" for split, some in splits.items()))
        stored = _fitted(plan or plan_for(len(splits["train"])), splits["train"], steps, time)
        _write_json(out / "plan.json", {"pairs": digest, "plan": stored.to_dict()})
    plan = stored
    is_same = steps in (None, plan.train_steps)
    require(is_same, f"{out} was begun with {plan.train_steps:,} steps: leave out --steps")
    sides = out / "test.source", out / "test.reference"
    for path, sentences in zip(sides, zip(*splits["test"], strict=True), strict=True):
        write_text(path, "".join(f"{sentence}\n" for sentence in sentences))
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
        scores["verdict"] = verdict(scores["translations"])
        text = report_page(name, sizes, plan.to_dict(), read_log(out / "run"), scores, seconds / 60)
    except KeyError as error:
        raise ConfigError(f"{scored} lacks {error}: remove it") from None
    write_text(out / "report.html", text)
    write_page(out / "model", out / "page", splits["test"][0][0])
    made = [out / "page" / "index.html", out / "report.html", out / "model", *sides]
    return made, scores["verdict"]


def _with_test(splits: dict[str, list[Pair]], test: list[Pair]) -> dict[str, list[Pair]]:
    """The splits with these pairs for the test, and in the others no sentence of theirs."""
    known = {(side, fold(text)) for pair in test for side, text in enumerate(pair)}
    train, valid = (
        [pair for pair in pairs if known.isdisjoint(enumerate(map(fold, pair)))]
        for pairs in (splits["train"] + splits["test"], splits["valid"])
    )
    rule = "the test file has a sentence of every other pair: give one whose sentences are new"
    require(bool(train and valid), rule)
    n_shared = sum(map(len, splits.values())) - len(train) - len(valid)
    if n_shared:
        say(f"{n_shared:,} pairs share a sentence with the test file: not trained on")
    return {"train": train, "valid": valid, "test": test}


def _stored_plan(out: Path, digest: str) -> Plan | None:
    """The plan that `out` was begun with; None in a new directory."""
    path = out / "plan.json"
    if not path.exists():
        is_free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
        require(is_free, f"{out} holds something else: name another directory")
        require_writable(path)
        return None
    stored = read_json(path, MAX_JSON_BYTES)
    is_same = stored.get("pairs") == digest
    require(is_same, f"{out} was begun with other pairs: name another directory")
    try:
        return Plan.from_dict(stored.get("plan"))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}: remove {out} and begin again") from None


def _fitted(plan: Plan, pairs: list[Pair], steps: int | None, minutes: int | None) -> Plan:
    """The plan with so many steps, of those that fit into the minutes; it is printed first."""
    tokenizer = learn_vocabulary(pairs, plan.n_merges)
    model_config = plan.model_config(tokenizer.vocab_size)
    counted = pairs[:: 1 + len(pairs) // MAX_COUNTED]
    sides = (tokenizer.encode_batch(list(side)) for side in zip(*counted, strict=True))
    encoded: list[TokenPair] = list(zip(*sides, strict=True))
    run = TrainingRun(model_config, plan.train_config(), _device())
    times = []
    for batch in islice(run.batches(lambda epoch: encoded), N_TIMED):
        began = perf_counter()
        float(run.step([batch])[0])  # waits for a GPU
        times.append(perf_counter() - began)
    seconds = sorted(times)[N_TIMED // 2] / SHARE_OF_STEPS
    most = int(60 * minutes / seconds) if minutes else steps or plan.train_steps
    n = max(1, min(steps or plan.train_steps, most))
    warmup = max(1, min(plan.warmup_steps, n // 5)) if n < plan.train_steps else plan.warmup_steps
    factor = plan.lr_factor * math.sqrt(warmup / plan.warmup_steps)  # the same peak
    changes = {"train_steps": n, "warmup_steps": warmup, "lr_factor": factor}
    plan = plan.replace(**changes, average=min(plan.average, n))
    n_tokens = sum(max(map(len, pair)) + 1 for pair in encoded) * len(pairs) / len(counted)
    peak = rate_of_step(warmup, plan.train_config(), plan.d_model)
    say(
        f"{n_tokens:,.0f} tokens, {tokenizer.vocab_size:,} different; {n:,} steps of "
        f"{plan.max_tokens:,} tokens, {n * plan.max_tokens / n_tokens:,.1f} epochs; N={plan.N}, "
        f"d_model={plan.d_model}, {count_parameters(model_config):,} weights; peak rate {peak:.2g};"
        f" about {max(1, round(n * seconds / 60)):,} min on this machine"
    )
    return plan


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


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
    train(
        plan.model_config(tokenizer.vocab_size),
        plan.train_config(),
        tokenizer,
        splits["train"],
        splits["valid"],
        run,
        device=_device(),
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
