"""What a person reads who asks why a request waits."""

from __future__ import annotations

from datetime import timedelta

import pytest

from leases.explain import explain, render
from leases.models import Request
from leases.selectors import Holder, Shortage, Waiting, in_use
from tests.leases import builders
from tests.leases.builders import NOON, at, capacity, end_of, file_one, one_pass, project, suspend, units, write


def fresh(request: Request) -> Request:
    return Request.objects.get(pk=request.pk)


@pytest.mark.django_db
def test_who_is_stopped_by_a_lease_reads_who_holds_what_since_when() -> None:
    holder = file_one(project("alpha"), write("src"), holder="attempt:1")
    one_pass(now=NOON)
    waiter = file_one(project("beta"), write("src/a.py"), holder="attempt:2", now=at(1))
    one_pass(now=at(2))

    said = explain(fresh(waiter))

    assert said["sentence"] == (
        "attempt:2 waits for attempt:1 of alpha, which holds a lease on src since 2026-01-01 12:00:00 UTC; its release frees it"
    )
    facts = said["facts"]
    assert (facts["reason"], facts["stopped_by"], facts["resource"], facts["place"]) == ("lease", "attempt:1", "src", 1)
    assert facts["since"] == at(2).isoformat()
    assert holder.holder == "attempt:1"


@pytest.mark.django_db
def test_who_is_stopped_by_older_requests_reads_its_place_in_line() -> None:
    of = project("alpha")
    first = file_one(of, write("a"), holder="attempt:1")
    for n in (2, 3, 4):
        file_one(of, write("a"), holder=f"attempt:{n}", now=at(n))
    one_pass()
    last = Request.objects.get(holder="attempt:4")

    said = explain(last)

    assert said["sentence"].startswith("attempt:4 is number 3 in line on a, behind attempt:3 of alpha")
    assert said["facts"]["reason"] == "older_request"
    end_of(first)
    one_pass()
    assert explain(fresh(last))["facts"]["place"] == 2


@pytest.mark.django_db
def test_who_is_short_of_units_reads_of_which() -> None:
    capacity(key="slots", count=1)
    of = project()
    file_one(of, units("slots"))
    waiting = [file_one(of, units("slots"), holder=f"attempt:{n}", now=at(n)) for n in (7, 8)]
    one_pass()

    said = explain(fresh(waiting[1]))

    assert said["sentence"] == "attempt:8 is number 2 of its project in line for slots (1 of 1 in use, 1 wanted)"
    assert said["facts"]["reason"] == "capacity"
    assert [(r.key, n) for r, n in in_use()] == [("slots", 1)]


@pytest.mark.django_db
def test_states_without_a_stopper_have_a_sentence_each() -> None:
    of = project()
    new, held = file_one(of, write("a"), holder="attempt:1"), file_one(of, write("b"), holder="attempt:2")
    suspend(requests=[held])

    assert explain(fresh(new))["facts"]["reason"] == "next_pass"
    assert explain(fresh(held))["facts"]["reason"] == "suspended"
    one_pass()
    assert explain(fresh(new))["sentence"] == "attempt:1 does not wait: its request is granted"


def test_rendering_is_pure() -> None:
    waiting = Waiting(1, "attempt:1", "waiting", False, True, NOON, 1)
    assert render(waiting)["facts"]["reason"] == "unknown"
    unsure = Holder("attempt:2", "alpha", True, NOON - timedelta(hours=1), "src", ("recovery_pending",))
    assert "(recovery_pending)" in render(Waiting(1, "a:1", "waiting", False, True, NOON, 1, unsure))["sentence"]
    too_much = Shortage("slots", 9, 4, 0, False)
    assert (
        "only a greater capacity helps"
        in render(Waiting(1, "a:1", "waiting", False, True, NOON, 1, None, too_much))["sentence"]
    )
    kept = Shortage("slots", 1, 4, 3, True)
    assert "kept for a larger" in render(Waiting(1, "a:1", "waiting", False, True, NOON, 1, None, kept))["sentence"]
    assert builders.NOON == NOON
