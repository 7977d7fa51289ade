"""Landing on a real repository: moved targets, tampering, a person's files in the way, remotes, and git that fails."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import integration.flows
import integration.services
from core.models import AttentionItem, Event, Project
from graphs.models import Graph, Node
from graphs.services import cancel_graph
from integration.models import Candidate, Check, Entry
from recovery import flows as effects
from recovery import selectors
from tests.driving import attention, left_over, state, states
from tests.running import Forge, Repo, gated, writer
from workspaces import git
from workspaces.errors import GitFailed, GitTimeout

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]

FINE = {"name": "fine", "argv": ["test", "-f", "src/a"]}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A held entry is looked at again at once; how long it waits is a matter of rows (test_services)."""
    monkeypatch.setattr(integration.services, "HELD_RETRY", timedelta(0))


def person_commits(repo: Repo, files: dict[str, str], message: str = "person") -> str:
    for name, content in files.items():
        (repo.path / name).write_text(content)
    repo.git("add", "--all")
    repo.git("commit", "--quiet", "--allow-empty", "-m", message)
    return repo.tip().strip()


def one_writer(forge: Forge, repo: Repo, *, checks: Any = (), **more: Any) -> Graph:
    forge.add_project("p", repo.path, checks=checks)
    return forge.admit(gated(writer("a", "echo 2 > src/a", "src/a", **more)))


def until_entry(forge: Forge, wanted: str) -> Entry:
    """Only ticks and effects up to the state; the effect that follows it has not run."""
    for _ in range(200):
        if entry := Entry.objects.filter(state=wanted).first():
            return entry
        forge.tick.turn({b"tick"})
        if entry := Entry.objects.filter(state=wanted).first():
            return entry
        run_effects(forge)
    raise AssertionError(f"no entry became {wanted}")


def run_effects(forge: Forge) -> None:
    for repository in sorted(selectors.repositories_with_due_effects(forge.host.pk)):
        effects.run_effects(repository)


def end(forge: Forge, graph: Graph) -> str:
    found = forge.until_ended(graph)
    forge.until(lambda: not left_over())
    return found


# --- moved targets ----------------------------------------------------------------------------------------------------


@pytest.mark.req("IQ-06", "IQ-12", "IQ-14")
def test_a_moved_target_is_replayed_onto_and_checked_again(forge: Forge, repo: Repo) -> None:
    base = repo.tip()
    graph = one_writer(forge, repo, checks=[FINE])
    entry = until_entry(forge, "landing")
    first = entry.offered
    assert Check.objects.get().commit == first
    own = person_commits(repo, {"docs": "mine\n"})

    assert end(forge, graph) == "completed"

    entry.refresh_from_db()
    assert (entry.base, entry.refreshed) == (own, 1)
    assert entry.offered != first
    assert repo.git("rev-list", f"{base}..main").split() == [entry.offered, own]
    assert dict(Check.objects.values_list("commit", "state")) == {first: "passed", entry.offered: "passed"}
    shown = repo.git("log", "-1", "--format=%an%n%b", "main")
    candidate = Candidate.objects.get()
    assert shown.splitlines()[0] == repo.git("log", "-1", "--format=%an", candidate.commit)
    assert f"Forge-Candidate: {candidate.commit}" in shown
    assert (repo.path / "docs").read_text() == "mine\n"


@pytest.mark.req("IQ-12")
def test_without_refresh_the_entry_is_stale_and_its_work_is_done_again(forge: Forge, repo: Repo) -> None:
    graph = one_writer(forge, repo, checks=[FINE])
    Project.objects.update(refresh=False)
    entry = until_entry(forge, "landing")
    own = person_commits(repo, {"docs": "mine\n"})

    assert end(forge, graph) == "completed"

    assert state(entry) == "stale"
    assert Check.objects.get(entry=entry).state == "passed"  # evidence stays, and counts for nothing
    second = Entry.objects.latest("pk")
    assert (second.state, second.base) == ("accepted", own)
    assert Node.objects.get().accepted_commit == second.offered
    assert repo.git("cat-file", "-t", Candidate.objects.earliest("pk").pin_ref) == "commit"


@pytest.mark.req("IQ-06")
def test_a_branch_that_a_person_wound_back_is_not_wound_forward_again(forge: Forge, repo: Repo) -> None:
    person_commits(repo, {"docs": "draft\n"})
    graph = one_writer(forge, repo)
    until_entry(forge, "landing")
    repo.git("reset", "--quiet", "--hard", "HEAD^")

    assert end(forge, graph) == "completed"
    assert repo.git("log", "--format=%s", "main").split("\n")[0] == "a"
    assert repo.git("ls-tree", "--name-only", "main").split() == ["README", "src"]


def test_a_person_who_made_the_same_change_meanwhile_is_no_conflict(forge: Forge, repo: Repo) -> None:
    graph = one_writer(forge, repo, checks=[FINE])
    until_entry(forge, "landing")
    own = person_commits(repo, {"src/a": "2\n"})

    assert end(forge, graph) == "completed"
    assert repo.git("diff", own, "main") == ""
    assert own in repo.git("rev-list", "--first-parent", "main").split()


def test_competitive_writers_of_one_file_run_at_once_and_the_second_is_revised(forge: Forge, repo: Repo) -> None:
    forge.add_project("p", repo.path)
    met = repo.path.parent / "met"
    met.mkdir()
    both = f"test $(ls {met} | wc -l) -ge 2"
    meet = f"touch {met}/$FORGE_NODE; i=0; until {both} || test $i -ge 600; do sleep 0.05; i=$((i + 1)); done"
    graph = forge.admit(
        gated(*(writer(key, f"{meet}; echo {key} >> src/a", "src/a", workMode="competitive") for key in "xy"))
    )

    assert end(forge, graph) == "completed"
    assert sorted((repo.path / "src/a").read_text().split()) == ["1", "x", "y"]
    assert sorted(Node.objects.values_list("revisions", flat=True)) == [0, 1]


@pytest.mark.req("IQ-12")
def test_a_target_branch_that_is_gone_holds_the_queue_with_a_question(forge: Forge, repo: Repo) -> None:
    graph = one_writer(forge, repo)
    until_entry(forge, "refreshing")
    repo.git("checkout", "--quiet", "--detach")
    tip = repo.tip()
    repo.git("update-ref", "-d", "refs/heads/main")
    for _ in range(3):
        forge.step()
    assert attention() == ["branch_unknown"]

    repo.git("update-ref", "refs/heads/main", tip.strip())
    assert end(forge, graph) == "completed"
    assert attention() == []


# --- tampering --------------------------------------------------------------------------------------------------------


def other_tree(repo: Repo, entry: Entry) -> str:
    (repo.path / "src/a").write_text("evil\n")
    repo.git("add", "src/a")
    tree = repo.git("write-tree")
    repo.git("reset", "--quiet", "--hard")
    return repo.git("commit-tree", "-p", entry.base, "-m", "evil", tree)


def no_line(repo: Repo, entry: Entry) -> str:
    return repo.git("commit-tree", "-m", "evil", f"{entry.offered}^{{tree}}")


def other_paths(repo: Repo, entry: Entry) -> str:
    (repo.path / "src/b").write_text("evil\n")
    repo.git("add", "src/b")
    tree = repo.git("write-tree")
    repo.git("reset", "--quiet", "--hard")
    commit = repo.git("commit-tree", "-p", entry.base, "-m", "evil", tree)
    Entry.objects.filter(pk=entry.pk).update(offered_tree=tree)  # as if the very check had been fooled
    return commit


@pytest.mark.req("IQ-06", "IQ-13", "IQ-14")
@pytest.mark.parametrize("tamper", [other_tree, no_line, other_paths])
def test_a_candidate_that_is_not_what_was_checked_freezes_the_project(forge: Forge, repo: Repo, tamper: Any) -> None:
    base = repo.tip()
    graph = one_writer(forge, repo, checks=[FINE])
    entry = until_entry(forge, "landing")
    Entry.objects.filter(pk=entry.pk).update(offered=tamper(repo, entry))

    for _ in range(4):
        forge.step()

    assert repo.tip() == base
    assert repo.git("status", "--porcelain") == ""
    assert attention() == ["landing_proof_failed"]
    item = AttentionItem.objects.get(resolved_at=None)
    assert item.evidence["reason"] == {"no_line": "not_a_line"}.get(tamper.__name__, tamper.__name__)
    forge.until(lambda: Entry.objects.filter(state="queued").exists())  # revised, and waits
    for _ in range(4):
        forge.step()
    assert repo.tip() == base

    integration.services.unfreeze(project_id=graph.project_id, actor="person", reason="looked")
    assert end(forge, graph) == "completed"
    assert (repo.path / "src/a").read_text() == "2\n"


# --- a person's files -------------------------------------------------------------------------------------------------


@pytest.mark.req("IQ-15")
@pytest.mark.parametrize("how", ["edited", "staged", "deleted", "untracked"])
@pytest.mark.parametrize("at", ["refreshing", "landing"])
def test_a_checkout_that_is_dirty_in_the_way_holds_the_landing_by_name(
    forge: Forge, repo: Repo, how: str, at: str
) -> None:
    base = repo.tip()
    forge.add_project("p", repo.path, checks=[{"name": "fine", "argv": ["true"]}])
    name = "src/new" if how == "untracked" else "src/a"
    graph = forge.admit(gated(writer("a", f"echo 2 > {name}", name)))
    until_entry(forge, at)
    place = repo.path / name
    if how == "deleted":
        place.unlink()
    else:
        place.write_text("mine\n")
    if how == "staged":
        repo.git("add", name)
    before = repo.git("status", "--porcelain")

    for _ in range(4):
        forge.step()

    assert repo.tip() == base
    assert repo.git("status", "--porcelain") == before
    assert (place.read_text() if place.exists() else None) == (None if how == "deleted" else "mine\n")
    entry = Entry.objects.get()
    assert (entry.hold["code"], entry.hold["paths"]) == ("checkout_dirty", [name])
    assert attention() == ["checkout_dirty"]

    if how == "untracked":
        place.unlink()
    else:
        repo.git("checkout", "--quiet", "HEAD", "--", name)
    assert end(forge, graph) == "completed"
    assert place.read_text() == "2\n"
    assert repo.git("status", "--porcelain") == ""
    assert attention() == []
    assert Check.objects.filter(state="passed").count() == 1  # what was checked needs no second check


def test_edits_elsewhere_are_kept_and_hold_nothing_up(forge: Forge, repo: Repo) -> None:
    graph = one_writer(forge, repo)
    (repo.path / "src/b").write_text("mine\n")
    (repo.path / "notes").write_text("mine\n")
    (repo.path / "README").write_text("staged\n")
    repo.git("add", "README")

    assert end(forge, graph) == "completed"

    assert (repo.path / "src/a").read_text() == "2\n"
    assert repo.git("status", "--porcelain").splitlines() == ["M  README", " M src/b", "?? notes"]


def test_cancelling_what_is_held_up_ends_it(forge: Forge, repo: Repo) -> None:
    base = repo.tip()
    graph = one_writer(forge, repo)
    until_entry(forge, "refreshing")
    (repo.path / "src/a").write_text("mine\n")
    forge.until(lambda: Entry.objects.exclude(hold={}).exists())
    cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor="test")

    assert end(forge, graph) == "cancelled"
    assert repo.tip() == base
    assert (repo.path / "src/a").read_text() == "mine\n"
    assert attention() == []


# --- remotes ----------------------------------------------------------------------------------------------------------


def with_remote(forge: Forge, repo: Repo, tmp_path: Path) -> Path:
    remote = tmp_path / "remote.git"
    repo.git("init", "--quiet", "--bare", str(remote))
    repo.git("push", "--quiet", str(remote), "main")
    forge.add_project("p", repo.path)
    Project.objects.update(push_remote=str(remote))
    return remote


def remote_tip(repo: Repo, remote: Path) -> str:
    return repo.git("ls-remote", str(remote), "refs/heads/main").split()[0]


def test_what_has_landed_is_pushed(forge: Forge, repo: Repo, tmp_path: Path) -> None:
    remote = with_remote(forge, repo, tmp_path)
    graph = forge.admit(gated(writer("a", "echo 2 > src/a", "src/a"), writer("b", "echo 2 > src/b", "src/b")))

    assert end(forge, graph) == "completed"
    forge.until(lambda: not Entry.objects.filter(push_due=True).exists())

    assert remote_tip(repo, remote) == repo.tip()
    assert {entry.push_result["outcome"] for entry in Entry.objects.all()} <= {"pushed", "already_there"}
    assert attention() == []


def test_a_remote_that_moved_is_asked_about_and_the_landing_stays(forge: Forge, repo: Repo, tmp_path: Path) -> None:
    remote = with_remote(forge, repo, tmp_path)
    strange = repo.git("commit-tree", "-p", "main", "-m", "theirs", "main^{tree}")
    repo.git("push", "--quiet", str(remote), f"{strange}:refs/heads/main")
    graph = forge.admit(gated(writer("a", "echo 2 > src/a", "src/a")))

    assert end(forge, graph) == "completed"
    forge.until(lambda: not Entry.objects.filter(push_due=True).exists())

    assert remote_tip(repo, remote) == strange
    assert attention() == ["push_rejected"]
    assert Node.objects.get().accepted_commit == repo.tip().strip()
    assert (repo.path / "src/a").read_text() == "2\n"


def test_a_push_that_did_not_arrive_goes_with_the_next(
    forge: Forge, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = with_remote(forge, repo, tmp_path)
    away = remote.rename(tmp_path / "away")
    graph = forge.admit(gated(writer("a", "echo 2 > src/a", "src/a")))
    assert end(forge, graph) == "completed"
    forge.until(lambda: Entry.objects.get().push_result != {})
    assert Entry.objects.get().push_due
    away.rename(remote)
    graph = forge.admit(gated(writer("b", "echo 2 > src/b", "src/b"), name="h"))
    assert end(forge, graph) == "completed"
    Entry.objects.update(not_before=None)
    forge.until(lambda: not Entry.objects.filter(push_due=True).exists())

    assert remote_tip(repo, remote) == repo.tip()
    assert attention() == []


# --- git that fails ---------------------------------------------------------------------------------------------------


def test_an_effect_that_fails_neither_spins_nor_keeps_others_waiting(
    forge: Forge, repo: Repo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="forge.effects")
    forge.add_project("p", repo.path)
    graph = forge.admit(gated(writer("a", "echo 2 > src/a", "src/a"), writer("b", "echo 2 > src/b", "src/b")))
    seal, stuck, tries = git.seal, [True], []

    def times_out(repository: Any, checkout: Any, **more: Any) -> Any:
        if more["scope"] == ["src/a"] and stuck:
            tries.append(1)
            raise GitTimeout("too slow")
        return seal(repository, checkout, **more)

    monkeypatch.setattr(git, "seal", times_out)
    forge.until(lambda: states(graph) == {"a": "sealing", "b": "accepted"})
    forge.until(lambda: not any(row for row, _ in effects._all_due(graph.project) if row.subject_kind != "candidate"))
    while forge.tick.turn({b"tick"}):
        pass
    forge.socket.drain()
    tries.clear()
    run_effects(forge)

    assert forge.socket.drain() & {b"tick"} == set()  # the safety tick is soon enough
    assert len(tries) == 1
    stuck.clear()
    assert end(forge, graph) == "completed"


DAMAGES = {
    "rm .git": "accepted",  # the repository knows which checkout it is
    "echo > .git": "accepted",
    "rm -rf $PWD": "failed",
    "echo x > $(git rev-parse --git-path index)": "failed",
    "rm $(git rev-parse --git-path HEAD)": "failed",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_worker_that_damages_its_checkout_is_judged_and_blocks_nobody(forge: Forge, repo: Repo, damage: str) -> None:
    base = repo.tip()
    forge.add_project("p", repo.path)
    graph = forge.admit(
        gated(
            writer("a", f"echo 2 > src/a; {damage}", "src/a", maxRevisions=0),
            writer("b", "echo 2 > src/b", "src/b"),
        )
    )

    assert end(forge, graph) == ("completed" if DAMAGES[damage] == "accepted" else "partial")

    assert states(graph) == {"a": DAMAGES[damage], "b": "accepted"}
    assert attention() == ([] if DAMAGES[damage] == "accepted" else ["revision_limit"])
    landed = repo.git("log", "--format=%s", f"{base}..main").split()
    assert sorted(landed) == (["a", "b"] if DAMAGES[damage] == "accepted" else ["b"])


def test_git_that_fails_at_the_refresh_holds_the_entry_with_its_own_words(
    forge: Forge, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = one_writer(forge, repo)
    with monkeypatch.context() as patch:

        def fails(*args: Any, **kwargs: Any) -> Any:
            raise GitFailed("fatal: no space left on device")

        patch.setattr(git, "replay", fails)
        until_entry(forge, "refreshing")
        forge.until(lambda: Entry.objects.exclude(hold={}).exists())
        assert attention() == ["git_failed"]
        assert "no space left" in AttentionItem.objects.get(resolved_at=None).message

    assert end(forge, graph) == "completed"
    assert attention() == []
    assert Event.objects.filter(kind="node.revising").count() == 0
