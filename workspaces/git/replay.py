"""Refresh: a candidate's commits, put on a newer tip one by one, without a worktree."""

import contextlib
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from workspaces.errors import ReplayConflict
from workspaces.git.candidates import commit_tree
from workspaces.git.messages import has_trailer, with_trailers
from workspaces.git.repository import Repository
from workspaces.git.runner import signed
from workspaces.git.values import FORGE, Identity, Mode, Moment, Replay, from_bytes, require_id, shown_all

TRAILER = "Forge-Candidate"
_SIGNATURE = re.compile(r"(?P<name>.*?) ?<(?P<email>[^>]*)> (?P<seconds>-?\d+) (?P<offset>[+-]\d{4})", re.DOTALL)


def replay(repo: Repository, *, base: str, candidate: str, onto: str, identity: Identity) -> Replay:
    """The commits of base..candidate again, on ``onto``: author and his date kept, ``identity`` as committer.

    Each new commit carries ``Forge-Candidate: <old id>``, unless an earlier refresh left that trailer already.
    The committer date is the later one of the old commit's and its new parent's, so ids depend on the arguments alone.
    A commit whose change is on ``onto`` already would be empty; it is dropped and named, since a landed commit should
    say what changed. A commit that was empty from the start is kept: emptiness was its message.

    Writes: objects only; with ``onto`` equal to ``base`` not even these, and the candidate itself is returned
    Raises: ReplayConflict (paths), BaseRewritten, MergeCommitInCandidate
    """
    commits = repo.line(base, candidate)
    if onto == base:
        return Replay(candidate, repo.tree_of(candidate), onto, tuple((old, old) for old in commits), ())
    tip = _Commit.read(repo, onto)
    pairs, dropped = [], []
    with _attributes_of(repo, onto) as attributes:
        for old in (_Commit.read(repo, commit) for commit in commits):
            tree = _merged_tree(repo, old, tip, attributes)
            if tree == tip.tree and not repo.changes(old.parents[0], old.id):
                pass  # empty from the start
            elif tree == tip.tree:
                dropped.append(old.id)
                continue
            tip = _rewritten(repo, old, tip, tree, identity)
            pairs.append((old.id, tip.id))
    return Replay(tip.id, tip.tree, onto, tuple(pairs), tuple(dropped))


@dataclass(frozen=True, slots=True)
class _Commit:
    id: str
    tree: str
    parents: tuple[str, ...]
    author: tuple[Identity, Moment]
    committed: Moment
    encoding: str
    message: bytes

    @classmethod
    def read(cls, repo: Repository, commit: str) -> "_Commit":
        header, _, message = repo.run("cat-file", "commit", require_id(commit)).out.partition(b"\n\n")
        lines = [line.partition(" ") for line in from_bytes(header).split("\n")]
        facts = {key: value for key, _, value in reversed(lines)}  # of repeated headers the first one counts
        _, committed = _signature(facts["committer"])
        return cls(
            id=commit,
            tree=facts["tree"],
            parents=tuple(value for key, _, value in lines if key == "parent"),
            author=_signature(facts["author"]),
            committed=committed,
            encoding=facts.get("encoding", "UTF-8"),
            message=message,
        )


def _signature(text: str) -> tuple[Identity, Moment]:
    """``Name <mail> seconds offset``. Source: git-commit-tree(1); old histories lack a name or a mail."""
    found = _SIGNATURE.fullmatch(text)
    if found is None:
        raise ValueError(f"not a signature: {text!r}")
    who = Identity(found["name"].strip() or "unknown", found["email"].strip() or "unknown")
    return who, Moment(int(found["seconds"]), found["offset"])


def _merged_tree(repo: Repository, old: _Commit, tip: _Commit, attributes: Path) -> str:
    """The tree of ``tip`` with the change that ``old`` made to its parent.

    ``merge-tree`` finds the merge base itself: for tip and old that would be an older common ancestor, and lines that
    the tip removed again would silently come back. So it is given a helper that has the tip's tree and, as its only
    parent, the parent of ``old``: then that parent *is* the merge base. (``--merge-base`` needs git 2.40.)
    """
    [parent] = old.parents
    helper = commit_tree(
        repo, tip.tree, [parent], b"forge: merge base helper\n",
        author=signed(FORGE, old.committed, role="AUTHOR"), by=FORGE, at=old.committed,
    )  # fmt: skip
    merged = repo.git.run(
        "merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", "--end-of-options", helper, old.id,
        cwd=attributes,
        git_dir=repo.common_dir,
        work_tree=attributes,
        index=attributes / "no-index",
        ok=(0, 1),
        config=repo.overrides(repo.common_dir),
    )  # fmt: skip
    tree, *conflicts = merged.records
    if merged.code == 1:
        paths = {path for path in conflicts if path}
        raise ReplayConflict(f"{old.id} conflicts in {len(paths)} paths", commit=old.id, paths=shown_all(paths))
    # The tip may have moved a file, and the merge follows it: into a path that no scope, proof or approval knows of.
    touched = {change.path for change in repo.changes(tip.tree, tree)}
    if strange := touched - {change.path for change in repo.changes(parent, old.id)}:
        raise ReplayConflict(f"{old.id} would change paths it did not change", commit=old.id, paths=shown_all(strange))
    return tree


def _rewritten(repo: Repository, old: _Commit, parent: _Commit, tree: str, identity: Identity) -> _Commit:
    message = old.message if has_trailer(old.message, TRAILER) else with_trailers(old.message, [(TRAILER, old.id)])
    commit = commit_tree(
        repo,
        tree,
        [parent.id],
        message,
        author=signed(*old.author, role="AUTHOR"),
        by=identity,
        at=Moment(max(old.committed.seconds, parent.committed.seconds)),
        encoding=old.encoding,
    )
    return _Commit.read(repo, commit)


@contextlib.contextmanager
def _attributes_of(repo: Repository, commit: str) -> Iterator[Path]:
    """A directory with nothing but the attribute files of ``commit``: git reads them from a work tree alone.

    They say which files merge by union or not at all, and must not depend on what lies in somebody's worktree.
    """
    with tempfile.TemporaryDirectory(prefix="forge-attributes-") as name:
        directory = Path(name)
        for record in repo.run("ls-tree", "-r", "-z", "--end-of-options", commit).records:
            facts, _, path = record.partition("\t")
            mode, _, blob = facts.split(" ")
            if PurePosixPath(path).name == ".gitattributes" and mode in (Mode.FILE, Mode.EXECUTABLE):
                place = directory / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(repo.run("cat-file", "blob", blob).out)
        yield directory
