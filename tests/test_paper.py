"""Numbers that are printed in the paper, or follow from what is printed there."""

import math

import pytest
import torch
from torch.testing import assert_close

from annotated_transformer.config import ModelConfig
from annotated_transformer.model.attention import (
    MultiHeadAttention,
    attention_weights,
    scaled_dot_product_attention,
)
from annotated_transformer.model.embedding import positional_encoding
from annotated_transformer.model.feed_forward import PositionwiseFeedForward
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training.optimizer import noam_learning_rate

TABLE_3_PARAMETERS = [  # row, changes from base, millions as printed
    ("base", {}, 65),
    ("B d_k 16", {"d_k": 16}, 58),
    ("B d_k 32", {"d_k": 32}, 60),
    ("C N 2", {"N": 2}, 36),
    ("C N 4", {"N": 4}, 50),
    ("C N 8", {"N": 8}, 80),
    ("C d_model 256", {"d_model": 256, "d_k": 32, "d_v": 32}, 28),
    ("C d_model 1024", {"d_model": 1024, "d_k": 128, "d_v": 128}, 168),
    ("C d_ff 1024", {"d_ff": 1024}, 53),
    ("C d_ff 4096", {"d_ff": 4096}, 90),
]


def count(config):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(config).parameters())


@pytest.mark.slow
@pytest.mark.parametrize(("row", "changes", "millions"), TABLE_3_PARAMETERS)
def test_table_3_parameters_with_one_vocabulary(row, changes, millions):
    assert round(count(ModelConfig.base(vocab_size=41_100, **changes)) / 1e6) == millions


def test_table_3_parameters_of_big_imply_another_vocabulary():
    assert round(count(ModelConfig.big(vocab_size=36_000)) / 1e6) == 213
    assert round(count(ModelConfig.big(vocab_size=41_100)) / 1e6) != 213


def test_equation_3_values():
    rises = {1: 1.7469e-7, 100: 1.7469e-5, 1000: 1.7469e-4, 4000: 6.9877e-4}
    falls = {10_000: 4.4194e-4, 100_000: 1.3975e-4}
    for step, rate in (rises | falls).items():
        assert float(f"{noam_learning_rate(step, 512, 4000):.4e}") == rate
    assert f"{noam_learning_rate(4000, 1024, 4000):.4e}" == "4.9411e-04"


def test_positions_shifted_by_k_are_positions_rotated():
    """PE(pos + k) = M_k PE(pos): each pair (sin, cos) turns by k / wavelength,
    whatever pos is (section 3.5)."""
    d_model, k = 512, 17
    table = positional_encoding(400, d_model).double()
    angle = k / 10000 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    sine, cosine = table[:-k, 0::2], table[:-k, 1::2]
    next_sine = sine * angle.cos() + cosine * angle.sin()
    next_cosine = cosine * angle.cos() - sine * angle.sin()
    assert_close(table[k:, 0::2], next_sine, atol=1e-6, rtol=0)
    assert_close(table[k:, 1::2], next_cosine, atol=1e-6, rtol=0)


def test_wavelengths_run_from_2_pi_to_60_611():
    """The printed formula never reaches 10000 * 2 pi = 62,832:
    its longest wavelength at d_model 512 is 60,611."""
    # The angle from one position to the next.
    steps = torch.asin(positional_encoding(2, 512)[1, 0::2].double())
    wavelengths = (2 * math.pi / steps).tolist()
    assert wavelengths[0] == pytest.approx(2 * math.pi, rel=1e-6)
    assert round(wavelengths[-1]) == 60_611
    ratios = [b / a for a, b in zip(wavelengths, wavelengths[1:])]
    assert min(ratios) == pytest.approx(max(ratios), rel=1e-5)  # a geometric progression


def test_the_first_positions_of_a_narrow_table():
    printed = [[0.0, 1.0, 0.0, 1.0], [0.84147, 0.54030, 0.01, 0.99995]]
    assert_close(positional_encoding(2, 4).tolist(), printed, atol=1e-5, rtol=0)


def test_worked_example_of_attention():
    """W1 of the book: three queries, three keys, two components."""
    q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    k = torch.tensor([[1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    v = torch.tensor([[0.0, 2.0], [1.0, 1.0], [2.0, 0.0]])
    weights = [[0.4011, 0.1978, 0.4011], [0.4011, 0.4011, 0.1978], [0.5035, 0.2483, 0.2483]]
    assert_close(attention_weights(q, k).tolist(), weights, atol=5e-5, rtol=0)
    output = [[1.0, 1.0], [0.7967, 1.2033], [0.7448, 1.2552]]
    assert_close(scaled_dot_product_attention(q, k, v).tolist(), output, atol=5e-5, rtol=0)


def test_equal_scores_give_the_mean_of_the_values():
    """W2 and W3 of the book, and its question Q1: one query that all keys suit equally well."""
    two_keys = torch.ones(1, 2), torch.eye(2), torch.tensor([[2.0, 3.0], [4.0, 1.0]])
    assert scaled_dot_product_attention(*two_keys).tolist() == [[3.0, 2.0]]
    four_keys = torch.ones(1, 4), torch.eye(4), torch.tensor([[2.0], [4.0], [6.0], [8.0]])
    assert scaled_dot_product_attention(*four_keys).tolist() == [[5.0]]


def digits(text):
    """The matrix whose rows are the words of `text`, digit by digit."""
    rows = [list(map(float, row)) for row in text.split()]
    return torch.tensor(rows, dtype=torch.float64)


def test_worked_example_of_two_heads():
    """W5 of the book: queries, keys and values of three tokens, from three different matrices."""
    queries, keys, values = map(digits, ("1210 0111 1021", "1102 2110 0111", "1100 0211 1122"))
    attention = MultiHeadAttention(d_model=4, h=2).double()
    for linear, of_heads in (
        (attention.W_Q, ("10 01 10 01", "01 10 11 00")),
        (attention.W_K, ("10 01 01 10", "01 10 10 11")),
        (attention.W_V, ("10 01 10 01", "01 11 01 10")),
        (attention.W_O, ("1001 0110 1010 0101",)),
    ):
        linear.weight.data = torch.cat([digits(text) for text in of_heads], dim=1).T
    k, v = attention.keys_and_values(keys[None])[0], attention.keys_and_values(values[None])[1]
    q = attention.split_heads(attention.W_Q(queries[None]))
    (heads,) = scaled_dot_product_attention(q, k, v)
    printed = [
        [[1.2168, 2.1084], [1.4965, 2.5035], [1.0458, 1.4280]],
        [[1.1622, 2.1354], [1.5326, 2.4447], [1.0834, 2.0555]],
    ]
    assert_close(heads.tolist(), printed, atol=5e-5, rtol=0)
    output = [
        [2.3790, 4.2438, 3.2706, 3.3522],
        [3.0291, 4.9482, 4.0361, 3.9412],
        [2.1292, 3.4835, 2.5114, 3.1013],
    ]
    assert_close(attention.attend(queries[None], k, v)[0].tolist(), output, atol=5e-5, rtol=0)


def test_worked_example_of_the_feed_forward_network():
    """W7 of the book: a rectifier that has nothing to cut off; and a point where it has."""
    network = PositionwiseFeedForward(d_model=2, d_ff=2)
    network.W_1.weight.data = torch.tensor([[1.0, 1.0], [0.0, 1.0]]).T
    network.W_1.bias.data = torch.tensor([0.0, 1.0])
    network.W_2.weight.data = torch.tensor([[1.0, 0.0], [2.0, 1.0]]).T
    network.W_2.bias.data = torch.tensor([1.0, -1.0])
    points = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.0]])
    assert network(points).tolist() == [[6.0, 1.0], [5.0, 1.0], [8.0, 2.0], [1.0, -1.0]]


def test_feed_forward_sizes_of_the_base_model():
    """Section 3.3: d_model 512 and d_ff 2048, with both biases."""
    sizes = [parameter.numel() for parameter in PositionwiseFeedForward(512, 2048).parameters()]
    assert sum(sizes) == 2 * 512 * 2048 + 2048 + 512
