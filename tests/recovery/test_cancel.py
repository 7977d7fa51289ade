"""Cancelling graphs and nodes: before, while and after they run, and against commands that will not go."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from core.models import CancelIntent
from graphs.services import cancel_graph, cancel_node
from jobs.models import Attempt, Job
from leases.models import Lease, Request
from leases.states import BLOCKING
from tests.running import Forge, Repo, gated, program, states, writer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]

STUBBORN = r"""
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def hide():
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execve(sys.executable, [sys.executable, "-c",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)", "forge-stubborn"], {})
for _ in range(3):
    if os.fork() == 0:
        hide()
open(sys.argv[1], "w").close()
time.sleep(600)
"""


def stubborn_processes() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "forge-stubborn" in (process.info["cmdline"] or []):
            found.append(process)
    return found


@pytest.mark.req("PS-05", "PS-06", "JB-26")
@pytest.mark.parametrize("kind", ["gated", "program"])
def test_a_command_that_ignores_term_and_hides_its_children_leaves_nothing(
    forge: Forge, repo: Repo, tmp_path: Path, kind: str
) -> None:
    ready = tmp_path / "ready"
    forge.add_project("p", repo.path)
    node = {
        "key": "hide",
        "command": ["python3", "-c", STUBBORN, str(ready)],
        "graceSeconds": 1,
        "ownedFiles": ["src/"],
    }
    graph = forge.admit(gated(node) if kind == "gated" else program(node))
    forge.until(lambda: ready.exists() and len(stubborn_processes()) == 3)

    answer = cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor="test", reason="enough")
    assert forge.until_ended(graph) == "cancelled"

    assert answer.accepted
    attempt = Attempt.objects.get()
    survivors = attempt.evidence.get("survivors", [])
    left = stubborn_processes()
    assert {process.pid for process in left} == {survivor["pid"] for survivor in survivors}
    if survivors:
        assert Lease.objects.filter(request=attempt.request_id, state__in=BLOCKING).exists()
    else:
        assert not Lease.objects.filter(state__in=BLOCKING).exists()
    assert attempt.state == "cancelled"
    assert CancelIntent.objects.get().reason == "enough"


def test_cancelling_ends_what_waits_at_once_and_asks_what_runs(forge: Forge, tmp_path: Path) -> None:
    forge.add_project("p", tmp_path, plain=True, parallelism=1)
    graph = forge.admit(
        program(
            {"key": "runs", "command": ["sleep", "600"], "workMode": "read-only", "graceSeconds": 1},
            {"key": "waits", "command": ["true"], "workMode": "read-only"},
            {"key": "behind", "command": ["true"], "workMode": "read-only", "needs": ["runs"]},
        )
    )
    forge.until_state(graph, "runs", "running")

    cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor="test")

    assert not Request.objects.filter(state="waiting").exists()
    assert states(graph)["behind"] == "cancelled"
    assert forge.until_ended(graph) == "cancelled"
    assert set(states(graph).values()) == {"cancelled"}
    assert set(Job.objects.values_list("state", flat=True)) == {"cancelled"}


def test_an_attempt_that_was_granted_but_never_started_runs_nothing(forge: Forge, repo: Repo, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    forge.add_project("p", repo.path)
    graph = forge.admit(gated(writer("a", f"touch {mark}", "src/a")))
    forge.tick.turn({b"tick"})  # granted; its checkout is an effect that nobody has run yet
    assert Attempt.objects.get().state == "starting"

    cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor="test")
    assert forge.until_ended(graph) == "cancelled"

    assert not mark.exists()
    assert Attempt.objects.get().evidence["cause"] == "never_started"
    assert not Lease.objects.filter(state__in=BLOCKING).exists()


def test_cancelling_one_node_skips_what_needs_it_and_leaves_the_rest(forge: Forge, tmp_path: Path) -> None:
    forge.add_project("p", tmp_path, plain=True)
    graph = forge.admit(
        program(
            {"key": "long", "command": ["sleep", "600"], "workMode": "read-only", "graceSeconds": 1},
            {"key": "behind", "command": ["true"], "workMode": "read-only", "needs": ["long"]},
            {"key": "other", "command": ["true"], "workMode": "read-only"},
        )
    )
    node = forge.until_state(graph, "long", "running")

    cancel_node(project_id=graph.project_id, node_id=node.pk, actor="test")
    forge.until_ended(graph)

    assert states(graph) == {"long": "cancelled", "other": "succeeded", "behind": "skipped"}
    assert cancel_node(project_id=graph.project_id, node_id=node.pk, actor="test").accepted is False


def test_a_queued_candidate_leaves_the_queue_and_stays_pinned(forge: Forge, repo: Repo) -> None:
    base = repo.tip()
    forge.add_project("p", repo.path, checks=[{"name": "slow", "argv": ["sleep", "600"]}])
    graph = forge.admit(gated(writer("a", "echo 2 > src/a", "src/a")))
    forge.until(lambda: Attempt.objects.filter(job__owner__startswith="check:", state="running").exists())

    cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor="test")
    assert forge.until_ended(graph) == "cancelled"
    forge.until(lambda: not Lease.objects.filter(state__in=BLOCKING).exists())

    assert repo.tip() == base
    assert len(repo.git("for-each-ref", "refs/forge/candidate").splitlines()) == 1
