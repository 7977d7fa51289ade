"""From a checked shape to the model, and from the model back to a document.

A document written here is minimal: what equals the contract's default is left out. So a later optional field does not
change the digest of an old document.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from graphs.documents.linking import Links, Shape
from graphs.documents.model import (
    ATTEMPTS,
    DEADLINE_S,
    GRACE_S,
    MAX_REVISIONS,
    OUTPUT_LIMIT_BYTES,
    PRIORITY,
    UNITS,
    Access,
    ArtifactRef,
    Claim,
    GraphDocument,
    Node,
    Requirement,
    ResourceClass,
    Retry,
    RetryClass,
    WorkMode,
    WorkspaceMode,
    default_primary,
    plain_write,
)
from graphs.documents.rules import is_read_only, logical_writes
from graphs.ordering import EdgeKind
from graphs.states import ExecutionMode

# field of the document -> default of the contract, for the numbers that `defaults` may set
_NUMBERS: Final = {
    "deadlineSeconds": DEADLINE_S,
    "graceSeconds": GRACE_S,
    "outputLimitBytes": OUTPUT_LIMIT_BYTES,
    "priority": PRIORITY,
    "maxRevisions": MAX_REVISIONS,
}


def fold(shape: Shape, links: Links) -> GraphDocument:
    """The model of a shape in which nothing is wrong."""
    mode = ExecutionMode(shape["executionMode"]) if "executionMode" in shape else None
    is_program = mode is ExecutionMode.PROGRAM
    workspace = WorkspaceMode(shape.get("workspaceMode", WorkspaceMode.SHARED)) if is_program else None
    defaults: Shape = shape.get("defaults", {})
    own_workspace = workspace is not WorkspaceMode.SHARED
    nodes = [
        _node(item, defaults, primary=_primary(item, shape, is_gated=not is_program), own_workspace=own_workspace)
        for item in shape["nodes"]
    ]
    return GraphDocument(
        name=shape["name"],
        project=shape["project"],
        contract=shape["contract"],
        title=shape.get("title", ""),
        execution_mode=mode,
        workspace_mode=workspace,
        foundation=shape["foundation"]["revision"] if "foundation" in shape else None,
        parallelism=int(shape["parallelism"]) if "parallelism" in shape else None,
        requirements=tuple(sorted(_requirement(item) for item in shape.get("requirements", ()))),
        artifacts=links.artifacts,
        nodes=tuple(sorted(nodes, key=lambda node: node.key)),
        edges=links.edges,
    )


def _requirement(item: Shape) -> Requirement:
    return Requirement(item["id"], item["text"], item.get("mandatory", True))


def _node(item: Shape, defaults: Shape, *, primary: str | None, own_workspace: bool) -> Node:
    work_mode = WorkMode(item.get("workMode", WorkMode.COOPERATIVE))
    retry: Shape = item.get("retry", {})
    numbers = {name: int(item.get(name, defaults.get(name, default))) for name, default in _NUMBERS.items()}
    return Node(
        key=item["key"],
        command=tuple(item["command"]),
        title=item.get("title", ""),
        work_mode=work_mode,
        primary=primary,
        owned_files=tuple(sorted(item["ownedFiles"])) if "ownedFiles" in item else None,
        reads=tuple(sorted(item.get("reads", ()))),
        claims=_claims(item.get("claims", ()), primary, work_mode, own_workspace=own_workspace),
        produces=_refs(item.get("produces", ())),
        consumes=_refs(item.get("consumes", ())),
        env=tuple(sorted({**defaults.get("env", {}), **item.get("env", {})}.items())),
        stdin=item.get("stdin", ""),
        retry=Retry(
            RetryClass(retry["class"]) if "class" in retry else None,
            int(retry.get("attempts", ATTEMPTS)),
        ),
        allow_empty=item.get("allowEmpty", False),
        outside_effects=tuple(sorted(set(item.get("outsideEffects", ())))),
        own_workspace=own_workspace,
        deadline_s=numbers["deadlineSeconds"],
        grace_s=numbers["graceSeconds"],
        output_limit_bytes=numbers["outputLimitBytes"],
        priority=numbers["priority"],
        max_revisions=numbers["maxRevisions"],
    )


def _primary(item: Shape, shape: Shape, *, is_gated: bool) -> str | None:
    if "primary" in item or not is_gated or is_read_only(item):
        return item.get("primary")
    written = logical_writes(item.get("claims", ()))
    return written[0] if written else default_primary(shape["project"], shape["name"], item["key"])


def _refs(items: Any) -> tuple[ArtifactRef, ...]:
    return tuple(sorted(ArtifactRef(item["artifact"], int(item["version"])) for item in items))


def _claims(items: Any, primary: str | None, work_mode: WorkMode, *, own_workspace: bool) -> tuple[Claim, ...]:
    """Without a claim that says no more than `primary` says."""
    plain = plain_write(primary, work_mode, own_workspace=own_workspace) if primary is not None else None
    claims = (_claim(item, work_mode, own_workspace=own_workspace) for item in items)
    return tuple(sorted((claim for claim in claims if claim != plain), key=_claim_order))


def _claim(item: Shape, work_mode: WorkMode, *, own_workspace: bool) -> Claim:
    resource_class = ResourceClass(item["class"])
    return Claim(
        resource=item["resource"],
        resource_class=resource_class,
        access=Access(item["access"]),
        mode=WorkMode(item.get("mode", work_mode)),
        version=int(item["version"]) if "version" in item else None,
        units=int(item.get("units", UNITS)),
        isolated=item.get("isolated", _is_isolated(resource_class, own_workspace=own_workspace)),
    )


def _is_isolated(resource_class: ResourceClass, *, own_workspace: bool) -> bool:
    """A checkout of its own isolates ideas from each other, but neither devices nor the branch they land on."""
    return own_workspace and resource_class is ResourceClass.LOGICAL


def _claim_order(claim: Claim) -> tuple[str, str, str, int]:
    return claim.resource_class, claim.resource, claim.access, claim.version or 0


def to_document(document: GraphDocument) -> dict[str, Any]:
    """The document in its one spelling: minimal, every edge in `edges`, lists sorted by identity.

    ``parse(to_document(document)) == document``.
    """
    artifacts = [
        {"name": artifact.name, "version": artifact.version}
        | ({"additive": True} if artifact.additive else {})
        | ({"history": True} if artifact.is_history else {})
        for artifact in document.artifacts
        if artifact.additive or artifact.is_history
    ]
    requirements = [
        {"id": item.id, "text": item.text} | ({} if item.mandatory else {"mandatory": False})
        for item in document.requirements
    ]
    edges = [
        {"from": edge.source, "to": edge.target} | ({} if edge.kind is EdgeKind.SUCCESS else {"kind": edge.kind.value})
        for edge in document.edges
    ]
    optional = {
        "title": document.title,
        "executionMode": document.execution_mode and document.execution_mode.value,
        "workspaceMode": "isolated" if document.workspace_mode is WorkspaceMode.ISOLATED else None,
        "foundation": document.foundation and {"revision": document.foundation},
        "parallelism": document.parallelism,
        "requirements": requirements,
        "artifacts": artifacts,
        "edges": edges,
    }
    return {
        "contract": document.contract,
        "name": document.name,
        "project": document.project,
        "nodes": [_minimal(node, document) for node in document.nodes],
        **{name: value for name, value in optional.items() if value},
    }


def node_spec(node: Node) -> dict[str, Any]:
    """Everything about a node, in the spelling of the document and with no default left out, plus `ownWorkspace`.

    For storing beside a node's row; ``node_from_spec`` reads it back.
    """
    spec: dict[str, Any] = {
        "key": node.key,
        "title": node.title,
        "command": list(node.command),
        "workMode": node.work_mode.value,
        "primary": node.primary,
        "reads": list(node.reads),
        "claims": [_claim_spec(claim) for claim in node.claims],
        "produces": _ref_documents(node.produces),
        "consumes": _ref_documents(node.consumes),
        "env": dict(node.env),
        "stdin": node.stdin,
        "retry": {"attempts": node.retry.attempts},
        "allowEmpty": node.allow_empty,
        "outsideEffects": list(node.outside_effects),
        "ownWorkspace": node.own_workspace,
        "deadlineSeconds": node.deadline_s,
        "graceSeconds": node.grace_s,
        "outputLimitBytes": node.output_limit_bytes,
        "priority": node.priority,
        "maxRevisions": node.max_revisions,
    }
    if node.retry.retry_class is not None:
        spec["retry"]["class"] = node.retry.retry_class.value
    if node.owned_files is not None:  # an empty list says something else than none
        spec["ownedFiles"] = list(node.owned_files)
    return spec


def node_from_spec(spec: Mapping[str, Any]) -> Node:
    """The node that ``node_spec`` wrote. Raises: KeyError, ValueError for anything else, which is our bug."""
    return _node(spec, {}, primary=spec["primary"], own_workspace=spec["ownWorkspace"])


@cache
def _default_spec() -> dict[str, Any]:
    return node_spec(Node(key="", command=()))


def _minimal(node: Node, document: GraphDocument) -> dict[str, Any]:
    """A node of ``to_document``: its specification without what the contract says anyway."""
    found = {name: value for name, value in node_spec(node).items() if value != _default_spec().get(name)}
    found.pop("ownWorkspace", None)  # follows from the modes of the document
    found["claims"] = [_claim_document(claim, node) for claim in node.claims]
    if not found["claims"]:
        del found["claims"]
    if "retry" in found and node.retry.attempts == ATTEMPTS:
        del found["retry"]["attempts"]
    if _is_default_primary(node, document):
        del found["primary"]
    return found


def _is_default_primary(node: Node, document: GraphDocument) -> bool:
    """Whether a gated node would come to the same primary by itself: a written logical write would be taken first."""
    is_written = any(claim.resource_class is ResourceClass.LOGICAL and claim.writes for claim in node.claims)
    default = default_primary(document.project, document.name, node.key)
    return not document.is_program and not is_written and node.primary == default


def _claim_spec(claim: Claim) -> dict[str, Any]:
    spec = {
        "resource": claim.resource,
        "class": claim.resource_class.value,
        "access": claim.access.value,
        "mode": claim.mode.value,
        "units": claim.units,
        "isolated": claim.isolated,
    }
    return spec if claim.version is None else {**spec, "version": claim.version}


def _claim_document(claim: Claim, node: Node) -> dict[str, Any]:
    defaults = {
        "mode": node.work_mode.value,
        "units": UNITS,
        "isolated": _is_isolated(claim.resource_class, own_workspace=node.own_workspace),
    }
    return {name: value for name, value in _claim_spec(claim).items() if value != defaults.get(name)}


def _ref_documents(refs: tuple[ArtifactRef, ...]) -> list[dict[str, Any]]:
    return [{"artifact": ref.artifact, "version": ref.version} for ref in refs]
