"""The demo on real code, as far as it needs neither network nor Forge."""

import importlib
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from examples.common import Failure, commit_all, fill_in, git, start_repository
from examples.modernize import make_repository as builder
from examples.modernize.demo import HERE, WRITERS
from graphs import documents

MODULE = '''"""A module."""


class Shape(object):
    def area(self, scale=1):
        return 'area %s' % (scale,)
'''


def review_api(repository: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(HERE / "review_api.py"), "package"]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    directory = tmp_path / "library"
    start_repository(directory)
    (directory / "package").mkdir()
    (directory / "package" / "shapes.py").write_text(MODULE)
    commit_all(directory, "Import", when="2024-01-01T00:00:00+0000")
    return directory


def test_the_graph_follows_the_contract_and_works_on_disjoint_directories(tmp_path: Path) -> None:
    tools = {name: f"/tools/{name.lower()}" for name in ("RUFF", "PYTHON", "FSTRINGS", "REVIEW_API")}
    filled = fill_in(HERE / "graph.yaml", tmp_path / "graph.yaml", **tools)

    document = documents.parse(documents.load(filled.read_text()), project="boltons")

    first = [
        node for node in document.nodes if node.is_writer and node.key not in {edge.target for edge in document.edges}
    ]
    owned = [path for node in first for path in node.owned_files or ()]
    assert {node.key for node in document.nodes if node.is_writer} == set(WRITERS)
    assert sorted(owned) == ["boltons/", "docs/", "misc/", "tests/"]
    assert all(node.command[0].startswith("/tools/") for node in document.nodes)


def test_the_same_source_is_the_same_commit_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "shapes-1.0"
    source.mkdir()
    (source / ".gitignore").write_text("PKG-INFO\n")
    (source / "PKG-INFO").write_text("Name: shapes\n")
    with tarfile.open(tmp_path / "shapes-1.0.tar.gz", "w:gz") as archive:
        archive.add(source, source.name)
    monkeypatch.setattr(builder, "download", lambda scratch, python: tmp_path / "shapes-1.0.tar.gz")

    tips = {builder.make_repository(tmp_path / name) for name in ("one", "two")}

    assert len(tips) == 1
    assert git(tmp_path / "one", "ls-files").split() == [".gitignore", "PKG-INFO", "ruff.toml"]
    assert git(tmp_path / "one", "log", "--format=%s", "--reverse").splitlines()[0] == "Import shapes-1.0 as published"


def test_a_download_that_fails_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="failed with exit code"):
        builder.make_repository(tmp_path / "repository", python="/bin/false")


def test_a_rewritten_body_leaves_the_interface_as_it_was(library: Path) -> None:
    (library / "package" / "shapes.py").write_text(MODULE.replace("'area %s' % (scale,)", "f'area {scale}'"))

    done = review_api(library)

    assert done.returncode == 0
    assert "2 names compared" in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("scale=1", "scale=2", "Shape.area(self, scale=1) became Shape.area(self, scale=2)"),
        ("def area", "def size", "Shape.area(self, scale=1) became Shape.area(absent)"),
        ("(object)", "(Exception)", "Shape(object) became Shape(Exception)"),
    ],
)
def test_a_changed_interface_is_found(library: Path, old: str, new: str, finding: str) -> None:
    (library / "package" / "shapes.py").write_text(MODULE.replace(old, new))

    done = review_api(library)

    assert done.returncode == 1
    assert finding in done.stdout


def test_a_removed_module_is_found(library: Path) -> None:
    (library / "package" / "shapes.py").unlink()

    assert review_api(library).returncode == 1


# --- the codemod; its library is one of the demo's tools and not one of ours -----------------------------------------


def rewritten(source: str) -> str:
    cst = pytest.importorskip("libcst", reason="the codemod runs in the demo's own environment")
    codemod = importlib.import_module("examples.modernize.fstrings")
    code: str = cst.parse_module(source).visit(codemod.PercentToFString()).code
    return code


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"%s is %r" % (name, value)', 'f"{name} is {value!r}"'),
        ("'%s' % (self.name,)", "f'{self.name}'"),
        ("'%s items' % len(items)", "f'{len(items)} items'"),
        ("'%r' % type(it).__name__", "f'{type(it).__name__!r}'"),
        ("u'100%% of {%s}' % (x,)", "f'100% of {{{x}}}'"),
        ('"""%s\n%s""" % (a, b)', 'f"""{a}\n{b}"""'),
        ("print('%s' % (a[0],) + 'x')", "print(f'{a[0]}' + 'x')"),
    ],
)
def test_what_is_certain_becomes_an_f_string(source: str, expected: str) -> None:
    assert rewritten(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "'%s' % value",  # a tuple, perhaps
        "'%d %s' % (a, b)",
        "'%(a)s' % {'a': 1}",
        "'%5s' % (a,)",
        "'%s %s' % (a,)",
        "'%s' % (a, b)",
        "'%s %s' % (*pair,)",
        "b'%s' % (a,)",
        "r'%s' % (a,)",
        "'%s' % (d['key'],)",
        "'%s' % (a + b,)",
        "'\\x25s' % (a,)",
        "'\\N{BULLET} %s' % (a,)",
        "'no place' % ()",
        "'%' % (a,)",
        "7 % (a,)",
        "text % (a,)",
    ],
)
def test_what_is_not_certain_stays(source: str) -> None:
    assert rewritten(source) == source
