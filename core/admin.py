"""Records of the core, to look at. Every admin of ours is read-only: what changes a row is a verb, never a form.

A form would write fields past the table of moves, without an event and without the lock order; so no model can be added,
changed or deleted here, whoever asks. Reconciliation has named commands of its own.
"""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from core.models import AccessToken, AttentionItem, CancelIntent, Command, Event, EventCounter, Host, Project


class ReadOnlyAdmin(admin.ModelAdmin[Any]):
    """A model admin that only shows. Counting all rows of a journal takes seconds, so it is not done."""

    actions = None
    show_full_result_count = False
    list_per_page = 50
    ordering = ("-pk",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Host)
class HostAdmin(ReadOnlyAdmin):
    list_display = ("name", "epoch", "slots", "beat_at", "started_at")
    search_fields = ("name",)


@admin.register(Project)
class ProjectAdmin(ReadOnlyAdmin):
    list_display = ("name", "workspace", "target_ref", "parallelism", "home_host", "frozen_reason")
    list_select_related = ("home_host",)
    list_filter = ("home_host",)
    search_fields = ("name",)


@admin.register(Event)
class EventAdmin(ReadOnlyAdmin):
    list_display = ("seq", "at", "kind", "subject", "actor", "project", "data")
    list_select_related = ("project",)
    list_filter = ("project",)
    search_fields = ("=subject",)
    search_help_text = "a subject, exactly: node:42"


@admin.register(EventCounter)
class EventCounterAdmin(ReadOnlyAdmin):
    list_display = ("id", "last_seq", "last_at")


@admin.register(Command)
class CommandAdmin(ReadOnlyAdmin):
    list_display = ("id", "kind", "principal", "request_id", "project", "created_at")
    list_select_related = ("project",)
    list_filter = ("project",)
    search_fields = ("=principal",)


@admin.register(CancelIntent)
class CancelIntentAdmin(ReadOnlyAdmin):
    list_display = ("subject", "project", "actor", "reason", "created_at")
    list_select_related = ("project",)
    search_fields = ("=subject",)


@admin.register(AttentionItem)
class AttentionItemAdmin(ReadOnlyAdmin):
    list_display = ("code", "subject", "message", "project", "opened_at", "resolved_at")
    list_select_related = ("project",)
    list_filter = (("resolved_at", admin.EmptyFieldListFilter), "project")
    search_fields = ("=key",)


@admin.register(AccessToken)
class AccessTokenAdmin(ReadOnlyAdmin):
    """Never its digest: whoever may read records may not collect what an offline search could start from."""

    list_display = ("label", "owner", "single_use", "expires_at", "created_at")
    list_select_related = ("owner",)
    exclude = ("digest",)
    search_fields = ("label",)
