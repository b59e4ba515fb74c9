"""A config.json of a million brackets, one in the other."""

import json

import attack

from annotated_transformer.checkpoint.directory import load_model


def make(folder):
    (folder / "config.json").write_text('{"model": ' + "[" * 1_000_000)


def trusting(folder):
    json.loads((folder / "config.json").read_text())


def ours(folder):
    load_model(folder)


if __name__ == "__main__":
    attack.main()
