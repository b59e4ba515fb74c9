"""BLEU of languages that write no spaces between words."""

from collections.abc import Sequence

import pytest
from sacrebleu.metrics.bleu import BLEU

from annotated_transformer.decoding.evaluation import (
    bleu,
    bleu_counts,
    bleu_from_counts,
    brevity_penalty,
)
from annotated_transformer.training.validation import Validation
from toys import small_model, toy_tokenizer

CHINESE = (
    "我喜欢这只小猫。",
    "他昨天去了北京的学校。",
    "今天天气很好，我们去公园吧。",
    "这本书非常有意思。",
)
JAPANESE = (
    "私はこの小さな猫が好きです。",
    "彼は昨日学校へ行きました。",
    "今日は天気がいいですね。",
)
THAI = ("ฉันชอบแมวตัวเล็กตัวนี้", "เมื่อวานเขาไปโรงเรียน", "วันนี้อากาศดีมาก")
KOREAN = ("나는 이 작은 고양이를 좋아한다.", "그는 어제 학교에 갔다.")
GERMAN = ("Der Mann liest 北京 und das Haus.", "Heute ist ein schöner Tag.")


@pytest.mark.parametrize(
    ("references", "tokenizer"),
    [(CHINESE, "zh"), (JAPANESE, "char"), (THAI, "char"), (KOREAN, "13a"), (GERMAN, "13a")],
    ids=["Chinese", "Japanese", "Thai", "Korean", "German"],
)
def test_right_translations_score_100_and_near_ones_as_sacrebleu_counts_them(
    references: Sequence[str], tokenizer: str
) -> None:
    assert round(bleu(references, references).score, 6) == 100
    assert f"tok:{tokenizer}|" in bleu(references, references).signature
    near = [text[:-4] + text[-1] for text in references]
    metric = BLEU(tokenize=tokenizer).corpus_score(near, [list(references)])
    assert bleu(near, references).score == pytest.approx(metric.score)
    assert metric.bp < 1 and brevity_penalty(near, references) == pytest.approx(metric.bp)
    counts = [bleu_counts(*pair) for pair in zip(near, references, strict=True)]
    summed = [sum(column) for column in zip(*counts, strict=True)]
    assert bleu_from_counts(summed) == pytest.approx(metric.score)


def test_the_corpus_decides_for_a_sentence_in_another_script() -> None:
    counts = bleu_counts("OK, bye", "OK, good", "char")
    assert counts[:2] == [6, 7]


def test_a_training_log_splits_words_as_the_corpus_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among Japanese ones, whose characters count, a line in Latin letters is no row of words."""
    references = [*JAPANESE, "The end is near."]
    outputs = [*JAPANESE, "The end is here."]
    tokenizer = toy_tokenizer()
    model = small_model(vocab_size=tokenizer.vocab_size)
    monkeypatch.setattr(Validation, "_translated", lambda *_: (outputs, references))
    logged = Validation(model.config, tokenizer, [("tea", text) for text in references])(model)
    assert logged["valid_bleu"] == pytest.approx(bleu(outputs, references).score)
