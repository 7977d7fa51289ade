"""Which process is meant, and whether it lives. A pid alone names nobody: on a busy machine it is soon used again."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from core.errors import Conflict
from jobs.process import shim


class LockHeld(Conflict):
    """A live process holds the attempt's lock. Ask it over its control socket, or wait for its end."""

    code = "attempt_lock_held"


class Identity(NamedTuple):
    """One process of one boot of this machine. ``start_ticks``: clock ticks between boot and its start."""

    boot_id: str
    pid: int
    start_ticks: int


@cache  # the answer cannot change while we run
def boot_id() -> str:
    """Random id of this boot; another one means that every process recorded under it is gone."""
    return shim.boot_id()


def start_ticks(pid: int) -> int | None:
    """Start time in clock ticks since boot; None when there is no such process."""
    process = shim.read_process(pid)
    return process.ticks if process else None


def is_alive(identity: Identity) -> bool:
    """Whether exactly this process still runs. A zombie has ended: only its parent has not looked yet."""
    process = shim.read_process(identity.pid) if identity.boot_id == boot_id() else None
    return process is not None and not process.is_ended and process.ticks == identity.start_ticks


def signal_exactly(identity: Identity, sig: int) -> bool:
    """Signal this process and no other that may have its pid by now.

    Returns: False when it is gone or may not be signalled by us
    Raises:  ValueError for pid 0 and 1, this process and its group: such a record is wrong, whatever it says
    """
    if identity.pid <= 1 or identity.pid == os.getpid():
        raise ValueError(f"pid {identity.pid} is never a supervised process")
    process = shim.read_process(identity.pid) if identity.boot_id == boot_id() else None
    if process is None:
        return False
    if process.group == os.getpgrp():
        raise ValueError(f"process {identity.pid} belongs to the group of this process")
    return shim.signal_process(identity.pid, identity.start_ticks, sig)


@contextmanager
def try_lock(jobdir: Path) -> Iterator[None]:
    """Hold the attempt's lock, so that no shim starts meanwhile. Raises: LockHeld at once, it never waits."""
    fd = os.open(jobdir / shim.LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockHeld(jobdir=str(jobdir)) from None
        yield
    finally:
        os.close(fd)


def lock_is_held(jobdir: Path) -> bool:
    """Whether a shim (or a tick that settles the attempt) holds the lock: the kernel's word, whoever died how.

    Tests with a shared lock for a moment; a shim that starts in this moment tries again.
    """
    try:
        fd = os.open(jobdir / shim.LOCK, os.O_RDWR | os.O_CLOEXEC)
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
