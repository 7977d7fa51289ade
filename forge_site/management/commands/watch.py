"""forge watch"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from forge_site.management.base import EXIT_FAILED, ForgeCommand, console, graph_named
from forge_site.progress import follow
from graphs.states import GraphState


class Command(ForgeCommand):
    help = "Follow a graph until it ends. Ctrl-C leaves it alone. Exit: 0 completed, 1 not."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("graph", help="name, name#run or number")

    def handle(self, *args: Any, **options: Any) -> None:
        out, graph = console(), graph_named(options["graph"])
        try:
            state = follow(graph, out)
        except KeyboardInterrupt:
            return
        out.print(f"graph {graph} {state}")
        if state != GraphState.COMPLETED:
            sys.exit(EXIT_FAILED)
