"""The demo, killed at random moments: `make crash` in small. FORGE_CRASH_RUNS makes it longer."""

from __future__ import annotations

import os
import random

import pytest
from django.db import connection

from tests.crash import crash


@pytest.mark.processes
@pytest.mark.timeout(1800)
@pytest.mark.django_db
@pytest.mark.req("RC-32", "PS-12", "JB-10", "EV-26", "EV-18", "EV-09")
def test_whatever_is_killed_the_same_tree_lands_and_nothing_runs_twice(capsys: pytest.CaptureFixture[str]) -> None:
    kind = "postgres" if connection.vendor == "postgresql" else "sqlite"
    runs = int(os.environ.get("FORGE_CRASH_RUNS", "2"))
    seed = random.SystemRandom().randrange(10**6)
    with capsys.disabled():
        print()
        crash(kind, runs=runs, kills=1, seed=seed)
        crash(kind, runs=1, kills=3, seed=seed)
