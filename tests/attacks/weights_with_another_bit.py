"""Weights in which one bit was changed on the way."""

from safetensors.torch import load_file


def make(folder):
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 0x40
    (folder / "model.safetensors").write_bytes(content)


def trusting(folder):
    largest = max(t.abs().max().item() for t in load_file(folder / "model.safetensors").values())
    return f"takes it for a model, with a weight of {largest:.0e}"
