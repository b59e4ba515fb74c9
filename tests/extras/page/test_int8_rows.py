"""The page's arithmetic in Python: against integers, and against the model that it rounds."""

import pytest
import torch

from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.page.int8_rows import (
    STEPS,
    WIDEST,
    Int8Rows,
    round_rows,
    rounded_tensors,
    with_int8_rows,
)
from toys import OPTIONS, random_tokens, small_model


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_weight_is_off_by_half_a_step_of_its_row_at_most():
    weight = random(5, 7) * torch.tensor([1e-6, 1.0, 3.0, 1e4, 0.0])[:, None]
    rounded, scales = round_rows(weight)
    assert rounded.dtype == torch.int8 and scales.dtype == torch.float32
    error = (rounded.double() * scales[:, None].double() - weight).abs()
    assert (error <= 0.5001 * weight.abs().amax(dim=1, keepdim=True) / 127).all()
    assert rounded.abs().amax(dim=1).tolist() == [127, 127, 127, 127, 0]
    assert scales[4] == 1


def test_a_product_is_the_integers_sum():
    """With 64-bit integers, which the module does not use."""
    weight, bias, x = random(5, 7), random(5, seed=1), random(2, 3, 7, seed=2)
    rounded, scales = round_rows(weight)
    largest = x.abs().amax(dim=-1, keepdim=True)
    q = torch.floor(x / largest * STEPS + 0.5).long()
    sums = torch.einsum("bli,oi->blo", q, rounded.long())
    assert q.abs().max() == STEPS
    expected = sums * (largest / STEPS) * scales + bias.float().double()
    torch.testing.assert_close(Int8Rows(weight, bias)(x), expected, rtol=1e-12, atol=1e-12)


def test_a_row_does_not_depend_on_the_others():
    linear, x = Int8Rows(random(5, 7)), random(4, 7, seed=1)
    alone = torch.cat([linear(row[None]) for row in x])
    torch.testing.assert_close(linear(x), alone, rtol=1e-14, atol=1e-14)


def test_zeros_give_the_bias_and_no_rows_give_none():
    linear = Int8Rows(random(5, 7), random(5, seed=1))
    assert linear(torch.zeros(2, 7, dtype=torch.float64)).equal(linear.bias.expand(2, 5))
    assert linear(torch.zeros(2, 0, 7, dtype=torch.float64)).shape == (2, 0, 5)


def test_the_widest_matrix_cannot_overflow():
    assert WIDEST * 127 * STEPS < 2**31 <= (WIDEST + 1) * 127 * STEPS
    assert WIDEST >= 4096  # the paper's big model


@pytest.mark.parametrize("changes", OPTIONS, ids=str)
def test_a_rounded_model_says_nearly_what_the_model_says(changes):
    model = small_model(**changes)
    source, target = random_tokens(0, 2, 7), random_tokens(1, 2, 6)
    exact, rounded = (one(source, target).detach() for one in (model, with_int8_rows(model)))
    error = (exact - rounded).std() / exact.std()
    assert 1e-4 < error < 0.1


def test_the_model_itself_stays_as_it_is():
    model = small_model(dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with_int8_rows(model)
    rounded_tensors(model)
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())


def test_matrices_are_rounded_and_the_rest_is_not():
    tensors = rounded_tensors(small_model(bias=True, positions="learned", norm="pre"))
    small = {name for name, tensor in tensors.items() if tensor.dtype == torch.int8}
    assert "embedding.weight" in small and "decoder.layers.1.cross_attention.W_K.weight" in small
    assert {name.rsplit(".", 2)[-2] for name in small} == {
        "embedding", "W_Q", "W_K", "W_V", "W_O", "W_1", "W_2",
    }  # fmt: skip
    assert {f"{name.removesuffix('.weight')}.scale" for name in small} <= tensors.keys()
    assert tensors["positions.weight"].dtype == torch.float32
    assert "encoder.norm.weight" in tensors and "encoder.norm.scale" not in tensors


@pytest.mark.parametrize(
    "changes",
    [{"rms_norm": True}, {"positions": "rotary"}, {"activation": "swiglu"}, {"qk_norm": True}],
    ids=str,
)
def test_what_came_after_the_paper_is_refused(changes):
    [(name, value)] = changes.items()
    with pytest.raises(ConfigError, match=f"a page knows no {name}={value}: train with {name}="):
        rounded_tensors(small_model(**changes))
