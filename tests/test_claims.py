"""A verdict follows from the numbers by the rule, and what was not measured is never more than "cannot tell"."""

import pytest

from annotated_transformer.experiments.claims import RULES, judge_claims
from annotated_transformer.experiments.verdicts import (
    CANNOT_TELL,
    DOES_NOT,
    HOLDS,
    a_head_looks_there,
    a_head_tells_the_antecedent,
    better,
    big_has_the_same_vocabulary,
    counted_as,
    faster_while_n_is_below_d,
    grows_as,
    learns_to_parse,
    nearly_the_same,
    one_head_costs_the_same,
    parameters_with,
    without_it_words_go_wrong,
    worse,
)
from annotated_transformer.variations import TABLE_3

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
    records = [{"shares": {"link": {"weight": low, "low": low, "high": low, "untrained": 0.1}},
                "ablation": {"best: link": {"before": 0.99, "after": 0.6, "p": p}}}
               for low, p in zip(lows, p_values, strict=True)]
    assert a_head_looks_there("link")({"figures_3_to_5": {"records": records}})[0] == looks
    assert without_it_words_go_wrong("link")({"figures_3_to_5": {"records": records}})[0] == fails


@pytest.mark.parametrize(("second", "other_seed", "verdict"), [
    (0.3, 0.3, HOLDS), (0.3, 0.5, CANNOT_TELL), (0.5, 0.5, DOES_NOT)])
def test_a_head_tells_the_antecedent_where_its_rival_gets_less_in_either_place(second, other_seed, verdict):
    def seed(rival):
        return {"ablation": {}, "places": {"first": {"weight beside a rival": 0.9, "rival": 0.1},
                                           "second": {"weight beside a rival": 0.4, "rival": rival}}}

    assert a_head_tells_the_antecedent({"figures_3_to_5": {"records": [seed(second), seed(other_seed)]}})[0] == verdict


@pytest.mark.parametrize(("low", "well_formed", "verdict"), [
    (40.0, 80.0, HOLDS), (40.0, 20.0, CANNOT_TELL), (8.0, 80.0, DOES_NOT)])
def test_a_parser_must_beat_the_baselines_and_write_trees(low, well_formed, verdict):
    test = {"f1": low + 1, "F1 interval": [low, low + 2], "well_formed": well_formed}
    baselines = {"flat": {"f1": 8.0}, "right-branching": {"f1": 9.0}}
    short, long = ({"corpus": "craft", "share": share, "test": [{**test, "F1 interval": interval}],
                    "baselines": baselines} for share, interval in ((0.5, [0, 1]), (1, [low, low + 2])))
    assert learns_to_parse({"parsing": {"records": [short, long]}})[0] == verdict


def test_every_row_of_table_3_is_judged():
    """A change of one row's result, up or down, changes the evidence of some claim."""
    for row in TABLE_3[1:]:
        verdicts = {rule[2]: rule[-1](results(**{row.id: (1.0, 2.0)})) for rule in RULES}
        alone = any(row.id in evidence for _, evidence in verdicts.values())
        partners = {"B1": "B2", "B2": "B1", "C1": "C2", "C2": "C1"}
        both = results(**{row.id: (1.0, 2.0), partners.get(row.id, row.id): (1.0, 2.0)})
        assert alone or any(f"{row.id}: BLEU" in rule[-1](both)[1] for rule in RULES), row.id


def test_the_printed_parameters_fit_one_vocabulary_and_not_the_stated_one():
    assert parameters_with(None)({})[0] == HOLDS
    assert parameters_with(37_000)({})[0] == DOES_NOT
    assert parameters_with(41_100)({})[0] == HOLDS
    verdict, evidence = big_has_the_same_vocabulary({})
    assert verdict == DOES_NOT
    assert evidence == "the ten need 41,004 to 41,208 tokens, big 35,368 to 36,344"


def test_heads_cost_what_one_does():
    verdict, evidence = one_head_costs_the_same({})
    assert verdict == HOLDS
    assert evidence.startswith("operations by the number of heads: 1: 109,990,100, 4: ")


def test_what_was_not_measured_cannot_be_told():
    for claim in judge_claims({}):
        assert claim.verdict in VERDICTS
        assert (claim.verdict == CANNOT_TELL) == (claim.evidence == "not measured")


def test_there_are_more_than_twenty_claims_each_said_once():
    claims = judge_claims({})
    assert len({claim.statement for claim in claims}) == len(claims) >= 30
