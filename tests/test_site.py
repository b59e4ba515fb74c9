"""What the built pages say about themselves to other sites, and the buttons they carry.
Skipped without `make html`."""

from html import unescape
from pathlib import Path
from re import findall
from urllib.parse import urlsplit

import pytest
import yaml

from test_book import toc_files
from tools.numbering import section_of

ROOT = Path(__file__).parents[1]
HTML = ROOT / "_build" / "html"
NAMES = toc_files(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")))
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
BASE = CONFIG["html"]["baseurl"]

built = pytest.mark.skipif(
    not all((HTML / f"{name}.html").exists() for name in NAMES), reason="no built book (make html)"
)
on_pages = pytest.mark.parametrize("name", NAMES)


def card(name):
    """The Open Graph properties of a built page."""
    page = (HTML / f"{name}.html").read_text(encoding="utf-8")
    return {
        key: unescape(value)
        for key, value in findall(r'<meta property="og:([\w:]+)" content="([^"]*)"', page)
    }


def test_the_site_stands_where_the_repository_says():
    """GitHub's pages of OWNER/NAME are at OWNER.github.io/NAME; the cards name the same place."""
    owner, name = urlsplit(CONFIG["repository"]["url"]).path.strip("/").split("/")
    assert f"https://{owner}.github.io/{name}/" == BASE
    assert CONFIG["sphinx"]["config"]["ogp_site_url"] == BASE


@built
@on_pages
def test_a_page_has_a_card(name):
    properties = card(name)
    assert properties["title"] and properties["site_name"] == CONFIG["title"]
    if not name.endswith("references"):
        assert len(properties.get("description", "")) >= 40
    assert properties["url"] == f"{BASE}{name}.html"
    picture = HTML / properties["image"].removeprefix(BASE)
    assert properties["image"].startswith(BASE) and picture.read_bytes().startswith(b"\x89PNG")


@built
def test_every_page_has_a_card_of_its_own():
    cards = [card(name) for name in NAMES]
    for key in ("title", "image"):
        assert len({properties[key] for properties in cards}) == len(NAMES)


@built
@on_pages
def test_a_chapter_has_a_button_that_opens_it_on_colab(name):
    page = (HTML / f"{name}.html").read_text(encoding="utf-8")
    path = urlsplit(CONFIG["repository"]["url"]).path
    address = f"https://colab.research.google.com/github{path}/blob/main/notebooks/{Path(name).name}.ipynb"
    assert (address in page) == (ROOT / f"{name}.ipynb").exists()


BAR = '<details class="admonition hide'


@built
def test_hidden_code_has_few_bars_with_names(capsys):
    """The code of a figure is behind a word at the figure, which is no bar."""
    pages = {name: (HTML / f"{name}.html").read_text(encoding="utf-8") for name in NAMES}
    bars = {name: page.count(BAR) - page.count("code-of-figure") for name, page in pages.items()}
    with capsys.disabled():
        print(f"\n{sum(bars.values())} bars over hidden code, {max(bars.values())} in one page")
    assert sum(bars.values()) <= 150 and max(bars.values()) <= 12
    for page in pages.values():
        assert not any(
            "Show code cell" in summary for summary in findall(r"<summary.*?>(.*?)<", page)
        )
        first = page.find("<p>", page.find("<h1"))
        assert BAR not in page[:first]


@built
def test_numbers_begin_with_the_section():
    """And the paper's equations have its numbers."""
    paper = {"3_2_attention": "1", "3_3_feed_forward": "2", "5_3_optimizer": "3"}
    counted = 0
    for name in NAMES:
        page = (HTML / f"{name}.html").read_text(encoding="utf-8")
        section = section_of(Path(name).name)
        equations = findall(r'<span class="eqno">\(([^)]*)\)', page)
        captions = findall(r'caption-number">\w+ ([\w.]+)', page)
        own = [number for number in equations if number != paper.get(Path(name).name)]
        assert len(own) == len(equations) - (Path(name).name in paper)
        assert all(number.startswith(f"{section}.") for number in own + captions if section)
        counted += len(own) + len(captions)
    assert counted > 300
