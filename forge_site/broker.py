"""The django-q2 broker of Forge: it waits for wake-ups and turns them into tasks that no queue holds.

Rows are the truth, so there is nothing to queue: a task is a call to look at them. What is lost is made again within a second.
Every process of the cluster dies with its parent; django-q2 by itself leaves whole clusters running without a head.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import select
import signal
import time
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connection
from django.utils import timezone
from django_q.brokers import Broker
from django_q.signing import SignedPackage

from core import wake
from core.home import home
from recovery import cycle, flows

PR_SET_PDEATHSIG = 1
LOOP_FILE = "loop"  # touched at each turn; a launcher sees by its age whether the cluster still turns


def die_with_parent() -> None:
    """SIGKILL for this process when its parent dies, however it dies; and for every process that this one forks."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return  # not a child of the cluster: a test
    _die_with(parent.pid or 0)
    me = os.getpid()
    os.register_at_fork(after_in_child=lambda: _die_with(me) if os.getppid() == me else None)


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the flag was set
        os._exit(1)


class ForgeBroker(Broker):
    """Synthesises two kinds of task: a tick of this host, and the effects of one repository."""

    _socket: wake.WakeSocket | None = None
    _owner: int | None = None
    _tick_due = 0.0

    def ping(self) -> bool:
        """Called in the sentinel, before it forks workers, monitor and pusher."""
        die_with_parent()
        return True

    def info(self) -> str:
        return "Forge"

    def queue_size(self) -> int:
        return 0

    def enqueue(self, task: Any) -> Any:
        raise RuntimeError("Forge's cluster takes no queued tasks: record an intent, and wake the tick")

    def dequeue(self) -> list[tuple[None, str]]:
        """Wait for wake-ups or the safety period, whichever is first; runs in the pusher."""
        if self._owner != os.getpid():
            self._open()
        (home().root / LOOP_FILE).touch()
        messages = self._wait(max(0.0, self._tick_due - time.monotonic()))
        tasks = [
            self._task(f"effects-{repository}", "recovery.flows.run_effects", repository)
            for repository in sorted(
                m.removeprefix(wake.EFFECTS).decode() for m in messages if m.startswith(wake.EFFECTS)
            )
            if not flows.is_running(repository)
        ]
        woken = any(not m.startswith(wake.EFFECTS) for m in messages)
        if woken or time.monotonic() >= self._tick_due:
            self._tick_due = time.monotonic() + settings.FORGE_TICK_PERIOD_S
            if not cycle.is_running(home()) and (
                woken or not self._is_quiet()
            ):  # one that runs hears every wake-up itself
                tasks.append(self._task("tick", "recovery.cycle.tick"))
        return tasks

    def _is_quiet(self) -> bool:
        try:
            return cycle.is_quiet(home())
        except DatabaseError:  # away or busy: that is for the tick to find out
            connection.close()
            return False

    def _wait(self, limit_s: float) -> set[bytes]:
        assert self._socket is not None
        select.select([self._socket], [], [], limit_s)
        return self._socket.drain()

    def _open(self) -> None:
        self._socket = wake.WakeSocket(wake.CLUSTER)
        self._owner = os.getpid()

    def _task(self, name: str, function: str, *arguments: Any) -> tuple[None, str]:
        task = {
            "id": f"forge-{name}"[:32],  # fixed: a failure that repeats keeps one row
            "name": name,
            "func": function,
            "args": arguments,
            "kwargs": {},
            "started": timezone.now(),
            "save": False,
        }
        return None, SignedPackage.dumps(task)
