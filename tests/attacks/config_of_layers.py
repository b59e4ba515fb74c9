"""A config.json with a hundred million layers, each of them small."""

import json

import torch


def make(folder):
    config = json.loads((folder / "config.json").read_text())
    config["model"]["N"] = 10**8
    (folder / "config.json").write_text(json.dumps(config))


def trusting(folder):
    n_layers = json.loads((folder / "config.json").read_text())["model"]["N"]
    torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(n_layers))
