"""Signed-in clients, and rows that a flush of the test database takes away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from core import journal
from core.models import Project
from core.uow import unit_of_work
from forge_site.api.views import SEQUENCE_HEADER
from tests.factories import AccessTokenFactory, AdminUserFactory, EventCounterFactory, UserFactory
from tests.forge_site.webserver import Web, session_of, start

Api = Callable[..., Any]


@pytest.fixture
def client(db: None) -> Client:
    """A person's browser, signed in."""
    client = Client()
    client.force_login(UserFactory.create())
    EventCounterFactory.create()
    return client


@pytest.fixture
def admin_client(db: None) -> Client:
    client = Client()
    client.force_login(AdminUserFactory.create())
    EventCounterFactory.create()
    return client


@pytest.fixture
def api(db: None) -> Api:
    """``api("graphs", state="active")`` as a program with a bearer token."""
    EventCounterFactory.create()
    AccessTokenFactory.create(raw="of-the-tests")
    client = Client(headers={"authorization": "Bearer of-the-tests"})

    def get(path: str, *, headers: dict[str, str] | None = None, **query: Any) -> Any:
        return client.get(f"/api/v1/{path}", query, headers=headers)

    get.client = client  # type: ignore[attr-defined]
    return get


@unit_of_work
def happen(
    *, kind: str = "node.running", subject: str = "node:1", project: Project | None = None, times: int = 1, **data: Any
) -> None:
    """Something happens: events, written as every verb writes them."""
    for _ in range(times):
        journal.record(kind, subject=subject, project_id=project.pk if project else None, **data)


def sequence_of(response: Any) -> int:
    return int(response.headers[SEQUENCE_HEADER])


@pytest.fixture(scope="session")
def _web_of_the_session(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    web = start(tmp_path_factory.mktemp("web"))
    yield web
    web.stop()


@pytest.fixture
def web(transactional_db: None, _web_of_the_session: Web, settings: Settings) -> Web:
    """The web process; this test's wake-ups go to its home."""
    settings.FORGE_HOME = _web_of_the_session.home
    EventCounterFactory.create()
    return _web_of_the_session


@pytest.fixture
def session(transactional_db: None) -> str:
    """The cookie of somebody who is signed in."""
    return session_of(UserFactory.create())
