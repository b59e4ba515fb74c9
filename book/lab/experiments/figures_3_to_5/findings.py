"""Figures 3 to 5 measured: what heads look at, and what is lost without them.

    python -m lab.experiments.figures_3_to_5            three seeds
    python -m lab.experiments.figures_3_to_5 --small    toy size, in seconds

What is trained is kept. A small Transformer is trained on `controlled_corpus` for each seed
(runs/figures_3_to_5/seed-K). Every head is then measured on sentences that tell where its attention
should go: its mean weight on that word, beside what even weights and the other candidate get. The
best head is chosen on the validation sentences and reported on the test's. Then each head in turn
is taken away. All goes to book/results/figures_3_to_5.json, a record a seed and one of all seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from annotated_transformer.checkpoint.directory import load_model, read_config
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.data.batching import pad_source
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import require
from annotated_transformer.extras.attention_views.record import ATTENTIONS, record_attention
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training.loop import train
from lab.experiments.figures_3_to_5.attention_shares import (
    Shares,
    answers,
    best_head,
    prepare,
    shares,
)
from lab.experiments.figures_3_to_5.controlled_corpus import (
    PARTS,
    is_held_out,
    sentences,
    text_pairs,
)
from lab.experiments.figures_3_to_5.controlled_grammar import Sentence, position
from lab.experiments.figures_3_to_5.knock_out import (
    ablation,
    by_place_of_antecedent,
    rounded,
    score,
)
from lab.experiments.result_file import RUNS, folder_of, require_same_settings, write_result
from lab.experiments.significance import Estimate, estimate, ratio_of_sums

COMMAND = "python -m lab.experiments.figures_3_to_5"
VOCABULARY = 1400
"""Enough merges for every word of the corpus to be one token: a token's weight is a word's."""
MODEL: dict[str, Any] = {"N": 2, "d_model": 64, "d_ff": 256, "h": 4, "initialization": "scaled"}
TRAINING: dict[str, Any] = dict(train_steps=1500, max_tokens=1500, warmup_steps=400, lr_factor=0.7)
SMALL_MODEL: dict[str, Any] = {**MODEL, "d_model": 16, "d_ff": 32, "h": 2}
SMALL_TRAINING: dict[str, Any] = dict(
    train_steps=20, max_tokens=600, warmup_steps=10, lr_factor=1.0
)
ANTECEDENT = "pronoun to antecedent, encoder"
EXAMPLES = tuple(
    f"The wheel did not fit into the bucket because it was too {size} ."
    for size in ("wide", "narrow")
)
"""Held-out nouns in a held-out template."""


def trained(seed: int, runs: Path, small: bool) -> tuple[Transformer, Tokenizer]:
    """The model of this seed, trained now or found in `runs`; resumed where it had stopped."""
    out = runs / f"seed-{seed}"
    settings = SMALL_TRAINING if small else TRAINING
    config = TrainConfig(
        **settings,
        seed=seed,
        precision="fp32",
        log_every=100,
        validate_every=10**6,
        checkpoint_every=200,
        keep_checkpoints=1,
    )
    state = out / "training.safetensors"
    done = out / "done"
    model_config = ModelConfig(vocab_size=VOCABULARY, **(SMALL_MODEL if small else MODEL))
    if not done.exists():
        pairs, valid = text_pairs("train"), text_pairs("valid")[:20]
        tokenizer = Tokenizer.train([text for pair in pairs[:6000] for text in pair], VOCABULARY)
        more: dict[str, Any] = {"resume": state.exists(), "corpus": "controlled-en-de"}
        train(model_config, config, tokenizer, pairs, valid, out, **more)
        done.touch()
    require_same_settings(out, read_config(out), model_config, config)
    return load_model(out)


class Measured(NamedTuple):
    """One seed's record, and `best`, for each link (n, 2).

    A row of it is a sentence: the weight of the link's best head, and the number of links.
    """

    record: dict[str, Any]
    best: dict[str, Tensor]


def measure(model: Transformer, tokenizer: Tokenizer, seed: int, every: int) -> Measured:
    """Everything about one seed's model.

    Attention and ablation are measured on every `every`-th sentence of the test.
    """
    test, valid = (prepare(tokenizer, sentences(split)[::every]) for split in ("test", "valid"))
    chosen_on, found = shares(model, valid), shares(model, test)
    torch.manual_seed(seed)
    untrained = Transformer(model.config).eval()
    untrained_on, untrained_found = shares(untrained, valid), shares(untrained, test)
    best, table = {}, {}
    for name, each in found.items():
        layer, head = best_head(chosen_on[name])
        best[name] = torch.stack([each.weight[:, layer, head], each.n_links], 1)
        share, n_rival = estimate(ratio_of_sums, [best[name]]), each.n_rival.sum()
        table[name] = {
            "best": [layer, head],
            **_share(share),
            "even": (each.even.sum() / each.n_links.sum()).item(),
            "links": int(each.n_links.sum()),
            "untrained": _weight(untrained_found[name], best_head(untrained_on[name])),
            "all heads": rounded(each.weight.sum(0) / each.n_links.sum()),
        }
        if n_rival:
            table[name] |= {
                "rival": (each.rival.sum(0)[layer, head] / n_rival).item(),
                "weight beside a rival": (each.beside_rival.sum(0)[layer, head] / n_rival).item(),
            }
    record = {
        "seed": seed,
        "accuracy": accuracy(model, tokenizer, sentences("test")[:: max(1, every // 4)]),
        "shares": table,
        "ablation": ablation(model, test, chosen_on, seed),
        "places": by_place_of_antecedent(
            model, test, valid, found[ANTECEDENT], chosen_on[ANTECEDENT]
        ),
        "example": example(model, tokenizer),
    }
    return Measured(record, best)


def accuracy(
    model: Transformer, tokenizer: Tokenizer, test: Sequence[Sentence]
) -> dict[str, dict[str, int | float]]:
    """For each part of the test: pronouns right, and whole translations right.

    Pronouns are counted in forced decoding and in greedy translations.
    """
    found = {}
    forced = answers(model, prepare(tokenizer, test))
    sources = [sentence.texts[0] for sentence in test]
    translations = Translator(model, tokenizer).translate(sources, beam_size=1)
    for part, held_out in PARTS.items():
        rows = [i for i, sentence in enumerate(test) if is_held_out(sentence) == held_out]
        right = 0
        for i in rows:
            where = position(test[i].german, "pronoun")
            right += translations[i].split()[where : where + 1] == [test[i].german[where].text]
        whole = sum(translations[i] == test[i].texts[1] for i in rows)
        found[part] = {
            "sentences": len(rows),
            "forced": score(forced["pronoun"][rows]),
            "greedy": right / len(rows),
            "whole translations": whole / len(rows),
            "other": score(forced["other"][rows]),
        }
    return found


@torch.inference_mode()
def example(model: Transformer, tokenizer: Tokenizer) -> dict[str, Any]:
    """Two sentences that differ in one word: their translations, and where *it* looks, (N, h, S).

    The weights of *it* are the encoder's.
    """
    found: dict[str, Any] = {}
    translations = Translator(model, tokenizer).translate(list(EXAMPLES), beam_size=1)
    for text, translation in zip(EXAMPLES, translations):
        with record_attention(model) as weights:
            model.encode(pad_source([tokenizer.encode(text)]))
        row = text.split().index("it")
        names = [ATTENTIONS["encoder"].path.format(i) for i in range(model.config.N)]
        maps = torch.stack([weights[name][0, :, row] for name in names])
        found[text] = {"translation": translation, "it": rounded(maps)}
    return found


def _weight(found: Shares, head: tuple[int, int]) -> float:
    return (found.weight.sum(0)[head] / found.n_links.sum()).item()


def _share(share: Estimate) -> dict[str, float]:
    return {"weight": share.mean, "low": max(0.0, share.low), "high": min(1.0, share.high)}


def over_seeds(measured: Sequence[Measured]) -> dict[str, Any]:
    """Means over seeds, and for each link its best head (another in each seed).

    The interval is that of sentences and seeds.
    """
    records = [seed.record for seed in measured]
    table = {}
    for name in measured[0].best:
        share = estimate(ratio_of_sums, [seed.best[name] for seed in measured])
        table[name] = {
            **_share(share),
            "seeds": share.seeds,
            "even": records[0]["shares"][name]["even"],
            "untrained": [record["shares"][name]["untrained"] for record in records],
        }
        if "rival" in records[0]["shares"][name]:
            for key in ("rival", "weight beside a rival"):
                total = sum(record["shares"][name][key] for record in records)
                table[name][key] = total / len(records)
    mean_accuracy = {}
    for part in PARTS:
        rows = [record["accuracy"][part] for record in records]
        mean_accuracy[part] = {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]}
    return {
        "seeds": [record["seed"] for record in records],
        "accuracy": mean_accuracy,
        "shares": table,
    }


def main(arguments: list[str] | None = None) -> None:
    """Train or load each seed's model, measure it, and write figures_3_to_5.json."""
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--small", action="store_true", help="toy size, to a temporary folder if there is no --out")
    add("--out", type=Path, help="where figures_3_to_5.json goes (default: book/results)")
    add("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    require(options.seeds >= 1, f"seeds must be at least 1, got {options.seeds}")
    torch.set_num_threads(1)
    out = folder_of(options.out, options.small)
    runs = out / "runs" if options.small else RUNS / "figures_3_to_5"
    n_seeds, every = (1, 100) if options.small else (options.seeds, 4)
    measured = []
    for seed in range(1, n_seeds + 1):
        model, tokenizer = trained(seed, runs, options.small)
        measured.append(measure(model, tokenizer, seed, every))
    records = [seed.record for seed in measured]
    records.append(over_seeds(measured))
    write_result(
        out / "figures_3_to_5.json",
        COMMAND + " --small" * options.small,
        records,
        model=SMALL_MODEL if options.small else MODEL,
        training=SMALL_TRAINING if options.small else TRAINING,
        sentences={split: len(sentences(split)) for split in ("train", "valid", "test")},
    )
    print(out / "figures_3_to_5.json")


if __name__ == "__main__":
    main()
