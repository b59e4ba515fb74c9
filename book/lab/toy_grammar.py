"""A toy grammar of English that draws trees (section 6.3)."""

from __future__ import annotations

import random

from annotated_transformer.errors import require
from lab.parsing.trees import Tree

GRAMMAR: dict[str, list[tuple[float, str]]] = {
    "S": [(0.85, "NP VP ."), (0.15, "S-CLAUSE , CC S-CLAUSE .")],
    "NP": [
        (0.60, "NP-BASE"),
        (0.16, "NP-BASE PP-NOUN"),
        (0.12, "NP-BASE SBAR-WHO"),
        (0.12, "NP-BASE CC NP-BASE"),
    ],
    "NP-BASE": [(0.5, "DT NN"), (0.25, "DT JJ NN"), (0.25, "NNP")],
    "VP": [
        (0.15, "VBD-ALONE"),
        (0.35, "VBD NP"),
        (0.16, "VBD NP PP-VERB"),
        (0.10, "VBD-ALONE PP-VERB"),
        (0.08, "VBD-ALONE ADVP"),
        (0.08, "VBD-SAY SBAR"),
        (0.08, "VP-BASE CC VP-BASE"),
    ],
    "VP-BASE": [(0.5, "VBD-ALONE"), (0.5, "VBD NP-BASE")],
    "SBAR-WHO": [(1.0, "WHNP S-GAP")],
    "S-CLAUSE": [(1.0, "NP VP")],
    "S-GAP": [(1.0, "VP")],
    "WHNP": [(1.0, "WP")],
    "ADVP": [(1.0, "RB")],
    "PP-NOUN": [(1.0, "IN-NOUN NP")],
    "PP-VERB": [(1.0, "IN-VERB NP")],
    "SBAR": [(1.0, "IN-THAT S-CLAUSE")],
}
LEXICON = {
    "RB": "often again",
    "DT": "the a every this",
    "JJ": "old small red clever tired",
    "NNP": "Ann Bob Carol Dan",
    "NN": "dog cat bird man woman child teacher telescope garden house river song",
    "CC": "and or",
    ",": ",",
    "VBD": "saw heard chased liked found followed",
    "VBD-ALONE": "slept ran sang laughed",
    "VBD-SAY": "said thought",
    "IN-NOUN": "of of with near",
    "IN-VERB": "with near during after",
    "IN-THAT": "that",
    "WP": "who",
    ".": ".",
}
"""A toy English: `GRAMMAR` has the rules of each symbol with their probabilities, `LEXICON` the
words of each tag. A word that is listed twice is drawn twice as often. A tree's label is the symbol
up to the hyphen. A phrase with *with* or *near* may belong to a noun or to a verb.
"""


def sample_trees(n: int, seed: int = 0, max_depth: int = 8) -> list[Tree]:
    """`n` trees drawn from `GRAMMAR`, the same ones for the same seed.

    From `max_depth` on only a symbol's first rule is taken, which ends sooner than the others.
    """
    require(n >= 0, f"n must not be negative, got {n}")
    generator = random.Random(seed)

    def sample(symbol: str, depth: int) -> Tree:
        label = symbol.partition("-")[0]
        if symbol in LEXICON:
            return Tree(label, (generator.choice(LEXICON[symbol].split()),))
        rules = GRAMMAR[symbol]
        weights = [weight for weight, _ in rules]
        if depth >= max_depth:
            weights[1:] = [0.0] * (len(rules) - 1)
        rule = generator.choices(rules, weights)[0]
        children = tuple(sample(child, depth + 1) for child in rule[1].split())
        # NP -> NP-BASE is a choice of the grammar, and one bracket in the tree.
        same_label = len(children) == 1 and children[0].label == label
        return children[0] if same_label else Tree(label, children)

    return [sample("S", 1) for _ in range(n)]
