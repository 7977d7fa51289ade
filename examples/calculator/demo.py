"""THE demo (`make demo`): three writers at once, an integrator, two reviewers, all landed on main and proven.

Everything happens in .demo/calculator (or DEMO_DIR/calculator), through the `forge` console.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.calculator.make_repository import make_repository
from examples.common import Demo, fill_in, fresh_directory, main

HERE = Path(__file__).resolve().parent
TESTS = ("python3", "-m", "unittest", "discover", "-s", "tests", "-t", ".")
WRITERS = ("add", "multiply", "power")
NODES = (*WRITERS, "integrate", "review-style", "review-product")


def prepare(directory: Path, *, database_url: str = "") -> Demo:
    """A fresh repository, a fresh Forge that knows it, and the graph; nothing runs yet."""
    directory = fresh_directory(directory)
    repository, counters = directory / "repository", directory / "counters"
    demo = Demo(
        directory=directory,
        repository=repository,
        document=fill_in(HERE / "graph.yaml", directory / "graph.yaml", DEMO_COUNTERS=counters),
        graph="calculator",
        project="calculator",
        base=make_repository(repository),
        landings=len(WRITERS) + 1,  # the integrator; reviewers land nothing
        tests=TESTS,
        counters=counters,
        once=NODES,
        together=WRITERS,
        database_url=database_url,
    )
    demo.install({"unit": TESTS})
    return demo


if __name__ == "__main__":
    raise SystemExit(main("three writers, an integrator and two reviewers", "calculator", prepare))
