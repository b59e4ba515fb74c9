"""The book's own model: what its result file says of it, and that the weights are those."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.data import corpus
from annotated_transformer.data.batching import encode_pairs
from annotated_transformer.decoding.evaluation import mean_nll, perplexity
from annotated_transformer.extras.attention_views.knock_out import heads_of, knocked_out
from lab.experiments.result_file import read_result

BOOK = Path(__file__).parents[1] / "book"


@pytest.fixture(scope="module")
def record():
    [found] = read_result(BOOK / "results" / "visitors.json")["records"]
    return found


@pytest.fixture(scope="module")
def book_model():
    return load_model(BOOK / "model")


def test_it_is_small(book_model):
    model, _ = book_model
    assert sum(p.numel() for p in model.parameters()) <= 6_000_000
    assert sum(file.stat().st_size for file in (BOOK / "model").iterdir()) <= 13_000_000


def test_it_translates(record):
    assert record["scored"] == "tatoeba-en-de" != record["corpus"]
    assert record["test"]["alpha"] == 0.6
    assert round(record["test"]["BLEU"]["score"], 1) >= 32


def test_the_papers_length_penalty_is_the_best_on_the_validation_split_and_long_enough(record):
    by_alpha = record["by_alpha"]
    best = max(by_alpha["valid"], key=lambda one: one["BLEU"])
    assert by_alpha["alpha"] == best["alpha"] == record["test"]["alpha"]
    assert round(record["test"]["brevity_penalty"], 2) >= 0.97


def test_its_encoder_needs_self_attention(record):
    whole, without = (record["at_work"][key] for key in ("whole", "without"))
    assert record["at_work"]["beam_size"] == 4
    assert whole["bleu"] == pytest.approx(record["test"]["BLEU"]["score"], abs=0.05)
    assert whole["bleu"] - without["encoder"]["bleu"] <= whole["bleu"] / 2
    layers = [layer for layer in record["at_work"]["layers"] if layer["attention"] == "encoder"]
    assert [layer["layer"] for layer in layers] == [1, 2, 3]
    assert all(layer["bleu"] >= 1 for layer in layers)
    assert median(layers[0]["entropy"]) >= 0.7
    assert max(layers[0]["spread"]) <= 8


@pytest.mark.slow
@pytest.mark.parametrize("split", ["valid", "test"])
def test_the_scores_are_those_of_the_stored_weights(book_model, record, split):
    model, tokenizer = book_model
    pairs = encode_pairs(tokenizer, corpus.load("tatoeba-en-de", split), max_length=1023)
    assert perplexity(model, pairs) == pytest.approx(record[split]["perplexity"], rel=1e-3)


@pytest.mark.slow
def test_what_the_stored_weights_lose_without_attention_is_what_the_file_says(book_model, record):
    model, tokenizer = book_model
    pairs = encode_pairs(tokenizer, corpus.load("tatoeba-en-de", "test"), max_length=1023)
    assert record["at_work"]["sentences"] == len(pairs)
    whole = mean_nll(model, pairs)
    assert whole == pytest.approx(record["at_work"]["whole"]["nll"], abs=1e-4)
    for attention, lost in record["at_work"]["without"].items():
        with knocked_out(*(head for layer in heads_of(model, attention) for head in layer)):
            assert mean_nll(model, pairs) - whole == pytest.approx(lost["nats"], abs=1e-3)
