"""Greedy and beam search by each implementation, all with our weights;
decoding.py measures them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from annotated_transformer import Transformer
from annotated_transformer.data.batching import pad_source
from annotated_transformer.decoding.search import StepModel, beam_search, greedy_search
from annotated_transformer.extras.formats.ctranslate2 import CTranslate2Engine
from annotated_transformer.fast.decoder import FastDecoder
from annotated_transformer.fast.int8 import quantize
from annotated_transformer.fast.linear import store_column_major
from benchmarks.converted import TorchTransformer, joeynmt_model, marian, numbers

OURS, OURS_INT8 = "annotated_transformer", "annotated_transformer int8"
OURS_NO_COPY = "annotated_transformer, no copy"  # each step reads 32 bits a weight
OURS_16 = f"{OURS} float16"
Ids = list[list[int]]
Decoder = Callable[[Ids, int], Ids]  # sources and beam size to outputs, none with eos
Prepare = Callable[[Transformer], Transformer]


class WithoutEnd:
    """A model that never writes eos: every output is as long as the limit."""

    def __init__(self, model: StepModel) -> None:
        self.model, self.config = model, model.config
        self.start = model.start

    def step(self, tokens: torch.Tensor, state: Any) -> torch.Tensor:
        logits = self.model.step(tokens, state)
        logits[..., self.config.eos_id] = -torch.inf
        return logits


def ours(
    prepare: Prepare, keep_float16_copy: bool = False, dtype: torch.dtype | None = None
) -> Callable[[Transformer, int], Decoder]:
    """Our search, with a copy of the model made ready as `Translator.from_checkpoint` does."""

    def build(model: Transformer, forced: int) -> Decoder:
        decoder = FastDecoder(prepare(deepcopy(model)), keep_float16_copy, dtype)
        return our_search(decoder, forced, model.embedding.weight.device)

    return build


def our_search(model: StepModel, forced: int, device: torch.device | str = "cpu") -> Decoder:
    """`forced` is the number of tokens that each output must have, or 0."""
    stepped = WithoutEnd(model) if forced else model

    def decode(sources: Ids, beam_size: int) -> Ids:
        source = pad_source(sources).to(device)
        extra = forced - len(sources[0]) if forced else 50
        if beam_size == 1:
            return greedy_search(stepped, source, max_extra=extra)
        return [
            best[0].tokens
            for best in beam_search(stepped, source, beam_size, alpha=0.0, max_extra=extra)
        ]

    return decode


def hugging_face(model: Transformer, forced: int) -> Decoder:
    """`generate` of Marian with our weights."""
    device = model.embedding.weight.device
    theirs = marian(model).eval().to(device)
    theirs.generation_config.max_length = None

    @torch.inference_mode()
    def decode(sources: Ids, beam_size: int) -> Ids:
        source = pad_source(sources).to(device)
        longest = forced or source.size(1) + 50
        found = theirs.generate(
            input_ids=source,
            attention_mask=(source != 0).long(),
            num_beams=beam_size,
            max_new_tokens=longest,
            min_new_tokens=forced or None,
            do_sample=False,
            length_penalty=0.0,
        )
        rows = found[:, 1:].tolist()
        return [row if forced else [token for token in row if token not in (0, 2)] for row in rows]

    return decode


@dataclass
class Prefixes:
    """What a model without a cache needs to go on: the source encoded,
    and everything that was written."""

    memory: torch.Tensor  # (B, S, D)
    padding: torch.Tensor  # (B, S), true where there is nothing to attend to
    tokens: torch.Tensor  # (B, W, t)

    def reorder(self, parents: torch.Tensor) -> None:
        self.tokens = self.tokens[torch.arange(len(parents))[:, None], parents]

    def keep(self, sentences: torch.Tensor) -> None:
        self.memory, self.padding, self.tokens = (
            x[sentences] for x in (self.memory, self.padding, self.tokens)
        )


class WithoutCache:
    """torch.nn.Transformer as our search drives it: `step` decodes the whole prefix
    and takes its last position."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.config = TorchTransformer(model).eval(), model.config

    def start(self, source: torch.Tensor) -> Prefixes:
        padding = source == self.config.pad_id
        memory = self.model.transformer.encoder(
            self.model.embed(source), src_key_padding_mask=padding
        )
        return Prefixes(memory, padding, source.new_empty(len(source), 1, 0))

    def step(self, tokens: torch.Tensor, state: Prefixes) -> torch.Tensor:
        state.tokens = torch.cat([state.tokens, tokens[..., None]], dim=-1)
        n, width, length = state.tokens.shape
        causal = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.model.transformer.decoder(
            self.model.embed(state.tokens.flatten(0, 1)),
            state.memory.repeat_interleave(width, dim=0),
            tgt_mask=causal,
            memory_key_padding_mask=state.padding.repeat_interleave(width, dim=0),
            tgt_is_causal=True,
        )
        return (x[:, -1] @ self.model.embedding.weight.T).view(n, width, -1)


def joeynmt(model: Transformer, forced: int) -> Decoder:
    """JoeyNMT's greedy and beam search with our weights."""
    from joeynmt.search import beam_search, greedy

    theirs = joeynmt_model(model).eval()

    @torch.inference_mode()
    def decode(sources: Ids, beam_size: int) -> Ids:
        source = pad_source(sources)
        mask = source[:, None] != 0
        memory, *_ = theirs("encode", src=source, src_length=None, src_mask=mask)
        search = {
            "model": theirs,
            "encoder_output": memory,
            "encoder_hidden": None,
            "src_mask": mask,
            "max_output_length": forced or source.size(1) + 50,
            "min_output_length": forced or 1,
        }
        if beam_size == 1:
            rows = greedy(**search)[0].tolist()
        else:
            rows = beam_search(**search, beam_size=beam_size, alpha=0.0)[0].tolist()
        return [row if forced else row[: row.index(2)] if 2 in row else row for row in rows]

    return decode


def ctranslate2(compute_type: str) -> Callable[[Transformer, int], Decoder]:
    """CTranslate2 with our weights, by way of the export."""

    def build(model: Transformer, forced: int) -> Decoder:
        engine = CTranslate2Engine(model, numbers(model.config.vocab_size), compute_type)

        def decode(sources: Ids, beam_size: int) -> Ids:
            found = engine.translator.translate_batch(
                [[engine.pieces[i] for i in source] for source in sources],
                beam_size=beam_size,
                length_penalty=0.0,
                max_decoding_length=forced or max(map(len, sources)) + 51,
                min_decoding_length=forced or 1,
            )
            return [[engine.ids[piece] for piece in result.hypotheses[0]] for result in found]

        return decode

    return build


DECODERS: dict[str, tuple[str, Callable[[Transformer, int], Decoder]]] = {
    OURS: ("torch", ours(store_column_major, keep_float16_copy=True)),
    OURS_NO_COPY: ("torch", ours(store_column_major)),
    OURS_INT8: ("torch", ours(quantize)),
    "Hugging Face generate": ("transformers", hugging_face),
    "torch.nn.Transformer": (
        "torch",
        lambda model, forced: our_search(WithoutCache(model), forced),
    ),
    "JoeyNMT": ("joeynmt", joeynmt),
    "CTranslate2 float32": ("ctranslate2", ctranslate2("float32")),
    "CTranslate2 int8": ("ctranslate2", ctranslate2("int8")),
}
ON_GPU: dict[str, tuple[str, Callable[[Transformer, int], Decoder]]] = {
    OURS: ("torch", ours(lambda model: model)),
    OURS_16: ("torch", ours(lambda model: model, dtype=torch.float16)),
    "Hugging Face generate": DECODERS["Hugging Face generate"],
}
WITHOUT_CACHE = "torch.nn.Transformer", "JoeyNMT"  # each step reads the whole prefix again
