import inspect

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer.config import BOS_ID, PAD_ID, ModelConfig
from annotated_transformer.errors import ConfigError
from annotated_transformer.fast.decoder import FastDecoder
from annotated_transformer.model.embedding import (
    concatenated_positional_encoding,
    positional_encoding,
)
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training.loss import label_smoothed_cross_entropy
from toys import SHAPES, SMALL, random_tokens, small_model

B, S, T, V = 2, 7, 6, 11
shapes = pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES.keys())


def inputs(b=B):
    """Sources of unequal length, and targets that start with bos."""
    source, target_in = random_tokens(1, b, S), random_tokens(2, b, T)
    target_in[:, 0] = BOS_ID
    source[1, 4:] = PAD_ID
    return source, target_in


def step_through(model, state, tokens):
    """Logits of steps along `tokens` (B, W, T), one hypothesis of each sentence a row."""
    return torch.stack([model.step(tokens[:, :, t], state) for t in range(tokens.size(2))], dim=2)


def hypotheses(state, b, w):
    """Give every sentence w copies of its first hypothesis."""
    state.reorder(torch.zeros(b, w, dtype=torch.long))
    return state


@shapes
def test_cached_steps_equal_one_forward(changes):
    model = small_model(**changes)
    source, target_in = inputs()
    steps = step_through(model, model.start(source), target_in[:, None])
    assert_close(steps[:, 0], model(source, target_in))


@pytest.mark.slow
@shapes
def test_hypotheses_that_share_a_memory_equal_separate_runs(changes):
    model = small_model(**changes)
    source, W = inputs()[0], 3
    targets = random_tokens(5, B, W, T)
    together = step_through(model, hypotheses(model.start(source), B, W), targets)
    for w in range(W):
        assert_close(together[:, w], model(source, targets[:, w]))


@pytest.mark.slow
def test_a_long_walk_of_hypotheses_gives_what_forward_gives_each_of_them():
    """Hypotheses branch and end, sentences leave, and what nobody continues any more
    is forgotten on the way."""
    model, generator = small_model(), torch.Generator().manual_seed(0)
    source = random_tokens(1, 4, S)
    source[2, 5:] = PAD_ID
    state, past, n_appended = model.start(source), torch.zeros(4, 1, 0, dtype=torch.long), 0
    for t in range(40):
        if t in (15, 30):
            kept = torch.arange(len(source) - 1).flip(0)
            state.keep(kept)
            source, past = source[kept], past[kept]
        b, n_before = past.shape[:2]
        parents = torch.randint(n_before, (b, 1 + t % 5), generator=generator)
        state.reorder(parents)
        new = random_tokens(t, *parents.shape)
        past = torch.cat([past[torch.arange(b)[:, None], parents], new[..., None]], dim=2)
        n_appended += new.size(1)
        logits = model.step(new, state)
        for w in range(new.size(1)):
            assert_close(logits[:, w], model(source, past[:, w])[:, -1])
        if t > 0:
            assert set(state.target_mask.unique().tolist()) <= {0.0, -torch.inf}
            n_needed = (state.target_mask == 0).any(2).sum(-1).max()
            assert state.caches[0].length <= 2 * n_needed + 16
    assert state.caches[0].length < n_appended - 20


@pytest.mark.slow
@pytest.mark.parametrize(("n_hypotheses", "at_most"), [(1, 7), (4, 40)])
def test_buffers_are_made_anew_seldom(n_hypotheses, at_most):
    """When they are full; without doubling, or when hypotheses moved,
    each of the 200 steps would copy them."""
    model, (source, _) = small_model(N=1), inputs()
    state = hypotheses(model.start(source), B, n_hypotheses)
    made = [state.caches[0].buffers]

    def look():
        if state.caches[0].buffers is not made[-1]:
            made.append(state.caches[0].buffers)

    for t in range(200):
        model.step(random_tokens(t, B, n_hypotheses), state)
        look()
        # Two of them have children.
        state.reorder(torch.arange(n_hypotheses).clamp(max=1).expand(B, -1))
        look()
    assert 3 < len(made) - 1 <= at_most


def test_a_step_takes_the_hypotheses_that_reorder_made():
    model, (source, _) = small_model(), inputs()
    for decoder in (model, FastDecoder(model)):
        state = decoder.start(source)
        with pytest.raises(ConfigError, match="the hypotheses that reorder made"):
            decoder.step(random_tokens(1, B, 3), state)
        decoder.step(random_tokens(1, B, 1), state)
        state.reorder(torch.zeros(B, 3, dtype=torch.long))
        with pytest.raises(ConfigError, match="the hypotheses that reorder made"):
            decoder.step(random_tokens(1, B, 2), state)
        assert decoder.step(random_tokens(1, B, 3), state).shape == (B, 3, V)


def test_one_hypothesis_needs_no_mask():
    model, (source, _) = small_model(), inputs()
    state = model.start(source)
    for _ in range(3):
        state.reorder(torch.zeros(B, 1, dtype=torch.long))
        model.step(random_tokens(1, B, 1), state)
    assert state.target_mask is None and state.caches[0].length == 3


@shapes
def test_the_future_is_invisible(changes):
    model = small_model(**changes)
    source, target_in = inputs()
    changed = target_in.clone()
    changed[:, 4] = (changed[:, 4] - 2) % 8 + 3
    same = (model(source, changed) == model(source, target_in)).all(-1)
    assert same.tolist() == [[True] * 4 + [False] * 2] * B


def test_every_position_sees_itself_its_past_and_the_whole_source():
    model = small_model()
    source, target_in = inputs()
    source[1, 4:] = 5
    before = model(source, target_in)
    for i in range(T):
        changed = target_in.clone()
        changed[:, i] = 3 + (changed[:, i] - 2) % 8
        seen = (model(source, changed) != before).any(-1)
        assert seen.tolist() == [[t >= i for t in range(T)]] * B
    for j in range(S):
        changed = source.clone()
        changed[:, j] = 3 + (changed[:, j] - 2) % 8
        assert (model(changed, target_in) != before).any(-1).all()


def padded(tokens, n):
    return F.pad(tokens, (0, n), value=PAD_ID)


@shapes
def test_padding_added_to_a_batch_changes_nothing(changes):
    model = small_model(**changes)
    source, target_in = inputs()
    assert_close(model(padded(source, 3), padded(target_in, 2))[:, :T], model(source, target_in))
    assert_close(model(source[1:, :4], target_in[1:]), model(source, target_in)[1:])


def test_padding_added_to_a_batch_changes_no_gradient():
    model = small_model()
    source, target_in = inputs()
    target_out = random_tokens(3, B, T)
    target_out[0, 4:] = PAD_ID

    def gradients(n):
        logits = model(padded(source, n), padded(target_in, n))
        loss, _ = label_smoothed_cross_entropy(logits, padded(target_out, n))
        return torch.autograd.grad(loss, list(model.parameters()))

    assert_close(gradients(3), gradients(0))


def test_batch_order_changes_nothing():
    model = small_model()
    source, target_in = inputs(b=3)
    order = torch.tensor([2, 0, 1])
    assert_close(model(source[order], target_in[order]), model(source, target_in)[order])


def test_padding_is_blind_to_its_token_embedding():
    """Whatever the row of the padding token holds, real positions come out the same."""
    model = small_model()
    source, target_in = inputs()
    before = model(source, target_in)[..., 1:]
    with torch.no_grad():
        model.embedding.weight[PAD_ID] += 1
    assert_close(model(source, target_in)[..., 1:], before)


def test_the_input_is_the_scaled_embedding_plus_its_position():
    model, tokens = small_model(), random_tokens(1, B, T)
    by_hand = model.embedding.weight[tokens] * 8**0.5 + positional_encoding(T + 3, 8).double()[3:]
    assert_close(model.embed(tokens, start=3), by_hand)


def test_positions_can_be_learned_or_left_out():
    learned, blind = small_model(positions="learned", max_len=9), small_model(positions="none", N=1)
    tokens = random_tokens(1, B, S)
    assert_close(learned.embed(tokens), learned.embedding(tokens) + learned.positions.weight[:S])
    order = torch.randperm(S)
    assert_close(blind.encode(tokens[:, order]), blind.encode(tokens)[:, order])
    with pytest.raises(ConfigError, match="learned positions end at max_len 9, got length 10"):
        learned.encode(random_tokens(1, B, 10))


def test_one_matrix_serves_three_times_and_gathers_every_gradient():
    model = small_model()
    of_size_v = [name for name, parameter in model.named_parameters() if parameter.size(0) == V]
    assert of_size_v == ["embedding.weight"]
    source, target_in = inputs()

    def gradient(*parts):
        """Of the loss when only these uses may pass a gradient to the matrix."""
        weight = model.embedding.weight

        def use(name):
            return weight if name in parts else weight.detach()

        def embed(tokens, name):
            return F.embedding(tokens, use(name)) * 8**0.5 + model.positions(tokens.size(1))

        mask = model.source_mask(source)
        memory = model.encoder(embed(source, "source"), mask)
        decoded = model.decoder(embed(target_in, "target"), memory, mask)
        return torch.autograd.grad((decoded @ use("softmax").T).square().sum(), weight)[0]

    apart = [gradient(part) for part in ("source", "target", "softmax")]
    assert all(part.abs().max() > 1e-3 for part in apart)
    loss = model(source, target_in).square().sum()
    (together,) = torch.autograd.grad(loss, model.embedding.weight)
    assert_close(together, sum(apart))


def test_attention_has_no_bias_and_the_feed_forward_network_has():
    names = [name for name, _ in Transformer(ModelConfig(**SMALL)).named_parameters()]
    biases = [name for name in names if name.endswith("bias")]
    assert not [name for name in biases if "attention" in name]
    assert len([name for name in biases if "feed_forward" in name]) == 2 * 2 * 2


@pytest.mark.parametrize("initialization", ["scaled", "glorot"])
def test_initial_values(initialization):
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "N": 2, "d_model": 64, "d_ff": 256, "h": 4}
    model = Transformer(ModelConfig(**sizes, bias=True, initialization=initialization))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        elif parameter.dim() == 2 and not name.startswith("embedding"):
            # Glorot and Bengio (2010), equation 16.
            bound = (6 / sum(parameter.shape)) ** 0.5
            if initialization == "scaled" and name.split(".")[-2] in ("W_V", "W_O", "W_1", "W_2"):
                bound /= 2  # Wang et al. (2022), for N = 2
            assert 0.95 * bound < parameter.abs().max() <= bound, name


def test_the_authors_positions_are_an_option():
    torch.manual_seed(0)
    model = Transformer(ModelConfig(**SMALL, positions="concatenated")).eval()
    tokens = torch.tensor([[5, 7, 4]])
    added = model.embed(tokens) - model.embedding(tokens)
    assert_close(added, concatenated_positional_encoding(3, model.config.d_model)[None])


def test_forward_stores_nothing_and_decoding_state_is_the_callers():
    model = small_model()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    source, target_in = inputs()
    first, second = model.start(source), model.start(source)
    model(source, target_in)
    model.step(target_in[:, :1], first)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before
    assert (first.position, second.position) == (1, 0)
    assert_close(model.step(target_in[:, :1], second)[:, 0], model(source, target_in)[:, 0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_as_close_to_float32_as_its_type_allows(dtype):
    """The error of the logits is that of a few roundings: 2^-8 for bfloat16, 2^-11 for float16."""
    model = small_model(dtype=torch.float32)
    source, target_in = inputs()
    with torch.autocast("cpu", dtype=dtype):
        half = model(source, target_in)
    exact = model(source, target_in)
    error = ((half.float() - exact).norm() / exact.norm()).item()
    rounding = torch.finfo(dtype).eps / 2
    assert half.dtype == dtype and rounding / 4 < error < 4 * rounding


def test_jupyter_shows_the_parameters_of_each_part():
    model = small_model(vocab_size=1234)
    shown = model._repr_html_()
    total = sum(parameter.numel() for parameter in model.parameters())
    for name, n in (("all", total), ("embedding", 1234 * model.config.d_model)):
        assert f'<th scope="row">{name}</th><td>{n:,}</td>' in shown
    assert "positions</th>" not in shown.partition("ModelConfig")[0]  # which has none
    assert model.config._repr_html_() in shown
    assert repr(model).startswith("Transformer(\n")


@pytest.mark.parametrize(("n_sources", "n_targets"), [(1, 3), (3, 1)])
def test_one_row_is_not_taken_for_all_rows_of_the_other_side(n_sources, n_targets):
    source, target_in = torch.ones(n_sources, S).long(), torch.ones(n_targets, T).long()
    with pytest.raises(ConfigError, match=f"equally many rows, got {n_sources} and {n_targets}"):
        inspect.unwrap(Transformer.forward)(small_model(), source, target_in)
