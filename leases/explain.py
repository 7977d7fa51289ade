"""Why a request waits, in one sentence and in facts. Renders what the broker recorded; decides nothing."""

from __future__ import annotations

from typing import Any, TypedDict

from leases import selectors
from leases.models import Request
from leases.selectors import Holder, Shortage, Waiting
from leases.states import RequestState


class Explanation(TypedDict):
    """sentence: for a person; facts: the same for a program, JSON-compatible."""

    sentence: str
    facts: dict[str, Any]


def explain(request: Request) -> Explanation:
    """What stops a request, since when, its place, and what would free it."""
    return render(selectors.waiting(request))


def render(waiting: Waiting) -> Explanation:
    """Pure."""
    facts: dict[str, Any] = {
        "request": waiting.request_id,
        "holder": waiting.holder,
        "state": waiting.state,
        "since": waiting.since.isoformat() if waiting.since else None,
        "place": waiting.place,
    }
    if waiting.state != RequestState.WAITING:
        return {
            "sentence": f"{waiting.holder} does not wait: its request is {waiting.state}",
            "facts": facts | {"reason": waiting.state},
        }
    if waiting.suspended:
        return {
            "sentence": f"{waiting.holder} is suspended; it keeps its place and goes on when it is resumed",
            "facts": facts | {"reason": "suspended"},
        }
    if not waiting.planned:
        return {
            "sentence": f"{waiting.holder} is looked at in the next pass of the broker",
            "facts": facts | {"reason": "next_pass"},
        }
    if waiting.stopper:
        return {"sentence": _stopped(waiting, waiting.stopper), "facts": facts | _stopper_facts(waiting.stopper)}
    if waiting.shortage:
        return {"sentence": _short(waiting, waiting.shortage), "facts": facts | _shortage_facts(waiting.shortage)}
    return {"sentence": f"{waiting.holder} waits", "facts": facts | {"reason": "unknown"}}


def _stopped(waiting: Waiting, by: Holder) -> str:
    on = f" on {by.resource}" if by.resource else ""
    if by.is_grant:
        unsure = "" if by.lease_states in ((), ("active",)) else f" ({', '.join(by.lease_states)})"
        return (
            f"{waiting.holder} waits for {by.holder} of {by.project}, which holds a lease{on}{unsure}"
            f" since {by.since:%Y-%m-%d %H:%M:%S} UTC; its release frees it"
        )
    return (
        f"{waiting.holder} is number {waiting.place} in line{on}, behind {by.holder} of {by.project},"
        f" which waits since {by.since:%Y-%m-%d %H:%M:%S} UTC and goes first"
    )


def _stopper_facts(by: Holder) -> dict[str, Any]:
    return {
        "reason": "lease" if by.is_grant else "older_request",
        "stopped_by": by.holder,
        "stopped_by_project": by.project,
        "stopped_by_since": by.since.isoformat(),
        "resource": by.resource,
        "lease_states": list(by.lease_states),
    }


def _short(waiting: Waiting, of: Shortage) -> str:
    counts = f"{of.in_use} of {of.capacity} in use, {of.wants} wanted"
    if of.wants > of.capacity:
        return (
            f"{waiting.holder} asks for more of {of.resource} than there is ({counts}); only a greater capacity helps"
        )
    kept = "; what is free is kept for a larger request" if of.kept_for_others else ""
    return f"{waiting.holder} is number {waiting.place} of its project in line for {of.resource} ({counts}{kept})"


def _shortage_facts(of: Shortage) -> dict[str, Any]:
    return {
        "reason": "capacity",
        "resource": of.resource,
        "wants": of.wants,
        "capacity": of.capacity,
        "in_use": of.in_use,
        "kept_for_others": of.kept_for_others,
    }
