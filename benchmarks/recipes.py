"""Long training runs, each one command: train, average, evaluate,
and a JSON file with everything measured.

    python benchmarks/recipes.py                      list the recipes
    python benchmarks/recipes.py book_model           run one; a run that was interrupted goes on
                                                      where it stopped
    python benchmarks/recipes.py book_model --score   only score and record a run that is finished

Runs lie in runs/NAME-1, -2, ... (checkpoints and log of each stage) and the result in
book/results/NAME.json. Every step is the command line of the package, so what is timed and scored
here is what a user gets. A recipe that takes more than one sitting keeps the average of a finished
stage, in float16, with what is to be known of it, in benchmarks/stages/NAME-1, ...: where that is,
the stage is not trained again, and a machine that has only the repository can go on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from annotated_transformer.experiments.result_file import commit, write_result

ROOT = Path(__file__).resolve().parents[1]
STAGES, KEPT = ROOT / "benchmarks" / "stages", "stage.json"


class Stage(NamedTuple):
    """Arguments of `annotated-transformer train`,
    and how many of its last checkpoints are averaged.

    With `seeds`, the stage is run once with each of them,
    and the average is over the last checkpoints of all runs.
    """

    train: tuple[str, ...]
    average: int
    seeds: tuple[int, ...] = ()

    def runs(self, folder: Path, name: str) -> list[tuple[Path, tuple[str, ...]]]:
        """Where each run lies, and its arguments of `train`."""
        if not self.seeds:
            return [(folder / name, self.train)]
        return [
            (folder / f"{name}-seed-{seed}", (*self.train, "--seed", str(seed)))
            for seed in self.seeds
        ]


@dataclass(frozen=True)
class Recipe:
    """Stages, each but the first starting from the average that the one before it left.

    With `export`, the last average goes there in float16. `about` says in a sentence what the run
    is for. `scored` is the corpus whose validation and test splits are translated, where it is
    not the one that is learnt. With `keeps_stages`, finished stages but the last are kept.
    """

    about: str
    corpus: str
    stages: tuple[Stage, ...]
    export: str = ""
    scored: str = ""
    keeps_stages: bool = False


def _set(**settings: Any) -> tuple[str, ...]:
    return tuple(word for name, value in settings.items() for word in ("--set", f"{name}={value}"))


RECIPES = {
    "book_model": Recipe(
        "The model in book/model: under four hours on one CPU core, the last two with less dropout "
        "and joined pairs.",
        "tatoeba-en-de",
        (
            Stage(("--vocab-size", "3500", *_set(
                N=3, d_model=192, d_ff=768, h=6, p_drop=0.3, max_tokens=1024, warmup_steps=600,
                lr_factor=0.9, train_steps=24000, validate_every=2000, checkpoint_every=200,
                keep_checkpoints=20)), average=5),
            Stage(_set(
                p_drop=0.1, concatenate=1, max_tokens=1024, warmup_steps=600, lr_factor=0.3,
                train_steps=8000, validate_every=1000, checkpoint_every=100,
                keep_checkpoints=40), average=30, seeds=(2, 32)),
        ),
        export="book/model",
    ),
    "tatoeba_large": Recipe(
        "Six million parameters on the large Tatoeba corpus: Glorot's initial values, a third "
        "more than the paper's peak rate, the second stage with joined pairs; one CPU core, "
        "products in bfloat16.",
        "tatoeba-large-en-de",
        (
            Stage(("--vocab-size", "4800", *_set(
                N=3, d_model=256, d_ff=768, h=4, p_drop=0.1, initialization="glorot",
                max_tokens=1024, warmup_steps=3000, lr_factor=0.8, train_steps=24000,
                precision="bf16", validate_every=4000, checkpoint_every=250,
                keep_checkpoints=20)), average=16),
            Stage(_set(
                concatenate=0.5, max_tokens=1024, warmup_steps=1000, lr_factor=0.3,
                train_steps=12000, precision="bf16", validate_every=2000, checkpoint_every=250,
                keep_checkpoints=20), average=16),
        ),
        export="book/model", scored="tatoeba-en-de", keeps_stages=True,
    ),
    "multi30k_small_cpu": Recipe(
        "Preset small on Multi30k, on one CPU core: 3,000 steps, which take half an hour on a free "
        "core.",
        "multi30k-en-de",
        (Stage(("--preset", "small", "--vocab-size", "6000", *_set(
            p_drop=0.1, max_tokens=768, warmup_steps=400, lr_factor=0.65, train_steps=3000,
            validate_every=1000, checkpoint_every=100, keep_checkpoints=20)), average=10),),
    ),
    "multi30k_small_gpu": Recipe(
        "Preset small on Multi30k for a GPU: bf16, larger batches, 60 epochs.",
        "multi30k-en-de",
        (Stage(("--preset", "small", "--vocab-size", "6000", "--device", "cuda", *_set(
            max_tokens=4096, warmup_steps=1500, train_steps=9000, validate_every=1000,
            checkpoint_every=200, keep_checkpoints=20)), average=10),),
    ),
}  # fmt: skip


def command(*words: str) -> str:
    """Run a verb of the command line; what it printed on standard output."""
    print("$ annotated-transformer", *words, file=sys.stderr, flush=True)
    call = [sys.executable, "-m", "annotated_transformer", *words]
    return subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


def train(
    data: tuple[str, ...], run: Path, arguments: tuple[str, ...], before: Path | None
) -> None:
    """Train a run to its end, from its last checkpoint if there is one;
    note the commit and the time it took."""
    if (run / "training.safetensors").exists():
        arguments = ("--resume", *arguments)
    elif before:
        arguments = ("--init", str(before), *arguments)
    if not (run / "commit").exists():
        run.mkdir(parents=True, exist_ok=True)
        (run / "commit").write_text(commit() + "\n")
    began, cpu_began = time.time(), cpu_seconds()
    command("train", *data, "--out", str(run), *arguments)
    for name, seconds in (
        ("seconds", time.time() - began),
        ("cpu_seconds", cpu_seconds() - cpu_began),
    ):
        with (run / name).open("a") as file:
            file.write(f"{seconds:.0f}\n")


def cpu_seconds() -> float:
    """What the programs that were started and have ended have computed:
    a busy machine does not make it longer."""
    times = os.times()
    return times.children_user + times.children_system


def total(path: Path) -> int | None:
    """The sum of the numbers in a file; None where a run of an older recipe has left none."""
    return sum(map(int, path.read_text().split())) if path.exists() else None


def described(run: Path) -> dict[str, Any]:
    """What is to be known of a finished run: settings, time, speed, the loss,
    and what validation said on the way."""
    config = json.loads((run / "config.json").read_text())
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    speeds = sorted(line["tokens_per_s"] for line in log if "loss" in line)
    return {
        "commit": (run / "commit").read_text().strip(),
        "settings": {key: config[key] for key in ("model", "train")},
        "seed": config["train"]["seed"],
        "steps": config["train"]["train_steps"],
        "train_seconds": total(run / "seconds"),
        "train_cpu_seconds": total(run / "cpu_seconds"),
        "train_tokens_per_s": round(speeds[len(speeds) // 2]),
        "training_log": [
            {"step": line["step"], "nll": round(line["nll"], 4)} for line in log if "loss" in line
        ],
        "validation_log": [line for line in log if "valid_bleu" in line],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", choices=RECIPES)
    parser.add_argument(
        "--runs", type=Path, default=ROOT / "runs", help="where runs are kept (default runs/)"
    )
    parser.add_argument("--score", action="store_true", help="do not train, only score and record")
    args = parser.parse_args(arguments)
    if not args.name:
        print("\n".join(f"{name:20} {recipe.about}" for name, recipe in RECIPES.items()))
        return
    recipe = RECIPES[args.name]
    stages: list[dict[str, Any]] = []
    averaged: Path | None = None
    for number, stage in enumerate(recipe.stages, start=1):
        name = f"{args.name}-{number}"
        kept = STAGES / name
        if (kept / KEPT).exists():
            stages += json.loads((kept / KEPT).read_text())
            averaged = kept
            continue
        stage_runs = stage.runs(args.runs, name)
        for run, arguments in () if args.score else stage_runs:
            train(("--corpus", recipe.corpus), run, arguments, averaged)
        averaged = args.runs / f"{name}-averaged"
        command(
            "average", *(str(run) for run, _ in stage_runs), "--last", str(stage.average), "--out",
            str(averaged),
        )  # fmt: skip
        found = [described(run) for run, _ in stage_runs]
        stages += found
        if recipe.keeps_stages and number < len(recipe.stages):
            command("export", str(averaged), "--out", str(kept), "--dtype", "float16")
            (kept / KEPT).write_text(json.dumps(found, indent=1) + "\n")
    if recipe.export:
        notes = (
            f"{recipe.about} `python benchmarks/recipes.py {args.name}` trains and scores it again."
        )
        command(
            "export", str(averaged), "--out", recipe.export, "--dtype", "float16", "--notes", notes
        )
    scored = (
        "evaluate",
        recipe.export or str(averaged),
        "--corpus",
        recipe.scored or recipe.corpus,
    )
    scores = {
        split: json.loads(command(*scored, "--split", split, "--json"))
        for split in ("valid", "test")
    }
    at_work = command("inspect", *scored[1:], "--split", "test", "--beam-size", "4", "--json")
    record = {
        "recipe": args.name,
        "about": recipe.about,
        "corpus": recipe.corpus,
        "scored": recipe.scored or recipe.corpus,
        **scores,
        "at_work": json.loads(at_work),
        "averaged": [stage.average for stage in recipe.stages],
        "stages": stages,
    }
    device = "cuda" if "cuda" in recipe.stages[0].train else "cpu"
    write_result(
        ROOT / "book" / "results" / f"{args.name}.json",
        f"python benchmarks/recipes.py {args.name}",
        [record],
        device,
        commit=stages[0]["commit"],  # of the run, perhaps older
    )
    print(json.dumps(scores, indent=1))


if __name__ == "__main__":
    main()
