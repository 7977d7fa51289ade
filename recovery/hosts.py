"""This host: its name in the home, its row, and the one runtime it may have."""

from __future__ import annotations

import fcntl
import os
import socket
from datetime import datetime

from django.conf import settings
from django.db.models import F

from core import journal
from core.errors import Conflict, ForgeError
from core.files import write_atomically
from core.home import home
from core.models import Host
from core.uow import FROM_CLOCK, unit_of_work
from jobs.process.identity import boot_id
from leases import keys
from leases import steps as lease_steps
from leases.states import ResourceClass


class NotInitialised(ForgeError):
    """This directory is no Forge home yet. Run `forge init` first."""

    code, http_status = "not_initialised", 409


class RuntimeRunning(Conflict):
    """Another runtime of this installation runs on this host. Stop it, or use another FORGE_HOME."""

    code = "runtime_running"


def this_host() -> Host:
    """Raises: NotInitialised."""
    try:
        name = home().node_file.read_text().strip()
        return Host.objects.get(name=name)
    except (FileNotFoundError, Host.DoesNotExist):
        raise NotInitialised(
            f"{home().root} is no Forge home of this database: run `forge init`.", home=str(home().root)
        ) from None


def name_this_host() -> str:
    """The name stored in the home; made from the machine's on first use."""
    path = home().node_file
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        name = socket.gethostname().partition(".")[0] or "host"
        write_atomically(path, f"{name}\n".encode(), mode=0o644)
        return name


@unit_of_work
def register_host(*, name: str, now: datetime = FROM_CLOCK) -> Host:
    """The host's row and its slots; again is harmless."""
    host, created = Host.objects.get_or_create(name=name, defaults={"slots": settings.FORGE_HOST_SLOTS})
    if created:
        journal.record("host.registered", subject=f"host:{host.pk}", project_id=None, name=name)
    if host.slots != settings.FORGE_HOST_SLOTS:
        host.slots = settings.FORGE_HOST_SLOTS
        host.save(update_fields=["slots"])
    lease_steps.lock_broker()
    lease_steps.set_capacity(ResourceClass.PHYSICAL, keys.slots_of_host(name), host.slots)
    return host


@unit_of_work
def open_epoch(*, host_id: int, now: datetime = FROM_CLOCK) -> int:
    """A runtime starts on this host: its epoch grows."""
    Host.objects.filter(pk=host_id).update(epoch=F("epoch") + 1, boot_id=boot_id(), started_at=now, beat_at=now)
    host = Host.objects.get(pk=host_id)
    journal.record("host.started", subject=f"host:{host_id}", project_id=None, epoch=host.epoch, boot_id=host.boot_id)
    return host.epoch


def claim_runtime() -> int:
    """Take the one runtime claim of this home: a kernel lock that no crash can leave behind.

    Returns: the descriptor that holds it for as long as it is open
    Raises:  RuntimeRunning
    """
    fd = os.open(home().runtime_lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise RuntimeRunning(home=str(home().root)) from None
    return fd
