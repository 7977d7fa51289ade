"""How a graph looks in a terminal: a live table where there is one, a line per change where there is none."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice

from django.db.models import Count, QuerySet
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from core.models import AttentionItem
from forge_site.failures import printable
from forge_site.following import events_of
from forge_site.management.base import Out, label
from graphs.models import Graph, Node
from graphs.selectors import explain
from graphs.states import ENDED, GraphState, NodeState
from integration.models import Entry

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
    "admitted": ("▷", "bold"),
    "active": ("▶", "bold cyan"),
    "completed": ("✔", "bold green"),
    "partial": ("✘", "bold red"),
}
ROWS = 24  # of a table at most; a larger graph shows what moves first
LEAST_ROWS = 3
REFRESH_S = 0.2
IDLE_SHARE = 5  # drawing takes at most one part in so many of the time
KEY_WIDTH = 20
GAP = 2
ATTENTION_SHOWN = 3


def state_text(state: str) -> Text:
    icon, style = LOOK.get(state, ("•", ""))
    return Text(f"{icon} {state}", style=style)


def follow(graph: Graph, out: Out) -> GraphState:
    """Show a graph until it has ended. Raises KeyboardInterrupt to whoever started it."""
    if out.is_live:
        _follow_live(graph, out)
    else:
        _follow_in_lines(graph, out)
    graph.refresh_from_db()
    return GraphState(graph.state)


def _follow_live(graph: Graph, out: Out) -> None:
    """Redrawn when something may have changed, but never so often that drawing becomes the work."""
    due = 0.0
    with Live(picture(graph, out), console=out, auto_refresh=False, vertical_overflow="ellipsis") as live:
        for _ in events_of(graph):
            began = time.monotonic()
            if began >= due:
                live.update(picture(graph, out), refresh=True)
                ended = time.monotonic()
                due = ended + max(REFRESH_S, IDLE_SHARE * (ended - began))
        live.update(picture(graph, out), refresh=True)


def _follow_in_lines(graph: Graph, out: Out) -> None:
    told: set[int] = set()
    for event in events_of(graph):
        if event is not None:
            _print_event(event.kind, event.data, out)
            continue
        for item in attention_of(graph):
            if item.pk not in told:
                told.add(item.pk)
                _print_line(out, "attention", Text(f"{item.message} {item.next_action}", style="bold red"))


def _print_event(kind: str, data: dict[str, object], out: Console) -> None:
    what, _, state = kind.partition(".")
    if what == "node":
        detail = data.get("message") or (f"commit {str(data['commit'])[:12]}" if data.get("commit") else "")
        why = data.get("why") if not detail else ""
        _print_line(out, str(data.get("key", "?")), state_text(state), str(detail or why or ""))
    elif what == "graph":
        nodes = data.get("nodes")
        detail = f"{nodes} nodes" if isinstance(nodes, int) else str(data.get("why", ""))
        _print_line(out, "graph", state_text(state), detail)


def _print_line(out: Console, name: str, words: Text, detail: str = "") -> None:
    line = Text.assemble(f"{name:<{KEY_WIDTH}} ", Text(printable(words.plain), style=words.style))
    if detail:
        line.append(f"  {printable(detail)}", style="dim")
    out.print(line, soft_wrap=True)


def attention_of(graph: Graph) -> list[AttentionItem]:
    """Open items about this graph's nodes and what they offered."""
    items = list(AttentionItem.objects.filter(project=graph.project_id, resolved_at=None).order_by("pk")[:100])
    subjects = [item.subject for item in items]
    entries = {int(s.partition(":")[2]) for s in subjects if s.startswith("entry:")}
    owner_of = {f"entry:{pk}": owner for pk, owner in Entry.objects.filter(pk__in=entries).values_list("pk", "owner")}
    owners = {s: owner_of.get(s, s) for s in subjects}
    nodes = {int(o.partition(":")[2]) for o in owners.values() if o.startswith("node:")}
    mine = {f"node:{pk}" for pk in Node.objects.filter(pk__in=nodes, graph=graph).values_list("pk", flat=True)}
    return [item for item in items if owners[item.subject] in mine]


# --- the picture ------------------------------------------------------------------------------------------------------


def picture(graph: Graph, out: Console) -> Group:
    """A graph's nodes with state, time and what they wait for; never higher than the terminal, whatever the graph."""
    nodes = Node.objects.filter(graph=graph)
    counts = dict(nodes.order_by().values_list("state").annotate(n=Count("pk")))
    total = sum(counts.values())
    attention = attention_of(graph)[:ATTENTION_SHOWN]
    rows = ROWS
    if out.is_terminal:
        rows = max(LEAST_ROWS, min(ROWS, out.height - 4 - 2 * len(attention)))
    shown = _shown(nodes, rows if total > rows else total)
    summary = Text("  ").join(
        Text.assemble(state_text(state), f" {counts[state]}") for state in LOOK if counts.get(state)
    )
    parts: list[Text | Table] = [Text.assemble((f"{label(graph)}  ", "bold"), summary), _table(shown, out)]
    if total > len(shown):
        parts.append(Text(f"and {total - len(shown)} more nodes", style="dim"))
    parts += [
        Text(printable(f"{item.message} {item.next_action}"), style="bold red", overflow="ellipsis")
        for item in attention
    ]
    return Group(*parts)


def _shown(nodes: QuerySet[Node], rows: int) -> Sequence[Node]:
    """What moves, then what failed, what waits for its turn, what comes next, what ended last; in topological order."""
    moving = nodes.exclude(state__in=[*ENDED, NodeState.PENDING, NodeState.QUEUED]).order_by("position")
    queued = nodes.filter(state=NodeState.QUEUED).order_by("position")
    failed = nodes.filter(state=NodeState.FAILED).order_by("position")
    coming = nodes.filter(state=NodeState.PENDING).order_by("unmet_inputs", "position")
    ended = nodes.filter(state__in=ENDED).exclude(state=NodeState.FAILED).order_by("-ended_at", "position")
    chosen = islice(_chain(rows, moving, failed, queued, coming, ended), rows)
    return sorted(chosen, key=lambda node: (node.position, node.generation))


def _chain(rows: int, *groups: QuerySet[Node]) -> Iterator[Node]:
    for group in groups:
        yield from group.select_related("graph", "project__home_host").defer("graph__document")[:rows]


def _table(nodes: Sequence[Node], out: Console) -> Table:
    """Widths are ours: left alone, a long sentence squeezes the names out of a narrow terminal."""
    keys = min(max((len(node.key) for node in nodes), default=1), max(8, out.width // 3))
    states = max((state_text(node.state).cell_len for node in nodes), default=1)
    rest = max(8, out.width - keys - states - 2 * GAP)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=False)
    for width in (keys, states):
        table.add_column(no_wrap=True, overflow="ellipsis", width=width)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=rest)
    for node in nodes:
        table.add_row(Text(node.key, style="bold"), state_text(node.state), _detail(node))
    return table


def _detail(node: Node) -> Text:
    if node.state in (NodeState.ACCEPTED, NodeState.SUCCEEDED):
        took = f"{(node.ended_at - node.started_at).total_seconds():.1f} s" if node.ended_at and node.started_at else ""
        return Text(f"{took}  {node.accepted_commit[:12]}".strip(), style="dim")
    sentence = str(explain(node)["sentence"]).removeprefix(f"{node.key} ")
    return Text(printable(sentence), style="dim")
