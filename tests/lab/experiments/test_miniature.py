"""Table 3 in miniature: one rule for every row, runs that are done once,
and a table beside the paper's."""

import json

import pytest
import torch

from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.data import corpus
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding.evaluation import perplexity
from annotated_transformer.errors import ConfigError
from annotated_transformer.model.transformer import Transformer
from lab.experiments.result_file import RESULTS, read_result, require_same_settings
from lab.experiments.significance import ppl_of_sums
from lab.experiments.table_3 import miniature, miniature_summary
from lab.experiments.table_3.miniature import CLAIMS, CONTROLS, VARIATIONS, run_task
from lab.experiments.table_3.miniature_run import KEPT, file_of, keep, take
from lab.experiments.table_3.miniature_summary import collect, summarize
from lab.tables.table_3 import TABLE_3

VOCAB_SIZE = 300
REAL_LOAD = corpus.load


def task(name, out, seed=1, steps=5):
    return miniature.Task(name, seed, "reverse", out, steps, VOCAB_SIZE)


def few(name, split, data_dir=None):
    """The corpus `name` with few sentences, so that a run takes a second."""
    return REAL_LOAD(name, split, data_dir)[: {"train": 400}.get(split, 20)]


@pytest.fixture(autouse=True)
def small_corpus(monkeypatch):
    monkeypatch.setattr(miniature.corpus, "load", few)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Two variations, one of them with two seeds, hardly trained."""
    path = tmp_path_factory.mktemp("variations")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(miniature.corpus, "load", few)
        for name, seed in (("base", 1), ("A1", 1), ("A1", 2)):
            run_task(task(name, path, seed))
    return path


@pytest.mark.parametrize("row", TABLE_3, ids=lambda row: row.id)
def test_the_rule_divides_widths_by_four_and_layers_by_two_and_keeps_the_rest(row):
    full, (small, training) = row.model_config(2000), VARIATIONS[row.id].configs(seed=7)
    for name in ("d_model", "d_ff", "d_k", "d_v"):
        assert 4 * getattr(small, name) == getattr(full, name)
    assert 2 * small.N == full.N
    for name in ["h", "p_drop", "norm", "positions", "activation", "bias", "scaled_attention"]:
        assert getattr(small, name) == getattr(full, name), name
    assert small.initialization == "glorot"
    assert training.train_steps == miniature.STEPS
    assert (training.eps_ls, training.seed) == (row.train_config().eps_ls, 7)
    assert (training.warmup_steps, training.lr_factor) == (400, 0.3)


def test_rows_that_keep_the_number_of_parameters_still_do():
    sizes = {name: VARIATIONS[name].configs(1)[0] for name in ("base", "A1", "A2", "A3", "A4")}
    assert {config.h * config.d_k for config in sizes.values()} == {128}


def settings_of(name):
    model, training = VARIATIONS[name].configs(1)
    return {**model.to_dict(), **training.to_dict()}.items()


def test_a_claim_changes_what_it_says_against_what_it_is_compared_with():
    changed = {
        claim.id: [name for name, _ in settings_of(claim.id) - settings_of(claim.against)]
        for claim in CLAIMS
    }
    assert changed == {
        "unscaled": ["scaled_attention"],
        "unscaled-A1": ["scaled_attention"],
        "no-positions": ["positions"],
        "no-warm-up": ["warm_up"],
        "pre-norm": ["norm"],
        "short": ["max_length"],
        "short-learned": ["positions"],
    }


def test_a_row_has_the_same_batches_on_every_device(tmp_path, monkeypatch):
    asked = []

    def trained(*args, multiple_of, **kwargs):
        asked.append(multiple_of)
        raise KeyboardInterrupt

    monkeypatch.setattr(miniature, "train", trained)
    for name in ("base", "rotary", miniature.OF_GPU.id):
        with pytest.raises(KeyboardInterrupt):
            run_task(task(name, tmp_path))
    assert asked == [1, 8, 8]


def test_groups_and_ids_name_variations():
    def found(*names):
        return [variation.id for variation in miniature.find_variations(names)]

    assert found("table") == [row.id for row in TABLE_3]
    assert len(VARIATIONS) == 20 + 7 + 8 + 6 + 7
    ten = found("ten")
    assert ten == ["base", *miniature.TEN] and len(ten) == 11
    assert {*found("all", "A1")} == {*ten, *(v.id for v in CLAIMS)}
    assert found("B2", "B2", "pre-norm") == ["B2", "pre-norm"]
    with pytest.raises(ConfigError, match="no variation A9"):
        found("A1", "A9")


def test_a_rate_is_searched_on_a_seed_that_no_table_uses(monkeypatch, tmp_path):
    monkeypatch.setattr(miniature.corpus, "prepare", lambda *_: None)
    tasks = miniature.tasks_of(["base", "base-at-0.6"], 2, "reverse", tmp_path)
    assert [(task.id, task.seed) for task in tasks] == [
        ("base-at-0.6", 0),
        ("base", 1),
        ("base", 2),
    ]
    for name, rates in (("base", (0.15, 0.3, 0.6)), ("muon", (0.15, 0.3, 0.6))):
        found = {f: VARIATIONS[f"{name}-at-{f}"].configs(0, to_the_end=True)[1] for f in rates}
        whole = VARIATIONS[name].configs(0, to_the_end=True)[1]
        assert found == {f: whole.replace(lr_factor=f) for f in rates}


@pytest.mark.slow
def test_a_run_records_its_settings_and_the_scores_of_every_sentence(out):
    record = collect(out, "reverse")["A1"][2]
    assert ModelConfig.from_dict(record["model"]) == VARIATIONS["A1"].configs(2, 5, VOCAB_SIZE)[0]
    assert TrainConfig.from_dict(record["train"]).seed == record["seed"] == 2
    scores = miniature.read_scores(record)
    assert scores.nll.shape == (20, 2)
    assert scores.bleu.shape == (20, 10)


@pytest.mark.slow
def test_the_scores_are_those_of_the_weights_on_the_validation_split(out):
    model, tokenizer = load_model(out / "reverse" / "base-1")
    pairs = [tuple(tokenizer.encode_batch(pair)) for pair in few("reverse", "valid")]
    record = collect(out, "reverse")["base"][1]
    last, averaged, greedy = (
        miniature.read_scores(record, which).nll for which in ("", "averaged", "beam-1")
    )
    assert ppl_of_sums(last.sum(0)) == pytest.approx(perplexity(model, pairs), rel=1e-5)
    assert averaged[:, 0].tolist() != last[:, 0].tolist()
    assert greedy.tolist() == last.tolist()


@pytest.mark.slow
def test_the_vocabulary_is_learned_from_the_training_split_and_five_checkpoints_are_averaged(out):
    base = out / "reverse" / "base-1"
    texts = (side for pair in few("reverse", "train") for side in pair)
    expected = Tokenizer.train(texts, VOCAB_SIZE).model_bytes
    assert (base / "tokenizer.model").read_bytes() == expected
    assert len(json.loads((base / "averaged" / "config.json").read_text())["averaged"]) == 5


@pytest.mark.slow
def test_a_finished_run_with_other_settings_is_refused(out):
    for other in ({"steps": 6}, {"vocab_size": 280}, {"n_sentences": 3}):
        with pytest.raises(ConfigError, match="other settings|not 3"):
            run_task(task("A1", out)._replace(**other))


def test_a_width_that_does_not_divide_is_refused(monkeypatch):
    monkeypatch.setattr(miniature, "WIDTH", 24)
    with pytest.raises(ConfigError, match="base cannot be scaled down: d_model, d_ff, d_k, d_v"):
        VARIATIONS["base"].configs(1)


@pytest.mark.slow
def test_a_finished_run_is_not_run_again(out, monkeypatch):
    monkeypatch.setattr(miniature, "train", None)
    assert run_task(task("A1", out)).name == "scores.json"


@pytest.mark.slow
def test_a_run_whose_scores_were_kept_is_not_run_again(out, tmp_path, monkeypatch):
    (scores,) = (out / "reverse").glob("A1-2/scores.json")
    keep(scores, tmp_path / "kept")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["A1-2.json.gz"]
    take(tmp_path / "kept", tmp_path / "runs" / "reverse")
    monkeypatch.setattr(miniature, "train", None)
    again = run_task(task("A1", tmp_path / "runs", seed=2))
    assert again.read_bytes() == scores.read_bytes()
    again.write_text("newer")  # what lies in the runs is not written over
    take(tmp_path / "kept", tmp_path / "runs" / "reverse")
    assert again.read_text() == "newer"


def test_a_run_that_is_older_than_a_setting_has_its_default_and_may_plan_in_other_windows():
    model, training = VARIATIONS["base"].configs(1)
    old = {"model": model.to_dict(), "train": {**training.to_dict(), "window": 0}}
    del old["model"]["rms_norm"], old["train"]["optimizer"]
    require_same_settings(RESULTS, old, model, training)
    for other in ((model.replace(rms_norm=True), training), (model, training.replace(seed=2))):
        with pytest.raises(ConfigError, match="holds a run with other settings"):
            require_same_settings(RESULTS, old, *other)


def test_what_came_later_and_the_search_for_a_rate_have_files_of_their_own():
    files = {name: file_of(name, "table_3") for name in ("base", "muon", "muon-at-0.3", "short")}
    assert list(files.values()) == ["table_3", "table_3_since", "table_3_rates", "table_3"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "table", ["table_3", "table_3_to_the_end", "table_3_since", "table_3_rates"]
)
def test_the_stored_tables_are_those_of_the_stored_scores(table, tmp_path):
    """Of the runs that a table names: scores that came later may wait for the next table."""
    stored = read_result(RESULTS / f"{table}.json")
    end = "-to-the-end" * (table != "table_3")
    take(KEPT / f"multi30k-en-de{end}", tmp_path / "runs")
    runs = {(one["row"], one["seed"]) for one in stored["records"]}
    records = collect(tmp_path, "runs")
    some = {
        name: {seed: one for seed, one in seeds.items() if (name, seed) in runs}
        for name, seeds in records.items()
        if any(name == row for row, _ in runs)
    }
    assert miniature_summary.result_records(some) == stored["records"]
    again = {row["id"]: row for row in summarize(records, n_samples=100)}
    for row in stored["summary"]:
        assert_same(again[row["id"]], row)
    if "contrasts" in stored:
        assert_same(miniature_summary.contrasts(records, n_samples=100), stored["contrasts"])


def assert_same(found, expected):
    """To six digits; the ends of an interval, for which fewer samples are drawn, to a fifth of its
    width."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        fifth = (expected.get("high", 0) - expected.get("low", 0)) / 5
        for key, value in expected.items():
            if key in ("low", "high"):
                assert found[key] == pytest.approx(value, abs=fifth + 1e-9)
            else:
                assert_same(found[key], value)
    elif isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == (pytest.approx(expected) if isinstance(expected, float) else expected)


def test_the_fall_of_the_last_fifth_is_read_between_the_points_of_a_curve():
    """Until step 1,000 nll falls by 0.1 in 100 steps, then by 0.001."""
    points = [[0, 0.0, 2.0], [1000, 0.0, 1.0], [3000, 0.0, 0.98]]
    falls = [miniature.fall_of_last_fifth(points, n) for n in (1000, 1250, 1100)]
    assert falls == pytest.approx([0.2, 0.0025, 0.12 + 0.001])
    assert miniature.fall_of_last_fifth(points, 3001) is None


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_takes_its_part_out_of_the_trained_weights_and_puts_it_back(name):
    model = Transformer(VARIATIONS["base"].configs(1, vocab_size=VOCAB_SIZE)[0]).eval()
    tokens = torch.randint(4, VOCAB_SIZE, (2, 9), generator=torch.Generator().manual_seed(3))
    turned = tokens.flip(1)
    other_first, other_last = (tokens.index_fill(1, torch.tensor(i), 7) for i in (0, 8))
    whole = model(tokens, tokens)
    with miniature.taken_out(model, name):
        damaged = model(tokens, tokens)
        same = {
            "without-encoder": (model.encode(tokens)[:, :8], model.encode(other_last)[:, :8]),
            "without-decoder": (damaged[:, 8], model(tokens, other_first)[:, 8]),
            "without-cross": (damaged, model(turned, tokens)),
            "without-positions": (damaged, model(turned, tokens)),
        }[name]
        assert torch.allclose(*same, atol=1e-5)
    assert not torch.allclose(whole, damaged, atol=1e-3)
    assert torch.equal(model(tokens, tokens), whole)
