"""How an end is classified, as a table: cause, exit code, what was asked of it, retry class and budget."""

from __future__ import annotations

from itertools import product

import pytest

from jobs.planning import LOST_CAUSES, Ended, judge
from jobs.states import ATTEMPT_ENDED, ATTEMPT_MOVES, JOB_MOVES, AttemptState, Cause, JobState, RetryClass

A, J, R = AttemptState, JobState, RetryClass


def verdict(
    cause: Cause,
    exit_code: int | None = None,
    *,
    stop: str = "",
    retry: RetryClass = R.REQUIRES_RECONCILIATION,
    made: int = 1,
    budget: int = 3,
    survivors: bool = False,
) -> tuple[AttemptState, JobState, Cause]:
    ended = Ended(1, cause, exit_code, survivors=({"pid": 1},) if survivors else ())
    found = judge(ended, stop_reason=stop, retry_class=retry, attempts_made=made, budget=budget)
    return found.attempt, found.job, found.cause


@pytest.mark.req("PS-09", "PX-19")
@pytest.mark.parametrize(
    ("cause", "code", "attempt", "recorded"),
    [
        (Cause.EXITED, 0, A.SUCCEEDED, Cause.EXITED),
        (Cause.EXITED, 1, A.FAILED, Cause.EXITED),
        (Cause.EXITED, -9, A.FAILED, Cause.CRASHED),
        (Cause.CRASHED, -11, A.FAILED, Cause.CRASHED),
        (Cause.LAUNCH_ERROR, None, A.FAILED, Cause.LAUNCH_ERROR),
        (Cause.RESOURCE_EXHAUSTED, None, A.FAILED, Cause.RESOURCE_EXHAUSTED),
        (Cause.DEADLINE, None, A.TIMED_OUT, Cause.DEADLINE),
        (Cause.CANCELLED, None, A.CANCELLED, Cause.CANCELLED),
        (Cause.HOST_RESTARTED, None, A.LOST, Cause.HOST_RESTARTED),
        (Cause.CONTROLLER_LOST, None, A.LOST, Cause.CONTROLLER_LOST),
        (Cause.NOT_PREPARED, None, A.FAILED, Cause.NOT_PREPARED),
    ],
)
def test_each_cause_has_its_own_end(cause: Cause, code: int | None, attempt: AttemptState, recorded: Cause) -> None:
    found = verdict(cause, code, made=3)
    assert (found[0], found[2]) == (attempt, recorded)


@pytest.mark.req("GC-11", "PS-08")
@pytest.mark.parametrize(
    ("cause", "code", "stop"), list(product(Cause, [None, 0, 1, -9], ["", "cancelled", "deadline"]))
)
def test_success_takes_an_exit_code_of_0_from_a_receipt_and_an_empty_tree(
    cause: Cause, code: int | None, stop: str
) -> None:
    is_proven = cause is Cause.EXITED and code == 0
    for retry in R:
        found = verdict(cause, code, stop=stop, retry=retry)
        assert (found[0] is A.SUCCEEDED) == (found[1] is J.SUCCEEDED) == is_proven
        assert verdict(cause, code, stop=stop, retry=retry, survivors=True)[0] is not A.SUCCEEDED


@pytest.mark.req("JB-26")
def test_what_was_cancelled_keeps_its_true_outcome_only_when_that_is_success() -> None:
    assert verdict(Cause.EXITED, 0, stop="cancelled")[:2] == (A.SUCCEEDED, J.SUCCEEDED)
    assert verdict(Cause.EXITED, 1, stop="cancelled")[:2] == (A.CANCELLED, J.CANCELLED)
    assert verdict(Cause.CONTROLLER_LOST, stop="cancelled")[:2] == (A.CANCELLED, J.CANCELLED)
    assert verdict(Cause.NEVER_STARTED, stop="deadline")[:2] == (A.TIMED_OUT, J.TIMED_OUT)


@pytest.mark.req("JB-12", "JB-22")
@pytest.mark.parametrize(
    ("retry", "within", "used_up"),
    [
        (R.IDEMPOTENT, J.QUEUED, J.FAILED),
        (R.REQUEST_IDENTITY, J.QUEUED, J.FAILED),
        (R.REPLAY_UNFINISHED, J.QUEUED, J.FAILED),
        (R.REQUIRES_RECONCILIATION, J.ORPHANED, J.ORPHANED),
        (R.NON_REPEATABLE, J.HUMAN_ATTENTION_REQUIRED, J.HUMAN_ATTENTION_REQUIRED),
    ],
)
@pytest.mark.parametrize("cause", LOST_CAUSES)
def test_a_lost_attempt_is_repeated_only_where_the_retry_class_says_so(
    cause: Cause, retry: RetryClass, within: JobState, used_up: JobState
) -> None:
    assert verdict(cause, retry=retry, made=2)[1] is within
    assert verdict(cause, retry=retry, made=3)[1] is used_up


@pytest.mark.req("JB-22")
def test_a_failure_is_repeated_only_where_it_is_naturally_harmless() -> None:
    for retry in R:
        repeated = retry is R.IDEMPOTENT
        assert (verdict(Cause.EXITED, 1, retry=retry)[1] is J.QUEUED) == repeated
        assert verdict(Cause.EXITED, 1, retry=retry, made=3)[1] is J.FAILED
        assert verdict(Cause.LAUNCH_ERROR, retry=retry)[1] is J.FAILED
        assert verdict(Cause.DEADLINE, retry=retry)[1] is J.TIMED_OUT


def test_what_never_ran_is_repeated_in_every_class() -> None:
    for retry in R:
        assert verdict(Cause.NOT_PREPARED, retry=retry)[1] is J.QUEUED
        assert verdict(Cause.NOT_PREPARED, retry=retry, made=3)[1] is J.FAILED
        assert verdict(Cause.NOT_PREPARED, retry=retry, stop="cancelled")[1] is J.CANCELLED


def test_every_verdict_is_an_allowed_move() -> None:
    """From any state in which an attempt can end, and with its job running."""
    for cause, code, stop, retry, made in product(Cause, [None, 0, 1, -9], ["", "cancelled", "deadline"], R, [1, 3]):
        attempt, job, _ = verdict(cause, code, stop=stop, retry=retry, made=made)
        assert attempt in ATTEMPT_ENDED
        assert job in JOB_MOVES[J.RUNNING]
        for origin in (A.STARTING, A.RUNNING, A.STOPPING):
            assert attempt in ATTEMPT_MOVES[origin]
