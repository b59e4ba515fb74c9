"""Small models, texts and random tensors that several tests share."""

from __future__ import annotations

import functools
import io
import os
import random
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.checkpoint.weights import save_weights
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.data.batching import Batch
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding.search import StepModel
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training.loop import train
from annotated_transformer.training.processes import Processes

SMALL: dict[str, Any] = {"vocab_size": 11, "N": 2, "d_model": 8, "d_ff": 12, "h": 2, "p_drop": 0.0}

SHAPES: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"norm": "pre"},
    "row B": {"d_k": 3, "d_v": 5},
    "row E": {"positions": "learned", "max_len": 20},
    "the authors' positions": {"positions": "concatenated"},
    "biases": {"bias": True, "activation": "gelu"},
    "Marian's": {"bias": True, "activation": "silu", "output_bias": True, "zero_start": True},
    "fairseq's": {"positions": "concatenated", "first_position": 2, "output_bias": True},
    "nn.Transformer's": {"final_norm": True},
}
"""Every switch that changes what is computed, on the small model."""

OPTIONS: list[dict[str, Any]] = [
    {},
    {"norm": "pre", "bias": True},
    {"d_k": 3, "d_v": 5, "activation": "gelu"},
    {"positions": "learned", "scaled_attention": False},
    {"positions": "none", "h": 1},
    {"final_norm": True, "output_bias": True, "zero_start": True, "first_position": 2},
]
"""The same for steps, several in one."""


def small_model(seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> Transformer:
    """A small model, ready to decode, whose every parameter is random,
    so that no zero bias hides a mistake."""
    model = Transformer(ModelConfig(**{**SMALL, **changes})).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(
                1 + spread if parameter.dim() == 1 and bool((parameter == 1).all()) else 2 * spread
            )
    return model


def random_tokens(seed: int, *shape: int, low: int = 3, high: int = 11) -> Tensor:
    """Ordinary ids: no pad, bos or eos."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def walk(model: StepModel, source: Tensor) -> Iterator[Tensor]:
    """Logits of steps in which hypotheses branch, move and end, and a sentence leaves."""
    state = model.start(source)
    yield model.step(random_tokens(2, 3, 1), state)
    state.reorder(torch.zeros(3, 2, dtype=torch.long))
    yield model.step(random_tokens(3, 3, 2), state)
    state.reorder(torch.tensor([[1, 0], [0, 1], [1, 1]]))
    for seed in range(4, 14):  # more positions than a buffer begins with
        yield model.step(random_tokens(seed, 3, 2), state)
    state.keep(torch.tensor([0, 2]))
    state.reorder(torch.tensor([[1], [0]]))
    yield model.step(random_tokens(14, 2, 1), state)


def random_pairs(
    seed: int, n: int, longest: int = 12, high: int = 11
) -> list[tuple[list[int], list[int]]]:
    """Pairs of id lists with 1 to `longest` ids on each side."""
    generator = random.Random(seed)

    def sentence() -> list[int]:
        return [generator.randrange(3, high) for _ in range(generator.randint(1, longest))]

    return [(sentence(), sentence()) for _ in range(n)]


def text_pairs(seed: int, n: int) -> list[tuple[str, str]]:
    """A language of nine words, translated by turning each word round."""
    generator = random.Random(seed)
    words = ["tea", "bad", "cab", "deaf", "ebb", "fee", "gab", "head", "abed"]
    sources = [" ".join(generator.choices(words, k=generator.randint(1, 6))) for _ in range(n)]
    return [(source, " ".join(word[::-1] for word in source.split())) for source in sources]


@functools.cache
def toy_tokenizer() -> Tokenizer:
    """A SentencePiece model of those words."""
    return Tokenizer.train([side for pair in text_pairs(0, 200) for side in pair], 280)


def small_checkpoint(path: Path, tokenizer: Tokenizer | None = None, **changes: Any) -> Transformer:
    """A small random model, stored as a checkpoint directory."""
    tokenizer = tokenizer or toy_tokenizer()
    model = small_model(dtype=torch.float32, vocab_size=tokenizer.vocab_size, **changes)
    checkpoint.write_directory(path, model.config, tokenizer)
    save_weights(path / "model.safetensors", model)
    return model


def toy_run_config(**changes: Any) -> tuple[ModelConfig, TrainConfig]:
    """A model and a way to train it that take a few milliseconds a step."""
    sizes: dict[str, Any] = {"N": 1, "d_model": 8, "d_ff": 12, "h": 2}
    model = ModelConfig(vocab_size=280, **sizes, p_drop=0.1, initialization="scaled")
    settings = {
        "train_steps": 12, "max_tokens": 60, "max_length": 40, "warmup_steps": 6, "log_every": 2,
        "validate_every": 1000, "checkpoint_every": 3, "keep_checkpoints": 5, "precision": "fp32",
        "seed": 3,
    }  # fmt: skip
    return model, TrainConfig(**{**settings, **changes})


@contextmanager
def pipe_in_place_of(path: Path, seconds: float = 5) -> Iterator[None]:
    """A pipe to which nobody writes: who waits for it waits for ever, here for some seconds."""
    path.unlink()
    os.mkfifo(path)
    end = threading.Timer(seconds, lambda: os.close(os.open(path, os.O_RDWR)))
    end.start()
    try:
        yield
    finally:
        end.cancel()


PEAK = """
import resource, sys
def peak():
    try:  # of this program alone: getrusage begins with what the process that forked it had
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak // 1024 if sys.platform == "darwin" else peak  # macOS counts bytes
"""


def run(
    out: Path,
    pairs: Any = None,
    tokenizer: Tokenizer | None = None,
    valid: Iterable[tuple[str, str]] = (),
    model_changes: dict[str, Any] | None = None,
    **changes: Any,
) -> Transformer:
    """Train the toy model on its 60 pairs, or on others; `changes` are arguments of `train` too."""
    names = {"corpus", "device", "init", "multiple_of", "processes", "progress", "resume"}
    ways = names & changes.keys()
    how = {"progress": False, **{way: changes.pop(way) for way in ways}}
    model_config, train_config = toy_run_config(**changes)
    model_config = model_config.replace(**(model_changes or {}))
    tokenizer = tokenizer or toy_tokenizer()
    pairs = text_pairs(1, 60) if pairs is None else pairs
    return train(model_config, train_config, tokenizer, pairs, list(valid), out, **how)


def printed_by(program: str, *arguments: str, **environment: str) -> str:
    """What a Python program prints in a process of its own, in the repository's root: all of it,
    also what goes to standard error."""
    return subprocess.check_output(
        [sys.executable, "-c", program, *arguments], stderr=subprocess.STDOUT, text=True,
        cwd=Path(__file__).parents[1], env={**os.environ, **environment},
    )  # fmt: skip


def tar_of(path: Path, contents: dict[str, bytes]) -> None:
    """Write a .tar.gz of these files."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def as_lists(batches: Iterable[Batch]) -> list[list[list[list[int]]]]:
    """Source, target in and target out of each batch."""
    return [[tensor.tolist() for tensor in batch[:3]] for batch in batches]


def report_scores(said: str) -> dict[str, Any]:
    """What the report of a translator shows that has said this."""
    worst = [("smaller", "kleiner", said)]
    typed = {"rule": "small_letters", "pairs": 5, "before": 41.24, "after": 9.87, "worst": worst}
    return {
        "scores": {"BLEU": {"score": 12.345, "signature": "nrefs:1|case:mixed"}},
        "parameters": 1234, "vocab_size": 321, "as_typed": [typed],
        "translations": [(said, "reference", "said"), ("a", "b", "b")], "verdict": "BLEU 12.3: <3",
    }  # fmt: skip


def under_torchrun(monkeypatch: pytest.MonkeyPatch, local_rank: str) -> None:
    """What torchrun tells a process, here one that is alone but for its number."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    numbers = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": local_rank}
    for name, value in (numbers | {"TORCHELASTIC_RESTART_COUNT": "0"}).items():
        monkeypatch.setenv(name, value)


@contextmanager
def pretended(rank: int, n: int) -> Iterator[Processes]:
    """A group in which nothing is exchanged."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=n, store=FakeStore())
    try:
        yield Processes(rank, n)
    finally:
        dist.destroy_process_group()
