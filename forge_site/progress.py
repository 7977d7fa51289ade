"""How a graph looks in a terminal: a live table where there is one, a line per change where there is none."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import nullcontext

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from forge_site.following import events_of
from graphs.models import Graph, Node
from graphs.selectors import explain
from graphs.states import ENDED, GraphState

LOOK = {  # state: icon and style; the word always stands beside it
    "pending": ("·", "dim"),
    "queued": ("…", "yellow"),
    "running": ("▶", "bold cyan"),
    "sealing": ("▣", "cyan"),
    "validating": ("⚖", "magenta"),
    "accepted": ("✔", "green"),
    "succeeded": ("✔", "green"),
    "revising": ("↻", "yellow"),
    "reverifying": ("↻", "yellow"),
    "failed": ("✘", "bold red"),
    "skipped": ("⤼", "dim"),
    "cancelled": ("■", "dim"),
    "superseded": ("⇢", "dim"),
    "active": ("▶", "bold cyan"),
    "completed": ("✔", "bold green"),
    "partial": ("✘", "bold red"),
}
ROWS = 24  # of a live table; a larger graph shows what moves
REFRESH_S = 0.2


def state_text(state: str) -> Text:
    icon, style = LOOK.get(state, ("?", ""))
    return Text(f"{icon} {state}", style=style)


def follow(graph: Graph, out: Console) -> GraphState:
    """Show a graph until it has ended. Raises KeyboardInterrupt to whoever started it."""
    live = Live(console=out, auto_refresh=False, transient=False) if out.is_terminal else None
    shown_at = 0.0
    with live or nullcontext():
        for event in events_of(graph):
            if live is None:
                if event is not None:
                    _print_line(event.kind, event.data, out)
            elif event is None or time.monotonic() - shown_at > REFRESH_S:
                live.update(picture(graph), refresh=True)
                shown_at = time.monotonic()
    graph.refresh_from_db()
    return GraphState(graph.state)


def _print_line(kind: str, data: dict[str, object], out: Console) -> None:
    what, _, state = kind.partition(".")
    if what == "node":
        line = Text.assemble(f"{data['key']:<20} ", state_text(state))
        detail = data.get("message") or (f"commit {str(data['commit'])[:12]}" if data.get("commit") else "")
        if detail:
            line.append(f"  {detail}", style="dim")
        out.print(line)
    elif what == "graph":
        out.print(Text.assemble(f"{'graph':<20} ", state_text(state)))


def picture(graph: Graph) -> Group:
    """The nodes of a graph in topological order with state, time and what they wait for."""
    nodes = list(Node.objects.filter(graph=graph).select_related("graph", "project").order_by("position", "generation"))
    counts = Counter(node.state for node in nodes)
    moving = (
        nodes
        if len(nodes) <= ROWS
        else [node for node in nodes if node.state not in ENDED and node.state != "pending"][:ROWS]
    )
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for node in moving:
        table.add_row(Text(node.key, style="bold"), state_text(node.state), _detail(node))
    summary = Text("  ").join(Text.assemble(state_text(state), f" {count}") for state, count in sorted(counts.items()))
    return Group(Text.assemble((f"{graph}  ", "bold"), summary), table)


def _detail(node: Node) -> Text:
    if node.state in ("accepted", "succeeded"):
        took = f"{(node.ended_at - node.started_at).total_seconds():.1f} s" if node.ended_at and node.started_at else ""
        return Text(f"{took}  {node.accepted_commit[:12]}".strip(), style="dim")
    if node.state in ("pending", "running"):
        return Text("")
    sentence = str(explain(node)["sentence"]).removeprefix(f"{node.key} ")
    return Text(sentence, style="dim", overflow="ellipsis", no_wrap=True)
