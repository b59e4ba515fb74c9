"""A terabyte of weights that takes no room on the disk, and a config.json to match."""

import json
import math

import torch

from annotated_transformer.config import ModelConfig
from annotated_transformer.model.transformer import Transformer


def make(folder):
    config = ModelConfig(280, N=1, d_model=2**17, d_ff=2**18, h=1)
    with torch.device("meta"):
        shapes = {name: list(p.shape) for name, p in Transformer(config).state_dict().items()}
    head, end = {}, 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(head).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    (folder / "config.json").write_text(json.dumps({"model": config.to_dict()}))


def trusting(folder):
    (folder / "model.safetensors").read_bytes()
