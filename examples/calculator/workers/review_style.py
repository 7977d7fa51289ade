"""Reviewer: documentation and style, as facts that a program can check. Changes nothing.

Every module and public function has a docstring, every argument and return value a type; lines are short and end
without blanks; the README explains every operation.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from presence import recorded

LINE_LIMIT = 100


def main() -> int:
    with recorded("review-style"):
        paths = sorted([*Path("calculator").glob("*.py"), *Path("tests").glob("test_*.py")])
        findings = [finding for path in paths for finding in review(path)]
        findings += review_readme()
        for finding in findings:
            print(f"finding: {finding}", flush=True)
        print(f"{len(paths)} files reviewed, {len(findings)} findings", flush=True)
    return 1 if findings else 0


def review(path: Path) -> Iterator[str]:
    text = path.read_text()
    tree = ast.parse(text)
    if not ast.get_docstring(tree):
        yield f"{path}: the module has no docstring"
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > LINE_LIMIT:
            yield f"{path}:{number}: longer than {LINE_LIMIT} characters"
        if line != line.rstrip() or "\t" in line:
            yield f"{path}:{number}: blanks at the end, or a tab"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield from review_function(path, node)


def review_function(path: Path, node: ast.FunctionDef) -> Iterator[str]:
    place = f"{path}:{node.lineno}: {node.name}"
    if not node.name.startswith(("_", "test_")) and not ast.get_docstring(node):
        yield f"{place} has no docstring"
    if node.returns is None:
        yield f"{place} does not say what it returns"
    for argument in node.args.args:
        if argument.annotation is None and argument.arg != "self":
            yield f"{place} does not say what {argument.arg} is"


def review_readme() -> Iterator[str]:
    readme = Path("README.md").read_text()
    for name in exported_names():
        if f"`{name}`" not in readme:
            yield f"README.md: the operation {name} is not explained"


def exported_names() -> list[str]:
    """What ``__all__`` of the package says; it is read, not imported."""
    for node in ast.parse(Path("calculator", "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


if __name__ == "__main__":
    raise SystemExit(main())
