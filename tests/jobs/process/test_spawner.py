"""The spawner: started when absent, killed at any time, gone when nobody can reach it."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path

import pytest

from jobs.process import shim
from jobs.process.identity import is_alive
from jobs.process.spawner import Outcome, Spawner, SpawnerUnavailable, launch
from tests.jobs.process.conftest import Lab, make_home, spawner_pids, stop_spawner, until, wait_for_end

pytestmark = pytest.mark.processes


def test_it_is_started_when_absent_outside_our_process_tree(own_lab: Lab) -> None:
    own_lab.run("true").exit()

    (pid,) = spawner_pids(own_lab.home)
    table = shim.snapshot()
    assert os.getpid() not in shim.ancestors(pid, table)
    assert os.getsid(pid) != os.getsid(0)
    assert b"PYTEST" not in shim.read_proc(pid, "environ")


def test_a_batch_is_launched_in_one_round(own_lab: Lab) -> None:
    attempts = [own_lab.prepare("true") for _ in range(40)]

    results = launch(own_lab.home, [attempt.jobdir for attempt in attempts], timeout_s=30)

    assert {launched.outcome for launched in results.values()} == {Outcome.STARTED}
    assert set(results) == {attempt.jobdir for attempt in attempts}
    assert all(attempt.exit().exit_code == 0 for attempt in attempts)


def test_a_directory_that_is_not_there_fails_alone(own_lab: Lab) -> None:
    good, missing = own_lab.prepare("true"), own_lab.home / "jobs" / "missing"

    results = launch(own_lab.home, [missing, good.jobdir], timeout_s=30)

    assert results[missing].outcome is Outcome.FAILED
    assert results[good.jobdir].outcome is Outcome.STARTED


def test_killing_it_harms_no_job_and_the_next_launch_starts_another(own_lab: Lab) -> None:
    running = own_lab.run("sh", "-c", "while [ ! -e go ]; do sleep 0.01; done; exit 5")
    (first,) = spawner_pids(own_lab.home)
    warm = {pid for pid, process in shim.snapshot().items() if process.parent == first}

    os.kill(first, signal.SIGKILL)

    for pid in {first, *warm} - {running.started().shim.pid}:
        assert wait_for_end(pid)  # shims without an order go with their spawner
    assert own_lab.run("true").exit().exit_code == 0
    assert spawner_pids(own_lab.home) not in ([], [first])
    assert is_alive(running.started().shim)
    (own_lab.work / "go").touch()
    assert running.exit().exit_code == 5


def test_an_order_given_while_it_is_dying_is_carried_out_once(own_lab: Lab) -> None:
    """A shim that is just being killed may take the order along; then it is given to the next spawner."""
    own_lab.run("true").exit()
    (pid,) = spawner_pids(own_lab.home)
    attempt = own_lab.prepare("sh", "-c", "echo x >> ran")
    with Spawner(own_lab.home) as spawner:
        os.kill(pid, signal.SIGKILL)

        launched = spawner.launch([attempt.jobdir], timeout_s=30)

    assert launched[attempt.jobdir].outcome is not Outcome.NO_ANSWER
    assert attempt.exit().exit_code == 0
    assert (own_lab.work / "ran").read_text() == "x\n"


def test_many_clients_at_once_start_one_spawner(own_lab: Lab) -> None:
    outcomes: list[Outcome] = []

    def one() -> None:
        attempt = own_lab.prepare("true")
        outcomes.append(launch(own_lab.home, [attempt.jobdir], timeout_s=30)[attempt.jobdir].outcome)

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert outcomes == [Outcome.STARTED] * 6
    assert len(spawner_pids(own_lab.home)) == 1


def test_it_ends_when_its_socket_is_removed_and_running_jobs_go_on(own_lab: Lab) -> None:
    running = own_lab.run("sh", "-c", "while [ ! -e go ]; do sleep 0.01; done")
    (pid,) = spawner_pids(own_lab.home)

    (own_lab.home / "spawner.sock").unlink()

    assert wait_for_end(pid)
    assert is_alive(running.started().command)
    (own_lab.work / "go").touch()
    assert running.exit().exit_code == 0


def test_it_ends_when_its_home_is_removed(tmp_path: Path) -> None:
    home = make_home(tmp_path / "h")
    Spawner(home).close()
    (pid,) = spawner_pids(home)

    shutil.rmtree(home)

    assert wait_for_end(pid)


def test_a_home_deeper_than_a_socket_address_works(tmp_path: Path) -> None:
    home = make_home(tmp_path / ("d" * 60) / ("e" * 60) / "h")
    lab = Lab(home, tmp_path, iter(range(1, 9)))
    try:
        assert lab.run("true").exit().exit_code == 0
    finally:
        stop_spawner(home)


def test_a_dead_warm_shim_is_replaced(own_lab: Lab) -> None:
    own_lab.run("true").exit()
    (pid,) = spawner_pids(own_lab.home)
    warm = until(lambda: [each.pid for each in shim.snapshot().values() if each.parent == pid])

    for each in warm:
        os.kill(each, signal.SIGKILL)
        assert wait_for_end(each)

    assert own_lab.run("true").exit().exit_code == 0


def test_a_spawner_that_cannot_be_started_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")

    with pytest.raises(SpawnerUnavailable):
        Spawner(make_home(tmp_path / "h"))


def test_orders_without_an_answer_are_reported_in_time(own_lab: Lab) -> None:
    own_lab.run("true").exit()
    (pid,) = spawner_pids(own_lab.home)
    table = until(lambda: shim.snapshot() if _warm(pid) else {})
    stopped = [pid, *(each.pid for each in table.values() if each.parent == pid)]
    for each in stopped:
        os.kill(each, signal.SIGSTOP)
    try:
        attempt = own_lab.prepare("true")

        launched = launch(own_lab.home, [attempt.jobdir], timeout_s=0.2)

        assert launched[attempt.jobdir].outcome is Outcome.NO_ANSWER
    finally:
        for each in stopped:
            os.kill(each, signal.SIGCONT)
    assert attempt.exit().exit_code == 0  # late, but once


def _warm(spawner: int) -> bool:
    waiting = [each for each in shim.snapshot().values() if each.parent == spawner]
    return len(waiting) == shim.WARM_SHIMS
