"""Our weights in the models of other libraries:
with no dropout each of them computes what ours does."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from annotated_transformer import Transformer
from annotated_transformer.model.attention import MultiHeadAttention
from annotated_transformer.model.embedding import (
    concatenated_positional_encoding,
    positional_encoding,
)
from annotated_transformer.model.stacks import AddNorm
from annotated_transformer.text.batching import Batch


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
        for stack, own in (
            (self.transformer.encoder, ours.encoder),
            (self.transformer.decoder, ours.decoder),
        ):
            for layer, own_layer in zip(stack.layers, own.layers, strict=True):
                _copy_layer(layer, own_layer)
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


def _copy(theirs: Any, weight: Tensor, bias: Tensor | None = None) -> None:
    """Set a linear layer or LayerNorm; a bias that ours lacks is zero."""
    with torch.no_grad():
        theirs.weight.copy_(weight)
        theirs.bias.copy_(torch.zeros_like(theirs.bias) if bias is None else bias)


def _copy_norms_and_feed_forward(own: Any, norms: list[Any], linears: list[Any]) -> None:
    """Their norms in the order in which the sub-layers stand, and the two layers between."""
    ours = [module for module in own.children() if isinstance(module, AddNorm)]
    for theirs, norm in zip(norms, [add_norm.norm for add_norm in ours], strict=True):
        assert isinstance(norm, nn.LayerNorm)
        _copy(theirs, norm.weight, norm.bias)
    for theirs, linear in zip(linears, (own.feed_forward.W_1, own.feed_forward.W_2), strict=True):
        _copy(theirs, linear.weight, linear.bias)


def _copy_attentions(own: Any, attentions: list[Any], names: tuple[str, ...]) -> None:
    """Self-attention and, of a decoder, attention to the source; `names` are theirs for W_Q,
    W_K, W_V and W_O."""
    ours = [module for module in own.children() if isinstance(module, MultiHeadAttention)]
    for theirs, attention in zip(attentions, ours, strict=True):
        for name, matrix in zip(
            names, (attention.W_Q, attention.W_K, attention.W_V, attention.W_O), strict=True
        ):
            _copy(getattr(theirs, name), matrix.weight, matrix.bias)


def _copy_layer(layer: Any, own: Any) -> None:
    attentions, norms = [(layer.self_attn, own.self_attention)], [layer.norm1, layer.norm2]
    if hasattr(layer, "multihead_attn"):
        attentions.append((layer.multihead_attn, own.cross_attention))
        norms.append(layer.norm3)
    for theirs, ours in attentions:
        with torch.no_grad():
            theirs.in_proj_weight.copy_(
                torch.cat([ours.W_Q.weight, ours.W_K.weight, ours.W_V.weight])
            )
            theirs.in_proj_bias.zero_()
        _copy(theirs.out_proj, ours.W_O.weight)
    _copy_norms_and_feed_forward(own, norms, [layer.linear1, layer.linear2])


def marian(ours: Transformer) -> nn.Module:
    """Hugging Face's Marian with our weights: its positions are sin beside cos,
    which is no other function of them."""
    from transformers import MarianConfig, MarianMTModel

    c = ours.config
    sides = {
        f"{side}_{key}": value
        for side in ("encoder", "decoder")
        for key, value in (("layers", c.N), ("attention_heads", c.h), ("ffn_dim", c.d_ff))
    }
    config = MarianConfig(
        vocab_size=c.vocab_size,
        decoder_vocab_size=c.vocab_size,
        d_model=c.d_model,
        dropout=c.p_drop,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=c.pad_id,
        bos_token_id=c.bos_id,
        eos_token_id=c.eos_id,
        decoder_start_token_id=c.bos_id,
        forced_eos_token_id=None,
        attn_implementation="sdpa",
        **sides,
    )
    model = MarianMTModel(config)
    encoding = (
        concatenated_positional_encoding if c.positions == "concatenated" else positional_encoding
    )
    with torch.no_grad():
        model.model.shared.weight.copy_(ours.embedding.weight)
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.copy_(
                encoding(stack.embed_positions.num_embeddings, c.d_model)
            )
    for stack, own in ((model.model.encoder, ours.encoder), (model.model.decoder, ours.decoder)):
        for layer, own_layer in zip(stack.layers, own.layers, strict=True):
            _copy_marian_layer(layer, own_layer)
    return model.train()


def _copy_marian_layer(layer: Any, own: Any) -> None:
    attentions, norms = [layer.self_attn], [layer.self_attn_layer_norm]
    if hasattr(layer, "encoder_attn"):
        attentions.append(layer.encoder_attn)
        norms.append(layer.encoder_attn_layer_norm)
    _copy_attentions(own, attentions, ("q_proj", "k_proj", "v_proj", "out_proj"))
    _copy_norms_and_feed_forward(own, [*norms, layer.final_layer_norm], [layer.fc1, layer.fc2])


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
    special = SimpleNamespace(
        pad_index=c.pad_id,
        bos_index=c.bos_id,
        eos_index=c.eos_id,
        unk_index=3,
        sep_index=None,
        specials=[],
        lang_tags=[],
    )
    model = Model(
        TransformerEncoder(**sizes),
        TransformerDecoder(vocab_size=c.vocab_size, **sizes),
        embedding,
        embedding,
        special,
        special,
    )
    with torch.no_grad():
        embedding.lut.weight.copy_(ours.embedding.weight)
    model.decoder.output_layer.weight = embedding.lut.weight
    for stack, own in ((model.encoder, ours.encoder), (model.decoder, ours.decoder)):
        for layer, own_layer in zip(stack.layers, own.layers, strict=True):
            _copy_joeynmt_layer(layer, own_layer)
    return model.train()


def _copy_joeynmt_layer(layer: Any, own: Any) -> None:
    if hasattr(layer, "trg_trg_att"):
        attentions, norms = (
            [layer.trg_trg_att, layer.src_trg_att],
            [layer.x_layer_norm, layer.dec_layer_norm],
        )
    else:
        attentions, norms = [layer.src_src_att], [layer.layer_norm]
    _copy_attentions(own, attentions, ("q_layer", "k_layer", "v_layer", "output_layer"))
    feed_forward = layer.feed_forward
    _copy_norms_and_feed_forward(
        own,
        [*norms, feed_forward.layer_norm],
        [feed_forward.pwff_layer[0], feed_forward.pwff_layer[3]],
    )


def ctranslate2_model(ours: Transformer, folder: str) -> None:
    """Write our weights as a CTranslate2 model; a token's name there is its id, and </s> is eos."""
    import ctranslate2

    c = ours.config
    spec = ctranslate2.specs.TransformerSpec.from_config(
        (c.N, c.N), c.h, pre_norm=False, activation=ctranslate2.specs.Activation.RELU
    )
    names = [str(i) for i in range(c.vocab_size)]
    names[c.pad_id], names[c.bos_id], names[c.eos_id], names[3] = "<pad>", "<s>", "</s>", "<unk>"
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.config.decoder_start_token = "<s>"
    encoding = (
        concatenated_positional_encoding if c.positions == "concatenated" else positional_encoding
    )
    for stack, own in ((spec.encoder, ours.encoder), (spec.decoder, ours.decoder)):
        embeddings = stack.embeddings[0] if isinstance(stack.embeddings, list) else stack.embeddings
        embeddings.weight = _numbers(ours.embedding.weight)
        stack.scale_embeddings = True
        stack.position_encodings.encodings = _numbers(encoding(1024, c.d_model))
        for layer, own_layer in zip(stack.layer, own.layers, strict=True):
            _set_ctranslate2_layer(layer, own_layer)
    spec.decoder.projection.weight = _numbers(ours.embedding.weight)
    spec.validate()
    spec.save(folder)


def _numbers(x: Tensor) -> Any:
    return x.detach().float().contiguous().numpy()


def _set_ctranslate2_layer(layer: Any, own: Any) -> None:
    def linear(spec: Any, *modules: Any) -> None:
        spec.weight = _numbers(torch.cat([module.weight for module in modules]))
        if modules[0].bias is not None:
            spec.bias = _numbers(torch.cat([module.bias for module in modules]))

    def norm(spec: Any, add_norm: Any) -> None:
        spec.gamma, spec.beta = _numbers(add_norm.norm.weight), _numbers(add_norm.norm.bias)

    ours = own.self_attention
    linear(layer.self_attention.linear[0], ours.W_Q, ours.W_K, ours.W_V)
    linear(layer.self_attention.linear[1], ours.W_O)
    norm(layer.self_attention.layer_norm, own.add_norm_1)
    last = own.add_norm_2
    if hasattr(own, "cross_attention"):
        ours = own.cross_attention
        linear(layer.attention.linear[0], ours.W_Q)
        linear(layer.attention.linear[1], ours.W_K, ours.W_V)
        linear(layer.attention.linear[2], ours.W_O)
        norm(layer.attention.layer_norm, own.add_norm_2)
        last = own.add_norm_3
    linear(layer.ffn.linear_0, own.feed_forward.W_1)
    linear(layer.ffn.linear_1, own.feed_forward.W_2)
    norm(layer.ffn.layer_norm, last)
