"""Reads of what every app stands on."""

from __future__ import annotations

from django.db.models import Exists, OuterRef

from core import rows
from core.errors import NotFound
from core.models import CancelIntent, Event, Project
from core.names import did_you_mean

COORDINATOR = "coordinator"  # the actor of what advance() does by itself: no news to itself


class ProjectNotFound(NotFound):
    """No project of this name is registered. `forge project list` shows those there are."""

    code = "project_not_found"


def project_named(name: str) -> Project:
    try:
        return Project.objects.get(name=name)
    except Project.DoesNotExist:
        known = Project.objects.values_list("name", flat=True)
        hint = did_you_mean(name, known, what="registered projects")
        raise ProjectNotFound(f"No project named {name!r} is registered.{hint}", name=name) from None


def latest_seq() -> int:
    """How far the journal goes. Read it before the data it is shown with."""
    return int(rows.fetch("SELECT last_seq FROM core_eventcounter WHERE id = 1", [])[0][0])


def projects_with_news(host_id: int) -> list[int]:
    """Projects of this host in which something happened that their coordinator has not seen; ascending, which is lock order."""
    news = Event.objects.filter(project=OuterRef("pk"), seq__gt=OuterRef("advanced_seq")).exclude(actor=COORDINATOR)
    return list(Project.objects.filter(Exists(news), home_host=host_id).order_by("pk").values_list("pk", flat=True))


def is_cancelled(*subjects: str) -> bool:
    """Whether any of the subjects (a row and its ancestors) has a cancel intent."""
    return CancelIntent.objects.filter(subject__in=subjects).exists()
