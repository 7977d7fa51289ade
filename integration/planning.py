"""Decisions of the queue: values in, values out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from integration.states import CheckState


class Gate(StrEnum):
    """What the checks of one offered commit say together."""

    MISSING = "missing"  # some have not been asked for yet
    WAITING = "waiting"
    PASSED = "passed"
    FAILED = "failed"


@dataclass(frozen=True)
class Verdict:
    gate: Gate
    failed: tuple[str, ...] = ()


def judge_checks(required: Sequence[str], results: Mapping[str, str]) -> Verdict:
    """Only an explicit success of every required name at this very commit passes.

    required: names; none required passes
    results:  state by name, of checks made on the offered commit; a name that is absent was not asked for
    """
    failed = tuple(name for name in required if results.get(name) in (CheckState.FAILED, CheckState.UNKNOWN))
    if failed:
        return Verdict(Gate.FAILED, failed)
    if any(name not in results for name in required):
        return Verdict(Gate.MISSING)
    if all(results[name] == CheckState.PASSED for name in required):
        return Verdict(Gate.PASSED)
    return Verdict(Gate.WAITING)
