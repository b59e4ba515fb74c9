"""The tables of benchmarks/README.md and README.md's figures of speed, written from book/results:
python -m tools.speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "benchmarks" / "README.md"
FRONT = ROOT / "README.md"
BEGIN, END = "<!-- written by python -m tools.speed -->\n", "<!-- end -->\n"


def load(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "book" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def of_records(result: dict[str, Any], measure: str, columns: dict[str, str]) -> str:
    """A row for each record of one measure; a column has its title and the form of its cells."""

    def cell(form: str, record: dict[str, Any]) -> str:
        try:
            return form.format(**record)
        except KeyError:  # a figure that older files do not have
            return ""

    records = [record for record in result["records"] if record["measure"] == measure]
    rows = [[cell(form, record) for form in columns.values()] for record in records]
    return table(list(columns), rows)


def origin(title: str, result: dict[str, Any]) -> str:
    peers = {"torch": result["versions"]["torch"], **result.get("peers", {})}
    versions = ", ".join(f"{name} {version}" for name, version in peers.items())
    return (
        f"**{title}**\n\n`{result['command']}` on {result['hardware']}, {result['date']}, commit "
        f"{result['commit'][:7]}; {versions}.\n"
    )


TRAINING = {
    "model": "{model}", "data": "{data}", "implementation": "{implementation}",
    "target tokens/s": "{target_tokens_per_s:,.0f}",
    "share of the matrix rate": "{share_of_product:.2f}",
    "time in products": "{share_in_products:.0%}", "ours is": "{ours_is_faster:.2f} x",
}  # fmt: skip
MEMORY = {
    "implementation": "{implementation}", "MB": "{peak_megabytes:,.0f}",
    "ours over it": "{ours_over_it:.2f}",
}  # fmt: skip
DECODING = {
    "model": "{model}", "beam": "{beam_size}", "batch": "{batch_size}",
    "implementation": "{implementation}", "same outputs": "{same_outputs:.0%}",
    "tokens/s": "{tokens_per_s:,.0f}", "ours is": "{ours_is_faster:.2f} x",
    "ours in int8 is": "{our_int8_is_faster:.2f} x",
}  # fmt: skip
BLEU = {
    "model": "{model}", "implementation": "{implementation}", "sentences": "{sentences}",
    "BLEU": "{bleu:.2f}",
}  # fmt: skip
PAIRS = {
    "pairs": "{pairs:,}", "microseconds a token": "{us_a_token:.1f}",
    "over the fewest": "{over_smallest:.3f}",
}  # fmt: skip
LINES = {
    "lines translated": "{lines:,}", "MB at the highest": "{peak_megabytes:.1f}",
    "MB before": "{megabytes_before:.1f}",
}  # fmt: skip
HIGHEST = "**Memory at its highest**, base, vocabulary 37,000, 4,096 tokens a side\n\n"
EIGHT_BITS = "**What 8 bits cost**, beam 4 on the test split of the default corpus\n\n"
# The title, and of each table what stands above it, the measure and the columns.
OF_TRAINING = ("Training steps", ("", "training step", TRAINING), (HIGHEST, "peak memory", MEMORY))
OF_DECODING = ("Decoding", ("", "decoding", DECODING), (EIGHT_BITS, "BLEU", BLEU))
OF_GROWTH = ("Growth", ("", "training", PAIRS), ("", "translating", LINES))
PARTS = (  # of the machine of the last runs, then of the one before it
    ("training_cpu", OF_TRAINING),
    ("decoding_cpu", OF_DECODING),
    ("growth", OF_GROWTH),
    ("training_cpu_intel", OF_TRAINING),
    ("decoding_cpu_intel", OF_DECODING),
)


def tables() -> str:
    parts = []
    for name, (title, *of_measures) in PARTS:
        result = load(name)
        parts.append(origin(title, result))
        for above, measure, columns in of_measures:
            parts.append(above + of_records(result, measure, columns))
    return "\n".join(parts)


SPEEDS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("Training, base", "training_cpu", {"model": "base", "data": "tatoeba-en-de"}),
    ("Training, tiny", "training_cpu", {"model": "tiny", "data": "tatoeba-en-de"}),
    (
        "Translating, base, beam 4, 64 sentences",
        "decoding_cpu",
        {"model": "base", "beam_size": 4, "batch_size": 64},
    ),
    (
        "Translating, book/model, beam 4, 64 sentences",
        "decoding_cpu",
        {"model": "book/model", "beam_size": 4, "batch_size": 64},
    ),
)


def speeds() -> list[tuple[str, list[dict[str, Any]]]]:
    """The records of each group, ours first: float32, each implementation as it comes."""
    groups = []
    for title, name, common in SPEEDS:
        records = [
            {**record, "speed": record.get("target_tokens_per_s") or record["tokens_per_s"]}
            for record in load(name)["records"]
            if all(record.get(key) == value for key, value in common.items())
            and not record["implementation"].endswith(("int8", "no copy"))
        ]
        groups.append((title, records))
    return groups


def front() -> str:
    """The small table of README.md: against the fastest other in PyTorch, and C++."""
    rows = []
    for title, (ours, *others) in speeds():
        compiled = [r for r in others if r["implementation"].startswith("CTranslate2")]
        best = max((r for r in others if r not in compiled), key=lambda r: r["speed"])
        row = [title.replace("book/model", "`book/model`"), f"{ours['speed']:,.0f}"]
        row += [f"{best['implementation']} {best['speed']:,.0f}", f"{best['ours_is_faster']:.2f} x"]
        for other in compiled:
            row += [f"{other['speed']:,.0f}", f"{other['ours_is_faster']:.2f} x"]
        rows.append([*row, *[""] * (6 - len(row))])
    result = load("training_cpu")
    machine = result["hardware"].removeprefix("CPU: ").partition(",")[0]
    memory = [r for r in result["records"] if r["measure"] == "peak memory"]
    ours, leanest = memory[0], min(memory[1:], key=lambda r: r["peak_megabytes"])
    head = [
        "tokens a second",
        "ours",
        "fastest other in PyTorch",
        "ours is",
        "CTranslate2",
        "ours is",
    ]
    return "\n".join(
        [
            table(head, rows),
            f"One core of an {machine}, float32, {result['date']}, `book/model` of that day. "
            f"A training step of base takes {ours['peak_megabytes']:,.0f} MB at its "
            f"highest, {leanest['ours_over_it']:.2f} of what the leanest other takes "
            f"({leanest['implementation']}).\n",
        ]
    )


def between(path: Path, written: str) -> str:
    """The file's text with `written` between its two marks."""
    before, rest = path.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + "\n" + written + "\n" + END + rest.split(END)[1]


def pages() -> dict[Path, str]:
    """Both files with their figures as the results say."""
    return {README: between(README, tables()), FRONT: between(FRONT, front())}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
