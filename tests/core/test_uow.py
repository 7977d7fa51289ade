"""The unit of work: one durable transaction, its clock, its journal, its turn to write."""

from __future__ import annotations

import multiprocessing
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, connections

from core import journal, uow
from core.errors import DatabaseBusy
from core.models import Event, EventCounter, Host
from core.uow import FROM_CLOCK, unit_of_work


@unit_of_work
def note(*, name: str, times: int = 1) -> None:
    for _ in range(times):
        journal.record("test.noted", subject=f"test:{name}", project_id=None)


@unit_of_work
def fail_after_noting(*, name: str) -> None:
    journal.record("test.noted", subject=f"test:{name}", project_id=None)
    raise ValueError(name)


@unit_of_work
def outer(*, name: str) -> None:
    note(name=name)


@unit_of_work
def tell_time(*, now: datetime = FROM_CLOCK) -> datetime:
    journal.record("test.timed", subject="test:time", project_id=None)
    return now


def names() -> list[str]:
    return [event.subject.removeprefix("test:") for event in Event.objects.filter(kind="test.noted").order_by("seq")]


@pytest.mark.django_db(transaction=True)
def test_events_get_numbers_without_gaps_in_the_order_of_commits() -> None:
    start = EventCounter.objects.get().last_seq

    note(name="a", times=2)
    with pytest.raises(ValueError, match="lost"):
        fail_after_noting(name="lost")
    note(name="b")

    assert names() == ["a", "a", "b"]
    assert list(Event.objects.order_by("seq").values_list("seq", flat=True)) == [start + 1, start + 2, start + 3]


@pytest.mark.django_db(transaction=True)
def test_nothing_follows_the_flush_of_the_journal() -> None:
    statements: list[str] = []

    def spy(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(spy):
        note(name="last")

    position = next(n for n, sql in enumerate(statements) if sql.startswith("UPDATE core_eventcounter"))
    after = [sql.split()[0] for sql in statements[position + 1 :]]
    assert after == (["INSERT", "NOTIFY"] if connection.vendor == "postgresql" else ["INSERT"])


@pytest.mark.django_db(transaction=True)
def test_units_of_work_do_not_nest() -> None:
    with pytest.raises(RuntimeError):
        outer(name="inner")

    assert names() == []


def test_an_event_outside_a_unit_of_work_is_refused() -> None:
    with pytest.raises(RuntimeError):
        journal.record("test.noted", subject="test:x", project_id=None)


@pytest.mark.django_db(transaction=True)
def test_on_sqlite_the_clock_never_falls_behind_the_latest_event() -> None:
    ahead = datetime.now(UTC) + timedelta(hours=1)
    EventCounter.objects.update(last_at=ahead)

    told = tell_time()

    if connection.vendor == "sqlite":
        assert told == ahead
    else:
        assert abs(told - datetime.now(UTC)) < timedelta(minutes=1)  # the database's own clock


@pytest.mark.django_db(transaction=True)
def test_a_test_may_pass_the_time() -> None:
    then = datetime(2030, 1, 2, tzinfo=UTC)

    assert tell_time(now=then) == then
    assert Event.objects.get(kind="test.timed").at == then


@pytest.mark.django_db(transaction=True)
def test_a_busy_database_is_tried_again_and_then_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    @unit_of_work
    def flaky(*, failures: int) -> str:
        calls.append(1)
        if len(calls) <= failures:
            raise OperationalError("database is locked")
        return "done"

    assert flaky(failures=2) == "done"
    calls.clear()
    with pytest.raises(OperationalError):
        flaky(failures=99)
    assert len(calls) == uow.RETRIES + 1


@pytest.mark.django_db(transaction=True)
def test_whoever_waits_too_long_for_his_turn_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL queues by its own row locks")
    monkeypatch.setattr(uow, "QUEUE_DEADLINE_S", 0.05)
    inside, leave = threading.Event(), threading.Event()

    @unit_of_work
    def slow() -> None:
        inside.set()
        leave.wait(10)

    def run() -> None:
        try:
            slow()
        finally:
            connections.close_all()

    holder = threading.Thread(target=run)
    holder.start()
    inside.wait(10)
    try:
        with pytest.raises(DatabaseBusy):
            note(name="late")
    finally:
        leave.set()
        holder.join()

    note(name="after")
    assert names() == ["after"]


def _write_many(number: int, count: int) -> None:
    connections.close_all()
    for _ in range(count):
        note(name=str(number))
    connections.close_all()


@pytest.mark.django_db(transaction=True)
@pytest.mark.processes
def test_writers_in_many_processes_lose_nothing_and_meet_no_locked_database() -> None:
    connections.close_all()
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(n, 50)) for n in range(4)]

    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert [writer.exitcode for writer in writers] == [0, 0, 0, 0]
    seqs = list(Event.objects.order_by("seq").values_list("seq", flat=True))
    assert len(seqs) == 200
    assert seqs == list(range(seqs[0], seqs[0] + 200))


@pytest.mark.django_db(transaction=True)
def test_rows_written_with_an_event_are_visible_before_or_with_it() -> None:
    @unit_of_work
    def register(*, name: str) -> None:
        Host.objects.create(name=name)
        journal.record("host.registered", subject="host:x", project_id=None)

    register(name="here")

    assert Event.objects.filter(kind="host.registered").exists()
    assert Host.objects.filter(name="here").exists()
