"""A random model as a folder of opus-mt's form, and the same in ours, the page's oracle.

The mapping of tensors is that of transformers' MarianMTModel: a post-norm Transformer whose
sinusoids stand side by side and not interleaved, so that every side of a matrix that is the
residual stream has its channels in another order.
"""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from safetensors.torch import save_file
from torch import Tensor

from annotated_transformer.model.transformer import Transformer
from toys import small_model, text_pairs

PARTS = {
    "self_attention.W_Q": "self_attn.q_proj", "self_attention.W_K": "self_attn.k_proj",
    "self_attention.W_V": "self_attn.v_proj", "self_attention.W_O": "self_attn.out_proj",
    "cross_attention.W_Q": "encoder_attn.q_proj", "cross_attention.W_K": "encoder_attn.k_proj",
    "cross_attention.W_V": "encoder_attn.v_proj", "cross_attention.W_O": "encoder_attn.out_proj",
    "feed_forward.W_1": "fc1", "feed_forward.W_2": "fc2", "add_norm_1.norm": "self_attn_layer_norm",
}  # fmt: skip
NORMS = {"encoder": {2: "final"}, "decoder": {2: "encoder_attn", 3: "final"}}


@cache
def trained(side: int) -> bytes:
    """A SentencePiece model as opus-mt's are: unigram, without bytes, extra spaces removed."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([pair[side] for pair in text_pairs(0, 300)]), model_writer=model,
        vocab_size=60, model_type="unigram", bos_id=-1, eos_id=0, unk_id=1, pad_id=-1,
        minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    return model.getvalue()


def write_marian(
    folder: Path, more: int = 0, **changes: Any
) -> tuple[Transformer, Tensor, dict[str, int]]:
    """The folder's model in our form (in float64), its bias of the logits, and its vocabulary.

    Of that, `more` pieces are in no text.
    """
    folder.mkdir(parents=True)
    pieces = []
    for side, name in enumerate(("source", "target")):
        (folder / f"{name}.spm").write_bytes(trained(side))
        processor = sentencepiece.SentencePieceProcessor(model_proto=trained(side))
        pieces += [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    words = [piece for piece in dict.fromkeys(pieces) if piece not in ("</s>", "<unk>")]
    words += [f"piece{i}" for i in range(more)]
    vocabulary = {piece: i for i, piece in enumerate(["</s>", "<unk>", *words, "<pad>"])}
    n = len(vocabulary)
    sizes = {"d_model": 16, "d_ff": 24, "h": 2, "N": 2, "activation": "silu", **changes}
    ids = {"pad_id": 1, "bos_id": 2, "eos_id": 0}  # of ours, where all three must differ
    model = small_model(vocab_size=n, bias=True, norm="post", **ids, **sizes)
    bias = torch.randn(1, n, generator=torch.Generator().manual_seed(5)).double()
    with torch.no_grad():
        model.embedding.weight[-1] = 0.0  # pad, with which the decoder starts
    state = model.state_dict()
    order = [*range(0, sizes["d_model"], 2), *range(1, sizes["d_model"], 2)]
    table = state.pop("embedding.weight")[:, order]
    tensors = {"model.shared.weight": table, "final_logits_bias": bias}
    for name, tensor in state.items():
        stack, _, layer, part, inner, *rest = name.split(".")
        its = PARTS.get(f"{part}.{inner}") or f"{NORMS[stack][int(part[-1])]}_layer_norm"
        leaf = rest[-1]
        if inner in ("W_O", "W_2", "norm"):  # into the stream
            tensor = tensor[order]
        elif leaf == "weight":
            tensor = tensor[:, order]
        tensors[f"model.{stack}.layers.{layer}.{its}.{leaf}"] = tensor
    stored = {name: one.float().contiguous() for name, one in tensors.items()}
    save_file(stored, folder / "model.safetensors")
    stacks = {
        f"{stack}_{name}": sizes[ours]
        for stack in ("encoder", "decoder")
        for name, ours in (("layers", "N"), ("attention_heads", "h"), ("ffn_dim", "d_ff"))
    }
    config = {
        "model_type": "marian", "vocab_size": n, "d_model": sizes["d_model"], **stacks,
        "activation_function": "swish", "scale_embedding": True, "max_position_embeddings": 512,
        "pad_token_id": n - 1, "eos_token_id": 0, "decoder_start_token_id": n - 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), "utf-8")
    return model, bias[0], vocabulary
