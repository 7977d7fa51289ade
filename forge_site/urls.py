"""Addresses. ``/health``, ``/ready``, ``/ws/feed`` and the event stream are served beside Django, see ``asgi.py``."""

from django.contrib import admin
from django.contrib.auth.views import LoginView, LogoutView
from django.urls import include, path

from forge_site import pages

handler404 = "forge_site.problems.not_found"
handler500 = "forge_site.problems.server_error"

urlpatterns = [
    path("", pages.overview, name="overview"),
    path("projects/<slug:name>/", pages.project, name="project"),
    path("graphs/<int:pk>/", pages.graph, name="graph"),
    path("graphs/<int:pk>/nodes/<str:key>/", pages.node, name="node"),
    path("login/", LoginView.as_view(template_name="forge/login.html", redirect_authenticated_user=True), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("enter/<str:token>", pages.enter, name="enter"),
    path("admin/", admin.site.urls),
    path("api/v1/", include("forge_site.api.urls")),
]
