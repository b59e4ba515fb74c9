"""Scores agree with definitions computed by hand; perplexity agrees with PyTorch's cross-entropy."""

import math
from collections import Counter

import pytest
import torch
from torch.nn import functional as F

from annotated_transformer.config import ConfigError, ModelConfig
from annotated_transformer.evaluation import bleu, chrf, perplexity
from annotated_transformer.transformer import Transformer

HYPOTHESES = ["the cat sat on the mat", "a dog sleeps under the old table"]
REFERENCES = ["the cat sat on the red mat", "a dog is asleep under the old table today"]


def small_model(**changes):
    torch.manual_seed(3)
    return Transformer(ModelConfig(**{"vocab_size": 11, "N": 1, "d_model": 8, "d_ff": 12, "h": 2, **changes}))


def bleu_by_hand(hypotheses, references):
    """BP exp(mean log p_n), n = 1 to 4, clipped counts (Papineni et al. 2002), on white space."""
    matches, totals = [0] * 4, [0] * 4
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        for n in range(1, 5):
            found, wanted = (Counter(zip(*(text.split()[i:] for i in range(n)), strict=False))
                             for text in (hypothesis, reference))
            matches[n - 1] += sum((found & wanted).values())
            totals[n - 1] += sum(found.values())
    length, wanted_length = (sum(len(text.split()) for text in texts) for texts in (hypotheses, references))
    brevity = min(1.0, math.exp(1 - wanted_length / length))
    return 100 * brevity * math.exp(sum(math.log(m / t) for m, t in zip(matches, totals, strict=True)) / 4)


def test_bleu_is_the_published_formula():
    assert bleu(HYPOTHESES, REFERENCES).score == pytest.approx(bleu_by_hand(HYPOTHESES, REFERENCES), abs=1e-9)


def test_bleu_is_cased_and_punishes_only_too_short():
    assert bleu(REFERENCES, REFERENCES).score == pytest.approx(100)
    assert bleu([text.upper() for text in REFERENCES], REFERENCES).score < 1


def test_chrf_of_one_character_n_grams_by_hand():
    # "abc" against "abd": 1-grams 2 of 3, 2-grams 1 of 2, 3-grams 0 of 1, precision equal to recall.
    assert chrf(["abc"], ["abd"]).score == pytest.approx(100 * (2 / 3 + 1 / 2 + 0) / 3, abs=1e-6)


def test_each_score_brings_its_signature():
    assert "tok:13a" in bleu(HYPOTHESES, REFERENCES).signature
    assert "nc:6" in chrf(HYPOTHESES, REFERENCES).signature


@pytest.mark.parametrize("score", [bleu, chrf])
def test_what_cannot_be_scored_is_refused(score):
    with pytest.raises(ConfigError, match="2 translations and 1 references"):
        score(HYPOTHESES, REFERENCES[:1])
    with pytest.raises(ConfigError, match="nothing to score"):
        score([], [])


def test_perplexity_is_the_exponential_of_pytorch_cross_entropy():
    model = small_model(p_drop=0.5).train()
    pairs = [([4, 5, 6], [7, 8]), ([9], [4, 4, 4, 10, 5]), ([5, 6], [])]
    nll, n_tokens = 0.0, 0
    for source, target in pairs:
        model.eval()
        with torch.no_grad():
            logits = model(torch.tensor([[*source, 2]]), torch.tensor([[1, *target]]))
        nll += F.cross_entropy(logits[0].double(), torch.tensor([*target, 2]), reduction="sum").item()
        n_tokens += len(target) + 1
    model.train()
    assert perplexity(model, pairs, max_tokens=8) == pytest.approx(math.exp(nll / n_tokens), rel=1e-6)
    assert model.training


def test_a_model_that_knows_nothing_is_as_perplexed_as_its_vocabulary_is_large():
    model = small_model()
    torch.nn.init.zeros_(model.embedding.weight)
    assert perplexity(model, [([4], [5, 6]), ([7, 8], [9])]) == pytest.approx(11)


def test_a_sentence_longer_than_a_batch_is_counted_alone():
    model = small_model()
    pairs = [([4] * 30, [5] * 20), ([6], [7])]
    assert perplexity(model, pairs, max_tokens=4) == pytest.approx(perplexity(model, pairs, max_tokens=400))


def test_perplexity_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="at least one pair"):
        perplexity(small_model(), [])
