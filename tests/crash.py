"""``make crash``: kill everything except the shims at random moments of the demo, start `forge up` again, and compare the end.

Each run is the whole product: console, launcher, web, cluster, spawner, shims, git. It must end with the tree that an undisturbed
run lands, each node's command must have run exactly once, and nothing may be left over. The seed is printed and repeats the run.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.calculator.demo import prepare
from examples.common import Demo

LAST_MOMENT_S = 8.0  # kills fall between the admission and this much later; the demo takes about as long


def undisturbed(directory: Path, database_url: str) -> tuple[str, float]:
    """The tree an ordinary run lands, and how long it takes from admission to its end."""
    demo = prepare(directory, database_url=database_url)
    demo.up()
    try:
        demo.admit()
        began = time.monotonic()
        demo.wait()
        took = time.monotonic() - began
    finally:
        demo.down()
    return demo.verify().tree, took


def killed(directory: Path, database_url: str, moments_s: list[float]) -> str:
    """Run the demo, killing it at each of the moments (seconds since the last start); returns the tree that landed."""
    demo = prepare(directory, database_url=database_url)
    demo.up()
    try:
        demo.admit()
        for moment in moments_s:
            _until(moment)
            demo.kill()
            demo.up()
        demo.wait()
    finally:
        if demo.runtime is not None:
            demo.down()
        _end(demo)
    return demo.verify().tree


def _until(moment_s: float) -> None:
    threading.Event().wait(moment_s)  # the moment is the point: nothing to wait for


def _end(demo: Demo) -> None:
    """After a failure nothing of this run may disturb the next one."""
    import psutil

    for process in demo.processes():
        if psutil.pid_exists(process.pid):
            psutil.Process(process.pid).kill()


@contextmanager
def database(kind: str, name: str) -> Iterator[str]:
    """URL of an empty database for one run; '' means the home's own SQLite file."""
    if kind == "sqlite":
        yield ""
        return
    import psycopg

    base = os.environ.get("DATABASE_URL") or "postgresql://postgres@127.0.0.1:5432/postgres"
    with psycopg.connect(base, autocommit=True) as server:
        server.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        server.execute(f'CREATE DATABASE "{name}"')
        try:
            yield base.rpartition("/")[0] + f"/{name}"
        finally:
            server.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgres"], action="append")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kills", type=int, default=1, help="in each run")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    for kind in options.database or ["sqlite", "postgres"]:
        crash(kind, options.runs, options.kills, options.seed)


def crash(kind: str, runs: int, kills: int, seed: int) -> None:
    """Raises examples.common.Failure or AssertionError at the first run that does not end as it must."""
    chosen = random.Random(seed)
    root = Path(tempfile.mkdtemp(prefix="fc-"))
    try:
        with database(kind, f"forge_crash_{os.getpid()}") as url:
            tree, took = undisturbed(root / "0", url)
        for run in range(1, runs + 1):
            moments = [round(chosen.uniform(0, min(took, LAST_MOMENT_S)), 3) for _ in range(kills)]
            with database(kind, f"forge_crash_{os.getpid()}") as url:
                landed = killed(root / str(run), url, moments)
            assert landed == tree, f"run {run} (seed {seed}, kills at {moments}) landed {landed} instead of {tree}"
            print(f"crash {kind} run={run} kills_at_s={moments} ok", flush=True)
            shutil.rmtree(root / str(run))
        print(f"crash {kind} ok: runs={runs} kills={runs * kills} seed={seed} tree={tree[:12]}", flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
