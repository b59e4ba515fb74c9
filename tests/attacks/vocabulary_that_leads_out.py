"""A table of characters whose offsets lead out of its memory."""

import numpy as np
from test_vocabulary_file import GOOD, LEADS_OUT, table


def make(folder):
    (folder / "tokenizer.model").write_bytes(GOOD + table(LEADS_OUT))


def trusting(folder):
    """As SentencePiece before 0.2.2, which read whatever lies there."""
    units = np.asarray(LEADS_OUT)
    units[(units[0] >> 10) ^ ord("a")]
