"""Messages to the user, each one line: mistakes, and progress on standard error.

Every other module stands above this one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

PROGRAM = "annotated-transformer"
VERSION = "0.2.0"


class ConfigError(ValueError):
    """A mistake of the user, in one line that names the value and the rule.

    >>> ModelConfig.base(vocab_size=8000, h=7)
    Traceback (most recent call last):
    ...
    annotated_transformer.errors.ConfigError: d_model must be a multiple of h, got 512 and 7
    """


class DamagedFileError(ConfigError):
    """A file that is not what was written: cut short, altered, or of another kind."""


class LocalError(ConfigError):
    """An error that one process of a run may have alone, such as a lack of memory: it prints it."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which a cluster sends before it takes its machine back: like Ctrl-C, status 143."""


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with `message` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)


@contextmanager
def needs_extra(name: str) -> Iterator[None]:
    """Raise ConfigError, with pip's command, where what is imported inside is not installed."""
    try:
        yield
    except ImportError:
        command = f"pip install '{PROGRAM}[{name}]'"
        raise ConfigError(f"this needs a package that is not installed: {command}") from None


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory ran out, on a GPU or here."""
    if type(error) is RuntimeError:  # PyTorch has no class for it on a CPU
        return "t allocate memory" in str(error)
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


@contextmanager
def naming_lack_of_memory(for_what: Callable[[], str]) -> Iterator[None]:
    """Inside the block a lack of memory becomes a LocalError, which says `for_what`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_lack_of_memory(error):
            raise
        raise LocalError(f"out of memory {for_what()}") from None


def require_strings(texts: Iterable[object], rule: str) -> None:
    """Raise ConfigError with `rule` unless `texts` are strings, and not one string.

    One string is a sequence of strings too, its letters, and would be taken for a list of them.
    """
    wrong = [texts] if isinstance(texts, str) else [t for t in texts if not isinstance(t, str)]
    if wrong:
        raise ConfigError(f"{rule}, got {wrong[0]!r:.60}")


def shown(value: object, most: int = 60) -> str:
    r"""What a stranger's file says, for a message: on one line and not much longer than `most`.

    >>> shown("fc1.bias"), shown("line\nfeed"), shown("long" * 20, most=6)
    ('fc1.bias', 'line\\nfeed', 'longlo...')
    """
    text = str(value)
    return printable(text[:most]) + "..." * (len(text) > most)


def listed(names: Iterable[str]) -> str:
    """The first three of a stranger's names, for a message."""
    return ", ".join(shown(name) for name in [*names][:3])


def printable(text: str) -> str:
    """The text with escapes in place of line feeds and of all else that a terminal acts on."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def say(message: str) -> None:
    """One line of progress on standard error."""
    print(f"{PROGRAM}: {printable(message)}", file=sys.stderr, flush=True)
