"""A download of 400 kB that unpacks to 400 MB."""

import zipfile

from annotated_transformer.data import downloads


def make(folder):
    with (
        zipfile.ZipFile(folder / "deu.zip", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("deu.txt", "w") as file,
    ):
        for _ in range(400):
            file.write(bytes(2**20))


def trusting(folder):
    with zipfile.ZipFile(folder / "deu.zip") as archive:
        archive.read("deu.txt")


def ours(folder):
    served = (folder / "deu.zip").as_uri()
    downloads.download(served, folder / "kept.gz", "0" * 64, "deu.txt")
