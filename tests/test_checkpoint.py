import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close
from toys import SMALL, random_tokens, small_model, toy_tokenizer

from annotated_transformer import checkpoint
from annotated_transformer.config import ConfigError, ModelConfig
from annotated_transformer.transformer import Transformer

STEPS = (5, 10, 900, 1000)


@pytest.fixture
def run(tmp_path):
    """A run with four saved models, whose name order is their step order."""
    directory = checkpoint.write_directory(tmp_path / "run", ModelConfig(**SMALL), toy_tokenizer(), {"corpus": "copy"})
    for step in STEPS:
        model = small_model(seed=step, dtype=torch.float32)
        checkpoint.save_weights(directory / "checkpoints" / f"step-{step:08d}.safetensors", model)
    checkpoint.save_weights(directory / "model.safetensors", model)
    return directory


def test_a_model_survives_its_directory(run):
    model, tokenizer = checkpoint.load_model(run)
    original = small_model(seed=STEPS[-1], dtype=torch.float32)
    source, target_in = random_tokens(1, 2, 7), random_tokens(2, 2, 6)
    assert torch.equal(model(source, target_in), original(source, target_in))
    assert not model.training and model.config == original.config
    assert tokenizer.model_bytes == toy_tokenizer().model_bytes
    assert checkpoint.read_config(run) == {"model": model.config.to_dict(), "corpus": "copy"}


def test_the_shared_matrix_is_stored_once_and_positions_not_at_all(run):
    tensors = load_file(run / "model.safetensors")
    assert tensors.keys() == dict(Transformer(ModelConfig(**SMALL)).named_parameters()).keys()
    assert [name for name, tensor in tensors.items() if SMALL["vocab_size"] in tensor.shape] == ["embedding.weight"]


def test_float16_halves_the_file_and_loads_as_float32(run):
    size = (run / "model.safetensors").stat().st_size
    model = small_model(seed=STEPS[-1], dtype=torch.float32)
    checkpoint.save_weights(run / "model.safetensors", model, torch.float16)
    assert (run / "model.safetensors").stat().st_size < 0.75 * size  # the names weigh as before
    loaded, _ = checkpoint.load_model(run)
    for one, two in zip(loaded.parameters(), model.parameters(), strict=True):
        assert one.dtype == torch.float32
        assert_close(one, two, rtol=1e-3, atol=1e-6)


def test_the_average_is_the_mean_of_the_last_checkpoints(run):
    out = checkpoint.average_checkpoints(run, last=3)
    assert out == run.with_name("run-averaged")
    averaged = load_file(out / "model.safetensors")
    files = [load_file(run / "checkpoints" / f"step-{step:08d}.safetensors") for step in STEPS[1:]]
    for name, tensor in averaged.items():
        by_hand = sum(file[name].double() for file in files) / 3
        assert tensor.dtype == torch.float32
        assert_close(tensor.double(), by_hand, rtol=1e-7, atol=0)
    assert checkpoint.read_config(out) == {
        **checkpoint.read_config(run), "averaged": ["step-00000010", "step-00000900", "step-00001000"],
    }
    model, tokenizer = checkpoint.load_model(out)
    assert_close(dict(model.named_parameters()), averaged, rtol=0, atol=0)
    assert tokenizer.vocab_size == toy_tokenizer().vocab_size


def test_the_average_of_one_is_itself_and_the_run_stays_as_it_was(run, tmp_path):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    out = checkpoint.average_checkpoints(run, last=1, out=tmp_path / "mine")
    averaged, last = load_file(out / "model.safetensors"), load_file(run / "model.safetensors")
    assert_close(averaged, last, rtol=0, atol=0)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_runs_from_one_start_have_an_average_together(run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    for step in STEPS:
        weights = small_model(seed=100 + step, dtype=torch.float32)
        checkpoint.save_weights(other / "checkpoints" / f"step-{step:08d}.safetensors", weights)
    out = checkpoint.average_checkpoints(run, last=2, others=[other])
    averaged = load_file(out / "model.safetensors")
    files = [load_file(folder / "checkpoints" / f"step-{step:08d}.safetensors")
             for folder in (run, other) for step in STEPS[2:]]
    for name, tensor in averaged.items():
        assert_close(tensor.double(), sum(file[name].double() for file in files) / 4, rtol=1e-6, atol=1e-8)
    assert checkpoint.read_config(out)["averaged"] == [
        f"{folder}/step-{step:08d}" for folder in ("run", "other") for step in (900, 1000)]


def test_runs_with_other_vocabularies_or_shapes_have_none(run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    wider = Transformer(ModelConfig(**{**SMALL, "d_ff": SMALL["d_ff"] + 1}))
    checkpoint.save_weights(other / "checkpoints" / "step-00002000.safetensors", wider)
    with pytest.raises(ConfigError, match="step-00002000.safetensors has other weights than"):
        checkpoint.average_checkpoints(run, last=1, others=[other])
    with (other / "tokenizer.model").open("ab") as file:
        file.write(b" ")
    with pytest.raises(ConfigError, match="other has another vocabulary than .*run: their weights have no mean"):
        checkpoint.average_checkpoints(run, last=1, others=[other])
    with pytest.raises(ConfigError, match="nowhere is not a checkpoint directory"):
        checkpoint.average_checkpoints(run, last=1, others=[tmp_path / "nowhere"])
    assert not run.with_name("run-averaged").exists()


@pytest.mark.parametrize(("settings", "line"), [
    ({"last": 5}, "run has 4 checkpoints, cannot average the last 5"),
    ({"last": 0}, "the number of checkpoints to average must be at least 1, got 0"),
    ({"last": 2, "out": "run"}, "the average needs a directory of its own, got"),
])
def test_impossible_averages_are_refused(run, settings, line):
    if "out" in settings:
        settings = {**settings, "out": run}
    with pytest.raises(ConfigError, match=line):
        checkpoint.average_checkpoints(run, **settings)
    assert checkpoint.read_config(run)["corpus"] == "copy"


def test_different_models_have_no_average(run):
    other = Transformer(ModelConfig(**{**SMALL, "N": 1}))
    checkpoint.save_weights(run / "checkpoints" / "step-00002000.safetensors", other)
    with pytest.raises(ConfigError, match="step-00002000.safetensors has other weights than"):
        checkpoint.average_checkpoints(run, last=2)


def failing_write(path):
    path.write_text("half a fi")
    raise OSError("No space left on device")


def failing_fsync(_):
    raise OSError("power cut")


@pytest.mark.parametrize("when", ["while writing", "before the file is safe"])
def test_a_crash_leaves_the_old_file(tmp_path, monkeypatch, when):
    path = tmp_path / "model.safetensors"
    checkpoint.write_atomically(path, lambda new: new.write_text("old"))
    if when != "while writing":
        monkeypatch.setattr(os, "fsync", failing_fsync)
    with pytest.raises(OSError):
        checkpoint.write_atomically(
            path, failing_write if when == "while writing" else lambda new: new.write_text("new"))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]  # and no rubbish beside it


def test_files_are_safe_on_disk_before_they_take_their_place(tmp_path, monkeypatch):
    path, flushed = tmp_path / "deep" / "config.json", []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(path.exists()) or fsync(fd))
    checkpoint.write_atomically(path, lambda new: new.write_text("{}"))
    assert flushed == [False] and path.read_text() == "{}"


def test_a_temporary_file_is_no_checkpoint(run):
    (run / "checkpoints" / ".step-00000007.safetensors.123").write_text("half")
    assert [path.name for path in checkpoint.step_checkpoints(run)] == [f"step-{n:08d}.safetensors" for n in STEPS]


def test_damage_is_named_in_one_line(run, tmp_path):
    cases = {
        "is not a checkpoint directory: it has no config.json": lambda: checkpoint.load_model(tmp_path / "elsewhere"),
        "no such file: .*nothing.safetensors": lambda: checkpoint.load_tensors(run / "nothing.safetensors"),
    }
    weights = run / "model.safetensors"
    (run / "cut.safetensors").write_bytes(weights.read_bytes()[:-100])
    cases["cut.safetensors is not a safetensors file or is damaged"] = lambda: checkpoint.load_tensors(
        run / "cut.safetensors")
    for line, load in cases.items():
        with pytest.raises(ConfigError, match=line) as error:
            load()
        assert "\n" not in str(error.value)
    (run / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="config.json is not JSON"):
        checkpoint.read_config(run)


def test_weights_that_do_not_fit_are_refused(run):
    config = checkpoint.read_config(run)
    config["model"]["d_ff"] = 13
    (run / "config.json").write_text(json.dumps(config))
    line = r"does not fit its config.json: decoder.layers.0.feed_forward.W_1.bias, .* differ"
    with pytest.raises(ConfigError, match=line):
        checkpoint.load_model(run)


def test_a_config_without_a_model_is_refused_in_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"train": {}}')
    with pytest.raises(ConfigError, match="no entry model"):
        checkpoint.read_config(tmp_path)


def test_others_may_read_the_weights(tmp_path):
    checkpoint.save_tensors(tmp_path / "weights.safetensors", {"a": torch.zeros(2)})
    assert (tmp_path / "weights.safetensors").stat().st_mode & 0o444 == 0o444
