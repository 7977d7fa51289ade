"""Intent, effect, receipt for candidates and the queue. Each may be run again after a crash at any point.

A crash is a prefix of the steps: the row still shows the intent, the effect asks the world what is true and goes on.
"""

from __future__ import annotations

from pathlib import Path

from django.conf import settings

from core.models import Project
from integration import services
from integration.models import Candidate, Entry
from integration.states import EntryState
from workspaces import git
from workspaces.errors import (
    BranchUnknown,
    CandidateEmpty,
    CheckoutDirty,
    CheckoutLocked,
    CheckoutUnmerged,
    GitError,
    GitFailed,
    GitMissing,
    GitTimeout,
    LandingProofFailed,
    RefLocked,
    RefMoved,
)
from workspaces.flows import described
from workspaces.models import Checkout
from workspaces.planning import offered_ref

_PASSING = (GitTimeout, GitMissing, RefLocked)  # says nothing about the work: the intent stays, and is tried again
_HELD = (CheckoutDirty, CheckoutLocked, CheckoutUnmerged)  # a person's files are in the way


def commit_identity() -> git.Identity:
    return git.Identity(settings.FORGE_COMMIT_NAME, settings.FORGE_COMMIT_EMAIL)


def seal(candidate: Candidate, project: Project, repository: git.Repository) -> None:
    """Commit what is left, hold it against the declared scope, pin it, record it; or record why it is refused."""
    try:
        sealed = _sealed(candidate, repository)
        repository.pin(candidate.pin_ref, sealed.commit)
    except _PASSING:
        raise
    except GitError as error:
        services.record_refused(project_id=project.pk, candidate_id=candidate.pk, refusal=described(error))
    else:
        services.record_sealed(
            project_id=project.pk,
            candidate_id=candidate.pk,
            commit=sealed.commit,
            tree=sealed.tree,
            changes=[
                [
                    git.shown(c.path),
                    *([c.old.mode, c.old.id] if c.old else ["", ""]),
                    *([c.new.mode, c.new.id] if c.new else ["", ""]),
                ]
                for c in sealed.changes
            ],
        )


def _sealed(candidate: Candidate, repository: git.Repository) -> git.SealedCandidate:
    row = Checkout.objects.get(owner=candidate.attempt.subject)
    checkout = git.find_checkout(repository, Path(row.path))
    if candidate.read_only:
        changed = [path.path for path in git.dirty_paths(repository, checkout.worktree) if path.kind != "untracked"]
        if changed:
            raise CheckoutDirty("a read-only node changed tracked files", paths=[git.shown(path) for path in changed])
        return _unchanged(candidate, repository)
    try:
        return git.seal(
            repository,
            checkout,
            scope=candidate.scope,
            unrestricted=not candidate.scope,
            identity=commit_identity(),
            when=git.Moment.at(candidate.created_at),
            message=candidate.title,
            trailers=[("Forge-Attempt", str(candidate.attempt_id))],
        )
    except CandidateEmpty:
        if candidate.allow_empty:
            return _unchanged(candidate, repository)
        raise


def _unchanged(candidate: Candidate, repository: git.Repository) -> git.SealedCandidate:
    return git.SealedCandidate(candidate.base, repository.tree_of(candidate.base), candidate.base, (), ())


def refresh(entry: Entry, project: Project, repository: git.Repository) -> None:
    """Put the claimed candidate on the tip of the target, or say why that cannot be."""
    candidate = entry.candidate
    try:
        tip = repository.resolve_branch(entry.target_ref).tip
        if tip != candidate.base and not project.refresh:
            raise RefMoved(f"the target moved from {candidate.base} to {tip}", expected=candidate.base, actual=tip)
        replayed = git.replay(
            repository, base=candidate.base, candidate=candidate.commit, onto=tip, identity=commit_identity()
        )
        repository.pin(offered_ref(entry.pk, replayed.commit), replayed.commit)
        _require_free(entry, repository, base=tip, offered=replayed.commit)
    except _PASSING:
        raise
    except (*_HELD, BranchUnknown, GitFailed) as error:
        services.record_held(project_id=project.pk, entry_id=entry.pk, hold=described(error))
    except RefMoved as error:
        services.record_ended(project_id=project.pk, entry_id=entry.pk, to=EntryState.STALE, receipt=described(error))
    except GitError as error:
        services.record_ended(
            project_id=project.pk, entry_id=entry.pk, to=EntryState.REJECTED, receipt=described(error)
        )
    else:
        services.record_refreshed(
            project_id=project.pk,
            entry_id=entry.pk,
            refreshed=services.Refreshed(tip, replayed.commit, replayed.tree, replayed=tip != candidate.base),
        )


def _require_free(entry: Entry, repository: git.Repository, *, base: str, offered: str) -> None:
    """Before checks are spent on it: would the landing overwrite somebody's uncommitted work?"""
    for worktree in repository.checked_out_at(entry.target_ref):
        if paths := git.blocked_paths(repository, worktree, base, offered):
            raise CheckoutDirty(
                f"uncommitted changes in {worktree.path} are in the way of landing",
                worktree=str(worktree.path),
                paths=[git.shown(path) for path in paths],
            )


def land(entry: Entry, project: Project, repository: git.Repository) -> None:
    """Proof, ref, receipt. Any miss of the proof freezes the project."""
    try:
        if entry.offered != entry.base:
            proof = git.landing_proof(
                repository,
                base=entry.base,
                candidate=entry.offered,
                checked_tree=entry.offered_tree,
                allowed_paths=[
                    change.path for change in repository.changes(entry.candidate.base, entry.candidate.commit)
                ],
            )
            facts = {"base": proof.base, "commit": proof.candidate, "tree": proof.tree, "commits": list(proof.commits)}
        else:
            facts = {"base": entry.base, "commit": entry.offered, "tree": entry.offered_tree, "commits": []}
        if not services.record_proof(project_id=project.pk, entry_id=entry.pk, proof=facts):
            return
        tip = _moved(entry, repository)
    except (*_PASSING, GitFailed):  # it may be half done: only a redo of the very same landing cleans up
        raise
    except _HELD as error:
        services.record_held(project_id=project.pk, entry_id=entry.pk, hold=described(error))
    except RefMoved as error:
        services.record_target_moved(project_id=project.pk, entry_id=entry.pk, tip=str(error.data.get("actual")))
    except LandingProofFailed as error:
        services.freeze_for(project_id=project.pk, entry_id=entry.pk, finding=described(error))
    except GitError as error:
        services.record_ended(
            project_id=project.pk, entry_id=entry.pk, to=EntryState.REJECTED, receipt=described(error)
        )
    else:
        services.record_landed(
            project_id=project.pk, entry_id=entry.pk, receipt={**facts, "ref": entry.target_ref, "tip": tip}
        )


def _moved(entry: Entry, repository: git.Repository) -> str:
    """Move the branch, and read it back. A candidate that changes nothing has landed when the tip is still what was checked."""
    if entry.offered == entry.base:
        tip = repository.ref_tip(entry.target_ref)
        if tip != entry.base:
            raise RefMoved(f"{entry.target_ref} is at {tip}, not at {entry.base}", expected=entry.base, actual=tip)
        return entry.base
    holders = repository.checked_out_at(entry.target_ref)
    return git.land(
        repository,
        ref=entry.target_ref,
        base=entry.base,
        candidate=entry.offered,
        worktree=holders[0].path if holders else None,
    )


def push(entry: Entry, project: Project, repository: git.Repository) -> None:
    """Put the landed branch on the project's remote, from wherever it is on our line."""

    def attempt(expected: str) -> git.PushResult:
        return git.push(
            repository, remote=project.push_remote, ref=entry.target_ref, commit=entry.offered, expected=expected
        )

    try:
        result = attempt(entry.base)
        behind = result.outcome is git.PushOutcome.REJECTED and result.remote_tip
        if (
            behind and behind != entry.base and repository.is_ancestor(behind, entry.base)
        ):  # an earlier push did not arrive
            result = attempt(behind)
    except GitError as error:
        result = git.PushResult(git.PushOutcome.UNREACHABLE, None, str(error))
    services.record_pushed(
        project_id=project.pk,
        entry_id=entry.pk,
        result={"outcome": result.outcome.value, "remote_tip": result.remote_tip, "detail": result.detail},
        again=result.outcome is git.PushOutcome.UNREACHABLE,
    )
