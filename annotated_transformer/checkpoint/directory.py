"""Checkpoints and their average (section 6.1): one directory holds all that other verbs need.

    config.json                 {"model": ..., "train": ..., "corpus": ...}
    tokenizer.model             the SentencePiece model
    model.safetensors           the weights that are used
    training.safetensors        weights, Adam's moments, random state and counters, to resume from
    training.previous.safetensors   the state before, for the case that the newest is damaged
    training.damaged.safetensors    a damaged state, until the next save
    checkpoints/                step-00001000.safetensors and others: weights to average
    best/                       a checkpoint of its own: the weights that were best in validation
    log.jsonl                   what was measured

`translate DIR` and `train --resume` need nothing else. Every file is written atomically: a crash
leaves the old one or the new one. Nothing is pickled: weights from a stranger cannot run code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from annotated_transformer import files
from annotated_transformer.checkpoint import weights
from annotated_transformer.config import SPECIAL_IDS, ModelConfig, TrainConfig
from annotated_transformer.errors import ConfigError, require, say, shown
from annotated_transformer.model.embedding import positions_of
from annotated_transformer.model.transformer import Transformer

if TYPE_CHECKING:
    from annotated_transformer.data.tokenizer import Tokenizer

STATE_FILES = "training.safetensors", "training.previous.safetensors"
CHECKPOINT_FILES = "config.json", "tokenizer.model", "model.safetensors"
MAX_CONFIG_BYTES = 2**20
SHARDS_MANIFEST = "shards.json"
"""What marks a directory of shards (`prepare --encode`), in which no run may begin."""


def write_directory(
    directory: str | Path,
    model_config: ModelConfig,
    tokenizer: Tokenizer,
    extra: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
) -> Path:
    """Start a checkpoint directory: config.json (the model's, then `extra`) and the tokenizer.

    With `tensors`, which are the model's weights, it is whole.
    """
    directory = Path(directory)
    config = json.dumps({"model": model_config.to_dict(), **(extra or {})}, indent=2) + "\n"
    files.write_text(directory / "config.json", config)
    files.write_bytes(directory / "tokenizer.model", tokenizer.model_bytes)
    if tensors is not None:
        about = weights.belongs_to(model_config, tokenizer.sha256)
        weights.save_tensors(directory / "model.safetensors", tensors, about)
    return directory


def save(model: Transformer, tokenizer: Tokenizer, directory: str | Path) -> Path:
    """Write a model that was trained in whatever way, and its tokenizer, as a checkpoint directory.

    `Translator.from_checkpoint` and all verbs of the command line read it. Raises ConfigError where
    the tokenizer has another vocabulary, where the directory holds a model or a run already, and
    for a model with other tensors than a `Transformer` of its configuration: its class is not in
    the directory, so nothing could read them.

    >>> model, tokenizer = load_model("book/model")
    >>> save(model, tokenizer, "runs/mine")
    PosixPath('runs/mine')
    """
    directory = Path(directory)
    require_vocabulary(tokenizer, model.config)
    require_room_for_result(directory, CHECKPOINT_FILES)
    with torch.device("meta"):
        expected = Transformer(model.config).state_dict()
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    different = sorted(
        name
        for name in expected.keys() | tensors
        if name not in expected
        or name not in tensors
        or expected[name].shape != tensors[name].shape
    )
    require(
        not different,
        f"a Transformer with this configuration has another {', '.join(different[:3])}: save the "
        "state_dict of a model of your own class, and load it into that class",
    )
    return write_directory(directory, model.config, tokenizer, tensors=tensors)


def read_config(directory: str | Path) -> dict[str, Any]:
    """config.json as a dictionary; its corpus is a name, or the names of files, without folders.

    Raises ConfigError when the directory is not a checkpoint.
    """
    path = Path(directory) / "config.json"
    try:
        config = files.read_json(path, MAX_CONFIG_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(
            f"{directory} is not a checkpoint directory: it has no config.json"
        ) from None
    require("model" in config, f"{path} does not describe a model: it has no entry model")
    return with_corpus_name(config, path)


def with_corpus_name(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """The content of the config.json at `path` with a corpus that tells no folder of a machine."""
    corpus = config.get("corpus", "")
    require(isinstance(corpus, str), f"{path}: corpus must be a name, got {shown(corpus)}")
    return {**config, **({"corpus": files.without_folders(corpus)} if corpus else {})}


def corpus_languages(config: Mapping[str, Any]) -> tuple[str, str]:
    """The languages that a corpus is named for, "tatoeba-en-de"; two empty strings if it is not."""
    pairs = re.findall(r"-([a-z]{2})(?=-([a-z]{2})(?![a-z]))", str(config.get("corpus", "")))
    return pairs[-1] if pairs else ("", "")


def read_model_config(directory: str | Path) -> ModelConfig:
    """The configuration of the model in a checkpoint directory.

    Raises ConfigError, with the file's name.
    """
    settings = read_config(directory)["model"]
    try:
        return ModelConfig.from_dict(settings)
    except ConfigError as error:
        raise ConfigError(f"{Path(directory) / 'config.json'}: {error}") from None


def require_vocabulary(
    tokenizer: Tokenizer, config: ModelConfig, where: str | Path | None = None
) -> None:
    """Raise ConfigError unless the tokenizer has as many tokens as the model has rows for them.

    Its special ids must be the model's as well.
    """
    prefix = f"{where}: " if where else ""
    require(
        tokenizer.vocab_size == config.vocab_size,
        f"{prefix}the tokenizer has {tokenizer.vocab_size} tokens and the model's vocab_size is "
        f"{config.vocab_size}: they do not belong together",
    )
    require(
        config.special_ids == SPECIAL_IDS,
        f"{prefix}pad_id, bos_id and eos_id must be the tokenizer's, {tuple(SPECIAL_IDS)}, got "
        f"{tuple(config.special_ids)}",
    )


def require_same_vocabulary(
    tokenizer: Tokenizer, config: ModelConfig, directory: str | Path | None
) -> None:
    """Raise ConfigError unless the tokenizer fits the model and `directory`.

    If a directory is given and has a tokenizer, it must be the same one.
    """
    require_vocabulary(tokenizer, config)
    from annotated_transformer.data.vocabulary_file import MAX_MODEL_BYTES

    stored = Path(directory or "") / "tokenizer.model"
    if directory is not None and stored.exists():
        require(
            files.read_bounded(stored, MAX_MODEL_BYTES) == tokenizer.model_bytes,
            f"{directory} has another tokenizer: its weights belong to that vocabulary",
        )


def load_model(
    directory: str | Path, device: torch.device | str = "cpu"
) -> tuple[Transformer, Tokenizer]:
    """The model (float32, ready to decode) and the tokenizer of a checkpoint directory.

    Raises ConfigError when config.json, weights and tokenizer do not belong together.

    >>> model, tokenizer = load_model("book/model")
    >>> model.config.vocab_size == tokenizer.vocab_size
    True
    """
    from annotated_transformer.data.tokenizer import Tokenizer

    directory = Path(directory)
    config = read_model_config(directory)
    path = directory / "model.safetensors"
    model = weights.without_weights(config, weights.tensor_shapes(path), path)
    tokenizer = Tokenizer.load(directory / "tokenizer.model")
    require_vocabulary(tokenizer, config, directory)
    model.load_state_dict(trained_weights(directory, config, tokenizer), assign=True)
    if config.positions != "learned":
        model.positions = positions_of(config)  # a table that is computed and in no file
    return model.to(device).eval(), tokenizer


def trained_weights(
    directory: str | Path, config: ModelConfig, tokenizer: Tokenizer
) -> dict[str, Tensor]:
    """The weights in a checkpoint directory by their names, in float32.

    Raises ConfigError when they were trained with other settings or another tokenizer, and where
    `weights.as_float32` does.
    """
    path = Path(directory) / "model.safetensors"
    stored, metadata = weights.load_tensors(path)
    weights.require_belongs(metadata, config, tokenizer.sha256, path)
    return weights.as_float32(stored, path)


def step_checkpoints(directory: str | Path) -> list[Path]:
    """The saved weights of a run, oldest first, without files that a user has named."""
    files_of_steps = (Path(directory) / "checkpoints").glob("step-*.safetensors")
    return sorted(path for path in files_of_steps if re.fullmatch(r"step-\d+", path.stem, re.ASCII))


def state_files(directory: str | Path) -> list[Path]:
    """The training states that exist, newest first: a run can be resumed from one."""
    return [path for name in STATE_FILES if (path := Path(directory) / name).exists()]


def require_room_for_result(
    out: Path, names: Iterable[str], source: str | Path | None = None, replaces: bool = False
) -> None:
    """Raise ConfigError unless a result of the checkpoint `source` can be written into `out`.

    That must be another directory, and hold no training run and no files of these `names`, unless
    the result `replaces` an earlier one of its kind.
    """
    is_source = source is not None and Path(source).resolve() == out.resolve()
    require(not is_source, f"the result needs a directory of its own, got {out}")
    holds = state_files(out) or step_checkpoints(out)
    require(not holds, f"{out} holds a training run: name another directory")
    files.require_room(out, () if replaces else names)


def made_by(directory: Path) -> str:
    """What made the checkpoint, by its entry in config.json: "dtype" (export), "averaged", ""."""
    try:
        stored = read_config(directory)
    except ConfigError:
        return ""
    # The export of an average has both entries.
    return next((entry for entry in ("dtype", "averaged") if entry in stored), "")


def require_room_for_run(directory: str | Path) -> None:
    """Raise ConfigError unless a new run may begin in `directory`.

    It must hold no run, model, checkpoints or shards, and no other file that a run would overwrite.
    What a run killed in its first save left there does not count: `begin_run` moves it away.
    """
    path = Path(directory)
    require(
        not state_files(path),
        f"{directory} already holds a run: resume it (--resume), or name another directory",
    )
    if not _killed_in_its_first_save(path):
        has_model = (path / "model.safetensors").exists()
        require(not has_model, f"{directory} already holds a model: name another directory")
        require(
            not step_checkpoints(path),
            f"{path / 'checkpoints'} holds the weights of another run: "
            "remove it, or name another directory",
        )
        files.require_room(path, ("config.json", "tokenizer.model", "log.jsonl"))
    files.require_room(path, [SHARDS_MANIFEST])


def begin_run(directory: str | Path) -> None:
    """`require_room_for_run`, then move what an earlier run left to `directory`.before-N.

    That is a run killed in its first save, or a finished one whose states its owner has removed:
    nothing tells the two apart for certain, so neither is deleted.
    """
    require_room_for_run(directory)
    path = Path(directory).resolve()
    remove_temporaries(path)
    weights_and_log = path / "model.safetensors", *step_checkpoints(path), path / "log.jsonl"
    leftovers = [file for file in weights_and_log if file.exists()]
    if not leftovers:
        return
    numbered = (path.with_name(f"{path.name}.before-{n}") for n in count(1))
    before = next(free for free in numbered if not free.exists())
    # The settings last: whoever is killed before goes on here at the next start.
    for file in (*leftovers, path / "tokenizer.model", path / "config.json"):
        place = before / file.relative_to(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        file.replace(place)
    say(f"{directory} holds what a run left without a state to resume from: moved to {before}")


def remove_temporaries(directory: str | Path) -> None:
    """Remove the half-written files that killed processes of this machine left in a run."""
    path = Path(directory)
    names = (
        r"config\.json|tokenizer\.model|log\.jsonl|(?:model|training(?:\.previous)?)\.safetensors"
    )
    files.remove_left_over(path, names)
    files.remove_left_over(path / "checkpoints", r"step-\d+\.safetensors")


def _killed_in_its_first_save(path: Path) -> bool:
    """Whether `path` holds what a run left that was killed before its first state was written.

    Such a run wrote one checkpoint and perhaps the weights. Exports and averages have an entry in
    config.json that says what they are, a run that was resumed has a later checkpoint, and one that
    was validated had a state before that.
    """
    try:
        stored = read_config(path)
        config = TrainConfig.from_dict(stored.get("train"))
    except ConfigError:
        return False
    steps = [int(file.stem.partition("-")[2]) for file in step_checkpoints(path)]
    is_first = len(steps) == 1 and steps[0] <= min(config.checkpoint_every, config.train_steps)
    log = path / "log.jsonl"
    had_state = log.exists() and b'"valid_' in log.read_bytes()
    is_run = not stored.keys() & {"averaged", "dtype"} and not state_files(path) and not had_state
    return is_run and (is_first or not (steps or (path / "model.safetensors").exists()))
