"""The web process: one Daphne server that says when it is ready, holds slow readers back, and ends when it is told."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from daphne.endpoints import build_endpoint_description_strings
from daphne.server import Server
from django.conf import settings
from django.db import connections
from twisted.internet import defer

from core.files import write_atomically
from core.home import home
from forge_site.runtime import parse_bind

logger = logging.getLogger("forge.web")

STOP_WITHIN_S = 1.0  # for requests and sockets that are open when the process is told to end
STALLED_S = 30.0  # a client that takes nothing for so long is gone
LOOK_AGAIN_S = 0.02


class ForgeServer(Server):
    """Daphne with write back-pressure and an end that does not wait for anybody."""

    async def handle_reply(self, protocol: Any, message: dict[str, Any]) -> None:
        """Send, and return when the client has taken most of it.

        Daphne alone buffers without limit: a dashboard on a sleeping laptop would grow this process for ever. So an
        application notices that its client is slow, and the hub's bounded queue does the rest.
        """
        await super().handle_reply(protocol, message)
        transport = _transport(protocol)
        give_up = time.monotonic() + STALLED_S
        while transport is not None and transport.connected and transport._isSendBufferFull():
            if time.monotonic() > give_up:
                transport.abortConnection()
                return
            await asyncio.sleep(LOOK_AGAIN_S)

    def kill_all_applications(self) -> defer.Deferred[None]:
        """Before the shutdown: every open socket and request is cancelled and gets a moment to clean up.

        Daphne's own version waits without limit, and fails on a connection whose application has already ended.
        """
        works = [
            details["application_instance"]
            for details in self.connections.values()
            if "application_instance" in details
        ]
        for work in works:
            work.cancel()
        return defer.Deferred.fromFuture(asyncio.ensure_future(_settle(works)))


async def _settle(works: list[asyncio.Future[None]]) -> None:
    if works:
        await asyncio.wait(works, timeout=STOP_WITHIN_S)


def _transport(protocol: Any) -> Any:
    """The TCP connection under an HTTP request or a websocket; None once it is closed."""
    channel = getattr(protocol, "channel", None)
    return getattr(channel if channel is not None else protocol, "transport", None)


def web_file() -> Path:
    """Where this host's web process says how to reach it."""
    return home().root / "web.json"


def serve(bind: str) -> None:
    """Serve until SIGTERM or SIGINT. Writes ``web.json`` once the socket listens, removes it at the end."""
    from forge_site.asgi import application

    _end_connections_with_their_request()
    host, port = parse_bind(bind)
    server: ForgeServer = ForgeServer(
        application=application,
        endpoints=build_endpoint_description_strings(host=_escaped(host), port=port),
        ready_callable=lambda: _announce(server),
        verbosity=0,
        server_name="",
    )
    server.run()
    web_file().unlink(missing_ok=True)
    if not server.listening_addresses:
        raise SystemExit(1)


def _escaped(host: str) -> str:
    return host.replace(":", r"\:")


def _announce(server: ForgeServer) -> None:
    host, port = server.listening_addresses[0]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    facts = {
        "host": host,
        "port": port,
        "url": f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/",
        "pid": os.getpid(),
        "startedAt": datetime.now(UTC).isoformat(),
    }
    home().root.mkdir(parents=True, exist_ok=True)
    write_atomically(web_file(), json.dumps(facts).encode() + b"\n")
    logger.info("listening on %s", facts["url"])


def _end_connections_with_their_request() -> None:
    """Each request runs on a thread of its own here: a connection kept for the next one would only be left behind."""
    connections.settings["default"]["CONN_MAX_AGE"] = 0


def default_bind() -> str:
    bind: str = settings.FORGE_BIND
    return bind
