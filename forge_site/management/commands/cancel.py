"""forge cancel"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from forge_site.management.base import ForgeCommand, graph_named, node_named, principal
from graphs.services import GraphNotFound, cancel_graph, cancel_node


class Command(ForgeCommand):
    help = "End a graph or a node: nothing new starts, what runs is stopped, what waits leaves the line. What has landed stays."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("what", help="a graph (name, name#run, number) or a node (graph/key, or key)")
        parser.add_argument("--reason", default="", help="recorded with the intent")

    def handle(self, *args: Any, **options: Any) -> None:
        what, reason = options["what"], options["reason"]
        try:
            if "/" in what:
                raise GraphNotFound
            graph = graph_named(what)
        except GraphNotFound:
            node = node_named(what)
            answer = cancel_node(project_id=node.project_id, node_id=node.pk, actor=principal(), reason=reason)
            name = f"{node.graph}/{node.key}"
        else:
            answer = cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor=principal(), reason=reason)
            name = str(graph)
        self.stdout.write(f"{name}: cancel recorded" if answer.accepted else f"{name}: cancel was recorded before")
        for key in answer.landing:
            self.stdout.write(f"  {key}: already_landing, it is completed first")
