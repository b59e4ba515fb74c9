"""How far a score can be trusted: single sentences' scores, the noise of sentences and of seeds.

Corpus scores are functions of sums over sentences. So a sentence's share of the sums is all that is
kept, and drawing sentences with replacement (the bootstrap; Koehn 2004 for BLEU) gives the spread
that another test set of this kind would have. Of seeds there are too few to draw from: their spread
is taken from Student's t, with the seeds of one configuration, or of many (`block_spread`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy import stats
from scipy.optimize import brentq
from torch import Tensor
from torch.nn import functional as F

from annotated_transformer.data.batching import TokenPair, group_by_length, make_batch
from annotated_transformer.errors import require
from annotated_transformer.model.transformer import Transformer

Metric = Callable[[Tensor], float]
NORMAL_95 = 1.960


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


class Spread(NamedTuple):
    """The standard deviation of a value between seeds, and its degrees of freedom."""

    sd: float
    degrees: int


def block_spread(table: Sequence[Sequence[float]]) -> Spread:
    """What is left to chance where every configuration was run with the same seeds.

        s^2 = sum_gi (x_gi - mean_g - mean_i + mean)^2 / ((G - 1) (k - 1))

    That is the error of a randomized block design (Fisher 1935): G configurations, a row each, and
    k seeds, each a block, since a seed gives all of them the same batches, in the same order. What
    a seed does to all alike is not in s, and cancels in a difference of two configurations, whose
    standard deviation is sqrt(2) s. It takes their noise to be equal. Raises ConfigError unless
    there are two rows or more of as many seeds, two at least.
    """
    sizes = {len(row) for row in table}
    require(
        len(table) > 1 and len(sizes) == 1 and min(sizes) > 1,
        f"a block design needs two rows or more of as many seeds, got {sorted(sizes)} seeds "
        f"in {len(table)} rows",
    )
    x = torch.tensor(table, dtype=torch.float64)
    left = x - x.mean(1, keepdim=True) - x.mean(0) + x.mean()
    degrees = (x.size(0) - 1) * (x.size(1) - 1)
    return Spread(math.sqrt(left.square().sum().item() / degrees), degrees)


ALIKE = 0.01
"""A configuration has its own noise where chance gives so large a variance less often than this.

Its own variance over the common one is then beyond the 1 % point of F (Fisher 1925): 5.85 with 2
and 20 degrees of freedom, 3.41 with 5 and 50.
"""


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
    degrees: int | None = None

    @property
    def sign(self) -> int:
        """+1 or -1 where the interval and every seed are on the same side of 0, else 0."""
        values = [self.low, self.high, *self.seeds]
        return 1 if min(values) > 0 else -1 if max(values) < 0 else 0


def estimate(
    metric: Metric,
    runs: Sequence[Float[Tensor, "_N _S"]],
    against: Sequence[Float[Tensor, "_N _S"]] | None = None,
    n_samples: int = 1000,
    spread: Spread | None = None,
) -> Estimate:
    """The metric's mean over `runs` (seeds of one configuration), or its difference to `against`.

    Differences are taken run by run. The interval is

        mean +- sqrt((1.96 s_sentences)^2 + (t s_seeds / sqrt(k))^2)

    where s_sentences is the standard deviation of the mean when sentences are drawn with
    replacement, the same for all runs and both sides, so that a difference is paired (Efron and
    Tibshirani 1993, chapter 6), s_seeds is that of the k runs' own values, and t is Student's, 4.30
    for three of them: drawing from three seeds could never reach beyond the outermost one. Where
    `spread`, taken from more runs, is given, s_seeds is that, with its degrees of freedom, unless
    the runs' own variance is larger than chance would make it (`ALIKE`). A single run has no
    s_seeds, with a `spread` or without, and its interval says nothing of other seeds. Raises
    ConfigError unless all runs scored the same number of sentences.
    """
    require(len(runs) > 0, "there are no runs to compare")
    paired = against is None or len(against) == len(runs)
    require(paired, "a paired test needs as many runs on either side")
    sizes = {len(run) for run in [*runs, *(against or ())]}
    require(len(sizes) == 1, f"all runs must score the same sentences, got {sorted(sizes)} of them")

    def values(weights: Float[Tensor, "N"]) -> list[float]:
        ours = [metric(weights @ run) for run in runs]
        theirs = [metric(weights @ run) for run in against] if against else [0.0] * len(ours)
        return [one - other for one, other in zip(ours, theirs, strict=True)]

    n = sizes.pop()
    generator = torch.Generator().manual_seed(0)
    drawn = (torch.randint(n, (n,), generator=generator) for _ in range(n_samples))
    weights = (torch.bincount(sample, minlength=n).double() for sample in drawn)
    means = [statistics.fmean(values(sample)) for sample in weights]
    seeds = values(torch.ones(n, dtype=torch.float64))
    half = NORMAL_95 * statistics.stdev(means)
    error, degrees = _seed_error(seeds, spread)
    if degrees:
        half = math.hypot(half, stats.t.isf(0.025, degrees) * error)
    mean = statistics.fmean(seeds)
    return Estimate(mean, mean - half, mean + half, seeds, error, degrees)


def _seed_error(seeds: Sequence[float], spread: Spread | None = None) -> tuple[float, int]:
    """The standard error of the seeds' mean, and its degrees of freedom: 0 for a single seed."""
    if len(seeds) < 2:
        return 0.0, 0
    sd, degrees = statistics.stdev(seeds), len(seeds) - 1
    if spread and sd**2 <= spread.sd**2 * stats.f.isf(ALIKE, degrees, spread.degrees):
        sd, degrees = spread
    return sd / math.sqrt(len(seeds)), degrees


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
