import ast
import dataclasses
import importlib.util
import inspect
import json
import re
import sys

import pytest

from annotated_transformer import config as ids
from annotated_transformer.config import PRESETS, SIZES, DecodeConfig, ModelConfig, TrainConfig
from annotated_transformer.decoding.search import length_penalty
from annotated_transformer.errors import ConfigError
from annotated_transformer.views import html_table


def test_defaults_are_the_papers():
    sizes = dict(N=6, d_model=512, d_ff=2048, h=8, d_k=64, d_v=64, p_drop=0.1)
    assert ModelConfig(37_000) == ModelConfig(37_000, **sizes)
    adam = dict(beta1=0.9, beta2=0.98, adam_eps=1e-9, warmup_steps=4000, lr_factor=1.0)
    others = dict(eps_ls=0.1, max_tokens=25_000, train_steps=100_000, keep_checkpoints=5)
    assert TrainConfig() == TrainConfig(**adam, **others)
    search = dict(beam_size=4, alpha=0.6, n_best=1, max_extra=50, back=False)
    assert DecodeConfig() == DecodeConfig(**search)


def test_big_is_table_3s_last_row():
    sizes = dict(N=6, d_model=1024, d_ff=4096, h=16, d_k=64, d_v=64, p_drop=0.3)
    assert ModelConfig.big(37_000) == ModelConfig(37_000, **sizes)


def test_departures_from_the_paper_are_off():
    base = ModelConfig.base(vocab_size=37_000)
    assert base == ModelConfig(vocab_size=37_000)
    model = dict(norm="post", positions="sinusoidal", activation="relu", bias=False)
    assert base == base.replace(**model, attention_dropout=0.0, ffn_dropout=0.0)
    assert TrainConfig().clip_norm == 0.0


def test_presets_take_changes():
    assert [getattr(ModelConfig, name)(100, h=2).h for name in PRESETS] == [2, 2, 2, 2]
    # Table 3, row A: the width follows the number of heads.
    assert ModelConfig.base(100, h=1).d_k == 512
    sizes = [getattr(ModelConfig, name)(100).d_model for name in PRESETS]
    assert sizes == sorted(sizes)


def test_special_ids_stand_in_one_place():
    config = ModelConfig(vocab_size=100)
    assert (config.pad_id, config.bos_id, config.eos_id) == (ids.PAD_ID, ids.BOS_ID, ids.EOS_ID)
    assert len({ids.PAD_ID, ids.BOS_ID, ids.EOS_ID, ids.UNK_ID}) == 4


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig.small(vocab_size=99, d_k=7, norm="pre", positions="learned"),
        TrainConfig(seed=7),
        DecodeConfig(2, 0.3),
    ],
)
def test_a_configuration_survives_json(config):
    assert type(config).from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_jupyter_shows_a_table_of_all_settings():
    config = ModelConfig.tiny(vocab_size=321)
    shown = config._repr_html_()
    assert shown.startswith("<table><caption>ModelConfig</caption>")
    for name, value in config.to_dict().items():
        assert f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' in shown
    assert html_table("a<b", [("<i>", "<&")], ("<c",)).count("&lt;") == 4
    assert repr(config).startswith("ModelConfig(vocab_size=321, N=3,")


def test_configurations_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelConfig(vocab_size=100).h = 4


def test_replace_checks_all_rules_again():
    config = ModelConfig(vocab_size=100)
    assert config.replace(p_drop=0.0) == ModelConfig(vocab_size=100, p_drop=0.0)
    with pytest.raises(ConfigError, match="p_drop"):
        config.replace(p_drop=1.0)


def _without_type_checks():
    """The module as users run it: the suite's own checks would catch a wrong name before
    the configuration does."""
    spec = importlib.util.spec_from_file_location("config_as_users_run_it", ids.__file__)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


plain = _without_type_checks()
MODEL_MISTAKES = [
    ({"d_model": 512, "h": 7}, "d_model must be a multiple of h, got 512 and 7"),
    ({"N": 0}, "N must be at least 1, got 0"),
    ({"vocab_size": 0}, "vocab_size must be at least 1, got 0"),
    ({"d_k": 0}, "d_k must be at least 1, got 0"),
    ({"p_drop": 1.0}, "p_drop must be in [0, 1), got 1.0"),
    ({"p_drop": float("nan")}, "p_drop must be a finite number, got nan"),
    ({"N": "6"}, "N must be int, got '6'"),
    ({"N": 2.5}, "N must be int, got 2.5"),
    ({"N": True}, "N must be int, got True"),
    ({"bias": 1}, "bias must be bool, got 1"),
    ({"d_k": "64"}, "d_k must be int or None, got '64'"),
    ({"p_drop": None}, "p_drop must be float, got None"),
    ({"norm": ["pre"]}, "norm must be one of post, pre, got ['pre']"),
    ({"d_ff": 10**9}, "d_ff must be at most 268,435,456, got 1000000000"),
    ({"d_ff": 10**20}, "d_ff must fit into 64 bits, got 100000000000000000000"),
    ({"h": 10_000, "d_k": 100_000}, "h d_k must be at most 268,435,456, got 1000000000"),
    ({"norm": "both"}, "norm must be one of post, pre, got both"),
    ({"activation": "tanh"}, "activation must be one of relu, gelu, silu, swiglu, got tanh"),
    ({"d_model": 15, "h": 3}, "sinusoidal positions need an even d_model, got 15"),
    (
        {"eos_id": 1},
        "pad_id, bos_id and eos_id must be three ids below vocab_size 100, got (0, 1, 1)",
    ),
    (
        {"vocab_size": 2},
        "pad_id, bos_id and eos_id must be three ids below vocab_size 2, got (0, 1, 2)",
    ),
]
TRAIN_MISTAKES = [
    ({"train_steps": 0}, "train_steps must be at least 1, got 0"),
    ({"eps_ls": 1.0}, "eps_ls must be in [0, 1), got 1.0"),
    ({"lr_factor": 0.0}, "lr_factor must be positive, got 0.0"),
    ({"clip_norm": -1.0}, "clip_norm must not be negative (0 is off), got -1.0"),
    ({"max_tokens": 100}, "max_length must not exceed max_tokens, got 256 and 100"),
    ({"concatenate": float("inf")}, "concatenate must be a finite number, got inf"),
    ({"seed": 2**70}, f"seed must fit into 64 bits, got {2**70}"),
    ({"precision": "fp8"}, "precision must be one of auto, fp32, bf16, fp16, got fp8"),
]
DECODE_MISTAKES = [
    ({"beam_size": 0}, "beam_size must be between 1 and 1,024, got 0"),
    ({"beam_size": 2, "n_best": 3}, "n_best must be between 1 and beam_size, got 3 and 2"),
    ({"n_best": 0}, "n_best must be between 1 and beam_size, got 0 and 4"),
    ({"max_extra": -1}, "max_extra must be between 0 and 100,000, got -1"),
    ({"max_extra": 10**6}, "max_extra must be between 0 and 100,000, got 1000000"),
    ({"beam_size": 100_000}, "beam_size must be between 1 and 1,024, got 100000"),
    ({"alpha": 1000.0}, "alpha must be between -10 and 10, got 1000.0"),
    ({"alpha": -900.0}, "alpha must be between -10 and 10, got -900.0"),
    ({"alpha": float("nan")}, "alpha must be a finite number, got nan"),
]


@pytest.mark.parametrize(
    ("make", "changes", "line"),
    [
        (lambda **c: plain.ModelConfig(**{"vocab_size": 100, **c}), *mistake)
        for mistake in MODEL_MISTAKES
    ]
    + [(plain.TrainConfig, *mistake) for mistake in TRAIN_MISTAKES]
    + [(plain.DecodeConfig, *mistake) for mistake in DECODE_MISTAKES],
    ids=[" ".join(changes) for changes, _ in MODEL_MISTAKES + TRAIN_MISTAKES + DECODE_MISTAKES],
)
def test_a_mistake_is_named_with_its_rule_in_one_line(make, changes, line):
    with pytest.raises(ConfigError) as error:
        make(**changes)
    assert str(error.value) == line


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        (ModelConfig, "num_heads", ": did you mean h?"),
        (ModelConfig, "dropout", ": did you mean p_drop?"),
        (ModelConfig, "layers", ": did you mean N?"),
        (ModelConfig, "num_layers", ": did you mean N?"),
        (ModelConfig, "hidden_size", ": did you mean d_model?"),
        (ModelConfig, "max_length", ": did you mean max_length of TrainConfig?"),
        (TrainConfig, "batch_size", ": did you mean max_tokens (in tokens)?"),
        (TrainConfig, "epochs", ": did you mean train_steps (in steps)?"),
        (TrainConfig, "train_step", ": did you mean train_steps?"),
        (DecodeConfig, "num_beams", ": did you mean beam_size?"),
        (DecodeConfig, "zyx", ""),
    ],
)
def test_an_unknown_setting_gets_the_nearest_by_whatever_door_it_comes(kind, name, hint):
    first = {"vocab_size": 300} if kind is ModelConfig else {}
    line = f"^{re.escape(f'{kind.__name__} has no setting {name}{hint}')}$"
    doors = [kind, lambda **changes: kind.from_dict(changes), kind(**first).replace]
    doors += [ModelConfig.tiny, ModelConfig.small] if first else []
    for door in doors:
        with pytest.raises(ConfigError, match=line):
            door(**first, **{name: 2})


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ([1, 2], "the settings of ModelConfig must be a dictionary, got [1, 2]"),
        ("base", "the settings of ModelConfig must be a dictionary, got 'base'"),
        ({"N": 6}, "ModelConfig needs vocab_size"),
        ({"vocab_size": "many" * 1000}, "vocab_size must be int, got '" + ("many" * 15)[:59]),
    ],
    ids=["list", "text", "nothing", "long"],
)
def test_settings_that_a_stranger_wrote_are_read_with_care(settings, line):
    """A file that is read is checked even where the suite's own checks
    of shapes and types are off."""
    with pytest.raises(ConfigError) as error:
        plain.ModelConfig.from_dict(settings)
    assert str(error.value) == line


def test_a_whole_number_may_stand_for_a_fraction():
    assert ModelConfig.from_dict({"vocab_size": 100, "p_drop": 0}).p_drop == 0
    with pytest.raises(ConfigError, match="p_drop must be float, got False"):
        ModelConfig.from_dict({"vocab_size": 100, "p_drop": False})


@pytest.mark.parametrize("alpha", [-10.0, 10.0])
def test_the_steepest_length_penalties_are_numbers(alpha):
    assert 0 < length_penalty(1024 + 100_000, alpha) < float("inf")


@pytest.mark.parametrize(
    ("config", "name", "text", "value"),
    [
        (ModelConfig, "h", "16", 16),
        (ModelConfig, "d_k", "32", 32),
        (ModelConfig, "p_drop", "0.3", 0.3),
        (ModelConfig, "bias", "true", True),
        (ModelConfig, "bias", "0", False),
        (ModelConfig, "norm", "pre", "pre"),
        (TrainConfig, "adam_eps", "1e-9", 1e-9),
        (TrainConfig, "precision", "bf16", "bf16"),
    ],
)
def test_settings_are_read_from_text(config, name, text, value):
    parsed = config.parse(name, text)
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("h", "many", "h must be int, got 'many'"),
        ("h", "8.0", "h must be int, got '8.0'"),
        ("bias", "maybe", "bias must be true or false, got 'maybe'"),
        ("norm", "both", "norm must be one of post, pre, got both"),
    ],
)
def test_unreadable_settings_are_named(name, text, line):
    with pytest.raises(ConfigError) as error:
        ModelConfig.parse(name, text)
    assert str(error.value) == line


def test_head_sizes_follow_a_new_number_of_heads_unless_they_were_chosen():
    assert ModelConfig.base(100).replace(h=1) == ModelConfig.base(100, h=1)
    assert ModelConfig.base(100).replace(d_model=256) == ModelConfig.base(100, d_model=256)
    assert ModelConfig.base(100, d_k=16).replace(h=4) == ModelConfig.base(100, h=4, d_k=16)


DEPARTURES = {
    "norm": "pre", "positions": "rotary", "activation": "swiglu", "bias": True,
    "scaled_attention": False, "rms_norm": True, "qk_norm": True, "final_norm": True,
    "output_bias": True, "zero_start": True, "first_position": 2, "attention_dropout": 0.1,
    "ffn_dropout": 0.1,
}  # fmt: skip


def test_an_option_beyond_the_paper_is_named_unless_it_is_supported():
    """A field that is added later is an option too, until it is listed as a size."""
    for name, value in DEPARTURES.items():
        config = ModelConfig.tiny(100, **{name: value})
        assert config.beyond(set(DEPARTURES) - {name}) == [name]
        assert config.beyond([name]) == config.beyond([f"{name}={value}"]) == []
        assert config.beyond([f"{name}=another"]) == [name]
    assert {*DEPARTURES, *SIZES} == {field.name for field in dataclasses.fields(ModelConfig)}
    assert ModelConfig.tiny(100, **DEPARTURES | {"first_position": 0}).beyond([]) == [
        name for name in DEPARTURES if name != "first_position"
    ]


def test_sizes_are_no_departure():
    sizes = {"h": 4, "d_k": 16, "d_v": 8, "initialization": "scaled", "max_len": 9, "pad_id": 7}
    for preset in (ModelConfig.tiny, ModelConfig.big):
        assert preset(100, **sizes).beyond([]) == []


@pytest.mark.parametrize("config", [ModelConfig, TrainConfig, DecodeConfig])
def test_every_setting_has_a_docstring_of_its_own(config):
    (tree,) = ast.parse(inspect.getsource(config)).body
    followers = zip(tree.body, tree.body[1:], strict=False)
    described = [
        node.target.id
        for node, after in followers
        if isinstance(node, ast.AnnAssign)
        and isinstance(after, ast.Expr)
        and isinstance(after.value.value, str)
    ]
    assert described == [field.name for field in dataclasses.fields(config)]
