"""Two training runs that must not differ, as `survival.py` compares them."""

from pathlib import Path

from survival import differences


def assert_same_run(one: Path, two: Path) -> None:
    """Weights, Adam's moments, random state, counters, fingerprint and checkpoints bit for bit.

    The logs say the same, times aside, and nothing is left half written.
    """
    assert differences(one, two) == []
