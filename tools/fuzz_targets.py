"""What `tools.fuzz` feeds: good inputs of each kind, and who judges the answers to changed ones.

A judge gives "" for an answer that keeps the contract, and otherwise what is wrong with it. An
exception of another class than ConfigError breaks it as well.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import random
import re
import shutil
import socket
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece
import torch

from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.checkpoint.weights import load_tensors, save_tensors, save_weights
from annotated_transformer.command_line import entry_point as cli
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.data import corpus
from annotated_transformer.data.downloads import CACHE_VARIABLE
from annotated_transformer.data.parallel_text import load_files, read_lines
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import ConfigError
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training import loop
from lab.parsing.linearization import delinearize, linearize
from lab.parsing.scoring import brackets
from lab.parsing.trees import read_trees
from tools.fuzz_shards import WORDS as SHARD_WORDS, ShardsJudge
from tools.fuzz_states import WORDS as STATE_WORDS, StatesJudge

SENTENCES = [
    "A man rides a bike .",
    "Ein Mann fährt Rad .",
    "tea  \t",
    "😀 ﬁ …",
    "(S (NP a) (VP b))",
]
TARGETS = (
    "tokenizer", "text", "shards", "states", "trees", "weights", "config", "translate", "command",
)  # fmt: skip


class Target(NamedTuple):
    """`share` says how many of all inputs it gets; `words` are put into inputs."""

    name: str
    share: int
    good: list[bytes]
    words: tuple[bytes, ...]
    judge: Callable[[bytes], str]


def vocabulary(rule: str, model_type: str = "bpe") -> bytes:
    """A small SentencePiece file. Without rules of characters it has 6 kB, with them 250."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 9), model_writer=written, vocab_size=310, pad_id=0,
        bos_id=1, eos_id=2, unk_id=3, byte_fallback=True, normalization_rule_name=rule,
        model_type=model_type, remove_extra_whitespaces=False, minloglevel=2,
        hard_vocab_limit=False,
    )  # fmt: skip
    return written.getvalue()


def refusal(action: Callable[[], Any]) -> str:
    """Do it; "" if it succeeds or raises a ConfigError of one line."""
    try:
        action()
    except ConfigError as error:
        return "" if len(str(error).splitlines()) == 1 else f"{str(error)!r} is not one line"
    return ""


def prepare(folder: Path) -> dict[str, Target]:
    """All targets, which write in `folder` and leave the network alone."""

    def unreachable(*_: Any) -> None:
        raise OSError("there is no network in a fuzzer")

    def no_training(*_: Any, **__: Any) -> None:
        raise ConfigError("a fuzzer trains nothing")

    socket.socket.connect = unreachable  # type: ignore[method-assign]
    loop.train = no_training  # type: ignore[assignment]
    os.environ[CACHE_VARIABLE] = str(folder / "cache")
    logging.disable()
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    small = vocabulary("identity")
    tokenizer = Tokenizer(small)
    config = ModelConfig.tiny(tokenizer.vocab_size, N=1, d_model=8, d_ff=8, h=2)
    good = checkpoint.write_directory(
        folder / "good", config, tokenizer, {"train": TrainConfig().to_dict(), "corpus": "none"}
    )
    save_weights(good / "model.safetensors", Transformer(config))
    save_tensors(folder / "other", {"a": torch.ones(3)}, {"b": "c"})
    files = [(good / "model.safetensors").read_bytes(), (folder / "other").read_bytes()]
    (folder / "source").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    chance = random.Random(1)
    lines = [
        *(f"{s}\n".encode() for s in SENTENCES),
        b"\n",
        b"\xef\xbb\xbfa\r\nb",
        b"a\x85b\x0cc\n",
    ]
    rows = json.dumps({"translation": {"en": "a", "de": "b"}}).encode() + b"\n"
    texts = [*lines, b"".join(lines), rows * 3, _gzip(b"".join(lines)), chance.randbytes(300)]
    trees = [
        b"(S (NP (DT a) (NN b)) (VP c))",
        b"((S x) (S y))",
        b"( (S (NP-SBJ (-NONE- *)) (. .)) )",
    ]
    settings = (good / "config.json").read_bytes()
    shards = ShardsJudge(folder / "shards", tokenizer)
    states = StatesJudge(folder / "states", tokenizer)
    return {
        target.name: target
        for target in (
            Target(
                "tokenizer", 15,
                [small, vocabulary("identity", "unigram"), vocabulary("nfkc")],
                (b"\x0a\x7f", b"\x0a\xff\xff\x03", b"\x15\x00\x00\xc0\x7f", b"\x18\x06", b"\x0b"),
                _tokenizer,
            ),
            Target("text", 35, texts, (b"\x1f\x8b", b"\xef\xbb\xbf", b"\t", rows), _Text(folder)),
            Target("shards", 5, shards.good, SHARD_WORDS, shards),
            Target("states", 5, states.good, STATE_WORDS, states),
            Target("trees", 30, trees, (b"(", b")", b" ", b"(X"), _trees),
            Target(
                "weights", 10, files,
                (b'"F64"', b'"BOOL"', b"[]", b"[0,0]", b"-1", b"99999999999", b"file_sha256"),
                _Directory(folder / "weights", good, "model.safetensors"),
            ),
            Target(
                "config", 8, [settings],
                (b"null", b"-1", b"1e999", b"NaN", b"{}", b"[]", b'"6"', b"99999999999999999999",
                 b"true", b"0.5", b'"learned"', b'"pre"', b"268435456"),
                _Directory(folder / "config", good, "config.json"),
            ),
            Target(
                "translate", 1, [b"".join(lines), *lines], (b"\n" * 9, b"a " * 40), _Lines(folder)
            ),
            Target("command", 1, _commands(), WORDS, _Command(folder)),
        )
    }  # fmt: skip


def _gzip(data: bytes) -> bytes:
    import gzip

    return gzip.compress(data, mtime=0)


def _tokenizer(data: bytes) -> str:
    def read() -> None:
        tokenizer = Tokenizer(data)
        for ids in tokenizer.encode_batch(SENTENCES):
            assert all(0 <= i < tokenizer.vocab_size for i in ids)
            tokenizer.decode(ids)

    return refusal(read)


class _Text:
    """Text files, pairs of them, and JSON lines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "wmt14-en-de"
        self.folder.mkdir()

    def __call__(self, data: bytes) -> str:
        path = self.folder / "train.jsonl"
        path.write_bytes(data)
        found: list[str] = []
        wrong = refusal(lambda: found.extend(read_lines(path)))
        if (
            found
            and data[:2] != b"\x1f\x8b"
            and len(found) != len(data.removesuffix(b"\n").split(b"\n"))
        ):
            wrong += f"{len(found)} lines of {data!r}"
        with contextlib.redirect_stderr(io.StringIO()):
            wrong += refusal(lambda: load_files(path, path))
        wrong += refusal(lambda: list(corpus.stream("wmt14-en-de", "train", self.folder.parent)))
        return wrong if path.read_bytes() == data else "the file was changed"


def _trees(data: bytes) -> str:
    def read() -> None:
        for tree in read_trees(data.decode("utf-8", "replace")):
            brackets(delinearize(linearize(tree)))

    return refusal(read)


class _Directory:
    """A checkpoint directory in which one file is changed."""

    def __init__(self, folder: Path, good: Path, name: str) -> None:
        shutil.copytree(good, folder)
        self.folder, self.name = folder, name

    def __call__(self, data: bytes) -> str:
        path = self.folder / self.name
        path.write_bytes(data)
        wrong = refusal(lambda: checkpoint.load_model(self.folder))
        if path.suffix == ".json":
            wrong += refusal(
                lambda: TrainConfig.from_dict(checkpoint.read_config(self.folder).get("train"))
            )
        else:
            wrong += refusal(lambda: load_tensors(path))
        return wrong if path.read_bytes() == data else "the file was changed"


@contextlib.contextmanager
def _captured() -> Iterator[tuple[io.TextIOWrapper, io.StringIO]]:
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err


class _Lines:
    """As many lines out as in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, data: bytes) -> str:
        source, target = self.folder / "lines", self.folder / "translated"
        source.write_bytes(data)
        names = [str(path) for path in (self.folder / "good", source, target)]
        arguments = ["translate", names[0], "--input", names[1], "--output", names[2]]
        with _captured() as (_, err):
            status = cli.main([*arguments, "--max-extra", "2", "--beam-size", "2"])
        n_in = (
            len(data.removesuffix(b"\n").split(b"\n")) if data.removeprefix(b"\xef\xbb\xbf") else 0
        )
        n_out = target.read_bytes().count(b"\n")
        if (status, n_out) != (0, n_in):
            return f"status {status}, {n_in} lines in, {n_out} out: {err.getvalue()}"
        return "" if source.read_bytes() == data else "the input was changed"


_OUT_OF_HERE = re.compile(r"(?<![\w.])[/~]+|\.\.")
"""What leads out of a folder: a root, a home, a way up."""


def kept_inside(argument: str) -> str:
    """The argument without what could make a path of it that leads out of the folder."""
    while (shorter := _OUT_OF_HERE.sub("", argument)) != argument:
        argument = shorter
    return argument


def _commands() -> list[bytes]:
    """Command lines with an argument a line; every path is relative, to the target's folder."""
    lines = (
        "translate good --input source --beam-size 2 --alpha 0.6 --n-best 2 --window 3",
        "translate good --input source --max-source 5 --max-extra 3 --int8",
        "evaluate good --source source --reference source --json --max-extra 2",
        "average good --last 3 --out mean",
        "export good --out exported --dtype float16",
        "inspect good --sentences 2",
        "train --train source source --valid source source --vocab-size 300 "
        "--out trained --set N=1 --set d_model=8 --set train_steps=2 --preset tiny --seed 3",
        "train --resume --out good --init good",
        "variations --vocab-size 37000",
        "prepare --list",
        "--help",
    )
    return [line.replace(" ", "\n").encode() for line in lines]


WORDS = tuple(
    f"\n{word}\n".encode()
    for word in (
        "--set", "p_drop=0.5", "h=3", "N=x", "seed=1", "--beam-size", "-1", "0", "1e9", "nan",
        "inf", "9" * 30, "", "--json", "--resume", "--dtype", "bfloat16", "--device", "cuda",
        "--quiet", "good", "source", "nowhere", "\0", "--n-best", "4", "é",
    )
)  # fmt: skip


class _Command:
    """Status 0, or 2 with one line that says error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, data: bytes) -> str:
        possible = data.replace(b"\0", b"")  # no program can be given another
        words = possible.decode("utf-8", "surrogateescape").split("\n")
        arguments = [kept_inside(word) for word in words]
        asks = "prepare" in arguments[:1] and "--list" not in arguments
        if {"run", "table"} & {*arguments} or asks:
            return ""  # what takes minutes, or asks the network
        with _captured() as (_, err), contextlib.chdir(self.folder):
            try:
                status = cli.main(arguments)
            except SystemExit as end:
                status = int(end.code or 0)
        said = err.getvalue()
        errors = [line for line in said.splitlines() if "error:" in line]
        if status not in (0, 2) or "Traceback" in said:
            return f"status {status}: {said}"
        if status == 2 and len(errors) != 1:
            return f"{len(errors)} errors: {said}"
        return ""
