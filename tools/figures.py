"""Draw the book's diagrams: book/figures/*.svg, the architecture figures of the paper in drawings
of our own and README's bars of speed, from the result files; and static/card.png, the sign on the
cards that other sites show for a link to a page.

    python -m tools.drawings    write every figure, those of tools/drawings too; a test compares

Plain SVG without fonts, scripts or style sheets of its own, so that it looks the same in a page, in
Colab and in print. A figure has a light card of its own behind it (dark pages show it unchanged),
words in black on tints of the palette of Okabe and Ito, a title and a description. Colour never
says what a word does not say as well. Widths are chosen so that letters stay about ten pixels high
where a phone of 360 pixels shows the figure. matplotlib was tried: its SVG has a style sheet, and
letters as shapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "book" / "figures"
CARD_SIGN = ROOT / "static" / "card.png"
INK, RULE, CARD, PANEL = "#1a1a1a", "#555555", "#ffffff", "#f4f4f4"
# Tint and outline of a box: the outline is Okabe and Ito's colour,
# the tint the same with much white.
BLUE, ORANGE, GREEN = ("#cfe5f3", "#0072b2"), ("#fbe6bf", "#e69f00"), ("#cbeade", "#009e73")
PINK, SKY, PLAIN = ("#f4dfea", "#cc79a7"), ("#dcf0fb", "#56b4e9"), ("#ffffff", "#555555")
FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
Point = tuple[float, float]
Colours = tuple[str, str]


def number(value: float) -> str:
    """A coordinate with at most two decimals and no needless zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


class Drawing:
    """A figure of `size`, width and height: shapes in the order in which they are drawn,
    the first lowest."""

    def __init__(self, size: Point, title: str, description: str):
        self.size, self.title, self.description = size, title, description
        width, height = size
        self.parts: list[str] = []
        self.box((width / 2, height / 2), width - 1, height - 1, "", (CARD, "#c9c9c9"), radius=8)

    def box(
        self,
        center: Point,
        width: float,
        height: float,
        label: str = "",
        colours: Colours = PLAIN,
        radius: float = 6,
        size: float = 15,
        stroke: float = 1.5,
    ) -> None:
        """A rounded rectangle with its label in the middle;
        a newline in the label starts a second line."""
        x, y = center[0] - width / 2, center[1] - height / 2
        self.parts.append(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" '
            f'height="{number(height)}" rx="{number(radius)}" fill="{colours[0]}" '
            f'stroke="{colours[1]}" stroke-width="{number(stroke)}"/>'
        )
        lines = label.split("\n") if label else []
        for index, line in enumerate(lines):
            below = (index - (len(lines) - 1) / 2) * size * 1.2
            self.text((center[0], center[1] + below), line, size)

    def text(
        self,
        at: Point,
        words: str,
        size: float = 15,
        anchor: str = "middle",
        bold: bool = False,
        colour: str = INK,
    ) -> None:
        """One line whose middle is at height `at[1]`; `*x*` is italic,
        `_{x}` a subscript and `^{x}` a superscript."""
        pieces, level = [], 0.0  # how far below the line the pen is, in parts of the size
        for italic, sub, sup, plain in re.findall(
            r"\*([^*]+)\*|_\{([^}]+)\}|\^\{([^}]+)\}|([^*_^]+|_)", words
        ):
            wanted = 0.25 if sub else -0.35 if sup else 0.0
            attributes = f' dy="{number((wanted - level) * size)}"' if wanted != level else ""
            attributes += f' font-size="{number(size * 0.75)}"' if wanted else ""
            attributes += ' font-style="italic"' if italic else ""
            piece = escape(italic or sub or sup or plain, quote=False)
            pieces.append(f"<tspan{attributes}>{piece}</tspan>" if attributes else piece)
            level = wanted
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{number(at[0])}" y="{number(at[1] + size * 0.35)}" '
            f'font-size="{number(size)}" text-anchor="{anchor}" '
            f'fill="{colour}"{weight}>{"".join(pieces)}</text>'
        )

    def line(self, *points: Point, colour: str = RULE, dash: str = "", stroke: float = 1.6) -> None:
        """A line through `points`, with round corners of the pen."""
        path = "M" + " L".join(f"{number(x)} {number(y)}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{number(stroke)}" '
            f'stroke-linejoin="round"{dashed}/>'
        )

    def arrow(
        self, *points: Point, colour: str = RULE, dash: str = "", stroke: float = 1.6
    ) -> None:
        """A line with a head at its last point."""
        (x0, y0), (x1, y1) = points[-2:]
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        ux, uy = (x1 - x0) / length, (y1 - y0) / length
        back = (x1 - 8 * ux, y1 - 8 * uy)
        self.line(*points[:-1], (x1 - 5 * ux, y1 - 5 * uy), colour=colour, dash=dash, stroke=stroke)
        corners = [
            (x1, y1),
            (back[0] - 4 * uy, back[1] + 4 * ux),
            (back[0] + 4 * uy, back[1] - 4 * ux),
        ]
        outline = " ".join(f"{number(x)},{number(y)}" for x, y in corners)
        self.parts.append(f'<polygon points="{outline}" fill="{colour}"/>')

    def circle(
        self,
        center: Point,
        radius: float,
        label: str = "",
        colours: Colours = PLAIN,
        size: float = 15,
    ) -> None:
        self.parts.append(
            f'<circle cx="{number(center[0])}" cy="{number(center[1])}" r="{number(radius)}" '
            f'fill="{colours[0]}" stroke="{colours[1]}" stroke-width="1.5"/>'
        )
        if label:
            self.text(center, label, size)

    def plus(self, center: Point) -> None:
        """A circle with a plus sign: its inputs are added."""
        (x, y), arm = center, 6
        self.circle(center, 10, colours=(CARD, INK))
        self.line((x - arm, y), (x + arm, y), colour=INK)
        self.line((x, y - arm), (x, y + arm), colour=INK)

    def wave(self, center: Point) -> None:
        """A circle with one period of a sine: positions."""
        (x, y), r = center, 14 * 0.7
        self.circle(center, 14, colours=SKY)
        self.parts.append(
            f'<path d="M{number(x - r)} {number(y)} C{number(x - r / 2)} {number(y - 1.1 * r)} '
            f"{number(x - r / 2)} {number(y - 1.1 * r)} {number(x)} {number(y)} "
            f'S{number(x + r / 2)} {number(y + 1.1 * r)} {number(x + r)} {number(y)}" '
            f'fill="none" stroke="{INK}" stroke-width="1.5"/>'
        )

    def link(self, page: str, words: str) -> AbstractContextManager[None]:
        """Nothing; in a map what is drawn in the block leads to a page of the book."""
        return nullcontext()

    def badge(self, center: Point, label: int) -> None:
        """Nothing; in a map a number."""

    def svg(self) -> str:
        """The file's text."""
        width, height = map(number, self.size)
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" '
            f'aria-labelledby="title description" font-family="{FONT}">',
            f'<title id="title">{escape(self.title, quote=False)}</title>',
            f'<desc id="description">{escape(self.description, quote=False)}</desc>',
        ]
        return "\n".join([*head, *self.parts, "</svg>"]) + "\n"


def scaled_dot_product() -> Drawing:
    """Figure 2, left: with the shape of what each arrow carries."""
    d = Drawing(
        (400, 452),
        "Scaled dot-product attention",
        "Read from below. Queries Q, L by d_k, and keys K, S by d_k, are multiplied into scores, L "
        "by S; the scores are divided by the square root of d_k, masked where that is asked for, "
        "and put through a softmax, so that each row of weights sums to one; the weights, L by S, "
        "are multiplied with the values V, S by d_v, into the output, L by d_v.",
    )
    x, width, low = 150, 160, 32
    stages = [
        (350, "Multiply", BLUE),
        (288, "Scale by 1 / √*d*_{k}", ORANGE),
        (226, "Mask (optional)", PINK),
        (164, "Softmax over keys", GREEN),
    ]
    labels = ["*Q K*^{T}: *L* × *S* scores", "", "not allowed: −∞", "*L* × *S* weights"]
    for (y, _, _), above, label in zip(stages, [288, 226, 164, 86], labels):
        d.arrow((x, y - low / 2), (x, above + low / 2))
        d.text((x + 12, (y + above) / 2), label, 13, anchor="start", colour="#444444")
    for y, label, colours in stages:
        d.box((x, y), width, low, label, colours)
    d.box((x + 60, 86), width + 120, low, "Multiply", BLUE)
    d.arrow((x + 60, 70), (x + 60, 42))
    d.text((x + 60, 26), "output: *L* × *d*_{v}")
    for shift, name, shape in ((-45, "*Q*", "*L* × *d*_{k}"), (45, "*K*", "*S* × *d*_{k}")):
        d.arrow((x + shift, 402), (x + shift, 366))
        d.text((x + shift, 414), name, 16, bold=True)
        d.text((x + shift, 434), shape, 13, colour="#444444")
    d.arrow((315, 402), (315, 102))
    d.text((315, 414), "*V*", 16, bold=True)
    d.text((315, 434), "*S* × *d*_{v}", 13, colour="#444444")
    return d


def multi_head() -> Drawing:
    """Figure 2, right."""
    d = Drawing(
        (420, 430),
        "Multi-head attention",
        "Read from below. Queries Q, keys K and values V, each d_model wide, pass through linear "
        "maps, a separate one for every head, into widths d_k, d_k and d_v; h heads of scaled "
        "dot-product attention run side by side; their outputs, d_v wide each, are concatenated to "
        "h d_v and a last linear map takes them back to d_model.",
    )
    columns = (80, 210, 340)
    for depth in (2, 1, 0):
        shift = 6 * depth
        for x, name in zip(columns, "QKV"):
            label = "" if depth else f"Linear *W*_{{i}}^{{{name}}}"
            d.box((x + shift, 312 - shift), 92, 34, label, GREEN)
        if depth == 0:
            for x in columns:
                d.arrow((x, 295), (x, 249))
        label = "" if depth else "Scaled dot-product attention"
        d.box((210 + shift, 228 - shift), 352, 42, label, BLUE)
    for x, name in zip(columns, "QKV"):
        d.arrow((x, 378), (x, 329))
        d.text((x, 390), f"*{name}*", 16, bold=True)
        d.text((x, 412), "*d*_{model}", 13, colour="#444444")
    for x, width in zip(columns, ("d_{k}", "d_{k}", "d_{v}")):
        d.text((x + 8, 268), f"*{width[0]}*{width[1:]}", 13, anchor="start", colour="#444444")
    d.text((30, 180), "*h* heads", 15, anchor="start", bold=True)
    d.arrow((210, 195), (210, 163))
    d.text((220, 182), "*h* times *d*_{v}", 13, anchor="start", colour="#444444")
    d.box((210, 146), 160, 34, "Concatenate", ORANGE)
    d.arrow((210, 129), (210, 101))
    d.text((220, 115), "*h d*_{v}", 13, anchor="start", colour="#444444")
    d.box((210, 84), 160, 34, "Linear *W*^{O}", GREEN)
    d.arrow((210, 67), (210, 40))
    d.text((210, 26), "output: *d*_{model}")
    return d


def add_norm_in_full(
    drawing: Drawing, x: float, bottom: float, label: str, colours: Colours, side: int
) -> float:
    """A sub-layer, dropout, the sum and its LayerNorm, from `bottom` up;
    returns the height of the upper edge."""
    width, low = 150.0, 28.0
    tall = 42.0 if "\n" in label else low
    box = bottom - 22 - tall / 2
    dropout = box - tall / 2 - 12 - low / 2
    plus = dropout - low / 2 - 22
    norm = plus - 24 - low / 2
    around = x + side * (width / 2 + 20)
    drawing.arrow((x, bottom), (x, box + tall / 2))
    drawing.arrow((x, bottom - 8), (around, bottom - 8), (around, plus), (x + side * 10, plus))
    drawing.arrow((x, box - tall / 2), (x, dropout + low / 2))
    drawing.arrow((x, dropout - low / 2), (x, plus + 10))
    drawing.arrow((x, plus - 10), (x, norm + low / 2))
    drawing.box((x, box), width, tall, label, colours)
    drawing.box((x, dropout), width, low, "Dropout", PLAIN)
    drawing.plus((x, plus))
    drawing.box((x, norm), width, low, "LayerNorm", ORANGE)
    return norm - low / 2


def encoder_layer() -> Drawing:
    """One encoder layer with the shape of what flows through it."""
    d = Drawing(
        (440, 730),
        "One encoder layer and its shapes",
        "Read from below, for one sentence of S = 7 tokens in the base model. The vectors x, 7 by "
        "512, are multiplied with W_Q, W_K and W_V and cut into 8 heads: queries, keys and values, "
        "8 by 7 by 64 each. Queries and keys give weights, 8 by 7 by 7; weights and values give 8 "
        "by 7 by 64; the heads side by side are 7 by 512, and W_O keeps that shape. After dropout "
        "x is added and a LayerNorm follows. The feed-forward network widens 7 by 512 to 7 by "
        "2048 and narrows it again; dropout, sum and LayerNorm follow as before.",
    )
    x, width = 176, 216
    d.box((x + 8, 357), 300, 636, "", (PANEL, "#9a9a9a"), radius=12)
    d.text((x, 714), "*x*: *S* × *d*_{model}", 15)
    projections = "*x W*^{Q}, *x W*^{K}, *x W*^{V} in heads"
    boxes = [
        (626, projections, GREEN, "*h* × *S* × *d*_{k}", "8 × 7 × 64"),
        (566, "softmax(*Q K*^{T} / √*d*_{k})", BLUE, "*h* × *S* × *S*", "8 × 7 × 7"),
        (506, "weights times *V*", BLUE, "*h* × *S* × *d*_{v}", "8 × 7 × 64"),
        (446, "heads side by side, times *W*^{O}", GREEN, "*S* × *d*_{model}", "7 × 512"),
        (350, "LayerNorm", ORANGE, "*S* × *d*_{model}", "7 × 512"),
        (266, "*W*_{1}, *b*_{1}, ReLU", SKY, "*S* × *d*_{ff}", "7 × 2048"),
        (206, "*W*_{2}, *b*_{2}", SKY, "*S* × *d*_{model}", "7 × 512"),
        (106, "LayerNorm", ORANGE, "*S* × *d*_{model}", "7 × 512"),
    ]  # fmt: skip
    stops = [700, *(y for y, *_ in boxes)]
    for (y, label, colours, shape, sizes), below in zip(boxes, stops):
        start = below if below == 700 else below - 17
        d.arrow((x, start), (x, y + 17))
        d.box((x, y), width, 34, label, colours, size=13)
        d.text((388, y - 8), shape, 13)
        d.text((388, y + 9), sizes, 13, colour="#444444")
    for plus, leaves in ((392, 668), (148, 320)):
        d.arrow((x, leaves), (x + 136, leaves), (x + 136, plus), (x + 10, plus))
        d.plus((x, plus))
        d.text((x - 14, plus + 22), "dropout", 13, anchor="end")
    d.arrow((x - 108, 626), (x - 124, 626), (x - 124, 506), (x - 108, 506))
    d.text((x - 133, 566), "*V*", 13)
    d.arrow((x, 89), (x, 48))
    d.text((x, 26), "to the next layer: *S* × *d*_{model}")
    return d


def decoder_layer() -> Drawing:
    """One decoder layer as section 5.4 completes it: dropout, then the sum, then the norm."""
    d = Drawing(
        (440, 634),
        "One decoder layer in full",
        "Read from below. The target's T positions, d_model wide, pass three sub-layers: masked "
        "self-attention, which takes the causal mask; attention over the encoder's output, whose "
        "keys and values are the memory of S source positions and which takes the source's padding "
        "mask; and the feed-forward network. After each sub-layer comes dropout, then the residual "
        "is added, then a LayerNorm.",
    )
    x, start = 270, 574
    d.box((x + 6, 308), 222, 532, "", (PANEL, "#9a9a9a"), radius=12)
    d.text((x, start + 42), "target: *T* × *d*_{model}")
    d.line((x, start + 31), (x, start))
    first = add_norm_in_full(d, x, start, "Masked\nself-attention", BLUE, 1)
    second = add_norm_in_full(d, x, first, "Attention over\nthe memory", BLUE, 1)
    third = add_norm_in_full(d, x, second, "Feed-forward", SKY, 1)
    d.arrow((x, third), (x, 34))
    d.text((x, 20), "*T* × *d*_{model}")
    causal, cross = start - 43, first - 43  # the middles of the two attentions
    for at, sign, lines, dash in (
        (causal, 0, ("causal mask", "*T* × *T*"), "4 3"),
        (cross - 10, -1, ("memory", "*S* × *d*_{model}"), ""),
        (cross + 10, 1, ("padding mask", "1 × *S*"), "4 3"),
    ):
        for index, words in enumerate(lines):
            d.text((78, at + 20 * sign + (index - 0.5) * 20), words, 14)
        d.arrow((134, at), (195, at), dash=dash)
    return d


def post_and_pre_norm() -> Drawing:
    """The two orders of sum and norm."""
    d = Drawing(
        (440, 420),
        "Post-norm and pre-norm",
        "Two columns, each read from below. Left, post-norm, the paper's order: x goes through the "
        "sub-layer and dropout, x is added, and a LayerNorm takes the sum, so that every layer's "
        "norm stands on the way from bottom to top. Right, pre-norm: x goes through a LayerNorm, "
        "the sub-layer and dropout, and x is added; the thick line from bottom to top passes sums "
        "only, and one LayerNorm follows after the last layer.",
    )
    for x, name, formula in (
        (115, "post-norm", "LayerNorm(*x* + Sublayer(*x*))"),
        (325, "pre-norm", "*x* + Sublayer(LayerNorm(*x*))"),
    ):
        d.text((x, 26), name, 16, bold=True)
        d.text((x, 50), formula, 13)
        d.text((x - 22, 402), "*x*", 16)
    # The sub-layer stands beside the main line, which the residual takes.
    for x in (93, 303):
        d.line((x, 392), (x, 190), colour=INK, stroke=3.5)
    for x, boxes, plus in (
        (93, ((312, "Sub-layer", BLUE), (256, "Dropout", PLAIN)), 196),
        (303, ((326, "LayerNorm", ORANGE), (270, "Sub-layer", BLUE), (214, "Dropout", PLAIN)), 150),
    ):
        beside = x + 70
        d.arrow((x, 372), (beside, 372), (beside, boxes[0][0] + 15))
        for (low, _, _), (high, _, _) in zip(boxes, boxes[1:]):
            d.arrow((beside, low - 15), (beside, high + 15))
        d.arrow((beside, boxes[-1][0] - 15), (beside, plus), (x + 10, plus))
        for y, label, colours in boxes:
            d.box((beside, y), 96, 30, label, colours)
        d.line((x, 392), (x, plus), colour=INK, stroke=3.5)
        d.plus((x, plus))
    d.arrow((93, 186), (93, 156), colour=INK, stroke=3.5)
    d.box((93, 140), 110, 32, "LayerNorm", ORANGE)
    d.arrow((93, 124), (93, 76), colour=INK, stroke=3.5)
    d.arrow((303, 140), (303, 76), colour=INK, stroke=3.5)
    return d


def grid(
    d: Drawing, corner: Point, rows: Sequence[str], columns: Sequence[str],
    allowed: Callable[[int, int], bool], cell: float = 27,
) -> None:  # fmt: skip
    """Queries down, keys across: filled where a query may look."""
    x0, y0 = corner
    for index, word in enumerate(columns):
        x, y = x0 + (index + 0.5) * cell, y0 - 8
        d.parts.append(f'<g transform="rotate(-40 {number(x)} {number(y)})">')
        d.text((x - 4, y), word, 13, anchor="start")
        d.parts.append("</g>")
    for row, word in enumerate(rows):
        d.text((x0 - 7, y0 + (row + 0.5) * cell), word, 13, anchor="end")
        for column in range(len(columns)):
            center = (x0 + (column + 0.5) * cell, y0 + (row + 0.5) * cell)
            grid_cell(d, center, cell, allowed(row, column))


def grid_cell(d: Drawing, center: Point, size: float, allowed: bool) -> None:
    d.box(center, size, size, "", (BLUE[1] if allowed else CARD, RULE), radius=0, stroke=1)
    if not allowed:
        x, y = center
        d.line((x - 5, y + 5), (x + 5, y - 5), colour="#9a9a9a", stroke=1.2)


def grid_legend(d: Drawing, left: float, y: float) -> None:
    for x, allowed, words in ((left, True, "may look"), (left + 150, False, "may not look")):
        grid_cell(d, (x, y), 18, allowed)
        d.text((x + 16, y), words, 14, anchor="start")


def masks() -> Drawing:
    """Three masks over one sentence with two padded positions."""
    tokens = ("the", "cat", "sat", "pad", "pad")
    d = Drawing(
        (464, 276),
        "Padding mask, causal mask, and both",
        "Three grids of five queries, the rows, by five keys, the columns; the tokens are the, "
        "cat, sat, pad, pad. A filled cell means that the query may look at the key. Padding mask: "
        "the columns of the three words are filled in every row. Causal mask: each row is filled "
        "up to its diagonal. Both: filled where both are, so that rows four and five see the three "
        "words.",
    )
    kinds: list[tuple[str, Callable[[int, int], bool]]] = [
        ("padding", lambda row, column: column < 3),
        ("causal", lambda row, column: column <= row),
        ("both", lambda row, column: column < 3 and column <= row),
    ]
    for index, (name, allowed) in enumerate(kinds):
        left = 42.0 + 146 * index
        d.text((left + 55, 22), name, 16, bold=True)
        grid(d, (left, 80), tokens, tokens, allowed, cell=22)
    d.text((232, 216), "rows: queries;  columns: keys", 14)
    grid_legend(d, 104, 250)
    return d


# Title of a group of bars, result file, and what its records have in common.
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
OURS = "annotated_transformer"


def speeds() -> list[tuple[str, list[dict[str, Any]]]]:
    """The records of each group, ours first: float32, each implementation as it comes."""
    groups = []
    for title, name, common in SPEEDS:
        text = (ROOT / "book" / "results" / f"{name}.json").read_text(encoding="utf-8")
        records = [
            {**record, "speed": record.get("target_tokens_per_s") or record["tokens_per_s"]}
            for record in json.loads(text)["records"]
            if all(record.get(key) == value for key, value in common.items())
            and not record["implementation"].endswith(("int8", "no copy"))
        ]
        groups.append((title, records))
    return groups


def speed() -> Drawing:
    """Tokens per second on a CPU, of ours and of what else there is."""
    groups = speeds()
    said = "; ".join(
        f"{title}: "
        + ", ".join(f"{record['implementation']} {record['speed']:,.0f}" for record in records)
        for title, records in groups
    )
    row, head = 21, 34
    d = Drawing(
        (480, sum(head + row * len(records) for _, records in groups) + 54),
        "Speed on one CPU core: tokens per second",
        "Groups of horizontal bars, in each group one bar for every implementation, as long as its "
        f"tokens per second; a longer bar is faster, and the first bar is this project. {said}.",
    )
    y, left, longest = 10.0, 172.0, 240.0
    for title, records in groups:
        y += head
        d.text((14, y - 12), title, 15, anchor="start", bold=True)
        most = max(record["speed"] for record in records)
        for record in records:
            y += row
            ours = record["implementation"] == OURS
            width, middle = longest * record["speed"] / most, y - row / 2 + 4
            name = "this project" if ours else record["implementation"]
            d.text((left - 8, middle), name, 13, anchor="end", bold=ours)
            colours = (BLUE[1], BLUE[1]) if ours else SKY
            d.box((left + width / 2, middle), width, 14, "", colours, radius=0, stroke=1)
            at = (left + width + 6, middle)
            d.text(at, f"{record['speed']:,.0f}", 13, anchor="start", bold=ours)
    d.text((240, y + 28), "tokens per second on one core; each group has its own scale", 13)
    return d


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "scaled_dot_product": scaled_dot_product,
    "multi_head": multi_head,
    "encoder_layer": encoder_layer,
    "decoder_layer": decoder_layer,
    "post_and_pre_norm": post_and_pre_norm,
    "masks": masks,
    "speed": speed,
}


def card_pixels() -> list[bytes]:
    """The favicon's causal map, 240 pixels square: the rows of red, green and blue."""
    ground, lit = (0x1B, 0x2A, 0x41), (0xF0, 0xB4, 0x29)
    shares = ((1.0,), (0.45, 1.0), (0.25, 0.6, 1.0))
    rows = []
    for y in range(240):
        row = bytearray()
        for x in range(240):
            (line, within_y), (column, within_x) = divmod(y - 36, 60), divmod(x - 36, 60)
            inside = 0 <= column <= line <= 2 and within_x < 48 and within_y < 48
            share = shares[line][column] if inside else 0.0
            row += bytes(round(low + share * (high - low)) for low, high in zip(ground, lit))
        rows.append(bytes(row))
    return rows
