"""Landing: exactly what was checked, only forward, together with the worktree, and never over somebody's work."""

import os
from itertools import product
from pathlib import Path

import pytest

from tests.workspaces.repos import MAIN, commit, git, make, read, root, tip, write
from workspaces.errors import (
    BaseRewritten,
    BranchCheckedOut,
    CheckoutDirty,
    CheckoutLocked,
    CheckoutMismatch,
    CheckoutUnmerged,
    LandingProofFailed,
    RefLocked,
    RefMoved,
)
from workspaces.git import (
    Repository,
    Verdict,
    blocked_paths,
    land,
    landing_proof,
    landing_verdict,
    turn_back,
    verdict_after_crash,
)
from workspaces.git.working import private_index

START = {"edit": "1\n", "gone": "1\n", "same": "1\n", "dir/file": "1\n"}
AFTER = {"edit": "2\n", "same": "1\n", "dir/file": "1\n", "new": "2\n", "deep/er/new": "2\n"}


class Ready:
    """A repository with main checked out at ``base``, and a candidate on it."""

    def __init__(self, where: Path) -> None:
        self.repo = make(where / "r", START)
        self.main = root(self.repo)
        self.base = tip(self.repo)
        git(self.main, "switch", "--quiet", "--detach")
        self.candidate = commit(self.main, {"edit": "2\n", "gone": None, "new": "2\n", "deep/er/new": "2\n"})
        git(self.main, "switch", "--quiet", "main")

    def land(self, worktree: Path | None) -> str:
        return land(self.repo, ref=MAIN, base=self.base, candidate=self.candidate, worktree=worktree)

    def verdict(self) -> Verdict:
        return landing_verdict(self.repo, ref=MAIN, base=self.base, candidate=self.candidate)

    def text(self, name: str) -> str:
        return (self.main / name).read_text()

    def leftovers(self) -> list[str]:
        names = ("index.lock", "HEAD.lock", "forge-index", "forge-index.lock", "forge-landing", f"{MAIN}.lock")
        return [name for name in names if (self.repo.common_dir / name).exists()]

    def assert_untouched(self) -> None:
        assert tip(self.repo) == self.base
        assert self.leftovers() == []


@pytest.fixture
def ready(tmp_path: Path) -> Ready:
    return Ready(tmp_path)


# --- proof and verdict --------------------------------------------------------------------------------------


@pytest.mark.req("IQ-06")
def test_the_proof_is_lineage_tree_and_paths(ready: Ready) -> None:
    tree, paths = ready.repo.tree_of(ready.candidate), ["edit", "gone", "new", "deep/er/new", "another candidate's"]

    proof = landing_proof(
        ready.repo, base=ready.base, candidate=ready.candidate, checked_tree=tree, allowed_paths=paths
    )

    assert (proof.commits, proof.tree, sorted(proof.paths)) == ((ready.candidate,), tree, sorted(paths[:4]))


@pytest.mark.req("IQ-06", "IQ-14")
@pytest.mark.parametrize("reason", ["not_a_line", "other_tree", "other_paths"])
def test_what_was_not_checked_has_no_proof(ready: Ready, reason: str) -> None:
    base = commit(ready.main, {"same": "2\n"}) if reason == "not_a_line" else ready.base
    checked = ready.base if reason == "other_tree" else ready.candidate
    paths = ["edit", "gone", "new"] + ([] if reason == "other_paths" else ["deep/er/new"])

    with pytest.raises(LandingProofFailed) as refused:
        landing_proof(
            ready.repo,
            base=base,
            candidate=ready.candidate,
            checked_tree=ready.repo.tree_of(checked),
            allowed_paths=paths,
        )

    assert refused.value.data["reason"] == reason


@pytest.mark.parametrize(("tip_is", "contains"), list(product(["base", "other", None], [True, False])))
def test_the_verdict_is_a_table(tip_is: str | None, contains: bool) -> None:
    verdict = verdict_after_crash(tip=tip_is, base="base", contains_candidate=contains)

    assert verdict == (Verdict.LANDED if contains else Verdict.DUE if tip_is == "base" else Verdict.STALE)


def test_only_the_first_parents_make_a_candidate_landed(ready: Ready) -> None:
    assert ready.verdict() == Verdict.DUE
    commit(ready.main, {"same": "2\n"})
    assert ready.verdict() == Verdict.STALE
    git(ready.main, "merge", "--quiet", "-m", "as second parent", ready.candidate)
    assert ready.verdict() == Verdict.STALE

    git(ready.main, "reset", "--quiet", "--hard", ready.candidate)
    assert ready.verdict() == Verdict.LANDED
    commit(ready.main, {"same": "3\n"})
    assert ready.verdict() == Verdict.LANDED


# --- landing ------------------------------------------------------------------------------------------------


def test_branch_index_and_files_arrive_together(ready: Ready) -> None:
    assert ready.land(ready.main) == ready.candidate

    assert {name: content.decode() for name, content in read(ready.main).items()} == AFTER
    assert git(ready.main, "status", "--porcelain") == ""
    assert git(ready.main, "symbolic-ref", "HEAD") == MAIN
    assert (ready.verdict(), ready.leftovers()) == (Verdict.LANDED, [])
    assert git(ready.main, "reflog", "-1", "--format=%gs %gn").startswith("forge: land")


def test_landing_again_is_the_same_landing(ready: Ready) -> None:
    ready.land(ready.main)
    later = commit(ready.main, {"same": "2\n"})

    assert ready.land(ready.main) == later


def test_a_branch_that_is_checked_out_nowhere_just_moves(ready: Ready, tmp_path: Path) -> None:
    git(ready.main, "switch", "--quiet", "--detach")
    ready.land(None)
    assert (tip(ready.repo), ready.text("edit"), ready.leftovers()) == (ready.candidate, "1\n", [])

    git(tmp_path, "clone", "--quiet", "--bare", "r", "b.git")
    bare = Repository.open(tmp_path / "b.git")
    git(tmp_path / "b.git", "update-ref", MAIN, ready.base)
    assert land(bare, ref=MAIN, base=ready.base, candidate=ready.candidate) == ready.candidate


def test_a_branch_in_a_linked_worktree_lands_there(ready: Ready, tmp_path: Path) -> None:
    git(ready.main, "switch", "--quiet", "--detach")
    git(ready.main, "worktree", "add", "--quiet", str(tmp_path / "w"), "main")

    ready.land(tmp_path / "w")

    assert git(tmp_path / "w", "status", "--porcelain") == ""
    assert (tmp_path / "w" / "new").exists()
    assert ready.text("edit") == "1\n"


def test_a_checked_out_branch_never_moves_without_its_files(ready: Ready, tmp_path: Path) -> None:
    with pytest.raises(BranchCheckedOut) as refused:
        ready.land(None)
    assert refused.value.data["paths"] == [str(ready.main)]

    git(ready.main, "worktree", "add", "--quiet", "--detach", str(tmp_path / "w"))
    with pytest.raises(BranchCheckedOut):
        ready.land(tmp_path / "w")
    git(ready.main, "switch", "--quiet", "--detach")
    with pytest.raises(CheckoutMismatch):
        ready.land(ready.main)

    ready.assert_untouched()


@pytest.mark.req("IQ-06")
def test_a_target_that_moved_is_refused(ready: Ready) -> None:
    moved = commit(ready.main, {"same": "2\n"})

    with pytest.raises(RefMoved) as refused:
        ready.land(ready.main)

    assert (refused.value.data["actual"], tip(ready.repo)) == (moved, moved)
    assert (ready.text("edit"), ready.leftovers()) == ("1\n", [])


@pytest.mark.req("IQ-06")
def test_a_candidate_that_is_no_fast_forward_is_refused(ready: Ready) -> None:
    git(ready.main, "switch", "--quiet", "--orphan", "other")
    unrelated = commit(ready.main, {"x": ""})
    git(ready.main, "switch", "--quiet", "main")

    with pytest.raises(BaseRewritten):
        land(ready.repo, ref=MAIN, base=ready.base, candidate=unrelated, worktree=ready.main)

    ready.assert_untouched()


# --- other people's work ------------------------------------------------------------------------------------


@pytest.mark.req("IQ-15")
@pytest.mark.parametrize(
    "edit",
    [
        {"edit": "mine\n"},
        {"gone": "mine\n"},
        {"new": "mine, untracked\n"},
        {"deep": "a file where a directory comes\n"},
        {"new/inside": "a directory where a file comes\n"},
        {"edit": None},
    ],
)
@pytest.mark.parametrize("staged", [False, True])
def test_work_in_the_way_is_named_and_kept(ready: Ready, edit: dict[str, str | None], staged: bool) -> None:
    write(ready.main, edit)
    if staged:
        git(ready.main, "add", "--all")
    before, status = read(ready.main), git(ready.main, "status", "--porcelain")

    with pytest.raises(CheckoutDirty) as refused:
        ready.land(ready.main)

    assert refused.value.data["paths"] == list(edit)
    assert (read(ready.main), git(ready.main, "status", "--porcelain")) == (before, status)
    ready.assert_untouched()


def test_work_beside_the_landing_stays_as_it_is(ready: Ready) -> None:
    write(ready.main, {"same": "mine\n", "dir/file": "staged\n", "untracked": "mine\n"})
    git(ready.main, "add", "dir/file")

    ready.land(ready.main)

    assert git(ready.main, "status", "--porcelain").splitlines() == ["M  dir/file", " M same", "?? untracked"]


@pytest.mark.req("IQ-15")
def test_files_that_already_are_the_candidates_are_no_obstacle(ready: Ready) -> None:
    write(ready.main, {"edit": "2\n", "new": "2\n", "gone": None})

    ready.land(ready.main)

    assert git(ready.main, "status", "--porcelain") == ""


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_an_edit_hidden_from_git_is_seen(ready: Ready, flag: str) -> None:
    git(ready.main, "update-index", flag, "edit")
    write(ready.main, {"edit": "mine\n"})

    with pytest.raises(CheckoutDirty):
        ready.land(ready.main)

    assert ready.text("edit") == "mine\n"


def test_an_edit_that_keeps_size_and_time_is_seen(ready: Ready) -> None:
    before = (ready.main / "edit").stat()
    write(ready.main, {"edit": "9\n"})
    os.utime(ready.main / "edit", ns=(before.st_atime_ns, before.st_mtime_ns))
    [main] = ready.repo.checked_out_at(MAIN)

    assert blocked_paths(ready.repo, main, ready.base, ready.candidate) == ("edit",)


def test_an_edit_in_the_same_clock_tick_is_not_lost_in_a_copied_index(ready: Ready) -> None:
    """git tells such an edit by the time of the index file, so a copy that is younger would hide it."""
    [main] = ready.repo.checked_out_at(MAIN)

    with private_index(main) as index:
        assert index.stat().st_mtime_ns == (main.git_dir / "index").stat().st_mtime_ns


@pytest.mark.req("PX-51")
def test_landing_takes_names_literally(tmp_path: Path) -> None:
    names = ["*", "-x", ":(top)a", "a b", "new\nline", "bad\udcff", "[ab]"]
    repo = make(tmp_path / "r", {**dict.fromkeys(names, "1\n"), "a": "1\n"})
    base = tip(repo)
    git(root(repo), "switch", "--quiet", "--detach")
    candidate = commit(root(repo), dict.fromkeys(names, "2\n"))
    git(root(repo), "switch", "--quiet", "main")
    write(root(repo), {"a": "mine\n", "*": "2\n", "-x": "2\n", "new\nline": "2\n"})

    land(repo, ref=MAIN, base=base, candidate=candidate, worktree=root(repo))

    assert git(root(repo), "status", "--porcelain") == " M a"


def test_line_endings_of_the_repository_do_not_look_like_edits(tmp_path: Path) -> None:
    repo = make(tmp_path / "r", {"dos": "1\r\n2\r\n", "keep": "x"})
    commit(root(repo), {".gitattributes": "* text=auto\n*.win eol=crlf\n", "a.win": "1\n2\n"})
    git(root(repo), "checkout", "--quiet", "HEAD", "--", ".")
    base = tip(repo)
    git(root(repo), "switch", "--quiet", "--detach")
    candidate = commit(root(repo), {"a.win": "1\n3\n", "dos": "1\r\n3\r\n"})
    git(root(repo), "switch", "--quiet", "main")

    land(repo, ref=MAIN, base=base, candidate=candidate, worktree=root(repo))

    assert (root(repo) / "a.win").read_bytes() == b"1\r\n3\r\n"
    assert git(root(repo), "status", "--porcelain") == ""


def test_files_and_directories_may_change_places(tmp_path: Path) -> None:
    repo = make(tmp_path / "r", {"a": "1\n", "d/x": "1\n", "d/y": "1\n", "run": "1\n"})
    base = tip(repo)
    git(root(repo), "switch", "--quiet", "--detach")
    write(root(repo), {"a": None, "d/x": None, "d/y": None})
    (root(repo) / "d").rmdir()
    (root(repo) / "d").symlink_to("run")
    (root(repo) / "run").chmod(0o755)
    candidate = commit(root(repo), {"a/b": "1\n"})
    git(root(repo), "switch", "--quiet", "main")

    land(repo, ref=MAIN, base=base, candidate=candidate, worktree=root(repo))

    assert git(root(repo), "status", "--porcelain") == ""
    assert (os.readlink(root(repo) / "d"), os.access(root(repo) / "run", os.X_OK)) == ("run", True)


def test_a_person_in_the_middle_of_something_is_not_disturbed(ready: Ready) -> None:
    (ready.repo.common_dir / "index.lock").write_bytes(b"")
    with pytest.raises(CheckoutLocked):
        ready.land(ready.main)
    assert ready.leftovers() == ["index.lock"]
    (ready.repo.common_dir / "index.lock").unlink()

    (ready.repo.common_dir / f"{MAIN}.lock").write_bytes(b"")
    with pytest.raises(RefLocked):
        ready.land(ready.main)
    assert ready.leftovers() == [f"{MAIN}.lock"]
    (ready.repo.common_dir / f"{MAIN}.lock").unlink()

    blob = git(ready.main, "hash-object", "-w", "--stdin", stdin=b"x")
    git(ready.main, "update-index", "--index-info", stdin=f"100644 {blob} 1\tsame\n100644 {blob} 2\tsame\n".encode())
    with pytest.raises(CheckoutUnmerged):
        ready.land(ready.main)
    ready.assert_untouched()


# --- after a crash: single states (test_git_crashes walks through all) ------------------------------


def cut_off(ready: Ready) -> None:
    """What a landing leaves that is killed together with its git in the middle of writing files."""
    git_dir = ready.repo.common_dir
    text = f"forge landing\n{MAIN}\n{ready.base}\n{ready.candidate}\n"
    (git_dir / "forge-landing").write_text(text)
    (git_dir / "index.lock").write_text(text)
    (git_dir / "HEAD.lock").touch()
    (git_dir / f"{MAIN}.lock").write_text(f"{ready.candidate}\n")
    (git_dir / "forge-index").write_bytes((git_dir / "index").read_bytes())
    (git_dir / "forge-index.lock").write_bytes(b"torn")


@pytest.mark.req("IQ-15")
@pytest.mark.parametrize("torn", ["", "2", None])
def test_a_cut_off_landing_goes_on_over_its_own_leftovers(ready: Ready, torn: str | None) -> None:
    cut_off(ready)
    write(ready.main, {"edit": torn, "gone": None, "deep/er/new": "2\n"})

    ready.land(ready.main)

    assert {name: content.decode() for name, content in read(ready.main).items()} == AFTER
    assert (git(ready.main, "status", "--porcelain"), ready.leftovers()) == ("", [])


@pytest.mark.req("IQ-15")
def test_an_edit_made_while_a_landing_lay_cut_off_is_kept(ready: Ready) -> None:
    cut_off(ready)
    write(ready.main, {"edit": "mine\n", "new": "2\n"})

    with pytest.raises(CheckoutDirty) as refused:
        ready.land(ready.main)

    assert refused.value.data["paths"] == ["edit"]
    assert (ready.text("edit"), tip(ready.repo)) == ("mine\n", ready.base)


def test_locks_of_others_are_never_taken_for_ours(ready: Ready) -> None:
    cut_off(ready)
    (ready.repo.common_dir / "index.lock").write_bytes(b"DIRC a person's")
    (ready.repo.common_dir / f"{MAIN}.lock").write_text(f"{ready.base}\n")

    with pytest.raises((CheckoutLocked, RefLocked)):
        ready.land(ready.main)

    assert {"index.lock", f"{MAIN}.lock"} <= set(ready.leftovers())


@pytest.mark.parametrize("how", ["land", "turn_back"])
def test_a_cut_off_landing_that_became_stale_takes_its_files_back(ready: Ready, how: str) -> None:
    write(ready.main, {"deep/er/new": "2\n"})  # a person's, and by chance just what the candidate brings
    os.utime(ready.main / "deep/er/new", (1, 1))
    cut_off(ready)
    write(ready.main, {"edit": "2\n", "new": "2\n", "gone": None})
    other = git(ready.main, "commit-tree", "-p", ready.base, "-m", "elsewhere", f"{ready.base}^{{tree}}")
    (ready.repo.common_dir / MAIN).write_text(f"{other}\n")

    if how == "land":
        with pytest.raises(RefMoved):
            ready.land(ready.main)
    else:
        assert turn_back(ready.repo, ref=MAIN, base=ready.base, candidate=ready.candidate, worktree=ready.main)

    assert git(ready.main, "status", "--porcelain") == "?? deep/"
    assert (ready.text("edit"), ready.text("gone"), ready.leftovers()) == ("1\n", "1\n", [])
    assert not turn_back(ready.repo, ref=MAIN, base=ready.base, candidate=ready.candidate, worktree=ready.main)


def test_turning_back_keeps_what_somebody_changed_since(ready: Ready) -> None:
    cut_off(ready)
    write(ready.main, {"edit": "2\n", "new": "2\nand mine\n"})

    with pytest.raises(CheckoutDirty) as refused:
        turn_back(ready.repo, ref=MAIN, base=ready.base, candidate=ready.candidate, worktree=ready.main)

    assert (refused.value.data["paths"], ready.text("edit")) == (["new"], "2\n")


def test_a_cut_off_landing_comes_before_the_next_one(ready: Ready) -> None:
    cut_off(ready)
    tree = f"{ready.candidate}^{{tree}}"
    second = git(ready.main, "commit-tree", "-p", ready.base, "-m", "second", tree)

    with pytest.raises(CheckoutLocked) as refused:
        land(ready.repo, ref=MAIN, base=ready.base, candidate=second, worktree=ready.main)

    assert refused.value.data["candidate"] == ready.candidate
