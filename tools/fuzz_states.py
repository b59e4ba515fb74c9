"""A run's state as `tools.fuzz` feeds it: one of its files is changed, and the run is to go on."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import torch

from annotated_transformer.checkpoint.directory import write_directory
from annotated_transformer.checkpoint.weights import SEAL, load_tensors, save_tensors
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.errors import ConfigError
from annotated_transformer.text.tokenizer import Tokenizer
from annotated_transformer.training import state
from annotated_transformer.training.run import TrainingRun

SHARD = "one.safetensors"
IN_SHARDS = "model.", "adam.exp_avg.", "adam.exp_avg_sq."
WORDS = (
    b'"F32"', b'"F16"', b'"U8"', b'"BOOL"', b"[0,0]", b"[8]", b"[]", b"{}", b"null", b"-1", b"NaN",
    b"1e999", b"9" * 20, b"true", b"[" * 99, b"saved_offsets", b"model.", b"adam.", b"random.cpu",
    b"log.sums", b"random.cpu.1", b"\\\"step\\\": 1", b"\\\"scale\\\": 0", b"\0\0\xc0\x7f",
)  # fmt: skip


class StatesJudge:
    """Runs of which a file of the state is changed; the first byte of an input says which.

    0 is the state of a run in float16, 1 that of a run in shards, 2 such a shard. No file has a
    digest that would notice the change first. The state is refused in one line, or the weights and
    moments that come from it are numbers.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        sizes: dict[str, Any] = {"N": 1, "d_model": 4, "d_ff": 4, "h": 1}
        self.config = ModelConfig.tiny(tokenizer.vocab_size, **sizes)
        self.files: list[Path] = []
        for name in ("float16", "shards"):
            out = write_directory(folder / name, self.config, tokenizer)
            run = self._run(out)
            run.steps = 3
            for parameter in run.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            run.optimizer.step()
            state.save(run, out, to_average=False)
            self.files.append(out / state.STATE_FILE)
        self.files.append(folder / "shards" / "sharded" / "step-00000003" / SHARD)
        _put_in_shards(self.files[1], self.files[2])
        for path in self.files:
            path.write_bytes(_without_seal(path.read_bytes()))
        self.contents = [path.read_bytes() for path in self.files]
        self.good = [bytes([which]) + content for which, content in enumerate(self.contents)]

    def _run(self, out: Path) -> TrainingRun:
        config = TrainConfig(precision="fp16" if out.name == "float16" else "fp32")
        return TrainingRun(self.config, config)

    def __call__(self, data: bytes) -> str:
        which = data[0] % len(self.files) if data else 0
        path = self.files[which]
        path.write_bytes(data[1:])
        if which == 2:  # its digest is that of what it is now
            self.files[1].write_bytes(
                self.contents[1].replace(_sha256(self.contents[2]), _sha256(data[1:]))
            )
        try:
            return self._wrong(self.files[min(which, 1)].parent)
        finally:
            for file, content in zip(self.files, self.contents, strict=True):
                file.write_bytes(content)

    def _wrong(self, out: Path) -> str:
        run = self._run(out)
        try:
            state.restore(run, out, state.newest_state(self.config, out))
        except ConfigError as error:
            return "" if len(str(error).splitlines()) == 1 else f"{str(error)!r} is not one line"
        moments = (value for of in run.optimizer.state.values() for value in of.values())
        finite = all(tensor.isfinite().all() for tensor in (*run.model.parameters(), *moments))
        return "" if finite else "the run goes on from what is no number"


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


def _put_in_shards(path: Path, shard: Path) -> None:
    """Move weights and moments of the state at `path` to a shard, as one process writes it."""
    tensors, metadata = load_tensors(path)
    sharded = {name: tensors.pop(name) for name in list(tensors) if name.startswith(IN_SHARDS)}
    offsets = {name: {"saved_offsets": [0] * tensor.dim()} for name, tensor in sharded.items()}
    save_tensors(shard, sharded, {"DCP_SHARDING_INFO": json.dumps(offsets)})
    shard.write_bytes(_without_seal(shard.read_bytes()))
    digest = _sha256(shard.read_bytes()).decode()
    named = json.dumps({"folder": shard.parent.name, "sha256": {SHARD: digest}})
    save_tensors(path, tensors, {**metadata, "sharded": named})


def _without_seal(data: bytes) -> bytes:
    """The same file of tensors without the checksum in its head."""
    (size,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8 : 8 + size])
    head["__metadata__"].pop(SEAL, None)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data[8 + size :]
