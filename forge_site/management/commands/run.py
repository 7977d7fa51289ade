"""forge run"""

from __future__ import annotations

import sys
import uuid
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from forge_site.management.base import EXIT_FAILED, ForgeCommand, console, principal
from forge_site.progress import follow
from forge_site.runtime import is_running
from graphs.flows import read_document, submit
from graphs.states import GraphState


class Command(ForgeCommand):
    help = (
        "Admit a graph document and follow it. Ctrl-C detaches, the work goes on. Exit: 0 completed, 1 not, 2 refused."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="YAML or JSON; `forge plan_contract` prints its schema")
        parser.add_argument(
            "--request-id",
            default="",
            help="submitting the same document under the same id again finds the graph it made before",
        )
        parser.add_argument("--detach", action="store_true", help="admit only; print how to follow")

    def handle(self, *args: Any, **options: Any) -> None:
        out = console()
        document = read_document(options["file"])
        graph = submit(document, principal=principal(), request_id=options["request_id"] or f"run:{uuid.uuid4()}")
        out.print(f"graph {graph} admitted as number {graph.pk}: {len(document.nodes)} nodes, {graph.execution_mode}")
        if not is_running():
            out.print("[yellow]No runtime is running: start `forge up` and the work begins.[/]")
        if options["detach"]:
            _say_how_to_go_on(graph.pk, out)
            return
        try:
            state = follow(graph, out)
        except KeyboardInterrupt:
            out.print("\nDetached; the work goes on.")
            _say_how_to_go_on(graph.pk, out)
            return
        out.print(f"graph {graph} {state}   (result: forge result {graph.pk})")
        if state != GraphState.COMPLETED:
            sys.exit(EXIT_FAILED)


def _say_how_to_go_on(number: int, out: Any) -> None:
    out.print(f"  watch    forge watch {number}")
    out.print(f"  result   forge result {number}")
    out.print(f"  cancel   forge cancel {number}")
