"""Verbs of graphs: admit a document, advance a project, retry and cancel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from core import journal, rows
from core.canonical import digest
from core.errors import Conflict, NotFound, RequestIdReused
from core.models import Command, Project
from core.selectors import COORDINATOR, is_cancelled
from core.steps import intend_cancel, lock_project, resolve_attention
from core.transitions import move, move_all
from core.uow import FROM_CLOCK, FROM_SCOPE, unit_of_work, wake_scheduler
from graphs import documents, planning, steps
from graphs.models import Artifact, Edge, Graph, Node
from graphs.ordering import EdgeKind, levels
from graphs.states import ENDED, GRAPH_MOVES, NODE_MOVES, GraphState, NodeState
from integration import steps as integration_steps
from integration.models import Candidate, Entry
from integration.states import ENTRY_ENDED, CandidateState
from jobs import steps as job_steps
from jobs.models import Attempt, Job
from jobs.planning import Ended
from leases import keys
from leases import steps as lease_steps
from leases.planning import merge
from leases.states import ResourceClass


class GraphNotFound(NotFound):
    """No such graph."""

    code = "graph_not_found"


class NodeNotFound(NotFound):
    """The graph has no such node."""

    code = "node_not_found"


class NotRetriable(Conflict):
    """Only a failed or skipped node of a graph that was not cancelled can be retried."""

    code = "not_retriable"


@unit_of_work(scope=lock_project)
def admit_graph(
    *, project_id: int, document: documents.GraphDocument, principal: str, request_id: str, now: datetime = FROM_CLOCK
) -> Graph:
    """Accept a checked document: graph, nodes, edges and artifacts as rows, one event.

    request_id: the same id with an equal document returns the graph it made before; with another it is a conflict
    Raises:     RequestIdReused; InvalidInput for a claim that can never be granted
    """
    project = lock_project(project_id)
    text = documents.canonical(document)
    payload = digest({"kind": "admit_graph", "project": project.name, "document": documents.digest(document)})
    if recorded := Command.objects.filter(principal=principal, request_id=request_id).first():
        if recorded.digest != payload:
            raise RequestIdReused(request_id=request_id)
        return Graph.objects.get(pk=recorded.result["graph"])
    project.graph_revision += 1
    project.save(update_fields=["graph_revision"])
    graph = Graph.objects.create(
        state=GraphState.ACTIVE,
        project=project,
        name=document.name,
        run=1 + Graph.objects.filter(project=project, name=document.name).count(),
        title=document.title,
        execution_mode=document.mode,
        document=text.decode(),
        digest=documents.digest(document),
        revision=project.graph_revision,
        parallelism=document.parallelism,
        open_nodes=len(document.nodes),
        actor=principal,
        created_at=now,
    )
    _insert_nodes(graph, document)
    _require_claimable(document, steps.place_of(graph, project))
    if document.parallelism is not None:
        lease_steps.set_capacity(
            ResourceClass.PHYSICAL,
            keys.limit_of_graph(project.name, f"{graph.name}#{graph.run}"),
            document.parallelism,
        )
    Command.objects.create(
        project=project,
        principal=principal,
        request_id=request_id,
        kind="admit_graph",
        digest=payload,
        result={"graph": graph.pk},
        created_at=now,
    )
    steps.record_graph_event(
        graph, "graph.admitted", name=graph.name, run=graph.run, nodes=len(document.nodes), revision=graph.revision
    )
    wake_scheduler()
    return graph


def _require_claimable(document: documents.GraphDocument, place: planning.Place) -> None:
    """What a node will ask the broker for can be asked for; found out later, it would stop the whole project.

    Raises: InvalidInput
    """
    for node in document.nodes:
        merge(planning.claims_of_node(node, place))


def _insert_nodes(graph: Graph, document: documents.GraphDocument) -> None:
    by_level = levels((node.key for node in document.nodes), document.edges)
    level_of = {key: n for n, keys in enumerate(by_level) for key in keys}
    position_of = {key: n for n, key in enumerate(key for keys in by_level for key in keys)}
    incoming: defaultdict[str, int] = defaultdict(int)
    for edge in document.edges:
        incoming[edge.target] += 1
    nodes = [
        Node(
            state=NodeState.PENDING,
            project_id=graph.project_id,
            graph=graph,
            key=node.key,
            title=node.title,
            spec=documents.node_spec(node),
            position=position_of[node.key],
            level=level_of[node.key],
            unmet_inputs=incoming[node.key],
        )
        for node in sorted(document.nodes, key=lambda node: position_of[node.key])
    ]
    Node.objects.bulk_create(nodes, batch_size=1000)
    by_key = {node.key: node for node in nodes}
    Edge.objects.bulk_create(
        [
            Edge(graph=graph, source=by_key[edge.source], target=by_key[edge.target], kind=edge.kind)
            for edge in document.edges
        ],
        batch_size=1000,
    )
    Artifact.objects.bulk_create(
        [
            Artifact(
                graph=graph,
                name=artifact.name,
                artifact_version=artifact.version,
                producer=by_key[artifact.producer] if artifact.producer else None,
            )
            for artifact in document.artifacts
        ],
        batch_size=1000,
    )


@dataclass(frozen=True)
class StartedJob:
    """A process that was seen to run: the attempt, and who it is."""

    attempt: Attempt
    identity: dict[str, Any]


@dataclass(frozen=True)
class Advanced:
    """has_repository: git work may have become due; granted: what the pass of the broker gave, if one was asked for."""

    has_repository: bool
    granted: job_steps.Pass = field(default_factory=job_steps.Pass)


@unit_of_work(scope=lock_project)
def advance(
    *,
    project_id: int,
    started: Sequence[StartedJob] = (),
    ended: Sequence[Ended] = (),
    then_grant: bool = False,
    locked: Project = FROM_SCOPE,
    now: datetime = FROM_CLOCK,
) -> Advanced:
    """Take a project as far as what is known allows: the coordinator's one verb (GC-01).

    started, ended: what the supervisor observed of this project's attempts since last time
    then_grant:     end with a pass of the broker, whose row is held anyway: one commit instead of two
    Writes:         attempts, jobs and leases that ended; nodes; the queue; new jobs with their lease requests
    Cost:           grows with what changed: everything unsettled is found by an index
    """
    journal.act_as(COORDINATOR)
    project = locked
    lease_steps.lock_broker()
    [(seen,)] = rows.fetch("SELECT last_seq FROM core_eventcounter WHERE id = 1", [])
    if started:
        job_ids = job_steps.mark_started([(s.attempt, s.identity) for s in started])
        steps.mark_running(job_ids, now=now)
    if ended:
        job_steps.end_attempts(ended, host_id=project.home_host_id, now=now)
    unsettled = rows.select(
        Job, "project_id = %s AND NOT settled AND ended_at IS NOT NULL", [project.pk], tail="ORDER BY id"
    )
    if unsettled:
        steps.settle_jobs(unsettled, project=project, now=now)
    if project.git_dir:
        _progress_landing(project, now=now)
    steps.dispatch(_due(project), project=project, now=now)
    steps.close_graphs(project, now=now)
    rows.execute("UPDATE core_project SET advanced_seq = %s WHERE id = %s", [seen, project.pk])
    granted = job_steps.grant_and_start(now=now) if then_grant else job_steps.Pass()
    return Advanced(bool(project.git_dir), granted)


def _progress_landing(project: Project, *, now: datetime) -> None:
    """Candidates, entries and the queue, until nothing more follows from what is recorded."""
    host = project.home_host.name
    workspace = keys.workspace(host, project.workspace)
    place = planning.Place(host, project.name, project.workspace, graph="", gated=True, has_graph_limit=False)
    more = True
    while more:
        for candidate in Candidate.objects.select_related("attempt").filter(
            project=project, settled=False, state__in=[CandidateState.SEALED, CandidateState.REFUSED]
        ):
            steps.settle_candidate(candidate, project=project, now=now)
        for entry in Entry.objects.filter(project=project, settled=False, state__in=ENTRY_ENDED).order_by("pk"):
            steps.settle_entry(entry, project=project, now=now)
        more = integration_steps.progress_queue(
            project, now=now, workspace_key=workspace, claims=planning.capacity_claims(place)
        )


def _due(project: Project) -> list[Node]:
    """Nodes to dispatch: ready ones in graph and topological order, after those to be revised."""
    ready = _in_active_graphs(project, "state = 'pending' AND unmet_inputs = 0")
    revising = _in_active_graphs(project, "state = 'revising'") if project.git_dir else []  # only gated nodes are
    due = [*revising, *ready]
    steps.load_graphs(due)
    return [
        node for node in due if node.state != NodeState.REVISING or not is_cancelled(node.graph.subject, node.subject)
    ]


def _in_active_graphs(project: Project, condition: str) -> list[Node]:
    return rows.select(
        Node,
        f"project_id = %s AND {condition}"
        " AND graph_id IN (SELECT id FROM graphs_graph WHERE project_id = %s AND state = 'active')",
        [project.pk, project.pk],
        tail="ORDER BY graph_id, position",
    )


@unit_of_work(scope=lock_project)
def retry_node(*, project_id: int, node_id: int, actor: str, now: datetime = FROM_CLOCK) -> Node:
    """A person lets a failed node try again; what was skipped because of it waits again.

    Raises: NotRetriable
    """
    journal.act_as(actor)
    node = Node.objects.select_related("graph").get(pk=node_id)
    if is_cancelled(node.subject, node.graph.subject):
        raise NotRetriable(f"{node.key} or its graph was cancelled", node=node.key, state=node.state)
    if node.state != NodeState.FAILED or node.graph.state not in (GraphState.ACTIVE, GraphState.PARTIAL):
        raise NotRetriable(
            f"{node.key} is {node.state} in a graph that is {node.graph.state}", node=node.key, state=node.state
        )
    graph = node.graph
    nodes = {other.pk: other for other in Node.objects.filter(graph=graph)}
    plan = planning.reopening(
        node.pk,
        {pk: NodeState(other.state) for pk, other in nodes.items()},
        [(s, t, EdgeKind(kind)) for s, t, kind in graph.edges.values_list("source_id", "target_id", "kind")],
    )
    if plan is None:
        raise NotRetriable(
            f"{node.key} can no longer run: what it waits for has ended otherwise", node=node.key, state=node.state
        )
    if graph.state == GraphState.PARTIAL:
        move(graph, GraphState.ACTIVE, moves=GRAPH_MOVES, why="retry", data={"graph": graph.pk}, ended_at=None)
    skipped = [nodes[pk] for pk in sorted(plan.reopened - {node.pk})]
    move(
        node,
        NodeState.PENDING,
        moves=NODE_MOVES,
        why="retry",
        data={"graph": graph.pk, "key": node.key},
        revisions=0,
        ended_at=None,
    )
    move_all(
        skipped,
        NodeState.PENDING,
        moves=NODE_MOVES,
        why="retry",
        data=steps.graph_data(skipped),
        ended_at=None,
        outcome={},
    )
    _count_unmet_again(nodes, plan.unmet)
    Graph.objects.filter(pk=graph.pk).update(open_nodes=graph.open_nodes + len(plan.reopened))
    resolve_attention(f"revisions:{node.pk}", f"outcome:{node.pk}", now=now)
    wake_scheduler()
    return node


def _count_unmet_again(nodes: Mapping[int, Node], unmet: Mapping[int, int]) -> None:
    """What the failed end had met is no longer met."""
    by_count: defaultdict[int, list[int]] = defaultdict(list)
    for pk, count in unmet.items():
        if nodes[pk].unmet_inputs != count:
            by_count[count].append(pk)
    for count, targets in by_count.items():
        Node.objects.filter(pk__in=targets).update(unmet_inputs=count)


@dataclass(frozen=True)
class CancelAnswer:
    """accepted: the intent is recorded now, not before and not after the end; landing: keys whose landing is completed first."""

    accepted: bool
    landing: tuple[str, ...] = ()


@unit_of_work(scope=lock_project)
def cancel_graph(
    *, project_id: int, graph_id: int, actor: str, reason: str = "", now: datetime = FROM_CLOCK
) -> CancelAnswer:
    """End a graph: intent first, then nothing new starts, what runs is stopped, what waits leaves the line."""
    graph = Graph.objects.get(pk=graph_id)
    if graph.state != GraphState.ACTIVE:  # an intent without effect would only stand in the way of a later retry
        return CancelAnswer(accepted=False)
    return _cancel(
        graph.subject,
        list(graph.nodes.exclude(state__in=ENDED).select_related("graph")),
        project_id,
        actor,
        reason,
        now,
    )


@unit_of_work(scope=lock_project)
def cancel_node(
    *, project_id: int, node_id: int, actor: str, reason: str = "", now: datetime = FROM_CLOCK
) -> CancelAnswer:
    """End one node; those that wait for its success are skipped."""
    node = Node.objects.select_related("graph").get(pk=node_id)
    if node.state in ENDED:
        return CancelAnswer(accepted=False)
    return _cancel(node.subject, [node], project_id, actor, reason, now)


def _cancel(
    subject: str, nodes: Sequence[Node], project_id: int, actor: str, reason: str, now: datetime
) -> CancelAnswer:
    journal.act_as(actor)
    project = lock_project(project_id)
    lease_steps.lock_broker()
    if not intend_cancel(subject=subject, project_id=project_id, actor=actor, reason=reason, now=now):
        return CancelAnswer(accepted=False)
    landing = steps.cancel_nodes(nodes, project=project, reason=reason, now=now)
    wake_scheduler()
    return CancelAnswer(accepted=True, landing=tuple(landing))
