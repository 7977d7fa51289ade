"""Every model has a factory that makes a valid row out of nothing."""

import pytest
from django.apps import apps
from factory.django import DjangoModelFactory

from tests import factories

FACTORIES = [
    value
    for value in vars(factories).values()
    if isinstance(value, type) and issubclass(value, DjangoModelFactory) and value is not DjangoModelFactory
]
OUR_APPS = ("core", "leases", "workspaces", "jobs", "integration", "graphs", "campaigns", "recovery")


@pytest.mark.django_db
@pytest.mark.parametrize("factory", FACTORIES, ids=lambda f: f.__name__)
def test_a_factory_makes_its_row_alone_and_twice(factory: type[DjangoModelFactory[object]]) -> None:
    first, second = factory.create(), factory.create()

    assert type(first) is type(second)


def test_every_model_of_ours_has_a_factory() -> None:
    made = {factory._meta.model for factory in FACTORIES}

    assert {model for app in OUR_APPS for model in apps.get_app_config(app).get_models()} <= made
