"""Finding repositories and branches, reading commits, pins; and what a git process may and may not do."""

import fcntl
import os
import select
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from tests.workspaces.repos import ANN, MAIN, commit, git, make, root, tip, write
from workspaces.errors import (
    BaseRewritten,
    BranchNameInvalid,
    BranchUnknown,
    GitFailed,
    GitMissing,
    GitOutputTooLarge,
    GitTimeout,
    MergeCommitInCandidate,
    NotARepository,
    PathMissing,
    RefLocked,
    RefMoved,
    RepositoryEmpty,
    RepositoryNotOwned,
)
from workspaces.git import Git, Identity, Moment, Repository, blocked_paths, dirty_paths

AWKWARD = ["*.py", "-x", ":(top)a", "a b", "new\nline", "tab\t", 'quote"', "ünï", "dir/[a]", "bad\udcff"]


def test_a_repository_is_found_from_a_directory_below_its_top(tmp_path: Path) -> None:
    make(tmp_path / "r", {"deep/er/file": "x"})

    repo = Repository.open(tmp_path / "r" / "deep" / "er")

    assert (repo.root, repo.common_dir, repo.git_dir) == (tmp_path / "r", tmp_path / "r/.git", tmp_path / "r/.git")
    assert repo.object_format == "sha1"


def test_a_linked_worktree_is_a_root_of_its_own_in_the_same_repository(tmp_path: Path) -> None:
    repo = make(tmp_path / "r")
    git(root(repo), "worktree", "add", "--quiet", "-b", "side", str(tmp_path / "w"))

    linked = Repository.open(tmp_path / "w")

    assert (linked.root, linked.common_dir) == (tmp_path / "w", repo.common_dir)
    assert linked.git_dir == repo.common_dir / "worktrees" / "w"
    assert [(tree.path, tree.branch) for tree in linked.worktrees()] == [
        (tmp_path / "r", MAIN),
        (tmp_path / "w", "refs/heads/side"),
    ]


def test_a_bare_repository_has_no_root_and_no_worktree(tmp_path: Path) -> None:
    repo = make(tmp_path / "r")
    git(tmp_path, "clone", "--quiet", "--bare", "r", "b.git")

    bare = Repository.open(tmp_path / "b.git")

    assert (bare.root, bare.worktrees()) == (None, ())
    assert bare.resolve_branch("main").tip == tip(repo)


def test_sha256_repositories_work(tmp_path: Path) -> None:
    repo = make(tmp_path / "r", None, "--object-format=sha256")

    repo.pin("refs/forge/candidate/1", tip(repo))

    assert (repo.object_format, len(tip(repo)), len(repo.no_commit)) == ("sha256", 64, 64)


def test_what_is_no_repository_is_refused_by_kind(tmp_path: Path) -> None:
    make(tmp_path / "r")
    (tmp_path / "plain").mkdir()

    with pytest.raises(PathMissing):
        Repository.open(tmp_path / "gone")
    with pytest.raises(NotARepository):
        Repository.open(tmp_path / "plain")
    with pytest.raises(NotARepository):
        Repository.open(tmp_path / "r" / ".git" / "objects")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a repository away")
def test_a_repository_of_another_user_needs_to_be_trusted_by_name(tmp_path: Path) -> None:
    repo = make(tmp_path / "r")
    os.chown(repo.common_dir, 12345, 12345)

    with pytest.raises(RepositoryNotOwned) as refused:
        Repository.open(root(repo))

    assert refused.value.data["owner"] == 12345
    assert Repository.open(root(repo), trust_foreign_owner=True).resolve_branch("main")


def test_a_branch_is_found_by_short_and_by_full_name_and_never_a_tag(tmp_path: Path) -> None:
    repo = make(tmp_path / "r")
    git(root(repo), "tag", "v1")
    git(root(repo), "branch", "feature/a")

    assert repo.resolve_branch("feature/a").ref == "refs/heads/feature/a"
    assert repo.resolve_branch("refs/heads/main").tip == tip(repo)
    with pytest.raises(BranchUnknown) as unknown:
        repo.resolve_branch("v1")
    assert unknown.value.data["branches"] == ["feature/a", "main"]


@pytest.mark.parametrize(
    "name",
    ["", "HEAD", "-d", "a b", "a..b", "@{-1}", "a@{1}", "a\n", "a\0b", "a.lock", "/a", "a//b", "a~1", "refs/tags/v1"],
)
def test_impossible_branch_names_are_refused(tmp_path: Path, name: str) -> None:
    repo = make(tmp_path / "r")

    with pytest.raises(BranchNameInvalid):
        repo.resolve_branch(name)


def test_an_empty_repository_is_called_empty(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--initial-branch=main")

    with pytest.raises(RepositoryEmpty):
        Repository.open(tmp_path).resolve_branch("main")


@pytest.mark.req("PX-51")
@pytest.mark.parametrize("name", AWKWARD)
def test_file_names_are_literal(tmp_path: Path, name: str) -> None:
    repo = make(tmp_path / "r", {name: "1\n", "b.py": "1\n", "a": "1\n", "dir/a": "1\n"})
    base = tip(repo)
    git(root(repo), "switch", "--quiet", "-c", "side")
    candidate = commit(root(repo), {name: "2\n", "a": "2\n"})
    git(root(repo), "switch", "--quiet", "main")
    write(root(repo), {name: "mine\n", "b.py": "mine\n"})
    [main] = repo.checked_out_at(MAIN)

    assert sorted(change.path for change in repo.changes(base, candidate)) == sorted([name, "a"])
    assert {change.path for change in dirty_paths(repo, main)} == {name, "b.py"}
    assert blocked_paths(repo, main, base, candidate) == (name,)
    assert "b.py" not in repo.diff_text(base, candidate, paths=[name]).text
    assert repo.diff_text(base, candidate, paths=[name]).text.count("+2") == 1


def test_changes_name_content_before_and_after_and_split_a_rename(tmp_path: Path) -> None:
    repo = make(tmp_path / "r", {"old": "same\n" * 9, "run": "x\n"})
    base = tip(repo)
    (root(repo) / "run").chmod(0o755)
    git(root(repo), "mv", "old", "new")
    candidate = commit(root(repo), {})

    changes = {change.path: change for change in repo.changes(base, candidate)}

    assert changes["old"].new is None
    assert changes["old"].old == changes["new"].new
    old, new = changes["run"].old, changes["run"].new
    assert old is not None
    assert new is not None
    assert (old.mode, new.mode, old.id) == ("100644", "100755", new.id)


def test_a_line_of_commits_has_no_merge_and_starts_at_its_base(tmp_path: Path) -> None:
    repo = make(tmp_path / "r")
    base = tip(repo)
    git(root(repo), "switch", "--quiet", "-c", "side")
    one = commit(root(repo), {"a": "1"})
    two = commit(root(repo), {"a": "2"})
    git(root(repo), "switch", "--quiet", "main")
    elsewhere = commit(root(repo), {"b": "1"})
    git(root(repo), "merge", "--quiet", "-m", "merge", "side")

    assert repo.line(base, two) == (one, two)
    with pytest.raises(MergeCommitInCandidate) as merge:
        repo.line(base, tip(repo))
    assert merge.value.data["commits"] == [tip(repo)]
    with pytest.raises(BaseRewritten):
        repo.line(elsewhere, two)


def test_replacements_and_grafts_do_not_change_what_history_says(tmp_path: Path) -> None:
    """A worker shares the repository, so it could show us a tame commit in place of the one that would land."""
    repo = make(tmp_path / "r")
    base = tip(repo)
    wild = commit(root(repo), {"secret": "changed\n", "a": "1"})
    git(root(repo), "reset", "--quiet", "--hard", base)
    tame = commit(root(repo), {"a": "1"})
    git(root(repo), "replace", wild, tame)
    (repo.common_dir / "info").mkdir(exist_ok=True)
    (repo.common_dir / "info" / "grafts").write_text(f"{wild}\n")

    assert {change.path for change in repo.changes(base, wild)} == {"secret", "a"}
    assert repo.line(base, wild) == (wild,)


def test_a_diff_for_people_is_cut_at_its_limit_and_a_log_is_newest_first(tmp_path: Path) -> None:
    repo = make(tmp_path / "r")
    base = tip(repo)
    commit(root(repo), {"big": "line\n" * 100_000}, "grow")
    last = commit(root(repo), {"small": "x\n"}, "last")

    cut = repo.diff_text(base, last, limit=1000)

    assert (len(cut.text), cut.is_truncated) == (1000, True)
    assert not repo.diff_text(base, last, paths=["small"]).is_truncated
    assert [line.subject for line in repo.log_oneline(base, last)] == ["last", "grow"]


def test_a_pin_is_created_once_and_never_moved(tmp_path: Path) -> None:
    repo = make(tmp_path / "r")
    first = tip(repo)
    second = commit(root(repo), {"a": "1"})
    ref = "refs/forge/candidate/7"

    repo.pin(ref, first)
    repo.pin(ref, first)
    with pytest.raises(RefMoved):
        repo.pin(ref, second)
    assert repo.ref_tip(ref) == first

    with pytest.raises(RefMoved):
        repo.unpin(ref, second)
    assert (repo.unpin(ref, first), repo.unpin(ref, first)) == (True, False)


def test_a_locked_ref_is_said_to_be_locked(tmp_path: Path) -> None:
    repo = make(tmp_path / "r")
    lock = repo.common_dir / "refs/forge/candidate/7.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()

    with pytest.raises(RefLocked):
        repo.pin("refs/forge/candidate/7", tip(repo))


def test_half_an_id_or_a_relative_ref_is_our_own_bug(tmp_path: Path) -> None:
    repo = make(tmp_path / "r")

    with pytest.raises(ValueError, match="full object id"):
        repo.changes("HEAD", tip(repo))
    with pytest.raises(ValueError, match="full ref name"):
        repo.ref_tip("main")
    with pytest.raises(ValueError, match="not usable"):
        Identity("", "a@b")
    with pytest.raises(ValueError, match="aware"):
        Moment.at(datetime(2026, 1, 1))  # noqa: DTZ001  # the naive one is the point


# --- the process --------------------------------------------------------------------------------------------


def test_a_git_that_runs_too_long_is_ended_with_its_whole_group(tmp_path: Path) -> None:
    slow = tmp_path / "git"
    slow.write_text(
        "#!/bin/sh\necho $$ > leader\nsh -c 'trap \"\" TERM; echo $$ > child; exec sleep 600' &\nsleep 600\n"
    )
    slow.chmod(0o755)

    with pytest.raises(GitTimeout):
        Git(executable=str(slow), timeout_s=0.5).run("status", cwd=tmp_path)

    for name in ("leader", "child"):
        try:
            descriptor = os.pidfd_open(int((tmp_path / name).read_text()))
        except ProcessLookupError:
            continue  # gone already
        assert select.select([descriptor], [], [], 60)[0]
        os.close(descriptor)


def test_too_much_output_is_an_error_and_not_a_shorter_answer(tmp_path: Path) -> None:
    repo = make(tmp_path / "r", {f"file-{number}": "" for number in range(200)})

    with pytest.raises(GitOutputTooLarge):
        Repository.open(root(repo), Git(output_limit=100)).run("ls-tree", "-r", "HEAD")


def test_a_missing_git_and_a_failing_git_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(GitMissing):
        Git(executable=str(tmp_path / "no-git")).run("version", cwd=tmp_path)
    with pytest.raises(GitFailed) as failed:
        Git().run("cat-file", "-p", "nothing", cwd=tmp_path)
    assert failed.value.data["exit_code"] == 128
    with pytest.raises(GitFailed):
        Git().run("version", cwd=tmp_path / "gone")


def test_the_lock_stays_taken_until_the_last_git_has_ended(tmp_path: Path) -> None:
    """What makes ``one effect per repository`` true even when the process that held the lock is killed."""
    pipe, held = tmp_path / "pipe", tmp_path / "lock"
    os.mkfifo(pipe)
    slow = tmp_path / "git"
    slow.write_text(f"#!/bin/sh\ncat {pipe}\n")
    slow.chmod(0o755)
    effect = (
        "import sys; from pathlib import Path; from workspaces.git import Git; "
        f"Git(lock_fd=int(sys.argv[1]), executable={str(slow)!r}).run('status', cwd=Path('/'))"
    )
    owner = os.open(held, os.O_CREAT | os.O_RDWR)
    fcntl.flock(owner, fcntl.LOCK_EX)
    with subprocess.Popen([sys.executable, "-c", effect, str(owner)], pass_fds=[owner]) as process:
        os.close(owner)
        writer = os.open(pipe, os.O_WRONLY)  # returns once git reads
        process.send_signal(signal.SIGKILL)

    other = os.open(held, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(writer)  # git ends
    fcntl.flock(other, fcntl.LOCK_EX)
    os.close(other)


def test_nothing_of_our_environment_reaches_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = make(tmp_path / "r")
    other = make(tmp_path / "other", {"x": "y"})
    monkeypatch.setenv("GIT_DIR", str(other.common_dir))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'core.bare'='true'")
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(tmp_path / "nowhere"))

    again = Repository.open(root(repo))

    assert again == repo
    assert tip(again) == tip(repo)
    assert ANN.name in again.run("cat-file", "commit", tip(again)).line
