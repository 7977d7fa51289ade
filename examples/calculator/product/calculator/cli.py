"""The command line: ``calculator OPERATION LEFT RIGHT``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

# operations: begin
# operations: end

OPERATIONS: dict[str, Callable[[float, float], float]] = {
    # table: begin
    # table: end
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the result of one operation; the exit code."""
    parser = argparse.ArgumentParser(prog="calculator", description=__doc__)
    parser.add_argument("operation", metavar="operation", choices=sorted(OPERATIONS))
    parser.add_argument("left", type=float)
    parser.add_argument("right", type=float)
    given = parser.parse_args(arguments)
    result = OPERATIONS[given.operation](given.left, given.right)
    print(f"{result:g}")
    return 0
