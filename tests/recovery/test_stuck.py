"""What cannot be done now: it is shown, it stays one project's trouble, and it goes on by itself once mended."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.models import AttentionItem
from graphs.services import cancel_graph
from graphs.steps import dispatch
from jobs.models import Attempt, Job
from tests.running import Forge, Repo, gated, program, states, writer
from workspaces.models import Checkout

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]


def test_a_repository_that_is_away_is_shown_once_and_forgotten_when_it_is_back(forge: Forge, repo: Repo) -> None:
    forge.add_project("p", repo.path)
    graph = forge.admit(gated(writer("a", "echo 2 > src/a", "src/a")))
    away = repo.path.with_name("away")
    repo.path.rename(away)

    for _ in range(3):
        forge.step()
    [question] = AttentionItem.objects.filter(resolved_at=None)
    assert question.code == "path_missing"

    away.rename(repo.path)
    assert forge.until_ended(graph) == "completed"
    question.refresh_from_db()
    assert question.resolved_at is not None


@pytest.mark.req("JB-20")
def test_an_attempt_that_cannot_start_before_its_deadline_is_timed_out(forge: Forge, repo: Repo) -> None:
    forge.add_project("p", repo.path)
    graph = forge.admit(gated(writer("a", "echo 2 > src/a", "src/a", maxRevisions=0)))
    repo.path.rename(repo.path.with_name("away"))
    forge.step()
    Attempt.objects.update(deadline_boottime=1.0)  # long ago, as after a night

    assert forge.until_ended(graph) == "partial"

    assert Attempt.objects.get().state == "timed_out"
    assert Job.objects.get().state == "timed_out"


def test_the_trouble_of_one_project_does_not_hold_up_another(
    forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        (tmp_path / name).mkdir()
        forge.add_project(name, tmp_path / name, plain=True)
    broken = forge.admit(program({"key": "a", "command": ["true"], "workMode": "read-only"}, project="bad"))
    whole = forge.admit(program({"key": "a", "command": ["true"], "workMode": "read-only"}, project="good"))

    def fail_for_bad(nodes: list[object], *, project: object, now: object) -> None:
        if str(project) == "bad" and nodes:
            raise ZeroDivisionError
        dispatch(nodes, project=project, now=now)  # type: ignore[arg-type]

    with monkeypatch.context() as trouble:
        trouble.setattr("graphs.services.steps.dispatch", fail_for_bad)
        assert forge.until_ended(whole) == "completed"
        assert states(broken) == {"a": "pending"}

    assert forge.until_ended(broken) == "completed"


def test_a_checkout_that_was_ordered_for_nothing_is_not_kept(forge: Forge, repo: Repo) -> None:
    forge.add_project("p", repo.path)
    graph = forge.admit(gated(writer("a", "true", "src/a")))
    forge.tick.turn({b"tick"})
    assert Checkout.objects.get().state == "adding"

    cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor="test")
    forge.until_ended(graph)
    forge.until(lambda: Checkout.objects.get().state == "removed")

    assert not Path(Checkout.objects.get().path).exists()
