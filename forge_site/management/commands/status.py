"""forge status"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.db.models import Count
from rich.table import Table
from rich.text import Text

from core.models import AttentionItem, Project
from forge_site.failures import printable
from forge_site.management.base import ForgeCommand, graph_named, label
from forge_site.progress import picture, state_text
from forge_site.runtime import is_running, web_address
from graphs.models import Graph, Node
from graphs.states import GraphState
from jobs.models import Attempt
from jobs.states import AttemptState

ACTIVE_SHOWN, ENDED_SHOWN, ATTENTION_SHOWN = 20, 5, 10


class Command(ForgeCommand):
    help = (
        "What runs, what waits, what needs a person: the runtime, open attention items, active graphs and the latest ended\n"
        "ones. With a graph: its nodes, each with what it waits for."
    )
    examples = ("forge status", "forge status calculator", "forge status calculator#2")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("graph", nargs="?", help="name, name#run or number")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["graph"]:
            self.out.print(picture(graph_named(options["graph"]), self.out))
            return
        self._runtime()
        self._attention()
        self._graphs()

    def _runtime(self) -> None:
        address = web_address()
        words = (
            (f"runs at {address}" if address else "runs") if is_running() else "does not run (start it with `forge up`)"
        )
        self.out.print(Text.assemble("runtime   ", (words, "" if is_running() else "yellow")), soft_wrap=True)
        counts = dict(
            Attempt.objects.filter(state__in=[AttemptState.WAITING, AttemptState.RUNNING])
            .order_by()
            .values_list("state")
            .annotate(n=Count("pk"))
        )
        running, waiting = counts.get(AttemptState.RUNNING, 0), counts.get(AttemptState.WAITING, 0)
        self.out.print(f"attempts  {running} running, {waiting} waiting for leases")
        for project in Project.objects.exclude(frozen_reason=""):
            words = f"{project.name}: {printable(project.frozen_reason)}"
            self.out.print(Text.assemble(("frozen    ", "bold red"), words), soft_wrap=True)

    def _attention(self) -> None:
        waiting = AttentionItem.objects.filter(resolved_at=None)
        for item in waiting[:ATTENTION_SHOWN]:
            self.out.print(
                Text.assemble(
                    ("attention ", "bold red"), printable(item.message), (f"  [{item.code}]", "dim"),
                    f"\n          {printable(item.next_action)}",
                ),
                soft_wrap=True,
            )  # fmt: skip
        if (more := waiting.count() - ATTENTION_SHOWN) > 0:
            self.out.print(f"          and {more} more")

    def _graphs(self) -> None:
        graphs = Graph.objects.select_related("project").defer("document").order_by("-id")
        active = graphs.filter(state=GraphState.ACTIVE)
        shown = [*active[:ACTIVE_SHOWN], *graphs.exclude(state=GraphState.ACTIVE)[:ENDED_SHOWN]]
        if not shown:
            has_project = Project.objects.exists()
            first = "" if has_project else "`forge project add NAME PATH`, then "
            self.out.print(f"graphs    none yet: {first}`forge run FILE`")
            return
        counts: dict[int, list[str]] = {}
        rows = Node.objects.filter(graph__in=[graph.pk for graph in shown]).order_by()
        for graph_id, state, n in sorted(rows.values_list("graph_id", "state").annotate(n=Count("pk"))):
            counts.setdefault(graph_id, []).append(f"{n} {state}")
        table = Table("no.", "graph", "project", "state", "nodes", box=None, pad_edge=False)
        for graph in shown:
            nodes = ", ".join(counts.get(graph.pk, []))
            table.add_row(str(graph.pk), label(graph), graph.project.name, state_text(graph.state), nodes)
        self.out.print()
        self.out.print(table)
        if (more := active.count() - ACTIVE_SHOWN) > 0:
            self.out.print(f"and {more} more active graphs")
