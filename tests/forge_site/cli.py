"""The real console, in this process or in one of its own, and a picture of everything that it may not have touched."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps

from core.models import EventCounter
from forge_site import console

HANG_LIMIT_S = 60.0


@dataclass(frozen=True)
class Said:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.err.splitlines()


class Cli:
    """``cli("run", "g.yaml")`` goes through everything the script does, but for a new interpreter."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *args: object) -> Said:
        argv = ["forge", *map(str, args)]
        self._monkeypatch.setattr(sys, "argv", argv)
        self._capsys.readouterr()
        code = console._run(argv) or 0
        said = self._capsys.readouterr()
        return Said(code, said.out, said.err)


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "forge_site", *map(str, args)]


def run(*args: object, env: Mapping[str, str], stdin: bytes = b"") -> Said:
    """In a process of its own."""
    done = subprocess.run(command(*args), env=env, input=stdin, capture_output=True, check=False, timeout=HANG_LIMIT_S)
    return Said(done.returncode, done.stdout.decode(), done.stderr.decode())


def everything(*places: Path) -> dict[str, Any]:
    """How many rows each table has, how far the journal goes, and every file below ``places``."""
    seen: dict[str, Any] = {model._meta.db_table: model._default_manager.count() for model in apps.get_models()}
    seen["seq"] = list(EventCounter.objects.values_list("last_seq", flat=True))
    for place in places:
        for path in sorted(place.rglob("*")):
            if path.is_file() and not path.is_symlink():
                seen[str(path)] = path.read_bytes()
            elif not path.is_socket():
                seen[str(path)] = "directory"
    return seen


def is_one_clear_line(said: Said, code: str) -> bool:
    """One error with its code, nothing of Python's, exit code 2. Paths may follow it, each on a line of its own."""
    first, *rest = said.lines
    return (
        said.code == 2
        and first.startswith("error: ")
        and first.endswith(f"[{code}]")
        and all(line.startswith("       ") for line in rest)
        and "Traceback" not in said.err
    )
