"""How far a score can be trusted: single sentences' scores, the noise of sentences and of seeds.

Corpus scores are functions of sums over sentences. So a sentence's share of the sums is all that is
kept, and drawing sentences with replacement (the bootstrap; Koehn 2004 for BLEU) gives the spread
that another test set of this kind would have. There are too few seeds to draw from: their part of
an interval comes from Student's t, with a variance that combines a comparison's own seeds with what
other comparisons of the same kind show (`Prior`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy import stats
from scipy.optimize import brentq
from scipy.special import digamma, polygamma
from torch import Tensor
from torch.nn import functional as F

from annotated_transformer.data.batching import TokenPair, group_by_length, make_batch
from annotated_transformer.errors import require
from annotated_transformer.model.transformer import Transformer

Metric = Callable[[Tensor], float]
Runs = Sequence[Float[Tensor, "_N _S"]]
NORMAL_95 = 1.960
N_SAMPLES = 4000
"""So many samples of the sentences give their standard deviation to 1%."""


class SentenceScores(NamedTuple):
    """What each sentence adds to a corpus score, a row a sentence, in float64.

    `nll` has the summed nats of its target and the number of tokens (eos included); `bleu` the
    words of translation and reference, then matched n-grams and all n-grams of the translation, n
    from 1 to 4.
    """

    nll: Float[Tensor, "N 2"]
    bleu: Float[Tensor, "N 10"]


@torch.inference_mode()
def sentence_nll(
    model: Transformer, pairs: Sequence[TokenPair], max_tokens: int = 4096
) -> Float[Tensor, "N 2"]:
    """Nats and tokens of each target given its source, as `evaluation.perplexity` sums them.

    The model must be in eval mode.
    """
    require(not model.training, "sentence_nll needs a model in eval mode")
    require(len(pairs) > 0, "there are no pairs to score")
    lengths = np.array([[len(source) + 1, len(target) + 1] for source, target in pairs])
    max_tokens = max(max_tokens, int(lengths.max()))
    found = torch.zeros(len(pairs), 2, dtype=torch.float64)
    pad_id = model.config.pad_id
    for group in group_by_length(lengths, max_tokens):
        batch = make_batch([pairs[i] for i in group], model.config.special_ids)
        logits = model(batch.source, batch.target_in).transpose(1, 2)
        nll_BT = F.cross_entropy(logits, batch.target_out, ignore_index=pad_id, reduction="none")
        found[group, 0] = nll_BT.sum(1).double()
        found[group, 1] = (batch.target_out != pad_id).sum(1).double()
    return found


def ratio_of_sums(sums: Float[Tensor, "2"]) -> float:
    """The first sum over the second: a mean, when the second counts."""
    return float(sums[0] / sums[1])


def ppl_of_sums(sums: Float[Tensor, "2"]) -> float:
    """exp(nats / token)."""
    return math.exp(sums[0] / sums[1])


def sentence_bleu_statistics(
    hypotheses: Sequence[str], references: Sequence[str]
) -> Float[Tensor, "N 10"]:
    """The counts that corpus BLEU is made of, for each sentence (sacreBLEU's defaults)."""
    from annotated_transformer.decoding.evaluation import bleu_counts

    counts = [bleu_counts(*pair) for pair in zip(hypotheses, references, strict=True)]
    return torch.tensor(counts, dtype=torch.float64)


def bleu_of_sums(sums: Float[Tensor, "10"]) -> float:
    """Corpus BLEU from the summed counts."""
    from annotated_transformer.decoding.evaluation import bleu_from_counts

    return bleu_from_counts([round(count) for count in sums.tolist()])


class Prior(NamedTuple):
    """The variance between seeds that comparisons of one kind share, and its degrees of freedom.

    It is the variance of a difference of two runs. `fit_prior` takes it from many comparisons.
    """

    variance: float
    degrees: float

    def moderated(self, variance: float, degrees: int) -> tuple[float, float]:
        """A comparison's own variance combined with this one (Smyth 2004), and their degrees.

        s^2 = (d_0 s_0^2 + d s_own^2) / (d_0 + d), with d_0 + d degrees of freedom.
        """
        total = self.degrees + degrees
        return (self.degrees * self.variance + degrees * variance) / total, total


LEAST_VARIANCES = 5
"""From fewer variances `fit_prior` takes no prior: it could not tell how much they differ."""


def fit_prior(variances: Sequence[float], degrees: Sequence[int]) -> Prior | None:
    """The prior of variances that were estimated with these degrees of freedom (Smyth 2004).

    True variances are taken to be s_0^2 d_0 / chi^2 with d_0 degrees of freedom. Mean and variance
    of the logarithms of the estimates give s_0 and d_0 (his section 6.2). The more the variances
    differ, the smaller is d_0. Where they differ by no more than chance, it is the sum of their own
    degrees, which is also its bound. None where there are fewer than `LEAST_VARIANCES`.
    """
    if len(variances) < LEAST_VARIANCES:
        return None
    half = np.array(degrees) / 2
    logs = np.log(variances) - digamma(half) + np.log(half)
    excess = logs.var(ddof=1) - polygamma(1, half).mean()
    half_0 = sum(degrees) / 2
    if excess > polygamma(1, half_0):
        half_0 = brentq(lambda x: polygamma(1, x) - excess, 1e-3, half_0)
    variance = math.exp(logs.mean() + digamma(half_0) - math.log(half_0))
    return Prior(variance, 2 * half_0)


class Estimate(NamedTuple):
    """A mean over seeds, its 95 % interval, and each seed's value, in the order of the seeds.

    `seed_error` is the standard error of the mean that comes from the seeds and `degrees` its
    degrees of freedom; without them they are taken from `seeds` alone.
    """

    mean: float
    low: float
    high: float
    seeds: list[float]
    seed_error: float | None = None
    degrees: float | None = None

    @property
    def sign(self) -> int:
        """+1 or -1 where the interval and every seed are on the same side of 0, else 0."""
        values = [self.low, self.high, *self.seeds]
        return 1 if min(values) > 0 else -1 if max(values) < 0 else 0


def estimate(
    metric: Metric,
    runs: Runs,
    against: Runs | None = None,
    n_samples: int = N_SAMPLES,
    prior: Prior | None = None,
) -> Estimate:
    """The metric's mean over `runs` (seeds of one configuration), or its difference to `against`.

    Differences are taken run by run (`contrast`).
    """
    terms = [(1.0, runs), (-1.0, against)] if against is not None else [(1.0, runs)]
    return contrast(metric, terms, n_samples, prior)


def contrast(
    metric: Metric,
    terms: Sequence[tuple[float, Runs]],
    n_samples: int = N_SAMPLES,
    prior: Prior | None = None,
) -> Estimate:
    """A weighted sum of the metric of several configurations, each a weight and its runs.

    The sum is taken run by run: the first runs of all belong together, and so on. The interval is

        mean +- sqrt((1.96 s_sentences)^2 + (t s_seeds / sqrt(k))^2)

    where s_sentences is the standard deviation of the mean when sentences are drawn with
    replacement, the same for all runs, so that it is paired (Efron and Tibshirani 1993, chapter 6),
    s_seeds is that of the k runs' own values, and t is Student's, 4.30 for three of them: drawing
    from three seeds could never reach beyond the outermost one. With a `prior`, s_seeds and its
    degrees of freedom are moderated by it; the prior is that of a difference, with weights 1 and
    -1, and grows with the sum of the squared weights. A single run has no s_seeds, with a prior or
    without, and its interval says nothing of other seeds. Raises ConfigError unless all runs scored
    the same number of sentences.
    """
    require(len(terms[0][1]) > 0, "there are no runs to compare")
    counts = {len(runs) for _, runs in terms}
    require(len(counts) == 1, "a paired test needs as many runs on either side")
    sizes = {len(run) for _, runs in terms for run in runs}
    require(len(sizes) == 1, f"all runs must score the same sentences, got {sorted(sizes)} of them")
    weights = drawn_sentences(sizes.pop(), n_samples)
    values = [
        sum(weight * np.array([metric(sums) for sums in weights @ run]) for weight, run in one)
        for one in zip(*([(weight, run) for run in runs] for weight, runs in terms), strict=True)
    ]
    seeds = [float(one[0]) for one in values]
    half = NORMAL_95 * statistics.stdev(np.mean([one[1:] for one in values], axis=0).tolist())
    if prior:
        of_difference = sum(weight**2 for weight, _ in terms) / 2
        prior = prior._replace(variance=of_difference * prior.variance)
    error, degrees = _seed_error(seeds, prior)
    if degrees:
        half = math.hypot(half, stats.t.isf(0.025, degrees) * error)
    mean = statistics.fmean(seeds)
    return Estimate(mean, mean - half, mean + half, seeds, error, degrees)


@lru_cache(maxsize=4)
def drawn_sentences(n: int, n_samples: int) -> Float[Tensor, "R N"]:
    """How often each of n sentences is in each sample with replacement; in row 0 each is once."""
    generator = torch.Generator().manual_seed(0)
    drawn = (torch.randint(n, (n,), generator=generator) for _ in range(n_samples))
    counts = [torch.bincount(sample, minlength=n).double() for sample in drawn]
    return torch.stack([torch.ones(n, dtype=torch.float64), *counts])


def _seed_error(seeds: Sequence[float], prior: Prior | None = None) -> tuple[float, float]:
    """The standard error of the seeds' mean, and its degrees of freedom: 0 for a single seed."""
    if len(seeds) < 2:
        return 0.0, 0.0
    own, degrees = statistics.variance(seeds), len(seeds) - 1
    variance, total = prior.moderated(own, degrees) if prior else (own, float(degrees))
    return math.sqrt(variance / len(seeds)), total


P_LEAST = 1e-9
"""The smallest p-value that `p_value` reports."""


def p_value(found: Estimate, value: float = 0.0) -> float:
    """How surprising `found` would be if the true number were `value`: two-sided, at least 1e-9.

    It is the level at which the interval (`half_width`) ends exactly at `value`, so that p < 0.05
    where the 95 % interval leaves `value` out.
    """
    distance = abs(found.mean - value)
    if half_width(found, P_LEAST) <= distance:
        return P_LEAST if distance else 1.0
    log_p = brentq(
        lambda log_p: half_width(found, math.exp(log_p)) - distance, math.log(P_LEAST), 0.0
    )
    return math.exp(log_p)


def half_width(found: Estimate, level: float) -> float:
    """How far the interval reaches to either side when it misses the truth in `level` of cases.

    At 0.05 it is the interval of `estimate`. The seeds have their part of it, the sentences what
    is left; their factors are the quantiles of Student's t and of the normal distribution for
    `level`.
    """
    of_seeds, degrees = _seed_error(found.seeds)
    if found.seed_error is not None and found.degrees is not None:
        of_seeds, degrees = found.seed_error, found.degrees
    half = (found.high - found.low) / 2
    t = stats.t.isf(0.025, degrees) if degrees else 0.0
    of_sentences = math.sqrt(max(0.0, half**2 - (t * of_seeds) ** 2)) / NORMAL_95
    normal = stats.norm.isf(level / 2)
    student = stats.t.isf(level / 2, degrees) if of_seeds else 0.0
    return math.hypot(normal * of_sentences, student * of_seeds)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction (1979): each p-value as it counts among all of them, in the same order.

    The smallest of m is multiplied by m, the next by m - 1, and so on; none comes out below one
    that was smaller, or above 1. Whichever of the m differences are truly 0, the chance that any of
    those comes out below 0.05 is at most 5 %.
    """
    corrected, highest = [0.0] * len(p_values), 0.0
    for done, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = min(1.0, max(highest, (len(p_values) - done) * p_values[i]))
        corrected[i] = highest
    return corrected
