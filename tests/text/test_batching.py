import itertools
import random
from array import array
from collections import Counter, deque

import pytest
import torch

from annotated_transformer.config import BOS_ID, EOS_ID, PAD_ID, SpecialIds
from annotated_transformer.errors import ConfigError
from annotated_transformer.text.batching import (
    Batch,
    concatenated,
    encode_pairs,
    make_batch,
    pad,
    pad_source,
    token_batches,
)
from toys import random_pairs, text_pairs, toy_tokenizer

PAIRS = random_pairs(0, 300)
TEXTS = text_pairs(1, 60)


def pairs_of(batch):
    """The pairs a batch was made of, read back from the source and from both targets."""
    for rows in zip(*(tensor.tolist() for tensor in batch[:3])):
        x, y, z = ([token for token in row if token != PAD_ID] for row in rows)
        assert x[-1] == EOS_ID and y[0] == BOS_ID and z[-1] == EOS_ID and y[1:] == z[:-1]
        yield tuple(x[:-1]), tuple(z[:-1])


def as_lists(batches):
    return [[tensor.tolist() for tensor in batch[:3]] for batch in batches]


def test_outputs_are_shifted_right_by_one():
    batch = make_batch([([5, 6, 7], [8, 9]), ([4], [3, 4, 5, 6])])
    assert batch.source.tolist() == [[5, 6, 7, EOS_ID], [4, EOS_ID, PAD_ID, PAD_ID]]
    assert batch.target_in.tolist() == [[BOS_ID, 8, 9, PAD_ID, PAD_ID], [BOS_ID, 3, 4, 5, 6]]
    assert batch.target_out.tolist() == [[8, 9, EOS_ID, PAD_ID, PAD_ID], [3, 4, 5, 6, EOS_ID]]
    assert batch.n_tokens == 3 + 5


def test_special_ids_are_the_models():
    batch = make_batch([([5], []), ([5, 6], [7])], SpecialIds(9, 10, 11))
    assert batch.source.tolist() == [[5, 11, 9], [5, 6, 11]]
    assert (batch.target_in.tolist(), batch.target_out.tolist()) == (
        [[10, 9], [10, 7]],
        [[11, 9], [7, 11]],
    )
    (from_epoch,) = token_batches([([5], [])], 10, ids=SpecialIds(9, 10, 11))
    assert as_lists([from_epoch]) == [[[[5, 11]], [[10]], [[11]]]]


@pytest.mark.parametrize(
    "kind", [list, tuple, lambda ids: array("i", ids), lambda ids: array("q", ids)]
)
def test_rows_of_any_kind_are_filled_up_on_the_right(kind):
    assert pad([kind([5, 6]), kind([7])], 9, before=[1], after=[2, 3]).tolist() == [
        [1, 5, 6, 2, 3],
        [1, 7, 2, 3, 9],
    ]
    assert pad([kind([5]), []]).tolist() == [[5], [PAD_ID]]
    assert pad([[], []]).shape == (2, 0)
    assert pad([kind([5])]).dtype == torch.int64


def test_pairs_that_cannot_be_trained_on_are_left_out():
    tokenizer = toy_tokenizer()
    n = len(tokenizer.encode("tea bad cab"))
    pairs = [
        ("tea bad cab", "tea"),
        ("", "tea"),
        ("tea", ""),
        ("tea", "tea bad cab"),
        ("tea", "bad"),
    ]
    ids = [(array("i", tokenizer.encode(x)), array("i", tokenizer.encode(y))) for x, y in pairs]
    assert encode_pairs(tokenizer, pairs, n + 1) == [ids[0], ids[3], ids[4]]  # eos makes n + 1
    assert encode_pairs(tokenizer, pairs, n) == [ids[4]]


def test_pairs_are_encoded_some_at_a_time_and_each_draws_its_own_pieces():
    tokenizer = toy_tokenizer()
    pairs = [("tea bad cab", "cab bad tea")] * 20
    assert encode_pairs(tokenizer, TEXTS, 40, pairs_at_once=7) == encode_pairs(tokenizer, TEXTS, 40)
    drawn, again, other = (
        encode_pairs(tokenizer, pairs, 40, 0.5, seed, pairs_at_once=7)
        for seed in (10**12, 10**12, 1)
    )
    assert drawn == again != other and drawn[:7] != drawn[7:14]
    alike = encode_pairs(tokenizer, deque([("tea bad cab", "tea bad cab")] * 20), 40, 0.5)
    assert any(x != y for x, y in alike)


def test_joined_pairs_are_two_random_pairs_in_the_same_order_on_both_sides():
    pairs = [((i, i), (100 + i,)) for i in range(10)]
    joined = concatenated(pairs, 2.5, random.Random(0))
    assert len(joined) == 25
    drawn = [((x[0], x[2]), (y[0] - 100, y[1] - 100)) for x, y in joined]
    assert all(both_x == both_y for both_x, both_y in drawn)
    assert all(len(x) == 4 and x[0] == x[1] and x[2] == x[3] and len(y) == 2 for x, y in joined)
    assert all(
        len({i for i, _ in column}) > 5 for column in (drawn, [(i[::-1], i) for i, _ in drawn])
    )
    assert (
        concatenated(pairs, 2.5, random.Random(0))
        == joined
        != concatenated(pairs, 2.5, random.Random(1))
    )
    assert concatenated(pairs, 0.0, random.Random(0)) == []


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_pair_comes_once_an_epoch(shuffle):
    batches = list(token_batches(PAIRS, 60, shuffle=shuffle))
    seen = Counter(pair for batch in batches for pair in pairs_of(batch))
    assert seen == Counter((tuple(x), tuple(y)) for x, y in PAIRS)
    assert sum(batch.n_tokens for batch in batches) == sum(len(y) + 1 for _, y in PAIRS)


def test_no_side_exceeds_max_tokens_and_batches_are_full():
    batches = list(token_batches(PAIRS, 60, shuffle=False))
    assert all(max(batch.source.numel(), batch.target_in.numel()) <= 60 for batch in batches)
    for batch, following in itertools.pairwise(batches):
        next_pair = next(pairs_of(following))
        longest = max(
            batch.source.size(1), batch.target_in.size(1), *(len(side) + 1 for side in next_pair)
        )
        assert longest * (batch.source.size(0) + 1) > 60  # the next pair would not have fitted


def test_a_batch_holds_similar_lengths():
    batches = list(token_batches(random_pairs(1, 2000, longest=40), 400))
    real = sum(batch.n_tokens for batch in batches)
    assert real > 0.9 * sum(batch.target_in.numel() for batch in batches)


def test_order_depends_on_seed_and_epoch_alone():
    def epoch(**which):
        return as_lists(token_batches(PAIRS, 60, **which))

    torch.manual_seed(1)
    one = epoch(seed=1, epoch=0)
    torch.manual_seed(2)
    assert epoch(seed=1, epoch=0) == one
    assert epoch(seed=2, epoch=0) != one != epoch(seed=1, epoch=1)


def test_shuffling_moves_whole_batches_and_pairs_between_them():
    lengths = [batch.target_in.size(1) for batch in token_batches(PAIRS, 60)]
    assert lengths != sorted(lengths)
    in_order = [batch.target_in.size(1) for batch in token_batches(PAIRS, 60, shuffle=False)]
    assert in_order == sorted(in_order)
    epochs = [
        {frozenset(pairs_of(batch)) for batch in token_batches(PAIRS, 60, epoch=epoch)}
        for epoch in (0, 1)
    ]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("start", [1, 7])
def test_an_epoch_resumes_after_any_batch(start):
    whole = as_lists(token_batches(PAIRS, 60, seed=4, epoch=3))
    assert as_lists(token_batches(PAIRS, 60, seed=4, epoch=3, start=start)) == whole[start:]


def test_a_sentence_longer_than_a_batch_is_named():
    with pytest.raises(
        ConfigError, match="max_tokens must hold the longest sentence, got 10 and 13"
    ):
        list(token_batches([([3] * 4, [3] * 12)], 10))


@pytest.mark.parametrize("make", [make_batch, pad_source, pad])
def test_a_batch_of_nothing_is_refused(make):
    with pytest.raises(ConfigError, match="a batch needs at least one sentence, got none"):
        make([])


def test_lengths_rounded_up_hold_the_same_pairs():
    batches = list(token_batches(PAIRS, 60, multiple_of=8))
    assert {side.size(1) % 8 for batch in batches for side in batch[:3]} == {0}
    seen = Counter(pair for batch in batches for pair in pairs_of(batch))
    assert seen == Counter((tuple(x), tuple(y)) for x, y in PAIRS)
    assert all(max(batch.source.numel(), batch.target_in.numel()) <= 60 for batch in batches)
    assert as_lists(token_batches(PAIRS, 60, multiple_of=1)) == as_lists(token_batches(PAIRS, 60))


def test_a_sentence_that_only_rounding_makes_too_long_is_a_batch_of_its_own():
    pairs = [([4] * 9, [5] * 9), ([4] * 8, [5] * 8), ([6], [7])]
    sizes = [
        tuple(batch.source.shape)
        for batch in token_batches(pairs, 10, multiple_of=8, shuffle=False)
    ]
    assert sizes == [(1, 8), (1, 16), (1, 16)]
    with pytest.raises(
        ConfigError, match="max_tokens must hold the longest sentence, got 10 and 11"
    ):
        list(token_batches([([4] * 10, [5])], 10, multiple_of=8))


@pytest.mark.slow
def test_lengths_rounded_up_make_few_shapes():
    """Of the attention over the source: (sentences, target length, source length)."""
    generator = random.Random(1)
    pairs = [
        ([4] * n, [5] * max(1, round(n * generator.uniform(0.7, 1.4))))
        for n in (round(generator.lognormvariate(3.2, 0.5)) for _ in range(10_000))
    ]
    shapes, padded = {}, {}
    for multiple_of in (1, 8):
        batches = list(token_batches(pairs, 4096, multiple_of=multiple_of))
        shapes[multiple_of] = len({(*b.target_in.shape, b.source.size(1)) for b in batches})
        padded[multiple_of] = sum(b.target_in.numel() + b.source.numel() for b in batches)
    assert shapes[8] < 0.5 * shapes[1]
    assert padded[8] < 1.1 * padded[1]


def test_moving_a_batch_moves_its_tensors():
    batch = make_batch(PAIRS[:3])
    moved = batch.to("cpu")
    assert (
        isinstance(moved, Batch)
        and as_lists([moved]) == as_lists([batch])
        and moved.n_tokens == batch.n_tokens
    )
    assert batch.to("meta").source.device.type == "meta"
