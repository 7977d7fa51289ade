"""The demo's repository, and its workers run in it by hand, without any Forge."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.calculator.make_repository import make_repository

Worker = Callable[..., "subprocess.CompletedProcess[str]"]

WRITERS = ("add", "multiply", "power")
INTEGRATE = ("integrate.py",)


def writer(name: str) -> tuple[str, str]:
    return "write_operation.py", name


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = tmp_path / "repository"
    make_repository(directory)
    return directory


@pytest.fixture
def counters(tmp_path: Path) -> Path:
    return tmp_path / "counters"


@pytest.fixture
def work(repository: Path, counters: Path) -> Worker:
    """Run a program of ``tools/`` in the repository, in a hurry: nobody waits for anybody."""

    def run(program: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        environment = {"PATH": os.environ["PATH"], "DEMO_COUNTERS": str(counters), "DEMO_HURRY": "1", **variables}
        return subprocess.run(
            [sys.executable, f"tools/{program}", *arguments],
            cwd=repository,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def integrated(repository: Path, work: Worker) -> Path:
    """The repository with everything the demo's graph adds to it, not committed."""
    for name in WRITERS:
        assert work(*writer(name)).returncode == 0
    assert work(*INTEGRATE).returncode == 0
    return repository
