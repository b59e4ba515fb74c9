"""Scores (section 6): BLEU and chrF, each with its signature, and perplexity per token."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional as F

from annotated_transformer.config import ModelConfig
from annotated_transformer.errors import require
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.text.batching import TokenPair, token_batches
from annotated_transformer.text.parallel_text import require_text_pairs

if TYPE_CHECKING:
    from annotated_transformer.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)
LONGEST = 1024
"""Tokens of a sentence (eos included) beyond which it is neither translated whole nor scored."""


class Score(NamedTuple):
    """A score from 0 to 100, and the signature of sacreBLEU.

    Without the signature it cannot be compared with another's.
    """

    score: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus BLEU of plain, cased text, one reference for each translation.

    The settings are sacreBLEU's defaults: tokenizer 13a, exponential smoothing. The paper's figures
    come from tokenised text with compounds split, which gives about 0.7 to 1.5 more on
    English-German. Raises ConfigError when there is nothing to score or the numbers of lines
    differ.

    >>> round(bleu(["The cat sat on the mat."], ["The cat sat on the mat."]).score, 1)
    100.0
    """
    from sacrebleu.metrics.bleu import BLEU

    return _corpus_score(BLEU(), hypotheses, references)


def brevity_penalty(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """BLEU's factor for outputs that are shorter than the references: exp(1 - r / c), at most 1.

    r and c are the numbers of words (tokenizer 13a) of references and hypotheses.
    """
    from sacrebleu.metrics.bleu import BLEU

    return float(BLEU().corpus_score(list(hypotheses), [list(references)]).bp)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus chrF2: the F-score of character n-grams (Popovic 2015).

    Raises ConfigError as `bleu` does.

    >>> round(chrf(["The cat sat on the mat."], ["The cat sat on the mat."]).score, 1)
    100.0
    """
    from sacrebleu.metrics.chrf import CHRF

    return _corpus_score(CHRF(), hypotheses, references)


def _corpus_score(metric: object, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    n_hypotheses, n_references = len(hypotheses), len(references)
    require(
        n_hypotheses == n_references,
        f"there must be one reference for each translation, got {n_hypotheses} translations "
        f"and {n_references} references",
    )
    require(n_hypotheses > 0, "there is nothing to score: no translations were given")
    result = metric.corpus_score(list(hypotheses), [list(references)])  # type: ignore[attr-defined]
    return Score(result.score, str(metric.get_signature()))  # type: ignore[attr-defined]


def bleu_counts(hypothesis: str, reference: str) -> list[int]:
    """What one sentence adds to corpus BLEU.

    Its words, the reference's, its matched n-grams and all its n-grams (n = 1 to 4).
    """
    from sacrebleu.metrics.bleu import BLEU

    found = BLEU().corpus_score([hypothesis], [[reference]])
    return [found.sys_len, found.ref_len, *found.counts, *found.totals]


def bleu_from_counts(counts: Sequence[int]) -> float:
    """Corpus BLEU from the sums of `bleu_counts`.

    It is what `bleu` gives for the same sentences together.
    """
    from sacrebleu.metrics.bleu import BLEU

    words, reference_words, *n_grams = counts
    matched, total = n_grams[:4], n_grams[4:]
    found = BLEU.compute_bleu(matched, total, words, reference_words, smooth_method="exp")
    return float(found.score)


def within_reach(config: ModelConfig, pairs: Sequence[TokenPair]) -> list[int]:
    """Indices of the pairs that such a model can score; a warning says how many it cannot.

    A side has at most 1,024 tokens (eos included), or `max_len` where positions are learned and end
    there.
    """
    longest = min(LONGEST, config.max_len) if config.positions == "learned" else LONGEST
    kept = [i for i, pair in enumerate(pairs) if max(map(len, pair)) < longest]
    if len(kept) < len(pairs):
        log.warning(
            "%d of %d pairs have more than %d tokens on a side and are left out of the perplexity",
            len(pairs) - len(kept),
            len(pairs),
            longest,
        )
    return kept


def scorable(
    config: ModelConfig, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]
) -> tuple[list[tuple[str, str]], list[TokenPair]]:
    """The text pairs that such a model can score (`within_reach`), and their ids.

    The ids are without bos and eos. Raises ConfigError for rows that are no pairs of text.
    """
    require_text_pairs(pairs)
    sides = (tokenizer.encode_batch(list(texts)) for texts in zip(*pairs, strict=True))
    encoded: list[TokenPair] = list(zip(*sides, strict=True))
    kept = within_reach(config, encoded)
    return [pairs[i] for i in kept], [encoded[i] for i in kept]


@torch.inference_mode()
def mean_nll(model: Transformer, pairs: Sequence[TokenPair], max_tokens: int = 4096) -> float:
    """Nats a target token given the sources, eos counted, without smoothing or dropout.

    `pairs` are ids without bos and eos. Logits are those of `model.logits`, so that a model in 8
    bits is scored as it translates; they exist for 2^20 numbers at a time. The model is left in the
    mode it was in. Raises ConfigError when there are no pairs.
    """
    require(len(pairs) > 0, "perplexity needs at least one pair of sentences, got none")
    longest = max(max(len(source), len(target)) + 1 for source, target in pairs)
    ids = model.config.special_ids
    device, block_rows = model.embedding.weight.device, max(128, 2**20 // model.config.vocab_size)
    nll, n_tokens = 0.0, 0
    was_training = model.training
    model.eval()
    try:
        for batch in token_batches(pairs, max(max_tokens, longest), shuffle=False, ids=ids):
            real = (batch.target_out != ids.pad_id).flatten().nonzero()[:, 0].to(device)
            source, target_in, target_out, n_real = batch.to(device)
            mask = model.source_mask(source)
            x_ND = model.decode(target_in, model.encode(source, mask), mask).flatten(0, 1)
            for rows in real.split(block_rows):
                logits_RV = model.logits(x_ND[rows])
                logits_RV = logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))
                nll_R = F.cross_entropy(logits_RV, target_out.flatten()[rows], reduction="none")
                nll += nll_R.double().sum().item()
            n_tokens += n_real
    finally:
        model.train(was_training)
    return nll / n_tokens


def perplexity(model: Transformer, pairs: Sequence[TokenPair], max_tokens: int = 4096) -> float:
    """exp(nll / token): `mean_nll` as a number of equally likely tokens; inf beyond the floats.

    A token is one of this model's vocabulary, so that perplexities compare only between models that
    share it ("per-wordpiece", says the paper under Table 3).

    >>> model, tokenizer = load_model("book/model")
    >>> pair = (tokenizer.encode("I am hungry."), tokenizer.encode("Ich habe Hunger."))
    >>> 1 < perplexity(model, [pair]) < 2
    True
    """
    return exp_of_nll(mean_nll(model, pairs, max_tokens))


def exp_of_nll(nats: float) -> float:
    """e to so many nats.

    It is inf where that is too large for a float, as it is for a run that diverged.
    """
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf
