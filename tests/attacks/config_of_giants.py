"""A config.json of 400 bytes that promises a model of a petabyte."""

import json

import torch


def make(folder):
    sizes = {"vocab_size": 280, "N": 1, "d_model": 2**20, "d_ff": 2**28, "h": 2}
    (folder / "config.json").write_text(json.dumps({"model": sizes}))


def trusting(folder):
    sizes = json.loads((folder / "config.json").read_text())["model"]
    torch.nn.Linear(sizes["d_model"], sizes["d_ff"])
