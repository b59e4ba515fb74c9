"""A verdict follows from the numbers by the rule, and what was not measured is never
more than "cannot tell"."""

import math
from pathlib import Path

import pytest

from lab.experiments import verdicts
from lab.experiments.claims import corrected, judge_claims, load_results, untold
from lab.experiments.comparisons import (
    AT_THE_END,
    CANNOT_TELL,
    DOES_NOT,
    HOLDS,
    ONE_SEED,
    at_both_lengths,
    at_each_length,
    better,
    compare,
    correct,
    counts,
    nearly_the_same,
    worse,
)
from lab.experiments.table_3.miniature import TEN
from lab.tables.table_3 import TABLE_3


def difference(low, high):
    sign = 1 if low > 0 else -1 if high < 0 else 0
    mean = (low + high) / 2  # three seeds alike: all noise is that of the sentences
    return {"low": low, "mean": mean, "high": high, "seeds": [mean] * 3, "sign": sign}


def results(**differences):
    """A table_3.json in which these variations differ from base, in BLEU and in log perplexity."""
    rows = [{"id": "base"}]
    for name, one in differences.items():
        measured = {f"{of}_difference": difference(*one) for of in ("bleu", "log_ppl")}
        rows.append({"id": name.replace("_", "-"), "against": "base", **measured})
    return {"table_3": {"summary": rows}}


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-2.0, -0.1, HOLDS), (-2.0, 0.1, CANNOT_TELL), (0.1, 2.0, DOES_NOT)],
)
def test_worse_in_bleu_is_below_and_in_perplexity_above(low, high, verdict):
    assert str(worse("A1", measure="bleu")) == "BLEU is lower"
    assert worse("A1", measure="bleu")(results(A1=(low, high)))[0] == verdict
    assert str(worse("A1")) == "perplexity is higher" and str(better("A1")).endswith("is lower")
    assert worse("A1")(results(A1=(-high, -low)))[0] == verdict
    assert better("A1")(results(A1=(low, high)))[0] == verdict


def test_a_claim_on_two_variations_needs_both():
    rule = worse("B1", "B2", measure="bleu")
    assert rule(results(B1=(-2, -1), B2=(-2, -1)))[0] == HOLDS
    assert rule(results(B1=(-2, -1), B2=(-2, 1)))[0] == CANNOT_TELL
    assert rule(results(B1=(-2, -1), B2=(1, 2)))[0] == DOES_NOT
    assert rule(results(B1=(-2, -1))) == (CANNOT_TELL, "not measured")


@pytest.mark.parametrize(
    ("low", "high", "bleu", "ppl"),
    [
        (-0.4, 0.9, HOLDS, HOLDS),
        (-0.4, 1.2, CANNOT_TELL, CANNOT_TELL),
        (1.1, 1.9, DOES_NOT, DOES_NOT),
        (-1.9, -1.1, DOES_NOT, DOES_NOT),
        (0.5, 1.5, CANNOT_TELL, CANNOT_TELL),
    ],
)
def test_nearly_the_same_is_within_the_margin(low, high, bleu, ppl):
    """One BLEU; a factor of 1.05 in perplexity."""
    assert nearly_the_same("E1", "bleu")(results(E1=(low, high)))[0] == bleu
    factors = low * math.log(1.05), high * math.log(1.05)
    assert nearly_the_same("E1", "ppl")(results(E1=factors))[0] == ppl


def test_the_evidence_names_the_numbers():
    """z = 2 / (0.5 / 1.96) = 7.8; and z = 1, where 1.96 + 0.84 is seen in four cases of five."""
    rule = worse("no-positions")
    said = "no-positions: perplexity +22.1 % (+16.2 to +28.4, 3 seeds), p below 0.0001"
    assert rule(results(no_positions=(0.15, 0.25))) == (HOLDS, said)
    said = "no-positions: perplexity +10.5 % (-9.2 to +34.4, 3 seeds), p 0.32, "
    found = rule(results(no_positions=(-0.096, 0.296)))
    assert found == (CANNOT_TELL, said + "could have seen 32.3 %")
    said = "D3: BLEU -1.00 (-2.96 to +0.96, 3 seeds), p 0.32, could have seen 2.80"
    assert worse("D3", measure="bleu")(results(D3=(-2.96, 0.96))) == (CANNOT_TELL, said)


def test_what_could_have_been_seen_has_one_value():
    """exp(0.1 (1.96 + 0.84)) is 32.3 % above 1, whichever way the claim points."""
    rows = results(big=(-0.296, 0.096))
    for rule in (worse("big"), better("big")):
        assert rule(rows)[1].endswith("could have seen 32.3 %")


@pytest.mark.parametrize(
    ("half", "said"), [(0.4, "would have held within 0.60"), (1.2, "could not have held")]
)
def test_what_is_not_shown_to_be_nearly_the_same_says_what_would_have_been(half, said):
    found = nearly_the_same("E1", "bleu")(results(E1=(0.7 - half, 0.7 + half)))
    assert found[0] == CANNOT_TELL and found[1].endswith(said)


def test_a_difference_counts_when_its_p_is_small_and_every_seed_agrees():
    apart = results(A1=(0.5, 1.5))
    (one,) = compare(apart, ["A1"], "ppl")
    assert counts(one, correct([one]))
    assert not counts(one, {one.key: 0.05})
    found = one.found._replace(seeds=[-0.1, 1.5, 1.6], seed_error=0.05, degrees=20)
    odd = one._replace(found=found)
    assert correct([odd])[odd.key] < 0.05 and not counts(odd, correct([odd]))
    assert worse("A1").verdict(odd, correct([odd])) == CANNOT_TELL


@pytest.mark.parametrize(
    ("early", "late", "became"),
    [
        ((0.1, 0.3), (0.4, 0.5), "grows"),
        ((-0.5, -0.4), (-0.3, -0.1), "shrinks"),
        ((0.1, 0.3), (0.2, 0.5), "same side"),
        ((0.1, 0.3), (-0.2, 0.5), "unclear"),
        ((0.1, 0.3), (-0.2, 0.05), "fades"),
        ((-0.1, 0.3), (-0.2, -0.11), "appears"),
        ((-0.1, 0.3), (-0.2, -0.1), "unclear"),
        ((0.1, 0.3), (-0.2, -0.1), "turns"),
        ((-0.1, 0.3), (-0.2, 0.1), "unclear"),
    ],
)
def test_what_becomes_of_a_difference_is_read_from_its_intervals(early, late, became):
    both = results(A1=early) | {AT_THE_END: results(A1=late)["table_3"]}
    assert [one for one, _ in at_both_lengths(both, ["A1", "B1"])] == [became]


def test_a_difference_is_told_at_each_length_at_which_it_was_measured():
    both = results(A1=(0.1, 0.3), B1=(0.1, 0.3)) | {AT_THE_END: results(A1=(-0.3, -0.1))["table_3"]}
    told = at_each_length(both, "A1", "C1")
    assert [line.partition(" %")[0] for line in told] == [
        "A1: perplexity +22.1",  # exp(0.2)
        "A1: perplexity -18.1",
    ]


def test_the_more_is_compared_the_more_a_difference_must_show():
    """z = 2.5, p = 0.0124: enough alone, and not beside nine others with no difference at all."""
    one = {"A1": (0.54, 4.46)}
    rows = results(**one, **{f"N{i}": (-1, 1) for i in range(9)})
    rule = worse("A1")
    assert rule(results(**one))[0] == HOLDS
    p_of = corrected(rows)
    assert len(p_of) == 10
    assert p_of["A1", "ppl", False] == pytest.approx(0.124, abs=1e-3)
    assert rule(rows, p_of)[0] == CANNOT_TELL


def test_every_comparison_of_the_stored_miniature_is_corrected_for():
    """The perplexities of ten rows, seven changes without a row and averaging; six differences or
    margins that rules read: BLEU of D3, beam-1 and alpha-0, the margins of A3 and E1, and
    perplexity beyond the lengths of training. Fewer than half cannot tell."""
    stored = load_results(Path(__file__).parents[3] / "book" / "results")
    assert len(corrected(stored)) == 10 + 7 + 1 + 6
    assert len(untold(stored)[CANNOT_TELL]) < 24 / 2


def test_what_cannot_tell_is_listed_with_what_it_could_have_seen():
    """B1 is far from 0. A3 is within 5 % of base: its margin tells, and its distance from 0 does
    not. E1 tells neither. C1 could have seen exp(0.1 (2.64 + 0.84)), with 2.64 for 5 % of six."""
    rows = results(B1=(0.15, 0.25), C1=(-0.296, 0.096), A3=(-0.01, 0.011), E1=(0.0, 0.1))
    found = untold(rows)[CANNOT_TELL]
    assert [line.split(":")[0] for line in found] == ["C1", "A3", "E1", "E1"]
    assert found[0].endswith("could have seen 41.6 %")
    assert found[-1].endswith("could not have held")


def test_controls_are_not_corrected_for():
    rows = results(A1=(1, 2), without_cross=(1, 2))
    rows["table_3"]["summary"][2]["group"] = "controls"
    assert set(corrected(rows)) == {("A1", "ppl", False)}


def fit(over, theory, exponent, reason=""):
    one = {"exponent": exponent, "low": exponent - 0.1, "high": exponent + 0.1}
    exact = {"exponent": float(theory), "low": theory, "high": theory}
    said = {"measure": "time", "layer": "recurrent", "over": over, "reason": reason}
    return {**said, "theory": theory, "time": one, "counted": exact}


@pytest.mark.parametrize(
    ("exponent", "half", "verdict"),
    [(2.09, 0.1, HOLDS), (1.91, 0.1, HOLDS), (2.11, 0.1, CANNOT_TELL), (1.8, 0.1, CANNOT_TELL),
     (2.1, 0.14, HOLDS), (2.1, 0.16, CANNOT_TELL)],
)  # fmt: skip
def test_an_exponent_of_time_has_the_formulas_in_its_interval(exponent, half, verdict):
    """Neither beside it, nor in one so wide that everything is in it. It decides nothing about what
    is counted, whose exponent must be the formula's itself."""
    records = [fit("n", 1, 1.0), fit("d", 2, exponent), fit("d", 2, 2.5, "limited by memory")]
    records[1]["time"] |= {"low": exponent - half, "high": exponent + half}
    timed, counted = verdicts.times_grow_as("recurrent"), verdicts.grows_as("recurrent")
    assert timed({"table_1": {"records": records}})[0] == verdict
    assert counted({"table_1": {"records": records}})[0] == HOLDS
    for rule in (timed, counted):
        assert rule({"table_1": {"records": records[:1]}})[0] == CANNOT_TELL
    other = {**fit("d", 2, 2.0), "counted": {"exponent": 1.98}}
    assert counted({"table_1": {"records": [records[0], other]}})[0] == DOES_NOT


def test_counts_must_be_the_formulas_at_every_size():
    record = dict(measure="path", layer="recurrent", n=[9, 27], steps=[8, 26], theory=[8, 26])
    rule = verdicts.counted_as("path", "steps", "recurrent")
    assert rule({"table_1": {"records": [record]}})[0] == HOLDS
    assert rule({"table_1": {"records": [{**record, "steps": [8, 25]}]}})[0] == DOES_NOT


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [
        ([[1.0, 1.0, 9.0]], HOLDS),
        ([[1.0, 3.0, 9.0]], DOES_NOT),
        ([[1.0, 1.0, 9.0], [3.0, 1.0, 1.0]], DOES_NOT),
    ],
)
def test_self_attention_must_be_faster_wherever_n_is_below_d(seconds, verdict):
    """At every width; what happens at n = d and above does not matter."""
    sizes = {"measure": "crossover", "layer": "recurrent", "d": 64, "n": [16, 32, 64]}
    crossings = [
        {**sizes, "seconds": [2.0, 2.0, 2.0], "seconds_self_attention": some} for some in seconds
    ]
    found = {"table_1": {"records": crossings}}
    assert verdicts.faster_while_n_is_below_d(found)[0] == verdict


@pytest.mark.parametrize(
    ("seeds", "looks", "fails"),
    [
        ([(0.4, 0.001), (0.5, 0.002)], HOLDS, HOLDS),
        ([(0.4, 0.001), (0.2, 0.2)], CANNOT_TELL, CANNOT_TELL),
        ([(0.1, 0.3), (0.2, 0.2)], DOES_NOT, DOES_NOT),
        # The weight is above three times the untrained one's.
        ([(0.31, 0.009)], HOLDS, HOLDS),
        ([(0.29, 0.02)], DOES_NOT, DOES_NOT),
        ([(0.31, 0.001, 0.6, 0.9)], HOLDS, DOES_NOT),  # significantly more often right is no fall
    ],
)
def test_a_claim_on_heads_needs_every_seed(seeds, looks, fails):
    """A head is judged by its interval, a fall by p and direction."""
    records = []
    for low, p, *answers in seeds:
        before, after = answers or (0.9, 0.6)
        share = {"weight": low + 0.1, "low": low, "high": low + 0.2, "untrained": 0.1}
        fall = {"before": before, "after": after, "p": p}
        records.append({"shares": {"link": share}, "ablation": {"best: link": fall}})
    found = {"figures_3_to_5": {"records": records}}
    assert verdicts.a_head_looks_there("link")(found)[0] == looks
    assert verdicts.without_it_words_go_wrong("link")(found)[0] == fails


@pytest.mark.parametrize(
    ("second", "other_seed", "verdict"),
    [(0.3, 0.3, HOLDS), (0.3, 0.5, CANNOT_TELL), (0.3, 0.38, CANNOT_TELL), (0.5, 0.5, DOES_NOT)],
)
def test_a_head_tells_the_antecedent_where_its_rival_gets_less_in_either_place(
    second, other_seed, verdict
):
    def place(weight, rival):
        more = {"more than the rival": {"low": weight - rival - 0.05}}
        return {"weight beside a rival": weight, "rival": rival, **more}

    records = [
        {"ablation": {}, "places": {"first": place(0.9, 0.1), "second": place(0.4, rival)}}
        for rival in (second, other_seed)
    ]
    found = {"figures_3_to_5": {"records": records}}
    assert verdicts.a_head_tells_the_antecedent(found)[0] == verdict


@pytest.mark.parametrize(
    ("low", "well_formed", "verdict"),
    [(40.0, 80.0, HOLDS), (40.0, 20.0, CANNOT_TELL), (8.0, 80.0, DOES_NOT)],
)
def test_a_parser_must_beat_the_baselines_and_write_trees(low, well_formed, verdict):
    records = [
        parsed("craft", share, steps, one, well_formed)
        for share, steps, one in ((0.5, 90, 0.0), (1, 50, low), (1, 10, 0.0))
    ]
    assert verdicts.learns_to_parse({"parsing": {"records": records}})[0] == verdict


def parsed(corpus, share, steps, low, well_formed):
    test = {"f1": low + 1, "F1 interval": [low, low + 2], "well_formed": well_formed}
    baselines = {"flat": {"f1": 8.0}, "right-branching": {"f1": 9.0}}
    run = {"corpus": corpus, "share": share, "train": {"train_steps": steps}}
    return {**run, "test": [test], "baselines": baselines}


def test_every_treebank_must_be_learned():
    records = [parsed("craft", 1, 1, 40.0, 80.0), parsed("ptb", 1, 1, 8.0, 80.0)]
    assert verdicts.learns_to_parse({"parsing": {"records": records}})[0] == CANNOT_TELL


def test_seeds_that_disagree_and_single_seeds_say_nothing():
    disagree = {"low": 1.1, "mean": 1.5, "high": 1.9, "seeds": [3.2, -0.2], "sign": 0}
    single = {"low": -2.0, "mean": -1.5, "high": -1.1, "seeds": [-1.5], "sign": -1}
    for one in (disagree, single):
        found = {"table_3": {"summary": [{"id": "E1", "against": "base", "bleu_difference": one}]}}
        assert nearly_the_same("E1", "bleu")(found)[0] == CANNOT_TELL
        verdict, said = worse("E1", measure="bleu")(found)
        assert verdict == CANNOT_TELL
        assert (said == ONE_SEED) == (one is single)


BY_ROW = {  # the claims that read one of the ten rows of Table 3
    "A1": {"A single head is worse than eight."},
    "A3": {"Sixteen heads do as well as eight."},
    "B1": {"Narrower keys hurt."},
    "C1": {"Fewer layers are worse."},
    "C4": {"A narrower model is worse."},
    "C6": {"A narrower feed-forward network is worse."},
    "D1": {"Dropout is very helpful against overfitting."},
    "D3": {"Label smoothing hurts perplexity.", "Label smoothing improves BLEU."},
    "E1": {"Learned positions give nearly the same result as sinusoids."},
    "big": {"The big model is better than base."},
}
SAME = {"A3", "E1"}  # rows that the paper moves by no more than 0.1


def of_the_paper(turned=""):
    """Table 3 as printed, each difference to base known to a thousandth; one row's turned round,
    or moved by -1.5."""
    base, rows = TABLE_3[0], [{"id": "base"}]
    for row in TABLE_3[1:]:
        sign, shift = (-1, -1.5 * (row.id in SAME)) if row.id == turned else (1, 0.0)
        rows.append({"id": row.id, "against": "base"})
        for name, d in (("bleu", row.bleu - base.bleu), ("log_ppl", math.log(row.ppl / base.ppl))):
            here = sign * d + shift
            rows[-1][f"{name}_difference"] = difference(here - 0.001, here + 0.001)
    claims = judge_claims({"table_3": {"summary": rows}})
    return {claim.statement: claim.verdict for claim in claims}


def test_the_papers_own_numbers_bear_out_every_claim_on_table_3():
    found = of_the_paper()
    assert set(BY_ROW) == set(TEN)
    assert {found[statement] for statement in set().union(*BY_ROW.values())} == {HOLDS}


@pytest.mark.slow
@pytest.mark.parametrize("row", BY_ROW)
def test_a_row_that_turns_round_changes_the_claims_on_it_and_no_others(row):
    before, after = of_the_paper(), of_the_paper(turned=row)
    assert {name for name in before if before[name] != after[name]} == BY_ROW[row]


def test_the_costs_of_table_2_come_out():
    assert verdicts.costs_as_printed({})[0] == HOLDS


def test_the_printed_parameters_fit_one_vocabulary_and_not_the_stated_one():
    assert verdicts.parameters_with(None)({})[0] == HOLDS
    assert verdicts.parameters_with(37_000)({})[0] == DOES_NOT
    assert verdicts.parameters_with(41_100)({})[0] == HOLDS
    verdict, evidence = verdicts.big_has_the_same_vocabulary({})
    assert verdict == DOES_NOT
    assert evidence == "the ten need 41,004 to 41,208 rows, big 35,368 to 36,344"


def test_heads_cost_what_one_does():
    verdict, evidence = verdicts.one_head_costs_the_same({})
    assert verdict == HOLDS
    assert evidence.startswith("operations by the number of heads: 1: 109,990,100, 4: ")


def test_each_claim_is_said_once_and_what_was_not_measured_cannot_be_told():
    claims = judge_claims({})
    assert len({claim.statement for claim in claims}) == len(claims) >= 30
    for claim in claims:
        assert claim.verdict in (HOLDS, DOES_NOT, CANNOT_TELL)
        assert (claim.verdict == CANNOT_TELL) == (claim.evidence == "not measured")
