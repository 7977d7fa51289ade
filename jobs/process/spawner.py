"""The tick's side of the spawner: find it or start it, hand over job directories, collect what became of each."""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from core.errors import ForgeError
from jobs.process import shim

SOCKET = "spawner.sock"
SILENCE_S = 0.25  # without an answer for so long we look whether the spawner is still there


class SpawnerUnavailable(ForgeError):
    """The host's spawner neither answers nor starts. Nothing was launched; the next tick tries again."""

    code, http_status = "spawner_unavailable", 503


class Outcome(StrEnum):
    """What became of one order. All but ``STARTED`` mean that this order ran nothing, or that one has to look."""

    STARTED = "started"  # the started receipt is durable and the command was let go
    ALREADY_RUNNING = "already_running"  # another process holds the attempt's lock
    ALREADY_STARTED = (
        "already_started"  # a started receipt without a holder of the lock: settle it, never launch it again
    )
    ALREADY_ENDED = "already_ended"  # an exit receipt is there, possibly ``never_started``
    BAD_SPEC = "bad_spec"  # the spec is missing a field, damaged or from before a reboot
    FAILED = "failed"  # the shim met an error before the command could run
    NO_ANSWER = "no_answer"  # in time; it may still start: lock and receipts tell


@dataclass(frozen=True)
class Launched:
    outcome: Outcome
    detail: str = ""


class Spawner:
    """A connection to the spawner of the host whose state directory is ``home``; cheap to keep open.

    Orders and answers are datagrams. The orders go to a socket on which the warm shims themselves wait, so there is
    nobody in between; an answer may be lost, which is why it is never more than a hint.
    """

    def __init__(self, home: Path, *, start_timeout_s: float = 5.0) -> None:
        """Raises: SpawnerUnavailable when none answers and none could be started within ``start_timeout_s``."""
        self.home, self.start_timeout_s = home.absolute(), start_timeout_s
        self.socket, self.inode = self._connect(), self._inode()

    def launch(self, jobdirs: Iterable[Path], *, timeout_s: float = 5.0) -> dict[Path, Launched]:
        """Start the attempts of these job directories, all in one round trip.

        Orders that a dying spawner took along are given again, once it is seen to be gone; as any second launch of an
        attempt they are harmless, and may report that the first one arrived after all.

        Returns: an entry for each, NO_ANSWER after ``timeout_s``
        Raises:  SpawnerUnavailable before anything was sent
        """
        waiting = {os.path.abspath(path): path for path in jobdirs}
        results = dict[Path, Launched]()
        unsent, give_up_at = list(waiting), time.monotonic() + timeout_s
        poll = select.poll()
        while waiting and (left_s := give_up_at - time.monotonic()) > 0:
            unsent = self._send(unsent)
            poll.register(self.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
            if not poll.poll(min(left_s, SILENCE_S) * 1000) and self._is_orphaned():
                poll.unregister(self.socket)
                self._reconnect()
                unsent = list(waiting)
            for jobdir, launched in self.answers():
                if jobdir in waiting:
                    results[waiting.pop(jobdir)] = launched
        return results | dict.fromkeys(waiting.values(), Launched(Outcome.NO_ANSWER))

    def _send(self, orders: list[str]) -> list[str]:
        """Returns: the orders that do not fit in yet. A spawner that went away meanwhile is replaced, once."""
        for index, jobdir in enumerate(orders):
            try:
                self.order(jobdir)
            except BlockingIOError:
                return orders[index:]
        return []

    def order(self, jobdir: str) -> None:
        """Hand over one absolute path without waiting. Raises: BlockingIOError while too many orders are queued."""
        try:
            self.socket.send(os.fsencode(jobdir))
        except ConnectionError:
            self._reconnect()
            self.socket.send(os.fsencode(jobdir))

    def answers(self) -> Iterator[tuple[str, Launched]]:
        """The answers that have arrived, without waiting."""
        while True:
            try:
                answer = json.loads(self.socket.recv(shim.CHUNK))
            except (BlockingIOError, ConnectionError):
                return
            yield answer["jobdir"], Launched(Outcome(answer["outcome"]), answer["detail"])

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _is_orphaned(self) -> bool:
        """Whether the spawner that we are connected to has ended, so that what it had queued is lost."""
        if (link := connect(self.home)) is not None:
            link.close()
        return link is None or self.inode != self._inode()

    def _reconnect(self) -> None:
        self.socket.close()
        self.socket, self.inode = self._connect(), self._inode()

    def _inode(self) -> int:
        """Tells one spawner's socket from its successor's; 0 when there is none."""
        try:
            return (self.home / SOCKET).stat().st_ino
        except FileNotFoundError:
            return 0

    def _connect(self) -> socket.socket:
        if (link := connect(self.home)) is not None:
            return link
        self._start()
        if (link := connect(self.home)) is not None:
            return link
        raise SpawnerUnavailable(home=str(self.home))

    def _start(self) -> None:
        """Start a spawner unless somebody else just did. Two would do no harm: the first would find itself replaced."""
        with _start_lock(self.home, self.start_timeout_s):
            if (link := connect(self.home)) is not None:
                link.close()
                return
            command = [sys.executable, "-I", "-S", shim.__file__, "--spawner", str(self.home / SOCKET)]
            with (self.home / "spawner.log").open("ab") as log:
                try:
                    # Returns once the socket is bound and the spawner forked off: it is then nobody's child, in a
                    # session of its own, without our descriptors, environment and working directory.
                    subprocess.run(
                        command,
                        check=True,
                        timeout=self.start_timeout_s,
                        start_new_session=True,
                        cwd="/",
                        env={"LANG": "C.UTF-8", "PATH": os.defpath},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=log,
                    )
                except (OSError, subprocess.SubprocessError) as error:
                    raise SpawnerUnavailable(home=str(self.home), error=str(error)) from error


def launch(home: Path, jobdirs: Iterable[Path], *, timeout_s: float = 5.0) -> dict[Path, Launched]:
    """One batch over a connection of its own; see Spawner.launch."""
    with Spawner(home) as spawner:
        return spawner.launch(jobdirs, timeout_s=timeout_s)


def connect(home: Path) -> socket.socket | None:
    """A non-blocking connection to the spawner that runs now, or None."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        link.bind("")  # an address that the kernel makes up, for the answers
        with _short_path(home) as directory:
            link.connect(f"{directory}/{SOCKET}")
    except (FileNotFoundError, ConnectionError):
        link.close()
        return None
    except BaseException:
        link.close()
        raise
    return link


@contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    """A path of a few bytes to ``directory``: the address of a socket may have 108, a state directory may be deeper."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


@contextmanager
def _start_lock(home: Path, timeout_s: float) -> Iterator[None]:
    fd = os.open(home / "spawner.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    give_up_at = time.monotonic() + timeout_s
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up_at:
                    raise SpawnerUnavailable(
                        home=str(home), error="somebody else has been starting one for long"
                    ) from None
                select.poll().poll(10)
        yield
    finally:
        os.close(fd)
