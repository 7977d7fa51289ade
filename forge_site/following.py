"""Following one graph from a terminal: the journal, replayed and then live, until the graph has ended."""

from __future__ import annotations

import select
from collections.abc import Iterator

from django.db.models import Q

from core import wake
from core.models import Event
from graphs.models import Graph
from graphs.states import GraphState

SAFETY_S = 0.5  # a lost wake-up costs this much
LEAST_S = 0.05  # between two looks: a busy system commits hundreds of times a second, and nobody reads so fast


def events_of(graph: Graph, *, since: int | None = None) -> Iterator[Event | None]:
    """Events of a graph and its nodes in order, then None each time all there is has been seen; ends with the graph.

    since: sequence after which to begin; by default that of the graph's admission
    """
    if since is None:
        first = Event.objects.filter(subject=graph.subject).order_by("seq").values_list("seq", flat=True).first()
        since = (first or 1) - 1
    mine = Q(subject=graph.subject) | Q(subject__startswith="node:", data__graph=graph.pk)
    with wake.WakeSocket(wake.FEED) as socket:
        while True:
            socket.drain()
            state = Graph.objects.values_list("state", flat=True).get(pk=graph.pk)
            for event in Event.objects.filter(mine, project=graph.project_id, seq__gt=since).order_by("seq"):
                since = event.seq
                yield event
            yield None
            if state != GraphState.ACTIVE:
                return
            select.select([], [], [], LEAST_S)
            select.select([socket], [], [], SAFETY_S)
