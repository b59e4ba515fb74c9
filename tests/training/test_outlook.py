"""What a run says of itself, the best weights that it keeps, and how it ends early."""

import json
import math
import re

import pytest

from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.checkpoint.weights import load_tensors
from annotated_transformer.config import TrainConfig
from annotated_transformer.data.batching import encode_pairs
from annotated_transformer.errors import ConfigError
from annotated_transformer.training.loop import train
from annotated_transformer.training.optimizer import peak_rate, rate_of_step
from toys import run, text_pairs, toy_run_config, toy_tokenizer

PAIRS = text_pairs(1, 60)
# A corpus whose languages share no letter, so that its sides can be told apart.
TWO_LANGUAGES = [("abc"[i % 3 :] + " aab", "xyz"[i % 3 :] + " xxy zz") for i in range(60)]


@pytest.mark.parametrize("schedule", ["noam", "wsd"])
def test_the_highest_rate_of_a_run_is_its_peak_rate(schedule):
    config = TrainConfig(train_steps=50, warmup_steps=10, schedule=schedule, peak_rate=0.003)
    rates = [rate_of_step(step, config, 128) for step in range(1, 51)]
    assert max(rates) == pytest.approx(0.003) == rates[9] == peak_rate(config, 128)
    by_factor = config.replace(peak_rate=None, lr_factor=0.5)
    assert max(rate_of_step(s, by_factor, 128) for s in range(1, 51)) == peak_rate(by_factor, 128)
    for changes in ({"lr_factor": 0.5}, {"peak_rate": 0.0}):
        with pytest.raises(ConfigError, match="takes the place of lr_factor, got"):
            config.replace(**changes)


def test_a_run_says_what_it_is_and_costs_before_its_bar(tmp_path, capfd):
    run(tmp_path / "run", valid=PAIRS[:5], progress=True, train_steps=60, validate_every=30)
    lines = [line for line in re.split("[\r\n]", capfd.readouterr().err) if line.strip()]
    tokens = sum(len(y) + 1 for _, y in encode_pairs(toy_tokenizer(), PAIRS, 100))
    said = [line.partition("annotated-transformer: ")[2] for line in lines]
    assert f"60 training pairs with {tokens:,} target tokens, 5 for validation" in said[0]
    assert said[1].startswith("N=1, d_model=8, ") and "60 steps, peak learning rate 0.14" in said[1]
    found = re.fullmatch(r"([\d.]+) epochs; about .+ to go, .+ of it CPU time, 0 MB in .*", said[2])
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").open()]
    n_steps = len([record for record in log if "loss" in record]) * 2
    assert n_steps == 60 and 2 < float(found[1]) < 60
    bar = next(i for i, line in enumerate(lines) if "step/s" in line)
    assert bar > 2
    assert len([line for line in said if line.startswith("step 18: about ")]) == 1
    validated = [line for line in said if line.startswith(("step 30: valid_nll", "step 60:"))]
    assert len(validated) == 2 and validated[0].endswith(", the best so far")


def test_a_run_that_learns_nothing_is_told_why(tmp_path, capfd):
    for peak in (1e-9, 0.05):
        settings = {"train_steps": 120, "warmup_steps": 10, "peak_rate": peak, "max_tokens": 500}
        run(tmp_path / f"{peak}", progress=True, log_every=20, **settings)
        warnings = re.findall("nothing is learned: .*", capfd.readouterr().err)
        assert len(warnings) == (peak == 1e-9)
        assert all("at step 120 nll is" in line for line in warnings)
        assert all("or see whether sources and targets belong" in line for line in warnings)


def test_validation_pairs_that_are_turned_round_are_noticed(tmp_path, capfd):
    turned = [(y, x) for x, y in TWO_LANGUAGES[:6]]
    for name, valid in (("right", TWO_LANGUAGES[:6]), ("wrong", turned)):
        run(tmp_path / name, TWO_LANGUAGES, valid=valid, progress=True, train_steps=1)
        assert ("look turned round" in capfd.readouterr().err) == (name == "wrong")


def measuring(values):
    """A validation that measures what it is told."""
    left = iter(values)
    return lambda model: {"valid_nll": next(left)}


def go(out, values, resume=False, **changes):
    model, config = toy_run_config(validate_every=3, **changes)
    how = {"validate": measuring(values), "progress": False, "resume": resume}
    train(model, config, toy_tokenizer(), PAIRS, [], out, **how)
    log = [json.loads(line) for line in (out / "log.jsonl").open()]
    return [record["step"] for record in log if "valid_nll" in record]


def test_the_best_weights_of_a_run_are_kept(tmp_path):
    out = tmp_path / "run"
    assert go(out, [3.0, math.nan, 2.0, 2.5], keep_checkpoints=1) == [3, 6, 9, 12]
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-00000012.safetensors"]
    best, _ = load_tensors(out / "best" / "model.safetensors")
    go(tmp_path / "shorter", [3.0, 2.0, 2.0], train_steps=9)
    nine, _ = load_tensors(tmp_path / "shorter" / "model.safetensors")
    assert all(best[name].equal(nine[name]) for name in nine)
    assert load_model(out / "best")[0].config == toy_run_config()[0]
    go(out, [2.1], resume=True, train_steps=15)
    assert all(
        load_tensors(out / "best" / "model.safetensors")[0][name].equal(nine[name]) for name in nine
    )


def test_a_run_ends_when_validation_no_longer_improves(tmp_path):
    out = tmp_path / "run"
    assert go(out, [3.0, 2.0, 2.0, 1.0], patience=1) == [3, 6, 9]
    assert go(out, [], resume=True, patience=1) == [3, 6, 9]
    assert go(out, [1.0], resume=True, patience=2) == [3, 6, 9, 12]
    assert go(tmp_path / "patient", [3.0, 2.0, 2.0, 1.0], patience=2) == [3, 6, 9, 12]
    with pytest.raises(ConfigError, match="patience must not be negative"):
        TrainConfig(patience=-1)
