"""Small pieces every page uses: states, times, progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from forge_site.looks import TONES, Look, look
from forge_site.pictures import short

register = template.Library()


@register.inclusion_tag("forge/part/state.html")
def state(kind: str, value: str) -> dict[str, Look]:
    """Icon, word and colour of a state."""
    return {"look": look(kind, value)}


@register.simple_tag
def icon(name: str) -> SafeString:
    return format_html('<svg class="icon" aria-hidden="true"><use href="#i-{}"></use></svg>', name)


@register.simple_tag
def when(at: datetime | None, empty: str = "") -> str | SafeString:
    """How long ago, with the exact time on hover; the browser keeps it current and shows the viewer's own zone."""
    if at is None:
        return empty
    at = at.astimezone(UTC)
    ago = datetime.now(UTC) - at
    words = "just now" if ago.total_seconds() < 5 else f"{short(ago).split(' ', 2)[0]} {short(ago).split(' ')[1]} ago"
    exact = at.strftime("%d %b %Y, %H:%M:%S UTC")
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(timespec="seconds"), exact, words)


@register.simple_tag
def took(start: datetime | None, end: datetime | None, now: datetime) -> str:
    return short((end or now) - start) if start else ""


@register.inclusion_tag("forge/part/progress.html")
def progress(counts: Mapping[str, int]) -> dict[str, Any]:
    """How far a graph is: one bar, a part per tone, and the same in words."""
    total = sum(counts.values())
    by_tone: Counter[str] = Counter()
    for value, number in counts.items():
        by_tone[look("node", value).tone] += number
    parts, x = [], 0.0
    for tone in TONES:
        if number := by_tone[tone]:
            width = 100 * number / total
            parts.append({"tone": tone, "x": f"{x:.2f}", "width": f"{width:.2f}"})
            x += width
    words = [{"look": look("node", v), "state": v, "number": n} for v, n in sorted(counts.items(), key=_by_tone) if n]
    done = by_tone["ok"]
    return {
        "parts": parts,
        "words": words,
        "done": done,
        "total": total,
        "percent": 100 * done // total if total else 0,
    }


def _by_tone(item: tuple[str, int]) -> tuple[int, str]:
    return TONES.index(look("node", item[0]).tone), item[0]


@register.filter
def sha(commit: str) -> str:
    """An object id as people quote it."""
    return commit[:10]


@register.filter
def branch(ref: str) -> str:
    return ref.removeprefix("refs/heads/")
