"""The rules that no schema can say: paths, claims, and what goes with which mode."""

from collections.abc import Iterable
from typing import Any, Final

from graphs.documents.linking import Shape, items_of, report_case_twins
from graphs.documents.model import ARTIFACT_PREFIX, Access, ResourceClass, WorkMode, WorkspaceMode, artifact_resource
from graphs.documents.report import ROOT, Path, Report, quoted
from graphs.states import ExecutionMode

_RESERVED_PREFIX: Final = "forge:"
_SEGMENT_BYTES: Final = 255  # what Linux file systems allow for one name


def check_rules(shape: Shape, report: Report, project: str | None) -> None:
    """Report every broken rule. ``project``: the one the document is offered to, None when nobody asks."""
    _check_project(shape, report, project)
    _check_requirements(shape, report)
    _check_env(shape.get("defaults", {}), (ROOT, "defaults"), report)
    _check_workspace_mode(shape, report)
    is_gated = _is_gated(shape) and not report.has_at((ROOT, "executionMode"))
    is_isolated = shape.get("workspaceMode") == WorkspaceMode.ISOLATED
    resources: dict[str, dict[str, tuple[str, Path]]] = {}
    for node, path in items_of(shape, "nodes", ROOT):
        _check_env(node, path, report)
        _check_paths(node, "ownedFiles", path, report)
        _check_paths(node, "reads", path, report)
        _check_claims(node, path, report, shape.get("project"))
        _check_primary_name(node, path, report)
        if is_read_only(node):
            _check_read_only(node, path, report)
        elif report.has_at((path, "workMode")):
            pass  # whether it writes is unknown, so nothing follows
        elif is_gated:
            _check_one_primary(node, path, report)
        elif is_isolated:
            _check_exact_files(node, path, report)
        _check_resource_names(node, path, report, resources)


def _check_project(shape: Shape, report: Report, project: str | None) -> None:
    meant = shape.get("project")
    if project is not None and meant is not None and meant != project:
        message = f"the document is meant for project {quoted(meant)}, not for {quoted(project)}"
        report.add("wrong_project", (ROOT, "project"), message)


def _check_requirements(shape: Shape, report: Report) -> None:
    seen: set[str] = set()
    folded: dict[str, tuple[str, Path]] = {}
    for item, path in items_of(shape, "requirements", ROOT):
        place: Path = (path, "id")
        if item["id"] in seen:
            report.add("duplicate_requirement", place, f"another requirement has the id {quoted(item['id'])}")
        seen.add(item["id"])
        report_case_twins(folded, item["id"], place, report, "the requirement")


def _check_env(holder: Shape, path: Path, report: Report) -> None:
    for name in holder.get("env", ()):
        if not name.upper().startswith("FORGE_"):
            continue
        place: Path = ((path, "env"), name)
        if "VERDICT" in name.upper():  # the format of verdicts belongs to the executor, by whatever door
            report.add("verdict_format_override", place, f"{name} would override how Forge reads verdicts")
        else:
            report.add("reserved_name", place, f"{name}: names that start with FORGE_ are set by Forge alone")


def _check_paths(node: Shape, name: str, path: Path, report: Report) -> None:
    seen: set[str] = set()
    for item, place in items_of(node, name, path):
        if reason := path_fault(item):
            code, message = reason
            report.add(code, place, f"{quoted(item)} {message}")
        elif item.rstrip("/") in seen:
            report.add("duplicate_path", place, f"{quoted(item)} is named twice")
        seen.add(item.rstrip("/"))


def path_fault(path: str) -> tuple[str, str] | None:
    """Why ``path`` names nothing inside a workspace, as (code, end of a sentence); None when it does.

    Nothing else has a meaning: `*.py`, `-x`, `:(top)a`, `a b`, `~` and backslashes are names like any other.
    """
    segments = path.removesuffix("/").split("/")
    if "\0" in path:
        return "path_nul", "contains NUL"
    if path.startswith("/"):
        return "path_absolute", "is absolute; paths are relative to the workspace"
    if ".." in segments:
        return "path_parent", "leads upwards with `..`"
    if "." in segments or "" in segments:
        return "path_not_normalised", "has an empty or `.` segment; write it without"
    if any(segment.casefold() == ".git" for segment in segments):  # some file systems fold case, and git refuses both
        return "path_git", "leads into a git directory, which belongs to Forge"
    if any(len(segment.encode()) > _SEGMENT_BYTES for segment in segments):
        return "path_too_long", f"has a segment of more than {_SEGMENT_BYTES} bytes"
    return None


def is_read_only(node: Shape) -> bool:
    return bool(node.get("workMode") == WorkMode.READ_ONLY)


def writes(claim: Shape) -> bool:
    return claim["access"] in (Access.WRITE, Access.EXCLUSIVE)


def _is_logical(claim: Shape) -> bool:
    return bool(claim["class"] == ResourceClass.LOGICAL)


def logical_writes(claims: Iterable[Any]) -> list[str]:
    """Resources of the written claims that could be a node's primary. Artifacts follow from `produces`, so never."""
    return sorted(
        {
            claim["resource"]
            for claim in claims
            if _is_logical(claim) and writes(claim) and not claim["resource"].startswith(ARTIFACT_PREFIX)
        }
    )


def _check_claims(node: Shape, path: Path, report: Report, project: str | None) -> None:
    seen: set[tuple[str, str, str, int | None]] = set()
    for claim, place in items_of(node, "claims", path):
        identity = (claim["class"], claim["resource"], claim["access"], claim.get("version"))
        if identity in seen:
            report.add("duplicate_claim", place, f"{quoted(claim['resource'])} is claimed twice in the same way")
        seen.add(identity)
        if claim["resource"].startswith(_RESERVED_PREFIX):
            report.add("reserved_name", (place, "resource"), "resources that start with `forge:` belong to Forge")
        if "units" in claim and claim["class"] != ResourceClass.PHYSICAL:
            report.add("units_not_physical", (place, "units"), f"a {claim['class']} resource has no capacity to take")
        if claim.get("mode") == WorkMode.READ_ONLY and writes(claim):
            report.add("claim_mode_conflict", (place, "mode"), f"`{claim['access']}` access in a read-only claim")
    if project is not None and "claims" in node:
        _check_artifact_claims(node, path, report, project)


def _check_artifact_claims(node: Shape, path: Path, report: Report, project: str) -> None:
    """A claim on an artifact says more about a dependency; it must be about a dependency the node has (GC-03)."""
    declared: dict[tuple[str, str], set[int]] = {}
    for field in ("consumes", "produces"):
        for ref, _ in items_of(node, field, path):
            declared.setdefault((field, artifact_resource(project, ref["artifact"])), set()).add(int(ref["version"]))
    for claim, place in items_of(node, "claims", path):
        if not _is_logical(claim) or not claim["resource"].startswith(ARTIFACT_PREFIX):
            continue
        field = "produces" if writes(claim) else "consumes"
        versions = declared.get((field, claim["resource"]))
        if versions is None:
            message = f"the node claims {quoted(claim['resource'])} without `{field}`"
            hint = f"declare it in `{field}`; the resource of an artifact is {artifact_resource(project, '<name>')}"
            report.add("artifact_claim_mismatch", (place, "resource"), message, hint)
        elif claim.get("version") not in versions:
            message = f"the node {field} version {', '.join(map(str, sorted(versions)))}, and the claim must say so"
            report.add("artifact_claim_mismatch", (place, "version"), message)


def _check_read_only(node: Shape, path: Path, report: Report) -> None:
    if "ownedFiles" in node:
        report.add("write_in_read_only", (path, "ownedFiles"), "a read-only node owns no files", "use `reads`")
    if node.get("primary") is not None:
        report.add("write_in_read_only", (path, "primary"), "a read-only node has no primary write")
    for claim, place in items_of(node, "claims", path):
        # to have a device for oneself is no write, so exclusive claims on physical resources stay possible
        if writes(claim) and not (claim["class"] == ResourceClass.PHYSICAL and claim["access"] == Access.EXCLUSIVE):
            report.add("write_in_read_only", (place, "access"), f"`{claim['access']}` access in a read-only node")
        elif claim.get("mode", WorkMode.READ_ONLY) != WorkMode.READ_ONLY:
            report.add("claim_mode_conflict", (place, "mode"), f"a {claim['mode']} claim in a read-only node")


def _check_workspace_mode(shape: Shape, report: Report) -> None:
    if "workspaceMode" in shape and _is_gated(shape) and not report.has_at((ROOT, "executionMode")):
        report.add(
            "workspace_mode_conflict",
            (ROOT, "workspaceMode"),
            "a gated graph has no workspace mode: each of its writers gets a checkout",
            "say `executionMode: program`, or remove the field",
        )


def _is_gated(shape: Shape) -> bool:
    return bool(shape.get("executionMode", ExecutionMode.GATED) == ExecutionMode.GATED)


def _check_one_primary(node: Shape, path: Path, report: Report) -> None:
    """GC-05. Without a word about it, the primary is the one logical write claim, or else ``default_primary``."""
    written = logical_writes(claim for claim, _ in items_of(node, "claims", path))
    if "primary" in node and node["primary"] is None:
        message = "a gated writer has exactly one primary logical write, this one says it has none"
        report.add("primary_missing", (path, "primary"), message, "name a resource, or remove the field")
    elif "primary" not in node and len(written) > 1:
        message = f"{len(written)} logical writes ({', '.join(written[:5])}), of which one must be the primary"
        report.add("primary_ambiguous", (path, "claims"), message, "name it in `primary`")


def _check_primary_name(node: Shape, path: Path, report: Report) -> None:
    primary = node.get("primary")
    if primary is None:
        return
    if primary.startswith((_RESERVED_PREFIX, ARTIFACT_PREFIX)):
        message = f"{quoted(primary)} cannot be a primary: the name is reserved"
        report.add("reserved_name", (path, "primary"), message)
    for claim, place in items_of(node, "claims", path):
        if claim["resource"] == primary and _is_logical(claim) and not writes(claim):
            message = f"{quoted(primary)} is the primary, which is written, and here only read"
            report.add("primary_conflict", (place, "access"), message)


def _check_exact_files(node: Shape, path: Path, report: Report) -> None:
    """PX-37: what an isolated writer may bring back must be known before anything starts."""
    place: Path = (path, "ownedFiles")
    if not node.get("ownedFiles") and not report.has_at(place):
        report.add("isolated_without_files", place, "an isolated writer names the exact files it writes")
    for item, item_place in items_of(node, "ownedFiles", path):
        if item.endswith("/"):
            message = f"{quoted(item)} is a directory; an isolated writer names exact files"
            report.add("isolated_directory", item_place, message)


def _check_resource_names(
    node: Shape, path: Path, report: Report, known: dict[str, dict[str, tuple[str, Path]]]
) -> None:
    """Resources that differ only in case would silently not conflict. ``known``: by class, then case folded."""
    names = [
        (claim["class"], claim["resource"], (place, "resource")) for claim, place in items_of(node, "claims", path)
    ]
    if node.get("primary") is not None:
        names.append((ResourceClass.LOGICAL, node["primary"], (path, "primary")))
    for resource_class, name, place in names:
        report_case_twins(known.setdefault(resource_class, {}), name, place, report, "the resource")
