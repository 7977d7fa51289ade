"""``/api/v1/``. No trailing slashes, as the addresses in answers have none."""

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularAPIView
from rest_framework.routers import SimpleRouter

import forge_site.api.schema  # noqa: F401 (registers how bearer tokens are described)
from forge_site.api import views

router = SimpleRouter(trailing_slash=False)
router.register("projects", views.Projects)
router.register("graphs", views.Graphs)
router.register("nodes", views.Nodes)
router.register("jobs", views.Jobs)
router.register("attempts", views.Attempts)
router.register("leases", views.Leases)
router.register("lease-requests", views.LeaseRequests, basename="lease-request")
router.register("queue-entries", views.QueueEntries, basename="queue-entry")
router.register("events", views.Events)
router.register("attention-items", views.AttentionItems, basename="attention-item")


def nothing_here(request: HttpRequest) -> HttpResponse:
    """Before the catch-all of the pages could answer a program with HTML."""
    raise Http404


app_name = "api"
urlpatterns = [
    path("", include(router.urls)),
    path("schema/", SpectacularAPIView.as_view(), name="schema"),
    re_path("", nothing_here),
]
