"""The broker's steps, one promise per test."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import pytest
from django.conf import settings
from django.db import IntegrityError, connection
from django.test.utils import CaptureQueriesContext

from core.errors import IllegalMove, InvalidInput, StaleFence
from core.models import Event
from leases import selectors, sql, steps
from leases.fences import Fence, HeldGrant
from leases.models import Broker, Claim, Lease, Request, Resource
from leases.planning import ClaimSpec
from leases.states import Access, LeaseState, RequestState, ResourceClass, WorkMode
from tests.leases import builders
from tests.leases.builders import (
    NOON,
    at,
    capacity,
    claim,
    end,
    end_of,
    exclusive,
    file_bundles,
    file_one,
    grant_of,
    granted_now,
    is_granted,
    leases_of,
    look,
    one_pass,
    project,
    read,
    resume,
    rival,
    short_of,
    stopper,
    suspend,
    units,
    withdraw,
    write,
)
from tests.leases.expected import KINDS, go_together, of_kind

pytestmark = pytest.mark.django_db


# --- bundles


@pytest.mark.req("RB-01")
def test_a_request_and_its_leases_are_found_as_they_were_filed() -> None:
    claims = (read("a", 3), rival("b/c"), look("d", resource_class=ResourceClass.PHYSICAL), units("slots", 2))
    capacity(key="slots", count=2)
    request = file_one(project(), *claims, priority=4)
    granted_now()

    request = Request.objects.get(pk=request.pk)

    assert (request.priority, request.state) == (4, RequestState.GRANTED)
    assert set(selectors.claim_specs(request)) == set(claims)
    assert {selectors.spec_of(lease) for lease in request.leases.select_related("resource")} == set(claims)


def test_claims_on_one_resource_are_merged_to_the_stronger() -> None:
    request = file_one(project(), read("a"), exclusive("a"), units("u", 1), units("u", 2))

    assert set(selectors.claim_specs(request)) == {exclusive("a"), units("u", 2)}


def test_a_bundle_claims_something() -> None:
    with pytest.raises(InvalidInput):
        file_one(project())
    assert not Request.objects.exists()


def test_a_holder_asks_once() -> None:
    first = file_one(project(), write("a"))
    with pytest.raises(IntegrityError):
        file_one(first.project, write("b"), holder=first.holder)


def test_a_thousand_bundles_are_filed_in_as_many_statements_as_one() -> None:
    of = project()

    def count(bundles: int, start: int) -> int:
        filing = [
            steps.Bundle(of.pk, f"attempt:{start + n}", 0, (write("shared"), units("slots"))) for n in range(bundles)
        ]
        with CaptureQueriesContext(connection) as captured:
            ids = file_bundles(bundles=filing)
        assert [Request.objects.get(pk=pk).holder for pk in (ids[0], ids[-1])] == [filing[0].holder, filing[-1].holder]
        return len(captured)

    file_one(of, write("shared"), units("slots"))
    assert count(500, 10_000) == count(1, 20_000)


@pytest.mark.req("RB-02")
def test_a_grant_that_fails_half_way_leaves_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    request = file_one(project(), write("a"), write("b"))

    def half(*args: object, **kwargs: object) -> None:
        assert Lease.objects.filter(request=request).count() == 2
        raise OSError("pulled the plug")

    monkeypatch.setattr(sql, "raise_resource_tokens", half)
    with pytest.raises(OSError, match="plug"):
        one_pass()

    assert not Lease.objects.exists()
    assert not is_granted(request)


# --- who goes together


@pytest.mark.req("RB-03", "RB-04", "RB-05", "RB-06", "RB-08", "RB-09")
@pytest.mark.parametrize("older_holds", [True, False], ids=["older holds", "older waits"])
def test_rows_are_compared_as_the_table_says(older_holds: bool) -> None:
    """Every pair of kinds, versions and relations: the older one as a lease, and as a waiting claim."""
    of = project()
    versions = [(None, None), (1, 2), (2, 2), (1, 3)]
    pairs = []
    for n, (one, two, key, (v1, v2)) in enumerate(product(KINDS, KINDS, ("x", "x/y", "x/y/z", "w"), versions)):
        older = of_kind(one, f"{n}/x/y", v1)[0]
        younger = of_kind(two, f"{n}/{key}", v2)[-1]
        pairs.append((older, younger))
    unavailable = () if older_holds else (units("none"),)
    olders = file_bundles(
        bundles=[steps.Bundle(of.pk, f"old:{n}", 0, (a, *unavailable)) for n, (a, _) in enumerate(pairs)], now=at(0)
    )
    one_pass()
    youngers = file_bundles(
        bundles=[steps.Bundle(of.pk, f"young:{n}", 0, (b,)) for n, (_, b) in enumerate(pairs)], now=at(1)
    )
    one_pass()

    states = dict(Request.objects.values_list("pk", "state"))
    stopped = dict(Request.objects.values_list("pk", "stopped_by_id"))
    for (a, b), older_id, younger_id in zip(pairs, olders, youngers, strict=True):
        assert states[older_id] == ("granted" if older_holds else "waiting")
        assert (states[younger_id] == "granted") is go_together(a, b), (a, b)
        assert stopped[younger_id] == (None if go_together(a, b) else older_id)


@pytest.mark.req("RB-04")
def test_one_name_in_three_classes_is_three_resources() -> None:
    of = project()
    first = [file_one(of, exclusive("x", resource_class=cls)) for cls in ResourceClass]
    second = [file_one(of, exclusive("x", resource_class=cls), now=at(1)) for cls in ResourceClass]

    one_pass()

    assert [is_granted(r) for r in (*first, *second)] == [True] * 3 + [False] * 3


@pytest.mark.req("RB-05", "RB-15")
def test_disjoint_writers_of_two_projects_are_granted_in_one_pass() -> None:
    one, two = file_one(project(), write("a")), file_one(project(), write("b"))

    assert granted_now() == [one.holder, two.holder]


@pytest.mark.req("RB-07")
@pytest.mark.parametrize("projects", [1, 2, 3])
def test_writers_of_one_domain_go_one_by_one_in_order_of_age(projects: int) -> None:
    of = [project() for _ in range(projects)]
    waiting = [file_one(of[n % projects], write("feature:shared"), now=at(n)) for n in (3, 1, 2, 0)]
    by_age = [waiting[3], waiting[1], waiting[2], waiting[0]]

    for expected in by_age:
        assert granted_now() == [expected.holder]
        end_of(expected)
    assert granted_now() == []


@pytest.mark.req("RB-08")
def test_exclusive_claims_go_one_by_one_in_every_mode() -> None:
    of = project()
    for n, (one, two) in enumerate(product(WorkMode, WorkMode)):
        first = file_one(of, exclusive(f"x{n}", mode=one))
        second = file_one(of, exclusive(f"x{n}", mode=two), now=at(1))
        one_pass()
        assert (is_granted(first), is_granted(second)) == (True, False)


@pytest.mark.req("RB-09")
def test_rivals_run_side_by_side_only_while_each_is_isolated() -> None:
    of = project()
    isolated = [file_one(of, rival("a")) for _ in range(2)]
    mixed = [file_one(of, rival("b", isolated=n == 0), now=at(n)) for n in range(2)]

    one_pass()

    assert [is_granted(r) for r in isolated] == [True, True]
    assert [is_granted(r) for r in mixed] == [True, False]


@pytest.mark.req("RB-16")
def test_an_unknown_write_scope_waits_for_everything_in_the_workspace() -> None:
    of = project()
    part = file_one(of, write("host/srv/src/a.py", resource_class=ResourceClass.PHYSICAL))
    reader = file_one(of, look("host/srv", resource_class=ResourceClass.PHYSICAL))
    one_pass()
    whole = file_one(of, exclusive("host/srv", resource_class=ResourceClass.PHYSICAL), now=at(1))
    behind = file_one(of, write("host/srv/docs", resource_class=ResourceClass.PHYSICAL), now=at(2))

    assert granted_now() == []
    assert stopper(behind) == whole.pk
    end_of(part)
    assert granted_now() == []
    end_of(reader)
    assert granted_now() == [whole.holder]
    end_of(whole)
    assert granted_now() == [behind.holder]


# --- order


@pytest.mark.req("RB-11")
def test_younger_work_does_not_take_what_an_older_blocked_bundle_needs() -> None:
    of = project()
    blocker = file_one(of, write("a"))
    one_pass()
    older = file_one(of, write("a"), write("b"), now=at(1))
    younger = file_one(project(), write("b"), now=at(2))

    assert granted_now() == []
    assert (stopper(older), stopper(younger)) == (blocker.pk, older.pk)
    end_of(blocker)
    assert granted_now() == [older.holder]
    assert stopper(younger) == older.pk
    end_of(older)
    assert granted_now() == [younger.holder]


@pytest.mark.req("RB-11")
def test_an_older_bundle_keeps_its_parts_also_while_it_is_only_short_of_units() -> None:
    of = project()
    older = file_one(of, write("a"), units("slots"))
    one_pass()
    younger = file_one(of, write("a/part"), now=at(1))

    assert granted_now() == []
    assert (short_of(older), stopper(younger)) == ("slots", older.pk)


def test_units_alone_keep_nobody_waiting_for_an_older_request() -> None:
    of = project()
    capacity(key="slots", count=1)
    older, younger = file_one(of, units("slots", 2)), file_one(of, units("slots"), now=at(1))

    assert granted_now() == [younger.holder]
    assert short_of(older) == "slots"


@pytest.mark.req("RB-10")
def test_priority_is_worth_a_minute_of_age_a_step() -> None:
    of = project()
    urgent = file_one(of, write("a"), priority=1, now=at(30))
    patient = file_one(of, write("a"), now=at(0))
    old = file_one(of, write("a"), now=at(-31))

    assert granted_now() == [old.holder]
    assert (stopper(urgent), stopper(patient)) == (old.pk, urgent.pk)


def test_an_urgent_newcomer_comes_before_who_only_waits_for_units() -> None:
    """Who was eligible when it entered its line is compared again before it is granted."""
    capacity(key="slots", count=1)
    of = project()
    running = file_one(of, units("slots"))
    one_pass()
    in_line = file_one(of, write("a"), units("slots"), now=at(1))
    one_pass()
    urgent = file_one(of, write("a"), units("never"), priority=9, now=at(2))
    one_pass()
    end_of(running)

    assert granted_now() == []
    assert stopper(in_line) == urgent.pk
    withdraw(requests=[urgent], now=at(3))
    assert granted_now() == [in_line.holder]


# --- units


@pytest.mark.req("RB-17")
def test_one_busy_project_does_not_starve_another() -> None:
    capacity(key="global", count=2)
    busy, quiet = project(), project()
    queued = file_bundles(
        bundles=[steps.Bundle(busy.pk, f"attempt:{n}", 0, (units("global"),)) for n in range(1000, 1050)], now=at(0)
    )
    first, second = one_pass()
    assert [first.request_id, second.request_id] == queued[:2]
    late = file_one(quiet, units("global"), now=at(60))
    assert granted_now() == []

    end(grants=[first.identity])
    assert granted_now() == [late.holder]
    end(grants=[second.identity])
    assert [grant.request_id for grant in one_pass()] == [queued[2]]


@pytest.mark.req("RB-17")
def test_turns_are_remembered_between_passes() -> None:
    capacity(key="slots", count=1)
    a, b = project(), project()
    of_a = [file_one(a, units("slots"), now=at(n)) for n in range(4)]
    of_b = [file_one(b, units("slots"), now=at(10 + n)) for n in range(4)]

    order = []
    for _ in range(8):
        (grant,) = one_pass()
        order.append(grant.request_id)
        end(grants=[grant.identity])

    assert order == [request.pk for pair in zip(of_a, of_b, strict=True) for request in pair]


def test_a_newcomer_of_the_project_just_served_waits_for_the_others_turn() -> None:
    capacity(key="slots", count=1)
    a, b = project(), project()
    running = file_one(a, units("slots"))
    mine, theirs = file_one(a, units("slots"), now=at(1)), file_one(b, units("slots"), now=at(2))
    one_pass()
    end_of(running)
    assert granted_now() == [theirs.holder]
    urgent = file_one(b, units("slots"), priority=9, now=at(3))
    end_of(theirs)

    assert granted_now() == [mine.holder]
    end_of(mine)
    assert granted_now() == [urgent.holder]


@pytest.mark.req("RB-17")
def test_turns_count_also_between_newcomers() -> None:
    capacity(key="slots", count=1)
    a, b = project(), project()
    file_one(a, units("slots"), now=at(0))
    file_one(b, units("slots"), now=at(1))
    for _ in range(2):
        (grant,) = one_pass()
        end(grants=[grant.identity])
    assert one_pass() == []
    of_b, of_a = file_one(b, units("slots"), now=at(2)), file_one(a, units("slots"), now=at(3))

    assert granted_now() == [of_a.holder]
    assert short_of(of_b) == "slots"


def test_a_reservation_ends_when_there_can_never_be_enough() -> None:
    capacity(key="slots", count=4)
    of = project()
    running = [file_one(of, units("slots")) for _ in range(2)]
    one_pass()
    large, small = file_one(project(), units("slots", 4), now=at(1)), file_one(of, units("slots", 2), now=at(2))
    end_of(running[0])
    capacity(key="slots", count=3)
    assert granted_now() == [small.holder]
    capacity(key="slots", count=4)
    end_of(small)
    assert granted_now() == []
    behind = file_one(of, units("slots"), now=at(3))
    assert granted_now() == []
    assert Broker.objects.get().reserving == Request.objects.get(pk=large.pk).line

    capacity(key="slots", count=3)

    assert granted_now() == [behind.holder]


def test_who_stands_in_line_goes_before_a_newcomer_when_units_free() -> None:
    capacity(key="slots", count=1)
    of = project()
    running = file_one(of, units("slots"))
    one_pass()
    in_line = file_one(of, units("slots"), now=at(1))
    one_pass()
    end_of(running)
    newcomer = file_one(of, units("slots"), units("plenty"), now=at(2))
    capacity(key="plenty", count=5)

    assert granted_now() == [in_line.holder]
    assert short_of(newcomer) == "slots"


def test_a_large_request_gets_the_units_that_free_while_small_ones_keep_coming() -> None:
    capacity(key="slots", count=3)
    of = project()
    running = [file_one(of, units("slots")) for _ in range(3)]
    one_pass()
    large = file_one(project(), units("slots", 3), now=at(1))
    assert granted_now() == []
    small = []
    for n, request in enumerate(running):
        small.append(file_one(of, units("slots"), now=at(2 + n)))
        end_of(request)
        assert granted_now() == ([large.holder] if n == 2 else [])
    end_of(large)
    assert granted_now() == [request.holder for request in small]


def test_the_reservation_goes_on_to_who_waits_longest_whatever_it_is_short_of() -> None:
    capacity(key="slots", count=2)
    capacity(key="seats", count=2)
    a, b, c, d = (project() for _ in range(4))
    slots = [file_one(a, units("slots")) for _ in range(2)]
    seats = [file_one(a, units("seats")) for _ in range(2)]
    one_pass()
    first, second = file_one(b, units("slots", 2), now=at(1)), file_one(c, units("seats", 2), now=at(2))
    one_pass()
    more = [file_one(d, units("slots"), now=at(3 + n)) for n in range(2)]
    one_pass()

    for request in slots:
        end_of(request)
    assert granted_now() == [first.holder]
    end_of(seats[0])
    newcomer = file_one(d, units("seats"), now=at(9))
    assert granted_now() == []
    end_of(seats[1])
    assert granted_now() == [second.holder]
    assert not any(is_granted(request) for request in (*more, newcomer))


def test_a_reservation_ends_with_the_wait_of_its_request() -> None:
    capacity(key="slots", count=2)
    of = project()
    running = [file_one(of, units("slots")) for _ in range(2)]
    one_pass()
    large = file_one(project(), units("slots", 2), now=at(1))
    small = file_one(of, units("slots"), now=at(2))
    one_pass()
    end_of(running[0])
    assert granted_now() == []

    withdraw(requests=[large], now=at(3))

    assert granted_now() == [small.holder]
    assert Broker.objects.get().reserving is None


def test_a_reservation_ends_when_its_request_is_no_longer_eligible() -> None:
    capacity(key="slots", count=2)
    of = project()
    running = [file_one(of, units("slots")) for _ in range(2)]
    one_pass()
    large = file_one(project(), write("a"), units("slots", 2), now=at(1))
    small = file_one(of, units("slots"), now=at(2))
    one_pass()
    urgent = file_one(of, write("a"), units("never"), priority=9, now=at(3))
    one_pass()
    end_of(running[0])

    assert granted_now() == [small.holder]
    assert stopper(large) == urgent.pk


def test_more_capacity_wakes_those_short_of_it() -> None:
    of = project()
    waiting = [file_one(of, units("slots"), now=at(n)) for n in range(3)]
    assert granted_now() == []
    capacity(key="slots", count=2)
    assert granted_now() == [waiting[0].holder, waiting[1].holder]
    capacity(key="slots", count=1)
    end_of(waiting[0])
    assert granted_now() == []
    end_of(waiting[1])
    assert granted_now() == [waiting[2].holder]


def test_a_second_shortage_does_not_let_units_idle() -> None:
    """The line moves on to what it lacks now, and others take the unit."""
    capacity(key="slots", count=1)
    capacity(key="limit:a", count=1)
    a, b = project(), project()
    running = file_one(a, units("slots"), units("limit:a"))
    one_pass()
    mine = [file_one(a, units("slots"), units("limit:a"), now=at(n)) for n in (1, 2)]
    one_pass()
    other = file_one(b, units("slots"), now=at(3))
    one_pass()
    end_of(running)
    granted = granted_now()
    assert len(granted) == 1
    end_of(next(r for r in (*mine, other) if r.holder in granted))
    second = granted_now()
    assert len(second) == 1
    assert {*granted, *second} == {mine[0].holder, other.holder}


# --- ending, waking


@pytest.mark.req("RB-12")
@pytest.mark.parametrize("wrong", ["attempt", "request", "token"])
def test_only_the_exact_grant_is_released(wrong: str) -> None:
    of = project()
    request, waiter = file_one(of, write("a"), holder="attempt:71"), file_one(of, write("a"), now=at(1))
    other = file_one(of, write("b"), holder="attempt:72")
    one_pass()
    token = grant_of(request).token
    fence = {
        "attempt": Fence(72, request.pk, token),
        "request": Fence(71, other.pk, token),
        "token": Fence(71, request.pk, token - 1 or 99),
    }[wrong]
    before = builders.snapshot(of)

    with pytest.raises(StaleFence):
        end(grants=[grant_of(other), fence])

    assert builders.snapshot(of) == before
    assert granted_now() == []
    end(grants=[Fence(71, request.pk, token)])
    assert granted_now() == [waiter.holder]


@pytest.mark.req("RB-12")
def test_a_release_twice_changes_nothing_the_second_time() -> None:
    of = project()
    request = file_one(of, write("a"))
    one_pass()
    grant = grant_of(request)
    end(grants=[grant])

    with pytest.raises(StaleFence):
        end(grants=[grant])
    with pytest.raises(StaleFence):
        end(grants=[grant, grant])


@pytest.mark.req("RB-13")
def test_a_release_leaves_another_project_as_it_is() -> None:
    a, b = project(), project()
    mine, theirs = file_one(a, write("a"), units("slots")), file_one(b, write("b"), units("slots"))
    capacity(key="slots", count=2)
    blocked = file_one(b, write("b"), now=at(1))
    one_pass()
    before = builders.snapshot(b)

    end_of(mine)
    builders.expire(now=at(0))
    one_pass()

    assert builders.snapshot(b) == before
    assert is_granted(theirs)
    assert not is_granted(blocked)


@pytest.mark.req("RB-14")
def test_another_attempt_neither_passes_nor_ends_a_grant() -> None:
    request = file_one(project(), write("a"), holder="attempt:71")
    one_pass()
    grant = grant_of(request)
    before = builders.snapshot(request.project)

    for stranger in (Fence(72, grant.grant_id, grant.token), Fence(71, grant.grant_id, grant.token + 1)):
        with pytest.raises(StaleFence):
            builders.check(grant=stranger)
        with pytest.raises(StaleFence):
            end(grants=[stranger])
    builders.check(grant=Fence(71, grant.grant_id, grant.token))

    assert builders.snapshot(request.project) == before


def test_withdrawing_wakes_what_was_stopped() -> None:
    of = project()
    holder = file_one(of, write("a"))
    one_pass()
    older, younger = file_one(of, write("a"), write("b"), now=at(1)), file_one(of, write("b"), now=at(2))
    one_pass()

    assert withdraw(requests=[older, holder], now=at(3)) == [older.pk]

    assert granted_now() == [younger.holder]
    older.refresh_from_db()
    assert (older.state, older.version) == (RequestState.WITHDRAWN, 1)
    assert is_granted(holder)


def test_a_suspended_request_is_not_granted_and_stops_nobody_but_keeps_its_rank() -> None:
    of = project()
    older, younger = file_one(of, write("a")), file_one(of, write("a"), now=at(1))
    suspend(requests=[older])
    assert granted_now() == [younger.holder]
    resume(requests=[older])
    last = file_one(of, write("a"), now=at(2))
    assert granted_now() == []
    end_of(younger)
    assert granted_now() == [older.holder]
    assert stopper(last) == older.pk


def test_who_is_woken_for_nothing_goes_to_sleep_again() -> None:
    of = project()
    readers = [file_one(of, read("a")) for _ in range(2)]
    one_pass()
    writer = file_one(of, write("a"), now=at(1))
    one_pass()

    end_of(max(readers, key=lambda r: grant_of(r).token))
    assert granted_now() == []
    assert not selectors.has_work()
    assert stopper(writer) == readers[0].pk
    end_of(readers[0])
    assert granted_now() == [writer.holder]


def test_a_pass_may_look_at_a_few_at_a_time() -> None:
    of = project()
    waiting = [file_one(of, write(f"k{n}"), now=at(n)) for n in range(5)]

    assert [g.holder for g in one_pass(limit=2)] == [r.holder for r in waiting[:2]]
    assert selectors.has_work()
    assert [g.holder for g in one_pass(limit=10)] == [r.holder for r in waiting[2:]]
    assert not selectors.has_work()


# --- tokens


@pytest.mark.req("LF-03", "LF-08")
def test_tokens_only_grow_also_after_leases_are_gone() -> None:
    of = project()
    seen, counters = [], []
    for n in range(4):
        request = file_one(of, write("a"), units("slots"), now=at(n))
        capacity(key="slots", count=1)
        one_pass()
        (lease,) = [lease for lease in leases_of(request) if lease.access == Access.WRITE]
        seen.append((lease.token, grant_of(request).token))
        counters.append(builders.counter("a"))
        end_of(request, to=LeaseState.REVOKED if n == 1 else LeaseState.RELEASED)
        if n == 2:
            Lease.objects.all().delete()
            Claim.objects.all().delete()
            Request.objects.all().delete()

    assert seen == sorted(set(seen))
    assert counters == [token for token, _ in seen]


def test_grants_of_one_pass_have_tokens_in_order() -> None:
    of = project()
    readers = [file_one(of, read("a"), now=at(n)) for n in range(3)]

    grants = one_pass()

    assert [g.request_id for g in grants] == [r.pk for r in readers]
    assert [g.token for g in grants] == sorted({g.token for g in grants})
    assert builders.counter("a") == grants[-1].token


# --- journal


def test_a_grant_and_its_end_are_one_event_each() -> None:
    of = project()
    request = file_one(of, write("a"), write("b"), units("slots"))
    assert not Event.objects.exists()
    capacity(key="slots", count=1)
    one_pass()
    end_of(request)

    events = list(Event.objects.values_list("kind", "subject", "project_id"))
    assert events == [(f"request.{word}", request.subject, of.pk) for word in ("granted", "ended")]


# --- handing over


def test_a_worker_hands_its_scope_to_the_queue_entry_before_anybody_older() -> None:
    of = project()
    capacity(key="slots", count=1)
    scope = write("p/src", resource_class=ResourceClass.INTEGRATION)
    worker = file_one(of, scope, units("slots"), now=at(0), holder="attempt:5")
    one_pass()
    older = file_one(of, scope, priority=9, now=at(1))
    slot = file_one(of, units("slots"), now=at(2))
    one_pass()

    entry = builders.hand_over(grant=grant_of(worker), holder="entry:7", claims=[scope])

    heir = Request.objects.get(pk=entry.grant_id)
    assert (heir.state, heir.holder, heir.rank) == (RequestState.GRANTED, "entry:7", worker.rank)
    assert [(lease.access, lease.expires_at) for lease in leases_of(heir)] == [(Access.WRITE, None)]
    assert entry.token > grant_of(worker).token
    with pytest.raises(StaleFence):
        builders.check(grant=grant_of(worker))
    assert granted_now() == [slot.holder]
    assert stopper(older) == heir.pk
    end(grants=[entry])
    assert granted_now() == [older.holder]


def test_a_lease_is_handed_over_as_it_is_held() -> None:
    of = project()
    one, two = (file_one(of, rival("x", isolated=True), holder=f"attempt:{n}") for n in (1, 2))
    one_pass()

    entry = builders.hand_over(grant=grant_of(one), holder="entry:1", claims=[write("x")])

    (lease,) = Request.objects.get(pk=entry.grant_id).leases.all()
    assert (lease.mode, lease.isolated) == (WorkMode.COMPETITIVE, True)
    assert is_granted(two)


@pytest.mark.parametrize("beyond", [[exclusive("a")], [write("a/b")], [write("other")], [units("slots")], []])
def test_nothing_is_handed_over_that_is_not_held(beyond: list[ClaimSpec]) -> None:
    capacity(key="slots", count=1)
    worker = file_one(project(), write("a"), units("slots"))
    one_pass()
    before = builders.snapshot(worker.project)

    with pytest.raises(InvalidInput):
        builders.hand_over(grant=grant_of(worker), holder="entry:1", claims=beyond)

    assert builders.snapshot(worker.project) == before


# --- fences, expiry, recovery


@pytest.mark.req("LF-01", "LF-02", "LF-07")
def test_expired_and_uncertain_leases_block_until_they_are_released_or_revoked() -> None:
    of = project()
    request, waiter = file_one(of, write("a")), file_one(of, write("a"), now=at(1))
    one_pass()
    grant = grant_of(request)
    later = at(settings.FORGE_LEASE_TTL_S)

    assert builders.expire(now=later - timedelta(seconds=1)) == []
    assert builders.expire(now=later) == [request.pk]
    assert granted_now(later) == []
    builders.check(grant=grant)
    builders.classify(grant=grant, to=LeaseState.RECOVERY_PENDING)
    builders.check(grant=grant)
    builders.classify(grant=grant, to=LeaseState.ORPHANED)
    with pytest.raises(StaleFence):
        builders.check(grant=grant)
    assert granted_now(later) == []
    with pytest.raises(IllegalMove):
        end(grants=[grant])
    assert granted_now(later) == []
    end(grants=[grant], to=LeaseState.REVOKED)
    assert granted_now(later) == [waiter.holder]


def test_a_silent_owner_proven_alive_goes_on_with_the_same_token() -> None:
    request = file_one(project(), write("a"))
    one_pass()
    grant = grant_of(request)
    builders.expire(now=at(60))

    builders.classify(grant=grant, to=LeaseState.ACTIVE, now=at(61))

    (lease,) = leases_of(request)
    assert (lease.state, lease.token) == (LeaseState.ACTIVE, grant.token)
    assert lease.expires_at == at(61 + settings.FORGE_LEASE_TTL_S)


def test_a_beat_moves_the_end_of_active_leases_alone() -> None:
    of = project()
    alive, silent, entry = (file_one(of, write(key)) for key in "abc")
    one_pass()
    builders.expire(now=NOON)
    builders.expire(now=at(60))
    fresh = file_one(of, write("d"), now=at(60))
    one_pass(now=at(60))
    heir = builders.hand_over(grant=grant_of(entry), holder="entry:1", claims=[write("c")])

    assert builders.renew(ids=[alive.pk, silent.pk, fresh.pk, heir.grant_id], now=at(70)) == 1

    assert leases_of(fresh)[0].expires_at == at(70 + settings.FORGE_LEASE_TTL_S)
    assert leases_of(silent)[0].state == LeaseState.EXPIRED
    assert Request.objects.get(pk=heir.grant_id).leases.get().expires_at is None


def test_the_condition_of_a_fence_goes_into_the_statement_that_writes() -> None:
    request = file_one(project(), write("a"))
    one_pass()
    grant = grant_of(request)
    rows = Request.objects.filter(pk=request.pk)

    assert rows.filter(selectors.fence_holds(grant)).update(priority=3) == 1
    assert (
        rows.filter(selectors.fence_holds(HeldGrant(grant.holder, grant.grant_id, grant.token + 1))).update(priority=4)
        == 0
    )


def test_ends_and_classes_are_not_mixed_up() -> None:
    request = file_one(project(), write("a"))
    one_pass()
    with pytest.raises(ValueError, match="classify"):
        end(grants=[grant_of(request)], to=LeaseState.EXPIRED)
    with pytest.raises(ValueError, match="end_grants"):
        builders.classify(grant=grant_of(request), to=LeaseState.RELEASED)


# --- rows


def test_the_broker_row_comes_back_after_a_flush() -> None:
    Broker.objects.all().delete()
    file_one(project(), write("a"))

    assert len(granted_now()) == 1
    assert Broker.objects.get().pk == 1


def test_resources_are_made_once() -> None:
    of = project()
    file_one(of, write("a"), write("b"))
    file_one(of, write("b"), write("c"))

    assert sorted(Resource.objects.values_list("key", flat=True)) == ["a", "b", "c"]


def test_keys_differ_by_every_byte() -> None:
    of = project()
    for key in ("straße", "STRASSE", "Straße", "a b", "a%b", "a_b"):
        file_one(of, exclusive(key))

    assert len(granted_now()) == 6


def test_a_claim_of_units_is_no_claim_on_the_whole() -> None:
    capacity(key="pool", count=1)
    of = project()
    counted = file_one(of, units("pool"))
    whole = file_one(of, claim("pool", Access.EXCLUSIVE, resource_class=ResourceClass.PHYSICAL))

    assert {*granted_now()} == {counted.holder, whole.holder}
