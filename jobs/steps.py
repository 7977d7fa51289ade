"""Writes on jobs and attempts inside somebody's transaction."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from core import journal, rows
from core import steps as core_steps
from core.models import Project
from core.transitions import move_all, move_each, require_transaction
from jobs.models import Attempt, Job
from jobs.planning import Ended, Verdict, judge
from jobs.states import ATTEMPT_MOVES, ATTEMPT_ON_HOST, JOB_MOVES, AttemptState, Cause, JobState, RetryClass
from leases import steps as lease_steps
from leases.fences import Fence
from leases.models import Request
from leases.planning import ClaimSpec
from leases.states import RequestState
from workspaces import steps as workspace_steps


@dataclass(frozen=True)
class JobOrder:
    """What somebody wants to be run.

    owner:          opaque subject of who asked (`node:42`)
    request_id:     the same id is the same job, for ever
    own_checkout:   each attempt gets a checkout of its own, on branch `<branch_prefix>/<attempt>` (empty: detached) at
                    ``base`` (empty: the tip of the target when the checkout is made)
    keeps_grant:    after success the leases stay until the owner ends or hands over the grant
    deadline_s, grace_s in seconds; output_limit in bytes per stream
    """

    project_id: int
    owner: str
    request_id: str
    argv: tuple[str, ...]
    deadline_s: int
    grace_s: int
    output_limit: int
    claims: tuple[ClaimSpec, ...]
    retry_class: RetryClass
    env: dict[str, str] = field(default_factory=dict)
    stdin: str = ""
    own_checkout: bool = False
    branch_prefix: str = ""
    base: str = ""
    priority: int = 0
    attempt_budget: int = 3
    keeps_grant: bool = False


def admit(orders: Sequence[JobOrder], *, host_id: int, now: datetime) -> list[Job]:
    """Insert jobs with their first attempts and lease requests, in order; constant number of statements.

    Raises: IntegrityError when a request id exists: owners derive it from their own versioned rows
    """
    require_transaction()
    jobs = [
        Job(
            state=JobState.QUEUED,
            attempts_made=1,
            created_at=now,
            claims=[_claim_data(claim) for claim in order.claims],
            **{name: getattr(order, name) for name in _COPIED},
            argv=list(order.argv),
        )
        for order in orders
    ]
    rows.insert(jobs)
    _add_attempts([(job, order.claims) for job, order in zip(jobs, orders, strict=True)], host_id=host_id, now=now)
    return jobs


def _claim_data(claim: ClaimSpec) -> dict[str, Any]:
    """As stored; ``claims_of`` reads it. Not ``asdict``, which copies everything deeply."""
    return {
        "resource_class": claim.resource_class.value,
        "key": claim.key,
        "access": claim.access.value,
        "mode": claim.mode.value,
        "version": claim.version,
        "isolated": claim.isolated,
        "units": claim.units,
    }


PASS_LIMIT = 1000  # new or woken requests one pass looks at, by rank: a transaction stays short whatever was admitted

_COPIED = (
    "project_id",
    "owner",
    "request_id",
    "env",
    "stdin",
    "own_checkout",
    "branch_prefix",
    "base",
    "deadline_s",
    "grace_s",
    "output_limit",
    "priority",
    "retry_class",
    "attempt_budget",
    "keeps_grant",
)


def _add_attempts(jobs: Sequence[tuple[Job, Sequence[ClaimSpec]]], *, host_id: int, now: datetime) -> None:
    attempts = [
        Attempt(
            state=AttemptState.WAITING,
            job=job,
            project_id=job.project_id,
            number=job.attempts_made,
            host_id=host_id,
            created_at=now,
        )
        for job, _ in jobs
    ]
    rows.insert(attempts)
    lease_steps.file_requests(
        [
            lease_steps.Bundle(job.project_id, attempt.subject, job.priority, tuple(claims))
            for attempt, (job, claims) in zip(attempts, jobs, strict=True)
        ],
        now=now,
    )


def attempts_with_jobs(ids: Collection[int]) -> dict[int, Attempt]:
    """Attempts with ``job`` loaded, as they are now."""
    attempts = rows.by_id(Attempt, ids)
    jobs = rows.by_id(Job, {attempt.job_id for attempt in attempts.values()})
    for attempt in attempts.values():
        attempt.job = jobs[attempt.job_id]
    return attempts


def claims_of(job: Job) -> tuple[ClaimSpec, ...]:
    return tuple(ClaimSpec(**claim) for claim in job.claims)


def fence_of(attempt: Attempt) -> Fence:
    """The fence of an attempt that was granted."""
    if attempt.request_id is None or attempt.fence_token is None:
        raise ValueError(f"{attempt} was never granted")
    return Fence(attempt.pk, attempt.request_id, attempt.fence_token)


def attempt_key(attempt_id: int, token: int) -> str:
    """What the worker of this attempt presents; only its digest is stored.

    Derived, not drawn: a launch repeated after a crash must hand out the same key.
    """
    text = f"attempt-key:{attempt_id}:{token}"
    return hmac.new(settings.SECRET_KEY.encode(), text.encode(), hashlib.sha256).hexdigest()


def end_attempts(observed: Sequence[Ended], *, host_id: int, now: datetime) -> list[Job]:
    """Record ends: attempt, job and leases together; file the next attempt where the job is to be tried again.

    Writes:  terminal attempts with their evidence; jobs to their outcome or back to queued; leases released, unless the job
             keeps its grant after success or a survivor of its tree still blocks them
    Skips:   attempts that have already ended (a receipt is read twice after a crash)
    Returns: the jobs that reached an outcome
    Caller:  holds the scope lock of each project concerned, then the broker row
    """
    require_transaction()
    attempts = {
        pk: attempt
        for pk, attempt in attempts_with_jobs([ended.attempt_id for ended in observed]).items()
        if attempt.state in ATTEMPT_ON_HOST
    }
    by_state: defaultdict[AttemptState, list[tuple[Attempt, dict[str, Any]]]] = defaultdict(list)
    jobs_by_state: defaultdict[JobState, list[Job]] = defaultdict(list)
    released: list[Fence] = []
    unused: list[str] = []
    data: dict[int, dict[str, Any]] = {}
    job_data: dict[int, dict[str, Any]] = {}
    for ended in observed:
        attempt = attempts.pop(ended.attempt_id, None)
        if attempt is None:
            continue
        job = attempt.job
        verdict = judge(
            ended,
            stop_reason=attempt.stop_reason,
            retry_class=RetryClass(job.retry_class),
            attempts_made=job.attempts_made,
            budget=job.attempt_budget,
        )
        by_state[verdict.attempt].append((attempt, _end_fields(attempt, ended, verdict, now)))
        jobs_by_state[verdict.job].append(job)
        data[attempt.pk] = {"job": job.pk, "owner": job.owner, "cause": verdict.cause, "exit_code": ended.exit_code}
        job_data[job.pk] = {"owner": job.owner, "cause": verdict.cause, "exit_code": ended.exit_code}
        if job.own_checkout and ended.evidence.get("cause") == Cause.NEVER_STARTED:
            unused.append(attempt.subject)  # nobody has worked in it
        if ended.survivors:
            _report_survivors(attempt, ended, now)
        elif not (job.keeps_grant and verdict.job is JobState.SUCCEEDED):
            released.append(fence_of(attempt))
    for attempt_state, changed in by_state.items():
        move_each(changed, attempt_state, moves=ATTEMPT_MOVES, data=data)
    if unused:
        workspace_steps.order_removal(unused)
    if released:
        lease_steps.end_grants(released, now=now)
    again = jobs_by_state.pop(JobState.QUEUED, [])
    ended_jobs: list[Job] = []
    for job_state, jobs in jobs_by_state.items():
        move_all(jobs, job_state, moves=JOB_MOVES, data=job_data, ended_at=now)
        ended_jobs += jobs
    if again:
        _try_again(again, host_id=host_id, now=now)
    return ended_jobs


def _end_fields(attempt: Attempt, ended: Ended, verdict: Verdict, now: datetime) -> dict[str, Any]:
    return {
        "exit_code": ended.exit_code,
        "cause": verdict.cause,
        "evidence": ended.evidence,
        "ended_at": ended.at or now,
        "started_at": attempt.started_at or ended.identity.get("started_at"),
        "pid": attempt.pid or ended.identity.get("pid"),
        "start_ticks": attempt.start_ticks or ended.identity.get("start_ticks"),
        "boot_id": attempt.boot_id or ended.identity.get("boot_id", ""),
        "shim_pid": attempt.shim_pid or ended.identity.get("shim_pid"),
    }


def _try_again(jobs: list[Job], *, host_id: int, now: datetime) -> None:
    move_each([(job, {"attempts_made": job.attempts_made + 1}) for job in jobs], JobState.QUEUED, moves=JOB_MOVES)
    _add_attempts([(job, claims_of(job)) for job in jobs], host_id=host_id, now=now)


def _report_survivors(attempt: Attempt, ended: Ended, now: datetime) -> None:
    core_steps.raise_attention(
        key=f"survivors:{attempt.pk}",
        project_id=attempt.project_id,
        subject=attempt.subject,
        code="survivors",
        message=f"{len(ended.survivors)} processes of {attempt} could not be ended; what it claimed stays blocked",
        next_action="End the listed processes, then run `forge recover`.",
        evidence={"survivors": list(ended.survivors)},
        now=now,
    )


@dataclass(frozen=True)
class Pass:
    """What one pass of the broker granted: attempts that start now, and projects with a grant that is no attempt's."""

    attempts: tuple[Attempt, ...] = ()
    other_projects: frozenset[int] = frozenset()


def grant_and_start(*, now: datetime) -> Pass:
    """Grant what may be granted, and let the attempts concerned start.

    Writes: leases and requests; attempts to starting with fence and deadline; jobs to running; intents to add checkouts
    Caller: holds the broker row; no project's row is written
    """
    granted = lease_steps.grant_eligible(now=now, limit=PASS_LIMIT)
    if not granted:
        return Pass()
    attempts = start_granted(granted, now=now, boottime=time.clock_gettime(time.CLOCK_BOOTTIME))
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
    others = frozenset(grant.project_id for grant in granted if not grant.holder.startswith("attempt:"))
    if others:
        journal.act_as("broker")  # not the coordinator's: news to these projects, also when this process dies right now
    return Pass(tuple(attempts), others)


def start_granted(granted: Sequence[lease_steps.Granted], *, now: datetime, boottime: float) -> list[Attempt]:
    """Attempts whose bundles were granted go to starting: fence, key digest, deadline on both clocks.

    boottime: seconds on this host's boot clock, read with ``now``
    Returns:  them, with their jobs loaded
    """
    require_transaction()
    grants = {grant.request_id: grant for grant in granted if grant.holder.startswith("attempt:")}
    by_attempt = {int(grant.holder.partition(":")[2]): grant for grant in grants.values()}
    attempts = list(attempts_with_jobs(by_attempt).values())
    projects = rows.by_id(Project, {attempt.project_id for attempt in attempts})
    changed, data = [], {}
    for attempt in attempts:
        grant, job = by_attempt[attempt.pk], attempt.job
        attempt.project = projects[attempt.project_id]  # whoever starts it needs to know where
        changed.append(
            (
                attempt,
                {
                    "request_id": grant.request_id,
                    "fence_token": grant.token,
                    "key_digest": hashlib.sha256(attempt_key(attempt.pk, grant.token).encode()).hexdigest(),
                    "deadline_at": now + timedelta(seconds=job.deadline_s),
                    "deadline_boottime": boottime + job.deadline_s,
                },
            )
        )
        data[attempt.pk] = {"job": job.pk, "owner": job.owner}
    move_each(changed, AttemptState.STARTING, moves=ATTEMPT_MOVES, data=data)
    move_all(
        [a.job for a in attempts],
        JobState.RUNNING,
        moves=JOB_MOVES,
        data={a.job_id: {"owner": a.job.owner} for a in attempts},
    )
    return attempts


def mark_started(started: Sequence[tuple[Attempt, Mapping[str, Any]]]) -> list[int]:
    """The identity of each process, from its started receipt: only now does the attempt count as running.

    Returns: ids of the jobs concerned; attempts that have gone on meanwhile are left alone
    """
    require_transaction()
    fresh = attempts_with_jobs([attempt.pk for attempt, _ in started])
    moving = [
        (fresh[attempt.pk], dict(identity))
        for attempt, identity in started
        if fresh[attempt.pk].state == AttemptState.STARTING
    ]
    move_each(
        moving,
        AttemptState.RUNNING,
        moves=ATTEMPT_MOVES,
        data={attempt.pk: {"job": attempt.job_id, "owner": attempt.job.owner} for attempt, _ in moving},
    )
    return [attempt.job_id for attempt, _ in moving]


def ask_to_stop(attempts: Collection[Attempt], *, reason: Cause, now: datetime) -> None:
    """Record the intent to end attempts before any signal is sent; the tick acts on it.

    Writes: waiting attempts and their requests end here and now (nothing runs); others to stopping with the reason
    Caller: holds the broker row when any of them still waits
    """
    require_transaction()
    waiting = [a for a in attempts if a.state == AttemptState.WAITING]
    if waiting:
        requests = Request.objects.filter(holder__in=[a.subject for a in waiting], state=RequestState.WAITING)
        lease_steps.withdraw([r.pk for r in requests], now=now, why=reason)
        move_all(waiting, AttemptState.CANCELLED, moves=ATTEMPT_MOVES, cause=reason, ended_at=now)
        move_all([a.job for a in waiting], JobState.CANCELLED, moves=JOB_MOVES, ended_at=now)
    for state in (AttemptState.STARTING, AttemptState.RUNNING):
        moving = [a for a in attempts if a.state == state]
        move_all(moving, AttemptState.STOPPING, moves=ATTEMPT_MOVES, why=reason, stop_reason=reason)


def settle(job: Job) -> None:
    """Its owner has taken note of the end."""
    require_transaction()
    job.settled = True
    job.save(update_fields=["settled"])
