"""The hot statements of the broker: set-based, the same text on SQLite (from 3.35) and PostgreSQL (from 15).

The ORM costs four to five times the raw statement (docs/performance.md), and a job start pays for each of these. Nothing
is decided here: callers pass what was decided, and every write of a state names the states it comes from and reports how
many rows it found. Conditions repeat those of the partial indexes word for word, since SQLite compares them by form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from django.db import connection

from leases.planning import Probe, below
from leases.states import BLOCKING, WRITABLE, Access

T = TypeVar("T")
Row = tuple[Any, ...]

CHUNK = 1000  # rows of a VALUES list; SQLite takes 32,766 parameters
EVERYTHING = 2**62
_BLOCKS = "state IN ({})".format(", ".join(f"'{state}'" for state in BLOCKING))
_WRITABLE = "state IN ({})".format(", ".join(f"'{state}'" for state in WRITABLE))


def chunks(rows: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _fetch(sql: str, parameters: Sequence[Any]) -> list[Row]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return list(cursor.fetchall())


def _write(sql: str, parameters: Sequence[Any]) -> int:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return int(cursor.rowcount)


def _places(count: int) -> str:
    return ", ".join(["%s"] * count)


def _values(rows: Sequence[Row]) -> tuple[str, list[Any]]:
    one = f"({_places(len(rows[0]))})"
    return "VALUES " + ", ".join([one] * len(rows)), [value for row in rows for value in row]


def _time(at: datetime | None) -> Any:
    return connection.ops.adapt_datetimefield_value(at)


# --- the broker row


class BrokerRow(NamedTuple):
    last_token: int
    reserving_id: int | None


def lock_broker() -> BrokerRow:
    """The scope lock. On SQLite the transaction is the only writer anyway."""
    lock = " FOR UPDATE" if connection.features.has_select_for_update else ""
    found = _fetch(f"SELECT last_token, reserving_id FROM leases_broker WHERE id = 1{lock}", [])
    if not found:  # an emptied database; the migration makes the row
        _write("INSERT INTO leases_broker (id, last_token) VALUES (1, 0) ON CONFLICT (id) DO NOTHING", [])
        return lock_broker()
    return BrokerRow(*found[0])


def set_broker(*, last_token: int, reserving_id: int | None) -> None:
    _write("UPDATE leases_broker SET last_token = %s, reserving_id = %s WHERE id = 1", [last_token, reserving_id])


# --- resources


class ResourceRow(NamedTuple):
    id: int
    resource_class: str
    key: str


def resources(names: Sequence[tuple[str, str]]) -> list[ResourceRow]:
    found: list[ResourceRow] = []
    for part in chunks(names):
        values, parameters = _values(part)
        sql = f"""
            SELECT s.id, s.resource_class, s.key FROM ({values}) AS v
            JOIN leases_resource s ON s.resource_class = v.column1 AND s.key = v.column2"""
        found += [ResourceRow(*row) for row in _fetch(sql, parameters)]
    return found


def insert_resources(names: Sequence[tuple[str, str]]) -> None:
    for part in chunks(names):
        values, parameters = _values([(cls, key, 0, 0, False) for cls, key in part])
        _write(
            f"""INSERT INTO leases_resource (resource_class, key, capacity, last_token, freed) {values}
                ON CONFLICT (resource_class, key) DO NOTHING""",
            parameters,
        )


def mark_freed(resource_ids: Sequence[int]) -> None:
    """Units of these came free: note it where somebody is short of them."""
    _write(
        f"""UPDATE leases_resource SET freed = TRUE WHERE id IN ({_places(len(resource_ids))}) AND NOT freed
            AND EXISTS (SELECT 1 FROM leases_line l WHERE l.short_of_id = leases_resource.id)""",
        resource_ids,
    )


def clear_freed() -> None:
    _write("UPDATE leases_resource SET freed = FALSE WHERE freed", [])


def raise_resource_tokens(tokens: Sequence[tuple[int, int]]) -> None:
    """(resource, token of its latest lease); the counter only grows."""
    for part in chunks(tokens):
        values, parameters = _values(part)
        _write(
            f"""UPDATE leases_resource AS s SET last_token = v.column2 FROM ({values}) AS v
                WHERE s.id = v.column1 AND s.last_token < v.column2""",
            parameters,
        )


def usage(resource_ids: Sequence[int]) -> list[Row]:
    """(resource, capacity, project or None, units in use), counted from the blocking leases."""
    return _fetch(
        f"""SELECT s.id, s.capacity, l.project_id, COALESCE(SUM(l.units), 0) FROM leases_resource s
            LEFT JOIN leases_lease l ON l.resource_id = s.id AND l.access = '{Access.CAPACITY}' AND l.{_BLOCKS}
            WHERE s.id IN ({_places(len(resource_ids))}) GROUP BY s.id, s.capacity, l.project_id""",
        resource_ids,
    )


# --- requests and claims


class RequestRow(NamedTuple):
    project_id: int
    holder: str
    rank: int
    priority: int


class ClaimRow(NamedTuple):
    request_id: int
    resource_id: int
    access: str
    mode: str
    resource_version: int | None
    isolated: bool
    units: int
    rank: int
    pending: bool


def insert_requests(rows: Sequence[RequestRow], now: datetime) -> dict[str, int]:
    """Returns: holder -> id."""
    ids: dict[str, int] = {}
    for part in chunks(rows):
        values, parameters = _values([("waiting", 0, *row, _time(now), False, False) for row in part])
        sql = f"""
            INSERT INTO leases_request
                (state, version, project_id, holder, rank, priority, created_at, suspended, planned)
            {values} RETURNING holder, id"""
        ids.update((holder, pk) for holder, pk in _fetch(sql, parameters))
    return ids


def insert_claims(rows: Sequence[ClaimRow]) -> None:
    for part in chunks(rows):
        values, parameters = _values(part)
        _write(
            f"""INSERT INTO leases_claim
                (request_id, resource_id, access, mode, resource_version, isolated, units, rank, pending) {values}""",
            parameters,
        )


class WaitingClaim(NamedTuple):
    """A claim of a waiting request, beside what the planner needs of the request."""

    request_id: int
    project_id: int
    holder: str
    rank: int
    line_id: int | None
    resource_id: int
    resource_class: str
    key: str
    access: str
    mode: str
    version: int | None
    isolated: bool
    units: int


_WITH_CLAIMS = """
    SELECT r.id, r.project_id, r.holder, r.rank, r.line_id, c.resource_id, s.resource_class, s.key,
           c.access, c.mode, c.resource_version, c.isolated, c.units
    FROM ({requests}) AS r
    JOIN leases_claim c ON c.request_id = r.id
    JOIN leases_resource s ON s.id = c.resource_id
    ORDER BY r.rank, r.id, c.id"""


def unplanned(limit: int | None) -> list[WaitingClaim]:
    """New and woken requests, by rank."""
    requests = """
        SELECT id, project_id, holder, rank, line_id FROM leases_request
        WHERE NOT planned AND state = 'waiting' AND NOT suspended ORDER BY rank, id LIMIT %s"""
    found = _fetch(_WITH_CLAIMS.format(requests=requests), [EVERYTHING if limit is None else limit])
    return [WaitingClaim(*row) for row in found]


class Heads(NamedTuple):
    """The next ``limit`` requests of a line behind (rank, id)."""

    line_id: int
    rank: int
    request_id: int
    limit: int


def heads(wanted: Sequence[Heads]) -> list[WaitingClaim]:
    found: list[WaitingClaim] = []
    for part in chunks(wanted, 100):  # SQLite takes 500 terms in a UNION
        requests = " UNION ALL ".join(
            [
                """SELECT * FROM (
                    SELECT id, project_id, holder, rank, line_id FROM leases_request
                    WHERE line_id = %s AND state = 'waiting' AND NOT suspended AND planned AND (rank, id) > (%s, %s)
                    ORDER BY rank, id LIMIT %s) AS h"""
            ]
            * len(part)
        )
        parameters = [value for line in part for value in line]
        found += [WaitingClaim(*row) for row in _fetch(_WITH_CLAIMS.format(requests=requests), parameters)]
    return found


# --- stage one: what a claim may meet

RANGES = 100  # terms of an OR


def resources_below(names: Sequence[tuple[str, str]]) -> list[ResourceRow]:
    """What stands below these names with a lease or with a claim that waits.

    The bounds are constants of the statement, not columns of a VALUES list: only so does PostgreSQL see how few rows are
    in a range and go by the index.
    """
    found: list[Row] = []
    for part in chunks(names, RANGES):
        ranges = " OR ".join(["(s.resource_class = %s AND s.key >= %s AND s.key < %s)"] * len(part))
        found += _fetch(
            f"""SELECT s.id, s.resource_class, s.key FROM leases_resource s WHERE ({ranges})
                AND (EXISTS (SELECT 1 FROM leases_claim c WHERE c.resource_id = s.id AND c.pending)
                     OR EXISTS (SELECT 1 FROM leases_lease l WHERE l.resource_id = s.id AND l.{_BLOCKS}))""",
            [value for cls, key in part for value in (cls, *below(key))],
        )
    return [ResourceRow(*row) for row in found]


class Asking(NamedTuple):
    """One probe of one claim, on one resource."""

    request_id: int
    rank: int
    resource_id: int
    probe: Probe


class StandingClaim(NamedTuple):
    """A claim that waits, or (with the token of its grant) a blocking lease."""

    id: int
    request_id: int
    rank: int
    token: int | None
    resource_id: int
    access: str
    mode: str
    version: int | None
    isolated: bool


_SPARED = """NOT (p.spares_rivals = 1 AND o.mode = 'competitive' AND o.isolated)
             AND (o.resource_version IS NULL OR o.resource_version <> p.spared_version)"""
# The nearest older waiting claim, and the latest blocking lease: one step in an index each, however many there are.
# They are found as values and fetched by id, since a join on them makes PostgreSQL hash the whole table for a large batch.
_MET = f"""
    WITH probe (asking, rank, resource_id, access, spares_rivals, spared_version) AS ({{values}})
    SELECT p.asking,
        (SELECT o.id FROM leases_claim o
         WHERE o.resource_id = p.resource_id AND o.access = p.access AND o.pending
         AND (o.rank, o.request_id) < (p.rank, p.asking) AND {_SPARED}
         ORDER BY o.rank DESC, o.request_id DESC LIMIT 1),
        (SELECT o.id FROM leases_lease o
         WHERE o.resource_id = p.resource_id AND o.access = p.access AND o.{_BLOCKS} AND {_SPARED}
         ORDER BY o.token DESC LIMIT 1)
    FROM probe p"""


def met(asking: Sequence[Asking]) -> list[tuple[int, StandingClaim]]:
    """(asking request, standing claim): for each probe the nearest older waiting claim and the latest blocking lease."""
    waits: list[tuple[int, int]] = []
    blocks: list[tuple[int, int]] = []
    for part in chunks(asking):
        rows = [
            (
                ask.request_id,
                ask.rank,
                ask.resource_id,
                str(ask.probe.access),
                int(ask.probe.spares_rivals),
                -1 if ask.probe.spared_version is None else ask.probe.spared_version,
            )
            for ask in part
        ]
        values, parameters = _values(rows)
        for request_id, claim_id, lease_id in _fetch(_MET.format(values=values), parameters):
            waits += [(request_id, claim_id)] if claim_id else []
            blocks += [(request_id, lease_id)] if lease_id else []
    claims = _standing("c.rank, NULL, c.resource_id", "leases_claim", {pk for _, pk in waits})
    leases = _standing("0, c.token, c.resource_id", "leases_lease", {pk for _, pk in blocks})
    return [(asks, claims[pk]) for asks, pk in waits] + [(asks, leases[pk]) for asks, pk in blocks]


def _standing(fields: str, table: str, ids: Iterable[int]) -> dict[int, StandingClaim]:
    return {
        row[0]: StandingClaim(*row)
        for part in chunks(sorted(ids))
        for row in _fetch(
            f"""SELECT c.id, c.request_id, {fields}, c.access, c.mode, c.resource_version, c.isolated
                FROM {table} c WHERE c.id IN ({_places(len(part))})""",
            part,
        )
    }


# --- lines: who waits for units alone


class LineRow(NamedTuple):
    id: int
    project_id: int
    demand: str
    short_of_id: int | None
    last_token: int


_LINE = "SELECT l.id, l.project_id, l.demand, l.short_of_id, l.last_token FROM leases_line l WHERE"


def lines_short_of_freed() -> list[LineRow]:
    found = _fetch(f"{_LINE} l.short_of_id IN (SELECT s.id FROM leases_resource s WHERE s.freed)", [])
    return [LineRow(*row) for row in found]


def lines_short_of(resource_ids: Sequence[int]) -> list[LineRow]:
    found = _fetch(f"{_LINE} l.short_of_id IN ({_places(len(resource_ids))})", resource_ids)
    return [LineRow(*row) for row in found]


def lines_waiting(limit: int) -> list[LineRow]:
    """Those whose turn is the longest ago."""
    found = _fetch(f"{_LINE} l.short_of_id IS NOT NULL ORDER BY l.last_token, l.id LIMIT %s", [limit])
    return [LineRow(*row) for row in found]


def lines_of(project_ids: Sequence[int]) -> list[LineRow]:
    found = [
        row for part in chunks(project_ids) for row in _fetch(f"{_LINE} l.project_id IN ({_places(len(part))})", part)
    ]
    return [LineRow(*row) for row in found]


def line(line_id: int) -> LineRow:
    return LineRow(*_fetch(f"{_LINE} l.id = %s", [line_id])[0])


def put_lines(rows: Sequence[tuple[int, str, int | None]]) -> list[LineRow]:
    """(project, demand, short of): made, or told what they are short of now."""
    written: list[Row] = []
    for part in chunks(rows):
        values, parameters = _values([(project, demand, short_of or 0) for project, demand, short_of in part])
        sql = f"""
            INSERT INTO leases_line (project_id, demand, short_of_id, last_token)
            SELECT v.column1, v.column2, NULLIF(v.column3, 0), 0 FROM ({values}) AS v WHERE TRUE
            ON CONFLICT (project_id, demand) DO UPDATE SET short_of_id = excluded.short_of_id
            RETURNING id, project_id, demand, short_of_id, last_token"""
        written += _fetch(sql, parameters)
    return [LineRow(*row) for row in written]


def take_turns(tokens: Sequence[tuple[int, int]]) -> None:
    """(line, token of its project's latest turn)."""
    for part in chunks(tokens):
        values, parameters = _values(part)
        _write(
            f"UPDATE leases_line AS l SET last_token = v.column2 FROM ({values}) AS v WHERE l.id = v.column1",
            parameters,
        )


# --- grants


class GrantRow(NamedTuple):
    request_id: int
    project_id: int
    token: int


def write_grants(rows: Sequence[GrantRow], *, now: datetime, expires_at: datetime | None) -> tuple[int, int]:
    """waiting -> granted, and a lease for each claim. Returns: how many requests moved, how many leases there are now."""
    moved = leases = 0
    for part in chunks(rows):
        values, parameters = _values(part)
        moved += _write(
            f"""UPDATE leases_request AS r SET state = 'granted', version = r.version + 1, token = v.column3,
                    granted_at = %s, planned = TRUE, stopped_by_id = NULL, stopped_since = NULL, line_id = NULL
                FROM ({values}) AS v WHERE r.id = v.column1 AND r.state = 'waiting' AND NOT r.suspended""",
            [_time(now), *parameters],
        )
        leases += insert_leases(part, now=now, expires_at=expires_at)
    return moved, leases


def insert_leases(rows: Sequence[GrantRow], *, now: datetime, expires_at: datetime | None) -> int:
    """One active lease for each claim of the requests."""
    values, parameters = _values(rows)
    return _write(
        f"""INSERT INTO leases_lease
                (state, version, resource_id, access, mode, resource_version, isolated, units, request_id, project_id,
                 token, granted_at, expires_at)
            SELECT 'active', 0, c.resource_id, c.access, c.mode, c.resource_version, c.isolated, c.units, c.request_id,
                   v.column2, v.column3, %s, %s
            FROM ({values}) AS v JOIN leases_claim c ON c.request_id = v.column1""",
        [_time(now), _time(expires_at), *parameters],
    )


def set_pending(request_ids: Sequence[int], *, pending: bool) -> None:
    """Whether the compared claims of these stop younger ones. Claims of capacity never do."""
    for part in chunks(request_ids):
        _write(
            f"""UPDATE leases_claim SET pending = %s
                WHERE request_id IN ({_places(len(part))}) AND access <> '{Access.CAPACITY}' AND pending <> %s""",
            [pending, *part, pending],
        )


class Mark(NamedTuple):
    """Why a request still waits: stopped by a request, or in a line; 0 for none."""

    request_id: int
    stopped_by: int
    line_id: int


def mark_waiting(rows: Sequence[Mark], now: datetime) -> int:
    marked = 0
    for part in chunks(rows):
        values, parameters = _values(part)
        marked += _write(
            f"""UPDATE leases_request AS r SET planned = TRUE,
                    stopped_by_id = NULLIF(v.column2, 0), line_id = NULLIF(v.column3, 0),
                    stopped_since = CASE WHEN COALESCE(r.stopped_by_id, 0) = v.column2
                        AND COALESCE(r.line_id, 0) = v.column3 AND r.stopped_since IS NOT NULL
                        THEN r.stopped_since ELSE %s END
                FROM ({values}) AS v WHERE r.id = v.column1 AND r.state = 'waiting'""",
            [_time(now), *parameters],
        )
    return marked


def wake_stopped_by(request_ids: Sequence[int]) -> None:
    for part in chunks(request_ids):
        _write(
            f"""UPDATE leases_request SET planned = FALSE
                WHERE stopped_by_id IN ({_places(len(part))}) AND state = 'waiting'""",
            part,
        )


class HeldRow(NamedTuple):
    """A lease of a grant, with the identity of the grant."""

    request_id: int
    holder: str
    token: int | None
    project_id: int
    request_state: str
    lease_state: str
    resource_id: int
    access: str


def held(request_ids: Sequence[int]) -> list[HeldRow]:
    return [
        HeldRow(*row)
        for part in chunks(request_ids)
        for row in _fetch(
            f"""SELECT r.id, r.holder, r.token, r.project_id, r.state, l.state, l.resource_id, l.access
                FROM leases_request r JOIN leases_lease l ON l.request_id = r.id WHERE r.id IN ({_places(len(part))})""",
            part,
        )
    ]


def end_requests(request_ids: Sequence[int], now: datetime) -> int:
    """granted -> ended."""
    return sum(
        _write(
            f"""UPDATE leases_request SET state = 'ended', version = version + 1, ended_at = %s
                WHERE id IN ({_places(len(part))}) AND state = 'granted'""",
            [_time(now), *part],
        )
        for part in chunks(request_ids)
    )


def move_leases(
    request_ids: Sequence[int],
    to: str,
    origins: Iterable[str],
    *,
    ended_at: datetime | None,
    expires_at: datetime | None = None,
) -> int:
    """All leases of the grants take one arrow; ``expires_at`` None leaves it as it is."""
    states = list(origins)
    return sum(
        _write(
            f"""UPDATE leases_lease SET state = %s, version = version + 1, ended_at = %s,
                    expires_at = COALESCE(%s, expires_at)
                WHERE request_id IN ({_places(len(part))}) AND state IN ({_places(len(states))})""",
            [to, _time(ended_at), _time(expires_at), *part, *states],
        )
        for part in chunks(request_ids)
    )


def withdraw(request_ids: Sequence[int], now: datetime) -> list[Row]:
    """waiting -> withdrawn. Returns: (id, project, line or None) of those that still waited."""
    return [
        row
        for part in chunks(request_ids)
        for row in _fetch(
            f"""UPDATE leases_request SET state = 'withdrawn', version = version + 1, ended_at = %s, planned = TRUE
                WHERE id IN ({_places(len(part))}) AND state = 'waiting' RETURNING id, project_id, line_id""",
            [_time(now), *part],
        )
    ]


def set_suspended(request_ids: Sequence[int], *, suspended: bool) -> list[Row]:
    """Returns: (id, project, line or None) of the waiting ones that changed. A resumed one is looked at again."""
    return [
        row
        for part in chunks(request_ids)
        for row in _fetch(
            f"""UPDATE leases_request SET suspended = %s, planned = FALSE
                WHERE id IN ({_places(len(part))}) AND state = 'waiting' AND suspended <> %s
                RETURNING id, project_id, line_id""",
            [suspended, *part, suspended],
        )
    ]


# --- fences, renewal and expiry


def holds(request_id: int, holder: str, token: int) -> bool:
    """Whether this is a grant whose leases accept fenced writes; locked for share where the database can."""
    lock = " FOR SHARE OF r" if connection.features.has_select_for_update else ""
    sql = f"""SELECT 1 FROM leases_request r WHERE r.id = %s AND r.holder = %s AND r.token = %s AND r.state = 'granted'
              AND EXISTS (SELECT 1 FROM leases_lease l WHERE l.request_id = r.id AND l.{_WRITABLE}){lock}"""
    return bool(_fetch(sql, [request_id, holder, token]))


def renew(request_ids: Sequence[int], expires_at: datetime) -> int:
    """Active leases of these grants that end by time end later. Returns: how many leases."""
    return sum(
        _write(
            f"""UPDATE leases_lease SET expires_at = %s
                WHERE request_id IN ({_places(len(part))}) AND state = 'active' AND expires_at IS NOT NULL""",
            [_time(expires_at), *part],
        )
        for part in chunks(request_ids)
    )


def expire(now: datetime) -> list[Row]:
    """active -> expired for what is due. Returns: (request, project) once per lease."""
    return _fetch(
        """UPDATE leases_lease SET state = 'expired', version = version + 1
           WHERE state = 'active' AND expires_at <= %s RETURNING request_id, project_id""",
        [_time(now)],
    )
