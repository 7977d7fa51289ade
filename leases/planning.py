"""What goes together, who goes first, who gets the units: the broker's decisions as functions of values. Pure.

Stage one compares claims: ``TABLE`` says which two may stand on one resource, ``conflicts`` carries it over the key tree,
and ``probes`` turns it round into what to look for, from which the SQL is made. Stage two hands out units of capacity.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from core.errors import InvalidInput
from leases.states import CLAIMABLE, Access, ResourceClass, WorkMode

KEY_LIMIT = 1024  # bytes; PostgreSQL indexes values up to some 2,700
PRIORITY_MS = 60_000  # one step of priority is worth one minute of age

Demand = tuple[tuple[int, int], ...]  # (resource id, units) by id: the claims of capacity of one request
LineKey = tuple[int, Demand]  # (project id, demand): requests that are alike but for their rank


# --- claims


@dataclass(frozen=True)
class ClaimSpec:
    """A right asked for, on one resource. Plain strings become members of their enums.

    key:      path of the resource; its parts are `key/...`
    version:  of the resource: the one that is read, or the one that a write creates
    isolated: of competitive writers: works where no rival sees it
    units:    > 0 for a claim of capacity, else 0
    Raises:   InvalidInput for what no resource or claim can be
    """

    resource_class: ResourceClass
    key: str
    access: Access
    mode: WorkMode = WorkMode.COOPERATIVE
    version: int | None = None
    isolated: bool = False
    units: int = 0

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "resource_class", ResourceClass(self.resource_class))
            object.__setattr__(self, "access", Access(self.access))
            object.__setattr__(self, "mode", WorkMode(self.mode))
        except ValueError as error:
            raise InvalidInput(f"claim on {self.key!r}: {error}", key=self.key) from error
        if problem := _problem_of_key(self.key) or _problem_of(self):
            raise InvalidInput(f"claim on {self.key!r}: {problem}", key=self.key)

    @property
    def is_capacity(self) -> bool:
        return self.access is Access.CAPACITY

    @property
    def is_rival(self) -> bool:
        """May write beside other rivals (RB-09)."""
        return self.access is Access.WRITE and self.mode is WorkMode.COMPETITIVE and self.isolated


def _problem_of_key(key: str) -> str | None:
    if not key or "" in key.split("/"):
        return "a key is made of segments joined by single slashes"
    if "\0" in key:
        return "a key has no zero byte"
    try:
        length = len(key.encode())
    except UnicodeEncodeError:
        return "a key is valid Unicode"
    return f"a key has at most {KEY_LIMIT} bytes" if length > KEY_LIMIT else None


def _problem_of(claim: ClaimSpec) -> str | None:
    if claim.access not in CLAIMABLE:
        return "this intention follows from a write further down; it is never claimed"
    if claim.units < 0 or claim.is_capacity != (claim.units > 0):
        return "a claim of capacity asks for at least one unit, any other for none"
    if claim.access is Access.WRITE and claim.mode is WorkMode.READ_ONLY:
        return "read-only work does not write"
    if claim.version is not None and claim.version < 0:
        return "versions count from 0"
    return None


def merge(claims: Iterable[ClaimSpec]) -> tuple[ClaimSpec, ...]:
    """One claim per resource: two become one that meets at least what either meets; of units the larger number counts.

    Raises: InvalidInput when a resource is both counted and compared
    """
    merged: dict[tuple[ResourceClass, str], ClaimSpec] = {}
    for claim in claims:
        at = (claim.resource_class, claim.key)
        merged[at] = _stronger(merged[at], claim) if at in merged else claim
    return tuple(merged.values())


STRENGTH = (Access.INTENTION_READ, Access.READ, Access.WRITE, Access.EXCLUSIVE)


def _stronger(a: ClaimSpec, b: ClaimSpec) -> ClaimSpec:
    if a.is_capacity != b.is_capacity:
        raise InvalidInput(f"claim on {a.key!r}: asks for units and for the whole", key=a.key)
    if a.is_capacity:
        return max(a, b, key=lambda claim: claim.units)
    weak, strong = sorted((a, b), key=lambda claim: STRENGTH.index(claim.access))
    if weak.access is strong.access:
        alike = weak.mode is strong.mode
        return replace(
            strong,
            mode=strong.mode if alike else WorkMode.COOPERATIVE,
            version=strong.version if weak.version == strong.version else None,
            isolated=weak.isolated and strong.isolated and alike,
        )
    if strong.access is Access.READ:  # an intention meets a write of the next version, too
        return replace(strong, version=None)
    # A plain writer meets every write and intention that its own read would meet; a rival would not.
    return replace(strong, mode=WorkMode.COOPERATIVE, isolated=False)


# --- keys


class Relation(Enum):
    """Of another key to a given one."""

    SAME = "same"
    ANCESTOR = "ancestor"
    DESCENDANT = "descendant"
    APART = "apart"


def ancestors(key: str) -> list[str]:
    """`a/b/c` has `a/b` and `a`."""
    parts = key.split("/")
    return ["/".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)]


def below(key: str) -> tuple[str, str]:
    """Half-open range of the keys below ``key`` in byte order: "0" comes right after "/"."""
    return f"{key}/", f"{key}0"


def related(key: str, other: str) -> Relation:
    """What ``other`` is to ``key``, by whole segments: `a/bc` is no part of `a/b`."""
    if key == other:
        return Relation.SAME
    if key.startswith(f"{other}/"):
        return Relation.ANCESTOR
    if other.startswith(f"{key}/"):
        return Relation.DESCENDANT
    return Relation.APART


# --- stage one: which claims go together


class Rule(Enum):
    """A cell of the table."""

    TOGETHER = "go together"
    APART = "exclude each other"
    RIVALS = "go together only when both are competitive and isolated"
    NEXT = "go together only as read(v) with write(v + 1)"


_T, _A, _RIVALS, _NEXT = Rule.TOGETHER, Rule.APART, Rule.RIVALS, Rule.NEXT
_COLUMNS = (Access.INTENTION_READ, Access.INTENTION_WRITE, Access.READ, Access.WRITE, Access.EXCLUSIVE)

# The one table of compatibility, for two claims on one resource. The intentions are those of Gray (1976): a claim takes
# one on each ancestor of its key. Capacity is not in it: units are counted, not compared.
# fmt: off
TABLE: Mapping[Access, Mapping[Access, Rule]] = {
    access: dict(zip(_COLUMNS, row, strict=True))
    for access, row in {
        #                       int. read  int. write  read   write    exclusive
        Access.INTENTION_READ:  (_T,       _T,         _T,    _A,      _A),
        Access.INTENTION_WRITE: (_T,       _T,         _A,    _RIVALS, _A),
        Access.READ:            (_T,       _A,         _T,    _NEXT,   _A),
        Access.WRITE:           (_A,       _RIVALS,    _NEXT, _RIVALS, _A),
        Access.EXCLUSIVE:       (_A,       _A,         _A,    _A,      _A),
    }.items()
}
# fmt: on


class Stance(NamedTuple):
    """What of a claim the table looks at, on its own resource or as an intention on an ancestor."""

    access: Access
    rival: bool
    version: int | None

    @property
    def intention(self) -> Stance:
        """On an ancestor. Versions of a whole and of its parts do not compare, so none is carried up."""
        reads = self.access in (Access.INTENTION_READ, Access.READ)
        return Stance(Access.INTENTION_READ if reads else Access.INTENTION_WRITE, self.rival, None)


def stance(claim: ClaimSpec) -> Stance:
    return Stance(claim.access, claim.is_rival, claim.version)


def _go_together(a: Stance, b: Stance) -> bool:
    rule = TABLE[a.access][b.access]
    if rule is Rule.RIVALS:
        return a.rival and b.rival
    if rule is Rule.NEXT:
        read, write = (a, b) if a.access is Access.READ else (b, a)
        return read.version is not None and write.version == read.version + 1
    return rule is Rule.TOGETHER


def compatible(a: ClaimSpec, b: ClaimSpec) -> bool:
    """Whether two claims on one and the same resource may be leases at once."""
    return a.is_capacity or b.is_capacity or _go_together(stance(a), stance(b))


def conflicts(a: ClaimSpec, b: ClaimSpec) -> bool:
    """Whether two claims exclude each other, also as whole and part."""
    if a.resource_class is not b.resource_class or a.is_capacity or b.is_capacity:
        return False
    match related(a.key, b.key):
        case Relation.SAME:
            return not _go_together(stance(a), stance(b))
        case Relation.ANCESTOR:
            return not _go_together(stance(a).intention, stance(b))
        case Relation.DESCENDANT:
            return not _go_together(stance(a), stance(b).intention)
        case Relation.APART:
            return False


class Probe(NamedTuple):
    """What to look for among the claims on resources that stand in ``relation`` to one's own: those it meets conflict."""

    relation: Relation
    access: Access
    spares_rivals: bool
    spared_version: int | None

    def meets(self, other: ClaimSpec) -> bool:
        return (
            other.access is self.access
            and not (self.spares_rivals and other.is_rival)
            and (self.spared_version is None or other.version != self.spared_version)
        )


@functools.lru_cache(maxsize=1024)
def probes(mine: Stance) -> tuple[Probe, ...]:
    """The table turned round for one claim: everything that conflicts with it is met by one of these."""
    found = []
    for other in STRENGTH:
        for relation, one, two in (
            (Relation.SAME, mine, Stance(other, False, None)),
            (Relation.ANCESTOR, mine.intention, Stance(other, False, None)),
            (Relation.DESCENDANT, mine, Stance(other, False, None).intention),
        ):
            rule = TABLE[one.access][two.access]
            if rule is Rule.TOGETHER:
                continue
            spares_rivals = rule is Rule.RIVALS and one.rival and other is Access.WRITE
            spared = None
            if rule is Rule.NEXT and one.version is not None:
                spared = one.version + (1 if one.access is Access.READ else -1)
            found.append(Probe(relation, other, spares_rivals, spared))
    return tuple(found)


# --- order


def rank(created_at: datetime, priority: int) -> int:
    """Age and priority in one static number, in milliseconds; the smaller goes first, ties by id.

    One step of priority is worth one minute of age, so what is urgent passes but nothing waits for ever (RB-10).
    """
    return round(created_at.timestamp() * 1000) - priority * PRIORITY_MS


# --- stage two: who gets the units


@dataclass(frozen=True)
class Wanted:
    """A waiting request as the planner sees it; ``claims`` without those of capacity, which are its ``demand``."""

    request_id: int
    project_id: int
    rank: int
    claims: tuple[ClaimSpec, ...] = ()
    demand: Demand = ()

    @property
    def order(self) -> tuple[int, int]:
        return self.rank, self.request_id

    @property
    def line(self) -> LineKey:
        return self.project_id, self.demand


@dataclass(frozen=True)
class Standing:
    """A claim that another may meet: a blocking lease (with the token of its grant), or one that waits (token None)."""

    request_id: int
    rank: int
    token: int | None
    claim: ClaimSpec


@dataclass(frozen=True)
class Units:
    """State of the capacity resources: how many units there are, and how many each project has in use."""

    capacity: Mapping[int, int] = field(default_factory=dict)
    used: Mapping[int, Mapping[int, int]] = field(default_factory=dict)

    def free(self) -> dict[int, int]:
        return {at: capacity - sum(self.used.get(at, {}).values()) for at, capacity in self.capacity.items()}


@dataclass(frozen=True)
class Plan:
    """What a pass decides.

    granted:   requests in the order of their tokens
    stopped:   request -> the request that stops it
    short:     line that still waits -> the capacity resource it is short of
    reserving: the line for whose first request units are kept as they free
    open:      units of each resource that a line other than the reserving one may take
    left:      the units after the grants
    """

    granted: tuple[int, ...]
    stopped: Mapping[int, int]
    short: Mapping[LineKey, int]
    reserving: LineKey | None
    open: Mapping[int, int]
    left: Units


def plan_grants(
    waiting: Collection[Wanted],
    met: Mapping[int, Collection[Standing]],
    units: Units,
    *,
    turns: Mapping[LineKey, int] | None = None,
    reserving: LineKey | None = None,
) -> Plan:
    """Decide a pass over ``waiting``, none of which is suspended.

    (1) A request is eligible when none of its claims conflicts with a blocking lease or an older waiting claim, so nobody
    younger takes a part that an older blocked bundle waits for (RB-11).
    (2) Eligible requests take all their units in one step, the project served longest ago first, by rank inside a project.
    What does not fit is passed over, but the first such line may reserve (``_reserved``), so it is not passed for ever.

    met:   per request the standing claims its own may meet; missing means none
    turns: per line the token of its project's latest turn
    """
    stopped: dict[int, int] = {}
    granted: list[int] = []
    lines: dict[LineKey, list[Wanted]] = defaultdict(list)
    for wanted in sorted(waiting, key=lambda w: w.order):
        if stopper := stopper_of(wanted, met.get(wanted.request_id, ())):
            stopped[wanted.request_id] = stopper
        elif wanted.demand:
            lines[wanted.line].append(wanted)
        else:
            granted.append(wanted.request_id)

    share = _Share(units, reserving, {key: (0, (turns or {}).get(key, 0)) for key in lines}, lines)
    while key := share.next_line():
        granted.append(share.take(key))
    share.choose_reserving()
    return Plan(
        tuple(granted),
        stopped,
        {key: at for key in lines if lines[key] and (at := share.short_of(key)) is not None},
        share.reserving,
        share.open(),
        Units(units.capacity, share.used),
    )


def stopper_of(wanted: Wanted, met: Iterable[Standing]) -> int | None:
    """The nearest older waiting request that conflicts, else the latest grant that blocks; None: eligible.

    The nearest one ends last, so watching it means being woken once instead of at each end in front of it.
    """
    waits, blocks = (0, 0), (0, 0)
    older = False
    for standing in met:
        if not any(conflicts(claim, standing.claim) for claim in wanted.claims):
            continue
        if standing.token is not None:
            blocks = max(blocks, (standing.token, standing.request_id))
        elif (at := (standing.rank, standing.request_id)) < wanted.order and (not older or at > waits):
            waits, older = at, True
    return (waits[1] if older else blocks[1]) or None


@dataclass
class _Share:
    """The state of stage two while it hands out units."""

    units: Units
    reserving: LineKey | None
    turn: dict[LineKey, tuple[int, int]]  # (0, token of the latest turn) or, in this pass, (1, how many grants ago)
    lines: Mapping[LineKey, list[Wanted]]

    def __post_init__(self) -> None:
        self.free = self.units.free()
        self.used = {at: dict(by_project) for at, by_project in self.units.used.items()}
        self.grants = 0

    def _reserved(self) -> dict[int, int]:
        """Units kept for the reserving line: of its scarcest resource, and of the next only once that one suffices."""
        kept: dict[int, int] = {}
        if self.reserving:
            for at, wants in by_scarcity(self.reserving[1], self.units.capacity):
                kept[at] = max(0, min(wants, self.free.get(at, 0)))
                if kept[at] < wants:
                    break
        return kept

    def open(self) -> dict[int, int]:
        kept = self._reserved()
        return {at: free - kept.get(at, 0) for at, free in self.free.items()}

    def short_of(self, key: LineKey) -> int | None:
        return scarcest_short(key[1], self.units.capacity, self.free if key == self.reserving else self.open())

    def next_line(self) -> LineKey | None:
        fitting = [key for key, heads in self.lines.items() if heads and self.short_of(key) is None]
        if not fitting:
            return None
        return self.reserving if self.reserving in fitting else min(fitting, key=self._place)

    def _place(self, key: LineKey) -> tuple[tuple[int, int], tuple[int, int]]:
        return self.turn[key], self.lines[key][0].order

    def take(self, key: LineKey) -> int:
        project, demand = key
        for at, wants in demand:
            self.free[at] -= wants
            by_project = self.used.setdefault(at, {})
            by_project[project] = by_project.get(project, 0) + wants
        if key == self.reserving:
            self.reserving = None
        self.grants += 1
        for other in self.turn:
            if other[0] == project and (other == key or took_turn(self.short_of(other), demand)):
                self.turn[other] = (1, self.grants)
        return self.lines[key].pop(0).request_id

    def choose_reserving(self) -> None:
        """The first line in turn that waits and may reserve does."""
        if self.reserving is None:
            left = Units(self.units.capacity, self.used)
            waiting = sorted((key for key, heads in self.lines.items() if heads), key=self._place)
            self.reserving = next((key for key in waiting if may_reserve(key, left)), None)


def may_reserve(key: LineKey, units: Units) -> bool:
    """Whether there are enough units at all, and others hold those that ``key`` lacks.

    A project that has used up its own limit waits for itself; units kept for it would only idle.
    """
    project, demand = key
    free = units.free()
    return all(
        units.capacity.get(at, 0) >= wants and (free[at] >= wants or bool(set(units.used.get(at, {})) - {project}))
        for at, wants in demand
    )


def by_scarcity(demand: Demand, capacity: Mapping[int, int]) -> list[tuple[int, int]]:
    """The scarcest first: what many projects share comes last, so that it is kept idle the shortest."""
    return sorted(demand, key=lambda part: (capacity.get(part[0], 0), part[0]))


def scarcest_short(demand: Demand, capacity: Mapping[int, int], available: Mapping[int, int]) -> int | None:
    """The scarcest resource that lacks units for ``demand``; None: it fits."""
    return next((at for at, wants in by_scarcity(demand, capacity) if available.get(at, 0) < wants), None)


def open_units(units: Units, reserving: LineKey | None) -> dict[int, int]:
    """Free units net of those kept for the reserving line."""
    return _Share(units, reserving, {}, {}).open()


def took_turn(short_of: int | None, demand: Demand) -> bool:
    """Whether a grant of ``demand`` was also the turn of its project's other line, short of ``short_of``.

    Turns are taken per shortage: a project that is served one kind of seat keeps its place for another kind.
    """
    return short_of in dict(demand)


def how_often(demand: Demand, available: Mapping[int, int]) -> int:
    """How many requests of this demand the units suffice for."""
    return max(0, min(available.get(at, 0) // wants for at, wants in demand))


def demand_text(demand: Demand) -> str:
    """As stored in a line's row: `3:1,17:2`."""
    return ",".join(f"{at}:{wants}" for at, wants in demand)


def parse_demand(text: str) -> Demand:
    return tuple((int(at), int(wants)) for at, wants in (part.split(":") for part in text.split(",") if part))


def standing_conflicts(waiting: Sequence[Wanted], blocking: Sequence[Standing]) -> dict[int, list[Standing]]:
    """``met`` computed from everything, pair by pair: what the broker finds by index (for small worlds and checks)."""
    met: dict[int, list[Standing]] = defaultdict(list)
    for wanted in waiting:
        older = (
            Standing(other.request_id, other.rank, None, claim)
            for other in waiting
            if other.order < wanted.order
            for claim in other.claims
        )
        for standing in (*older, *blocking):
            if any(conflicts(claim, standing.claim) for claim in wanted.claims):
                met[wanted.request_id].append(standing)
    return met
