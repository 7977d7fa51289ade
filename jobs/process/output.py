"""What a command wrote: its beginning and its end, with the number of bytes that were dropped in between.

Positions are those of the stream as the command wrote it, so a follower's position stays valid whatever is dropped.
Files: ``stdout`` holds the first half of the cap, ``stdout.tail`` a ring with the latest bytes; the same for stderr.
The writer is shim.Capture. Output is not synced: a power loss may take the last seconds, never a receipt.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jobs.process import shim

Stream = Literal["stdout", "stderr"]


@dataclass(frozen=True)
class Captured:
    """head + ``dropped`` bytes that are gone + tail is the whole stream so far."""

    head: bytes
    dropped: int
    tail: bytes

    @property
    def total(self) -> int:
        return len(self.head) + self.dropped + len(self.tail)

    def text(self) -> str:
        """For people: undecodable bytes become U+FFFD, the gap a line of its own."""
        if not self.dropped:
            return (self.head + self.tail).decode(errors="replace")
        head, tail = (part.decode(errors="replace") for part in (self.head, self.tail))
        return f"{head}\n… {self.dropped} bytes dropped …\n{tail}"


@dataclass(frozen=True)
class Chunk:
    """A piece of the stream. ``skipped``: bytes between the asked position and ``data`` that were dropped."""

    data: bytes
    skipped: int
    next_offset: int


def read(jobdir: Path, stream: Stream, *, total: int | None = None) -> Captured:
    """Everything that is kept. total: from the exit receipt; tells what could not be stored at the end."""
    head = _read_head(jobdir, stream, 0, None)
    first, tail = _read_tail(jobdir, stream, len(head))
    if first == len(head):
        head, tail = head + tail, b""
    if total is not None and total > max(len(head), first + len(tail)):
        return Captured(
            head, total - len(head), b""
        )  # storing failed at some point; a tail from before that is not the end
    return Captured(head, first - len(head) if tail else 0, tail)


def read_from(jobdir: Path, stream: Stream, offset: int, *, limit: int = 1 << 16) -> Chunk:
    """What follows position ``offset``, at most ``limit`` bytes; an empty chunk when there is nothing new yet."""
    if data := _read_head(jobdir, stream, offset, limit):
        return Chunk(data, 0, offset + len(data))
    head_size = _size(jobdir / stream)
    first, tail = _read_tail(jobdir, stream, head_size)
    start = max(offset, first)
    data = tail[start - first :][:limit]
    if not data:
        return Chunk(b"", 0, offset)
    return Chunk(data, start - offset, start + len(data))


def _read_head(jobdir: Path, stream: Stream, offset: int, limit: int | None) -> bytes:
    try:
        with (jobdir / stream).open("rb") as file:
            file.seek(offset)
            return file.read(limit)
    except FileNotFoundError:
        return b""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read_tail(jobdir: Path, stream: Stream, head_size: int) -> tuple[int, bytes]:
    """The ring in order. Returns: position of its first byte in the stream, and its bytes.

    The writer announces a position, writes up to it, confirms. So a byte is certain if it was confirmed before we read
    and lies less than a ring's length before what was announced after we read.
    """
    try:
        fd = os.open(jobdir / f"{stream}.tail", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return head_size, b""
    try:
        _, _, written = _header(fd)
        ring = os.pread(fd, os.fstat(fd).st_size, shim.RING_HEADER.size)
        size, announced, _ = _header(fd)
    finally:
        os.close(fd)
    if not size:
        return head_size, b""
    first = min(max(head_size, announced - size), written)
    start = (first - head_size) % size
    return first, (ring[start:] + ring[:start])[: written - first]


def _header(fd: int) -> tuple[int, int, int]:
    """Ring size, position announced, position confirmed; zeros while the file is being made."""
    raw = os.pread(fd, shim.RING_HEADER.size, 0)
    size, announced, written = shim.RING_HEADER.unpack(raw) if len(raw) == shim.RING_HEADER.size else (0, 0, 0)
    return size, announced, written
