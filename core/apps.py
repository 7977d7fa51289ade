from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class CoreConfig(AppConfig):
    name = "core"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        post_migrate.connect(_ensure_counter, sender=self)


def _ensure_counter(*, using: str, **_: Any) -> None:
    """The one row of the journal's counter: after a migration, and after the flush between two tests."""
    from core.models import EventCounter

    EventCounter.objects.using(using).get_or_create(pk=1)
