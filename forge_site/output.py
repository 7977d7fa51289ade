"""What an attempt has written, a bounded piece at a time, as text that can be put together again.

Positions are those of the stream as the command wrote it (jobs.process.output), so a follower's position stays valid
whatever was dropped between the kept beginning and the kept end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.errors import InvalidInput
from core.home import home
from jobs.models import Attempt
from jobs.process import output as kept
from jobs.states import ATTEMPT_ENDED

STREAMS: tuple[kept.Stream, ...] = ("stdout", "stderr")
LIMIT = 256 * 1024  # bytes in one answer


@dataclass(frozen=True)
class Piece:
    """``content`` stands at ``offset + dropped`` of the stream. ended: the writer is gone; an empty piece is the last."""

    stream: str
    offset: int
    content: bytes
    dropped: int
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
            "dropped": self.dropped,
            "ended": self.ended,
            "text": self.text,
        }


def read(attempt: Attempt, *, stream: str, offset: int = 0, limit: int = LIMIT) -> Piece:
    """At most ``limit`` bytes from ``offset`` on; no file yet is no output yet. Raises: InvalidInput

    offset: bytes; negative: about that many before the end, from the beginning of a line
    """
    if limit < 4:
        raise InvalidInput("limit is at least 4 bytes: a character must fit.", parameter="limit")
    name = next((known for known in STREAMS if known == stream), None)
    if name is None:
        raise InvalidInput(f"stream is one of {', '.join(STREAMS)}.", parameter="stream")
    ended = attempt.state in ATTEMPT_ENDED  # asked before the files are read: what it wrote last is then in them
    jobdir = home().jobs / str(attempt.pk)
    limit = min(limit, LIMIT)
    if offset < 0:
        offset, data, dropped = _the_end(kept.read(jobdir, name), min(-offset, limit))
    else:
        chunk = kept.read_from(jobdir, name, offset, limit=limit)
        data, dropped = chunk.data, chunk.skipped
    whole = data[: _whole_characters(data)]
    return Piece(stream, offset, whole if whole or not ended else data, dropped if data else 0, ended)


def _the_end(captured: kept.Captured, number: int) -> tuple[int, bytes, int]:
    data = (captured.tail or captured.head)[-number:]
    start = captured.total - len(data)
    if start:
        line = data.find(b"\n") + 1  # 0 when there is none: then rather half a line than nothing
        start, data = start + line, data[line:]
    return start, data, 0


def _whole_characters(content: bytes) -> int:
    """How many bytes of ``content`` are whole characters: the rest of the last one may not have arrived yet."""
    for back in range(1, min(4, len(content)) + 1):
        lead = content[-back]
        if lead & 0b1100_0000 == 0b1000_0000:
            continue  # a continuation byte: its lead is further in front
        needed = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        return len(content) - back if needed > back else len(content)
    return len(content)
