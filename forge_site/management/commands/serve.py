"""``forge serve``: the web process alone. ``forge up`` starts it together with the cluster."""

from __future__ import annotations

import logging
import os
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from core.errors import InvalidInput


class Command(BaseCommand):
    help = "Serve dashboard, REST API and live feed until SIGTERM. The real address is in web.json in the Forge home."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--bind", help="host:port; port 0 takes a free one (default: FORGE_BIND)")

    def handle(self, *args: Any, bind: str | None = None, **options: Any) -> None:
        from forge_site import server  # it installs Twisted's reactor: not before this command is really meant

        try:
            server.serve(bind or server.default_bind())
        except InvalidInput as error:
            raise CommandError(str(error)) from error
        # Worker threads of interrupted requests may still wait for the database; the interpreter would wait for them.
        logging.shutdown()
        os._exit(0)
