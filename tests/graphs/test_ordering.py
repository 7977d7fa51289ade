"""Order, levels, cycles and readiness, each against a plainer statement of the same thing."""

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.ordering import (
    CycleFound,
    Edge,
    EdgeKind,
    find_cycles,
    is_ruled_out,
    is_satisfied,
    levels,
    readiness,
    ready_keys,
    topological_order,
)
from graphs.states import ENDED, SUCCESS, NodeState

KEYS = [f"n{number}" for number in range(9)]
P, A, F, K = NodeState.PENDING, NodeState.ACCEPTED, NodeState.FAILED, NodeState.SKIPPED


def edges_of(*arrows: str) -> list[Edge]:
    """``a>b`` success, ``a!b`` failure, ``a*b`` always."""
    kinds = {">": EdgeKind.SUCCESS, "!": EdgeKind.FAILURE, "*": EdgeKind.ALWAYS}
    return [Edge(arrow[0], arrow[2], kinds[arrow[1]]) for arrow in arrows]


@st.composite
def acyclic(draw: st.DrawFn) -> tuple[list[str], list[Edge]]:
    """A graph whose order is hidden: the keys are permuted before edges point forwards."""
    keys = draw(st.permutations(KEYS))
    pairs = [(one, other) for position, one in enumerate(keys) for other in keys[position + 1 :]]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20))
    return keys, [Edge(*pair, draw(st.sampled_from(EdgeKind))) for pair in chosen]


def shuffled(items: Iterable[Edge], seed: int) -> list[Edge]:
    found = list(items)
    random.Random(seed).shuffle(found)
    return found


@pytest.mark.req("WG-09")
def test_the_order_is_by_level_and_then_by_key() -> None:
    edges = edges_of("z>a", "z>b", "b>c", "y*c")

    assert levels("abcxyz", edges) == (("x", "y", "z"), ("a", "b"), ("c",))
    assert topological_order("abcxyz", edges) == ("x", "y", "z", "a", "b", "c")


@pytest.mark.req("WG-09")
def test_the_order_is_the_same_for_a_hundred_shuffles() -> None:
    numbers = random.Random(7)
    keys = [f"k{number}" for number in range(40)]
    edges = list({Edge(keys[one], keys[two]) for one, two in (sorted(numbers.sample(range(40), 2)) for _ in range(80))})
    expected = topological_order(keys, edges)

    for seed in range(100):
        mixed = keys[:]
        random.Random(seed).shuffle(mixed)
        assert topological_order(mixed, shuffled(edges, seed)) == expected


@pytest.mark.req("WG-09")
@given(acyclic())
def test_an_order_holds_every_key_once_and_every_source_before_its_targets(graph: tuple[list[str], list[Edge]]) -> None:
    keys, edges = graph

    order = topological_order(keys, edges)

    assert sorted(order) == sorted(keys)
    assert all(order.index(edge.source) < order.index(edge.target) for edge in edges)
    assert find_cycles(keys, edges) == ()


@given(acyclic())
def test_a_level_is_one_above_the_highest_source(graph: tuple[list[str], list[Edge]]) -> None:
    keys, edges = graph
    level = {key: number for number, row in enumerate(levels(keys, edges)) for key in row}

    for key in keys:
        assert level[key] == max((level[edge.source] + 1 for edge in edges if edge.target == key), default=0)


@pytest.mark.req("WG-03")
@pytest.mark.parametrize(
    ("arrows", "cycles"),
    [
        (["a>a"], [("a",)]),
        (["b>a", "a>b"], [("a", "b")]),
        (["c>d", "d>e", "e>a", "a>b", "b>c"], [("a", "b", "c", "d", "e")]),
        (["a>b", "b>c", "c>d", "d>a", "b>a"], [("a", "b")]),
        (["x>y", "y>x", "a>b", "b>a", "b>x", "m>m"], [("a", "b"), ("m",), ("x", "y")]),
        (["a>b", "b>c", "a>c"], []),
    ],
    ids=["of one", "of two", "of five", "the shortest", "one of each knot", "a diamond has none"],
)
def test_a_cycle_is_named(arrows: Sequence[str], cycles: Sequence[tuple[str, ...]]) -> None:
    edges = edges_of(*arrows)
    keys = {end for edge in edges for end in (edge.source, edge.target)}

    for seed in range(10):
        assert find_cycles(keys, shuffled(edges, seed)) == tuple(cycles)
    if cycles:
        with pytest.raises(CycleFound) as caught:
            topological_order(keys, edges)
        assert caught.value.cycle == cycles[0]


@pytest.mark.req("WG-03")
@given(st.lists(st.builds(Edge, st.sampled_from(KEYS), st.sampled_from(KEYS)), max_size=20))
def test_a_graph_has_an_order_or_a_cycle_and_the_cycle_is_real(edges: list[Edge]) -> None:
    arrows = {(edge.source, edge.target) for edge in edges}

    cycles = find_cycles(KEYS, edges)

    if not cycles:
        assert sorted(topological_order(KEYS, edges)) == KEYS
    for cycle in cycles:
        assert set(pairwise((*cycle, cycle[0]))) <= arrows
        assert len(set(cycle)) == len(cycle)


def test_a_long_chain_is_no_reason_to_fail() -> None:
    keys = [f"{number:05d}" for number in range(20_000)]
    chain = [Edge(*pair) for pair in pairwise(keys)]

    assert topological_order(keys, chain) == tuple(keys)
    assert find_cycles(keys, [*chain, Edge(keys[-1], keys[0])]) == (tuple(keys),)


@pytest.mark.req("WG-08")
@pytest.mark.parametrize(("kind", "state"), list(product(EdgeKind, NodeState)))
def test_every_edge_in_every_state_of_its_source(kind: EdgeKind, state: NodeState) -> None:
    """Written out: what satisfies an edge, and what rules it out. Every other state lets it wait."""
    satisfied = {
        EdgeKind.SUCCESS: {NodeState.ACCEPTED, NodeState.SUCCEEDED},
        EdgeKind.FAILURE: {NodeState.FAILED},
        EdgeKind.ALWAYS: {
            NodeState.ACCEPTED,
            NodeState.SUCCEEDED,
            NodeState.FAILED,
            NodeState.SKIPPED,
            NodeState.CANCELLED,
        },
    }[kind]
    ruled_out = {
        EdgeKind.SUCCESS: {NodeState.FAILED, NodeState.SKIPPED, NodeState.CANCELLED},
        EdgeKind.FAILURE: {NodeState.ACCEPTED, NodeState.SUCCEEDED, NodeState.SKIPPED, NodeState.CANCELLED},
        EdgeKind.ALWAYS: set(),
    }[kind]

    assert is_satisfied(kind, state) == (state in satisfied)
    assert is_ruled_out(kind, state) == (state in ruled_out)


def test_a_failure_skips_only_what_depends_on_success_and_names_the_failed_node() -> None:
    found = readiness(dict.fromkeys("bcdxy", P) | {"a": F}, edges_of("a>b", "b>c", "a!d", "a*x"))

    assert found.ready == ("y", "d", "x")
    assert dict(found.skipped) == {"b": "a", "c": "a"}


def test_of_several_causes_the_smallest_is_named() -> None:
    edges = edges_of("b>c", "a>c")

    for rows in (edges, edges[::-1]):
        assert dict(readiness({"b": F, "a": F, "c": P}, rows).skipped) == {"c": "a"}


def test_a_handler_that_is_not_needed_is_skipped_with_its_reason() -> None:
    found = readiness({"a": A, "h": P, "i": P}, edges_of("a!h", "h>i"))

    assert found.ready == ()
    assert dict(found.skipped) == {"h": "a", "i": "a"}


@pytest.mark.parametrize("state", [state for state in NodeState if state is not NodeState.PENDING])
def test_only_a_pending_node_is_ready(state: NodeState) -> None:
    assert ready_keys({"a": state}, []) == ()


STATES = st.fixed_dictionaries({key: st.sampled_from(NodeState) for key in KEYS})


@pytest.mark.req("WG-08")
@given(acyclic(), STATES, st.integers(0, 1000))
def test_readiness_is_the_same_from_shuffled_rows(
    graph: tuple[list[str], list[Edge]], states: dict[str, NodeState], seed: int
) -> None:
    keys, edges = graph
    mixed = dict(sorted(states.items(), key=lambda item: keys.index(item[0])))

    assert readiness(mixed, shuffled(edges, seed)) == readiness(states, edges)


@pytest.mark.req("WG-08")
@given(acyclic(), STATES)
def test_a_node_is_ready_only_when_every_dependency_allows_it(
    graph: tuple[list[str], list[Edge]], states: dict[str, NodeState]
) -> None:
    _, edges = graph
    found = readiness(states, edges)
    derived = {key: NodeState.SKIPPED if key in found.skipped else state for key, state in states.items()}

    for key, state in states.items():
        incoming = [(edge.kind, derived[edge.source]) for edge in edges if edge.target == key]
        is_ready = state is P and all(is_satisfied(*edge) for edge in incoming)
        is_skipped = state is P and any(is_ruled_out(*edge) for edge in incoming)
        assert (key in found.ready) == is_ready
        assert (key in found.skipped) == is_skipped
        if any(kind is EdgeKind.SUCCESS and source not in SUCCESS for kind, source in incoming):
            assert key not in found.ready


@given(acyclic(), STATES)
def test_a_skip_names_a_node_that_ended(graph: tuple[list[str], list[Edge]], states: dict[str, NodeState]) -> None:
    _, edges = graph

    assert all(states[cause] in ENDED for cause in readiness(states, edges).skipped.values())
