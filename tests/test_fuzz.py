"""The fuzzer runs clean, and finds what breaks its contract."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tools import fuzz
from tools.fuzz_targets import kept_inside

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="a process cannot fork here")
TARGET = fuzz.Target("one", 1, [b"0123456789"], (), lambda data: "")


@forks
def test_a_few_inputs_of_every_target_are_answered_as_promised(monkeypatch):
    """In another process, since the fuzzer puts a stop to the network and to training."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-m", "tools.fuzz", "--inputs", "400", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == list(fuzz.TARGETS)
    assert lines[-1].endswith("0 of them not answered as promised")


def test_an_input_follows_from_its_number_and_the_seed():
    inputs = [[fuzz.mutated(TARGET, seed, n) for n in range(200)] for seed in (1, 1, 2)]
    assert inputs[0] == inputs[1] != inputs[2]
    assert len(set(inputs[0])) > 100


def compute(data):
    while True:
        pass


@forks
@pytest.mark.parametrize(
    ("breaks", "said", "numbers"),
    [
        (lambda data: "wrong", "wrong", range(12)),
        (lambda data: {}[data], "KeyError", range(12)),
        (lambda data: os.kill(os.getpid(), signal.SIGKILL), "dies of SIGKILL", range(12)),
        (compute, "computes for 1 s", range(12)),
        (lambda data: time.sleep(3600), "waits for 5 s", range(5, 8)),
    ],
    ids=["an answer", "an exception", "a signal", "no end", "a wait"],
)
def test_what_breaks_the_contract_is_found(monkeypatch, breaks, said, numbers):
    monkeypatch.setattr(fuzz, "SLOWEST", 1)  # second of the processor
    if "waits" in said:
        monkeypatch.setattr(fuzz, "PATIENCE", 5)
    target = TARGET._replace(judge=lambda data: "" if data[:1] == b"0" else breaks(data))
    found = fuzz.run(target, 1, numbers)
    wrong = [n for n in numbers if fuzz.mutated(target, 1, n)[:1] != b"0"]
    assert [finding.number for finding in found] == wrong and 1 <= len(wrong) < len(numbers)
    assert all(said in finding.what for finding in found)


@pytest.mark.parametrize(
    "path",
    ["/etc/x", "//x", "../x", "a/../../x", "~/x", "--out=/x", "--out=~x", "....//x", ".../.x"],
)
def test_no_fuzzed_command_can_name_a_place_outside_its_folder(path, tmp_path):
    """A fuzzer that runs as root had written to the root of the machine it ran on."""
    inside = kept_inside(path).partition("=")[2] or kept_inside(path)
    assert (tmp_path / inside).resolve().is_relative_to(tmp_path) and "~" not in inside[:1]
    assert kept_inside("runs/good.d/step-1") == "runs/good.d/step-1"
