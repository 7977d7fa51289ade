"""States and kinds of leases and requests, and their moves. Pure."""

from enum import StrEnum

from core.states import Moves


class ResourceClass(StrEnum):
    LOGICAL = "logical"
    PHYSICAL = "physical"
    INTEGRATION = "integration"


class Access(StrEnum):
    """What a claim does to its resource. An intention stands on a part's ancestor: it meets only who takes the whole."""

    INTENTION_READ = "intention_read"
    INTENTION_WRITE = "intention_write"  # derived from a write further down; never claimed, never stored
    READ = "read"
    WRITE = "write"
    EXCLUSIVE = "exclusive"
    CAPACITY = "capacity"  # some of the resource's units


CLAIMABLE = tuple(access for access in Access if access is not Access.INTENTION_WRITE)


class WorkMode(StrEnum):
    COOPERATIVE = "cooperative"
    COMPETITIVE = "competitive"
    READ_ONLY = "read-only"


class RequestState(StrEnum):
    WAITING = "waiting"
    GRANTED = "granted"
    WITHDRAWN = "withdrawn"
    ENDED = "ended"


class LeaseState(StrEnum):
    ACTIVE = "active"
    EXPIRED = "expired"
    RECOVERY_PENDING = "recovery_pending"
    RELEASED = "released"
    REVOKED = "revoked"
    ORPHANED = "orphaned"


R, L = RequestState, LeaseState

REQUEST_MOVES: Moves = {
    R.WAITING: frozenset({R.GRANTED, R.WITHDRAWN}),
    R.GRANTED: frozenset({R.ENDED}),
    R.WITHDRAWN: frozenset(),
    R.ENDED: frozenset(),
}

LEASE_MOVES: Moves = {
    L.ACTIVE: frozenset({L.RELEASED, L.REVOKED, L.EXPIRED}),
    L.EXPIRED: frozenset(
        {L.ACTIVE, L.RECOVERY_PENDING, L.RELEASED, L.REVOKED}
    ),  # ACTIVE: the same owner was proven alive
    L.RECOVERY_PENDING: frozenset({L.ACTIVE, L.RELEASED, L.REVOKED, L.ORPHANED}),
    L.ORPHANED: frozenset({L.REVOKED}),
    L.RELEASED: frozenset(),
    L.REVOKED: frozenset(),
}

BLOCKING = (L.ACTIVE, L.EXPIRED, L.RECOVERY_PENDING, L.ORPHANED)  # expiry alone frees nothing
WRITABLE = (L.ACTIVE, L.EXPIRED, L.RECOVERY_PENDING)  # fenced writes are accepted in these
