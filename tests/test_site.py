"""What the built pages say about themselves to other sites, and the buttons they carry.
Skipped without `make html`."""

from html import unescape
from pathlib import Path
from re import findall
from urllib.parse import urlsplit

import pytest
import yaml

from test_book import toc_files

ROOT = Path(__file__).parents[1]
HTML = ROOT / "_build" / "html"
NAMES = toc_files(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")))
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
BASE = CONFIG["html"]["baseurl"]

built = pytest.mark.skipif(
    not all((HTML / f"{name}.html").exists() for name in NAMES), reason="no built book (make html)"
)
on_pages = pytest.mark.parametrize("name", NAMES)


def card(name: str) -> dict[str, str]:
    """The Open Graph properties of a built page."""
    page = (HTML / f"{name}.html").read_text(encoding="utf-8")
    return {
        key: unescape(value)
        for key, value in findall(r'<meta property="og:([\w:]+)" content="([^"]*)"', page)
    }


def test_the_site_stands_where_the_repository_says() -> None:
    """GitHub's pages of OWNER/NAME are at OWNER.github.io/NAME; the cards name the same place."""
    owner, name = urlsplit(CONFIG["repository"]["url"]).path.strip("/").split("/")
    assert f"https://{owner}.github.io/{name}/" == BASE
    assert CONFIG["sphinx"]["config"]["ogp_site_url"] == BASE


@built
@on_pages
def test_a_page_has_a_card(name: str) -> None:
    properties = card(name)
    assert properties["title"] and properties["site_name"] == CONFIG["title"]
    if not name.endswith("references"):
        assert len(properties.get("description", "")) >= 40
    assert properties["url"] == f"{BASE}{name}.html"
    picture = HTML / properties["image"].removeprefix(BASE)
    assert properties["image"].startswith(BASE) and picture.read_bytes().startswith(b"\x89PNG")


@built
def test_every_page_has_a_card_of_its_own() -> None:
    cards = [card(name) for name in NAMES]
    for key in ("title", "image"):
        assert len({properties[key] for properties in cards}) == len(NAMES)


@built
@on_pages
def test_a_chapter_has_a_button_that_opens_it_on_colab(name: str) -> None:
    page = (HTML / f"{name}.html").read_text(encoding="utf-8")
    path = urlsplit(CONFIG["repository"]["url"]).path
    address = f"https://colab.research.google.com/github{path}/blob/main/{name}.ipynb"
    assert (address in page) == (ROOT / f"{name}.ipynb").exists()
