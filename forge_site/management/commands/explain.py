"""forge explain"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from forge_site.management.base import ForgeCommand, node_named
from graphs.selectors import explain


class Command(ForgeCommand):
    help = "One sentence: what a node waits for, or why it ended as it did."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node", help="key, or graph/key")
        parser.add_argument("--json", action="store_true", help="the facts behind the sentence")

    def handle(self, *args: Any, **options: Any) -> None:
        answer = explain(node_named(options["node"]))
        self.stdout.write(json.dumps(answer, indent=2, default=str) if options["json"] else answer["sentence"])
