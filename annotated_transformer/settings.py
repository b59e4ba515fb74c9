"""Frozen settings: read strictly from a dictionary or from text, and copied with changes.

Nothing here imports torch, so that a configuration can be read, checked and stored anywhere.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Self, get_args, get_type_hints

from annotated_transformer.errors import ConfigError, listed, require, shown
from annotated_transformer.views import html_table


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
        known = {field.name: field.default for field in dataclasses.fields(cls)}
        unknown = sorted(settings.keys() - known)
        require(
            not unknown,
            f"{cls.__name__} has no setting {listed(unknown)}; it has {', '.join(sorted(known))}",
        )
        needed = [name for name in known if known[name] is dataclasses.MISSING]
        missing = [name for name in needed if name not in settings]
        require(not missing, f"{cls.__name__} needs {', '.join(missing)}")
        _check_kinds(cls, settings)
        hints = _hints(cls)  # type: ignore[arg-type]
        values = {
            name: float(value) if hints[name] is float else value
            for name, value in settings.items()
        }
        return cls(**values)

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
            raise ConfigError(f"{name} must be {rule}, got {text!r}") from None
