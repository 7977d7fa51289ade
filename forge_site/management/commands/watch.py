"""forge watch"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from forge_site.failures import EXIT_DETACHED, EXIT_FAILED
from forge_site.management.base import ForgeCommand, graph_named, label
from forge_site.progress import follow
from forge_site.results import write_result
from forge_site.runtime import is_running
from graphs.states import GraphState


class Command(ForgeCommand):
    help = (
        "Follow a graph until it ends: a live table in a terminal, a line per change elsewhere, from the beginning on.\n"
        "Ctrl-C leaves the graph alone. Exit: 0 completed, 1 ended otherwise, 130 left before the end."
    )
    examples = ("forge watch calculator", "forge watch calculator#2 | tee progress.log")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("graph", help="name, name#run or number")

    def handle(self, *args: Any, **options: Any) -> None:
        graph = graph_named(options["graph"])
        try:
            if graph.state == GraphState.ACTIVE and not is_running():
                self.out.print("No runtime is running: start `forge up` and the work goes on.", style="yellow")
            state = follow(graph, self.out)
        except KeyboardInterrupt:
            self.out.print(f"\nLeft; the graph goes on. forge watch {graph.pk} follows it again.")
            sys.exit(EXIT_DETACHED)
        self.out.print(f"graph {label(graph)} {state}   result: {write_result(graph)}", soft_wrap=True)
        if state != GraphState.COMPLETED:
            sys.exit(EXIT_FAILED)
