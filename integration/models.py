"""Candidates and the queue that lands them."""

from typing import ClassVar

from django.db import models
from django.db.models import Q

from core.models import Project, Stateful
from integration.states import CLAIMED, CandidateState, CheckState, EntryState
from jobs.models import Attempt, Job
from workspaces.planning import candidate_ref


class Candidate(Stateful):
    """What an attempt offers for a branch: base, commit and the exact changes between them, pinned under a Forge ref."""

    subject_kind: ClassVar[str] = "candidate"

    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    owner = models.CharField(max_length=100, help_text="`node:42`")
    attempt = models.OneToOneField(Attempt, on_delete=models.PROTECT, related_name="candidate")
    scope = models.JSONField(null=True, help_text="paths it may change; null: any")
    allow_empty = models.BooleanField(default=False)
    read_only = models.BooleanField(default=False, help_text="must have changed nothing")
    title = models.CharField(max_length=200)
    base = models.CharField(max_length=64)
    commit = models.CharField(max_length=64, blank=True)
    tree = models.CharField(max_length=64, blank=True)
    changes = models.JSONField(default=list, help_text="[path, old mode, old blob, new mode, new blob]")
    refusal = models.JSONField(default=dict, help_text="code, message and paths")
    settled = models.BooleanField(default=False)
    created_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["project"], condition=Q(settled=False), name="candidate_unsettled")]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=[s.value for s in CandidateState]), name="candidate_state_known"
            ),
        ]

    def __str__(self) -> str:
        return f"candidate {self.pk} of {self.owner}"

    @property
    def pin_ref(self) -> str:
        return candidate_ref(self.attempt_id)


class Entry(Stateful):
    """A place in the queue of one project."""

    subject_kind: ClassVar[str] = "entry"

    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    owner = models.CharField(max_length=100, help_text="`node:42`")
    candidate = models.OneToOneField(Candidate, on_delete=models.PROTECT, related_name="entry")
    graph_revision = models.PositiveBigIntegerField()
    position = models.PositiveIntegerField(help_text="topological position in its graph")
    target_ref = models.CharField(max_length=255)
    required_checks = models.JSONField(help_text="[{name, argv}], fixed when queued")
    base = models.CharField(max_length=64, help_text="what the offered commit stands on")
    offered = models.CharField(max_length=64, help_text="the candidate, or its replay onto the tip")
    offered_tree = models.CharField(max_length=64)
    hold = models.JSONField(default=dict, help_text="why it must wait although it is its turn: code, message, paths")
    not_before = models.DateTimeField(null=True, help_text="when a held entry is tried again")
    tries = models.PositiveIntegerField(default=0, help_text="how often it was claimed")
    refreshed = models.PositiveIntegerField(default=0)
    proof = models.JSONField(default=dict, help_text="recorded before the ref moves")
    receipt = models.JSONField(default=dict, help_text="the terminal receipt; one per entry, for ever")
    push_due = models.BooleanField(default=False, help_text="landed, and the remote has not got it yet")
    push_result = models.JSONField(default=dict)
    settled = models.BooleanField(default=False)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["graph_revision", "position", "id"]
        indexes = [
            models.Index(
                fields=["project", "graph_revision", "position", "id"], condition=Q(state="queued"), name="entry_queue"
            ),
            models.Index(fields=["project"], condition=Q(settled=False), name="entry_unsettled"),
            models.Index(fields=["project"], condition=Q(push_due=True), name="entry_push_due"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["project"], condition=Q(state__in=[s.value for s in CLAIMED]), name="entry_one_claimed"
            ),
            models.CheckConstraint(condition=Q(state__in=[s.value for s in EntryState]), name="entry_state_known"),
        ]

    def __str__(self) -> str:
        return f"entry {self.pk} of {self.owner}"


class Check(Stateful):
    """One required check of one offered commit. Its evidence counts for exactly that commit."""

    subject_kind: ClassVar[str] = "check"

    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    entry = models.ForeignKey(Entry, on_delete=models.PROTECT, related_name="checks")
    name = models.CharField(max_length=100)
    commit = models.CharField(max_length=64)
    job = models.OneToOneField(Job, on_delete=models.PROTECT, null=True, related_name="check_run")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["entry", "name", "commit"], name="check_once_per_commit"),
            models.CheckConstraint(condition=Q(state__in=[s.value for s in CheckState]), name="check_state_known"),
        ]

    def __str__(self) -> str:
        return f"check {self.name} of entry {self.entry_id}"
