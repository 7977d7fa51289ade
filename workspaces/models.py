"""The one registry of checkouts."""

from typing import ClassVar

from django.db import models
from django.db.models import Q

from core.models import Project, Stateful
from workspaces.states import CheckoutState


class Checkout(Stateful):
    """A directory of one attempt at one commit. Its row is the intent to add it and to remove it."""

    subject_kind: ClassVar[str] = "checkout"

    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    owner = models.CharField(max_length=100, unique=True, help_text="`attempt:42`")
    path = models.CharField(max_length=4096)
    branch_ref = models.CharField(max_length=255, blank=True, help_text="full name; empty: detached")
    base = models.CharField(max_length=64, blank=True, help_text="commit; recorded by the effect when empty before")
    error = models.JSONField(default=dict)
    created_at = models.DateTimeField()

    class Meta:
        indexes = [
            models.Index(fields=["project"], condition=Q(state__in=["adding", "removing"]), name="checkout_due"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=[s.value for s in CheckoutState]), name="checkout_state_known"
            ),
        ]

    def __str__(self) -> str:
        return self.path
