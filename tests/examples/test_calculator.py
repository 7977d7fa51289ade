"""The workers of `make demo`, one by one."""

import json
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest

from examples.calculator.demo import HERE, NODES, TESTS
from examples.calculator.make_repository import make_repository
from examples.common import fill_in, git
from graphs import documents
from graphs.documents import GraphDocument
from tests.examples.conftest import INTEGRATE, WRITERS, Worker, writer

REVIEWERS = ("review_style.py", "review_product.py")


def changed(repository: Path) -> set[str]:
    """Every path that differs from the latest commit."""
    return {line[3:] for line in git(repository, "status", "--porcelain", "--untracked-files=all").splitlines()}


def contents(repository: Path) -> dict[str, str]:
    return {path: (repository / path).read_text() for path in changed(repository)}


def product_tests(repository: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *TESTS[1:]]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def document(tmp_path: Path) -> GraphDocument:
    filled = fill_in(HERE / "graph.yaml", tmp_path / "graph.yaml", DEMO_COUNTERS=tmp_path / 'odd: "name"')
    return documents.parse(documents.load(filled.read_text()), project="calculator")


def test_the_repository_is_the_same_commit_every_time(tmp_path: Path) -> None:
    tips = {make_repository(tmp_path / name) for name in ("one", "two")}

    assert len(tips) == 1
    assert git(tmp_path / "one", "rev-list", "--count", "main") == "3"
    assert git(tmp_path / "one", "status", "--porcelain", "--ignored") == ""


def test_the_product_starts_with_tests_that_pass(repository: Path) -> None:
    assert product_tests(repository).returncode == 0


def test_the_graph_is_three_writers_an_integrator_and_two_reviewers(document: GraphDocument, tmp_path: Path) -> None:
    writers = [node for node in document.nodes if node.is_writer]
    waits = {(edge.source, edge.target) for edge in document.edges}

    assert {node.key for node in document.nodes} == set(NODES)
    assert {node.key for node in writers} == {*WRITERS, "integrate"}
    assert waits == {(name, "integrate") for name in WRITERS} | {("integrate", name) for name in NODES[-2:]}
    assert all(dict(node.env) == {"DEMO_COUNTERS": str(tmp_path / 'odd: "name"')} for node in document.nodes)


def test_no_file_is_owned_twice(document: GraphDocument) -> None:
    owned = [path for node in document.nodes for path in node.owned_files or ()]

    assert len(owned) == len(set(owned)) == 10


@pytest.mark.parametrize("key", [*WRITERS, "integrate"])
def test_a_writer_changes_exactly_the_files_it_owns(
    key: str, document: GraphDocument, repository: Path, work: Worker
) -> None:
    node = next(node for node in document.nodes if node.key == key)
    if key == "integrate":
        for name in WRITERS:
            work(*writer(name))
        git(repository, "add", "--all")
        git(repository, "commit", "--quiet", "--message", "the writers' work")

    done = work(*(part.removeprefix("tools/") for part in node.command[1:]))

    assert done.returncode == 0, done.stderr
    assert changed(repository) == set(node.owned_files or ())
    assert product_tests(repository).returncode == 0


@pytest.mark.parametrize("order", list(permutations(WRITERS)), ids="-".join)
def test_in_whatever_order_the_writers_land_the_result_is_the_same(
    order: tuple[str, ...], repository: Path, work: Worker, tmp_path: Path
) -> None:
    for name in order:
        work(*writer(name))
    work(*INTEGRATE)

    done = product_tests(repository)
    assert done.returncode == 0, done.stderr
    assert git(repository, "grep", "--untracked", "-h", "__all__ =", "--", "calculator") == (
        '__all__ = ["add", "multiply", "power"]'
    )
    readme = (repository / "README.md").read_text()
    assert "None yet" not in readme
    assert readme.index("`add`") < readme.index("`multiply`") < readme.index("`power`")


def test_the_integrator_takes_what_landed_and_nothing_else(repository: Path, work: Worker) -> None:
    work(*writer("power"))

    assert work(*INTEGRATE).returncode == 0
    assert '__all__ = ["power"]' in (repository / "calculator/__init__.py").read_text()
    assert product_tests(repository).returncode == 0


def test_the_integrator_without_any_operation_fails(repository: Path, work: Worker) -> None:
    done = work(*INTEGRATE)

    assert done.returncode == 1
    assert "no operation" in done.stderr
    assert changed(repository) == set()


def test_a_second_run_in_a_dirty_tree_changes_nothing(integrated: Path, work: Worker) -> None:
    before = contents(integrated)

    for name in WRITERS:
        assert work(*writer(name)).returncode == 0
    assert work(*INTEGRATE).returncode == 0

    assert contents(integrated) == before


def test_a_run_after_one_that_was_cut_off_repairs_its_files(repository: Path, work: Worker) -> None:
    (repository / "calculator/addition.py").write_text('"""Addi')

    assert work(*writer("add")).returncode == 0
    assert product_tests(repository).returncode == 0


@pytest.mark.parametrize("reviewer", REVIEWERS)
def test_a_reviewer_approves_the_integrated_product_and_changes_nothing(
    reviewer: str, integrated: Path, work: Worker
) -> None:
    before = contents(integrated)

    done = work(reviewer)

    assert done.returncode == 0, done.stdout
    assert " 0 findings" in done.stdout
    assert contents(integrated) == before


@pytest.mark.parametrize(
    ("reviewer", "path", "old", "new", "finding"),
    [
        ("review_style.py", "calculator/addition.py", '    """The sum of two numbers."""\n', "", "has no docstring"),
        ("review_style.py", "calculator/addition.py", " -> float", "", "does not say what it returns"),
        ("review_style.py", "calculator/addition.py", "left: float", "left", "does not say what left is"),
        ("review_style.py", "README.md", "- `power`", "- power", "the operation power is not explained"),
        ("review_product.py", "calculator/multiplication.py", "left * right", "left + right", "multiply 6 7 gave 13"),
        ("review_product.py", "calculator/addition.py", "left + right", "left - right", "the product's tests fail"),
    ],
)
def test_a_reviewer_names_what_is_wrong(
    reviewer: str, path: str, old: str, new: str, finding: str, integrated: Path, work: Worker
) -> None:
    text = (integrated / path).read_text()
    assert old in text
    (integrated / path).write_text(text.replace(old, new))

    done = work(reviewer)

    assert done.returncode == 1
    assert finding in done.stdout


def test_each_run_leaves_one_line_and_its_span(work: Worker, counters: Path) -> None:
    work(*writer("add"), FORGE_ATTEMPT="42")

    ((node, attempt, pid, start),) = [line.split() for line in (counters / "add.runs").read_text().splitlines()]
    span = json.loads((counters / "add.span").read_text())
    assert (node, attempt) == ("add", "42")
    assert span["node"] == "add"
    assert span["pid"] == int(pid)
    assert float(start) == pytest.approx(span["start"], abs=1e-5)
    assert span["start"] < span["end"]
    assert sorted(path.name for path in counters.iterdir()) == ["add.runs", "add.span"]


def test_a_second_run_leaves_a_second_line(work: Worker, counters: Path) -> None:
    work(*writer("add"))
    work(*writer("add"))

    assert len((counters / "add.runs").read_text().splitlines()) == 2


def test_without_a_place_for_counters_a_worker_only_works(repository: Path, work: Worker, counters: Path) -> None:
    assert work(*writer("add"), DEMO_COUNTERS="").returncode == 0

    assert not counters.exists()
    assert changed(repository) == {"calculator/addition.py", "tests/test_addition.py"}


@pytest.mark.processes
def test_writers_started_at_different_times_still_overlap(repository: Path, counters: Path) -> None:
    environment = {"DEMO_COUNTERS": str(counters)}
    command = [sys.executable, "tools/write_operation.py"]
    started = []
    for name in WRITERS:
        worker = subprocess.Popen([*command, name], cwd=repository, env=environment, stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        if name != WRITERS[-1]:  # the next one starts only when this one waits for it
            assert worker.stdout.readline().startswith("waiting for")
        started.append(worker)

    for worker in started:
        worker.communicate(timeout=60)
        assert worker.returncode == 0

    spans = [json.loads((counters / f"{name}.span").read_text()) for name in WRITERS]
    assert max(span["start"] for span in spans) < min(span["end"] for span in spans)
