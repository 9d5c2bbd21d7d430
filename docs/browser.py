"""A headless Chromium, controlled through its DevTools protocol, so neither a driver nor a download is needed."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
START_SECONDS = 30.0
PATIENCE_SECONDS = 60.0  # for a page of Dagster on a busy machine
LOOK_SECONDS = 0.25
STILL_SECONDS = 15.0  # some pages count seconds and never stop changing

OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--remote-debugging-port=0", "--remote-allow-origins=*"),
)
CLICKABLE = "button, a, [role=tab], [role=menuitem], div, span"
CLICK = """(() => {
  const all = [...document.querySelectorAll(%s)].filter(element => element.innerText === %s);
  const found = all.filter(element => element.offsetParent && !element.closest('button:disabled')).pop();
  if (found) found.click();
  return Boolean(found);
})()"""
HEARD_SECONDS = 15.0  # a click has no effect if the page is just replacing the element


class BrowserMissing(Exception):
    """There is no Chromium on this machine."""


class Page:
    """One tab. Calls block until the browser has answered."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = count(1)
        self._call("Page.enable")
        self._call("Runtime.enable")

    def size(self, width: int, height: int, scale: float = 1.0) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def open(self, url: str, *, showing: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Open a page and wait until it shows a text. Raises AssertionError with the text that it shows instead."""
        self._call("Page.navigate", url=url)
        self.wait_for(showing, seconds)

    def wait_for(self, text: str, seconds: float = PATIENCE_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while text not in (shown := self.text()):
            assert time.monotonic() < deadline, f"{text!r} is not on the page: {shown[:2000]}"
            time.sleep(LOOK_SECONDS)

    def wait_until(self, script: str, what: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the value of a script in the page is true."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(script):
            assert time.monotonic() < deadline, f"{what}: {self.text()[:2000]}"
            time.sleep(LOOK_SECONDS)

    def wait_until_still(self, seconds: float = STILL_SECONDS) -> None:
        """Wait until two pictures of the page are equal, because pages fade elements in. If a page never stops
        changing, this ends after `seconds`."""
        deadline, before = time.monotonic() + seconds, b""
        while (now := self._picture()) != before and time.monotonic() < deadline:
            before = now
            time.sleep(LOOK_SECONDS)

    def text(self) -> str:
        """The whole text of the page, as a reader would copy it."""
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def evaluate(self, script: str) -> Any:
        """The value of a script in the page. If it is a promise, its result is awaited."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        return answer["result"].get("value")

    def address(self) -> str:
        return str(self.evaluate("location.href"))

    def click(self, text: str, what: str = CLICKABLE) -> None:
        """Wait for visible elements with exactly this text, and click the innermost. `what`: a CSS selector."""
        self.wait_until(CLICK % (json.dumps(what), json.dumps(text)), f"something to click that says {text!r}")

    def click_until(self, text: str, script: str, what: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Click until the value of a script in the page is true. If a click has no effect, it is repeated."""
        deadline, clicked = time.monotonic() + seconds, float("-inf")
        while not self.evaluate(script):
            assert time.monotonic() < deadline, f"{what}: {self.text()[:2000]}"
            if time.monotonic() - clicked > HEARD_SECONDS and self.evaluate(
                CLICK % (json.dumps(CLICKABLE), json.dumps(text))
            ):
                clicked = time.monotonic()
            time.sleep(LOOK_SECONDS)

    def screenshot(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._picture())

    def _picture(self) -> bytes:
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(PATIENCE_SECONDS))
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result


@contextmanager
def browser() -> Iterator[Page]:
    """Start a Chromium with a new profile and one tab. Raises BrowserMissing, which names what to install."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        raise BrowserMissing("there is no Chromium: install it (Debian, Ubuntu: apt-get install chromium)")
    with tempfile.TemporaryDirectory(prefix="browser", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with connect(_tab(Path(profile)), max_size=None) as socket:
                yield Page(socket)
        finally:
            process.kill()
            process.wait()


def _tab(profile: Path) -> str:
    """Wait until the browser has written its port to a file. Returns the address of the first tab."""
    place = profile / "DevToolsActivePort"
    deadline = time.monotonic() + START_SECONDS
    while not place.exists() or len(place.read_text().splitlines()) < 2:
        assert time.monotonic() < deadline, "Chromium does not start"
        time.sleep(LOOK_SECONDS)
    port = place.read_text().splitlines()[0]
    with urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
        tabs = json.load(answer)
    return str(next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"))
