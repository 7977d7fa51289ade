"""What every test stands on: a home, a working directory and a git configuration of its own; nothing left running."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import hypothesis
import psutil
import pytest
from django.conf import settings
from django.db import connection

GRACE_S = 5.0  # for what is just ending when the last test returns

# Every run finds the same examples, and no example is a measurement. For a real search: --hypothesis-profile=default
hypothesis.settings.register_profile("forge", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("forge")


# ---- the places of a test --------------------------------------------------------------------------------------------


class Homes:
    """Where this session's tests keep their files: ``/tmp/f-xxxxxxxx/<number>``, short enough for unix sockets."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="f-", dir="/tmp"))
        self._numbers = itertools.count(1)
        self._tests: dict[str, str] = {}

    def make(self, test: str) -> Path:
        number = str(next(self._numbers))
        self._tests[number] = test
        home = self.root / number
        home.mkdir()
        return home

    def processes(self) -> dict[psutil.Process, str]:
        """Processes that name a place of this session (environment, arguments, directory), and whose it is."""
        found = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # it ended meanwhile, or belongs to somebody else
                words = [*process.environ().values(), *process.cmdline(), process.cwd()]
                places = [word.partition(str(self.root))[2] for word in words if str(self.root) in word]
                if places and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    numbers = (place.strip("/").partition("/")[0].partition(".")[0] for place in places)
                    found[process] = next((self._tests[number] for number in numbers if number in self._tests), "?")
        return found


@pytest.fixture(scope="session", autouse=True)
def homes() -> Iterator[Homes]:
    """All homes of the session. Fails it when a process of one of them is still there at its end."""
    homes = Homes()
    yield homes
    psutil.wait_procs(list(homes.processes()), timeout=GRACE_S)
    left = []
    for process, test in homes.processes().items():
        with suppress(psutil.Error):
            left.append(f"  {process.pid} {shlex.join(process.cmdline())}  (started by {test})")
            process.kill()  # psutil compares the start time, so this is never somebody else's
    shutil.rmtree(homes.root, ignore_errors=True)
    if left:
        heading = "processes outlived the tests that started them, and were killed:"
        pytest.fail("\n".join([heading, *left]), pytrace=False)


@pytest.fixture(autouse=True)
def forge_home(homes: Homes, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The Forge home of this test alone. Its working directory and HOME are its own as well, outside of any repository.

    A relative path that slips into a test therefore never reaches the source tree, nor does git; the test fails for it.
    """
    home = homes.make(request.node.nodeid)
    working, user = home.with_suffix(".cwd"), home.with_suffix(".user")
    working.mkdir()
    user.mkdir()
    monkeypatch.setattr(settings, "FORGE_HOME", home)
    monkeypatch.setenv("FORGE_HOME", str(home))
    monkeypatch.setenv("HOME", str(user))
    _only_our_git_configuration(monkeypatch, ceiling=homes.root)
    monkeypatch.chdir(working)

    yield home

    if written := sorted(path.name for path in working.iterdir()):
        pytest.fail(f"wrote {written} into the working directory; write below tmp_path or forge_home", pytrace=False)


def _only_our_git_configuration(monkeypatch: pytest.MonkeyPatch, *, ceiling: Path) -> None:
    """No configuration, hook or directory of the operator or of a calling git (GIT_DIR in a hook) reaches a test."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(ceiling))
    monkeypatch.setenv("GIT_TERMINAL_PROMPT", "0")
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Forge Tests")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "tests@forge.invalid")


@pytest.fixture
def child_environment(forge_home: Path, transactional_db: None) -> dict[str, str]:
    """The environment for a Forge process that a test starts: the same home, and the test's own database."""
    database = connection.settings_dict
    if connection.vendor == "sqlite":
        url = f"sqlite:///{database['NAME']}"
    else:
        user, password = quote(database["USER"] or "", safe=""), quote(database["PASSWORD"] or "", safe="")
        address = f"{database['HOST'] or '127.0.0.1'}:{database['PORT'] or 5432}"
        url = f"postgresql://{user}{':' if password else ''}{password}@{address}/{database['NAME']}"
    return {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "forge_site.settings"}


# ---- the run ---------------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of real processes share one worker of a parallel run, so that no two of them run at the same time."""
    for item in items:
        if item.get_closest_marker("processes"):
            item.add_marker(pytest.mark.xdist_group("processes"))


def pytest_unconfigure() -> None:
    """Remove the directory that tests.settings made, unless it was handed to us (a worker, a run inside a test)."""
    root = os.environ.get("FORGE_TEST_ROOT")
    if root and "FORGE_TEST_ROOT" not in psutil.Process().environ():
        shutil.rmtree(root, ignore_errors=True)
