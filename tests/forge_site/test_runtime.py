"""The runtime as a whole: launcher, cluster and web of one home, and what their deaths do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from django.db import connections

from core.models import Event, Host
from forge_site.broker import LOOP_FILE, ForgeBroker
from graphs.models import Graph
from jobs.models import Attempt
from jobs.process import spawner
from recovery import cycle
from tests.running import Forge, program

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]

LIMIT_S = 60.0


def eventually(condition: Callable[[], object], what: str) -> None:
    """Bounded polling of another process's doings; there is no event of its that we could wait for."""
    import threading
    import time

    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} never happened"
        threading.Event().wait(0.05)


class Runtime:
    """`forge up` as a child process on the test's database."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self.home, self.environment = home, environment
        self.process: subprocess.Popen[bytes] | None = None
        self.output = home.with_suffix(".out")

    def start(self) -> None:
        (self.home / "web.json").unlink(missing_ok=True)
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "forge_site", "up", "--bind", "127.0.0.1:0"],
                env=self.environment,
                cwd=Path(__file__).resolve().parents[2],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        eventually((self.home / "web.json").exists, "the web process became ready")

    def stop(self) -> str:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(LIMIT_S)
        return self.output.read_text()

    def family(self) -> list[psutil.Process]:
        assert self.process is not None
        launcher = psutil.Process(self.process.pid)
        return [launcher, *launcher.children(recursive=True)]


@pytest.fixture
def runtime(forge_home: Path, child_environment: dict[str, str]) -> Iterator[Runtime]:
    forge = Forge()  # makes the home, the host and its slots
    forge.close()
    connections.close_all()
    runtime = Runtime(forge_home, child_environment)
    yield runtime
    if runtime.process is not None and runtime.process.poll() is None:
        runtime.stop()


def sleeper(forge_home: Path, tmp_path: Path, seconds: int) -> Graph:
    forge = Forge()
    forge.add_project("p", tmp_path, plain=True)
    graph = forge.admit(program({"key": "a", "command": ["sleep", str(seconds)], "workMode": "read-only"}))
    forge.close()
    return graph


def ticked() -> bool:
    cycle.tick()
    return True


@pytest.mark.req("RC-03")
def test_one_runtime_per_home(runtime: Runtime) -> None:
    runtime.start()

    second = subprocess.run(
        [sys.executable, "-m", "forge_site", "up", "--bind", "127.0.0.1:0"],
        env=runtime.environment,
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    assert second.returncode == 2
    assert "[runtime_running]" in second.stderr
    assert "Forge has stopped." in runtime.stop()
    assert runtime.process is not None
    assert runtime.process.returncode == 0


@pytest.mark.req("EV-25", "EV-26", "JB-02")
def test_a_killed_launcher_takes_web_and_cluster_along_but_no_job(
    runtime: Runtime, forge_home: Path, tmp_path: Path
) -> None:
    graph = sleeper(forge_home, tmp_path, 3)
    runtime.start()
    eventually(lambda: Attempt.objects.filter(state="running").exists(), "the job started")
    attempt = Attempt.objects.get()
    family = runtime.family()

    assert runtime.process is not None
    os.kill(runtime.process.pid, signal.SIGKILL)
    runtime.process.wait()

    gone, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []
    assert len(gone) >= 6  # launcher, web, and the cluster's main, sentinel, pusher, monitor, workers
    assert psutil.pid_exists(attempt.pid or 0)
    runtime.start()
    eventually(lambda: Graph.objects.get(pk=graph.pk).state == "completed", "the graph ended")
    assert Attempt.objects.count() == 1
    assert Host.objects.get().epoch == 2
    assert Event.objects.filter(kind="attempt.running").count() == 1


@pytest.mark.req("RC-13")
def test_a_cluster_that_stands_still_is_replaced_with_the_web_under_a_new_epoch(
    runtime: Runtime, forge_home: Path, tmp_path: Path
) -> None:
    runtime.start()
    before = {process.pid for process in runtime.family()}
    pushers = [process for process in runtime.family() if "qcluster" in " ".join(process.cmdline())]

    for process in pushers:
        process.suspend()  # the loop's file is touched no more
    os.utime(forge_home / LOOP_FILE, (1, 1))

    eventually(lambda: Host.objects.get().epoch == 2, "the launcher replaced the cluster")
    eventually(lambda: (forge_home / "web.json").exists(), "the new web process became ready")
    after = {process.pid for process in runtime.family()}
    assert before & after == {runtime.process.pid if runtime.process else 0}


@pytest.mark.req("PL-07")
def test_a_tick_that_is_delivered_twice_starts_one_worker(forge_home: Path, tmp_path: Path) -> None:
    graph = sleeper(forge_home, tmp_path, 0)

    try:
        for _ in range(3):
            cycle.tick()
        eventually(lambda: ticked() and Graph.objects.get(pk=graph.pk).state == "completed", "the graph ended")
        cycle.tick()
    finally:
        (forge_home / spawner.SOCKET).unlink()

    assert Attempt.objects.count() == 1
    assert Event.objects.filter(kind="attempt.starting").count() == 1


def test_the_broker_takes_no_queued_tasks_and_ticks_at_least_every_second(forge_home: Path) -> None:
    broker = ForgeBroker("forge")
    forge_home.joinpath("wake.d").mkdir()
    try:
        first = broker.dequeue()
        with pytest.raises(RuntimeError):
            broker.enqueue("anything")

        assert len(first) == 1
        assert (forge_home / LOOP_FILE).exists()
        broker._tick_due = 0.0
        assert len(broker.dequeue()) == 1
    finally:
        assert broker._socket is not None
        broker._socket.close()
