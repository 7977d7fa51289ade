"""The REST API, reading only. Writes will come through the verbs of the apps that own the rules."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.db.models import Model, Q, QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import viewsets
from rest_framework.decorators import action
from rest_framework.request import Request as ApiRequest
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer

from core.errors import InvalidInput
from core.models import AttentionItem, Event, Project, Stateful
from forge_site import output, selectors
from forge_site.api import serializers as s
from forge_site.api.filters import Filter, QueryFilters, by_flag, by_id, by_state, by_text, refuse_unknown
from forge_site.pagination import ByNewest, ByOldest
from forge_site.topics import Topic, parse_topics
from graphs.models import Graph, Node
from graphs.states import GraphState, NodeState
from integration.models import Entry
from integration.states import EntryState
from jobs.models import Attempt, Job
from jobs.states import AttemptState, JobState
from leases.models import Lease, Request
from leases.states import BLOCKING, LeaseState, RequestState

SEQUENCE_HEADER = "Forge-Sequence"


class Reads(viewsets.ReadOnlyModelViewSet[Any]):
    """A list and a detail. Each answer names the journal's sequence read before its data, so a client that subscribes
    to the feed from there misses nothing (a repeated change is harmless, a missed one is not)."""

    filters: ClassVar[Mapping[str, Filter]] = {}
    filter_backends = (QueryFilters,)
    pagination_class: Any = ByNewest
    lookup_value_regex = r"\d{1,18}"
    sequence: int | None = None

    def initial(self, request: ApiRequest, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self.sequence = selectors.journal_head()

    def finalize_response(self, request: ApiRequest, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        if self.sequence is not None:
            response.headers[SEQUENCE_HEADER] = str(self.sequence)
        response.headers.setdefault("Cache-Control", "private, no-cache")
        return response

    def list(self, request: ApiRequest, *args: Any, **kwargs: Any) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response(self.serialize(page, many=True).data)

    def retrieve(self, request: ApiRequest, *args: Any, **kwargs: Any) -> Response:
        refuse_unknown(request, ())
        row = self.get_object()
        body = self.serialize(row, rows=[row]).data
        tag = etag(row, self.json(body)) if isinstance(row, Stateful) else None
        if tag is None:
            return Response(body)
        if _matches(request.headers.get("If-None-Match", ""), tag):
            return Response(status=304, headers={"ETag": tag})
        return Response(body, headers={"ETag": tag})

    def filter_queryset(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """A detail is found by its id alone; filters belong to lists."""
        return queryset if self.detail else super().filter_queryset(queryset)

    def serialize(self, what: Any, *, many: bool = False, rows: Sequence[Any] | None = None) -> BaseSerializer[Any]:
        """``get_serializer`` with what :meth:`beside` reads for all rows of the answer at once."""
        context = {**self.get_serializer_context(), **self.beside(what if rows is None else rows)}
        return self.get_serializer_class()(what, many=many, context=context)

    def beside(self, rows: Sequence[Any]) -> dict[str, Any]:
        """What the serializer needs from other tables: a fixed number of queries for any number of rows."""
        return {}

    def json(self, body: Any) -> bytes:
        content = self.get_renderers()[0].render(body)
        return content.encode() if isinstance(content, str) else content


def etag(row: Stateful, content: bytes) -> str:
    """Strong: the version names the state a later write must have seen, the digest covers what else the answer shows
    (a job's attempts, a place in line), which changes without the row's version."""
    return f'"{row.subject_kind}-{row.pk}-v{row.version}-{hashlib.sha256(content).hexdigest()[:12]}"'


def _matches(header: str, tag: str) -> bool:
    return header.strip() == "*" or tag in (part.strip().removeprefix("W/") for part in header.split(","))


class Projects(Reads):
    queryset = Project.objects.select_related("home_host")
    serializer_class = s.ProjectSerializer
    filters = {"name": by_text("name", "name")}


class Graphs(Reads):
    queryset = Graph.objects.select_related("project")
    filters = {
        "project": by_id("project", "project"),
        "state": by_state(GraphState),
        "name": by_text("name", "name"),
    }

    def get_serializer_class(self) -> Any:
        return s.GraphDetailSerializer if self.detail else s.GraphSerializer

    def get_queryset(self) -> QuerySet[Any]:
        graphs: QuerySet[Any] = super().get_queryset()
        return graphs if self.detail else graphs.defer("document")  # may be a megabyte each

    def beside(self, rows: Sequence[Model]) -> dict[str, Any]:
        return {"node_counts": selectors.node_counts([row.pk for row in rows])}


JOBS = Job.objects.prefetch_related("attempts__host")


def _attempts(jobs: Sequence[Job]) -> list[Attempt]:
    return [attempt for job in jobs for attempt in job.attempts.all()]


class Nodes(Reads):
    queryset = Node.objects.all()
    filters = {
        "graph": by_id("graph", "graph"),
        "project": by_id("project", "project"),
        "state": by_state(NodeState),
        "key": by_text("key", "key"),
    }

    def get_serializer_class(self) -> Any:
        return s.NodeDetailSerializer if self.detail else s.NodeSerializer

    def beside(self, rows: Sequence[Any]) -> dict[str, Any]:
        if not self.detail:
            return {}
        jobs = list(JOBS.filter(owner__in=[node.subject for node in rows]).order_by("pk"))
        return {
            "waits": selectors.unmet_inputs(rows),
            "jobs": jobs,
            "checkouts": selectors.checkouts_of(_attempts(jobs)),
        }


class Jobs(Reads):
    queryset = JOBS
    serializer_class = s.JobSerializer
    filters = {
        "project": by_id("project", "project"),
        "owner": by_text("owner", "owner, like `node:42`"),
        "state": by_state(JobState),
    }

    def beside(self, rows: Sequence[Any]) -> dict[str, Any]:
        return {"checkouts": selectors.checkouts_of(_attempts(rows))}


class Attempts(Reads):
    queryset = Attempt.objects.select_related("host")
    serializer_class = s.AttemptSerializer
    filters = {
        "job": by_id("job", "job"),
        "project": by_id("project", "project"),
        "host": by_text("host__name", "host"),
        "state": by_state(AttemptState),
    }

    def beside(self, rows: Sequence[Any]) -> dict[str, Any]:
        return {"checkouts": selectors.checkouts_of(rows)}

    @extend_schema(
        responses=s.OutputSerializer,
        parameters=[
            OpenApiParameter("stream", OpenApiTypes.STR, enum=output.STREAMS, default="stdout"),
            OpenApiParameter("offset", OpenApiTypes.INT64, description="bytes; negative: that many before the end"),
            OpenApiParameter("limit", OpenApiTypes.INT32, description=f"bytes, at most {output.LIMIT}"),
        ],
    )
    @action(detail=True, url_path="output")
    def output(self, request: ApiRequest, pk: str) -> Response:
        """What the attempt wrote, from an offset on. Poll with ``nextOffset`` until ``ended``."""
        refuse_unknown(request, ("stream", "offset", "limit"))
        attempt = self.get_object()
        piece = output.read(
            attempt,
            stream=request.query_params.get("stream", "stdout"),
            offset=_number(request, "offset", 0),
            limit=_number(request, "limit", output.LIMIT),
        )
        return Response(s.OutputSerializer(piece.as_json()).data)


class Leases(Reads):
    queryset = Lease.objects.select_related("resource", "request")
    serializer_class = s.LeaseSerializer
    filters = {
        "project": by_id("project", "project"),
        "holder": by_text("request__holder", "holder, like `attempt:42`"),
        "state": by_state(LeaseState),
        "key": by_text("resource__key", "resource's key"),
        "blocking": by_flag("only leases that others have to wait for", Q(state__in=BLOCKING)),
    }


class LeaseRequests(Reads):
    """Bundles of claims. A waiting one names what stops it: a request that goes first or holds the grant, or a
    resource whose units are all in use."""

    queryset = Request.objects.select_related("stopped_by", "line__short_of").prefetch_related("claims__resource")
    serializer_class = s.LeaseRequestSerializer
    filters = {
        "project": by_id("project", "project"),
        "holder": by_text("holder", "holder, like `attempt:42`"),
        "state": by_state(RequestState),
    }


class QueueEntries(Reads):
    """The integration queue: what offers to land, its place in line and what its checks say."""

    queryset = Entry.objects.select_related("candidate").prefetch_related("checks")
    serializer_class = s.EntrySerializer
    filters = {
        "project": by_id("project", "project"),
        "owner": by_text("owner", "owner, like `node:42`"),
        "state": by_state(EntryState),
    }

    def beside(self, rows: Sequence[Any]) -> dict[str, Any]:
        return {"places": selectors.places_in_line({row.project_id for row in rows})}


def _after(value: int) -> Q:
    return Q(pk__gt=value)


def _of_topics(topics: frozenset[Topic]) -> Q:
    condition = Q()
    for topic in topics:
        condition |= topic.condition()
    return condition


class Events(Reads):
    """The journal, oldest first. ``since`` the sequence last seen; the live continuation is `/api/v1/events/stream`."""

    queryset = Event.objects.all()
    serializer_class = s.EventSerializer
    pagination_class = ByOldest
    filters = {
        "since": Filter("only events after this sequence", int, _after, {"type": "integer"}),
        "topics": Filter(
            "`*`, `project:<id>`, `graph:<id>`, separated by commas", parse_topics, _of_topics, {"type": "string"}
        ),
        "subject": by_text("subject", "subject, like `node:42`"),
        "kind": by_text("kind", "kind, like `node.running`"),
    }


class AttentionItems(Reads):
    """What only a person can decide."""

    queryset = AttentionItem.objects.all()
    serializer_class = s.AttentionSerializer
    filters = {
        "project": by_id("project", "project"),
        "code": by_text("code", "code"),
        "open": by_flag("only those nobody has decided yet", Q(resolved_at=None)),
    }


def _number(request: ApiRequest, name: str, default: int) -> int:
    try:
        return int(request.query_params.get(name, default))
    except ValueError:
        raise InvalidInput(f"{name} is a whole number.", parameter=name) from None
