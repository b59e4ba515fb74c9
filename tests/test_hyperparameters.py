"""The page of hyper-parameters holds what the code has, and the code what the paper has."""

import re
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from annotated_transformer.config import (
    PRESETS,
    DecodeConfig,
    ModelConfig,
    TrainConfig,
    count_parameters,
)
from annotated_transformer.training.optimizer import peak_rate
from annotated_transformer.training.plan import plan_for, planned_training

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "book" / "hyperparameters.md").read_text(encoding="utf-8")
PAPER_VOCABULARY = 37_000


def tables():
    """By heading: the first cell of each row, and the others."""
    found: dict[str, dict[str, list[str]]] = {}
    for section in PAGE.split("\n## ")[1:]:
        table = [line for line in section.splitlines() if line.startswith("|")]
        lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
        rows = found[section.partition("\n")[0]] = {}
        for first, *others in lines[2:]:
            assert first not in rows, first
            rows[first] = others
    return found


TABLES = tables()


def written(value):
    """A setting as the page shows it: 25,000 and 1e-9, words as code."""
    if value is None or isinstance(value, bool | str):
        return f"`{value}`"
    if isinstance(value, int):
        return f"{value:,}" if value >= 10_000 else str(value)
    return re.sub(r"e-0(\d)", r"e-\1", f"{value:g}")


def of(*settings):
    """What the page has to say of each field of these settings, without the tokens."""
    names = [name for name in settings[0].to_dict() if name != "vocab_size"]
    return {f"`{name}`": [written(getattr(each, name)) for each in settings] for name in names}


def test_the_presets_are_the_codes():
    models = [getattr(ModelConfig, name)(PAPER_VOCABULARY) for name in PRESETS]
    counted = [f"{count_parameters(model) / 1e6:.1f} million" for model in models]
    rows = {name: cells[1:] for name, cells in TABLES["Our presets"].items()}
    assert rows.pop("") == counted
    assert rows == of(*models)


@pytest.mark.parametrize(
    ("heading", "settings"), [("Training", TrainConfig()), ("Decoding", DecodeConfig())]
)
def test_the_defaults_are_the_codes(heading, settings):
    assert {name: cells[1:2] for name, cells in TABLES[heading].items()} == of(settings)


def test_peak_rates_are_those_that_train_plans():
    widths = {name: getattr(ModelConfig, name)(100).d_model for name in PRESETS}
    planned = {name: planned_training(5_000, width) for name, width in widths.items()}
    shown = {name: [f"{peak_rate(config, widths[name]):.2g}"] for name, config in planned.items()}
    assert TABLES["Peak learning rate"] == shown


def test_commands_and_plans_have_peaks_of_that_kind():
    """What a reader copies, `new` plans and the paper has lies around 0.4 / d_model."""
    peaks = {}
    for name in ("README.md", "book/wmt14.md", "book/on_a_gpu.py"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for command in re.findall(r"--preset[^`#]*?warmup_steps=\d+", text):
            preset = re.findall(r"--preset (\w+)", command)[-1]
            settings = TrainConfig(warmup_steps=int(command.rpartition("=")[2]))
            peaks[name, preset] = settings, getattr(ModelConfig, preset)(100).d_model
    for n_pairs in (600, 4_600, 20_000, 100_000):
        plan = plan_for(n_pairs)
        peaks["plan", n_pairs] = plan.train_config(), plan.d_model
    products = {key: peak_rate(config, width) * width for key, (config, width) in peaks.items()}
    assert len(products) >= 6 and all(0.35 < product < 0.55 for product in products.values())


def test_the_choices_are_the_codes():
    said = []
    for name, hint in get_type_hints(ModelConfig).items():
        if get_origin(hint) is Literal:
            options = ", ".join(f"`{option}`" for option in get_args(hint))
            said.append(f"`{name}` is {options}")
    assert f"The choices: {'; '.join(said)}." in PAGE


# The paper's numbers, written down from the paper; test_config.py has those of base and big


def test_the_parsing_model_can_be_configured():
    parsing = ModelConfig.base(16_000, N=4, d_model=1024)
    assert (parsing.N, parsing.d_model, parsing.d_ff, parsing.h) == (4, 1024, 2048, 8)
    assert DecodeConfig(beam_size=21, alpha=0.3, max_extra=300).max_extra == 300


def test_the_page_has_the_papers_rows():
    """H1 to H8: base, big, parsing, Adam, data, averaging, decoding, hardware."""
    rows = {label: cells[1:] for label, cells in TABLES["The paper's values"].items()}
    assert rows["layers $N$"] == ["6", "6", "4"]
    assert rows["width $d_{\\mathrm{model}}$"] == ["512", "1024", "1024"]
    assert rows["updates"][:2] == ["100,000", "300,000"]
    assert rows["beam, $\\alpha$"] == ["4, 0.6", "4, 0.6", "21, 0.3"]
    assert rows["longest output"][2] == "input + 300"
    averaged = rows["checkpoints averaged"]
    assert "last 5" in averaged[0] and "last 20" in averaged[1]
    assert "4.5 million" in rows["English-German data"][0]
    assert "36 million" in rows["English-French data"][0]
    assert rows["hardware"][0] == "8 NVIDIA P100"
    assert rows["time"][:2] == ["0.4 s a step, 12 hours", "1.0 s a step, 3.5 days"]
    assert "$10^{-9}$" in rows["Adam $\\beta_1$, $\\beta_2$, $\\epsilon$"][0]
