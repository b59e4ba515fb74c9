"""The directory of a run: room for a new one, what a killed one has left."""

import platform
import subprocess
import sys
from subprocess import PIPE

import pytest
import torch

from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.checkpoint.weights import save_tensors, save_weights
from annotated_transformer.config import TrainConfig
from annotated_transformer.errors import ConfigError
from annotated_transformer.training.log import read_log
from toys import run as toy_run, small_model, toy_run_config, toy_tokenizer

MODEL, _ = toy_run_config()


@pytest.fixture
def run(tmp_path):
    """A directory with weights, two checkpoints of them, and nothing to resume from."""
    directory = checkpoint.write_directory(tmp_path / "run", MODEL, toy_tokenizer())
    model = small_model(vocab_size=280, dtype=torch.float32)
    for name in ("checkpoints/step-00000005", "checkpoints/step-00000010", "model"):
        save_weights(directory / f"{name}.safetensors", model)
    return directory


def test_a_new_run_needs_a_directory_without_weights(run, tmp_path):
    checkpoint.begin_run(tmp_path / "not yet")
    checkpoint.begin_run(tmp_path)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="run already holds a model: name another directory"):
        checkpoint.begin_run(run)
    (run / "training.safetensors").write_bytes(b"days")
    line = "run already holds a run: resume it .--resume., or name another"
    with pytest.raises(ConfigError, match=line):
        checkpoint.begin_run(run)
    (run / "training.safetensors").unlink()
    (run / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="checkpoints holds the weights of another run"):
        checkpoint.begin_run(run)
    assert all(path.read_bytes() == content for path, content in before.items() if path.exists())


def begun(directory, **extra):
    """A run that has written its settings; its first save is at step 10."""
    train = TrainConfig(train_steps=100, checkpoint_every=10).to_dict()
    checkpoint.write_directory(directory, MODEL, toy_tokenizer(), {"train": train, **extra})


@pytest.mark.parametrize(
    ("extra", "steps"),
    [
        ({"averaged": []}, []),
        ({"dtype": "float16"}, []),
        ({}, []),
        ({}, [10, 20]),
        ({}, [20]),
        ({"train": 3}, [10]),
    ],
)
def test_a_model_that_may_be_wanted_is_not_taken_for_what_a_killed_run_left(tmp_path, extra, steps):
    """The first save of this run is at step 10,
    so a checkpoint of step 20 means that it went on."""
    begun(tmp_path, **extra)
    names = ["model", *(f"checkpoints/step-{step:08d}" for step in steps)]
    weights = [tmp_path / f"{name}.safetensors" for name in names]
    for path in weights:
        save_tensors(path, {"a": torch.zeros(1)})
    with pytest.raises(ConfigError, match="already holds a model"):
        checkpoint.begin_run(tmp_path)
    assert all(path.exists() for path in weights)


def test_a_run_that_was_validated_had_a_state_once(tmp_path):
    """Who has removed the states of a finished run of one checkpoint keeps its model."""
    begun(tmp_path)
    for name in ("model", "checkpoints/step-00000010"):
        save_tensors(tmp_path / f"{name}.safetensors", {"a": torch.zeros(1)})
    (tmp_path / "log.jsonl").write_text('{"step": 10, "loss": 4.1}\n{"step": 10, "valid_nll": 3}\n')
    with pytest.raises(ConfigError, match="already holds a model"):
        checkpoint.begin_run(tmp_path)
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("n_written", range(5))
def test_what_was_killed_in_its_first_save_makes_room(tmp_path, n_written):
    """Whatever it had written by then, which is moved; nobody's own file goes with it."""
    run = tmp_path / "run"
    begun(run)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    written = [
        "log.jsonl",
        f"checkpoints/.step-00000010.safetensors.{platform.node()}.{dead.pid}",
        "checkpoints/step-00000010.safetensors", "model.safetensors",
    ][: n_written + 1]  # fmt: skip
    own = "checkpoints/step-best.safetensors"
    for name in (*written, own):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(b"")
    checkpoint.begin_run(run)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    moved = {"config.json", "tokenizer.model", *written} - {written[1] if n_written else ""}
    assert left == {f"run/{own}", *(f"run.before-1/{name}" for name in moved)}


def test_a_finished_run_whose_state_was_removed_is_moved_and_named(tmp_path, capsys):
    """Without validation it looks like one that was killed in its first save."""
    out = tmp_path / "run"
    finished = []
    for n in range(3):
        toy_run(out, train_steps=1, seed=n)
        is_told = f"without a state to resume from: moved to {out}.before-{n}"
        assert (is_told in capsys.readouterr().err) == (n > 0)
        (out / "training.safetensors").unlink()
        finished.append((out / "model.safetensors").read_bytes())
    for n in (1, 2):
        before = tmp_path / f"run.before-{n}"
        assert (before / "model.safetensors").read_bytes() == finished[n - 1]
        assert checkpoint.load_model(before)[0].config == MODEL
        assert read_log(before)[-1]["step"] == 1


def test_a_file_of_ones_own_is_no_checkpoint_of_the_run(run):
    """Nor is what has a temporary name still."""
    for name in ("step-best.safetensors", ".step-00000007.safetensors.123"):
        (run / "checkpoints" / name).write_bytes(b"")
    steps = [path.stem for path in checkpoint.step_checkpoints(run)]
    assert steps == ["step-00000005", "step-00000010"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("shards.json", "{}"),
        ("tokenizer.model", "a vocabulary of one's own"),
        ("log.jsonl", '{"of": "a web server"}'),
        ("config.json", '{"of": "another program"}'),
        ("config.json", '{"model": {}, "train": {}, "averaged": []}'),
    ],
)
def test_what_no_run_has_left_is_neither_removed_nor_overwritten(tmp_path, name, content):
    """Shards whose tokenizer.model went, for one, could not be read any longer."""
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=f"{name} would be overwritten: name another directory"):
        checkpoint.begin_run(tmp_path)
    assert (tmp_path / name).read_text() == content


def test_shards_beside_the_settings_of_a_run_are_still_shards(tmp_path):
    begun(tmp_path)
    checkpoint.begin_run(tmp_path)
    (tmp_path / "shards.json").write_text("{}")
    with pytest.raises(ConfigError, match="shards.json would be overwritten"):
        checkpoint.begin_run(tmp_path)


OTHER = """
import sys
from subprocess import PIPE
from pathlib import Path
from annotated_transformer.training.processes import ALONE
from annotated_transformer.training.loop import kept_from_others
with kept_from_others(Path(sys.argv[1]), ALONE):
    print("has it", flush=True)
    sys.stdin.read()  # until it is killed, or the test has failed
"""


@pytest.mark.parametrize("resume", [False, True])
def test_two_processes_never_train_in_one_directory(tmp_path, resume):
    """Not even where a cluster starts a run again while the old one lives; a kill frees it."""
    if resume:
        toy_run(tmp_path, train_steps=1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    command = [sys.executable, "-c", OTHER, str(tmp_path)]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdout.readline() == "has it\n"
        with pytest.raises(ConfigError, match="another process trains in .*: name another dir"):
            toy_run(tmp_path, train_steps=2, resume=resume)
        assert all(path.read_bytes() == content for path, content in before.items())
        other.kill()
    toy_run(tmp_path, train_steps=2, resume=resume)
    assert not (tmp_path / ".lock").exists() and len([*tmp_path.iterdir()]) >= 5
