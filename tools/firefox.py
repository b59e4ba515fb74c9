"""A headless Firefox, driven through WebDriver BiDi: enough to open a page and to ask it something.

It is the stock browser (Debian's `firefox-esr`, or the program that the environment variable
FIREFOX names). Playwright drives a Firefox of its own only, which has to be downloaded; selenium
4.51 was tried, and needs geckodriver, which neither Debian nor PyPI has. So the few commands that a
test needs are sent here: https://w3c.github.io/webdriver-bidi/.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

FIREFOX = os.environ.get("FIREFOX") or shutil.which("firefox-esr") or shutil.which("firefox")
LISTENS = re.compile(r"WebDriver BiDi listening on (ws://\S+)")
PREFERENCES = {
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "app.update.disabledForTesting": True,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
}


class FirefoxPage:
    """One tab; `complaints` are the errors of its scripts, and what they wrote to the console."""

    def __init__(self, socket: WebSocketClientConnection, loop: asyncio.AbstractEventLoop) -> None:
        self.socket, self.loop, self.numbers = socket, loop, itertools.count(1)
        self.complaints: list[str] = []
        self._ask("session.new", capabilities={})
        self._ask("session.subscribe", events=["log.entryAdded"])
        (tab,) = self._ask("browsingContext.getTree")["contexts"]
        self.tab = tab["context"]

    def go_to(self, address: str) -> None:
        """Load a page, and wait until it and what it names are there."""
        self._ask("browsingContext.navigate", context=self.tab, url=address, wait="complete")

    def evaluate(self, script: str) -> Any:
        """The value of an expression, which may be a promise: text, a number, or true or false.

        Raises RuntimeError with what the script threw.
        """
        found = self._ask(
            "script.evaluate", expression=script, target={"context": self.tab}, awaitPromise=True
        )
        if found["type"] == "exception":
            raise RuntimeError(found["exceptionDetails"]["text"])
        return found["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 600) -> None:
        """Wait until an expression of the page is true; RuntimeError if it is not in that time."""
        self.evaluate(
            f"new Promise((done, fail) => {{ setTimeout(() => fail(Error('never came')), "
            f"{1000 * seconds}); const asking = setInterval(() => {{ if ({condition}) "
            "{ clearInterval(asking); done(true); } }, 50); })"
        )

    def press(self, *keys: str) -> None:
        """Press and release these keys one after the other, as hands do."""
        pressed = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keyboard", "actions": pressed}
        self._ask("input.performActions", context=self.tab, actions=[source])

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.loop.run_until_complete(self._answer(method, parameters))

    async def _answer(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        number = next(self.numbers)
        question = {"id": number, "method": method, "params": parameters}
        await self.socket.write_message(json.dumps(question))
        while True:
            text = await self.socket.read_message()
            if text is None:
                raise RuntimeError("Firefox has hung up")
            message = json.loads(text)
            if message.get("method") == "log.entryAdded":
                self.complaints.append(message["params"]["text"])
            elif message.get("id") == number:
                if message["type"] == "error":
                    raise RuntimeError(message["message"])
                return dict(message["result"])


@contextmanager
def firefox_page() -> Iterator[FirefoxPage]:
    """A tab of a Firefox of its own, with a profile that is thrown away."""
    with tempfile.TemporaryDirectory() as profile:
        lines = (f"user_pref({json.dumps(k)}, {json.dumps(v)});" for k, v in PREFERENCES.items())
        Path(profile, "user.js").write_text("\n".join(lines), encoding="utf-8")
        command = [str(FIREFOX), "--headless", "--profile", profile, "--no-remote"]
        said = Path(profile, "said.txt")
        with said.open("wb") as file:
            process = subprocess.Popen([*command, "--remote-debugging-port", "0"], stderr=file)
        loop = asyncio.new_event_loop()
        try:
            address = _address(process, said)
            socket = loop.run_until_complete(_connected(f"{address}/session"))
            yield FirefoxPage(socket, loop)
        finally:
            process.kill()
            process.wait()
            loop.close()


def _address(process: subprocess.Popen[bytes], said: Path) -> str:
    """Where the browser listens, as soon as it says so."""
    while process.poll() is None:
        if found := LISTENS.search(said.read_text(encoding="utf-8", errors="replace")):
            return found[1]
        time.sleep(0.1)
    raise RuntimeError(f"Firefox ended before it listened: {said.read_text(errors='replace')}")


async def _connected(address: str) -> WebSocketClientConnection:
    return await websocket_connect(address)
