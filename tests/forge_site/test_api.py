"""The REST API as a program meets it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
import yaml
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test import RequestFactory as HttpRequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from core.errors import ForgeError
from forge_site import problems
from graphs.models import Node
from graphs.states import NodeState
from integration.states import EntryState
from jobs.states import AttemptState
from leases.states import Access, RequestState
from tests.factories import (
    NOON,
    AccessTokenFactory,
    AttemptFactory,
    AttentionItemFactory,
    CheckFactory,
    ClaimFactory,
    EdgeFactory,
    EntryFactory,
    EventFactory,
    GraphFactory,
    JobFactory,
    LeaseFactory,
    LineFactory,
    NodeFactory,
    ProjectFactory,
    RequestFactory,
    ResourceFactory,
)
from tests.forge_site.conftest import Api, sequence_of

pytestmark = pytest.mark.django_db


def keys(response: Any) -> list[str]:
    return [row["key"] for row in response.json()["results"]]


# --- who may ask ----------------------------------------------------------------------------------------------------


def test_nobody_reads_without_signing_in() -> None:
    response = Client().get("/api/v1/projects")

    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"].startswith("Bearer")
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.json()["code"] == "not_authenticated"


def test_a_session_reads_too(client: Client) -> None:
    assert client.get("/api/v1/projects").status_code == 200


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param({"expires_at": NOON}, id="expired"),
        pytest.param({"single_use": True}, id="first-login link"),
        pytest.param({"owner__is_active": False}, id="owner deactivated"),
        pytest.param({"raw": "another"}, id="unknown"),
    ],
)
def test_a_token_that_does_not_count_is_refused(refused: dict[str, Any]) -> None:
    AccessTokenFactory.create(**{"raw": "abc", **refused})

    response = Client(headers={"authorization": "Bearer abc"}).get("/api/v1/projects")

    assert response.status_code == 401
    assert response.json()["code"] == "invalid_token"


def test_a_token_counts_until_it_expires() -> None:
    AccessTokenFactory.create(raw="abc", expires_at=timezone.now() + timedelta(minutes=1))

    assert Client(headers={"authorization": "Bearer abc"}).get("/api/v1/projects").status_code == 200


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_nothing_is_written_here(api: Api, method: str) -> None:
    project = ProjectFactory.create()
    client: Client = api.client  # type: ignore[attr-defined]

    response = getattr(client, method)(f"/api/v1/projects/{project.pk}", {"name": "x"}, content_type="application/json")

    assert response.status_code == 405
    assert response.json()["type"] == "urn:forge:problem:method_not_allowed"


# --- what it says ---------------------------------------------------------------------------------------------------


@pytest.mark.req("PL-04")
def test_a_graph_says_how_far_it_is(api: Api) -> None:
    graph = GraphFactory.create(project__name="shop", name="checkout")
    for state in (NodeState.ACCEPTED, NodeState.RUNNING, NodeState.RUNNING):
        NodeFactory.create(graph=graph, state=state)

    listed = api("graphs", project=graph.project_id).json()["results"][0]
    detail = api(f"graphs/{graph.pk}").json()

    assert listed["nodeCounts"] == detail["nodeCounts"] == {"accepted": 1, "running": 2}
    assert listed["projectName"] == "shop"
    assert detail["document"] == {"name": "checkout", "nodes": []}


def test_an_older_generation_of_a_node_is_not_counted(api: Api) -> None:
    graph = GraphFactory.create()
    NodeFactory.create(graph=graph, key="a", generation=1, state=NodeState.ACCEPTED)
    NodeFactory.create(graph=graph, key="a", generation=2, state=NodeState.PENDING)

    assert api(f"graphs/{graph.pk}").json()["nodeCounts"] == {"pending": 1}


@pytest.mark.req("PL-04")
def test_nodes_are_filtered_by_graph_and_state(api: Api) -> None:
    graph = GraphFactory.create()
    for key, state in [("a", NodeState.FAILED), ("b", NodeState.RUNNING), ("c", NodeState.PENDING)]:
        NodeFactory.create(graph=graph, key=key, state=state)
    NodeFactory.create(key="elsewhere", state=NodeState.FAILED)

    assert keys(api("nodes", graph=graph.pk)) == ["c", "b", "a"]
    assert keys(api("nodes", graph=graph.pk, state="failed,running")) == ["b", "a"]


def test_a_node_says_what_it_waits_for(api: Api) -> None:
    done = NodeFactory.create(key="done", state=NodeState.ACCEPTED)
    node = NodeFactory.create(graph=done.graph, key="late", unmet_inputs=1)
    missing = NodeFactory.create(graph=done.graph, key="missing", state=NodeState.RUNNING)
    EdgeFactory.create(source=done, target=node)
    EdgeFactory.create(source=missing, target=node)

    body = api(f"nodes/{node.pk}").json()

    assert body["waitsFor"] == [{"nodeId": missing.pk, "key": "missing", "state": "running", "kind": "success"}]
    assert body["ready"] is False


@pytest.mark.req("PL-04")
def test_a_job_shows_its_attempts_and_hides_secrets(api: Api) -> None:
    job = JobFactory.create(env={"API_KEY": "hunter2"}, owner="node:7")
    request = RequestFactory.create(project=job.project, granted=True, token=991)
    AttemptFactory.create(job=job, number=1, state=AttemptState.FAILED)
    AttemptFactory.create(job=job, number=2, request=request, fence_token=991, key_digest="d" * 64)

    response = api("jobs", owner="node:7")
    body = response.json()["results"][0]

    assert [attempt["number"] for attempt in body["attempts"]] == [1, 2]
    assert body["attempts"][0]["fence"] is None
    assert body["attempts"][1]["fence"] == {"attempt": body["attempts"][1]["id"], "grant": request.pk, "token": 991}
    assert body["envNames"] == ["API_KEY"]
    assert b"hunter2" not in response.content
    assert b"d" * 64 not in response.content


@pytest.mark.req("PL-04")
def test_a_waiting_request_names_what_stops_it(api: Api) -> None:
    holder = RequestFactory.create(granted=True, holder="attempt:17")
    slots = ResourceFactory.create(key="slots/host0", capacity=2)
    stopped = RequestFactory.create(stopped_by=holder, stopped_since=NOON)
    RequestFactory.create(line=LineFactory.create(short_of=slots))
    ClaimFactory.create(request=stopped, access=Access.EXCLUSIVE)

    by_capacity, by_request = api("lease-requests", state=RequestState.WAITING).json()["results"]

    assert by_request["stoppedBy"]["holder"] == "attempt:17"
    assert by_request["stoppedBy"]["since"] == "2026-11-29T12:00:00Z"
    assert by_request["claims"][0]["access"] == "exclusive"
    assert by_capacity["shortOf"] == {"id": slots.pk, "class": "physical", "key": "slots/host0", "capacity": 2}


def test_leases_are_filtered_by_what_still_blocks(api: Api) -> None:
    lease = LeaseFactory.create()
    LeaseFactory.create(state="released")

    listed = api("leases", blocking="true").json()["results"]

    assert [row["id"] for row in listed] == [lease.pk]
    assert listed[0]["holder"] == lease.request.holder


@pytest.mark.req("PL-04")
def test_a_queue_entry_has_its_place_in_line_and_its_checks(api: Api) -> None:
    project = ProjectFactory.create()

    def entry(**facts: Any) -> Any:
        return EntryFactory.create(
            project=project, candidate__attempt__job__project=project, candidate__attempt__project=project, **facts
        )

    last = entry(graph_revision=2, position=0)
    first = entry(graph_revision=1, position=9, state=EntryState.CHECKING)
    second = entry(graph_revision=1, position=3)
    landed = entry(graph_revision=1, position=1, state=EntryState.ACCEPTED)
    CheckFactory.create(entry=first, project=project, name="tests")

    rows = {row["id"]: row for row in api("queue-entries", project=project.pk).json()["results"]}

    assert [rows[e.pk]["place"] for e in (first, second, last, landed)] == [1, 2, 3, None]
    assert [check["name"] for check in rows[first.pk]["checks"]] == ["tests"]


@pytest.mark.req("PL-04")
def test_events_are_read_on_from_a_sequence(api: Api) -> None:
    project = ProjectFactory.create()
    graph = GraphFactory.create(project=project)
    first = EventFactory.create(project=project, subject="node:5", data={"graph": graph.pk})
    EventFactory.create(subject="project:99", kind="project.frozen")
    admitted = EventFactory.create(project=project, subject=graph.subject, kind="graph.admitted")

    def seqs(**query: Any) -> list[int]:
        return [row["seq"] for row in api("events", **query).json()["results"]]

    assert seqs(since=first.seq) == [first.seq + 1, first.seq + 2]
    assert seqs(topics=f"graph:{graph.pk}") == [first.seq, admitted.seq]
    assert seqs(topics=f"project:{project.pk},graph:{graph.pk}") == [first.seq, admitted.seq]
    assert len(seqs(topics="*")) == 3


def test_open_attention_items_are_told_apart(api: Api) -> None:
    item = AttentionItemFactory.create()
    AttentionItemFactory.create(resolved_at=NOON)

    assert [row["id"] for row in api("attention-items", open="true").json()["results"]] == [item.pk]
    assert len(api("attention-items").json()["results"]) == 2


# --- sequence, tags, pages ------------------------------------------------------------------------------------------


@pytest.mark.req("PL-06")
def test_every_answer_carries_the_sequence_read_before_its_data(api: Api) -> None:
    event = EventFactory.create()
    project = ProjectFactory.create()

    with CaptureQueriesContext(connection) as queries:
        response = api(f"projects/{project.pk}")

    assert sequence_of(response) == event.seq
    statements = [query["sql"] for query in queries]
    order = [
        next(n for n, sql in enumerate(statements) if f'FROM "{table}"' in sql)
        for table in ("core_eventcounter", "core_project")
    ]
    assert order == sorted(order)
    assert sequence_of(api("projects")) == event.seq
    assert sequence_of(api("projects/999999")) == event.seq


def test_an_unchanged_detail_is_not_sent_again(api: Api) -> None:
    node = NodeFactory.create()
    tag = api(f"nodes/{node.pk}").headers["ETag"]

    again = api(f"nodes/{node.pk}", headers={"if-none-match": f'"other", {tag}'})

    assert tag.startswith(f'"node-{node.pk}-v0-')
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)


def test_a_tag_changes_with_anything_the_answer_shows(api: Api) -> None:
    job = JobFactory.create()
    tag = api(f"jobs/{job.pk}").headers["ETag"]
    AttemptFactory.create(job=job)  # the job's own version stays

    response = api(f"jobs/{job.pk}", headers={"if-none-match": tag})

    assert response.status_code == 200
    assert len(response.json()["attempts"]) == 1


def test_pages_follow_each_other_without_gap_or_repetition(api: Api) -> None:
    graph = GraphFactory.create()
    expected = [NodeFactory.create(graph=graph).key for _ in range(7)][::-1]
    client: Client = api.client  # type: ignore[attr-defined]

    page = api("nodes", page_size=3)
    found = keys(page)
    while following := page.json()["next"]:
        NodeFactory.create(graph=graph)  # what is added meanwhile is newer and does not shift the pages
        page = client.get(following)
        found += keys(page)

    assert found == expected


def test_a_page_has_at_most_200_rows(api: Api) -> None:
    graph = GraphFactory.create()
    Node.objects.bulk_create(NodeFactory.build(graph=graph, project=graph.project) for _ in range(201))

    assert len(api("nodes", page_size=5000).json()["results"]) == 200


def _graphs(number: int) -> None:
    for _ in range(number):
        NodeFactory.create(graph=GraphFactory.create())


def _jobs(number: int) -> None:
    for _ in range(number):
        AttemptFactory.create()


def _requests(number: int) -> None:
    for _ in range(number):
        ClaimFactory.create(request=RequestFactory.create(stopped_by=RequestFactory.create(granted=True)))


def _entries(number: int) -> None:
    for _ in range(number):
        CheckFactory.create()


@pytest.mark.parametrize(
    ("path", "make"),
    [
        ("projects", lambda number: ProjectFactory.create_batch(number)),
        ("graphs", _graphs),
        ("nodes", lambda number: NodeFactory.create_batch(number)),
        ("jobs", _jobs),
        ("attempts", _jobs),
        ("leases", lambda number: LeaseFactory.create_batch(number)),
        ("lease-requests", _requests),
        ("queue-entries", _entries),
        ("events", lambda number: EventFactory.create_batch(number)),
        ("attention-items", lambda number: AttentionItemFactory.create_batch(number)),
    ],
)
def test_a_long_list_costs_as_many_queries_as_a_short_one(api: Api, path: str, make: Callable[[int], object]) -> None:
    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert api(path, page_size=200).status_code == 200
        return len(queries)

    make(3)
    short = cost()
    make(27)

    assert cost() == short <= 6


# --- problems -------------------------------------------------------------------------------------------------------


def test_what_does_not_exist_is_a_problem(api: Api) -> None:
    unknown_row, unknown_address = api("projects/999999"), api("nothing/here")

    for response in (unknown_row, unknown_address):
        assert response.status_code == response.json()["status"] == 404
        assert response.headers["Content-Type"] == "application/problem+json"
        assert response.json()["code"] == "not_found"
        assert response.json()["type"] == "urn:forge:problem:not_found"


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({"sate": "failed"}, "sate"),
        ({"state": "broken"}, "state"),
        ({"graph": "seven"}, "graph"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused_by_name(api: Api, query: dict[str, str], parameter: str) -> None:
    response = api("nodes", **query)

    assert response.status_code == 400
    assert response.json()["code"] == "invalid_input"
    assert response.json()["parameter"] == parameter


def _all_errors(family: type[ForgeError] = ForgeError) -> list[type[ForgeError]]:
    return [family, *(error for child in family.__subclasses__() for error in _all_errors(child))]


@pytest.mark.parametrize("error", _all_errors(), ids=lambda error: error.__name__)
def test_every_error_of_the_family_is_a_problem_with_its_code_and_its_facts(error: type[ForgeError]) -> None:
    raised = ForgeError.__new__(error)
    ForgeError.__init__(raised, "What happened.", expires_at="noon", status="its own")

    response = problems.exception_handler(raised, {"request": HttpRequestFactory().get("/api/v1/x")})

    assert response is not None
    assert response.status_code == error.http_status
    assert response.data == {
        "type": f"urn:forge:problem:{error.code}",
        "title": response.data["title"],
        "status": error.http_status,
        "code": error.code,
        "detail": "What happened.",
        "instance": "/api/v1/x",
        "expiresAt": "noon",
    }
    assert response.content_type == "application/problem+json"


def test_a_bug_of_ours_is_not_explained_to_the_caller() -> None:
    assert problems.exception_handler(RuntimeError("/etc/secret"), {"request": HttpRequestFactory().get("/")}) is None

    answer = problems.server_error(HttpRequestFactory().get("/api/v1/x"))

    assert answer.status_code == 500
    assert answer.headers["Content-Type"] == "application/problem+json"


# --- the schema -----------------------------------------------------------------------------------------------------


def test_the_schema_validates_without_a_warning() -> None:
    call_command("spectacular", validate=True, fail_on_warn=True, stdout=StringIO(), stderr=StringIO())


def test_the_schema_is_served_and_describes_every_address(api: Api) -> None:

    response = api("schema/")
    schema = yaml.safe_load(response.content)

    assert response.status_code == 200
    assert {"/api/v1/nodes/{id}", "/api/v1/attempts/{id}/output", "/api/v1/events/stream"} <= schema["paths"].keys()
    operation = schema["paths"]["/api/v1/nodes"]["get"]
    assert {"graph", "state", "cursor"} <= {parameter["name"] for parameter in operation["parameters"]}
    assert "application/problem+json" in operation["responses"]["default"]["content"]
    assert {"bearer": []} in operation["security"]
