"""The pages on the command line and on one's own pairs: what they list is there, and they run."""

import re
import shlex
from pathlib import Path

import pytest

from annotated_transformer.command_line import entry_point as cli
from annotated_transformer.command_line.arguments import parser
from annotated_transformer.extras.from_pairs.judgement import ENOUGH, LEVELS
from toys import text_pairs

ROOT = Path(__file__).parents[1]
PAGES = {
    name: (ROOT / "book" / f"{name}.md").read_text("utf-8")
    for name in ("command_line", "own_pairs")
}
BLOCKS = {
    name: [
        [shlex.split(line)[1:] for line in block.replace("\\\n", " ").splitlines()]
        for block in re.findall(r"^```\n(annotated.*?)^```", text, flags=re.M | re.S)
    ]
    for name, text in PAGES.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_its_three_examples_run(tmp_path, monkeypatch, capsys, number):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book").symlink_to(ROOT / "book")
    (tmp_path / "input.en").write_text("I am hungry.\nWhere is the station?\n")
    (tmp_path / "reference.de").write_text("Ich habe Hunger.\nWo ist der Bahnhof?\n")
    assert len(BLOCKS["command_line"]) == 3
    for words in BLOCKS["command_line"][number]:
        assert cli.main(words) == 0, capsys.readouterr().err
    results = ("output.de", "runs/reverse-averaged/model.safetensors", "page/index.html")
    assert (tmp_path / results[number]).exists()


@pytest.mark.slow
def test_the_commands_for_own_pairs_run(tmp_path, monkeypatch, capsys):
    """With toy sizes: the page's commands plan for real files."""
    monkeypatch.chdir(tmp_path)
    pairs = text_pairs(1, 400)
    Path("mine.tsv").write_text("".join(f"{x}\t{y}\n" for x, y in pairs))
    for number, split in enumerate(("train", "valid", "test")):
        for side, language in enumerate(("en", "fr")):
            lines = [pair[side] for pair in pairs[number::20]]
            Path(f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines))
    sizes = (
        "N=1 d_model=8 d_ff=8 h=2 vocab_size=275 train_steps=5 checkpoint_every=1 max_tokens=400"
    )
    small = {
        "new": ["--steps", "5"],
        "train": [word for size in sizes.split() for word in ("--set", size)],
    }
    commands = [words for block in BLOCKS["own_pairs"] for words in block]
    assert [words[0] for words in commands] == [
        "new", "train", "average", "evaluate", "inspect", "export-page",
    ]  # fmt: skip
    for words in commands:
        assert cli.main([*words, *small.get(words[0], [])]) == 0, capsys.readouterr().err
    assert Path("page/index.html").exists() and Path("mine/report.html").exists()


def test_the_verdicts_on_the_page_are_those_of_the_code():
    page = PAGES["own_pairs"]
    assert f"fewer than {ENOUGH} sentences" in page
    cannot, few, gist, _ = LEVELS
    rule = (
        f"Below {cannot} a model cannot translate yet. From {few} most translations give the gist"
    )
    assert f"{rule}, and from {gist} most can be understood" in page


def test_its_table_lists_the_verbs_in_their_order():
    listed = re.findall(r"^\| `([a-z][a-z-]*)` \|", PAGES["command_line"], flags=re.M)
    assert listed == [*parser().verbs]
