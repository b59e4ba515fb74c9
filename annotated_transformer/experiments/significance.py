"""How far a score can be trusted: scores of single sentences, and what resampling them and the seeds says.

Corpus scores are functions of sums over sentences. So a sentence's share of the sums is all that is kept, and drawing
sentences with replacement (the bootstrap; Koehn 2004 for BLEU) gives the spread that another test set of this kind
would have.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from annotated_transformer.batching import TokenPair, group_by_length, make_batch
from annotated_transformer.config import require
from annotated_transformer.transformer import Transformer

Metric = Callable[[Tensor], float]


class SentenceScores(NamedTuple):
    """What each sentence adds to a corpus score, a row a sentence, in float64.

    `nll` has the summed nats of its target and the number of tokens (eos included); `bleu` the words of translation
    and reference, then matched n-grams and all n-grams of the translation, n from 1 to 4.
    """

    nll: Float[Tensor, "N 2"]
    bleu: Float[Tensor, "N 10"]


@torch.inference_mode()
def sentence_nll(model: Transformer, pairs: Sequence[TokenPair], max_tokens: int = 4096) -> Float[Tensor, "N 2"]:
    """Nats and tokens of each target given its source, as `evaluation.perplexity` sums them. The model must be in
    eval mode."""
    require(not model.training, "sentence_nll needs a model in eval mode")
    lengths = [(len(source) + 1, len(target) + 1) for source, target in pairs]
    found = torch.zeros(len(pairs), 2, dtype=torch.float64)
    pad_id = model.config.pad_id
    for group in group_by_length(lengths, max(max_tokens, max(map(max, lengths))), random.Random(0)):
        batch = make_batch([pairs[i] for i in group], pad_id, model.config.bos_id, model.config.eos_id)
        logits = model(batch.source, batch.target_in).transpose(1, 2)
        nll_BT = F.cross_entropy(logits, batch.target_out, ignore_index=pad_id, reduction="none")
        found[group, 0] = nll_BT.sum(1).double()
        found[group, 1] = (batch.target_out != pad_id).sum(1).double()
    return found


def ppl_of_sums(sums: Float[Tensor, "2"]) -> float:
    """exp(nats / token)."""
    return math.exp(sums[0] / sums[1])


def sentence_bleu_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> Float[Tensor, "N 10"]:
    """The counts that corpus BLEU is made of, for each sentence (sacreBLEU's defaults)."""
    from annotated_transformer.evaluation import bleu_counts

    return torch.tensor([bleu_counts(*pair) for pair in zip(hypotheses, references, strict=True)], dtype=torch.float64)


def bleu_of_sums(sums: Float[Tensor, "10"]) -> float:
    """Corpus BLEU from the summed counts."""
    from annotated_transformer.evaluation import bleu_from_counts

    return bleu_from_counts([round(count) for count in sums.tolist()])


class Estimate(NamedTuple):
    """A mean over seeds, the 95 % interval of the bootstrap, and each seed's own value, in the order of the seeds."""

    mean: float
    low: float
    high: float
    seeds: list[float]

    @property
    def sign(self) -> int:
        """+1 or -1 where the interval leaves 0 out and every seed is on the same side of it, else 0."""
        values = [self.low, self.high, *self.seeds]
        return 1 if min(values) > 0 else -1 if max(values) < 0 else 0


def bootstrap(
    metric: Metric,
    runs: Sequence[Float[Tensor, "_N _S"]],
    against: Sequence[Float[Tensor, "_N _S"]] | None = None,
    n_samples: int = 1000,
    seed: int = 0,
) -> Estimate:
    """The metric's mean over `runs` (seeds of one configuration), or its difference to that of `against`, run by run.

    Each sample draws sentences with replacement, the same for all runs, and runs with replacement, the same on both
    sides; so a difference is paired in both (Efron and Tibshirani 1993, chapter 8). The interval is from the 2.5th to
    the 97.5th percentile. Few seeds make it a little too narrow: with k of them, their part of the variance comes out
    (k - 1) / k times as large as it should. Raises ConfigError unless all runs scored the same number of sentences.
    """
    require(len(runs) > 0, "there are no runs to compare")
    require(against is None or len(against) == len(runs), "a paired test needs as many runs on either side")
    sizes = {len(run) for run in [*runs, *(against or ())]}
    require(len(sizes) == 1, f"all runs must score the same sentences, got {sorted(sizes)} of them")

    def values(weights: Float[Tensor, "N"]) -> list[float]:
        ours = [metric(weights @ run) for run in runs]
        theirs = [metric(weights @ run) for run in against] if against else [0.0] * len(ours)
        return [one - other for one, other in zip(ours, theirs, strict=True)]

    n = sizes.pop()
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(n_samples):
        drawn = torch.randint(n, (n,), generator=generator)
        found = values(torch.bincount(drawn, minlength=n).double())
        drawn_runs = torch.randint(len(found), (len(found),), generator=generator).tolist()
        samples.append(sum(found[i] for i in drawn_runs) / len(found))
    low, high = torch.tensor(samples, dtype=torch.float64).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    seeds = values(torch.ones(n, dtype=torch.float64))
    return Estimate(sum(seeds) / len(seeds), low.item(), high.item(), seeds)
