"""Reviewer: the modernized library offers exactly what the published one did. Changes nothing.

Usage: review_api.py DIRECTORY

Compares names and signatures of every module, class and function in DIRECTORY with the first commit of the history.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

Signatures = dict[str, str]


def main() -> int:
    directory = Path(sys.argv[1])
    root = git("rev-list", "--max-parents=0", "HEAD").strip()
    modules = sorted(git("ls-tree", "-r", "--name-only", root, f"{directory}/").split())
    findings, compared = [], 0
    for name in (module for module in modules if module.endswith(".py")):
        old = signatures(git("show", f"{root}:{name}"))
        new = signatures(Path(name).read_text()) if Path(name).exists() else {}
        compared += len(old)
        findings += [f"{name}: {place}" for place in differences(old, new)]
    for finding in findings:
        print(f"finding: {finding}")
    print(f"{compared} names compared with {root[:7]}, {len(findings)} findings")
    return 1 if findings else 0


def signatures(source: str) -> Signatures:
    """What a module defines, by dotted name: the arguments of a function, the bases of a class."""
    return dict(defined(ast.parse(source), ""))


def defined(parent: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, ast.unparse(node.args)
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name, ", ".join(map(ast.unparse, node.bases))
            yield from defined(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try):
            yield from defined(node, prefix)


def differences(old: Signatures, new: Signatures) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield f"{name}({old.get(name, 'absent')}) became {name}({new.get(name, 'absent')})"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=60).stdout


if __name__ == "__main__":
    raise SystemExit(main())
