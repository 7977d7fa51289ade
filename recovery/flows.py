"""Effects: git work that intent rows ask for, one at a time per repository, in workers of their own.

A slot is kept free for the tick: at most (workers - 1) repositories are worked on at once.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from django.conf import settings

from core import wake
from core.errors import ForgeError
from core.home import home
from core.models import Project, Stateful
from integration import flows as integration_flows
from integration.models import Candidate, Entry
from integration.states import CandidateState, EntryState
from recovery import selectors, services
from recovery.hosts import this_host
from workspaces import flows as workspace_flows
from workspaces import git
from workspaces.models import Checkout
from workspaces.states import CheckoutState

log = logging.getLogger("forge.effects")

Effect = Callable[[Project, git.Repository], None]


def run_effects(repository: str) -> None:
    """Do all that is due in a repository; return at once when somebody else is at it or no slot is free."""
    with _try_slot() as slot:
        if not slot:
            return
        with _try_lock(repository) as lock_fd:
            if lock_fd is None:
                return
            all_went_well = _run_all(repository, lock_fd)
    if all_went_well:  # else the safety tick is soon enough: a wake-up now would spin on what cannot be done
        wake.send(wake.TICK)  # what came up meanwhile, here or in a repository that found no slot


def _run_all(repository: str, lock_fd: int) -> bool:
    """Whether nothing failed. What fails is passed over in this run, so that it does not keep all the rest waiting."""
    all_went_well = True
    host = this_host()
    projects = [
        project
        for project in Project.objects.filter(home_host=host).exclude(git_dir="").order_by("pk")
        if selectors.repository_name(project.git_dir) == repository
    ]
    for project in projects:
        passed_over: list[str] = []
        stuck = selectors.stuck_subjects(project.pk)
        try:
            repo = workspace_flows.repository_of(project, lock_fd=lock_fd)
        except ForgeError as error:
            _note_stuck(project, project.subject, error)
            all_went_well = False
            continue
        if project.subject in stuck:
            services.record_unstuck(project_id=project.pk, subject=project.subject)
        while due := next_due(project, passed_over):
            intent, effect = due
            try:
                effect(project, repo)
            except ForgeError as error:  # says nothing about the work: the intent stays and the next tick calls again
                _note_stuck(project, intent, error)
                passed_over.append(intent)
                all_went_well = False
            else:
                if intent in stuck:
                    services.record_unstuck(project_id=project.pk, subject=intent)
    return all_went_well


def _note_stuck(project: Project, subject: str, error: ForgeError) -> None:
    log.warning("%s, %s: %s", project, subject, error)
    services.record_stuck(project_id=project.pk, subject=subject, error=workspace_flows.described(error))


def next_due(project: Project, passed_over: Collection[str] = ()) -> tuple[str, Effect] | None:
    """The first intent of a project that waits for git, with its subject: what starts or frees others goes first."""
    for row, effect in _all_due(project):
        if row.subject not in passed_over:
            return row.subject, effect
    return None


def _all_due(project: Project) -> Iterator[tuple[Stateful, Effect]]:
    for checkout in Checkout.objects.filter(project=project, state=CheckoutState.ADDING).order_by("pk"):
        yield checkout, partial(workspace_flows.add, checkout)
    for candidate in (
        Candidate.objects.select_related("attempt").filter(project=project, state=CandidateState.SEALING).order_by("pk")
    ):
        yield candidate, partial(integration_flows.seal, candidate)
    for entry in Entry.objects.select_related("candidate").filter(
        project=project, state__in=[EntryState.REFRESHING, EntryState.LANDING]
    ):
        is_refresh = entry.state == EntryState.REFRESHING
        yield entry, partial(integration_flows.refresh if is_refresh else integration_flows.land, entry)
    for entry in selectors.pushes_due().select_related("candidate").filter(project=project).order_by("pk"):
        yield entry, partial(integration_flows.push, entry)
    for checkout in Checkout.objects.filter(project=project, state=CheckoutState.REMOVING).order_by("pk"):
        yield checkout, partial(workspace_flows.remove, checkout)


@contextmanager
def _try_slot() -> Iterator[bool]:
    for number in range(max(1, settings.FORGE_WORKERS - 1)):
        with _try_lock(f"slot-{number}") as fd:
            if fd is not None:
                yield True
                return
    yield False


@contextmanager
def _try_lock(name: str) -> Iterator[int | None]:
    directory = home().repository_locks
    directory.mkdir(parents=True, exist_ok=True)
    fd = os.open(directory / name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield fd
    finally:
        os.close(fd)


def is_running(repository: str) -> bool:
    """Whether somebody is at a repository; what is due there is then found by him."""
    with suppress(FileNotFoundError):
        fd = os.open(home().repository_locks / repository, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
    return False
