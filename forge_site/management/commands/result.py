"""forge result"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from forge_site.management.base import ForgeCommand, graph_named
from forge_site.results import write_result
from graphs.selectors import result


class Command(ForgeCommand):
    help = (
        "The result document of a graph: its status, every node with its attempts, times and outcome, what landed with the\n"
        "checks it passed. It is written to a file, whose name is printed; `forge run` writes the same at its end."
    )
    examples = (
        "forge result calculator",
        "forge result 12 --json | jq .status",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("graph", help="name, name#run or number")
        parser.add_argument("--json", action="store_true", help="print the document instead of the file's name")
        parser.add_argument(
            "--output",
            type=Path,
            metavar="FILE",
            help="where to write it (default: results/<number>/result.json in the home)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        graph = graph_named(options["graph"])
        if options["json"]:
            self.stdout.write(json.dumps(result(graph), indent=2))
            return
        self.stdout.write(str(write_result(graph, options["output"])))
