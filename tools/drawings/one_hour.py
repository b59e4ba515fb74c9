"""The drawings of chapter 0: Figure 1 as a map of the book, and each of its boxes by itself.

Every drawing follows one pair of sentences, *She bought it* and *Sie hat es gekauft*. Numbers in a
drawing are computed here from the same small inputs that the chapter gives its cells.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape

from tools.figures import (
    BLUE,
    CARD,
    GREEN,
    INK,
    ORANGE,
    PANEL,
    PINK,
    PLAIN,
    RULE,
    SKY,
    Colours,
    Drawing,
    Point,
    grid,
    grid_legend,
    number,
)

SOURCE = ("She", "bought", "it")
TARGET = ("Sie", "hat", "es", "gekauft")
GREY = "#444444"

# Queries, keys and values of the three words: the chapter computes with the same.
QUERY = (1.0, 2.0)
KEYS = ((0.0, 1.0), (1.0, 2.0), (1.0, 0.0))
VALUES = ((4.0, 0.0), (0.0, 4.0), (2.0, 2.0))


class Map(Drawing):
    """A drawing whose boxes are links, each with a number.

    It is put into a page as it is, so its ids must differ from those of other drawings.
    """

    @contextmanager
    def link(self, page: str, words: str) -> Iterator[None]:
        """What is drawn in the block leads to a page of the book."""
        self.parts.append(f'<a href="{page}.html"><title>{escape(words, quote=False)}</title>')
        yield
        self.parts.append("</a>")

    def badge(self, center: Point, label: int) -> None:
        self.circle(center, 11.5, colours=(INK, CARD))
        self.text(center, str(label), 12.5, bold=True, colour=CARD)

    def svg(self) -> str:
        text = super().svg().replace('id="title"', 'id="map-title"')
        text = text.replace('id="description"', 'id="map-description"')
        text = text.replace('"title description"', '"map-title map-description"')
        return text.replace("<svg ", '<svg class="drawing" ', 1)


# The number of each box, the page that it leads to, and what a pointer reads there.
BOXES = {
    "tokens": (1, "5_1_data_and_batching", "1 Tokens: chapter 5.1"),
    "embedding": (2, "3_4_embeddings_and_softmax", "2 Embedding: chapter 3.4"),
    "positions": (3, "3_5_positional_encoding", "3 Positional encoding: chapter 3.5"),
    "attention": (4, "3_2_attention", "4 Multi-head attention: chapter 3.2"),
    "norm": (5, "3_1_stacks", "5 Add and norm: chapter 3.1"),
    "feed_forward": (6, "3_3_feed_forward", "6 Feed-forward: chapter 3.3"),
    "stack": (7, "3_1_stacks", "7 A stack of N layers: chapter 3.1"),
    "shifted": (8, "5_2_training", "8 The target, shifted right: chapter 5.2"),
    "masked": (9, "3_2_masks", "9 Masked multi-head attention: chapter 3.2.3"),
    "cross": (10, "3_2_attention", "10 Attention over the memory: chapter 3.2"),
    "linear": (11, "3_4_embeddings_and_softmax", "11 Linear: chapter 3.4"),
    "softmax": (12, "3_4_embeddings_and_softmax", "12 Softmax: chapter 3.4"),
    "next": (13, "6_1_translation", "13 From probabilities to a translation: chapter 6.1"),
}


FIGURE_1 = (
    "Read from below. Left, the encoder: source tokens (1) are embedded (2), positions are "
    "added (3), and N equal layers (7) follow, each multi-head attention (4) and feed-forward "
    "(6), each of the two with a residual arrow around it into add and norm (5). Right, the "
    "decoder: the target tokens shifted right (8) are embedded, positions are added, and N "
    "equal layers follow, each masked multi-head attention (9), multi-head attention whose "
    "keys and values come from the encoder's output, the memory (10), and feed-forward, each "
    "with add and norm. Above the decoder a linear layer (11) and a softmax (12) give the "
    "probabilities of the next token (13). A dashed line joins the two embeddings and the "
    "linear layer: they share one matrix E."
)


def architecture_map() -> Drawing:
    """Figure 1, each box with its number and a link to its chapter; equal boxes have one number."""
    title = "The Transformer as a map of the book: each numbered box leads to its chapter"
    return figure_1(Map((510, 786), title, FIGURE_1))


def architecture() -> Drawing:
    """Figure 1 alone."""
    title = "The Transformer: encoder on the left, decoder on the right"
    return figure_1(Drawing((510, 786), title, re.sub(r" \(\d+\)", "", FIGURE_1)))


def figure_1(d: Drawing) -> Drawing:
    left, right, width, low, tall = 128.0, 366.0, 156.0, 30.0, 46.0

    def box(x: float, y: float, height: float, label: str, colours: Colours, key: str) -> None:
        label_number, page, words = BOXES[key]
        with d.link(page, words):
            d.box((x, y), width, height, label, colours, size=14.5)
            d.badge((x - width / 2 - 2, y - height / 2 - 1), label_number)

    def sublayer(
        x: float, top: float, label: str, colours: Colours, key: str, side: int, entry: Point
    ) -> None:
        """A sub-layer under its add & norm, whose upper edge is at `top`; `entry` is where the
        residual leaves."""
        height = tall if "\n" in label else low
        middle, norm, around = top + low + 16 + height / 2, top + low / 2, x + side * 96
        d.arrow((x, middle - height / 2), (x, norm + low / 2))
        d.arrow(entry, (around, entry[1]), (around, norm), (x + side * width / 2, norm))
        box(x, middle, height, label, colours, key)
        box(x, norm, low, "Add & norm", ORANGE, "norm")

    def fork(x: float, bottom: float, top: float) -> None:
        """One line from below that enters a box as queries, keys and values."""
        d.line((x, bottom), (x, top + 18))
        d.line((x - 44, top + 18), (x + 44, top + 18))
        for shift in (-44, 0, 44):
            d.arrow((x + shift, top + 18), (x + shift, top))

    d.box((left - 9, 450), 194, 262, "", (PANEL, "#9a9a9a"), radius=12)
    d.box((right + 9, 376), 194, 410, "", (PANEL, "#9a9a9a"), radius=12)
    for x, y, name in ((left, 337, "encoder"), (right, 189, "decoder")):
        with d.link(BOXES["stack"][1], BOXES["stack"][2]):
            d.text((x - 10, y), "*N* ×", 15, anchor="end", bold=True)
            d.text((x + 10, y), name, 15, anchor="start", bold=True)
            d.badge((x - 58, y - 3), 7)
    # Below the stacks: tokens, embeddings, positions.
    for x, side, key, lines in (
        (left, -1, "tokens", ("source tokens",)),
        (right, 1, "shifted", ("target tokens,", "shifted right")),
    ):
        with d.link(BOXES[key][1], BOXES[key][2]):
            for index, line in enumerate(lines):
                d.text((x, 750 + 18 * index), line, 14.5)
            d.badge((x - 68, 750), BOXES[key][0])
        d.arrow((x, 739), (x, 716))
        d.arrow((x, 684), (x, 640))
        box(x, 700, 32, "Embedding", GREEN, "embedding")
        with d.link(BOXES["positions"][1], BOXES["positions"][2]):
            d.line((x + side * 10, 630), (x + side * 54, 630))
            d.plus((x, 630))
            d.wave((x + side * 68, 630))
            if x == left:
                d.text((247, 621), "positional", 14)
                d.text((247, 638), "encoding", 14)
                d.badge((247, 598), 3)
    # One matrix, three uses.
    d.line((left + 78, 700), (right - 78, 700), colour=GREEN[1], dash="5 3", stroke=2)
    d.line(
        (right + 78, 700), (492, 700), (492, 141), (right + 78, 141),
        colour=GREEN[1], dash="5 3", stroke=2,
    )  # fmt: skip
    d.text((238, 673), "one", 14)
    d.text((238, 688), "matrix *E*", 14)
    # The encoder.
    fork(left, 620, 542)
    sublayer(left, 450, "Multi-head\nattention", BLUE, "attention", -1, (left, 570))
    d.arrow((left, 450), (left, 424))
    sublayer(left, 348, "Feed-forward", SKY, "feed_forward", -1, (left, 438))
    # The decoder; the attention in the middle has queries from below, keys and values from the
    # memory, whose line is thick.
    fork(right, 620, 542)
    sublayer(right, 450, "Masked multi-head\nattention", BLUE, "masked", 1, (right, 570))
    d.line((right, 450), (right, 436), (right + 44, 436))
    d.arrow((right + 44, 436), (right + 44, 398))
    sublayer(right, 306, "Multi-head\nattention", BLUE, "cross", 1, (right + 44, 436))
    memory = ((left, 348), (left, 304), (247, 304), (247, 416), (right - 14, 416))
    d.line(*memory, colour=BLUE[1], stroke=2.4)
    for shift in (-58, -14):
        d.arrow((right + shift, 416), (right + shift, 398), colour=BLUE[1], stroke=2.4)
    for shift, name in ((-47, "*K*"), (-3, "*V*"), (55, "*Q*")):
        d.text((right + shift, 407), name, 14)
    d.text((188, 292), "memory", 14.5)
    d.arrow((right, 306), (right, 280))
    sublayer(right, 204, "Feed-forward", SKY, "feed_forward", 1, (right, 294))
    # The top.
    d.arrow((right, 204), (right, 158))
    box(right, 141, 32, "Linear", GREEN, "linear")
    d.arrow((right, 125), (right, 106))
    box(right, 89, 32, "Softmax", PINK, "softmax")
    d.arrow((right, 73), (right, 54))
    with d.link(BOXES["next"][1], BOXES["next"][2]):
        d.text((right, 24), "probabilities", 14.5)
        d.text((right, 42), "of the next token", 14.5)
        d.badge((right - 88, 24), 13)
    return d


def strip(
    d: Drawing, center: Point, values: Sequence[str], colours: Colours, cell: float = 26,
    high: float = 24,
) -> None:  # fmt: skip
    """A vector: a row of small squares, each with what stands in it."""
    x0 = center[0] - cell * (len(values) - 1) / 2
    for index, value in enumerate(values):
        d.box((x0 + index * cell, center[1]), cell, high, value, colours, 0, 13, stroke=1.2)


def query_key_value() -> Drawing:
    """Each word's vector, multiplied by three matrices."""
    d = Drawing(
        (440, 330),
        "From a word's vector x to its query, key and value",
        "Three columns, one for each of the words She, bought and it. Below, the vector x of the "
        "word, a row of four squares. From it three arrows lead up through the matrices W Q, W K "
        "and W V, the same three for every word, to a query q, a key k and a value v of two "
        "squares each.",
    )
    for x, word, i in zip((82, 222, 362), SOURCE, "123"):
        d.text((x, 314), word, 16, bold=True)
        strip(d, (x, 280), [""] * 4, PLAIN, 24, 22)
        d.text((x - 60, 280), f"*x*_{{{i}}}", 15)
        for shift, name, colours in ((-44, "q", BLUE), (0, "k", ORANGE), (44, "v", GREEN)):
            d.arrow((x + shift * 0.6, 268), (x + shift, 214))
            d.arrow((x + shift, 170), (x + shift, 112))
            strip(d, (x + shift, 98), ["", ""], colours, 17, 24)
            d.text((x + shift, 68), f"*{name}*_{{{i}}}", 16)
    for x in (82, 222, 362):
        for shift, name, colours in ((-44, "Q", BLUE), (0, "K", ORANGE), (44, "V", GREEN)):
            d.box((x + shift, 192), 40, 42, f"*W*^{{{name}}}", colours, size=15)
    for x, words, colours in (
        (82, "query: what I seek", BLUE),
        (222, "key: my label", ORANGE),
        (362, "value: what I give", GREEN),
    ):
        d.box((x, 28), 134, 28, words, colours, size=13)
    return d


def weights_by_hand() -> tuple[list[float], list[float], list[float]]:
    """Dot products, softmax of them divided by the square root of d_k, and the mean of values."""
    products = [sum(a * b for a, b in zip(QUERY, key)) for key in KEYS]
    powers = [math.exp(product / math.sqrt(len(QUERY))) for product in products]
    weights = [power / sum(powers) for power in powers]
    mean = [sum(w * value[i] for w, value in zip(weights, VALUES)) for i in range(2)]
    return products, weights, mean


def one_look() -> Drawing:
    """The word *it* looks at all three words: products, weights, mean."""
    products, weights, mean = weights_by_hand()
    said = ", ".join(f"{word} {weight:.2f}" for word, weight in zip(SOURCE, weights))
    d = Drawing(
        (440, 366),
        "One look, by numbers: the query of it meets three keys, and takes a mean of three values",
        "Read from below. The query of the word it, (1, 2), is multiplied with the keys of She, "
        "bought and it; the products are 2, 5 and 1. Divided by the square root of 2 and put "
        f"through a softmax they become weights, {said}. The three values, each multiplied by its "
        f"weight, add up to the result ({mean[0]:.2f}, {mean[1]:.2f}).",
    )
    columns = (182, 282, 382)
    for y, words in (
        (246, "dot product *q* · *k*"),
        (180, "divided by √2,"),
        (196, "then softmax"),
        (126, "value *v*"),
        (46, "weighted mean"),
    ):
        d.text((14, y), words, 13.5, anchor="start")
    d.text((14, 304), "key *k*", 13.5, anchor="start")
    d.text((14, 346), "query *q* of *it*", 13.5, anchor="start")
    strip(d, (282, 346), [f"{value:g}" for value in QUERY], BLUE)
    for x, word, key, value, product, weight in zip(
        columns, SOURCE, KEYS, VALUES, products, weights
    ):
        strip(d, (x, 304), [f"{each:g}" for each in key], ORANGE)
        d.text((x + 8, 274), word, 13, anchor="start", colour=GREY)
        d.arrow((282 if x == 282 else 282 + (x - 282) * 0.25, 333), (x, 317))
        d.arrow((x, 291), (x, 258))
        d.text((x, 246), f"{product:g}", 15)
        d.arrow((x, 235), (x, 204))
        d.box((x - 44 + 44 * weight, 188), 88 * weight, 24, "", SKY, 0)
        d.box((x, 188), 88, 24, "", ("none", RULE), 0, stroke=1)
        d.text((x, 188), f"{weight:.2f}", 15, bold=True)
        d.text((x, 162), "×", 16)
        strip(d, (x, 126), [f"{each:g}" for each in value], GREEN)
        d.arrow((x, 112), (282 + (x - 282) * 0.3, 62))
    strip(d, (282, 46), [f"{each:.2f}" for each in mean], GREEN, 46)
    d.text((282, 18), "what *it* takes along", 13.5)
    return d


def heads() -> Drawing:
    """512 = 8 x 64: cut, attend, join."""
    d = Drawing(
        (440, 350),
        "Eight heads: 512 numbers cut into eight pieces of 64, eight looks, joined again",
        "Read from below. A bar of 512 numbers for the queries, keys and values of a word is cut "
        "into eight coloured pieces of 64. Each piece goes into its own small attention map of "
        "three by three words, and every map has a different pattern. The eight results of 64 "
        "numbers are joined to 512 and multiplied by the matrix W O.",
    )
    patterns = [
        lambda r, c: r == c, lambda r, c: c == max(r - 1, 0), lambda r, c: c == 1,
        lambda r, c: c == min(r + 1, 2), lambda r, c: c == 0, lambda r, c: True,
        lambda r, c: c == 2, lambda r, c: c != r,
    ]  # fmt: skip
    palette = (BLUE, ORANGE, GREEN, PINK, SKY, BLUE, ORANGE, GREEN)
    d.text((220, 330), "queries, keys and values of each word: 512 numbers", 13.5)
    for head, (allowed, colours) in enumerate(zip(patterns, palette)):
        x = 49.0 + head * 48.9
        d.box((66 + head * 44, 298), 44, 24, "64", colours, 0, 13, stroke=1.2)
        d.arrow((66 + head * 44, 285), (x, 254))
        d.text((x, 176), f"head {head + 1}", 12)
        for row in range(3):
            for column in range(3):
                fill = colours[1] if allowed(row, column) else CARD
                at = (x + (column - 1) * 14, 218 + (row - 1) * 14)
                d.box(at, 14, 14, "", (fill, RULE), 0, stroke=0.8)
        d.arrow((x, 164), (66 + head * 44, 130))
        d.box((66 + head * 44, 116), 44, 24, "64", colours, 0, 13, stroke=1.2)
    d.arrow((220, 103), (220, 84))
    d.box((220, 66), 160, 32, "*W*^{O} mixes the heads", PLAIN, size=14)
    d.arrow((220, 49), (220, 34))
    d.text((220, 20), "512 numbers for each word", 13.5)
    return d


def both_masks() -> Drawing:
    """The source's padding and the target's future."""
    d = Drawing(
        (440, 296),
        "The padding mask of the source and the causal mask of the target",
        "Two grids, queries down and keys across; a filled cell means that the query may look at "
        "the key. Left, the padding mask: for the source She, bought, it, pad, pad the three "
        "columns of the words are filled and the two of the padding are crossed out. Right, the "
        "causal mask: for the target start, Sie, hat, es, gekauft the lower triangle with its "
        "diagonal is filled, so that each word sees itself and the words before it.",
    )
    d.text((132, 22), "no padding", 16, bold=True)
    d.text((332, 22), "no peeking", 16, bold=True)
    source, target = (*SOURCE, "pad", "pad"), ("start", *TARGET)
    grid(d, (64, 94), source, source, lambda row, column: column < 3)
    grid(d, (264, 94), target, target, lambda row, column: column <= row)
    grid_legend(d, 96, 266)
    return d


def wide_and_back() -> Drawing:
    """512 to 2048 to 512 at each position, with the same two matrices."""
    d = Drawing(
        (440, 300),
        "The feed-forward network: 512 to 2,048 to 512 numbers, the same at every position",
        "Three columns for the words She, bought and it, each read from below: a short bar of 512 "
        "numbers, the matrix W 1 and a ReLU, a bar four times as wide of 2,048 numbers in which "
        "some cells are zero, the matrix W 2, and a short bar of 512 numbers. The matrices of all "
        "columns are the same; no arrow joins two columns.",
    )
    for column, (x, word) in enumerate(zip((80, 220, 360), SOURCE)):
        d.text((x, 282), word, 16, bold=True)
        strip(d, (x, 252), [""] * 4, PLAIN, 8, 20)
        d.arrow((x, 241), (x, 216))
        d.box((x, 200), 108, 30, "*W*_{1}, then ReLU", BLUE, size=13)
        d.arrow((x, 184), (x, 166))
        for index in range(16):
            lit = (index * 7 + column * 5) % 16 < 7
            at = (x + (index - 7.5) * 7.6, 154)
            d.box(at, 7.6, 20, "", SKY if lit else (CARD, SKY[1]), 0, stroke=1)
        d.arrow((x, 143), (x, 118))
        d.box((x, 102), 108, 30, "*W*_{2}", BLUE, size=13)
        d.arrow((x, 86), (x, 64))
        strip(d, (x, 52), [""] * 4, PLAIN, 8, 20)
    for y, words in ((252, "512"), (132, "2,048"), (52, "512")):
        for x in (150, 290):
            d.text((x, y), words, 12.5, colour=GREY)
    d.text((220, 22), "no arrow leads from word to word", 13.5)
    return d


def sum_and_norm() -> Drawing:
    """x and what a sub-layer says of it, added and brought to mean 0 and variance 1."""
    x, y = (1.0, 2.0, -1.0, 0.0), (0.5, -1.0, 1.0, 1.5)
    total = [a + b for a, b in zip(x, y)]
    mean = sum(total) / len(total)
    spread = math.sqrt(sum((each - mean) ** 2 for each in total) / len(total))
    normed = [(each - mean) / spread for each in total]
    d = Drawing(
        (440, 330),
        "Add and norm: the sub-layer's answer is added to x, and the sum is normalised",
        "Read from below. The vector x, (1, 2, -1, 0), takes two ways: straight up, and through a "
        "sub-layer, which answers (0.5, -1, 1, 1.5). The two meet in a plus sign, "
        f"({', '.join(f'{each:g}' for each in total)}). A LayerNorm subtracts the mean and divides "
        f"by the standard deviation: ({', '.join(f'{each:.2f}' for each in normed)}).",
    )
    show = [lambda v: f"{v:g}".replace("-", "−"), lambda v: f"{v:.2f}".replace("-", "−")]
    d.text((26, 300), "*x*", 16)
    strip(d, (136, 300), [show[0](each) for each in x], PLAIN, 46)
    d.line((90, 287), (90, 190))
    d.arrow((90, 190), (90, 160))
    d.text((82, 224), "as it is", 13, anchor="end", colour=GREY)
    d.line((182, 287), (182, 274), (322, 274))
    d.arrow((322, 274), (322, 254))
    d.box((322, 236), 170, 34, "attention or feed-forward", BLUE, size=12.5)
    d.arrow((322, 218), (322, 202))
    strip(d, (322, 188), [show[0](each) for each in y], BLUE, 46)
    d.line((322, 175), (322, 148))
    d.arrow((322, 148), (102, 148))
    d.plus((90, 148))
    d.arrow((90, 136), (90, 118))
    strip(d, (136, 104), [show[0](each) for each in total], ORANGE, 46)
    d.text((240, 104), "the sum", 13, anchor="start", colour=GREY)
    d.arrow((136, 91), (136, 68))
    d.text((150, 80), f"minus the mean {mean:g}, divided by {spread:.2f}", 13, "start", colour=GREY)
    strip(d, (136, 52), [show[1](each) for each in normed], ORANGE, 54)
    d.text((256, 52), "mean 0, variance 1", 13, anchor="start", colour=GREY)
    d.text((220, 20), "LayerNorm(*x* + Sublayer(*x*))", 15)
    return d


def shifted() -> Drawing:
    """Teacher forcing above, free running below."""
    d = Drawing(
        (440, 384),
        "Teacher forcing in training, and free running when the model writes",
        "Two panels. Above, training: the decoder's inputs are start, Sie, hat, es, gekauft, all "
        "from the reference, and at each of the five positions it must give the next token: Sie, "
        "hat, es, gekauft, end; all five are computed at once. Below, writing: the inputs are "
        "start and then what the model itself has written; an arrow leads from each output to the "
        "next input, and lines lead from all earlier inputs into each step, one step per token.",
    )
    for top, title, note in (
        (26, "training: teacher forcing", "all positions at once"),
        (218, "writing: free running", "one after the other"),
    ):
        d.text((20, top), title, 15, anchor="start", bold=True)
        d.text((420, top), note, 13, anchor="end", colour=GREY)
        inputs, outputs = ("start", *TARGET), (*TARGET, "end")
        if top == 26:
            d.box((220, top + 76), 410, 30, "decoder, with the source's memory", BLUE, size=14)
        for index, (before, after) in enumerate(zip(inputs, outputs)):
            x = 56 + index * 82
            d.arrow((x, top + 122), (x, top + 92))
            d.arrow((x, top + 60), (x, top + 46))
            given = top == 26 or index == 0
            if top != 26:
                for earlier in range(index):
                    d.line((56 + earlier * 82, top + 122), (x, top + 92), colour="#a6a6a6")
                d.box((x, top + 76), 66, 30, "decoder", BLUE, size=13.5)
            d.box((x, top + 136), 66, 26, before, GREEN if given else ORANGE, size=13.5)
            d.box((x, top + 33), 66, 24, after, ORANGE, size=13.5)
            if top != 26 and index < 4:
                way = ((x + 33, top + 33), (x + 41, top + 33), (x + 41, top + 136))
                d.arrow(*way, (x + 49, top + 136), colour="#d55e00")
    return d


def clock_hands() -> Drawing:
    """Sine and cosine as the two coordinates of a hand, fast above and slow below."""
    d = Drawing(
        (440, 332),
        "Positions as clock hands: each pair of sine and cosine is a hand that turns with position",
        "A table of clock faces: five columns for positions 0 to 4 with the words start, Sie, hat, "
        "es, gekauft, four rows for four pairs of numbers. In the first row the hand turns by one "
        "radian per position, in the second by a half, in the third by a fifth, in the fourth by a "
        "twentieth. No two columns show the same hands.",
    )
    speeds = ((1.0, "1"), (0.5, "0.5"), (0.2, "0.2"), (0.05, "0.05"))
    d.text((14, 26), "angle per word", 13, anchor="start", colour=GREY)
    for column, word in enumerate(("start", *TARGET)):
        x = 128 + column * 68
        d.text((x, 22), f"{column}", 16, bold=True)
        d.text((x, 316), word, 14)
        for row, (speed, _) in enumerate(speeds):
            y, angle = 68 + row * 66, column * speed
            tip = (x + 22 * math.sin(angle), y - 22 * math.cos(angle))
            d.circle((x, y), 26, colours=SKY)
            d.arrow((x, y), tip, colour=INK, stroke=2.2)
    for row, (_, label) in enumerate(speeds):
        d.text((14, 68 + row * 66), f"{label} radian", 13.5, anchor="start")
    return d


def paths() -> Drawing:
    """A recurrent network's chain, and attention's direct ways."""
    d = Drawing(
        (440, 256),
        "From the first word to the last: seven steps along a recurrent network, one by attention",
        "Two rows of eight circles for eight words. Above, a recurrent network: arrows lead from "
        "each circle to the next, so that seven arrows join the first to the last. Below, "
        "attention: arcs lead from the last circle directly to every other one; the arc to the "
        "first is drawn thick.",
    )
    for y, title in ((28, "recurrent: 7 steps"), (112, "attention: 1 step")):
        d.text((20, y), title, 15, anchor="start", bold=True)
    places = [45.0 + 50 * index for index in range(8)]
    for index, x in enumerate(places):
        d.circle((x, 68), 13, str(index + 1), ORANGE, 13)
        if index:
            d.arrow((x - 37, 68), (x - 14, 68))
    for index, x in enumerate(places[:-1]):
        reach = 26 + 12 * (7 - index)
        stroke, colour = (3.0, BLUE[1]) if index == 0 else (1.4, RULE)
        d.parts.append(
            f'<path d="M{number(places[-1])} 226 C{number(places[-1] - 20)} {number(226 - reach)} '
            f'{number(x + 20)} {number(226 - reach)} {number(x)} 226" fill="none" '
            f'stroke="{colour}" stroke-width="{number(stroke)}"/>'
        )
    for index, x in enumerate(places):
        d.circle((x, 226), 13, str(index + 1), BLUE, 13)
    return d


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "architecture": architecture,
    "architecture_map": architecture_map,
    "query_key_value": query_key_value,
    "one_look": one_look,
    "heads": heads,
    "both_masks": both_masks,
    "wide_and_back": wide_and_back,
    "sum_and_norm": sum_and_norm,
    "shifted": shifted,
    "clock_hands": clock_hands,
    "paths": paths,
}
