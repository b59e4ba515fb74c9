import functools
import json
import math
import os
import random
import signal
from collections import Counter, defaultdict
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer.checkpoint import directory as checkpoint, weights
from annotated_transformer.checkpoint.directory import load_model, read_config
from annotated_transformer.checkpoint.weights import load_tensors, save_tensors
from annotated_transformer.data.batching import encode_pairs, make_batch, pad_source, token_batches
from annotated_transformer.data.parallel_text import pairs_sha256
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding.evaluation import bleu, bleu_counts
from annotated_transformer.decoding.search import beam_search, greedy_search
from annotated_transformer.errors import ConfigError, Terminated
from annotated_transformer.fast.decoder import FastDecoder
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training import (
    log as training_log,
    loop as training,
    optimizer,
    run as training_run,
    state as training_state,
)
from annotated_transformer.training.optimizer import require_hardware, resolved_precision
from annotated_transformer.training.run import TrainingRun
from annotated_transformer.training.validation import Validation
from fake_cuda import fake_cuda
from same_run import assert_same_run, unlike
from survival import untimed
from toys import random_pairs, run, small_model, text_pairs, toy_run_config, toy_tokenizer

PAIRS = text_pairs(1, 60)


def log(out):
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def saved_step(out):
    """The step of the state that a run would resume from."""
    path = out / "training.safetensors"
    return json.loads(load_tensors(path)[1]["counters"])["step"] if path.exists() else None


def before_step(patch, n, do):
    """`do` is called when a run has made n steps, and begins another."""
    step = TrainingRun.step

    def noticed(self, batches):
        if self.steps == n:
            do()
        return step(self, batches)

    patch.setattr(TrainingRun, "step", noticed)


@contextmanager
def full_disk(monkeypatch, at):
    """The disk is full when the n-th file of tensors is written, and the run ends with that."""
    save_tensors, calls = weights.save_tensors, []

    def fails(path, *rest):
        calls.append(path)
        if len(calls) == at:
            raise OSError("No space left on device")
        save_tensors(path, *rest)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(weights, "save_tensors", fails)
        yield


@pytest.fixture
def attended(monkeypatch):
    """For each attention that is computed: its type, and whether cuDNN may compute it."""
    seen, attention = [], F.scaled_dot_product_attention

    def note(queries, *rest, **options):
        seen.append((queries.dtype, torch.backends.cuda.cudnn_sdp_enabled()))
        return attention(queries, *rest, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", note)
    return seen


def eager_scaler(dtype, device):
    """Begins with a scale that overflows, and doubles it after two steps that did not."""
    enabled = dtype == torch.float16
    return torch.amp.GradScaler(device.type, init_scale=2.0**22, growth_interval=2, enabled=enabled)


def first_batches(train_config, n):
    pairs = encode_pairs(toy_tokenizer(), PAIRS, train_config.max_length)
    batches = token_batches(pairs, train_config.max_tokens, seed=train_config.seed)
    return [next(batches) for _ in range(n)]


def capturing_run(p_drop=0.0, packing="auto", **changes):
    """A run whose Adam steps only note the gradients and the rate."""
    model_config, train_config = toy_run_config(**changes)
    r = TrainingRun(model_config.replace(p_drop=p_drop), train_config, packing=packing)
    seen, named = [], r.model.named_parameters
    r.optimizer.step = lambda: seen.append({name: p.grad.clone() for name, p in named()})
    return r, seen


def loss_by_pytorch(model, batch, label_smoothing=0.1):
    logits = model(batch.source, batch.target_in).flatten(0, 1)
    options = {"ignore_index": 0, "reduction": "sum", "label_smoothing": label_smoothing}
    return F.cross_entropy(logits, batch.target_out.flatten(), **options)


@pytest.mark.slow
def test_the_gradient_is_that_of_the_mean_loss_over_real_target_tokens():
    r, seen = capturing_run()
    batches = first_batches(r.config, 2)
    n_tokens = sum(int((batch.target_out != 0).sum()) for batch in batches)
    # There is padding to leave out.
    assert sum(batch.target_out.numel() for batch in batches) > n_tokens
    loss, nll, n_real = r.step(batches)
    by_hand = sum(loss_by_pytorch(r.model, batch) for batch in batches)
    assert n_real == n_tokens
    assert_close(loss, by_hand.detach())
    assert_close(nll, sum(loss_by_pytorch(r.model, batch, 0.0) for batch in batches).detach())
    names, parameters = zip(*r.model.named_parameters())
    expected = dict(zip(names, torch.autograd.grad(by_hand / n_tokens, parameters)))
    assert_close(seen[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("packing", ["auto", "on", "off"])
def test_a_step_on_a_cpu_computes_the_real_positions_alone(packing):
    """Unless packing is off: that is the step of a GPU, and of a compiled graph,
    which take the rectangle."""
    r, _ = capturing_run(packing=packing)
    rows = []
    for stack in (r.model.encoder, r.model.decoder):
        layer = stack.layers[0].feed_forward
        layer.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0][..., 0].numel()))
    batch = make_batch([([5] * 3, [6] * 9), ([5] * 12, [6] * 2)])
    r.step([batch])
    assert rows == ([2 * 13, 2 * 10] if packing == "off" else [4 + 13, 10 + 3])


def test_a_step_on_a_gpu_waits_for_no_value(monkeypatch):
    """On the device "meta" tensors have shapes and no values: what asks for one,
    or mixes devices, raises."""
    # Which does not know that device.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    model_config, train_config = toy_run_config(clip_norm=1.0)
    run = TrainingRun(model_config, train_config, "meta")
    # A fused Adam, which is told on the device what to skip, is not for that one.
    run.optimizer = torch.optim.SGD(run.model.parameters())
    run.scaler = torch.amp.GradScaler(enabled=False)
    batches = [make_batch(random_pairs(seed, 8)) for seed in (1, 2)]
    loss, nll, n_tokens = run.step(batches)
    assert run.steps == 1 and n_tokens == sum(batch.n_tokens for batch in batches)
    for value in (loss, nll):
        with pytest.raises(RuntimeError, match="meta"):
            value.item()


def test_two_half_batches_equal_one_whole_batch():
    """The halves have unequal numbers of tokens, and their lengths are padded differently."""
    pairs = [([5, 6], [7]), ([8, 9, 10], [11, 12, 13, 14, 15]), ([5], [6, 7, 8]), ([20, 21], [22])]
    r, seen = capturing_run()
    r.step([make_batch(pairs)])
    r.step([make_batch(pairs[:1]), make_batch(pairs[1:])])
    assert_close(seen[1], seen[0], rtol=1e-4, atol=1e-7)


def test_gradients_do_not_leak_into_the_next_step():
    r, seen = capturing_run()
    batches = first_batches(r.config, 1)
    r.step(batches)
    r.step(batches)
    assert_close(seen[1], seen[0], rtol=0, atol=0)


def test_clipping_is_an_option():
    r, seen = capturing_run(clip_norm=0.01)
    r.step(first_batches(r.config, 1))
    norm = torch.cat([g.flatten() for g in seen[0].values()]).norm().item()
    assert norm == pytest.approx(0.01, rel=1e-3)


def test_the_first_update_has_the_rate_of_step_1(tmp_path, monkeypatch):
    """What Adam really steps with, over a run, is equation 3 at 1, 2, 3 ..."""
    rates, step = [], torch.optim.Adam.step

    def noted(self):
        rates.append(self.param_groups[0]["lr"])
        return step(self)

    monkeypatch.setattr(torch.optim.Adam, "step", noted)
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
        by_hand = sum(loss_by_pytorch(untrained, batch, smoothing).item() for batch in batches)
        assert record[name] == pytest.approx(by_hand / n_tokens, rel=1e-5)
    assert record["step"] == 1 and record["tokens_per_s"] > 0


@pytest.mark.slow
def test_the_last_step_is_logged_wherever_it_falls(tmp_path):
    run(tmp_path / "each", log_every=1, train_steps=5)
    run(tmp_path / "some", log_every=3, train_steps=5)
    each, some = log(tmp_path / "each"), log(tmp_path / "some")
    assert [record["step"] for record in some] == [3, 5]
    n_3, n_4, n_5 = [batch.n_tokens for batch in first_batches(toy_run_config()[1], 5)][2:]
    mean = (n_4 * each[3]["loss"] + n_5 * each[4]["loss"]) / (n_4 + n_5)
    assert some[1]["loss"] == pytest.approx(mean, rel=1e-5)


@pytest.mark.slow
def test_a_validation_between_two_lines_takes_nothing_from_the_second(tmp_path):
    run(tmp_path / "without", log_every=5, train_steps=10)
    run(tmp_path / "with", log_every=5, train_steps=10, valid=text_pairs(2, 5), validate_every=4)
    training_lines = [record for record in untimed(tmp_path / "with") if "loss" in record]
    assert training_lines == untimed(tmp_path / "without")


def test_seconds_of_validation_are_not_those_of_training(tmp_path, monkeypatch):
    """On a clock that a step moves by one second, and a validation by a hundred."""
    clock, update = [0.0], TrainingRun.step

    def move(seconds, result=None):
        clock[0] += seconds
        return result

    monkeypatch.setattr(training_log, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(Validation, "__call__", lambda *_: move(100, {"valid_nll": 1.0}))
    monkeypatch.setattr(TrainingRun, "step", lambda *step: move(1, update(*step)))
    run(tmp_path, log_every=10, train_steps=10, valid=text_pairs(2, 5), validate_every=4)
    n_tokens = sum(batch.n_tokens for batch in first_batches(toy_run_config()[1], 10))
    (trained,) = (record for record in log(tmp_path) if "loss" in record)
    assert trained["tokens_per_s"] == pytest.approx(n_tokens / 10)


def test_the_log_is_json_even_where_a_loss_is_not_finite(tmp_path, monkeypatch):
    def update(self, batches):
        self.steps += 1
        return torch.tensor(float("nan")), torch.tensor(float("inf")), 1

    scores = {"valid_nll": 999.0, "valid_ppl": math.inf}
    monkeypatch.setattr(TrainingRun, "step", update)
    monkeypatch.setattr(Validation, "__call__", lambda *_: scores)
    run(tmp_path, train_steps=1, valid=text_pairs(2, 5))
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    trained, validated = (json.loads(line, parse_constant=pytest.fail) for line in lines)
    assert (trained["loss"], trained["nll"]) == (None, None) and trained["rate"] > 0
    assert validated == {"step": 1, "valid_nll": 999.0, "valid_ppl": None}


@pytest.mark.slow
def test_training_learns_and_returns_what_it_saved(tmp_path):
    wider = {"p_drop": 0.0, "d_model": 32, "d_ff": 64}
    steps = {"train_steps": 60, "warmup_steps": 30, "log_every": 10}
    model = run(tmp_path / "run", model_changes=wider, **steps, max_tokens=400, lr_factor=2.0)
    losses = [record["nll"] for record in log(tmp_path / "run")]
    assert losses[-1] < 0.5 * losses[0]
    loaded, _ = load_model(tmp_path / "run")
    assert not model.training
    assert_close(dict(loaded.named_parameters()), dict(model.named_parameters()), rtol=0, atol=0)


@pytest.mark.parametrize(("max_length", "least"), [(40, 40), (20, 10)])
def test_an_epoch_has_every_pair_and_as_many_joined_ones_drawn_anew(
    tmp_path, monkeypatch, max_length, least
):
    """Those that grew too long are left out."""
    seen = defaultdict(Counter)

    def update(self, batches):
        self.steps += 1
        for row in (row for batch in batches for row in batch.source.tolist()):
            seen[self.epoch][tuple(token for token in row if token > 2)] += 1
        return torch.zeros(()), torch.zeros(()), 1

    monkeypatch.setattr(TrainingRun, "step", update)
    monkeypatch.setattr(training_state, "save_state", lambda *_, **__: None)
    monkeypatch.setattr(training_log, "_require_progress", lambda *_: None)  # Adam makes no step
    run(tmp_path / "run", train_steps=200, concatenate=1.0, max_length=max_length)
    sources = Counter(tuple(x) for x, _ in encode_pairs(toy_tokenizer(), PAIRS, max_length))
    joined = [seen[epoch] - sources for epoch in (0, 1)]
    for epoch in (0, 1):
        assert sources <= seen[epoch] and max(map(len, seen[epoch])) < max_length
        assert least <= joined[epoch].total() <= len(PAIRS) == 60
    assert joined[0] != joined[1]


def test_the_seed_decides_everything(tmp_path):
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        random.seed(name)
        torch.manual_seed(len(name))
        run(tmp_path / name, seed=seed, train_steps=4)
    assert_same_run(tmp_path / "one", tmp_path / "two")
    assert "embedding.weight" in unlike(tmp_path / "one", tmp_path / "other")


@pytest.mark.slow
@pytest.mark.parametrize("stop", random.Random(0).sample(range(1, 12), 3))
def test_a_stopped_run_resumes_bit_for_bit(tmp_path, stop):
    """Across epochs (some 17 batches), with dropout, BPE-dropout, joined pairs,
    accumulation and clipping."""
    changes = {
        "accumulate": 2,
        "clip_norm": 1.0,
        "log_every": 1,
        "bpe_dropout": 0.1,
        "concatenate": 0.5,
    }
    run(tmp_path / "whole", **changes)
    run(tmp_path / "parts", train_steps=stop, **changes)
    run(tmp_path / "parts", resume=True, **changes)
    if stop % 3:  # the last step of a run is a checkpoint, which the whole run does not have
        (tmp_path / "parts" / f"checkpoints/step-{stop:08d}.safetensors").unlink()
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_with_a_later_optimizer_resumes_bit_for_bit(tmp_path, optimizer):
    changes = {"optimizer": optimizer, "weight_decay": 0.1, "log_every": 1, "train_steps": 6}
    run(tmp_path / "whole", **changes)
    run(tmp_path / "parts", **{**changes, "train_steps": 3})
    run(tmp_path / "parts", resume=True, **changes)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.slow
def test_a_stopped_run_in_float16_resumes_bit_for_bit(tmp_path, monkeypatch):
    """The scale among it, which overflow has halved and steps without overflow have doubled."""
    monkeypatch.setattr(training_run, "gradient_scaler", eager_scaler)
    changes = {"precision": "fp16", "log_every": 1, "clip_norm": 1.0}
    run(tmp_path / "whole", **changes)
    run(tmp_path / "parts", train_steps=7, **changes)
    metadata = load_tensors(tmp_path / "parts" / "training.safetensors")[1]
    assert json.loads(metadata["scaler"])["_growth_tracker"] == 1  # half way to the next doubling
    (tmp_path / "parts" / "checkpoints/step-00000007.safetensors").unlink()
    run(tmp_path / "parts", resume=True, **changes)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    scales = [record["scale"] for record in log(tmp_path / "whole")]
    assert scales != sorted(scales, reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_checkpoint_that_fails_at_any_file_is_written_again(tmp_path, monkeypatch, at):
    """The disk is full at the first, second or third file of the checkpoint of step 6."""
    run(tmp_path / "whole", log_every=5)
    with full_disk(monkeypatch, at=3 + at):
        run(tmp_path / "run", log_every=5)
    run(tmp_path / "run", log_every=5, resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("at", [1, 2])
def test_a_first_save_before_a_validation_that_fails_leaves_no_dead_end(tmp_path, monkeypatch, at):
    """Either there is nothing yet, and the run begins again, or there is a state to go on from."""
    settings = dict(validate_every=2, checkpoint_every=100, valid=PAIRS[:5])
    run(tmp_path / "whole", **settings)
    with full_disk(monkeypatch, at):
        run(tmp_path / "run", **settings)
    assert (tmp_path / "run" / "training.safetensors").exists() == (at == 2)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    run(tmp_path / "run", resume=at == 2, **settings)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_builds_no_model_that_its_weights_do_not_have(tmp_path, monkeypatch, resume):
    """A config.json of a few bytes can promise a model of any size."""
    run(tmp_path / "first", train_steps=1)
    config = read_config(tmp_path / "first")
    config["model"]["d_ff"] = 1_000_000
    (tmp_path / "first" / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(training, "TrainingRun", None)  # it would take the memory
    out = tmp_path / ("first" if resume else "second")
    init = None if resume else tmp_path / "first"
    with pytest.raises(ConfigError, match="does not fit its config.json"):
        run(out, model_changes={"d_ff": 1_000_000}, resume=resume, init=init)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_ctrl_c_finishes_the_step_and_saves(tmp_path, monkeypatch, number, error):
    run(tmp_path / "whole")
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as stopped:
        before_step(patch, 4, lambda: os.kill(os.getpid(), number))
        run(tmp_path / "run")
    assert stopped.type is error
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert [record["step"] for record in log(tmp_path / "run")] == [2, 4]
    assert saved_step(tmp_path / "run") == 5
    run(tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_second_ctrl_c_stops_at_once_and_saves_nothing_half_done(tmp_path, monkeypatch):
    update = TrainingRun.step

    def impatient(self, batches):
        if self.steps < 4:
            return update(self, batches)
        self.steps += 1
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        pytest.fail("the second signal did not stop the step")

    monkeypatch.setattr(TrainingRun, "step", impatient)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run")
    assert saved_step(tmp_path / "run") == 3


@pytest.mark.slow
@pytest.mark.parametrize(("step", "saved"), [(0, None), (7, 7)])
def test_ctrl_c_does_not_wait_for_a_corpus_to_be_encoded(tmp_path, monkeypatch, step, saved):
    """Nor does it cost a step, wherever in an epoch, or between two, it comes."""
    run(tmp_path / "whole", accumulate=3)
    next_batch = TrainingRun.batches

    def interrupted(self, epoch_pairs):
        for n, batch in enumerate(next_batch(self, epoch_pairs)):
            if n == 3 * step + 1:  # in the middle of drawing the batches of a step
                signal.raise_signal(signal.SIGINT)
                pytest.fail("the signal waited")
            yield batch

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TrainingRun, "batches", interrupted)
        run(tmp_path / "run", accumulate=3)
    assert saved_step(tmp_path / "run") == saved
    run(tmp_path / "run", accumulate=3, resume=saved is not None)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def interrupted_validation(*_):
    signal.raise_signal(signal.SIGINT)
    pytest.fail("the signal waited")


def failing_validation(*_):
    raise MemoryError("a long sentence")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("validate", "error"),
    [(interrupted_validation, KeyboardInterrupt), (failing_validation, MemoryError)],
)
@pytest.mark.parametrize("every", [5, 12])
def test_a_validation_that_fails_costs_no_step_and_is_made_up_for(
    tmp_path, monkeypatch, validate, error, every
):
    """Be it between two checkpoints or at the end; Ctrl-C does not wait for it either."""
    changes = {"valid": text_pairs(2, 5), "validate_every": every, "checkpoint_every": 50}
    run(tmp_path / "whole", **changes)
    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(Validation, "__call__", validate)
        run(tmp_path / "run", **changes)
    assert saved_step(tmp_path / "run") == every
    run(tmp_path / "run", resume=True, **changes)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert [r["step"] for r in log(tmp_path / "run") if "valid_nll" in r][0] == every


def test_a_run_is_not_overwritten_and_nothing_is_not_resumed(tmp_path):
    line = "nothing to resume in .*run: it has no training.safetensors"
    with pytest.raises(ConfigError, match=line):
        run(tmp_path / "run", resume=True)
    run(tmp_path / "run", train_steps=1)
    before = (tmp_path / "run" / "training.safetensors").read_bytes()
    line = "run already holds a run: resume it .--resume., or name another"
    with pytest.raises(ConfigError, match=line):
        run(tmp_path / "run", train_steps=1)
    assert (tmp_path / "run" / "training.safetensors").read_bytes() == before


LEARNED = {"positions": "learned", "max_len": 39}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"pairs": []}, "no training pair has 1 to 40 tokens, eos counted"),
        ({"pairs": [("", "")]}, "no training pair has 1 to 40 tokens, eos counted"),
        ({"pairs": [("tea " * 40, "tea")]}, "no training pair has 1 to 40 tokens, eos counted"),
        ({"model_changes": LEARNED}, "max_length must not exceed max_len.*got 40 and 39"),
        (
            {"model_changes": {"vocab_size": 281}},
            "has 280 tokens and the model's vocab_size is 281",
        ),
    ],
)
def test_a_run_that_cannot_be_is_not_begun(tmp_path, changes, line):
    with pytest.raises(ConfigError, match=line):
        run(tmp_path / "run", **changes)
    assert not list(tmp_path.rglob("*.safetensors"))


OTHER_PAIRS = "was trained on other pairs, or in another order"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"warmup_steps": 7}, "run was trained with another warmup_steps: it cannot go on with"),
        ({"seed": 4, "accumulate": 2}, "run was trained with another accumulate, seed: it cannot"),
        ({"model_changes": {"p_drop": 0.2}}, "run was trained with another p_drop: it cannot"),
        ({"model_changes": {"norm": "pre"}}, "run was trained with another norm: it cannot"),
        ({"pairs": PAIRS[:-1]}, OTHER_PAIRS),
        ({"pairs": PAIRS[::-1]}, OTHER_PAIRS),
        ({"pairs": [*PAIRS[:-1], ("tea", "tea")]}, OTHER_PAIRS),
        ({"train_steps": 1}, "has made 2 steps: train_steps must not be less, got 1"),
    ],
)
def test_another_run_is_not_resumed(tmp_path, changes, line):
    run(tmp_path / "run", train_steps=2)
    before = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(ConfigError, match=line):
        run(tmp_path / "run", resume=True, **changes)
    assert (tmp_path / "run" / "config.json").read_bytes() == before
    run(tmp_path / "run", resume=True, pairs=tuple(PAIRS), train_steps=2)


@pytest.mark.slow
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
    assert unlike(tmp_path / "with", tmp_path / "without") == []


@pytest.mark.slow
def test_valid_bleu_is_that_of_greedy_search(monkeypatch):
    """A model of random weights, for which a beam finds something else."""
    model, tokenizer, scored = small_model(vocab_size=280, dtype=torch.float32), toy_tokenizer(), []

    def counts(hypothesis, reference, tokenizer):
        scored.append((hypothesis, reference))
        return bleu_counts(hypothesis, reference, tokenizer)

    monkeypatch.setattr("annotated_transformer.training.validation.bleu_counts", counts)
    valid = text_pairs(2, 20)
    score = Validation(model.config, tokenizer, valid)(model)["valid_bleu"]
    ids = pad_source(tokenizer.encode_batch([source for source, _ in valid]))
    searches = greedy_search(model, ids), [found[0].tokens for found in beam_search(model, ids)]
    greedy, of_beam = (
        [" ".join(tokenizer.decode(tokens).splitlines()) for tokens in s] for s in searches
    )
    references = [target for _, target in valid]
    assert scored == list(zip(greedy, references, strict=True)) and greedy != of_beam
    assert score == pytest.approx(bleu(greedy, references).score)


def test_validation_pairs_beyond_the_last_position_are_left_out_aloud(tmp_path, caplog):
    learned = {"positions": "learned", "max_len": 20}
    changes = {"max_length": 20, "train_steps": 2, "model_changes": learned}
    valid = text_pairs(2, 5)
    run(tmp_path / "some", valid=valid, **changes)
    assert caplog.messages == []
    run(tmp_path / "all", valid=[*valid, ("tea " * 60, "aet"), ("aet", "tea " * 60)], **changes)
    assert untimed(tmp_path / "all") == untimed(tmp_path / "some")
    assert caplog.messages == [
        "2 of 7 pairs have more than 20 tokens on a side and are left out of the perplexity"
    ]


def test_on_a_gpu_validation_searches_with_the_model_made_ready(monkeypatch):
    found = []

    class Translator:
        def __init__(self, model, tokenizer, device, search_model):
            found.append(type(search_model))

        def translate(self, sources, beam_size):
            return [""] * len(sources)

    monkeypatch.setattr("annotated_transformer.training.validation.Translator", Translator)
    model = small_model(vocab_size=280).train()
    for device in ("cuda", "cpu"):
        Validation(model.config, toy_tokenizer(), text_pairs(2, 5), torch.device(device))(model)
    assert found == [FastDecoder, type(None)] and model.training


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 2e-3), ("fp16", 2e-4)])
def test_half_precision_trains_float32_weights_to_nearly_the_same_place(
    tmp_path, precision, tolerance
):
    """In six steps; later on steps of this size, taken from slightly different weights,
    part ways."""
    changes = {"train_steps": 6, "log_every": 1, "model_changes": {"p_drop": 0.0}}
    half, _ = (run(tmp_path / p, precision=p, **changes) for p in (precision, "fp32"))
    assert {p.dtype for p in half.parameters()} == {torch.float32}
    last = [log(tmp_path / p)[-1]["loss"] for p in (precision, "fp32")]
    assert last[0] != last[1] and last[0] == pytest.approx(last[1], rel=tolerance)


def test_a_resumed_run_keeps_the_name_of_its_corpus(tmp_path):
    def go(steps, **where):
        run(tmp_path, train_steps=steps, **where)
        return read_config(tmp_path)["corpus"]

    assert go(1, corpus="toys") == go(2, resume=True) == "toys"
    assert go(3, resume=True, corpus="other toys") == "other toys"


@functools.cache
def other_tokenizer():
    return Tokenizer.train([side for pair in text_pairs(7, 200) for side in pair[::-1]], 280)


@pytest.mark.parametrize("resume", [True, False])
def test_weights_keep_the_tokenizer_that_they_were_trained_with(tmp_path, resume):
    first = tmp_path / "run"
    run(first, train_steps=1)
    before = (first / "tokenizer.model").read_bytes()
    assert before != other_tokenizer().model_bytes
    how = {"resume": True} if resume else {"init": first}
    how |= {"out": first if resume else tmp_path / "new", "train_steps": 2}
    with pytest.raises(ConfigError, match="run has another tokenizer: its weights belong to that"):
        run(tokenizer=other_tokenizer(), **how)
    assert (first / "tokenizer.model").read_bytes() == before
    run(**how)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("tokenizer", "the weights were trained with another tokenizer than tokenizer.model"),
        ("activation", "the weights were trained with another activation than config.json has"),
        ("a value", "has values that are not finite, in embedding.weight"),
    ],
)
def test_a_run_begins_with_no_weights_that_would_not_be_loaded(tmp_path, change, line):
    """As `load_model` refuses them, and before anything is written."""
    first, tokenizer = tmp_path / "first", toy_tokenizer()
    run(first, train_steps=1)
    if change == "tokenizer":
        tokenizer = other_tokenizer()
        tokenizer.save(first / "tokenizer.model")
    elif change == "activation":
        config = (first / "config.json").read_text().replace('"relu"', '"silu"')
        (first / "config.json").write_text(config)
    else:
        tensors, metadata = load_tensors(first / "model.safetensors")
        tensors["embedding.weight"][5, 2] = float("nan")
        save_tensors(first / "model.safetensors", tensors, metadata)
    with pytest.raises(ConfigError, match=line):
        load_model(first)
    with pytest.raises(ConfigError, match=line):
        run(tmp_path / "second", tokenizer=tokenizer, init=first)
    assert not (tmp_path / "second").exists()


# Half precision, and what only a GPU does


@pytest.mark.parametrize(
    ("precision", "capability", "resolved"),
    [
        ("auto", (8, 0), "bf16"),
        ("auto", (9, 0), "bf16"),
        ("auto", (7, 5), "fp16"),
        ("bf16", (8, 6), "bf16"),
        ("fp16", (8, 0), "fp16"),
        ("fp32", (7, 5), "fp32"),
    ],
)
def test_auto_is_the_half_precision_that_the_gpu_has(monkeypatch, precision, capability, resolved):
    """Asked of the device in question, and not counting what PyTorch would emulate."""
    gpus = {torch.device("cuda", 1): capability}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: gpus[device])
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)
    assert resolved_precision(precision, torch.device("cuda", 1), 8) == resolved


@pytest.mark.parametrize(
    ("d_model", "has_bf16", "resolved"),
    [(256, True, "bf16"), (1024, True, "bf16"), (255, True, "fp32"), (1024, False, "fp32")],
)
def test_auto_on_a_cpu_is_bf16_where_it_pays(monkeypatch, d_model, has_bf16, resolved):
    capabilities = {"avx512_bf16": has_bf16}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert resolved_precision("auto", torch.device("cpu"), d_model) == resolved
    asked = ("fp32", "bf16", "fp16")
    assert [resolved_precision(name, torch.device("cpu"), d_model) for name in asked] == [*asked]


def test_emulated_bf16_is_refused_to_a_new_run(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ConfigError, match="bf16 needs a GPU of compute capability 8.0.* has 7.5"):
        require_hardware("bf16", torch.device("cuda"))
    with pytest.raises(ConfigError, match="take fp16"):
        run(tmp_path / "new", precision="bf16", device="cuda")
    assert not (tmp_path / "new").exists()


def test_on_a_cpu_bf16_leaves_attention_in_float32(attended):
    """PyTorch's backward pass of attention takes ten times as long in bfloat16 there."""
    model_config, train_config = toy_run_config(precision="bf16")
    TrainingRun(model_config, train_config).step(first_batches(train_config, 1))
    assert {dtype for dtype, _ in attended} == {torch.float32}


def test_a_run_keeps_what_auto_meant_where_it_began(tmp_path, monkeypatch):
    run(tmp_path / "whole", precision="bf16", train_steps=4)
    monkeypatch.setattr(optimizer, "BF16_WIDTH", 8)
    monkeypatch.setattr(optimizer, "has_bf16_products", lambda: True)
    run(tmp_path / "run", precision="auto", train_steps=2)
    assert read_config(tmp_path / "run")["train"]["precision"] == "bf16"
    monkeypatch.setattr(optimizer, "has_bf16_products", lambda: False)
    run(tmp_path / "run", precision="auto", train_steps=4, resume=True)
    assert unlike(tmp_path / "whole", tmp_path / "run") == []
    with pytest.raises(ConfigError, match="another precision"):
        run(tmp_path / "run", precision="fp32", train_steps=6, resume=True)


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_a_step_that_overflows_changes_nothing_but_the_scale(monkeypatch, clip_norm, optimizer):
    """It counts as a step of the run, for the rate too, but the optimizer does not know of it."""
    monkeypatch.setattr(training_run, "gradient_scaler", eager_scaler)
    settings = {"precision": "fp16", "clip_norm": clip_norm, "optimizer": optimizer}
    model_config, train_config = toy_run_config(**settings)
    r = TrainingRun(model_config, train_config)
    changed, scales = [], []
    for batch in first_batches(train_config, 12):
        before = {name: p.clone() for name, p in r.model.named_parameters()}
        r.step([batch])
        same = [torch.equal(p, before[name]) for name, p in r.model.named_parameters()]
        assert len(set(same)) == 1
        changed.append(not all(same))
        scales.append(r.scaler.get_scale())
        assert r.adam_steps().item() == sum(changed)
        if not any(changed):
            states = r.optimizer.state.values()
            moments = [moment for state in states for moment in state.values()]
            assert not any(moment.any() for moment in moments)
    assert 2 < sum(changed) < 10 and r.steps == 12
    halved = [now < before for before, now in zip([2.0**22, *scales], scales)]
    assert [not h for h in halved] == changed
    assert r.optimizer.param_groups[0]["lr"] == r.rate == pytest.approx(8**-0.5 * 12**-0.5)


def test_skipped_steps_and_the_scale_are_logged(tmp_path, monkeypatch):
    monkeypatch.setattr(training_run, "gradient_scaler", eager_scaler)
    run(tmp_path / "fp16", precision="fp16", log_every=1)
    skipped, scales = zip(*((r["skipped"], r["scale"]) for r in log(tmp_path / "fp16")))
    expected, n = [], 0
    for before, now in zip([2.0**22, *scales], scales):
        n += now == before / 2
        expected.append(n)
    assert list(skipped) == expected and 2 < skipped[-1] < 12
    run(tmp_path / "fp32", log_every=1)
    assert not {"skipped", "scale"} & log(tmp_path / "fp32")[0].keys()


def test_clipping_measures_gradients_that_are_not_scaled(tmp_path):
    changes = {"precision": "fp16", "train_steps": 4, "model_changes": {"p_drop": 0.0}}
    free, clipped = (run(tmp_path / str(norm), clip_norm=norm, **changes) for norm in (0.0, 1000.0))
    for name, weight in free.named_parameters():
        assert_close(weight, clipped.get_parameter(name), rtol=1e-5, atol=1e-7)


def test_the_state_of_a_gpus_generator_comes_back(tmp_path, monkeypatch):
    state, seen = torch.arange(16, dtype=torch.uint8), []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *given: seen.append(given))
    r = TrainingRun(*toy_run_config())
    r.step(first_batches(r.config, 1))
    checkpoint.write_directory(tmp_path, r.model.config, toy_tokenizer())
    r.device = torch.device("cuda", 1)
    training_state.save_state(r, tmp_path)
    training_state.restore(r, tmp_path)
    ((restored, device),) = seen
    assert torch.equal(restored, state) and device == torch.device("cuda", 1)


def test_compile_is_what_a_step_goes_through(tmp_path, monkeypatch):
    compiled, calls = [], []

    def compiler(module, dynamic):
        compiled.append((type(module), dynamic))
        return lambda *batch: calls.append(len(batch)) or module(*batch)

    monkeypatch.setattr(torch, "compile", compiler)
    run(tmp_path / "eager", train_steps=2)
    assert compiled == []
    run(tmp_path / "compiled", train_steps=2, compile=True)
    assert compiled == [(training_run.TrainingLoss, True)] and calls == [2, 2]


def backward_that_fills_in(model, monkeypatch):
    """Gradients of the right shapes; PyTorch's own needs a build with CUDA
    (see the test on "meta")."""

    def backward(loss):
        for p in model.parameters():
            gradient = torch.empty_like(p) * loss
            p.grad = gradient if p.grad is None else p.grad + gradient

    monkeypatch.setattr(torch.Tensor, "backward", backward)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "capability"), [("fp32", (8, 0)), ("bf16", (9, 0)), ("fp16", (7, 5))]
)
def test_a_step_on_a_gpu_mixes_no_devices_and_waits_for_the_log_alone(
    tmp_path, monkeypatch, attended, precision, capability
):
    batches = [make_batch(random_pairs(seed, 8), multiple_of=8) for seed in (1, 2)]
    cudnn = torch.backends.cuda.cudnn_sdp_enabled()
    with fake_cuda(capability) as waits:
        model_config, train_config = toy_run_config(precision="auto", clip_norm=1.0)
        if precision == "fp32":
            train_config = train_config.replace(precision="fp32")
        r = TrainingRun(model_config, train_config, "cuda")
        backward_that_fills_in(r.model, monkeypatch)
        with training.TrainingLog(r, tmp_path, None, progress=False) as lines:
            waits.clear()
            for _ in range(3):
                loss, nll, n_tokens = r.step(batches)
                lines.add(loss, nll, n_tokens)
            assert waits == [] and loss.device == nll.device == torch.device("cuda", 0)
            assert loss.dtype == nll.dtype == torch.float32
            lines.write_means()
        assert waits == ["copy to the host"]
    assert torch.backends.cuda.cudnn_sdp_enabled() == cudnn
    half = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    assert set(attended) <= {(half, False)} and attended
    assert set(log(tmp_path)[0]) >= ({"skipped", "scale"} if precision == "fp16" else {"loss"})


def test_on_a_gpu_lengths_are_multiples_of_8_and_a_run_keeps_its_batches(tmp_path):
    model_config, train_config = toy_run_config()
    learned = [model_config.replace(positions="learned", max_len=n) for n in (40, 41)]
    with fake_cuda():
        for config, expected in zip((model_config, *learned), (8, 8, 1), strict=True):
            assert TrainingRun(config, train_config, "cuda").multiple_of == expected
    run(tmp_path, train_steps=1)
    r = TrainingRun(*toy_run_config())
    r.fingerprint, r.vocabulary = pairs_sha256(PAIRS), toy_tokenizer().sha256
    r.multiple_of = 8  # as it would be on a GPU, where the run is to go on
    training_state.restore(r, tmp_path)
    assert r.multiple_of == 1


def test_a_run_on_a_cpu_can_have_the_batches_of_one_on_a_gpu(tmp_path, monkeypatch):
    shapes = []

    def step(self, batches):
        shapes.extend(batch.target_in.shape for batch in batches)
        return real_step(self, batches)

    real_step = TrainingRun.step
    monkeypatch.setattr(TrainingRun, "step", step)
    for multiple_of in (None, 8):
        shapes.clear()
        run(tmp_path / str(multiple_of), train_steps=2, multiple_of=multiple_of)
        assert all(length % 8 == 0 for _, length in shapes) == (multiple_of == 8)
