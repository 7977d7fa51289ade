"""What differs from the last commit, for status pages and results. It never fails; it warns.

The list says that a path differs, not who changed it: earlier and concurrent edits are in it.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from workspaces.errors import GitError, NotARepository
from workspaces.git.repository import Repository
from workspaces.git.runner import Git
from workspaces.git.values import ChangedPath, Inventory, Mode
from workspaces.git.working import status


def inventory(path: Path, git: Git | None = None, *, trust_foreign_owner: bool = False) -> Inventory:
    """Changed paths at and below ``path``, relative to the top of its repository, submodules file by file.

    Returns: always; a plain directory, a missing git, an error become ``warnings``
    """
    try:
        repo = Repository.open(path, git, trust_foreign_owner=trust_foreign_owner)
        if repo.root is None:
            return Inventory(None, (), (f"{path} is a bare repository: it has no files to compare",))
        below = path.resolve().relative_to(repo.root.resolve()).as_posix()
        warnings: list[str] = []
        changed = tuple(_changed(repo, None if below == "." else below, warnings))
        return Inventory(repo.root, changed, tuple(warnings))
    except NotARepository:
        return Inventory(None, (), (f"{path} is not in a git repository: changed files are not listed",))
    except (GitError, OSError, ValueError) as problem:
        return Inventory(None, (), (f"changed files of {path} are not listed: {problem}",))


def _changed(repo: Repository, below: str | None, warnings: list[str]) -> Iterator[ChangedPath]:
    assert repo.root is not None
    worktree = repo.worktree_at(repo.root)
    for entry in status(repo, worktree, only=below):
        yield ChangedPath(entry.path.rstrip("/"), entry.kind)
    listed = repo.run_in(worktree, "ls-files", "-z", "--stage", *(("--", below) if below else ())).records
    for record in listed:
        if not record.startswith(Mode.GITLINK):
            continue
        inner = record.partition("\t")[2]
        place = repo.root / inner
        if not (place / ".git").exists():
            continue  # a submodule nobody fetched has no files
        try:
            # A repository of its own, opened as one: so its own configuration is overridden as well.
            for change in _changed(Repository.open(place, repo.git), None, warnings):
                yield dataclasses.replace(change, path=f"{inner}/{change.path}")
        except (GitError, OSError, ValueError) as problem:
            warnings.append(f"changed files of the submodule {inner} are not listed: {problem}")
