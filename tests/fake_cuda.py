"""A `cuda` device that is not there: its tensors have shapes, types and a device, and no numbers.

    with fake_cuda(capability=(7, 5)) as waits:
        model = Transformer(config).to("cuda")  # or torch.empty(3, 4, device="cuda")
        ...
    assert waits == []

PyTorch's fake tensors raise where devices are mixed, and follow autocast and its types as a GPU
would. `waits` names, in order, each operation for which the host would have had to wait for the
GPU: `.item()`, `.tolist()`, `nonzero`, a copy to the host, a copy to the GPU from memory that is
not pinned. A value that is asked for is 0 (False), or what `answer` gives for the tensor. In a
build of PyTorch for the CPU `backward` cannot run on such tensors.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.cpp_extension import get_default_build_root

GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>)
"""
"""A guard, which switches between GPUs, that does nothing;
a build for the CPU has none for `cuda`."""

SIZE_DEPENDS_ON_VALUES = {
    "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive",
}  # fmt: skip


@functools.cache
def _load_guard() -> str | None:
    """Compile and load the guard, once; why that cannot be, or None."""
    if torch.version.cuda is not None:
        return None  # FakeTensorMode brings a guard of its own there
    known = (os.environ.get("CXX", ""), "c++", "g++", "clang++")
    compiler = next(filter(shutil.which, known), None)
    if compiler is None:
        return "fake CUDA tensors need a C++ compiler (g++) where PyTorch is built for the CPU"
    torch_folder = Path(torch.__file__).parent
    library = Path(get_default_build_root()) / f"fake_cuda_guard_{torch.__version__}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        new = library.with_suffix(f".{os.getpid()}")
        abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
        flags = ["-std=c++20", "-shared", "-fPIC", "-w", abi, f"-I{torch_folder / 'include'}"]
        files = ["-x", "c++", "-", "-o", str(new), f"-L{torch_folder / 'lib'}", "-lc10"]
        done = subprocess.run(
            [compiler, *flags, *files], input=GUARD, text=True, capture_output=True
        )
        if done.returncode:
            return f"fake CUDA tensors: {compiler} refused the device guard:\n{done.stderr[-500:]}"
        new.replace(library)
    torch.ops.load_library(library)
    return None


class _Waits(TorchDispatchMode):
    """Note each operation that a host would wait in, and answer it."""

    def __init__(self, answer: Callable[[Tensor], Any] | None) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.answer = answer
        self.pinned: dict[int, Tensor] = {}  # by id: fake tensors cannot be compared

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and func.namespace == "aten":
            with self:  # there `to`, `item` and others arrive whole
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        name: str = func.overloadpacket.__name__
        first: Any = args[0] if args else None
        if name == "_local_scalar_dense":
            if first.device.type == "cuda":
                self.waits.append("item")
            return self.answer(first) if self.answer else _zero(first.dtype)
        if name in ("_pin_memory", "is_pinned"):
            if name == "is_pinned":
                return id(first) in self.pinned
            copy = torch.empty_like(first)
            self.pinned[id(copy)] = copy
            return copy
        if name in SIZE_DEPENDS_ON_VALUES and first.device.type == "cuda":
            self.waits.append(name)
        if name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1]):
            self.waits.append("nonzero")
        if name in ("_to_copy", "copy_"):
            source = first if name == "_to_copy" else args[1]
            into = torch.device(kwargs.get("device") or first.device)
            there = (source.device.type, into.type)
            if there == ("cuda", "cpu"):
                self.waits.append("copy to the host")
            elif there == ("cpu", "cuda") and source.dim() and id(source) not in self.pinned:
                self.waits.append("copy of memory that is not pinned")
        return func(*args, **kwargs)


def _zero(dtype: torch.dtype) -> bool | float | int:
    return False if dtype == torch.bool else 0.0 if dtype.is_floating_point else 0


@contextmanager
def fake_cuda(
    capability: tuple[int, int] = (8, 0), answer: Callable[[Tensor], Any] | None = None
) -> Iterator[list[str]]:
    """Make `cuda` a device of fake tensors within the block, or skip the test and say why."""
    reason = _load_guard()
    if reason:
        pytest.skip(reason)
    properties = SimpleNamespace(name="fake", major=capability[0], minor=capability[1])
    waits = _Waits(answer)
    with pytest.MonkeyPatch.context() as patch:
        # It asks torch.cuda, which pretends below.
        patch.setattr(FakeTensorMode, "avoid_device_init", True)
        answers = {
            "is_available": True,
            "device_count": 1,
            "current_device": 0,
            "is_bf16_supported": True,
            "get_device_capability": capability,
            "get_device_properties": properties,
        }
        for name, value in answers.items():
            patch.setattr(torch.cuda, name, lambda *_, value=value, **__: value)
        patch.setattr(torch.cuda, "synchronize", lambda *_: waits.waits.append("synchronize"))
        patch.setattr(FakeTensor, "tolist", _tolist)
        patch.setattr(nn.Module, "_apply", _apply)
        with FakeTensorMode(allow_non_fake_inputs=True), waits:
            yield waits.waits


def _tolist(tensor: Tensor) -> Any:
    """One copy to the host, then numbers there; fake tensors ask for one number at a time."""
    on_host = tensor.cpu() if tensor.device.type == "cuda" else tensor
    return on_host.item() if on_host.dim() == 0 else [_tolist(part) for part in on_host]


def _apply(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """What `module.to(device)` does, by new parameters; PyTorch would swap,
    and cannot swap all fakes."""
    for child in module.children() if recurse else ():
        _apply(child, fn)
    for name, parameter in list(module.named_parameters(recurse=False)):
        setattr(module, name, nn.Parameter(fn(parameter.detach()), parameter.requires_grad))
    for name, buffer in list(module.named_buffers(recurse=False)):
        setattr(module, name, fn(buffer))
    return module
