"""Jobs and attempts, to look at. Environments and prompts may hold secrets and are not shown, nor are key digests."""

from typing import Any

from django.contrib import admin

from core.admin import ReadOnlyAdmin
from jobs.models import Attempt, Job


class AttemptInline(admin.TabularInline[Any, Any]):
    model = Attempt
    fields = ("number", "state", "host", "pid", "fence_token", "exit_code", "cause", "started_at", "ended_at")
    extra = 0
    can_delete = False
    show_change_link = True


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    list_display = (
        "id",
        "owner",
        "state",
        "project",
        "retry_class",
        "attempts_made",
        "attempt_budget",
        "settled",
        "created_at",
    )
    list_select_related = ("project",)
    list_filter = ("state", "settled", "project")
    search_fields = ("=owner", "=request_id")
    exclude = ("env", "stdin")
    inlines = (AttemptInline,)


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin):
    list_display = (
        "id", "job", "number", "state", "host", "pid", "fence_token", "exit_code", "cause", "started_at", "ended_at",
    )  # fmt: skip
    list_select_related = ("job", "host")
    list_filter = ("state", "cause", "host")
    search_fields = ("=job__owner",)
    exclude = ("key_digest",)
