"""Intent, effect, receipt for checkouts. Runs under the repository's lock, in a worker of its own."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings

from core.errors import ForgeError
from core.models import Project
from workspaces import git, services
from workspaces.errors import BranchUnknown, GitError, PathMissing, RemoteUnknown
from workspaces.models import Checkout
from workspaces.planning import candidate_ref
from workspaces.states import CheckoutState


def repository_of(project: Project, *, lock_fd: int | None = None) -> git.Repository:
    """The project's repository; with ``lock_fd`` every git child inherits the repository's lock."""
    where = project.git_dir if Path(project.git_dir).is_dir() else project.workspace
    return git.Repository.open(
        Path(project.workspace or where), git.Git(lock_fd=lock_fd, timeout_s=settings.FORGE_GIT_TIMEOUT_S)
    )


def find_place(path: Path, *, target: str, plain: bool) -> services.Place:
    """Look at a directory that is to become a project's place of work; nothing is written.

    target: short or full name of the branch work lands on; empty: the one that is checked out
    plain:  a directory without git, for programs in a shared workspace
    Raises: PathMissing, NotARepository, RepositoryEmpty, BranchUnknown, BranchNameInvalid
    """
    workspace = _directory(path)
    if plain:
        return services.Place(workspace=str(workspace))
    repository = git.Repository.open(workspace, git.Git(timeout_s=settings.FORGE_GIT_TIMEOUT_S))
    branch = repository.resolve_branch(target or _checked_out_branch(repository))
    return services.Place(
        workspace=str(repository.root or repository.common_dir),
        git_dir=str(repository.common_dir),
        target_ref=branch.ref,
    )


def require_remote(path: Path, remote: str) -> None:
    """Raises: RemoteUnknown when ``remote`` is neither configured in the repository at ``path`` nor a URL."""
    repository = git.Repository.open(_directory(path), git.Git(timeout_s=settings.FORGE_GIT_TIMEOUT_S))
    if not git.knows_remote(repository, remote):
        raise RemoteUnknown(f"{repository.common_dir} has no remote {remote!r}", remote=remote)


def _directory(path: Path) -> Path:
    """Raises: PathMissing."""
    try:
        found = path.expanduser().resolve()
        if found.is_dir():
            return found
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, no such user, no right to look
        raise PathMissing(f"{path} is no directory on this host: {error}", path=str(path)) from error
    raise PathMissing(f"{found} is no directory on this host", path=str(found))


def _checked_out_branch(repository: git.Repository) -> str:
    for worktree in repository.worktrees():
        if worktree.branch and (repository.root is None or worktree.path == repository.root):
            return worktree.branch
    raise BranchUnknown("no branch is checked out there; name the target branch", path=str(repository.root))


def add(checkout: Checkout, project: Project, repository: git.Repository) -> None:
    """Make the directory, at the recorded commit or at the target's tip, which is recorded first."""
    try:
        base = checkout.base or target_tip(project, repository)
        if not checkout.base:
            services.record_base(project_id=project.pk, checkout_id=checkout.pk, base=base)
        Path(checkout.path).parent.mkdir(parents=True, exist_ok=True)
        git.add_checkout(repository, Path(checkout.path), branch=checkout.branch_ref or None, base=base)
    except GitError as error:
        services.record_checkout(
            project_id=project.pk, checkout_id=checkout.pk, to=CheckoutState.FAILED, error=described(error)
        )
    else:
        services.record_checkout(project_id=project.pk, checkout_id=checkout.pk, to=CheckoutState.READY)


def remove(checkout: Checkout, project: Project, repository: git.Repository) -> None:
    """Remove the directory if nothing in it could be lost, else keep it and say why."""
    try:
        removal = git.remove_checkout(
            repository,
            Path(checkout.path),
            branch=checkout.branch_ref or None,
            discard_untracked=not checkout.branch_ref,  # nothing is taken from a detached one: by-products of a check or review
        )
    except GitError as error:
        removal = git.Removal(False, str(error))
    if removal.removed:
        _drop_branch(checkout, repository)
        services.record_checkout(project_id=project.pk, checkout_id=checkout.pk, to=CheckoutState.REMOVED)
    else:
        kept = {
            "code": "checkout_kept",
            "message": removal.kept_because,
            "paths": [git.shown(path) for path in removal.paths],
        }
        services.record_checkout(project_id=project.pk, checkout_id=checkout.pk, to=CheckoutState.KEPT, error=kept)


def _drop_branch(checkout: Checkout, repository: git.Repository) -> None:
    """The work is pinned as a candidate; its branch would only crowd the person's list. Any other branch stays."""
    if not checkout.branch_ref:
        return
    tip = repository.ref_tip(checkout.branch_ref)
    if tip and tip == repository.ref_tip(candidate_ref(int(checkout.owner.removeprefix("attempt:")))):
        repository.move_ref(checkout.branch_ref, None, tip, "pinned as candidate")


def target_tip(project: Project, repository: git.Repository) -> str:
    return repository.resolve_branch(project.target_ref).tip


def described(error: ForgeError) -> dict[str, object]:
    """An error as data for a row."""
    return {"code": error.code, "message": str(error), **error.data}
