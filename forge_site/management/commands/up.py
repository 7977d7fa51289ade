"""forge up"""

from __future__ import annotations

import errno
import select
import socket
import time
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from core.errors import Conflict, InvalidInput
from core.home import home
from forge_site.launcher import Launcher
from forge_site.management.base import ForgeCommand
from forge_site.runtime import is_running, parse_bind, web_address
from jobs.models import Attempt
from jobs.states import ATTEMPT_ON_HOST
from recovery.hosts import NotInitialised, RuntimeRunning

PORT_FREE_WITHIN_S = 3.0  # a runtime that was killed just now lets go of its port a moment later
LOOK_AGAIN_S = 0.05


class PortTaken(Conflict):
    """Another program listens on this port. Stop it, or choose another with --bind."""

    code = "port_taken"


class AddressUnusable(InvalidInput):
    """The address cannot be listened on. Correct --bind or FORGE_BIND."""

    code = "address_unusable"


class DatabaseNotMigrated(NotInitialised):
    """The database is not that of this version of Forge. Run `forge init`, which brings it up to date."""

    code = "database_not_migrated"


class Command(ForgeCommand):
    help = (
        "Start the runtime of this host in the foreground: web pages, scheduler, supervisor. It prints the address of the\n"
        "pages and a link that logs in once. Ctrl-C stops it; jobs that run go on, and the next start takes them over.\n"
        "There is one runtime per home."
    )
    examples = (
        "forge up",
        "forge up --bind 127.0.0.1:0    any free port",
        "forge up --bind 0.0.0.0:8420   reachable from other machines; set FORGE_ALLOWED_HOSTS as well",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--bind",
            default=settings.FORGE_BIND,
            metavar="ADDRESS:PORT",
            help=f"default {settings.FORGE_BIND}; port 0 takes a free one",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        bind = options["bind"]
        if is_running():
            address = f" at {web_address()}" if web_address() else ""
            raise RuntimeRunning(
                f"A runtime of {home().root} runs already{address}; stop it, or use another FORGE_HOME.",
                home=str(home().root),
            )
        require_migrated()
        require_free(*parse_bind(bind))
        Launcher(self._say, bind=bind).run()
        running = Attempt.objects.filter(state__in=ATTEMPT_ON_HOST).count()
        self._say(
            "Forge has stopped." + (f" {running} attempts go on; `forge up` takes them over again." if running else "")
        )

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


def require_migrated() -> None:
    """Raises: DatabaseNotMigrated."""
    executor = MigrationExecutor(connection)
    if due := executor.migration_plan(executor.loader.graph.leaf_nodes()):
        raise DatabaseNotMigrated(
            f"The database lacks {len(due)} changes of this version of Forge: `forge init` brings it up to date.",
            due=[str(migration) for migration, _ in due],
        )


def require_free(host: str, port: int) -> None:
    """Whether the web process could listen there; it would only be restarted again and again.

    Raises: PortTaken, AddressUnusable
    """
    give_up = time.monotonic() + PORT_FREE_WITHIN_S
    while (problem := _cannot_listen(host, port)) is not None:
        if problem.errno != errno.EADDRINUSE:
            raise AddressUnusable(f"{host}:{port} cannot be listened on: {problem.strerror}.", host=host, port=port)
        if time.monotonic() > give_up:
            raise PortTaken(
                f"Another program listens on {host}:{port}; stop it, or choose another port with --bind.",
                host=host,
                port=port,
            )
        select.select([], [], [], LOOK_AGAIN_S)


def _cannot_listen(host: str, port: int) -> OSError | None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the web process does
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return error
    return None
