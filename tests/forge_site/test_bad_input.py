"""Whatever is wrong with what a person gives: one clear line with a stable code, exit 2, and nothing half-written."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.models import Project
from graphs.models import Graph
from tests.forge_site.cli import Cli, Said, everything, is_one_clear_line, run
from tests.running import Forge, Repo, gated, program, writer
from tests.workspaces.repos import commit, git

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture
def forge(transactional_db: None) -> Iterator[Forge]:
    forge = Forge()
    yield forge
    forge.close()


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(capsys, monkeypatch)


@pytest.fixture
def project(forge: Forge, repo: Repo) -> Project:
    """Project p on branch main of the repository, checked out."""
    return forge.add_project("p", repo.path)


@pytest.fixture
def refused(cli: Cli, forge_home: Path, tmp_path: Path) -> Callable[..., Said]:
    """Run a command that must be refused with ``code`` and leave everything as it was."""

    def check(code: str, *args: object) -> Said:
        before = everything(forge_home, tmp_path)
        said = cli(*args)
        assert is_one_clear_line(said, code), said
        assert everything(forge_home, tmp_path) == before
        return said

    return check


Refused = Callable[..., Said]


def write(path: Path, document: dict[str, Any] | bytes) -> Path:
    text = (
        document if isinstance(document, bytes) else yaml.safe_dump({"contract": "forge.plan/1", **document}).encode()
    )
    path.write_bytes(text)
    return path


def node(key: str, *needs: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "command": ["true"], "workMode": "read-only", "needs": list(needs), **more}


# --- what is wrong with the graph -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "document"),
    [
        ("cycle", program(node("a", "c"), node("b", "a"), node("c", "b"))),
        ("dangling_edge", program(node("a", "nobody"))),
        ("duplicate_edge", program(node("a"), node("b"), edges=[{"from": "a", "to": "b"}, {"from": "a", "to": "b"}])),
        ("project_not_found", program(node("a"), project="unknown")),
        ("executable_missing", program(node("a", command=["no-such-program-anywhere", "x"]))),
        ("executable_missing", program(node("a", command=["/no/such/program"]))),
        ("foundation_unknown", gated(writer("a", "true", "src/a"), foundation={"revision": "1" * 40})),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_graph_that_cannot_be_is_refused_as_a_whole(
    project: Project, refused: Refused, tmp_path: Path, code: str, document: dict[str, Any]
) -> None:
    refused(code, "run", write(tmp_path / "g.yaml", document))


def test_every_problem_of_a_document_has_its_line(project: Project, cli: Cli, tmp_path: Path) -> None:
    file = write(tmp_path / "g.yaml", program(node("a", "x"), node("b", "y")))

    said = cli("run", file)

    assert said.code == 2
    assert [line.rpartition("[")[2] for line in said.lines] == ["dangling_edge]", "dangling_edge]"]
    assert not Graph.objects.exists()


def test_a_misspelt_project_is_answered_with_the_near_one(
    forge: Forge, repo: Repo, refused: Refused, tmp_path: Path
) -> None:
    forge.add_project("calculator", repo.path)

    said = refused("project_not_found", "run", write(tmp_path / "g.yaml", program(node("a"), project="calculater")))

    assert "Did you mean 'calculator'?" in said.err


def test_a_gated_graph_needs_a_repository(forge: Forge, refused: Refused, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    forge.add_project("p", plain, plain=True)

    refused("repository_needed", "run", write(tmp_path / "g.yaml", gated(writer("a", "true", "src/a"))))


def test_a_claim_that_no_resource_can_hold_is_refused_before_it_stops_the_coordinator(
    forge: Forge, refused: Refused, tmp_path: Path
) -> None:
    deep = tmp_path.joinpath(*["d" * 200] * 5)
    deep.mkdir(parents=True)
    forge.add_project("p", deep, plain=True)
    document = program({"key": "a", "command": ["true"], "ownedFiles": ["f" * 200]})

    refused("invalid_input", "run", write(tmp_path / "g.yaml", document))


# --- what is wrong with the file --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "content"),
    [
        ("syntax_error", b"\x00\x01\x02binary\xff"[:3]),
        ("not_utf8", b"name: \xff\xfe\n"),
        ("yaml_alias", b"a: &x [1]\nb: *x\n"),
        ("yaml_tag", b"a: !!python/object:os.system x\n"),
        ("empty_document", b"\n# nothing\n"),
        ("too_large", b"#" + b"x" * (8 * 2**20)),
        ("syntax_error", b"{"),
    ],
)
def test_a_file_that_is_no_document_is_refused(
    project: Project, refused: Refused, tmp_path: Path, code: str, content: bytes
) -> None:
    refused(code, "run", write(tmp_path / "g.yaml", content))


def test_a_file_that_cannot_be_read_is_refused(project: Project, refused: Refused, tmp_path: Path) -> None:
    refused("document_unreadable", "run", tmp_path / "missing.yaml")
    refused("document_unreadable", "run", tmp_path)
    refused("document_unreadable", "run", tmp_path / ("x" * 300))


def test_an_endless_file_is_not_read_to_its_end(project: Project, refused: Refused) -> None:
    refused("too_large", "run", "/dev/zero")


# --- what is wrong with the repository --------------------------------------------------------------------------------


def test_a_place_that_is_no_repository_is_refused(forge: Forge, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    refused("not_a_repository", "project", "add", "q", tmp_path)
    refused("path_missing", "project", "add", "q", tmp_path / "missing")
    refused("path_missing", "project", "add", "q", tmp_path / "file")
    refused("path_missing", "project", "add", "q", tmp_path / "loop")
    refused("path_missing", "project", "add", "q", "~no-such-user-here/x")


def test_an_empty_repository_is_refused(forge: Forge, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "--quiet", "--initial-branch=main")

    refused("repository_empty", "project", "add", "q", tmp_path / "empty")
    refused("repository_empty", "project", "add", "q", tmp_path / "empty", "--target", "main")


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("branch_name_invalid", "two words"),
        ("branch_name_invalid", "-x"),
        ("branch_name_invalid", "a..b"),
        ("branch_name_invalid", "@{-1}"),
        ("branch_name_invalid", "HEAD"),
        ("branch_name_invalid", "refs/tags/v1"),
        ("branch_name_invalid", "a\nb"),
        ("branch_unknown", "mian"),
        ("branch_unknown", "x" * 300),
    ],
)
def test_a_branch_that_cannot_be_the_target_is_refused(
    forge: Forge, repo: Repo, refused: Refused, code: str, name: str
) -> None:
    refused(code, "project", "add", "q", repo.path, f"--target={name}")


def test_a_misspelt_branch_is_answered_with_the_near_one(forge: Forge, repo: Repo, refused: Refused) -> None:
    said = refused("branch_unknown", "project", "add", "q", repo.path, "--target", "mian")

    assert "Did you mean 'main'?" in said.err


def test_a_bare_repository_needs_a_named_target_and_then_works(
    forge: Forge, repo: Repo, refused: Refused, cli: Cli, tmp_path: Path
) -> None:
    bare = tmp_path / "bare.git"
    git(tmp_path, "clone", "--quiet", "--bare", str(repo.path), str(bare))

    refused("branch_unknown", "project", "add", "q", bare)
    assert cli("project", "add", "q", bare, "--target", "main").code == 0
    graph = forge.admit(gated(writer("a", "echo 2 > src/a", "src/a"), project="q"))

    assert forge.until_ended(graph) == "completed"
    assert git(bare, "show", "main:src/a") == "2"


def test_a_detached_head_needs_a_named_target(forge: Forge, repo: Repo, refused: Refused) -> None:
    repo.git("checkout", "--quiet", "--detach")

    refused("branch_unknown", "project", "add", "q", repo.path)


def test_a_remote_that_does_not_exist_is_refused(forge: Forge, repo: Repo, refused: Refused) -> None:
    refused("remote_unknown", "project", "add", "q", repo.path, "--push", "orign")


@pytest.mark.parametrize("kind", ["changed", "staged", "deleted", "new"])
def test_dirt_where_the_graph_will_land_is_refused_by_name(
    project: Project, repo: Repo, refused: Refused, tmp_path: Path, kind: str
) -> None:
    path = "src/new" if kind == "new" else "src/a"
    if kind == "deleted":
        (repo.path / path).unlink()
    else:
        (repo.path / path).write_text("mine\n")
    if kind == "staged":
        repo.git("add", path)

    said = refused("checkout_dirty", "run", write(tmp_path / "g.yaml", gated(writer("a", "true", path))))

    assert said.lines[1:] == [f"       {path}"]


def test_dirt_elsewhere_is_fine(project: Project, repo: Repo, cli: Cli, tmp_path: Path) -> None:
    (repo.path / "src/b").write_text("mine\n")
    (repo.path / "src/by-product").write_text("mine\n")

    said = cli(
        "run",
        write(tmp_path / "g.yaml", gated(writer("a", "true", "src/a"), writer("c", "true", "src/c/"))),
        "--detach",
    )

    assert (said.code, Graph.objects.count()) == (0, 1), said


def test_a_writer_without_scope_may_land_anywhere_so_any_dirt_is_in_its_way(
    project: Project, repo: Repo, refused: Refused, tmp_path: Path
) -> None:
    (repo.path / "src/b").write_text("mine\n")

    refused("checkout_dirty", "run", write(tmp_path / "g.yaml", gated(writer("a", "true"))))


def test_dirt_in_a_checkout_of_another_branch_is_fine(project: Project, repo: Repo, cli: Cli, tmp_path: Path) -> None:
    repo.git("checkout", "--quiet", "-b", "other")
    (repo.path / "src/a").write_text("mine\n")

    assert cli("run", write(tmp_path / "g.yaml", gated(writer("a", "true", "src/a"))), "--detach").code == 0


def test_a_repository_that_has_gone_is_refused(project: Project, repo: Repo, refused: Refused, tmp_path: Path) -> None:
    repo.path.rename(tmp_path / "moved")

    refused("path_missing", "run", write(tmp_path / "g.yaml", gated(writer("a", "true", "src/a"))))


# --- what is wrong with the words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "check"),
    [
        ("check_invalid", "unit"),
        ("check_invalid", "=true"),
        ("check_invalid", "unit="),
        ("check_invalid", "unit='open"),
        ("check_invalid", "unit=''"),
        ("check_invalid", "u\x1b[31mnit=true"),
        ("executable_missing", "unit=no-such-program-anywhere"),
        ("invalid_input", "x" * 101 + "=true"),
    ],
)
def test_a_malformed_check_is_refused(forge: Forge, repo: Repo, refused: Refused, code: str, check: str) -> None:
    said = refused(code, "project", "add", "q", repo.path, "--check", check)

    assert "\x1b" not in said.err


def test_two_checks_of_one_name_are_refused(forge: Forge, repo: Repo, refused: Refused) -> None:
    refused("check_invalid", "project", "add", "q", repo.path, "--check", "u=true", "--check", "u=false")


@pytest.mark.parametrize("name", ["", "two words", "a/b", "a.b", "über", "x" * 64, "a\n"])
def test_a_bad_project_name_is_refused(forge: Forge, repo: Repo, refused: Refused, name: str) -> None:
    refused("project_name_invalid", "project", "add", name, repo.path)


def test_a_project_name_with_other_settings_is_a_conflict_and_with_equal_ones_none(
    project: Project, repo: Repo, refused: Refused, cli: Cli
) -> None:
    said = refused("project_exists", "project", "add", "p", repo.path, "--parallelism", "3")

    assert "parallelism 8" in said.err
    assert cli("project", "add", "p", repo.path).code == 0
    assert Project.objects.count() == 1


@pytest.mark.parametrize("number", ["0", "-1", "1001", "many"])
def test_a_parallelism_out_of_range_is_refused(forge: Forge, repo: Repo, refused: Refused, number: str) -> None:
    code = "usage" if number == "many" else "invalid_input"

    refused(code, "project", "add", "q", repo.path, f"--parallelism={number}")


def test_options_of_git_do_not_go_with_a_plain_directory(forge: Forge, refused: Refused, tmp_path: Path) -> None:
    refused("invalid_input", "project", "add", "q", tmp_path, "--plain", "--target", "main")


@pytest.mark.parametrize(
    ("code", "args"),
    [
        ("graph_not_found", ("watch", "nope")),
        ("graph_not_found", ("status", "g#2")),
        ("graph_not_found", ("status", "g#x")),
        ("graph_not_found", ("status", "g#")),
        ("graph_not_found", ("status", "9" * 5000)),
        ("graph_not_found", ("status", "²")),
        ("graph_not_found", ("result", "99")),
        ("graph_not_found", ("explain", "nope/a")),
        ("graph_not_found", ("cancel", "g#7")),
        ("node_not_found", ("explain", "g/aa")),
        ("node_not_found", ("logs", "nope")),
        ("node_not_found", ("cancel", "nope")),
        ("node_not_found", ("retry", "g/")),
        ("not_retriable", ("retry", "a")),
        ("no_candidate", ("diff", "a")),
        ("no_output", ("logs", "a")),
        ("no_output", ("logs", "a", "--attempt", "1")),
        ("invalid_input", ("logs", "a", "--attempt", "0")),
        ("usage", ("logs", "a", "--attempt", "x")),
        ("usage", ("explain",)),
        ("usage", ("explain", "a", "b")),
        ("usage", ("explain", "\udcff")),
        ("usage", ("project", "lst")),
        ("usage", ("run", "g.yaml", "--detech")),
        ("unknown_command", ("sttus",)),
        ("invalid_input", ("cancel", "g", "--reason", "x" * 501)),
        ("invalid_input", ("run", "g.yaml", "--request-id", "x" * 201)),
        ("invalid_input", ("up", "--bind", "nonsense")),
        ("invalid_input", ("up", "--bind", "127.0.0.1:70000")),
        ("address_unusable", ("up", "--bind", "192.0.2.1:8420")),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, tuple) else value,
)
def test_words_that_name_nothing_are_refused(
    project: Project, forge: Forge, refused: Refused, code: str, args: tuple[str, ...]
) -> None:
    forge.admit(program(node("a"), name="g"))

    refused(code, *args)


# --- request ids ------------------------------------------------------------------------------------------------------


@pytest.mark.req("RC-18")
def test_a_request_id_finds_the_graph_it_made_whatever_the_world_looks_like_by_now(
    project: Project, repo: Repo, cli: Cli, tmp_path: Path
) -> None:
    file = write(tmp_path / "g.yaml", gated(writer("a", "true", "src/a")))
    first = cli("run", file, "--request-id", "r1", "--detach")
    (repo.path / "src/a").write_text("dirty by now\n")

    again = cli("run", file, "--request-id", "r1", "--detach")

    assert (first.code, again.code) == (0, 0)
    assert "was admitted before as number" in again.out
    assert Graph.objects.count() == 1


def test_a_request_id_with_other_content_is_a_conflict(
    project: Project, cli: Cli, refused: Refused, tmp_path: Path
) -> None:
    cli("run", write(tmp_path / "g.yaml", program(node("a"))), "--request-id", "r1", "--detach")

    refused("request_id_reused", "run", write(tmp_path / "h.yaml", program(node("b"))), "--request-id", "r1")


# --- homes and databases ----------------------------------------------------------------------------------------------


def refused_process(code: str, *args: object, env: dict[str, str]) -> Said:
    said = run(*args, env=env)
    assert is_one_clear_line(said, code), said
    return said


@pytest.mark.parametrize("args", [("status",), ("up",), ("run", "g.yaml"), ("project", "list")])
def test_a_home_that_was_never_made_is_refused_and_not_made_by_the_way(tmp_path: Path, args: tuple[str, ...]) -> None:
    env = {**_without_database(), "FORGE_HOME": str(tmp_path / "home")}

    refused_process("not_initialised", *args, env=env)
    (tmp_path / "home").mkdir()
    refused_process("not_initialised", *args, env=env)

    assert list((tmp_path / "home").iterdir()) == []


def test_a_database_without_our_tables_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "node").write_text("vm\n")
    (home / "db.sqlite3").touch()
    env = {**_without_database(), "FORGE_HOME": str(home)}

    refused_process("database_not_migrated", "status", env=env)
    refused_process("database_not_migrated", "project", "list", env=env)
    refused_process("database_not_migrated", "up", env=env)


@pytest.mark.parametrize(
    "url", ["postgresql://nobody@127.0.0.1:1/nothing", "postgresql://nobody@no-such-host.invalid/nothing"]
)
def test_a_database_that_does_not_answer_is_refused(tmp_path: Path, url: str) -> None:
    env = {**_without_database(), "FORGE_HOME": str(tmp_path / "home"), "DATABASE_URL": url}

    refused_process("database_unreachable", "init", env=env)
    assert not (tmp_path / "home").exists()

    (tmp_path / "home").mkdir()
    (tmp_path / "home/node").write_text("vm\n")
    refused_process("database_unreachable", "status", env=env)
    refused_process("database_unreachable", "up", env=env)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "node").write_text("vm\n")
    (home / "db.sqlite3").write_bytes(b"this is no database" * 100)

    refused_process("database_unreachable", "status", env={**_without_database(), "FORGE_HOME": str(home)})


@pytest.mark.parametrize(
    "wrong", [{"DATABASE_URL": "garbage"}, {"DATABASE_URL": "postgres://h:port/x"}, {"FORGE_LEASE_TTL_S": "soon"}]
)
def test_settings_that_mean_nothing_are_refused(tmp_path: Path, wrong: dict[str, str]) -> None:
    env = {**_without_database(), "FORGE_HOME": str(tmp_path / "home"), **wrong}

    refused_process("settings_invalid", "status", env=env)


def test_a_home_that_cannot_be_made_is_refused(forge_home: Path) -> None:
    (forge_home / "file").write_text("x")  # its path is short, as sockets need it

    refused_process("system_error", "init", env={**_without_database(), "FORGE_HOME": str(forge_home / "file/home")})


def test_a_home_whose_sockets_would_have_too_long_names_is_refused(tmp_path: Path) -> None:
    home = tmp_path / ("x" * 120)

    refused_process("home_path_too_long", "init", env={**_without_database(), "FORGE_HOME": str(home)})
    assert not home.exists()


def _without_database() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "FORGE_HOME")}
    return {**env, "DJANGO_SETTINGS_MODULE": "forge_site.settings"}


# --- the runtime ------------------------------------------------------------------------------------------------------


def test_a_second_runtime_on_one_home_is_refused(forge: Forge, refused: Refused, forge_home: Path) -> None:
    from recovery.hosts import claim_runtime

    claim = claim_runtime()
    try:
        refused("runtime_running", "up")
    finally:
        os.close(claim)


def test_a_port_that_is_taken_is_refused(forge: Forge, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    from forge_site.management.commands import up

    monkeypatch.setattr(up, "PORT_FREE_WITHIN_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        said = refused("port_taken", "up", "--bind", f"127.0.0.1:{other.getsockname()[1]}")

    assert "--bind" in said.err


def test_a_port_that_comes_free_in_time_is_taken(forge: Forge) -> None:
    """A runtime that was killed lets go of its port a moment after it is gone."""
    from forge_site.management.commands.up import require_free

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

    require_free("127.0.0.1", port)


def test_an_error_of_our_own_says_so_and_keeps_its_traceback_for_those_who_ask(
    forge: Forge, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forge_site.management.commands import status

    def broken(_: object) -> None:
        raise ValueError("impossible")

    monkeypatch.setattr(status.Command, "_runtime", broken)

    said = cli("status")

    assert (said.code, said.out) == (70, "")
    assert said.err == (
        "error: Forge has a bug here: ValueError: impossible (the same command with --traceback shows where)"
        " [internal_error]\n"
    )
    with pytest.raises(ValueError, match="impossible"):
        cli("status", "--traceback")


def test_the_database_of_this_session_is_what_the_console_uses(forge: Forge, child_environment: dict[str, str]) -> None:
    """The processes above really would have written into the database that was compared."""
    said = run("status", env=child_environment)

    assert said.code == 0, said
    assert "attempts  0 running" in said.out


def test_a_person_may_have_committed_more_meanwhile(project: Project, repo: Repo, cli: Cli, tmp_path: Path) -> None:
    base = repo.tip()
    commit(repo.path, {"src/z": "1\n"})

    document = gated(writer("a", "true", "src/a"), foundation={"revision": base})

    assert cli("run", write(tmp_path / "g.yaml", document), "--detach").code == 0
