"""The training loop on the page takes the steps of `TrainingRun`, and keeps what validated best."""

import inspect
import math
from itertools import islice
from pathlib import Path

import pytest
import torch

from annotated_transformer import ModelConfig, TrainConfig, TrainingRun, Transformer, make_batch
from lab.same import listing_of
from lab.training_loop import batches_of, fit, summed_loss
from toys import random_pairs

BOOK = Path(__file__).parents[2] / "book"


def lines_of_code(function):
    lines = inspect.getsource(function).splitlines()
    return sum(bool(line.strip()) and not line.strip().startswith('"""') for line in lines)


def test_it_takes_the_steps_of_training_run():
    config = ModelConfig(vocab_size=60, N=2, d_model=32, d_ff=64, h=4, p_drop=0.0)
    run = TrainingRun(config, TrainConfig(warmup_steps=8, lr_factor=0.5), packing="off")
    model = listing_of(run.model)  # chapter 0's Transformer
    batches = list(islice(batches_of(random_pairs(1, 200, high=60), max_tokens=300), 20))
    assert len({batch.n_tokens for batch in batches}) > 5

    def rate(step):
        return 0.5 * 32**-0.5 * min(step**-0.5, step * 8**-1.5)

    ours = fit(model, batches, 20, rate, summed_loss)
    theirs = [run.step([batch])[0].item() / batch.n_tokens for batch in batches]
    assert ours[-1] < ours[0] - 0.5
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) <= 5e-6


def test_an_epoch_has_every_pair_once_in_an_order_of_its_own_and_no_side_is_too_long():
    pairs = random_pairs(1, 100)
    n_targets = sum(len(target) + 1 for _, target in pairs)
    batches = batches_of(pairs, max_tokens=120)
    epochs = [[], []]
    for epoch in epochs:
        while sum(batch.n_tokens for batch in epoch) < n_targets:
            epoch.append(next(batches))
            assert max(epoch[-1].source.numel(), epoch[-1].target_in.numel()) <= 120
        assert sum(batch.n_tokens for batch in epoch) == n_targets
    first, second = ([batch.source.tolist() for batch in epoch] for epoch in epochs)
    assert first != second


@pytest.mark.parametrize("scores, best", [([3.0, 1.0, 2.0], 1), ([3.0, 2.0, 1.0], 2)])
def test_the_weights_that_validate_best_are_kept(scores, best):
    model, weights, given = torch.nn.Linear(1, 1), [], iter(scores)

    def validate(model):
        assert not model.training
        weights.append(model.weight.item())
        return next(given)

    def loss_of(model, batch):
        assert model.training
        return model(batch).sum(), 1

    fit(model, [torch.ones(1)] * 6, 6, lambda step: 0.1, loss_of, validate, every=2)
    assert len(set(weights)) == 3 and model.weight.item() == weights[best] and not model.training


def test_without_validation_the_last_weights_stay():
    model = torch.nn.Linear(1, 1)
    before = model.weight.item()
    losses = fit(model, [torch.ones(1)] * 3, 3, lambda step: 0.1, lambda m, x: (m(x).sum(), 1))
    assert len(losses) == 3 and math.isclose(before - model.weight.item(), 0.3, rel_tol=1e-3)


def test_the_loss_is_divided_by_real_tokens_alone():
    model = Transformer(ModelConfig(vocab_size=20, N=1, d_model=8, d_ff=8, h=2, p_drop=0.0))
    long, short = ([5, 6, 7, 8], [9, 10, 11, 12]), ([5], [6])
    both, n = summed_loss(model, make_batch([long, short]))
    one_by_one = sum(summed_loss(model, make_batch([pair]))[0] for pair in (long, short))
    assert n == 5 + 2 and torch.allclose(both, one_by_one)


def test_it_is_short_enough_to_retype_and_chapters_use_it():
    assert lines_of_code(batches_of) + lines_of_code(fit) <= 30
    users = [path.stem for path in BOOK.glob("*.py") if " fit(" in path.read_text("utf-8")]
    wanted = {"5_2_training", "5_3_optimizer", "5_4_regularization", "6_1_translation"}
    assert {*wanted, "6_3_parsing", "after_the_paper"} <= set(users)
