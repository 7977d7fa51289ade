"""The hub: the promises of the feed, without sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from django.db import OperationalError

from core.models import Event
from forge_site import hub as hub_module
from forge_site.hub import Frame, Hub, Message, SlowClient
from forge_site.topics import EVERYTHING, Topic, parse_topics
from tests.factories import EventCounterFactory, GraphFactory, NodeFactory, ProjectFactory
from tests.forge_site.conftest import happen
from tests.forge_site.webserver import in_database_thread

pytestmark = pytest.mark.django_db(transaction=True)

ALL = [EVERYTHING]


@pytest.fixture(autouse=True)
def _journal(transactional_db: None, tmp_path: Any, settings: Any) -> None:
    settings.FORGE_HOME = tmp_path
    EventCounterFactory.create()


@asynccontextmanager
async def a_hub() -> AsyncIterator[Hub]:
    hub = Hub()
    try:
        yield hub
    finally:
        await hub.close()


def in_hub(scenario: Callable[[Hub], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), a_hub() as hub:
            await scenario(hub)

    asyncio.run(run())


async def write(times: int = 1, **facts: Any) -> None:
    await in_database_thread(happen, times=times, **facts)


async def take(messages: AsyncIterator[Message], number: int) -> list[Message]:
    return [await anext(messages) for _ in range(number)]


def seqs(messages: list[Message]) -> list[int]:
    return [message.seq for message in messages if message.kind == "event"]


@pytest.mark.req("PL-06")
def test_the_past_comes_first_then_hello_then_what_happens() -> None:
    happen(times=3)

    async def scenario(hub: Hub) -> None:
        async with hub.subscribe(ALL, since=1) as messages:
            past = await take(messages, 3)
            await write()
            live = await take(messages, 1)

        assert [(m.kind, m.seq) for m in past + live] == [("event", 2), ("event", 3), ("hello", 3), ("event", 4)]
        assert json.loads(past[2].text) == {"hello": 3}
        assert json.loads(live[0].text).items() >= {"seq": 4, "kind": "node.running", "subject": "node:1"}.items()

    in_hub(scenario)


def test_from_now_on_means_nothing_of_the_past() -> None:
    happen(times=3)

    async def scenario(hub: Hub) -> None:
        async with hub.subscribe(ALL) as messages:
            assert (await anext(messages)).kind == "hello"
            await write()
            assert seqs(await take(messages, 1)) == [4]

    in_hub(scenario)


def test_a_replay_longer_than_one_read_is_whole_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "CHUNK", 4)
    happen(times=21)

    async def scenario(hub: Hub) -> None:
        async with hub.subscribe(ALL, since=0) as messages:
            assert seqs(await take(messages, 22)) == list(range(1, 22))

    in_hub(scenario)


def test_what_the_replay_read_ahead_of_the_tail_is_not_told_twice() -> None:
    happen(times=2)

    async def scenario(hub: Hub) -> None:
        async with hub.subscribe(ALL, since=0) as messages:
            assert seqs(await take(messages, 3)) == [1, 2]
            for frame in await hub.read(hub.reader.after, 0):  # the tail gets there only now
                for subscription in hub._subscriptions:
                    subscription.offer(frame)
            await write()
            assert seqs(await take(messages, 1)) == [3]

    in_hub(scenario)


def test_events_that_come_while_a_listener_is_told_the_past_are_neither_lost_nor_doubled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when they overflow its queue meanwhile: they are in the table as well."""
    monkeypatch.setattr(hub_module, "CHUNK", 5)
    monkeypatch.setattr(hub_module, "QUEUE_LIMIT", 3)
    happen(times=7)

    async def scenario(hub: Hub) -> None:
        async with hub.subscribe(ALL) as watcher, hub.subscribe(ALL, since=0) as messages:
            await anext(watcher)
            told = await take(messages, 6)  # within the last read, which is short
            for _ in range(10):
                await write()
                await anext(watcher)  # so the tail has offered it
            told += await take(messages, 12)

            assert seqs(told) == list(range(1, 18))
            assert told[-1].kind == "hello"

    in_hub(scenario)


def test_two_first_listeners_at_once_lose_nothing() -> None:
    async def scenario(hub: Hub) -> None:
        async def listen(started: asyncio.Event) -> list[int]:
            async with hub.subscribe(ALL) as messages:
                await anext(messages)
                started.set()
                return seqs(await take(messages, 3))

        read_head, reading = hub.reader.head, []

        def counted_head() -> int:
            reading.append(1)
            return read_head()

        hub.reader.head = counted_head  # type: ignore[method-assign]
        starts = [asyncio.Event(), asyncio.Event()]
        listeners = [asyncio.create_task(listen(start)) for start in starts]
        for start in starts:
            await start.wait()
        await write(times=3)

        assert await asyncio.gather(*listeners) == [[1, 2, 3], [1, 2, 3]]
        assert len(reading) == 1

    in_hub(scenario)


def test_a_listener_that_comes_while_the_last_one_leaves_loses_nothing() -> None:
    async def scenario(hub: Hub) -> None:
        expected = 0
        for _ in range(10):
            async with hub.subscribe(ALL) as messages:
                await anext(messages)
            async with hub.subscribe(ALL) as messages:  # the tail of the one before is just being cancelled
                assert (await anext(messages)).seq == expected
                await write()
                expected += 1
                assert seqs(await take(messages, 1)) == [expected]

    in_hub(scenario)


def test_a_slow_listener_is_ended_and_resumes_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "QUEUE_LIMIT", 5)

    async def scenario(hub: Hub) -> None:
        async with hub.subscribe(ALL) as quick, hub.subscribe(ALL) as slow:
            await anext(quick)
            await anext(slow)
            await write(times=2)
            seen = seqs(await take(quick, 2)) and seqs(await take(slow, 2))
            for _ in range(6):
                await write()
                await anext(quick)

            with pytest.raises(SlowClient):
                await anext(slow)
        async with hub.subscribe(ALL, since=seen[-1]) as resumed:
            seen += seqs(await take(resumed, 7))

        assert seen == list(range(1, 9))

    in_hub(scenario)


def test_a_listener_that_breaks_does_not_break_the_others() -> None:
    async def scenario(hub: Hub) -> None:
        async def broken() -> None:
            async with hub.subscribe(ALL) as messages:
                async for message in messages:
                    if message.kind == "event":
                        raise ConnectionResetError

        async with hub.subscribe(ALL) as messages:
            await anext(messages)
            failing = asyncio.create_task(broken())
            await asyncio.wait({failing}, timeout=0.2)
            await write(times=3)

            assert seqs(await take(messages, 3)) == [1, 2, 3]
            with pytest.raises(ConnectionResetError):
                await failing

    in_hub(scenario)


def test_the_tail_survives_a_database_that_is_away_for_a_while() -> None:
    async def scenario(hub: Hub) -> None:
        async with hub.subscribe(ALL) as messages:
            await anext(messages)
            read, failures = hub.reader.after, iter([1, 1, 1])  # one read, and its second try on a fresh connection

            def failing(seq: int) -> list[Frame]:
                if next(failures, None):
                    raise OperationalError("the database is away")
                return read(seq)

            hub.reader.after = failing  # type: ignore[method-assign]
            await write(times=2)

            assert seqs(await take(messages, 2)) == [1, 2]

    in_hub(scenario)


def test_nobody_listens_nothing_is_read() -> None:
    async def scenario(hub: Hub) -> None:
        async with hub.subscribe(ALL) as messages:
            await anext(messages)
        tail = hub._tail
        assert tail
        await asyncio.wait({tail})
        before = hub.reads
        await write(times=5)

        assert hub.reads == before
        assert tail.cancelled()

    in_hub(scenario)


def test_an_event_is_serialised_once_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    made, text = [], hub_module._text

    def counted(event: Event) -> str:
        made.append(event.seq)
        return text(event)

    monkeypatch.setattr(hub_module, "_text", counted)

    async def scenario(hub: Hub) -> None:
        async with hub.subscribe(ALL) as one, hub.subscribe(ALL) as two, hub.subscribe(ALL) as three:
            for messages in (one, two, three):
                await anext(messages)
            await write(times=2)
            for messages in (one, two, three):
                assert seqs(await take(messages, 2)) == [1, 2]
        assert made == [1, 2]

    in_hub(scenario)


@pytest.mark.parametrize("since", [0, 99], ids=["older than what is kept", "from another journal"])
def test_a_place_that_cannot_be_resumed_from_is_reset(since: int) -> None:
    happen(times=4)
    Event.objects.filter(seq__lte=2).delete()

    async def scenario(hub: Hub) -> None:
        async with hub.subscribe(ALL, since=since) as messages:
            told = [message async for message in messages]
        assert [(m.kind, json.loads(m.text)) for m in told] == [("reset", {"reset": 4})]

    in_hub(scenario)


def test_who_is_too_far_behind_is_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "MAX_REPLAY", 3)
    happen(times=5)

    async def scenario(hub: Hub) -> None:
        async with hub.subscribe(ALL, since=1) as messages:
            assert (await anext(messages)).kind == "reset"
        async with hub.subscribe(ALL, since=2) as messages:
            assert seqs(await take(messages, 4)) == [3, 4, 5]

    in_hub(scenario)


@pytest.mark.req("PL-06")
def test_a_graphs_topic_carries_all_that_concerns_it_and_nothing_else() -> None:
    graph = GraphFactory.create()
    node = NodeFactory.create(graph=graph)
    other = NodeFactory.create(graph__project=graph.project)
    happen(subject=graph.subject, kind="graph.admitted", project=graph.project)
    happen(subject=node.subject, project=graph.project, graph=graph.pk)
    happen(subject=node.subject, project=graph.project)  # without data: the hub knows whose node it is
    happen(subject="attempt:5", kind="attempt.running", project=graph.project, owner=node.subject)
    happen(subject=other.subject, project=graph.project)
    happen(subject="project:1", kind="project.frozen", project=ProjectFactory.create())

    async def scenario(hub: Hub) -> None:
        async def told(topics: str) -> list[int]:
            async with hub.subscribe(parse_topics(topics), since=0) as messages:
                seen: list[int] = []
                async for message in messages:
                    if message.kind == "hello":
                        return seen
                    seen.append(message.seq)
            raise AssertionError("no hello")

        assert await told(f"graph:{graph.pk}") == [1, 2, 3, 4]
        assert await told(f"project:{graph.project_id}") == [1, 2, 3, 4, 5]
        assert await told("*") == [1, 2, 3, 4, 5, 6]
        assert await told(f"graph:{other.graph_id},graph:{graph.pk}") == [1, 2, 3, 4, 5]

    in_hub(scenario)


@pytest.mark.parametrize("text", ["", "graph", "graph:", "graph:x", "*:1", "node:1", "graph:1,,"])
def test_what_is_no_topic_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no topic"):
        parse_topics(text)


def test_a_topic_reads_as_it_is_written() -> None:
    assert str(Topic.parse("graph:7")) == "graph:7"
    assert str(EVERYTHING) == "*"
