"""Table 3 in miniature (section 6.2): each row scaled down, trained with several seeds, scored.

The rule of the scale: every width (d_model, d_ff, d_k, d_v) is divided by 4 and every number of
layers by 2; heads, dropout and smoothing stay; initial values are Glorot's. Every row takes `STEPS`
steps, big as well, to which the paper gives three times as many, on batches of 512 tokens a side in
place of 25,000, with warm-up in the first 400, and a vocabulary of 2,000. At the rate of equation 3
itself three seeds of an earlier base ended 4 BLEU apart; hence the factor of 0.3 before it. Corpus,
width, rate and number of steps were chosen on base alone, with a seed of its own, for the controls
that follow and for the hours that a row takes (LOG.md, "Table 3 in miniature, at a size where
attention is in use"); that flatters base, in its scores and in its spread. The rest is the paper's:
Adam, schedule, beam 4, alpha 0.6, and no averaging of checkpoints in this table.

`STEPS` are two epochs, in which much of what Table 3 compares has no time to show. So there is a
second table, *to the end*: the same rule, `STEPS_TO_THE_END` steps, the rows `END`. Its runs record
their curve and score the average of their last checkpoints beside the last one. They take their
batches from `data.batching`.

Before any row is read, `CONTROLS` must show what is in use: parts that are taken out of base's own
trained weights.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from annotated_transformer.checkpoint.averaging import average_checkpoints
from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.data import corpus
from annotated_transformer.data.batching import WINDOW, PairsInMemory, encode_pairs, plan
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding.evaluation import bleu, mean_nll
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import require
from annotated_transformer.extras.attention_views.knock_out import heads_of, knocked_out
from annotated_transformer.files import write_text
from annotated_transformer.model.embedding import NoPositions
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training.log import read_log
from annotated_transformer.training.loop import train
from lab.experiments.result_file import commit, hardware, require_same_settings, versions
from lab.experiments.significance import SentenceScores, sentence_bleu_statistics, sentence_nll
from lab.tables.table_3 import TABLE_3

WIDTH, DEPTH = 4, 2
CORPUS = "multi30k-en-de"
STEPS, MAX_TOKENS, MAX_LENGTH, VOCAB_SIZE = 2000, 512, 64, 2000
WARMUP_STEPS, LR_FACTOR = 400, 0.3
N_SEEDS = 6
STEPS_TO_THE_END = 12_500
"""Ten epochs. Base's first seed was to set it, by the rule that perplexity falls by less than 1 %
in the last fifth of a run, and does not: it falls by 7 % there after 16 epochs (LOG.md). So this is
what the budget allows, and a verdict asks each row's own curve whether it tells.
"""
TO_THE_END: dict[str, Any] = {
    "window": WINDOW,
    "precision": "fp32",
    "log_every": 500,
    "validate_every": 500,
}
"""The settings in which runs to the end differ from the others, besides their steps."""
SHORT = 20  # the longest sentence, in tokens with eos, of the two variations that look beyond it
SCORES = "scores.json"
PARTS = "parts.json"
ON_TEST = "on test"


@dataclass(frozen=True)
class Variation:
    """A configuration to train: how it changes the scaled row `of`, compared with `against`.

    Lengths of its batches are multiples of `multiple_of`, on whatever device it is trained.
    """

    id: str
    about: str
    of: str = "base"
    against: str = "base"
    model: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    multiple_of: int = 1

    def configs(
        self,
        seed: int,
        steps: int = STEPS,
        vocab_size: int = VOCAB_SIZE,
        to_the_end: bool = False,
    ) -> tuple[ModelConfig, TrainConfig]:
        """The scaled-down model and training.

        Raises ConfigError where a width or depth does not divide.
        """
        row = next(row for row in TABLE_3 if row.id == self.of)
        full = row.model_config(vocab_size)
        odd = [name for name in ("d_model", "d_ff", "d_k", "d_v") if getattr(full, name) % WIDTH]
        divides = not odd and full.N % DEPTH == 0
        require(divides, f"{row.id} cannot be scaled down: {', '.join(odd) or 'N'}")
        sizes = {name: getattr(full, name) // WIDTH for name in ("d_model", "d_ff", "d_k", "d_v")}
        sizes |= {"N": full.N // DEPTH, "initialization": "glorot"}
        small = ModelConfig(**{**full.to_dict(), **sizes, **self.model})
        settings = {
            "max_tokens": MAX_TOKENS,
            "max_length": MAX_LENGTH,
            "warmup_steps": min(WARMUP_STEPS, max(1, steps // 5)),
            "lr_factor": LR_FACTOR,
            "seed": seed,
            "validate_every": 10**9,
            "checkpoint_every": max(1, steps // 70),
            **(TO_THE_END if to_the_end else {}),
            **row.train,
            "train_steps": steps,
            **self.train,
        }
        return small, TrainConfig(**settings)


def _table_3() -> Iterator[Variation]:
    for row in TABLE_3:
        yield Variation(row.id, f"Table 3: {row.name}", of=row.id)


TEN = ("A1", "A3", "B1", "C1", "C4", "C6", "D1", "D3", "E1", "big")
"""The rows that are run: for each kind of change the one that the paper moves most, and h=16."""

_SHORT, _ABOUT_SHORT = {"max_length": SHORT}, f"trained on sentences of at most {SHORT} tokens"
_UNSCALED = {"scaled_attention": False}
CLAIMS = (
    Variation("unscaled", "no 1/sqrt(d_k)", model=_UNSCALED),
    Variation("unscaled-A1", "no 1/sqrt(d_k), h=1", of="A1", against="A1", model=_UNSCALED),
    Variation("no-positions", "no positional encoding", model={"positions": "none"}),
    Variation("no-warm-up", "the peak rate from step 1", train={"warm_up": False}),
    Variation("pre-norm", "LayerNorm before each sub-layer", model={"norm": "pre"}),
    Variation("short", f"base, {_ABOUT_SHORT}", train=_SHORT),
    Variation("short-learned", "the same with learned positions", "E1", "short", train=_SHORT),
)
"""What the paper claims, or takes for granted, without a row in Table 3."""
END = ("base", *TEN, "no-positions", "no-warm-up", "pre-norm", "unscaled", "unscaled-A1")
"""The rows that are run to the end."""
_STABLE = {"schedule": "wsd"}
_SWIGLU = {"activation": "swiglu", "d_ff": 341}
_SUM = {"positions": "rotary", "qk_norm": True, **_SWIGLU}
_MUON = {"optimizer": "muon", **_STABLE}
OF_GPU = Variation("base-in-8s", "base, lengths in multiples of 8", multiple_of=8)
_since = partial(Variation, against=OF_GPU.id, multiple_of=OF_GPU.multiple_of)
SINCE = (
    _since("rms-norm", "RMSNorm for LayerNorm", model={"rms_norm": True}),
    _since("rotary", "rotary positions", model={"positions": "rotary"}),
    _since("swiglu", "SwiGLU, as many parameters", model=_SWIGLU),
    _since("qk-norm", "queries and keys normalised", model={"qk_norm": True}),
    _since("adamw", "AdamW, warm-up-stable-decay", train={"optimizer": "adamw", **_STABLE}),
    _since("muon", "Muon, warm-up-stable-decay", train=_MUON),
    _since("sum", "rotary, SwiGLU, QK norm, WSD", model=_SUM, train=_STABLE),
    OF_GPU,
)
"""What came after the paper, each alone, and the sum of those that helped; trained to the end, at
base's rate. `adamw` has no weight decay, so it is Adam, with another schedule. Most were
trained on a GPU, whose batches have lengths in multiples of 8, and so less text a step: all of them
have such batches, and base has, to be compared with.
"""
_OF_RATES: dict[str, dict[str, Any]] = {"base": {}, "muon": _MUON}
RATES = tuple(
    Variation(
        f"{name}-at-{factor}",
        f"{name}, factor {factor} of the rate",
        against=f"base-at-{LR_FACTOR}",
        train={**train, "lr_factor": factor},
    )
    for name, train in _OF_RATES.items()
    for factor in (0.15, LR_FACTOR, 0.6)
)
"""The search for a rate, for base and for Muon: on seed 0, which no table uses."""
OWN_RATES = (
    Variation("big-p-0.1-at-0.3", "big, p_drop 0.1", "big", model={"p_drop": 0.1}),
    Variation(
        "big-p-0.1-at-0.15",
        "big, p_drop 0.1, factor 0.15 of the rate",
        "big",
        model={"p_drop": 0.1},
        train={"lr_factor": 0.15},
    ),
    Variation("big-at-0.15", "big, factor 0.15 of the rate", "big", train={"lr_factor": 0.15}),
    *(
        Variation(
            f"{row}-at-{factor}",
            f"{about}, factor {factor} of the rate",
            model=model,
            train={**train, "lr_factor": factor},
        )
        for row, about, model, train in (
            ("no-warm-up", "the peak rate from step 1", {}, {"warm_up": False}),
            ("unscaled", "no 1/sqrt(d_k)", _UNSCALED, {}),
        )
        for factor in (0.15, 0.6)
    ),
)
"""Rows whose verdicts rest on base's rate, at other rates and, for big, at base's dropout.

The plan and the rule of choice are in `own_rates`, which runs them.
"""
ALL = (*_table_3(), *CLAIMS, *SINCE, *RATES, *OWN_RATES)
VARIATIONS = {variation.id: variation for variation in ALL}

DECODINGS: dict[str, dict[str, Any]] = {
    "beam-1": {"beam_size": 1},
    "beam-2": {"beam_size": 2},
    "beam-8": {"beam_size": 8},
    "beam-16": {"beam_size": 16},
    "alpha-0": {"alpha": 0.0},
    "alpha-1": {"alpha": 1.0},
    "averaged": {},
}
"""Other ways to search with base's weights (else beam 4, alpha 0.6).

"averaged" takes its last 5 checkpoints.
"""

CONTROLS = {
    "without-encoder": "without the encoder's self-attention",
    "without-decoder": "without the decoder's self-attention",
    "without-cross": "without the cross-attention",
    "without-positions": "with the positions switched off",
}
"""What is taken out of base's trained weights: of an attention, what every layer adds."""


class Task(NamedTuple):
    """One run: a variation, a seed, and where, on what corpus and device.

    It is scored on all validation sentences, or the first `n_sentences`, and with `test` on the
    test split as well.
    """

    id: str
    seed: int
    corpus: str
    out: Path
    steps: int = STEPS
    vocab_size: int = VOCAB_SIZE
    data_dir: str | None = None
    n_sentences: int | None = None
    to_the_end: bool = False
    device: str = "cpu"
    test: bool = False

    @property
    def directory(self) -> Path:
        return self.out / table_name(self.corpus, self.to_the_end) / f"{self.id}-{self.seed}"


def table_name(corpus_name: str, to_the_end: bool = False) -> str:
    """The folder of a table's runs, or of their scores."""
    return corpus_name + "-to-the-end" * to_the_end


def find_variations(names: Iterable[str]) -> list[Variation]:
    """The variations of these ids.

    "ten" stands for base and `TEN`, "table" for all of Table 3's rows, "claims" for the others,
    "all" for ten and claims, "end" for those that run to the end, "since" for what came after the
    paper, "rates" for the search before that, "own-rates" for the rows at rates of their own.
    Raises ConfigError for an unknown id.
    """
    ten, claims = ["base", *TEN], [claim.id for claim in CLAIMS]
    table = [row.id for row in TABLE_3]
    since, rates = ([variation.id for variation in some] for some in (SINCE, RATES))
    groups = {"ten": ten, "table": table, "claims": claims, "all": [*ten, *claims]}
    groups |= {"end": [*END], "since": since, "rates": rates}
    groups["own-rates"] = [variation.id for variation in OWN_RATES]
    ids = [one for name in names for one in groups.get(name, [name])]
    unknown = ", ".join(name for name in ids if name not in VARIATIONS)
    known = ", ".join([*groups, *VARIATIONS])
    require(not unknown, f"there is no variation {unknown}; there are {known}")
    return [VARIATIONS[name] for name in dict.fromkeys(ids)]


def tasks_of(
    names: Iterable[str], n_seeds: int, corpus_name: str, out: Path, **sizes: Any
) -> list[Task]:
    """Seed 1 of every row first; a search for a rate has seed 0 alone.

    If a run is missing, the corpus is fetched here, once, before processes would each try.
    """
    searched = {variation.id for variation in RATES}
    tasks = [
        Task(name, seed, corpus_name, out, **sizes)
        for seed, name in itertools.product(range(n_seeds + 1), names)
        if (name in searched) == (seed == 0)
    ]
    if not all((task.directory / SCORES).exists() for task in tasks):
        corpus.prepare(corpus_name, sizes.get("data_dir"))
    return tasks


def run_task(task: Task) -> Path:
    """Train (or go on training), translate the validation split, score, and write scores.json.

    Returns that file. A finished run is left as it is. On the CPU one thread is used, so that a run
    does not depend on the machine's number of cores. Raises ConfigError when the run in the
    directory was begun with other settings.
    """
    scores_file = task.directory / SCORES
    variation, sizes = VARIATIONS[task.id], (task.steps, task.vocab_size, task.to_the_end)
    model_config, train_config = variation.configs(task.seed, *sizes)
    if scores_file.exists():
        found = json.loads(scores_file.read_text(encoding="utf-8"))
        require_same_settings(task.directory, found, model_config, train_config)
        n = found.get("n_sentences")
        asked = task.n_sentences
        require(n == asked, f"{scores_file} scores {n or 'all'} sentences, not {asked or 'all'}")
        return scores_file
    torch.set_num_threads(1)
    parts = Parts(task.directory, task.device)
    pairs = list(corpus.load(task.corpus, "train", task.data_dir))
    sentences = (sentence for pair in pairs for sentence in pair)
    tokenizer = Tokenizer.train(sentences, model_config.vocab_size)
    resume = (task.directory / "training.safetensors").exists()
    more: dict[str, Any] = {"resume": resume, "progress": False, "corpus": task.corpus}
    more |= {"device": task.device, "multiple_of": variation.multiple_of}
    valid = list(corpus.load(task.corpus, "valid", task.data_dir))[: task.n_sentences]
    encoded = encode_pairs(tokenizer, valid, 10**9)
    if task.to_the_end:

        def validate(model: Transformer) -> dict[str, float]:
            parts.write()
            return {"valid_nll": mean_nll(model, encoded)}

        more["validate"] = validate
    try:
        train(model_config, train_config, tokenizer, pairs, [], task.directory, **more)
    finally:
        parts.write()
    scores = {"": scored_sentences(*_loaded(task), valid)}
    scores |= _more_scores(task, valid)
    log = read_log(task.directory)
    store = PairsInMemory(encode_pairs(tokenizer, pairs, train_config.max_length))
    n_batches = len(list(plan(store, MAX_TOKENS, multiple_of=variation.multiple_of)))
    record = {
        "id": task.id,
        "seed": task.seed,
        "corpus": task.corpus,
        "steps": train_config.train_steps,
        "model": model_config.to_dict(),
        "train": train_config.to_dict(),
        "epochs": round(train_config.train_steps / n_batches, 2),
        "curve": curve(log),
        "train_loss": next(line["loss"] for line in reversed(log) if "loss" in line),
        "n_sentences": task.n_sentences,
        "parts": parts.write(),
        "scores": scores,
    }
    write_text(scores_file, json.dumps(record))
    return scores_file


class Parts:
    """What each call of a run took, in parts.json of its folder: a run may be stopped and resumed.

    A part has its commit, hardware and versions, its seconds, and those of the processor, which do
    not count what else the machine did. `write` brings the last part up to date, so that a kill
    loses the time since the last call.
    """

    def __init__(self, folder: Path, device: str) -> None:
        self.file = folder / PARTS
        self.began = time.perf_counter()
        self.cpu_began = time.process_time()
        self.before = json.loads(self.file.read_text("utf-8")) if self.file.exists() else []
        self.origin = {"commit": commit(), "hardware": hardware(device), "versions": versions()}

    def write(self) -> list[dict[str, Any]]:
        """All parts, which are in the file now."""
        seconds = round(time.perf_counter() - self.began, 1)
        cpu_seconds = round(time.process_time() - self.cpu_began, 1)
        part = {**self.origin, "seconds": seconds, "cpu_seconds": cpu_seconds}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.file, json.dumps([*self.before, part]))
        return [*self.before, part]


def _loaded(task: Task, name: str = "") -> tuple[Transformer, Tokenizer]:
    """A run's weights, or those of a folder in it, on the task's device."""
    model, tokenizer = load_model(task.directory / name)
    return model.to(task.device), tokenizer


def _more_scores(task: Task, valid: list[tuple[str, str]]) -> dict[str, Any]:
    """The scores of a run's weights by the names of `DECODINGS` and `CONTROLS`.

    Base has all of them. A run to the end has "averaged", whatever its row, and a task with `test`
    the scores "on test" of its last checkpoint and of that average.
    """
    is_base = task.id == "base"
    names = [name for name in DECODINGS if is_base or name == "averaged" and task.to_the_end]
    scores = {}
    for name in names:
        averaged = name == "averaged"
        if averaged:
            average_checkpoints(task.directory, 5, task.directory / name)
        loaded = _loaded(task, name if averaged else "")
        scores[name] = scored_sentences(*loaded, valid, **DECODINGS[name])
    if task.test:
        test = list(corpus.load(task.corpus, "test", task.data_dir))[: task.n_sentences]
        for name in ("", "averaged") if task.to_the_end else ("",):
            scores[f"{name} {ON_TEST}".strip()] = scored_sentences(*_loaded(task, name), test)
    model, tokenizer = _loaded(task)
    for name in CONTROLS if is_base else ():
        with taken_out(model, name):
            scores[name] = scored_sentences(model, tokenizer, valid)
    return scores


def curve(log: Iterable[dict[str, Any]]) -> list[list[float]]:
    """Steps, training nll since the line before, validation nll (nats per token), from a log."""
    losses = {line["step"]: line["nll"] for line in log if "nll" in line}
    validated = {line["step"]: line["valid_nll"] for line in log if "valid_nll" in line}
    return [[step, round(losses[step], 4), round(nll, 4)] for step, nll in validated.items()]


def fall_of_last_fifth(points: Iterable[Sequence[float]], n_steps: int) -> float | None:
    """How far validation nll falls in the last fifth of `n_steps`; None where a curve is shorter.

    Between the points of the curve it is taken to be linear.
    """
    steps, _, nll = zip(*points, strict=True)
    if not steps[0] <= 0.8 * n_steps < n_steps <= steps[-1]:
        return None
    before, after = np.interp([0.8 * n_steps, n_steps], steps, nll)
    return float(before - after)


@contextmanager
def taken_out(model: Transformer, control: str) -> Iterator[None]:
    """The model as one of `CONTROLS` names it, for the length of the `with` block."""
    part = control.removeprefix("without-")
    if part != "positions":
        with knocked_out(*(head for layer in heads_of(model, part) for head in layer)):
            yield
        return
    kept, model.positions = model.positions, NoPositions()
    try:
        yield
    finally:
        model.positions = kept


def scored_sentences(
    model: Transformer, tokenizer: Tokenizer, pairs: list[tuple[str, str]], **search: Any
) -> dict[str, Any]:
    """BLEU with its signature, and what each sentence adds to perplexity and BLEU.

    The search is the paper's, by score alone. Whole numbers are kept as such.
    """
    sources, references = map(list, zip(*pairs, strict=True))
    hypotheses = Translator(model, tokenizer).translate(sources, **search)
    sides = (tokenizer.encode_batch(texts) for texts in (sources, references))
    encoded = list(zip(*sides, strict=True))
    nll = [[round(nats, 4), int(n)] for nats, n in sentence_nll(model, encoded).tolist()]
    counts = sentence_bleu_statistics(hypotheses, references).long().tolist()
    return {"signature": bleu(hypotheses, references).signature, "nll": nll, "bleu_counts": counts}


def read_scores(record: dict[str, Any], decoding: str = "") -> SentenceScores:
    """The sentences' scores in the content of a scores.json."""
    scores = record["scores"][decoding]
    nll, bleu_counts = (
        torch.tensor(scores[key], dtype=torch.float64) for key in ("nll", "bleu_counts")
    )
    return SentenceScores(nll, bleu_counts)
