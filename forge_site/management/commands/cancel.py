"""forge cancel"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from forge_site.management.base import (
    ForgeCommand,
    graph_named,
    label,
    node_named,
    open_nodes,
    principal,
    require_length,
)
from graphs.services import GraphNotFound, NodeNotFound, cancel_graph, cancel_node
from graphs.states import GraphState

REASON_LENGTH = 500


class Command(ForgeCommand):
    help = (
        "End a graph or a node: nothing new starts, what runs is stopped (politely, then by force), what waits leaves the\n"
        "line. What has landed stays, and a landing that has begun is completed first. Nodes that need a cancelled node\n"
        "are skipped. Cancelling again changes nothing."
    )
    examples = (
        "forge cancel calculator               the newest run of this graph",
        "forge cancel calculator/add           one node",
        "forge cancel 12 --reason 'wrong base' the graph with this number",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("what", help="a graph (name, name#run, number) or a node (graph/key, or key)")
        parser.add_argument(
            "--reason", default="", help="recorded with the intent, shown wherever the node is explained"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        what = options["what"]
        reason = require_length(options["reason"], REASON_LENGTH, what="--reason")
        if "/" not in what:
            try:
                graph = graph_named(what)
            except GraphNotFound as no_graph:
                self._node(what, reason, no_graph)
                return
            if graph.state != GraphState.ACTIVE:
                self.stdout.write(f"{label(graph)} is {graph.state} already: there is nothing to cancel")
                return
            answer = cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor=principal(), reason=reason)
            self._say(label(graph), answer.accepted, answer.landing)
        else:
            self._node(what, reason)

    def _node(self, what: str, reason: str, no_graph: GraphNotFound | None = None) -> None:
        try:
            node = node_named(what, among=open_nodes(), wanted="at work")
        except NodeNotFound:
            if no_graph is None:
                raise
            if "#" in what or what.isdecimal():
                raise no_graph from None
            raise NodeNotFound(f"There is neither a graph nor a node {what!r}; `forge status` lists graphs.") from None
        name = f"{label(node.graph)}/{node.key}"
        if node.ended_at is not None:
            self.stdout.write(f"{name} is {node.state} already: there is nothing to cancel")
            return
        answer = cancel_node(project_id=node.project_id, node_id=node.pk, actor=principal(), reason=reason)
        self._say(name, answer.accepted, answer.landing)

    def _say(self, name: str, accepted: bool, landing: tuple[str, ...]) -> None:
        self.stdout.write(f"{name}: cancel recorded" if accepted else f"{name}: cancel was recorded before")
        for key in landing:
            self.stdout.write(f"  {key}: already_landing, it is completed first")
