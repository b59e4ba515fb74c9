"""One command from a file of pairs to a translator, a report and a page; stopped, it goes on."""

import gzip
import json
import random
import re
from pathlib import Path
from unittest import mock

import pytest
import torch

from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.checkpoint.weights import load_tensors
from annotated_transformer.command_line import entry_point as cli
from annotated_transformer.data.parallel_text import pairs_sha256
from annotated_transformer.decoding.evaluation import bleu
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.formats import own_form as our_own
from annotated_transformer.extras.from_pairs import making
from annotated_transformer.extras.from_pairs.columns import read_pairs
from annotated_transformer.extras.from_pairs.report import curves, report_page
from annotated_transformer.extras.page.writing import write_page
from annotated_transformer.extras.visitors.augmentation import Augmentation
from annotated_transformer.training.plan import Plan, learn_vocabulary, n_held_out
from annotated_transformer.training.run import TrainingRun
from html_page import HtmlPage
from toys import report_scores

ENGLISH = "one two three red blue green small big cat dog bird house"
GERMAN = "eins zwei drei rot blau grün klein groß Katze Hund Vogel Haus"
WORDS = dict(zip(ENGLISH.split(), GERMAN.split(), strict=True))
SMALL = Plan(60, N=1, d_model=16, d_ff=16, h=2, train_steps=12, max_tokens=300, warmup_steps=5)


def make(pairs, out, *plan, **options):
    """As the verb `new` calls it: the page, the report and the model."""
    return making.make(pairs, out, write_page, Augmentation, *plan, **options)[0][:3]


def lines_of_pairs(n=200, seed=1):
    generator = random.Random(seed)
    for _ in range(n):
        words = generator.choices(list(WORDS), k=generator.randint(3, 7))
        yield f"{' '.join(words)}\t{' '.join(WORDS[word] for word in words)}\n"


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text("".join(lines_of_pairs()), encoding="utf-8")
    return path


# The file, the splits and the sizes


def test_a_third_column_blank_lines_and_repetitions_are_left_out(tmp_path):
    lines = list(lines_of_pairs(150))
    path = tmp_path / "mine.tsv.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("\ufeff" + "".join(f"{line[:-1]}\tCC BY\r\n\r\n" for line in lines + lines[:9]))
        file.write("".join(f" {line[:-1]}\u00a0\n".replace("\t", " \t ") for line in lines[5:9]))
    pairs = [tuple(line.rstrip("\n").split("\t")) for line in lines]
    assert read_pairs(path) == list(dict.fromkeys(pairs))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("no tab\n", "line 201 has no tab"),
        ("one\t \n", "line 201 has a blank side"),
        ("one\t\u200b\n", "line 201 has a blank side"),
        ("\tzwei\n", "line 201 has a blank side"),
        ("\udcff\n", "byte 0xff is not UTF-8"),
        (None, "has 5 different pairs"),
    ],
    ids=str,
)
def test_a_bad_file_is_refused_in_one_line(mine, tmp_path, capsys, bad, words):
    lines = list(lines_of_pairs())
    text = "".join(lines) + bad if bad else "".join(lines[:5] * 100)
    mine.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert cli.main(["new", str(mine), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_directory_with_something_else_is_left_alone(mine, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("")
    with pytest.raises(ConfigError, match="holds something else"):
        make(mine, tmp_path / "out", SMALL)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious"]


def test_sizes_follow_from_the_number_of_pairs_alone():
    plans = [making.plan_for(n) for n in (100, 2_999, 3_000, 20_000, 60_000, 10**6)]
    for name in ("n_merges", "N", "d_model", "train_steps"):
        values = [getattr(plan, name) for plan in plans]
        assert values == sorted(values) and values[0] < values[-1], name
    assert [n_held_out(n) for n in (100, 1_000, 20_000, 10**6)] == [10, 20, 400, 500]
    assert [plan.augment for plan in plans] == [False] * 4 + [True] * 2
    for plan in plans:
        config = plan.train_config()
        assert config.augment == plan.augment
        assert config.train_steps // config.checkpoint_every >= plan.average
        assert config.keep_checkpoints >= plan.average


def test_a_vocabulary_is_found_for_a_small_text():
    pairs = [tuple(line.strip().split("\t")) for line in lines_of_pairs(100)]
    tokenizer = learn_vocabulary(pairs, 4000)  # there is not nearly as much to merge
    assert 400 < tokenizer.vocab_size < 1400
    assert tokenizer.pieces(tokenizer.encode("grün cat")) == ["\u2581grün", "\u2581cat"]


def test_a_plan_that_a_stranger_wrote_is_one_line(mine, tmp_path):
    plan = {**SMALL.to_dict(), "train_steps": "5"}
    stored = {"pairs": pairs_sha256(read_pairs(mine)), "plan": plan}
    (tmp_path / "plan.json").write_text(json.dumps(stored))
    words = "plan.json: train_steps must be int, got '5': remove .* and begin again"
    with pytest.raises(ConfigError, match=words):
        make(mine, tmp_path, SMALL)


def test_pairs_as_they_stand_are_held_against_their_own_references():
    """A rule that joins pairs changes the references, too: here a translator knows the old ones."""
    pairs = [tuple(line.strip().split("\t")) for line in lines_of_pairs(20)]
    translator = mock.Mock(translate=lambda texts: [dict(pairs).get(text, "x") for text in texts])
    row = making._as_typed(translator, Augmentation(pairs), "joined", pairs)
    assert row["before"] == pytest.approx(100) and row["after"] < 1


# The report


def test_a_report_shows_foreign_text_as_text():
    hostile = "<script>alert(1)</script> & <b>"
    log = [{"step": 5, "nll": 3.0}, {"step": 10, "nll": None}, {"step": 10, "valid_nll": 2.5}]
    counts = {"train": 7, "valid": 2, "test": 2}
    scores = report_scores(hostile)
    page = HtmlPage(report_page("mine<x>.tsv", counts, {"N": 3}, log, scores, 4.4))
    text = " ".join(data for _, data in page.texts)
    addresses = {row[name] for _, row in page.tags for name in ("src", "href") if name in row}
    assert page.open == [] and addresses == {"data:,", "page/index.html"}
    said = ["BLEU 12.3: <3.", "12.3", "nrefs:1|case:mixed", "1,234", "10 steps"]
    assert [words for words in (hostile, "mine<x>.tsv", *said) if words not in text] == []
    assert "9.9" not in text  # the BLEU of five pairs
    scores["as_typed"][0]["pairs"] = 50
    assert ">9.9<" in report_page("", counts, {}, log, scores, 4.4)
    assert text.count("reference:") == 2  # where the translation is another


def test_curves_lie_where_their_numbers_are():
    drawn = curves({"training": [(0, 4.0), (50, 2.0), (100, 0.0)], "validation": [(100, 1.0)]})
    first, second = (re.findall(r"[\d.]+", path) for path in re.findall(r'd="(M\d[^"V]*)"', drawn))
    (x0, y0, x1, y1, x2, y2), (x, y) = (map(float, path) for path in (first, second))
    assert x1 - x0 == pytest.approx(x2 - x1) and x == x2
    assert y1 - y0 == pytest.approx((y2 - y0) / 2) and y - y0 == pytest.approx((y2 - y0) * 3 / 4)


@pytest.mark.parametrize(
    ("losses", "names"),
    [((1.0, 1.0), ["a", "b"]), ((1.0, 1.02), ["b", "a"]), ((1.02, 1.0), ["a", "b"])],
)
def test_names_of_curves_do_not_lie_on_each_other(losses, names):
    drawn = curves({name: [(0, 4.0), (9, y)] for name, y in zip(("a", "b"), losses, strict=True)})
    first, second = map(float, re.findall(r'y="([\d.]+)" style', drawn))
    assert second - first >= 16
    assert re.findall(r">(a|b)</text>", drawn) == names


# All of it


@pytest.mark.slow
def test_a_stopped_command_goes_on_and_ends_as_one_that_was_not_stopped(mine, tmp_path):
    whole = make(mine, tmp_path / "whole", SMALL, progress=False)
    step = TrainingRun.step

    def stop(run, batches):
        if run.steps == 7:
            raise KeyboardInterrupt
        return step(run, batches)

    with mock.patch.object(TrainingRun, "step", stop), pytest.raises(KeyboardInterrupt):
        make(mine, tmp_path / "out", SMALL, progress=False)
    assert not (tmp_path / "out" / "model").exists()
    page, written, model = make(mine, tmp_path / "out", progress=False)  # its own plan
    weights = [load_tensors(path / "model.safetensors")[0] for path in (model, whole[2])]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
    assert written.read_text() == whole[1].read_text()
    assert (page.parent / "model.js").read_text() == (whole[0].parent / "model.js").read_text()


def test_ctrl_c_says_what_is_saved(mine, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(making, "plan_for", lambda n: SMALL)
    monkeypatch.setattr(making, "average_checkpoints", mock.Mock(side_effect=KeyboardInterrupt))
    command = ["new", str(mine), "--out", str(tmp_path / "out"), "--steps", "3", "--quiet"]
    assert cli.main(command) == 130
    said = "out is saved, and the same command goes on from there\n"
    assert capsys.readouterr().err.endswith(said)
    assert cli.main(command) == 130 and cli.main([*command, "--steps", "4"]) == 2
    assert "was begun with 3 steps: leave out --steps" in capsys.readouterr().err


def test_steps_and_minutes_keep_the_peak_of_the_rate(monkeypatch, capsys):
    pairs = [tuple(line.strip().split("\t")) for line in lines_of_pairs(100)]
    plan = SMALL.replace(train_steps=2000, warmup_steps=300)
    monkeypatch.setattr(making, "perf_counter", iter(range(100)).__next__)  # a step takes a second
    short, timed, long = (making._fitted(plan, pairs, *x) for x in ((20, 0), (0, 2), (9000, 0)))
    assert (short.train_steps, timed.train_steps, long.train_steps) == (20, 108, 9000)
    assert (short.warmup_steps, timed.warmup_steps, long.warmup_steps) == (4, 21, 300)
    said = re.findall(r"peak rate ([\d.]+); about (\d+) min", capsys.readouterr().err)
    peak = f"{0.9 / (16 * 300) ** 0.5:.2g}"  # equation 3 at the end of the plan's warm-up
    assert said == [(peak, "1"), (peak, "2"), (peak, "167")]


def test_a_test_file_shares_no_sentence_with_the_other_splits(tmp_path, capsys):
    pairs = [tuple(line.strip().split("\t")) for line in lines_of_pairs(150)]
    splits = making.split_by_group(pairs, 10)
    test = [(pairs[0][0].upper(), "neu"), ("new", f"{pairs[1][1]}!"), ("so", "so")]
    with_test = making._with_test(splits, test)
    assert with_test["test"] == test
    assert {*pairs} - {*with_test["train"], *with_test["valid"]} == {*pairs[:2]}
    assert "2 pairs share a sentence with the test file" in capsys.readouterr().err


@pytest.mark.slow
def test_all_is_made_of_pairs_that_stand_in_one_split(mine, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(making, "plan_for", lambda n: SMALL)
    command = ["new", str(mine), "--out", str(tmp_path / "out"), "--book", "../book/", "--quiet"]
    assert cli.main(command) == 0
    report = tmp_path / "out" / "report.html"
    assert "took 1 min." in report.read_text() and "new --half" in report.read_text()
    assert cli.main([*command, "--half"]) == 0
    half = json.loads((tmp_path / "out" / "half" / "score.json").read_text())["score"]
    assert f"every other pair the same plan comes to {half:.1f} BLEU" in report.read_text()
    told = capsys.readouterr()
    assert "180 pairs for train, 10 pairs for valid, 10 pairs for test" in told.err
    assert "12 steps of 300 tokens" in told.err and "11,088 weights; peak rate" in told.err
    assert told.err.endswith("page/index.html in a browser\n")
    *printed, score = told.out.splitlines()
    ends = ["page/index.html", "report.html", "model", "test.source", "test.reference"]
    assert printed == [*(paths := [f"{tmp_path / 'out' / end}" for end in ends]), score, *paths]
    assert "10 sentences): too few sentences to tell, 50 are needed, but it cannot" in score
    assert f"<p>{score}.</p>" in report.read_text()
    page = (tmp_path / "out" / "page" / "model.js").read_text(encoding="utf-8")
    assert '"book":"../book/"' in page
    stored = json.loads((tmp_path / "out" / "model" / "scores.json").read_text(encoding="utf-8"))
    sources, references, said = zip(*stored["translations"], strict=True)
    split = [Path(path).read_text(encoding="utf-8").splitlines() for path in paths[3:]]
    assert split == [list(sources), list(references)]
    assert len(sources) == n_held_out(len(read_pairs(mine)))
    model = tmp_path / "out" / "model"
    assert json.loads((model / "config.json").read_text())["corpus"] == mine.name  # no corpus's
    assert list(said) == Translator.from_checkpoint(model, device="cpu").translate(list(sources))
    assert stored["scores"]["BLEU"]["score"] == bleu(said, references).score
    card = our_own.export_checkpoint(model, tmp_path / "export") / "README.md"
    assert f"| BLEU | {stored['scores']['BLEU']['score']:.2f} |" in card.read_text()
    typed = {row["rule"]: row for row in stored["as_typed"]}
    assert {"small_letters", "slips", "joined"} <= typed.keys() and "numbers" not in typed
    assert all(len(row["worst"]) <= 2 and row["pairs"] <= len(sources) for row in typed.values())
    assert stored["parameters"] == sum(p.numel() for p in load_model(model)[0].parameters())
    del stored["as_typed"]  # as an older version wrote it
    (tmp_path / "out" / "model" / "scores.json").write_text(json.dumps(stored), encoding="utf-8")
    assert cli.main(command) == 2 and "lacks 'as_typed': remove it" in capsys.readouterr().err
    mine.write_text("".join(lines_of_pairs(seed=2)), encoding="utf-8")
    assert cli.main(command) == 2 and "begun with other pairs" in capsys.readouterr().err
