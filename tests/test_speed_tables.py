"""benchmarks/README.md says what the result files say."""

from tools.speed import README, page


def test_the_tables_are_those_of_the_result_files():
    assert README.read_text(encoding="utf-8") == page(), "run: python -m tools.speed"
