"""Verbs of jobs."""

from __future__ import annotations

from datetime import datetime

from core import journal
from core.selectors import COORDINATOR
from core.uow import FROM_CLOCK, unit_of_work
from jobs import steps
from leases import steps as lease_steps


@unit_of_work(scope=lease_steps.lock_broker)
def grant_and_start(*, now: datetime = FROM_CLOCK) -> steps.Pass:
    """One pass of the broker by itself; where a project advances in the same turn, its transaction carries the pass along."""
    journal.act_as(COORDINATOR)
    return steps.grant_and_start(now=now)
