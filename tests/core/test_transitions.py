"""The guard of every state, on two stateful models of the product."""

from __future__ import annotations

from enum import StrEnum
from itertools import product

import pytest

from core.errors import IllegalMove, LostRace
from core.models import Event, Stateful
from core.states import Moves
from core.transitions import move, move_all, move_each
from core.uow import unit_of_work
from graphs.models import Graph, Node
from graphs.states import GRAPH_MOVES, NODE_MOVES, GraphState, NodeState
from integration.models import Candidate, Check, Entry
from integration.states import CANDIDATE_MOVES, CHECK_MOVES, ENTRY_MOVES, CandidateState, CheckState, EntryState
from jobs.models import Attempt, Job
from jobs.states import ATTEMPT_MOVES, JOB_MOVES, AttemptState, JobState
from leases.models import Lease, Request
from leases.states import LEASE_MOVES, REQUEST_MOVES, LeaseState, RequestState
from tests.factories import GraphFactory, NodeFactory
from workspaces.models import Checkout
from workspaces.states import CHECKOUT_MOVES, CheckoutState

TABLES: list[tuple[type[Stateful], type[StrEnum], Moves]] = [
    (Graph, GraphState, GRAPH_MOVES),
    (Node, NodeState, NODE_MOVES),
    (Candidate, CandidateState, CANDIDATE_MOVES),
    (Entry, EntryState, ENTRY_MOVES),
    (Check, CheckState, CHECK_MOVES),
    (Job, JobState, JOB_MOVES),
    (Attempt, AttemptState, ATTEMPT_MOVES),
    (Request, RequestState, REQUEST_MOVES),
    (Lease, LeaseState, LEASE_MOVES),
    (Checkout, CheckoutState, CHECKOUT_MOVES),
]

moved = unit_of_work(move)
moved_all = unit_of_work(move_all)
moved_each = unit_of_work(move_each)


@pytest.mark.parametrize(("model", "states", "moves"), TABLES, ids=lambda value: getattr(value, "__name__", ""))
def test_each_table_names_every_state_and_leads_only_to_states(
    model: type[Stateful], states: type[StrEnum], moves: Moves
) -> None:
    known = set(states.__members__.values())
    assert set(moves) == known
    assert {target for targets in moves.values() for target in targets} <= known


@pytest.mark.django_db
@pytest.mark.req("WG-15")
@pytest.mark.parametrize(("origin", "to"), list(product(NodeState, NodeState)))
def test_a_node_takes_exactly_the_arrows_of_the_table(origin: NodeState, to: NodeState) -> None:
    node = NodeFactory.create(state=origin)

    if to in NODE_MOVES[origin]:
        moved(row=node, to=to, moves=NODE_MOVES)
    else:
        with pytest.raises(IllegalMove):
            moved(row=node, to=to, moves=NODE_MOVES)

    node.refresh_from_db()
    assert (node.state, node.version) == ((to, 1) if to in NODE_MOVES[origin] else (origin, 0))


@pytest.mark.django_db
@pytest.mark.req("GC-10")
def test_a_running_node_is_never_accepted_without_validation() -> None:
    node = NodeFactory.create(state=NodeState.RUNNING)

    with pytest.raises(IllegalMove):
        moved(row=node, to=NodeState.ACCEPTED, moves=NODE_MOVES)


@pytest.mark.django_db
def test_of_two_who_read_the_same_row_one_wins_and_the_other_changes_nothing() -> None:
    first = NodeFactory.create(state=NodeState.PENDING)
    second = Node.objects.get(pk=first.pk)

    moved(row=first, to=NodeState.QUEUED, moves=NODE_MOVES)
    with pytest.raises(LostRace):
        moved(row=second, to=NodeState.CANCELLED, moves=NODE_MOVES)

    first.refresh_from_db()
    assert first.state == NodeState.QUEUED


@pytest.mark.django_db
def test_many_rows_move_together_or_not_at_all() -> None:
    nodes = [NodeFactory.create(state=NodeState.PENDING) for _ in range(3)]
    moved(row=Node.objects.get(pk=nodes[1].pk), to=NodeState.CANCELLED, moves=NODE_MOVES)

    with pytest.raises(LostRace):
        moved_all(rows=nodes, to=NodeState.QUEUED, moves=NODE_MOVES)
    with pytest.raises(LostRace):
        moved_each(rows=[(node, {"revisions": 1}) for node in nodes], to=NodeState.QUEUED, moves=NODE_MOVES)

    assert Node.objects.filter(state=NodeState.QUEUED).count() == 0


@pytest.mark.django_db
def test_each_move_writes_one_event_with_its_origin() -> None:
    nodes = [NodeFactory.create(state=NodeState.PENDING) for _ in range(2)]
    before = Event.objects.count()

    moved_each(
        rows=[(node, {"revisions": n}) for n, node in enumerate(nodes)], to=NodeState.QUEUED, moves=NODE_MOVES,
        data={node.pk: {"key": node.key} for node in nodes},
    )  # fmt: skip

    events = list(Event.objects.order_by("seq"))[before:]
    assert [(event.kind, event.subject, event.data) for event in events] == [
        ("node.queued", node.subject, {"from": "pending", "key": node.key}) for node in nodes
    ]
    assert list(Node.objects.order_by("pk").values_list("revisions", "version")) == [(0, 1), (1, 1)]


@pytest.mark.django_db
@pytest.mark.req("GC-01")
def test_the_model_layer_refuses_a_state_from_anywhere_else() -> None:
    node, graph = NodeFactory.create(), GraphFactory.create()

    with pytest.raises(TypeError):
        Node.objects.filter(pk=node.pk).update(state=NodeState.ACCEPTED)
    with pytest.raises(TypeError):
        Node.objects.bulk_update([node], ["state"])
    node.state = NodeState.ACCEPTED
    with pytest.raises(TypeError):
        node.save()
    with pytest.raises(TypeError):
        graph.save(update_fields=["title", "state"])

    node.refresh_from_db()
    assert node.state == NodeState.PENDING


@pytest.mark.django_db(transaction=True)
def test_a_step_refuses_to_run_outside_a_transaction() -> None:
    node = NodeFactory.create()

    with pytest.raises(RuntimeError):
        move(node, NodeState.QUEUED, moves=NODE_MOVES)
