"""In from Hugging Face: our own exports, Marian (opus-mt) and FSMT (wmt19) models.

A model of another maker gets our special ids, 0 to 3, and a row more: the token that begins a
target, which there is padding or the end of a sentence, and here is neither. Its logit has a bias
of -100, and so has padding's, which other programs forbid when they generate.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from annotated_transformer.checkpoint import directory as checkpoint, weights
from annotated_transformer.config import BOS_ID, PAD_ID, ModelConfig
from annotated_transformer.data.paired_vocabulary import fairseq_vocabulary, marian_vocabulary
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.data.vocabulary_file import MAX_MODEL_BYTES
from annotated_transformer.errors import ConfigError, listed, require, shown
from annotated_transformer.extras.formats.huggingface import OURS, require_home, their_config
from annotated_transformer.extras.formats.parameter_names import (
    LOGITS_BIAS,
    NEVER,
    TABLE,
    Parameter,
    in_order,
    parameters,
    sines_first,
)
from annotated_transformer.files import read_bounded, read_json
from annotated_transformer.model.transformer import Transformer

TABLES = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
"""More names of the shared embedding, which a file may have several times."""
HEADS = "lm_head.weight", "model.decoder.output_projection.weight"
LEARNED = "model.encoder.embed_positions.weight"
COMPUTES = {"model_type", "vocab_size", "d_model", "activation_function", "scale_embedding"} | {
    f"{side}_{size}"
    for side in ("encoder", "decoder")
    for size in ("layers", "attention_heads", "ffn_dim")
}
"""Their settings that change what a model computes from given weights."""
COMPUTED = re.compile(r"model\.(encoder|decoder)\.embed_positions\.(weight|_float_tensor)")


BEGIN = "<begin>"
"""The piece of the row that is new: fairseq's vocabulary has an <s> that begins nothing."""
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
CONVERT = (
    'python -c "from torch import load; from safetensors.torch import save_file; save_file({n: '
    "t.clone() for n, t in load('pytorch_model.bin', weights_only=True).items()}, "
    "'model.safetensors')\""
)


class _Source(NamedTuple):
    """What a folder holds: its configuration, and the shapes of its weights."""

    directory: Path
    config: dict[str, Any]
    path: Path
    shapes: weights.Shapes


def import_checkpoint(directory: str | Path, out: str | Path) -> Path:
    """Write the model in `directory`, a folder of Hugging Face's, as the checkpoint `out`.

    Raises FileNotFoundError where that has no config.json, and ConfigError, before anything is
    written, for a folder that is damaged, for a model that ours cannot compute, and when there are
    files in the way.
    """
    out = Path(out)
    checkpoint.require_room_for_result(out, checkpoint.CHECKPOINT_FILES, directory)
    source = _opened(Path(directory))
    kind = str(source.config.get("model_type"))
    readers = {"marian": _from_marian, "fsmt": _from_fsmt}
    read = _our_own if OURS in source.config else readers.get(kind)
    if read is None:
        known = f"of models that were not exported here only {' and '.join(readers)} can be read"
        raise ConfigError(f"{directory} has a model of type {kind!r:.40}: {known}")
    config, tokenizer, tensors, extra = read(source)
    return checkpoint.write_directory(out, config, tokenizer, extra, tensors)


_Model = tuple[ModelConfig, Tokenizer, dict[str, Tensor], dict[str, Any]]


def _opened(directory: Path) -> _Source:
    how = f"hf download {directory} --local-dir FOLDER"
    rule = f"no such folder: {directory} (a model of the Hugging Face Hub is fetched with `{how}`)"
    require(directory.exists() or not HUB_NAME.fullmatch(str(directory)), rule)
    config = read_json(directory / "config.json", checkpoint.MAX_CONFIG_BYTES)
    path = directory / "model.safetensors"
    old = directory / "pytorch_model.bin"
    require(
        path.exists() or not old.exists(),
        f"{old} can run code when it is read, so it is not opened: to make model.safetensors "
        f"of it, run there: {CONVERT}",
    )
    shards = path.with_name("model.safetensors.index.json")
    how = 'save it again with transformers\' save_pretrained(..., max_shard_size="100GB")'
    require(path.exists() or not shards.exists(), f"{directory} has its weights in shards: {how}")
    return _Source(directory, config, path, weights.tensor_shapes(path))


def _our_own(source: _Source) -> _Model:
    """The checkpoint that was exported; with biases, where a later training has made some."""
    stored = source.config[OURS]
    path = source.directory / "config.json"
    require(isinstance(stored, dict), f"{path}: {OURS} must be an object")
    stored = checkpoint.with_corpus_name(stored, path)
    extra = {name: value for name, value in stored.items() if name not in ("model", "dtype")}
    try:
        config = ModelConfig.from_dict(stored.get("model"))
        require_home(config)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    vocabulary = source.directory / "tokenizer.model"
    how = "copy tokenizer.model from the folder that was exported"
    require(vocabulary.exists(), f"{source.directory} has no tokenizer.model: {how}")
    tokenizer = Tokenizer.load(vocabulary)
    checkpoint.require_vocabulary(tokenizer, config, source.directory)
    tensors = _read(source, config, config.vocab_size)
    metadata = weights.read_metadata(source.path)
    weights.require_belongs(metadata, config, tokenizer.sha256, source.path)
    theirs = their_config(config, 0, "")
    for name in sorted(COMPUTES & source.config.keys() & theirs.keys()):
        got = source.config[name]
        rule = f"{path}: {name} must be {theirs[name]}, as its entry {OURS} says"
        require(got == theirs[name], f"{rule}, got {shown(got)}")
    for option, part in (("bias", "attention.W_"), ("output_bias", "embedding.bias")):
        biases = [name for name in tensors if part in name and name.endswith(".bias")]
        if any(tensors[name].any() for name in biases):
            config = config.replace(**{option: True})
        elif not getattr(config, option):
            tensors = {name: tensor for name, tensor in tensors.items() if name not in biases}
    return config, tokenizer, tensors, extra


def _from_marian(source: _Source) -> _Model:
    """An opus-mt model: two SentencePiece models and one vocabulary of both."""
    pieces = _vocabulary(source.directory / "vocab.json")
    models = (source.directory / f"{side}.spm" for side in ("source", "target"))
    first, second = (read_bounded(path, MAX_MODEL_BYTES) for path in models)
    settings = _settings(source, positions="sinusoidal", first_position=0)
    config, tensors, names = _with_our_ids(source, settings, pieces)
    return config, Tokenizer(marian_vocabulary(first, second, names)), tensors, {}


def _from_fsmt(source: _Source) -> _Model:
    """A wmt19 model of fairseq, where source and target have one vocabulary: German and English."""
    pieces = _vocabulary(source.directory / "vocab-src.json")
    require(
        pieces == _vocabulary(source.directory / "vocab-tgt.json"),
        f"{source.directory} has a vocabulary for each side, and ours is one for both",
    )
    merges = read_bounded(source.directory / "merges.txt", MAX_MODEL_BYTES)
    pad_id = _whole(source, "pad_token_id", 1)
    settings = _settings(source, positions="concatenated", first_position=pad_id + 1)
    config, tensors, names = _with_our_ids(source, settings, pieces)
    vocabulary = fairseq_vocabulary(merges, names, source.config.get("langs"))
    return config, Tokenizer(vocabulary), tensors, {}


def _vocabulary(path: Path) -> list[str]:
    """The pieces in the order of their ids, which must be 0, 1, 2, ..."""
    ids = read_json(path, MAX_MODEL_BYTES)
    is_numbered = all(type(i) is int for i in ids.values())
    is_numbered = is_numbered and sorted(ids.values()) == list(range(len(ids)))
    require(is_numbered, f"{path} must number its {len(ids):,} pieces from 0 on")
    require("<unk>" in ids, f"{path} has no piece <unk>")
    return sorted(ids, key=ids.__getitem__)


def _whole(source: _Source, name: str, default: int) -> int:
    value = source.config.get(name, default)
    require(
        type(value) is int and 0 <= value < 2**31,
        f"{source.directory / 'config.json'}: {name} must be a whole number, got {value!r:.40}",
    )
    return int(value)


def _settings(source: _Source, positions: str, first_position: int) -> ModelConfig:
    """What config.json says, as ours, with as many tokens as the weights have rows."""
    path = source.directory / "config.json"
    theirs = source.config
    for name in ("layers", "attention_heads", "ffn_dim"):
        encoder, decoder = (theirs.get(f"{side}_{name}") for side in ("encoder", "decoder"))
        got = f"{shown(encoder)} and {shown(decoder)}"
        rule = f"{path}: encoder and decoder must be alike"
        require(encoder == decoder, f"{rule}, got {name} {got}")
    on = ("share_encoder_decoder_embeddings", "static_position_embeddings", "scale_embedding")
    off = ("normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits")
    for name in (*on, *off):
        got = theirs.get(name, name in on[:2])
        require(got == (name in on), f"{path}: {name} must be {name in on}, got {got!r:.40}")
    activations = {"swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu"}
    activation = str(theirs.get("activation_function"))
    rule = f"{path}: activation_function must be one of {', '.join(activations)}"
    require(activation in activations, f"{rule}, got {shown(activation)}")
    named = (source.shapes[name] for name in (TABLE, *TABLES) if name in source.shapes)
    n_rows = (*next(named, ()), 0)[0]
    try:
        return ModelConfig(
            vocab_size=n_rows + 1,
            N=theirs.get("encoder_layers"),  # type: ignore[arg-type]  # which ModelConfig checks
            d_model=theirs.get("d_model"),  # type: ignore[arg-type]
            d_ff=theirs.get("encoder_ffn_dim"),  # type: ignore[arg-type]
            h=theirs.get("encoder_attention_heads"),  # type: ignore[arg-type]
            p_drop=theirs.get("dropout", 0.1),
            attention_dropout=theirs.get("attention_dropout", 0.0),
            ffn_dropout=theirs.get("activation_dropout", 0.0),
            activation=activations[activation],  # type: ignore[arg-type]
            positions=positions,  # type: ignore[arg-type]
            first_position=first_position,
            bias=True,
            output_bias=True,
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _with_our_ids(
    source: _Source, config: ModelConfig, pieces: list[str]
) -> tuple[ModelConfig, dict[str, Tensor], list[str]]:
    """The configuration, weights and pieces by our ids, with `BEGIN` among them.

    Ours are padding, begin, end, unknown, and then the others in their order.
    """
    defaults = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    pad, eos, start = (_whole(source, name, i) for name, i in defaults.items())
    unk = pieces.index("<unk>")
    n_rows = config.vocab_size - 1
    special = [pad, eos, unk]
    require(
        len(pieces) == n_rows and max(*special, start) < n_rows and len(set(special)) == 3,
        f"{source.directory}: the vocabulary has {len(pieces):,} pieces, the weights {n_rows:,} "
        f"rows, and padding, end and unknown are {pad}, {eos} and {unk}: they do not fit",
    )
    order = [pad, None, eos, unk, *(i for i in range(n_rows) if i not in special)]
    tensors = _read(source, config, n_rows)
    rows = torch.tensor([start if i is None else i for i in order])
    for name in ("embedding.weight", "embedding.bias"):
        tensors[name] = tensors[name][rows]
    tensors["embedding.bias"][[PAD_ID, BOS_ID]] = NEVER
    is_zero = not tensors["embedding.weight"][BOS_ID].any()
    names = [BEGIN if i is None else pieces[i] for i in order]
    return config.replace(zero_start=is_zero), tensors, names


def _read(source: _Source, config: ModelConfig, n_rows: int) -> dict[str, Tensor]:
    """The weights by our names in our order, in float32, with a bias wherever there may be one.

    Raises ConfigError unless the file has the shapes of this model, with `n_rows` tokens, before
    anything of that size is made, and where the embedding is not one for all of its uses.
    """
    path = source.path
    weights.require_layers(config, source.shapes, path)
    tables = [name for name in (TABLE, *TABLES) if name in source.shapes]
    require(bool(tables), f"{path} has no embedding {TABLE}")
    named = list(parameters(config, tables[0]))
    with torch.device("meta"):
        model = Transformer(config.replace(vocab_size=n_rows, bias=True, output_bias=False))
    sizes = weights.shapes_of(model.state_dict())
    if config.positions == "learned":
        named.append(Parameter("positions.weight", LEARNED, None))
    expected = {one.theirs: sizes[one.ours] for one in named}
    may_be = dict.fromkeys((TABLE, *TABLES, *HEADS), sizes["embedding.weight"])
    may_be |= {LOGITS_BIAS: (1, n_rows)}
    found = {name: s for name, s in source.shapes.items() if not COMPUTED.fullmatch(name)}
    wrong = [name for name in expected if source.shapes.get(name) != expected[name]]
    wrong += [name for name in found.keys() - expected if found[name] != may_be.get(name)]
    require(not wrong, f"{path} does not fit its config.json: {listed(sorted(wrong))} differ")
    theirs = weights.as_float32(weights.load_tensors(path)[0], path)
    uses = [name for name in (*tables, *HEADS) if name in theirs]
    different = [name for name in uses if not torch.equal(theirs[name], theirs[uses[0]])]
    require(
        not different,
        f"{path} has another {', '.join(different)} than {uses[0]}: ours is one for all",
    )
    is_sinusoidal = config.positions == "sinusoidal"
    order = sines_first(config.d_model).argsort() if is_sinusoidal else None
    ours = {one.ours: in_order(theirs[one.theirs], one.axis, order) for one in named}
    if not config.scaled_attention:
        for name in (name for name in ours if ".W_Q." in name):
            ours[name] = ours[name] / math.sqrt(config.d_k or 1)
    ours["embedding.bias"] = theirs.get(LOGITS_BIAS, torch.zeros(1, n_rows)).flatten()
    return ours
