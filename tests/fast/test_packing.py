"""Packed batches: the same values and gradients as padded ones."""

from copy import deepcopy

import pytest
import torch

from annotated_transformer import ModelConfig, TrainingRun, Transformer
from annotated_transformer.data.batching import make_batch
from annotated_transformer.fast.loss import linear_cross_entropy
from annotated_transformer.fast.packing import Packing, packed_decode
from annotated_transformer.training.loss import label_smoothed_cross_entropy

REAL = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])


def test_packing_takes_the_real_positions_and_puts_them_back():
    x = torch.arange(18.0).view(3, 3, 2)
    packing = Packing(REAL)
    packed = packing.pack(x)
    assert packed.tolist() == x[REAL].tolist()
    assert packing.unpack(packed)[REAL].tolist() == packed.tolist()
    assert packing.unpack(packed)[0, 2].tolist() == packed[0].tolist()  # padding is finite


@pytest.mark.parametrize("n_padding, is_packed", [(0, False), (4, False), (5, True)])
def test_packing_is_left_out_where_little_is_padding(n_padding, is_packed):
    real = torch.arange(100).view(4, 25) < 100 - n_padding
    assert (Packing.where_it_pays(real) is not None) == is_packed


LENGTHS = {
    "both sides": [(3, 9), (12, 2), (7, 5)],
    "the source alone": [(3, 6), (12, 6), (7, 6)],
    "the target alone": [(7, 2), (7, 9), (7, 4)],
    "neither": [(5, 6), (5, 6)],
}


def batch_of(lengths, vocab_size=40):
    """Random sentences of these lengths, the source's and the target's."""
    sentence = lambda n: torch.randint(3, vocab_size, (n,)).tolist()  # noqa: E731
    return make_batch([(sentence(s), sentence(t)) for s, t in lengths])


def model_and_batch(lengths, **changes):
    torch.manual_seed(0)
    config = ModelConfig(40, N=2, d_model=16, d_ff=32, h=4, d_k=3, d_v=5, p_drop=0.0, **changes)
    return Transformer(config).double().train(), batch_of(lengths)


def assert_alike(packed, padded, model):
    """Losses, and their gradients."""
    torch.testing.assert_close(packed, padded, rtol=1e-12, atol=0)
    parameters = list(model.parameters())
    packed, padded = (torch.autograd.grad(loss, parameters) for loss, _ in (packed, padded))
    torch.testing.assert_close(packed, padded, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_a_packed_batch_has_the_loss_and_the_gradients_of_a_padded_one(lengths, norm):
    model, batch = model_and_batch(lengths, norm=norm)
    x, positions = packed_decode(model, batch.source, batch.target_in)
    target = batch.target_out.flatten()[positions]
    assert (target != 0).sum() == batch.n_tokens
    packed = linear_cross_entropy(x, model.embedding.weight, target)
    padded = label_smoothed_cross_entropy(model(batch.source, batch.target_in), batch.target_out)
    assert_alike(packed, padded, model)


def test_rows_of_padding_are_not_computed():
    model = Transformer(ModelConfig(40, N=1, d_model=16, d_ff=32, h=4))
    seen = []
    for layers in (model.encoder.layers, model.decoder.layers):
        layers[0].feed_forward.register_forward_pre_hook(
            lambda _, inputs: seen.append(inputs[0].shape)
        )
    batch = make_batch([([5] * 3, [6] * 9), ([5] * 12, [6] * 2)])
    packed_decode(model, batch.source, batch.target_in)
    assert seen == [(4 + 13, 16), (10 + 3, 16)]


def gradients(model, batch, fast, **autocast):
    """All gradients of the summed loss as one vector of float64,
    by training's path on a CPU or by the plain one."""
    with torch.autocast("cpu", **autocast):
        if fast:
            x, positions = packed_decode(model, batch.source, batch.target_in)
            target = batch.target_out.flatten()[positions]
            loss, _ = linear_cross_entropy(x, model.embedding.weight, target)
        else:
            logits = model(batch.source, batch.target_in)
            loss, _ = label_smoothed_cross_entropy(logits, batch.target_out)
    found = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([gradient.double().flatten() for gradient in found])


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_fast_path_is_as_exact_as_the_plain_one(norm):
    """In float32 within 1e-5 of each other; in bf16 as far from float64 as the plain path is."""
    torch.manual_seed(0)
    model = Transformer(ModelConfig(300, N=2, d_model=64, d_ff=128, h=4, p_drop=0.0, norm=norm))
    batch = batch_of([(3, 9), (12, 2), (7, 5), (20, 21)] * 4, vocab_size=300)
    exact = gradients(deepcopy(model).double(), batch, fast=False, enabled=False)
    plain, fast = (gradients(model, batch, fast, enabled=False) for fast in (False, True))
    assert (fast - plain).norm() < 1e-5 * plain.norm()
    assert (fast - exact).norm() < 1e-5 * exact.norm()
    plain, fast = (gradients(model, batch, fast, dtype=torch.bfloat16) for fast in (False, True))
    assert 1e-4 * exact.norm() < (fast - exact).norm() < 1.2 * (plain - exact).norm()


def test_a_model_with_a_strangers_attention_is_not_packed():
    """Such a module need not know the functions that reach packed rows."""

    class Strangers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, x, memory, mask=None, causal=False):
            padding = None if mask is None else ~mask[:, 0, 0]
            return self.inner(x, memory, memory, key_padding_mask=padding)[0]

    model = Transformer(ModelConfig(40, N=1, d_model=16, d_ff=32, h=4))
    batch = batch_of(LENGTHS["both sides"])
    assert TrainingRun(model=model).packings_of(batch) is not None
    model.encoder.layers[0].self_attention = Strangers()
    run = TrainingRun(model=model)
    run.step([batch])
    assert run.packings_of(batch) is None
