"""An epoch in windows: every pair once, in an order that is computed, whatever its size."""

import itertools
import random
from array import array
from collections import Counter

import numpy as np
import pytest

from annotated_transformer.errors import ConfigError
from annotated_transformer.text.batching import group_by_length, token_batches
from annotated_transformer.text.planning import (
    JoinedPairs,
    PairsInMemory,
    permuted,
    plan,
    planned_batches,
)
from toys import random_pairs

PAIRS = random_pairs(0, 300)
STORE = PairsInMemory(PAIRS)


def groups(store=STORE, max_tokens=60, **settings):
    return [group.indices.tolist() for group in plan(store, max_tokens, **settings)]


def as_lists(batches):
    return [[tensor.tolist() for tensor in batch[:3]] for batch in batches]


class Unstored:
    """More pairs than any memory holds: lengths follow from the index, ids there are none."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def lengths(self, indices):
        return np.stack([1 + indices % 30, 1 + indices % 29], axis=1).astype(np.int32)

    def gather(self, indices):
        raise AssertionError("a plan asks for no ids")


# The order


@pytest.mark.parametrize("key", ["1 0", "1 1", "2 0"])
def test_a_permutation_meets_every_number_once(key):
    for size in [*range(1, 70), 127, 128, 129, 1000, 4096, 5003]:
        assert sorted(permuted(np.arange(size), size, key).tolist()) == list(range(size))


def test_a_piece_of_a_permutation_needs_no_other_piece():
    whole = permuted(np.arange(1000), 1000, "key")
    assert [int(permuted(np.array([i]), 1000, "key")[0]) for i in range(0, 1000, 7)] == [
        int(whole[i]) for i in range(0, 1000, 7)
    ]
    other = permuted(np.arange(2**16 + 5), 2**17, "key")
    assert int(permuted(np.array([2**16 + 3]), 2**17, "key")[0]) == other[-2]
    far = permuted(np.array([10**15 - 1, 0]), 10**15, "key")
    assert ((far >= 0) & (far < 10**15)).all() and far[0] != far[1]


def test_every_number_comes_to_every_place_equally_often():
    """Pearson's test: the statistic has mean 121 and standard deviation 15.6."""
    n, times = 12, 1200
    counts = np.zeros((n, n))
    for key in range(times):
        counts[np.arange(n), permuted(np.arange(n), n, str(key))] += 1
    expected = times / n
    assert ((counts - expected) ** 2 / expected).sum() < 121 + 5 * 15.6


def test_neighbours_and_keys_have_nothing_to_do_with_each_other():
    n = 20_000
    one, two = (permuted(np.arange(n), n, key) for key in ("1 0", "1 1"))
    for first, second in ((one[:-1], one[1:]), (one, np.arange(n)), (one, two)):
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / n**0.5
    assert np.count_nonzero(np.abs(np.diff(one)) == 1) < 20  # 2 are expected


def test_nothing_cannot_be_permuted():
    with pytest.raises(ConfigError, match="there must be something to permute, got 0"):
        permuted(np.arange(0), 0, "key")


# The plan


@pytest.mark.parametrize("window", [7, 100, 300, 1000])
def test_every_pair_comes_once_an_epoch(window):
    for epoch in range(3):
        seen = Counter(i for group in groups(epoch=epoch, window=window) for i in group)
        assert seen == Counter(range(300))


def test_a_window_is_a_stretch_of_the_permutation_grouped_as_ever(monkeypatch):
    """The oracle is the function that groups a whole epoch, told to leave ties as they are."""
    monkeypatch.setattr(random.Random, "shuffle", lambda self, order: None)
    order = permuted(np.arange(300), 300, "5 2").tolist()
    found = groups(seed=5, epoch=2, window=128)
    for first in (0, 100, 200):  # windows of equal size, of at most 128
        stretch = order[first : first + 100]
        lengths = [(len(PAIRS[i][0]) + 1, len(PAIRS[i][1]) + 1) for i in stretch]
        expected = group_by_length(lengths, 60, random.Random())
        here = [found.pop(0) for _ in expected]
        in_order = [[stretch[place] for place in group] for group in expected]
        assert sorted(here) == sorted(in_order) and here != in_order  # they come shuffled
    assert found == []


def test_the_order_depends_on_seed_epoch_and_window():
    settings = [{}, {"seed": 2}, {"epoch": 1}, {"window": 100}]
    found = [groups(**chosen) for chosen in settings]
    assert [groups(**chosen) for chosen in settings] == found
    sets = [{frozenset(group) for group in one} for one in found]
    assert all(one != two for one, two in itertools.combinations(sets, 2))


def test_batches_hold_what_the_plan_says_and_the_plan_knows_their_tokens():
    batches = list(planned_batches(PAIRS, 60, window=100))
    planned = list(plan(STORE, 60, window=100))
    assert [batch.n_tokens for batch in batches] == [group.n_tokens for group in planned]
    for batch, group in zip(batches, planned, strict=True):
        assert max(batch.source.numel(), batch.target_in.numel()) <= 60
        sources = [[i for i in row if i][:-1] for row in batch.source.tolist()]
        assert sources == [PAIRS[i][0] for i in group.indices.tolist()]


def test_padding_is_what_it_is_when_the_whole_epoch_is_sorted():
    pairs = random_pairs(1, 2000, longest=40)
    padded = [
        sum(batch.target_in.numel() + batch.source.numel() for batch in batches)
        for batches in (token_batches(pairs, 400), planned_batches(pairs, 400))
    ]
    assert padded[1] < 1.03 * padded[0]


@pytest.mark.parametrize("start", [1, 7, 40])
def test_an_epoch_resumes_after_any_batch(start):
    whole = as_lists(planned_batches(PAIRS, 60, seed=4, epoch=3, window=64))
    rest = planned_batches(PAIRS, 60, seed=4, epoch=3, window=64, start=start)
    assert as_lists(rest) == whole[start:]


def test_an_epoch_beyond_all_memory_begins_at_once():
    first = list(itertools.islice(plan(Unstored(10**12), 400, window=1000), 20))
    chosen = {i for group in first for i in group.indices.tolist()}
    assert len(chosen) > 200 and max(chosen) > 10**11


def test_pairs_that_are_too_long_are_left_out():
    kept = {i for group in groups(max_length=9) for i in group}
    assert kept == {i for i, pair in enumerate(PAIRS) if max(map(len, pair)) < 9}
    assert groups(max_length=1) == []
    with pytest.raises(ConfigError, match="max_length must not exceed max_tokens, got 61 and 60"):
        groups(max_length=61)
    with pytest.raises(ConfigError, match="window must be at least 1, got 0"):
        groups(window=0)


def test_lengths_rounded_up_are_those_of_whole_epochs():
    batches = list(planned_batches(PAIRS, 60, window=64, multiple_of=8))
    assert {side.size(1) % 8 for batch in batches for side in batch[:3]} == {0}
    assert all(max(batch.source.numel(), batch.target_in.numel()) <= 60 for batch in batches)
    alone = [([4] * 9, [5] * 9), ([6], [7])]  # only rounding makes the first one too long
    assert sorted(tuple(b.source.shape) for b in planned_batches(alone, 10, multiple_of=8)) == [
        (1, 8),
        (1, 16),
    ]


# Joined pairs


def test_joined_pairs_are_two_random_pairs_in_the_same_order_on_both_sides():
    pairs = [(array("i", [i] * (1 + i % 3)), array("i", [100 + i])) for i in range(10)]
    store = JoinedPairs(PairsInMemory(pairs), 2.5, seed=1, epoch=0)
    assert len(store) == 35
    indices = np.arange(35)[::-1].copy()
    found = store.gather(indices)[::-1]
    assert found[:10] == pairs
    drawn = [(x[0], x[-1], y[0] - 100, y[1] - 100) for x, y in found[10:]]
    assert all((i, j) == (k, m) for i, j, k, m in drawn) and len(set(drawn)) > 15
    assert [x for x, _ in found[10:]] == [pairs[i][0] + pairs[j][0] for i, j, *_ in drawn]
    assert store.lengths(indices)[::-1].tolist() == [[len(x), len(y)] for x, y in found]
    for seed, epoch in ((1, 1), (2, 0)):
        other = JoinedPairs(PairsInMemory(pairs), 2.5, seed, epoch)
        assert other.gather(np.arange(10, 35)) != found[10:]


def test_a_joined_pair_that_is_too_long_is_left_out():
    store = JoinedPairs(STORE, 1.0, seed=1, epoch=0)
    lengths = store.lengths(np.arange(600)) + 1
    expected = np.flatnonzero(lengths.max(axis=1) <= 16).tolist()
    assert sorted(i for group in groups(store, max_length=16) for i in group) == expected
    assert 300 < len(expected) < 600
