"""Closed forms count what layers do and models have; Table 2's costs come out of time,
GPUs and rate."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer.config import ModelConfig
from annotated_transformer.errors import ConfigError
from annotated_transformer.model.transformer import Transformer
from lab.tables import table_2
from lab.tables.table_1 import LAYERS, layer_operations
from lab.tables.table_2 import SUSTAINED_FLOPS, TABLE_2, training_cost
from lab.tables.table_3 import count_parameters

SMALL = {"vocab_size": 23, "N": 2, "d_model": 12, "d_ff": 20, "h": 3}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"d_k": 5},
        {"d_v": 7},
        {"h": 1, "d_k": 12, "d_v": 12},
        {"N": 3},
        {"norm": "pre"},
        {"bias": True},
        {"bias": True, "d_k": 5, "d_v": 7},
        {"positions": "learned", "max_len": 31},
        {"positions": "none"},
    ],
    ids=str,
)
def test_the_closed_form_counts_the_model(changes):
    config = ModelConfig(**{**SMALL, **changes})
    assert count_parameters(config) == sum(p.numel() for p in Transformer(config).parameters())


@pytest.mark.parametrize(
    ("system", "hours"), [("Transformer (base)", 12.0), ("Transformer (big)", 3.5 * 24)]
)
def test_the_cost_of_training_is_table_2s(system, hours):
    printed = next(row for row in TABLE_2 if row.name == system)
    costs = (training_cost(hours, 8), printed.cost_en_de, printed.cost_en_fr)
    assert len({f"{cost:.1e}" for cost in costs}) == 1


def test_100000_steps_of_04_seconds_are_not_quite_12_hours():
    hours = 100_000 * 0.4 / 3600
    assert f"{hours:.1f}" == "11.1"
    assert training_cost(hours, 8) < 0.95 * training_cost(12.0, 8)


def test_the_rates_are_the_papers_footnote():
    printed = {"K80": 2.8, "K40": 3.7, "M40": 6.0, "P100": 9.5}
    assert {name: rate / 1e12 for name, rate in SUSTAINED_FLOPS.items()} == printed


def test_table_2_shows_the_transformer_ahead_at_a_lower_cost():
    *others, _, big = TABLE_2
    assert all(row.bleu_en_de < big.bleu_en_de for row in others if row.bleu_en_de)
    assert all(row.bleu_en_fr < big.bleu_en_fr for row in others if row.bleu_en_fr)


def test_the_stated_training_times_make_table_2s_costs():
    """Time x GPUs x rate is the cost of every system and pair whose time is known,
    to the two digits printed."""
    systems = {row.name: row for row in TABLE_2}
    for run in table_2.RUNS:
        cost = run.n_models * training_cost(24 * run.days, run.n_gpus, run.gpu)
        printed = getattr(systems[run.system], f"cost_{run.pair}")
        # An ensemble's cost may be eight times the rounded cost of one model:
        # within one unit of the last digit.
        unit = 10 ** (math.floor(math.log10(printed)) - 1)
        assert abs(cost - printed) <= (0.5 if run.n_models == 1 else 1) * unit, run
    known = [(run.system, run.pair) for run in table_2.RUNS]
    printed = [
        *((row.name, "en_de") for row in TABLE_2 if row.cost_en_de),
        *((row.name, "en_fr") for row in TABLE_2 if row.cost_en_fr),
    ]
    unknown = [("Deep-Att + PosUnk", "en_fr"), ("Deep-Att + PosUnk ensemble", "en_fr")]
    assert sorted(known + unknown) == sorted(printed)


def test_a_training_takes_operations_over_rate():
    rate, training_time = 8 * SUSTAINED_FLOPS["P100"], table_2.training_time
    assert training_time(9.5e12 * 8 * 12 * 3600, rate) == pytest.approx(12 * 3600)
    half = training_time(training_cost(12.0, 8), 8 * 9.5e12, utilisation=0.5)
    assert half == pytest.approx(24 * 3600)
    for wrong in (0.0, -0.1, 1.01):
        with pytest.raises(ConfigError, match="utilisation must be above 0 and at most 1"):
            training_time(1.0, 1.0, wrong)
    with pytest.raises(ConfigError, match="rate must be positive, got 1.0 and 0.0"):
        training_time(1.0, 0.0)


def test_what_has_no_cost_is_refused():
    with pytest.raises(ConfigError, match="gpu must be one of K80, K40, M40, P100, got H200"):
        training_cost(1.0, 1, "H200")
    with pytest.raises(ConfigError, match="n_gpus"):
        training_cost(1.0, 0)


def pytorchs_layers(n, d, k, r):
    """Each row of Table 1 made of PyTorch's own parts,
    on tensors that have a shape and no memory."""
    with torch.device("meta"):
        x = torch.randn(1, n, d)
        windows = torch.randn(n, r, d)
        cell = nn.RNNCell(d, d, bias=False)
        convolution = nn.Conv1d(d, d, k, padding="same", bias=False)
        depthwise = nn.Conv1d(d, d, k, padding="same", groups=d, bias=False)
        pointwise = nn.Conv1d(d, d, 1, bias=False)

    def recurrence():
        h = x[:, 0]
        for x_t in x.unbind(1):
            h = cell(x_t, h)

    return {
        "self-attention": lambda: F.scaled_dot_product_attention(x, x, x),
        "recurrent": recurrence,
        "convolutional": lambda: convolution(x.transpose(1, 2)),
        "restricted self-attention": lambda: F.scaled_dot_product_attention(
            x[0, :, None], windows, windows
        ),
        "separable convolutional": lambda: pointwise(depthwise(x.transpose(1, 2))),
    }


@pytest.mark.parametrize("sizes", [(7, 6, 3, 5), (40, 12, 5, 3), (12, 40, 1, 7)], ids=str)
@pytest.mark.parametrize("layer", LAYERS)
def test_the_operations_of_table_1_are_those_that_pytorch_counts(layer, sizes):
    with FlopCounterMode(display=False) as counter:
        pytorchs_layers(*sizes)[layer]()
    assert layer_operations(layer, *sizes) == counter.get_total_flops()


def test_an_lstm_has_four_gates():
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        nn.LSTM(6, 6, bias=False)(torch.randn(7, 6))
    assert layer_operations("recurrent", 7, 6, gates=4) == counter.get_total_flops()


def test_self_attention_is_cheaper_than_recurrence_exactly_while_n_is_smaller_than_d():
    for n in (1, 63, 64, 65, 200):
        attention = layer_operations("self-attention", n, 64)
        assert (attention < layer_operations("recurrent", n, 64)) is (n < 64)


def test_what_is_no_layer_of_table_1_is_refused():
    words = "layer must be one of self-attention, recurrent, .* got dense"
    with pytest.raises(ConfigError, match=words):
        layer_operations("dense", 4, 4)
    with pytest.raises(ConfigError, match="at least 1, got 0, 4, 3 and 3"):
        layer_operations("recurrent", 0, 4)
