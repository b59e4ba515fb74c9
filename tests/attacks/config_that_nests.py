"""A config.json of a million brackets, one in the other."""

import json


def make(folder):
    (folder / "config.json").write_text('{"model": ' + "[" * 1_000_000)


def trusting(folder):
    json.loads((folder / "config.json").read_text())
