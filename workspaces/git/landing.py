"""Landing: a branch moves from base to candidate, together with the worktree that has it checked out.

Three calls for the three steps of intent, effect and receipt: ``landing_proof`` before the intent, ``land`` as the
effect, ``landing_verdict`` whenever somebody asks what became of it. The caller holds the repository's lock and, where
the branch is checked out, the lease on that worktree; a person may still work there, so what is his is never touched.

While the files change, ``index.lock`` is ours and says so, and so does a trail beside it, written before anything and
removed after everything. So a second try knows for certain which leftovers are its own, and a person's git is kept out
of a half-written worktree. git works on a private copy of the index, which replaces the real one in one rename.
"""

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from core.files import write_atomically
from workspaces.errors import (
    BaseRewritten,
    BranchCheckedOut,
    CheckoutDirty,
    CheckoutLocked,
    CheckoutMismatch,
    CheckoutUnmerged,
    GitFailed,
    LandingProofFailed,
    MergeCommitInCandidate,
    RefMoved,
)
from workspaces.git.repository import Repository
from workspaces.git.values import Blob, Change, LandingProof, Verdict, Worktree, require_id, require_ref, shown_all
from workspaces.git.working import (
    Comparison,
    as_stdin,
    clear_private_index,
    compare,
    private_index,
    scratch_index,
    stage_files,
)

TRAIL = "forge-landing"


def landing_proof(
    repo: Repository, *, base: str, candidate: str, checked_tree: str, allowed_paths: Collection[str]
) -> LandingProof:
    """What must be true of ``candidate`` before a branch may move from ``base`` to it.

    checked_tree:  the tree the checks ran on
    allowed_paths: union of the paths of the candidates that land here
    Raises: LandingProofFailed with ``reason`` not_a_line, other_tree or other_paths; any of them means a bug or a
            tampered repository, since each was true when the candidate was sealed
    """
    facts = {"base": base, "candidate": candidate}
    try:
        commits = repo.line(base, candidate)
    except (BaseRewritten, MergeCommitInCandidate) as problem:
        raise LandingProofFailed(f"not a line of commits: {problem}", reason="not_a_line", **facts) from problem
    if (tree := repo.tree_of(candidate)) != checked_tree:
        raise LandingProofFailed(f"{candidate} has tree {tree}, not the checked one", reason="other_tree", **facts)
    paths = tuple(change.path for change in repo.changes(base, candidate))
    if strange := set(paths) - set(allowed_paths):
        raise LandingProofFailed(
            f"{len(strange)} paths changed that no candidate changed",
            reason="other_paths",
            paths=shown_all(strange),
            **facts,
        )
    return LandingProof(base, candidate, tree, commits, paths)


def verdict_after_crash(*, tip: str | None, base: str, contains_candidate: bool) -> Verdict:
    """What a landing is. contains_candidate: the tip is the candidate, or has it as a first-parent ancestor."""
    if contains_candidate:
        return Verdict.LANDED
    return Verdict.DUE if tip == base else Verdict.STALE


def landing_verdict(repo: Repository, *, ref: str, base: str, candidate: str) -> Verdict:
    """What became of a landing, from where ``ref`` is now."""
    return _judged(repo, repo.ref_tip(ref), base, candidate)


def _judged(repo: Repository, tip: str | None, base: str, candidate: str) -> Verdict:
    contains = tip not in (None, base) and (
        tip == candidate or candidate in repo.first_parents(tip or base, after=base)
    )
    return verdict_after_crash(tip=tip, base=base, contains_candidate=contains)


def land(repo: Repository, *, ref: str, base: str, candidate: str, worktree: Path | None = None) -> str:
    """Move ``ref`` from ``base`` to ``candidate``; where ``worktree`` has it checked out, its files and index too.

    Again after a crash at any point, this goes on where the other try ended. Before anything changes, the ref is locked
    at its old value and the worktree is checked, so each of the errors leaves everything as it was.

    worktree: where the branch is checked out; must be given if it is anywhere, since files would else fall behind
    Returns: the tip read back: the candidate, or a descendant somebody put on it since
    Raises: RefMoved (stale; files this landing had written are turned back first), CheckoutDirty (paths),
            CheckoutLocked, CheckoutUnmerged, BranchCheckedOut, CheckoutMismatch, RefLocked, BaseRewritten
    """
    landing = _Landing(repo, require_ref(ref), require_id(base), require_id(candidate), worktree)
    is_redo = landing.clear_leftovers()
    verdict = landing_verdict(repo, ref=ref, base=base, candidate=candidate)
    if verdict == Verdict.DUE:
        landing.require_place()
        if not repo.is_ancestor(base, candidate):
            raise BaseRewritten(f"{base} is no ancestor of {candidate}", base=base, candidate=candidate)
        landing.run(is_redo=is_redo)
    elif verdict == Verdict.STALE:
        landing.turn_back(is_redo=is_redo)
        landing.end_trail()
        tip = repo.ref_tip(ref)
        raise RefMoved(f"{ref} is at {tip}, not at {base}", ref=ref, expected=base, actual=tip)
    landing.end_trail()
    return landing.read_back()


def turn_back(repo: Repository, *, ref: str, base: str, candidate: str, worktree: Path) -> bool:
    """After a stale verdict: take the files that a cut-off landing wrote in ``worktree`` back to ``base``.

    ``land`` does this by itself; this is for a landing that nobody will try again.

    Returns: False when there was nothing of this landing
    Raises: CheckoutDirty when somebody changed these files since; they are kept
    """
    landing = _Landing(repo, require_ref(ref), require_id(base), require_id(candidate), worktree)
    is_redo = landing.clear_leftovers()
    landing.turn_back(is_redo=is_redo)
    landing.end_trail()
    return is_redo


class _Landing:
    """One landing and what it leaves on disk while it runs."""

    def __init__(self, repo: Repository, ref: str, base: str, candidate: str, worktree: Path | None) -> None:
        self.repo, self.ref, self.base, self.candidate = repo, ref, base, candidate
        self.worktree = None if worktree is None else repo.worktree_at(worktree)
        self.git_dir = repo.common_dir if self.worktree is None else self.worktree.git_dir
        self.trail = self.git_dir / TRAIL
        self.text = f"forge landing\n{ref}\n{base}\n{candidate}\n".encode()

    # --- what an earlier try left -------------------------------------------------------------------------------

    def clear_leftovers(self) -> bool:
        """Remove the locks of our own ended git. True when an earlier try of this landing was cut off.

        No git of ours runs (the caller holds the lock that they inherit), and each lock is recognised: the ref's by the
        candidate in it, the index's by our text, HEAD's by being empty and younger than the trail.
        """
        ref_lock = self.repo.common_dir / f"{self.ref}.lock"
        if _content(ref_lock) == self.candidate.encode() + b"\n":
            ref_lock.unlink()
        found = _content(self.trail)
        if found is None:
            return False
        if found != self.text:
            *_, ref, _, candidate = found.decode(errors="replace").splitlines()
            raise CheckoutLocked(
                f"the landing of {candidate} on {ref} was cut off and comes first", candidate=candidate
            )
        head_lock = self.git_dir / "HEAD.lock"
        if _content(head_lock) == b"" and head_lock.stat().st_mtime_ns >= self._began_ns():
            head_lock.unlink()
        if _content(self._index_lock) == self.text:
            self._index_lock.unlink()
        clear_private_index(self.git_dir)
        return True

    def end_trail(self) -> None:
        self.trail.unlink(missing_ok=True)

    def _began_ns(self) -> int:
        return self.trail.stat().st_mtime_ns

    @property
    def _index_lock(self) -> Path:
        return self.git_dir / "index.lock"

    # --- the steps ----------------------------------------------------------------------------------------------

    def require_place(self) -> None:
        """The named worktree is the only one on the branch, or no worktree is named and none is on it."""
        holders = self.repo.checked_out_at(self.ref)
        others = [str(holder.path) for holder in holders if self.worktree is None or holder.path != self.worktree.path]
        if others:
            raise BranchCheckedOut(f"{self.ref} is checked out at {others[0]}", branch=self.ref, paths=others)
        if self.worktree is not None and not holders:
            raise CheckoutMismatch(f"{self.worktree.path} is not on {self.ref}", path=str(self.worktree.path))

    def run(self, *, is_redo: bool) -> None:
        if not is_redo:
            write_atomically(self.trail, self.text)
        has_begun = is_redo
        place = None if self.worktree is None else self.worktree.path
        try:
            with self.repo.git.ref_transaction(
                git_dir=self.git_dir, work_tree=place, cwd=place or self.git_dir, message="forge: land"
            ) as transaction:
                try:
                    transaction.prepare(self.ref, self.candidate, self.base)
                except GitFailed as problem:
                    raise self.repo.ref_problem(self.ref, self.base, problem) from problem
                if self.worktree is not None:
                    with self._own_index_lock(), private_index(self.worktree) as index:
                        comparison = self._require_free(index, self.base, self.candidate, is_redo=is_redo)
                        has_begun = True
                        self._move_files(index, comparison, self.base, self.candidate)
                        transaction.commit()
                else:
                    transaction.commit()
        except Exception:
            if not has_begun:
                self.end_trail()
            raise

    def turn_back(self, *, is_redo: bool) -> None:
        """Without a trail nothing of ours is in the files. With one, it is what equals the candidate."""
        if self.worktree is None or not is_redo:
            return
        with self._own_index_lock(), private_index(self.worktree) as index:
            comparison = self._require_free(index, self.candidate, self.base, is_redo=True)
            self._move_files(index, comparison, self.candidate, self.base)

    def read_back(self) -> str:
        tip = self.repo.ref_tip(self.ref)
        if tip is None or _judged(self.repo, tip, self.base, self.candidate) != Verdict.LANDED:
            raise RefMoved(f"{self.ref} is at {tip} after landing", ref=self.ref, expected=self.candidate, actual=tip)
        return tip

    # --- files and index ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _own_index_lock(self) -> Iterator[None]:
        try:
            descriptor = os.open(self._index_lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise CheckoutLocked(
                f"{self._index_lock} belongs to another git process", lock=str(self._index_lock)
            ) from None
        try:
            os.write(descriptor, self.text)
            yield
        finally:
            os.close(descriptor)
            self._index_lock.unlink(missing_ok=True)

    def _require_free(self, index: Path, first: str, second: str, *, is_redo: bool) -> Comparison:
        """Where the files stand, if going from ``first`` to ``second`` overwrites nobody's work."""
        worktree = self._placed()
        if unmerged := self.repo.run_in(worktree, "ls-files", "-z", "--unmerged", index=index).records:
            paths = {record.partition("\t")[2] for record in unmerged}
            raise CheckoutUnmerged(f"{worktree.path} holds an unfinished merge", paths=shown_all(paths))
        comparison = compare(self.repo, worktree, first, second, index=index)
        torn = self._torn(comparison) if is_redo else frozenset[str]()
        if blocked := comparison.blocked - torn:
            raise CheckoutDirty(
                f"{len(blocked)} changed paths in {worktree.path} are in the way",
                worktree=str(worktree.path),
                paths=shown_all(blocked),
            )
        return comparison

    def _move_files(self, index: Path, comparison: Comparison, first: str, second: str) -> None:
        """Write what differs. Nothing but our own is in the way by now: ``comparison.torn`` is what we had begun."""
        worktree, torn = self._placed(), comparison.torn
        for path in torn:
            (worktree.path / path).unlink(missing_ok=True)
        keep = {change.path for change in comparison.changes if second == self.base and self._is_persons(change)}
        # The index says what the files are, so that git keeps what is there already and writes only the rest.
        changed = [change.path for change in comparison.changes if change.path not in torn | keep]
        stage_files(self.repo, worktree, changed, index=index)
        self.repo.run_in(worktree, "update-index", "-q", "--refresh", index=index, ok=(0, 1))
        start = self._tree_without(first, keep) if keep else first
        self.repo.run_in(worktree, "read-tree", "-m", "-u", start, second, index=index)
        os.replace(index, self.git_dir / "index")

    def _tree_without(self, commit: str, paths: Collection[str]) -> str:
        """``commit`` as if it never had ``paths``, so that git, leaving it, does not want them gone."""
        with scratch_index() as index:
            self.repo.run_in(self._placed(), "read-tree", commit, index=index)
            forget = ("update-index", "-z", "--force-remove", "--stdin")
            self.repo.run_in(self._placed(), *forget, index=index, stdin=as_stdin(paths))
            return self.repo.run_in(self._placed(), "write-tree", index=index).line

    def _torn(self, comparison: Comparison) -> frozenset[str]:
        """Files that git was writing when it was killed: gone, or a beginning of what one of the commits has there.

        Only after a cut-off try, only files written since it began; any other content is somebody's and stays.
        """
        return frozenset(
            change.path for change in comparison.changes if change.path in comparison.torn and self._is_cut_off(change)
        )

    def _is_cut_off(self, change: Change) -> bool:
        place = self._placed().path / change.path
        try:
            found = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        if found.st_mtime_ns < self._began_ns() or place.is_symlink() or not place.is_file():
            return False
        content = place.read_bytes()
        return any(self._blob(blob).startswith(content) for blob in (change.old, change.new) if blob is not None)

    def _blob(self, blob: Blob) -> bytes:
        return self.repo.run("cat-file", "blob", blob.id).out

    def _is_persons(self, change: Change) -> bool:
        """Absent at the base, and there since before this landing began: by chance what we would have written, but not
        ours to remove."""
        place = self._placed().path / change.path
        return change.new is None and os.path.lexists(place) and place.lstat().st_mtime_ns < self._began_ns()

    def _placed(self) -> Worktree:
        assert self.worktree is not None
        return self.worktree


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
