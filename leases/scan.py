"""What a pass of the broker reads: no more than its plan can depend on, however much waits elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import groupby

from leases import planning, sql
from leases.planning import ClaimSpec, LineKey, Plan, Relation, Standing, Units, Wanted
from leases.states import Access, ResourceClass, WorkMode

MOST_HEADS = 64  # requests of one line that are fetched at a time
MOST_CANDIDATES = 8  # lines looked at for the one that reserves


def line_key(row: sql.LineRow) -> LineKey:
    return row.project_id, planning.parse_demand(row.demand)


def _spec(row: sql.WaitingClaim) -> ClaimSpec:
    resource_class, access, mode = ResourceClass(row.resource_class), Access(row.access), WorkMode(row.mode)
    return ClaimSpec(resource_class, row.key, access, mode, row.version, bool(row.isolated))


@dataclass
class OpenLine:
    """A line whose requests take part in the pass: how far it was read."""

    id: int
    behind: tuple[int, int] = (-sql.EVERYTHING, 0)
    seen: list[int] = field(default_factory=list)
    exhausted: bool = False


class Scan:
    """What a pass has seen so far. Looks further only where the plan depends on it."""

    def __init__(self, broker: sql.BrokerRow, fresh: list[sql.WaitingClaim], lines: list[sql.LineRow]) -> None:
        self.wanted: dict[int, Wanted] = {}
        self.holders: dict[int, str] = {}
        self.compared: dict[int, list[int]] = {}  # request -> resources it claims without counting units
        self.claims: dict[int, int] = {}  # request -> number of its claims
        self.fresh = self._take(fresh)
        self.lines: dict[LineKey, sql.LineRow] = {}  # all that are known
        self.open_lines: dict[LineKey, OpenLine] = {}  # those whose requests take part, however far behind
        self.reserving: LineKey | None = None
        if broker.reserving_id:
            row = sql.line(broker.reserving_id)
            self.reserving = line_key(row)
            lines = [*lines, row]  # always: its first request may no longer be eligible
        self._capacity: dict[int, int] = {}
        self._used: dict[int, dict[int, int]] = {}
        self._met: dict[int, list[Standing]] = defaultdict(list)
        self._names: dict[int, tuple[ResourceClass, str]] = {}
        self._probed: set[int] = set()
        self._turns_of: set[int] = set()
        self._looked_for_reserving = False
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
            if not (
                self._learn_turns(plan)
                or self._check_winners(plan)
                or self._fetch_heads(plan)
                or self._vacate(plan)
                or self._look_for_reserving(plan)
            ):
                return plan

    @property
    def units(self) -> Units:
        return Units(self._capacity, self._used)

    def may_go_on(self, key: LineKey) -> bool:
        """Whether the line may hold more requests than this pass saw."""
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
                tuple(_spec(row) for row in compared),
                tuple(sorted((row.resource_id, row.units) for row in counted)),
            )
            self.holders[request_id] = first.holder
            self.compared[request_id] = [row.resource_id for row in compared]
            self.claims[request_id] = len(of_request)
            taken.append(request_id)
        return taken

    def _open(self, rows: Iterable[sql.LineRow]) -> bool:
        opened = False
        for row in rows:
            key = line_key(row)
            self.lines[key] = row
            if key not in self.open_lines:
                self.open_lines[key] = OpenLine(row.id)
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
        claims = [
            (self.wanted[request_id], claim, self.compared[request_id][n])
            for request_id in request_ids
            for n, claim in enumerate(self.wanted[request_id].claims)
        ]
        if not claims:
            return
        on = self._related(claims)
        asking = [
            sql.Asking(wanted.request_id, wanted.rank, resource_id, probe)
            for wanted, claim, own in claims
            for probe in planning.probes(planning.stance(claim))
            for resource_id in ([own] if probe.relation is Relation.SAME else on[probe.relation, own])
        ]
        for request_id, row in sql.met(asking):
            resource_class, key = self._names[row.resource_id]
            claim = ClaimSpec(
                resource_class, key, Access(row.access), WorkMode(row.mode), row.version, bool(row.isolated)
            )
            self._met[request_id].append(Standing(row.request_id, row.rank, row.token, claim))

    def _related(self, claims: Iterable[tuple[Wanted, ClaimSpec, int]]) -> dict[tuple[Relation, int], list[int]]:
        """The resources above and below each claimed one, as far as somebody may stand there."""
        own = {(str(claim.resource_class), claim.key): at for _, claim, at in claims}
        above = {(cls, each) for cls, key in own for each in planning.ancestors(key)} - own.keys()
        for (cls, key), at in own.items():
            self._names[at] = ResourceClass(cls), key
        for row in (*sql.resources(sorted(above)), *sql.resources_below(sorted(own))):
            self._names[row.id] = ResourceClass(row.resource_class), row.key
        ids = {(str(cls), key): at for at, (cls, key) in self._names.items()}
        related: dict[tuple[Relation, int], list[int]] = defaultdict(list)
        for (cls, key), at in ids.items():
            for each in planning.ancestors(key):
                whole = ids.get((cls, each))
                if whole is not None:
                    related[Relation.ANCESTOR, at].append(whole)
                    related[Relation.DESCENDANT, whole].append(at)
        return related

    def _learn_turns(self, plan: Plan) -> bool:
        """Whose turn it is matters only when not all fit."""
        unknown = {project for project, _ in plan.short} - self._turns_of
        if not unknown:
            return False
        everybody = {wanted.project_id for wanted in self.wanted.values()} - self._turns_of
        self._turns_of |= everybody
        for row in sql.lines_of(sorted(everybody)):
            self.lines.setdefault(line_key(row), row)
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
        """Of each line that may use units, as many requests as could."""
        if not self.open_lines:
            return False
        settled = {*plan.granted, *plan.stopped}
        before = planning.open_units(self.units, self.reserving)
        wanted: list[tuple[OpenLine, sql.Heads]] = []
        for key, line in self.open_lines.items():
            if line.exhausted or not settled.issuperset(line.seen):
                continue
            reserves = key == self.reserving == plan.reserving
            available = self.units.free() if reserves else plan.open if line.seen else before
            count = max(planning.how_often(key[1], available), int(reserves))
            if count:
                wanted.append((line, sql.Heads(line.id, *line.behind, min(count, MOST_HEADS))))
        self._fetch(wanted)
        return bool(wanted)

    def _fetch(self, wanted: list[tuple[OpenLine, sql.Heads]]) -> None:
        by_line: dict[int | None, list[sql.WaitingClaim]] = defaultdict(list)
        for row in sql.heads([heads for _, heads in wanted]):
            by_line[row.line_id].append(row)
        for line, heads in wanted:
            fetched = self._take(by_line[line.id])
            line.seen += fetched
            line.exhausted = len(fetched) < heads.limit
            if fetched:
                line.behind = self.wanted[fetched[-1]].order

    def _vacate(self, plan: Plan) -> bool:
        """A reserving line without an eligible request keeps nothing; what it kept is offered to those short of it."""
        key = self.reserving
        if key is None or key != plan.reserving or key not in self.open_lines or key in plan.short:
            return False
        self.reserving = None
        self._open(sql.lines_short_of([at for at, _ in key[1]]))
        return True

    def _look_for_reserving(self, plan: Plan) -> bool:
        """When units may be kept for another line from now on, the lines that wait longest are candidates, wherever they wait.

        Only by the order of turns, in which ties go by id; so few lines are read, however many wait.
        """
        if plan.reserving == self.reserving is not None or not (plan.short or self.open_lines):
            return False
        if not self._looked_for_reserving:
            self._looked_for_reserving = True
            if self._open(sql.lines_waiting(MOST_CANDIDATES)):
                return True
        settled = {*plan.granted, *plan.stopped}
        chosen = self.lines[plan.reserving].last_token if plan.reserving in self.lines else sql.EVERYTHING
        earlier = [
            (self.lines[key].last_token, line.id, line)
            for key, line in self.open_lines.items()
            if not line.exhausted
            and settled.issuperset(line.seen)
            and self.lines[key].last_token < chosen
            and planning.may_reserve(key, plan.left)
        ]
        wanted = [(line, sql.Heads(line.id, *line.behind, 1)) for _, _, line in sorted(earlier)[:MOST_CANDIDATES]]
        self._fetch(wanted)
        return bool(wanted)
