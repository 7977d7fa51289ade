"""The process dies around every verb and every effect; the next one goes on, and nothing is lost, doubled or left behind.

A point is a function and a moment: before it, before its commit, after it. The test that lists a point fails when the
point was never passed, so a scenario that no longer reaches a verb does not go unnoticed. Here a death is an exception
that nothing catches, so ``finally`` still runs; deaths of real processes inside git are in tests/workspaces.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import graphs.services
import integration.flows
import integration.services
import jobs.services
import jobs.steps
import workspaces.flows
import workspaces.services
from core import journal
from core.models import AttentionItem
from graphs.models import Graph, Node
from graphs.services import cancel_graph, retry_node
from integration.models import Entry
from integration.services import unfreeze
from jobs.flows import Supervisor
from jobs.models import Attempt
from tests.driving import attention, left_over
from tests.running import Forge, Repo, gated, writer
from workspaces import git
from workspaces.flows import find_place
from workspaces.models import Checkout
from workspaces.services import add_project

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]

MOST_DEATHS = 60  # of a run; so that it comes to an end
APPS = {"core", "leases", "workspaces", "jobs", "integration", "graphs", "recovery", "forge_site", "tests"}


class Crash(BaseException):
    """The process is gone: nothing that catches errors sees it."""


class Killer:
    """Raises ``Crash`` around the calls of a function: before one, before the commit of the next, after the next, then not.

    And so on, so what is tried again dies again, at another moment.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self._dies_in_commit = False
        self.struck: list[tuple[str, str]] = []
        flush = journal.flush

        def flush_or_die(*args: Any) -> None:
            if self._dies_in_commit:
                raise Crash
            flush(*args)

        monkeypatch.setattr(journal, "flush", flush_or_die)

    def aim(self, target: Callable[..., Any]) -> None:
        moments = cycle([*moments_of(target), ""])

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            moment = next(moments) if len(self.struck) < MOST_DEATHS else ""
            if moment:
                self.struck.append((target.__qualname__, moment))
            if moment == "before":
                raise Crash
            self._dies_in_commit = moment == "before its commit"
            try:
                found = target(*args, **kwargs)
            finally:
                self._dies_in_commit = False
            if moment == "after":
                raise Crash
            return found

        places = list(_places_of(target))
        assert places, f"nobody can call {target}"
        for place, name in places:
            self._patch.setattr(place, name, wrapped)


def moments_of(target: Callable[..., Any]) -> tuple[str, ...]:
    """A verb has a commit to die before; git and processes have not."""
    return ("before", "before its commit", "after") if hasattr(target, "__wrapped__") else ("before", "after")


def _places_of(target: Callable[..., Any]) -> Iterator[tuple[object, str]]:
    """Every name by which Forge's modules know a function; for a method its class."""
    owner, _, name = target.__qualname__.rpartition(".")
    if owner:
        yield getattr(sys.modules[target.__module__], owner), name
        return
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and module.__name__.partition(".")[0] in APPS:
            yield from ((module, known) for known, value in list(vars(module).items()) if value is target)


class World:
    """A project whose branch is pushed to a remote, and a file per node that counts how often its command ran."""

    def __init__(self, forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.forge, self.tmp_path, self._monkeypatch = forge, tmp_path, monkeypatch
        self.repo = Repo(tmp_path / "repo")
        self.remote = tmp_path / "remote.git"
        self.repo.git("init", "--quiet", "--bare", str(self.remote))
        self.repo.git("push", "--quiet", str(self.remote), "main")
        self.base = self.repo.tip()

    def survive(self, act: Callable[[], Any]) -> Any:
        """Do it, and when the process dies over it, do it again in the next one."""
        while True:
            try:
                return act()
            except Crash:
                self.forge.restart()

    def add_project(self, *checks: dict[str, Any]) -> None:
        place = find_place(self.repo.path, target="", plain=False)
        self.survive(
            lambda: add_project(
                name="p",
                place=place,
                checks=list(checks),
                host_id=self.forge.host.pk,
                parallelism=8,
                push_remote=str(self.remote),
            )
        )

    def admit(self, *nodes: dict[str, Any]) -> Graph:
        graph: Graph = self.survive(lambda: self.forge.admit(gated(*nodes), request_id="the one"))
        assert Graph.objects.count() == 1
        return graph

    def replace_land(self, land: Callable[..., None]) -> None:
        self._monkeypatch.setattr(integration.flows, "land", land)

    def until(self, condition: Callable[[], bool]) -> None:
        self.survive(lambda: self.forge.until(condition))

    def until_ended(self, graph: Graph) -> str:
        self.until(lambda: Graph.objects.get(pk=graph.pk).state != "active")
        return Graph.objects.get(pk=graph.pk).state

    def counted(self, name: str, script: str) -> str:
        return f"echo ran >> {self.tmp_path / name}; {script}"

    def runs(self, name: str) -> int:
        place = self.tmp_path / name
        return len(place.read_text().splitlines()) if place.exists() else 0

    def require_clean_end(self, files: dict[str, str]) -> None:
        """The landed tree, in the branch, the person's files and the remote; and nothing half done anywhere."""
        busy = ("adding", "removing")
        self.until(lambda: not Checkout.objects.filter(state__in=busy).exists())
        self.until(lambda: not Entry.objects.filter(push_due=True).exists())
        self.until(lambda: not left_over())
        for name, content in files.items():
            assert self.repo.git("show", f"main:{name}") == content
            assert (self.repo.path / name).read_text() == f"{content}\n"
        assert self.repo.git("status", "--porcelain") == ""
        assert self.repo.git("ls-remote", str(self.remote), "refs/heads/main").split()[0] == self.repo.tip()
        line = self.repo.git("rev-list", "--first-parent", f"{self.base}..main").split()
        assert line == self.repo.git("rev-list", f"{self.base}..main").split()
        entries = Entry.objects.filter(state="accepted").exclude(receipt__commits=[])
        assert sorted(c for entry in entries for c in entry.receipt["commits"]) == sorted(
            c for c in line if c not in self.persons_commits
        )

    persons_commits: tuple[str, ...] = ()


# --- scenarios: each ends as it would without the crash ---------------------------------------------------------------


def landing(world: World) -> None:
    """Two writers, of which the second is replayed; a check for each; a reader; a push for each."""
    world.add_project({"name": "fine", "argv": ["sh", "-c", world.counted("fine", "test -f src/a")]})
    graph = world.admit(
        writer("a", world.counted("a", "echo 2 > src/a"), "src/a"),
        writer("b", world.counted("b", "echo 2 > src/b"), "src/b"),
        {
            "key": "look",
            "command": ["sh", "-c", world.counted("look", "grep -q 2 src/a")],
            "workMode": "read-only",
            "needs": ["a", "b"],
        },
    )
    assert world.until_ended(graph) == "completed"
    world.require_clean_end({"src/a": "2", "src/b": "2"})
    assert [world.runs(name) for name in ("a", "b", "look", "fine")] == [1, 1, 1, 2]
    assert Attempt.objects.count() == 5


def late_grant(world: World) -> None:
    """The project has advanced, and nobody has asked the broker since."""
    world.add_project()
    graph = world.admit(writer("a", world.counted("a", "echo 2 > src/a"), "src/a"))
    world.survive(lambda: graphs.services.advance(project_id=graph.project_id))
    assert world.until_ended(graph) == "completed"
    world.require_clean_end({"src/a": "2"})
    assert world.runs("a") == 1


def refusal(world: World) -> None:
    """The first try writes outside its scope, and is revised."""
    world.add_project()
    once = f"test $(wc -l < {world.tmp_path / 'a'}) -gt 1 || echo 2 > src/b"
    graph = world.admit(writer("a", world.counted("a", f"echo 2 > src/a; {once}"), "src/a"))
    assert world.until_ended(graph) == "completed"
    world.require_clean_end({"src/a": "2", "src/b": "1"})
    assert world.runs("a") == 2
    assert Node.objects.get().revisions == 1


def conflict(world: World) -> None:
    """A person commits to the same file meanwhile: rejected with the paths, revised on the new base."""
    world.add_project()
    own = f"git -c user.name=P -c user.email=p@forge.invalid -C {world.repo.path} commit --quiet -am person"
    first = f"test $(wc -l < {world.tmp_path / 'a'}) -gt 1 || (echo person > {world.repo.path}/src/a; {own})"
    graph = world.admit(writer("a", world.counted("a", f"{first}; echo 2 >> src/a"), "src/a"))
    assert world.until_ended(graph) == "completed"
    world.persons_commits = (world.repo.git("rev-parse", "main^"),)
    world.require_clean_end({"src/a": "person\n2"})
    assert world.runs("a") == 2
    assert [entry.state for entry in Entry.objects.order_by("pk")] == ["rejected", "accepted"]


def held_up(world: World) -> None:
    """A person's uncommitted work is in the way for a while."""
    world.add_project()
    graph = world.admit(writer("a", world.counted("a", "echo 2 > src/a"), "src/a"))
    (world.repo.path / "src/a").write_text("mine\n")
    world.until(lambda: Entry.objects.exclude(hold={}).exists())
    assert (world.repo.path / "src/a").read_text() == "mine\n"
    world.repo.git("checkout", "--quiet", "src/a")
    assert world.until_ended(graph) == "completed"
    world.require_clean_end({"src/a": "2"})
    assert world.runs("a") == 1
    assert attention() == []


def moved_target(world: World) -> None:
    """The branch moves while the checks run: offered anew, checked again."""
    person = (
        f"git -c user.name=P -c user.email=p@forge.invalid -C {world.repo.path} commit --quiet --allow-empty -m person"
    )
    once = f"test $(wc -l < {world.tmp_path / 'fine'}) -gt 1 || {person}"
    world.add_project({"name": "fine", "argv": ["sh", "-c", world.counted("fine", once)]})
    graph = world.admit(writer("a", world.counted("a", "echo 2 > src/a"), "src/a"))
    assert world.until_ended(graph) == "completed"
    world.persons_commits = (world.repo.git("rev-parse", "main^"),)
    world.require_clean_end({"src/a": "2"})
    assert (world.runs("a"), world.runs("fine")) == (1, 2)


def tampering(world: World) -> None:
    """The landing proof fails: frozen, until a person has looked; then the node is revised."""
    world.add_project()
    flow, evil = integration.flows.land, world.repo.git("commit-tree", "-p", world.base, "-m", "evil", "HEAD^{tree}")

    def tamper(entry: Entry, *rest: Any) -> None:
        if not AttentionItem.objects.exists():
            entry.offered = evil
        flow(entry, *rest)

    world.replace_land(tamper)
    graph = world.admit(writer("a", world.counted("a", "echo 2 > src/a"), "src/a"))
    world.until(lambda: "landing_proof_failed" in attention())
    assert world.repo.tip() == world.base
    for _ in range(5):
        world.survive(world.forge.step)
    assert world.repo.tip() == world.base
    project = graph.project
    world.survive(lambda: unfreeze(project_id=project.pk, actor="person", reason="looked"))
    assert world.until_ended(graph) == "completed"
    world.require_clean_end({"src/a": "2"})
    assert world.runs("a") == 2


def second_try(world: World) -> None:
    """A failed node is retried by a person."""
    world.add_project()
    once = f"test $(wc -l < {world.tmp_path / 'a'}) -gt 1 || exit 3"
    graph = world.admit(
        writer("a", world.counted("a", f"echo 2 > src/a; {once}"), "src/a", maxRevisions=0),
        writer("b", world.counted("b", "echo 2 > src/b"), "src/b", needs=["a"]),
    )
    assert world.until_ended(graph) == "partial"
    node = Node.objects.get(key="a")

    def retry() -> None:
        if Node.objects.get(key="a").state == "failed":
            retry_node(project_id=graph.project_id, node_id=node.pk, actor="person")

    world.survive(retry)
    assert world.until_ended(graph) == "completed"
    world.require_clean_end({"src/a": "2", "src/b": "2"})
    assert (world.runs("a"), world.runs("b")) == (2, 1)


def cancellation(world: World) -> None:
    """Cancelled while it runs: nothing lands, nothing is left."""
    world.add_project()
    graph = world.admit(
        writer("a", world.counted("a", "sleep 600"), "src/a", graceSeconds=1),
        writer("b", world.counted("b", "echo 2 > src/b"), "src/b", needs=["a"]),
    )
    world.until(lambda: world.runs("a") == 1)
    world.survive(lambda: cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor="person"))
    assert world.until_ended(graph) == "cancelled"
    world.require_clean_end({"src/a": "1", "src/b": "1"})
    assert (world.runs("a"), world.runs("b")) == (1, 0)


# --- points -----------------------------------------------------------------------------------------------------------

POINTS: dict[Callable[[World], None], tuple[Callable[..., Any], ...]] = {
    landing: (
        workspaces.services.add_project,
        graphs.services.admit_graph,
        graphs.services.advance,
        jobs.steps.grant_and_start,
        workspaces.services.record_base,
        workspaces.services.record_checkout,
        integration.services.record_sealed,
        integration.services.record_refreshed,
        integration.services.record_proof,
        integration.services.record_landed,
        integration.services.record_pushed,
        workspaces.flows.add,
        git.add_checkout,
        integration.flows.seal,
        git.seal,
        git.Repository.pin,
        integration.flows.refresh,
        git.replay,
        integration.flows.land,
        git.land,
        integration.flows.push,
        git.push,
        workspaces.flows.remove,
        git.remove_checkout,
        Supervisor.launch,
        Supervisor.look_at_all,
    ),
    late_grant: (jobs.services.grant_and_start,),
    refusal: (integration.services.record_refused,),
    conflict: (integration.services.record_ended,),
    held_up: (integration.services.record_held,),
    moved_target: (integration.services.record_target_moved,),
    tampering: (integration.services.freeze_for, integration.services.unfreeze),
    second_try: (graphs.services.retry_node,),
    cancellation: (graphs.services.cancel_graph, Supervisor.stop),
}
ONE_BY_ONE = [(scenario, target) for scenario, targets in POINTS.items() for target in targets]


@pytest.fixture
def world(forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(integration.services, "HELD_RETRY", timedelta(0))
    return World(forge, tmp_path, monkeypatch)


@pytest.mark.req("JB-01", "JB-06", "JB-09", "JB-10", "PS-07", "PS-11", "GC-06", "IQ-11", "PX-45")
@pytest.mark.parametrize(("scenario", "target"), ONE_BY_ONE, ids=lambda f: str(f.__qualname__))
def test_deaths_around_one_function_change_nothing_about_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch, scenario: Callable[[World], None], target: Callable[..., Any]
) -> None:
    killer = Killer(monkeypatch)
    killer.aim(target)

    scenario(world)

    missed = {(target.__qualname__, moment) for moment in moments_of(target)} - set(killer.struck)
    assert not missed, f"points that were never passed: {sorted(missed)}"


@pytest.mark.req("JB-09", "JB-10", "PX-45")
@pytest.mark.parametrize("scenario", POINTS, ids=lambda f: str(f.__name__))
def test_deaths_around_everything_at_once_change_nothing_about_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch, scenario: Callable[[World], None]
) -> None:
    killer = Killer(monkeypatch)
    for target in {*POINTS[scenario], *POINTS[landing]}:
        killer.aim(target)

    scenario(world)

    assert len(killer.struck) >= 20


def test_every_verb_of_the_services_has_its_points() -> None:
    """Except the start of a host, which happens before there is anything to lose."""
    listed = {target for targets in POINTS.values() for target in targets}
    verbs = {
        value
        for module in (graphs.services, integration.services, jobs.services, workspaces.services)
        for value in vars(module).values()
        if getattr(value, "__module__", "") == module.__name__ and hasattr(value, "__wrapped__")
    }
    effects = {
        getattr(module, name)
        for module, names in (
            (workspaces.flows, ("add", "remove")),
            (integration.flows, ("seal", "refresh", "land", "push")),
        )
        for name in names
    }
    assert verbs - listed == {graphs.services.cancel_node}  # the same transaction as cancel_graph
    assert effects <= listed
