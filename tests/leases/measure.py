"""Prints what a job start and end cost in the broker: `python -m tests.leases.measure` (DATABASE_URL picks the database).

raw: the same statements in the driver, and one bare commit per transaction. Only the ratio to it means something.
Tests never time; this is for people, and for docs/performance.md.
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


def commit_ms(rounds: int) -> float:
    """A raw transaction that writes one row."""
    took: list[float] = []
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS bare (id bigint PRIMARY KEY, n bigint)")
        cursor.execute("INSERT INTO bare VALUES (1, 0) ON CONFLICT DO NOTHING")
        for _ in range(rounds):
            with clock(took):
                cursor.execute("BEGIN IMMEDIATE" if connection.vendor == "sqlite" else "BEGIN")
                cursor.execute("UPDATE bare SET n = n + 1 WHERE id = 1")
                cursor.execute("COMMIT")
    return statistics.median(took)


def bundle(of: Project, *claims: ClaimSpec, name: str = "attempt") -> steps.Bundle:
    return steps.Bundle(of.pk, f"{name}:{next(_serial)}", 0, claims)


@contextmanager
def clock(into: list[float]) -> Iterator[None]:
    started = time.perf_counter()
    yield
    into.append((time.perf_counter() - started) * 1000)


def cycle(make: Callable[[], list[steps.Bundle]], rounds: int) -> tuple[dict[str, float], float, float]:
    """Of filing, granting and releasing one batch, each in a transaction of its own: median ms each, and statements."""
    took: dict[str, list[float]] = {"file": [], "grant": [], "release": []}
    in_driver: list[float] = []

    def note(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        with clock(in_driver):
            return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        _cycle(make, rounds, took)
    medians = {name: statistics.median(values) for name, values in took.items()}
    return medians, len(in_driver) / rounds, sum(in_driver) / rounds


def _cycle(make: Callable[[], list[steps.Bundle]], rounds: int, took: dict[str, list[float]]) -> None:
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


def crowd(of: Project, count: int) -> None:
    """Others: a third in line for units, a third behind one another on one key, a third behind one exclusive root."""
    file_bundles(bundles=[bundle(of, exclusive("elsewhere"), name="root")], now=at(0))
    one_pass(now=at(0))
    capacity(key="taken", count=0)
    kinds: list[Callable[[int], tuple[ClaimSpec, ...]]] = [
        lambda n: (look("host/srv", resource_class=ResourceClass.PHYSICAL), write(f"k/{n}"), units("taken")),
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
        print(f"{connection.vendor}: a bare commit takes {commit_ms(ROUNDS):.2f} ms")
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
                    look("host/srv", resource_class=ResourceClass.PHYSICAL),
                    read(f"k/in{n}"),
                    write(f"k/own/{n}"),
                )

            for name, claims in (("units only", lambda n: units_only), ("units, 1 intention, 1 read, 1 write", own)):
                for batch in (1, 50):
                    made: Callable[..., Any] = claims
                    figures, count, in_driver = cycle(
                        lambda made=made, batch=batch: [bundle(of, *made(n)) for n in range(batch)],  # type: ignore[misc]
                        max(5, ROUNDS // batch),
                    )
                    total, raw = sum(figures.values()), in_driver + 3 * commit_ms(ROUNDS)  # measured beside it
                    parts = ", ".join(f"{key} {value / batch:.2f}" for key, value in figures.items())
                    print(
                        f"{name:36} batch {batch:3}: {total / batch:6.2f} ms each ({parts});"
                        f" {count:.0f} statements, {total / raw:.1f} x raw"
                    )
    finally:
        connection.creation.destroy_test_db("", verbosity=0) if "--keep" not in sys.argv else None


if __name__ == "__main__":
    main()
