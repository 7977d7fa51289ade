"""What the checks of one commit say together, as a table."""

from __future__ import annotations

from itertools import product

import pytest

from integration.planning import Gate, judge_checks
from integration.states import CLAIMED, ENTRY_ENDED, ENTRY_MOVES, CheckState, EntryState


@pytest.mark.req("IQ-07")
@pytest.mark.parametrize("value", [s for s in CheckState if s is not CheckState.PASSED])
def test_only_an_explicit_success_passes(value: CheckState) -> None:
    gate = judge_checks(["a", "b"], {"a": CheckState.PASSED, "b": value}).gate
    assert gate is (Gate.WAITING if value is CheckState.WAITING else Gate.FAILED)


@pytest.mark.req("IQ-07")
def test_a_missing_name_does_not_pass_and_a_strange_one_does_not_count() -> None:
    assert judge_checks(["a", "b"], {"a": CheckState.PASSED}).gate is Gate.MISSING
    assert judge_checks(["a"], {"A": CheckState.PASSED, "other": CheckState.PASSED}).gate is Gate.MISSING
    assert judge_checks(["a"], {"a": CheckState.PASSED, "other": CheckState.FAILED}).gate is Gate.PASSED
    assert judge_checks([], {}).gate is Gate.PASSED


@pytest.mark.req("IQ-07")
def test_the_whole_table_of_two_names() -> None:
    values: list[CheckState | None] = [None, *CheckState]
    for first, second in product(values, values):
        results = {name: str(value) for name, value in (("a", first), ("b", second)) if value is not None}
        verdict = judge_checks(["a", "b"], results)
        bad = tuple(n for n, v in (("a", first), ("b", second)) if v in (CheckState.FAILED, CheckState.UNKNOWN))
        assert (verdict.gate is Gate.PASSED) == (first == second == CheckState.PASSED)
        assert verdict.failed == bad
        assert (verdict.gate is Gate.FAILED) == bool(bad)


@pytest.mark.req("GC-10", "IQ-06")
def test_an_entry_is_accepted_only_by_way_of_the_recorded_intent_and_the_moved_branch() -> None:
    assert [s for s in EntryState if EntryState.ACCEPTED in ENTRY_MOVES[s]] == [EntryState.MOVED]
    assert [s for s in EntryState if EntryState.MOVED in ENTRY_MOVES[s]] == [EntryState.LANDING]
    assert [s for s in EntryState if EntryState.LANDING in ENTRY_MOVES[s]] == [EntryState.CHECKING]
    assert EntryState.CANCELLED not in ENTRY_MOVES[EntryState.LANDING]
    assert not {*CLAIMED} & {*ENTRY_ENDED}
