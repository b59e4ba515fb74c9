"""Every way a run can end, short of a kill: what is left, and what is said."""

import json
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from test_loop import before_step, log, saved_step

from annotated_transformer.checkpoint import directory as checkpoint, weights
from annotated_transformer.command_line import entry_point as cli
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.errors import ConfigError
from annotated_transformer.training import log as training_log
from annotated_transformer.training.run import TrainingLoss, TrainingRun
from same_run import assert_same_run
from toys import run, text_pairs, toy_run_config

# Gradients that are no numbers


@pytest.fixture
def poisoned(monkeypatch):
    """A function that makes the loss of the given steps NaN, counted from 1."""

    def poison(steps, factor=float("nan")):
        forward, calls = TrainingLoss.forward, []

        def spoilt(self, *batch):
            loss, nll = forward(self, *batch)
            calls.append(None)
            return (loss * factor if len(calls) in steps else loss), nll

        monkeypatch.setattr(TrainingLoss, "forward", spoilt)

    return poison


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_a_step_without_numbers_is_skipped_and_counted(tmp_path, poisoned, precision, factor):
    poisoned({3, 4}, factor)
    model = run(tmp_path / "run", log_every=1, precision=precision)
    assert all(p.isfinite().all() for p in model.parameters())
    skipped = [record.get("skipped", 0) for record in log(tmp_path / "run")]
    assert skipped == [0, 0, 1, *[2] * 9]
    assert log(tmp_path / "run")[3]["loss"] is None and log(tmp_path / "run")[4]["loss"] > 0


def test_a_skipped_step_leaves_no_trace_in_the_weights():
    """The steps after it are those of Adam that never saw it."""
    model_config, train_config = toy_run_config()
    runs = [TrainingRun(model_config, train_config) for _ in range(2)]
    for r, factor in zip(runs, (1.0, float("nan"))):
        gradients = [torch.full_like(p, 0.1) for p in r.model.parameters()]
        for step in range(3):
            for p, gradient in zip(r.model.parameters(), gradients):
                p.grad = gradient * (factor if step == 1 else 1.0)
            if step == 1 and factor == 1.0:
                continue
            r.scaler.scale(torch.ones(()))
            r.scaler.step(r.optimizer)
            r.scaler.update()
        assert r.adam_steps().item() == 2
    for one, other in zip(runs[0].model.parameters(), runs[1].model.parameters()):
        assert torch.equal(one, other)


def test_a_run_that_only_skips_is_stopped_with_advice(tmp_path, poisoned):
    poisoned(range(1000))
    line = "the last 50 steps were skipped.*smaller lr_factor.*warmup_steps.*clip_norm=1"
    with pytest.raises(ConfigError, match=line):
        run(tmp_path / "run", train_steps=500, log_every=10)
    assert [record["skipped"] for record in log(tmp_path / "run")] == [10, 20, 30, 40, 50]


@pytest.mark.slow
def test_a_run_that_is_skipped_now_and_then_is_not_stopped(tmp_path, poisoned):
    poisoned({n for n in range(1, 121) if n % 40})
    run(tmp_path / "run", train_steps=120, log_every=10)
    assert log(tmp_path / "run")[-1]["skipped"] == 117


# Memory


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_lack_of_memory_names_the_batch_and_what_to_lower(tmp_path, monkeypatch, error):
    step, packings_of, shapes = TrainingRun.step, TrainingRun.packings_of, []

    def noted(self, batches):
        shapes[:] = [(*batch.source.shape, batch.target_in.size(1)) for batch in batches]
        return step(self, batches)

    def fails(self, batch):
        if self.steps == 7:
            raise error
        return packings_of(self, batch)

    with monkeypatch.context() as patch, pytest.raises(ConfigError) as refused:
        patch.setattr(TrainingRun, "step", noted)
        patch.setattr(TrainingRun, "packings_of", fails)
        run(tmp_path / "run", accumulate=2)
    rows, source, target = max(shapes, key=lambda size: size[0] * (size[1] + size[2]))
    assert str(refused.value) == (
        f"out of memory on a batch of {rows} sentences of up to {source} source and {target} "
        "target tokens: lower max_tokens, now 60 (a higher accumulate keeps a step as large), or "
        "max_length, now 40"
    )
    run(tmp_path / "whole", accumulate=2)
    run(tmp_path / "run", accumulate=2, resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("n_saved", [0, 2])
def test_a_lack_of_memory_in_a_save_blames_no_batch(tmp_path, monkeypatch, n_saved):
    belongs_to = weights.belongs_to
    saved = []

    def fails(config, vocabulary):
        if len(saved) == n_saved:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")
        saved.append(config)
        return belongs_to(config, vocabulary)

    monkeypatch.setattr(weights, "belongs_to", fails)
    with pytest.raises(ConfigError) as refused:
        run(tmp_path / "run")
    left = "step 6 is saved, and --resume goes on from there" if n_saved else "no step is saved"
    step, out = 3 * n_saved + 3, tmp_path / "run"
    assert str(refused.value) == (
        f"out of memory while step {step} was saved in {out}: {left}; other programs may use memory"
    )


def test_another_error_stays_what_it_is(tmp_path, monkeypatch):
    def differs(self, batch):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(TrainingRun, "packings_of", differs)
    with pytest.raises(RuntimeError, match="shapes differ"):
        run(tmp_path / "run")


def test_a_model_that_memory_cannot_hold_is_one_line():
    """Sizes in no allocator's reach: 2^28 rows of 2^20 numbers."""
    config = ModelConfig(2**28, N=1, d_model=2**20, d_ff=8, h=1)
    line = "out of memory for a model of d_model 1,048,576"
    with pytest.raises(ConfigError, match=line) as error:
        TrainingRun(config, TrainConfig())
    assert "\n" not in str(error.value)


# Disk


def test_a_full_disk_names_the_file_and_costs_no_checkpoint(tmp_path, monkeypatch):
    """Pretended by a limit on the size of a file, which a half-written one meets as well."""
    resource = pytest.importorskip("resource", reason="Windows has no such limits")
    out, before = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)
    small = 20_000, before[1]
    before_step(monkeypatch, 4, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, small))
    try:
        with pytest.raises(ConfigError, match="cannot write .*training.safetensors: .*too large"):
            run(out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(out.rglob(".*"))  # nothing half written
    assert saved_step(out) == 3
    monkeypatch.undo()
    run(tmp_path / "whole")
    run(out, resume=True)
    assert_same_run(out, tmp_path / "whole")


def test_a_place_that_may_not_be_written_is_one_line(tmp_path, capsys, monkeypatch):
    def denied(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    files = [str(tmp_path / name) for name in ("s", "t")]
    for path, lines in zip(files, zip(*text_pairs(1, 60))):
        with open(path, "w") as file:
            file.writelines(f"{line}\n" for line in lines)
    monkeypatch.setattr(checkpoint.files, "write_atomically", denied)
    arguments = ["train", "--train", *files, "--valid", *files, "--vocab-size", "280", "--quiet"]
    assert cli.main([*arguments, "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("config.json: Permission denied")


# The log


def test_a_log_has_no_line_twice_none_invalid_and_none_missing(tmp_path):
    changes = {"log_every": 1, "checkpoint_every": 4}
    run(tmp_path / "whole", **changes)
    run(tmp_path / "run", train_steps=8, **changes)
    path = tmp_path / "run" / "log.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    rubbish = [b"\0" * 40 + b"\n", b"{\n", b"[1]\n", b'{"step": "3"}\n', b"\xff\n", lines[5]]
    later = [json.dumps({"step": 9, "loss": 1.0}).encode() + b"\n", lines[0][:20]]
    path.write_bytes(b"".join([*lines[:3], *rubbish, *lines[3:], *later]))
    run(tmp_path / "run", resume=True, **changes)
    steps = [record["step"] for record in log(tmp_path / "run")]
    assert sorted(steps) == list(range(1, 13)) and len(steps) == 12


@pytest.mark.parametrize("ticks", [0.0, -1.0])
def test_a_clock_that_stands_still_ends_no_run(tmp_path, monkeypatch, ticks):
    clock = SimpleNamespace(perf_counter=lambda: next(times))
    times = (ticks * n for n in count())
    monkeypatch.setattr(training_log, "time", clock)
    run(tmp_path, train_steps=2, log_every=1)
    assert [record["tokens_per_s"] for record in log(tmp_path)] == [None, None]


def test_a_directory_that_is_a_link_to_nothing_is_named_with_its_cure(tmp_path):
    out = tmp_path / "out"
    out.symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match="out is a link to nothing, remove it"):
        run(out)
