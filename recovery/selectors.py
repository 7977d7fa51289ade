"""What the tick has to look at, each found by an index."""

from __future__ import annotations

import hashlib
from typing import Any

from django.db.models import Q, QuerySet
from django.utils import timezone

from core.models import AttentionItem, Project
from core.selectors import projects_with_news
from integration.models import Candidate, Entry
from integration.states import CandidateState, EntryState
from workspaces.models import Checkout
from workspaces.states import CheckoutState

STUCK = "effect:"  # semantic key of an effect that failed when it was last tried, with its subject


def projects_to_advance(host_id: int) -> set[int]:
    """Those with news, and those whose queue waits for a moment that has come."""
    held = Entry.objects.filter(
        project__home_host=host_id, state=EntryState.QUEUED, not_before__lte=timezone.now()
    ).values_list("project_id", flat=True)
    return {*projects_with_news(host_id), *held}


def waits_for_a_moment() -> bool:
    """Whether something becomes due by the clock alone: a held entry, a push to be tried again."""
    return (
        Entry.objects.filter(not_before__isnull=False, settled=False).exists()
        or Entry.objects.filter(push_due=True).exists()
    )


def projects_with_due_effects(host_id: int) -> set[int]:
    """Projects of this host with an intent that waits for git."""
    due: list[QuerySet[Any]] = [
        Checkout.objects.filter(state__in=[CheckoutState.ADDING, CheckoutState.REMOVING]),
        Candidate.objects.filter(state=CandidateState.SEALING, settled=False),
        Entry.objects.filter(state__in=[EntryState.REFRESHING, EntryState.LANDING], settled=False),
        pushes_due(),
    ]
    return {pk for rows in due for pk in rows.filter(project__home_host=host_id).values_list("project_id", flat=True)}


def pushes_due() -> QuerySet[Entry]:
    return Entry.objects.filter(Q(not_before=None) | Q(not_before__lte=timezone.now()), push_due=True)


def repositories_with_due_effects(host_id: int) -> set[str]:
    projects = projects_with_due_effects(host_id)
    return {
        repository_name(git_dir)
        for git_dir in Project.objects.filter(pk__in=projects).values_list("git_dir", flat=True)
    }


def repository_name(git_dir: str) -> str:
    """Short and safe as a file name; two projects of one repository have the same."""
    return hashlib.sha256(git_dir.encode()).hexdigest()[:16]


def stuck_subjects(project_id: int) -> set[str]:
    """Subjects whose effect failed when it was last tried."""
    keys = AttentionItem.objects.filter(project=project_id, resolved_at=None, key__startswith=STUCK)
    return {key.removeprefix(STUCK) for key in keys.values_list("key", flat=True)}
