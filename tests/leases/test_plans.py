"""What the database does for a job start must not grow with what waits elsewhere: every hot statement goes by an index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from core.models import Project
from leases import steps
from leases.fences import Fence
from leases.states import ResourceClass
from tests.leases import builders
from tests.leases.builders import at, capacity, file_bundles, file_one, look, one_pass, project, units, write

pytestmark = pytest.mark.django_db

CROWD = 4000
TABLES = ("leases_request", "leases_claim", "leases_lease", "leases_resource")
PHYSICAL = {"resource_class": ResourceClass.PHYSICAL}


def crowd(of: Project, first: int = 0) -> None:
    """Many requests that wait for units, for each other, and for a grant, below one workspace; and some that ended."""
    capacity(key="slots", count=CROWD)
    capacity(key="busy", count=0)
    bundles = [
        steps.Bundle(of.pk, f"crowd:{first + n}", 0, (look("host/srv", **PHYSICAL), write(f"k/{n}"), units(pool)))
        for n in range(CROWD)
        for pool in (("busy", "busy", "busy", "slots")[n % 4],)
    ]
    file_bundles(bundles=bundles, now=at(0))
    granted = one_pass(now=at(0))
    builders.end(grants=[grant.identity for grant in granted[: len(granted) // 2]])
    chained = [steps.Bundle(of.pk, f"chained:{first + n}", 0, (write("chain"),)) for n in range(CROWD // 4)]
    file_bundles(bundles=chained, now=at(1))
    one_pass(now=at(1))
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"ANALYZE {', '.join([*TABLES, 'leases_line'])}")


@contextmanager
def statements() -> Iterator[list[tuple[str, Any]]]:
    seen: list[tuple[str, Any]] = []

    def note(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if "leases_" in sql:
            seen.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        yield seen


def whole_table_reads(sql: str, params: Any) -> list[str]:
    """Steps of the database's plan that read all rows of a table that grows."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
            steps_of_plan = [row[3] for row in cursor.fetchall()]
            return [step for step in steps_of_plan if step.startswith("SCAN") and _names_a_table(step, sql)]
        cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", params)
        found = cursor.fetchone()[0]
        plan = found if isinstance(found, list) else json.loads(found)
        return [
            f"{node['Node Type']} {node['Relation Name']} filter {node.get('Filter')}"
            for node in _nodes(plan[0]["Plan"])
            if node["Node Type"] == "Seq Scan" and node["Relation Name"] in TABLES
        ]


def _names_a_table(step: str, sql: str) -> bool:
    """SQLite names aliases; reading a whole partial index is no reading of the table.

    The scan of a table that refers to the one of an INSERT belongs to the deferred foreign keys: it is planned always and
    done only while some row violates one.
    """
    name = step.split()[1]
    if sql.lstrip().startswith("INSERT") and name in TABLES:
        return False
    is_table = name in TABLES or any(
        f"{table} {name} " in f"{sql} " or f"{table} AS {name} " in sql for table in TABLES
    )
    partial = ("request_to_plan", "resource_freed", "lease_active_until")
    return is_table and not any(index in step for index in partial)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def test_no_hot_statement_reads_a_whole_table() -> None:
    of = project()
    crowd(of)
    running = file_one(of, write("x"), units("slots"), now=at(2))
    one_pass(now=at(2))

    with statements() as seen:
        capacity(key="one", count=1)
        first = file_one(
            of, look("host/srv", **PHYSICAL), write("k/new/deep"), units("one"), now=at(3), holder="attempt:1"
        )
        second = file_one(of, write("k/new"), units("one"), now=at(4))
        third = file_one(project(), units("one"), now=at(5))
        last = file_one(of, write("chain"), now=at(5))
        one_pass(now=at(5))
        builders.suspend(requests=[last])
        builders.resume(requests=[last])
        token = builders.grant_of(first).token
        builders.check(grant=Fence(1, first.pk, token))
        builders.renew(ids=[running.pk, first.pk], now=at(6))
        builders.expire(now=at(6))
        builders.end(grants=[Fence(1, first.pk, token)])
        one_pass(now=at(6))
        builders.withdraw(requests=[second, third])
        one_pass(now=at(7))

    assert len(seen) > 30
    slow = {sql.strip()[:160]: reads for sql, params in seen if (reads := whole_table_reads(sql, params))}
    assert slow == {}


def test_a_pass_takes_as_many_statements_in_a_crowd_as_alone() -> None:
    of = project()

    def start_and_end(n: int) -> int:
        with statements() as seen:
            request = file_one(of, look("host/srv", **PHYSICAL), write(f"k/own{n}"), units("pool"), now=at(10 + n))
            one_pass(now=at(10 + n))
            builders.end_of(request)
        return len(seen)

    capacity(key="pool", count=1)
    start_and_end(0)
    alone = start_and_end(1)
    crowd(of)

    assert start_and_end(2) == alone
