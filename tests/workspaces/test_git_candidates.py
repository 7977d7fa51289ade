"""Sealing: what a worker left becomes a candidate within its scope, or is refused by name and stays as it was."""

from pathlib import Path

import pytest

from tests.workspaces.repos import ANN, BOT, NOON, WORK, commit, git, make, read, root, tip, write
from workspaces.errors import (
    BaseRewritten,
    CandidateEmpty,
    CheckoutMismatch,
    CheckoutUnmerged,
    EmbeddedRepository,
    MergeCommitInCandidate,
    ScopeViolation,
    SubmoduleChange,
)
from workspaces.git import Checkout, Repository, SealedCandidate, add_checkout, outside_scope, seal

FILES = {"README": "one\n", "src/a": "1\n", "src/b": "2\n", ".gitignore": "*.log\n"}


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return make(tmp_path / "r", FILES)


@pytest.fixture
def checkout(repo: Repository, tmp_path: Path) -> Checkout:
    return add_checkout(repo, tmp_path / "w", branch=WORK, base=tip(repo))


def sealed(
    repo: Repository, checkout: Checkout, *scope: str, unrestricted: bool = False, allow_submodules: bool = False
) -> SealedCandidate:
    return seal(
        repo,
        checkout,
        scope=scope,
        unrestricted=unrestricted,
        identity=BOT,
        when=NOON,
        message="Build it",
        trailers=[("Forge-Node", "build")],
        allow_submodules=allow_submodules,
    )


def test_what_is_uncommitted_is_committed_by_the_given_identity(repo: Repository, checkout: Checkout) -> None:
    own = commit(checkout.path, {"src/a": "by the worker\n"})
    write(checkout.path, {"src/new": "x\n", "src/b": None, "noise.log": "ignored"})

    candidate = sealed(repo, checkout, "src")

    assert candidate.commits == (own, candidate.commit)
    assert [change.path for change in candidate.changes] == ["src/a", "src/b", "src/new"]
    assert tip(repo, WORK) == candidate.commit
    assert git(checkout.path, "status", "--porcelain") == ""
    assert git(checkout.path, "log", "-1", "--format=%an %ae %cn %at %B") == (
        f"{BOT.name} {BOT.email} {BOT.name} {NOON.seconds} Build it\n\nForge-Node: build"
    )
    assert git(checkout.path, "log", "-1", "--format=%an", own) == ANN.name


def test_sealing_twice_gives_the_same_candidate(repo: Repository, checkout: Checkout) -> None:
    write(checkout.path, {"src/a": "x\n"})

    assert sealed(repo, checkout, "src") == sealed(repo, checkout, "src")


def test_work_that_is_all_committed_needs_no_commit_of_ours(repo: Repository, checkout: Checkout) -> None:
    own = commit(checkout.path, {"src/a": "x\n"})

    assert sealed(repo, checkout, "src/a").commits == (own,)


@pytest.mark.req("PX-38")
def test_paths_outside_the_scope_are_refused_and_nothing_changes(repo: Repository, checkout: Checkout) -> None:
    own = commit(checkout.path, {"README": "committed\n"})
    write(checkout.path, {"src/a": "fine\n", "src/ab": "outside\n"})
    before = git(checkout.path, "status", "--porcelain")

    with pytest.raises(ScopeViolation) as refused:
        sealed(repo, checkout, "src/a", "src/b/")

    assert refused.value.data["paths"] == ["README", "src/ab"]
    assert tip(repo, WORK) == own
    assert git(checkout.path, "status", "--porcelain") == before


def test_no_scope_is_no_permission_unless_said_so(repo: Repository, checkout: Checkout) -> None:
    write(checkout.path, {"src/a": "x\n"})

    with pytest.raises(ScopeViolation):
        sealed(repo, checkout)
    assert sealed(repo, checkout, unrestricted=True)
    with pytest.raises(ValueError, match="contradict"):
        sealed(repo, checkout, "src", unrestricted=True)


def test_an_undone_change_outside_the_scope_does_not_count(repo: Repository, checkout: Checkout) -> None:
    commit(checkout.path, {"README": "oops\n", "src/a": "x\n"})
    write(checkout.path, {"README": "one\n"})

    assert [change.path for change in sealed(repo, checkout, "src").changes] == ["src/a"]


@pytest.mark.req("PX-51")
def test_a_scope_is_literal(repo: Repository, checkout: Checkout) -> None:
    names = ["*.py", "-x", ":(top)a", "a b", "new\nline", "bad\udcff"]
    write(checkout.path, {**dict.fromkeys(names, "1\n"), "b.py": "1\n", "a": "1\n"})

    with pytest.raises(ScopeViolation) as refused:
        sealed(repo, checkout, *names)
    assert refused.value.data["paths"] == ["a", "b.py"]

    write(checkout.path, {"a": None, "b.py": None})
    assert {change.path for change in sealed(repo, checkout, *names).changes} == set(names)


@pytest.mark.parametrize("entry", ["", "/", "/etc", "../x", "a/../b", "./a", "a//b"])
def test_a_scope_entry_must_be_a_path_of_the_repository(entry: str) -> None:
    with pytest.raises(ValueError, match="repository-relative"):
        outside_scope(["x"], [entry])


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_edits_hidden_from_git_are_seen(repo: Repository, checkout: Checkout, flag: str) -> None:
    git(checkout.path, "update-index", flag, "README", "src/b")
    write(checkout.path, {"README": "hidden\n", "src/a": "x\n"})

    with pytest.raises(ScopeViolation) as refused:
        sealed(repo, checkout, "src")

    assert refused.value.data["paths"] == ["README"]


def test_a_file_that_became_a_directory_and_the_reverse(repo: Repository, checkout: Checkout, tmp_path: Path) -> None:
    write(checkout.path, {"README": None, "src/a": None, "src/b": None})
    (checkout.path / "src").rmdir()
    write(checkout.path, {"src": "a file\n", "README/inside": "x\n"})

    candidate = sealed(repo, checkout, unrestricted=True)

    assert git(checkout.path, "status", "--porcelain") == ""
    assert {path for change in candidate.changes if (path := change.path)} == {
        "README", "README/inside", "src", "src/a", "src/b",
    }  # fmt: skip


def test_a_link_is_recorded_as_a_link_and_not_followed(repo: Repository, checkout: Checkout, tmp_path: Path) -> None:
    write(tmp_path / "outside", {"a": "secret\n"})
    write(checkout.path, {"src/a": None, "src/b": None})
    (checkout.path / "src").rmdir()
    (checkout.path / "src").symlink_to(tmp_path / "outside")

    changes = {change.path: change.new for change in sealed(repo, checkout, "src").changes}

    assert changes["src/a"] is None
    link = changes["src"]
    assert link is not None
    assert (link.mode, git(root(repo), "cat-file", "blob", link.id)) == ("120000", str(tmp_path / "outside"))


def test_locks_of_a_dead_worker_do_not_stop_sealing(repo: Repository, checkout: Checkout) -> None:
    write(checkout.path, {"src/a": "x\n"})
    (checkout.git_dir / "index.lock").write_bytes(b"torn")
    (checkout.git_dir / "HEAD.lock").touch()
    (repo.common_dir / f"{WORK}.lock").touch()

    candidate = sealed(repo, checkout, "src")

    assert tip(repo, WORK) == candidate.commit
    assert git(checkout.path, "status", "--porcelain") == ""


def test_a_merge_is_refused_by_name(repo: Repository, checkout: Checkout) -> None:
    commit(checkout.path, {"src/a": "x\n"})
    other = commit(root(repo), {"README": "two\n"})
    git(checkout.path, "merge", "--quiet", "--no-edit", other)

    with pytest.raises(MergeCommitInCandidate):
        sealed(repo, checkout, unrestricted=True)


def test_a_rewritten_base_is_refused(repo: Repository, checkout: Checkout) -> None:
    git(checkout.path, "commit", "--quiet", "--amend", "-m", "mine now")
    commit(checkout.path, {"src/a": "x\n"})

    with pytest.raises(BaseRewritten):
        sealed(repo, checkout, unrestricted=True)


def test_an_unfinished_merge_is_refused(repo: Repository, checkout: Checkout) -> None:
    commit(checkout.path, {"src/a": "x\n"})
    other = commit(root(repo), {"src/a": "y\n"})
    with pytest.raises(AssertionError):
        git(checkout.path, "merge", "--quiet", other)

    with pytest.raises(CheckoutUnmerged) as refused:
        sealed(repo, checkout, "src")

    assert refused.value.data["paths"] == ["src/a"]


def test_another_branch_is_refused(repo: Repository, checkout: Checkout) -> None:
    git(checkout.path, "switch", "--quiet", "-c", "elsewhere")

    with pytest.raises(CheckoutMismatch):
        sealed(repo, checkout, "src")


@pytest.mark.parametrize("work", ["none", "empty commit", "undone", "ignored"])
def test_nothing_is_no_candidate(repo: Repository, checkout: Checkout, work: str) -> None:
    if work == "empty commit":
        commit(checkout.path, {})
    elif work == "undone":
        commit(checkout.path, {"src/a": "x\n"})
        commit(checkout.path, {"src/a": "1\n"})
    elif work == "ignored":
        write(checkout.path, {"noise.log": "x"})

    with pytest.raises(CandidateEmpty):
        sealed(repo, checkout, "src")


@pytest.mark.parametrize("by", ["left there", "committed", "empty"])
def test_a_repository_inside_the_checkout_is_refused(repo: Repository, checkout: Checkout, by: str) -> None:
    inner = checkout.path / "src" / "inner"
    if by == "empty":
        inner.mkdir()
        git(inner, "init", "--quiet")
        write(inner, {"x": "1\n"})
    else:
        make(inner, {"x": "1\n"})
    if by == "committed":
        git(checkout.path, "-c", "advice.addEmbeddedRepo=false", "add", "src")
        git(checkout.path, "commit", "--quiet", "-m", "oops")
    before = tip(repo, WORK)

    with pytest.raises(EmbeddedRepository) as refused:
        sealed(repo, checkout, "src")

    assert refused.value.data["paths"][0].startswith("src/inner")
    assert tip(repo, WORK) == before


def test_a_submodule_moves_only_where_that_is_allowed(repo: Repository, checkout: Checkout, tmp_path: Path) -> None:
    make(tmp_path / "s")
    url = str(tmp_path / "s")
    git(checkout.path, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, "sub")

    with pytest.raises(SubmoduleChange) as refused:
        sealed(repo, checkout, unrestricted=True)
    assert refused.value.data["paths"] == ["sub"]

    candidate = sealed(repo, checkout, unrestricted=True, allow_submodules=True)
    assert [change.path for change in candidate.changes if change.is_gitlink] == ["sub"]
    assert ".gitmodules" in read(checkout.path)


def test_configuration_cannot_hide_a_submodule(repo: Repository, checkout: Checkout, tmp_path: Path) -> None:
    make(tmp_path / "s")
    url = str(tmp_path / "s")
    git(checkout.path, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, "sub")
    git(checkout.path, "config", "-f", ".gitmodules", "submodule.sub.ignore", "all")
    git(checkout.path, "config", "diff.ignoreSubmodules", "all")
    git(checkout.path, "config", "submodule.sub.ignore", "all")
    repo = Repository.open(root(repo))
    commit(checkout.path, {"src/a": "x\n"})

    with pytest.raises(SubmoduleChange):
        sealed(repo, checkout, unrestricted=True)
