"""Forge in one test process: real spawner, shims, git and database; tick and effects called in turn, no cluster.

A test sees the same code as production, without processes that it would have to wait for.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from core import wake
from core.home import home
from core.models import Event, Host, Project
from graphs import documents
from graphs.flows import submit
from graphs.models import Graph, Node
from graphs.states import GraphState
from jobs.process import spawner
from recovery import flows, selectors
from recovery.cycle import Tick
from recovery.hosts import name_this_host, register_host
from tests.workspaces.repos import git, make
from workspaces.flows import find_place
from workspaces.services import add_project

HANG_LIMIT_S = 30.0


class Forge:
    """An installation in the test's home. ``close`` lets its spawner go."""

    def __init__(self) -> None:
        place = home()
        for directory in (place.jobs, place.checkouts, place.results, place.wake_dir, place.logs):
            directory.mkdir(parents=True, exist_ok=True)
        self.host: Host = register_host(name=name_this_host())
        self.socket = wake.WakeSocket(wake.SCHEDULER)
        self.tick = Tick(self.host, place, self.socket)

    def close(self) -> None:
        self.tick.supervisor.close()
        self.socket.close()
        (home().root / spawner.SOCKET).unlink(missing_ok=True)

    def restart(self) -> None:
        """What a killed cluster leaves: the rows and the processes. Everything in memory is gone."""
        self.tick.supervisor.close()
        self.tick = Tick(self.host, home(), self.socket)

    def add_project(
        self,
        name: str,
        path: Path,
        *,
        checks: Sequence[dict[str, Any]] = (),
        plain: bool = False,
        parallelism: int = 8,
        target: str = "",
    ) -> Project:
        return add_project(
            name=name,
            place=find_place(path, target=target, plain=plain),
            checks=list(checks),
            host_id=self.host.pk,
            parallelism=parallelism,
        )

    def admit(self, document: dict[str, Any], *, request_id: str = "") -> Graph:
        parsed = documents.parse({"contract": documents.CONTRACT, **document})
        return submit(
            parsed, principal="test", request_id=request_id or f"{parsed.project}/{parsed.name}/{time.monotonic_ns()}"
        )

    def step(self) -> bool:
        """One turn of the tick and all effects that are due. Returns whether anything happened."""
        worked = self.tick.turn({wake.TICK})
        for repository in sorted(selectors.repositories_with_due_effects(self.host.pk)):
            flows.run_effects(repository)
            worked = True
        return worked

    def until(self, condition: Callable[[], bool]) -> None:
        """Go on until ``condition`` holds; between steps wait for the next wake-up, as the tick does."""
        deadline = time.monotonic() + HANG_LIMIT_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"this never came true; {dump()}")
            if not self.step():
                if self.tick.supervisor.has_unrecorded:
                    self.tick.record_starts()
                select.select([self.socket], [], [], 0.2)

    def until_ended(self, graph: Graph) -> GraphState:
        self.until(lambda: Graph.objects.get(pk=graph.pk).state != GraphState.ACTIVE)
        graph.refresh_from_db()
        return GraphState(graph.state)

    def until_state(self, graph: Graph, key: str, state: str) -> Node:
        self.until(lambda: Node.objects.get(graph=graph, key=key).state == state)
        return Node.objects.get(graph=graph, key=key)


def states(graph: Graph) -> dict[str, str]:
    return dict(Node.objects.filter(graph=graph).order_by("position").values_list("key", "state"))


def dump() -> str:
    """What a hanging test needs to tell: nodes, and the end of the journal."""
    nodes = list(Node.objects.values_list("key", "state"))
    events = [f"{event} {event.data}" for event in reversed(Event.objects.order_by("-seq")[:25])]
    return "\n".join([f"nodes: {nodes}", *events])


# --- what the tests run -----------------------------------------------------------------------------------------------


class Repo:
    """A small repository with its target branch checked out, as a person has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        make(path, {"README": "hello\n", "src/a": "1\n", "src/b": "1\n"})

    def git(self, *args: str) -> str:
        return git(self.path, *args)

    def tip(self) -> str:
        return self.git("rev-parse", "refs/heads/main")


def writer(key: str, script: str, *owned: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "command": ["sh", "-c", script], "ownedFiles": list(owned), **more}


def gated(*nodes: dict[str, Any], name: str = "g", project: str = "p", **more: Any) -> dict[str, Any]:
    return {"name": name, "project": project, "nodes": list(nodes), **more}


def program(*nodes: dict[str, Any], name: str = "prog", project: str = "p", **more: Any) -> dict[str, Any]:
    return {"name": name, "project": project, "executionMode": "program", "nodes": list(nodes), **more}
