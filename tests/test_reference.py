"""The pages made from the code are as new as it is and leave nothing out,
and the settings are those of the paper."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from annotated_transformer.config import DecodeConfig, ModelConfig, TrainConfig
from annotated_transformer.tables.table_3 import count_parameters
from tools import reference

PAGES = reference.pages()
MODULES = [reference.Module(path) for paths in reference.groups().values() for path in paths]


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_stored_page_is_what_the_code_gives(name: str) -> None:
    assert (reference.BOOK / name).read_text(encoding="utf-8") == PAGES[name], "run: make reference"


def test_every_module_is_on_the_page_once() -> None:
    names = sorted(filter(None, map(reference.dotted, reference.PACKAGE.rglob("*.py"))))
    assert {"model.attention", "exercises", "experiments.claims"} < set(names)
    assert sorted(module.name for module in MODULES) == names
    assert re.findall(r"^## `([\w.]+)`$", PAGES["api.md"], flags=re.M) == [
        module.name for module in MODULES
    ]


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_every_public_name_of_a_module_is_on_the_page(module: reference.Module) -> None:
    """By importing it, which the tool does not do: names whose home is the module,
    functions and classes."""
    loaded = import_module(f"annotated_transformer.{module.name}")
    at_home = {
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", "") == loaded.__name__
    }
    assert at_home - {name for name, _ in module.members()} == set()


@pytest.mark.slow
def test_the_package_offers_only_what_is_described() -> None:
    described = {name for module in MODULES for name, _ in module.members()}
    assert set(reference.front_door()) <= described


@pytest.mark.slow
def test_every_public_function_and_class_says_what_it_does() -> None:
    """Except the verbs of the command line, whose --help says it."""
    silent = [
        f"{module.name}.{name}"
        for module in MODULES
        if module.name not in ("commands", "cli")
        for name, lines in module.members()
        if lines and re.search(r"^(class |with |\w+\()", lines[1].splitlines()[1]) and not lines[2]
    ]
    assert silent == []


def test_an_equation_in_a_docstring_is_on_the_page_as_written() -> None:
    page = PAGES["api.md"]
    assert "Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V (equation 1)." in page
    assert 'q: Float[Tensor, "*B L K"],' in page and ') -> Float[Tensor, "*B L Kv"]' in page


def test_a_module_that_is_not_sorted_in_comes_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    for stem in ("zebra", "model/attention", "config", "__init__"):
        (tmp_path / f"{stem}.py").write_text('"""A module."""\n', encoding="utf-8")
    monkeypatch.setattr(reference, "PACKAGE", tmp_path)
    assert [path.stem for paths in reference.groups().values() for path in paths] == [
        "config",
        "attention",
        "zebra",
    ]
    assert list(reference.groups()) == ["Configuration and files", "The model", "More"]


def test_letters_that_markdown_would_take_are_kept() -> None:
    assert reference.prose("a < b, `c < d` and 2 * d $") == r"a \< b, `c < d` and 2 \* d \$"
    assert (
        reference.prose("Text.\n\n    x = 1\n\n*may look*")
        == "Text.\n\n```python\nx = 1\n```\n\n*may look*"
    )


# The paper's numbers, written down from the paper


def test_base_is_the_papers() -> None:
    base, train = ModelConfig.base(37_000), TrainConfig()
    assert (base.N, base.d_model, base.d_ff, base.h, base.d_k, base.d_v) == (
        6, 512, 2048, 8, 64, 64,
    )  # fmt: skip
    assert (base.p_drop, train.eps_ls, train.train_steps) == (0.1, 0.1, 100_000)
    assert (base.norm, base.positions, base.activation, base.bias) == (
        "post",
        "sinusoidal",
        "relu",
        False,
    )
    assert (base.attention_dropout, base.ffn_dropout) == (0.0, 0.0)


def test_big_is_the_papers() -> None:
    big = ModelConfig.big(37_000)
    assert (big.N, big.d_model, big.d_ff, big.h, big.d_k, big.d_v) == (6, 1024, 4096, 16, 64, 64)
    assert big.p_drop == 0.3


def test_adam_warmup_batch_and_search_are_the_papers() -> None:
    train, decode = TrainConfig(), DecodeConfig()
    assert (train.beta1, train.beta2, train.adam_eps, train.warmup_steps) == (0.9, 0.98, 1e-9, 4000)
    assert (train.max_tokens, train.keep_checkpoints, train.lr_factor) == (25_000, 5, 1.0)
    assert (decode.beam_size, decode.alpha, decode.max_extra) == (4, 0.6, 50)


def test_the_parsing_model_can_be_configured() -> None:
    parsing = ModelConfig.base(16_000, N=4, d_model=1024)
    assert (parsing.N, parsing.d_model, parsing.d_ff, parsing.h) == (4, 1024, 2048, 8)
    assert DecodeConfig(beam_size=21, alpha=0.3, max_extra=300).max_extra == 300


def row(label: str) -> list[str]:
    lines = [
        line for line in PAGES["hyperparameters.md"].splitlines() if line.startswith(f"| {label} |")
    ]
    assert len(lines) == 1, label
    return [cell.strip() for cell in lines[0].strip("|").split(" | ")]


def test_the_page_has_the_papers_rows() -> None:
    """H1 to H8: base, big, parsing, Adam, data, averaging, decoding, hardware."""
    assert row("layers $N$")[2:] == ["6", "6", "4"]
    assert row("width $d_{\\mathrm{model}}$")[2:] == ["512", "1024", "1024"]
    assert row("updates")[2:4] == ["100,000", "300,000"]
    assert row("beam, $\\alpha$")[2:] == ["4, 0.6", "4, 0.6", "21, 0.3"]
    assert row("longest output")[4] == "input + 300"
    assert (
        "last 5" in row("checkpoints averaged")[2] and "last 20" in row("checkpoints averaged")[3]
    )
    assert (
        "4.5 million" in row("English-German data")[2]
        and "36 million" in row("English-French data")[2]
    )
    assert row("hardware")[2] == "8 NVIDIA P100"
    assert row("time")[2:4] == ["0.4 s a step, 12 hours", "1.0 s a step, 3.5 days"]
    assert "$10^{-9}$" in row("Adam $\\beta_1$, $\\beta_2$, $\\epsilon$")[2]


def test_where_the_page_says_that_the_paper_disagrees_it_does() -> None:
    assert count_parameters(ModelConfig.base(37_000)) // 10**6 == 63
    assert round(100_000 * 0.4 / 3600, 1) == 11.1


def test_a_setting_that_is_not_described_is_named() -> None:
    with pytest.raises(SystemExit, match="'alpha'"):
        reference.checked(DecodeConfig, dict.fromkeys(("beam_size", "n_best", "max_extra"), ""))
