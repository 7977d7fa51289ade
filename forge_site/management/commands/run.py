"""forge run"""

from __future__ import annotations

import sys
import uuid
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from forge_site.failures import EXIT_DETACHED, EXIT_FAILED
from forge_site.management.base import ForgeCommand, label, principal, require_length
from forge_site.progress import follow
from forge_site.results import write_result
from forge_site.runtime import is_running
from graphs.flows import read_document, submit
from graphs.models import Graph
from graphs.selectors import graph_of_request
from graphs.states import GraphState

REQUEST_ID_LENGTH = 200


class Command(ForgeCommand):
    help = (
        "Admit a graph document and follow it until its graph has ended. The document is checked as a whole first; if\n"
        "anything is wrong with it, with the project or with the repository, nothing is written.\n\n"
        "Ctrl-C detaches: the work goes on, and it says how to follow, inspect or cancel it.\n"
        "Exit: 0 completed, 1 ended otherwise, 2 refused, 130 detached."
    )
    examples = (
        "forge run greetings.yaml",
        "forge run greetings.yaml --detach            admit only",
        "forge run greetings.yaml --request-id ci-42  the same document again finds the graph it made before",
        "generate | forge run -                       from the standard input",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "file", type=Path, help="YAML or JSON, - for stdin; `forge plan_contract` prints its schema"
        )
        parser.add_argument(
            "--request-id",
            default="",
            metavar="ID",
            help="submitting the same document under the same id again finds the graph it made before",
        )
        parser.add_argument("--detach", action="store_true", help="admit only; print how to follow")

    def handle(self, *args: Any, **options: Any) -> None:
        request_id = require_length(options["request_id"], REQUEST_ID_LENGTH, what="--request-id")
        request_id = request_id or f"run:{uuid.uuid4()}"
        graph = None
        try:
            document = read_document(options["file"])
            known = graph_of_request(principal(), request_id)
            graph = submit(document, principal=principal(), request_id=request_id)
            self._say_admitted(graph, len(document.nodes), again=known is not None)
            if options["detach"]:
                self._say_how_to_go_on(graph)
                return
            state = follow(graph, self.out)
        except KeyboardInterrupt:
            graph = graph or graph_of_request(principal(), request_id)  # the commit may just have gone through
            self.out.print("\nDetached; the work goes on." if graph else "\nInterrupted; nothing was admitted.")
            if graph:
                self._say_how_to_go_on(graph)
            sys.exit(EXIT_DETACHED)
        self.out.print(f"graph {label(graph)} {state}   result: {write_result(graph)}", soft_wrap=True)
        if state != GraphState.COMPLETED:
            sys.exit(EXIT_FAILED)

    def _say_admitted(self, graph: Graph, nodes: int, *, again: bool) -> None:
        how = "was admitted before" if again else "admitted"
        self.out.print(f"graph {label(graph)} {how} as number {graph.pk}: {nodes} nodes, {graph.execution_mode}")
        if graph.state == GraphState.ACTIVE and not is_running():
            self.out.print("No runtime is running: start `forge up` and the work begins.", style="yellow")

    def _say_how_to_go_on(self, graph: Graph) -> None:
        self.out.print(f"  watch    forge watch {graph.pk}")
        self.out.print(f"  result   forge result {graph.pk}")
        self.out.print(f"  cancel   forge cancel {graph.pk}")
