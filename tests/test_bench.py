"""The benchmark measures the product: the same launch path and the same durability as anybody's `forge up`."""

from __future__ import annotations

import os
import sqlite3

import pytest
from django.conf import settings
from django.db import connection

from jobs.process import receipts
from tests import bench


def test_the_graphs_are_those_that_are_named() -> None:
    shapes = {name: make() for name, make in bench.GRAPHS.items()}

    assert {name: len(graph) for name, graph in shapes.items()} == {"chain100": 100, "fan200": 202, "layer1000": 1000}
    assert len(shapes["fan200"]["last"]) == 200
    assert all(len(parents) == 3 for key, parents in shapes["layer1000"].items() if not key.startswith("l0-"))
    assert bench.layered() == bench.layered()


def test_an_installation_of_the_benchmark_overrides_nothing_but_places(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FORGE_")]:
        monkeypatch.delenv(name)

    installation = bench.Installation("")

    own = {name for name in installation.environment if name.startswith(("FORGE_", "DJANGO_"))}
    assert own == {"FORGE_HOME", "DJANGO_SETTINGS_MODULE"}
    assert installation.environment["DJANGO_SETTINGS_MODULE"] == "forge_site.settings"
    installation.stop()


@pytest.mark.processes
def test_a_benchmarked_graph_runs_under_leases_shims_and_synced_rows() -> None:
    installation = bench.Installation("")
    try:
        installation.start()
        wall_s, latencies_s = installation.run("small", bench.chain(3))

        assert wall_s > 0
        assert len(latencies_s) == 2
        with sqlite3.connect(installation.home / "db.sqlite3") as database:
            count = database.execute("SELECT count(*) FROM jobs_attempt WHERE state = 'succeeded'").fetchone()[0]
            leases = database.execute("SELECT count(*) FROM leases_lease WHERE state = 'released'").fetchone()[0]
        assert count == 3
        assert leases >= 3 * 3  # a slot, a unit of the project's limit and the reader's intention, each
        for jobdir in (installation.home / "jobs").iterdir():
            assert receipts.read_started(jobdir) is not None
            assert receipts.read_exit(jobdir) is not None
    finally:
        installation.stop()


@pytest.mark.django_db
def test_commits_are_durable_by_default() -> None:
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            assert "synchronous=FULL" in settings.DATABASES["default"]["OPTIONS"]["init_command"]
            cursor.execute("PRAGMA synchronous")
            assert cursor.fetchone()[0] == 2
        else:
            assert "synchronous_commit" not in settings.DATABASES["default"]["OPTIONS"]["options"]
