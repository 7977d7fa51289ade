"""The tick: one pass of scheduler and supervisor on this host. Its first pass after a start is recovery; there is no other code.

A tick collects what ended, lets the projects concerned advance, grants, and starts. It runs no git and nothing that takes long.
While things keep happening it stays on its own socket, so that a busy system pays no hop through the queue.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from core import wake
from core.home import Home, home
from core.models import Host
from core.selectors import latest_seq
from graphs.services import Advanced, StartedJob, advance
from jobs.flows import Supervisor
from jobs.planning import Ended
from jobs.services import grant_and_start
from leases.selectors import has_work
from recovery import selectors
from recovery.hosts import this_host

log = logging.getLogger("forge.tick")

LINGER_S = 1.0  # how long a tick waits for the next event before it gives its worker back
LONGEST_S = 30.0  # a tick under endless load gives its worker back after this and is called again
RECORD_AFTER_S = 0.02  # starts are recorded with the next thing that happens, or after this
QUIET_S = 10.0  # a host on which nothing runs is looked over this often although the journal says nothing new


def tick() -> None:
    """Run until nothing more happens. While one tick runs on a host another returns at once: the first hears every wake-up."""
    place = home()
    with wake.WakeSocket(wake.SCHEDULER) as socket:
        while True:
            with _only_one(place) as mine:
                if not mine:
                    return
                Tick(this_host(), place, socket).run()
            if not socket.drain():  # what came while we were ending, and found the lock still held
                return


def is_quiet(place: Home) -> bool:
    """Whether the last full look found nothing that runs or is due, and the journal has not grown since.

    A look at a quiet host would find the same, so the broker spares it; every QUIET_S one is made all the same.
    """
    try:
        age_s = time.time() - place.quiet.stat().st_mtime
        return 0 <= age_s < QUIET_S and int(place.quiet.read_text()) == latest_seq()
    except (OSError, ValueError):
        return False


def _note_quiet(place: Home, seq: int) -> None:
    place.quiet.write_text(str(seq))  # a hint: torn or lost it only costs a look


@contextmanager
def _only_one(place: Home) -> Iterator[bool]:
    fd = os.open(place.tick_lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(fd)


def is_running(place: Home) -> bool:
    """Whether a tick holds the lock; it hears every wake-up itself then."""
    try:
        fd = os.open(place.tick_lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)


class Tick:
    """One tick: its supervisor, its socket, and the loop."""

    def __init__(self, host: Host, place: Home, socket: wake.WakeSocket) -> None:
        self.host, self.place, self.socket = host, place, socket
        self.supervisor = Supervisor(host, place)

    def run(self) -> None:
        give_back_at = time.monotonic() + LONGEST_S
        try:
            messages = {wake.TICK}
            while messages and (self.turn(messages) or self._owes_a_start()):
                if time.monotonic() > give_back_at:
                    wake.send(wake.TICK)
                    return
                messages = self._wait()
        finally:
            self.supervisor.close()

    def _owes_a_start(self) -> bool:
        """A full pass may launch or find started what changed no row yet: without a wait nobody would ever record it."""
        return self.supervisor.has_unrecorded or self.supervisor.answers_fd is not None

    def _wait(self) -> set[bytes]:
        """The next messages, empty after LINGER_S. Starts are recorded meanwhile when nothing else comes soon."""
        give_up_at = time.monotonic() + LINGER_S
        while (left_s := give_up_at - time.monotonic()) > 0:
            self.supervisor.hear_answers()
            waits_to_record = self.supervisor.has_unrecorded
            if self._poll(min(left_s, RECORD_AFTER_S) if waits_to_record else left_s):
                if messages := self.socket.drain():
                    return messages
            elif waits_to_record:
                self.record_starts()
        return set()

    def _poll(self, limit_s: float) -> bool:
        """Whether a message or a shim's report came in time."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        if (fd := self.supervisor.answers_fd) is not None:
            poll.register(fd, select.POLLIN)
        return bool(poll.poll(limit_s * 1000))

    def record_starts(self) -> None:
        """Starts that nothing else has carried along yet."""
        advanced = self._advance([], set())
        self.supervisor.launch(advanced.granted.attempts)
        if advanced.has_repository:
            self._call_for_effects()

    def turn(self, messages: set[bytes]) -> bool:
        """One round: look, advance, grant, start. Returns whether anything happened."""
        everything = wake.TICK in messages
        seq = latest_seq() if everything else 0  # before the look: what is committed meanwhile is news
        self.supervisor.hear_answers()
        ended = self.supervisor.look_at_all() if everything else self.supervisor.look_at(_exits(messages))
        news = selectors.projects_to_advance(self.host.pk) if everything else set()
        worked = bool(ended or news)
        touches_git = everything
        may_grant = worked or (everything and has_work())
        while ended or news or may_grant:
            advanced = self._advance(ended, news) if ended or news else Advanced(False, grant_and_start())
            granted = advanced.granted
            touches_git = touches_git or advanced.has_repository or any(a.job.own_checkout for a in granted.attempts)
            ended = self.supervisor.launch(granted.attempts)
            news, may_grant = set(granted.other_projects), False
            worked = worked or bool(granted.attempts or news)
        called = self._call_for_effects() if touches_git else False
        if (
            everything
            and not worked
            and not called
            and not self.supervisor.is_watching
            and not selectors.waits_for_a_moment()
        ):
            _note_quiet(self.place, seq)
        return worked

    def _advance(self, ended: list[tuple[int, Ended]], news: set[int]) -> Advanced:
        """One transaction for each project concerned, ascending; the last one carries the pass of the broker."""
        ends: defaultdict[int, list[Ended]] = defaultdict(list)
        for project_id, end in ended:
            ends[project_id].append(end)
        starts: defaultdict[int, list[StartedJob]] = defaultdict(list)
        for attempt, seen in self.supervisor.take_started():
            starts[attempt.project_id].append(StartedJob(attempt, seen))
        projects = sorted({*ends, *starts, *news})
        has_repository, granted = False, None
        for project_id in projects:
            try:
                advanced = advance(
                    project_id=project_id,
                    started=starts[project_id],
                    ended=ends[project_id],
                    then_grant=project_id == projects[-1],
                )
            except Exception:
                # One project's trouble stays its own. What this pass knew of it is found again by the next full look.
                log.exception("project %s could not advance", project_id)
                continue
            has_repository = has_repository or advanced.has_repository
            granted = advanced.granted if project_id == projects[-1] else None
        return Advanced(has_repository, grant_and_start() if granted is None else granted)

    def _call_for_effects(self) -> bool:
        """Git is for other workers: tell the cluster which repositories have something to do. Returns whether any has."""
        repositories = selectors.repositories_with_due_effects(self.host.pk)
        for repository in repositories:
            wake.call_for_effects(repository)
        return bool(repositories)


def _exits(messages: set[bytes]) -> list[int]:
    return sorted(int(message[5:]) for message in messages if message.startswith(b"exit:") and message[5:].isdigit())
