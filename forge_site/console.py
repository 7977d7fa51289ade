"""The ``forge`` script: Django's management commands under one name, with a help that shows Forge's own first.

Whatever goes wrong ends here, as one line with a code; see ``forge_site.failures`` for the exit codes.
"""

from __future__ import annotations

import os
import sys
from typing import Any

HELP = """\
Forge runs graphs of work on git repositories, many at a time, and lands what they produce.

First steps
  init                     make a home (FORGE_HOME, by default ~/.forge) with its database and first user
  up                       start the runtime in the foreground: web pages, scheduler, supervisor
  project add NAME PATH    register a repository (or, with --plain, a directory); `project list` shows them

Run and follow
  run FILE                 admit a graph document and follow it; Ctrl-C detaches, the work goes on
  status [GRAPH]           what runs, what waits, what needs a person
  watch GRAPH              follow a graph until it ends
  logs [-f] NODE           output of a node's newest attempt
  diff NODE                what a node offers or has landed
  explain NODE             one sentence: what it waits for
  result GRAPH             the result document of a graph
  retry NODE               let a failed node try again
  cancel GRAPH|NODE        end it: nothing new starts, what runs is stopped

Documents
  plan_contract            the JSON Schema a graph document must follow

A graph is named `name` (its newest run), `name#run`, or by its number. A node is `key` in the newest graph, or `graph/key`.

Exit codes: 0 done (run, watch: the graph completed), 1 the work did not end well, 2 refused and nothing was written,
130 detached by Ctrl-C while the work goes on. Errors end with a stable code in brackets.

`forge COMMAND --help` explains a command. Everything else Django offers is there too: `forge help`.
"""


def main() -> None:
    """Run one command and leave with its exit code. ``forge`` alone or with --help lists them."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "forge_site.settings")
    _open_streams()
    sys.exit(_flushed(_run(sys.argv)))


def _run(argv: list[str]) -> Any:
    name = argv[1] if len(argv) > 1 else "--help"
    try:
        if name in ("-h", "--help"):
            sys.stdout.write(HELP)
            return 0
        if name in ("--version", "version"):
            from importlib.metadata import version

            sys.stdout.write(f"forge {version('forge')}\n")
            return 0
        if refusal := _bad_settings() or _unknown_command(name):
            print(f"error: {refusal}", file=sys.stderr)
            return 2
        from django.core.management import execute_from_command_line

        execute_from_command_line(argv)
    except SystemExit as end:
        return end.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _pipe_closed()
    except Exception as error:
        if "--traceback" in argv:
            raise
        from forge_site.failures import report

        return report(error)
    return 0


def _open_streams() -> None:
    """A closed stream swallows what is written; a character that an encoding lacks is no reason to fail."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (for the life of the process)
        else:
            stream.reconfigure(errors="replace")


def _bad_settings() -> str:
    """Why the settings cannot be loaded: they are made of the environment, so that is where to look."""
    from django.conf import settings

    try:
        settings.INSTALLED_APPS  # noqa: B018 (loads them)
    except Exception as error:  # noqa: BLE001 (whatever a wrong variable brings about)
        words = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return f"the settings cannot be used: {words}; look at DATABASE_URL and the FORGE_ variables [settings_invalid]"
    return ""


def _unknown_command(name: str) -> str:
    import django
    from django.core.management import get_commands

    django.setup()  # before it, Django knows only its own
    known = get_commands()
    if name in known or name == "help":
        return ""
    from core.names import did_you_mean

    own = [command for command, app in known.items() if app == "forge_site"]
    near = did_you_mean(name, [*own, *(command for command in known if command not in own)], what="commands")
    hint = near if "Did you mean" in near else ""
    return f"there is no command {name!r}.{hint} `forge --help` lists them [unknown_command]"


def _flushed(code: Any) -> Any:
    """The exit code, once everything has really been written."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _pipe_closed()
    except OSError as error:
        if code != 2:  # else the very same has just been said
            print(f"error: the output could not be written: {error.strerror} [system_error]", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return code or 2
    return code


def _pipe_closed() -> int:
    """Whoever read has gone (`forge status | head -1`): end quietly, as a tool that SIGPIPE ends does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains once more at its end
    return 141
