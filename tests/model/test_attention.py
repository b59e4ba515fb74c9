import inspect
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer.errors import ConfigError
from annotated_transformer.model.attention import (
    MultiHeadAttention,
    attention_weights,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)

B, L, S, H, K, K_V, D = 2, 6, 7, 3, 4, 5, 8


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def heads(d_k=K, d_v=K_V):
    q = random(B, H, L, d_k, seed=1)
    k, v = random(B, H, S, d_k, seed=2), random(B, H, S, d_v, seed=3)
    mask = torch.rand(B, 1, L, S, generator=torch.Generator().manual_seed(4)) < 0.6
    mask[..., 0] = True
    return q, k, v, mask


def random_attention(**changes):
    torch.manual_seed(5)
    return MultiHeadAttention(**{"d_model": D, "h": 2, **changes}).double()


def test_equation_1_by_hand():
    q, k, v, mask = heads()
    b, h, i = 1, 2, 3
    scores = [
        sum(q[b, h, i, c].item() * k[b, h, j, c].item() for c in range(K)) / math.sqrt(K)
        for j in range(S)
    ]
    visible = [math.exp(score) if mask[b, 0, i, j] else 0.0 for j, score in enumerate(scores)]
    weights = [e / sum(visible) for e in visible]
    by_hand = [sum(weights[j] * v[b, h, j, c].item() for j in range(S)) for c in range(K_V)]
    assert_close(attention_weights(q, k, mask)[b, h, i].tolist(), weights)
    assert_close(scaled_dot_product_attention(q, k, v, mask)[b, h, i].tolist(), by_hand)


@pytest.mark.parametrize("masked", [False, True])
def test_the_taught_function_equals_pytorchs_kernel(masked):
    q, k, v, mask = heads()
    mask = mask if masked else None
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert_close(scaled_dot_product_attention(q, k, v, mask), expected)


def test_weights_are_distributions_over_visible_keys():
    q, k, _, mask = heads()
    weights = attention_weights(q, k, mask)
    assert_close(weights.sum(-1), torch.ones(B, H, L, dtype=torch.float64))
    assert torch.equal(weights > 0, mask.expand_as(weights))


def test_a_query_that_sees_nothing_has_no_distribution():
    q, k, _, mask = heads()
    mask[1, :, 2] = False
    blind = attention_weights(q, k, mask).isnan()
    assert blind[1, :, 2].all() and blind.sum() == H * S


def test_dividing_by_sqrt_d_k_keeps_the_variance_of_scores_at_one():
    """Footnote 4: components of mean 0 and variance 1 give dot products of variance d_k."""
    for d_k in (4, 64):
        q, k = random(1, 1000, d_k, seed=1), random(1, 2000, d_k, seed=2)
        weights = attention_weights(q, k)
        scores = weights.log() - weights.log().mean(-1, keepdim=True)
        assert_close(scores.var(), torch.tensor(1.0, dtype=torch.float64), rtol=0.1, atol=0)


def test_true_means_may_look():
    tokens = torch.tensor([[5, 3, 0], [0, 4, 4]])
    assert padding_mask(tokens, 0).tolist() == [[[[True, True, False]]], [[[False, True, True]]]]
    assert padding_mask(torch.tensor([[5, 9]]), 9).tolist() == [[[[True, False]]]]
    ((rows,),) = causal_mask(3).tolist()
    assert rows == [[True, False, False], [True, True, False], [True, True, True]]


def test_the_masks_we_build_leave_every_query_a_key():
    tokens = torch.tensor([[5, 0, 0, 0], [5, 4, 3, 0]])
    assert (padding_mask(tokens, 0) & causal_mask(4)).any(-1).all()


@pytest.mark.parametrize("changes", [{}, {"d_k": 3, "d_v": 5}, {"h": 4}, {"bias": True}])
def test_multi_head_attention_is_a_loop_over_heads(changes):
    attention = random_attention(**changes)
    x, memory = random(B, L, D, seed=6), random(B, S, D, seed=7)
    mask = torch.arange(S) < torch.tensor([S, 4])[:, None]
    d_k, d_v = attention.W_Q.out_features // attention.h, attention.W_V.out_features // attention.h

    def project(linear, rows, inputs):
        out = inputs @ linear.weight[rows].T
        return out if linear.bias is None else out + linear.bias[rows]

    outputs = []
    for i in range(attention.h):
        of_k, of_v = slice(i * d_k, (i + 1) * d_k), slice(i * d_v, (i + 1) * d_v)
        q, k = project(attention.W_Q, of_k, x), project(attention.W_K, of_k, memory)
        scores = q @ k.mT / d_k**0.5
        scores[~mask[:, None].expand_as(scores)] = -math.inf
        outputs.append(scores.softmax(-1) @ project(attention.W_V, of_v, memory))
    by_loop = project(attention.W_O, slice(None), torch.cat(outputs, -1))
    assert_close(attention(x, memory, mask[:, None, None]), by_loop)


def test_equals_pytorchs_multi_head_attention():
    ours = random_attention(bias=True)
    theirs = nn.MultiheadAttention(D, 2, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.W_Q.weight, ours.W_K.weight, ours.W_V.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.W_Q.bias, ours.W_K.bias, ours.W_V.bias]))
        theirs.out_proj.weight.copy_(ours.W_O.weight)
        theirs.out_proj.bias.copy_(ours.W_O.bias)
    x, memory = random(B, L, D, seed=6), random(B, S, D, seed=7)
    mask = torch.arange(S) < torch.tensor([S, 4])[:, None]
    expected = theirs(x, memory, memory, key_padding_mask=~mask, need_weights=False)[0]
    assert_close(ours(x, memory, mask[:, None, None]), expected)


def test_the_causal_flag_stands_for_the_causal_mask():
    attention, x = random_attention(), random(B, L, D)
    assert_close(attention(x, x, causal=True), attention(x, x, causal_mask(L)))


def test_projections_have_no_bias_unless_asked():
    names = [f"{matrix}.weight" for matrix in ("W_Q", "W_K", "W_V", "W_O")]
    assert [name for name, _ in random_attention().named_parameters()] == names
    assert len(list(random_attention(bias=True).parameters())) == 8


def test_attention_dropout_is_an_option_for_training():
    x = random(B, L, D)
    paper, dropping = random_attention(), random_attention(dropout=0.5)
    assert torch.equal(paper(x, x), paper(x, x))
    assert not torch.equal(dropping(x, x), dropping(x, x))
    assert_close(dropping.eval()(x, x), paper(x, x))


def test_a_mask_of_numbers_is_refused():
    """PyTorch's kernel would add ones and zeros to the scores, and so hide nothing."""
    x = random(B, L, D)
    attention = random_attention()
    for number_mask in (torch.ones(L, L).tril(), torch.ones(L, L, dtype=torch.int64).tril()):
        for attend in (
            lambda mask: inspect.unwrap(MultiHeadAttention.forward)(attention, x, x, mask),
            lambda mask: inspect.unwrap(attention_weights)(x, x, mask),
        ):
            with pytest.raises(ConfigError, match=f"a mask must be boolean.*{number_mask.dtype}"):
                attend(number_mask)


def test_rotary_heads_are_of_even_width():
    with pytest.raises(ConfigError, match="rotary.*d_k must be even, got 3"):
        MultiHeadAttention(6, 2, rotary=True)


def test_heads_must_divide_the_width_where_theirs_is_not_given():
    with pytest.raises(ConfigError, match="d_model must be a multiple of h, got 10 and 3"):
        MultiHeadAttention(10, 3)
    assert MultiHeadAttention(10, 3, d_k=4, d_v=2).W_O.in_features == 6
