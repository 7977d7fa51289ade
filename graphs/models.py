"""Graphs of work, their nodes (one row per generation), edges and artifacts."""

from typing import ClassVar

from django.db import models
from django.db.models import Q

from core.models import Project, Stateful
from graphs.states import ExecutionMode, GraphState, NodeState
from jobs.models import Job


class Graph(Stateful):
    """An admitted document. Its canonical text and digest never change; amendments add revisions (a later capability)."""

    subject_kind: ClassVar[str] = "graph"

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="graphs")
    name = models.CharField(max_length=63)
    run = models.PositiveIntegerField(
        default=1, help_text="the same document may be run again: name and run are unique"
    )
    title = models.CharField(max_length=200, blank=True)
    execution_mode = models.CharField(max_length=16, choices=[(m, m) for m in ExecutionMode])
    document = models.TextField(help_text="canonical JSON")
    digest = models.CharField(max_length=71)
    revision = models.PositiveBigIntegerField(help_text="of the project's graphs: only grows")
    parallelism = models.PositiveIntegerField(null=True)
    open_nodes = models.PositiveIntegerField(help_text="index: nodes not ended")
    actor = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["project", "open_nodes"], condition=Q(state="active"), name="graph_active")]
        constraints = [
            models.UniqueConstraint(fields=["project", "name", "run"], name="graph_run_once"),
            models.CheckConstraint(condition=Q(state__in=[s.value for s in GraphState]), name="graph_state_known"),
        ]

    def __str__(self) -> str:
        return f"{self.name} #{self.run}"


class Node(Stateful):
    """One piece of work. Identity: graph, key, generation."""

    subject_kind: ClassVar[str] = "node"

    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    graph = models.ForeignKey(Graph, on_delete=models.PROTECT, related_name="nodes")
    key = models.CharField(max_length=63)
    generation = models.PositiveIntegerField(default=1)
    title = models.CharField(max_length=200, blank=True)
    spec = models.JSONField(help_text="its part of the document, defaults folded in")
    position = models.PositiveIntegerField(help_text="in the stable topological order")
    level = models.PositiveIntegerField(help_text="for display")
    unmet_inputs = models.PositiveIntegerField(help_text="rebuildable index: incoming edges not satisfied")
    job = models.OneToOneField(
        Job, null=True, on_delete=models.PROTECT, related_name="node", help_text="of its newest dispatch"
    )
    dispatches = models.PositiveIntegerField(default=0)
    revisions = models.PositiveIntegerField(default=0)
    outcome = models.JSONField(default=dict, help_text="why it ended or is being revised: code, message")
    accepted_commit = models.CharField(max_length=64, blank=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["graph", "position"]
        indexes = [
            models.Index(
                fields=["project", "graph", "position"], condition=Q(state="pending", unmet_inputs=0), name="node_ready"
            ),
            models.Index(fields=["project"], condition=Q(state="revising"), name="node_revising"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["graph", "key", "generation"], name="node_identity"),
            models.CheckConstraint(condition=Q(state__in=[s.value for s in NodeState]), name="node_state_known"),
        ]

    def __str__(self) -> str:
        return self.key


class Edge(models.Model):
    """`target` waits for `source`: for its success, its failure, or its end."""

    graph = models.ForeignKey(Graph, on_delete=models.PROTECT, related_name="edges")
    source = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="outgoing")
    target = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="incoming")
    kind = models.CharField(max_length=8, choices=[(k, k) for k in ("success", "failure", "always")])

    class Meta:
        constraints = [models.UniqueConstraint(fields=["source", "target"], name="edge_once")]


class Artifact(models.Model):
    """A version of a named artifact, and the node that produces it (null: history)."""

    graph = models.ForeignKey(Graph, on_delete=models.PROTECT, related_name="artifacts")
    name = models.CharField(max_length=200)
    artifact_version = models.PositiveIntegerField()
    producer = models.ForeignKey(Node, null=True, on_delete=models.PROTECT, related_name="produced")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["graph", "name", "artifact_version"], name="artifact_produced_once")
        ]
