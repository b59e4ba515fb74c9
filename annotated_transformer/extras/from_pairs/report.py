"""The report of a translator: one HTML file with curves, scores and samples."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

from annotated_transformer.extras.from_pairs.judgement import ENOUGH
from annotated_transformer.views import html_table

N_SAMPLES = 20
WIDTH, HEIGHT = 480, 240
LEFT, BOTTOM = 36, 28  # margins
LINE_HEIGHT = 16.0
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
    log.jsonl; `scores` is what `making` writes into scores.json, with "verdict", and "BLEU of half"
    where that was measured. `minutes` went by from the plan to the scores.
    """
    bleu = scores["scores"]["BLEU"]["score"]
    of_half = scores.get("BLEU of half")
    more = (
        "<code>new --half</code> measures it: it trains on every other pair as well."
        if of_half is None
        else f"With every other pair the same plan comes to {of_half:.1f} BLEU, with all to "
        f"{bleu:.1f}. Twice as many pairs may bring about that step again."
    )
    score_rows = [
        (name, f"{x['score']:.1f}", x["signature"]) for name, x in scores["scores"].items()
    ]
    typed = scores["as_typed"]
    typed_rows = [
        (x["rule"].replace("_", " "), x["pairs"], f"{x['before']:.1f}", f"{x['after']:.1f}")
        for x in typed
        if x["pairs"] >= ENOUGH
    ]
    page = resources.files("annotated_transformer.extras.from_pairs").joinpath("report.html")
    return Template(page.read_text(encoding="utf-8")).substitute(
        {split: f"{n:,}" for split, n in counts.items()},
        name=escape(name),
        parameters=f"{scores['parameters']:,}",
        vocab_size=f"{scores['vocab_size']:,}",
        minutes=f"{max(1, round(minutes)):,}",
        verdict=escape(scores["verdict"]),
        enough=ENOUGH,
        scores=html_table("", score_rows, ("score", "0 to 100", "sacreBLEU's signature")),
        more=more,
        curves=curves({"training": points(log, "nll"), "validation": points(log, "valid_nll")}),
        as_typed=html_table("", typed_rows, ("rule", "pairs", "as they stand", "changed")),
        worst=_samples([sample for row in typed for sample in row["worst"]]),
        n_samples=N_SAMPLES,
        samples=_samples(scores["translations"][:N_SAMPLES]),
        settings=html_table("", plan.items(), ("setting", "value")),
    )


def points(log: Sequence[dict[str, Any]], key: str) -> list[Point]:
    """(step, value) of each line of a log that has a finite value under `key`."""
    return [(line["step"], line[key]) for line in log if line.get(key) is not None]


def curves(series: dict[str, list[Point]]) -> str:
    """Curves over steps, from zero, each with its name beside its last point, as an SVG."""
    all_points = [point for curve in series.values() for point in curve]
    if not all_points:
        return "<p>The log has no loss.</p>"
    last = max(step for step, _ in all_points)
    most = max(value for _, value in all_points)

    def place(point: Point) -> Point:
        step, value = point
        x = LEFT + (WIDTH - LEFT - 90) * step / last
        return round(x, 1), round((HEIGHT - BOTTOM) * (1 - value / most) + 4, 1)

    floor = HEIGHT - BOTTOM + 4
    right = WIDTH - 90
    shapes = [
        f'<path d="M{LEFT} 4V{floor}H{right}" stroke="currentColor"/>',
        f'<text x="{LEFT - 6}" y="14" text-anchor="end">{most:.1f}</text>',
        f'<text x="{LEFT - 6}" y="{floor}" text-anchor="end">0</text>',
        f'<text x="{right}" y="{floor + 18}" text-anchor="end">{last:,} steps</text>',
    ]
    ends = []
    labels = []
    for (name, curve), color in zip(series.items(), ("var(--line)", "var(--other)"), strict=True):
        if not curve:
            continue
        path = "L".join(f"{x} {y}" for x, y in map(place, curve))
        shapes.append(f'<path d="M{path}" stroke="{color}"/>')
        labels.append((place(curve[-1])[1] + 4, name, color))
        ends.append(f"{name} ends at {curve[-1][1]:.3f}")
    lowest = -LINE_HEIGHT
    for y, name, color in sorted(labels):
        lowest = max(y, lowest + LINE_HEIGHT)  # two ends may lie on each other, two names not
        place_of_name = f'x="{right + 6}" y="{lowest}" style="fill: {color}"'
        shapes.append(f"<text {place_of_name}>{escape(name)}</text>")
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="Loss by steps: {escape("; ".join(ends))}">{"".join(shapes)}</svg>'
    )


def _samples(translations: Sequence[Sequence[str]]) -> str:
    items = "".join(
        f"<dt>{escape(source)}</dt><dd>{escape(output)}</dd>"
        + (f"<dd><small>reference: {escape(reference)}</small></dd>" if reference != output else "")
        for source, reference, output in translations
    )
    return f"<dl>{items}</dl>"
