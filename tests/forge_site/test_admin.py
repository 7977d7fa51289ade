"""The admin shows everything and changes nothing."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.contrib import admin
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from core.admin import ReadOnlyAdmin
from graphs.states import NodeState
from tests.factories import AccessTokenFactory, AttemptFactory, JobFactory, NodeFactory
from tests.forge_site.test_factories import FACTORIES, OUR_APPS

pytestmark = pytest.mark.django_db

MODELS = [model for app in OUR_APPS for model in apps.get_app_config(app).get_models()]

OURS = [factory for factory in FACTORIES if factory._meta.model in MODELS]


def address(model: type[Model], page: str, *args: object) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_model_can_be_looked_at_and_not_touched(admin_client: Client, model: type[Model]) -> None:
    row = next(factory for factory in FACTORIES if factory._meta.model is model).create()

    assert isinstance(admin.site._registry[model], ReadOnlyAdmin)
    assert admin_client.get(address(model, "changelist"), {"q": "node:1"}).status_code == 200
    assert admin_client.get(address(model, "change", row.pk)).status_code == 200
    assert admin_client.get(address(model, "add")).status_code == 403
    assert admin_client.post(address(model, "add"), {}).status_code == 403
    assert admin_client.post(address(model, "delete", row.pk), {"post": "yes"}).status_code == 403
    assert type(row)._default_manager.filter(pk=row.pk).exists()


@pytest.mark.req("PL-03")
def test_a_state_cannot_be_edited_by_a_form(admin_client: Client) -> None:
    node = NodeFactory.create(state=NodeState.FAILED)
    form = {"state": "accepted", "version": "7", "key": node.key, "graph": node.graph_id, "project": node.project_id}

    response = admin_client.post(address(type(node), "change", node.pk), form)

    node.refresh_from_db()
    assert response.status_code == 403
    assert (node.state, node.version) == (NodeState.FAILED, 0)


def test_an_action_cannot_delete_either(admin_client: Client) -> None:
    node = NodeFactory.create()

    admin_client.post(
        address(type(node), "changelist"), {"action": "delete_selected", "_selected_action": node.pk, "post": "yes"}
    )

    node.refresh_from_db()  # raises if it were gone


def test_secrets_are_not_shown(admin_client: Client) -> None:
    job = JobFactory.create(env={"API_KEY": "hunter2"}, stdin="the secret plan")
    attempt = AttemptFactory.create(job=job, key_digest="d" * 64)
    token = AccessTokenFactory.create()

    for row in (job, attempt, token):
        page = admin_client.get(address(type(row), "change", row.pk)).content.decode()
        for secret in ("hunter2", "the secret plan", "d" * 64, token.digest):
            assert secret not in page


@pytest.mark.parametrize("factory", OURS, ids=lambda factory: factory.__name__)
def test_a_long_list_costs_as_many_queries_as_a_short_one(admin_client: Client, factory: type) -> None:
    model = factory._meta.model  # type: ignore[attr-defined]

    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            admin_client.get(address(model, "changelist"))
        return len(queries)

    factory.create_batch(2)  # type: ignore[attr-defined]
    short = cost()
    factory.create_batch(10)  # type: ignore[attr-defined]

    assert cost() <= short


def test_only_staff_may_look(client: Client) -> None:
    assert client.get("/admin/core/event/").status_code == 302
