"""Our weights in the models of other libraries:
with no dropout each of them computes what ours does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from annotated_transformer import Tokenizer, Transformer
from annotated_transformer.checkpoint.directory import write_directory
from annotated_transformer.checkpoint.weights import save_weights
from annotated_transformer.data.batching import Batch
from annotated_transformer.extras.formats import huggingface
from annotated_transformer.extras.formats.nn_transformer import by_our_names
from annotated_transformer.model.embedding import positional_encoding


def numbers(vocab_size: int) -> Tokenizer:
    """For weights that were never trained: a vocabulary of that size, learned from numbers."""
    return Tokenizer.train((str(i * i) for i in range(vocab_size)), vocab_size)


def copy_layers(
    ours: Transformer,
    theirs: nn.Module,
    by_our_names: Callable[[str, Tensor], Iterator[tuple[str, Tensor]]],
) -> None:
    """Give the layers of their stacks our weights. A bias that ours lacks is zero."""
    weights = ours.state_dict()
    for name, tensor in theirs.state_dict().items():
        if ".layers." in name:
            for our_name, part in by_our_names(name, tensor):
                part.copy_(weights.get(our_name, torch.zeros(())))


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with an embedding on three sides of it."""

    positions: Tensor

    def __init__(self, ours: Transformer) -> None:
        super().__init__()
        c = ours.config
        self.transformer = nn.Transformer(
            c.d_model, c.h, c.N, c.N, c.d_ff, c.p_drop, batch_first=True
        )
        # They would come on top of post-norm.
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        self.embedding = nn.Embedding.from_pretrained(
            ours.embedding.weight.detach().clone(), freeze=False
        )
        self.register_buffer("positions", positional_encoding(1024, c.d_model))
        self.dropout = nn.Dropout(c.p_drop)
        copy_layers(ours, self.transformer, by_our_names)
        # The paper drops neither attention weights nor hidden units.
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0

    def embed(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(x + self.positions[: tokens.size(1)])

    def forward(self, batch: Batch) -> Tensor:
        padding = batch.source == 0
        causal = nn.Transformer.generate_square_subsequent_mask(batch.target_in.size(1))
        x = self.transformer(
            self.embed(batch.source),
            self.embed(batch.target_in),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return x @ self.embedding.weight.T


def marian(ours: Transformer) -> Any:
    """Hugging Face's Marian, by way of the export."""
    from transformers import MarianMTModel

    with TemporaryDirectory() as folder:
        own = write_directory(f"{folder}/own", ours.config, numbers(ours.config.vocab_size))
        save_weights(own / "model.safetensors", ours)
        theirs = huggingface.export_checkpoint(own, f"{folder}/theirs")
        return MarianMTModel.from_pretrained(theirs, attn_implementation="sdpa").train()


def joeynmt_model(ours: Transformer) -> nn.Module:
    """JoeyNMT's post-norm model with our weights; its projections have biases,
    which are zero then."""
    from joeynmt.decoders import TransformerDecoder
    from joeynmt.embeddings import Embeddings
    from joeynmt.encoders import TransformerEncoder
    from joeynmt.model import Model

    c = ours.config
    sizes = {
        "hidden_size": c.d_model,
        "ff_size": c.d_ff,
        "num_layers": c.N,
        "num_heads": c.h,
        "dropout": c.p_drop,
        "emb_dropout": c.p_drop,
        "layer_norm": "post",
    }
    embedding = Embeddings(c.d_model, scale=True, vocab_size=c.vocab_size, padding_idx=c.pad_id)
    ids = {f"{name}_index": i for i, name in enumerate(("pad", "bos", "eos", "unk"))}
    special = SimpleNamespace(**ids, sep_index=None, specials=[], lang_tags=[])
    stacks = TransformerEncoder(**sizes), TransformerDecoder(vocab_size=c.vocab_size, **sizes)
    model = Model(*stacks, embedding, embedding, special, special)
    with torch.no_grad():
        embedding.lut.weight.copy_(ours.embedding.weight)
    model.decoder.output_layer.weight = embedding.lut.weight
    copy_layers(ours, model, _joeynmt_by_our_names)
    return model.train()


def _joeynmt_by_our_names(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Their decoder has the name of the encoder's first LayerNorm for none of its own."""
    last = 2 if name.startswith("encoder") else 3
    for theirs, our_name in (
        ("src_src_att", "self_attention"),
        ("trg_trg_att", "self_attention"),
        ("src_trg_att", "cross_attention"),
        ("q_layer", "W_Q"),
        ("k_layer", "W_K"),
        ("v_layer", "W_V"),
        ("output_layer", "W_O"),
        ("pwff_layer.0", "W_1"),
        ("pwff_layer.3", "W_2"),
        ("feed_forward.layer_norm", f"add_norm_{last}.norm"),
        ("x_layer_norm", "add_norm_1.norm"),
        ("dec_layer_norm", "add_norm_2.norm"),
        (".layer_norm", ".add_norm_1.norm"),
    ):
        name = name.replace(theirs, our_name)
    yield name, tensor
