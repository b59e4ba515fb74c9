"""What a BLEU score says: its interval, and a verdict in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from annotated_transformer.decoding import evaluation

ENOUGH = 50
"""Below so many sentences a score says too little: its interval is wider than any difference that
one hopes for."""
N_DRAWS = 1000
LEVELS = {
    10: "it cannot translate yet",
    20: "some sentences come out right, most do not",
    30: "most translations give the gist, many have mistakes",
    101: "most translations can be understood",
}
"""The verdict below each score, a rule of thumb: BLEU depends on the languages and the text too."""


def interval(translations: Sequence[str], references: Sequence[str]) -> tuple[float, float]:
    """The 95% interval of BLEU by the bootstrap: 1,000 draws of as many sentences (Koehn 2004)."""
    tokenizer = evaluation.bleu_tokenizer(references)
    both = zip(translations, references, strict=True)
    counts = np.array([evaluation.bleu_counts(x, y, tokenizer) for x, y in both])
    draws = np.random.default_rng(1).integers(len(counts), size=(N_DRAWS, len(counts)))
    sums = (counts[draw].sum(axis=0).tolist() for draw in draws)
    scores = sorted(map(evaluation.bleu_from_counts, sums))
    return scores[N_DRAWS // 40], scores[-N_DRAWS // 40 - 1]


def verdict(translated: Sequence[Sequence[str]]) -> str:
    """BLEU with its interval and what that says, in a line, of (source, reference, translation).

    A model cannot translate yet if its score is below 10, or if the sources, copied unchanged,
    score within its interval.
    """
    sources, references, translations = map(list, zip(*translated, strict=True))
    score = evaluation.bleu(translations, references).score
    low, high = interval(translations, references)
    copied = evaluation.bleu(sources, references).score
    level = next(level for limit, level in LEVELS.items() if score < limit or low <= copied)
    n = len(translated)
    if n < ENOUGH:
        maybe = f", but {level}" if level == LEVELS[10] else ""
        level = f"too few sentences to tell, {ENOUGH} are needed{maybe}"
    return f"BLEU {score:.1f} (95% interval {low:.1f} to {high:.1f}, {n} sentences): {level}"
