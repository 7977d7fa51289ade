"""The floor runs what it says it runs; it is measured by the benchmark, never here."""

from __future__ import annotations

import pytest

from jobs.process.floor import run_graph, run_graph_bare
from jobs.process.spawner import Spawner
from tests.jobs.process.conftest import Lab

GRAPH = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


@pytest.mark.processes
def test_both_floors_run_every_node_after_its_predecessors(lab: Lab) -> None:
    with Spawner(lab.home):
        shims = run_graph(GRAPH, parallelism=2, home=lab.home)
    bare = run_graph_bare(GRAPH, parallelism=2)

    for floor in (shims, bare):
        assert len(floor.latencies_s) == 3
        assert min(floor.latencies_s) > 0
        assert floor.wall_s > sum(sorted(floor.latencies_s)[-2:])


def test_independent_nodes_run_side_by_side(lab: Lab) -> None:
    floor = run_graph({number: [] for number in range(30)}, parallelism=20, home=lab.home)

    assert floor.latencies_s == []
    assert floor.wall_s > 0
