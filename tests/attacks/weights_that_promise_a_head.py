"""A file of 20 bytes whose head would have 4 exabytes."""

import attack

from annotated_transformer.checkpoint.directory import load_model


def make(folder):
    (folder / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b'{"a": 1}    ')


def trusting(folder):
    with open(folder / "model.safetensors", "rb") as file:
        file.read(int.from_bytes(file.read(8), "little"))


def ours(folder):
    load_model(folder)


if __name__ == "__main__":
    attack.main()
