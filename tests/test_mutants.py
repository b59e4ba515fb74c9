"""The suite catches every mutant: each test named beside it fails on the changed package,
and on nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import mutants
from mutants import MUTANTS, Outcome, copy_of_the_package

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent


@pytest.fixture(scope="session")
def run_tests():
    """Run tests of this directory on the package in another,
    in a fork of a process that has PyTorch loaded."""
    pipe = subprocess.PIPE
    server = subprocess.Popen(
        [sys.executable, mutants.__file__], stdin=pipe, stdout=pipe, text=True
    )

    def run(directory, tests):
        request = [
            str(directory),
            [str(TESTS / test) for test in tests],
            str(directory / "output.txt"),
        ]
        print(json.dumps(request), file=server.stdin, flush=True)
        outcome = Outcome(*json.loads(server.stdout.readline()))
        assert outcome.package == str(directory / "annotated_transformer"), Path(
            outcome.output
        ).read_text()
        return outcome

    yield run
    server.stdin.close()
    server.wait(3600)


def test_there_are_enough_mutants_and_no_two_alike():
    assert len(MUTANTS) >= 30
    for part in (lambda m: m.name, lambda m: (m.file, m.original, m.replacement)):
        assert len({part(mutant) for mutant in MUTANTS}) == len(MUTANTS)


def test_the_unchanged_copy_passes(run_tests, tmp_path):
    """A test of each file that the mutants name: the others are seen to pass where they stand."""
    copy_of_the_package(tmp_path)
    first = {test.partition("::")[0]: test for mutant in reversed(MUTANTS) for test in mutant.tests}
    outcome = run_tests(tmp_path, sorted(first.values()))
    assert outcome.exit_status == pytest.ExitCode.OK, Path(outcome.output).read_text()


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_every_mutant_is_caught(mutant, run_tests, tmp_path):
    mutant.apply(copy_of_the_package(tmp_path))
    outcome = run_tests(tmp_path, mutant.tests)
    assert outcome.exit_status == pytest.ExitCode.TESTS_FAILED, Path(outcome.output).read_text()
    missed = [
        test for test in mutant.tests if not any(failed.endswith(test) for failed in outcome.failed)
    ]
    assert not missed, f"not noticed by {missed}"
