"""Print the built book (`make html`) as one PDF: _build/pdf/annotated-transformer.pdf.

    python -m tools.pdf

The pages are joined in the order of _toc.yml into one page, book.html, where every link within the
book leads to a place in that page; chromium sets its formulas and prints it, with bookmarks, page
numbers and a running title. Hints, solutions and hidden cells are open. It needs chromium, and no
TeX. jupyter-book's own `pdfhtml` prints no more than that, by pyppeteer, which downloads a browser
of its own and has no bookmarks.
"""

from __future__ import annotations

import base64
import posixpath
import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urlsplit

import yaml
from bs4 import BeautifulSoup, Tag
from bs4.filter import SoupStrainer

from tools.browser import CHROMIUM, chromium_page, open_page, served

ROOT = Path(__file__).resolve().parents[1]
NAME = "annotated-transformer.pdf"
TEXT_WIDTH = 657  # CSS pixels: A4 less the margins of pdf.css
REFERRING = ("for", "aria-labelledby", "aria-describedby", "aria-controls")
SHRINK = """
for (const box of document.querySelectorAll("mjx-container[display='true'], table, .output")) {
  const room = box.parentElement.clientWidth, wide = box.scrollWidth;
  if (room > 0 && wide > room + 1) box.style.zoom = Math.max(0.5, room / wide);
}
// A bookmark loses the space at which its heading goes on in a second line: headings stay on one.
for (const heading of document.querySelectorAll("h1, h2, h3, h4, h5")) {
  heading.style.whiteSpace = "nowrap";
  if (heading.scrollWidth > heading.clientWidth) {
    const size = parseFloat(getComputedStyle(heading).fontSize)
      * heading.clientWidth / heading.scrollWidth;
    heading.style.fontSize = `${Math.max(9, 0.98 * size)}px`;
  }
}
document.querySelectorAll("details").forEach((folded) => { folded.open = true; });
"""


def contents(toc: Path) -> list[tuple[str, list[str]]]:
    """The book's pages by part, `("", [root])` first, as names without an ending."""
    tree = yaml.safe_load(toc.read_text(encoding="utf-8"))

    def files(node: dict[str, Any]) -> Iterator[str]:
        yield node["file"]
        for section in node.get("sections", []):
            yield from files(section)

    parts = [
        (part.get("caption", ""), [name for chapter in part["chapters"] for name in files(chapter)])
        for part in tree.get("parts", [])
    ]
    return [("", [tree["root"]]), *parts]


def key(page: str) -> str:
    """The id in the joined page of the beginning of `page`."""
    return page.replace("/", "-")


def moved(address: str, page: str, pages: set[str]) -> str:
    """What a link or a source written in `page` becomes in the joined page."""
    path, fragment = urldefrag(address)
    if urlsplit(address).scheme or address.startswith("//"):
        return address
    target = (
        posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if path
        else f"{page}.html"
    )
    name = target.removesuffix(".html")
    if target.endswith(".html"):
        return (
            (f"#{key(name)}--{fragment}" if fragment else f"#{key(name)}") if name in pages else ""
        )
    return f"../html/{target}"


def formula_scripts(source: str, page: str, pages: set[str]) -> str:
    """The scripts of a built page that set MathJax up and load it;
    nothing where the page has no formula."""
    settings = re.search(r"<script>window\.MathJax = .*?</script>", source)
    address = re.search(r'src="([^"]*mathjax/[^"?]*)', source)
    if not settings or not address:
        return ""
    return f'{settings[0]}<script defer src="{moved(address[1], page, pages)}"></script>'


def article(source: str, page: str, pages: set[str]) -> tuple[str, Tag]:
    """The title and the article of a built page,
    with ids and addresses made for the joined page."""
    only = SoupStrainer("article", class_="bd-article")
    found = BeautifulSoup(source, "html.parser", parse_only=only).find("article")
    if not isinstance(found, Tag):
        raise SystemExit(
            f"pdf.py: {page}.html has no article; is it a page of this book, built by `make html`?"
        )
    for link in found.select("a.headerlink"):
        link.decompose()
    for element in found.find_all(True):
        if element.get("id"):
            element["id"] = f"{key(page)}--{element['id']}"
        for name in REFERRING:
            if element.get(name):
                words = (
                    element[name] if isinstance(element[name], list) else str(element[name]).split()
                )
                element[name] = " ".join(f"{key(page)}--{word}" for word in words)
        for name in ("href", "src"):
            if element.get(name) and element.name != "script":
                address = moved(str(element[name]), page, pages)
                if address:
                    element[name] = address
                else:
                    del element[name]
    title = found.find("h1")
    return title.get_text(" ", strip=True) if title else page, found


def joined(html: Path, toc: Path) -> str:
    """The whole book as one HTML page, to be served from beside the folder of `html`."""
    parts = contents(toc)
    pages = {name for _, names in parts for name in names}
    first = parts[0][1][0]
    head = (html / f"{first}.html").read_text(encoding="utf-8").partition("</head>")[0]
    styles = [
        moved(urlsplit(address).path, first, pages)
        for address in re.findall(
            r'<link (?:rel="stylesheet" type="text/css" )?href="([^"]+\.css[^"]*)"', head
        )
    ]
    book = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["title"]
    listing: list[str] = []
    chapters: list[str] = []
    rules: list[str] = []
    mathjax = ""  # a page without a formula does not have it
    for caption, names in parts:
        listing += [f'<p class="caption">{escape(caption)}</p>' if caption else "", "<ul>"]
        for number, name in enumerate(names):
            source = (html / f"{name}.html").read_text(encoding="utf-8")
            title, body = article(source, name, pages)
            mathjax = mathjax or formula_scripts(source, name, pages)
            page = f"page{len(chapters)}"
            words = title.replace("\\", "").replace('"', "'")
            rules.append(
                f"@page {page} "
                f'{{ @top-right {{ content: "{words}"; font: 9pt sans-serif; color: #555; }} }}'
            )
            listing.append(f'<li><a href="#{key(name)}">{escape(title)}</a></li>')
            part = f'<p class="part">{escape(caption)}</p>' if caption and number == 0 else ""
            chapters.append(
                f'<section class="chapter" id="{key(name)}" style="page: {page}">'
                f"{part}{body}</section>"
            )
        listing.append("</ul>")
    links = "".join(f'<link rel="stylesheet" href="{style}">' for style in styles)
    style = (ROOT / "tools" / "pdf.css").read_text(encoding="utf-8") + "\n".join(rules)
    return (
        '<!DOCTYPE html><html lang="en" data-theme="light" data-content_root="../html/">'
        '<head><meta charset="utf-8">'
        f"<title>{escape(book)}</title>{links}<style>{style}</style>{mathjax}</head><body>"
        f'<section class="title-page"><h1>{escape(book)}</h1>'
        "<p><i>Attention Is All You Need</i>, section by section, executed</p></section>"
        f'<nav class="book-contents"><h1>Contents</h1>{"".join(listing)}</nav>'
        f'<div class="bd-content">{"".join(chapters)}</div></body></html>'
    )


def print_pdf(address: str, target: Path) -> None:
    """Print the page at `address` when its formulas are set and its pictures there."""
    with chromium_page(seconds=900, viewport={"width": TEXT_WIDTH, "height": 1000}) as page:
        page.emulate_media(media="print")
        open_page(page, address)
        page.evaluate(
            "Promise.all([...document.images].map((image) => { image.loading = 'eager'; "
            "return image.decode().catch(() => {}); })).then(() => 0)"
        )
        page.evaluate(f"{SHRINK}; 0")
        # Not by page.pdf(), which holds the whole file in memory, and in one message: it has 56 MB.
        protocol = page.context.new_cdp_session(page)
        stream = protocol.send(
            "Page.printToPDF",
            {
                "printBackground": True,
                "preferCSSPageSize": True,
                "transferMode": "ReturnAsStream",
                "generateTaggedPDF": True,
                "generateDocumentOutline": True,
            },
        )["stream"]
        with target.open("wb") as file:
            while True:
                chunk = protocol.send("IO.read", {"handle": stream, "size": 1 << 22})
                data = chunk["data"]
                file.write(base64.b64decode(data) if chunk.get("base64Encoded") else data.encode())
                if chunk["eof"]:
                    break


def main() -> int:
    html = ROOT / "_build" / "html"
    folder = ROOT / "_build" / "pdf"
    if not CHROMIUM:
        print("pdf.py: no chromium on this machine (apt-get install chromium)", file=sys.stderr)
        return 2
    if not (html / "index.html").exists():
        print(f"pdf.py: there is no built book in {html}; run: make html", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "book.html").write_text(joined(html, ROOT / "_toc.yml"), encoding="utf-8")
    with served(html.parent) as address:
        print_pdf(f"{address}/{folder.name}/book.html", folder / NAME)
    print(f"{folder / NAME}: {(folder / NAME).stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
