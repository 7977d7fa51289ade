"""The coordinator's writes on graphs and nodes. Nobody else changes a node's state (GC-01).

Every step runs under the project's row; those that end or hand over leases also under the broker row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import F

from core import journal
from core.models import Project
from core.selectors import is_cancelled
from core.steps import raise_attention
from core.transitions import move, move_all, require_transaction
from graphs import planning
from graphs.documents import node_from_spec
from graphs.models import Edge, Graph, Node
from graphs.ordering import EdgeKind
from graphs.planning import Behind, Place
from graphs.states import GRAPH_MOVES, NODE_MOVES, ExecutionMode, GraphState, NodeState
from integration import steps as integration_steps
from integration.models import Candidate, Entry
from integration.states import ENTRY_MOVES, CandidateState, EntryState
from jobs import steps as job_steps
from jobs.models import Attempt, Job
from jobs.states import AttemptState, Cause, JobState
from leases import steps as lease_steps
from workspaces import steps as workspace_steps
from workspaces.models import Checkout

S = NodeState


def place_of(graph: Graph, project: Project) -> Place:
    return Place(
        host=project.home_host.name,
        project=project.name,
        workspace=project.workspace,
        graph=f"{graph.name}#{graph.run}",
        gated=graph.execution_mode == ExecutionMode.GATED,
        has_graph_limit=graph.parallelism is not None,
    )


# --- dispatch ---------------------------------------------------------------------------------------------------------


def dispatch(nodes: Sequence[Node], *, project: Project, now: datetime) -> None:
    """Ready or revising nodes of a project to queued, each with a new job, attempt and lease request; few statements.

    nodes: with ``graph`` loaded, in the order in which they are to be ranked
    """
    require_transaction()
    if not nodes:
        return
    places = {node.graph_id: place_of(node.graph, project) for node in nodes}
    jobs = job_steps.admit(
        [_order(node, places[node.graph_id], project) for node in nodes], host_id=project.home_host_id, now=now
    )
    by_state: defaultdict[str, list[Node]] = defaultdict(list)
    for node, job in zip(nodes, jobs, strict=True):
        node.job, node.dispatches = job, node.dispatches + 1
        by_state[node.state].append(node)
    Node.objects.bulk_update(nodes, ["job", "dispatches"])
    for moving in by_state.values():
        move_all(moving, S.QUEUED, moves=NODE_MOVES, data=graph_data(moving))


def _order(node: Node, place: Place, project: Project) -> job_steps.JobOrder:
    spec = node_from_spec(node.spec)
    isolated = spec.own_workspace
    return job_steps.JobOrder(
        project_id=node.project_id,
        owner=node.subject,
        request_id=f"{node.subject}:{node.dispatches + 1}",
        argv=spec.command,
        env=planning.environment_of(spec, project=project.name, graph=place.graph),
        stdin=spec.stdin,
        own_checkout=isolated,
        branch_prefix=f"forge/{node.graph.name}-{node.graph.run}/{node.key}" if isolated and spec.is_writer else "",
        deadline_s=spec.deadline_s,
        grace_s=spec.grace_s,
        output_limit=spec.output_limit_bytes,
        priority=spec.priority,
        claims=planning.claims_of_node(spec, place),
        retry_class=planning.retry_class_of(spec, gated=place.gated),
        attempt_budget=spec.retry.attempts,
        keeps_grant=place.gated,
    )


def graph_data(nodes: Iterable[Node]) -> dict[int, dict[str, Any]]:
    """Every event of a node names its graph, so that a page can follow one graph."""
    return {node.pk: {"graph": node.graph_id, "key": node.key} for node in nodes}


# --- what the jobs did ------------------------------------------------------------------------------------------------


def mark_running(job_ids: Collection[int], *, now: datetime) -> None:
    """The processes of these jobs have started: their queued nodes run."""
    _ensure_running(Node.objects.filter(job__in=job_ids), now=now)


def _ensure_running(nodes: Iterable[Node], *, now: datetime) -> None:
    queued = [node for node in nodes if node.state == S.QUEUED]
    fresh = [node for node in queued if node.started_at is None]
    again = [node for node in queued if node.started_at is not None]
    move_all(fresh, S.RUNNING, moves=NODE_MOVES, data=graph_data(fresh), started_at=now)
    move_all(again, S.RUNNING, moves=NODE_MOVES, data=graph_data(again))


def settle_jobs(jobs: Sequence[Job], *, project: Project, now: datetime) -> None:
    """Ended jobs of nodes and checks: take note of each outcome."""
    node_jobs = [job for job in jobs if job.owner.startswith("node:")]
    for job in jobs:
        if job.owner.startswith("check:"):
            integration_steps.settle_check(job)
    if not node_jobs:
        return
    cancelled = {job.pk for job in node_jobs if job.state == JobState.CANCELLED}
    nodes = list(Node.objects.select_related("graph").filter(job__in=[job.pk for job in node_jobs]))
    by_job = {node.job_id: node for node in nodes}
    _ensure_running((node for node in nodes if node.job_id not in cancelled), now=now)
    succeeded_program: list[Node] = []
    ends: dict[S, list[tuple[Node, dict[str, Any]]]] = defaultdict(list)
    for job in node_jobs:
        node = by_job.get(job.pk)
        if node is None or node.state in (S.CANCELLED, S.SUPERSEDED):
            continue  # an older dispatch, or a node that was ended meanwhile: the job keeps its own outcome
        gated = node.graph.execution_mode == ExecutionMode.GATED
        if job.state == JobState.CANCELLED:
            ends[S.CANCELLED].append((node, {"code": "cancelled", "message": "cancelled"}))
        elif job.state == JobState.SUCCEEDED and gated:
            _seal(node, job, now=now)
        elif job.state == JobState.SUCCEEDED:
            succeeded_program.append(node)
        else:
            outcome = {"code": f"job_{job.state}", "message": _failure_of(job), "job": job.pk}
            if gated:
                revise(node, outcome, now=now)
            else:
                ends[S.FAILED].append((node, outcome))
    end_nodes(succeeded_program, S.SUCCEEDED, project=project, now=now)
    for state, ended in ends.items():
        for node, outcome in ended:
            end_nodes([node], state, project=project, now=now, outcome=outcome)
    Job.objects.filter(pk__in=[job.pk for job in node_jobs]).update(settled=True)


def _failure_of(job: Job) -> str:
    attempt = Attempt.objects.filter(job=job).order_by("-number").first()
    if attempt is None:
        return f"its job ended {job.state}"
    if attempt.exit_code is not None and attempt.exit_code >= 0:
        return f"its command exited with code {attempt.exit_code}"
    if attempt.exit_code is not None:
        return f"its command was ended by signal {-attempt.exit_code}"
    return str(attempt.evidence.get("message") or f"its attempt ended: {attempt.cause or attempt.state}")


def _seal(node: Node, job: Job, *, now: datetime) -> None:
    """The command ended well; whether it left a candidate is now looked at. Its end is no acceptance."""
    attempt = Attempt.objects.get(job=job, state=AttemptState.SUCCEEDED)
    spec = node_from_spec(node.spec)
    integration_steps.intend_to_seal(
        attempt=attempt,
        owner=node.subject,
        base=Checkout.objects.get(owner=attempt.subject).base,
        scope=spec.owned_files or None,
        allow_empty=spec.allow_empty,
        read_only=not spec.is_writer,
        title=spec.title or node.key,
        now=now,
    )
    move(node, S.SEALING, moves=NODE_MOVES, data=graph_data([node])[node.pk])


def revise(node: Node, outcome: Mapping[str, Any], *, now: datetime) -> None:
    """A gated node did not pass: try again within its limit, else it has failed and a person is asked (GC-09)."""
    spec = node_from_spec(node.spec)
    data = {**graph_data([node])[node.pk], "code": outcome["code"], "message": outcome["message"]}
    if node.revisions < spec.max_revisions:
        move(node, S.REVISING, moves=NODE_MOVES, data=data, revisions=node.revisions + 1, outcome=dict(outcome))
        return
    end_nodes([node], S.FAILED, project=node.graph.project, now=now, outcome=outcome)
    raise_attention(
        key=f"revisions:{node.pk}",
        project_id=node.project_id,
        subject=node.subject,
        code="revision_limit",
        message=f"{node.key}: {outcome['message']}, after {node.revisions} revisions",
        next_action=f"Look at its logs and diff, then `forge retry {node.key}`.",
        evidence=dict(outcome),
        now=now,
    )


# --- what the queue did -----------------------------------------------------------------------------------------------


def settle_candidate(candidate: Candidate, *, project: Project, now: datetime) -> None:
    """Last of the steps that end a gated node: queued, accepted as read-only, revising, or cancelled; the grant always ends.

    One record: node state, queue entry and the release of the worker's leases (GC-07).
    """
    node = Node.objects.select_related("graph").get(pk=_node_id(candidate.owner))
    attempt = candidate.attempt
    fence = job_steps.fence_of(attempt)
    if node.state != S.SEALING or is_cancelled(node.subject, node.graph.subject):
        lease_steps.end_grants([fence], now=now)
        if node.state == S.SEALING:
            end_nodes(
                [node], S.CANCELLED, project=project, now=now, outcome={"code": "cancelled", "message": "cancelled"}
            )
    elif candidate.state == CandidateState.REFUSED:
        lease_steps.end_grants([fence], now=now)
        revise(node, candidate.refusal, now=now)
    elif candidate.read_only:
        lease_steps.end_grants([fence], now=now)
        move(node, S.VALIDATING, moves=NODE_MOVES, data=graph_data([node])[node.pk])
        _accept(node, commit="", project=project, now=now)
    else:
        spec = node_from_spec(node.spec)
        integration_steps.enqueue(
            candidate=candidate,
            project=project,
            graph_revision=node.graph.revision,
            position=node.position,
            worker=fence,
            scope_keys=planning.integration_scope(project.name, spec.owned_files),
            now=now,
        )
        move(node, S.VALIDATING, moves=NODE_MOVES, data={**graph_data([node])[node.pk], "commit": candidate.commit})
    candidate.settled = True
    candidate.save(update_fields=["settled"])
    if candidate.state == CandidateState.SEALED:
        workspace_steps.order_removal([attempt.subject])


def settle_entry(entry: Entry, *, project: Project, now: datetime) -> None:
    """What became of a queue entry becomes of its node, in one record (GC-08)."""
    node = Node.objects.select_related("graph").get(pk=_node_id(entry.owner))
    if entry.state == EntryState.MOVED:
        move(entry, EntryState.ACCEPTED, moves=ENTRY_MOVES, data={"owner": entry.owner})
        _accept(node, commit=entry.offered, project=project, now=now)
    elif entry.state == EntryState.CANCELLED:
        if node.state == S.VALIDATING:
            end_nodes(
                [node], S.CANCELLED, project=project, now=now, outcome={"code": "cancelled", "message": "cancelled"}
            )
    else:
        revise(node, entry.receipt, now=now)
    integration_steps.release_scope(entry, now=now)
    entry.settled = True
    entry.save(update_fields=["settled"])


def _accept(node: Node, *, commit: str, project: Project, now: datetime) -> None:
    if node.state != S.VALIDATING:  # cancelled after the landing was recorded: what has landed is accepted all the same
        raise AssertionError(f"{node.subject} has landed but is {node.state}")
    end_nodes([node], S.ACCEPTED, project=project, now=now, commit=commit)


def _node_id(owner: str) -> int:
    return int(owner.removeprefix("node:"))


# --- ends and what follows from them ----------------------------------------------------------------------------------


def end_nodes(
    nodes: Sequence[Node],
    to: NodeState,
    *,
    project: Project,
    now: datetime,
    outcome: Mapping[str, Any] | None = None,
    commit: str = "",
) -> None:
    """Take nodes to an end, and tell those that wait for them: fewer unmet inputs, or skipped.

    Cost grows with the edges of these nodes, not with the graph.
    """
    require_transaction()
    if not nodes:
        return
    changes: dict[str, Any] = {"ended_at": now}
    if outcome is not None:
        changes["outcome"] = dict(outcome)
    if commit:
        changes["accepted_commit"] = commit
    by_state: defaultdict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        by_state[node.state].append(node)
    data = graph_data(nodes)
    for node in nodes:
        if outcome is not None:
            data[node.pk].update(code=outcome["code"], message=outcome["message"])
        if commit:
            data[node.pk]["commit"] = commit
    for moving in by_state.values():
        move_all(moving, to, moves=NODE_MOVES, data=data, **changes)
    closed: defaultdict[int, int] = defaultdict(int)
    for node in nodes:
        closed[node.graph_id] += 1
    for graph_id, count in closed.items():
        Graph.objects.filter(pk=graph_id).update(open_nodes=F("open_nodes") - count)
    _tell_those_behind({node.pk: (node.key, to) for node in nodes}, project=project, now=now)


def _tell_those_behind(ended: Mapping[int, tuple[str, NodeState]], *, project: Project, now: datetime) -> None:
    behind: defaultdict[int, list[Behind]] = defaultdict(list)
    for source, target, kind in Edge.objects.filter(source__in=list(ended)).values_list(
        "source_id", "target_id", "kind"
    ):
        behind[source].append(Behind(target, EdgeKind(kind)))
    if not behind:
        return
    consequence = planning.consequence_of({pk: state for pk, (_, state) in ended.items()}, behind)
    by_count: defaultdict[int, list[int]] = defaultdict(list)
    for target, count in consequence.met.items():
        by_count[count].append(target)
    for count, targets in by_count.items():
        Node.objects.filter(pk__in=targets).update(unmet_inputs=F("unmet_inputs") - count)
    skipped = list(Node.objects.select_related("graph").filter(pk__in=list(consequence.skipped), state=S.PENDING))
    for node in skipped:
        cause = ended[consequence.skipped[node.pk]][0]
        end_nodes(
            [node],
            S.SKIPPED,
            project=project,
            now=now,
            outcome={
                "code": "dependency_ended",
                "message": f"{cause} ended {ended[consequence.skipped[node.pk]][1]}",
                "node": cause,
            },
        )


def close_graphs(project: Project, *, now: datetime) -> None:
    """Graphs whose nodes have all ended end themselves."""
    for graph in Graph.objects.filter(project=project, state=GraphState.ACTIVE, open_nodes=0):
        states: defaultdict[str, int] = defaultdict(int)
        for state in Node.objects.filter(graph=graph).values_list("state", flat=True):
            states[state] += 1
        outcome = GraphState(planning.graph_outcome(states))
        move(graph, outcome, moves=GRAPH_MOVES, data={"graph": graph.pk, "nodes": dict(states)}, ended_at=now)


def cancel_nodes(nodes: Sequence[Node], *, project: Project, reason: str, now: datetime) -> list[str]:
    """Under a cancel intent: what has not started ends now, what runs is asked to stop, what is queued leaves the queue.

    Returns: keys of nodes whose landing is already recorded; it is completed first
    Caller:  holds the project's row, then the broker row
    """
    outcome = {"code": "cancelled", "message": reason or "cancelled"}
    landing: list[str] = []
    for node in nodes:
        if node.state in (S.PENDING, S.REVISING):
            end_nodes([node], S.CANCELLED, project=project, now=now, outcome=outcome)
        elif node.state in (S.QUEUED, S.RUNNING):
            attempts = Attempt.objects.select_related("job").filter(
                job=node.job_id, state__in=[AttemptState.WAITING, AttemptState.STARTING, AttemptState.RUNNING]
            )
            job_steps.ask_to_stop(list(attempts), reason=Cause.CANCELLED, now=now)
        elif node.state == S.VALIDATING:
            entry = Entry.objects.get(candidate__attempt__job=node.job_id)
            if not integration_steps.cancel_entry(entry, reason=outcome["message"], now=now):
                landing.append(node.key)
    return landing


def record_graph_event(graph: Graph, kind: str, **data: Any) -> None:
    journal.record(kind, subject=graph.subject, project_id=graph.project_id, graph=graph.pk, **data)
