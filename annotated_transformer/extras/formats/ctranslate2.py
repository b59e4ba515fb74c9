"""CTranslate2, an engine in C++: our weights as its model, and the engine as ours to search with.

It adds positions from a table, so that nothing is permuted. Its search differs from ours in one
point: where a hypothesis has ended, a further candidate takes its place. So it is asked for all
that it finds, with patience (Kasai et al. 2022), and `translation` ranks them by the paper's length
penalty. The engine's own penalty, |y|^alpha, is switched off.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from annotated_transformer.checkpoint.directory import load_model, require_room_for_result
from annotated_transformer.config import DecodeConfig
from annotated_transformer.data.paired_vocabulary import MARIAN_FILES, marian_files
from annotated_transformer.errors import ConfigError, needs_extra, require
from annotated_transformer.extras.formats.own_form import require_range
from annotated_transformer.files import write_bytes
from annotated_transformer.model.attention import MultiHeadAttention
from annotated_transformer.model.stacks import DecoderLayer
from annotated_transformer.model.transformer import Transformer

if TYPE_CHECKING:
    from annotated_transformer.data.tokenizer import Tokenizer

N_POSITIONS = 2048
"""Rows of the table for positions that have no end."""
CTRANSLATE2_FILES = (
    "model.bin",
    "config.json",
    "shared_vocabulary.json",
    "tokenizer.model",
    *MARIAN_FILES,
)
KNOWN_TO_CTRANSLATE2 = (
    "norm", "positions", "activation", "bias", "scaled_attention", "rms_norm", "final_norm",
    "output_bias", "zero_start", "first_position", "attention_dropout", "ffn_dropout",
)  # fmt: skip
"""What CTranslate2 computes besides the paper's model (`ModelConfig.beyond`)."""
CTRANSLATE2_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "swiglu": "SWISH"}
PATIENCE = 2
"""So many times beam_size hypotheses must end. With 1 it sometimes stops sooner than our search."""
Found = list[tuple[list[int], float]]
"""Hypotheses of one sentence, tokens without bos and eos and log P, in no order."""


def export_checkpoint(directory: str | Path, out: str | Path, dtype: str = "float32") -> Path:
    """Write the model in `directory` as a model of CTranslate2 to the directory `out`.

    Its weights are in `dtype`, "float32" or "float16"; the engine rounds to 8 bits when it loads
    them. Beside them is `tokenizer.model`, or Marian's pair: what the engine reads and writes are
    their pieces. Raises ConfigError for a model that CTranslate2 cannot compute, and
    when files are in the way.
    """
    out = Path(out)
    require_room_for_result(out, CTRANSLATE2_FILES, directory)
    model, tokenizer = load_model(directory)
    require_range(model, dtype, directory)
    words = marian_files(tokenizer.model_bytes) or {"tokenizer.model": tokenizer.model_bytes}
    write_model(model, tokenizer, out, dtype)
    for name, content in words.items():
        write_bytes(out / name, content)
    return out


def write_model(model: Transformer, tokenizer: Tokenizer, out: Path, dtype: str) -> None:
    """Write CTranslate2's files into `out`, which is made."""
    specification = _specification(model, tokenizer.pieces(range(tokenizer.vocab_size)))
    specification.validate()
    specification.optimize(quantization=dtype)
    out.mkdir(parents=True, exist_ok=True)
    specification.save(str(out))


def _specification(model: Transformer, pieces: list[str]) -> Any:
    """CTranslate2's description of the model, with all weights in it."""
    specs = library().specs
    c = model.config
    cannot = "CTranslate2 has no"
    c.require_known(KNOWN_TO_CTRANSLATE2, "CTranslate2")
    sizes = f"got {c.d_k} and {c.d_v}"
    require(c.d_k == c.d_v, f"{cannot} values of another width than keys: d_k must be d_v, {sizes}")
    settings = {
        "num_layers": c.N,
        "num_heads": c.h,
        "pre_norm": c.norm == "pre",
        "activation": getattr(specs.Activation, CTRANSLATE2_ACTIVATIONS[c.activation]),
        "ffn_glu": c.activation == "swiglu",
        "rms_norm": c.rms_norm,
        "head_dim": c.d_k,
        "rotary_dim": c.d_k if c.positions == "rotary" else None,
    }
    encoder = specs.TransformerEncoderSpec(**settings)
    decoder = specs.TransformerDecoderSpec(**settings)
    specification = specs.TransformerSpec(encoder, decoder)
    n = c.max_len if c.positions == "learned" else N_POSITIONS
    table = torch.zeros(n, c.d_model) + model.positions(n)
    for stack, own in ((encoder, model.encoder), (decoder, model.decoder)):
        stack.scale_embeddings = True
        if hasattr(stack, "position_encodings"):
            stack.position_encodings.encodings = _numbers(table)
        for layer, own_layer in zip(stack.layer, own.layers, strict=True):
            _set_layer(layer, own_layer)
        if c.norm == "pre" or c.final_norm:
            vars(stack).setdefault("layer_norm", specs.common_spec.LayerNormSpec(c.rms_norm))
            _set_norm(stack.layer_norm, own.norm)
    for spec in (encoder.embeddings[0], decoder.embeddings, decoder.projection):
        spec.weight = _numbers(model.embedding.weight)
    if model.embedding.bias is not None:
        decoder.projection.bias = _numbers(model.embedding.bias)
    decoder.start_from_zero_embedding = c.zero_start
    specification.register_source_vocabulary(pieces)
    specification.register_target_vocabulary(pieces)
    config = specification.config
    config.bos_token = config.decoder_start_token = pieces[c.bos_id]
    config.eos_token = pieces[c.eos_id]
    config.add_source_eos = True
    config.layer_norm_epsilon = 1e-6 if c.rms_norm else 1e-5
    return specification


def _set_layer(layer: Any, own: Any) -> None:
    ours, theirs = own.self_attention, layer.self_attention
    _set_linear(theirs.linear[0], ours.W_Q, ours.W_K, ours.W_V, factor=_factor(ours))
    _set_linear(theirs.linear[1], ours.W_O)
    _set_norm(theirs.layer_norm, own.add_norm_1.norm)
    last = own.add_norm_2
    if isinstance(own, DecoderLayer):
        ours, theirs, last = own.cross_attention, layer.attention, own.add_norm_3
        _set_linear(theirs.linear[0], ours.W_Q, factor=_factor(ours))
        _set_linear(theirs.linear[1], ours.W_K, ours.W_V)
        _set_linear(theirs.linear[2], ours.W_O)
        _set_norm(theirs.layer_norm, own.add_norm_2.norm)
    W_1, W_2 = own.feed_forward.W_1, own.feed_forward.W_2
    if hasattr(layer.ffn, "linear_0_noact"):
        _set_linear(layer.ffn.linear_0, W_1, rows=slice(W_2.in_features))
        _set_linear(layer.ffn.linear_0_noact, W_1, rows=slice(W_2.in_features, None))
    else:
        _set_linear(layer.ffn.linear_0, W_1)
    _set_linear(layer.ffn.linear_1, W_2)
    _set_norm(layer.ffn.layer_norm, last.norm)


def _factor(attention: MultiHeadAttention) -> float:
    """What the queries are multiplied by, since CTranslate2 always divides by sqrt(d_k)."""
    d_k = attention.W_Q.out_features // attention.h
    return 1.0 if attention.scale is None else attention.scale * d_k**0.5


def _set_linear(
    spec: Any, *layers: nn.Linear, factor: float = 1.0, rows: slice = slice(None)
) -> None:
    """Give `spec` the layers side by side, the first one times `factor`."""
    factors = [factor, 1.0, 1.0]
    for name in ("weight", "bias"):
        parts = [getattr(layer, name) for layer in layers]
        if parts[0] is not None:
            parts = [part * by for part, by in zip(parts, factors, strict=False)]
            setattr(spec, name, _numbers(torch.cat(parts)[rows]))


def _set_norm(spec: Any, norm: Any) -> None:
    spec.gamma = _numbers(norm.weight)
    if hasattr(spec, "beta"):
        spec.beta = _numbers(norm.bias)


def _numbers(x: Tensor) -> Any:
    return x.detach().float().contiguous().numpy()


def library() -> Any:
    """The package ctranslate2, an extra. Raises ConfigError where it is not installed."""
    with needs_extra("ctranslate2"):
        import ctranslate2
    return ctranslate2


class CTranslate2Engine:
    """Searches in CTranslate2, for `Translator(model, tokenizer, engine=...)`.

    The weights go there by way of a temporary directory. `dtype` is what it computes in: "float32",
    or "int8", "float16" and others where `device` has them. Raises ConfigError where it has not.
    """

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, dtype: str = "float32", device: str = "cpu"
    ) -> None:
        self.longest = model.config.max_len if model.config.positions == "learned" else N_POSITIONS
        self.pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        self.ids = {piece: i for i, piece in enumerate(self.pieces)}
        threads = torch.get_num_threads()
        with TemporaryDirectory() as folder:
            write_model(model, tokenizer, Path(folder), "float32")
            try:
                self.translator = library().Translator(
                    folder, device, compute_type=dtype, intra_threads=threads
                )
            except (ValueError, RuntimeError) as error:
                raise ConfigError(f"CTranslate2 cannot use {dtype} on {device}: {error}") from None

    def __call__(self, sources: list[list[int]], search: DecodeConfig) -> list[Found]:
        """For each source what the engine finds, from which `rerank` takes the best."""
        limits = [max(1, len(source) + search.max_extra) for source in sources]
        found = self._search(sources, search, max(limits))
        for i, limit in enumerate(limits):
            # The engine has one limit for all sentences of a batch. In ours each has its own.
            if limit < max(limits) and any(len(tokens) >= limit for tokens, _ in found[i]):
                found[i] = self._search([sources[i]], search, limit)[0]
        return found

    def _search(self, sources: list[list[int]], search: DecodeConfig, limit: int) -> list[Found]:
        patience = PATIENCE if search.beam_size > 1 else 1
        results = self.translator.translate_batch(
            [[self.pieces[i] for i in source] for source in sources],
            beam_size=search.beam_size,
            patience=patience,
            num_hypotheses=patience * search.beam_size,
            length_penalty=0.0,
            max_input_length=0,
            max_decoding_length=min(limit, self.longest),
            return_scores=True,
        )
        return [
            [
                ([self.ids[piece] for piece in pieces], log_p)
                for pieces, log_p in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]
