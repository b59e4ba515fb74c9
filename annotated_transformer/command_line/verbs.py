"""What each verb of the command line does: prepare, train, average, translate, evaluate, ...

A verb takes the parsed arguments, prints its result on standard output and the rest on standard
error. It imports what it needs when it runs, so that `--help` needs no torch.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import fields
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from annotated_transformer.command_line import train_verb
from annotated_transformer.command_line.options import given, require_none
from annotated_transformer.config import DecodeConfig
from annotated_transformer.errors import PROGRAM, ConfigError, require, say
from annotated_transformer.files import require_writable

if TYPE_CHECKING:
    from annotated_transformer.data.parallel_text import Pair
    from annotated_transformer.decoding.translator import Translator

LEARNING = ("model_type", "sample")
"""The options that say how a vocabulary is learned."""
ENCODING = ("out", "train", "split", "tokenizer", "vocab_size", *LEARNING, "jobs")
"""All options that go with --encode alone."""
EXPORTS = ("argos", "ctranslate2", "huggingface", "onnx")
"""Other programs' forms: modules of `extras.formats`, each with an `export_checkpoint`."""


def run_prepare(args: Namespace) -> None:
    """Fetch and check a corpus, or write it as shards; print what it is."""
    from annotated_transformer.data import corpus

    if args.encode:
        require(bool(args.out), "--encode needs --out DIR, the directory of shards to write")
        if args.train:
            require_none(args, ("split", "data_dir"), "--train names files")
            require(not args.corpus, "give a corpus, or two files with --train, not both")
        if args.tokenizer:
            require_none(args, LEARNING, "--tokenizer names a vocabulary")
        from annotated_transformer.extras.shards.encoding import Encoding, encode_corpus

        encoding = Encoding(**{name: vars(args)[name] for name in Encoding._fields})
        print(json.dumps(encode_corpus(encoding)))
        return
    require_none(args, ENCODING, "give --encode as well")
    if args.list:
        require(not args.corpus, f"--list prints all names: leave out {args.corpus}")
        print("\n".join(corpus.names()))
        return
    name = args.corpus or corpus.names()[0]
    summary = corpus.prepare(name, args.data_dir)
    print(corpus.card(name))
    print(json.dumps(summary))


def run_train(args: Namespace) -> None:
    """Train a new run, or go on with one, and print its last figures as one line of JSON."""
    train_verb.require_options(args)
    device = device_of(args.device)
    with train_verb.training_processes(args, device) as processes:
        train_verb.train_in(processes, args, device)


def run_average(args: Namespace) -> None:
    """Average the last checkpoints of one run or several into a new directory."""
    from annotated_transformer.checkpoint.averaging import average_checkpoints

    print(average_checkpoints(args.directory, args.last, args.out, args.others))


def run_translate(args: Namespace) -> None:
    """Translate standard input, a line at a time, to standard output."""
    from annotated_transformer.data.parallel_text import decoded_lines

    search = _search(args)
    if args.output != "-":
        _require_output(args.output, args.input)
    with ExitStack() as files:
        source: BinaryIO = sys.stdin.buffer
        target: BinaryIO | None = sys.stdout.buffer if args.output == "-" else None
        if args.input != "-":
            source = files.enter_context(open(args.input, "rb"))
        translator = _translator(args, args.max_source)
        window = args.window or (1 if source.isatty() else 512)
        # One bad byte in a long stream costs a character, not the lines behind it, and an end that
        # is damaged does not cost the lines before it.
        name = "standard input" if args.input == "-" else args.input
        errors: list[ConfigError] = []
        sentences = _until_error(decoded_lines(source, name, strict=False), errors)
        if args.for_visitors:
            from annotated_transformer.extras.visitors.typed_lines import for_visitors

            stream: Iterator[Any] = for_visitors(translator).n_best_stream(
                sentences, window, search
            )
        else:
            stream = translator.n_best_stream(sentences, window, search)
        for number, translations in enumerate(stream, 1):
            if search.n_best == 1:
                lines = [f"{translations[0].text}\n"]
            else:
                lines = [f"{number}\t{t.score:.4f}\t{t.text}\n" for t in translations]
            # Opened now that there is a line to write: a refused input costs no old output.
            target = target or files.enter_context(open(args.output, "wb"))
            target.write("".join(lines).encode())
            target.flush()
        for error in errors:
            raise error
        if target is None:
            Path(args.output).write_bytes(b"")


def _until_error(lines: Iterator[str], errors: list[ConfigError]) -> Iterator[str]:
    """Lines up to the first ConfigError, which waits in `errors` until they have been answered."""
    try:
        yield from lines
    except ConfigError as error:
        errors.append(error)


def _require_output(output: str, *inputs: str) -> None:
    """Raise ConfigError if a file cannot be written, or is one to read."""
    path = Path(output)
    for name in inputs:
        same = path.exists() and Path(name).exists() and path.samefile(name)
        require(not same, f"--output would overwrite the input {name}")
    require(path.parent.is_dir(), f"--output needs a directory that exists, got {path}")
    require_writable(path)


def run_evaluate(args: Namespace) -> None:
    """Translate a split or two files; print BLEU with its signature, and perplexity."""
    from tqdm import tqdm

    from annotated_transformer.decoding import evaluation

    search = _search(args)
    if args.output:
        require(args.output != "-", "--output must be a file: the scores go to standard output")
        _require_output(args.output, *filter(None, (args.source, args.reference)))
    lines, pairs = _test_pairs(args)
    translator = _translator(args)
    if search.back:
        lines, pairs = ([(y, x) for x, y in rows] for rows in (lines, pairs))
    config = translator.model.config
    _, encoded = evaluation.scorable(config, translator.tokenizer, pairs, search.back)
    require(bool(encoded) or not pairs, "no pair is short enough for this model's perplexity")
    stream = translator.translate_stream((source for source, _ in lines), search=search)
    bar = tqdm(stream, total=len(lines), unit="line", file=sys.stderr, disable=args.quiet)
    outputs = list(bar)
    if args.output:
        text = "".join(f"{line}\n" for line in outputs)
        Path(args.output).write_text(text, encoding="utf-8", newline="\n")
    # A pair with a blank side has its line in --output, and no part in the scores.
    scored = set(pairs)
    hypotheses = [line for line, pair in zip(outputs, lines, strict=True) if pair in scored]
    references = [target for _, target in pairs]
    scores = evaluation.scores(hypotheses, references)
    brevity = evaluation.brevity_penalty(hypotheses, references)
    ppl = evaluation.perplexity(translator.model, encoded)
    if args.json:
        record = {name: score._asdict() for name, score in scores.items()} | {
            "brevity_penalty": brevity,
            "perplexity": ppl if math.isfinite(ppl) else None,  # JSON knows no infinity
            "perplexity_sentences": len(encoded),
            "sentences": len(pairs),
            "int8": args.int8,
            "dtype": translator.dtype,
            "engine": args.engine or "annotated-transformer",
        }
        search_settings = {name: n for name, n in search.to_dict().items() if name != "n_best"}
        print(json.dumps(record | search_settings))
        return
    for label, score in scores.items():
        print(f"{label:10} {score.score:6.2f}  {score.signature}")
    print(f"brevity    {brevity:6.3f}  penalty in BLEU of outputs shorter than the references")
    vocabulary = f"per token of this vocabulary of {translator.tokenizer.vocab_size:,}"
    in_float32 = ", in float32" if translator.dtype != "float32" else ""
    print(f"perplexity {ppl:6.2f}  {vocabulary}, {len(encoded):,} sentences{in_float32}")


def _test_pairs(args: Namespace) -> tuple[list[Pair], list[Pair]]:
    """What to measure on: all lines, as pairs, and those with a sentence on both sides.

    They come from --source and --reference, or from --corpus and --split: by default from the test
    split of the model's own corpus.
    """
    from annotated_transformer.checkpoint.directory import read_config
    from annotated_transformer.data import corpus, parallel_text

    files = args.source, args.reference
    if any(files):
        require(all(files), "--source and --reference go together: a file, and its translations")
        require_none(args, ("corpus", "split", "data_dir"), "--source and --reference name files")
        sources, targets = map(parallel_text.read_lines, files)
        pairs = list(parallel_text.parallel(sources, targets, *files))
        return list(zip(sources, targets, strict=True)), pairs
    name = args.corpus or read_config(args.directory).get("corpus", "")
    is_known = bool(args.corpus) or name in corpus.names()
    advice = "give --source FILE and --reference FILE, or --corpus NAME"
    require(is_known, f"{args.directory} names no corpus: {advice}")
    pairs = corpus.load(name, args.split or "test", args.data_dir)
    return pairs, pairs


def run_inspect(args: Namespace) -> None:
    """Print what each layer's attention does, and what is lost without it."""
    from annotated_transformer.checkpoint.directory import load_model
    from annotated_transformer.extras.attention_views.report import as_table, attention_report

    options = "beam_size", "alpha"
    if args.no_bleu:
        require_none(args, options, "--no-bleu translates nothing")
    search = {name: vars(args)[name] for name in options if vars(args)[name] is not None}
    _, pairs = _test_pairs(args)
    model, tokenizer = load_model(args.directory, device_of(args.device))
    scores_bleu = not args.no_bleu
    first = pairs[: args.sentences]
    report = attention_report(model, tokenizer, first, **search, scores_bleu=scores_bleu)
    print(json.dumps(report) if args.json else as_table(report))


def run_export(args: Namespace) -> None:
    """Write a checkpoint to give away, in our own form or in another program's."""
    export = import_module(f"annotated_transformer.extras.formats.{args.to or 'own_form'}")
    options = {name: vars(args)[name] for name in ("dtype", "notes") if given(args, [name])}
    unused = options.keys() - signature(export.export_checkpoint).parameters
    require_none(args, sorted(unused), f"an export to {args.to} does not take it")
    print(export.export_checkpoint(args.directory, args.out, **options))


def run_import(args: Namespace) -> None:
    """Write another program's model as a checkpoint."""
    from annotated_transformer.extras.formats.importing import import_checkpoint

    print(import_checkpoint(args.directory, args.out))


def run_export_page(args: Namespace) -> None:
    """Write a checkpoint's translator as a page that needs no server."""
    from annotated_transformer.checkpoint.directory import read_config
    from annotated_transformer.extras.page.writing import write_page
    from annotated_transformer.extras.visitors.doubt import Doubt

    Doubt.of(read_config(args.directory))  # refused here, where the page would not load with it
    print(write_page(args.directory, args.out, book=args.book or ""))


def run_new(args: Namespace) -> None:
    """Make a translator, a report and a page of a file of pairs, and print where they are."""
    from functools import partial

    from annotated_transformer.checkpoint.directory import state_files
    from annotated_transformer.extras.from_pairs.making import make
    from annotated_transformer.extras.page.writing import write_page
    from annotated_transformer.extras.visitors.augmentation import Augmentation

    page = partial(write_page, book=args.book or "")
    options = {name: vars(args)[name] for name in ("half", "test", "steps", "time")}
    try:
        progress = not args.quiet
        paths, score = make(args.pairs, args.out, page, Augmentation, progress=progress, **options)
    except KeyboardInterrupt:
        if state_files(Path(args.out) / "run"):
            say(f"interrupted; {args.out} is saved, and the same command goes on from there")
        raise
    print(*paths, score, sep="\n")
    say(f"open {paths[0]} in a browser")


def device_of(name: str) -> str:
    """The device to use. Raises ConfigError when a GPU is asked for and there is none."""
    import torch

    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    is_there = available.get(name, True)
    require(is_there, f"--device {name} was asked for, but PyTorch sees no such GPU here")
    return ("cuda" if available["cuda"] else "cpu") if name == "auto" else name


def _search(args: Namespace) -> DecodeConfig:
    # Of the verbs that search, translate alone has --n-best; the others keep the default.
    names = [field.name for field in fields(DecodeConfig) if hasattr(args, field.name)]
    return DecodeConfig(**{name: getattr(args, name) for name in names})


def _translator(args: Namespace, max_source: int = 1024) -> Translator:
    from annotated_transformer.checkpoint.directory import load_model, read_config
    from annotated_transformer.decoding.translator import Translator

    logging.basicConfig(format=f"{PROGRAM}: warning: %(message)s", level=logging.WARNING)
    device = "cpu" if args.int8 and args.device == "auto" else device_of(args.device)
    if args.engine:
        from annotated_transformer.extras.formats.ctranslate2 import CTranslate2Engine

        model, tokenizer = load_model(args.directory)
        dtype = "int8" if args.int8 else args.dtype or "float32"
        engine = CTranslate2Engine(model, tokenizer, dtype, device)
        translator = Translator(model, tokenizer, max_source=max_source, engine=engine)
        translator.dtype = dtype
        translator.about = read_config(args.directory)
        return translator
    return Translator.from_checkpoint(
        args.directory, device, max_source, args.int8, dtype=args.dtype
    )
