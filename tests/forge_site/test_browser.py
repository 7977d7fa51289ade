"""What only a browser can show: the page changes by itself when another process changes the truth, under its own policy."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from core.uow import unit_of_work
from graphs.models import Node
from graphs.states import NODE_MOVES, NodeState
from tests.factories import AttemptFactory, EdgeFactory, GraphFactory, NodeFactory
from tests.forge_site.browser import CHROMIUM, a_page
from tests.forge_site.webserver import Web, in_database_thread

pytestmark = [
    pytest.mark.processes,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium on this machine: the live patches of the dashboard are not proven"
    ),
]


@unit_of_work
def move_node(*, pk: int, to: str) -> None:
    from core.transitions import move

    move(Node.objects.get(pk=pk), to, moves=NODE_MOVES)


@pytest.mark.req("PL-06")
def test_a_graph_page_follows_the_work_without_a_reload(web: Web, session: str, tmp_path: Path) -> None:
    graph = GraphFactory.create()
    first = NodeFactory.create(graph=graph, key="first", state=NodeState.RUNNING, position=0)
    second = NodeFactory.create(graph=graph, key="second", position=1, unmet_inputs=1)
    EdgeFactory.create(source=first, target=second)
    attempt = AttemptFactory.create(job__owner=first.subject, job__project=graph.project)

    async def scenario() -> None:
        cookie: dict[str, Any] = {"name": django_settings.SESSION_COOKIE_NAME, "value": session, "url": web.url}
        async with a_page(tmp_path / "profile", [cookie]) as page:
            await page.open(f"{web.url}/graphs/{graph.pk}/")
            await page.until("document.getElementById('connection').dataset.state === 'live'")
            await page.value(f"window.notReloaded = true; document.getElementById('n{second.pk}').focus()")
            assert (
                await page.value(f"document.getElementById('n{first.pk}').getAttribute('class')") == "node tone-active"
            )

            await in_database_thread(move_node, pk=first.pk, to=NodeState.SUCCEEDED)

            await page.until(f"document.getElementById('n{first.pk}').classList.contains('tone-ok')")
            await page.until(f"document.querySelector('#r{first.pk} .word').textContent === 'succeeded'")
            await page.until("document.querySelector('.counts .of').textContent === '1 of 2 done'")  # read again
            await page.until(f"!document.querySelector('#r{second.pk} .why a')")
            assert await page.value("window.notReloaded")
            assert await page.value("document.activeElement.id") == f"n{second.pk}"

            await page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowLeft")
            assert await page.value("document.activeElement.id") == f"n{first.pk}"
            assert page.problems == []

    asyncio.run(_bounded(scenario()))
    assert attempt.pk


def test_a_log_grows_while_it_is_looked_at_and_stays_text(web: Web, session: str, tmp_path: Path) -> None:
    node = NodeFactory.create(key="build", state=NodeState.RUNNING)
    attempt = AttemptFactory.create(job__owner=node.subject, job__project=node.project)
    directory = web.home / "jobs" / str(attempt.pk)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "stdout").write_text("begun\n")

    async def scenario() -> None:
        cookie: dict[str, Any] = {"name": django_settings.SESSION_COOKIE_NAME, "value": session, "url": web.url}
        async with a_page(tmp_path / "profile", [cookie]) as page:
            await page.open(f"{web.url}/graphs/{node.graph_id}/nodes/build/")
            assert await page.value("document.querySelector('pre.log').textContent") == "begun\n"

            fd = os.open(directory / "stdout", os.O_WRONLY | os.O_APPEND)
            os.write(fd, "\x1b[31m<img src=x onerror=alert(1)>\x1b[0m ü\n".encode())
            os.close(fd)

            await page.until("document.querySelector('pre.log').textContent.includes('ü')")
            assert (
                await page.value("document.querySelector('pre.log').textContent")
                == "begun\n<img src=x onerror=alert(1)> ü\n"
            )
            assert await page.value("document.querySelector('pre.log').children.length") == 0
            assert page.problems == []

    asyncio.run(_bounded(scenario()))


async def _bounded(scenario: Any) -> None:
    async with asyncio.timeout(120):
        await scenario
