"""forge diff"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from core.errors import NotFound
from forge_site.management.base import ForgeCommand, node_named
from integration.models import Candidate
from workspaces.flows import repository_of

LIMIT = 1 << 20


class NoCandidate(NotFound):
    """The node has offered nothing yet."""

    code = "no_candidate"


class Command(ForgeCommand):
    help = "What a node's newest candidate changes, as a patch."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node", help="key, or graph/key")
        parser.add_argument("--stat", action="store_true", help="only the paths")

    def handle(self, *args: Any, **options: Any) -> None:
        node = node_named(options["node"])
        candidate = Candidate.objects.filter(owner=node.subject).exclude(commit="").order_by("-id").first()
        if candidate is None:
            raise NoCandidate(f"{node.key} has offered nothing yet")
        if options["stat"]:
            for path, *_ in candidate.changes:
                self.stdout.write(path)
            return
        text = repository_of(node.project).diff_text(candidate.base, candidate.commit, limit=LIMIT)
        self.stdout.write(text.text)
        if text.is_truncated:
            self.stderr.write(f"(cut at {LIMIT} bytes)")
