"""The comparison of chapter 0's listing with the package tells a difference."""

import pytest
import torch

from annotated_transformer import ModelConfig, MultiHeadAttention, Transformer
from lab import listing
from lab.same import equal, listing_of, with_weights


def test_a_module_takes_the_weights_of_the_packages():
    theirs = MultiHeadAttention(d_model=6, h=2).eval()
    ours = with_weights(listing.MultiHeadAttention(6, 2), theirs)
    x, mask = torch.randn(2, 5, 6), torch.tensor(True)
    assert equal(ours(x, x, mask), theirs(x, x)).endswith("2 x 5 x 6 numbers")
    assert not ours.training


def test_a_model_takes_the_sizes_of_the_packages():
    theirs = Transformer(ModelConfig(vocab_size=11, N=2, d_model=8, d_ff=12, h=2)).eval()
    source, target = torch.tensor([[4, 5, 2, 0]]), torch.tensor([[1, 6]])
    equal(listing_of(theirs)(source, target), theirs(source, target))


def test_another_number_is_noticed():
    x = torch.randn(3, 4)
    changed = x.clone()
    changed[1, 2] += 0.01
    with pytest.raises(AssertionError):
        equal(x, changed)
