"""Text in, text out: a line for each line, in order,
whatever the lines hold and whatever the model answers."""

import itertools
import logging
import re
from html import escape

import pytest

from annotated_transformer.config import DecodeConfig
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding import translator as translation
from annotated_transformer.decoding.search import Hypothesis
from annotated_transformer.decoding.translator import Translation, Translator
from annotated_transformer.errors import ConfigError
from annotated_transformer.views import ListAsTree
from toys import small_checkpoint, small_model, text_pairs, toy_tokenizer

HOSTILE = [
    "", "   ", "tea", "\t\u3000", "a\x00b", "\r", "bad\u2028cab", "😀👩‍👩‍👧", "\ufeff",
    "tea " * 400, "\x1b[31m", "\ud800 fee", "مرحبا", "e\u0301" * 9, "\x85", "</s>", "x" * 3000,
]  # fmt: skip
FAST = {"beam_size": 2, "max_extra": 3}


def translator(max_source=40, **changes):
    tokenizer = toy_tokenizer()
    model = small_model(vocab_size=tokenizer.vocab_size, **changes)
    return Translator(model, tokenizer, max_source=max_source)


def answer_with(monkeypatch, text, tokenizer=None):
    """Let every search find `text`; the searched batches and their beam widths are collected
    in the returned list."""
    ids, searched = (tokenizer or toy_tokenizer()).encode(text), []

    def search(model, source, config):
        searched.append((source, config.beam_size))
        return [[Hypothesis(ids, -1.0, -2.0)] for _ in source]

    monkeypatch.setattr(translation, "search_beams", search)
    return searched


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 4, 512])
def test_as_many_lines_come_out_as_go_in(window):
    out = list(translator().translate_stream(HOSTILE, window, **FAST))
    assert len(out) == len(HOSTILE)
    assert all(len(f"{line}.".splitlines()) == 1 for line in out)
    blank = {line for line, source in zip(out, HOSTILE, strict=True) if not source.strip()}
    assert blank == {""}


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("FEED A CAB!", "Feed a cab!"),
        ("ÄÖ ÜX", "Äö üx"),
        ("  a \t b  c ", "a b c"),
        ("TEA", "TEA"),
        ("Tea FOR TWO", "Tea FOR TWO"),
        ("ΣΑΣ ΟΣ", "Σας ος"),
    ],
)
def test_nobody_is_shouted_at(line, read):
    assert translation.as_read(line) == read
    assert translator().translate([line], **FAST) == translator().translate([read], **FAST)


def test_a_line_without_a_letter_comes_back(monkeypatch):
    searched = answer_with(monkeypatch, "tea")
    lines = ["2 + 2 = 4", " \u200b ", "?!", "😀", "12", "a1"]
    assert translator().translate(lines) == ["2 + 2 = 4", "\u200b", "?!", "😀", "12", "tea"]
    assert [len(source) for source, _ in searched] == [1]


def test_a_model_that_learned_both_ways_is_turned_round_by_a_token(monkeypatch):
    sentences = [side for pair in text_pairs(1, 60) for side in pair]
    tokenizer = Tokenizer.train(sentences, 400, as_typed=True)
    searched = answer_with(monkeypatch, "tea", tokenizer)
    both_ways = Translator(small_model(vocab_size=tokenizer.vocab_size), tokenizer)
    both_ways.translate(["bad"])
    both_ways.translate(["bad", "", "12"], back=True)
    there, back = (row for source, _ in searched for row in source.tolist())
    assert back == [tokenizer.back_id, *there]
    with pytest.raises(ConfigError, match="learned for one direction"):
        translator().translate(["bad"], back=True)


@pytest.mark.parametrize(
    "end", ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029"]
)
def test_a_line_break_that_the_model_makes_becomes_a_space(monkeypatch, end):
    answer_with(monkeypatch, f"tea{end}bad")
    assert translator().translate(["cab"]) == ["tea bad"]


@pytest.mark.slow
def test_neither_order_nor_window_nor_company_changes_a_translation():
    sources = [source for source, _ in text_pairs(5, 11)]
    t = translator()
    alone = [t.translate([source], **FAST)[0] for source in sources]
    assert len(set(alone)) > 3
    assert t.translate(sources, **FAST) == alone
    assert t.translate(sources[::-1], **FAST) == alone[::-1]
    assert list(t.translate_stream(sources, 3, max_batch_tokens=40, **FAST)) == alone
    assert t.translate([]) == []


def test_blank_lines_do_not_reach_the_model(monkeypatch):
    searched = answer_with(monkeypatch, "tea")
    assert translator().translate(["", " \t", "\n", "\u3000"]) == [""] * 4
    assert searched == []


def test_white_space_round_a_line_does_not_count():
    t = translator()
    assert t.translate(["  tea bad\r\n"], **FAST) == t.translate(["tea bad"], **FAST)


def test_streaming_reads_no_further_than_its_window(monkeypatch):
    answer_with(monkeypatch, "tea")
    taken = []

    def endless():
        for number in itertools.count():
            taken.append(number)
            yield "bad"

    stream = translator().translate_stream(endless(), window=5)
    assert list(itertools.islice(stream, 5)) == ["tea"] * 5
    assert len(taken) == 5
    next(stream)
    assert len(taken) == 10


def test_a_long_line_is_cut_and_named(caplog):
    t = translator(max_source=7)
    words = "tea bad cab deaf ebb fee gab head abed " * 3
    ids = t.tokenizer.encode(words.strip())
    with caplog.at_level(logging.WARNING):
        lines = list(t.translate_stream(["tea", words], 1, **FAST))
    assert caplog.messages == [f"line 2 has {len(ids)} tokens, only the first 6 are translated"]
    assert lines[1] == t.translate([t.tokenizer.decode(ids[:6])], **FAST)[0]


@pytest.mark.parametrize(("n_tokens", "n_warnings"), [(6, 0), (7, 1)])
def test_the_limit_counts_eos(monkeypatch, caplog, n_tokens, n_warnings):
    answer_with(monkeypatch, "tea")
    t = translator(max_source=7)
    monkeypatch.setattr(t.tokenizer, "encode_batch", lambda texts: [[5] * n_tokens for _ in texts])
    with caplog.at_level(logging.WARNING):
        t.translate(["x"])
    assert len(caplog.messages) == n_warnings


def test_learned_positions_set_the_limit(caplog):
    t = translator(max_source=1024, positions="learned", max_len=9)
    assert t.max_source == 9
    assert len(t.translate(["tea " * 50, "bad"], **FAST)) == 2
    assert "only the first 8" in caplog.text


def test_batches_hold_every_sentence_once_within_the_limit():
    sources = [[0] * n for n in (9, 1, 4, 4, 30, 2, 7)]
    order = sorted(range(7), key=lambda i: len(sources[i]))
    batches = list(translation.batches_by_length(order, sources, 19))
    assert [i for batch in batches for i in batch] == order
    sizes = [len(batch) * (max(len(sources[i]) for i in batch) + 1) for batch in batches]
    assert all(size <= 19 for size, batch in zip(sizes, batches, strict=True) if len(batch) > 1)
    assert max(map(len, batches)) > 1


@pytest.mark.parametrize("beam_size", [1, 4])
def test_max_tokens_bounds_a_batch_with_all_its_hypotheses(monkeypatch, beam_size):
    searched = answer_with(monkeypatch, "tea")
    sources = [source for source, _ in text_pairs(7, 60)]
    translator(max_source=1024).translate(sources, beam_size=beam_size, max_batch_tokens=300)
    sizes = [source.numel() * width for source, width in searched]
    assert sum(len(source) for source, _ in searched) == 60
    assert {width for _, width in searched} == {beam_size}
    assert max(sizes) <= 300 and min(sizes[:-1]) > 150  # each as full as it can be, or nearly


def test_the_first_of_the_n_best_is_the_translation():
    t = translator()
    sources = ["tea bad", "", "gab head fee"]
    found = t.n_best(sources, n_best=3, beam_size=4, max_extra=3)
    assert [best[0].text for best in found] == t.translate(sources, beam_size=4, max_extra=3)
    assert [len(best) for best in found] == [3, 1, 3]
    assert all(a.score >= b.score for best in found for a, b in itertools.pairwise(best))


def test_jupyter_shows_translations_as_text():
    start, ends = "<script>alert('tea')</script> & a", {"cab": -0.5, "bad bee": -0.75}
    shown = ListAsTree(Translation(f"{start} {end}", ends[end], 0.0) for end in ends)._repr_html_()
    branches = "".join(f"<li>{end} ({score:.3f})</li>" for end, score in ends.items())
    assert shown == f"<ul><li>{escape(start)}<ul>{branches}</ul></li></ul>"
    found = translator().n_best(["tea bad"], n_best=3, beam_size=4, max_extra=3)[0]
    assert found._repr_html_().count("</li>") >= 3 and repr(found) == repr(list(found))


def test_a_model_of_nan_answers_with_empty_lines():
    t = translator()
    t.model.embedding.weight.data.fill_(float("nan"))
    assert t.translate(["tea", "bad"], **FAST) == ["", ""]


@pytest.mark.slow
def test_a_checkpoint_directory_is_all_it_takes(tmp_path):
    t = Translator(small_checkpoint(tmp_path), toy_tokenizer())
    sources = [source for source, _ in text_pairs(6, 4)]
    found = Translator.from_checkpoint(tmp_path).translate(sources, **FAST)
    assert found == t.translate(sources, **FAST)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam_size": 0}, "beam_size must be between 1 and 1,024, got 0"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"max_batch_tokens": 0}, "max_batch_tokens must be at least 1, got 0"),
        ({"max_extra": -1}, "max_extra must be between 0 and 100,000"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        translator().translate_stream(["tea"], **settings)  # at the call, not at the first line


@pytest.mark.parametrize("given", ["tea.", ["tea", 5], [["tea"]], [b"tea"]], ids=str)
def test_what_is_no_list_of_strings_is_refused(given):
    """A string is a sequence of strings too: of its letters."""
    t = translator()
    wrong = re.escape(repr(given if isinstance(given, str) else given[-1]))
    line = f"^sentences must be a list of strings, got {wrong}$"
    for ask in (t.translate, t.n_best, lambda lines: list(t.translate_stream(lines))):
        with pytest.raises(ConfigError, match=line):
            ask(given)


def test_settings_travel_whole_or_as_keywords_that_change_them():
    t, sources = translator(), ["tea bad", "cab", "dad had tea"]
    search = DecodeConfig(beam_size=3, alpha=0.0, max_extra=4)
    by_keywords = t.translate(sources, beam_size=3, alpha=0.0, max_extra=4)
    assert t.translate(sources, search) == by_keywords
    assert t.translate(sources, search, alpha=0.0) == by_keywords
    greedy = t.translate(sources, beam_size=1, alpha=0.0, max_extra=4)
    assert t.translate(sources, search, beam_size=1) == greedy
    found = t.n_best(sources, search, n_best=3)
    assert {len(row) for row in found} == {3}
    assert [row[0].text for row in found] == by_keywords


def test_a_limit_without_room_for_a_token_is_refused():
    with pytest.raises(ConfigError, match="max_source must be at least 2"):
        translator(max_source=1)


def echo(sources, search):
    """An engine that finds the source, and the source twice."""
    return [[(ids, -1.0), (2 * ids, -1.2)] for ids in sources]


@pytest.mark.parametrize(("alpha", "best"), [(0.0, "tea bad"), (2.0, "tea bad tea bad")])
def test_an_engine_searches_and_the_length_penalty_ranks_what_it_finds(alpha, best):
    t = Translator(small_model(vocab_size=280), toy_tokenizer(), engine=echo)
    assert t.translate(["tea bad", ""], alpha=alpha) == [best, ""]
    assert len(t.n_best(["tea"], n_best=2)[0]) == 2
