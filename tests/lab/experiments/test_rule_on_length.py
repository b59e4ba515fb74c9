"""The rule on length follows the difference: what is disappearing decides nothing, what is steady
is judged however fast both rows still learn, and what grows says so."""

import math

import pytest

from lab.experiments.claims import judge_claims, load_results, still_learns, untold
from lab.experiments.comparisons import (
    AT_THE_END,
    CANNOT_TELL,
    DOES_NOT,
    HOLDS,
    NOT_AT_THIS_LENGTH,
    OWN_RATES,
    Drift,
    better,
    compare,
    drift_of,
    is_growing,
    is_shrinking,
    nearly_the_same,
    worse,
)
from lab.experiments.result_file import RESULTS
from lab.experiments.table_3.miniature import VARIATIONS


def difference(mean, half=0.01):
    sign = (mean > half) - (mean < -half)
    seeds = [mean] * 3
    return {"low": mean - half, "mean": mean, "high": mean + half, "seeds": seeds, "sign": sign}


def table(file=AT_THE_END, bleu=None, steps=2000, **curves):
    """Rows whose own nll falls by 0.3 in the last fifth, with these differences at 80 and 100%."""
    rows = [{"id": "base"}]
    for name, (before, after) in curves.items():
        row = {"id": name.replace("_", "-"), "against": "base", "steps": steps}
        row["curve"] = [[1000, 9.0, 5.0], [1600, 9.0, 3.3], [2000, 9.0, 3.0]]
        row["difference_curve"] = [[1000, 0.0], [1600, before], [2000, after]]
        row["log_ppl_difference"] = difference(after)
        row["bleu_difference"] = difference(after if bleu is None else bleu)
        rows.append(row)
    return {file: {"summary": rows}}


@pytest.mark.parametrize(
    ("before", "after", "verdict", "by_its_own_fall"),
    [
        (0.101, 0.1, HOLDS, NOT_AT_THIS_LENGTH),  # steady: both rows fall by 0.3
        (0.149, 0.1, HOLDS, NOT_AT_THIS_LENGTH),
        (0.151, 0.1, NOT_AT_THIS_LENGTH, NOT_AT_THIS_LENGTH),
        (0.7, 0.4, NOT_AT_THIS_LENGTH, HOLDS),  # melts, and is larger than the fall
        (0.02, 0.4, HOLDS, HOLDS),
        (-0.2, 0.1, HOLDS, NOT_AT_THIS_LENGTH),  # away from zero, to the other side
        (-0.101, -0.1, DOES_NOT, NOT_AT_THIS_LENGTH),
        (-0.2, -0.1, NOT_AT_THIS_LENGTH, NOT_AT_THIS_LENGTH),
    ],
)
def test_a_difference_that_is_disappearing_decides_nothing(before, after, verdict, by_its_own_fall):
    results = table(A1=(before, after))
    assert worse("A1")(results)[0] == verdict
    assert worse("A1")(results, None, still_learns(results))[0] == by_its_own_fall
    turned = table(A1=(-before, -after))
    assert better("A1")(turned)[0] == verdict


def test_growth_is_reported_and_changes_no_verdict():
    verdict, said = worse("D1")(table(D1=(0.04, 0.1)))
    assert verdict == HOLDS
    assert said.endswith("from +4.1 % at 1,600 steps to +10.5 % at 2,000, still growing")
    verdict, said = worse("D1")(table(D1=(0.06, 0.1)))
    assert verdict == HOLDS and "growing" not in said


def test_bleu_is_judged_by_the_curve_in_nats_and_not_by_its_own_number():
    """0.6 BLEU is more than any movement in nats; the lead in nats has halved."""
    fading = table(A1=(0.2, 0.1), bleu=0.6)
    assert better("A1", measure="bleu")(fading)[0] == NOT_AT_THIS_LENGTH
    assert nearly_the_same("A1", "bleu")(fading)[0] == NOT_AT_THIS_LENGTH
    steady = table(A1=(0.11, 0.1), bleu=0.6)
    assert better("A1", measure="bleu")(steady)[0] == HOLDS


def test_what_contradicts_weighs_more_than_what_is_too_short():
    both = table(A1=(-0.11, -0.1), B1=(0.2, 0.1))
    assert worse("A1", "B1")(both)[0] == DOES_NOT
    unsure = table(A1=(0.11, 0.1), B1=(0.2, 0.1))
    assert worse("A1", "B1")(unsure)[0] == NOT_AT_THIS_LENGTH


def test_nearly_the_same_asks_how_fast_the_margin_comes_nearer():
    """log 1.05 = 0.0488: 0.03 is 0.0188 inside it, 0.08 is 0.0312 outside."""
    for before, after, verdict in (
        (0.022, 0.03, HOLDS),  # 0.008 nearer
        (0.02, 0.03, NOT_AT_THIS_LENGTH),  # 0.01 nearer
        (0.2, 0.03, HOLDS),  # it came from outside
        (0.095, 0.08, DOES_NOT),
        (0.096, 0.08, NOT_AT_THIS_LENGTH),
    ):
        assert nearly_the_same("E1")(table(E1=(before, after)))[0] == verdict, (before, after)


def test_a_schedule_that_ends_at_zero_is_judged_at_its_end():
    """`adamw` and `muon` decay to 0, `rotary` does not."""
    assert VARIATIONS["adamw"].train["schedule"] == "wsd"
    results = table(adamw=(-0.01, -0.2), rotary=(-0.4, -0.2), muon=(-0.4, -0.2))
    judged = {one.row: one for one in compare(results, ["adamw", "rotary", "muon"], "ppl")}
    assert [is_shrinking(one) for one in judged.values()] == [False, True, False]
    assert not is_growing(judged["adamw"])


def test_a_row_without_a_curve_is_judged_by_the_row_that_it_varies_and_by_what_followed():
    """`short-learned` is row E on short captions, and kept no curve. Row E's lead was steady at
    2,000 steps and gone at 12,500."""
    short = {"id": "short-learned", "against": "short", "steps": 2000}
    short["log_ppl_difference"] = difference(-0.2)
    results = {"table_3": {"summary": [short]}} | table(E1=(-0.21, -0.2))
    assert better("short-learned")(results)[0] == HOLDS
    row = results[AT_THE_END]["summary"][1]
    row |= {"steps": 12_500, "difference_curve": [*row["difference_curve"], [12_500, -0.02]]}
    verdict, said = better("short-learned")(results)
    assert verdict == NOT_AT_THIS_LENGTH
    assert said.endswith("from -18.1 % at 2,000 steps to -2.0 % at 12,500")
    del row["difference_curve"]
    assert better("short-learned")(results)[0] == HOLDS  # nothing is known of its length


def test_a_curve_is_linear_between_its_points():
    points = [[0, 2.0], [1000, 1.0], [3000, 0.98]]
    assert drift_of(points, 3000) == Drift((2400, 3000), pytest.approx(0.986), 0.98)
    assert drift_of(points, 1100) == Drift((1100, 3000), pytest.approx(0.999), 0.98)
    assert drift_of(points, 3001) is None


def test_a_row_at_a_rate_of_its_own_is_read_first_and_both_splits_must_agree():
    late, own = table(big=(0.5, 0.5)), table(OWN_RATES, big=(-0.2, -0.2))
    assert better("big")(late)[0] == DOES_NOT
    row = own[OWN_RATES]["summary"][1]
    assert better("big")(late | own)[0] == HOLDS
    for on_test, verdict in ((-0.1, HOLDS), (-0.005, CANNOT_TELL), (0.1, CANNOT_TELL)):
        row["on test"] = {"log_ppl_difference": difference(on_test)}
        assert better("big")(late | own)[0] == verdict


@pytest.mark.slow
def test_the_stored_verdicts_follow_the_differences():
    """Recomputed here from the stored curves: no row is withheld that moved by less than half of
    its difference, and every row that moved by more is withheld or said to grow."""
    results = load_results(RESULTS)
    lines = {one.row: one for one in compare(results, ["A1", "A3", "C6", "D1", "D3"], "ppl")}
    moved = {}
    for row in results[AT_THE_END]["summary"]:
        if row["id"] in lines:
            (_, before), (_, after) = (
                point for point in row["difference_curve"] if point[0] in (10_000, 12_500)
            )
            moved[row["id"]] = (before - after) / after
            assert lines[row["id"]].movement == pytest.approx(moved[row["id"]], rel=1e-6)
    assert max(abs(moved[row]) for row in ("A1", "A3", "C6", "D3")) < 0.2 and moved["D1"] < -0.5
    assert not [name for name, one in lines.items() if is_shrinking(one)]
    assert "still growing" in next(c for c in judge_claims(results) if "Dropout" in c[3]).evidence
    assert len(untold(results)[NOT_AT_THIS_LENGTH]) <= 2
    assert math.isfinite(sum(moved.values()))
