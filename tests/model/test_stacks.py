from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer.config import ModelConfig
from annotated_transformer.model.attention import MultiHeadAttention
from annotated_transformer.model.decoding_state import LayerCache
from annotated_transformer.model.dropout import Dropout
from annotated_transformer.model.feed_forward import PositionwiseFeedForward
from annotated_transformer.model.stacks import AddNorm, Decoder, DecoderLayer, Encoder
from annotated_transformer.model.transformer import Transformer
from toys import SMALL, random_tokens, small_model

B, S, T, D = 2, 7, 6, 8


def random_add_norm(norm):
    torch.manual_seed(0)
    module = AddNorm(D, 0.0, norm).double()
    nn.init.normal_(module.norm.weight)
    nn.init.normal_(module.norm.bias)
    return module, torch.randn(B, T, D, dtype=torch.float64)


def test_post_norm_is_layer_norm_of_the_sum():
    module, x = random_add_norm("post")
    y = x + x.sin()
    centred = y - y.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert_close(module(x, torch.sin), normed * module.norm.weight + module.norm.bias)


def test_pre_norm_leaves_the_sum_as_it_is():
    module, x = random_add_norm("pre")
    normed = F.layer_norm(x, [D], module.norm.weight, module.norm.bias)
    assert_close(module(x, torch.sin), x + normed.sin())


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dropout_falls_on_the_sublayers_output_before_the_sum(norm):
    """With a constant sub-layer of 1 and p = 1/2 each entry of the sum is x or x + 2."""
    module, x = random_add_norm(norm)
    module.dropout.p, module.norm = 0.5, nn.Identity()
    added = module(x, torch.ones_like) - x
    assert_close(added, added.round())
    assert set(added.round().unique().tolist()) == {0.0, 2.0}
    assert 0.2 < (added > 1).double().mean() < 0.8


@pytest.mark.parametrize("stack", [Encoder, Decoder])
def test_layers_share_nothing(stack):
    layers = stack(ModelConfig(**{**SMALL, "N": 3})).layers
    parameters = [parameter.data_ptr() for layer in layers for parameter in layer.parameters()]
    assert len(layers) == 3 and len(set(parameters)) == len(parameters)
    first, second = (list(layer.parameters()) for layer in layers[:2])
    assert all(not torch.equal(p, q) for p, q in zip(first, second) if p.dim() == 2 and p.std() > 0)


def test_every_stack_ends_in_one_normalisation():
    model = Transformer(ModelConfig(**SMALL))  # as initialised: gains of one, biases of zero
    memory = model.encode(random_tokens(1, B, S))
    decoded = model.decode(random_tokens(2, B, T), memory, None)
    for x in (memory, decoded):
        assert_close(x.mean(-1), torch.zeros(x.shape[:2]), atol=1e-6, rtol=0)
        assert_close(x.var(-1, unbiased=False), torch.ones(x.shape[:2]), atol=1e-3, rtol=0)
    pre = Transformer(ModelConfig(**SMALL, norm="pre"))
    for stack in ("encoder", "decoder"):
        assert not isinstance(getattr(model, stack).norm, nn.LayerNorm)
        assert isinstance(getattr(pre, stack).norm, nn.LayerNorm)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dropout_is_where_section_5_4_puts_it_and_nowhere_else(norm, monkeypatch):
    """Every active dropout reads the output of a sub-layer,
    or one of the two sums of embedding and position."""
    model = Transformer(ModelConfig(**{**SMALL, "p_drop": 0.5}, norm=norm)).train()
    dropped, produced = [], []
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_pre_hook(
                lambda m, inputs: dropped.append(inputs[0]) if m.p else None
            )
        elif isinstance(module, (MultiHeadAttention, PositionwiseFeedForward)):
            module.register_forward_hook(lambda m, inputs, output: produced.append(output))
    kernel, weights_dropped = F.scaled_dot_product_attention, []

    def attention(*args, dropout_p=0.0, **kwargs):
        weights_dropped.append(dropout_p)
        return kernel(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attention)
    source, target_in = random_tokens(1, B, S), random_tokens(2, B, T)
    model(source, target_in)
    n_sublayers = 2 * model.config.N + 3 * model.config.N
    assert len(produced) == n_sublayers and len(dropped) == n_sublayers + 2
    embedded = [x for x in dropped if not any(x is y for y in produced)]
    assert len(embedded) == 2
    for x, tokens in zip(embedded, (source, target_in)):
        assert_close(x, model.embedding(tokens) + model.positions(tokens.size(1)))
    assert weights_dropped == [0.0] * 3 * model.config.N


def test_nothing_but_dropout_tells_training_from_decoding(monkeypatch):
    model = small_model(p_drop=0.5).train()
    source, target_in = random_tokens(1, B, S), random_tokens(2, B, T)
    assert not torch.equal(model(source, target_in), model(source, target_in))
    monkeypatch.setattr(Dropout, "forward", lambda self, x: x)
    assert torch.equal(model(source, target_in), model.eval()(source, target_in))


def test_options_turn_on_the_inner_dropouts():
    config = ModelConfig(**SMALL, attention_dropout=0.25, ffn_dropout=0.125)
    layer = DecoderLayer(config)
    assert (layer.self_attention.dropout, layer.cross_attention.dropout) == (0.25, 0.25)
    assert layer.feed_forward.dropout.p == 0.125 and layer.add_norm_1.dropout.p == 0.0


def test_a_decoder_layer_steps_as_it_goes_forward():
    """One position at a time, two hypotheses of one sentence side by side."""
    layer = small_model(d_k=3, d_v=5).decoder.layers[0]
    x, memory = torch.randn(2, T, D, dtype=torch.float64), torch.randn(1, S, D, dtype=torch.float64)
    mask = (torch.arange(S) < 5)[None, None, None]
    expected = layer(x, memory.expand(2, S, D), mask.expand(2, 1, 1, S))
    cache = LayerCache.of_memory(layer, memory)

    def minus_infinities(seen):
        return torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -torch.inf)

    # The positions of the two take turns.
    own = torch.eye(2, dtype=torch.bool)[None, None].repeat(1, 1, 1, T)
    attend_memory = partial(cache.attend_memory, mask=minus_infinities(mask))
    steps = []
    for t in range(T):
        seen = minus_infinities(own[..., : 2 * (t + 1)])
        attend_past = partial(cache.attend_past, mask=seen, position=t)
        steps.append(layer(x[:, t][None], attend_memory, attend_past=attend_past))
    assert_close(torch.stack(steps, dim=2)[0], expected)
    assert cache.keys.shape == (1, 2, 2 * T, 3) and cache.memory_keys.shape == (1, 2, S, 3)
