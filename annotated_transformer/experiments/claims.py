"""What the paper claims, and what the results in book/results say about it.

A verdict is that a claim holds, that it does not, or that we cannot tell. It is computed from
numbers by a rule of `verdicts`. How far a rule was written without knowledge of the results is said
on the page of claims in the book.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from annotated_transformer.experiments.result_file import read_result
from annotated_transformer.experiments.verdicts import (
    Finding,
    Results,
    a_head_looks_there,
    a_head_tells_the_antecedent,
    better,
    big_has_the_same_vocabulary,
    costs_as_printed,
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


class Claim(NamedTuple):
    """A claim, or a choice, in our words and where the paper makes it, its rule, what came out."""

    kind: str
    section: str
    statement: str
    rule: str
    verdict: str
    evidence: str


def load_results(folder: str | Path) -> Results:
    """Every result file of `folder` by its name without .json."""
    return {path.stem: read_result(path) for path in sorted(Path(folder).glob("*.json"))}


CLAIM, CHOICE = "claim", "choice"
Rule = Callable[[Results], Finding]
# fmt: off
RULES: list[tuple[str, str, str, str, Rule]] = [
    (CLAIM, "3.2.1", "Without the factor 1/sqrt(d_k), attention with large keys learns worse.",
     "h=1 (here d_k = 64): perplexity without the factor is higher",
     worse("unscaled-A1", measure="ppl")),
    (CLAIM, "3.2.1",
     "With small keys the factor hardly matters (our reading: the paper compares additive "
     "attention).",
     "h=8 (here d_k = 8): perplexity without it within 5 %", nearly_the_same("unscaled", "ppl")),
    (CLAIM, "3.2.2", "Many narrow heads cost about as much as one wide head.",
     "operations of an attention over 50 tokens, softmax included, within 5 %",
     one_head_costs_the_same),
    (CLAIM, "4", "A self-attention layer costs O(n^2 d).",
     "fitted exponents of time within 0.15 of 2 and 1", grows_as("self-attention")),
    (CLAIM, "4", "A recurrent layer costs O(n d^2).",
     "fitted exponents of time within 0.15 of 1 and 2", grows_as("recurrent")),
    (CLAIM, "4", "A convolution costs O(k n d^2).",
     "fitted exponents of time within 0.15 of 1 and 2", grows_as("convolutional")),
    (CLAIM, "4", "Self-attention restricted to r neighbours costs O(r n d).",
     "fitted exponents of time within 0.15 of 1 and 1", grows_as("restricted self-attention")),
    (CLAIM, "4", "A separable convolution costs O(k n d + n d^2).",
     "for large d: exponents within 0.15 of 1 and 2", grows_as("separable convolutional")),
    (CLAIM, "4",
     "Self-attention needs a constant number of sequential operations, recurrence O(n).",
     "the longest chain of products has the formula's length",
     counted_as("sequential", "chains", "self-attention", "recurrent")),
    (CLAIM, "4",
     "Any two positions are one self-attention layer apart, and O(n) steps of a recurrence.",
     "gradients reach the other end after the formula's number of steps",
     counted_as("path", "steps", "self-attention", "recurrent")),
    (CLAIM, "4",
     "Convolutions need O(n/k) layers, dilated ones O(log_k n), restricted attention O(n/r).",
     "gradients reach the other end after the formula's number of layers",
     counted_as("path", "steps", "convolutional", "convolutional, dilated",
                "restricted self-attention")),
    (CLAIM, "4", "Self-attention is faster than recurrence while n is smaller than d.",
     "less time at every measured n below d (one thread of a processor)",
     faster_while_n_is_below_d),
    (CLAIM, "3.5",
     "Without positions the model is worse, since it cannot use the order of the words.",
     "no positions at all: BLEU is lower", worse("no-positions")),
    (CLAIM, "3.5, 6.2", "Learned positions give nearly the same result as sinusoids.",
     "row E: BLEU within 1 of base's", nearly_the_same("E1", "bleu")),
    (CLAIM, "3.5", "Sinusoids may extend to sentences longer than those seen in training.",
     "trained on short sentences: perplexity on longer ones is higher with learned positions",
     worse("short-learned", measure="ppl_beyond")),
    (CHOICE, "5.3", "Training is better with the warm-up of the rate.",
     "at the peak rate from step 1: BLEU is lower", worse("no-warm-up")),
    (CHOICE, "3.1", "Pre-norm, which the paper does not use, is worse.",
     "pre-norm has lower BLEU under the same schedule", worse("pre-norm")),
    (CLAIM, "5.4", "Label smoothing hurts perplexity.",
     "eps_ls = 0: perplexity is lower", better("D3", measure="ppl")),
    (CLAIM, "5.4", "Label smoothing improves BLEU.", "eps_ls = 0: BLEU is lower", worse("D3")),
    (CLAIM, "6.2 D", "Twice the label smoothing does nearly as well in BLEU.",
     "eps_ls = 0.2: BLEU within 1 of base's", nearly_the_same("D4", "bleu")),
    (CHOICE, "6.1", "Averaging the last checkpoints helps.",
     "base with its last 5 averaged: BLEU is higher", better("averaged")),
    (CHOICE, "6.1", "A beam of 4 is better than greedy search.",
     "beam 1: BLEU is lower", worse("beam-1")),
    (CHOICE, "6.1", "A length penalty with alpha 0.6 is better than none.",
     "alpha 0: BLEU is lower", worse("alpha-0")),
    (CLAIM, "6.1", "Training cost 3.3e18 (base) and 2.3e19 (big) floating-point operations.",
     "hours x GPUs x rate", costs_as_printed),
    (CLAIM, "6.2 A", "A single head is worse than eight.", "h=1: BLEU is lower", worse("A1")),
    (CLAIM, "6.2 A", "Four heads are worse than eight.", "h=4: BLEU is lower", worse("A2")),
    (CLAIM, "6.2 A", "Sixteen heads do as well as eight.",
     "h=16: BLEU within 1 of base's", nearly_the_same("A3", "bleu")),
    (CLAIM, "6.2 A", "Quality also drops with too many heads.", "h=32: BLEU is lower", worse("A4")),
    (CLAIM, "6.2 B", "Narrower keys hurt.",
     "d_k=16 and 32 (here 2 and 4): BLEU is lower", worse("B1", "B2")),
    (CLAIM, "6.2 B", "Narrower keys hurt, in perplexity too.",
     "d_k=16 and 32 (here 2 and 4): perplexity is higher", worse("B1", "B2", measure="ppl")),
    (CLAIM, "6.2 C", "Fewer layers are worse.",
     "N=2 and 4 (here 1 and 2): BLEU is lower", worse("C1", "C2")),
    (CLAIM, "6.2 C", "More layers lower the perplexity.",
     "N=8 (here 4): perplexity is lower", better("C3", measure="ppl")),
    (CLAIM, "6.2 C", "A narrower model is worse.",
     "d_model=256 (here 32): BLEU is lower", worse("C4")),
    (CLAIM, "6.2 C", "A wider model is better.",
     "d_model=1024 (here 128): BLEU is higher", better("C5")),
    (CLAIM, "6.2 C", "A narrower feed-forward network is worse.",
     "d_ff=1024 (here 128): BLEU is lower", worse("C6")),
    (CLAIM, "6.2 C", "A wider feed-forward network is better.",
     "d_ff=4096 (here 512): BLEU is higher", better("C7")),
    (CLAIM, "6.2 D", "Dropout is very helpful against overfitting.",
     "p_drop=0: BLEU is lower", worse("D1")),
    (CLAIM, "6.2 D", "A dropout of 0.2 is worse for base than 0.1.",
     "p_drop=0.2: BLEU is lower", worse("D2")),
    (CLAIM, "6.2", "The big model is better than base.",
     "big: BLEU is higher than base's", better("big")),
    (CLAIM, "6.3", "The same model learns to parse.",
     "held-out files: F1 above flat and right-branching trees, and most outputs are trees as "
     "written",
     learns_to_parse),
    (CLAIM, "figure 4", "Some head finds what a pronoun refers to.",
     "controlled corpus: in every seed the best encoder head gives the antecedent more than its "
     "rival, by an interval, where the antecedent comes first and where it comes second",
     a_head_tells_the_antecedent),
    (CHOICE, "figure 4",
     "A head that looks at the antecedent is needed for pronouns (paper: 'apparently involved').",
     "controlled corpus: without it pronouns go wrong",
     without_it_words_go_wrong("pronoun to antecedent, encoder")),
    (CLAIM, "figure 3", "Some head links the distant parts of one verb.",
     "controlled corpus: the best encoder head gives the particle three times what an untrained "
     "model's gives it",
     a_head_looks_there("verb to particle, encoder")),
    (CLAIM, "figure 5", "Some head follows the structure of the sentence.",
     "controlled corpus: the best encoder head gives an article's noun three times what an "
     "untrained model's gives it",
     a_head_looks_there("article to noun two on, encoder")),
    (CLAIM, "6.2",
     "The parameters of base and of rows (A) to (C) were counted with one vocabulary.",
     "some vocabulary gives all ten printed numbers", parameters_with(None)),
    (CLAIM, "5.1", "That vocabulary has about 37,000 tokens.",
     "37,000 gives all ten", parameters_with(37_000)),
    (CLAIM, "6.2", "The parameters of big were counted with the same vocabulary.",
     "some vocabulary gives big's as well", big_has_the_same_vocabulary),
]
# fmt: on
"""What it is, section, statement in our words, rule in words, rule in code.

A claim is what the paper says or prints; a choice is what it uses and reports no comparison of, so
that a verdict on it says nothing of the paper.
"""


def judge_claims(results: Results) -> list[Claim]:
    """Every claim and choice with its verdict and the numbers behind it."""
    return [
        Claim(kind, section, statement, rule, *judge(results))
        for kind, section, statement, rule, judge in RULES
    ]
