"""Order and readiness of a graph. Pure functions; the order in which nodes and edges are passed never matters.

Everything takes O(V + E) steps, plus the sorting of keys that makes it deterministic.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Final

from graphs.states import SUCCESS, NodeState


class EdgeKind(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """``target`` waits for ``source``: for its success, its failure, or its end."""

    source: str
    target: str
    kind: EdgeKind = EdgeKind.SUCCESS


class CycleFound(ValueError):
    """The graph has a cycle. Documents are checked for that first, so to meet it here is a bug of the caller."""

    def __init__(self, cycle: tuple[str, ...]) -> None:
        super().__init__(" -> ".join((*cycle, cycle[0])))
        self.cycle = cycle


def levels(keys: Iterable[str], edges: Iterable[Edge]) -> tuple[tuple[str, ...], ...]:
    """The keys by level: a node is one level above the highest node it waits for. Sorted inside a level.

    For display and for the order below; nothing ever waits for a level.
    Raises: CycleFound
    """
    keys = sorted(set(keys))
    edges = tuple(edges)
    sorter = TopologicalSorter[str](dict.fromkeys(keys, ()))
    for edge in edges:
        sorter.add(edge.target, edge.source)
    try:
        sorter.prepare()
    except CycleError:
        raise CycleFound(find_cycles(keys, edges)[0]) from None
    found: list[tuple[str, ...]] = []
    while sorter.is_active():
        ready = sorter.get_ready()
        found.append(tuple(sorted(ready)))
        sorter.done(*ready)
    return tuple(found)


def topological_order(keys: Iterable[str], edges: Iterable[Edge]) -> tuple[str, ...]:
    """The one order of a graph: by level, then by key (code points). Raises: CycleFound."""
    return tuple(key for level in levels(keys, edges) for key in level)


def find_cycles(keys: Iterable[str], edges: Iterable[Edge]) -> tuple[tuple[str, ...], ...]:
    """One cycle of each knot of nodes that wait for each other; empty when there is an order.

    A cycle is named in the direction of its edges from the smallest key of its knot, and is the shortest through that
    key. So a document with three separate cycles reports three.
    """
    successors: dict[str, list[str]] = {key: [] for key in sorted(set(keys))}
    for source, target in sorted({(edge.source, edge.target) for edge in edges}):
        successors.setdefault(source, []).append(target)
        successors.setdefault(target, [])
    cycles = []
    for knot in _strong_components(successors):
        start = min(knot)
        if len(knot) > 1 or start in successors[start]:
            cycles.append(_shortest_cycle(start, knot, successors))
    return tuple(sorted(cycles))


def _strong_components(successors: Mapping[str, Sequence[str]]) -> Iterable[frozenset[str]]:
    """Tarjan's algorithm with a stack of our own: a chain of 20,000 nodes is no reason for a RecursionError.

    Source: R. Tarjan, "Depth-first search and linear graph algorithms" (1972)
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    open_nodes: list[str] = []
    is_open: set[str] = set()
    for root in successors:
        if root in index:
            continue
        work = [(root, iter(successors[root]))]
        index[root] = low[root] = len(index)
        open_nodes.append(root)
        is_open.add(root)
        while work:
            node, rest = work[-1]
            for following in rest:
                if following not in index:
                    index[following] = low[following] = len(index)
                    open_nodes.append(following)
                    is_open.add(following)
                    work.append((following, iter(successors[following])))
                    break
                if following in is_open:
                    low[node] = min(low[node], index[following])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == index[node]:
                    yield _popped_down_to(node, open_nodes, is_open)


def _popped_down_to(node: str, open_nodes: list[str], is_open: set[str]) -> frozenset[str]:
    popped = {open_nodes.pop()}
    while node not in popped:
        popped.add(open_nodes.pop())
    is_open -= popped
    return frozenset(popped)


def _shortest_cycle(start: str, knot: frozenset[str], successors: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Breadth first from ``start`` inside its knot until an edge leads back; there is one, or it were no knot."""
    came_from: dict[str, str] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for following in successors[node]:
            if following == start:
                return _way_back(node, start, came_from)
            if following in knot and following not in came_from:
                came_from[following] = node
                queue.append(following)
    raise AssertionError(f"{start} is on no cycle")


def _way_back(node: str, start: str, came_from: Mapping[str, str]) -> tuple[str, ...]:
    way = [node]
    while way[-1] != start:
        way.append(came_from[way[-1]])
    return tuple(reversed(way))


_ENDED: Final = frozenset({*SUCCESS, NodeState.FAILED, NodeState.SKIPPED, NodeState.CANCELLED})
_MEETS: Final[Mapping[EdgeKind, frozenset[NodeState]]] = MappingProxyType(
    {
        EdgeKind.SUCCESS: frozenset(SUCCESS),
        EdgeKind.FAILURE: frozenset({NodeState.FAILED}),
        EdgeKind.ALWAYS: _ENDED,
    }
)


@dataclass(frozen=True, slots=True)
class Readiness:
    """What follows from the states of a graph's nodes.

    ready:   pending nodes all of whose edges are satisfied, in topological order
    skipped: pending nodes that can no longer run, each with the key of the ended node that rules it out
    """

    ready: tuple[str, ...]
    skipped: Mapping[str, str]


def is_satisfied(kind: EdgeKind, source: NodeState) -> bool:
    """Whether an edge of ``kind`` holds its target back no longer. A superseded source says nothing: ask the next."""
    return source in _MEETS[kind]


def is_ruled_out(kind: EdgeKind, source: NodeState) -> bool:
    """Whether an edge of ``kind`` can never be satisfied any more: its source ended the other way."""
    return source in _ENDED and source not in _MEETS[kind]


def readiness(states: Mapping[str, NodeState], edges: Iterable[Edge]) -> Readiness:
    """Derive what may start and what can never start.

    states: of every node's current generation, by key
    Skips follow each other within one call: what waits for the success of a node skipped here is skipped as well, and
    names the node that really ended. Of several causes the one behind the smallest source key is named.
    Raises: CycleFound; KeyError for an edge without a state
    """
    edges = tuple(edges)
    incoming: defaultdict[str, list[Edge]] = defaultdict(list)
    for edge in edges:
        incoming[edge.target].append(edge)
    derived = dict(states)
    causes: dict[str, str] = {}
    ready = []
    for key in topological_order(states, edges):  # every source is decided before its targets
        if derived[key] != NodeState.PENDING:
            continue
        against = [edge.source for edge in incoming[key] if is_ruled_out(edge.kind, derived[edge.source])]
        if against:
            cause = min(against)
            causes[key] = causes.get(cause, cause)
            derived[key] = NodeState.SKIPPED
        elif all(is_satisfied(edge.kind, derived[edge.source]) for edge in incoming[key]):
            ready.append(key)
    return Readiness(ready=tuple(ready), skipped=MappingProxyType(causes))


def ready_keys(states: Mapping[str, NodeState], edges: Iterable[Edge]) -> tuple[str, ...]:
    """The nodes that may start now, in topological order. See ``readiness``."""
    return readiness(states, edges).ready
