"""A real browser for the few promises only a browser can show: Chromium, headless, spoken to over its debugging protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from websockets.asyncio.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """One tab. ``problems`` collects what the browser complains about: errors, refused sources, failed requests."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self.problems: list[str] = []

    async def listen(self) -> None:
        async for text in self._socket:
            message = json.loads(text)
            if "id" in message:
                self._answers.pop(message["id"]).set_result(message)
            elif message["method"] == "Page.loadEventFired":
                self._loaded.set()
            elif message["method"] == "Runtime.exceptionThrown":
                self.problems.append(json.dumps(message["params"]["exceptionDetails"]))
            elif message["method"] == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.problems.append(message["params"]["entry"]["text"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._answers[number] = answer = asyncio.get_running_loop().create_future()
        await self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        async with asyncio.timeout(40):
            message = await answer
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']['message']}")
        result: dict[str, Any] = message["result"]
        return result

    async def look_like(self, *, width: int, height: int, dark: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def open(self, url: str) -> None:
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(30):
            await self._loaded.wait()

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression is, a promise awaited."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until the expression holds; looked at whenever the page changes and every frame."""
        async with asyncio.timeout(30):
            await self.value(
                f"new Promise((done) => {{ const look = () => ({expression}) ? done(true) : setTimeout(look, 16); look(); }})"
            )

    async def screenshot(self, path: Path, *, full: bool = False) -> None:
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(shot["data"]))


@asynccontextmanager
async def a_page(profile: Path, cookies: list[dict[str, Any]]) -> AsyncIterator[Page]:
    """A fresh browser with these cookies."""
    assert CHROMIUM
    process = subprocess.Popen(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port = await _port(profile, process)
        async with connect(await _tab(port), max_size=None, proxy=None) as socket:
            page = Page(socket)
            listening = asyncio.create_task(page.listen())
            for domain in ("Page", "Runtime", "Log", "Network"):
                await page.call(f"{domain}.enable")
            for cookie in cookies:
                await page.call("Network.setCookie", **cookie)
            yield page
            listening.cancel()
    finally:
        process.terminate()
        process.wait(10)


async def _port(profile: Path, process: subprocess.Popen[bytes]) -> int:
    told = profile / "DevToolsActivePort"
    async with asyncio.timeout(60):
        while not told.exists() or not told.read_text().strip():
            if process.poll() is not None:
                raise RuntimeError(f"{CHROMIUM} ended with {process.returncode}")
            await asyncio.sleep(0.05)
    return int(told.read_text().splitlines()[0])


async def _tab(port: int) -> str:
    """The address of the first tab."""

    def ask() -> Any:
        with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=20) as answer:
            return json.loads(answer.read())

    tabs = await asyncio.to_thread(ask)
    address: str = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
    return address
