"""The verb `train`: the settings, pairs and tokenizer that its arguments name, and the run."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from annotated_transformer.command_line.options import require_none
from annotated_transformer.config import ModelConfig, SpecialIds, TrainConfig, count_parameters
from annotated_transformer.data.parallel_text import sample
from annotated_transformer.errors import require, say
from annotated_transformer.files import require_writable
from annotated_transformer.settings import did_you_mean

if TYPE_CHECKING:
    from annotated_transformer.data.tokenizer import Tokenizer
    from annotated_transformer.extras.shards.reading import Shards
    from annotated_transformer.training.epochs import Augment
    from annotated_transformer.training.processes import Processes

FIXED = SpecialIds._fields  # the tokenizer's, which no flag can change
BYTES_PER_WEIGHT = 16  # in training: itself, its gradient and two moments of Adam, in float32
Pairs = list[tuple[str, str]]


def train_in(processes: Processes, args: Namespace, device: str) -> None:
    """Train a run, or go on with it, and print its last figures as one line of JSON."""
    from annotated_transformer.checkpoint.directory import state_files
    from annotated_transformer.checkpoint.weights import require_memory
    from annotated_transformer.data.tokenizer import Tokenizer
    from annotated_transformer.training.log import read_log
    from annotated_transformer.training.loop import train
    from annotated_transformer.training.processes import require_parallel

    out = Path(args.out)
    model_config, train_config, corpus = run_settings(args, out)
    require_parallel(train_config, processes)
    load = partial(training_pairs, args, corpus)
    # One process of a machine downloads, and gets the pairs; the others then read what is there.
    train_pairs, valid_pairs, corpus = processes.once_per_machine(load) or load()
    n_merges = None
    if is_planned(args):
        model_config, train_config, n_merges = planned(args, model_config, len(train_pairs))
    n_parameters = count_parameters(model_config)
    on_host = BYTES_PER_WEIGHT if device == "cpu" else 4
    require_memory(on_host * n_parameters, f"training a model of {n_parameters:,} parameters")
    learn = partial(training_tokenizer, args, model_config, train_config, train_pairs, n_merges)
    tokenizer = Tokenizer(processes.from_first(lambda: learn().model_bytes))
    if n_merges:
        model_config = model_config.replace(vocab_size=tokenizer.vocab_size)
        n_parameters = count_parameters(model_config)
    began = time.perf_counter()
    try:
        train(
            model_config,
            train_config,
            tokenizer,
            train_pairs,
            valid_pairs,
            out,
            device=processes.device(device),
            resume=args.resume,
            init=args.init,
            progress=not args.quiet,
            tensorboard=args.tensorboard,
            corpus=corpus,
            processes=processes,
            augmentation=augmentation(train_config),
        )
    except KeyboardInterrupt:
        if processes.is_first and state_files(out):
            say(f"interrupted; {out} is saved, and --resume goes on from there")
        raise
    if processes.is_first:
        measured: dict[str, Any] = {}
        for record in read_log(out):
            measured |= record
        seconds = round(time.perf_counter() - began, 1)
        more = {"out": str(out), "parameters": n_parameters, "seconds": seconds}
        print(json.dumps(measured | more))


def augmentation(config: TrainConfig) -> Augment | None:
    """The rules of `--set augment=true`."""
    if not config.augment:
        return None
    from annotated_transformer.extras.visitors.augmentation import Augmentation

    return Augmentation


def require_options(args: Namespace) -> None:
    """Raise ConfigError for options that contradict each other, or would have no effect."""
    if args.init or args.shards:
        require_none(args, ["model_type"], "the vocabulary is there already")
    if args.train or args.valid:
        require_none(args, ["data_dir"], "--train and --valid name files")
    for option in ("seed", "vocab_size"):
        if any(assignment.startswith(f"{option}=") for assignment in args.set):
            require_none(args, [option], f"--set {option} says it already")
    if args.tensorboard:
        require_writable(Path(args.tensorboard) / "events")
        require(
            find_spec("tensorboard") is not None,
            "--tensorboard needs a package: pip install 'annotated-transformer[tensorboard]'",
        )


def run_settings(args: Namespace, out: Path) -> tuple[ModelConfig, TrainConfig, str]:
    """The configuration of the model and of the training, and the corpus as far as it is known.

    Raises ConfigError for settings that cannot be, and unless `out` has what --resume needs, or
    room for a new run.
    """
    model_changes, train_changes = assigned_settings(args.set)
    if args.seed is not None:
        train_changes["seed"] = args.seed
    if args.vocab_size is not None:
        model_changes["vocab_size"] = args.vocab_size
    if args.resume:
        return _resumed(args, out, model_changes, train_changes)

    from annotated_transformer.checkpoint.directory import require_room_for_run

    require_room_for_run(out)
    model_config = _model_config(args, model_changes)
    return model_config, TrainConfig.from_dict(train_changes), args.corpus or ""


def is_planned(args: Namespace) -> bool:
    """Whether a run begins whose length nobody has said."""
    return not args.resume and "train_steps" not in assigned_settings(args.set)[1]


def planned(
    args: Namespace, model_config: ModelConfig, n_pairs: int
) -> tuple[ModelConfig, TrainConfig, int | None]:
    """The settings of a run that fits so many pairs, save those that were given.

    A number of merges is there too, unless the size of the vocabulary was given.
    """
    from annotated_transformer.training.plan import plan_for, planned_training

    model_changes, train_changes = assigned_settings(args.set)
    plan = plan_for(n_pairs)
    if not (args.preset or args.init):
        model_config = plan.model_config(model_config.vocab_size).replace(**model_changes)
    train_config = planned_training(n_pairs, model_config.d_model, bool(args.init))
    if train_changes.keys() & {"lr_factor", "peak_rate"}:
        train_config = train_config.replace(peak_rate=None)
    if args.seed is not None:
        train_changes["seed"] = args.seed
    options = args.init, args.shards, args.vocab_size, args.model_type
    has_vocabulary = any(options) or "vocab_size" in model_changes
    n_merges = None if has_vocabulary else plan.n_merges
    return model_config, train_config.replace(**train_changes), n_merges


def _model_config(args: Namespace, changes: dict[str, Any]) -> ModelConfig:
    """The configuration of a run that begins: a preset's, or that of --init, with changes."""
    if not args.init:
        if args.shards and "vocab_size" not in changes:
            from annotated_transformer.extras.shards.reading import Shards

            changes["vocab_size"] = Shards(args.shards).manifest.vocab_size
        return getattr(ModelConfig, args.preset or "tiny")(**{"vocab_size": 8000, **changes})

    from annotated_transformer.checkpoint.directory import read_model_config

    require(
        Path(args.init).resolve() != Path(args.out).resolve(),
        "--init and --out must be two directories",
    )
    require(
        not (args.preset or "vocab_size" in changes),
        "--init brings its vocabulary and model: no --vocab-size, no --preset",
    )
    return read_model_config(args.init).replace(**changes)


def assigned_settings(assignments: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`--set name=value` as settings of the model and of the training."""
    model_names, train_names = (
        {field.name for field in fields(kind)} for kind in (ModelConfig, TrainConfig)
    )
    known = (model_names | train_names) - {*FIXED}
    model: dict[str, Any] = {}
    training: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        require(bool(equals), f"--set takes name=value, got {assignment}")
        hint = did_you_mean(name, {setting: setting for setting in known})
        require(name in known, f"there is no setting {name}{hint}")
        if name in model_names:
            model[name] = ModelConfig.parse(name, value)
        else:
            training[name] = TrainConfig.parse(name, value)
    return model, training


def _resumed(
    args: Namespace, out: Path, model_changes: dict[str, Any], train_changes: dict[str, Any]
) -> tuple[ModelConfig, TrainConfig, str]:
    """The settings of the run in `out`, with those changed that may change.

    Raises ConfigError for any other.
    """
    from annotated_transformer.checkpoint.directory import (
        read_config,
        read_model_config,
        state_files,
    )

    stored = read_config(out)
    before = read_model_config(out)
    require(
        "train" in stored and bool(state_files(out)),
        f"nothing to resume in {out}: no checkpoint was finished there; to begin the run again, "
        "leave out --resume",
    )
    if args.preset:
        sizes = {"vocab_size": before.vocab_size, **model_changes}
        after = getattr(ModelConfig, args.preset)(**sizes)
    else:
        after = before.replace(**model_changes)
    changed = [name for name, value in before.to_dict().items() if after.to_dict()[name] != value]
    require(
        not changed,
        f"{out} has another {', '.join(changed)}: it cannot be resumed with these settings",
    )
    name = stored.get("corpus", "")
    require(
        args.corpus in (None, name),
        f"{out} was trained on {name}, it cannot be resumed on {args.corpus}",
    )
    return before, TrainConfig.from_dict(stored["train"]).replace(**train_changes), name


def training_pairs(args: Namespace, name: str) -> tuple[Pairs | Shards, Pairs, str]:
    """Training and validation pairs, and what to call them.

    `name` is the corpus as far as `run_settings` knows it.
    """
    from annotated_transformer.data import corpus

    if args.shards:
        from annotated_transformer.extras.shards.reading import Shards

        require(
            not (args.train or args.corpus),
            "--shards is what to train on: give no --corpus and no --train",
        )
        shards = Shards(args.shards)
        name = shards.manifest.corpus
        require(
            bool(args.valid) or name in corpus.names(),
            f"{args.shards} was encoded from files of one's own, {name}: give --valid S T",
        )
    elif args.train or args.valid:
        require(bool(args.train), "--valid goes with --train: two files each, source and target")
        require(not args.corpus, "give --corpus, or --train and --valid, not both")
        name = " ".join(Path(file).name for file in args.train)
    else:
        require(
            bool(name),
            "there is nothing to train on: give --corpus NAME, or --train S T and --valid S T",
        )
        require(
            name in corpus.names() or not args.resume,
            f"{args.out} was trained on files of one's own, {name}: give --train S T and "
            "--valid S T again, or --shards DIR",
        )

    def load(split: str, files: list[str] | None) -> Pairs:
        return corpus.load_files(*files) if files else corpus.load(name, split, args.data_dir)

    if args.train and not args.valid:
        return *without_held_out(load("train", args.train)), name
    pairs = shards if args.shards else load("train", args.train)
    return pairs, load("valid", args.valid), name


def without_held_out(pairs: Pairs) -> tuple[Pairs, Pairs]:
    """The pairs to train on, and about 2% of all for validation that share no sentence with them.

    They are the same at every start.
    """
    from annotated_transformer.data.parallel_text import split_by_group
    from annotated_transformer.training.plan import n_held_out

    splits = split_by_group(pairs, n_held_out(len(pairs)))
    valid = splits["valid"]
    require(bool(valid), "the pairs are too alike to set some aside: give --valid S T")
    say(f"{len(valid):,} of {len(pairs):,} pairs are set aside for validation: no --valid is given")
    return splits["train"] + splits["test"], valid


def training_tokenizer(
    args: Namespace,
    config: ModelConfig,
    settings: TrainConfig,
    pairs: Pairs | Shards,
    n_merges: int | None = None,
) -> Tokenizer:
    """The tokenizer of the run that goes on, of --init or of the shards; or a new one.

    A new one is learned from the pairs, or from a sample where there are very many: with `n_merges`
    merges, or of the size that `config` says.
    """
    from annotated_transformer.data.tokenizer import Tokenizer

    if args.resume or args.init:
        return Tokenizer.load(Path(args.init or args.out) / "tokenizer.model")
    if not isinstance(pairs, list):
        return pairs.tokenizer()
    as_typed = settings.augment or settings.both_ways
    if n_merges:
        from annotated_transformer.training.plan import learn_vocabulary

        return learn_vocabulary(pairs, n_merges, as_typed)
    sampled = sample(pairs)
    say(f"learning a vocabulary of {config.vocab_size:,} from {len(sampled):,} training pairs")
    sentences = (sentence for pair in sampled for sentence in pair)
    return Tokenizer.train(
        sentences,
        config.vocab_size,
        model_type=args.model_type or "bpe",
        as_typed=as_typed,
    )


@contextmanager
def training_processes(args: Namespace, device: str) -> Iterator[Processes]:
    """The processes that torchrun has started, joined until the end of the block; or this one.

    With --resume, and after a failure, when torchrun starts them again with the same arguments, the
    run goes on from its last checkpoint; if it has none, it begins.
    """
    from annotated_transformer.checkpoint.directory import state_files
    from annotated_transformer.training.processes import joined

    def count_states() -> bytes:
        return bytes([len(state_files(args.out))])

    with joined(device) as processes:
        if args.resume or processes.restarted:
            args.resume = processes.from_first(count_states) != b"\0"
            if args.resume:
                args.init = None
        yield processes
