"""The live feed: one hub per web process tails the journal while somebody listens and hands out every event.

The journal is gapless and ordered by commit, so a sequence is a place in it, and a client that names the last sequence
it has seen gets the rest exactly once, in order. No listener, no query. The channel layer carries nothing.

A subscriber pulls: replay comes from the table at its own pace; live frames wait in a bounded queue, and who lets that
overflow is ended (``SlowClient``) and resumes by sequence. So nobody can slow down or break the tail for others.

Source: the facts on live feeds (live-mcp.md 2.1 to 2.4); its traps are tests in tests/forge_site/test_hub.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db import Error, connection
from django.db.models import Min

from core import journal, wake
from core.models import Event
from forge_site import selectors
from forge_site.topics import EVERYTHING, Topic
from graphs.models import Node

R = TypeVar("R")

logger = logging.getLogger("forge.feed")

CHUNK = 500  # events per read
QUEUE_LIMIT = 1_000  # live frames that wait for one subscriber
MAX_REPLAY = 50_000  # who is further behind reads the lists again
POLL_S = 1.0  # wake-ups may be lost; this is how long that can cost
NODES_REMEMBERED = 100_000


class SlowClient(Exception):
    """The subscriber did not keep up. Its last sequence is a good place to resume from."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One event, serialised once for everybody."""

    seq: int
    topics: frozenset[Topic]
    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """What a subscriber gets. kind: `event`, `hello` (the past is told up to seq) or `reset` (too old, read again)."""

    kind: str
    seq: int
    text: str

    @classmethod
    def control(cls, kind: str, seq: int) -> Message:
        return cls(kind, seq, json.dumps({kind: seq}))


class JournalReader:
    """The hub's reads, always called on its one thread."""

    def __init__(self) -> None:
        self._graph_of_node: dict[int, int] = {}

    def head(self) -> int:
        return selectors.journal_head()

    def bounds(self) -> tuple[int, int]:
        """The oldest sequence that is kept and the newest."""
        head = self.head()
        oldest: int | None = Event.objects.aggregate(oldest=Min("seq"))["oldest"]
        return (head + 1 if oldest is None else oldest), head

    def after(self, seq: int) -> list[Frame]:
        rows = list(Event.objects.filter(seq__gt=seq).order_by("seq")[:CHUNK])
        self._learn_graphs({node for row in rows if (node := _node_of(row)) is not None})
        return [Frame(row.seq, self._topics(row), _text(row)) for row in rows]

    def _topics(self, event: Event) -> frozenset[Topic]:
        graph = event.data.get("graph")
        node = _node_of(event)
        if not isinstance(graph, int) and node is not None:
            graph = self._graph_of_node.get(node)
        if not isinstance(graph, int) and event.subject.startswith("graph:"):
            graph = int(event.subject.partition(":")[2])
        topics = {EVERYTHING}
        if event.project_id is not None:
            topics.add(Topic("project", event.project_id))
        if isinstance(graph, int):
            topics.add(Topic("graph", graph))
        return frozenset(topics)

    def _learn_graphs(self, nodes: set[int]) -> None:
        """Jobs and attempts know their owner, `node:42`, but no graph. A node never changes it, so it is asked once."""
        if unknown := nodes - self._graph_of_node.keys():
            if len(self._graph_of_node) > NODES_REMEMBERED:
                self._graph_of_node.clear()
                unknown = nodes
            self._graph_of_node.update(Node.objects.filter(pk__in=unknown).values_list("pk", "graph"))


def _node_of(event: Event) -> int | None:
    for subject in (event.subject, event.data.get("owner")):
        if isinstance(subject, str) and subject.startswith("node:"):
            return int(subject.partition(":")[2])
    return None


def _text(event: Event) -> str:
    return json.dumps(
        {
            "seq": event.seq,
            "at": event.at.isoformat(),
            "project": event.project_id,
            "subject": event.subject,
            "kind": event.kind,
            "actor": event.actor,
            "data": event.data,
        },
        separators=(",", ":"),
    )


class Subscription:
    """One listener's place in the journal. The tail offers, the listener pulls."""

    def __init__(self, hub: Hub, topics: frozenset[Topic]) -> None:
        self._hub, self._topics = hub, topics
        self._queue: deque[Frame] = deque()
        self._news = asyncio.Event()
        self._overflowed = False
        self._ended = False
        self.last = 0  # everything up to here has been handed out or did not concern this listener

    def offer(self, frame: Frame) -> None:
        """By the tail, which must not wait: a full queue is dropped, and the listener finds out when it pulls."""
        if self._overflowed or not frame.topics & self._topics:
            return
        if len(self._queue) >= QUEUE_LIMIT:
            self._queue.clear()
            self._overflowed = True
        else:
            self._queue.append(frame)
        self._news.set()

    def end(self) -> None:
        """By the hub, when it cannot go on."""
        self._ended = True
        self._news.set()

    async def messages(self, since: int | None) -> AsyncGenerator[Message, None]:
        """Raises: SlowClient"""
        head = await self._hub.follow()
        if since is None:
            self.last = head
        elif not await self._hub.can_replay(since):
            yield Message.control("reset", head)
            return
        else:
            self.last = since
            async for message in self._replay():
                yield message
        yield Message.control("hello", self.last)
        async for message in self._live():
            yield message

    async def _replay(self) -> AsyncIterator[Message]:
        """From the table until its end. The tail offers meanwhile; what overflows the queue is in the table as well."""
        while True:
            self._overflowed = False
            frames = await self._hub.read(self._hub.reader.after, self.last)
            for frame in frames:
                self.last = frame.seq
                if frame.topics & self._topics:
                    yield Message("event", frame.seq, frame.text)
            if len(frames) < CHUNK and not self._overflowed:
                return

    async def _live(self) -> AsyncIterator[Message]:
        while not self._ended:
            while self._queue:
                frame = self._queue.popleft()
                if frame.seq > self.last:  # the replay may have read ahead of the tail
                    self.last = frame.seq
                    yield Message("event", frame.seq, frame.text)
            if self._overflowed:
                raise SlowClient
            self._news.clear()
            await self._news.wait()


class Hub:
    """All subscriptions of this process and the one tail that serves them."""

    def __init__(self) -> None:
        self.reader = JournalReader()
        self.reads = 0  # for the tests: no listener, no query
        self._subscriptions: set[Subscription] = set()
        self._pool = ThreadPoolExecutor(1, "feed")  # of our own: never behind somebody's slow query
        self._starting = asyncio.Lock()
        self._tail: asyncio.Task[None] | None = None
        self._head = 0  # the tail has offered everything up to here

    @asynccontextmanager
    async def subscribe(
        self, topics: Iterable[Topic], since: int | None = None
    ) -> AsyncIterator[AsyncIterator[Message]]:
        """Events after ``since`` (None: from now on), then `hello`, then what happens."""
        subscription = Subscription(self, frozenset(topics))
        self._subscriptions.add(subscription)
        try:
            async with aclosing(subscription.messages(since)) as messages:
                yield messages
        finally:
            self._subscriptions.discard(subscription)
            if not self._subscriptions and self._tail:
                self._tail.cancel()

    async def follow(self) -> int:
        """The place of the running tail; starts one where none runs.

        Only while no tail runs, and under a lock, is the place read from the table: two first subscribers would else
        each set it, and what was committed in between reached neither.
        """
        async with self._starting:
            if self._tail is not None and (self._tail.done() or self._tail.cancelling()):
                await asyncio.wait({self._tail})
                self._tail = None
            if self._tail is None:
                self._head = await self.read(self.reader.head)
                self._tail = asyncio.create_task(self._run(), name="feed-tail")
                self._tail.add_done_callback(self._tail_ended)
            return self._head

    async def can_replay(self, since: int) -> bool:
        """Whether nothing after ``since`` has been removed, ``since`` exists, and the way is not too long."""
        oldest, head = await self.read(self.reader.bounds)
        return oldest - 1 <= since <= head <= since + MAX_REPLAY

    async def read(self, query: Callable[..., R], *args: Any) -> R:
        """One read on the hub's thread. A connection that broke while it was idle is replaced once."""
        self.reads += 1

        def call() -> R:
            try:
                return query(*args)
            except Error:
                connection.close()
                return query(*args)

        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def close(self) -> None:
        """End all listeners and the tail, and give the connection back."""
        for subscription in self._subscriptions:
            subscription.end()
        if self._tail:
            self._tail.cancel()
            await asyncio.wait({self._tail})
        await asyncio.get_running_loop().run_in_executor(
            self._pool, lambda: connection.close()
        )  # the one of that thread
        self._pool.shutdown(wait=False)

    async def _run(self) -> None:
        async with Doorbell() as doorbell:
            while True:
                try:
                    await self._offer_news()
                except Error:  # the database is away: readers wait, as they would for an event
                    logger.warning("the journal cannot be read, trying again", exc_info=True)
                await doorbell.wait(POLL_S)

    async def _offer_news(self) -> None:
        while True:
            frames = await self.read(self.reader.after, self._head)
            for frame in frames:
                for subscription in self._subscriptions:
                    subscription.offer(frame)
                self._head = frame.seq
            if len(frames) < CHUNK:
                return

    def _tail_ended(self, tail: asyncio.Task[None]) -> None:
        """A tail that died of our own bug leaves no listener waiting for ever: they come back and start a new one."""
        if not tail.cancelled() and (error := tail.exception()):
            logger.error("the tail of the journal ended", exc_info=error)
            for subscription in self._subscriptions:
                subscription.end()


class Doorbell:
    """Rings when the journal may have grown: datagrams from this host, NOTIFY from others. Both may be lost."""

    async def __aenter__(self) -> Doorbell:
        self._rung = asyncio.Event()
        self._stack = AsyncExitStack()
        loop = asyncio.get_running_loop()
        socket = self._stack.enter_context(wake.WakeSocket("feed"))
        loop.add_reader(socket.fileno(), self._on_datagram, socket)
        self._stack.callback(loop.remove_reader, socket.fileno())
        if connection.vendor == "postgresql":
            listening = asyncio.create_task(self._listen(), name="feed-listen")
            self._stack.callback(listening.cancel)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def wait(self, at_most_s: float) -> None:
        try:
            async with asyncio.timeout(at_most_s):
                await self._rung.wait()
        except TimeoutError:
            pass
        self._rung.clear()

    def _on_datagram(self, socket: wake.WakeSocket) -> None:
        if wake.JOURNAL in socket.drain():
            self._rung.set()

    async def _listen(self) -> None:
        """Needs a session of its own to the server itself; a pooler that shares sessions would lose the LISTEN."""
        import psycopg  # of the PostgreSQL profile alone

        parameters = {
            name: value
            for name, value in connection.get_connection_params().items()
            if name not in ("context", "cursor_factory")  # Django's, for synchronous connections
        }
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(**parameters, autocommit=True) as listener:
                    await listener.execute(f"LISTEN {journal.CHANNEL}")
                    self._rung.set()  # what was said before the LISTEN
                    async for _ in listener.notifies():
                        self._rung.set()
            except psycopg.Error:
                logger.info("LISTEN broke, polling until it is back", exc_info=True)
            await asyncio.sleep(POLL_S)
