"""How an attempt ended and what that means for its job: values in, values out.

An exit code of 0 without a receipt proves nothing; a receipt without an exit code proves no success.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jobs.states import AttemptState, Cause, JobState, RetryClass

A, J = AttemptState, JobState


@dataclass(frozen=True)
class Ended:
    """What was observed of one attempt's end.

    cause:     why, as its supervisor recorded it, or what was found instead of a receipt
    exit_code: of the command; negative: the signal that ended it; None: it gave none
    survivors: processes of its tree that could not be ended: [{pid, start_ticks, command}]
    evidence:  the receipt, or what was looked at
    identity:  pid, start_ticks, boot_id, shim_pid and started_at, from the started receipt
    at:        when it ended, by its supervisor's clock; None: when we looked
    """

    attempt_id: int
    cause: Cause
    exit_code: int | None = None
    survivors: tuple[dict[str, Any], ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)
    at: datetime | None = None


@dataclass(frozen=True)
class Verdict:
    attempt: AttemptState
    job: JobState  # QUEUED: another attempt
    cause: Cause


NOT_RUN = (Cause.NEVER_STARTED, Cause.NOT_PREPARED)
LOST_CAUSES = (Cause.HOST_RESTARTED, Cause.CONTROLLER_LOST)


def judge(ended: Ended, *, stop_reason: str, retry_class: RetryClass, attempts_made: int, budget: int) -> Verdict:
    """Classify one end.

    stop_reason:   the recorded intent to end it (cancelled, deadline), or ''
    attempts_made: this one included
    """
    attempt, cause = _attempt_outcome(ended, stop_reason)
    if attempt is A.SUCCEEDED:
        return Verdict(attempt, J.SUCCEEDED, cause)
    if attempt is A.CANCELLED:
        return Verdict(attempt, J.CANCELLED, cause)
    if attempt is A.TIMED_OUT:
        return Verdict(attempt, J.TIMED_OUT, cause)
    may_repeat = attempts_made < budget
    if attempt is A.LOST:
        if retry_class in (RetryClass.IDEMPOTENT, RetryClass.REQUEST_IDENTITY, RetryClass.REPLAY_UNFINISHED):
            return Verdict(attempt, J.QUEUED if may_repeat else J.FAILED, cause)
        return Verdict(
            attempt,
            J.ORPHANED if retry_class is RetryClass.REQUIRES_RECONCILIATION else J.HUMAN_ATTENTION_REQUIRED,
            cause,
        )
    if cause is Cause.NOT_PREPARED and may_repeat:  # nothing has run
        return Verdict(attempt, J.QUEUED, cause)
    if retry_class is RetryClass.IDEMPOTENT and may_repeat and cause is not Cause.LAUNCH_ERROR:
        return Verdict(attempt, J.QUEUED, cause)
    return Verdict(attempt, J.FAILED, cause)


def _attempt_outcome(ended: Ended, stop_reason: str) -> tuple[AttemptState, Cause]:
    if ended.cause is Cause.EXITED and ended.exit_code == 0 and not ended.survivors:
        return A.SUCCEEDED, Cause.EXITED  # the true outcome, also when it was being cancelled
    if ended.cause is Cause.DEADLINE or (ended.cause in NOT_RUN and stop_reason == Cause.DEADLINE):
        return A.TIMED_OUT, Cause.DEADLINE
    if ended.cause is Cause.CANCELLED or stop_reason == Cause.CANCELLED:
        return A.CANCELLED, Cause.CANCELLED
    if ended.cause in LOST_CAUSES:
        return A.LOST, ended.cause
    if ended.cause is Cause.EXITED and ended.exit_code is not None and ended.exit_code < 0:
        return A.FAILED, Cause.CRASHED
    return A.FAILED, ended.cause
