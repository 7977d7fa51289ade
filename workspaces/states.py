"""The life of a checkout. Pure."""

from enum import StrEnum

from core.states import Moves


class CheckoutState(StrEnum):
    ADDING = "adding"  # intent: the directory may be half made
    READY = "ready"
    REMOVING = "removing"  # intent
    REMOVED = "removed"
    KEPT = "kept"  # not removable by rule (dirty, other branch, other path); a person decides
    FAILED = "failed"  # could not be made


S = CheckoutState

CHECKOUT_MOVES: Moves = {
    S.ADDING: frozenset({S.READY, S.FAILED, S.REMOVING}),  # REMOVING: whoever wanted it has ended before it was made
    S.READY: frozenset({S.REMOVING, S.KEPT}),
    S.REMOVING: frozenset({S.REMOVED, S.KEPT}),
    S.KEPT: frozenset({S.REMOVING}),
    S.REMOVED: frozenset(),
    S.FAILED: frozenset(),
}
