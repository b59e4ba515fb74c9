"""A corpus of 400 kB that unpacks to 400 MB."""

import gzip
import zlib

from annotated_transformer.data.corpus import load_files


def make(folder):
    packer, line = zlib.compressobj(9, wbits=31), b"word " * 200 + b"\n"
    with open(folder / "text.gz", "wb") as file:
        for _ in range(400):
            file.write(packer.compress(line * 1000))
        file.write(packer.flush())


def trusting(folder):
    gzip.decompress((folder / "text.gz").read_bytes())


def ours(folder):
    load_files(folder / "text.gz", folder / "text.gz")
