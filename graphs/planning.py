"""What a node asks the broker for, what its job looks like, and what the end of a node means for those behind it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from graphs.documents import model as doc
from graphs.ordering import EdgeKind, is_ruled_out, is_satisfied
from graphs.states import NodeState
from jobs.states import JobState, RetryClass
from leases import keys
from leases.planning import ClaimSpec
from leases.states import Access, ResourceClass, WorkMode

NOT_KNOWN = (JobState.ORPHANED, JobState.UNKNOWN, JobState.HUMAN_ATTENTION_REQUIRED)  # nobody knows what it did


@dataclass(frozen=True)
class Place:
    """Where the nodes of a graph run.

    workspace: absolute real path on ``host``; path claims are `<host>/<path>`, so equal paths on two hosts never meet
    """

    host: str
    project: str
    workspace: str
    graph: str  # `name#run`, scopes what only this graph means
    gated: bool
    has_graph_limit: bool


def capacity_claims(place: Place) -> tuple[ClaimSpec, ...]:
    """One unit each of the host's slots, the project's limit and, where the document has one, the graph's."""
    units = [keys.slots_of_host(place.host), keys.limit_of_project(place.project)]
    if place.has_graph_limit:
        units.append(keys.limit_of_graph(place.project, place.graph))
    return tuple(ClaimSpec(ResourceClass.PHYSICAL, key, Access.CAPACITY, units=1) for key in units)


def integration_scope(project: str, owned_files: Iterable[str] | None) -> tuple[str, ...]:
    """Keys of class integration for a write scope; an unknown or unrestricted one is the whole project (RB-16)."""
    return tuple(keys.landing_scope(project, path) for path in owned_files or ()) or (keys.landing_scope(project),)


def claims_of_node(node: doc.Node, place: Place) -> tuple[ClaimSpec, ...]:
    """Everything a node's attempts need at once, before they may start."""
    mode = WorkMode(node.work_mode)
    claims = [*capacity_claims(place), *(_written_claim(claim) for claim in node.all_claims(project=place.project))]
    if node.own_workspace:
        if place.gated and node.is_writer:
            access = Access.WRITE if node.owned_files else Access.EXCLUSIVE
            claims += [
                ClaimSpec(ResourceClass.INTEGRATION, key, access, mode=mode, isolated=mode is WorkMode.COMPETITIVE)
                for key in integration_scope(place.project, node.owned_files)
            ]
    else:
        claims += _workspace_claims(node, place, mode)
    return tuple(claims)


def _workspace_claims(node: doc.Node, place: Place, mode: WorkMode) -> list[ClaimSpec]:
    """Territories in a shared workspace: they order the work and never reject an edit."""
    root = keys.workspace(place.host, place.workspace)
    if node.is_writer:
        if not node.owned_files:  # an unrestricted integrator runs alone
            return [ClaimSpec(ResourceClass.PHYSICAL, root, Access.EXCLUSIVE, mode=mode)]
        return [
            ClaimSpec(ResourceClass.PHYSICAL, f"{root}/{path.rstrip('/')}", Access.WRITE, mode=mode)
            for path in node.owned_files
        ]
    if not node.reads:
        return [ClaimSpec(ResourceClass.PHYSICAL, root, Access.INTENTION_READ, mode=mode)]
    return [
        ClaimSpec(ResourceClass.PHYSICAL, f"{root}/{path.rstrip('/')}", Access.READ, mode=mode) for path in node.reads
    ]


def _written_claim(claim: doc.Claim) -> ClaimSpec:
    return ClaimSpec(
        ResourceClass(claim.resource_class),
        claim.resource,
        Access(claim.access),
        mode=WorkMode(claim.mode),
        version=claim.version,
        isolated=claim.isolated,
    )


def retry_class_of(node: doc.Node, *, gated: bool) -> RetryClass:
    """What may happen to work whose end is not known; design.md section 6 has the defaults."""
    if node.retry.retry_class is not None:
        return RetryClass(node.retry.retry_class)
    if node.outside_effects:
        return RetryClass.REQUIRES_RECONCILIATION
    if gated and node.is_writer:
        return RetryClass.REQUIRES_RECONCILIATION  # the node is revised in a fresh checkout instead
    return RetryClass.REPLAY_UNFINISHED


@dataclass(frozen=True)
class Behind:
    """A node that waits for one that ended."""

    target: int
    kind: EdgeKind


@dataclass(frozen=True)
class Consequence:
    """met: how many inputs each waiting node has no more to wait for; skipped: which can never start, and because of whom."""

    met: Mapping[int, int]
    skipped: Mapping[int, int]


def consequence_of(ended: Mapping[int, NodeState], behind: Mapping[int, Iterable[Behind]]) -> Consequence:
    """What the ends in ``ended`` mean one edge further. The skipped are ends themselves: the caller asks again for them."""
    met: dict[int, int] = {}
    skipped: dict[int, int] = {}
    for source in sorted(ended):
        for edge in behind.get(source, ()):
            if is_satisfied(edge.kind, ended[source]):
                met[edge.target] = met.get(edge.target, 0) + 1
            else:
                skipped.setdefault(edge.target, source)
    return Consequence({target: count for target, count in met.items() if target not in skipped}, skipped)


@dataclass(frozen=True)
class Reopening:
    """reopened: nodes that wait again; unmet: what each node with inputs that waits or is skipped now lacks."""

    reopened: frozenset[int]
    unmet: Mapping[int, int]


def reopening(
    node: int, states: Mapping[int, NodeState], edges: Iterable[tuple[int, int, EdgeKind]]
) -> Reopening | None:
    """What follows when a failed node waits again: skipped ones behind it do, unless another end still rules them out.

    states:  of every node of the graph
    edges:   (source, target, kind)
    Returns: None when the node itself can never run, since what it waits for has ended the other way meanwhile
    """
    incoming: dict[int, list[tuple[int, EdgeKind]]] = {}
    outgoing: dict[int, list[int]] = {}
    for source, target, kind in edges:
        incoming.setdefault(target, []).append((source, kind))
        outgoing.setdefault(source, []).append(target)
    derived = dict(states)

    def may_run(target: int) -> bool:
        return not any(is_ruled_out(kind, derived[source]) for source, kind in incoming.get(target, ()))

    if not may_run(node):
        return None
    derived[node] = NodeState.PENDING
    reopened, front = {node}, [node]
    while front:  # a node is looked at again whenever one it waits for is reopened
        for target in outgoing.get(front.pop(), ()):
            if derived[target] == NodeState.SKIPPED and may_run(target):
                derived[target] = NodeState.PENDING
                reopened.add(target)
                front.append(target)
    unmet = {
        target: sum(not is_satisfied(kind, derived[source]) for source, kind in sources)
        for target, sources in incoming.items()
        if derived[target] in (NodeState.PENDING, NodeState.SKIPPED)
    }
    return Reopening(frozenset(reopened), unmet)


def may_try_again(node: doc.Node, job_state: JobState) -> bool:
    """Whether a gated node may be revised without a person: its checkout is thrown away, its outside effects cannot be.

    job_state: how its job ended; succeeded when its candidate was refused later
    """
    if node.retry.retry_class is doc.RetryClass.NON_REPEATABLE:
        return False
    declared = bool(node.outside_effects) or node.retry.retry_class is doc.RetryClass.REQUIRES_RECONCILIATION
    return not (declared and job_state in NOT_KNOWN)


def graph_outcome(states: Mapping[str, int], *, cancelled: bool) -> str:
    """The state of a graph whose nodes have all ended.

    states:    how many nodes are in which
    cancelled: the graph itself was; a node that was cancelled alone is one that did not succeed
    """
    if cancelled and states.get(NodeState.CANCELLED):
        return "cancelled"
    missed = sum(states.get(state, 0) for state in (NodeState.FAILED, NodeState.SKIPPED, NodeState.CANCELLED))
    return "partial" if missed else "completed"


def environment_of(node: doc.Node, *, project: str, graph: str) -> dict[str, Any]:
    """What every worker is told about itself; its own variables win."""
    return {"FORGE_PROJECT": project, "FORGE_GRAPH": graph, "FORGE_NODE": node.key, **dict(node.env)}
