"""Locks and writes on what every app stands on, inside somebody's transaction."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import connection

from core import journal, rows
from core.models import AttentionItem, CancelIntent, Host, Project
from core.transitions import require_transaction


def lock_project(project_id: int) -> Project:
    """The scope lock of everything that changes a project's rows, with its home host loaded. First in the lock order."""
    require_transaction()
    # NO KEY: rows that refer to the project are written without its lock (a grant), and must not wait for it at COMMIT.
    tail = "FOR NO KEY UPDATE" if connection.vendor == "postgresql" else ""  # on SQLite the transaction is the lock
    found = rows.by_id(Project, [project_id], tail=tail)
    if not found:
        raise Project.DoesNotExist(f"no project {project_id}")
    project = found[project_id]
    project.home_host = rows.by_id(Host, [project.home_host_id])[project.home_host_id]
    return project


def intend_cancel(*, subject: str, project_id: int, actor: str, reason: str, now: datetime) -> bool:
    """Insert the intent; false when there already is one."""
    require_transaction()
    _, created = CancelIntent.objects.get_or_create(
        subject=subject, defaults={"project_id": project_id, "actor": actor, "reason": reason, "created_at": now}
    )
    if created:
        journal.record("cancel.intended", subject=subject, project_id=project_id, actor=actor, reason=reason)
    return created


def raise_attention(
    *,
    key: str,
    project_id: int | None,
    subject: str,
    code: str,
    message: str,
    next_action: str,
    now: datetime,
    evidence: dict[str, Any],
) -> None:
    """Open an attention item, once per semantic key while it is open."""
    require_transaction()
    _, opened = AttentionItem.objects.get_or_create(
        key=key,
        resolved_at=None,
        defaults={
            "project_id": project_id,
            "subject": subject,
            "code": code,
            "message": message[:1000],
            "next_action": next_action,
            "evidence": evidence,
            "opened_at": now,
        },
    )
    if opened:
        journal.record("attention.opened", subject=subject, project_id=project_id, code=code, message=message[:1000])


def resolve_attention(*keys: str, now: datetime) -> None:
    """What was asked for has happened."""
    require_transaction()
    for item in AttentionItem.objects.filter(key__in=keys, resolved_at=None):
        item.resolved_at = now
        item.save(update_fields=["resolved_at"])
        journal.record("attention.resolved", subject=item.subject, project_id=item.project_id, code=item.code)
