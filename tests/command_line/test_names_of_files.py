"""A corpus of one's own is called by the names of its files, without the folders of a machine."""

import json

import pytest

from annotated_transformer.command_line import entry_point as cli
from toys import text_pairs


@pytest.mark.with_extras
def test_a_run_and_its_shards_do_not_say_where_the_files_lie(tmp_path):
    secret = tmp_path / "acme"
    secret.mkdir()
    for side, texts in zip(("en", "de"), zip(*text_pairs(0, 60), strict=True), strict=True):
        (secret / f"mine.{side}").write_text("".join(f"{text}\n" for text in texts))
    files = [str(secret / f"mine.{side}") for side in ("en", "de")]
    out, shards = str(tmp_path / "run"), str(tmp_path / "shards")
    small = {"N": 1, "d_model": 8, "h": 2, "d_ff": 12, "train_steps": 1, "vocab_size": 275}
    sets = [word for name, value in small.items() for word in ("--set", f"{name}={value}")]
    assert cli.main(["train", "--train", *files, "--valid", *files, "--out", out, *sets]) == 0
    config = (tmp_path / "run" / "config.json").read_text()
    assert json.loads(config)["corpus"] == "mine.en mine.de" and "acme" not in config
    encode = ["prepare", "--encode", "--train", *files, "--out", shards, "--vocab-size", "275"]
    assert cli.main(encode) == 0
    manifest = (tmp_path / "shards" / "shards.json").read_text()
    assert json.loads(manifest)["corpus"] == "mine.en mine.de" and "acme" not in manifest
