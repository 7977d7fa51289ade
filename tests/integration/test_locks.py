"""Lock order with two real connections: who holds a project's row must not stop the broker, or the two would wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection

from core.steps import lock_project
from core.uow import unit_of_work
from graphs.services import advance
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


def test_a_grant_does_not_wait_for_a_verb_of_the_project() -> None:
    """Its rows refer to the project; that must not need the project's lock, since verbs take it before the broker's."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer at a time")
    project = Hand().add_project()
    hand = Hand()
    hand.admit(gated(writer("a", "x", "src/a")))
    advance(project_id=project.pk)

    with held_by_another(project.pk), connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '500ms'")
        try:
            granted = grant_and_start()
        finally:
            cursor.execute("RESET lock_timeout")

    assert len(granted.attempts) == 1
