"""``/health`` and ``/ready``: plain ASGI beside Django, so neither waits for a request thread, a login or a session."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from django.db import Error, connection
from django.db.migrations.executor import MigrationExecutor

from forge_site.threads import in_thread

READY_WITHIN_S = 2.0

_migrated = False  # migrations are only ever added by a new release, which is a new process


def missing() -> list[str]:
    """What keeps this process from doing its work, as reason codes; empty: ready. Reads the database."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        return [] if _is_migrated() else ["migrations_missing"]
    except Error:
        return ["database_unreachable"]


def _is_migrated() -> bool:
    global _migrated
    if not _migrated:
        executor = MigrationExecutor(connection)
        _migrated = not executor.migration_plan(executor.loader.graph.leaf_nodes())
    return _migrated


async def health(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """200: the event loop answers. Says nothing about anything else, so nothing else makes it fail."""
    await _answer(send, 200, {"status": "alive"})


async def ready(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """200 or 503 with reason codes, within a fixed time whatever the database does."""
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            reasons = await in_thread(missing)
    except TimeoutError:
        reasons = ["database_slow"]
    await _answer(send, 503 if reasons else 200, {"ready": not reasons, "reasons": reasons})


async def _answer(send: Any, status: int, body: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})
