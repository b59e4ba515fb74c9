"""The drawings in book/figures are what `make drawings` draws,
and can be read by everyone they promise."""

import re
from xml.etree import ElementTree

import pytest

from tools import drawings, figures

FILES = drawings.files()
SVG = "{http://www.w3.org/2000/svg}"
NARROWEST = 320  # CSS pixels that a figure has on a phone of 360
OKABE_ITO = {"#000000", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"}

in_figures = pytest.mark.parametrize("name", sorted(FILES))


def luminance(colour: str) -> float:
    """WCAG's relative luminance of #rrggbb."""
    parts = [part / 255 for part in bytes.fromhex(colour[1:])]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, two: str) -> float:
    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


def test_the_folder_holds_these_drawings_and_no_others() -> None:
    stored = {path.name: path.read_text(encoding="utf-8") for path in figures.FIGURES.iterdir()}
    assert stored == FILES, "run: make drawings"


@in_figures
def test_a_drawing_says_what_it_shows(name: str) -> None:
    root = ElementTree.fromstring(FILES[name])
    title, description = root.findtext(f"{SVG}title"), root.findtext(f"{SVG}desc")
    assert title and description and len(description.split()) >= 25
    assert root.get("role") == "img"


@in_figures
def test_a_drawing_asks_for_nothing(name: str) -> None:
    """A map has links to pages of the book, which ask for nothing before they are followed."""
    text = re.sub(r'<a href="\w+\.html">', "", FILES[name]) if "_map" in name else FILES[name]
    assert re.findall(r"href|url\(|<script|<style|@import|<image", text) == []


@in_figures
def test_letters_are_large_enough_on_a_phone(name: str) -> None:
    """At least 7.5 pixels (subordinate labels), and most of them 8.5,
    where the drawing is 320 pixels wide."""
    root = ElementTree.fromstring(FILES[name])
    scale = min(1.0, NARROWEST / float(root.attrib["width"]))
    sizes = [scale * float(text.attrib["font-size"]) for text in root.iter(f"{SVG}text")]
    assert min(sizes) >= 7.5
    assert sorted(sizes)[len(sizes) // 2] >= 8.5


@in_figures
def test_words_stand_inside_the_drawing(name: str) -> None:
    """Letters are 0.55 em wide on the average of these fonts."""
    root = ElementTree.fromstring(FILES[name])
    width = float(root.attrib["width"])
    for text in root.iter(f"{SVG}text"):
        words = "".join(text.itertext())
        length = 0.55 * float(text.attrib["font-size"]) * len(words)
        before = {"start": 0, "middle": 0.5, "end": 1}[text.attrib["text-anchor"]] * length
        left = float(text.attrib["x"]) - before
        assert left >= 0, words
        assert left + length <= width, words


def test_words_stand_out_from_every_colour_below_them() -> None:
    boxes = (figures.BLUE, figures.ORANGE, figures.GREEN, figures.PINK, figures.SKY, figures.PLAIN)
    for ground in {tint for tint, _ in boxes} | {figures.CARD, figures.PANEL}:
        assert contrast(figures.INK, ground) >= 7
        assert contrast("#444444", ground) >= 4.5


@in_figures
def test_colours_are_those_that_the_colour_blind_can_tell_apart(name: str) -> None:
    grey = re.compile(r"#(..)\1\1$")
    strokes = set(re.findall(r'stroke="(#\w{6})"', FILES[name]))
    assert {colour for colour in strokes if not grey.match(colour)} <= OKABE_ITO


@in_figures
def test_a_drawing_has_a_light_card_of_its_own(name: str) -> None:
    root = ElementTree.fromstring(FILES[name])
    card = next(root.iter(f"{SVG}rect"))
    assert card.get("fill") == figures.CARD == "#ffffff"
    for side in ("width", "height"):
        assert abs(float(card.attrib[side]) - float(root.attrib[side])) <= 2


def test_the_sign_on_the_cards_is_the_one_drawn() -> None:
    """By its pixels: another zlib may pack them otherwise."""
    from matplotlib.image import imread

    stored = (imread(figures.CARD_SIGN)[..., :3] * 255).round().astype("uint8")
    assert [row.tobytes() for row in stored] == figures.card_pixels()
