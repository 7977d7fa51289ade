"""The console as a person and a script meet it: help, names, tables in any terminal, pipes, Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import get_commands, load_command_class
from django.test import Client

from core.models import AttentionItem, CancelIntent
from forge_site import progress
from forge_site.management.base import ForgeCommand, Out
from graphs.models import Graph, Node
from jobs.models import Attempt
from tests.factories import AdminUserFactory, AttentionItemFactory, GraphFactory, NodeFactory, ProjectFactory
from tests.forge_site.cli import HANG_LIMIT_S, Cli, command, run
from tests.running import Forge, Repo, gated, program, writer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]

ESCAPE = "\x1b"
COMMANDS = sorted(name for name, app in get_commands().items() if app == "forge_site")
OWN = [name for name in COMMANDS if isinstance(load_command_class("forge_site", name), ForgeCommand)]


@pytest.fixture
def forge(transactional_db: None) -> Iterator[Forge]:
    forge = Forge()
    yield forge
    forge.close()


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(capsys, monkeypatch)


@pytest.fixture
def plain(forge: Forge, tmp_path: Path) -> Path:
    """The directory of project p, which has no git."""
    place = tmp_path / "plain"
    place.mkdir()
    forge.add_project("p", place, plain=True)
    return place


def document(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump({"contract": "forge.plan/1", **content}))
    return path


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def terminal(width: int, height: int, **environment: str) -> Out:
    out = Out(Terminal())
    out._environ = {"TERM": "xterm-256color", **environment}
    out.size = (width, height)
    return out


def drawn(graph: Graph, width: int, height: int) -> list[str]:
    """The lines of a picture in a terminal of this size, without their styles."""
    out = terminal(width, height)
    with out.capture() as capture:
        out.print(progress.picture(graph, out))
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in capture.get().splitlines()]


# --- help -------------------------------------------------------------------------------------------------------------


def test_forge_alone_lists_every_command_of_ours(cli: Cli) -> None:
    said = cli()

    assert said.code == 0
    assert said == cli("--help")
    listed = set(re.findall(r"^  ([a-z_]+)", said.out, re.MULTILINE))
    assert listed == set(OWN)


@pytest.mark.parametrize("name", OWN)
def test_every_command_teaches_itself(cli: Cli, name: str) -> None:
    said = cli(name, "--help")

    assert said.code == 0
    assert said.out.startswith(f"usage: forge {name}")
    assert "\nexamples:\n  " in said.out
    assert f"forge {name}" in said.out.partition("examples:")[2]
    assert "--pythonpath" not in said.out
    assert len(load_command_class("forge_site", name).help) > 60
    undocumented = [
        action.dest
        for action in load_command_class("forge_site", name).create_parser("forge", name)._actions
        if not action.help and action.dest != "action"
    ]
    assert undocumented == []


def test_the_version_is_ours(cli: Cli) -> None:
    assert re.fullmatch(r"forge \d+\.\d+\.\d+\n", cli("--version").out)


def test_an_unknown_command_is_answered_with_the_near_one(cli: Cli) -> None:
    assert "Did you mean 'status'?" in cli("sttaus").err
    assert "Did you mean" not in cli("frobnicate").err


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_graph_is_named_by_name_run_or_number(cli: Cli, forge: Forge, plain: Path) -> None:
    first, second = (forge.admit(program(writer("a", "true", "a"), name="calc")) for _ in range(2))

    assert cli("result", "calc").out.endswith(f"results/{second.pk}/result.json\n")
    assert cli("result", "calc#1").out.endswith(f"results/{first.pk}/result.json\n")
    assert cli("result", "calc #1").out.endswith(f"results/{first.pk}/result.json\n")
    assert cli("result", first.pk).out.endswith(f"results/{first.pk}/result.json\n")
    assert "Did you mean 'calc'?" in cli("result", "clac").err
    assert "Did you mean 'calc#2' or 'calc#1'" in cli("result", "calc#3").err


def test_a_graph_whose_name_is_a_number_is_found_where_no_graph_has_that_number(
    cli: Cli, forge: Forge, plain: Path
) -> None:
    forge.admit(program(writer("a", "true", "a"), name="202611"))

    assert cli("result", "202611").code == 0


def test_a_name_in_two_projects_is_asked_back(cli: Cli, forge: Forge, plain: Path, tmp_path: Path) -> None:
    forge.add_project("q", tmp_path, plain=True)
    graphs = [forge.admit(program(writer("a", "true", "a"), name="calc", project=name)) for name in ("p", "q")]

    said = cli("cancel", "calc")

    assert said.code == 2
    assert "[graph_ambiguous]" in said.err
    assert all(str(graph.pk) in said.err for graph in graphs)
    assert not CancelIntent.objects.exists()


def test_what_changes_something_never_guesses_between_graphs(cli: Cli, forge: Forge, plain: Path) -> None:
    for _ in range(2):
        forge.admit(program(writer("a", "true", "a"), name="calc"))

    assert "[graph_ambiguous]" in cli("cancel", "a").err
    assert cli("explain", "a").code == 0  # to look, the newest is good enough
    assert cli("cancel", "calc#1/a").out == "calc#1/a: cancel recorded\n"
    assert cli("cancel", "calc#1/a").out.startswith("calc#1/a is cancelled already")
    assert cli("cancel", "a").out == "calc#2/a: cancel recorded\n"  # the only one that is left


def test_a_graph_that_has_ended_is_not_cancelled(cli: Cli, forge: Forge, plain: Path) -> None:
    graph = forge.admit(program(writer("a", "false", "a")))
    forge.until_ended(graph)

    assert cli("cancel", "prog").out == "prog#1 is partial already: there is nothing to cancel\n"
    assert cli("retry", "a").code == 0
    assert forge.until_ended(graph) == "partial"
    assert not CancelIntent.objects.exists()


# --- the address of the pages -----------------------------------------------------------------------------------------


def test_the_login_link_is_an_address_the_pages_have(forge: Forge, forge_home: Path) -> None:
    from forge_site.launcher import first_login_link
    from forge_site.runtime import web_address

    (forge_home / "web.json").write_text(json.dumps({"url": "http://127.0.0.1:8420/"}))
    owner = AdminUserFactory.create()

    link = first_login_link(web_address())

    response = Client().get(link.removeprefix("http://127.0.0.1:8420"))
    assert (response.status_code, response.headers["Location"]) == (302, "/")
    assert response.wsgi_request.user == owner


# --- status -----------------------------------------------------------------------------------------------------------


def test_status_before_anything_says_what_to_do_first(cli: Cli, forge: Forge) -> None:
    said = cli("status")

    assert said.code == 0
    assert "does not run (start it with `forge up`)" in said.out
    assert "none yet: `forge project add NAME PATH`, then `forge run FILE`" in said.out
    assert ESCAPE not in said.out


def test_status_is_bounded_however_many_graphs_there_are(cli: Cli, forge: Forge, plain: Path) -> None:
    project = ProjectFactory.create()
    for n in range(50):
        NodeFactory.create(graph=GraphFactory.create(project=project, name=f"many{n}", state="active"))
    for n in range(15):
        AttentionItemFactory.create(project=project, message=f"look {n} \x1b[2J [/red]")

    said = cli("status")

    assert len(said.out.splitlines()) < 60
    assert "and 30 more active graphs" in said.out
    assert "and 5 more" in said.out
    assert ESCAPE not in said.out
    assert r"\x1b[2J [/red]" in said.out


def test_lines_in_a_pipe_are_neither_wrapped_nor_cut(cli: Cli, forge: Forge, tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d" * 60] * 4, "[bold]")
    deep.mkdir(parents=True)

    cli("project", "add", "q", deep, "--plain")

    assert any(str(deep) in line for line in cli("project", "list").out.splitlines())


# --- pictures ---------------------------------------------------------------------------------------------------------


def thousand_nodes() -> Graph:
    graph: Graph = GraphFactory.create(name="big")
    states = ["accepted"] * 400 + ["queued"] * 90 + ["failed"] * 5 + ["running"] * 4 + ["pending"] * 501
    Node.objects.bulk_create(
        Node(
            state=state, project_id=graph.project_id, graph=graph, key=f"node-{n:04}-{'x' * 40}", spec={}, position=n,
            level=0, unmet_inputs=0, outcome={"message": "long words " * 20} if state == "failed" else {},
        )
        for n, state in enumerate(states)
    )  # fmt: skip
    return graph


@pytest.mark.parametrize(("width", "height"), [(120, 50), (80, 24), (40, 12), (20, 8)])
def test_a_picture_fits_its_terminal_and_shows_what_moves_first(
    transactional_db: None, width: int, height: int
) -> None:
    lines = drawn(thousand_nodes(), width, height)

    assert len(lines) <= max(height, 12)
    assert max(len(line) for line in lines) <= width
    text = "\n".join(lines)
    assert "node" in text
    assert "running" in text or width == 20
    assert "more nodes" in text


def test_a_picture_of_a_thousand_nodes_asks_little(transactional_db: None, django_assert_max_num_queries: Any) -> None:
    graph = thousand_nodes()

    with django_assert_max_num_queries(60):
        drawn(graph, 80, 24)


def test_a_narrow_terminal_keeps_the_names(transactional_db: None) -> None:
    graph = GraphFactory.create(name="g")
    NodeFactory.create(graph=graph, key="build", state="failed", outcome={"message": "long words " * 20})

    [_, row] = drawn(graph, 40, 20)

    assert row.startswith("build  ✘ failed  has failed: ")
    assert row.endswith("…")


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_are_left_out_on_request(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TERM": "xterm-256color", **environment}.items():
        monkeypatch.setenv(name, value)
    out = Out(Terminal())

    with out.capture() as capture:
        out.print(progress.state_text("failed"))

    assert "\x1b[31" not in capture.get()
    assert "31m" not in capture.get()
    assert out.is_live is ("TERM" not in environment)


def test_every_state_has_a_look() -> None:
    from graphs.states import GraphState, NodeState

    assert {*NodeState, *GraphState, "admitted"} <= set(progress.LOOK)


# --- run and watch ----------------------------------------------------------------------------------------------------


def test_lines_tell_the_whole_story_without_escape_codes(cli: Cli, forge: Forge, tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    forge.add_project("p", repo.path)
    graph = forge.admit(gated(writer("a", "echo 2 > src/a", "src/a"), writer("bad", "exit 3", "src/b", maxRevisions=0)))
    forge.until_ended(graph)

    said = cli("watch", "g")

    assert said.code == 1
    lines = [re.sub(r" +", " ", line).strip() for line in said.out.splitlines()]
    assert lines[0] == "graph ▷ admitted 2 nodes"
    assert f"a ✔ accepted commit {repo.tip()[:12]}" in lines
    assert "bad ✘ failed its command exited with code 3" in lines
    assert any(line.startswith("attention bad: its command exited with code 3") for line in lines)
    assert lines[-2] == "graph ✘ partial" or "graph ✘ partial" in lines
    assert lines[-1].startswith("graph g#1 partial result: /")
    assert ESCAPE not in said.out
    assert "?" not in said.out


def test_run_follows_to_the_end_and_writes_the_result(
    forge: Forge, plain: Path, tmp_path: Path, child_environment: dict[str, str]
) -> None:
    file = document(tmp_path / "g.yaml", program(writer("a", "echo 1 > a", "a")))
    with subprocess.Popen(command("run", file), env=child_environment, stdout=subprocess.PIPE, text=True) as process:
        forge.until(lambda: process.poll() is not None)
        assert process.stdout is not None
        out = process.stdout.read()

    assert process.returncode == 0
    path = Path(out.split()[-1])
    written = json.loads(path.read_text())
    assert (written["contract"], written["status"]) == ("forge.result/1", "completed")
    assert "No runtime is running: start `forge up`" in out
    assert ESCAPE not in out


def test_run_says_by_its_exit_code_that_the_work_did_not_end_well(
    forge: Forge, plain: Path, tmp_path: Path, child_environment: dict[str, str]
) -> None:
    file = document(tmp_path / "g.yaml", program(writer("a", "false", "a")))
    with subprocess.Popen(command("run", file), env=child_environment, stdout=subprocess.DEVNULL) as process:
        forge.until(lambda: process.poll() is not None)

    assert process.returncode == 1


def test_a_document_can_come_from_the_standard_input(
    forge: Forge, plain: Path, child_environment: dict[str, str]
) -> None:
    text = json.dumps({"contract": "forge.plan/1", **program(writer("a", "true", "a"))})

    said = run("run", "-", "--detach", env=child_environment, stdin=text.encode())

    assert said.code == 0, said
    assert "forge watch" in said.out
    assert Graph.objects.get().name == "prog"


@pytest.mark.parametrize("verb", ["run", "watch", "logs"])
def test_ctrl_c_detaches_and_says_how_to_go_on(
    forge: Forge, plain: Path, tmp_path: Path, child_environment: dict[str, str], verb: str
) -> None:
    """Exit 130, not 0: `forge run g.yaml && deploy` must not deploy what has not ended."""
    gate = tmp_path / "gate"
    script = f"echo started; i=0; while [ ! -e {gate} ] && [ $i -lt 600 ]; do sleep 0.05; i=$((i+1)); done"
    content = program(writer("a", script, "a"))
    file = document(tmp_path / "g.yaml", content)
    if verb != "run":
        forge.admit(content)
    args = {"run": ("run", file), "watch": ("watch", "prog"), "logs": ("logs", "-f", "a")}[verb]
    seen = {"run": "running", "watch": "running", "logs": "started"}[verb]

    with subprocess.Popen(
        command(*args), env=child_environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.set_blocking(process.stdout.fileno(), False)
        heard = b""

        def has_seen() -> bool:
            nonlocal heard
            heard += process.stdout.read() or b""  # type: ignore[union-attr]
            return seen.encode() in heard

        forge.until(has_seen)
        process.send_signal(signal.SIGINT)
        os.set_blocking(process.stdout.fileno(), True)
        rest, errors = process.communicate(timeout=HANG_LIMIT_S)

    assert process.returncode == 130
    assert errors == b"" or verb == "logs"
    assert b"Traceback" not in errors
    if verb == "run":
        assert b"Detached; the work goes on." in rest
    if verb != "logs":
        assert f"forge watch {Graph.objects.get().pk}".encode() in rest
    gate.touch()
    assert forge.until_ended(Graph.objects.get()) == "completed"


def test_a_live_table_is_drawn_in_a_terminal(
    forge: Forge, plain: Path, tmp_path: Path, child_environment: dict[str, str]
) -> None:
    graph = forge.admit(program(writer("a", "true", "a")))
    forge.until_ended(graph)
    leader, follower = pty.openpty()
    environment = {**child_environment, "TERM": "xterm-256color", "COLUMNS": "60", "LINES": "20"}
    with subprocess.Popen(command("watch", "prog"), env=environment, stdout=follower, stderr=follower) as process:
        os.close(follower)
        heard = b"".join(_pieces(leader))
    os.close(leader)

    assert process.returncode == 0
    text = heard.decode()
    assert ESCAPE in text
    assert "✔ succeeded" in text
    assert "graph prog#1 completed" in text.rstrip().splitlines()[-1]


def _pieces(leader: int) -> Iterator[bytes]:
    deadline = time.monotonic() + HANG_LIMIT_S
    while select.select([leader], [], [], max(0.0, deadline - time.monotonic()))[0]:
        try:
            yield os.read(leader, 4096)
        except OSError:  # the other end is closed
            return
    raise AssertionError("it never ended")


# --- pipes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("args", [("status",), ("plan_contract",), ("watch", "prog"), ("project", "list"), ("--help",)])
def test_a_reader_that_goes_away_is_no_error(
    forge: Forge, plain: Path, child_environment: dict[str, str], args: tuple[str, ...], unbuffered: str
) -> None:
    graph = forge.admit(program(writer("a", "true", "a")))
    forge.until_ended(graph)
    read_end, write_end = os.pipe()
    os.close(read_end)

    done = subprocess.run(
        command(*args),
        env={**child_environment, "PYTHONUNBUFFERED": unbuffered},
        stdout=write_end,
        stderr=subprocess.PIPE,
        check=False,
        timeout=HANG_LIMIT_S,
    )
    os.close(write_end)

    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_cannot_be_written_is_an_error(
    forge: Forge, child_environment: dict[str, str], unbuffered: str
) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command("status"),
            env={**child_environment, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=HANG_LIMIT_S,
        )

    assert done.returncode == 2
    assert done.stderr.decode().count("\n") == 1
    assert "Traceback" not in done.stderr.decode()


def test_an_encoding_without_our_signs_is_no_error(
    forge: Forge, plain: Path, child_environment: dict[str, str]
) -> None:
    forge.admit(program(writer("a", "true", "a")))

    said = run("status", env={**child_environment, "PYTHONIOENCODING": "ascii"})

    assert said.code == 0
    assert "? active" in said.out


# --- logs, diff, explain ----------------------------------------------------------------------------------------------


def test_logs_show_an_attempt_and_its_earlier_ones(cli: Cli, forge: Forge, tmp_path: Path) -> None:
    once = tmp_path / "once"
    forge.add_project("p", Repo(tmp_path / "repo").path)
    script = f"if [ -e {once} ]; then echo second; echo 2 > src/a; else touch {once}; echo first; exit 3; fi"
    forge.until_ended(forge.admit(gated(writer("a", script, "src/a"))))

    assert cli("logs", "a").out == "second\n"
    assert cli("logs", "a", "--attempt", "1").out == "first\n"
    assert cli("logs", "-f", "a").out == "second\n"
    assert "has 2 attempts, no number 3" in cli("logs", "a", "--attempt", "3").err
    assert cli("logs", "a", "--stderr").out == ""


def test_following_logs_never_splits_a_character(cli: Cli, forge: Forge, plain: Path) -> None:
    graph = forge.admit(program(writer("a", "i=0; while [ $i -lt 9000 ]; do printf '€€€€€'; i=$((i+1)); done", "a")))
    forge.until_ended(graph)

    assert cli("logs", "-f", "a").out == "€" * 45_000


def test_following_logs_waits_for_the_attempt(forge: Forge, plain: Path, child_environment: dict[str, str]) -> None:
    graph = forge.admit(program(writer("a", "echo here", "a")))
    with subprocess.Popen(
        command("logs", "-f", "a"), env=child_environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        assert b"a is ready" in process.stderr.readline()
        forge.until_ended(graph)
        out, _ = process.communicate(timeout=HANG_LIMIT_S)

    assert (process.returncode, out) == (0, b"here\n")


def test_diff_shows_what_landed_and_says_why_there_is_none(cli: Cli, forge: Forge, tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    forge.add_project("p", repo.path)
    forge.until_ended(
        forge.admit(
            gated(
                writer("a", "echo 2 > src/a", "src/a"),
                writer("outside", "echo 2 > README", "src/b", maxRevisions=0),
            )
        )
    )
    forge.until_ended(forge.admit(program({"key": "shared", "command": ["true"], "workMode": "read-only"})))

    assert cli("diff", "a", "--stat").out == "src/a\n"
    assert "+2\n" in cli("diff", "a").out
    assert "was refused: 1 changed paths lie outside the declared scope" in cli("diff", "outside").err
    assert "works in the shared workspace and offers no candidate" in cli("diff", "shared").err


def test_explain_says_when_nobody_is_there_to_do_it(cli: Cli, forge: Forge, plain: Path) -> None:
    forge.admit(program(writer("a", "true", "a")))

    assert cli("explain", "a").out.splitlines()[1].startswith("No runtime is running")
    facts = json.loads(cli("explain", "a", "--json").out)
    assert (facts["code"], facts["runtime"], facts["node"]) == ("ready", False, "a")


def test_what_a_command_calls_its_files_reaches_no_terminal(cli: Cli, forge: Forge, tmp_path: Path) -> None:
    forge.add_project("p", Repo(tmp_path / "repo").path)
    graph = forge.admit(gated(writer("a", r"printf x > \"$(printf 'evil\033]0;title\007')\"", "src/a", maxRevisions=0)))
    forge.until_ended(graph)

    for said in (cli("explain", "a"), cli("watch", "g"), cli("status"), cli("status", "g")):
        assert ESCAPE not in said.out + said.err
        assert "\x07" not in said.out + said.err
    assert Attempt.objects.count() == 1
    assert AttentionItem.objects.count() == 1


# --- start-up ---------------------------------------------------------------------------------------------------------


def test_the_console_loads_neither_the_web_server_nor_its_friends(
    forge: Forge, child_environment: dict[str, str]
) -> None:
    """Half of the start-up time was Twisted, which only the web process needs."""
    program_ = (
        "import sys; sys.argv = ['forge', 'run', '--help']\n"
        "from forge_site.console import _run; _run(sys.argv)\n"
        "print(sorted({'twisted', 'daphne', 'autobahn', 'rest_framework.views', 'forge_site.pages'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [command()[0], "-c", program_], env=child_environment, capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "[]"
