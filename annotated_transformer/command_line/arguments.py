"""Which arguments each verb of the command line takes: their names, defaults and help."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from annotated_transformer.command_line import verbs as commands
from annotated_transformer.command_line.options import positive_int
from annotated_transformer.config import PRESETS, DecodeConfig, ModelConfig, TrainConfig
from annotated_transformer.data.parallel_text import VOCABULARY_SAMPLE
from annotated_transformer.errors import PROGRAM, VERSION, shown
from annotated_transformer.settings import did_you_mean

CHECKPOINT = "checkpoint directory, as train, average or export write it"
Add = Callable[..., object]


class _Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong, and what was probably meant."""

    verbs: dict[str, _Parser] = {}
    words: Sequence[str] = ()

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Of the whole command line, which begins with a verb: as argparse does.

        Only the verb's parser knows its options, so it speaks about what is left over.
        """
        words = sys.argv[1:] if args is None else [*args]
        verb = self.verbs.get(words[0] if words else "")
        if verb:
            verb.words = words
        elif not {*words[:1]} & {"-h", "--help", "--version"}:
            self.error(_without_verb(words, self.verbs))
        chosen, rest = self.parse_known_args(words, namespace)
        if verb and rest:
            verb.error(_left_over(words[0], dict(vars(chosen)), rest))
        return chosen

    def error(self, message: str) -> NoReturn:
        options = [*self._option_string_actions]
        settings = (ModelConfig, TrainConfig) if "--set" in options else ()
        known = {name: f"--set {name}=VALUE" for kind in settings for name in kind.__annotations__}
        alone = [action.dest for action in self._actions if not action.option_strings]
        known |= {name: f"{name.upper()}, without an option" for name in alone}
        known |= {name[2:].replace("-", "_"): name for name in options if name != "-h"}
        for word in reversed(self.words):
            option = word.partition("=")[0]
            is_option = re.fullmatch(r"--?[A-Za-z][\w-]*", option)
            if is_option and not any(name.startswith(option) for name in options):
                message = f"there is no option {option}{did_you_mean(option.strip('-'), known)}"
        if message.endswith("--train: expected 2 arguments"):
            message += ", source and target; one file with a tab in each line is for new"
        self.exit(2, f"{PROGRAM}: error: {message} (see {self.prog} --help)\n")


def _without_verb(words: Sequence[str], verbs: Iterable[str]) -> str:
    """What to say of a command line that begins with no verb."""
    word = shown(words[0]) if words else ""
    known = {name: name for name in verbs} | {"help": "--help", "version": "--version"}
    hint = did_you_mean(word, known)
    if not hint and (inside := [word for word in words if word in verbs]):
        hint = f": the verb comes first, {PROGRAM} {inside[0]} {word}"
    hint = hint or f": there are {', '.join(verbs)}"
    return f"there is no verb {word}{hint}" if word else f"give a verb{hint}"


def _left_over(verb: str, chosen: dict[str, Any], rest: list[str]) -> str:
    """What to say of words that no option takes."""
    first = chosen.get("pairs") or chosen.get("directory")
    text = shown(" ".join(rest))
    pipe = f"pipe it: echo '{text}' | {PROGRAM} translate {first}"
    measured = f"files go with options, as in {verb} {first} --source FILE --reference FILE"
    cures = {
        "new": f"of two parallel files, train makes a model: train --train {first} {rest[0]}",
        "train": "files go with --train SOURCE TARGET, each setting with --set NAME=VALUE",
        "translate": f"give --input {text}" if Path(rest[0]).is_file() else pipe,
        "prepare": "it takes one corpus; --list prints all",
        **dict.fromkeys(("evaluate", "inspect"), measured),
    }
    cure = cures.get(verb, f"what is written needs a name: --out {rest[0]}")
    if first and Path(rest[0]).is_dir() and not Path(first).is_dir():
        cure = f"the directory comes first: {verb} {rest[0]}"
    return f"{verb} cannot use {text}: {cure}"


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; `run` of what it finds is the verb."""
    top = _Parser(
        prog=PROGRAM,
        description="The Transformer: prepare a corpus, train a model, translate with it.",
        epilog=f"{PROGRAM} VERB --help tells more.",
    )
    top.add_argument("--version", action="version", version=f"{PROGRAM} {VERSION}")
    verbs = top.add_subparsers(required=True, metavar="VERB")
    top.verbs = verbs.choices
    learning = (_prepare, _train, _average, _translate, _evaluate, _inspect)
    for add in (*learning, _export, _import, _export_page, _new):
        add(verbs)
    return top


def _verb(
    verbs: Any, run: Callable[..., None], summary: str, example: str, directory: str = ""
) -> Add:
    """A new verb: the method that adds an argument to it."""
    name = run.__name__.removeprefix("run_").replace("_", "-")
    verb: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example: {PROGRAM} {name} {example}",
    )
    verb.set_defaults(run=run)
    if directory:
        verb.add_argument("directory", help=directory)
    verb.add_argument("--quiet", action="store_true", help="no progress bar")
    return verb.add_argument


def _prepare(verbs: Any) -> None:
    summary = "fetch and verify a corpus and print its card, or encode it into shards"
    add = _verb(verbs, commands.run_prepare, summary, "multi30k-en-de")
    add("corpus", nargs="?", help="default: tatoeba-en-de")
    add("--list", action="store_true", help="print the names of all corpora")
    _add_data_directory(add)
    what = "to encode a corpus once, as shards that train --shards reads"
    add = verbs.choices["prepare"].add_argument_group(what).add_argument
    files: dict[str, Any] = {"nargs": 2, "metavar": ("SOURCE", "TARGET")}
    add("--encode", action="store_true", help="write the token ids of a corpus to --out")
    add("--out", metavar="DIR", help="directory of shards; the same command goes on after a kill")
    add("--train", **files, help="one's own parallel files, plain or .gz, instead of a corpus")
    add("--split", choices=("train", "valid", "test"), help="of the corpus (default train)")
    add("--tokenizer", metavar="PATH", help="a tokenizer.model, or a directory that has one")
    add("--vocab-size", type=int, metavar="V", help="or learn one of V tokens (default 8000)")
    add("--model-type", choices=("bpe", "unigram"), help="its kind (default bpe)")
    what = f"learn it from at most N pairs, drawn at random (default {VOCABULARY_SAMPLE:,})"
    add("--sample", type=positive_int, metavar="N", help=what)
    add("--jobs", type=positive_int, metavar="N", help="threads (default: one for each core)")


def _train(verbs: Any) -> None:
    example = "--corpus multi30k-en-de --preset small --out runs/de --set train_steps=2000"
    add = _verb(verbs, commands.run_train, "train a model", example)
    files: dict[str, Any] = {"nargs": 2, "metavar": ("SOURCE", "TARGET")}
    add("--out", required=True, metavar="DIR", help="checkpoint directory to write")
    add("--corpus", metavar="NAME", help="a corpus that prepare knows")
    add("--train", **files, help="one's own parallel files, plain or .gz")
    add("--valid", **files, help="the same, to validate on")
    add("--shards", metavar="DIR", help="what prepare --encode wrote, for more than memory holds")
    add("--preset", choices=PRESETS, help="the model's size (default tiny)")
    what = "any setting of ModelConfig or TrainConfig; may be repeated"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=what)
    what = "tokens of the shared vocabulary (default 8000)"
    add("--vocab-size", type=int, metavar="V", help=what)
    add("--model-type", choices=("bpe", "unigram"), help="kind of vocabulary (default bpe)")
    add("--seed", type=int, help="the same as --set seed=N")
    add("--resume", action="store_true", help="go on with the run in --out")
    what = "start from the weights and vocabulary of a checkpoint (fine-tuning)"
    add("--init", metavar="DIR", help=what)
    add("--tensorboard", metavar="DIR", help="also log there, for TensorBoard")
    _add_data_directory(add)
    _add_device(add, "mps")


def _average(verbs: Any) -> None:
    summary = "average a run's last checkpoints into a new directory"
    directory = "a run's checkpoint directory"
    add = _verb(verbs, commands.run_average, summary, "runs/de --last 5", directory)
    add("others", nargs="*", help="runs that began with the same weights, to count as well")
    add("--last", type=int, default=5, help="how many of each (default 5)")
    add("--out", metavar="DIR", help="default: the run's name with -averaged")


def _translate(verbs: Any) -> None:
    summary = "translate standard input, a line for each line"
    example = "runs/de < input.en > output.de"
    add = _verb(verbs, commands.run_translate, summary, example, CHECKPOINT)
    add("--input", metavar="FILE", default="-", help="read this file instead, plain or .gz")
    add("--output", metavar="FILE", default="-", help="write this file instead")
    add("--n-best", type=int, default=1, help="more than 1: lines of number, score, text, by tabs")
    what = "cut longer lines after N tokens, with a warning (default 1024)"
    add("--max-source", type=int, default=1024, metavar="N", help=what)
    what = "read lines as people type them: capitals, numbers, and a wider beam for lost words"
    add("--for-visitors", action="store_true", help=what)
    what = "lines to hold at a time (default 512; 1 at a terminal)"
    add("--window", type=positive_int, metavar="N", help=what)
    _add_device(add, "mps")
    _add_decoding(add)


def _evaluate(verbs: Any) -> None:
    summary = "translate and score: BLEU, chrF, perplexity"
    example = "runs/de --corpus multi30k-en-de --split test"
    add = _verb(verbs, commands.run_evaluate, summary, example, CHECKPOINT)
    _add_test_pairs(add)
    add("--output", metavar="FILE", help="also write the translations")
    _add_device(add, "mps")
    _add_decoding(add)


def _inspect(verbs: Any) -> None:
    summary = "is attention at work? entropy of each layer, and what is lost without it"
    example = "runs/de --corpus multi30k-en-de"
    add = _verb(verbs, commands.run_inspect, summary, example, CHECKPOINT)
    _add_test_pairs(add)
    add("--sentences", type=positive_int, metavar="N", help="the first N pairs alone (default all)")
    add("--beam-size", type=int, help="of the search for BLEU (default 1)")
    add("--alpha", type=float, help="its length penalty (default 0.6)")
    add("--no-bleu", action="store_true", help="measure the loss alone, which is quicker")
    _add_device(add)  # MPS has no float64, in which it counts


def _export(verbs: Any) -> None:
    summary = "write the weights alone, with a card, to give away, or a model for another program"
    example = "runs/de-averaged --out model --dtype float16"
    add = _verb(verbs, commands.run_export, summary, example, CHECKPOINT)
    add("--out", required=True, metavar="DIR", help="directory to write")
    add("--to", choices=commands.EXPORTS, help="the program that reads it (default: this one)")
    add("--dtype", choices=("float32", "float16"), help="of the weights (default float32)")
    add("--notes", metavar="TEXT", help="a paragraph for the card, such as the scores")


def _import(verbs: Any) -> None:
    summary = "write another program's model as a checkpoint"
    directory = "what export --to huggingface wrote, or a Marian or FSMT model of Hugging Face"
    add = _verb(verbs, commands.run_import, summary, "opus-mt-en-de --out runs/opus", directory)
    add("--out", required=True, metavar="DIR", help="directory to write")


def _export_page(verbs: Any) -> None:
    summary = "write a page that translates, for any web server or none"
    add = _verb(verbs, commands.run_export_page, summary, "book/model --out page", CHECKPOINT)
    add("--out", required=True, metavar="DIR", help="directory to write")
    add("--book", metavar="URL", help="link views to the chapters here")


def _new(verbs: Any) -> None:
    summary = "make a translator, a report and a page of a file of pairs; goes on after a stop"
    add = _verb(verbs, commands.run_new, summary, "mine.tsv --out mine")
    add("pairs", help="UTF-8, plain or .gz: on each line a source, a tab, a target")
    add("--out", required=True, metavar="DIR", help="directory to write")
    add("--book", metavar="URL", help="link to the chapters here")
    add("--half", action="store_true", help="train on every other pair as well, to compare")
    add("--test", metavar="FILE", help="pairs to score on (default: 2%% of the pairs, 10 to 500)")
    add("--steps", type=positive_int, metavar="N", help="train N steps, not those of the plan")
    add("--time", type=positive_int, metavar="MINUTES", help="at most the steps that fit into it")


def _add_test_pairs(add: Add) -> None:
    """The options of every verb that measures: on what, and for whom it prints."""
    add("--corpus", metavar="NAME", help="default: the corpus it was trained on")
    add("--split", choices=("train", "valid", "test"), help="default test")
    add("--source", metavar="FILE", help="your own file to translate, plain or .gz")
    add("--reference", metavar="FILE", help="its translations")
    _add_data_directory(add)
    add("--json", action="store_true", help="print one JSON object")


def _add_data_directory(add: Add) -> None:
    add("--data-dir", metavar="DIR", help="search here for corpora before any download")


def _add_device(add: Add, *more: str) -> None:
    what = "default auto: a GPU of NVIDIA or AMD where there is one"
    add("--device", choices=("auto", "cpu", "cuda", *more), default="auto", help=what)


def _add_decoding(add: Add) -> None:
    what = "linear layers in 8 bits, on the CPU: faster there, almost the same translations"
    add("--int8", action="store_true", help=what)
    what = "what the search computes in (default float32 on a CPU, float16 on a GPU)"
    add("--dtype", choices=("float32", "float16", "bfloat16"), help=what)
    what = "search with this extra, faster for small models: almost the same translations"
    add("--engine", choices=("ctranslate2",), help=what)
    default = DecodeConfig()
    add("--beam-size", type=int, default=default.beam_size, help="1 is greedy search (default 4)")
    add("--alpha", type=float, default=default.alpha, help="length penalty (default 0.6)")
    what = "most tokens beyond the source's length (default 50)"
    add("--max-extra", type=int, default=default.max_extra, help=what)
    add("--back", action="store_true", help="with a model of both ways: into the first language")
