"""The pairs of each epoch: what is in them, what is left out, and what is drawn anew."""

import numpy as np
import pytest
import torch

from annotated_transformer.config import TrainConfig
from annotated_transformer.data.batching import (
    MAX_ENCODED_TOKENS,
    WINDOW,
    encode_pairs,
    token_batches,
)
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import ConfigError
from annotated_transformer.training.epochs import TrainingPairs
from annotated_transformer.training.run import TrainingRun
from toys import run as toy_run, text_pairs, toy_run_config, toy_tokenizer

PAIRS = [*text_pairs(1, 60), ("", "tea"), ("tea " * 50, "aet " * 50)]


def test_a_run_gets_the_batches_of_an_epoch():
    config = toy_run_config()[1]
    pairs = encode_pairs(toy_tokenizer(), PAIRS, config.max_length)
    every_pair = encode_pairs(toy_tokenizer(), PAIRS, MAX_ENCODED_TOKENS + 1)
    how = {"seed": config.seed, "max_length": config.max_length}
    expected = token_batches(every_pair, config.max_tokens, **how)
    drawn = TrainingRun(*toy_run_config()).batches(TrainingPairs(config, toy_tokenizer(), PAIRS))
    n_seen = 0
    for batch, of_run in zip(expected, drawn):
        assert all(map(torch.equal, batch[:3], of_run[:3]))
        n_seen += len(batch.source)
    assert n_seen == len(pairs)


@pytest.mark.parametrize("window", [WINDOW, 32])
def test_how_many_pairs_are_left_out_is_said_once(capsys, window):
    config = toy_run_config(window=window)[1]
    pairs = TrainingPairs(config, toy_tokenizer(), PAIRS)
    for epoch in range(3):
        pairs(epoch)
    assert capsys.readouterr().err == (
        "annotated-transformer: 2 of 62 training pairs are left out: a side has no token, "
        "or more than max_length 40\n"
    )
    TrainingPairs(config, toy_tokenizer(), PAIRS[:60])(0)
    assert capsys.readouterr().err == ""


def test_an_epoch_without_batches_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no training pair has 1 to 2 tokens, eos counted"):
        toy_run(tmp_path, PAIRS, max_length=2, concatenate=0.0)


def everything(store):
    return store.gather(np.arange(len(store)))


@pytest.fixture(scope="module")
def as_typed():
    sentences = [side for pair in text_pairs(1, 60) for side in pair]
    return Tokenizer.train(sentences, 400, as_typed=True)


def test_both_ways_every_pair_is_there_once_each_way_and_joined_within_its_own(as_typed):
    pairs = text_pairs(1, 60)
    config = TrainConfig(both_ways=True, concatenate=1.0, max_length=60, max_tokens=100)
    found = everything(TrainingPairs(config, as_typed, pairs)(0))
    back = [(x[1:], y) for x, y in found if x[0] == as_typed.back_id]
    there = [(x, y) for x, y in found if x[0] != as_typed.back_id]
    sides = [tuple(map(as_typed.decode, pair)) for pair in there]
    reversed_sides = [tuple(map(as_typed.decode, pair)) for pair in back]
    assert sides[:60] == pairs and reversed_sides[:60] == [(y, x) for x, y in pairs]
    assert len(sides) == len(reversed_sides) == 120
    assert all(as_typed.back_id not in [*x, *y] for x, y in [*there, *back])
    assert all(x[::-1].replace(" ", "") != "" for x, _ in sides)


class Numbered:
    """A stand-in for `extras.visitors.augmentation`: each epoch's pairs end with its seed."""

    def __init__(self, pairs):
        self.pairs = pairs

    def epoch(self, seed):
        return [(f"{x} {seed}", f"{y} {seed}") for x, y in self.pairs]


def test_augmented_epochs_differ_and_resume(as_typed):
    config = TrainConfig(augment=True, both_ways=True, max_length=60, max_tokens=100)
    first, again = (
        TrainingPairs(config, as_typed, PAIRS[:60], augmentation=Numbered) for _ in range(2)
    )
    epochs = [everything(first(0)), everything(first(1))]
    assert everything(again(1)) == epochs[1]
    for is_back in (False, True):
        first_time, second_time = (
            [pair for pair in epoch if (pair[0][0] == as_typed.back_id) == is_back]
            for epoch in epochs
        )
        assert first_time != second_time and len(first_time) == 60


def test_augment_needs_its_rules(tmp_path):
    with pytest.raises(ConfigError, match=r"give train\(..., augmentation=...\)"):
        toy_run(tmp_path / "run", PAIRS, augment=True)
    assert not (tmp_path / "run").exists()
