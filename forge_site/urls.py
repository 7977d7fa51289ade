"""Addresses. ``/health``, ``/ready``, ``/ws/feed`` and the event stream are served beside Django, see ``asgi.py``."""

from django.contrib import admin
from django.urls import include, path

handler404 = "forge_site.problems.not_found"
handler500 = "forge_site.problems.server_error"

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1/", include("forge_site.api.urls")),
]
