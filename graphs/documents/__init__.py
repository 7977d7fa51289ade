"""Graph documents: text -> value -> checked document -> canonical JSON. Pure: no Django, database, clock or file
except the published schema, which is a resource of this package.

    document = parse(load(text), project="calc")
    canonical(document), digest(document)

The rooms, each leaning only on those before it: `report` (problems with paths), `model` (what a document says),
`loading` (YAML and JSON), `structure` (the published schema), `linking` (identities, edges, artifacts), `rules`
(paths, claims, modes), `folding` (into the model and back).
"""

from typing import Any

from core.canonical import canonical_bytes, digest_of
from graphs.documents.folding import fold, node_from_spec, node_spec, to_document
from graphs.documents.linking import link
from graphs.documents.loading import load
from graphs.documents.model import (
    CONTRACT,
    DEFAULT_LIMITS,
    Access,
    Artifact,
    ArtifactRef,
    Claim,
    GraphDocument,
    Limits,
    Node,
    Requirement,
    ResourceClass,
    Retry,
    RetryClass,
    WorkMode,
    WorkspaceMode,
)
from graphs.documents.report import Report
from graphs.documents.rules import check_rules
from graphs.documents.structure import check_structure, plan_contract, plan_contract_text

__all__ = [
    "CONTRACT",
    "DEFAULT_LIMITS",
    "Access",
    "Artifact",
    "ArtifactRef",
    "Claim",
    "GraphDocument",
    "Limits",
    "Node",
    "Requirement",
    "ResourceClass",
    "Retry",
    "RetryClass",
    "WorkMode",
    "WorkspaceMode",
    "canonical",
    "digest",
    "load",
    "node_from_spec",
    "node_spec",
    "parse",
    "plan_contract",
    "plan_contract_text",
    "to_document",
]


def parse(raw: Any, *, project: str | None = None, limits: Limits = DEFAULT_LIMITS) -> GraphDocument:
    """Check a loaded value and give it its meaning: defaults folded in, `needs` and `consumes` turned into edges.

    raw:     what ``load`` returned, or the body of a request; it is not changed
    project: when given, the project the document must be meant for
    Raises:  DocumentInvalid with every problem found. A part that is malformed is left out of the later checks, and
             the rest is still checked, so that a cycle is found beside a misspelt field
    """
    report = Report()
    shape = check_structure(raw, report)
    links = link(shape, report, limits)
    check_rules(shape, report, project)
    report.raise_if_any()
    return fold(shape, links)


def canonical(document: GraphDocument) -> bytes:
    """The canonical JSON of a document: equal for every spelling of the same graph."""
    return canonical_bytes(to_document(document))


def digest(document: GraphDocument) -> str:
    """``sha256:<hex>`` of the canonical JSON."""
    return digest_of(canonical(document))
