"""A piece of 200,000 letters: who builds a tree of pieces by recursion overflows the stack."""

from test_vocabulary_file import GOOD, piece


def make(folder):
    (folder / "tokenizer.model").write_bytes(GOOD + piece(b"a" * 200_000))


def trusting(folder):
    """As SentencePiece before 0.2.2, whose process died of it."""

    def insert(tree, text):
        if text:
            insert(tree.setdefault(text[0], {}), text[1:])

    insert({}, b"a" * 200_000)
