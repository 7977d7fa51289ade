"""Small real repositories, made quickly, and a git for the tests to play the person or the worker with."""

import os
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from workspaces.git import Identity, Moment, Repository

ANN = Identity("Ann Author", "ann@example.org")
BOT = Identity("Forge Bot", "bot@example.org")
NOON = Moment.at(datetime(2026, 1, 2, 12, tzinfo=UTC))
MAIN = "refs/heads/main"
WORK = "refs/heads/forge/g1/build/1"

_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": ANN.name,
    "GIT_AUTHOR_EMAIL": ANN.email,
    "GIT_COMMITTER_NAME": ANN.name,
    "GIT_COMMITTER_EMAIL": ANN.email,
    "GIT_AUTHOR_DATE": "@1700000000 +0100",
    "GIT_COMMITTER_DATE": "@1700000000 +0100",
}

Files = Mapping[str, str | bytes | None]  # None deletes


def git(where: Path, *args: str, stdin: bytes = b"") -> str:
    """An ordinary git, as a person or a worker runs it: unhardened."""
    done = subprocess.run(
        ["git", *(arg.encode("utf-8", "surrogateescape") for arg in args)],
        cwd=where,
        env=_ENVIRONMENT,
        input=stdin,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, (args, done.stderr.decode(errors="replace"))
    return done.stdout.decode("utf-8", "surrogateescape").strip("\n")


def write(where: Path, files: Files) -> None:
    for name, content in files.items():
        place = where / name
        if content is None:
            place.unlink()
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)


def commit(where: Path, files: Files, message: str = "change") -> str:
    write(where, files)
    git(where, "add", "--all")
    git(where, "commit", "--quiet", "--no-verify", "--allow-empty", "-m", message)
    return git(where, "rev-parse", "HEAD")


def make(where: Path, files: Files | None = None, *init: str) -> Repository:
    """A repository with one commit on main, checked out at ``where``."""
    where.mkdir(parents=True, exist_ok=True)
    git(where, "init", "--quiet", "--initial-branch=main", *init)
    commit(where, {"README": "one\n"} if files is None else files, "first")
    return Repository.open(where)


def read(where: Path) -> dict[str, bytes]:
    """The files below ``where``, without git's own."""
    found = {}
    for directory, names, files in os.walk(where):
        names[:] = [name for name in names if name != ".git"]
        for file in files:
            place = Path(directory) / file
            if file != ".git":
                name = place.relative_to(where).as_posix()
                found[name] = os.readlink(place).encode() if place.is_symlink() else place.read_bytes()
    return found


def tip(repo: Repository, ref: str = MAIN) -> str:
    found = repo.ref_tip(ref)
    assert found is not None
    return found


def root(repo: Repository) -> Path:
    assert repo.root is not None
    return repo.root
