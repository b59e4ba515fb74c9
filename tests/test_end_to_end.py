"""From two text files to a translated sentence, as a user does it:
the command line in processes of its own."""

import contextlib
import gzip
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from annotated_transformer.training.log import read_log
from toys import PEAK

pytestmark = pytest.mark.slow

PROGRAM = [sys.executable, "-m", "annotated_transformer"]
PAIRS = [
    ("A man rides a bike.", "Ein Mann fährt Fahrrad."),
    ("The dog sleeps.", "Der Hund schläft."),
    ("I am hungry.", "Ich habe Hunger."),
    ("Where is the station?", "Wo ist der Bahnhof?"),
    ("She reads a book.", "Sie liest ein Buch."),
    ("It is raining.", "Es regnet."),
    ("We drink coffee.", "Wir trinken Kaffee."),
    ("Good morning!", "Guten Morgen!"),
]
SETTINGS = [
    "N=1", "d_model=64", "d_ff=64", "p_drop=0", "max_tokens=512", "warmup_steps=60",
    "lr_factor=0.5", "train_steps=150", "checkpoint_every=10", "keep_checkpoints=4", "log_every=10",
    "validate_every=1000",
]  # fmt: skip
SOURCES, TARGETS = ["".join(f"{pair[side]}\n" for pair in PAIRS) for side in (0, 1)]


def run(*arguments, stdin=b""):
    """Standard output as bytes."""
    done = subprocess.run([*PROGRAM, *map(str, arguments)], input=stdin, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    return done.stdout


def started(*arguments):
    """The program in a process of its own, with which a test talks."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([*PROGRAM, *map(str, arguments)], **pipes)


def changes(*settings):
    return [word for setting in settings for word in ("--set", setting)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two text files, one of them compressed."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "train.en").write_text(SOURCES, encoding="utf-8")
    with gzip.open(folder / "train.de.gz", "wt", encoding="utf-8") as file:
        file.write(TARGETS)
    return folder / "train.en", folder / "train.de.gz"


def training(files, out, *settings):
    return [
        "train", "--train", *files, "--valid", *files, "--out", out, "--vocab-size", 330,
        "--device", "cpu", *changes(*SETTINGS, *settings),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    """A run of the `train` command, and what it printed."""
    out = tmp_path_factory.mktemp("runs") / "de"
    return out, run(*training(files, out)).decode()


@pytest.fixture(scope="module")
def averaged(trained):
    return run("average", trained[0], "--last", 3).decode().strip()


def test_train_prints_one_line_of_results_and_logs_the_rest(trained):
    out, printed = trained
    summary = json.loads(printed)
    assert printed.count("\n") == 1
    assert (summary["step"], summary["out"]) == (150, str(out))
    assert summary["valid_ppl"] < 1.5
    assert read_log(out)[0]["nll"] > 3 > 0.5 > summary["nll"]


def test_two_text_files_become_translated_sentences(averaged):
    assert run("translate", averaged, "--device", "cpu", stdin=SOURCES.encode()).decode() == TARGETS


def test_fine_tuning_starts_from_the_weights_it_is_given(averaged, files, tmp_path):
    settings = changes("train_steps=1", "max_tokens=400", "p_drop=0.0", "lr_factor=0.001")
    texts = ["--train", *files, "--valid", *files]
    printed = run("train", "--init", averaged, *texts, "--out", tmp_path / "tuned", *settings)
    assert json.loads(printed)["nll"] < 0.5
    tuned, given = tmp_path / "tuned", Path(averaged)
    new, old = (json.loads((place / "config.json").read_text()) for place in (tuned, given))
    assert new["model"] | {"p_drop": 0} == old["model"] | {"p_drop": 0}
    name = "tokenizer.model"
    assert (tuned / name).read_bytes() == (given / name).read_bytes()


def test_lines_stay_in_their_places_between_lines_that_are_none(averaged):
    lines = [
        b"", b"The dog sleeps.", b" \t ", b"\xff\x00", b"It is raining.\r", "😀\u2028".encode(),
        b"I am hungry.",
    ]  # fmt: skip
    out = run("translate", averaged, "--window", 2, stdin=b"\n".join(lines)).decode()
    answers = out.split("\n")
    assert len(answers) == len(lines) + 1
    assert [answers[i] for i in (0, 2, 7)] == [""] * 3
    assert [answers[i] for i in (1, 4, 6)] == [PAIRS[i][1] for i in (1, 5, 2)]


def test_evaluate_finds_what_was_learned(averaged, files):
    texts = ["--source", files[0], "--reference", files[1]]
    scores = json.loads(run("evaluate", averaged, *texts, "--json"))
    assert scores["BLEU"]["score"] == pytest.approx(100)
    assert 1 < scores["perplexity"] < 1.5


def test_an_exported_model_translates_alone(averaged, tmp_path):
    run("export", averaged, "--out", tmp_path / "model", "--dtype", "float16")
    assert run("translate", tmp_path / "model", stdin=b"Good morning!") == b"Guten Morgen!\n"


def test_ctrl_c_saves_and_resume_goes_on(files, tmp_path):
    out = tmp_path / "run"
    process = started(*training(files, out, "train_steps=100000", "log_every=1"))
    while not (out / "log.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=3600)
    assert process.returncode == 130, stderr.decode()
    assert stdout == b""
    assert "is saved, and --resume goes on" in stderr.decode()
    step = read_log(out)[-1]["step"]
    again = training(files, out, "log_every=1", f"train_steps={step + 2}")
    assert json.loads(run(*again, "--resume"))["step"] == step + 2
    assert sorted({line["step"] for line in read_log(out)}) == list(range(1, step + 3))


def test_a_reader_that_leaves_is_no_error(averaged):
    process = started("translate", averaged, "--window", 1)
    process.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(b"It is raining.\n" * 5)
        process.stdin.close()
    process.stdin = None
    process.stdout = None
    _, stderr = process.communicate(timeout=3600)
    assert (process.returncode, stderr) == (141, b"")


KEEPS_EVERY_SOURCE = """
from annotated_transformer.fast.decoder import FastDecoder
kept, start = [], FastDecoder.start
def leaking(*args):
    state = start(*args)
    kept.append([(cache.memory_keys, cache.memory_values) for cache in state.caches])
    return state
FastDecoder.start = leaking
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs the resource module")
@pytest.mark.parametrize("leak", ["", KEEPS_EVERY_SOURCE], ids=["ours", "a leak"])
def test_memory_does_not_grow_with_the_input(leak, averaged, tmp_path):
    """1,792 lines take no more than the first 512 of them;
    where the sources' keys and values are kept, they do."""
    code = (
        f"{PEAK}\nimport sys\nfrom annotated_transformer.command_line.entry_point import main\n"
        f"{leak}\nstatus = main(sys.argv[1:]);print(peak()); sys.exit(status)"
    )
    generator, peaks, sources = random.Random(0), [], SOURCES.splitlines()
    lines = [" ".join(generator.choices(sources, k=3)) + "\n" for _ in range(1792)]
    for n_lines in (512, len(lines)):
        (tmp_path / "in").write_text("".join(lines[:n_lines]), encoding="utf-8")
        command = [
            sys.executable, "-c", code, "translate", averaged, "--input", str(tmp_path / "in"),
            "--output", str(tmp_path / "out"), "--beam-size", "1", "--max-extra", "0", "--device",
            "cpu",
        ]  # fmt: skip
        peaks.append(int(subprocess.run(command, capture_output=True, check=True).stdout))
        assert (tmp_path / "out").read_bytes().count(b"\n") == n_lines
    assert (peaks[1] - peaks[0] > 15_000) == bool(leak), peaks  # kB
