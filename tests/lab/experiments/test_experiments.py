"""Every experiment, at toy size, by the code that makes the full results:
one result file each, in minutes."""

import json
import subprocess
import sys

import pytest

from lab.experiments.__main__ import PARTS
from lab.experiments.claims import judge_claims, load_results
from lab.experiments.result_file import read_result

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder that `python -m lab.experiments --small` fills."""
    out = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-m", "lab.experiments", "--small", "--out", str(out)]
    subprocess.run(command, check=True)
    return out


@pytest.mark.parametrize("name", PARTS)
def test_it_leaves_a_result_file_that_says_where_it_comes_from(results, name):
    content = read_result(results / f"{name}.json")
    assert content["records"]
    assert json.loads((results / f"{name}.json").read_text())["command"]


def test_the_claims_can_be_judged_from_the_files(results):
    """Toy sizes say nothing of the claims themselves,
    but there is a verdict with numbers where a row was run."""
    found = {claim.statement: claim.evidence for claim in judge_claims(load_results(results))}
    for claim in (
        "A single head is worse than eight.",
        "A recurrent layer costs O(n d^2).",
        "Some head finds what a pronoun refers to.",
    ):
        assert found[claim] != "not measured"
