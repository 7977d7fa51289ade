"""``make bench``: what Forge takes on top of the bare processes, as ratios against floors taken in the same run.

Program mode, the normal launch path (`forge up`, spawner, shim), default durability. For each graph and database:

    bench <graph> <database> x=<a> x_shim=<b> ms_per_node=<n> p50_ms=<m> p99_ms=<m>

x: wall time divided by that of a plain posix_spawn loop over the same graph; x_shim: divided by the same graph through spawner,
shim and synced receipts without a database; p50/p99: from a parent's exit to its child's exec. Then the idle cost of `forge up`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from jobs.process import floor, receipts

PARALLELISM = 4
ROUNDS = 3
IDLE_S = 60.0
ROOT = Path(__file__).resolve().parent.parent

Graph = Mapping[str, list[str]]


def chain(length: int = 100) -> Graph:
    return {f"n{i}": [f"n{i - 1}"] if i else [] for i in range(length)}


def fan(width: int = 200) -> Graph:
    middle = [f"m{i}" for i in range(width)]
    return {"first": [], **{name: ["first"] for name in middle}, "last": middle}


def layered(layers: int = 20, width: int = 50, parents: int = 3, seed: int = 1) -> Graph:
    chosen = random.Random(seed)
    graph: dict[str, list[str]] = {f"l0-{i}": [] for i in range(width)}
    for layer in range(1, layers):
        above = [f"l{layer - 1}-{i}" for i in range(width)]
        graph.update({f"l{layer}-{i}": sorted(chosen.sample(above, parents)) for i in range(width)})
    return graph


GRAPHS = {"chain100": chain, "fan200": fan, "layer1000": layered}


def document(name: str, graph: Graph, project: str) -> dict[str, Any]:
    """The graph as Forge gets it: program mode, readers of the workspace, so that nothing but slots bounds them."""
    return {
        "contract": "forge.plan/1",
        "name": name,
        "project": project,
        "executionMode": "program",
        "nodes": [
            {"key": key, "command": [floor.TRUE], "workMode": "read-only", **({"needs": list(needs)} if needs else {})}
            for key, needs in graph.items()
        ],
    }


class Installation:
    """A Forge of its own in a temporary home, driven through its console like anybody's."""

    def __init__(self, database_url: str) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="fb-"))
        self.project = self.root.name.replace(
            "_", "-"
        )  # its own: two installations may follow each other in one database
        self.home = self.root / "home"
        self.environment = {**os.environ, "FORGE_HOME": str(self.home), "DJANGO_SETTINGS_MODULE": "forge_site.settings"}
        self.environment.pop("DATABASE_URL", None)
        if database_url:
            self.environment["DATABASE_URL"] = database_url
        self.up: subprocess.Popen[bytes] | None = None

    def forge(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "forge_site", *arguments]
        return subprocess.run(
            command, env=self.environment, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout

    def start(self) -> None:
        self.forge("init")
        work = self.root / "work"
        work.mkdir()
        self.forge("project", "add", self.project, str(work), "--plain", f"--parallelism={PARALLELISM}")
        self.up = subprocess.Popen(
            [sys.executable, "-m", "forge_site", "up", "--bind", "127.0.0.1:0"],
            env=self.environment,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )
        wait_until((self.home / "web.json").exists, 60)

    def stop(self) -> None:
        if self.up is not None:
            self.up.send_signal(signal.SIGTERM)
            self.up.wait(60)
        shutil.rmtree(self.root, ignore_errors=True)

    def run(self, name: str, graph: Graph) -> tuple[float, list[float]]:
        """Wall seconds from the moment the graph is admitted to its last node's end; latencies in seconds."""
        path = self.root / f"{name}.json"
        path.write_text(json.dumps(document(name, graph, self.project)))
        known = {int(entry.name) for entry in (self.home / "jobs").iterdir()}
        self.forge("run", str(path))
        result = json.loads(self.forge("result", name, "--json"))
        if result["status"] != "completed":
            raise RuntimeError(f"{name} ended {result['status']}")
        return self._figures(graph, result, known)

    def _figures(self, graph: Graph, result: dict[str, Any], known: set[int]) -> tuple[float, list[float]]:
        """From the receipts, which carry the boot clock; admission is the database's time, a moment before the first start."""
        ends: dict[str, receipts.Exit] = {}
        for action in result["actions"]:
            [attempt] = action["attempts"]
            if attempt["id"] in known:
                raise RuntimeError("an attempt of an earlier run")
            ended = receipts.read_exit(self.home / "jobs" / str(attempt["id"]))
            if ended is None:
                raise RuntimeError(f"no receipt of attempt {attempt['id']}")
            ends[action["key"]] = ended
        admitted = time_of(result["admittedAt"])
        wall = max(end.ended_at for end in ends.values()) - admitted
        latencies = [
            ends[key].go_boottime - max(ends[parent].ended_boottime for parent in parents)
            for key, parents in graph.items()
            if parents
        ]
        return wall, latencies


def time_of(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def wait_until(condition: Any, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("waited in vain")
        time.sleep(0.02)  # noqa: TID251 (a benchmark looks from outside)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def bench_graphs(database: str, database_url: str, rounds: int, names: list[str]) -> None:
    installation = Installation(database_url)
    try:
        installation.start()
        installation.run("warm", chain(5))
        for name in names:
            graph = GRAPHS[name]()
            walls, bare, shim, latencies = [], [], [], []
            for _ in range(rounds):  # floors and Forge in turn, so that a slow minute is everybody's
                bare.append(floor.run_graph_bare(graph, parallelism=PARALLELISM).wall_s)
                shim.append(floor.run_graph(graph, parallelism=PARALLELISM, home=installation.home).wall_s)
                wall, found = installation.run(name, graph)
                walls.append(wall)
                latencies += found
            wall = statistics.median(walls)
            print(
                f"bench {name} {database} x={wall / statistics.median(bare):.1f} x_shim={wall / statistics.median(shim):.2f}"
                f" ms_per_node={wall / len(graph) * 1000:.2f} p50_ms={percentile(latencies, 0.5) * 1000:.1f}"
                f" p99_ms={percentile(latencies, 0.99) * 1000:.1f}"
                f" shim_ms_per_node={statistics.median(shim) / len(graph) * 1000:.2f}",
                flush=True,
            )
    finally:
        installation.stop()


def bench_idle(database: str, database_url: str, seconds: float) -> None:
    """CPU of everything `forge up` started, while there is nothing to do."""
    installation = Installation(database_url)
    try:
        installation.start()
        assert installation.up is not None
        wait_until((installation.home / "quiet").exists, 60)  # the cluster has had its first look: start-up is not idle
        time.sleep(3)  # noqa: TID251
        before = cpu_of(installation.up.pid)
        time.sleep(seconds)  # noqa: TID251 (measuring idleness is waiting)
        used = cpu_of(installation.up.pid) - before
        print(f"bench idle {database} cpu_percent={used / seconds * 100:.2f} seconds={seconds:.0f}", flush=True)
    finally:
        installation.stop()


def cpu_of(pid: int) -> float:
    """User and system seconds of a process and all below it, ended children included."""
    total = 0.0
    parent = psutil.Process(pid)
    for process in [parent, *parent.children(recursive=True)]:
        times = process.cpu_times()
        total += times.user + times.system
    return total


@contextmanager
def postgres() -> Iterator[str]:
    """URL of an empty database on a server with default durability, or '' where there is none."""
    import psycopg

    base = os.environ.get("FORGE_BENCH_POSTGRES", "postgresql://postgres@127.0.0.1:5432/postgres")
    name = f"forge_bench_{os.getpid()}"
    try:
        server = psycopg.connect(base, autocommit=True, connect_timeout=3)
    except psycopg.OperationalError as error:
        print(f"SKIPPED postgres: {str(error).strip().splitlines()[0]}")
        yield ""
        return
    with server:
        for setting in ("fsync", "synchronous_commit"):
            [(value,)] = server.execute(f"SHOW {setting}").fetchall()
            if value != "on":
                raise RuntimeError(f"this server has {setting}={value}: not default durability")
        server.execute(f'CREATE DATABASE "{name}"')
        try:
            yield base.rpartition("/")[0] + f"/{name}"
        finally:
            server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgres"], action="append")
    parser.add_argument("--graph", choices=list(GRAPHS), action="append")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--idle", type=float, default=IDLE_S, help="seconds; 0: not measured")
    options = parser.parse_args()
    for database in options.database or ["sqlite", "postgres"]:
        if database == "sqlite":
            _bench(database, "", options)
            continue
        with postgres() as url:
            if url:
                _bench(database, url, options)


def _bench(database: str, url: str, options: argparse.Namespace) -> None:
    bench_graphs(database, url, options.rounds, options.graph or list(GRAPHS))
    if options.idle:
        bench_idle(database, url, options.idle)


if __name__ == "__main__":
    main()
