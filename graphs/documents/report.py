"""Collects what is wrong, and where."""

import json
from collections.abc import Callable, Collection, Iterator
from difflib import get_close_matches
from typing import Any, Final, TypeAlias

from graphs.errors import PROBLEM_LIMIT, DocumentInvalid, Problem

# Where a value stands in the document: a linked list towards the root. Following the document down costs one small
# tuple per value; the text is made only for what turns out wrong.
Path: TypeAlias = "tuple[()] | tuple[Path, str | int]"

ROOT: Final[Path] = ()
SUGGEST_FROM: Final = 500  # difflib compares with each candidate: too slow against 20,000 node keys

Hint = str | Callable[[], str]


def steps(path: Path) -> list[str | int]:
    """The path from the root down."""
    found: list[str | int] = []
    while path:
        path, step = path
        found.append(step)
    return found[::-1]


def shown(path: Path) -> str:
    """``nodes[2].env.NAME``; a name that is no plain word stands in brackets: ``nodes[2].env["a b"]``."""
    text = ""
    for step in steps(path):
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.isidentifier() and step.isascii():
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step)}]"
    return text


def quoted(value: Any) -> str:
    """A short form of any value for a message, printable whatever it holds."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return ascii(value) if len(value) <= 80 else f"{value[:70]!a}... ({len(value)} characters)"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return repr(value)[:80]


def squashed(name: str) -> str:
    """A name without what people get wrong: ``Owned_files`` and ``ownedFiles`` are equal here."""
    return name.replace("_", "").replace("-", "").casefold()


def suggestion(wrong: str, known: Collection[str]) -> str:
    """``did you mean ...``, or nothing when no known name is near."""
    near = [name for name in known if squashed(name) == squashed(wrong)]
    if not near and len(known) <= SUGGEST_FROM:
        near = get_close_matches(wrong, sorted(known), n=1)
    return f"did you mean {quoted(min(near))}?" if near else ""


class Report:
    """Every problem of one document, in the end ordered by path, so that the order of discovery does not show."""

    def __init__(self) -> None:
        self._found: list[tuple[Path, str, str, Hint]] = []
        self._places: set[Path] = set()

    def add(self, code: str, path: Path, message: str, hint: Hint = "") -> None:
        """hint: text, or a function that is called only when the problem is among those listed."""
        self._found.append((path, code, message, hint))
        self._places.add(path)

    def __len__(self) -> int:
        return len(self._found)

    def has_at(self, path: Path) -> bool:
        """Whether something is wrong at exactly this place, so that its absence from the rest proves nothing."""
        return path in self._places

    def problems(self) -> Iterator[Problem]:
        """The first PROBLEM_LIMIT in order."""
        ordered = sorted(self._found, key=lambda found: (_sort_key(found[0]), found[1], found[2]))
        for path, code, message, hint in ordered[:PROBLEM_LIMIT]:
            yield Problem(code, shown(path), message, hint if isinstance(hint, str) else hint())

    def raise_if_any(self) -> None:
        """Raises: DocumentInvalid."""
        if self._found:
            raise DocumentInvalid(tuple(self.problems()), omitted=max(0, len(self._found) - PROBLEM_LIMIT))


def _sort_key(path: Path) -> tuple[tuple[int, int, str], ...]:
    """Indexes by number, names by text, and the two kinds apart: Python does not compare them."""
    return tuple((0, step, "") if isinstance(step, int) else (1, 0, step) for step in steps(path))
