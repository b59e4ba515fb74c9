"""Shards as `tools.fuzz` feeds them: one of their files is changed, and all pairs are asked for."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.shards.reading import MANIFEST, Shards, file_names
from annotated_transformer.extras.shards.writing import encode

FILES = (MANIFEST, *file_names(1))
WORDS = (
    b"'<u2'", b"'|O'", b"(9,)", b"(-1,)", b"[" * 99, b"{}", b"null", b"-1", b"1e999", b"NaN",
    b"99999999999999999999", b"true", b"{[]:1}#", b'"shards": []', b"\x93NUMPY\x01\0v\0", b"\x02\0",
)  # fmt: skip
ODD_HEADS = b"{[]: 1}" + b" " * 90, b"-" * 9000 + b"1"  # which NumPy's reader would evaluate


class ShardsJudge:
    """A directory of shards in which one file is changed; the first byte of an input says which.

    It is refused in one line, or its pairs are those that were written, as far as they go.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        self.folder = folder
        pairs = [(f"a {n}", f"b {n} c") for n in range(9)]
        encode(tokenizer, pairs, folder, pairs_per_shard=3, progress=False)
        self.pairs = Shards(folder).gather(np.arange(len(pairs)))
        self.contents = [(folder / name).read_bytes() for name in FILES]
        self.good = [bytes([which]) + content for which, content in enumerate(self.contents)]
        self.good += [b"\1\x93NUMPY\1\0" + struct.pack("<H", len(odd)) + odd for odd in ODD_HEADS]

    def __call__(self, data: bytes) -> str:
        which = data[0] % len(FILES) if data else 0
        path = self.folder / FILES[which]
        path.write_bytes(data[1:])
        try:
            return self._wrong() or ("" if path.read_bytes() == data[1:] else "a file was changed")
        finally:
            path.write_bytes(self.contents[which])

    def _wrong(self) -> str:
        try:
            shards = Shards(self.folder)
            shards.tokenizer()
            shards.verify()
            found = shards.gather(np.arange(len(shards)))
        except ConfigError as error:
            return "" if len(str(error).splitlines()) == 1 else f"{str(error)!r} is not one line"
        return "" if found == self.pairs[: len(found)] else f"{found} is not {self.pairs}"
