"""The report on attention against the weights themselves,
and what it says is lost against a model without it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.checkpoint.weights import save_weights
from annotated_transformer.command_line import entry_point as cli
from annotated_transformer.data.batching import encode_pairs, make_batch
from annotated_transformer.decoding.evaluation import bleu, mean_nll
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.attention_views import report as reports
from annotated_transformer.extras.attention_views.knock_out import heads_of, knocked_out
from annotated_transformer.extras.attention_views.record import ATTENTIONS, record_attention
from annotated_transformer.extras.attention_views.report import (
    as_table,
    attention_report,
    head_statistics,
)
from toys import random_pairs, small_model, text_pairs, toy_tokenizer

BOOK_MODEL = Path(__file__).parents[3] / "book" / "model"


def test_statistics_are_means_over_the_real_queries_of_a_padded_batch():
    model, batch = small_model(), make_batch(random_pairs(1, 6))
    found = head_statistics(model, [batch])
    with record_attention(model) as weights, torch.no_grad():
        model(batch.source, batch.target_in)
    source, target = batch.source != 0, batch.target_out != 0
    for name, each in found.items():
        rows = [(b, i) for b, i in (source if "encoder" in name else target).nonzero().tolist()]
        is_causal = name.startswith("decoder") and name.endswith("self_attention")
        entropies, ends = [], []
        for b, i in rows:
            n_keys = i + 1 if is_causal else int(source[b].sum())
            row = weights[name][b, :, i, :n_keys]
            entropies.append(-(row * row.log2()).nan_to_num().sum(dim=-1))
            ends.append(torch.stack([row[:, 0], row[:, -1]]))
        assert_close(each.entropy, torch.stack(entropies).mean(dim=0))
        assert_close(torch.stack([each.on_first, each.on_last]), torch.stack(ends).mean(dim=0))
        sizes = [i + 1 if is_causal else int(source[b].sum()) for b, i in rows]
        assert each.uniform == pytest.approx(sum(map(math.log2, sizes)) / len(sizes))
        assert (each.entropy <= each.uniform + 1e-9).all()


def test_the_spread_is_that_of_the_scores_before_the_softmax():
    model, batch = small_model(), make_batch(random_pairs(1, 6))
    name = "decoder.layers.0.self_attention"
    before = head_statistics(model, [batch])[name].spread
    with record_attention(model) as weights, torch.no_grad():
        model(batch.source, batch.target_in)
    target = batch.target_out != 0
    # Softmax forgets one number a row, so compare spreads within rows.
    for head in range(model.config.h):
        logs = weights[name][:, head].log()
        rows = [logs[b, i, : i + 1] for b, i in target.nonzero().tolist()]
        within = torch.cat([row - row.mean() for row in rows]).square().sum() / sum(map(len, rows))
        assert within.sqrt() <= before[head] + 1e-9
    attention = model.get_submodule(name)
    attention.W_Q.weight.data *= 3
    assert_close(head_statistics(model, [batch])[name].spread, 3 * before)


def test_two_batches_count_as_one():
    model, pairs = small_model(), random_pairs(1, 8)
    parts = head_statistics(model, [make_batch(pairs[:3]), make_batch(pairs[3:])])
    for name, whole in head_statistics(model, [make_batch(pairs)]).items():
        for one, other in zip(whole, parts[name], strict=True):
            assert_close(one, other)
    assert model.training == small_model().training


def test_what_is_lost_is_what_a_model_without_it_lacks():
    model, tokenizer = small_model(vocab_size=280), toy_tokenizer()
    pairs = text_pairs(3, 12)
    report = attention_report(model, tokenizer, pairs, scores_bleu=False)
    encoded = encode_pairs(tokenizer, pairs, 1000)
    whole = mean_nll(model, encoded)
    assert report["whole"] == {"nll": pytest.approx(whole)}
    assert len(report["layers"]) == 3 * model.config.N
    for row in report["layers"]:
        with knocked_out(*heads_of(model, row["attention"])[row["layer"] - 1]):
            assert row["nats"] == pytest.approx(mean_nll(model, encoded) - whole, abs=1e-6)
        assert len(row["entropy"]) == len(row["spread"]) == model.config.h
    for attention, row in report["without"].items():
        with knocked_out(*(head for layer in heads_of(model, attention) for head in layer)):
            assert row["nats"] == pytest.approx(mean_nll(model, encoded) - whole, abs=1e-6)
        assert row["nats"] != 0
    assert set(report["without"]) == set(ATTENTIONS)
    assert len(as_table(report).splitlines()) == 3 + 3 * model.config.N + 3


@pytest.mark.slow
def test_bleu_is_that_of_the_search_asked_for(monkeypatch):
    model, tokenizer = checkpoint.load_model(BOOK_MODEL)
    pairs = [("She would have liked to know why it rained.", "Es regnete.")]
    seen: list[list[str]] = []

    def kept(translations, targets):
        seen.append(translations)
        return bleu(translations, targets)

    monkeypatch.setattr(reports, "bleu", kept)
    translator, sources = Translator(model, tokenizer), [source for source, _ in pairs]
    searches = {alpha: {"beam_size": 3, "alpha": alpha} for alpha in (-5.0, 5.0)}
    short, long = (translator.translate(sources, **search) for search in searches.values())
    assert len(tokenizer.encode(short[0])) < len(tokenizer.encode(long[0]))
    for alpha, expected in ((-5.0, short), (5.0, long)):
        report = attention_report(model, tokenizer, pairs, **searches[alpha])
        assert seen[0] == expected and f"(beam 3, alpha {alpha})" in as_table(report)
        seen.clear()
    del report["alpha"]  # a report that was stored before one could ask for it
    assert "(beam 3, alpha 0.6)" in as_table(report)


def test_nothing_to_look_at_is_one_line():
    with pytest.raises(ConfigError, match="^there is no pair to look at$"):
        attention_report(small_model(vocab_size=280), toy_tokenizer(), [("tea " * 2000, "tea")])


@pytest.mark.slow
def test_the_command_line_prints_a_table_or_json(tmp_path, capsys):
    model = small_model(vocab_size=280).float()
    checkpoint.write_directory(tmp_path / "run", model.config, toy_tokenizer(), {"corpus": "copy"})
    save_weights(tmp_path / "run" / "model.safetensors", model)
    arguments = ["inspect", str(tmp_path / "run"), "--sentences", "5", "--device", "cpu"]
    assert cli.main([*arguments, "--no-bleu", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sentences"] == 5 and "bleu" not in report["whole"]
    assert cli.main(arguments) == 0
    table = capsys.readouterr().out
    assert "BLEU" in table and "(beam 1, alpha 0.6)" in table and "cross layer 2" in table
    assert cli.main(["inspect", str(tmp_path / "run"), "--corpus", "nonsense"]) == 2
