"""The dashboard's pages: server-rendered, useful without JavaScript. Each carries the journal's sequence read before its
data; ``live.js`` subscribes from there and patches."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth import login
from django.contrib.auth.decorators import login_required
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from core.models import AttentionItem, CancelIntent, Project
from forge_site import looks, output, pictures, rows, selectors
from forge_site.authentication import spend_first_login
from graphs.models import Edge, Graph, Node
from graphs.states import GraphState
from integration.models import Candidate, Entry
from jobs.models import Attempt
from jobs.states import ATTEMPT_ENDED, ATTEMPT_ON_HOST
from leases.models import Lease

PICTURE_LIMIT = 1000  # nodes; above it the ordered list is the better picture
TIMELINE_LIMIT = 80  # rows
SHOWN = 50  # rows of what may be long
LOG_TAIL = 64 * 1024  # bytes of output in the page; the rest is fetched


def _page(request: HttpRequest, template: str, sequence: int, topic: str, **facts: Any) -> HttpResponse:
    facts |= {
        "sequence": sequence,
        "topic": topic,
        "now": datetime.now(UTC),
        "looks": looks.for_browser(),
        "open_attention": AttentionItem.objects.filter(resolved_at=None).count(),
    }
    response = render(request, f"forge/{template}.html", facts)
    response.headers["Forge-Sequence"] = str(sequence)
    response.headers["Cache-Control"] = "private, no-store"
    return response


def _with_counts(graphs: QuerySet[Graph]) -> list[dict[str, Any]]:
    found = list(graphs.select_related("project").defer("document"))
    counts = selectors.node_counts([graph.pk for graph in found])
    return [{"graph": graph, "counts": counts.get(graph.pk, Counter())} for graph in found]


def _running(attempts: QuerySet[Attempt]) -> list[dict[str, Any]]:
    on_host = attempts.filter(state__in=ATTEMPT_ON_HOST).select_related("job", "project", "host").order_by("-pk")
    found = list(on_host[:SHOWN])
    nodes = rows.nodes_of(attempt.job.owner for attempt in found)
    return [{"attempt": attempt, "node": nodes.get(attempt.job.owner)} for attempt in found]


def _attention(**where: Any) -> list[AttentionItem]:
    return list(AttentionItem.objects.filter(resolved_at=None, **where).select_related("project")[:SHOWN])


@login_required
@require_safe
def overview(request: HttpRequest) -> HttpResponse:
    """What needs a person, what runs, how far the graphs are."""
    sequence = selectors.journal_head()
    projects = Project.objects.annotate(
        active_graphs=Count("graphs", filter=Q(graphs__state=GraphState.ACTIVE)),
    ).select_related("home_host")
    in_line = Counter(Entry.objects.filter(state__in=selectors.IN_LINE).values_list("project", flat=True))
    running = Counter(Attempt.objects.filter(state__in=ATTEMPT_ON_HOST).values_list("project", flat=True))
    return _page(
        request,
        "overview",
        sequence,
        "*",
        attention=_attention(),
        graphs=_with_counts(Graph.objects.filter(state=GraphState.ACTIVE)[:SHOWN]),
        ended=_with_counts(Graph.objects.exclude(state=GraphState.ACTIVE)[:8]),
        running=_running(Attempt.objects.all()),
        projects=[{"project": p, "in_line": in_line[p.pk], "running": running[p.pk]} for p in projects],
    )


@login_required
@require_safe
def project(request: HttpRequest, name: str) -> HttpResponse:
    sequence = selectors.journal_head()
    shown = get_object_or_404(Project.objects.select_related("home_host"), name=name)
    graphs = Graph.objects.filter(project=shown)
    return _page(
        request,
        "project",
        sequence,
        f"project:{shown.pk}",
        project=shown,
        attention=_attention(project=shown),
        graphs=_with_counts(graphs.filter(state=GraphState.ACTIVE)[:SHOWN]),
        ended=_with_counts(graphs.exclude(state=GraphState.ACTIVE)[:SHOWN]),
        running=_running(Attempt.objects.filter(project=shown)),
        queue=rows.queue_rows([shown.pk]),
    )


@login_required
@require_safe
def graph(request: HttpRequest, pk: int) -> HttpResponse:
    """The graph as a picture and as a table, its attempts over time, its part of the queue."""
    sequence = selectors.journal_head()
    shown = get_object_or_404(Graph.objects.select_related("project"), pk=pk)
    nodes = list(selectors.current_nodes([shown.pk]).defer("spec"))
    attempts = selectors.attempts_of([node.subject for node in nodes])
    table = rows.node_rows(nodes)
    started = [row for row in table if any(a.started_at for a in attempts.get(row.node.subject, ()))]
    picture = None
    if 0 < len(nodes) <= PICTURE_LIMIT:
        edges = Edge.objects.filter(graph=shown).values_list("source", "target")
        picture = pictures.draw(rows.vertices(nodes), edges)
    return _page(
        request,
        "graph",
        sequence,
        f"graph:{shown.pk}",
        graph=shown,
        project=shown.project,
        counts=Counter(node.state for node in nodes),
        rows=table,
        picture=picture,
        timeline=pictures.timeline(rows.spans(started[:TIMELINE_LIMIT], attempts), datetime.now(UTC)),
        timeline_hidden=max(len(started) - TIMELINE_LIMIT, 0),
        queue=rows.queue_rows([shown.project_id], graph=shown),
        cancelling=CancelIntent.objects.filter(subject=shown.subject).first(),
    )


@login_required
@require_safe
def node(request: HttpRequest, pk: int, key: str) -> HttpResponse:
    """One node: its tries, what each held and how it ended, what it offers, and what its newest try writes."""
    sequence = selectors.journal_head()
    shown_graph = get_object_or_404(Graph.objects.select_related("project").defer("document"), pk=pk)
    generations = list(Node.objects.filter(graph=shown_graph, key=key).order_by("-generation"))
    shown = generations[0] if generations else get_object_or_404(Node, graph=shown_graph, key=key)
    attempts = selectors.attempts_of([shown.subject]).get(shown.subject, [])[::-1]
    newest = attempts[0] if attempts else None
    entries = Entry.objects.prefetch_related("checks__job")
    candidates = list(Candidate.objects.filter(owner=shown.subject).select_related("entry").order_by("-pk"))
    by_pk = {attempt.pk: attempt for attempt in attempts}
    for candidate in candidates:
        candidate.attempt = by_pk[candidate.attempt_id]
    in_queue = {entry.candidate_id: entry for entry in entries.filter(owner=shown.subject)}
    return _page(
        request,
        "node",
        sequence,
        f"graph:{shown_graph.pk}",
        graph=shown_graph,
        project=shown_graph.project,
        node=shown,
        older=generations[1:],
        row=rows.node_rows([shown])[0],
        attempts=[{"attempt": a, "checkout": c} for a, c in _with_checkouts(attempts)],
        leases=_leases(newest),
        candidates=[{"candidate": c, "entry": in_queue.get(c.pk)} for c in candidates],
        places=selectors.places_in_line([shown_graph.project_id]),
        logs=_logs(newest),
        newest=newest,
    )


def _with_checkouts(attempts: list[Attempt]) -> list[tuple[Attempt, Any]]:
    checkouts = selectors.checkouts_of(attempts)
    return [(attempt, checkouts.get(attempt.pk)) for attempt in attempts]


def _leases(attempt: Attempt | None) -> list[Lease]:
    if attempt is None or attempt.request_id is None:
        return []
    return list(Lease.objects.filter(request=attempt.request_id).select_related("resource").order_by("resource__key"))


def _logs(attempt: Attempt | None) -> list[dict[str, Any]]:
    """The end of each stream that has anything in it; stdout always, so that a live tail has a place to write to."""
    if attempt is None or attempt.started_at is None:
        return []
    pieces = [output.read(attempt, stream=stream, offset=-LOG_TAIL) for stream in output.STREAMS]
    return [
        {"piece": piece, "text": printable(piece.text), "ended": attempt.state in ATTEMPT_ENDED}
        for piece in pieces
        if piece.next_offset or piece.stream == "stdout"
    ]


# ECMA-48: control sequences, operating system commands, other escapes; then what is left of control characters.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def printable(text: str) -> str:
    """A terminal's output as plain text: colours and cursor moves gone, a line redrawn by `\\r` is its last drawing.

    The template escapes it; ``log.js`` does the same to what follows and inserts it as text.
    """
    text = _ESCAPES.sub("", text).replace("\r\n", "\n")
    return _CONTROLS.sub("", re.sub(r"[^\n]*\r(?!$)", "", text))


@never_cache
@require_safe
def enter(request: HttpRequest, token: str) -> HttpResponseBase:
    """The first-login link that ``forge up`` prints: worth one session."""
    user = spend_first_login(raw=token)
    if user:
        login(request, user, backend="django.contrib.auth.backends.ModelBackend")
        return redirect("overview")
    if request.user.is_authenticated:
        return redirect("overview")  # a browser that fetched the link ahead has spent it for this very person
    return render(request, "forge/link_spent.html", status=410)
