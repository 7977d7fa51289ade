"""Several real connections at once: lock order, and that each thing is done once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection

from core.steps import lock_project
from core.uow import unit_of_work
from graphs.models import Graph, Node
from graphs.services import advance
from integration.models import Entry
from jobs.models import Attempt
from jobs.services import grant_and_start
from tests.driving import Hand
from tests.running import gated, writer

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def held_by_another(project_id: int) -> Iterator[None]:
    """Another connection is in the middle of a verb of this project."""
    holds, may_end = threading.Event(), threading.Event()

    @unit_of_work
    def verb() -> None:
        lock_project(project_id)
        holds.set()
        assert may_end.wait(20)

    def run() -> None:
        try:
            verb()
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert holds.wait(10)
        yield
    finally:
        may_end.set()
        thread.join()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_a_grant_does_not_wait_for_a_verb_of_the_project() -> None:
    """Its rows refer to the project; that must not need the project's lock, since verbs take it before the broker's."""
    hand = Hand()
    project = hand.add_project()
    hand.admit(gated(writer("a", "x", "src/a")))
    advance(project_id=project.pk)

    with held_by_another(project.pk), connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '500ms'")
        try:
            granted = grant_and_start()
        finally:
            cursor.execute("RESET lock_timeout")

    assert len(granted.attempts) == 1


@pytest.mark.req("JB-03", "JB-06")
def test_two_submissions_of_one_request_at_the_same_time_are_one_graph() -> None:
    hand = Hand()
    hand.add_project()
    document = gated(writer("a", "x", "src/a"))
    together, found = threading.Barrier(4), []

    def submit() -> None:
        try:
            together.wait(10)
            found.append(hand.admit(document, request_id="the one").pk)
        finally:
            connection.close()

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 4
    assert len(set(found)) == Graph.objects.count() == Node.objects.count() == 1


@pytest.mark.req("IQ-03", "GC-06")
def test_a_project_that_is_advanced_by_two_at_once_dispatches_and_claims_once() -> None:
    hand = Hand()
    project = hand.add_project()
    graph = hand.admit(gated(*(writer(key, "x", f"src/{key}") for key in "abc")))
    for key in "ab":
        hand.run(hand.node(graph, key))
        hand.seal(hand.node(graph, key))
    together = threading.Barrier(4)

    def advance_it() -> None:
        try:
            together.wait(10)
            advance(project_id=project.pk)
            grant_and_start()
        finally:
            connection.close()

    threads = [threading.Thread(target=advance_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(Entry.objects.values_list("state", flat=True)) == ["queued", "refreshing"]
    assert Attempt.objects.count() == 3
    assert Attempt.objects.filter(state="starting").count() == 1
