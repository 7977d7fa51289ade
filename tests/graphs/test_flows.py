"""Submitting a document: what is looked at before anything is written. The console's view is tests/forge_site/test_bad_input.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from core.errors import InvalidInput, RequestIdReused
from graphs import documents, flows
from graphs.errors import DocumentInvalid
from graphs.models import Graph
from tests.running import Forge, Repo, gated, program, writer
from workspaces.errors import CheckoutDirty

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture
def forge(transactional_db: None) -> Iterator[Forge]:
    forge = Forge()
    yield forge
    forge.close()


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


@pytest.mark.parametrize(
    ("program", "is_there"),
    [
        ("sh", True),
        ("/bin/sh", True),
        ("./comes-with-the-repository", True),
        ("bin/tool", True),
        ("no-such-program-anywhere", False),
        ("/no/such/program", False),
        ("/etc/passwd", False),
        ("/tmp", False),
    ],
)
def test_what_a_job_can_start(program: str, is_there: bool) -> None:
    assert flows.is_executable(program) is is_there


def test_a_program_is_looked_for_where_the_job_will_look(settings: Settings, tmp_path: Path) -> None:
    tool = tmp_path / "only-here"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)

    assert not flows.is_executable("only-here")
    assert flows.is_executable("only-here", path=str(tmp_path))
    assert not flows.is_executable("sh", path=str(tmp_path))
    settings.FORGE_PASS_ENV = ("LANG",)  # the job does not get the PATH of this process, but the system's
    assert flows.is_executable("sh")


def test_a_node_with_a_path_of_its_own_is_believed(forge: Forge, tmp_path: Path) -> None:
    forge.add_project("p", tmp_path, plain=True)
    node = {"key": "a", "command": ["sh"], "workMode": "read-only", "env": {"PATH": str(tmp_path)}}

    with pytest.raises(DocumentInvalid, match="executable_missing"):
        forge.admit(program(node))
    assert not Graph.objects.exists()


def test_all_missing_programs_are_named_up_to_a_bound(forge: Forge, tmp_path: Path) -> None:
    forge.add_project("p", tmp_path, plain=True)
    nodes = [{"key": f"n{i}", "command": [f"missing-{i}"], "workMode": "read-only"} for i in range(150)]

    with pytest.raises(DocumentInvalid) as refused:
        forge.admit(program(*nodes))

    assert (len(refused.value.problems), refused.value.omitted) == (100, 50)


def test_a_file_is_read_no_further_than_a_document_may_go(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    with file.open("wb") as sparse:
        sparse.truncate(documents.DEFAULT_LIMITS.max_bytes + 1)

    with pytest.raises(DocumentInvalid, match="too_large"):
        flows.read_document(file)


@pytest.mark.parametrize(
    ("dirt", "scopes", "in_the_way"),
    [
        ({"src/a": "mine"}, ["src/a"], ["src/a"]),
        ({"src/a": "mine"}, ["src/"], ["src/a"]),
        ({"src/a": "mine"}, ["src/b"], []),
        ({"src/a": "mine", "src/b": "mine"}, ["src/b"], ["src/b"]),
        ({"src/new": "mine"}, ["src/new"], ["src/new"]),
        ({"src/new": "mine"}, ["src/"], []),  # may be a by-product; it stops the landing only where it is overwritten
        ({"src/new": "mine"}, [], []),
        ({"README": "mine"}, [], ["README"]),
    ],
)
def test_dirt_counts_where_a_writer_may_land(
    forge: Forge, repo: Repo, dirt: dict[str, str], scopes: list[str], in_the_way: list[str]
) -> None:
    forge.add_project("p", repo.path)
    for path, text in dirt.items():
        (repo.path / path).write_text(text)
    document = gated(writer("a", "true", *scopes))

    if not in_the_way:
        assert forge.admit(document).state == "active"
        return
    with pytest.raises(CheckoutDirty) as refused:
        forge.admit(document)
    assert refused.value.data["paths"] == in_the_way


def test_a_graph_that_writes_nothing_minds_no_dirt(forge: Forge, repo: Repo) -> None:
    forge.add_project("p", repo.path)
    (repo.path / "README").write_text("mine")

    forge.admit(gated({"key": "look", "command": ["true"], "workMode": "read-only"}))

    assert Graph.objects.count() == 1


def test_a_claim_is_tried_before_it_is_needed(forge: Forge, tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d" * 200] * 5)
    deep.mkdir(parents=True)
    forge.add_project("p", deep, plain=True)

    with pytest.raises(InvalidInput):
        forge.admit(program(writer("a", "true", "f" * 200)))
    assert not Graph.objects.exists()


@pytest.mark.req("RC-18")
def test_a_request_is_answered_from_its_record(forge: Forge, repo: Repo) -> None:
    forge.add_project("p", repo.path)
    graph = forge.admit(gated(writer("a", "true", "src/a")), request_id="r1")
    (repo.path / "src/a").write_text("dirty by now")

    assert forge.admit(gated(writer("a", "true", "src/a")), request_id="r1") == graph
    with pytest.raises(RequestIdReused):
        forge.admit(gated(writer("b", "true", "src/b")), request_id="r1")
    assert Graph.objects.count() == 1
