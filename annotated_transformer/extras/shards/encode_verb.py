"""`prepare --encode`: its text, its vocabulary, its threads, from arguments to shards."""

from __future__ import annotations

import argparse
import os
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from annotated_transformer.command_line.options import given, positive_int, require_none
from annotated_transformer.data.parallel_text import VOCABULARY_SAMPLE, sample, stream_files
from annotated_transformer.errors import require, say
from annotated_transformer.files import require_writable

LEARNING = ("model_type", "sample")
"""The options that say how a vocabulary is learned."""
ENCODING = ("out", "train", "split", "tokenizer", "vocab_size", *LEARNING, "jobs", "quiet")
"""All options that go with --encode alone."""


def add_encode(verb: argparse.ArgumentParser) -> None:
    """The options of `prepare --encode`."""
    group = verb.add_argument_group("to encode a corpus once, as shards that train --shards reads")
    add = group.add_argument
    files: dict[str, Any] = {"nargs": 2, "metavar": ("SOURCE", "TARGET")}
    add("--encode", action="store_true", help="write the token ids of a corpus to --out")
    add("--out", metavar="DIR", help="directory of shards; the same command goes on after a kill")
    add("--train", **files, help="one's own parallel files, plain or .gz, instead of a corpus")
    add("--split", choices=("train", "valid", "test"), help="of the corpus (default train)")
    what = "a tokenizer.model, or a checkpoint or directory of shards that has one"
    add("--tokenizer", metavar="PATH", help=what)
    what = "without --tokenizer: learn one of V tokens (default 8000)"
    add("--vocab-size", type=int, metavar="V", help=what)
    add("--model-type", choices=("bpe", "unigram"), help="its kind (default bpe)")
    what = f"learn it from at most N pairs, drawn at random (default {VOCABULARY_SAMPLE:,})"
    add("--sample", type=positive_int, metavar="N", help=what)
    add("--jobs", type=positive_int, metavar="N", help="threads (default: one for each core)")
    add("--quiet", action="store_true", help="no progress bar")


def encode_corpus(args: Namespace) -> dict[str, Any]:
    """Encode the text that the arguments name into shards; the counts of what was written."""
    from annotated_transformer.data import corpus
    from annotated_transformer.extras.shards import reading as shards
    from annotated_transformer.extras.shards.writing import encode

    require(bool(args.out), "--encode needs --out DIR, the directory of shards to write")
    require_writable(Path(args.out) / shards.MANIFEST)
    if args.train:
        require_none(args, ("split", "data_dir"), "--train names files")
        require(not args.corpus, "give a corpus, or two files with --train, not both")
    split = args.split or "train"
    entry = None if args.train else corpus.get(args.corpus or corpus.names()[0])
    manifest = encode(
        _tokenizer(args),
        _text(args),
        args.out,
        corpus=entry.name if entry else " ".join(args.train),
        split=split,
        revision=entry.revision if entry else "",
        threads=args.jobs or _cores(),
        n_expected=entry.pairs[split] if entry else None,
        progress=not args.quiet,
    )
    names = ("pairs", "left_out", "source_tokens", "target_tokens")
    counts = {name: sum(getattr(shard, name) for shard in manifest.shards) for name in names}
    n_read = counts["pairs"] + counts["left_out"]
    if entry and n_read != entry.pairs[split]:
        say(f"{entry.name} has {entry.pairs[split]:,} pairs in {split}, and {n_read:,} were read")
    return {
        "out": args.out,
        "corpus": manifest.corpus,
        "vocab_size": manifest.vocab_size,
        "shards": len(manifest.shards),
        **counts,
        "pairs_sha256": manifest.shards[-1].pairs_sha256,
    }


def _text(args: Namespace) -> Iterator[tuple[str, str]]:
    from annotated_transformer.data import corpus

    if args.train:
        return stream_files(*args.train)
    return corpus.stream(args.corpus or corpus.names()[0], args.split or "train", args.data_dir)


def _tokenizer(args: Namespace) -> Any:
    """The tokenizer that --tokenizer names, that of the shards in --out, or a new one."""
    from annotated_transformer.data.tokenizer import Tokenizer
    from annotated_transformer.extras.shards.reading import MANIFEST, TOKENIZER_FILE

    out = Path(args.out)
    if args.tokenizer:
        require_none(args, LEARNING, "--tokenizer names a vocabulary")
    if args.tokenizer or (out / MANIFEST).exists():
        path = Path(args.tokenizer or out)
        tokenizer = Tokenizer.load(path / TOKENIZER_FILE if path.is_dir() else path)
        require(
            args.vocab_size in (None, tokenizer.vocab_size),
            f"{path} has {tokenizer.vocab_size} tokens, --vocab-size says {args.vocab_size}",
        )
        if options := given(args, LEARNING):
            say(f"going on with the vocabulary of {out}: {options} cannot change it")
        return tokenizer
    pipes = [n for n in args.train or () if Path(n).exists() and not Path(n).is_file()]
    require(
        not pipes,
        f"{', '.join(pipes)} cannot be read twice, once to learn a vocabulary and once to encode: "
        "give files, or --tokenizer",
    )
    pairs = sample(_text(args), args.sample or VOCABULARY_SAMPLE)
    vocab_size = 8000 if args.vocab_size is None else args.vocab_size
    say(f"learning a vocabulary of {vocab_size:,} from {len(pairs):,} pairs")
    sentences = (sentence for pair in pairs for sentence in pair)
    return Tokenizer.train(sentences, vocab_size, model_type=args.model_type or "bpe")


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
