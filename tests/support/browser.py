"""A headless Chromium that tests drive through a pipe, with Chrome's DevTools protocol."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "about:blank")
_READY = "document.body?.dataset.ready === 'yes'"
_SECONDS = 60
"""Time after which a page that is not ready fails the test."""


class BrowserPage:
    """A tab of the browser. `messages` are those of its console, and its errors."""

    def __init__(self, sending: int, receiving: int) -> None:
        self._sending, self._receiving = sending, receiving
        self._last_id, self._session, self._unread = 0, "", b""
        self.messages: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._sending, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._read_message()
            if reply.get("id") == self._last_id:
                assert "error" not in reply, reply
                return reply["result"]
            if reply["method"] in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.messages.append(json.dumps(reply["params"]))

    def _read_message(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            part = os.read(self._receiving, 1 << 16)
            assert part, "the browser ended"
            self._unread += part
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def open(self, url: str, *, dark: bool = False, width: int = 1200) -> None:
        """Open a page of rtit and wait until it is shown."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + _SECONDS
        while not self.evaluate(_READY):
            assert time.monotonic() < deadline, (url, self.messages)
            time.sleep(0.02)

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression of JavaScript; a promise is awaited."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str, **more: Any) -> None:
        """Press and release a key."""
        codes = {"Tab": 9, "Enter": 13, "Home": 36, "ArrowRight": 39, "ArrowUp": 38}
        code = codes.get(key, ord(key[0]))
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        named = {"key": key, "code": key, "windowsVirtualKeyCode": code, **more}
        self.call("Input.dispatchKeyEvent", type="keyDown", **named, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserPage]:
    """Return an empty page of the browser; skip the test if Chromium is not installed."""
    with open_browser() as page:
        yield page


@contextmanager
def open_browser() -> Iterator[BrowserPage]:
    """Start Chromium with an empty page; skip the test if it is not installed."""
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed")
    (its_input, sending), (receiving, its_output) = os.pipe(), os.pipe()
    # Chromium reads from 3 and writes to 4
    high = [fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (its_input, its_output)]
    options = f"--remote-debugging-pipe {' '.join(_OPTIONS)} 3<&{high[0]} 4>&{high[1]}"
    with subprocess.Popen(
        ["/bin/bash", "-c", f"exec chromium {options} 2>/dev/null"], pass_fds=high
    ) as process:
        for each in (its_input, its_output, *high):
            os.close(each)
        try:
            yield BrowserPage(sending, receiving)
        finally:
            os.close(sending)
            os.close(receiving)
            process.terminate()
