"""forge init"""

from __future__ import annotations

import os
import secrets
from argparse import ArgumentParser
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection

from core.files import write_atomically
from core.home import home
from forge_site.management.base import ForgeCommand, require_length, require_short
from recovery.hosts import name_this_host, register_host

USER_LENGTH = 150


class Command(ForgeCommand):
    help = (
        "Make a Forge home: directory, secret key, database, this host, and a first user. FORGE_HOME says where (default\n"
        "~/.forge), DATABASE_URL may name a PostgreSQL database instead of the SQLite file in the home. Running it again\n"
        "changes nothing, and after an upgrade of Forge it brings the database up to date."
    )
    examples = (
        "forge init",
        "FORGE_HOME=/srv/forge DATABASE_URL=postgresql://forge@db/forge forge init",
    )
    needs_home = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--user", default=os.environ.get("USER") or "forge", help="name of the first user (default: yours)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        place = home()
        user = require_length(options["user"], USER_LENGTH, what="--user")
        require_short(place.wake_dir)
        if connection.vendor != "sqlite":
            connection.ensure_connection()  # before anything is made: a wrong DATABASE_URL leaves no half of a home
        for directory in (place.root, place.jobs, place.checkouts, place.results, place.wake_dir, place.logs):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (place.root / "secret_key").exists():
            write_atomically(place.root / "secret_key", secrets.token_urlsafe(50).encode())
        call_command("migrate", interactive=False, verbosity=0)
        host = register_host(name=name_this_host())
        users = get_user_model().objects
        if not users.filter(is_superuser=True).exists():
            users.create_superuser(username=user, password=None)  # enters by the link that `forge up` prints
        self.stdout.write(f"home      {place.root}")
        self.stdout.write(f"host      {host.name}")
        self.stdout.write(
            "next      `forge up` in one terminal, then `forge project add NAME PATH` and `forge run FILE`"
        )
