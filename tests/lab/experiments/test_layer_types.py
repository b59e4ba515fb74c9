"""Table 1's layer types against masks, loops and PyTorch's counter,
which share no code with them."""

import math

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer.errors import ConfigError
from lab.experiments.table_1 import layer_types
from lab.experiments.table_1.instruments import longest_chain, peak_bytes
from lab.experiments.table_1.layer_types import LAYER_TYPES, convolution, make_layer, self_attention
from lab.tables.table_1 import layer_operations

restricted_self_attention = layer_types.restricted_self_attention
layers_to_connect = layer_types.layers_to_connect
B, L, D, K = 2, 7, 4, 3
FORMULA = {  # the row of cost.LAYERS and what else its formula needs
    "self-attention, weights stored": ("self-attention", {}),
    "recurrent (LSTM)": ("recurrent", {"gates": 4}),
    "convolutional, dilated": ("convolutional", {}),
}


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def band(x, r):
    """Full attention behind a mask, by hand: all n^2 scores are computed,
    those outside the window hidden."""
    position = torch.arange(x.size(-2))
    far = (position[:, None] - position).abs() > r // 2
    scores = (x @ x.mT / math.sqrt(x.size(-1))).masked_fill(far, -math.inf)
    return scores.softmax(dim=-1) @ x


@pytest.mark.parametrize("shape", [(L, D), (B, L, D)], ids=str)
@pytest.mark.parametrize("r", [1, 3, 5, 2 * L - 1, 2 * L + 5])
def test_a_window_sees_what_a_band_mask_lets_through(shape, r):
    x, theirs = (random(*shape).requires_grad_() for _ in range(2))
    ours, masked = restricted_self_attention(x, r), band(theirs, r)
    assert_close(ours, masked)
    ours.square().sum().backward()
    masked.square().sum().backward()
    assert_close(x.grad, theirs.grad)


def test_windows_are_neither_copied_nor_computed_twice():
    """Memory grows with n as n does, and stays far below the n r d of copied windows
    and the n^2 of all scores."""
    r, d = 33, 64
    one, two, four = (
        peak_bytes(lambda x: restricted_self_attention(x, r), torch.randn(1, n, d))
        for n in (256, 512, 1024)
    )
    assert 1.9 < two / one < 2.05
    assert 1.9 < four / two < 2.05
    assert four < 4 * 1024 * min(r * d / 4, 1024 / 2)


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("batch", [(), (B,)], ids=str)
def test_a_convolution_by_hand(batch, dilation):
    x, W = random(*batch, L, D), random(D, D, K, seed=1)
    by_hand = torch.zeros_like(x)
    for t in range(L):
        for j in range(K):
            if t - dilation * j >= 0:
                by_hand[..., t, :] += x[..., t - dilation * j, :] @ W[:, :, K - 1 - j].T
    assert_close(convolution(x, W, dilation), by_hand)


@pytest.mark.parametrize("batch", [(), (B,)], ids=str)
def test_a_separable_convolution_is_a_convolution_whose_matrices_are_products(batch):
    x, kernel, W = random(*batch, L, D), random(D, 1, K, seed=1), random(D, D, seed=2)
    full = torch.stack([(kernel[:, 0, j, None] * W).T for j in range(K)], dim=-1)
    by_hand = F.conv1d(F.pad(x.mT, (K - 1, 0)), full).mT
    assert_close(layer_types.separable_convolution(x, kernel, W), by_hand)


@pytest.mark.parametrize("layer", LAYER_TYPES)
def test_the_layers_do_the_operations_of_the_formula(layer):
    n, d, k, r = 11, 6, 5, 3
    row, more = FORMULA.get(layer, (layer, {}))
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        make_layer(layer, d, k, r)(torch.randn(B, n, d))
    assert counter.get_total_flops() == B * layer_operations(row, n, d, k, r, **more)


@pytest.mark.parametrize("layer", LAYER_TYPES)
def test_only_a_recurrence_has_to_wait(layer):
    with torch.device("meta"):
        inputs = [torch.randn(B, n, D, requires_grad=True) for n in (5, 10)]
        chains = [longest_chain(make_layer(layer, D)(x)) for x in inputs]
    assert chains == ([5, 10] if "recurrent" in layer else [chains[0]] * 2)
    assert chains[0] > 0


def test_a_dilated_layer_has_gaps_of_k():
    torch.manual_seed(3)
    layer = make_layer("convolutional, dilated", D, k=2)
    x = torch.randn(1, L, D, requires_grad=True)
    [gradient] = torch.autograd.grad(layer(x)[0, -1].sum(), x)
    assert gradient[0].any(dim=-1).nonzero().flatten().tolist() == [L - 3, L - 1]


@pytest.mark.parametrize("n", [2, 9, 28])
def test_path_lengths_are_those_of_the_geometry(n):
    def kernels(k):
        return torch.ones(2, 2, k, dtype=torch.float64) / (2 * k)

    assert layers_to_connect(lambda x, depth: self_attention(x), n) == 1
    for k in (2, 3):
        contiguous = layers_to_connect(lambda x, depth, k=k: convolution(x, kernels(k)), n)
        dilated = layers_to_connect(lambda x, depth, k=k: convolution(x, kernels(k), k**depth), n)
        assert (contiguous - 1) * (k - 1) < n - 1 <= contiguous * (k - 1)
        assert k ** (dilated - 1) < n <= k**dilated
    for r in (3, 5):
        windows = layers_to_connect(lambda x, depth, r=r: restricted_self_attention(x, r), n)
        assert (windows - 1) * (r // 2) < n - 1 <= windows * (r // 2)


def test_what_is_no_layer_type_is_refused():
    with pytest.raises(ConfigError, match="layer must be one of self-attention; .*, got dense"):
        make_layer("dense", 4)
    with pytest.raises(ConfigError, match="r must be odd, so that a window has a middle, got 4"):
        restricted_self_attention(torch.ones(3, 2), 4)
    words = "5 layers must connect the first of 5 positions to the last"
    with pytest.raises(ConfigError, match=words):
        layers_to_connect(lambda x, depth: restricted_self_attention(x, 1), 5)
