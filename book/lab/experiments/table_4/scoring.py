"""How a parser is scored (section 6.3): F1, its interval, by length, and without learning."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from annotated_transformer.decoding.translator import Translator
from lab.experiments.significance import estimate
from lab.experiments.table_4 import treebank
from lab.parsing.linearization import delinearize, is_well_formed, linearize
from lab.parsing.scoring import BracketCounts, bracket_counts, f1_of_counts
from lab.parsing.trees import Tree, tree_words

SEARCH: dict[str, Any] = {"alpha": 0.3, "max_extra": 300}
Scores = dict[str, Any]


def parse(
    translator: Translator, trees: Sequence[Tree], beam_size: int
) -> tuple[list[Tree], Scores]:
    """The repaired trees, and F1 with the share of outputs that were trees as written."""
    began = time.process_time()
    sentences = [tree_words(tree) for tree in trees]
    sources = [" ".join(words) for words in sentences]
    texts = translator.translate(sources, beam_size=beam_size, by_score=True, **SEARCH)
    outputs = [text.split() for text in texts]
    predicted = list(map(delinearize, outputs, sentences))
    well_formed = sum(map(is_well_formed, outputs, sentences))
    return predicted, {
        "beam_size": beam_size,
        **SEARCH,
        "sentences": len(trees),
        **score(trees, predicted),
        "well_formed": 100 * well_formed / len(trees),
        "seconds": round(time.process_time() - began, 1),
    }


def score(gold: Sequence[Tree], predicted: Sequence[Tree]) -> Scores:
    """Precision, recall, F1 and complete matches in percent, with the 95 % interval of F1.

    The interval is over resampled sentences.
    """
    counts = list(map(bracket_counts, gold, predicted))

    def f1(sums: torch.Tensor) -> float:
        return f1_of_counts([BracketCounts(*sums.tolist())]).f1

    found = estimate(f1, [torch.tensor(counts, dtype=torch.float64)])
    return {**f1_of_counts(counts)._asdict(), "F1 interval": [found.low, found.high]}


def baselines(gold: Sequence[Tree], training: Sequence[Tree]) -> Scores:
    """Scores of trees that nobody has learned."""
    tokens = (token for tree in training for token in linearize(tree, "tags"))
    labels = Counter(token[1:] for token in tokens if token[0] == "(")
    label = labels.most_common(1)[0][0]
    branching = [treebank.right_branching(tree, label) for tree in gold]
    return {
        "flat": score(gold, [treebank.flat(tree) for tree in gold]),
        "right-branching": {"label": label, **score(gold, branching)},
    }


def by_length(trees: Sequence[Tree], counts: Sequence[BracketCounts]) -> list[Scores]:
    """F1 of the sentences of up to 10, 20, ... words, those of the bins before left out."""
    found = []
    lengths = [len(tree_words(tree)) for tree in trees]
    for low, high in ((1, 10), (11, 20), (21, 30), (31, 40), (41, 10_000)):
        here = [count for n, count in zip(lengths, counts, strict=True) if low <= n <= high]
        if any(gold + predicted for _, gold, predicted in here):
            f1 = f1_of_counts(here).f1
            found.append({"words": [low, high], "sentences": len(here), "f1": f1})
    return found
