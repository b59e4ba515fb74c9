"""Files of pairs as other programs write them: Tatoeba's downloads and spreadsheets."""

import pytest

from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.from_pairs.columns import read_pairs

PAIRS = [
    (f"I have {n} cats, and a dog.", f"Ich habe {n} Katzen und einen Hund.") for n in range(150)
]


def read(tmp_path, rows):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return read_pairs(path)


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        (lambda n, x, y: (str(1000 + n), x, str(9000 + n), y), "2 and 4"),
        (lambda n, x, y: ("eng", x, "deu", y), "2 and 4"),
        (lambda n, x, y: (str(n), x, y), "2 and 3"),
        (lambda n, x, y: (str(n), "eng", x, str(n * n), "deu", y), "3 and 6"),
    ],
    ids=["ids", "codes", "one id", "ids and codes"],
)
def test_ids_and_codes_are_not_learned_as_sentences(tmp_path, capsys, row, columns):
    assert read(tmp_path, [row(n, x, y) for n, (x, y) in enumerate(PAIRS)]) == PAIRS
    assert capsys.readouterr().err.endswith(f"the sentences are taken from columns {columns}\n")


def test_ids_with_more_than_two_columns_of_text_are_refused_with_the_cure(tmp_path):
    with pytest.raises(ConfigError, match="has ids or language codes: .* as with cut -f2,4"):
        read(tmp_path, [(str(n), x, y, f"by user {n}") for n, (x, y) in enumerate(PAIRS)])


def test_numbers_that_are_to_become_words_are_sentences(tmp_path, capsys):
    """In two columns, or with a licence behind them that is no label."""
    pairs = [(str(1000 + n), f"number {n}") for n in range(150)]
    assert read(tmp_path, pairs) == pairs
    spaced = [(" ".join(x), y, "CC BY") for x, y in pairs]
    assert read(tmp_path, spaced) == [(x, y) for x, y, _ in spaced]
    said = capsys.readouterr().err
    assert said.endswith("what 150 of 150 lines have after a second tab is left out\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("header", "row", "n_lines"),
    [
        (("english", "French"), lambda n, x, y: (x, y), 1),
        (("Source text", "Target text", "licence"), lambda n, x, y: (x, y, "CC BY"), 2),
        (("id", "lang", "sentence", "lang", "text"), lambda n, x, y: (str(n), "en", x, "de", y), 2),
        (("Come in!", "Herein!"), lambda n, x, y: (x, y), 0),
        (("!", "?"), lambda n, x, y: (x, y), 0),
    ],
    ids=["languages", "third column", "ids", "a pair", "no words"],
)
def test_a_header_is_no_pair_and_a_pair_no_header(tmp_path, capsys, header, row, n_lines):
    rows = [row(n, x, y) for n, (x, y) in enumerate(PAIRS)]
    assert read(tmp_path, [header, *rows]) == ([] if n_lines else [header]) + PAIRS
    said = capsys.readouterr().err
    assert said.count("\n") == n_lines
    assert (f"line 1 is a header and left out: {', '.join(header)}\n" in said) == bool(n_lines)


@pytest.mark.parametrize(
    "said", [('He says "no", again.', 'Er sagt wieder "nein".'), ("No, never.", "Niemals.")]
)
def test_a_spreadsheets_quotation_marks_are_removed(tmp_path, capsys, said):
    """Excel puts a cell with a comma or a mark into marks, and doubles those within it."""
    quoted = lambda x: '"' + x.replace('"', '""') + '"' if set(x) & set(',"') else x  # noqa: E731
    rows = [tuple(map(quoted, pair)) for pair in [*PAIRS, said]]
    assert rows[0][0].startswith('"') and not rows[0][1].startswith('"')
    assert read(tmp_path, rows) == [*PAIRS, said]
    assert "quotation marks of a spreadsheet" in capsys.readouterr().err


@pytest.mark.parametrize("speech", ['"No," he said, "never."', '"Never."', 'He said "no".'])
def test_marks_of_speech_are_kept(tmp_path, capsys, speech):
    rows = [*PAIRS, (speech, speech)]
    assert read(tmp_path, rows) == rows
    assert not capsys.readouterr().err


def test_a_line_break_in_a_cell_is_named(tmp_path):
    """A spreadsheet puts such a cell into quotation marks, and its line ends in the middle."""
    rows = [*PAIRS, ('"Two\nlines", he said.'.replace(",", ""), "Zwei Zeilen")]
    with pytest.raises(ConfigError, match="line 151 has no tab: .*; a cell with a line break"):
        read(tmp_path, rows)
    with pytest.raises(ConfigError, match="line 151 has no tab: .* a target$"):
        read(tmp_path, [*PAIRS, ("one cell",)])
