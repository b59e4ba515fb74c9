"""Table 4 on real trees (section 6.3): the parser trained on two treebanks, scored on unseen files.

    python -m lab.experiments.table_4 --data-dir DIR    everything
    python -m lab.experiments.table_4 --small           the toy grammar, seconds

What is finished is kept. Each run lies in runs/parsing/NAME (weights, log, record.json);
book/results/parsing.json holds all records. The runs "craft-1/8" to "craft-1" have the same number
of steps and differ in their number of sentences. "craft-long" goes on from where "craft-1" stopped.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from annotated_transformer.checkpoint.averaging import average_checkpoints
from annotated_transformer.checkpoint.directory import load_model, read_config
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import require
from annotated_transformer.files import write_text
from annotated_transformer.training.log import read_log
from annotated_transformer.training.loop import train
from lab.experiments.result_file import RUNS, folder_of, write_result
from lab.experiments.table_4 import plan as plans, treebank
from lab.experiments.table_4.scoring import baselines, by_length, parse
from lab.parsing.scoring import bracket_counts
from lab.parsing.trees import tree_words

COMMAND = "python -m lab.experiments.table_4"
BEAM_SIZES = (1, 4, 21)


def train_run(run: plans.Run, plan: plans.Plan, runs: Path, data_dir: str | None) -> float:
    """Train, or go on with it; the processor seconds that it has taken in all, of one thread."""
    folder = plans.folder_of(run, runs)
    if run.after and not folder.exists():
        before = next(other for other in plan.runs if other.name == run.after)
        copy = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(copy, ignore_errors=True)
        made_later = shutil.ignore_patterns("record.json", "averaged")
        shutil.copytree(plans.folder_of(before, runs), copy, ignore=made_later)
        copy.rename(folder)
    state, clock = folder / "training.safetensors", folder / "seconds.json"
    trees = plans.training_trees(run, data_dir)
    pairs = [treebank.to_pair(tree) for tree in trees]
    valid = [treebank.to_pair(tree) for tree in plans.trees_of(run.corpus, "valid", data_dir)[:100]]
    if state.exists():
        tokenizer = Tokenizer.load(folder / "tokenizer.model")
    else:
        texts = (side for pair in pairs for side in pair)
        tokenizer = Tokenizer.train(texts, plan.vocab_size, symbols=treebank.symbols(trees))
    model = ModelConfig(tokenizer.vocab_size, p_drop=run.p_drop, **plan.model)
    settings = TrainConfig(**plans.settings_of(run, plan))
    more: dict[str, Any] = {
        "resume": state.exists(),
        "progress": False,
        "corpus": f"{run.corpus} trees",
    }
    before_now = json.loads(clock.read_text()) if clock.exists() else 0.0
    began = time.process_time()
    try:
        train(model, settings, tokenizer, pairs, valid, folder, **more)
    finally:
        seconds = before_now + time.process_time() - began
        clock.write_text(json.dumps(seconds))
    return seconds


def evaluate(
    run: plans.Run, plan: plans.Plan, runs: Path, data_dir: str | None, seconds: float
) -> dict[str, Any]:
    """The run's record: settings, sizes, seconds, and scores on validation and held-out files."""
    folder = plans.folder_of(run, runs)
    average_checkpoints(folder, plan.average, folder / "averaged")
    model, tokenizer = load_model(folder / "averaged")
    translator = Translator(model, tokenizer)
    training = plans.training_trees(run, data_dir)
    valid, test = (plans.trees_of(run.corpus, split, data_dir) for split in ("valid", "test"))
    beams = random.Random(0).sample(valid, min(plan.n_beam, len(valid)))
    parses = [parse(translator, test, beam_size) for beam_size in run.test_beams]
    bank = treebank.TREEBANKS.get(run.corpus)  # none for the toy grammar
    config = read_config(folder)
    return {
        "run": run.name,
        "corpus": run.corpus,
        "share": run.share,
        "seed": run.seed,
        "train_seconds": round(seconds),
        "training": {
            "sentences": len(training),
            "words": sum(len(tree_words(tree)) for tree in training),
            "files": len(bank.split_files("train")) if bank else 0,
        },
        "model": config["model"],
        "train": config["train"],
        "averaged": plan.average,
        "parameters": sum(p.numel() for p in model.parameters()),
        "log": [line for line in read_log(folder) if "valid_nll" in line],
        "valid": [parse(translator, beams, beam_size)[1] for beam_size in BEAM_SIZES],
        "test": [test_score for _, test_score in parses],
        "baselines": baselines(test, training),
        "by_length": by_length(test, list(map(bracket_counts, test, parses[0][0]))),
    }


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing and write parsing.json."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Parsing (Table 4) on real trees.")
    parser.add_argument("--small", action="store_true", help="the toy grammar, in seconds")
    for name, what, default in (
        ("--out", "folder of parsing.json", "book/results"),
        ("--runs", "folder of the runs", "runs/parsing"),
    ):
        where = f"{what} (default: {default}; with --small a temporary one)"
        parser.add_argument(name, type=Path, help=where)
    parser.add_argument("--data-dir", help="where the treebanks lie")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        plan = plans.SMALL if args.small else plans.FULL
        command = COMMAND + " --small" * args.small
        out = folder_of(args.out, args.small) / "parsing.json"
        runs = args.runs or (Path(scratch) if args.small else RUNS / "parsing")
        records, planned = [], [run.name for run in plan.runs]
        for run in plan.runs:
            path = plans.folder_of(run, runs) / "record.json"
            if not path.exists():
                seconds = train_run(run, plan, runs, args.data_dir)
                text = json.dumps(evaluate(run, plan, runs, args.data_dir, seconds))
                write_text(path, text)
            records.append(json.loads(path.read_text(encoding="utf-8")))
            found = (records[-1]["model"], records[-1]["train"])
            asked = ({**plan.model, "p_drop": run.p_drop}, plans.settings_of(run, plan))
            require(
                all({**old, **new} == old for old, new in zip(found, asked, strict=True)),
                f"{path.parent} holds a run with other settings: remove it, or name other --runs",
            )
            write_result(out, command, records, paper=plans.PRINTED_F1, runs_planned=planned)
            n_sentences, scores = records[-1]["training"]["sentences"], records[-1]["test"][-1]
            print(
                f"{run.name:12} {n_sentences:6,} sentences  F1 {scores['f1']:.2f}  "
                f"well formed {scores['well_formed']:.1f} %",
                flush=True,
            )
        print(out)


if __name__ == "__main__":
    main()
