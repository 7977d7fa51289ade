"""From nothing to the last line with a stand-in for the console: what a demo says and does, also when it fails."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from examples import common
from examples.calculator.demo import prepare
from examples.common import MARKER, Failure

pytestmark = pytest.mark.processes


@pytest.fixture
def forge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in as the console script."""
    script = tmp_path / "bin" / "forge"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("fake_forge.py")} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(common, "_forge", lambda: str(script))
    return script


def run_demo(forge: Path, directory: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """The demo as `make` starts it, in a process of its own."""
    program = (
        "import sys; from examples import common; from examples.calculator.demo import prepare;"
        f"common._forge = lambda: {str(forge)!r};"
        "sys.exit(common.main('a test', 'calculator', prepare))"
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=common.ROOT,
        env={**os.environ, "DEMO_DIR": str(directory), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_twice_in_a_row_it_ends_with_the_promised_line(forge: Path, tmp_path: Path) -> None:
    for _ in range(2):
        done = run_demo(forge, tmp_path / "demos")

        assert done.returncode == 0, done.stdout + done.stderr
        directory = tmp_path / "demos" / "calculator"
        last = done.stdout.splitlines()[-1]
        assert last == f"demo ok: landed=4 repo={directory}/repository result={directory}/home/result.json"
        assert "add, multiply and power ran at the same time" in done.stdout
        assert re.search(r"dashboard   http://127\.0\.0\.1:\d+/login/once", done.stdout)
        assert re.search(r"[0-9a-f]{7} Add exponentiation  \(calculator/exponentiation.py, tests/", done.stdout)
        assert (directory / MARKER).is_file()


@pytest.mark.parametrize(
    ("fails", "reason", "log"),
    [
        ("up", "`forge up` ended at once with exit code 3", "cannot start: no luck today"),
        ("run", "the graph did not complete: `forge run` ended with exit code 1", "sign in at"),
        ("down", "`forge up` ended with exit code 4 after SIGTERM", "sign in at"),
    ],
)
def test_a_failure_is_one_clear_line_after_the_runtimes_log(
    fails: str, reason: str, log: str, forge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = forge.read_text().replace("exec ", f"FAKE_FORGE={fails} exec ")
    forge.write_text(wrapper)

    done = run_demo(forge, tmp_path / "demos")

    assert done.returncode == 1
    assert done.stderr == f"demo failed: {reason}\n"
    assert log in done.stdout.splitlines()[-1]
    assert "demo ok" not in done.stdout


def test_a_foreign_directory_is_refused(forge: Path, tmp_path: Path) -> None:
    precious = tmp_path / "calculator" / "precious"
    precious.parent.mkdir()
    precious.write_text("")

    done = run_demo(forge, tmp_path)

    assert done.returncode == 1
    assert "was not made by a demo" in done.stderr
    assert precious.exists()


@pytest.mark.usefixtures("forge")
def test_its_steps_can_be_taken_one_by_one_around_a_crash(tmp_path: Path) -> None:
    demo = prepare(tmp_path / "demo")
    demo.up()
    demo.admit()
    demo.kill()
    assert demo.processes() == []

    demo.up()
    demo.wait()
    demo.down()
    landed = demo.verify()

    assert len(landed.commits) == 4
    assert landed.result.is_file()


@pytest.mark.usefixtures("forge")
def test_stopping_what_does_not_run_is_nothing(tmp_path: Path) -> None:
    demo = prepare(tmp_path / "demo")

    demo.down()
    with pytest.raises(Failure, match="0 commits landed"):
        demo.verify()
