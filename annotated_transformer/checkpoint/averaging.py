"""The average of a run's last checkpoints (section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from annotated_transformer.checkpoint.directory import (
    read_config,
    read_model_config,
    require_no_run,
    require_vocabulary,
    step_checkpoints,
    write_directory,
)
from annotated_transformer.checkpoint.weights import (
    average,
    belongs_to,
    different_settings,
    read_metadata,
    require_belongs,
    save_tensors,
    shapes_of,
    without_weights,
)
from annotated_transformer.errors import require
from annotated_transformer.files import read_bounded

if TYPE_CHECKING:
    pass


def average_checkpoints(
    directory: str | Path,
    last: int = 5,
    out: str | Path | None = None,
    others: Sequence[str | Path] = (),
) -> Path:
    """A new directory whose weights are the mean of a run's `last` checkpoints.

    The paper takes 5 for base and 20 for big (section 6.1). `out` defaults to the run's name with
    "-averaged". `others` are runs whose `last` checkpoints are to count as well: runs that went on
    from the same weights, with other seeds, have a good mean (Wortsman et al. 2022, "Model soups").
    Raises ConfigError when a run has fewer checkpoints, other settings (dropout aside) or another
    vocabulary, or its weights say so, and when `out` holds a run, or a model that is no average.

    >>> average_checkpoints("runs/words", last=2).name
    'words-averaged'
    """
    from annotated_transformer.text.tokenizer import Tokenizer
    from annotated_transformer.text.vocabulary_file import MAX_MODEL_BYTES

    runs = [
        path if path.name not in ("", "..") else path.resolve()
        for path in map(Path, (directory, *others))
    ]
    config, tokenizer = read_config(runs[0]), Tokenizer.load(runs[0] / "tokenizer.model")
    model_config = read_model_config(runs[0])
    require_vocabulary(tokenizer, model_config, runs[0])
    require(last >= 1, f"the number of checkpoints to average must be at least 1, got {last}")
    require(bool(out or runs[0].name), f"the average of {runs[0]} needs the name of a directory")
    out = Path(out) if out else runs[0].with_name(runs[0].name + "-averaged")
    require(
        out.resolve() not in [run.resolve() for run in runs],
        f"the average needs a directory of its own, got {out}",
    )
    require_no_run(out)
    paths: list[Path] = []
    for run in runs:
        config_of_run = read_model_config(run)
        different = different_settings(config_of_run, model_config)
        require(
            not different,
            f"{run} has another {', '.join(different)} than {runs[0]}: their weights have no mean",
        )
        found = step_checkpoints(run)
        require(
            len(found) >= last,
            f"{run} has {len(found)} checkpoints, cannot average the last {last}: ask for fewer, "
            "or train with a smaller checkpoint_every",
        )
        same = read_bounded(run / "tokenizer.model", MAX_MODEL_BYTES) == tokenizer.model_bytes
        require(same, f"{run} has another vocabulary than {runs[0]}: their weights have no mean")
        for path in (*found[-last:], run / "model.safetensors"):
            if path.exists():
                require_belongs(read_metadata(path), config_of_run, tokenizer.sha256, path)
        paths += found[-last:]
    require(
        not (out / "model.safetensors").exists() or "averaged" in read_config(out),
        f"{out} holds a model that is no average: name another directory",
    )
    names = [f"{path.parent.parent.name}/{path.stem}" if others else path.stem for path in paths]
    averaged = average(paths)
    without_weights(model_config, shapes_of(averaged), paths[0])
    del config["model"]
    write_directory(out, model_config, tokenizer, {**config, "averaged": names})
    about = belongs_to(model_config, tokenizer.sha256)
    save_tensors(out / "model.safetensors", averaged, about)
    return out
