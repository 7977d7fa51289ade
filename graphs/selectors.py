"""Reads for people and programs: a graph by name, what a node waits for, the result of a graph."""

from __future__ import annotations

from typing import Any

from core.errors import InvalidInput
from core.models import CancelIntent
from core.selectors import is_cancelled
from graphs.models import Edge, Graph, Node
from graphs.states import SUCCESS, NodeState
from integration.models import Check, Entry
from integration.states import CLAIMED, CheckState, EntryState
from jobs.models import Attempt
from jobs.states import AttemptState
from leases import explain as lease_explain
from leases.models import Request
from leases.states import RequestState
from workspaces.models import Checkout
from workspaces.states import CheckoutState


class GraphAmbiguous(InvalidInput):
    """Several graphs are meant. Name one by its number."""

    code = "graph_ambiguous"


def newest_node(graph: Graph, key: str) -> Node | None:
    """The current generation of a node."""
    return Node.objects.filter(graph=graph, key=key).order_by("-generation").first()


def explain(node: Node) -> dict[str, Any]:
    """Why a node is where it is: {"sentence": one sentence, "code": stable, ...facts}."""
    graph = node.graph
    if CancelIntent.objects.filter(subject__in=[node.subject, graph.subject]).exists() and node.ended_at is None:
        return _answer("cancelling", f"{node.key} is being cancelled", node)
    match node.state:
        case NodeState.PENDING:
            return _explain_pending(node)
        case NodeState.QUEUED:
            return _explain_queued(node)
        case NodeState.RUNNING:
            attempt = newest_attempt(node)
            since = f" since {attempt.started_at:%H:%M:%S}" if attempt and attempt.started_at else ""
            return _answer("running", f"{node.key} runs{since}", node, attempt=attempt.pk if attempt else None)
        case NodeState.SEALING:
            return _answer("sealing", f"{node.key} has ended well; its changes are being sealed as a candidate", node)
        case NodeState.VALIDATING:
            return _explain_entry(node)
        case NodeState.REVISING:
            why = node.outcome.get("message", "it was refused")
            return _answer("revising", f"{node.key} will be tried again (revision {node.revisions}): {why}", node)
    message = node.outcome.get("message")
    return _answer(node.state, f"{node.key} is {node.state}" + (f": {message}" if message else ""), node)


def _answer(code: str, sentence: str, node: Node, **facts: Any) -> dict[str, Any]:
    return {"node": node.key, "state": node.state, "code": code, "sentence": sentence, **facts}


def _explain_pending(node: Node) -> dict[str, Any]:
    waits = [
        edge.source
        for edge in Edge.objects.filter(target=node).select_related("source").order_by("source__position")
        if edge.source.state not in SUCCESS
    ]
    if waits:
        names = ", ".join(f"{source.key} ({source.state})" for source in waits[:5])
        more = f" and {len(waits) - 5} more" if len(waits) > 5 else ""
        return _answer(
            "dependencies", f"{node.key} waits for {names}{more}", node, waits_for=[source.key for source in waits]
        )
    if is_cancelled(node.graph.subject):
        return _answer("cancelling", f"{node.key} is being cancelled", node)
    return _answer("ready", f"{node.key} is ready; the coordinator has not looked yet (does `forge up` run?)", node)


def _explain_queued(node: Node) -> dict[str, Any]:
    attempt = newest_attempt(node)
    if attempt is None:
        return _answer("queued", f"{node.key} is queued", node)
    if attempt.state == AttemptState.WAITING:
        request = Request.objects.filter(holder=attempt.subject, state=RequestState.WAITING).first()
        if request is not None:
            reason = lease_explain.explain(request)
            return _answer("leases", f"{node.key} waits: {reason['sentence']}", node, lease=reason)
    checkout = Checkout.objects.filter(owner=attempt.subject).first()
    if checkout is not None and checkout.state == CheckoutState.ADDING:
        return _answer("checkout", f"{node.key} has its leases; its checkout is being made", node)
    return _answer("starting", f"{node.key} has its leases and is being started", node)


def _explain_entry(node: Node) -> dict[str, Any]:
    entry = Entry.objects.filter(owner=node.subject).order_by("-id").first()
    if entry is None:
        return _answer("validating", f"{node.key} is about to be queued for landing", node)
    facts = {"entry": entry.pk, "entry_state": entry.state}
    if entry.hold:
        return _answer(
            "held",
            f"{node.key} cannot land: {entry.hold['message']} ({', '.join(entry.hold.get('paths', [])[:5])})",
            node,
            **facts,
        )
    if entry.state == EntryState.QUEUED:
        if node.project.frozen_reason:
            return _answer(
                "frozen",
                f"{node.key} waits: landing in {node.project} is frozen ({node.project.frozen_reason})",
                node,
                **facts,
            )
        ahead = entries_ahead(entry)
        return _answer(
            "queue",
            f"{node.key} is number {ahead + 1} in the queue for {entry.target_ref}",
            node,
            place=ahead + 1,
            **facts,
        )
    if entry.state == EntryState.CHECKING:
        waiting = Check.objects.filter(entry=entry, commit=entry.offered, state=CheckState.WAITING).values_list(
            "name", flat=True
        )
        return _answer(
            "checks", f"{node.key} is checked: {', '.join(sorted(waiting)) or 'all have passed'}", node, **facts
        )
    return _answer(entry.state, f"{node.key} is {entry.state}", node, **facts)


def entries_ahead(entry: Entry) -> int:
    """How many of its project's queue come before it, the claimed one included."""
    ahead = 0
    for other in Entry.objects.filter(project=entry.project_id, state__in=[EntryState.QUEUED, *CLAIMED]).exclude(
        pk=entry.pk
    ):
        first = (other.graph_revision, other.position, other.pk) < (entry.graph_revision, entry.position, entry.pk)
        ahead += int(other.state in CLAIMED or first)
    return ahead


def newest_attempt(node: Node) -> Attempt | None:
    return Attempt.objects.filter(job=node.job_id).order_by("-number").first() if node.job_id else None


def result(graph: Graph) -> dict[str, Any]:
    """The result document: status, every node with its outcome and attempts, what landed. JSON-compatible, camelCase."""
    nodes = list(graph.nodes.order_by("position", "generation"))
    attempts: dict[str, list[Attempt]] = {}
    owners = [node.subject for node in nodes]
    for attempt in Attempt.objects.select_related("job", "host").filter(job__owner__in=owners).order_by("pk"):
        attempts.setdefault(attempt.job.owner, []).append(attempt)
    landed = [
        {
            "node": entry.owner,
            "commit": entry.offered,
            "base": entry.base,
            "at": _iso(entry.ended_at),
            **_landed_range(entry),
        }
        for entry in Entry.objects.filter(owner__in=owners, state__in=[EntryState.MOVED, EntryState.ACCEPTED]).order_by(
            "ended_at"
        )
    ]
    keys = {node.subject: node.key for node in nodes}
    return {
        "graph": graph.name,
        "run": graph.run,
        "id": graph.pk,
        "project": graph.project.name,
        "executionMode": graph.execution_mode,
        "digest": graph.digest,
        "revision": graph.revision,
        "status": graph.state,
        "admittedAt": _iso(graph.created_at),
        "endedAt": _iso(graph.ended_at),
        "actions": [_action(node, attempts.get(node.subject, [])) for node in nodes],
        "landed": [{**item, "node": keys[item["node"]]} for item in landed],
    }


def _landed_range(entry: Entry) -> dict[str, Any]:
    return {"commits": entry.receipt.get("commits", []), "ref": entry.target_ref, "refreshed": entry.refreshed}


def _action(node: Node, attempts: list[Attempt]) -> dict[str, Any]:
    return {
        "key": node.key,
        "generation": node.generation,
        "title": node.title,
        "status": node.state,
        "failure": node.outcome or None,
        "revisions": node.revisions,
        "commit": node.accepted_commit or None,
        "startedAt": _iso(node.started_at),
        "endedAt": _iso(node.ended_at),
        "attempts": [
            {
                "id": attempt.pk,
                "state": attempt.state,
                "cause": attempt.cause,
                "exitCode": attempt.exit_code,
                "startedAt": _iso(attempt.started_at),
                "endedAt": _iso(attempt.ended_at),
                "host": attempt.host.name,
                "output": f"jobs/{attempt.pk}/stdout",
            }
            for attempt in attempts
        ],
    }


def _iso(moment: Any) -> str | None:
    return moment.isoformat() if moment else None
