"""The first run of somebody with two files: what `train` plans, sets aside, and does twice."""

import json

import pytest
from test_entry_point import refused, run

from annotated_transformer.checkpoint.directory import load_model, read_config
from annotated_transformer.data.parallel_text import fold
from annotated_transformer.training import plan
from annotated_transformer.training.plan import Plan, plan_for, planned_training
from toys import text_pairs

PAIRS = text_pairs(3, 200)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two parallel files; and plans of ten steps, for the time of the test."""
    for name, lines in zip(("t.en", "t.de"), zip(*PAIRS, strict=True), strict=True):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    sizes = {"N": 1, "d_model": 16, "d_ff": 32, "h": 2, "train_steps": 40, "warmup_steps": 20}
    monkeypatch.setattr(plan, "plan_for", lambda n: Plan(n // 8, **sizes, max_tokens=300))
    return tmp_path / "t.en", tmp_path / "t.de"


def trained(capsys, *arguments):
    status, out, err = run(capsys, "train", *arguments)
    assert status == 0, err
    return json.loads(out), err


def test_two_files_are_enough(capsys, files, tmp_path):
    """The same command, twice, with --resume from the start."""
    arguments = ["--train", *files, "--out", tmp_path / "run", "--resume"]
    figures, err = trained(capsys, *arguments)
    assert figures["step"] == 40 and "10 of 200 pairs are set aside for validation" in err
    assert "valid_bleu" in figures
    assert "40 steps, peak learning rate 0.026" in err  # 0.42 / 16
    model, tokenizer = load_model(tmp_path / "run")
    assert (model.config.N, model.config.d_model) == (1, 16)
    assert model.config.vocab_size == tokenizer.vocab_size < 400
    again, _ = trained(capsys, *arguments)
    assert again["nll"] == figures["nll"]


def test_a_plan_gives_way_to_what_was_set(capsys, files, tmp_path):
    arguments = ["--train", *files, "--valid", *files, "--quiet", "--set", "max_tokens=260"]
    more = ["--preset", "tiny", "--set", "lr_factor=0.5", "--set", "d_model=8", "--seed", 7]
    trained(capsys, *arguments, *more, "--out", tmp_path / "run")
    config = read_config(tmp_path / "run")
    train, model = config["train"], config["model"]
    assert (train["train_steps"], train["max_tokens"], train["seed"]) == (40, 260, 7)
    assert (train["lr_factor"], train["peak_rate"]) == (0.5, None)
    assert (model["N"], model["d_model"], model["d_ff"]) == (3, 8, 512)
    more = ["--init", tmp_path / "run", "--out", tmp_path / "fine"]
    trained(capsys, *arguments, *more)
    train = read_config(tmp_path / "fine")["train"]
    assert (train["train_steps"], train["warmup_steps"]) == (10, 5)
    assert train["peak_rate"] == pytest.approx(0.42 / 8 / 4)
    trained(
        capsys, *arguments, "--set", "train_steps=2", "--vocab-size", 300, "--out", tmp_path / "set"
    )
    assert read_config(tmp_path / "set")["train"]["warmup_steps"] == 4000  # as in the paper


def test_what_is_set_aside_shares_no_sentence_with_training(capsys, files, tmp_path, monkeypatch):
    from annotated_transformer.command_line import train_verb

    train_pairs, valid_pairs = train_verb.without_held_out(PAIRS)
    sentences = [
        {fold(side) for pair in pairs for side in pair} for pairs in (train_pairs, valid_pairs)
    ]
    assert len(valid_pairs) == 10 and not sentences[0] & sentences[1]
    assert train_verb.without_held_out(PAIRS) == (train_pairs, valid_pairs)
    capsys.readouterr()
    err = refused(capsys, "train", "--valid", *files, "--out", tmp_path / "run")
    assert "--valid goes with --train: two files each" in err


def test_more_pairs_get_a_larger_model_and_no_plan_is_endless():
    plans = [plan_for(n) for n in (600, 4_600, 20_000, 1_000_000)]
    sizes = [(plan.d_model, plan.train_steps) for plan in plans]
    assert sizes == sorted(sizes) and plans[-1].train_steps < 100_000
    for plan_ in plans:
        config = planned_training(5_000, plan_.d_model)
        assert config.peak_rate == pytest.approx(0.42 / plan_.d_model)
