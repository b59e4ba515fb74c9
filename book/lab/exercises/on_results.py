"""The exercises on averaging, search, scores, cost, parsing (section 6), as in `on_attention`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from lab.exercises.judging import Exercise, Function, exercise, normal


@exercise("6.1-average")
def _average() -> Exercise:
    def by_name(combine: Function) -> Function:
        return lambda weights: {
            name: combine(torch.stack([one[name] for one in weights])) for name in weights[0]
        }

    def pair_by_pair(tensors: Tensor) -> Tensor:
        mean = tensors[0]
        for tensor in tensors[1:]:
            mean = (mean + tensor) / 2
        return mean

    draw = normal()
    models = [{"W": draw(2, 3), "b": draw(4)} for _ in range(3)]
    return Exercise(
        by_name(lambda tensors: tensors.mean(dim=0)),
        {
            "with two models": (models[:2],),
            "with one model": (models[:1],),
            "with three models": (models,),
        },
        {
            "That is the sum.": by_name(lambda tensors: tensors.sum(dim=0)),
            "That is the last of the models.": by_name(lambda tensors: tensors[-1]),
            "That is the first of the models.": by_name(lambda tensors: tensors[0]),
            "With two models it is right; with three, "
            "the last counts as much as the two before it together.": by_name(pair_by_pair),
            "You divide by one less than the number of models.": by_name(
                lambda tensors: tensors.sum(dim=0) / max(1, len(tensors) - 1)
            ),
            "You divide by two, however many models there are.": by_name(
                lambda tensors: tensors.sum(dim=0) / 2
            ),
            "A weight has become one number: the mean is over the models, "
            "not over a weight's entries.": by_name(lambda tensors: tensors.mean()),
        },
    )


@exercise("6.1-penalty")
def _length_penalty() -> Exercise:
    def right(length: int, alpha: float) -> float:
        return ((5 + length) / 6) ** alpha

    return Exercise(
        right,
        {
            "with length 1": (1, 0.6),
            "with length 7": (7, 0.6),
            "with alpha 0": (9, 0.0),
            "with alpha 1": (3, 1.0),
        },
        {
            "The penalty of length 1 is to be 1; yours is larger: look at the number that the "
            "length is added to.": lambda n, alpha: ((6 + n) / 6) ** alpha,
            "The penalty of length 1 is to be 1; yours is larger: "
            "look below the line.": lambda n, alpha: ((5 + n) / 5) ** alpha,
            "It is turned round: the penalty grows with the length, "
            "and log P is divided by it.": lambda n, alpha: ((5 + n) / 6) ** (-alpha),
            "alpha is an exponent, and you multiply by it.": lambda n, alpha: (5 + n) / 6 * alpha,
            "That is a power of the length itself: the formula first adds a number and "
            "divides by another.": lambda n, alpha: float(n**alpha),
            "The exponent belongs to the whole fraction.": lambda n, alpha: (5 + n) ** alpha / 6,
            "alpha is not used.": lambda n, alpha: (5 + n) / 6,
        },
    )


@exercise("6.1-beam")
def _beam_step() -> Exercise:
    def variant(
        total: Function = lambda log_p, scores: log_p + scores[:, None],
        cut: Function = lambda index, W, V: (index // V, index % V),
        largest: bool = True,
        end: Function = lambda part: part,
    ) -> Function:
        def beam_step(log_p: Tensor, scores: Tensor, beam_size: int) -> tuple[Tensor, ...]:
            best = total(log_p, scores).flatten().topk(beam_size, largest=largest)
            return tuple(end(part) for part in (*cut(best.indices, *log_p.shape), best.values))

        return beam_step

    def one_each(log_p: Tensor, scores: Tensor, beam_size: int) -> tuple[Tensor, ...]:
        values, tokens = (log_p + scores[:, None]).max(dim=1)
        order = values.argsort(descending=True)[:beam_size]
        return order, tokens[order], values[order]

    def case(seed: int, W: int, V: int, beam_size: int) -> tuple[Tensor, Tensor, int]:
        draw = normal(seed)
        return (2 * draw(W, V)).log_softmax(dim=-1), (2 * draw(W)).log_softmax(dim=0), beam_size

    return Exercise(
        variant(),
        {
            "with one hypothesis": case(0, 1, 7, 3),
            "with three hypotheses": case(3, 3, 7, 3),
            "with a beam that grows": case(2, 2, 5, 4),
        },
        {
            "You compare the next tokens only; each hypothesis brings the score that "
            "it already has.": variant(lambda log_p, scores: log_p),
            "You take the best token of each hypothesis; "
            "two continuations of one may beat the best of another.": one_each,
            "These are the worst continuations.": variant(largest=False),
            "The continuations are right, but the worst comes first.": variant(
                end=lambda part: part.flip(0)
            ),
            "Parents and tokens have changed places.": variant(
                cut=lambda index, W, V: (index % V, index // V)
            ),
            "In the flattened scores, each hypothesis has a stretch as long as the vocabulary; "
            "you cut by the beam.": variant(cut=lambda index, W, V: (index // W, index % W)),
            "Your tokens are places in the flattened scores; "
            "some are beyond the vocabulary.": variant(cut=lambda index, W, V: (index // V, index)),
        },
    )


@exercise("6.1-bleu")
def _clipped_precision() -> Exercise:
    def grams(tokens: list[str], n: int) -> Counter[tuple[str, ...]]:
        return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))

    def variant(
        hits: Function = lambda h, r: (h & r).total(),
        of: Function = lambda h, r, hypothesis: h.total(),
        size: Function = lambda n: n,
    ) -> Function:
        def clipped_precision(hypothesis: list[str], reference: list[str], n: int) -> float:
            h, r = grams(hypothesis, size(n)), grams(reference, size(n))
            return hits(h, r) / of(h, r, hypothesis)

        return clipped_precision

    reference = ["the", "cat", "is", "on", "the", "mat"]
    return Exercise(
        variant(),
        {
            "with words in another order": (
                ["on", "the", "mat", "sat", "a", "black", "cat"],
                reference,
                1,
            ),
            "with one word seven times": (["the"] * 7, reference, 1),
            "with pairs of words": (
                ["the", "cat", "sat", "on", "the", "mat", "on", "the", "cat"],
                reference,
                2,
            ),
            "with three words at a time": (["a", "dog", "is", "on", "the", "mat"], reference, 3),
        },
        {
            "An n-gram repeated seven times has seven hits in yours, however rare it is in the "
            "reference.": variant(lambda h, r: sum((n for gram, n in h.items() if gram in r))),
            "You count different n-grams, not how often each occurs.": variant(
                lambda h, r: len(h & r), lambda h, r, hypothesis: len(h)
            ),
            "That is recall: you divide by what the reference has.": variant(
                of=lambda h, r, hypothesis: r.total()
            ),
            "You divide by the number of words; above n = 1 there are fewer "
            "n-grams than words.": variant(of=lambda h, r, hypothesis: len(hypothesis)),
            "You always count single words: n is not used.": variant(size=lambda n: 1),
            "You clip to one; an n-gram that the reference has twice may count twice.": variant(
                lambda h, r: len(h & r)
            ),
        },
    )


@exercise("6.1-cost")
def _training_cost() -> Exercise:
    def times(factor: Function) -> Function:
        return lambda hours, n_gpus, flops_per_s: factor(hours, n_gpus) * flops_per_s

    return Exercise(
        times(lambda hours, n_gpus: hours * 3600 * n_gpus),
        {
            "with one GPU for one hour": (1.0, 1, 2.0e12),
            "with 8 GPUs for 12 hours": (12.0, 8, 9.5e12),
        },
        {
            "The rate is per second, and your time is in hours.": times(
                lambda hours, n_gpus: hours * n_gpus
            ),
            "Your hour has 60 seconds.": times(lambda hours, n_gpus: hours * 60 * n_gpus),
            "That is the cost of one of the GPUs.": times(lambda hours, n_gpus: hours * 3600),
            "More GPUs cost more; yours cost less.": times(
                lambda hours, n_gpus: hours * 3600 / n_gpus
            ),
            "Your time is in hours, and only one GPU is counted.": times(
                lambda hours, n_gpus: hours
            ),
        },
    )


@exercise("6.3")
def _linearize() -> Exercise:
    def variant(
        word: Function = lambda word: [word],
        start: Function = lambda label: [f"({label}"],
        end: Function = lambda label: [f"){label}"],
        deep: bool = True,
    ) -> Function:
        def linearize(tree: Any) -> list[str]:
            if isinstance(tree, str):
                return word(tree)
            label, children = tree
            inner = [
                token
                for child in children
                if deep or isinstance(child, str)
                for token in linearize(child)
            ]
            return [*start(label), *inner, *end(label)]

        return linearize

    right = variant()
    cat = "NP", ["the", "cat"]
    sentence = "S", [cat, ("VP", ["sat", ("PP", ["on", ("NP", ["the", "mat"])])])]
    return Exercise(
        right,
        {
            "with one phrase": (cat,),
            "with a phrase of one word": (("X", ["go"]),),
            "with a sentence": (sentence,),
        },
        {
            "The words are gone; here they are kept.": variant(word=lambda word: []),
            "Your closing brackets are bare: they do not say what they close.": variant(
                end=lambda label: [")"]
            ),
            "An opening bracket and its label are one token; yours are two.": variant(
                start=lambda label: ["(", label]
            ),
            "A bracket and its label are one token; yours are two.": variant(
                start=lambda label: ["(", label], end=lambda label: [")", label]
            ),
            "You leave out the trees within the tree.": variant(deep=False),
            "Nothing is closed.": variant(end=lambda label: []),
            "That is one string; a list of tokens is asked for.": lambda tree: " ".join(
                right(tree)
            ),
            "Each word has become XX; here the words are kept.": variant(word=lambda word: ["XX"]),
        },
    )
