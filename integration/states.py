"""Candidates, queue entries and check results: states and moves. Pure."""

from enum import StrEnum

from core.states import Moves


class CandidateState(StrEnum):
    SEALING = "sealing"  # intent
    SEALED = "sealed"  # pinned
    REFUSED = "refused"  # outside its scope, empty, or not replayable history


class EntryState(StrEnum):
    QUEUED = "queued"
    REFRESHING = "refreshing"  # claimed; intent to replay onto the tip where that has moved
    CHECKING = "checking"
    LANDING = "landing"  # intent; the ref may have moved
    MOVED = "moved"  # the branch has it, with proof
    ACCEPTED = "accepted"  # settled by its owner
    REJECTED = "rejected"
    STALE = "stale"
    CANCELLED = "cancelled"


class CheckState(StrEnum):
    WAITING = "waiting"
    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


C, E, K = CandidateState, EntryState, CheckState

CANDIDATE_MOVES: Moves = {
    C.SEALING: frozenset({C.SEALED, C.REFUSED}),
    C.SEALED: frozenset(),
    C.REFUSED: frozenset(),
}

ENTRY_MOVES: Moves = {
    E.QUEUED: frozenset({E.REFRESHING, E.STALE, E.REJECTED, E.CANCELLED}),
    E.REFRESHING: frozenset({E.CHECKING, E.QUEUED, E.STALE, E.REJECTED, E.CANCELLED}),
    E.CHECKING: frozenset({E.LANDING, E.QUEUED, E.STALE, E.REJECTED, E.CANCELLED}),
    E.LANDING: frozenset(
        {E.MOVED, E.QUEUED, E.STALE, E.REJECTED}
    ),  # never cancelled: what is recorded is completed first
    E.MOVED: frozenset({E.ACCEPTED}),
    E.ACCEPTED: frozenset(),
    E.REJECTED: frozenset(),
    E.STALE: frozenset(),
    E.CANCELLED: frozenset(),
}

CHECK_MOVES: Moves = {
    K.WAITING: frozenset({K.PASSED, K.FAILED, K.UNKNOWN}),
    K.PASSED: frozenset(),
    K.FAILED: frozenset(),
    K.UNKNOWN: frozenset(),
}

CLAIMED = (E.REFRESHING, E.CHECKING, E.LANDING)
ENTRY_ENDED = (E.MOVED, E.REJECTED, E.STALE, E.CANCELLED)  # by the queue; the owner settles them
