"""A config.json that is a link to a device, of which reading has no end."""

import json

import attack

from annotated_transformer.checkpoint.directory import load_model


def make(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/dev/zero")


def trusting(folder):
    json.loads((folder / "config.json").read_text())


def ours(folder):
    load_model(folder)


if __name__ == "__main__":
    attack.main()
