"""What a node asks for, what its end means for others, and what a retry reopens. Values in, values out."""

from __future__ import annotations

import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.documents import model as doc
from graphs.ordering import Edge, EdgeKind, is_satisfied, readiness, topological_order
from graphs.planning import (
    Behind,
    Place,
    claims_of_node,
    consequence_of,
    environment_of,
    graph_outcome,
    integration_scope,
    may_try_again,
    reopening,
    retry_class_of,
)
from graphs.states import ENDED, NodeState
from jobs.states import JobState, RetryClass
from leases.planning import ClaimSpec, conflicts

S = NodeState
GATED = Place("here", "p", "/srv/p", "g#1", gated=True, has_graph_limit=False)
SHARED = Place("here", "p", "/srv/p", "g#1", gated=False, has_graph_limit=True)


def node(**more: object) -> doc.Node:
    return doc.Node(**{"key": "a", "command": ("x",), **more})  # type: ignore[arg-type]


def shared(**more: object) -> doc.Node:
    return node(own_workspace=False, **more)


READER = doc.WorkMode.READ_ONLY


def compared(claims: tuple[ClaimSpec, ...]) -> set[tuple[str, str, str]]:
    return {(c.resource_class.value, c.key, c.access.value) for c in claims if not c.is_capacity}


def meet(first: doc.Node, second: doc.Node, place: Place) -> bool:
    return any(
        conflicts(a, b)
        for a, b in product(claims_of_node(first, place), claims_of_node(second, place))
        if not a.is_capacity and not b.is_capacity
    )


# --- claims


@pytest.mark.req("GC-05", "RB-16")
def test_a_gated_writer_claims_its_scope_of_the_branch() -> None:
    assert compared(claims_of_node(node(owned_files=("src/a", "docs/")), GATED)) == {
        ("integration", "p/src/a", "write"),
        ("integration", "p/docs", "write"),
    }
    for unknown in (None, ()):
        assert compared(claims_of_node(node(owned_files=unknown), GATED)) == {("integration", "p", "exclusive")}
        assert integration_scope("p", unknown) == ("p",)


@pytest.mark.req("GC-05")
def test_a_gated_reader_writes_nothing() -> None:
    assert compared(claims_of_node(node(work_mode=READER), GATED)) == set()


def test_every_attempt_takes_a_slot_a_share_of_its_project_and_of_its_graph() -> None:
    def units(place: Place) -> list[str]:
        return sorted(c.key for c in claims_of_node(node(work_mode=READER), place) if c.is_capacity)

    assert units(GATED) == ["limit:p", "slots:here"]
    assert units(SHARED) == ["limit:p", "limit:p:g#1", "slots:here"]


@pytest.mark.req("PX-08", "PX-09", "PX-11", "PX-12")
@pytest.mark.parametrize(
    ("first", "second", "conflict"),
    [
        (shared(owned_files=("src/a/",)), shared(owned_files=("src/b/",)), False),
        (shared(owned_files=("src/a/",)), shared(owned_files=("src/a/deep",)), True),
        (shared(owned_files=("src/a",)), shared(owned_files=("src/ab",)), False),
        (shared(owned_files=("src/a",)), shared(owned_files=("src/a",)), True),
        (shared(owned_files=()), shared(owned_files=("src/a",)), True),
        (shared(owned_files=None), shared(owned_files=("src/a",)), True),
        (shared(owned_files=()), shared(work_mode=READER), True),
        (shared(owned_files=()), shared(work_mode=READER, reads=("docs/",)), True),
        (shared(owned_files=("src/a",)), shared(work_mode=READER), False),
        (shared(owned_files=("src/a",)), shared(work_mode=READER, reads=("src/",)), True),
        (shared(work_mode=READER), shared(work_mode=READER, reads=("src/",)), False),
    ],
)
def test_territories_in_a_shared_workspace(first: doc.Node, second: doc.Node, conflict: bool) -> None:
    assert meet(first, second, SHARED) is meet(second, first, SHARED) is conflict


# --- retry classes


def test_every_node_has_a_retry_class() -> None:
    writer, reader = node(owned_files=("a",)), node(work_mode=READER)
    assert retry_class_of(writer, gated=True) is RetryClass.REQUIRES_RECONCILIATION
    assert retry_class_of(reader, gated=True) is RetryClass.REPLAY_UNFINISHED
    assert retry_class_of(writer, gated=False) is RetryClass.REPLAY_UNFINISHED
    assert retry_class_of(node(outside_effects=("mail",)), gated=False) is RetryClass.REQUIRES_RECONCILIATION
    for value in doc.RetryClass:
        assert retry_class_of(node(retry=doc.Retry(value)), gated=True) == value.value


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.ORPHANED, JobState.UNKNOWN])
def test_a_revision_runs_a_command_again_only_where_that_is_harmless(state: JobState) -> None:
    not_known = state in (JobState.ORPHANED, JobState.UNKNOWN)
    assert may_try_again(node(), state)
    assert may_try_again(node(outside_effects=("mail",)), state) is not not_known
    assert may_try_again(node(retry=doc.Retry(doc.RetryClass.REQUIRES_RECONCILIATION)), state) is not not_known
    assert not may_try_again(node(retry=doc.Retry(doc.RetryClass.NON_REPEATABLE)), state)


@pytest.mark.req("PS-15")
def test_a_worker_is_told_who_it_is_and_its_own_variables_win() -> None:
    told = environment_of(node(env=(("FORGE_GRAPH", "mine"), ("X", "1"))), project="p", graph="g#1")
    assert told == {"FORGE_PROJECT": "p", "FORGE_GRAPH": "mine", "FORGE_NODE": "a", "X": "1"}


# --- ends


@pytest.mark.req("PX-20")
@pytest.mark.parametrize("kind", EdgeKind)
@pytest.mark.parametrize("end", [S.SUCCEEDED, S.ACCEPTED, S.FAILED, S.SKIPPED, S.CANCELLED])
def test_an_end_either_meets_an_input_or_rules_it_out(kind: EdgeKind, end: NodeState) -> None:
    found = consequence_of({1: end}, {1: [Behind(2, kind)]})
    met = is_satisfied(kind, end)
    assert dict(found.met) == ({2: 1} if met else {})
    assert dict(found.skipped) == ({} if met else {2: 1})


def test_what_one_end_rules_out_another_does_not_meet() -> None:
    behind = {1: [Behind(3, EdgeKind.SUCCESS)], 2: [Behind(3, EdgeKind.FAILURE)]}
    found = consequence_of({1: S.SUCCEEDED, 2: S.SUCCEEDED}, behind)
    assert (dict(found.met), dict(found.skipped)) == ({}, {3: 2})


@pytest.mark.req("PX-22")
@pytest.mark.parametrize(
    ("states", "cancelled", "outcome"),
    [
        ({S.SUCCEEDED: 3}, False, "completed"),
        ({S.ACCEPTED: 1, S.SUCCEEDED: 1}, False, "completed"),
        ({S.SUCCEEDED: 3, S.FAILED: 1}, False, "partial"),
        ({S.SUCCEEDED: 3, S.SKIPPED: 1}, False, "partial"),
        ({S.SUCCEEDED: 3, S.FAILED: 1, S.CANCELLED: 1}, True, "cancelled"),
        ({S.SUCCEEDED: 3, S.CANCELLED: 1}, False, "partial"),  # one node was cancelled, not the graph
        ({S.SUCCEEDED: 3}, True, "completed"),  # the wish came too late for every node
    ],
)
def test_the_status_of_a_graph(states: dict[str, int], cancelled: bool, outcome: str) -> None:
    assert graph_outcome(states, cancelled=cancelled) == outcome


# --- retries


KINDS = list(EdgeKind)
Drawn = tuple[dict[int, NodeState], list[tuple[int, int, EdgeKind]]]


@st.composite
def ended_graphs(draw: st.DrawFn) -> Drawn:
    """A graph run to its end: every node succeeded, failed or skipped, as its edges say."""
    size = draw(st.integers(1, 7))
    edges = [
        (a, b, draw(st.sampled_from(KINDS))) for b in range(size) for a in range(b) if draw(st.integers(0, 2)) == 0
    ]
    states: dict[int, NodeState] = {}
    for pk in range(size):
        runs = all(is_satisfied(kind, states[source]) for source, target, kind in edges if target == pk)
        states[pk] = draw(st.sampled_from([S.SUCCEEDED, S.FAILED])) if runs else S.SKIPPED
    return states, edges


@pytest.mark.req("WG-08")
@given(ended_graphs(), st.randoms(use_true_random=False))
def test_after_any_retries_a_graph_still_comes_to_its_end(drawn: Drawn, chance: random.Random) -> None:
    """The model runs on after each retry, by the counts alone as the coordinator does; nothing waits for ever."""
    states, edges = drawn
    for failed in [pk for pk, state in states.items() if state is S.FAILED]:
        plan = reopening(failed, states, edges)
        if plan is None:
            continue
        unmet = dict(plan.unmet)
        for pk in plan.reopened:
            states[pk] = S.PENDING
        for pk, state in states.items():
            sources = [(source, kind) for source, target, kind in edges if target == pk]
            if state in (S.PENDING, S.SKIPPED) and sources:
                assert unmet[pk] == sum(not is_satisfied(kind, states[source]) for source, kind in sources)
        run_on(states, edges, unmet, chance)
    assert all(state in ENDED for state in states.values())


def run_on(
    states: dict[int, NodeState],
    edges: list[tuple[int, int, EdgeKind]],
    unmet: dict[int, int],
    chance: random.Random,
) -> None:
    behind: dict[int, list[Behind]] = {}
    for source, target, kind in edges:
        behind.setdefault(source, []).append(Behind(target, kind))
    while ready := [pk for pk, state in states.items() if state is S.PENDING and not unmet.get(pk)]:
        pk = chance.choice(ready)
        ends = {pk: chance.choice([S.SUCCEEDED, S.FAILED])}
        while ends:
            states.update(ends)
            found = consequence_of(ends, behind)
            for target, count in found.met.items():
                if states[target] in (S.PENDING, S.SKIPPED):
                    unmet[target] -= count
                    assert unmet[target] >= 0
            ends = {target: S.SKIPPED for target in found.skipped if states[target] is S.PENDING}


def test_a_retry_of_what_its_inputs_rule_out_is_no_plan() -> None:
    states = {1: S.SUCCEEDED, 2: S.FAILED}
    assert reopening(2, states, [(1, 2, EdgeKind.FAILURE)]) is None
    assert reopening(2, states, [(1, 2, EdgeKind.SUCCESS)]) is not None


# --- readiness and order


@pytest.mark.req("WG-08", "WG-09")
def test_order_and_readiness_do_not_depend_on_the_order_of_rows() -> None:
    keys = [f"n{n}" for n in range(12)]
    edges = [Edge(a, b) for i, a in enumerate(keys) for b in keys[i + 1 :: 3]]
    states = {key: S.ACCEPTED if n < 4 else S.PENDING for n, key in enumerate(keys)}
    order, ready = topological_order(keys, edges), readiness(states, edges).ready
    chance = random.Random(0)
    for _ in range(100):
        chance.shuffle(keys)
        chance.shuffle(edges)
        shuffled = {key: states[key] for key in keys}
        assert topological_order(keys, edges) == order
        assert readiness(shuffled, edges).ready == ready
        for key in ready:
            assert all(states[edge.source] is S.ACCEPTED for edge in edges if edge.target == key)
