"""The coordinator's writes on graphs and nodes. Nobody else changes a node's state (GC-01).

Every step runs under the project's row; those that end or hand over leases also under the broker row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from core import journal, rows
from core.models import Project
from core.selectors import is_cancelled
from core.steps import raise_attention
from core.transitions import move, move_all, move_each, require_transaction
from graphs import planning
from graphs.documents import node_from_spec
from graphs.models import Graph, Node
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
    move_each(
        [(node, {"job_id": job.pk, "dispatches": node.dispatches + 1}) for node, job in zip(nodes, jobs, strict=True)],
        S.QUEUED,
        moves=NODE_MOVES,
        data=graph_data(nodes),
    )


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
    _ensure_running(_nodes_of(job_ids), now=now)


def _ensure_running(nodes: Iterable[Node], *, now: datetime) -> None:
    queued = [node for node in nodes if node.state == S.QUEUED]
    move_each(
        [(node, {"started_at": node.started_at or now}) for node in queued],
        S.RUNNING,
        moves=NODE_MOVES,
        data=graph_data(queued),
    )


def _nodes_of(job_ids: Collection[int]) -> list[Node]:
    """The nodes whose newest dispatch these jobs are, each with its graph; without what only a dispatch needs."""
    if not job_ids:
        return []
    nodes = rows.select(Node, f"job_id IN ({rows.places(job_ids)})", list(job_ids), without=("spec",))
    load_graphs(nodes)
    return nodes


def load_graphs(nodes: Sequence[Node]) -> None:
    graphs = rows.by_id(Graph, {node.graph_id for node in nodes}, without=("document",))  # it may be a megabyte
    for node in nodes:
        node.graph = graphs[node.graph_id]


def settle_jobs(jobs: Sequence[Job], *, project: Project, now: datetime) -> None:
    """Ended jobs of nodes and checks: take note of each outcome."""
    node_jobs = [job for job in jobs if job.owner.startswith("node:")]
    for job in jobs:
        if job.owner.startswith("check:"):
            integration_steps.settle_check(job)
    if not node_jobs:
        return
    succeeded = {job.pk for job in node_jobs if job.state == JobState.SUCCEEDED}
    cancelled = {job.pk for job in node_jobs if job.state == JobState.CANCELLED}
    nodes = _nodes_of([job.pk for job in node_jobs])
    by_job = {node.job_id: node for node in nodes}
    through = [node for node in nodes if node.state == S.QUEUED and node.job_id in succeeded and _is_program(node)]
    _ensure_running((node for node in nodes if node.job_id not in cancelled and node not in through), now=now)
    succeeded_program: list[Node] = []
    ends: dict[S, list[tuple[Node, dict[str, Any]]]] = defaultdict(list)
    for job in node_jobs:
        node = by_job.get(job.pk)
        if node is None or node.state in (S.CANCELLED, S.SUPERSEDED):
            continue  # an older dispatch, or a node that was ended meanwhile: the job keeps its own outcome
        gated = not _is_program(node)
        if job.state == JobState.CANCELLED:
            ends[S.CANCELLED].append((node, {"code": "cancelled", "message": "cancelled"}))
        elif job.state == JobState.SUCCEEDED and gated:
            _seal(node, job, now=now)
        elif job.state == JobState.SUCCEEDED:
            succeeded_program.append(node)
        else:
            outcome = {"code": f"job_{job.state}", "message": _failure_of(job), "job": job.pk}
            if gated:
                revise(node, outcome, now=now, job_state=JobState(job.state))
            else:
                ends[S.FAILED].append((node, outcome))
                if job.state in planning.NOT_KNOWN:
                    _ask_about(node, outcome, now=now)
    end_nodes(succeeded_program, S.SUCCEEDED, project=project, now=now)
    for state, ended in ends.items():
        for node, outcome in ended:
            end_nodes([node], state, project=project, now=now, outcome=outcome)
    settled = [job.pk for job in node_jobs]
    rows.execute(f"UPDATE jobs_job SET settled = %s WHERE id IN ({rows.places(settled)})", [True, *settled])


def _is_program(node: Node) -> bool:
    return node.graph.execution_mode == ExecutionMode.PROGRAM


def _failure_of(job: Job) -> str:
    attempt = Attempt.objects.filter(job=job).order_by("-number").first()
    if attempt is None:
        return f"its job ended {job.state}"
    if job.state == JobState.TIMED_OUT:
        return f"it passed its deadline of {job.deadline_s} s"
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


def _ask_about(node: Node, outcome: Mapping[str, Any], *, now: datetime) -> None:
    """Nobody knows what its command did, so nothing repeats it before a person has looked."""
    raise_attention(
        key=f"outcome:{node.pk}",
        project_id=node.project_id,
        subject=node.subject,
        code="outcome_unknown",
        message=f"{node.key}: {outcome['message']}; what it did is not known",
        next_action=f"Find out what it did and put that right, then `forge retry {node.key}`.",
        evidence=dict(outcome),
        now=now,
    )


def revise(node: Node, outcome: Mapping[str, Any], *, now: datetime, job_state: JobState = JobState.SUCCEEDED) -> None:
    """A gated node did not pass: try again within its limit, else it has failed and a person is asked (GC-09).

    Under a cancel intent it is not tried again; neither is what only a person may repeat.
    """
    spec = node_from_spec(node.spec)
    data = {**graph_data([node])[node.pk], "code": outcome["code"], "message": outcome["message"]}
    if is_cancelled(node.subject, node.graph.subject):
        end_nodes([node], S.CANCELLED, project=node.graph.project, now=now, outcome=outcome)
        return
    if not planning.may_try_again(spec, job_state):
        end_nodes([node], S.FAILED, project=node.graph.project, now=now, outcome=outcome)
        _ask_about(node, outcome, now=now)
        return
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
    elif node.state == S.VALIDATING:
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
    data = graph_data(nodes)
    for node in nodes:
        if outcome is not None:
            data[node.pk].update(code=outcome["code"], message=outcome["message"])
        if commit:
            data[node.pk]["commit"] = commit
    unseen = [node for node in nodes if to == S.SUCCEEDED and node.state == S.QUEUED]  # its start was never recorded
    move_all(unseen, to, moves=NODE_MOVES, via=[S.RUNNING], data=data, started_at=now, **changes)
    move_all([node for node in nodes if node not in unseen], to, moves=NODE_MOVES, data=data, **changes)
    _count_as_ended(nodes)
    causes = {node.pk: (node.key, to) for node in nodes}
    while causes:  # a wave at a time: a chain of thousands is no reason for a RecursionError
        causes = _tell_those_behind(causes, now=now)


def _count_as_ended(nodes: Sequence[Node]) -> None:
    for graph_id, count in Counter(node.graph_id for node in nodes).items():
        rows.execute("UPDATE graphs_graph SET open_nodes = open_nodes - %s WHERE id = %s", [count, graph_id])


_Reason = tuple[str, NodeState]  # key and state of the node that really ended


def _tell_those_behind(causes: Mapping[int, _Reason], *, now: datetime) -> dict[int, _Reason]:
    """One edge further: fewer unmet inputs, or skipped.

    causes:  nodes that ended, each with the node it ended because of (itself, unless it was skipped)
    Returns: the same for the nodes skipped now
    """
    behind, states = _edges_behind(causes)
    if not behind:
        return {}
    consequence = planning.consequence_of(states, behind)
    by_count: defaultdict[int, list[int]] = defaultdict(list)
    for target, count in consequence.met.items():
        by_count[count].append(target)
    for count, targets in by_count.items():
        rows.execute(
            f"UPDATE graphs_node SET unmet_inputs = unmet_inputs - %s WHERE id IN ({rows.places(targets)})"
            " AND state IN ('pending', 'skipped')",  # any other went on with an earlier end of the same source
            [count, *targets],
        )
    found = rows.by_id(Node, consequence.skipped, without=("spec",))
    skipped = [node for node in found.values() if node.state == S.PENDING]
    because = {node.pk: causes[consequence.skipped[node.pk]] for node in skipped}
    data = graph_data(skipped)
    outcomes = {}
    for node in skipped:
        key, state = because[node.pk]
        outcomes[node.pk] = {"code": "dependency_ended", "message": f"{key} ended {state}", "node": key}
        data[node.pk].update(code="dependency_ended", message=f"{key} ended {state}")
    move_each(
        [(node, {"ended_at": now, "outcome": outcomes[node.pk]}) for node in skipped],
        S.SKIPPED,
        moves=NODE_MOVES,
        data=data,
    )
    _count_as_ended(skipped)
    return because


def _edges_behind(ended: Collection[int]) -> tuple[dict[int, list[Behind]], dict[int, NodeState]]:
    """The outgoing edges of nodes, and the states those are in."""
    behind: defaultdict[int, list[Behind]] = defaultdict(list)
    states: dict[int, NodeState] = {}
    for source, state, target, kind in rows.fetch(
        "SELECT e.source_id, n.state, e.target_id, e.kind FROM graphs_edge e JOIN graphs_node n ON n.id = e.source_id"
        f" WHERE e.source_id IN ({rows.places(ended)})",
        list(ended),
    ):
        behind[source].append(Behind(target, EdgeKind(kind)))
        states[source] = NodeState(state)
    return behind, states


def close_graphs(project: Project, *, now: datetime) -> None:
    """Graphs whose nodes have all ended end themselves."""
    ended = rows.select(
        Graph, "project_id = %s AND state = 'active' AND open_nodes = 0", [project.pk], without=("document",)
    )
    for graph in ended:
        states: defaultdict[str, int] = defaultdict(int)
        for state in Node.objects.filter(graph=graph).values_list("state", flat=True):
            states[state] += 1
        outcome = GraphState(planning.graph_outcome(states, cancelled=is_cancelled(graph.subject)))
        move(graph, outcome, moves=GRAPH_MOVES, data={"graph": graph.pk, "nodes": dict(states)}, ended_at=now)


def cancel_nodes(nodes: Sequence[Node], *, project: Project, reason: str, now: datetime) -> list[str]:
    """Under a cancel intent: what has not started ends now, what runs is asked to stop, what is queued leaves the queue.

    Returns: keys of nodes whose landing is already recorded; it is completed first
    Caller:  holds the project's row, then the broker row
    """
    outcome = {"code": "cancelled", "message": reason or "cancelled"}
    landing: list[str] = []
    idle = [node for node in nodes if node.state in (S.PENDING, S.REVISING)]
    end_nodes(idle, S.CANCELLED, project=project, now=now, outcome=outcome)  # at once: else one would skip the next
    for node in nodes:
        if node.state in (S.QUEUED, S.RUNNING):
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
