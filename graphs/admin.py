"""Graphs, to look at."""

from django.contrib import admin

from core.admin import ReadOnlyAdmin
from graphs.models import Artifact, Edge, Graph, Node


@admin.register(Graph)
class GraphAdmin(ReadOnlyAdmin):
    list_display = (
        "id",
        "name",
        "run",
        "state",
        "project",
        "execution_mode",
        "open_nodes",
        "actor",
        "created_at",
        "ended_at",
    )
    list_select_related = ("project",)
    list_filter = ("state", "execution_mode", "project")
    search_fields = ("name",)


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin):
    list_display = ("id", "key", "generation", "state", "graph", "unmet_inputs", "revisions", "started_at", "ended_at")
    list_select_related = ("graph",)
    list_filter = ("state", "project")
    search_fields = ("=key",)


@admin.register(Edge)
class EdgeAdmin(ReadOnlyAdmin):
    list_display = ("id", "graph", "source", "kind", "target")
    list_select_related = ("graph", "source", "target")


@admin.register(Artifact)
class ArtifactAdmin(ReadOnlyAdmin):
    list_display = ("id", "graph", "name", "artifact_version", "producer")
    list_select_related = ("graph", "producer")
    search_fields = ("=name",)
