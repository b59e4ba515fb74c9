"""Implementations to compare with, each optional: as a user would build them,
with our weights where that can be.

A peer has the paper's sizes and a shared embedding, and where `is_same_function` also post-norm,
ReLU and dropout as section 5.4 has it; the optimizer is the same fused Adam and the loss PyTorch's
own label-smoothed cross-entropy, which are the fastest it comes with.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from annotated_transformer import Transformer
from annotated_transformer.data.batching import Batch
from benchmarks.converted import TorchTransformer, joeynmt_model, marian
from benchmarks.timing import Work


class Peer(NamedTuple):
    """A module in training mode, and logits of a batch by it;
    whether it computes what our model does."""

    name: str
    module: nn.Module
    logits: Callable[[Batch], Tensor]
    is_same_function: bool = True

    def trainer(self, precision: str = "fp32") -> Callable[[Batch], None]:
        """A training step on a batch: loss, gradients, Adam."""
        adam = torch.optim.Adam(
            self.module.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
        )

        def step(batch: Batch) -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                loss = F.cross_entropy(
                    self.logits(batch).flatten(0, 1),
                    batch.target_out.flatten(),
                    ignore_index=0,
                    label_smoothing=0.1,
                )
            loss.backward()
            adam.step()
            adam.zero_grad()

        return step


def unlike(peer: Peer, model: Transformer, batch: Batch) -> float:
    """The largest difference between the peer's logits and the model's, both without dropout,
    at real positions."""
    was_training = peer.module.training
    with torch.no_grad():
        ours = model.eval()(batch.source, batch.target_in)
        peer.module.eval()
        theirs = peer.logits(batch)
    peer.module.train(was_training)
    return (ours - theirs)[batch.target_out != 0].abs().max().item()


def _torch_transformer(ours: Transformer) -> Peer:
    module = TorchTransformer(ours).train()
    return Peer("torch.nn.Transformer", module, module)


def _marian(ours: Transformer) -> Peer:
    module = marian(ours)

    def logits(batch: Batch) -> Tensor:
        return module(
            input_ids=batch.source,
            attention_mask=batch.source != 0,
            decoder_input_ids=batch.target_in,
            use_cache=False,
        ).logits

    return Peer("Hugging Face Marian", module, logits)


def _x_transformers(ours: Transformer) -> Peer:
    """Its defaults but for the sizes: pre-norm, learned positions, GELU. Not the same function;
    as fast as it is."""
    from x_transformers import XTransformer

    c = ours.config
    sides = {
        f"{side}_{key}": value
        for side in ("enc", "dec")
        for key, value in (
            ("num_tokens", c.vocab_size),
            ("depth", c.N),
            ("heads", c.h),
            ("max_seq_len", 512),
            ("attn_dim_head", c.d_k),
            ("ff_mult", c.d_ff // c.d_model),
            ("attn_flash", True),
            ("emb_dropout", c.p_drop),
            ("ff_dropout", c.p_drop),
        )
    }
    module = XTransformer(dim=c.d_model, tie_token_emb=True, **sides).train()

    def logits(batch: Batch) -> Tensor:
        mask = batch.source != 0
        memory = module.encoder(batch.source, mask=mask, return_embeddings=True)
        return module.decoder.net(batch.target_in, context=memory, context_mask=mask)

    return Peer("x-transformers", module, logits, is_same_function=False)


def _joeynmt(ours: Transformer) -> Peer:
    """Not the same function in training: it learns biases of its projections,
    and drops out more."""
    module = joeynmt_model(ours)

    def logits(batch: Batch) -> Tensor:
        mask, target_mask = (
            tokens[:, None] != ours.config.pad_id for tokens in (batch.source, batch.target_in)
        )
        memory, *_ = module("encode", src=batch.source, src_length=None, src_mask=mask)
        return module(
            "decode",
            trg_input=batch.target_in,
            encoder_output=memory,
            encoder_hidden=None,
            src_mask=mask,
            unroll_steps=None,
            trg_mask=target_mask,
        )[0]

    return Peer("JoeyNMT", module, logits, is_same_function=False)


PEERS: dict[str, tuple[str, Callable[[Transformer], Peer]]] = {
    "torch.nn.Transformer": ("torch", _torch_transformer),
    "Hugging Face Marian": ("transformers", _marian),
    "x-transformers": ("x_transformers", _x_transformers),
    "JoeyNMT": ("joeynmt", _joeynmt),
}
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
