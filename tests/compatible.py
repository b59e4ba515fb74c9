"""What another commit made, this tree goes on with: the same translations, run and average.

    python tests/compatible.py df22cd6 [SENTENCES]

The other commit is checked out beside this one. It trains 12 steps, and 6 steps of the same run;
this tree resumes the 6 and must end with the same bits. Both average the run's checkpoints, and
both translate sentences of the test split with book/model, greedily and with a beam of 4.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

from safetensors.torch import load_file

from annotated_transformer.text import corpus

ROOT = Path(__file__).parents[1]
SETTINGS = [
    "N=2", "d_model=32", "d_ff=48", "h=2", "max_tokens=512", "warmup_steps=4", "log_every=1",
    "checkpoint_every=3", "validate_every=100", "concatenate=0.5",
    "window=1048576",  # the planner that has stayed; a run of the other is refused
]  # fmt: skip
TRAINING = [
    "train", "--corpus", "reverse", "--preset", "tiny", "--vocab-size", "300", "--device", "cpu",
    "--quiet", *(word for setting in SETTINGS for word in ("--set", setting)),
]  # fmt: skip


def program(tree: Path, *words: str | Path, stdin: str = "") -> str:
    """What the command line of a checkout prints."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "annotated_transformer", *map(str, words)]
    done = subprocess.run(
        command, input=stdin, cwd=tree, env=environment, text=True, capture_output=True
    )
    if done.returncode:
        sys.exit(f"{tree}: {done.stderr}")
    return done.stdout


def same_weights(one: Path, other: Path) -> bool:
    ours, theirs = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    return ours.keys() == theirs.keys() and all(ours[k].equal(theirs[k]) for k in ours)


def main(commit: str, n_sentences: int = 200) -> None:
    """Print a line for each promise; exit status 1 where one is broken."""
    sources = (source for source, _ in corpus.load("tatoeba-en-de", "test"))
    text = "".join(f"{source}\n" for source in islice(sources, n_sentences))
    with tempfile.TemporaryDirectory() as scratch:
        other = Path(scratch) / "other"
        runs = Path(scratch)
        worktree = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*worktree, "add", "-q", "--detach", str(other), commit], check=True)
        try:
            for name, steps in (("whole", 12), ("half", 6)):
                program(other, *TRAINING, "--out", runs / name, "--set", f"train_steps={steps}")
            for tree, name in ((other, "theirs"), (ROOT, "ours")):
                program(tree, "average", runs / "whole", "--last", "3", "--out", runs / name)
            steps = ["--set", "train_steps=12"]
            program(ROOT, *TRAINING, "--resume", "--out", runs / "half", *steps)
            beams = ([], ["--beam-size", "1"])
            ours, theirs = (
                [program(tree, "translate", ROOT / "book/model", *b, stdin=text) for b in beams]
                for tree in (ROOT, other)
            )
        finally:
            subprocess.run([*worktree, "remove", "--force", str(other)], check=True)
        kept = {
            f"{n_sentences} translations, beam 4 and greedy": ours == theirs,
            "a run of 6 steps, resumed to 12": same_weights(runs / "whole", runs / "half"),
            "the average of three checkpoints": same_weights(runs / "theirs", runs / "ours"),
        }
    for promise, holds in kept.items():
        print(f"{'the same' if holds else 'DIFFERENT'}: {promise}")
    sys.exit(not all(kept.values()))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
