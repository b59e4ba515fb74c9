import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from annotated_transformer import files
from annotated_transformer.checkpoint import averaging, directory as checkpoint
from annotated_transformer.checkpoint.weights import (
    CHECKSUM,
    CHECKSUM_PLACEHOLDER,
    belongs_to,
    load_tensors,
    read_metadata,
    save_tensors,
    save_weights,
)
from annotated_transformer.config import ModelConfig
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import ConfigError, DamagedFileError
from annotated_transformer.model.transformer import Transformer
from toys import (
    SMALL,
    pipe_in_place_of,
    random_tokens,
    small_checkpoint,
    small_model,
    text_pairs,
    toy_tokenizer,
)

STEPS = (5, 10, 900, 1000)
SIZES = {**SMALL, "vocab_size": 280}  # as many as toy_tokenizer has


@pytest.fixture
def run(tmp_path):
    """A run with four saved models, whose name order is their step order."""
    directory, config = tmp_path / "run", ModelConfig(**SIZES)
    checkpoint.write_directory(directory, config, toy_tokenizer(), {"corpus": "copy"})
    for step in STEPS:
        model = small_model(step, torch.float32, vocab_size=280)
        save_weights(at_step(directory, step), model)
    save_weights(directory / "model.safetensors", model)
    return directory


def at_step(directory, step):
    return directory / "checkpoints" / f"step-{step:08d}.safetensors"


def assert_is_mean(averaged, files):
    assert averaged.keys() == load_file(files[0]).keys()
    for name, tensor in averaged.items():
        by_hand = sum(load_file(file)[name].double() for file in files) / len(files)
        assert tensor.dtype == torch.float32
        assert_close(tensor.double(), by_hand, rtol=1e-7, atol=0)


def test_a_model_survives_its_directory(run):
    model, tokenizer = checkpoint.load_model(run)
    original = small_model(STEPS[-1], torch.float32, vocab_size=280)
    source, target_in = random_tokens(1, 2, 7), random_tokens(2, 2, 6)
    assert torch.equal(model(source, target_in), original(source, target_in))
    assert not model.training and model.config == original.config
    assert tokenizer.model_bytes == toy_tokenizer().model_bytes
    assert checkpoint.read_config(run) == {"model": model.config.to_dict(), "corpus": "copy"}


def test_the_shared_matrix_is_stored_once_and_positions_not_at_all(run):
    tensors = load_file(run / "model.safetensors")
    assert tensors.keys() == dict(Transformer(ModelConfig(**SIZES)).named_parameters()).keys()
    assert [name for name in tensors if 280 in tensors[name].shape] == ["embedding.weight"]


def test_float16_halves_the_file_and_loads_as_float32(run):
    size = (run / "model.safetensors").stat().st_size
    model = small_model(STEPS[-1], torch.float32, vocab_size=280)
    save_weights(run / "model.safetensors", model, torch.float16)
    assert (run / "model.safetensors").stat().st_size < 0.75 * size  # the names weigh as before
    loaded, _ = checkpoint.load_model(run)
    for one, two in zip(loaded.parameters(), model.parameters(), strict=True):
        assert one.dtype == torch.float32
        assert_close(one, two, rtol=1e-3, atol=1e-6)


def test_the_average_is_the_mean_of_the_last_checkpoints(run):
    out = averaging.average_checkpoints(run, last=3)
    assert out == run.with_name("run-averaged")
    averaged = load_file(out / "model.safetensors")
    assert_is_mean(averaged, [at_step(run, step) for step in STEPS[1:]])
    assert checkpoint.read_config(out) == {
        **checkpoint.read_config(run),
        "averaged": ["step-00000010", "step-00000900", "step-00001000"],
    }
    model, tokenizer = checkpoint.load_model(out)
    assert_close(dict(model.named_parameters()), averaged, rtol=0, atol=0)
    assert tokenizer.vocab_size == toy_tokenizer().vocab_size


def test_the_average_of_one_is_itself_and_the_run_stays_as_it_was(run, tmp_path):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    out = averaging.average_checkpoints(run, last=1, out=tmp_path / "mine")
    averaged, last = load_file(out / "model.safetensors"), load_file(run / "model.safetensors")
    assert_close(averaged, last, rtol=0, atol=0)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("related", [True, False])
def test_runs_from_one_start_have_an_average_together(run, tmp_path, capsys, related):
    """Of others it is made too, with a warning."""
    other = shutil.copytree(run, tmp_path / "other")
    for step in STEPS:
        weights = small_model(100 + step, torch.float32, vocab_size=280)
        if related:
            tensors = load_file(at_step(run, step))
            for name, weight in weights.state_dict().items():
                weight.copy_(weight + tensors[name])
        save_weights(at_step(other, step), weights)
    out = averaging.average_checkpoints(run, last=2, others=[other])
    assert ("other did not begin with the weights of" in capsys.readouterr().err) != related
    files = [at_step(folder, step) for folder in (run, other) for step in STEPS[2:]]
    assert_is_mean(load_file(out / "model.safetensors"), files)
    names = [f"{file.parts[-3]}/{file.stem}" for file in files]
    assert checkpoint.read_config(out)["averaged"] == names


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_a_pipe_for_a_vocabulary_is_not_waited_for(run, tmp_path):
    other, tokenizer = shutil.copytree(run, tmp_path / "other"), toy_tokenizer()
    with pipe_in_place_of(other / "tokenizer.model"):
        for read in (
            lambda: averaging.average_checkpoints(run, last=1, others=[other]),
            lambda: checkpoint.require_same_vocabulary(tokenizer, ModelConfig(**SIZES), other),
        ):
            with pytest.raises(ConfigError, match="tokenizer.model is not an ordinary file"):
                read()


def test_runs_with_other_vocabularies_or_shapes_have_none(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "other")
    wider = Transformer(ModelConfig(**{**SIZES, "d_ff": SMALL["d_ff"] + 1}))
    save_weights(at_step(other, 2000), wider)
    with pytest.raises(ConfigError, match="step-00002000.safetensors has other weights than"):
        averaging.average_checkpoints(run, last=1, others=[other])
    with (other / "tokenizer.model").open("ab") as file:
        file.write(b" ")
    line = "other has another vocabulary than .*run: their weights have no mean"
    with pytest.raises(ConfigError, match=line):
        averaging.average_checkpoints(run, last=1, others=[other])
    with pytest.raises(ConfigError, match="nowhere is not a checkpoint directory"):
        averaging.average_checkpoints(run, last=1, others=[tmp_path / "nowhere"])
    assert not run.with_name("run-averaged").exists()


@pytest.mark.parametrize(
    ("last", "out", "line"),
    [
        (5, "mean", "run has 4 checkpoints, cannot average the last 5"),
        (0, "mean", "the number of checkpoints to average must be at least 1, got 0"),
        (2, "run", "the result needs a directory of its own, got .*run"),
    ],
)
def test_impossible_averages_are_refused(run, last, out, line):
    with pytest.raises(ConfigError, match=line):
        averaging.average_checkpoints(run, last, out=run.with_name(out))
    assert checkpoint.read_config(run)["corpus"] == "copy"


def power_cut(*_):
    raise OSError("power cut")


@pytest.mark.parametrize("when", ["while writing", "before the file is safe"])
def test_a_crash_leaves_the_old_file(tmp_path, monkeypatch, when):
    path = tmp_path / "model.safetensors"
    files.write_atomically(path, lambda new: new.write_text("old"))

    def write(new):
        new.write_text("half a fi")
        monkeypatch.setattr(os, "fsync", power_cut)
        if when == "while writing":
            power_cut()

    with pytest.raises(OSError):
        files.write_atomically(path, write)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]  # and no rubbish beside it


def test_files_are_safe_on_disk_before_they_take_their_place(tmp_path, monkeypatch):
    path, flushed = tmp_path / "deep" / "config.json", []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(path.exists()) or fsync(fd))
    files.write_atomically(path, lambda new: new.write_text("{}"))
    assert flushed == [False, True]  # the file before it is moved, its directory after
    assert path.read_text() == "{}"


@pytest.mark.parametrize("kind", ["int8", "int64", "bool", "complex64"])
def test_numbers_that_are_no_weights_are_refused_by_name(run, kind):
    table = "embedding.weight"
    for path in (run / "model.safetensors", at_step(run, 1000)):
        tensors = load_file(path)
        save_file({**tensors, table: (50 * tensors[table]).to(getattr(torch, kind))}, path)
    for reads in (checkpoint.load_model, lambda run: averaging.average_checkpoints(run, 2)):
        with pytest.raises(ConfigError, match=f"must have weights in .*, got {kind} in {table}"):
            reads(run)


def test_damage_is_named_in_one_line(run):
    (run / "cut.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:-100])
    for load, name, line in (
        (checkpoint.load_model, "elsewhere", "is not a checkpoint directory: it has no config"),
        (load_tensors, "nothing.safetensors", "no such file: .*nothing.safetensors"),
        (load_tensors, "cut.safetensors", "cut.* is not a safetensors file or is damaged"),
    ):
        with pytest.raises(ConfigError, match=line) as error:
            load(run / name)
        assert "\n" not in str(error.value)


def test_an_editor_may_put_a_byte_order_mark_before_the_config(run):
    content = (run / "config.json").read_bytes()
    (run / "config.json").write_bytes(b"\xef\xbb\xbf" + content)
    assert checkpoint.read_config(run) == json.loads(content)


def test_equal_weights_make_equal_files(tmp_path):
    """In any process: safetensors writes entries of metadata in an order drawn at random."""
    code = (
        "import sys, torch; from pathlib import Path\n"
        "from annotated_transformer.checkpoint.weights import save_tensors\n"
        "tensors = {name: torch.ones(3) for name in {*'abcdefgh'}}\n"
        "save_tensors(Path(sys.argv[1]), tensors, {name: name for name in 'abcdefgh'})"
    )
    for seed in "12":
        command = [sys.executable, "-c", code, str(tmp_path / seed)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run(command, check=True, env=environment, cwd=Path(files.__file__).parents[1])
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


@pytest.mark.parametrize("text", ["[]", '{"model": 1}', "[" * 10**5, "{"])
def test_metadata_that_is_none_is_one_line(tmp_path, text):
    save_file({}, tmp_path / "file", {CHECKSUM: f"{CHECKSUM}:{CHECKSUM_PLACEHOLDER}{text}"})
    with pytest.raises(DamagedFileError, match="file is damaged: its metadata is not JSON text$"):
        read_metadata(tmp_path / "file")


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_umask_says_who_may_read_the_files(tmp_path, umask):
    before = os.umask(umask)
    try:
        save_tensors(tmp_path / "weights.safetensors", {"a": torch.zeros(2)})
        files.write_atomically(tmp_path / "config.json", lambda new: new.write_text("{}"))
        (tmp_path / "as any program makes it").touch()
    finally:
        os.umask(before)
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    here, path = platform.node(), tmp_path / "model.safetensors"
    gone = [f".model.safetensors.{here}.{dead.pid}"]
    kept = [
        f".model.safetensors.{here}.{os.getppid()}",
        f".model.safetensors.elsewhere.{dead.pid}",
        f".other.{here}.{dead.pid}",
        ".model.safetensors.backup",
    ]
    for name in (*gone, *kept):
        (tmp_path / name).write_text("half")
    files.write_atomically(path, lambda new: new.write_text("whole"))
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([*kept, path.name])


def test_what_a_library_left_beside_a_file_goes_with_it(tmp_path):
    """safetensors writes a .tmp of its own beside the file, and renames it."""
    script = """
import os, signal, sys
from pathlib import Path
from annotated_transformer.files import write_atomically

def write(new):
    new.with_name(".tmpdh3heb").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)

write_atomically(Path(sys.argv[1]), write)
"""
    path = tmp_path / "model.safetensors"
    killed = subprocess.Popen([sys.executable, "-c", script, str(path)])
    assert killed.wait() == -signal.SIGKILL
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()].count(".tmpdh3heb") == 1
    files.write_atomically(path, lambda new: new.write_text("whole"))
    assert list(tmp_path.rglob("*")) == [path] and path.read_text() == "whole"


@pytest.mark.parametrize("what", ["directory", "file"])
def test_what_was_left_by_a_process_of_the_same_number_is_removed(tmp_path, what):
    """In a container, where every run is process 1."""
    path = tmp_path / "config.json"
    left = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")
    if what == "directory":
        left.mkdir()
        left /= ".tmpdh3heb"
    left.write_text("half")
    files.write_atomically(path, lambda new: new.write_text("whole"))
    assert list(tmp_path.iterdir()) == [path] and path.read_text() == "whole"


def test_a_save_after_one_that_was_killed_between_its_two_moves_leaves_nothing(tmp_path):
    """Then what was there has both names."""
    path, before = tmp_path / "training.safetensors", tmp_path / "training.previous.safetensors"
    path.write_text("old")
    before.hardlink_to(path)
    files.write_atomically(path, lambda new: new.write_text("new"), before)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        path.name: "new", before.name: "old"
    }  # fmt: skip


# A directory whose parts do not belong together


def test_a_tokenizer_of_another_size_is_refused(run):
    sentences = [side for pair in text_pairs(0, 200) for side in pair]
    Tokenizer.train(sentences, 290, run / "tokenizer.model")
    line = "run: the tokenizer has 290 tokens and the model's vocab_size is 280: they do not belong"
    with pytest.raises(ConfigError, match=line):
        checkpoint.load_model(run)
    with pytest.raises(ConfigError, match=line):
        averaging.average_checkpoints(run, last=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({**SIZES, "N": "6"}, "config.json: N must be int, got '6'"),
        ({**SIZES, "N": 2.5}, "config.json: N must be int, got 2.5"),
        ({**SIZES, "p_drop": None}, "config.json: p_drop must be float, got None"),
        ({"N": 2}, "config.json: ModelConfig needs vocab_size"),
        ([1, 2], "config.json: the settings of ModelConfig must be a dictionary, got [1, 2]"),
        ({**SIZES, "N": 3}, "does not fit its config.json: it has 2 layers in the encoder, N is 3"),
        ({**SIZES, "N": 2**28}, "config.json: it has 2 layers in the encoder, N is 268435456"),
        ({**SIZES, "d_model": 10}, "its config.json: decoder.layers.0.add_norm_1.norm.bias, "),
        ({**SIZES, "d_ff": 13}, "decoder.layers.0.feed_forward.W_1.bias, "),
        ({**SIZES, "vocab_size": 281}, "does not fit its config.json: embedding.weight differ"),
        ({**SIZES, "positions": "learned"}, "its config.json: positions.weight differ"),
        ({**SIZES, "d_model": 2**28, "d_ff": 2**28, "h": 1}, "does not fit its config.json: "),
        ({**SIZES, "d_ff": 10**30}, "config.json: d_ff must fit into 64 bits"),
        ("{", "config.json is not JSON"),
        ("[" * 100_000, "config.json"),
        ('{"model": {}, "corpus": ["copy"]}', "config.json"),
        ('{"train": {}}', "config.json"),
        ("\udcff", "config.json"),
    ],
)
def test_a_config_that_a_stranger_wrote_is_one_line(run, content, line):
    """As text, or the model in it."""
    text = content if isinstance(content, str) else json.dumps({"model": content})
    (run / "config.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ConfigError) as error:
        checkpoint.load_model(run)
    assert line in str(error.value) and "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"positions": "concatenated", "bias": True},
        {"positions": "none"},
        {"positions": "learned", "norm": "pre", "max_len": 30},
    ],
)
def test_a_loaded_model_has_memory_of_its_own_and_computes_and_learns(tmp_path, changes):
    original = small_checkpoint(tmp_path, **changes)
    loaded, _ = checkpoint.load_model(tmp_path)
    # In place, as a program that copies does.
    with (tmp_path / "model.safetensors").open("rb+") as file:
        file.write(bytes((tmp_path / "model.safetensors").stat().st_size))
    source, target_in = random_tokens(1, 2, 7), random_tokens(2, 2, 6)
    assert torch.equal(loaded(source, target_in), original(source, target_in))
    loaded(source, target_in).sum().backward()
    assert all(p.grad is not None and p.is_contiguous() for p in loaded.parameters())


# Averages that would overwrite, or be of nothing


@pytest.mark.parametrize("file", ["training.safetensors", "checkpoints/step-00000001.safetensors"])
def test_an_average_never_overwrites_a_run(run, file):
    other = run.with_name("run-averaged")
    for name in (file, "model.safetensors"):
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_bytes(b"mine")
    line = "run-averaged holds a training run: name another directory"
    for settings in ({}, {"out": other}):
        with pytest.raises(ConfigError, match=line):
            averaging.average_checkpoints(run, last=1, **settings)
    assert {path.read_bytes() for path in other.rglob("*") if path.is_file()} == {b"mine"}


def test_an_average_replaces_an_average_and_no_other_model(run):
    out = averaging.average_checkpoints(run, last=1)
    assert averaging.average_checkpoints(run, last=2) == out
    assert len(checkpoint.read_config(out)["averaged"]) == 2
    config = checkpoint.read_config(run)
    (out / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="run-averaged/config.json would be overwritten"):
        averaging.average_checkpoints(run, last=1)


UNLIKE = [
    {"h": 4}, {"activation": "gelu"}, {"scaled_attention": False}, {"positions": "concatenated"},
    {"eos_id": 3},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("changes", UNLIKE, ids=[next(iter(changes)) for changes in UNLIKE])
def test_equal_shapes_are_no_equal_models(run, tmp_path, changes):
    other, config = shutil.copytree(run, tmp_path / "other"), ModelConfig(**{**SIZES, **changes})
    # It has the weights of `run`, so nothing but config.json tells them apart.
    Transformer(config).load_state_dict(small_model(vocab_size=280).state_dict())
    checkpoint.write_directory(other, config, toy_tokenizer())
    line = f"other has another .*{next(iter(changes))}.* than .*run: their weights "
    with pytest.raises(ConfigError, match=line):
        averaging.average_checkpoints(run, last=1, others=[other])


def test_dropout_is_no_difference_between_models(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "other")
    config = ModelConfig(**{**SIZES, "p_drop": 0.3, "attention_dropout": 0.1, "ffn_dropout": 0.1})
    checkpoint.write_directory(other, config, toy_tokenizer())
    assert averaging.average_checkpoints(run, last=1, others=[other]).exists()


@pytest.mark.parametrize(("here", "name"), [(".", "."), ("checkpoints", "..")])
def test_a_run_may_be_named_by_where_one_stands(run, monkeypatch, here, name):
    monkeypatch.chdir(run / here)
    assert averaging.average_checkpoints(name, last=1) == run.with_name("run-averaged")


# What weights belong to


@pytest.fixture
def trained(run):
    """The same run, whose files of weights say what they belong to."""
    about = belongs_to(ModelConfig(**SIZES), toy_tokenizer().sha256)
    for path in (run / "model.safetensors", *checkpoint.step_checkpoints(run)):
        save_tensors(path, load_tensors(path)[0], about)
    return run


ALTERED = [
    {"bos_id": 3}, {"activation": "silu"}, {"positions": "none"}, {"scaled_attention": False},
    {"max_len": 7},
]  # fmt: skip


@pytest.mark.parametrize("changes", ALTERED, ids=[next(iter(changes)) for changes in ALTERED])
def test_weights_know_the_settings_that_they_were_trained_with(trained, tmp_path, changes):
    """No shape tells these, and a translation that is wrong says nothing."""
    out = averaging.average_checkpoints(trained, last=2)
    config = ModelConfig(**{**SIZES, **changes})
    for directory in (trained, out):
        checkpoint.load_model(directory)
        checkpoint.write_directory(directory, config, toy_tokenizer(), {"averaged": []})
        with pytest.raises(ConfigError, match=next(iter(changes))):
            checkpoint.load_model(directory)
    with pytest.raises(ConfigError, match=next(iter(changes))):
        averaging.average_checkpoints(trained, last=2, out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_how_a_model_learned_does_not_change_what_it_computes(trained):
    changes = {"p_drop": 0.4, "attention_dropout": 0.1, "ffn_dropout": 0.1}
    config = ModelConfig(**{**SIZES, **changes, "initialization": "scaled"})
    checkpoint.write_directory(trained, config, toy_tokenizer())
    assert checkpoint.load_model(trained)[0].config == config


@pytest.mark.parametrize("which", ["step-00001000", "model"])
def test_an_average_takes_no_vocabulary_that_its_weights_do_not_know(trained, which):
    """A run of before says it in model.safetensors alone."""
    other = Tokenizer.train([side for pair in text_pairs(7, 200) for side in pair], 280)
    other.save(trained / "tokenizer.model")
    for path in (trained / "model.safetensors", *checkpoint.step_checkpoints(trained)):
        if path.stem != which:
            save_tensors(path, load_tensors(path)[0])
    with pytest.raises(ConfigError, match="trained with another tokenizer than tokenizer.model"):
        averaging.average_checkpoints(trained, last=2)
    assert not trained.with_name("run-averaged").exists()


@pytest.mark.parametrize("said", ["", "[", "[]", "{}", '{"vocab_size": 280, "N": "x"}', "[" * 9**5])
def test_weights_whose_model_is_none_are_one_line(trained, said):
    path = trained / "model.safetensors"
    save_tensors(path, load_tensors(path)[0], {"model": said})
    with pytest.raises(ConfigError, match="is damaged: its entry model is no ModelConfig") as error:
        checkpoint.load_model(trained)
    assert "\n" not in str(error.value)


def test_a_special_id_that_the_tokenizer_does_not_have_is_refused(run):
    """Weights of before do not say their settings."""
    checkpoint.write_directory(run, ModelConfig(**SIZES, eos_id=3), toy_tokenizer())
    with pytest.raises(ConfigError, match=r"must be the tokenizer's, \(0, 1, 2\), got \(0, 1, 3\)"):
        checkpoint.load_model(run)
