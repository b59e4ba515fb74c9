"""A headless Chromium, driven by Playwright, and the server that it reads the site from.

The browser tests look at every page with it. It needs Debian's `chromium` (or the program that the
environment variable CHROMIUM names); Playwright's own download of a browser is not used.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = (
    os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
)
FLAGS = ["--disable-gpu", "--disable-quic", "--disable-sync", "--disable-component-update"]
# Playwright's flags that we do without: a reader sees bars, and they take room.
KEPT = ["--hide-scrollbars"]
READY = """seconds => Promise.race([
  Promise.all([window.MathJax?.startup?.promise, document.fonts.ready]).then(() => true),
  new Promise((_, fail) => setTimeout(fail, 1000 * seconds, new Error("formulas never came"))),
])"""
SECONDS = 600.0  # catches a browser that hangs, not one on a busy machine
LEADS_ON = "meta[http-equiv=refresh]"


@contextmanager
def chromium_page(seconds: float = SECONDS, **options: Any) -> Iterator[Page]:
    """A tab of a Chromium of its own, in which no step but a script may take longer than `seconds`.

    `options` are what Playwright's `Browser.new_context` takes, `viewport` for one. Other tabs of
    the same context are as patient.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=FLAGS, ignore_default_args=KEPT, timeout=1000 * seconds
        )
        try:
            context = browser.new_context(**options)
            context.set_default_timeout(1000 * seconds)
            yield context.new_page()
        finally:
            browser.close()


def open_page(page: Page, address: str, seconds: float = SECONDS) -> None:
    """Load a page, or where it leads on to at once, and wait for its formulas and letters.

    Raises Playwright's Error if they are not there after so many seconds: a script alone would wait
    for ever.
    """
    from playwright.sync_api import Error

    page.goto(address)
    if page.locator(LEADS_ON).count():
        page.wait_for_function(f"!document.querySelector('{LEADS_ON}')")
        page.wait_for_load_state()
    try:
        page.evaluate(READY, seconds)
    except Error as error:  # on a busy machine the old page answers until it is taken away
        if "context was destroyed" not in str(error):
            raise
        page.wait_for_load_state()
        page.evaluate(READY, seconds)


class _Quiet(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        # No page's request: a browser asks for it by itself before the page names one.
        if self.path == "/favicon.ico":
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *_: object) -> None:
        """Keep the output readable."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address, without a slash at its end, of `folder` inside the `with` block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
