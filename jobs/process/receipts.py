"""The durable files of one attempt: what it shall do (spec), that it may have begun (started), how it ended (exit).

The shim writes the two receipts, the tick writes the spec; only ``never_started`` is an exit receipt of the tick's own.
Everything carries its checksum, and what cannot be read in full is an error, never a success.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from core.errors import Conflict, ForgeError
from core.files import write_atomically
from jobs.process import shim
from jobs.process.identity import Identity, boot_id, lock_is_held, try_lock


class MalformedReceipt(ForgeError):
    """A receipt is damaged, so the outcome is unknown. Look at the job directory; nothing was concluded from it."""

    code, http_status = "malformed_receipt", 500


class AlreadyStarted(Conflict):
    """The attempt has a started receipt, so it may have had effects. Settle it by its exit receipt or as lost."""

    code = "attempt_already_started"


class Fence(NamedTuple):
    """The right under which an attempt runs; a control message under another one is ignored."""

    grant: int
    token: int


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One command, complete: nothing is inherited from whoever launches it.

    argv:              list, no shell; looked up in the PATH of ``env`` unless it holds a slash
    stdin:             text the command reads; None = /dev/null
    deadline_boottime: seconds on CLOCK_BOOTTIME of the boot ``boot_id``; None = no limit; the past ends it at once
    grace_s:           between TERM and KILL at the deadline and for what the command leaves behind
    output_cap:        bytes kept per stream, half of the beginning and half of the end
    marker:            value of FORGE_ATTEMPT, unique to the attempt, by which escaped processes are found
    wake_dir:          directory of datagram sockets ``*.sock`` told ``exit:<attempt>``
    sweep_dir:         checkout of this attempt alone: who works below it is ended with it; None for shared ones
    """

    job: int
    attempt: int
    fence: Fence
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    marker: str
    wake_dir: str
    stdin: str | None = None
    deadline_boottime: float | None = None
    boot_id: str = ""
    grace_s: float = 10.0
    output_cap: int = 4 << 20
    sweep_dir: str | None = None

    def __post_init__(self) -> None:
        """Refuse what would only show as a stray kill or a shim that cannot start."""
        if not self.argv or not self.marker:
            raise ValueError("a spec needs a command and a marker")
        if self.output_cap < 0 or not 0 <= self.grace_s < math.inf:
            raise ValueError("output_cap and grace_s are finite and not negative")
        if self.deadline_boottime is not None and not abs(self.deadline_boottime) < 1e9:
            raise ValueError("the deadline is in seconds since boot")
        if self.sweep_dir is not None and not _is_deep(Path(self.sweep_dir)):
            raise ValueError("sweep_dir is the checkout of one attempt, an absolute path below some directory")


@dataclass(frozen=True, kw_only=True)
class Started:
    """The command may have run from here on.

    command:    the process that execs it, leader of the group and session of the same number
    fork_count: forks of the machine since boot, taken before the command was made; bounds the reuse of process ids
    """

    job: int
    attempt: int
    fence: Fence
    shim: Identity
    command: Identity
    argv0: str
    fork_count: int
    started_at: float
    started_boottime: float


@dataclass(frozen=True)
class Survivor:
    """A process that could not be ended (or must not be)."""

    pid: int
    start_ticks: int
    command: str


@dataclass(frozen=True)
class Output:
    """total: bytes the command wrote to the stream; error: errno name when storing failed and the rest was only counted."""

    total: int
    error: str


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How the attempt ended.

    cause:       exited, signalled, launch_error, deadline, cancelled, never_started
    exit_code:   of the command, also under cause deadline or cancelled; None when a signal ended it or it never ran
    survivors:   not ended; while there are any the attempt is not clean
    swept:       processes the command had left behind when it ended by itself
    cpu_s:       of the whole tree
    max_rss_kb:  of its largest process; never below the 10 MB of the gate before exec
    go_boottime: when the started receipt was durable and the command was let go
    """

    job: int
    attempt: int
    fence: Fence
    cause: str
    exit_code: int | None
    signal: int | None
    errno_name: str
    survivors: tuple[Survivor, ...]
    swept: int
    output: dict[str, Output]
    cpu_s: float
    max_rss_kb: int
    started_at: float
    started_boottime: float
    go_boottime: float
    ended_at: float
    ended_boottime: float


def _is_deep(path: Path) -> bool:
    return path.is_absolute() and len(path.parts) > 2


def write_spec(jobdir: Path, spec: Spec) -> None:
    """Old spec or new, never a mix. Not synced: after a power loss nothing runs, and the row makes the spec anew."""
    body = {"v": shim.VERSION, **asdict(spec), "fence": spec.fence._asdict(), "boot_id": spec.boot_id or boot_id()}
    temporary = jobdir / f".{shim.SPEC}"
    fd = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        shim.write_all(fd, shim.seal(body), 0)
    finally:
        os.close(fd)
    temporary.rename(jobdir / shim.SPEC)


def read_started(jobdir: Path) -> Started | None:
    """None: no such receipt, which proves nothing while the lock is held. Raises: MalformedReceipt."""
    body = _read(jobdir / shim.STARTED, "started")
    if body is None:
        return None
    try:
        shim_, command = body["shim"], body["command"]
        return Started(
            job=body["job"],
            attempt=body["attempt"],
            fence=Fence(**body["fence"]),
            shim=Identity(body["boot_id"], shim_["pid"], shim_["start_ticks"]),
            command=Identity(body["boot_id"], command["pid"], command["start_ticks"]),
            argv0=command["argv0"],
            fork_count=body["fork_count"],
            started_at=body["wall"]["started"],
            started_boottime=body["boottime"]["started"],
        )
    except (KeyError, TypeError) as error:
        raise _malformed(jobdir / shim.STARTED, error) from error


def read_exit(jobdir: Path) -> Exit | None:
    """None: not ended, or its end is not known. Raises: MalformedReceipt."""
    path = jobdir / shim.EXIT
    body = _read(path, "exit") or _read_reserved(jobdir) or _read(path, "exit")  # it may just have been renamed
    if body is None:
        return None
    try:
        return _exit_from(body)
    except (KeyError, TypeError) as error:
        raise _malformed(path, error) from error


def write_never_started(jobdir: Path, *, job: int, attempt: int, fence: Fence) -> Exit:
    """End an attempt that nobody started, so that its leases may go: a shim that comes late finds this and runs nothing.

    Writes:  the exit receipt, under the attempt's lock, durable on return; makes the job directory where there is none
    Returns: the receipt, or the one that is already there
    Raises:  LockHeld (a shim is at it), AlreadyStarted
    """
    jobdir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if ended := read_exit(jobdir):
        return ended
    with try_lock(jobdir):
        if ended := read_exit(jobdir):  # a shim may have come and gone meanwhile
            return ended
        if (jobdir / shim.STARTED).exists():  # even a damaged one: it may have had effects
            raise AlreadyStarted(job=job, attempt=attempt)
        body = _never_started(job, attempt, fence)
        write_atomically(jobdir / shim.EXIT, shim.seal(body))
        return _exit_from(body)


def _never_started(job: int, attempt: int, fence: Fence) -> dict[str, Any]:
    at, boottime = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    return {
        "v": shim.VERSION,
        "kind": "exit",
        "boot_id": boot_id(),
        "job": job,
        "attempt": attempt,
        "fence": fence._asdict(),
        "cause": "never_started",
        "exit_code": None,
        "signal": None,
        "errno_name": "",
        "survivors": [],
        "swept": 0,
        "output": {},
        "usage": {"cpu_s": 0.0, "max_rss_kb": 0},
        "wall": {"started": at, "ended": at},
        "boottime": {"started": boottime, "go": boottime, "ended": boottime},
    }


def _exit_from(body: dict[str, Any]) -> Exit:
    """Raises KeyError or TypeError when something is missing or of the wrong kind."""
    return Exit(
        job=body["job"],
        attempt=body["attempt"],
        fence=Fence(**body["fence"]),
        cause=body["cause"],
        exit_code=body["exit_code"],
        signal=body["signal"],
        errno_name=body["errno_name"],
        survivors=tuple(Survivor(**each) for each in body["survivors"]),
        swept=body["swept"],
        output={name: Output(**each) for name, each in body["output"].items()},
        cpu_s=body["usage"]["cpu_s"],
        max_rss_kb=body["usage"]["max_rss_kb"],
        started_at=body["wall"]["started"],
        started_boottime=body["boottime"]["started"],
        go_boottime=body["boottime"]["go"],
        ended_at=body["wall"]["ended"],
        ended_boottime=body["boottime"]["ended"],
    )


def _read(path: Path, kind: str) -> dict[str, Any] | None:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        body = shim.unseal(raw)
        if (body.get("v"), body.get("kind")) != (shim.VERSION, kind):
            raise ValueError(f"not a receipt of kind {kind}, version {shim.VERSION}")
    except ValueError as error:
        raise _malformed(path, error) from error
    return body


def _read_reserved(jobdir: Path) -> dict[str, Any] | None:
    """A complete receipt whose rename a crash or a power loss prevented; blank or torn it is no receipt yet.

    While the shim lives it is not known to be durable. Of a dead one we make it so before anybody acts on it.
    """
    path = jobdir / shim.RESERVED_EXIT
    try:
        body = _read(path, "exit")
    except MalformedReceipt:
        return None
    if body is None or lock_is_held(jobdir):
        return None
    with suppress(FileNotFoundError), path.open("rb") as file:
        os.fsync(file.fileno())
    return body


def _malformed(path: Path, error: Exception) -> MalformedReceipt:
    return MalformedReceipt(f"{path} cannot be believed: {error}", path=str(path), error=repr(error))
