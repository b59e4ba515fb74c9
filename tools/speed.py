"""The tables of benchmarks/README.md and README.md's figures of speed, written from book/results:
python -m tools.speed. The picture is drawn by tools/figures.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.figures import speeds

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "benchmarks" / "README.md"
FRONT = ROOT / "README.md"
BEGIN, END = "<!-- written by python -m tools.speed -->\n", "<!-- end -->\n"


def load(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "book" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_percent(share: float | None) -> str:
    """A figure that older files do not have is left out."""
    return "" if share is None else f"{share:.0%}"


def origin(result: dict[str, Any]) -> str:
    versions = ", ".join(
        f"{name} {version}"
        for name, version in {
            "torch": result["versions"]["torch"],
            **result.get("peers", {}),
        }.items()
    )
    return (
        f"`{result['command']}` on {result['hardware']}, {result['date']}, commit "
        f"{result['commit'][:7]}; {versions}.\n"
    )


def training(result: dict[str, Any]) -> str:
    steps = [r for r in result["records"] if r["measure"] == "training step"]
    memory = [r for r in result["records"] if r["measure"] == "peak memory"]
    return "\n".join(
        [
            "**Training steps**\n",
            origin(result),
            table(
                [
                    "model", "data", "implementation", "target tokens/s",
                    "share of the matrix rate", "time in products", "ours is",
                ],
                [
                    [
                        r["model"], r["data"], r["implementation"],
                        f"{r['target_tokens_per_s']:,.0f}", f"{r['share_of_product']:.2f}",
                        as_percent(r.get("share_in_products")), f"{r['ours_is_faster']:.2f} x",
                    ]
                    for r in steps
                ],
            ),
            "**Memory at its highest**, base, vocabulary 37,000, 4,096 tokens a side\n",
            table(
                ["implementation", "MB", "ours over it"],
                [
                    [r["implementation"], f"{r['peak_megabytes']:,.0f}", f"{r['ours_over_it']:.2f}"]
                    for r in memory
                ],
            ),
        ]
    )  # fmt: skip


def decoding(result: dict[str, Any]) -> str:
    return "\n".join(
        [
            "**Decoding**\n",
            origin(result),
            table(
                [
                    "model", "beam", "batch", "implementation", "same outputs", "tokens/s",
                    "ours is", "ours in int8 is",
                ],
                [
                    [
                        r["model"], str(r["beam_size"]), str(r["batch_size"]), r["implementation"],
                        f"{r['same_outputs']:.0%}", f"{r['tokens_per_s']:,.0f}",
                        f"{r['ours_is_faster']:.2f} x", f"{r['our_int8_is_faster']:.2f} x",
                    ]
                    for r in result["records"]
                    if r["measure"] == "decoding"
                ],
            ),
            "**What 8 bits cost**, beam 4 on the test split of the default corpus\n",
            table(
                ["model", "implementation", "sentences", "BLEU"],
                [
                    [r["model"], r["implementation"], str(r["sentences"]), f"{r['bleu']:.2f}"]
                    for r in result["records"]
                    if r["measure"] == "BLEU"
                ],
            ),
        ]
    )  # fmt: skip


def growth(result: dict[str, Any]) -> str:
    records = result["records"]
    return "\n".join(
        [
            "**Growth**\n",
            origin(result),
            table(
                ["pairs", "microseconds a token", "over the fewest"],
                [
                    [f"{r['pairs']:,}", f"{r['us_a_token']:.1f}", f"{r['over_smallest']:.3f}"]
                    for r in records
                    if r["measure"] == "training"
                ],
            ),
            table(
                ["lines translated", "MB at the highest", "MB before"],
                [
                    [
                        f"{r['lines']:,}",
                        f"{r['peak_megabytes']:.1f}",
                        f"{r['megabytes_before']:.1f}",
                    ]
                    for r in records
                    if r["measure"] == "translating"
                ],
            ),
        ]
    )


def tables() -> str:
    """Of the machine of the last runs, then of the one before it."""
    return "\n".join(
        [
            training(load("training_cpu")),
            decoding(load("decoding_cpu")),
            growth(load("growth")),
            training(load("training_cpu_intel")),
            decoding(load("decoding_cpu_intel")),
        ]
    )


def front() -> str:
    """The picture and the small table of README.md: against the fastest other in PyTorch,
    and C++."""
    rows, short = [], []
    for title, (ours, *others) in speeds():
        compiled = [r for r in others if r["implementation"].startswith("CTranslate2")]
        best = max((r for r in others if r not in compiled), key=lambda r: r["speed"])
        row = [title.replace("book/model", "`book/model`"), f"{ours['speed']:,.0f}"]
        row += [f"{best['implementation']} {best['speed']:,.0f}", f"{best['ours_is_faster']:.2f} x"]
        for other in compiled:
            row += [f"{other['speed']:,.0f}", f"{other['ours_is_faster']:.2f} x"]
        rows.append([*row, *[""] * (6 - len(row))])
        short.append(f"{title}: ours {row[1]}, {row[2]}")
        if compiled:
            short[-1] += f", CTranslate2 {row[4]}"
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
            f"![Bars of tokens per second. {'; '.join(short)}.](book/figures/speed.svg)\n",
            table(head, rows),
            f"One core of an {machine}, float32, {result['date']}. "
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
