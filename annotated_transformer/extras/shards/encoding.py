"""A corpus, or two files, to shards: the text, the vocabulary and the threads of the work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from annotated_transformer.checkpoint.directory import SHARDS_MANIFEST
from annotated_transformer.data import corpus
from annotated_transformer.data.parallel_text import VOCABULARY_SAMPLE, sample, stream_files
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import require, say
from annotated_transformer.extras.shards.reading import TOKENIZER_FILE
from annotated_transformer.extras.shards.writing import encode
from annotated_transformer.files import require_writable


class Encoding(NamedTuple):
    """What to encode into the directory of shards `out`, and how: the options of the command line.

    The text is a split of the registry's `corpus`, or the two files `train`. The vocabulary is that
    of the path `tokenizer`, or one of `vocab_size` tokens that is learned from at most `sample`
    pairs. `jobs` are threads, by default one for each core.
    """

    out: str
    corpus: str | None = None
    data_dir: str | None = None
    train: tuple[str, str] | None = None
    split: str | None = None
    tokenizer: str | None = None
    vocab_size: int | None = None
    model_type: str | None = None
    sample: int | None = None
    jobs: int | None = None
    quiet: bool = False


def encode_corpus(args: Encoding) -> dict[str, Any]:
    """Encode the text into shards; the counts of what was written."""
    require_writable(Path(args.out) / SHARDS_MANIFEST)
    split = args.split or "train"
    entry = None if args.train else corpus.get(args.corpus or corpus.names()[0])
    manifest = encode(
        _tokenizer(args),
        _text(args),
        args.out,
        corpus=entry.name if entry else " ".join(Path(file).name for file in args.train or ()),
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


def _text(args: Encoding) -> Iterator[tuple[str, str]]:
    if args.train:
        return stream_files(*args.train)
    return corpus.stream(args.corpus or corpus.names()[0], args.split or "train", args.data_dir)


def _tokenizer(args: Encoding) -> Tokenizer:
    """The tokenizer that --tokenizer names, that of the shards in --out, or a new one."""
    out = Path(args.out)
    if args.tokenizer or (out / SHARDS_MANIFEST).exists():
        path = Path(args.tokenizer or out)
        tokenizer = Tokenizer.load(path / TOKENIZER_FILE if path.is_dir() else path)
        require(
            args.vocab_size in (None, tokenizer.vocab_size),
            f"{path} has {tokenizer.vocab_size} tokens, --vocab-size says {args.vocab_size}",
        )
        options = (("--model-type", args.model_type), ("--sample", args.sample))
        if without_effect := " and ".join(name for name, value in options if value):
            say(f"going on with the vocabulary of {out}: {without_effect} cannot change it")
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
