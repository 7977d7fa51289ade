"""The external owner of the lifecycle: web and cluster of one host, started, watched and stopped together.

Jobs are not among its children: they live under their shims, and a stop, a crash or a kill of everything here does not touch them.
A doubtful cluster is answered with SIGKILL and a fresh start of both under a new epoch: django-q2 can hang for ever
when an idle worker dies, and jobs do not notice.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import IO

from django.contrib.auth import get_user_model
from django.db import connection
from django.utils import timezone

from core import wake
from core.home import home
from core.models import AccessToken
from core.uow import unit_of_work
from forge_site.broker import LOOP_FILE
from forge_site.runtime import web_address
from jobs.process import spawner
from recovery.hosts import claim_runtime, open_epoch, this_host

STILL_S = 15.0  # the cluster's loop turns at least every second; this long without a turn is doubtful
STOP_S = 20.0  # for a clean end of web and cluster, before they are killed
BACKOFF_S = (0.2, 1.0, 5.0)  # before a restart, by how many came shortly before
READY_S = 60.0


class Launcher:
    """``run`` returns when a signal asked for the end."""

    def __init__(self, say: Callable[[str], None], *, bind: str) -> None:
        self.say, self.bind = say, bind
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.stopping = False
        self.restarts: list[float] = []

    def run(self) -> None:
        """Raises: NotInitialised, RuntimeRunning."""
        host = this_host()
        claim = claim_runtime()
        read_end = _signals_to_pipe(self._ask_to_stop)
        try:
            self._start(open_epoch(host_id=host.pk))
            self._announce()
            while not self.stopping:
                _wait_readable(read_end, 0.5)
                if not self.stopping and (doubt := self._doubt()):
                    self._replace(doubt, host.pk)
        finally:
            self._stop()
            os.close(claim)

    def _ask_to_stop(self) -> None:
        self.stopping = True

    # --- children -----------------------------------------------------------------------------------------------------

    def _start(self, epoch: int) -> None:
        place = home()
        (place.root / "web.json").unlink(missing_ok=True)
        (place.root / LOOP_FILE).touch()
        connection.close()
        environment = {**os.environ, "FORGE_EPOCH": str(epoch), "PYTHONUNBUFFERED": "1"}
        commands = {"web": ["serve", "--bind", self.bind], "cluster": ["qcluster"]}
        for name, arguments in commands.items():
            log = _log(place.logs / f"{name}.log")
            self.children[name] = subprocess.Popen(
                [sys.executable, "-m", "forge_site", *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal is for the launcher alone
                preexec_fn=_die_with_launcher,
            )
            log.close()

    def _doubt(self) -> str:
        """Why web and cluster should be replaced, or ''."""
        for name, child in self.children.items():
            if child.poll() is not None:
                return f"{name} ended with {child.returncode}"
        still = time.time() - (home().root / LOOP_FILE).stat().st_mtime
        return f"the cluster's loop has stood still for {still:.0f} s" if still > STILL_S else ""

    def _replace(self, doubt: str, host_id: int) -> None:
        now = time.monotonic()
        self.restarts = [at for at in self.restarts if now - at < 60] + [now]
        pause = BACKOFF_S[min(len(self.restarts), len(BACKOFF_S)) - 1]
        self.say(f"{doubt}; web and cluster are started again (jobs do not notice). Logs: {home().logs}")
        self._kill()
        time.sleep(pause)  # noqa: TID251 (a backoff of the owner; nobody waits for an event that may come sooner)
        self._start(open_epoch(host_id=host_id))

    def _stop(self) -> None:
        for child in self.children.values():
            if child.poll() is None:
                child.terminate()
        wake.send(wake.TICK)  # the cluster's pusher looks at its stop flag when something wakes it
        deadline = time.monotonic() + STOP_S
        for child in self.children.values():
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                break
        self._kill()
        (home().root / spawner.SOCKET).unlink(missing_ok=True)  # it ends by itself; shims at work do not need it

    def _kill(self) -> None:
        """The cluster's processes die with their parent (forge_site.broker)."""
        for child in self.children.values():
            if child.poll() is None:
                child.kill()
            child.wait()
        self.children.clear()

    # --- what a person sees -------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        deadline = time.monotonic() + READY_S
        while not web_address() and time.monotonic() < deadline and not self.stopping and not self._doubt():
            time.sleep(0.05)  # noqa: TID251 (a file of another process; there is no event to wait for)
        if address := web_address():
            self.say(f"Forge runs at {address}   (Ctrl-C stops it; jobs go on)")
            if link := first_login_link(address):
                self.say(f"log in   {link}")
        elif not self.stopping:
            self.say(f"the web process is not ready yet; its log: {home().logs / 'web.log'}")


def first_login_link(address: str) -> str:
    """A link that enters once, for the first administrator, valid for an hour."""
    owner = get_user_model().objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
    if owner is None:
        return ""
    secret = secrets.token_urlsafe(32)
    _store_login(owner_id=owner.pk, secret=secret)
    return f"{address}/enter/{secret}"


@unit_of_work
def _store_login(*, owner_id: int, secret: str) -> None:
    now = timezone.now()
    AccessToken.objects.filter(single_use=True, expires_at__lt=now).delete()
    AccessToken.objects.create(
        digest=sha256(secret.encode()).hexdigest(),
        label="login link of forge up",
        owner_id=owner_id,
        expires_at=now + timedelta(hours=1),
        created_at=now,
        single_use=True,
    )


def _die_with_launcher() -> None:
    """In the child, before exec: SIGKILL when the launcher dies, however it dies."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def _log(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")


def _signals_to_pipe(stop: Callable[[], None]) -> int:
    """SIGTERM and SIGINT call ``stop`` and make the returned descriptor readable."""
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())
    return read_end


def _wait_readable(fd: int, limit_s: float) -> None:
    if select.select([fd], [], [], limit_s)[0]:
        os.read(fd, 64)
