"""The steps of the book's page on WMT 2014, on a slice of the real text; wmt_slice_training.json.

    pip install sacremoses
    python benchmarks/wmt_slice_training.py train.en.gz train.de.gz     minutes on one core
    python benchmarks/wmt_slice_training.py a.en a.de --small --out /tmp/w.json

The slice (see wmt_slice.py) is cut into three splits that share no sentence, and then shards are
encoded, a model is trained from them, checkpoints are averaged, the test split is translated and
scored twice, all by the commands of the page with smaller numbers. Ten thousand pairs are far too
few to learn to translate. What the record can say is that every step runs on such text, and that
the model reads its source: perplexity stands beside that of the same targets when each is given
another sentence's source.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import gzip
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from annotated_transformer.data.parallel_text import Pair, split_by_group
from benchmarks import compound_split
from benchmarks.recipes import ROOT, command, described, train
from benchmarks.wmt_slice import read_slice
from lab.experiments.result_file import RESULTS, write_result
from tools.arguments import parser_of, run_main

CORPUS = "wmt14-en-de"
SIZES: dict[str, Any] = dict(
    N=3, d_model=192, d_ff=768, h=6, p_drop=0.3, initialization="glorot",
    max_tokens=2048, warmup_steps=400, lr_factor=0.5, train_steps=1200,
    validate_every=400, checkpoint_every=60,
)  # fmt: skip
SMALL: dict[str, Any] = dict(
    N=1, d_model=16, d_ff=32, h=2, train_steps=10, checkpoint_every=2, max_tokens=1500,
    warmup_steps=9,
)  # fmt: skip


def write_splits(folder: Path, pairs: list[Pair], n_held_out: int) -> dict[str, list[Pair]]:
    """The splits as the hub has them: a line of JSON for each pair."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = split_by_group(pairs, n_held_out)
    for split, some in splits.items():
        with gzip.open(folder / f"{split}.jsonl.gz", "wt", encoding="utf-8", newline="\n") as file:
            for english, german in some:
                row = {"translation": {"en": english, "de": german}}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return splits


def score(
    averaged: Path, data: tuple[str, ...], folder: Path, test: list[Pair], tokens: str
) -> dict[str, Any]:
    """Both scores of the page, and perplexity with the right sources and with others'."""
    translated, other, target = (folder / name for name in ("test.translated", "other", "target"))
    search = ("--beam-size", "4", "--alpha", "0.6", "--max-extra", "50")
    of_split = ("--corpus", CORPUS, *data, "--split", "test", *search)
    written = ("--output", str(translated))
    scores = json.loads(command("evaluate", str(averaged), *of_split, *written, "--json"))
    sources = [source for source, _ in test]
    other.write_text("".join(f"{source}\n" for source in sources[1:] + sources[:1]), "utf-8")
    target.write_text("".join(f"{side}\n" for _, side in test), "utf-8")
    files = ("--source", str(other), "--reference", str(target))
    with_others = json.loads(command("evaluate", str(averaged), *files, *search, "--json"))
    lines = translated.read_text(encoding="utf-8").splitlines()
    tokenize = compound_split.TOKENS[tokens]("de")
    split_bleu = compound_split.compound_split_bleu(lines, [side for _, side in test], tokenize)
    return {
        "sacreBLEU": scores["BLEU"],
        "compound-split BLEU": {"tokens": tokens, **split_bleu._asdict()},
        "perplexity": scores["perplexity"],
        "perplexity with other sources": with_others["perplexity"],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, small=True)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--runs", type=Path, help="where the run is kept (default runs/)")
    parser.add_argument("--out", type=Path, default=RESULTS / "wmt_slice_training.json")
    args = parser.parse_args(arguments)
    sizes, vocab_size, n_held_out, tokens = SIZES, 8000, 500, "moses"
    if args.small:  # sacremoses need not be there
        sizes, vocab_size, n_held_out, tokens = SMALL, 600, 8, "13a"
    with tempfile.TemporaryDirectory() as scratch:
        folder = (args.runs or (Path(scratch) if args.small else ROOT / "runs")) / "wmt_slice"
        slice_, shards, run, averaged = (
            folder / name for name in ("wmt14-en-de", "shards", "run", "averaged")
        )
        splits = write_splits(slice_, read_slice(args.source, args.target), n_held_out)
        data = ("--data-dir", str(slice_))
        to = ("--vocab-size", str(vocab_size), "--out", str(shards))
        encoded = json.loads(command("prepare", CORPUS, "--encode", *data, *to, "--quiet"))
        settings = (word for item in sizes.items() for word in ("--set", "{}={}".format(*item)))
        train(("--shards", str(shards), *data), run, tuple(settings), None)
        command("average", str(run), "--last", "5", "--out", str(averaged))
        record = {
            "pairs": {split: len(some) for split, some in splits.items()},
            "encoded": encoded,
            "training": described(run),
            "test": score(averaged, data, folder, splits["test"], tokens),
        }
        commit = (run / "commit").read_text().strip()
    words = f"{args.source.name} {args.target.name}" + " --small" * args.small
    write_result(
        args.out, f"python benchmarks/wmt_slice_training.py {words}", [record], "cpu", commit=commit
    )
    print(json.dumps(record["test"], indent=1, ensure_ascii=False))


if __name__ == "__main__":
    run_main(main)
