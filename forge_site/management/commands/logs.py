"""forge logs"""

from __future__ import annotations

import select
import sys
from argparse import ArgumentParser
from typing import Any

from core import wake
from core.errors import NotFound
from core.home import home
from forge_site.management.base import ForgeCommand, node_named
from graphs.selectors import newest_attempt
from jobs.models import Attempt
from jobs.process import output
from jobs.states import ATTEMPT_ENDED

POLL_S = 0.2


class NoOutput(NotFound):
    """The node has not been tried yet."""

    code = "no_output"


class Command(ForgeCommand):
    help = "What a node's newest attempt has written. Very long output keeps its beginning and its end."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node", help="key, or graph/key")
        parser.add_argument("-f", "--follow", action="store_true", help="go on until the attempt has ended")
        parser.add_argument("--stderr", action="store_true", help="the error stream instead of the output")
        parser.add_argument("--attempt", type=int, help="an earlier attempt, by number")

    def handle(self, *args: Any, **options: Any) -> None:
        node = node_named(options["node"])
        attempt = newest_attempt(node)
        if options["attempt"] is not None:
            attempt = (
                Attempt.objects.filter(job__owner=node.subject)
                .order_by("pk")[options["attempt"] - 1 : options["attempt"]]
                .first()
            )
        if attempt is None:
            raise NoOutput(f"{node.key} has not been tried yet")
        jobdir = home().jobs / str(attempt.pk)
        stream: output.Stream = "stderr" if options["stderr"] else "stdout"
        if not options["follow"]:
            total = attempt.evidence.get("output", {}).get(stream)
            sys.stdout.write(output.read(jobdir, stream, total=total).text())
            return
        offset = 0
        with wake.WakeSocket(wake.FEED) as socket:
            while True:
                attempt.refresh_from_db()
                ended = attempt.state in ATTEMPT_ENDED
                while (chunk := output.read_from(jobdir, stream, offset)).data:
                    if chunk.skipped:
                        sys.stdout.write(f"\n… {chunk.skipped} bytes dropped …\n")
                    sys.stdout.write(chunk.data.decode(errors="replace"))
                    offset = chunk.next_offset
                sys.stdout.flush()
                if ended:
                    return
                select.select([socket], [], [], POLL_S)
                socket.drain()
