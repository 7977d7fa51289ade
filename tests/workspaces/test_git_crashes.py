"""Each effect on git ends in the same state, wherever it was cut off before."""

import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from tests.workspaces.git_crash import EFFECTS, countdown, repository_lock, state
from workspaces.git import Git

TOP = Path(__file__).parents[2]


class Crash(BaseException):
    """No Exception, so that nobody handles it by accident."""


def crash() -> None:
    raise Crash


def undisturbed(effect: str, where: Path) -> tuple[dict[str, object], int]:
    """The end state, and after how many git steps it is reached."""
    prepare, act = EFFECTS[effect]
    steps: list[object] = []
    prepare(where)
    act(where, Git(after=steps.append))
    return state(where), len(steps)


@pytest.mark.parametrize("effect", EFFECTS)
def test_an_error_after_any_git_step_changes_nothing_about_the_end(tmp_path: Path, effect: str) -> None:
    prepare, act = EFFECTS[effect]
    wanted, steps = undisturbed(effect, tmp_path / "whole")

    for step in range(1, steps + 1):
        where = tmp_path / f"step-{step}"
        prepare(where)
        with pytest.raises(Crash):
            act(where, Git(after=countdown(step, crash)))
        act(where, Git())
        act(where, Git())  # a redo may itself be done twice
        assert state(where) == wanted, f"cut off after step {step}"


@pytest.mark.processes
@pytest.mark.parametrize("how", ["alone", "all"])
@pytest.mark.parametrize("effect", EFFECTS)
def test_a_kill_after_any_git_step_changes_nothing_about_the_end(tmp_path: Path, effect: str, how: str) -> None:
    prepare, act = EFFECTS[effect]
    wanted, steps = undisturbed(effect, tmp_path / "whole")

    for step in range(1, steps + 1):
        where = tmp_path / f"step-{step}"
        prepare(where)
        command = [sys.executable, "-m", "tests.workspaces.git_crash", effect, str(where), str(step), how]
        killed = subprocess.run(command, check=False, env={**os.environ, "PYTHONPATH": str(TOP)})
        assert killed.returncode == -signal.SIGKILL
        with repository_lock(where):
            act(where, Git())
        assert state(where) == wanted, f"killed after step {step}"


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_redo_that_is_cut_off_as_well_still_gets_there(tmp_path: Path, effect: str) -> None:
    """The worst case: killed one step later each time, as often as it takes."""
    prepare, act = EFFECTS[effect]
    wanted, _ = undisturbed(effect, tmp_path / "whole")
    prepare(tmp_path / "again")

    for step in count(1):
        try:
            act(tmp_path / "again", Git(after=countdown(step, crash)))
        except Crash:
            continue
        break

    assert state(tmp_path / "again") == wanted
