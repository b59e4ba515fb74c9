"""A run's state as `tools.fuzz` feeds it: its file is changed, and the run is to go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from annotated_transformer.checkpoint.directory import write_directory
from annotated_transformer.checkpoint.weights import load_tensors
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import ConfigError
from annotated_transformer.training import state
from annotated_transformer.training.run import TrainingRun

WORDS = (
    b'"F32"', b'"F16"', b'"U8"', b'"BOOL"', b"[0,0]", b"[8]", b"[]", b"{}", b"null", b"-1", b"NaN",
    b"1e999", b"9" * 20, b"true", b"[" * 99, b"model.", b"adam.", b"random.cpu",
    b"log.sums", b"random.cpu.1", b"\\\"step\\\": 1", b"\\\"scale\\\": 0", b"\0\0\xc0\x7f",
)  # fmt: skip


class StatesJudge:
    """The states of runs in float16 and in float32; the first byte of an input says which.

    Neither has a checksum that would notice the change first. The state is refused in one line, or
    the weights and moments that come from it are finite.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        sizes: dict[str, Any] = {"N": 1, "d_model": 4, "d_ff": 4, "h": 1}
        self.config = ModelConfig.tiny(tokenizer.vocab_size, **sizes)
        self.files: list[Path] = []
        for name in ("fp16", "fp32"):
            out = write_directory(folder / name, self.config, tokenizer)
            run = self._run(out)
            run.steps = 3
            for parameter in run.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            run.optimizer.step()
            state.save(run, out, to_average=False)
            self.files.append(out / state.STATE_FILE)
            tensors, metadata = load_tensors(self.files[-1])
            save_file(tensors, self.files[-1], metadata)
        self.contents = [path.read_bytes() for path in self.files]
        self.good = [bytes([which]) + content for which, content in enumerate(self.contents)]

    def _run(self, out: Path) -> TrainingRun:
        return TrainingRun(self.config, TrainConfig(precision=out.name))  # type: ignore[arg-type]

    def __call__(self, data: bytes) -> str:
        path = self.files[data[0] % len(self.files) if data else 0]
        path.write_bytes(data[1:])
        try:
            return self._wrong(path.parent)
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
        return "" if finite else "the run goes on from what is not finite"
