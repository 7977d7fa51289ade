"""Short words for the tests of the broker: verbs around its steps, claims, and what the rows say afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from core.models import EventCounter, Host, Project
from core.uow import unit_of_work
from leases import steps
from leases.fences import GrantIdentity, HeldGrant
from leases.models import Claim, Lease, Request, Resource
from leases.planning import ClaimSpec
from leases.states import BLOCKING, Access, LeaseState, RequestState, ResourceClass, WorkMode

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
_numbers = itertools.count(1)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


# --- claims


def claim(key: str, access: Access = Access.WRITE, **more: Any) -> ClaimSpec:
    return ClaimSpec(more.pop("resource_class", ResourceClass.LOGICAL), key, access, **more)


def read(key: str, version: int | None = None, **more: Any) -> ClaimSpec:
    return claim(key, Access.READ, version=version, **more)


def write(key: str, version: int | None = None, **more: Any) -> ClaimSpec:
    return claim(key, Access.WRITE, version=version, **more)


def exclusive(key: str, **more: Any) -> ClaimSpec:
    return claim(key, Access.EXCLUSIVE, **more)


def look(key: str, **more: Any) -> ClaimSpec:
    """A read intention on a whole."""
    return claim(key, Access.INTENTION_READ, **more)


def rival(key: str, *, isolated: bool = True) -> ClaimSpec:
    return claim(key, Access.WRITE, mode=WorkMode.COMPETITIVE, isolated=isolated)


def units(key: str, count: int = 1) -> ClaimSpec:
    return claim(key, Access.CAPACITY, units=count, resource_class=ResourceClass.PHYSICAL)


# --- rows


def project(name: str = "") -> Project:
    """A project, and the rows that migrations make once (a flush between tests removes them)."""
    EventCounter.objects.get_or_create(id=1)
    host, _ = Host.objects.get_or_create(name="host-a")
    name = name or f"project-{next(_numbers)}"
    return Project.objects.create(name=name, workspace=f"/srv/{name}", home_host=host, created_at=NOON)


# --- verbs around the steps. The unit of work reads the clock unless a time is handed in, so each is handed one.


def file_bundles(*, bundles: Sequence[steps.Bundle], now: datetime = NOON) -> list[int]:
    return _file(bundles=bundles, now=now)


def file_one(of: Project, *claims: ClaimSpec, priority: int = 0, now: datetime = NOON, holder: str = "") -> Request:
    holder = holder or f"attempt:{next(_numbers)}"
    (pk,) = file_bundles(bundles=[steps.Bundle(of.pk, holder, priority, claims)], now=now)
    return Request.objects.get(pk=pk)


def one_pass(*, now: datetime = NOON, limit: int | None = None) -> list[steps.Granted]:
    return _pass(limit=limit, now=now)


def granted_now(now: datetime = NOON) -> list[str]:
    """Holders granted by one pass, in the order of their tokens."""
    return [grant.holder for grant in one_pass(now=now)]


def end(*, grants: Sequence[GrantIdentity], now: datetime = NOON, to: LeaseState = LeaseState.RELEASED) -> None:
    _end(grants=grants, to=to, now=now)


def end_of(request: Request, now: datetime = NOON, to: LeaseState = LeaseState.RELEASED) -> None:
    end(grants=[grant_of(request)], now=now, to=to)


def withdraw(*, requests: Iterable[Request], now: datetime = NOON) -> list[int]:
    return _withdraw(ids=[request.pk for request in requests], now=now)


def hand_over(*, grant: GrantIdentity, holder: str, claims: Iterable[ClaimSpec], now: datetime = NOON) -> HeldGrant:
    return _hand_over(grant=grant, holder=holder, claims=claims, now=now)


def classify(*, grant: GrantIdentity, to: LeaseState, now: datetime = NOON) -> None:
    _classify(grant=grant, to=to, now=now)


@unit_of_work
def _file(*, bundles: Sequence[steps.Bundle], now: datetime) -> list[int]:
    return steps.file_requests(bundles, now)


@unit_of_work(scope=steps.lock_broker)
def _pass(*, limit: int | None, now: datetime) -> list[steps.Granted]:
    return steps.grant_eligible(now, limit)


@unit_of_work(scope=steps.lock_broker)
def _end(*, grants: Sequence[GrantIdentity], to: LeaseState, now: datetime) -> None:
    steps.end_grants(grants, now, to)


@unit_of_work(scope=steps.lock_broker)
def _withdraw(*, ids: Sequence[int], now: datetime) -> list[int]:
    return steps.withdraw(ids, "test", now)


@unit_of_work(scope=steps.lock_broker)
def _hand_over(*, grant: GrantIdentity, holder: str, claims: Iterable[ClaimSpec], now: datetime) -> HeldGrant:
    return steps.hand_over(grant, holder, claims, now)


@unit_of_work(scope=steps.lock_broker)
def _classify(*, grant: GrantIdentity, to: LeaseState, now: datetime) -> None:
    steps.classify(grant, to, "seen", now)


@unit_of_work(scope=steps.lock_broker)
def capacity(*, key: str, count: int) -> None:
    steps.set_capacity(ResourceClass.PHYSICAL, key, count)


@unit_of_work(scope=steps.lock_broker)
def suspend(*, requests: Iterable[Request]) -> list[int]:
    return steps.suspend([request.pk for request in requests])


@unit_of_work(scope=steps.lock_broker)
def resume(*, requests: Iterable[Request]) -> list[int]:
    return steps.resume([request.pk for request in requests])


@unit_of_work
def check(*, grant: GrantIdentity) -> None:
    steps.check_fence(grant)


@unit_of_work(scope=steps.lock_broker)
def expire(*, now: datetime) -> list[int]:
    return steps.expire_due(now)


@unit_of_work
def renew(*, ids: Sequence[int], now: datetime) -> int:
    return steps.renew(ids, now)


# --- what the rows say


def grant_of(request: Request) -> HeldGrant:
    request.refresh_from_db()
    assert request.token is not None, f"{request} was not granted"
    return HeldGrant(request.holder, request.pk, request.token)


def is_granted(request: Request) -> bool:
    request.refresh_from_db()
    return request.state == RequestState.GRANTED


def leases_of(request: Request) -> list[Lease]:
    return list(request.leases.order_by("resource__key"))


def stopper(request: Request) -> int | None:
    request.refresh_from_db()
    return request.stopped_by_id


def short_of(request: Request) -> str | None:
    request.refresh_from_db()
    return request.line.short_of.key if request.line and request.line.short_of else None


def counter(key: str) -> int:
    return Resource.objects.get(key=key).last_token


def snapshot(of: Project) -> list[tuple[object, ...]]:
    """Every value of every broker row of a project."""
    rows: list[tuple[object, ...]] = []
    for model in (Request, Lease):
        rows += model.objects.filter(project=of).order_by("pk").values_list()
    return rows + list(Claim.objects.filter(request__project=of).order_by("pk").values_list())


def blocking() -> int:
    return Lease.objects.filter(state__in=BLOCKING).count()
