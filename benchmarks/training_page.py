"""How well and how fast the training page learns: `python benchmarks/training_page.py`.

The page of `python -m lab.training_page` in Node, against PyTorch: its gradients against
autograd's, its losses over 200 steps against those of `TrainingRun`, and how long it takes until
all 200 held-out words of 8 letters are reversed exactly. JavaScript computes in 64 bits, and so
does PyTorch here; how far it is from float32's curve stands beside it. Seconds of the processor are
those of the one thread that trains; those of the clock were measured beside whatever else the
machine did.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from annotated_transformer.errors import require, say
from annotated_transformer.model.transformer import Transformer
from benchmarks.timing import as_text, out_path, write
from lab.training_page import reversal
from lab.training_page.page import write_training_page
from tools.arguments import parser_of, run_main
from tools.page_engine import NODE, run_training_engine


def gradients(page: Path, n_words: int = 64) -> dict[str, Any]:
    """The largest difference of a gradient from autograd's, beside the largest gradient."""
    generator = reversal.Generator(1)
    words = [reversal.draw_word(generator, held_out=False) for _ in range(n_words)]
    (found,) = run_training_engine(page, {"do": "gradients", "settings": {}, "words": words})
    model, batch = Transformer(reversal.MODEL).double(), reversal.reversal_batch(words)
    reversal.initialize(model, reversal.Generator(1))
    logits = model(batch.source, batch.target_in).flatten(0, 1)
    F.cross_entropy(logits, batch.target_out.flatten(), ignore_index=0).backward()
    most = largest = 0.0
    for name, parameter in model.named_parameters():
        require(parameter.grad is not None, f"{name} has no gradient")
        grad = parameter.grad.flatten()  # type: ignore[union-attr]
        ours = torch.tensor(found["grads"][name], dtype=torch.float64)
        most = max(most, float((ours - grad).abs().max()))
        largest = max(largest, float(grad.abs().max()))
    return {"figure": "gradients", "largest difference": most, "largest gradient": largest}


def loss_curve(page: Path, n_steps: int, seed: int) -> dict[str, Any]:
    """How far the page's losses are from PyTorch's, in nats a token."""
    job = {"do": "losses", "settings": {"seed": seed}, "steps": n_steps}
    (ours,) = run_training_engine(page, job)

    def largest_difference(dtype: torch.dtype) -> float:
        theirs = reversal.losses(seed, n_steps, dtype)
        return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))

    return {
        "figure": "losses", "seed": seed, "steps": n_steps,
        "largest difference": largest_difference(torch.float64),
        "largest difference from float32": largest_difference(torch.float32),
        "first": ours[0], "last": ours[-1],
    }  # fmt: skip


def solved(page: Path, n_steps: int, seed: int) -> dict[str, Any]:
    """Steps and seconds until every held-out word of 8 letters is right, or `n_steps`."""
    job = {"do": "solve", "settings": {"seed": seed}, "steps": n_steps}
    (found,) = run_training_engine(page, job)
    return {
        "figure": "solved", "seed": seed, "right": found["right"], "of": found["of"],
        "steps": found["steps"], "seconds of the processor": round(found["seconds"], 1),
        "seconds of the clock": round(found["clock"], 1),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write the records."""
    parser = parser_of(__doc__, small=True, out=True)
    parser.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="seeds 1 to N (default 1)"
    )
    args = parser.parse_args(arguments)
    require(NODE is not None, "benchmarks/training_page.py needs Node")
    n_compared, n_steps = (10, 50) if args.small else (reversal.N_COMPARED, 4000)
    with tempfile.TemporaryDirectory() as folder:
        page = write_training_page(Path(folder) / "page", reversal.page_settings(), 1, [])
        weight = sum(path.stat().st_size for path in page.iterdir())
        records = [{"figure": "weight", "bytes": weight}, gradients(page)]
        for seed in range(1, args.seeds + 1):
            say(f"seed {seed}")
            records.append(loss_curve(page, n_compared, seed))
            records.append(solved(page, n_steps, seed))
    print(*map(as_text, records), sep="\n")
    write(out_path(args, "training_page"), "training_page", arguments, records)


if __name__ == "__main__":
    run_main(main)
