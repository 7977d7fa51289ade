"""Candidates and the queue, to look at."""

from typing import Any

from django.contrib import admin

from core.admin import ReadOnlyAdmin
from integration.models import Candidate, Check, Entry


class CheckInline(admin.TabularInline[Any, Any]):
    model = Check
    extra = 0
    can_delete = False


@admin.register(Candidate)
class CandidateAdmin(ReadOnlyAdmin):
    list_display = ("id", "owner", "state", "title", "base", "commit", "project", "settled", "created_at")
    list_select_related = ("project",)
    list_filter = ("state", "settled", "project")
    search_fields = ("=owner",)


@admin.register(Entry)
class EntryAdmin(ReadOnlyAdmin):
    list_display = (
        "id", "owner", "state", "project", "graph_revision", "position", "offered", "refreshed", "created_at", "ended_at",
    )  # fmt: skip
    list_select_related = ("project",)
    list_filter = ("state", "settled", "project")
    search_fields = ("=owner",)
    inlines = (CheckInline,)


@admin.register(Check)
class CheckAdmin(ReadOnlyAdmin):
    list_display = ("id", "name", "state", "entry", "commit", "job")
    list_select_related = ("entry", "job")
    list_filter = ("state", "name")
    search_fields = ("=entry__owner",)
