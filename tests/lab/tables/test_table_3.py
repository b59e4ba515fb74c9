"""Table 3: its rows are configurations, and the printed parameters tell the vocabulary
they were counted with."""

import pytest

from annotated_transformer.config import ModelConfig
from annotated_transformer.errors import ConfigError
from lab.tables import table_3
from lab.tables.table_3 import TABLE_3, table, vocabulary_interval

BASE, BIG = TABLE_3[0], TABLE_3[-1]
PRINTED = [row for row in TABLE_3 if row.parameters is not None]
ALL_BUT_BIG = [row for row in PRINTED if row is not BIG]


def printed_form(n_parameters):
    return int(n_parameters / 1e6 + 0.5)


def test_there_are_twenty_rows_and_eleven_with_parameters():
    assert len({row.name for row in TABLE_3}) == len(TABLE_3) == 20
    assert [row.letter for row in TABLE_3] == ["", *"AAAABBCCCCCCCDDDDE", ""]
    assert len(ALL_BUT_BIG) == 10
    assert (table_3.VOCAB_SIZE, table_3.VOCAB_SIZE_BIG) == (41_100, 36_000)


@pytest.mark.parametrize("row", PRINTED, ids=lambda row: row.name)
def test_parameters_are_the_printed_number(row):
    assert printed_form(row.count()) == row.parameters


@pytest.mark.parametrize("rows", [ALL_BUT_BIG, [BIG]], ids=["base to C", "big"])
def test_the_implied_vocabulary_is_exactly_this_interval(rows):
    low, high = vocabulary_interval(rows)
    for vocab_size, fits in ((low - 1, False), (low, True), (high, True), (high + 1, False)):
        assert all(printed_form(row.count(vocab_size)) == row.parameters for row in rows) is fits


def test_no_one_vocabulary_fits_base_and_big():
    low, high = vocabulary_interval(TABLE_3)
    assert low > high


@pytest.mark.parametrize(
    "row", [row for row in TABLE_3 if row.letter == "A"], ids=lambda row: row.name
)
def test_heads_vary_at_constant_size(row):
    config = row.model_config()
    assert config.h * config.d_k == config.h * config.d_v == config.d_model
    assert row.count() == BASE.count() > row.count(3) > 0
    with pytest.raises(ConfigError, match="vocab_size"):
        row.count(0)


@pytest.mark.parametrize("row", [row for row in TABLE_3 if row.letter], ids=lambda row: row.name)
def test_every_lettered_row_changes_something(row):
    assert (row.model_config(), row.train_config()) != (BASE.model_config(), BASE.train_config())


def test_the_presets_are_the_rows_base_and_big():
    assert BASE.model_config(500) == ModelConfig.base(500)
    assert BIG.model_config(500) == ModelConfig.big(500)
    assert BASE.train_config().train_steps == 100_000
    assert BIG.train_config().train_steps == 300_000


def test_a_row_may_be_trained_for_fewer_steps():
    row = next(row for row in TABLE_3 if row.name == "eps_ls=0.2")
    config = row.train_config(train_steps=7)
    assert (config.eps_ls, config.train_steps) == (0.2, 7)


def test_the_table_sets_our_count_beside_the_papers():
    lines = table().splitlines()
    assert len(lines) == 21
    assert f"{TABLE_3[0].count():,}" in lines[1].split("|")[0]
    assert lines[1].split("|")[1].split() == ["65", "4.92", "25.8"]
    assert f"{TABLE_3[0].count(37_000):,}" in table(TABLE_3[:1], vocab_size=37_000)
