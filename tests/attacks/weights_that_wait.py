"""Weights that are a pipe, to which nobody writes."""

import os

PATIENCE = 2


def make(folder):
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def trusting(folder):
    (folder / "model.safetensors").read_bytes()
