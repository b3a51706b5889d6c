"""A browser for the tests of this folder: Chromium, controlled through a pipe."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--hide-scrollbars", "--force-device-scale-factor=1"),
    "--remote-debugging-pipe",
)
# The browser reads from 3 and writes to 4.
WIRE = (
    "import os, sys; into, out, *command = sys.argv[1:]; "
    "os.dup2(int(into), 3); os.dup2(int(out), 4); os.execv(command[0], command)"
)


class Browser:
    """Chromium's protocol: JSON messages that each end in a zero byte, on two pipes."""

    def __init__(self, folder: Path) -> None:
        ends = [*os.pipe(), *os.pipe()]
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (ends[0], ends[3])]
        self.out, self.into = ends[1], ends[2]
        command = [str(BROWSER), *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", WIRE, *map(str, theirs), *command],
            pass_fds=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(folder)},
        )
        for end in (ends[0], ends[3], *theirs):
            os.close(end)
        self.buffer = b""
        self.count = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; other messages are kept."""
        self.count += 1
        message: dict[str, Any] = {"id": self.count, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + 60
        while True:
            told = self._told(until)
            if told.get("id") == self.count:
                assert "error" not in told, told["error"]
                return told["result"]
            self.events.append(told)

    def _told(self, until: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            if not select.select([self.into], [], [], max(0, until - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            more = os.read(self.into, 1 << 20)
            if not more:
                raise ConnectionError("the browser is gone")
            self.buffer += more
        told, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(told)

    def open(self, path: Path, **look: Any) -> Tab:
        """A page in a tab of its own, after its script has run."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, target, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            tab.call(f"{domain}.enable")
        tab.call("Performance.enable", timeDomain="threadTicks")
        tab.look(**look)
        tab.url = f"file://{path}"
        start = time.monotonic()
        tab.call("Page.navigate", url=tab.url)
        tab.until("document.documentElement?.dataset.ready === 'yes'")
        tab.seconds = time.monotonic() - start
        return tab

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        os.close(self.out)
        os.close(self.into)


class Tab:
    """One page: its state, and the actions of a user."""

    url = ""
    seconds = 0.0

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self.browser, self.target, self.session = browser, target, session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def look(self, width: int = 1360, height: int = 1000, dark: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def get(self, expression: str) -> Any:
        """The value of an expression; a promise is awaited."""
        how = {"returnByValue": True, "awaitPromise": True}
        told = self.call("Runtime.evaluate", expression=expression, **how)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def until(self, expression: str, seconds: float = 20) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.get(expression):
            if time.monotonic() > end:
                pytest.fail(f"never came true: {expression}")
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return str(self.get(f"document.querySelector({json.dumps(selector)}).textContent"))

    def click(self, selector: str) -> None:
        self.get(f"document.querySelector({json.dumps(selector)}).click()")

    def focus(self, selector: str) -> None:
        self.get(f"document.querySelector({json.dumps(selector)}).focus()")

    def point(self, selector: str, x: float, y: float) -> None:
        """Move the mouse to a point of an element, both coordinates from 0 to 1."""
        where = f"document.querySelector({json.dumps(selector)})"
        self.get(f"{where}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.get(f"{where}.getBoundingClientRect().toJSON()")
        at = {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        self.drawn()

    def press(self, *keys: str) -> None:
        codes = {"ArrowUp": 38, "ArrowDown": 40, "ArrowLeft": 37, "ArrowRight": 39, "Tab": 9}
        for key in keys:
            more = {"windowsVirtualKeyCode": codes.get(key, ord(key[0]))}
            if len(key) == 1:
                more["text"] = key  # type: ignore[assignment]
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **more)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.drawn()

    def drawn(self) -> None:
        """Wait for the frame that shows the last action, which a slow machine draws late."""
        frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        self.get(f"{frame}.then(() => true)")

    def spent(self) -> float:
        """Seconds that the page itself computed, whatever else the machine did meanwhile."""
        told = self.call("Performance.getMetrics")["metrics"]
        return next(each["value"] for each in told if each["name"] == "ThreadTime")

    def told(self, method: str) -> list[dict[str, Any]]:
        """The events of one kind since the page was opened."""
        self.get("1")
        return [
            event["params"]
            for event in self.browser.events
            if event.get("sessionId") == self.session and event["method"] == method
        ]

    def requests(self) -> list[str]:
        """Every address that was requested, except the page itself."""
        asked = [event["request"]["url"] for event in self.told("Network.requestWillBeSent")]
        return [url for url in asked if url != self.url]

    def complaints(self) -> list[str]:
        """Uncaught errors, and violations of the content security policy."""
        thrown = [str(each["exceptionDetails"]) for each in self.told("Runtime.exceptionThrown")]
        logged = [each["entry"] for each in self.told("Log.entryAdded")]
        return thrown + [each["text"] for each in logged if each["level"] == "error"]

    def picture(self, path: str | Path, whole: bool = False) -> None:
        told = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(told["data"]))

    def close(self) -> None:
        self.browser.call("Target.closeTarget", targetId=self.target)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of a process. Without one they are skipped, unless the variable
    HEED_BROWSER says that it is required."""
    missing = pytest.fail if os.environ.get("HEED_BROWSER") == "required" else pytest.skip
    if not BROWSER:
        missing("no browser: chromium or google-chrome")
    folder = Path(tempfile.mkdtemp(prefix="heed-browser-"))
    opened = Browser(folder)
    try:
        try:
            opened.call("Browser.getVersion")
        except (OSError, TimeoutError):
            missing("the browser does not run here")
        yield opened
    finally:
        opened.close()
        shutil.rmtree(folder, ignore_errors=True)
