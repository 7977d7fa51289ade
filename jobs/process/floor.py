"""The floor that Forge's speed is compared with: a plain loop over a graph of ``true``, with nothing but processes in it.

``run_graph`` goes through spawner, shim and synced receipts, but without any database; ``run_graph_bare`` uses
``posix_spawn``. What Forge takes on top of the first is the price of its rows, on top of the second that of everything.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from jobs.process import receipts
from jobs.process.receipts import Fence, Spec
from jobs.process.spawner import Outcome, Spawner

TRUE = shutil.which("true") or "/bin/true"


@dataclass
class Floor:
    """wall_s: first launch to last exit. latencies_s: last predecessor's end to exec, one per node that has any."""

    wall_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)


class _Run:
    """Which nodes are ready, and when each began and ended. graph: node to its predecessors, as graphlib takes it."""

    def __init__(self, graph: Mapping[Any, Iterable[Any]], parallelism: int) -> None:
        self.parents = {node: list(parents) for node, parents in graph.items()}
        self.sorter = TopologicalSorter(self.parents)
        self.sorter.prepare()
        self.parallelism = parallelism
        self.ready: list[Any] = []
        self.running = 0
        self.ended_at: dict[Any, float] = {}
        self.floor = Floor()

    def is_active(self) -> bool:
        return self.sorter.is_active()

    def next_batch(self) -> list[Any]:
        self.ready += self.sorter.get_ready()
        free = self.parallelism - self.running
        batch, self.ready = self.ready[:free], self.ready[free:]
        self.running += len(batch)
        return batch

    def began(self, node: Any, at: float) -> None:
        if parents := self.parents.get(node):
            self.floor.latencies_s.append(at - max(self.ended_at[parent] for parent in parents))

    def ended(self, node: Any, at: float) -> None:
        self.ended_at[node] = at
        self.running -= 1
        self.sorter.done(node)


def run_graph_bare(graph: Mapping[Any, Iterable[Any]], *, parallelism: int) -> Floor:
    """``posix_spawn`` and ``waitpid`` only."""
    run, pids = _Run(graph, parallelism), dict[int, Any]()
    began = time.monotonic()
    while run.is_active():
        for node in run.next_batch():
            pid = os.posix_spawn(TRUE, [TRUE], {})
            run.began(node, time.monotonic())  # posix_spawn returns once the child has exec'ed
            pids[pid] = node
        pid, _ = os.waitpid(-1, 0)
        run.ended(pids.pop(pid), time.monotonic())
    run.floor.wall_s = time.monotonic() - began
    return run.floor


def run_graph(graph: Mapping[Any, Iterable[Any]], *, parallelism: int, home: Path) -> Floor:
    """Spawner, shim, synced receipts, below ``home``, which keeps its spawner and the job directories.

    They are not removed here: ext4 without a journal makes files slowly for minutes after others were removed.
    """
    run, jobs = _Run(graph, parallelism), dict[int, Any]()
    root = Path(tempfile.mkdtemp(prefix="floor-", dir=home))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wake, Spawner(home) as spawner:
        wake.bind(str(root / "floor.sock"))
        wake.setblocking(False)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(spawner.socket, select.POLLIN)
        began = time.monotonic()
        while run.is_active():
            for node in run.next_batch():
                attempt = len(jobs)
                jobs[attempt] = node
                _order(spawner, _make_job(root, attempt))
            if not poll.poll(60_000):
                raise TimeoutError("no job ended within a minute")
            _check(spawner)
            for attempt in _ended(wake):
                _settle(run, jobs[attempt], root / str(attempt))
        run.floor.wall_s = time.monotonic() - began
    return run.floor


def _make_job(root: Path, attempt: int) -> Path:
    jobdir = root / str(attempt)
    jobdir.mkdir(mode=0o700)
    spec = Spec(
        job=attempt,
        attempt=attempt,
        fence=Fence(1, 1),
        argv=(TRUE,),
        env={},
        cwd="/",
        marker=f"{root.name}:{attempt}",
        wake_dir=str(root),
    )
    receipts.write_spec(jobdir, spec)
    return jobdir


def _order(spawner: Spawner, jobdir: Path) -> None:
    while True:
        try:
            return spawner.order(str(jobdir))
        except BlockingIOError:  # the kernel queues about ten
            room = select.poll()
            room.register(spawner.socket, select.POLLOUT)
            room.poll(10_000)


def _check(spawner: Spawner) -> None:
    for jobdir, launched in spawner.answers():
        if launched.outcome is not Outcome.STARTED:
            raise RuntimeError(f"{jobdir}: {launched}")


def _ended(wake: socket.socket) -> Iterable[int]:
    while True:
        try:
            yield int(wake.recv(64).removeprefix(b"exit:"))
        except BlockingIOError:
            return


def _settle(run: _Run, node: Any, jobdir: Path) -> None:
    ended = receipts.read_exit(jobdir)
    if ended is None or ended.exit_code != 0:
        raise RuntimeError(f"{jobdir}: {ended}")
    run.began(node, ended.go_boottime)
    run.ended(node, ended.ended_boottime)
