"""Two projects at once: one cycle, two live process groups, and the end of one is nothing to the other."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from core.models import Event
from graphs.models import Node
from jobs.models import Attempt
from jobs.process.identity import Identity, is_alive
from leases.models import Lease, Request
from leases.states import BLOCKING
from tests.running import Forge, Repo, gated, writer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]


def waits_for(gate: Path) -> str:
    """A command that lives until ``gate`` exists, and is bounded all the same."""
    return f"i=0; while test ! -e {gate} && test $i -lt 600; do sleep 0.05; i=$((i + 1)); done"


def running(node: Node) -> Attempt:
    return Attempt.objects.get(job=node.job_id, state="running")


def alive(attempt: Attempt) -> bool:
    assert attempt.pid is not None
    assert attempt.start_ticks is not None
    return is_alive(Identity(attempt.boot_id, attempt.pid, attempt.start_ticks))


def two_projects(forge: Forge, tmp_path: Path, *, shared: bool = False) -> tuple[Node, Node, Path]:
    """Helios and Atlas, each with one writer that lives until the gate opens."""
    gate = tmp_path / "gate"
    nodes = []
    for name in ("helios", "atlas"):
        repo = Repo(tmp_path / name)
        forge.add_project(name, repo.path)
        more = {"primary": "feature:shared"} if shared else {}
        graph = forge.admit(gated(writer("work", f"{waits_for(gate)}; echo 2 > src/a", "src/a", **more), project=name))
        nodes.append(Node.objects.get(graph=graph))
    return nodes[0], nodes[1], gate


@pytest.mark.req("EV-01", "RB-15", "RB-05")
def test_disjoint_nodes_of_two_projects_are_granted_in_one_cycle(forge: Forge, tmp_path: Path) -> None:
    helios, atlas, gate = two_projects(forge, tmp_path)

    forge.step()

    grants = list(Request.objects.filter(state="granted").order_by("token").values_list("project__name", flat=True))
    assert sorted(grants) == ["atlas", "helios"]
    assert (
        Event.objects.filter(kind="request.granted").values("at").distinct().count() == 1
    )  # one transaction, one time
    gate.touch()
    forge.until_ended(helios.graph)
    forge.until_ended(atlas.graph)


@pytest.mark.req("EV-02", "PS-02")
def test_two_detached_groups_live_at_once_under_disjoint_leases(forge: Forge, tmp_path: Path) -> None:
    helios, atlas, gate = two_projects(forge, tmp_path)
    helios = forge.until_state(helios.graph, "work", "running")
    atlas = forge.until_state(atlas.graph, "work", "running")

    first, second = running(helios), running(atlas)
    groups = {os.getpgid(attempt.pid or 0) for attempt in (first, second)}
    assert alive(first)
    assert alive(second)
    assert groups == {first.pid, second.pid}
    assert os.getpgrp() not in groups
    counted = Lease.objects.filter(state__in=BLOCKING).exclude(access="capacity")
    held = [
        set(counted.filter(request=attempt.request_id).values_list("resource", flat=True))
        for attempt in (first, second)
    ]
    assert held[0]
    assert held[1]
    assert not held[0] & held[1]

    gate.touch()
    assert forge.until_ended(helios.graph) == "completed"
    assert forge.until_ended(atlas.graph) == "completed"


@pytest.mark.req("EV-04", "GC-13", "PS-02")
def test_killing_one_projects_group_leaves_the_other_running(forge: Forge, tmp_path: Path) -> None:
    helios, atlas, gate = two_projects(forge, tmp_path)
    helios = forge.until_state(helios.graph, "work", "running")
    atlas = forge.until_state(atlas.graph, "work", "running")
    survivor = running(atlas)
    leases = set(Lease.objects.filter(request=survivor.request_id, state="active").values_list("pk", "token"))

    os.killpg(running(helios).pid or 0, signal.SIGKILL)
    forge.until(lambda: Event.objects.filter(kind="node.revising", subject=helios.subject).exists())

    atlas.refresh_from_db()
    assert atlas.state == "running"
    assert alive(survivor)
    assert set(Lease.objects.filter(request=survivor.request_id, state="active").values_list("pk", "token")) == leases
    assert not Event.objects.filter(kind="node.revising", subject=atlas.subject).exists()

    gate.touch()
    assert forge.until_ended(atlas.graph) == "completed"
    assert forge.until_ended(helios.graph) == "completed"  # revised, in a checkout of its own


@pytest.mark.req("EV-03", "RB-07", "RB-12")
def test_the_older_writer_of_a_shared_domain_runs_and_the_other_waits_for_its_release(
    forge: Forge, tmp_path: Path
) -> None:
    helios, atlas, gate = two_projects(forge, tmp_path, shared=True)
    helios = forge.until_state(helios.graph, "work", "running")
    atlas = forge.until_state(atlas.graph, "work", "queued")
    holder = running(helios)

    [waiting] = Request.objects.filter(state="waiting")
    assert waiting.stopped_by_id == holder.request_id
    for _ in range(3):
        forge.step()
    assert Node.objects.get(pk=atlas.pk).state == "queued"

    gate.touch()
    assert forge.until_ended(helios.graph) == "completed"
    assert forge.until_ended(atlas.graph) == "completed"
    released = Event.objects.get(kind="request.ended", subject=f"request:{holder.request_id}").seq
    granted = Event.objects.get(kind="request.granted", subject=f"request:{waiting.pk}").seq
    assert granted > released
