"""The built book in a real browser: Debian's chromium, driven over its DevTools protocol.

Skipped where there is no chromium or no built book (`make html`). Every page is loaded once, from a local server and
under a path prefix as on a project page, and each test asks all visits one question.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tools.browser import CHROMIUM, Browser, served

HTML = Path(__file__).parents[1] / "_build" / "html"
PAGES = sorted(str(path.relative_to(HTML)) for path in HTML.rglob("*.html") if "_static" not in path.parts)
WIDTHS = (1440, 768, 360)  # a laptop, a tablet, a phone: CSS pixels

pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine (apt-get install chromium)"),
    pytest.mark.skipif(not PAGES, reason="no built book (make html)"),
]


@dataclass
class Visit:
    """What one page did while it loaded, and what it looked like afterwards."""

    requests: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    overflow: dict[int, int] = field(default_factory=dict)  # width -> pixels that stick out
    facts: dict = field(default_factory=dict)
    barriers: dict[str, list[str]] = field(default_factory=dict)  # what axe-core calls serious or critical, by setting


OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
PAGE_FACTS = Path(__file__).with_name("page_facts.js").read_text(encoding="utf-8")


def axe_core() -> str:
    """The script of axe-core, which pip brings as part of a package that is not used otherwise."""
    spec = find_spec("axe_playwright_python")
    assert spec and spec.submodule_search_locations, "axe-core is missing; run: make test"
    return (Path(next(iter(spec.submodule_search_locations))) / "axe.min.js").read_text(encoding="utf-8")


def visit(browser: Browser, address: str, axe: str) -> Visit:
    """Load the page at `address`, look at it wide and narrow, light and dark, and note what happens.

    axe-core judges the page as it is by all its rules but those for colours, which it applies in the light and in the
    dark; and by its rule for boxes that scroll once more on a phone, where most of them do.
    """
    seen = Visit()
    browser.call("Emulation.setDeviceMetricsOverride", width=WIDTHS[0], height=900, deviceScaleFactor=1, mobile=False)
    browser.open(address)
    browser.evaluate(PAGE_FACTS)
    browser.evaluate(axe + "; 0")
    seen.facts = browser.evaluate("bookTest.facts()")
    seen.barriers["as it is"] = browser.evaluate("bookTest.allButColours()")
    browser.evaluate("bookTest.stopFading()")
    for theme in ("light", "dark"):
        browser.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        seen.facts[theme] = browser.evaluate("bookTest.faint()")
        seen.barriers[theme] = browser.evaluate("bookTest.contrasts()")
    for width in WIDTHS:
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        seen.overflow[width] = browser.evaluate(OVERFLOW)
    browser.evaluate("new Promise((done) => setTimeout(done, 400))")  # what listens to the width waits 300 ms itself
    seen.barriers["phone"] = browser.evaluate("bookTest.scrolling()")
    time.sleep(0.2)  # late requests
    browser.evaluate("1")
    for event in browser.events:
        method, what = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            seen.requests.append(what["request"]["url"])
        elif method == "Network.responseReceived" and what["response"]["status"] >= 400:
            seen.failures.append(f"{what['response']['status']} {what['response']['url']}")
        elif method == "Network.loadingFailed" and not what.get("canceled"):
            seen.failures.append(f"{what['errorText']} {what['type']}")
        elif method == "Runtime.exceptionThrown":
            seen.errors.append(what["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "assert"):
            seen.errors.append(str([argument.get("value") for argument in what["args"]]))
        elif method == "Log.entryAdded" and what["entry"]["level"] == "error":
            seen.errors.append(what["entry"]["text"])
    return seen


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Visit]]:
    axe = axe_core()
    with served(HTML.parent) as address:
        browser = Browser(tmp_path_factory.mktemp("profile"))
        try:
            yield {page: visit(browser, f"{address}/{HTML.name}/{page}", axe) for page in PAGES}
        finally:
            browser.close()


def offenders(visits: dict[str, Visit], what: str) -> dict[str, object]:
    """The pages where the list `what` is not empty."""
    answers = {page: seen.facts[what] if what in seen.facts else getattr(seen, what) for page, seen in visits.items()}
    return {page: answer for page, answer in answers.items() if answer}


def test_no_page_asks_another_host(visits: dict[str, Visit]) -> None:
    asked = {url for seen in visits.values() for url in seen.requests if urlsplit(url).scheme not in ("data", "blob")}
    assert len(asked) > len(PAGES)
    assert [url for url in asked if urlsplit(url).hostname != "127.0.0.1"] == []


def test_nothing_is_missing(visits: dict[str, Visit]) -> None:
    assert offenders(visits, "failures") == {}


def test_no_script_complains(visits: dict[str, Visit]) -> None:
    assert offenders(visits, "errors") == {}


def test_no_page_scrolls_sideways(visits: dict[str, Visit]) -> None:
    assert {page: seen.overflow for page, seen in visits.items() if max(seen.overflow.values()) > 0} == {}


def test_every_formula_is_typeset(visits: dict[str, Visit]) -> None:
    assert offenders(visits, "wrong") == {}
    formulas = {page: (seen.facts["formulas"], seen.facts["typeset"]) for page, seen in visits.items()}
    assert {page: pair for page, pair in formulas.items() if pair[0] != pair[1]} == {}


def test_every_picture_has_words(visits: dict[str, Visit]) -> None:
    assert offenders(visits, "silent") == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out(visits: dict[str, Visit], theme: str) -> None:
    """Contrast of at least 4.5 to 1 (WCAG AA) for prose, links, tables and code."""
    assert offenders(visits, theme) == {}


@pytest.mark.parametrize("setting", ["as it is", "light", "dark", "phone"])
def test_axe_core_finds_no_barrier(visits: dict[str, Visit], setting: str) -> None:
    """No serious or critical finding of the accessibility checker axe-core, with all its rules, on any page."""
    found = {page: seen.barriers[setting] for page, seen in visits.items() if seen.barriers[setting]}
    assert found == {}
