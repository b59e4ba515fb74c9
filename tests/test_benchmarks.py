"""The benchmarks run at toy size, count what PyTorch counts,
and compare with peers that compute the same function."""

import importlib
import inspect
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer.checkpoint.directory import read_config
from annotated_transformer.config import ModelConfig
from annotated_transformer.data.batching import make_batch
from annotated_transformer.extras.visitors.typed_lines import TypedTranslation
from annotated_transformer.model.transformer import Transformer
from benchmarks import (
    compound_split,
    peers,
    timing,
    unsure,
    visitors,
)
from lab.experiments.result_file import read_result
from tools.page_engine import NODE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SOURCES = {path.stem: path.read_text("utf-8") for path in (ROOT / "benchmarks").glob("*.py")}
PROGRAMS = sorted(name for name, source in SOURCES.items() if "def main(" in source)


def stored(name):
    return read_result(ROOT / "book" / "results" / f"{name}.json")["records"]


def of_measure(records, measure):
    return [record for record in records if record["measure"] == measure]


def by_figure(records):
    return {record["figure"]: record for record in records}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_nothing_when_it_is_imported_and_takes_its_arguments(name):
    module = importlib.import_module(f"benchmarks.{name}")
    assert list(inspect.signature(module.main).parameters) == ["arguments"]
    with pytest.raises(SystemExit) as left:
        module.main(["--no-such-option"])
    assert left.value.code == 2


def test_every_program_is_told_of_and_the_path_is_touched_in_one_place():
    said = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    assert sorted(name for name in SOURCES if f"`{name}.py`" in said) == PROGRAMS
    assert [name for name, source in SOURCES.items() if "sys.path" in source] == ["__init__"]


@pytest.mark.parametrize(
    ("source", "translation", "is_right"),
    [
        ("12 eggs and 2 litres", "Zwölf Eier und 2 Liter", True),
        ("12 eggs and 2 litres", "12 Eier und Liter", False),
        ("2 of 22", "22 von 22", False),
        ("at 2:30", "um halb drei", True),
        ("at 2:30", "um 2.30 Uhr", True),
        ("at 2:30", "um 3.20 Uhr", False),
        ("3,500 books", "3.500 Bücher", True),
        ("21 of 121 or 1984", "einundzwanzig von hunderteinundzwanzig, 1984", True),
        ("in 345678", "in dreihundertfünfundvierzigtausendsechshundertachtundsiebzig", True),
    ],
)
def test_a_number_is_right_in_digits_or_as_a_word(source, translation, is_right):
    assert visitors.has_numbers(source, translation) == is_right


def test_operations_of_a_step_are_those_that_pytorch_counts():
    config = ModelConfig(50, N=2, d_model=32, d_ff=64, h=4, d_k=4, d_v=12)
    batch = make_batch([([5] * 6, [6] * 9)])
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        source, target = (torch.zeros(t.shape, dtype=torch.long) for t in batch[:2])
        Transformer(config)(source, target).sum().backward()
    assert timing.step_operations(config, [(7, 10)]) == counter.get_total_flops()


def test_how_much_faster_is_a_median_of_neighbours_in_time():
    """A clock that slows down tenfold half-way changes nothing."""
    assert timing.times_faster([1, 1, 10, 10, 10], [2, 2, 20, 20, 30]) == 2


def test_the_peer_from_pytorch_computes_our_function_and_learns():
    torch.manual_seed(0)
    model = Transformer(ModelConfig(60, N=2, d_model=32, d_ff=64, h=4))
    batch = make_batch(timing.sentences(6, 60))
    peer = peers.build("torch.nn.Transformer", model)
    assert peers.unlike(peer, model, batch) < 1e-4
    assert peer.module.training
    step = peer.trainer("bf16")
    for _ in range(3):
        step(batch)
    assert peers.unlike(peer, model, batch) > 1e-3  # its weights have moved, ours have not


def check_training(records):
    ours, peer = of_measure(records, "training step")
    assert ours["ours_is_faster"] == 1 and peer["logits_differ_by"] < 1e-4
    assert {ours["precision"], peer["precision"]} == {"fp32"}  # it is a small model
    memory = of_measure(records, "peak memory")
    assert all(record["peak_megabytes"] >= record["before_megabytes"] > 0 for record in memory)


def check_decoding(records):
    sizes = {(record["beam_size"], record["batch_size"]) for record in records}
    assert sizes == {(1, 1), (1, 64), (4, 1), (4, 64)}
    for record in records:  # forced: as long as the source
        tokens = record["tokens_per_s"] * record["seconds"] / record["sentences"]
        assert tokens == pytest.approx(6)


def check_page(records):
    found = by_figure(records)
    for name in ("tokenizer ids", "greedy ids", "beam 4 ids"):
        assert found[name]["same"] == found[name]["of"] > 0


def check_unsure(records):
    figures = [record["figure"] for record in records]
    assert figures == ["unsure", "from English", "from German"]


def check_shards(records):
    encoding, training = records
    assert encoding["pairs"] == 1000 and training["pairs"] == 3000 and training["batches"] > 20
    assert training["megabytes_above"] < 100 < training["megabytes_of_the_model"]


def check_gpu(records):
    """A CPU at toy size measures nothing of worth, but no shape makes a second graph there."""
    (waiting,) = of_measure(records, "waiting")
    assert (waiting["graphs_before"], waiting["graphs_after_warm_up"]) == (1, 0)
    assert waiting["shapes"] > 5


REHEARSALS = {
    "training": ("--peer torch.nn.Transformer --precision auto", check_training),
    "decoding": ("--model base", check_decoding),
    "page": ("", check_page),
    "unsure": ("", check_unsure),
    "shards": ("--jobs 1", check_shards),
    "gpu": ("--device cpu", check_gpu),
}
"""The programs that write a file, options that need no peer and no GPU, and the file's check."""


@pytest.mark.parametrize("program", REHEARSALS)
def test_a_program_is_rehearsed_as_it_is_typed_and_its_file_says_how(program, tmp_path):
    if program == "page" and not NODE:
        pytest.skip("no node on this machine")
    out = str(tmp_path / "out.json")
    options, check = REHEARSALS[program]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, f"benchmarks/{program}.py", "--small", "--out", out]
    model = (ROOT / "book" / "model" / "config.json").read_bytes()
    subprocess.run([*command, *options.split()], check=True, cwd=ROOT, env=environment)
    result = read_result(out)
    assert f"python benchmarks/{program}.py --small --out" in result["command"]
    assert (ROOT / "book" / "model" / "config.json").read_bytes() == model
    check(result["records"])


def test_the_stored_figures_of_the_page_are_as_good_as_we_say():
    records = stored("page")
    found = by_figure(records)
    simd, plain = [record for record in records if record["figure"] == "time"]
    assert found["weight"]["bytes"] <= 8e6
    assert found["tokenizer ids"]["same"] == found["tokenizer ids"]["of"] == 10_000
    assert found["greedy ids"]["same"] == found["greedy ids"]["of"] == 1000
    assert found["beam 4 ids"]["same"] >= 0.99 * found["beam 4 ids"]["of"]
    for name in ("greedy ids", "beam 4 ids"):
        assert abs(found[name]["BLEU"] - found[name]["BLEU in float32"]) <= 0.3
    assert simd["ms a token, greedy, median"] <= 2 and plain["ms a token, greedy, median"] <= 8
    assert all(way["ms a sentence, beam 4, median"] <= 250 for way in (simd, plain))


def test_thresholds_are_fitted_on_other_lines_than_they_are_judged_on():
    """Of each direction the first, third, ... line fits."""
    fitted = [(p / 100, True) for p in range(100)]
    judged = [(0.01, False), (0.05, False), *[(0.9, True)] * 98]
    english = [case for both in zip(fitted, judged, strict=True) for case in both]
    german = [(0.5, True), (0.02, False)]
    lines = [{"right": right, "back": case_of is german}
             for case_of in (english, german) for _, right in case_of]  # fmt: skip
    best = [TypedTranslation("", 0.0, 0.0, mean_p=mean_p) for mean_p, _ in english + german]
    whole, from_english, from_german = unsure.figures(lines, best)
    assert (whole["unsure_below"], whole["perhaps_below"]) == (0.03, 0.1)
    assert (whole["right"], whole["wrong"], from_german["wrong"]) == (98, 3, 1)
    assert (whole["of right ones, perhaps"], whole["of wrong ones, perhaps"]) == (0, 1)
    assert (from_english["of wrong ones, unsure"], from_german["of wrong ones, unsure"]) == (0.5, 1)


def test_the_stored_figures_of_unsure_are_as_good_as_we_say():
    found = by_figure(stored("unsure"))
    whole = found["unsure"]
    doubt = read_config(ROOT / "book" / "model")["doubt"]
    for name in ("unsure_below", "perhaps_below"):
        assert whole[name] == doubt[name]
    assert whole["right"] + whole["wrong"] == 300
    assert min(found[name]["area under the curve"] for name in found) >= 0.75


def test_the_stored_run_beats_the_tutorial_with_fewer_parameters_on_its_metric():
    (record,) = stored("multi30k_tutorial")
    published, test = record["published"], record["test"]
    assert (published["BLEU"], published["parameters"]) == (36.52, 9_038_341)
    assert record["languages"] == ["de", "en"] and record["parameters"] <= published["parameters"]
    assert test["BLEU"]["score"] > published["BLEU"] and "tok:none" in test["BLEU"]["signature"]
    assert test["perplexity_per_word"] > published["perplexity"] == 5.316  # as 6.1 says


def test_bleu_with_compounds_split_counts_the_parts_of_a_word(tmp_path, capsys):
    """By hand: of 6 words and of 12 parts all but the last match."""
    (tmp_path / "ours").write_text("die EU-Kommission prüft den Rhein-Main-Plan genau\n")
    (tmp_path / "theirs").write_text("die EU-Kommission prüft den Rhein-Main-Plan sehr\n")
    words = [str(tmp_path / "ours"), "--reference", str(tmp_path / "theirs"), "--tokens", "13a"]
    compound_split.main(words)
    found = json.loads(capsys.readouterr().out)
    parts = ["die", "EU", "-", "Kommission", "prüft", "den", "Rhein", "-", "Main", "-", "Plan"]
    for score, right in (("compound-split", len(parts)), ("sacreBLEU", 5)):
        by_hand = 100 * math.prod((right - n) / (right + 1 - n) for n in range(4)) ** 0.25
        assert found[score]["score"] == pytest.approx(by_hand)
    assert "tok:none" in found["compound-split"]["signature"] and found["sentences"] == 1


def test_the_stored_results_say_what_the_readme_says():
    ours = "annotated_transformer"
    for r in of_measure(stored("training_cpu"), "training step"):
        assert (r["logits_differ_by"] or 0) < 1e-3
        is_small = r["model"] == "tiny"
        assert r["share_in_products"] > (0 if is_small else 0.8)
        if r["implementation"] != ours:
            assert r["ours_is_faster"] > (1.05 if is_small else 0.95)
    memory = of_measure(stored("training_cpu"), "peak memory")
    assert all(r["ours_over_it"] < 1 for r in memory if r["implementation"] != ours)


def test_the_stored_decoding_says_what_the_readme_says():
    decoding_cpu = stored("decoding_cpu")
    slower = ("Hugging Face", "torch.nn", "JoeyNMT")
    for r in decoding_cpu:
        if r["measure"] == "decoding" and "int8" not in r["implementation"]:
            if r["implementation"].startswith("CTranslate2"):
                assert r["same_outputs"] >= 0.95
            if r["implementation"].startswith(slower):
                assert r["ours_is_faster"] > 1
    in_float32, in_int8 = (r["bleu"] for r in of_measure(decoding_cpu, "BLEU"))
    assert abs(in_float32 - in_int8) < 0.5
