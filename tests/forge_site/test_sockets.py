"""The feed over real sockets: a real web process, other processes that write, clients that come and go."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.factories import AccessTokenFactory, ProjectFactory
from tests.forge_site.conftest import happen
from tests.forge_site.webserver import Web, environment, frame, in_database_thread, start, subscribe

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

ANOTHER_PROCESS = """
import django; django.setup()
from core import journal
from core.uow import unit_of_work

@unit_of_work
def happen():
    journal.record("node.running", subject="node:1", project_id=None)

for _ in range(int(__import__("sys").argv[1])):
    happen()
"""


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await scenario()

    asyncio.run(bounded())


def writer(web: Web, times: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", ANOTHER_PROCESS, str(times)], env=environment(web.home), cwd=settings.BASE_DIR
    )


# --- websocket ---------------------------------------------------------------------------------------------------------


@pytest.mark.req("PL-06")
def test_a_change_made_by_another_process_arrives(web: Web, session: str) -> None:
    async def scenario() -> None:
        async with web.connect(session) as socket:
            await subscribe(socket)
            assert await frame(socket) == {"hello": 0}
            process = writer(web, 1)

            assert (await frame(socket))["seq"] == 1
            await asyncio.to_thread(process.wait)

    run(scenario)


@pytest.mark.req("PL-06")
def test_twenty_clients_that_drop_and_resume_each_see_every_event_once_in_order(web: Web, session: str) -> None:
    writers, each = 3, 60
    expected = list(range(1, writers * each + 1))

    async def client(chance: random.Random) -> tuple[list[int], int]:
        seen: list[int] = []
        drops = 0
        while seen[-1:] != expected[-1:]:
            with suppress(ConnectionClosed, OSError):
                async with web.connect(session) as socket:
                    await subscribe(socket, seen[-1] if seen else 0)
                    for _ in range(chance.randint(1, 40)):  # then drop, wherever that is
                        message = await frame(socket)
                        if "seq" in message:
                            seen.append(message["seq"])
                        if seen[-1:] == expected[-1:]:
                            break
                    drops += 1
                    if chance.random() < 0.5:
                        socket.transport.abort()  # without a word, as a laptop that goes to sleep
        return seen, drops

    async def scenario() -> None:
        processes = [writer(web, each) for _ in range(writers)]
        clients = [asyncio.create_task(client(random.Random(number))) for number in range(20)]
        results = await asyncio.gather(*clients)

        assert [process.wait() for process in processes] == [0] * writers
        assert [seen for seen, _ in results] == [expected] * 20
        assert sum(drops for _, drops in results) > 40

    run(scenario)


def test_a_client_that_takes_nothing_is_ended_while_the_others_go_on(web: Web, session: str) -> None:
    """It alone is slow: its bounded queue overflows, the process does not grow, and it may resume by sequence."""
    bulk = "x" * 20_000

    async def scenario() -> None:
        lazy = socket.socket()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(("127.0.0.1", web.port))
        async with (
            web.connect(session) as quick,
            web.connect(session, sock=lazy, max_queue=1, ping_interval=None, close_timeout=0.1) as slow,
        ):
            await subscribe(quick)
            await subscribe(slow)
            assert "hello" in await frame(quick)
            seen: list[int] = []
            for _ in range(16):
                await in_database_thread(happen, times=100, bulk=bulk)
                seen += [(await frame(quick))["seq"] for _ in range(100)]

            assert seen == list(range(1, 1601))
            got: list[int] = []
            with suppress(ConnectionClosed):
                while len(got) < 1600:
                    got += [(await frame(slow)).get("seq", 0)]
            assert len(got) < 1600
        async with web.connect(session) as resumed:
            await subscribe(resumed, got[-1])
            assert (await frame(resumed))["seq"] == got[-1] + 1

    run(scenario)


def test_a_socket_cut_without_a_word_does_not_end_the_feed_of_others(web: Web, session: str) -> None:
    async def scenario() -> None:
        async with web.connect(session) as stays:
            await subscribe(stays)
            await frame(stays)
            for _ in range(5):
                cut = await web.connect(session)
                await subscribe(cut)
                await frame(cut)
                cut.transport.abort()
                await in_database_thread(happen)

            assert [(await frame(stays))["seq"] for _ in range(5)] == [1, 2, 3, 4, 5]

    run(scenario)


def test_a_new_subscription_of_a_socket_replaces_the_old_one(web: Web, session: str) -> None:
    project = ProjectFactory.create()
    happen(project=project)
    happen()

    async def scenario() -> None:
        async with web.connect(session) as socket:
            await subscribe(socket, 0)
            assert [(await frame(socket)).get("seq") for _ in range(3)] == [1, 2, None]
            await subscribe(socket, 0, f"project:{project.pk}")
            assert [(await frame(socket)).get("seq") for _ in range(2)] == [1, None]
            await in_database_thread(happen, project=project)
            assert (await frame(socket))["seq"] == 3

    run(scenario)


@pytest.mark.parametrize(
    "words",
    ["no json", "[]", '{"subscribe": "*"}', '{"subscribe": ["node:1"]}', '{"subscribe": ["*"], "since": "3"}'],
)
def test_a_wish_that_makes_no_sense_ends_the_socket(web: Web, session: str, words: str) -> None:
    async def scenario() -> None:
        async with web.connect(session) as socket:
            await socket.send(words)
            with pytest.raises(ConnectionClosed) as closed:
                await frame(socket)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4400

    run(scenario)


def test_who_is_not_signed_in_hears_nothing(web: Web, session: str) -> None:
    User.objects.update(is_active=False)

    async def scenario() -> None:
        for key in (None, "no-such-session", session):
            async with web.connect(key) as socket:
                with suppress(ConnectionClosed):
                    await subscribe(socket, 0)
                with pytest.raises(ConnectionClosed) as closed:
                    await frame(socket)
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 4401

    run(scenario)


def test_a_page_of_another_site_cannot_listen(web: Web, session: str) -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidStatus) as refused:
            await web.connect(session, origin="https://evil.example")
        assert refused.value.response.status_code == 403

    run(scenario)


# --- server-sent events --------------------------------------------------------------------------------------------------


def stream(web: Web, query: str = "", **headers: str) -> Any:
    AccessTokenFactory.create(raw="streaming")
    request = Request(
        f"{web.url}/api/v1/events/stream{query}", headers={"Authorization": "Bearer streaming", **headers}
    )
    return urlopen(request, timeout=20)


def events(response: Any, number: int) -> list[dict[str, str]]:
    """The next ``number`` events, as their fields."""
    found: list[dict[str, str]] = []
    fields: dict[str, str] = {}
    while len(found) < number:
        line = response.readline().decode().rstrip("\n")
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields and not line:
            found.append(fields)
            fields = {}
    return found


def test_a_program_streams_and_resumes_by_last_event_id(web: Web) -> None:
    happen(times=3)

    with stream(web, "?since=0", **{"Last-Event-ID": "1"}) as response:
        past = events(response, 3)
        happen()
        live = events(response, 1)

    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert [event["id"] for event in past + live] == ["2", "3", "3", "4"]
    assert past[2]["event"] == "hello"
    assert json.loads(live[0]["data"])["seq"] == 4


def test_a_quiet_stream_answers_at_once(web: Web) -> None:
    """The headers wait for the first byte of the body, which without `: ok` would be the first ping."""
    with stream(web) as response:
        assert response.readline() == b": ok\n"


@pytest.mark.parametrize(
    ("query", "headers", "status", "code"),
    [
        ("", {"Authorization": "Bearer wrong"}, 401, "not_authenticated"),
        ("?topics=everything", {}, 400, "invalid_input"),
        ("?since=yesterday", {}, 400, "invalid_input"),
    ],
)
def test_a_stream_that_cannot_be_given_is_a_problem(
    web: Web, query: str, headers: dict[str, str], status: int, code: str
) -> None:
    with pytest.raises(HTTPError) as refused:
        stream(web, query, **headers)
    with refused.value as answer:
        assert answer.code == status
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert json.loads(answer.read())["code"] == code


# --- the process ---------------------------------------------------------------------------------------------------------


def get(web: Web, path: str) -> tuple[int, dict[str, Any]]:
    with urlopen(web.url + path, timeout=20) as response:
        return response.status, json.loads(response.read())


@pytest.mark.req("HL-01", "HL-05")
def test_health_and_readiness_need_no_login(web: Web) -> None:
    assert get(web, "/health") == (200, {"status": "alive"})
    assert get(web, "/ready") == (200, {"ready": True, "reasons": []})


def test_it_says_where_it_listens(web: Web) -> None:
    facts = json.loads((web.home / "web.json").read_text())

    assert facts["port"] == web.port
    assert facts["pid"] == web.process.pid
    assert facts["url"] == f"http://127.0.0.1:{web.port}/"


@pytest.mark.req("GW-06")
@pytest.mark.parametrize("order", [signal.SIGTERM, signal.SIGINT], ids=lambda order: order.name)
def test_it_ends_when_told_although_sockets_are_open(
    session: str, tmp_path: Path, settings: Any, order: signal.Signals
) -> None:
    """Nobody waits for a client: not for a websocket, not for a stream, not for a request that is being read."""
    settings.FORGE_HOME = tmp_path / "home"
    web = start(tmp_path / "home")

    async def scenario() -> None:
        async with web.connect(session) as socket:
            await subscribe(socket)
            await frame(socket)
            with await in_database_thread(stream, web) as response:
                await asyncio.to_thread(response.readline)
                begun = time.monotonic()
                web.process.send_signal(order)
                returned = await asyncio.to_thread(web.process.wait, 30)
                took = time.monotonic() - begun

                assert returned == 0
                assert took < 10  # generous: the bound that matters is that it does not wait for us at all

    try:
        run(scenario)
        assert not (web.home / "web.json").exists()
        assert "Traceback" not in web.log
    finally:
        web.stop()


def test_an_address_in_use_is_said_and_ends_it(web: Web) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "django", "serve", "--bind", f"127.0.0.1:{web.port}"],
        env=environment(web.home.parent / "second"),
        cwd=settings.BASE_DIR,
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert second.returncode == 1
    assert b"address" in second.stderr.lower()
    assert second.stdout == b""
