"""Many processes make the run of one. They are real, forked by many_processes.py, joined by gloo;
64 of them are pretended, by PyTorch's process group for that purpose."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from toys import text_pairs, toy_run_config, toy_tokenizer

import annotated_transformer
from annotated_transformer.checkpoint import load_model, save_tensors, state_files, step_checkpoints
from annotated_transformer.cli import main
from annotated_transformer.errors import ConfigError, DamagedFileError
from annotated_transformer.text.batching import encode_pairs
from annotated_transformer.text.planning import PairsInMemory
from annotated_transformer.text.shard_writing import encode
from annotated_transformer.text.shards import Shards
from annotated_transformer.training import state
from annotated_transformer.training.distributed import sharded_checkpoint
from annotated_transformer.training.distributed.processes import Processes, require_parallel
from annotated_transformer.training.distributed.rendezvous import fresh_store
from annotated_transformer.training.distributed.wrapping import let_go_of_gradients
from annotated_transformer.training.epochs import TrainingPairs
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


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


def rename(path):
    path.rename(path.with_name("shard-00009-model-00001-of-00001.safetensors"))


SPOILT = {"whole": None, "cut": cut, "changed": flip, "gone": Path.unlink, "another's": rename}


@pytest.mark.parametrize("how", SPOILT)
def test_a_damaged_shard_sends_a_run_back_to_the_state_before(runs, tmp_path, how):
    """Step 8 has two shards; the one of step 6 is read by a single process, which goes on."""
    out = tmp_path / "run"
    shutil.copytree(runs / "fsdp", out)
    shard = max((out / "sharded" / "step-00000008").iterdir())
    if SPOILT[how]:
        SPOILT[how](shard)
    model_config, config = toy_run_config(
        train_steps=8, accumulate=4, clip_norm=0.5, log_every=1, lr_factor=0.1
    )
    model_config = model_config.replace(p_drop=0.0)
    found = state.newest_state(model_config, out).name
    assert found == ("training.safetensors" if how == "whole" else "training.previous.safetensors")
    train(model_config, config, toy_tokenizer(), PAIRS, [], out, resume=True, progress=False)
    ours, theirs = (load_file(run / "model.safetensors") for run in (out, runs / "fsdp"))
    assert max((ours[k] - theirs[k]).abs().max() for k in ours) < 1e-4
    kept = sorted(path.name for path in (out / "sharded").iterdir())
    assert kept == ["step-00000006", "step-00000008"][: 2 if how == "whole" else 1]


def test_a_state_whose_shards_are_nowhere_is_refused_in_one_line(runs, tmp_path):
    for name in ("config.json", "training.safetensors"):
        (tmp_path / name).write_bytes((runs / "fsdp" / name).read_bytes())
    config = toy_run_config()[0].replace(p_drop=0.0)
    with pytest.raises(DamagedFileError, match="does not hold the shards of") as refused:
        state.newest_state(config, tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("said", ["step-00000008", "[]", '{"folder": "step-00000008"}', "[" * 9999])
def test_a_stranger_cannot_say_where_shards_are(tmp_path, said):
    save_tensors(tmp_path / "training.safetensors", {}, {"sharded": said})
    with pytest.raises(DamagedFileError, match="it names no shards"):
        sharded_checkpoint.require_whole_shards(tmp_path / "training.safetensors")


def test_a_shard_that_cannot_be_written_ends_all_in_one_line(runs):
    assert ended(runs)["full"] == [2, 2]
    lines = [line for line in (runs / "said").read_text().splitlines() if "cannot write" in line]
    assert len(lines) == 2
    assert all("sharded/step-00000001: " in line and "oo large" in line for line in lines)


def test_who_has_lost_another_process_says_so_in_one_line(runs):
    assert ended(runs)["lost"] == [2, -signal.SIGKILL]
    said = (runs / "said").read_text().splitlines()
    found = [line for line in said if "process 0 of 2 has lost another one: " in line]
    assert len(found) == 2  # here, and where the other one is killed in the middle of a shard
    assert all("gloo" in line and ". " not in line for line in found)


def test_the_first_process_speaks_for_all(runs):
    """What refuses it refuses all, in its words; the state that it chose is the one of all."""
    assert ended(runs)["told"] == [0, 0]
    first, second = notes(runs, "told", 2)
    assert first["said"] == ["refused in 0", "refused in 0"]
    assert second["said"] == [
        "refused in 0", "another process of the run was refused: see what it said",
    ]  # fmt: skip
    assert first["chosen"] == second["chosen"] == "state of 0"
    assert (first["alone"], second["alone"]) == ("done", None)


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


@pytest.mark.parametrize(("name", "n"), [("two", 2), ("fsdp", 2), ("shard", 2)])
def test_what_is_no_number_in_one_process_is_skipped_by_all(runs, name, n):
    """By DDP and by FSDP; and where a single number in the shard of one process is none."""
    assert ended(runs)["poisoned"] == [0] and ended(runs)[f"poisoned {name}"] == [0] * n
    (alone,) = notes(runs, "poisoned", 1)
    assert alone["skipped"] == [0, 0, 0, *[1] * 6]  # before the first step, and after each of 8
    assert notes(runs, f"poisoned {name}", n) == [alone] * n
    one, two = (load_file(runs / r / "model.safetensors") for r in ("poisoned", f"poisoned {name}"))
    assert one.keys() == two.keys() and all(tensor.isfinite().all() for tensor in one.values())
    assert max((one[k] - two[k]).abs().max() for k in one) < 1e-4


@pytest.mark.parametrize(("where", "dies"), [("shards", 1), ("state", 0), ("removal", 0)])
def test_a_run_killed_in_a_save_in_parts_ends_as_without(runs, where, dies):
    """In the middle of a shard, between shards and the state that names them, and where old shards
    are removed: nothing is left of it."""
    exits = [2, 2]  # of who has lost the other one
    exits[dies] = -signal.SIGKILL
    assert ended(runs)[f"killed in {where}"] == exits
    assert ended(runs)[f"killed in {where}, resumed"] == [0, 0]
    whole, killed = runs / "fsdp", runs / f"killed in {where}"
    assert_alike(whole, killed, of_weights=1e-9)
    assert sorted(p.name for p in (killed / "sharded").iterdir()) == [
        "step-00000006", "step-00000008",
    ]  # fmt: skip
    for path in state_files(killed):
        sharded_checkpoint.require_whole_shards(path)


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


def under_torchrun(monkeypatch, local_rank):
    """What torchrun tells a process, here one that is alone but for its number."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")


@pytest.mark.parametrize("local_rank", ["0", "1"])
def test_one_process_of_a_machine_says_what_is_wrong(tmp_path, capsys, monkeypatch, local_rank):
    under_torchrun(monkeypatch, local_rank)
    assert main(["train", "--corpus", "reverse", "--fsdp", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == (1 if local_rank == "0" else 0)
    assert not said or "start them with torchrun" in said


@pytest.mark.parametrize("local_rank", ["0", "1"])
@pytest.mark.parametrize(
    ("where", "what", "line"),
    [
        ((TrainingRun, "step"), torch.OutOfMemoryError(), "lower max_tokens, now 8,192"),
        ((state, "save"), MemoryError(), "out of memory while step 1 was saved"),
        ((os, "pread"), None, "00000.offsets.npy was cut while it was being read"),
    ],
    ids=["in a step", "in a save", "a cut shard"],
)
def test_what_one_process_meets_alone_it_says_itself(
    tmp_path, capsys, monkeypatch, local_rank, where, what, line
):
    """The others only say that they have lost it."""

    def fails(*_):
        if what:
            raise what
        return b""

    encode(toy_tokenizer(), PAIRS, tmp_path / "shards", progress=False, corpus="toys")
    arguments = ["train", "--shards", str(tmp_path / "shards"), "--out", str(tmp_path / "run")]
    for side, texts in zip(("en", "de"), zip(*PAIRS)):
        (tmp_path / f"v.{side}").write_text("".join(f"{text}\n" for text in texts[:5]))
    arguments += ["--valid", str(tmp_path / "v.en"), str(tmp_path / "v.de")]
    arguments += ["--device", "cpu", "--quiet"]
    for setting in ("N=1", "d_model=8", "d_ff=12", "h=2", "train_steps=1", "max_tokens=8192"):
        arguments += ["--set", setting]
    under_torchrun(monkeypatch, local_rank)
    if what is None:
        monkeypatch.setattr(Shards, "verify", lambda _: None)
    monkeypatch.setattr(*where, fails)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert line in said and said.count("error: ") == 1


@contextmanager
def pretended(rank, n):
    """A group in which nothing is exchanged."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=n, store=FakeStore())
    try:
        yield Processes(rank, n)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("window", [0, 32], ids=["at once", "in windows"])
def test_64_processes_share_out_a_step_without_a_word(window):
    """Each has the batches that it takes, and knows the number of tokens in those of the others."""
    model_config, config = toy_run_config(accumulate=128, window=window)
    pairs = encode_pairs(toy_tokenizer(), PAIRS, config.max_length)
    pairs = PairsInMemory(pairs) if window else pairs
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


def test_a_save_puts_the_model_together_in_the_first_process_alone(tmp_path, monkeypatch):
    """Tensor after tensor: the others let go of each before the next."""
    model_config, config = toy_run_config(accumulate=2)
    whole, gathered, most = sharded_checkpoint.whole, [], []

    def noted(tensor):
        gathered.append(weakref.ref(found := whole(tensor)))
        most.append(sum(tensor() is not None for tensor in gathered))
        return found

    monkeypatch.setattr(sharded_checkpoint, "whole", noted)
    monkeypatch.setattr(sharded_checkpoint, "save_shards", lambda *_: {})
    with pretended(1, 2) as processes:
        run = TrainingRun(model_config, config, processes=processes, fsdp=True)
        state.save(run, tmp_path)
        assert len(gathered) == len(run.model.state_dict()) and max(most) == 1
        model = sharded_checkpoint.whole_model(run.model)
        assert max(most) == len(model.state_dict()) and not model.embedding.weight.is_meta


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


def test_nothing_holds_the_group_until_python_ends():
    """By then its threads would abort the process. A fresh one, which has not imported DDP yet."""
    script = """
import weakref
import torch.distributed as dist
from torch import nn
from annotated_transformer.training.distributed.rendezvous import make_group
from annotated_transformer.training.distributed.wrapping import data_parallel, let_go_of_gradients
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
        model_config, config = toy_run_config(accumulate=2)
        with pytest.raises(ConfigError, match="need the same settings and training pairs"):
            train(
                model_config, config, toy_tokenizer(), PAIRS, [], tmp_path / "run",
                progress=False, processes=processes,
            )  # fmt: skip


def test_shards_stay_as_long_as_a_state_names_them(tmp_path):
    """Whichever step that was: a run that went back has a state that is older than what it left."""
    for step in (2, 4, 6, 9):
        (tmp_path / "sharded" / f"step-{step:08d}").mkdir(parents=True)
    for name, step in (("training", 6), ("training.previous", 2)):
        about = json.dumps({"folder": f"step-{step:08d}", "sha256": {}})
        save_tensors(tmp_path / f"{name}.safetensors", {}, {"sharded": about})
    sharded_checkpoint.remove_old_shards(tmp_path)
    left = sorted(path.name for path in (tmp_path / "sharded").iterdir())
    assert left == ["step-00000002", "step-00000006"]


def test_one_process_of_a_machine_verifies_the_data(tmp_path, monkeypatch):
    encode(toy_tokenizer(), PAIRS, tmp_path / "shards", progress=False, corpus="toys")
    verified, config = [], toy_run_config()[1]
    monkeypatch.setattr(Shards, "verify", lambda shards: verified.append(shards.directory))
    for local_rank, times in ((0, 1), (1, 0)):
        with pretended(2 + local_rank, 4) as processes:
            one = replace(processes, local_rank=local_rank)
            TrainingPairs(config, toy_tokenizer(), Shards(tmp_path / "shards"), one)
        assert len(verified) == times
        verified.clear()


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
    with pytest.raises(ConfigError, match=r"never came: \[1, 2\]"):
        fresh_store(dist.HashStore(), 0, 3, timedelta(seconds=0.03))


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
