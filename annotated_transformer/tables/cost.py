"""What things cost: a layer (Table 1), a model's parameters (Table 3), training (Table 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from annotated_transformer.config import ConfigError, ModelConfig, require

SUSTAINED_FLOPS = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}
"""Single-precision operations a second that the paper assumes of one GPU (footnote 5)."""

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


def count_parameters(config: ModelConfig) -> int:
    """The number of weights of `Transformer(config)`, from its sizes alone.

    With D = d_model: V D for the embedding, which three places share; h D (2 d_k + 2 d_v) for an
    attention; 2 D d_ff + d_ff + D for a feed-forward network; 2 D for a LayerNorm. An encoder layer
    has 1, 1 and 2 of the last three, a decoder layer 2, 1 and 3. The options add max_len D (learned
    positions), attention's biases, and a final LayerNorm for each stack (pre-norm).
    """
    D, h = config.d_model, config.h
    d_k, d_v = config.d_k or D // h, config.d_v or D // h
    attention = h * D * (2 * d_k + 2 * d_v)
    if config.bias:
        attention += h * (2 * d_k + d_v) + D
    feed_forward = 2 * D * config.d_ff + config.d_ff + D
    layer_norm = 2 * D
    encoder_layer = attention + feed_forward + 2 * layer_norm
    decoder_layer = 2 * attention + feed_forward + 3 * layer_norm
    embedding = config.vocab_size * D
    positions = config.max_len * D if config.positions == "learned" else 0
    final_norms = 2 * layer_norm if config.norm == "pre" else 0
    return embedding + positions + config.N * (encoder_layer + decoder_layer) + final_norms


LAYERS = (
    "self-attention",
    "recurrent",
    "convolutional",
    "restricted self-attention",
    "separable convolutional",
)
"""The rows of Table 1 in its order, and the one that section 4's text adds."""


def layer_operations(layer: str, n: int, d: int, k: int = 3, r: int = 3, gates: int = 1) -> int:
    """The operations behind "complexity per layer" in Table 1: n vectors of d entries in, n out.

    Two for each multiplication with its addition. With kernel width k and neighbourhood r: 4 n^2 d
    for self-attention (scores and weighted mean, without projections, as in the table), 4 n d^2 for
    a recurrence (input and state) and each of its `gates`, of which an LSTM has four, 2 k n d^2 for
    a convolution, 4 r n d for restricted self-attention, 2 (k n d + n d^2) for a separable
    convolution. Softmax, tanh and biases are not counted. Raises ConfigError for a layer that is
    not in `LAYERS`.
    """
    require(min(n, d, k, r) >= 1, f"n, d, k and r must be at least 1, got {n}, {d}, {k} and {r}")
    if layer not in LAYERS:
        raise ConfigError(f"layer must be one of {', '.join(LAYERS)}, got {layer}")
    return {
        "self-attention": 4 * n * n * d,
        "recurrent": 4 * gates * n * d * d,
        "convolutional": 2 * k * n * d * d,
        "restricted self-attention": 4 * r * n * d,
        "separable convolutional": 2 * (k * n * d + n * d * d),
    }[layer]


class _Alive(TorchDispatchMode):
    """Sums, after each operation, the bytes of all storages that were made and still exist."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in known}
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self.known:
                storage = tensor.untyped_storage()
                self.made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
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


def training_cost(hours: float, n_gpus: int, gpu: str = "P100") -> float:
    """Time x GPUs x sustained rate: the floating-point operations of Table 2's last columns.

    It measures how long the machines were held, not the operations performed. Raises ConfigError
    for a GPU that the paper gives no rate for.
    """
    if gpu not in SUSTAINED_FLOPS:
        raise ConfigError(f"gpu must be one of {', '.join(SUSTAINED_FLOPS)}, got {gpu}")
    rule = "hours must not be negative and n_gpus at least 1"
    require(hours >= 0 and n_gpus >= 1, f"{rule}, got {hours} and {n_gpus}")
    return hours * 3600 * n_gpus * SUSTAINED_FLOPS[gpu]


def training_time(operations: float, rate: float, utilisation: float = 1.0) -> float:
    """operations / (rate x utilisation): the seconds that a training takes.

    `rate` is the operations a second that the hardware is capable of, all devices together, and
    `utilisation` the share of it that a run reaches; with a measured rate leave it at 1. Times
    n_gpus, hours and a price this is a bill. Raises ConfigError unless the rate is positive and the
    utilisation in (0, 1].
    """
    rule = "operations / rate needs 0 or more / above 0"
    require(operations >= 0 and rate > 0, f"{rule}, got {operations} / {rate}")
    require(0 < utilisation <= 1, f"utilisation must be above 0 and at most 1, got {utilisation}")
    return operations / (rate * utilisation)


class System(NamedTuple):
    """A line of Table 2, as printed: BLEU on newstest2014 and training cost in operations.

    None stands for a blank.
    """

    name: str
    bleu_en_de: float | None
    bleu_en_fr: float | None
    cost_en_de: float | None
    cost_en_fr: float | None


TABLE_2 = (
    System("ByteNet", 23.75, None, None, None),
    System("Deep-Att + PosUnk", None, 39.2, None, 1.0e20),
    System("GNMT + RL", 24.6, 39.92, 2.3e19, 1.4e20),
    System("ConvS2S", 25.16, 40.46, 9.6e18, 1.5e20),
    System("MoE", 26.03, 40.56, 2.0e19, 1.2e20),
    System("Deep-Att + PosUnk ensemble", None, 40.4, None, 8.0e20),
    System("GNMT + RL ensemble", 26.30, 41.16, 1.8e20, 1.1e21),
    System("ConvS2S ensemble", 26.36, 41.29, 7.7e19, 1.2e21),
    System("Transformer (base)", 27.3, 38.1, 3.3e18, 3.3e18),
    System("Transformer (big)", 28.4, 41.8, 2.3e19, 2.3e19),
)


class ReportedRun(NamedTuple):
    """How long and on what a system of Table 2 was trained for a language pair (see `source`)."""

    system: str
    pair: str
    days: float
    n_gpus: int
    gpu: str
    n_models: int
    source: str


RUNS = (
    ReportedRun("GNMT + RL", "en_fr", 6.0, 96, "K80", 1, "wu2016google"),
    ReportedRun("GNMT + RL", "en_de", 1.0, 96, "K80", 1, "shazeer2017outrageously"),
    ReportedRun("ConvS2S", "en_de", 18.5, 1, "M40", 1, "gehring2017convolutional"),
    ReportedRun("ConvS2S", "en_fr", 37.0, 8, "M40", 1, "gehring2017convolutional"),
    ReportedRun("MoE", "en_de", 1.0, 64, "K40", 1, "shazeer2017outrageously"),
    ReportedRun("MoE", "en_fr", 6.0, 64, "K40", 1, "shazeer2017outrageously"),
    ReportedRun("GNMT + RL ensemble", "en_fr", 6.0, 96, "K80", 8, "wu2016google"),
    ReportedRun("GNMT + RL ensemble", "en_de", 1.0, 96, "K80", 8, "shazeer2017outrageously"),
    ReportedRun("ConvS2S ensemble", "en_de", 18.5, 1, "M40", 8, "gehring2017convolutional"),
    ReportedRun("ConvS2S ensemble", "en_fr", 37.0, 8, "M40", 8, "gehring2017convolutional"),
    ReportedRun("Transformer (base)", "en_de", 0.5, 8, "P100", 1, "vaswani2017attention"),
    ReportedRun("Transformer (base)", "en_fr", 0.5, 8, "P100", 1, "vaswani2017attention"),
    ReportedRun("Transformer (big)", "en_de", 3.5, 8, "P100", 1, "vaswani2017attention"),
    ReportedRun("Transformer (big)", "en_fr", 3.5, 8, "P100", 1, "vaswani2017attention"),
)
"""The training times behind Table 2's costs.

ByteNet has no cost there; Deep-Att's time is not known to us.
"""
