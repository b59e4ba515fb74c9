"""One command's work: plan, train, average, score, report, page; each step that is done is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from annotated_transformer.checkpoint.averaging import average_checkpoints
from annotated_transformer.checkpoint.directory import state_files
from annotated_transformer.errors import ConfigError, require, say
from annotated_transformer.files import write_atomically
from annotated_transformer.from_pairs.plan import (
    Plan,
    learn_vocabulary,
    n_held_out,
    plan_for,
    read_pairs,
)
from annotated_transformer.from_pairs.report import report_page
from annotated_transformer.page.writing import write_page
from annotated_transformer.text.parallel_text import Pair, pairs_sha256, split_by_group
from annotated_transformer.text.tokenizer import Tokenizer
from annotated_transformer.training.loop import train
from annotated_transformer.translation import evaluation
from annotated_transformer.translation.translator import Translator


def make(
    pairs_file: str | Path,
    out: str | Path,
    plan: Plan | None = None,
    progress: bool = True,
    book: str = "",
) -> list[Path]:
    """Make a translator of a file of pairs: the paths of its page, its report and its model.

    `out` gets plan.json, run/ (the training run), model/ (the average of its last checkpoints),
    scores.json, report.html and page/. Who calls it again goes on where it was stopped. `plan` is
    `plan_for` the number of training pairs by default; with `book`, the page links to the chapters
    at this address. Raises ConfigError for what `read_pairs`
    refuses, and when `out` was begun with other pairs or holds something else.
    """
    out = Path(out)
    pairs = read_pairs(pairs_file)
    splits = split_by_group(pairs, n_held_out(len(pairs)))
    for name, some in splits.items():
        require(
            bool(some), f"{pairs_file} has no pair left for {name}: its sentences are too alike"
        )
    plan = _settled(out, pairs_sha256(pairs), plan or plan_for(len(splits["train"])))
    if not (out / "scores.json").exists():
        _train(out, plan, splits, Path(pairs_file).stem, progress)
        average_checkpoints(out / "run", plan.average, out / "model")
        _write(out / "scores.json", _scores(out / "model", splits["test"]))
    scores = _read(out / "scores.json")
    log = [json.loads(line) for line in (out / "run" / "log.jsonl").read_text().splitlines()]
    counts = {name: len(some) for name, some in splits.items()}
    text = report_page(str(Path(pairs_file).name), counts, plan.to_dict(), log, scores)
    write_atomically(
        out / "report.html", lambda temporary: temporary.write_text(text, encoding="utf-8")
    )
    write_page(out / "model", out / "page", example=splits["test"][0][0], book=book)
    return [out / "page" / "index.html", out / "report.html", out / "model"]


def _settled(out: Path, digest: str, plan: Plan) -> Plan:
    """The plan that `out` was begun with, or else this one, which is written there."""
    path = out / "plan.json"
    if not path.exists():
        require(
            not out.exists() or (out.is_dir() and not any(out.iterdir())),
            f"{out} holds something else: name another directory",
        )
        _write(path, {"pairs": digest, "plan": plan.to_dict()})
    stored = _read(path)
    require(
        stored.get("pairs") == digest,
        f"{out} was begun with other pairs: name another directory",
    )
    try:
        return Plan(**stored["plan"])
    except (KeyError, TypeError):
        raise ConfigError(f"{path} holds no plan: remove {out} and begin again") from None


def _train(out: Path, plan: Plan, splits: dict[str, list[Pair]], name: str, progress: bool) -> None:
    """Train the run of a plan, or go on with it, to its last step."""
    run = out / "run"
    goes_on = bool(state_files(run))
    if goes_on:
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
        resume=goes_on,
        progress=progress,
        corpus=name,
    )


def _scores(model: Path, pairs: list[Pair]) -> dict[str, Any]:
    """Scores with their signatures, and what the model says of each pair of the test split."""
    translator = Translator.from_checkpoint(model)
    references = [target for _, target in pairs]
    translations = translator.translate([source for source, _ in pairs])
    found = {
        "BLEU": evaluation.bleu(translations, references),
        "chrF2": evaluation.chrf(translations, references),
    }
    said = [(*pair, translation) for pair, translation in zip(pairs, translations, strict=True)]
    parameters = sum(parameter.numel() for parameter in translator.model.parameters())
    vocab_size = translator.tokenizer.vocab_size
    return {
        "scores": {name: score._asdict() for name, score in found.items()},
        "parameters": parameters,
        "vocab_size": vocab_size,
        "translations": said,
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    require(isinstance(content, dict), f"{path} is not a JSON object")
    return dict(content)
