"""Scores (section 6): BLEU and chrF through sacreBLEU, each with its signature, and perplexity per token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from annotated_transformer.batching import TokenPair, token_batches
from annotated_transformer.config import require
from annotated_transformer.loss import linear_cross_entropy
from annotated_transformer.transformer import Transformer


class Score(NamedTuple):
    """A score from 0 to 100, and sacreBLEU's signature, without which it cannot be compared with another's."""

    score: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus BLEU of plain, cased text, one reference each (sacreBLEU's defaults: tokenizer 13a, exp smoothing).

    The paper's figures come from tokenised text with compounds split, which gives about 0.7 to 1.5 more on
    English-German. Raises ConfigError when there is nothing to score or the numbers of lines differ.
    """
    from sacrebleu.metrics import BLEU

    return _corpus_score(BLEU(), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus chrF2: the F-score of character n-grams (Popovic 2015). Raises ConfigError as `bleu` does."""
    from sacrebleu.metrics import CHRF

    return _corpus_score(CHRF(), hypotheses, references)


def _corpus_score(metric: object, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    n_hypotheses, n_references = len(hypotheses), len(references)
    require(n_hypotheses == n_references,
            f"there must be one reference for each translation, got {n_hypotheses} translations "
            f"and {n_references} references")
    require(n_hypotheses > 0, "there is nothing to score: no translations were given")
    result = metric.corpus_score(list(hypotheses), [list(references)])  # type: ignore[attr-defined]
    return Score(result.score, str(metric.get_signature()))  # type: ignore[attr-defined]


def bleu_counts(hypothesis: str, reference: str) -> list[int]:
    """What one sentence adds to corpus BLEU: its words, the reference's, matched n-grams, all n-grams (n = 1 to 4)."""
    from sacrebleu.metrics import BLEU

    found = BLEU().corpus_score([hypothesis], [[reference]])
    return [found.sys_len, found.ref_len, *found.counts, *found.totals]


def bleu_from_counts(counts: Sequence[int]) -> float:
    """Corpus BLEU from the sums of `bleu_counts`: what `bleu` gives for the same sentences together."""
    from sacrebleu.metrics import BLEU

    words, reference_words, *n_grams = counts
    return float(BLEU.compute_bleu(n_grams[:4], n_grams[4:], words, reference_words, smooth_method="exp").score)


@torch.inference_mode()
def perplexity(model: Transformer, pairs: Sequence[TokenPair], max_tokens: int = 4096) -> float:
    """exp(nll / token) of the targets given the sources, eos counted, without smoothing or dropout.

    `pairs` are ids without bos and eos. A token is one of this model's vocabulary, so that perplexities compare only
    between models that share it ("per-wordpiece", says the paper under Table 3). The model is left in the mode it
    was in. Raises ConfigError when there are no pairs.
    """
    require(len(pairs) > 0, "perplexity needs at least one pair of sentences, got none")
    longest = max(max(len(source), len(target)) + 1 for source, target in pairs)
    ids = {name: getattr(model.config, name) for name in ("pad_id", "bos_id", "eos_id")}
    weight = model.embedding.weight
    nll, n_tokens = 0.0, 0
    was_training = model.training
    model.eval()
    try:
        for batch in token_batches(pairs, max(max_tokens, longest), shuffle=False, **ids):
            source, target_in, target_out, n_real = batch.to(weight.device)
            mask = model.source_mask(source)
            x = model.decode(target_in, model.encode(source, mask), mask)
            nll += linear_cross_entropy(x, weight, target_out, eps_ls=0.0, pad_id=model.config.pad_id)[1].item()
            n_tokens += n_real
    finally:
        model.train(was_training)
    return math.exp(nll / n_tokens)
