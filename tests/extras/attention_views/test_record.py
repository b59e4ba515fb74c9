"""Recorded weights are those the model used; a drawn map says which axis is which."""

import matplotlib
import pytest
import torch

from annotated_transformer.config import BOS_ID, PAD_ID
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.attention_views.record import record_attention
from annotated_transformer.model.attention import MultiHeadAttention
from lab.attention_map import plot_attention
from toys import random_tokens, small_model

matplotlib.use("Agg")
from matplotlib import pyplot as plt

B, S, T, H = 2, 7, 6, 2


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    plt.close("all")


def inputs():
    source, target_in = random_tokens(1, B, S), random_tokens(2, B, T)
    target_in[:, 0] = BOS_ID
    source[1, 4:] = PAD_ID
    return source, target_in


def n_hooks(model):
    return sum(len(module._forward_pre_hooks) for module in model.modules())


def test_every_attention_of_the_model_is_recorded_by_name():
    model = small_model()
    with record_attention(model) as weights:
        assert weights == {}
        model(*inputs())
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == {
        f"{stack}.layers.{i}.{part}": (B, H, rows, columns)
        for i in (0, 1)
        for stack, part, rows, columns in (
            ("encoder", "self_attention", S, S),
            ("decoder", "self_attention", T, T),
            ("decoder", "cross_attention", T, S),
        )
    }


@pytest.mark.parametrize(
    "changes",
    [{}, {"d_k": 3, "d_v": 5}, {"norm": "pre", "bias": True}, {"positions": "rotary"}],
    ids=str,
)
def test_the_weights_rebuild_each_modules_output(changes):
    """weights @ values, joined and projected,
    is what the module returned from PyTorch's fused kernel."""
    model = small_model(**changes)
    calls = {}

    def keep(name):
        return lambda module, args, kwargs, output: calls.update({name: (module, args, output)})

    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            module.register_forward_hook(keep(name), with_kwargs=True)
    with record_attention(model) as weights:
        model(*inputs())
    assert weights.keys() == calls.keys()
    for name, (module, args, output) in calls.items():
        _, values = module.keys_and_values(args[1])
        heads = (weights[name] @ values).transpose(1, 2).flatten(-2)
        torch.testing.assert_close(module.W_O(heads), output)


def test_recorded_rows_are_distributions_that_keep_to_the_masks():
    source, target_in = inputs()
    model = small_model()
    with record_attention(model) as weights:
        model(source, target_in)
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor.sum(-1), torch.ones_like(tensor[..., 0]))
        if name.startswith("encoder") or name.endswith("cross_attention"):
            assert tensor[1, ..., 4:].eq(0).all()
            assert tensor[0].gt(0).all()
        else:
            assert tensor.triu(1).eq(0).all()


def test_recording_changes_no_output_and_leaves_nothing_behind():
    model = small_model()
    source, target_in = inputs()
    before, names = model(source, target_in), set(vars(model.encoder.layers[0].self_attention))
    with record_attention(model) as weights:
        during = model(source, target_in)
    assert torch.equal(before, during)
    assert n_hooks(model) == 0
    assert set(vars(model.encoder.layers[0].self_attention)) == names
    assert not any(tensor.requires_grad for tensor in weights.values())


def test_the_hooks_go_after_an_error_too():
    model = small_model()
    with pytest.raises(ZeroDivisionError), record_attention(model):
        assert n_hooks(model) == 6
        raise ZeroDivisionError
    assert n_hooks(model) == 0


def test_the_last_call_of_a_module_counts():
    model = small_model()
    source, target_in = inputs()
    with record_attention(model) as weights:
        model(source, target_in)
        model(source[:, :3], target_in[:, :2])
    assert weights["decoder.layers.0.cross_attention"].shape == (B, H, 2, 3)


def test_keys_lie_on_the_x_axis_and_queries_on_the_y_axis():
    weights = torch.tensor([[0.7, 0.2, 0.1], [0.0, 0.0, 1.0]])
    ax = plot_attention(weights, ["▁ich", "$x$"], ["▁I", "▁am", "</s>"], title="head 1")
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == (
        "key (attended to)",
        "query",
        "head 1",
    )
    assert [label.get_text() for label in ax.get_xticklabels()] == ["▁I", "▁am", "</s>"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["▁ich", "$x$"]
    drawn = ax.images[0].get_array()
    assert torch.equal(torch.as_tensor(drawn.data), weights)
    left, right, bottom, top = ax.images[0].get_extent()
    assert (right - left, bottom - top) == (3, 2)  # row 0 at the top
    assert ax.images[0].get_clim()[0] == 0
    ax.figure.canvas.draw()


def test_a_map_can_be_drawn_into_axes_of_ones_own():
    figure, axes = plt.subplots(1, 2)
    assert plot_attention(torch.eye(2, requires_grad=True), "ab", "cd", ax=axes[1]) is axes[1]
    assert len(figure.axes) == 2
    assert not axes[0].images


def test_tokens_that_do_not_fit_the_weights_are_refused():
    with pytest.raises(
        ConfigError, match="2 queries by 3 keys, got 3 query tokens and 2 key tokens"
    ):
        plot_attention(torch.zeros(2, 3), "abc", "ab")
