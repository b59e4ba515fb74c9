import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F
from torch.testing import assert_close
from toys import random_pairs, text_pairs, toy_run_config, toy_tokenizer

import annotated_transformer
from annotated_transformer import packing, training
from annotated_transformer.batching import encode_pairs, make_batch, token_batches
from annotated_transformer.checkpoint import load_model, read_config
from annotated_transformer.config import ConfigError
from annotated_transformer.training import train
from annotated_transformer.transformer import Transformer

PAIRS = text_pairs(1, 60)


def run(out, resume=False, valid=(), model_changes=None, pairs=PAIRS, **changes):
    model_config, train_config = toy_run_config(**changes)
    model_config = model_config.replace(**(model_changes or {}))
    return train(model_config, train_config, toy_tokenizer(), pairs, list(valid), out, resume=resume, progress=False)


def log(out):
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def untimed(out):
    return [{name: value for name, value in record.items() if name != "tokens_per_s"} for record in log(out)]


def assert_same_run(one, two):
    """Weights, Adam's moments and random state bit for bit, and the same log."""
    for name in ("model.safetensors", "training.safetensors"):
        ours, theirs = load_file(one / name), load_file(two / name)
        assert ours.keys() == theirs.keys()
        assert not [key for key in ours if not torch.equal(ours[key], theirs[key])]
    assert untimed(one) == untimed(two)


def first_batches(train_config, n):
    pairs = encode_pairs(toy_tokenizer(), PAIRS, train_config.max_length)
    batches = token_batches(pairs, train_config.max_tokens, seed=train_config.seed)
    return [next(batches) for _ in range(n)]


def capturing_run(tmp_path, p_drop=0.0, **changes):
    """A run whose Adam steps only note the gradients and the rate."""
    model_config, train_config = toy_run_config(**changes)
    r = training._Run(model_config.replace(p_drop=p_drop), train_config, tmp_path, torch.device("cpu"))
    seen = []

    def note():
        seen.append({name: p.grad.clone() for name, p in r.model.named_parameters()})

    r.optimizer.step = note
    return r, seen


def loss_by_pytorch(model, batch, label_smoothing=0.1):
    logits = model(batch.source, batch.target_in)
    return F.cross_entropy(logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=0, reduction="sum",
                           label_smoothing=label_smoothing)


def test_the_gradient_is_that_of_the_mean_loss_over_real_target_tokens(tmp_path):
    r, seen = capturing_run(tmp_path)
    batches = first_batches(r.config, 2)
    n_tokens = sum(int((batch.target_out != 0).sum()) for batch in batches)
    assert sum(batch.target_out.numel() for batch in batches) > n_tokens  # there is padding to leave out
    loss, nll, n_real = r.update(batches)
    by_hand = sum(loss_by_pytorch(r.model, batch) for batch in batches)
    assert n_real == n_tokens
    assert_close(loss, by_hand.detach())
    assert_close(nll, sum(loss_by_pytorch(r.model, batch, 0.0) for batch in batches).detach())
    names, parameters = zip(*r.model.named_parameters())
    expected = dict(zip(names, torch.autograd.grad(by_hand / n_tokens, parameters)))
    assert_close(seen[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("packs", [True, False])
def test_a_step_on_a_cpu_computes_the_real_positions_alone(tmp_path, packs):
    """With `packs` off it is the step of a GPU, and of a compiled graph, which take the rectangle."""
    r, _ = capturing_run(tmp_path)
    assert r.packs  # the default on a CPU
    r.packs, rows = packs, []
    for stack in (r.model.encoder, r.model.decoder):
        layer = stack.layers[0].feed_forward
        layer.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0][..., 0].numel()))
    batch = make_batch([([5] * 3, [6] * 9), ([5] * 12, [6] * 2)])
    r.update([batch])
    assert rows == ([4 + 13, 10 + 3] if packs else [2 * 13, 2 * 10])


@pytest.mark.parametrize("packs", [False, True])
def test_a_step_on_a_gpu_waits_for_no_value(tmp_path, packs, monkeypatch):
    """On the device "meta" tensors have shapes and no values: what asks for one, or mixes devices, raises."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # which does not know that device
    monkeypatch.setattr(packing, "_fits_kernel", lambda *_: packing.varlen_attn is not None)
    model_config, train_config = toy_run_config(clip_norm=1.0)
    run = training._Run(model_config, train_config, tmp_path, torch.device("meta"))
    run.packs, run.optimizer = packs, torch.optim.SGD(run.model.parameters())  # a fused Adam is not for that device
    batches = [make_batch(random_pairs(seed, 8)) for seed in (1, 2)]
    loss, nll, n_tokens = run.update(batches)
    assert run.step == 1 and n_tokens == sum(batch.n_tokens for batch in batches)
    for value in (loss, nll):
        with pytest.raises(RuntimeError, match="meta"):
            value.item()


def test_two_half_batches_equal_one_whole_batch(tmp_path):
    """The halves have unequal numbers of tokens, and their lengths are padded differently."""
    pairs = [([5, 6], [7]), ([8, 9, 10], [11, 12, 13, 14, 15]), ([5], [6, 7, 8]), ([20, 21], [22])]
    r, seen = capturing_run(tmp_path)
    r.update([make_batch(pairs)])
    r.update([make_batch(pairs[:1]), make_batch(pairs[1:])])
    assert_close(seen[1], seen[0], rtol=1e-4, atol=1e-7)


def test_gradients_do_not_leak_into_the_next_step(tmp_path):
    r, seen = capturing_run(tmp_path)
    batches = first_batches(r.config, 1)
    r.update(batches)
    r.update(batches)
    assert_close(seen[1], seen[0], rtol=0, atol=0)


def test_clipping_is_an_option(tmp_path):
    r, seen = capturing_run(tmp_path, clip_norm=0.01)
    r.update(first_batches(r.config, 1))
    assert torch.cat([g.flatten() for g in seen[0].values()]).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_the_first_update_has_the_rate_of_step_1(tmp_path, monkeypatch):
    """What Adam really steps with, over a run, is equation 3 at 1, 2, 3 ..."""
    rates, step = [], torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: rates.append(self.param_groups[0]["lr"]) or step(self))
    run(tmp_path / "run", train_steps=8, warmup_steps=3, lr_factor=2.0, log_every=1)
    by_hand = [2.0 * 8**-0.5 * min(s**-0.5, s * 3**-1.5) for s in range(1, 9)]
    assert rates == pytest.approx(by_hand, rel=1e-12)
    assert [record["rate"] for record in log(tmp_path / "run")] == pytest.approx(by_hand, rel=1e-12)


def test_the_log_holds_nats_a_real_token(tmp_path):
    changes = {"train_steps": 1, "log_every": 1, "accumulate": 2}
    run(tmp_path / "run", model_changes={"p_drop": 0.0}, **changes)
    model_config, train_config = toy_run_config(**changes)
    torch.manual_seed(train_config.seed)
    untrained = Transformer(model_config.replace(p_drop=0.0))
    batches = first_batches(train_config, 2)
    n_tokens = sum(batch.n_tokens for batch in batches)
    (record,) = log(tmp_path / "run")
    for name, smoothing in (("loss", 0.1), ("nll", 0.0)):
        by_hand = sum(loss_by_pytorch(untrained, batch, smoothing).item() for batch in batches) / n_tokens
        assert record[name] == pytest.approx(by_hand, rel=1e-5)
    assert record["step"] == 1 and record["tokens_per_s"] > 0


def test_log_lines_are_means_since_the_last(tmp_path):
    run(tmp_path / "each", log_every=1, train_steps=4)
    run(tmp_path / "all", log_every=4, train_steps=4)
    (record,), each = log(tmp_path / "all"), log(tmp_path / "each")
    assert min(r["loss"] for r in each) < record["loss"] < max(r["loss"] for r in each)
    tokens = [batch.n_tokens for batch in first_batches(toy_run_config()[1], 4)]
    mean = sum(n * r["loss"] for n, r in zip(tokens, each, strict=True)) / sum(tokens)
    assert record["loss"] == pytest.approx(mean, rel=1e-5)


def test_training_learns_and_returns_what_it_saved(tmp_path):
    model = run(tmp_path / "run", train_steps=60, warmup_steps=30, max_tokens=400, log_every=10, lr_factor=2.0,
                model_changes={"p_drop": 0.0, "d_model": 32, "d_ff": 64})
    losses = [record["nll"] for record in log(tmp_path / "run")]
    assert losses[-1] < 0.5 * losses[0]
    loaded, _ = load_model(tmp_path / "run")
    assert not model.training
    assert_close(dict(loaded.named_parameters()), dict(model.named_parameters()), rtol=0, atol=0)


@pytest.mark.parametrize(("max_length", "least"), [(40, 40), (20, 10)])
def test_an_epoch_has_every_pair_and_as_many_joined_ones_drawn_anew(tmp_path, monkeypatch, max_length, least):
    """Those that grew too long are left out."""
    seen = defaultdict(Counter)

    def update(self, batches):
        self.step += 1
        for row in (row for batch in batches for row in batch.source.tolist()):
            seen[self.epoch][tuple(token for token in row if token > 2)] += 1
        return torch.zeros(()), torch.zeros(()), 1

    monkeypatch.setattr(training._Run, "update", update)
    monkeypatch.setattr(training._Run, "save", lambda self, path: None)
    run(tmp_path / "run", train_steps=200, concatenate=1.0, max_length=max_length)
    sources = Counter(tuple(x) for x, _ in encode_pairs(toy_tokenizer(), PAIRS, max_length))
    joined = [seen[epoch] - sources for epoch in (0, 1)]
    for epoch in (0, 1):
        assert sources <= seen[epoch] and max(map(len, seen[epoch])) < max_length
        assert least <= joined[epoch].total() <= len(PAIRS) == 60
    assert joined[0] != joined[1]


def test_the_directory_holds_what_the_other_commands_need(tmp_path):
    run(tmp_path / "run", train_steps=12, checkpoint_every=3, keep_checkpoints=2)
    assert sorted(str(p.relative_to(tmp_path / "run")) for p in (tmp_path / "run").rglob("*") if p.is_file()) == [
        "checkpoints/step-00000009.safetensors", "checkpoints/step-00000012.safetensors", "config.json", "log.jsonl",
        "model.safetensors", "tokenizer.model", "training.safetensors",
    ]
    assert read_config(tmp_path / "run")["train"]["keep_checkpoints"] == 2


def test_the_seed_decides_everything(tmp_path):
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        random.seed(name)
        torch.manual_seed(len(name))
        run(tmp_path / name, seed=seed, train_steps=4)
    assert_same_run(tmp_path / "one", tmp_path / "two")
    weights = [load_file(tmp_path / name / "model.safetensors")["embedding.weight"] for name in ("one", "other")]
    assert not torch.equal(*weights)


@pytest.mark.parametrize("stop", random.Random(0).sample(range(1, 12), 3))
def test_a_stopped_run_resumes_bit_for_bit(tmp_path, stop):
    """Across epochs (some 17 batches), with dropout, BPE-dropout, joined pairs, accumulation and clipping."""
    changes = {"accumulate": 2, "clip_norm": 1.0, "log_every": 1, "bpe_dropout": 0.1, "concatenate": 0.5}
    run(tmp_path / "whole", **changes)
    run(tmp_path / "parts", train_steps=stop, **changes)
    run(tmp_path / "parts", resume=True, **changes)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_a_run_killed_at_five_random_steps_ends_with_the_same_weights(tmp_path):
    """By SIGKILL, three times at a random update and twice in the middle of writing a checkpoint."""
    seed = random.Random(1).randrange(1000)
    package = str(Path(annotated_transformer.__file__).parents[1])
    script = subprocess.run(
        [sys.executable, Path(__file__).with_name("killed_run.py"), tmp_path, str(seed)], text=True,
        capture_output=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": package})
    assert script.returncode == 0, script.stderr
    assert script.stdout.split() == [str(int(signal.SIGKILL))] * 5 + ["0"]
    assert_same_run(tmp_path / "killed", tmp_path / "whole")
    assert [record["step"] for record in log(tmp_path / "killed")] == list(range(1, 21))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_finishes_the_step_and_saves(tmp_path, monkeypatch, number):
    run(tmp_path / "whole", log_every=1)
    update = training._Run.update

    def interrupted_update(self, batches):
        if self.step == 4:
            os.kill(os.getpid(), number)
        return update(self, batches)

    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training._Run, "update", interrupted_update)
        run(tmp_path / "run", log_every=1)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert [record["step"] for record in log(tmp_path / "run")] == [1, 2, 3, 4, 5]
    run(tmp_path / "run", resume=True, log_every=1)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_second_ctrl_c_stops_at_once(tmp_path, monkeypatch):
    def impatient(self, batches):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        pytest.fail("the second signal did not stop the step")

    monkeypatch.setattr(training._Run, "update", impatient)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run")
    assert not (tmp_path / "run" / "training.safetensors").exists()


def test_a_run_is_not_overwritten_and_nothing_is_not_resumed(tmp_path):
    with pytest.raises(ConfigError, match="nothing to resume in .*run: it has no training.safetensors"):
        run(tmp_path / "run", resume=True)
    run(tmp_path / "run", train_steps=1)
    before = (tmp_path / "run" / "training.safetensors").read_bytes()
    with pytest.raises(ConfigError, match="run already holds a run: resume it, or name another directory"):
        run(tmp_path / "run", train_steps=1)
    assert (tmp_path / "run" / "training.safetensors").read_bytes() == before


@pytest.mark.parametrize(("model_changes", "changes", "name"), [
    ({}, {"warmup_steps": 7}, "warmup_steps"),
    ({}, {"seed": 4, "accumulate": 2}, "accumulate, seed"),
    ({"p_drop": 0.2}, {}, "p_drop"),
    ({"norm": "pre"}, {}, "norm"),
])
def test_another_run_is_not_resumed(tmp_path, model_changes, changes, name):
    run(tmp_path / "run", train_steps=1)
    with pytest.raises(ConfigError, match=f"run was trained with another {name}: it cannot go on with this one"):
        run(tmp_path / "run", resume=True, model_changes=model_changes, **changes)


def test_validation_scores_held_out_text_and_changes_nothing(tmp_path):
    valid = text_pairs(2, 5)
    run(tmp_path / "without", train_steps=4)
    model = run(tmp_path / "with", train_steps=4, valid=valid, validate_every=2)
    records = [record for record in log(tmp_path / "with") if "valid_nll" in record]
    assert [record["step"] for record in records] == [2, 4]
    batch = make_batch(encode_pairs(toy_tokenizer(), valid, 100))
    with torch.no_grad():
        nll = loss_by_pytorch(model, batch, 0.0).item() / batch.n_tokens
    assert records[-1]["valid_nll"] == pytest.approx(nll, rel=1e-4)
    assert records[-1]["valid_ppl"] == pytest.approx(2.718281828**nll, rel=1e-4)
    assert 0 <= records[-1]["valid_bleu"] <= 100
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("with", "without"))
    assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("pairs", [[], [("", "")], [("tea " * 40, "tea")]])
def test_training_on_nothing_is_refused(tmp_path, pairs):
    with pytest.raises(ConfigError, match="no training pair has 1 to 40 tokens on each side"):
        run(tmp_path / "run", pairs=pairs)


def test_progress_goes_to_standard_error(tmp_path, capsys):
    model_config, train_config = toy_run_config(train_steps=2)
    train(model_config, train_config, toy_tokenizer(), PAIRS, [], tmp_path / "run")
    output = capsys.readouterr()
    assert output.out == "" and "2/2" in output.err and "loss" in output.err


def test_bf16_trains_float32_weights_to_nearly_the_same_place(tmp_path):
    half, full = (run(tmp_path / p, precision=p, model_changes={"p_drop": 0.0}) for p in ("bf16", "fp32"))
    assert {p.dtype for p in half.parameters()} == {torch.float32}
    last = [log(tmp_path / p)[-1]["loss"] for p in ("bf16", "fp32")]
    assert last[0] != last[1] and last[0] == pytest.approx(last[1], rel=0.03)


def test_a_resumed_run_writes_down_its_new_number_of_steps(tmp_path):
    run(tmp_path, train_steps=2, checkpoint_every=2)
    run(tmp_path, resume=True, train_steps=3, checkpoint_every=2)
    assert read_config(tmp_path)["train"]["train_steps"] == 3
