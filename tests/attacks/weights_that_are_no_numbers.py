"""Weights that are not numbers, and make every sentence nonsense."""

import torch
from safetensors.torch import load_file, save_file


def make(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["embedding.weight"][5] = torch.nan
    save_file(tensors, folder / "model.safetensors")


def trusting(folder):
    logits = load_file(folder / "model.safetensors")["embedding.weight"].sum(dim=1)
    return f"goes on with a best token {logits.argmax().item()}, whose score is {logits.max()}"
