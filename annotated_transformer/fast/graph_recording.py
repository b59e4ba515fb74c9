"""Recording a step as a CUDA graph: one stream and one pool of memory for all graphs of a model."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Run = Callable[[], Tensor]
"""A step on memory that keeps its place: it gives the logits."""


class Recorder:
    """Records steps, all of a model on one stream and with one pool of memory between them.

    They can share it, since they run one after the other and what one of them found is copied
    before the next. An empty graph keeps the pool when all others are gone.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            self.stream, self.pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
            self.keeper = torch.cuda.CUDAGraph()
            with warnings.catch_warnings(), self.recording(self.keeper):
                warnings.simplefilter("ignore")  # that it is empty

    def __call__(self, run: Run) -> Run:
        """What does the same as `run` on the same memory, at once; on a CPU it is `run`.

        It runs once before, since libraries that are used for the first time set themselves up.
        """
        if self.device.type != "cuda":
            return run
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            run()
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        with self.recording(graph):
            logits = run()

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay

    @contextmanager
    def recording(self, graph: Any) -> Iterator[None]:
        """Record without a workspace of cuBLAS that another graph has, and would free.

        No graph is destroyed meanwhile.
        """
        collects = gc.isenabled()
        gc.disable()
        # PyTorch has no public function for it, and needs none from its pull request 194109 on.
        torch._C._cuda_clearCublasWorkspaces()
        try:
            with (
                torch.cuda.device(self.device),
                torch.cuda.graph(graph, pool=self.pool, stream=self.stream),
            ):
                yield
        finally:
            torch._C._cuda_clearCublasWorkspaces()
            if collects:
                gc.enable()
