"""What the API says about each row. Reads only; JSON names are camelCase, made here once."""

from __future__ import annotations

import json
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from core.models import AttentionItem, Event, Project
from forge_site.problems import camel
from graphs.models import Graph, Node
from graphs.states import NodeState
from integration.models import Check, Entry
from jobs.models import Attempt, Job
from leases.models import Claim, Lease, Request, Resource
from workspaces.models import Checkout

OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": True}


@extend_schema_field(OBJECT)
class ObjectField(serializers.JSONField):
    """A JSON object whose members are not fixed here."""


@extend_schema_field({"type": "array", "items": OBJECT})
class ObjectsField(serializers.JSONField):
    """A list of such objects."""


@extend_schema_field({"type": "array", "items": {"type": "string"}})
class WordsField(serializers.JSONField):
    """A list of strings."""


class Camel(serializers.ModelSerializer[Any]):
    """A model serializer whose JSON names are camelCase."""

    def get_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, field in super().get_fields().items():
            if camel(name) != name and field.source is None:
                field.source = name
            if isinstance(field, serializers.SerializerMethodField) and field.method_name is None:
                field.method_name = f"get_{name}"
            fields[camel(name)] = field
        return fields


class ProjectSerializer(Camel):
    home_host = serializers.CharField(source="home_host.name")
    checks = ObjectsField()

    class Meta:
        model = Project
        fields = [
            "id", "name", "workspace", "git_dir", "target_ref", "checks", "push_remote", "parallelism", "home_host",
            "frozen_reason", "graph_revision", "created_at",
        ]  # fmt: skip


class GraphSerializer(Camel):
    project_name = serializers.CharField(source="project.name")
    node_counts = serializers.SerializerMethodField(help_text="newest generation of each key, by state")

    class Meta:
        model = Graph
        fields = [
            "id", "project", "project_name", "name", "run", "title", "execution_mode", "state", "version", "revision",
            "digest", "parallelism", "open_nodes", "node_counts", "actor", "created_at", "ended_at",
        ]  # fmt: skip

    @extend_schema_field({"type": "object", "additionalProperties": {"type": "integer"}})
    def get_node_counts(self, graph: Graph) -> dict[str, int]:
        return dict(self.context["node_counts"].get(graph.pk, {}))


class GraphDetailSerializer(GraphSerializer):
    document = serializers.SerializerMethodField(help_text="the admitted document")

    class Meta(GraphSerializer.Meta):
        fields = [*GraphSerializer.Meta.fields, "document"]

    @extend_schema_field(OBJECT)
    def get_document(self, graph: Graph) -> Any:
        return json.loads(graph.document)


class NodeSerializer(Camel):
    ready = serializers.SerializerMethodField(help_text="not dispatched yet, and nothing stands in its way")
    outcome = ObjectField()

    class Meta:
        model = Node
        fields = [
            "id", "project", "graph", "key", "generation", "title", "state", "version", "ready", "position", "level",
            "job", "dispatches",
            "unmet_inputs", "revisions", "outcome", "accepted_commit", "started_at", "ended_at",
        ]  # fmt: skip

    def get_ready(self, node: Node) -> bool:
        return node.state == NodeState.PENDING and node.unmet_inputs == 0


class WaitSerializer(serializers.Serializer[Any]):
    """An input that is not there yet."""

    nodeId = serializers.IntegerField(source="node_id")
    key = serializers.CharField()
    state = serializers.CharField()
    kind = serializers.CharField()


class FenceSerializer(serializers.Serializer[Any]):
    """The right to write: refused once the token is no longer the grant's."""

    attempt = serializers.IntegerField()
    grant = serializers.IntegerField()
    token = serializers.IntegerField()


class CheckoutSerializer(Camel):
    class Meta:
        model = Checkout
        fields = ["path", "branch_ref", "base", "state"]


class AttemptSerializer(Camel):
    host = serializers.CharField(source="host.name")
    fence = serializers.SerializerMethodField(help_text="null until its leases are granted")
    checkout = serializers.SerializerMethodField(help_text="null: it works in the project's own workspace")
    evidence = ObjectField(help_text="the exit receipt, or what was found instead")

    class Meta:
        model = Attempt
        fields = [
            "id", "project", "job", "number", "state", "version", "host", "fence", "checkout",
            "boot_id", "pid", "start_ticks", "shim_pid", "deadline_at", "stop_reason", "exit_code", "cause", "evidence",
            "created_at", "started_at", "ended_at",
        ]  # fmt: skip

    @extend_schema_field(FenceSerializer(allow_null=True))
    def get_fence(self, attempt: Attempt) -> dict[str, int] | None:
        if attempt.fence_token is None or attempt.request_id is None:
            return None
        return {"attempt": attempt.pk, "grant": attempt.request_id, "token": attempt.fence_token}

    @extend_schema_field(CheckoutSerializer(allow_null=True))
    def get_checkout(self, attempt: Attempt) -> Any:
        checkout = self.context["checkouts"].get(attempt.pk)
        return CheckoutSerializer(checkout).data if checkout else None


class JobSerializer(Camel):
    argv = WordsField()
    env_names = serializers.SerializerMethodField(help_text="values may be secrets and are not shown")
    attempts = AttemptSerializer(many=True)

    class Meta:
        model = Job
        fields = [
            "id", "project", "owner", "request_id", "state", "version", "argv", "env_names", "own_checkout", "base",
            "branch_prefix", "deadline_s", "grace_s", "output_limit", "priority", "retry_class", "attempt_budget",
            "attempts_made", "settled", "created_at", "ended_at", "attempts",
        ]  # fmt: skip

    @extend_schema_field({"type": "array", "items": {"type": "string"}})
    def get_env_names(self, job: Job) -> list[str]:
        return sorted(job.env)


class NodeDetailSerializer(NodeSerializer):
    spec = ObjectField()
    waits_for = serializers.SerializerMethodField()
    jobs = serializers.SerializerMethodField(help_text="newest last")

    class Meta(NodeSerializer.Meta):
        fields = [*NodeSerializer.Meta.fields, "spec", "waits_for", "jobs"]

    @extend_schema_field(WaitSerializer(many=True))
    def get_waits_for(self, node: Node) -> Any:
        return WaitSerializer(self.context["waits"].get(node.pk, []), many=True).data

    @extend_schema_field(JobSerializer(many=True))
    def get_jobs(self, node: Node) -> Any:
        return JobSerializer(self.context["jobs"], many=True, context=self.context).data


class ResourceSerializer(Camel):
    class_ = serializers.CharField(source="resource_class")

    class Meta:
        model = Resource
        fields = ["id", "class_", "key", "capacity"]

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        return {"id": fields.pop("id"), "class": fields.pop("class"), **fields}


class ClaimSerializer(Camel):
    resource = ResourceSerializer()

    class Meta:
        model = Claim
        fields = ["resource", "access", "mode", "resource_version", "isolated", "units"]


class LeaseSerializer(Camel):
    resource = ResourceSerializer()
    holder = serializers.CharField(source="request.holder")

    class Meta:
        model = Lease
        fields = [
            "id", "project", "resource", "access", "mode", "resource_version", "isolated", "units", "state", "version",
            "token", "request", "holder", "granted_at", "expires_at", "ended_at",
        ]  # fmt: skip


class StopperSerializer(Camel):
    """Whose end would free the way."""

    request = serializers.IntegerField(source="pk")
    since = serializers.DateTimeField(source="granted_at", allow_null=True)

    class Meta:
        model = Request
        fields = ["request", "holder", "state", "project", "since"]


class LeaseRequestSerializer(Camel):
    claims = ClaimSerializer(many=True)
    stopped_by = StopperSerializer(allow_null=True)
    short_of = ResourceSerializer(source="line.short_of", default=None, allow_null=True)

    class Meta:
        model = Request
        fields = [
            "id", "project", "holder", "state", "version", "rank", "priority", "suspended", "planned", "token",
            "claims", "stopped_by", "short_of", "stopped_since", "created_at", "granted_at", "ended_at",
        ]  # fmt: skip


class CheckSerializer(Camel):
    class Meta:
        model = Check
        fields = ["id", "name", "state", "version", "commit", "job"]


class EntrySerializer(Camel):
    place = serializers.SerializerMethodField(help_text="in line; 1 is next or landing, null: no longer in line")
    attempt = serializers.IntegerField(source="candidate.attempt_id")
    title = serializers.CharField(source="candidate.title")
    checks = CheckSerializer(many=True)
    required_checks = ObjectsField()
    hold = ObjectField(help_text="why it must wait although it is its turn")
    proof = ObjectField()
    receipt = ObjectField()

    class Meta:
        model = Entry
        fields = [
            "id", "project", "owner", "title", "candidate", "attempt", "state", "version", "place",
            "graph_revision", "position", "target_ref", "required_checks", "checks", "base", "offered", "offered_tree",
            "hold", "not_before", "refreshed", "proof", "receipt", "created_at", "ended_at",
        ]  # fmt: skip

    @extend_schema_field({"type": ["integer", "null"]})
    def get_place(self, entry: Entry) -> int | None:
        place: int | None = self.context["places"].get(entry.pk)
        return place


class EventSerializer(Camel):
    data = ObjectField()  # type: ignore[assignment]  # DRF has a property of this name; the metaclass takes the field away

    class Meta:
        model = Event
        fields = ["seq", "at", "project", "subject", "kind", "actor", "data"]


class AttentionSerializer(Camel):
    evidence = ObjectField()

    class Meta:
        model = AttentionItem
        fields = [
            "id", "key", "project", "subject", "code", "message", "next_action", "evidence", "opened_at", "resolved_at",
        ]  # fmt: skip


class OutputSerializer(serializers.Serializer[Any]):
    """A piece of what an attempt wrote. ``nextOffset`` is where the next piece starts."""

    stream = serializers.CharField()
    offset = serializers.IntegerField()
    nextOffset = serializers.IntegerField()
    dropped = serializers.IntegerField(help_text="bytes between offset and the text that were not kept")
    ended = serializers.BooleanField(help_text="the writer is gone: an empty piece is then the last")
    text = serializers.CharField(help_text="UTF-8; other bytes are replaced")


class ProblemSerializer(serializers.Serializer[Any]):
    """RFC 9457, with `code`, which never changes its meaning, and the facts of the error as further members."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    code = serializers.CharField()
    detail = serializers.CharField()
    instance = serializers.CharField()
