"""What drf-spectacular cannot read off the views by itself."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema

from forge_site.api.serializers import ProblemSerializer
from forge_site.problems import MEDIA_TYPE


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "forge_site.authentication.BearerAuthentication"
    name = "bearer"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer"}


class ForgeSchema(AutoSchema):
    """Adds to every operation what all of them have: the problem and the sequence header."""

    def get_operation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        operation: dict[str, Any] | None = super().get_operation(*args, **kwargs)
        if operation is None:
            return None
        for answer in operation["responses"].values():
            answer["headers"] = {"Forge-Sequence": SEQUENCE}
        reference = self.resolve_serializer(ProblemSerializer, "response").ref
        operation["responses"]["default"] = {"description": "a problem", "content": {MEDIA_TYPE: {"schema": reference}}}
        return operation


SEQUENCE = {
    "description": "sequence of the journal, read before the data of this answer",
    "schema": {"type": "integer"},
}


def add_stream(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """The event stream is plain ASGI, not a DRF view, and still part of the API."""
    result["paths"]["/api/v1/events/stream"] = {
        "get": {
            "operationId": "events_stream",
            "description": "Server-sent events: the journal, live. `id` is the sequence; event `hello` says that the "
            "past is told, event `reset` that it is too long ago: read the lists again.",
            "parameters": [
                {"name": "Last-Event-ID", "in": "header", "schema": {"type": "integer"}},
                {"name": "since", "in": "query", "schema": {"type": "integer"}},
                {"name": "topics", "in": "query", "schema": {"type": "string"}},
            ],
            "tags": ["events"],
            "security": [{"bearer": []}, {"cookieAuth": []}],
            "responses": {"200": {"description": "", "content": {"text/event-stream": {"schema": {"type": "string"}}}}},
        }
    }
    return result
