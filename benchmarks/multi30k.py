"""Two published Multi30k figures, on their own metrics: train, average, translate, score, record.

    pip install sacremoses spacy
    python benchmarks/multi30k.py                  list the runs
    python benchmarks/multi30k.py tiny             run one; one that was interrupted goes on
    python benchmarks/multi30k.py tiny --processes 2   the same, shared by two (not tutorial)
    python benchmarks/multi30k.py tiny --score     only score and record a run that is finished
    python benchmarks/multi30k.py tiny_published --seeds 1 2 3   three runs, a record for each

A metric is a way to prepare text and to compare it, so each run has its own: the same preparation
for training, for the test (2016) and for its reference. The length penalty is the paper's; what the
one that is best on the validation split gives stands beside. Stages of a run lie in
runs/multi30k_NAME-1, -2, ..., each trained from the average of the one before it (a taught one also
on what that average makes of the training split), and results in book/results/multi30k_NAME.json.
What a run scored lies beside its stages and is not measured again: a test split is looked at once.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sacrebleu
import torch

from annotated_transformer.config import ModelConfig
from annotated_transformer.data import corpus
from annotated_transformer.data.tokenizer import Tokenizer
from benchmarks.multi30k_runs import RUNS, Run
from benchmarks.recipes import ROOT, command, described, train
from lab.experiments.result_file import write_result
from lab.tables.table_3 import count_parameters
from tools.arguments import parser_of, run_main


def write_text(run: Run, folder: Path) -> None:
    """The prepared splits as text files of one sentence a line: train.de, valid.de, test.de, ..."""
    other = next(language for language in run.languages if language != "en")
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "valid", "test"):
        pairs = corpus.load(f"multi30k-en-{other}", split)
        for language in run.languages:
            prepare, side = run.form(language), int(language != "en")
            text = "".join(f"{prepare(pair[side])}\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


def add_translations(run: Run, teacher: Path, text: Path, split: str) -> None:
    """A split of `text`: the training split twice, the second time as `teacher` translates it."""
    source, target = (text / f"train.{language}" for language in run.languages)
    output = text / f"translated.{run.languages[1]}"
    command("translate", str(teacher), "--input", str(source), "--output", str(output))
    for path, again in ((target, output), (source, source)):
        both = path.read_text(encoding="utf-8") + again.read_text(encoding="utf-8")
        path.with_name(f"{split}{path.suffix}").write_text(both, encoding="utf-8")


def learn(
    run: Run,
    text: Path,
    split: str,
    folder: Path,
    settings: dict[str, Any],
    before: Path | None,
    processes: int,
) -> None:
    """Train a stage with one seed, from the average of the one before it or from the beginning."""
    train_on, valid_on = (
        [str(text / f"{part}.{language}") for language in run.languages]
        for part in (split, "valid")
    )
    words = [] if before else ["--vocab-size", str(run.vocab_size)]
    for item in settings.items():
        words += ["--set", "{}={}".format(*item)]
    data = ("--train", *train_on, "--valid", *valid_on)
    train(data, folder, tuple(words), before, processes)


def score(run: Run, checkpoint: Path, text: Path, split: str, alpha: float) -> dict[str, Any]:
    """With a beam of 4: BLEU and perplexity over the run's tokens, and sacreBLEU of the text."""
    source, reference = (text / f"{split}.{language}" for language in run.languages)
    output = text / f"translated.{run.languages[1]}"
    files = ("--source", source, "--reference", reference, "--output", output)
    words = ("evaluate", checkpoint, *files, "--alpha", alpha, "--json")
    scores = json.loads(command(*map(str, words)))
    divide = run.tokens(run.languages[1])
    hypotheses, references = (
        [divide(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in (output, reference)
    )
    metric = sacrebleu.BLEU(tokenize=run.tokenize, smooth_method="none", force=True)
    bleu = metric.corpus_score(hypotheses, [references], n_bootstrap=1000)
    signature = str(metric.get_signature())
    spread = json.loads(bleu.format(signature=signature, is_json=True))
    tokenizer = Tokenizer.load(checkpoint / "tokenizer.model")
    n_pieces = sum(
        len(tokenizer.encode(line)) + 1
        for line in reference.read_text(encoding="utf-8").splitlines()
    )
    n_words = sum(len(line.split()) + 1 for line in references)
    return {
        "BLEU": {
            "score": bleu.score,
            "half_interval": spread["confidence_var"],  # 95 %, over other draws of sentences
            "brevity_penalty": bleu.bp,
            "reference_tokens": bleu.ref_len,
            "signature": signature,
        },
        "perplexity_per_word": math.exp(math.log(scores["perplexity"]) * n_pieces / n_words),
        "as_it_is": scores,
    }


def scores(run: Run, averages: Sequence[Path], text: Path) -> dict[str, Any]:
    """Of the last average, and of those before it with the paper's length penalty."""
    *earlier, averaged = averages
    paper = run.alphas[0]
    valid = {alpha: score(run, averaged, text, "valid", alpha)["BLEU"] for alpha in run.alphas}
    best = max(run.alphas, key=lambda alpha: valid[alpha]["score"])
    test = {alpha: score(run, averaged, text, "test", alpha) for alpha in {paper, best}}
    config = ModelConfig(**json.loads((averaged / "config.json").read_text())["model"])
    return {
        "about": run.about,
        "published": run.published,
        "languages": run.languages,
        "parameters": count_parameters(config),
        "test": test[paper],
        "averages_before": [
            {split: score(run, one, text, split, paper)["BLEU"] for split in ("valid", "test")}
            for one in earlier
        ],
        "by_alpha": {
            "valid": [{"alpha": alpha, **found} for alpha, found in valid.items()],
            "alpha": best,
            "test": test[best],
        },
        "averaged": run.average,
    }


def measured(run: Run, name: str, first_seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """The record of a run: what is missing of its stages is trained, and the last average scored.

    `first_seed` is that of a stage that has one seed.
    """
    text = args.runs / f"multi30k_{args.name}-text"
    done: list[dict[str, Any]] = []
    averages: list[Path] = []
    if not (text / f"test.{run.languages[1]}").exists():
        write_text(run, text)
    for number, stage in enumerate(run.stages, start=1):
        folders = [args.runs / f"{name}-{number}"]
        folders += [args.runs / f"{name}-{number}-seed-{n}" for n in range(2, stage.seeds + 1)]
        before, split = averages[-1] if averages else None, "train"
        if stage.taught and before:
            split = f"train-{number}"
            # The source is written last. A run goes on with the text that it began with.
            if not args.score and not (text / f"{split}.{run.languages[0]}").exists():
                add_translations(run, before, text, split)
        for seed, folder in enumerate(folders, start=first_seed):
            if not args.score and not (folder / "seconds").exists():
                settings = stage.settings | {"seed": seed}
                learn(run, text, split, folder, settings, before, args.processes)
        averages.append(args.runs / f"{name}-{number}-averaged")
        words = ("--last", str(run.average), "--out", str(averages[-1]))
        command("average", *map(str, folders), *words)
        done += map(described, folders)
    record = {"run": args.name} | scores(run, averages, text)
    return record | {"training": done[0], "further_stages": done[1:]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("name", nargs="?", choices=RUNS)
    parser.add_argument(
        "--runs", type=Path, default=ROOT / "runs", help="where runs are kept (default runs/)"
    )
    parser.add_argument("--score", action="store_true", help="do not train, only score and record")
    parser.add_argument("--processes", type=int, default=1, help="that train side by side")
    seeds = "each a run of its own (default 1); others for a run of one stage only"
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help=seeds)
    args = parser.parse_args(arguments)
    if not args.name:
        print("\n".join(f"{name:15} {run.about}" for name, run in RUNS.items()))
        return
    run, name = RUNS[args.name], f"multi30k_{args.name}"
    if args.seeds != [1] and len(run.stages) > 1:
        parser.error(f"{args.name} has stages with seeds of their own")
    records = []
    for seed in args.seeds:
        of = name if seed == 1 else f"{name}-of-seed-{seed}"
        kept = args.runs / f"{of}-scores.json"
        if not kept.exists():
            kept.write_text(json.dumps(measured(run, of, seed, args)), encoding="utf-8")
        records.append(json.loads(kept.read_text(encoding="utf-8")))
    typed = f" --seeds {' '.join(map(str, args.seeds))}" if args.seeds != [1] else ""
    write_result(
        ROOT / "book" / "results" / f"{name}.json",
        f"python benchmarks/multi30k.py {args.name}{typed}",
        records,
        "cuda" if torch.cuda.is_available() else "cpu",  # where `train` goes of itself
        commit=records[0]["training"]["commit"],
    )
    print(*(json.dumps(record["test"], indent=1) for record in records), sep="\n")


if __name__ == "__main__":
    run_main(main)
