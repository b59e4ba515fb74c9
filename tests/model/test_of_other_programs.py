"""What models of other programs have: each option against its equation or its program's own."""

import pytest
import torch
from test_oracles import oracle_logits, pytorchs
from torch import nn
from torch.testing import assert_close

from annotated_transformer.config import BOS_ID, PAD_ID, ModelConfig
from annotated_transformer.data.batching import make_batch
from annotated_transformer.decoding.search import greedy_search
from annotated_transformer.errors import ConfigError
from annotated_transformer.fast.int8 import quantize
from annotated_transformer.fast.packing import Packing
from annotated_transformer.model.embedding import (
    SharedEmbedding,
    concatenated_positional_encoding,
    positional_encoding,
    positions_of,
)
from annotated_transformer.training.run import TrainingLoss
from lab.tables.table_3 import count_parameters
from toys import SHAPES, random_pairs, random_tokens, small_model

B, S, T = 2, 7, 6
OPTIONS = "output_bias", "zero_start", "first_position", "final_norm"


def test_all_are_off():
    config = ModelConfig(vocab_size=11)
    assert not any(getattr(config, name) for name in OPTIONS)


@pytest.mark.parametrize("name", ["Marian's", "fairseq's", "nn.Transformer's"])
def test_the_count_is_that_of_the_model(name):
    model = small_model(**SHAPES[name])
    assert sum(p.numel() for p in model.parameters()) == count_parameters(model.config)


def test_the_bias_is_added_to_the_logits_and_learns():
    with_bias, without = small_model(output_bias=True), small_model()
    without.load_state_dict(with_bias.state_dict(), strict=False)
    source, target_in = random_tokens(1, B, S), random_tokens(2, B, T)
    logits = with_bias(source, target_in)
    assert_close(logits, without(source, target_in) + with_bias.embedding.bias)
    (gradient,) = torch.autograd.grad(logits.logsumexp(-1).sum(), with_bias.embedding.bias)
    assert_close(gradient, logits.softmax(-1).sum((0, 1)))


def test_the_target_is_shifted_right_by_a_row_of_zeros():
    """tensor2tensor pads the embedded target on the left, and drops its last row."""
    model = small_model(zero_start=True, positions="none")
    source, target_in = random_tokens(1, B, S), random_tokens(2, B, T)
    target_in[:, 0] = BOS_ID
    embedded = small_model(positions="none").embed(target_in[:, 1:])
    shifted = nn.functional.pad(embedded, (0, 0, 1, 0))
    memory = model.encode(source)
    assert_close(model(source, target_in), model.logits(model.decoder(shifted, memory, None)))


def test_a_row_that_is_embedded_as_zeros_learns_as_a_row_of_logits_alone():
    embedding = SharedEmbedding(11, 6, zero_id=BOS_ID)
    embedding(torch.tensor([[BOS_ID, 5]])).sum().backward()
    assert not embedding.weight.grad[BOS_ID].any() and embedding.weight.grad[5].all()
    embedding.logits(torch.ones(6)).sum().backward()
    assert embedding.weight.grad[BOS_ID].all()


@pytest.mark.parametrize(
    ("kind", "table"),
    [("sinusoidal", positional_encoding), ("concatenated", concatenated_positional_encoding)],
)
def test_positions_begin_at_the_first(kind, table):
    positions = positions_of(ModelConfig(vocab_size=11, positions=kind, first_position=2))
    assert_close(positions(3, start=4), table(9, 512)[6:])
    assert_close(positions(1, start=700), table(703, 512)[702:])  # beyond the table's first rows


@pytest.mark.parametrize(
    "changes", [{"first_position": -1}, {"first_position": 2000}, {"positions": "learned"}]
)
def test_only_sinusoids_begin_elsewhere(changes):
    with pytest.raises(ConfigError, match="first_position is a sinusoid's, 0 to 1,024, got"):
        ModelConfig(vocab_size=11, **{"first_position": 2, **changes})


def test_with_its_final_norms_the_model_is_nn_transformer_as_it_comes():
    model = small_model(final_norm=True)
    oracle = pytorchs(model)
    oracle.encoder.norm, oracle.decoder.norm = model.encoder.norm, model.decoder.norm
    as_it_comes = nn.Transformer(8, 2, 2, 2, 12, dropout=0.0, batch_first=True).double()
    as_it_comes.load_state_dict(oracle.state_dict())
    source, target_in = random_tokens(1, B, S), random_tokens(2, B, T)
    source[1, 4:] = PAD_ID
    expected = oracle_logits(as_it_comes, model.embedding.weight, source, target_in)
    assert_close(model(source, target_in), expected)


@pytest.mark.parametrize("blockwise", [False, True])
def test_training_sees_the_bias(blockwise):
    model = small_model(output_bias=True)
    batch = make_batch(random_pairs(1, 4))
    padded = TrainingLoss(model, 0.1)(batch)
    packings = Packing(batch.source != PAD_ID), Packing(batch.target_in != PAD_ID)
    packed = TrainingLoss(model, 0.1, blockwise)(batch, packings)
    assert_close(packed, padded)


def test_eight_bits_keep_bias_and_start():
    options = {"output_bias": True, "zero_start": True, "d_model": 64, "vocab_size": 40}
    model = small_model(dtype=torch.float32, **options)
    model.embedding.bias.data[7] = 1e4
    rounded = quantize(small_model(dtype=torch.float32, **options))
    rounded_logits = rounded.embedding.logits(torch.ones(1, 64))
    expected = small_model(dtype=torch.float32, **options).embedding.logits(torch.ones(1, 64))
    assert_close(rounded_logits, expected, atol=0.2, rtol=0)
    assert not rounded.embedding(torch.tensor([BOS_ID])).any()
    assert greedy_search(model, random_tokens(1, 1, S), max_extra=0) == [[7] * S]
