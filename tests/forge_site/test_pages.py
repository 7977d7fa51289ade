"""The dashboard's pages as they are without JavaScript."""

from __future__ import annotations

import contextlib
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from core.models import AccessToken
from forge_site import pages
from forge_site.pages import printable
from graphs.models import Graph
from graphs.states import GraphState, NodeState
from integration.states import EntryState
from jobs.states import AttemptState
from leases.states import RequestState
from tests.factories import (
    NOON,
    PASSWORD,
    AccessTokenFactory,
    AttemptFactory,
    AttentionItemFactory,
    CandidateFactory,
    CheckFactory,
    CheckoutFactory,
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
    UserFactory,
)

pytestmark = pytest.mark.django_db

SCRIPT = "<script>alert(1)</script>"


def text(response: Any) -> str:
    """What a person reads: the page without markup, spaces joined."""
    assert response.status_code == 200
    body = re.sub(r"<(script|head)\b.*?</\1>", "", response.content.decode(), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


@pytest.fixture
def graph() -> Graph:
    graph: Graph = GraphFactory.create(project__name="shop", name="checkout")
    return graph


def attempt_of(node: Any, **facts: Any) -> Any:
    return AttemptFactory.create(**{"job__owner": node.subject, "job__project": node.project, "number": 1, **facts})


# --- who sees it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/projects/shop/", "/graphs/1/", "/graphs/1/nodes/a/"])
def test_a_stranger_is_asked_to_sign_in(path: str) -> None:
    response = Client().get(path)

    assert response.status_code == 302
    assert response.headers["Location"] == f"/login/?next={path}"


def test_a_person_signs_in_and_out() -> None:
    UserFactory.create(username="anna")
    client = Client()

    assert client.post("/login/", {"username": "anna", "password": PASSWORD, "next": "/"}).headers["Location"] == "/"
    assert client.get("/").status_code == 200
    assert client.post("/logout/").status_code == 302
    assert client.get("/").status_code == 302


def test_a_first_login_link_is_worth_one_session() -> None:
    token = AccessTokenFactory.create(raw="once", single_use=True, expires_at=timezone.now() + timedelta(minutes=5))
    first, second = Client(), Client()

    entered = first.get("/enter/once")

    assert entered.headers["Location"] == "/"
    assert "no-store" in entered.headers["Cache-Control"]
    assert first.get("/").context["user"] == token.owner
    assert second.get("/enter/once").status_code == 410
    assert not AccessToken.objects.exists()
    assert first.get("/enter/once").headers["Location"] == "/"  # who is in already is not turned away


@pytest.mark.parametrize(
    "refused",
    [{"expires_at": NOON}, {"single_use": False}, {"raw": "another"}, {"owner__is_active": False}],
    ids=["expired", "a bearer token", "unknown", "owner deactivated"],
)
def test_a_link_that_does_not_count_lets_nobody_in(refused: dict[str, Any]) -> None:
    AccessTokenFactory.create(**{"raw": "once", "single_use": True, **refused})
    client = Client()

    assert client.get("/enter/once").status_code == 410
    assert client.get("/").status_code == 302


# --- what it says ----------------------------------------------------------------------------------------------------


@pytest.mark.req("PL-06")
def test_the_overview_shows_attention_first_then_progress_and_what_runs(client: Client, graph: Graph) -> None:
    NodeFactory.create(graph=graph, state=NodeState.ACCEPTED)
    running = NodeFactory.create(graph=graph, key="payment", state=NodeState.RUNNING)
    attempt_of(running)
    AttentionItemFactory.create(message="The worker is gone.", project=graph.project)
    AttentionItemFactory.create(message="Long settled.", resolved_at=NOON)

    page = text(client.get("/"))

    assert (
        page.index("The worker is gone.") < page.index("checkout") < page.index("Running now") < page.index("Projects")
    )
    assert "1 of 2 done" in page
    assert "payment" in page[page.index("Running now") :]
    assert "Long settled." not in page


@pytest.mark.req("PL-06")
def test_a_graph_is_a_picture_and_the_same_as_a_table(client: Client, graph: Graph) -> None:
    first = NodeFactory.create(graph=graph, key="schema", state=NodeState.ACCEPTED, position=0)
    second = NodeFactory.create(graph=graph, key="cart", state=NodeState.RUNNING, position=1)
    third = NodeFactory.create(graph=graph, key="ship", position=2, unmet_inputs=1)
    EdgeFactory.create(source=first, target=second)
    EdgeFactory.create(source=second, target=third)
    for _ in range(3):  # each revision is a job of its own; people count on
        attempt_of(second)

    response = client.get(f"/graphs/{graph.pk}/")
    body = response.content.decode()
    picture = body[body.index('<svg class="graph"') : body.index("</section>", body.index('<svg class="graph"'))]

    links = re.findall(r'<a href="([^"]+)" id="n(\d+)" class="node tone-(\w+)".*?aria-label="([^"]+)"', picture)
    assert links == [
        (f"/graphs/{graph.pk}/nodes/schema/", str(first.pk), "ok", "schema, accepted"),
        (f"/graphs/{graph.pk}/nodes/cart/", str(second.pk), "active", "cart, running"),
        (f"/graphs/{graph.pk}/nodes/ship/", str(third.pk), "idle", "ship, pending"),
    ]
    assert picture.count("<path") == 2
    assert picture.count('class="met"') == 1
    rows = re.findall(r'<tr data-key="r\d+".*?</tr>', body, flags=re.DOTALL)
    assert re.sub(r"<[^>]+>", " ", rows[1]).split()[-1] == "3"
    assert re.sub(r"<[^>]+>", " ", rows[2]).split() == ["ship", "pending", "cart"]


def test_a_graph_too_large_for_a_picture_is_a_list(
    client: Client, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PICTURE_LIMIT", 2)
    NodeFactory.create_batch(3, graph=graph)

    body = client.get(f"/graphs/{graph.pk}/").content.decode()

    assert '<svg class="graph"' not in body
    assert body.count("<tr data-key") == 3


def test_a_superseded_generation_is_not_drawn(client: Client, graph: Graph) -> None:
    NodeFactory.create(graph=graph, key="a", generation=1, state=NodeState.ACCEPTED)
    NodeFactory.create(graph=graph, key="a", generation=2)

    assert client.get(f"/graphs/{graph.pk}/").content.decode().count('class="node ') == 1


def test_a_node_in_wait_names_who_holds_what_it_needs(client: Client, graph: Graph) -> None:
    holder = NodeFactory.create(graph=graph, key="holder", state=NodeState.RUNNING)
    held = attempt_of(holder)
    grant = RequestFactory.create(granted=True, holder=held.subject)
    waiting = NodeFactory.create(graph=graph, key="waiting", state=NodeState.QUEUED)
    attempt_of(waiting, state=AttemptState.WAITING, started_at=None, request=RequestFactory.create(stopped_by=grant))
    crowded = NodeFactory.create(graph=graph, key="crowded", state=NodeState.QUEUED)
    line = LineFactory.create(short_of=ResourceFactory.create(key="slots/host0", capacity=1))
    request = RequestFactory.create(line=line, state=RequestState.WAITING)
    attempt_of(crowded, state=AttemptState.WAITING, started_at=None, request=request)

    page = text(client.get(f"/graphs/{graph.pk}/"))

    assert "held by holder" in page
    assert "no free unit of slots/host0" in page


def test_the_queue_shows_place_checks_and_node(client: Client, graph: Graph) -> None:
    node = NodeFactory.create(graph=graph, key="invoice", state=NodeState.VALIDATING)
    attempt = attempt_of(node, state=AttemptState.SUCCEEDED, ended_at=NOON)
    candidate = CandidateFactory.create(attempt=attempt, title="Add invoices")
    entry = EntryFactory.create(candidate=candidate, state=EntryState.CHECKING, graph_revision=graph.revision)
    CheckFactory.create(entry=entry, name="lint", state="passed")

    page = text(client.get(f"/graphs/{graph.pk}/"))
    queue = page[page.index("In line to land", page.index("Nodes")) :]

    assert "1 invoice Add invoices checking lint passed" in queue
    assert "its checks run" in page


def test_the_timeline_says_how_many_ran_at_once(client: Client, graph: Graph) -> None:
    for start, end in [(0, 30), (10, 40), (30, 50)]:
        node = NodeFactory.create(graph=graph, state=NodeState.ACCEPTED)
        begin = NOON + timedelta(seconds=start)
        ended = NOON + timedelta(seconds=end)
        attempt_of(node, state=AttemptState.SUCCEEDED, started_at=begin, ended_at=ended)

    assert "3 attempts, at most 2 at once." in text(client.get(f"/graphs/{graph.pk}/"))


def test_a_node_page_tells_its_tries_fence_leases_and_candidate(client: Client, graph: Graph) -> None:
    node = NodeFactory.create(graph=graph, key="cart", state=NodeState.VALIDATING)
    job = JobFactory.create(owner=node.subject, project=node.project)
    AttemptFactory.create(job=job, number=1, state=AttemptState.FAILED, exit_code=3, cause="exited", ended_at=NOON)
    request = RequestFactory.create(granted=True, token=777)
    newest = AttemptFactory.create(job=job, number=2, request=request, fence_token=777, state=AttemptState.SUCCEEDED)
    CheckoutFactory.create(owner=newest.subject, path="/checkouts/9", branch_ref="refs/heads/forge/cart/9")
    LeaseFactory.create(request=request, resource__key="host0/srv/cart", token=41)
    entry = EntryFactory.create(candidate__attempt=newest, candidate__title="Add the cart")
    CheckFactory.create(entry=entry, name="tests", state="failed")

    page = text(client.get(f"/graphs/{graph.pk}/nodes/cart/"))

    assert page.index("Attempt 2") < page.index("Attempt 1 failed")
    assert f"attempt {newest.pk} · grant {request.pk} · token 777" in page
    assert "Exit code 3" in page
    assert "/checkouts/9" in page
    assert "host0/srv/cart" in page
    assert "Add the cart sealed in line" in page
    assert "tests failed" in page


def test_output_is_text_whatever_it_contains(client: Client, graph: Graph, settings: Any, tmp_path: Path) -> None:
    settings.FORGE_HOME = tmp_path
    node = NodeFactory.create(graph=graph, key="a", title=SCRIPT, outcome={"message": SCRIPT}, state=NodeState.FAILED)
    attempt = attempt_of(node)
    directory = tmp_path / "jobs" / str(attempt.pk)
    directory.mkdir(parents=True)
    (directory / "stdout").write_bytes(f"\x1b[31mred\x1b[0m {SCRIPT}\n".encode())

    for path in (f"/graphs/{graph.pk}/nodes/a/", f"/graphs/{graph.pk}/"):
        body = client.get(path).content.decode()
        assert SCRIPT not in body
        assert "&lt;script&gt;" in body
    log = (
        client.get(f"/graphs/{graph.pk}/nodes/a/")
        .content.decode()
        .partition('<pre class="log"')[2]
        .partition("</pre>")[0]
    )
    assert "\x1b" not in log
    assert "red &lt;script&gt;" in log


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("10 %\r50 %\r100 %\nnext", "100 %\nnext"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("a\x00b\x08c\x1bMd", "abcd"),
        ("tab\tstays", "tab\tstays"),
    ],
)
def test_what_a_terminal_would_do_is_taken_out(raw: str, shown: str) -> None:
    assert printable(raw) == shown


@pytest.mark.parametrize("path", ["/projects/nothing/", "/graphs/99999/", "/graphs/99999/nodes/a/", "/nowhere/"])
def test_what_does_not_exist_is_said_kindly(client: Client, path: str) -> None:
    response = client.get(path)

    assert response.status_code == 404
    assert b"There is nothing here" in response.content


# --- how it is delivered ---------------------------------------------------------------------------------------------


def every_page(client: Client, graph: Graph) -> dict[str, str]:
    NodeFactory.create(graph=graph, key="a", state=NodeState.RUNNING)
    paths = ["/", "/projects/shop/", f"/graphs/{graph.pk}/", f"/graphs/{graph.pk}/nodes/a/"]
    return {path: client.get(path).content.decode() for path in [*paths, "/nowhere/"]} | {
        "/login/": Client().get("/login/").content.decode()
    }


def test_no_page_needs_anything_its_policy_forbids(client: Client, graph: Graph) -> None:
    """No inline script or style, no handler attributes, nothing from elsewhere."""
    for path, body in every_page(client, graph).items():
        scripts = re.findall(r"<script\b([^>]*)>", body)
        assert all("src=" in tag or 'type="application/json"' in tag for tag in scripts), path
        assert not re.search(r"<style\b|\sstyle=|\son\w+=", body), path
        assert not re.search(r'(?:src|href)="(?:https?:)?//', body), path


def test_every_page_has_the_policy(client: Client) -> None:
    policy = client.get("/").headers["Content-Security-Policy"]

    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_every_reference_to_a_static_file_is_served(client: Client, graph: Graph) -> None:
    static = Path(django_settings.BASE_DIR) / "forge_site" / "static"
    for body in every_page(client, graph).values():
        for name in re.findall(r'"/static/([^"]+)"', body):
            assert (static / name).is_file(), name
    for module in (static / "forge").glob("*.js"):
        for name in re.findall(r'from "\./([^"]+)"', module.read_text()):
            assert (module.parent / name).is_file(), name
    with contextlib.closing(client.get("/static/forge/forge.css")) as served:
        assert served.status_code == 200


def test_every_icon_that_is_used_is_drawn(client: Client, graph: Graph) -> None:
    from forge_site.looks import LOOKS, TONES

    body = client.get("/").content.decode()
    used = {look.icon for looks in LOOKS.values() for look in looks.values()}

    assert all(f'id="i-{name}"' in body for name in used)
    css = (Path(django_settings.BASE_DIR) / "forge_site/static/forge/forge.css").read_text()
    assert {look.tone for looks in LOOKS.values() for look in looks.values()} <= set(TONES)
    assert all(f".tone-{tone} {{" in css for tone in TONES)


def test_every_state_has_a_look() -> None:
    from forge_site.looks import LOOKS

    for states, looks in LOOKS.items():
        assert set(states) == set(looks)


@pytest.mark.req("PL-06")
def test_a_page_names_the_sequence_it_was_true_at(client: Client, graph: Graph) -> None:
    event = EventFactory.create()

    response = client.get(f"/graphs/{graph.pk}/")

    assert f'data-topic="graph:{graph.pk}" data-sequence="{event.seq}"' in response.content.decode()
    assert response.headers["Forge-Sequence"] == str(event.seq)


@pytest.mark.parametrize("path", ["/", "/projects/shop/", "/graphs/{}/"])
def test_a_full_page_costs_as_many_queries_as_an_empty_one(client: Client, graph: Graph, path: str) -> None:
    def fill(number: int) -> None:
        for _ in range(number):
            node = NodeFactory.create(graph=graph, state=NodeState.VALIDATING, unmet_inputs=0)
            attempt = attempt_of(node, state=AttemptState.RUNNING)
            candidate = CandidateFactory.create(attempt=attempt)
            CheckFactory.create(entry__candidate=candidate, entry__graph_revision=graph.revision)
            waits = NodeFactory.create(graph=graph, unmet_inputs=1)
            EdgeFactory.create(source=node, target=waits)
            AttentionItemFactory.create(project=graph.project)
            GraphFactory.create(project=graph.project, state=GraphState.COMPLETED, ended_at=NOON)

    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert client.get(path.format(graph.pk)).status_code == 200
        return len(queries)

    fill(3)
    short = cost()
    fill(12)

    assert cost() == short <= 25


def test_a_theme_chosen_is_kept(client: Client) -> None:
    client.cookies["theme"] = "dark"
    assert '<html lang="en" data-theme="dark">' in client.get("/").content.decode()

    client.cookies["theme"] = '"><script>'
    assert '<html lang="en">' in client.get("/").content.decode()


def test_projects_without_a_repository_are_shown_too(client: Client) -> None:
    ProjectFactory.create(name="notes", target_ref="", git_dir="", frozen_reason="by hand")

    assert "plain directory" in text(client.get("/"))
    assert "Frozen, nothing lands: by hand" in text(client.get("/projects/notes/"))


def test_a_deactivated_person_sees_nothing_any_more(client: Client) -> None:
    User.objects.update(is_active=False)

    assert client.get("/").status_code == 302
