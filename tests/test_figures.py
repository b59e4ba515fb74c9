"""The book's drawings, book/figures/*.svg, can be read by everyone they promise."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

DRAWINGS = sorted((Path(__file__).parents[1] / "book" / "figures").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
NARROWEST = 320  # CSS pixels that a figure has on a phone of 360

in_drawings = pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.stem)


@in_drawings
def test_a_drawing_says_what_it_shows(path: Path) -> None:
    root = ElementTree.parse(path).getroot()
    title, description = root.findtext(f"{SVG}title"), root.findtext(f"{SVG}desc")
    assert title and description and len(description.split()) >= 25
    assert root.get("role") == "img"


@in_drawings
def test_a_drawing_loads_nothing(path: Path) -> None:
    """A map links to pages of the book, which load nothing before they are followed."""
    text = re.sub(r'<a href="\w+\.html">', "", path.read_text(encoding="utf-8"))
    assert re.findall(r"href|url\(|<script|<style|@import|<image", text) == []


@in_drawings
def test_letters_are_large_enough_on_a_phone_and_stand_inside(path: Path) -> None:
    """At least 7.5 pixels where the drawing is 320 wide; letters are 0.55 em wide on average."""
    root = ElementTree.parse(path).getroot()
    width = float(root.attrib["width"])
    for text in root.iter(f"{SVG}text"):
        words, size = "".join(text.itertext()), float(text.attrib["font-size"])
        assert size * min(1.0, NARROWEST / width) >= 7.5, words
        length = 0.55 * size * len(words)
        share_before = {"start": 0, "middle": 0.5, "end": 1}[text.attrib["text-anchor"]]
        left = float(text.attrib["x"]) - share_before * length
        assert 0 <= left <= left + length <= width, words
