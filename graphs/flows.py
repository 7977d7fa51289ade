"""Submitting a document: read it, look at the world it is meant for, then admit it. Nothing is written before all of it holds."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from django.conf import settings

from core.errors import InvalidInput
from core.models import Project
from core.selectors import project_named
from graphs import documents
from graphs.errors import DocumentInvalid, Problem
from graphs.models import Graph
from graphs.services import admit_graph
from workspaces import git
from workspaces.errors import BranchUnknown, CheckoutDirty
from workspaces.flows import repository_of


class RepositoryNeeded(InvalidInput):
    """A gated or isolated graph needs a project with a git repository. Register one, or run it as a shared program."""

    code = "repository_needed"


class FoundationUnknown(InvalidInput):
    """The document was planned on a commit that is not part of the target branch."""

    code = "foundation_unknown"


def read_document(path: Path) -> documents.GraphDocument:
    """Parse a file. Raises: InvalidInput (no such file), DocumentInvalid with every problem found."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    return documents.parse(documents.load(raw))


def submit(document: documents.GraphDocument, *, principal: str, request_id: str) -> Graph:
    """Check a document against its project and this host, then admit it.

    Raises: ProjectNotFound, RepositoryNeeded, DocumentInvalid (executable_missing), CheckoutDirty, FoundationUnknown, errors of
            the repository, RequestIdReused
    """
    project = project_named(document.project)
    _require_executables(document)
    if any(node.own_workspace for node in document.nodes):
        _require_repository(document, project)
    return admit_graph(project_id=project.pk, document=document, principal=principal, request_id=request_id)


def _require_executables(document: documents.GraphDocument) -> None:
    """Commands named without a slash, or by an absolute path, must exist now; a relative one may come with the repository."""
    inherited = os.environ.get("PATH", os.defpath) if "PATH" in settings.FORGE_PASS_ENV else os.defpath
    missing = []
    for node in document.nodes:
        program = node.command[0]
        if "/" in program and not program.startswith("/"):
            continue
        if shutil.which(program, path=dict(node.env).get("PATH", inherited)) is None:
            missing.append(
                Problem(
                    "executable_missing",
                    f"nodes[{node.key}].command[0]",
                    f"node {node.key!r}: {program!r} is not an executable on this host",
                    "install it, or name it by its full path",
                )
            )
    if missing:
        raise DocumentInvalid(missing)


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
        changed = [path.path for path in git.dirty_paths(repository, worktree) if path.kind != "untracked"]
        if paths := _in_the_way(changed, scopes):
            raise CheckoutDirty(
                f"{worktree.path} has uncommitted changes where this graph will land",
                worktree=str(worktree.path),
                paths=[git.shown(path) for path in paths],
            )


def _in_the_way(changed: list[str], scopes: list[tuple[str, ...] | None]) -> list[str]:
    """Changed paths that some writer may write; an unknown or unrestricted scope is everything."""
    if any(not scope for scope in scopes):
        return changed
    outside = set(git.outside_scope(changed, [path for scope in scopes for path in scope or ()]))
    return [path for path in changed if path not in outside]


def _contains(repository: git.Repository, tip: str, commit: str) -> bool:
    try:
        return repository.is_ancestor(commit, tip)
    except (BranchUnknown, ValueError):
        return False
