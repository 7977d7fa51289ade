"""Integrator: makes every operation it finds available in the package, on the command line and in the README.

It works from what the writers landed, not from a list of its own: an operation is a module of the package with one
public function of two arguments.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

from presence import recorded

PACKAGE = Path("calculator")

TEST = '''"""The operations as a user reaches them: from the package and on the command line."""

import unittest

import calculator
from tests.test_cli import run


class Operations(unittest.TestCase):
    def test_each_is_exported(self) -> None:
        self.assertEqual(calculator.__all__, [{names}])

    def test_each_works_on_the_command_line(self) -> None:
        for name in calculator.__all__:
            with self.subTest(operation=name):
                expected = getattr(calculator, name)(2.0, 5.0)

                self.assertEqual(run(name, "2", "5"), (0, f"{{expected:g}}\\n"))
'''


class Operation(NamedTuple):
    name: str
    module: str
    promise: str


def main() -> int:
    with recorded("integrate"):
        operations = find_operations()
        if not operations:
            raise SystemExit("there is no operation to integrate")
        names = ", ".join(f'"{operation.name}"' for operation in operations)
        imports = [f"from calculator.{operation.module} import {operation.name}" for operation in operations]
        fill(PACKAGE / "__init__.py", "# operations", [*imports, "", f"__all__ = [{names}]"])
        fill(PACKAGE / "cli.py", "# operations", imports)
        fill(PACKAGE / "cli.py", "# table", [f'"{operation.name}": {operation.name},' for operation in operations])
        fill(Path("README.md"), "<!-- operations", [f"- `{one.name}`: {one.promise}" for one in operations])
        Path("tests", "test_operations.py").write_text(TEST.format(names=names))
        print(f"integrated {names}", flush=True)
    return 0


def find_operations() -> list[Operation]:
    """By name. Modules are read, not imported."""
    found = []
    for path in sorted(PACKAGE.glob("*.py")):
        functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        public = [function for function in functions if not function.name.startswith("_")]
        if len(public) == 1 and len(public[0].args.args) == 2:
            promise = (ast.get_docstring(public[0]) or "").partition("\n")[0]
            found.append(Operation(public[0].name, path.stem, promise))
    return sorted(found)


def fill(path: Path, marker: str, lines: list[str]) -> None:
    """Put ``lines`` between the lines `MARKER: begin` and `MARKER: end`, indented like these."""
    old = path.read_text().splitlines()
    begin = next(index for index, line in enumerate(old) if line.lstrip().startswith(f"{marker}: begin"))
    end = next(index for index, line in enumerate(old) if line.lstrip().startswith(f"{marker}: end"))
    indent = old[begin][: len(old[begin]) - len(old[begin].lstrip())]
    path.write_text("\n".join([*old[: begin + 1], *(indent + line if line else "" for line in lines), *old[end:], ""]))
    print(f"filled in {marker.lstrip('<!-# ')} of {path}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
