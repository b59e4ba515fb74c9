"""A head that is knocked out adds nothing, an even one looks everywhere alike,
and both come back."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from annotated_transformer.config import PAD_ID
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.attention_views.knock_out import knocked_out
from annotated_transformer.extras.attention_views.record import record_attention
from annotated_transformer.model.attention import (
    MultiHeadAttention,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)
from lab.experiments.figures_3_to_5.knock_out import mcnemar
from toys import random_tokens, small_model

B, S, T, H, D, K, KV = 2, 7, 6, 3, 12, 5, 3


def attention():
    torch.manual_seed(0)
    return MultiHeadAttention(D, H, d_k=K, d_v=KV).double()


def each_head(module, x, memory):
    """The outputs of the heads, from the book's own formula and slices of the matrices by hand."""
    outputs = []
    for i in range(H):
        W_Q, W_K, W_V = (
            matrix.weight[i * width : (i + 1) * width]
            for matrix, width in ((module.W_Q, K), (module.W_K, K), (module.W_V, KV))
        )
        W_O = module.W_O.weight[:, i * KV : (i + 1) * KV]
        head = scaled_dot_product_attention(x @ W_Q.T, memory @ W_K.T, memory @ W_V.T)
        outputs.append(head @ W_O.T)
    return outputs


@pytest.mark.parametrize("gone", [(), (0,), (2,), (0, 1), (0, 1, 2)])
def test_the_output_is_the_sum_of_the_heads_that_stay(gone):
    module, x, memory = attention(), torch.randn(B, T, D).double(), torch.randn(B, S, D).double()
    with torch.no_grad(), knocked_out(*((module, i) for i in gone)):
        found = module(x, memory)
        heads = each_head(attention(), x, memory)
    by_hand = torch.zeros(B, T, D).double()
    for i in set(range(H)) - set(gone):
        by_hand += heads[i]
    assert_close(found, by_hand)


def test_an_even_head_gives_every_visible_key_the_same():
    model = small_model()
    source, target_in = random_tokens(1, B, S), random_tokens(2, B, T)
    source[1, 4:] = PAD_ID
    with torch.no_grad(), record_attention(model) as before:
        model(source, target_in)
    heads = [
        (model.encoder.layers[0].self_attention, 1),
        (model.decoder.layers[0].self_attention, 0),
    ]
    with torch.no_grad(), knocked_out(*heads, even=True), record_attention(model) as after:
        model(source, target_in)
    visible = padding_mask(source, PAD_ID)[:, 0].double().expand(B, S, S)
    assert_close(
        after["encoder.layers.0.self_attention"][:, 1], visible / visible.sum(-1, keepdim=True)
    )
    seen = causal_mask(T)[0].double().expand(B, T, T)
    assert_close(after["decoder.layers.0.self_attention"][:, 0], seen / seen.sum(-1, keepdim=True))
    name = "encoder.layers.0.self_attention"
    assert_close(after[name][:, 0], before[name][:, 0])  # the head beside it is as it was


@pytest.mark.parametrize("even", [False, True])
def test_everything_comes_back_also_by_an_error(even):
    model = small_model(bias=True)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    cross = model.decoder.layers[1].cross_attention
    heads = [(model.encoder.layers[0].self_attention, 0), (cross, 1)]

    def changed():
        after = dict(model.named_parameters())
        names = [name for name in before if not torch.equal(after[name], before[name])]
        return {name.split(".W_")[0] for name in names}

    expected = {"encoder.layers.0.self_attention", "decoder.layers.1.cross_attention"}
    with pytest.raises(RuntimeError, match="inside"), knocked_out(*heads, even=even):
        assert changed() == expected
        raise RuntimeError("inside")
    assert changed() == set()


def test_a_head_that_is_not_there_is_named():
    gone = knocked_out((attention(), 3))
    with pytest.raises(ConfigError, match="head must be 0 to 2, got 3"), gone:
        pass


def test_mcnemar_is_the_share_of_coin_throws_that_are_as_lopsided():
    before = torch.tensor([True] * 6 + [False] * 2 + [True] * 9 + [False] * 3)
    after = torch.tensor([False] * 6 + [True] * 2 + [True] * 9 + [False] * 3)
    throws = [sum(coins) for coins in itertools.product((0, 1), repeat=8)]  # 6 against 2
    assert mcnemar(before, after) == sum(abs(heads - 4) >= 2 for heads in throws) / len(throws)
    assert mcnemar(before, after) == mcnemar(after, before)


def test_answers_that_agree_are_no_evidence():
    same = torch.tensor([True, False, True])
    assert mcnemar(same, same) == 1.0
    assert mcnemar(torch.ones(20, dtype=torch.bool), torch.zeros(20, dtype=torch.bool)) == 2 / 2**20
