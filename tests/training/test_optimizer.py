import pytest
import torch
from torch import nn
from torch.testing import assert_close

from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.errors import ConfigError
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training.optimizer import make_adam, make_optimizer, noam_learning_rate
from annotated_transformer.training.run import TrainingRun
from toys import SMALL


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (1, 512**-0.5 / 4000**1.5),
        (40, 40 * 512**-0.5 / 4000**1.5),
        (4000, (512 * 4000) ** -0.5),
        (16_000, (512 * 16_000) ** -0.5),
    ],
)
def test_equation_3(step, rate):
    assert noam_learning_rate(step, 512, 4000) == pytest.approx(rate, rel=1e-12)
    assert noam_learning_rate(step, 512, 4000, factor=2.0) == pytest.approx(2 * rate, rel=1e-12)


def test_rate_rises_linearly_to_its_peak_and_falls():
    rates = [noam_learning_rate(step, 64, 100) for step in range(1, 401)]
    assert max(rates) == rates[99]
    rising = [rates[99] * step / 100 for step in range(1, 101)]
    falling = [rates[99] * (100 / step) ** 0.5 for step in range(101, 401)]
    assert rates == pytest.approx(rising + falling, rel=1e-12)


def test_there_is_no_step_0():
    with pytest.raises(ConfigError, match="steps are counted from 1, got 0"):
        noam_learning_rate(0, 512, 4000)


@pytest.mark.parametrize(("name", "value"), [("d_model", 0), ("warmup_steps", 0)])
def test_equation_3_divides_by_no_zero(name, value):
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, got 0"):
        noam_learning_rate(**{"step": 1, "d_model": 512, "warmup_steps": 4000, name: value})


def test_adam_by_hand():
    """Three updates of Kingma and Ba's algorithm, with the paper's constants, in plain floats."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(model.weight, 0.5)
    optimizer = make_adam(model, TrainConfig())
    weight, m, v = 0.5, 0.0, 0.0
    for t, (gradient, rate) in enumerate([(0.3, 0.1), (-0.2, 0.2), (0.05, 0.3)], start=1):
        model.weight.grad = torch.full((1, 1), gradient, dtype=torch.float64)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        m, v = 0.9 * m + 0.1 * gradient, 0.98 * v + 0.02 * gradient**2
        weight -= rate * (m / (1 - 0.9**t)) / ((v / (1 - 0.98**t)) ** 0.5 + 1e-9)
        assert model.weight.item() == pytest.approx(weight, rel=1e-10)


def test_without_warm_up_a_rate_that_falls_at_the_end_begins_at_its_peak():
    config = TrainConfig(train_steps=100, schedule="wsd", warm_up=False, warmup_steps=4000)
    run = TrainingRun(ModelConfig.tiny(vocab_size=100), config)
    rates = []
    for run.steps in (1, 50, 80, 100):
        rates.append(run.rate)
    peak = noam_learning_rate(4000, run.model.config.d_model, 4000)
    assert rates[:3] == [peak] * 3 and 0 < rates[3] < 0.1 * peak


def test_adam_has_every_parameter_once_and_waits_for_its_rate():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    optimizer = make_adam(model, TrainConfig(beta1=0.8, adam_eps=1e-7))
    (group,) = optimizer.param_groups
    assert [id(p) for p in group["params"]] == [id(p) for p in model.parameters()]
    expected = {"lr": 0.0, "betas": (0.8, 0.98), "eps": 1e-7, "weight_decay": 0}
    assert group.items() >= expected.items()


@pytest.mark.parametrize("frozen", ["encoder.", "encoder.layers.0.self_attention.W_Q", "decoder."])
@pytest.mark.parametrize("name", ["adam", "adamw", "muon"])
def test_what_is_frozen_stays_and_the_rest_moves_as_without_it(name, frozen):
    """Weight decay does not reach it either."""
    config = TrainConfig(optimizer=name, weight_decay=0.0 if name == "adam" else 0.1)
    moved = []
    for freezes in (False, True):
        model = Transformer(ModelConfig(**SMALL))
        torch.manual_seed(4)
        gradients = {n: torch.randn_like(p) for n, p in model.named_parameters()}
        for n, parameter in model.named_parameters():
            parameter.data.fill_(0.5)
            parameter.grad = None if freezes and n.startswith(frozen) else gradients[n]
        optimizer = make_optimizer(model, config)
        optimizer.param_groups[0]["lr"] = 0.01
        optimizer.step()
        moved.append(dict(model.named_parameters()))
    whole, partly = moved
    for n, parameter in partly.items():
        expected = torch.full_like(parameter, 0.5) if n.startswith(frozen) else whole[n]
        assert_close(parameter, expected, rtol=1e-6, atol=1e-6)
        assert n.startswith(frozen) == bool((parameter == 0.5).all())


def test_adamw_is_pytorchs():
    config = TrainConfig(optimizer="adamw", weight_decay=0.1)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    settings = {"lr": 0.0, "betas": (0.9, 0.98), "eps": 1e-9, "weight_decay": 0.1, "fused": True}
    optimizers = make_optimizer(ours, config), torch.optim.AdamW(theirs.parameters(), **settings)
    for step in range(1, 4):
        for model, optimizer in zip((ours, theirs), optimizers):
            optimizer.param_groups[0]["lr"] = 0.01 * step
            model(torch.full((1, 3), float(step))).square().sum().backward()
            optimizer.step()
    assert torch.equal(ours.weight, theirs.weight) and torch.equal(ours.bias, theirs.bias)
