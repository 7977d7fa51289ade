"""forge explain"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from forge_site.failures import printable
from forge_site.management.base import ForgeCommand, node_named
from forge_site.runtime import is_running
from graphs.selectors import explain


class Command(ForgeCommand):
    help = (
        "One sentence: what a node waits for, since when and what would free it, or why it ended as it did.\n"
        "It reads what the scheduler recorded when it decided; it never guesses."
    )
    examples = (
        "forge explain add",
        "forge explain calculator#2/add --json",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node", help="key, or graph/key")
        parser.add_argument("--json", action="store_true", help="the sentence with its code and the facts behind it")

    def handle(self, *args: Any, **options: Any) -> None:
        node = node_named(options["node"])
        answer = explain(node)
        running = is_running()
        if options["json"]:
            self.stdout.write(json.dumps({**answer, "runtime": running}, indent=2, default=str))
            return
        self.stdout.write(printable(answer["sentence"]))
        if not running and node.ended_at is None:
            self.stdout.write("No runtime is running: start `forge up` and the work goes on.")
