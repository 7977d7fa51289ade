"""``explain`` in each situation a node can really be in, and the result document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import graphs
from core.models import Project
from graphs.models import Graph, Node
from graphs.selectors import explain, graph_of_request, result
from graphs.services import advance, cancel_graph, cancel_node
from integration import flows as integration_flows
from integration.models import Entry
from jobs.models import Attempt
from leases.models import Resource
from tests.factories import NodeFactory
from tests.running import Forge, Repo, gated, program, writer
from workspaces import flows as workspace_flows
from workspaces.errors import GitTimeout

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


@pytest.fixture
def forge(transactional_db: None) -> Iterator[Forge]:
    forge = Forge()
    yield forge
    forge.close()


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


class Gate:
    """What lets the commands of a test go on; it is opened at the end, come what may."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def command(self) -> str:
        return f"i=0; while [ ! -e {self._path} ] && [ $i -lt 600 ]; do sleep 0.05; i=$((i + 1)); done"

    def open(self) -> None:
        self._path.touch()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.open()


def stays(key: str, gate: Gate, *owned: str, **more: Any) -> dict[str, Any]:
    """A node that runs until the gate opens or it is stopped."""
    return writer(key, gate.command, *owned, graceSeconds=1, **more)


def of(graph: Graph, key: str) -> Node:
    return Node.objects.get(graph=graph, key=key)


def said(graph: Graph, key: str) -> tuple[str, str]:
    answer = explain(of(graph, key))
    json.dumps(answer)  # everything about it fits into JSON
    return answer["code"], answer["sentence"]


def finish(forge: Forge, *graphs: Graph) -> None:
    """Nothing of the test may go on after it."""
    for graph in graphs:
        cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor="test")
        forge.until_ended(graph)


def never(*_: object) -> None:
    raise GitTimeout("git takes its time")


# --- before it runs ---------------------------------------------------------------------------------------------------


def test_waits_for_dependencies_by_name_and_kind(forge: Forge, tmp_path: Path) -> None:
    forge.add_project("p", tmp_path, plain=True)
    graph = forge.admit(
        program(
            writer("a", "true", "a"),
            writer("b", "true", "b"),
            writer("both", "true", "c", needs=["a", "b"]),
            writer("rescue", "true", "d"),
            writer("clean", "true", "e"),
            edges=[{"from": "a", "to": "rescue", "kind": "failure"}, {"from": "a", "to": "clean", "kind": "always"}],
        )
    )

    assert said(graph, "both") == ("dependencies", "both waits for a (pending) and b (pending)")
    assert said(graph, "rescue") == ("dependencies", "rescue waits for the failure of a (pending)")
    assert said(graph, "clean") == ("dependencies", "clean waits for the end of a (pending)")
    assert explain(of(graph, "both"))["waits_for"] == ["a", "b"]


def test_many_dependencies_are_counted(forge: Forge, tmp_path: Path) -> None:
    forge.add_project("p", tmp_path, plain=True)
    keys = [f"n{i}" for i in range(9)]
    graph = forge.admit(program(*(writer(key, "true", key) for key in keys), writer("last", "true", "x", needs=keys)))

    code, sentence = said(graph, "last")

    assert code == "dependencies"
    assert sentence.endswith("n4 (pending) and 4 more")


def test_is_ready_and_then_waits_for_the_broker(forge: Forge, tmp_path: Path) -> None:
    project = forge.add_project("p", tmp_path, plain=True)
    graph = forge.admit(program(writer("a", "true", "a")))
    assert said(graph, "a") == ("ready", "a is ready; the next pass of the coordinator takes it up")

    advance(project_id=project.pk)

    assert said(graph, "a") == ("broker", "a has asked for its leases; the next pass of the broker looks at it")
    forge.until_ended(graph)


def test_waits_for_a_lease_with_its_holder_and_since_when_and_behind_an_older_request(
    forge: Forge, tmp_path: Path, gate: Gate
) -> None:
    forge.add_project("p", tmp_path, plain=True)
    nodes = [stays(key, gate, "src/a") for key in ("first", "second", "third", "zfourth")]
    graph = forge.admit(program(*nodes))
    forge.until_state(graph, "first", "running")
    since = Attempt.objects.get(state="running").request.granted_at  # type: ignore[union-attr]

    assert since is not None
    assert said(graph, "second") == (
        "lease",
        f"second waits for first, which holds src/a since {since:%Y-%m-%d %H:%M:%S} UTC",
    )
    code, sentence = said(graph, "third")
    assert code == "older_request"
    assert sentence.startswith("third waits behind second, ")
    assert "asked for src/a earlier" in sentence
    assert "as number 3 in line" in said(graph, "zfourth")[1]
    finish(forge, graph)


def test_names_a_holder_in_another_project(forge: Forge, tmp_path: Path, gate: Gate) -> None:
    graphs = []
    for name in ("helios", "atlas"):
        forge.add_project(name, Repo(tmp_path / name).path)
        graphs.append(forge.admit(gated(stays("work", gate, "src/a", primary="feature:shared"), project=name)))
    forge.until_state(graphs[0], "work", "running")
    forge.until_state(graphs[1], "work", "queued")

    code, sentence = said(graphs[1], "work")

    assert code == "lease"
    assert sentence.startswith("work waits for g#1/work of project helios, which holds feature:shared since ")
    finish(forge, *graphs)


@pytest.mark.parametrize("limit", ["project", "graph", "host"])
def test_waits_for_the_limit_that_is_used_up(forge: Forge, tmp_path: Path, gate: Gate, limit: str) -> None:
    forge.add_project("p", tmp_path, plain=True, parallelism=1 if limit == "project" else 8)
    if limit == "host":
        Resource.objects.filter(key=f"slots:{forge.host.name}").update(capacity=1)
    more: dict[str, Any] = {"parallelism": 1} if limit == "graph" else {}
    graph = forge.admit(program(stays("a", gate, "a"), stays("b", gate, "b"), stays("c", gate, "c"), **more))
    forge.until_state(graph, "a", "running")

    words = {
        "project": "the limit of project p",
        "graph": "the parallelism of its graph",
        "host": f"a free slot of host {forge.host.name}",
    }[limit]
    assert said(graph, "b") == ("capacity", f"b waits for {words}, as the next: 1 of 1 in use")
    assert said(graph, "c") == ("capacity", f"c waits for {words}, as number 2 in line: 1 of 1 in use")
    finish(forge, graph)


def test_its_checkout_is_being_made(forge: Forge, repo: Repo, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    forge.add_project("p", repo.path)
    with monkeypatch.context() as patch:
        patch.setattr(workspace_flows, "add", never)
        graph = forge.admit(gated(stays("a", gate, "src/a")))
        forge.until(lambda: Attempt.objects.filter(state="starting").exists())

        assert said(graph, "a") == ("checkout", "a has its leases; its checkout is being made")
    finish(forge, graph)


# --- while it runs ----------------------------------------------------------------------------------------------------


def test_runs_since_when_and_as_which_process(forge: Forge, tmp_path: Path, gate: Gate) -> None:
    forge.add_project("p", tmp_path, plain=True)
    graph = forge.admit(program(stays("a", gate, "a")))
    forge.until_state(graph, "a", "running")
    attempt = Attempt.objects.get()

    assert said(graph, "a") == (
        "running",
        f"a runs since {attempt.started_at:%Y-%m-%d %H:%M:%S} UTC (pid {attempt.pid} on {forge.host.name})",
    )
    finish(forge, graph)


def test_is_sealed(forge: Forge, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    forge.add_project("p", repo.path)
    with monkeypatch.context() as patch:
        patch.setattr(integration_flows, "seal", never)
        graph = forge.admit(gated(writer("a", "echo 2 > src/a", "src/a")))
        forge.until_state(graph, "a", "sealing")

        assert said(graph, "a") == ("sealing", "a has ended well; its changes are being sealed as a candidate")
    assert forge.until_ended(graph) == "completed"


def test_is_tried_again_and_says_why(forge: Forge, repo: Repo, gate: Gate, tmp_path: Path) -> None:
    forge.add_project("p", repo.path)
    once = tmp_path / "once"
    script = f"if [ -e {once} ]; then {gate.command}; else touch {once}; exit 3; fi"
    graph = forge.admit(gated(writer("a", script, "src/a", graceSeconds=1, maxRevisions=2)))
    forge.until(
        lambda: (
            Attempt.objects.filter(state="running", job__owner=of(graph, "a").subject).count() == 1
            and once.exists()
            and of(graph, "a").revisions == 1
        )
    )
    forge.until_state(graph, "a", "running")

    code, sentence = said(graph, "a")

    assert code == "running"
    assert sentence.endswith("(revision 1 of 2: its command exited with code 3)")
    finish(forge, graph)


def test_a_node_that_is_being_revised_says_why(transactional_db: None) -> None:
    """The coordinator leaves this state in the transaction that enters it, but for a graph that is not dispatched."""
    node = NodeFactory.create(
        key="a",
        state="revising",
        revisions=1,
        outcome={"code": "x", "message": "check failed: unit", "paths": ["src/a"]},
    )

    assert explain(node)["sentence"] == "a is tried again (revision 1 of 3: check failed: unit (src/a))"


def test_is_being_stopped(forge: Forge, tmp_path: Path, gate: Gate) -> None:
    """And says who cancelled it, why, and what happens when it does not go by itself."""
    forge.add_project("p", tmp_path, plain=True)
    stubborn = {
        "key": "a",
        "command": ["sh", "-c", f"trap '' TERM; {gate.command}"],
        "graceSeconds": 1,
        "ownedFiles": ["a"],
    }
    graph = forge.admit(program(stubborn))
    forge.until_state(graph, "a", "running")

    cancel_node(project_id=graph.project_id, node_id=of(graph, "a").pk, actor="ann", reason="wrong base")

    assert said(graph, "a") == (
        "cancelling",
        "a is being cancelled by ann (wrong base): its processes were asked to end and are ended by force after 1 s",
    )
    gate.open()
    forge.until_ended(graph)


# --- in the queue -----------------------------------------------------------------------------------------------------


def test_is_put_on_the_tip_then_checked_while_others_queue_then_lands(
    forge: Forge, repo: Repo, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge.add_project("p", repo.path, checks=[{"name": "slow", "argv": ["sh", "-c", gate.command]}])
    with monkeypatch.context() as patch:
        patch.setattr(integration_flows, "refresh", never)
        graph = forge.admit(gated(writer("a", "echo 2 > src/a", "src/a"), writer("b", "echo 2 > src/b", "src/b")))
        forge.until(lambda: Entry.objects.count() == 2 and Entry.objects.filter(state="refreshing").exists())
        first = Entry.objects.get(state="refreshing")
        key = Node.objects.get(pk=int(first.owner.removeprefix("node:"))).key
        other = "b" if key == "a" else "a"

        assert said(graph, key) == ("refreshing", f"{key} is being put on the tip of main")
        assert said(graph, other) == ("queue", f"{other} is number 2 in the queue for main, where {key} is refreshing")

    forge.until(lambda: Attempt.objects.filter(job__owner__startswith="check:", state="running").exists())
    started = Attempt.objects.get(job__owner__startswith="check:").started_at
    first.refresh_from_db()
    assert said(graph, key) == (
        "checks",
        f"{key} is being checked on {first.offered[:12]}: slow runs since {started:%Y-%m-%d %H:%M:%S} UTC",
    )
    assert said(graph, other)[1] == f"{other} is number 2 in the queue for main, where {key} is checking"

    gate.open()
    with monkeypatch.context() as patch:
        patch.setattr(integration_flows, "land", never)
        forge.until(lambda: Entry.objects.filter(state="landing").exists())
        assert said(graph, key) == ("landing", f"{key} has passed all checks; main is being moved to it")
        answer = cancel_node(project_id=graph.project_id, node_id=of(graph, key).pk, actor="ann")
        assert answer.landing == (key,)
        assert said(graph, key) == (
            "cancelling",
            f"{key} is being cancelled by ann, but its landing was recorded before and is completed first",
        )
    forge.until_ended(graph)
    node = of(graph, key)
    assert said(graph, key)[1].startswith(f"{key} is accepted: landed on main as {node.accepted_commit[:12]} at ")


def test_waits_for_the_workspace_that_a_program_works_in(forge: Forge, repo: Repo, gate: Gate) -> None:
    forge.add_project("p", repo.path)
    busy = forge.admit(program(stays("busy", gate, "src/b")))
    forge.until_state(busy, "busy", "running")
    graph = forge.admit(gated(writer("a", "echo 2 > src/a", "src/a")))
    forge.until(lambda: Entry.objects.filter(state="checking").exists() and said(graph, "a")[0] == "workspace")
    forge.step()

    code, sentence = said(graph, "a")

    assert code == "workspace"
    assert sentence.startswith("a has passed its checks and waits for prog#1/busy, which holds src/b since ")
    gate.open()
    assert forge.until_ended(graph) == "completed"
    forge.until_ended(busy)


def test_is_held_by_a_dirty_checkout_with_the_files(forge: Forge, repo: Repo) -> None:
    forge.add_project("p", repo.path)
    graph = forge.admit(gated(writer("a", "echo 2 > src/a", "src/a")))
    (repo.path / "src/a").write_text("mine\n")
    forge.until(lambda: Entry.objects.exclude(hold={}).exists())

    assert said(graph, "a") == (
        "held",
        f"a cannot land: uncommitted changes in {repo.path} are in the way of landing (src/a);"
        " commit, stash or revert them, and it goes on",
    )
    [warning] = result(graph)["warnings"]
    assert (warning["code"], warning["node"]) == ("checkout_dirty", "a")
    repo.git("checkout", "--quiet", "src/a")
    assert forge.until_ended(graph) == "completed"


def test_waits_in_a_frozen_project(forge: Forge, repo: Repo) -> None:
    project = forge.add_project("p", repo.path)
    Project.objects.update(frozen_reason="landing_proof_failed: the tree differs")
    graph = forge.admit(gated(writer("a", "echo 2 > src/a", "src/a")))
    forge.until(lambda: Entry.objects.exists())

    assert said(graph, "a") == (
        "frozen",
        "a waits: landing in project p is frozen (landing_proof_failed: the tree differs); look, then"
        " `forge project unfreeze p`",
    )
    assert project.name == "p"
    finish(forge, graph)


# --- ends -------------------------------------------------------------------------------------------------------------


def test_has_failed_was_skipped_or_has_succeeded_and_says_why(forge: Forge, tmp_path: Path) -> None:
    forge.add_project("p", tmp_path, plain=True)
    graph = forge.admit(
        program(writer("bad", "exit 7", "a"), writer("behind", "true", "b", needs=["bad"]), writer("good", "true", "c"))
    )
    assert forge.until_ended(graph) == "partial"

    assert said(graph, "bad") == (
        "failed",
        "bad has failed: its command exited with code 7; `forge retry bad` lets it try again",
    )
    assert said(graph, "behind") == ("skipped", "behind was skipped because bad ended failed")
    assert said(graph, "good")[1].startswith("good has succeeded at ")


def test_has_failed_after_its_revisions_with_the_paths(forge: Forge, repo: Repo) -> None:
    forge.add_project("p", repo.path)
    graph = forge.admit(gated(writer("a", "echo 2 > src/b", "src/a", maxRevisions=1)))
    assert forge.until_ended(graph) == "partial"

    code, sentence = said(graph, "a")

    assert code == "failed"
    assert sentence == (
        "a has failed: 1 changed paths lie outside the declared scope (src/b), after 1 revisions;"
        " `forge retry a` lets it try again"
    )


def test_was_cancelled_by_whom_and_why(forge: Forge, tmp_path: Path) -> None:
    forge.add_project("p", tmp_path, plain=True)
    graph = forge.admit(program(writer("a", "true", "a")))
    cancel_graph(project_id=graph.project_id, graph_id=graph.pk, actor="ann", reason="not now")
    forge.until_ended(graph)

    assert said(graph, "a") == ("cancelled", "a was cancelled by ann: not now")


def test_a_reader_had_nothing_to_land(forge: Forge, repo: Repo) -> None:
    forge.add_project("p", repo.path)
    graph = forge.admit(gated({"key": "look", "command": ["true"], "workMode": "read-only"}))
    forge.until_ended(graph)

    assert said(graph, "look")[1].endswith(": it had nothing to land")


# --- the result document ----------------------------------------------------------------------------------------------


def is_valid(document: dict[str, Any]) -> bool:
    """Against the published schema, after a round through JSON."""
    schema = json.loads((Path(graphs.__file__).parent / "result_contract.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    problems = [error.message for error in validator.iter_errors(json.loads(json.dumps(document)))]
    assert problems == []
    return True


def test_overlap_order_and_landings_can_be_proven_from_the_result(forge: Forge, repo: Repo, gate: Gate) -> None:
    base = repo.tip()
    forge.add_project("p", repo.path, checks=[{"name": "unit", "argv": ["true"]}])
    graph = forge.admit(
        gated(
            writer("a", f"{gate.command}; echo 2 > src/a", "src/a"),
            writer("b", f"{gate.command}; echo 2 > src/b", "src/b"),
            {"key": "look", "command": ["true"], "workMode": "read-only", "needs": ["a", "b"]},
        )
    )
    assert is_valid(result(graph))
    forge.until_state(graph, "a", "running")
    forge.until_state(graph, "b", "running")
    assert is_valid(result(graph))
    gate.open()
    assert forge.until_ended(graph) == "completed"

    document = result(graph)

    assert is_valid(document)
    assert (document["status"], document["counts"]) == ("completed", {"accepted": 3})
    times = {
        action["key"]: [datetime.fromisoformat(action["attempts"][0][at]) for at in ("startedAt", "endedAt")]
        for action in document["actions"]
    }
    assert max(times["a"][0], times["b"][0]) < min(times["a"][1], times["b"][1])  # both ran at one time
    assert times["look"][0] > max(times["a"][1], times["b"][1])
    assert [need["key"] for need in document["actions"][2]["needs"]] == ["a", "b"]
    line = [(landing["base"], landing["commit"]) for landing in document["landed"]]
    assert line[0][0] == base
    assert all(before[1] == after[0] for before, after in pairwise(line))
    assert line[-1][1] == repo.tip()
    assert [[check["name"] for check in landing["checks"]] for landing in document["landed"]] == [["unit"], ["unit"]]
    assert all(check["commit"] == landing["commit"] for landing in document["landed"] for check in landing["checks"])


def test_a_mixed_result_is_complete_and_stays_the_same(forge: Forge, repo: Repo) -> None:
    forge.add_project("p", repo.path)
    graph = forge.admit(
        gated(
            writer("lands", "echo 2 > src/a", "src/a"),
            writer("fails", "exit 3", "src/b", maxRevisions=1),
            writer("behind", "true", "src/c", needs=["fails"]),
        )
    )
    assert forge.until_ended(graph) == "partial"

    document = result(graph)

    assert is_valid(document)
    actions = {action["key"]: action for action in document["actions"]}
    assert actions["lands"]["failure"] is None
    assert actions["lands"]["commit"] == repo.tip()
    assert actions["fails"]["failure"]["message"] == "its command exited with code 3"
    assert [attempt["number"] for attempt in actions["fails"]["attempts"]] == [1, 2]
    assert {attempt["exitCode"] for attempt in actions["fails"]["attempts"]} == {3}
    assert actions["behind"]["failure"]["code"] == "dependency_ended"
    assert (actions["behind"]["attempts"], actions["behind"]["startedAt"]) == ([], None)
    assert "revision_limit" in {warning["code"] for warning in document["warnings"]}
    forge.step()
    assert result(graph)["actions"] == document["actions"]


def test_a_revision_that_succeeded_leaves_no_failure(forge: Forge, repo: Repo, tmp_path: Path) -> None:
    once = tmp_path / "once"
    forge.add_project("p", repo.path)
    script = f"if [ -e {once} ]; then echo 2 > src/a; else touch {once}; exit 3; fi"
    graph = forge.admit(gated(writer("a", script, "src/a")))
    assert forge.until_ended(graph) == "completed"

    [action] = result(graph)["actions"]

    assert (action["status"], action["failure"], action["revisions"], len(action["attempts"])) == (
        "accepted",
        None,
        1,
        2,
    )


def test_a_request_finds_its_graph(forge: Forge, tmp_path: Path) -> None:
    forge.add_project("p", tmp_path, plain=True)
    graph = forge.admit(program(writer("a", "true", "a")), request_id="r1")

    assert graph_of_request("test", "r1") == graph
    assert graph_of_request("test", "r2") is None
    assert graph_of_request("other", "r1") is None
