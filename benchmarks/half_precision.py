"""Training in float16 beside float32: the same validation loss, overflow that costs a step,
resumption bit for bit.

    python benchmarks/half_precision.py                                     300 steps of tiny
    python benchmarks/half_precision.py --steps 10 --max-tokens 100         a rehearsal

On a CPU `autocast` and the scaler compute what they compute on a GPU, but float16 is slow there,
eight times slower than float32 (three to five minutes in all): this is about numbers, not speed.
The corpus is that of the book unless `--corpus` names another ("reverse" needs no download). Exit
status 1 where a figure is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from annotated_transformer import ModelConfig, Tokenizer, TrainConfig
from annotated_transformer.checkpoint.weights import load_tensors
from annotated_transformer.text import corpus
from annotated_transformer.training import state as training_state
from annotated_transformer.training.loop import train

MOST_DIFFERENCE = 0.02
OVERFLOWING_SCALE = 2.0**24


def scale_that_overflows(dtype: torch.dtype, device: torch.device) -> torch.amp.GradScaler:
    """A scaler that begins far too high, and doubles after every 4 steps that went well."""
    enabled = dtype == torch.float16
    return torch.amp.GradScaler(device.type, OVERFLOWING_SCALE, growth_interval=4, enabled=enabled)


class Experiment:
    """Runs of tiny on the same pairs, from the same seed, that differ in what each method says."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.folder, self.device, self.precision = folder, args.device, args.precision
        pairs = list(corpus.load(args.corpus, "train"))[: args.pairs]
        self.train_pairs, self.valid_pairs = pairs, list(corpus.load(args.corpus, "valid"))[:200]
        sentences = (sentence for pair in pairs for sentence in pair)
        self.tokenizer = Tokenizer.train(sentences, args.vocab_size)
        self.settings = TrainConfig(
            train_steps=args.steps,
            max_tokens=args.max_tokens,
            max_length=100,
            warmup_steps=max(1, args.steps // 3),
            lr_factor=0.3,
            log_every=1,
            checkpoint_every=max(1, args.steps // 7),
            validate_every=args.steps,
        )
        self.short: dict[str, Any] = {"train_steps": 20, "checkpoint_every": 6, "max_tokens": 100}

    def run(self, name: str, resume: bool = False, valid: bool = True, **changes: Any) -> list[Any]:
        """The lines of the log."""
        model = ModelConfig.tiny(self.tokenizer.vocab_size)
        out, valid_pairs = self.folder / name, self.valid_pairs if valid else []
        train(
            model,
            self.settings.replace(**changes),
            self.tokenizer,
            self.train_pairs,
            valid_pairs,
            out,
            device=self.device,
            resume=resume,
            progress=False,
        )
        return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]

    def losses(self) -> dict[str, Any]:
        nll = {p: self.run(p, precision=p)[-1]["valid_nll"] for p in ("fp32", self.precision)}
        difference = abs(nll[self.precision] / nll["fp32"] - 1)
        return {
            "measure": "validation nll",
            **nll,
            "difference": difference,
            "right": difference < MOST_DIFFERENCE,
        }

    def overflow(self) -> dict[str, Any]:
        """Steps that the log calls skipped, with a scale of 2^24 to begin with."""
        with patch.object(training_state, "gradient_scaler", scale_that_overflows):
            lines = self.run("overflow", valid=False, precision="fp16", **self.short)
        finite = all(line["loss"] is not None for line in lines)
        skipped, scale = lines[-1]["skipped"], lines[-1]["scale"]
        return {
            "measure": "overflow",
            "steps": len(lines),
            "skipped": skipped,
            "scale": scale,
            "right": 0 < skipped < len(lines) and finite and scale < OVERFLOWING_SCALE,
        }

    def killed(self) -> dict[str, Any]:
        """A run that SIGKILL ends in its 14th step and that is resumed, beside one that is not."""
        changes = {"precision": self.precision, **self.short}
        with patch.object(training_state, "gradient_scaler", scale_that_overflows):
            process = os.fork()
            if process == 0:
                self.die_at(14)
                self.run("killed", valid=False, **changes)
                os._exit(0)
            _, status = os.waitpid(process, 0)
            self.run("killed", resume=True, valid=False, **changes)
            self.run("whole", valid=False, **changes)
        states = [
            load_tensors(self.folder / name / "training.safetensors")
            for name in ("killed", "whole")
        ]
        (ours, our_metadata), (theirs, their_metadata) = states
        different = [name for name in theirs if not torch.equal(ours[name], theirs[name])]
        same = not different and our_metadata == their_metadata
        return {
            "measure": "killed and resumed",
            "precision": self.precision,
            "signal": os.WTERMSIG(status),
            "tensors": len(theirs),
            "different": len(different),
            "right": same and os.WTERMSIG(status) == signal.SIGKILL,
        }

    def die_at(self, n: int) -> None:
        step, steps = torch.optim.Adam.step, []

        def deadly(*args: Any, **kwargs: Any) -> Any:
            steps.append(1)
            if len(steps) == n:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*args, **kwargs)

        torch.optim.Adam.step = deadly  # type: ignore[method-assign]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--precision", choices=("fp16", "bf16"), default="fp16")
    parser.add_argument("--corpus", default="tatoeba-en-de", help="default tatoeba-en-de")
    parser.add_argument("--steps", type=int, default=300, help="default 300")
    parser.add_argument(
        "--max-tokens", type=int, default=150, help="padded tokens of a batch, default 150"
    )
    parser.add_argument("--vocab-size", type=int, default=1000, help="default 1000")
    parser.add_argument("--pairs", type=int, default=50_000, help="default 50,000")
    parser.add_argument("--device", default="cpu", help="default cpu")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(args, Path(folder))
        # A fork comes before anything was computed.
        measures = [experiment.killed, experiment.losses]
        if args.precision == "fp16":
            measures.append(experiment.overflow)
        right = True
        for measure in measures:
            record = measure()
            right &= record["right"]
            print(json.dumps(record), flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
