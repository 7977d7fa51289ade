"""The runtime of this host, seen from outside and owned by the launcher."""

from __future__ import annotations

import fcntl
import json
import os

from core.errors import InvalidInput
from core.home import home


def is_running() -> bool:
    """Whether a launcher holds the runtime claim of this home."""
    try:
        fd = os.open(home().runtime_lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)


def web_address() -> str:
    """`http://127.0.0.1:8420` once the web process is ready, else ''."""
    try:
        return str(json.loads((home().root / "web.json").read_text())["url"]).rstrip("/")
    except (OSError, ValueError, KeyError):
        return ""


def parse_bind(bind: str) -> tuple[str, int]:
    """`127.0.0.1:8420`, `[::1]:0` or a port alone. Raises: InvalidInput"""
    host, _, port = bind.rpartition(":")
    if not (port.isascii() and port.isdecimal() and len(port) < 6 and int(port) <= 65535):
        raise InvalidInput(f"{bind!r} is no address; write host:port.", bind=bind)
    return host.strip("[]") or "127.0.0.1", int(port)
