"""Jobs (supervised executions) and their attempts. An attempt row is immutable once it has ended."""

from typing import ClassVar

from django.db import models
from django.db.models import Q

from core.models import Host, Project, Stateful
from jobs.states import ATTEMPT_ENDED, AttemptState, Cause, JobState, RetryClass
from leases.models import Request


class Job(Stateful):
    """One supervised execution: command, workspace, explicit environment, limits."""

    subject_kind: ClassVar[str] = "job"

    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    owner = models.CharField(max_length=100, help_text="who asked, opaque here: `node:42`, `check:7`")
    request_id = models.CharField(max_length=200, unique=True, help_text="the same work is admitted once")
    argv = models.JSONField()
    env = models.JSONField(default=dict)
    stdin = models.TextField(blank=True)
    own_checkout = models.BooleanField(default=False, help_text="each attempt in a checkout of its own")
    branch_prefix = models.CharField(
        max_length=200, blank=True, help_text="own checkout: branch `<prefix>/<attempt>`; empty: detached"
    )
    base = models.CharField(max_length=64, blank=True, help_text="own checkout: commit; empty: the target's tip")
    deadline_s = models.PositiveIntegerField()
    grace_s = models.PositiveIntegerField()
    output_limit = models.PositiveIntegerField(help_text="bytes kept of each stream")
    priority = models.IntegerField(default=0)
    claims = models.JSONField(help_text="what each attempt asks the broker for")
    retry_class = models.CharField(max_length=32, choices=[(c, c) for c in RetryClass])
    keeps_grant = models.BooleanField(
        default=False, help_text="after success its leases stay until the owner hands them over"
    )
    attempt_budget = models.PositiveIntegerField(default=3)
    attempts_made = models.PositiveIntegerField(default=0)
    settled = models.BooleanField(default=False, help_text="its owner has taken note of the end")
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(
                fields=["project", "id"], condition=Q(settled=False, ended_at__isnull=False), name="job_unsettled"
            ),
            models.Index(fields=["owner"], name="job_by_owner"),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=[s.value for s in JobState]), name="job_state_known"),
        ]

    def __str__(self) -> str:
        return f"job {self.pk} of {self.owner}"


class Attempt(Stateful):
    """One try at a job, created together with its lease request."""

    subject_kind: ClassVar[str] = "attempt"

    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="attempts")
    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    number = models.PositiveIntegerField()
    host = models.ForeignKey(Host, on_delete=models.PROTECT)
    request = models.OneToOneField(
        Request, on_delete=models.PROTECT, null=True, related_name="attempt", help_text="its grant"
    )
    fence_token = models.PositiveBigIntegerField(null=True, help_text="grant token, copied with the grant")
    key_digest = models.CharField(max_length=64, blank=True, help_text="of the attempt key its worker presents")
    boot_id = models.CharField(max_length=36, blank=True)
    pid = models.PositiveIntegerField(null=True, help_text="leader of the command's process group")
    start_ticks = models.PositiveBigIntegerField(null=True)
    shim_pid = models.PositiveIntegerField(null=True)
    deadline_at = models.DateTimeField(null=True)
    deadline_boottime = models.FloatField(null=True, help_text="seconds on the host's boot clock")
    stop_reason = models.CharField(max_length=32, blank=True, choices=[(c, c) for c in Cause])
    exit_code = models.IntegerField(null=True, help_text="negative: ended by that signal")
    cause = models.CharField(max_length=32, blank=True, choices=[(c, c) for c in Cause])
    evidence = models.JSONField(default=dict, help_text="the exit receipt, or what was found instead")
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(
                fields=["host"], condition=Q(state__in=["starting", "running", "stopping"]), name="attempt_on_host"
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="attempt_number_once"),
            models.UniqueConstraint(
                fields=["job"],
                condition=~Q(state__in=[s.value for s in ATTEMPT_ENDED]),
                name="attempt_one_open_per_job",
            ),
            models.CheckConstraint(condition=Q(state__in=[s.value for s in AttemptState]), name="attempt_state_known"),
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} of job {self.job_id}"
