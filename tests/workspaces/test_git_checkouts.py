"""Checkouts: added once, completed after any crash, removed only when nothing could be lost."""

import json
import shutil
from pathlib import Path

import pytest

from tests.workspaces.repos import MAIN, WORK, commit, git, make, read, root, tip, write
from workspaces.errors import (
    BranchCheckedOut,
    CheckoutDirty,
    CheckoutMismatch,
    CheckoutOccupied,
    CheckoutUnknown,
    RefMoved,
)
from workspaces.git import Repository, add_checkout, find_checkout, list_checkouts, move_checkout, remove_checkout

FILES = {"README": "one\n", "src/a": "1\n", "src/b": "2\n"}


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return make(tmp_path / "r", FILES)


def contents(path: Path) -> dict[str, str]:
    return {name: content.decode() for name, content in read(path).items()}


@pytest.mark.req("PX-36")
def test_a_checkout_is_on_its_own_branch_at_its_base_and_registered(repo: Repository, tmp_path: Path) -> None:
    base = tip(repo)
    commit(root(repo), {"README": "later\n"})

    checkout = add_checkout(repo, tmp_path / "w", branch=WORK, base=base)

    assert contents(checkout.path) == FILES
    assert git(checkout.path, "symbolic-ref", "HEAD") == WORK
    assert git(checkout.path, "rev-parse", "HEAD") == base
    assert git(checkout.path, "status", "--porcelain") == ""
    assert list_checkouts(repo) == (checkout,) == (find_checkout(repo, checkout.path),)


def test_a_detached_checkout_is_exactly_the_commit(repo: Repository, tmp_path: Path) -> None:
    checkout = add_checkout(repo, tmp_path / "w", branch=None, base=tip(repo))

    assert repo.worktree_at(checkout.path).branch is None
    assert contents(checkout.path) == FILES


def test_adding_again_changes_nothing_even_when_work_has_begun(repo: Repository, tmp_path: Path) -> None:
    checkout = add_checkout(repo, tmp_path / "w", branch=WORK, base=tip(repo))
    done = commit(checkout.path, {"src/a": "done\n"})
    write(checkout.path, {"src/b": "half\n"})

    assert add_checkout(repo, tmp_path / "w", branch=WORK, base=checkout.base) == checkout

    assert tip(repo, WORK) == done
    assert (checkout.path / "src/b").read_text() == "half\n"


def test_a_checkout_for_something_else_is_not_taken_for_ours(repo: Repository, tmp_path: Path) -> None:
    first = tip(repo)
    second = commit(root(repo), {"README": "two\n"})
    checkout = add_checkout(repo, tmp_path / "w", branch=WORK, base=first)

    with pytest.raises(CheckoutMismatch):
        add_checkout(repo, checkout.path, branch=WORK, base=second)
    with pytest.raises(CheckoutMismatch):
        add_checkout(repo, checkout.path, branch=None, base=first)
    git(checkout.path, "switch", "--quiet", "--detach")
    with pytest.raises(CheckoutMismatch):
        add_checkout(repo, checkout.path, branch=WORK, base=first)


def test_a_branch_that_is_elsewhere_is_not_moved(repo: Repository, tmp_path: Path) -> None:
    base = tip(repo)
    other = commit(root(repo), {"README": "two\n"})
    repo.create_ref(WORK, other, "test")

    with pytest.raises(RefMoved):
        add_checkout(repo, tmp_path / "w", branch=WORK, base=base)
    with pytest.raises(BranchCheckedOut):
        add_checkout(repo, tmp_path / "w", branch=MAIN, base=other)

    assert not (tmp_path / "w").exists()
    assert len(repo.worktrees()) == 1


@pytest.mark.parametrize("branch", [WORK, None])
def test_files_of_somebody_else_are_never_overwritten(repo: Repository, tmp_path: Path, branch: str | None) -> None:
    write(tmp_path / "w", {"README": "mine\n"})

    with pytest.raises(CheckoutOccupied):
        add_checkout(repo, tmp_path / "w", branch=branch, base=tip(repo))

    assert contents(tmp_path / "w") == {"README": "mine\n"}
    assert (len(repo.worktrees()), repo.ref_tip(WORK)) == (1, None)


def test_a_worktree_a_person_added_is_not_ours(repo: Repository, tmp_path: Path) -> None:
    git(root(repo), "worktree", "add", "--quiet", "-b", "side", str(tmp_path / "w"))

    with pytest.raises(CheckoutOccupied):
        add_checkout(repo, tmp_path / "w", branch="refs/heads/side", base=tip(repo))

    assert not remove_checkout(repo, tmp_path / "w", branch="refs/heads/side").removed
    assert not remove_checkout(repo, root(repo), branch=MAIN).removed
    assert list_checkouts(repo) == ()
    assert (tmp_path / "w" / "README").exists()


@pytest.mark.req("PX-41")
@pytest.mark.parametrize(
    "left", ["nothing", "empty directory", "only .git", "no directory", "nameless", "unpopulated", "half"]
)
def test_every_half_made_checkout_is_completed(repo: Repository, tmp_path: Path, left: str) -> None:
    base, path = tip(repo), tmp_path / "w"
    gone = add_checkout(repo, tmp_path / "other", branch=None, base=base)
    shutil.rmtree(gone.path)  # another's registration without directory, which a prune would take
    if left == "empty directory":
        path.mkdir()
    elif left == "nameless":
        (repo.common_dir / "worktrees/w").mkdir()
        (repo.common_dir / "worktrees/w/locked").write_text("initializing")
    elif left != "nothing":
        git(root(repo), "worktree", "add", "--quiet", "--detach", "--no-checkout", str(path), base)
        git_dir = repo.common_dir / "worktrees/w"
        if left == "only .git":
            shutil.rmtree(git_dir)
        elif left == "no directory":
            shutil.rmtree(path)
            (git_dir / "HEAD").unlink()
            (git_dir / "locked").write_text("initializing")
        elif left == "half":
            record = {"branch": WORK, "base": base, "is_complete": False}
            (git_dir / "forge-checkout.json").write_text(json.dumps(record))
            repo.create_ref(WORK, base, "test")
            write(path, {"README": "one\n", "src/a": ""})  # one whole file, one torn one, one missing
            (git_dir / "index.lock").write_bytes(b"torn")
            (git_dir / "HEAD.lock").touch()

    checkout = add_checkout(repo, path, branch=WORK, base=base)

    assert contents(path) == FILES
    assert git(path, "status", "--porcelain") == ""
    assert git(path, "symbolic-ref", "HEAD") == WORK
    assert checkout in list_checkouts(repo)
    assert sorted(item.name for item in (repo.common_dir / "worktrees").iterdir()) == ["other", "w"]


def test_a_worker_gets_every_file_of_a_sparse_repository(repo: Repository, tmp_path: Path) -> None:
    git(root(repo), "sparse-checkout", "set", "--no-cone", "/README")
    assert not (root(repo) / "src").exists()

    checkout = add_checkout(Repository.open(root(repo)), tmp_path / "w", branch=None, base=tip(repo))

    assert contents(checkout.path) == FILES


def test_a_clean_checkout_is_removed_and_its_branch_stays(repo: Repository, tmp_path: Path) -> None:
    checkout = add_checkout(repo, tmp_path / "w", branch=WORK, base=tip(repo))
    done = commit(checkout.path, {".gitignore": "build/\n"})
    write(checkout.path, {"build/output": "x"})

    assert remove_checkout(repo, checkout.path, branch=WORK).removed
    assert remove_checkout(repo, checkout.path, branch=WORK).removed

    assert list(tmp_path.iterdir()) == [root(repo)]
    assert len(repo.worktrees()) == 1
    assert tip(repo, WORK) == done


@pytest.mark.req("PX-40")
@pytest.mark.parametrize("hidden", ["", "--assume-unchanged", "--skip-worktree"])
def test_a_checkout_with_uncommitted_work_is_kept_and_says_so(repo: Repository, tmp_path: Path, hidden: str) -> None:
    checkout = add_checkout(repo, tmp_path / "w", branch=WORK, base=tip(repo))
    if hidden:
        git(checkout.path, "update-index", hidden, "src/a")
    write(checkout.path, {"src/a": "half\n"})

    removal = remove_checkout(repo, checkout.path, branch=WORK)

    assert (removal.removed, removal.paths) == (False, ("src/a",))
    assert (checkout.path / "src/a").read_text() == "half\n"


def test_a_checkout_that_is_not_what_it_was_made_for_is_kept(repo: Repository, tmp_path: Path) -> None:
    ours = add_checkout(repo, tmp_path / "w", branch=WORK, base=tip(repo))
    detached = add_checkout(repo, tmp_path / "d", branch=None, base=tip(repo))
    commit(detached.path, {"README": "only here\n"})
    embedded = add_checkout(repo, tmp_path / "e", branch=None, base=tip(repo))
    make(embedded.path / "inner")
    (tmp_path / "plain").mkdir()
    write(tmp_path / "plain", {"file": "x"})

    assert not remove_checkout(repo, ours.path, branch="refs/heads/other").removed
    assert not remove_checkout(repo, detached.path, branch=None).removed
    assert not remove_checkout(repo, embedded.path, branch=None).removed
    assert not remove_checkout(repo, tmp_path / "plain", branch=None).removed

    assert all((tmp_path / name).is_dir() for name in ("w", "d", "e", "plain"))


@pytest.mark.parametrize("left", ["renamed", "forgotten"])
def test_a_removal_that_was_cut_off_is_finished(repo: Repository, tmp_path: Path, left: str) -> None:
    checkout = add_checkout(repo, tmp_path / "w", branch=WORK, base=tip(repo))
    checkout.path.rename(tmp_path / ".w.removed")
    (tmp_path / ".w.removed/src/a").unlink()
    if left == "forgotten":
        shutil.rmtree(checkout.git_dir)

    assert remove_checkout(repo, checkout.path, branch=WORK).removed

    assert list(tmp_path.iterdir()) == [root(repo)]
    assert len(repo.worktrees()) == 1


def test_a_detached_checkout_moves_and_writes_only_what_differs(repo: Repository, tmp_path: Path) -> None:
    checkout = add_checkout(repo, tmp_path / "w", branch=None, base=tip(repo))
    second = commit(root(repo), {"src/a": "two\n", "src/b": None, "new": "x\n"})
    untouched = (checkout.path / "README").stat().st_ino

    moved = move_checkout(repo, checkout.path, second)

    assert contents(checkout.path) == {"README": "one\n", "src/a": "two\n", "new": "x\n"}
    assert (checkout.path / "README").stat().st_ino == untouched
    assert git(checkout.path, "rev-parse", "HEAD") == second
    assert list_checkouts(repo) == (moved,)
    assert move_checkout(repo, checkout.path, second) == moved


def test_only_a_clean_detached_checkout_of_ours_is_moved(repo: Repository, tmp_path: Path) -> None:
    detached = add_checkout(repo, tmp_path / "d", branch=None, base=tip(repo))
    working = add_checkout(repo, tmp_path / "w", branch=WORK, base=tip(repo))
    second = commit(root(repo), {"src/a": "two\n"})
    write(detached.path, {"src/a": "edited\n"})

    with pytest.raises(CheckoutDirty):
        move_checkout(repo, detached.path, second)
    with pytest.raises(CheckoutMismatch):
        move_checkout(repo, working.path, second)
    with pytest.raises(CheckoutUnknown):
        move_checkout(repo, root(repo), second)

    assert (detached.path / "src/a").read_text() == "edited\n"
