"""The whole model against PyTorch's own layers, with the same weights."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from annotated_transformer.config import PAD_ID
from annotated_transformer.model.embedding import positional_encoding
from annotated_transformer.training.loss import label_smoothed_cross_entropy
from toys import random_tokens, small_model

B, S, T = 3, 7, 6


def copy_attention(theirs, ours):
    theirs.in_proj_weight.copy_(torch.cat([ours.W_Q.weight, ours.W_K.weight, ours.W_V.weight]))
    theirs.out_proj.weight.copy_(ours.W_O.weight)
    if ours.W_Q.bias is not None:
        theirs.in_proj_bias.copy_(torch.cat([ours.W_Q.bias, ours.W_K.bias, ours.W_V.bias]))
        theirs.out_proj.bias.copy_(ours.W_O.bias)
    else:
        nn.init.zeros_(theirs.in_proj_bias)
        nn.init.zeros_(theirs.out_proj.bias)


def copy_layer(theirs, ours, norms):
    copy_attention(theirs.self_attn, ours.self_attention)
    if hasattr(theirs, "multihead_attn"):
        copy_attention(theirs.multihead_attn, ours.cross_attention)
    theirs.linear1.load_state_dict(ours.feed_forward.W_1.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.W_2.state_dict())
    for i in range(1, norms + 1):
        norm = ours.get_submodule(f"add_norm_{i}.norm")
        theirs.get_submodule(f"norm{i}").load_state_dict(norm.state_dict())


@torch.no_grad()
def pytorchs(model):
    """nn.Transformer with our weights. The paper's stacks end in the last layer's norm:
    no norm of their own."""
    c, dtype = model.config, model.embedding.weight.dtype
    settings = {"dropout": 0.0, "activation": c.activation, "norm_first": c.norm == "pre"}
    settings["batch_first"] = True
    encoder_layer = nn.TransformerEncoderLayer(c.d_model, c.h, c.d_ff, **settings)
    decoder_layer = nn.TransformerDecoderLayer(c.d_model, c.h, c.d_ff, **settings)
    norms = [nn.LayerNorm(c.d_model) if c.norm == "pre" else None for _ in range(2)]
    encoder = nn.TransformerEncoder(encoder_layer, c.N, norms[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(decoder_layer, c.N, norms[1])
    stacks = {"custom_encoder": encoder, "custom_decoder": decoder}
    oracle = nn.Transformer(c.d_model, c.h, batch_first=True, **stacks).to(dtype)
    for theirs, ours in zip(oracle.encoder.layers, model.encoder.layers, strict=True):
        copy_layer(theirs, ours, 2)
    for theirs, ours in zip(oracle.decoder.layers, model.decoder.layers, strict=True):
        copy_layer(theirs, ours, 3)
    if c.norm == "pre":
        oracle.encoder.norm.load_state_dict(model.encoder.norm.state_dict())
        oracle.decoder.norm.load_state_dict(model.decoder.norm.state_dict())
    return oracle


def oracle_logits(oracle, weight, source, target_in):
    def embed(tokens):
        positions = positional_encoding(tokens.size(1), weight.size(1)).to(weight)
        return weight[tokens] * weight.size(1) ** 0.5 + positions

    padding = source == PAD_ID
    future = torch.ones(target_in.size(1), target_in.size(1), dtype=torch.bool).triu(1)
    masks = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
    return oracle(embed(source), embed(target_in), tgt_mask=future, **masks) @ weight.T


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"bias": True}, {"activation": "gelu"}, {"h": 8, "N": 3, "d_model": 16}],
    ids=["paper", "biases", "gelu", "deeper"],
)
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_the_whole_model_equals_pytorchs_transformer(dtype, tolerance, norm, changes):
    model = small_model(dtype=dtype, norm=norm, **changes)
    source, target_in = random_tokens(1, B, S), random_tokens(2, B, T)
    source[1, 4:] = source[2, 1:] = PAD_ID
    expected = oracle_logits(pytorchs(model), model.embedding.weight, source, target_in)
    assert expected.std() > 0.1
    assert_close(model(source, target_in), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_gradients_equal_pytorchs(norm):
    """Of the training loss, through the whole model,
    to the shared embedding and the first and last layers."""
    model = small_model(norm=norm)
    oracle, weight = pytorchs(model), model.embedding.weight
    source, target_in = random_tokens(1, B, S), random_tokens(2, B, T)
    target_out = random_tokens(3, B, T)
    source[1, 4:] = target_out[0, 3:] = PAD_ID

    def gradients(logits, *parameters):
        return torch.autograd.grad(label_smoothed_cross_entropy(logits, target_out)[0], parameters)

    ours = gradients(
        model(source, target_in),
        weight,
        model.encoder.layers[0].feed_forward.W_1.weight,
        model.decoder.layers[-1].cross_attention.W_O.weight,
    )
    theirs = gradients(
        oracle_logits(oracle, weight, source, target_in),
        weight,
        oracle.encoder.layers[0].linear1.weight,
        oracle.decoder.layers[-1].multihead_attn.out_proj.weight,
    )
    assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
