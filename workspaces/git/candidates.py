"""Sealing: what a worker left in its checkout becomes a line of commits within its scope, or is refused by name."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from workspaces.errors import (
    CandidateEmpty,
    CheckoutMismatch,
    CheckoutUnmerged,
    EmbeddedRepository,
    FilteredPath,
    ScopeViolation,
    SubmoduleChange,
)
from workspaces.git.checkouts import clear_own_locks
from workspaces.git.messages import with_trailers
from workspaces.git.repository import Repository
from workspaces.git.runner import signed
from workspaces.git.values import (
    Change,
    Checkout,
    Identity,
    Mode,
    Moment,
    SealedCandidate,
    Worktree,
    shown_all,
    to_bytes,
)
from workspaces.git.working import Entry, as_stdin, private_index, reveal_hidden, stage_files, status


def seal(
    repo: Repository,
    checkout: Checkout,
    *,
    scope: Sequence[str] | None,
    unrestricted: bool = False,
    identity: Identity,
    when: Moment,
    message: str,
    trailers: Sequence[tuple[str, str]] = (),
    allow_submodules: bool = False,
) -> SealedCandidate:
    """Commit what is left uncommitted in ``checkout`` and describe the whole line from its base.

    The worker has ended: locks in the checkout are leftovers. Everything is judged on a private index first, so a
    refusal leaves files, index and branch as the worker left them. The same call after a crash gives the same ids.

    scope:            files and directories that may change; empty means none may, unless ``unrestricted``
    when:             author and committer date of the commit that may be made
    allow_submodules: accept a gitlink that ``.gitmodules`` names; a gitlink that it does not name never is
    Symbolic links are recorded as links and count by their own path; what they point at is not looked at.
    Writes:  at most one commit, the checkout's branch, the checkout's index
    Raises:  CheckoutMismatch, CheckoutUnmerged, EmbeddedRepository, SubmoduleChange, FilteredPath, BaseRewritten,
             MergeCommitInCandidate, ScopeViolation, CandidateEmpty
    """
    if unrestricted and scope:
        raise ValueError("a scope and no restriction contradict each other")
    worktree, head = _on_its_branch(repo, checkout)
    branch = checkout.branch or ""
    clear_own_locks(worktree)
    (repo.common_dir / f"{branch}.lock").unlink(missing_ok=True)
    commits = repo.line(checkout.base, head)

    reveal_hidden(repo, worktree)
    with private_index(worktree) as index:
        tree = _stage_all(repo, worktree, index)
        changes = repo.changes(checkout.base, tree)
        _require_no_strange_links(repo, tree, changes, allow_submodules=allow_submodules)
        if not unrestricted and (outside := outside_scope((change.path for change in changes), scope or ())):
            raise ScopeViolation(
                f"{len(outside)} changed paths lie outside the declared scope", paths=shown_all(outside)
            )
        if not changes:
            raise CandidateEmpty(f"nothing differs from {checkout.base}", base=checkout.base)

        if tree != repo.tree_of(head):
            text, author = with_trailers(to_bytes(message), trailers), signed(identity, when, role="AUTHOR")
            commit = commit_tree(repo, tree, [head], text, author=author, by=identity, at=when)
            repo.move_ref(branch, commit, head, "seal")
            commits = (*commits, commit)
        os.replace(index, worktree.git_dir / "index")
    return SealedCandidate(commits[-1], tree, checkout.base, commits, changes)


def commit_tree(
    repo: Repository,
    tree: str,
    parents: Sequence[str],
    message: bytes,
    *,
    author: dict[str, str],
    by: Identity,
    at: Moment,
    encoding: str = "UTF-8",
) -> str:
    """Write one commit object, wholly determined by its arguments. ``author``: from ``runner.signed``."""
    linked = [word for parent in parents for word in ("-p", parent)]
    return repo.run(
        "commit-tree", *linked, "--end-of-options", tree,
        stdin=message,
        environment={**author, **signed(by, at, role="COMMITTER")},
        config={"i18n.commitEncoding": encoding},
    ).line  # fmt: skip


def outside_scope(paths: Iterable[str], scope: Sequence[str]) -> list[str]:
    """The paths that are neither one of ``scope`` nor below one. Names are literal, case and all.

    Raises: ValueError for a scope entry that is no repository-relative path
    """
    allowed = []
    for entry in scope:
        name = entry.rstrip("/")
        if not name or name.startswith("/") or {"", ".", ".."} & set(name.split("/")):
            raise ValueError(f"not a repository-relative path: {entry!r}")
        allowed.append(name)
    files, directories = set(allowed), tuple(f"{name}/" for name in allowed)
    return [path for path in paths if path not in files and not path.startswith(directories)]


def _on_its_branch(repo: Repository, checkout: Checkout) -> tuple[Worktree, str]:
    worktree = repo.worktree_at(checkout.path)
    if checkout.branch is None or worktree.branch != checkout.branch or worktree.head is None:
        where = worktree.branch or worktree.head
        raise CheckoutMismatch(
            f"{checkout.path} is on {where}, not on {checkout.branch}", path=str(checkout.path), actual=where
        )
    return worktree, worktree.head


def _stage_all(repo: Repository, worktree: Worktree, index: Path) -> str:
    """Everything uncommitted, staged in ``index``, a copy of the worktree's own. Returns its tree."""
    entries = status(repo, worktree)
    if unmerged := [entry.path for entry in entries if entry.kind == "unmerged"]:
        raise CheckoutUnmerged(f"{len(unmerged)} paths are unmerged", paths=shown_all(unmerged))
    if embedded := [entry.path for entry in entries if entry.is_embedded_repository]:
        raise EmbeddedRepository(f"{embedded[0]} is a repository of its own", paths=shown_all(embedded))
    unstaged = [entry.path for entry in entries if entry.file != "."]
    _require_unfiltered(repo, worktree, entries)
    stage_files(repo, worktree, unstaged, index=index)
    return repo.run_in(worktree, "write-tree", index=index).line


def _require_unfiltered(repo: Repository, worktree: Worktree, entries: Sequence[Entry]) -> None:
    """Refuse files that a program should turn into what is stored: as they lie there, they would be stored wrongly."""
    paths = [entry.path for entry in entries if entry.file not in ".D"]
    records = (
        repo.run_in(worktree, "check-attr", "-z", "--stdin", "filter", stdin=as_stdin(paths)).records if paths else []
    )
    wanting = [path for path, value in zip(records[::3], records[2::3], strict=True) if value not in _NO_FILTER]
    if wanting:
        raise FilteredPath(f"{len(wanting)} changed paths want a filter program", paths=shown_all(wanting))


_NO_FILTER = ("unspecified", "unset", "set")  # what git-check-attr(1) prints where no driver is named


def _require_no_strange_links(
    repo: Repository, tree: str, changes: Sequence[Change], *, allow_submodules: bool
) -> None:
    links = [change for change in changes if change.is_gitlink]
    if not links:
        return
    known = _submodule_paths(repo, tree)
    if strange := [change.path for change in links if change.path not in known]:
        raise EmbeddedRepository(f"{strange[0]} is a link to another repository's commit", paths=shown_all(strange))
    if not allow_submodules:
        moved = [change.path for change in links]
        raise SubmoduleChange(f"{moved[0]} is a submodule", paths=shown_all(moved))


def _submodule_paths(repo: Repository, tree: str) -> set[str]:
    """The paths that the ``.gitmodules`` file in ``tree`` names."""
    listed = repo.run("ls-tree", "-z", "--end-of-options", tree, "--", ".gitmodules").records
    if not listed or listed[0].startswith(Mode.SYMLINK):
        return set()
    found = repo.run(
        "config", "--blob", f"{tree}:.gitmodules", "-z", "--get-regexp", r"^submodule\..*\.path$", ok=(0, 1)
    )
    return {record.partition("\n")[2] for record in found.records}
