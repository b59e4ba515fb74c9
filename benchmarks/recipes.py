"""Long training runs, each one command: train, average, evaluate,
and a JSON file with everything measured.

    python benchmarks/recipes.py                      list the recipes
    python benchmarks/recipes.py visitors           run one; a run that was interrupted goes on
                                                    where it stopped
    python benchmarks/recipes.py visitors --score   only score and record a run that is finished
    python benchmarks/recipes.py visitors_own_text --init DIRECTORY
                                                    only the stage with our own pairs, from the
                                                    model that the others left

Runs lie in runs/NAME-1, -2, ... (checkpoints and log of each stage) and the result in
book/results/NAME.json. Every step is the command line of the package, so what is timed and scored
here is what a user gets.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import own_text
from benchmarks.timing import out_path
from lab.experiments.result_file import commit, write_result
from tools.arguments import parser_of, run_main

ROOT = Path(__file__).resolve().parents[1]


class Stage(NamedTuple):
    """Arguments of `annotated-transformer train`, how many of its last checkpoints are averaged,
    and, in a stage that reads `own_pairs` too, how many copies of each pair it reads."""

    train: tuple[str, ...]
    average: int
    copies: int | None = None


@dataclass(frozen=True)
class Recipe:
    """Stages, each but the first starting from the average that the one before it left.

    With `export`, the last average goes there in float16. `about` says in a sentence what the run
    is for. `scored` is the corpus whose validation and test splits are translated, where it is
    not the one that is learnt. With `alphas`, the length penalty that has the best BLEU on the
    validation split is used on the test split as well, beside the paper's; so the paper chose its
    own (section 6.1).
    """

    about: str
    corpus: str
    stages: tuple[Stage, ...]
    export: str = ""
    scored: str = ""
    alphas: tuple[float, ...] = ()


def _set(**settings: Any) -> tuple[str, ...]:
    return tuple(word for name, value in settings.items() for word in ("--set", f"{name}={value}"))


# How the first was found is in LOG.md, "A model whose attention is at work" and after it.
RECIPES = {
    "visitors": Recipe(
        "Six million parameters on both corpora of Tatoeba, whose pairs are changed in every epoch "
        "into such as people type: numbers, names, capitals, marks, slips of the pen. Glorot's "
        "initial values, a third more than the paper's peak rate, products in bfloat16 on a CPU. "
        "The second stage learns German to English as well, the third goes on with joined pairs, "
        "and its rate falls at the end.",
        "tatoeba-all-en-de",
        (
            Stage(("--vocab-size", "4800", *_set(
                augment=True, N=3, d_model=256, d_ff=768, h=4, p_drop=0.1,
                initialization="glorot", max_tokens=1024, warmup_steps=3000, lr_factor=0.8,
                train_steps=24000, precision="bf16", validate_every=4000, checkpoint_every=250,
                keep_checkpoints=20)), average=16),
            Stage(_set(
                augment=True, both_ways=True, max_tokens=1024, accumulate=2, warmup_steps=1000,
                lr_factor=0.5, train_steps=14000, precision="bf16", validate_every=2000,
                checkpoint_every=250, keep_checkpoints=20), average=16),
            Stage(_set(
                augment=True, both_ways=True, concatenate=1, max_tokens=1024, accumulate=2,
                schedule="wsd", warmup_steps=1000, lr_factor=0.2, train_steps=20000,
                precision="bf16", validate_every=2000, checkpoint_every=250,
                keep_checkpoints=20), average=8),
        ),
        export="book/model", scored="tatoeba-en-de",
        alphas=(0.6, 1.0, 1.4, 1.8),
    ),
    "multi30k_small_gpu": Recipe(
        "Preset small on Multi30k for a GPU: bf16, larger batches, 60 epochs.",
        "multi30k-en-de",
        (Stage(("--preset", "small", "--vocab-size", "6000", "--device", "cuda", *_set(
            max_tokens=4096, warmup_steps=1500, train_steps=9000, validate_every=1000,
            checkpoint_every=200, keep_checkpoints=20)), average=10),),
    ),
}  # fmt: skip

RECIPES["visitors_own_text"] = replace(
    RECIPES["visitors"],
    about="A stage more, on sentences that were written for it: the words of the field, greetings, "
    "letters, and German names.",
    stages=(
        *RECIPES["visitors"].stages,
        Stage(_set(
            augment=True, both_ways=True, concatenate=1, max_tokens=1024, accumulate=2,
            schedule="wsd", warmup_steps=300, lr_factor=0.083, decay_share=0.6, train_steps=6000,
            seed=2, precision="bf16", validate_every=2000, checkpoint_every=100,
            keep_checkpoints=20), average=8, copies=20),
    ),
    export="",
)  # fmt: skip

SMALL = ("--device", "cpu", "--vocab-size", "300", *_set(
    N=1, d_model=16, d_ff=32, h=2, max_tokens=256, warmup_steps=2, train_steps=4, validate_every=2,
    checkpoint_every=1))  # fmt: skip


def command(*words: str, processes: int = 1) -> str:
    """Run a verb of the command line; what it printed on standard output.

    With more than one process `torchrun` starts it, which only `train` knows how to share.
    """
    print("$ annotated-transformer", *words, file=sys.stderr, flush=True)
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    call = [sys.executable, *(torchrun if processes > 1 else ()), "-m", "annotated_transformer"]
    call += words
    return subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


def train(
    data: tuple[str, ...],
    run: Path,
    arguments: tuple[str, ...],
    before: Path | None,
    processes: int = 1,
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
    command("train", *data, "--out", str(run), *arguments, processes=processes)
    for name, seconds in (
        ("seconds", time.time() - began),
        ("cpu_seconds", cpu_seconds() - cpu_began),
    ):
        with (run / name).open("a") as file:
            file.write(f"{seconds:.0f}\n")


def name_corpus(directory: Path, corpus: str) -> None:
    """Say in a checkpoint what corpus it learned, where the run has read it from files."""
    path = directory / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    text = json.dumps({**config, "corpus": corpus}, indent=2, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")


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
        "steps": max(line["step"] for line in log),  # fewer where it was ended early
        "train_seconds": total(run / "seconds"),
        "train_cpu_seconds": total(run / "cpu_seconds"),
        "train_tokens_per_s": round(speeds[len(speeds) // 2]),
        "training_log": [
            {"step": line["step"], "nll": round(line["nll"], 4)} for line in log if "loss" in line
        ],
        "validation_log": [line for line in log if "valid_bleu" in line],
    }


def chosen_alpha(scored: Sequence[str], alphas: Sequence[float]) -> dict[str, Any]:
    """The validation split's BLEU by alpha, the alpha that has the best,
    and what it gives on the test split."""

    def with_alpha(alpha: float, split: str) -> dict[str, Any]:
        words = (*scored, "--split", split, "--alpha", str(alpha), "--json")
        scores: dict[str, Any] = json.loads(command(*words))
        return scores

    valid = {alpha: with_alpha(alpha, "valid")["BLEU"]["score"] for alpha in alphas}
    best = max(alphas, key=lambda alpha: valid[alpha])
    return {
        "valid": [{"alpha": alpha, "BLEU": score} for alpha, score in valid.items()],
        "alpha": best,
        "test": with_alpha(best, "test"),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, small=True, out=True)
    parser.add_argument("name", nargs="?", choices=RECIPES)
    parser.add_argument(
        "--runs", type=Path, default=ROOT / "runs", help="where runs are kept (default runs/)"
    )
    parser.add_argument("--score", action="store_true", help="do not train, only score and record")
    parser.add_argument(
        "--init", type=Path, help="a model from which only the stages with our own pairs go on"
    )
    args = parser.parse_args(arguments)
    if not args.name:
        print("\n".join(f"{name:20} {recipe.about}" for name, recipe in RECIPES.items()))
        return
    recipe = RECIPES[args.name]
    if args.small:
        few = tuple(Stage((*stage.train, *SMALL), average=2) for stage in recipe.stages)
        recipe = replace(recipe, corpus="reverse", stages=few, export="", scored="")
    stages: list[dict[str, Any]] = []
    averaged: Path | None = args.init
    if args.init:  # before `export` puts the new model in its place
        weights = (args.init / "model.safetensors").read_bytes()
        begins_with = hashlib.sha256(weights).hexdigest()
    for number, stage in enumerate(recipe.stages, start=1):
        if args.init and stage.copies is None:
            continue
        name = f"{args.name}-{number}"
        run = args.runs / name
        if not args.score:
            data: tuple[str, ...] = ("--corpus", recipe.corpus)
            if stage.copies is not None:
                data = own_text.write_files(recipe.corpus, stage.copies, args.runs / f"{name}-text")
            train(data, run, stage.train, averaged)
        averaged = args.runs / f"{name}-averaged"
        command("average", str(run), "--last", str(stage.average), "--out", str(averaged))
        name_corpus(averaged, recipe.corpus)
        stages.append(described(run))
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
    penalties = {"by_alpha": chosen_alpha(scored, recipe.alphas)} if recipe.alphas else {}
    at_work = command("inspect", *scored[1:], "--split", "test", "--beam-size", "4", "--json")
    record = {
        "recipe": args.name,
        "about": recipe.about,
        "corpus": recipe.corpus,
        "scored": recipe.scored or recipe.corpus,
        **scores,
        **penalties,
        "at_work": json.loads(at_work),
        "averaged": [stage.average for stage in recipe.stages],
        "stages": stages,
    }
    if args.init:
        n_before = len(recipe.stages) - len(stages)
        record["begins_with"] = {"stages": n_before, "sha256": begins_with}
        # What the earlier stages measured is in the result file of the model that they left.
        stored = ROOT / "book" / "results" / f"{args.name}.json"
        if stored.exists():
            earlier = json.loads(stored.read_text(encoding="utf-8"))["records"][0]["stages"]
            record["stages"] = earlier[:n_before] + stages
    device = "cuda" if "cuda" in recipe.stages[0].train and not args.small else "cpu"
    if out := out_path(args, args.name):
        run = f"python benchmarks/recipes.py {args.name}" + " --small" * args.small
        run += " --init DIRECTORY" if args.init else ""
        of_run = stages[0]["commit"]  # perhaps older
        write_result(out, run, [record], device, commit=of_run)
    print(json.dumps(scores, indent=1))


if __name__ == "__main__":
    run_main(main)
