"""Pushing: once, only forward, and only where the remote is where it was expected."""

import shutil
from pathlib import Path

import pytest

from tests.workspaces.repos import MAIN, commit, git, make, root, tip
from workspaces.errors import BaseRewritten
from workspaces.git import PushOutcome, Repository, push


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    make(tmp_path / "r")
    git(tmp_path, "clone", "--quiet", "--bare", "r", "remote.git")
    return tmp_path / "remote.git"


@pytest.fixture
def repo(tmp_path: Path, remote: Path) -> Repository:
    git(tmp_path / "r", "remote", "add", "origin", str(remote))
    return Repository.open(tmp_path / "r")


def remote_tip(remote: Path) -> str:
    return git(remote, "rev-parse", MAIN)


def test_a_landed_branch_is_pushed_once(repo: Repository, remote: Path) -> None:
    base = tip(repo)
    landed = commit(root(repo), {"a": "1"})

    first = push(repo, remote="origin", ref=MAIN, commit=landed, expected=base)
    again = push(repo, remote="origin", ref=MAIN, commit=landed, expected=base)

    assert (first.outcome, again.outcome) == (PushOutcome.PUSHED, PushOutcome.ALREADY_THERE)
    assert remote_tip(remote) == landed == again.remote_tip


def test_a_remote_that_is_further_on_has_the_commit_already(repo: Repository, remote: Path) -> None:
    base = tip(repo)
    landed = commit(root(repo), {"a": "1"})
    later = commit(root(repo), {"a": "2"})
    push(repo, remote="origin", ref=MAIN, commit=later, expected=base)

    assert push(repo, remote="origin", ref=MAIN, commit=landed, expected=base).outcome == PushOutcome.ALREADY_THERE
    assert remote_tip(remote) == later


def test_a_remote_that_moved_is_left_alone(repo: Repository, remote: Path, tmp_path: Path) -> None:
    base = tip(repo)
    git(tmp_path, "clone", "--quiet", "remote.git", "elsewhere")
    theirs = commit(tmp_path / "elsewhere", {"b": "1"})
    git(tmp_path / "elsewhere", "push", "--quiet", "origin", "main")
    landed = commit(root(repo), {"a": "1"})

    result = push(repo, remote=str(remote), ref=MAIN, commit=landed, expected=base)

    assert (result.outcome, result.remote_tip) == (PushOutcome.REJECTED, theirs)
    assert remote_tip(remote) == theirs


def test_a_new_branch_is_created_only_where_there_is_none(repo: Repository, remote: Path) -> None:
    ref = "refs/heads/new"

    assert push(repo, remote="origin", ref=ref, commit=tip(repo), expected=None).outcome == PushOutcome.PUSHED
    assert git(remote, "rev-parse", ref) == tip(repo)
    later = commit(root(repo), {"a": "1"})
    assert push(repo, remote="origin", ref=ref, commit=later, expected=None).outcome == PushOutcome.REJECTED


def test_a_push_never_rewinds(repo: Repository, remote: Path) -> None:
    base = tip(repo)
    landed = commit(root(repo), {"a": "1"})
    push(repo, remote="origin", ref=MAIN, commit=landed, expected=base)

    with pytest.raises(BaseRewritten):
        push(repo, remote="origin", ref=MAIN, commit=base, expected=landed)

    assert remote_tip(remote) == landed


def test_a_remote_that_refuses_is_told_apart_from_one_that_is_away(repo: Repository, remote: Path) -> None:
    base = tip(repo)
    landed = commit(root(repo), {"a": "1"})
    (remote / "hooks").mkdir(exist_ok=True)
    refuses = remote / "hooks" / "pre-receive"
    refuses.write_text("#!/bin/sh\necho not today >&2\nexit 1\n")
    refuses.chmod(0o755)

    refused = push(repo, remote="origin", ref=MAIN, commit=landed, expected=base)
    shutil.rmtree(remote)
    away = push(repo, remote="origin", ref=MAIN, commit=landed, expected=base)

    assert (refused.outcome, away.outcome) == (PushOutcome.REJECTED, PushOutcome.UNREACHABLE)
    assert "not today" in refused.detail


def test_a_program_is_no_transport(repo: Repository, tmp_path: Path) -> None:
    landed = commit(root(repo), {"a": "1"})

    result = push(repo, remote=f"ext::touch {tmp_path}/ran", ref=MAIN, commit=landed, expected=None)

    assert result.outcome == PushOutcome.UNREACHABLE
    assert not (tmp_path / "ran").exists()
