"""A repository may name programs in hooks, attributes and configuration. None of them runs when Forge works in it."""

from pathlib import Path

import pytest

from tests.workspaces.repos import BOT, MAIN, NOON, WORK, commit, git, make, root, tip, write
from workspaces.errors import FilteredPath, ReplayConflict
from workspaces.git import (
    Repository,
    add_checkout,
    dirty_paths,
    inventory,
    land,
    move_checkout,
    push,
    remove_checkout,
    replay,
    seal,
)

HOOKS = [
    "applypatch-msg", "commit-msg", "fsmonitor-watchman", "post-checkout", "post-commit", "post-index-change",
    "post-merge", "post-rewrite", "pre-auto-gc", "pre-commit", "pre-merge-commit", "prepare-commit-msg", "pre-push",
    "pre-rebase", "push-to-checkout", "reference-transaction",
]  # fmt: skip


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A program that leaves its arguments in a file. Whoever runs it is caught."""
    program = tmp_path / "trap"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {tmp_path}/sprung\ncat\n')
    program.chmod(0o755)
    return program


def sprung(trap: Path) -> str:
    log = trap.with_name("sprung")
    return log.read_text() if log.exists() else ""


def arm(repo: Repository, trap: Path) -> None:
    hooks = repo.common_dir / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in HOOKS:
        (hooks / hook).symlink_to(trap)
    for key, value in {
        "core.hooksPath": hooks,
        "core.fsmonitor": trap,
        "core.sshCommand": trap,
        "core.askPass": trap,
        "core.pager": trap,
        "core.editor": trap,
        "core.alternateRefsCommand": trap,
        "credential.helper": f"!{trap}",
        "diff.external": trap,
        "diff.evil.command": trap,
        "diff.evil.textconv": trap,
        "filter.evil.clean": trap,
        "filter.evil.smudge": trap,
        "filter.evil.required": "true",
        "filter.od.d = na me.process": trap,
        "filter.od.d = na me.smudge": trap,
        "merge.evil.driver": f"{trap} %A",
        "gpg.program": trap,
        "commit.gpgSign": "true",
        "push.gpgSign": "if-asked",
        "trailer.forge-candidate.command": trap,
        "alias.status": f"!{trap}",
        "gc.auto": "1",
    }.items():
        git(root(repo), "config", key, str(value))


def test_the_traps_of_these_tests_do_spring(tmp_path: Path, trap: Path) -> None:
    """Else the tests below would prove nothing."""
    repo = make(tmp_path / "r", {".gitattributes": "*.bin filter=evil merge=evil\n", "a.bin": "1\n"})
    arm(repo, trap)

    git(root(repo), "status")
    assert "trap" in sprung(trap)
    write(root(repo), {"a.bin": "2\n"})
    git(root(repo), "-c", "core.fsmonitor=false", "add", "a.bin")
    git(root(repo), "-c", "commit.gpgSign=false", "commit", "-m", "x")
    assert {"pre-commit", "reference-transaction"} <= {Path(line.split()[0]).name for line in sprung(trap).splitlines()}


def test_nothing_of_the_repository_runs_in_a_whole_life_of_a_candidate(tmp_path: Path, trap: Path) -> None:
    attributes = '*.bin filter=evil diff=evil\n*.odd "filter=od.d = na me"\n'
    repo = make(tmp_path / "r", {".gitattributes": attributes, "a.bin": "1\n", "b.odd": "1\n", "code": "1\n"})
    git(tmp_path, "clone", "--quiet", "--bare", "r", "remote.git")
    base = tip(repo)
    arm(repo, trap)
    repo = Repository.open(root(repo))

    checkout = add_checkout(repo, tmp_path / "w", branch=WORK, base=base)
    write(checkout.path, {"code": "2\n"})
    sealed = seal(repo, checkout, scope=["code"], identity=BOT, when=NOON, message="work")
    (repo.common_dir / "index").touch()  # every cached file time is stale: git has to look at contents
    land(repo, ref=MAIN, base=base, candidate=sealed.commit, worktree=root(repo))
    check = add_checkout(repo, tmp_path / "c", branch=None, base=base)
    move_checkout(repo, check.path, sealed.commit)
    repo.diff_text(base, sealed.commit)
    repo.log_oneline(base, sealed.commit)
    write(root(repo), {"a.bin": "mine\n"})
    [main] = repo.checked_out_at(MAIN)
    assert [change.path for change in dirty_paths(repo, main)] == ["a.bin"]
    assert inventory(root(repo)).warnings == ()
    push(repo, remote=str(tmp_path / "remote.git"), ref=MAIN, commit=sealed.commit, expected=base)
    assert remove_checkout(repo, checkout.path, branch=WORK).removed

    assert sprung(trap) == ""
    assert tip(repo) == sealed.commit


def test_a_file_that_wants_a_filter_is_refused_and_not_stored_unfiltered(tmp_path: Path, trap: Path) -> None:
    repo = make(tmp_path / "r", {".gitattributes": "*.bin filter=lfs\n", "a.bin": "pointer\n"})
    checkout = add_checkout(repo, tmp_path / "w", branch=WORK, base=tip(repo))
    write(checkout.path, {"a.bin": "big\n"})

    with pytest.raises(FilteredPath) as refused:
        seal(repo, checkout, scope=None, unrestricted=True, identity=BOT, when=NOON, message="work")

    assert refused.value.data["paths"] == ["a.bin"]


def test_a_merge_driver_is_a_conflict_and_never_runs(tmp_path: Path, trap: Path) -> None:
    repo = make(tmp_path / "r", {".gitattributes": "*.bin merge=evil\n", "a.bin": "1\n\n\n\n\n2\n"})
    base = tip(repo)
    candidate = commit(root(repo), {"a.bin": "ours\n\n\n\n\n2\n"})
    git(root(repo), "reset", "--quiet", "--hard", base)
    onto = commit(root(repo), {"a.bin": "1\n\n\n\n\ntheirs\n"})
    arm(repo, trap)

    with pytest.raises(ReplayConflict) as conflict:
        replay(Repository.open(root(repo)), base=base, candidate=candidate, onto=onto, identity=BOT)

    assert conflict.value.data["paths"] == ["a.bin"]
    assert sprung(trap) == ""


def test_a_submodule_with_its_own_traps_is_not_entered(tmp_path: Path, trap: Path) -> None:
    make(tmp_path / "s", {"inner": "1\n"})
    repo = make(tmp_path / "r")
    git(root(repo), "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "s"), "sub")
    commit(root(repo), {})
    git(root(repo) / "sub", "config", "core.fsmonitor", str(trap))
    [main] = repo.checked_out_at(MAIN)

    assert dirty_paths(repo, main) == ()
    write(root(repo) / "sub", {"inner": "2\n"})
    assert [change.path for change in inventory(root(repo)).changed] == ["sub/inner"]

    assert sprung(trap) == ""


def test_a_rewritten_git_file_in_a_checkout_leads_nowhere(tmp_path: Path, trap: Path) -> None:
    repo = make(tmp_path / "r")
    decoy = make(tmp_path / "decoy", {"x": "y"})
    arm(decoy, trap)
    checkout = add_checkout(repo, tmp_path / "w", branch=WORK, base=tip(repo))
    write(checkout.path, {"README": "two\n", ".git": f"gitdir: {decoy.common_dir}\n"})

    sealed = seal(repo, checkout, scope=["README"], identity=BOT, when=NOON, message="work")

    assert [change.path for change in sealed.changes] == ["README"]
    assert tip(repo, WORK) == sealed.commit
    assert sprung(trap) == ""


def test_a_configured_work_tree_does_not_redirect(tmp_path: Path) -> None:
    repo = make(tmp_path / "r")
    checkout = add_checkout(repo, tmp_path / "w", branch=WORK, base=tip(repo))
    (tmp_path / "victim").mkdir()
    write(tmp_path / "victim", {"README": "untouched\n"})
    git(root(repo), "config", "core.worktree", str(tmp_path / "victim"))
    write(checkout.path, {"README": "two\n"})

    sealed = seal(repo, checkout, scope=["README"], identity=BOT, when=NOON, message="work")
    land(repo, ref=MAIN, base=checkout.base, candidate=sealed.commit, worktree=root(repo))

    assert (tmp_path / "victim" / "README").read_text() == "untouched\n"
    assert (root(repo) / "README").read_text() == "two\n"
