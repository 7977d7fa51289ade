"""Forge's verbs driven by hand: rows only. What a supervisor or git would have observed, the test says.

For rules about rows: races, order, what is written together. ``tests.running`` runs the same with real processes and git.
"""

from __future__ import annotations

from typing import Any

from core.models import AttentionItem, Host, Project
from graphs import documents
from graphs.models import Graph, Node
from graphs.services import StartedJob, admit_graph, advance
from integration import services as integration_services
from integration.models import Candidate, Check, Entry
from jobs.models import Attempt, Job
from jobs.planning import Ended
from jobs.services import grant_and_start
from jobs.states import ATTEMPT_ENDED, Cause
from leases.models import Lease, Request
from leases.states import BLOCKING
from recovery.hosts import register_host
from tests.factories import sha
from workspaces.models import Checkout
from workspaces.services import Place, add_project, record_base, record_checkout
from workspaces.states import CheckoutState

TIP = sha("tip")
IDENTITY: dict[str, Any] = {"pid": 4242, "start_ticks": 7, "boot_id": "boot", "shim_pid": 4241}


class Hand:
    """One host, projects that exist nowhere on disk."""

    def __init__(self) -> None:
        self.host: Host = register_host(name="here")

    def add_project(self, name: str = "p", *, plain: bool = False, parallelism: int = 8, checks: Any = ()) -> Project:
        place = Place(f"/srv/{name}") if plain else Place(f"/srv/{name}", f"/srv/{name}/.git", "refs/heads/main")
        return add_project(name=name, place=place, checks=list(checks), host_id=self.host.pk, parallelism=parallelism)

    def admit(self, document: dict[str, Any], *, request_id: str = "", principal: str = "test") -> Graph:
        parsed = documents.parse({"contract": documents.CONTRACT, **document})
        project = Project.objects.get(name=parsed.project)
        request_id = request_id or f"{parsed.name}/{Graph.objects.count()}"
        return admit_graph(project_id=project.pk, document=parsed, principal=principal, request_id=request_id)

    # --- the tick, without a supervisor

    def turn(self) -> list[Attempt]:
        """Every project advances, the broker grants, checkouts appear. Returns: the attempts that start."""
        for project in Project.objects.order_by("pk"):
            advance(project_id=project.pk)
        attempts = list(grant_and_start().attempts)
        for checkout in Checkout.objects.filter(state=CheckoutState.ADDING):
            if not checkout.base:
                record_base(project_id=checkout.project_id, checkout_id=checkout.pk, base=TIP)
            record_checkout(project_id=checkout.project_id, checkout_id=checkout.pk, to=CheckoutState.READY)
        return attempts

    def attempt(self, node: Node) -> Attempt:
        node.refresh_from_db()
        return Attempt.objects.exclude(state__in=ATTEMPT_ENDED).get(job=node.job_id)

    def start(self, node: Node) -> None:
        self.turn()
        advance(project_id=node.project_id, started=[StartedJob(self.attempt(node), dict(IDENTITY))])

    def end(self, node: Node, *, exit_code: int | None = 0, cause: Cause = Cause.EXITED, **more: Any) -> None:
        """The command of a node that has its leases ends."""
        attempt = self.attempt(node)
        advance(project_id=node.project_id, ended=[Ended(attempt.pk, cause, exit_code, **more)])

    def run(self, node: Node, **how: Any) -> None:
        """From ready to the end of its command."""
        self.turn()
        self.end(node, **how)

    # --- git, without a repository

    def seal(self, node: Node, *, commit: str = "", refusal: dict[str, Any] | None = None) -> Candidate:
        candidate = Candidate.objects.get(owner=node.subject, state="sealing")
        if refusal is not None:
            integration_services.record_refused(project_id=node.project_id, candidate_id=candidate.pk, refusal=refusal)
        else:
            commit = commit or sha(f"commit of {candidate.pk}")
            integration_services.record_sealed(
                project_id=node.project_id,
                candidate_id=candidate.pk,
                commit=commit,
                tree=sha(f"tree {commit}"),
                changes=[],
            )
        candidate.refresh_from_db()
        return candidate

    def queue(self, node: Node) -> Entry:
        """From ready to its place in the queue."""
        self.run(node)
        self.seal(node)
        self.turn()
        return self.entry(node)

    def entry(self, node: Node) -> Entry:
        return Entry.objects.filter(owner=node.subject).latest("pk")

    def refresh(self, entry: Entry) -> None:
        candidate = entry.candidate
        integration_services.record_refreshed(
            project_id=entry.project_id,
            entry_id=entry.pk,
            refreshed=integration_services.Refreshed(TIP, candidate.commit, candidate.tree, replayed=False),
        )

    def check(self, entry: Entry, *, exit_code: int = 0) -> None:
        """All checks of the offered commit are asked for, run and end alike."""
        self.turn()
        for job in Job.objects.filter(check_run__entry=entry, ended_at=None):
            attempt = Attempt.objects.get(job=job)
            advance(project_id=entry.project_id, ended=[Ended(attempt.pk, Cause.EXITED, exit_code)])

    def to_landing(self, node: Node) -> Entry:
        """From ready to the recorded intent to land."""
        entry = self.queue(node)
        self.refresh(entry)
        self.check(entry)
        self.turn()  # the workspace is granted
        self.turn()
        entry.refresh_from_db()
        assert entry.state == "landing"
        return entry

    def land(self, entry: Entry) -> None:
        facts = {"base": entry.base, "commit": entry.offered, "commits": [entry.offered]}
        if integration_services.record_proof(project_id=entry.project_id, entry_id=entry.pk, proof=facts):
            integration_services.record_landed(project_id=entry.project_id, entry_id=entry.pk, receipt=facts)

    def node(self, graph: Graph, key: str) -> Node:
        return Node.objects.get(graph=graph, key=key)


def state(row: Any) -> str:
    row.refresh_from_db()
    return str(row.state)


def states(graph: Graph) -> dict[str, str]:
    return dict(Node.objects.filter(graph=graph).order_by("position").values_list("key", "state"))


def held() -> list[str]:
    """What is held or waited for. Nothing may be left of it once everything has ended."""
    blocking = Lease.objects.filter(state__in=BLOCKING).values_list("request__holder", flat=True).distinct()
    waiting = Request.objects.filter(state="waiting").values_list("holder", flat=True)
    return sorted({*(f"holds: {h}" for h in blocking), *(f"waits: {h}" for h in waiting)})


def left_over() -> list[str]:
    """What may never be left once all graphs have ended: holds, open attempts, unsettled ends."""
    attempts = Attempt.objects.exclude(state__in=ATTEMPT_ENDED)
    return [
        *held(),
        *(f"open: {attempt}" for attempt in attempts),
        *(f"unsettled: {job}" for job in Job.objects.filter(settled=False)),
        *(f"unsettled: {candidate}" for candidate in Candidate.objects.filter(settled=False)),
        *(f"unsettled: {entry}" for entry in Entry.objects.filter(settled=False)),
        *(f"waiting: {check}" for check in Check.objects.filter(state="waiting")),
    ]


def attention() -> list[str]:
    """Codes of the open items."""
    return sorted(AttentionItem.objects.filter(resolved_at=None).values_list("code", flat=True))
