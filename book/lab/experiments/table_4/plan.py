"""What is run for Table 4 (section 6.3): the plan of all runs, and the trees that each is given."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from lab.experiments.table_4 import treebank
from lab.parsing.trees import Tree, tree_words
from lab.toy_grammar import sample_trees

PRINTED_F1 = {"training sentences": 40_000, "F1": 91.3}
"""Table 4, Transformer (4 layers), WSJ only; section 6.3 says about 40,000."""


@dataclass(frozen=True)
class Run:
    """A training run: a share of a treebank's training sentences, and how many steps.

    `after` names a run to go on from. The held-out files are parsed with each of `test_beams`.
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


@dataclass(frozen=True)
class Plan:
    """All runs, the sizes they share, and how many validation sentences compare the beams."""

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
    model={"N": 3, "d_model": 128, "d_ff": 512, "h": 4, "initialization": "scaled"},
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
    model={"N": 1, "d_model": 48, "d_ff": 96, "h": 4, "initialization": "scaled"},
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
    sampled = sample_trees(700, seed=1, max_depth=5)
    trees = list({" ".join(tree_words(tree)): tree for tree in sampled}.values())
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
