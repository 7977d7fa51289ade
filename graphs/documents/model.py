"""What a graph document says once it is checked: defaults folded in, edges explicit, one spelling for one meaning.

The contract fixes the defaults, so a document means the same on every installation.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from graphs.ordering import Edge
from graphs.states import ExecutionMode

CONTRACT: Final = "forge.plan/1"

DEADLINE_S: Final = 3600
GRACE_S: Final = 5
OUTPUT_LIMIT_BYTES: Final = 1_048_576
PRIORITY: Final = 0
MAX_REVISIONS: Final = 3
ATTEMPTS: Final = 3
UNITS: Final = 1

ARTIFACT_PREFIX: Final = "artifact:"


def artifact_resource(project: str, artifact: str) -> str:
    """The logical resource that stands for an artifact. Resources are shared by all projects, artifacts are not."""
    return f"{ARTIFACT_PREFIX}{project}/{artifact}"


def default_primary(project: str, graph: str, key: str) -> str:
    """The primary of a gated writer that names none: its own, which no other node writes by accident."""
    return f"node:{project}/{graph}/{key}"


class WorkspaceMode(StrEnum):
    SHARED = "shared"
    ISOLATED = "isolated"


class WorkMode(StrEnum):
    COOPERATIVE = "cooperative"
    COMPETITIVE = "competitive"
    READ_ONLY = "read-only"


class ResourceClass(StrEnum):
    LOGICAL = "logical"
    PHYSICAL = "physical"
    INTEGRATION = "integration"


class Access(StrEnum):
    READ = "read"
    WRITE = "write"
    EXCLUSIVE = "exclusive"


class RetryClass(StrEnum):
    IDEMPOTENT = "idempotent"
    REQUIRES_RECONCILIATION = "requires-reconciliation"
    NON_REPEATABLE = "non-repeatable"
    REPLAY_UNFINISHED = "replay-unfinished"


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a document may be. Depth counts mappings and lists inside each other, the document itself is 1."""

    max_bytes: int = 8 * 2**20
    max_depth: int = 32
    max_nodes: int = 20_000
    max_edges: int = 200_000


DEFAULT_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True, order=True)
class ArtifactRef:
    artifact: str
    version: int


@dataclass(frozen=True, slots=True, order=True)
class Artifact:
    """A version that exists for this graph. ``producer`` is a node key, or None for accepted history."""

    name: str
    version: int
    additive: bool = False
    producer: str | None = None

    @property
    def is_history(self) -> bool:
        return self.producer is None


@dataclass(frozen=True, slots=True, order=True)
class Requirement:
    id: str
    text: str
    mandatory: bool = True


@dataclass(frozen=True, slots=True)
class Claim:
    """``isolated``: from other holders of the resource, resolved from the workspace where the document says nothing.

    ``units``: of a physical resource's capacity.
    """

    resource: str
    resource_class: ResourceClass
    access: Access
    mode: WorkMode
    version: int | None = None
    units: int = UNITS
    isolated: bool = False

    @property
    def writes(self) -> bool:
        return self.access is not Access.READ


def plain_write(resource: str, work_mode: WorkMode, *, own_workspace: bool) -> Claim:
    """The claim that naming a primary amounts to."""
    return Claim(resource, ResourceClass.LOGICAL, Access.WRITE, mode=work_mode, isolated=own_workspace)


@dataclass(frozen=True, slots=True)
class Retry:
    """``retry_class`` None: by execution mode, see design.md, section 6. ``attempts`` counts the first one."""

    retry_class: RetryClass | None = None
    attempts: int = ATTEMPTS


@dataclass(frozen=True, slots=True)
class Node:
    """One piece of work.

    primary:     the primary logical write; None for a reader, and for a program node that names none
    owned_files: None: not declared; (): unrestricted integrator; else files and, with a trailing slash, directories
    claims:      as written, without a plain write claim on the primary: see ``all_claims``
    env:         sorted pairs; ``dict(node.env)`` is the mapping
    own_workspace: whether each attempt works in a checkout of its own (gated, or an isolated program)
    """

    key: str
    command: tuple[str, ...]
    title: str = ""
    work_mode: WorkMode = WorkMode.COOPERATIVE
    primary: str | None = None
    owned_files: tuple[str, ...] | None = None
    reads: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    produces: tuple[ArtifactRef, ...] = ()
    consumes: tuple[ArtifactRef, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    stdin: str = ""
    deadline_s: int = DEADLINE_S
    grace_s: int = GRACE_S
    output_limit_bytes: int = OUTPUT_LIMIT_BYTES
    priority: int = PRIORITY
    max_revisions: int = MAX_REVISIONS
    retry: Retry = Retry()
    allow_empty: bool = False
    outside_effects: tuple[str, ...] = ()
    own_workspace: bool = True

    @property
    def is_writer(self) -> bool:
        return self.work_mode is not WorkMode.READ_ONLY

    def primary_claim(self) -> Claim | None:
        """The plain write claim on the primary, as it is when `claims` says nothing more particular."""
        if self.primary is None:
            return None
        return plain_write(self.primary, self.work_mode, own_workspace=self.own_workspace)

    def all_claims(self, *, project: str) -> tuple[Claim, ...]:
        """Every logical, physical and integration claim apart from files: written ones, the primary, the artifacts.

        project: the document's
        A consumed version is read and a produced one written on the artifact's resource, so that a reader of version N
        goes together with the writer of N+1. A node that does both has two claims on that one resource.
        """
        derived = [
            Claim(
                artifact_resource(project, ref.artifact),
                ResourceClass.LOGICAL,
                access,
                mode=self.work_mode,
                version=ref.version,
                isolated=self.own_workspace,
            )
            for refs, access in ((self.consumes, Access.READ), (self.produces, Access.WRITE))
            for ref in refs
        ]
        if primary := self.primary_claim():
            derived.append(primary)
        written = {_purpose(claim) for claim in self.claims}
        return (*self.claims, *(claim for claim in derived if _purpose(claim) not in written))


def _purpose(claim: Claim) -> tuple[ResourceClass, str, bool, int | None]:
    """What a written claim must have in common with a derived one to stand in its place."""
    version = claim.version if claim.resource.startswith(ARTIFACT_PREFIX) else None
    return claim.resource_class, claim.resource, claim.writes, version


@dataclass(frozen=True, slots=True)
class GraphDocument:
    """A checked document.

    execution_mode: as written; None when the document does not say, which stays distinguishable from `gated` for ever
    workspace_mode: of a program, shared when not written; None for a gated graph
    foundation:     commit id the graph was planned on
    artifacts:      every version there is: produced ones and history
    nodes, edges, artifacts, requirements are sorted by their identity.
    """

    name: str
    project: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    contract: str = CONTRACT
    title: str = ""
    execution_mode: ExecutionMode | None = None
    workspace_mode: WorkspaceMode | None = None
    foundation: str | None = None
    parallelism: int | None = None
    requirements: tuple[Requirement, ...] = ()
    artifacts: tuple[Artifact, ...] = ()

    @property
    def mode(self) -> ExecutionMode:
        """The mode in force: a document without one is gated."""
        return self.execution_mode or ExecutionMode.GATED

    @property
    def is_program(self) -> bool:
        return self.mode is ExecutionMode.PROGRAM
