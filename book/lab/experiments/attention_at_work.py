"""When does self-attention fall asleep? Entropy, and the cost of its absence, over training (5.3).

    python -m lab.experiments.attention_at_work --runs runs/attention_at_work
    python -m lab.experiments.attention_at_work --checkpoint book/model

One small model, three layers of 128 numbers a token, learns the default corpus in several ways,
which differ in one or two settings: the peak of the learning rate, the warm-up, the initial values,
clipping, dropout of the weights, joined pairs. At every validation the model is taken apart
(`extras.attention_views.report`): for each layer of the encoder the entropy of its heads, the spread of its
scores, and the nats that are lost on held-out text without it. At the end sentences are translated
with and without the encoder's self-attention, and the loss is divided by the length of the source
and by its construction.
A run that is finished is not run again, and one that was stopped goes on from its last checkpoint.

With `--checkpoint` nothing is trained: the loss of that model is divided so, without the encoder's
self-attention and with weights that cannot choose (`knocked_out`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from annotated_transformer.checkpoint.directory import load_model, read_config
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.data import corpus
from annotated_transformer.data.batching import TextPairs
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding.evaluation import scorable
from annotated_transformer.extras.attention_views.knock_out import heads_of, knocked_out
from annotated_transformer.extras.attention_views.report import attention_report
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training.log import read_log
from annotated_transformer.training.loop import train
from lab.experiments.result_file import RESULTS, RUNS, require_same_settings, write_result
from lab.experiments.significance import estimate, ratio_of_sums, sentence_nll

CORPUS, VOCAB_SIZE, N_PAIRS = "tatoeba-en-de", 3000, 200
TRAIN_STEPS, WARMUP_STEPS = 3000, 600
LOW, HIGH = 0.9e-3, 2.7e-3  # peak rates (LOG.md, "A model whose attention is at work")
LENGTHS = ((1, 5), (6, 8), (9, 100))
"""Sources by their number of words, as first and last."""
MARKS = {
    "pronoun": (1, {"it", "its", "they", "them", "their"}),
    "verb at the end": (0, {"will", "can", "must", "should", "have", "has", "had"}),
    "clause": (1, {"because", "that", "if", "when", "who", "which"}),
    "agreement": (0, {"a", "an", "the", "this", "these", "my", "your", "his", "her", "our"}),
}
"""Words that mark a construction, and from which word of the sentence on they do.

German puts a verb at the end after a modal or auxiliary verb and in a clause; its determiners agree
with a noun that comes later.
"""


class Recipe(NamedTuple):
    """One way to train: the peak of the rate, and what else is changed."""

    peak: float
    model: dict[str, Any] = {}
    train: dict[str, Any] = {}

    def configs(self, steps: int, vocab_size: int) -> tuple[ModelConfig, TrainConfig]:
        """The model and its training; the factor before equation 3 is what gives the peak."""
        model = ModelConfig(vocab_size=vocab_size, N=3, d_model=128, d_ff=512, h=4, p_drop=0.1)
        settings = TrainConfig(
            max_tokens=1024,
            warmup_steps=WARMUP_STEPS,
            train_steps=steps,
            log_every=50,
            validate_every=max(6, steps // 12),
            checkpoint_every=max(6, steps // 12),
            keep_checkpoints=1,
            precision="fp32",
        ).replace(**self.train)
        factor = self.peak * (model.d_model * settings.warmup_steps) ** 0.5
        return model.replace(**self.model), settings.replace(lr_factor=round(factor, 4))


GLOROT = {"initialization": "glorot"}
RECIPES = {
    "scaled, low": Recipe(LOW, {"initialization": "scaled"}),
    "scaled, high": Recipe(HIGH, {"initialization": "scaled"}),
    "glorot, low": Recipe(LOW, GLOROT),
    "glorot, high": Recipe(HIGH, GLOROT),
    "glorot, high, long warm-up": Recipe(HIGH, GLOROT, {"warmup_steps": 2000}),
    "glorot, high, clipped": Recipe(HIGH, GLOROT, {"clip_norm": 1.0}),
    "glorot, high, dropped weights": Recipe(HIGH, {**GLOROT, "attention_dropout": 0.1}),
    "glorot, low, joined pairs": Recipe(LOW, GLOROT, {"concatenate": 1.0}),
}


def measured_attention(
    model: Transformer, tokenizer: Tokenizer, pairs: TextPairs
) -> dict[str, float]:
    """What a line of the log says of attention: numbers by name, layer by layer and for all."""
    report = attention_report(model, tokenizer, pairs, scores_bleu=False)
    found = {
        "valid_nll": report["whole"]["nll"],
        "nats_without": report["without"]["encoder"]["nats"],
    }
    for layer in report["layers"]:
        if layer["attention"] == "encoder":
            for name, value in (
                ("entropy", statistics.median(layer["entropy"])),
                ("nats", layer["nats"]),
                ("spread", max(layer["spread"])),
            ):
                found[f"{name}_{layer['layer']}"] = value
    return found


def constructions(source: str) -> list[str]:
    """What a sentence has, by its words, that may need more than a translation word by word."""
    words = source.lower().rstrip(".?!").split()
    found = {name: bool(some & set(words[first:])) for name, (first, some) in MARKS.items()}
    found["question"] = source.rstrip().endswith("?")
    return [name for name, is_so in found.items() if is_so] or ["none of these"]


def loss_by_kind(
    model: Transformer, tokenizer: Tokenizer, pairs: TextPairs, even: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """Nats lost without the encoder's self-attention, by length and by construction.

    `by_length` has short, middling and long sources; `by_construction` those with a pronoun, and so
    on, a sentence perhaps in more than one. `low` and `high` end the 95 % interval over sentences.
    With `even` attention stays and cannot choose.
    """
    texts, encoded = scorable(model.config, tokenizer, pairs)
    words = [len(source.split()) for source, _ in texts]
    kinds = [constructions(source) for source, _ in texts]
    heads = [head for layer in heads_of(model, "encoder") for head in layer]
    whole = sentence_nll(model, encoded)
    with knocked_out(*heads, even=even):
        without = sentence_nll(model, encoded)

    def lost(name: str, value: Any, chosen: list[int]) -> list[dict[str, Any]]:
        if not chosen:
            return []
        found = estimate(ratio_of_sums, [without[chosen]], [whole[chosen]])
        ends = {"nats": found.mean, "low": found.low, "high": found.high}
        return [{name: value, "sentences": len(chosen), **ends}]

    lengths, constructed = [], []
    for first, last in LENGTHS:
        chosen = [i for i, n in enumerate(words) if first <= n <= last]
        lengths += lost("words", [first, last], chosen)
    for kind in (*MARKS, "question", "none of these"):
        chosen = [i for i, mine in enumerate(kinds) if kind in mine]
        constructed += lost("construction", kind, chosen)
    return {"by_length": lengths, "by_construction": constructed}


def run(name: str, folder: Path, small: bool, quiet: bool) -> dict[str, Any]:
    """Train one way, or go on with it, and describe it; `small` is a rehearsal of a few steps."""
    steps, n_train, n_valid = (12, 1000, 20) if small else (TRAIN_STEPS, None, None)
    train_pairs = corpus.load(CORPUS, "train")[:n_train]
    valid_pairs = corpus.load(CORPUS, "valid")[:n_valid]
    tokenizer = Tokenizer.train([text for pair in train_pairs for text in pair], VOCAB_SIZE)
    model_config, train_config = RECIPES[name].configs(steps, tokenizer.vocab_size)
    out = folder / name.replace(", ", "_").replace(" ", "_")
    done = out / "done.json"
    if not done.exists():
        some = valid_pairs[:N_PAIRS]
        model = train(
            model_config,
            train_config,
            tokenizer,
            train_pairs,
            [],
            out,
            validate=lambda model: measured_attention(model, tokenizer, some),
            resume=(out / "training.safetensors").exists(),
            progress=not quiet,
            corpus=CORPUS,
        )
        report = attention_report(model, tokenizer, valid_pairs)
        points = [line for line in read_log(out) if "nats_without" in line]
        found = {
            "whole": report["whole"],
            "without": report["without"]["encoder"],
            **loss_by_kind(model, tokenizer, valid_pairs),
            "points": points,
        }
        done.write_text(json.dumps(found))
    require_same_settings(out, read_config(out), model_config, train_config)
    record = {
        "name": name,
        "peak": RECIPES[name].peak,
        "model": model_config.to_dict(),
        "train": train_config.to_dict(),
    }
    return record | json.loads(done.read_text())


def divided_losses(checkpoint: Path, small: bool = False) -> list[dict[str, Any]]:
    """What a finished model loses, by kind of sentence, for either way to take attention away."""
    model, tokenizer = load_model(checkpoint)
    pairs = corpus.load(CORPUS, "valid")[: 20 if small else None]
    ways = (("nothing", False), ("even weights", True))
    return [
        {"instead": name, "pairs": len(pairs), **loss_by_kind(model, tokenizer, pairs, even)}
        for name, even in ways
    ]


def main(arguments: list[str] | None = None) -> None:
    """Train all ways, or some, one after the other, and write the result file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    or_scratch = "with --small a temporary one"
    where = f"the result file (default in book/results; {or_scratch})"
    parser.add_argument("--out", type=Path, help=where)
    parser.add_argument("--checkpoint", type=Path, help="divide the loss of this model instead")
    where = f"where runs are kept (default runs/attention_at_work; {or_scratch})"
    parser.add_argument("--runs", type=Path, help=where)
    parser.add_argument("--only", choices=RECIPES, action="append", help="one; may be repeated")
    parser.add_argument("--small", action="store_true", help="a rehearsal: 12 steps")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    args = parser.parse_args(arguments)
    command = "python -m lab.experiments.attention_at_work"
    scratch = Path(tempfile.mkdtemp()) if args.small else None
    runs = args.runs or scratch or RUNS / "attention_at_work"
    if args.checkpoint:
        command += f" --checkpoint {args.checkpoint}"
        records, name = divided_losses(args.checkpoint, args.small), "attention_by_kind"
    else:
        records = [run(name, runs, args.small, args.quiet) for name in args.only or RECIPES]
        name = "attention_at_work"
    out = args.out or (scratch or RESULTS) / f"{name}.json"
    write_result(out, command + (" --small" if args.small else ""), records)
    print(out)


if __name__ == "__main__":
    main()
