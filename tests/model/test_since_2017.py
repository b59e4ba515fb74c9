"""What came after the paper: each option against its equation and the laws of the model."""

import math

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer.config import ModelConfig, TrainConfig, count_parameters
from annotated_transformer.data.batching import make_batch
from annotated_transformer.decoding.search import beam_search
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import ConfigError
from annotated_transformer.fast.decoder import FastDecoder
from annotated_transformer.fast.packing import packed_decode
from annotated_transformer.model.attention import MultiHeadAttention
from annotated_transformer.model.embedding import rotated
from annotated_transformer.model.feed_forward import PositionwiseFeedForward
from annotated_transformer.model.stacks import AddNorm
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training.optimizer import (
    Muon,
    noam_learning_rate,
    orthogonalised,
    stable_learning_rate,
)
from annotated_transformer.training.run import TrainingRun
from toys import SMALL, random_tokens, small_checkpoint, toy_tokenizer

B, S, T = 2, 7, 6
OPTIONS = [
    {"rms_norm": True},
    {"rms_norm": True, "norm": "pre"},
    {"positions": "rotary"},
    {"activation": "swiglu"},
    {"qk_norm": True},
    {"positions": "rotary", "qk_norm": True, "activation": "swiglu", "d_k": 6, "d_v": 5},
]


def model_with(options, dtype=torch.float64):
    """A model whose gains are not all 1."""
    torch.manual_seed(3)
    model = Transformer(ModelConfig(**{**SMALL, **options})).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def tokens():
    source, target = random_tokens(1, B, S), random_tokens(2, B, T)
    source[1, 4:] = 0
    target[:, 0] = 1
    return source, target


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_steps_packed_rows_and_the_count_agree_with_the_model(options):
    model = model_with(options)
    source, target = tokens()
    expected = model(source, target)
    state = model.start(source)
    steps = [model.step(target[:, t : t + 1], state) for t in range(T)]
    assert_close(torch.cat(steps, dim=1), expected)
    x, positions = packed_decode(model, source, target)
    assert_close(model.logits(x), expected.flatten(0, 1)[positions])
    assert sum(p.numel() for p in model.parameters()) == count_parameters(model.config)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_fast_decoder_finds_the_same_or_refuses(options):
    model = model_with(options, torch.float32)
    source, _ = tokens()
    if options.get("positions") == "rotary" or options.get("qk_norm"):
        with pytest.raises(ConfigError, match="search with the model itself, in float32"):
            FastDecoder(model)
    else:
        ours, theirs = (beam_search(one, source) for one in (FastDecoder(model), model))
        found, expected = ([[h.tokens for h in row] for row in rows] for rows in (ours, theirs))
        assert found == expected


@pytest.mark.parametrize("options", [{"positions": "rotary"}, {"qk_norm": True}], ids=str)
def test_a_checkpoint_without_fast_steps_translates_with_its_model(options, tmp_path):
    tokenizer = toy_tokenizer()
    model = small_checkpoint(tmp_path, tokenizer, **options)
    text = ["a cab fed a bee"]
    expected = Translator(model, tokenizer).translate(text)
    assert Translator.from_checkpoint(tmp_path).translate(text) == expected
    with pytest.raises(ConfigError, match="search with the model itself, in float32"):
        Translator.from_checkpoint(tmp_path, dtype="bfloat16")


def test_rms_norm_by_hand():
    layer = AddNorm(4, 0.0, "post", rms_norm=True).double()
    layer.norm.weight.data = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    x = torch.randn(5, 4, dtype=torch.float64)
    expected = 2 * x / ((2 * x).square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.norm.weight
    assert_close(layer(x, lambda y: y), expected)


def test_rotary_positions_are_a_product_of_complex_numbers():
    x = torch.randn(1, 2, 9, 6, dtype=torch.float64)
    angles = torch.arange(9)[:, None] / 10000 ** (torch.arange(0, 6, 2) / 6)
    turned = torch.view_as_complex(x.unflatten(-1, (3, 2)).contiguous())
    turned = torch.view_as_real(turned * torch.polar(torch.ones(9, 3).double(), angles.double()))
    assert_close(rotated(x), turned.flatten(-2), rtol=1e-6, atol=1e-6)
    assert_close(rotated(x[:, :, 4:5], position=4), rotated(x)[:, :, 4:5])


def test_a_rotary_score_depends_on_the_distance_alone():
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)

    def score(i, j):
        return (rotated(q, position=i) * rotated(k, position=j)).sum().item()

    scores = [score(i, i - 3) for i in (3, 10, 200)]
    assert scores == pytest.approx([scores[0]] * 3, rel=1e-5)
    other = score(10, 6)
    assert other != pytest.approx(scores[0], rel=1e-3)


def test_only_self_attention_is_turned():
    model = model_with({"positions": "rotary"})
    layer = model.decoder.layers[0]
    assert layer.self_attention.rotary and not layer.cross_attention.rotary
    with pytest.raises(ConfigError, match="rotary positions turn pairs .* got 3"):
        ModelConfig(**{**SMALL, "positions": "rotary", "d_k": 3})


def test_swiglu_by_hand():
    layer = PositionwiseFeedForward(3, 5, "swiglu").double()
    x = torch.randn(2, 3, dtype=torch.float64)
    hidden = x @ layer.W_1.weight.T + layer.W_1.bias
    gate, linear = hidden[:, :5], hidden[:, 5:]
    expected = (gate * torch.sigmoid(gate) * linear) @ layer.W_2.weight.T + layer.W_2.bias
    assert_close(layer(x), expected)


def test_query_key_norm_by_hand():
    layer = MultiHeadAttention(8, 2, qk_norm=True).double()
    layer.q_norm.weight.data.uniform_(0.5, 2.0)
    x = torch.randn(1, 4, 8, dtype=torch.float64)

    def unit(y, gain):
        return y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain

    heads = []
    for i in range(2):
        own = slice(4 * i, 4 * i + 4)
        q, k, v = ((x @ W.weight.T)[..., own] for W in (layer.W_Q, layer.W_K, layer.W_V))
        q, k = unit(q, layer.q_norm.weight), unit(k, layer.k_norm.weight)
        heads.append((q @ k.mT / math.sqrt(4)).softmax(-1) @ v)
    assert_close(layer(x, x), torch.cat(heads, -1) @ layer.W_O.weight.T)


def test_an_orthogonalised_matrix_keeps_singular_vectors_and_loses_singular_values():
    for shape in ((8, 20), (20, 8)):
        matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        U, _, V = torch.linalg.svd(matrix, full_matrices=False)
        found = orthogonalised(matrix)
        values = torch.linalg.svdvals(found)
        assert values.min() > 0.6 and values.max() < 1.3
        diagonal = U.T @ found @ V.T
        assert_close(diagonal, diagonal.diag().diag(), atol=1e-4, rtol=0)


def test_muon_is_pytorchs_for_matrices_and_adam_for_the_rest():
    """PyTorch's multiplies in bfloat16, hence the tolerance."""
    config = TrainConfig(optimizer="muon", weight_decay=0.1)
    torch.manual_seed(1)
    ours = Transformer(ModelConfig(**SMALL))
    theirs = Transformer(ModelConfig(**SMALL))
    theirs.load_state_dict(ours.state_dict())
    start = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    optimizer = Muon(ours, config)
    matrices = {n for n, p in theirs.named_parameters() if p.dim() == 2} - {"embedding.weight"}
    named = dict(theirs.named_parameters())
    rest = [p for n, p in named.items() if n not in matrices]
    both = {"lr": 0.01, "weight_decay": 0.1}
    muon = torch.optim.Muon([named[n] for n in matrices], adjust_lr_fn="match_rms_adamw", **both)
    adam = torch.optim.AdamW(rest, betas=(0.9, 0.98), eps=1e-9, **both)
    optimizer.param_groups[0]["lr"] = 0.01
    source, target = tokens()
    for _ in range(3):
        for model in (ours, theirs):
            model.zero_grad()
            F.cross_entropy(model(source, target).flatten(0, 1), target.flatten()).backward()
        optimizer.step()
        muon.step()
        adam.step()
    for name, parameter in ours.named_parameters():
        moved, other = parameter - start[name], named[name] - start[name]
        bound = 0.2 if name in matrices else 0.02
        assert (moved - other).norm() < bound * moved.norm(), name


def test_the_stable_rate_rises_stays_and_falls_to_nothing():
    rates = [stable_learning_rate(step, 100, 2.0, 10, 0.2) for step in range(1, 102)]
    assert rates[:10] == pytest.approx([0.2 * step for step in range(1, 11)])
    assert set(rates[10:80]) == {2.0}
    assert rates[80:] == pytest.approx([2.0 * (100 - step) / 20 for step in range(80, 101)])
    config = TrainConfig(schedule="wsd", train_steps=100, warmup_steps=10, lr_factor=0.3)
    run = TrainingRun(ModelConfig(**SMALL), config)
    run.steps = 50
    assert run.rate == 0.3 * noam_learning_rate(10, SMALL["d_model"], 10)


@pytest.mark.parametrize("name", ["adam", "adamw", "muon"])
def test_every_optimizer_learns_a_batch(name):
    decay = 0.0 if name == "adam" else 0.01
    config = TrainConfig(
        optimizer=name, schedule="wsd", train_steps=60, warmup_steps=10, weight_decay=decay,
        lr_factor=0.3, eps_ls=0.0,
    )  # fmt: skip
    run = TrainingRun(ModelConfig(**SMALL), config)
    batch = make_batch([([5, 6, 7], [7, 8]), ([8], [9, 10])])
    losses = [run.step([batch])[0].item() / batch.n_tokens for _ in range(60)]
    assert losses[-1] < 0.2 < 1.0 < losses[0]
