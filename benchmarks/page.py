"""The page against Python, figure by figure; book/results/page.json.

    python benchmarks/page.py                               book/model, its corpus's test split
    python benchmarks/page.py --small --out /tmp/page.json  a few sentences, in seconds

It needs Node. The records say how many of the generated lines have the ids that SentencePiece gives
them; how many sentences have the same ids in greedy search and with a beam of 4 as in Python with
the same arithmetic; what BLEU the page and float32 have; what the page weighs; and how long it
takes, with WebAssembly's SIMD and without: milliseconds of the processor a token in greedy search,
the source's encoding included, and for sentences of ten words with a beam of 4 (the median and the
slowest).
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from annotated_transformer.checkpoint.directory import load_model, read_config
from annotated_transformer.config import ModelConfig
from annotated_transformer.data import corpus
from annotated_transformer.data.batching import pad_source
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding.evaluation import bleu
from annotated_transformer.decoding.search import beam_search, greedy_search
from annotated_transformer.errors import require, say
from annotated_transformer.extras.page.int8_rows import with_int8_rows
from annotated_transformer.extras.page.writing import write_page
from annotated_transformer.model.transformer import Transformer
from benchmarks.timing import ROOT, as_text, out_path, write
from tools.arguments import parser_of, run_main
from tools.page_engine import NODE, run_engine

BATCH = 50
SCRIPTS = (
    (0x20, 0x7E), (0xA0, 0x17F), (0x1E00, 0x1EFF), (0x370, 0x3FF), (0x1F00, 0x1FFF),
    (0x400, 0x52F), (0x531, 0x58F), (0x591, 0x5F4), (0x600, 0x6FF), (0x900, 0x97F),
    (0xE00, 0xE5B), (0xF00, 0xFBC), (0x1100, 0x11FF), (0x3131, 0x318E), (0xAC00, 0xD7A3),
    (0x3041, 0x30FF), (0x31F0, 0x33FF), (0x4E00, 0x9FFF), (0xF900, 0xFAD9), (0xFB00, 0xFDFF),
    (0xFE30, 0xFFEF), (0x2000, 0x2BFF), (0x1D400, 0x1D7FF), (0x1F100, 0x1FAFF), (0x20000, 0x2A6DF),
)  # fmt: skip
"""First and last characters of scripts, with most of those that NFKC replaces."""
MARKS = (0x300, 0x36F)  # accents that join the letter before them
ODD = (
    "\x00", "\t", "\n", "\r\n", "\x0b", "\x1b[0m", "\x7f", "\x85", "\xa0", "\xad", "\u200b",
    "\u200d", "\u202e", "\u2028", "\u2581", "\u2581\u2581", "\u3000", "\ufeff", "\ufffd",
    "\uffff", "<s>", "</s>", "<unk>", "<0x41>", "<pad>", "  ", "   ",
    "\U0010ffff", "\ufdfa", "e\u0301\u0323",
)  # fmt: skip
EMOJI = (
    "👩\u200d👩\u200d👧\u200d👦", "👍🏽", "🇩🇪🇬🇧", "❤\ufe0f\u200d🔥", "🏴\U000e0067\U000e007f",
    "☃", "1\ufe0f\u20e3",
)  # fmt: skip
BROKEN = ("\ud83d", "\ude00", "\ude00\ud83d", "\ud83d\ude00", "\udfff\ud800\ud800")


def varied_lines(seed: int, n: int, tokenizer: Tokenizer) -> list[str]:
    """Lines of all scripts, emoji, odd spaces, control characters, halves of surrogate pairs,
    accents upon accents, very long words, and pieces of the tokenizer in any order."""
    generator = random.Random(seed)
    pieces = [
        piece.replace("\u2581", " ") for piece in tokenizer.pieces(range(tokenizer.vocab_size))
    ]

    def letters(first: int, last: int, longest: int) -> str:
        n_letters = generator.randint(1, longest)
        return "".join(chr(generator.randint(first, last)) for _ in range(n_letters))

    parts: list[Callable[[], str]] = [
        lambda: letters(*generator.choice(SCRIPTS), longest=12),
        lambda: "".join(generator.choices(pieces, k=generator.randint(1, 8))),
        lambda: letters(97, 122, longest=1) + letters(*MARKS, longest=5),
        lambda: generator.choice(ODD),
        lambda: generator.choice(EMOJI),
        lambda: generator.choice(BROKEN),
        lambda: letters(0, 0x10FFFF, longest=4),
        lambda: "-" * generator.randint(1, 40),
    ]
    weights = [8, 8, 2, 3, 1, 1, 1, 0.3]
    lines = [
        "".join(part() for part in generator.choices(parts, weights, k=generator.randint(1, 7)))
        for _ in range(n)
    ]
    for i in range(0, n, 1000):  # a very long word
        lines[i] = letters(97, 105, longest=5000)
    return lines


def ids_in_python(
    search: Callable[[Any], list[list[int]]], sources: Sequence[list[int]], config: ModelConfig
) -> list[list[int]]:
    """What `search` finds for each source, in batches of similar length."""
    found: dict[int, list[int]] = {}
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for first in range(0, len(order), BATCH):
        batch = order[first : first + BATCH]
        padded = pad_source([sources[i] for i in batch], config.special_ids)
        found.update(zip(batch, search(padded), strict=True))
    return [found[i] for i in range(len(sources))]


def same(ours: Sequence[Any], theirs: Sequence[Any]) -> int:
    """How many are equal."""
    return sum(one == other for one, other in zip(ours, theirs, strict=True))


def searches(model: Transformer) -> dict[str, Callable[[Any], list[list[int]]]]:
    """Greedy and beam search with a model in Python, by name."""
    return {
        "greedy": lambda source: greedy_search(model, source),
        "beam 4": lambda source: [found[0].tokens for found in beam_search(model, source)],
    }


def fidelity(
    directory: Path, page: Path, pairs: list[tuple[str, str]], n_lines: int
) -> list[dict[str, Any]]:
    """How many ids are Python's, and what BLEU the page has beside float32."""
    model, tokenizer = load_model(directory)
    lines = varied_lines(0, n_lines, tokenizer)
    (ids,) = run_engine(page, {"do": "encode", "texts": lines})
    records: list[dict[str, Any]] = [
        {"figure": "tokenizer ids", "of": n_lines, "same": same(ids, tokenizer.encode_batch(lines))}
    ]
    sources = tokenizer.encode_batch([source for source, _ in pairs])
    references = [target for _, target in pairs]
    ended = [[*source, model.config.eos_id] for source in sources]
    say("the page translates")
    greedy, beams = run_engine(
        page,
        {"do": "greedy", "sources": ended},
        {"do": "beam", "sources": ended, "settings": {}},
    )
    of_page = {"greedy": greedy, "beam 4": [found[0]["tokens"] for found in beams]}
    say("Python translates, in the page's arithmetic and in float32")
    exact, rounded = searches(model), searches(with_int8_rows(model))
    for name, found in of_page.items():
        in_python = ids_in_python(rounded[name], sources, model.config)
        in_float32 = ids_in_python(exact[name], sources, model.config)
        scores = [
            bleu([tokenizer.decode(one) for one in ids], references).score
            for ids in (found, in_float32)
        ]
        records.append(
            {
                "figure": f"{name} ids",
                "of": len(sources),
                "same": same(found, in_python),
                "BLEU": round(scores[0], 2),
                "BLEU in float32": round(scores[1], 2),
                "same as in float32": same(found, in_float32),
            }
        )
    return records


def times(page: Path, texts: list[str]) -> Iterator[dict[str, Any]]:
    """Milliseconds of both ways to multiply."""
    for way in ("SIMD", "plain JavaScript"):
        job = {"do": "time", "texts": texts, "beamSize": 4}
        is_wasm, found = run_engine(page, {"do": "way"}, job, plain=way != "SIMD")
        require(is_wasm == (way == "SIMD"), "this Node has no SIMD in WebAssembly")
        yield {
            "figure": "time",
            "way": way,
            "ms a token, greedy, median": round(statistics.median(found["perToken"]), 2),
            "sentences of ten words": len(texts),
            "ms a sentence, beam 4, median": round(statistics.median(found["sentences"]), 1),
            "ms a sentence, beam 4, slowest": round(max(found["sentences"]), 1),
        }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write the records."""
    parser = parser_of(__doc__, small=True, out=True)
    parser.add_argument("directory", nargs="?", default=str(ROOT / "book" / "model"))
    args = parser.parse_args(arguments)
    require(NODE is not None, "benchmarks/page.py needs Node")
    name = str(read_config(args.directory).get("corpus", ""))
    pairs = corpus.load(name, "test")
    of_ten_words = [source for source, _ in pairs if len(source.split()) == 10]
    if args.small:
        pairs, of_ten_words = pairs[:20], of_ten_words[:3]
    with tempfile.TemporaryDirectory() as folder:
        page = write_page(args.directory, Path(folder) / "page")
        weight = sum(path.stat().st_size for path in page.iterdir())
        records: list[dict[str, Any]] = [{"figure": "weight", "bytes": weight}]
        records += fidelity(Path(args.directory), page, pairs, 500 if args.small else 10_000)
        records += times(page, of_ten_words)
    print(*map(as_text, records), sep="\n")
    write(out_path(args, "page"), "page", arguments, records)


if __name__ == "__main__":
    run_main(main)
