"""Writes of the broker. Each refuses to run outside somebody's transaction and takes the broker row first where it says so.

States are written here past ``core.transitions.move``, in sets, with its guarantees kept: the statement names the states
the rows come from (checked against the table of moves), the row count decides, version + 1, one event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings

from core import journal
from core.errors import IllegalMove, InvalidInput, LostRace, StaleFence
from core.transitions import require_transaction
from leases import planning, selectors, sql
from leases.fences import GrantIdentity, HeldGrant
from leases.models import Request, Resource
from leases.planning import STRENGTH, ClaimSpec, Plan
from leases.scan import Scan, line_key
from leases.states import LEASE_MOVES, Access, LeaseState, RequestState, ResourceClass

ResourceName = tuple[ResourceClass, str]


def lock_broker() -> sql.BrokerRow:
    """The scope lock of every grant and every end; after the projects' rows, before everything else."""
    require_transaction()
    return sql.lock_broker()


# --- resources


def ensure_resources(specs: Iterable[ClaimSpec]) -> dict[ResourceName, sql.ResourceRow]:
    """The rows of all claimed resources, made where missing. Needs no lock: the name is unique."""
    require_transaction()
    names = sorted({(str(spec.resource_class), spec.key) for spec in specs})  # one order everywhere: no deadlock
    found = sql.resources(names)
    if len(found) < len(names):
        known = {(row.resource_class, row.key) for row in found}
        missing = [name for name in names if name not in known]
        sql.insert_resources(missing)
        found += sql.resources(missing)
    return {(ResourceClass(row.resource_class), row.key): row for row in found}


def set_capacity(resource_class: ResourceClass, key: str, units: int) -> None:
    """How many units may be in use at once, from now on. More wakes those short of them; fewer ends nothing.

    Writes:  the resource, under the broker row
    units:   >= 0
    """
    broker = lock_broker()
    if units < 0:
        raise InvalidInput("a capacity is a number from 0", key=key, units=units)
    row = ensure_resources([ClaimSpec(resource_class, key, Access.CAPACITY, units=1)])[
        ResourceClass(resource_class), key
    ]
    if Resource.objects.filter(pk=row.id).exclude(capacity=units).update(capacity=units):
        sql.mark_freed([row.id])
        _give_up_reservation(broker, lambda line: row.id in dict(planning.parse_demand(line.demand)))


# --- filing


@dataclass(frozen=True)
class Bundle:
    """What one holder asks for, all together or not at all."""

    project_id: int
    holder: str
    priority: int
    claims: tuple[ClaimSpec, ...]


def file_requests(bundles: Sequence[Bundle], now: datetime) -> list[int]:
    """Let each holder wait for its bundle. Needs no broker lock; the next pass looks at them.

    Writes:  requests and claims, in a number of statements that does not grow with the bundles (up to 1,000 rows each)
    Returns: request ids, in the order of ``bundles``
    Raises:  InvalidInput for a bundle without claims, or one that counts and compares the same resource
    """
    require_transaction()
    merged = [planning.merge(bundle.claims) for bundle in bundles]
    if not all(merged):
        raise InvalidInput("a bundle claims at least one resource")
    found = ensure_resources(spec for claims in merged for spec in claims)
    ranks = [planning.rank(now, bundle.priority) for bundle in bundles]
    ids = sql.insert_requests(
        [sql.RequestRow(b.project_id, b.holder, rank, b.priority) for b, rank in zip(bundles, ranks, strict=True)], now
    )
    sql.insert_claims(
        [
            _claim_row(
                ids[bundle.holder], found[spec.resource_class, spec.key].id, spec, rank, pending=not spec.is_capacity
            )
            for bundle, claims, rank in zip(bundles, merged, ranks, strict=True)
            for spec in claims
        ]
    )
    return [ids[bundle.holder] for bundle in bundles]


def _claim_row(request_id: int, resource_id: int, spec: ClaimSpec, rank: int, *, pending: bool) -> sql.ClaimRow:
    access, mode = str(spec.access), str(spec.mode)
    return sql.ClaimRow(request_id, resource_id, access, mode, spec.version, spec.isolated, spec.units, rank, pending)


# --- granting


@dataclass(frozen=True)
class Granted:
    """A request that became a grant."""

    request_id: int
    holder: str
    project_id: int
    token: int

    @property
    def identity(self) -> HeldGrant:
        return HeldGrant(self.holder, self.request_id, self.token)


def grant_eligible(now: datetime, limit: int | None = None) -> list[Granted]:
    """One pass of the broker: grant what is eligible and gets its units, note for the rest what stops it.

    Looks at new and woken requests and at the lines short of units that came free; never at everything that waits.

    limit:   so many new or woken requests are looked at, by rank; the others stay for the next pass
    Writes:  requests, leases, tokens, lines; under the broker row. One event per grant
    Returns: the grants, in the order of their tokens
    """
    broker = lock_broker()
    fresh, lines = sql.unplanned(limit), sql.lines_short_of_freed()
    if not fresh and not lines:
        return []
    scan = Scan(broker, fresh, lines)
    plan = scan.decide()
    granted = [
        Granted(request_id, scan.holders[request_id], scan.wanted[request_id].project_id, broker.last_token + n)
        for n, request_id in enumerate(plan.granted, start=1)
    ]
    _write_grants(granted, scan, now)
    reserving_id = _write_waits(plan, granted, scan, now)
    if granted or reserving_id != broker.reserving_id:
        sql.set_broker(last_token=broker.last_token + len(granted), reserving_id=reserving_id)
    return granted


def _write_grants(granted: Sequence[Granted], scan: Scan, now: datetime) -> None:
    if not granted:
        return
    rows = [sql.GrantRow(grant.request_id, grant.project_id, grant.token) for grant in granted]
    expires_at = now + timedelta(seconds=settings.FORGE_LEASE_TTL_S)
    moved, leases = sql.write_grants(rows, now=now, expires_at=expires_at)
    if moved != len(rows) or leases != sum(scan.claims[row.request_id] for row in rows):
        raise LostRace(f"one of {len(rows)} requests no longer waits", state=RequestState.WAITING)
    latest = {at: grant.token for grant in granted for at in scan.compared[grant.request_id]}
    if latest:
        sql.raise_resource_tokens(sorted(latest.items()))
        sql.set_pending([grant.request_id for grant in granted if scan.compared[grant.request_id]], pending=False)
    for grant in granted:
        _record_grant(grant.request_id, grant.project_id, grant.holder, grant.token)


def _record_grant(request_id: int, project_id: int, holder: str, token: int) -> None:
    journal.record(
        "request.granted", subject=f"request:{request_id}", project_id=project_id, holder=holder, token=token
    )


def _write_waits(plan: Plan, granted: Sequence[Granted], scan: Scan, now: datetime) -> int | None:
    """Lines, turns and the reason of each request that goes on waiting. Returns: the reserving line."""
    changed: list[tuple[int, str, int | None]] = []
    for key in sorted({*plan.short, *scan.open_lines}):
        short_of = plan.short.get(key)
        if short_of is None and scan.may_go_on(key):
            short_of = planning.scarcest_short(key[1], scan.units.capacity, plan.open)
        if key not in scan.lines or scan.lines[key].short_of_id != short_of:
            changed.append((key[0], planning.demand_text(key[1]), short_of))
    if changed:
        scan.lines.update((line_key(row), row) for row in sql.put_lines(changed))
    if scan.open_lines:
        sql.clear_freed()
    if scan.open_lines or plan.short:
        turns: dict[int, int] = {}
        for grant in granted:
            wanted = scan.wanted[grant.request_id]
            for key, line in scan.lines.items():
                if key[0] == grant.project_id and (
                    key == wanted.line or planning.took_turn(line.short_of_id, wanted.demand)
                ):
                    turns[line.id] = grant.token
        if turns:
            sql.take_turns(sorted(turns.items()))

    fresh = set(scan.fresh)
    won = set(plan.granted)
    marks = [
        sql.Mark(
            request_id,
            plan.stopped.get(request_id, 0),
            0 if request_id in plan.stopped else scan.lines[wanted.line].id,
        )
        for request_id, wanted in scan.wanted.items()
        if request_id not in won and (request_id in fresh or request_id in plan.stopped)
    ]
    if sql.mark_waiting(marks, now) != len(marks):
        raise LostRace("a request no longer waits", state=RequestState.WAITING)
    return scan.lines[plan.reserving].id if plan.reserving else None


def _give_up_reservation(broker: sql.BrokerRow, is_concerned: Callable[[sql.LineRow], bool]) -> None:
    """What was kept for the reserving line is offered to all again; the next pass chooses."""
    if broker.reserving_id and is_concerned(line := sql.line(broker.reserving_id)):
        sql.set_broker(last_token=broker.last_token, reserving_id=None)
        sql.mark_freed([at for at, _ in planning.parse_demand(line.demand)])


# --- what ends a wait


def withdraw(request_ids: Sequence[int], why: str, now: datetime) -> list[int]:
    """Take back those of the requests that still wait; a granted one is not touched, its job ends it.

    Writes:  requests, and what they stopped is looked at again; under the broker row. One event each
    Returns: the ids that were withdrawn
    """
    broker = lock_broker()
    rows = sql.withdraw(request_ids, now)
    _leave(broker, rows)
    for request_id, project_id, _ in rows:
        journal.record("request.withdrawn", subject=f"request:{request_id}", project_id=project_id, why=why)
    return [row[0] for row in rows]


def suspend(request_ids: Sequence[int]) -> list[int]:
    """Let these keep their rank but neither be granted nor stop younger ones. Returns: the ids that changed."""
    broker = lock_broker()
    rows = sql.set_suspended(request_ids, suspended=True)
    _leave(broker, rows)
    return [row[0] for row in rows]


def resume(request_ids: Sequence[int]) -> list[int]:
    """Undo ``suspend``: at the old rank, and the next pass looks at them. Returns: the ids that changed."""
    lock_broker()
    ids = [row[0] for row in sql.set_suspended(request_ids, suspended=False)]
    sql.set_pending(ids, pending=True)
    return ids


def _leave(broker: sql.BrokerRow, rows: Sequence[sql.Row]) -> None:
    ids = [row[0] for row in rows]
    sql.set_pending(ids, pending=False)
    sql.wake_stopped_by(ids)
    lines = {row[2] for row in rows}
    _give_up_reservation(broker, lambda line: line.id in lines)


# --- ending grants


def end_grants(
    fences: Sequence[GrantIdentity], now: datetime, to: LeaseState = LeaseState.RELEASED, why: str = ""
) -> None:
    """End exactly these grants, and wake what watched them (RB-12).

    to:      released or revoked
    Writes:  leases, requests, and who is looked at next; under the broker row. One event each
    Raises:  StaleFence when holder, request or token of any does not match a grant, IllegalMove (an orphaned grant is
             only revoked); nothing is written then, so the caller may journal the refusal
    """
    lock_broker()
    rows = _exactly(fences)
    origins = _origins(rows, to, ends=True)
    ids = [fence.grant_id for fence in fences]
    _move_leases(ids, rows, to, origins, ended_at=now)
    if sql.end_requests(ids, now) != len(ids):
        raise LostRace(f"one of {len(ids)} grants has ended", state=RequestState.GRANTED)
    sql.wake_stopped_by(ids)
    if freed := sorted({row.resource_id for row in rows if row.access == Access.CAPACITY}):
        sql.mark_freed(freed)
    project_of = {row.request_id: row.project_id for row in rows}
    for fence in fences:
        journal.record(
            "request.ended",
            subject=f"request:{fence.grant_id}",
            project_id=project_of[fence.grant_id],
            holder=fence.holder,
            token=fence.token,
            to=to,
            why=why,
        )


def classify(grant: GrantIdentity, to: LeaseState, why: str, now: datetime) -> None:
    """Move all leases of a grant between the states that block: recovery_pending, orphaned, or active again.

    why:     the evidence in one sentence; ``active`` needs proof that the same owner lives
    Writes:  leases, under the broker row; ``active`` also gives a new end. One event. Frees nothing
    Raises:  StaleFence, IllegalMove
    """
    lock_broker()
    rows = _exactly([grant])
    origins = _origins(rows, to, ends=False)
    expires_at = now + timedelta(seconds=settings.FORGE_LEASE_TTL_S) if to is LeaseState.ACTIVE else None
    _move_leases([grant.grant_id], rows, to, origins, ended_at=None, expires_at=expires_at)
    journal.record(
        f"lease.{to}", subject=f"request:{grant.grant_id}", project_id=rows[0].project_id, holder=grant.holder, why=why
    )


def _exactly(fences: Sequence[GrantIdentity]) -> list[sql.HeldRow]:
    """The leases of these grants, if each identity is that of a grant in every part."""
    rows = sql.held([fence.grant_id for fence in fences])
    grants = {(r.holder, r.request_id, r.token) for r in rows if r.request_state == RequestState.GRANTED}
    stale = [fence for fence in fences if (fence.holder, fence.grant_id, fence.token) not in grants]
    if stale or len({fence.grant_id for fence in fences}) != len(fences):
        raise StaleFence(grants=[{"holder": f.holder, "grant": f.grant_id, "token": f.token} for f in stale or fences])
    return rows


def _origins(rows: Sequence[sql.HeldRow], to: LeaseState, *, ends: bool) -> set[LeaseState]:
    if ends != (not LEASE_MOVES[to]):
        raise ValueError(f"{to} is for {'classify' if ends else 'end_grants'}")
    states = {LeaseState(row.lease_state) for row in rows}
    for state in states:
        if to not in LEASE_MOVES[state]:
            raise IllegalMove(f"a lease cannot go from {state} to {to}", state=state, to=to)
    return states


def _move_leases(
    ids: Sequence[int],
    rows: Sequence[sql.HeldRow],
    to: LeaseState,
    origins: Collection[LeaseState],
    *,
    ended_at: datetime | None,
    expires_at: datetime | None = None,
) -> None:
    if sql.move_leases(ids, to, origins, ended_at=ended_at, expires_at=expires_at) != len(rows):
        raise LostRace(f"one of {len(rows)} leases was moved meanwhile", to=to)


def hand_over(fence: GrantIdentity, holder: str, claims: Iterable[ClaimSpec], now: datetime) -> HeldGrant:
    """End a worker's grant and give some of its leases to another holder, with nothing in between.

    The one exception to the order of rank (RB-11): whoever is older goes on waiting, now for ``holder``. It is safe, since
    the worker's leases excluded everything that ``claims`` exclude.

    claims:  name the resources, without capacity; each lease passes on as the worker holds it
    Writes:  the end of the worker's grant and a grant without expiry, under the broker row. Two events
    Raises:  StaleFence, InvalidInput for a claim that asks for more than the worker holds; nothing is written then
    """
    broker = lock_broker()
    _exactly([fence])
    worker = Request.objects.get(pk=fence.grant_id)
    held: dict[ResourceName, tuple[int, ClaimSpec]] = {}
    for lease in worker.leases.select_related("resource"):
        spec = selectors.spec_of(lease)
        held[spec.resource_class, spec.key] = (lease.resource_id, spec)
    passed_on: dict[int, ClaimSpec] = {}
    for claim in planning.merge(claims):
        resource_id, mine = held.get((claim.resource_class, claim.key), (0, None))
        if mine is None or mine.is_capacity or STRENGTH.index(claim.access) > STRENGTH.index(mine.access):
            raise InvalidInput(f"{fence.holder} does not hold {claim.access} on {claim.key}", key=claim.key)
        passed_on[resource_id] = mine
    if not passed_on:
        raise InvalidInput("nothing to hand over")
    end_grants([fence], now, why=f"handed over to {holder}")

    token = broker.last_token + 1
    heir = Request.objects.create(
        project_id=worker.project_id,
        holder=holder,
        rank=worker.rank,
        priority=worker.priority,
        created_at=now,
        granted_at=now,
        planned=True,
        state=RequestState.GRANTED,
        token=token,
    )
    sql.insert_claims([_claim_row(heir.pk, at, spec, heir.rank, pending=False) for at, spec in passed_on.items()])
    sql.insert_leases([sql.GrantRow(heir.pk, heir.project_id, token)], now=now, expires_at=None)
    sql.raise_resource_tokens([(at, token) for at in passed_on])
    sql.set_broker(last_token=token, reserving_id=broker.reserving_id)
    _record_grant(heir.pk, heir.project_id, holder, token)
    return HeldGrant(holder, heir.pk, token)


# --- fences, renewal, expiry


def check_fence(fence: GrantIdentity) -> None:
    """Refuse whoever no longer holds the grant, and keep the grant from ending until the caller's transaction does.

    On PostgreSQL the row is locked for share. A verb that also needs the broker row takes that one first.
    Raises: StaleFence
    """
    require_transaction()
    if not sql.holds(fence.grant_id, fence.holder, fence.token):
        raise StaleFence(holder=fence.holder, grant=fence.grant_id, token=fence.token)


def renew(grant_ids: Sequence[int], now: datetime) -> int:
    """The host vouches for these grants: their active leases end ``lease_ttl`` from now. One statement (up to 1,000).

    Leases without an end and leases that are not active stay as they are. Returns: how many leases were renewed
    """
    require_transaction()
    return sql.renew(grant_ids, now + timedelta(seconds=settings.FORGE_LEASE_TTL_S))


def expire_due(now: datetime) -> list[int]:
    """active -> expired for every lease whose time has passed. Frees nothing, wakes nobody (LF-02).

    Writes:  leases; one event per grant
    Returns: the grants concerned; whoever owns them finds out what became of the owners
    """
    require_transaction()
    grants: dict[int, int] = dict(sql.expire(now))
    for request_id, project_id in sorted(grants.items()):
        journal.record("lease.expired", subject=f"request:{request_id}", project_id=project_id)
    return sorted(grants)
