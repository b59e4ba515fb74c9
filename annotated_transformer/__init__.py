"""The Transformer of *Attention Is All You Need*: model, data, training, search, evaluation.

Folders are named after the paper's parts: `model` (section 3), `data` (5.1), `training` (5.2 to
5.4), `decoding` (6.1). What only makes it faster is in `fast`, and what serves a particular user
is in `extras`, which nothing outside it needs. The names below are public; anything else may
change from one release to the next. Each is loaded when it is first used, so that importing the
package costs no more than a few milliseconds. Type checkers read the imports, and see classes and
functions.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from annotated_transformer.errors import VERSION

if TYPE_CHECKING:
    from annotated_transformer.checkpoint.averaging import (
        average_checkpoints as average_checkpoints,
    )
    from annotated_transformer.checkpoint.directory import load_model as load_model
    from annotated_transformer.config import (
        DecodeConfig as DecodeConfig,
        ModelConfig as ModelConfig,
        TrainConfig as TrainConfig,
    )
    from annotated_transformer.data import corpus as corpus
    from annotated_transformer.data.batching import (
        Batch as Batch,
        make_batch as make_batch,
        token_batches as token_batches,
    )
    from annotated_transformer.data.tokenizer import Tokenizer as Tokenizer
    from annotated_transformer.decoding.evaluation import (
        bleu as bleu,
        chrf as chrf,
        perplexity as perplexity,
    )
    from annotated_transformer.decoding.search import (
        Hypothesis as Hypothesis,
        beam_search as beam_search,
        greedy_search as greedy_search,
        rerank as rerank,
    )
    from annotated_transformer.decoding.translator import Translator as Translator
    from annotated_transformer.errors import ConfigError as ConfigError
    from annotated_transformer.extras.attention_views.record import (
        record_attention as record_attention,
    )
    from annotated_transformer.model.attention import (
        MultiHeadAttention as MultiHeadAttention,
        attention_weights as attention_weights,
        causal_mask as causal_mask,
        padding_mask as padding_mask,
        scaled_dot_product_attention as scaled_dot_product_attention,
    )
    from annotated_transformer.model.embedding import (
        SharedEmbedding as SharedEmbedding,
        positional_encoding as positional_encoding,
    )
    from annotated_transformer.model.feed_forward import (
        PositionwiseFeedForward as PositionwiseFeedForward,
    )
    from annotated_transformer.model.transformer import Transformer as Transformer
    from annotated_transformer.training.loop import train as train
    from annotated_transformer.training.loss import (
        label_smoothed_cross_entropy as label_smoothed_cross_entropy,
    )
    from annotated_transformer.training.optimizer import (
        make_adam as make_adam,
        noam_learning_rate as noam_learning_rate,
    )
    from annotated_transformer.training.run import TrainingRun as TrainingRun

__version__ = VERSION

_NAMES = {
    "config": ("DecodeConfig", "ModelConfig", "TrainConfig"),
    "errors": ("ConfigError",),
    "checkpoint.averaging": ("average_checkpoints",),
    "checkpoint.directory": ("load_model",),
    "extras.attention_views.record": ("record_attention",),
    "model.attention": (
        "MultiHeadAttention",
        "attention_weights",
        "causal_mask",
        "padding_mask",
        "scaled_dot_product_attention",
    ),
    "model.embedding": ("SharedEmbedding", "positional_encoding"),
    "model.feed_forward": ("PositionwiseFeedForward",),
    "model.transformer": ("Transformer",),
    "data.batching": ("Batch", "make_batch", "token_batches"),
    "data.tokenizer": ("Tokenizer",),
    "training.loop": ("train",),
    "training.loss": ("label_smoothed_cross_entropy",),
    "training.optimizer": ("make_adam", "noam_learning_rate"),
    "training.run": ("TrainingRun",),
    "decoding.evaluation": ("bleu", "chrf", "perplexity"),
    "decoding.search": ("Hypothesis", "beam_search", "greedy_search", "rerank"),
    "decoding.translator": ("Translator",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted([*_HOME, "corpus"])


def __getattr__(name: str) -> Any:
    if name == "corpus":  # the registry of corpora, a module
        return import_module(f"{__name__}.data.corpus")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # Without it, completion would miss the names that nobody has asked for yet.
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
