"""Submitting a document: read it, look at the world it is meant for, then admit it. Nothing is written before all of it holds."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from django.conf import settings

from core.errors import InvalidInput
from core.models import Project
from core.selectors import project_named
from graphs import documents, planning
from graphs.errors import PROBLEM_LIMIT, DocumentInvalid, Problem
from graphs.models import Graph
from graphs.selectors import graph_of_request
from graphs.services import admit_graph
from graphs.states import ExecutionMode
from workspaces import git
from workspaces.errors import BranchUnknown, CheckoutDirty, GitFailed
from workspaces.flows import repository_of

STDIN = Path("-")
LONGEST_RUN = 10**9


class DocumentUnreadable(InvalidInput):
    """The file with the graph document cannot be read. Correct its name or its rights."""

    code = "document_unreadable"


class RepositoryNeeded(InvalidInput):
    """A gated or isolated graph needs a project with a git repository. Register one, or run it as a shared program."""

    code = "repository_needed"


class FoundationUnknown(InvalidInput):
    """The document was planned on a commit that is not part of the target branch."""

    code = "foundation_unknown"


def read_document(path: Path) -> documents.GraphDocument:
    """Parse a file, or the standard input for `-`; no more of it is read than a document may have.

    Raises: DocumentUnreadable, DocumentInvalid with every problem found
    """
    limit = documents.DEFAULT_LIMITS.max_bytes
    try:
        if path == STDIN:
            raw = sys.stdin.buffer.read(limit + 1)
        else:
            with path.open("rb") as file:
                raw = file.read(limit + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DocumentUnreadable(f"{path} cannot be read: {reason}", path=git.shown(str(path))) from error
    if len(raw) > limit:
        raise DocumentInvalid([Problem("too_large", "", f"it has more than the {limit} bytes a document may have")])
    return documents.parse(documents.load(raw))


def submit(document: documents.GraphDocument, *, principal: str, request_id: str) -> Graph:
    """Check a document against its project and this host, then admit it.

    A request that was accepted before is answered from its record, whatever the world looks like by now.

    Raises: ProjectNotFound, RepositoryNeeded, DocumentInvalid (executable_missing), CheckoutDirty, FoundationUnknown, errors of
            the repository, RequestIdReused
    """
    project = project_named(document.project)
    if graph_of_request(principal, request_id) is None:
        _require_executables(document)
        _require_claims(document, project)
        if any(node.own_workspace for node in document.nodes):
            _require_repository(document, project)
    return admit_graph(project_id=project.pk, document=document, principal=principal, request_id=request_id)


def is_executable(program: str, *, path: str | None = None) -> bool:
    """Whether a job could start ``program``. One named by a relative path may come with the repository.

    path: of the job, where it has one of its own
    """
    if "/" in program and not program.startswith("/"):
        return True
    inherited = os.environ.get("PATH", os.defpath) if "PATH" in settings.FORGE_PASS_ENV else os.defpath
    return shutil.which(program, path=inherited if path is None else path) is not None


def _require_executables(document: documents.GraphDocument) -> None:
    """Commands named without a slash, or by an absolute path, must exist now."""
    missing = [
        Problem(
            "executable_missing",
            f"nodes[{node.key}].command[0]",
            f"node {node.key!r}: {node.command[0]!r} is not an executable on this host",
            "install it, or name it by its full path",
        )
        for node in document.nodes
        if not is_executable(node.command[0], path=dict(node.env).get("PATH"))
    ]
    if missing:
        raise DocumentInvalid(missing[:PROBLEM_LIMIT], omitted=max(0, len(missing) - PROBLEM_LIMIT))


def _require_claims(document: documents.GraphDocument, project: Project) -> None:
    """Every claim must be one a resource can have: found later, it would stop the project's coordinator.

    Raises: InvalidInput
    """
    place = planning.Place(
        host=project.home_host.name,
        project=project.name,
        workspace=project.workspace,
        graph=f"{document.name}#{LONGEST_RUN}",
        gated=document.mode == ExecutionMode.GATED,
        has_graph_limit=document.parallelism is not None,
    )
    for node in document.nodes:
        planning.claims_of_node(node, place)


def _require_repository(document: documents.GraphDocument, project: Project) -> None:
    if not project.git_dir:
        raise RepositoryNeeded(
            f"Project {project.name!r} is a plain directory; this graph needs a git repository.", project=project.name
        )
    repository = repository_of(project)
    branch = repository.resolve_branch(project.target_ref)
    if document.foundation and not _contains(repository, branch.tip, document.foundation):
        raise FoundationUnknown(
            f"{document.foundation} is not part of {project.target_ref}",
            foundation=document.foundation,
            target=project.target_ref,
        )
    scopes = [node.owned_files for node in document.nodes if node.is_writer and node.own_workspace]
    for worktree in repository.checked_out_at(branch.ref):
        if paths := _in_the_way(git.dirty_paths(repository, worktree), scopes):
            raise CheckoutDirty(
                f"{worktree.path} has uncommitted changes where this graph will land; commit, stash or revert them",
                worktree=str(worktree.path),
                paths=[git.shown(path) for path in paths],
            )


def _in_the_way(dirty: tuple[git.ChangedPath, ...], scopes: list[tuple[str, ...] | None]) -> list[str]:
    """Changed paths that some writer may write; an unknown or unrestricted scope is everything.

    An untracked file stops a landing only where a file is landed on it, so it counts when a scope names exactly it.
    """
    owned = {path for scope in scopes for path in scope or ()}
    new = [path.path for path in dirty if path.kind == "untracked" and path.path in owned]
    changed = [path.path for path in dirty if path.kind != "untracked"]
    if any(not scope for scope in scopes):
        return sorted([*changed, *new])
    outside = set(git.outside_scope(changed, sorted(owned)))
    return sorted([*(path for path in changed if path not in outside), *new])


def _contains(repository: git.Repository, tip: str, commit: str) -> bool:
    try:
        return repository.is_ancestor(commit, tip)
    except (BranchUnknown, GitFailed, ValueError):  # git fails on an id it does not know
        return False
