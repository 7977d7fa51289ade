"""The shared steps of the demos, as far as they need no Forge: directories, proof, processes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples import common
from examples.calculator.demo import NODES, TESTS
from examples.calculator.make_repository import make_repository
from examples.common import MARKER, Console, Demo, Failure, commit_all, fill_in, fresh_directory, git
from tests.examples.conftest import WRITERS

Start = Callable[..., "subprocess.Popen[str]"]

SLEEPER = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Demo:
    """A demo that went well: four commits landed, six nodes ran once, the writers at the same time."""
    directory = fresh_directory(tmp_path / "demo")
    repository, counters = directory / "repository", directory / "counters"
    base = make_repository(repository)
    counters.mkdir()
    for number, node in enumerate(NODES):
        (counters / f"{node}.runs").write_text(f"{node} {number} {1000 + number} 0.0\n")
        write_span(counters, node, 1000 + number, 0.1 * number, 0.1 * number + 1.0)
    for number in range(4):
        (repository / f"landed-{number}").write_text("")
        commit_all(repository, f"Landing {number}", when=f"2024-02-0{number + 1}T00:00:00+0000")
    result = directory / "result.json"
    result.write_text("{}")
    monkeypatch.setattr(Console, "result", lambda self, graph: result)
    monkeypatch.setattr(common, "LEFT_OVER_S", 0.2)
    return Demo(
        directory=directory,
        repository=repository,
        document=directory / "graph.yaml",
        graph="calculator",
        project="calculator",
        base=base,
        landings=4,
        tests=TESTS,
        counters=counters,
        once=NODES,
        together=WRITERS,
    )


def write_span(counters: Path, node: str, pid: int, start: float, end: float | None) -> None:
    (counters / f"{node}.span").write_text(json.dumps({"node": node, "pid": pid, "start": start, "end": end}))


# --- directories -----------------------------------------------------------------------------------------------------


def test_a_directory_of_an_earlier_demo_is_emptied(tmp_path: Path) -> None:
    directory = fresh_directory(tmp_path / "demo")
    (directory / "home" / "deep").mkdir(parents=True)
    (directory / "link").symlink_to(tmp_path)
    (tmp_path / "precious").write_text("")

    assert fresh_directory(directory) == directory
    assert [path.name for path in directory.iterdir()] == [MARKER]
    assert (tmp_path / "precious").exists()


def test_a_directory_that_no_demo_made_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("")

    with pytest.raises(Failure, match="was not made by a demo"):
        fresh_directory(tmp_path)
    assert (tmp_path / "precious").exists()


@pytest.mark.processes
def test_a_directory_where_a_forge_still_runs_is_refused(tmp_path: Path, start_process: Start) -> None:
    directory = fresh_directory(tmp_path / "demo")
    forge = start_process(FORGE_HOME=str(directory / "home"))

    with pytest.raises(Failure, match=f"something still runs in .*: stop process {forge.pid}"):
        fresh_directory(directory)


def test_a_filled_in_document_survives_odd_names(tmp_path: Path) -> None:
    (tmp_path / "template").write_text("a: [$TOOL, x]\nb: {c: $TOOL}\n")

    filled = fill_in(tmp_path / "template", tmp_path / "document", TOOL='/a b/"c": #d')

    assert filled.read_text() == 'a: ["/a b/\\"c\\": #d", x]\nb: {c: "/a b/\\"c\\": #d"}\n'


# --- the console -----------------------------------------------------------------------------------------------------


def test_the_console_sees_no_other_forge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "DJANGO_SETTINGS_MODULE", "FORGE_HOME", "FORGE_BIND", "GIT_DIR"):
        monkeypatch.setenv(name, "elsewhere")

    environment = Console(tmp_path).environment

    assert environment["FORGE_HOME"] == str(tmp_path)
    assert "elsewhere" not in environment.values()


def test_a_database_is_handed_on_when_asked_for(tmp_path: Path) -> None:
    assert Console(tmp_path, "postgres:///demo").environment["DATABASE_URL"] == "postgres:///demo"


def test_a_failing_command_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"`git rev-parse nonsense` failed with exit code 128: .*unknown revision"):
        git(make_and_return(tmp_path / "repository"), "rev-parse", "nonsense")


def make_and_return(directory: Path) -> Path:
    make_repository(directory)
    return directory


# --- the proof -------------------------------------------------------------------------------------------------------


def test_a_demo_that_went_well_is_verified(demo: Demo) -> None:
    landed = demo.verify()

    assert len(landed.commits) == 4
    assert git(demo.repository, "rev-parse", "main") == landed.commits[-1]
    assert any("add, multiply and power ran at the same time for 0.80 s" in fact for fact in landed.facts)
    assert demo.verify() == landed


def test_a_missing_landing_is_found(demo: Demo) -> None:
    git(demo.repository, "reset", "--quiet", "--hard", "HEAD~1")

    with pytest.raises(Failure, match="3 commits landed on main instead of 4"):
        demo.verify()


def test_a_rewritten_history_is_found(demo: Demo) -> None:
    git(demo.repository, "reset", "--quiet", "--hard", f"{demo.base}~1")

    with pytest.raises(Failure, match="no longer stands on the commit it started from"):
        demo.verify()


def test_a_merge_is_found(demo: Demo) -> None:
    git(demo.repository, "checkout", "--quiet", "-b", "side", demo.base)
    (demo.repository / "side").write_text("")
    commit_all(demo.repository, "Aside", when="2024-03-01T00:00:00+0000")
    git(demo.repository, "checkout", "--quiet", "main")
    git(demo.repository, "reset", "--quiet", "--hard", "HEAD~1")
    git(demo.repository, "merge", "--quiet", "--no-ff", "--message", "Merge", "side")

    with pytest.raises(Failure, match="it has merges"):
        demo.verify()


def test_a_checkout_that_does_not_follow_its_branch_is_found(demo: Demo) -> None:
    (demo.repository / "landed-3").unlink()

    with pytest.raises(Failure, match="checkout is not clean"):
        demo.verify()


def test_a_second_run_of_a_node_is_found(demo: Demo) -> None:
    with (demo.directory / "counters" / "integrate.runs").open("a") as file:
        file.write("integrate 9 1009 5.0\n")

    with pytest.raises(Failure, match="node integrate ran 2 times instead of once"):
        demo.verify()


def test_a_node_that_never_ran_is_found(demo: Demo) -> None:
    (demo.directory / "counters" / "review-style.runs").unlink()

    with pytest.raises(Failure, match="node review-style ran 0 times"):
        demo.verify()


@pytest.mark.parametrize(
    ("pid", "start", "end", "sentence"),
    [
        (1002, 1.5, 2.5, "did not run at the same time"),  # after the others
        (1001, 0.2, 1.2, "did not run at the same time"),  # the same process twice
        (1002, 0.2, None, "no recorded start and end of power"),
    ],
)
def test_writers_that_did_not_overlap_are_found(
    demo: Demo, pid: int, start: float, end: float | None, sentence: str
) -> None:
    write_span(demo.directory / "counters", "power", pid, start, end)

    with pytest.raises(Failure, match=sentence):
        demo.verify()


def test_a_product_that_fails_in_a_fresh_clone_is_found(demo: Demo) -> None:
    (demo.repository / "tests" / "test_cli.py").write_text("raise SystemExit('broken')\n")
    git(demo.repository, "commit", "--quiet", "--all", "--amend", "--no-edit")

    with pytest.raises(Failure, match="failed with exit code"):
        demo.verify()


# --- processes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def start_process() -> Iterator[Start]:
    """Start processes that do nothing until they are killed, at the latest at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def start(cwd: Path | None = None, **environment: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(SLEEPER, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    yield start
    for process in started:
        end(process)


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
    if process.stdout:
        process.stdout.close()


@pytest.fixture
def shim(demo: Demo) -> Iterator["subprocess.Popen[str]"]:
    """Works in the directory of a job and supervises a command that works elsewhere."""
    jobdir, checkout = demo.home / "jobs" / "1", demo.home / "checkouts" / "1"
    jobdir.mkdir(parents=True)
    checkout.mkdir(parents=True)
    program = (
        "import subprocess, sys;"
        f"subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], cwd={str(checkout)!r}, env={{}});"
        "print('up', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=jobdir,
        env={"FORGE_HOME": str(demo.home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    yield process
    for left in demo.processes():
        os.kill(left.pid, 9)
    process.communicate()


@pytest.mark.processes
def test_what_is_left_over_is_found_by_environment_and_by_place(demo: Demo, start_process: Start) -> None:
    checkout = demo.home / "checkouts" / "1"
    checkout.mkdir(parents=True)
    started = [
        start_process(FORGE_HOME=str(demo.home)),
        start_process(DEMO_COUNTERS=str(demo.counters)),
        start_process(cwd=checkout),
        start_process(cwd=demo.home),
    ]
    start_process(cwd=demo.directory, FORGE_HOME=f"{demo.home}-of-somebody-else")

    assert {process.pid for process in demo.processes()} == {process.pid for process in started}
    with pytest.raises(Failure, match="processes are left over"):
        demo.verify()
    for process in started:
        end(process)
    demo.verify()


@pytest.mark.processes
def test_the_crash_spares_shims_and_what_they_supervise(
    demo: Demo, shim: "subprocess.Popen[str]", start_process: Start
) -> None:
    forge = [start_process(FORGE_HOME=str(demo.home)) for _ in range(3)]
    before = {process.pid for process in demo.processes()}

    demo.kill()

    assert [process.wait(timeout=10) for process in forge] == [-9, -9, -9]
    after = {process.pid for process in demo.processes()}
    assert after == before - {process.pid for process in forge}
    assert shim.pid in after
    assert len(after) == 2


def test_whoever_started_us_is_no_part_of_the_demo(demo: Demo) -> None:
    program = (
        "import sys; from pathlib import Path; from examples import common;"
        f"print([pid for pid in common.pids() - common.ancestors()"
        f" if common.belongs_to(pid, Path({str(demo.directory)!r}))])"
    )
    environment = {**os.environ, "FORGE_HOME": str(demo.home)}

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=common.ROOT, env=environment, capture_output=True, text=True, check=True
    )

    assert done.stdout == "[]\n"
