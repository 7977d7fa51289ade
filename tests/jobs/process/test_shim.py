"""The shim: from the order to the exit receipt, with real commands."""

from __future__ import annotations

import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from jobs.process import control, output, receipts, shim
from jobs.process.identity import LockHeld, is_alive, lock_is_held, start_ticks
from jobs.process.receipts import AlreadyStarted, Fence, MalformedReceipt, Spec, write_never_started
from jobs.process.spawner import Outcome
from tests.jobs.process.conftest import FENCE, Lab, python, until, wait_for_end

pytestmark = pytest.mark.processes

IGNORES_TERM = "import signal, os; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
WAIT = "while True: signal.pause()\n"


def context_switches(pid: int) -> int:
    """How often the process went to sleep: a measure of its activity that no other load changes."""
    found = re.search(rb"^voluntary_ctxt_switches:\s+(\d+)", shim.read_proc(pid, "status"), re.MULTILINE)
    assert found
    return int(found[1])


def cpu_ticks(pid: int) -> int:
    fields = shim.read_proc(pid, "stat").rpartition(b")")[2].split()
    return int(fields[11]) + int(fields[12])


# --- the ordinary ends


@pytest.mark.parametrize("code", [0, 3])
def test_an_exit_code_is_recorded_as_it_is(lab: Lab, code: int) -> None:
    ended = lab.run("sh", "-c", f"exit {code}").exit()

    assert (ended.cause, ended.exit_code, ended.signal) == ("exited", code, None)
    assert (ended.survivors, ended.swept, ended.errno_name) == ((), 0, "")
    assert ended.fence == FENCE


@pytest.mark.req("PS-09")
def test_death_by_a_signal_is_no_exit_code(lab: Lab) -> None:
    ended = lab.run("sh", "-c", "kill -SEGV $$").exit()

    assert (ended.cause, ended.exit_code, ended.signal) == ("signalled", None, signal.SIGSEGV)


@pytest.mark.req("PS-09")
@pytest.mark.parametrize(
    ("argv", "changes", "errno_name"),
    [
        (("no-such-program",), {}, "ENOENT"),
        (("/no/such/program",), {}, "ENOENT"),
        (("/etc/passwd",), {}, "EACCES"),
        (("true",), {"cwd": "/no/such/directory"}, "ENOENT"),
        (("true",), {"env": {"PATH": "/bin:/usr/bin", "BAD": "nul\0byte"}}, "EINVAL"),
    ],
)
def test_what_cannot_be_executed_is_a_launch_error(
    lab: Lab, argv: tuple[str, ...], changes: dict[str, object], errno_name: str
) -> None:
    ended = lab.run(*argv, **changes).exit()

    assert (ended.cause, ended.errno_name, ended.exit_code) == ("launch_error", errno_name, None)


@pytest.mark.req("PS-01", "PS-02")
def test_the_started_receipt_names_a_process_in_a_group_of_its_own(lab: Lab) -> None:
    attempt = lab.run("sleep", "1000")

    started = attempt.started()

    assert is_alive(started.command)
    assert is_alive(started.shim)
    assert os.getpgid(started.command.pid) == os.getsid(started.command.pid) == started.command.pid
    assert started.command.start_ticks == start_ticks(started.command.pid)
    assert (started.fence, started.argv0) == (FENCE, "sleep")
    assert lock_is_held(attempt.jobdir)


@pytest.mark.req("JB-08")
def test_the_command_finds_its_own_started_receipt(lab: Lab) -> None:
    attempt = lab.prepare("true")
    receipts.write_spec(attempt.jobdir, _with_argv(attempt.spec, "cat", str(attempt.jobdir / "started.json")))

    lab.launch(attempt)

    assert attempt.exit().exit_code == 0
    assert shim.unseal(attempt.stdout())["attempt"] == attempt.spec.attempt


def _with_argv(spec: Spec, *argv: str) -> Spec:
    return Spec(**{**vars(spec), "argv": argv})


# --- what the command is given


@pytest.mark.req("PS-15")
def test_the_environment_is_the_one_of_the_spec_and_nothing_else(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREIGN_SETTING", "1")

    attempt = lab.run("/usr/bin/env", env={"ONLY": "this"})
    attempt.exit()

    assert sorted(attempt.stdout().decode().splitlines()) == [f"FORGE_ATTEMPT={attempt.spec.marker}", "ONLY=this"]


def test_no_signal_is_ignored_or_blocked_in_the_command(lab: Lab) -> None:
    attempt = lab.run("grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
    attempt.exit()

    reserved = 1 << (32 - 1) | 1 << (33 - 1)  # glibc keeps these for its threads: no program can set them
    masks = [int(line.split()[1], 16) for line in attempt.stdout().decode().splitlines()]
    assert len(masks) == 2
    assert [mask & ~reserved for mask in masks] == [0, 0]


def test_only_the_three_standard_descriptors_are_open_in_the_command(lab: Lab) -> None:
    code = "import os\nfor fd in range(256):\n  try: os.fstat(fd)\n  except OSError: pass\n  else: print(fd)"
    attempt = lab.run(*python(code))
    attempt.exit()

    assert attempt.stdout().split() == [b"0", b"1", b"2"]


def test_the_oom_killer_takes_the_command_before_forge(lab: Lab) -> None:
    attempt = lab.run("cat", "/proc/self/oom_score_adj")
    attempt.exit()

    assert attempt.stdout() == b"500\n"


def test_the_command_has_a_low_autogroup_priority(lab: Lab) -> None:
    attempt = lab.run("sleep", "1000")
    pid = attempt.started().command.pid
    if not Path(f"/proc/{pid}/autogroup").exists():
        pytest.skip("this kernel has no autogroups")

    until(lambda: shim.read_proc(pid, "autogroup").endswith(b"nice 10\n"))


def test_long_input_does_not_block_and_arrives_complete(lab: Lab) -> None:
    text = "prompt äöü 🙂\n" * 100_000

    attempt = lab.run("wc", "-c", stdin=text)

    assert attempt.exit().exit_code == 0
    assert int(attempt.stdout()) == len(text.encode())


def test_without_input_the_command_reads_nothing(lab: Lab) -> None:
    attempt = lab.run("wc", "-c")

    assert attempt.exit().exit_code == 0
    assert int(attempt.stdout()) == 0


# --- deadline and cancel


@pytest.mark.req("PS-05", "PS-09", "PS-14")
def test_the_deadline_ends_a_tree_that_ignores_term_and_hides(lab: Lab) -> None:
    """The escapee double-forks into a session of its own, without environment; the stranger is not even a descendant."""
    checkout = lab.work / "checkout"
    checkout.mkdir()
    stranger = subprocess.Popen(["sleep", "1000"], cwd=checkout, env={})
    code = (
        IGNORES_TERM
        + f"os.chdir({str(checkout)!r})\n"
        + "if os.fork() == 0:\n"
        + "    os.setsid()\n"
        + "    if os.fork() == 0:\n"
        + "        os.execve('/bin/sh', ['sh', '-c', 'trap \"\" TERM; echo $$ > ../escapee; while :; do sleep 1000; done'], {})\n"
        + "    os._exit(0)\n"
        + "os.wait()\n"
        + "open('../leader', 'w').write('ready')\n"
        + WAIT
    )
    attempt = lab.prepare(*python(code), grace_s=0.3, sweep_dir=str(checkout), deadline_boottime=_in(3.0))
    lab.launch(attempt)
    escapee = lab.pid_from("escapee")

    ended = attempt.exit()

    assert (ended.cause, ended.signal, ended.survivors) == ("deadline", signal.SIGKILL, ())
    assert not is_alive(escapee)
    assert stranger.wait(5) == -signal.SIGTERM
    assert ended.ended_boottime >= (attempt.spec.deadline_boottime or 0)


def _in(seconds: float) -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) + seconds


@pytest.mark.parametrize("deadline", [0.0, -5.0, 1.0])
def test_a_deadline_in_the_past_ends_the_command_at_once(lab: Lab, deadline: float) -> None:
    ended = lab.run("sleep", "1000", deadline_boottime=deadline).exit()

    assert (ended.cause, ended.signal) == ("deadline", signal.SIGTERM)


def test_a_deadline_that_has_passed_does_not_spin(lab: Lab) -> None:
    code = IGNORES_TERM + "open('up', 'w').write(str(os.getpid()))\n" + WAIT
    attempt = lab.run(*python(code), deadline_boottime=_in(1.5), grace_s=1000.0)
    leader, shim_pid = lab.pid_from("up"), attempt.started().shim.pid
    assert not wait_for_end(leader.pid, timeout_s=2.0)
    before = context_switches(shim_pid), cpu_ticks(shim_pid)

    assert not wait_for_end(leader.pid, timeout_s=1.5)

    assert context_switches(shim_pid) - before[0] < 60
    assert cpu_ticks(shim_pid) - before[1] < os.sysconf("SC_CLK_TCK") // 4
    control.kill(attempt.jobdir, fence=FENCE)
    assert attempt.exit().cause == "deadline"


def test_during_the_grace_the_shim_sleeps(lab: Lab) -> None:
    attempt = lab.run(*python(IGNORES_TERM + "open('up', 'w').write(str(os.getpid()))\n" + WAIT), grace_s=1000.0)
    leader, shim_pid = lab.pid_from("up"), attempt.started().shim.pid
    control.term(attempt.jobdir, fence=FENCE, grace_s=1000.0)
    before = context_switches(shim_pid)

    assert not wait_for_end(leader.pid, timeout_s=2.0)

    assert context_switches(shim_pid) - before < 60
    assert cpu_ticks(shim_pid) < os.sysconf("SC_CLK_TCK") // 2


def test_an_idle_shim_uses_no_cpu(lab: Lab) -> None:
    attempt = lab.run("sleep", "1000", deadline_boottime=_in(10_000.0))
    started = attempt.started()
    assert not wait_for_end(started.command.pid, timeout_s=0.6)  # the one look at the priority is over
    switches, ticks = context_switches(started.shim.pid), cpu_ticks(started.shim.pid)

    assert not wait_for_end(started.command.pid, timeout_s=1.5)

    assert context_switches(started.shim.pid) == switches
    assert cpu_ticks(started.shim.pid) == ticks


@pytest.mark.req("PS-04", "PS-09")
def test_cancel_lets_the_command_end_politely(lab: Lab) -> None:
    attempt = lab.run("sh", "-c", "trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.05; done", grace_s=1000.0)
    until(attempt.stdout)

    assert control.term(attempt.jobdir, fence=FENCE, grace_s=1000.0)

    ended = attempt.exit()
    assert (ended.cause, ended.exit_code, ended.signal) == ("cancelled", 4, None)
    assert attempt.stdout() == b"up\nbye\n"


@pytest.mark.req("PS-05")
def test_cancel_forces_what_outlives_the_grace(lab: Lab) -> None:
    attempt = lab.run(*python(IGNORES_TERM + "open('up', 'w').write(str(os.getpid()))\n" + WAIT))
    lab.pid_from("up")

    control.term(attempt.jobdir, fence=FENCE, grace_s=0.1)

    ended = attempt.exit()
    assert (ended.cause, ended.signal, ended.survivors) == ("cancelled", signal.SIGKILL, ())


@pytest.mark.req("PS-05")
def test_without_permission_to_force_a_stubborn_command_is_left_and_reported(lab: Lab) -> None:
    attempt = lab.run(*python(IGNORES_TERM + "open('up', 'w').write(str(os.getpid()))\n" + WAIT))
    leader = lab.pid_from("up")

    control.term(attempt.jobdir, fence=FENCE, grace_s=0.1, force=False)

    assert not wait_for_end(leader.pid, timeout_s=0.5)
    members = control.find_members(started=attempt.started(), marker=attempt.spec.marker, sweep_dir=None)
    assert [(left.pid, left.start_ticks) for left in members] == [(leader.pid, leader.start_ticks)]
    assert receipts.read_exit(attempt.jobdir) is None

    control.kill(attempt.jobdir, fence=FENCE)
    assert attempt.exit().signal == signal.SIGKILL


@pytest.mark.req("PS-05", "PS-06", "PS-08")
def test_without_permission_to_force_descendants_that_stay_are_survivors(lab: Lab) -> None:
    code = (
        "import os, signal\n"
        + "if os.fork() == 0:\n"
        + "    os.setpgid(0, 0)\n"
        + "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        + "    open('child', 'w').write(str(os.getpid()))\n"
        + "    while True: signal.pause()\n"
        + WAIT
    )
    attempt = lab.run(*python(code), grace_s=0.2)
    child = lab.pid_from("child")

    control.term(attempt.jobdir, fence=FENCE, grace_s=0.2, force=False)

    ended = attempt.exit()
    assert [(left.pid, left.start_ticks) for left in ended.survivors] == [(child.pid, child.start_ticks)]
    assert "python" in ended.survivors[0].command
    assert is_alive(child)


@pytest.mark.req("LF-10")
@pytest.mark.parametrize("fence", [Fence(FENCE.grant, FENCE.token - 1), Fence(FENCE.grant + 1, FENCE.token)])
def test_a_stale_owner_cannot_cancel(lab: Lab, fence: Fence) -> None:
    attempt = lab.run("cat", "/dev/zero", output_cap=0)
    pid = attempt.started().command.pid

    assert control.kill(attempt.jobdir, fence=fence)  # delivered, and ignored

    assert not wait_for_end(pid, timeout_s=0.3)
    control.kill(attempt.jobdir, fence=FENCE)
    assert attempt.exit().cause == "cancelled"


def test_garbage_on_the_control_socket_is_ignored(lab: Lab) -> None:
    attempt = lab.run("sleep", "1000")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.connect(f"/proc/self/fd/{os.open(attempt.jobdir, os.O_PATH)}/ctl")
        for message in (b"", b"{", b"[]", b"7", b'{"fence": {"grant": 7, "token": 3}, "grace_s": "x", "force": true}'):
            link.send(message)

    assert control.kill(attempt.jobdir, fence=FENCE)

    assert attempt.exit().cause == "cancelled"


def test_nobody_listens_once_the_attempt_has_ended(lab: Lab) -> None:
    attempt = lab.run("true")
    attempt.exit()
    until(lambda: not lock_is_held(attempt.jobdir))

    assert not control.kill(attempt.jobdir, fence=FENCE)


# --- what the command leaves behind


@pytest.mark.req("PS-08")
def test_a_daemon_left_behind_is_swept_politely(lab: Lab) -> None:
    daemon = "trap 'echo polite > swept; exit' TERM; echo $$ > daemon; while :; do sleep 0.05; done"
    attempt = lab.run(
        "sh", "-c", f"setsid sh -c {shlex.quote(daemon)} & while [ ! -s daemon ]; do sleep 0.01; done; exit 0"
    )

    ended = attempt.exit()

    assert (ended.cause, ended.exit_code) == ("exited", 0)
    assert ended.swept >= 1
    assert ended.survivors == ()
    assert (lab.work / "swept").read_text() == "polite\n"


@pytest.mark.req("PS-08")
def test_a_daemon_that_ignores_term_is_killed(lab: Lab) -> None:
    daemon = "trap '' TERM; echo $$ > daemon; while :; do sleep 0.05; done"
    attempt = lab.run(
        "sh", "-c", f"setsid sh -c {shlex.quote(daemon)} & while [ ! -s daemon ]; do sleep 0.01; done", grace_s=0.1
    )
    daemon_process = lab.pid_from("daemon")

    ended = attempt.exit()

    assert ended.swept >= 1
    assert not is_alive(daemon_process)


def test_orphans_that_end_by_themselves_are_reaped_while_the_command_runs(lab: Lab) -> None:
    attempt = lab.run("sh", "-c", "(sleep 0 & echo $! > orphan) ; sleep 1000")
    orphan = int(until(lambda: (lab.work / "orphan").read_text() if (lab.work / "orphan").exists() else ""))

    until(lambda: shim.read_process(orphan) is None)

    assert receipts.read_exit(attempt.jobdir) is None


# --- once and only once


def test_a_second_launch_is_refused_while_the_first_runs(lab: Lab) -> None:
    attempt = lab.run("sleep", "1000")

    assert lab.launch(attempt).outcome is Outcome.ALREADY_RUNNING
    assert is_alive(attempt.started().command)


@pytest.mark.req("JB-10")
def test_a_second_launch_is_refused_after_the_end(lab: Lab) -> None:
    attempt = lab.run("sh", "-c", "echo x >> ran")
    attempt.exit()
    until(lambda: not lock_is_held(attempt.jobdir))

    assert lab.launch(attempt).outcome is Outcome.ALREADY_ENDED
    assert (lab.work / "ran").read_text() == "x\n"


@pytest.mark.req("JB-10")
def test_a_started_receipt_alone_forbids_another_launch(lab: Lab) -> None:
    attempt = lab.run("sh", "-c", "echo x >> ran; sleep 1000")
    until(lambda: (lab.work / "ran").exists())
    shim_pid = attempt.started().shim.pid
    os.kill(shim_pid, signal.SIGKILL)
    until(lambda: not lock_is_held(attempt.jobdir))

    assert lab.launch(attempt).outcome is Outcome.ALREADY_STARTED
    assert (lab.work / "ran").read_text() == "x\n"


def test_after_never_started_a_late_shim_runs_nothing(lab: Lab) -> None:
    attempt = lab.prepare("sh", "-c", "echo x > ran")
    ended = write_never_started(attempt.jobdir, job=1, attempt=attempt.spec.attempt, fence=FENCE)

    assert lab.launch(attempt).outcome is Outcome.ALREADY_ENDED

    assert (ended.cause, ended.exit_code) == ("never_started", None)
    assert receipts.read_exit(attempt.jobdir) == ended
    assert not (lab.work / "ran").exists()


def test_never_started_is_refused_while_a_shim_holds_the_lock_and_after_it_started(lab: Lab) -> None:
    attempt = lab.run("sleep", "1000")
    with pytest.raises(LockHeld):
        write_never_started(attempt.jobdir, job=1, attempt=1, fence=FENCE)

    os.kill(attempt.started().shim.pid, signal.SIGKILL)
    until(lambda: not lock_is_held(attempt.jobdir))

    with pytest.raises(AlreadyStarted):
        write_never_started(attempt.jobdir, job=1, attempt=1, fence=FENCE)
    assert receipts.read_exit(attempt.jobdir) is None


def test_never_started_keeps_a_true_end(lab: Lab) -> None:
    attempt = lab.run("sh", "-c", "exit 5")
    ended = attempt.exit()
    until(lambda: not lock_is_held(attempt.jobdir))

    assert write_never_started(attempt.jobdir, job=1, attempt=1, fence=FENCE) == ended


@pytest.mark.parametrize("damage", ["cut", "foreign boot"])
def test_a_spec_that_cannot_be_believed_is_refused(lab: Lab, damage: str) -> None:
    attempt = lab.prepare("sh", "-c", "echo x > ran")
    path = attempt.jobdir / "spec.json"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    else:
        receipts.write_spec(attempt.jobdir, Spec(**{**vars(attempt.spec), "boot_id": "another"}))

    assert lab.launch(attempt).outcome is Outcome.BAD_SPEC
    assert not (attempt.jobdir / "started.json").exists()
    assert not (lab.work / "ran").exists()


# --- receipts that survive


def test_a_disk_that_refuses_the_exit_receipt_keeps_the_lock_until_it_can_be_written(lab: Lab) -> None:
    attempt = lab.run("sleep", "1000")
    started = attempt.started()
    _, hard = resource.prlimit(started.shim.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(started.shim.pid, resource.RLIMIT_FSIZE, (0, hard))
    os.kill(started.command.pid, signal.SIGKILL)
    assert wait_for_end(started.command.pid)

    assert not wait_for_end(started.shim.pid, timeout_s=0.5)
    assert receipts.read_exit(attempt.jobdir) is None
    assert lock_is_held(attempt.jobdir)

    resource.prlimit(started.shim.pid, resource.RLIMIT_FSIZE, (hard, hard))
    assert attempt.exit().signal == signal.SIGKILL


@pytest.mark.parametrize("name", ["started.json", "exit.json"])
@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"v":1,"kind":"exit","exit_code":0}', None])
def test_a_damaged_receipt_is_an_error_and_no_outcome(lab: Lab, name: str, damage: bytes | None) -> None:
    attempt = lab.run("true")
    attempt.exit()
    until(lambda: not lock_is_held(attempt.jobdir))
    path = attempt.jobdir / name
    path.write_bytes(path.read_bytes().replace(b'"attempt":', b'"attempt":1') if damage is None else damage)

    with pytest.raises(MalformedReceipt):
        receipts.read_started(attempt.jobdir) if name == "started.json" else receipts.read_exit(attempt.jobdir)


def test_a_receipt_whose_rename_was_undone_by_a_power_loss_still_counts(lab: Lab) -> None:
    attempt = lab.run("sh", "-c", "exit 6")
    ended = attempt.exit()
    until(lambda: not lock_is_held(attempt.jobdir))
    (attempt.jobdir / "exit.json").rename(attempt.jobdir / ".exit.json")

    assert receipts.read_exit(attempt.jobdir) == ended


def test_a_reservation_is_no_receipt(lab: Lab) -> None:
    attempt = lab.run("sleep", "1000")
    attempt.started()

    assert (attempt.jobdir / ".exit.json").exists()
    assert receipts.read_exit(attempt.jobdir) is None


def test_the_end_is_told_to_every_live_socket_and_stale_ones_do_no_harm(lab: Lab) -> None:
    wake_dir = lab.work / "wake"
    wake_dir.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stale:
        stale.bind(str(wake_dir / "0.sock"))
    (wake_dir / "no-socket.sock").write_text("")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wake:
        wake.bind(str(wake_dir / "1.sock"))
        wake.settimeout(30)

        attempt = lab.run("true", wake_dir=str(wake_dir))

        assert wake.recv(100) == b"exit:%d" % attempt.spec.attempt
    assert receipts.read_exit(attempt.jobdir) is not None  # the receipt comes first


def test_the_receipt_counts_cpu_time_and_memory_of_the_whole_tree(lab: Lab) -> None:
    busy = python("import time\nblock = b'x' * 60_000_000\nwhile time.process_time() < 0.3: pass")
    ended = lab.run("sh", "-c", '"$@" & wait', "sh", *busy).exit()

    assert ended.cpu_s >= 0.3
    assert ended.max_rss_kb > 50_000


# --- output


def test_output_over_the_cap_loses_its_middle_and_the_count_is_exact(lab: Lab) -> None:
    attempt = lab.run("seq", "1", "200000", output_cap=1000)
    whole = "".join(f"{number}\n" for number in range(1, 200_001)).encode()

    ended = attempt.exit()

    captured = output.read(attempt.jobdir, "stdout")
    assert (captured.head, captured.tail) == (whole[:500], whole[-500:])
    assert captured.dropped == len(whole) - 1000
    assert ended.output["stdout"].total == captured.total == len(whole)
    assert f"… {len(whole) - 1000} bytes dropped …" in captured.text()


@pytest.mark.req("PS-14")
def test_a_flood_of_output_takes_no_memory_and_stays_within_the_cap(lab: Lab) -> None:
    size, cap = 300_000_000, 1_000_000
    attempt = lab.run("sh", "-c", f"head -c {size} /dev/zero; echo > flooded; exec sleep 1000", output_cap=cap)
    until(lambda: (lab.work / "flooded").exists())

    found = re.search(rb"^VmHWM:\s+(\d+) kB", shim.read_proc(attempt.started().shim.pid, "status"), re.MULTILINE)

    assert found
    assert int(found[1]) < 24_000
    control.kill(attempt.jobdir, fence=FENCE)
    assert attempt.exit().output["stdout"].total == size
    kept = sum((attempt.jobdir / name).stat().st_size for name in ("stdout", "stdout.tail"))
    assert kept == cap + shim.RING_HEADER.size


def test_bytes_that_are_no_text_and_a_missing_newline_are_kept_as_they_are(lab: Lab) -> None:
    attempt = lab.run("printf", "\\377\\376 caf\\303\\251 no newline")
    attempt.exit()

    captured = output.read(attempt.jobdir, "stdout")

    assert captured.head == b"\xff\xfe caf\xc3\xa9 no newline"
    assert captured.text() == "\ufffd\ufffd café no newline"


def test_the_two_streams_are_kept_apart(lab: Lab) -> None:
    attempt = lab.run("sh", "-c", "echo out; echo err >&2")
    attempt.exit()

    assert output.read(attempt.jobdir, "stdout").text() == "out\n"
    assert output.read(attempt.jobdir, "stderr").text() == "err\n"


def test_a_follower_sees_output_while_the_command_runs(lab: Lab) -> None:
    attempt = lab.run("sh", "-c", "echo one; while [ ! -e go ]; do sleep 0.01; done; echo two")
    first = until(lambda: (chunk := output.read_from(attempt.jobdir, "stdout", 0)).data and chunk)
    assert isinstance(first, output.Chunk)
    assert first.data == b"one\n"
    assert output.read_from(attempt.jobdir, "stdout", first.next_offset).data == b""

    (lab.work / "go").touch()
    attempt.exit()

    assert output.read_from(attempt.jobdir, "stdout", first.next_offset) == output.Chunk(b"two\n", 0, 8)


def test_a_full_disk_does_not_stop_the_command(lab: Lab) -> None:
    attempt = lab.run("sh", "-c", "while [ ! -e go ]; do sleep 0.01; done; head -c 500000 /dev/zero; exit 9")
    pid = attempt.started().shim.pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (8192, hard))
    (lab.work / "go").touch()

    ended = attempt.exit()

    assert ended.exit_code == 9
    assert (ended.output["stdout"].total, ended.output["stdout"].error) == (500_000, "EFBIG")
    captured = output.read(attempt.jobdir, "stdout", total=ended.output["stdout"].total)
    assert (len(captured.head), captured.dropped, captured.tail) == (8192, 500_000 - 8192, b"")
