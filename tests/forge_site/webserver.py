"""A real web process (``forge serve``) on the database of the test run, and clients that talk to it over sockets."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from urllib.parse import quote

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, connections
from django.test import Client
from websockets.asyncio.client import ClientConnection, connect

P = ParamSpec("P")
R = TypeVar("R")

START_WITHIN_S = 60.0


def database_url() -> str:
    """How another process reaches the very database this test uses."""
    facts = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{facts['NAME']}"
    secret = f":{quote(facts['PASSWORD'])}" if facts["PASSWORD"] else ""
    return f"postgres://{facts['USER']}{secret}@{facts['HOST']}:{facts['PORT']}/{facts['NAME']}"


def environment(home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "forge_site.settings",
        "DATABASE_URL": database_url(),
        "FORGE_HOME": str(home),
        "FORGE_SECRET_KEY": settings.SECRET_KEY,
        "FORGE_LOG_LEVEL": "INFO",
    }


@dataclass
class Web:
    """A running ``forge serve``."""

    process: subprocess.Popen[bytes]
    home: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.home / "web.log").read_text()

    def connect(self, session: str | None = None, *, origin: str | None = None, **options: Any) -> connect:
        cookie = {"Cookie": f"{settings.SESSION_COOKIE_NAME}={session}"} if session else {}
        return connect(
            f"ws://127.0.0.1:{self.port}/ws/feed",
            origin=origin or self.url,  # type: ignore[arg-type]
            additional_headers=cookie,
            proxy=None,
            **{"max_queue": None, **options},  # else a client that leaves with frames unread waits long for its close
        )

    def stop(self) -> None:
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.process.kill()
        self.process.wait()


def start(home: Path) -> Web:
    """Start it on a free port and wait until it listens."""
    home.mkdir(parents=True, exist_ok=True)
    log = (home / "web.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "django", "serve", "--bind", "127.0.0.1:0"],
        env=environment(home),
        cwd=settings.BASE_DIR,
        stdout=log,
        stderr=log,
    )
    log.close()
    facts = _facts_when_there(home / "web.json", process)
    return Web(process, home, facts["port"])


def _facts_when_there(path: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Waits on the process, not on the clock: its end is seen at once, its file every few milliseconds."""
    fd = os.pidfd_open(process.pid)
    try:
        for _ in range(int(START_WITHIN_S / 0.02)):
            if path.exists():
                facts: dict[str, Any] = json.loads(path.read_text())
                return facts
            if select.select([fd], [], [], 0.02)[0]:
                break
    finally:
        os.close(fd)
    raise AssertionError(f"no web process: {(path.parent / 'web.log').read_text()}")


def session_of(user: User) -> str:
    client = Client()
    client.force_login(user)
    return client.cookies[settings.SESSION_COOKIE_NAME].value


async def in_database_thread(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Database work of an async test, leaving no connection behind that would keep the test database."""

    def call() -> R:
        try:
            return work(*args, **kwargs)
        finally:
            connections.close_all()

    return await asyncio.to_thread(call)


async def subscribe(socket: ClientConnection, since: int | None = None, *topics: str) -> None:
    await socket.send(json.dumps({"subscribe": list(topics) or ["*"], "since": since}))


async def frame(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(20):
        message: dict[str, Any] = json.loads(await socket.recv())
        return message
