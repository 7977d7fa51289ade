"""Verbs of jobs: grant and start, record a start."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

from core.uow import FROM_CLOCK, unit_of_work
from jobs import steps
from jobs.models import Attempt
from leases import steps as lease_steps
from workspaces import steps as workspace_steps


@dataclass(frozen=True)
class Pass:
    """What one pass of the broker granted: attempts that start now, and projects with a grant that is no attempt's."""

    attempts: list[Attempt]
    other_projects: frozenset[int] = frozenset()


@unit_of_work(scope=lease_steps.lock_broker)
def grant_and_start(*, limit: int | None = None, now: datetime = FROM_CLOCK) -> Pass:
    """One pass of the broker: grant what may be granted, and let the attempts concerned start.

    Writes:  leases and requests; attempts to starting with fence and deadline; jobs to running; intents to add checkouts
    """
    granted = lease_steps.grant_eligible(now=now, limit=limit)
    if not granted:
        return Pass([])
    attempts = steps.start_granted(granted, now=now, boottime=time.clock_gettime(time.CLOCK_BOOTTIME))
    workspace_steps.order_checkouts(
        [
            workspace_steps.CheckoutOrder(
                project_id=attempt.project_id,
                owner=attempt.subject,
                branch_ref=f"refs/heads/{attempt.job.branch_prefix}/{attempt.pk}" if attempt.job.branch_prefix else "",
                base=attempt.job.base,
            )
            for attempt in attempts
            if attempt.job.own_checkout
        ],
        now=now,
    )
    return Pass(attempts, frozenset(grant.project_id for grant in granted if not grant.holder.startswith("attempt:")))
