"""forge up"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.conf import settings

from forge_site.launcher import Launcher
from forge_site.management.base import ForgeCommand
from jobs.models import Attempt
from jobs.states import ATTEMPT_ON_HOST


class Command(ForgeCommand):
    help = "Start the runtime of this host in the foreground: web pages, scheduler, supervisor. Ctrl-C stops it; jobs go on."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--bind",
            default=settings.FORGE_BIND,
            metavar="ADDRESS:PORT",
            help=f"default {settings.FORGE_BIND}; port 0 takes a free one",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        Launcher(self._say, bind=options["bind"]).run()
        running = Attempt.objects.filter(state__in=ATTEMPT_ON_HOST).count()
        self._say(
            "Forge has stopped." + (f" {running} attempts go on; `forge up` takes them over again." if running else "")
        )

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
