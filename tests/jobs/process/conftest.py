"""A laboratory of real processes: a home with a spawner, attempts launched through it, and nothing left behind."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

from jobs.process import control, receipts, shim
from jobs.process.identity import Identity, lock_is_held
from jobs.process.receipts import Exit, Fence, Spec, Started
from jobs.process.spawner import Launched, Outcome, launch

FENCE = Fence(grant=7, token=3)
T = TypeVar("T")
PATIENCE_S = 30.0  # a hang limit, never a measurement


def until(look: Callable[[], T | None], *, patience_s: float = PATIENCE_S) -> T:
    """The first true value of ``look``; fails the test after ``patience_s``."""
    for _ in range(int(patience_s * 200)):
        if value := look():
            return value
        select.poll().poll(5)
    pytest.fail(f"still waiting after {patience_s} s")


def wait_for_end(pid: int, *, timeout_s: float = PATIENCE_S) -> bool:
    """Whether the process ended within ``timeout_s``, told by its pidfd."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))
    finally:
        os.close(fd)


def spawner_pids(home: Path) -> list[int]:
    """The spawner of ``home``: shims share its command line, but have it as a parent or took a name of their own."""
    wanted, table = str(home / "spawner.sock").encode(), shim.snapshot()
    same = {pid for pid in table if shim.read_proc(pid, "cmdline").rstrip(b"\0").endswith(wanted)}
    return [
        pid for pid in same if table[pid].parent not in same and shim.read_proc(pid, "comm").strip() == b"forge-spawner"
    ]


def python(code: str) -> tuple[str, ...]:
    """A command line that runs ``code`` in a bare interpreter."""
    return (sys.executable, "-I", "-S", "-c", code)


@dataclass
class Attempt:
    jobdir: Path
    spec: Spec

    def exit(self) -> Exit:
        return until(lambda: receipts.read_exit(self.jobdir))

    def started(self) -> Started:
        return until(lambda: receipts.read_started(self.jobdir))

    def stdout(self) -> bytes:
        try:
            return (self.jobdir / "stdout").read_bytes()
        except FileNotFoundError:
            return b""


@dataclass
class Lab:
    home: Path
    work: Path
    numbers: Iterator[int]
    attempts: list[Attempt] = field(default_factory=list)

    def prepare(self, *argv: str, **changes: Any) -> Attempt:
        number = next(self.numbers)
        jobdir = self.home / "jobs" / str(number)
        jobdir.mkdir(mode=0o700)
        fields: dict[str, Any] = {
            "job": number,
            "attempt": number,
            "fence": FENCE,
            "argv": argv,
            "env": {"PATH": os.environ["PATH"]},
            "cwd": str(self.work),
            "marker": f"{self.home}:{number}",
            "wake_dir": str(self.home / "wake.d"),
            "grace_s": 5.0,
        }
        attempt = Attempt(jobdir, Spec(**fields | changes))
        receipts.write_spec(jobdir, attempt.spec)
        self.attempts.append(attempt)
        return attempt

    def launch(self, attempt: Attempt) -> Launched:
        return launch(self.home, [attempt.jobdir], timeout_s=PATIENCE_S)[attempt.jobdir]

    def run(self, *argv: str, **changes: Any) -> Attempt:
        attempt = self.prepare(*argv, **changes)
        launched = self.launch(attempt)
        assert launched.outcome is Outcome.STARTED, launched
        return attempt

    def pid_from(self, name: str) -> Identity:
        """A process that wrote its pid to the file ``name`` of the working directory."""
        text = until(lambda: (self.work / name).read_text().strip() if (self.work / name).exists() else "")
        process = shim.read_process(int(text))
        assert process is not None
        return Identity(shim.boot_id(), process.pid, process.ticks)

    def clean_up(self) -> None:
        """No test leaves a process behind, whether it passed or not."""
        for attempt in self.attempts:
            if lock_is_held(attempt.jobdir):
                control.kill(attempt.jobdir, fence=attempt.spec.fence)
                until(lambda attempt=attempt: not lock_is_held(attempt.jobdir))  # type: ignore[misc]
            sweep_dir = Path(attempt.spec.sweep_dir) if attempt.spec.sweep_dir else None
            for left in control.find_members(started=None, marker=attempt.spec.marker, sweep_dir=sweep_dir):
                shim.signal_process(left.pid, left.start_ticks, signal.SIGKILL)


def make_home(root: Path) -> Path:
    (root / "jobs").mkdir(parents=True)
    (root / "wake.d").mkdir()
    return root


def stop_spawner(home: Path) -> None:
    for pid in spawner_pids(home):
        os.kill(pid, signal.SIGKILL)
        assert wait_for_end(pid)


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One spawner for all tests that do not harm it."""
    home = make_home(tmp_path_factory.mktemp("home") / "h")
    yield home
    stop_spawner(home)


numbers = count(1)


@pytest.fixture
def lab(shared_home: Path, tmp_path: Path) -> Iterator[Lab]:
    laboratory = Lab(shared_home, tmp_path, numbers)
    yield laboratory
    laboratory.clean_up()


@pytest.fixture
def own_lab(tmp_path: Path) -> Iterator[Lab]:
    """A laboratory whose spawner the test may kill."""
    home, work = make_home(tmp_path / "home"), tmp_path / "work"
    work.mkdir()
    laboratory = Lab(home, work, numbers)
    yield laboratory
    laboratory.clean_up()
    stop_spawner(home)
    shutil.rmtree(home, ignore_errors=True)
