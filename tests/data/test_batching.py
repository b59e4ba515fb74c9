from array import array
from collections import deque

import pytest
import torch

from annotated_transformer.config import BOS_ID, EOS_ID, PAD_ID, SpecialIds
from annotated_transformer.data.batching import Batch, encode_pairs, make_batch, pad, pad_source
from annotated_transformer.errors import ConfigError
from toys import as_lists, random_pairs, text_pairs, toy_tokenizer

PAIRS = random_pairs(0, 300)
TEXTS = text_pairs(1, 60)


def test_outputs_are_shifted_right_by_one():
    batch = make_batch([([5, 6, 7], [8, 9]), ([4], [3, 4, 5, 6])])
    assert batch.source.tolist() == [[5, 6, 7, EOS_ID], [4, EOS_ID, PAD_ID, PAD_ID]]
    assert batch.target_in.tolist() == [[BOS_ID, 8, 9, PAD_ID, PAD_ID], [BOS_ID, 3, 4, 5, 6]]
    assert batch.target_out.tolist() == [[8, 9, EOS_ID, PAD_ID, PAD_ID], [3, 4, 5, 6, EOS_ID]]
    assert batch.n_tokens == 3 + 5


def test_jupyter_shows_the_shapes_of_a_batch():
    batch = make_batch([([5] * 6, [8, 9]), ([4], [3] * 1000)])
    rows = {"source": (2, 7), "target_in": (2, 1001), "target_out": (2, 1001), "n_tokens": "1,004"}
    shown = "".join(f'<tr><th scope="row">{name}</th><td>{x}</td></tr>' for name, x in rows.items())
    assert batch._repr_html_() == f"<table><caption>Batch</caption>{shown}</table>"
    assert repr(batch).startswith("Batch(source=tensor(")


def test_special_ids_are_the_models():
    batch = make_batch([([5], []), ([5, 6], [7])], SpecialIds(9, 10, 11))
    assert batch.source.tolist() == [[5, 11, 9], [5, 6, 11]]
    assert batch.target_in.tolist() == [[10, 9], [10, 7]]
    assert batch.target_out.tolist() == [[11, 9], [7, 11]]


@pytest.mark.parametrize(
    "kind", [list, tuple, lambda ids: array("i", ids), lambda ids: array("q", ids)]
)
def test_rows_of_any_kind_are_filled_up_on_the_right(kind):
    filled = pad([kind([5, 6]), kind([7])], 9, before=[1], after=[2, 3])
    assert filled.tolist() == [[1, 5, 6, 2, 3], [1, 7, 2, 3, 9]]
    assert pad([kind([5]), []]).tolist() == [[5], [PAD_ID]]
    assert pad([[], []]).shape == (2, 0)
    assert pad([kind([5])]).dtype == torch.int64


def test_pairs_that_cannot_be_trained_on_are_left_out():
    tokenizer = toy_tokenizer()
    n = len(tokenizer.encode("tea bad cab"))
    long = "tea bad cab"
    pairs = [(long, "tea"), ("", "tea"), ("tea", ""), ("tea", long), ("tea", "bad")]
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


@pytest.mark.parametrize("make", [make_batch, pad_source, pad])
def test_a_batch_of_nothing_is_refused(make):
    with pytest.raises(ConfigError, match="a batch needs at least one sentence, got none"):
        make([])


def test_moving_a_batch_moves_its_tensors():
    batch = make_batch(PAIRS[:3])
    moved = batch.to("cpu")
    assert isinstance(moved, Batch) and as_lists([moved]) == as_lists([batch])
    assert moved.n_tokens == batch.n_tokens
    assert batch.to("meta").source.device.type == "meta"
