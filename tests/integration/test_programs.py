"""Programs in a shared workspace with real processes: where they run, what they see, what stays, and how they end."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

import jobs.process.control
from core.models import Event
from graphs.models import Node
from graphs.services import cancel_graph
from jobs.models import Attempt, Job
from jobs.process import identity, receipts
from tests.driving import left_over, state, states
from tests.running import Forge, program, writer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]


def reader(key: str, *command: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "command": list(command), "workMode": "read-only", **more}


def end(forge: Forge, graph: Any) -> str:
    found = forge.until_ended(graph)
    forge.until(lambda: not left_over())
    return found


def waits_for(gate: Path) -> str:
    return f"i=0; while test ! -e {gate} && test $i -lt 600; do sleep 0.05; i=$((i + 1)); done"


@pytest.mark.req("PX-06")
def test_every_action_works_in_the_project_itself(forge: Forge, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    forge.add_project("p", place, plain=True)
    graph = forge.admit(
        program(writer("a", f"pwd -P > {tmp_path}/a", "a"), reader("b", "sh", "-c", f"pwd -P > {tmp_path}/b"))
    )

    assert end(forge, graph) == "completed"
    assert {(tmp_path / name).read_text().strip() for name in "ab"} == {str(place.resolve())}


@pytest.mark.req("PX-07", "PX-19")
@pytest.mark.parametrize("code", [0, 3])
def test_work_outside_a_territory_is_kept_and_no_reason_to_fail(forge: Forge, tmp_path: Path, code: int) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "other").write_text("old\n")
    forge.add_project("p", place, plain=True)
    graph = forge.admit(program(writer("a", f"echo new > other; echo new > created; exit {code}", "mine/")))

    assert end(forge, graph) == ("partial" if code else "completed")
    assert [(place / name).read_text() for name in ("other", "created")] == ["new\n", "new\n"]
    assert states(graph) == {"a": "failed" if code else "succeeded"}


@pytest.mark.req("PX-08", "PX-09")
def test_disjoint_territories_overlap_in_time_and_overlapping_ones_do_not(forge: Forge, tmp_path: Path) -> None:
    forge.add_project("p", tmp_path, plain=True)
    gate = tmp_path / "gate"
    meet = f"touch here-$FORGE_NODE; {waits_for(gate)}"
    graph = forge.admit(
        program(
            writer("one", meet, "src/one/"),
            writer("three", meet, "src/three/"),
            writer("two", meet, "src/two/"),
            writer("z", meet, "src/one/deep"),
        )
    )
    forge.until(lambda: all((tmp_path / f"here-{key}").exists() for key in ("one", "two", "three")))
    assert not (tmp_path / "here-z").exists()
    gate.touch()

    assert end(forge, graph) == "completed"
    first, last = (Attempt.objects.get(job__owner=Node.objects.get(key=key).subject) for key in ("one", "z"))
    assert first.ended_at is not None
    assert last.started_at is not None
    assert first.ended_at <= last.started_at


@pytest.mark.req("PX-10")
def test_a_dependent_runs_while_a_sibling_of_its_input_still_does(forge: Forge, tmp_path: Path) -> None:
    forge.add_project("p", tmp_path, plain=True)
    gate = tmp_path / "gate"
    graph = forge.admit(
        program(
            reader("slow", "sh", "-c", waits_for(gate)),
            reader("quick", "true"),
            reader("next", "true", needs=["quick"]),
        )
    )
    forge.until_state(graph, "next", "succeeded")
    assert states(graph)["slow"] in ("queued", "running")
    gate.touch()
    assert end(forge, graph) == "completed"


@pytest.mark.req("PX-12", "PX-11")
def test_an_integrator_waits_for_running_readers_and_later_readers_wait_for_it(forge: Forge, tmp_path: Path) -> None:
    forge.add_project("p", tmp_path, plain=True)
    gate = tmp_path / "gate"
    (tmp_path / "log").touch()
    graph = forge.admit(
        program(
            reader("a-early", "sh", "-c", f"{waits_for(gate)}; echo early >> log"),
            {"key": "b-fix", "command": ["sh", "-c", "echo fix >> log; echo 1 > anything"], "ownedFiles": []},
            reader("c-late", "sh", "-c", "echo late >> log"),
        )
    )
    forge.until_state(graph, "a-early", "running")
    for _ in range(3):
        forge.step()
    assert (states(graph)["b-fix"], states(graph)["c-late"]) == ("queued", "queued")
    gate.touch()

    assert end(forge, graph) == "completed"
    assert (tmp_path / "log").read_text().split() == ["early", "fix", "late"]


@pytest.mark.req("PS-15")
def test_a_worker_sees_nothing_of_the_operators_shell(
    forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("FOREIGN_SETTING", "1")
    forge.add_project("p", tmp_path, plain=True)
    graph = forge.admit(program(reader("a", "sh", "-c", f"env > {tmp_path}/env", env={"MINE": "yes"})))

    assert end(forge, graph) == "completed"
    seen = dict(line.partition("=")[::2] for line in (tmp_path / "env").read_text().splitlines())
    assert not {"GIT_DIR", "FOREIGN_SETTING", "DATABASE_URL", "FORGE_SECRET_KEY"} & {*seen}
    assert (seen["MINE"], seen["FORGE_NODE"], seen["FORGE_GRAPH"]) == ("yes", "a", "prog#1")


@pytest.mark.req("PS-08")
def test_a_command_that_leaves_children_behind_has_not_ended(forge: Forge, tmp_path: Path) -> None:
    """They are ended with it, and only then may the next writer start."""
    forge.add_project("p", tmp_path, plain=True)
    graph = forge.admit(
        program(
            writer("a", "sleep 600 & echo $! > child; exit 0", "same", graceSeconds=1),
            writer("b", "kill -0 $(cat child) && echo alive > seen || echo gone > seen", "same", needs=["a"]),
        )
    )

    assert end(forge, graph) == "completed"
    assert (tmp_path / "seen").read_text() == "gone\n"


@pytest.mark.req("PS-03")
def test_no_signal_is_sent_before_the_intent_is_recorded(
    forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge.add_project("p", tmp_path, plain=True)
    graph = forge.admit(program(reader("a", "sleep", "600", graceSeconds=1)))
    node = forge.until_state(graph, "a", "running")
    sent = []
    term = jobs.process.control.term

    def count_and_send(*args: Any, **kwargs: Any) -> None:
        sent.append(1)
        term(*args, **kwargs)

    monkeypatch.setattr(jobs.process.control, "term", count_and_send)

    def fail(*args: Any, **kwargs: Any) -> bool:
        raise RuntimeError("the intent cannot be written")

    with monkeypatch.context() as patch:
        patch.setattr("graphs.services.intend_cancel", fail)
        with pytest.raises(RuntimeError):
            cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor="test")
        for _ in range(3):
            forge.step()
    assert not sent
    assert state(node) == "running"

    cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor="test")
    assert end(forge, graph) == "cancelled"
    assert sent
    order = list(
        Event.objects.filter(kind__in=["cancel.intended", "attempt.cancelled"])
        .order_by("seq")
        .values_list("kind", flat=True)
    )
    assert order == ["cancel.intended", "attempt.cancelled"]


@pytest.mark.req("PS-09", "PX-19")
@pytest.mark.parametrize(
    ("command", "more", "cause", "outcome"),
    [
        (["/nonexistent/program"], {}, "launch_error", "job_failed"),
        (["sh", "-c", "kill -SEGV $$"], {}, "crashed", "job_failed"),
        (["sh", "-c", "exit 3"], {}, "exited", "job_failed"),
        (["sleep", "600"], {"deadlineSeconds": 1, "graceSeconds": 1}, "deadline", "job_timed_out"),
        (["sh", "-c", "kill -9 $PPID; sleep 600"], {"retry": {"attempts": 1}}, "controller_lost", "job_failed"),
    ],
)
def test_each_way_to_end_badly_has_its_cause_and_others_go_on(
    forge: Forge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    more: dict[str, Any],
    cause: str,
    outcome: str,
) -> None:
    monkeypatch.setattr("graphs.flows._require_executables", lambda document: None)
    forge.add_project("p", tmp_path, plain=True)
    graph = forge.admit(
        program({"key": "bad", "command": command, "ownedFiles": ["x"], **more}, reader("good", "true"))
    )

    assert end(forge, graph) == "partial"
    assert states(graph) == {"bad": "failed", "good": "succeeded"}
    node = Node.objects.get(key="bad")
    assert node.outcome["code"] == outcome
    assert Attempt.objects.get(job=node.job_id).cause == cause


@pytest.mark.req("PS-09", "JB-12")
def test_work_that_a_restart_of_the_host_cut_off_is_repeated(
    forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge.add_project("p", tmp_path, plain=True)
    graph = forge.admit(
        program(
            reader(
                "a", "sh", "-c", f"echo ran >> {tmp_path}/count; test $(wc -l < {tmp_path}/count) -gt 1 || sleep 600"
            )
        )
    )
    forge.until_state(graph, "a", "running")
    forge.until(lambda: (tmp_path / "count").exists())
    attempt = Attempt.objects.get()
    os.kill(attempt.shim_pid or 0, signal.SIGKILL)
    os.killpg(attempt.pid or 0, signal.SIGKILL)
    with monkeypatch.context() as patch:
        patch.setattr(identity, "boot_id", lambda: "another boot")
        forge.until(lambda: state(attempt) == "lost")

    assert end(forge, graph) == "completed"
    assert (attempt.state, attempt.cause) == ("lost", "host_restarted")
    assert len((tmp_path / "count").read_text().splitlines()) == 2


@pytest.mark.req("JB-20")
def test_a_deadline_is_kept_by_a_process_that_never_armed_a_timer(forge: Forge, tmp_path: Path) -> None:
    forge.add_project("p", tmp_path, plain=True)
    graph = forge.admit(program(reader("a", "sleep", "600", deadlineSeconds=1, graceSeconds=1)))
    forge.until_state(graph, "a", "running")
    forge.restart()

    assert end(forge, graph) == "partial"
    attempt = Attempt.objects.get()
    assert (attempt.state, attempt.cause) == ("timed_out", "deadline")
    assert attempt.deadline_at is not None
    assert attempt.ended_at is not None
    assert attempt.ended_at >= attempt.deadline_at - timedelta(seconds=0.1)
    assert attempt.deadline_at < timezone.now()
    assert Job.objects.get().state == "timed_out"


@pytest.mark.req("PS-11", "JB-09", "JB-10")
def test_a_worker_that_ended_while_nobody_looked_has_succeeded(forge: Forge, tmp_path: Path) -> None:
    forge.add_project("p", tmp_path, plain=True)
    graph = forge.admit(program(writer("a", f"echo ran >> {tmp_path}/count", "x")))
    forge.tick.turn({b"tick"})
    attempt = Attempt.objects.get()
    forge.restart()
    jobdir = Path(os.environ["FORGE_HOME"]) / "jobs" / str(attempt.pk)
    forge.until(lambda: receipts.read_exit(jobdir) is not None)

    assert end(forge, graph) == "completed"
    assert (tmp_path / "count").read_text() == "ran\n"
    assert Attempt.objects.count() == 1
