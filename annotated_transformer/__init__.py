"""The Transformer of *Attention Is All You Need*, complete: model, data, training, search and evaluation.

Modules are named after the paper's parts. The names below are the ones that the book and other code import; each is
loaded when it is first used, so that importing the package costs no more than importing torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "ModelConfig": "config",
    "TrainConfig": "config",
    "DecodeConfig": "config",
    "ConfigError": "config",
    "Transformer": "transformer",
    "scaled_dot_product_attention": "attention",
    "attention_weights": "attention",
    "MultiHeadAttention": "attention",
    "padding_mask": "attention",
    "causal_mask": "attention",
    "PositionwiseFeedForward": "feed_forward",
    "positional_encoding": "embedding",
    "SharedEmbedding": "embedding",
    "label_smoothed_cross_entropy": "loss",
    "noam_learning_rate": "optimizer",
    "make_adam": "optimizer",
    "Tokenizer": "tokenizer",
    "Batch": "batching",
    "make_batch": "batching",
    "token_batches": "batching",
    "train": "training",
    "beam_search": "beam_search",
    "greedy_search": "beam_search",
    "Hypothesis": "beam_search",
    "Translator": "translation",
    "average_checkpoints": "checkpoint",
    "load_model": "checkpoint",
    "bleu": "evaluation",
    "chrf": "evaluation",
    "perplexity": "evaluation",
    "record_attention": "visualization",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


class _FrontDoor(ModuleType):
    """`beam_search` names a module and the function in it. Here it is the function, in whatever order they load."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOME and isinstance(value, ModuleType):  # the import system hangs a submodule on its package
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _FrontDoor
