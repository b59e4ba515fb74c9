"""The server of *Serve it*, over real HTTP: short and long lines, mistakes, and its limits."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks import serving
from lab.experiments.result_file import RESULTS, read_result

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    with serving.served() as (port, names):
        yield port, names


def test_requests_of_all_lengths_get_their_own_answers(server):
    port, names = server
    texts = ["I am hungry.", "", "Where is the station? " * 20, "It is 7:45.", "Good morning!"] * 4
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda text: serving.ask(port, {"text": text}), texts))
    assert {status for status, _ in answers} == {200}
    expected = names["translator"].translate(texts)
    assert [answer["text"] for _, answer in answers] == expected


def test_a_line_that_was_cut_says_so(server):
    port, names = server
    _, answer = serving.ask(port, {"text": "word " * 1_000})
    n_tokens = len(names["translator"].tokenizer.encode("word " * 1_000))
    assert answer["cut"] == n_tokens - 255 and answer["text"]
    assert serving.ask(port, {"text": "word"})[1]["cut"] == 0


@pytest.mark.parametrize(
    "body", ["{", {"line": "x"}, {"text": 5}, {"text": "x" * 10_001}, {"text": "x", "beam_size": 9}]
)
def test_a_mistake_is_answered_and_the_server_goes_on(server, body):
    port, _ = server
    assert serving.ask(port, body)[0] == 422
    assert serving.ask(port, {"text": "I am hungry."})[0] == 200


def test_more_than_may_wait_is_turned_away(server, monkeypatch):
    port, names = server
    monkeypatch.setitem(names, "SECONDS", 0.0)
    assert serving.ask(port, {"text": "I am hungry."})[0] == 503


def test_the_page_says_what_was_measured_and_the_server_is_short():
    [record] = read_result(RESULTS / "serving.json")["records"]
    text = serving.PAGE.read_text(encoding="utf-8")
    throughput, growth = (f"{record[name]:.1f}" for name in ("throughput", "growth in MB"))
    assert f"answered {throughput} times as fast" in text and f"grew by {growth} MB" in text
    assert record["mixed-up answers"] == 0 and record["throughput"] >= 2.2
    assert record["growth in MB"] < 20 and record["requests more"] == 2000
    lines = [line for line in serving.code_of_page().splitlines() if re.search(r"\S", line)]
    assert len(lines) <= 40
