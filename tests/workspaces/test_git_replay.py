"""Refresh: the same changes on a newer tip, nothing brought back, nobody's name lost."""

import os
from pathlib import Path

import pytest

from tests.workspaces.repos import ANN, BOT, Files, commit, git, make, root, tip
from workspaces.errors import MergeCommitInCandidate, ReplayConflict
from workspaces.git import Replay, Repository, replay

LINES = "".join(f"line {number}\n" for number in range(1, 21))


def forked(where: Path, start: Files, *, worker: list[Files], main: list[Files]) -> tuple[Repository, str, str, str]:
    """Repository, base, candidate, new tip of main."""
    repo = make(where / "r", start)
    base = tip(repo)
    git(root(repo), "switch", "--quiet", "-c", "side")
    for number, files in enumerate(worker):
        commit(root(repo), files, f"work {number}\n\nBody.\n\nReviewed-by: Zoe\n")
    git(root(repo), "switch", "--quiet", "main")
    for files in main:
        commit(root(repo), files, "meanwhile")
    return repo, base, tip(repo, "refs/heads/side"), tip(repo)


def replayed(repo: Repository, base: str, candidate: str, onto: str) -> Replay:
    return replay(repo, base=base, candidate=candidate, onto=onto, identity=BOT)


def test_each_commit_keeps_its_author_and_names_its_origin(tmp_path: Path) -> None:
    repo, base, candidate, onto = forked(
        tmp_path, {"a": "1\n"}, worker=[{"b": "1\n"}, {"b": "2\n"}], main=[{"a": "2\n"}]
    )

    result = replayed(repo, base, candidate, onto)

    assert (result.base, [old for old, _ in result.commits], result.dropped) == (
        onto,
        list(repo.line(base, candidate)),
        (),
    )
    assert repo.line(onto, result.commit) == tuple(new for _, new in result.commits)
    assert git(root(repo), "log", "-1", "--format=%an %ae %ad|%cn|%B", "--date=raw", result.commit) == (
        f"{ANN.name} {ANN.email} 1700000000 +0100|{BOT.name}|"
        f"work 1\n\nBody.\n\nReviewed-by: Zoe\nForge-Candidate: {candidate}"
    )
    assert repo.changes(onto, result.commit) == repo.changes(base, candidate)


def test_the_same_inputs_give_the_same_ids(tmp_path: Path) -> None:
    inputs = forked(tmp_path, {"a": "1\n"}, worker=[{"b": "1\n"}], main=[{"a": "2\n"}])

    assert replayed(*inputs) == replayed(*inputs)


def test_a_second_refresh_keeps_the_first_origin(tmp_path: Path) -> None:
    repo, base, candidate, onto = forked(tmp_path, {"a": "1\n"}, worker=[{"b": "1\n"}], main=[{"a": "2\n"}])
    first = replayed(repo, base, candidate, onto)
    later = commit(root(repo), {"a": "3\n"})

    second = replayed(repo, onto, first.commit, later)

    body = git(root(repo), "log", "-1", "--format=%B", second.commit)
    assert body.count("Forge-Candidate: ") == 1
    assert f"Forge-Candidate: {candidate}" in body


def test_an_unmoved_tip_needs_no_replay(tmp_path: Path) -> None:
    repo, base, candidate, _ = forked(tmp_path, {"a": "1\n"}, worker=[{"b": "1\n"}], main=[])

    assert replayed(repo, base, candidate, base).commit == candidate


def test_lines_that_the_target_removed_do_not_come_back(tmp_path: Path) -> None:
    """The reason for the helper commit: base adds lines, the target reverts them, the candidate changes something else.

    Common ancestor of tip and candidate is *before* the lines when the target went back there, so a plain merge-tree
    sees only the candidate's side "adding" them.
    """
    repo = make(tmp_path / "r", {"a": LINES, "b": "1\n"})
    before = tip(repo)
    base = commit(root(repo), {"a": LINES + "password = 'leaked'\n"})
    candidate = commit(root(repo), {"b": "2\n"})
    git(root(repo), "reset", "--quiet", "--hard", before)  # the target was taken back to before the base
    onto = commit(root(repo), {"c": "1\n"})

    plain = git(root(repo), "merge-tree", "--write-tree", onto, candidate)
    result = replayed(repo, base, candidate, onto)

    assert "leaked" in git(root(repo), "cat-file", "blob", f"{plain}:a")  # what the naive way does
    assert "leaked" not in git(root(repo), "cat-file", "blob", f"{result.commit}:a")
    assert [change.path for change in repo.changes(onto, result.commit)] == ["b"]


def test_edits_of_one_file_in_different_places_go_together(tmp_path: Path) -> None:
    ours, theirs = LINES.replace("line 2\n", "ours\n"), LINES.replace("line 18\n", "theirs\n")
    repo, base, candidate, onto = forked(tmp_path, {"a": LINES}, worker=[{"a": ours}], main=[{"a": theirs}])

    result = replayed(repo, base, candidate, onto)

    text = git(root(repo), "cat-file", "blob", f"{result.commit}:a")
    assert "ours\n" in text
    assert "theirs\n" in text
    assert repo.changes(onto, result.commit) != repo.changes(base, candidate)  # so an approval has to be asked again


@pytest.mark.req("PX-51")
def test_a_conflict_names_its_paths(tmp_path: Path) -> None:
    names = ["a b", "new\nline", "*.py", "-x"]
    repo, base, candidate, onto = forked(
        tmp_path,
        dict.fromkeys([*names, "fine"], "1\n"),
        worker=[dict.fromkeys([*names, "fine"], "2\n")],
        main=[dict.fromkeys(names, "3\n")],
    )

    with pytest.raises(ReplayConflict) as conflict:
        replayed(repo, base, candidate, onto)

    assert conflict.value.data["paths"] == sorted(names)


def test_an_edit_of_a_file_that_is_gone_is_a_conflict(tmp_path: Path) -> None:
    repo, base, candidate, onto = forked(tmp_path, {"a": LINES, "b": ""}, worker=[{"a": "x\n"}], main=[{"a": None}])

    with pytest.raises(ReplayConflict) as conflict:
        replayed(repo, base, candidate, onto)

    assert conflict.value.data["paths"] == ["a"]


def test_an_edit_does_not_follow_a_rename_out_of_its_scope(tmp_path: Path) -> None:
    """git's merge would put the edit of ``src/a`` into ``lib/a``, which the candidate never was allowed to touch."""
    edited = LINES.replace("line 9\n", "edited\n")
    repo, base, candidate, onto = forked(
        tmp_path, {"src/a": LINES}, worker=[{"src/a": edited}], main=[{"src/a": None, "lib/a": LINES}]
    )

    with pytest.raises(ReplayConflict) as conflict:
        replayed(repo, base, candidate, onto)

    assert "lib/a" in conflict.value.data["paths"]


def test_a_commit_that_is_already_there_is_dropped_and_named(tmp_path: Path) -> None:
    repo, base, candidate, onto = forked(
        tmp_path, {"a": "1\n"}, worker=[{"a": "2\n"}, {}, {"b": "1\n"}], main=[{"a": "2\n"}]
    )
    first, empty, last = repo.line(base, candidate)

    result = replayed(repo, base, candidate, onto)

    assert result.dropped == (first,)
    assert [old for old, _ in result.commits] == [empty, last]  # one that was empty from the start says so on purpose


def test_a_candidate_that_is_already_there_says_so(tmp_path: Path) -> None:
    repo, base, candidate, onto = forked(tmp_path, {"a": "1\n"}, worker=[{"a": "2\n"}], main=[{"a": "2\n"}])

    result = replayed(repo, base, candidate, onto)

    assert (result.is_already_there, result.commit, result.dropped) == (True, onto, (candidate,))


def test_a_merge_in_a_candidate_is_refused(tmp_path: Path) -> None:
    repo, base, _, onto = forked(tmp_path, {"a": "1\n"}, worker=[{"b": "1\n"}], main=[{"a": "2\n"}])
    git(root(repo), "switch", "--quiet", "side")
    git(root(repo), "merge", "--quiet", "--no-edit", "main")

    with pytest.raises(MergeCommitInCandidate):
        replayed(repo, base, tip(repo, "refs/heads/side"), onto)


@pytest.mark.parametrize("how", ["merge=union", "-merge", ""])
def test_the_tips_own_attributes_decide_how_files_merge(tmp_path: Path, how: str) -> None:
    """A changelog that merges by union lets many workers add to it. Stray attributes in a worktree are not asked."""
    start = {".gitattributes": f"CHANGES {how}\n" if how else "", "CHANGES": "old\n"}
    repo, base, candidate, onto = forked(
        tmp_path, start, worker=[{"CHANGES": "ours\nold\n"}], main=[{"CHANGES": "theirs\nold\n"}]
    )
    (root(repo) / ".gitattributes").write_text("" if how else "CHANGES merge=union\n")

    if how != "merge=union":
        with pytest.raises(ReplayConflict):
            replayed(repo, base, candidate, onto)
    else:
        result = replayed(repo, base, candidate, onto)
        assert sorted(git(root(repo), "cat-file", "blob", f"{result.commit}:CHANGES").split()) == [
            "old",
            "ours",
            "theirs",
        ]


def test_a_message_in_another_encoding_survives(tmp_path: Path) -> None:
    repo, base, _, onto = forked(tmp_path, {"a": "1\n"}, worker=[{"b": "1\n"}], main=[{"a": "2\n"}])
    tree = git(root(repo), "rev-parse", "side^{tree}")
    raw = os.fsencode(f"tree {tree}\nparent {base}\nauthor ") + "Zoë <z@x> 1600000000 +0530".encode("latin-1")
    raw += b"\ncommitter C <c@x> 1600000000 +0000\nencoding ISO-8859-1\n\n" + "für\n".encode("latin-1")
    candidate = git(root(repo), "hash-object", "-t", "commit", "-w", "--stdin", stdin=raw)

    result = replayed(repo, base, candidate, onto)

    assert (
        git(root(repo), "log", "-1", "--format=%an %ad %s", "--date=raw", result.commit) == "Zoë 1600000000 +0530 für"
    )
