"""The ``forge`` script: Django's management commands under one name, with a help that shows Forge's own first."""

import os
import sys

HELP = """\
Forge runs graphs of work on git repositories, many at a time, and lands what they produce.

First steps
  init                     make a home (FORGE_HOME, by default ~/.forge) with its database and first user
  up                       start the runtime in the foreground: web pages, scheduler, supervisor
  project add NAME PATH    register a repository (or, with --plain, a directory); `project list` shows them

Run and follow
  run FILE                 admit a graph document and follow it; Ctrl-C detaches, the work goes on
  status                   what runs, what waits, what needs a person
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
`forge COMMAND --help` explains a command. Everything else Django offers is there too: `forge help`.
"""


def main() -> None:
    """Run one command. ``forge`` alone or with --help lists them."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "forge_site.settings")
    if len(sys.argv) == 1 or sys.argv[1] in ("-h", "--help"):
        sys.stdout.write(HELP)
        return
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
