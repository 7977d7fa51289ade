"""Verbs of recovery: what keeps an effect from being done is shown to a person, once."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from core.steps import lock_project, raise_attention, resolve_attention
from core.uow import FROM_CLOCK, unit_of_work
from recovery.selectors import STUCK


@unit_of_work(scope=lock_project)
def record_stuck(*, project_id: int, subject: str, error: dict[str, Any], now: datetime = FROM_CLOCK) -> None:
    """Git could not do what an intent asks for. It is tried again and again; a person may be needed."""
    raise_attention(
        key=f"{STUCK}{subject}",
        project_id=project_id,
        subject=subject,
        code=error["code"],
        message=f"git cannot do what {subject} needs: {error['message']}",
        next_action="Mend the repository; it is tried again every second.",
        evidence=error,
        now=now,
    )


@unit_of_work(scope=lock_project)
def record_unstuck(*, project_id: int, subject: str, now: datetime = FROM_CLOCK) -> None:
    """It went well at last."""
    resolve_attention(f"{STUCK}{subject}", now=now)
