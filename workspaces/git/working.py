"""The files of a worktree, compared with commits. Looking never writes into the worktree's own index."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from workspaces.git.repository import Repository, is_real_directory, parse_raw_diff
from workspaces.git.values import Blob, Change, ChangedPath, Mode, Worktree, to_bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of ``git status``: how a path differs from HEAD in the index, and from the index in the file.

    index, file: git's letters, ``.`` for no difference; ``?`` in both when untracked, ``U`` when unmerged
    """

    path: str
    index: str
    file: str

    @property
    def kind(self) -> str:
        if self.index in "?U":
            return {"?": "untracked", "U": "unmerged"}[self.index]
        if self.file == "D" or (self.index == "D" and self.file == "."):
            return "deleted"
        return "added" if "A" in (self.index, self.file) else "modified"

    @property
    def is_embedded_repository(self) -> bool:
        """git lists files, but stops before a directory that is a repository of its own and names it with a slash."""
        return self.index == "?" and self.path.endswith("/")

    @property
    def is_by_product(self) -> bool:
        """An untracked file. An untracked repository may hold commits that are nowhere else."""
        return self.kind == "untracked" and not self.is_embedded_repository


def status(repo: Repository, worktree: Worktree, *, only: str | None = None) -> list[Entry]:
    """What is uncommitted, without ignored files. ``only``: one file or directory.

    Submodules count by the commit they are at. Looking for edits inside would start a git in each, under its own
    configuration and without our overrides.
    """
    records = iter(
        repo.run_in(
            worktree, "status", "--porcelain=v2", "-z", "--untracked-files=all", "--ignore-submodules=dirty",
            "--no-renames", "--no-ahead-behind", *(("--", only) if only else ()),
        ).records
    )  # fmt: skip
    found = []
    for record in records:
        kind, _, rest = record.partition(" ")
        if kind == "1":
            letters, *_, path = rest.split(" ", 7)
            found.append(Entry(path, letters[0], letters[1]))
        elif kind == "u":
            found.append(Entry(rest.split(" ", 9)[-1], "U", "U"))
        elif kind == "?":
            found.append(Entry(rest, "?", "?"))
    return found


def dirty_paths(repo: Repository, worktree: Worktree) -> tuple[ChangedPath, ...]:
    """All uncommitted paths of ``worktree``: modified, added, deleted, untracked, unmerged."""
    return tuple(ChangedPath(entry.path, entry.kind) for entry in status(repo, worktree))


def reveal_hidden(repo: Repository, worktree: Worktree) -> None:
    """Take back the index bits that make git overlook an edited file (``--assume-unchanged``, ``--skip-worktree``).

    Writes the worktree's index, so for Forge's own checkouts only. A skipped file that is absent stays skipped: that is
    a sparse checkout, not a deletion.
    """
    assumed, skipped = [], []
    for record in repo.run_in(worktree, "ls-files", "-z", "-v").records:
        tag, path = record[0], record[2:]
        if tag.islower():
            assumed.append(path)
        if tag in "Ss" and os.path.lexists(worktree.path / path):
            skipped.append(path)
    for flag, paths in (("--no-assume-unchanged", assumed), ("--no-skip-worktree", skipped)):
        if paths:
            repo.run_in(worktree, "update-index", "-z", flag, "--stdin", stdin=as_stdin(paths))


def as_stdin(paths: Iterable[str]) -> bytes:
    return b"".join(to_bytes(path) + b"\0" for path in paths)


def stage_files(repo: Repository, worktree: Worktree, paths: Iterable[str], *, index: Path) -> None:
    """Make ``index`` say what the files at ``paths`` are; what is no file there is removed from it."""
    paths = list(paths)
    there = [path for path in paths if is_content(worktree.path, path)]
    gone = set(paths) - set(there)
    # Removals first, so that a file can take the place of a directory. Not --remove: it refuses paths beyond a symlink.
    if gone:
        repo.run_in(worktree, "update-index", "-z", "--force-remove", "--stdin", index=index, stdin=as_stdin(gone))
    if there:
        repo.run_in(worktree, "update-index", "-z", "--add", "--stdin", index=index, stdin=as_stdin(there))


def is_content(root: Path, path: str) -> bool:
    """Whether ``path`` is what git can record: a file, a link or a populated submodule, reached through no link."""
    place = root / path
    if not all(is_real_directory(parent) for parent in _parents(root, path)) or not os.path.lexists(place):
        return False
    return place.is_symlink() or place.is_file() or os.path.lexists(place / ".git")


def _parents(root: Path, path: str) -> list[Path]:
    return [root / parent for parent in Path(path).parents[:-1]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A worktree between two commits, over the paths in which these differ.

    blocked:   somebody's own: neither commit's content in file or index, or in the way of a file to be written
    at_second: the file already is the second commit's
    torn:      of ``blocked``, those whose index is fine and whose file alone is neither
    """

    changes: tuple[Change, ...]
    blocked: frozenset[str]
    at_second: frozenset[str]
    torn: frozenset[str]


def compare(repo: Repository, worktree: Worktree, first: str, second: str, *, index: Path | None = None) -> Comparison:
    """Where does ``worktree`` stand between ``first`` and ``second``? Contents are read, not only file times."""
    changes = repo.changes(first, second)
    old = {change.path: change.old for change in changes}
    new = {change.path: change.new for change in changes}
    off_first = _differing_files(repo, worktree, first, old)
    off_second = (
        _differing_files(repo, worktree, second, {path: new[path] for path in off_first}) if off_first else set()
    )
    index_off = _differing_entries(repo, worktree, first, index) & old.keys()
    if index_off:
        index_off &= _differing_entries(repo, worktree, second, index)
    return Comparison(
        changes,
        blocked=frozenset(off_second | index_off | _obstacles(worktree.path, changes)),
        at_second=frozenset(off_first - off_second),
        torn=frozenset(off_second - index_off),
    )


def blocked_paths(repo: Repository, worktree: Worktree, base: str, candidate: str) -> tuple[str, ...]:
    """The paths that forbid moving ``worktree`` from ``base`` to ``candidate``; empty when it is free to move."""
    return tuple(sorted(compare(repo, worktree, base, candidate).blocked))


PRIVATE_INDEX = "forge-index"


@contextlib.contextmanager
def private_index(worktree: Worktree) -> Iterator[Path]:
    """A copy of the worktree's index, beside it so that a rename can put it in its place. Gone afterwards otherwise."""
    index = worktree.git_dir / PRIVATE_INDEX
    clear_private_index(worktree.git_dir)  # of an earlier try
    if (own := worktree.git_dir / "index").exists():
        shutil.copy2(own, index)  # with its time: against it git tells which entries may hide an edit ("racy git")
    try:
        yield index
    finally:
        clear_private_index(worktree.git_dir)


def clear_private_index(git_dir: Path) -> None:
    for name in (PRIVATE_INDEX, f"{PRIVATE_INDEX}.lock"):
        (git_dir / name).unlink(missing_ok=True)


@contextlib.contextmanager
def scratch_index() -> Iterator[Path]:
    """A place for an index nobody else knows."""
    with tempfile.TemporaryDirectory(prefix="forge-index-") as directory:
        yield Path(directory) / "index"


def _differing_files(
    repo: Repository, worktree: Worktree, commit: str, expected: Mapping[str, Blob | None]
) -> set[str]:
    """Of the ``expected`` paths, those whose file is not what ``commit`` has there.

    git itself reads the files, into a scratch index that starts as ``commit``: so line endings and modes count just as
    they would in a commit, no file time is trusted, and names go in as bytes. Objects this leaves behind are harmless.
    """
    root = worktree.path
    there = [path for path in expected if is_content(root, path) or _is_empty_submodule(root / path, expected[path])]
    differing = {path for path in expected.keys() - set(there) if expected[path] is not None}
    differing |= {path for path in expected if os.path.lexists(root / path) and _is_device(root / path)}
    if there:
        with scratch_index() as index:
            repo.run_in(worktree, "read-tree", commit, index=index)
            repo.run_in(
                worktree, "update-index", "-z", "--add", "--replace", "--stdin", index=index, stdin=as_stdin(there)
            )
            differing |= _differing_entries(repo, worktree, commit, index) & set(there)
    return differing


def _differing_entries(repo: Repository, worktree: Worktree, commit: str, index: Path | None) -> set[str]:
    """All paths that the index (the worktree's own, without ``index``) holds otherwise than ``commit``."""
    raw = repo.run_in(
        worktree, "diff-index", "--cached", "--raw", "-z", "--no-renames", "--no-relative", "--ignore-submodules=none",
        "--end-of-options", commit, index=index,
    )  # fmt: skip
    return {change.path for change in parse_raw_diff(raw.records)}


def _obstacles(root: Path, changes: Iterable[Change]) -> set[str]:
    """What stands where the second commit writes, and belongs to neither: a file for a directory, or the reverse."""
    changes = list(changes)
    known = {change.path for change in changes}
    found = set()
    for change in changes:
        if change.new is None:
            continue
        for parent in _parents(root, change.path):
            name = parent.relative_to(root).as_posix()
            if os.path.lexists(parent) and not is_real_directory(parent) and name not in known:
                found.add(name)
        if change.new.mode != Mode.GITLINK and is_real_directory(root / change.path):
            for directory, _, files in os.walk(root / change.path):
                below = {(Path(directory) / file).relative_to(root).as_posix() for file in files}
                found |= below - known
    return found


def _is_empty_submodule(place: Path, expected: Blob | None) -> bool:
    """A submodule that was never fetched is an empty directory, and that is how it should be."""
    return expected is not None and expected.mode == Mode.GITLINK and is_real_directory(place)


def _is_device(place: Path) -> bool:
    return not (place.is_symlink() or place.is_file() or place.is_dir())
