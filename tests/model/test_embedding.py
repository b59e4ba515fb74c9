import math

import pytest
import torch
from torch.testing import assert_close

from annotated_transformer.errors import ConfigError
from annotated_transformer.model.embedding import (
    LearnedPositions,
    SharedEmbedding,
    SinusoidalPositions,
    concatenated_positional_encoding,
    positional_encoding,
)

V, D = 11, 6


def test_embedding_is_scaled_by_sqrt_d_model_and_the_projection_is_not():
    embedding = SharedEmbedding(V, D)
    one_hot = torch.eye(V)
    tokens = torch.tensor([[3, 5, 3], [1, 0, 10]])
    assert_close(embedding(tokens), one_hot[tokens] @ embedding.weight * math.sqrt(D))
    x = torch.randn(2, 3, D)
    assert_close(embedding.logits(x), x @ embedding.weight.T)


def test_initial_embeddings_and_logits_have_variance_near_one():
    torch.manual_seed(0)
    embedding = SharedEmbedding(2000, 512)
    assert_close(embedding(torch.arange(2000)).var().item(), 1.0, rtol=0.05, atol=0)
    assert_close(embedding.logits(torch.randn(50, 512)).var().item(), 1.0, rtol=0.05, atol=0)


@pytest.mark.parametrize("d_model", [2, 6, 512])
def test_positional_encoding_is_the_printed_formula(d_model):
    table = positional_encoding(50, d_model)
    for pos in (0, 1, 7, 49):
        for i in {0, d_model // 4, d_model // 2 - 1}:
            angle = pos / 10000 ** (2 * i / d_model)
            assert table[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-7)
            assert table[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-7)


def test_the_authors_positions_reach_10000_times_2_pi():
    """tensor2tensor: num_timescales = d / 2,
    and timescale i is 10000^(i / (num_timescales - 1))."""
    d_model, pos = 8, 37
    row = concatenated_positional_encoding(40, d_model)[pos].tolist()
    for i in range(4):
        angle = pos / 10000 ** (i / 3)
        assert row[i] == pytest.approx(math.sin(angle), abs=1e-7)
        assert row[4 + i] == pytest.approx(math.cos(angle), abs=1e-7)
    # A whole turn of the slowest pair of columns.
    turn = concatenated_positional_encoding(62_833, 512)[[0, 62_832]]
    assert_close(turn[1, [255, 511]], turn[0, [255, 511]], atol=1e-4, rtol=0)


@pytest.mark.parametrize("encoding", [positional_encoding, concatenated_positional_encoding])
def test_odd_widths_have_no_pairs(encoding):
    with pytest.raises(ConfigError, match="sinusoidal positions need an even d_model, got 7"):
        encoding(10, 7)


def test_positions_grow_when_they_must_and_start_anywhere():
    positions = SinusoidalPositions(D, length=5)
    table = positional_encoding(40, D)
    assert torch.equal(positions(3), table[:3])
    assert torch.equal(positions(2, start=4), table[4:6])
    assert torch.equal(positions(20, start=11), table[11:31])
    assert torch.equal(positions(3, start=1), table[1:4])


def test_a_thread_that_needs_fewer_positions_takes_none_from_another():
    """It may put its own, shorter table there just before the other takes its rows."""

    class Shared(SinusoidalPositions):
        def __setattr__(self, name, value):
            super().__setattr__(name, value[:300] if name == "table" else value)

    assert_close(Shared(8)(600), positional_encoding(600, 8))


def test_positions_that_grow_stay_on_their_device_in_their_type():
    positions = SinusoidalPositions(D, length=5).to("meta", torch.bfloat16)
    assert positions(3).dtype == positions(20).dtype == torch.bfloat16
    assert positions(3).device == positions(40).device == torch.device("meta")


def test_positions_that_grew_in_a_search_can_be_trained_with():
    positions = SinusoidalPositions(D, length=5)
    with torch.inference_mode():
        positions(20)
    assert len(positions.table) > 20 and not positions.table.is_inference()


def test_sinusoids_are_no_parameters_and_not_saved():
    assert not list(SinusoidalPositions(D).parameters()) and not SinusoidalPositions(D).state_dict()


def test_learned_positions_end():
    positions = LearnedPositions(D, max_len=5)
    assert torch.equal(positions(2, start=3), positions.weight[3:5])
    with pytest.raises(ConfigError, match="learned positions end at max_len 5, got length 6"):
        positions(3, start=3)
