"""What waits and what is alive, counted by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from annotated_transformer.errors import ConfigError
from lab.experiments.table_1.instruments import longest_chain, peak_bytes


def test_bytes_alive_at_once_by_hand():
    """Float32 vectors of 100: 400 bytes each. What is dropped makes room, views cost nothing,
    x is not counted."""
    x = torch.ones(100)
    assert peak_bytes(lambda x: x * 2, x) == 400
    assert peak_bytes(lambda x: x[:50].view(5, 10), x) == 0
    assert peak_bytes(lambda x: x.mul_(1), x) == 0
    assert peak_bytes(lambda x: ((x * 2) * 2) * 2, x) == 800  # one to read, one to write
    assert peak_bytes(lambda x: [x + 1, x + 2, x + 3][0] * 2, x) == 1200
    assert peak_bytes(lambda x: x.unfold(0, 10, 1) * 1, x) == 91 * 10 * 4
    needed = x.clone().requires_grad_()  # by the backward pass: each exponential's output
    assert peak_bytes(lambda x: x.exp().exp().exp().sum(), needed) == 3 * 400 + 4


def test_a_chain_is_as_long_as_what_waits():
    """A walk of n cells, k maps side by side, a chain with biases and batches,
    a convolution: counted by hand."""
    x, W = torch.randn(5, 4, requires_grad=True), torch.randn(4, 4)
    h = x[:1]
    for _ in range(7):
        h = torch.tanh(h @ W)
    assert longest_chain(h) == 7
    assert longest_chain(sum(x @ W for _ in range(3))) == 1  # side by side, none waits
    assert longest_chain(nn.Linear(4, 4)(nn.Linear(4, 4)(x)) @ W[0]) == 3
    assert longest_chain(torch.baddbmm(x[None], x[None], W[None]) @ W[None]) == 2
    assert longest_chain(nn.Conv1d(4, 4, 3)(x.T[None])) == 1
    assert longest_chain(x * 2) == 0
    # With a head, attention is one fused kernel: two products, the second waits for the first.
    head = x[None, None]
    assert longest_chain(F.scaled_dot_product_attention(head, head, head) @ W) == 3


def test_a_chain_needs_a_graph():
    with pytest.raises(ConfigError, match="computed with gradients on"):
        longest_chain(torch.ones(2))
