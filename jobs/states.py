"""States of jobs and attempts, causes of an end, retry classes, and the allowed moves. Pure."""

from enum import StrEnum

from core.states import Moves


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    ORPHANED = "orphaned"
    STALE = "stale"
    HUMAN_ATTENTION_REQUIRED = "human_attention_required"


class AttemptState(StrEnum):
    WAITING = "waiting"  # for its leases
    STARTING = "starting"  # granted; its checkout and process are being made
    RUNNING = "running"
    STOPPING = "stopping"  # the intent to end it is recorded, its tree may still live
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"  # its supervisor is gone without a receipt


class Cause(StrEnum):
    """Why a worker ended."""

    EXITED = "exited"
    LAUNCH_ERROR = "launch_error"
    CRASHED = "crashed"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    HOST_RESTARTED = "host_restarted"
    CONTROLLER_LOST = "controller_lost"
    NEVER_STARTED = "never_started"
    NOT_PREPARED = "not_prepared"  # its checkout could not be made


class RetryClass(StrEnum):
    IDEMPOTENT = "idempotent"
    REQUEST_IDENTITY = "request-identity"
    REPLAY_UNFINISHED = "replay-unfinished"
    REQUIRES_RECONCILIATION = "requires-reconciliation"
    NON_REPEATABLE = "non-repeatable"


J, A = JobState, AttemptState

JOB_MOVES: Moves = {
    J.QUEUED: frozenset({J.RUNNING, J.CANCELLED, J.FAILED, J.STALE}),
    J.RUNNING: frozenset(
        {
            J.QUEUED,
            J.SUCCEEDED,
            J.FAILED,
            J.TIMED_OUT,
            J.CANCELLED,
            J.UNKNOWN,
            J.ORPHANED,
            J.STALE,
            J.HUMAN_ATTENTION_REQUIRED,
        }
    ),
    J.UNKNOWN: frozenset({J.QUEUED, J.SUCCEEDED, J.FAILED, J.CANCELLED, J.ORPHANED}),
    J.ORPHANED: frozenset({J.QUEUED, J.SUCCEEDED, J.FAILED, J.CANCELLED}),
    J.HUMAN_ATTENTION_REQUIRED: frozenset({J.QUEUED, J.SUCCEEDED, J.FAILED, J.CANCELLED}),
    J.SUCCEEDED: frozenset(),
    J.FAILED: frozenset(),
    J.TIMED_OUT: frozenset(),
    J.CANCELLED: frozenset(),
    J.STALE: frozenset(),
}

ATTEMPT_MOVES: Moves = {
    A.WAITING: frozenset({A.STARTING, A.CANCELLED}),
    A.STARTING: frozenset({A.RUNNING, A.STOPPING, A.SUCCEEDED, A.FAILED, A.TIMED_OUT, A.CANCELLED, A.LOST}),
    A.RUNNING: frozenset({A.STOPPING, A.SUCCEEDED, A.FAILED, A.TIMED_OUT, A.CANCELLED, A.LOST}),
    A.STOPPING: frozenset({A.SUCCEEDED, A.FAILED, A.TIMED_OUT, A.CANCELLED, A.LOST}),
    A.SUCCEEDED: frozenset(),
    A.FAILED: frozenset(),
    A.TIMED_OUT: frozenset(),
    A.CANCELLED: frozenset(),
    A.LOST: frozenset(),
}

ATTEMPT_ENDED = (A.SUCCEEDED, A.FAILED, A.TIMED_OUT, A.CANCELLED, A.LOST)
ATTEMPT_ON_HOST = (A.STARTING, A.RUNNING, A.STOPPING)
JOB_ENDED = tuple(state for state in J if state not in (J.QUEUED, J.RUNNING))
