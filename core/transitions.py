"""The one guard of every state: moves are data, and one conditional UPDATE whose row count decides takes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from django.db import connection, models

from core import journal
from core.errors import IllegalMove, LostRace
from core.rows import execute, places, prepared
from core.states import Moves

if TYPE_CHECKING:
    from core.models import Stateful

_Row = TypeVar("_Row", bound=models.Model)
_Stateful = TypeVar("_Stateful", bound="Stateful")


class StateGuardedQuerySet(models.QuerySet[_Row]):
    """Refuses to assign ``state`` past the table of moves."""

    def update(self, **changes: Any) -> int:
        if "state" in changes:
            raise TypeError(f"{self.model.__name__}.state is written by core.transitions alone")
        return super().update(**changes)

    def bulk_update(self, objs: Any, fields: Any, batch_size: int | None = None) -> int:
        if "state" in fields:
            raise TypeError(f"{self.model.__name__}.state is written by core.transitions alone")
        return super().bulk_update(objs, fields, batch_size)


class StateGuardedManager(models.Manager[_Row]):
    """``objects`` of every stateful model."""

    def get_queryset(self) -> StateGuardedQuerySet[_Row]:
        return StateGuardedQuerySet(self.model, using=self._db)


def require_transaction() -> None:
    """A step refuses to run outside somebody's transaction: its half of a change must not stand alone."""
    if not connection.in_atomic_block:
        raise RuntimeError("a step was called outside a unit of work")


def move(
    row: Stateful, to: str, *, moves: Moves, why: str = "", data: Mapping[str, Any] | None = None, **changes: Any
) -> None:
    """Take one arrow of ``moves``, or raise and leave ``row`` as it was.

    Writes: state, version + 1 and ``changes`` in one UPDATE that finds no row if anybody moved it since we read it;
            the event ``<kind>.<to>``; then ``row`` carries what was written
    Raises: IllegalMove (no such arrow), LostRace (reload and decide again)
    """
    move_each([(row, changes)], to, moves=moves, why=why, data={row.pk: data or {}})


def move_all(
    rows: Collection[Stateful],
    to: str,
    *,
    moves: Moves,
    via: Sequence[str] = (),
    why: str = "",
    data: Mapping[Any, Mapping[str, Any]] | None = None,
    **changes: Any,
) -> None:
    """``move`` for many rows of one model that all get the same ``changes``: one statement per state they come from.

    via:    states passed through on the way; each arrow must exist and has its event
    data:   by primary key, into each event of that row
    Raises: IllegalMove, LostRace when any row was moved meanwhile; the caller's transaction must then end
    """
    require_transaction()
    by_origin: defaultdict[str, list[Stateful]] = defaultdict(list)
    for row in rows:
        _require_arrows(row, (*via, to), moves)
        by_origin[row.state].append(row)
    for origin, moving in by_origin.items():
        sets, values = _assignments(type(moving[0]), changes)
        found = execute(
            f"UPDATE {_table(moving[0])} SET state = %s, version = version + {len(via) + 1}{sets}"
            f" WHERE id IN ({places(moving)}) AND state = %s",
            [to, *values, *(row.pk for row in moving), origin],
        )
        if found != len(moving):
            raise LostRace(f"one of {len(moving)} rows is no longer {origin}", state=origin)
    for row in rows:
        _note(row, (*via, to), why, (data or {}).get(row.pk), changes)


def move_each(
    rows: Sequence[tuple[_Stateful, Mapping[str, Any]]],
    to: str,
    *,
    moves: Moves,
    why: str = "",
    data: Mapping[Any, Mapping[str, Any]] | None = None,
) -> None:
    """``move`` for many rows of one model, each with values of its own for the same fields; any origin state.

    Writes: one UPDATE per row, conditional on state and version as read; the events
    Raises: IllegalMove, LostRace when any row was moved meanwhile; the caller's transaction must then end
    """
    require_transaction()
    for row, changes in rows:
        _require_arrows(row, (to,), moves)
        sets, values = _assignments(type(row), changes)
        found = execute(
            f"UPDATE {_table(row)} SET state = %s, version = version + 1{sets} WHERE id = %s AND state = %s AND version = %s",
            [to, *values, row.pk, row.state, row.version],
        )
        if not found:
            raise LostRace(f"{row.subject} is no longer {row.state}", subject=row.subject, state=row.state)
    for row, changes in rows:
        _note(row, (to,), why, (data or {}).get(row.pk), changes)


def _require_arrows(row: Stateful, path: Sequence[str], moves: Moves) -> None:
    state = row.state
    for to in path:
        if to not in moves[state]:
            raise IllegalMove(f"{row.subject} cannot go from {state} to {to}", subject=row.subject, state=state, to=to)
        state = to


def _table(row: Stateful) -> str:
    return connection.ops.quote_name(row._meta.db_table)


def _assignments(model: type[Stateful], changes: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """`, ended_at = %s` and so on. Plain values only: a value that depends on the row as it is has a statement of its own."""
    fields = [cast("models.Field[Any, Any]", model._meta.get_field(name)) for name in changes]
    sets = "".join(f", {connection.ops.quote_name(str(field.column))} = %s" for field in fields)
    return sets, [prepared(field, value) for field, value in zip(fields, changes.values(), strict=True)]


def _note(
    row: Stateful, path: Sequence[str], why: str, data: Mapping[str, Any] | None, changes: Mapping[str, Any]
) -> None:
    """One event per arrow; and the row in memory is as the database has it."""
    for to in path:
        facts: dict[str, Any] = {"from": row.state, **(data or {})}
        if why:
            facts["why"] = why
        journal.record(
            f"{row.subject_kind}.{to}", subject=row.subject, project_id=getattr(row, "project_id", None), **facts
        )
        row.state, row.version = to, row.version + 1
    for name, value in changes.items():
        setattr(row, name, value)
