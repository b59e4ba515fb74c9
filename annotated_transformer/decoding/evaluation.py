"""Scores (section 6): BLEU and chrF, each with its signature, and perplexity per token."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from annotated_transformer.config import ModelConfig
from annotated_transformer.data.batching import TokenPair, require_id_pairs, token_batches
from annotated_transformer.data.parallel_text import require_text_pairs
from annotated_transformer.errors import require, require_strings
from annotated_transformer.model.transformer import Transformer

if TYPE_CHECKING:
    from annotated_transformer.data.tokenizer import Tokenizer

MAX_SENTENCE_TOKENS = 1024
"""The most tokens of a sentence, eos included, that are translated or scored."""
HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")
UNSPACED = re.compile("[\u3040-\u30ff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
"""Kana, Thai, Lao, Burmese and Khmer: other scripts without spaces between words than Chinese."""


class Score(NamedTuple):
    """A score from 0 to 100, and sacreBLEU's signature: only scores of one signature compare."""

    score: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus BLEU of plain, cased text, one reference for each translation.

    The settings are sacreBLEU's defaults: tokenizer 13a, exponential smoothing; where the
    references have no spaces between words, another tokenizer (`bleu_tokenizer`). The paper's
    figures come from tokenised text with compounds split, which gives about 0.7 to 1.5 more on
    English-German. Raises ConfigError when there is nothing to score, the numbers of lines differ,
    or a translation or reference is anything but a string.

    >>> round(bleu(["The cat sat on the mat."], ["The cat sat on the mat."]).score, 1)
    100.0
    """
    return _corpus_score(_bleu_of, hypotheses, references)


def bleu_tokenizer(references: Sequence[str]) -> str:
    """The name of sacreBLEU's tokenizer for text such as these references: "13a", "zh" or "char".

    13a takes a run of letters without a space for one word: a sentence of Chinese, Japanese, Thai,
    Lao, Khmer or Burmese. Where most of the text is in such a script, Chinese characters count as
    words ("zh"), and of the other languages all characters ("char").
    """
    text = "".join("".join(references).split())
    n_han = len(HAN.findall(text))
    n_unspaced = len(UNSPACED.findall(text))
    if 2 * (n_han + n_unspaced) <= len(text):
        return "13a"
    return "char" if 20 * n_unspaced > n_han else "zh"  # Japanese has Chinese characters too


def _bleu_of(references: Sequence[str], tokenizer: str | None = None) -> Any:
    """sacreBLEU's metric for these references."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize=tokenizer or bleu_tokenizer(references))


def brevity_penalty(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """BLEU's factor for outputs that are shorter than the references: exp(1 - r / c), at most 1.

    r and c count the words, as `bleu` splits them, of the references and of the hypotheses.
    """
    return float(_bleu_of(references).corpus_score(list(hypotheses), [list(references)]).bp)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus chrF2: the F-score of character n-grams (Popovic 2015).

    Raises ConfigError as `bleu` does.

    >>> round(chrf(["The cat sat on the mat."], ["The cat sat on the mat."]).score, 1)
    100.0
    """
    from sacrebleu.metrics.chrf import CHRF

    return _corpus_score(lambda _: CHRF(), hypotheses, references)


def scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Score]:
    """`bleu` and `chrf` by the names that reports have for them."""
    return {"BLEU": bleu(hypotheses, references), "chrF2": chrf(hypotheses, references)}


def _corpus_score(
    metric_of: Callable[[Sequence[str]], Any], hypotheses: Sequence[str], references: Sequence[str]
) -> Score:
    require_strings(hypotheses, "translations are one string for each sentence")
    require_strings(references, "references are one string for each translation")
    rule = "there must be one reference for each translation"
    counts = f"{len(hypotheses)} translations and {len(references)} references"
    require(len(hypotheses) == len(references), f"{rule}, got {counts}")
    require(len(hypotheses) > 0, "there is nothing to score: no translations were given")
    metric = metric_of(references)
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(result.score, str(metric.get_signature()))


def bleu_counts(hypothesis: str, reference: str, tokenizer: str | None = None) -> list[int]:
    """What one sentence adds to corpus BLEU, ten counts.

    The words of the hypothesis and of the reference; then, for n = 1 to 4, the n-grams that match;
    then all n-grams of the hypothesis. `tokenizer` is the corpus's `bleu_tokenizer`, by default
    that of this reference.
    """
    counted = _bleu_of([reference], tokenizer).corpus_score([hypothesis], [[reference]])
    return [counted.sys_len, counted.ref_len, *counted.counts, *counted.totals]


def bleu_from_counts(counts: Sequence[int]) -> float:
    """Corpus BLEU from sums of `bleu_counts`: the score that `bleu` gives the same sentences."""
    from sacrebleu.metrics.bleu import BLEU

    words, reference_words, *n_grams = counts
    matched, total = n_grams[:4], n_grams[4:]
    found = BLEU.compute_bleu(matched, total, words, reference_words, smooth_method="exp")
    return float(found.score)


def within_reach(config: ModelConfig, pairs: Sequence[TokenPair]) -> list[int]:
    """Indices of the pairs that such a model can score; a warning says how many it cannot.

    A side has at most 1,024 tokens, eos included, or `max_len` if learned positions end earlier.
    """
    is_learned = config.positions == "learned"
    longest = min(MAX_SENTENCE_TOKENS, config.max_len) if is_learned else MAX_SENTENCE_TOKENS
    kept = [i for i, pair in enumerate(pairs) if max(map(len, pair)) < longest]
    if n_left_out := len(pairs) - len(kept):
        rule = "pairs have more than %d tokens on a side and are left out of the perplexity"
        logging.getLogger(__name__).warning(f"%d of %d {rule}", n_left_out, len(pairs), longest)
    return kept


def scorable(
    config: ModelConfig, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], back: bool = False
) -> tuple[list[tuple[str, str]], list[TokenPair]]:
    """The text pairs that such a model can score (`within_reach`), and their ids.

    As everywhere before batching, the ids have neither bos nor eos; with `back` each source begins
    with the token of that direction. Raises ConfigError for anything but pairs of strings.
    """
    require_text_pairs(pairs)
    texts = zip(tokenizer.sides, zip(*pairs, strict=True))
    sides = (one.encode_batch(list(some)) for one, some in texts)
    start = [tokenizer.back_id] if back else []
    encoded: list[TokenPair] = [([*start, *x], y) for x, y in zip(*sides, strict=True)]
    kept = within_reach(config, encoded)
    return [pairs[i] for i in kept], [encoded[i] for i in kept]


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """The model without dropout inside the `with` block; after it, in the mode it was in."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@torch.inference_mode()
def mean_nll(model: Transformer, pairs: Sequence[TokenPair], max_tokens: int = 4096) -> float:
    """Nats per target token given the sources, eos counted, without smoothing or dropout.

    `pairs` are ids without bos and eos. Logits are those of `model.logits`, so that a model in 8
    bits is scored as it translates; at most 2^20 of them, or those of 128 positions, exist at a
    time. The model is left in the mode it was in. Raises ConfigError when there are no pairs, and
    for anything but pairs of ids.
    """
    require(len(pairs) > 0, "perplexity needs at least one pair of sentences, got none")
    require_id_pairs(pairs)
    longest = max(max(len(source), len(target)) + 1 for source, target in pairs)
    ids = model.config.special_ids
    device = model.embedding.weight.device
    block_rows = max(128, 2**20 // model.config.vocab_size)
    nll = 0.0
    n_tokens = 0
    with evaluation_mode(model):
        for batch in token_batches(pairs, max(max_tokens, longest), shuffle=False, ids=ids):
            # The host still has the ids: asking a GPU which are real would mean waiting for it.
            real = (batch.target_out != ids.pad_id).flatten().nonzero()[:, 0].to(device)
            source, target_in, target_out, n_real = batch.to(device)
            mask = model.source_mask(source)
            x_ND = model.decode(target_in, model.encode(source, mask), mask).flatten(0, 1)
            for rows in real.split(block_rows):
                logits_RV = model.logits(x_ND[rows])
                logits_RV = logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))
                nll_R = F.cross_entropy(logits_RV, target_out.flatten()[rows], reduction="none")
                nll += nll_R.cpu().double().sum().item()  # MPS has no float64
            n_tokens += n_real
    return nll / n_tokens


def perplexity(model: Transformer, pairs: Sequence[TokenPair], max_tokens: int = 4096) -> float:
    """exp(nll per token): `mean_nll` as a number of equally likely tokens; inf beyond the floats.

    Tokens are this model's, so only models with one vocabulary have perplexities that compare
    ("per-wordpiece", says the paper under Table 3).

    >>> model, tokenizer = load_model("book/model")
    >>> pair = (tokenizer.encode("I am hungry."), tokenizer.encode("Ich habe Hunger."))
    >>> 1 < perplexity(model, [pair]) < 2
    True
    """
    return exp_of_nll(mean_nll(model, pairs, max_tokens))


def exp_of_nll(nats: float) -> float:
    """e to so many nats, or inf where that is no float: after a run that diverged."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf
