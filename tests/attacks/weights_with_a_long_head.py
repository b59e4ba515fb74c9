"""A file of weights whose head has 50 MB: 700,000 tensors without a number."""

import json

from safetensors import safe_open


def make(folder):
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"encoder.layers.{i}": empty for i in range(700_000)}).encode()
    content = len(header).to_bytes(8, "little") + header
    (folder / "model.safetensors").write_bytes(content)


def trusting(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        dict.fromkeys(file.keys())
