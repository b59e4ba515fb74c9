"""How long one command takes from a file of pairs to a page: python benchmarks/from_pairs.py.

    python benchmarks/from_pairs.py                                  20,000 pairs, in minutes
    python benchmarks/from_pairs.py --small --out /tmp/pairs.json    200 pairs and 12 steps

It draws pairs of tatoeba-large-en-de by a seed, does with their file what `annotated-transformer
new` does, and lets the page translate the first 100 sentences of the test split in Node, if it is
there. The time is the clock's, from reading the file to the finished page; what the processor
worked stands beside it. `--keep DIR` keeps what was made, in a new directory.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from annotated_transformer.data import corpus
from annotated_transformer.errors import require
from annotated_transformer.extras.from_pairs.making import make
from annotated_transformer.training.plan import Plan
from benchmarks.timing import out_path, write
from tools.arguments import parser_of, run_main
from tools.page_engine import NODE, run_engine

CORPUS = "tatoeba-large-en-de"
N_PAIRS, N_ASKED = 20_000, 100
SMALL = Plan(60, N=1, d_model=16, d_ff=16, h=2, train_steps=12, max_tokens=300, warmup_steps=5)


def draw_pairs(name: str, n_pairs: int, seed: int) -> str:
    """So many pairs of a corpus as the text of a file: lines of a source, a tab, a target."""
    pairs = random.Random(seed).sample(corpus.load(name, "train"), n_pairs)
    return "".join(f"{source}\t{target}\n" for source, target in pairs)


def from_file_to_page(pairs: Path, out: Path, plan: Plan | None) -> dict[str, Any]:
    """Make everything, and count minutes, pairs, parameters, bytes and BLEU."""
    clock, processor = time.perf_counter(), time.process_time()
    make(pairs, out, plan)
    minutes = (time.perf_counter() - clock) / 60
    scores = json.loads((out / "scores.json").read_text(encoding="utf-8"))
    return {
        "pairs": len(pairs.read_text(encoding="utf-8").splitlines()),
        "minutes": round(minutes, 2),
        "minutes of the processor": round((time.process_time() - processor) / 60, 2),
        "parameters": scores["parameters"],
        "BLEU": scores["scores"]["BLEU"],
        "page bytes": sum(path.stat().st_size for path in (out / "page").iterdir()),
    }


def said_by_the_page(out: Path) -> dict[str, int]:
    """Of the test split's first sentences, how many the page translates as the model in float32.

    The page has 8 bits a weight, so it need not be all.
    """
    scores = json.loads((out / "scores.json").read_text(encoding="utf-8"))
    some = scores["translations"][:N_ASKED]
    settings = {"beamSize": 4, "alpha": 0.6}
    job = {"do": "translate", "texts": [source for source, _, _ in some], "settings": settings}
    (answers,) = run_engine(out / "page", job)
    said = [answer["hypotheses"][0]["text"] for answer in answers]
    same = sum(theirs == ours for (_, _, theirs), ours in zip(some, said, strict=True))
    return {"asked": len(said), "not empty": sum(map(bool, said)), "as in float32": same}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write the record."""
    parser = parser_of(__doc__, small=True, out=True)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a new directory")
    args = parser.parse_args(arguments)
    name, n_pairs, plan = ("reverse", 200, SMALL) if args.small else (CORPUS, N_PAIRS, None)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        pairs = folder / "mine.tsv"
        require(not (args.keep and args.keep.exists()), f"{args.keep} exists")
        folder.mkdir(parents=True, exist_ok=True)
        pairs.write_text(draw_pairs(name, n_pairs, seed=1), encoding="utf-8")
        record = {"corpus": name, **from_file_to_page(pairs, folder / "mine", plan)}
        if NODE:
            record["page"] = said_by_the_page(folder / "mine")
    print(json.dumps(record, ensure_ascii=False, indent=1))
    write(out_path(args, "from_pairs"), "from_pairs", arguments, [record])


if __name__ == "__main__":
    run_main(main)
