"""Many processes make the run of one. They are real, forked by many_processes.py, joined by gloo;
64 of them are pretended, by PyTorch's process group for that purpose."""

import json
import os
import signal
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.testing import assert_close

import annotated_transformer
from annotated_transformer.checkpoint import weights
from annotated_transformer.command_line.entry_point import main
from annotated_transformer.data.batching import encode_pairs
from annotated_transformer.errors import ConfigError
from annotated_transformer.training.processes import (
    Processes,
    let_go_of_gradients,
    require_parallel,
)
from annotated_transformer.training.rendezvous import fresh_store
from annotated_transformer.training.run import TrainingRun
from same_run import unlike
from toys import (
    pretended,
    run as toy_run,
    text_pairs,
    toy_run_config,
    toy_tokenizer,
    under_torchrun,
)

fcntl = pytest.importorskip("fcntl", reason="no Unix: processes cannot be forked")
TESTS = Path(__file__).parents[1]
PATH = os.pathsep.join((str(Path(annotated_transformer.__file__).parents[1]), str(TESTS)))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PATH}
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
        step = record.pop("step")
        assert not found.get(step, {}).keys() & record.keys()  # no line twice
        found[step] = {**found.get(step, {}), **record}
    return found


def assert_alike(one, two):
    """Losses to 1e-5 at every step and at the end, and weights."""
    ours, theirs = lines(one), lines(two)
    assert ours.keys() == theirs.keys() == set(range(1, 9))
    names = {"loss", "nll", "rate", "valid_nll", "valid_bleu"}
    for step, record in ours.items():
        same = {name: record[name] for name in names & record.keys() & theirs[step].keys()}
        assert same.keys() >= {"loss", "nll", "rate"}
        assert same == pytest.approx({name: theirs[step][name] for name in same}, abs=1e-5)
    assert {"valid_nll", "valid_bleu"} <= ours[8].keys() & theirs[8].keys()
    assert_nearly_the_same_weights(one, two)


def assert_nearly_the_same_weights(one, two):
    assert_close(*(load_file(run / "model.safetensors") for run in (one, two)), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("name", "n"), [("two", 2), ("four", 4)])
def test_many_processes_make_the_run_of_one(runs, name, n):
    """One accumulates four batches a step, two have two each, four have one."""
    assert ended(runs)["one"] == [0] and ended(runs)[name] == [0] * n
    assert_alike(runs / "one", runs / name)


def test_a_run_goes_on_with_another_number_of_processes(runs):
    assert [ended(runs)[n] for n in ("2", "4", "1")] == [[0] * 2, [0] * 4, [0]]
    assert_alike(runs / "one", runs / "2-4-1")


def test_who_has_lost_another_process_says_so_in_one_line(runs):
    assert ended(runs)["lost"] == [2, -signal.SIGKILL]
    said = (runs / "said").read_text().splitlines()
    found = [line for line in said if "process 0 of 2 lost touch with another: " in line]
    assert len(found) == 1
    assert all("gloo" in line and ". " not in line for line in found)


def test_the_first_process_speaks_for_all(runs):
    """What refuses it refuses all, in its words; the state that it chose is the one of all."""
    assert ended(runs)["told"] == [0, 0]
    first, second = notes(runs, "told", 2)
    assert first["said"] == ["refused in 0", "refused in 0"]
    assert second["said"] == [
        "refused in 0", "another process of the run failed: see its message",
    ]  # fmt: skip
    assert first["chosen"] == second["chosen"] == "state of 0"
    assert (first["alone"], second["alone"]) == ("done", None)


def test_processes_stop_together_when_one_gets_a_signal(runs):
    """Two signals come, as with Ctrl-C under torchrun, and the step is finished all the same."""
    assert ended(runs)["stopped"] == [130, 130] and ended(runs)["resumed"] == [0, 0]
    whole, stopped = runs / "dropout", runs / "stopped"
    assert unlike(whole, stopped) == unlike(whole, stopped, "training.safetensors") == []
    losses = [{step: record["loss"] for step, record in lines(r).items()} for r in (whole, stopped)]
    assert losses[0] == losses[1]


def test_what_is_no_number_in_one_process_is_skipped_by_all(runs):
    assert ended(runs)["poisoned"] == [0] and ended(runs)["poisoned two"] == [0, 0]
    (alone,) = notes(runs, "poisoned", 1)
    assert alone["skipped"] == [0, 0, 0, *[1] * 6]  # before the first step, and after each of 8
    assert notes(runs, "poisoned two", 2) == [alone] * 2
    weights = load_file(runs / "poisoned" / "model.safetensors").values()
    assert all(tensor.isfinite().all() for tensor in weights)
    assert_nearly_the_same_weights(runs / "poisoned", runs / "poisoned two")


def test_gradients_are_exchanged_once_a_step(runs):
    """Each process has two batches in the step, and the model has one bucket."""
    assert ended(runs)["exchanges"] == [0, 0]
    assert [n["times"] for n in notes(runs, "exchanges", 2)] == [[0], [0]]


def test_a_number_of_processes_that_does_not_divide_a_step_is_refused(runs):
    assert ended(runs)["three"] == [2, 2, 2] and not (runs / "three").exists()
    line = (
        "error: accumulate, the batches of a step, must be a multiple of the number of processes, "
        "got 4 and 3\n"
    )
    assert line in (runs / "said").read_text()


@pytest.mark.parametrize(
    ("n", "changes", "message"),
    [
        (4, {"accumulate": 6}, "got 6 and 4"),
        (2, {"accumulate": 2, "bpe_dropout": 0.1}, "bpe_dropout .* got 0.1"),
    ],
)
def test_what_many_processes_cannot_do_is_refused(n, changes, message):
    _, config = toy_run_config(**changes)
    with pytest.raises(ConfigError, match=message):
        require_parallel(config, Processes(0, n))


@pytest.mark.parametrize("local_rank", ["0", "1"])
def test_one_process_of_a_machine_says_what_is_wrong(tmp_path, capsys, monkeypatch, local_rank):
    under_torchrun(monkeypatch, local_rank)
    assert main(["train", "--corpus", "nosuch", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == (1 if local_rank == "0" else 0)
    assert ("nosuch" in said) == (local_rank == "0")


def written(folder, name, pairs):
    """The two files of these pairs."""
    files = [folder / f"{name}.{side}" for side in ("en", "de")]
    for file, texts in zip(files, zip(*pairs)):
        file.write_text("".join(f"{text}\n" for text in texts))
    return [str(file) for file in files]


def with_settings(**settings):
    words = ["--device", "cpu", "--quiet"]
    for name, value in settings.items():
        words += ["--set", f"{name}={value}"]
    return words


@pytest.mark.parametrize("local_rank", ["0", "1"])
@pytest.mark.parametrize(
    ("where", "what", "line"),
    [
        ((TrainingRun, "packings_of"), torch.OutOfMemoryError(), "lower max_tokens, now 8,192"),
        ((weights, "belongs_to"), MemoryError(), "out of memory while step 1 was saved"),
    ],
    ids=["in a step", "in a save"],
)
def test_what_one_process_meets_alone_it_says_itself(
    tmp_path, capsys, monkeypatch, local_rank, where, what, line
):
    """The others only say that they have lost it."""

    def fails(*_):
        raise what

    arguments = ["train", "--train", *written(tmp_path, "t", PAIRS), "--vocab-size", "280"]
    arguments += ["--out", str(tmp_path / "run"), "--valid", *written(tmp_path, "v", PAIRS[:5])]
    arguments += with_settings(N=1, d_model=8, d_ff=12, h=2, train_steps=1, max_tokens=8192)
    under_torchrun(monkeypatch, local_rank)
    monkeypatch.setattr(*where, fails)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert line in said and said.count("error: ") == 1


def test_64_processes_share_out_a_step_without_a_word():
    """Each has the batches that it takes, and knows the number of tokens in those of the others."""
    model_config, config = toy_run_config(accumulate=128, window=32)
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
                for place in processes.share(list(range(step, step + 128))):
                    assert place not in taken
                    taken[place] = drawn[place]
            made = sum(batch.source.numel() > 0 for batch in drawn)
            assert made == 4  # and nothing is made for others
    assert taken.keys() == set(range(256))
    for place, batch in taken.items():
        assert all(map(torch.equal, batch[:3], plan[place][:3]))


def test_each_process_draws_its_own_dropout_and_the_first_that_of_one():
    """Equal masks in all of them would make a step of n batches drop the same units n times."""

    def draws(run):
        return torch.rand(4).tolist()

    model_config, config = toy_run_config(accumulate=2)
    alone = draws(TrainingRun(model_config, config))
    of_rank = []
    for rank in range(2):
        with pretended(rank, 2) as processes:
            of_rank.append(draws(TrainingRun(model_config, config, processes=processes)))
    assert of_rank[0] == alone != of_rank[1]


def test_nothing_holds_the_group_when_it_ends():
    """What exchanges the gradients would hang in its end if it were the last to hold the group."""
    model_config, config = toy_run_config(accumulate=2)
    with pretended(1, 2) as processes:
        run = TrainingRun(model_config, config, processes=processes)
        reducer = weakref.ref(run.loss.reducer)
        assert reducer() is not None
        let_go_of_gradients()
        assert reducer() is None


def test_nothing_holds_the_group_until_python_ends():
    """By then its threads would abort the process. A fresh one, which has not imported DDP yet."""
    script = """
import weakref
import torch.distributed as dist
from torch import nn
from annotated_transformer.training.rendezvous import make_group
from annotated_transformer.training.processes import data_parallel, let_go_of_gradients
make_group("gloo", dist.HashStore())
group, module = weakref.ref(dist.group.WORLD), data_parallel(nn.Linear(1, 1))
assert group() is not None
let_go_of_gradients()
del module
dist.destroy_process_group()
print(group())
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], text=True, capture_output=True, env=ENVIRONMENT
    )
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


def test_other_pairs_in_one_process_are_noticed(tmp_path, monkeypatch):
    with pretended(1, 2) as processes:
        monkeypatch.setattr(Processes, "from_first", lambda *_: b"of other pairs")
        with pytest.raises(ConfigError, match="need the same settings and training pairs"):
            toy_run(tmp_path / "run", accumulate=2, processes=processes)


def test_nobody_is_looked_for_where_a_dead_one_was():
    """The store of torchrun outlives an attempt. Here it holds two: one that was whole when it
    died, and one in which the first process had died before it had answered."""
    store, n = dist.HashStore(), 3
    for rank in range(1, n):
        store.set(f"here/{rank}", f"name {rank}")
        store.set(f"attempt/name {rank}", "whole")
        store.set(f"joined/whole/{rank}", "")
        store.set(f"here/{rank}", f"later name {rank}")
    for part in (store, dist.PrefixStore("whole", store)):
        part.set("address", "of a dead one")

    def join(rank):
        if rank != 1:
            time.sleep(0.05 * (rank + 1))
        return fresh_store(store, rank, n, timedelta(seconds=30))

    with ThreadPoolExecutor(n) as pool:
        stores = list(pool.map(join, range(n)))
    assert not any(found.check(["address"]) for found in stores)
    stores[1].set("address", "of 1")
    assert [found.get("address") for found in stores] == [b"of 1"] * n


def test_who_never_comes_is_named():
    with pytest.raises(ConfigError, match=r"never joined: \[1, 2\]"):
        fresh_store(dist.HashStore(), 0, 3, timedelta(seconds=0.03))


@pytest.mark.slow
def test_torchrun_starts_a_killed_process_again_and_the_run_ends_as_without(tmp_path):
    """Twice, by SIGKILL, by the same command: it goes on from the last checkpoint."""
    arguments = ["train", "--train", *written(tmp_path, "t", PAIRS), "--vocab-size", "280"]
    arguments += ["--valid", *written(tmp_path, "v", text_pairs(2, 5))]
    arguments += with_settings(
        N=1, d_model=8, d_ff=12, h=2, p_drop=0, train_steps=12, accumulate=2, max_tokens=60,
        max_length=40, warmup_steps=6, checkpoint_every=2, log_every=1, lr_factor=0.1,
    )  # fmt: skip
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
