"""Frozen settings: read strictly from a dictionary or from text, and copied with changes.

Nothing here imports torch, so that a configuration can be read, checked and stored anywhere.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Self, get_args, get_type_hints

from annotated_transformer.errors import ConfigError, require, shown
from annotated_transformer.views import html_table

OTHER_NAMES = """
N n layers num_layers n_layers hidden_layers encoder_layers depth / h heads num_heads n_heads nhead
d_model hidden hidden_size width dim embed_dim / d_ff ffn_dim dim_feedforward intermediate_size
p_drop dropout drop / vocab_size vocabulary / peak_rate learning_rate lr rate peak_lr max_lr
lr_factor learning_rate lr rate peak_lr max_lr / max_tokens batch batch_size
train_steps epochs num_train_epochs steps n_steps max_steps iterations / steps epochs train_steps
warmup_steps warmup warmup_ratio / eps_ls label_smoothing smoothing / time minutes max_time
clip_norm clip grad_clip max_grad_norm gradient_clipping / accumulate gradient_accumulation_steps
max_length max_seq_len max_sequence_length block_size / precision fp16 bf16 amp
checkpoint_every save_every save_steps / validate_every eval_every eval_steps
beam_size beams num_beams width / alpha length_penalty lenpen / n_best num_return_sequences
train src source input data pairs / source src input file test valid / reference ref tgt target
input i src source file text / out o output output_dir save_dir / corpus dataset data
device gpu cuda / init checkpoint pretrained finetune / resume continue / quiet silent q
directory model checkpoint dir model_dir / to format / last n / pairs input train data file
"""
"""Our settings and options, each with what other programs call it."""
UNITS = {"train_steps": " (in steps)", "max_tokens": " (in tokens)", "lr_factor": " (a factor)"}


def did_you_mean(name: str, known: Mapping[str, str]) -> str:
    """The end of a line on a name that is not `known`: the nearest, by spelling or by meaning.

    `known` has what to show for each name; the end is empty where nothing is near.

    >>> did_you_mean("num_head", {"d_model": "d_model", "h": "h"})
    ': did you mean h?'
    """
    meant: dict[str, str] = {}
    for ours, *others in map(str.split, re.split("[/\n]", OTHER_NAMES.strip())):
        if ours in known:
            meant = dict.fromkeys(others, known[ours] + UNITS.get(ours, "")) | meant
    meant |= known
    nearest = get_close_matches(name.lower().replace("-", "_"), meant, n=1, cutoff=0.7)
    return f": did you mean {meant[nearest[0]]}?" if nearest else ""


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _check_kinds(cls: type, settings: dict[str, Any]) -> None:
    """Raise ConfigError unless each value is what its annotation says: a kind, or one of its words.

    A whole number may be a float.
    """
    for name, value in settings.items():
        kinds = get_args(_hints(cls)[name]) or (_hints(cls)[name],)
        if isinstance(kinds[0], str):
            rule = f"{name} must be one of {', '.join(kinds)}"
            require(value in kinds, f"{rule}, got {shown(value)}")
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not isinstance(value, kinds) or (bool not in kinds and isinstance(value, bool)):
            named = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
            require(is_number and float in kinds, f"{name} must be {named}, got {value!r:.60}")
        if isinstance(value, int):
            fits = -(2**63) <= value < 2**63
            require(fits, f"{name} must fit into 64 bits, got {value!r:.60}")
        elif is_number:
            require(math.isfinite(value), f"{name} must be a finite number, got {value}")


@dataclass(frozen=True)
class Settings:
    """Named values of known types: the base of all configurations."""

    def __new__(cls, /, *_: Any, **settings: Any) -> Self:
        cls._require_known(settings)  # before __init__, whose TypeError names no other setting
        return super().__new__(cls)

    def __post_init__(self) -> None:
        _check_kinds(type(self), vars(self))

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, self.to_dict().items())

    @classmethod
    def from_dict(cls, settings: Any) -> Self:
        """The settings that `to_dict` returned. Strict, since a file may have changed them since.

        Raises ConfigError for a name it does not know, one that is missing, and a value of another
        kind.
        """
        require(
            isinstance(settings, dict),
            f"the settings of {cls.__name__} must be a dictionary, got {settings!r:.60}",
        )
        cls._require_known(settings)
        defaults = {field.name: field.default for field in dataclasses.fields(cls)}
        needed = [name for name in defaults if defaults[name] is dataclasses.MISSING]
        missing = [name for name in needed if name not in settings]
        require(not missing, f"{cls.__name__} needs {', '.join(missing)}")
        _check_kinds(cls, settings)
        hints = _hints(cls)  # type: ignore[arg-type]
        values = {
            name: float(value) if hints[name] is float else value
            for name, value in settings.items()
        }
        return cls(**values)

    @classmethod
    def _require_known(cls, settings: Mapping[str, Any]) -> None:
        own = {name: name for name in _hints(cls)}  # type: ignore[arg-type]
        for name in settings.keys() - own:
            kinds: list[type] = [*Settings.__subclasses__()]
            known = {x: f"{x} of {kind.__name__}" for kind in kinds for x in _hints(kind)} | own
            hint = did_you_mean(shown(name), known)
            raise ConfigError(f"{cls.__name__} has no setting {shown(name)}{hint}")

    def replace(self, **changes: Any) -> Self:
        """A copy with some settings changed and all rules checked again."""
        return self.from_dict({**self.to_dict(), **changes})

    @classmethod
    def parse(cls, name: str, text: str) -> Any:
        """The value that `text` (from a command line) means for `name`, one of the settings.

        Raises ConfigError.
        """
        hint = _hints(cls)[name]  # type: ignore[arg-type]
        kind = next(kind for kind in get_args(hint) or (hint,) if kind is not type(None))
        if isinstance(kind, str):
            _check_kinds(cls, {name: text})
            return text
        try:
            if kind is bool:
                return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
            return kind(text)
        except (KeyError, ValueError):
            rule = "true or false" if kind is bool else kind.__name__
            hint = ": each setting has a --set of its own" if "=" in text else ""
            raise ConfigError(f"{name} must be {rule}, got {text!r}{hint}") from None
