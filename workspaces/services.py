"""Verbs that store what became of a checkout: the receipt half of intent, effect, receipt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from core import journal
from core.errors import Conflict
from core.models import Project
from core.steps import lock_project
from core.transitions import move
from core.uow import FROM_CLOCK, unit_of_work, wake_scheduler
from leases import keys
from leases import steps as lease_steps
from leases.states import ResourceClass
from workspaces.models import Checkout
from workspaces.states import CHECKOUT_MOVES, CheckoutState


class ProjectExists(Conflict):
    """The name is taken by a project with other settings. Choose another name, or change that project."""

    code = "project_exists"


class TargetTaken(Conflict):
    """Another project lands on this branch, with checks of its own. One branch has one queue and one set of checks."""

    code = "target_taken"


@dataclass(frozen=True)
class Place:
    """Where a project works. git_dir and target_ref are empty for a plain directory."""

    workspace: str
    git_dir: str = ""
    target_ref: str = ""


@unit_of_work
def add_project(
    *,
    name: str,
    place: Place,
    checks: Sequence[dict[str, Any]],
    host_id: int,
    parallelism: int,
    push_remote: str = "",
    now: datetime = FROM_CLOCK,
) -> Project:
    """Register a place of work. The same registration again returns the project; another under its name is a conflict.

    Writes: the project and its limit
    Raises: ProjectExists, TargetTaken
    """
    wanted: dict[str, Any] = {
        "workspace": place.workspace,
        "git_dir": place.git_dir,
        "target_ref": place.target_ref,
        "checks": list(checks),
        "push_remote": push_remote,
        "parallelism": parallelism,
        "home_host_id": host_id,
    }
    if known := Project.objects.filter(name=name).first():
        if other := [field for field, value in wanted.items() if getattr(known, field) != value]:
            settings = ", ".join(f"{field} {getattr(known, field)!r}" for field in other)
            raise ProjectExists(f"A project named {name!r} is registered with other settings: {settings}.", name=name)
        return known
    if place.git_dir:
        twins = Project.objects.filter(git_dir=place.git_dir, target_ref=place.target_ref)
        if twin := twins.values_list("name", flat=True).first():
            raise TargetTaken(
                f"Project {twin!r} lands on {place.target_ref} of this repository already; use it, or another branch.",
                project=twin,
            )
    project = Project.objects.create(name=name, created_at=now, **wanted)
    lease_steps.lock_broker()
    lease_steps.set_capacity(ResourceClass.PHYSICAL, keys.limit_of_project(name), parallelism)
    journal.record(
        "project.added", subject=project.subject, project_id=project.pk, name=name, workspace=place.workspace
    )
    return project


@unit_of_work(scope=lock_project)
def record_base(*, project_id: int, checkout_id: int, base: str) -> None:
    """Fix the commit before the directory is made, so that a second try makes the same."""
    checkout = Checkout.objects.get(pk=checkout_id)
    checkout.base = base
    checkout.save(update_fields=["base"])
    journal.record("checkout.based", subject=checkout.subject, project_id=project_id, owner=checkout.owner, base=base)


@unit_of_work(scope=lock_project)
def record_checkout(
    *, project_id: int, checkout_id: int, to: CheckoutState, error: dict[str, Any] | None = None
) -> None:
    """What the effect found: ready, failed, removed, or kept and why."""
    checkout = Checkout.objects.get(pk=checkout_id)
    if to in CHECKOUT_MOVES[checkout.state]:
        move(checkout, to, moves=CHECKOUT_MOVES, data={"owner": checkout.owner, **(error or {})}, error=error or {})
        wake_scheduler()
