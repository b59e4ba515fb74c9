"""Implementations to compare with, each optional: as a user would build them, with our weights where that can be.

A peer has the paper's sizes and a shared embedding, and where `is_same_function` also post-norm, ReLU and dropout as
section 5.4 has it; the optimizer is the same fused Adam and the loss PyTorch's own label-smoothed cross-entropy, which
are the fastest it comes with.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from timing import Work
from torch import Tensor, nn
from torch.nn import functional as F

from annotated_transformer import Transformer
from annotated_transformer.attention import MultiHeadAttention
from annotated_transformer.batching import Batch
from annotated_transformer.embedding import concatenated_positional_encoding, positional_encoding


class Peer(NamedTuple):
    """A module in training mode, and logits of a batch by it; whether it computes what our model does."""

    name: str
    module: nn.Module
    logits: Callable[[Batch], Tensor]
    is_same_function: bool = True

    def trainer(self) -> Callable[[Batch], None]:
        """A training step on a batch: loss, gradients, Adam."""
        adam = torch.optim.Adam(self.module.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

        def step(batch: Batch) -> None:
            logits = self.logits(batch)
            loss = F.cross_entropy(logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=0,
                                   label_smoothing=0.1)
            loss.backward()
            adam.step()
            adam.zero_grad()

        return step


def unlike(peer: Peer, model: Transformer, batch: Batch) -> float:
    """The largest difference between the peer's logits and the model's, both without dropout, at real positions."""
    was_training = peer.module.training
    with torch.no_grad():
        ours = model.eval()(batch.source, batch.target_in)
        peer.module.eval()
        theirs = peer.logits(batch)
    peer.module.train(was_training)
    return (ours - theirs)[batch.target_out != 0].abs().max().item()


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with an embedding on three sides of it."""

    def __init__(self, ours: Transformer) -> None:
        super().__init__()
        c = ours.config
        self.transformer = nn.Transformer(c.d_model, c.h, c.N, c.N, c.d_ff, c.p_drop, batch_first=True)
        self.transformer.encoder.norm = self.transformer.decoder.norm = None  # they would come on top of post-norm
        self.embedding = nn.Embedding.from_pretrained(ours.embedding.weight.detach().clone(), freeze=False)
        self.register_buffer("positions", positional_encoding(1024, c.d_model))
        self.dropout = nn.Dropout(c.p_drop)
        for stack, own in ((self.transformer.encoder, ours.encoder), (self.transformer.decoder, ours.decoder)):
            for layer, own_layer in zip(stack.layers, own.layers, strict=True):
                _copy_layer(layer, own_layer)
        for module in self.transformer.modules():  # the paper drops neither attention weights nor hidden units
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
        x = self.transformer(self.embed(batch.source), self.embed(batch.target_in), tgt_mask=causal,
                             src_key_padding_mask=padding, memory_key_padding_mask=padding, tgt_is_causal=True)
        return x @ self.embedding.weight.T


def _copy(theirs: Any, weight: Tensor, bias: Tensor | None = None) -> None:
    """Set a linear layer or LayerNorm; a bias that ours lacks is zero."""
    with torch.no_grad():
        theirs.weight.copy_(weight)
        theirs.bias.copy_(torch.zeros_like(theirs.bias) if bias is None else bias)


def _copy_layer(layer: Any, own: Any) -> None:
    attentions = [(layer.self_attn, own.self_attention)]
    norms = [(layer.norm1, own.add_norm_1), (layer.norm2, own.add_norm_2)]
    if hasattr(layer, "multihead_attn"):
        attentions.append((layer.multihead_attn, own.cross_attention))
        norms.append((layer.norm3, own.add_norm_3))
    for theirs, ours in attentions:
        with torch.no_grad():
            theirs.in_proj_weight.copy_(torch.cat([ours.W_Q.weight, ours.W_K.weight, ours.W_V.weight]))
            theirs.in_proj_bias.zero_()
        _copy(theirs.out_proj, ours.W_O.weight)
    _copy(layer.linear1, own.feed_forward.W_1.weight, own.feed_forward.W_1.bias)
    _copy(layer.linear2, own.feed_forward.W_2.weight, own.feed_forward.W_2.bias)
    for norm, add_norm in norms:
        _copy(norm, add_norm.norm.weight, add_norm.norm.bias)


def marian(ours: Transformer) -> nn.Module:
    """Hugging Face's Marian with our weights: its positions are sin beside cos, which is no other function of them."""
    from transformers import MarianConfig, MarianMTModel

    c = ours.config
    sides = {f"{side}_{key}": value for side in ("encoder", "decoder")
             for key, value in (("layers", c.N), ("attention_heads", c.h), ("ffn_dim", c.d_ff))}
    config = MarianConfig(
        vocab_size=c.vocab_size, decoder_vocab_size=c.vocab_size, d_model=c.d_model, dropout=c.p_drop,
        attention_dropout=0.0, activation_dropout=0.0, activation_function="relu", scale_embedding=True,
        pad_token_id=c.pad_id, bos_token_id=c.bos_id, eos_token_id=c.eos_id, decoder_start_token_id=c.bos_id,
        forced_eos_token_id=None, attn_implementation="sdpa", **sides)
    model = MarianMTModel(config)
    encoding = concatenated_positional_encoding if c.positions == "concatenated" else positional_encoding
    with torch.no_grad():
        model.model.shared.weight.copy_(ours.embedding.weight)
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.copy_(encoding(stack.embed_positions.num_embeddings, c.d_model))
    for stack, own in ((model.model.encoder, ours.encoder), (model.model.decoder, ours.decoder)):
        for layer, own_layer in zip(stack.layers, own.layers, strict=True):
            _copy_marian_layer(layer, own_layer)
    return model.train()


def _copy_marian_layer(layer: Any, own: Any) -> None:
    def attention(theirs: Any, ours: MultiHeadAttention) -> None:
        for linear, matrix in ((theirs.q_proj, ours.W_Q), (theirs.k_proj, ours.W_K), (theirs.v_proj, ours.W_V),
                               (theirs.out_proj, ours.W_O)):
            _copy(linear, matrix.weight, matrix.bias)

    def norm(theirs: Any, add_norm: Any) -> None:
        _copy(theirs, add_norm.norm.weight, add_norm.norm.bias)

    attention(layer.self_attn, own.self_attention)
    norm(layer.self_attn_layer_norm, own.add_norm_1)
    last = own.add_norm_2
    if hasattr(layer, "encoder_attn"):
        attention(layer.encoder_attn, own.cross_attention)
        norm(layer.encoder_attn_layer_norm, own.add_norm_2)
        last = own.add_norm_3
    _copy(layer.fc1, own.feed_forward.W_1.weight, own.feed_forward.W_1.bias)
    _copy(layer.fc2, own.feed_forward.W_2.weight, own.feed_forward.W_2.bias)
    norm(layer.final_layer_norm, last)


def _torch_transformer(ours: Transformer) -> Peer:
    module = TorchTransformer(ours).train()
    return Peer("torch.nn.Transformer", module, module)


def _marian(ours: Transformer) -> Peer:
    module = marian(ours)

    def logits(batch: Batch) -> Tensor:
        return module(input_ids=batch.source, attention_mask=batch.source != 0,
                      decoder_input_ids=batch.target_in, use_cache=False).logits

    return Peer("Hugging Face Marian", module, logits)


def _x_transformers(ours: Transformer) -> Peer:
    """Its defaults but for the sizes: pre-norm, learned positions, GELU. Not the same function; as fast as it is."""
    from x_transformers import XTransformer

    c = ours.config
    sides = {f"{side}_{key}": value for side in ("enc", "dec")
             for key, value in (("num_tokens", c.vocab_size), ("depth", c.N), ("heads", c.h), ("max_seq_len", 512),
                                ("attn_dim_head", c.d_k), ("ff_mult", c.d_ff // c.d_model), ("attn_flash", True),
                                ("emb_dropout", c.p_drop), ("ff_dropout", c.p_drop))}
    module = XTransformer(dim=c.d_model, tie_token_emb=True, **sides).train()

    def logits(batch: Batch) -> Tensor:
        mask = batch.source != 0
        memory = module.encoder(batch.source, mask=mask, return_embeddings=True)
        return module.decoder.net(batch.target_in, context=memory, context_mask=mask)

    return Peer("x-transformers", module, logits, is_same_function=False)


def _joeynmt(ours: Transformer) -> Peer:
    """Its encoder and decoder, post-norm. Not the same function: its projections have biases, and it drops out more."""
    from joeynmt.decoders import TransformerDecoder
    from joeynmt.embeddings import Embeddings
    from joeynmt.encoders import TransformerEncoder

    c = ours.config
    sizes = {"hidden_size": c.d_model, "ff_size": c.d_ff, "num_layers": c.N, "num_heads": c.h, "dropout": c.p_drop,
             "emb_dropout": c.p_drop, "layer_norm": "post"}
    embedding = Embeddings(c.d_model, scale=True, vocab_size=c.vocab_size, padding_idx=c.pad_id)
    module = nn.ModuleDict({"embedding": embedding, "encoder": TransformerEncoder(**sizes),
                            "decoder": TransformerDecoder(vocab_size=c.vocab_size, **sizes)}).train()
    encoder, decoder = module["encoder"], module["decoder"]
    decoder.output_layer.weight = embedding.lut.weight

    def logits(batch: Batch) -> Tensor:
        mask, target_mask = (tokens[:, None] != c.pad_id for tokens in (batch.source, batch.target_in))
        memory, _ = encoder(embedding(batch.source), None, mask)
        return decoder(embedding(batch.target_in), memory, None, mask, None, None, target_mask)[0]

    return Peer("JoeyNMT", module, logits, is_same_function=False)


PEERS: dict[str, tuple[str, Callable[[Transformer], Peer]]] = {
    "torch.nn.Transformer": ("torch", _torch_transformer), "Hugging Face Marian": ("transformers", _marian),
    "x-transformers": ("x_transformers", _x_transformers), "JoeyNMT": ("joeynmt", _joeynmt)}
"""How to build each, and the package that it needs."""


def installed() -> Iterator[str]:
    """The peers whose package can be imported."""
    for name, (package, _) in PEERS.items():
        if importlib.util.find_spec(package):
            yield name


def build(name: str, ours: Transformer) -> Peer:
    return PEERS[name][1](ours)


def on_batches(step: Callable[[Batch], object], batches: list[Batch]) -> Work:
    """One step on each batch."""
    def work() -> None:
        for batch in batches:
            step(batch)

    return work


def ctranslate2_model(ours: Transformer, folder: str) -> None:
    """Write our weights as a CTranslate2 model; a token's name there is its id, and </s> is eos."""
    import ctranslate2

    c = ours.config
    spec = ctranslate2.specs.TransformerSpec.from_config((c.N, c.N), c.h, pre_norm=False,
                                                         activation=ctranslate2.specs.Activation.RELU)
    names = [str(i) for i in range(c.vocab_size)]
    names[c.pad_id], names[c.bos_id], names[c.eos_id], names[3] = "<pad>", "<s>", "</s>", "<unk>"
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.config.decoder_start_token = "<s>"
    encoding = concatenated_positional_encoding if c.positions == "concatenated" else positional_encoding
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
