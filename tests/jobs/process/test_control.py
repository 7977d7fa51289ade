"""A shim that was killed: what dies with it, what is found, and what is never touched."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.process import control
from jobs.process.identity import Identity, LockHeld, is_alive, lock_is_held
from jobs.process.receipts import Started
from tests.jobs.process.conftest import Attempt, Lab, until, wait_for_end

pytestmark = pytest.mark.processes

LOOP = "while :; do sleep 0.05; done"
POLITE = f"trap 'echo polite > ended; exit' TERM; echo $$ > escapee; {LOOP}"
STUBBORN = f"trap '' TERM; echo $$ > escapee; {LOOP}"


def orphan(lab: Lab, script: str, *, how: str = "setsid", **changes: object) -> tuple[Attempt, Identity, Started]:
    """An attempt whose shim was killed, and a process of it that got away."""
    attempt = lab.run("sh", "-c", f"{how} sh -c {shlex.quote(script)} 2>/dev/null & {LOOP}", **changes)
    escapee, started = lab.pid_from("escapee"), attempt.started()
    os.kill(started.shim.pid, signal.SIGKILL)
    until(lambda: not lock_is_held(attempt.jobdir))
    return attempt, escapee, started


def test_when_the_shim_is_killed_the_leader_dies_and_the_escapee_is_found_and_ended(lab: Lab) -> None:
    attempt, escapee, started = orphan(lab, POLITE)
    assert wait_for_end(started.command.pid)
    assert is_alive(escapee)
    found = control.find_members(started=None, marker=attempt.spec.marker, sweep_dir=None)
    assert escapee.pid in [each.pid for each in found]

    left = control.end_without_shim(
        attempt.jobdir, started=started, marker=attempt.spec.marker, sweep_dir=None, grace_s=20
    )

    assert left == []
    assert not is_alive(escapee)
    assert (lab.work / "ended").read_text() == "polite\n"


@pytest.mark.req("PS-05")
@pytest.mark.parametrize("force", [True, False])
def test_what_resists_is_killed_only_when_allowed_and_else_listed(lab: Lab, force: bool) -> None:
    attempt, escapee, started = orphan(lab, STUBBORN)

    left = control.end_without_shim(
        attempt.jobdir, started=started, marker=attempt.spec.marker, sweep_dir=None, grace_s=0.2, force=force
    )

    assert is_alive(escapee) is not force
    assert ((escapee.pid, escapee.start_ticks) in [(each.pid, each.start_ticks) for each in left]) is not force
    assert all(each.command for each in left)


def test_an_escapee_without_environment_is_found_by_its_working_directory(lab: Lab) -> None:
    checkout = lab.work / "checkout" / "deep"
    checkout.mkdir(parents=True)
    script = f"trap 'exit' TERM; echo $$ > ../../escapee; {LOOP}"
    how = f"cd {checkout} && setsid env -i PATH=/bin:/usr/bin"
    attempt, escapee, _ = orphan(lab, script, how=how, sweep_dir=str(checkout.parent))
    arguments = {"started": None, "marker": "nobody", "grace_s": 20.0}
    assert control.find_members(started=None, marker="nobody", sweep_dir=lab.work / "check") == []

    left = control.end_without_shim(attempt.jobdir, sweep_dir=checkout.parent, **arguments)  # type: ignore[arg-type]

    assert left == []
    assert not is_alive(escapee)


@pytest.mark.req("PS-02")
def test_a_member_of_the_recorded_group_is_found_although_its_leader_is_gone(lab: Lab) -> None:
    attempt, escapee, started = orphan(lab, STUBBORN, how="env -i PATH=/bin:/usr/bin")
    assert os.getpgid(escapee.pid) == started.command.pid

    left = control.end_without_shim(attempt.jobdir, started=started, marker="nobody", sweep_dir=None, grace_s=0.1)

    assert left == []
    assert not is_alive(escapee)


@pytest.mark.req("LF-10")
@pytest.mark.parametrize("why", ["another boot", "another leader", "all pids used since"])
def test_a_group_whose_number_may_be_a_strangers_by_now_is_never_touched(lab: Lab, why: str) -> None:
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True, env={})
    attempt, _, started = orphan(lab, POLITE)
    control.end_without_shim(attempt.jobdir, started=started, marker=attempt.spec.marker, sweep_dir=None, grace_s=20)
    command = Identity(started.command.boot_id, stranger.pid, started.command.start_ticks)
    if why == "all pids used since":
        member = subprocess.Popen(
            ["sh", "-c", "sleep 1000 & echo $!; exec sleep 0"], stdout=subprocess.PIPE, start_new_session=True
        )
        assert member.stdout
        pid = int(member.stdout.readline())
        member.stdout.close()
        member.wait()
        command = command._replace(pid=member.pid)
        assert os.getpgid(pid) == member.pid
    else:
        pid = stranger.pid
    record = replace(started, command=command, fork_count=started.fork_count - 10_000_000)
    if why == "another boot":
        record = replace(started, command=command._replace(boot_id="another"))

    try:
        left = control.end_without_shim(attempt.jobdir, started=record, marker="nobody", sweep_dir=None, grace_s=0.1)

        assert left == []
        assert not wait_for_end(pid, timeout_s=0.1)
    finally:
        os.kill(pid, signal.SIGKILL)
        stranger.kill()
        stranger.wait()


@pytest.mark.req("PS-02")
def test_ending_one_attempt_leaves_another_alone(lab: Lab) -> None:
    other = lab.run("sleep", "1000")
    attempt, escapee, started = orphan(lab, STUBBORN)
    assert is_alive(other.started().command)

    control.end_without_shim(attempt.jobdir, started=started, marker=attempt.spec.marker, sweep_dir=None, grace_s=0.1)

    assert not is_alive(escapee)
    assert is_alive(other.started().command)
    assert is_alive(other.started().shim)


def test_a_living_shim_is_asked_and_never_bypassed(lab: Lab) -> None:
    attempt = lab.run("sleep", "1000")
    started = attempt.started()

    with pytest.raises(LockHeld):
        control.end_without_shim(
            attempt.jobdir, started=started, marker=attempt.spec.marker, sweep_dir=None, grace_s=0.1
        )

    assert is_alive(started.command)


def test_whoever_calls_is_no_member_even_inside_the_directory(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = lab.work / "checkout"
    inside.mkdir()
    monkeypatch.chdir(inside)

    assert control.find_members(started=None, marker="nobody", sweep_dir=Path(inside)) == []
