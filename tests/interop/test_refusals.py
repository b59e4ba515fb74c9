"""Exports to CTranslate2 and Argos are refused in a line, and nothing is written."""

import sys
from pathlib import Path

import pytest

from annotated_transformer.checkpoint.directory import write_directory
from annotated_transformer.checkpoint.weights import save_weights
from annotated_transformer.command_line import entry_point as cli
from annotated_transformer.errors import ConfigError
from annotated_transformer.interop import argos, ctranslate2
from toys import small_model, toy_tokenizer

BOOK_MODEL = Path(__file__).parents[2] / "book" / "model"


def checkpoint(path, **changes):
    model = small_model(vocab_size=toy_tokenizer().vocab_size, **changes)
    write_directory(path, model.config, toy_tokenizer())
    save_weights(path / "model.safetensors", model.float())
    return path


def test_without_the_package_a_line_names_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    directory = checkpoint(tmp_path / "ours")
    arguments = ["export", str(directory), "--to", "ctranslate2", "--out", str(tmp_path / "out")]
    for command in (arguments, ["translate", str(directory), "--engine", "ctranslate2"]):
        assert cli.main(command) == 2
        assert "pip install 'annotated-transformer[ctranslate2]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["mine", "translate-en-de-1_0.argosmodel", "en_de.argosmodel"])
def test_an_argos_package_is_named_for_its_languages(tmp_path, name):
    with pytest.raises(ConfigError, match="is named for its languages"):
        argos.export_checkpoint(BOOK_MODEL, tmp_path / name)


def test_files_in_the_way_are_kept(tmp_path):
    (tmp_path / "model.bin").write_text("mine")
    with pytest.raises(ConfigError, match="would be overwritten"):
        ctranslate2.export_checkpoint(BOOK_MODEL, tmp_path)
    (tmp_path / "translate-en_de-1_0.argosmodel").write_text("mine")
    with pytest.raises(ConfigError, match="would be overwritten"):
        argos.export_checkpoint(BOOK_MODEL, tmp_path / "translate-en_de-1_0.argosmodel")
