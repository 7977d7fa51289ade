"""What every app stands on: projects and their journal, commands, cancel intents, attention, hosts, access tokens."""

from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q

from core.transitions import StateGuardedManager


class Stateful(models.Model):
    """A row with a life: ``state`` is assigned by ``core.transitions`` alone, ``version`` counts its moves."""

    state = models.CharField(max_length=32)
    version = models.PositiveIntegerField(default=0)

    subject_kind: ClassVar[str]  # `node` makes the subject `node:42`

    objects = StateGuardedManager()

    class Meta:
        abstract = True

    @property
    def subject(self) -> str:
        return f"{self.subject_kind}:{self.pk}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Insert; an update would write a stale ``state`` back, so it must name its fields and leave that one out."""
        fields = kwargs.get("update_fields")
        if not self._state.adding and (fields is None or {"state", "version"} & set(fields)):
            raise TypeError(f"{type(self).__name__}: move() writes the state; save(update_fields=...) the rest")
        super().save(*args, **kwargs)


class Host(models.Model):
    """One machine with one Forge home. ``epoch`` grows with each start of its runtime."""

    name = models.CharField(max_length=100, unique=True)
    epoch = models.PositiveIntegerField(default=0)
    boot_id = models.CharField(max_length=36, blank=True)
    beat_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    slots = models.PositiveIntegerField(default=64, help_text="how many attempts may run here at once")

    def __str__(self) -> str:
        return self.name


class Project(models.Model):
    """A registered place of work: a directory, optionally a git repository with a target branch."""

    name = models.SlugField(max_length=63, unique=True)
    workspace = models.CharField(max_length=4096, help_text="absolute real path of the working tree or plain directory")
    git_dir = models.CharField(max_length=4096, blank=True, help_text="common git directory; empty: no repository")
    target_ref = models.CharField(max_length=255, blank=True, help_text="full name of the branch work lands on")
    checks = models.JSONField(default=list, help_text="required checks: [{name, argv}]")
    refresh = models.BooleanField(
        default=True, help_text="replay a candidate onto a target that has moved; else it is stale"
    )
    push_remote = models.CharField(max_length=255, blank=True, help_text="remote the landed branch is pushed to")
    parallelism = models.PositiveIntegerField(default=8, help_text="how many of its attempts may run at once")
    home_host = models.ForeignKey(Host, on_delete=models.PROTECT, related_name="projects")
    frozen_reason = models.CharField(max_length=500, blank=True, help_text="not empty: nothing lands")
    graph_revision = models.PositiveBigIntegerField(default=0)
    advanced_seq = models.PositiveBigIntegerField(
        default=0, help_text="the coordinator has seen the journal up to here"
    )
    created_at = models.DateTimeField()

    subject_kind: ClassVar[str] = "project"

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def subject(self) -> str:
        return f"project:{self.pk}"


class EventCounter(models.Model):
    """One row. Taken as the last thing before commit, so commit order is sequence order on both databases."""

    last_seq = models.PositiveBigIntegerField(default=0)
    last_at = models.DateTimeField(null=True, help_text="no later event is dated before it")


class Event(models.Model):
    """The journal: append-only, gapless."""

    seq = models.PositiveBigIntegerField(primary_key=True)
    at = models.DateTimeField()
    project = models.ForeignKey(Project, null=True, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False)
    subject = models.CharField(max_length=100)
    kind = models.CharField(max_length=64)
    actor = models.CharField(max_length=150)
    data = models.JSONField(default=dict)

    class Meta:
        ordering = ["seq"]
        indexes = [
            models.Index(fields=["project", "seq"], name="event_by_project"),
            models.Index(fields=["subject", "seq"], name="event_by_subject"),
        ]

    def __str__(self) -> str:
        return f"{self.seq} {self.kind} {self.subject}"


class Command(models.Model):
    """An accepted request, and the one idempotency record for REST, MCP and console."""

    project = models.ForeignKey(Project, null=True, on_delete=models.PROTECT)
    principal = models.CharField(max_length=150)
    request_id = models.CharField(max_length=200)
    kind = models.CharField(max_length=64)
    digest = models.CharField(max_length=71, help_text="of the canonical payload")
    result = models.JSONField(default=dict)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["principal", "request_id"], name="command_request_id_used_once"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.request_id}"


class CancelIntent(models.Model):
    """A wish to end a subject. Inserted, never updated, so no save of anything can lose it."""

    subject = models.CharField(max_length=100, unique=True)
    project = models.ForeignKey(Project, null=True, on_delete=models.PROTECT)
    actor = models.CharField(max_length=150)
    reason = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"cancel {self.subject}"


class AttentionItem(models.Model):
    """Something only a person can decide. One open item per semantic key, however often it is found."""

    key = models.CharField(max_length=200, help_text="semantic key: the same finding is the same key")
    project = models.ForeignKey(Project, null=True, on_delete=models.PROTECT)
    subject = models.CharField(max_length=100)
    code = models.CharField(max_length=64)
    message = models.CharField(max_length=1000)
    next_action = models.CharField(max_length=500)
    evidence = models.JSONField(default=dict)
    opened_at = models.DateTimeField()
    resolved_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-opened_at"]
        constraints = [
            models.UniqueConstraint(fields=["key"], condition=Q(resolved_at=None), name="attention_one_open_per_key"),
        ]

    def __str__(self) -> str:
        return f"{self.code} {self.subject}"


class AccessToken(models.Model):
    """A bearer token of a person or program; only its digest is stored."""

    digest = models.CharField(max_length=64, unique=True)
    label = models.CharField(max_length=100)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    expires_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()
    single_use = models.BooleanField(default=False, help_text="a first-login link")

    def __str__(self) -> str:
        return self.label
