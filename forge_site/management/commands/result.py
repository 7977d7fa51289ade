"""forge result"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from core.files import write_atomically
from core.home import home
from forge_site.management.base import ForgeCommand, graph_named
from graphs.selectors import result


class Command(ForgeCommand):
    help = "The result document of a graph. It is also written to a file, whose name comes first."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("graph", help="name, name#run or number")
        parser.add_argument("--json", action="store_true", help="print the document instead of the file's name")
        parser.add_argument(
            "--output", type=Path, help="where to write it (default: results/<number>/result.json in the home)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        graph = graph_named(options["graph"])
        text = json.dumps(result(graph), indent=2)
        if options["json"]:
            self.stdout.write(text)
            return
        path = options["output"] or home().results / str(graph.pk) / "result.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode(), mode=0o644)
        self.stdout.write(str(path))
