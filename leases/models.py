"""Rows of the broker. A request with its leases is one grant; its leases change state together."""

from typing import Any, ClassVar

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, Q

from core.models import Project, Stateful
from leases.states import BLOCKING, CLAIMABLE, LeaseState, RequestState, ResourceClass, WorkMode

_BLOCKS = Q(state__in=[s.value for s in BLOCKING])


class KeyField(models.CharField[str, str]):
    """Text compared byte by byte on both databases, so that "everything below a key" is one range of an index."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, Any]:
        return {**super().db_parameters(connection), "collation": "C" if connection.vendor == "postgresql" else None}


class Broker(models.Model):
    """One row: the scope lock of every grant and every end, and the counter of grant tokens."""

    last_token = models.PositiveBigIntegerField(default=0)
    reserving = models.ForeignKey(
        "Line",
        null=True,
        on_delete=models.PROTECT,
        related_name="+",
        db_index=False,
        help_text="units that free are kept for the first of this line",
    )

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="broker_is_one_row")]


class Resource(models.Model):
    """Something that may be claimed. Keys are paths (`project/area/part`): who holds a whole holds its parts."""

    resource_class = models.CharField(max_length=16, choices=[(c.value, c.value) for c in ResourceClass])
    key = KeyField(max_length=1024)
    capacity = models.PositiveIntegerField(default=0, help_text="units that may be in use at once")
    last_token = models.PositiveBigIntegerField(default=0, help_text="fencing counter: only grows")
    freed = models.BooleanField(
        default=False, help_text="units came free: the next pass looks at the lines short of it"
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["resource_class", "key"], name="resource_named_once")]
        indexes = [models.Index(fields=["id"], condition=Q(freed=True), name="resource_freed")]

    def __str__(self) -> str:
        return f"{self.resource_class}:{self.key}"


class Line(models.Model):
    """Waiting requests of one project that want the same units: alike but for their rank, so one row says what they are short of.

    Without it, a unit that frees would be offered to thousands of requests that a second shortage stops all alike.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, db_index=False)
    demand = models.CharField(max_length=500, help_text="`<resource id>:<units>` by id, joined by commas")
    short_of = models.ForeignKey(Resource, null=True, on_delete=models.PROTECT, related_name="lines")
    last_token = models.PositiveBigIntegerField(
        default=0, help_text="its project's latest turn here; the oldest goes first"
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "demand"], name="line_once_per_demand")]

    def __str__(self) -> str:
        return f"line {self.pk} of project {self.project_id}"


class Request(Stateful):
    """A bundle of claims that is granted whole or not at all; once granted, it is the grant."""

    subject_kind: ClassVar[str] = "request"

    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    holder = models.CharField(max_length=100, help_text="`attempt:42`, `entry:7`")
    rank = models.BigIntegerField(
        help_text="milliseconds: created_at - priority x 60 s; smaller goes first, ties by id"
    )
    priority = models.IntegerField(default=0)
    created_at = models.DateTimeField()
    suspended = models.BooleanField(default=False, help_text="keeps its rank, is not granted and stops nobody")
    planned = models.BooleanField(default=False, help_text="false: the next pass of the broker looks at it")
    stopped_by = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="stops", db_index=False)
    line = models.ForeignKey(
        Line,
        null=True,
        on_delete=models.PROTECT,
        related_name="requests",
        db_index=False,
        help_text="waits for capacity alone",
    )
    stopped_since = models.DateTimeField(null=True)
    token = models.PositiveBigIntegerField(null=True, unique=True, help_text="grant token, given with the grant")
    granted_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(
                fields=["rank", "id"],
                condition=Q(state="waiting", planned=False, suspended=False),
                name="request_to_plan",
            ),
            models.Index(
                fields=["line", "rank", "id"],
                condition=Q(state="waiting", suspended=False, line__isnull=False),
                name="request_in_line",
            ),
            models.Index(
                fields=["stopped_by"], condition=Q(state="waiting", stopped_by__isnull=False), name="request_stopped_by"
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["holder"], name="request_one_per_holder"),
            models.CheckConstraint(condition=Q(state__in=[s.value for s in RequestState]), name="request_state_known"),
            models.CheckConstraint(
                condition=Q(state="granted", token__isnull=False) | ~Q(state="granted"),
                name="request_granted_with_token",
            ),
            models.CheckConstraint(
                condition=Q(stopped_by__isnull=True) | Q(line__isnull=True), name="request_stopped_or_in_line"
            ),
        ]

    def __str__(self) -> str:
        return f"request {self.pk} of {self.holder}"


class ClaimFields(models.Model):
    """What is claimed; the same words on the claim and on the lease it became."""

    resource = models.ForeignKey(Resource, on_delete=models.PROTECT, related_name="+", db_index=False)
    access = models.CharField(max_length=16, choices=[(a.value, a.value) for a in CLAIMABLE])
    mode = models.CharField(max_length=16, choices=[(m.value, m.value) for m in WorkMode], default=WorkMode.COOPERATIVE)
    resource_version = models.PositiveIntegerField(null=True, help_text="read(v) goes with write(v + 1)")
    isolated = models.BooleanField(default=False, help_text="competitive: works where no rival sees it")
    units = models.PositiveIntegerField(default=0, help_text="of a resource with capacity")

    class Meta:
        abstract = True


class Claim(ClaimFields):
    """A right asked for."""

    request = models.ForeignKey(Request, on_delete=models.CASCADE, related_name="claims", db_index=False)
    rank = models.BigIntegerField(help_text="its request's: the nearest older claim is one step in an index")
    pending = models.BooleanField(help_text="stops younger ones: waits, not suspended, not a claim of capacity")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["request", "resource"], name="claim_once_per_resource")]
        indexes = [
            models.Index(
                fields=["resource", "access", "rank", "request"], condition=Q(pending=True), name="claim_pending"
            ),
        ]


class Lease(ClaimFields, Stateful):
    """A granted claim."""

    subject_kind: ClassVar[str] = "lease"

    request = models.ForeignKey(Request, on_delete=models.PROTECT, related_name="leases")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    token = models.PositiveBigIntegerField(help_text="fencing token of the resource, for outside effects")
    granted_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, help_text="null: held until the entry ends")
    ended_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["resource", "access", "token"], condition=_BLOCKS, name="lease_blocking"),
            models.Index(fields=["expires_at"], condition=Q(state="active"), name="lease_active_until"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["resource"], condition=_BLOCKS & Q(access="exclusive"), name="lease_one_exclusive_holder"
            ),
            models.UniqueConstraint(
                fields=["resource", "token"], condition=~Q(access="capacity"), name="lease_token_used_once"
            ),
            models.CheckConstraint(condition=Q(expires_at__gt=F("granted_at")), name="lease_ends_after_start"),
            models.CheckConstraint(condition=Q(state__in=[s.value for s in LeaseState]), name="lease_state_known"),
        ]

    def __str__(self) -> str:
        return f"lease {self.pk} on {self.resource_id}"
