"""Jobs and attempts as rows: admission, start, end, second tries, stopping. No process."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError

from core.errors import IllegalMove, StaleFence
from core.models import AttentionItem, Event, Project
from core.transitions import move
from core.uow import FROM_CLOCK, unit_of_work
from jobs import steps
from jobs.models import Attempt, Job
from jobs.planning import Ended
from jobs.services import grant_and_start
from jobs.states import ATTEMPT_ENDED, ATTEMPT_MOVES, AttemptState, Cause, RetryClass
from leases import steps as lease_steps
from leases.models import Lease, Request
from leases.planning import ClaimSpec
from leases.states import BLOCKING, Access, ResourceClass
from tests.driving import IDENTITY, Hand, attention, held, state

pytestmark = pytest.mark.django_db


@pytest.fixture
def project() -> Project:
    return Hand().add_project(plain=True)


def order(project: Project, request_id: str = "r", **more: Any) -> steps.JobOrder:
    claims = (ClaimSpec(ResourceClass.LOGICAL, more.pop("claim", request_id), Access.WRITE),)
    return steps.JobOrder(
        **{
            "project_id": project.pk,
            "owner": "somebody:1",
            "request_id": request_id,
            "argv": ("true",),
            "deadline_s": 60,
            "grace_s": 5,
            "output_limit": 100,
            "claims": claims,
            "retry_class": RetryClass.REPLAY_UNFINISHED,
            **more,
        }
    )


@unit_of_work
def admit(*, project: Project, orders: list[steps.JobOrder], now: datetime = FROM_CLOCK) -> list[Job]:
    return steps.admit(orders, host_id=project.home_host_id, now=now)


@unit_of_work
def end(*, project: Project, ended: list[Ended], now: datetime = FROM_CLOCK) -> list[Job]:
    lease_steps.lock_broker()
    return steps.end_attempts(ended, host_id=project.home_host_id, now=now)


@unit_of_work
def stop(*, attempts: list[Attempt], now: datetime = FROM_CLOCK) -> None:
    lease_steps.lock_broker()
    steps.ask_to_stop(attempts, reason=Cause.CANCELLED, now=now)


@unit_of_work
def started(*, attempt: Attempt) -> list[int]:
    return steps.mark_started([(attempt, dict(IDENTITY))])


@unit_of_work
def moved(*, attempt: Attempt, to: AttemptState) -> None:
    move(attempt, to, moves=ATTEMPT_MOVES)


def running(project: Project, request_id: str = "r", **more: Any) -> Attempt:
    [job] = admit(project=project, orders=[order(project, request_id, **more)])
    grant_and_start()
    attempt = Attempt.objects.get(job=job)
    started(attempt=attempt)
    attempt.refresh_from_db()
    return attempt


def test_steps_refuse_to_stand_alone(project: Project) -> None:
    from django.db import connection

    assert (
        connection.in_atomic_block
    )  # the test's own; outside of any, the guard is core.transitions' (test_transitions)
    assert steps.admit([], host_id=project.home_host_id, now=project.created_at) == []


@pytest.mark.req("JB-03")
def test_a_request_id_is_one_job_for_ever(project: Project) -> None:
    admit(project=project, orders=[order(project)])
    with pytest.raises(IntegrityError):
        admit(project=project, orders=[order(project, argv=("false",))])
    assert Job.objects.get().argv == ["true"]
    assert Request.objects.count() == 1


def test_jobs_are_admitted_in_a_constant_number_of_statements(
    project: Project, django_assert_max_num_queries: Any
) -> None:
    admit(project=project, orders=[order(project, "first")])
    with django_assert_max_num_queries(16):
        admit(project=project, orders=[order(project, f"r{n}") for n in range(50)])
    assert list(Attempt.objects.values_list("state", flat=True).distinct()) == ["waiting"]


@pytest.mark.req("JB-07")
def test_the_row_of_an_attempt_says_who_runs_until_when_and_by_what_right(project: Project) -> None:
    attempt = running(project)
    request = Request.objects.get(holder=attempt.subject)

    assert (attempt.number, attempt.state, attempt.pid, attempt.boot_id) == (1, "running", 4242, "boot")
    assert (attempt.request_id, attempt.fence_token) == (request.pk, request.token)
    assert request.granted_at is not None
    assert attempt.deadline_at == request.granted_at + timedelta(seconds=60)
    assert attempt.deadline_boottime is not None
    assert len(attempt.key_digest) == 64
    assert steps.attempt_key(attempt.pk, request.token or 0) == steps.attempt_key(attempt.pk, request.token or 0)
    assert steps.attempt_key(attempt.pk, (request.token or 0) + 1) != steps.attempt_key(attempt.pk, request.token or 0)


@pytest.mark.req("JB-32")
@pytest.mark.parametrize("ended", ATTEMPT_ENDED)
def test_an_attempt_that_has_ended_never_changes(ended: AttemptState) -> None:
    assert not ATTEMPT_MOVES[ended]


@pytest.mark.req("JB-10", "JB-32")
def test_an_end_that_is_read_twice_is_recorded_once(project: Project) -> None:
    attempt = running(project)
    assert len(end(project=project, ended=[Ended(attempt.pk, Cause.EXITED, 0)])) == 1
    before = Attempt.objects.values().get()

    assert end(project=project, ended=[Ended(attempt.pk, Cause.CONTROLLER_LOST)]) == []

    assert Attempt.objects.values().get() == before
    assert Event.objects.filter(subject=attempt.subject, kind="attempt.succeeded").count() == 1
    with pytest.raises(IllegalMove):
        moved(attempt=Attempt.objects.get(), to=AttemptState.FAILED)


@pytest.mark.req("JB-12", "JB-32")
def test_a_second_try_is_a_new_row_with_a_new_fence(project: Project) -> None:
    first = running(project)
    end(project=project, ended=[Ended(first.pk, Cause.CONTROLLER_LOST)])
    history = Attempt.objects.filter(pk=first.pk).values().get()
    [second] = grant_and_start().attempts

    assert (second.number, second.job_id) == (2, first.job_id)
    assert (second.fence_token or 0) > (first.fence_token or 0)
    assert second.key_digest != first.key_digest
    assert Attempt.objects.filter(pk=first.pk).values().get() == history

    @unit_of_work
    def release_as_the_first(*, now: datetime = FROM_CLOCK) -> None:
        lease_steps.end_grants([steps.fence_of(first)], now=now)

    with pytest.raises(StaleFence):
        release_as_the_first()


@pytest.mark.req("PS-07")
def test_leases_end_in_the_very_record_of_the_end(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = running(project)

    class Crash(BaseException):
        pass

    def die(*args: Any, **kwargs: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(lease_steps, "end_grants", die)
        with pytest.raises(Crash):
            end(project=project, ended=[Ended(attempt.pk, Cause.EXITED, 0)])
    assert state(attempt) == "running"
    assert held() == [f"holds: {attempt.subject}"]

    end(project=project, ended=[Ended(attempt.pk, Cause.EXITED, 0)])
    assert held() == []


@pytest.mark.req("PS-06", "PS-08")
def test_a_survivor_keeps_what_its_attempt_claimed_and_is_named(project: Project) -> None:
    attempt = running(project)
    survivor = {"pid": 77, "start_ticks": 5, "command": "make"}
    end(project=project, ended=[Ended(attempt.pk, Cause.EXITED, 0, survivors=(survivor,))])

    assert state(attempt) == "failed"
    assert attention() == ["survivors"]
    assert AttentionItem.objects.get().evidence["survivors"] == [survivor]
    assert held() == [f"holds: {attempt.subject}"]


def test_a_kept_grant_ends_unless_its_job_succeeded(project: Project) -> None:
    attempts = {
        code: running(project, f"r{code}", keeps_grant=True, retry_class=RetryClass.REQUIRES_RECONCILIATION)
        for code in (0, 1)
    }
    end(project=project, ended=[Ended(a.pk, Cause.EXITED, code) for code, a in attempts.items()])
    assert held() == [f"holds: {attempts[0].subject}"]


@pytest.mark.req("JB-26", "PS-03")
def test_stopping_is_recorded_for_what_runs_and_done_for_what_waits(project: Project) -> None:
    runs = running(project, "one", claim="same")
    admit(project=project, orders=[order(project, "two", claim="same"), order(project, "three", claim="other")])
    grant_and_start()
    waits, other = Attempt.objects.get(job__request_id="two"), Attempt.objects.get(job__request_id="three")
    assert (state(waits), state(other)) == ("waiting", "starting")

    stop(attempts=[runs, waits])

    assert (state(runs), state(waits), state(other)) == ("stopping", "cancelled", "starting")
    assert runs.stop_reason == "cancelled"
    assert Job.objects.get(request_id="two").state == "cancelled"
    assert set(held()) == {f"holds: {runs.subject}", f"holds: {other.subject}"}
    end(project=project, ended=[Ended(runs.pk, Cause.CANCELLED)])
    assert set(held()) == {f"holds: {other.subject}"}


def test_a_start_seen_after_the_wish_to_stop_changes_nothing(project: Project) -> None:
    attempt = running(project, "one")
    stop(attempts=[attempt])
    assert started(attempt=attempt) == []
    assert state(attempt) == "stopping"


def test_claims_survive_their_way_through_the_row(project: Project) -> None:
    claim = ClaimSpec(ResourceClass.LOGICAL, "api", Access.READ, version=3)
    [job] = admit(project=project, orders=[order(project, claims=(claim,))])
    job.refresh_from_db()
    assert steps.claims_of(job) == (claim,)
    assert asdict(claim)["version"] == 3


@pytest.mark.req("JB-01")
def test_only_what_was_committed_and_granted_starts(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no lease request")

    with monkeypatch.context() as patch:
        patch.setattr(lease_steps, "file_requests", fail)
        with pytest.raises(RuntimeError):
            admit(project=project, orders=[order(project)])
    assert not Job.objects.exists()
    assert grant_and_start().attempts == ()
    assert not Lease.objects.filter(state__in=BLOCKING).exists()
