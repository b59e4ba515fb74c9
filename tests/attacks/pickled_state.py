"""A state to resume from that is a program."""

import pickle

import attack


class Program:
    def __reduce__(self):
        return exec, (f"open({attack.MARK!r}, 'w').close()",)


def make(folder):
    (folder / "training.safetensors").write_bytes(pickle.dumps({"adam": Program()}))


def trusting(folder):
    pickle.loads((folder / "training.safetensors").read_bytes())


def ours(folder):
    attack.resume(folder)
