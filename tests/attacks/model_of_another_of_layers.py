"""A Marian model whose config.json promises a hundred million layers, with weights for one."""

import json

import torch

from annotated_transformer.extras.formats.huggingface import export_checkpoint
from annotated_transformer.extras.formats.importing import import_checkpoint


def make(folder):
    export_checkpoint(folder, folder / "theirs")
    path = folder / "theirs" / "config.json"
    config = json.loads(path.read_text())
    config["annotated_transformer"]["model"]["N"] = 10**8
    path.write_text(json.dumps(config))


def trusting(folder):
    config = json.loads((folder / "theirs" / "config.json").read_text())
    n_layers = config["annotated_transformer"]["model"]["N"]
    return [torch.nn.LayerNorm(config["d_model"]) for _ in range(n_layers)]


def ours(folder):
    import_checkpoint(folder / "theirs", folder / "imported")
