"""The command line says what it did on standard output, and what the user got wrong in one line."""

import gzip
import io
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest
import torch
from safetensors.torch import load_file

from annotated_transformer import __version__
from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.checkpoint.weights import save_weights
from annotated_transformer.command_line import entry_point as cli, train_verb, verbs as commands
from annotated_transformer.command_line.train_verb import assigned_settings
from annotated_transformer.data import corpus
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding import evaluation, translator
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import ConfigError, Terminated
from annotated_transformer.training.loop import train
from toys import small_checkpoint, text_pairs, toy_run_config, toy_tokenizer

VERBS = [
    "prepare", "train", "average", "translate", "evaluate", "inspect", "export", "import",
    "export-page", "new",
]  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """An untrained model as a checkpoint directory."""
    path = tmp_path_factory.mktemp("cli") / "model"
    model = small_checkpoint(path)
    checkpoint.write_directory(path, model.config, toy_tokenizer(), {"corpus": "reverse"})
    return path


@pytest.fixture
def run_directory(directory, tmp_path):
    """A directory that looks like a training run's."""
    run = shutil.copytree(directory, tmp_path / "run")
    (run / "training.safetensors").write_bytes(b"precious")
    return run


@pytest.fixture
def files(tmp_path):
    """Two parallel files."""
    sources, targets = zip(*text_pairs(4, 5), strict=True)
    for name, lines in (("source", sources), ("reference", targets)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path / "source", tmp_path / "reference"


def run(capsys, *arguments):
    """Exit status, standard output, standard error."""
    try:
        status = cli.main([str(argument) for argument in arguments])
    except SystemExit as leaving:
        status = leaving.code
    return status, *capsys.readouterr()


def evaluate(directory, files, *more):
    """Arguments that score a model on two files."""
    source, reference = files
    return ["evaluate", directory, "--source", source, "--reference", reference, "--quiet", *more]


def refused(capsys, *arguments):
    """The one line that a mistake gets."""
    status, out, err = run(capsys, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("annotated-transformer: error: ")
    return err


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_with_an_example(capsys, verb):
    """Which is understood."""
    status, out, _ = run(capsys, verb, "--help")
    assert status == 0
    example = " ".join(out.split()).rpartition("example: annotated-transformer ")[2]
    assert example.startswith(f"{verb} ")
    name = "run_" + verb.replace("-", "_")
    arguments = example.partition("<")[0].split()
    chosen = cli.parser().parse_args([*arguments, "--quiet"])
    assert chosen.run is getattr(commands, name) and chosen.quiet


def test_help_needs_neither_torch_nor_a_corpus():
    code = (
        "import sys; from annotated_transformer.command_line.entry_point import parser; "
        "parser().format_help();sys.exit(bool({'torch', 'numpy', 'sentencepiece', "
        "'annotated_transformer.data.corpus'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_gpu_that_is_not_there_is_no_cpu(capsys, directory, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    for name in ("cuda", "mps"):
        said = refused(capsys, "translate", directory, "--device", name)
        assert f"--device {name} was asked for, but PyTorch sees no such GPU" in said
    assert commands.device_of("auto") == "cpu"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    assert (commands.device_of("auto"), commands.device_of("cpu")) == ("cuda", "cpu")
    assert commands.device_of("mps") == "mps"


@pytest.mark.with_extras
def test_a_training_run_is_never_overwritten(capsys, directory, run_directory):
    train = ["train", "--corpus", "copy", "--out"]
    assert "already holds a run: resume it (--resume)" in refused(capsys, *train, run_directory)
    assert "already holds a model" in refused(capsys, *train, directory)
    for verb in ("export", "average", "export-page"):
        assert "holds a training run" in refused(capsys, verb, directory, "--out", run_directory)
    assert "a directory of its own" in refused(capsys, "export", directory, "--out", directory)
    assert (run_directory / "training.safetensors").read_bytes() == b"precious"


@pytest.mark.with_extras
@pytest.mark.parametrize(
    ("verb", "name"),
    [(verb, name) for verb in ("export", "average") for name in checkpoint.CHECKPOINT_FILES]
    + [("export", "README.md"), ("export-page", "index.html"), ("export-page", "page.css")],
)
def test_a_file_of_somebody_else_is_never_overwritten(capsys, directory, tmp_path, verb, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("two years of notes")
    err = refused(capsys, verb, directory, "--out", tmp_path / "out")
    assert f"{name} would be overwritten: name another directory" in err
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["two years of notes"]


@pytest.mark.with_extras
def test_a_result_is_replaced_by_its_own_verb_alone(capsys, tmp_path):
    """An export of an average still says that it was averaged."""
    mean = tmp_path / "mean"
    exported = tmp_path / "exported"
    model = small_checkpoint(tmp_path / "run")
    save_weights(tmp_path / "run" / "checkpoints" / "step-00000001.safetensors", model)
    commands_ = [
        ("average", tmp_path / "run", "--last", 1, "--out", mean),
        ("export", mean, "--out", exported),
        ("export-page", exported, "--out", tmp_path / "page"),
    ]
    assert [run(capsys, *command)[0] for command in 2 * commands_] == 6 * [0]
    for command, out in ((commands_[0], exported), (commands_[1], tmp_path / "page")):
        status = run(capsys, *command[:-1], out)[0]
        assert status == (2 if out == exported else 0)


@pytest.mark.with_extras
def test_float16_takes_no_weight_that_it_cannot_hold(capsys, tmp_path):
    model = small_checkpoint(tmp_path / "large")
    with torch.no_grad():
        model.encoder.layers[0].feed_forward.W_1.weight[0, 0] = -1e5
    save_weights(tmp_path / "large" / "model.safetensors", model)
    export = ["export", tmp_path / "large", "--out", tmp_path / "out", "--dtype"]
    said = refused(capsys, *export, "float16")
    assert "a weight of size 100000, which float16 cannot hold" in said
    assert not (tmp_path / "out").exists() and run(capsys, *export, "float32")[0] == 0


# The standard streams


def test_a_stream_that_is_closed_is_empty(capsys, directory, tmp_path, monkeypatch):
    """Python has None for it, which print takes for standard output and tqdm does not take."""
    monkeypatch.setattr(sys, "stdin", None)
    assert run(capsys, "translate", directory) == (0, "", "")
    (tmp_path / "s").write_text("tea\n\n")
    arguments = evaluate(directory, [tmp_path / "s"] * 2, "--json", "--max-extra", 1)
    arguments.remove("--quiet")
    for closed in ("stderr", "stdout"):
        monkeypatch.setattr(sys, closed, None)
        status, out, _ = run(capsys, *arguments)
        assert status == 0 and (closed == "stdout" or json.loads(out)["sentences"] == 1)


@pytest.mark.with_extras
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_a_name_that_the_console_cannot_show_is_escaped(directory, tmp_path, monkeypatch, encoding):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert cli.main(["export", str(directory), "--out", str(tmp_path / "é日")]) == 0
    printed = sys.stdout.buffer.getvalue().decode(encoding)
    escaped = {"ascii": r"\xe9\u65e5", "cp1252": r"é\u65e5"}
    assert printed.endswith(escaped.get(encoding, "é日") + "\n")


def test_a_dash_is_a_standard_stream(capsys, directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"tea\nbad\n")))
    arguments = ["translate", directory, "--input", "-", "--output", "-", "--max-extra", 1]
    status, out, _ = run(capsys, *arguments)
    assert status == 0 and out.count("\n") == 2 and not any(tmp_path.iterdir())


def test_the_version_is_printed(capsys):
    assert run(capsys, "--version")[:2] == (0, f"annotated-transformer {__version__}\n")


def test_tensorboard_is_looked_for_before_the_work(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(train_verb, "find_spec", lambda name: None)
    arguments = ["train", "--corpus", "copy", "--out", tmp_path / "run", "--tensorboard", tmp_path]
    assert "pip install 'annotated-transformer[tensorboard]'" in refused(capsys, *arguments)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "d_ff=64"], "has another d_ff"),
        (["--preset", "tiny"], "has another N, d_model, d_ff, h"),
        (["--vocab-size", "300"], "has another vocab_size"),
        (["--corpus", "copy"], "was trained on reverse, it cannot be resumed on copy"),
    ],
)
def test_a_run_is_resumed_as_what_it_was(capsys, run_directory, arguments, message):
    path = run_directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "train": {}}))
    assert message in refused(capsys, "train", "--resume", "--out", run_directory, *arguments)


def test_settings_go_to_the_model_or_to_the_training():
    settings = ["N=2", "train_steps=7", "norm=pre", "bias=true", "eps_ls=0.2"]
    of_model, of_training = assigned_settings(settings)
    assert of_model == {"N": 2, "norm": "pre", "bias": True}
    assert of_training == {"train_steps": 7, "eps_ls": 0.2}


def test_translate_keeps_lines_whatever_the_bytes(capsys, caplog, directory, tmp_path):
    content = b"tea bad\r\n\n  \nfee\x00\xff\xfe\nbad\xe2\x80\xa8cab\rtea\n\xf0\x9f\x98\x80\n"
    content += b"tea " * 10_000 + b"\ncab"
    (tmp_path / "in").write_bytes(content)
    status, _, err = run(
        capsys, "translate", directory, "--input", tmp_path / "in", "--output", tmp_path / "out",
        "--beam-size", 1, "--max-extra", 0, "--window", 3, "--max-source", 30,
    )  # fmt: skip
    out = (tmp_path / "out").read_bytes()
    assert status == 0, err
    assert err.count("byte 0x") == 1 and "in, line 4: byte 0xff is not UTF-8; perhaps it is" in err
    assert out.count(b"\n") == content.count(b"\n") + 1
    lines = out.decode("utf-8").split("\n")
    assert (lines[1], lines[2], lines[-1]) == ("", "", "")
    assert not {*"".join(lines)} & {*"\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"}
    assert [message.split(" has")[0] for message in caplog.messages] == ["line 7"]


def test_n_best_lists_number_score_and_text(capsys, directory, files, tmp_path):
    status, _, _ = run(
        capsys, "translate", directory, "--input", files[0], "--output", tmp_path / "out",
        "--n-best", 2, "--beam-size", 3, "--max-extra", 2,
    )  # fmt: skip
    out, sources = (path.read_text(encoding="utf-8") for path in (tmp_path / "out", files[0]))
    rows = [line.split("\t") for line in out.splitlines()]
    options = {"n_best": 2, "beam_size": 3, "max_extra": 2}
    expected = Translator.from_checkpoint(directory).n_best(sources.splitlines(), **options)
    assert status == 0
    assert [row[0] for row in rows] == [str(i) for i in range(1, 6) for _ in range(2)]
    assert [row[2] for row in rows] == [best.text for found in expected for best in found]


@pytest.mark.slow
def test_a_byte_order_mark_is_no_text_to_translate_and_none_to_evaluate(
    capsys, directory, files, tmp_path
):
    """What Windows put before the first line changes neither the translation nor the scores."""
    marked = [tmp_path / f"marked {path.name}" for path in files]
    for path, copy in zip(files, marked, strict=True):
        copy.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    printed = []
    more = ["--json", "--max-extra", 2, "--output", tmp_path / "evaluated"]
    for both in (files, marked):
        _, scores, _ = run(capsys, *evaluate(directory, both, *more))
        _, translated, _ = run(capsys, "translate", directory, "--input", both[0], "--max-extra", 2)
        assert (tmp_path / "evaluated").read_text(encoding="utf-8") == translated
        printed.append((scores, translated))
    assert printed[0] == printed[1]


@pytest.mark.slow
def test_gzip_is_translated_as_text_is(capsys, directory, files, tmp_path, monkeypatch):
    """By its first bytes, from a file of any name and from standard input."""
    packed = gzip.compress(files[0].read_bytes())
    (tmp_path / "packed").write_bytes(packed)
    translate = ["translate", directory, "--max-extra", 2, "--beam-size", 1]
    expected = run(capsys, *translate, "--input", files[0])
    assert expected[0] == 0
    assert run(capsys, *translate, "--input", tmp_path / "packed") == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(packed)))
    assert run(capsys, *translate) == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("Straße\n".encode("utf-16"), "in is not UTF-8 text: it looks like UTF-16"),
        (b"tea\rbad\r", "in has lines that end in CR alone"),
        (gzip.compress(b"tea\n")[:9], "in is a damaged gzip file"),
    ],
    ids=["UTF-16", "CR", "cut"],
)
def test_what_is_no_text_to_translate_is_one_line(capsys, directory, tmp_path, content, words):
    (tmp_path / "in").write_bytes(content)
    (tmp_path / "out").write_bytes(b"of yesterday")
    files = ["--input", tmp_path / "in", "--output", tmp_path / "out"]
    assert words in refused(capsys, "translate", directory, *files)
    assert (tmp_path / "out").read_bytes() == b"of yesterday"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_a_run_that_was_killed_in_its_first_save_can_be_started_again(capsys, files, tmp_path):
    """Killed between the weights and the state: it cannot be resumed, and begins again in the same
    place."""
    out = tmp_path / "killed"
    configs = toy_run_config(train_steps=4, checkpoint_every=3)
    tokenizer = toy_tokenizer()
    pairs = text_pairs(1, 60)
    if os.fork() == 0:
        flush = os.fsync

        def deadly(descriptor):
            if (out / "model.safetensors").exists() and [*out.glob(".training.safetensors.*")]:
                os.kill(os.getpid(), signal.SIGKILL)
            return flush(descriptor)

        os.fsync = deadly
        train(*configs, tokenizer, pairs, [], out, progress=False)
        os._exit(1)
    assert os.WTERMSIG(os.wait()[1]) == signal.SIGKILL
    assert {path.name for path in out.iterdir()} > {*checkpoint.CHECKPOINT_FILES, "checkpoints"}
    assert not (out / "training.safetensors").exists()
    arguments = ["train", "--train", *files, "--valid", *files, "--out", out, "--quiet", *TINY]
    arguments += ["--vocab-size", 280, "--set", "train_steps=2"]
    status, _, err = run(capsys, *arguments, "--resume")
    assert status == 0, err
    kept = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    of_run = {"training.safetensors", "log.jsonl", "checkpoints/step-00000002.safetensors"}
    best = {f"best/{name}" for name in checkpoint.CHECKPOINT_FILES}
    assert kept == {*checkpoint.CHECKPOINT_FILES} | best | of_run


def test_a_run_on_own_files_asks_for_them_again(capsys, run_directory):
    path = run_directory / "config.json"
    config = json.loads(path.read_text()) | {"train": {}, "corpus": "a.en a.de"}
    path.write_text(json.dumps(config))
    err = refused(capsys, "train", "--resume", "--out", run_directory)
    assert "was trained on files of one's own, a.en a.de: give --train S T and --valid S T" in err
    assert "S T again, or --shards DIR" in err


SETTINGS = ("N=1", "d_model=8", "d_ff=12", "h=2", "max_length=40", "checkpoint_every=2")
TINY = [word for setting in SETTINGS for word in ("--set", setting)]
COPY = ["prepare", "copy", "--encode", "--split", "test", "--jobs", 1]


@pytest.mark.with_extras
def test_a_corpus_is_encoded_once_and_trained_on(capsys, tmp_path):
    """From the command line alone, with a vocabulary of a sample, and on again after a stop."""
    shards, out = tmp_path / "shards", tmp_path / "run"
    encode = ["prepare", "reverse", "--encode", "--out", shards, "--split", "valid", "--jobs", 1]
    sample = ["--vocab-size", 300, "--sample", 200, "--model-type", "unigram", "--quiet"]
    status, printed, err = run(capsys, *encode, *sample)
    assert status == 0 and err.endswith("learning a vocabulary of 300 from 200 pairs\n")
    summary = json.loads(printed)
    assert (summary["pairs"], summary["left_out"], summary["shards"]) == (500, 0, 1)
    assert (summary["corpus"], summary["vocab_size"]) == ("reverse", 300)
    assert run(capsys, *encode)[0] == 0  # nothing is left to do
    train = ["train", "--shards", shards, "--out", out, "--quiet", *TINY]
    for n, more in ((1, ()), (2, ("--resume",))):
        status, printed, err = run(capsys, *train, "--set", f"train_steps={n}", *more)
        assert status == 0, err
        assert json.loads(printed)["step"] == n and json.loads(printed)["valid_nll"] > 0
    stored = checkpoint.read_config(out)
    assert stored["corpus"] == "reverse" and stored["model"]["vocab_size"] == 300
    assert (out / "tokenizer.model").read_bytes() == (shards / "tokenizer.model").read_bytes()


@pytest.mark.with_extras
def test_ones_own_files_are_encoded_with_the_vocabulary_that_is_named(
    capsys, directory, files, tmp_path
):
    for name, where in (("a", directory), ("b", directory / "tokenizer.model")):
        out, encode = tmp_path / name, ["prepare", "--encode", "--train", *files, "--jobs", 1]
        status, printed, err = run(capsys, *encode, "--out", out, "--tokenizer", where)
        assert status == 0, err
        assert json.loads(printed)["corpus"] == "source reference"  # no folder of the user's
    made = [[path.read_bytes() for path in sorted((tmp_path / n).iterdir())] for n in "ab"]
    assert made[0] == made[1]
    err = refused(capsys, "train", "--shards", out, "--out", tmp_path / "run")
    assert "was encoded from files of one's own" in err and err.endswith("give --valid S T\n")
    train = ["train", "--shards", out, "--valid", *files, "--out", tmp_path / "run", *TINY]
    assert run(capsys, *train, "--quiet", "--set", "train_steps=1")[0] == 0
    err = refused(capsys, *train[: -len(TINY)], "--resume", "--shards", directory)
    assert "model is not a directory of shards: it has no shards.json" in err


@pytest.mark.with_extras
def test_a_corpus_that_ends_before_its_time_is_told_of(capsys, tmp_path, monkeypatch):
    encode = [*COPY, "--quiet", "--vocab-size", 300, "--sample", 200, "--out"]
    n, whole = corpus.get("copy").pairs["test"], corpus.stream
    status, _, err = run(capsys, *encode, tmp_path / "whole")
    assert status == 0 and "were read" not in err
    monkeypatch.setattr(corpus, "stream", lambda *names: itertools.islice(whole(*names), n - 3))
    status, _, err = run(capsys, *encode, tmp_path / "short")
    assert status == 0 and f"copy has {n:,} pairs in test, and {n - 3:,} were read\n" in err


@pytest.mark.with_extras
def test_no_vocabulary_is_used_or_lost_that_something_else_has_left(capsys, directory, tmp_path):
    """Without shards, tokenizer.model is a run's, or of a command that learned another one."""
    encode = [*COPY, "--quiet", "--out", tmp_path, "--vocab-size", 300]
    left = (directory / "tokenizer.model").read_bytes()
    (tmp_path / "tokenizer.model").write_bytes(left)
    status, _, err = run(capsys, *encode)
    assert status == 2 and "tokenizer.model is another vocabulary, but there are no shards" in err
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.model"]
    assert (tmp_path / "tokenizer.model").read_bytes() == left
    (tmp_path / "tokenizer.model").unlink()
    assert run(capsys, *encode)[0] == 0
    (tmp_path / "shards.json").unlink()  # as after a kill before the first shard
    assert run(capsys, *encode)[0] == 0
    status, _, err = run(capsys, *encode, "--model-type", "unigram", "--sample", "7")
    assert status == 0 and "going on with the vocabulary of" in err
    assert err.endswith(": --model-type and --sample cannot change it\n")
    named = ["--tokenizer", directory, "--sample", "7", "--out", tmp_path / "more"]
    err = refused(capsys, *COPY, *named)
    assert "--sample would have no effect: --tokenizer names a vocabulary" in err


@pytest.mark.with_extras
def test_damaged_shards_leave_the_place_of_a_run_as_it_is(capsys, tmp_path):
    """What a run has left that was killed in its first save goes only when another begins."""
    shards, out = tmp_path / "shards", tmp_path / "run"
    assert run(capsys, *COPY, "--out", shards, "--vocab-size", 300, "--quiet")[0] == 0
    train = ["train", "--shards", shards, "--out", out, "--quiet", *TINY, "--set", "train_steps=2"]
    assert run(capsys, *train)[0] == 0
    for path in (out / "training.safetensors", out / "training.previous.safetensors"):
        path.unlink(missing_ok=True)
    lines = (out / "log.jsonl").read_text().splitlines(keepends=True)
    (out / "log.jsonl").write_text("".join(line for line in lines if "valid_" not in line))
    before = {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    assert len(before) == 8
    content = (shards / "00000.ids.npy").read_bytes()
    (shards / "00000.ids.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "00000.ids.npy is damaged: its SHA-256 is not" in refused(capsys, *train)
    assert before == {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    (shards / "00000.ids.npy").write_bytes(content)
    assert run(capsys, *train)[0] == 0  # so the place was free


@pytest.mark.with_extras
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_pipes_are_encoded_with_a_vocabulary_and_refused_without(
    capsys, directory, files, tmp_path
):
    """As in --train <(zcat a.gz) <(zcat b.gz): a vocabulary of them would read them twice."""
    pipes = [tmp_path / "a", tmp_path / "b"]
    for pipe, file in zip(pipes, files):
        os.mkfifo(pipe)
        threading.Thread(target=pipe.write_bytes, args=(file.read_bytes(),), daemon=True).start()
    encode = ["prepare", "--encode", "--train", *pipes, "--out", tmp_path / "out"]
    err = refused(capsys, *encode)
    assert f"{pipes[0]}, {pipes[1]} cannot be read twice, once to learn a vocabulary" in err
    assert not (tmp_path / "out").exists()
    status, printed, err = run(capsys, *encode, "--tokenizer", directory)
    assert status == 0 and json.loads(printed)["pairs"] == 5, err


@pytest.mark.with_extras
def test_shards_go_with_no_other_training_text_and_with_their_vocabulary(capsys, tmp_path):
    shards = tmp_path / "shards"
    encode = [*COPY, "--out", shards, "--vocab-size"]
    assert run(capsys, *encode, 300, "--quiet")[0] == 0
    assert "has 300 tokens, --vocab-size says 301" in refused(capsys, *encode, 301)
    train = ["train", "--shards", shards, "--out", tmp_path / "run", *TINY]
    err = refused(capsys, *train, "--corpus", "copy")
    assert "--shards is what to train on: give no --corpus and no --train" in err
    err = refused(capsys, *train, "--vocab-size", 299)
    assert "the tokenizer has 300 tokens and the model's vocab_size is 299" in err


@pytest.mark.slow
def test_evaluate_scores_what_translate_writes(capsys, directory, files, tmp_path):
    arguments = evaluate(directory, files, "--max-extra", 2)
    status, out, _ = run(capsys, *arguments, "--json", "--output", tmp_path / "out")
    scores = json.loads(out)
    texts = (path.read_text(encoding="utf-8") for path in (tmp_path / "out", files[1]))
    hypotheses, references = map(str.splitlines, texts)
    assert status == 0
    assert scores["BLEU"] == evaluation.bleu(hypotheses, references)._asdict()
    assert scores["chrF2"] == evaluation.chrf(hypotheses, references)._asdict()
    assert scores["perplexity"] > 1
    assert (scores["sentences"], scores["beam_size"], scores["alpha"]) == (5, 4, 0.6)
    _, text, _ = run(capsys, *arguments)
    assert all(str(scores[name]["signature"]) in text for name in ("BLEU", "chrF2"))
    assert f"{scores['perplexity']:.2f}" in text


def test_both_ways_are_learned_and_the_way_back_is_scored(capsys, tmp_path):
    """A sentence that just fits does not, with the token of its direction before it."""
    out = tmp_path / "run"
    train = ["train", "--corpus", "reverse", "--vocab-size", 380, "--out", out, "--quiet", *TINY]
    for setting in ("both_ways=true", "positions=learned", "max_len=40", "train_steps=2"):
        train += ["--set", setting]
    status, _, err = run(capsys, *train)
    assert status == 0, err
    tokenizer = Tokenizer.load(out / "tokenizer.model")
    fits = next(text for n in range(40) if len(tokenizer.encode(text := "q7 " * n + "q")) >= 38)
    longest = fits + "7" * (39 - len(tokenizer.encode(fits)))
    assert len(tokenizer.encode(longest)) == 39
    (tmp_path / "s").write_text("q\nq7\n")
    (tmp_path / "t").write_text(f"{longest}\nq7\n")
    more = ["--max-extra", 0, "--beam-size", 1, "--quiet", "--json", "--back"]
    status, printed, err = run(capsys, *evaluate(out, (tmp_path / "s", tmp_path / "t"), *more))
    assert status == 0 and json.loads(printed)["perplexity"] > 1, err


def test_output_has_a_line_for_each_line_of_the_source(capsys, directory, tmp_path):
    """Blank sides and sentences that are too long are missing in the scores alone."""
    (tmp_path / "s").write_text("tea\n\nbad\n" + "cab " * 1100 + "\nbee\n")
    (tmp_path / "r").write_text("tea\n\n\ncab\nbee\n")
    more = ["--beam-size", 1, "--max-extra", 0]
    files = tmp_path / "s", tmp_path / "r"
    arguments = evaluate(directory, files, *more, "--output", tmp_path / "out")
    scores = json.loads(run(capsys, *arguments, "--json")[1])
    _, translated, _ = run(capsys, "translate", directory, "--input", tmp_path / "s", *more)
    assert (tmp_path / "out").read_text(encoding="utf-8") == translated
    assert translated.count("\n") == 5
    assert (scores["sentences"], scores["perplexity_sentences"]) == (3, 2)
    assert run(capsys, *arguments)[1].endswith("280, 2 sentences\n")


@pytest.mark.slow
def test_translate_and_evaluate_in_8_bits(capsys, directory, files, monkeypatch):
    from annotated_transformer.fast.int8 import quantize

    made = []
    monkeypatch.setattr(translator, "quantize", lambda m: made.append(m) or quantize(m))
    arguments = ["--max-extra", 2, "--int8"]
    status, out, _ = run(capsys, "translate", directory, "--input", files[0], *arguments)
    assert status == 0 and len(made) == 1
    assert out.count("\n") == files[0].read_text().count("\n")
    status, out, _ = run(capsys, *evaluate(directory, files, "--json", *arguments))
    assert status == 0 and json.loads(out)["int8"] is True and len(made) == 2


def test_evaluate_says_in_what_type_it_searched_and_in_what_it_scored(capsys, directory, files):
    arguments = evaluate(directory, files, "--max-extra", 1, "--dtype", "bfloat16")
    status, out, _ = run(capsys, *arguments, "--json")
    assert status == 0 and json.loads(out)["dtype"] == "bfloat16"
    assert run(capsys, *arguments)[1].rstrip().endswith("sentences, in float32")
    assert "float32" not in run(capsys, *arguments[:-2])[1]


def test_evaluate_defaults_to_the_corpus_of_the_training(capsys, directory, monkeypatch):
    asked = []

    def load(name, split, data_dir=None):
        asked.append((name, split))
        return text_pairs(1, 3)

    monkeypatch.setattr(corpus, "load", load)
    arguments = ["evaluate", directory, "--max-extra", 1, "--quiet", "--beam-size", 1]
    status, _, err = run(capsys, *arguments)
    assert status == 0, err
    assert asked == [("reverse", "test")]


@pytest.mark.with_extras
def test_inspect_measures_on_what_evaluate_measures_on(capsys, directory, files):
    measure = ["inspect", *evaluate(directory, files, "--json", "--no-bleu")[1:]]
    status, out, err = run(capsys, *measure, "--sentences", 4)
    assert status == 0 and json.loads(out)["sentences"] == 4, err
    perplexity = json.loads(run(capsys, *evaluate(directory, files, "--json"))[1])["perplexity"]
    nll = json.loads(run(capsys, *measure)[1])["whole"]["nll"]
    assert math.exp(nll) == pytest.approx(perplexity)


@pytest.mark.with_extras
def test_export_gives_weights_config_and_card(capsys, directory, tmp_path):
    out = tmp_path / "given away"
    export = ["export", directory, "--out", out, "--dtype", "float16", "--notes", "BLEU 7."]
    assert run(capsys, *export)[:2] == (0, f"{out}\n")
    assert {path.name for path in out.iterdir()} == {"README.md", *checkpoint.CHECKPOINT_FILES}
    tensors = load_file(out / "model.safetensors").values()
    assert {tensor.dtype for tensor in tensors} == {torch.float16}
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "BLEU 7." in card
    assert corpus.card("reverse") in card
    before, after = (dict(checkpoint.load_model(path)[0].state_dict()) for path in (directory, out))
    assert all(float((after[name] - before[name]).abs().max()) < 1e-3 for name in before)


@pytest.mark.with_extras
def test_a_directory_may_have_a_name_that_is_no_text(capsys, directory, tmp_path):
    """As file systems allow it: what is printed is text all the same."""
    out = tmp_path / "caf\udce9"
    status, printed, err = run(capsys, "export", directory, "--out", out)
    assert (status, printed) == (0, f"{tmp_path / 'caf'}\\udce9\n"), err
    assert "# caf\ufffd\n" in (out / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_prepare_prints_the_card_and_the_counts(capsys):
    status, out, _ = run(capsys, "prepare", "reverse")
    assert status == 0
    assert out.startswith(corpus.card("reverse"))
    assert json.loads(out.splitlines()[-1])["train"] == len(corpus.load("reverse", "train"))
    assert run(capsys, "prepare", "--list")[1].split() == corpus.names()


def test_a_verb_whose_extra_was_deleted_says_so_in_a_line(capsys, monkeypatch):
    name = "annotated_transformer.extras.page.writing"
    monkeypatch.setitem(sys.modules, name, None)  # as where there is no such file
    status, out, err = run(capsys, "export-page", "model", "--out", "page")
    assert (status, out) == (2, "")
    assert err == f"annotated-transformer: error: this verb needs {name}, which was deleted\n"


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (KeyboardInterrupt(), 130, ""),
        (Terminated(), 143, ""),
        (ConfigError("one and two"), 2, "one and two\n"),
        (PermissionError(13, "Denied", "/there"), 2, "/there: Denied\n"),
        (OSError("no name"), 2, "no name\n"),
        (KeyError("a bug of ours"), None, None),  # is not hidden
    ],
)
def test_what_stops_a_verb_has_a_status(capsys, monkeypatch, error, status, line):
    def fail(args):
        raise error

    fail.__name__ = "run_average"
    monkeypatch.setattr(commands, "run_average", fail)
    if status is None:
        with pytest.raises(KeyError):
            cli.main(["average", "run"])
    else:
        said = line and f"annotated-transformer: error: {line}"
        assert run(capsys, "average", "run") == (status, "", said)
