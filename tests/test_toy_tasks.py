"""Tasks that are not the book's: the logged score is the model's own, whatever the text looks like.

Each is what a student trains first: lines without a letter, or in capitals alone.
"""

import random

import pytest

from annotated_transformer import (
    ModelConfig,
    Tokenizer,
    TrainConfig,
    Translator,
    bleu,
    greedy_search,
    train,
)
from annotated_transformer.data.batching import pad_source
from annotated_transformer.training.log import read_log

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
COMPLEMENT = str.maketrans("ACGT", "TGCA")


def digits_reversed(digits: list[str]) -> tuple[str, str]:
    return " ".join(digits), " ".join(digits[::-1])


def digits_to_words(digits: list[str]) -> tuple[str, str]:
    return " ".join(digits), " ".join(WORDS[int(digit)] for digit in digits)


def codes_in_capitals(digits: list[str]) -> tuple[str, str]:
    codes = [f"{chr(ord('A') + int(digit))}{digit}" for digit in digits]
    return " ".join(codes), " ".join(code.lower() for code in codes)


def dna_in_capitals(digits: list[str]) -> tuple[str, str]:
    bases = " ".join("ACGT"[int(digit) % 4] for digit in digits)
    return bases, bases.translate(COMPLEMENT)


TASKS = [digits_reversed, digits_to_words, codes_in_capitals, dna_in_capitals]


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_the_logged_score_is_the_models_own(task, tmp_path):
    chance = random.Random(1)
    rows = [[str(chance.randrange(10)) for _ in range(chance.randrange(3, 6))] for _ in range(840)]
    pairs = [task(row) for row in rows]
    sides = [side for pair in pairs[:800] for side in pair]
    tokenizer = Tokenizer.train(sides, vocab_size=260 + len(set("".join(sides))))
    model = train(
        ModelConfig.tiny(tokenizer.vocab_size, N=1, d_model=64, d_ff=128, h=2, p_drop=0.0),
        TrainConfig(train_steps=300, warmup_steps=60, lr_factor=0.5, max_tokens=512),
        tokenizer,
        pairs[:800],
        pairs[800:],
        tmp_path,
        progress=False,
    )
    sources, references = map(list, zip(*pairs[800:], strict=True))
    ids = pad_source(tokenizer.encode_batch(sources), model.config.special_ids)
    own = [tokenizer.decode(tokens) for tokens in greedy_search(model, ids)]
    assert Translator.from_checkpoint(tmp_path).translate(sources, beam_size=1) == own
    logged = next(record["valid_bleu"] for record in read_log(tmp_path) if "valid_bleu" in record)
    assert logged == pytest.approx(bleu(own, references).score, abs=0.01)
    assert logged > 5.0 and abs(logged - bleu(sources, references).score) > 1.0
