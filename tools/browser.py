"""A headless chromium, driven over its DevTools protocol, and the server that it reads the site from.

The browser test looks at every page with it, and tools/pdf.py prints the book. It needs Debian's `chromium` (or the
program that the environment variable CHROMIUM names) and the package websocket-client; no driver, no Node.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-sync", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
]
READY = "Promise.all([window.MathJax?.startup?.promise, document.fonts.ready]).then(() => true)"
LEADS_ON = "!!document.querySelector('meta[http-equiv=refresh]')"


class Browser:
    """One chromium with one tab: commands in, events kept until they are fetched."""

    def __init__(self, profile: Path, timeout: float = 120):
        import websocket

        self.process = subprocess.Popen(
            [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
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
        self.socket = websocket.create_connection(f"ws://127.0.0.1:{port}{path}", suppress_origin=True, timeout=timeout)
        self.count, self.session = 0, None
        self.events: list[dict[str, Any]] = []
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """The result of a command of the protocol. Raises RuntimeError with the browser's words."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        self.socket.send(json.dumps(message | ({"sessionId": self.session} if self.session else {})))
        while (answer := json.loads(self.socket.recv())).get("id") != self.count:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def open(self, address: str) -> None:
        """Load a page, or that to which it leads on at once, and wait for its formulas and its letters."""
        self.events.clear()
        self.call("Page.navigate", url=address)
        loads = 1
        while True:
            while sum(event.get("method") == "Page.loadEventFired" for event in self.events) < loads:
                self.events.append(json.loads(self.socket.recv()))
            try:
                if not self.evaluate(LEADS_ON):
                    self.evaluate(READY)
                    return
            except RuntimeError as error:
                if "navigated" not in str(error):
                    raise
            loads += 1

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression or of the last of several statements, awaited if it is a promise."""
        kept = f"globalThis.awaited = eval({json.dumps(expression)})"  # else a promise may be collected as garbage
        result = self.call("Runtime.evaluate", expression=kept, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"]["description"])
        return result["result"].get("value")

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()


class _Quiet(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/favicon.ico":  # no page's request: a browser asks for it by itself before the page names one
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *_: object) -> None:
        """Keep the output readable."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address, without a slash at its end, at which `folder` can be read inside the `with` block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
