"""A headless Chromium, driven over its own pipe: JSON messages that end in NUL, on file descriptors 3 and 4.

https://chromedevtools.github.io/devtools-protocol/ — no driver program and no package stands between.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# Debian's name first; CHROMIUM names another.
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_MOVE = "import os, sys; [os.dup2(int(sys.argv[n]), n + 2) for n in (1, 2)]; os.execv(sys.argv[3], sys.argv[3:])"
WAIT_S = 20.0  # a cold start on a busy machine takes a few seconds


class PageFailed(AssertionError):
    """The page did not load, or a script in it threw."""


def find() -> str | None:
    """Return the path of a Chromium on this machine, or None."""
    return os.environ.get("CHROMIUM") or next((path for name in _NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one page. `problems` collects console errors, CSP violations and failed requests."""

    def __init__(self, *, executable: str, profile: Path) -> None:
        self.problems: list[str] = []
        self._events: list[dict[str, Any]] = []
        self._buffer = b""
        self._next_id = 0
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # The browser talks over 3 and 4, which are somebody else's here; so its own process moves them there.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_browser, from_browser)]
        moving = [sys.executable, "-c", _MOVE, *map(str, ends), executable]
        self._process = subprocess.Popen(
            [*moving, *_FLAGS, f"--user-data-dir={profile}"],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in ends:
            os.close(end)
        os.close(to_browser)
        os.close(from_browser)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session: str | None = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(PageFailed):
            self._call("Browser.close")
        try:
            self._process.wait(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the page and return its result."""
        return self._call(method, session=self._session, **params)

    def open(self, url: str) -> None:
        """Go to an address and wait until the page has loaded."""
        self._events.clear()
        answer = self.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise PageFailed(f"{url}: {answer['errorText']}")
        self.wait_for("Page.loadEventFired")

    def click(self, selector: str) -> None:
        """Click what leads to another page, and wait until that has loaded."""
        self._events.clear()
        self.run(f"document.querySelector({json.dumps(selector)}).click()")
        self.wait_for("Page.loadEventFired")

    def follow(self, text: str) -> None:
        """Click the first link that reads so."""
        found = f"[...document.querySelectorAll('#content a')].find(a => a.textContent.trim() === {json.dumps(text)})"
        if not self.run(f"!!{found}"):
            raise PageFailed(f"there is no link {text!r}")
        self._events.clear()
        self.run(f"{found}.click()")
        self.wait_for("Page.loadEventFired")

    def fill(self, values: dict[str, str]) -> None:
        """Set form fields, as {selector: value}."""
        for selector, value in values.items():
            self.run(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(value)}")

    def clear_cookies(self) -> None:
        self.call("Network.clearBrowserCookies")

    def run(self, script: str) -> Any:
        """Return what an expression of JavaScript evaluates to. (A page's CSP doesn't bind the debugger.)"""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise PageFailed(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def text(self, selector: str = "body") -> str:
        """Return the text that a reader sees."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def look(self, *, width: int, dark: bool) -> None:
        """Make the window this wide (CSS pixels), light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)

    def screenshot(self, path: Path) -> None:
        """Write the whole page, not only the window, as PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(answer["data"]))

    def set_cookie(self, url: str, name: str, value: str) -> None:
        self.call("Network.setCookie", url=url, name=name, value=value)

    def wait_for(self, event: str) -> None:
        """Wait for an event since the last navigation."""
        deadline = time.monotonic() + WAIT_S
        while not any(seen["method"] == event for seen in self._events):
            self._receive(deadline)

    def _call(self, method: str, *, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._next_id += 1
        request: dict[str, Any] = {"id": self._next_id, "method": method, "params": params}
        if session is not None:
            request["sessionId"] = session
        os.write(self._out, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + WAIT_S
        while True:
            message = self._receive(deadline)
            if message.get("id") == request["id"]:
                if "error" in message:
                    raise PageFailed(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result

    def _receive(self, deadline: float) -> dict[str, Any]:
        """Return the next message; note it if it is an event."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise PageFailed("the browser did not answer in time")
            chunk = os.read(self._in, 1 << 16)
            if not chunk:
                raise PageFailed("the browser ended")
            self._buffer += chunk
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        if "method" in message:
            self._events.append(message)
            self._note(message)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        params = event["params"]
        match event["method"]:
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "assert"):
                self.problems.append(f"console: {params['args']}")
            case "Runtime.exceptionThrown":
                self.problems.append(f"thrown: {params['exceptionDetails'].get('text')}")
