"""A tokenizer.model that begins like a pair of vocabularies and nests a hundred thousand deep."""

import json


def make(folder):
    (folder / "tokenizer.model").write_text('{"pieces":' + "[" * 100_000)


def trusting(folder):
    json.loads((folder / "tokenizer.model").read_text())
