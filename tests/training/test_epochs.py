"""A run on shards is the run on the same pairs in memory, bit for bit, and goes on exactly."""

import json

import numpy as np
import pytest
import torch

from annotated_transformer.checkpoint.weights import load_tensors
from annotated_transformer.config import TrainConfig
from annotated_transformer.data.batching import WINDOW, encode_pairs, token_batches
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.shards.reading import MAX_SENTENCE_TOKENS, Shards
from annotated_transformer.extras.shards.writing import encode
from annotated_transformer.training.epochs import TrainingPairs
from annotated_transformer.training.run import TrainingRun
from same_run import assert_same_run, unlike
from toys import run as toy_run, text_pairs, toy_run_config, toy_tokenizer

PAIRS = [*text_pairs(1, 60), ("", "tea"), ("tea " * 50, "aet " * 50)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("shards")
    encode(toy_tokenizer(), PAIRS, path, pairs_per_shard=25, progress=False, corpus="toys")
    return path


def run(out, pairs, **changes):
    toy_run(out, pairs, **{"window": 32, "concatenate": 0.5, "max_tokens": 100, **changes})


def counters(out):
    return json.loads(load_tensors(out / "training.safetensors")[1]["counters"])


@pytest.mark.parametrize("changes", [{}, {"concatenate": 0.0, "accumulate": 2}])
def test_a_run_on_shards_equals_a_run_on_lists(tmp_path, directory, changes):
    steps = {"train_steps": 24, "checkpoint_every": 8, **changes}
    run(tmp_path / "shards", Shards(directory), **steps)
    run(tmp_path / "lists", PAIRS, **steps)
    assert_same_run(tmp_path / "shards", tmp_path / "lists")
    assert counters(tmp_path / "shards")["epoch"] >= 1


def test_a_run_stopped_in_mid_epoch_five_times_ends_as_one_that_was_not(tmp_path, directory):
    run(tmp_path / "whole", Shards(directory), train_steps=24, checkpoint_every=24)
    places = set()
    for n in (3, 8, 13, 16, 21, 24):
        settings = {"train_steps": n, "checkpoint_every": 24}
        run(tmp_path / "stopped", Shards(directory), resume=n > 3, **settings)
        said = counters(tmp_path / "stopped")
        places.add((said["epoch"], said["n_batches"]))
    assert unlike(tmp_path / "stopped", tmp_path / "whole", "training.safetensors") == []
    assert len({epoch for epoch, _ in places}) >= 2 and all(n > 0 for _, n in places)


def test_a_run_goes_on_from_shards_to_lists_and_back(tmp_path, directory):
    run(tmp_path / "whole", Shards(directory), train_steps=9)
    run(tmp_path / "both", Shards(directory), train_steps=3)
    run(tmp_path / "both", PAIRS, resume=True, train_steps=6)
    run(tmp_path / "both", Shards(directory), resume=True, train_steps=9)
    assert unlike(tmp_path / "both", tmp_path / "whole") == []


def test_a_run_does_not_go_on_in_another_window(tmp_path, directory):
    run(tmp_path / "run", Shards(directory), window=WINDOW, train_steps=1)
    run(tmp_path / "run", PAIRS, resume=True, window=WINDOW, train_steps=2)
    with pytest.raises(ConfigError, match="was trained with another window: it cannot go on"):
        run(tmp_path / "run", PAIRS, resume=True, window=32, train_steps=3)


def test_a_run_gets_the_batches_of_an_epoch():
    config = toy_run_config()[1]
    pairs = encode_pairs(toy_tokenizer(), PAIRS, config.max_length)
    every_pair = encode_pairs(toy_tokenizer(), PAIRS, MAX_SENTENCE_TOKENS + 1)
    how = {"seed": config.seed, "max_length": config.max_length}
    expected = token_batches(every_pair, config.max_tokens, **how)
    drawn = TrainingRun(*toy_run_config()).batches(TrainingPairs(config, toy_tokenizer(), PAIRS))
    n_seen = 0
    for batch, of_run in zip(expected, drawn):
        assert all(map(torch.equal, batch[:3], of_run[:3]))
        n_seen += len(batch.source)
    assert n_seen == len(pairs)


def test_a_window_leaves_out_what_is_too_long_for_the_run(directory):
    config = toy_run_config(window=32)[1]
    pairs = encode_pairs(toy_tokenizer(), PAIRS, MAX_SENTENCE_TOKENS + 1)
    assert len(pairs) == 61
    batches = token_batches(Shards(directory), 60, max_length=config.max_length, window=32)
    assert sum(len(batch.source) for batch in batches) == 60


@pytest.mark.parametrize(("name", "window"), [("lists", WINDOW), ("lists", 32), ("shards", 32)])
def test_how_many_pairs_are_left_out_is_said_once(directory, capsys, name, window):
    config = toy_run_config(window=window)[1]
    pairs = TrainingPairs(config, toy_tokenizer(), PAIRS if name == "lists" else Shards(directory))
    for epoch in range(3):
        pairs(epoch)
    left_out = "2 of 62" if name == "lists" else "1 of 61"
    assert capsys.readouterr().err == (
        f"annotated-transformer: {left_out} training pairs are left out: a side has no token, "
        "or more than max_length 40\n"
    )
    TrainingPairs(config, toy_tokenizer(), PAIRS[:60])(0)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("make", [lambda d: Shards(d), lambda d: PAIRS])
def test_an_epoch_without_batches_is_refused(tmp_path, directory, make):
    with pytest.raises(ConfigError, match="no training pair has 1 to 2 tokens, eos counted"):
        run(tmp_path, make(directory), max_length=2, concatenate=0.0)


def test_other_shards_are_refused_when_a_run_goes_on(tmp_path, directory):
    run(tmp_path / "run", Shards(directory), train_steps=1)
    encode(toy_tokenizer(), PAIRS[1:], tmp_path / "others", progress=False)
    with pytest.raises(ConfigError, match="was trained on other pairs, or in another order"):
        run(tmp_path / "run", Shards(tmp_path / "others"), resume=True)


def test_shards_of_another_vocabulary_are_refused(tmp_path):
    sentences = [side for pair in text_pairs(7, 200) for side in pair]
    encode(Tokenizer.train(sentences, 280), PAIRS, tmp_path / "shards", progress=False)
    with pytest.raises(ConfigError, match="shards was encoded with another tokenizer than this"):
        run(tmp_path / "run", Shards(tmp_path / "shards"))
    assert not (tmp_path / "run").exists()


def test_a_damaged_shard_is_named_before_a_run_begins(tmp_path):
    encode(toy_tokenizer(), PAIRS, tmp_path / "shards", progress=False)
    path = tmp_path / "shards" / "00000.ids.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(ConfigError, match="00000.ids.npy is damaged: its SHA-256"):
        run(tmp_path / "run", Shards(tmp_path / "shards"))
    assert not (tmp_path / "run").exists()


def test_pieces_cannot_be_drawn_anew_from_shards(tmp_path, directory):
    with pytest.raises(ConfigError, match="it must be 0 with shards, got 0.1"):
        run(tmp_path, Shards(directory), bpe_dropout=0.1)
    for name in ("augment", "both_ways"):
        with pytest.raises(ConfigError, match=f"{name} .* must be False with shards, got True"):
            run(tmp_path, Shards(directory), **{name: True})
    with pytest.raises(ConfigError, match="window must be at least 1, got 0"):
        TrainConfig(window=0)
    run(tmp_path, PAIRS, bpe_dropout=0.1, train_steps=2)


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


def test_augmented_epochs_differ_and_resume(as_typed):
    config = TrainConfig(augment=True, both_ways=True, max_length=60, max_tokens=100)
    pairs = [(f"Tom has {i} bees", f"Tom hat {i} Bienen") for i in range(60)]
    first, again = (TrainingPairs(config, as_typed, pairs) for _ in range(2))
    epochs = [everything(first(0)), everything(first(1))]
    assert everything(again(1)) == epochs[1]
    for is_back in (False, True):
        first_time, second_time = (
            [pair for pair in epoch if (pair[0][0] == as_typed.back_id) == is_back]
            for epoch in epochs
        )
        assert first_time != second_time and len(first_time) >= 60
