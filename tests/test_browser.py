"""The built book in a real browser: Chromium, driven by Playwright, with axe-core as a judge.

Skipped where there is no Chromium or no built book (`make html`). Every page is loaded once, from
a local server and under a path prefix as on a project page, and each test asks all visits one
question.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tools.browser import CHROMIUM, open_page, served

HTML = Path(__file__).parents[1] / "_build" / "html"
# The pages of the translator and of training have tests of their own, in tests/interop.
PAGES = sorted(
    str(path.relative_to(HTML))
    for path in HTML.rglob("*.html")
    if not {"_static", "translator", "training"} & set(path.parts)
)
WIDTHS = (1440, 768, 360)  # a laptop, a tablet, a phone: CSS pixels
HEIGHT = 900
COLOURS = ["color-contrast", "link-in-text-block"]  # axe-core's rules that depend on the theme

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not CHROMIUM, reason="no chromium on this machine (apt-get install chromium)"
    ),
]


@dataclass
class Visit:
    """What one page did while it loaded, and what it looked like afterwards."""

    requests: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    overflow: dict[int, int] = field(default_factory=dict)  # width -> pixels that stick out
    facts: dict = field(default_factory=dict)
    # What axe-core calls serious or critical, by setting.
    barriers: dict[str, list[str]] = field(default_factory=dict)


OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
PAGE_FACTS = Path(__file__).with_name("page_facts.js").read_text(encoding="utf-8")


def listen(page: Page, seen: Visit) -> None:
    """Note in `seen` what the page asks for, what does not come, and what its scripts say."""
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on(
        "response",
        lambda answer: (
            answer.status >= 400 and seen.failures.append(f"{answer.status} {answer.url}")
        ),
    )
    page.on(
        "requestfailed",
        lambda request: (
            request.failure != "net::ERR_ABORTED"
            and seen.failures.append(f"{request.failure} {request.url}")
        ),
    )
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on(
        "console", lambda said: said.type in ("error", "assert") and seen.errors.append(said.text)
    )


def barriers(page: Page, **options: Any) -> list[str]:
    """What axe-core calls serious or critical: rule, number of places, the first, what to do."""
    found = (
        Axe()
        .run(page, options={"resultTypes": ["violations"], "preload": False, **options})
        .response
    )
    return [
        f"{finding['impact']} {finding['id']} x{len(finding['nodes'])}: "
        f"{finding['nodes'][0]['target']}: {finding['nodes'][0]['failureSummary']}"
        for finding in found["violations"]
        if finding["impact"] in ("serious", "critical")
    ]


def visit(page: Page, address: str) -> Visit:
    """Load the page at `address`, look at it wide and narrow, light and dark, and take notes.

    axe-core judges the page as it is by all its rules but those for colours, which it applies in
    the light and in the dark; and by its rule for boxes that scroll once more on a phone, where
    most of them do.
    """
    seen = Visit()
    listen(page, seen)
    page.set_viewport_size({"width": WIDTHS[0], "height": HEIGHT})
    open_page(page, address)
    page.evaluate(PAGE_FACTS)
    seen.facts = page.evaluate("bookTest.facts()")
    seen.barriers["as it is"] = barriers(page, rules={rule: {"enabled": False} for rule in COLOURS})
    page.evaluate("bookTest.stopFading()")
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        seen.facts[theme] = page.evaluate("bookTest.faint()")
        page.evaluate("bookTest.keepOneOfEachColour()")
        seen.barriers[theme] = barriers(page, runOnly=COLOURS)
        page.evaluate("bookTest.putBack()")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": HEIGHT})
        seen.overflow[width] = page.evaluate(OVERFLOW)
    page.wait_for_timeout(400)  # what listens to the width waits 300 ms itself
    seen.barriers["phone"] = barriers(page, runOnly=["scrollable-region-focusable"])
    page.wait_for_timeout(200)  # late requests
    return seen


@pytest.fixture(scope="module")
def visits(tab: Page) -> dict[str, Visit]:
    if not PAGES:
        pytest.skip("no built book (make html)")
    with served(HTML.parent) as address:
        return {name: visit_alone(tab, f"{address}/{HTML.name}/{name}") for name in PAGES}


def visit_alone(tab: Page, address: str) -> Visit:
    """A visit in a tab of its own, so that no listener of the last visit hears this one."""
    with tab.context.new_page() as page:
        page.set_default_timeout(600_000)
        return visit(page, address)


def offenders(visits: dict[str, Visit], what: str) -> dict[str, object]:
    """The pages where the list `what` is not empty."""
    answers = {
        page: seen.facts[what] if what in seen.facts else getattr(seen, what)
        for page, seen in visits.items()
    }
    return {page: answer for page, answer in answers.items() if answer}


FAULTS = """<!doctype html><html lang="en"><head><title>t</title>
<script>console.error("alas"); nothing();</script></head>
<body><article class="bd-article"><img src="gone.png"><img src="http://localhost:1/x.png" alt="x">
<p style="color: #999; background: #fff">faint</p><p style="width: 2000px">wide</p>
<p class="math">not set</p>
<div style="overflow: auto; width: 50px; height: 20px"><pre>a long line\nand two</pre></div>
</article></body></html>"""


@pytest.mark.slow
def test_a_page_with_these_faults_is_found_out(tab: Page, tmp_path: Path) -> None:
    """The control: each question that the tests below ask has an answer other than "nothing"."""
    (tmp_path / "faults.html").write_text(FAULTS, encoding="utf-8")
    with served(tmp_path) as address:
        seen = visit_alone(tab, f"{address}/faults.html")
    assert {urlsplit(url).hostname for url in seen.requests} == {"127.0.0.1", "localhost"}
    assert any(
        failure.startswith("404") and failure.endswith("/gone.png") for failure in seen.failures
    )
    assert any(failure.startswith("net::") and "localhost" in failure for failure in seen.failures)
    assert "alas" in seen.errors and any("nothing is not defined" in error for error in seen.errors)
    assert min(seen.overflow.values()) > 0
    assert (seen.facts["formulas"], seen.facts["typeset"], len(seen.facts["silent"])) == (1, 0, 1)
    assert "faint" in seen.facts["light"][0]
    found = {setting: " ".join(barriers) for setting, barriers in seen.barriers.items()}
    assert "image-alt" in found["as it is"] and "color-contrast" not in found["as it is"]
    assert "color-contrast" in found["light"] and "color-contrast" in found["dark"]
    assert "scrollable-region-focusable" in found["phone"]


def test_no_page_asks_another_host(visits: dict[str, Visit]) -> None:
    asked = {
        url
        for seen in visits.values()
        for url in seen.requests
        if urlsplit(url).scheme not in ("data", "blob")
    }
    assert len(asked) > len(PAGES)
    assert [url for url in asked if urlsplit(url).hostname != "127.0.0.1"] == []


def test_nothing_is_missing(visits: dict[str, Visit]) -> None:
    assert offenders(visits, "failures") == {}


def test_no_script_complains(visits: dict[str, Visit]) -> None:
    assert offenders(visits, "errors") == {}


def test_no_page_scrolls_sideways(visits: dict[str, Visit]) -> None:
    assert {
        page: seen.overflow for page, seen in visits.items() if max(seen.overflow.values()) > 0
    } == {}


def test_every_formula_is_typeset(visits: dict[str, Visit]) -> None:
    assert offenders(visits, "wrong") == {}
    formulas = {
        page: (seen.facts["formulas"], seen.facts["typeset"]) for page, seen in visits.items()
    }
    assert {page: pair for page, pair in formulas.items() if pair[0] != pair[1]} == {}


def test_every_picture_has_words(visits: dict[str, Visit]) -> None:
    assert offenders(visits, "silent") == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out(visits: dict[str, Visit], theme: str) -> None:
    """Contrast of at least 4.5 to 1 (WCAG AA) for prose, links, tables and code."""
    assert offenders(visits, theme) == {}


@pytest.mark.parametrize("setting", ["as it is", "light", "dark", "phone"])
def test_axe_core_finds_no_barrier(visits: dict[str, Visit], setting: str) -> None:
    """No page has a finding that axe-core calls serious or critical, by any of its rules."""
    found = {
        page: seen.barriers[setting] for page, seen in visits.items() if seen.barriers[setting]
    }
    assert found == {}
