"""What an attempt has written, read from its job directory on this host, a bounded piece at a time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from core.home import home
from jobs.models import Attempt
from jobs.states import ATTEMPT_ENDED

STREAMS = ("stdout", "stderr")
LIMIT = 256 * 1024  # bytes in one answer


@dataclass(frozen=True)
class Piece:
    """``content`` stands at ``offset + dropped`` of the stream."""

    stream: str
    offset: int
    content: bytes
    dropped: int
    size: int
    ended: bool

    @property
    def next_offset(self) -> int:
        return self.offset + self.dropped + len(self.content)

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")

    def as_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "offset": self.offset,
            "nextOffset": self.next_offset,
            "size": self.size,
            "dropped": self.dropped,
            "ended": self.ended,
            "text": self.text,
        }


def read(attempt: Attempt, *, stream: str, offset: int = 0, limit: int = LIMIT) -> Piece:
    """From ``offset`` on at most ``limit`` bytes; a negative offset counts from the end. No file yet is no output yet.

    The cut never splits a UTF-8 character while more may follow, so pieces can be put together as text.
    """
    limit = max(0, min(limit, LIMIT))
    ended = attempt.state in ATTEMPT_ENDED  # asked before the file is read: what it wrote last is then in it
    try:
        fd = os.open(home().jobs / str(attempt.pk) / stream, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return Piece(stream, max(offset, 0), b"", 0, 0, ended)
    try:
        size = os.fstat(fd).st_size
        start = max(size + offset, 0) if offset < 0 else min(offset, size)
        content = os.pread(fd, limit, start)
    finally:
        os.close(fd)
    whole = start + len(content) >= size and ended
    return Piece(stream, start, content if whole else _whole_characters(content), 0, size, ended)


def _whole_characters(content: bytes) -> bytes:
    """Without the first bytes of a character whose rest is not there. A UTF-8 character has at most four."""
    for back in range(1, min(4, len(content)) + 1):
        lead = content[-back]
        if lead & 0b1100_0000 == 0b1000_0000:
            continue  # a continuation byte: its lead is further in front
        needed = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        return content[:-back] if needed > back else content
    return content
