"""CTranslate2's model.bin, read back: the way that the package does not have."""

import struct

import numpy as np
import torch

FLOAT32 = 0
PARTS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def stored(path):
    """The arrays of float32 by name."""
    content = path.read_bytes()
    place = 0

    def take(form):
        nonlocal place
        values = struct.unpack_from(f"<{form}", content, place)
        place += struct.calcsize(f"<{form}")
        return values if len(values) > 1 else values[0]

    def name():
        return take(f"{take('H')}s")[:-1].decode()

    take("I"), name(), take("I")
    found = {}
    for _ in range(take("I")):
        key = name()
        shape = [take("I") for _ in range(take("B"))]
        kind, n_bytes = take("BI")
        raw = take(f"{n_bytes}s")
        if kind == FLOAT32:
            found[key] = torch.from_numpy(np.frombuffer(raw, np.float32).reshape(shape).copy())
    aliases = {name(): name() for _ in range(take("I"))}
    return found | {alias: found[key] for alias, key in aliases.items() if key in found}


def by_our_names(found, config):
    """Its weights as a state_dict of our model."""
    ours = {"embedding.weight": found["decoder/embeddings/weight"]}
    if config.output_bias:
        ours["embedding.bias"] = found["decoder/projection/bias"]
    if config.positions == "learned":
        ours["positions.weight"] = found["encoder/position_encodings/encodings"]
    for theirs, names in places(config):
        for part, our_part in PARTS.items():
            if f"{theirs}/{part}" in found:
                pieces = found[f"{theirs}/{part}"].chunk(len(names))
                for name, piece in zip(names, pieces, strict=True):
                    # swiglu's halves of W_1 are two there.
                    before = [ours[f"{name}.{our_part}"]] if "noact" in theirs else []
                    ours[f"{name}.{our_part}"] = torch.cat([*before, piece])
    factor = 1.0 if config.scaled_attention else config.d_k**0.5
    return {name: x / factor if ".W_Q." in name else x for name, x in ours.items()}


def places(config):
    """Their name of a layer or a norm, and ours of what is in it."""
    for side, attentions in (
        ("encoder", ["self_attention"]),
        ("decoder", ["self_attention", "cross_attention"]),
    ):
        for i in range(config.N):
            theirs, ours = f"{side}/layer_{i}", f"{side}.layers.{i}"
            for number, attention in enumerate(attentions, 1):
                their_attention = f"{theirs}/{attention.removeprefix('cross_')}"
                cuts = (0, 3, 4) if attention == "self_attention" else (0, 1, 3, 4)
                W = [f"{ours}.{attention}.W_{letter}" for letter in "QKVO"]
                for j, (start, end) in enumerate(zip(cuts, cuts[1:], strict=False)):
                    yield f"{their_attention}/linear_{j}", W[start:end]
                yield f"{their_attention}/layer_norm", [f"{ours}.add_norm_{number}.norm"]
            for linear in ("linear_0", "linear_0_noact"):
                yield f"{theirs}/ffn/{linear}", [f"{ours}.feed_forward.W_1"]
            yield f"{theirs}/ffn/linear_1", [f"{ours}.feed_forward.W_2"]
            yield f"{theirs}/ffn/layer_norm", [f"{ours}.add_norm_{len(attentions) + 1}.norm"]
        yield f"{side}/layer_norm", [f"{side}.norm"]
