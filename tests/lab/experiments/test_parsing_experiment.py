"""What is computed from the parses: the interval of F1, the bins of length; and the plan's runs."""

import json
import statistics

import pytest

from annotated_transformer.errors import ConfigError
from lab.experiments.table_4 import plan, treebank
from lab.experiments.table_4.parser import main
from lab.experiments.table_4.plan import FULL, SMALL, training_trees
from lab.experiments.table_4.scoring import by_length, score
from lab.parsing.scoring import BracketCounts, bracket_counts, bracket_f1
from lab.parsing.trees import tree_words
from lab.toy_grammar import sample_trees

TREES = sample_trees(120, seed=3)
# Every third parse is perfect.
FLAT = [treebank.flat(tree) if i % 3 else tree for i, tree in enumerate(TREES)]


@pytest.mark.slow
def test_the_interval_of_f1_is_about_two_standard_errors_and_the_bins_are_all_sentences():
    scored = score(TREES, FLAT)
    low, high = scored["F1 interval"]
    assert scored["f1"] == bracket_f1(TREES, FLAT).f1 and low < scored["f1"] < high
    counts = list(map(bracket_counts, TREES, FLAT))
    # Linearized: the ratio of two sums, whose residuals are matched - f1 / 200 (gold + predicted).
    residuals = [n.matched - scored["f1"] / 200 * (n.gold + n.predicted) for n in counts]
    total = sum(count.gold + count.predicted for count in counts)
    error = 200 * statistics.pstdev(residuals) * len(TREES) ** 0.5 / total
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1)
    bins = by_length(TREES, counts)
    assert sum(one["sentences"] for one in bins) == len(TREES)
    exactly_ten = [tree for tree in TREES if len(tree_words(tree)) == 10][:1]
    assert by_length(exactly_ten, [BracketCounts(1, 1, 1)])[0]["words"] == [1, 10]


@pytest.mark.parametrize("changed", [("train", "lr_factor"), ("model", "N"), ("model", "p_drop")])
def test_a_run_with_other_settings_is_refused(tmp_path, changed):
    """What lies in the folder was made by another plan: it must not be taken for this one's."""
    run = SMALL.runs[0]
    model = {**SMALL.model, "p_drop": run.p_drop}
    record = {"train": plan.settings_of(run, SMALL), "model": model}
    record[changed[0]][changed[1]] = 0.2
    folder = plan.folder_of(run, tmp_path)
    folder.mkdir()
    (folder / "record.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(ConfigError, match="other settings"):
        main(["--small", "--runs", str(tmp_path), "--out", str(tmp_path)])


def test_a_smaller_share_is_part_of_a_larger_one(monkeypatch):
    monkeypatch.setattr(plan, "trees_of", lambda corpus, split, data_dir: {"train": TREES}[split])
    runs = {run.share: training_trees(run, None) for run in FULL.runs if run.corpus == "craft"}
    assert [len(runs[share]) for share in (1 / 8, 1 / 4, 1 / 2, 1.0)] == [15, 30, 60, 120]
    assert runs[1 / 4][:15] == runs[1 / 8] and runs[1.0][:60] == runs[1 / 2]
