"""The one guard of every state: moves are data, and one conditional UPDATE whose row count decides takes them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, cast

from django.db import connection, models
from django.db.models import F

from core import journal
from core.errors import IllegalMove, LostRace
from core.states import Moves

if TYPE_CHECKING:
    from core.models import Stateful

_Row = TypeVar("_Row", bound=models.Model)
_Stateful = TypeVar("_Stateful", bound="Stateful")

_moving: ContextVar[bool] = ContextVar("moving", default=False)


@contextmanager
def _licence_to_move() -> Iterator[None]:
    token = _moving.set(True)
    try:
        yield
    finally:
        _moving.reset(token)


class StateGuardedQuerySet(models.QuerySet[_Row]):
    """Refuses to assign ``state`` past the table of moves."""

    def update(self, **changes: Any) -> int:
        if "state" in changes and not _moving.get():
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
    require_transaction()
    if to not in moves[row.state]:
        raise IllegalMove(
            f"{row.subject} cannot go from {row.state} to {to}", subject=row.subject, state=row.state, to=to
        )
    as_read = type(row).objects.filter(pk=row.pk, state=row.state, version=row.version)
    with _licence_to_move():
        if not as_read.update(state=to, version=F("version") + 1, **changes):
            raise LostRace(f"{row.subject} is no longer {row.state}", subject=row.subject, state=row.state)
    _record_move(row, row.state, to, why, data)
    row.state, row.version = to, row.version + 1
    for name, value in changes.items():
        setattr(row, name, value)


def move_all(
    rows: Collection[Stateful],
    to: str,
    *,
    moves: Moves,
    why: str = "",
    data: Mapping[Any, Mapping[str, Any]] | None = None,
    **changes: Any,
) -> None:
    """``move`` for many rows of one model and one origin state that get the same ``changes``, in one statement.

    data:   by primary key, into each row's event
    Raises: IllegalMove, LostRace when any row was moved meanwhile; the caller's transaction must then end
    """
    require_transaction()
    if not rows:
        return
    first = next(iter(rows))
    for row in rows:
        if row.state != first.state:
            raise ValueError("move_all takes rows of one state")
    if to not in moves[first.state]:
        raise IllegalMove(
            f"{first.subject} cannot go from {first.state} to {to}", subject=first.subject, state=first.state, to=to
        )
    as_read = type(first).objects.filter(pk__in=[row.pk for row in rows], state=first.state)
    with _licence_to_move():
        if as_read.update(state=to, version=F("version") + 1, **changes) != len(rows):
            raise LostRace(f"one of {len(rows)} rows is no longer {first.state}", state=first.state)
    for row in rows:
        _record_move(row, row.state, to, why, (data or {}).get(row.pk))
        row.state, row.version = to, row.version + 1
        for name, value in changes.items():
            setattr(row, name, value)


def move_each(
    rows: Sequence[tuple[_Stateful, Mapping[str, Any]]],
    to: str,
    *,
    moves: Moves,
    data: Mapping[Any, Mapping[str, Any]] | None = None,
) -> None:
    """``move`` for many rows of one model, each with values of its own for the same fields; any origin state.

    Writes: one UPDATE per row in one round trip, conditional on state and version as read; the events
    Raises: IllegalMove, LostRace when any row was moved meanwhile; the caller's transaction must then end
    """
    require_transaction()
    if not rows:
        return
    first, fields = rows[0][0], list(rows[0][1])
    meta = first._meta
    columns = [cast("models.Field[Any, Any]", meta.get_field(name)) for name in fields]
    for row, _ in rows:
        if to not in moves[row.state]:
            raise IllegalMove(
                f"{row.subject} cannot go from {row.state} to {to}", subject=row.subject, state=row.state, to=to
            )
    sets = "".join(f", {connection.ops.quote_name(str(field.column))} = %s" for field in columns)
    with connection.cursor() as cursor:
        cursor.executemany(
            f"UPDATE {connection.ops.quote_name(meta.db_table)} SET state = %s, version = version + 1{sets}"
            " WHERE id = %s AND state = %s AND version = %s",
            [
                [
                    to,
                    *(field.get_db_prep_save(changes[name], connection) for name, field in zip(fields, columns, strict=True)),
                    row.pk,
                    row.state,
                    row.version,
                ]
                for row, changes in rows
            ],
        )
        if cursor.rowcount != len(rows):
            raise LostRace(f"one of {len(rows)} {meta.verbose_name_plural} was moved meanwhile")
    for row, changes in rows:
        _record_move(row, row.state, to, "", (data or {}).get(row.pk))
        row.state, row.version = to, row.version + 1
        for name, value in changes.items():
            setattr(row, name, value)


def _record_move(row: Stateful, origin: str, to: str, why: str, data: Mapping[str, Any] | None) -> None:
    facts: dict[str, Any] = {"from": origin, **(data or {})}
    if why:
        facts["why"] = why
    journal.record(
        f"{row.subject_kind}.{to}", subject=row.subject, project_id=getattr(row, "project_id", None), **facts
    )
