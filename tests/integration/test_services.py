"""The queue on rows: order, the one claim of a project, receipts, freezes, what a check counts for. No process, no git."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError

from core.models import AttentionItem, Project
from core.transitions import move
from core.uow import FROM_CLOCK, unit_of_work
from graphs.models import Node
from graphs.services import advance, cancel_graph
from integration import services, steps
from integration.errors import ReceiptDiffers
from integration.models import Check, Entry
from integration.states import ENTRY_MOVES, EntryState
from jobs.models import Attempt, Job
from jobs.planning import Ended
from jobs.services import grant_and_start
from jobs.states import Cause
from leases.models import Lease, Request
from leases.states import BLOCKING
from recovery.selectors import projects_to_advance
from tests.driving import TIP, Hand, attention, held, left_over, state, states
from tests.factories import CandidateFactory, EntryFactory, sha
from tests.running import gated, writer

pytestmark = pytest.mark.django_db

FINE = {"name": "fine", "argv": ["true"]}


@pytest.fixture
def hand() -> Hand:
    return Hand()


def one_entry(hand: Hand, *, checks: Any = ()) -> tuple[Node, Entry]:
    hand.add_project(checks=checks)
    node = hand.node(hand.admit(gated(writer("a", "x", "src/a", maxRevisions=0))), "a")
    return node, hand.queue(node)


# --- order and claims -------------------------------------------------------------------------------------------------


@pytest.mark.req("IQ-04", "WG-16")
@pytest.mark.parametrize("seed", range(5))
def test_the_queue_goes_by_revision_then_position_then_id_however_it_was_filled(hand: Hand, seed: int) -> None:
    project = hand.add_project()
    keys = [(revision, position) for revision in (1, 2) for position in (0, 1, 1, 2)]
    random.Random(seed).shuffle(keys)
    for revision, position in keys:
        candidate = CandidateFactory.create(attempt__job__project=project)
        EntryFactory.create(candidate=candidate, graph_revision=revision, position=position)

    claimed = []
    while Entry.objects.filter(project=project, state="queued").exists():
        claimed.append(claim_and_drop(project=project))

    expected = sorted(Entry.objects.all(), key=lambda entry: (entry.graph_revision, entry.position, entry.pk))
    assert claimed == [entry.pk for entry in expected]


@unit_of_work
def claim_and_drop(*, project: Project, now: datetime = FROM_CLOCK) -> int:
    """The next of the queue, taken out of it."""
    steps.progress_queue(project, now=now, workspace_key="here/srv/p", claims=())
    entry = Entry.objects.get(project=project, state="refreshing")
    move(entry, EntryState.STALE, moves=ENTRY_MOVES, receipt={"code": "x"})
    return entry.pk


@pytest.mark.req("IQ-03")
def test_the_database_itself_allows_one_claim_per_project(hand: Hand) -> None:
    project = hand.add_project()
    first, second = (
        EntryFactory.create(candidate=CandidateFactory.create(attempt__job__project=project)) for _ in range(2)
    )

    @unit_of_work
    def claim(*, entry: Entry) -> None:
        move(entry, EntryState.REFRESHING, moves=ENTRY_MOVES)

    claim(entry=first)
    with pytest.raises(IntegrityError, match=r"entry_one_claimed|integration_entry\.project_id"):
        claim(entry=second)
    assert [state(first), state(second)] == ["refreshing", "queued"]


@pytest.mark.req("IQ-03")
def test_a_second_integrator_finds_the_entry_claimed(hand: Hand) -> None:
    hand.add_project()
    graph = hand.admit(gated(*(writer(key, "x", f"src/{key}") for key in "ab")))
    for key in "ab":
        hand.queue(hand.node(graph, key))
    for _ in range(3):
        hand.turn()
    assert sorted(Entry.objects.values_list("state", flat=True)) == ["queued", "refreshing"]


@pytest.mark.req("IQ-05")
def test_two_projects_claim_at_once(hand: Hand) -> None:
    for name in ("p", "q"):
        hand.add_project(name)
        graph = hand.admit(gated(writer("a", "x", "src/a"), project=name))
        hand.run(hand.node(graph, "a"))
        hand.seal(hand.node(graph, "a"))
    hand.turn()
    assert list(Entry.objects.values_list("state", flat=True)) == ["refreshing"] * 2


# --- what an entry keeps ----------------------------------------------------------------------------------------------


@pytest.mark.req("IQ-01", "IQ-02")
def test_an_entry_keeps_lineage_and_checks_whatever_the_project_says_later(hand: Hand) -> None:
    node, entry = one_entry(hand, checks=[FINE])
    Project.objects.update(checks=[{"name": "other", "argv": ["false"]}])
    entry.refresh_from_db()

    candidate = entry.candidate
    assert (entry.base, entry.offered, entry.offered_tree) == (TIP, candidate.commit, candidate.tree)
    assert (entry.owner, entry.project_id, entry.graph_revision) == (node.subject, node.project_id, node.graph.revision)
    assert entry.required_checks == [FINE]
    hand.refresh(entry)
    hand.turn()
    assert list(Check.objects.values_list("name", flat=True)) == ["fine"]


@pytest.mark.req("IQ-08", "IQ-09")
def test_a_receipt_is_terminal_and_the_same_one_again_changes_nothing(hand: Hand) -> None:
    node, entry = one_entry(hand)
    receipt = {"code": "replay_conflict", "message": "src/a", "paths": ["src/a"]}

    def end(**changed: Any) -> None:
        services.record_ended(
            project_id=node.project_id, entry_id=entry.pk, to=EntryState.REJECTED, receipt={**receipt, **changed}
        )

    end()
    version = Entry.objects.get().version
    end()
    assert (state(entry), entry.receipt, entry.version) == ("rejected", receipt, version)
    for field in receipt:
        with pytest.raises(ReceiptDiffers):
            end(**{field: "something else"})
    assert (state(entry), entry.receipt, entry.version) == ("rejected", receipt, version)


@pytest.mark.req("IQ-08", "IQ-09")
def test_a_landing_is_recorded_once(hand: Hand) -> None:
    hand.add_project()
    graph = hand.admit(gated(writer("a", "x", "src/a")))
    entry = hand.to_landing(hand.node(graph, "a"))
    hand.land(entry)
    receipt = Entry.objects.get().receipt
    services.record_landed(project_id=entry.project_id, entry_id=entry.pk, receipt=receipt)
    with pytest.raises(ReceiptDiffers):
        services.record_landed(project_id=entry.project_id, entry_id=entry.pk, receipt={**receipt, "commit": sha("x")})
    hand.turn()
    services.record_landed(project_id=entry.project_id, entry_id=entry.pk, receipt=receipt)
    assert (state(entry), state(graph)) == ("accepted", "completed")
    assert left_over() == []


# --- checks -----------------------------------------------------------------------------------------------------------


@pytest.mark.req("IQ-14")
def test_a_check_of_one_commit_does_not_count_for_another(hand: Hand) -> None:
    node, entry = one_entry(hand, checks=[FINE])
    hand.refresh(entry)
    hand.check(entry)
    hand.turn()
    assert state(entry) == "checking"  # passed; the workspace is asked for
    hand.turn()
    assert state(entry) == "landing"

    services.record_target_moved(project_id=node.project_id, entry_id=entry.pk, tip=sha("newer"))
    hand.turn()
    offered = services.Refreshed(sha("newer"), sha("replayed"), sha("replayed tree"), replayed=True)
    services.record_refreshed(project_id=node.project_id, entry_id=entry.pk, refreshed=offered)
    for _ in range(3):
        hand.turn()

    assert state(entry) == "checking"
    commits = dict(Check.objects.values_list("commit", "state"))
    assert commits == {entry.candidate.commit: "passed", sha("replayed"): "waiting"}
    job = Job.objects.get(check_run__commit=sha("replayed"))
    assert (job.base, job.own_checkout) == (sha("replayed"), True)
    hand.check(entry)
    hand.turn()
    hand.turn()
    assert state(entry) == "landing"


@pytest.mark.req("IQ-07")
@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (Cause.EXITED, 1),
        (Cause.DEADLINE, None),
        (Cause.CANCELLED, None),
        (Cause.LAUNCH_ERROR, None),
        (Cause.CRASHED, None),
    ],
)
def test_a_check_that_did_not_pass_rejects_the_entry(hand: Hand, cause: Cause, code: int | None) -> None:
    node, entry = one_entry(hand, checks=[FINE])
    hand.refresh(entry)
    hand.turn()
    attempt = Attempt.objects.get(job__check_run__entry=entry)
    advance(project_id=node.project_id, ended=[Ended(attempt.pk, cause, code)])

    assert (state(entry), state(node)) == ("rejected", "failed")
    assert entry.receipt["code"] == "check_failed"
    assert left_over() == []


@pytest.mark.req("IQ-07", "JB-12")
def test_a_check_whose_checkout_could_not_be_made_is_tried_again(hand: Hand) -> None:
    """It has not run, so it says nothing about the candidate."""
    node, entry = one_entry(hand, checks=[FINE])
    hand.refresh(entry)
    hand.turn()
    attempt = Attempt.objects.get(job__check_run__entry=entry)
    advance(project_id=node.project_id, ended=[Ended(attempt.pk, Cause.NOT_PREPARED)])
    hand.turn()

    assert state(entry) == "checking"
    assert Attempt.objects.get(job__check_run__entry=entry, number=2).state == "starting"


def test_checks_of_an_entry_that_failed_by_another_are_stopped(hand: Hand) -> None:
    node, entry = one_entry(hand, checks=[FINE, {"name": "slow", "argv": ["sleep", "9"]}])
    hand.refresh(entry)
    hand.turn()
    attempts = {a.job.check_run.name: a for a in Attempt.objects.filter(job__check_run__entry=entry)}
    advance(project_id=node.project_id, ended=[Ended(attempts["fine"].pk, Cause.EXITED, 1)])

    assert state(entry) == "rejected"
    assert state(attempts["slow"]) == "stopping"
    advance(project_id=node.project_id, ended=[Ended(attempts["slow"].pk, Cause.CANCELLED)])
    assert left_over() == []


# --- moved targets ----------------------------------------------------------------------------------------------------


@pytest.mark.req("IQ-12")
def test_without_refresh_a_moved_target_makes_the_entry_stale_and_its_evidence_stays(hand: Hand) -> None:
    project = hand.add_project(checks=[FINE])
    Project.objects.update(refresh=False)
    graph = hand.admit(gated(writer("a", "x", "src/a")))
    node = hand.node(graph, "a")
    entry = hand.to_landing(node)
    services.record_target_moved(project_id=project.pk, entry_id=entry.pk, tip=sha("newer"))
    hand.turn()

    assert (state(entry), state(node)) == ("stale", "queued")  # revised on the new base
    assert entry.receipt["tip"] == sha("newer")
    assert Check.objects.get(entry=entry).state == "passed"
    with pytest.raises(ReceiptDiffers):
        services.record_landed(project_id=project.pk, entry_id=entry.pk, receipt={"commits": []})
    assert held() == ["holds: attempt:" + str(Attempt.objects.latest("pk").pk)]
    cancel_graph(project_id=project.pk, graph_id=graph.pk, actor="test")


# --- freezes ----------------------------------------------------------------------------------------------------------


@pytest.mark.req("IQ-13")
def test_a_frozen_project_claims_nothing_and_goes_on_when_it_is_not(hand: Hand) -> None:
    hand.add_project()
    Project.objects.update(frozen_reason="release")
    graph = hand.admit(gated(writer("a", "x", "src/a")))
    node = hand.node(graph, "a")
    hand.queue(node)
    for _ in range(3):
        hand.turn()
    assert Entry.objects.get().state == "queued"

    services.unfreeze(project_id=node.project_id, actor="person", reason="done")
    assert node.project_id in projects_to_advance(hand.host.pk)
    hand.turn()
    assert Entry.objects.get().state == "refreshing"


@pytest.mark.req("IQ-13")
def test_a_freeze_stops_a_claimed_entry_before_its_landing_is_recorded(hand: Hand) -> None:
    node, entry = one_entry(hand, checks=[FINE])
    hand.refresh(entry)
    Project.objects.update(frozen_reason="release")
    hand.check(entry)
    for _ in range(4):
        hand.turn()
    assert state(entry) == "checking"
    assert not Request.objects.filter(holder__startswith="landing:").exists()

    services.unfreeze(project_id=node.project_id, actor="person", reason="done")
    hand.turn()
    hand.turn()
    assert state(entry) == "landing"


@pytest.mark.req("IQ-06", "IQ-13")
def test_a_failed_proof_freezes_the_project_and_asks_a_person(hand: Hand) -> None:
    hand.add_project()
    graph = hand.admit(gated(writer("a", "x", "src/a"), writer("b", "x", "src/b")))
    a, b = hand.node(graph, "a"), hand.node(graph, "b")
    entry = hand.to_landing(a)
    finding = {"code": "landing_proof_failed", "message": "other tree", "reason": "other_tree"}
    services.freeze_for(project_id=a.project_id, entry_id=entry.pk, finding=finding)
    services.freeze_for(project_id=a.project_id, entry_id=entry.pk, finding=finding)  # once more after a crash
    hand.turn()

    assert state(entry) == "rejected"
    assert attention() == ["landing_proof_failed"]
    assert Project.objects.get().frozen_reason.startswith("landing_proof_failed")
    hand.end(b)
    hand.seal(b)
    hand.turn()
    assert Entry.objects.latest("pk").state == "queued"
    services.unfreeze(project_id=a.project_id, actor="person", reason="looked")
    services.unfreeze(project_id=a.project_id, actor="person", reason="looked")
    assert attention() == []
    cancel_graph(project_id=a.project_id, graph_id=graph.pk, actor="test")


# --- held by a person's files -----------------------------------------------------------------------------------------

HOLD = {"code": "checkout_dirty", "message": "x is in the way", "paths": ["x"]}


def test_a_held_entry_waits_and_comes_back_by_itself(hand: Hand) -> None:
    node, entry = one_entry(hand)
    services.record_held(project_id=node.project_id, entry_id=entry.pk, hold=HOLD)
    hand.turn()
    assert (state(entry), entry.tries) == ("queued", 1)
    assert attention() == ["checkout_dirty"]

    Entry.objects.update(not_before=entry.created_at - timedelta(minutes=1))
    Project.objects.update(advanced_seq=10**6)  # nothing else tells of it
    assert projects_to_advance(hand.host.pk) == {node.project_id}
    hand.turn()
    assert (state(entry), entry.tries) == ("refreshing", 2)
    services.record_held(project_id=node.project_id, entry_id=entry.pk, hold={**HOLD, "paths": ["y"]})
    assert AttentionItem.objects.count() == 1


@pytest.mark.parametrize("end", ["landed", "cancelled", "rejected"])
def test_the_question_about_a_held_entry_ends_with_the_entry(hand: Hand, end: str) -> None:
    node, entry = one_entry(hand)
    services.record_held(project_id=node.project_id, entry_id=entry.pk, hold=HOLD)
    if end == "cancelled":
        cancel_graph(project_id=node.project_id, graph_id=node.graph_id, actor="test")
    else:
        Entry.objects.update(not_before=None)
        hand.turn()
        if end == "landed":
            hand.refresh(entry)
            hand.turn()
            hand.turn()
            entry.refresh_from_db()
            hand.land(entry)
        else:
            services.record_ended(
                project_id=node.project_id,
                entry_id=entry.pk,
                to=EntryState.REJECTED,
                receipt={"code": "x", "message": "x"},
            )
    hand.turn()
    assert "checkout_dirty" not in attention()
    assert left_over() == []


# --- pushes -----------------------------------------------------------------------------------------------------------


def test_a_push_that_arrives_answers_the_question_of_one_that_did_not(hand: Hand) -> None:
    hand.add_project()
    Project.objects.update(push_remote="origin")
    graph = hand.admit(gated(writer("a", "x", "src/a")))
    entry = hand.to_landing(hand.node(graph, "a"))
    hand.land(entry)
    hand.turn()
    assert state(graph) == "completed"  # whatever the remote says
    entry.refresh_from_db()
    assert entry.push_due

    def pushed(outcome: str, *, again: bool = False) -> None:
        result = {"outcome": outcome, "remote_tip": None, "detail": "x"}
        services.record_pushed(project_id=entry.project_id, entry_id=entry.pk, result=result, again=again)
        entry.refresh_from_db()

    pushed("unreachable", again=True)
    assert entry.push_due
    assert entry.not_before is not None
    pushed("rejected")
    assert (entry.push_due, attention()) == (False, ["push_rejected"])
    pushed("already_there")
    assert attention() == []
    assert state(entry) == "accepted"


# --- hand-over --------------------------------------------------------------------------------------------------------


@pytest.mark.req("RB-12", "GC-07")
def test_nobody_gets_between_a_worker_and_its_queue_entry(hand: Hand) -> None:
    hand.add_project()
    graph = hand.admit(gated(writer("a", "x", "src/"), writer("b", "x", "src/b")))
    a, b = hand.node(graph, "a"), hand.node(graph, "b")
    entry = hand.queue(a)

    assert state(b) == "queued"
    assert held() == [f"holds: {entry.subject}", f"waits: attempt:{hand.attempt(b).pk}"]
    waiting = Request.objects.get(state="waiting")
    assert waiting.stopped_by is not None
    assert waiting.stopped_by.holder == entry.subject
    assert not Lease.objects.filter(request__holder=entry.subject).exclude(expires_at=None).exists()

    hand.refresh(entry)
    hand.turn()
    hand.turn()
    entry.refresh_from_db()
    hand.land(entry)
    hand.turn()
    assert hand.attempt(b).state == "starting"
    hand.end(b)
    hand.seal(b)
    hand.turn()
    second = hand.entry(b)
    hand.refresh(second)
    hand.turn()
    hand.turn()
    second.refresh_from_db()
    hand.land(second)
    hand.turn()
    assert states(graph) == {"a": "accepted", "b": "accepted"}
    assert left_over() == []
    assert not Lease.objects.filter(state__in=BLOCKING).exists()


# --- wake-ups ---------------------------------------------------------------------------------------------------------


def test_a_granted_workspace_is_news_to_its_project_even_after_a_crash(hand: Hand) -> None:
    """The grant was committed and the process died: the next one must find the landing that is now due."""
    node, entry = one_entry(hand)
    hand.refresh(entry)
    advance(project_id=node.project_id)  # asks for the workspace
    assert Request.objects.filter(holder=steps.landing_holder(entry), state="waiting").exists()
    while node.project_id in projects_to_advance(hand.host.pk):
        advance(project_id=node.project_id)

    grant_and_start()

    assert Request.objects.filter(holder=steps.landing_holder(entry), state="granted").exists()
    assert projects_to_advance(hand.host.pk) == {node.project_id}
