"""Rows of models by plain statements, for the paths that every start of a job takes.

The same model instances as the ORM's, without its compiler: a SELECT of one row costs 35 us instead of 400, an INSERT 60 instead of
900 (SQLite, one process; docs/performance.md). What is read or written here is named by model fields, so a renamed field is an
error at once. Everything else uses the ORM.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

from django.db import DEFAULT_DB_ALIAS, connection, connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import Col

M = TypeVar("M", bound=models.Model)

CHUNK = 500  # rows of one INSERT: SQLite takes 32,766 parameters


def select(
    model: type[M], where: str, parameters: Sequence[Any], *, without: Collection[str] = (), tail: str = ""
) -> list[M]:
    """Instances of the rows that fulfil ``where``.

    where:   SQL over the table's columns with %s for parameters; `id IN {}`: see ``places``
    without: fields that are not read; a later access reads them one by one
    tail:    ORDER BY, LIMIT, FOR UPDATE
    """
    database = _database()
    plan = _select_plan(model, frozenset(without), database.vendor)
    with database.cursor() as cursor:
        cursor.execute(f"{plan.sql} WHERE {where} {tail}", parameters)
        found = cursor.fetchall()
    if plan.converters:
        found = [_converted(row, plan.converters, database) for row in found]
    return [model.from_db(database.alias, plan.names, row) for row in found]


def by_id(model: type[M], ids: Collection[int], *, without: Collection[str] = (), tail: str = "") -> dict[int, M]:
    if not ids:
        return {}
    rows = select(model, f"id IN ({places(ids)})", list(ids), without=without, tail=tail)
    return {cast(int, row.pk): row for row in rows}


def insert(rows: Sequence[models.Model]) -> None:
    """Insert instances of one model, in order; each then has its primary key."""
    if not rows:
        return
    database, plan = _database(), _insert_plan(type(rows[0]))
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        values = [prepared(field, getattr(row, field.attname)) for row in part for field in plan.fields]
        with database.cursor() as cursor:
            cursor.execute(plan.sql.format(", ".join([plan.places] * len(part))), values)
            for row, (pk,) in zip(part, cursor.fetchall(), strict=True):
                row.pk = pk
                row._state.adding, row._state.db = False, database.alias


def execute(sql: str, parameters: Sequence[Any]) -> int:
    """Run one statement. Returns: how many rows it found."""
    with _database().cursor() as cursor:
        cursor.execute(sql, parameters)
        return int(cursor.rowcount)


def fetch(sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    with _database().cursor() as cursor:
        cursor.execute(sql, parameters)
        return list(cursor.fetchall())


def places(values: Collection[Any]) -> str:
    """`%s, %s, %s` for an IN list."""
    return ", ".join(["%s"] * len(values))


def prepared(field: models.Field[Any, Any], value: Any) -> Any:
    """A value as the database takes it."""
    if value is None or isinstance(field, _AS_THEY_ARE):
        return value
    return field.get_db_prep_save(value, connection)


# Both drivers take values of these as they are; Django would look at each for some microseconds to say so.
_AS_THEY_ARE = (
    models.CharField,
    models.TextField,
    models.IntegerField,
    models.BooleanField,
    models.FloatField,
    models.ForeignKey,
)


def _database() -> BaseDatabaseWrapper:
    """The connection itself: each attribute of the proxy that Django offers costs a look-up per thread and task."""
    return connections[DEFAULT_DB_ALIAS]


# --- what is worked out once per model --------------------------------------------------------------------------------


class _SelectPlan(NamedTuple):
    sql: str
    names: list[str]
    converters: list[tuple[int, list[Callable[..., Any]], Col]]


@cache
def _select_plan(model: type[models.Model], without: frozenset[str], vendor: str) -> _SelectPlan:
    if strange := without - {field.name for field in model._meta.concrete_fields}:
        raise ValueError(f"{model.__name__} has no fields {sorted(strange)}")
    fields = [field for field in model._meta.concrete_fields if field.name not in without]
    table = connection.ops.quote_name(model._meta.db_table)
    columns = ", ".join(connection.ops.quote_name(str(field.column)) for field in fields)
    converters = []
    for position, field in enumerate(fields):
        column = Col(model._meta.db_table, field)
        found = [*connection.ops.get_db_converters(column), *column.get_db_converters(connection)]
        if found:
            converters.append((position, found, column))
    return _SelectPlan(f"SELECT {columns} FROM {table}", [field.attname for field in fields], converters)


def _converted(
    row: tuple[Any, ...], converters: list[tuple[int, list[Callable[..., Any]], Col]], database: BaseDatabaseWrapper
) -> list[Any]:
    values = list(row)
    for position, found, column in converters:
        if values[position] is not None:
            for convert in found:
                values[position] = convert(values[position], column, database)
    return values


class _InsertPlan(NamedTuple):
    sql: str
    places: str
    fields: list[models.Field[Any, Any]]


@cache
def _insert_plan(model: type[models.Model]) -> _InsertPlan:
    fields = [field for field in model._meta.concrete_fields if not field.primary_key]
    table = connection.ops.quote_name(model._meta.db_table)
    columns = ", ".join(connection.ops.quote_name(str(field.column)) for field in fields)
    return _InsertPlan(
        f"INSERT INTO {table} ({columns}) VALUES {{}} RETURNING id", f"({', '.join(['%s'] * len(fields))})", fields
    )
