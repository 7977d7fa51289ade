"""Gated nodes end to end: checkouts, sealing, the queue, checks on the exact tree, landing. Real git and processes, no cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.models import AttentionItem, Project
from graphs.models import Node
from integration.models import Candidate, Check, Entry
from leases.models import Lease, Request
from leases.states import BLOCKING
from tests.running import Forge, Repo, gated, states, writer
from workspaces.models import Checkout

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]


def nothing_is_held() -> bool:
    return (
        not Lease.objects.filter(state__in=BLOCKING).exists() and not Request.objects.filter(state="waiting").exists()
    )


def test_disjoint_writers_land_in_one_line_on_the_target(forge: Forge, repo: Repo) -> None:
    base = repo.tip()
    forge.add_project("p", repo.path, checks=[{"name": "both", "argv": ["sh", "-c", "test -f src/a"]}])
    graph = forge.admit(
        gated(
            writer("a", "echo 2 > src/a", "src/a"),
            writer("b", "echo 2 > src/b", "src/b"),
            {"key": "look", "command": ["grep", "-q", "2", "src/a"], "workMode": "read-only", "needs": ["a", "b"]},
        )
    )

    assert forge.until_ended(graph) == "completed"

    line = repo.git("log", "--first-parent", "--format=%s", f"{base}..main").split()
    assert sorted(line) == ["a", "b"]
    assert repo.git("log", "--merges", "--format=%H", "main") == ""
    assert (repo.path / "src/a").read_text() == "2\n"  # the user's checkout of the branch moved along
    assert repo.git("status", "--porcelain") == ""
    accepted = set(Node.objects.exclude(key="look").values_list("accepted_commit", flat=True))
    assert set(repo.git("rev-list", f"{base}..main").split()) == accepted
    assert Check.objects.filter(state="passed").count() == 2
    assert nothing_is_held()


@pytest.mark.req("GC-09")
def test_a_failing_check_revises_within_the_limit_and_then_asks_a_person(forge: Forge, repo: Repo) -> None:
    base = repo.tip()
    forge.add_project("p", repo.path, checks=[{"name": "never", "argv": ["false"]}])
    graph = forge.admit(gated(writer("a", "echo 2 > src/a", "src/a", maxRevisions=1)))

    assert forge.until_ended(graph) == "partial"

    node = Node.objects.get(key="a")
    assert (node.state, node.revisions, node.dispatches) == ("failed", 1, 2)
    assert [entry.state for entry in Entry.objects.order_by("pk")] == ["rejected", "rejected"]
    assert AttentionItem.objects.get(resolved_at=None).code == "revision_limit"
    assert repo.tip() == base
    assert nothing_is_held()


@pytest.mark.req("IQ-01", "IQ-02")
def test_an_entry_keeps_its_exact_lineage_and_checks(forge: Forge, repo: Repo) -> None:
    base = repo.tip()
    forge.add_project("p", repo.path, checks=[{"name": "fine", "argv": ["true"]}])
    graph = forge.admit(gated(writer("a", "echo 2 > src/a", "src/a")))
    forge.until(lambda: Entry.objects.exists())

    Project.objects.update(checks=[{"name": "other", "argv": ["false"]}])
    assert forge.until_ended(graph) == "completed"

    entry, candidate = Entry.objects.get(), Candidate.objects.get()
    assert entry.required_checks == [{"name": "fine", "argv": ["true"]}]
    assert (entry.base, entry.offered, entry.graph_revision) == (base, candidate.commit, graph.revision)
    assert repo.git("rev-parse", f"{entry.offered}^").strip() == base
    assert repo.git("rev-parse", candidate.pin_ref).strip() == candidate.commit


def test_changes_outside_the_declared_scope_are_refused(forge: Forge, repo: Repo) -> None:
    base = repo.tip()
    forge.add_project("p", repo.path)
    graph = forge.admit(gated(writer("a", "echo 2 > src/a; echo 2 > src/b", "src/a", maxRevisions=0)))

    assert forge.until_ended(graph) == "partial"

    node = Node.objects.get(key="a")
    assert node.outcome["code"] == "scope_violation"
    assert node.outcome["paths"] == ["src/b"]
    assert repo.tip() == base
    assert nothing_is_held()


def test_a_worker_that_changes_nothing_is_not_accepted(forge: Forge, repo: Repo) -> None:
    forge.add_project("p", repo.path)
    graph = forge.admit(
        gated(writer("idle", "true", "src/a", maxRevisions=0), writer("may", "true", "src/b", allowEmpty=True))
    )

    assert forge.until_ended(graph) == "partial"

    assert states(graph) == {"idle": "failed", "may": "accepted"}
    assert Node.objects.get(key="idle").outcome["code"] == "candidate_empty"


@pytest.mark.req("GC-11")
def test_exit_code_0_without_a_receipt_is_never_acceptance(forge: Forge, repo: Repo) -> None:
    """The worker kills its own supervisor and exits 0: nobody can prove how it ended."""
    base = repo.tip()
    forge.add_project("p", repo.path)
    graph = forge.admit(gated(writer("a", "echo 2 > src/a; kill -9 $PPID; exit 0", "src/a", maxRevisions=0)))

    assert forge.until_ended(graph) == "partial"

    assert Node.objects.get(key="a").state == "failed"
    assert Candidate.objects.count() == 0
    assert repo.tip() == base


def test_what_is_no_longer_needed_is_removed_and_the_rest_is_kept(forge: Forge, repo: Repo) -> None:
    forge.add_project("p", repo.path, checks=[{"name": "fine", "argv": ["sh", "-c", "echo junk > by-product"]}])
    graph = forge.admit(
        gated(writer("a", "echo 2 > src/a", "src/a"), writer("b", "echo 2 > src/b; exit 3", "src/b", maxRevisions=0))
    )
    forge.until_ended(graph)
    forge.until(lambda: not Checkout.objects.filter(state__in=["removing", "adding"]).exists())

    gone = Checkout.objects.filter(state="removed")
    assert len(gone) == 2  # of the writer that landed, and of its check
    assert not any(Path(checkout.path).exists() for checkout in gone)
    [kept] = Checkout.objects.exclude(state="removed")
    assert (Path(kept.path) / "src/b").read_text() == "2\n"  # the failed writer's work is there to look at
