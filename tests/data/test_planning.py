"""An epoch in windows: every pair once, in an order that is computed, whatever its size."""

import itertools
from array import array
from collections import Counter

import numpy as np
import pytest

from annotated_transformer.config import BOS_ID, EOS_ID, PAD_ID, SpecialIds
from annotated_transformer.data import batching
from annotated_transformer.data.batching import PairsInMemory, permuted, plan, token_batches
from annotated_transformer.errors import ConfigError
from toys import as_lists, random_pairs

PAIRS = random_pairs(0, 300)
STORE = PairsInMemory(PAIRS)
SORTED = sorted((tuple(x), tuple(y)) for x, y in PAIRS)


def groups(store=STORE, max_tokens=60, **settings):
    return [group.indices.tolist() for group in plan(store, max_tokens, **settings)]


def longest_side(batch):
    return max(batch.source.numel(), batch.target_in.numel())


def pairs_of(batch):
    """The pairs a batch was made of, read back from the source and from both targets."""
    for rows in zip(*(tensor.tolist() for tensor in batch[:3])):
        x, y, z = ([token for token in row if token != PAD_ID] for row in rows)
        assert x[-1] == EOS_ID and y[0] == BOS_ID and z[-1] == EOS_ID and y[1:] == z[:-1]
        yield tuple(x[:-1]), tuple(z[:-1])


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
    for i in range(0, 1000, 7):
        assert permuted(np.array([i]), 1000, "key") == whole[i]
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


def test_no_side_exceeds_max_tokens_and_batches_are_full():
    batches = list(token_batches(PAIRS, 60, shuffle=False))
    assert all(longest_side(batch) <= 60 for batch in batches)
    for batch, following in itertools.pairwise(batches):
        lengths = [batch.source.size(1), batch.target_in.size(1)]
        lengths += [len(side) + 1 for side in next(pairs_of(following))]
        assert max(lengths) * (batch.source.size(0) + 1) > 60  # the next would not have fitted


@pytest.mark.parametrize("window", [7, 100, 300, 1000])
def test_every_pair_comes_once_an_epoch_in_windows(window):
    for epoch in range(3):
        seen = Counter(i for group in groups(epoch=epoch, window=window) for i in group)
        assert seen == Counter(range(300))


def grouped_one_by_one(lengths, max_tokens):
    """The rule of 5.1, in plain Python: sort, and begin a group where the next would not fit."""
    groups = [[]]
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i][::-1]):
        longest = max(max(lengths[j]) for j in [*groups[-1], i])
        if (len(groups[-1]) + 1) * longest > max_tokens:
            groups.append([])
        groups[-1].append(i)
    return groups


def test_groups_are_those_of_the_rule_in_plain_python():
    lengths = [(len(x) + 1, len(y) + 1) for x, y in random_pairs(3, 500, longest=50)]
    for max_tokens in (51, 60, 400, 10**6):
        found = batching.group_by_length(np.array(lengths), max_tokens)
        assert [group.tolist() for group in found] == grouped_one_by_one(lengths, max_tokens)


def test_a_window_is_a_stretch_of_the_permutation_in_groups():
    order = permuted(np.arange(300), 300, "5 2").tolist()
    found = groups(seed=5, epoch=2, window=128)
    for first in (0, 100, 200):  # windows of equal size, of at most 128
        stretch = order[first : first + 100]
        lengths = [(len(PAIRS[i][0]) + 1, len(PAIRS[i][1]) + 1) for i in stretch]
        expected = grouped_one_by_one(lengths, 60)
        here = [found.pop(0) for _ in expected]
        in_order = [[stretch[place] for place in group] for group in expected]
        assert sorted(here) == sorted(in_order) and here != in_order  # they come shuffled
    assert found == []


def test_shuffling_moves_whole_batches_and_pairs_between_them():
    lengths = [batch.target_in.size(1) for batch in token_batches(PAIRS, 60)]
    assert lengths != sorted(lengths)
    in_order = [batch.target_in.size(1) for batch in token_batches(PAIRS, 60, shuffle=False)]
    assert in_order == sorted(in_order)
    one, other = (set(map(frozenset, groups(epoch=epoch))) for epoch in (0, 1))
    assert one != other


def test_the_order_depends_on_seed_epoch_and_window():
    settings = [{}, {"seed": 2}, {"epoch": 1}, {"window": 100}]
    found = [groups(**chosen) for chosen in settings]
    assert [groups(**chosen) for chosen in settings] == found
    sets = [{frozenset(group) for group in one} for one in found]
    assert all(one != two for one, two in itertools.combinations(sets, 2))


def test_batches_hold_what_the_plan_says_and_the_plan_knows_their_tokens():
    batches = list(token_batches(PAIRS, 60, window=100))
    planned = list(plan(STORE, 60, window=100))
    assert [batch.n_tokens for batch in batches] == [group.n_tokens for group in planned]
    for batch, group in zip(batches, planned, strict=True):
        assert longest_side(batch) <= 60
        sources = [[i for i in row if i][:-1] for row in batch.source.tolist()]
        assert sources == [PAIRS[i][0] for i in group.indices.tolist()]


def test_a_batch_holds_similar_lengths():
    batches = list(token_batches(random_pairs(1, 2000, longest=40), 400))
    real = sum(batch.n_tokens for batch in batches)
    assert real > 0.9 * sum(batch.target_in.numel() for batch in batches)


@pytest.mark.parametrize("start", [1, 7, 40])
def test_an_epoch_resumes_after_any_batch(start):
    whole = as_lists(token_batches(PAIRS, 60, seed=4, epoch=3, window=64))
    rest = token_batches(PAIRS, 60, seed=4, epoch=3, window=64, start=start)
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


def test_lengths_rounded_up_hold_the_same_pairs():
    batches = list(token_batches(PAIRS, 60, multiple_of=8))
    assert {side.size(1) % 8 for batch in batches for side in batch[:3]} == {0}
    assert sorted(itertools.chain(*map(pairs_of, batches))) == SORTED
    assert all(longest_side(batch) <= 60 for batch in batches)
    assert as_lists(token_batches(PAIRS, 60, multiple_of=1)) == as_lists(token_batches(PAIRS, 60))


def test_a_sentence_that_only_rounding_makes_too_long_is_a_batch_of_its_own():
    pairs = [([4] * 9, [5] * 9), ([4] * 8, [5] * 8), ([6], [7])]
    batches = token_batches(pairs, 10, multiple_of=8, shuffle=False)
    assert [tuple(batch.source.shape) for batch in batches] == [(1, 8), (1, 16), (1, 16)]


@pytest.mark.parametrize(("length", "settings"), [(12, {}), (10, {"multiple_of": 8})])
def test_a_sentence_longer_than_a_batch_is_named(length, settings):
    words = f"max_tokens must hold the longest sentence, got 10 and {length + 1}"
    with pytest.raises(ConfigError, match=words):
        list(token_batches([([3] * 4, [3] * length)], 10, **settings))


def test_special_ids_are_the_models():
    (batch,) = token_batches([([5], [])], 10, ids=SpecialIds(9, 10, 11))
    assert as_lists([batch]) == [[[[5, 11]], [[10]], [[11]]]]


# Joined pairs


def test_joined_pairs_are_two_random_pairs_in_the_same_order_on_both_sides():
    pairs = [(array("i", [i] * (1 + i % 3)), array("i", [100 + i])) for i in range(10)]
    store = batching.JoinedPairs(PairsInMemory(pairs), 2.5, seed=1, epoch=0)
    assert len(store) == 35
    indices = np.arange(35)[::-1].copy()
    found = store.gather(indices)[::-1]
    assert found[:10] == pairs
    drawn = [(x[0], x[-1], y[0] - 100, y[1] - 100) for x, y in found[10:]]
    assert all((i, j) == (k, m) for i, j, k, m in drawn) and len(set(drawn)) > 15
    assert [x for x, _ in found[10:]] == [pairs[i][0] + pairs[j][0] for i, j, *_ in drawn]
    assert store.lengths(indices)[::-1].tolist() == [[len(x), len(y)] for x, y in found]
    for seed, epoch in ((1, 1), (2, 0)):
        other = batching.JoinedPairs(PairsInMemory(pairs), 2.5, seed, epoch)
        assert other.gather(np.arange(10, 35)) != found[10:]


def test_a_joined_pair_that_is_too_long_is_left_out():
    store = batching.JoinedPairs(STORE, 1.0, seed=1, epoch=0)
    lengths = store.lengths(np.arange(600)) + 1
    expected = np.flatnonzero(lengths.max(axis=1) <= 16).tolist()
    assert sorted(i for group in groups(store, max_length=16) for i in group) == expected
    assert 300 < len(expected) < 600
