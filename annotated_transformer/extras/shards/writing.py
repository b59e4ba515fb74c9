"""Writing shards (section 5.1): a corpus is encoded once, however often the run is killed.

A shard is two files, and then its entry in `shards.json`, each written atomically. A file without
an entry belongs to a killed run and is rewritten. A shard with an entry is kept if its files are
undamaged and the text is unchanged.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable
from itertools import chain, count, islice
from pathlib import Path

import numpy as np

from annotated_transformer.checkpoint.directory import SHARDS_MANIFEST
from annotated_transformer.data.batching import MAX_ENCODED_TOKENS
from annotated_transformer.data.parallel_text import Pair, PairsSHA256
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.data.vocabulary_file import MAX_MODEL_BYTES
from annotated_transformer.errors import ConfigError, require, say
from annotated_transformer.extras.shards import reading as shards
from annotated_transformer.extras.shards.reading import Manifest, Shard, ShardEntry
from annotated_transformer.files import read_bounded, write_bytes, write_text

PAIRS_PER_SHARD = 500_000
"""Half a minute of work, which is what a kill can cost; English-French has 82 shards."""
PAIRS_AT_ONCE = 5_000
"""Pairs that SentencePiece encodes in one call: enough for its threads, and little memory. Threads
took the place of processes (LOG.md, "Data larger than memory")."""
ADVICE = "name another directory"
Encoded = tuple[np.ndarray, np.ndarray]


def encode(
    tokenizer: Tokenizer,
    pairs: Iterable[Pair],
    directory: str | Path,
    *,
    corpus: str = "",
    split: str = "train",
    revision: str = "",
    threads: int = 1,
    pairs_per_shard: int = PAIRS_PER_SHARD,
    n_expected: int | None = None,
    progress: bool = True,
) -> Manifest:
    """Write the pairs as shards into `directory`, or continue what a killed run has left there.

    The files are the same for any number of `threads`. Continuing reads the text again, which is
    quick, and encodes what has no finished shard. Pairs with an empty side, or one of more than
    `MAX_ENCODED_TOKENS`, are left out. `n_expected` is for the progress bar. Raises ConfigError
    where the directory holds shards of other text, size or vocabulary, and when there is nothing to
    encode.
    """
    from tqdm import tqdm

    require(threads >= 1, f"the number of threads must be at least 1, got {threads}")
    require(pairs_per_shard >= 1, f"pairs_per_shard must be at least 1, got {pairs_per_shard}")
    directory = Path(directory)
    made_from = corpus, split, revision, tokenizer.sha256, tokenizer.vocab_size, pairs_per_shard
    manifest = Manifest(shards.SHARD_FORMAT, False, *made_from, shards=[])
    before = _shards_of_a_killed_run(directory, manifest)
    if not before:
        path = directory / shards.TOKENIZER_FILE
        is_ours = not path.exists() or read_bounded(path, MAX_MODEL_BYTES) == tokenizer.model_bytes
        require(is_ours, f"{path} is another vocabulary, but there are no shards: {ADVICE}")
        write_bytes(path, tokenizer.model_bytes)
    entries: list[ShardEntry] = []
    rest = iter(pairs)
    text = PairsSHA256()
    with tqdm(total=n_expected, unit="pair", unit_scale=True, disable=not progress) as bar:
        for number in count():
            known = before[number] if number < len(before) else None
            is_kept = known is not None and _is_undamaged(directory, number, known, manifest)
            shard = islice(rest, pairs_per_shard)
            n_pairs = 0
            encoded = []
            while block := list(islice(shard, PAIRS_AT_ONCE)):
                text.add(block)
                n_pairs += len(block)
                if not is_kept:
                    encoded.append(encode_some(tokenizer, block, manifest.id_type, threads))
                bar.update(len(block))
            if n_pairs == 0:
                break
            is_same = known is None or known.pairs_sha256 == text.hexdigest()
            require(is_same, f"{directory} holds shards of other text, from {number} on: {ADVICE}")
            if known is None or not is_kept:
                known = _write_shard(directory, number, encoded, n_pairs, text.hexdigest())
                _write_manifest(directory, manifest, [*entries, known, *before[number + 1 :]])
            entries.append(known)
    n_kept = sum(entry.pairs for entry in entries)
    require(n_kept > 0, "there is nothing to encode: no pair has tokens on both sides")
    is_all = len(entries) >= len(before)
    require(is_all, f"{directory} holds shards of a longer text: {ADVICE}")
    return _write_manifest(directory, manifest.replace(complete=True), entries)


def encode_some(tokenizer: Tokenizer, pairs: list[Pair], id_type: str, threads: int) -> Encoded:
    """Ids of the pairs end to end, and the lengths of their sides in the same order."""
    sources, targets = (
        side.encode_batch(texts, threads=threads)
        for side, texts in zip(tokenizer.sides, zip(*pairs, strict=True), strict=True)
    )
    sides = [
        side
        for pair in zip(sources, targets, strict=True)
        if min(map(len, pair)) > 0 and max(map(len, pair)) <= MAX_ENCODED_TOKENS
        for side in pair
    ]
    lengths = np.fromiter(map(len, sides), np.int64, len(sides))
    return np.fromiter(chain.from_iterable(sides), id_type, int(lengths.sum())), lengths


def _shards_of_a_killed_run(directory: Path, manifest: Manifest) -> list[ShardEntry]:
    """The entries of finished shards. Raises ConfigError where they were made in another way."""
    if not (directory / SHARDS_MANIFEST).exists():
        return []
    stored = shards.read_manifest(directory)
    for name in ("tokenizer_sha256", "vocab_size", "pairs_per_shard"):
        is_same = getattr(stored, name) == getattr(manifest, name)
        require(is_same, f"{directory} holds shards with another {name}: {ADVICE}")
    return list(stored.shards)


def _is_undamaged(directory: Path, number: int, entry: ShardEntry, manifest: Manifest) -> bool:
    try:
        Shard(directory, number, entry, manifest.id_type).verify(manifest.vocab_size)
    except ConfigError as error:
        say(f"{error}; it is encoded again")
        return False
    return True


def _write_shard(
    directory: Path, number: int, encoded: list[Encoded], n_text_pairs: int, pairs_sha256: str
) -> ShardEntry:
    """Write both files of a shard, and make its entry."""
    ids, lengths = (np.concatenate(arrays) for arrays in zip(*encoded, strict=True))
    # Little-endian, as `id_type` is, so that the files are the same on every machine.
    offsets = np.cumsum(np.concatenate([[0], lengths])).astype("<i8")
    sha256 = []
    for name, numbers in zip(shards.file_names(number), (ids, offsets), strict=True):
        content = io.BytesIO()  # in memory, so that the checksum is of what was to be written
        np.save(content, numbers)
        write_bytes(directory / name, content.getvalue())
        sha256.append(hashlib.sha256(content.getvalue()).hexdigest())
    counts = len(lengths) // 2, n_text_pairs - len(lengths) // 2
    n_tokens = int(lengths[0::2].sum()), int(lengths[1::2].sum())  # source and target take turns
    return ShardEntry(*counts, *n_tokens, pairs_sha256, *sha256)


def _write_manifest(directory: Path, manifest: Manifest, entries: list[ShardEntry]) -> Manifest:
    manifest = manifest.replace(shards=entries)
    write_text(directory / SHARDS_MANIFEST, json.dumps(manifest.to_dict(), indent=1) + "\n")
    return manifest
