"""The report of a translator: one HTML file with curves, scores and samples."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

N_SAMPLES = 20
WIDTH, HEIGHT = 480, 240
LEFT, BOTTOM = 36, 28  # margins
LINE_HEIGHT = 16.0
STYLE = """
:root {
  --line: #0072b2; --other: #b34700; --text: #1a1a1a; --page: #fff;
  color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif;
}
@media (prefers-color-scheme: dark) {
  :root { --line: #56b4e9; --other: #e69f00; --text: #eee; --page: #141414; }
}
body {
  max-width: 48rem; margin: 0 auto; padding: 1rem; color: var(--text); background: var(--page);
}
table { border-collapse: collapse; }
th, td { padding: 0.2rem 1rem 0.2rem 0; text-align: left; vertical-align: top; }
td:last-child, h1 { overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; }
h2 { margin: 1.5rem 0 0.25rem; font-size: 1.15rem; }
svg { max-width: 100%; height: auto; }
svg text { fill: currentColor; font: 14px system-ui, sans-serif; }
path { fill: none; stroke-width: 2; }
a { color: var(--line); }
dt { margin-top: 1rem; font-weight: 600; overflow-wrap: anywhere; }
dd { margin: 0; overflow-wrap: anywhere; }
"""

Point = tuple[float, float]


def report_page(
    name: str,
    counts: dict[str, int],
    plan: dict[str, Any],
    log: Sequence[dict[str, Any]],
    scores: dict[str, Any],
    minutes: float,
) -> str:
    """The report as HTML.

    `name` is the file of pairs, `counts` are the pairs of each split, `log` the lines of
    log.jsonl; `scores` is what `making` writes into scores.json, and "BLEU of half" where that was
    measured. `minutes` went by from the plan to the scores.
    """
    title = f"A translator made of {escape(name)}"
    about = (
        f"{counts['train']:,} pairs were trained on, {counts['valid']:,} validated on and "
        f"{counts['test']:,} scored on; no sentence of these stands among those of another split. "
        f"The model has {scores['parameters']:,} parameters and {scores['vocab_size']:,} tokens. "
        f"Training and scoring took {max(1, round(minutes)):,} min."
    )
    bleu, of_half = scores["scores"]["BLEU"]["score"], scores.get("BLEU of half")
    more = (
        "<code>new --half</code> measures it: it trains on every other pair as well."
        if of_half is None
        else f"With every other pair the same plan comes to {of_half:.1f} BLEU, with all to "
        f"{bleu:.1f}. Twice as many pairs may bring about that step again."
    )
    parts = [
        f"<h1>{title}</h1><p>{about}</p>",
        '<p><a href="page/index.html">The translator</a> works in any browser, without a '
        "server.</p>",
        "<h2>Scores on the test split</h2>",
        _score_table(scores["scores"]),
        f"<h2>What more pairs would bring</h2><p>{more}</p>",
        "<h2>Loss</h2><p>Nats per token, without label smoothing: training (with dropout) and "
        "validation.</p>",
        curves({"training": points(log, "nll"), "validation": points(log, "valid_nll")}),
        "<h2>As people type</h2><p>BLEU of the pairs of the test split that a rule changes: as "
        "they stand, and with other numbers, new names, a word in capitals, small letters, no full "
        "stop, a slip of the pen, marks round them, a second sentence behind them. Below are the "
        "translations least like their references: what this model cannot do.</p>",
        _table(["rule", "pairs", "as they stand", "changed"], _rows_as_typed(scores["as_typed"])),
        _samples([sample for row in scores["as_typed"] for sample in row["worst"]]),
        f"<h2>Samples</h2><p>The first {N_SAMPLES} of the test split.</p>",
        _samples(scores["translations"][:N_SAMPLES]),
        "<h2>Settings</h2>",
        _table(["setting", "value"], [[key, str(value)] for key, value in plan.items()]),
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, '
        f'initial-scale=1"><title>{title}</title><link rel="icon" href="data:,">'
    )
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n'
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def points(log: Sequence[dict[str, Any]], key: str) -> list[Point]:
    """(step, value) of each line of a log that has a finite value under `key`."""
    return [(line["step"], line[key]) for line in log if line.get(key) is not None]


def curves(series: dict[str, list[Point]]) -> str:
    """Curves over steps, from zero, each with its name beside its last point, as an SVG."""
    every = [point for some in series.values() for point in some]
    if not every:
        return "<p>The log has no loss.</p>"
    last = max(step for step, _ in every)
    most = max(value for _, value in every)

    def place(point: Point) -> Point:
        step, value = point
        x = LEFT + (WIDTH - LEFT - 90) * step / last
        return round(x, 1), round((HEIGHT - BOTTOM) * (1 - value / most) + 4, 1)

    floor = HEIGHT - BOTTOM + 4
    right = WIDTH - 90
    drawn = [
        f'<path d="M{LEFT} 4V{floor}H{right}" stroke="currentColor"/>',
        f'<text x="{LEFT - 6}" y="14" text-anchor="end">{most:.1f}</text>',
        f'<text x="{LEFT - 6}" y="{floor}" text-anchor="end">0</text>',
        f'<text x="{right}" y="{floor + 18}" text-anchor="end">{last:,} steps</text>',
    ]
    ends = []
    labels = []
    for (name, some), color in zip(series.items(), ("var(--line)", "var(--other)"), strict=True):
        if not some:
            continue
        path = "L".join(f"{x} {y}" for x, y in map(place, some))
        drawn.append(f'<path d="M{path}" stroke="{color}"/>')
        labels.append((place(some[-1])[1] + 4, name, color))
        ends.append(f"{name} ends at {some[-1][1]:.3f}")
    lowest = -LINE_HEIGHT
    for y, name, color in sorted(labels):
        lowest = max(y, lowest + LINE_HEIGHT)  # two ends may lie on each other, two names not
        place_of_name = f'x="{right + 6}" y="{lowest}" style="fill: {color}"'
        drawn.append(f"<text {place_of_name}>{escape(name)}</text>")
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="Loss by steps: {escape("; ".join(ends))}">{"".join(drawn)}</svg>'
    )


def _rows_as_typed(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            row["rule"].replace("_", " "),
            str(row["pairs"]),
            f"{row['before']:.1f}",
            f"{row['after']:.1f}",
        ]
        for row in rows
    ]


def _score_table(scores: dict[str, dict[str, Any]]) -> str:
    rows = [
        [name, f"{score['score']:.2f}", str(score["signature"])] for name, score in scores.items()
    ]
    return _table(["score", "0 to 100", "sacreBLEU's signature"], rows)


def _table(names: list[str], rows: list[list[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _samples(translations: Sequence[Sequence[str]]) -> str:
    items = "".join(
        f"<dt>{escape(source)}</dt><dd>{escape(output)}</dd>"
        + (f"<dd><small>reference: {escape(reference)}</small></dd>" if reference != output else "")
        for source, reference, output in translations
    )
    return f"<dl>{items}</dl>"
