"""forge logs"""

from __future__ import annotations

import codecs
import select
from argparse import ArgumentParser
from typing import Any

from core import wake
from core.errors import InvalidInput, NotFound
from core.home import home
from forge_site.failures import EXIT_DETACHED, printable
from forge_site.management.base import ForgeCommand, label, node_named
from graphs.models import Node
from graphs.selectors import explain
from integration.models import Check
from jobs.models import Attempt
from jobs.process import output
from jobs.states import ATTEMPT_ENDED, AttemptState

POLL_S = 0.2


class NoOutput(NotFound):
    """The node has not been tried yet."""

    code = "no_output"


class Command(ForgeCommand):
    help = (
        "What a node's newest attempt has written. Very long output keeps its beginning and its end and says how much was\n"
        "dropped between. With -f it waits for the attempt to start, shows what comes, and ends with the attempt; Ctrl-C\n"
        "leaves the work alone."
    )
    examples = (
        "forge logs add                 of the newest graph that has this node",
        "forge logs -f calculator/add   follow it",
        "forge logs add --attempt 1     of its first attempt, after a revision",
        "forge logs add --check unit    of the check that failed",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node", help="key, or graph/key")
        parser.add_argument("-f", "--follow", action="store_true", help="go on until the attempt has ended")
        parser.add_argument(
            "--stderr", dest="errors", action="store_true", help="the error stream instead of the output"
        )
        parser.add_argument("--attempt", type=int, metavar="N", help="an earlier attempt: 1 is the first")
        parser.add_argument(
            "--check", metavar="NAME", help="instead the newest run of a required check on what it offers"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        node = node_named(options["node"])
        stream: output.Stream = "stderr" if options["errors"] else "stdout"
        try:
            if options["check"]:
                self._show(_attempt_of_check(node, options["check"]), stream)
            elif options["follow"]:
                self._follow(node, options["attempt"], stream)
            else:
                self._show(_attempt(node, options["attempt"]), stream)
        except KeyboardInterrupt:
            raise SystemExit(EXIT_DETACHED) from None

    def _show(self, attempt: Attempt, stream: output.Stream) -> None:
        total = attempt.evidence.get("output", {}).get(stream)
        text = output.read(_jobdir(attempt), stream, total=total).text()
        self.stdout.write(text, ending="")
        other: output.Stream = "stdout" if stream == "stderr" else "stderr"
        if not text and (size := output.read(_jobdir(attempt), other).total):
            self.stderr.write(
                f"nothing on {stream}; {size} bytes on {other}" + (": add --stderr" if other == "stderr" else "")
            )

    def _follow(self, node: Node, number: int | None, stream: output.Stream) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a piece may end inside a character
        offset = 0
        with wake.WakeSocket(wake.FEED) as socket:
            attempt = self._started(node, number, socket)
            while True:
                attempt.refresh_from_db()
                ended = attempt.state in ATTEMPT_ENDED
                while (chunk := output.read_from(_jobdir(attempt), stream, offset)).data:
                    if chunk.skipped:
                        self.stdout.write(f"\n… {chunk.skipped} bytes dropped …")
                    self.stdout.write(decoder.decode(chunk.data), ending="")
                    offset = chunk.next_offset
                self.stdout.flush()
                if ended:
                    self.stdout.write(decoder.decode(b"", final=True), ending="")
                    return
                select.select([socket], [], [], POLL_S)
                socket.drain()

    def _started(self, node: Node, number: int | None, socket: wake.WakeSocket) -> Attempt:
        """The attempt to follow, once it may write. Says once why it must wait."""
        told = False
        while True:
            node.refresh_from_db()
            attempt = _found(node, number)
            if attempt is not None and attempt.state != AttemptState.WAITING:
                return attempt
            if node.ended_at is not None or (number is not None and attempt is None):
                return _attempt(node, number)
            if not told:
                self.stderr.write(printable(explain(node)["sentence"]))
                told = True
            select.select([socket], [], [], POLL_S)
            socket.drain()


def _attempt_of_check(node: Node, name: str) -> Attempt:
    """The newest attempt of the newest run of a check. Raises: NoOutput, naming the checks there are."""
    checks = Check.objects.filter(entry__owner=node.subject)
    found = Attempt.objects.filter(job__check_run__in=checks.filter(name=name)).order_by("pk").last()
    if found is None:
        there = ", ".join(sorted(set(checks.values_list("name", flat=True)))) or "none has run"
        raise NoOutput(f"{label(node.graph)}/{node.key}: no run of a check {name!r} (checks: {there}).", node=node.key)
    return found


def _jobdir(attempt: Attempt) -> Any:
    return home().jobs / str(attempt.pk)


def _found(node: Node, number: int | None) -> Attempt | None:
    attempts = Attempt.objects.select_related("host").filter(job__owner=node.subject).order_by("pk")
    if number is None:
        return attempts.last()
    if number < 1:
        raise InvalidInput("--attempt counts from 1")
    return attempts[number - 1 : number].first()


def _attempt(node: Node, number: int | None) -> Attempt:
    """Raises: NoOutput."""
    found = _found(node, number)
    if found is None:
        made = Attempt.objects.filter(job__owner=node.subject).count()
        name = f"{label(node.graph)}/{node.key}"
        raise NoOutput(
            f"{name} has {made} attempts, no number {number}."
            if made
            else f"{name} has not been tried yet: {explain(node)['sentence']}.",
            node=node.key,
        )
    return found
