import inspect

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer.errors import ConfigError
from annotated_transformer.model.feed_forward import PositionwiseFeedForward

B, L, D, D_FF = 2, 7, 4, 6


def random_network(**changes):
    torch.manual_seed(1)
    network = PositionwiseFeedForward(D, D_FF, **changes).double()
    return network, torch.randn(B, L, D, dtype=torch.float64)


def test_equation_2_by_hand():
    network, x = random_network()
    W_1, b_1, W_2, b_2 = (p.tolist() for p in network.parameters())
    b, t = 1, 4
    inner = [sum(w * v for w, v in zip(row, x[b, t].tolist())) for row in W_1]
    hidden = [max(0.0, sum_ + bias) for sum_, bias in zip(inner, b_1)]
    by_hand = [sum(w * v for w, v in zip(row, hidden)) + bias for row, bias in zip(W_2, b_2)]
    assert_close(network(x)[b, t].tolist(), by_hand)
    assert 0.0 in hidden and max(hidden) > 0.0  # the ReLU has something to cut off


def test_equals_two_convolutions_with_kernel_size_1():
    network, x = random_network()
    hidden = F.conv1d(x.mT, network.W_1.weight[:, :, None], network.W_1.bias).relu()
    assert_close(network(x), F.conv1d(hidden, network.W_2.weight[:, :, None], network.W_2.bias).mT)


def test_each_position_stands_alone():
    network, x = random_network()
    order = torch.randperm(L)
    assert_close(network(x[:, order]), network(x)[:, order])
    changed = x.clone()
    changed[:, 3] += 1
    assert (network(changed) != network(x)).any(-1).nonzero()[:, 1].unique().tolist() == [3]


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_activations_are_pytorchs(activation):
    network, x = random_network(activation=activation)
    assert_close(network(x), network.W_2(getattr(F, activation)(network.W_1(x))))


def test_inner_dropout_is_an_option_for_training():
    paper, x = random_network()
    dropping, _ = random_network(dropout=0.5)
    assert torch.equal(paper(x), paper(x))
    assert not torch.equal(dropping(x), dropping(x))
    assert_close(dropping.eval()(x), paper(x))


def test_an_unknown_activation_is_answered_with_those_that_there_are():
    with pytest.raises(ConfigError, match="one of relu, gelu, silu, swiglu, got swish"):
        inspect.unwrap(PositionwiseFeedForward.__init__)(
            PositionwiseFeedForward.__new__(PositionwiseFeedForward), D, D_FF, "swish"
        )
