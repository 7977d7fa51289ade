"""Errors of the REST API as problem details (RFC 9457): ``application/problem+json`` with a stable code.

Everything a caller may have to handle arrives here as a ``ForgeError`` or as an exception of DRF; what else is raised
is our bug and becomes a 500 that says nothing about the inside.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views import defaults
from rest_framework import exceptions
from rest_framework.response import Response

from core.errors import ForgeError

MEDIA_TYPE = "application/problem+json"
RESERVED = frozenset({"type", "title", "status", "detail", "instance", "code"})


def camel(name: str) -> str:
    """``expires_at`` as JSON spells it here: ``expiresAt``."""
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def problem(
    status: int, code: str, detail: str, *, instance: str, data: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One problem document. ``data`` are the facts behind the sentence; they never replace a member of the RFC."""
    facts = {camel(key): value for key, value in (data or {}).items()}
    return {key: value for key, value in facts.items() if key not in RESERVED} | {
        "type": f"urn:forge:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
        "instance": instance,
    }


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's hook. None: not ours to explain, Django answers 500."""
    described = _describe(error)
    if described is None:
        return None
    status, code, detail, data = described
    body = problem(status, code, detail, instance=context["request"].path, data=data)
    return Response(body, status=status, headers=_headers(error), content_type=MEDIA_TYPE)


def _describe(error: Exception) -> tuple[int, str, str, dict[str, Any]] | None:
    match error:
        case ForgeError():
            return error.http_status, error.code, str(error), error.data
        case exceptions.ValidationError():
            return 400, "invalid_input", "The request is not valid.", {"errors": error.detail}
        case exceptions.APIException():
            return error.status_code, str(error.get_codes()), str(error.detail), {}
        case Http404():
            return 404, "not_found", "What was named does not exist.", {}
        case PermissionDenied():
            return 403, "permission_denied", "You may not do this.", {}
        case OperationalError() | InterfaceError():
            return 503, "database_unavailable", "The database does not answer. Nothing was changed; try again.", {}
    return None


def _headers(error: Exception) -> dict[str, str]:
    headers = {}
    if challenge := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    if (wait := getattr(error, "wait", None)) is not None:
        headers["Retry-After"] = str(int(wait) + 1)
    return headers


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """handler404: programs get a problem, people the page."""
    if request.path.startswith("/api/"):
        body = problem(404, "not_found", "There is nothing at this address.", instance=request.path)
        return JsonResponse(body, status=404, content_type=MEDIA_TYPE)
    return defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """handler500: the cause is in the log, not in the answer."""
    if request.path.startswith("/api/"):
        body = problem(500, "internal_error", "Something broke on our side; the log says what.", instance=request.path)
        return JsonResponse(body, status=500, content_type=MEDIA_TYPE)
    return defaults.server_error(request)
