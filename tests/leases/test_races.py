"""Several connections at once, on the database of the run."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, connections
from django.db.models import Count

from core.errors import StaleFence
from leases import selectors
from leases.fences import HeldGrant
from leases.models import Lease, Request
from leases.states import BLOCKING, RequestState
from tests.leases import builders
from tests.leases.builders import capacity, end, file_one, one_pass, project, read, units, write
from tests.leases.expected import go_together

pytestmark = pytest.mark.django_db(transaction=True)


def in_threads(*work: Callable[[], object]) -> None:
    def run(one: Callable[[], object]) -> object:
        try:
            return one()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(work)) as pool:
        for future in [pool.submit(run, one) for one in work]:
            future.result(timeout=120)


@pytest.mark.req("RB-02", "RB-08", "LF-03")
def test_no_reader_ever_sees_part_of_a_bundle_and_no_two_grants_exclude_each_other() -> None:
    of = [project() for _ in range(3)]
    capacity(key="slots", count=3)
    ended = threading.Event()
    partial: list[tuple[int, int]] = []
    seen = 0

    def worker(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(25):
            keys = chance.sample("abcd", 2)
            file_one(of[seed % 3], write(keys[0]), read(f"{keys[1]}/part"), units("slots"))
            mine = one_pass()
            for grant in mine:
                excluding(grant.request_id)
                end(grants=[grant.identity])

    def excluding(request_id: int) -> None:
        held = Lease.objects.filter(state__in=BLOCKING).select_related("resource", "request")
        specs = [(lease.request_id, selectors.spec_of(lease)) for lease in held]
        mine = [spec for holder, spec in specs if holder == request_id]
        others = [spec for holder, spec in specs if holder != request_id]
        assert all(go_together(a, b) for a in mine for b in others)

    def reader() -> None:
        nonlocal seen
        while not ended.is_set():
            rows = Request.objects.filter(state=RequestState.GRANTED).annotate(
                leased=Count("leases", distinct=True), claimed=Count("claims", distinct=True)
            )
            for row in rows:
                seen += 1
                if row.leased != row.claimed:
                    partial.append((row.leased, row.claimed))

    def watch() -> None:
        try:
            reader()
        finally:
            connections.close_all()

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        in_threads(*(lambda seed=seed: worker(seed) for seed in range(4)))
    finally:
        ended.set()
        watching.join()
    while granted := one_pass():
        end(grants=[grant.identity for grant in granted])

    assert partial == []
    assert seen > 0
    assert set(Request.objects.values_list("state", flat=True)) == {RequestState.ENDED}
    tokens = list(Request.objects.order_by("token").values_list("token", flat=True))
    assert len(tokens) == len(set(tokens)) == 100
    assert selectors.lost_wakes() == []


@pytest.mark.req("RB-12")
def test_of_two_releases_at_once_one_wins() -> None:
    of = project()
    outcomes: list[str] = []
    for n in range(10):
        request = file_one(of, write("a"))
        (grant,) = one_pass()
        start = threading.Barrier(2)

        def release(identity: HeldGrant = grant.identity, start: threading.Barrier = start) -> None:
            start.wait()
            try:
                end(grants=[identity])
                outcomes.append("ended")
            except StaleFence:
                outcomes.append("stale")

        in_threads(release, release)
        request.refresh_from_db()
        assert request.version == 2, f"round {n}"

    assert sorted(outcomes) == ["ended"] * 10 + ["stale"] * 10


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite has one writer at a time")
def test_a_grant_does_not_end_under_a_write_that_checked_its_fence() -> None:
    request = file_one(project(), write("a"))
    (grant,) = one_pass()
    checked, wrote = threading.Event(), threading.Event()
    order: list[str] = []

    def write_with_fence() -> None:
        from core.uow import unit_of_work
        from leases import steps

        @unit_of_work
        def guarded() -> None:
            steps.check_fence(grant.identity)
            checked.set()
            wrote.wait(2)
            order.append("written")

        guarded()

    def release() -> None:
        checked.wait(10)
        wrote_soon = threading.Timer(0.2, wrote.set)
        wrote_soon.start()
        end(grants=[grant.identity])
        order.append("ended")

    in_threads(write_with_fence, release)

    assert order == ["written", "ended"]
    assert not builders.is_granted(request)
    assert connection.vendor == "postgresql"
