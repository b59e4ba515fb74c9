"""What Table 1 is counted with: products that wait for one another, and bytes alive at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from annotated_transformer.errors import require

PRODUCTS = ("Mm", "Mv", "Bmm", "Addmm", "Addmv", "Baddbmm", "Convolution")
"""How PyTorch's names of a matrix product's and a convolution's backward begin."""


def longest_chain(y: Tensor) -> int:
    """Matrix products and convolutions that wait for one another until `y` is known.

    They are Table 1's sequential operations, read from the graph that PyTorch keeps for the
    backward pass, so `y` must have a gradient. No hardware can do two products of the chain at the
    same time. A fused attention kernel counts as its two products; a fused recurrence is seen as
    one step, so build that on the device `meta`, where nothing is fused. Raises ConfigError for a
    tensor without a graph.
    """
    has_graph = y.grad_fn is not None
    require(has_graph, "longest_chain needs a tensor that was computed with gradients on")
    depth: dict[Any, int] = {None: 0}
    stack: list[Any] = [y.grad_fn]
    while stack:
        parents = [parent for parent, _ in stack[-1].next_functions]
        if waiting := [parent for parent in parents if parent not in depth]:
            stack += waiting
            continue
        node = stack.pop()
        product = node.name().startswith(PRODUCTS)
        product += 2 * node.name().startswith("ScaledDotProduct")
        depth[node] = product + max([depth[parent] for parent in parents] or [0])
    return depth[y.grad_fn]


def _storage_key(tensor: Tensor) -> int:
    # Not its address: tensors without memory (the meta device) all have the same.
    return tensor.untyped_storage()._cdata  # noqa: SLF001


class _Alive(TorchDispatchMode):
    """Sums, after each operation, the bytes of all storages that were made and still exist."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.known = {_storage_key(tensor) for tensor in known}
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and _storage_key(tensor) not in self.known:
                storage = tensor.untyped_storage()
                self.made[_storage_key(tensor)] = StorageWeakRef(storage), storage.nbytes()
        self.made = {key: made for key, made in self.made.items() if not made[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.made.values()))
        return output


def peak_bytes(layer: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """The most bytes at any one time in tensors that `layer(x)` makes, its output included.

    Where gradients are on, what the backward pass needs stays alive, and so it is included. The
    number is exact and the same on every run, since this counts tensors and asks no allocator. Not
    counted: `x`, tensors that existed before, and buffers inside one kernel.
    """
    with _Alive(x) as alive:
        output = layer(x)
    del output
    return alive.peak
