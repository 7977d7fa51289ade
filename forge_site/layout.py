"""Layered layout of a directed acyclic graph, on the server and deterministic. Pure.

Longest-path layers; an edge over several layers is split by virtual nodes; barycentre sweeps order each layer; each layer
is then placed as near to its neighbours as unit gaps allow. 1,000 nodes take some 30 ms; libraries for the browser took
4 to 30 s (live-mcp.md 3.3).

Source: K. Sugiyama, S. Tagawa, M. Toda, "Methods for visual understanding of hierarchical system structures" (1981);
pool-adjacent-violators for the placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

ORDER_SWEEPS, PLACE_SWEEPS = 6, 4
VIRTUAL_GAP = 0.45  # of a row: an edge that passes needs less room than a node


@dataclass(frozen=True)
class Layout:
    """Positions in layers and rows (row is a fraction, the topmost is 0).

    routes: per edge, the positions it passes, from source to target
    """

    layers: list[int]
    rows: list[float]
    routes: dict[tuple[int, int], list[tuple[int, float]]]

    @property
    def width(self) -> int:
        return max(self.layers, default=-1) + 1

    @property
    def height(self) -> float:
        return max(self.rows, default=-1.0) + 1


@lru_cache(maxsize=64)  # a graph looks the same however often its page is read; only its states change
def arrange(number: int, edges: tuple[tuple[int, int], ...]) -> Layout:
    """Nodes are 0 to number - 1. Raises: ValueError for a cycle"""
    work = _Layering(number, edges)
    work.order()
    rows = work.place()
    routes = {
        (source, target): [(work.layer[v], rows[v]) for v in chain] for (source, target), chain in work.chains.items()
    }
    return Layout(work.layer[:number], rows[:number], routes)


class _Layering:
    def __init__(self, number: int, edges: Sequence[tuple[int, int]]) -> None:
        self.number = number
        self.layer = _longest_paths(number, edges)
        self.before: list[list[int]] = [[] for _ in range(number)]
        self.after: list[list[int]] = [[] for _ in range(number)]
        self.chains: dict[tuple[int, int], list[int]] = {}
        for source, target in edges:
            self._split(source, target)
        self.members: list[list[int]] = [[] for _ in range(max(self.layer, default=-1) + 1)]
        for vertex, layer in enumerate(self.layer):
            self.members[layer].append(vertex)

    def _split(self, source: int, target: int) -> None:
        chain = [source]
        for layer in range(self.layer[source] + 1, self.layer[target]):
            self.layer.append(layer)
            self.before.append([])
            self.after.append([])
            chain.append(len(self.layer) - 1)
        chain.append(target)
        for upper, lower in pairwise(chain):
            self.after[upper].append(lower)
            self.before[lower].append(upper)
        self.chains[source, target] = chain

    def order(self) -> None:
        """Few crossings: each layer by the mean position of its neighbours, forwards and backwards."""
        position = [0.0] * len(self.layer)
        for members in self.members:
            for place, vertex in enumerate(members):
                position[vertex] = place
        for sweep in range(ORDER_SWEEPS):
            forwards = sweep % 2 == 0
            neighbours = self.before if forwards else self.after
            for members in self.members if forwards else reversed(self.members):
                mean = {
                    v: _mean([position[n] for n in neighbours[v]]) if neighbours[v] else position[v] for v in members
                }
                members.sort(key=mean.__getitem__)
                for place, vertex in enumerate(members):
                    position[vertex] = place

    def place(self) -> list[float]:
        """Straight edges: each vertex near its neighbours, in the order found and never closer than its room."""
        rows = [0.0] * len(self.layer)
        offsets = [self._offsets(members) for members in self.members]
        for members, offset in zip(self.members, offsets, strict=True):
            for vertex, room in zip(members, offset, strict=True):
                rows[vertex] = room - offset[-1] / 2
        for sweep in range(PLACE_SWEEPS):
            turns = list(zip(self.members, offsets, strict=True))
            for members, offset in turns if sweep % 2 == 0 else reversed(turns):
                wanted = [
                    _mean([rows[n] for n in near]) if (near := self.before[v] + self.after[v]) else rows[v]
                    for v in members
                ]
                for vertex, row in zip(members, _nearest(wanted, offset), strict=True):
                    rows[vertex] = row
        top = min(rows[: self.number], default=0.0)
        return [row - min(top, *rows) for row in rows] if rows else rows

    def _offsets(self, members: list[int]) -> list[float]:
        """The smallest distance of each member from the first of its layer."""
        offsets, total = [], 0.0
        for place, vertex in enumerate(members):
            if place:
                either_is_real = vertex < self.number or members[place - 1] < self.number
                total += 1.0 if either_is_real else VIRTUAL_GAP
            offsets.append(total)
        return offsets


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _longest_paths(number: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    after: list[list[int]] = [[] for _ in range(number)]
    unmet = [0] * number
    for source, target in edges:
        after[source].append(target)
        unmet[target] += 1
    layer = [0] * number
    done = [vertex for vertex in range(number) if not unmet[vertex]]
    for vertex in done:  # grows while it is walked
        for target in after[vertex]:
            layer[target] = max(layer[target], layer[vertex] + 1)
            unmet[target] -= 1
            if not unmet[target]:
                done.append(target)
    if len(done) != number:
        raise ValueError("the graph has a cycle")
    return layer


def _nearest(wanted: list[float], offsets: list[float]) -> list[float]:
    """The positions nearest to ``wanted`` (least squares) that keep order and distances: pool adjacent violators."""
    blocks: list[tuple[float, int]] = []
    for wish, offset in zip(wanted, offsets, strict=True):
        mean, size = wish - offset, 1
        while blocks and blocks[-1][0] > mean:
            other, other_size = blocks.pop()
            mean, size = (mean * size + other * other_size) / (size + other_size), size + other_size
        blocks.append((mean, size))
    flat = [mean for mean, size in blocks for _ in range(size)]
    return [mean + offset for mean, offset in zip(flat, offsets, strict=True)]
