"""How each state looks: a word, a tone (which the stylesheet turns into colour) and an icon. Never colour alone. Pure.

The same table draws the pages on the server and, handed to the browser as JSON, patches them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from graphs.states import GraphState, NodeState
from integration.states import CandidateState, CheckState, EntryState
from jobs.states import AttemptState, JobState
from leases.states import LeaseState, RequestState

TONES = ("ok", "land", "active", "warn", "bad", "off", "wait", "idle")  # the order of a progress bar


@dataclass(frozen=True)
class Look:
    word: str
    tone: str
    icon: str


N, J, A, E, K, C, L, R, G = (
    NodeState, JobState, AttemptState, EntryState, CheckState, CandidateState, LeaseState, RequestState, GraphState
)  # fmt: skip

LOOKS: Mapping[type[StrEnum], Mapping[str, Look]] = {
    GraphState: {
        G.ACTIVE: Look("active", "active", "run"),
        G.COMPLETED: Look("completed", "ok", "check"),
        G.PARTIAL: Look("partial", "warn", "alert"),
        G.CANCELLED: Look("cancelled", "off", "stop"),
    },
    NodeState: {
        N.PENDING: Look("pending", "idle", "dot"),
        N.QUEUED: Look("queued", "wait", "clock"),
        N.RUNNING: Look("running", "active", "run"),
        N.SEALING: Look("sealing", "land", "box"),
        N.VALIDATING: Look("in line to land", "land", "queue"),
        N.ACCEPTED: Look("accepted", "ok", "check"),
        N.REVISING: Look("revising", "warn", "redo"),
        N.REVERIFYING: Look("reverifying", "warn", "redo"),
        N.SUCCEEDED: Look("succeeded", "ok", "check"),
        N.FAILED: Look("failed", "bad", "cross"),
        N.SKIPPED: Look("skipped", "off", "skip"),
        N.CANCELLED: Look("cancelled", "off", "stop"),
        N.SUPERSEDED: Look("superseded", "off", "skip"),
    },
    JobState: {
        J.QUEUED: Look("queued", "wait", "clock"),
        J.RUNNING: Look("running", "active", "run"),
        J.SUCCEEDED: Look("succeeded", "ok", "check"),
        J.FAILED: Look("failed", "bad", "cross"),
        J.TIMED_OUT: Look("timed out", "bad", "clock"),
        J.CANCELLED: Look("cancelled", "off", "stop"),
        J.UNKNOWN: Look("unknown", "warn", "alert"),
        J.ORPHANED: Look("orphaned", "warn", "alert"),
        J.STALE: Look("stale", "off", "skip"),
        J.HUMAN_ATTENTION_REQUIRED: Look("needs a person", "warn", "alert"),
    },
    AttemptState: {
        A.WAITING: Look("waiting for leases", "wait", "clock"),
        A.STARTING: Look("starting", "active", "box"),
        A.RUNNING: Look("running", "active", "run"),
        A.STOPPING: Look("stopping", "warn", "stop"),
        A.SUCCEEDED: Look("succeeded", "ok", "check"),
        A.FAILED: Look("failed", "bad", "cross"),
        A.TIMED_OUT: Look("timed out", "bad", "clock"),
        A.CANCELLED: Look("cancelled", "off", "stop"),
        A.LOST: Look("lost", "bad", "alert"),
    },
    EntryState: {
        E.QUEUED: Look("in line", "wait", "queue"),
        E.REFRESHING: Look("refreshing", "land", "redo"),
        E.CHECKING: Look("checking", "active", "run"),
        E.LANDING: Look("landing", "land", "box"),
        E.MOVED: Look("landed", "ok", "check"),
        E.ACCEPTED: Look("accepted", "ok", "check"),
        E.REJECTED: Look("rejected", "bad", "cross"),
        E.STALE: Look("stale", "off", "skip"),
        E.CANCELLED: Look("cancelled", "off", "stop"),
    },
    CheckState: {
        K.WAITING: Look("waiting", "wait", "clock"),
        K.PASSED: Look("passed", "ok", "check"),
        K.FAILED: Look("failed", "bad", "cross"),
        K.UNKNOWN: Look("unknown", "warn", "alert"),
    },
    CandidateState: {
        C.SEALING: Look("sealing", "land", "box"),
        C.SEALED: Look("sealed", "ok", "box"),
        C.REFUSED: Look("refused", "bad", "cross"),
    },
    LeaseState: {
        L.ACTIVE: Look("active", "active", "check"),
        L.EXPIRED: Look("expired, still blocks", "warn", "clock"),
        L.RECOVERY_PENDING: Look("being recovered", "warn", "redo"),
        L.RELEASED: Look("released", "off", "dot"),
        L.REVOKED: Look("revoked", "off", "stop"),
        L.ORPHANED: Look("orphaned", "bad", "alert"),
    },
    RequestState: {
        R.WAITING: Look("waiting", "wait", "clock"),
        R.GRANTED: Look("granted", "active", "check"),
        R.WITHDRAWN: Look("withdrawn", "off", "skip"),
        R.ENDED: Look("ended", "off", "dot"),
    },
}

_KINDS = {
    "graph": GraphState, "node": NodeState, "job": JobState, "attempt": AttemptState, "entry": EntryState,
    "check": CheckState, "candidate": CandidateState, "lease": LeaseState, "request": RequestState,
}  # fmt: skip


def look(kind: str, state: str) -> Look:
    """A state this release does not know (a newer one wrote it) is shown by its own name."""
    return LOOKS[_KINDS[kind]].get(state) or Look(state.replace("_", " "), "idle", "dot")


def for_browser() -> dict[str, Any]:
    """What a live patch needs: the looks of nodes."""
    return {state: asdict(its_look) for state, its_look in LOOKS[NodeState].items()}
