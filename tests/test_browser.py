"""The built book in a real browser: Debian's chromium, driven over its DevTools protocol.

Skipped where there is no chromium or no built book (`make html`). Every page is loaded once, from a local server and
under a path prefix as on a project page, and each test asks all visits one question.
"""

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

HTML = Path(__file__).parents[1] / "_build" / "html"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
PAGES = sorted(str(path.relative_to(HTML)) for path in HTML.rglob("*.html") if "_static" not in path.parts)
WIDTHS = (360, 768, 1280)  # a phone, a tablet, a laptop: CSS pixels
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-sync", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
]

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


class Browser:
    """One chromium with one tab: commands in, events kept until they are fetched."""

    def __init__(self, profile: Path):
        import websocket

        self.process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        address = profile / "DevToolsActivePort"
        deadline = time.monotonic() + 60
        while not (address.exists() and len(address.read_text().splitlines()) == 2):
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.close()
                raise RuntimeError("chromium did not start")
            time.sleep(0.1)
        port, path = address.read_text().splitlines()
        self.socket = websocket.create_connection(f"ws://127.0.0.1:{port}{path}", suppress_origin=True, timeout=120)
        self.count, self.session, self.events = 0, None, []
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict:
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        self.socket.send(json.dumps(message | ({"sessionId": self.session} if self.session else {})))
        while (answer := json.loads(self.socket.recv())).get("id") != self.count:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(json.loads(self.socket.recv()))

    def evaluate(self, expression: str) -> object:
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"]["description"])
        return result["result"].get("value")

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()


READY = "Promise.all([window.MathJax?.startup?.promise, document.fonts.ready]).then(() => true)"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
PAGE_FACTS = Path(__file__).with_name("page_facts.js").read_text(encoding="utf-8")


def visit(browser: Browser, address: str) -> Visit:
    """Load the page at `address`, look at it narrow and wide, light and dark, and note what happens."""
    seen = Visit()
    browser.events.clear()
    browser.call("Page.navigate", url=address)
    browser.wait_for("Page.loadEventFired")
    browser.evaluate(READY)
    for width in WIDTHS:
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        seen.overflow[width] = browser.evaluate(OVERFLOW)
    browser.evaluate(PAGE_FACTS)
    seen.facts = browser.evaluate("bookTest.facts()")
    for theme in ("light", "dark"):
        browser.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        browser.evaluate("new Promise((done) => setTimeout(done, 300))")  # colours fade
        seen.facts[theme] = browser.evaluate("bookTest.faint()")
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


class Quiet(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/favicon.ico":  # no page's request: a browser asks for it by itself before the page names one
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *_: object) -> None:
        """Keep the test output readable."""


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Visit]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(HTML.parent)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    root = f"http://127.0.0.1:{server.server_port}/{HTML.name}/"
    browser = Browser(tmp_path_factory.mktemp("profile"))
    try:
        yield {page: visit(browser, root + page) for page in PAGES}
    finally:
        browser.close()
        server.shutdown()


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
