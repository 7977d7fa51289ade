"""What Forge's commands share: one way to fail, and how things are named."""

from __future__ import annotations

import getpass
import sys
from typing import Any

from django.core.management.base import BaseCommand
from django.db import OperationalError, ProgrammingError
from rich.console import Console

from core.errors import ForgeError
from graphs.errors import DocumentInvalid
from graphs.models import Graph, Node
from graphs.selectors import newest_node
from graphs.services import GraphNotFound, NodeNotFound

EXIT_FAILED = 1  # the work did not end well
EXIT_REFUSED = 2  # the request was refused; nothing was written


class ForgeCommand(BaseCommand):
    """A command that prints errors of Forge as one line with their code, and nothing of Python's."""

    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def run_from_argv(self, argv: list[str]) -> None:
        try:
            super().run_from_argv(argv)
        except ForgeError as error:
            print_error(error)
            sys.exit(EXIT_REFUSED)
        except (OperationalError, ProgrammingError) as error:
            print(
                f"error: the database does not answer as expected: {str(error).strip().splitlines()[0]}",
                file=sys.stderr,
            )
            print("       run `forge init` first, or look at DATABASE_URL [database_unusable]", file=sys.stderr)
            sys.exit(EXIT_REFUSED)
        except BrokenPipeError:
            sys.exit(0)

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        """Only what this command takes; Django's own options stay available without filling its help."""
        parser = super().create_parser("forge" if prog_name.endswith("manage.py") else prog_name, subcommand, **kwargs)
        for action in parser._actions:
            if {
                "--settings",
                "--pythonpath",
                "--traceback",
                "--no-color",
                "--force-color",
                "--skip-checks",
                "--version",
                "--verbosity",
            } & set(action.option_strings):
                action.help = "==SUPPRESS=="
        return parser


def print_error(error: ForgeError) -> None:
    """One line with the code; a document's problems one line each."""
    if isinstance(error, DocumentInvalid):
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return
    print(f"error: {error} [{error.code}]", file=sys.stderr)
    for path in error.data.get("paths", [])[:20]:
        print(f"       {path}", file=sys.stderr)


def principal() -> str:
    return f"console:{getpass.getuser()}"


def graph_named(name: str) -> Graph:
    """`name` (its newest run), `name#run`, or a number. Raises: GraphNotFound."""
    graphs = Graph.objects.select_related("project")
    if name.isdigit():
        found = graphs.filter(pk=int(name)).first()
    else:
        key, _, run = name.partition("#")
        matching = graphs.filter(name=key, **({"run": int(run)} if run.isdigit() else {}))
        found = matching.order_by("-id").first()
    if found is None:
        raise GraphNotFound(f"There is no graph {name!r}.", name=name)
    return found


def node_named(name: str) -> Node:
    """`graph/key`, or `key` in the newest graph that has such a node. Raises: GraphNotFound, NodeNotFound."""
    graph_name, _, key = name.rpartition("/")
    if graph_name:
        graph = graph_named(graph_name)
        node = newest_node(graph, key)
        if node is None:
            keys = ", ".join(graph.nodes.order_by("position").values_list("key", flat=True)[:20])
            raise NodeNotFound(f"Graph {graph} has no node {key!r}; it has: {keys}.", name=name)
    else:
        node = Node.objects.filter(key=key).order_by("-graph_id", "-generation").first()
        if node is None:
            raise NodeNotFound(f"No graph has a node {key!r}.", name=name)
    return node


def console() -> Console:
    return Console(highlight=False)
