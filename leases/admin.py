"""Records of the broker, to look at."""

from typing import Any

from django.contrib import admin

from core.admin import ReadOnlyAdmin
from leases.models import Broker, Claim, Lease, Line, Request, Resource


class ClaimInline(admin.TabularInline[Any, Any]):
    model = Claim
    extra = 0
    can_delete = False


class LeaseInline(admin.TabularInline[Any, Any]):
    model = Lease
    extra = 0
    can_delete = False


@admin.register(Broker)
class BrokerAdmin(ReadOnlyAdmin):
    list_display = ("id", "last_token", "reserving")


@admin.register(Resource)
class ResourceAdmin(ReadOnlyAdmin):
    list_display = ("key", "resource_class", "capacity", "last_token", "freed")
    list_filter = ("resource_class",)
    search_fields = ("key__startswith",)
    search_help_text = "the beginning of a key"


@admin.register(Line)
class LineAdmin(ReadOnlyAdmin):
    list_display = ("id", "project", "demand", "short_of", "last_token")
    list_select_related = ("project", "short_of")
    list_filter = ("project",)


@admin.register(Request)
class RequestAdmin(ReadOnlyAdmin):
    list_display = (
        "id",
        "holder",
        "state",
        "project",
        "priority",
        "suspended",
        "stopped_by",
        "line",
        "token",
        "created_at",
    )
    list_select_related = ("project", "stopped_by", "line__project")
    list_filter = ("state", "suspended", "project")
    search_fields = ("=holder",)
    inlines = (ClaimInline, LeaseInline)


@admin.register(Claim)
class ClaimAdmin(ReadOnlyAdmin):
    list_display = ("id", "request", "resource", "access", "mode", "units", "pending")
    list_select_related = ("request", "resource")
    list_filter = ("access", "pending")
    search_fields = ("=request__holder",)


@admin.register(Lease)
class LeaseAdmin(ReadOnlyAdmin):
    list_display = (
        "id",
        "resource",
        "access",
        "units",
        "state",
        "token",
        "request",
        "granted_at",
        "expires_at",
        "ended_at",
    )
    list_select_related = ("resource", "request")
    list_filter = ("state", "access")
    search_fields = ("=request__holder",)
