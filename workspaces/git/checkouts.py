"""Checkouts that Forge makes, one per attempt or check: added, moved and removed so that any crash can be redone.

The caller holds the repository's lock, so at most one of these runs per repository. A record in the worktree's git
directory says what the checkout is for and whether it is complete; without that record a worktree is somebody else's.
"""

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from core.files import write_atomically
from workspaces.errors import (
    BranchCheckedOut,
    CheckoutDirty,
    CheckoutMismatch,
    CheckoutOccupied,
    CheckoutUnknown,
)
from workspaces.git.repository import HEADS, Repository, is_real_directory
from workspaces.git.values import Checkout, Mode, Removal, Worktree, require_id, require_ref, shown, shown_all
from workspaces.git.working import reveal_hidden, status

RECORD = "forge-checkout.json"


@dataclass(frozen=True, slots=True)
class _Record:
    """What the checkout at a path is for. ``is_complete`` is False while its files are being written."""

    branch: str | None
    base: str
    is_complete: bool

    @classmethod
    def read(cls, git_dir: Path) -> "_Record | None":
        try:
            stored = json.loads((git_dir / RECORD).read_bytes())
        except FileNotFoundError:
            return None
        return cls(stored["branch"], stored["base"], stored["is_complete"])

    def write(self, git_dir: Path) -> None:
        stored = {"branch": self.branch, "base": self.base, "is_complete": self.is_complete}
        write_atomically(git_dir / RECORD, json.dumps(stored).encode())


def add_checkout(repo: Repository, path: Path, *, branch: str | None, base: str) -> Checkout:
    """A checkout of ``base`` at ``path``: made, completed after a crash, or found to be there already.

    branch: full name of a branch that this call creates at ``base``; None for a detached checkout of exactly ``base``
    Writes: the branch, the registration, the directory; nothing where it raises CheckoutOccupied or CheckoutMismatch
    Raises: CheckoutOccupied (files in the way), CheckoutMismatch (it is there for something else), RefMoved (the branch
            exists elsewhere), BranchCheckedOut
    """
    require_id(base)
    if branch is not None and not require_ref(branch).startswith(HEADS):
        raise ValueError(f"not a full branch name: {branch!r}")
    path = _absolute(path)
    worktree = _registered(repo, path)
    record = _Record.read(worktree.git_dir) if worktree else None
    if worktree is None or record is None or not is_real_directory(path):
        worktree = _register(repo, path, worktree, branch, base)
        record = _Record(branch, base, is_complete=False)
        record.write(worktree.git_dir)
    checkout = Checkout(path, worktree.git_dir, branch, base)
    if (record.branch, record.base) != (branch, base):
        raise CheckoutMismatch(f"{path} was made for {record.branch or 'no branch'} at {record.base}", path=str(path))
    if not record.is_complete:
        _write_files(repo, checkout)
    elif worktree.branch != branch or (branch is None and worktree.head != base):
        where = worktree.branch or worktree.head
        raise CheckoutMismatch(f"{path} is on {where}, not on {branch or base}", path=str(path), actual=where)
    return checkout


def list_checkouts(repo: Repository) -> tuple[Checkout, ...]:
    """The complete checkouts Forge made in this repository. Other people's worktrees are not among them."""
    found = []
    for worktree in repo.worktrees():
        record = _Record.read(worktree.git_dir)
        if not worktree.is_main and record is not None and record.is_complete:
            found.append(Checkout(worktree.path, worktree.git_dir, record.branch, record.base))
    return tuple(found)


def find_checkout(repo: Repository, path: Path) -> Checkout:
    """The complete checkout at ``path``. Raises CheckoutUnknown."""
    for checkout in list_checkouts(repo):
        if checkout.path == _absolute(path):
            return checkout
    raise CheckoutUnknown(f"Forge has no checkout at {path}", path=str(path))


def remove_checkout(repo: Repository, path: Path, *, branch: str | None, discard_untracked: bool = False) -> Removal:
    """Remove the checkout if nothing in it could be lost. Its branch stays. Ignored files go with it.

    discard_untracked: untracked files are by-products and go as well; a change of a tracked one still keeps everything, and so
                       does a repository of its own inside

    Returns: removed (also when it was gone before), or why it is kept and which paths are the reason
    """
    path = _absolute(path)
    worktree = _registered(repo, path)
    if worktree is None:
        if path.is_dir() and not _is_blank(repo, path):
            return Removal(False, "the directory is no checkout of this repository")
        _clear_blank(path, itself=True)
    else:
        if kept := _reason_to_keep(repo, worktree, path, branch, discard_untracked=discard_untracked):
            return kept
        if path.is_dir():
            # Under its own name the directory is whole or absent, so a second try never judges half of it.
            path.rename(_trash(path))
        _forget(repo, worktree.git_dir)
    if _trash(path).exists():
        shutil.rmtree(_trash(path))
    return Removal(True)


def move_checkout(repo: Repository, path: Path, commit: str) -> Checkout:
    """Take a clean detached checkout of Forge's to another commit. Only files that differ are written.

    Ignored files of the earlier use stay: whoever pools checkouts for checks decides whether that is clean enough.

    Raises: CheckoutUnknown, CheckoutMismatch (it is on a branch, or not where it was left), CheckoutDirty
    """
    path = _absolute(path)
    worktree = repo.worktree_at(path)
    record = _Record.read(worktree.git_dir)
    if record is None:
        raise CheckoutUnknown(f"Forge has no checkout at {path}", path=str(path))
    if record.branch is not None or worktree.branch is not None:
        raise CheckoutMismatch(f"{path} is on a branch; only a detached checkout is moved", path=str(path))
    if record.is_complete:
        if worktree.head != record.base:
            raise CheckoutMismatch(f"{path} is at {worktree.head}, not at {record.base}", path=str(path))
        clear_own_locks(worktree)
        reveal_hidden(repo, worktree)
        if dirty := [entry.path for entry in status(repo, worktree)]:
            raise CheckoutDirty(f"{path} is not clean", paths=shown_all(dirty))
    if not record.is_complete or record.base != commit:
        _Record(None, require_id(commit), is_complete=False).write(worktree.git_dir)
        _write_files(repo, Checkout(path, worktree.git_dir, None, commit))
    return Checkout(path, worktree.git_dir, None, commit)


def clear_own_locks(worktree: Worktree) -> None:
    """Remove locks that a dead git left in a checkout of Forge's, whose worker has ended.

    Never for a person's worktree: there a lock may be the one of a living git.
    """
    for name in ("index.lock", "HEAD.lock"):
        (worktree.git_dir / name).unlink(missing_ok=True)


# --- making -------------------------------------------------------------------------------------------------


def _register(repo: Repository, path: Path, torn: Worktree | None, branch: str | None, base: str) -> Worktree:
    """A fresh registration of ``path`` at ``base``, without files. What an earlier try left of its own is cleared."""
    if path.exists() and not _is_blank(repo, path):
        raise CheckoutOccupied(f"{path} holds files that are not Forge's", path=str(path))
    if branch is not None:
        if holders := [str(other.path) for other in repo.checked_out_at(branch) if other.path != path]:
            raise BranchCheckedOut(f"{branch} is checked out at {holders[0]}", branch=branch, paths=holders)
        repo.create_ref(branch, base, "checkout")
    if torn is not None:
        _forget(repo, torn.git_dir)
    _forget_nameless(repo, path)
    _clear_blank(path, itself=False)
    # Detached, by full id, without files: git's way from a name to a branch guesses, and so we can redo what follows.
    # (No --no-track: git allows it only where it creates a branch; ours is created by id and tracks nothing.)
    # core.sparseCheckout: a worker and a check need every file, whatever the main worktree leaves out.
    repo.run(
        "worktree", "add", "--detach", "--no-checkout", "--end-of-options", str(path), base,
        config={"core.sparseCheckout": "false"},
    )  # fmt: skip
    return repo.worktree_at(path)


def _write_files(repo: Repository, checkout: Checkout) -> None:
    """HEAD, index and files as recorded. Only for a checkout that is not complete: what it overwrites is its own."""
    worktree = checkout.worktree
    clear_own_locks(worktree)
    if checkout.branch is None:
        repo.run_in(worktree, "update-ref", "--no-deref", "-m", "forge: checkout", "HEAD", checkout.base)
    else:
        repo.run_in(worktree, "symbolic-ref", "-m", "forge: checkout", "HEAD", checkout.branch)
    repo.run_in(worktree, "read-tree", "--reset", "-u", checkout.base, config={"core.sparseCheckout": "false"})
    if strange := [entry.path for entry in status(repo, worktree)]:
        raise CheckoutOccupied(f"{checkout.path} holds files that are not Forge's", paths=shown_all(strange))
    _Record(checkout.branch, checkout.base, is_complete=True).write(worktree.git_dir)


# --- removing -----------------------------------------------------------------------------------------------


def _reason_to_keep(
    repo: Repository, worktree: Worktree, path: Path, branch: str | None, *, discard_untracked: bool
) -> Removal | None:
    record = _Record.read(worktree.git_dir)
    if worktree.is_main or record is None:
        return Removal(False, "it is not one of Forge's checkouts")
    if record.branch != branch:
        return Removal(False, f"it was made for {record.branch or 'no branch'}")
    if not path.is_dir():
        return None
    if record.is_complete:
        if worktree.branch != branch:
            return Removal(False, f"it is on {worktree.branch or worktree.head}")
        if branch is None and worktree.head != record.base:
            return Removal(False, f"it is at {worktree.head}, which no branch need hold")
    clear_own_locks(worktree)
    if record.is_complete:
        reveal_hidden(repo, worktree)
        changed = (entry for entry in status(repo, worktree) if not (discard_untracked and entry.is_by_product))
        if dirty := tuple(entry.path for entry in changed):
            return Removal(False, f"{shown(dirty[0])} is not committed", dirty)
    if inner := tuple(entry for entry in _submodules(repo, worktree) if os.path.lexists(path / entry / ".git")):
        return Removal(False, f"the submodule {shown(inner[0])} may hold commits of its own", inner)
    return None


def _submodules(repo: Repository, worktree: Worktree) -> list[str]:
    records = repo.run_in(worktree, "ls-files", "-z", "--stage").records
    return [record.partition("\t")[2] for record in records if record.startswith(Mode.GITLINK)]


def _forget(repo: Repository, git_dir: Path) -> None:
    """Remove one registration: ours. Not ``worktree prune``, which would take other people's along (and not ``remove``,
    which looks for the directory first)."""
    if git_dir.parent != repo.common_dir / "worktrees":
        raise ValueError(f"not the git directory of a linked worktree: {git_dir}")
    shutil.rmtree(git_dir)


def _forget_nameless(repo: Repository, path: Path) -> None:
    """A ``worktree add`` that died at once leaves a registration that names no path yet, under the path's name."""
    git_dir = repo.common_dir / "worktrees" / path.name
    if git_dir.is_dir() and {item.name for item in git_dir.iterdir()} <= {"locked"}:
        _forget(repo, git_dir)


def _is_blank(repo: Repository, path: Path) -> bool:
    """Empty, or holding only the ``.git`` file that ``worktree add`` writes first."""
    names = os.listdir(path)
    if names != [".git"]:
        return not names
    pointer = path / ".git"
    return pointer.is_file() and pointer.read_bytes().startswith(
        b"gitdir: " + os.fsencode(repo.common_dir / "worktrees")
    )


def _clear_blank(path: Path, *, itself: bool) -> None:
    (path / ".git").unlink(missing_ok=True)
    if itself:
        with contextlib.suppress(FileNotFoundError):
            path.rmdir()


def _trash(path: Path) -> Path:
    return path.with_name(f".{path.name}.removed")


def _registered(repo: Repository, path: Path) -> Worktree | None:
    try:
        return repo.worktree_at(path)
    except CheckoutUnknown:
        return None


def _absolute(path: Path) -> Path:
    """Like git names it: links resolved, but for the last part, which need not exist."""
    return path.parent.resolve() / path.name
