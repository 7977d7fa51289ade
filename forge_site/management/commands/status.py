"""forge status"""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from typing import Any

from rich.table import Table
from rich.text import Text

from core.models import AttentionItem
from forge_site.management.base import ForgeCommand, console, graph_named
from forge_site.progress import picture, state_text
from forge_site.runtime import is_running, web_address
from graphs.models import Graph, Node
from graphs.states import GraphState
from jobs.models import Attempt
from jobs.states import ATTEMPT_ON_HOST


class Command(ForgeCommand):
    help = "What runs, what waits, what needs a person. With a graph: its nodes."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("graph", nargs="?", help="name, name#run or number")

    def handle(self, *args: Any, **options: Any) -> None:
        out = console()
        if options["graph"]:
            out.print(picture(graph_named(options["graph"])))
            return
        runtime = f"runs at {web_address()}" if is_running() else "[yellow]does not run[/] (start it with `forge up`)"
        out.print(f"runtime   {runtime}", soft_wrap=True)
        out.print(f"attempts  {Attempt.objects.filter(state__in=ATTEMPT_ON_HOST).count()} running")
        for item in AttentionItem.objects.filter(resolved_at=None)[:20]:
            out.print(
                Text.assemble(
                    ("attention ", "bold red"),
                    f"{item.message}\n          {item.next_action}",
                    (f"  [{item.code}]", "dim"),
                )
            )
        active = Graph.objects.filter(state=GraphState.ACTIVE).select_related("project")
        recent = Graph.objects.exclude(state=GraphState.ACTIVE).select_related("project")[:5]
        table = Table("no.", "graph", "project", "state", "nodes", box=None)
        for graph in [*active, *recent]:
            counts = Counter(Node.objects.filter(graph=graph).values_list("state", flat=True))
            nodes = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
            table.add_row(str(graph.pk), str(graph), graph.project.name, state_text(graph.state), nodes)
        if table.row_count:
            out.print()
            out.print(table)
