"""The Transformer of *Attention Is All You Need*: model, data, training, search, evaluation.

Folders are named after the paper's parts: `model` (section 3), `data` (5.1), `training` (5.2 to
5.4), `decoding` (6.1). What only makes it faster is in `fast`, and what serves a particular user
is in `extras`, which nothing outside it needs. The names below are public; anything else may
change from one release to the next. Each is loaded when it is first used, so that importing the
package costs no more than a few milliseconds. Their one list is `__init__.pyi`: type checkers read
it, and so does this module.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

from annotated_transformer.errors import VERSION

__version__ = VERSION

_HOME = {
    name.name: statement.module
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body
    if isinstance(statement, ast.ImportFrom)
    for name in statement.names
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(str(_HOME[name]))
    if not hasattr(module, name):  # a module itself, such as the registry of corpora
        import_module(f"{_HOME[name]}.{name}")
    globals()[name] = getattr(module, name)
    return globals()[name]


def __dir__() -> list[str]:
    # Without it, completion would miss the names that nobody has asked for yet.
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
