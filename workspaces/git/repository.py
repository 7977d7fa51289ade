"""A repository: where it is, its branches, what its commits say. Everything here only reads, but for pins.

Commands name the git directory and the work tree explicitly. So a ``.git`` file that a worker rewrote, or a
``core.worktree`` in the configuration, cannot send them elsewhere, and nothing is looked up twice.
"""

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from workspaces.errors import (
    BaseRewritten,
    BranchNameInvalid,
    BranchUnknown,
    CheckoutUnknown,
    GitFailed,
    MergeCommitInCandidate,
    NotARepository,
    PathMissing,
    RefLocked,
    RefMoved,
    RepositoryEmpty,
    RepositoryNotOwned,
)
from workspaces.git.runner import Finished, Git
from workspaces.git.values import (
    Blob,
    Branch,
    Change,
    LogLine,
    Mode,
    Text,
    Worktree,
    require_id,
    require_ref,
)

HEADS = "refs/heads/"
ABSENT_MODE = "000000"  # how a raw diff says that a side has no such path

# A filter whose command is empty leaves content as it is, and a merge driver that only fails makes a conflict.
_NEUTRAL = {
    ("filter", "clean"): "",
    ("filter", "smudge"): "",
    ("filter", "process"): "",
    ("filter", "required"): "false",
    ("merge", "driver"): "false",
}


@dataclass(frozen=True)
class Repository:
    """An existing repository, as seen from one of its worktrees (or from none, when it is bare).

    common_dir: shared by all worktrees: objects, refs, configuration
    git_dir:    of the worktree at ``root``; equals ``common_dir`` for the main worktree and for a bare repository
    root:       top of that worktree, None for a bare repository
    """

    common_dir: Path
    git_dir: Path
    root: Path | None
    object_format: str
    git: Git
    _overrides: dict[Path, Mapping[str, str]] = field(default_factory=dict, compare=False, repr=False)

    # --- finding it ---------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: Path, git: Git | None = None, *, trust_foreign_owner: bool = False) -> Self:
        """The repository whose worktree or bare directory ``path`` lies in.

        trust_foreign_owner: git refuses repositories of other users unless ``safe.directory`` lists them, and that
                             list lives in the configuration we do not read; this is its replacement
        Raises: PathMissing, NotARepository, RepositoryNotOwned
        """
        git = git or Git()
        path = path.resolve()
        if not path.is_dir():
            raise PathMissing(f"{path} is no directory on this host", path=str(path))
        try:
            facts = git.run(
                "rev-parse",
                "--is-bare-repository",
                "--is-inside-work-tree",
                "--show-object-format",
                "--absolute-git-dir",
                cwd=path,
            )
        except GitFailed as problem:
            raise NotARepository(
                f"{path} is not inside a git repository", path=str(path), error=problem.data["error"]
            ) from problem
        is_bare, is_inside, object_format, git_dir_name = facts.line.split(
            "\n", 3
        )  # the name comes last: it may hold \n
        git_dir = Path(git_dir_name)
        common_dir = Path(git.run("rev-parse", "--path-format=absolute", "--git-common-dir", cwd=path).line)
        if is_bare == "true":
            root = None
        elif is_inside == "true":
            root = Path(git.run("rev-parse", "--show-toplevel", cwd=path).line)
        else:
            raise NotARepository(f"{path} lies inside a git directory, not in its worktree", path=str(path))
        if not trust_foreign_owner:
            _require_own({git_dir, common_dir, *([root] if root else [])})
        return cls(common_dir.resolve(), git_dir.resolve(), root, object_format, git)

    @property
    def no_commit(self) -> str:
        """The id that stands for "no such ref"."""
        return "0" * (64 if self.object_format == "sha256" else 40)

    # --- running git --------------------------------------------------------------------------------------------

    def run(
        self,
        *args: str,
        stdin: bytes = b"",
        ok: Sequence[int] = (0,),
        environment: Mapping[str, str] | None = None,
        config: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Finished:
        """git on objects and refs alone: no worktree, no index."""
        return self.git.run(
            *args,
            cwd=self.common_dir,
            git_dir=self.common_dir,
            stdin=stdin,
            ok=ok,
            environment=environment,
            config={**self.overrides(self.common_dir), **(config or {})},
            limit=limit,
        )

    def run_in(
        self,
        worktree: Worktree,
        *args: str,
        index: Path | None = None,
        stdin: bytes = b"",
        ok: Sequence[int] = (0,),
        config: Mapping[str, str] | None = None,
    ) -> Finished:
        """git on the files of ``worktree`` and its index (or ``index`` in place of it)."""
        return self.git.run(
            *args,
            cwd=worktree.path,
            git_dir=worktree.git_dir,
            work_tree=worktree.path,
            index=index,
            stdin=stdin,
            ok=ok,
            config={**self.overrides(worktree.git_dir), **(config or {})},
        )

    def overrides(self, git_dir: Path) -> Mapping[str, str]:
        """Settings that switch off each filter and merge driver the configuration names. Read once per directory."""
        if git_dir not in self._overrides:
            listed = self.git.run("config", "--list", "--includes", "--name-only", "-z", cwd=git_dir, git_dir=git_dir)
            found: dict[str, str] = {}
            for name in listed.records:
                section, _, rest = name.partition(".")
                driver, _, _ = rest.rpartition(".")
                if driver:
                    found |= {
                        f"{kind}.{driver}.{key}": value for (kind, key), value in _NEUTRAL.items() if kind == section
                    }
            self._overrides[git_dir] = found
        return self._overrides[git_dir]

    # --- branches and refs --------------------------------------------------------------------------------------

    def resolve_branch(self, name: str) -> Branch:
        """``name`` (short, or full with refs/heads/) as full ref and tip.

        Raises: BranchNameInvalid, RepositoryEmpty, BranchUnknown (with the first branches there are)
        """
        ref = self._branch_ref(name)
        if tip := self.ref_tip(ref):
            return Branch(ref, tip)
        branches = self.run("for-each-ref", "--format=%(refname:lstrip=2)", "--count=20", HEADS).line.splitlines()
        if not branches and not self.run("for-each-ref", "--count=1").out:
            raise RepositoryEmpty(f"{self.root or self.common_dir} has no commit yet", repository=str(self.common_dir))
        raise BranchUnknown(f"there is no branch {name!r}", branch=name, branches=branches)

    def ref_tip(self, ref: str) -> str | None:
        """The commit ``ref`` is at, or None where there is no such ref."""
        found = self.run(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{require_ref(ref)}^{{commit}}", ok=(0, 1)
        )
        return found.line if found.code == 0 else None

    def _branch_ref(self, name: str) -> str:
        short = name.removeprefix(HEADS)
        is_plain = short not in ("", "HEAD") and not short.startswith(("-", "refs/")) and short.isprintable()
        # Not --branch: that form follows @{-1}, and we want names only.
        if not is_plain or self.run("check-ref-format", HEADS + short, ok=(0, 1)).code:
            raise BranchNameInvalid(f"{name!r} is no possible branch name", branch=name)
        return HEADS + short

    def pin(self, ref: str, commit: str) -> None:
        """Keep ``commit`` under ``ref``. Doing it twice is fine; RefMoved when the ref holds something else."""
        self.create_ref(ref, commit, "pin")

    def unpin(self, ref: str, commit: str) -> bool:
        """Remove the pin if it is there. False when it was gone; RefMoved when it holds something else."""
        tip = self.ref_tip(ref)
        if tip is None:
            return False
        if tip != require_id(commit):
            raise RefMoved(f"{ref} is at {tip}, not at {commit}", ref=ref, expected=commit, actual=tip)
        self.move_ref(ref, None, commit, "unpin")
        return True

    def create_ref(self, ref: str, commit: str, reason: str) -> None:
        """``ref`` at ``commit``, created or already equal. Raises RefMoved, RefLocked."""
        if (tip := self.ref_tip(ref)) == require_id(commit):
            return
        if tip is not None:
            raise RefMoved(f"{ref} is at {tip}, not at {commit}", ref=ref, expected=commit, actual=tip)
        self.move_ref(ref, commit, self.no_commit, reason)

    def move_ref(self, ref: str, new: str | None, old: str, reason: str) -> None:
        """Compare and swap; ``new`` None deletes. Raises RefMoved, RefLocked."""
        words = ("-d", require_ref(ref), old) if new is None else (require_ref(ref), new, old)
        try:
            self.run("update-ref", "--no-deref", "-m", f"forge: {reason}", *words)
        except GitFailed as problem:
            raise self.ref_problem(ref, old, problem) from problem

    def ref_problem(self, ref: str, expected: str, problem: GitFailed) -> RefMoved | RefLocked | GitFailed:
        """Which of the known reasons made an update of ``ref`` fail."""
        tip = self.ref_tip(ref)
        if (tip or self.no_commit) != expected:
            return RefMoved(f"{ref} is at {tip}, not at {expected}", ref=ref, expected=expected, actual=tip)
        if ".lock': File exists" in problem.data["error"]:
            return RefLocked(f"{ref} is locked: {problem.data['error']}", ref=ref)
        return problem

    # --- worktrees ----------------------------------------------------------------------------------------------

    def worktrees(self) -> tuple[Worktree, ...]:
        """All registered worktrees, the main one first. A bare repository's own directory is none."""
        args = ("worktree", "list", "--porcelain", "-z")
        if self.root is None:
            listed = self.run(*args)
        else:  # with its worktree, since git calls a repository bare that is run without one
            listed = self.git.run(*args, cwd=self.root, git_dir=self.git_dir, work_tree=self.root)
        git_dirs = self._linked_git_dirs()
        found: list[Worktree] = []
        for position, block in enumerate(listed.out.decode("utf-8", "surrogateescape").split("\0\0")[:-1]):
            facts = dict(line.partition(" ")[::2] for line in block.split("\0"))
            path, is_main = Path(facts["worktree"]), position == 0
            if "bare" in facts:
                continue
            if is_main and self.git_dir == self.common_dir and self.root is not None:
                path = self.root  # git derives it from the git directory's name, which --separate-git-dir breaks
            git_dir = self.common_dir if is_main else git_dirs.get(path)
            if git_dir is not None:
                head = facts.get("HEAD", self.no_commit)
                found.append(
                    Worktree(path, git_dir, None if head == self.no_commit else head, facts.get("branch"), is_main)
                )
        return tuple(found)

    def checked_out_at(self, ref: str) -> tuple[Worktree, ...]:
        """The worktrees whose HEAD is on the branch ``ref``: none, one, or more where somebody forced it."""
        return tuple(worktree for worktree in self.worktrees() if worktree.branch == ref)

    def worktree_at(self, path: Path) -> Worktree:
        """Raises CheckoutUnknown."""
        for worktree in self.worktrees():
            if worktree.path == path or worktree.path.resolve() == path.resolve():
                return worktree
        raise CheckoutUnknown(f"{path} is no worktree of {self.common_dir}", path=str(path))

    def _linked_git_dirs(self) -> dict[Path, Path]:
        """Worktree path to its git directory. Source: gitrepository-layout(5), ``worktrees/<id>/gitdir``."""
        found = {}
        for pointer in self.common_dir.glob("worktrees/*/gitdir"):
            named = Path(os.fsdecode(pointer.read_bytes().rstrip(b"\n")))
            found[(pointer.parent / named).parent] = pointer.parent  # relative since git 2.48, where so configured
        return found

    # --- commits ------------------------------------------------------------------------------------------------

    def tree_of(self, commit: str) -> str:
        return self.run("rev-parse", "--verify", "--end-of-options", f"{require_id(commit)}^{{tree}}").line

    def is_ancestor(self, ancestor: str, commit: str) -> bool:
        answer = self.run("merge-base", "--is-ancestor", require_id(ancestor), require_id(commit), ok=(0, 1))
        return answer.code == 0

    def first_parents(self, commit: str, *, after: str) -> list[str]:
        """The first-parent chain of ``commit``, newest first, without what ``after`` reaches."""
        return self.run("rev-list", "--first-parent", require_id(commit), f"^{require_id(after)}").line.split()

    def line(self, base: str, candidate: str) -> tuple[str, ...]:
        """The commits from ``base`` (not in it) to ``candidate``, oldest first: a line without a merge.

        Raises: BaseRewritten when base is no ancestor, MergeCommitInCandidate
        """
        if not self.is_ancestor(base, candidate):
            raise BaseRewritten(f"{base} is no ancestor of {candidate}", base=base, candidate=candidate)
        listed = self.run("rev-list", "--parents", "--topo-order", "--reverse", candidate, f"^{base}").line
        rows = [row.split() for row in listed.splitlines()]
        if merges := [row[0] for row in rows if len(row) > 2]:
            raise MergeCommitInCandidate(f"{merges[0]} is a merge commit", commits=merges)
        return tuple(row[0] for row in rows)

    def changes(self, base: str, candidate: str) -> tuple[Change, ...]:
        """Every path that differs, with content before and after, in git's order. Renames stay two paths."""
        raw = self.run(
            "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-relative", "--ignore-submodules=none",
            "--end-of-options", require_id(base), require_id(candidate),
        )  # fmt: skip
        return parse_raw_diff(raw.records)

    def diff_text(self, base: str, commit: str, *, paths: Sequence[str] | None = None, limit: int = 1 << 20) -> Text:
        """The difference as a patch for people, cut after ``limit`` bytes. Never runs a diff driver."""
        raw = self.run(
            "diff-tree", "-r", "-p", "-M", "--no-ext-diff", "--no-textconv", "--no-color", "--no-relative",
            "--src-prefix=a/", "--dst-prefix=b/", "--ignore-submodules=none",
            "--end-of-options", require_id(base), require_id(commit), "--", *(paths or ()),
            limit=limit,
        )  # fmt: skip
        return Text(raw.out.decode("utf-8", "replace"), raw.is_truncated)

    def log_oneline(self, base: str, commit: str, *, limit: int = 100) -> tuple[LogLine, ...]:
        """The newest ``limit`` commits after ``base``, newest first."""
        raw = self.run(
            "rev-list", "--no-commit-header", "--format=%H %s", f"--max-count={limit}", "--end-of-options",
            require_id(commit), f"^{require_id(base)}",
        )  # fmt: skip
        lines = raw.out.decode("utf-8", "replace").split("\n")[:-1]
        return tuple(LogLine(*text.split(" ", 1)) for text in lines)


def parse_raw_diff(records: Sequence[str]) -> tuple[Change, ...]:
    """``--raw -z``: alternately ``:oldmode newmode oldid newid status`` and the path. Source: git-diff-tree(1)."""
    found = []
    for facts, path in zip(records[::2], records[1::2], strict=True):
        old_mode, new_mode, old_id, new_id, _status = facts.removeprefix(":").split(" ")
        old = None if old_mode == ABSENT_MODE else Blob(_mode(old_mode), old_id)
        new = None if new_mode == ABSENT_MODE else Blob(_mode(new_mode), new_id)
        found.append(Change(path, old, new))
    return tuple(found)


def _mode(text: str) -> str:
    try:
        return Mode(text)
    except ValueError:  # 100664 in histories from before 2005
        return text


def _require_own(paths: set[Path]) -> None:
    """The rule git itself has: ours, or, for root under sudo, the user's who called it."""
    trusted = {os.geteuid()}
    if os.geteuid() == 0 and os.environ.get("SUDO_UID", "").isdigit():
        trusted.add(int(os.environ["SUDO_UID"]))
    for path in sorted(paths):
        owner = path.stat().st_uid
        if owner not in trusted:
            raise RepositoryNotOwned(f"{path} belongs to user id {owner}", path=str(path), owner=owner)


def is_real_directory(path: Path) -> bool:
    """A directory and no symbolic link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False
