"""A real browser for tests: Chromium without a window, driven by the DevTools protocol over a pipe (no port, no package)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--use-angle=swiftshader",  # WebGL without a graphics card
    "--enable-unsafe-swiftshader",
)
PATIENCE = 120.0
"""Seconds after which a browser that says nothing is taken to be gone."""


class Page:
    """One page in one browser; `events` holds all that the browser reported since it was opened."""

    def __init__(
        self, profile: Path, width: int = 1280, height: int = 900, *, dark: bool = False, touch: bool = False
    ) -> None:
        assert PROGRAM is not None
        ours, theirs = os.pipe(), os.pipe()
        command = f'exec "{PROGRAM}" "$@" 3<&{ours[0]} 4>&{theirs[1]}'
        self._browser = subprocess.Popen(
            ["bash", "-c", command, "chromium", *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(ours[0], theirs[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._write, self._read = ours[1], theirs[0]
        self._rest, self._number, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height, touch=touch)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call(
            "Emulation.setEmulatedMedia", features=[scheme, {"name": "prefers-reduced-motion", "value": "reduce"}]
        )

    def __enter__(self) -> Page:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._write)  # the end of its commands is the end of the browser
        try:
            self._browser.wait(10)
        except subprocess.TimeoutExpired:
            self._browser.kill()
            self._browser.wait()
        os.close(self._read)

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """One command and its answer; events that come between are kept."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._message(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self.events.append(answer)

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert time.monotonic() < deadline, "the browser does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has ended"
            self._rest += piece
        first, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(first))

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a file and wait until it has loaded."""
        before = len(self.events)
        self.call("Page.navigate", url=path.resolve().as_uri() + fragment)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events[before:]):
            self.evaluate("new Promise((done) => requestAnimationFrame(() => done(0)))")

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page; promises are waited for."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> Any:
        """Until an expression is true in the page, however long that takes; its value."""
        deadline = time.monotonic() + PATIENCE
        while not (value := self.evaluate(f"new Promise((done) => setTimeout(() => done({condition}), 20))")):
            assert time.monotonic() < deadline, f"never held: {condition}"
        return value

    def click(self, x: float, y: float, ready: str = "true") -> None:
        """Move the mouse there, and when the page is ready for it press and release."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.wait(ready)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def resize(self, width: int, height: int, *, touch: bool = False) -> None:
        """The size of the window."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)

    def screenshot(self, path: Path) -> Path:
        """A picture of the window."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
        return path

    def screenshots(self, folder: Path, name: str, height: int = 2400) -> list[Path]:
        """Pictures of the whole page from top to bottom, in pieces: one of all of it would exceed what a texture holds."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for number, top in enumerate(range(0, int(size["height"]), height)):
            clip = {"x": 0, "y": top, "width": size["width"], "height": min(height, size["height"] - top), "scale": 1}
            answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
            paths.append(folder / f"{name}-{number:02d}.png")
            paths[-1].write_bytes(base64.b64decode(answer["data"]))
        return paths

    def pdf(self, path: Path) -> Path:
        """The page as it is printed."""
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))
        return path

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and what the security policy has refused."""
        found = []
        for event in self.events:
            kind, params = event.get("method"), event.get("params", {})
            if kind == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"])[:500])
            elif kind == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(params["args"])[:500])
            elif kind == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(json.dumps(params["entry"])[:500])
        return found

    @property
    def requests(self) -> list[str]:
        """Addresses that the page asked for, other than itself and what it holds."""
        addresses = [
            e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"
        ]
        return [address for address in addresses if not address.startswith(("data:", "blob:", "file:", "about:"))]
