"""forge project"""

from __future__ import annotations

import re
import shlex
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from core.errors import InvalidInput
from core.models import Project
from core.selectors import project_named
from forge_site.failures import printable
from forge_site.management.base import ForgeCommand, principal, require_length
from graphs.flows import is_executable
from integration.services import unfreeze
from recovery.hosts import this_host
from workspaces.flows import find_place, require_remote
from workspaces.services import Place, add_project

NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")  # as graph documents spell it
CHECK_NAME_LENGTH, REF_LENGTH, PATH_LENGTH = 100, 255, 4096
MOST_AT_ONCE = 1000


class ProjectNameInvalid(InvalidInput):
    """A project's name has 1 to 63 letters, digits, dashes and underscores."""

    code = "project_name_invalid"


class CheckInvalid(InvalidInput):
    """A check is written 'name=command with arguments'."""

    code = "check_invalid"


class CheckExecutableMissing(InvalidInput):
    """The command of a check is no executable on this host. Install it, or name it by its full path."""

    code = "executable_missing"


class Command(ForgeCommand):
    help = (
        "Register and list the places where graphs work. Forge moves the target branch of a project only by fast-forward,\n"
        "and only to a tree that has passed all its checks."
    )
    examples = (
        "forge project add calc ~/src/calc --target main --check 'unit=python3 -m unittest'",
        "forge project add notes ~/notes --plain        a directory without git",
        "forge project list",
        "forge project unfreeze calc --reason 'looked at the reflog: it was me'",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="add|list|unfreeze")
        add = actions.add_parser(
            "add",
            help="register a git repository, or with --plain a directory",
            description="Register a git repository, or with --plain a directory. Doing it again with the same settings "
            "changes nothing; with others it is refused.",
        )
        add.add_argument("name", help="how graph documents call it: letters, digits, dashes")
        add.add_argument("path", type=Path, help="the working tree, or any directory in it")
        add.add_argument(
            "--target", default="", metavar="BRANCH", help="branch that work lands on (default: the one checked out)"
        )
        add.add_argument(
            "--check",
            action="append",
            default=[],
            metavar="'NAME=COMMAND'",
            help="a required check, run without a shell on the exact tree that will land; may be repeated",
        )
        add.add_argument(
            "--parallelism",
            type=int,
            default=8,
            metavar="N",
            help="how many attempts of this project run at once (default 8)",
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
        if not NAME.fullmatch(name):
            raise ProjectNameInvalid(
                f"{name!r} is no project name: use 1 to 63 letters, digits, dashes and underscores.", name=name
            )
        if not 1 <= options["parallelism"] <= MOST_AT_ONCE:
            raise InvalidInput(f"--parallelism takes a number from 1 to {MOST_AT_ONCE}")
        if options["plain"] and (options["target"] or options["push"] or options["check"]):
            raise InvalidInput("--plain is a directory without git: --target, --push and --check do not apply to it")
        checks = _checks(options["check"])
        host = this_host()
        project = add_project(
            name=name,
            place=_place(options),
            checks=checks,
            host_id=host.pk,
            parallelism=options["parallelism"],
            push_remote=options["push"],
        )
        target = project.target_ref.removeprefix("refs/heads/")
        where = f"{project.workspace}, work lands on {target}" if target else f"{project.workspace}, a plain directory"
        self.stdout.write(printable(f"project {project.name}: {where}"))
        if target and not checks:
            self.stdout.write(
                "It has no checks: whatever fits its scope lands. `--check 'NAME=COMMAND'` requires some."
            )

    def _list(self, options: dict[str, Any]) -> None:
        projects = Project.objects.all()
        if not projects:
            self.stdout.write("No projects yet: `forge project add NAME PATH` registers one.")
            return
        table = Table("project", "workspace", "target", "checks", "at once", "", box=None, pad_edge=False)
        for project in projects:
            target = project.target_ref.removeprefix("refs/heads/")
            checks = ", ".join(check["name"] for check in project.checks)
            table.add_row(
                project.name,
                Text(printable(project.workspace), overflow="fold"),
                target or Text("plain directory", style="dim"),
                checks or Text("none", style="dim"),
                str(project.parallelism),
                Text("frozen" if project.frozen_reason else "", style="bold red"),
            )
        self.out.print(table)

    def _unfreeze(self, options: dict[str, Any]) -> None:
        project = project_named(options["name"])
        if not project.frozen_reason:
            self.stdout.write(f"project {project.name} is not frozen: nothing was changed")
            return
        unfreeze(project_id=project.pk, actor=principal(), reason=options["reason"])
        self.stdout.write(f"project {project.name} lands again")


def _place(options: dict[str, Any]) -> Place:
    """Raises: InvalidInput, errors of the repository."""
    path, push = options["path"], options["push"]
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InvalidInput("the path is not valid UTF-8, and Forge records paths as text") from None
    place = find_place(path, target=options["target"], plain=options["plain"])
    require_length(place.workspace, PATH_LENGTH, what="the path")
    require_length(place.target_ref, REF_LENGTH, what="--target")
    require_length(push, REF_LENGTH, what="--push")
    if push:
        require_remote(path, push)
    return place


def _checks(texts: list[str]) -> list[dict[str, Any]]:
    """Raises: CheckInvalid, CheckExecutableMissing."""
    checks = [_check(text) for text in texts]
    names = [check["name"] for check in checks]
    for name in names:
        if names.count(name) > 1:
            raise CheckInvalid(f"--check: {name!r} is named twice; each check has a name of its own.", name=name)
    return checks


def _check(text: str) -> dict[str, Any]:
    name, found, command = text.partition("=")
    name = name.strip()
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise CheckInvalid(f"--check {text!r}: {error}; write it as 'name=command with arguments'") from error
    if not found or not name or not argv or not argv[0] or not name.isprintable():
        raise CheckInvalid(f"--check {text!r}: write it as 'name=command with arguments'")
    require_length(name, CHECK_NAME_LENGTH, what="the name of a check")
    if not is_executable(argv[0]):
        raise CheckExecutableMissing(
            f"check {name!r}: {argv[0]!r} is not an executable on this host; install it, or name it by its full path."
        )
    return {"name": name, "argv": argv}
