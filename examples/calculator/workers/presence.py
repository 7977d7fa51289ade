"""Records outside of the repository that a worker really ran: who, how often, from when to when.

This is for the demo only. A real worker, a coding agent or a command, needs nothing of it. The directory comes from
the environment variable DEMO_COUNTERS; without it nothing is recorded and nobody waits.

    NODE.runs   one line for each run: node, attempt, pid, start
    NODE.span   pid, start and end of the latest run as JSON; the end is null while it runs

Times are of the monotonic clock, which all processes of a machine share, so that they can be compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

PATIENCE_S = 30.0  # how long a writer waits for the others, who may have to wait for a free slot
EFFORT_S = 1.0  # how long such a writer then pretends to think, so that the overlap can be seen


@contextlib.contextmanager
def recorded(node: str, together_with: Sequence[str] = ()) -> Iterator[None]:
    """Record the run of ``node``; before the work, wait a while for those in ``together_with`` to have started."""
    if not os.environ.get("DEMO_COUNTERS"):
        yield
        return
    directory = Path(os.environ["DEMO_COUNTERS"])
    directory.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    count(directory, node, start)
    write_span(directory, node, start, None)
    if together_with and not os.environ.get("DEMO_HURRY"):
        meet(directory, together_with)
        time.sleep(EFFORT_S)  # noqa: TID251 - stands for the thinking of an agent
    yield
    write_span(directory, node, start, time.monotonic())


def count(directory: Path, node: str, start: float) -> None:
    """One line in one write, so that even two runs at once cannot tear each other's."""
    line = f"{node} {os.environ.get('FORGE_ATTEMPT', '-')} {os.getpid()} {start:.6f}\n"
    with open(directory / f"{node}.runs", "ab", buffering=0) as file:
        file.write(line.encode())


def write_span(directory: Path, node: str, start: float, end: float | None) -> None:
    """Replace the file as a whole, so that a reader never sees half of it."""
    body = json.dumps({"node": node, "pid": os.getpid(), "start": start, "end": end})
    temporary = directory / f".{node}.{os.getpid()}"
    temporary.write_text(body + "\n")
    temporary.replace(directory / f"{node}.span")


def meet(directory: Path, others: Sequence[str]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not all((directory / f"{other}.span").exists() for other in others) and time.monotonic() < give_up:
        print(f"waiting for {', '.join(others)} to start", flush=True)
        time.sleep(0.1)  # noqa: TID251 - other processes, which know nothing of us
