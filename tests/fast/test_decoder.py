"""Models made ready to decode: the same function from weights laid out otherwise,
almost the same one in 8 bits."""

import pickle
from copy import deepcopy
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from annotated_transformer.checkpoint.weights import save_weights
from annotated_transformer.command_line.entry_point import main
from annotated_transformer.decoding.search import beam_search, greedy_search
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import ConfigError
from annotated_transformer.fast import decoder as inference, int8 as quantization, linear
from annotated_transformer.fast.decoder import FastDecoder
from annotated_transformer.fast.int8 import Int8Linear, quantize
from annotated_transformer.fast.linear import store_column_major
from toys import (
    OPTIONS,
    random_tokens,
    small_checkpoint,
    small_model,
    text_pairs,
    toy_tokenizer,
    walk,
)  # fmt: skip


def test_laying_out_changes_strides_and_no_number():
    model = small_model()
    laid = store_column_major(deepcopy(model))
    for (name, before), after in zip(model.named_parameters(), laid.parameters(), strict=True):
        assert torch.equal(before, after), name
    matrices = [parameter for parameter in laid.parameters() if parameter.dim() == 2]
    assert matrices and all(matrix.t().is_contiguous() for matrix in matrices)
    source, target = random_tokens(1, 3, 7), random_tokens(2, 3, 5)
    assert_close(laid(source, target), model(source, target))


def test_a_model_that_was_laid_out_is_saved_as_it_was(tmp_path):
    model = small_model()
    save_weights(tmp_path / "a", model)
    save_weights(tmp_path / "b", store_column_major(model))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("is_batched", [False, True])
@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("changes", OPTIONS, ids=str)
def test_steps_made_for_search_are_the_models_own(changes, padding, is_batched, monkeypatch):
    monkeypatch.setattr(inference, "is_batched", lambda sentences: is_batched)
    model = small_model(**changes)
    source = random_tokens(1, 3, 7)
    source[1, 7 - padding :] = 0
    fast = FastDecoder(store_column_major(deepcopy(model)))
    for ours, expected in zip(walk(fast, source), walk(model, source), strict=True):
        assert_close(ours, expected)


def test_many_sentences_have_attention_as_two_products():
    fused = "aten::_scaled_dot_product_flash_attention_for_cpu"
    for n, n_fused in ((15, 2 * 2 + 2), (16, 2)):  # in a step of two layers, and in the encoder
        decoder = FastDecoder(small_model(dtype=torch.float32))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            state = decoder.start(random_tokens(1, n, 7))
            decoder.step(random_tokens(2, n, 1), state)
        assert sum(event.count for event in profile.key_averages() if event.key == fused) == n_fused
        assert (state.caches[0].memory_keys.stride(-1) == 1) == (n == 15)  # or K^T is stored


@pytest.mark.parametrize("int8", [False, True], ids=["float", "int8"])
def test_no_sentences_have_no_outputs(int8):
    model, none = small_model(dtype=torch.float32), torch.zeros(0, 3, dtype=torch.long)
    decoder = FastDecoder(quantize(model) if int8 else model)
    assert beam_search(decoder, none) == greedy_search(decoder, none) == []


class Widths:
    """A model that notes how many hypotheses each step has."""

    def __init__(self, model):
        self.model, self.config, self.start, self.shapes = model, model.config, model.start, []

    def step(self, tokens, state):
        self.shapes.append(tuple(tokens.shape))
        return self.model.step(tokens, state)


@pytest.mark.slow
def test_search_finds_the_same_hypotheses():
    model = small_model(seed=1)
    source = random_tokens(1, 8, 7)
    source[2:5, 4:] = 0
    noted = Widths(FastDecoder(model))
    found, expected = (beam_search(each, source, 3, n_best=3) for each in (noted, model))
    texts, wanted = ([[h.tokens for h in hs] for hs in each] for each in (found, expected))
    assert texts == wanted
    assert_close([h.score for hs in found for h in hs], [h.score for hs in expected for h in hs])
    n_sentences, widths = zip(*noted.shapes, strict=True)
    assert len(set(n_sentences)) > 2 and any(later < earlier for earlier, later in pairwise(widths))
    assert greedy_search(FastDecoder(model), source) == greedy_search(model, source)


def where_parameters_are(model):
    return {
        name: (p.data_ptr(), p.stride(), p.untyped_storage().nbytes())
        for name, p in model.named_parameters()
    }


def test_a_model_made_ready_is_left_as_it_is():
    model = small_model(bias=True)
    before = where_parameters_are(model)
    FastDecoder(model, keep_float16_copy=True)
    assert where_parameters_are(model) == before


def test_only_the_matrices_of_one_product_are_held_twice():
    """W_Q, W_K and W_V of all layers and the decoder's W_K and W_V of the source:
    5 of a decoder layer, 3 of others."""
    model = small_model(N=3, d_model=8, h=2)
    decoder = FastDecoder(model)
    parts = [decoder, *decoder.encoder_layers, *decoder.decoder_layers]
    functions = [f for part in parts for f in vars(part).values() if isinstance(f, partial)]
    weights = {f.keywords["weight"].data_ptr(): f.keywords["weight"] for f in functions}
    own = {parameter.data_ptr() for parameter in model.parameters()}
    copied = [weight for place, weight in weights.items() if place not in own]
    assert sum(weight.numel() for weight in copied) == 3 * (3 + 5) * 8 * 8
    assert len(weights) - len(copied) == 3 * (3 + 5) + 1  # W_O, W_1, W_2, cross W_Q, W_O; E


def learn(model, _):
    """A step of Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(random_tokens(1, 3, 7), random_tokens(2, 3, 5)).square().sum().backward()
    optimizer.step()


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, {"keep_float16_copy": True}, {"dtype": torch.float32}], ids=str
)
@pytest.mark.parametrize(
    "change",
    [lambda model, other: model.load_state_dict(other.state_dict()), learn],
    ids=["load", "learn"],
)
def test_weights_that_change_count_in_every_model_made_ready(change, settings):
    model, other = (small_model(seed, bias=True, norm="pre") for seed in (0, 5))
    source = random_tokens(1, 3, 7)
    several = [FastDecoder(model, **settings) for _ in range(2)]
    before = [list(walk(decoder, source)) for decoder in several]
    change(model, other)
    expected = list(walk(FastDecoder(model, **settings), source))
    for decoder, old in zip(several, before, strict=True):
        for ours, new, gone in zip(walk(decoder, source), expected, old, strict=True):
            assert torch.equal(ours, new) and not torch.equal(ours, gone)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("changes", OPTIONS, ids=str)
def test_steps_in_16_bits_are_nearly_the_models_own(changes, dtype):
    model = small_model(dtype=torch.float32, **changes)
    source = random_tokens(1, 3, 7)
    decoder = FastDecoder(model, dtype=dtype)
    for ours, expected in zip(walk(decoder, source), walk(model, source), strict=True):
        assert ours.dtype == dtype
        share = (ours.float() - expected).norm() / expected.norm()
        assert 0 < share < (0.01 if dtype == torch.float16 else 0.08)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert deepcopy(decoder).dtype == dtype


@pytest.mark.slow
# PyTorch's own pickling of 8-bit weights gives this warning.
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("int8", [False, True], ids=["float", "int8"])
@pytest.mark.parametrize(
    "copied", [deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
def test_a_copy_is_a_whole(copied, int8):
    model = small_model(dtype=torch.float32)
    source = random_tokens(1, 3, 7)
    decoder = FastDecoder(quantize(model) if int8 else model)
    copy = copied(decoder)
    assert copy.model is not model
    for ours, expected in zip(walk(copy, source), walk(decoder, source), strict=True):
        assert torch.equal(ours, expected)


HALVES = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines, reason="no kernel for this CPU"
)


def read_from_the_copy(shape, weight_of=Tensor.round, keep_float16_copy=True):
    """Numbers of rows, of 1 to 65, at which the product does not notice that W was set to 0."""
    torch.manual_seed(0)
    weight = weight_of(torch.randn(shape))
    rows, bias = torch.randn(65, shape[1]).type_as(weight), torch.randn(shape[0]).type_as(weight)
    product = linear.linear_function(weight, bias, keep_float16_copy)
    expected = nn.functional.linear(rows, weight, bias)
    bound = 1e-5 * expected.abs().max().item()
    for n in range(66):
        assert_close(product(rows[:n]), expected[:n], rtol=0, atol=bound)
    weight.zero_()
    return {n for n in range(1, 66) if not torch.equal(product(rows[:n]), bias.expand(n, -1))}


@HALVES
@pytest.mark.parametrize("capability, most", [("AVX2", 65), ("AVX512", 16)])
def test_few_rows_meet_a_copy_in_16_bits(capability, most, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert read_from_the_copy((1024, 512)) == set(range(1, most + 1))
    assert read_from_the_copy((256, 512)) == set(range(4, most + 1))
    assert read_from_the_copy((128, 512)) == set()  # a call would cost more than it saves


@pytest.mark.slow
@HALVES
def test_only_numbers_that_float16_holds_have_a_copy():
    assert read_from_the_copy((1024, 512), keep_float16_copy=False) == set()
    assert read_from_the_copy((1024, 512), lambda weight: weight) == set()
    assert read_from_the_copy((1024, 512), lambda weight: weight.round() * 1e5) == set()
    # Float16's smallest numbers.
    assert read_from_the_copy((1024, 512), lambda weight: weight.round() * 2**-24)
    assert read_from_the_copy((1024, 512), lambda weight: weight.round().double()) == set()


def wide_model_of_halves(**changes):
    model = small_model(dtype=torch.float32, vocab_size=300, d_model=512, d_ff=512, h=8, **changes)
    for parameter in model.parameters():
        parameter.data = parameter.data.half().float()
    return model


@pytest.mark.slow
def test_weights_that_are_loaded_after_the_copy_count():
    model, other = wide_model_of_halves(), wide_model_of_halves(seed=5)
    source = random_tokens(1, 3, 7)
    decoder = FastDecoder(store_column_major(model), keep_float16_copy=True)
    before = greedy_search(decoder, source)
    model.load_state_dict(other.state_dict())
    assert greedy_search(decoder, source) == greedy_search(other, source) != before
    # Parameters are still the model's own, and can be loaded again.
    model.load_state_dict(other.state_dict())
    assert all(not parameter.is_inference() for parameter in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"norm": "pre", "bias": True}], ids=str)
def test_steps_that_read_16_bits_are_the_models_own(changes):
    model = wide_model_of_halves(**changes)
    source = random_tokens(1, 3, 7)
    decoder = FastDecoder(store_column_major(deepcopy(model)), keep_float16_copy=True)
    for ours, expected in zip(walk(decoder, source), walk(model, source), strict=True):
        # The logits go up to 36, and float32 itself gives them to 0.001.
        assert_close(ours, expected, rtol=0, atol=0.03)
    assert deepcopy(decoder).keep_float16_copy


def test_no_search_with_dropout():
    model = small_model()
    decoder = FastDecoder(model.train())
    with pytest.raises(ConfigError, match="evaluation mode"):
        decoder.start(random_tokens(1, 3, 7))
    model.eval()
    state = decoder.start(random_tokens(1, 3, 7))
    assert not state.caches[0].memory_keys.requires_grad
    assert not decoder.step(random_tokens(2, 3, 1), state).requires_grad
    state.keep(torch.tensor([], dtype=torch.long))
    assert decoder.step(random_tokens(2, 0, 1), state).shape == (0, 1, model.config.vocab_size)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, {"norm": "pre", "bias": True}, {"d_k": 3, "d_v": 5}], ids=str
)
def test_steps_of_an_8_bit_model_made_for_search_are_its_own(changes):
    model = quantize(small_model(dtype=torch.float32, **changes))
    source = random_tokens(1, 3, 7)
    for ours, expected in zip(walk(FastDecoder(model), source), walk(model, source), strict=True):
        assert_close(ours, expected, rtol=0, atol=1e-6)


def by_hand(x, weight, bias, bits):
    """W rounded row by row to -127 ... 127; x to 2^bits steps between its least and its
    largest entry, 0 among them."""
    w_scale = weight.abs().amax(1, keepdim=True) / 127
    low, high, largest = min(x.min().item(), 0.0), max(x.max().item(), 0.0), 2**bits - 1
    x_scale = (high - low) / largest
    zero = round(-low / x_scale)
    rounded_x = ((x / x_scale).round() + zero).clamp(0, largest) - zero
    return (rounded_x * x_scale) @ ((weight / w_scale).round() * w_scale).T + bias


@pytest.mark.parametrize("bits", [8, 7])
@pytest.mark.parametrize("shape", [(1, 16), (3, 5, 16), (64, 16)])
def test_the_8_bit_product_is_the_product_of_the_rounded_factors(shape, bits, monkeypatch):
    """Where the CPU's sums of 8 bits are not exact, x has 7."""
    if bits == 8 and not quantization.sums_are_exact():
        pytest.skip("this CPU adds products of 8 bits in 16 bits")
    monkeypatch.setattr(quantization, "sums_are_exact", lambda: bits == 8)
    torch.manual_seed(0)
    x, weight, bias = torch.randn(shape), torch.randn(24, 16), torch.randn(24)
    assert_close(Int8Linear(weight, bias)(x), by_hand(x, weight, bias, bits), rtol=0, atol=0.02)
    exact = nn.functional.linear(x, weight, bias)
    share = (Int8Linear(weight, bias)(x) - exact).norm() / exact.norm()
    assert 0 < share < (0.02 if bits == 8 else 0.04)


def test_no_rows_and_rows_of_zeros():
    assert Int8Linear(torch.randn(5, 4))(torch.randn(2, 0, 4)).shape == (2, 0, 5)
    assert not Int8Linear(torch.zeros(5, 4))(torch.randn(2, 4)).any()


@pytest.mark.parametrize("changes", [{}, {"norm": "pre", "bias": True}, {"d_k": 3, "d_v": 5}])
def test_every_linear_layer_is_in_8_bits_and_the_logits_are_nearly_the_same(changes):
    model = small_model(dtype=torch.float32, **changes)
    small = quantize(deepcopy(model))
    assert not [name for name, module in small.named_modules() if isinstance(module, nn.Linear)]
    source, target = random_tokens(1, 3, 7), random_tokens(2, 3, 5)
    exact, rounded = model(source, target), small(source, target)
    assert 0 < (exact - rounded).norm() < 0.2 * exact.norm()


def test_attention_dropout_stays_off():
    model = quantize(small_model(dtype=torch.float32, attention_dropout=0.5))
    source, target = random_tokens(1, 2, 7), random_tokens(2, 2, 5)
    assert torch.equal(model(source, target), model(source, target))
    assert not any(module.training for module in model.modules())


def test_sums_of_8_bit_products_do_not_overflow():
    """255 times 127, twice, is more than 16 bits hold:
    a CPU that adds pairs in 16 bits must get 7 bits of x."""
    wide = Int8Linear(torch.ones(8, 512))(torch.ones(16, 512))
    assert_close(wide, torch.full((16, 8), 512.0), rtol=0.01, atol=0)


@pytest.mark.slow
def test_a_checkpoint_is_read_into_8_bits(tmp_path):
    model = small_checkpoint(tmp_path)
    sources = [source for source, _ in text_pairs(1, 3)]
    laid = Translator.from_checkpoint(tmp_path)
    assert isinstance(laid.search_model, FastDecoder)
    assert laid.model.decoder.layers[0].feed_forward.W_1.weight.t().is_contiguous()
    assert laid.translate(sources) == Translator(model, toy_tokenizer()).translate(sources)
    eight = Translator.from_checkpoint(tmp_path, int8=True)
    assert isinstance(eight.search_model, FastDecoder)
    assert isinstance(eight.model.decoder.layers[0].feed_forward.W_1, Int8Linear)
    assert len(eight.translate(sources)) == 3


@pytest.mark.parametrize(
    "model", [small_model(), small_model(dtype=torch.float32).to("meta")], ids=["float64", "meta"]
)
def test_8_bits_are_for_float32_on_the_cpu(model):
    with pytest.raises(ConfigError, match="int8 needs a model in float32 on the CPU"):
        quantize(model)


def test_a_checkpoint_is_searched_in_the_type_that_is_asked_for(tmp_path):
    small_checkpoint(tmp_path)
    found = {None: torch.float32, torch.float16: torch.float16, "bfloat16": torch.bfloat16}
    for asked, dtype in found.items():
        translator = Translator.from_checkpoint(tmp_path, dtype=asked)
        state = translator.search_model.start(random_tokens(1, 2, 5))
        assert translator.search_model.step(random_tokens(2, 2, 1), state).dtype == dtype
        assert translator.model.embedding.weight.dtype == torch.float32
    with pytest.raises(ConfigError, match="dtype must be float32, float16 or bfloat16, got int8"):
        Translator.from_checkpoint(tmp_path, dtype="int8")
    with pytest.raises(ConfigError, match="a model in 8 bits cannot be in torch.float16 as well"):
        Translator.from_checkpoint(tmp_path, int8=True, dtype="float16")


def test_the_command_line_names_the_type(tmp_path, monkeypatch, capsys):
    small_checkpoint(tmp_path)
    (tmp_path / "in").write_text("tea\n")
    types, start = [], FastDecoder.start
    noted = lambda self, source: types.append(self.dtype) or start(self, source)  # noqa: E731
    monkeypatch.setattr(FastDecoder, "start", noted)
    translate = ["translate", str(tmp_path), "--device", "cpu", "--input", str(tmp_path / "in")]
    assert main([*translate, "--dtype", "bfloat16"]) == main(translate) == 0
    assert types == [torch.bfloat16, torch.float32]
    assert main([*translate, "--int8", "--dtype", "float16"]) == 2
    assert "a model in 8 bits cannot be in torch.float16 as well" in capsys.readouterr().err


def test_a_model_is_not_put_into_8_bits_twice_and_not_saved(tmp_path):
    model = quantize(small_model(dtype=torch.float32))
    with pytest.raises(ConfigError, match="already"):
        quantize(model)
    with pytest.raises(ConfigError, match="cannot be saved"):
        save_weights(tmp_path / "weights", model)


def test_a_pytorch_without_the_kernels_is_named(monkeypatch):
    monkeypatch.delattr(torch, "quantize_per_channel")
    with pytest.raises(ConfigError, match="no 8-bit kernels"):
        quantize(small_model(dtype=torch.float32))
