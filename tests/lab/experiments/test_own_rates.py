"""Rows at rates of their own: the settings, the choice, and runs that are stopped and resumed."""

import json

import pytest

from annotated_transformer.data import corpus
from lab.experiments.table_3 import miniature, miniature_summary, own_rates
from lab.experiments.table_3.miniature import VARIATIONS

REAL_LOAD, REAL_TRAIN = corpus.load, miniature.train


def settings(name):
    model, training = VARIATIONS[name].configs(1, to_the_end=True)
    return model.to_dict() | training.to_dict()


@pytest.mark.parametrize("row", own_rates.SETTINGS)
def test_a_setting_differs_from_its_row_in_rate_and_big_in_dropout(row):
    """And those of big with base's dropout differ from base in width alone."""
    names = own_rates.SETTINGS[row]
    changed = {name: dict(settings(name).items() - settings(row).items()) for name in names}
    expected = {f"{row}-at-{rate}": {"lr_factor": rate} for rate in (0.15, 0.6)}
    if row == "big":
        widths = {key for key in settings("big") if settings("big")[key] != settings("base")[key]}
        assert widths == {"d_model", "d_ff", "h", "p_drop"}
        expected = {
            "big-p-0.1-at-0.3": {"p_drop": 0.1},
            "big-p-0.1-at-0.15": {"p_drop": 0.1, "lr_factor": 0.15},
            "big-at-0.15": {"lr_factor": 0.15},
        }
    assert changed == expected


def test_seeds_appear_in_no_table():
    stored = [
        int(path.name.removesuffix(".json.gz").rsplit("-", 1)[1])
        for path in own_rates.KEPT.glob("*/*.json.gz")
        if path.parent.name != own_rates.TABLE
    ]
    assert set(stored).isdisjoint({own_rates.SEARCH_SEED, *own_rates.SEEDS}) and len(stored) > 100


def test_todays_setting_stays_unless_another_is_five_percent_better():
    searched = {"half": 9.6, "twice": 12.0}
    assert own_rates.choose(10.0, searched, "row") == "row"
    assert own_rates.choose(10.2, searched, "row") == "half"


def task(out, name="A1", **more):
    return miniature.Task(name, 1, "reverse", out, 6, 300, **more)


@pytest.fixture
def few_sentences(monkeypatch):
    def few(name, split, data_dir=None):
        return REAL_LOAD(name, split, data_dir)[: {"train": 400, "test": 7}.get(split, 20)]

    monkeypatch.setattr(miniature.corpus, "load", few)


@pytest.mark.slow
def test_a_run_counts_every_part_and_scores_the_test_split(few_sentences, tmp_path, monkeypatch):
    """Stopped at one commit and resumed at another, it has two parts; its cost is their sum."""

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    def half(model, config, *args, **kwargs):
        REAL_TRAIN(model, config.replace(train_steps=3), *args, **kwargs)
        stop()

    mine = task(tmp_path, to_the_end=True, test=True)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(miniature, "train", half)
        patched.setattr(miniature, "commit", lambda: "abc")
        miniature.run_task(mine)
    record = json.loads(miniature.run_task(mine).read_text())
    sizes = {name: len(scores["nll"]) for name, scores in record["scores"].items()}
    assert sizes == {"": 20, "averaged": 20, "on test": 7, "averaged on test": 7}
    first, last = record["parts"]
    for part in (first, last):
        assert part["seconds"] > 0 and part["cpu_seconds"] > 0 and part["versions"]["torch"]
    (stored,) = miniature_summary.result_records({"A1": {1: record}})
    for key in ("seconds", "cpu_seconds"):
        assert stored[key] == pytest.approx(first[key] + last[key], abs=0.06)
    assert stored["parts"] == 2 and stored["commit"] == f"abc, {last['commit']}"
