"""The page on WMT 2014: its commands run, small, on text of that form, a slice of the real one."""

import contextlib
import gzip
import html
import io
import json
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from annotated_transformer.checkpoint.directory import read_config
from annotated_transformer.command_line import entry_point as cli
from annotated_transformer.command_line.train_verb import run_settings
from annotated_transformer.config import ModelConfig, count_parameters
from annotated_transformer.data import corpus
from annotated_transformer.data.parallel_text import load_files
from annotated_transformer.extras.shards.reading import Shards
from benchmarks import compound_split
from lab.experiments.result_file import read_result
from lab.gpu_rates import hours, measured_share
from toys import text_pairs

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "book" / "wmt14.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, flags=re.M | re.S)
REAL_DATA = Path(os.environ.get("ANNOTATED_TRANSFORMER_DATA", "nowhere"), "wmt_slice")
SMALL = [
    "N=1", "d_model=16", "d_ff=32", "h=2", "train_steps=10", "checkpoint_every=2",
    "max_tokens=1500", "warmup_steps=9",
]  # fmt: skip


def commands():
    """The words of each line of shell, pip and mkdir aside."""
    shell = "".join(block for kind, block in BLOCKS if kind == "sh").replace("\\\n", " ")
    lines = [shlex.split(line) for line in shell.splitlines()]
    return [words for words in lines if words[0] not in ("pip", "mkdir")]


def some_pairs():
    """Pairs and the size of a vocabulary that they can fill."""
    if not (REAL_DATA / "train.en.gz").exists():
        return text_pairs(1, 300), 340
    files = (REAL_DATA / f"train.{language}.gz" for language in ("en", "de"))
    pairs = [(html.unescape(x), html.unescape(y)) for x, y in load_files(*files)]
    return [pair for pair in pairs if max(map(len, pair)) < 120][:300], 600


@pytest.mark.slow
def test_its_steps_run_from_download_to_scores(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wmt14").mkdir()
    pairs, vocab_size = some_pairs()
    cuts = {"train": pairs[:-8], "valid": pairs[-8:-4], "test": pairs[-4:]}
    with monkeypatch.context() as patched:
        patched.setattr(corpus, "stream", lambda name, split: iter(cuts[split]))
        for kind, block in BLOCKS:
            if kind == "python":
                exec(block, {})  # the page's own words
    assert all(corpus.load("wmt14-en-de", split, "wmt14") == cut for split, cut in cuts.items())
    printed = {}
    for program, *words in commands():
        verb = words[0]
        more = {
            "prepare": ["--quiet", "--jobs", "1"],
            "train": ["--quiet", *(w for s in SMALL for w in ("--set", s))],
            "evaluate": ["--quiet"],
        }.get(verb, [])
        words = [{"37000": str(vocab_size), "cuda": "cpu"}.get(word, word) for word in words]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            if program == "python":
                assert words.pop(0) == "benchmarks/compound_split.py"
                compound_split.main([*words, "--tokens", "13a"])  # sacremoses need not be there
            else:
                assert program == "annotated-transformer"
                assert cli.main([*words, *more]) == 0, verb
        printed[verb] = out.getvalue()
    shards = Shards("shards/wmt14-en-de")
    assert len(shards) == 292 and shards.manifest.revision == corpus.get("wmt14-en-de").revision
    assert json.loads(printed["prepare"])["pairs_sha256"] == shards.pairs_sha256
    assert read_config("runs/wmt14-averaged")["corpus"] == "wmt14-en-de"
    assert printed["evaluate"].startswith("BLEU") and "tok:13a" in printed["evaluate"]
    scores = json.loads(printed["benchmarks/compound_split.py"])
    assert scores["sentences"] == 4 and scores["sacreBLEU"]["signature"] in printed["evaluate"]
    with gzip.open("wmt14/test.jsonl.gz", "rt", encoding="utf-8") as file:
        assert len(file.readlines()) == 4


def test_its_settings_are_those_of_the_papers_base(tmp_path):
    words = next(words[1:] for words in commands() if words[1] == "train")
    words = [word for word in words if word not in ("--shards", "shards/wmt14-en-de")]
    options = cli.parser().parse_args([*words, "--vocab-size", "37000"])
    model, plan, _ = run_settings(options, tmp_path / "run")
    assert model == ModelConfig.base(vocab_size=37_000)
    assert (plan.train_steps, plan.max_tokens, plan.warmup_steps) == (100_000, 25_000, 4000)
    evaluate = next(words[1:] for words in commands() if words[1] == "evaluate")
    chosen = cli.parser().parse_args(evaluate)
    assert (chosen.beam_size, chosen.alpha, chosen.max_extra) == (4, 0.6, 50)


def row(label):
    line = next(line for line in TEXT.splitlines() if line.startswith(f"| {label}"))
    cells = (cell.replace(",", "") for cell in line.split("|")[2:-1])
    return [float(found[0]) for cell in cells if (found := re.search(r"[\d.]+", cell))]


def both(label):
    """Of a row with two numbers in each cell those of eager steps, then those of compiled ones."""
    line = next(line for line in TEXT.splitlines() if line.startswith(f"| {label}"))
    cells = [cell.split("/") for cell in line.split("|")[2:-1]]
    return [[float(cell[i]) for cell in cells] for i in (0, 1)]


def bytes_of_a_run(n_parameters, n_checkpoints):
    """Checkpoints and the weights in use; in each of two states weights and two moments."""
    return 4 * n_parameters * (n_checkpoints + 1) + 2 * 12 * n_parameters


def test_its_plan_in_numbers_follows_from_counts():
    """52 tokens and 107 bytes of gzip a pair; 6 operations a parameter and token."""
    german, french = (corpus.get(f"wmt14-en-{x}").pairs["train"] for x in ("de", "fr"))
    assert row("training pairs") == [german, french]
    assert row("text on disk") == pytest.approx([107 * n / 1e9 for n in (german, french)], abs=0.05)
    sizes = [n * (2 * 51.7 + 16) / 1e9 for n in (german, french)]
    assert row("shards") == pytest.approx(sizes, 0.01)
    configs = ModelConfig.base(37_000), ModelConfig.big(37_000), ModelConfig.big(32_000)
    base, big, big_french = map(count_parameters, configs)
    on_disk = [bytes_of_a_run(base, 5), bytes_of_a_run(big, 20), bytes_of_a_run(big_french, 20)]
    assert row("a run's directory") == [round(n / 1e9, 1) for n in on_disk]
    operations = [6 * base * 25e3 * 1e5, 6 * big * 25e3 * 3e5, 6 * big_french * 25e3 * 3e5]
    [price] = map(int, re.findall(r"a price of (\d+) dollars", TEXT))
    for compiled in (False, True):
        a100, h100 = (
            np.array([hours(n, gpu, compiled) for n in operations])
            for gpu in ("A100 80GB", "H100 SXM")
        )
        assert both("hours on one A100")[compiled] == pytest.approx(a100, rel=0.02)
        assert both("hours on one H100")[compiled] == pytest.approx(h100, rel=0.03)
        assert both("hours on eight H100")[compiled] == pytest.approx(h100 / 8, abs=0.05)
        assert both("GPU-hours on H100")[compiled] == [round(price * h) for h in h100]
    for compiled, name in ((False, "eager"), (True, "compiled")):
        assert f"{measured_share(compiled):.0%}".replace("%", f" percent with {name}") in TEXT
    passes = (1e5, german), (3e5, german), (3e5, french)
    assert row("times through") == [round(n * 25e3 / (pairs * 27.3)) for n, pairs in passes]


def test_the_run_on_a_slice_is_told_as_it_was():
    result = read_result(ROOT / "book" / "results" / "wmt_slice_training.json")["records"][0]
    scored = result["test"]
    right, wrong = scored["perplexity"], scored["perplexity with other sources"]
    told = " ".join(TEXT.split())
    assert f"{result['training']['steps']:,} steps" in told
    assert f"{right:.0f} with the right" in told
    assert f"{wrong:.0f} with other" in told
    assert f"(BLEU {scored['sacreBLEU']['score']:.1f})" in told


def test_its_measured_figures_are_those_of_the_result_file():
    encoding, *training = read_result(ROOT / "book" / "results" / "shards.json")["records"]
    for record in training:
        label = f"{record['pairs']:,} | "
        assert row(label) == [round(record["megabytes_above"])]
        assert record["megabytes_above"] < 300
    speed = encoding["pairs"] / encoding["cpu_seconds"]
    assert f"took {encoding['cpu_seconds']:.0f} seconds of CPU for a million short pairs" in TEXT
    assert f"{encoding['tokens'] / encoding['pairs']:.0f} tokens each" in TEXT
    assert f"{round(speed, -3):,.0f} pairs per second of CPU" in TEXT
    assert f"{encoding['peak_megabytes']:.0f} MB for" in TEXT
