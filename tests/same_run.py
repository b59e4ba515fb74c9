"""Two training runs that must not differ, as `survival.py` compares them."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from survival import differences


def assert_same_run(one: Path, two: Path) -> None:
    """Weights, Adam's moments, random state, counters, fingerprint and checkpoints bit for bit.

    The logs say the same, times aside, and nothing is left half written.
    """
    assert differences(one, two) == []


def unlike(one: Path, two: Path, file: str = "model.safetensors") -> list[str]:
    """The tensors in a file of two runs that are not the same, bit for bit."""
    ours, theirs = (load_file(run / file) for run in (one, two))
    assert ours.keys() == theirs.keys()
    return [name for name in ours if not torch.equal(ours[name], theirs[name])]
