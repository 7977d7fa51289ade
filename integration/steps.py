"""Writes on candidates and the queue inside somebody's transaction, who holds the project's row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from core.models import Project
from core.steps import resolve_attention
from core.transitions import move, require_transaction
from integration.errors import ReceiptDiffers
from integration.models import Candidate, Check, Entry
from integration.planning import Gate, judge_checks
from integration.states import (
    CANDIDATE_MOVES,
    CHECK_MOVES,
    CLAIMED,
    ENTRY_MOVES,
    CandidateState,
    CheckState,
    EntryState,
)
from jobs import steps as job_steps
from jobs.models import Attempt, Job
from jobs.states import ATTEMPT_ENDED, Cause, JobState, RetryClass
from leases import steps as lease_steps
from leases.fences import Fence, HeldGrant
from leases.models import Request
from leases.planning import ClaimSpec
from leases.states import Access, RequestState, ResourceClass, WorkMode
from workspaces import steps as workspace_steps

CHECK_DEADLINE_S = 3600
CHECK_GRACE_S = 5
CHECK_OUTPUT_LIMIT = 1_048_576


def intend_to_seal(
    *,
    attempt: Attempt,
    owner: str,
    base: str,
    scope: Sequence[str] | None,
    allow_empty: bool,
    read_only: bool,
    title: str,
    now: datetime,
) -> Candidate:
    """First of the steps that end a gated node: what the attempt left behind is to be sealed. Its leases stay."""
    require_transaction()
    return Candidate.objects.create(
        state=CandidateState.SEALING,
        project_id=attempt.project_id,
        owner=owner,
        attempt=attempt,
        base=base,
        scope=list(scope) if scope is not None else None,
        allow_empty=allow_empty,
        read_only=read_only,
        title=title,
        created_at=now,
    )


def enqueue(
    *,
    candidate: Candidate,
    project: Project,
    graph_revision: int,
    position: int,
    worker: Fence,
    scope_keys: Sequence[str],
    now: datetime,
) -> Entry:
    """Queue a sealed candidate and hand the worker's hold on its write scope over to the entry, in one record.

    scope_keys: of class integration; nobody else's candidate may touch them until the entry has ended
    Caller:     holds the project's row, then the broker row
    Raises:     StaleFence
    """
    require_transaction()
    entry = Entry.objects.create(
        state=EntryState.QUEUED,
        project=project,
        owner=candidate.owner,
        candidate=candidate,
        graph_revision=graph_revision,
        position=position,
        target_ref=project.target_ref,
        required_checks=project.checks,
        base=candidate.base,
        offered=candidate.commit,
        offered_tree=candidate.tree,
        created_at=now,
    )
    lease_steps.hand_over(
        worker,
        holder=entry.subject,
        claims=tuple(
            ClaimSpec(ResourceClass.INTEGRATION, key, Access.WRITE, mode=WorkMode.COOPERATIVE) for key in scope_keys
        ),
        now=now,
    )
    return entry


def progress_queue(project: Project, *, now: datetime, workspace_key: str, claims: Sequence[ClaimSpec]) -> bool:
    """Take the queue of a project one step further where a step is due.

    Writes:        the head of the queue claimed (intent to refresh); checks of the offered commit as jobs; the intent to land
                   when every required check has passed at that commit and the workspace is ours
    workspace_key: of the project's own working tree, held exclusively while the branch moves
    claims:        capacity that each check's attempt needs
    Returns:       whether an entry ended, so that there is something to settle
    """
    require_transaction()
    entry = Entry.objects.filter(project=project, state__in=CLAIMED).first()
    if entry is None:
        if project.frozen_reason:
            return False
        head = (
            Entry.objects.filter(project=project, state=EntryState.QUEUED)
            .order_by("graph_revision", "position", "id")
            .first()
        )
        if head is not None and (head.not_before is None or head.not_before <= now):
            move(head, EntryState.REFRESHING, moves=ENTRY_MOVES, data={"owner": head.owner}, tries=head.tries + 1)
        return False
    if entry.state == EntryState.CHECKING:
        _progress_checks(entry, now=now, workspace_key=workspace_key, claims=claims, frozen=bool(project.frozen_reason))
    return entry.state == EntryState.REJECTED


def _progress_checks(
    entry: Entry, *, now: datetime, workspace_key: str, claims: Sequence[ClaimSpec], frozen: bool
) -> None:
    required = [check["name"] for check in entry.required_checks]
    results = dict(Check.objects.filter(entry=entry, commit=entry.offered).values_list("name", "state"))
    verdict = judge_checks(required, results)
    if verdict.gate is Gate.MISSING:
        _order_checks(entry, [c for c in entry.required_checks if c["name"] not in results], now=now, claims=claims)
    elif verdict.gate is Gate.FAILED:
        finish(
            entry,
            EntryState.REJECTED,
            {
                "code": "check_failed",
                "message": f"check failed: {', '.join(verdict.failed)} (`forge logs NODE --check NAME` shows its output)",
                "checks": results,
            },
            now=now,
        )
    elif verdict.gate is Gate.PASSED and not frozen and _holds_workspace(entry, workspace_key, now):
        move(entry, EntryState.LANDING, moves=ENTRY_MOVES, data={"owner": entry.owner, "offered": entry.offered})


def _order_checks(
    entry: Entry, wanted: Sequence[Mapping[str, Any]], *, now: datetime, claims: Sequence[ClaimSpec]
) -> None:
    checks = [
        Check.objects.create(
            state=CheckState.WAITING, project_id=entry.project_id, entry=entry, name=check["name"], commit=entry.offered
        )
        for check in wanted
    ]
    jobs = job_steps.admit(
        [
            job_steps.JobOrder(
                project_id=entry.project_id,
                owner=check.subject,
                request_id=check.subject,
                argv=tuple(asked["argv"]),
                env={"FORGE_CHECK": check.name, "FORGE_COMMIT": entry.offered},
                deadline_s=asked.get("deadlineSeconds", CHECK_DEADLINE_S),
                grace_s=CHECK_GRACE_S,
                output_limit=CHECK_OUTPUT_LIMIT,
                claims=tuple(claims),
                retry_class=RetryClass.REPLAY_UNFINISHED,  # a check only reads the exact commit
                own_checkout=True,
                base=entry.offered,
                priority=100,  # what is nearly done goes first
            )
            for check, asked in zip(checks, wanted, strict=True)
        ],
        host_id=entry.project.home_host_id,
        now=now,
    )
    for check, job in zip(checks, jobs, strict=True):
        check.job = job
        check.save(update_fields=["job"])


def landing_holder(entry: Entry) -> str:
    """One holder per try: a request that ended is history and never waits again."""
    return f"landing:{entry.pk}:{entry.tries}"


def _holds_workspace(entry: Entry, workspace_key: str, now: datetime) -> bool:
    """Whether the project's working tree is exclusively ours; asks for it when nobody has asked yet."""
    request = Request.objects.filter(
        holder=landing_holder(entry), state__in=[RequestState.WAITING, RequestState.GRANTED]
    ).first()
    if request is None:
        lease_steps.file_requests(
            [
                lease_steps.Bundle(
                    entry.project_id,
                    landing_holder(entry),
                    100,
                    (ClaimSpec(ResourceClass.PHYSICAL, workspace_key, Access.EXCLUSIVE, mode=WorkMode.COOPERATIVE),),
                )
            ],
            now=now,
        )
        return False
    return request.state == RequestState.GRANTED


def settle_check(job: Job) -> None:
    """A check's job has ended: only exit code 0, by its receipt, passes."""
    require_transaction()
    check = Check.objects.select_related("entry").get(job=job)
    if job.state == JobState.SUCCEEDED:
        outcome = CheckState.PASSED
    elif job.state in (JobState.FAILED, JobState.TIMED_OUT):
        outcome = CheckState.FAILED
    else:
        outcome = CheckState.UNKNOWN
    move(
        check,
        outcome,
        moves=CHECK_MOVES,
        data={"entry": check.entry_id, "owner": check.entry.owner, "name": check.name},
    )
    job_steps.settle(job)
    workspace_steps.order_removal([attempt.subject for attempt in Attempt.objects.filter(job=job)])


def finish(entry: Entry, to: EntryState, receipt: dict[str, Any], *, now: datetime) -> None:
    """Take an entry to its end. One terminal receipt per entry, for ever.

    Writes: the receipt and the state; what the entry held for its landing is given back. The hold on its scope ends with
            the owner's settling
    Raises: ReceiptDiffers when it ended with another receipt; an equal one changes nothing
    Caller: holds the project's row, then the broker row
    """
    require_transaction()
    if entry.receipt:
        if entry.receipt == receipt:
            return
        raise ReceiptDiffers(entry=entry.pk, recorded=entry.receipt)
    move(entry, to, moves=ENTRY_MOVES, data={"owner": entry.owner, **_short(receipt)}, receipt=receipt, ended_at=now)
    release_workspace(entry, now=now)
    stop_checks(entry, now=now)
    resolve_attention(f"held:{entry.pk}", now=now)


def _short(receipt: Mapping[str, Any]) -> dict[str, Any]:
    return {name: receipt[name] for name in ("code", "message", "commit") if name in receipt}


def release_workspace(entry: Entry, *, now: datetime) -> None:
    """Give the working tree back, or stop waiting for it."""
    for request in Request.objects.filter(
        holder=landing_holder(entry), state__in=[RequestState.WAITING, RequestState.GRANTED]
    ):
        end_or_withdraw(request, now=now)


def end_or_withdraw(request: Request, *, now: datetime) -> None:
    if request.state == RequestState.WAITING:
        lease_steps.withdraw([request.pk], now=now, why="no longer needed")
    else:
        assert request.token is not None  # a constraint: granted means with a token
        lease_steps.end_grants([HeldGrant(request.holder, request.pk, request.token)], now=now)


def stop_checks(entry: Entry, *, now: datetime) -> None:
    """Checks of an entry that has ended need not run on."""
    running = Attempt.objects.select_related("job").filter(job__check_run__entry=entry).exclude(state__in=ATTEMPT_ENDED)
    job_steps.ask_to_stop(list(running), reason=Cause.CANCELLED, now=now)


def release_scope(entry: Entry, *, now: datetime) -> None:
    """The entry has been settled: its hold on the write scope ends."""
    for request in Request.objects.filter(holder=entry.subject, state=RequestState.GRANTED):
        end_or_withdraw(request, now=now)


def cancel_entry(entry: Entry, *, reason: str, now: datetime) -> bool:
    """Take an entry out of the queue; false when its landing is already recorded, which is completed first."""
    require_transaction()
    if entry.state in (EntryState.LANDING, EntryState.MOVED):
        return False
    if entry.receipt:  # it has ended and waits to be settled, under the intent
        return True
    finish(entry, EntryState.CANCELLED, {"code": "cancelled", "message": reason}, now=now)
    return True


def refuse(candidate: Candidate, refusal: dict[str, Any]) -> None:
    move(
        candidate,
        CandidateState.REFUSED,
        moves=CANDIDATE_MOVES,
        data={"owner": candidate.owner, **_short(refusal)},
        refusal=refusal,
    )
