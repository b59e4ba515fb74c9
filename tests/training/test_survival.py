"""A run that is killed, stopped or damaged; `tests/survival.py` counts more of each."""

import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from test_loop import eager_scaler, saved_step

from annotated_transformer import files
from annotated_transformer.checkpoint import directory as checkpoint, weights
from annotated_transformer.checkpoint.weights import load_tensors, save_tensors
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import ConfigError, DamagedFileError
from annotated_transformer.training import run as training_run
from annotated_transformer.training.log import read_log
from annotated_transformer.training.run import TrainingRun
from annotated_transformer.training.state import newest_state
from same_run import assert_same_run
from toys import run, text_pairs, toy_run_config, toy_tokenizer

STATE, PREVIOUS = checkpoint.STATE_FILES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["kills", "10"], "10 of 10 killed runs end bit-identical, 2 of them killed in saves"),
        (["kills", "5", "--precision", "fp16", "--seed", "7"], "5 of 5 killed runs"),
        (["stops", "5"], "a run resumed 5 times is bit-identical"),
        (["damage", "3"], "6 of 6 runs with a damaged state end bit-identical"),
    ],
    ids=" ".join,
)
def test_a_run_survives(arguments, line, monkeypatch):
    script = Path(__file__).parents[1] / "survival.py"
    monkeypatch.setenv("PYTHONPATH", str(Path(checkpoint.__file__).parents[2]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0 and line in done.stdout, done.stdout + done.stderr


# A file that is not what was written


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_tensors(path, {"a": torch.arange(40.0), "b": torch.ones(3, 2)}, {"of": "me"})
    return path


def test_a_file_says_nothing_of_its_checksum(saved):
    tensors, metadata = load_tensors(saved)
    assert metadata == {"of": "me"} and torch.equal(tensors["a"], torch.arange(40.0))
    weights.require_undamaged(saved)


def test_every_byte_that_changes_is_noticed(saved):
    content = saved.read_bytes()
    assert len(content) < 700
    for at in range(len(content)):
        spoilt = bytearray(content)
        spoilt[at] ^= (1, 0x20, 0x80)[at % 3]
        saved.write_bytes(spoilt)
        with pytest.raises(DamagedFileError):
            load_tensors(saved)


def test_every_cut_is_noticed(saved):
    content = saved.read_bytes()
    lengths = (*range(0, len(content), 7), len(content) - 1)
    for other in (*(content[:length] for length in lengths), content + b"\0"):
        saved.write_bytes(other)
        with pytest.raises(DamagedFileError):
            load_tensors(saved)


def test_a_file_without_a_checksum_is_read(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "old", {"format": "pt", "step": "3"})
    assert load_tensors(tmp_path / "old")[1] == {"step": "3"}


# The state before


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.unlink()  # the two states may be one file with two names
    path.write_bytes(content)


@pytest.mark.parametrize(
    "how", ["damaged", "cut", "another file", "another model's", "unreadable", "gone"]
)
def test_a_run_goes_on_from_the_newest_good_state(tmp_path, capsys, monkeypatch, how):
    run(tmp_path / "whole")
    run(tmp_path / "run", train_steps=9)
    state, model = tmp_path / "run" / STATE, tmp_path / "run" / "model.safetensors"
    if how == "damaged":
        damage(state)
    elif how == "cut":
        state.write_bytes(state.read_bytes()[:5000])
    elif how == "another file":
        shutil.copy(model, state)
    elif how == "another model's":
        run(tmp_path / "wider", train_steps=3, model_changes={"d_ff": 16})
        shutil.copy(tmp_path / "wider" / STATE, state)
    elif how == "unreadable":
        cannot_be_read(state, monkeypatch)
    else:
        state.unlink()
    assert newest_state(toy_run_config()[0], tmp_path / "run").name == PREVIOUS
    capsys.readouterr()
    run(tmp_path / "run", resume=True, train_steps=6)  # no step, and no save
    said = capsys.readouterr().err
    assert ("damaged or of another model" in said and "on from step 6" in said) == (how != "gone")
    set_aside = tmp_path / "run" / "training.damaged.safetensors"
    assert set_aside.exists() == (how != "gone")
    run(tmp_path / "run", resume=True)
    assert not set_aside.exists()  # there are two good ones again
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def cannot_be_read(path, monkeypatch):
    """A disk's error wherever these bytes are."""
    digest = weights.require_undamaged
    bad = path.stat().st_ino
    (path.parents[1] / "held").hardlink_to(path)  # so that no new file gets its number

    def fails(path):
        if path.stat().st_ino == bad:
            raise OSError(5, "Input/output error", str(path))
        digest(path)

    monkeypatch.setattr(weights, "require_undamaged", fails)


def test_two_damaged_states_are_both_named(tmp_path):
    run(tmp_path / "run", train_steps=6)
    for name in (STATE, PREVIOUS):
        damage(tmp_path / "run" / name)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=f"{STATE} is damaged.*; .*{PREVIOUS} is damaged") as both:
        run(tmp_path / "run", resume=True)
    assert "\n" not in str(both.value)
    assert before == {path: path.read_bytes() for path in before}


def damaged_state(out, **changes):
    """Put these tensors and metadata into the newest state of a run, with a digest that fits."""
    stored, said = load_tensors(out / STATE)
    (out / STATE).unlink()  # it may be one file with another name
    for name, value in changes.items():
        (stored if isinstance(value, torch.Tensor) else said)[name] = value
    save_tensors(out / STATE, stored, said)


NAN = torch.full((280, 8), float("nan"))
SHAPE = torch.get_rng_state().shape


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("counters", "[]", "its counters "),
        ("counters", '{"step": "3", "epoch": 0, "n_batches": 1}', "its counters "),
        ("counters", '{"step": -3, "epoch": 0, "n_batches": 1}', "its counters "),
        ("counters", '{"step": 3}', "its counters "),
        ("train", "{", "its train "),
        ("scaler", "[" * 100_000, "its scaler "),
        # Training would look for batch 2**62, or pad every sentence to as much.
        ("counters", {"n_batches": 2**62}, "its counters contradict each other"),
        ("counters", {"epoch": 2**62}, "its counters contradict each other"),
        ("counters", {"multiple_of": 0}, "its counters contradict each other"),
        ("counters", {"multiple_of": 2**62}, "its counters contradict each other"),
        ("random.cpu", torch.zeros(SHAPE), "random.cpu has values that no run can produce"),
        ("random.cpu", torch.full(SHAPE, 255, dtype=torch.uint8), "random.cpu is no random state"),
        ("model.embedding.weight", NAN, "model.embedding.weight has values that no run can pro"),
        ("adam.exp_avg.embedding.weight", NAN, "exp_avg.embedding.weight has values"),
        ("adam.exp_avg_sq.embedding.weight", torch.full((280, 8), -1.0), "has values that no run"),
        ("adam.step.embedding.weight", torch.tensor(-1.0), "has values that no run can produce"),
        ("model.embedding.weight", torch.ones(280, 8).half(), "has values that no run can produce"),
    ],
)
def test_a_state_that_no_run_wrote_is_one_line(tmp_path, name, value, line):
    run(tmp_path, train_steps=3)
    if isinstance(value, dict):
        value = json.dumps({**json.loads(load_tensors(tmp_path / STATE)[1]["counters"]), **value})
    damaged_state(tmp_path, **{name: value})
    with pytest.raises(DamagedFileError, match=f"safetensors is damaged: .*{line}") as error:
        run(tmp_path, resume=True)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("scaler", ['{"a": 1}', '{"scale": "x"}', "whole"])
def test_a_scaler_that_is_none_is_one_line(tmp_path, monkeypatch, scaler):
    monkeypatch.setattr(training_run, "gradient_scaler", eager_scaler)
    run(tmp_path, train_steps=3, precision="fp16")
    if scaler == "whole":
        said = json.loads(load_tensors(tmp_path / STATE)[1]["scaler"])
        scaler = json.dumps({**said, "scale": "x"})
    damaged_state(tmp_path, scaler=scaler)
    with pytest.raises(DamagedFileError, match="is damaged: its scaler state is not numeric"):
        run(tmp_path, resume=True, precision="fp16")


@pytest.mark.parametrize("tensor", ["random.cpu", "adam.step.embedding.weight", "more"])
def test_a_state_with_other_tensors_is_refused_before_they_are_read(tmp_path, monkeypatch, tensor):
    run(tmp_path / "run", train_steps=3)
    path = tmp_path / "run" / STATE
    tensors, metadata = load_tensors(path)
    save_file({**tensors, tensor: torch.zeros(7)}, path, metadata)
    monkeypatch.setattr(TrainingRun, "__init__", None)
    with pytest.raises(ConfigError, match="other tensors than the state of this model"):
        run(tmp_path / "run", resume=True)


# What belongs together


def test_a_setting_that_changed_in_the_file_is_another_run(tmp_path):
    """Even one that no shape shows, in the directory's own config.json."""
    run(tmp_path / "run", train_steps=3)
    path = tmp_path / "run" / "config.json"
    path.write_text(path.read_text().replace('"p_drop": 0.1', '"p_drop": 0.3'))
    with pytest.raises(ConfigError, match="was trained with another p_drop"):
        run(tmp_path / "run", resume=True, model_changes={"p_drop": 0.3})


def test_weights_know_the_vocabulary_that_they_were_trained_with(tmp_path):
    """Another of the same size would translate into nonsense."""
    run(tmp_path / "run", train_steps=3)
    other = Tokenizer.train([side for pair in text_pairs(7, 200) for side in pair], 280)
    assert other.sha256 != toy_tokenizer().sha256
    other.save(tmp_path / "run" / "tokenizer.model")
    with pytest.raises(ConfigError, match="trained with another tokenizer than tokenizer.model"):
        checkpoint.load_model(tmp_path / "run")
    with pytest.raises(ConfigError, match="was trained with another tokenizer"):
        run(tmp_path / "run", tokenizer=other, resume=True)


def test_temporary_files_of_dead_processes_go_when_a_run_goes_on(tmp_path):
    run(tmp_path / "run", train_steps=3)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    names = "config.json", STATE, PREVIOUS, "checkpoints/step-00000099.safetensors", "log.jsonl"
    for name in names:
        path = tmp_path / "run" / name
        folder = path.with_name(f".{path.name}.{platform.node()}.{dead.pid}")
        folder.mkdir()
        (folder / ".tmpdh3heb").write_bytes(b"half")
    run(tmp_path / "run", resume=True)
    assert not list((tmp_path / "run").rglob(".*"))


def test_a_state_is_never_older_than_its_log(tmp_path, monkeypatch):
    """The log is on disk before the state, or a power cut could take its lines."""
    order, write = [], files.write_atomically

    def note(path, *rest):
        order.append(re.sub(r"\d+", "N", path.name))
        if rest:
            write(path, *rest)

    monkeypatch.setattr("annotated_transformer.training.state.flush_to_disk", note)
    monkeypatch.setattr(weights, "write_atomically", note)
    run(tmp_path / "run", train_steps=3)
    assert order == ["log.jsonl", "step-N.safetensors", "model.safetensors", STATE]
    assert saved_step(tmp_path / "run") == 3
    assert json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])["step"] == 3


@pytest.mark.parametrize(
    ("schedule", "first", "then", "is_told"),
    [("wsd", 8, 12, True), ("wsd", 3, 12, False), ("wsd", 12, 12, False), ("noam", 8, 12, False)],
)
def test_a_plan_whose_rate_had_begun_to_fall_is_named(
    tmp_path, capsys, schedule, first, then, is_told
):
    """Of 8 steps the last 2 decay, so the rate at the end is half of the peak."""
    settings = {"schedule": schedule, "decay_share": 0.25, "warmup_steps": 4}
    run(tmp_path / "run", train_steps=first, **settings)
    run(tmp_path / "run", train_steps=then, resume=True, **settings)
    rates = [record["rate"] for record in read_log(tmp_path / "run") if "rate" in record]
    line = f"was planned for 8 steps, and its rate at step 8 was {max(rates) / 2:.2g}"
    told = capsys.readouterr().err
    assert ("was planned for" in told) == is_told
    assert (line in told) == is_told
