"""What a newcomer looked for in vain once: the output of a failed check, of an error stream, of a deadline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.models import Project
from graphs.models import Node
from tests.forge_site.cli import Cli
from tests.running import Forge, Repo, gated, program, writer
from workspaces.services import TargetTaken

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]


@pytest.fixture
def forge(transactional_db: None) -> Iterator[Forge]:
    forge = Forge()
    yield forge
    forge.close()


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(capsys, monkeypatch)


def test_the_output_of_a_failed_check_can_be_read(forge: Forge, tmp_path: Path, cli: Cli) -> None:
    repo = Repo(tmp_path / "repo")
    forge.add_project("p", repo.path, checks=[{"name": "unit", "argv": ["sh", "-c", "echo one is not two; exit 1"]}])
    graph = forge.admit(gated(writer("a", "echo 2 > src/a", "src/a", maxRevisions=0)))
    forge.until_ended(graph)

    assert cli("logs", "a", "--check", "unit").out == "one is not two\n"
    assert "(checks: unit)" in cli("logs", "a", "--check", "uint").err
    assert "--check" in Node.objects.get().outcome["message"]


def test_an_empty_output_points_to_the_error_stream(forge: Forge, tmp_path: Path, cli: Cli) -> None:
    forge.add_project("p", tmp_path, plain=True)
    command = ["sh", "-c", "echo oops >&2; exit 3"]
    forge.until_ended(forge.admit(program({"key": "a", "command": command, "workMode": "read-only"})))

    said = cli("logs", "a")
    assert (said.out, said.err) == ("", "nothing on stdout; 5 bytes on stderr: add --stderr\n")
    assert cli("logs", "a", "--stderr").out == "oops\n"


def test_a_passed_deadline_is_named(forge: Forge, tmp_path: Path) -> None:
    forge.add_project("p", tmp_path, plain=True)
    node = {"key": "a", "command": ["sleep", "600"], "workMode": "read-only", "deadlineSeconds": 1, "graceSeconds": 1}
    forge.until_ended(forge.admit(program(node)))

    assert Node.objects.get().outcome["message"] == "it passed its deadline of 1 s"


def test_a_branch_has_one_project_and_so_one_set_of_checks(forge: Forge, tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    forge.add_project("p", repo.path, checks=[{"name": "unit", "argv": ["true"]}])

    with pytest.raises(TargetTaken):
        forge.add_project("unchecked", repo.path)

    assert [project.name for project in Project.objects.all()] == ["p"]
