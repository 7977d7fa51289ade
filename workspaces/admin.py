"""The registry of checkouts, to look at."""

from django.contrib import admin

from core.admin import ReadOnlyAdmin
from workspaces.models import Checkout


@admin.register(Checkout)
class CheckoutAdmin(ReadOnlyAdmin):
    list_display = ("owner", "state", "path", "branch_ref", "project", "created_at")
    list_select_related = ("project",)
    list_filter = ("state", "project")
    search_fields = ("=owner",)
