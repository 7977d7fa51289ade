"""The house itself: its layout, what it may depend on, who may import whom, and the tools in ``tests``."""

from __future__ import annotations

import ast
import fnmatch
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from django.conf import settings
from django.core.management import call_command

from tests import postgres, trace

ROOT = Path(settings.BASE_DIR)
APPS = ("core", "leases", "workspaces", "jobs", "integration", "graphs", "campaigns", "recovery", "forge_site")
OTHERS = ("manage.py", "pyproject.toml", "Makefile", "README.md", "LICENSE", "templates", "tests", "docs", "examples")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LIMIT_S = 120  # against a hang; nothing here is measured


# ---- layout and dependencies -----------------------------------------------------------------------------------------


@pytest.mark.req("PL-01")
def test_the_top_level_holds_what_the_design_names_and_nothing_else() -> None:
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().split()]
    visible = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    kept = {name for name in visible if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)}

    assert kept == {*APPS, *OTHERS}
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.req("PL-01")
def test_the_stack_is_declared() -> None:
    declared = _declared(PROJECT["dependencies"])
    for_tests = _declared(PROJECT["optional-dependencies"]["dev"])

    assert {"django", "djangorestframework", "django-q2", "channels", "daphne", "psutil"} <= declared
    assert {"pytest-django", "factory-boy"} <= for_tests


@pytest.mark.req("PL-01")
def test_everything_that_is_imported_is_declared() -> None:
    runtime = _declared(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["postgres"])
    everything = runtime | _declared(PROJECT["optional-dependencies"]["dev"])

    undeclared = [
        f"{_name(path)} imports {module}"
        for path in _sources(*APPS, "tests")
        for module in _imports(path)
        if not _is_ours(module)
        and not _is_standard(module)
        and not _distributions(module) & (everything if path.is_relative_to(ROOT / "tests") else runtime)
    ]

    assert undeclared == []


@pytest.mark.req("PL-01")
def test_the_system_check_finds_nothing() -> None:
    call_command("check", fail_level="WARNING")


def _declared(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", requirement)[0].lower() for requirement in requirements}


def _distributions(module: str) -> set[str]:
    found = importlib.metadata.packages_distributions().get(module.partition(".")[0], [])
    return {name.lower().replace("_", "-") for name in found}


# ---- what a source file may do ---------------------------------------------------------------------------------------


def test_states_import_nothing_but_the_shape_of_a_table() -> None:
    wrong = [
        f"{_name(path)} imports {module}"
        for path in _sources(*APPS)
        if path.name == "states.py" and path.parent.name in APPS
        for module in _imports(path)
        if module != "core.states"
        and not module.startswith(("enum", "typing", "collections", "dataclasses", "__future__"))
    ]

    assert wrong == []


def test_pure_rooms_read_no_clock() -> None:
    clocks = {"now", "utcnow", "today", "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter"}

    wrong = [
        f"{_name(path)}:{node.lineno} calls {node.func.attr}(); take the time as an argument"
        for path in _sources(*APPS)
        if path.name in ("states.py", "errors.py", "planning.py")
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in clocks
    ]

    assert wrong == []


def test_only_workspaces_git_runs_git() -> None:
    wrong = [
        f"{_name(path)}:{line}"
        for path in _sources(*APPS)
        if not _name(path).startswith(("workspaces/git/", "workspaces/git.py"))
        for line in _git_commands(_tree(path))
    ]

    assert wrong == []


@pytest.mark.parametrize(
    "source",
    ['run(["git", "log"])', 'run(("git", *words))', 'run(["/usr/bin/git", "log"])', 'run("git log", shell=True)'],
)
def test_a_git_command_is_found_however_it_is_written(source: str) -> None:
    assert list(_git_commands(ast.parse(source))) == [1]


def test_words_about_git_are_no_command() -> None:
    assert list(_git_commands(ast.parse('KINDS = {"git": 1}\nprint("git is missing")\nnames = ["plain", "git"]'))) == []


def _git_commands(tree: ast.AST) -> Iterator[int]:
    """Lines with an argument list that starts with git, or a shell line that does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple) and node.elts:
            first = node.elts[0]
        elif isinstance(node, ast.Call) and node.args and any(keyword.arg == "shell" for keyword in node.keywords):
            first = node.args[0]
        else:
            continue
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            program = first.value.partition(" ")[0]
            if program.rpartition("/")[2] == "git":
                yield first.lineno


@pytest.mark.parametrize("program", ["shim"])
def test_what_outlives_forge_needs_only_the_standard_library(program: str) -> None:
    path = ROOT / "jobs" / "process" / f"{program}.py"

    foreign = [
        module for module in _imports(path) if not _is_standard(module) and not module.startswith("jobs.process")
    ]

    assert foreign == []


def _sources(*packages: str) -> list[Path]:
    return sorted(
        path for package in packages for path in (ROOT / package).rglob("*.py") if "migrations" not in path.parts
    )


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in (*APPS, "tests", "examples")


def _is_standard(module: str) -> bool:
    return (
        module.startswith("_") or module.partition(".")[0] in sys.stdlib_module_names
    )  # _sha2: newer than some Python


# ---- who may import whom ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("contract", "module", "line"),
    [
        ("apps", "leases/selectors.py", "import jobs.models"),
        ("apps", "core/zz_probe.py", "import leases.states"),
        ("rooms", "leases/models.py", "import leases.services"),
        ("rooms", "graphs/selectors.py", "import graphs.steps"),
        ("rooms", "jobs/services.py", "import jobs.effects"),
        ("rooms", "forge_site/admin.py", "import forge_site.api"),
        ("pure", "leases/planning.py", "import django.utils.timezone"),
        ("pure", "graphs/states.py", "from django.db import models"),
        ("pure", "integration/planning.py", "import subprocess"),
        ("pure", "leases/planning.py", "import core.home"),  # which reads the settings
        ("effects", "integration/effects.py", "import integration.models"),
        ("effects", "workspaces/git/__init__.py", "import core.models"),
        ("process", "jobs/process/__init__.py", "import django"),
        ("process", "jobs/process/__init__.py", "import core.uow"),
        ("process", "jobs/process/__init__.py", "import jobs.states"),
    ],
)
def test_a_contract_refuses_what_it_forbids(contract: str, module: str, line: str, tmp_path: Path) -> None:
    """Each contract is broken on purpose, in a small tree of empty modules: a rule that never fails guards nothing."""
    _bare_tree(tmp_path)
    _module(tmp_path / module, f"{line}\n")

    refused = _lint_imports(tmp_path, "--contract", contract)

    assert refused.returncode == 1, refused.stdout + refused.stderr
    assert "1 broken" in refused.stdout


def test_the_contracts_hold_where_nothing_is_broken(tmp_path: Path) -> None:
    _bare_tree(tmp_path)

    kept = _lint_imports(tmp_path)

    assert kept.returncode == 0, kept.stdout + kept.stderr


def _bare_tree(root: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", root)
    for app in APPS:
        for name in ("__init__", "states", "models", "services", "steps", "effects", "api"):
            _module(root / app / f"{name}.py")
    for name in ("journal", "rows", "selectors", "transitions", "uow", "wake"):
        _module(root / "core" / f"{name}.py")
    for name in ("jobs/process/__init__.py", "workspaces/git/__init__.py"):
        _module(root / name)
    _module(root / "core" / "home.py", "import django.conf\n")


def _module(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _lint_imports(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache", *arguments]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_make_alone_explains_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    lanes = re.search(r"^LANES *:= (.*)", makefile, re.MULTILINE)
    phony = re.search(r"^\.PHONY: (.*)", makefile, re.MULTILINE)
    assert lanes
    assert phony
    targets = set(phony[1].replace("$(LANES)", lanes[1]).split()) - {"help"}

    shown = subprocess.run(
        ["make", "-C", str(ROOT)], capture_output=True, text=True, timeout=LIMIT_S, check=True
    ).stdout

    assert {target for target in targets if f"make {target} " not in shown} == set()


# ---- make trace ------------------------------------------------------------------------------------------------------

SMALL = trace.Requirements(rows=("WG-01", "WG-02", "WG-03", "DE-01", "DE-02", "DE-03"), waiting={"DE-02": "the engine"})


def test_the_document_holds_every_row_once_with_its_evidence() -> None:
    text = trace.DOCUMENT.read_text()

    requirements = trace.read_requirements(text)

    assert len(requirements.rows) == 375
    for line in re.findall(r"^\| [A-Z]{2}-\d{2} \|.*", text.partition("\n## Waiting\n")[0], re.MULTILINE):
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        assert len(cells) == 4, line
        assert all(cells), line
        assert set(cells[2].split(", ")) <= set(APPS), line


@pytest.mark.parametrize(
    ("waiting", "message"),
    [
        ("WG-09", "no such rows: WG-09"),
        ("WG-01 to WG-09", "no such rows: WG-01 to WG-09"),
        ("XX-*", r"no such rows: XX-\*"),
        ("WG-01, WG-*", "WG-01 waits twice"),
    ],
)
def test_a_waiting_row_that_does_not_exist_or_waits_twice_is_refused(waiting: str, message: str) -> None:
    text = f"| WG-01 | a | core | b |\n| WG-02 | a | core | b |\n\n## Waiting\n\n| {waiting} | the engine |\n"

    with pytest.raises(ValueError, match=message):
        trace.read_requirements(text)


def test_a_row_counts_with_one_test_and_waiting_rows_stand_apart() -> None:
    tests = {"WG-02": ["t::a", "t::b"], "DE-01": ["t::a"]}

    assert list(trace.summary(SMALL, tests)) == [
        "WG  1/3  missing: WG-01 WG-03",
        "DE  1/3  waiting: 1  missing: DE-03",
        "",
        "waits for the engine: DE-02",
        "",
        "total 2/6, missing 3, waiting 1",
    ]


def test_a_waiting_row_with_a_test_waits_no_longer() -> None:
    lines = list(trace.summary(SMALL, {"DE-02": ["t::a"]}))

    assert "DE  1/3  missing: DE-01 DE-03" in lines
    assert not any(line.startswith("waits for") for line in lines)


def test_a_marker_with_an_unknown_row_is_named_with_its_test() -> None:
    assert trace.unknown_rows(SMALL, {"WG-99": ["t::a"], "WG-01": ["t::b"]}) == ["no such row: WG-99, in t::a"]


def test_the_tests_of_one_row_are_listed_by_name() -> None:
    assert list(trace.of_row(SMALL, {"WG-01": ["t::a", "t::b"]}, "WG-01")) == ["WG-01: 2 tests", "  t::a", "  t::b"]
    assert list(trace.of_row(SMALL, {}, "DE-02")) == ["DE-02: 0 tests", "  waits for the engine"]


def test_every_marker_of_this_suite_names_a_row() -> None:
    """The real thing: collects the whole suite in a process of its own."""
    command = [sys.executable, "-m", "tests.trace", "PL-01"]

    traced = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert traced.returncode == 0, traced.stdout + traced.stderr
    assert "tests/test_house.py::test_the_stack_is_declared" in traced.stdout


# ---- a PostgreSQL for the tests --------------------------------------------------------------------------------------

NO_SERVER = "import sys, tests.postgres as p; p._server_that_answers = lambda: None; sys.exit(p.main(sys.argv[1:]))"
needs_binaries = pytest.mark.skipif(postgres.server_binaries() is None, reason="no PostgreSQL server is installed")


@needs_binaries
@pytest.mark.processes
def test_a_throw_away_cluster_serves_and_leaves_nothing() -> None:
    with postgres.throw_away_cluster() as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE mine")
        row = connection.execute("SHOW data_directory").fetchone()
        assert row is not None
        directory = Path(row[0]).parent
        assert directory.exists()

    assert not directory.exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url, connect_timeout=3)


@needs_binaries
@pytest.mark.processes
def test_a_throw_away_cluster_lets_nobody_in_without_the_password() -> None:
    with postgres.throw_away_cluster() as url:
        stranger = re.sub(":[^:@]+@", ":wrong@", url)

        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(stranger, connect_timeout=3)


@needs_binaries
@pytest.mark.processes
@pytest.mark.parametrize("code", [0, 3])
def test_the_command_gets_the_url_and_its_exit_code_is_ours(code: int) -> None:
    inside = f"import os, sys; print(os.environ['DATABASE_URL']); sys.exit({code})"

    done = _on_postgres("--", "python", "-c", inside)

    assert done.returncode == code
    assert re.search(r"^postgresql://forge:.+@127\.0\.0\.1:\d+/postgres$", done.stdout, re.MULTILINE)
    assert _is_gone(done.stdout)


@needs_binaries
@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_cluster_ends_however_its_runner_ends(number: signal.Signals) -> None:
    """The whole group gets the signal, as from a terminal; after SIGKILL only the kernel can still stop the server."""
    inside = (
        "import os, psycopg, sys; connection = psycopg.connect(os.environ['DATABASE_URL']);"
        "print(connection.execute('SHOW data_directory').fetchone()[0], flush=True); sys.stdin.read()"
    )
    runner = subprocess.Popen(
        [sys.executable, "-c", NO_SERVER, "python", "-c", inside],
        env=_environment(),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with runner:
        assert runner.stdout is not None
        said = runner.stdout.readline()
        directory = Path(runner.stdout.readline().strip()).parent
        assert directory.name.startswith("forge-pg-")

        os.killpg(runner.pid, number)

        assert runner.wait(LIMIT_S) == (-number if number == signal.SIGKILL else 128 + number)
    assert _is_gone(said)
    assert directory.exists() == (number == signal.SIGKILL)  # nobody is left to remove it then
    shutil.rmtree(directory, ignore_errors=True)


def test_without_a_server_the_lane_is_skipped_by_name() -> None:
    skipped = _without_binaries()

    assert skipped.returncode == 0
    assert skipped.stdout.startswith("SKIPPED postgres: no server answers on 127.0.0.1:5432")


def test_without_a_server_the_lane_fails_where_one_is_required() -> None:
    failed = _without_binaries(FORGE_REQUIRE_POSTGRES="1")

    assert failed.returncode == 1
    assert failed.stdout.startswith("FAILED postgres: no server answers")


def test_a_url_that_is_given_is_taken_as_it_is() -> None:
    given = "postgres://me@db.example/forge"

    done = _on_postgres("--", "python", "-c", "import os; print(os.environ['DATABASE_URL'])", DATABASE_URL=given)

    assert done.stdout.splitlines() == ["PostgreSQL at db.example/forge", given]


def _environment(**extra: str) -> dict[str, str]:
    unwanted = ("DATABASE_URL", "FORGE_REQUIRE_POSTGRES")
    return {**{name: value for name, value in os.environ.items() if name not in unwanted}, **extra}


def _on_postgres(*arguments: str, script: str = NO_SERVER, **extra: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    environment = _environment(**extra)
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def _without_binaries(**extra: str) -> subprocess.CompletedProcess[str]:
    script = NO_SERVER.replace("sys.exit", "p.server_binaries = lambda: None; sys.exit")
    return _on_postgres("--", "python", "-c", "print('never')", script=script, **extra)


def _is_gone(said: str) -> bool:
    """Nobody listens any more at the address that the runner printed; the kernel may need a moment after SIGKILL."""
    address = re.search(r"PostgreSQL at ([^/]+)/", said)
    assert address, said
    for _ in range(100):
        try:
            psycopg.connect(f"postgresql://nobody@{address[1]}/postgres", connect_timeout=3).close()
        except psycopg.OperationalError as error:
            if "refused" in str(error):
                return True
    return False


# ---- what conftest promises ------------------------------------------------------------------------------------------

LEAVES_A_PROCESS = """
import subprocess
def test_it():
    subprocess.run("sleep 600 >/dev/null 2>&1 &", shell=True, check=True)
"""
WRITES_BESIDE = """
def test_it():
    open("result.txt", "w").close()
"""
SAYS_ITS_HOME = """
import os
def test_it(forge_home):
    print(f"home={forge_home}")
    assert os.environ["FORGE_HOME"] == str(forge_home)
    assert len(str(forge_home / "wake.d" / "a-purpose-of-thirty-characters-1234567.sock")) < 108
"""


@pytest.mark.processes
def test_a_process_left_behind_fails_the_session_and_is_ended(tmp_path: Path) -> None:
    done = _nested_session(tmp_path, LEAVES_A_PROCESS)

    assert done.returncode == 1
    left = re.search(r"(\d+) sleep 600  \(started by test_nested.py::test_it\)", done.stdout)
    assert left, done.stdout
    assert not psutil.pid_exists(int(left[1])) or psutil.Process(int(left[1])).status() == psutil.STATUS_ZOMBIE


def test_a_test_that_writes_beside_itself_fails(tmp_path: Path) -> None:
    done = _nested_session(tmp_path, WRITES_BESIDE)

    assert done.returncode == 1
    assert "wrote ['result.txt'] into the working directory" in done.stdout
    assert not (ROOT / "result.txt").exists()


def test_a_session_removes_its_homes(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    done = _nested_session(tmp_path, SAYS_ITS_HOME, TMPDIR=str(temporary))

    assert done.returncode == 0, done.stdout
    home = re.search(r"home=(\S+)", done.stdout)
    assert home, done.stdout
    assert not Path(home[1]).parent.exists()
    assert list(temporary.glob("forge-test-*")) == []


def _nested_session(directory: Path, source: str, **extra: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_nested.py").write_text(source)
    (directory / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-qs",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "test_nested.py",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "tests.settings", **extra}
    environment.pop("FORGE_TEST_ROOT", None)
    return subprocess.run(
        command, env=environment, cwd=directory, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
