"""A `torch.nn.Transformer` becomes a checkpoint that computes the same."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.formats.nn_transformer import import_transformer
from annotated_transformer.model.embedding import positional_encoding
from toys import random_tokens, toy_tokenizer

D = 8


def of_torch(**changes):
    torch.manual_seed(0)
    settings = {"dropout": 0.3, "batch_first": True, **changes}
    module = nn.Transformer(D, 2, 2, 2, 12, **settings).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module, torch.randn(toy_tokenizer().vocab_size, D)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_first": True},
        {"activation": "gelu"},
        {"activation": nn.functional.silu},
    ],
)
@torch.no_grad()
def test_it_computes_the_same(tmp_path, changes):
    module, table = of_torch(**changes)
    import_transformer(
        module, nn.Embedding(*table.shape, _weight=table), toy_tokenizer(), tmp_path / "ours"
    )
    ours, _ = load_model(tmp_path / "ours")
    source, target = random_tokens(1, 2, 7, high=280), random_tokens(2, 2, 6, high=280)
    source[1, 4:] = 0
    embedded = [table[x] * D**0.5 + positional_encoding(x.size(1), D) for x in (source, target)]
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    padding = {"src_key_padding_mask": source == 0, "memory_key_padding_mask": source == 0}
    expected = module(*embedded, tgt_mask=future, **padding) @ table.T
    assert_close(ours(source, target), expected, atol=1e-5, rtol=1e-5)
    learning = ours.config.p_drop, ours.config.attention_dropout, ours.config.ffn_dropout
    assert learning == (0.3, 0.3, 0.3)


def test_what_has_no_place_here_is_refused_and_nothing_written(tmp_path):
    module, table = of_torch()
    unlike = nn.Transformer(D, 2, 2, 1, 12)
    other = nn.Transformer(D, 2, 2, 2, 12, activation=torch.tanh)
    of_module = nn.Transformer(D, 2, 2, 2, 12, activation=nn.GELU())
    none = nn.Transformer(D, 2, 0, 0, 12)
    without = nn.Transformer(D, 2, 2, 2, 12, bias=False)
    layers = of_torch()[0], of_torch()[0], of_torch()[0]
    layers[0].decoder.layers[1].activation = nn.functional.gelu
    layers[1].encoder.layers[1].norm_first = True
    layers[2].decoder.layers[0].self_attn.num_heads = 4
    for wrong, rows, words in (
        *((one, table, "alike in their layers") for one in (unlike, *layers)),
        (of_torch(layer_norm_eps=0.1)[0], table, "layer_norm_eps must be 1e-05, got 0.1"),
        (other, table, "relu, gelu or silu, got <built-in method tanh"),
        (of_module, table, r"must be a function, .* got GELU\("),
        (without, table, "must have biases, got bias=False"),
        (none, table, "must have layers, got 0 in its encoder"),
        (module, nn.Embedding(279, D), "tokenizer has 280 tokens"),
        (module, table[:-1], "tokenizer has 280 tokens"),
    ):
        with pytest.raises(ConfigError, match=words):
            import_transformer(wrong, rows, toy_tokenizer(), tmp_path / "ours")
        assert not (tmp_path / "ours").exists()
