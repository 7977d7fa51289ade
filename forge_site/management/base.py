"""What Forge's commands share: how they look, how they fail, and how things are named."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandParser
from django.db import connection
from django.db.models import QuerySet
from rich.console import Console

from core.errors import InvalidInput
from core.home import home
from core.names import did_you_mean
from forge_site.failures import EXIT_REFUSED, printable
from graphs.models import Graph, Node
from graphs.selectors import GraphAmbiguous, newest_node
from graphs.services import GraphNotFound, NodeNotFound
from graphs.states import ENDED, NodeState
from recovery.hosts import NotInitialised

SOCKET_PATH_LIMIT = 107  # bytes of a unix socket's name; those of a home are in wake.d
LONGEST_SOCKET = "cluster-4194304.sock"
WIDE = 1000  # columns where nobody looks at a terminal: nothing is cut or wrapped


class HomePathTooLong(InvalidInput):
    """The sockets of this home would have names the kernel does not take. Choose a shorter FORGE_HOME."""

    code = "home_path_too_long"


class Out(Console):
    """A terminal, or plain lines: no markup (names may hold brackets), no escape codes, nothing wrapped in a pipe."""

    def __init__(self, file: Any) -> None:
        is_terminal = file.isatty()
        super().__init__(
            file=file, markup=False, highlight=False, emoji=False, width=None if is_terminal else WIDE, safe_box=False
        )
        self.is_live = is_terminal and not self.is_dumb_terminal  # may be drawn over

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class _Help(argparse.RawDescriptionHelpFormatter):
    """Examples keep their lines."""


class ForgeParser(CommandParser):
    """Refuses as everything refuses: one line, a code, exit 2."""

    def error(self, message: str) -> NoReturn:
        if not self.called_from_command_line:
            super().error(message)
        print(f"error: {printable(message)}; `{self.prog} --help` explains it [usage]", file=sys.stderr)
        sys.exit(EXIT_REFUSED)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed = super().parse_args(args, namespace)
        for name, value in vars(parsed).items():
            for text in value if isinstance(value, list | tuple) else [value]:
                if isinstance(text, str) and not _is_text(text):
                    self.error(f"{name} is not valid UTF-8")
        return parsed


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class ForgeCommand(BaseCommand):
    """One of Forge's own commands.

    help:       what it does, and what a person should know about it
    examples:   lines for the end of its help
    needs_home: refuse where `forge init` has not been
    """

    requires_system_checks: list[str] = []
    requires_migrations_checks = False
    examples: tuple[str, ...] = ()
    needs_home = True

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Only what this command takes; Django's own options stay available without filling its help."""
        lines = "\n".join(["examples:", *(f"  {line}" for line in self.examples)]) if self.examples else None
        parser = ForgeParser(
            prog=f"forge {subcommand}",
            description=self.help,
            epilog=lines,
            formatter_class=_Help,
            allow_abbrev=False,
            called_from_command_line=getattr(self, "_called_from_command_line", None),
        )
        hidden = argparse.SUPPRESS
        parser.add_argument("--version", action="version", version=self.get_version(), help=hidden)
        parser.add_argument("-v", "--verbosity", default=1, type=int, choices=[0, 1, 2, 3], help=hidden)
        parser.add_argument("--settings", help=hidden)
        parser.add_argument("--pythonpath", help=hidden)
        parser.add_argument("--traceback", action="store_true", help=hidden)
        parser.add_argument("--no-color", action="store_true", help=hidden)
        parser.add_argument("--force-color", action="store_true", help=hidden)
        self.add_arguments(parser)
        return parser

    def execute(self, *args: Any, **options: Any) -> str | None:
        if self.needs_home:
            require_home()
        return super().execute(*args, **options)

    @cached_property
    def out(self) -> Out:
        return Out(self.stdout._out)


def require_home() -> None:
    """Look before any database is opened: SQLite would make an empty file where there is none.

    Raises: NotInitialised, HomePathTooLong
    """
    place = home()
    require_short(place.wake_dir)
    database = str(connection.settings_dict["NAME"])
    if not place.node_file.is_file() or (connection.vendor == "sqlite" and not Path(database).exists()):
        raise NotInitialised(
            f"{place.root} is no Forge home: run `forge init`, or set FORGE_HOME to yours.", home=str(place.root)
        )


def require_short(wake_dir: Path) -> None:
    """Raises: HomePathTooLong."""
    longest = len(os.fsencode(wake_dir / LONGEST_SOCKET))
    if longest > SOCKET_PATH_LIMIT:
        raise HomePathTooLong(
            f"FORGE_HOME {wake_dir.parent} is {longest - SOCKET_PATH_LIMIT} bytes too long for the names of its sockets",
            home=str(wake_dir.parent),
        )


def principal() -> str:
    try:
        return f"console:{getpass.getuser()}"
    except (KeyError, OSError):  # a user without name, as in many containers
        return f"console:uid{os.getuid()}"


def require_length(text: str, limit: int, *, what: str) -> str:
    """Raises: InvalidInput, where the database would."""
    if len(text) > limit:
        raise InvalidInput(f"{what} has {len(text)} characters; at most {limit} are kept")
    return text


# --- how things are named ---------------------------------------------------------------------------------------------


def label(graph: Graph) -> str:
    """`calculator#2`: what can be typed again."""
    return f"{graph.name}#{graph.run}"


def graph_named(name: str) -> Graph:
    """`name` (its newest run), `name#run`, or a number. Raises: GraphNotFound, GraphAmbiguous."""
    graphs = Graph.objects.select_related("project").defer("document")
    is_number = name.isascii() and name.isdecimal()
    if is_number and len(name) < 19 and (found := graphs.filter(pk=int(name)).first()):
        return found
    key, has_run, run = (part.strip() for part in name.partition("#"))
    matching = graphs.filter(name=key).order_by("-id")
    if has_run:
        is_run = run.isascii() and run.isdecimal() and len(run) < 10
        matching = matching.filter(run=int(run)) if is_run else matching.none()
    newest = _one_project(list(matching[:50]), name)
    if newest is None:
        what = f"graph number {name}" if is_number else f"graph {name!r}"
        raise GraphNotFound(f"There is no {what}.{_newest_graphs(name)}", name=name)
    return newest


def _one_project(graphs: list[Graph], name: str) -> Graph | None:
    """The newest, if they are runs of one graph. Projects name their graphs independently of each other."""
    by_project: dict[str, Graph] = {}
    for graph in graphs:
        by_project.setdefault(graph.project.name, graph)
    if len(by_project) > 1:
        choices = ", ".join(f"{graph.pk} ({project}, {graph.state})" for project, graph in by_project.items())
        raise GraphAmbiguous(f"{name!r} is a graph of several projects; name it by its number: {choices}.", name=name)
    return graphs[0] if graphs else None


def _newest_graphs(name: str) -> str:
    newest = Graph.objects.order_by("-id")[:200]
    known = [f"{name}#{run}" for name, run in newest.values_list("name", "run")] if "#" in name else []
    return did_you_mean(name, [*newest.values_list("name", flat=True), *known], what="graphs")


def node_named(name: str, *, among: QuerySet[Node] | None = None, wanted: str = "") -> Node:
    """`graph/key`, or `key` in the newest graph that has such a node.

    among, wanted: for verbs that change something: only these nodes can be meant (`failed`); several are refused
    Raises: GraphNotFound, GraphAmbiguous, NodeNotFound
    """
    graph_name, _, key = name.rpartition("/")
    if graph_name:
        graph = graph_named(graph_name)
        node = newest_node(graph, key)
        if node is None:
            keys = list(graph.nodes.order_by("position").values_list("key", flat=True))
            hint = did_you_mean(key, keys, what="nodes")
            raise NodeNotFound(f"Graph {label(graph)} has no node {key!r}.{hint}", name=name)
        return node
    matching = Node.objects.filter(key=key).select_related("graph", "project").defer("graph__document")
    newest = matching.order_by("-graph_id", "-generation").first()
    if newest is None:
        keys = list(Node.objects.order_by("-graph_id", "position").values_list("key", flat=True)[:2000])
        raise NodeNotFound(f"No graph has a node {key!r}.{did_you_mean(key, keys, what='nodes')}", name=name)
    if among is not None:
        meant = list(among.filter(key=key).select_related("graph", "project").order_by("-graph_id")[:10])
        if len(meant) > 1:
            choices = ", ".join(f"{node.graph_id}/{node.key} (in {label(node.graph)})" for node in meant)
            raise GraphAmbiguous(f"{key!r} is {wanted} in several graphs; name one: {choices}.", name=name)
        return meant[0] if meant else newest
    return newest


def open_nodes() -> QuerySet[Node]:
    return Node.objects.exclude(state__in=ENDED)


def failed_nodes() -> QuerySet[Node]:
    return Node.objects.filter(state=NodeState.FAILED)
