"""A verdict follows from the numbers by the rule, and what was not measured is never more than "cannot tell"."""

import pytest

from annotated_transformer.experiments.claims import (
    CANNOT_TELL,
    DOES_NOT,
    HOLDS,
    a_head_looks_there,
    better,
    counted_as,
    faster_while_n_is_below_d,
    grows_as,
    judge_claims,
    nearly_the_same,
    parameters_with,
    without_it_words_go_wrong,
    worse,
)

VERDICTS = {HOLDS, DOES_NOT, CANNOT_TELL}


def difference(low, high):
    sign = 1 if low > 0 else -1 if high < 0 else 0
    return {"low": low, "mean": (low + high) / 2, "high": high, "seeds": [low, high], "sign": sign}


def results(**differences):
    """A table_3.json in which these variations differ in BLEU from base, whose perplexity is 20."""
    rows = [{"id": name.replace("_", "-"), "against": "base", "bleu_difference": difference(*one),
             "ppl_difference": difference(*one)} for name, one in differences.items()]
    return {"table_3": {"summary": [{"id": "base", "ppl": {"mean": 20.0}}, *rows]}}


@pytest.mark.parametrize(("low", "high", "verdict"), [
    (-2.0, -0.1, HOLDS), (-2.0, 0.1, CANNOT_TELL), (0.1, 2.0, DOES_NOT)])
def test_worse_in_bleu_is_below_and_in_perplexity_above(low, high, verdict):
    assert worse("A1")(results(A1=(low, high)))[0] == verdict
    assert worse("A1", measure="ppl")(results(A1=(-high, -low)))[0] == verdict
    assert better("A1")(results(A1=(-high, -low)))[0] == verdict


def test_a_claim_on_two_variations_needs_both():
    rule = worse("B1", "B2")
    assert rule(results(B1=(-2, -1), B2=(-2, -1)))[0] == HOLDS
    assert rule(results(B1=(-2, -1), B2=(-2, 1)))[0] == CANNOT_TELL
    assert rule(results(B1=(-2, -1), B2=(1, 2)))[0] == DOES_NOT
    assert rule(results(B1=(-2, -1))) == (CANNOT_TELL, "not measured")


@pytest.mark.parametrize(("low", "high", "bleu", "ppl"), [
    (-0.4, 0.9, HOLDS, HOLDS), (-0.4, 1.2, CANNOT_TELL, CANNOT_TELL), (1.1, 1.9, DOES_NOT, DOES_NOT),
    (-1.9, -1.1, DOES_NOT, DOES_NOT), (0.5, 1.5, CANNOT_TELL, CANNOT_TELL)])
def test_nearly_the_same_is_within_the_margin(low, high, bleu, ppl):
    """One BLEU; five percent of a perplexity of 20, which is one too."""
    assert nearly_the_same("E1", "bleu")(results(E1=(low, high)))[0] == bleu
    assert nearly_the_same("E1", "ppl")(results(E1=(low, high)))[0] == ppl


def test_the_evidence_names_the_numbers():
    verdict, evidence = worse("no-positions")(results(no_positions=(-2.5, -1.5)))
    assert verdict == HOLDS
    assert evidence == "no-positions: BLEU -2.00 (-2.50 to -1.50, 2 seeds)"


def fit(over, theory, exponent, reason=""):
    one = {"exponent": exponent, "low": exponent - 0.1, "high": exponent + 0.1}
    exact = {"exponent": float(theory), "low": theory, "high": theory}
    return {"measure": "time", "layer": "recurrent", "over": over, "theory": theory, "time": one, "counted": exact,
            "reason": reason}


@pytest.mark.parametrize(("exponent", "verdict"), [(2.14, HOLDS), (1.86, HOLDS), (2.16, DOES_NOT), (1.8, DOES_NOT)])
def test_an_exponent_may_miss_by_fifteen_hundredths(exponent, verdict):
    records = [fit("n", 1, 1.0), fit("d", 2, exponent), fit("d", 2, 2.5, "limited by memory")]
    assert grows_as("recurrent")({"table_1": {"records": records}})[0] == verdict
    assert grows_as("recurrent")({"table_1": {"records": records[:1]}})[0] == CANNOT_TELL


def test_counts_must_be_the_formulas_at_every_size():
    record = {"measure": "path", "layer": "recurrent", "n": [9, 27], "steps": [8, 26], "theory": [8, 26]}
    rule = counted_as("path", "steps", "recurrent")
    assert rule({"table_1": {"records": [record]}})[0] == HOLDS
    assert rule({"table_1": {"records": [{**record, "steps": [8, 25]}]}})[0] == DOES_NOT


@pytest.mark.parametrize(("n_time", "verdict"), [(70.0, HOLDS), (60.0, DOES_NOT), (None, CANNOT_TELL)])
def test_self_attention_must_be_faster_up_to_n_equal_to_d(n_time, verdict):
    crossing = {"measure": "crossover", "layer": "recurrent", "d": 64, "n_time": n_time, "n_operations": 64.0}
    assert faster_while_n_is_below_d({"table_1": {"records": [crossing]}})[0] == verdict


@pytest.mark.parametrize(("lows", "p_values", "looks", "fails"), [
    ([0.4, 0.5], [0.001, 0.002], HOLDS, HOLDS), ([0.4, 0.2], [0.001, 0.2], CANNOT_TELL, CANNOT_TELL),
    ([0.1, 0.2], [0.3, 0.2], DOES_NOT, DOES_NOT)])
def test_a_claim_on_heads_needs_every_seed(lows, p_values, looks, fails):
    records = [{"shares": {"link": {"weight": low, "low": low, "high": low, "even": 0.1}},
                "ablation": {"best: link": {"before": 0.99, "after": 0.6, "p": p}}}
               for low, p in zip(lows, p_values, strict=True)]
    assert a_head_looks_there("link")({"figures_3_to_5": {"records": records}})[0] == looks
    assert without_it_words_go_wrong("link")({"figures_3_to_5": {"records": records}})[0] == fails


def test_the_printed_parameters_fit_one_vocabulary_and_not_the_stated_one():
    assert parameters_with(None)({})[0] == HOLDS
    assert parameters_with(37_000)({})[0] == DOES_NOT
    assert parameters_with(41_100)({})[0] == HOLDS


def test_what_was_not_measured_cannot_be_told():
    for claim in judge_claims({}):
        assert claim.verdict in VERDICTS
        assert (claim.verdict == CANNOT_TELL) == (claim.evidence == "not measured")


def test_there_are_more_than_twenty_claims_each_said_once():
    claims = judge_claims({})
    assert len({claim.statement for claim in claims}) == len(claims) >= 30
