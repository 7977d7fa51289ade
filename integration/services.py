"""Verbs that store what git effects found: the receipt half of intent, effect, receipt.

Each finds its row by the intent it belongs to and changes nothing when that is no longer there: an effect may be done twice
after a crash, and its row may have been cancelled meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from core import journal
from core.steps import lock_project, raise_attention, resolve_attention
from core.transitions import move
from core.uow import FROM_CLOCK, unit_of_work, wake_scheduler
from integration import steps
from integration.models import Candidate, Entry
from integration.states import CANDIDATE_MOVES, ENTRY_MOVES, CandidateState, EntryState
from leases import steps as lease_steps

HELD_RETRY = timedelta(seconds=3)  # how soon an entry that a person holds up is looked at again
PUSH_RETRY = timedelta(seconds=30)
PUSH_QUESTIONS = {  # outcome of a push: what a person can do
    "rejected": "Bring the remote branch and the target together; the next landing is pushed again.",
    "unreachable": "See why the remote does not answer; it is tried again by itself.",
}
_HELP = {
    "branch_unknown": "Create the target branch again; the queue goes on by itself.",
    "git_failed": "Read git's own words and mend the repository; the queue goes on by itself.",
}


@unit_of_work(scope=lock_project)
def record_sealed(
    *, project_id: int, candidate_id: int, commit: str, tree: str, changes: list[list[str]], now: datetime = FROM_CLOCK
) -> None:
    """The candidate is pinned under its Forge ref."""
    candidate = Candidate.objects.get(pk=candidate_id)
    if candidate.state != CandidateState.SEALING:
        return
    move(
        candidate,
        CandidateState.SEALED,
        moves=CANDIDATE_MOVES,
        data={"owner": candidate.owner, "commit": commit},
        commit=commit,
        tree=tree,
        changes=changes,
    )
    wake_scheduler()


@unit_of_work(scope=lock_project)
def record_refused(*, project_id: int, candidate_id: int, refusal: dict[str, Any]) -> None:
    """What the attempt left behind cannot be a candidate; ``refusal`` has code, message and facts."""
    candidate = Candidate.objects.get(pk=candidate_id)
    if candidate.state == CandidateState.SEALING:
        steps.refuse(candidate, refusal)
        wake_scheduler()


@dataclass(frozen=True)
class Refreshed:
    """What the refresh offers: the candidate as it is, or its replay onto the tip."""

    base: str
    offered: str
    tree: str
    replayed: bool


@unit_of_work(scope=lock_project)
def record_refreshed(*, project_id: int, entry_id: int, refreshed: Refreshed) -> None:
    """The claimed entry stands on the tip: its checks are due."""
    entry = Entry.objects.get(pk=entry_id)
    if entry.state != EntryState.REFRESHING:
        return
    move(
        entry,
        EntryState.CHECKING,
        moves=ENTRY_MOVES,
        data={"owner": entry.owner, "offered": refreshed.offered, "base": refreshed.base},
        base=refreshed.base,
        offered=refreshed.offered,
        offered_tree=refreshed.tree,
        refreshed=entry.refreshed + int(refreshed.replayed),
        hold={},
        not_before=None,
    )
    wake_scheduler()


@unit_of_work(scope=lock_project)
def record_ended(
    *, project_id: int, entry_id: int, to: EntryState, receipt: dict[str, Any], now: datetime = FROM_CLOCK
) -> None:
    """The entry cannot land: rejected (conflict, failed proof) or stale."""
    lease_steps.lock_broker()
    steps.finish(Entry.objects.get(pk=entry_id), to, receipt, now=now)
    wake_scheduler()


@unit_of_work(scope=lock_project)
def record_held(*, project_id: int, entry_id: int, hold: dict[str, Any], now: datetime = FROM_CLOCK) -> None:
    """It is this entry's turn, but a person must act first (a checkout that is dirty where the landing would write)."""
    lease_steps.lock_broker()
    entry = Entry.objects.get(pk=entry_id)
    if entry.state not in (EntryState.REFRESHING, EntryState.LANDING):
        return
    first = not entry.hold
    move(entry, EntryState.QUEUED, moves=ENTRY_MOVES, why=hold["code"], hold=hold, not_before=now + HELD_RETRY)
    steps.release_workspace(entry, now=now)
    if first:
        raise_attention(
            key=f"held:{entry.pk}",
            project_id=project_id,
            subject=entry.subject,
            code=hold["code"],
            message=hold["message"],
            next_action=_HELP.get(
                hold["code"], "Commit, stash or revert the named files; the queue goes on by itself."
            ),
            evidence=hold,
            now=now,
        )


@unit_of_work(scope=lock_project)
def record_proof(*, project_id: int, entry_id: int, proof: dict[str, Any]) -> bool:
    """Store the landing proof before the ref moves. Returns whether the intent still stands."""
    entry = Entry.objects.get(pk=entry_id)
    if entry.state != EntryState.LANDING:
        return False
    entry.proof = proof
    entry.save(update_fields=["proof"])
    journal.record(
        "entry.proven", subject=entry.subject, project_id=project_id, owner=entry.owner, offered=entry.offered
    )
    return True


@unit_of_work(scope=lock_project)
def record_landed(*, project_id: int, entry_id: int, receipt: dict[str, Any], now: datetime = FROM_CLOCK) -> None:
    """The branch has the offered commit, read back. The owner settles it."""
    lease_steps.lock_broker()
    entry = Entry.objects.get(pk=entry_id)
    steps.finish(entry, EntryState.MOVED, receipt, now=now)
    if lock_project(project_id).push_remote and receipt["commits"]:
        entry.push_due = True
        entry.not_before = None
        entry.save(update_fields=["push_due", "not_before"])
    wake_scheduler()


@unit_of_work(scope=lock_project)
def record_pushed(
    *, project_id: int, entry_id: int, result: dict[str, Any], again: bool, now: datetime = FROM_CLOCK
) -> None:
    """What the remote said; it never undoes a landing. ``again``: nothing is known, try later."""
    entry = Entry.objects.get(pk=entry_id)
    entry.push_due, entry.push_result = again, result
    entry.not_before = now + PUSH_RETRY if again else None
    entry.save(update_fields=["push_due", "push_result", "not_before"])
    journal.record("entry.pushed", subject=entry.subject, project_id=project_id, owner=entry.owner, **result)
    questions = {outcome: f"push-{outcome}:{project_id}" for outcome in PUSH_QUESTIONS}
    outcome = result["outcome"]
    resolve_attention(*(key for asked, key in questions.items() if asked != outcome), now=now)
    if outcome in questions:
        raise_attention(
            key=questions[outcome],
            project_id=project_id,
            subject=entry.subject,
            code=f"push_{outcome}",
            message=f"the remote has not got {entry.offered}: {result['detail']}",
            next_action=PUSH_QUESTIONS[outcome],
            evidence=result,
            now=now,
        )


@unit_of_work(scope=lock_project)
def record_target_moved(*, project_id: int, entry_id: int, tip: str, now: datetime = FROM_CLOCK) -> None:
    """Somebody else moved the branch before us: refresh again, or stale where that is off."""
    project = lock_project(project_id)
    lease_steps.lock_broker()
    entry = Entry.objects.get(pk=entry_id)
    if entry.state != EntryState.LANDING:
        return
    if not project.refresh:
        steps.finish(
            entry,
            EntryState.STALE,
            {"code": "target_moved", "message": f"the target moved to {tip}", "tip": tip},
            now=now,
        )
    else:
        move(entry, EntryState.QUEUED, moves=ENTRY_MOVES, why="target_moved", data={"tip": tip})
        steps.release_workspace(entry, now=now)
    wake_scheduler()


@unit_of_work(scope=lock_project)
def freeze_for(*, project_id: int, entry_id: int, finding: dict[str, Any], now: datetime = FROM_CLOCK) -> None:
    """A landing proof failed: nothing more lands in this project until a person has looked."""
    project = lock_project(project_id)
    lease_steps.lock_broker()
    project.frozen_reason = f"{finding['code']}: {finding['message']}"[:500]
    project.save(update_fields=["frozen_reason"])
    journal.record("project.frozen", subject=project.subject, project_id=project_id, reason=project.frozen_reason)
    entry = Entry.objects.get(pk=entry_id)
    steps.finish(entry, EntryState.REJECTED, finding, now=now)
    raise_attention(
        key=f"frozen:{project_id}",
        project_id=project_id,
        subject=entry.subject,
        code=finding["code"],
        message=finding["message"],
        next_action="Look at the evidence, then `forge project unfreeze`.",
        evidence=finding,
        now=now,
    )
    wake_scheduler()


@unit_of_work(scope=lock_project)
def unfreeze(*, project_id: int, actor: str, reason: str, now: datetime = FROM_CLOCK) -> None:
    """A person has looked: the project lands again."""
    journal.act_as(actor)
    project = lock_project(project_id)
    if not project.frozen_reason:
        return
    project.frozen_reason = ""
    project.save(update_fields=["frozen_reason"])
    journal.record("project.unfrozen", subject=project.subject, project_id=project_id, reason=reason)
    resolve_attention(f"frozen:{project_id}", now=now)
    wake_scheduler()
