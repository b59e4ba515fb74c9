import functools
import inspect
import itertools
import math
import random
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from annotated_transformer.config import BOS_ID, EOS_ID, PAD_ID, DecodeConfig
from annotated_transformer.data.batching import pad_source
from annotated_transformer.decoding import search as search_module
from annotated_transformer.decoding.search import (
    beam_search,
    greedy_search,
    length_penalty,
    rerank,
    search_beams,
)
from annotated_transformer.errors import ConfigError
from annotated_transformer.fast.decoder import FastDecoder
from toys import random_tokens, small_model

ALPHAS = [-0.5, 0.0, 0.6, 1.0, 2.0]
V, LIMIT = 4, 5


class TableModel:
    """Random next-token probabilities that depend on the sentence and on the whole prefix;
    its state is the prefixes.

    So a search that follows a wrong parent, or a wrong sentence, meets other numbers.
    """

    def __init__(self, seed, vocab_size=V, spread=2.0, forbidden=()):
        ids = {"pad_id": PAD_ID, "bos_id": BOS_ID, "eos_id": EOS_ID}
        self.config = SimpleNamespace(**ids, positions="sinusoidal")
        self.seed = seed
        self.vocab_size = vocab_size
        self.spread = spread
        self.forbidden = forbidden
        self.sizes = []

    def logits(self, sentence, prefix):
        generator = random.Random(f"{self.seed} {sentence} {prefix}")
        return [
            -math.inf if v in self.forbidden else generator.gauss(0, self.spread)
            for v in range(self.vocab_size)
        ]

    def log_p(self, sentence, prefix):
        logits = self.logits(sentence, prefix)
        log_z = math.log(sum(map(math.exp, logits)))
        return [logit - log_z for logit in logits]

    def start(self, source):
        sentences = [sentence_of(source, row) for row in range(len(source))]
        return Prefixes(sentences, [[()] for _ in sentences])

    def step(self, tokens, state):
        self.sizes.append(tuple(tokens.shape))
        state.prefixes = [
            [(*prefix, token) for prefix, token in zip(row, new, strict=True)]
            for row, new in zip(state.prefixes, tokens.tolist(), strict=True)
        ]
        assert all(prefix[0] == BOS_ID for row in state.prefixes for prefix in row)
        logits = [
            [self.logits(sentence, prefix[1:]) for prefix in row]
            for sentence, row in zip(state.sentences, state.prefixes, strict=True)
        ]
        return torch.tensor(logits, dtype=torch.float64)


class Prefixes:
    def __init__(self, sentences, prefixes):
        self.sentences, self.prefixes = sentences, prefixes

    def reorder(self, parents):
        self.prefixes = [
            [row[parent] for parent in chosen]
            for row, chosen in zip(self.prefixes, parents.tolist())
        ]

    def keep(self, sentences):
        self.sentences = [self.sentences[i] for i in sentences.tolist()]
        self.prefixes = [self.prefixes[i] for i in sentences.tolist()]


class CountingModel(TableModel):
    """A source of n tokens n is translated by n tokens,
    or by tokens without end if n is `endless`."""

    def __init__(self, endless=None):
        super().__init__(seed=0, vocab_size=12)
        self.endless = endless

    def logits(self, sentence, prefix):
        logits = super().logits(sentence, prefix)
        over = sentence[0] != self.endless and len(prefix) >= sentence[0]
        logits[EOS_ID] = 1000.0 if over else -1000.0
        return logits


def penalty(length, alpha):
    return ((5 + length) / 6) ** alpha


def every_hypothesis(log_p, alpha, limit=LIMIT, vocab_size=V):
    """(score, log P, tokens) of all outputs: those that end with eos,
    and those that are cut off at the limit."""
    others = [v for v in range(vocab_size) if v != EOS_ID]
    found = []
    for n in range(limit + 1):
        for tokens in itertools.product(others, repeat=n):
            whole = tokens if n == limit else (*tokens, EOS_ID)
            total = sum(log_p(whole[:i])[token] for i, token in enumerate(whole))
            found.append((total / penalty(len(whole), alpha), total, list(tokens)))
    return sorted(found, key=lambda h: -h[0])


def plain_beam_search(model, sentence, limit, beam_size, alpha):
    """The rule without batches, states or early stopping:
    an ended hypothesis keeps its place in the beam."""
    alive, ended = [((), 0.0)], []
    for length in range(1, limit + 1):
        candidates = [
            ((*prefix, v), total + p)
            for prefix, total in alive
            for v, p in enumerate(model.log_p(sentence, prefix))
        ]
        candidates.sort(key=lambda c: -c[1])
        chosen, alive = candidates[: beam_size - len(ended)], []
        for tokens, total in chosen:
            if tokens[-1] == EOS_ID:
                ended.append((total / penalty(length, alpha), total, list(tokens[:-1])))
            elif length == limit:
                ended.append((total / penalty(length, alpha), total, list(tokens)))
            else:
                alive.append((tokens, total))
    return sorted(ended, key=lambda h: -h[0])


def assert_found(hypotheses, expected):
    scores, log_ps, tokens = zip(*expected, strict=True)
    assert tuple(h.tokens for h in hypotheses) == tokens
    assert [h.score for h in hypotheses] == pytest.approx(scores, rel=1e-9)
    assert [h.log_p for h in hypotheses] == pytest.approx(log_ps, rel=1e-9)


def source_of(*lengths, seed=10):
    return pad_source([random_tokens(seed + i, n).tolist() for i, n in enumerate(lengths)])


def sentence_of(source, row):
    return tuple(token for token in source[row].tolist() if token not in (PAD_ID, EOS_ID))


def best_tokens(found):
    return [hypotheses[0].tokens for hypotheses in found]


def test_length_penalty_is_wu_et_al_equation_14():
    assert [length_penalty(n, 0.6) for n in (1, 7, 19)] == pytest.approx([1, 2**0.6, 4**0.6])
    assert length_penalty(13, 0.0) == 1


@pytest.mark.slow
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("early_stopping", [True, False])
def test_a_wide_beam_finds_what_exhaustive_search_finds(alpha, early_stopping):
    """V = 4, length 5: 364 outputs, and a beam that holds them all. Best,
    n-best and their scores."""
    sentences = [[7], [5], [9]]
    for seed in range(2):
        model = TableModel(seed)
        found = beam_search(model, pad_source(sentences), 400, alpha, 5, LIMIT - 1, early_stopping)
        for sentence, hypotheses in zip(sentences, found, strict=True):
            log_p = functools.cache(functools.partial(model.log_p, tuple(sentence)))
            assert_found(hypotheses, every_hypothesis(log_p, alpha)[:5])


@pytest.mark.slow
@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_wide_beam_over_the_transformer_finds_what_exhaustive_search_finds(alpha):
    model = small_model(seed=3, vocab_size=V, N=1)
    source = pad_source([[3], [], [1, 3, 3]])
    every = list(itertools.product(range(V), repeat=LIMIT - 1))
    rows = {tokens: i for i, tokens in enumerate(every)}
    outputs = torch.tensor([[BOS_ID, *tokens] for tokens in every])
    found = beam_search(model, source, 400, alpha, 3, LIMIT - 1)
    with torch.no_grad():
        log_p_BTV = model(source[:1].expand(len(outputs), -1), outputs).log_softmax(-1)
    table = log_p_BTV.tolist()

    def log_p(prefix):
        return table[rows[(*prefix, *[0] * (LIMIT - 1 - len(prefix)))]][len(prefix)]

    assert_found(found[0], every_hypothesis(log_p, alpha)[:3])


@pytest.mark.slow
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("beam_size", [1, 2, 3, 4])
def test_narrow_beams_equal_the_plain_algorithm(alpha, beam_size):
    source = source_of(0, 3, 1)
    for seed in range(6):
        model = TableModel(seed, vocab_size=6)
        found = beam_search(model, source, beam_size, alpha, beam_size, 4)
        for row, hypotheses in enumerate(found):
            sentence = sentence_of(source, row)
            expected = plain_beam_search(model, sentence, len(sentence) + 4, beam_size, alpha)
            assert_found(hypotheses, expected)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [-2.0, *ALPHAS])
@pytest.mark.parametrize(("beam_size", "n_best"), [(2, 1), (3, 2), (4, 1)])
def test_early_stopping_loses_nothing(alpha, beam_size, n_best):
    source, saved = source_of(2, 0, 4), 0
    for seed in range(25):
        with_it, without = (TableModel(seed, 5, spread=1 + seed % 4) for _ in range(2))
        settings = (source, beam_size, alpha, n_best, 5)
        early = beam_search(with_it, *settings, early_stopping=True)
        assert early == beam_search(without, *settings, early_stopping=False)
        saved += sum(b * w for b, w in without.sizes) - sum(b * w for b, w in with_it.sizes)
    # A long output may gain so much from lp that nothing is ever decided.
    assert saved >= (1 if alpha <= 1 else 0)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", ALPHAS)
def test_beam_1_is_greedy_search(alpha):
    for seed in range(15):
        model = TableModel(seed, vocab_size=7)
        source = source_of(3, 0, 6, 1)
        found = beam_search(model, source, 1, alpha, 1, 6)
        assert best_tokens(found) == greedy_search(model, source, 6)
        assert {len(row) for row in found} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("vocab_size", [11, 64, 1000])
def test_beam_1_is_greedy_search_where_logits_are_equal(vocab_size):
    class Tied(TableModel):
        def logits(self, sentence, prefix):
            return [float(round(logit)) for logit in super().logits(sentence, prefix)]

    source = source_of(3, 0, 6, 1)
    for seed in range(5):
        found = beam_search(Tied(seed, vocab_size), source, 1, max_extra=6)
        assert best_tokens(found) == greedy_search(Tied(seed, vocab_size), source, 6)


@pytest.mark.slow
def test_a_sentence_is_translated_alike_in_any_company():
    model = small_model(seed=1)
    sentences = [random_tokens(i, n).tolist() for i, n in enumerate([5, 2, 8, 0])]

    def search(sentences):
        return beam_search(model, pad_source(sentences), 3, n_best=3, max_extra=6)

    together, backwards = search(sentences), search(sentences[::-1])[::-1]
    alone = [search([sentence])[0] for sentence in sentences]
    tokens = [[[h.tokens for h in row] for row in rows] for rows in (together, backwards, alone)]
    assert tokens[0] == tokens[1] == tokens[2]
    scores = ([[h.score for h in row] for row in rows] for rows in (together, alone))
    assert_close(*scores)


def paths_of(items, before=()):
    """The words from the root of a tree of nested lists to each of its leaves."""
    for item in items:
        path = (*before, *item.text.split(" "))
        yield from paths_of(item[0], path) if len(item) else [path]


def test_jupyter_shows_an_n_best_list_as_a_tree():
    for seed in range(10):
        found = beam_search(TableModel(seed, 8), source_of(3), 6, 0.6, 6, 5)[0]
        root = ElementTree.fromstring(found._repr_html_())
        tree = sorted(paths_of(root))
        assert tree == sorted((*map(str, h.tokens), f"({h.score:.3f})") for h in found)
        for fork in root.iter("ul"):  # what two have in common stands once
            words = [item.text.split(" ")[0] for item in fork]
            assert len(words) == len(set(words)) and (fork is root or len(words) > 1)
        assert repr(found) == repr(list(found))


def test_the_best_of_n_is_the_best_of_one():
    for seed in range(10):
        model, source = TableModel(seed, 8), source_of(3, 5)
        one, four = (beam_search(model, source, 4, 0.6, n, 5) for n in (1, 4))
        assert one == [row[:1] for row in four]


def test_fewer_come_back_when_there_are_no_more():
    model = TableModel(0, forbidden=[PAD_ID])
    source = source_of(0)
    found = beam_search(model, source, 10, 0.6, 10, 1)[0]
    assert sorted(h.tokens for h in found) == [[], [BOS_ID], [3]]
    assert all(math.isfinite(h.score) for h in found)


@pytest.mark.parametrize("is_greedy", [True, False])
def test_a_finished_sentence_leaves_the_batch(is_greedy):
    model, source = CountingModel(), pad_source([[4], [7], [3]])
    if is_greedy:
        outputs = greedy_search(model, source, max_extra=20)
    else:
        outputs = best_tokens(beam_search(model, source, beam_size=2, max_extra=20))
    assert list(map(len, outputs)) == [4, 7, 3]
    assert [b for b, _ in model.sizes] == [3] * 4 + [2] + [1] * 3


def test_an_ended_hypothesis_leaves_the_beam():
    model = TableModel(1, vocab_size=6)
    beam_search(model, source_of(4), 4, 0.6, 4, 4, early_stopping=False)
    widths = [w for _, w in model.sizes]
    assert widths[0] == 1 and max(widths) <= 4 and widths[-1] < 4
    assert widths[1:] == sorted(widths[1:], reverse=True)


@pytest.mark.parametrize("max_extra", [50, 3, 0])
def test_outputs_end_at_source_length_plus_max_extra(max_extra):
    """The source's own eos and padding do not count;
    an output that is cut off comes back as it stands."""
    source = pad_source([[9, 9, 9, 9], [9, 9], [9]])
    lengths = [4 + max_extra, 2 + max_extra, 1 + max_extra]
    greedy = greedy_search(CountingModel(endless=9), source, max_extra)
    found = beam_search(CountingModel(endless=9), source, 3, 0.6, 1, max_extra)
    assert list(map(len, greedy)) == list(map(len, best_tokens(found))) == lengths


def test_an_empty_source_may_still_get_one_token():
    ((hypothesis,),) = beam_search(TableModel(0), source_of(0), 4, max_extra=0)
    assert len(hypothesis.tokens) <= 1


def test_learned_positions_limit_the_output():
    model = small_model(positions="learned", max_len=9)
    with torch.no_grad():
        model.embedding.weight[EOS_ID] = 0  # never the best of eleven
    source = pad_source([random_tokens(1, 5).tolist()])
    assert len(greedy_search(model, source)[0]) == 9
    assert len(beam_search(model, source, 3)[0][0].tokens) == 9


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"beam_size": 0}, "beam_size must be between 1 and 1,024, got 0"),
        ({"beam_size": 2, "n_best": 3}, "n_best must be between 1 and beam_size, got 3 and 2"),
    ],
)
def test_impossible_searches_are_refused(settings, line):
    with pytest.raises(ConfigError, match=line):
        beam_search(TableModel(0), source_of(2), **settings)


@pytest.mark.parametrize(
    ("search", "settings"), [(greedy_search, ()), (search_beams, (DecodeConfig(),))]
)
def test_what_cannot_be_searched_is_refused(search, settings):
    search = inspect.unwrap(search)  # without the tests' own check of shapes
    model = small_model(p_drop=0.5)
    source = random_tokens(1, 2, 3)
    for wrong, got in (([[4, 2]], "list"), (source[0], r"\(3,\)"), (source / 2, r"\(2, 3\)")):
        with pytest.raises(ConfigError, match=f"one row for each sentence, got {got}$"):
            search(model, wrong, *settings)
    with pytest.raises(ConfigError, match=r"evaluation mode: call model.eval\(\)$"):
        search(model.train(), source, *settings)


def test_logits_in_bfloat16_are_scored_in_float32():
    class Half(TableModel):
        def logits(self, sentence, prefix):
            return torch.tensor(super().logits(sentence, prefix)).bfloat16().tolist()

        def step(self, tokens, state):
            return super().step(tokens, state).bfloat16()

    model = Half(seed=1)
    source = source_of(1, 2)
    for row, found in enumerate(beam_search(model, source, 3, n_best=3, max_extra=3)):
        sentence = sentence_of(source, row)
        for tokens, _, log_p in found:
            path = (*tokens, EOS_ID)[: len(sentence) + 3]
            exact = sum(model.log_p(sentence, path[:i])[token] for i, token in enumerate(path))
            assert abs(log_p - exact) < 1e-5


class WithoutFloat64(TorchDispatchMode):
    """As on MPS, which has no float64."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        found = operator(*args, **(kwargs or {}))
        if any(getattr(one, "dtype", None) == torch.float64 for one in tree_leaves(found)):
            raise TypeError(f"{operator} made float64")
        return found


@pytest.mark.parametrize("make_ready", [lambda model: model, FastDecoder])
def test_beams_without_float64_as_on_mps_are_the_same(monkeypatch, make_ready):
    model = make_ready(small_model(dtype=torch.float32))
    source = pad_source([random_tokens(seed, 4 + seed).tolist() for seed in range(3)])
    expected = beam_search(model, source, n_best=3), greedy_search(model, source)
    with pytest.raises(TypeError, match="made float64"), WithoutFloat64():
        beam_search(model, source, n_best=3)
    narrow = search_module._exact(torch.device("mps"))
    monkeypatch.setattr(search_module, "_exact", lambda device: narrow)
    with WithoutFloat64():
        assert (beam_search(model, source, n_best=3), greedy_search(model, source)) == expected


@pytest.mark.parametrize("alpha", ALPHAS)
def test_rerank_ranks_what_another_search_found_as_ours_does(alpha):
    source = pad_source([[5, 7], [9]])
    for best in beam_search(small_model(), source, beam_size=4, n_best=4, alpha=alpha, max_extra=6):
        ended = [h for h in best if len(h.tokens) < 7]  # one that was cut has no eos to count
        found = [(h.tokens, h.log_p) for h in ended]
        assert rerank(sorted(found), alpha) == ended
