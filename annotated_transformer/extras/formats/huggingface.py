"""Out to Hugging Face: Marian is the paper's post-norm, Pegasus is pre-norm.

Both belong to transformers and need no code of ours. The folder also holds tokenizer.model and,
under one key of config.json, our own configuration, so that `importing` restores the checkpoint bit
for bit (with `zero_start` and `output_bias`, all but the row of bos).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from annotated_transformer.checkpoint import directory as checkpoint, weights
from annotated_transformer.config import ModelConfig
from annotated_transformer.data.paired_vocabulary import MARIAN_FILES, marian_files
from annotated_transformer.data.tokenizer import BACK, Tokenizer
from annotated_transformer.errors import PROGRAM, ConfigError, require
from annotated_transformer.extras.formats.model_card import card_of, languages, readable
from annotated_transformer.extras.formats.own_form import require_range
from annotated_transformer.extras.formats.parameter_names import (
    LOGITS_BIAS,
    NEVER,
    in_order,
    parameters,
    sines_first,
)
from annotated_transformer.extras.formats.tokenizer_json import tokenizer_files
from annotated_transformer.files import read_json, write_bytes, write_text
from annotated_transformer.model.transformer import Transformer

OURS = "annotated_transformer"
"""The key of config.json under which our own stands."""
TOKENIZER_FILES = "tokenizer.json", "tokenizer_config.json", "tokenizer.model"
MODEL_FILES = "config.json", "generation_config.json", "model.safetensors"
HUGGINGFACE_FILES = (*MODEL_FILES, *TOKENIZER_FILES, "README.md")
CLASSES = {
    "post": ("marian", "MarianMTModel"),
    "pre": ("pegasus", "PegasusForConditionalGeneration"),
}
LAST = 1024
"""How many positions a table of sinusoids has, which ours computes without end."""


def export_checkpoint(
    directory: str | Path, out: str | Path, dtype: str = "float32", notes: str = ""
) -> Path:
    """Write the model in `directory` for transformers into the directory `out`.

    Weights are in `dtype`, "float32" or "float16"; `notes` is a paragraph for the card, README.md.
    Raises ConfigError, before anything is written, for a model without an exact home there, for a
    weight that is too large for `dtype`, and when `out` is the checkpoint itself or holds files
    that are not those of an earlier export.
    """
    out = Path(out)
    stored = checkpoint.read_config(directory)
    names = *HUGGINGFACE_FILES, *MARIAN_FILES
    checkpoint.require_room_for_result(out, names, directory, is_export(out))
    model, tokenizer = checkpoint.load_model(directory)
    config = model.config
    require_home(config)
    require_range(model, dtype, directory)
    words = {"tokenizer.model": tokenizer.model_bytes, **marian_files(tokenizer.model_bytes)}
    length = config.max_len if config.positions == "learned" else LAST
    written: dict[str, dict[str, Any]] = {
        "config.json": {**their_config(config, length, dtype), OURS: {**stored, "dtype": dtype}},
        "generation_config.json": _generation(config, length),
        **tokenizer_files(tokenizer, length),
    }
    text = card_of(directory, out, model, dtype, _usage(out, tokenizer), notes, _header(stored))
    theirs = _tensors(model, length)
    for name, content in written.items():
        write_text(out / name, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    for name, file in words.items():
        write_bytes(out / name, file)
    about = weights.belongs_to(config, tokenizer.sha256)
    kind = getattr(torch, dtype)
    tensors = {name: tensor.to(kind) for name, tensor in theirs.items()}
    weights.save_tensors(out / "model.safetensors", tensors, about)
    write_text(out / "README.md", text)
    return out


def is_export(out: Path) -> bool:
    """Whether an earlier export is in `out`, which a new one replaces."""
    try:
        return OURS in read_json(out / "config.json", checkpoint.MAX_CONFIG_BYTES)
    except (OSError, ConfigError):
        return False


KNOWN_TO_HUGGINGFACE = (
    "norm", "positions=learned", "positions=concatenated", "positions=none", "activation=gelu",
    "activation=silu", "bias", "scaled_attention", "final_norm", "output_bias", "zero_start",
    "first_position", "attention_dropout", "ffn_dropout",
)  # fmt: skip
"""What Marian and mBART compute besides the paper's model (`ModelConfig.beyond`)."""


def require_home(config: ModelConfig) -> None:
    """Raise ConfigError, with what would have to change, for what neither class computes."""
    config.require_known(KNOWN_TO_HUGGINGFACE, "Hugging Face")
    factor = math.log2(config.d_k or 1) / 2  # of sqrt(d_k), which goes into W_Q
    has_table = config.norm == "pre"
    for holds, rule in (
        (not config.final_norm or has_table, "final_norm after norm=post: train without it"),
        (
            has_table or (config.positions == "sinusoidal" and not config.first_position),
            f"positions={config.positions} from {config.first_position} on with norm=post: train "
            "with sinusoidal ones from 0 on, or with norm=pre",
        ),
        (
            config.h * (config.d_k or 0) == config.h * (config.d_v or 0) == config.d_model,
            f"h d_k or h d_v other than d_model, got {config.h}, {config.d_k}, {config.d_v} and "
            f"{config.d_model}: leave d_k and d_v at d_model / h",
        ),
        (
            config.scaled_attention or factor.is_integer(),
            f"scaled_attention=False with d_k {config.d_k}, whose root is not exact: take 4, 16, "
            "64 or 256",
        ),
        (
            config.output_bias or not config.zero_start,
            "zero_start without output_bias, which keeps <s> from being proposed: train with both",
        ),
    ):
        require(holds, f"Hugging Face has no model with {rule}")


def their_config(config: ModelConfig, length: int, dtype: str) -> dict[str, Any]:
    """Their config.json of a model whose table of positions has `length` rows."""
    model_type, name = CLASSES[config.norm]
    both = {"layers": config.N, "attention_heads": config.h, "ffn_dim": config.d_ff}
    return {
        "architectures": [name],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        **({"decoder_vocab_size": config.vocab_size} if model_type == "marian" else {}),
        **{f"{side}_{key}": size for side in ("encoder", "decoder") for key, size in both.items()},
        "d_model": config.d_model,
        "dropout": config.p_drop,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.ffn_dropout,
        "activation_function": config.activation,
        "scale_embedding": True,
        "max_position_embeddings": length,
        **_ids(config),
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "is_encoder_decoder": True,
        "dtype": dtype,
    }


def _ids(config: ModelConfig) -> dict[str, Any]:
    return {
        "pad_token_id": config.pad_id,
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_id,
        "decoder_start_token_id": config.bos_id,
        "forced_eos_token_id": None,  # the default of Marian is 0, our padding
    }


def _generation(config: ModelConfig, length: int) -> dict[str, Any]:
    """Four beams; their length penalty is n^0.6, ours Wu's (`rerank` puts a list in our order)."""
    search = {"num_beams": 4, "length_penalty": 0.6, "early_stopping": "never"}
    return {**_ids(config), **search, "max_length": min(512, length)}


@torch.no_grad()
def _tensors(model: Transformer, length: int) -> dict[str, Tensor]:
    """The weights by their names, in their order of channels."""
    config = model.config
    tensors = model.state_dict()
    order = sines_first(config.d_model) if config.positions == "sinusoidal" else None
    bias = tensors.get("embedding.bias", torch.zeros(config.vocab_size))
    if config.zero_start and tensors["embedding.weight"][config.bos_id].any():
        # Their row is both what is embedded and what is proposed.
        tensors["embedding.weight"][config.bos_id] = 0.0
        bias[config.bos_id] = NEVER
    found = {LOGITS_BIAS: bias[None]}
    for ours, theirs, axis in parameters(config):
        if ours not in tensors:
            tensors[ours] = torch.zeros(len(tensors[ours.replace("bias", "weight")]))
        is_unscaled = not config.scaled_attention and ".W_Q." in ours
        factor = math.sqrt(config.d_k or 1) if is_unscaled else 1.0
        found[theirs] = in_order(tensors[ours] * factor, axis, order)
    if config.norm == "pre":  # Pegasus keeps a table of positions in the file
        rows = torch.as_tensor(model.positions(length)).expand(length, config.d_model)
        for side in ("encoder", "decoder"):
            found[f"model.{side}.embed_positions.weight"] = in_order(rows, 1, order).clone()
    return found


def _header(config: dict[str, Any]) -> str:
    """What the Hub reads of a card."""
    named = "".join(f"\n- {language}" for language in languages(config))
    # No pipeline_tag: transformers 5 has no pipeline for it.
    kind = "library_name: transformers\ntags:\n- translation"
    return f"---\n{f'language:{named}' if named else ''}\n{kind}\n---".replace("\n\n", "\n")


def _usage(out: Path, tokenizer: Tokenizer) -> str:
    name = json.dumps(readable(out.name), ensure_ascii=False)
    way_back = f"""

It translates the other way too, where the token `{BACK}` comes first, which no text can spell:

```python
import torch

ids = [tokenizer.convert_tokens_to_ids("{BACK}"), *tokenizer(text).input_ids]
print(tokenizer.decode(model.generate(input_ids=torch.tensor([ids]))[0], skip_special_tokens=True))
```"""
    has_way_back = BACK in tokenizer.pieces(range(tokenizer.vocab_size))
    return f"""To translate, with transformers 4.57 or 5, which has no pipeline for this:

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({name})
model = AutoModelForSeq2SeqLM.from_pretrained({name}, dtype="float32").eval()
batch = tokenizer(["I am hungry."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```

`{PROGRAM} import {readable(out.name)} --out model` restores the checkpoint that it was.
For CTranslate2 use `{PROGRAM} export --to ctranslate2`: its own converter of Marian's
models drops the last token of a vocabulary.{way_back if has_way_back else ""}"""
