"""States of graphs and nodes and their moves. Pure."""

from enum import StrEnum

from core.states import Moves


class ExecutionMode(StrEnum):
    GATED = "gated"
    PROGRAM = "program"


class GraphState(StrEnum):
    ACTIVE = "active"
    COMPLETED = "completed"
    PARTIAL = "partial"
    CANCELLED = "cancelled"


class NodeState(StrEnum):
    PENDING = "pending"  # not dispatched; ready when nothing is unmet (derived)
    QUEUED = "queued"  # its attempt waits for leases
    RUNNING = "running"
    SEALING = "sealing"  # gated: the process ended, its candidate is being sealed
    VALIDATING = "validating"  # gated: in the integration queue
    ACCEPTED = "accepted"  # gated: landed
    REVISING = "revising"  # gated: tried, refused, tried again within the limit
    REVERIFYING = "reverifying"
    SUCCEEDED = "succeeded"  # program
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"  # a newer generation replaced it before it was accepted


G, N = GraphState, NodeState

GRAPH_MOVES: Moves = {
    G.ACTIVE: frozenset({G.COMPLETED, G.PARTIAL, G.CANCELLED}),
    G.PARTIAL: frozenset({G.ACTIVE}),  # a failed node is retried by a person
    G.COMPLETED: frozenset(),
    G.CANCELLED: frozenset(),
}

NODE_MOVES: Moves = {
    N.PENDING: frozenset({N.QUEUED, N.SKIPPED, N.CANCELLED, N.SUPERSEDED}),
    N.QUEUED: frozenset({N.RUNNING, N.PENDING, N.REVISING, N.FAILED, N.CANCELLED, N.SUPERSEDED}),
    N.RUNNING: frozenset({N.SEALING, N.REVISING, N.SUCCEEDED, N.FAILED, N.CANCELLED, N.SUPERSEDED}),
    N.SEALING: frozenset({N.VALIDATING, N.REVISING, N.FAILED, N.CANCELLED, N.SUPERSEDED}),
    N.VALIDATING: frozenset({N.ACCEPTED, N.REVISING, N.FAILED, N.CANCELLED, N.SUPERSEDED}),
    N.REVISING: frozenset({N.QUEUED, N.FAILED, N.CANCELLED, N.SUPERSEDED}),
    N.REVERIFYING: frozenset({N.QUEUED, N.ACCEPTED, N.CANCELLED, N.SUPERSEDED}),
    N.FAILED: frozenset({N.PENDING, N.REVISING}),  # retry by a person
    N.SKIPPED: frozenset({N.PENDING}),
    N.ACCEPTED: frozenset(),
    N.SUCCEEDED: frozenset(),
    N.CANCELLED: frozenset(),
    N.SUPERSEDED: frozenset(),
}

SUCCESS = (N.ACCEPTED, N.SUCCEEDED)
ENDED = (N.ACCEPTED, N.SUCCEEDED, N.FAILED, N.SKIPPED, N.CANCELLED, N.SUPERSEDED)
