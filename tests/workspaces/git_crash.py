"""Three effects on git that can be killed after any of their git steps. Imported by tests, and run as a program to be killed.

``python -m tests.workspaces.git_crash <effect> <directory> <step> <how>`` runs the effect and, after that many git steps,
kills itself (``alone``) or first each git it has running (``all``).
"""

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from tests.workspaces.repos import BOT, MAIN, NOON, WORK, commit, git, make, read, root, tip, write
from workspaces.git import Git, Repository, add_checkout, find_checkout, land, seal

START = {"edit": "1\n", "gone": "1\n", "same": "1\n", "sub/a b": "1\n"}


def prepare_add(where: Path) -> None:
    make(where / "r", START)


def do_add(where: Path, runner: Git) -> None:
    repo = Repository.open(where / "r", runner)
    add_checkout(repo, where / "w", branch=WORK, base=tip(repo))


def prepare_seal(where: Path) -> None:
    prepare_add(where)
    do_add(where, Git())
    commit(where / "w", {"edit": "by the worker\n"})
    write(where / "w", {"edit": "2\n", "gone": None, "new": "2\n", "sub/a b": None, "sub/a b/c": "now a directory\n"})


def do_seal(where: Path, runner: Git) -> None:
    repo = Repository.open(where / "r", runner)
    checkout = find_checkout(repo, where / "w")
    seal(repo, checkout, scope=["edit", "gone", "new", "sub"], identity=BOT, when=NOON, message="work")


def prepare_land(where: Path) -> None:
    repo = make(where / "r", START)
    git(root(repo), "switch", "--quiet", "--create", "work")
    commit(root(repo), {"edit": "2\n", "gone": None, "new": "2\n", "sub/a b": None, "sub/a b/c": "now a directory\n"})
    git(root(repo), "switch", "--quiet", "main")
    write(root(repo), {"same": "mine, not committed\n", "untracked": "mine\n"})
    git(root(repo), "tag", "base")


def do_land(where: Path, runner: Git) -> None:
    repo = Repository.open(where / "r", runner)
    base, candidate = tip(repo, "refs/tags/base"), tip(repo, "refs/heads/work")
    land(repo, ref=MAIN, base=base, candidate=candidate, worktree=where / "r")


EFFECTS: dict[str, tuple[Callable[[Path], None], Callable[[Path, Git], None]]] = {
    "add": (prepare_add, do_add),
    "seal": (prepare_seal, do_seal),
    "land": (prepare_land, do_land),
}


def state(where: Path) -> dict[str, object]:
    """All that a crash could leave different: refs, files, indexes, registrations, locks and scratch files."""
    found: dict[str, object] = {"refs": git(where / "r", "for-each-ref"), "worktrees": _registrations(where)}
    for name in ("r", "w"):
        if (where / name).exists():
            found[name] = (
                read(where / name),
                git(where / name, "status", "--porcelain=v2", "--branch"),
                git(where / name, "ls-files", "--stage"),
            )
    return found


def _registrations(where: Path) -> list[str]:
    """Names in git's own directories, but for objects, logs and what an ordinary git leaves."""
    ordinary = {"objects", "logs", "COMMIT_EDITMSG", "ORIG_HEAD", "hooks", "info", "branches", "description"}
    found = []
    for directory, names, files in os.walk(where / "r" / ".git"):
        names[:] = sorted(set(names) - ordinary)
        found += [str(Path(directory, file).relative_to(where)) for file in sorted(set(files) - ordinary)]
    return found


@contextlib.contextmanager
def repository_lock(where: Path) -> Iterator[int]:
    """As the caller of an effect holds it: taken only when the last git of the one before has ended."""
    descriptor = os.open(where / "lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def countdown(steps: int, then: Callable[[], None]) -> Callable[[Sequence[str]], None]:
    left = steps

    def after(_: Sequence[str]) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            then()

    return after


def _die(how: str) -> None:
    if how == "all":
        for child in psutil.Process().children(recursive=True):
            child.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    effect, where, step, how = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    with repository_lock(where) as lock:
        EFFECTS[effect][1](where, Git(lock_fd=lock, after=countdown(step, lambda: _die(how))))


if __name__ == "__main__":
    main()
