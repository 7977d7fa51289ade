"""Which requirement rows have a test that carries them: ``make trace``, ``make trace ROW=WG-10``.

The rows are those of docs/requirements.md, the tests are what pytest collects, a test names its rows with
``@pytest.mark.req("WG-03", "WG-04")``. The numbers inform; a marker that names no row is an error.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "requirements.md"
ROW = re.compile(r"[A-Z]{2}-\d{2}")
NOT_COLLECTED = "not collected"  # a module that could not be imported hides its tests: the numbers are then too low


@dataclass(frozen=True)
class Requirements:
    """The rows of the document in its order, and what some of them wait for."""

    rows: tuple[str, ...]
    waiting: Mapping[str, str]

    @property
    def sections(self) -> Mapping[str, list[str]]:
        sections: dict[str, list[str]] = {}
        for row in self.rows:
            sections.setdefault(row[:2], []).append(row)
        return sections


def read_requirements(text: str) -> Requirements:
    """Parse the tables; in that of Waiting ``WG-01 to WG-03``, ``WG-05`` and ``DE-*`` name rows.

    Raises: ValueError for a row that stands or waits twice, or a waiting row that does not exist
    """
    before, _, waiting_part = text.partition("\n## Waiting\n")
    waiting_part = waiting_part.partition("\n## ")[0]
    rows = tuple(re.findall(rf"^\| ({ROW.pattern}) \|", before, re.MULTILINE))
    if doubled := sorted({row for row in rows if rows.count(row) > 1}):
        raise ValueError(f"rows that stand twice: {' '.join(doubled)}")
    waiting: dict[str, str] = {}
    for names, reason in re.findall(r"^\| ([A-Z]{2}-[^|]+) \| ([^|]+) \|", waiting_part, re.MULTILINE):
        for row in _expand(names, rows):
            if row in waiting:
                raise ValueError(f"{row} waits twice")
            waiting[row] = reason.strip()
    return Requirements(rows, waiting)


def _expand(names: str, rows: Sequence[str]) -> Iterator[str]:
    for name in names.split(","):
        first, _, last = (part.strip() for part in name.partition(" to "))
        if first.endswith("-*"):
            found = [row for row in rows if row.startswith(first[:-1])]
        elif first in rows and (not last or last in rows):
            found = list(rows[rows.index(first) : rows.index(last or first) + 1])
        else:
            found = []
        if not found:
            raise ValueError(f"no such rows: {name.strip()}")
        yield from found


@dataclass(eq=False)  # pytest keeps plugins in sets
class Collected:
    """A pytest plugin that keeps the rows of every collected test and runs none."""

    tests: dict[str, list[str]] = field(default_factory=dict)  # row -> tests, without the parameters' part
    problems: list[str] = field(default_factory=list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            test = item.nodeid.partition("[")[0]
            for mark in item.iter_markers("req"):
                for row in map(str, mark.args):
                    carrying = self.tests.setdefault(row, [])
                    if test not in carrying:
                        carrying.append(test)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            last = str(report.longrepr).strip().splitlines()[-1]
            self.problems.append(f"{NOT_COLLECTED}: {report.nodeid}: {last}")


def collect(arguments: Sequence[str] = ()) -> Collected:
    """Collect the suite in this process; its own output is kept back unless pytest itself could not work."""
    collected, output = Collected(), io.StringIO()
    with contextlib.redirect_stdout(output):
        code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *arguments], plugins=[collected])
    if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR):
        collected.problems.append(output.getvalue().strip() or f"pytest ended with {code}")
    return collected


def unknown_rows(requirements: Requirements, tests: Mapping[str, Sequence[str]]) -> list[str]:
    """One line for each marker that names no row of the document."""
    known = set(requirements.rows)
    return [f"no such row: {row}, in {', '.join(tests[row])}" for row in sorted(tests) if row not in known]


def summary(requirements: Requirements, tests: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A line per section, lines for what waits, and the total."""
    waiting = [row for row in requirements.rows if row in requirements.waiting and row not in tests]
    for section, rows in requirements.sections.items():
        carried = [row for row in rows if row in tests]
        missing = [row for row in rows if row not in tests and row not in requirements.waiting]
        waits = sum(row in waiting for row in rows)
        line = f"{section} {len(carried):2}/{len(rows)}"
        if waits:
            line += f"  waiting: {waits}"
        if missing:
            line += f"  missing: {' '.join(missing)}"
        yield line
    if waiting:
        yield ""
    for reason in dict.fromkeys(requirements.waiting[row] for row in waiting):
        rows = [row for row in waiting if requirements.waiting[row] == reason]
        yield f"waits for {reason}: {', '.join(_ranges(rows, requirements.rows))}"
    carried = [row for row in requirements.rows if row in tests]
    total = len(requirements.rows)
    yield ""
    yield f"total {len(carried)}/{total}, missing {total - len(carried) - len(waiting)}, waiting {len(waiting)}"


def _ranges(rows: Sequence[str], order: Sequence[str]) -> Iterator[str]:
    """``DE-01 to DE-41`` for neighbours of one section, as the table of Waiting writes them."""
    place = {row: number for number, row in enumerate(order)}
    for _, group in itertools.groupby(enumerate(rows), key=lambda item: (item[1][:2], place[item[1]] - item[0])):
        neighbours = [row for _, row in group]
        yield from [f"{neighbours[0]} to {neighbours[-1]}"] if len(neighbours) > 2 else neighbours


def of_row(requirements: Requirements, tests: Mapping[str, Sequence[str]], row: str) -> Iterator[str]:
    """The tests that carry one row, ready to be run again by name."""
    yield f"{row}: {len(tests.get(row, ()))} tests"
    yield from (f"  {test}" for test in tests.get(row, ()))
    if row not in tests and row in requirements.waiting:
        yield f"  waits for {requirements.waiting[row]}"


def main(arguments: Sequence[str]) -> int:
    requirements = read_requirements(DOCUMENT.read_text())
    for row in arguments:
        if row not in requirements.rows:
            print(f"no such row: {row}")
            return 2
    collected = collect()
    for row in arguments:
        print(*of_row(requirements, collected.tests, row), sep="\n")
    if not arguments:
        print(*summary(requirements, collected.tests), sep="\n")
    problems = [*collected.problems, *unknown_rows(requirements, collected.tests)]
    if problems:
        print("", *problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
