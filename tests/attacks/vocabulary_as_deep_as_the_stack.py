"""A piece of 200,000 letters: who builds a tree of pieces by recursion overflows the stack."""

import attack
from test_vocabulary_file import GOOD, piece

from annotated_transformer.checkpoint.directory import load_model


def make(folder):
    (folder / "tokenizer.model").write_bytes(GOOD + piece(b"a" * 200_000))


def trusting(folder):
    """As SentencePiece before 0.2.2, whose process died of it."""

    def insert(tree, text):
        if text:
            insert(tree.setdefault(text[0], {}), text[1:])

    insert({}, b"a" * 200_000)


def ours(folder):
    load_model(folder)


if __name__ == "__main__":
    attack.main()
