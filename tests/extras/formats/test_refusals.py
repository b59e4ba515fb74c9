"""Exports to CTranslate2, Argos and ONNX are refused in a line, and nothing is written."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from annotated_transformer.command_line import entry_point as cli
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.formats import argos, ctranslate2, onnx
from toys import small_checkpoint

BOOK_MODEL = Path(__file__).parents[3] / "book" / "model"


@pytest.mark.parametrize("name", ["ctranslate2", "onnx"])
def test_without_the_package_a_line_names_it(tmp_path, monkeypatch, capsys, name):
    monkeypatch.setitem(sys.modules, name, None)
    directory = tmp_path / "ours"
    small_checkpoint(directory)
    commands = [["export", str(directory), "--to", name, "--out", str(tmp_path / "out")]]
    if name == "ctranslate2":
        commands.append(["translate", str(directory), "--engine", name])
    for command in commands:
        assert cli.main(command) == 2
        said = capsys.readouterr().err
        assert f"pip install 'annotated-transformer[{name}]'" in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "more", "words"),
    [
        ({"positions": "rotary"}, [], "positions=rotary: train with positions=sinusoidal"),
        ({"d_k": 3}, [], "leave d_k and d_v at d_model / h"),
        ({}, ["--dtype", "float16"], "an export to onnx does not take it"),
    ],
    ids=str,
)
def test_what_onnx_has_no_place_for_is_refused(tmp_path, monkeypatch, capsys, changes, more, words):
    monkeypatch.setitem(sys.modules, "onnx", SimpleNamespace())
    small_checkpoint(tmp_path / "ours", **changes)
    export = ["export", str(tmp_path / "ours"), "--to", "onnx", "--out", str(tmp_path / "out")]
    assert cli.main([*export, *more]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["mine", "translate-en-de-1_0.argosmodel", "en_de.argosmodel"])
def test_an_argos_package_is_named_for_its_languages(tmp_path, name):
    with pytest.raises(ConfigError, match="is named for its languages"):
        argos.export_checkpoint(BOOK_MODEL, tmp_path / name)


@pytest.mark.parametrize(
    "name", ["translate-de_en-1_0.argosmodel", "translate-en_fr-1_0.argosmodel"]
)
def test_an_argos_package_has_the_languages_of_the_corpus(tmp_path, name):
    with pytest.raises(ConfigError, match=f"translates from en to de, .* must say, got {name}"):
        argos.export_checkpoint(BOOK_MODEL, tmp_path / name)


def test_files_in_the_way_are_kept(tmp_path, monkeypatch):
    (tmp_path / "model.bin").write_text("mine")
    with pytest.raises(ConfigError, match="would be overwritten"):
        ctranslate2.export_checkpoint(BOOK_MODEL, tmp_path)
    (tmp_path / "translate-en_de-1_0.argosmodel").write_text("mine")
    with pytest.raises(ConfigError, match="would be overwritten"):
        argos.export_checkpoint(BOOK_MODEL, tmp_path / "translate-en_de-1_0.argosmodel")
    monkeypatch.setitem(sys.modules, "onnx", SimpleNamespace())
    (tmp_path / "out" / "onnx").mkdir(parents=True)
    (tmp_path / "out" / "onnx" / "decoder_model.onnx").write_text("mine")
    with pytest.raises(ConfigError, match=r"decoder_model.onnx would be overwritten"):
        onnx.export_checkpoint(BOOK_MODEL, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["onnx"]
