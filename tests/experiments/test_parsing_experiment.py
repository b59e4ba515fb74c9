"""What is computed from the parses: the interval of F1, the bins of length,
the line through the learning curve."""

import json
import statistics

import numpy as np
import pytest

from annotated_transformer.config import ConfigError
from annotated_transformer.experiments.table_4 import plan, treebank
from annotated_transformer.experiments.table_4.curve import learning_curve, power_law
from annotated_transformer.experiments.table_4.parser import main
from annotated_transformer.experiments.table_4.plan import FULL, SMALL, training_trees
from annotated_transformer.experiments.table_4.scoring import by_length, score
from annotated_transformer.parsing import (
    BracketCounts,
    bracket_counts,
    bracket_f1,
    sample_trees,
)
from annotated_transformer.trees import (
    tree_words,
)

TREES = sample_trees(120, seed=3)
# Every third parse is perfect.
FLAT = [treebank.flat(tree) if i % 3 else tree for i, tree in enumerate(TREES)]


def test_a_power_law_is_found_again():
    assert power_law(
        [(n, 5 + 300 * n**-0.4) for n in (100, 300, 1000)], floor=5.0
    ) == pytest.approx((300, 0.4))


def test_the_curve_leads_where_the_law_does():
    sizes = [1600, 6400, 10_000]
    errors = np.array([round(2000 * n**-0.5, 1) for n in sizes])  # percent
    records = [
        {
            "training": {"sentences": n},
            "counts": [[round(1000 - 10 * error), 1000, 1000]] * 3,
            "test": [{"f1": 100 - error}],
        }
        for n, error in zip(sizes, errors, strict=True)
    ]
    found = learning_curve(records, n_resamples=10)
    for key, floor in (("f1 there", 0.0), ("f1 there with_floor", errors.min() / 2)):
        slope, offset = np.polyfit(np.log(sizes), np.log(errors - floor), 1)
        assert found[key] == pytest.approx(100 - floor - np.exp(offset) * 40_000**slope)
    # All sentences are alike.
    assert found["f1 there interval"] == pytest.approx([found["f1 there"]] * 2)


@pytest.mark.slow
def test_the_interval_of_f1_is_about_two_standard_errors_and_the_bins_are_all_sentences():
    scored = score(TREES, FLAT)
    low, high = scored["F1 interval"]
    assert scored["f1"] == bracket_f1(TREES, FLAT).f1 and low < scored["f1"] < high
    counts = list(map(bracket_counts, TREES, FLAT))
    # Linearized: the ratio of two sums, whose residuals are matched - f1 / 200 (gold + predicted).
    residuals = [
        count.matched - scored["f1"] / 200 * (count.gold + count.predicted) for count in counts
    ]
    total = sum(count.gold + count.predicted for count in counts)
    error = 200 * statistics.pstdev(residuals) * len(TREES) ** 0.5 / total
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1)
    bins = by_length(TREES, counts)
    assert sum(one["sentences"] for one in bins) == len(TREES)
    exactly_ten = [tree for tree in TREES if len(tree_words(tree)) == 10][:1]
    assert by_length(exactly_ten, [BracketCounts(1, 1, 1)])[0]["words"] == [1, 10]


def test_a_run_with_other_settings_is_refused(tmp_path):
    """What lies in the folder was made by another plan: it must not be taken for this one's."""
    for run in SMALL.runs[:1]:
        folder = plan.folder_of(run, tmp_path)
        folder.mkdir()
        settings = {**plan.settings_of(run, SMALL), "lr_factor": 0.1}
        (folder / "record.json").write_text(json.dumps({"train": settings}), encoding="utf-8")
    with pytest.raises(ConfigError, match="other settings"):
        main(["--small", "--runs", str(tmp_path), "--out", str(tmp_path)])


def test_a_smaller_share_is_part_of_a_larger_one(monkeypatch):
    monkeypatch.setattr(plan, "trees_of", lambda corpus, split, data_dir: {"train": TREES}[split])
    runs = {run.share: training_trees(run, None) for run in FULL.runs if run.is_on_the_curve}
    assert [len(runs[share]) for share in (1 / 8, 1 / 4, 1 / 2, 1.0)] == [15, 30, 60, 120]
    assert runs[1 / 4][:15] == runs[1 / 8] and runs[1.0][:60] == runs[1 / 2]
