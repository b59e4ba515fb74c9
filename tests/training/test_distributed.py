"""Many processes make the run of one. They are real, forked by many_processes.py, joined by gloo;
64 of them are pretended, by PyTorch's process group for that purpose."""

import fcntl
import json
import os
import subprocess
import sys
import weakref
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from toys import text_pairs, toy_run_config, toy_tokenizer

import annotated_transformer
from annotated_transformer.checkpoint import load_model, step_checkpoints
from annotated_transformer.cli import main
from annotated_transformer.config import ConfigError
from annotated_transformer.text.batching import encode_pairs
from annotated_transformer.training import parts, state
from annotated_transformer.training.distributed import (
    Processes,
    let_go_of_gradients,
    require_parallel,
)
from annotated_transformer.training.loop import train
from annotated_transformer.training.run import TrainingRun

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
TESTS = Path(__file__).parents[1]
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(
        (str(Path(annotated_transformer.__file__).parents[1]), str(TESTS))
    ),
}
PAIRS = text_pairs(1, 60)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The directory of all runs, made once for all workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with open(base / "many_processes.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        directory = base / "many_processes"
        if not directory.exists():
            directory.mkdir()
            script = [sys.executable, TESTS / "many_processes.py", directory]
            done = subprocess.run(script, text=True, capture_output=True, env=ENVIRONMENT)
            (directory / "ended.json").write_text(done.stdout or json.dumps(done.stderr))
            (directory / "said").write_text(done.stderr)
    return directory


def ended(runs):
    return json.loads((runs / "ended.json").read_text())


def notes(runs, name, n):
    return [json.loads((runs / f"{name}.{rank}.json").read_text()) for rank in range(n)]


def lines(run):
    """The log by step, the validation beside the training."""
    found = {}
    for line in (run / "log.jsonl").read_text().splitlines():
        record = json.loads(line)
        del record["step"]
        step = json.loads(line)["step"]
        assert not found.get(step, {}).keys() & record.keys()  # no line twice
        found[step] = {**found.get(step, {}), **record}
    return found


def assert_alike(one, two, of_weights=1e-4):
    """Losses to 1e-5 at every step and at the end, and weights."""
    ours, theirs = lines(one), lines(two)
    assert ours.keys() == theirs.keys() == set(range(1, 9))
    names = {"loss", "nll", "rate", "valid_nll", "valid_bleu"}
    for step, record in ours.items():
        same = {name: record[name] for name in names & record.keys() & theirs[step].keys()}
        assert same.keys() >= {"loss", "nll", "rate"}
        assert same == pytest.approx({name: theirs[step][name] for name in same}, abs=1e-5)
    assert {"valid_nll", "valid_bleu"} <= ours[8].keys() & theirs[8].keys()
    weights, others = (load_file(run / "model.safetensors") for run in (one, two))
    assert weights.keys() == others.keys()
    assert max((weights[k] - others[k]).abs().max() for k in weights) < of_weights


@pytest.mark.parametrize(("name", "n"), [("two", 2), ("four", 4)])
def test_many_processes_make_the_run_of_one(runs, name, n):
    """One accumulates four batches a step, two have two each, four have one."""
    assert ended(runs)["one"] == [0] and ended(runs)[name] == [0] * n
    assert_alike(runs / "one", runs / name)


def test_weights_in_parts_change_nothing(runs):
    assert ended(runs)["fsdp"] == [0, 0]
    assert_alike(runs / "two", runs / "fsdp")


def test_a_run_goes_on_with_another_number_of_processes(runs):
    assert [ended(runs)[n] for n in ("2", "4", "1")] == [[0] * 2, [0] * 4, [0]]
    assert_alike(runs / "one", runs / "2-4-1")


def test_a_state_in_parts_is_read_by_any_number_of_processes(runs):
    """Two, four, and one whose weights are whole. Each writes the weights that others read."""
    assert [ended(runs)[f"parts of {n}"] for n in (2, 4, 1)] == [[0] * 2, [0] * 4, [0]]
    assert_alike(runs / "one", runs / "parts")
    names = [path.name for path in step_checkpoints(runs / "parts")]
    assert names == [path.name for path in step_checkpoints(runs / "one")][-len(names) :]
    model, _ = load_model(runs / "fsdp")
    weights = load_file(runs / "fsdp" / "model.safetensors")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def test_a_state_in_parts_is_no_pickle_and_no_process_writes_all(runs):
    written = sorted((runs / "fsdp" / "sharded" / "step-00000008").iterdir())
    assert [path.suffix for path in written] == [".safetensors"] * 2
    held = [sum(t.numel() for t in load_file(path).values()) for path in written]
    whole = 3 * sum(t.numel() for t in load_file(runs / "fsdp" / "model.safetensors").values())
    assert sum(held) == whole and max(held) < 0.6 * whole
    left = load_file(runs / "fsdp" / "training.safetensors")
    assert not [name for name in left if name.startswith(("model.", "adam.exp_avg"))]
    assert len(list((runs / "fsdp" / "sharded").iterdir())) == 2  # and the one before


def test_a_part_that_is_cut_short_or_gone_is_noticed(runs, tmp_path):
    model_config, _ = toy_run_config()
    folder = tmp_path / "sharded" / "step-00000008"
    folder.mkdir(parents=True)
    for name in ("config.json", "training.safetensors"):
        (tmp_path / name).write_bytes((runs / "fsdp" / name).read_bytes())
    files = sorted((runs / "fsdp" / "sharded" / folder.name).iterdir())
    for file in files:
        (folder / file.name).write_bytes(file.read_bytes())
    config = model_config.replace(p_drop=0.0)
    state.require_shapes(config, tmp_path)
    (folder / files[1].name).write_bytes(files[1].read_bytes()[:-1])
    with pytest.raises(ConfigError, match="damaged"):
        state.require_shapes(config, tmp_path)
    (folder / files[1].name).unlink()
    with pytest.raises(ConfigError, match="does not fit"):
        state.require_shapes(config, tmp_path)
    (folder / files[1].name).write_bytes(files[1].read_bytes())
    (folder / files[0].name).unlink()
    with pytest.raises(ConfigError, match="lacks a part"):
        state.require_shapes(config, tmp_path)


def test_processes_stop_together_when_one_gets_a_signal(runs):
    """Two signals come, as with Ctrl-C under torchrun, and the step is finished all the same."""
    assert ended(runs)["stopped"] == [130, 130] and ended(runs)["resumed"] == [0, 0]
    whole, stopped = runs / "dropout", runs / "stopped"
    for name in ("model.safetensors", "training.safetensors"):
        ours, theirs = load_file(whole / name), load_file(stopped / name)
        assert ours.keys() == theirs.keys()
        assert not [key for key in ours if not torch.equal(ours[key], theirs[key])]
    losses = [{step: record["loss"] for step, record in lines(r).items()} for r in (whole, stopped)]
    assert losses[0] == losses[1]


def test_each_process_drops_what_it_likes_and_goes_on_with_it(runs):
    """The bits of the last test would be others if one random state were lost."""
    first, second = (n["random"] for n in notes(runs, "stopped", 2))
    assert first != second
    saved = load_file(runs / "dropout" / "training.safetensors")
    assert not torch.equal(saved["random.cpu"], saved["random.cpu.1"])


def test_gradients_are_exchanged_once_a_step(runs):
    """Each process has two batches in the step, and the model has one bucket."""
    assert ended(runs)["exchanges"] == [0, 0]
    assert [n["times"] for n in notes(runs, "exchanges", 2)] == [[0], [0]]


def test_a_process_that_is_alone_imports_nothing_of_this(runs):
    assert notes(runs, "one", 1) == [{"heavy": []}]


def test_a_number_of_processes_that_does_not_divide_a_step_is_refused(runs):
    assert ended(runs)["three"] == [2, 2, 2] and not (runs / "three").exists()
    line = (
        "error: accumulate, the batches of a step, must be a multiple of the number of processes, "
        "got 4 and 3\n"
    )
    assert line in (runs / "said").read_text()


@pytest.mark.parametrize(
    ("n", "fsdp", "changes", "message"),
    [
        (4, False, {"accumulate": 6}, "got 6 and 4"),
        (2, False, {"accumulate": 2, "bpe_dropout": 0.1}, "bpe_dropout .* got 0.1"),
        (1, True, {}, "start them with torchrun"),
        (2, True, {"accumulate": 2, "compile": True}, "do not go together"),
    ],
)
def test_what_many_processes_cannot_do_is_refused(n, fsdp, changes, message):
    _, config = toy_run_config(**changes)
    with pytest.raises(ConfigError, match=message):
        require_parallel(config, Processes(0, n), fsdp)


@pytest.mark.parametrize("local_rank", ["0", "1"])
def test_one_process_of_a_machine_says_what_is_wrong(tmp_path, capsys, monkeypatch, local_rank):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert main(["train", "--corpus", "reverse", "--fsdp", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == (1 if local_rank == "0" else 0)
    assert not said or "start them with torchrun" in said


@contextmanager
def pretended(rank, n):
    """A group in which nothing is exchanged."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=n, store=FakeStore())
    try:
        yield Processes(rank, n)
    finally:
        dist.destroy_process_group()


def test_64_processes_share_out_a_step_without_a_word():
    """Each has the batches that it takes, and knows the number of tokens in those of the others."""
    model_config, config = toy_run_config(accumulate=128)
    pairs = encode_pairs(toy_tokenizer(), PAIRS, config.max_length)
    one = TrainingRun(model_config, config).batches(lambda _: pairs)
    plan = [next(one) for _ in range(256)]  # two steps, and many epochs
    taken = {}
    for rank in range(64):
        with pretended(rank, 64) as processes:
            run = TrainingRun(model_config, config, processes=processes)
            batches = run.batches(lambda _: pairs)
            drawn = [next(batches) for _ in range(256)]
            assert [batch.n_tokens for batch in drawn] == [batch.n_tokens for batch in plan]
            for step in (0, 128):
                places = list(range(step, step + 128))
                for place in processes.share(places):
                    assert place not in taken
                    taken[place] = drawn[place]
            made = sum(batch.source.numel() > 0 for batch in drawn)
            assert made == 4  # and nothing is made for others
    assert taken.keys() == set(range(256))
    assert all(
        torch.equal(ours, theirs)
        for place, batch in taken.items()
        for ours, theirs in zip(batch[:3], plan[place][:3])
    )


def test_64_processes_hold_the_weights_once():
    model_config, config = toy_run_config(accumulate=64)
    pairs = encode_pairs(toy_tokenizer(), PAIRS, config.max_length)
    held, whole = 0, {}
    for rank in range(64):
        with pretended(rank, 64) as processes:
            run = TrainingRun(model_config, config, processes=processes, fsdp=True)
            named = dict(run.model.named_parameters())
            held += sum(p.to_local().numel() for p in named.values())
            whole = {name: tuple(p.shape) for name, p in named.items()}
            if rank in (0, 63):  # which take a step, too
                batches = run.batches(lambda _: pairs)
                drawn = [next(batches) for _ in range(64)]
                assert run.step(drawn)[2] == sum(batch.n_tokens for batch in drawn)
    expected = TrainingRun(*toy_run_config()).model
    assert whole == {name: tuple(p.shape) for name, p in expected.named_parameters()}
    assert held == sum(p.numel() for p in expected.parameters())


def test_64_processes_put_a_layer_together_when_it_is_its_turn():
    """So that no process ever has to hold all layers whole."""
    model_config, config = toy_run_config(accumulate=64)
    with pretended(5, 64) as processes:
        model = TrainingRun(model_config, config, processes=processes, fsdp=True).model
        layers = [*model.encoder.layers, *model.decoder.layers]
        assert all(hasattr(layer, "unshard") for layer in layers)
        layers[0].unshard()
        whole = [isinstance(next(layer.parameters()), DTensor) for layer in layers]
        assert whole == [False, True]


def test_nothing_holds_the_group_when_it_ends():
    """What exchanges the gradients would hang in its end if it were the last to hold the group."""
    model_config, config = toy_run_config(accumulate=2)
    with pretended(1, 2) as processes:
        run = TrainingRun(model_config, config, processes=processes)
        reducer = weakref.ref(run.loss.reducer)
        assert reducer() is not None
        let_go_of_gradients()
        assert reducer() is None


def test_other_pairs_in_one_process_are_noticed(tmp_path, monkeypatch):
    with pretended(1, 2) as processes:
        monkeypatch.setattr(Processes, "from_first", lambda *_: b"of other pairs")
        model_config, config = toy_run_config(accumulate=2)
        with pytest.raises(ConfigError, match="need the same settings and training pairs"):
            train(
                model_config, config, toy_tokenizer(), PAIRS, [], tmp_path / "run",
                progress=False, processes=processes,
            )  # fmt: skip


def test_old_parts_go_and_the_last_two_stay(tmp_path):
    for step in (2, 4, 6, 9):
        (tmp_path / "sharded" / f"step-{step:08d}").mkdir(parents=True)
    parts.remove_old_parts(tmp_path, 6)
    left = sorted(path.name for path in (tmp_path / "sharded").iterdir())
    assert left == ["step-00000004", "step-00000006"]


@pytest.mark.slow
def test_torchrun_starts_a_killed_process_again_and_the_run_ends_as_without(tmp_path):
    """Twice, by SIGKILL, by the same command: it goes on from the last checkpoint."""
    for name, seed, n in (("t", 1, 60), ("v", 2, 5)):
        for side, texts in zip(("en", "de"), zip(*text_pairs(seed, n))):
            (tmp_path / f"{name}.{side}").write_text("".join(f"{text}\n" for text in texts))
    files = {name: [str(tmp_path / f"{name}.{side}") for side in ("en", "de")] for name in "tv"}
    settings = {
        "N": 1, "d_model": 8, "d_ff": 12, "h": 2, "p_drop": 0, "train_steps": 12, "accumulate": 2,
        "max_tokens": 60, "max_length": 40, "warmup_steps": 6, "checkpoint_every": 2,
        "log_every": 1, "lr_factor": 0.1,
    }  # fmt: skip
    arguments = ["train", "--train", *files["t"], "--valid", *files["v"], "--vocab-size", "280"]
    arguments += ["--quiet", "--device", "cpu"]
    for name, value in settings.items():
        arguments += ["--set", f"{name}={value}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2", "--max-restarts", "2", TESTS / "dying_worker.py"]
    done = subprocess.run(
        [*torchrun, *arguments, "--out", tmp_path / "killed"],
        text=True, capture_output=True, env=ENVIRONMENT, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert main([*arguments, "--out", str(tmp_path / "whole")]) == 0
    ours, theirs = lines(tmp_path / "killed"), lines(tmp_path / "whole")
    assert ours.keys() == theirs.keys() == set(range(1, 13))
    for step, record in theirs.items():
        assert ours[step]["loss"] == pytest.approx(record["loss"], abs=1e-5)
    assert ours[12]["valid_nll"] == pytest.approx(theirs[12]["valid_nll"], abs=1e-5)
