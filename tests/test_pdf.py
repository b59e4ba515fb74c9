"""The joined page that the PDF is printed from,
and the PDF itself where `make pdf` has made one."""

import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from tools import pdf

ROOT = Path(__file__).parents[1]
HTML = ROOT / "_build" / "html"
TOC = ROOT / "_toc.yml"
PRINTED = ROOT / "_build" / "pdf" / pdf.NAME
NAMES = [name for _, names in pdf.contents(TOC) for name in names]

BUILT = all((HTML / f"{name}.html").exists() for name in NAMES)

built = pytest.mark.skipif(not BUILT, reason="no built book (make html)")


def seconds(path: Path) -> float:
    """When it was written."""
    return path.stat().st_mtime if path.exists() else 0


NEW = BUILT and seconds(PRINTED) >= seconds(HTML / "index.html")
printed = pytest.mark.skipif(not NEW, reason="no PDF of the built book (make pdf)")


def test_the_contents_are_those_of_the_book_in_their_order(tmp_path: Path) -> None:
    toc = tmp_path / "_toc.yml"
    toc.write_text(
        "format: jb-book\nroot: book/intro\nparts:\n- caption: One\n  chapters:\n  - file: book/b\n"
        "    sections:\n    - file: book/c\n- caption: Two\n  chapters:\n  - file: book/a\n",
        encoding="utf-8",
    )
    assert pdf.contents(toc) == [
        ("", ["book/intro"]),
        ("One", ["book/b", "book/c"]),
        ("Two", ["book/a"]),
    ]


@pytest.mark.parametrize(
    ("address", "becomes"),
    [
        ("https://arxiv.org/abs/1706.03762", "https://arxiv.org/abs/1706.03762"),
        ("#exercises", "#book-b--exercises"),
        ("a.html", "#book-a"),
        ("a.html#equation-x", "#book-a--equation-x"),
        ("../book/a.html", "#book-a"),
        ("../genindex.html", ""),  # not in the PDF: no link
        ("../_images/x.png", "../html/_images/x.png"),
    ],
)
def test_links_lead_to_places_in_the_joined_page(address: str, becomes: str) -> None:
    assert pdf.moved(address, "book/b", {"book/a", "book/b"}) == becomes


@pytest.mark.slow
@built
def test_the_joined_page_has_the_looks_and_the_formulas_of_the_site(page: BeautifulSoup) -> None:
    styles = [str(link["href"]) for link in page.select("head link[rel=stylesheet]")]
    assert {"theme.css", "pygments.css", "custom.css"} <= {Path(style).name for style in styles}
    scripts = [str(script["src"]) for script in page.select("head script[src]")]
    assert [Path(script).name for script in scripts] == ["tex-chtml-full.js"]
    assert missing([*styles, *scripts]) == []


def missing(addresses: list[str]) -> list[str]:
    """Those that lead to no file from where the joined page lies."""
    folder = HTML.parent / "pdf"
    return [address for address in addresses if not (folder / address).resolve().exists()]


@pytest.fixture(scope="module")
def page() -> BeautifulSoup:
    return BeautifulSoup(pdf.joined(HTML, TOC), "html.parser")


@pytest.mark.slow
@built
def test_every_page_of_the_book_is_a_chapter_of_the_joined_page(page: BeautifulSoup) -> None:
    keys = [pdf.key(name) for name in NAMES]
    assert [section["id"] for section in page.select("section.chapter")] == keys
    links = [link["href"] for link in page.select(".book-contents a")]
    assert links == [f"#{key}" for key in keys]


@pytest.mark.slow
@built
def test_every_link_within_the_book_has_its_place(page: BeautifulSoup) -> None:
    places = {element["id"] for element in page.find_all(id=True)}
    links = [str(link["href"]) for link in page.find_all("a", href=True)]
    inner = [link for link in links if link.startswith("#")]
    assert len(inner) > len(NAMES)
    assert [link for link in inner if link[1:] not in places] == []
    known = ("#", "https://", "http://", "mailto:", "../html/")
    assert [link for link in links if not link.startswith(known)] == []


@pytest.mark.slow
@built
def test_every_picture_is_there(page: BeautifulSoup) -> None:
    sources = [str(image["src"]) for image in page.find_all("img", src=True)]
    assert missing([source for source in sources if not source.startswith("data:")]) == []


def outline(data: bytes) -> list[str]:
    """The bookmarks' titles, in the order of the file:
    chromium writes them as plain or as UTF-16 strings."""
    found = []
    for plain, wide in re.findall(rb"/Title (?:\(((?:[^()\\]|\\.)*)\)|<([0-9A-Fa-f]+)>)", data):
        text = bytes.fromhex(wide.decode()) if wide else re.sub(rb"\\(.)", rb"\1", plain)
        is_wide = text.startswith(b"\xfe\xff")
        found.append(text.decode("utf-16" if is_wide else "latin-1"))
    return found


@pytest.mark.slow
@built
@printed
def test_the_pdf_has_pages_and_bookmarks_for_every_chapter(page: BeautifulSoup) -> None:
    data = PRINTED.read_bytes()
    assert data.startswith(b"%PDF-") and b"/StructTreeRoot" in data
    n_pages = len(re.findall(rb"/Type\s*/Page\b", data))
    assert n_pages >= 3 * len(NAMES)
    titles = {" ".join(title.split()) for title in outline(data)}
    headings = [section.find("h1") for section in page.select("section.chapter")]
    wanted = {" ".join(heading.get_text().split()) for heading in headings}
    assert wanted - titles == set()
