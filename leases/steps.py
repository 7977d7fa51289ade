"""Writes of the broker. Each refuses to run outside somebody's transaction and takes the broker row first where it says so.

States are written here past ``core.transitions.move``, in sets, with its guarantees kept: the statement names the states
the rows come from (checked against the table of moves), the row count decides, version + 1, one event.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from django.conf import settings

from core import journal
from core.errors import IllegalMove, InvalidInput, LostRace, NotFound, StaleFence
from core.states import Moves
from core.transitions import require_transaction
from leases import planning, sql
from leases.fences import Fence, GrantIdentity, HeldGrant
from leases.models import Claim, Lease, Request, Resource
from leases.planning import ClaimSpec, Demand, LineKey, Plan, Standing, Units, Wanted
from leases.states import LEASE_MOVES, WRITABLE, LeaseState, RequestState, ResourceClass

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
    row = ensure_resources([ClaimSpec(resource_class, key, planning.Access.CAPACITY, units=1)])[ResourceClass(resource_class), key]
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
            _claim_row(ids[bundle.holder], found[spec.resource_class, spec.key].id, spec, rank, pending=not spec.is_capacity)
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
    scan = _Scan(broker, fresh, lines)
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


class _Scan:
    """What a pass has seen so far. Looks further only where the plan depends on it."""

    def __init__(self, broker: sql.BrokerRow, fresh: list[sql.WaitingClaim], lines: list[sql.LineRow]) -> None:
        self.wanted: dict[int, Wanted] = {}
        self.holders: dict[int, str] = {}
        self.compared: dict[int, list[int]] = {}  # request -> resources it claims without counting units
        self.claims: dict[int, int] = {}  # request -> number of its claims
        self.fresh = self._take(fresh)
        self.lines: dict[LineKey, sql.LineRow] = {}  # all that are known
        self.open_lines: dict[LineKey, _OpenLine] = {}  # those whose requests take part, however far behind
        self.reserving = self._line_key(sql.line(broker.reserving_id)) if broker.reserving_id else None
        self._capacity: dict[int, int] = {}
        self._used: dict[int, dict[int, int]] = {}
        self._met: dict[int, list[Standing]] = defaultdict(list)
        self._probed: set[int] = set()
        self._turns_of: set[int] = set()
        self._open(lines)
        self._probe(self.fresh)

    def decide(self) -> Plan:
        """Plan with what is known until nothing unknown can change the plan."""
        while True:
            self._count_units()
            turns = {key: line.last_token for key, line in self.lines.items()}
            plan = planning.plan_grants(
                self.wanted.values(), self._met, self.units, turns=turns, reserving=self.reserving
            )
            if not (self._learn_turns(plan) or self._check_winners(plan) or self._fetch_heads(plan) or self._vacate(plan)):
                return plan

    @property
    def units(self) -> Units:
        return Units(self._capacity, self._used)

    def is_waiting_in(self, key: LineKey) -> bool:
        """False only when the line is known to be empty but for what this pass saw."""
        return key in self.open_lines and not self.open_lines[key].exhausted

    def _take(self, rows: Iterable[sql.WaitingClaim]) -> list[int]:
        taken = []
        for request_id, claims in groupby(rows, key=lambda row: row.request_id):
            of_request = list(claims)
            first = of_request[0]
            counted = [row for row in of_request if row.units]
            compared = [row for row in of_request if not row.units]
            self.wanted[request_id] = Wanted(
                request_id,
                first.project_id,
                first.rank,
                tuple(
                    ClaimSpec(ResourceClass(c.resource_class), c.key, planning.Access(c.access), planning.WorkMode(c.mode), c.version, bool(c.isolated))
                    for c in compared
                ),
                tuple(sorted((row.resource_id, row.units) for row in counted)),
            )
            self.holders[request_id] = first.holder
            self.compared[request_id] = [row.resource_id for row in compared]
            self.claims[request_id] = len(of_request)
            taken.append(request_id)
        return taken

    @staticmethod
    def _line_key(row: sql.LineRow) -> LineKey:
        return row.project_id, planning.parse_demand(row.demand)

    def _open(self, rows: Iterable[sql.LineRow]) -> bool:
        opened = False
        for row in rows:
            key = self._line_key(row)
            self.lines[key] = row
            if key not in self.open_lines:
                self.open_lines[key] = _OpenLine(row.id)
                opened = True
        return opened

    def _count_units(self) -> None:
        ids = {at for wanted in self.wanted.values() for at, _ in wanted.demand}
        ids.update(at for key in self.open_lines for at, _ in key[1])
        ids.update(at for at, _ in (self.reserving[1] if self.reserving else ()))
        if missing := ids - self._capacity.keys():
            for at, capacity, project_id, units in sql.usage(sorted(missing)):
                self._capacity[at] = capacity
                used = self._used.setdefault(at, {})
                if project_id is not None:
                    used[project_id] = int(units)

    def _probe(self, request_ids: Collection[int]) -> None:
        """Find what the claims of these meet."""
        self._probed.update(request_ids)
        asking = [
            sql.Asking(request_id, self.wanted[request_id].rank, str(claim.resource_class), claim.key, probe)
            for request_id in request_ids
            for claim in self.wanted[request_id].claims
            for probe in planning.probes(planning.stance(claim))
        ]
        for row in sql.met(asking):
            claim = ClaimSpec(
                ResourceClass(row.resource_class), row.key, planning.Access(row.access), planning.WorkMode(row.mode), row.version, bool(row.isolated)
            )
            self._met[row.asking].append(Standing(row.request_id, row.rank, row.token, claim))

    def _learn_turns(self, plan: Plan) -> bool:
        """Whose turn it is matters only when not all fit."""
        unknown = {project for project, _ in plan.short} - self._turns_of
        if not unknown:
            return False
        everybody = {wanted.project_id for wanted in self.wanted.values()} - self._turns_of
        self._turns_of |= everybody
        for row in sql.lines_of(sorted(everybody)):
            self.lines.setdefault(self._line_key(row), row)
        return True

    def _check_winners(self, plan: Plan) -> bool:
        """Requests out of a line were eligible once; those that would win, or reserve, are compared again."""
        winners = [request_id for request_id in plan.granted if request_id not in self._probed]
        if plan.reserving:
            settled = {*plan.granted, *plan.stopped}
            heads = [w for w in self.wanted.values() if w.line == plan.reserving and w.request_id not in settled]
            if heads and (first := min(heads, key=lambda w: w.order)).request_id not in self._probed:
                winners.append(first.request_id)
        self._probe(winners)
        return bool(winners)

    def _fetch_heads(self, plan: Plan) -> bool:
        """The next requests of lines that could use more units than those seen so far."""
        settled = {*plan.granted, *plan.stopped}
        hungry = [
            line
            for key, line in self.open_lines.items()
            if not line.exhausted
            and settled.issuperset(line.seen)
            and (key == plan.reserving or planning.fits(key[1], plan.open))
        ]
        if not hungry:
            return False
        each = max(1, min(64, sum(max(0, free) for free in plan.open.values()) // len(hungry)))
        rows = sql.heads([sql.Heads(line.id, *line.behind, each) for line in hungry])
        by_line: dict[int | None, list[sql.WaitingClaim]] = defaultdict(list)
        for row in rows:
            by_line[row.line_id].append(row)
        for line in hungry:
            fetched = self._take(by_line[line.id])
            line.exhausted = len(fetched) < each
            if fetched:
                line.seen += fetched
                line.behind = self.wanted[fetched[-1]].order
        return True

    def _vacate(self, plan: Plan) -> bool:
        """A reserving line without an eligible request keeps nothing; what it kept is offered to those short of it."""
        key = self.reserving
        if key is None or key != plan.reserving or key not in self.open_lines or key in plan.short:
            return False
        self.reserving = None
        self._open(sql.lines_short_of([at for at, _ in key[1]]))
        return True


@dataclass
class _OpenLine:
    id: int
    behind: tuple[int, int] = (-sql.EVERYTHING, 0)

    def __post_init__(self) -> None:
        self.seen: list[int] = []
        self.exhausted = False


def _write_grants(granted: Sequence[Granted], scan: _Scan, now: datetime) -> None:
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
    journal.record("request.granted", subject=f"request:{request_id}", project_id=project_id, holder=holder, token=token)


def _write_waits(plan: Plan, granted: Sequence[Granted], scan: _Scan, now: datetime) -> int | None:
    """Lines, turns and the reason of each request that goes on waiting. Returns: the reserving line."""
    changed: list[tuple[int, str, int | None]] = []
    for key in {*plan.short, *scan.open_lines}:
        short_of = plan.short.get(key)
        if short_of is None and scan.is_waiting_in(key):
            short_of = planning.scarcest_short(key[1], scan.units.capacity, plan.open)
        if key not in scan.lines or scan.lines[key].short_of_id != short_of:
            changed.append((key[0], planning.demand_text(key[1]), short_of))
    if changed:
        scan.lines.update((scan._line_key(row), row) for row in sql.put_lines(changed))
    if scan.open_lines:
        sql.clear_freed()
    if scan.open_lines or plan.short:
        turns: dict[int, int] = {}
        for grant in granted:
            wanted = scan.wanted[grant.request_id]
            for key, line in scan.lines.items():
                if key[0] == grant.project_id and (key == wanted.line or planning.took_turn(line.short_of_id, wanted.demand)):
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
