"""Nobody is signalled for having a number."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.process.identity import (
    Identity,
    LockHeld,
    boot_id,
    is_alive,
    lock_is_held,
    signal_exactly,
    start_ticks,
    try_lock,
)
from tests.jobs.process.conftest import until, wait_for_end


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def identity_of(process: subprocess.Popen[bytes]) -> Identity:
    ticks = start_ticks(process.pid)
    assert ticks is not None
    return Identity(boot_id(), process.pid, ticks)


def test_a_process_is_alive_until_it_ends_and_a_zombie_has_ended(child: subprocess.Popen[bytes]) -> None:
    identity = identity_of(child)
    assert is_alive(identity)

    assert signal_exactly(identity, signal.SIGKILL)

    assert wait_for_end(child.pid)
    assert Path(f"/proc/{child.pid}").exists()  # not reaped yet
    assert not is_alive(identity)
    child.wait()
    assert not is_alive(identity)
    assert not signal_exactly(identity, signal.SIGKILL)
    assert start_ticks(child.pid) is None


@pytest.mark.req("LF-10")
@pytest.mark.parametrize("other", [{"start_ticks": 1}, {"boot_id": "another"}])
def test_another_process_with_the_recorded_pid_is_neither_believed_nor_signalled(
    child: subprocess.Popen[bytes], other: dict[str, object]
) -> None:
    recorded = identity_of(child)._replace(**other)  # type: ignore[arg-type]

    assert not is_alive(recorded)
    assert not signal_exactly(recorded, signal.SIGKILL)
    assert not wait_for_end(child.pid, timeout_s=0.1)


@pytest.mark.parametrize("pid", [-1, 0, 1])
def test_numbers_that_mean_more_than_one_process_are_refused(pid: int) -> None:
    with pytest.raises(ValueError, match="never a supervised process"):
        signal_exactly(Identity(boot_id(), pid, start_ticks(pid) or 0), 0)


def test_this_process_and_its_group_are_refused() -> None:
    own = Identity(boot_id(), os.getpid(), start_ticks(os.getpid()) or 0)
    with pytest.raises(ValueError, match="never a supervised process"):
        signal_exactly(own, 0)
    neighbour = subprocess.Popen(["sleep", "1000"])
    try:
        until(lambda: start_ticks(neighbour.pid))
        with pytest.raises(ValueError, match="group of this process"):
            signal_exactly(identity_of(neighbour), signal.SIGKILL)
        assert not wait_for_end(neighbour.pid, timeout_s=0.1)
    finally:
        neighbour.kill()
        neighbour.wait()


def test_the_lock_excludes_and_is_free_afterwards(tmp_path: Path) -> None:
    assert not lock_is_held(tmp_path)
    with try_lock(tmp_path):
        assert lock_is_held(tmp_path)
        with pytest.raises(LockHeld), try_lock(tmp_path):
            pass
    assert not lock_is_held(tmp_path)
