"""The experiment on sleeping attention: the rate that it asks for, and who is missed."""

import json
from pathlib import Path

import pytest
import torch

from annotated_transformer.data import corpus
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.attention_views.knock_out import heads_of, knocked_out
from annotated_transformer.training.optimizer import noam_learning_rate
from lab.experiments import attention_at_work
from lab.experiments.result_file import read_result
from toys import small_model, text_pairs, toy_run_config, toy_tokenizer


@pytest.mark.parametrize("name", attention_at_work.RECIPES)
def test_the_peak_of_the_rate_is_the_one_asked_for(name):
    recipe = attention_at_work.RECIPES[name]
    model, train = recipe.configs(attention_at_work.TRAIN_STEPS, 3000)
    rates = [
        noam_learning_rate(step, model.d_model, train.warmup_steps, train.lr_factor)
        for step in range(1, train.train_steps + 1)
    ]
    assert max(rates) == pytest.approx(recipe.peak, rel=1e-3)
    assert train.warmup_steps < train.train_steps


def test_ways_differ_in_one_or_two_settings_from_the_first():
    settings = [recipe.configs(3000, 3000) for recipe in attention_at_work.RECIPES.values()]
    first = {**settings[0][0].to_dict(), **settings[0][1].to_dict()}
    for model, train in settings[1:]:
        now = {**model.to_dict(), **train.to_dict()}
        changed = {key for key, value in now.items() if value != first[key]}
        assert changed and len(changed - {"lr_factor"}) <= 2


def model_of(asleep=False):
    """A model that ignores its encoder's attention if it is asleep."""
    model = small_model(vocab_size=toy_tokenizer().vocab_size).float()
    with torch.no_grad():
        for layer in heads_of(model, "encoder") if asleep else ():
            for module, _ in layer:
                module.W_O.weight.zero_()
    return model


def test_what_is_not_used_is_not_missed():
    asleep, awake = (
        attention_at_work.measured_attention(model_of(sleeps), toy_tokenizer(), text_pairs(1, 12))
        for sleeps in (True, False)
    )
    for name in ("nats_without", "nats_1", "nats_2"):
        assert asleep[name] == 0 != awake[name]
    names = {"valid_nll", "entropy_1", "entropy_2", "spread_1", "spread_2"}
    assert asleep.keys() == awake.keys() >= names


def test_bins_of_length_together_are_all_sentences_and_their_loss():
    pairs = text_pairs(1, 40)
    model, tokenizer = model_of(), toy_tokenizer()
    bins = attention_at_work.loss_by_kind(model, tokenizer, pairs)["by_length"]
    assert sum(found["sentences"] for found in bins) == 40 and len(bins) > 1
    for found in bins:
        first, last = found["words"]
        chosen = [pair for pair in pairs if first <= len(pair[0].split()) <= last]
        whole = attention_at_work.measured_attention(model, tokenizer, chosen)
        assert found["nats"] == pytest.approx(whole["nats_without"], rel=1e-4)
        assert found["low"] < found["nats"] < found["high"]
    heads = [head for layer in heads_of(model, "encoder") for head in layer]
    with knocked_out(*heads):
        for found in attention_at_work.loss_by_kind(model, tokenizer, pairs).values():
            assert all(part["nats"] == 0 for part in found)


def test_a_construction_is_known_by_its_words():
    kinds = attention_at_work.constructions
    assert kinds("It rains.") == ["none of these"]
    assert kinds("Tom sold his car because it was old.") == ["pronoun", "clause", "agreement"]
    assert kinds("Can you help me?") == ["verb at the end", "question"]


def test_every_sentence_is_of_some_construction():
    pairs = [("It rains.", "a"), ("I saw it.", "b"), ("Who has it?", "c"), ("I must go.", "d")]
    found = attention_at_work.loss_by_kind(model_of(), toy_tokenizer(), pairs)["by_construction"]
    counts = {part["construction"]: part["sentences"] for part in found}
    assert counts == {"pronoun": 2, "verb at the end": 2, "question": 1, "none of these": 1}


def test_a_finished_model_is_divided_without_attention_and_with_even_weights(tmp_path, monkeypatch):
    """Heads without an output lose nothing, whatever their weights; else the two ways differ."""
    monkeypatch.setattr(corpus, "load", lambda name, split: text_pairs(1, 30))
    out = tmp_path / "out.json"
    for asleep in (True, False):
        of = {Path("book/model"): (model_of(asleep), toy_tokenizer())}
        monkeypatch.setattr(attention_at_work, "load_model", of.__getitem__)
        attention_at_work.main(["--checkpoint", "book/model", "--out", str(out)])
        nothing, even = read_result(out)["records"]
        assert (nothing["instead"], even["instead"]) == ("nothing", "even weights")
        assert even["pairs"] == 30
        lost = [[part["nats"] for part in one["by_length"]] for one in (nothing, even)]
        assert (lost[0] == lost[1] == [0.0] * len(lost[0])) == asleep
        out.unlink()
    assert lost[0] != lost[1]


@pytest.mark.slow
def test_a_finished_way_is_not_trained_again(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "load", lambda name, split: text_pairs(1, 60))
    monkeypatch.setattr(attention_at_work, "VOCAB_SIZE", 280)

    def configs(recipe, steps, vocab_size):
        train_steps = 4 if steps == attention_at_work.TRAIN_STEPS else 2
        return toy_run_config(train_steps=train_steps, validate_every=2, checkpoint_every=2)

    monkeypatch.setattr(attention_at_work.Recipe, "configs", configs)
    out = str(tmp_path / "out.json")
    arguments = ["--only", "glorot, low", "--quiet", "--runs", str(tmp_path / "runs"), "--out", out]
    attention_at_work.main(arguments)
    (record,) = read_result(tmp_path / "out.json")["records"]
    assert [point["step"] for point in record["points"]] == [2, 4]
    monkeypatch.setattr(attention_at_work, "train", None)
    attention_at_work.main(arguments)
    assert json.dumps(read_result(tmp_path / "out.json")["records"]) == json.dumps([record])
    with pytest.raises(ConfigError, match="other settings"):
        attention_at_work.main([*arguments, "--small"])
