"""forge project"""

from __future__ import annotations

import shlex
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from rich.table import Table

from core.errors import InvalidInput
from core.models import Project
from core.selectors import project_named
from forge_site.management.base import ForgeCommand, console, principal
from integration.services import unfreeze
from recovery.hosts import this_host
from workspaces.flows import find_place
from workspaces.services import add_project


class CheckInvalid(InvalidInput):
    """A check is written 'name=command with arguments'."""

    code = "check_invalid"


class Command(ForgeCommand):
    help = "Register and list the places where graphs work."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="add|list|unfreeze")
        add = actions.add_parser("add", help="register a git repository, or with --plain a directory")
        add.add_argument("name", help="how graph documents call it: letters, digits, dashes")
        add.add_argument("path", type=Path, help="the working tree")
        add.add_argument(
            "--target", default="", metavar="BRANCH", help="branch that work lands on (default: the one checked out)"
        )
        add.add_argument(
            "--check",
            action="append",
            default=[],
            metavar="'NAME=COMMAND'",
            help="a required check, run on the exact tree that will land; may be repeated",
        )
        add.add_argument(
            "--parallelism", type=int, default=8, help="how many attempts of this project run at once (default 8)"
        )
        add.add_argument(
            "--push", default="", metavar="REMOTE", help="push the branch to this remote after each landing"
        )
        add.add_argument(
            "--plain", action="store_true", help="a directory without git, for programs in a shared workspace"
        )
        actions.add_parser("list", help="what is registered")
        thaw = actions.add_parser(
            "unfreeze", help="let a frozen project land again, after you have looked at why it froze"
        )
        thaw.add_argument("name")
        thaw.add_argument("--reason", required=True, help="what you found; it is recorded")

    def handle(self, *args: Any, **options: Any) -> None:
        {"add": self._add, "list": self._list, "unfreeze": self._unfreeze}[options["action"]](options)

    def _add(self, options: dict[str, Any]) -> None:
        name = options["name"]
        if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii() or len(name) > 63:
            raise InvalidInput(f"{name!r} is no project name: use up to 63 letters, digits and dashes", name=name)
        if not 1 <= options["parallelism"] <= 1000:
            raise InvalidInput("--parallelism takes a number from 1 to 1000")
        host = this_host()
        checks = [_check(text) for text in options["check"]]
        place = find_place(options["path"], target=options["target"], plain=options["plain"])
        project = add_project(
            name=name,
            place=place,
            checks=checks,
            host_id=host.pk,
            parallelism=options["parallelism"],
            push_remote=options["push"],
        )
        console().print(f"project {project.name}: {project.workspace} {project.target_ref}".rstrip(), soft_wrap=True)

    def _list(self, options: dict[str, Any]) -> None:
        table = Table("project", "workspace", "target", "checks", "at once", box=None)
        for project in Project.objects.all():
            table.add_row(
                project.name,
                project.workspace,
                project.target_ref.removeprefix("refs/heads/") or "[dim]plain directory[/]",
                ", ".join(check["name"] for check in project.checks) or "[dim]none[/]",
                str(project.parallelism),
            )
        console().print(table)

    def _unfreeze(self, options: dict[str, Any]) -> None:
        project = project_named(options["name"])
        unfreeze(project_id=project.pk, actor=principal(), reason=options["reason"])
        console().print(f"project {project.name} lands again")


def _check(text: str) -> dict[str, Any]:
    name, found, command = text.partition("=")
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise CheckInvalid(f"--check {text!r}: {error}") from error
    if not found or not name.strip() or not argv:
        raise CheckInvalid(f"--check {text!r}: write it as 'name=command with arguments'")
    return {"name": name.strip(), "argv": argv}
