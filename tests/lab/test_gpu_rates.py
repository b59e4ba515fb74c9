"""The measured share gives back the measured time, and is the one that pages name."""

import json

import pytest

from annotated_transformer.config import ModelConfig
from lab import gpu_rates
from lab.experiments.result_file import RESULTS
from lab.tables.table_3 import VOCAB_SIZE, count_parameters


@pytest.mark.parametrize(("compiled", "percent"), [(False, 12), (True, 19)])
def test_the_papers_steps_take_the_measured_hours(compiled, percent):
    """Within 5 percent: the file counts the operations of attention as well, and the embedding."""
    assert round(100 * gpu_rates.measured_share(compiled)) == percent
    records = json.loads((RESULTS / "gpu_compiled.json").read_text())["records"]
    (step,) = (
        r
        for r in records
        if r.get("compiled") is compiled and r["precision"] == "bf16" and not r["packed"]
    )
    operations = 6 * count_parameters(ModelConfig.base(VOCAB_SIZE)) * 25_000 * 100_000
    assert gpu_rates.hours(operations, "H200 SXM", compiled) == pytest.approx(
        step["hours"], rel=0.05
    )


def test_half_the_rate_takes_twice_as_long():
    once, twice = (gpu_rates.hours(n, "A100 80GB") for n in (1e18, 2e18))
    assert twice == pytest.approx(2 * once)
    assert gpu_rates.hours(1e18, "A100 80GB") > 3 * gpu_rates.hours(1e18, "H100 SXM")
