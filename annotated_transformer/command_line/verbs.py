"""What each verb of the command line does: prepare, train, average, translate, evaluate, ...

A verb takes the parsed arguments, prints its result on standard output and the rest on standard
error. It imports what it needs when it runs, so that `--help` needs no torch.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from argparse import Namespace
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from annotated_transformer.command_line import train_verb as train_arguments
from annotated_transformer.command_line.encode_verb import encode_corpus
from annotated_transformer.command_line.new_verb import new as new
from annotated_transformer.config import DecodeConfig
from annotated_transformer.errors import PROGRAM, require, say
from annotated_transformer.files import shown

if TYPE_CHECKING:
    from annotated_transformer.training.distributed.processes import Processes
    from annotated_transformer.translation.translator import Translator


def prepare(args: Namespace) -> None:
    """Fetch and check a corpus, or write it as shards; print what it is."""
    from annotated_transformer.text import corpus

    if args.list:
        print("\n".join(corpus.names()))
        return
    if args.encode:
        print(json.dumps(encode_corpus(args)))
        return
    require(not (args.out or args.train), "--out and --train go with --encode")
    name = args.corpus or corpus.names()[0]
    summary = corpus.prepare(name, args.data_dir)
    print(corpus.card(name))
    print(json.dumps(summary))


def train(args: Namespace) -> None:
    """Train a new run, or go on with one, and print what came out as one line of JSON."""
    device = device_of(args.device)
    with train_arguments.training_processes(args, device) as processes:
        _train(args, processes, processes.device(device))


def _train(args: Namespace, processes: Processes, device: str) -> None:
    out = Path(args.out)
    model_config, train_config, name = train_arguments.parallel_settings(args, out, processes)
    train_pairs, valid_pairs, name = train_arguments.shared_pairs(args, name, processes)

    from annotated_transformer.checkpoint.directory import state_files
    from annotated_transformer.training.loop import train as run

    tokenizer = train_arguments.shared_tokenizer(args, out, model_config, train_pairs, processes)
    began = time.perf_counter()
    try:
        model = run(
            model_config,
            train_config,
            tokenizer,
            train_pairs,
            valid_pairs,
            out,
            device=device,
            resume=args.resume,
            init=args.init,
            progress=not args.quiet,
            tensorboard=args.tensorboard,
            corpus=name,
            processes=processes,
        )
    except KeyboardInterrupt:
        if processes.is_first and state_files(out):
            say(f"interrupted; {out} is saved, and --resume goes on from there")
        raise
    if not processes.is_first:
        return
    measured: dict[str, Any] = {}
    for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines():
        measured.update(json.loads(line))
    measured.update(
        out=str(out),
        parameters=sum(p.numel() for p in model.parameters()),
        seconds=round(time.perf_counter() - began, 1),
    )
    print(json.dumps(measured))


def average(args: Namespace) -> None:
    """Average the last checkpoints of one run or several into a new directory."""
    from annotated_transformer.checkpoint.averaging import average_checkpoints

    print(shown(average_checkpoints(args.directory, args.last, args.out, args.others)))


def translate(args: Namespace) -> None:
    """Translate standard input, a line at a time, to standard output."""
    from annotated_transformer.text.parallel_text import decoded_lines

    search = _search(args)
    window_fits = args.window is None or args.window >= 1
    require(window_fits, f"--window must be at least 1, got {args.window}")
    _check_output(args.output, args.input)
    with ExitStack() as files:
        source = files.enter_context(open(args.input, "rb")) if args.input else sys.stdin.buffer
        translator = _translator(args, args.max_source)
        target = files.enter_context(open(args.output, "wb")) if args.output else sys.stdout.buffer
        window = args.window or (1 if source.isatty() else 512)
        sentences = decoded_lines(source, args.input or "standard input")
        stream = translator.n_best_stream(sentences, window, search)
        for number, found in enumerate(stream, 1):
            if search.n_best == 1:
                lines = [f"{found[0].text}\n"]
            else:
                lines = [f"{number}\t{t.score:.4f}\t{t.text}\n" for t in found]
            target.write("".join(lines).encode())
            target.flush()


def _check_output(output: str | None, *inputs: str | None) -> None:
    """Raise ConfigError if a file to write is one to read, or its directory is not there."""
    if not output:
        return
    path = Path(output)
    for name in filter(None, inputs):
        same = path.exists() and Path(name).exists() and path.samefile(name)
        require(not same, f"--output would overwrite the input {name}")
    require(path.parent.is_dir(), f"--output needs a directory that exists, got {path}")


def evaluate(args: Namespace) -> None:
    """Translate a split or two files; print BLEU with its signature, and perplexity."""
    from tqdm import tqdm

    from annotated_transformer.checkpoint.directory import read_config
    from annotated_transformer.text import corpus
    from annotated_transformer.translation import evaluation

    search = _search(args)
    _check_output(args.output, args.source, args.reference)
    name = args.corpus or read_config(args.directory).get("corpus", "")
    if args.source or args.reference:
        require(bool(args.source and args.reference), "--source and --reference go together")
        require(not args.corpus, "give --corpus, or --source and --reference, not both")
        pairs = corpus.load_files(args.source, args.reference)
    else:
        require(
            bool(args.corpus) or name in corpus.names(),
            "there is nothing to translate: give --corpus NAME, or --source and --reference",
        )
        pairs = corpus.load(name, args.split, args.data_dir)
    translator = _translator(args)
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    tokenizer = translator.tokenizer
    _, encoded = evaluation.scorable(translator.model.config, tokenizer, pairs)
    require(bool(encoded) or not pairs, "no pair is short enough for this model's perplexity")
    stream = translator.translate_stream(sources, search=search)
    bar = tqdm(stream, total=len(pairs), unit="line", file=sys.stderr, disable=args.quiet)
    hypotheses = list(bar)
    if args.output:
        text = "".join(f"{line}\n" for line in hypotheses)
        Path(args.output).write_text(text, encoding="utf-8", newline="\n")
    lines = hypotheses, references
    scores = {"BLEU": evaluation.bleu(*lines), "chrF2": evaluation.chrf(*lines)}
    brevity, ppl = (
        evaluation.brevity_penalty(*lines),
        evaluation.perplexity(translator.model, encoded),
    )
    if args.json:
        named = {name: score._asdict() for name, score in scores.items()}
        finite = ppl if math.isfinite(ppl) else None  # JSON knows no infinity
        settings = {"sentences": len(pairs), "int8": args.int8, "dtype": translator.dtype}
        searched = {name: value for name, value in search.to_dict().items() if name != "n_best"}
        found = {**named, "brevity_penalty": brevity, "perplexity": finite}
        print(json.dumps({**found, **settings, **searched}))
        return
    for label, score in scores.items():
        print(f"{label:10} {score.score:6.2f}  {score.signature}")
    print(f"brevity    {brevity:6.3f}  penalty in BLEU of outputs shorter than the references")
    vocabulary = f"per token of this vocabulary of {tokenizer.vocab_size:,}"
    in_float32 = ", in float32" if translator.dtype != "float32" else ""
    print(f"perplexity {ppl:6.2f}  {vocabulary}, {len(pairs):,} sentences{in_float32}")


def inspect(args: Namespace) -> None:
    """Print what each layer's attention does, and what is lost without it."""
    from annotated_transformer.checkpoint.directory import load_model, read_config
    from annotated_transformer.looking.report import as_table, attention_report
    from annotated_transformer.text import corpus

    name = args.corpus or read_config(args.directory).get("corpus", "")
    require(
        bool(args.corpus) or name in corpus.names(),
        "there is nothing to look at: give --corpus NAME",
    )
    model, tokenizer = load_model(args.directory, device_of(args.device))
    pairs = corpus.load(name, args.split, args.data_dir)[: args.sentences]
    search = {"beam_size": args.beam_size, "alpha": args.alpha}
    report = attention_report(model, tokenizer, pairs, **search, scores_bleu=not args.no_bleu)
    print(json.dumps(report) if args.json else as_table(report))


def variations(args: Namespace) -> None:
    """Table 3 as printed, and the vocabulary that its parameters imply."""
    from annotated_transformer.tables.table_3 import TABLE_3, table, vocabulary_interval

    print(table(vocab_size=args.vocab_size))
    for rows, label in ((TABLE_3[:-1], "base to (E)"), (TABLE_3[-1:], "big")):
        low, high = vocabulary_interval(rows)
        print(f"{label}: the printed parameters mean a vocabulary of {low:,} to {high:,} tokens")


def export(args: Namespace) -> None:
    """Write a checkpoint's weights in another type, with a card that says what they are."""
    from annotated_transformer.interop.export import export_weights

    print(shown(export_weights(args.directory, args.out, args.dtype, args.notes)))


def export_page(args: Namespace) -> None:
    """Write a checkpoint's translator as a page that needs no server."""
    from annotated_transformer.page.writing import write_page

    print(shown(write_page(args.directory, args.out, book=args.book)))


def device_of(name: str) -> str:
    """The device to use. Raises ConfigError when a GPU is asked for and there is none."""
    import torch

    available = torch.cuda.is_available()
    is_there = name != "cuda" or available
    require(is_there, "--device cuda was asked for, but PyTorch sees no GPU here")
    return ("cuda" if available else "cpu") if name == "auto" else name


def _search(args: Namespace) -> DecodeConfig:
    names = [field.name for field in fields(DecodeConfig) if hasattr(args, field.name)]
    return DecodeConfig(**{name: getattr(args, name) for name in names})


def _translator(args: Namespace, max_source: int = 1024) -> Translator:
    from annotated_transformer.translation.translator import Translator

    logging.basicConfig(format=f"{PROGRAM}: warning: %(message)s", level=logging.WARNING)
    device = "cpu" if args.int8 and args.device == "auto" else device_of(args.device)
    return Translator.from_checkpoint(
        args.directory, device, max_source, args.int8, dtype=args.dtype
    )
