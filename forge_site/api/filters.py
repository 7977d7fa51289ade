"""Query parameters of the lists, declared by the view as data: filter, schema and error message read the same table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.db.models import Q, QuerySet
from rest_framework.filters import BaseFilterBackend
from rest_framework.request import Request
from rest_framework.views import APIView

from core.errors import InvalidInput

PAGING = frozenset({"cursor", "page_size"})


@dataclass(frozen=True)
class Filter:
    """One query parameter.

    parse:     text to value, or ValueError
    condition: value to a condition on the rows
    """

    help: str
    parse: Callable[[str], Any]
    condition: Callable[[Any], Q]
    schema: dict[str, Any]


def by_id(field: str, what: str) -> Filter:
    return Filter(f"only those of this {what}", int, lambda value: Q(**{field: value}), {"type": "integer"})


def by_text(field: str, what: str) -> Filter:
    return Filter(f"only this {what}", str, lambda value: Q(**{field: value}), {"type": "string"})


def by_state(states: type[StrEnum]) -> Filter:
    """One state, or several with commas between them."""

    def parse(text: str) -> list[str]:
        return [states(word).value for word in text.split(",")]

    example = ", ".join(f"`{state}`" for state in states)
    return Filter(
        f"states, separated by commas: {example}", parse, lambda value: Q(state__in=value), {"type": "string"}
    )


def by_flag(what: str, when_true: Q) -> Filter:
    words = {"true": True, "false": False}

    def parse(text: str) -> bool:
        if text not in words:
            raise ValueError(text)
        return words[text]

    return Filter(what, parse, lambda value: when_true if value else ~when_true, {"type": "boolean"})


class QueryFilters(BaseFilterBackend):
    """Applies ``view.filters``. An unknown parameter is refused: a typo must not silently list everything."""

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: APIView) -> QuerySet[Any]:
        declared: dict[str, Filter] = getattr(view, "filters", {})
        refuse_unknown(request, declared)
        for name in request.query_params.keys() & declared.keys():
            queryset = queryset.filter(_condition(name, declared[name], request.query_params.get(name, "")))
        return queryset

    def get_schema_operation_parameters(self, view: APIView) -> list[dict[str, Any]]:
        """Read by drf-spectacular."""
        declared: dict[str, Filter] = getattr(view, "filters", {})
        return [
            {"name": name, "in": "query", "required": False, "description": filter_.help, "schema": filter_.schema}
            for name, filter_ in declared.items()
        ]


def refuse_unknown(request: Request, known: Iterable[str]) -> None:
    if unknown := sorted(set(request.query_params) - set(known) - PAGING):
        raise InvalidInput(
            f"There is no parameter {unknown[0]!r} here.", parameter=unknown[0], known=sorted({*known, *PAGING})
        )


def _condition(name: str, filter_: Filter, text: str) -> Q:
    try:
        return filter_.condition(filter_.parse(text))
    except ValueError:
        raise InvalidInput(f"{text!r} is no value for {name!r}: {filter_.help}.", parameter=name) from None
