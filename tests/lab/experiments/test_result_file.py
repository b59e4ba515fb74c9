"""Result files say where they come from, and a file that does not is refused."""

import json
import shutil
import subprocess

import pytest

from annotated_transformer.errors import ConfigError
from lab.experiments import result_file
from lab.experiments.result_file import KEYS, PLACE, commit, read_result, write_result


def git(directory, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", *identity, *words]
    return subprocess.check_output(command, cwd=directory, text=True).strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of one commit, which `commit` takes for its own."""
    (tmp_path / PLACE).parent.mkdir(parents=True)
    shutil.copy(result_file.__file__, tmp_path / PLACE)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    monkeypatch.setattr(result_file, "CHECKOUT", tmp_path)
    return tmp_path


def test_what_is_written_is_read_with_its_origin(tmp_path):
    path = tmp_path / "results" / "a.json"
    write_result(path, "python a.py", [{"seed": 1, "bleu": 2.5, "word": "größer"}], summary=[3])
    content = read_result(path)
    assert content["records"] == [{"seed": 1, "bleu": 2.5, "word": "größer"}]
    assert content["summary"] == [3]
    assert content["command"] == "python a.py" and set(KEYS) <= set(content)
    assert set(content["versions"]) == {"torch", "sentencepiece", "sacrebleu", "python"}


@pytest.mark.parametrize("key", KEYS)
def test_a_file_that_lacks_a_part_of_its_origin_is_refused(tmp_path, key):
    path = tmp_path / "a.json"
    write_result(path, "python a.py", [{"seed": 1}])
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, key: ""}), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"lacks {key}"):
        read_result(path)


def test_the_commit_is_that_of_the_checkout_and_tells_changes_to_the_code(checkout):
    head = git(checkout, "rev-parse", "HEAD")
    (checkout / "notes.txt").write_text("not code")
    assert commit() == head
    (checkout / PLACE).with_name("new.py").write_text("x = 1\n")
    assert commit() == f"{head} with changes"


def test_a_package_that_the_checkout_around_it_does_not_hold_has_no_commit(checkout, monkeypatch):
    copy = checkout / "site-packages"
    shutil.copytree(checkout / "book", copy / "book")
    monkeypatch.setattr(result_file, "CHECKOUT", copy)
    assert commit() == "unknown"


def test_outside_a_checkout_the_commit_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(result_file, "CHECKOUT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit() == "unknown"
