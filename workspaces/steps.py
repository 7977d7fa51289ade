"""Writes on the registry of checkouts inside somebody's transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from core.home import home
from core.transitions import move_all, require_transaction
from workspaces.models import Checkout
from workspaces.states import CHECKOUT_MOVES, CheckoutState


@dataclass(frozen=True)
class CheckoutOrder:
    """A directory somebody needs. branch_ref: full name, empty: detached; base: commit, empty: the target's tip."""

    project_id: int
    owner: str
    branch_ref: str = ""
    base: str = ""


def order_checkouts(orders: Sequence[CheckoutOrder], *, now: datetime) -> list[Checkout]:
    """Record the intents; the effect adds the directories. The path follows from the owner, so a repeat finds the same."""
    require_transaction()
    root = home().checkouts
    checkouts = [
        Checkout(
            state=CheckoutState.ADDING,
            project_id=order.project_id,
            owner=order.owner,
            path=str(root / order.owner.replace(":", "-")),
            branch_ref=order.branch_ref,
            base=order.base,
            created_at=now,
        )
        for order in orders
    ]
    return Checkout.objects.bulk_create(checkouts) if checkouts else []


def order_removal(owners: Collection[str]) -> None:
    """Record the intent to remove checkouts that are no longer needed, made or not; the effect keeps what is not clean."""
    require_transaction()
    there = Checkout.objects.filter(owner__in=owners, state__in=[CheckoutState.READY, CheckoutState.ADDING])
    move_all(list(there), CheckoutState.REMOVING, moves=CHECKOUT_MOVES)
