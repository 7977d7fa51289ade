"""Reads of the broker that span tables."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import connection
from django.db.models import Exists, Q, Sum

from leases import planning
from leases.fences import GrantIdentity, HeldGrant
from leases.models import Broker, Claim, Lease, Request, Resource
from leases.planning import ClaimSpec, Standing, Wanted
from leases.states import BLOCKING, WRITABLE, Access, RequestState, ResourceClass, WorkMode

FARTHEST_PLACE = 1000  # a place in line is counted up to here


def has_work() -> bool:
    """Whether a pass of the broker would look at anything: two steps in partial indexes."""
    unplanned = Request.objects.filter(state=RequestState.WAITING, planned=False, suspended=False)
    return unplanned.exists() or Resource.objects.filter(freed=True).exists()


def fence_holds(fence: GrantIdentity) -> Exists:
    """A condition for the statement that writes: `Attempt.objects.filter(fence_holds(fence), pk=...).update(...)`."""
    return Exists(
        Lease.objects.filter(
            request_id=fence.grant_id,
            request__holder=fence.holder,
            request__token=fence.token,
            request__state=RequestState.GRANTED,
            state__in=WRITABLE,
        )
    )


def identity_of(request: Request) -> HeldGrant:
    """Of a grant, for whoever acts in its holder's place: an operator, recovery."""
    if request.token is None:
        raise ValueError(f"{request} was never granted")
    return HeldGrant(request.holder, request.pk, request.token)


def claim_specs(request: Request) -> list[ClaimSpec]:
    """What a request claims, as it was asked for."""
    return [spec_of(claim) for claim in Claim.objects.filter(request=request).select_related("resource").order_by("pk")]


def spec_of(row: Claim | Lease) -> ClaimSpec:
    resource = row.resource
    return ClaimSpec(
        ResourceClass(resource.resource_class),
        resource.key,
        Access(row.access),
        WorkMode(row.mode),
        row.resource_version,
        row.isolated,
        row.units,
    )


# --- everything at once: for checks and small worlds, never for a pass


def all_waiting() -> list[Wanted]:
    """Every request that waits and is not suspended, as the planner sees it."""
    waiting = Request.objects.filter(state=RequestState.WAITING, suspended=False).prefetch_related("claims__resource")
    return [_wanted(request) for request in waiting.order_by("rank", "pk")]


def _wanted(request: Request) -> Wanted:
    claims = list(request.claims.all())
    compared = tuple(spec_of(claim) for claim in claims if not claim.units)
    demand = tuple(sorted((claim.resource_id, claim.units) for claim in claims if claim.units))
    return Wanted(request.pk, request.project_id, request.rank, compared, demand)


def all_blocking() -> list[Standing]:
    """Every blocking lease that is compared, as the planner sees it."""
    leases = (
        Lease.objects.filter(state__in=BLOCKING).exclude(access=Access.CAPACITY).select_related("resource", "request")
    )
    return [Standing(lease.request_id, lease.request.rank, lease.token, spec_of(lease)) for lease in leases]


def lost_wakes() -> list[int]:
    """Waiting requests that nothing will wake: their stopper no longer waits nor holds. Always empty, or the broker is broken."""
    ended = Q(stopped_by__state__in=[RequestState.ENDED, RequestState.WITHDRAWN]) | Q(
        stopped_by__state=RequestState.WAITING, stopped_by__suspended=True
    )
    asleep = Request.objects.filter(state=RequestState.WAITING, suspended=False, planned=True)
    nobody = Q(stopped_by=None, line=None) | Q(line__isnull=False, line__short_of=None)
    return sorted(asleep.filter(ended | nobody).values_list("pk", flat=True))


# --- why a request waits


@dataclass(frozen=True)
class Holder:
    """Who stops a request: a grant since ``since``, or an older request that waits since then."""

    holder: str
    project: str
    is_grant: bool
    since: datetime
    resource: str
    lease_states: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shortage:
    """Which units a request is short of."""

    resource: str
    wants: int
    capacity: int
    in_use: int
    kept_for_others: bool


@dataclass(frozen=True)
class Waiting:
    """Everything ``explain`` says about one request."""

    request_id: int
    holder: str
    state: str
    suspended: bool
    planned: bool
    since: datetime | None
    place: int  # 1: the next one
    stopper: Holder | None = None
    shortage: Shortage | None = None


def waiting(request: Request) -> Waiting:
    """The recorded reason of a request's waiting, with its place: how many must pass first, and itself."""
    stopper = shortage = None
    place = 1
    if request.state == RequestState.WAITING and request.stopped_by_id is not None:
        stopper = _stopper(request, request.stopped_by_id)
        place = _waiting_in_front(request) + 1
    elif request.state == RequestState.WAITING and request.line_id is not None:
        shortage = _shortage(request)
        older = Request.objects.filter(line_id=request.line_id, state=RequestState.WAITING, suspended=False).filter(
            Q(rank__lt=request.rank) | Q(rank=request.rank, pk__lt=request.pk)
        )
        place = older[:FARTHEST_PLACE].count() + 1
    return Waiting(
        request.pk,
        request.holder,
        request.state,
        request.suspended,
        request.planned,
        request.stopped_since or request.created_at,
        place,
        stopper,
        shortage,
    )


def _stopper(request: Request, stopper_id: int) -> Holder:
    stopper = Request.objects.select_related("project").get(pk=stopper_id)
    is_grant = stopper.state == RequestState.GRANTED
    leases = list(stopper.leases.filter(state__in=BLOCKING).select_related("resource")) if is_grant else []
    standing = [spec_of(lease) for lease in leases] if is_grant else claim_specs(stopper)
    mine = claim_specs(request)
    meeting = [str(other.key) for other in standing if any(planning.conflicts(claim, other) for claim in mine)]
    return Holder(
        stopper.holder,
        stopper.project.name,
        is_grant,
        (stopper.granted_at if is_grant else None) or stopper.created_at,
        meeting[0] if meeting else "",
        tuple(sorted({lease.state for lease in leases})),
    )


def _waiting_in_front(request: Request) -> int:
    """Length of the chain of waiting requests that starts with the stopper."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""WITH RECURSIVE chain (id, stopped_by_id, n) AS (
                    SELECT id, stopped_by_id, 1 FROM leases_request WHERE id = %s AND state = 'waiting'
                    UNION ALL
                    SELECT r.id, r.stopped_by_id, chain.n + 1 FROM leases_request r JOIN chain ON r.id = chain.stopped_by_id
                    WHERE r.state = 'waiting' AND chain.n < {FARTHEST_PLACE})
                SELECT COUNT(*) FROM chain""",
            [request.stopped_by_id],
        )
        return int(cursor.fetchone()[0])


def _shortage(request: Request) -> Shortage | None:
    line = request.line
    if line is None or line.short_of is None:
        return None
    resource, demand = line.short_of, dict(planning.parse_demand(line.demand))
    in_use = Lease.objects.filter(resource=resource, access=Access.CAPACITY, state__in=BLOCKING).aggregate(
        n=Sum("units")
    )
    keeps = Broker.objects.filter(reserving__isnull=False).exclude(reserving=line).exists()
    wants, used = demand.get(resource.pk, 0), in_use["n"] or 0
    return Shortage(resource.key, wants, resource.capacity, used, keeps and resource.capacity - used >= wants)


def in_use() -> list[tuple[Resource, int]]:
    """Capacity resources with the units in use, by key."""
    counted = Resource.objects.filter(capacity__gt=0).order_by("resource_class", "key")
    used = dict(
        Lease.objects.filter(access=Access.CAPACITY, state__in=BLOCKING)
        .values_list("resource_id")
        .annotate(n=Sum("units"))
        .values_list("resource_id", "n")
    )
    return [(resource, used.get(resource.pk, 0)) for resource in counted]
