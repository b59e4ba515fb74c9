"""Each hostile file of tests/attacks is refused in one line, within its memory."""

import re
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("limits processes as Linux does", allow_module_level=True)
sys.path[:0] = [str(Path(__file__).parent / name) for name in ("attacks", "data")]

import attack  # noqa: E402
from hostile_files import ATTACKS, train  # noqa: E402


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(tmp_path / "cache"))


def test_the_good_checkpoint_is_good(tmp_path):
    """Or every hostile one beside it would be refused for that."""
    folder = attack.good_checkpoint(tmp_path)
    assert len(attack.translated(folder)) == 1
    for loads in (attack.translated, attack.checkpoint.load_model):
        assert not attack.read(loads, folder).refused
    assert attack.read(loads, folder).words.startswith("(Transformer(")
    (folder / "model.safetensors").unlink()
    for resume in (False, True):
        train(folder, resume=resume)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_file_is_refused_in_one_line_for_what_it_is(name, tmp_path):
    ours = attack.outcome(ATTACKS[name], tmp_path / "stranger")
    assert ours.refused and "\n" not in ours.words, ours.words
    assert re.search(ATTACKS[name].says, ours.words), ours.words
    assert ours.peak < attack.MOST_MEMORY


@pytest.mark.parametrize("name", [name for name, known in ATTACKS.items() if known.behind])
def test_what_stands_behind_a_known_digest_refuses_too(name, tmp_path):
    ATTACKS[name].make(attack.good_checkpoint(tmp_path / "stranger"))
    before = sorted(tmp_path.rglob("*"))
    behind = attack.read(attack.read_behind, tmp_path / "stranger")
    assert behind.refused and re.search(ATTACKS[name].behind, behind.words), behind.words
    assert sorted(tmp_path.rglob("*")) == before and behind.peak < attack.MOST_MEMORY
