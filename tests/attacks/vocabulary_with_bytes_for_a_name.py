"""A byte whose name is no text: the complaint about it cannot be read either."""

import sentencepiece
from test_vocabulary_file import GOOD, piece


def make(folder):
    no_byte = piece(b"<0x\x97>", rest=b"\x18\x06")
    (folder / "tokenizer.model").write_bytes(GOOD + no_byte)


def trusting(folder):
    try:
        sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    except RuntimeError:
        return ""
