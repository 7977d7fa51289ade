"""Ending an attempt from outside: ask its shim, or, when the shim was killed, find and end what it left behind."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jobs.process import shim
from jobs.process.identity import boot_id, is_alive, try_lock
from jobs.process.receipts import Fence, Started, Survivor

FIRST_LOOK_S, LONGEST_LOOK_S = 0.005, 0.25  # between two scans for what is left
FORCE_LIMIT_S = shim.FORCE_LIMIT_S


def term(jobdir: Path, *, fence: Fence, grace_s: float, force: bool = True) -> bool:
    """Ask the shim to end its tree: TERM now, KILL after ``grace_s`` unless ``force`` is off.

    Without force what resists stays supervised; a later ``kill`` or the deadline still ends it. Asking again may
    shorten the grace.
    Returns: whether a shim got the message. It obeys only its own fence; the exit receipt tells what came of it.
    """
    return _send(jobdir, {"fence": fence._asdict(), "grace_s": grace_s, "force": force})


def kill(jobdir: Path, *, fence: Fence) -> bool:
    """Ask the shim to end its tree by KILL at once. Returns: whether a shim got the message."""
    return _send(jobdir, {"fence": fence._asdict(), "grace_s": 0.0, "force": True})


def find_members(*, started: Started | None, marker: str, sweep_dir: Path | None) -> list[Survivor]:
    """What runs of an attempt now, whether or not its shim lives (the shim itself is none of it).

    Evidence is the marker in the environment, the working directory, or the recorded group as far as it is proven to be
    still that group. Never found: this process and those above it.
    """
    return [Survivor(**shim.describe(process)) for process in _members(started, marker, sweep_dir)]


def end_without_shim(
    jobdir: Path,
    *,
    started: Started | None,
    marker: str,
    sweep_dir: Path | None,
    grace_s: float,
    force: bool = True,
) -> list[Survivor]:
    """End what a killed shim left behind: TERM, up to ``grace_s``, KILL until two scans in a row find nothing.

    Takes:   at most grace_s + FORCE_LIMIT_S; holds the attempt's lock meanwhile, so that nobody launches it
    Returns: what is still alive; without ``force`` whatever outlived the grace
    Raises:  LockHeld when a shim is alive after all: ask that one
    """
    with try_lock(jobdir):
        began, told, quiet, pause_s = time.monotonic(), set[tuple[int, int]](), 0, FIRST_LOOK_S
        while True:
            left = _members(started, marker, sweep_dir)
            quiet = 0 if left else quiet + 1
            elapsed_s = time.monotonic() - began
            is_late = elapsed_s >= grace_s
            if quiet == 2 or (is_late and not force) or elapsed_s >= grace_s + FORCE_LIMIT_S:
                return [Survivor(**shim.describe(process)) for process in left]
            for process in left:
                name = (process.pid, process.ticks)
                if is_late:
                    shim.signal_process(*name, signal.SIGKILL)
                elif name not in told:  # once: a second TERM makes some programs give up their own clean-up
                    shim.signal_process(*name, signal.SIGTERM)
                told.add(name)
            pause_s = min(2 * pause_s, LONGEST_LOOK_S)
            _wait_for_an_end(left, pause_s if is_late else min(pause_s, grace_s - elapsed_s))


def _members(started: Started | None, marker: str, sweep_dir: Path | None) -> list[shim.Process]:
    table = shim.snapshot()
    spared = set(shim.ancestors(os.getpid(), table))
    if started:
        spared.add(started.shim.pid)
    group = _proven_group(started, table)
    directory = os.path.realpath(sweep_dir) if sweep_dir else ""
    return [
        process
        for pid, process in table.items()
        if pid > 1 and pid not in spared and (process.group == group or shim.is_stray(pid, marker, directory))
    ]


def _proven_group(started: Started | None, table: dict[int, shim.Process]) -> int | None:
    """The recorded group, if its number cannot belong to anybody else by now.

    It is the recorded one while its leader lives. Later the number stays taken as long as a member is left, but after
    the last one it may be given to a stranger: not before all others were used once, though, and the kernel counts forks.
    """
    if started is None or started.command.boot_id != boot_id():
        return None
    leader = started.command
    if leader.pid in table:
        return leader.pid if is_alive(leader) else None
    pid_max = int(shim.read_file("/proc/sys/kernel/pid_max"))
    return leader.pid if shim.fork_count() - started.fork_count < pid_max // 2 else None


def _wait_for_an_end(processes: Collection[shim.Process], timeout_s: float) -> None:
    """Return as soon as one of them ends, else after ``timeout_s``."""
    with _pidfds(processes) as fds:
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        poll.poll(max(timeout_s, 0) * 1000)


@contextmanager
def _pidfds(processes: Collection[shim.Process]) -> Iterator[list[int]]:
    fds: list[int] = []
    try:
        for process in processes:
            with suppress(OSError):
                fds.append(os.pidfd_open(process.pid))
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def _send(jobdir: Path, order: dict[str, object]) -> bool:
    """False when nobody listens (the shim has ended or has not come that far) or too many orders wait: ask later."""
    try:
        directory = os.open(jobdir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as link:
            link.sendto(json.dumps(order).encode(), f"/proc/self/fd/{directory}/{shim.CONTROL}")
    except (FileNotFoundError, ConnectionError, BlockingIOError):
        return False
    else:
        return True
    finally:
        os.close(directory)
