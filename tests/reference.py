"""The generated pages of docs/architecture/current/: tables that the code itself reads.

``python -m tests.reference`` writes them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from core.errors import ForgeError
from core.states import Moves
from graphs.states import GRAPH_MOVES, NODE_MOVES, GraphState, NodeState
from integration.states import CANDIDATE_MOVES, CHECK_MOVES, ENTRY_MOVES, CandidateState, CheckState, EntryState
from jobs.states import ATTEMPT_MOVES, JOB_MOVES, AttemptState, JobState
from leases.planning import TABLE, Rule
from leases.states import LEASE_MOVES, REQUEST_MOVES, LeaseState, RequestState
from workspaces.states import CHECKOUT_MOVES, CheckoutState

PLACE = Path(__file__).resolve().parent.parent / "docs" / "architecture" / "current"
NOTE = "<!-- generated from the code by `python -m tests.reference`; a test compares it -->\n"

TABLES: list[tuple[str, str, type[StrEnum], Moves]] = [
    ("Graph", "graphs/states.py", GraphState, GRAPH_MOVES),
    ("Node", "graphs/states.py", NodeState, NODE_MOVES),
    ("Job", "jobs/states.py", JobState, JOB_MOVES),
    ("Attempt", "jobs/states.py", AttemptState, ATTEMPT_MOVES),
    ("Candidate", "integration/states.py", CandidateState, CANDIDATE_MOVES),
    ("Queue entry", "integration/states.py", EntryState, ENTRY_MOVES),
    ("Check", "integration/states.py", CheckState, CHECK_MOVES),
    ("Lease request", "leases/states.py", RequestState, REQUEST_MOVES),
    ("Lease", "leases/states.py", LeaseState, LEASE_MOVES),
    ("Checkout", "workspaces/states.py", CheckoutState, CHECKOUT_MOVES),
]


def states_page() -> str:
    parts = [
        "# States and moves\n",
        NOTE,
        "Every state is assigned by `core.transitions` alone, along these arrows; each move writes one event `<kind>.<state>`.\n",
    ]
    for title, source, states, moves in TABLES:
        parts += [f"## {title}\n", f"Source: `{source}`\n", "| state | goes to |\n| --- | --- |"]
        for state in states:
            targets = ", ".join(f"`{to}`" for to in states if to in moves[state])
            parts.append(f"| `{state.value}` | {targets or 'an end'} |")
        parts.append("")
    return "\n".join(parts)


WORDS = {
    Rule.TOGETHER: "together",
    Rule.APART: "apart",
    Rule.RIVALS: "rivals only",
    Rule.NEXT: "next version only",
}


def claims_page() -> str:
    columns = list(next(iter(TABLE.values())))
    parts = [
        "# Which claims go together\n",
        NOTE,
        "Two claims on one resource, the one in the row and the one in the column. Claims on related keys meet as intentions:",
        "a claim on `a/b` stands on `a` as an intention to read or to write. Units of capacity are counted, not compared.\n",
        "Source: `leases/planning.py`, `TABLE`; multi-granularity locking, J. Gray (1976)\n",
        "| | " + " | ".join(column.value.replace("_", " ") for column in columns) + " |",
        "| --- |" + " --- |" * len(columns),
    ]
    for access, row in TABLE.items():
        cells = " | ".join(WORDS[row[column]] for column in columns)
        parts.append(f"| **{access.value.replace('_', ' ')}** | {cells} |")
    parts += [
        "",
        "- *rivals only*: both are competitive and work in isolation from each other.",
        "- *next version only*: a read of version v beside the write that makes v + 1.",
        "",
        "**Order.** rank = creation time - priority x 60 s, in milliseconds; the smaller goes first, ties by id. A younger",
        "request takes nothing that an older waiting bundle claims.",
        "",
    ]
    return "\n".join(parts)


def errors_page() -> str:
    _import_everything()
    parts = [
        "# Error codes\n",
        NOTE,
        "The code is the same in the console (`[code]`), in REST (`urn:forge:problem:<code>`) and in the data of rows.\n",
        "| code | HTTP | what it means, and who has to do something |\n| --- | --- | --- |",
    ]
    for code, error in sorted({error.code: error for error in _family(ForgeError)}.items()):
        sentence = " ".join((error.__doc__ or "").split("\n\n")[0].split())
        parts.append(f"| `{code}` | {error.http_status} | {sentence} |")
    parts.append("")
    return "\n".join(parts)


def _family(base: type[ForgeError]) -> Iterator[type[ForgeError]]:
    for error in base.__subclasses__():
        yield from _family(error)  # the most particular class of a code is met last and wins
    if base is not ForgeError and not base.__module__.startswith("tests"):
        yield base


def _import_everything() -> None:
    import importlib
    import pkgutil

    for app in ("core", "leases", "workspaces", "jobs", "integration", "graphs", "recovery", "forge_site"):
        package = importlib.import_module(app)
        for module in pkgutil.walk_packages(package.__path__, f"{app}."):
            if ".migrations" not in module.name and not module.name.endswith("__main__"):
                importlib.import_module(module.name)


PAGES = {"states.md": states_page, "claims.md": claims_page, "errors.md": errors_page}


def main() -> None:
    import django

    django.setup()
    PLACE.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (PLACE / name).write_text(page())
        sys.stdout.write(f"{PLACE / name}\n")


if __name__ == "__main__":
    main()
