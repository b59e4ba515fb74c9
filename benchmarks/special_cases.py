"""What each special case of decoding on a CPU brings: a search with it and without it, in turns.

    OMP_NUM_THREADS=1 python benchmarks/special_cases.py                 all, five rounds
    OMP_NUM_THREADS=1 python benchmarks/special_cases.py --small         a rehearsal

A special case is lines that make nothing but time. It stays where it brings 5 % in a search that a
user runs, of the book's model or of one of base's size (random weights, as float16 holds them), and
slows none. What counts is CPU time; a figure is the median over rounds of neighbours, and 1.10 says
that the search is 1.1 times as fast with the case.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from annotated_transformer import ModelConfig, Tokenizer, Transformer, beam_search, corpus
from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.fast import decoder, linear
from annotated_transformer.fast.decoder import FastDecoder
from annotated_transformer.text.batching import pad_source

ROOT = Path(__file__).resolve().parents[1]
Case = Callable[[], Any]


def loaded(name: str, small: bool) -> Transformer:
    """The book's model, or one of base's size whose weights float16 holds."""
    if name == "book/model":
        return load_model(ROOT / name)[0]
    torch.manual_seed(0)
    sizes = {"N": 1, "d_model": 64, "d_ff": 128} if small else {}
    model = Transformer(ModelConfig.base(vocab_size=8000, **sizes)).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.half().float()
    return model


@contextmanager
def one_attention() -> Iterator[None]:
    with patch.object(decoder, "is_batched", lambda _: False):
        yield


def cases(name: str, small: bool) -> dict[str, tuple[FastDecoder, FastDecoder, Case]]:
    """For each case the decoder with it, the one without, and what else is without it."""
    usual = linear.store_column_major(loaded(name, small))
    full = FastDecoder(usual, keep_float16_copy=True)
    return {
        "two attentions": (full, full, one_attention),
        "copies in 16 bits": (full, FastDecoder(usual), nullcontext),
        "column-major": (FastDecoder(usual), FastDecoder(loaded(name, small)), nullcontext),
    }


def cpu_seconds(model: FastDecoder, sources: list[torch.Tensor], beam_size: int) -> float:
    """What a search for each of the sources takes."""
    began = time.process_time()
    for source in sources:
        beam_search(model, source, beam_size, max_extra=3)
    return time.process_time() - began


def ratios(case: tuple[FastDecoder, FastDecoder, Case], rounds: int, *work: Any) -> list[float]:
    """CPU seconds without the case over those with it, one ratio a round."""
    with_it, without_it, also = case
    found = []
    for _ in range(rounds + 1):
        seconds = cpu_seconds(with_it, *work)
        with also():
            found.append(cpu_seconds(without_it, *work) / seconds)
    return found[1:]  # the first turn warms up


def main(arguments: Sequence[str] | None = None) -> None:
    """Time every case with both models, beams 1 and 4, one sentence at a time and 64 at once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="little models, two sentences")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    tokenizer = Tokenizer.load(ROOT / "book" / "model" / "tokenizer.model")
    texts = [source for source, _ in corpus.load("tatoeba-en-de", "test")]
    ids = tokenizer.encode_batch(texts[: 2 if args.small else 64])
    alone = [pad_source([one]) for one in ids[: 1 if args.small else 4]]
    searches = {
        f"{n}, beam {beam_size}": (sources, beam_size)
        for n, sources in ((1, alone), (len(ids), [pad_source(ids)]))
        for beam_size in (1, 4)
    }
    print(f"{'sentences at a time':34}", *(f"{name:>18}" for name in searches))
    for name in ("book/model", "base"):
        for label, case in cases(name, args.small).items():
            found = (ratios(case, args.rounds, *work) for work in searches.values())
            said = (f"{statistics.median(r):.2f} ({min(r):.2f} to {max(r):.2f})" for r in found)
            print(f"{name:12} {label:21}", *(f"{text:>18}" for text in said), flush=True)


if __name__ == "__main__":
    main()
