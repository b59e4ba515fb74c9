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
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer.checkpoint.directory import read_config
from annotated_transformer.checkpoint.weights import load_tensors, save_tensors
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.data.batching import make_batch
from annotated_transformer.decoding.translator import Translation
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training.run import TrainingRun
from benchmarks import (
    against,
    compound_split,
    decoders,
    decoding,
    gpu,
    multi30k,
    multi30k_runs,
    on_a_gpu,
    peers,
    recipes,
    soak,
    timing,
    unsure,
    visitors,
    wmt_slice,
    wmt_slice_training,
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


def two_texts(folder, n, line):
    """Two files of n lines in two languages."""
    files = [folder / language for language in ("en", "de")]
    for file in files:
        lines = (line(file.name, i) for i in range(n))
        file.write_text("\n".join(lines), encoding="utf-8")
    return map(str, files)


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


def test_a_stage_goes_on_from_the_average_of_the_one_before(monkeypatch, tmp_path):
    """The package's commands are pretended: each is noted, and leaves the files it would leave."""
    called = []

    def command(verb, *words, processes=1):
        begun = [Path(word).name for one, word in pairwise(words) if one == "--init"]
        called.append((verb, *begun))
        if "--out" in words:
            out = Path(words[words.index("--out") + 1])
            out.mkdir(parents=True, exist_ok=True)
            (out / "config.json").write_text('{"model": {}, "train": {"seed": 1}}')
            line = '{"step": 1, "loss": 2.0, "nll": 1.0, "tokens_per_s": 9}'
            (out / "log.jsonl").write_text(line)
        return '{"BLEU": {"score": 30.0}}'

    stages = (recipes.Stage(("--set", "N=1"), 2), recipes.Stage(("--set", "N=2"), 3, copies=1))
    recipe = recipes.Recipe("two sittings", "reverse", stages)
    monkeypatch.setattr(recipes, "RECIPES", {"long": recipe})
    monkeypatch.setattr(recipes, "ROOT", tmp_path)
    monkeypatch.setattr(recipes, "command", command)
    monkeypatch.setattr(recipes.own_text, "write_files", lambda *_: ("--train", "en", "de"))
    results = []
    monkeypatch.setattr(recipes, "write_result", lambda *words, **more: results.append(words[2][0]))
    recipes.main(["long", "--runs", str(tmp_path)])
    scored = [("average",), ("evaluate",), ("evaluate",), ("inspect",)]
    assert called == [("train",), ("average",), ("train", "long-1-averaged"), *scored]

    called.clear()
    recipes.main(["long", "--runs", str(tmp_path), "--score"])
    assert called == [("average",), *scored]
    assert results[0]["stages"] == results[1]["stages"] and len(results[1]["stages"]) == 2

    called.clear()
    before = tmp_path / "book" / "results"
    before.mkdir(parents=True)
    (before / "long.json").write_text('{"records": [{"stages": [1, 2]}]}')
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "model.safetensors").write_bytes(b"weights")
    again = ["--runs", str(tmp_path / "again"), "--init", str(tmp_path / "whole")]
    recipes.main(["long", *again])
    assert results[2]["stages"] == [1, results[1]["stages"][1]]
    assert results[2]["begins_with"]["stages"] == 1
    assert called == [("train", "whole"), *scored]
    assert json.loads((tmp_path / "again/long-2-averaged/config.json").read_text())["corpus"] == (
        "reverse"
    )


def test_weights_are_mixed_with_those_that_a_stage_began_with(tmp_path):
    config = ModelConfig.tiny(9, N=1, d_model=8, d_ff=8, h=2)
    for name, value in (("before", 1.0), ("after", 3.0)):
        (tmp_path / name).mkdir()
        tensors = {
            key: torch.full_like(w, value) for key, w in Transformer(config).state_dict().items()
        }
        save_tensors(tmp_path / name / "model.safetensors", tensors)
    recipes.mix(tmp_path / "before", tmp_path / "after", 0.25)
    mixed, _ = load_tensors(tmp_path / "after" / "model.safetensors")
    assert all((weights == 1.5).all() for weights in mixed.values())


def test_multi30k_goes_on_from_an_average_and_takes_the_penalty_of_validation(
    monkeypatch, tmp_path
):
    """Training, averaging, translating and scoring are pretended, and noted."""
    scored, results, started, averages = [], [], [], []

    def command(verb, *words):
        if verb == "translate":
            source, out = (Path(words[words.index(name) + 1]) for name in ("--input", "--output"))
            taught_by = Path(words[0]).name
            out.write_text(source.read_text().replace("cat", f"Katze von {taught_by}"))
            return ""
        averages.append([Path(word).name for word in words[: words.index("--last")]])
        out = Path(words[words.index("--out") + 1])
        out.mkdir(parents=True, exist_ok=True)
        model = ModelConfig(50, N=1, d_model=8, d_ff=8, h=1).to_dict()
        (out / "config.json").write_text(json.dumps({"model": model}))
        return ""

    def score(run, checkpoint, text, split, alpha):
        scored.append((checkpoint.name, split, alpha))
        best = {"valid": 1.0, "test": 1.4}[split]  # what is best on the test split must not count
        return {"BLEU": {"score": 40.0 - abs(alpha - best)}}

    def train(data, folder, words, before, processes):
        stage, seed = ({word for word in words if word.startswith(s)} for s in ("N=", "seed="))
        started.append((folder.name, *stage, *seed, before and before.name, processes))
        learned[folder.name] = [Path(path).read_text() for path in data[1:3]]
        folder.mkdir()
        (folder / "seconds").write_text("1\n")

    def write_text(run, folder):
        for name, lines in {"train.en": "a cat\n", "train.de": "Katze\n", "test.de": ""}.items():
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(lines)

    def described(folder):
        return {"commit": folder.name}

    def write_result(path, command, records, device, commit):
        results.append((*records, commit))

    learned = {}
    Stage = multi30k_runs.Stage
    stages = Stage({"N": 1}), Stage({"N": 2}, seeds=2), Stage({"N": 3}, taught=True)
    run = multi30k_runs.TINY, ("en", "de"), multi30k_runs.cased, multi30k_runs.cased, stages, 300
    monkeypatch.setitem(multi30k.RUNS, "tiny", multi30k_runs.Run("three stages", *run))
    for pretended in (command, score, train, write_text, described, write_result):
        monkeypatch.setattr(multi30k, pretended.__name__, pretended)
    multi30k.main(["tiny", "--runs", str(tmp_path), "--processes", "2"])
    first, second, third = (f"multi30k_tiny-{number}" for number in (1, 2, 3))
    other = f"{second}-seed-2"
    assert started == [
        (first, "N=1", "seed=1", None, 2),
        (second, "N=2", "seed=1", f"{first}-averaged", 2),
        (other, "N=2", "seed=2", f"{first}-averaged", 2),
        (third, "N=3", "seed=1", f"{second}-averaged", 2),
    ]
    assert averages == [[first], [second, other], [third]]
    assert learned[first] == learned[other] == ["a cat\n", "Katze\n"]
    assert learned[third] == ["a cat\n" * 2, f"Katze\na Katze von {second}-averaged\n"]
    before, last = [f"{first}-averaged", f"{second}-averaged"], f"{third}-averaged"
    assert {one for one in scored if one[1] == "test"} == {
        (last, "test", 0.6),
        (last, "test", 1.0),
        *((one, "test", 0.6) for one in before),  # the stages are compared with the paper's
    }
    ((record, commit),) = results
    assert commit == record["training"]["commit"] == first
    assert record["further_stages"] == [{"commit": name} for name in (second, other, third)]
    assert [round(one["test"]["score"], 1) for one in record["averages_before"]] == [39.2, 39.2]
    by_alpha = record["by_alpha"]
    assert [one["alpha"] for one in by_alpha["valid"]] == [0.6, 1.0, 1.4]
    assert record["test"]["BLEU"]["score"] == pytest.approx(39.2)  # with the paper's 0.6
    assert by_alpha["alpha"] == 1.0 and by_alpha["test"]["BLEU"]["score"] == pytest.approx(39.6)
    started.clear()
    multi30k.main(["tiny", "--runs", str(tmp_path)])
    assert started == [] and results[1] == results[0]  # what is finished is not trained again


@pytest.mark.parametrize("name", multi30k_runs.RUNS)
def test_multi30k_runs_have_settings_that_train_takes(name):
    run = multi30k_runs.RUNS[name]
    shape, way = ({field.name for field in fields(kind)} for kind in (ModelConfig, TrainConfig))
    for settings, *_ in run.stages:
        assert settings.keys() <= shape | way
        ModelConfig(run.vocab_size, **{name: settings[name] for name in settings.keys() & shape})
        trained = TrainConfig(**{name: settings[name] for name in settings.keys() & way})
        assert name == "tutorial" or trained.accumulate == 2  # for two processes


def test_a_command_is_shared_by_processes_through_torchrun(monkeypatch):
    calls = []
    monkeypatch.setattr(
        recipes.subprocess,
        "run",
        lambda call, **_: calls.append(call) or SimpleNamespace(stdout=""),
    )
    for processes in (1, 2):
        recipes.command("train", "--out", "run", processes=processes)
    ((_, *alone), (_, *shared)) = calls
    assert alone == ["-m", "annotated_transformer", "train", "--out", "run"]
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    assert shared == [*start, *alone]


def test_a_ratio_above_one_says_that_this_tree_is_faster():
    here, there = (
        Mock(names=["work"], seconds=Mock(side_effect=seconds))
        for seconds in ([9.0, 2.0, 1.0, 4.0], [1.0, 3.0, 2.0, 5.0])
    )
    assert against.compare(here, there, rounds=3) == {"work": 1.5}


def test_the_gpu_benchmark_learns_from_batches_that_training_makes_on_a_gpu():
    pairs = gpu.sentences(200, 50)
    run = TrainingRun(ModelConfig(50, N=1, d_model=8, d_ff=8, h=1), TrainConfig(max_tokens=512))
    run.multiple_of = 8
    grouped, drawn = list(gpu.batches_of_training(pairs, 512)), run.batches(lambda epoch: pairs)
    shapes = [batch.source.shape for batch in grouped]
    assert sorted(shapes) == sorted(next(drawn).source.shape for _ in grouped)
    for batch in [*grouped, *timing.random_batches(pairs, 512, gpu.MULTIPLE_OF)]:
        assert batch.source.size(1) % 8 == batch.target_in.size(1) % 8 == 0
        assert max(batch.source.numel(), batch.target_in.numel()) <= 512


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


def test_decoding_by_a_small_model_is_compared_with_the_peers_that_are_named():
    bench, peers = timing.Bench("cpu", 1, small=True), ["torch.nn.Transformer"]
    records = decoding.measure(bench, "tiny", 1, 64, peers)
    assert [record["implementation"] for record in records] == ["annotated_transformer", *peers]
    assert {record["same_outputs"] for record in records} == {1}


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


def test_the_slice_of_wmt_counts_every_pair_and_its_padding(tmp_path):
    files = two_texts(tmp_path, 40, lambda language, i: f"a{'b' * i} &quot;{language}&quot;")
    wmt_slice.main([*files, "--vocab-size", "272", "--out", str(tmp_path / "out.json")])
    result = read_result(tmp_path / "out.json")
    assert result["pairs"] == 40 and result["words"] == [2, 2]
    for record in result["records"]:
        assert sum(record["sentences"]) == 40 and 0 <= record["waste"] < 1
    for batch in result["records"][1]["first_eight"]:
        assert all(len(lengths) * max(lengths) <= 3125 for lengths in batch)


def test_the_recipe_runs_on_a_slice_and_is_held_to_wrong_sources(tmp_path):
    files = two_texts(tmp_path, 400, lambda en, i: f"{en}{i} {en}word{i % 7} &quot;{i % 11}&quot;")
    wmt_slice_training.main([*files, "--small", "--out", str(tmp_path / "out.json")])
    (record,) = read_result(tmp_path / "out.json")["records"]
    assert record["pairs"]["test"] >= 8 and sum(record["pairs"].values()) == 400
    assert record["training"]["steps"] == 10
    right, wrong = (record["test"][key] for key in ("perplexity", "perplexity with other sources"))
    assert right != wrong and math.isfinite(right * wrong)


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


def test_words_of_both_languages_count_for_both_and_names_for_neither():
    said = [("he was in", "er war da"), ("so all", "so alle was"), ("Tom ran", "Tom rannte")] * 2
    lists = unsure.commonest([*said, ("I am in", "ich bin in")])
    own, other = (set(words.split()) for words in lists)
    assert own & other == {"was", "in", "so"} and "tom" not in own
    assert {"he", "am", "all"} <= own and {"er", "bin", "alle"} <= other


def test_thresholds_are_fitted_on_other_lines_than_they_are_judged_on():
    """Of each direction the first, third, ... line fits."""
    fitted = [(p / 100, True) for p in range(100)]
    judged = [(0.01, False), (0.05, False), *[(0.9, True)] * 98]
    english = [case for both in zip(fitted, judged, strict=True) for case in both]
    german = [(0.5, True), (0.02, False)]
    lines = [{"right": right, "back": case_of is german}
             for case_of in (english, german) for _, right in case_of]  # fmt: skip
    best = [Translation("", 0.0, 0.0, mean_p) for mean_p, _ in english + german]
    whole, from_english, from_german = unsure.figures(lines, best)
    assert (whole["unsure_below"], whole["perhaps_below"]) == (0.03, 0.1)
    assert (whole["right"], whole["wrong"], from_german["wrong"]) == (98, 3, 1)
    assert (whole["of right ones, perhaps"], whole["of wrong ones, perhaps"]) == (0, 1)
    assert (from_english["of wrong ones, unsure"], from_german["of wrong ones, unsure"]) == (0.5, 1)


def test_a_line_whose_translation_has_changed_is_judged_again(tmp_path):
    class Turned:
        def n_best(self, sources, n_best, back):
            return [[Translation(text[::-1] if back else text, 0.0, 0.0, 0.5)] for text in sources]

    path = tmp_path / "typed.jsonl"
    before = [
        {"source": "ab", "back": True, "translation": "ba", "right": True},
        {"source": "cd", "translation": "dc", "right": True},
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in before))
    assert unsure.renew(Turned(), path) == 1
    assert unsure.read_lines(path) == [before[0], before[1] | {"translation": "cd", "right": None}]


def test_what_is_unsure_is_calibrated_without_touching_the_checkpoint(tmp_path):
    config = ROOT / "book" / "model" / "config.json"
    before = config.read_bytes()
    result, printed = rehearsed(tmp_path, "unsure")
    whole, *others = result["records"]
    assert whole["figure"] == "unsure" and f"unsure_below {whole['unsure_below']}" in printed
    assert [record["figure"] for record in others] == ["from English", "from German"]
    assert config.read_bytes() == before


def test_the_stored_figures_of_unsure_are_as_good_as_we_say():
    found = by_figure(stored("unsure"))
    whole = found["unsure"]
    doubt = read_config(ROOT / "book" / "model")["doubt"]
    for name in ("unsure_below", "perhaps_below"):
        assert whole[name] == doubt[name]
    assert whole["right"] + whole["wrong"] == 300
    assert min(found[name]["area under the curve"] for name in found) >= 0.75


@pytest.mark.skipif(not NODE, reason="no node on this machine")
def test_the_training_page_is_held_to_pytorch_and_timed(tmp_path):
    result, printed = rehearsed(tmp_path, "training_page")
    found = by_figure(result["records"])
    assert found["gradients"]["largest difference"] < 1e-9 < found["gradients"]["largest gradient"]
    assert found["losses"]["steps"] == 10 and found["losses"]["largest difference"] < 1e-4
    assert found["solved"]["steps"] == 50 and f"bytes {found['weight']['bytes']}" in printed


def test_the_stored_figures_of_the_training_page_are_as_good_as_we_say():
    records = stored("training_page")
    curves = [record for record in records if record["figure"] == "losses"]
    solved = [record for record in records if record["figure"] == "solved"]
    assert curves and {record["steps"] for record in curves} == {200}
    assert all(record["largest difference"] <= 1e-3 for record in curves)
    assert solved and all(record["right"] == record["of"] == 200 for record in solved)
    assert all(record["seconds of the clock"] <= 60 for record in solved)


@pytest.mark.skipif(not NODE, reason="no node on this machine")
def test_a_file_of_pairs_becomes_a_page_that_translates_and_the_way_is_timed(tmp_path):
    kept = tmp_path / "kept"
    result, printed = rehearsed(tmp_path, "from_pairs", "--keep", kept)
    (record,) = result["records"]
    assert json.loads(printed) == record
    assert record["pairs"] == 200 == len((kept / "mine.tsv").read_text("utf-8").splitlines())
    assert record["minutes of the processor"] > 0 and (kept / "mine" / "report.html").exists()
    told = json.loads((kept / "mine" / "scores.json").read_text("utf-8"))["translations"]
    assert record["page"]["asked"] == min(100, len(told)) > 0
    assert record["page"].keys() == {"asked", "not empty", "as in float32"}
    with pytest.raises(subprocess.CalledProcessError):
        rehearse("from_pairs", "--keep", kept)


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
    sizes = record["training"]["settings"]["model"]
    assert sizes.items() >= SIZES.items()
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
        assert one["training"]["settings"]["model"].items() >= SIZES.items()
    (cased,) = stored("multi30k_tiny_cased")
    scores = cased["test"]["BLEU"]
    assert "case:mixed" in scores["signature"] and "tok:13a" in scores["signature"]
    assert 30 < scores["score"] < found["score"]


def test_the_stored_soak_of_thirty_minutes_lost_nothing_and_stayed_flat():
    (record,) = read_result(soak.RESULT)["records"]
    assert record["faults"] == 30 and record["minutes"] >= 30 and record["lines"] > 10_000
    assert record["differs_in"] == [] and record["flat"]
    assert max(record["growth_MiB"].values()) <= soak.GROWTH / 2**20


def test_two_processes_were_nearly_twice_as_fast_as_one():
    (record,) = stored("distributed")
    assert len(record["rounds"]) >= 3 and record["median"] >= 1.8
    for row in record["rounds"]:
        assert row["ratio"] == pytest.approx(row["two"] / row["one"], 0.01)


def test_twenty_thousand_pairs_became_a_page_within_the_hour():
    result = read_result(ROOT / "book" / "results" / "from_pairs.json")
    (record,) = result["records"]
    assert record["pairs"] == 20_000 and record["minutes"] <= 60 and "2 cores" in result["hardware"]
    assert record["page"]["not empty"] == record["page"]["asked"] == 100
    assert record["page"]["as in float32"] >= 80 and record["BLEU"]["score"] > 15


def test_the_growth_benchmark_knows_its_parts_and_keeps_every_line(tmp_path):
    records = rehearsed(tmp_path, "growth")[0]["records"]
    training = of_measure(records, "training")
    assert [record["pairs"] for record in training] == [100, 1000]
    assert training[0]["over_smallest"] == 1
    for record in training:
        for part in ("encoding", "grouping", "batching", "steps"):
            assert 0 < record[f"{part}_us_a_token"] < record["us_a_token"]
    translating = of_measure(records, "translating")
    assert [record["lines_out"] for record in translating] == [10, 100]


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


def test_two_processes_are_rehearsed_against_one():
    assert "median" in rehearse("distributed")


def test_the_gpu_benchmark_is_rehearsed_and_a_compiled_step_is_one_graph(tmp_path):
    """On a CPU at toy size, where it measures nothing of worth:
    but that no shape makes a second graph holds there."""
    result, printed = rehearsed(tmp_path, "gpu", "--device", "cpu")
    records = result["records"]
    assert len(printed.splitlines()) == len(records)
    assert printed.count("graphs_after_warm_up 0") == 2
    measures = [
        "first epoch", "batching", "attention", "matrix product", "training step", "waiting",
    ]  # fmt: skip
    # What is cold comes first, and what is compiled last.
    assert list(dict.fromkeys(record["measure"] for record in records)) == measures
    for record in (record for record in records if "first_s" in record):
        assert record["shapes"] > 5 and record["first_s"] > 0
    waiting = of_measure(records, "waiting")
    assert [record["packed"] for record in waiting] == [False, True]
    for record in waiting:
        assert (record["graphs_before"], record["graphs_after_warm_up"]) == (1, 0)
        assert record["shapes"] > 5


def test_what_waits_for_a_gpu_is_rehearsed_and_a_part_that_fails_stops_no_other(
    monkeypatch, tmp_path, capsys
):
    """All parts but `gpu`, which the test above rehearses."""
    parts = [name for name in on_a_gpu.parts(tmp_path, small=True) if name != "gpu"]
    small = ["--small", "--out", str(tmp_path), "--parts", *parts]
    assert on_a_gpu.main(small) == 0, capsys.readouterr()
    ended = read_result(tmp_path / "parts.json")["records"]
    assert [(one["part"], one["status"]) for one in ended] == [(name, 0) for name in parts]
    [model] = read_result(tmp_path / "multi30k_small_gpu.json")["records"]
    assert model["corpus"] == "reverse" and model["stages"][0]["steps"] == 4
    table = read_result(tmp_path / "table_3_to_the_end.json")
    assert {"base", "A1"} <= {record["row"] for record in table["records"] if "row" in record}
    broken = {"gpu": ["benchmarks.no_such"], "multi30k": ["benchmarks.recipes"]}
    monkeypatch.setattr(on_a_gpu, "parts", lambda *_, **__: broken)
    assert on_a_gpu.main(["--small", "--out", str(tmp_path / "second")]) == 1
    ended = read_result(tmp_path / "second" / "parts.json")["records"]
    assert [one["status"] == 0 for one in ended] == [False, True]


def test_a_gpu_that_is_too_small_loses_no_measure_but_its_own(monkeypatch, tmp_path):
    out = tmp_path / "gpu.json"

    def too_large(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.\nmore")

    def breaks_off(*_):
        raise KeyboardInterrupt

    for name in ("first_epoch", "attention"):
        monkeypatch.setattr(gpu, f"measure_{name}", lambda *_, name=name: [{"measure": name}])
    monkeypatch.setattr(gpu, "measure_batching", too_large)
    monkeypatch.setattr(gpu, "measure_training", breaks_off)
    with pytest.raises(KeyboardInterrupt):
        gpu.main(["--small", "--device", "cpu", "--out", str(out)])
    first, second, third = read_result(out)["records"]  # all that was found before
    assert (first["measure"], third["measure"]) == ("first_epoch", "attention")
    why = {"of": "too_large", "message": "CUDA out of memory."}
    assert second == {"measure": "out of memory", **why}


def test_attention_that_needs_too_much_memory_is_no_missing_kernel(monkeypatch):
    errors = {
        None: torch.OutOfMemoryError("CUDA out of memory."),
        gpu.KERNELS["flash"]: RuntimeError("no kernel"),
    }

    def attend(qkv, kernel):
        if kernel in errors:
            raise errors[kernel]

    monkeypatch.setattr(gpu, "attend", attend)
    records = gpu.measure_attention(timing.Bench("cpu", 1, small=True))
    why = {(record["kernel"], record.get("why")) for record in records}
    missing = "no such kernel for these sizes"
    assert {("equation 1", "out of memory"), ("flash", missing), ("math", None)} <= why


def test_the_first_file_is_timed_before_anything_is_warm(monkeypatch):
    calls = []
    monkeypatch.setattr(decoding.corpus, "load", lambda *_: [("Good morning.", "")] * 20)
    monkeypatch.setattr(
        decoding.Translator, "translate", lambda self, texts: calls.append((self, len(texts)))
    )
    records = decoding.measure_first_file(timing.Bench("cpu", 1, small=True))
    names = ["annotated_transformer", "annotated_transformer int8"]
    assert [record["implementation"] for record in records] == names
    translators = [translator for translator, n in calls if n == 8]
    assert translators[0] is translators[1] and translators[2] is translators[3]
    assert len(set(translators)) == 2


def test_the_stored_results_say_what_the_readme_says():
    ours = "annotated_transformer"
    here, there = (
        of_measure(stored(name), "training step") for name in ("training_cpu", "training_cpu_intel")
    )
    for r in here:
        assert r["logits_differ_by"] is None or r["logits_differ_by"] < 1e-3
        assert r["model"] == "tiny" or r["share_in_products"] > 0.8
        least = 1.05 if r["model"] == "tiny" else 0.95
        assert r["implementation"] == ours or r["ours_is_faster"] > least
    for model, data in {(r["model"], r["data"]) for r in here}:
        runs = [
            [r for r in found if (r["model"], r["data"]) == (model, data)]
            for found in (here, there)
        ]
        (ours_here, *_), (ours_there, *_) = runs
        assert ours_there["product_gflops"] > 1.5 * ours_here["product_gflops"]
        assert ours_there["share_of_product"] < ours_here["share_of_product"]
        leads = [min(r["ours_is_faster"] for r in run[1:]) for run in runs]
        assert min(leads) > 0.95
        assert model == "base" or leads[1] > leads[0]
    memory = of_measure(stored("training_cpu"), "peak memory")
    assert all(r["ours_over_it"] < 1 for r in memory if r["implementation"] != ours)


def test_the_stored_decoding_and_growth_say_what_the_readme_says():
    decoding_cpu = stored("decoding_cpu")
    slower = ("Hugging Face", "torch.nn", "JoeyNMT")
    for r in decoding_cpu:
        if r["measure"] == "decoding" and "int8" not in r["implementation"]:
            assert not r["implementation"].startswith("CTranslate2") or r["same_outputs"] >= 0.95
            assert not r["implementation"].startswith(slower) or r["ours_is_faster"] > 1
    in_float32, in_int8 = (r["bleu"] for r in of_measure(decoding_cpu, "BLEU"))
    assert abs(in_float32 - in_int8) < 0.5
    for r in stored("growth"):
        if r["measure"] == "training":
            assert 0.85 < r["over_smallest"] < 1.15
        else:
            assert r["peak_megabytes"] < 1.05 * r["megabytes_before"]


def test_a_rehearsal_or_a_part_is_written_only_where_it_is_told_to(tmp_path):
    def place(small, is_whole, out=None):
        return timing.out_path(SimpleNamespace(small=small, out=out), "page", is_whole)

    assert place(False, True) == ROOT / "book" / "results" / "page.json"
    assert place(True, True) is place(False, False) is None
    assert place(True, False, tmp_path) == tmp_path


def test_only_a_whole_soak_writes_a_result(monkeypatch, tmp_path):
    found = {"differs_in": [], "flat": True}
    monkeypatch.setattr(soak, "soak", lambda minutes, *_: {**found, "faults": minutes})
    monkeypatch.setattr(soak, "RESULT", tmp_path / "soak.json")
    for trial in (["--minutes", "1"], ["--seconds", "2"]):
        assert soak.main(trial) == 0 and not soak.RESULT.exists()
    assert soak.main([]) == 0
    result = read_result(soak.RESULT)
    assert result["command"].endswith("python benchmarks/soak.py")
    assert result["records"] == [{**found, "faults": 30}]
    found["flat"] = False
    assert soak.main(["--minutes", "1"]) == 1


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 2**20)])
def test_a_peak_is_in_megabytes_everywhere(monkeypatch, platform, unit):
    """Linux counts kilobytes, macOS bytes; neither has /proc here."""
    monkeypatch.setattr(timing, "Path", lambda name: Path("/nowhere"))
    usage = SimpleNamespace(ru_maxrss=3 * unit)
    pretended = SimpleNamespace(getrusage=lambda who: usage, RUSAGE_SELF=0)
    monkeypatch.setitem(sys.modules, "resource", pretended)
    monkeypatch.setattr(sys, "platform", platform)
    assert timing.peak_megabytes() == 3


@pytest.mark.slow
def test_a_soak_of_seconds_loses_nothing(capsys):
    """Six faults, a few seconds apart."""
    result = soak.soak(len(soak.FAULTS), 1.5, seed=2)
    assert result["faults"] == 6 and result["lines"] > 0
    assert result["differs_in"] == [] and result["flat"]
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed] == list(soak.FAULTS)


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
