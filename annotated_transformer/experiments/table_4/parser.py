"""Table 4 on real trees (section 6.3): the parser trained on two treebanks, scored on files that it has not seen.

    python -m annotated_transformer.experiments.table_4 --data-dir DIR    everything; what is finished is kept
    python -m annotated_transformer.experiments.table_4 --small           the same on the toy grammar, in seconds

Each run lies in runs/parsing/NAME (weights, log, record.json); book/results/parsing.json holds all
records. The runs "craft-1/8" to "craft-1" have the same number of steps and differ in their number
of sentences: a learning curve at equal computing. "craft-long" goes on from where "craft-1"
stopped.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from annotated_transformer.checkpoint import average_checkpoints, load_model, write_atomically
from annotated_transformer.config import ModelConfig, TrainConfig, require
from annotated_transformer.experiments.result_file import write_result
from annotated_transformer.experiments.significance import estimate
from annotated_transformer.experiments.table_4 import treebank
from annotated_transformer.experiments.table_4.curve import PAPER, learning_curve
from annotated_transformer.parsing import (
    BracketCounts,
    bracket_counts,
    delinearize,
    f1_of_counts,
    is_well_formed,
    linearize,
    sample_trees,
)
from annotated_transformer.text.tokenizer import Tokenizer
from annotated_transformer.training.loop import train
from annotated_transformer.translation.translator import Translator
from annotated_transformer.trees import (
    Tree,
    tree_words,
)

COMMAND = "python -m annotated_transformer.experiments.table_4"
SEARCH: dict[str, Any] = {"alpha": 0.3, "max_extra": 300}
BEAM_SIZES = (1, 4, 21)


@dataclass(frozen=True)
class Run:
    """A training run: a share of a treebank's training sentences, and how many steps; `after` names one to go on from.

    The held-out files are parsed with each of `test_beams`; the learning curve is that of the
    first.
    """

    name: str
    corpus: str
    share: float
    steps: int
    after: str = ""
    test_beams: tuple[int, ...] = (4,)
    p_drop: float = 0.1
    seed: int = 1
    train: Mapping[str, Any] = field(default_factory=dict)  # where it departs from the plan

    @property
    def is_on_the_curve(self) -> bool:
        return self.corpus != "ptb-sample" and not self.after


@dataclass(frozen=True)
class Plan:
    """All runs, the sizes they share, and how many validation sentences the beams are compared on."""

    runs: tuple[Run, ...]
    vocab_size: int
    model: dict[str, Any]
    train: dict[str, Any]
    average: int
    n_beam: int


FULL = Plan(
    runs=(
        Run("craft-1", "craft", 1.0, 20_000),
        Run("craft-1/2", "craft", 1 / 2, 20_000),
        Run("craft-1/4", "craft", 1 / 4, 20_000),
        Run("craft-1/8", "craft", 1 / 8, 20_000),
        Run("ptb", "ptb-sample", 1.0, 12_000, test_beams=(4, 21), p_drop=0.2),
        Run("craft-long", "craft", 1.0, 50_000, after="craft-1", test_beams=(4, 21)),
    ),
    vocab_size=3000,
    model={"N": 3, "d_model": 128, "d_ff": 512, "h": 4},
    train={
        "max_tokens": 400,
        "max_length": 190,
        "warmup_steps": 800,
        "lr_factor": 0.5,
        "log_every": 100,
        "validate_every": 5000,
        "checkpoint_every": 200,
        "keep_checkpoints": 5,
    },
    average=5,
    n_beam=100,
)
SMALL = Plan(
    runs=(
        Run("toy-1", "toy", 1.0, 150),
        Run("toy-1/2", "toy", 1 / 2, 150),
        Run("toy-1/4", "toy", 1 / 4, 150),
        Run("toy-long", "toy", 1.0, 300, after="toy-1", test_beams=(4, 21)),
    ),
    vocab_size=360,
    model={"N": 1, "d_model": 48, "d_ff": 96, "h": 4},
    train={
        "max_tokens": 600,
        "max_length": 100,
        "warmup_steps": 40,
        "lr_factor": 0.5,
        "log_every": 30,
        "validate_every": 150,
        "checkpoint_every": 30,
        "keep_checkpoints": 2,
    },
    average=2,
    n_beam=10,
)


@lru_cache
def trees_of(corpus: str, split: str, data_dir: str | None) -> list[Tree]:
    """The trees of a split of a treebank, or of the toy grammar."""
    if corpus != "toy":
        return treebank.load(corpus, split, data_dir)
    by_sentence = {
        " ".join(tree_words(tree)): tree for tree in sample_trees(700, seed=1, max_depth=5)
    }
    trees = list(by_sentence.values())
    return {"test": trees[:20], "valid": trees[20:40], "train": trees[40:]}[split]


def training_trees(run: Run, data_dir: str | None) -> list[Tree]:
    """The run's share of the training trees; a smaller share is part of a larger one."""
    trees = list(trees_of(run.corpus, "train", data_dir))
    random.Random(0).shuffle(trees)
    return trees[: round(run.share * len(trees))]


def settings_of(run: Run, plan: Plan) -> dict[str, Any]:
    """What the plan says of a run's training."""
    return {**plan.train, **run.train, "train_steps": run.steps, "seed": run.seed}


def folder_of(run: Run, runs: Path) -> Path:
    """Where a run's checkpoints and record lie."""
    return runs / run.name.replace("/", "-of-")


def train_run(run: Run, plan: Plan, runs: Path, data_dir: str | None) -> float:
    """Train, or go on with it; the processor seconds that it has taken in all, of one thread."""
    folder = folder_of(run, runs)
    if run.after and not folder.exists():
        before = next(other for other in plan.runs if other.name == run.after)
        copy = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(
            folder_of(before, runs), copy, ignore=shutil.ignore_patterns("record.json", "averaged")
        )
        copy.rename(folder)
    state, clock = folder / "training.safetensors", folder / "seconds.json"
    trees = training_trees(run, data_dir)
    pairs = [treebank.to_pair(tree) for tree in trees]
    valid = [treebank.to_pair(tree) for tree in trees_of(run.corpus, "valid", data_dir)[:100]]
    if state.exists():
        tokenizer = Tokenizer.load(folder / "tokenizer.model")
    else:
        tokenizer = Tokenizer.train(
            (side for pair in pairs for side in pair),
            plan.vocab_size,
            symbols=treebank.symbols(trees),
        )
    model = ModelConfig(tokenizer.vocab_size, p_drop=run.p_drop, **plan.model)
    settings = TrainConfig(**settings_of(run, plan))
    before_now = json.loads(clock.read_text()) if clock.exists() else 0.0
    began = time.process_time()
    try:
        train(
            model,
            settings,
            tokenizer,
            pairs,
            valid,
            folder,
            resume=state.exists(),
            progress=False,
            corpus=f"{run.corpus} trees",
        )
    finally:
        seconds = before_now + time.process_time() - began
        clock.write_text(json.dumps(seconds))
    return seconds


def parse(
    translator: Translator, trees: Sequence[Tree], beam_size: int
) -> tuple[list[Tree], dict[str, Any]]:
    """The predicted trees, repaired, and F1 with the share of outputs that were trees as written."""
    began = time.process_time()
    sentences = [tree_words(tree) for tree in trees]
    texts = translator.translate(
        [" ".join(words) for words in sentences], beam_size=beam_size, **SEARCH
    )
    outputs = [text.split() for text in texts]
    predicted = [
        delinearize(tokens, words) for tokens, words in zip(outputs, sentences, strict=True)
    ]
    well_formed = sum(map(is_well_formed, outputs, sentences))
    return predicted, {
        "beam_size": beam_size,
        **SEARCH,
        "sentences": len(trees),
        **score(trees, predicted),
        "well_formed": 100 * well_formed / len(trees),
        "seconds": round(time.process_time() - began, 1),
    }


def score(gold: Sequence[Tree], predicted: Sequence[Tree]) -> dict[str, Any]:
    """Precision, recall, F1 and complete matches in percent, with the 95 % interval of F1 over resampled sentences."""
    counts = list(map(bracket_counts, gold, predicted))
    found = estimate(
        lambda sums: f1_of_counts([BracketCounts(*sums.tolist())]).f1,
        [torch.tensor(counts, dtype=torch.float64)],
    )
    return {**f1_of_counts(counts)._asdict(), "F1 interval": [found.low, found.high]}


def baselines(gold: Sequence[Tree], training: Sequence[Tree]) -> dict[str, Any]:
    """Scores of trees that nobody has learned."""
    labels = Counter(
        token[1:] for tree in training for token in linearize(tree, "tags") if token[0] == "("
    )
    label = labels.most_common(1)[0][0]
    branching = [treebank.right_branching(tree, label) for tree in gold]
    return {
        "flat": score(gold, [treebank.flat(tree) for tree in gold]),
        "right-branching": {"label": label, **score(gold, branching)},
    }


def evaluate(
    run: Run, plan: Plan, runs: Path, data_dir: str | None, seconds: float
) -> dict[str, Any]:
    """The run's record: settings, sizes, seconds, and its scores on the validation and the held-out files."""
    folder = folder_of(run, runs)
    average_checkpoints(folder, plan.average, folder / "averaged")
    model, tokenizer = load_model(folder / "averaged")
    translator = Translator(model, tokenizer)
    training = training_trees(run, data_dir)
    valid, test = (trees_of(run.corpus, split, data_dir) for split in ("valid", "test"))
    beams = random.Random(0).sample(valid, min(plan.n_beam, len(valid)))
    parses = [parse(translator, test, beam_size) for beam_size in run.test_beams]
    counts = list(map(bracket_counts, test, parses[0][0]))
    log = [
        json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return {
        "run": run.name,
        "corpus": run.corpus,
        "share": run.share,
        "seed": run.seed,
        "train_seconds": round(seconds),
        "training": {
            "sentences": len(training),
            "words": sum(len(tree_words(tree)) for tree in training),
            "files": len(treebank.TREEBANKS[run.corpus].split_files("train"))
            if run.corpus != "toy"
            else 0,
        },
        "model": config["model"],
        "train": config["train"],
        "averaged": plan.average,
        "parameters": sum(p.numel() for p in model.parameters()),
        "log": [line for line in log if "valid_nll" in line],
        "valid": [parse(translator, beams, beam_size)[1] for beam_size in BEAM_SIZES],
        "test": [test_score for _, test_score in parses],
        "baselines": baselines(test, training),
        "by_length": by_length(test, counts),
        "counts": [list(count) for count in counts],
    }


def by_length(trees: Sequence[Tree], counts: Sequence[BracketCounts]) -> list[dict[str, Any]]:
    """F1 of the sentences of up to 10, 20, ... words, those of the bins before left out."""
    found = []
    for low, high in ((1, 10), (11, 20), (21, 30), (31, 40), (41, 10_000)):
        here = [
            count
            for tree, count in zip(trees, counts, strict=True)
            if low <= len(tree_words(tree)) <= high
        ]
        if any(gold + predicted for _, gold, predicted in here):
            found.append(
                {"words": [low, high], "sentences": len(here), "f1": f1_of_counts(here).f1}
            )
    return found


def result(records: list[dict[str, Any]], plan: Plan, path: Path, command: str) -> None:
    """Write what there is: records without their counts, and the learning curve once it has three points."""
    curve_names = [run.name for run in plan.runs if run.is_on_the_curve]
    curve = sorted(
        (record for record in records if record["run"] in curve_names), key=lambda r: r["share"]
    )
    more: dict[str, Any] = {"learning_curve": learning_curve(curve)} if len(curve) > 2 else {}
    shown = [{key: value for key, value in record.items() if key != "counts"} for record in records]
    write_result(
        path, command, shown, paper=PAPER, runs_planned=[run.name for run in plan.runs], **more
    )


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing and write parsing.json."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Parsing (Table 4) on real trees.")
    parser.add_argument("--small", action="store_true", help="the toy grammar, in seconds")
    parser.add_argument(
        "--out", help="folder of parsing.json (default: book/results; with --small a temporary one)"
    )
    parser.add_argument(
        "--runs", help="folder of the runs (default: runs/parsing; with --small a temporary one)"
    )
    parser.add_argument("--data-dir", help="where the treebanks lie")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        plan = SMALL if args.small else FULL
        out = Path(args.out or (tempfile.mkdtemp() if args.small else "book/results"))
        runs = Path(args.runs or (scratch if args.small else "runs/parsing"))
        records = []
        for run in plan.runs:
            path = folder_of(run, runs) / "record.json"
            if not path.exists():
                seconds = train_run(run, plan, runs, args.data_dir)
                text = json.dumps(evaluate(run, plan, runs, args.data_dir, seconds))
                write_atomically(path, partial(Path.write_text, data=text, encoding="utf-8"))
            records.append(json.loads(path.read_text(encoding="utf-8")))
            now = settings_of(run, plan)
            require(
                {**records[-1]["train"], **now} == records[-1]["train"],
                f"{path.parent} holds a run with other settings: remove it, or name other --runs",
            )
            result(
                records, plan, out / "parsing.json", COMMAND + (" --small" if args.small else "")
            )
            scores = records[-1]["test"][-1]
            print(
                f"{run.name:12} {records[-1]['training']['sentences']:6,} sentences  F1 {scores['f1']:.2f}  "
                f"well formed {scores['well_formed']:.1f} %",
                flush=True,
            )
        print(out / "parsing.json")


if __name__ == "__main__":
    main()
