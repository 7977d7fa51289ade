"""The inventory lists what differs, attributes nothing, and never fails."""

from pathlib import Path

import pytest

from tests.workspaces.repos import commit, git, make, root, write
from workspaces.git import ChangedPath, Git, inventory


@pytest.mark.req("PX-29")
def test_it_lists_every_kind_of_change(tmp_path: Path) -> None:
    repo = make(tmp_path / "r", {"same": "", "edited": "1", "gone": "", "staged": "1"})
    write(root(repo), {"edited": "2", "gone": None, "staged": "2", "new dir/new": "", "added": ""})
    git(root(repo), "add", "staged", "added")

    found = inventory(root(repo))

    assert (found.root, found.warnings) == (root(repo), ())
    assert set(found.changed) == {
        ChangedPath("edited", "modified"),
        ChangedPath("gone", "deleted"),
        ChangedPath("staged", "modified"),
        ChangedPath("added", "added"),
        ChangedPath("new dir/new", "untracked"),
    }


def test_below_a_directory_it_lists_only_that(tmp_path: Path) -> None:
    repo = make(tmp_path / "r", {"a": "1", "*/b": "1", "x/b": "1"})
    write(root(repo), {"a": "2", "*/b": "2", "x/b": "2"})

    assert [change.path for change in inventory(root(repo) / "*").changed] == ["*/b"]


@pytest.mark.req("PX-42")
def test_it_looks_into_submodules_file_by_file(tmp_path: Path) -> None:
    make(tmp_path / "s", {"inner": "1", "dir/deep": "1"})
    repo = make(tmp_path / "r")
    git(root(repo), "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "s"), "sub")
    commit(root(repo), {})
    write(root(repo), {"sub/dir/deep": "2", "sub/new": "", "README": "2"})

    found = inventory(root(repo))

    assert {change.path for change in found.changed} == {"README", "sub/dir/deep", "sub/new"}
    assert found.warnings == ()


@pytest.mark.req("PX-31")
def test_what_cannot_be_listed_is_a_warning(tmp_path: Path) -> None:
    repo = make(tmp_path / "r")
    git(tmp_path, "clone", "--quiet", "--bare", "r", "bare.git")
    (tmp_path / "plain").mkdir()
    broken = make(tmp_path / "broken")
    (broken.common_dir / "index").write_bytes(b"nonsense")

    places = [tmp_path / "plain", tmp_path / "gone", tmp_path / "bare.git", tmp_path / "broken"]
    found = [inventory(place) for place in places] + [inventory(root(repo), Git(executable="/no/git"))]

    assert all(one.changed == () and len(one.warnings) == 1 for one in found)


def test_an_unborn_repository_is_listed_too(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    write(tmp_path, {"a": ""})

    assert inventory(tmp_path).changed == (ChangedPath("a", "untracked"),)
