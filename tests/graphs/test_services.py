"""The coordinator on rows: what is written together, races, ends and second tries. No process, no git."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from core.errors import IllegalMove, InvalidInput, RequestIdReused
from core.models import CancelIntent, Event, Project
from core.transitions import move
from core.uow import unit_of_work
from graphs import steps
from graphs.models import Graph, Node
from graphs.ordering import Edge as KeyEdge
from graphs.ordering import EdgeKind, readiness
from graphs.services import NotRetriable, advance, cancel_graph, cancel_node, retry_node
from graphs.states import NODE_MOVES, NodeState
from integration import services as integration_services
from integration import steps as integration_steps
from integration.models import Candidate, Entry
from integration.states import EntryState
from jobs.models import Attempt, Job
from jobs.planning import Ended
from jobs.services import grant_and_start
from jobs.states import Cause
from leases import steps as lease_steps
from leases.models import Claim, Lease, Request
from leases.states import BLOCKING
from tests.driving import Hand, attention, held, left_over, state, states
from tests.running import gated, program, writer

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).parents[2]
APPS = ("core", "leases", "workspaces", "jobs", "integration", "graphs", "campaigns", "recovery", "forge_site")


@pytest.fixture
def hand() -> Hand:
    return Hand()


def reader(key: str, *needs: Any, **more: Any) -> dict[str, Any]:
    return {"key": key, "command": ["true"], "workMode": "read-only", "needs": list(needs), **more}


def edge(source: str, target: str, kind: str) -> dict[str, str]:
    return {"from": source, "to": target, "kind": kind}


# --- who writes -------------------------------------------------------------------------------------------------------


@pytest.mark.req("GC-01")
def test_only_the_coordinator_names_the_table_of_node_moves() -> None:
    """Without the table nobody can move a node, and no statement may assign a state past it (test_transitions)."""
    users = set()
    for app in APPS:
        for path in (ROOT / app).rglob("*.py"):
            names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
            if "NODE_MOVES" in names:
                users.add(str(path.relative_to(ROOT)))

    assert users == {"graphs/states.py", "graphs/steps.py", "graphs/services.py"}


@pytest.mark.req("GC-10")
@pytest.mark.parametrize("origin", [s for s in NodeState if s not in (NodeState.VALIDATING, NodeState.REVERIFYING)])
def test_no_shortcut_leads_to_accepted(origin: NodeState) -> None:
    assert NodeState.ACCEPTED not in NODE_MOVES[origin]


@pytest.mark.req("GC-10")
def test_a_running_node_cannot_be_moved_to_accepted(hand: Hand) -> None:
    hand.add_project()
    node = hand.node(hand.admit(gated(writer("a", "x", "src/a"))), "a")
    hand.start(node)
    node.refresh_from_db()

    @unit_of_work
    def shortcut() -> None:
        move(node, NodeState.ACCEPTED, moves=NODE_MOVES)

    with pytest.raises(IllegalMove):
        shortcut()
    assert state(node) == "running"


# --- admission --------------------------------------------------------------------------------------------------------


@pytest.mark.req("JB-01")
def test_nothing_of_a_graph_exists_when_its_admission_fails(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    hand.add_project()

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no event")

    monkeypatch.setattr(steps, "record_graph_event", fail)
    with pytest.raises(RuntimeError):
        hand.admit(gated(writer("a", "x", "src/a")))

    assert not Graph.objects.exists()
    assert not Node.objects.exists()
    assert Project.objects.get().graph_revision == 0
    assert hand.turn() == []


@pytest.mark.req("JB-03", "JB-06")
def test_the_same_request_again_is_the_same_graph(hand: Hand) -> None:
    hand.add_project()
    document = gated(writer("a", "x", "src/a"))

    first, second = hand.admit(document, request_id="r1"), hand.admit(document, request_id="r1")

    assert first.pk == second.pk
    assert Graph.objects.count() == Node.objects.count() == 1
    assert Project.objects.get().graph_revision == 1


@pytest.mark.req("JB-04")
def test_the_same_request_id_with_other_content_is_a_conflict(hand: Hand) -> None:
    hand.add_project()
    hand.admit(gated(writer("a", "x", "src/a")), request_id="r1")

    with pytest.raises(RequestIdReused):
        hand.admit(gated(writer("a", "y", "src/a")), request_id="r1")
    assert Graph.objects.count() == 1
    hand.admit(gated(writer("a", "y", "src/a")), request_id="r1", principal="somebody else")


@pytest.mark.req("WG-16")
def test_revisions_of_a_project_only_grow_and_entries_carry_theirs(hand: Hand) -> None:
    hand.add_project()
    graphs = [hand.admit(gated(writer("a", "x", f"src/{n}"), name=f"g{n}")) for n in range(3)]

    revisions = [Graph.objects.get(pk=graph.pk).revision for graph in graphs]
    assert revisions == [1, 2, 3]
    for graph in reversed(graphs):
        entry = hand.queue(hand.node(graph, "a"))
        assert entry.graph_revision == graph.revision


def test_a_claim_that_no_broker_can_take_is_refused_at_admission(hand: Hand) -> None:
    """Found out at dispatch, it would stop the tick of the whole host."""
    hand.add_project()
    bad = {"resource": "slots:here", "class": "physical", "access": "write"}

    with pytest.raises(InvalidInput):
        hand.admit(gated(writer("a", "x", "src/a", claims=[bad])))
    assert not Graph.objects.exists()


# --- readiness --------------------------------------------------------------------------------------------------------


@pytest.mark.req("WG-08")
def test_the_index_of_ready_nodes_never_disagrees_with_what_follows_from_the_states(hand: Hand) -> None:
    hand.add_project(plain=True)
    graph = hand.admit(
        program(
            reader("a"),
            reader("b"),
            reader("c", "a", "b"),
            reader("d"),
            reader("e"),
            reader("f", "c", "e"),
            edges=[edge("b", "d", "failure"), edge("a", "e", "always"), edge("d", "e", "always")],
        )
    )
    for key, code in (("a", 0), ("b", 1), ("d", 0), ("e", 0)):
        require_index_is_derived(graph)
        hand.run(hand.node(graph, key), exit_code=code)
    require_index_is_derived(graph)
    assert states(graph)["f"] == "skipped"


def require_index_is_derived(graph: Graph) -> None:
    now = {key: NodeState(value) for key, value in states(graph).items()}
    edges = [
        KeyEdge(e.source.key, e.target.key, EdgeKind(e.kind)) for e in graph.edges.select_related("source", "target")
    ]
    indexed = Node.objects.filter(graph=graph, state="pending", unmet_inputs=0).values_list("key", flat=True)
    derived = readiness(now, edges)
    assert set(indexed) == set(derived.ready)
    assert not derived.skipped


# --- what a dispatch asks for -----------------------------------------------------------------------------------------


def claims_of(node: Node) -> set[tuple[str, str, str, int | None]]:
    node.refresh_from_db()
    claims = Claim.objects.filter(request__holder__in=[a.subject for a in Attempt.objects.filter(job=node.job_id)])
    return {(c.resource.resource_class, c.resource.key, c.access, c.resource_version) for c in claims}


@pytest.mark.req("GC-03", "GC-04", "GC-05")
def test_a_dispatch_claims_its_inputs_its_one_primary_and_its_scope(hand: Hand) -> None:
    hand.add_project()
    graph = hand.admit(
        gated(
            writer("make", "x", "src/a", produces=[{"artifact": "api", "version": 1}], primary="feature:make"),
            writer(
                "use", "x", "src/b", consumes=[{"artifact": "api", "version": 1}], needs=["make"], primary="feature:use"
            ),
            reader("look", consumes=[{"artifact": "api", "version": 1}], needs=["make"]),
        )
    )
    entry = hand.to_landing(hand.node(graph, "make"))
    hand.land(entry)
    hand.turn()

    used, looked = claims_of(hand.node(graph, "use")), claims_of(hand.node(graph, "look"))
    assert ("logical", "artifact:p/api", "read", 1) in used & looked
    assert ("logical", "feature:use", "write", None) in used
    assert ("integration", "p/src/b", "write", None) in used
    logical_writes = [c for c in used if c[0] == "logical" and c[2] != "read"]
    assert len(logical_writes) == 1
    assert {access for _, _, access, _ in looked} == {"read", "capacity"}
    compared = Claim.objects.exclude(access="capacity").filter(request__holder__startswith="attempt:")
    assert set(compared.values_list("mode", flat=True)) == {"cooperative", "read-only"}


@pytest.mark.req("RB-16")
def test_a_writer_of_unknown_scope_takes_the_whole_project(hand: Hand) -> None:
    hand.add_project()
    graph = hand.admit(gated({"key": "any", "command": ["x"]}, writer("a", "x", "src/a", needs=["any"])))
    node = hand.node(graph, "any")
    hand.turn()

    assert ("integration", "p", "exclusive", None) in claims_of(node)

    entry = hand.to_landing(node)  # handed over as it was held
    assert set(Lease.objects.filter(request__holder=entry.subject).values_list("resource__key", "access")) == {
        ("p", "exclusive")
    }
    hand.land(entry)
    hand.land(hand.to_landing(hand.node(graph, "a")))
    hand.turn()
    assert state(graph) == "completed"
    assert left_over() == []


@pytest.mark.req("GC-12")
def test_equal_records_give_equal_decisions(hand: Hand) -> None:
    """The same recorded state, decided fifty times and undone each time."""
    hand.add_project()
    hand.add_project("q")
    for name in ("p", "q"):
        hand.admit(gated(*(writer(f"n{n}", "x", f"src/{n % 3}") for n in range(6)), project=name))

    first = decided_and_undone()
    assert first
    assert all(decided_and_undone() == first for _ in range(49))


def decided_and_undone() -> list[Any]:
    before = transaction.savepoint()
    for project in Project.objects.order_by("pk"):
        advance(project_id=project.pk)
    grant_and_start()
    requests = list(Request.objects.order_by("rank", "pk").values_list("pk", "token", "stopped_by"))
    place = {pk: n for n, (pk, _, _) in enumerate(requests)}
    granted_in_order = [place[pk] for pk, token, _ in sorted(requests, key=lambda r: r[1] or 0) if token]
    stopped = [place.get(stopper or 0) for _, _, stopper in requests]
    nodes = list(Node.objects.order_by("pk").values_list("key", "project__name", "state"))
    transaction.savepoint_rollback(before)
    return [granted_in_order, stopped, nodes]


# --- one record or none -----------------------------------------------------------------------------------------------


class Crash(BaseException):
    """The process is gone."""


@pytest.mark.req("GC-07")
@pytest.mark.parametrize("broken", ["entry", "hand over", "node"])
def test_submitting_a_candidate_is_one_record(hand: Hand, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """Node to validating, the queue entry, the release of the worker's lease: all of them or none."""
    hand.add_project()
    node = hand.node(hand.admit(gated(writer("a", "x", "src/a"))), "a")
    hand.run(node)
    hand.seal(node)
    worker = f"attempt:{Attempt.objects.get().pk}"

    def die(*args: Any, **kwargs: Any) -> None:
        raise Crash

    def die_after(step: Any) -> Any:
        def then(*args: Any, **kwargs: Any) -> Any:
            step(*args, **kwargs)
            raise Crash

        return then

    with monkeypatch.context() as patch:
        if broken == "entry":
            patch.setattr(Entry.objects, "create", die)
        elif broken == "hand over":
            patch.setattr(lease_steps, "hand_over", die_after(lease_steps.hand_over))
        else:
            patch.setattr(steps, "move", die)
        with pytest.raises(Crash):
            advance(project_id=node.project_id)

    assert state(node) == "sealing"
    assert not Entry.objects.exists()
    assert held() == [f"holds: {worker}"]

    hand.turn()
    assert state(node) == "validating"
    assert held() == [f"holds: entry:{Entry.objects.get().pk}"]


@pytest.mark.req("GC-08")
@pytest.mark.parametrize("broken", ["move", "end_nodes", "release_scope"])
def test_the_entry_and_its_node_are_accepted_together(hand: Hand, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    hand.add_project()
    graph = hand.admit(gated(writer("a", "x", "src/a")))
    node = hand.node(graph, "a")
    entry = hand.to_landing(node)
    hand.land(entry)

    def die(*args: Any, **kwargs: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(integration_steps if broken == "release_scope" else steps, broken, die)
        with pytest.raises(Crash):
            advance(project_id=node.project_id)
    assert (state(entry), state(node)) == ("moved", "validating")

    hand.turn()
    assert (state(entry), state(node), state(graph)) == ("accepted", "accepted", "completed")
    assert left_over() == []


@pytest.mark.req("GC-09")
def test_a_rejected_candidate_revises_its_node_alone_up_to_the_limit(hand: Hand) -> None:
    hand.add_project()
    graph = hand.admit(gated(writer("a", "x", "src/a", maxRevisions=1), writer("b", "x", "src/b")))
    node, other = hand.node(graph, "a"), hand.node(graph, "b")
    hand.start(other)

    for outcome in ("queued", "failed"):
        hand.run(node)
        hand.seal(node, refusal={"code": "scope_violation", "message": "src/x is not yours", "paths": ["src/x"]})
        hand.turn()
        assert state(node) == outcome
        assert state(other) == "running"

    assert attention() == ["revision_limit"]
    assert Attempt.objects.get(job=other.job_id).state == "running"


@pytest.mark.req("GC-11")
@pytest.mark.parametrize("cause", [Cause.CONTROLLER_LOST, Cause.HOST_RESTARTED])
def test_exit_code_0_without_a_receipt_is_not_even_a_candidate(hand: Hand, cause: Cause) -> None:
    hand.add_project()
    node = hand.node(hand.admit(gated(writer("a", "x", "src/a", maxRevisions=0))), "a")
    hand.run(node, exit_code=0, cause=cause)

    assert state(node) == "failed"
    assert not Candidate.objects.exists()


@pytest.mark.req("GC-11")
def test_a_well_ended_process_is_not_yet_validating(hand: Hand) -> None:
    hand.add_project()
    node = hand.node(hand.admit(gated(writer("a", "x", "src/a"))), "a")
    hand.run(node, exit_code=0)
    assert state(node) == "sealing"


# --- after a reopen ---------------------------------------------------------------------------------------------------


@pytest.mark.req("GC-06", "JB-07")
def test_after_a_reopen_an_active_lease_is_not_granted_again(hand: Hand) -> None:
    hand.add_project()
    node = hand.node(hand.admit(gated(writer("a", "x", "src/a"))), "a")
    hand.start(node)
    before = whole_state()
    attempt = Attempt.objects.get()
    assert None not in (attempt.pid, attempt.start_ticks, attempt.deadline_at, attempt.fence_token, attempt.request_id)

    reopen()
    hand.turn()

    after = whole_state()
    after["project"] = before["project"]  # how far the coordinator has read
    assert after == before
    assert state(node) == "running"
    assert Attempt.objects.get().number == 1


@pytest.mark.req("WG-14", "IQ-11")
@pytest.mark.django_db(transaction=True)
def test_graph_queue_and_history_survive_a_reopen() -> None:
    hand = Hand()
    hand.add_project(checks=[{"name": "fine", "argv": ["true"]}])
    graph = hand.admit(gated(*(writer(key, "x", f"src/{key}") for key in "abcd")))
    hand.land(hand.to_landing(hand.node(graph, "a")))
    hand.turn()
    for key in "bc":
        hand.queue(hand.node(graph, key))
    before = whole_state()

    connection.close()

    assert whole_state() == before
    queue = Entry.objects.filter(state__in=["queued", "refreshing"]).values_list("owner", "state")
    assert [s for _, s in queue] == ["refreshing", "queued"]
    assert states(graph)["a"] == "accepted"


def whole_state() -> dict[str, list[Any]]:
    models = [Graph, Node, Job, Attempt, Request, Lease, Candidate, Entry, Project]
    return {model._meta.model_name or "": list(model.objects.order_by("pk").values()) for model in models}  # type: ignore[attr-defined]


def reopen() -> None:
    """What a new process knows: nothing. (Inside the test's transaction the connection must stay.)"""
    from core import rows

    rows._select_plan.cache_clear()


# --- cancelling in every state ----------------------------------------------------------------------------------------


def test_cancelling_a_chain_of_waiting_nodes_cancels_all_of_them(hand: Hand) -> None:
    hand.add_project(plain=True)
    graph = hand.admit(program(reader("a"), reader("b", "a"), reader("c", "b"), reader("d", "c")))
    hand.start(hand.node(graph, "a"))

    assert cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor="test").accepted

    assert states(graph) == {"a": "running", "b": "cancelled", "c": "cancelled", "d": "cancelled"}
    hand.end(hand.node(graph, "a"), exit_code=None, cause=Cause.CANCELLED)
    assert state(graph) == "cancelled"
    assert left_over() == []


PLACES = [
    *("pending", "queued", "starting", "running", "sealing", "sealed", "refused", "refreshing", "checking"),
    *("waiting for the workspace", "held", "rejected", "stale", "landing", "moved"),
]


def bring(hand: Hand, node: Node, to: str) -> None:
    """A gated writer with one check, as far as ``to``."""
    bad = {"code": "x", "message": "x"}
    match to:
        case "queued":
            advance(project_id=node.project_id)
        case "starting":
            hand.turn()
        case "running":
            hand.start(node)
        case "sealing":
            hand.run(node)
        case "sealed":
            hand.run(node)
            hand.seal(node)
        case "refused":
            hand.run(node)
            hand.seal(node, refusal=bad)
        case "refreshing":
            hand.queue(node)
        case "checking":
            hand.refresh(hand.queue(node))
            hand.turn()
        case "waiting for the workspace":
            entry = hand.queue(node)
            hand.refresh(entry)
            hand.check(entry)
        case "held":
            integration_services.record_held(project_id=node.project_id, entry_id=hand.queue(node).pk, hold=bad)
        case "rejected" | "stale":
            integration_services.record_ended(
                project_id=node.project_id, entry_id=hand.queue(node).pk, to=EntryState(to), receipt=bad
            )
        case "landing":
            hand.to_landing(node)
        case "moved":
            hand.land(hand.to_landing(node))


@pytest.mark.parametrize("whole", [True, False], ids=["graph", "node"])
@pytest.mark.parametrize("at", PLACES)
def test_cancelling_in_any_state_ends_the_graph_and_leaves_nothing_behind(hand: Hand, at: str, whole: bool) -> None:
    hand.add_project(checks=[{"name": "fine", "argv": ["true"]}])
    graph = hand.admit(gated(writer("a", "x", "src/a")))
    node = hand.node(graph, "a")
    bring(hand, node, at)

    if whole:
        answer = cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor="test")
    else:
        answer = cancel_node(project_id=node.project_id, node_id=node.pk, actor="test")
    finish(hand, graph)

    landed = at in ("landing", "moved")
    assert answer.accepted
    assert answer.landing == (("a",) if landed else ())
    assert state(node) == ("accepted" if landed else "cancelled")
    ended = "cancelled" if whole else "partial"  # the graph was cancelled, or one node of it
    assert state(graph) == ("completed" if landed else ended)
    assert left_over() == []
    assert attention() == []


def finish(hand: Hand, graph: Graph) -> None:
    """What the tick and git do from here: nobody starts anything, what runs ends as it was asked to."""
    for _ in range(6):
        hand.turn()
        for candidate in Candidate.objects.filter(state="sealing"):
            hand.seal(Node.objects.get(pk=candidate.owner.removeprefix("node:")))
        for entry in Entry.objects.filter(state="landing"):
            hand.land(entry)
        for attempt in Attempt.objects.filter(state="stopping"):
            advance(project_id=attempt.project_id, ended=[Ended(attempt.pk, Cause.CANCELLED)])
    assert not Attempt.objects.filter(state="starting").exists()


@pytest.mark.parametrize(
    ("cause", "code", "outcome"),
    [
        (Cause.DEADLINE, None, "cancelled"),
        (Cause.EXITED, 3, "cancelled"),
        (Cause.EXITED, 0, "cancelled"),
        (Cause.CONTROLLER_LOST, None, "cancelled"),
        (Cause.LAUNCH_ERROR, None, "cancelled"),
        (Cause.NOT_PREPARED, None, "cancelled"),
        (Cause.NEVER_STARTED, None, "cancelled"),
    ],
)
def test_whatever_ends_a_gated_attempt_under_cancel_its_graph_ends(
    hand: Hand, cause: Cause, code: int | None, outcome: str
) -> None:
    hand.add_project()
    graph = hand.admit(gated(writer("a", "x", "src/a")))
    node = hand.node(graph, "a")
    hand.turn()
    cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor="test")

    hand.end(node, exit_code=code, cause=cause)
    finish(hand, graph)

    assert (state(node), state(graph)) == (outcome, "cancelled")
    assert left_over() == []


def test_git_that_finishes_after_the_cancel_changes_nothing(hand: Hand) -> None:
    hand.add_project()
    graph = hand.admit(gated(writer("a", "x", "src/a")))
    entry = hand.queue(hand.node(graph, "a"))
    cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor="test")

    hand.refresh(entry)
    integration_services.record_held(project_id=graph.project_id, entry_id=entry.pk, hold={"code": "x", "message": "x"})
    integration_services.record_target_moved(project_id=graph.project_id, entry_id=entry.pk, tip="x")
    assert not integration_services.record_proof(project_id=graph.project_id, entry_id=entry.pk, proof={"a": 1})
    hand.turn()

    assert state(entry) == "cancelled"
    assert state(graph) == "cancelled"
    assert left_over() == []


def test_cancelling_what_has_ended_leaves_no_intent_that_a_retry_would_run_into(hand: Hand) -> None:
    hand.add_project(plain=True)
    graph = hand.admit(program(reader("a")))
    node = hand.node(graph, "a")
    hand.run(node, exit_code=1)
    hand.turn()
    assert state(graph) == "partial"

    assert not cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor="test").accepted
    assert not cancel_node(project_id=graph.project_id, node_id=node.pk, actor="test").accepted
    assert not CancelIntent.objects.exists()

    retry_node(project_id=graph.project_id, node_id=node.pk, actor="test")
    hand.run(node)
    hand.turn()
    assert state(graph) == "completed"


def test_a_node_of_a_cancelled_graph_is_not_retried(hand: Hand) -> None:
    """A program's command that fails while it is being cancelled keeps that outcome; its graph would never end again."""
    hand.add_project(plain=True)
    graph = hand.admit(program(reader("a")))
    node = hand.node(graph, "a")
    hand.turn()
    cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor="test")
    hand.end(node, exit_code=None, cause=Cause.DEADLINE)
    hand.turn()
    assert state(node) == "failed"

    with pytest.raises(NotRetriable):
        retry_node(project_id=graph.project_id, node_id=node.pk, actor="test")


# --- second tries -----------------------------------------------------------------------------------------------------


@pytest.mark.req("JB-32", "WG-08")
def test_a_retry_reopens_only_what_nothing_else_rules_out(hand: Hand) -> None:
    """Two parents failed: after one is retried, the child must not wait for ever for the other, which has ended."""
    hand.add_project(plain=True)
    graph = hand.admit(
        program(reader("a"), reader("b"), reader("c", "a", "b"), reader("d", "a"), reader("e", "c", "d"))
    )
    a, b = hand.node(graph, "a"), hand.node(graph, "b")
    hand.run(a, exit_code=1)
    hand.run(b, exit_code=1)
    hand.turn()
    assert state(graph) == "partial"
    history = list(Attempt.objects.order_by("pk").values())

    retry_node(project_id=graph.project_id, node_id=a.pk, actor="test")
    assert states(graph) == {"a": "pending", "b": "failed", "c": "skipped", "d": "pending", "e": "skipped"}
    require_index_is_derived(graph)
    hand.run(a)
    hand.run(hand.node(graph, "d"))
    hand.turn()
    assert state(graph) == "partial"

    retry_node(project_id=graph.project_id, node_id=b.pk, actor="test")
    require_index_is_derived(graph)
    for key in "bce":
        hand.run(hand.node(graph, key))
    hand.turn()
    assert state(graph) == "completed"
    assert list(Attempt.objects.order_by("pk").values())[: len(history)] == history  # retries keep history
    assert left_over() == []


def test_a_retry_does_not_count_the_same_input_twice(hand: Hand) -> None:
    hand.add_project(plain=True)
    graph = hand.admit(
        program(
            reader("a"),
            reader("slow"),
            reader("after"),
            reader("ran"),
            edges=[edge("a", "after", "always"), edge("slow", "after", "always"), edge("a", "ran", "always")],
        )
    )
    a = hand.node(graph, "a")
    hand.run(a, exit_code=1)
    hand.run(hand.node(graph, "ran"))

    retry_node(project_id=graph.project_id, node_id=a.pk, actor="test")
    require_index_is_derived(graph)
    hand.run(a)

    assert states(graph) == {"a": "succeeded", "slow": "queued", "after": "pending", "ran": "succeeded"}
    hand.end(hand.node(graph, "slow"))
    hand.run(hand.node(graph, "after"))
    hand.turn()
    assert state(graph) == "completed"


def test_a_handler_whose_cause_was_mended_is_not_retried(hand: Hand) -> None:
    hand.add_project(plain=True)
    graph = hand.admit(program(reader("a"), reader("mend"), edges=[edge("a", "mend", "failure")]))
    a, mend = hand.node(graph, "a"), hand.node(graph, "mend")
    hand.run(a, exit_code=1)
    hand.run(mend, exit_code=1)
    retry_node(project_id=graph.project_id, node_id=a.pk, actor="test")
    hand.run(a)

    with pytest.raises(NotRetriable):
        retry_node(project_id=graph.project_id, node_id=mend.pk, actor="test")
    hand.turn()
    assert state(graph) == "partial"


def test_a_retry_answers_the_question_that_was_asked(hand: Hand) -> None:
    hand.add_project()
    graph = hand.admit(gated(writer("a", "x", "src/a", maxRevisions=0)))
    node = hand.node(graph, "a")
    hand.run(node, exit_code=1)
    assert attention() == ["revision_limit"]

    retry_node(project_id=graph.project_id, node_id=node.pk, actor="test")
    assert attention() == []
    hand.land(hand.to_landing(node))
    hand.turn()
    assert state(graph) == "completed"


# --- ends that nobody can explain -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retry", "job_state"),
    [("requires-reconciliation", "orphaned"), ("non-repeatable", "human_attention_required")],
)
@pytest.mark.parametrize("mode", ["gated", "program"])
def test_work_that_must_not_be_repeated_blindly_ends_with_a_question(
    hand: Hand, retry: str, job_state: str, mode: str
) -> None:
    hand.add_project()
    item = writer("a", "x", "src/a", retry={"class": retry})
    graph = hand.admit(gated(item) if mode == "gated" else program(item))
    node = hand.node(graph, "a")
    hand.run(node, exit_code=None, cause=Cause.CONTROLLER_LOST)
    hand.turn()

    assert Job.objects.get().state == job_state
    assert (state(node), state(graph)) == ("failed", "partial")
    assert attention() == ["outcome_unknown"]
    assert Attempt.objects.count() == 1
    assert left_over() == []


def test_declared_outside_effects_are_looked_at_before_a_revision(hand: Hand) -> None:
    hand.add_project()
    graph = hand.admit(gated(writer("a", "x", "src/a", outsideEffects=["mail"])))
    node = hand.node(graph, "a")
    hand.run(node, exit_code=None, cause=Cause.CONTROLLER_LOST)

    assert state(node) == "failed"
    assert attention() == ["outcome_unknown"]


def test_a_gated_writer_that_is_lost_is_revised_in_a_checkout_of_its_own(hand: Hand) -> None:
    hand.add_project()
    graph = hand.admit(gated(writer("a", "x", "src/a")))
    node = hand.node(graph, "a")
    hand.run(node, exit_code=None, cause=Cause.HOST_RESTARTED)
    assert state(node) == "queued"
    assert Job.objects.order_by("pk").first().state == "orphaned"  # type: ignore[union-attr]
    hand.land(hand.to_landing(node))
    hand.turn()
    assert state(graph) == "completed"
    assert left_over() == []


@pytest.mark.req("JB-12", "JB-32")
def test_read_only_work_goes_back_to_the_queue_until_its_budget_is_used(hand: Hand) -> None:
    hand.add_project(plain=True)
    graph = hand.admit(program(reader("a", retry={"attempts": 2})))
    node = hand.node(graph, "a")
    hand.run(node, exit_code=None, cause=Cause.CONTROLLER_LOST)
    assert Job.objects.get().state == "queued"
    first = Attempt.objects.filter(number=1).values().get()

    hand.run(node, exit_code=None, cause=Cause.CONTROLLER_LOST)
    hand.turn()

    assert Job.objects.get().state == "failed"
    assert state(graph) == "partial"
    assert list(Attempt.objects.order_by("number").values_list("number", "state")) == [(1, "lost"), (2, "lost")]
    assert Attempt.objects.filter(number=1).values().get() == first
    assert left_over() == []


# --- programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.req("PX-10")
def test_a_dependent_starts_as_soon_as_its_own_inputs_have_ended(hand: Hand) -> None:
    hand.add_project(plain=True)
    graph = hand.admit(program(reader("slow"), reader("quick"), reader("next", "quick"), reader("last", "slow")))
    hand.start(hand.node(graph, "slow"))
    hand.end(hand.node(graph, "quick"))
    hand.start(hand.node(graph, "next"))

    assert states(graph) == {"quick": "succeeded", "slow": "running", "next": "running", "last": "pending"}


@pytest.mark.req("PX-08", "PX-09", "PX-11", "PX-12")
def test_territories_order_writers_and_an_unrestricted_integrator_runs_alone(hand: Hand) -> None:
    hand.add_project(plain=True)
    graph = hand.admit(
        program(
            writer("one", "x", "src/one/"),
            writer("two", "x", "src/two/"),
            writer("three", "x", "docs/"),
            writer("overlap", "x", "src/one/deep"),
            reader("look"),
            {"key": "z-integrate", "command": ["x"], "ownedFiles": []},
            reader("late"),
        )
    )
    hand.turn()
    started = granted()
    assert {"one", "two", "three", "look", "late"} >= started >= {"one", "two", "three"}
    assert "overlap" not in started
    assert "z-integrate" not in started

    while state(graph) == "active":
        running = granted()
        assert not ("z-integrate" in running and len(running) > 1), running
        assert not {"one", "overlap"} <= running
        for key in sorted(running):
            hand.end(hand.node(graph, key))
        hand.turn()
    assert state(graph) == "completed"
    assert left_over() == []


def granted() -> set[str]:
    return set(Node.objects.filter(job__attempts__state="starting").values_list("key", flat=True))


@pytest.mark.req("PX-22")
@pytest.mark.parametrize(("code", "status"), [(0, "completed"), (1, "partial")])
def test_the_status_of_a_program_says_how_its_actions_ended(hand: Hand, code: int, status: str) -> None:
    hand.add_project(plain=True)
    graph = hand.admit(program(reader("a"), reader("b"), edges=[edge("a", "b", "always")]))
    hand.run(hand.node(graph, "a"), exit_code=code)
    hand.run(hand.node(graph, "b"))
    hand.turn()
    assert state(graph) == status


@pytest.mark.req("PX-19", "PX-20")
def test_one_failure_skips_what_needs_it_and_nothing_else(hand: Hand) -> None:
    hand.add_project(plain=True)
    graph = hand.admit(
        program(
            reader("a"),
            reader("bad", "a"),
            reader("good", "a"),
            reader("join", "bad", "good"),
            reader("tell"),
            edges=[edge("bad", "tell", "failure")],
        )
    )
    hand.run(hand.node(graph, "a"))
    hand.run(hand.node(graph, "bad"), exit_code=None, cause=Cause.LAUNCH_ERROR)
    hand.run(hand.node(graph, "good"))
    hand.run(hand.node(graph, "tell"))
    hand.turn()

    assert states(graph) == {
        "a": "succeeded",
        "bad": "failed",
        "good": "succeeded",
        "join": "skipped",
        "tell": "succeeded",
    }
    assert hand.node(graph, "join").outcome["node"] == "bad"
    assert state(graph) == "partial"


def test_every_grant_of_a_graph_is_over_when_it_is(hand: Hand) -> None:
    hand.add_project()
    graph = hand.admit(gated(writer("a", "x", "src/a"), reader("look", "a"), writer("b", "x", "src/b", needs=["look"])))
    hand.land(hand.to_landing(hand.node(graph, "a")))
    hand.turn()
    look = hand.node(graph, "look")
    hand.end(look)
    hand.seal(look)
    hand.land(hand.to_landing(hand.node(graph, "b")))
    hand.turn()

    assert state(graph) == "completed"
    assert left_over() == []
    assert not Lease.objects.filter(state__in=BLOCKING).exists()
    kinds = Event.objects.filter(subject=look.subject).order_by("seq").values_list("kind", flat=True)
    assert list(kinds) == ["node.queued", "node.running", "node.sealing", "node.validating", "node.accepted"]
