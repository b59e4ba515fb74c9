"""benchmarks/README.md and README.md say what the result files say."""

from tools.speed import FRONT, README, front, load, pages


def test_the_tables_are_those_of_the_result_files():
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, "run: python -m tools.speed"


def test_the_front_page_compares_with_the_fastest_other():
    """Counted again, by hand, from the records."""
    records = [r for r in load("training_cpu")["records"] if r["measure"] == "training step"]
    of_base = [r for r in records if (r["model"], r["data"]) == ("base", "tatoeba-en-de")]
    speeds = sorted(
        (r["target_tokens_per_s"], r["implementation"])
        for r in of_base
        if r["implementation"] != "annotated_transformer"
    )
    line = next(line for line in front().splitlines() if line.startswith("| Training, base"))
    assert f"| {speeds[-1][1]} {speeds[-1][0]:,.0f} |" in line
    assert front().count("| Translating") == 2 and README != FRONT
