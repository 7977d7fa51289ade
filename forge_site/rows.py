"""What the pages show of nodes and queues, in words, read in a fixed number of queries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from core.models import CancelIntent
from forge_site import selectors
from forge_site.looks import look
from forge_site.pictures import Span, Vertex
from graphs.models import Graph, Node
from graphs.states import NodeState
from integration.models import Entry
from integration.states import EntryState
from jobs.models import Attempt
from jobs.states import ATTEMPT_ENDED
from leases.models import Request
from leases.states import RequestState


@dataclass(frozen=True)
class Reason:
    """Why something does not go on: words, and where to look."""

    text: str
    key: str = ""  # of the node that has to end first
    more: int = 0


@dataclass(frozen=True)
class NodeRow:
    node: Node
    since: datetime | None
    attempt: Attempt | None
    reasons: list[Reason] = field(default_factory=list)
    cancelling: bool = False


def node_rows(nodes: Sequence[Node]) -> list[NodeRow]:
    """Each node with its newest attempt and what it waits for."""
    attempts = {owner: made[-1] for owner, made in selectors.attempts_of([node.subject for node in nodes]).items()}
    waits = selectors.unmet_inputs(node for node in nodes if node.state == NodeState.PENDING)
    stoppers = _stoppers([a.request_id for a in attempts.values() if a.request_id and a.state not in ATTEMPT_ENDED])
    entries = _entries([node.subject for node in nodes if node.state == NodeState.VALIDATING])
    intents = set(CancelIntent.objects.filter(subject__in=[n.subject for n in nodes]).values_list("subject", flat=True))
    rows = []
    for node in nodes:
        attempt = attempts.get(node.subject)
        reasons = (
            _inputs(waits.get(node.pk, []))
            or (stoppers.get(attempt.request_id or 0, []) if attempt else [])
            or entries.get(node.subject, [])
            or _outcome(node)
        )
        rows.append(NodeRow(node, _since(node, attempt), attempt, reasons, node.subject in intents))
    return rows


def _since(node: Node, attempt: Attempt | None) -> datetime | None:
    if node.ended_at or attempt is None or node.state == NodeState.PENDING:
        return node.ended_at
    return attempt.ended_at or attempt.started_at or attempt.created_at


def _inputs(waits: Sequence[selectors.Wait]) -> list[Reason]:
    shown = [Reason("" if wait.kind == "success" else f"the {wait.kind} of", wait.key) for wait in waits[:3]]
    return [*shown, Reason("", more=len(waits) - 3)] if len(waits) > 3 else shown


def _outcome(node: Node) -> list[Reason]:
    message = node.outcome.get("message") or node.outcome.get("code")
    return [Reason(str(message))] if message else []


def _stoppers(request_ids: Collection[int]) -> dict[int, list[Reason]]:
    """Per waiting request, who or what has to end first."""
    waiting = Request.objects.filter(pk__in=request_ids, state=RequestState.WAITING)
    requests = list(waiting.select_related("stopped_by", "line__short_of"))
    names = names_of([r.stopped_by.holder for r in requests if r.stopped_by])
    return {request.pk: [_stopper(request, names)] for request in requests}


def _stopper(request: Request, names: Mapping[str, str]) -> Reason:
    if request.suspended:
        return Reason("suspended")
    if request.stopped_by:
        key = names.get(request.stopped_by.holder, "")
        held = request.stopped_by.state == RequestState.GRANTED
        return Reason("held by" if held else "after", key) if key else Reason(f"held by {request.stopped_by.holder}")
    if request.line and request.line.short_of:
        return Reason(f"no free unit of {request.line.short_of.key}")
    return Reason("leases asked for")


def names_of(holders: Iterable[str]) -> dict[str, str]:
    """Per holder (`attempt:42`, `entry:7`) the key of the node it works for."""
    attempts = {int(h.partition(":")[2]): h for h in holders if h.startswith("attempt:")}
    entries = {int(h.partition(":")[2]): h for h in holders if h.startswith("entry:")}
    owners: dict[str, str] = {}
    if attempts:
        owners |= {attempts[pk]: o for pk, o in Attempt.objects.filter(pk__in=attempts).values_list("pk", "job__owner")}
    if entries:
        owners |= {entries[pk]: o for pk, o in Entry.objects.filter(pk__in=entries).values_list("pk", "owner")}
    keys = keys_of(owners.values())
    return {holder: keys[owner] for holder, owner in owners.items() if owner in keys}


def keys_of(owners: Iterable[str]) -> dict[str, str]:
    """Per owner `node:42`, its key."""
    return {subject: node.key for subject, node in nodes_of(owners).items()}


def nodes_of(owners: Iterable[str]) -> dict[str, Node]:
    """Per owner `node:42`, the node, with its graph."""
    ids = [int(owner.partition(":")[2]) for owner in owners if owner.startswith("node:")]
    found = Node.objects.filter(pk__in=ids).select_related("graph").defer("spec", "graph__document")
    return {node.subject: node for node in found}


def _entries(owners: Collection[str]) -> dict[str, list[Reason]]:
    entries = list(Entry.objects.filter(owner__in=owners, state__in=selectors.IN_LINE).prefetch_related("checks"))
    places = selectors.places_in_line({entry.project_id for entry in entries})
    return {entry.owner: [Reason(_entry_words(entry, places))] for entry in entries}


ENTRY_WORDS: Mapping[str, str] = {
    EntryState.REFRESHING: "is being replayed onto the newest commit",
    EntryState.CHECKING: "its checks run",
    EntryState.LANDING: "is landing",
}


def _entry_words(entry: Entry, places: Mapping[int, int]) -> str:
    if held := entry.hold.get("message"):
        return str(held)
    return ENTRY_WORDS.get(entry.state) or f"place {places.get(entry.pk, '?')} in line"


@dataclass(frozen=True)
class QueueRow:
    entry: Entry
    place: int | None
    node: Node | None
    checks: list[Any]


def queue_rows(project_ids: Collection[int], *, graph: Graph | None = None) -> list[QueueRow]:
    """The line of each project; with ``graph``, only what this graph has in it (places stay those of the whole line)."""
    entries = Entry.objects.filter(project__in=project_ids, state__in=selectors.IN_LINE)
    if graph:
        entries = entries.filter(graph_revision=graph.revision)
    found = list(entries.select_related("candidate", "project").prefetch_related("checks"))
    places = selectors.places_in_line(project_ids)
    nodes = nodes_of(entry.owner for entry in found)
    rows = [
        QueueRow(e, places.get(e.pk), nodes.get(e.owner), [c for c in e.checks.all() if c.commit == e.offered])
        for e in found
    ]
    return sorted(rows, key=lambda row: (row.entry.project.name, row.place or 0))


def vertices(nodes: Iterable[Node]) -> list[Vertex]:
    return [Vertex(n.pk, n.key, n.title or n.key, n.state, look("node", n.state)) for n in nodes]


def spans(rows: Sequence[NodeRow], attempts: Mapping[str, Sequence[Attempt]]) -> list[Span]:
    """Every attempt of these nodes that has started."""
    return [
        Span(row.node.key, attempt.number, look("attempt", attempt.state), attempt.started_at, attempt.ended_at)
        for row in rows
        for attempt in attempts.get(row.node.subject, ())
        if attempt.started_at
    ]
