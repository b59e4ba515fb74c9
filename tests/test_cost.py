"""The closed form counts what the model has; Table 2's costs come out of time, GPUs and rate."""

import pytest

from annotated_transformer.config import ConfigError, ModelConfig
from annotated_transformer.cost import SUSTAINED_FLOPS, TABLE_2, count_parameters, training_cost
from annotated_transformer.transformer import Transformer

SMALL = {"vocab_size": 23, "N": 2, "d_model": 12, "d_ff": 20, "h": 3}


@pytest.mark.parametrize("changes", [
    {}, {"d_k": 5}, {"d_v": 7}, {"h": 1, "d_k": 12, "d_v": 12}, {"N": 3}, {"norm": "pre"}, {"bias": True},
    {"bias": True, "d_k": 5, "d_v": 7}, {"positions": "learned", "max_len": 31}, {"positions": "none"},
], ids=str)
def test_the_closed_form_counts_the_model(changes):
    config = ModelConfig(**{**SMALL, **changes})
    assert count_parameters(config) == sum(parameter.numel() for parameter in Transformer(config).parameters())


@pytest.mark.parametrize(("system", "hours"), [("Transformer (base)", 12.0), ("Transformer (big)", 3.5 * 24)])
def test_the_cost_of_training_is_table_2s(system, hours):
    printed = next(row for row in TABLE_2 if row.name == system)
    assert f"{training_cost(hours, 8):.1e}" == f"{printed.cost_en_de:.1e}" == f"{printed.cost_en_fr:.1e}"


def test_100000_steps_of_04_seconds_are_not_quite_12_hours():
    hours = 100_000 * 0.4 / 3600
    assert f"{hours:.1f}" == "11.1"
    assert training_cost(hours, 8) < 0.95 * training_cost(12.0, 8)


def test_the_rates_are_the_papers_footnote():
    assert {name: rate / 1e12 for name, rate in SUSTAINED_FLOPS.items()} == {
        "K80": 2.8, "K40": 3.7, "M40": 6.0, "P100": 9.5}


def test_table_2_shows_the_transformer_ahead_at_a_lower_cost():
    *others, _, big = TABLE_2
    assert all(row.bleu_en_de < big.bleu_en_de for row in others if row.bleu_en_de)
    assert all(row.bleu_en_fr < big.bleu_en_fr for row in others if row.bleu_en_fr)


def test_what_has_no_cost_is_refused():
    with pytest.raises(ConfigError, match="gpu must be one of K80, K40, M40, P100, got H200"):
        training_cost(1.0, 1, "H200")
    with pytest.raises(ConfigError, match="n_gpus"):
        training_cost(1.0, 0)
