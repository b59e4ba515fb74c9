"""Scores agree with definitions computed by hand;
perplexity agrees with PyTorch's cross-entropy."""

import inspect
import json
import math
from collections import Counter

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import toys
from annotated_transformer.command_line.entry_point import main
from annotated_transformer.config import ModelConfig
from annotated_transformer.data.batching import make_batch
from annotated_transformer.decoding.evaluation import (
    bleu,
    brevity_penalty,
    chrf,
    mean_nll,
    perplexity,
    scorable,
    within_reach,
)
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import ConfigError
from annotated_transformer.fast.int8 import quantize
from annotated_transformer.model.transformer import Transformer

HYPOTHESES = ["the cat sat on the mat", "a dog sleeps under the old table"]
REFERENCES = ["the cat sat on the red mat", "a dog is asleep under the old table today"]


def small_model(**changes):
    torch.manual_seed(3)
    sizes = {"vocab_size": 11, "N": 1, "d_model": 8, "d_ff": 12, "h": 2}
    return Transformer(ModelConfig(**{**sizes, **changes}))


def bleu_by_hand(hypotheses, references):
    """BP exp(mean log p_n), n = 1 to 4, clipped counts (Papineni et al. 2002), on white space."""
    matches, totals = [0] * 4, [0] * 4
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        for n in range(1, 5):
            found, wanted = (
                Counter(zip(*(text.split()[i:] for i in range(n)), strict=False))
                for text in (hypothesis, reference)
            )
            matches[n - 1] += sum((found & wanted).values())
            totals[n - 1] += sum(found.values())
    length, wanted_length = (len(" ".join(texts).split()) for texts in (hypotheses, references))
    brevity = min(1.0, math.exp(1 - wanted_length / length))
    mean_log_p = sum(math.log(m / t) for m, t in zip(matches, totals, strict=True)) / 4
    return 100 * brevity * math.exp(mean_log_p)


def test_bleu_is_the_published_formula():
    by_hand = bleu_by_hand(HYPOTHESES, REFERENCES)
    assert bleu(HYPOTHESES, REFERENCES).score == pytest.approx(by_hand, abs=1e-9)


def test_bleu_is_cased_and_punishes_only_too_short():
    assert bleu(REFERENCES, REFERENCES).score == pytest.approx(100)
    assert bleu([text.upper() for text in REFERENCES], REFERENCES).score < 1


def test_chrf_of_one_character_n_grams_by_hand():
    # "abc" against "abd": 1-grams 2 of 3, 2-grams 1 of 2, 3-grams 0 of 1,
    # precision equal to recall.
    assert chrf(["abc"], ["abd"]).score == pytest.approx(100 * (2 / 3 + 1 / 2 + 0) / 3, abs=1e-6)


def test_each_score_brings_its_signature():
    assert "tok:13a" in bleu(HYPOTHESES, REFERENCES).signature
    assert "nc:6" in chrf(HYPOTHESES, REFERENCES).signature


@pytest.mark.parametrize("score", [bleu, chrf])
def test_what_cannot_be_scored_is_refused(score):
    for hypotheses, references, message in (
        (HYPOTHESES, REFERENCES[:1], "2 translations and 1 references"),
        ([], [], "nothing to score"),
        ("ab cd", "ab cd", "^translations are one string for each sentence, got 'ab cd'$"),
        (HYPOTHESES, [[text] for text in REFERENCES], "^references are one string for each"),
        (HYPOTHESES, [REFERENCES], "^references are one string for each translation, got "),
    ):
        with pytest.raises(ConfigError, match=message):
            score(hypotheses, references)


def test_perplexity_is_the_exponential_of_pytorch_cross_entropy():
    model = small_model(p_drop=0.5).train()
    pairs = [([4, 5, 6], [7, 8]), ([9], [4, 4, 4, 10, 5]), ([5, 6], [])]
    nll, n_tokens = 0.0, 0
    for source, target in pairs:
        model.eval()
        with torch.no_grad():
            logits = model(torch.tensor([[*source, 2]]), torch.tensor([[1, *target]]))
        target_out = torch.tensor([*target, 2])
        nll += F.cross_entropy(logits[0].double(), target_out, reduction="sum").item()
        n_tokens += len(target_out)
    model.train()
    by_hand = math.exp(nll / n_tokens)
    assert perplexity(model, pairs, max_tokens=8) == pytest.approx(by_hand, rel=1e-6)
    assert model.training


def test_a_model_that_knows_nothing_is_as_perplexed_as_its_vocabulary_is_large():
    model = small_model()
    torch.nn.init.zeros_(model.embedding.weight)
    assert perplexity(model, [([4], [5, 6]), ([7, 8], [9])]) == pytest.approx(11)


def test_a_sentence_longer_than_a_batch_is_counted_alone():
    model = small_model()
    pairs = [([4] * 30, [5] * 20), ([6], [7])]
    together = perplexity(model, pairs, max_tokens=400)
    assert perplexity(model, pairs, max_tokens=4) == pytest.approx(together)


def test_perplexity_computes_no_gradients():
    """One product with the embedding matrix, for the logits of real tokens."""
    model = small_model(positions="none")
    pairs = [([4, 5, 6], [7, 8]), ([9, 4, 5], [4, 4])]
    source = torch.tensor([[4, 5, 6, 2], [9, 4, 5, 2]])
    target = torch.tensor([[1, 7, 8], [1, 4, 4]])
    with torch.no_grad(), FlopCounterMode(display=False) as forward:
        model.eval()(source, target)
    with FlopCounterMode(display=False) as scoring:
        perplexity(model, pairs)
    assert scoring.get_total_flops() == forward.get_total_flops()


def test_a_model_in_8_bits_is_scored_as_it_translates():
    """By its own logits, whose rounding is most of what 8 bits cost."""
    torch.manual_seed(3)
    config = ModelConfig(vocab_size=300, N=1, d_model=32, d_ff=32, h=2)
    model = quantize(Transformer(config).eval())
    pairs = [([4, 5, 6], [7, 8, 9, 10])]
    source, target_in = torch.tensor([[4, 5, 6, 2]]), torch.tensor([[1, 7, 8, 9, 10]])
    with torch.no_grad():
        logits = model(source, target_in)[0]
        x = model.decode(target_in, model.encode(source), None)[0]
    by_its_own, in_float32 = (
        F.cross_entropy(z, torch.tensor([7, 8, 9, 10, 2])).item()
        for z in (logits, x @ model.embedding.weight.T)
    )
    assert mean_nll(model, pairs) == pytest.approx(by_its_own, abs=1e-6)
    assert abs(by_its_own - in_float32) > 1e-4


def test_a_model_that_is_sure_and_wrong_is_infinitely_perplexed():
    """Where e to the nats is beyond the floats; the nats themselves are not."""
    model = small_model(norm="pre")
    torch.nn.init.normal_(model.embedding.weight, std=1e3)
    pairs = [([4], [5, 6]), ([7, 8], [9])]
    assert 710 < mean_nll(model, pairs) < math.inf
    assert perplexity(model, pairs) == math.inf


def test_pairs_beyond_the_last_position_are_left_out_aloud(caplog):
    pairs = [([4] * 9, [5]), ([4], [5] * 9), ([4] * 8, [5] * 9), ([4] * 10, [5]), ([4], [5] * 1024)]
    learned = ModelConfig(vocab_size=11, d_model=8, h=2, positions="learned", max_len=10)
    assert within_reach(learned, pairs) == [0, 1, 2]
    assert within_reach(learned.replace(positions="sinusoidal"), pairs) == [0, 1, 2, 3]
    assert within_reach(learned.replace(max_len=2000), pairs) == [0, 1, 2, 3]
    assert [message.split(" are ")[0] for message in caplog.messages] == [
        "2 of 5 pairs have more than 10 tokens on a side and",
        *2 * ["1 of 5 pairs have more than 1024 tokens on a side and"],
    ]
    assert perplexity(small_model(positions="learned", max_len=10), pairs[:3]) > 1


@pytest.mark.slow
def test_evaluate_knows_what_it_can_score_before_it_translates(tmp_path, capsys, monkeypatch):
    """A line beyond the last learned position is cut in translation,
    and left out of the perplexity."""
    model = toys.small_checkpoint(tmp_path, positions="learned", max_len=30)
    pairs = [*toys.text_pairs(1, 3), ("tea " * 40, "aet")]
    files = [tmp_path / name for name in ("source", "reference")]
    arguments = ["--source", str(files[0]), "--reference", str(files[1])]

    def evaluate(pairs):
        for file, lines in zip(files, zip(*pairs, strict=True), strict=True):
            file.write_text("".join(f"{line}\n" for line in lines))
        options = ["--json", "--quiet", "--max-extra", "1"]
        return main(["evaluate", str(tmp_path), *arguments, *options]), capsys.readouterr()

    status, printed = evaluate(pairs)
    scores = json.loads(printed.out)
    encoded = [tuple(map(toys.toy_tokenizer().encode, pair)) for pair in pairs[:3]]
    assert status == 0 and scores["sentences"] == 4
    assert scores["perplexity"] == pytest.approx(perplexity(model, encoded), rel=1e-5)
    monkeypatch.setattr(Translator, "translate_stream", lambda *_, **__: pytest.fail("too late"))
    status, printed = evaluate(pairs[3:])
    assert (status, printed.out) == (2, "") and "no pair is short enough" in printed.err


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "at least one pair"),
        ([("I am.", "Ich bin.")], r"lists of token ids, got \('I am.', 'Ich bin.'\)$"),
        (([4, 5], [6, 7]), r"lists of token ids, got \[4, 5\]$"),  # one pair, and not a list
        ([{"en": [4], "de": [5]}], "lists of token ids, got {'en'"),
    ],
)
def test_perplexity_and_batches_are_of_pairs_of_ids(pairs, message):
    with pytest.raises(ConfigError, match=message):
        perplexity(small_model(), pairs)
    if pairs:
        with pytest.raises(ConfigError, match=message):
            inspect.unwrap(make_batch)(pairs)  # without the tests' own check of types


def test_only_pairs_of_text_can_be_scored():
    """Not strings of two letters."""
    with pytest.raises(ConfigError, match="two strings, got 'ab'$"):
        scorable(small_model().config, toys.toy_tokenizer(), ["ab", "cd"])


def test_the_brevity_penalty_is_that_of_papineni_and_others():
    """Equation (1) of Papineni et al. 2002: exp(1 - r / c), here of six words against eight."""
    long, short = "a b c d e f g h", "a b c d e f"
    assert brevity_penalty([short], [long]) == pytest.approx(math.exp(1 - 8 / 6))
    assert brevity_penalty([long], [short]) == 1
