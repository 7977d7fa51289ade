"""Reads for people and programs: which graph a request made, what a node waits for, the result of a graph."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from core.errors import InvalidInput
from core.models import AttentionItem, CancelIntent, Command
from graphs.documents.model import MAX_REVISIONS
from graphs.models import Edge, Graph, Node
from graphs.ordering import EdgeKind, is_satisfied
from graphs.states import SUCCESS, NodeState
from integration.models import Check, Entry
from integration.states import CLAIMED, CheckState, EntryState
from jobs.models import Attempt
from jobs.states import AttemptState
from leases import keys
from leases import selectors as lease_selectors
from leases.models import Request
from leases.selectors import Holder, Shortage
from leases.states import RequestState
from workspaces.models import Checkout
from workspaces.states import CheckoutState

RESULT_CONTRACT: Final = "forge.result/1"
NAMED = 5  # so many of a list stand in a sentence


class GraphAmbiguous(InvalidInput):
    """Several graphs are meant. Name one by its number."""

    code = "graph_ambiguous"


def graph_of_request(principal: str, request_id: str) -> Graph | None:
    """The graph that a request made when it was accepted."""
    recorded = Command.objects.filter(principal=principal, request_id=request_id, kind="admit_graph").first()
    return Graph.objects.get(pk=recorded.result["graph"]) if recorded else None


def newest_node(graph: Graph, key: str) -> Node | None:
    """The current generation of a node."""
    return Node.objects.filter(graph=graph, key=key).order_by("-generation").first()


def newest_attempt(node: Node) -> Attempt | None:
    return Attempt.objects.filter(job=node.job_id).order_by("-number").first() if node.job_id else None


# --- why a node is where it is ----------------------------------------------------------------------------------------


def explain(node: Node) -> dict[str, Any]:
    """Why a node is where it is: {"sentence": one sentence, "code": stable, ...facts}."""
    if node.ended_at is None and (intent := _cancel_intent(node)):
        return _explain_cancelling(node, intent)
    match node.state:
        case NodeState.PENDING:
            return _explain_pending(node)
        case NodeState.QUEUED | NodeState.RUNNING:
            return _explain_attempt(node)
        case NodeState.SEALING:
            return _answer(node, "sealing", "has ended well; its changes are being sealed as a candidate")
        case NodeState.VALIDATING:
            return _explain_entry(node)
        case NodeState.REVISING:
            return _answer(node, "revising", f"is tried again{_revision(node)}", **_facts_of(node))
    return _explain_end(node)


def _answer(node: Node, code: str, words: str, **facts: Any) -> dict[str, Any]:
    return {"node": node.key, "state": node.state, "code": code, "sentence": f"{node.key} {words}", **facts}


def _revision(node: Node) -> str:
    """` (revision 1 of 3: its command exited with code 3)`; empty for a first try."""
    if not node.revisions:
        return ""
    return f" (revision {node.revisions} of {node.spec.get('maxRevisions', MAX_REVISIONS)}: {_outcome(node)})"


def _cancel_intent(node: Node) -> CancelIntent | None:
    return CancelIntent.objects.filter(subject__in=[node.subject, f"graph:{node.graph_id}"]).order_by("pk").first()


def _explain_cancelling(node: Node, intent: CancelIntent) -> dict[str, Any]:
    """The intent is recorded; what is still to be done before the node has ended."""
    attempt = newest_attempt(node)
    entry = Entry.objects.filter(owner=node.subject).order_by("-id").first()
    rest = ": it ends in the next pass of the coordinator"
    if node.state == NodeState.VALIDATING and entry and entry.state in (EntryState.LANDING, EntryState.MOVED):
        rest = ", but its landing was recorded before and is completed first"
    elif node.state == NodeState.SEALING:
        rest = ": its changes are still sealed, so that they are not lost"
    elif attempt is not None and attempt.state == AttemptState.STOPPING:
        rest = f": its processes were asked to end and are ended by force after {attempt.job.grace_s} s"
    by = f" by {intent.actor}" + (f" ({intent.reason})" if intent.reason else "")
    return _answer(
        node, "cancelling", f"is being cancelled{by}{rest}", actor=intent.actor, reason=intent.reason,
        attempt=attempt.pk if attempt else None,
    )  # fmt: skip


def _explain_pending(node: Node) -> dict[str, Any]:
    edges = Edge.objects.filter(target=node).select_related("source").order_by("source__position")
    waits = [edge for edge in edges if not is_satisfied(EdgeKind(edge.kind), NodeState(edge.source.state))]
    if not waits:
        return _answer(node, "ready", "is ready; the next pass of the coordinator takes it up")
    named = [f"{_WANTED[EdgeKind(edge.kind)]}{edge.source.key} ({edge.source.state})" for edge in waits[:NAMED]]
    more = [f"{len(waits) - NAMED} more"] if len(waits) > NAMED else []
    return _answer(
        node, "dependencies", f"waits for {_listed([*named, *more])}", waits_for=[edge.source.key for edge in waits]
    )


_WANTED = {EdgeKind.SUCCESS: "", EdgeKind.FAILURE: "the failure of ", EdgeKind.ALWAYS: "the end of "}


def _explain_attempt(node: Node) -> dict[str, Any]:
    """Queued or running: what its newest attempt does or waits for."""
    attempt = newest_attempt(node)
    if attempt is None:
        return _answer(node, "queued", "is queued; its attempt is about to be made")
    facts = {"attempt": attempt.pk}
    match attempt.state:
        case AttemptState.WAITING:
            reason = _explain_wait(node, attempt.subject)
            return {**_answer(node, reason.pop("code"), reason.pop("words") + _revision(node)), **facts, **reason}
        case AttemptState.STARTING:
            checkout = Checkout.objects.filter(owner=attempt.subject).first()
            if checkout is not None and checkout.state == CheckoutState.ADDING:
                return _answer(node, "checkout", "has its leases; its checkout is being made", **facts)
            return _answer(node, "starting", "has its leases; its process is being started", **facts)
        case AttemptState.RUNNING:
            since = f" since {_clock(attempt.started_at)}" if attempt.started_at else ""
            again = f", attempt {attempt.number}" if attempt.number > 1 else ""
            where = f" (pid {attempt.pid} on {attempt.host.name}{again})" if attempt.pid else ""
            return _answer(
                node, "running", f"runs{since}{where}{_revision(node)}", since=_iso(attempt.started_at), **facts
            )
        case AttemptState.STOPPING:
            why = attempt.stop_reason or "a request"
            return _answer(
                node, "stopping", f"is being stopped because of {why}; it is ended by force after {attempt.job.grace_s} s",
                **facts,
            )  # fmt: skip
    return _answer(
        node, "recording", f"has ended ({attempt.state}); the next pass of the coordinator records it", **facts
    )


# --- leases: who holds what, in the words of graphs -------------------------------------------------------------------


def _explain_wait(node: Node, holder: str) -> dict[str, Any]:
    """What stops the lease request of ``holder``, which works for ``node``: {"code", "words", ...facts}."""
    request = Request.objects.filter(holder=holder, state=RequestState.WAITING).first()
    if request is None:
        return {"code": "starting", "words": "has its leases; the next pass starts it"}
    waiting = lease_selectors.waiting(request)
    facts = {"since": _iso(waiting.since), "place": waiting.place}
    if waiting.suspended:
        return {"code": "suspended", "words": "is suspended; it keeps its place until it is resumed", **facts}
    if waiting.stopper:
        return {**_stopped(node, waiting.stopper, waiting.place), **facts}
    if waiting.shortage:
        return {**_short(node, waiting.shortage, waiting.place), **facts}
    return {"code": "broker", "words": "has asked for its leases; the next pass of the broker looks at it", **facts}


def _stopped(node: Node, by: Holder, place: int) -> dict[str, Any]:
    name, what = _holder_name(node, by.holder), _resource_words(node, by.resource)
    facts = {"holder": by.holder, "holder_name": name, "holder_since": _iso(by.since), "resource": by.resource}
    if by.is_grant:
        unsure = "" if by.lease_states in ((), ("active",)) else f" (its lease is {', '.join(by.lease_states)})"
        words = f"waits for {name}, which holds {what} since {_clock(by.since)}{unsure}"
        return {"code": "lease", "words": words, "lease_states": list(by.lease_states), **facts}
    line = f", as number {place} in line" if place > 2 else ""
    words = f"waits behind {name}{line}, which asked for {what} earlier, at {_clock(by.since)}, and goes first"
    return {"code": "older_request", "words": words, **facts}


def _short(node: Node, of: Shortage, place: int) -> dict[str, Any]:
    what = _capacity_words(node, of.resource)
    facts = {"resource": of.resource, "capacity": of.capacity, "in_use": of.in_use, "wants": of.wants}
    if of.wants > of.capacity:
        words = f"asks for {of.wants} units of {what}, which has {of.capacity}: only a greater capacity helps"
    else:
        kept = "; what is free is kept for a larger request" if of.kept_for_others else ""
        line = f", as number {place} in line" if place > 1 else ", as the next"
        words = f"waits for {what}{line}: {of.in_use} of {of.capacity} in use{kept}"
    return {"code": "capacity", "words": words, **facts}


def _capacity_words(node: Node, key: str) -> str:
    project, graph = node.project.name, node.graph
    return {
        keys.slots_of_host(node.project.home_host.name): f"a free slot of host {node.project.home_host.name}",
        keys.limit_of_project(project): f"the limit of project {project}",
        keys.limit_of_graph(project, f"{graph.name}#{graph.run}"): "the parallelism of its graph",
    }.get(key, f"units of {key}")


def _resource_words(node: Node, key: str) -> str:
    """A resource as a person knows it: a path of the workspace, a part of the branch, or the name in the document."""
    if not key:
        return "what it needs"
    workspace = keys.workspace(node.project.home_host.name, node.project.workspace)
    branch = node.project.target_ref.removeprefix("refs/heads/")
    for root, whole in ((workspace, "the workspace"), (keys.landing_scope(node.project.name), f"the branch {branch}")):
        if key == root:
            return whole
        if key.startswith(f"{root}/"):
            return key.removeprefix(f"{root}/")
    own = keys.workspace(node.project.home_host.name, "")
    return f"/{key.removeprefix(f'{own}/')}" if key.startswith(f"{own}/") else key


def _holder_name(node: Node, holder: str) -> str:
    """`attempt:42`, `entry:7`, `landing:7:1` as whom it works for, seen from ``node``."""
    kind, _, rest = holder.partition(":")
    number = int(rest.partition(":")[0]) if rest.partition(":")[0].isdecimal() else 0
    if kind == "attempt":
        owner = Attempt.objects.filter(pk=number).values_list("job__owner", flat=True).first() or ""
        if owner.startswith("check:"):
            check = Check.objects.select_related("entry").filter(pk=int(owner.removeprefix("check:"))).first()
            return f"check {check.name} of {_node_name(node, check.entry.owner)}" if check else holder
        return _node_name(node, owner) or holder
    if kind in ("entry", "landing"):
        owner = Entry.objects.filter(pk=number).values_list("owner", flat=True).first() or ""
        return f"the landing of {_node_name(node, owner) or holder}"
    return holder


def _node_name(seen_from: Node, owner: str) -> str:
    """`b` in the same graph, `other#2/b` in the same project, else with the project. Empty: no node."""
    if not owner.startswith("node:"):
        return ""
    found = Node.objects.select_related("graph", "project").filter(pk=int(owner.removeprefix("node:"))).first()
    if found is None or found.graph_id == seen_from.graph_id:
        return found.key if found else ""
    name = f"{found.graph.name}#{found.graph.run}/{found.key}"
    return name if found.project_id == seen_from.project_id else f"{name} of project {found.project.name}"


# --- the queue --------------------------------------------------------------------------------------------------------


def _explain_entry(node: Node) -> dict[str, Any]:
    entry = Entry.objects.filter(owner=node.subject).order_by("-id").first()
    if entry is None:
        return _answer(node, "validating", "is about to be queued for landing")
    facts = {"entry": entry.pk, "entry_state": entry.state}
    branch = entry.target_ref.removeprefix("refs/heads/")
    if entry.state == EntryState.QUEUED and node.project.frozen_reason:
        return _answer(
            node, "frozen",
            f"waits: landing in project {node.project} is frozen ({node.project.frozen_reason}); look, then"
            f" `forge project unfreeze {node.project}`",
            **facts,
        )  # fmt: skip
    if entry.hold and entry.state in (EntryState.QUEUED, EntryState.REFRESHING):
        paths = entry.hold.get("paths", [])
        which = f" ({_some(paths)})" if paths else ""
        return _answer(
            node, "held", f"cannot land: {entry.hold['message']}{which}; commit, stash or revert them, and it goes on",
            paths=paths, **facts,
        )  # fmt: skip
    match entry.state:
        case EntryState.QUEUED:
            return {**_explain_place(node, entry, branch), **facts}
        case EntryState.REFRESHING:
            return _answer(node, "refreshing", f"is being put on the tip of {branch}", **facts)
        case EntryState.CHECKING:
            return {**_explain_checks(node, entry, branch), **facts}
        case EntryState.LANDING:
            return _answer(node, "landing", f"has passed all checks; {branch} is being moved to it", **facts)
        case EntryState.MOVED | EntryState.ACCEPTED:
            words = f"has landed on {branch} as {entry.offered[:12]}; the next pass of the coordinator records it"
            return _answer(node, "landed", words, commit=entry.offered, **facts)
    why = entry.receipt.get("message", "")
    words = f"did not land ({entry.state}{': ' if why else ''}{why}); the next pass of the coordinator goes on with it"
    return _answer(node, entry.state, words, **facts)


def _explain_place(node: Node, entry: Entry, branch: str) -> dict[str, Any]:
    ahead = entries_before(entry)
    if not ahead:
        return _answer(node, "queue", f"is next in the queue for {branch}", place=1)
    first = next((other for other in ahead if other.state in CLAIMED), ahead[0])
    doing = f", where {_node_name(node, first.owner) or first.owner} is {first.state}"
    return _answer(node, "queue", f"is number {len(ahead) + 1} in the queue for {branch}{doing}", place=len(ahead) + 1)


def _explain_checks(node: Node, entry: Entry, branch: str) -> dict[str, Any]:
    """Which checks run or wait on the offered commit; after them, who keeps the workspace busy."""
    checks = list(Check.objects.filter(entry=entry, commit=entry.offered).order_by("name"))
    waiting = [check for check in checks if check.state == CheckState.WAITING]
    names = [check.name for check in waiting]
    on = f"on {entry.offered[:12]}"
    if len(checks) < len(entry.required_checks):
        return _answer(node, "checks", f"is about to be checked {on}", checks=names)
    if waiting:
        words = _listed([_check_words(node, check) for check in waiting[:NAMED]])
        return _answer(node, "checks", f"is being checked {on}: {words}", checks=names)
    reason = _explain_wait(node, f"landing:{entry.pk}:{entry.tries}")
    if reason["code"] in ("lease", "older_request"):
        words = f"has passed its checks and {reason.pop('words')}"
        return {**_answer(node, "workspace", words), **{k: v for k, v in reason.items() if k != "code"}}
    return _answer(
        node, "workspace", f"has passed its checks; it asks for the workspace to land on {branch}", checks=[]
    )


def _check_words(node: Node, check: Check) -> str:
    attempt = Attempt.objects.filter(job=check.job_id).order_by("-number").first() if check.job_id else None
    if attempt is None:
        return check.name
    if attempt.state == AttemptState.RUNNING and attempt.started_at:
        return f"{check.name} runs since {_clock(attempt.started_at)}"
    if attempt.state == AttemptState.WAITING:
        return f"{check.name} {_explain_wait(node, attempt.subject)['words']}"
    return f"{check.name} is {attempt.state}"


def entries_before(entry: Entry) -> list[Entry]:
    """The part of its project's queue that comes before it, in order; the claimed one included wherever it stands."""
    line = Entry.objects.filter(project=entry.project_id, state__in=[EntryState.QUEUED, *CLAIMED]).exclude(pk=entry.pk)
    place = (entry.graph_revision, entry.position, entry.pk)
    return [
        other
        for other in line.order_by("graph_revision", "position", "pk")
        if other.state in CLAIMED or (other.graph_revision, other.position, other.pk) < place
    ]


# --- ends -------------------------------------------------------------------------------------------------------------


def _explain_end(node: Node) -> dict[str, Any]:
    match node.state:
        case NodeState.ACCEPTED if node.accepted_commit:
            branch = node.project.target_ref.removeprefix("refs/heads/")
            return _answer(
                node, "accepted", f"is accepted: landed on {branch} as {node.accepted_commit[:12]} at {_clock(node.ended_at)}",
                commit=node.accepted_commit,
            )  # fmt: skip
        case NodeState.ACCEPTED:
            return _answer(node, "accepted", f"is accepted since {_clock(node.ended_at)}: it had nothing to land")
        case NodeState.SUCCEEDED:
            return _answer(node, "succeeded", f"has succeeded at {_clock(node.ended_at)}")
        case NodeState.FAILED:
            after = f", after {node.revisions} revisions" if node.revisions else ""
            return _answer(
                node, "failed", f"has failed: {_outcome(node)}{after}; `forge retry {node.key}` lets it try again",
                **_facts_of(node),
            )  # fmt: skip
        case NodeState.CANCELLED:
            intent = _cancel_intent(node)
            by = f" by {intent.actor}" if intent else ""
            why = f": {intent.reason}" if intent and intent.reason else ""
            return _answer(node, "cancelled", f"was cancelled{by}{why}", **_facts_of(node))
        case NodeState.SKIPPED:
            return _answer(node, "skipped", f"was skipped because {_outcome(node)}", **_facts_of(node))
    return _answer(node, node.state, f"is {node.state}", **_facts_of(node))


def _outcome(node: Node) -> str:
    paths = node.outcome.get("paths", [])
    return str(node.outcome.get("message") or "it was refused") + (f" ({_some(paths)})" if paths else "")


def _facts_of(node: Node) -> dict[str, Any]:
    return {"outcome": node.outcome, "revisions": node.revisions}


def _some(paths: Sequence[str]) -> str:
    return ", ".join(paths[:NAMED]) + (f" and {len(paths) - NAMED} more" if len(paths) > NAMED else "")


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _clock(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment else "an unknown time"


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


# --- the result document ----------------------------------------------------------------------------------------------


def result(graph: Graph) -> dict[str, Any]:
    """The result document: status, every node with its outcome and attempts, what landed. JSON-compatible, camelCase.

    Its shape is graphs/result_contract.schema.json. Who ran at the same time, and who after whom, follows from it:
    each attempt has the times its process started and ended, each action names what it needs, and ``landed`` is in the
    order in which the branch moved.
    """
    nodes = list(graph.nodes.order_by("position", "generation"))
    owners = [node.subject for node in nodes]
    key_of = {node.subject: node.key for node in nodes}
    attempts: defaultdict[str, list[Attempt]] = defaultdict(list)
    for attempt in _in_parts(Attempt.objects.select_related("job", "host").order_by("pk"), "job__owner", owners):
        attempts[attempt.job.owner].append(attempt)
    needs: defaultdict[int, list[Edge]] = defaultdict(list)
    for edge in Edge.objects.filter(graph=graph).select_related("source").order_by("source__position"):
        needs[edge.target_id].append(edge)
    checkouts = {
        checkout.owner: checkout
        for checkout in _in_parts(
            Checkout.objects.order_by("pk"), "owner", [a.subject for made in attempts.values() for a in made]
        )
    }
    entries = list(_in_parts(Entry.objects.prefetch_related("checks").order_by("pk"), "owner", owners))
    landed = [entry for entry in entries if entry.state in (EntryState.MOVED, EntryState.ACCEPTED)]
    return {
        "contract": RESULT_CONTRACT,
        "graph": graph.name,
        "run": graph.run,
        "id": graph.pk,
        "title": graph.title,
        "project": graph.project.name,
        "executionMode": graph.execution_mode,
        "digest": graph.digest,
        "revision": graph.revision,
        "actor": graph.actor,
        "status": graph.state,
        "admittedAt": _iso(graph.created_at),
        "endedAt": _iso(graph.ended_at),
        "counts": dict(sorted(Counter(node.state for node in nodes).items())),
        "actions": [_action(node, needs[node.pk], attempts[node.subject]) for node in nodes],
        "landed": [_landing(entry, key_of[entry.owner]) for entry in sorted(landed, key=_landed_at)],
        "warnings": _warnings(nodes, entries, attempts, checkouts),
    }


def _in_parts(rows: Any, field: str, values: Sequence[str], size: int = 500) -> Iterable[Any]:
    """``rows`` whose ``field`` is one of ``values``: a graph may have more nodes than a statement takes parameters."""
    for start in range(0, len(values), size):
        yield from rows.filter(**{f"{field}__in": values[start : start + size]})


def _action(node: Node, needs: Sequence[Edge], attempts: Sequence[Attempt]) -> dict[str, Any]:
    return {
        "key": node.key,
        "generation": node.generation,
        "title": node.title,
        "needs": [{"key": edge.source.key, "kind": edge.kind} for edge in needs],
        "status": node.state,
        "failure": node.outcome if node.outcome and node.state not in SUCCESS else None,
        "revisions": node.revisions,
        "commit": node.accepted_commit or None,
        "startedAt": _iso(node.started_at),
        "endedAt": _iso(node.ended_at),
        "attempts": [
            {
                "id": attempt.pk,
                "number": number,
                "state": attempt.state,
                "cause": attempt.cause or None,
                "exitCode": attempt.exit_code,
                "startedAt": _iso(attempt.started_at),
                "endedAt": _iso(attempt.ended_at),
                "host": attempt.host.name,
                "output": f"jobs/{attempt.pk}/stdout",
                "errorOutput": f"jobs/{attempt.pk}/stderr",
            }
            for number, attempt in enumerate(attempts, start=1)
        ],
    }


def _landed_at(entry: Entry) -> tuple[str, int]:
    return (_iso(entry.ended_at) or "", entry.pk)


def _landing(entry: Entry, key: str) -> dict[str, Any]:
    return {
        "node": key,
        "commit": entry.offered,
        "base": entry.base,
        "tree": entry.offered_tree,
        "commits": entry.receipt.get("commits", []),
        "ref": entry.target_ref,
        "refreshed": entry.refreshed,
        "checks": [
            {"name": check.name, "state": check.state, "commit": check.commit}
            for check in sorted(entry.checks.all(), key=lambda check: check.pk)
            if check.commit == entry.offered
        ],
        "at": _iso(entry.ended_at),
        "pushed": entry.push_result.get("outcome") or None,
    }


def _warnings(
    nodes: Sequence[Node],
    entries: Sequence[Entry],
    attempts: dict[str, list[Attempt]],
    checkouts: dict[str, Checkout],
) -> list[dict[str, Any]]:
    """What a person should know beside the outcome: open questions, processes that would not end, kept checkouts."""
    subjects = {node.subject: node.key for node in nodes}
    keys_by_subject = {**subjects, **{entry.subject: subjects[entry.owner] for entry in entries}}
    project = nodes[0].project_id if nodes else None
    found = [
        {"code": item.code, "node": keys_by_subject[item.subject], "message": item.message, "next": item.next_action}
        for item in AttentionItem.objects.filter(project=project, resolved_at=None).order_by("pk")
        if item.subject in keys_by_subject
    ]
    for owner, made in attempts.items():
        for attempt in made:
            if survivors := attempt.evidence.get("survivors"):
                pids = ", ".join(str(survivor["pid"]) for survivor in survivors)
                message = f"processes of attempt {attempt.pk} would not end: {pids}"
                found.append(
                    {"code": "survivors", "node": subjects[owner], "message": message, "next": "End them by hand."}
                )
            checkout = checkouts.get(attempt.subject)
            if (
                checkout is not None
                and attempt.ended_at
                and checkout.state in (CheckoutState.READY, CheckoutState.KEPT)
            ):
                message = f"the checkout of attempt {attempt.pk} is kept: {checkout.path}"
                found.append({"code": "checkout_kept", "node": subjects[owner], "message": message, "next": ""})
    return found
