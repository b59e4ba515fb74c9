"""The benchmarks run at toy size, count what PyTorch counts,
and compare with peers that compute the same function."""

import importlib
import inspect
import json
import math
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer.checkpoint.directory import read_config
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.data.batching import make_batch
from annotated_transformer.model.transformer import Transformer
from benchmarks import (
    against,
    compound_split,
    decoders,
    decoding,
    multi30k_runs,
    on_a_gpu,
    peers,
    recipes,
    timing,
    visitors,
)
from lab.experiments.result_file import read_result
from tools.page_engine import NODE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SOURCES = {path.stem: path.read_text("utf-8") for path in (ROOT / "benchmarks").glob("*.py")}
PROGRAMS = sorted(name for name, source in SOURCES.items() if "def main(" in source)


def rehearse(program, *arguments):
    """Run it at toy size, as it is typed at the repository's root; what it printed."""
    command = [sys.executable, f"benchmarks/{program}.py", "--small", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment
    ).stdout


def rehearsed(folder, program, *arguments):
    """The result file of a rehearsal, and what it printed."""
    printed = rehearse(program, "--out", folder / "out.json", *arguments)
    return read_result(folder / "out.json"), printed


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


def test_a_name_is_what_training_does_not_know():
    pair = "Priya met Tom in Rome.", "Priya traf Tom in Rom."
    assert visitors.names_of(pair, {"Tom"}) == ["Priya"]


def test_names_are_counted_from_both_languages():
    pairs = [("Priya met Tom.", "Priya traf Tom."), ("I saw Imre.", "Ich sah Imre.")]
    kept = {"train": [("Tom", "Tom")], "names": pairs, "numbers": [], "to_substitute": []}
    kept["numbers"] = kept["to_substitute"] = [("at 7", "um 7")]
    rows = visitors.copying_rows(lambda lines: lines, kept, lambda lines: [lines[0], "I saw him."])
    assert [*rows.values()][2:] == ["2 of 2 (100.0%)", "1 of 2 (50.0%)"]


def test_a_file_of_cases_is_counted_by_kind(tmp_path, capsys):
    cases = [
        {"kind": "a", "source": "Hi.", "must": ["hallo"], "must_not": []},
        {"kind": "a", "source": "Bye.", "must": ["hallo"], "must_not": []},
        {"kind": "b", "source": "No.", "must": [], "must_not": ["nein"]},
        {"kind": "b", "source": "Again.", "must": ["hallo"], "must_not": []},
    ]
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(f"{json.dumps(case)}\n" for case in cases), encoding="utf-8")
    said = {"Hi.": "Hallo.", "Bye.": "Tschüs.", "No.": "Nein.", "Again.": "hallo " * 5}
    rows = visitors.case_rows(lambda sources: [said[source] for source in sources], path)
    assert [*rows.values()] == ["1 of 2 (50.0%)", "0 of 2 (0.0%)", "1 of 4 (25.0%)"]
    assert capsys.readouterr().err.count("->") == 3


@pytest.mark.parametrize("name", multi30k_runs.RUNS)
def test_multi30k_runs_have_settings_that_train_takes(name):
    run = multi30k_runs.RUNS[name]
    shape, way = ({field.name for field in fields(kind)} for kind in (ModelConfig, TrainConfig))
    for settings, *_ in run.stages:
        assert settings.keys() <= shape | way
        ModelConfig(run.vocab_size, **{name: settings[name] for name in settings.keys() & shape})
        trained = TrainConfig(**{name: settings[name] for name in settings.keys() & way})
        assert trained.accumulate == (1 if name == "tutorial" else 2)  # for two processes


def test_a_ratio_above_one_says_that_this_tree_is_faster():
    here, there = (
        Mock(names=["work"], seconds=Mock(side_effect=seconds))
        for seconds in ([9.0, 2.0, 1.0, 4.0], [1.0, 3.0, 2.0, 5.0])
    )
    assert against.compare(here, there, rounds=3) == {"work": 1.5}


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


def test_the_training_benchmark_runs_at_toy_size_and_says_where_it_comes_from(tmp_path):
    options = ["--peer", "torch.nn.Transformer", "--precision", "auto"]
    result, _ = rehearsed(tmp_path, "training", *options)
    assert "python benchmarks/training.py --small --out" in result["command"]
    steps = of_measure(result["records"], "training step")
    names = ["annotated_transformer", "torch.nn.Transformer"]
    assert [record["implementation"] for record in steps] == names
    assert [record["precision"] for record in steps] == ["fp32", "fp32"]  # it is a small model
    assert steps[0]["ours_is_faster"] == 1 and steps[1]["logits_differ_by"] < 1e-4
    memory = of_measure(result["records"], "peak memory")
    assert [record["implementation"] for record in memory] == names
    assert all(record["peak_megabytes"] >= record["before_megabytes"] > 0 for record in memory)


def test_the_decoding_benchmark_compares_at_toy_size(tmp_path):
    records = rehearsed(tmp_path, "decoding", "--model", "base")[0]["records"]
    assert of_measure(records, "decoding") == records
    sizes = {(record["beam_size"], record["batch_size"]) for record in records}
    assert sizes == {(1, 1), (1, 64), (4, 1), (4, 64)}
    found = {record["implementation"] for record in records}
    assert {"annotated_transformer", "annotated_transformer int8"} <= found
    for record in records:  # forced: as long as the source
        tokens = record["tokens_per_s"] * record["seconds"] / record["sentences"]
        assert tokens == pytest.approx(6)


def test_the_searches_for_a_gpu_find_the_same():
    model, sources, forced = decoding.material("base", small=True)
    ours = {
        label: build(model, forced)
        for label, (package, build) in decoders.ON_GPU.items()
        if package == "torch"
    }
    assert set(ours) == {"annotated_transformer", "annotated_transformer float16"}
    for search in ours.values():
        assert {len(output) for output in search(sources, 4)} == {6}


@pytest.mark.skipif(not NODE, reason="no node on this machine")
def test_the_page_is_held_to_python_and_timed(tmp_path):
    result, printed = rehearsed(tmp_path, "page")
    found = by_figure(result["records"])
    assert found["weight"]["bytes"] <= 8e6 and f"bytes {found['weight']['bytes']}" in printed
    for name in ("tokenizer ids", "greedy ids", "beam 4 ids"):
        assert found[name]["same"] == found[name]["of"] > 0
    assert found["time"]["ms a token, greedy, median"] > 0


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


def test_what_is_unsure_is_calibrated_without_touching_the_checkpoint(tmp_path):
    config = ROOT / "book" / "model" / "config.json"
    before = config.read_bytes()
    result, printed = rehearsed(tmp_path, "unsure")
    whole, *others = result["records"]
    assert whole["figure"] == "unsure" and f"unsure_below {whole['unsure_below']}" in printed
    figures = [record["figure"] for record in others]
    assert figures[:3] == ["number wrong", "name wrong", "loop wrong"]
    assert figures[3].startswith("kind: ") and figures[-1] == "references"
    assert config.read_bytes() == before


def test_the_stored_figures_of_unsure_are_as_good_as_we_say():
    found = by_figure(stored("unsure"))
    whole, judged = found["unsure"], found["judged by reading"]
    doubt = read_config(ROOT / "book" / "model")["doubt"]
    assert whole["unsure_below"] == doubt["unsure_below"]
    for record in (whole, judged):
        assert record["area under the curve"] >= 0.8 and record["of right ones, unsure"] <= 0.05
    assert judged["right"] + judged["wrong"] == 300
    assert whole["precision of unsure"] >= 0.8 and min(whole["right"], whole["wrong"]) >= 100


def test_the_stored_run_beats_the_tutorial_with_fewer_parameters_on_its_metric():
    (record,) = stored("multi30k_tutorial")
    published, test = record["published"], record["test"]
    assert (published["BLEU"], published["parameters"]) == (36.52, 9_038_341)
    assert record["languages"] == ["de", "en"] and record["parameters"] <= published["parameters"]
    assert test["BLEU"]["score"] > published["BLEU"] and "tok:none" in test["BLEU"]["signature"]
    assert test["perplexity_per_word"] > published["perplexity"] == 5.316  # as 6.1 says


SIZES = dict(N=4, d_model=128, d_ff=256, h=4, p_drop=0.3)


def test_the_stored_run_of_transformer_tiny_reaches_the_published_figure():
    (record,) = stored("multi30k_tiny")
    published, found = record["published"], record["test"]["BLEU"]
    assert (published["BLEU"], found["reference_tokens"]) == (41.02, published["reference_tokens"])
    assert record["languages"] == ["en", "de"] and "tok:none" in found["signature"]
    sizes = dict(N=4, d_model=128, d_ff=256, h=4, p_drop=0.3).items()
    assert record["training"]["settings"]["model"].items() >= sizes
    assert record["by_alpha"]["valid"][0]["alpha"] == record["test"]["as_it_is"]["alpha"] == 0.6
    assert published["BLEU"] < found["score"] < published["BLEU"] + found["half_interval"]
    stages = [stage["test"]["score"] for stage in record["averages_before"]]
    assert stages == sorted(stages) and len(stages) == 2 and stages[-1] < published["BLEU"]
    of_seeds = stored("multi30k_tiny_published")  # in one stage, as the published run
    plain = sorted(one["test"]["BLEU"]["score"] for one in of_seeds)
    assert len(plain) == 3 and plain[0] < published["BLEU"] < plain[-1] < found["score"]
    for one in of_seeds:
        assert one["test"]["BLEU"]["reference_tokens"] == found["reference_tokens"]
        assert one["further_stages"] == [] and one["training"]["steps"] == 8000
        assert one["training"]["settings"]["model"].items() >= sizes
    (cased,) = stored("multi30k_tiny_cased")
    scores = cased["test"]["BLEU"]
    assert "case:mixed" in scores["signature"] and "tok:13a" in scores["signature"]
    assert 30 < scores["score"] < found["score"]


def test_the_benchmark_of_shards_encodes_every_pair_and_plans_every_batch(tmp_path):
    encoding, training = rehearsed(tmp_path, "shards", "--jobs", "1")[0]["records"]
    assert encoding["pairs"] == 1000 and encoding["cpu_seconds"] > 0
    assert training["pairs"] == 3000 and training["batches"] > 20
    assert training["megabytes_above"] < 100 < training["megabytes_of_the_model"]
    assert training["seconds_opening"] > 0 and training["seconds_middle"] > 0


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


def test_the_gpu_benchmark_is_rehearsed_and_a_compiled_step_is_one_graph(tmp_path):
    """A CPU at toy size measures nothing of worth, but no shape makes a second graph there."""
    records = rehearsed(tmp_path, "gpu", "--device", "cpu")[0]["records"]
    measures = [
        "first epoch", "batching", "attention", "matrix product", "training step", "waiting",
    ]  # fmt: skip
    # What is cold comes first, and what is compiled last.
    assert list(dict.fromkeys(record["measure"] for record in records)) == measures
    (waiting,) = of_measure(records, "waiting")
    assert (waiting["graphs_before"], waiting["graphs_after_warm_up"]) == (1, 0)
    assert waiting["shapes"] > 5


def test_what_waits_for_a_gpu_is_rehearsed_and_a_part_that_fails_stops_no_other(
    monkeypatch, tmp_path, capsys
):
    """`gpu` has a test of its own, and the tables are rehearsed with the experiments."""
    parts = ["chapter_6_1", "multi30k"]
    small = ["--small", "--out", str(tmp_path), "--parts", *parts]
    assert on_a_gpu.main(small) == 0, capsys.readouterr()
    ended = read_result(tmp_path / "parts.json")["records"]
    assert [(one["part"], one["status"]) for one in ended] == [(name, 0) for name in parts]
    [model] = read_result(tmp_path / "multi30k_small_gpu.json")["records"]
    assert model["corpus"] == "reverse" and model["stages"][0]["steps"] == 4
    broken = {"gpu": ["benchmarks.no_such"], "multi30k": ["benchmarks.recipes"]}
    monkeypatch.setattr(on_a_gpu, "parts", lambda *_, **__: broken)
    assert on_a_gpu.main(["--small", "--out", str(tmp_path / "second")]) == 1
    ended = read_result(tmp_path / "second" / "parts.json")["records"]
    assert [one["status"] == 0 for one in ended] == [False, True]


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


def test_a_rehearsal_or_a_part_is_written_only_where_it_is_told_to(tmp_path):
    def place(small, is_whole, out=None):
        return timing.out_path(SimpleNamespace(small=small, out=out), "page", is_whole)

    assert place(False, True) == ROOT / "book" / "results" / "page.json"
    assert place(True, True) is place(False, False) is None
    assert place(True, False, tmp_path) == tmp_path


def test_the_length_penalty_is_chosen_on_the_validation_split(monkeypatch):
    bleu = {("valid", "0.6"): 30.0, ("valid", "1.4"): 31.0, ("test", "1.4"): 29.0}

    def command(*words):
        split, alpha = (words[words.index(name) + 1] for name in ("--split", "--alpha"))
        return json.dumps({"BLEU": {"score": bleu[split, alpha]}, "alpha": float(alpha)})

    monkeypatch.setattr(recipes, "command", command)
    found = recipes.chosen_alpha(["evaluate", "model"], (0.6, 1.4))
    assert found["alpha"] == 1.4
    assert found["test"] == {"BLEU": {"score": 29.0}, "alpha": 1.4}
    assert found["valid"] == [{"alpha": 0.6, "BLEU": 30.0}, {"alpha": 1.4, "BLEU": 31.0}]
