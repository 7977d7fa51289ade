"""forge retry"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from forge_site.management.base import ForgeCommand, failed_nodes, label, node_named, principal
from graphs.services import retry_node


class Command(ForgeCommand):
    help = (
        "Let a failed node try again, with all its revisions anew; what was skipped because of it waits again, and the graph\n"
        "is active again. Look at `forge explain` and `forge logs` first."
    )
    examples = ("forge retry add", "forge retry calculator#2/add")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node", help="key, or graph/key")

    def handle(self, *args: Any, **options: Any) -> None:
        node = node_named(options["node"], among=failed_nodes(), wanted="failed")
        retry_node(project_id=node.project_id, node_id=node.pk, actor=principal())
        self.stdout.write(f"{label(node.graph)}/{node.key} is tried again; follow it with: forge watch {node.graph_id}")
