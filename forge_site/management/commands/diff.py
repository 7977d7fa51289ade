"""forge diff"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from rich.text import Text

from core.errors import NotFound
from forge_site.failures import printable
from forge_site.management.base import ForgeCommand, label, node_named
from graphs.documents import node_from_spec
from graphs.models import Node
from integration.models import Candidate
from workspaces.flows import repository_of

LIMIT = 1 << 20
LOOK = {"+": "green", "-": "red", "@": "cyan"}


class NoCandidate(NotFound):
    """The node has offered nothing yet."""

    code = "no_candidate"


class Command(ForgeCommand):
    help = (
        "What a node's newest candidate changes, as a patch: what it offers, or what it has landed. The commits stay pinned\n"
        "under refs/forge/, so this works after a failed check or a cancel as well."
    )
    examples = (
        "forge diff add                  of the newest graph that has this node",
        "forge diff calculator/add --stat",
        "forge diff add | git apply      take it over by hand",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node", help="key, or graph/key")
        parser.add_argument("--stat", action="store_true", help="only the paths, one a line")

    def handle(self, *args: Any, **options: Any) -> None:
        node = node_named(options["node"])
        candidate = Candidate.objects.filter(owner=node.subject).exclude(commit="").order_by("-id").first()
        if candidate is None:
            raise NoCandidate(_why_none(node), node=node.key)
        if options["stat"]:
            for path, *_ in candidate.changes:
                self.stdout.write(printable(path))
            return
        text = repository_of(node.project).diff_text(candidate.base, candidate.commit, limit=LIMIT)
        if self.out.is_terminal:
            for line in text.text.splitlines():
                self.out.print(
                    Text(printable(line.replace("\t", "    ")), style=LOOK.get(line[:1], "")), soft_wrap=True
                )
        else:
            self.stdout.write(text.text, ending="")
        if text.is_truncated:
            self.stderr.write(f"(cut at {LIMIT} bytes; git diff {candidate.base} {candidate.commit} shows it all)")
        elif not text.text:
            self.stderr.write(f"{node.key} changed nothing")


def _why_none(node: Node) -> str:
    name = f"{label(node.graph)}/{node.key}"
    if not node_from_spec(node.spec).own_workspace:
        return f"{name} works in the shared workspace and offers no candidate; look at the workspace itself."
    refused = Candidate.objects.filter(owner=node.subject).order_by("-id").first()
    if refused is not None and refused.refusal:
        return f"What {name} left was refused: {refused.refusal['message']}."
    return f"{name} is {node.state} and has offered nothing yet."
