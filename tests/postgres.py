"""A PostgreSQL for the tests: the one you name, one that already answers, or a throw-away cluster.

    python -m tests.postgres -- pytest tests/leases

runs the command with DATABASE_URL set. Without any PostgreSQL it prints ``SKIPPED postgres: <reason>`` and succeeds;
with FORGE_REQUIRE_POSTGRES=1 that is an error.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
# Nothing here has to survive a power cut, so nothing waits for the disk.
FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=64MB", "max_connections=200")


class Unavailable(Exception):
    """There is no PostgreSQL to run on. The message says what was tried and what would help."""


# ---- which one -------------------------------------------------------------------------------------------------------


@contextmanager
def database_url() -> Iterator[str]:
    """The URL of a server whose role may create databases; what was started for it is gone afterwards.

    Raises: Unavailable
    """
    given = os.environ.get("DATABASE_URL", "")
    if given.startswith(("postgres://", "postgresql://", "pgsql://")):
        yield given
    elif answering := _server_that_answers():
        yield answering
    else:
        with throw_away_cluster() as url:
            yield url


def _server_that_answers() -> str | None:
    """A server on this machine's usual port that lets us create databases, without asking for a password."""
    try:
        import psycopg
    except ImportError:
        raise Unavailable("psycopg is not installed; pip install -e '.[postgres]'") from None
    for user in ("postgres", pwd.getpwuid(os.geteuid()).pw_name):
        url = f"postgresql://{user}@127.0.0.1:5432/postgres"
        try:
            with psycopg.connect(url, connect_timeout=3) as connection:
                row = connection.execute(
                    "SELECT rolsuper OR rolcreatedb FROM pg_roles WHERE rolname = current_user"
                ).fetchone()
        except psycopg.Error:
            continue
        if row and row[0]:
            return url
    return None


def server_binaries() -> Path | None:
    """The directory of ``initdb`` and ``postgres``: FORGE_PG_BIN, PATH, or where Debian puts them, newest first."""
    on_path = shutil.which("initdb")
    places = [
        os.environ.get("FORGE_PG_BIN"),
        os.path.dirname(os.path.realpath(on_path)) if on_path else None,
        *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), key=_version, reverse=True),
    ]
    for place in places:
        if place and all(os.access(Path(place) / name, os.X_OK) for name in ("initdb", "postgres")):
            return Path(place)
    return None


def _version(binaries: str) -> float:
    try:
        return float(Path(binaries).parent.name)
    except ValueError:
        return 0.0


# ---- a throw-away cluster --------------------------------------------------------------------------------------------


@contextmanager
def throw_away_cluster() -> Iterator[str]:
    """Run a fresh cluster in a temporary directory; stop and remove it at the end, however the end comes.

    As root it runs as ``postgres`` or ``nobody``, since the server refuses root; as anybody else it runs as that user.
    A password nobody else knows guards it, because a superuser of a server may run programs as the server's user.

    Raises: Unavailable
    """
    binaries = server_binaries()
    if binaries is None:
        raise Unavailable(
            "no server answers on 127.0.0.1:5432, and PATH, /usr/lib/postgresql/*/bin and FORGE_PG_BIN have no initdb;"
            " install PostgreSQL (apt install postgresql) or set DATABASE_URL"
        )
    identity = _unprivileged()
    # As root TMPDIR may be a place that the other user cannot enter.
    directory = Path(tempfile.mkdtemp(prefix="forge-pg-", dir="/tmp" if identity else None))
    try:
        password = secrets.token_urlsafe(24)
        password_file = directory / "password"
        password_file.touch(mode=0o600)
        password_file.write_text(password)
        if identity:
            for path in (directory, password_file):
                os.chown(path, identity["user"], identity["group"])
        _initialise(binaries, directory, password_file, identity)
        with ExitStack() as stack:
            port = _start(binaries, directory, identity, stack)
            yield f"postgresql://forge:{password}@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _unprivileged() -> dict[str, Any]:
    """How ``subprocess`` shall drop root, or nothing to drop."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise Unavailable("PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it as")


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _initialise(binaries: Path, directory: Path, password_file: Path, identity: Mapping[str, Any]) -> None:
    done = subprocess.run(
        [
            str(binaries / "initdb"),
            f"--pgdata={directory / 'data'}",
            "--username=forge",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env=_environment(),
        **identity,
    )
    if done.returncode:
        raise Unavailable(f"initdb failed: {_last_lines(done.stderr)}")


def _start(binaries: Path, directory: Path, identity: Mapping[str, Any], stack: ExitStack) -> int:
    """Start the server and wait until it is ready; ``stack`` stops it. A port taken meanwhile costs another try."""
    log = directory / "log"
    for tries_left in (2, 1, 0):
        port = _free_port()
        with log.open("wb") as output:
            server = subprocess.Popen(
                [str(binaries / "postgres"), "-D", str(directory / "data"), "-h", "127.0.0.1", "-p", str(port)]
                + [word for setting in ("unix_socket_directories=", *FAST) for word in ("-c", setting)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for the command; the server goes after it, not with it
                preexec_fn=_end_with_parent(),
                **identity,
            )
        stack.callback(_stop, server)
        if _ready(server, directory / "data" / "postmaster.pid"):
            return port
        if server.poll() is None or not tries_left:
            break
    raise Unavailable(f"postgres did not start: {_last_lines(log.read_text(errors='replace'))}")


def _ready(server: subprocess.Popen[bytes], pid_file: Path) -> bool:
    """Wait for the line that ``pg_ctl --wait`` waits for."""
    pause = threading.Event()
    for _ in range(int(START_TIMEOUT_S / 0.05)):
        if server.poll() is not None:
            return False
        try:
            if pid_file.read_text().splitlines()[7].strip() == "ready":
                return True
        except (OSError, IndexError):
            pass
        pause.wait(0.05)
    return False


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGQUIT)  # immediate: there is nothing to save
    try:
        server.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _end_with_parent() -> Callable[[], None] | None:
    """On Linux the kernel itself stops the server when this process is killed outright."""
    if sys.platform != "linux":
        return None
    prctl, set_parent_death_signal = ctypes.CDLL(None).prctl, 1
    return lambda: prctl(set_parent_death_signal, signal.SIGQUIT)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _last_lines(text: str) -> str:
    return " / ".join(line.strip() for line in text.strip().splitlines()[-3:]) or "it said nothing"


# ---- the command -----------------------------------------------------------------------------------------------------


class _Ended(Exception):
    """A signal came before the command ran: unwind, so that the server stops."""


class _Signals:
    """Before the command runs, a signal unwinds us. From then on it is the command's to answer and ours to remember.

    A handler that raised during ``wait`` could lose the exit status it was about to get.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.child: subprocess.Popen[bytes] | None = None
        self._raises = True

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        if self._raises:
            self._raises = False  # the unwinding itself is not to be interrupted
            raise _Ended
        self._tell(number)

    def _tell(self, number: int) -> None:
        if self.child is not None and number != signal.SIGINT:  # that one the terminal sends to everybody itself
            self.child.send_signal(number)

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        self._raises = False
        self.child = subprocess.Popen(command, env=environment)
        if self.received:
            self._tell(signal.SIGTERM)
        status = self.child.wait()
        if self.received:
            return 128 + self.received
        return status if status >= 0 else 128 - status


def run(command: Sequence[str], signals: _Signals) -> int:
    """Run ``command`` on a PostgreSQL and give back its exit code."""
    beside_python = os.path.dirname(sys.executable)
    path = os.pathsep.join([beside_python, os.environ.get("PATH", os.defpath)])
    program = shutil.which(command[0], path=path)
    if program is None:
        print(f"{command[0]}: command not found", file=sys.stderr)
        return 127
    try:
        with database_url() as url:
            print(f"PostgreSQL at {url.rpartition('@')[2]}", flush=True)
            return signals.run([program, *command[1:]], {**os.environ, "PATH": path, "DATABASE_URL": url})
    except Unavailable as reason:
        if os.environ.get("FORGE_REQUIRE_POSTGRES") == "1":
            print(f"FAILED postgres: {reason} (FORGE_REQUIRE_POSTGRES=1)", flush=True)
            return 1
        print(f"SKIPPED postgres: {reason}", flush=True)
        return 0
    except _Ended:
        return 128 + (signals.received or signal.SIGTERM)


def main(arguments: Sequence[str]) -> int:
    command = list(arguments[1:] if arguments[:1] == ["--"] else arguments)
    if not command or command[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if command else 2
    signals = _Signals()
    signals.install()
    return run(command, signals)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
