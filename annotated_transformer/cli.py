"""The command line: prepare, train, average, translate, evaluate, inspect, variations, export.

Results go to standard output, progress and messages to standard error. A user's mistake is one line on standard error
and exit status 2; Ctrl-C gives 130, a reader that has gone 141. What the verbs do stands in `commands`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from annotated_transformer import commands
from annotated_transformer.config import PRESETS, DecodeConfig
from annotated_transformer.errors import PROGRAM, ConfigError, say


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{PROGRAM}: error: {message} (see {self.prog} --help)\n")


def _add(
    verbs: Any, run: Any, summary: str, example: str, directory: str = ""
) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(
        run.__name__,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example: {PROGRAM} {run.__name__} {example}",
    )
    verb.set_defaults(run=run)
    if directory:
        verb.add_argument("directory", help=directory)
    return verb


def _add_decoding(verb: argparse.ArgumentParser) -> None:
    default = DecodeConfig()
    verb.add_argument(
        "--beam-size", type=int, default=default.beam_size, help="1 is greedy search (default 4)"
    )
    verb.add_argument(
        "--alpha", type=float, default=default.alpha, help="length penalty (default 0.6)"
    )
    verb.add_argument(
        "--max-extra",
        type=int,
        default=default.max_extra,
        help="most tokens beyond the source's length (default 50)",
    )


def parser() -> argparse.ArgumentParser:
    top = _Parser(
        prog=PROGRAM,
        description="The Transformer: prepare a corpus, train a model, translate with it.",
        epilog=f"{PROGRAM} VERB --help tells more.",
    )
    verbs = top.add_subparsers(required=True, metavar="VERB")
    checkpoint = "checkpoint directory, as train, average or export write it"

    p = _add(
        verbs, commands.prepare, "fetch and verify a corpus and print its card", "multi30k-en-de"
    )
    p.add_argument("corpus", nargs="?", default="tatoeba-en-de", help="default: tatoeba-en-de")
    p.add_argument("--list", action="store_true", help="print the names of all corpora")

    t = _add(
        verbs,
        commands.train,
        "train a model",
        "--corpus multi30k-en-de --preset small --out runs/de --set train_steps=2000",
    )
    t.add_argument("--out", required=True, metavar="DIR", help="checkpoint directory to write")
    t.add_argument("--corpus", metavar="NAME", help="a corpus that prepare knows")
    t.add_argument(
        "--train",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="one's own parallel files, plain or .gz",
    )
    t.add_argument(
        "--valid", nargs=2, metavar=("SOURCE", "TARGET"), help="the same, to validate on"
    )
    t.add_argument("--preset", choices=PRESETS, help="the model's size (default tiny)")
    t.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any setting of ModelConfig or TrainConfig; may be repeated",
    )
    t.add_argument(
        "--vocab-size", type=int, metavar="V", help="tokens of the shared vocabulary (default 8000)"
    )
    t.add_argument(
        "--model-type",
        choices=("bpe", "unigram"),
        default="bpe",
        help="kind of vocabulary (default bpe)",
    )
    t.add_argument("--seed", type=int, help="the same as --set seed=N")
    t.add_argument("--resume", action="store_true", help="go on with the run in --out")
    t.add_argument(
        "--init",
        metavar="DIR",
        help="start from the weights and vocabulary of a checkpoint (fine-tuning)",
    )
    t.add_argument("--tensorboard", metavar="DIR", help="also log there, for TensorBoard")

    a = _add(
        verbs,
        commands.average,
        "average a run's last checkpoints into a new directory",
        "runs/de --last 5",
        "a run's checkpoint directory",
    )
    a.add_argument(
        "others", nargs="*", help="runs that began with the same weights, to count as well"
    )
    a.add_argument("--last", type=int, default=5, help="how many of each (default 5)")
    a.add_argument("--out", metavar="DIR", help="default: the run's name with -averaged")

    r = _add(
        verbs,
        commands.translate,
        "translate standard input, a line for each line",
        "runs/de < input.en > output.de",
        checkpoint,
    )
    r.add_argument("--input", metavar="FILE", help="read this file instead")
    r.add_argument("--output", metavar="FILE", help="write this file instead")
    r.add_argument(
        "--n-best",
        type=int,
        default=1,
        help="more than 1: lines of number, score and text, by tabs",
    )
    r.add_argument(
        "--max-source",
        type=int,
        default=1024,
        metavar="N",
        help="cut longer lines after N tokens, with a warning (default 1024)",
    )
    r.add_argument(
        "--window", type=int, help="lines to hold at a time (default 512; 1 at a terminal)"
    )

    e = _add(
        verbs,
        commands.evaluate,
        "translate and score: BLEU, chrF, perplexity",
        "runs/de --corpus multi30k-en-de --split test",
        checkpoint,
    )
    e.add_argument("--corpus", metavar="NAME", help="default: the corpus it was trained on")
    e.add_argument(
        "--split", choices=("train", "valid", "test"), default="test", help="default test"
    )
    e.add_argument("--source", metavar="FILE", help="one's own file to translate, plain or .gz")
    e.add_argument("--reference", metavar="FILE", help="its translations")
    e.add_argument("--output", metavar="FILE", help="also write the translations")
    e.add_argument("--json", action="store_true", help="print one JSON object")

    i = _add(
        verbs,
        commands.inspect,
        "is attention at work? entropy of each layer, and what is lost without it",
        "runs/de --corpus multi30k-en-de",
        checkpoint,
    )
    i.add_argument("--corpus", metavar="NAME", help="default: the corpus it was trained on")
    i.add_argument(
        "--split", choices=("train", "valid", "test"), default="test", help="default test"
    )
    i.add_argument(
        "--sentences", type=int, metavar="N", help="the first N pairs alone (default all)"
    )
    i.add_argument("--beam-size", type=int, default=1, help="of the search for BLEU (default 1)")
    i.add_argument(
        "--no-bleu", action="store_true", help="measure the loss alone, which is quicker"
    )
    i.add_argument("--json", action="store_true", help="print one JSON object")

    v = _add(
        verbs,
        commands.variations,
        "Table 3's rows and their parameters; run them in miniature",
        "run A1 base --seeds 3",
    )
    _add_variations(v)

    x = _add(
        verbs,
        commands.export,
        "write the weights alone, with a card, to give away",
        "runs/de-averaged --out model --dtype float16",
        checkpoint,
    )
    x.add_argument("--out", required=True, metavar="DIR", help="directory to write")
    x.add_argument(
        "--dtype", choices=("float32", "float16"), default="float32", help="float16 halves the file"
    )
    x.add_argument(
        "--notes", default="", metavar="TEXT", help="a paragraph for the card, such as the scores"
    )

    for verb in (p, t, e, i, v):
        verb.add_argument(
            "--data-dir", metavar="DIR", help="search here for corpora before any download"
        )
    for verb in (t, r, e, i):
        verb.add_argument(
            "--device",
            choices=("auto", "cpu", "cuda"),
            default="auto",
            help="default auto: a GPU where there is one",
        )
    for verb in (r, e):
        verb.add_argument(
            "--int8",
            action="store_true",
            help="linear layers in 8 bits, on the CPU: faster there, almost the same translations",
        )
        verb.add_argument(
            "--dtype",
            choices=("float32", "float16", "bfloat16"),
            help="what the search computes in (default float32 on a CPU, float16 on a GPU)",
        )
    for verb in (t, e):
        verb.add_argument("--quiet", action="store_true", help="no progress bar")
    for verb in (r, e):
        _add_decoding(verb)
    return top


def _add_variations(v: argparse.ArgumentParser) -> None:
    v.add_argument(
        "action",
        nargs="?",
        choices=("run", "table"),
        help="run: train and score rows in miniature; table: the results; neither: the paper's table",
    )
    v.add_argument(
        "rows",
        nargs="*",
        metavar="ROW",
        default=[],
        help="for run: base, A1 ... E1, big, one of the claims, or a group: table, claims, all",
    )
    v.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="seeds 1 to N of each row (default 3)"
    )
    v.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="runs at a time (default 1, with one thread each)",
    )
    v.add_argument(
        "--steps", type=int, metavar="N", help="steps that stand for 100,000 (default 1,000)"
    )
    v.add_argument(
        "--corpus", default="tatoeba-en-de", metavar="NAME", help="default tatoeba-en-de"
    )
    v.add_argument(
        "--out",
        default="runs/variations",
        metavar="DIR",
        help="where runs are kept, to go on with later",
    )
    v.add_argument("--result", metavar="FILE", help="for table: also write a result file (JSON)")
    v.add_argument(
        "--vocab-size",
        type=int,
        metavar="V",
        help="tokens of the vocabulary (default: for run 2,000, for "
        "the paper's table what its printed numbers imply)",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    args = parser().parse_args(arguments)
    try:
        args.run(args)
        sys.stdout.flush()
    except (
        BrokenPipeError
    ):  # the reader has gone, as with `| head`: nothing to say, and nothing more to write
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    except (ConfigError, OSError) as error:
        missing = isinstance(error, OSError) and error.filename is not None
        say(f"error: {error.filename}: {error.strerror}" if missing else f"error: {error}")  # type: ignore[union-attr]
        return 2
    return 0
