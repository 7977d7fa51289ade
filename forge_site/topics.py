"""What a reader of the journal may ask for, and which events that means. One definition for feed, streams and lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from django.db.models import Q

KINDS = ("*", "project", "graph")


@dataclass(frozen=True)
class Topic:
    """``*`` (everything), ``project:7`` or ``graph:7``."""

    kind: str
    id: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises: ValueError"""
        kind, colon, number = text.strip().partition(":")
        if kind not in KINDS or (kind == "*") == bool(colon) or (colon and not number.isdecimal()):
            raise ValueError(f"{text!r} is no topic")
        return cls(kind, int(number) if colon else None)

    def __str__(self) -> str:
        return self.kind if self.id is None else f"{self.kind}:{self.id}"

    def condition(self) -> Q:
        """The same events as rows. An event of a node carries its graph in ``data.graph``."""
        match self.kind:
            case "project":
                return Q(project=self.id)
            case "graph":
                return Q(subject=str(self)) | Q(data__graph=self.id)
        return Q(pk__gte=0)


EVERYTHING = Topic("*")


def parse_topics(text: str) -> frozenset[Topic]:
    """Raises: ValueError"""
    return frozenset(Topic.parse(part) for part in text.split(","))
