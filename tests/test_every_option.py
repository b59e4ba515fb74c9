"""Every option of `ModelConfig` can be trained: two steps, and the validation after them.

The options come from the fields themselves, so that a new one is tested as well.
"""

import typing
from dataclasses import fields

import pytest
import torch

from annotated_transformer.config import SIZES, ModelConfig
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training.log import read_log
from annotated_transformer.training.validation import Validation
from fake_cuda import fake_cuda
from test_fake_cuda_search import numbers_of_a_search
from toys import SMALL, run, text_pairs, toy_tokenizer

PAIRS = text_pairs(5, 2)


def other_values(field, kind):
    """The values of a field besides its default; of a number one that is allowed."""
    if typing.get_origin(kind) is typing.Literal:
        return [value for value in typing.get_args(kind) if value != field.default]
    return [{bool: not field.default, int: 2, float: 0.25}[kind]]


TYPES = typing.get_type_hints(ModelConfig)
OPTIONS = [
    {field.name: value}
    for field in fields(ModelConfig)
    if field.name not in SIZES
    for value in other_values(field, TYPES[field.name])
]


def test_the_options_are_all_departures_from_the_paper():
    for option in OPTIONS:
        assert ModelConfig(**{**SMALL, **option}).beyond(()) == [*option]
    assert {"positions": "rotary"} in OPTIONS and {"qk_norm": True} in OPTIONS


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_two_steps_and_a_validation(tmp_path, option):
    steps = {"train_steps": 2, "log_every": 1, "validate_every": 2}
    run(tmp_path, valid=PAIRS, model_changes=option, **steps)
    records = read_log(tmp_path)
    assert len([record["loss"] for record in records if "loss" in record]) == 2
    [validation] = [record for record in records if "valid_bleu" in record]
    assert validation["step"] == 2 and validation["valid_nll"] > 0


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_a_validation_on_a_gpu(option, monkeypatch):
    """On a pretended one, where every number is 0, the sums of what was measured too."""
    config = ModelConfig(**{**SMALL, "vocab_size": 280, **option})
    with fake_cuda(answer=numbers_of_a_search(3, 3)) as waits:
        # How many tokens are real depends on values: here all are.
        nonzero = lambda tensor: torch.arange(tensor.numel())[:, None]  # noqa: E731
        monkeypatch.setattr(torch.Tensor, "nonzero", nonzero)
        model = Transformer(config).to("cuda")
        waits.clear()
        assert Validation(config, toy_tokenizer(), PAIRS, torch.device("cuda"))(model) == {}
    # For the nll, for the limits of the search, and in each of three steps.
    assert waits.count("copy to the host") == 1 + 1 + 3
