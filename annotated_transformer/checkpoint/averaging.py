"""The average of a run's last checkpoints (section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from annotated_transformer.checkpoint import directory as checkpoint, weights
from annotated_transformer.errors import require, say
from annotated_transformer.files import read_bounded

UNRELATED = 0.2
"""Runs whose weights have a smaller cosine than this did not begin with the same weights.

Measured: 0.01 between two seeds, 0.54 between fine-tunings of one model on two corpora.
"""


def average_checkpoints(
    directory: str | Path,
    last: int = 5,
    out: str | Path | None = None,
    others: Sequence[str | Path] = (),
) -> Path:
    """A new directory whose weights are the mean of a run's `last` checkpoints.

    The paper takes 5 for base and 20 for big (section 6.1). `out` defaults to the run's name with
    "-averaged". `others` are runs whose `last` checkpoints count as well: runs that continued from
    the same weights with other seeds have a good mean (Wortsman et al. 2022, "Model soups"); of
    runs that did not, a message says so. Raises ConfigError when a run has fewer checkpoints, other
    settings (dropout aside) or another vocabulary, or its weights say so, and when `out` holds a
    run, or files that are not those of an earlier average.

    >>> average_checkpoints("runs/words", last=2).name
    'words-averaged'
    """
    from annotated_transformer.data.tokenizer import Tokenizer
    from annotated_transformer.data.vocabulary_file import MAX_MODEL_BYTES

    runs = [
        path if path.name not in ("", "..") else path.resolve()
        for path in map(Path, (directory, *others))
    ]
    config = checkpoint.read_config(runs[0])
    tokenizer = Tokenizer.load(runs[0] / "tokenizer.model")
    model_config = checkpoint.read_model_config(runs[0])
    checkpoint.require_vocabulary(tokenizer, model_config, runs[0])
    require(last >= 1, f"the number of checkpoints to average must be at least 1, got {last}")
    require(bool(out or runs[0].name), f"the average of {runs[0]} needs the name of a directory")
    out = Path(out) if out else runs[0].with_name(runs[0].name + "-averaged")
    replaces = checkpoint.made_by(out) == "averaged"
    checkpoint.require_room_for_result(out, checkpoint.CHECKPOINT_FILES, runs[0], replaces)
    paths: list[Path] = []
    for run in runs:
        config_of_run = checkpoint.read_model_config(run)
        different = weights.different_settings(config_of_run, model_config)
        require(
            not different,
            f"{run} has another {', '.join(different)} than {runs[0]}: their weights have no mean",
        )
        checkpoints = checkpoint.step_checkpoints(run)
        require(
            len(checkpoints) >= last,
            f"{run} has {len(checkpoints)} checkpoints, cannot average the last {last}: ask for "
            "fewer, or train with a smaller checkpoint_every",
        )
        same = read_bounded(run / "tokenizer.model", MAX_MODEL_BYTES) == tokenizer.model_bytes
        require(same, f"{run} has another vocabulary than {runs[0]}: their weights have no mean")
        for path in (*checkpoints[-last:], run / "model.safetensors"):
            if path.exists():
                about = weights.read_metadata(path)
                weights.require_belongs(about, config_of_run, tokenizer.sha256, path)
        paths += checkpoints[-last:]
    names = [f"{path.parent.parent.name}/{path.stem}" if others else path.stem for path in paths]
    averaged = weights.average(paths)
    weights.without_weights(model_config, weights.shapes_of(averaged), paths[0])
    for run, path in zip(runs[1:], paths[last::last], strict=True):
        if (cosine := _cosine(paths[0], path)) < UNRELATED:
            say(
                f"warning: {run} did not begin with the weights of {runs[0]} (the cosine of theirs "
                f"is {cosine:.2f}): their average may translate worse than either"
            )
    del config["model"]
    extra = {**config, "averaged": names}
    return checkpoint.write_directory(out, model_config, tokenizer, extra, averaged)


def _cosine(first: Path, second: Path) -> float:
    """The cosine of the angle between the matrices in two files of weights, as one vector each."""
    ours, theirs = (
        torch.cat([tensor.double().flatten() for tensor in tensors.values() if tensor.dim() > 1])
        for tensors in (weights.load_tensors(first)[0], weights.load_tensors(second)[0])
    )
    return float(torch.cosine_similarity(ours, theirs, dim=0))
