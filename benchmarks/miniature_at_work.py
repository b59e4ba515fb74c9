"""Is attention at work in the miniature base of Table 3? It is trained again and taken apart.

    OMP_NUM_THREADS=1 python benchmarks/miniature_at_work.py --seeds 1

The model of `annotated-transformer variations run base`, with the same seeds, without its scores in
BLEU. `looking.inspection.inspect` then says what the loss on the validation split becomes without
all of the encoder's self-attention, of the decoder's, of the cross-attention. A stopped run
goes on from its last checkpoint. It writes book/results/miniature_at_work.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from annotated_transformer.experiments.result_file import write_result
from annotated_transformer.experiments.table_3.miniature import VARIATIONS
from annotated_transformer.looking.inspection import inspect
from annotated_transformer.text import corpus
from annotated_transformer.text.tokenizer import Tokenizer
from annotated_transformer.training.loop import train

CORPUS = "tatoeba-en-de"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing and write the result file."""
    parser = argparse.ArgumentParser(description="Is attention at work in the miniature base?")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--runs", type=Path, default=Path("runs/miniature_at_work"))
    parser.add_argument("--out", type=Path, default=Path("book/results/miniature_at_work.json"))
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    pairs, valid = list(corpus.load(CORPUS, "train")), list(corpus.load(CORPUS, "valid"))
    records = []
    for seed in range(1, args.seeds + 1):
        model_config, train_config = VARIATIONS["base"].configs(seed, args.steps)
        tokenizer = Tokenizer.train(
            [text for pair in pairs for text in pair], model_config.vocab_size
        )
        folder = args.runs / f"base-{seed}"
        resume = (folder / "training.safetensors").exists()
        more = {"resume": resume, "progress": False, "corpus": CORPUS}
        model = train(model_config, train_config, tokenizer, pairs, [], folder, **more)
        report = inspect(model, tokenizer, valid, scores_bleu=False)
        settings = {"row": "base", "seed": seed, "steps": args.steps, "corpus": CORPUS}
        records.append({**settings, "split": "valid", **report})
        print(settings, report["whole"], report["without"], flush=True)
    command = f"OMP_NUM_THREADS=1 python benchmarks/miniature_at_work.py --seeds {args.seeds}"
    write_result(args.out, command, records)


if __name__ == "__main__":
    main()
