"""Our dropout is PyTorch's: the same rate, the same mean, independent entries,
nothing in evaluation mode."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from annotated_transformer.model.dropout import Dropout


def dropped(p, *shape, seed=1):
    torch.manual_seed(seed)
    return Dropout(p)(torch.ones(*shape))


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.999])
def test_the_share_that_is_dropped_is_p_and_the_mean_stays(p):
    n = 1_000_000
    y = dropped(p, n)
    error = (p * (1 - p) / n) ** 0.5
    assert (y == 0).double().mean().item() == pytest.approx(p, abs=4 * error + 2**-17)
    assert y.double().mean().item() == pytest.approx(1, abs=4 * error / (1 - p) + 1e-6)
    kept = y[y != 0]
    assert kept.unique().numel() == 1
    assert kept[0].item() == pytest.approx(1 / (1 - p), rel=2**-16 / (1 - p))


def test_neighbours_are_independent():
    """Also the four entries that one draw decides."""
    gone = (dropped(0.3, 400_000) == 0).double()
    for distance in (1, 2, 3, 4, 8):
        both = (gone[:-distance] * gone[distance:]).mean().item()
        assert both == pytest.approx(0.09, abs=4 * (0.09 * 0.91 / 400_000) ** 0.5)


@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 3, 7), (0, 4)])
def test_any_shape_and_layout_and_the_gradient_is_the_mask(shape):
    x = torch.randn(*shape, dtype=torch.float64).requires_grad_()
    y = Dropout(0.4)(x.transpose(0, -1))
    assert y.shape == x.transpose(0, -1).shape
    y.sum().backward()
    assert_close(y, x.transpose(0, -1) * x.grad.transpose(0, -1))


def test_the_generator_decides():
    assert_close(dropped(0.5, 100, seed=3), dropped(0.5, 100, seed=3))
    assert (dropped(0.5, 100, seed=3) != dropped(0.5, 100, seed=4)).any()
    assert (Dropout(0.5)(torch.ones(100)) != Dropout(0.5)(torch.ones(100))).any()


@pytest.mark.parametrize("p", [0.0, 1.0, 1e-9])
def test_the_ends_are_pytorchs(p):
    x = torch.randn(50)
    assert_close(Dropout(p)(x), nn.Dropout(p)(x) if p else x)


def test_evaluation_mode_leaves_x_as_it_is():
    x = torch.randn(50)
    assert Dropout(0.5).eval()(x) is x


def test_half_precision_stays_half():
    assert Dropout(0.5)(torch.ones(8, dtype=torch.bfloat16)).dtype == torch.bfloat16
