"""forge init"""

from __future__ import annotations

import os
import secrets
from argparse import ArgumentParser
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command

from core.files import write_atomically
from core.home import home
from forge_site.management.base import ForgeCommand, console
from recovery.hosts import name_this_host, register_host


class Command(ForgeCommand):
    help = "Make a Forge home: directory, secret key, database, this host, and a first user. Running it again changes nothing."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--user", default=os.environ.get("USER") or "forge", help="name of the first user (default: yours)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        place = home()
        for directory in (place.root, place.jobs, place.checkouts, place.results, place.wake_dir, place.logs):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (place.root / "secret_key").exists():
            write_atomically(place.root / "secret_key", secrets.token_urlsafe(50).encode())
        call_command("migrate", interactive=False, verbosity=0)
        host = register_host(name=name_this_host())
        users = get_user_model().objects
        if not users.filter(is_superuser=True).exists():
            users.create_superuser(username=options["user"], password=None)  # enters by the link that `forge up` prints
        out = console()
        out.print(f"home      {place.root}", soft_wrap=True)
        out.print(f"host      {host.name}")
        out.print(
            "next      [bold]forge up[/] in one terminal, then [bold]forge project add NAME PATH[/] and [bold]forge run FILE[/]"
        )
