"""What the arguments of `train` mean: settings of a run that begins or goes on, and its pairs."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from annotated_transformer.command_line.encode_verb import SAMPLE
from annotated_transformer.config import ModelConfig, SpecialIds, TrainConfig
from annotated_transformer.errors import require, say

if TYPE_CHECKING:
    from annotated_transformer.text.shards import Shards
    from annotated_transformer.text.tokenizer import Tokenizer
    from annotated_transformer.training.distributed.processes import Processes

FIXED = SpecialIds._fields  # the tokenizer's, which no flag can change
Pairs = list[tuple[str, str]]


def run_settings(args: Namespace, out: Path) -> tuple[ModelConfig, TrainConfig, str]:
    """The configuration of the model and of the training, and the corpus as far as it is known.

    Raises ConfigError for settings that cannot be, and unless `out` has what --resume needs, or
    room for a new run.
    """
    model_changes, train_changes = assigned_settings(args.set)
    if args.seed is not None:
        train_changes["seed"] = args.seed
    vocab_size = model_changes.pop("vocab_size", args.vocab_size)
    require(
        not (args.resume and args.init),
        "--resume goes on with a run and --init begins one: give one of them",
    )
    if args.resume:
        return _resumed(args, out, vocab_size, model_changes, train_changes)

    from annotated_transformer.checkpoint.directory import state_files
    from annotated_transformer.training.run_directory import require_room

    require(
        not state_files(out),
        f"{out} already holds a run: add --resume to go on with it, or name another directory",
    )
    require_room(out)
    return (
        _new_model(args, vocab_size, model_changes),
        TrainConfig.from_dict(train_changes),
        args.corpus or "",
    )


def parallel_settings(
    args: Namespace, out: Path, processes: Processes
) -> tuple[ModelConfig, TrainConfig, str]:
    """`run_settings`. Raises ConfigError for those that many processes cannot have."""
    from annotated_transformer.training.distributed.processes import require_parallel

    settings = run_settings(args, out)
    require_parallel(settings[1], processes)
    return settings


def _new_model(args: Namespace, vocab_size: int | None, changes: dict[str, Any]) -> ModelConfig:
    """The configuration of a run that begins.

    It is that of a preset, or of the model that --init names, with changes.
    """
    if not args.init:
        if args.shards and vocab_size is None:
            from annotated_transformer.text.shards import Shards

            vocab_size = Shards(args.shards).manifest.vocab_size
        return getattr(ModelConfig, args.preset or "tiny")(
            8000 if vocab_size is None else vocab_size, **changes
        )

    from annotated_transformer.checkpoint.directory import read_model_config

    require(
        Path(args.init).resolve() != Path(args.out).resolve(),
        "--init and --out must be two directories",
    )
    require(
        not (args.preset or vocab_size),
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
        require(
            name in known,
            f"there is no setting {name}; there are {', '.join(sorted(known))}",
        )
        if name in model_names:
            model[name] = ModelConfig.parse(name, value)
        else:
            training[name] = TrainConfig.parse(name, value)
    return model, training


def _resumed(
    args: Namespace,
    out: Path,
    vocab_size: int | None,
    model_changes: dict[str, Any],
    train_changes: dict[str, Any],
) -> tuple[ModelConfig, TrainConfig, str]:
    """The settings of the run in `out`, with those changed that may change.

    Raises ConfigError for any other.
    """
    from annotated_transformer.checkpoint.directory import (
        read_config,
        read_model_config,
        state_files,
    )

    stored, before = read_config(out), read_model_config(out)
    require(
        "train" in stored and bool(state_files(out)),
        f"nothing to resume in {out}: no checkpoint was finished there; to begin the run again, "
        "leave out --resume",
    )
    if args.preset:
        after = getattr(ModelConfig, args.preset)(vocab_size or before.vocab_size, **model_changes)
    else:
        after = before.replace(**model_changes, vocab_size=vocab_size or before.vocab_size)
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
    """Training and validation pairs, and what to call them."""
    from annotated_transformer.text import corpus

    if args.shards:
        return _shards_and_validation(args)
    if args.train or args.valid:
        require(
            bool(args.train and args.valid),
            "--train and --valid go together: two files each, source and target",
        )
        require(not args.corpus, "give --corpus, or --train and --valid, not both")
        return corpus.load_files(*args.train), corpus.load_files(*args.valid), " ".join(args.train)
    require(
        bool(name),
        "there is nothing to train on: give --corpus NAME, or --train S T and --valid S T",
    )
    require(
        name in corpus.names() or not args.resume,
        f"{args.out} was trained on files of one's own, {name}: give --train S T and "
        "--valid S T again, or --shards DIR",
    )
    return (
        corpus.load(name, "train", args.data_dir),
        corpus.load(name, "valid", args.data_dir),
        name,
    )


def _shards_and_validation(args: Namespace) -> tuple[Shards, Pairs, str]:
    """The shards, and the validation pairs of their corpus or from two files."""
    from annotated_transformer.text import corpus
    from annotated_transformer.text.shards import Shards

    require(
        not (args.train or args.corpus),
        "--shards is what to train on: give no --corpus and no --train",
    )
    shards = Shards(args.shards)
    name = shards.manifest.corpus
    if args.valid:
        return shards, corpus.load_files(*args.valid), name
    require(
        name in corpus.names(),
        f"{args.shards} was encoded from files of one's own, {name}: give --valid S T",
    )
    return shards, corpus.load(name, "valid", args.data_dir), name


def shared_pairs(
    args: Namespace, name: str, processes: Processes
) -> tuple[Pairs | Shards, Pairs, str]:
    """`training_pairs`, which one process of each machine downloads before the others read them."""

    def load() -> tuple[Pairs | Shards, Pairs, str]:
        return training_pairs(args, name)

    return processes.once_per_machine(load) or load()


def shared_tokenizer(
    args: Namespace, out: Path, config: ModelConfig, pairs: Pairs | Shards, processes: Processes
) -> Tokenizer:
    """`training_tokenizer`, which the first process loads or learns for all."""
    from annotated_transformer.text.tokenizer import Tokenizer

    return Tokenizer(
        processes.from_first(lambda: training_tokenizer(args, out, config, pairs).model_bytes)
    )


def training_tokenizer(
    args: Namespace, out: Path, config: ModelConfig, pairs: Pairs | Shards
) -> Tokenizer:
    """That of the run that goes on, of the weights that are given, of the shards; or a new one.

    A new one is learned from the pairs, or from a sample where there are very many.
    """
    from annotated_transformer.text.parallel_text import sample
    from annotated_transformer.text.tokenizer import Tokenizer

    if args.resume or args.init:
        return Tokenizer.load(Path(args.init or out) / "tokenizer.model")
    if not isinstance(pairs, list):
        return pairs.tokenizer()
    some = sample(pairs, SAMPLE)
    say(f"learning a vocabulary of {config.vocab_size:,} from {len(some):,} training pairs")
    sentences = (sentence for pair in some for sentence in pair)
    return Tokenizer.train(sentences, config.vocab_size, model_type=args.model_type)


@contextmanager
def training_processes(args: Namespace, device: str) -> Iterator[Processes]:
    """The processes that torchrun has started, joined until the end of the block; or this one.

    Where torchrun starts them again after a failure, it gives them the arguments that they had: the
    run goes on all the same, from its last checkpoint if it has one.
    """
    from annotated_transformer.checkpoint.directory import state_files
    from annotated_transformer.training.distributed.processes import joined

    with joined(device) as processes:
        if processes.restarted and processes.from_first(lambda: b"1" * len(state_files(args.out))):
            args.resume, args.init = True, None
        yield processes
