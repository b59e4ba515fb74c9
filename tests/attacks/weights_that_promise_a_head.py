"""A file of 20 bytes whose head would have 4 exabytes."""


def make(folder):
    (folder / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b'{"a": 1}    ')


def trusting(folder):
    with open(folder / "model.safetensors", "rb") as file:
        file.read(int.from_bytes(file.read(8), "little"))
