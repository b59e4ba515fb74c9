"""A run on shards is the run on the same pairs in memory, bit for bit, and goes on exactly."""

import json
import os
from dataclasses import replace

import pytest

from annotated_transformer.checkpoint.weights import load_tensors
from annotated_transformer.command_line.entry_point import main
from annotated_transformer.config import TrainConfig
from annotated_transformer.data.batching import (
    MAX_ENCODED_TOKENS,
    WINDOW,
    encode_pairs,
    token_batches,
)
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.shards.reading import Shards
from annotated_transformer.extras.shards.writing import encode
from annotated_transformer.training.epochs import TrainingPairs
from same_run import assert_same_run, unlike
from toys import (
    pretended,
    run as toy_run,
    text_pairs,
    toy_run_config,
    toy_tokenizer,
    under_torchrun,
)

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


def test_a_window_leaves_out_what_is_too_long_for_the_run(directory):
    config = toy_run_config(window=32)[1]
    pairs = encode_pairs(toy_tokenizer(), PAIRS, MAX_ENCODED_TOKENS + 1)
    assert len(pairs) == 61
    batches = token_batches(Shards(directory), 60, max_length=config.max_length, window=32)
    assert sum(len(batch.source) for batch in batches) == 60


def test_how_many_pairs_of_shards_are_left_out_is_said_once(directory, capsys):
    pairs = TrainingPairs(toy_run_config(window=32)[1], toy_tokenizer(), Shards(directory))
    for epoch in range(3):
        pairs(epoch)
    assert capsys.readouterr().err == (
        "annotated-transformer: 1 of 61 training pairs are left out: a side has no token, "
        "or more than max_length 40\n"
    )


def test_an_epoch_of_shards_without_batches_is_refused(tmp_path, directory):
    with pytest.raises(ConfigError, match="no training pair has 1 to 2 tokens, eos counted"):
        run(tmp_path, Shards(directory), max_length=2, concatenate=0.0)


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


def test_one_process_of_a_machine_verifies_the_data(directory, monkeypatch):
    verified, config = [], toy_run_config()[1]
    monkeypatch.setattr(Shards, "verify", lambda shards: verified.append(shards.directory))
    for local_rank, times in ((0, 1), (1, 0)):
        with pretended(2 + local_rank, 4) as processes:
            one = replace(processes, local_rank=local_rank)
            TrainingPairs(config, toy_tokenizer(), Shards(directory), one)
        assert len(verified) == times
        verified.clear()


@pytest.mark.parametrize("local_rank", ["0", "1"])
def test_the_process_that_meets_a_cut_shard_says_so_itself(
    tmp_path, directory, capsys, monkeypatch, local_rank
):
    valid = [tmp_path / "v.en", tmp_path / "v.de"]
    for file, texts in zip(valid, zip(*PAIRS[:5])):
        file.write_text("".join(f"{text}\n" for text in texts))
    arguments = ["train", "--shards", directory, "--out", tmp_path / "run", "--valid", *valid]
    arguments += ["--device", "cpu", "--quiet", "--set", "N=1", "--set", "train_steps=1"]
    under_torchrun(monkeypatch, local_rank)
    monkeypatch.setattr(Shards, "verify", lambda _: None)
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    assert main(list(map(str, arguments))) == 2
    said = capsys.readouterr().err
    assert "00000.offsets.npy was cut short while it was being read" in said
    assert said.count("error: ") == 1
