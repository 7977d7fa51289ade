"""The two doors to the hub: a websocket for the dashboard, server-sent events for programs.

Thin: authenticate, subscribe, copy.

Websocket: the client says ``{"subscribe": ["graph:7"], "since": 1234}`` (since may be null) and gets frames, then
``{"hello": seq}``, then live frames; or ``{"reset": seq}`` when since is too old. A new subscribe replaces the old one.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

from channels.generic.websocket import AsyncWebsocketConsumer

from forge_site.authentication import REALM, user_of_scope
from forge_site.hub import Hub, Message, SlowClient
from forge_site.problems import MEDIA_TYPE, problem
from forge_site.threads import first_of, in_thread
from forge_site.topics import EVERYTHING, Topic, parse_topics

logger = logging.getLogger("forge.feed")

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

UNAUTHENTICATED, NOT_UNDERSTOOD, TOO_SLOW = 4401, 4400, 4408  # private close codes; the client reconnects after 4408
PING_S = 15.0  # under the idle timeout of common proxies
RECHECK_S = 60.0  # how long a withdrawn token or a deactivated person may go on listening

hub = Hub()


async def until_withdrawn(scope: dict[str, Any]) -> None:
    """Returns once whoever opened the connection would not be let in any more."""
    while await in_thread(user_of_scope, scope):
        await asyncio.sleep(RECHECK_S)


class Feed(AsyncWebsocketConsumer):
    _copying: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Accepts first: a browser is not told why a handshake was refused, but sees the code of a close."""
        await self.accept()
        if await in_thread(user_of_scope, self.scope) is None:
            await self.close(UNAUTHENTICATED)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        try:
            topics, since = _parse(text_data or "")
        except ValueError:
            await self.close(NOT_UNDERSTOOD)
            return
        await self._stop()
        self._copying = asyncio.create_task(self._copy(topics, since), name="feed-copy")
        self._copying.add_done_callback(_note_failure)

    async def disconnect(self, code: int) -> None:
        await self._stop()

    async def _copy(self, topics: frozenset[Topic], since: int | None) -> None:
        watch = asyncio.create_task(until_withdrawn(self.scope))
        try:
            await first_of(asyncio.create_task(self._pump(topics, since)), watch)
            await self.close(UNAUTHENTICATED if watch.done() and not watch.cancelled() else None)
        except SlowClient:
            await self.close(TOO_SLOW)

    async def _pump(self, topics: frozenset[Topic], since: int | None) -> None:
        async with hub.subscribe(topics, since) as messages:
            async for message in messages:
                await self.send(text_data=message.text)

    async def _stop(self) -> None:
        if self._copying and not self._copying.done():
            self._copying.cancel()
            await asyncio.wait({self._copying})


def _parse(text: str) -> tuple[frozenset[Topic], int | None]:
    """Raises: ValueError"""
    wish = json.loads(text)
    if not isinstance(wish, dict) or not isinstance(wish.get("subscribe"), list):
        raise ValueError("no subscribe")
    since = wish.get("since")
    if since is not None and (not isinstance(since, int) or since < 0):
        raise ValueError("since is no sequence")
    return frozenset(Topic.parse(str(topic)) for topic in wish["subscribe"]), since


def _note_failure(task: asyncio.Task[None]) -> None:
    """A socket that vanished while something was sent to it is no news; whatever else ended a copy is in the log."""
    if not task.cancelled() and (error := task.exception()):
        logger.info("a feed socket ended", exc_info=error)


async def event_stream(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """``GET /api/v1/events/stream?topics=graph:7&since=1234``; ``Last-Event-ID`` wins over ``since``.

    Plain ASGI: inside Django's handler each open stream would hold a thread and a database connection.
    """
    if await in_thread(user_of_scope, scope) is None:
        await _refuse(scope, send, 401, "not_authenticated", "Send a bearer token, or sign in.")
        return
    try:
        topics, since = _query(scope)
    except ValueError as error:
        await _refuse(scope, send, 400, "invalid_input", f"{error}.")
        return
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    await _say(send, ": ok\n\n")  # Daphne holds the headers back until the first byte of the body
    try:
        await first_of(
            asyncio.create_task(_pump(topics, since, send)),
            asyncio.create_task(_ping(send)),
            asyncio.create_task(_until_hangup(receive)),
            asyncio.create_task(until_withdrawn(scope)),
        )
    except SlowClient:
        logger.info("a slow event stream was ended")
    await send({"type": "http.response.body", "body": b"", "more_body": False})


STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


async def _pump(topics: frozenset[Topic], since: int | None, send: Send) -> None:
    async with hub.subscribe(topics, since) as messages:
        async for message in messages:
            await _say(send, _as_event(message))


def _as_event(message: Message) -> str:
    name = "" if message.kind == "event" else f"event: {message.kind}\n"
    return f"{name}id: {message.seq}\ndata: {message.text}\n\n"


async def _ping(send: Send) -> None:
    while True:
        await asyncio.sleep(PING_S)
        await _say(send, ": ping\n\n")


async def _until_hangup(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _say(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


def _query(scope: dict[str, Any]) -> tuple[frozenset[Topic], int | None]:
    """Raises: ValueError, with what a person reads"""
    query = {name: values[-1] for name, values in parse_qs(scope["query_string"].decode("latin1")).items()}
    headers = {name: value.decode("latin1") for name, value in scope["headers"]}
    since = headers.get(b"last-event-id") or query.get("since")
    if since is not None and not since.isdecimal():
        raise ValueError("since is a sequence")
    topics = parse_topics(query["topics"]) if "topics" in query else frozenset({EVERYTHING})
    return topics, None if since is None else int(since)


async def _refuse(scope: dict[str, Any], send: Send, status: int, code: str, detail: str) -> None:
    headers = [(b"content-type", MEDIA_TYPE.encode())]
    if status == 401:
        headers.append((b"www-authenticate", REALM.encode()))
    body = json.dumps(problem(status, code, detail, instance=scope["path"])).encode()
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
