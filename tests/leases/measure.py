"""Prints what a job start and end cost in the broker: `python -m tests.leases.measure` (DATABASE_URL picks the database).

floor: one raw transaction with 1 SELECT (FOR UPDATE), 2 UPDATE, 2 INSERT on an own connection's autocommit, as in the facts.
Tests never time; this is for people, and for ratios in docs/performance.md.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from django.db import connection  # noqa: E402

from core.models import Project  # noqa: E402
from leases import steps  # noqa: E402
from leases.fences import GrantIdentity  # noqa: E402
from leases.planning import ClaimSpec  # noqa: E402
from leases.states import ResourceClass  # noqa: E402
from tests.leases.builders import (  # noqa: E402
    at,
    capacity,
    end,
    exclusive,
    file_bundles,
    look,
    one_pass,
    project,
    read,
    units,
    write,
)

ROUNDS = int(os.environ.get("ROUNDS", "200"))
_serial = iter(range(1, 10_000_000))


def floor_ms(rounds: int) -> float:
    """A raw transaction with as many reads and writes as one grant has in the facts (B)."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE floor_resource (id bigint PRIMARY KEY, last_token bigint)")
        cursor.execute("CREATE TABLE floor_lease (id bigint PRIMARY KEY, resource_id bigint, token bigint, state text)")
        cursor.execute("CREATE TABLE floor_event (id bigint PRIMARY KEY, body text)")
        cursor.execute("INSERT INTO floor_resource VALUES (1, 0)")
    lock = " FOR UPDATE" if connection.vendor == "postgresql" else ""
    took = []
    for n in range(rounds):
        started = time.perf_counter()
        with connection.cursor() as cursor:
            cursor.execute("BEGIN IMMEDIATE" if connection.vendor == "sqlite" else "BEGIN")
            cursor.execute(f"SELECT last_token FROM floor_resource WHERE id = 1{lock}")
            cursor.execute("UPDATE floor_resource SET last_token = last_token + 1 WHERE id = 1")
            cursor.execute("INSERT INTO floor_lease VALUES (%s, 1, %s, 'active')", [n, n])
            cursor.execute("UPDATE floor_lease SET state = 'released' WHERE id = %s", [n])
            cursor.execute("INSERT INTO floor_event VALUES (%s, '{}')", [n])
            cursor.execute("COMMIT")
        took.append((time.perf_counter() - started) * 1000)
    return statistics.median(took)


def bundle(of: Project, *claims: ClaimSpec, name: str = "attempt") -> steps.Bundle:
    return steps.Bundle(of.pk, f"{name}:{next(_serial)}", 0, claims)


@contextmanager
def clock(into: list[float]) -> Iterator[None]:
    started = time.perf_counter()
    yield
    into.append((time.perf_counter() - started) * 1000)


def cycle(make: Callable[[], list[steps.Bundle]], rounds: int) -> dict[str, float]:
    """Median ms of filing, granting and releasing one batch, each in a transaction of its own."""
    took: dict[str, list[float]] = {"file": [], "grant": [], "release": []}
    for _ in range(rounds):
        bundles = make()
        with clock(took["file"]):
            file_bundles(bundles=bundles, now=at(5000))
        with clock(took["grant"]):
            granted = one_pass(now=at(5000))
        if len(granted) != len(bundles):
            raise SystemExit(f"{len(granted)} of {len(bundles)} granted")
        identities: list[GrantIdentity] = [grant.identity for grant in granted]
        with clock(took["release"]):
            end(grants=identities, now=at(5000))
    return {name: statistics.median(values) for name, values in took.items()}


def crowd(of: Project, count: int) -> None:
    """Others: a third in line for units, a third behind one another on one key, a third behind one exclusive root."""
    file_bundles(bundles=[bundle(of, exclusive("elsewhere"), name="root")], now=at(0))
    one_pass(now=at(0))
    capacity(key="taken", count=0)
    kinds: list[Callable[[int], tuple[ClaimSpec, ...]]] = [
        lambda n: (look("host/work", resource_class=ResourceClass.PHYSICAL), write(f"k/{n}"), units("taken")),
        lambda n: (write("chain"),),
        lambda n: (write(f"elsewhere/{n}"),),
    ]
    for start in range(0, count, 1000):
        numbers = range(start, min(count, start + 1000))
        file_bundles(bundles=[bundle(of, *kinds[n % 3](n), name="crowd") for n in numbers], now=at(1 + start))
    one_pass(now=at(4000))
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")


def main() -> None:
    connection.creation.create_test_db(verbosity=0)
    try:
        floor = floor_ms(ROUNDS)
        print(f"{connection.vendor}: floor {floor:.2f} ms per raw transaction of 5 statements")
        of = project()
        for key in ("slots", "limit"):
            capacity(key=key, count=100_000)
        units_only = (units("slots"), units("limit"))
        waiting = 0
        for others in (0, 100, 20_000):
            began = time.perf_counter()
            if others:
                crowd(of, others - waiting)
                waiting = others
            print(f"-- {others} others waiting (filed and planned in {time.perf_counter() - began:.1f} s)")

            def own(n: int) -> tuple[ClaimSpec, ...]:
                return (
                    *units_only,
                    look("host/work", resource_class=ResourceClass.PHYSICAL),
                    read(f"k/in{n}"),
                    write(f"k/own/{n}"),
                )

            for name, claims in (("units only", lambda n: units_only), ("units, 1 intention, 1 read, 1 write", own)):
                for batch in (1, 50):
                    made: Callable[..., Any] = claims
                    figures = cycle(
                        lambda made=made, batch=batch: [bundle(of, *made(n)) for n in range(batch)],  # type: ignore[misc]
                        max(5, ROUNDS // batch),
                    )
                    each = {key: value / batch for key, value in figures.items()}
                    total = sum(each.values())
                    parts = ", ".join(f"{key} {value:.2f}" for key, value in each.items())
                    print(f"{name:38} batch {batch:3}: {total:6.2f} ms each ({parts}); x {total / floor:.1f} floor")
    finally:
        connection.creation.destroy_test_db("", verbosity=0) if "--keep" not in sys.argv else None


if __name__ == "__main__":
    main()
