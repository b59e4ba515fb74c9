"""The built book in a real browser: Chromium, driven by Playwright, with axe-core as a judge.

Skipped where there is no Chromium or no built book (`make html`). Every page is loaded once, from
a local server and under a path prefix as on a project page, and each test asks all visits one
question.
"""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe

from exported_page import IN_CHROMIUM
from tools.browser import open_page, served

HTML = Path(__file__).parents[1] / "_build" / "html"
# The translator and the training page have tests of their own, in tests/extras and tests/lab.
PAGES = sorted(
    str(path.relative_to(HTML))
    for path in HTML.rglob("*.html")
    if not {"_static", "translator", "training"} & set(path.parts)
)
WIDTHS = (1440, 768, 360)  # a laptop, a tablet, a phone: CSS pixels
HEIGHT = 900
COLOURS = ["color-contrast", "link-in-text-block"]  # axe-core's rules that depend on the theme

pytestmark = IN_CHROMIUM

Visit = dict[str, Any]
"""What one page asked for and did while it loaded, and its faults of each kind."""
# A missing file, what scripts say, pages too wide, TeX and errors in it, pictures without words, a
# contrast below 4.5 to 1 (WCAG AA), and what axe-core calls serious or critical.
FAULTS = [
    "missing", "errors", "scrolls sideways", "formulas not typeset", "wrong", "silent",
    "faint in the light", "faint in the dark", "barriers", "barriers in the light",
    "barriers in the dark", "barriers on a phone",
]  # fmt: skip
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
PAGE_FACTS = Path(__file__).with_name("page_facts.js").read_text(encoding="utf-8")


def listen(page, seen):
    """Note in `seen` what the page asks for, what does not come, and what its scripts say."""

    def answered(answer):
        if answer.status >= 400:
            seen["missing"].append(f"{answer.status} {answer.url}")

    def failed(request):
        if request.failure != "net::ERR_ABORTED":
            seen["missing"].append(f"{request.failure} {request.url}")

    def said(message):
        if message.type in ("error", "assert"):
            seen["errors"].append(message.text)

    page.on("request", lambda request: seen["requests"].append(request.url))
    page.on("response", answered)
    page.on("requestfailed", failed)
    page.on("pageerror", lambda error: seen["errors"].append(str(error)))
    page.on("console", said)


def barriers(page, **options):
    """What axe-core calls serious or critical: rule, number of places, the first, what to do."""
    options = {"resultTypes": ["violations"], "preload": False, **options}
    found = Axe().run(page, options=options).response
    return [
        f"{finding['impact']} {finding['id']} x{len(finding['nodes'])}: "
        f"{finding['nodes'][0]['target']}: {finding['nodes'][0]['failureSummary']}"
        for finding in found["violations"]
        if finding["impact"] in ("serious", "critical")
    ]


def visit(page, address):
    """Load the page at `address`, look at it wide and narrow, light and dark, and take notes.

    axe-core judges the page as it is by all its rules but those for colours, which it applies in
    the light and in the dark; and by its rule for boxes that scroll once more on a phone, where
    most of them do.
    """
    seen: Visit = {"requests": [], "missing": [], "errors": []}
    listen(page, seen)
    page.set_viewport_size({"width": WIDTHS[0], "height": HEIGHT})
    open_page(page, address)
    page.evaluate(PAGE_FACTS)
    seen |= page.evaluate("bookTest.facts()")
    seen["formulas not typeset"] = seen["formulas"] - seen["typeset"]
    seen["barriers"] = barriers(page, rules={rule: {"enabled": False} for rule in COLOURS})
    page.evaluate("bookTest.stopFading()")
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        seen[f"faint in the {theme}"] = page.evaluate("bookTest.faint()")
        page.evaluate("bookTest.keepOneOfEachColour()")
        seen[f"barriers in the {theme}"] = barriers(page, runOnly=COLOURS)
        page.evaluate("bookTest.putBack()")
    seen["scrolls sideways"] = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": HEIGHT})
        if (pixels := page.evaluate(OVERFLOW)) > 0:
            seen["scrolls sideways"][width] = pixels
    page.wait_for_timeout(400)  # what listens to the width waits 300 ms itself
    seen["barriers on a phone"] = barriers(page, runOnly=["scrollable-region-focusable"])
    page.wait_for_timeout(200)  # late requests
    return seen


@pytest.fixture(scope="module")
def visits(tab):
    if not PAGES:
        pytest.skip("no built book (make html)")
    with served(HTML.parent) as address:
        return {name: visit_alone(tab, f"{address}/{HTML.name}/{name}") for name in PAGES}


def visit_alone(tab, address):
    """A visit in a tab of its own, so that no listener of the last visit hears this one."""
    with tab.context.new_page() as page:
        page.set_default_timeout(600_000)
        return visit(page, address)


FAULTY = """<!doctype html><html lang="en"><head><title>t</title>
<script>console.error("alas"); nothing();</script></head>
<body><article class="bd-article"><img src="gone.png"><img src="http://localhost:1/x.png" alt="x">
<p style="color: #999; background: #fff">faint</p><p style="width: 2000px">wide</p>
<p class="math">not set</p>
<div style="overflow: auto; width: 50px; height: 20px"><pre>a long line\nand two</pre></div>
</article></body></html>"""


@pytest.mark.slow
def test_a_page_with_these_faults_is_found_out(tab, tmp_path):
    """The control: each question that the tests below ask has an answer other than "nothing"."""
    (tmp_path / "faults.html").write_text(FAULTY, encoding="utf-8")
    with served(tmp_path) as address:
        seen = visit_alone(tab, f"{address}/faults.html")
    hosts = {urlsplit(url).hostname for url in seen["requests"]}
    assert hosts == {"127.0.0.1", "localhost"}
    missing, errors = "\n".join(seen["missing"]), "\n".join(seen["errors"])
    assert re.search(r"^404 .*/gone\.png$", missing, flags=re.M)
    assert re.search(r"^net::.*localhost", missing, flags=re.M)
    assert "alas" in errors and "nothing is not defined" in errors
    assert set(seen["scrolls sideways"]) == set(WIDTHS)
    assert seen["formulas not typeset"] == len(seen["silent"]) == 1
    assert "faint" in seen["faint in the light"][0]
    found = {kind: " ".join(seen[kind]) for kind in FAULTS if kind.startswith("barriers")}
    assert "image-alt" in found["barriers"] and "color-contrast" not in found["barriers"]
    for theme in ("light", "dark"):
        assert "color-contrast" in found[f"barriers in the {theme}"]
    assert "scrollable-region-focusable" in found["barriers on a phone"]


def test_no_page_asks_another_host(visits):
    asked = {
        url
        for seen in visits.values()
        for url in seen["requests"]
        if urlsplit(url).scheme not in ("data", "blob")
    }
    assert len(asked) > len(PAGES)
    assert [url for url in asked if urlsplit(url).hostname != "127.0.0.1"] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_no_page_has_a_fault(visits, fault):
    assert {page: seen[fault] for page, seen in visits.items() if seen[fault]} == {}
