"""What the paper claims, and what the results in book/results say about it.

A verdict is that a claim holds, that it does not, that we cannot tell, or that the runs were too
short. It is computed from numbers by a rule of `comparisons` or `verdicts`. How far a rule was
written without knowledge of the results is said on the page of claims in the book.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from lab.experiments import verdicts
from lab.experiments.comparisons import (
    AT_THE_END,
    CANNOT_TELL,
    NOT_AT_THIS_LENGTH,
    TWO_EPOCHS,
    Compared,
    Comparison,
    Corrected,
    Finding,
    Results,
    TooShort,
    better,
    compare,
    correct,
    is_shrinking,
    nearly_the_same,
    rows_of,
    worse,
)
from lab.experiments.result_file import RESULTS, read_result
from lab.experiments.table_3.miniature import VARIATIONS, fall_of_last_fifth


class Claim(NamedTuple):
    """A claim, choice or check, in our words and where the paper has it, its rule, what came out.

    `role` is one of the three; `kind` what it rests on: arithmetic, a theorem, or trained models.
    A theorem is judged by what is counted; `timed` is the verdict of the measured times, if any.
    `compared` is the comparison of trained models that decides, where one does.
    """

    role: str
    kind: str
    section: str
    statement: str
    rule: str
    verdict: str
    evidence: str
    timed: str = ""
    compared: Comparison | None = None


def load_results(folder: str | Path) -> Results:
    """Every result file of `folder` by its name without .json."""
    return {path.stem: read_result(path) for path in sorted(Path(folder).glob("*.json"))}


CLAIM, CHOICE, CHECK = "claim", "choice", "check"
ARITHMETIC, THEOREM, TRAINED = "arithmetic", "theorem", "trained models"
CLAIM_KINDS = (ARITHMETIC, THEOREM, TRAINED)


class Rule(NamedTuple):
    """What the paper says, in our words, what that rests on, and the rule, in words and in code."""

    role: str
    kind: str
    section: str
    statement: str
    rule: str
    judge: Callable[[Results], Finding]
    timed: Callable[[Results], Finding] | None = None


def _compared(section: str, statement: str, what: str, judge: Compared, role: str = CLAIM) -> Rule:
    """A rule on trained models, whose words are read off its code."""
    return Rule(role, TRAINED, section, statement, f"{what}: {judge}", judge)


def _cost(statement: str, exponents: str, layer: str) -> Rule:
    """A rule on a line of Table 1: the exponents of n and of d."""
    words = f"exponents counted: {exponents}; timed: those of time have these in their intervals"
    judges = verdicts.grows_as(layer), verdicts.times_grow_as(layer)
    return Rule(CLAIM, THEOREM, "4", statement, words, *judges)


# fmt: off
RULES = [
    _compared("3.2.1", "Without the factor 1/sqrt(d_k), attention with large keys learns worse.",
              "h=1 (here d_k = 128), without the factor", worse("unscaled-A1")),
    Rule(CLAIM, ARITHMETIC, "3.2.2", "Many narrow heads cost about as much as one wide head.",
         "operations of an attention over 50 tokens, softmax included, within 5 %",
         verdicts.one_head_costs_the_same),
    _cost("A self-attention layer costs O(n^2 d).", "2 and 1", "self-attention"),
    _cost("A recurrent layer costs O(n d^2).", "1 and 2", "recurrent"),
    _cost("A convolution costs O(k n d^2).", "1 and 2", "convolutional"),
    _cost("Self-attention restricted to r neighbours costs O(r n d).", "1 and 1",
          "restricted self-attention"),
    _cost("A separable convolution costs O(k n d + n d^2).", "1 and 2 for large d",
          "separable convolutional"),
    Rule(CLAIM, THEOREM, "4",
         "Self-attention needs a constant number of sequential operations, recurrence O(n).",
         "the longest chain of products has the formula's length",
         verdicts.counted_as("sequential", "chains", "self-attention", "recurrent")),
    Rule(CLAIM, THEOREM, "4",
         "Any two positions are one self-attention layer apart, and O(n) steps of a recurrence.",
         "gradients reach the other end after the formula's number of steps",
         verdicts.counted_as("path", "steps", "self-attention", "recurrent")),
    Rule(CLAIM, THEOREM, "4",
         "Convolutions need O(n/k) layers, dilated ones O(log_k n), restricted attention O(n/r).",
         "gradients reach the other end after the formula's number of layers",
         verdicts.counted_as("path", "steps", "convolutional", "convolutional, dilated",
                             "restricted self-attention")),
    Rule(CLAIM, THEOREM, "4", "Self-attention is faster than recurrence while n is smaller than d.",
         "equally many operations at n = d; timed: less time at every measured n below d (one "
         "thread of a processor)", verdicts.fewer_operations_while_n_is_below_d,
         verdicts.faster_while_n_is_below_d),
    _compared("3.5", "Without positions, which the paper always adds, the model is worse.",
              "no positions at all", worse("no-positions"), CHOICE),
    _compared("3.5, 6.2", "Learned positions give nearly the same result as sinusoids.",
              "row E", nearly_the_same("E1")),
    _compared("3.5", "Sinusoids may extend to sentences longer than those seen in training.",
              "learned positions, trained on short sentences",
              worse("short-learned", measure="ppl_beyond")),
    _compared("5.3", "Training is better with the warm-up of the rate.",
              "at the peak rate from step 1", worse("no-warm-up"), CHOICE),
    _compared("3.1", "Pre-norm, which the paper does not use, is worse.",
              "under the same schedule", worse("pre-norm"), CHOICE),
    _compared("5.4", "Label smoothing hurts perplexity.", "eps_ls = 0", better("D3")),
    _compared("5.4", "Label smoothing improves BLEU.", "eps_ls = 0", worse("D3", measure="bleu")),
    _compared("6.1", "Averaging the last checkpoints helps.",
              "base with its last 5 averaged", better("averaged"), CHOICE),
    _compared("6.1", "A beam of 4 is better than greedy search.",
              "beam 1", worse("beam-1", measure="bleu"), CHOICE),
    _compared("6.1", "A length penalty with alpha 0.6 is better than none.",
              "alpha 0", worse("alpha-0", measure="bleu"), CHOICE),
    Rule(CLAIM, ARITHMETIC, "6.1",
         "Training cost 3.3e18 (base) and 2.3e19 (big) floating-point operations.",
         "hours x GPUs x rate", verdicts.costs_as_printed),
    _compared("6.2 A", "A single head is worse than eight.", "h=1", worse("A1")),
    _compared("6.2 A", "Sixteen heads do as well as eight.", "h=16", nearly_the_same("A3")),
    _compared("6.2 B", "Narrower keys hurt.", "d_k=16 (here 4)", worse("B1")),
    _compared("6.2 C", "Fewer layers are worse.", "N=2 (here 1)", worse("C1")),
    _compared("6.2 C", "A narrower model is worse.", "d_model=256 (here 64)", worse("C4")),
    _compared("6.2 C", "A narrower feed-forward network is worse.",
              "d_ff=1024 (here 256)", worse("C6")),
    _compared("6.2 D", "Dropout is very helpful against overfitting.", "p_drop=0", worse("D1")),
    _compared("6.2", "The big model is better than base.", "big", better("big")),
    Rule(CLAIM, TRAINED, "6.3", "The same model learns to parse.",
         "held-out files: F1 above flat and right-branching trees, and most outputs are trees as "
         "written", verdicts.learns_to_parse),
    Rule(CLAIM, TRAINED, "figure 4", "Some head finds what a pronoun refers to.",
         "controlled corpus: in every seed the best encoder head gives the antecedent more than "
         "its rival, by an interval, where the antecedent comes first and where it comes second",
         verdicts.a_head_tells_the_antecedent),
    Rule(CHOICE, TRAINED, "figure 4",
         "A head that looks at the antecedent is needed for pronouns (paper: 'apparently "
         "involved').", "controlled corpus: without it pronouns go wrong",
         verdicts.without_it_words_go_wrong("pronoun to antecedent, encoder")),
    Rule(CLAIM, TRAINED, "figure 3", "Some head links the distant parts of one verb.",
         "controlled corpus: the best encoder head gives the particle three times what an "
         "untrained model's gives it",
         verdicts.a_head_looks_there("verb to particle, encoder")),
    Rule(CLAIM, TRAINED, "figure 5", "Some head follows the structure of the sentence.",
         "controlled corpus: the best encoder head gives an article's noun three times what an "
         "untrained model's gives it",
         verdicts.a_head_looks_there("article to noun two on, encoder")),
    Rule(CHECK, ARITHMETIC, "6.2",
         "The parameters of base and of rows (A) to (C) fit one number of rows of width d_model.",
         "some number of rows gives all ten printed numbers", verdicts.parameters_with(None)),
    Rule(CHECK, ARITHMETIC, "5.1",
         "Those rows are a vocabulary of about 37,000 tokens, and nothing else.",
         "37,000 rows give all ten printed numbers", verdicts.parameters_with(37_000)),
    Rule(CHECK, ARITHMETIC, "6.2", "The parameters of big fit the same number of rows.",
         "some number of rows gives big's as well", verdicts.big_has_the_same_vocabulary),
]
# fmt: on
"""The claims, choices and checks.

A claim is what the paper says or prints; a choice is what it uses and reports no comparison of, so
that a verdict on it says nothing of the paper; a check holds two of its numbers against each other,
which it never does itself. Theorems are those on operations and path lengths,
which are counted and timed.
"""


def compared_models(results: Results) -> list[Comparison]:
    """Every comparison of trained models, once.

    They are the perplexities of every row of the miniature, and what the rules read besides:
    margins, BLEU where the claim is about BLEU, perplexity beyond a length. Controls are not among
    them: they say what the miniature can show at all.
    """
    rows = [
        row["id"]
        for file in (TWO_EPOCHS, AT_THE_END)
        for row in results.get(file, {}).get("summary", [])
        if row.get("group") not in ("search", "controls") or row["id"] == "averaged"
    ]
    family = compare(results, rows, "ppl")
    for rule in RULES:
        family += rule.judge.comparisons(results) if isinstance(rule.judge, Compared) else []
    return list({one.key: one for one in family}.values())


def corrected(results: Results) -> Corrected:
    """The p-value of every comparison of trained models, corrected for all of them."""
    return correct(compared_models(results))


def untold(results: Results) -> dict[str, list[str]]:
    """The comparisons that decide nothing, by verdict.

    Those that cannot tell name the difference that they could have seen, those that are not tested
    at this length how far the difference fell in the last fifth of the runs.
    """
    p_of = corrected(results)
    said: dict[str, list[str]] = {CANNOT_TELL: [], NOT_AT_THIS_LENGTH: []}
    for one in compared_models(results):
        rule = Compared((one.row,), one.measure, 0 if one.margin else one.direction)
        if (verdict := rule.verdict(one, p_of)) in said:
            said[verdict].append(rule.said(one, p_of))
    return said


def judge_claims(results: Results, too_short: TooShort = is_shrinking) -> list[Claim]:
    """Every claim and choice with its verdict and the numbers behind it."""
    p_of = corrected(results)
    found = []
    for rule in RULES:
        read: list[Comparison] = []
        more: tuple[Any, ...] = ()
        if isinstance(rule.judge, Compared):
            read = rule.judge.comparisons(results)
            more = p_of, too_short
        verdict, evidence = rule.judge(results, *more)
        timed, times = rule.timed(results) if rule.timed else ("", "")
        if times and times != evidence:
            evidence += f"; {times}"
        found.append(Claim(*rule[:5], verdict, evidence, timed, next(iter(read), None)))
    return found


def still_learns(results: Results) -> TooShort:
    """The rule on length until 2026-11-28: a row's own curve falls by more than its difference.

    That withholds small differences however steady they are, since all rows fall alike.
    """

    def too_short(one: Comparison) -> bool:
        rows = rows_of(results, one.row)
        varied = VARIATIONS[one.row].of if one.row in VARIATIONS else one.row
        row = next(row for row in rows if row.get("steps") == one.steps)
        difference = row.get("log_ppl_difference", {}) if one.measure == "bleu" else one.found.mean
        nats = difference["mean"] if isinstance(difference, dict) else difference
        curves = (row["curve"] for row in [*rows, *rows_of(results, varied)] if row.get("curve"))
        falls = (fall_of_last_fifth(curve, one.steps or 0) for curve in curves)
        return (next(filter(None, falls), None) or 0.0) > abs(nats)

    return too_short


def main() -> None:
    """Print the verdicts on trained models by both rules on length, and both tallies."""
    results = load_results(RESULTS)
    before, after = judge_claims(results, still_learns(results)), judge_claims(results)
    for old, new in zip(before, after, strict=True):
        if old.verdict != new.verdict:
            print(f"{new.statement}\n  {old.verdict} -> {new.verdict}: {new.evidence}")
    for label, claims in (("own fall", before), ("difference", after)):
        tally = Counter(claim.verdict for claim in claims if claim.kind == TRAINED)
        print(f"{label}: " + ", ".join(f"{n} {verdict}" for verdict, n in sorted(tally.items())))


if __name__ == "__main__":
    main()
