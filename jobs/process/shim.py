"""One supervised command: the spawner that forks shims, the shim, and the gate that becomes the command.

    python -I -S shim.py --spawner HOME/spawner.sock

Standard library only, no import of Forge: it outlives everything else of Forge. Three processes, all forked ahead of
time so that a launch waits for no fork:

spawner  binds a datagram socket and keeps a few shims warm; it never reads the socket itself
shim     blocks in ``recvfrom`` on that shared socket; the kernel hands each order (a job directory) to exactly one.
         It locks the directory, writes the receipts, captures output, enforces deadline and cancel, ends the tree
gate     child of the shim in a session of its own; undoes what it inherited and execs the command once told to go

Effects of one attempt: lock -> started receipt durable -> exec -> end of the tree -> exit receipt durable -> wake ->
lock released by the shim's own end. A crash is a prefix of it. The other modules of this package import names and
helpers from here, so there is one definition of each; importing has no side effects.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback
import warnings  # noqa: F401 - os.execvpe imports it, which must not happen in each gate
from contextlib import suppress

try:  # the bare hash modules: hashlib would load OpenSSL into what every launch forks
    from _sha2 import sha256  # type: ignore[import-not-found]  # Python >= 3.12
except ImportError:
    from _sha256 import sha256  # type: ignore[import-not-found]

TYPE_CHECKING = False  # importing ``typing`` would make each fork copy half as much again
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any

SPEC, LOCK, STARTED, EXIT, CONTROL = "spec.json", "lock", "started.json", "exit.json", "ctl"
RESERVED_EXIT = ".exit.json"  # see Job.reserve_exit
MARKER = "FORGE_ATTEMPT"
VERSION = 1

WARM_SHIMS = 3
SPAWNER_CHECK_MS, SPAWNER_RETRY_MS = 1000, 200  # is the socket still ours; next try after a fork failed
CHANGED_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)  # ignored by the spawner, default again in the gate
FORCE_LIMIT_S = 10.0  # after this long of KILL what is left is a survivor (stuck in the kernel)
LOOK_S = (0.002, 0.25)  # first and longest pause between two scans of an ending tree
NICE_RETRY_S, NICE_TRIES = 0.25, 40  # unprivileged writes to autogroup: one per 0.1 s on the whole machine
RECEIPT_BLOCK = 4096  # bytes reserved for the exit receipt
RING_HEADER = struct.Struct("<QQQ")  # ring size; stream bytes announced, confirmed. Reader: output.py
CHUNK = 1 << 16  # bytes per read; also the default capacity of a pipe
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, TFD_TIMER_ABSTIME = 1, 36, 1

_libc = ctypes.CDLL(None)


def canonical(body: dict[str, Any]) -> bytes:
    """The one byte sequence that a checksum is taken of."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def seal(body: dict[str, Any]) -> bytes:
    """``body`` with its own sha256: what is torn or edited is recognised."""
    return canonical({**body, "sha256": sha256(canonical(body)).hexdigest()}) + b"\n"


def unseal(raw: bytes) -> dict[str, Any]:
    """The body, or ValueError when it is incomplete, no JSON object, or does not match its checksum."""
    body = json.loads(raw)
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    if body.pop("sha256", None) != sha256(canonical(body)).hexdigest():
        raise ValueError("the checksum does not match")
    return body


def read_file(path: str) -> bytes:
    """Plain system calls: ``open`` touches many pages, and after a fork each has to be copied."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(fd, CHUNK), b""))
    finally:
        os.close(fd)


def write_file(path: str, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)


def create(name: str) -> int:
    return os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """All of ``data`` at ``offset``; after a short write (a full disk) it goes on until the error shows."""
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count


def name_of(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "EIO")


class Process:
    """One line of /proc/PID/stat. ``ticks``: start in clock ticks since boot; with the pid it names a process."""

    __slots__ = ("group", "is_ended", "parent", "pid", "ticks")

    def __init__(self, pid: int, stat: bytes) -> None:
        fields = stat.rpartition(b")")[2].split()  # the command name before it may hold blanks and parentheses
        self.pid, self.parent, self.group, self.ticks = pid, int(fields[1]), int(fields[2]), int(fields[19])
        # A main thread that left its other threads running looks like a zombie too, but has more than one thread.
        self.is_ended = fields[0] in b"ZX" and int(fields[17]) <= 1


def read_proc(pid: int, name: str) -> bytes:
    """A file of /proc/PID; empty when the process is gone or not ours to read."""
    try:
        return read_file(f"/proc/{pid}/{name}")
    except OSError:
        return b""


def read_process(pid: int) -> Process | None:
    raw = read_proc(pid, "stat")
    return Process(pid, raw) if raw else None


def boot_id() -> str:
    return read_file("/proc/sys/kernel/random/boot_id").decode().strip()


def fork_count() -> int:
    """Forks since boot. While fewer than pid_max lie between two moments, no pid can have come round again."""
    return int(read_file("/proc/stat").partition(b"\nprocesses ")[2].split(None, 1)[0])


def snapshot() -> dict[int, Process]:
    """Every process that has not ended, by pid."""
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process and not process.is_ended}


def ancestors(pid: int, table: dict[int, Process]) -> Iterator[int]:
    """``pid`` and whoever stands above it: never to be signalled on behalf of a tree below."""
    while pid in table:
        yield pid
        pid = table[pid].parent


def descendants(root: int, table: dict[int, Process]) -> set[int]:
    """Pids below ``root``; of a subreaper these are all that it ever started, however they detached themselves."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found, todo = set[int](), [root]
    while todo:
        born = children.get(todo.pop(), [])
        found.update(born)
        todo += born
    return found


def is_stray(pid: int, marker: str, sweep_dir: str) -> bool:
    """Whether a process belongs to an attempt by its environment or by its working directory.

    sweep_dir: resolved; empty = none. Also true after the directory was removed.
    """
    if f"\0{MARKER}={marker}\0".encode() in b"\0" + read_proc(pid, "environ"):
        return True
    try:
        cwd = os.readlink(f"/proc/{pid}/cwd").removesuffix(" (deleted)") if sweep_dir else ""
    except OSError:
        return False
    return bool(sweep_dir) and (cwd + "/").startswith(sweep_dir + "/")


def signal_process(pid: int, ticks: int, number: int) -> bool:
    """Signal exactly this process; False when it is gone or not ours.

    The pidfd is opened first and pins whoever has the pid now; only then the start time is compared. In the other
    order the pid could change hands between the two.
    """
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        process = read_process(pid)
        if process is None or process.ticks != ticks:
            return False
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def describe(process: Process) -> dict[str, Any]:
    """A survivor as receipts list it; the command line is cut at 500 characters."""
    command = read_proc(process.pid, "cmdline").rstrip(b"\0").replace(b"\0", b" ") or read_proc(process.pid, "comm")
    return {"pid": process.pid, "start_ticks": process.ticks, "command": command.decode(errors="replace")[:500]}


def prctl(option: int, value: int) -> None:
    _libc.prctl(option, value, 0, 0, 0)


class Gate:
    """The future command, forked before its order is known.

    link: carries the order and "go" down, the name of an errno up; its end without one means that exec succeeded
    """

    def __init__(self, unneeded: Collection[int]) -> None:
        self.link, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.stdout, stdout = os.pipe()
        self.stderr, stderr = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            for fd in (self.link.detach(), *unneeded):
                os.close(fd)
            become_command(far, stdout, stderr)
        for fd in (far.detach(), stdout, stderr):
            os.close(fd)
        process = read_process(self.pid)
        self.ticks = process.ticks if process else 0


def become_command(link: socket.socket, stdout: int, stderr: int) -> None:
    """Undo what was inherited, wait for order and go, exec. Never returns."""
    try:
        os.setsid()
        write_file("/proc/self/comm", b"forge-gate")
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # no shim, no unsupervised command
        for number in CHANGED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        lower_priority()
        os.umask(0o022)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        order = link.recv(CHUNK)
        if order:  # else its shim is gone
            spec = json.loads(read_file(f"{os.fsdecode(order)}/{SPEC}"))  # the shim has checked it when it says go
            if spec.get("stdin") is not None:
                os.dup2(text_as_file(spec["stdin"]), 0)
            os.chdir(spec["cwd"])  # only reading up to here, so it may overlap with the writing of the receipt
            if link.recv(8) == b"go":  # else refused, or the shim died before its receipt was durable
                os.execvpe(spec["argv"][0], spec["argv"], {**spec["env"], MARKER: spec["marker"]})
    except OSError as error:
        link.send(name_of(error).encode())
    except BaseException:  # noqa: BLE001 - a NUL byte in the environment, say: a launch error like any other
        link.send(b"EINVAL")
    finally:
        os._exit(127)


def lower_priority() -> None:
    """The OOM killer takes commands before Forge, and busy commands do not slow the control plane down (9.5x)."""
    for path, value in (("/proc/self/oom_score_adj", b"500"), ("/proc/self/autogroup", b"10")):
        with suppress(OSError):  # not supported; or autogroup's rate limit, then Job.retry_nice comes back to it
            write_file(path, value)


def text_as_file(text: str) -> int:
    """A read-only descriptor of ``text`` that cannot block, whatever its length and however slowly it is read."""
    fd = os.memfd_create("stdin")
    write_all(fd, text.encode("utf-8", "surrogateescape"), 0)
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


class Capture:
    """One output stream: the first half of the cap in NAME, the latest bytes in the ring NAME.tail.

    Memory is one chunk. A write error (full disk) never reaches the command: from then on bytes are only counted.
    """

    def __init__(self, fd: int, name: str, cap: int) -> None:
        os.set_blocking(fd, False)
        self.fd, self.name = fd, name
        self.head_size, self.ring_size = cap // 2, cap - cap // 2
        self.total, self.error, self.is_closed = 0, "", False
        self.files = dict[str, int]()

    def pump(self) -> bool:
        """Store what one read gives; False when nothing is waiting (any more)."""
        try:
            data = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return False
        self.is_closed = not data
        if not self.error:
            try:
                self.store(memoryview(data))
            except OSError as error:
                self.error = name_of(error)
        self.total += len(data)
        return bool(data)

    def store(self, data: memoryview) -> None:
        room = max(self.head_size - self.total, 0)
        if data[:room]:
            write_all(self.file(self.name), data[:room], self.total)
        if data[room:] and self.ring_size:
            self.store_tail(data[room:], self.total + len(data))

    def store_tail(self, data: memoryview, total: int) -> None:
        """Announce, write, confirm: so a reader knows at any moment which bytes of the ring may be changing."""
        ring = self.file(f"{self.name}.tail")
        write_all(ring, RING_HEADER.pack(self.ring_size, total, total - len(data)), 0)
        data = data[-self.ring_size :]
        while data:
            place = (total - len(data) - self.head_size) % self.ring_size
            piece = data[: self.ring_size - place]
            write_all(ring, piece, RING_HEADER.size + place)
            data = data[len(piece) :]
        write_all(ring, RING_HEADER.pack(self.ring_size, total, total), 0)

    def file(self, name: str) -> int:
        """Made at the first byte: most commands say nothing on one of the streams."""
        if name not in self.files:
            self.files[name] = create(name)
        return self.files[name]

    def drain(self) -> dict[str, Any]:
        """Take what is still in the pipe (bounded: a survivor may go on writing). Returns: the receipt's entry."""
        for _ in range((2 << 20) // CHUNK):
            if self.is_closed or not self.pump():
                break
        return {"total": self.total, "error": self.error}


class Tree:
    """What descends from the command, and its end: TERM, grace, KILL until two scans in a row find nothing."""

    def __init__(self, leader: int, marker: str, sweep_dir: str) -> None:
        self.leader, self.marker = leader, marker
        self.sweep_dir = os.path.realpath(sweep_dir) if sweep_dir else ""
        self.status: int | None = None  # of the leader, as waitpid gives it
        self.is_over = self.is_ending = self.is_sweeping = self.may_force = False
        self.kill_at = self.look_at = self.pause_s = 0.0  # monotonic; look_at: the next scan, 0 = none is due
        self.quiet_scans = 0
        self.told, self.swept = set[tuple[int, int]](), set[tuple[int, int]]()
        self.survivors: list[dict[str, Any]] = []

    def reap(self) -> bool:
        """Collect ended children. True: no child is left, which of a subreaper proves that no descendant is."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.leader:
                self.status = status

    def settle(self, grace_s: float) -> None:
        """A child ended. With the leader gone nothing more is to do (and to scan) or what it left is swept."""
        had_leader, nothing_left = self.status is None, self.reap()
        if self.status is None:
            return
        if not self.is_ending:
            self.is_over, self.is_sweeping = nothing_left, not nothing_left
            self.end(grace_s, force=True)
        elif had_leader and not self.may_force:
            self.end(grace_s, force=False)  # what the leader leaves gets a grace of its own

    def end(self, grace_s: float, *, force: bool) -> None:
        """Begin to end the tree, or hurry up: later calls may shorten a grace and allow force, never the reverse."""
        now = time.monotonic()
        kill_at = now + max(grace_s, 0)
        self.kill_at = min(self.kill_at, kill_at) if self.may_force else kill_at
        self.may_force = self.may_force or force
        self.is_ending, self.look_at, self.pause_s = True, now, 0.0

    def look(self, now: float) -> None:
        """One scan of a tree that is ending, and what follows from it."""
        self.reap()
        left = self.members()
        if self.is_sweeping:
            self.swept.update((process.pid, process.ticks) for process in left)
        is_late = now >= self.kill_at
        self.tell(left, signal.SIGKILL if is_late and self.may_force else signal.SIGTERM)
        self.quiet_scans = self.quiet_scans + 1 if not left and self.status is not None else 0
        gave_up = now >= self.kill_at + FORCE_LIMIT_S if self.may_force else is_late and self.status is not None
        if self.quiet_scans == 2 or gave_up:
            self.survivors, self.is_over = [describe(process) for process in left], True
        elif is_late and not self.may_force:
            self.look_at = 0.0  # told, grace over, no force: supervised as before until it ends or force is allowed
        else:
            self.pause_s = min(max(2 * self.pause_s, LOOK_S[0]), LOOK_S[1])
            self.look_at = now + self.pause_s if is_late else min(now + self.pause_s, self.kill_at)

    def members(self) -> list[Process]:
        """Descendants, and whoever is none but carries the marker or works in sweep_dir."""
        table = snapshot()
        below, spared = descendants(os.getpid(), table), set(ancestors(os.getpid(), table))
        others = table.keys() - below - spared
        return [table[pid] for pid in (*below, *(n for n in others if is_stray(n, self.marker, self.sweep_dir)))]

    def tell(self, left: list[Process], number: int) -> None:
        """Each process gets TERM once, however late it is found, and KILL as often as it takes."""
        by_group = self.status is None and (number == signal.SIGKILL or not self.told)
        if by_group:  # all at once, so no fork bomb outruns us; safe since the unreaped leader keeps its number taken
            with suppress(ProcessLookupError):
                os.killpg(self.leader, number)
        for process in left:
            name, is_told = (process.pid, process.ticks), by_group and process.group == self.leader
            if not is_told and (number == signal.SIGKILL or name not in self.told):
                signal_process(*name, number)
            self.told.add(name)


class Refused(Exception):
    """The order is not carried out; ``args``: the outcome as spawner.py names it, and a detail for people."""


class Job:
    """An attempt from its lock to its exit receipt. It works in the job directory, so all names here are short."""

    def __init__(self, gate: Gate, forks: int) -> None:
        self.gate, self.boot, self.forks, self.shim = gate, boot_id(), forks, read_process(os.getpid())
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.deadline: int = _libc.timerfd_create(time.CLOCK_BOOTTIME, os.O_CLOEXEC | os.O_NONBLOCK)
        self.child_ended, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.poll, self.handlers = select.poll(), dict[int, "Callable[[], object]"]()
        self.nice_at, self.nice_tries = 0.0, NICE_TRIES
        self.cause = ""

    def claim(self, jobdir: str) -> None:
        """Take the lock for good and read the order, or raise Refused."""
        os.chdir(jobdir)
        lock_for_good()
        for name, outcome in ((EXIT, "already_ended"), (STARTED, "already_started")):
            if os.access(name, os.F_OK):
                raise Refused(outcome, name)
        try:
            self.spec = spec = unseal(read_file(SPEC))
            if (spec["v"], spec["boot_id"]) != (VERSION, self.boot):
                raise ValueError("of another version, or from before a reboot: its deadline means nothing now")
            self.tree = Tree(self.gate.pid, spec["marker"], spec.get("sweep_dir") or "")
            pipes = {"stdout": self.gate.stdout, "stderr": self.gate.stderr}
            self.captures = [Capture(fd, name, spec["output_cap"]) for name, fd in pipes.items()]
        except (ValueError, KeyError) as error:
            raise Refused("bad_spec", repr(error)) from None

    def listen(self) -> None:
        """Open the control socket, arm the deadline: on the boot clock, which unlike poll's counts suspended time."""
        with suppress(FileNotFoundError):
            os.unlink(CONTROL)  # of a shim that died before its receipt
        self.control.bind(CONTROL)  # a relative name: socket paths are limited to 108 bytes
        if (at := self.spec.get("deadline_boottime")) is not None:
            at_ns = max(int(at * 1e9), 1)  # 0 would disarm the timer; the past makes it fire at once
            timer = (ctypes.c_long * 4)(0, 0, *divmod(at_ns, 10**9))
            _libc.timerfd_settime(self.deadline, TFD_TIMER_ABSTIME, timer, None)

    def record_started(self) -> None:
        """The started receipt, durable before the command may run: "no lock, no receipt" permits a second launch.

        Rename comes before fsync on purpose. The command waits until all three have returned, so a receipt torn by a
        power loss belongs to a command that never ran; and one journal commit then carries file, names and directory,
        which makes the second and third call cheap. Each is needed: for the content, for its name (and the reserved
        one) in the job directory, and for the name of the job directory itself.
        """
        self.reserve_exit()
        self.wall, self.boottime = {"started": time.time()}, {"started": time.clock_gettime(time.CLOCK_BOOTTIME)}
        receipt = create(f".{STARTED}")
        write_all(receipt, seal(self.body("started") | self.identities()), 0)
        os.rename(f".{STARTED}", STARTED)
        try:
            for fd in (receipt, *(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for name in (".", ".."))):
                os.fsync(fd)
                os.close(fd)
        except OSError:
            os.unlink(STARTED)  # nothing will run, so nothing has started
            raise

    def reserve_exit(self) -> None:
        """Name and block of the exit receipt, made durable along with the started receipt.

        So a disk that fills up later does not cost us the exit code, and the end needs no sync of the directory:
        should a power loss undo the rename, the receipt stands under the reserved name, where read_exit looks too.
        """
        self.exit_fd = create(RESERVED_EXIT)
        write_all(self.exit_fd, b" " * RECEIPT_BLOCK, 0)

    def body(self, kind: str) -> dict[str, Any]:
        """What both receipts say."""
        same = {name: self.spec[name] for name in ("job", "attempt", "fence")}
        return {"v": VERSION, "kind": kind, "boot_id": self.boot, "wall": self.wall, "boottime": self.boottime, **same}

    def identities(self) -> dict[str, Any]:
        """Who runs the attempt. The pid of the command is also the id of its group and session."""
        assert self.shim
        return {
            "shim": {"pid": self.shim.pid, "start_ticks": self.shim.ticks},
            "command": {"pid": self.gate.pid, "start_ticks": self.gate.ticks, "argv0": self.spec["argv"][0]},
            "fork_count": self.forks,
        }

    def go(self) -> None:
        self.boottime["go"] = time.clock_gettime(time.CLOCK_BOOTTIME)
        with suppress(OSError):  # a gate that somebody killed: supervised like any command that was
            self.gate.link.send(b"go")

    def supervise(self) -> None:
        """Sleep in poll until the tree has ended; a timer runs only while something is due."""
        self.watch(self.control.fileno(), self.obey)
        self.watch(self.deadline, self.meet_deadline)
        self.watch(self.child_ended, self.collect)
        for capture in self.captures:
            self.watch(capture.fd, capture.pump)
        self.nice_at = time.monotonic() + NICE_RETRY_S
        while not self.tree.is_over:
            for fd, _ in self.poll.poll(self.timeout_ms()):
                self.handlers[fd]()
            for capture in self.captures:
                if capture.is_closed and capture.fd in self.handlers:
                    del self.handlers[capture.fd]
                    self.poll.unregister(capture.fd)
            now = time.monotonic()
            if self.nice_at and now >= self.nice_at:
                self.retry_nice(now)
            if self.tree.look_at and now >= self.tree.look_at and not self.tree.is_over:
                self.tree.look(now)

    def watch(self, fd: int, handler: Callable[[], object]) -> None:
        self.handlers[fd] = handler
        self.poll.register(fd, select.POLLIN)

    def timeout_ms(self) -> float | None:
        due = [moment for moment in (self.nice_at, self.tree.look_at) if moment]
        return max(min(due) - time.monotonic(), 0) * 1000 if due else None

    def collect(self) -> None:
        os.read(self.child_ended, CHUNK)
        self.tree.settle(self.spec["grace_s"])

    def obey(self) -> None:
        """One control message. Another fence than ours is that of an owner who lost the attempt: ignored."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            order = json.loads(self.control.recv(CHUNK))
            if order["fence"] == self.spec["fence"]:
                self.end("cancelled", float(order["grace_s"]), force=bool(order["force"]))

    def meet_deadline(self) -> None:
        os.read(self.deadline, 8)
        self.end("deadline", self.spec["grace_s"], force=True)

    def end(self, cause: str, grace_s: float, *, force: bool) -> None:
        """The first reason to end a command that still runs is the cause of its end."""
        self.tree.settle(self.spec["grace_s"])
        if self.tree.status is None:
            self.cause = self.cause or cause
        self.tree.end(grace_s, force=force)

    def retry_nice(self, now: float) -> None:
        """The gate's write to autogroup may have met the rate limit: try again later, never wait for it."""
        self.nice_at, self.nice_tries = 0.0, self.nice_tries - 1
        try:
            path = f"/proc/{self.gate.pid}/autogroup"
            if not read_file(path).endswith(b" nice 10\n"):
                write_file(path, b"10")
        except BlockingIOError:
            self.nice_at = now + NICE_RETRY_S if self.nice_tries else 0.0
        except OSError:
            return  # no autogroups here, or the command has just ended

    def record_exit(self) -> None:
        """The exit receipt, durable before anybody is told. A disk that refuses it keeps us here, with the lock."""
        raw, pause_ms = seal(self.exit_body()).ljust(RECEIPT_BLOCK), 100
        while True:
            try:
                write_all(self.exit_fd, raw, 0)
                os.fdatasync(self.exit_fd)  # the content and its place; the name is durable since the start
                os.rename(RESERVED_EXIT, EXIT)
            except OSError:
                # Pages that failed to sync count as clean, so a later sync of them proves nothing: write them anew.
                select.poll().poll(pause_ms)
                pause_ms = min(2 * pause_ms, 5000)
            else:
                return

    def exit_body(self) -> dict[str, Any]:
        status, used, errno_name = self.tree.status, resource.getrusage(resource.RUSAGE_CHILDREN), self.launch_error()
        code = None if status is None or errno_name else os.waitstatus_to_exitcode(status)
        ended = "signalled" if code is None or code < 0 else "exited"
        self.wall["ended"], self.boottime["ended"] = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
        return self.body("exit") | {
            "cause": "launch_error" if errno_name else self.cause or ended,
            "exit_code": None if code is None or code < 0 else code,
            "signal": -code if code is not None and code < 0 else None,
            "errno_name": errno_name,
            "survivors": self.tree.survivors,
            "swept": len(self.tree.swept),
            "output": {capture.name: capture.drain() for capture in self.captures},
            "usage": {"cpu_s": round(used.ru_utime + used.ru_stime, 6), "max_rss_kb": used.ru_maxrss},
        }

    def launch_error(self) -> str:
        """Name of the errno that kept the command from running; empty when it was exec'ed."""
        self.gate.link.setblocking(False)
        for _ in range(2):  # a gate that failed before it read "go" shows as a reset first, then with its message
            with suppress(OSError):
                return self.gate.link.recv(64).decode()
        return ""

    def wake_others(self) -> None:
        """A datagram to every socket of the host; stale ones are ignored, a full one has its reader awake already."""
        with suppress(OSError):
            os.chdir(self.spec["wake_dir"])
            for name in os.listdir():
                if name.endswith(".sock"):
                    with suppress(OSError):
                        self.control.sendto(b"exit:%d" % self.spec["attempt"], socket.MSG_DONTWAIT, name)


def lock_for_good() -> None:
    """flock on ``lock`` until this process is gone; the command never sees the descriptor."""
    fd = os.open(LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    for patience_ms in (2, 5, 10, 20, 0):  # somebody may just be testing whether it is held
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            select.poll().poll(patience_ms)
    raise Refused("already_running", "another process holds the lock")


def start(job: Job, jobdir: str) -> tuple[str, str]:
    """Returns: the outcome and a detail for people. Nothing runs unless the outcome is ``started``."""
    try:
        job.claim(jobdir)
        job.listen()
        job.record_started()
    except Refused as refusal:
        return str(refusal.args[0]), str(refusal.args[1])
    except OSError as error:
        return "failed", str(error)
    job.go()
    return "started", ""


def shim(orders: socket.socket, announce: int, spawner: int, forks: int) -> None:
    """Get warm, wait for one order, carry it out."""
    gate = Gate(unneeded=(orders.fileno(), announce))  # first of all: what is touched before a fork is copied after it
    os.setsid()
    write_file("/proc/self/comm", b"forge-shim")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    job = Job(gate, forks)
    rehearse()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # until it has an order a shim lives and dies with its spawner
    if os.getppid() != spawner:
        return
    order, client = orders.recvfrom(CHUNK)
    prctl(PR_SET_PDEATHSIG, 0)
    os.write(announce, b"!")
    os.close(announce)
    with suppress(OSError):
        gate.link.send(order)
    outcome, detail = start(job, os.fsdecode(order))
    answer = {"jobdir": os.fsdecode(order), "outcome": outcome, "detail": detail}
    with suppress(OSError):  # an answer is a hint: who misses it looks into the job directory
        orders.sendto(canonical(answer), socket.MSG_DONTWAIT, client)
    orders.close()  # a running shim must not keep the spawner's address alive
    if outcome == "started":
        job.supervise()
        job.record_exit()
        job.wake_others()


def rehearse() -> None:
    """Touch what an order will touch: what is written after a fork is copied first, and now nobody waits for it."""
    unseal(seal({"text": ["a"], "number": 1, "fraction": 1.5, "nothing": None, "map": {"a": "b"}}))
    Tree(0, "", "")


def spawner(path: str) -> None:
    """Keep WARM_SHIMS waiting until the socket is no longer ours. Shims at work do not depend on this process."""
    directory, name = os.path.split(path)
    os.chdir(directory)
    os.umask(0o077)
    orders = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with suppress(FileNotFoundError):
        os.unlink(f"{name}.new")
    orders.bind(f"{name}.new")
    os.rename(f"{name}.new", name)
    if os.fork():
        os._exit(0)  # the caller waits for this: the socket is bound, and the child is nobody's child any more
    write_file("/proc/self/comm", b"forge-spawner")
    reset_signals()
    for number in CHANGED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # SIGCHLD: the kernel reaps shims
    rehearse()
    prctl(PR_SET_PDEATHSIG, 0)
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection would touch, and so copy, every page
    keep_warm(orders, name, os.stat(name).st_ino)


def reset_signals() -> None:
    """Default disposition for all 64 signals and an empty mask: an ignored signal would survive every fork and exec."""
    for number in range(1, signal.NSIG):
        with suppress(OSError, ValueError):  # KILL, STOP and the two that libc keeps for itself
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def keep_warm(orders: socket.socket, name: str, inode: int) -> None:
    """Replace each shim that took an order (it says so) or died (its pipe closes silently, and we do not hurry)."""
    warm, poll, must_pause = set[int](), select.poll(), False
    while is_ours(name, inode):
        while len(warm) < WARM_SHIMS and not must_pause:
            try:
                fd = fork_shim(orders, warm)
            except OSError:
                must_pause = True  # no process or no memory to be had
            else:
                warm.add(fd)
                poll.register(fd, select.POLLIN)
        events, must_pause = poll.poll(SPAWNER_RETRY_MS if must_pause else SPAWNER_CHECK_MS), False
        for fd, _ in events:
            must_pause = must_pause or not os.read(fd, 1)
            poll.unregister(fd)
            os.close(fd)
            warm.discard(fd)


def is_ours(name: str, inode: int) -> bool:
    """False once the socket was replaced or removed, or its directory went away: then nobody can reach us."""
    try:
        return os.stat(name).st_ino == inode
    except OSError:
        return False


def fork_shim(orders: socket.socket, warm: Collection[int]) -> int:
    """Returns: the descriptor that shows when the shim takes an order or dies."""
    parent, forks = os.getpid(), fork_count()
    seen, announce = os.pipe()
    if os.fork():
        os.close(announce)
        return seen
    try:
        for fd in (seen, *warm):
            os.close(fd)
        shim(orders, announce, parent, forks)
    except BaseException:  # noqa: BLE001 - the one trace that a bug of ours can leave; the kernel ends the command
        with suppress(OSError), open("shim.err", "a") as file:
            traceback.print_exc(file=file)
    finally:
        os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:2] != ["--spawner"] or len(sys.argv) != 3:
        sys.exit(__doc__)
    spawner(sys.argv[2])
