"""Reads that span apps, each a fixed number of queries however many rows it serves. REST and pages share them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from django.db.models import Count, Exists, F, OuterRef, QuerySet

from core.models import EventCounter
from graphs.models import Edge, Node
from graphs.states import ENDED, SUCCESS
from integration.models import Entry
from integration.states import CLAIMED, EntryState
from jobs.models import Attempt
from workspaces.models import Checkout

IN_LINE = (EntryState.QUEUED, *CLAIMED)


def journal_head() -> int:
    """The sequence up to which whatever is read from now on is at least true."""
    return EventCounter.objects.filter(pk=1).values_list("last_seq", flat=True).first() or 0


def current_nodes(graph_ids: Collection[int]) -> QuerySet[Node]:
    """The newest generation of each key: what the graph is now, in topological order."""
    newer = Node.objects.filter(graph=OuterRef("graph"), key=OuterRef("key"), generation__gt=OuterRef("generation"))
    nodes: QuerySet[Node] = Node.objects.filter(~Exists(newer), graph__in=graph_ids).order_by("graph", "position", "id")
    return nodes


def node_counts(graph_ids: Collection[int]) -> dict[int, Counter[str]]:
    """Per graph, how many of its nodes are in which state."""
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    grouped = current_nodes(graph_ids).order_by().values_list("graph", "state").annotate(number=Count("pk"))
    for graph, state, number in grouped:
        counts[graph][state] = number
    return counts


def places_in_line(project_ids: Collection[int]) -> dict[int, int]:
    """Per entry that has not ended, its place in its project's queue; 1 is next or being landed.

    A claimed entry comes first whatever its order: nothing overtakes it.
    """
    lines: dict[int, list[int]] = defaultdict(list)
    waiting = Entry.objects.filter(project__in=project_ids, state__in=IN_LINE).order_by(
        "graph_revision", "position", "id"
    )
    rows = waiting.values_list("project_id", "pk", "state")
    for project, entry, _ in sorted(rows, key=lambda row: row[2] not in CLAIMED):
        lines[project].append(entry)
    return {entry: place for line in lines.values() for place, entry in enumerate(line, start=1)}


def attempts_of(owners: Collection[str]) -> dict[str, list[Attempt]]:
    """Per owner (`node:42`), all attempts of its jobs, oldest first and numbered as people count them: over all its jobs."""
    found: dict[str, list[Attempt]] = defaultdict(list)
    attempts = Attempt.objects.filter(job__owner__in=owners).select_related("job", "host", "request").order_by("pk")
    for attempt in attempts:
        found[attempt.job.owner].append(attempt)
        attempt.number = len(found[attempt.job.owner])  # for this page only; the row counts inside one job
    return found


def checkouts_of(attempts: Iterable[Attempt]) -> dict[int, Checkout]:
    """Per attempt that works in a checkout of its own, that checkout."""
    by_owner = {attempt.subject: attempt.pk for attempt in attempts}
    return {by_owner[checkout.owner]: checkout for checkout in Checkout.objects.filter(owner__in=by_owner)}


@dataclass(frozen=True)
class Wait:
    """One input a node still waits for."""

    node_id: int
    key: str
    state: str
    kind: str


def unmet_inputs(nodes: Iterable[Node]) -> dict[int, list[Wait]]:
    """Per pending node, the inputs that are not there yet: the names behind the index ``Node.unmet_inputs``."""
    waits: dict[int, list[Wait]] = defaultdict(list)
    targets = [node.pk for node in nodes if node.unmet_inputs]
    edges = Edge.objects.filter(target__in=targets).order_by("source__position", "source_id")
    for target, source, key, state, kind in edges.values_list(
        "target_id", "source_id", F("source__key"), F("source__state"), "kind"
    ):
        if not _is_met(kind, state):
            waits[target].append(Wait(source, key, state, kind))
    return waits


def _is_met(kind: str, state: str) -> bool:
    if kind == "success":
        return state in SUCCESS
    return state in ENDED and (kind == "always" or state not in SUCCESS)
